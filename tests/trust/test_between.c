/* SPDX-License-Identifier: MIT */
/*
 * What another thread does between two steps of a call. No chance is taken: the step in between is
 * made inside the backend's function that separates the two, or while the test holds the lock.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "runtime/vmm_records.h"
#include "support/runtime_rig.h"

enum { BLOCK = 4 << 20 };

/* One call of the backend with a step behind it (fence_record) or before it (fence_wait_host). */
static struct {
    const struct mb_hw_ops *real;
    struct mb_hw_ops ops;
    mb_device dev;
    void (*step)(void); /* NULL: made already */
    mb_stream stream, other;
    void *block;
    mb_pool pool, next;
    enum mb_err err;
    unsigned known;
} seam;

static void take_step(void)
{
    void (*step)(void) = seam.step;

    seam.step = NULL;
    if (step)
        step();
}

static enum mb_err record_then_step(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                    struct mb_hw_fence *out)
{
    enum mb_err err = seam.real->fence_record(hw, stream, out);

    take_step();
    return err;
}

/* Some waits keep the device's lock: nobody else can take a step there. */
static enum mb_err step_then_wait(struct mb_hw_dev *hw, struct mb_hw_fence fence, uint64_t ns)
{
    if (pthread_mutex_trylock(&seam.dev->lock.mutex) == 0) {
        pthread_mutex_unlock(&seam.dev->lock.mutex);
        take_step();
    }
    return seam.real->fence_wait_host(hw, fence, ns);
}

enum where { BEHIND_FENCE, BEFORE_WAIT };

static void open_seam(mb_device dev, enum where where, void (*step)(void))
{
    seam.dev = dev;
    seam.real = dev->hw->ops;
    seam.ops = *dev->hw->ops;
    if (where == BEHIND_FENCE)
        seam.ops.fence_record = record_then_step;
    else
        seam.ops.fence_wait_host = step_then_wait;
    seam.step = step;
    dev->hw->ops = &seam.ops;
}

static void close_seam(void)
{
    CHECK(!seam.step);
    seam.dev->hw->ops = seam.real;
}

static struct mb__block *block_at(const void *ptr)
{
    return mb__table_get(&seam.dev->table, (uint64_t)(uintptr_t)ptr);
}

static struct mb__stream *record_of(mb_stream native)
{
    struct mb__stream *stream = NULL;

    mb__lock(&seam.dev->lock);
    RT_OK(mb__stream_get(seam.dev, native, &stream));
    mb__unlock(&seam.dev->lock);
    return stream;
}

/* The warm path's free, which takes no lock that the call in progress holds. */
static bool warm_free(void *ptr)
{
    return mb__bins_free(seam.dev, (uint64_t)(uintptr_t)ptr, block_at(ptr), false, seam.stream);
}

/* ------------------------------------------------------------ a free beside a fence */

/* Work on the stream that the fence does not cover, and then the free of what it uses. The caller
 * has the device's lock. */
static void use_and_free(void)
{
    struct mb__stream *stream = NULL;

    RT_OK(mb__stream_get(seam.dev, seam.stream, &stream));
    RT_OK(seam.real->fill(seam.dev->hw, stream->hw, mb__va((uint64_t)(uintptr_t)seam.block), BLOCK,
                          1));
    CHECK(warm_free(seam.block));
}

/* Neither the fence's ticket nor a clock raised by it may cover the free. */
TEST(a_free_behind_the_fence_of_an_event_is_not_before_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct mb__block *block;
    mb_event event;

    seam.stream = rt_stream(dev);
    seam.other = rt_stream(dev);
    seam.block = rt_malloc(dev, BLOCK, seam.stream);
    RT_OK(mb_event_create(dev, &event));
    open_seam(dev, BEHIND_FENCE, use_and_free);
    block = block_at(seam.block);
    RT_OK(mb_event_record(dev, event, seam.stream));
    close_seam();
    CHECK(block->ticket > event->ticket);
    RT_OK(mb_stream_wait_event(dev, seam.other, event));
    CHECK(!mb__order_allows(record_of(seam.other), record_of(seam.stream), block->ticket));
    RT_OK(mb_event_destroy(dev, event));
    rt_close(dev);
}

