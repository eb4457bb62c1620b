/* SPDX-License-Identifier: MIT */
/*
 * cuda_async.c - a pool like that of cudaMallocAsync: policy cuda-async.
 *
 * The driver's pool is closed; the model follows what NVIDIA documents and what shows from outside:
 * it grows by multiples of 32 MiB, aligns to 512 bytes, reuses a block in stream order, across
 * streams where an event orders them or the free has completed, and gives memory back when the
 * program waits for the device and more than the release threshold is held. Which free block the
 * driver prefers and whether it merges chunks is not documented: the model takes the smallest that
 * fits and merges within a chunk.
 *
 * Simplification: the work of a stream is done `lag` events after it was given.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define POOL_CHUNK ((uint64_t)32 << 20)
#define POOL_ALIGN ((uint64_t)512)

/*
 * block->stream and block->stamp of a free block: where and when it was freed. Neighbours merge
 * when one point in one stream, or the passing of time, makes both usable.
 */
struct pool {
    struct model base;
    struct model_set free; /* by stream, size, address */
    uint64_t *order;       /* streams * streams: [s][t] time up to which s comes after t; owned */
    uint32_t streams;

    /* Options. */
    uint64_t release_threshold;
    uint64_t lag;
    bool follow_events, opportunistic, internal_deps;
};

static struct pool *pool_of(struct model *model)
{
    return (struct pool *)(void *)model;
}

/* ------------------------------------------------------------------ order of streams */

static enum model_status know_stream(struct pool *pool, uint32_t stream)
{
    uint32_t count = pool->streams ? pool->streams : 4;
    uint64_t *grown;

    if (stream < pool->streams)
        return MODEL_OK;
    while (count <= stream)
        count *= 2;
    grown = calloc((size_t)count * count, sizeof(*grown));
    if (!grown)
        return MODEL_HOST_MEMORY;
    for (uint32_t s = 0; s < pool->streams; s++)
        memcpy(grown + (size_t)s * count, pool->order + (size_t)s * pool->streams,
               pool->streams * sizeof(*grown));
    free(pool->order);
    pool->order = grown;
    pool->streams = count;
    return MODEL_OK;
}

static enum model_status pool_wait(struct model *model, uint32_t stream, uint32_t other)
{
    struct pool *pool = pool_of(model);
    uint64_t *mine;
    const uint64_t *theirs;

    MODEL_TRY(know_stream(pool, stream > other ? stream : other));
    mine = pool->order + (size_t)stream * pool->streams;
    theirs = pool->order + (size_t)other * pool->streams;
    /* And after all that the other one comes after. */
    for (uint32_t t = 0; t < pool->streams; t++)
        if (theirs[t] > mine[t])
            mine[t] = theirs[t];
    mine[other] = model->now;
    return MODEL_OK;
}

static bool completed(const struct pool *pool, const struct model_block *block)
{
    return pool->base.now - block->stamp >= pool->lag;
}

static bool usable(const struct pool *pool, const struct model_block *block, uint32_t stream)
{
    if (block->stream == stream)
        return true;
    if (pool->opportunistic && completed(pool, block))
        return true;
    return pool->follow_events && block->stream < pool->streams &&
           pool->order[(size_t)stream * pool->streams + block->stream] >= block->stamp;
}

/* ------------------------------------------------------------------ free blocks */

static bool joinable(const struct pool *pool, const struct model_block *a,
                     const struct model_block *b)
{
    if (!b || b->live)
        return false;
    return a->stream == b->stream ||
           (pool->opportunistic && completed(pool, a) && completed(pool, b));
}

static void insert(struct pool *pool, struct model_block *block)
{
    uint64_t stamp = block->stamp;
    uint32_t stream = block->stream;

    if (joinable(pool, block, block->next)) {
        if (block->next->stamp > stamp)
            stamp = block->next->stamp;
        model_set_remove(block->next);
        model_block_merge_next(&pool->base, block);
    }
    if (joinable(pool, block, block->prev)) {
        block = block->prev;
        if (block->stamp > stamp)
            stamp = block->stamp;
        model_set_remove(block);
        model_block_merge_next(&pool->base, block);
    }
    block->stream = stream;
    block->stamp = stamp;
    model_set_insert(&pool->free, block);
}

