/* SPDX-License-Identifier: MIT */
/*
 * torch_expandable.c - expandable segments: address space for more than the whole device, per
 * stream and pool, into which memory is mapped in granules of 2 MiB (small pool) or 20 MiB (large
 * pool) as it is needed, and unmapped where whole granules are free when memory runs out.
 */
#include "torch.h"

#include <stdlib.h>

/* Owner: the torch model; freed when all of it is unmapped, and with the model. */
struct model_segment {
    struct model_segment *next;
    uint64_t address;
    uint64_t bytes;   /* of address space */
    uint64_t granule; /* bytes of one handle */
};

/* ------------------------------------------------------------------ segments */

static enum model_status add_segment(struct torch *torch, const struct torch_request *request,
                                     struct model_block **out)
{
    struct model *m = &torch->base;
    struct model_segment *segment = malloc(sizeof(*segment));
    struct model_block *block = segment ? model_block_new(m) : NULL;

    if (!block) {
        free(segment);
        return MODEL_HOST_MEMORY;
    }
    segment->granule = request->pool == TORCH_SMALL ? TORCH_SMALL_SEGMENT : TORCH_LARGE_SEGMENT;
    /* One eighth more than the device has, so that holes in front do not matter at once. */
    segment->bytes = model_round(m->limit_bytes + m->limit_bytes / 8, segment->granule);
    segment->address = model_driver_address(m, segment->bytes);
    segment->next = torch->segments;
    torch->segments = segment;
    m->stats.driver_reserves++;

    block->address = segment->address;
    block->bytes = segment->bytes;
    block->stream = request->stream;
    block->pool = (uint16_t)request->pool;
    block->segment = segment;
    model_set_insert(&torch->pools[request->pool].unmapped, block);
    *out = block;
    return MODEL_OK;
}

/* `block` is all of its segment and unmapped. */
static void remove_segment(struct torch *torch, struct model_block *block)
{
    struct model_segment **link = &torch->segments;

    while (*link != block->segment)
        link = &(*link)->next;
    *link = block->segment->next;
    free(block->segment);
    model_set_remove(block);
    model_block_delete(&torch->base, block);
    torch->base.stats.driver_reserves++;
}

void torch_close_segments(struct torch *torch)
{
    while (torch->segments) {
        struct model_segment *segment = torch->segments;

        torch->segments = segment->next;
        free(segment);
    }
}

/* ------------------------------------------------------------------ mapping */

/* Whether the blocks from `block` on, up to the first one in use, have `bytes`. */
static bool has_room(const struct model_block *block, uint64_t bytes)
{
    uint64_t found = 0;

    for (; found < bytes && torch_unused(block); block = block->next)
        found += block->bytes;
    return found >= bytes;
}

/*
 * The lowest place of the stream's segments with room for the request: an unmapped block, or the
 * free block before it.
 */
static enum model_status find_place(struct torch *torch, const struct torch_request *request,
                                    struct model_block **out)
{
    struct model_set *unmapped = &torch->pools[request->pool].unmapped;
    struct model_block key = {.stream = request->stream};
    struct model_block *block = model_set_find(unmapped, &key);

    torch->base.stats.searches++;
    for (; block && block->stream == request->stream; block = model_set_next(block)) {
        struct model_block *start = torch_unused(block->prev) ? block->prev : block;

        torch->base.stats.search_steps++;
        if (has_room(start, request->bytes)) {
            *out = start;
            return MODEL_OK;
        }
    }
    return add_segment(torch, request, out);
}

/*
 * Maps the first `bytes` of an unmapped block, rounded up to granules. On success *block is the
 * free block that holds them, merged with its free neighbours, in the pool.
 */
static enum model_status map(struct torch *torch, struct model_block **block, uint64_t bytes)
{
    struct model *m = &torch->base;
    struct model_block *b = *block;
    struct torch_pool *pool = &torch->pools[b->pool];
    uint64_t granule = b->segment->granule;
    uint64_t mapped = model_round(bytes, granule);
    uint64_t handles = mapped / granule;

    if (!model_driver_fits(m, mapped)) {
        /* As many handles as there is memory for are made, and given back. */
        uint64_t made = (m->limit_bytes - m->stats.reserved_bytes) / granule;

        m->stats.driver_allocs += made;
        m->stats.driver_frees += made;
        return MODEL_NO_MEMORY;
    }
    model_set_remove(b);
    if (mapped < b->bytes) {
        struct model_block *rest = model_block_after(m, b, b->address + mapped, b->bytes - mapped);

        if (!rest)
            return MODEL_HOST_MEMORY;
        b->bytes = mapped;
        model_set_insert(&pool->unmapped, rest);
    }
    b->mapped = true;
    b = torch_coalesce(torch, b);
    b->stamp = pool->searches;
    model_set_insert(&pool->free, b);
    m->stats.driver_allocs += handles;
    m->stats.driver_maps += handles;
    m->stats.driver_access++;
    model_driver_take(m, mapped, b->stream);
    *block = b;
    return MODEL_OK;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

enum model_status torch_expand(struct torch *torch, const struct torch_request *request,
                               struct model_block **out)
{
    struct model_block *block;

