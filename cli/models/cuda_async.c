/* SPDX-License-Identifier: MIT */
/*
 * cuda_async.c - a pool as that of cudaMallocAsync: policy cuda-async.
 *
 * The driver is closed; the rules were read off a real pool on an H200 (doc/models.md says which
 * answers they follow from), and on every trace with one stream the model returns the very
 * addresses that the pool returned:
 *
 *   - One range of addresses. Memory comes in granules of 32 MiB, which can be under any of its
 *     addresses; sizes are rounded up to 512 bytes. The block at the end of the range has no end.
 *   - What is freed is first PENDING, by the stream that freed it. A request takes the smallest
 *     pending block of its stream that fits; else the smallest free one whose memory is all there;
 *     else another stream's pending one that comes before it; else the pending blocks, last freed
 *     first, become plain free ones and the smallest free block of all is taken. Of equal ones the
 *     one that has been there longest is taken. The front serves, the rest stays what the block
 *     was. Pending blocks merge with pending neighbours of the stream, free ones with free ones.
 *   - Granules that a block lacks come from under other free blocks, the highest address first, as
 *     far as a granule is wholly free; only what is missing then is new memory. When there is not
 *     enough, the request is refused, and what was moved and taken for it stays where it is.
 *   - Waiting gives wholly free granules back while no less than the threshold is held.
 *
 * Inferred from peaks alone, which agree within 1% over four streams: when another stream's pending
 * block is taken. Not measured: a device that is busy, which frees later than the host asks.
 *
 * Simplification: the work of a stream is done `lag` events after it was given.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define POOL_GRANULE ((uint64_t)32 << 20)
#define POOL_ALIGN ((uint64_t)512)
#define POOL_BASE ((uint64_t)1 << 40)  /* first address */
#define POOL_SPACE ((uint64_t)1 << 50) /* bytes of addresses: never all used */

/*
 * base.stream and base.stamp of a pending block: where and when it was freed. base.mapped of a free
 * block: all of its memory is there.
 */
struct pool_block {
    struct model_block base;
    uint64_t placed; /* of equal blocks the lower goes first */
    uint64_t freed;  /* pending: order of the frees; the rest of a block keeps it */
};