/* The stream's own smallest block that fits, else the first other one that may be used. */
static struct model_block *take_free(struct pool *pool, uint64_t bytes, uint32_t stream,
                                     bool whatever)
{
    struct model_block key = {.bytes = bytes, .stream = stream};
    struct model_block *block = model_set_find(&pool->free, &key);

    pool->base.stats.searches++;
    if (block && block->stream == stream) {
        model_set_remove(block);
        return block;
    }
    key.stream = 0;
    for (block = model_set_find(&pool->free, &key); block;) {
        pool->base.stats.search_steps++;
        if (block->bytes < bytes) { /* the next stream's small ones: skip them */
            key.stream = block->stream;
            block = model_set_find(&pool->free, &key);
            continue;
        }
        if (whatever || usable(pool, block, stream)) {
            model_set_remove(block);
            return block;
        }
        block = model_set_next(block);
    }
    return NULL;
}

static enum model_status grow(struct pool *pool, uint64_t bytes, uint32_t stream,
                              struct model_block **out)
{
    struct model *m = &pool->base;
    uint64_t chunk = model_round(bytes, POOL_CHUNK);
    struct model_block *block;

    if (!model_driver_fits(m, chunk))
        return MODEL_NO_MEMORY;
    block = model_block_new(m);
    if (!block)
        return MODEL_HOST_MEMORY;
    block->address = model_driver_address(m, chunk);
    block->bytes = chunk;
    block->stream = stream;
    block->mapped = true;
    m->stats.driver_allocs++;
    m->stats.driver_maps++;
    m->stats.driver_access++;
    model_driver_take(m, chunk, stream);
    *out = block;
    return MODEL_OK;
}

/* Whole free chunks, whose use has completed, go back until at most `keep` bytes are held. */
static void release(struct pool *pool, uint64_t keep)
{
    struct model *m = &pool->base;
    struct model_block *next;

    for (struct model_block *b = model_set_first(&pool->free); b; b = next) {
        next = model_set_next(b);
        if (m->stats.reserved_bytes <= keep)
            return;
        if (b->prev || b->next || !completed(pool, b))
            continue;
        model_set_remove(b);
        m->stats.driver_unmaps++;
        m->stats.driver_frees++;
        model_driver_give(m, b->bytes, b->stream);
        model_block_delete(m, b);
    }
}

/* All frees have completed: what lies side by side becomes one block. */
static void join_all(struct pool *pool)
{
    struct model_block *starts = NULL;

    for (struct model_block *b = model_set_first(&pool->free); b; b = model_set_next(b)) {
        if (b->next && !b->next->live && (!b->prev || b->prev->live)) {
            b->queued = starts;
            starts = b;
        }
    }
    for (; starts; starts = starts->queued) {
        uint64_t stamp = starts->stamp;

        model_set_remove(starts);
        while (starts->next && !starts->next->live) {
            if (starts->next->stamp > stamp)
                stamp = starts->next->stamp;
            model_set_remove(starts->next);
            model_block_merge_next(&pool->base, starts);
        }
        starts->stamp = stamp;
        model_set_insert(&pool->free, starts);
    }
}

/* ------------------------------------------------------------------ the policy */

static enum model_status obtain(struct pool *pool, uint64_t bytes, uint32_t stream,
                                struct model_block **out)
{
    enum model_status status;

    *out = take_free(pool, bytes, stream, false);
    if (*out)
        return MODEL_OK;
    status = grow(pool, bytes, stream, out);
    if (status != MODEL_NO_MEMORY)
        return status;
    release(pool, 0);
    pool->base.stats.retries++;
    status = grow(pool, bytes, stream, out);
    if (status != MODEL_NO_MEMORY || !pool->internal_deps)
        return status;
    /* Any block will do, with a wait of this stream for the one that freed it. */
    *out = take_free(pool, bytes, stream, true);
    if (!*out)
        return MODEL_NO_MEMORY;
    pool->base.stats.waits++;
    pool->order[(size_t)stream * pool->streams + (*out)->stream] = pool->base.now;
    return MODEL_OK;
}

