/* SPDX-License-Identifier: MIT */
/*
 * runtime_rig.h - small helpers of tests that use the public interface on the software GPU.
 *
 * Contents are how wrong mappings are seen: rt_fill() writes a pattern that belongs to a block,
 * rt_verify() reads it back through the TLB, and rt_clean() waits and demands that not a word,
 * access or invariant was wrong. All checks end the case, so they may be made on its thread only.
 */
#ifndef MB_TESTS_RUNTIME_RIG_H
#define MB_TESTS_RUNTIME_RIG_H

#include <stdio.h>
#include <stdlib.h>

#include "moonbright.h"
#include "test.h"

#define RT_MIB ((uint64_t)1 << 20)
#define RT_GIB ((uint64_t)1 << 30)

/* CHECK_OK with the reason printed. */
#define RT_OK(call)                                                                                \
    do {                                                                                           \
        enum mb_err rt_err = (call);                                                               \
        if (rt_err)                                                                                \
            FAIL("%s: %s: %s", #call, mb_error_name(rt_err), mb_error_detail());                   \
    } while (0)

/* The same on threads that are not the test's own, and in children: a failure ends the program. */
#define RT_MUST(call)                                                                              \
    do {                                                                                           \
        enum mb_err must_err = (call);                                                             \
        if (must_err) {                                                                            \
            fprintf(stderr, "%s: %s: %s\n", #call, mb_error_name(must_err), mb_error_detail());    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline __attribute__((unused)) mb_device rt_open(const char *config)
{
    const char *ordinal = getenv("MB_TEST_ORDINAL"); /* another device's: tests/field/beside */
    mb_device dev = NULL;

    RT_OK(mb_open(ordinal ? atoi(ordinal) : 0, config, &dev));
    return dev;
}

static inline __attribute__((unused)) void *rt_malloc(mb_device dev, uint64_t bytes,
                                                      mb_stream stream)
{
    void *ptr = NULL;

    RT_OK(mb_malloc_async(dev, bytes, stream, &ptr));
    return ptr;
}

static inline __attribute__((unused)) struct mb_stats rt_stats(mb_device dev)
{
    struct mb_stats stats;

    RT_OK(mb_stats_get(dev, &stats));
    return stats;
}

static inline __attribute__((unused)) mb_stream rt_stream(mb_device dev)
{
    mb_stream stream = NULL;

    RT_OK(mb_stream_create(dev, &stream));
    return stream;
}

/* A pattern of its own for each address and number. */
static inline __attribute__((unused)) uint64_t rt_seed(const void *ptr, uint64_t number)
{
    return ((uint64_t)(uintptr_t)ptr << 8) ^ number * 0x9e3779b97f4a7c15u;
}

static inline __attribute__((unused)) void rt_fill(mb_device dev, void *ptr, uint64_t bytes,
                                                   uint64_t number, mb_stream stream)
{
    RT_OK(mb_fill_async(dev, ptr, bytes / 8 * 8, rt_seed(ptr, number), stream));
}

static inline __attribute__((unused)) void rt_verify(mb_device dev, const void *ptr, uint64_t bytes,
                                                     uint64_t number, mb_stream stream)
{
    RT_OK(mb_verify_async(dev, ptr, bytes / 8 * 8, rt_seed(ptr, number), stream));
}

/* Waits for everything; nothing may have gone wrong so far. */
static inline __attribute__((unused)) void rt_clean(mb_device dev)
{
    struct mb_stats stats;

    RT_OK(mb_device_sync(dev));
    stats = rt_stats(dev);
    CHECK_EQ(stats.wrong_words, 0);
    CHECK_EQ(stats.wrong_accesses, 0);
    CHECK_EQ(stats.faults, 0);
    CHECK_LE(stats.requested_bytes, stats.allocated_bytes);
    CHECK_LE(stats.allocated_bytes, stats.frames_used_bytes);
    CHECK_LE(stats.frames_used_bytes, stats.reserved_bytes);
    RT_OK(mb_check(dev));
}

/* The same, and nothing is left allocated. */
static inline __attribute__((unused)) void rt_close(mb_device dev)
{
    struct mb_stats stats;

    rt_clean(dev);
    stats = rt_stats(dev);
    CHECK_EQ(stats.live_blocks, 0);
    CHECK_EQ(stats.requested_bytes, 0);
    CHECK_EQ(stats.allocated_bytes, 0);
    mb_close(dev);
}

#endif
