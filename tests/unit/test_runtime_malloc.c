/* SPDX-License-Identifier: MIT */
/* Handles and arguments, wrong pointers, realloc, pointer queries, failure and its report. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime_rig.h"

TEST(double_free_is_told_from_nonsense)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    char *ptr = rt_malloc(dev, 4096, NULL), *other = rt_malloc(dev, 100000, NULL);

    RT_OK(mb_free_async(dev, ptr, NULL));
    CHECK_EQ(mb_free_async(dev, ptr, NULL), MB_ERR_DOUBLE_FREE);
    CHECK_EQ(mb_free(dev, ptr), MB_ERR_DOUBLE_FREE);
    CHECK_EQ(mb_free_async(dev, other + 512, NULL), MB_ERR_NOT_FOUND);
    CHECK(strstr(mb_error_detail(), "inside the block"));
    CHECK_EQ(mb_free_async(dev, (void *)(uintptr_t)0x123456000, NULL), MB_ERR_NOT_FOUND);
    RT_OK(mb_free_async(dev, other, NULL));
    RT_OK(mb_check(dev)); /* flushes the bins */
    CHECK_EQ(mb_free_async(dev, other, NULL), MB_ERR_DOUBLE_FREE);
    RT_OK(mb_free_async(dev, NULL, NULL));
    RT_OK(mb_free(dev, NULL));
    rt_close(dev);
}

TEST(wrong_handles_are_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = NULL;

    CHECK_EQ(mb_malloc_async(NULL, 512, NULL, &ptr), MB_ERR_INVALID);
    CHECK_EQ(mb_malloc_async(dev, 512, NULL, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb_pool_malloc_async(NULL, 512, NULL, &ptr), MB_ERR_INVALID);
    CHECK_EQ(mb_event_record(dev, NULL, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb_fill_async(dev, (void *)(uintptr_t)4, 8, 0, NULL), MB_ERR_INVALID);
    rt_close(dev);
    CHECK_EQ(mb_malloc_async(dev, 512, NULL, &ptr), MB_ERR_INVALID);
    CHECK_EQ(mb_check(dev), MB_ERR_INVALID);
    mb_close(dev); /* no use of the device: nothing happens */
    CHECK_PTR_EQ(ptr, NULL);
}

TEST(a_failed_request_changes_nothing_and_explains_itself)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *held = rt_malloc(dev, 200 * RT_MIB, NULL), *ptr = NULL;
    struct mb_stats before = rt_stats(dev), after;

    CHECK_EQ(mb_malloc_async(dev, 100 * RT_MIB, NULL, &ptr), MB_ERR_NO_MEMORY);
    CHECK(strstr(mb_error_detail(), "209715200"));
    CHECK_PTR_EQ(ptr, NULL);
    CHECK_EQ(mb_malloc_async(dev, UINT64_MAX, NULL, &ptr), MB_ERR_NO_MEMORY);
    CHECK_EQ(mb_malloc(dev, UINT64_MAX - 100, &ptr), MB_ERR_NO_MEMORY);
    after = rt_stats(dev);
    CHECK_EQ(after.failed_requests, 3);
    CHECK_EQ(after.requested_bytes, before.requested_bytes);
    CHECK_EQ(after.live_blocks, before.live_blocks);
    CHECK_EQ(after.frames_used_bytes, before.frames_used_bytes);
    RT_OK(mb_free_async(dev, held, NULL));
    ptr = rt_malloc(dev, 250 * RT_MIB, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}

TEST(limits_hold)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,limit:128m");
    mb_pool pool;
    void *ptr = NULL;

    CHECK(mb_malloc_async(dev, 200 * RT_MIB, NULL, &ptr) != MB_OK);
    CHECK(strstr(mb_error_detail(), "limit"));
    CHECK_LE(rt_stats(dev).reserved_bytes, 128 * RT_MIB);
    ptr = rt_malloc(dev, 100 * RT_MIB, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);

    dev = rt_open("backend:sim,device_memory:1g");
    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_LIMIT, 64 * RT_MIB));
    ptr = NULL;
    CHECK(mb_pool_malloc_async(pool, 65 * RT_MIB, NULL, &ptr) != MB_OK);
    RT_OK(mb_pool_malloc_async(pool, 64 * RT_MIB, NULL, &ptr));
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

