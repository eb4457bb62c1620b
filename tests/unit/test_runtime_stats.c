/* SPDX-License-Identifier: MIT */
/* Statistics under PyTorch's names. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

static uint64_t value_of(mb_device dev, const char *key)
{
    char text[8192], needle[128];
    const char *at;
    size_t needed = 0;

    RT_OK(mb_stats_text(dev, MB_STATS_TEXT, text, sizeof(text), &needed));
    CHECK_EQ(needed, strlen(text) + 1);
    snprintf(needle, sizeof(needle), "\n%s ", key);
    at = strstr(text, needle);
    CHECK(at != NULL);
    return strtoull(at + strlen(needle), NULL, 10);
}

TEST(keys_follow_what_happens)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *first = rt_malloc(dev, 1000, NULL), *second = rt_malloc(dev, 3 << 20, NULL), *ptr = NULL;

    RT_OK(mb_free_async(dev, first, NULL));
    first = rt_malloc(dev, 900, NULL); /* from the warm path */
    CHECK_EQ(value_of(dev, "requested_bytes.all.peak"), (3 << 20) + 1000);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.current"), (3 << 20) + 1024);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.allocated"), (3 << 20) + 2048);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), 1024);
    CHECK_EQ(value_of(dev, "allocation.all.current"), 2);
    CHECK_EQ(value_of(dev, "allocation.all.allocated"), 3);
    CHECK_EQ(value_of(dev, "allocation.all.freed"), 1);
    CHECK_EQ(value_of(dev, "num_ooms"), 0);
    CHECK(value_of(dev, "num_device_alloc") >= 1);
    CHECK(value_of(dev, "reserved_bytes.all.current") >= (3 << 20));
    CHECK_EQ(value_of(dev, "num_alloc_retries"), 0);
    CHECK_EQ(mb_malloc_async(dev, 255 * RT_MIB, NULL, &ptr), MB_ERR_NO_MEMORY);
    CHECK_EQ(value_of(dev, "num_ooms"), 1);
    CHECK(value_of(dev, "num_alloc_retries") >= 1);
    CHECK_EQ(value_of(dev, "num_sync_all_streams"), 1);
    RT_OK(mb_free_async(dev, first, NULL));
    RT_OK(mb_free_async(dev, second, NULL));
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), (3 << 20) + 2048);
    rt_close(dev);
}

TEST(counts_of_a_pool_outlive_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    for (unsigned i = 0; i < 10; i++) {
        void *ptr = NULL;

        RT_OK(mb_pool_malloc_async(pool, 4096, NULL, &ptr));
        RT_OK(mb_free_async(dev, ptr, NULL));
    }
    RT_OK(mb_pool_destroy(pool));
    CHECK_EQ(rt_stats(dev).malloc_calls, 10);
    CHECK_EQ(rt_stats(dev).free_calls, 10);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.allocated"), 40960);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), 40960);
    rt_close(dev);
}

struct worker {
    mb_device dev;
    mb_pool pool;
    uint64_t bytes;
    void *ptr;
};

static void *take_and_give(void *user)
{
    struct worker *w = user;

    for (unsigned i = 0; i < 500; i++) {
        if (mb_pool_malloc_async(w->pool, w->bytes, NULL, &w->ptr))
            return w;
        if (mb_free_async(w->dev, w->ptr, NULL))
            return w;
    }
    return mb_pool_malloc_async(w->pool, w->bytes, NULL, &w->ptr) ? w : NULL;
}

/* What many threads do to many pools on the warm path is in the figures of each, and peaks are not
 * above what was ever possible. */
