/* SPDX-License-Identifier: MIT */
/*
 * Report 8 of the field (kvcached PR 465): rewriting a live entry faulted. A kernel reads one page
 * again and again while its neighbours under the same directory entry are mapped, unmapped and
 * mapped elsewhere.
 */
#include "support/runtime_rig.h"

enum {
    PAGES = 64,
    ROUNDS = 200,
};

static struct mb_map_op map_page(char *va, uint64_t page, unsigned slot, mb_mem mem, unsigned frame)
{
    return (struct mb_map_op){.kind = MB_MAP,
                              .prot = MB_PROT_READ_WRITE,
                              .va = va + slot * page,
                              .bytes = page,
                              .mem = mem,
                              .mem_offset = frame * page};
}

static struct mb_map_op unmap_page(char *va, uint64_t page, unsigned slot)
{
    return (struct mb_map_op){.kind = MB_UNMAP, .va = va + slot * page, .bytes = page};
}

TEST(readers_are_not_disturbed_by_their_neighbours)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream reader = rt_stream(dev), mapper = rt_stream(dev);
    uint64_t page = mb_page_bytes(dev), state = mb_test_seed();
    struct mb_map_op op;
    void *base = NULL;
    char *va;
    mb_mem mem;

    RT_OK(mb_mem_reserve(dev, PAGES * page, 0, &base));
    RT_OK(mb_mem_create(dev, PAGES * page, &mem));
    va = base;
    op = map_page(va, page, 5, mem, 0);
    RT_OK(mb_mem_map(dev, &op));
    rt_fill(dev, va + 5 * page, page, 1, reader);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned slot = 6 + (unsigned)mb_test_random_below(&state, PAGES - 6);
        unsigned frame = 1 + (unsigned)mb_test_random_below(&state, PAGES - 1);

        rt_verify(dev, va + 5 * page, page, 1, reader);
        op = map_page(va, page, slot, mem, frame);
        RT_OK(mb_mem_map_async(dev, &op, 1, mapper));
        rt_fill(dev, va + slot * page, 4096, round, mapper);
        rt_verify(dev, va + slot * page, 4096, round, mapper);
        op = unmap_page(va, page, slot);
        RT_OK(mb_mem_map_async(dev, &op, 1, mapper));
    }
    RT_OK(mb_device_sync(dev));
    op = unmap_page(va, page, 5);
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, base, PAGES * page));
    rt_close(dev);
}