/* A pool gives what it does not use to one that needs it. */
TEST(pools_lend_to_each_other)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool;
    void *ptr = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_malloc_async(pool, 200 * RT_MIB, NULL, &ptr));
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_stream_sync(dev, NULL));
    ptr = rt_malloc(dev, 220 * RT_MIB, NULL);
    rt_fill(dev, ptr, 220 * RT_MIB, 1, NULL);
    rt_verify(dev, ptr, 220 * RT_MIB, 1, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

/* ------------------------------------------------------------------ realloc */

TEST(realloc_grows_in_place_and_shrinks)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = NULL, *grown = NULL;

    RT_OK(mb_malloc(dev, 3 * RT_MIB, &ptr));
    rt_fill(dev, ptr, 3 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, ptr, 5 * RT_MIB, &grown));
    CHECK_PTR_EQ(grown, ptr);
    rt_verify(dev, ptr, 3 * RT_MIB, 1, NULL);
    CHECK_EQ(rt_stats(dev).requested_bytes, 5 * RT_MIB);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, ptr, RT_MIB, &grown));
    CHECK_PTR_EQ(grown, ptr);
    CHECK_EQ(rt_stats(dev).allocated_bytes, RT_MIB);
    rt_verify(dev, ptr, RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free(dev, ptr));
    rt_close(dev);
}

/* The next addresses are taken, but the block ends at a frame: it is shown in a row with others. */
TEST(realloc_maps_longer)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = NULL, *behind = NULL, *grown = NULL;
    uint64_t bytes = 4 * RT_MIB, before;

    RT_OK(mb_malloc(dev, bytes, &ptr));
    RT_OK(mb_malloc(dev, 512, &behind));
    rt_fill(dev, ptr, bytes, 1, NULL);
    RT_OK(mb_device_sync(dev));
    before = rt_stats(dev).allocated_bytes;
    RT_OK(mb_realloc(dev, ptr, 10 * bytes, &grown));
    CHECK(grown != ptr);
    CHECK_EQ(rt_stats(dev).stitches, 1);
    CHECK_EQ(rt_stats(dev).allocated_bytes, before + 9 * bytes);
    RT_OK(mb_verify_async(dev, grown, bytes, rt_seed(ptr, 1), NULL));
    rt_fill(dev, grown, 10 * bytes, 2, NULL);
    rt_verify(dev, grown, 10 * bytes, 2, NULL);
    RT_OK(mb_device_sync(dev));
    CHECK_EQ(mb_free(dev, ptr), MB_ERR_NOT_FOUND);
    RT_OK(mb_realloc(dev, grown, bytes, &ptr));
    CHECK_PTR_EQ(ptr, grown);
    CHECK_EQ(rt_stats(dev).allocated_bytes, before);
    RT_OK(mb_check(dev));
    RT_OK(mb_free(dev, ptr));
    RT_OK(mb_free(dev, behind));
    rt_close(dev);
}

TEST(realloc_copies_when_nothing_else_works)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = NULL, *behind = NULL, *grown = NULL, *fresh = NULL;

    RT_OK(mb_malloc(dev, 5000, &ptr));
    RT_OK(mb_malloc(dev, 512, &behind));
    rt_fill(dev, ptr, 5000, 1, NULL);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, ptr, 300000, &grown));
    CHECK(grown != ptr);
    RT_OK(mb_verify_async(dev, grown, 5000, rt_seed(ptr, 1), NULL));
    RT_OK(mb_realloc(dev, NULL, 1000, &fresh));
    CHECK_EQ(mb_realloc(dev, (char *)grown + 512, 10, &ptr), MB_ERR_NOT_FOUND);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free(dev, grown));
    RT_OK(mb_free(dev, behind));
    RT_OK(mb_free(dev, fresh));
    rt_close(dev);
}