    MODEL_TRY(find_place(torch, request, &block));
    if (!block->mapped)
        MODEL_TRY(map(torch, &block, smaller(block->bytes, request->bytes)));
    /* Now a free block, and behind it an unmapped one while it is too small. */
    while (block->bytes < request->bytes) {
        uint64_t missing = request->bytes - block->bytes;

        block = block->next;
        MODEL_TRY(map(torch, &block, smaller(block->bytes, missing)));
    }
    model_set_remove(block);
    *out = block;
    return MODEL_OK;
}

/* ------------------------------------------------------------------ unmapping */

/* Cuts the free block `b`, in no set, so that `*middle` is the part from `begin` to `end`. */
static enum model_status cut_out(struct torch *torch, struct model_block *b, uint64_t begin,
                                 uint64_t end, struct model_block **middle)
{
    struct model *m = &torch->base;
    struct model_set *set = &torch->pools[b->pool].free;
    struct model_block *front = NULL;

    if (begin > b->address) {
        front = b;
        b = model_block_after(m, front, begin, front->address + front->bytes - begin);
        if (!b)
            return MODEL_HOST_MEMORY;
        front->bytes = begin - front->address;
        model_set_insert(set, front);
    }
    if (end < b->address + b->bytes) {
        struct model_block *back = model_block_after(m, b, end, b->address + b->bytes - end);

        if (!back)
            return MODEL_HOST_MEMORY;
        b->bytes = end - b->address;
        model_set_insert(set, back);
    }
    *middle = b;
    return MODEL_OK;
}

static enum model_status unmap(struct torch *torch, struct model_block *block)
{
    struct model *m = &torch->base;
    const struct model_segment *segment = block->segment;
    uint64_t from = block->address - segment->address;
    uint64_t begin = model_round(from, segment->granule);
    uint64_t end = (from + block->bytes) / segment->granule * segment->granule;
    uint64_t handles;

    if (begin >= end)
        return MODEL_OK;
    handles = (end - begin) / segment->granule;
    model_set_remove(block);
    MODEL_TRY(cut_out(torch, block, segment->address + begin, segment->address + end, &block));
    block->mapped = false;
    m->stats.waits++; /* the stream must have left the pages */
    m->stats.driver_unmaps += handles;
    m->stats.driver_frees += handles;
    model_driver_give(m, end - begin, block->stream);
    block = torch_coalesce(torch, block);
    model_set_insert(&torch->pools[block->pool].unmapped, block);
    if (!block->prev && !block->next)
        remove_segment(torch, block);
    return MODEL_OK;
}

enum model_status torch_shrink(struct torch *torch, struct torch_pool *pool)
{
    struct model_block *first = NULL;
    struct model_block **last = &first;

    /* Unmapping changes the set, so the blocks are listed before. */
    for (struct model_block *b = model_set_first(&pool->free); b; b = model_set_next(b)) {
        *last = b;
        last = &b->queued;
    }
    *last = NULL;
    while (first) {
        struct model_block *block = first;

        first = block->queued;
        MODEL_TRY(unmap(torch, block));
    }
    return MODEL_OK;
}

/* ------------------------------------------------------------------ checks */

static bool check_segment(const struct torch *torch, const struct model_segment *segment,
                          uint64_t *mapped, char *problem, size_t size)
{
    uint64_t covered = 0;

    for (unsigned i = 0; i < TORCH_POOLS; i++) {
        const struct model_set *unmapped = &torch->pools[i].unmapped;

        for (struct model_block *b = model_set_first(unmapped); b; b = model_set_next(b)) {
            if (b->segment != segment)
                continue;
            if (b->mapped || (b->address - segment->address) % segment->granule ||
                b->bytes % segment->granule)
                return model_broken(problem, size, "an unmapped block is not made of granules");
            covered += b->bytes;
        }
    }
    *mapped += segment->bytes - covered;
    return true;
}

bool torch_check_segments(const struct torch *torch, char *problem, size_t size)
{
    uint64_t mapped = 0;

    if (!torch->expandable)
        return true;
    for (const struct model_segment *s = torch->segments; s; s = s->next)
        if (!check_segment(torch, s, &mapped, problem, size))
            return false;
    if (mapped != torch->base.stats.reserved_bytes)
        return model_broken(problem, size, "the segments' mapped bytes are not reserved bytes");
    return true;
}
