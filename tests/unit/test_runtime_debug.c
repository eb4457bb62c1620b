/* SPDX-License-Identifier: MIT */
/* check:redzone, poison, uaf and leaks find what they are for, and nothing else. */
#include <string.h>
#include <unistd.h>

#include "hw/fault.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

/* What a kernel with a bug does: it does not ask whether the address is its own. */
static void write_anywhere(mb_device dev, uint64_t addr, uint64_t bytes, mb_stream native)
{
    struct mb__stream *stream = NULL;

    mb__lock(&dev->lock);
    CHECK_OK(mb__stream_get(dev, native, &stream));
    CHECK_OK(dev->hw->ops->fill(dev->hw, stream->hw, mb__va(addr), bytes, 0x666));
    mb__unlock(&dev->lock);
}

TEST(redzone_finds_writes_out_of_bounds)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:redzone");
    char *ptr = rt_malloc(dev, 1000, NULL);

    rt_fill(dev, ptr, 1000, 1, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));

    ptr = rt_malloc(dev, 1000, NULL);
    write_anywhere(dev, (uint64_t)(uintptr_t)ptr + 1000, 8, NULL);
    CHECK_EQ(mb_free_async(dev, ptr, NULL), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "behind"));

    ptr = rt_malloc(dev, 1000, NULL);
    write_anywhere(dev, (uint64_t)(uintptr_t)ptr - 8, 8, NULL);
    CHECK_EQ(mb_free_async(dev, ptr, NULL), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "before"));
    CHECK_EQ(rt_stats(dev).live_blocks, 2);
    CHECK_EQ(rt_stats(dev).wrong_words, 0); /* ours do not count as the program's */
    mb_close(dev);
}

TEST(device_work_stays_inside_blocks)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:redzone");
    char *ptr = rt_malloc(dev, 1000, NULL);

    CHECK_EQ(mb_fill_async(dev, ptr + 1000, 8, 1, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb_fill_async(dev, ptr + 992, 16, 1, NULL), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "leaves the block"));
    CHECK_EQ(mb_fill_async(dev, ptr - 8, 8, 1, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb_copy_async(dev, ptr, ptr + 1000, 8, NULL), MB_ERR_INVALID);
    RT_OK(mb_fill_async(dev, ptr + 992, 8, 1, NULL));
    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}

TEST(poison_finds_writes_after_free)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:poison");
    void *ptr = rt_malloc(dev, 100000, NULL), *again;

    rt_fill(dev, ptr, 100000, 1, NULL);
    RT_OK(mb_free_async(dev, ptr, NULL));
    write_anywhere(dev, (uint64_t)(uintptr_t)ptr + 4096, 64, NULL);
    again = rt_malloc(dev, 100000, NULL);
    CHECK_EQ(mb_check(dev), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "written after their free"));
    RT_OK(mb_free_async(dev, again, NULL));
    mb_close(dev);
}

TEST(poison_leaves_good_programs_alone)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:poison|redzone");
    mb_stream stream = rt_stream(dev);

    for (unsigned i = 0; i < 20; i++) {
        void *a = rt_malloc(dev, 3 * RT_MIB + 700 * i, stream), *b = NULL;

        rt_fill(dev, a, 3 * RT_MIB, i, stream);
        RT_OK(mb_malloc(dev, 5000 * (i + 1), &b));
        rt_verify(dev, a, 3 * RT_MIB, i, stream);
        RT_OK(mb_free(dev, b));
        RT_OK(mb_free_async(dev, a, stream));
    }
    rt_close(dev);
}

