/* SPDX-License-Identifier: MIT */
/*
 * The whole runtime over the `hip` backend on A FAKE of HIP: blocks hold what was written, streams
 * keep their order, and everything comes back. Nothing here has run on AMD hardware.
 */
#include <stdio.h>
#include <string.h>

#include "fake_access.h"
#include "support/runtime_rig.h"

enum { BLOCKS = 48, STREAMS = 3 };

static mb_device open_hip(const char *more)
{
    char config[128];
    mb_device dev = NULL;
    enum mb_err err;

    snprintf(config, sizeof(config), "backend:hip%s", more);
    err = mb_open(0, config, &dev);
    if (err && strstr(mb_error_detail(), "no kernels"))
        SKIP(mb_error_detail());
    if (err)
        FAIL("mb_open: %s: %s", mb_error_name(err), mb_error_detail());
    CHECK_STR_EQ(mb_device_backend(dev), "hip");
    CHECK_STR_EQ(mb_device_tables(dev), "driver");
    return dev;
}

static void random_program(const char *config)
{
    struct {
        void *ptr;
        uint64_t bytes, number;
        mb_stream stream;
    } block[BLOCKS];
    uint64_t state = mb_test_seed();
    mb_device dev = open_hip(config);
    mb_stream stream[STREAMS] = {NULL};

    memset(block, 0, sizeof(block));
    for (int i = 1; i < STREAMS; i++)
        stream[i] = rt_stream(dev);
    for (uint64_t step = 0; step < 1500; step++) {
        unsigned i = (unsigned)mb_test_random_below(&state, BLOCKS);

        if (block[i].ptr) {
            rt_verify(dev, block[i].ptr, block[i].bytes, block[i].number, block[i].stream);
            RT_OK(mb_free_async(dev, block[i].ptr, block[i].stream));
            block[i].ptr = NULL;
            continue;
        }
        block[i].bytes =
            8 + 8 * mb_test_random_below(&state, mb_test_random_below(&state, 4) ? 20000 : 800000);
        block[i].stream = stream[mb_test_random_below(&state, STREAMS)];
        block[i].number = step;
        block[i].ptr = rt_malloc(dev, block[i].bytes, block[i].stream);
        rt_fill(dev, block[i].ptr, block[i].bytes, step, block[i].stream);
    }
    rt_clean(dev);
    for (int i = 0; i < BLOCKS; i++) {
        if (!block[i].ptr)
            continue;
        rt_verify(dev, block[i].ptr, block[i].bytes, block[i].number, block[i].stream);
        RT_OK(mb_free_async(dev, block[i].ptr, block[i].stream));
    }
    rt_close(dev);
    fake_check_empty();
}

TEST(random_blocks_hold_their_contents)
{
    random_program("");
}

TEST(the_same_in_little_memory)
{
    random_program(",device_memory:512MiB");
}

/* Memory in the wrong places: a block larger than any hole is composed of the frames of many. */
TEST(fragments_are_stitched)
{
    enum { PIECES = 64 };
    mb_device dev = open_hip(",device_memory:256MiB");
    void *piece[PIECES], *large;

    for (int i = 0; i < PIECES; i++)
        piece[i] = rt_malloc(dev, 3 * RT_MIB, NULL);
    for (int i = 0; i < PIECES; i += 2)
        RT_OK(mb_free_async(dev, piece[i], NULL));
    RT_OK(mb_device_sync(dev));
    large = rt_malloc(dev, 80 * RT_MIB, NULL);
    rt_fill(dev, large, 80 * RT_MIB, 1, NULL);
    for (int i = 1; i < PIECES; i += 2)
        rt_fill(dev, piece[i], 3 * RT_MIB, 2, NULL);
    rt_verify(dev, large, 80 * RT_MIB, 1, NULL);
    rt_clean(dev);
    CHECK(rt_stats(dev).stitched_blocks > 0);
    RT_OK(mb_free_async(dev, large, NULL));
    for (int i = 1; i < PIECES; i += 2)
        RT_OK(mb_free_async(dev, piece[i], NULL));
    rt_close(dev);
    fake_check_empty();
}

/* The public mapping calls: map, alias, protect, unmap. */
TEST(mappings)
{
    mb_device dev = open_hip("");
    uint64_t page = mb_page_bytes(dev);
    void *va = NULL, *other = NULL;
    mb_mem mem = NULL;

    RT_OK(mb_mem_reserve(dev, 8 * page, 0, &va));
    RT_OK(mb_mem_reserve(dev, 8 * page, 0, &other));
    RT_OK(mb_mem_create(dev, 8 * page, &mem));
    struct mb_map_op map = {
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = va, .bytes = 8 * page, .mem = mem};
    struct mb_map_op alias = {
        .kind = MB_ALIAS, .prot = MB_PROT_READ, .va = other, .bytes = 8 * page, .src = va};
    RT_OK(mb_mem_map_async(dev, &map, 1, NULL));
    rt_fill(dev, va, 8 * page, 1, NULL);
    RT_OK(mb_mem_map_async(dev, &alias, 1, NULL));
    RT_OK(mb_verify_async(dev, other, 8 * page, rt_seed(va, 1), NULL));
    struct mb_map_op away[] = {{.kind = MB_UNMAP, .va = va, .bytes = 8 * page},
                               {.kind = MB_UNMAP, .va = other, .bytes = 8 * page}};
    RT_OK(mb_mem_map_async(dev, away, 2, NULL));
    RT_OK(mb_mem_release(dev, mem));
    rt_clean(dev);
    RT_OK(mb_mem_unreserve(dev, va, 8 * page));
    RT_OK(mb_mem_unreserve(dev, other, 8 * page));
    rt_close(dev);
    fake_check_empty();
}
