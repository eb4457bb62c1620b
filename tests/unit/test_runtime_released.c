/* SPDX-License-Identifier: MIT */
/*
 * A memory object whose handle was released lives as long as a page shows it, also within a batch.
 */
#include "support/runtime_rig.h"

static struct mb_map_op map_op(char *va, mb_mem mem, uint64_t page)
{
    return (struct mb_map_op){
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = va, .bytes = page, .mem = mem};
}

static struct mb_map_op unmap_op(char *va, uint64_t page)
{
    return (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = page};
}

/* Its last page goes in the middle of a batch, behind which stands a page that showed it only
 * meanwhile. */
TEST(a_released_object_goes_in_the_middle_of_a_batch)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    uint64_t page = mb_page_bytes(dev);
    mb_stream stream = rt_stream(dev);
    struct mb_map_op ops[4];
    mb_mem mem, other;
    void *va = NULL;
    char *a, *b, *c;

    RT_OK(mb_mem_reserve(dev, 8 * page, 0, &va));
    a = va;
    b = a + 4 * page;
    c = a + 2 * page;
    RT_OK(mb_mem_create(dev, page, &mem));
    RT_OK(mb_mem_create(dev, page, &other));
    ops[0] = map_op(a, mem, page);
    ops[1] = map_op(c, other, page);
    RT_OK(mb_mem_map_async(dev, ops, 2, stream));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_release(dev, other));
    CHECK_EQ(rt_stats(dev).allocated_bytes, 2 * page);
    ops[0] = (struct mb_map_op){
        .kind = MB_ALIAS, .prot = MB_PROT_READ, .va = b, .bytes = page, .src = a};
    ops[1] = unmap_op(a, page);
    ops[2] = unmap_op(c, page);
    ops[3] = unmap_op(b, page);
    RT_OK(mb_mem_map_async(dev, ops, 4, stream));
    RT_OK(mb_check(dev));
    CHECK_EQ(rt_stats(dev).allocated_bytes, 0);
    RT_OK(mb_mem_unreserve(dev, va, 8 * page));
    rt_close(dev);
}
