/* SPDX-License-Identifier: MIT */
/*
 * Report 1 of the field (pytorch#35901, pytorch#159674): a large free segment was split by small
 * blocks, and a request failed although half of the segment was free. Here: whatever is free in
 * total can be allocated in one piece.
 */
#include "support/runtime_rig.h"

enum {
    BLOCKS = 4096,
};

/* Carves blocks of three sizes until nothing fits, frees every other one, and asks for all that is
 * free. */
static void carve_and_ask(mb_device dev, mb_stream stream)
{
    static const uint64_t sizes[] = {16515072, 11400192, 18191360};
    static void *blocks[BLOCKS];
    uint64_t freed = 0, bytes;
    unsigned count = 0;
    void *ptr = NULL, *all;

    while (count < BLOCKS && !mb_malloc_async(dev, sizes[count % 3], stream, &blocks[count])) {
        rt_fill(dev, blocks[count], 4096, count, stream);
        count++;
    }
    CHECK(count > 100 && count < BLOCKS);
    for (unsigned i = 0; i < count; i += 2) {
        freed += sizes[i % 3];
        RT_OK(mb_free_async(dev, blocks[i], stream));
    }
    /* Rounded down to frames: heads and tails of holes cannot all lie in one row of addresses, but
     * no whole frame may be out of reach. */
    bytes = freed * 85 / 100;
    all = rt_malloc(dev, bytes, stream);
    rt_fill(dev, all, bytes, 77, stream);
    rt_verify(dev, all, bytes, 77, stream);
    for (unsigned i = 1; i < count; i += 2)
        rt_verify(dev, blocks[i], 4096, i, stream);
    CHECK_EQ(rt_stats(dev).stitched_blocks, 1);
    RT_OK(mb_free_async(dev, all, stream));
    for (unsigned i = 1; i < count; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], stream));
    (void)ptr;
}

TEST(free_half_in_pieces_serves_one_large_request)
{
    mb_device dev = rt_open("backend:sim,device_memory:12g");
    void *whole = rt_malloc(dev, 11600000000u, NULL);

    rt_fill(dev, whole, 11600000000u, 1, NULL);
    rt_verify(dev, whole, 11600000000u, 1, NULL);
    RT_OK(mb_free_async(dev, whole, NULL));
    carve_and_ask(dev, NULL);
    rt_close(dev);
}

/* Every free frame is reachable: blocks of whole frames, every other one freed, all of it asked
 * for. */
TEST(every_free_frame_is_reachable)
{
    enum { COUNT = 512 };
    mb_device dev = rt_open("backend:sim,device_memory:2g");
    void *blocks[COUNT], *all;
    uint64_t frame = mb_page_bytes(dev), free_bytes;

    for (unsigned i = 0; i < COUNT; i++)
        blocks[i] = rt_malloc(dev, frame, NULL);
    for (unsigned i = 0; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], NULL));
    free_bytes = 2 * RT_GIB - COUNT / 2 * frame;
    all = rt_malloc(dev, free_bytes, NULL);
    rt_fill(dev, all, free_bytes, 3, NULL);
    rt_verify(dev, all, free_bytes, 3, NULL);
    RT_OK(mb_free_async(dev, all, NULL));
    for (unsigned i = 1; i < COUNT; i += 2)
        RT_OK(mb_free_async(dev, blocks[i], NULL));
    rt_close(dev);
}

TEST(sixty_of_eighty_then_seventy)
{
    mb_device dev = rt_open("backend:sim,device_memory:80g");
    void *first = rt_malloc(dev, 30 * RT_GIB, NULL), *second = rt_malloc(dev, 30 * RT_GIB, NULL);
    void *pin = rt_malloc(dev, 512, NULL), *large;

    RT_OK(mb_free_async(dev, first, NULL));
    RT_OK(mb_free_async(dev, second, NULL));
    large = rt_malloc(dev, 70 * RT_GIB, NULL);
    rt_fill(dev, large, 70 * RT_GIB, 5, NULL);
    rt_verify(dev, large, 70 * RT_GIB, 5, NULL);
    RT_OK(mb_free_async(dev, large, NULL));
    RT_OK(mb_free_async(dev, pin, NULL));
    rt_close(dev);
}
