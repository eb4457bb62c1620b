/* SPDX-License-Identifier: MIT */
/*
 * Pools: each has a heap of frames of its own, with limits and reuse policies as in CUDA's memory
 * pools.
 *
 * A pool takes frames from vm when what it holds does not suffice, and then exactly what is
 * missing, up to vm's step (mb__vm_step()). It keeps them until it is trimmed, or until
 * a synchronize finds it above its release threshold, or until another pool is about to fail.
 *
 * Locking: the device's lock.
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/handles.h"
#include "base/log.h"
#include "runtime/access.h"
#include "runtime/debug.h"
#include "runtime/watch.h"

#define FRAME MB_FRAME_BYTES

static struct mb__handles live =
    MB__HANDLES_INIT; /* pools of all devices, for calls with any pointer */

__attribute__((destructor)) static void forget_pools(void)
{
    if (!mb__device_any_open())
        mb__handles_fini(&live);
}

/* The record stays with the device: who looked at it without the lock finds the magic gone. */
static void pool_discard(struct mb_pool *pool)
{
    mb__heap_fini(&pool->heap);
    for (uint32_t i = 0; i < pool->lane_count; i++)
        free(pool->lanes[i]);
    free(pool->lanes);
    free(pool->held);
    pool->next = pool->dev->spare_pools;
    pool->dev->spare_pools = pool;
}

/* Who came too late still finds the device in it, and with the device the lock; and may be on its
 * way through the warm path. */
static void pool_clear(struct mb_pool *pool)
{
    const size_t kept = offsetof(struct mb_pool, prev);

    __atomic_store_n(&pool->keep, false, __ATOMIC_RELAXED);
    memset((char *)pool + kept, 0, sizeof(*pool) - kept);
}

enum mb_err mb__pool_new(struct mb_device *dev, struct mb_pool **out)
{
    struct mb_pool *pool = dev->spare_pools;

    mb__fold(dev); /* no shard lists an account that is cleared now */
    if (pool) {
        dev->spare_pools = pool->next;
    } else {
        pool = mb__calloc_apart(1, sizeof(*pool));
        if (!pool)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a pool");
        pool->dev = dev;
    }
    pool_clear(pool);
    for (unsigned s = 0; s < MB__SHARDS; s++)
        pool->accounts[s].pool = pool;
    __atomic_store_n(&pool->id, ++dev->next_pool_id, __ATOMIC_RELAXED);
    mb__heap_init(&pool->heap);
    pool->apart.apart = true;
    pool->release_threshold = UINT64_MAX;
    pool->follow_events = pool->opportunistic = pool->internal_deps = true;
    for (size_t i = 0; i < dev->streams.count; i++) {
        struct mb__lane *lane;
        enum mb_err err = mb__pool_lane(pool, dev->streams.data[i], &lane);

        if (err) {
            pool_discard(pool);
            return err;
        }
    }
    if (!mb__handles_add(&live, pool)) {
        pool_discard(pool);
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the list of pools");
    }
    pool->next = dev->pools;
    if (pool->next)
        pool->next->prev = pool;
    dev->pools = pool;
    __atomic_store_n(&pool->magic, MB__POOL_MAGIC, __ATOMIC_RELEASE);
    *out = pool;
    return MB_OK;
}

bool mb__pool_is_open(const struct mb_pool *pool)
{
    return mb__handles_has(&live, pool) &&
           __atomic_load_n(&pool->magic, __ATOMIC_ACQUIRE) == MB__POOL_MAGIC;
}

enum mb_err mb__pool_gone(const char *call, const struct mb_pool *pool)
{
    return mb__fail(MB_ERR_INVALID, "%s: %p is no open pool", call, (const void *)pool);
}

static void pool_retire(struct mb_pool *pool)
{
    __atomic_store_n(&pool->magic, 0, __ATOMIC_RELEASE);
    mb__handles_del(&live, pool);
    if (pool->prev)
        pool->prev->next = pool->next;
    else
        pool->dev->pools = pool->next;
    if (pool->next)
        pool->next->prev = pool->prev;
    pool_discard(pool);
}