TEST(uaf_turns_a_late_access_into_a_fault)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:uaf");
    mb_stream stream = rt_stream(dev);
    void *ptr = rt_malloc(dev, 4096, stream);

    rt_fill(dev, ptr, 4096, 1, stream);
    rt_verify(dev, ptr, 4096, 1, stream);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free_async(dev, ptr, stream));
    /* The interface knows that the block is gone; a kernel does not ask. */
    CHECK_EQ(mb_verify_async(dev, ptr, 4096, 1, stream), MB_ERR_INVALID);
    RT_OK(mb_device_sync(dev));
    CHECK_EQ(rt_stats(dev).faults, 0);
    write_anywhere(dev, (uint64_t)(uintptr_t)ptr, 64, stream);
    CHECK_EQ(mb_device_sync(dev), MB_ERR_DEVICE_LOST);
    CHECK(rt_stats(dev).faults > 0);
    mb_close(dev);
}

TEST(uaf_leaves_good_programs_alone)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:uaf,window_cache:64m");
    mb_stream stream = rt_stream(dev);

    for (unsigned i = 0; i < 100; i++) {
        void *ptr = rt_malloc(dev, 3 * RT_MIB + 700 * i, stream);

        rt_fill(dev, ptr, 3 * RT_MIB, i, stream);
        rt_verify(dev, ptr, 3 * RT_MIB, i, stream);
        RT_OK(mb_free_async(dev, ptr, stream));
    }
    rt_close(dev);
}

TEST(leaks_are_listed_at_close)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:leaks");
    void *kept = rt_malloc(dev, 12345, NULL), *freed = rt_malloc(dev, 77777, NULL);
    int pipes[2], saved;
    char text[4096] = "";
    ssize_t bytes;

    CHECK(kept != NULL);
    RT_OK(mb_free_async(dev, freed, NULL));
    CHECK_EQ(pipe(pipes), 0);
    saved = dup(STDERR_FILENO);
    CHECK(saved >= 0 && dup2(pipes[1], STDERR_FILENO) >= 0);
    mb_close(dev);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipes[1]);
    bytes = read(pipes[0], text, sizeof(text) - 1);
    close(pipes[0]);
    CHECK(bytes > 0);
    CHECK(strstr(text, "12345 bytes") && strstr(text, "1 blocks"));
    CHECK(!strstr(text, "77777"));
}

#ifdef MB_FAULT_INJECTION
/* Each device call that a checked malloc makes fails once: the caller gets nothing, and nothing
 * stays behind. */
TEST(a_malloc_whose_checks_fail_leaves_nothing)
{
    static const char *const configs[] = {"backend:sim,device_memory:256m,check:redzone",
                                          "backend:sim,device_memory:256m,check:poison",
                                          "backend:sim,device_memory:256m,check:redzone|poison"};
    unsigned failures = 0;

    for (unsigned c = 0; c < 3; c++) {
        mb_device dev = rt_open(configs[c]);
        void *warm = rt_malloc(dev, 5000, NULL);
        bool hit = true;

        RT_OK(mb_free(dev, warm));
        for (uint64_t n = 1; hit; n++) {
            struct mb_stats before = rt_stats(dev);
            uint64_t hits = mb__hw_fault_hits(dev->hw);
            void *ptr = NULL;
            enum mb_err err;

            mb__hw_fault_set(dev->hw, MB_HW_FAULT_ANY, n, MB_ERR_DRIVER, false);
            err = n % 2 ? mb_malloc_async(dev, 5000, NULL, &ptr) : mb_malloc(dev, 5000, &ptr);
            mb__hw_fault_set(dev->hw, MB_HW_FAULT_ANY, 0, MB_OK, false);
            hit = mb__hw_fault_hits(dev->hw) > hits;
            if (err) {
                failures++;
                CHECK_PTR_EQ(ptr, NULL);
                CHECK_EQ(rt_stats(dev).live_blocks, before.live_blocks);
                CHECK_EQ(rt_stats(dev).requested_bytes, before.requested_bytes);
                CHECK_EQ(rt_stats(dev).malloc_calls, before.malloc_calls);
            } else {
                RT_OK(mb_device_sync(dev));
                RT_OK(mb_free(dev, ptr));
            }
        }
        rt_close(dev);
    }
    CHECK(failures > 0);
}
#endif
