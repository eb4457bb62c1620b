/* SPDX-License-Identifier: MIT */
/*
 * In which lane free bytes lie: what one stream may use anyway makes one hole, whatever of it the
 * device has passed already and whatever of it is new; other streams' bytes stay their own.
 */
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

#define CONFIG "backend:sim,device_memory:1g,cache:no,oracle:no"

static const struct mb__node *node_at(mb_device dev, const void *ptr)
{
    return mb__heap_find(&dev->default_pool->heap, (uint64_t)(uintptr_t)ptr);
}

/* Room for `bytes` is not there, so the pool looks at what other streams left, and grows. */
static void grow_by(mb_device dev, uint64_t bytes, mb_stream stream)
{
    uint64_t before = dev->counters.grows;
    void *ptr = rt_malloc(dev, bytes, stream);

    CHECK(dev->counters.grows > before);
    RT_OK(mb_free_async(dev, ptr, stream));
}

TEST(what_the_device_has_passed_stays_beside_what_it_has_not)
{
    mb_device dev = rt_open(CONFIG);
    mb_stream stream = rt_stream(dev);
    void *low = rt_malloc(dev, 4 * RT_MIB, stream), *high = rt_malloc(dev, 4 * RT_MIB, stream);
    void *wall = rt_malloc(dev, 2 * RT_MIB, stream);

    CHECK_EQ((char *)high - (char *)low, 4 * (ptrdiff_t)RT_MIB);
    RT_OK(mb_free_async(dev, low, stream));
    RT_OK(mb_stream_sync(dev, stream));
    grow_by(dev, 64 * RT_MIB, stream);
    RT_OK(mb_free_async(dev, high, stream));
    CHECK_EQ(node_at(dev, low)->addr, (uint64_t)(uintptr_t)low);
    CHECK_EQ(node_at(dev, low)->bytes, 8 * RT_MIB);
    RT_OK(mb_free_async(dev, wall, stream));
    RT_OK(mb_check(dev));
    rt_close(dev);
}

TEST(new_frames_join_the_only_stream_that_has_free_bytes)
{
    mb_device dev = rt_open(CONFIG);
    mb_stream stream = rt_stream(dev);
    void *ptr = rt_malloc(dev, RT_MIB, stream);

    RT_OK(mb_free_async(dev, ptr, stream));
    grow_by(dev, 41 * RT_MIB, stream);
    CHECK_EQ(dev->default_pool->heap.total_bytes, 42 * RT_MIB);
    CHECK_EQ(node_at(dev, ptr)->bytes, 42 * RT_MIB);
    CHECK_EQ(dev->counters.stitches, 0);
    RT_OK(mb_check(dev));
    rt_close(dev);
}

TEST(new_frames_are_everybodys_when_another_stream_has_free_bytes)
{
    mb_device dev = rt_open(CONFIG ",growth:independent");
    mb_stream one = rt_stream(dev), other = rt_stream(dev);
    void *theirs = rt_malloc(dev, 32 * RT_MIB, other), *ours;

    for (unsigned i = 0; i < 64; i++) /* long enough to be at work below */
        rt_fill(dev, theirs, 32 * RT_MIB, i, other);
    RT_OK(mb_free_async(dev, theirs, other));
    ours = rt_malloc(dev, 3 * RT_MIB, one);
    CHECK_EQ(dev->default_pool->heap.total_bytes, 36 * RT_MIB);
    CHECK_PTR_EQ(node_at(dev, (char *)ours + 3 * RT_MIB)->lane, &dev->default_pool->ready);
    RT_OK(mb_free_async(dev, ours, one));
    RT_OK(mb_check(dev));
    rt_close(dev);
}
