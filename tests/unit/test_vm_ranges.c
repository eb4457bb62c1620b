/* SPDX-License-Identifier: MIT */
/* Sets of ranges against an array of flags. */
#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "vm/ranges.h"

enum { UNITS = 300 };

/* The naive set: which units are in it. */
static bool in_set[UNITS];

static struct mb__span run_at(uint32_t unit)
{
    struct mb__span span = {unit, 0};

    while (span.first && in_set[span.first - 1])
        span.first--;
    while (span.first + span.count < UNITS && in_set[span.first + span.count])
        span.count++;
    return span;
}

static bool naive_best(uint32_t count, struct mb__span *out)
{
    bool found = false;

    for (uint32_t i = 0; i < UNITS; i++) {
        struct mb__span span = run_at(i);

        if (!in_set[i])
            continue;
        if (span.count >= count && (!found || span.count < out->count)) {
            *out = span;
            found = true;
        }
        i = span.first + span.count - 1;
    }
    return found;
}

static void compare(const struct mb__ranges *set, uint64_t *random)
{
    uint32_t unit = (uint32_t)mb_test_random_below(random, UNITS);
    uint32_t count = 1 + (uint32_t)mb_test_random_below(random, 40);
    struct mb__span got = {0}, want = {0};
    bool found;

    CHECK(mb__ranges_valid(set));
    CHECK_EQ(mb__ranges_at(set, unit, &got), in_set[unit]);
    if (in_set[unit]) {
        want = run_at(unit);
        CHECK_EQ(got.first, want.first);
        CHECK_EQ(got.count, want.count);
    }
    found = naive_best(count, &want);
    CHECK_EQ(mb__ranges_best(set, count, &got), found);
    if (found) {
        CHECK_EQ(got.first, want.first);
        CHECK_EQ(got.count, want.count);
    }
}

static void step(struct mb__ranges *set, uint64_t *random)
{
    uint32_t first = (uint32_t)mb_test_random_below(random, UNITS), count = 0;
    uint32_t most = 1 + (uint32_t)mb_test_random_below(random, 30);
    bool there = in_set[first];

    while (first + count < UNITS && in_set[first + count] == there && count < most)
        count++;
    if (there)
        mb__ranges_cut(set, first, count);
    else
        mb__ranges_add(set, first, count);
    memset(in_set + first, !there, count);
}

TEST(agrees_with_an_array_of_flags)
{
    uint64_t random = mb_test_seed();
    struct mb__ranges set;

    memset(in_set, 0, sizeof(in_set));
    CHECK_OK(mb__ranges_init(&set, UNITS));
    for (int i = 0; i < 20000; i++) {
        step(&set, &random);
        compare(&set, &random);
    }
    mb__ranges_fini(&set);
}

TEST(walks_by_size_from_large_to_small)
{
    struct mb__ranges set;
    struct mb__span span = {0};

    CHECK_OK(mb__ranges_init(&set, 100));
    mb__ranges_add(&set, 0, 3);
    mb__ranges_add(&set, 10, 7);
    mb__ranges_add(&set, 30, 7);
    mb__ranges_add(&set, 50, 1);
    CHECK(mb__ranges_larger_first(&set, NULL, &span));
    CHECK_EQ(span.first, 30);
    CHECK(mb__ranges_larger_first(&set, &span, &span));
    CHECK_EQ(span.first, 10);
    CHECK(mb__ranges_larger_first(&set, &span, &span));
    CHECK_EQ(span.first, 0);
    CHECK(mb__ranges_larger_first(&set, &span, &span));
    CHECK_EQ(span.first, 50);
    CHECK(!mb__ranges_larger_first(&set, &span, &span));
    mb__ranges_fini(&set);
}

TEST(holds_every_second_unit)
{
    struct mb__ranges set;

    CHECK_OK(mb__ranges_init(&set, 1001));
    for (uint32_t i = 0; i < 1001; i += 2)
        mb__ranges_add(&set, i, 1);
    CHECK(mb__ranges_valid(&set));
    CHECK_EQ(set.total, 501);
    for (uint32_t i = 1; i < 1001; i += 2)
        mb__ranges_add(&set, i, 1);
    CHECK(mb__ranges_valid(&set));
    CHECK_EQ(set.total, 1001);
    mb__ranges_cut(&set, 0, 1001);
    CHECK(mb__ranges_valid(&set));
    mb__ranges_fini(&set);
}
