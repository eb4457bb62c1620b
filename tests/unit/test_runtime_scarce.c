/* SPDX-License-Identifier: MIT */
/*
 * Requests at the edge: sizes that no device has, memory that is free but not yet idle, limits. A
 * request fails only if no waiting would have served it, and a failed one leaves everything as it
 * was.
 */
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime_rig.h"

/* Work that is still running when the host goes on. */
static void keep_busy(mb_device dev, void *ptr, mb_stream stream)
{
    for (unsigned i = 0; i < 400; i++)
        rt_fill(dev, ptr, 2 * RT_MIB, i, stream);
}

TEST(realloc_beyond_the_device_changes_nothing)
{
    static const uint64_t sizes[] = {UINT64_MAX,        UINT64_MAX - 1,    UINT64_MAX - 510,
                                     UINT64_MAX - 511,  (uint64_t)1 << 63, (uint64_t)1 << 53,
                                     (uint64_t)1 << 40, (uint64_t)1 << 36, 65 * RT_MIB};
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    void *ptr = rt_malloc(dev, 3 * RT_MIB, NULL), *other;
    uint64_t failed = rt_stats(dev).failed_requests;

    rt_fill(dev, ptr, 3 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(dev));
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *out = &dev;

        CHECK_EQ(mb_realloc(dev, ptr, sizes[i], &out), MB_ERR_NO_MEMORY);
        CHECK_PTR_EQ(out, &dev);
        CHECK_EQ(rt_stats(dev).failed_requests, failed + i + 1);
    }
    other = rt_malloc(dev, 3 * RT_MIB, NULL);
    rt_fill(dev, other, 3 * RT_MIB, 2, NULL);
    rt_verify(dev, ptr, 3 * RT_MIB, 1, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_free_async(dev, other, NULL));
    rt_close(dev);
}

enum { BLOCKS = 32 };

/* A device of 64 MiB full of blocks of 3 MiB on `stream`, every second one freed again, and a block
 * that was composed of those holes. */
static void *compose(mb_device dev, mb_stream stream, void *blocks[BLOCKS], unsigned *count)
{
    void *composed;

    *count = 0;
    while (*count < BLOCKS && !mb_malloc_async(dev, 3 * RT_MIB, stream, &blocks[*count]))
        ++*count;
    for (unsigned i = 0; i < *count; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    composed = rt_malloc(dev, 14 * RT_MIB + 512, stream);
    CHECK_EQ(rt_stats(dev).stitched_blocks, 1);
    return composed;
}

/* A second stream uses the blocks, so no single stream is behind their window. `elsewhere`: the
 * composed one is freed on that stream too. */
static void take_from_another_pool(bool elsewhere)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev), c = rt_stream(dev);
    void *work = NULL, *blocks[BLOCKS], *composed, *big = NULL;
    unsigned count;
    mb_pool pool;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_malloc(dev, 2 * RT_MIB, &work));
    composed = compose(dev, a, blocks, &count);
    keep_busy(dev, work, b);
    RT_OK(mb_record_stream(dev, composed, b));
    RT_OK(mb_free_async(dev, composed, elsewhere ? b : a));
    for (unsigned i = 1; i < count; i += 2) {
        RT_OK(mb_record_stream(dev, blocks[i], b));
        RT_OK(mb_free_async(dev, blocks[i], a));
    }
    RT_OK(mb_pool_malloc_async(pool, 50 * RT_MIB, c, &big));
    RT_OK(mb_free_async(dev, big, c));
    RT_OK(mb_free(dev, work));
    rt_close(dev);
}

TEST(frames_under_another_pools_windows_serve_at_the_first_try)
{
    take_from_another_pool(false);
    take_from_another_pool(true);
}

