/* SPDX-License-Identifier: MIT */
/*
 * handle.c - which caches are open in this process, so that a handle that is none is refused.
 *
 * Reading takes no lock: a place holds a cache from the end of its opening to the beginning of its
 * closing, and whoever passes a handle has it from there. Mostly one place or two are in use.
 */
#include "kv.h"

#include <stdatomic.h>

enum {
    CACHES_MAX = 256,
    NUMBERS = 1023, /* of caches in ids; 0 is none */
};

static _Atomic(struct mb_kv *) places[CACHES_MAX];
static atomic_uint used;   /* places that ever held one: the first ones */
static atomic_uint opened; /* caches so far */

bool kv_is_open(const struct mb_kv *kv)
{
    unsigned count = atomic_load_explicit(&used, memory_order_relaxed);

    for (unsigned i = 0; kv && i < count; i++)
        if (atomic_load_explicit(&places[i], memory_order_relaxed) == kv)
            return true;
    return false;
}

enum mb_err kv_no_cache(const struct mb_kv *kv, const char *call)
{
    return kv_fail(MB_ERR_INVALID, "%s: %p is no open cache; use the handle that mb_kv_open() gave",
                   call, (const void *)kv);
}

enum mb_err kv_enlist(struct mb_kv *kv)
{
    for (unsigned i = 0; i < CACHES_MAX; i++) {
        struct mb_kv *none = NULL;
        unsigned before = atomic_load(&used);

        if (!atomic_compare_exchange_strong(&places[i], &none, kv))
            continue;
        while (before <= i && !atomic_compare_exchange_weak(&used, &before, i + 1))
            ;
        kv->number = atomic_fetch_add(&opened, 1) % NUMBERS + 1;
        return MB_OK;
    }
    return kv_fail(MB_ERR_LIMIT, "%d caches are open; this process can have no more", CACHES_MAX);
}

void kv_delist(const struct mb_kv *kv)
{
    for (unsigned i = 0; i < CACHES_MAX; i++)
        if (atomic_load(&places[i]) == kv)
            atomic_store(&places[i], NULL);
}