void mb__pools_fini(struct mb_device *dev)
{
    while (dev->pools)
        pool_retire(dev->pools);
    while (dev->spare_pools) {
        struct mb_pool *pool = dev->spare_pools;

        dev->spare_pools = pool->next;
        free(pool);
    }
}

/* ------------------------------------------------------------------ growth */

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return step ? (value + step - 1) / step * step : value;
}

/* Whose order new frames join: the stream's, while no other has anything free here, so that they
 * make one hole with its own bytes around them; else nobody's, so that none waits for another's. */
static enum mb_err lane_of_growth(struct mb_pool *pool, struct mb__stream *stream,
                                  struct mb__lane **out)
{
    struct mb__lane *lane;
    enum mb_err err;

    *out = &pool->ready;
    if (!stream || pool->keep || pool->apart.free_bytes)
        return MB_OK;
    err = mb__pool_lane(pool, stream, &lane);
    if (err)
        return err;
    for (uint32_t i = 0; i < pool->lane_count / 64; i++) {
        uint64_t own = lane->held == &pool->held[i] ? lane->bit : 0;

        if (pool->held[i] & ~own)
            return MB_OK;
    }
    *out = lane;
    return MB_OK;
}

/* Takes frames from vm, free for all but in the lane that suits `stream`. */
static enum mb_err acquire(struct mb_pool *pool, uint64_t bytes, struct mb__stream *stream)
{
    uint32_t frames = (uint32_t)(bytes / FRAME);
    unsigned count = 0, flags = MB_PFN_NEAR_HIGH;
    struct mb__lane *lane;
    struct mb_run *runs;
    enum mb_err err = lane_of_growth(pool, stream, &lane);

    if (err)
        return err;
    if (bytes > pool->dev->hw->caps.total_bytes)
        return mb__fail(MB_ERR_NO_MEMORY,
                        "%" PRIu64 " more bytes are needed, the device has %" PRIu64 " in all",
                        bytes, pool->dev->hw->caps.total_bytes);
    runs = malloc(frames * sizeof(*runs));
    if (!runs)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u runs", frames);
    if (pool->keep)
        flags |= MB_PFN_CONTIGUOUS; /* its blocks are never composed */
    err = mb__heap_prepare(&pool->heap, frames);
    if (!err)
        err = mb__alloc_pfn(pool->dev->vm, pool->id, frames, flags, runs, frames, &count);
    for (unsigned i = 0; !err && i < count; i++) {
        mb__heap_add(&pool->heap, lane, runs[i].home.addr, runs[i].frames * FRAME);
        mb__watch_note(pool->dev, MB_HOOK_GROW, runs[i].home.addr, runs[i].frames * FRAME, NULL);
        if (mb__debug_poison(pool->dev, runs[i].home.addr, runs[i].frames * FRAME, NULL))
            mb__log(MB_LOG_WARN, "runtime", "poison: %s", mb_error_detail());
    }
    free(runs);
    return err ? err : mb__debug_settle(pool->dev);
}

enum mb_err mb__pool_grow(struct mb__request *req)
{
    struct mb_pool *pool = req->pool;
    struct mb_device *dev = req->dev;
    uint64_t exact = round_up(req->missing_bytes ? req->missing_bytes : req->bytes, FRAME);
    uint64_t rounded = round_up(exact, mb__vm_step(dev->vm));
    enum mb_err err;

