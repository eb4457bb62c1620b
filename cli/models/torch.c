/* SPDX-License-Identifier: MIT */
/*
 * torch.c - PyTorch's caching allocator: policies torch-caching and torch-expandable.
 *
 * A request is rounded to 512 bytes and served by the smallest cached block of its stream and pool;
 * what is left over is split off when it is large enough to be of use. Without such a block the
 * driver is asked for a segment, or, with expandable segments, for pages at the end of one that is
 * there. When the driver refuses, cached memory goes back to it and the request is tried again.
 *
 * Simplification: where PyTorch asks an event whether a stream has come past it, the model takes
 * the work of a stream for done `lag` events after it was given.
 */
#include "torch.h"

#include <stdio.h>
#include <string.h>

static struct torch *torch_of(struct model *model)
{
    return (struct torch *)(void *)model;
}

static bool is_split(const struct model_block *block)
{
    return block->prev || block->next;
}

bool torch_unused(const struct model_block *block)
{
    return block && !block->live && !block->waiting;
}

/* ------------------------------------------------------------------ sizes */

static uint64_t floor_power(uint64_t value)
{
    return (uint64_t)1 << (63 - __builtin_clzll(value));
}

static uint64_t round_request(const struct torch *torch, uint64_t bytes)
{
    uint64_t n = torch->divisions;

    if (bytes < TORCH_MIN_BLOCK)
        return TORCH_MIN_BLOCK;
    if (n > 1 && bytes > TORCH_MIN_BLOCK * n) {
        uint64_t step = floor_power(bytes) / n;

        return model_round(bytes, step);
    }
    return model_round(bytes, TORCH_MIN_BLOCK);
}

static uint64_t segment_bytes(uint64_t bytes)
{
    if (bytes <= TORCH_SMALL_MAX)
        return TORCH_SMALL_SEGMENT;
    if (bytes < TORCH_MIN_LARGE)
        return TORCH_LARGE_SEGMENT;
    return model_round(bytes, TORCH_LARGE_ROUND);
}

static bool worth_splitting(const struct torch *torch, const struct model_block *block,
                            uint64_t bytes)
{
    uint64_t rest = block->bytes - bytes;

    if (block->pool == TORCH_SMALL || torch->expandable)
        return rest >= TORCH_MIN_BLOCK;
    return bytes < torch->max_split_bytes && rest > TORCH_SMALL_MAX;
}

/* ------------------------------------------------------------------ the cache */

struct model_block *torch_coalesce(struct torch *torch, struct model_block *block)
{
    if (torch_unused(block->next) && block->next->mapped == block->mapped) {
        model_set_remove(block->next);
        model_block_merge_next(&torch->base, block);
    }
    if (torch_unused(block->prev) && block->prev->mapped == block->mapped) {
        block = block->prev;
        model_set_remove(block);
        model_block_merge_next(&torch->base, block);
    }
    return block;
}

void torch_insert(struct torch *torch, struct model_block *block)
{
    struct torch_pool *pool = &torch->pools[block->pool];

    block = torch_coalesce(torch, block);
    block->stamp = pool->searches;
    model_set_insert(&pool->free, block);
}

/* An expandable segment's last block counts with the address space behind it: it is taken last. */
static uint64_t room(const struct model_block *block)
{
    return block->bytes + (block->next && !block->next->mapped ? block->next->bytes : 0);
}

static struct model_block *take_free(struct torch *torch, const struct torch_request *request)
{
    struct torch_pool *pool = &torch->pools[request->pool];
    struct model_block key = {.bytes = request->bytes, .stream = request->stream};
    struct model_block *block = model_set_find(&pool->free, &key);

    pool->searches++;
    torch->base.stats.searches++;
    if (!block || block->stream != request->stream)
        return NULL;
    while (torch->expandable) {
        struct model_block *next = model_set_next(block);

        if (!next || next->stream != request->stream || room(next) >= room(block))
            break;
        torch->base.stats.search_steps++;
        block = next;
    }
    if (request->bytes < torch->max_split_bytes && block->bytes >= torch->max_split_bytes)
        return NULL;
    if (request->bytes >= torch->max_split_bytes &&
        block->bytes - request->bytes >= torch->max_rounding_bytes)
        return NULL;
    model_set_remove(block);
    return block;
}

