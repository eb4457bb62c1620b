/* SPDX-License-Identifier: MIT */
/*
 * verify.c - which words of a block are checked, and the calls for it.
 *
 * Ranges depend on the block's address, size and the run's seed only, never on when they are asked
 * for, so what was written can be read in any part. Each range has a seed of its own, made from the
 * block's, since the words of a range are numbered from its start.
 */
#include "verify.h"

#include <string.h>

enum {
    WORD_BYTES = 8,
    EDGE_BYTES = 64,
};

/* Offsets within a block: [0, head) and [tail, end) are the edges, or all of it. */
struct extent {
    uint64_t head, tail, end;
    uint64_t first_page, last_page; /* frames between that get a word: [first, last) */
};

typedef enum mb_err (*range_call)(struct verifier *v, const struct verify_block *block,
                                  uint64_t offset, uint64_t bytes);

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void verifier_init(struct verifier *v, mb_device dev, enum verify_mode mode, uint64_t seed)
{
    memset(v, 0, sizeof(*v));
    v->dev = dev;
    v->mode = mode;
    v->seed = seed;
    v->page_bytes = mb_page_bytes(dev);
    address_tree_init(&v->tree);
}

void verifier_fini(struct verifier *v)
{
    address_tree_fini(&v->tree);
}

static struct extent extent_of(const struct verifier *v, const struct verify_block *block)
{
    struct extent e = {.end = block->bytes & ~(uint64_t)(WORD_BYTES - 1)};

    if (v->mode == VERIFY_FULL || e.end <= 2 * EDGE_BYTES) {
        e.head = e.end;
        e.tail = e.end;
        return e;
    }
    e.head = EDGE_BYTES;
    e.tail = e.end - EDGE_BYTES;
    /* Frames that begin between the edges; the head stands for the first, the tail for the last. */
    e.first_page = (block->va + e.head + v->page_bytes - 1) / v->page_bytes;
    e.last_page = (block->va + e.tail - WORD_BYTES) / v->page_bytes + 1;
    return e;
}

/* Where frame `page` has its word, as an offset into the block: anywhere in the part before the
 * tail. */
static uint64_t word_offset(const struct verifier *v, const struct verify_block *block,
                            const struct extent *e, uint64_t page)
{
    uint64_t begin = page * v->page_bytes - block->va;
    uint64_t end = begin + v->page_bytes < e->tail ? begin + v->page_bytes : e->tail;
    uint64_t words = (end - begin) / WORD_BYTES;

    return begin + mix(v->seed ^ page) % words * WORD_BYTES;
}

static uint64_t range_seed(const struct verify_block *block, uint64_t offset)
{
    return mix(block->seed + offset * 0x9e3779b97f4a7c15u);
}

static enum mb_err write_range(struct verifier *v, const struct verify_block *block,
                               uint64_t offset, uint64_t bytes)
{
    v->writes++;
    v->bytes_written += bytes;
    return mb_fill_async(v->dev, (void *)(uintptr_t)(block->va + offset), bytes,
                         range_seed(block, offset), block->present);
}

static enum mb_err read_range(struct verifier *v, const struct verify_block *block, uint64_t offset,
                              uint64_t bytes)
{
    v->reads++;
    v->bytes_read += bytes;
    return mb_verify_async(v->dev, (const void *)(uintptr_t)(block->va + offset), bytes,
                           range_seed(block, offset), block->present);
}

static enum mb_err for_edges(struct verifier *v, const struct verify_block *block,
                             const struct extent *e, range_call call)
{
    enum mb_err err = MB_OK;

    if (e->head)
        err = call(v, block, 0, e->head);
    if (!err && e->tail < e->end)
        err = call(v, block, e->tail, e->end - e->tail);
    return err;
}

static enum mb_err for_all(struct verifier *v, const struct verify_block *block, range_call call)
{
    struct extent e = extent_of(v, block);
    enum mb_err err = for_edges(v, block, &e, call);

    for (uint64_t page = e.first_page; !err && page < e.last_page; page++)
        err = call(v, block, word_offset(v, block, &e, page), WORD_BYTES);
    return err;
}

enum mb_err verifier_write(struct verifier *v, struct verify_block *block)
{
    block->seed = mix(block->seed + 1);
    return for_all(v, block, write_range);
}

enum mb_err verifier_read(struct verifier *v, const struct verify_block *block)
{
    return for_all(v, block, read_range);
}

enum mb_err verifier_sample(struct verifier *v, const struct verify_block *block, uint64_t random)
{
    struct extent e = extent_of(v, block);
    enum mb_err err = for_edges(v, block, &e, read_range);
    uint64_t pages = e.last_page - e.first_page;

    for (unsigned i = 0; i < 2 && !err && pages; i++) {
        uint64_t page = e.first_page + mix(random + i) % pages;

        err = read_range(v, block, word_offset(v, block, &e, page), WORD_BYTES);
    }
    return err;
}

enum mb_err verifier_add(struct verifier *v, uint32_t slot, struct verify_block *block)
{
    if (block->bytes < WORD_BYTES)
        v->blocks_unchecked++;
    if (!address_tree_insert(&v->tree, slot, block->va))
        return MB_ERR_HOST_MEMORY;
    block->seed = mix(v->seed + block->va + mix(slot));
    return verifier_write(v, block);
}

enum mb_err verifier_read_neighbours(struct verifier *v, uint32_t slot,
                                     const struct verify_block *blocks)
{
    uint32_t below;
    uint32_t above;
    enum mb_err err = MB_OK;

    address_tree_neighbours(&v->tree, blocks[slot].va, &below, &above);
    /* In FULL mode a block is one range, which can only be read as a whole. */
    if (below != ADDRESS_TREE_NONE) {
        struct extent e = extent_of(v, &blocks[below]);

        if (e.tail < e.end)
            err = read_range(v, &blocks[below], e.tail, e.end - e.tail);
        else if (e.head && v->mode != VERIFY_FULL)
            err = read_range(v, &blocks[below], 0, e.head);
    }
    if (!err && above != ADDRESS_TREE_NONE) {
        struct extent e = extent_of(v, &blocks[above]);

        if (e.head && v->mode != VERIFY_FULL)
            err = read_range(v, &blocks[above], 0, e.head);
    }
    return err;
}

void verifier_remove(struct verifier *v, uint32_t slot)
{
    address_tree_remove(&v->tree, slot);
}