TEST(threads_and_pools_add_up)
{
    enum { POOLS = 5, THREADS = 70, EACH = 4096 };
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct worker worker[THREADS];
    pthread_t thread[THREADS];
    mb_pool pool[POOLS];
    void *failed;

    for (unsigned p = 0; p < POOLS; p++)
        RT_OK(mb_pool_create(dev, &pool[p]));
    for (unsigned t = 0; t < THREADS; t++) {
        worker[t] = (struct worker){dev, pool[t % POOLS], EACH * (1 + t % POOLS), NULL};
        CHECK_OK(pthread_create(&thread[t], NULL, take_and_give, &worker[t]));
    }
    for (unsigned t = 0; t < THREADS; t++) {
        CHECK_OK(pthread_join(thread[t], &failed));
        CHECK_PTR_EQ(failed, NULL);
    }
    RT_OK(mb_check(dev));
    CHECK_EQ(rt_stats(dev).live_blocks, THREADS);
    CHECK_EQ(rt_stats(dev).malloc_calls, THREADS * 501);
    CHECK_EQ(rt_stats(dev).free_calls, THREADS * 500);
    for (unsigned p = 0; p < POOLS; p++) {
        uint64_t used = 0, high = 0, all = (uint64_t)THREADS / POOLS * EACH * (1 + p);

        RT_OK(mb_pool_get(pool[p], MB_POOL_USED_CURRENT, &used));
        RT_OK(mb_pool_get(pool[p], MB_POOL_USED_HIGH, &high));
        CHECK_EQ(used, all);
        CHECK_EQ(high, all);
    }
    CHECK_EQ(rt_stats(dev).allocated_peak_bytes, rt_stats(dev).allocated_bytes);
    for (unsigned t = 0; t < THREADS; t++)
        RT_OK(mb_free_async(dev, worker[t].ptr, NULL));
    for (unsigned p = 0; p < POOLS; p++)
        RT_OK(mb_pool_destroy(pool[p]));
    CHECK_EQ(rt_stats(dev).allocated_bytes, 0);
    rt_close(dev);
}

/* Between two slow calls, on the warm path of two pools: the peak of each pool and of the device
 * are exact with one thread. */
TEST(warm_peaks_are_exact)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr[3];
    mb_pool pool = NULL;
    uint64_t high = 0;

    RT_OK(mb_pool_create(dev, &pool));
    for (unsigned i = 0; i < 3; i++)
        RT_OK(mb_pool_malloc_async(pool, 8192, NULL, &ptr[i]));
    for (unsigned i = 0; i < 3; i++)
        RT_OK(mb_free_async(dev, ptr[i], NULL));
    RT_OK(mb_pool_set(pool, MB_POOL_USED_HIGH, 0));
    RT_OK(mb_stats_reset_peaks(dev));
    for (unsigned i = 0; i < 2; i++)
        RT_OK(mb_pool_malloc_async(pool, 8192, NULL, &ptr[i]));
    for (unsigned i = 0; i < 2; i++)
        RT_OK(mb_free_async(dev, ptr[i], NULL));
    RT_OK(mb_pool_get(pool, MB_POOL_USED_HIGH, &high));
    CHECK_EQ(high, 16384);
    CHECK_EQ(rt_stats(dev).allocated_peak_bytes, 16384);
    ptr[0] = rt_malloc(dev, 20 << 20, NULL); /* slow: adds to the base, not to the old high */
    CHECK_EQ(rt_stats(dev).allocated_peak_bytes, 20 << 20);
    RT_OK(mb_free_async(dev, ptr[0], NULL));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

TEST(json_is_json_and_sizes_are_told)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    char *text, small[16] = "as it was";
    size_t needed = 0;
    FILE *pipe;

    RT_OK(mb_stats_text(dev, MB_STATS_JSON, NULL, 0, &needed));
    CHECK_EQ(mb_stats_text(dev, MB_STATS_JSON, small, sizeof(small), NULL), MB_ERR_INVALID);
    CHECK_STR_EQ(small, "as it was");
    CHECK_EQ(mb_stats_text(dev, (enum mb_stats_format)7, NULL, 0, &needed), MB_ERR_INVALID);
    text = malloc(needed);
    CHECK(text != NULL);
    RT_OK(mb_stats_text(dev, MB_STATS_JSON, text, needed, NULL));
    pipe = popen("python3 -c 'import json, sys; d = json.load(sys.stdin); "
                 "assert d[\"allocated_bytes.all.current\"] == 0; assert len(d) > 20; "
                 "assert all(type(v) is int for v in d.values())'",
                 "w");
    CHECK(pipe && fputs(text, pipe) >= 0);
    CHECK_EQ(pclose(pipe), 0);
    free(text);
    rt_close(dev);
}
