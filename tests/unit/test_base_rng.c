/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "test.h"

/* Values of Vigna's reference programs: splitmix64 from 1234567, xoshiro256** from {1, 2, 3, 4}. */
TEST(sequences_are_the_published_ones)
{
    static const uint64_t split[] = {6457827717110365317u, 3203168211198807973u,
                                     9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};
    static const uint64_t xoshiro[] = {11520u, 0u, 1509978240u, 1215971899390074240u,
                                       1216172134540287360u};
    struct mb_rng rng = {{1, 2, 3, 4}};
    uint64_t state = 1234567;

    for (int i = 0; i < 5; i++) {
        CHECK_EQ(mb__splitmix64(&state), split[i]);
        CHECK_EQ(mb__rng_next(&rng), xoshiro[i]);
    }
}

TEST(the_seed_decides_everything)
{
    struct mb_rng a, b, c;
    int same = 0;

    mb__rng_seed(&a, mb_test_seed());
    mb__rng_seed(&b, mb_test_seed());
    mb__rng_seed(&c, mb_test_seed() + 1);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = mb__rng_next(&a);

        CHECK_EQ(x, mb__rng_next(&b));
        same += x == mb__rng_next(&c);
    }
    CHECK(same <= 1);
}

TEST(below_and_range_stay_inside_and_reach_all)
{
    struct mb_rng rng;
    unsigned seen[10] = {0};

    mb__rng_seed(&rng, mb_test_seed());
    for (int i = 0; i < 10000; i++) {
        uint64_t x = mb__rng_below(&rng, 10);
        uint64_t y = mb__rng_range(&rng, 5, 7);
        double u = mb__rng_unit(&rng);

        CHECK(x < 10);
        CHECK(y >= 5 && y <= 7);
        CHECK(u >= 0 && u < 1);
        seen[x]++;
    }
    /* 1,000 expected each; further off than 400 is beyond 13 sigma. */
    for (int i = 0; i < 10; i++)
        CHECK(seen[i] > 600 && seen[i] < 1400);
    CHECK_EQ(mb__rng_below(&rng, 1), 0);
    CHECK(mb__rng_below(&rng, UINT64_MAX) < UINT64_MAX);
}

TEST(shuffle_keeps_the_items)
{
    uint32_t list[100], seen[100] = {0};
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (uint32_t i = 0; i < 100; i++)
        list[i] = i;
    mb__rng_shuffle_u32(&rng, list, 100);
    for (uint32_t i = 0; i < 100; i++)
        CHECK_EQ(seen[list[i]]++, 0);
    mb__rng_shuffle_u32(&rng, list, 0);
}

TEST(time_does_not_go_back)
{
    uint64_t last = mb__now_ns();

    for (int i = 0; i < 10000; i++) {
        uint64_t now = mb__now_ns();

        CHECK(now >= last);
        last = now;
    }
}