TEST(a_free_behind_the_fence_of_a_sync_is_not_before_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct mb__block *block;

    seam.stream = rt_stream(dev);
    seam.block = rt_malloc(dev, BLOCK, seam.stream);
    open_seam(dev, BEHIND_FENCE, use_and_free);
    block = block_at(seam.block);
    RT_OK(mb_stream_sync(dev, seam.stream));
    close_seam();
    CHECK(block->ticket > record_of(seam.stream)->done);
    rt_close(dev);
}

/* The fence that is recorded because another stream wants memory. */
TEST(a_free_behind_the_fence_of_a_reuse_is_not_before_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct mb__block *block;
    struct mb__stream *stream;
    void *first;

    seam.stream = rt_stream(dev);
    seam.other = rt_stream(dev);
    first = rt_malloc(dev, 200 * RT_MIB, seam.stream);
    seam.block = rt_malloc(dev, BLOCK, seam.stream);
    rt_fill(dev, first, 200 * RT_MIB, 1, seam.stream);
    RT_OK(mb_free_async(dev, first, seam.stream));
    RT_OK(mb_check(dev)); /* brings it from its bin to the heap */
    open_seam(dev, BEHIND_FENCE, use_and_free);
    block = block_at(seam.block);
    first = rt_malloc(dev, 200 * RT_MIB, seam.other);
    close_seam();
    stream = record_of(seam.stream);
    CHECK(stream->done < block->ticket);
    for (unsigned i = 0; i < stream->point_count; i++)
        CHECK(stream->points[i].ticket < block->ticket);
    CHECK(mb__stream_clock(record_of(seam.other), stream) < block->ticket);
    RT_OK(mb_free_async(dev, first, seam.other));
    rt_close(dev);
}

/* ------------------------------------------------------------ the end of a stream */

static void free_too_late(void)
{
    CHECK(!warm_free(seam.block));
}

/* A bin of a stream that is gone would serve the next stream with its record. */
TEST(the_warm_path_does_not_free_on_a_stream_that_is_being_destroyed)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");

    seam.stream = rt_stream(dev);
    seam.block = rt_malloc(dev, BLOCK, seam.stream);
    open_seam(dev, BEHIND_FENCE, free_too_late);
    RT_OK(mb_stream_destroy(dev, seam.stream));
    close_seam();
    RT_OK(mb_free(dev, seam.block));
    rt_close(dev);
}

static void destroy_stream(void)
{
    RT_OK(mb_stream_destroy(seam.dev, seam.stream));
}

/* All memory was freed on another stream, for which the host waits. */
TEST(a_request_whose_stream_is_destroyed_while_it_waits_is_told)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    struct mb_hw_dev *sim = mb__hw_fault_inner(dev->hw);
    struct mb_hw_stream *hw = NULL;
    void *block, *ptr = NULL;

    seam.stream = rt_stream(dev);
    seam.other = rt_stream(dev);
    block = rt_malloc(dev, 48 * RT_MIB, seam.other);
    RT_OK(mb_pool_set(dev->default_pool, MB_POOL_REUSE_INTERNAL_DEPS, 0));
    RT_OK(sim->ops->stream_open(sim, seam.other, &hw));
    rt_fill(dev, block, 48 * RT_MIB, 1, seam.other);
    RT_OK(mb__sim_sem_wait(sim, hw, 1, 1));
    RT_OK(mb_free_async(dev, block, seam.other));
    mb__sim_sem_host(sim, 1, 1);
    open_seam(dev, BEFORE_WAIT, destroy_stream);
    CHECK_EQ(mb_malloc_async(dev, 40 * RT_MIB, seam.stream, &ptr), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "destroyed the stream"));
    close_seam();
    CHECK_PTR_EQ(ptr, NULL);
    ptr = rt_malloc(dev, 40 * RT_MIB, seam.other);
    RT_OK(mb_free_async(dev, ptr, seam.other));
    rt_close(dev);
}

/* ------------------------------------------------------------ the end of a pool */

static void destroy_pool_and_open_another(void)
{
    RT_OK(mb_pool_destroy(seam.pool));
    RT_OK(mb_pool_create(seam.dev, &seam.next));
}

