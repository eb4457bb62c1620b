/* SPDX-License-Identifier: MIT */
/*
 * Capture into graphs and their replay, on the software GPU: a replay uses the addresses of the
 * capture, whatever has become of them. What an ordinary pool would do is shown first: another
 * owner's data is overwritten. Then that it is refused, and that a pool with MB_POOL_KEEP does it
 * right.
 */
#include <string.h>

#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

enum {
    REPLAYS = 20,
};

static void begin(mb_device dev, mb_stream stream)
{
    CHECK_OK(mb__sim_capture_begin(sim_of(dev), stream));
}

static struct mb_sim_graph *end(mb_device dev, mb_stream stream)
{
    struct mb_sim_graph *graph = NULL;

    CHECK_OK(mb__sim_capture_end(sim_of(dev), stream, &graph));
    return graph;
}

static void launch(mb_device dev, const struct mb_sim_graph *graph, mb_stream stream)
{
    struct mb__stream *record = NULL;

    mb__lock(&dev->lock);
    CHECK_OK(mb__stream_get(dev, stream, &record));
    mb__unlock(&dev->lock);
    CHECK_OK(mb__sim_graph_launch(sim_of(dev), graph, record->hw));
}

static mb_pool keep_pool(mb_device dev)
{
    mb_pool pool = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 1));
    return pool;
}

/* A step of a network: temporary, result of it, temporary given back and its memory used again. */
static void *capture_step(mb_device dev, mb_pool pool, mb_stream stream)
{
    void *temporary = NULL, *result = NULL, *second = NULL;

    RT_OK(mb_pool_malloc_async(pool, 20 * RT_MIB, stream, &temporary));
    rt_fill(dev, temporary, 20 * RT_MIB, 1, stream);
    RT_OK(mb_pool_malloc_async(pool, 5 * RT_MIB, stream, &result));
    RT_OK(mb_copy_async(dev, result, temporary, 5 * RT_MIB, stream));
    RT_OK(mb_free_async(dev, temporary, stream));
    RT_OK(mb_pool_malloc_async(pool, 18 * RT_MIB, stream, &second));
    rt_fill(dev, second, 18 * RT_MIB, 2, stream);
    rt_verify(dev, second, 18 * RT_MIB, 2, stream);
    RT_OK(mb_verify_async(dev, result, 5 * RT_MIB, rt_seed(temporary, 1), stream));
    RT_OK(mb_free_async(dev, second, stream));
    return result;
}

/* Other parts of the program take and give all memory they can get, and look after it. */
static void poison(mb_device dev, mb_stream other, const struct mb_sim_graph *graph,
                   mb_stream stream)
{
    void *block[64];
    unsigned count = 0;
    void *ptr = NULL;

    while (count < 64 && !mb_malloc_async(dev, 3 * RT_MIB, other, &ptr))
        block[count++] = ptr;
    for (unsigned i = 0; i < count; i++)
        rt_fill(dev, block[i], 3 * RT_MIB, i, other);
    RT_OK(mb_stream_sync(dev, other));
    launch(dev, graph, stream);
    RT_OK(mb_stream_sync(dev, stream));
    for (unsigned i = 0; i < count; i++) {
        rt_verify(dev, block[i], 3 * RT_MIB, i, other);
        RT_OK(mb_free_async(dev, block[i], other));
    }
    RT_OK(mb_device_sync(dev));
}

TEST(an_ordinary_pool_in_a_capture_overwrites_the_next_owner)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,capture:trust");
    mb_stream stream = rt_stream(dev), other = rt_stream(dev);
    struct mb_sim_graph *graph;
    void *temporary;

    begin(dev, stream);
    temporary = rt_malloc(dev, 20 * RT_MIB, stream);
    rt_fill(dev, temporary, 20 * RT_MIB, 1, stream);
    RT_OK(mb_free_async(dev, temporary, stream));
    graph = end(dev, stream);
    RT_OK(mb_device_sync(dev));
    poison(dev, other, graph, stream);
    CHECK(rt_stats(dev).wrong_words > 0);
    mb__sim_graph_free(graph);
    mb_close(dev);
}

