/* SPDX-License-Identifier: MIT */
/*
 * Report 12 of the field (torch_memory_saver PR 82, pytorch#192330): a size that is no multiple of
 * the granularity failed. Sizes 0, 1, 128, 6,912 and 2 MiB +- 1 through every allocating call.
 */
#include "support/runtime_rig.h"

static const uint64_t sizes[] = {0, 1, 128, 6912, 2 * RT_MIB - 1, 2 * RT_MIB, 2 * RT_MIB + 1};

enum {
    SIZES = sizeof(sizes) / sizeof(sizes[0]),
};

TEST(malloc_takes_every_size)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    void *sync[SIZES] = {0}, *async[SIZES];

    for (unsigned i = 0; i < SIZES; i++) {
        RT_OK(mb_malloc(dev, sizes[i], &sync[i]));
        async[i] = rt_malloc(dev, sizes[i], NULL);
        CHECK_EQ((uintptr_t)sync[i] % 512, 0);
        CHECK_EQ((uintptr_t)async[i] % 512, 0);
        CHECK(sync[i] && async[i] && sync[i] != async[i]);
        rt_fill(dev, async[i], sizes[i], i, NULL);
        rt_fill(dev, sync[i], sizes[i], i, NULL);
    }
    for (unsigned i = 0; i < SIZES; i++) {
        rt_verify(dev, async[i], sizes[i], i, NULL);
        rt_verify(dev, sync[i], sizes[i], i, NULL);
        RT_OK(mb_free_async(dev, async[i], NULL));
    }
    RT_OK(mb_device_sync(dev));
    for (unsigned i = 0; i < SIZES; i++)
        RT_OK(mb_free(dev, sync[i]));
    rt_close(dev);
}

TEST(requested_bytes_are_what_was_asked)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    uint64_t sum = 0;
    void *ptrs[SIZES];

    for (unsigned i = 0; i < SIZES; i++) {
        ptrs[i] = rt_malloc(dev, sizes[i], NULL);
        sum += sizes[i];
        CHECK_EQ(rt_stats(dev).requested_bytes, sum);
    }
    for (unsigned i = 0; i < SIZES; i++)
        RT_OK(mb_free_async(dev, ptrs[i], NULL));
    rt_close(dev);
}

TEST(memory_objects_round_up_to_pages)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    uint64_t page = mb_page_bytes(dev);

    for (unsigned i = 0; i < SIZES; i++) {
        mb_mem mem = NULL;
        enum mb_err err = mb_mem_create(dev, sizes[i], &mem);

        CHECK_EQ(err, sizes[i] ? MB_OK : MB_ERR_INVALID);
        if (err)
            continue;
        CHECK_EQ(rt_stats(dev).allocated_bytes, (sizes[i] + page - 1) / page * page);
        RT_OK(mb_mem_release(dev, mem));
    }
    rt_close(dev);
}