    /* Fast growth makes one range of the whole request, so that it needs no window. */
    if (dev->config.growth == MB__GROWTH_FAST)
        rounded = round_up(req->bytes > exact ? req->bytes : exact, 16 * FRAME);
    if (pool->limit_bytes && pool->heap.total_bytes + rounded > pool->limit_bytes)
        rounded = exact;
    req->own_limit = pool->limit_bytes && pool->heap.total_bytes + exact > pool->limit_bytes;
    if (req->own_limit)
        return mb__fail(MB_ERR_LIMIT,
                        "the pool holds %" PRIu64 " bytes and may hold %" PRIu64 "; %" PRIu64
                        " more are needed; raise MB_POOL_LIMIT or free something",
                        pool->heap.total_bytes, pool->limit_bytes, exact);
    err = acquire(pool, rounded, req->stream);
    if (err && err != MB_ERR_HOST_MEMORY && rounded > exact)
        err = acquire(pool, exact, req->stream);
    if (!err) {
        dev->counters.grows++;
        mb__note_held(dev);
    }
    return err;
}

/* ------------------------------------------------------------------ giving frames back */

/* Gives up to *bytes of whole free frames of one node to vm. Whoever may still use them is named by
 * a fence, so the frames drain. */
static bool release_node(struct mb_pool *pool, struct mb__node *node,
                         const struct mb_hw_fence *fences, unsigned count, uint64_t *bytes)
{
    uint64_t first = (node->addr + FRAME - 1) & ~(FRAME - 1);
    uint64_t last = (node->addr + node->bytes) & ~(FRAME - 1);
    struct mb_run run;
    enum mb_err err;

    if (last <= first || mb__heap_prepare(&pool->heap, 1))
        return false;
    if (last - first > *bytes)
        first = last - round_up(*bytes, FRAME);
    run.home = mb__va(first);
    run.pfn = mb__home_pfn(pool->dev->vm, run.home);
    run.frames = (uint32_t)((last - first) / FRAME);
    err = mb__free_pfn(pool->dev->vm, pool->id, run, fences, count);
    if (err) {
        mb__log(MB_LOG_WARN, "runtime", "frames of a pool: %s", mb_error_detail());
        return false;
    }
    mb__heap_remove(&pool->heap, node, first, last - first);
    mb__watch_note(pool->dev, MB_HOOK_TRIM, first, last - first, NULL);
    *bytes -= last - first < *bytes ? last - first : *bytes;
    return true;
}

/* From the highest address down, so that whole slabs come free. */
static void release_lane(struct mb_pool *pool, struct mb__lane *lane,
                         const struct mb_hw_fence *fences, unsigned count, uint64_t *bytes)
{
    struct mb__link *link = mb__tree_last(&pool->heap.by_addr);

    while (link && *bytes && lane->whole_bytes) {
        struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_addr);

        link = mb__tree_prev(link);
        if (node->lane != lane)
            continue;
        /* Removing may cut the node; its lower part keeps the record and has no more whole frames
         * unless *bytes ran out. */
        if (!release_node(pool, node, fences, count, bytes) && lane->whole_bytes == 0)
            break;
    }
}

/* Fences behind all that may still use memory of this order; -1: one cannot be had, or too many. */
static int fences_of(struct mb_device *dev, const struct mb__order *order,
                     struct mb_hw_fence *fences, unsigned capacity)
{
    unsigned count = 0;

    for (unsigned i = 0; i < order->count; i++) {
        struct mb__stream *stream = order->points[i].stream;

        if (mb__stream_cover(dev, stream))
            return -1;
        mb__stream_poll(dev, stream);
        if (order->points[i].ticket <= stream->done)
            continue;
        if (!stream->point_count || count == capacity ||
            stream->points[stream->point_count - 1].ticket < order->points[i].ticket)
            return -1;
        fences[count++] = stream->points[stream->point_count - 1].fence;
    }
    return (int)count;
}

/* What several streams have to leave first; largest ranges first. */
static void release_apart(struct mb_pool *pool, uint64_t *bytes)
{
    struct mb__link *link = mb__tree_last(&pool->apart.by_size);

    while (link && *bytes && link->major >= FRAME) {
        struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_size);
        struct mb_hw_fence fences[MB__ORDER_FENCES];
        int count = fences_of(pool->dev, node->order, fences, MB__ORDER_FENCES);

        link = mb__tree_prev(link);
        if (count >= 0)
            (void)release_node(pool, node, fences, (unsigned)count, bytes);
    }
}

