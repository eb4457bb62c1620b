/* SPDX-License-Identifier: MIT */
/*
 * Report 11 of the field (pytorch#145168, #147851, #163257, #133281): a pluggable allocator with
 * its own pool never returned memory and had no statistics. Here: a pool has both, and resets of
 * its marks.
 */
#include "support/runtime_rig.h"

static uint64_t get(mb_pool pool, enum mb_pool_attr attr)
{
    uint64_t value = 0;

    RT_OK(mb_pool_get(pool, attr, &value));
    return value;
}

TEST(trim_returns_memory_to_the_driver)
{
    mb_device dev = rt_open("backend:sim,device_memory:8g");
    uint64_t held;
    mb_pool pool;
    void *ptr = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_malloc_async(pool, 3 * RT_GIB, NULL, &ptr));
    CHECK_EQ(get(pool, MB_POOL_USED_CURRENT), 3 * RT_GIB);
    held = rt_stats(dev).reserved_bytes;
    CHECK(held >= 3 * RT_GIB);
    RT_OK(mb_free_async(dev, ptr, NULL));
    CHECK_EQ(get(pool, MB_POOL_USED_CURRENT), 0);
    CHECK(get(pool, MB_POOL_RESERVED_CURRENT) >= 3 * RT_GIB);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_trim(pool, RT_GIB));
    CHECK_LE(get(pool, MB_POOL_RESERVED_CURRENT), RT_GIB);
    CHECK_LE(rt_stats(dev).reserved_bytes, held - 2 * RT_GIB);
    CHECK(get(pool, MB_POOL_RESERVED_HIGH) >= 3 * RT_GIB);
    CHECK_EQ(get(pool, MB_POOL_USED_HIGH), 3 * RT_GIB);
    RT_OK(mb_pool_set(pool, MB_POOL_USED_HIGH, 0));
    CHECK_EQ(get(pool, MB_POOL_USED_HIGH), 0);
    RT_OK(mb_pool_set(pool, MB_POOL_RESERVED_HIGH, 0));
    CHECK_LE(get(pool, MB_POOL_RESERVED_HIGH), RT_GIB);
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

TEST(release_threshold_acts_at_synchronize)
{
    mb_device dev = rt_open("backend:sim,device_memory:8g");
    mb_pool pool;
    void *ptr;

    RT_OK(mb_pool_default(dev, &pool));
    CHECK_EQ(get(pool, MB_POOL_RELEASE_THRESHOLD), UINT64_MAX);
    RT_OK(mb_pool_set(pool, MB_POOL_RELEASE_THRESHOLD, 512 * RT_MIB));
    ptr = rt_malloc(dev, 2 * RT_GIB, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    CHECK(rt_stats(dev).reserved_bytes >= 2 * RT_GIB);
    RT_OK(mb_stream_sync(dev, NULL));
    CHECK_LE(rt_stats(dev).reserved_bytes, 512 * RT_MIB);
    rt_close(dev);
}

TEST(destroying_a_pool_returns_all_of_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:8g");
    mb_pool pool;
    void *ptr = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_malloc_async(pool, RT_GIB, NULL, &ptr));
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_BUSY);
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_pool_destroy(pool));
    CHECK_EQ(mb_pool_trim(pool, 0), MB_ERR_INVALID);
    ptr = rt_malloc(dev, 7 * RT_GIB, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}

TEST(peaks_can_be_reset)
{
    mb_device dev = rt_open("backend:sim,device_memory:8g");
    void *ptr = rt_malloc(dev, 2 * RT_GIB, NULL);
    struct mb_stats stats;

    RT_OK(mb_free_async(dev, ptr, NULL));
    stats = rt_stats(dev);
    CHECK_EQ(stats.requested_peak_bytes, 2 * RT_GIB);
    CHECK_EQ(stats.requested_bytes, 0);
    RT_OK(mb_stats_reset_peaks(dev));
    stats = rt_stats(dev);
    CHECK_EQ(stats.requested_peak_bytes, 0);
    CHECK_EQ(stats.reserved_peak_bytes, stats.reserved_bytes);
    rt_close(dev);
}
