/* SPDX-License-Identifier: MIT */
/*
 * Who may reuse what: the same stream at once, another after an event, a finished one, none before.
 * An address handed out again is the sign of reuse; the oracle and the patterns are the proof that
 * it was allowed.
 */
#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

static const uint64_t BLOCK = 64 * RT_MIB;

/* Long enough that nothing enqueued here has run when the host goes on. */
static void keep_busy(mb_device dev, void *ptr, mb_stream stream)
{
    for (unsigned i = 0; i < 64; i++)
        rt_fill(dev, ptr, BLOCK, i, stream);
}

static void order(mb_device dev, mb_stream waiter, mb_stream other)
{
    mb_event event;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_event_record(dev, event, other));
    RT_OK(mb_stream_wait_event(dev, waiter, event));
    RT_OK(mb_event_destroy(dev, event));
}

TEST(same_stream_reuses_at_once)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream stream = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, stream), *second;

    keep_busy(dev, first, stream);
    RT_OK(mb_free_async(dev, first, stream));
    second = rt_malloc(dev, BLOCK, stream);
    CHECK_PTR_EQ(second, first);
    RT_OK(mb_free_async(dev, second, stream));
    rt_close(dev);
}

TEST(another_stream_takes_other_memory_while_there_is_some)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,growth:independent");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    second = rt_malloc(dev, BLOCK, b);
    CHECK(second != first);
    rt_fill(dev, second, BLOCK, 1, b);
    rt_verify(dev, second, BLOCK, 1, b);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

TEST(an_event_orders_reuse_across_streams)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    order(dev, b, a);
    second = rt_malloc(dev, BLOCK, b);
    CHECK_PTR_EQ(second, first);
    rt_fill(dev, second, BLOCK, 1, b);
    rt_verify(dev, second, BLOCK, 1, b);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

/* b waits for a, c for b: c comes after a, without an event between the two. */
TEST(dependencies_are_transitive)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev), c = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    order(dev, b, a);
    order(dev, c, b);
    second = rt_malloc(dev, BLOCK, c);
    CHECK_PTR_EQ(second, first);
    rt_fill(dev, second, BLOCK, 1, c);
    rt_verify(dev, second, BLOCK, 1, c);
    RT_OK(mb_free_async(dev, second, c));
    rt_close(dev);
}

/* An event from before the free says nothing about it. */
TEST(an_earlier_event_does_not_order_reuse)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no,growth:independent");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    order(dev, b, a);
    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    second = rt_malloc(dev, BLOCK, b);
    CHECK(second != first);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

TEST(follow_events_can_be_switched_off)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;
    mb_pool pool;

    RT_OK(mb_pool_default(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_REUSE_FOLLOW_EVENTS, 0));
    RT_OK(mb_pool_set(pool, MB_POOL_REUSE_OPPORTUNISTIC, 0));
    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    order(dev, b, a);
    second = rt_malloc(dev, BLOCK, b);
    CHECK(second != first);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

TEST(finished_memory_is_anybodys)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    RT_OK(mb_stream_sync(dev, a));
    second = rt_malloc(dev, BLOCK, b);
    CHECK_PTR_EQ(second, first);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

/* The pool has the bytes, in the order of another stream: that is waited for on the device, and the
 * pool stays as it is. A request beyond them makes nobody wait. */
TEST(a_wait_saves_growth)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;
    struct mb_stats before, after;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    before = rt_stats(dev);
    second = rt_malloc(dev, BLOCK, b);
    CHECK_PTR_EQ(second, first);
    CHECK_EQ(dev->counters.waits, 1);
    rt_fill(dev, second, BLOCK, 1, b);
    rt_verify(dev, second, BLOCK, 1, b);
    after = rt_stats(dev);
    CHECK_EQ(after.grows, before.grows);
    CHECK_EQ(after.reserved_bytes, before.reserved_bytes);
    keep_busy(dev, second, b);
    RT_OK(mb_free_async(dev, second, b));
    second = rt_malloc(dev, 2 * BLOCK, a);
    CHECK_EQ(dev->counters.waits, 1);
    RT_OK(mb_free_async(dev, second, a));
    rt_close(dev);
}

/* Stream a waits for a value that stream b will write, and frees; b allocates, then writes. What is
 * known on the host is the same as for any work that is late, so b is made to wait for a unless the
 * program says that it must not be. */