static void put_back(struct torch *torch, struct model_block *block)
{
    block->shared = false;
    torch_insert(torch, block);
}

/* Blocks whose recorded streams have come past their free; all of them if `all`. */
static void end_waits(struct torch *torch, bool all)
{
    while (torch->waiting_first) {
        struct model_block *block = torch->waiting_first;

        if (!all && torch->base.now - block->stamp < torch->lag)
            return;
        torch->waiting_first = block->queued;
        torch->waiting_bytes -= block->bytes;
        block->waiting = false;
        put_back(torch, block);
    }
}

/* ------------------------------------------------------------------ segments by cudaMalloc */

static enum model_status grow(struct torch *torch, const struct torch_request *request,
                              struct model_block **out)
{
    struct model *m = &torch->base;
    uint64_t bytes = segment_bytes(request->bytes);
    struct model_block *block;

    if (torch->expandable)
        return torch_expand(torch, request, out);
    if (!model_driver_fits(m, bytes))
        return MODEL_NO_MEMORY;
    block = model_block_new(m);
    if (!block)
        return MODEL_HOST_MEMORY;
    block->address = model_driver_address(m, bytes);
    block->bytes = bytes;
    block->stream = request->stream;
    block->pool = (uint16_t)request->pool;
    block->mapped = true;
    m->stats.driver_allocs++;
    model_driver_take(m, bytes, request->stream);
    *out = block;
    return MODEL_OK;
}

/* The block is a whole segment. */
static void release(struct torch *torch, struct model_block *block)
{
    struct model *m = &torch->base;

    model_set_remove(block);
    m->stats.driver_frees++;
    m->stats.waits++; /* cudaFree waits for the device */
    model_driver_give(m, block->bytes, block->stream);
    model_block_delete(m, block);
}

static enum model_status release_pool(struct torch *torch, struct torch_pool *pool)
{
    struct model_block *next;

    if (torch->expandable)
        return torch_shrink(torch, pool);
    for (struct model_block *block = model_set_first(&pool->free); block; block = next) {
        next = model_set_next(block);
        if (!is_split(block))
            release(torch, block);
    }
    return MODEL_OK;
}

static enum model_status release_all(struct torch *torch)
{
    torch->base.stats.waits++;
    end_waits(torch, true);
    MODEL_TRY(release_pool(torch, &torch->pools[TORCH_LARGE]));
    return release_pool(torch, &torch->pools[TORCH_SMALL]);
}

/*
 * With a bound on splitting, oversize blocks sit unused by smaller requests: one that is as large
 * as the request goes back, or several smaller ones, largest first. false if that is not enough.
 */
static bool release_oversize(struct torch *torch, const struct torch_request *request)
{
    struct model_set *set = &torch->pools[request->pool].free;
    struct model_block key = {.bytes = request->bytes, .stream = request->stream};
    struct model_block *block;
    uint64_t released = 0;

    if (torch->max_split_bytes == UINT64_MAX || torch->expandable)
        return false;
    if (key.bytes < torch->max_split_bytes)
        key.bytes = torch->max_split_bytes;
    block = model_set_find(set, &key);
    if (block && block->stream == key.stream && !is_split(block)) {
        release(torch, block);
        return true;
    }
    while (released < key.bytes) {
        block = model_set_below(set, &key);
        if (!block || block->stream != key.stream || block->bytes < torch->max_split_bytes ||
            is_split(block))
            return false;
        released += block->bytes;
        release(torch, block);
    }
    return true;
}

/*
 * Unsplit large blocks that have not been used for longer than the average go back to the driver.
 */