/* The stream that mapped the window is gone when the host frees the block. */
TEST(a_window_of_a_destroyed_stream_lets_go_of_its_frames)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream a = rt_stream(dev), c = rt_stream(dev);
    void *blocks[BLOCKS], *composed, *big = NULL;
    unsigned count;
    mb_pool pool;

    RT_OK(mb_pool_create(dev, &pool));
    composed = compose(dev, a, blocks, &count);
    RT_OK(mb_stream_sync(dev, a));
    RT_OK(mb_stream_destroy(dev, a));
    RT_OK(mb_free(dev, composed));
    for (unsigned i = 1; i < count; i += 2)
        RT_OK(mb_free(dev, blocks[i]));
    RT_OK(mb_pool_malloc_async(pool, 60 * RT_MIB, c, &big));
    RT_OK(mb_free_async(dev, big, c));
    rt_close(dev);
}

TEST(under_a_limit_idle_memory_of_another_pool_serves)
{
    mb_device dev = rt_open("backend:sim,device_memory:512m,limit:128m");
    void *ptr = NULL;
    mb_pool pool;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_malloc_async(pool, 80 * RT_MIB, NULL, &ptr));
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_malloc(dev, 80 * RT_MIB, &ptr));
    RT_OK(mb_free(dev, ptr));
    rt_close(dev);
}

static void objects_after_a_free(bool several)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *work = NULL, *block;
    mb_mem mem;

    RT_OK(mb_malloc(dev, 2 * RT_MIB, &work));
    block = rt_malloc(dev, 80 * RT_MIB, a);
    keep_busy(dev, work, several ? b : a);
    if (several)
        RT_OK(mb_record_stream(dev, block, b));
    RT_OK(mb_free_async(dev, block, a));
    RT_OK(mb_mem_create(dev, 60 * RT_MIB, &mem));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_free(dev, work));
    rt_close(dev);
}

TEST(a_memory_object_waits_for_what_streams_still_use)
{
    objects_after_a_free(false);
    objects_after_a_free(true);
}

/* Composed blocks whose windows are dropped by the trim itself. */
TEST(a_trim_after_a_synchronize_gives_everything_back)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *blocks[BLOCKS], *composed;
    unsigned count;
    mb_pool pool;

    RT_OK(mb_pool_default(dev, &pool));
    composed = compose(dev, a, blocks, &count);
    RT_OK(mb_record_stream(dev, composed, b));
    RT_OK(mb_free_async(dev, composed, a));
    for (unsigned i = 1; i < count; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], a));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_trim(pool, 0));
    CHECK_EQ(rt_stats(dev).reserved_bytes, rt_stats(dev).overhead_bytes);
    rt_close(dev);
}

TEST(a_limit_that_stops_a_request_is_named)
{
    mb_device dev = rt_open("backend:sim,device_memory:512m,limit:128m");
    void *ptr = NULL, *kept = NULL;
    mb_pool pool;

    CHECK_EQ(mb_malloc(dev, 200 * RT_MIB, &ptr), MB_ERR_LIMIT);
    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_malloc_async(pool, 3 * RT_MIB, NULL, &kept));
    RT_OK(mb_pool_set(pool, MB_POOL_LIMIT, 1));
    CHECK_EQ(mb_pool_malloc_async(pool, 100 * RT_MIB, NULL, &ptr), MB_ERR_LIMIT);
    CHECK_EQ(rt_stats(dev).failed_requests, 2);
    RT_OK(mb_free_async(dev, kept, NULL));
    rt_close(dev);
}

/* A zone is breached through an alias of the page that holds it. */
TEST(realloc_of_a_block_with_a_breach_changes_nothing)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,check:redzone");
    void *ptr = NULL, *va = NULL, *out = &dev;
    struct mb_map_op op = {.kind = MB_ALIAS, .prot = MB_PROT_READ_WRITE, .bytes = 2 * RT_MIB};

    RT_OK(mb_malloc(dev, 2 * RT_MIB - 1024, &ptr));
    RT_OK(mb_mem_reserve(dev, 2 * RT_MIB, 0, &va));
    op.va = va;
    op.src = (char *)ptr - 512;
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_fill_async(dev, va, 512, 1, NULL));
    RT_OK(mb_device_sync(dev));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map(dev, &op));
    CHECK_EQ(mb_realloc(dev, ptr, 3 * RT_MIB, &out), MB_ERR_CORRUPT);
    CHECK_PTR_EQ(out, &dev);
    CHECK_EQ(rt_stats(dev).live_blocks, 1);
    CHECK_EQ(mb_free(dev, ptr), MB_ERR_CORRUPT);
    RT_OK(mb_check(dev));
    mb_close(dev);
}

