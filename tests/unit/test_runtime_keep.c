/* SPDX-License-Identifier: MIT */
/*
 * MB_POOL_KEEP, the pool of a captured graph. The software GPU captures nothing, so what is tested
 * is what a graph relies on: addresses, order, and that nobody else gets the memory.
 */
#include <string.h>

#include "support/runtime_rig.h"

static mb_pool keep_pool(mb_device dev)
{
    mb_pool pool = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 1));
    return pool;
}

static void *take(mb_pool pool, uint64_t bytes, mb_stream stream)
{
    void *ptr = NULL;

    RT_OK(mb_pool_malloc_async(pool, bytes, stream, &ptr));
    return ptr;
}

static void drop(mb_device dev, mb_pool pool)
{
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_BUSY);
    RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 0));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_destroy(pool));
}

TEST(what_was_freed_serves_nobody_else)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = keep_pool(dev);
    mb_stream stream = rt_stream(dev);
    void *block = take(pool, 100 * RT_MIB, stream), *ptr = NULL;
    uint64_t held = 0, now = 0;

    RT_OK(mb_free_async(dev, block, stream));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_get(pool, MB_POOL_RESERVED_CURRENT, &held));
    CHECK_EQ(mb_malloc_async(dev, 200 * RT_MIB, stream, &ptr), MB_ERR_NO_MEMORY);
    CHECK_EQ(mb_pool_trim(pool, 0), MB_ERR_BUSY);
    RT_OK(mb_pool_set(pool, MB_POOL_RELEASE_THRESHOLD, 0));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_get(pool, MB_POOL_RESERVED_CURRENT, &now));
    CHECK_EQ(now, held);
    CHECK_PTR_EQ(take(pool, 100 * RT_MIB, stream), block);
    RT_OK(mb_free_async(dev, block, stream));
    drop(dev, pool);
    /* Now it is everybody's. */
    ptr = rt_malloc(dev, 200 * RT_MIB, stream);
    RT_OK(mb_free_async(dev, ptr, stream));
    rt_close(dev);
}

TEST(another_stream_gets_nothing_by_the_device_having_finished)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = keep_pool(dev);
    mb_stream one = rt_stream(dev), two = rt_stream(dev);
    void *block = take(pool, 100 * RT_MIB, one), *other;
    mb_event event = NULL;

    RT_OK(mb_free_async(dev, block, one));
    RT_OK(mb_device_sync(dev));
    other = take(pool, 100 * RT_MIB, two);
    CHECK(other != block);
    /* Along an event it does. */
    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_event_record(dev, event, one));
    RT_OK(mb_stream_wait_event(dev, two, event));
    RT_OK(mb_check(dev)); /* empties the bins */
    CHECK_PTR_EQ(take(pool, 100 * RT_MIB, two), block);
    RT_OK(mb_free_async(dev, block, two));
    RT_OK(mb_free_async(dev, other, two));
    RT_OK(mb_event_destroy(dev, event));
    drop(dev, pool);
    rt_close(dev);
}

TEST(its_blocks_are_never_stitched)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = keep_pool(dev);
    uint64_t random = mb_test_seed();
    void *blocks[32] = {NULL};
    mb_stream stream = rt_stream(dev);

    for (unsigned i = 0; i < 2000; i++) {
        void **slot = &blocks[mb_test_random_below(&random, 32)];

        if (*slot) {
            RT_OK(mb_free_async(dev, *slot, stream));
            *slot = NULL;
        } else {
            enum mb_err err =
                mb_pool_malloc_async(pool, mb_test_random_below(&random, 12 << 20), stream, slot);

            CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
            if (!err)
                rt_fill(dev, *slot, 512, i, stream);
        }
    }
    CHECK_EQ(rt_stats(dev).stitches, 0);
    for (unsigned i = 0; i < 32; i++)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    drop(dev, pool);
    rt_close(dev);
}