static void collect_garbage(struct torch *torch)
{
    struct torch_pool *pool = &torch->pools[TORCH_LARGE];
    const struct model_stats *stats = &torch->base.stats;
    uint64_t threshold = (uint64_t)(torch->gc_threshold * (double)torch->base.limit_bytes);
    uint64_t age = 0;
    uint64_t count = 0;
    uint64_t start = stats->reserved_bytes;
    bool freed = true;

    if (torch->gc_threshold <= 0 || torch->expandable || start <= threshold)
        return;
    for (struct model_block *b = model_set_first(&pool->free); b; b = model_set_next(b)) {
        if (!is_split(b)) {
            age += pool->searches - b->stamp;
            count++;
        }
    }
    while (stats->reserved_bytes > threshold && freed && count) {
        double limit = (double)age / (double)count;
        struct model_block *next;

        freed = false;
        for (struct model_block *b = model_set_first(&pool->free); b; b = next) {
            uint64_t own = pool->searches - b->stamp;

            next = model_set_next(b);
            if (is_split(b) || (double)own < limit)
                continue;
            freed = true;
            age -= own;
            count--;
            release(torch, b);
        }
    }
}

/* ------------------------------------------------------------------ the policy */

static enum model_status obtain(struct torch *torch, const struct torch_request *request,
                                struct model_block **out)
{
    enum model_status status;

    *out = take_free(torch, request);
    if (*out)
        return MODEL_OK;
    collect_garbage(torch);
    status = grow(torch, request, out);
    if (status == MODEL_NO_MEMORY && release_oversize(torch, request))
        status = grow(torch, request, out);
    if (status == MODEL_NO_MEMORY) {
        MODEL_TRY(release_all(torch));
        torch->base.stats.retries++;
        status = grow(torch, request, out);
    }
    return status;
}

static enum model_status torch_alloc(struct model *model, uint64_t bytes, uint32_t stream,
                                     struct model_block **out)
{
    struct torch *torch = torch_of(model);
    struct torch_request request = {.bytes = round_request(torch, bytes), .stream = stream};
    struct model_block *block;

    request.pool = request.bytes <= TORCH_SMALL_MAX ? TORCH_SMALL : TORCH_LARGE;
    end_waits(torch, false);
    MODEL_TRY(obtain(torch, &request, &block));
    if (worth_splitting(torch, block, request.bytes)) {
        struct model_block *rest = model_block_split(model, block, request.bytes);

        if (!rest)
            return MODEL_HOST_MEMORY;
        rest->stamp = torch->pools[rest->pool].searches;
        model_set_insert(&torch->pools[rest->pool].free, rest);
    }
    *out = block;
    return MODEL_OK;
}

/* The block goes back to its own stream, whichever stream the free is called on. */
static enum model_status torch_free(struct model *model, struct model_block *block, uint32_t stream)
{
    struct torch *torch = torch_of(model);

    (void)stream;
    if (!block->shared) {
        put_back(torch, block);
        return MODEL_OK;
    }
    block->waiting = true;
    block->stamp = model->now;
    block->queued = NULL;
    if (torch->waiting_first)
        torch->waiting_last->queued = block;
    else
        torch->waiting_first = block;
    torch->waiting_last = block;
    torch->waiting_bytes += block->bytes;
    return MODEL_OK;
}

static enum model_status torch_sync(struct model *model)
{
    end_waits(torch_of(model), true);
    return MODEL_OK;
}

static enum model_status torch_trim(struct model *model)
{
    return release_all(torch_of(model));
}

static bool check_pool(const struct torch *torch, unsigned number, char *problem, size_t size)
{
    const struct torch_pool *pool = &torch->pools[number];

    for (struct model_block *b = model_set_first(&pool->free); b; b = model_set_next(b)) {
        const struct model_block *first = b;

        while (first->prev)
            first = first->prev;
        if (!model_check_chain(first, problem, size))
            return false;
        if (b->pool != number || !b->mapped)
            return model_broken(problem, size, "a free block is in the wrong pool");
        if (torch_unused(b->next) && b->next->mapped)
            return model_broken(problem, size, "two free neighbours are not merged");
    }
    return true;
}