TEST(an_event_is_destroyed_once)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_event event, next;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_event_destroy(dev, event));
    CHECK_EQ(mb_event_destroy(dev, event), MB_ERR_INVALID);
    CHECK_EQ(mb_event_record(dev, event, NULL), MB_ERR_INVALID);
    RT_OK(mb_event_create(dev, &next));
    RT_OK(mb_event_destroy(dev, next));
    rt_close(dev);
}

/* Exit status: 0 if the child's library says nothing but that it is a fork. */
static int look_from_a_fork(mb_device dev)
{
    unsigned count = 7;

    if (mb_backends(NULL, 0, &count) != MB_ERR_FORKED || count != 7)
        return 1;
    if (*mb_device_backend(dev) || *mb_device_tables(dev) || *mb_device_name(dev))
        return 2;
    return mb_device_sync(dev) == MB_ERR_FORKED ? 0 : 3;
}

TEST(a_fork_has_no_device)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    int status = -1;
    pid_t child = fork();

    CHECK(child >= 0);
    if (!child)
        _exit(look_from_a_fork(dev));
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    rt_close(dev);
}

/* A pool that is destroyed takes no counts with it. */
TEST(calls_of_destroyed_pools_stay_counted)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");

    for (unsigned i = 0; i < 10; i++) {
        void *ptr = NULL;
        mb_pool pool;

        RT_OK(mb_pool_create(dev, &pool));
        RT_OK(mb_pool_malloc_async(pool, 4096, NULL, &ptr));
        RT_OK(mb_free_async(dev, ptr, NULL));
        RT_OK(mb_pool_destroy(pool));
    }
    CHECK_EQ(rt_stats(dev).malloc_calls, 10);
    CHECK_EQ(rt_stats(dev).free_calls, 10);
    rt_close(dev);
}

/* A block that grows by little maps only what it needs, also with a neighbour behind its first
 * place. */
TEST(growing_by_little_maps_little)
{
    enum { STEPS = 2000 };
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    void *block = NULL, *behind = NULL;
    uint64_t bytes = 2 * RT_MIB, stitches;

    RT_OK(mb_malloc(dev, bytes, &block));
    RT_OK(mb_malloc(dev, 2 * RT_MIB, &behind));
    RT_OK(mb_fill_async(dev, block, RT_MIB, 7, NULL));
    RT_OK(mb_device_sync(dev));
    stitches = rt_stats(dev).stitches;
    for (unsigned i = 0; i < STEPS; i++) {
        bytes += 512;
        RT_OK(mb_realloc(dev, block, bytes, &block));
    }
    CHECK_LE(rt_stats(dev).stitches - stitches, 2);
    RT_OK(mb_verify_async(dev, block, RT_MIB, 7, NULL));
    RT_OK(mb_fill_async(dev, block, bytes, 8, NULL));
    rt_fill(dev, behind, 2 * RT_MIB, 2, NULL);
    RT_OK(mb_verify_async(dev, block, bytes, 8, NULL));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_check(dev));
    RT_OK(mb_realloc(dev, block, RT_MIB + 512, &block));
    RT_OK(mb_verify_async(dev, block, RT_MIB + 512, 8, NULL));
    rt_verify(dev, behind, 2 * RT_MIB, 2, NULL);
    RT_OK(mb_free_async(dev, block, NULL));
    RT_OK(mb_free_async(dev, behind, NULL));
    rt_close(dev);
}
