/* SPDX-License-Identifier: MIT */
/*
 * Report 15 of the field (vllm PR 32, fairseq2 PR 258): beam search copied cache blocks. Width 4,
 * fork at token 1,000: the beams share the pages of the common prefix, and only the page that the
 * fork lies in is copied.
 */
#include "support/runtime_rig.h"

enum {
    WIDTH = 4,
    FORK_TOKEN = 1000,
    TOKENS = 1500,
};

static const uint64_t TOKEN_BYTES = 16384; /* keys and values of one layer group, say */

static struct mb_map_op map_op(void *va, uint64_t bytes, mb_mem mem, uint64_t offset)
{
    return (struct mb_map_op){MB_MAP, MB_PROT_READ_WRITE, va, bytes, mem, offset, NULL};
}

/* One beam: its range shows the prefix of beam 0 and pages of its own behind. */
static void fork_beam(mb_device dev, char *va, const char *first, mb_mem own, uint64_t pages,
                      mb_stream stream)
{
    uint64_t page = mb_page_bytes(dev), prefix = FORK_TOKEN * TOKEN_BYTES / page;
    struct mb_map_op ops[2] = {
        {.kind = MB_ALIAS, .prot = MB_PROT_READ, .va = va, .bytes = prefix * page, .src = first},
        map_op(va + prefix * page, (pages - prefix) * page, own, 0),
    };

    RT_OK(mb_mem_map_async(dev, ops, 2, stream));
    /* The page that the fork lies in: the part that belongs to the prefix. */
    RT_OK(mb_copy_async(dev, va + prefix * page, first + prefix * page,
                        FORK_TOKEN * TOKEN_BYTES - prefix * page, stream));
}

/* One after the other ends; the others keep the prefix alive. */
static void end_beams(mb_device dev, void **va, mb_mem *mem, uint64_t pages, mb_stream stream)
{
    uint64_t bytes = pages * mb_page_bytes(dev);

    for (unsigned i = 0; i < WIDTH; i++) {
        struct mb_map_op op = {.kind = MB_UNMAP, .va = va[i], .bytes = bytes};

        RT_OK(mb_mem_map_async(dev, &op, 1, stream));
        RT_OK(mb_mem_release(dev, mem[i]));
        if (i + 1 < WIDTH)
            RT_OK(mb_verify_async(dev, va[i + 1], FORK_TOKEN * TOKEN_BYTES, rt_seed(va[0], 1),
                                  stream));
        RT_OK(mb_mem_unreserve(dev, va[i], bytes));
    }
}

TEST(beams_share_their_prefix)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    uint64_t page = mb_page_bytes(dev), pages = (TOKENS * TOKEN_BYTES + page - 1) / page;
    uint64_t prefix = FORK_TOKEN * TOKEN_BYTES / page, prefix_bytes = FORK_TOKEN * TOKEN_BYTES;
    struct mb_pointer_info info;
    struct mb_map_op op;
    void *va[WIDTH];
    mb_mem mem[WIDTH];

    for (unsigned i = 0; i < WIDTH; i++)
        RT_OK(mb_mem_reserve(dev, pages * page, 0, &va[i]));
    RT_OK(mb_mem_create(dev, pages * page, &mem[0]));
    op = map_op(va[0], pages * page, mem[0], 0);
    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    rt_fill(dev, va[0], prefix_bytes, 1, stream);

    for (unsigned i = 1; i < WIDTH; i++) {
        RT_OK(mb_mem_create(dev, (pages - prefix) * page, &mem[i]));
        fork_beam(dev, va[i], va[0], mem[i], pages, stream);
    }
    /* Frames: one whole sequence, and three tails. */
    CHECK_EQ(rt_stats(dev).allocated_bytes, (pages + (WIDTH - 1) * (pages - prefix)) * page);
    RT_OK(mb_pointer_info(dev, va[0], &info));
    CHECK_EQ(info.aliases_high, WIDTH);

    /* Each beam reads the common prefix and writes a continuation of its own. */
    for (unsigned i = 0; i < WIDTH; i++) {
        char *tail = (char *)va[i] + prefix_bytes;

        RT_OK(mb_verify_async(dev, va[i], prefix_bytes, rt_seed(va[0], 1), stream));
        rt_fill(dev, tail, (TOKENS - FORK_TOKEN) * TOKEN_BYTES, 10 + i, stream);
    }
    for (unsigned i = 0; i < WIDTH; i++)
        rt_verify(dev, (char *)va[i] + prefix_bytes, (TOKENS - FORK_TOKEN) * TOKEN_BYTES, 10 + i,
                  stream);

    end_beams(dev, va, mem, pages, stream);
    CHECK_EQ(rt_stats(dev).allocated_bytes, 0);
    rt_close(dev);
}

/* The same with the prefix in a block of malloc, freed while the beams still show it. */
TEST(aliases_keep_a_freed_block_alive)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    uint64_t page = mb_page_bytes(dev), bytes = 16 * page;
    char *block = rt_malloc(dev, bytes + page, NULL), *src;
    struct mb_map_op op;
    void *va = NULL, *other;

    src = (char *)(((uintptr_t)block + page - 1) / page * page);
    rt_fill(dev, src, bytes, 1, NULL);
    RT_OK(mb_mem_reserve(dev, bytes, 0, &va));
    op = (struct mb_map_op){
        .kind = MB_ALIAS, .prot = MB_PROT_READ, .va = va, .bytes = bytes, .src = src};
    RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
    RT_OK(mb_free_async(dev, block, NULL));
    other = rt_malloc(dev, bytes + page, NULL);
    rt_fill(dev, other, bytes + page, 2, NULL);
    RT_OK(mb_verify_async(dev, va, bytes, rt_seed(src, 1), NULL));
    op = (struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = bytes};
    RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
    RT_OK(mb_mem_unreserve(dev, va, bytes));
    RT_OK(mb_free_async(dev, other, NULL));
    rt_close(dev);
}