TEST(an_ordinary_pool_is_refused_in_a_capture)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    mb_stream stream = rt_stream(dev), other = rt_stream(dev);
    void *before = rt_malloc(dev, 4 * RT_MIB, stream), *warm = rt_malloc(dev, 100, stream);
    void *ptr = NULL, *va = NULL;
    mb_mem mem = NULL;
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 2 * RT_MIB};
    struct mb_stats stats, after;
    struct mb_sim_graph *graph;

    RT_OK(mb_mem_create(dev, 2 * RT_MIB, &mem));
    RT_OK(mb_mem_reserve(dev, 2 * RT_MIB, 0, &va));
    op.va = va;
    op.mem = mem;
    RT_OK(mb_free_async(dev, warm, stream)); /* waits in a bin of the warm path */
    stats = rt_stats(dev);
    begin(dev, stream);
    CHECK_EQ(mb_malloc_async(dev, 100, stream, &ptr), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "MB_POOL_KEEP"));
    CHECK_EQ(mb_malloc_async(dev, 50 * RT_MIB, stream, &ptr), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb_free_async(dev, before, stream), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb_mem_map_async(dev, &op, 1, stream), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb_stream_sync(dev, stream), MB_ERR_NOT_SUPPORTED);
    CHECK_PTR_EQ(ptr, NULL);
    after = rt_stats(dev);
    CHECK_EQ(after.live_blocks, stats.live_blocks);
    /* Streams that are not captured go on. */
    ptr = rt_malloc(dev, 4 * RT_MIB, other);
    rt_fill(dev, ptr, 4 * RT_MIB, 1, other);
    rt_verify(dev, ptr, 4 * RT_MIB, 1, other);
    RT_OK(mb_free_async(dev, ptr, other));
    graph = end(dev, stream);
    RT_OK(mb_free_async(dev, before, stream));
    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, 2 * RT_MIB));
    mb__sim_graph_free(graph);
    rt_close(dev);
}

/* Blocks freed before the capture are not fenced into it by others that want them. */
TEST(others_do_not_record_into_a_capture)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream stream = rt_stream(dev), other = rt_stream(dev);
    void *before = rt_malloc(dev, 40 * RT_MIB, stream), *ptr = NULL;
    struct mb_sim_graph *graph;

    RT_OK(mb_free_async(dev, before, stream));
    begin(dev, stream);
    CHECK_EQ(mb_malloc_async(dev, 40 * RT_MIB, other, &ptr), MB_ERR_NO_MEMORY);
    graph = end(dev, stream);
    ptr = rt_malloc(dev, 40 * RT_MIB, other);
    rt_fill(dev, ptr, 40 * RT_MIB, 1, other);
    rt_verify(dev, ptr, 40 * RT_MIB, 1, other);
    launch(dev, graph, stream); /* empty */
    RT_OK(mb_free_async(dev, ptr, other));
    mb__sim_graph_free(graph);
    rt_close(dev);
}

TEST(a_pool_that_keeps_serves_replays)
{
    static const char *const kinds[] = {"", ",driver_home:yes", ",capture:trust", ",explore:yes"};

    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        char config[96];
        mb_device dev;
        mb_stream stream, other;
        mb_pool pool;
        struct mb_sim_graph *graph;
        void *result;

        snprintf(config, sizeof(config), "backend:sim,device_memory:192m%s", kinds[k]);
        dev = rt_open(config);
        stream = rt_stream(dev);
        other = rt_stream(dev);
        pool = keep_pool(dev);
        begin(dev, stream);
        result = capture_step(dev, pool, stream);
        graph = end(dev, stream);
        for (unsigned i = 0; i < REPLAYS; i++)
            poison(dev, other, graph, i % 2 ? stream : other);
        rt_clean(dev);
        CHECK_EQ(rt_stats(dev).stitches, 0);
        RT_OK(mb_free_async(dev, result, stream));
        mb__sim_graph_free(graph);
        RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 0));
        RT_OK(mb_device_sync(dev));
        RT_OK(mb_pool_destroy(pool));
        rt_close(dev);
    }
}