TEST(realloc_that_fails_leaves_the_block)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = NULL, *out = NULL;

    RT_OK(mb_malloc(dev, 100 * RT_MIB, &ptr));
    rt_fill(dev, ptr, 100 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(dev));
    CHECK_EQ(mb_realloc(dev, ptr, 1024 * RT_MIB, &out), MB_ERR_NO_MEMORY);
    CHECK_PTR_EQ(out, NULL);
    rt_verify(dev, ptr, 100 * RT_MIB, 1, NULL);
    CHECK_EQ(rt_stats(dev).requested_bytes, 100 * RT_MIB);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free(dev, ptr));
    rt_close(dev);
}

/* ------------------------------------------------------------------ queries */

TEST(pointer_info_tells_where_an_address_belongs)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    char *ptr = rt_malloc(dev, 5 * RT_MIB, NULL);
    struct mb_pointer_info info;

    RT_OK(mb_pointer_info(dev, ptr + 3 * RT_MIB, &info));
    CHECK_PTR_EQ(info.base, ptr);
    CHECK_EQ(info.bytes, 5 * RT_MIB);
    CHECK_EQ(info.aliases_high, 1);
    CHECK(!info.driver_visible);
    CHECK_EQ(mb_pointer_info(dev, (void *)(uintptr_t)0x1000, &info), MB_ERR_NOT_FOUND);
    RT_OK(mb_free_async(dev, ptr, NULL));
    CHECK_EQ(mb_pointer_info(dev, ptr, &info), MB_ERR_NOT_FOUND);
    rt_close(dev);

    dev = rt_open("backend:sim,device_memory:256m,driver_home:yes");
    ptr = rt_malloc(dev, 5 * RT_MIB, NULL);
    RT_OK(mb_pointer_info(dev, ptr, &info));
    CHECK(info.driver_visible);
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}

/* Where windows need a donor, it is of use: the first blocks come out of it. */
TEST(the_donor_of_windows_serves_the_first_blocks)
{
    const char *const full = "backend:sim,device_memory:256m,driver_home:yes";
    mb_device dev = rt_open(full);
    struct mb_stats opened = rt_stats(dev);
    char *first = rt_malloc(dev, 9 * RT_MIB, NULL), *second = rt_malloc(dev, 22 * RT_MIB, NULL);
    mb_pool pool;

    CHECK_EQ(opened.reserved_bytes, opened.overhead_bytes + 32 * RT_MIB);
    CHECK_EQ(rt_stats(dev).reserved_bytes, opened.reserved_bytes);
    RT_OK(mb_free_async(dev, first, NULL));
    RT_OK(mb_free_async(dev, second, NULL));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_pool_default(dev, &pool));
    RT_OK(mb_pool_trim(pool, 0));
    CHECK_EQ(rt_stats(dev).reserved_bytes, rt_stats(dev).overhead_bytes);
    first = rt_malloc(dev, 40 * RT_MIB, NULL);
    RT_OK(mb_free_async(dev, first, NULL));
    rt_close(dev);

    /* Less than that is allowed: nothing is taken, and the device opens. */
    dev = rt_open("backend:sim,device_memory:256m,driver_home:yes,limit:16m");
    CHECK_EQ(rt_stats(dev).reserved_bytes, rt_stats(dev).overhead_bytes);
    CHECK(!strstr(mb_error_detail(), "limit"));
    first = rt_malloc(dev, 9 * RT_MIB, NULL);
    RT_OK(mb_free_async(dev, first, NULL));
    rt_close(dev);
}

