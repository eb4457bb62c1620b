/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "test.h"

TEST(empty_map)
{
    struct mb_map map = {0};
    uint64_t key, value = 77;
    size_t at = 0;

    CHECK(!mb__map_get(&map, 0, &value));
    CHECK(!mb__map_del(&map, 0, &value));
    CHECK(!mb__map_get(&map, UINT64_MAX, &value));
    CHECK_EQ(value, 77);
    CHECK(!mb__map_next(&map, &at, &key, &value));
    mb__map_clear(&map);
    mb__map_free(&map);
}

TEST(all_keys_are_allowed)
{
    static const uint64_t keys[] = {0, 1, UINT64_MAX, UINT64_MAX - 1, 1ull << 63};
    struct mb_map map = {0};
    uint64_t key, value;
    size_t at = 0, visited = 0;

    for (unsigned i = 0; i < 5; i++)
        CHECK_OK(mb__map_put(&map, keys[i], i));
    CHECK_OK(mb__map_put(&map, UINT64_MAX, 2));
    CHECK_EQ(map.count, 5);
    for (unsigned i = 0; i < 5; i++) {
        CHECK(mb__map_get(&map, keys[i], &value));
        CHECK_EQ(value, i);
    }
    while (mb__map_next(&map, &at, &key, &value)) {
        CHECK_EQ(key, keys[value]);
        visited++;
    }
    CHECK_EQ(visited, 5);
    CHECK(mb__map_del(&map, UINT64_MAX, &value));
    CHECK_EQ(value, 2);
    CHECK(!mb__map_get(&map, UINT64_MAX, NULL));
    CHECK_EQ(map.count, 4);
    mb__map_free(&map);
}

/* Few distinct keys, many operations: long runs, wrap-around and gaps are all met. */
static void against_array(uint64_t stride, uint64_t seed)
{
    enum { KEYS = 300 };
    bool there[KEYS] = {false};
    uint64_t values[KEYS] = {0};
    struct mb_map map = {0};
    struct mb_rng rng;
    size_t count = 0;

    mb__rng_seed(&rng, seed);
    for (int step = 0; step < 60000; step++) {
        uint64_t k = mb__rng_below(&rng, KEYS), value = mb__rng_next(&rng), got;
        /* Phases of growth and of decay. */
        bool put = mb__rng_below(&rng, 100) < (step / 10000 % 2 ? 35u : 65u);

        if (put) {
            CHECK_OK(mb__map_put(&map, k * stride, value));
            count += !there[k];
            there[k] = true;
            values[k] = value;
        } else {
            CHECK_EQ(mb__map_del(&map, k * stride, &got), there[k]);
            if (there[k]) {
                CHECK_EQ(got, values[k]);
                count--;
            }
            there[k] = false;
        }
        CHECK_EQ(map.count, count);
        if (step % 500)
            continue;
        for (uint64_t i = 0; i < KEYS; i++) {
            CHECK_EQ(mb__map_get(&map, i * stride, &got), there[i]);
            if (there[i])
                CHECK_EQ(got, values[i]);
        }
    }
    mb__map_free(&map);
}

TEST(random_operations_agree_with_an_array)
{
    against_array(1, mb_test_seed());
    against_array(512, mb_test_seed() + 1);
    against_array(2u << 20, mb_test_seed() + 2);
    against_array(0x9e3779b97f4a7c15u, mb_test_seed() + 3);
}

TEST(after_reserve_puts_do_not_move_the_table)
{
    struct mb_map map = {0};
    struct mb_map_slot *slots;

    CHECK_OK(mb__map_reserve(&map, 1000));
    slots = map.slots;
    for (uint64_t i = 0; i < 1000; i++)
        CHECK_OK(mb__map_put(&map, i << 21, i));
    CHECK_PTR_EQ(map.slots, slots);
    CHECK_EQ(mb__map_reserve(&map, SIZE_MAX / 2), MB_ERR_HOST_MEMORY);
    CHECK_EQ(map.count, 1000);
    mb__map_clear(&map);
    CHECK_EQ(map.count, 0);
    CHECK(!mb__map_get(&map, 0, NULL));
    mb__map_free(&map);
}

TEST(pointers)
{
    struct mb_map map = {0};
    int thing;

    CHECK_PTR_EQ(mb__map_get_ptr(&map, 5), NULL);
    CHECK_OK(mb__map_put_ptr(&map, 5, &thing));
    CHECK_PTR_EQ(mb__map_get_ptr(&map, 5), &thing);
    CHECK_PTR_EQ(mb__map_del_ptr(&map, 5), &thing);
    CHECK_PTR_EQ(mb__map_del_ptr(&map, 5), NULL);
    mb__map_free(&map);
}