static enum mb_err hand_shake(const char *growth, bool without_waits)
{
    char config[80];
    mb_device dev;
    mb_stream a, b;
    struct mb__stream *record[2];
    struct mb_hw_dev *sim;
    void *first, *second;
    mb_pool pool;
    enum mb_err err;

    snprintf(config, sizeof(config), "backend:sim,device_memory:1g,growth:%s", growth);
    dev = rt_open(config);
    a = rt_stream(dev);
    b = rt_stream(dev);
    RT_OK(mb_pool_default(dev, &pool));
    if (without_waits)
        RT_OK(mb_pool_set(pool, MB_POOL_REUSE_INTERNAL_DEPS, 0));
    first = rt_malloc(dev, BLOCK, a);
    mb__lock(&dev->lock);
    CHECK_OK(mb__stream_get(dev, a, &record[0]));
    CHECK_OK(mb__stream_get(dev, b, &record[1]));
    mb__unlock(&dev->lock);
#ifdef MB_FAULT_INJECTION
    sim = mb__hw_fault_inner(dev->hw);
#else
    sim = dev->hw;
#endif
    CHECK_OK(mb__sim_sem_wait(sim, record[0]->hw, 1, 1));
    RT_OK(mb_free_async(dev, first, a));
    second = rt_malloc(dev, BLOCK, b);
    CHECK_OK(mb__sim_sem_set(sim, record[1]->hw, 1, 1));
    RT_OK(mb_free_async(dev, second, b));
    err = mb_stream_sync(dev, b);
    if (err)
        mb__sim_sem_host(sim, 1, 1);
    rt_close(dev);
    return err;
}

TEST(streams_that_hand_each_other_values_need_growth_independent)
{
    CHECK_EQ(hand_shake("tight", false), MB_ERR_DEADLOCK);
    CHECK_EQ(hand_shake("patient", false), MB_ERR_DEADLOCK);
    CHECK_EQ(hand_shake("tight", true), MB_OK);
    CHECK_EQ(hand_shake("independent", false), MB_OK);
    CHECK_EQ(hand_shake("fast", false), MB_OK);
}

/* Without internal dependencies a stream does not wait for another, but the host does before giving
 * up. */
TEST(no_request_fails_while_memory_is_pending)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    uint64_t most = 240 * RT_MIB;
    void *first = rt_malloc(dev, most, a), *second;
    mb_pool pool;

    RT_OK(mb_pool_default(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_REUSE_INTERNAL_DEPS, 0));
    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    second = rt_malloc(dev, most, b);
    rt_fill(dev, second, most, 1, b);
    rt_verify(dev, second, most, 1, b);
    RT_OK(mb_free_async(dev, second, b));
    rt_close(dev);
}

/* What a waits for does not hold up b. */
TEST(streams_do_not_wait_for_each_other)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *slow = rt_malloc(dev, BLOCK, a);

    for (unsigned i = 0; i < 50; i++) {
        void *ptr;

        rt_fill(dev, slow, BLOCK, i, a);
        ptr = rt_malloc(dev, 4 * RT_MIB, b);
        rt_fill(dev, ptr, 4 * RT_MIB, i, b);
        rt_verify(dev, ptr, 4 * RT_MIB, i, b);
        RT_OK(mb_free_async(dev, ptr, b));
    }
    RT_OK(mb_free_async(dev, slow, a));
    rt_close(dev);
}

TEST(recorded_streams_delay_reuse)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no,growth:independent");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, BLOCK, a), *second;

    order(dev, b, a);
    keep_busy(dev, first, b);
    RT_OK(mb_record_stream(dev, first, b));
    RT_OK(mb_record_stream(dev, first, b));
    RT_OK(mb_free_async(dev, first, a));
    second = rt_malloc(dev, BLOCK, a);
    CHECK(second != first);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free_async(dev, second, a));
    second = rt_malloc(dev, 2 * BLOCK, a);
    RT_OK(mb_free_async(dev, second, a));
    rt_close(dev);
}

TEST(streams_come_and_go_in_flat_memory)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");

    for (unsigned i = 0; i < 2000; i++) {
        mb_stream stream = rt_stream(dev);
        void *ptr = rt_malloc(dev, 8 * RT_MIB, stream);

        rt_fill(dev, ptr, 4096, i, stream);
        rt_verify(dev, ptr, 4096, i, stream);
        RT_OK(mb_free_async(dev, ptr, stream));
        RT_OK(mb_stream_destroy(dev, stream));
    }
    CHECK_LE(rt_stats(dev).reserved_bytes, 256 * RT_MIB);
    rt_close(dev);
}

