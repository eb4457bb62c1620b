/* SPDX-License-Identifier: MIT */
#include "base/bitmap.h"
#include "base/rng.h"
#include "base/vec.h"
#include "test.h"

TEST(push_pop_remove)
{
    MB_VEC(uint32_t) v = {0};

    for (uint32_t i = 0; i < 1000; i++)
        CHECK(MB_VEC_PUSH(&v, i * 3));
    CHECK_EQ(v.count, 1000);
    CHECK(v.capacity >= 1000);
    for (uint32_t i = 0; i < 1000; i++)
        CHECK_EQ(v.data[i], i * 3);
    MB_VEC_SWAP_REMOVE(&v, 10);
    CHECK_EQ(v.data[10], 999 * 3);
    CHECK_EQ(v.count, 999);
    CHECK_EQ(MB_VEC_POP(&v), 998 * 3);
    MB_VEC_CLEAR(&v);
    CHECK_EQ(v.count, 0);
    MB_VEC_FREE(&v);
    CHECK_PTR_EQ(v.data, NULL);
    CHECK_EQ(v.capacity, 0);
}

TEST(an_impossible_reserve_changes_nothing)
{
    MB_VEC(uint64_t) v = {0};

    CHECK(MB_VEC_PUSH(&v, 5));
    CHECK(!MB_VEC_RESERVE(&v, SIZE_MAX / 4));
    CHECK_EQ(v.count, 1);
    CHECK_EQ(v.data[0], 5);
    CHECK_EQ(v.capacity, 8);
    MB_VEC_FREE(&v);
}

static size_t slow_find(const bool *model, size_t bits, size_t from, bool value)
{
    while (from < bits && model[from] != value)
        from++;
    return from < bits ? from : bits;
}

static size_t slow_run(const bool *model, size_t bits, size_t from, size_t count)
{
    for (size_t run = 0; from < bits; from++) {
        run = model[from] ? 0 : run + 1;
        if (run == count)
            return from + 1 - count;
    }
    return bits;
}

TEST(bitmap_agrees_with_an_array_of_bool)
{
    static const size_t sizes[] = {1, 63, 64, 65, 200, 1024};
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        size_t bits = sizes[s];
        bool model[1024] = {false};
        struct mb_bitmap map = {0};

        CHECK(mb__bitmap_init(&map, bits));
        for (int step = 0; step < 2000; step++) {
            size_t from = (size_t)mb__rng_below(&rng, bits);
            size_t count = (size_t)mb__rng_below(&rng, (bits - from) / (1 + (size_t)step % 9) + 1);
            bool value = mb__rng_next(&rng) & 1;
            size_t set = 0;

            mb__bitmap_assign(&map, from, count, value);
            for (size_t i = from; i < from + count; i++)
                model[i] = value;
            if (value)
                mb__bitmap_set(&map, from);
            else
                mb__bitmap_clear(&map, from);
            model[from] = value;

            from = (size_t)mb__rng_below(&rng, bits);
            count = (size_t)mb__rng_below(&rng, bits - from + 1);
            for (size_t i = from; i < from + count; i++)
                set += model[i];
            CHECK_EQ(mb__bitmap_count(&map, from, count), set);
            CHECK_EQ(mb__bitmap_test(&map, from), model[from]);
            CHECK_EQ(mb__bitmap_find(&map, from, true), slow_find(model, bits, from, true));
            CHECK_EQ(mb__bitmap_find(&map, from, false), slow_find(model, bits, from, false));
            count = 1 + (size_t)mb__rng_below(&rng, bits);
            CHECK_EQ(mb__bitmap_find_clear_run(&map, from, count),
                     slow_run(model, bits, from, count));
        }
        mb__bitmap_free(&map);
    }
}