static bool torch_check(const struct model *model, char *problem, size_t size)
{
    const struct torch *torch = (const void *)model;
    uint64_t free_bytes = 0;

    for (unsigned i = 0; i < TORCH_POOLS; i++) {
        free_bytes += torch->pools[i].free.bytes;
        if (!check_pool(torch, i, problem, size))
            return false;
    }
    if (model->stats.granted_bytes + torch->waiting_bytes + free_bytes !=
        model->stats.reserved_bytes)
        return model_broken(problem, size, "granted + waiting + free is not reserved");
    return torch_check_segments(torch, problem, size);
}

static void torch_close(struct model *model)
{
    torch_close_segments(torch_of(model));
}

static void torch_defaults(struct model *model)
{
    struct torch *torch = torch_of(model);

    torch->max_split_bytes = UINT64_MAX;
    torch->max_rounding_bytes = TORCH_LARGE_SEGMENT;
    for (unsigned i = 0; i < TORCH_POOLS; i++) {
        torch->pools[i].free.order = model_by_size;
        torch->pools[i].unmapped.order = model_by_address;
    }
}

static void expandable_defaults(struct model *model)
{
    torch_defaults(model);
    torch_of(model)->expandable = true;
}

static bool torch_configure(struct model *model, char *error, size_t error_size)
{
    const struct torch *torch = torch_of(model);

    if (torch->max_split_bytes <= TORCH_LARGE_SEGMENT) {
        snprintf(error, error_size,
                 "max_split_size is %lu bytes; expected more than 20MiB, as PyTorch demands",
                 (unsigned long)torch->max_split_bytes);
        return false;
    }
    if (torch->divisions & (torch->divisions - (torch->divisions > 0)) || torch->divisions > 64) {
        snprintf(error, error_size,
                 "roundup_power2_divisions is %lu; expected a power of two up to 64, or 0",
                 (unsigned long)torch->divisions);
        return false;
    }
    return true;
}

static const struct model_option torch_options[] = {
    {"max_split_size", MODEL_BYTES, offsetof(struct torch, max_split_bytes)},
    {"max_non_split_rounding", MODEL_BYTES, offsetof(struct torch, max_rounding_bytes)},
    {"garbage_collection_threshold", MODEL_FRACTION, offsetof(struct torch, gc_threshold)},
    {"roundup_power2_divisions", MODEL_NUMBER, offsetof(struct torch, divisions)},
    {"lag", MODEL_NUMBER, offsetof(struct torch, lag)},
    {.name = NULL},
};

#define TORCH_OPTIONS                                                                              \
    "max_split_size:BYTES (max), max_non_split_rounding:BYTES (20MiB), "                           \
    "garbage_collection_threshold:0..1 (0), roundup_power2_divisions:N (0), lag:EVENTS (0)"

const struct model_ops model_torch_caching = {
    .info = {.name = "torch-caching",
             .summary = "PyTorch's caching allocator, default settings",
             .options = TORCH_OPTIONS},
    .size = sizeof(struct torch),
    .block_size = sizeof(struct model_block),
    .options = torch_options,
    .defaults = torch_defaults,
    .configure = torch_configure,
    .alloc = torch_alloc,
    .free = torch_free,
    .sync = torch_sync,
    .trim = torch_trim,
    .check = torch_check,
    .close = torch_close,
};

const struct model_ops model_torch_expandable = {
    .info = {.name = "torch-expandable",
             .summary = "the same with expandable segments",
             .options = TORCH_OPTIONS},
    .size = sizeof(struct torch),
    .block_size = sizeof(struct model_block),
    .options = torch_options,
    .defaults = expandable_defaults,
    .configure = torch_configure,
    .alloc = torch_alloc,
    .free = torch_free,
    .sync = torch_sync,
    .trim = torch_trim,
    .check = torch_check,
    .close = torch_close,
};