TEST(where_it_cannot_be_it_is_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = NULL;
    uint64_t value = 9;
    void *ptr;

    RT_OK(mb_pool_default(dev, &pool));
    CHECK_EQ(mb_pool_set(pool, MB_POOL_KEEP, 1), MB_ERR_INVALID);
    RT_OK(mb_pool_create(dev, &pool));
    CHECK_EQ(mb_pool_set(pool, MB_POOL_KEEP, 2), MB_ERR_INVALID);
    ptr = take(pool, 100, NULL);
    CHECK_EQ(mb_pool_set(pool, MB_POOL_KEEP, 1), MB_ERR_BUSY);
    RT_OK(mb_pool_get(pool, MB_POOL_KEEP, &value));
    CHECK_EQ(value, 0);
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
    dev = rt_open("backend:sim,device_memory:256m,check:uaf");
    RT_OK(mb_pool_create(dev, &pool));
    CHECK_EQ(mb_pool_set(pool, MB_POOL_KEEP, 1), MB_ERR_NOT_SUPPORTED);
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

/* A resize is a free too: the old memory stays in its stream's order, and the new block's as well.
 * */
TEST(what_realloc_leaves_serves_nobody_else)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = keep_pool(dev);
    mb_stream one = rt_stream(dev), two = rt_stream(dev);
    void *block = take(pool, 8 * RT_MIB, one), *longer = NULL, *other;

    rt_fill(dev, block, 8 * RT_MIB, 1, one);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, block, 16 * RT_MIB, &longer));
    RT_OK(mb_verify_async(dev, longer, 8 * RT_MIB, rt_seed(block, 1), one));
    CHECK(longer != block);
    other = take(pool, 8 * RT_MIB, two);
    CHECK(other != block);
    CHECK_PTR_EQ(take(pool, 8 * RT_MIB, one), block);
    RT_OK(mb_free(dev, longer));
    RT_OK(mb_free(dev, other));
    other = take(pool, 16 * RT_MIB, two);
    CHECK(other != longer);
    CHECK_PTR_EQ(take(pool, 16 * RT_MIB, one), longer);
    RT_OK(mb_free(dev, other));
    RT_OK(mb_free(dev, longer));
    RT_OK(mb_free(dev, block));
    drop(dev, pool);
    rt_close(dev);
}

/* A block may outlive the stream it was allocated on. */
TEST(a_block_is_freed_after_its_stream)
{
    static const char *const kinds[] = {"", ",cache:no", ",check:redzone|poison"};

    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        char config[96];
        mb_device dev;
        mb_pool pool;
        mb_stream gone, two;
        void *block[3], *longer = NULL, *other;

        snprintf(config, sizeof(config), "backend:sim,device_memory:256m%s", kinds[k]);
        dev = rt_open(config);
        pool = keep_pool(dev);
        gone = rt_stream(dev);
        for (unsigned i = 0; i < 3; i++) {
            block[i] = take(pool, 8 * RT_MIB, gone);
            rt_fill(dev, block[i], 8 * RT_MIB, i, gone);
        }
        RT_OK(mb_stream_destroy(dev, gone));
        RT_OK(mb_free(dev, block[0]));
        CHECK_EQ(mb_free(dev, block[0]), MB_ERR_DOUBLE_FREE);
        RT_OK(mb_device_sync(dev));
        two = rt_stream(dev); /* may get the record of the one that is gone */
        RT_OK(mb_free(dev, block[1]));
        RT_OK(mb_realloc(dev, block[2], 20 * RT_MIB, &longer));
        other = take(pool, 1 * RT_MIB, two);
        rt_fill(dev, other, 1 * RT_MIB, 9, two);
        rt_fill(dev, longer, 20 * RT_MIB, 10, NULL);
        rt_verify(dev, other, 1 * RT_MIB, 9, two);
        rt_clean(dev);
        RT_OK(mb_free(dev, longer));
        RT_OK(mb_free(dev, other));
        drop(dev, pool);
        rt_close(dev);
    }
}