static enum model_status pool_alloc(struct model *model, uint64_t bytes, uint32_t stream,
                                    struct model_block **out)
{
    struct pool *pool = pool_of(model);
    uint64_t rounded = model_round(bytes, POOL_ALIGN);
    struct model_block *block;

    MODEL_TRY(know_stream(pool, stream));
    MODEL_TRY(obtain(pool, rounded, stream, &block));
    if (block->bytes > rounded) {
        struct model_block *rest = model_block_split(model, block, rounded);

        if (!rest)
            return MODEL_HOST_MEMORY;
        model_set_insert(&pool->free, rest);
    }
    block->stream = stream;
    *out = block;
    return MODEL_OK;
}

static enum model_status pool_free(struct model *model, struct model_block *block, uint32_t stream)
{
    struct pool *pool = pool_of(model);

    MODEL_TRY(know_stream(pool, stream));
    block->shared = false;
    block->stream = stream;
    block->stamp = model->now;
    insert(pool, block);
    return MODEL_OK;
}

static enum model_status pool_sync(struct model *model)
{
    struct pool *pool = pool_of(model);
    uint64_t lag = pool->lag;

    model->stats.waits++;
    pool->lag = 0;
    join_all(pool);
    if (model->stats.reserved_bytes > pool->release_threshold)
        release(pool, pool->release_threshold);
    pool->lag = lag;
    return MODEL_OK;
}

static enum model_status pool_trim(struct model *model)
{
    release(pool_of(model), 0);
    return MODEL_OK;
}

static bool pool_check(const struct model *model, char *problem, size_t size)
{
    const struct pool *pool = (const void *)model;

    for (struct model_block *b = model_set_first(&pool->free); b; b = model_set_next(b)) {
        const struct model_block *first = b;

        while (first->prev)
            first = first->prev;
        if (!model_check_chain(first, problem, size))
            return false;
        if (b->next && !b->next->live && b->next->stream == b->stream)
            return model_broken(problem, size, "two free neighbours of a stream are not merged");
    }
    if (model->stats.granted_bytes + pool->free.bytes != model->stats.reserved_bytes)
        return model_broken(problem, size, "granted + free is not reserved");
    return true;
}

static void pool_close(struct model *model)
{
    free(pool_of(model)->order);
}

static void pool_defaults(struct model *model)
{
    struct pool *pool = pool_of(model);

    pool->free.order = model_by_size;
    pool->release_threshold = UINT64_MAX;
    pool->follow_events = true;
    pool->opportunistic = true;
    pool->internal_deps = true;
}

static const struct model_option pool_options[] = {
    {"release_threshold", MODEL_BYTES, offsetof(struct pool, release_threshold)},
    {"lag", MODEL_NUMBER, offsetof(struct pool, lag)},
    {"follow_events", MODEL_SWITCH, offsetof(struct pool, follow_events)},
    {"opportunistic", MODEL_SWITCH, offsetof(struct pool, opportunistic)},
    {"internal_deps", MODEL_SWITCH, offsetof(struct pool, internal_deps)},
    {.name = NULL},
};

const struct model_ops model_cuda_async = {
    .info = {.name = "cuda-async",
             .summary = "a pool like that of cudaMallocAsync, nothing released between waits",
             .options = "release_threshold:BYTES (max), lag:EVENTS (0), follow_events:on|off (on), "
                        "opportunistic:on|off (on), internal_deps:on|off (on)"},
    .size = sizeof(struct pool),
    .block_size = sizeof(struct model_block),
    .options = pool_options,
    .defaults = pool_defaults,
    .alloc = pool_alloc,
    .free = pool_free,
    .wait = pool_wait,
    .sync = pool_sync,
    .trim = pool_trim,
    .check = pool_check,
    .close = pool_close,
};
