/* SPDX-License-Identifier: MIT */
/*
 * Report 10 of the field (torch_memory_saver#88): the same address got new frames, and
 * registrations of it (NCCL, RDMA) went stale unnoticed. Here: a generation number that grows with
 * each remap, and a hook.
 */
#include "support/runtime_rig.h"

struct seen {
    unsigned calls;
    void *va;
    uint64_t bytes, generation;
};

static void note(void *user, void *va, uint64_t bytes, uint64_t generation)
{
    struct seen *seen = user;

    seen->calls++;
    seen->va = va;
    seen->bytes = bytes;
    seen->generation = generation;
}

static uint64_t generation_at(mb_device dev, const void *va)
{
    struct mb_pointer_info info;

    RT_OK(mb_pointer_info(dev, va, &info));
    return info.generation;
}

TEST(sleep_and_wake_change_the_generation)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    uint64_t page = mb_page_bytes(dev), bytes = 8 * page, before, after;
    struct seen seen = {0};
    struct mb_map_op op;
    void *va = NULL;
    mb_mem mem;

    RT_OK(mb_set_remap_hook(dev, note, &seen));
    RT_OK(mb_mem_reserve(dev, bytes, 0, &va));
    RT_OK(mb_mem_create(dev, bytes, &mem));
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, bytes, mem, 0, NULL};
    RT_OK(mb_mem_map(dev, &op));
    CHECK_EQ(seen.calls, 1);
    before = generation_at(dev, va);
    rt_fill(dev, va, bytes, 1, NULL);
    rt_verify(dev, va, bytes, 1, NULL);

    RT_OK(mb_mem_sleep(dev, va, bytes, NULL));
    CHECK_EQ(rt_stats(dev).requested_bytes, 0);
    RT_OK(mb_mem_wake(dev, va, bytes, NULL));
    after = generation_at(dev, va);
    CHECK(after > before);
    CHECK_EQ(seen.calls, 3);
    CHECK_PTR_EQ(seen.va, va);
    CHECK_EQ(seen.bytes, bytes);
    CHECK_EQ(seen.generation, after);
    rt_fill(dev, va, bytes, 2, NULL);
    rt_verify(dev, va, bytes, 2, NULL);

    op = (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = bytes};
    RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, bytes));
    rt_close(dev);
}

TEST(protect_is_no_remap)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    uint64_t page = mb_page_bytes(dev);
    struct seen seen = {0};
    struct mb_map_op op;
    void *va = NULL;
    mb_mem mem;

    RT_OK(mb_mem_reserve(dev, page, 0, &va));
    RT_OK(mb_mem_create(dev, page, &mem));
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, page, mem, 0, NULL};
    RT_OK(mb_mem_map(dev, &op));
    rt_fill(dev, va, page, 1, NULL);
    RT_OK(mb_set_remap_hook(dev, note, &seen));
    op = (struct mb_map_op){.kind = MB_PROTECT, .prot = MB_PROT_READ, .va = va, .bytes = page};
    RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
    rt_verify(dev, va, page, 1, NULL);
    CHECK_EQ(seen.calls, 0);
    op = (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = page};
    RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, page));
    rt_close(dev);
}