TEST(stitched_blocks_say_so)
{
    enum { COUNT = 128 };
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct mb_pointer_info info;
    void *blocks[COUNT];
    char *all;

    for (unsigned i = 0; i < COUNT; i++)
        blocks[i] = rt_malloc(dev, 2 * RT_MIB, NULL);
    for (unsigned i = 0; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], NULL));
    all = rt_malloc(dev, 128 * RT_MIB, NULL);
    RT_OK(mb_pointer_info(dev, all + RT_MIB, &info));
    CHECK_PTR_EQ(info.base, all);
    CHECK(info.stitched && !info.driver_visible);
    CHECK_EQ(info.aliases_high, 2);
    /* Freed and asked for again, it comes back without a new map. */
    RT_OK(mb_free_async(dev, all, NULL));
    RT_OK(mb_check(dev));
    CHECK_PTR_EQ(rt_malloc(dev, 128 * RT_MIB, NULL), all);
    CHECK_EQ(rt_stats(dev).stitches, 1);
    RT_OK(mb_free_async(dev, all, NULL));
    for (unsigned i = 1; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], NULL));
    rt_close(dev);
}

/* A composed block on a stream, behind a fill that the explorer may leave waiting. Entries whose
 * batch is under way are busy; their number before the wait is added to *before. */
static void compose_and_wait(unsigned seed, uint64_t *before)
{
    enum { COUNT = 64 };
    struct mb_tables_report report;
    void *blocks[COUNT], *composed;
    mb_stream stream;
    mb_device dev;
    char config[96];

    snprintf(config, sizeof(config),
             "backend:sim,device_memory:256m,tables:driver,explore:yes,seed:%u", seed);
    dev = rt_open(config);
    stream = rt_stream(dev);
    for (unsigned i = 0; i < COUNT; i++)
        blocks[i] = rt_malloc(dev, 2 * RT_MIB, stream);
    for (unsigned i = 0; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    RT_OK(mb_fill_async(dev, blocks[1], 2 * RT_MIB, seed, stream));
    composed = rt_malloc(dev, 64 * RT_MIB, stream);
    CHECK_EQ(rt_stats(dev).stitched_blocks, 1);
    RT_OK(mb_check_tables(dev, false, &report));
    *before += report.busy;
    RT_OK(mb_wait_mapped(dev, (char *)composed + RT_MIB));
    RT_OK(mb_wait_mapped(dev, composed));
    RT_OK(mb_wait_mapped(dev, blocks[1])); /* at home: nothing to wait for */
    RT_OK(mb_check_tables(dev, false, &report));
    CHECK_EQ(report.busy, 0);
    RT_OK(mb_free_async(dev, composed, stream));
    CHECK_EQ(mb_wait_mapped(dev, composed), MB_ERR_NOT_FOUND);
    RT_OK(mb_wait_mapped(dev, NULL));
    for (unsigned i = 1; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    rt_close(dev);
}

TEST(a_composed_block_is_waited_for_with_driver_tables)
{
    uint64_t before = 0;
    mb_device dev;

    for (unsigned seed = 1; seed <= 20; seed++)
        compose_and_wait(seed, &before);
    CHECK(before > 0); /* or nothing was waited for */

    dev = rt_open("backend:sim,device_memory:256m");
    RT_OK(mb_wait_mapped(dev, &before)); /* device tables: nobody looks */
    rt_close(dev);
    CHECK_EQ(mb_wait_mapped(NULL, &before), MB_ERR_INVALID);
}

/* ------------------------------------------------------------------ fork */

TEST(a_forked_child_is_disabled)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *ptr = rt_malloc(dev, 4096, NULL);
    int status = 0;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        void *out = NULL;
        mb_device again = NULL;
        bool good = mb_malloc_async(dev, 512, NULL, &out) == MB_ERR_FORKED &&
                    mb_free_async(dev, ptr, NULL) == MB_ERR_FORKED &&
                    mb_open(0, "backend:sim", &again) == MB_ERR_FORKED;

        mb_close(dev);
        _exit(good ? 0 : 1);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}

TEST(backends_are_listed)
{
    struct mb_backend_info list[8];
    unsigned count = 0, chosen = 0;

    RT_OK(mb_backends(list, 8, &count));
    CHECK(count >= 1 && count <= 8);
    for (unsigned i = 0; i < count; i++) {
        chosen += list[i].chosen;
        CHECK(list[i].name && list[i].reason);
        CHECK(!list[i].chosen || list[i].available);
    }
    CHECK_EQ(chosen, 1);
    RT_OK(mb_backends(NULL, 0, &count));
}