void mb__pool_release(struct mb_pool *pool, uint64_t keep_bytes)
{
    struct mb_device *dev = pool->dev;
    uint64_t bytes = pool->heap.total_bytes > keep_bytes ? pool->heap.total_bytes - keep_bytes : 0;

    if (!bytes || pool->keep)
        return;
    mb__promote(pool, true);
    mb__windows_drop(pool, 0);
    release_lane(pool, &pool->ready, NULL, 0, &bytes);
    for (uint32_t i = 0; i < pool->lane_count && bytes; i++) {
        struct mb__lane *lane = pool->lanes[i];
        struct mb__stream *stream = lane ? lane->owner : NULL;

        if (!lane || !lane->whole_bytes || mb__stream_cover(dev, stream) || !stream->point_count)
            continue;
        release_lane(pool, lane, &stream->points[stream->point_count - 1].fence, 1, &bytes);
    }
    release_apart(pool, &bytes);
}

bool mb__release_others(struct mb_device *dev, const struct mb_pool *pool)
{
    bool any = false;

    for (struct mb_pool *other = dev->pools; other; other = other->next) {
        uint64_t held = other->heap.total_bytes;

        if (other == pool || other->keep)
            continue;
        mb__bins_flush(dev, other);
        mb__pool_release(other, 0);
        any |= other->heap.total_bytes < held;
    }
    if (any)
        mb__vm_poll(dev->vm);
    return any;
}

/* Windows that were let go are unmapped on the own stream, which waits for nobody: this wait is the
 * time of the unmaps alone, and what they showed is free afterwards. */
static void finish_unmaps(struct mb_device *dev)
{
    struct mb_hw_fence fence;
    enum mb_err err = dev->hw->ops->fence_record(dev->hw, dev->own->hw, &fence);

    if (!err)
        err = dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
    if (err)
        mb__log(MB_LOG_WARN, "runtime", "unmaps before a trim: %s", mb_error_detail());
}

/* Gives vm's free frames to the driver until `keep` are held by all pools and mappings together. */
static enum mb_err trim_vm(struct mb_device *dev, uint64_t keep_bytes)
{
    struct mb_vm_stats stats;
    uint64_t released = 0;
    enum mb_err err;

    mb__vm_stats(dev->vm, &stats);
    if (stats.draining_bytes)
        finish_unmaps(dev);
    mb__vm_poll(dev->vm);
    err = mb__vm_trim(dev->vm, keep_bytes, &released);
    if (released)
        dev->counters.trims++;
    mb__note_held(dev);
    return err;
}

static enum mb_err kept(const char *call)
{
    return mb__fail(
        MB_ERR_BUSY,
        "%s: the pool keeps its memory for a captured graph; set MB_POOL_KEEP to 0 once "
        "the graph is destroyed",
        call);
}

enum mb_err mb__pool_trim(struct mb_pool *pool, uint64_t keep_bytes)
{
    struct mb_device *dev = pool->dev;
    struct mb_vm_stats stats;
    uint64_t before, held;

    if (pool->keep)
        return kept("mb_pool_trim");
    mb__bins_flush(dev, pool);
    mb__vm_stats(dev->vm, &stats);
    before = pool->heap.total_bytes;
    mb__pool_release(pool, keep_bytes);
    held = before - pool->heap.total_bytes + stats.free_bytes;
    return trim_vm(dev, stats.held_bytes > held ? stats.held_bytes - held : 0);
}

void mb__pools_after_sync(struct mb_device *dev)
{
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        if (!pool->keep && pool->heap.total_bytes > pool->release_threshold &&
            mb__pool_trim(pool, pool->release_threshold))
            mb__log(MB_LOG_WARN, "runtime", "trim after a synchronize: %s", mb_error_detail());
}

