/* SPDX-License-Identifier: MIT */
/*
 * Report 6 of the field (pytorch#186213): each import reserved addresses that never came back,
 * until there were none. Here: more addresses than a GPU has are handed out in all, and recycling
 * keeps up. The long form of it is test_slow_06_addresses.c.
 */
#include "support/runtime_rig.h"

/* Reserves, maps a page at each end, uses it, and lets go. */
static void use_range(mb_device dev, mb_mem mem, uint64_t bytes, uint64_t number, mb_stream stream)
{
    uint64_t page = mb_page_bytes(dev);
    void *va = NULL;
    struct mb_map_op ops[2];

    RT_OK(mb_mem_reserve(dev, bytes, 0, &va));
    for (unsigned i = 0; i < 2; i++)
        ops[i] = (struct mb_map_op){.kind = MB_MAP,
                                    .prot = MB_PROT_READ_WRITE,
                                    .va = (char *)va + i * (bytes - page),
                                    .bytes = page,
                                    .mem = mem,
                                    .mem_offset = i * page};
    RT_OK(mb_mem_map_async(dev, ops, 2, stream));
    for (unsigned i = 0; i < 2; i++) {
        rt_fill(dev, ops[i].va, 4096, number + i, stream);
        rt_verify(dev, ops[i].va, 4096, number + i, stream);
        ops[i] = (struct mb_map_op){.kind = MB_UNMAP, .va = ops[i].va, .bytes = page};
    }
    RT_OK(mb_mem_map_async(dev, ops, 2, stream));
    RT_OK(mb_mem_unreserve(dev, va, bytes));
}

static void hand_out(const char *config, uint64_t total)
{
    mb_device dev = rt_open(config);
    uint64_t page = mb_page_bytes(dev), bytes = 64 * RT_GIB, round = 0;
    mb_mem mem;

    RT_OK(mb_mem_create(dev, 2 * page, &mem));
    while (rt_stats(dev).va_handed_out_bytes < total)
        use_range(dev, mem, bytes, round++, NULL);
    RT_OK(mb_mem_release(dev, mem));
    rt_clean(dev);
    CHECK_EQ(rt_stats(dev).requested_bytes, 0);
    mb_close(dev);
}

TEST(recycling_keeps_up_inline)
{
    hand_out("backend:sim,device_memory:1g,policy:inline", 16 * 1024 * RT_GIB);
}

TEST(recycling_keeps_up_fresh)
{
    hand_out("backend:sim,device_memory:1g,policy:fresh", 16 * 1024 * RT_GIB);
}