/* The other thread's destruction is the one that counts, and its new pool is not destroyed. */
TEST(a_pool_that_another_thread_destroyed_and_opened_anew_stays)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,cache:no");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *of_a = NULL, *of_b = NULL;
    uint64_t limit = 0;

    RT_OK(mb_pool_create(dev, &seam.pool));
    RT_OK(mb_pool_malloc_async(seam.pool, 3 * RT_MIB, a, &of_a));
    RT_OK(mb_pool_malloc_async(seam.pool, 3 * RT_MIB, b, &of_b));
    for (unsigned i = 0; i < 100; i++) {
        rt_fill(dev, of_a, 3 * RT_MIB, i, a);
        rt_fill(dev, of_b, 3 * RT_MIB, i, b);
    }
    RT_OK(mb_free_async(dev, of_a, a));
    RT_OK(mb_free_async(dev, of_b, b));
    open_seam(dev, BEFORE_WAIT, destroy_pool_and_open_another);
    CHECK_EQ(mb_pool_destroy(seam.pool), MB_ERR_INVALID);
    close_seam();
    CHECK_PTR_EQ(seam.next, seam.pool); /* else this test tests nothing */
    RT_OK(mb_pool_get(seam.next, MB_POOL_LIMIT, &limit));
    RT_OK(mb_pool_destroy(seam.next));
    rt_close(dev);
}

/* ------------------------------------------------------------ memory objects */

/* Any handle that is known now could be an old one of a caller's, at the same address. */
static void count_known(void)
{
    uint64_t key, value;
    size_t at = 0;

    mb__lock(&seam.dev->lock);
    seam.known = 0;
    while (mb__map_next(&seam.dev->vmm->by_handle, &at, &key, &value))
        seam.known++;
    mb__unlock(&seam.dev->lock);
}

TEST(a_memory_object_is_known_when_its_creation_is_over)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    mb_stream a = rt_stream(dev);
    void *block = rt_malloc(dev, 80 * RT_MIB, a);
    mb_mem mem;

    for (unsigned i = 0; i < 50; i++)
        rt_fill(dev, block, 80 * RT_MIB, i, a);
    RT_OK(mb_free_async(dev, block, a));
    open_seam(dev, BEFORE_WAIT, count_known);
    seam.known = 99;
    RT_OK(mb_mem_create(dev, 60 * RT_MIB, &mem));
    close_seam();
    CHECK_EQ(seam.known, 0);
    RT_OK(mb_mem_release(dev, mem));
    CHECK_EQ(mb_mem_release(dev, mem), MB_ERR_NOT_FOUND);
    rt_close(dev);
}

static void begin_capture(void)
{
    RT_OK(mb__sim_capture_begin(mb__hw_fault_inner(seam.dev->hw), seam.stream));
}

/* Frames are waited for without the lock; the maps must not go into somebody's graph. */
TEST(a_wake_notices_a_capture_that_began_meanwhile)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 60 * RT_MIB};
    mb_stream a = rt_stream(dev);
    struct mb_sim_graph *graph = NULL;
    void *block;

    seam.stream = rt_stream(dev);
    RT_OK(mb_mem_reserve(dev, op.bytes, 0, &op.va));
    RT_OK(mb_mem_create(dev, op.bytes, &op.mem));
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_mem_sleep(dev, op.va, op.bytes, seam.stream));
    RT_OK(mb_device_sync(dev));
    block = rt_malloc(dev, 80 * RT_MIB, a);
    for (unsigned i = 0; i < 50; i++)
        rt_fill(dev, block, 80 * RT_MIB, i, a);
    RT_OK(mb_free_async(dev, block, a));
    open_seam(dev, BEFORE_WAIT, begin_capture);
    CHECK_EQ(mb_mem_wake(dev, op.va, op.bytes, seam.stream), MB_ERR_NOT_SUPPORTED);
    close_seam();
    RT_OK(mb__sim_capture_end(mb__hw_fault_inner(dev->hw), seam.stream, &graph));
    mb__sim_graph_free(graph);
    RT_OK(mb_check(dev));
    RT_OK(mb_mem_wake(dev, op.va, op.bytes, seam.stream));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_mem_unreserve(dev, op.va, op.bytes));
    RT_OK(mb_mem_release(dev, op.mem));
    rt_close(dev);
}

/* ------------------------------------------------------------ blocks */