/* Frames that one stream freed go at once and drain behind its fence. A frame of which several
 * streams freed parts goes when the host has seen all of them pass; the lock is dropped
 * meanwhile. */
static enum mb_err empty(struct mb_pool *pool)
{
    struct mb_device *dev = pool->dev;
    uint32_t id = pool->id;
    enum mb_err err;

    if (pool->apart.free_bytes)
        mb__promote(pool, true);
    mb__pool_release(pool, 0);
    if (!pool->heap.total_bytes)
        return MB_OK;
    err = mb__wait_on_host(dev);
    if (err)
        return err;
    /* Its record may be another pool's by now. */
    if (!mb__pool_is_open(pool) || pool->id != id)
        return mb__fail(MB_ERR_INVALID, "mb_pool_destroy: another thread destroyed the pool");
    mb__bins_flush(dev, pool);
    mb__promote(pool, true);
    mb__pool_release(pool, 0);
    if (!pool->heap.total_bytes)
        return MB_OK;
    return mb__fail(MB_ERR_BUSY,
                    "%" PRIu64 " bytes of the pool are in use: by a block allocated meanwhile, or "
                    "by a stream that is being captured; try again when that is over",
                    pool->heap.total_bytes);
}

/* Blocks that were freed while something else shows their frames: those come back when it ends. */
static enum mb_err shown_elsewhere(struct mb_pool *pool)
{
    const struct mb__block *first = NULL;
    unsigned count = 0;
    int peer;

    for (struct mb__link *link = mb__tree_first(&pool->heap.by_addr); link;
         link = mb__tree_next(link)) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_addr);
        const struct mb__block *block = node->lane ? NULL : node->block;

        if (!block || block->pieces != node || !block->pins)
            continue;
        first = first ? first : block;
        count++;
    }
    if (!first)
        return mb__fail(MB_ERR_BUSY, "%" PRIu64 " bytes of the pool are in use; try again",
                        pool->heap.used_bytes);
    peer = mb__access_peer(pool->dev, first);
    if (peer >= 0)
        return mb__fail(
            MB_ERR_BUSY,
            "%u blocks of the pool are freed but still shown elsewhere; that of %" PRIu64
            " bytes at 0x%" PRIx64
            " is open to device %d: take its access back with mb_mem_set_access() and "
            "MB_PROT_NONE first",
            count, first->requested, first->addr, peer);
    return mb__fail(MB_ERR_BUSY,
                    "%u blocks of the pool are freed but still shown elsewhere; that of %" PRIu64
                    " bytes at 0x%" PRIx64
                    " by %u pages of mb_mem_reserve(): unmap these aliases first",
                    count, first->requested, first->addr, first->pins);
}

enum mb_err mb__pool_delete(struct mb_pool *pool)
{
    struct mb_device *dev = pool->dev;
    enum mb_err err;

    if (pool == dev->default_pool)
        return mb__fail(MB_ERR_INVALID, "the default pool lives as long as its device");
    if (pool->keep)
        return kept("mb_pool_destroy");
    mb__bins_flush(dev, pool);
    if (mb__pool_live(pool).blocks)
        return mb__fail(MB_ERR_BUSY, "%" PRId64 " blocks of the pool live; free them first",
                        mb__pool_live(pool).blocks);
    if (pool->heap.used_bytes)
        return shown_elsewhere(pool);
    err = empty(pool);
    if (!err)
        err = mb__windows_orphan(pool);
    if (err)
        return err;
    mb__stats_inherit(pool);
    pool_retire(pool);
    return MB_OK;
}

/* ------------------------------------------------------------------ attributes */

