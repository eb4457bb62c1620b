/* SPDX-License-Identifier: MIT */
/*
 * handles.h - which handles are live: a set of addresses that is asked without following them.
 *
 * A caller may hand in anything as a handle. What is not in the set is refused before a byte of it
 * is read, so a wild pointer gives an error, not a fault.
 *
 * LOCKING   mb__handles_has() takes none and may run beside everything else. add and del lock the
 *           set.
 * COST      has: one hash, mostly one load. Space: 2 to 4 words for each of the most handles that
 *           were ever live at once; outgrown tables stay until the library is unloaded.
 */
#ifndef MB_BASE_HANDLES_H
#define MB_BASE_HANDLES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mb__handle_table {
    struct mb__handle_table *older; /* outgrown */
    unsigned shift;                 /* 64 - log2(places) */
    size_t mask;                    /* places - 1 */
    uintptr_t place[];              /* 0: never used, 1: its handle is gone; atomic */
};

struct mb__handles {
    struct mb__handle_table *table; /* NULL: nothing was ever added; atomic */
    pthread_mutex_t lock;
    size_t used; /* places that are not 0; lock */
};

#define MB__HANDLES_INIT                                                                           \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER                                                          \
    }

static inline size_t mb__handles_start(const struct mb__handle_table *table, uintptr_t handle)
{
    return (size_t)((uint64_t)handle * UINT64_C(0x9e3779b97f4a7c15) >> table->shift);
}

static inline bool mb__handles_has(const struct mb__handles *live, const void *handle)
{
    const struct mb__handle_table *table = __atomic_load_n(&live->table, __ATOMIC_ACQUIRE);
    uintptr_t want = (uintptr_t)handle;

    if (!table || want <= 1)
        return false;
    for (size_t i = mb__handles_start(table, want);; i = (i + 1) & table->mask) {
        uintptr_t there = __atomic_load_n(&table->place[i], __ATOMIC_ACQUIRE);

        if (there == want)
            return true;
        if (!there)
            return false;
    }
}

/* False: no host memory. The handle is not in the set. */
bool mb__handles_add(struct mb__handles *live, const void *handle);
/* Nothing happens if it is not in the set. */
void mb__handles_del(struct mb__handles *live, const void *handle);
/* Frees all tables; for unloading, when nobody can ask any more. */
void mb__handles_fini(struct mb__handles *live);

#endif