/* ------------------------------------------------------------------ fork and join */

static mb_event record(mb_device dev, mb_stream stream)
{
    mb_event event = NULL;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_event_record(dev, event, stream));
    return event;
}

/* Later work of `waiter` comes after all of `other` so far. */
static void order(mb_device dev, mb_stream waiter, mb_stream other)
{
    mb_event event = record(dev, other);

    RT_OK(mb_stream_wait_event(dev, waiter, event));
    RT_OK(mb_event_destroy(dev, event));
}

/* Two streams of one capture: each reuses what it freed itself, and only that. */
static void *capture_fork(mb_device dev, mb_pool pool, mb_stream a, mb_stream b)
{
    void *first = NULL, *early = NULL, *result = NULL, *again = NULL;

    RT_OK(mb_pool_malloc_async(pool, 20 * RT_MIB, a, &first));
    rt_fill(dev, first, 20 * RT_MIB, 1, a);
    order(dev, b, a);
    CHECK_EQ(mb_malloc_async(dev, 100, b, &early), MB_ERR_NOT_SUPPORTED); /* b is captured, too */
    RT_OK(mb_pool_malloc_async(pool, 20 * RT_MIB, b, &result));
    CHECK(result != first);
    RT_OK(mb_copy_async(dev, result, first, 20 * RT_MIB, b));
    RT_OK(mb_free_async(dev, first, b));
    RT_OK(mb_pool_malloc_async(pool, 20 * RT_MIB, a, &early));
    CHECK(early != first); /* nothing orders a after b's copy so far */
    rt_fill(dev, early, 20 * RT_MIB, 2, a);
    order(dev, a, b);
    RT_OK(mb_free_async(dev, early, a));
    RT_OK(mb_pool_malloc_async(pool, 20 * RT_MIB, a, &again));
    CHECK_PTR_EQ(again, early);
    rt_fill(dev, again, 20 * RT_MIB, 3, a);
    RT_OK(mb_verify_async(dev, result, 20 * RT_MIB, rt_seed(first, 1), a));
    rt_verify(dev, again, 20 * RT_MIB, 3, a);
    RT_OK(mb_free_async(dev, again, a));
    return result;
}

TEST(a_capture_forks_and_joins)
{
    static const char *const kinds[] = {"", ",explore:yes"};

    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        char config[96];
        mb_device dev;
        mb_stream a, b, other;
        mb_pool pool;
        struct mb_sim_graph *graph;
        void *result;

        snprintf(config, sizeof(config), "backend:sim,device_memory:256m%s", kinds[k]);
        dev = rt_open(config);
        a = rt_stream(dev);
        b = rt_stream(dev);
        other = rt_stream(dev);
        pool = keep_pool(dev);
        begin(dev, a);
        result = capture_fork(dev, pool, a, b);
        graph = end(dev, a);
        for (unsigned i = 0; i < REPLAYS; i++)
            poison(dev, other, graph, i % 2 ? a : b); /* b is an ordinary stream again */
        rt_clean(dev);
        RT_OK(mb_free_async(dev, result, b));
        mb__sim_graph_free(graph);
        RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 0));
        RT_OK(mb_device_sync(dev));
        RT_OK(mb_pool_destroy(pool));
        rt_close(dev);
    }
}

/* An edge of a graph orders nothing outside of it: what was freed before the capture is not had by
 * the forked stream's own work afterwards. */