static enum mb_err set_keep(struct mb_pool *pool, uint64_t value)
{
    if (value > 1)
        return mb__fail(MB_ERR_INVALID, "MB_POOL_KEEP is 0 or 1, not %" PRIu64, value);
    if (value && pool == pool->dev->default_pool)
        return mb__fail(MB_ERR_INVALID, "the default pool cannot be kept for one graph; use "
                                        "mb_pool_create()");
    if (value && pool->dev->config.checks & MB__CHECK_UAF)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "check:uaf maps every block anew, which a captured "
                                              "graph would not see; leave it out");
    if (value && !pool->keep && pool->heap.total_bytes)
        return mb__fail(MB_ERR_BUSY, "MB_POOL_KEEP is set before the first block of a pool");
    __atomic_store_n(&pool->keep, value != 0, __ATOMIC_RELAXED);
    return MB_OK;
}

static enum mb_err set_flag(bool *flag, uint64_t value)
{
    if (value > 1)
        return mb__fail(MB_ERR_INVALID, "a reuse attribute is 0 or 1, not %" PRIu64, value);
    *flag = value;
    return MB_OK;
}

enum mb_err mb__pool_set(struct mb_pool *pool, enum mb_pool_attr attr, uint64_t value)
{
    switch (attr) {
    case MB_POOL_RELEASE_THRESHOLD:
        pool->release_threshold = value;
        return MB_OK;
    case MB_POOL_LIMIT:
        pool->limit_bytes = value;
        return MB_OK;
    case MB_POOL_REUSE_FOLLOW_EVENTS:
        return set_flag(&pool->follow_events, value);
    case MB_POOL_REUSE_OPPORTUNISTIC:
        return set_flag(&pool->opportunistic, value);
    case MB_POOL_REUSE_INTERNAL_DEPS:
        return set_flag(&pool->internal_deps, value);
    case MB_POOL_KEEP:
        return set_keep(pool, value);
    case MB_POOL_RESERVED_HIGH:
    case MB_POOL_USED_HIGH:
        if (value)
            return mb__fail(MB_ERR_INVALID, "a high-water mark may be set to 0 only");
        mb__fold(pool->dev);
        if (attr == MB_POOL_RESERVED_HIGH)
            pool->reserved_peak = pool->heap.total_bytes;
        else
            pool->allocated_peak = (uint64_t)mb__pool_live(pool).allocated;
        return MB_OK;
    case MB_POOL_RESERVED_CURRENT:
    case MB_POOL_USED_CURRENT:
        return mb__fail(MB_ERR_INVALID, "the present figures of a pool are read only");
    }
    return mb__fail(MB_ERR_INVALID, "%d is no attribute of a pool", (int)attr);
}

enum mb_err mb__pool_get(struct mb_pool *pool, enum mb_pool_attr attr, uint64_t *value)
{
    mb__fold(pool->dev);
    switch (attr) {
    case MB_POOL_RELEASE_THRESHOLD:
        *value = pool->release_threshold;
        return MB_OK;
    case MB_POOL_LIMIT:
        *value = pool->limit_bytes;
        return MB_OK;
    case MB_POOL_REUSE_FOLLOW_EVENTS:
        *value = pool->follow_events;
        return MB_OK;
    case MB_POOL_REUSE_OPPORTUNISTIC:
        *value = pool->opportunistic;
        return MB_OK;
    case MB_POOL_REUSE_INTERNAL_DEPS:
        *value = pool->internal_deps;
        return MB_OK;
    case MB_POOL_KEEP:
        *value = pool->keep;
        return MB_OK;
    case MB_POOL_RESERVED_CURRENT:
        *value = pool->heap.total_bytes;
        return MB_OK;
    case MB_POOL_RESERVED_HIGH:
        *value = pool->reserved_peak;
        return MB_OK;
    case MB_POOL_USED_CURRENT:
        *value = (uint64_t)mb__pool_live(pool).allocated;
        return MB_OK;
    case MB_POOL_USED_HIGH:
        *value = pool->allocated_peak;
        return MB_OK;
    }
    return mb__fail(MB_ERR_INVALID, "%d is no attribute of a pool", (int)attr);
}
