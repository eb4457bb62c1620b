/* SPDX-License-Identifier: MIT */
/* The table of blocks: against base's map, and with readers beside a writer. */
#include <pthread.h>
#include <string.h>

#include "base/hash.h"
#include "runtime/runtime.h"
#include "test.h"

enum {
    KEYS = 5000,
    OPS = 60000,
    STABLE = 256,
    READS = 200000,
};

static uint64_t addr_of(uint64_t i)
{
    return ((uint64_t)1 << 44) + i * 512;
}

TEST(random_puts_and_deletes_agree_with_a_map)
{
    static struct mb__block blocks[KEYS];
    struct mb__table table = {0};
    struct mb_map map = {0};
    uint64_t state = mb_test_seed();
    size_t at = 0, seen = 0;

    for (unsigned i = 0; i < OPS; i++) {
        uint64_t key = mb_test_random_below(&state, KEYS), addr = addr_of(key);

        if (mb__map_get(&map, addr, NULL)) {
            mb__table_del(&table, addr);
            mb__map_del(&map, addr, NULL);
        } else {
            CHECK_OK(mb__table_prepare(&table));
            mb__table_put(&table, addr, &blocks[key]);
            CHECK_OK(mb__map_put_ptr(&map, addr, &blocks[key]));
        }
        key = mb_test_random_below(&state, KEYS);
        CHECK_PTR_EQ(mb__table_get(&table, addr_of(key)), mb__map_get_ptr(&map, addr_of(key)));
    }
    CHECK_EQ(table.count, map.count);
    while (mb__table_next(&table, &at))
        seen++;
    CHECK_EQ(seen, table.count);
    mb__table_fini(&table);
    mb__map_free(&map);
}

struct shared {
    struct mb__table table;
    struct mb__block stable[STABLE], other[KEYS];
    int stop;        /* atomic */
    unsigned misses; /* of addresses that were there all the time; atomic */
};

static void *read_stable(void *arg)
{
    struct shared *shared = arg;
    uint64_t state = 7;

    for (unsigned i = 0; i < READS; i++) {
        uint64_t key = mb_test_random_below(&state, STABLE);

        if (mb__table_get(&shared->table, addr_of(2 * KEYS + key)) != &shared->stable[key])
            __atomic_add_fetch(&shared->misses, 1, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELEASE);
    return NULL;
}

TEST(readers_always_find_what_stays)
{
    static struct shared shared;
    uint64_t state = mb_test_seed();
    pthread_t reader;

    for (unsigned i = 0; i < STABLE; i++) {
        CHECK_OK(mb__table_prepare(&shared.table));
        mb__table_put(&shared.table, addr_of(2 * KEYS + i), &shared.stable[i]);
    }
    CHECK_EQ(pthread_create(&reader, NULL, read_stable, &shared), 0);
    while (!__atomic_load_n(&shared.stop, __ATOMIC_ACQUIRE)) {
        uint64_t key = mb_test_random_below(&state, KEYS);

        if (mb__table_get(&shared.table, addr_of(key))) {
            mb__table_del(&shared.table, addr_of(key));
        } else {
            CHECK_OK(mb__table_prepare(&shared.table));
            mb__table_put(&shared.table, addr_of(key), &shared.other[key]);
        }
    }
    pthread_join(reader, NULL);
    CHECK_EQ(shared.misses, 0);
    mb__table_fini(&shared.table);
}