/* The owner may destroy it behind the library's back: what waits for its work goes by the fence
 * that sealing recorded. */
TEST(a_sealed_stream_is_not_asked_again)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *first = rt_malloc(dev, 3 * BLOCK, a), *small = rt_malloc(dev, 512, a), *second;

    keep_busy(dev, first, a);
    RT_OK(mb_free_async(dev, first, a));
    RT_OK(mb_free_async(dev, small, a));
    RT_OK(mb_stream_seal(dev, a));
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_fence_record, 1, MB_ERR_DRIVER, true);
    second = rt_malloc(dev, 3 * BLOCK, b);
    CHECK_EQ(mb__hw_fault_uses(dev->hw, MB_HW_FAULT_fence_record), 0);
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_fence_record, UINT64_MAX, MB_OK, false);
    rt_fill(dev, second, 3 * BLOCK, 1, b);
    rt_verify(dev, second, 3 * BLOCK, 1, b);
    RT_OK(mb_free_async(dev, second, b));
    /* The stream itself is as it was. */
    first = rt_malloc(dev, BLOCK, a);
    rt_fill(dev, first, BLOCK, 2, a);
    rt_verify(dev, first, BLOCK, 2, a);
    RT_OK(mb_free_async(dev, first, a));
    RT_OK(mb_stream_seal(dev, a));
    RT_OK(mb_stream_seal(dev, a));
    RT_OK(mb_check(dev));
    rt_close(dev);
}

TEST(a_seal_without_a_fence_is_noticed)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,cache:no");
    mb_stream a = rt_stream(dev);
    void *ptr = rt_malloc(dev, BLOCK, a);
    struct mb__stream *stream = dev->streams.data[dev->streams.count - 1];

    keep_busy(dev, ptr, a);
    RT_OK(mb_free_async(dev, ptr, a));
    RT_OK(mb_check(dev));
    stream->sealed = stream->ticket;
    CHECK_EQ(mb_check(dev), MB_ERR_CORRUPT);
    stream->ticket++; /* closed, but nothing was recorded */
    CHECK_EQ(mb_check(dev), MB_ERR_CORRUPT);
    stream->sealed = 0;
    RT_OK(mb_stream_seal(dev, a));
    RT_OK(mb_check(dev));
    rt_close(dev);
}

TEST(sealing_what_was_never_seen_does_nothing)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");

    RT_OK(mb_stream_seal(dev, NULL));
    RT_OK(mb_stream_seal(dev, (mb_stream)(uintptr_t)2));
    RT_OK(mb_stream_seal(dev, (mb_stream)(uintptr_t)0x1234));
    CHECK_EQ(mb_stream_seal(NULL, NULL), MB_ERR_INVALID);
    rt_close(dev);
}

TEST(unknown_streams_are_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_stream stream = rt_stream(dev);
    void *ptr = NULL;

    RT_OK(mb_stream_destroy(dev, stream));
    CHECK(mb_malloc_async(dev, 512, (mb_stream)(uintptr_t)0x1234, &ptr) != MB_OK);
    CHECK_PTR_EQ(ptr, NULL);
    CHECK_EQ(mb_stream_destroy(dev, stream), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_stream_destroy(dev, NULL), MB_ERR_NOT_FOUND);
    rt_close(dev);
}

static void *from_pool(mb_pool pool, mb_stream stream)
{
    void *ptr = NULL;

    RT_OK(mb_pool_malloc_async(pool, BLOCK, stream, &ptr));
    return ptr;
}

/*
 * The library makes c wait for a, to use what a freed in a small pool. The point it waits for was
 * recorded when d wanted a's memory, before a waited for b: so c does not come after b, and may not
 * use what b freed in the large pool, until it has waited for b itself.
 */
