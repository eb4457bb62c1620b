/* SPDX-License-Identifier: MIT */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/hist.h"
#include "base/rng.h"
#include "test.h"

static struct mb_hist a, b, both;

static void clear_all(void)
{
    memset(&a, 0, sizeof(a));
    memset(&b, 0, sizeof(b));
    memset(&both, 0, sizeof(both));
}

TEST(bins_tile_all_values)
{
    CHECK_EQ(mb__hist_bin_low(0), 0);
    CHECK_EQ(mb__hist_bin_high(MB_HIST_BINS - 1), UINT64_MAX);
    for (unsigned i = 0; i < MB_HIST_BINS; i++) {
        uint64_t low = mb__hist_bin_low(i), high = mb__hist_bin_high(i);

        CHECK_EQ(mb__hist_bin(low), i);
        CHECK_EQ(mb__hist_bin(high), i);
        if (i)
            CHECK_EQ(low, mb__hist_bin_high(i - 1) + 1);
        /* Width at most 2% of the smallest value in it. */
        CHECK((high - low) * 50 <= low || high == low);
    }
}

TEST(empty_gives_zeros)
{
    struct mb_latency l;

    clear_all();
    mb__hist_latency(&a, &l);
    CHECK_EQ(l.count, 0);
    CHECK_EQ(l.p50_ns, 0);
    CHECK_EQ(l.p999_ns, 0);
    CHECK_EQ(l.max_ns, 0);
    CHECK_EQ(l.total_ns, 0);
    CHECK_EQ(mb__hist_quantile(&a, 0.5), 0);
}

static int compare(const void *x, const void *y)
{
    uint64_t a_value = *(const uint64_t *)x, b_value = *(const uint64_t *)y;

    return a_value < b_value ? -1 : a_value > b_value;
}

TEST(quantiles_match_a_sorted_list_within_two_percent)
{
    enum { N = 20000 };
    static const double q[] = {0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1};
    static uint64_t list[N];
    struct mb_rng rng;

    clear_all();
    mb__rng_seed(&rng, mb_test_seed());
    for (int i = 0; i < N; i++) {
        list[i] = mb__rng_next(&rng) >> mb__rng_below(&rng, 64);
        mb__hist_record(&a, list[i]);
    }
    qsort(list, N, sizeof(list[0]), compare);
    CHECK_EQ(mb__hist_count(&a), N);
    for (unsigned i = 0; i < sizeof(q) / sizeof(q[0]); i++) {
        double rank = q[i] * N;
        uint64_t at = (uint64_t)rank + (rank > (double)(uint64_t)rank);
        uint64_t exact = list[at ? at - 1 : 0];
        uint64_t got = mb__hist_quantile(&a, q[i]);

        CHECK(got >= exact);
        CHECK(got - exact <= exact / 50);
    }
    CHECK_EQ(mb__hist_quantile(&a, 1), list[N - 1]);
}

TEST(merge_equals_recording_into_one)
{
    struct mb_rng rng;

    clear_all();
    mb__rng_seed(&rng, mb_test_seed() + 1);
    for (int i = 0; i < 5000; i++) {
        uint64_t value = mb__rng_next(&rng) >> mb__rng_below(&rng, 64);

        mb__hist_record(i % 3 ? &a : &b, value);
        mb__hist_record(&both, value);
    }
    mb__hist_merge(&a, &b);
    CHECK_MEM_EQ(&a, &both, sizeof(a));
}

enum { THREADS = 4, PER_THREAD = 50000 };

static void *record_many(void *arg)
{
    uint64_t state = (uint64_t)(uintptr_t)arg;

    for (int i = 0; i < PER_THREAD; i++)
        mb__hist_record_shared(&a, mb__splitmix64(&state) % 1000000);
    return NULL;
}

TEST(shared_recording_loses_nothing)
{
    pthread_t thread[THREADS];
    struct mb_latency l;
    uint64_t total = 0, max = 0;

    clear_all();
    for (int t = 0; t < THREADS; t++)
        CHECK_EQ(pthread_create(&thread[t], NULL, record_many, (void *)(uintptr_t)(t + 1)), 0);
    for (int t = 0; t < THREADS; t++) {
        uint64_t state = (uint64_t)t + 1;

        for (int i = 0; i < PER_THREAD; i++) {
            uint64_t value = mb__splitmix64(&state) % 1000000;

            total += value;
            max = value > max ? value : max;
        }
        pthread_join(thread[t], NULL);
    }
    mb__hist_latency(&a, &l);
    CHECK_EQ(l.count, THREADS * PER_THREAD);
    CHECK_EQ(l.total_ns, total);
    CHECK_EQ(l.max_ns, max);
}