struct pool {
    struct model base;
    struct model_set pending; /* by stream, size, placed */
    struct model_set whole,
        partial;               /* free, with all of their memory, and others; by size, placed */
    struct model_block *first; /* lowest address; NULL before the first request */
    uint64_t placed;           /* last number given */
    uint8_t *mapped;           /* by granule: 1 if it has memory; owned */
    uint32_t *found;           /* room for as many granules: see find_idle(); owned */
    size_t granules;           /* room of both */
    struct model_block **list; /* room for the pending blocks: see settle(); owned */
    size_t list_capacity;
    uint64_t *order; /* streams * streams: [s][t] time up to which s comes after t; owned */
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

static struct pool_block *of(struct model_block *block)
{
    return (struct pool_block *)(void *)block;
}

static const struct pool_block *of_const(const struct model_block *block)
{
    return (const struct pool_block *)(const void *)block;
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_size(const struct model_block *a, const struct model_block *b)
{
    int order = compare(a->bytes, b->bytes);

    return order ? order : compare(of_const(a)->placed, of_const(b)->placed);
}

static int by_stream(const struct model_block *a, const struct model_block *b)
{
    int order = compare(a->stream, b->stream);

    return order ? order : by_size(a, b);
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

/* ------------------------------------------------------------------ granules */

static size_t first_granule(uint64_t address)
{
    return (size_t)((address - POOL_BASE) / POOL_GRANULE);
}

/* One past the last granule that holds a byte of the block's first `bytes`. */
static size_t end_granule(const struct model_block *block, uint64_t bytes)
{
    return first_granule(block->address + bytes - 1) + 1;
}

static bool is_mapped(const struct pool *pool, size_t granule)
{
    return granule < pool->granules && pool->mapped[granule];
}

static bool all_mapped(const struct pool *pool, const struct model_block *block)
{
    for (size_t g = first_granule(block->address); g < end_granule(block, block->bytes); g++)
        if (!is_mapped(pool, g))
            return false;
    return true;
}

static enum model_status know_granules(struct pool *pool, size_t count)
{
    size_t room = pool->granules ? pool->granules : 256;
    uint8_t *mapped;
    uint32_t *found;

    if (count <= pool->granules)
        return MODEL_OK;
    while (room < count)
        room *= 2;
    mapped = realloc(pool->mapped, room * sizeof(*mapped));
    if (mapped)
        pool->mapped = mapped;
    found = realloc(pool->found, room * sizeof(*found));
    if (found)
        pool->found = found;
    if (!mapped || !found)
        return MODEL_HOST_MEMORY;
    memset(mapped + pool->granules, 0, (room - pool->granules) * sizeof(*mapped));
    pool->granules = room;
    return MODEL_OK;
}

static bool is_free(const struct pool *pool, const struct model_block *block)
{
    return block && (block->set == &pool->whole || block->set == &pool->partial);
}

/* Into the set that its memory says, at the place among equals that it had. */
static void keep_free(struct pool *pool, struct model_block *block)
{
    block->mapped = all_mapped(pool, block);
    model_set_insert(block->mapped ? &pool->whole : &pool->partial, block);
}

/* Adds the granules of a set's blocks that are wholly free and have memory to pool->found. */
static size_t find_idle_of(struct pool *pool, struct model_set *set, size_t count)
{
    struct pool_block key = {.base.bytes = POOL_GRANULE};

    for (struct model_block *b = model_set_find(set, &key.base); b; b = model_set_next(b)) {
        uint64_t end = b->address + b->bytes - POOL_BASE;
        size_t g = (size_t)(model_round(b->address - POOL_BASE, POOL_GRANULE) / POOL_GRANULE);

        for (; g < end / POOL_GRANULE && g < pool->granules; g++)
            if (pool->mapped[g])
                pool->found[count++] = (uint32_t)g;
    }
    return count;
}

static int highest_first(const void *a, const void *b)
{
    return compare(*(const uint32_t *)b, *(const uint32_t *)a);
}

/* Blocks of `whole` that have lost memory go over to `partial`. */
static void sort_out(struct pool *pool)
{
    struct pool_block key = {.base.bytes = POOL_GRANULE};
    struct model_block *next;

    for (struct model_block *b = model_set_find(&pool->whole, &key.base); b; b = next) {
        next = model_set_next(b);
        if (!all_mapped(pool, b)) {
            model_set_remove(b);
            keep_free(pool, b);
        }
    }
}

/* Takes up to `most` granules from under free blocks, the highest first; how many there were. */
static size_t take_idle(struct pool *pool, size_t most)
{
    size_t count = find_idle_of(pool, &pool->whole, 0);

    count = find_idle_of(pool, &pool->partial, count);
    if (!count)
        return 0;
    qsort(pool->found, count, sizeof(*pool->found), highest_first);
    if (count > most)
        count = most;
    for (size_t i = 0; i < count; i++)
        pool->mapped[pool->found[i]] = 0;
    pool->base.stats.driver_unmaps += count;
    sort_out(pool);
    return count;
}

/* Gives wholly free granules back as long as `keep` bytes remain. */
static void release(struct pool *pool, uint64_t keep)
{
    struct model *m = &pool->base;
    size_t count;

    if (m->stats.reserved_bytes <= keep)
        return;
    count = take_idle(pool, (size_t)((m->stats.reserved_bytes - keep) / POOL_GRANULE));
    m->stats.driver_frees += count;
    if (count)
        model_driver_give(m, count * POOL_GRANULE, 0);
}

/* New granules, as many as the limit leaves of `wanted`. */
static size_t take_new(struct pool *pool, size_t wanted, uint32_t stream)
{
    struct model *m = &pool->base;
    uint64_t room = (m->limit_bytes - m->stats.reserved_bytes) / POOL_GRANULE;
    size_t count = wanted < room ? wanted : (size_t)room;

    m->stats.driver_allocs += count;
    if (count)
        model_driver_take(m, count * POOL_GRANULE, stream);
    return count;
}

/*
 * Memory for the first `bytes` of a block that is in no set. On MODEL_NO_MEMORY as much of it as
 * there is has been put there.
 */
static enum model_status back(struct pool *pool, const struct model_block *block, uint64_t bytes,
                              uint32_t stream)
{
    size_t first = first_granule(block->address);
    size_t end = end_granule(block, bytes);
    size_t needed = 0;
    size_t have;

    MODEL_TRY(know_granules(pool, end));
    for (size_t g = first; g < end; g++)
        needed += !pool->mapped[g];
    if (!needed)
        return MODEL_OK;
    have = take_idle(pool, needed);
    have += take_new(pool, needed - have, stream);
    pool->base.stats.driver_maps += have;
    pool->base.stats.driver_access += have;
    needed -= have;
    for (size_t g = first; have; g++) {
        have -= !pool->mapped[g];
        pool->mapped[g] = 1;
    }
    return needed ? MODEL_NO_MEMORY : MODEL_OK;
}

/* ------------------------------------------------------------------ free blocks */

static struct model_block *join_next(struct pool *pool, struct model_block *block)
{
    model_set_remove(block->next);
    model_block_merge_next(&pool->base, block);
    return block;
}

/* A block in no set becomes a free one. */
static void add_free(struct pool *pool, struct model_block *block)
{
    if (is_free(pool, block->next))
        join_next(pool, block);
    if (is_free(pool, block->prev)) {
        block = block->prev;
        model_set_remove(block);
        model_block_merge_next(&pool->base, block);
    }
    of(block)->placed = ++pool->placed;
    keep_free(pool, block);
}

static bool is_pending(const struct pool *pool, const struct model_block *block, uint32_t stream)
{
    return block && block->set == &pool->pending && block->stream == stream;
}

static void add_pending(struct pool *pool, struct model_block *block, uint32_t stream)
{
    if (is_pending(pool, block->next, stream))
        join_next(pool, block);
    if (is_pending(pool, block->prev, stream)) {
        block = block->prev;
        model_set_remove(block);
        model_block_merge_next(&pool->base, block);
    }
    block->stream = stream;
    block->stamp = pool->base.now;
    of(block)->placed = ++pool->placed;
    of(block)->freed = of(block)->placed;
    model_set_insert(&pool->pending, block);
}

static int last_freed_first(const void *a, const void *b)
{
    const struct model_block *const *one = a;
    const struct model_block *const *other = b;

    return compare(of_const(*other)->freed, of_const(*one)->freed);
}

static enum model_status list_room(struct pool *pool)
{
    size_t capacity = 2 * pool->pending.count;
    struct model_block **grown;

    if (pool->pending.count <= pool->list_capacity)
        return MODEL_OK;
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    grown = realloc((void *)pool->list, capacity * sizeof(*grown));
    if (!grown)
        return MODEL_HOST_MEMORY;
    pool->list = grown;
    pool->list_capacity = capacity;
    return MODEL_OK;
}

/*
 * Pending blocks whose use has completed become free ones: those of the stream and, if that may be
 * looked up, of the others; `all`: of all.
 */
static enum model_status settle(struct pool *pool, uint32_t stream, bool all)
{
    size_t count = 0;

    if (!pool->pending.count)
        return MODEL_OK;
    MODEL_TRY(list_room(pool));
    for (struct model_block *b = model_set_first(&pool->pending); b; b = model_set_next(b))
        if (all || (completed(pool, b) && (pool->opportunistic || b->stream == stream)))
            pool->list[count++] = b;
    if (count > 1) {
        /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
        qsort((void *)pool->list, count, sizeof(struct model_block *), last_freed_first);
    }
    for (size_t i = 0; i < count; i++)
        model_set_remove(pool->list[i]);
    for (size_t i = 0; i < count; i++)
        add_free(pool, pool->list[i]);
    return MODEL_OK;
}

/* ------------------------------------------------------------------ search */

static struct model_block *find(struct pool *pool, const struct model_set *set, uint64_t bytes,
                                uint32_t stream)
{
    struct pool_block key = {.base = {.bytes = bytes, .stream = stream}};

    pool->base.stats.searches++;
    return model_set_find(set, &key.base);
}

/* Another stream's pending block: `whatever`, or one that comes before by events. */
static struct model_block *find_other(struct pool *pool, uint64_t bytes, uint32_t stream,
                                      bool whatever)
{
    struct pool_block key = {.base = {.bytes = bytes}};
    struct model_block *block = model_set_find(&pool->pending, &key.base);

    while (block) {
        pool->base.stats.search_steps++;
        if (block->bytes < bytes) { /* the next stream's small ones: skip them */
            key.base.stream = block->stream;
            block = model_set_find(&pool->pending, &key.base);
        } else if (whatever || usable(pool, block, stream)) {
            return block;
        } else {
            block = model_set_next(block);
        }
    }
    return NULL;
}

/* The smallest free block, whether it has memory or not. There always is one: that at the end. */
static struct model_block *find_free(struct pool *pool, uint64_t bytes)
{
    struct model_block *whole = find(pool, &pool->whole, bytes, 0);
    struct model_block *partial = find(pool, &pool->partial, bytes, 0);

    return whole && (!partial || by_size(whole, partial) < 0) ? whole : partial;
}

/* *out is the block that serves, in its set. */
static enum model_status choose(struct pool *pool, uint64_t bytes, uint32_t stream,
                                struct model_block **out)
{
    struct model_block *block = find(pool, &pool->pending, bytes, stream);

    if (block && block->stream != stream)
        block = NULL;
    if (!block)
        block = find(pool, &pool->whole, bytes, 0);
    if (!block)
        block = find_other(pool, bytes, stream, false);
    if (!block) {
        MODEL_TRY(settle(pool, stream, false));
        block = find_free(pool, bytes);
    }
    *out = block;
    return block ? MODEL_OK : MODEL_NO_MEMORY;
}

/* ------------------------------------------------------------------ the policy */

/* Takes a block out of its set and cuts the rest off, which stays what the block was. */
static enum model_status cut(struct pool *pool, struct model_block *block, uint64_t bytes)
{
    struct model_set *set = block->set;
    struct model_block *rest;

    model_set_remove(block);
    if (block->bytes == bytes)
        return MODEL_OK;
    rest = model_block_split(&pool->base, block, bytes);
    if (!rest)
        return MODEL_HOST_MEMORY;
    of(rest)->placed = ++pool->placed;
    of(rest)->freed = of(block)->freed;
    if (set == &pool->pending)
        model_set_insert(set, rest);
    else
        keep_free(pool, rest);
    return MODEL_OK;
}

/* Puts a block whose memory did not suffice back as it was. */
static void put_back(struct pool *pool, struct model_block *block, uint64_t bytes)
{
    if (block->bytes < bytes)
        join_next(pool, block);
    keep_free(pool, block);
}

static enum model_status serve(struct pool *pool, struct model_block *block, uint64_t bytes,
                               uint32_t stream)
{
    uint64_t had = block->bytes;
    enum model_status status;

    MODEL_TRY(cut(pool, block, bytes));
    status = back(pool, block, bytes, stream);
    if (status == MODEL_NO_MEMORY) {
        put_back(pool, block, had);
    } else if (is_free(pool, block->next) && !block->next->mapped) {
        /* The granule that the rest shares with the block may be what it lacked. */
        model_set_remove(block->next);
        keep_free(pool, block->next);
    }
    return status;
}

static enum model_status pool_start(struct pool *pool)
{
    struct model_block *block;

    if (pool->first)
        return MODEL_OK;
    block = model_block_new(&pool->base);
    if (!block)
        return MODEL_HOST_MEMORY;
    block->address = POOL_BASE;
    block->bytes = POOL_SPACE;
    pool->first = block;
    add_free(pool, block);
    return MODEL_OK;
}

static enum model_status pool_alloc(struct model *model, uint64_t bytes, uint32_t stream,
                                    struct model_block **out)
{
    struct pool *pool = pool_of(model);
    uint64_t rounded = model_round(bytes, POOL_ALIGN);
    struct model_block *block;
    enum model_status status;

    MODEL_TRY(know_stream(pool, stream));
    MODEL_TRY(pool_start(pool));
    MODEL_TRY(choose(pool, rounded, stream, &block));
    /* No limit is so large: before the addresses of all of it are looked at. */
    if (rounded > model->limit_bytes)
        return MODEL_NO_MEMORY;
    status = serve(pool, block, rounded, stream);
    if (status == MODEL_NO_MEMORY && pool->internal_deps) {
        /* Any block will do, with a wait of this stream for the one that freed it. */
        block = find_other(pool, rounded, stream, true);
        if (!block)
            return status;
        model->stats.waits++;
        pool->order[(size_t)stream * pool->streams + block->stream] = model->now;
        status = serve(pool, block, rounded, stream);
    }
    MODEL_TRY(status);
    block->stream = stream;
    *out = block;
    return MODEL_OK;
}

static enum model_status pool_free(struct model *model, struct model_block *block, uint32_t stream)
{
    struct pool *pool = pool_of(model);

    MODEL_TRY(know_stream(pool, stream));
    block->shared = false;
    add_pending(pool, block, stream);
    return MODEL_OK;
}

static enum model_status pool_sync(struct model *model)
{
    struct pool *pool = pool_of(model);

    model->stats.waits++;
    MODEL_TRY(settle(pool, 0, true));
    release(pool, pool->release_threshold);
    return MODEL_OK;
}

/* What is pending stays: the pool does not look at it here. */
static enum model_status pool_trim(struct model *model)
{
    release(pool_of(model), 0);
    return MODEL_OK;
}

static bool check_block(const struct pool *pool, const struct model_block *b, char *problem,
                        size_t size)
{
    bool mapped = all_mapped(pool, b);

    if ((b->live || b->set == &pool->pending) && !mapped)
        return model_broken(problem, size, "a block in use lacks memory");
    if (is_free(pool, b) && (b->mapped != mapped || (b->set == &pool->whole) != mapped))
        return model_broken(problem, size, "a free block is in the wrong set");
    if (!b->live && !b->set)
        return model_broken(problem, size, "a block is neither live nor in a set");
    if (is_free(pool, b) && is_free(pool, b->next))
        return model_broken(problem, size, "two free neighbours are not merged");
    if (b->set == &pool->pending && is_pending(pool, b->next, b->stream))
        return model_broken(problem, size, "two pending neighbours of a stream are not merged");
    return true;
}

static bool pool_check(const struct model *model, char *problem, size_t size)
{
    const struct pool *pool = (const void *)model;
    uint64_t held = 0;

    if (pool->first && pool->first->prev)
        return model_broken(problem, size, "the first block is not the first");
    if (!model_check_chain(pool->first, problem, size))
        return false;
    for (const struct model_block *b = pool->first; b; b = b->next)
        if (!check_block(pool, b, problem, size))
            return false;
    for (size_t g = 0; g < pool->granules; g++)
        held += pool->mapped[g] ? POOL_GRANULE : 0;
    if (held != model->stats.reserved_bytes)
        return model_broken(problem, size, "granules with memory are not what is reserved");
    return true;
}

static void pool_close(struct model *model)
{
    struct pool *pool = pool_of(model);

    free(pool->order);
    free(pool->mapped);
    free(pool->found);
    free((void *)pool->list);
}

static void pool_defaults(struct model *model)
{
    struct pool *pool = pool_of(model);

    pool->pending.order = by_stream;
    pool->whole.order = by_size;
    pool->partial.order = by_size;
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
             .summary = "the pool of cudaMallocAsync, nothing released between waits",
             .options = "release_threshold:BYTES (max), lag:EVENTS (0), follow_events:on|off (on), "
                        "opportunistic:on|off (on), internal_deps:on|off (on)"},
    .size = sizeof(struct pool),
    .block_size = sizeof(struct pool_block),
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