/* A block that changes its size cannot go into a bin of the old one. */
TEST(the_warm_path_does_not_free_a_block_that_is_being_resized)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *pending, *moved = NULL;

    seam.stream = rt_stream(dev);
    seam.other = rt_stream(dev);
    seam.block = rt_malloc(dev, BLOCK, seam.stream);
    pending = rt_malloc(dev, BLOCK, seam.other);
    rt_fill(dev, pending, BLOCK, 1, seam.other);
    RT_OK(mb_free_async(dev, pending, seam.other));
    RT_OK(mb_check(
        dev)); /* brings it from its bin to the heap: the resize looks whether it is over */
    open_seam(dev, BEHIND_FENCE, free_too_late);
    RT_OK(mb_realloc(dev, seam.block, 3 * BLOCK, &moved));
    close_seam();
    RT_OK(mb_check(dev));
    RT_OK(mb_free_async(dev, moved, seam.stream));
    rt_close(dev);
}

struct recorder {
    mb_device dev;
    mb_stream stream;
    void *block;
    pthread_barrier_t start, end;
};

enum { RECORDS = 2000 };

static void *recorder(void *user)
{
    struct recorder *r = user;

    for (unsigned i = 0; i < RECORDS; i++) {
        pthread_barrier_wait(&r->start);
        (void)mb_record_stream(r->dev, r->block, r->stream);
        pthread_barrier_wait(&r->end);
    }
    return NULL;
}

/* Either the free came first, then no stream is named, or it waits for the stream named: none stays
 * counted. */
TEST(a_stream_is_named_by_live_blocks_only)
{
    static struct recorder r;
    uint64_t state = mb_test_seed();
    pthread_t thread;

    r.dev = rt_open("backend:sim,device_memory:128m");
    r.stream = rt_stream(r.dev);
    seam.dev = r.dev;
    CHECK_EQ(pthread_barrier_init(&r.start, NULL, 2), 0);
    CHECK_EQ(pthread_barrier_init(&r.end, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, recorder, &r), 0);
    for (unsigned i = 0; i < RECORDS; i++) {
        r.block = rt_malloc(r.dev, 4096, NULL);
        pthread_barrier_wait(&r.start);
        for (uint64_t spin = mb_test_random_below(&state, 500); spin; spin--)
            __asm__ volatile("" ::: "memory");
        RT_OK(mb_free_async(r.dev, r.block, NULL));
        pthread_barrier_wait(&r.end);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&r.start);
    pthread_barrier_destroy(&r.end);
    RT_OK(mb_check(r.dev));
    CHECK_EQ(record_of(r.stream)->named, 0);
    rt_close(r.dev);
}

/* ------------------------------------------------------------ the end of a device */

static void *closer(void *user)
{
    mb_close(user);
    return NULL;
}

/* Of two threads that close a device at once, one does. */
TEST(a_device_is_closed_once)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    pthread_t thread;

    mb__lock(&dev->lock);
    CHECK_EQ(pthread_create(&thread, NULL, closer, dev), 0);
    while (__atomic_load_n(&dev->magic, __ATOMIC_ACQUIRE))
        sched_yield();
    CHECK(!mb__device_close(dev)); /* past the check of the handle when the other one closed it */
    mb_close(dev);
    mb__unlock(&dev->lock);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(mb_device_sync(dev), MB_ERR_INVALID);
}

enum { PAIRS = 100, PAGES = 4 };

static void open_to_each_other(mb_device dev[2])
{
    for (unsigned i = 0; i < 2; i++) {
        struct mb_access access = {.dev = dev[1 - i], .prot = MB_PROT_READ_WRITE};
        void *block = rt_malloc(dev[i], PAGES * RT_MIB, NULL);

        RT_OK(mb_mem_set_access(dev[i], block, PAGES * RT_MIB, &access, 1));
    }
}

/* Each takes back what the other gave it, and may find the other closed already. */
TEST(devices_that_share_memory_are_closed_at_once)
{
    for (unsigned i = 0; i < PAIRS; i++) {
        mb_device dev[2];
        pthread_t thread;

        RT_OK(mb_open(0, "backend:sim,device_memory:64m", &dev[0]));
        RT_OK(mb_open(1, "backend:sim,device_memory:64m", &dev[1]));
        open_to_each_other(dev);
        CHECK_EQ(pthread_create(&thread, NULL, closer, dev[0]), 0);
        mb_close(dev[1]);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
}