TEST(a_wait_inherits_nothing_that_the_other_waited_for_after_its_point)
{
    mb_device dev = rt_open("backend:sim,device_memory:2g,cache:no,growth:independent");
    mb_stream a = rt_stream(dev), b = rt_stream(dev), c = rt_stream(dev), d = rt_stream(dev);
    void *first, *second, *of_b, *of_c, *of_d, *early, *late;
    mb_pool small, large;

    RT_OK(mb_pool_create(dev, &small));
    RT_OK(mb_pool_create(dev, &large));
    RT_OK(mb_pool_set(small, MB_POOL_LIMIT, 2 * BLOCK));
    first = from_pool(small, a);
    second = from_pool(small, a);
    of_b = from_pool(large, b);
    keep_busy(dev, first, a);
    keep_busy(dev, of_b, b);
    RT_OK(mb_free_async(dev, first, a));
    RT_OK(mb_free_async(dev, second, a));
    RT_OK(mb_free_async(dev, of_b, b));
    of_d = from_pool(small, d);
    order(dev, a, b);
    of_c = from_pool(small, c);
    CHECK(of_d == first || of_d == second); /* so d has waited for a, and c, too */
    CHECK_PTR_EQ(of_c, of_d == first ? second : first);
    early = from_pool(large, c);
    CHECK(early != of_b);
    order(dev, c, b);
    late = from_pool(large, c);
    CHECK_PTR_EQ(late, of_b);
    for (unsigned i = 0; i < 3; i++) {
        void *ptr = i == 0 ? of_c : i == 1 ? early : late;

        rt_fill(dev, ptr, BLOCK, 1, c);
        rt_verify(dev, ptr, BLOCK, 1, c);
        RT_OK(mb_free_async(dev, ptr, c));
    }
    RT_OK(mb_free_async(dev, of_d, d));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_destroy(small));
    RT_OK(mb_pool_destroy(large));
    rt_close(dev);
}

/* The counterpart: a waited for b before the point, so c comes after b as well, without a wait of
 * its own. */
TEST(a_wait_inherits_what_the_other_waited_for_before_its_point)
{
    mb_device dev = rt_open("backend:sim,device_memory:2g,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev), c = rt_stream(dev);
    void *of_a, *of_b, *of_c, *late;
    mb_pool small, large;

    RT_OK(mb_pool_create(dev, &small));
    RT_OK(mb_pool_create(dev, &large));
    RT_OK(mb_pool_set(small, MB_POOL_LIMIT, BLOCK));
    of_a = from_pool(small, a);
    of_b = from_pool(large, b);
    keep_busy(dev, of_b, b);
    RT_OK(mb_free_async(dev, of_b, b));
    order(dev, a, b);
    keep_busy(dev, of_a, a);
    RT_OK(mb_free_async(dev, of_a, a));
    of_c = from_pool(small, c); /* waits for a */
    CHECK_PTR_EQ(of_c, of_a);
    late = from_pool(large, c);
    CHECK_PTR_EQ(late, of_b);
    rt_fill(dev, late, BLOCK, 1, c);
    rt_verify(dev, late, BLOCK, 1, c);
    RT_OK(mb_free_async(dev, of_c, c));
    RT_OK(mb_free_async(dev, late, c));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_destroy(small));
    RT_OK(mb_pool_destroy(large));
    rt_close(dev);
}

/* A frame of which two streams freed a part each is whole only when both have passed. */
TEST(a_pool_is_destroyed_with_work_of_several_streams_under_way)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *of_a = NULL, *of_b = NULL, *busy = rt_malloc(dev, BLOCK, a), *more;
    mb_pool pool;

    for (unsigned round = 0; round < 3; round++) {
        RT_OK(mb_pool_create(dev, &pool));
        RT_OK(mb_pool_malloc_async(pool, 3 * RT_MIB, a, &of_a));
        RT_OK(mb_pool_malloc_async(pool, 3 * RT_MIB, b, &of_b));
        keep_busy(dev, busy, a);
        rt_fill(dev, of_a, 3 * RT_MIB, 1, a);
        rt_verify(dev, of_a, 3 * RT_MIB, 1, a);
        order(dev, b, a);
        rt_fill(dev, of_b, 3 * RT_MIB, 2, b);
        rt_verify(dev, of_b, 3 * RT_MIB, 2, b);
        RT_OK(mb_free_async(dev, of_a, a));
        RT_OK(mb_free_async(dev, of_b, b));
        RT_OK(mb_pool_destroy(pool));
        more = rt_malloc(dev, 40 * RT_MIB, a);
        rt_fill(dev, more, 40 * RT_MIB, 3, a);
        rt_verify(dev, more, 40 * RT_MIB, 3, a);
        RT_OK(mb_free_async(dev, more, a));
    }
    RT_OK(mb_free_async(dev, busy, a));
    rt_close(dev);
}
