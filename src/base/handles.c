/* SPDX-License-Identifier: MIT */
/*
 * See handles.h. Open addressing; a place whose handle is gone is marked and used again. When three
 * quarters of the places have been used, the live ones move to a new table, twice as large if need
 * be; who still reads the old one finds there what was live when he began.
 */
#include "base/handles.h"

#include <stdlib.h>

enum { GONE = 1, PLACES_MIN = 64 };

static void put(struct mb__handle_table *table, uintptr_t handle)
{
    size_t i = mb__handles_start(table, handle);

    while (table->place[i] > GONE)
        i = (i + 1) & table->mask;
    __atomic_store_n(&table->place[i], handle, __ATOMIC_RELEASE);
}

/* A table in which at most half of the places are used, one more handle included. */
static bool renew(struct mb__handles *live)
{
    struct mb__handle_table *old = live->table, *table;
    size_t count = 1, places = PLACES_MIN;

    for (size_t i = 0; old && i <= old->mask; i++)
        count += old->place[i] > GONE;
    while (places < 2 * count)
        places *= 2;
    table = calloc(1, sizeof(*table) + places * sizeof(table->place[0]));
    if (!table)
        return false;
    table->older = old;
    table->mask = places - 1;
    table->shift = (unsigned)(64 - __builtin_ctzll(places));
    for (size_t i = 0; old && i <= old->mask; i++) {
        if (old->place[i] > GONE)
            put(table, old->place[i]);
    }
    live->used = count - 1;
    __atomic_store_n(&live->table, table, __ATOMIC_RELEASE);
    return true;
}

bool mb__handles_add(struct mb__handles *live, const void *handle)
{
    bool ok = true;

    pthread_mutex_lock(&live->lock);
    if (!live->table || 4 * (live->used + 1) > 3 * (live->table->mask + 1))
        ok = renew(live);
    if (ok) {
        put(live->table, (uintptr_t)handle);
        live->used++; /* too much when a marked place was used: then the table is renewed earlier */
    }
    pthread_mutex_unlock(&live->lock);
    return ok;
}

void mb__handles_del(struct mb__handles *live, const void *handle)
{
    struct mb__handle_table *table;
    uintptr_t want = (uintptr_t)handle;

    pthread_mutex_lock(&live->lock);
    table = live->table;
    if (table && want > GONE) {
        size_t i = mb__handles_start(table, want);

        while (table->place[i] && table->place[i] != want)
            i = (i + 1) & table->mask;
        if (table->place[i])
            __atomic_store_n(&table->place[i], GONE, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&live->lock);
}

void mb__handles_fini(struct mb__handles *live)
{
    pthread_mutex_lock(&live->lock);
    while (live->table) {
        struct mb__handle_table *table = live->table;

        live->table = table->older;
        free(table);
    }
    live->used = 0;
    pthread_mutex_unlock(&live->lock);
}