TEST(an_edge_of_a_graph_is_no_order_outside)
{
    mb_device dev = rt_open("backend:sim,device_memory:512m,cache:no,growth:independent");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *busy = rt_malloc(dev, 64 * RT_MIB, a), *next;

    for (unsigned i = 0; i < 64; i++)
        rt_fill(dev, busy, 64 * RT_MIB, i, a);
    RT_OK(mb_free_async(dev, busy, a));
    begin(dev, a);
    order(dev, b, a);
    order(dev, a, b);
    mb__sim_graph_free(end(dev, a));
    next = rt_malloc(dev, 64 * RT_MIB, b);
    CHECK(next != busy);
    rt_fill(dev, next, 64 * RT_MIB, 1, b);
    RT_OK(mb_device_sync(dev));
    rt_verify(dev, next, 64 * RT_MIB, 1, b);
    RT_OK(mb_free_async(dev, next, b));
    rt_close(dev);
}

/* What is no fork and no join of one capture is refused by name, and the capture goes on. */
TEST(waits_that_no_graph_can_hold_are_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:192m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev), outside = rt_stream(dev);
    void *block = rt_malloc(dev, 64 * RT_MIB, outside);
    struct mb_sim_graph *graph = NULL;
    mb_event before, early, late, of_b;

    early = record(dev, outside);
    RT_OK(mb_stream_sync(dev, outside)); /* over by now */
    rt_fill(dev, block, 64 * RT_MIB, 1, outside);
    before = record(dev, a);
    begin(dev, a);
    late = record(dev, outside);
    RT_OK(mb_stream_wait_event(dev, a, before)); /* its own order */
    RT_OK(mb_stream_wait_event(dev, a, early));
    CHECK_EQ(mb_stream_wait_event(dev, a, late), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "outside of the capture"));
    RT_OK(mb_stream_wait_event(dev, outside, before)); /* was there before the capture */
    begin(dev, b);
    of_b = record(dev, b);
    CHECK_EQ(mb_stream_wait_event(dev, a, of_b), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "two graphs"));
    mb__sim_graph_free(end(dev, b));
    order(dev, b, a); /* a fork that nobody joins */
    CHECK_EQ(mb__sim_capture_end(sim_of(dev), b, &graph), MB_ERR_INVALID);
    CHECK_EQ(mb__sim_capture_end(sim_of(dev), a, &graph), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "never joined"));
    CHECK(!mb__capturing(dev, a) && !mb__capturing(dev, b));
    begin(dev, a);
    order(dev, b, a);
    order(dev, outside, b); /* a fork of a fork */
    rt_verify(dev, block, 64 * RT_MIB, 1, outside);
    order(dev, b, outside);
    order(dev, a, b);
    graph = end(dev, a);
    launch(dev, graph, b);
    mb__sim_graph_free(graph);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_event_destroy(dev, before));
    RT_OK(mb_event_destroy(dev, early));
    RT_OK(mb_event_destroy(dev, late));
    RT_OK(mb_event_destroy(dev, of_b));
    RT_OK(mb_free_async(dev, block, outside));
    rt_close(dev);
}

/* A device that is closed in the middle of a capture leaves nothing behind. */
TEST(a_device_closes_during_a_forked_capture)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);

    begin(dev, a);
    order(dev, b, a);
    mb_close(dev);
}

/* The host's free in a pool that keeps: in the allocation's stream's order, for nobody else. */
TEST(mb_free_into_a_pool_that_keeps)
{
    mb_device dev = rt_open("backend:sim,device_memory:192m");
    mb_stream one = rt_stream(dev), two = rt_stream(dev);
    mb_pool pool = keep_pool(dev);
    void *block = NULL, *other = NULL, *again = NULL;

    RT_OK(mb_pool_malloc_async(pool, 10 * RT_MIB, one, &block));
    RT_OK(mb_free(dev, block));
    CHECK_EQ(mb_free(dev, block), MB_ERR_DOUBLE_FREE);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_malloc_async(pool, 10 * RT_MIB, two, &other));
    CHECK(other != block);
    RT_OK(mb_pool_malloc_async(pool, 10 * RT_MIB, one, &again));
    CHECK_PTR_EQ(again, block);
    RT_OK(mb_free(dev, again));
    RT_OK(mb_free(dev, other));
    RT_OK(mb_pool_set(pool, MB_POOL_KEEP, 0));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}
