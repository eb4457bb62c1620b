/* SPDX-License-Identifier: MIT */
/* Contents kept as patterns against a plain array, and what a large device costs. */
#include "test.h"

#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

#define BASE ((uint64_t)256 << 20)
enum { FRAMES = 3 };
#define BYTES (FRAMES * MB_FRAME_BYTES)

/* The array, and which words were written. */
static uint64_t word[BYTES / 8];
static bool written[BYTES / 8];

static void range(uint64_t *state, uint64_t *at, uint64_t *bytes)
{
    static const uint64_t most[] = {64, 4096, 70000, BYTES};
    uint64_t limit = most[mb_test_random_below(state, 4)] / 8;

    *bytes = (1 + mb_test_random_below(state, limit)) * 8;
    *at = mb_test_random_below(state, (BYTES - *bytes) / 8 + 1) * 8;
    /* Whole frames are a case of their own. */
    if (mb_test_random_below(state, 8) == 0) {
        *bytes = MB_FRAME_BYTES;
        *at = mb_test_random_below(state, FRAMES) * MB_FRAME_BYTES;
    }
}

static void check_all(struct sim_memory *mem)
{
    for (uint64_t i = 0; i < BYTES / 8; i++) {
        if (written[i])
            CHECK_EQ(mb__sim_memory_word(mem, BASE + 8 * i), word[i]);
    }
}

static uint64_t count_differing(uint64_t at, uint64_t bytes, uint64_t seed)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < bytes / 8; i++)
        wrong += !written[at / 8 + i] || word[at / 8 + i] != mb_pattern(seed, i);
    return wrong;
}

static void one_operation(struct sim_memory *mem, uint64_t *state)
{
    /* Few seeds, so that ranges meet others that they can join. */
    uint64_t seed = mb_test_random_below(state, 3), at, src, bytes;

    range(state, &at, &bytes);
    switch (mb_test_random_below(state, 5)) {
    case 0:
        mb__sim_memory_write(mem, BASE + at, bytes, sim_key(seed, 0, BASE + at));
        for (uint64_t i = 0; i < bytes / 8; i++)
            word[at / 8 + i] = mb_pattern(seed, i);
        memset(&written[at / 8], 1, bytes / 8);
        break;
    case 1:
        mb__sim_memory_set_word(mem, BASE + at, seed * 77);
        word[at / 8] = seed * 77;
        written[at / 8] = true;
        break;
    case 2:
        CHECK_EQ(mb__sim_memory_differ(mem, BASE + at, bytes, sim_key(seed, 0, BASE + at)),
                 count_differing(at, bytes, seed));
        break;
    case 3:
        src = mb_test_random_below(state, (BYTES - bytes) / 8 + 1) * 8;
        if (src < at + bytes && at < src + bytes)
            break; /* overlapping copies are undefined */
        mb__sim_memory_copy(mem, BASE + at, mem, BASE + src, bytes);
        memcpy(&word[at / 8], &word[src / 8], bytes);
        memcpy(&written[at / 8], &written[src / 8], bytes / 8);
        break;
    default:
        /* The middle of a pattern again: joins with what is there. */
        mb__sim_memory_write(mem, BASE + at, bytes, sim_key(seed, at / 8, BASE + at));
        for (uint64_t i = 0; i < bytes / 8; i++)
            word[at / 8 + i] = mb_pattern(seed, at / 8 + i);
        memset(&written[at / 8], 1, bytes / 8);
        break;
    }
}

TEST(contents_match_a_plain_array)
{
    uint64_t state = mb_test_seed();

    for (unsigned round = 0; round < 8; round++) {
        struct sim_memory mem = {0};

        memset(written, 0, sizeof(written));
        CHECK_OK(mb__sim_memory_open(&mem, BASE, BYTES));
        for (unsigned i = 0; i < 200; i++)
            one_operation(&mem, &state);
        check_all(&mem);
        CHECK(!mem.failed);
        mb__sim_memory_close(&mem);
    }
}

TEST(accounts_return_to_zero)
{
    struct sim_memory mem = {0};
    uint64_t state = mb_test_seed() + 1, empty;

    memset(written, 0, sizeof(written));
    CHECK_OK(mb__sim_memory_open(&mem, BASE, BYTES));
    empty = mem.host_bytes;
    for (unsigned i = 0; i < 500; i++)
        one_operation(&mem, &state);
    for (uint32_t i = 0; i < FRAMES; i++)
        mb__sim_memory_drop(&mem, i);
    CHECK_EQ(mem.host_bytes, empty);
    mb__sim_memory_close(&mem);
}

/* 141 GB with two million touches of 64 bytes all over it, and then filled to the last byte. */
TEST(a_large_device_costs_what_is_touched)
{
    struct mb_sim_counters counters;
    uint64_t state = mb_test_seed() + 2, bytes;
    struct mb_hw_config config = {.driver_home = true};
    struct mb_hw_stream *stream;
    struct mb_hw_slab slab;
    struct mb_hw_dev *dev;
    mb_va va;

    CHECK_OK(mb__sim_open(&config, &dev));
    CHECK(dev->caps.total_bytes > (uint64_t)140 * 1000 * 1000 * 1000);
    bytes = dev->caps.total_bytes;
    CHECK_OK(dev->ops->va_reserve(dev, bytes, 0, &va));
    CHECK_OK(dev->ops->slab_acquire(dev, bytes, va, &slab));
    CHECK_OK(dev->ops->stream_open(dev, NULL, &stream));
    mb__sim_counters(dev, &counters);
    CHECK(counters.memory_bytes < 4 << 20);
    for (unsigned i = 0; i < 2000000; i++)
        CHECK_OK(dev->ops->fill(
            dev, stream, mb__va_add(va, mb_test_random_below(&state, bytes / 64) * 64), 64, i));
    CHECK_OK(dev->ops->device_sync(dev));
    mb__sim_counters(dev, &counters);
    CHECK(counters.memory_bytes < (uint64_t)300 << 20);
    CHECK_OK(dev->ops->fill(dev, stream, va, bytes, 5));
    CHECK_OK(dev->ops->verify(dev, stream, va, bytes, 5));
    CHECK_OK(dev->ops->device_sync(dev));
    mb__sim_counters(dev, &counters);
    CHECK(counters.memory_bytes < (uint64_t)64 << 20);
    dev->ops->close(dev);
}
