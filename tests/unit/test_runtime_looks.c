/* SPDX-License-Identifier: MIT */
/*
 * What a request looks at does not grow with the number of holes: steps are counted, not time.
 */
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

enum {
    TINY = 512,
    BLOCKS = 60000, /* every second one becomes a hole */
    LOOKS = 1024,   /* bound of collect.c for a request of less than a frame */
};

static uint64_t looks_of(mb_device dev, uint64_t bytes, mb_stream stream)
{
    uint64_t before = dev->counters.looks;
    void *ptr = rt_malloc(dev, bytes, stream);

    RT_OK(mb_free_async(dev, ptr, stream));
    return dev->counters.looks - before;
}

static void make_holes(mb_device dev, void **blocks, mb_stream stream)
{
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = rt_malloc(dev, TINY, stream);
    for (unsigned i = 0; i < BLOCKS; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
}

TEST(a_plan_among_many_tiny_holes_looks_at_few)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,cache:no,oracle:no");
    void **blocks = calloc(BLOCKS, sizeof(*blocks));
    mb_stream stream = rt_stream(dev);

    CHECK(blocks);
    make_holes(dev, blocks, stream);
    for (uint64_t bytes = 1024; bytes <= 64 * RT_MIB; bytes *= 4) {
        /* A request is planned at most twice: before and after the pool has grown. */
        uint64_t most = 2 * (LOOKS + 2 * (bytes >> MB_FRAME_SHIFT) + 64);

        CHECK(looks_of(dev, bytes, stream) <= most);
    }
    RT_OK(mb_check(dev));
    for (unsigned i = 1; i < BLOCKS; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    free(blocks);
    rt_close(dev);
}

/* With no more memory to be had all holes are looked at: a request fails only if no plan exists. */
TEST(the_last_look_is_at_everything)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,cache:no,oracle:no");
    void **blocks = calloc(BLOCKS, sizeof(*blocks)), *large[64];
    mb_stream stream = rt_stream(dev);
    unsigned count = 0;
    uint64_t before;
    enum mb_err err;

    CHECK(blocks);
    make_holes(dev, blocks, stream);
    do {
        before = dev->counters.looks;
        err = mb_malloc_async(dev, RT_MIB, stream, &large[count]);
    } while (!err && ++count < 64);
    CHECK_EQ(err, MB_ERR_NO_MEMORY);
    CHECK(dev->counters.looks - before >= BLOCKS / 2);
    while (count)
        RT_OK(mb_free_async(dev, large[--count], stream));
    for (unsigned i = 1; i < BLOCKS; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    free(blocks);
    rt_close(dev);
}
