/* SPDX-License-Identifier: MIT */
/*
 * Report 9 of the field (rocm-systems#11693): kernels right after a map read zeros. 300 times 64
 * MiB are mapped, filled and verified on one stream without delay; and again after touching the
 * neighbour first, so that the TLB already holds the group of entries that the map then changes.
 */
#include "support/runtime_rig.h"

enum {
    ROUNDS = 300,
};

static const uint64_t BYTES = 64 * RT_MIB;

static void run(const char *config, bool touch_neighbour)
{
    mb_device dev = rt_open(config);
    mb_stream stream = rt_stream(dev);
    uint64_t page = mb_page_bytes(dev);
    struct mb_map_op op;
    void *base = NULL;
    mb_mem mem, neighbour;
    char *va;

    RT_OK(mb_mem_reserve(dev, BYTES + page, 32 * RT_MIB, &base));
    RT_OK(mb_mem_create(dev, BYTES, &mem));
    RT_OK(mb_mem_create(dev, page, &neighbour));
    va = base;
    op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, page, neighbour, 0, NULL};
    RT_OK(mb_mem_map(dev, &op));
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (touch_neighbour) {
            rt_fill(dev, va, 4096, round, stream);
            rt_verify(dev, va, 4096, round, stream);
        }
        op = (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va + page, BYTES, mem, 0, NULL};
        RT_OK(mb_mem_map_async(dev, &op, 1, stream));
        rt_fill(dev, va + page, BYTES, round, stream);
        rt_verify(dev, va + page, BYTES, round, stream);
        op = (struct mb_map_op){.kind = MB_UNMAP, .va = va + page, .bytes = BYTES};
        RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    }
    op = (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = page};
    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_release(dev, neighbour));
    RT_OK(mb_mem_unreserve(dev, base, BYTES + page));
    rt_close(dev);
}

TEST(use_right_after_map_nvidia)
{
    run("backend:sim,device_memory:1g,model:h200", false);
}

TEST(use_right_after_map_neighbour_cached)
{
    run("backend:sim,device_memory:1g,model:h200", true);
}

TEST(use_right_after_map_fresh)
{
    run("backend:sim,device_memory:1g,model:h200,policy:fresh", true);
}

TEST(use_right_after_map_amd)
{
    run("backend:sim,device_memory:1g,model:mi210", true);
}
