/* SPDX-License-Identifier: MIT */
/*
 * The slow path: what malloc does when the thread's bins have nothing, and free when they are full.
 *
 * A request goes through a list of steps, from cheap to dear, until one finds memory:
 *
 *   holes       the closest fit among what the stream may use now
 *   flushed     the same after all bins went back to the heap
 *   composed    several ranges shown in a row through a window (stitch.c)
 *   finished    what other streams freed and the device has passed, or a known dependency orders
 *   spared      the stream waits for what other streams freed, if the pool has the bytes
 *   grown       frames from the pool of vm or the driver, exactly what is missing
 *   released    the same, after other pools gave back what they do not use
 *   waited      the stream waits for what other streams freed
 *   host        the host waits for everything that is pending
 *
 * With growth:fast, "grown" comes before "composed"; with growth:patient, "waited" comes before
 * "grown"; growth:independent leaves "spared" out. Each later step ends by trying the earlier ones.
 * No step changes anything that a later failure would have to undo, except that memory becomes
 * more usable.
 *
 * Locking: the device's lock throughout; "host" drops it while it waits.
 */
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "runtime/debug.h"
#include "runtime/watch.h"

enum {
    BLOCK_CHUNK = 128,
};

/* ------------------------------------------------------------------ block records */

static enum mb_err block_new(struct mb_device *dev, struct mb__block **out)
{
    if (!dev->spare_blocks) {
        struct mb__block *chunk = mb__calloc_apart(BLOCK_CHUNK, sizeof(*chunk));

        if (!chunk || !MB_VEC_PUSH(&dev->block_chunks, chunk)) {
            free(chunk);
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %d block records", BLOCK_CHUNK);
        }
        for (unsigned i = 0; i < BLOCK_CHUNK; i++) {
            chunk[i].next = dev->spare_blocks;
            dev->spare_blocks = &chunk[i];
        }
    }
    *out = dev->spare_blocks;
    dev->spare_blocks = (*out)->next;
    (*out)->next = NULL;
    return MB_OK;
}

static void block_drop(struct mb_device *dev, struct mb__block *block)
{
    mb__order_unref(block->uses);
    /* A late reader may still try to take the state, and look at these two; at nothing else. */
    __atomic_store_n(&block->state, MB__BLOCK_NONE, __ATOMIC_RELAXED);
    __atomic_store_n(&block->pins, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&block->requested, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&block->pool, NULL, __ATOMIC_RELAXED);
    memset(&block->addr, 0, sizeof(*block) - offsetof(struct mb__block, addr));
    block->next = dev->spare_blocks;
    dev->spare_blocks = block;
}

/* The warm path takes no lock: it sees the mark, or we see what it did to the state. */
bool mb__block_hold(struct mb__block *block)
{
    __atomic_store_n(&block->shown, true, __ATOMIC_SEQ_CST);
    return __atomic_load_n(&block->state, __ATOMIC_SEQ_CST) == MB__BLOCK_LIVE;
}

void mb__blocks_fini(struct mb_device *dev)
{
    for (size_t i = 0; i < dev->block_chunks.count; i++) {
        for (unsigned j = 0; j < BLOCK_CHUNK; j++)
            mb__order_unref(dev->block_chunks.data[i][j].uses);
        free(dev->block_chunks.data[i]);
    }
    MB_VEC_FREE(&dev->block_chunks);
}

/* ------------------------------------------------------------------ steps */

void mb__take_range(struct mb__request *req, uint64_t addr, uint64_t bytes)
{
    struct mb__node **tail = req->last ? &req->last->piece_next : &req->block->pieces;

    while (*tail)
        tail = &(*tail)->piece_next;
    while (bytes) {
        struct mb__near near = {req->last, req->listed};
        struct mb__node *node = mb__heap_find_near(&req->pool->heap, near, addr);
        uint64_t part = node->addr + node->bytes - addr;

        part = part < bytes ? part : bytes;
        req->listed = node->edge_next;
        req->last = *tail = mb__heap_take(&req->pool->heap, node, addr, part, req->block);
        tail = &req->last->piece_next;
        addr += part;
        bytes -= part;
    }
}

struct hole {
    struct mb__node *node; /* NULL: none */
    uint64_t addr;         /* for the block */
    int64_t cost;          /* mb__place() */
};

static bool may_use(const struct mb__request *req, const struct mb__node *node)
{
    return req->pool->keep ? mb__node_ordered(req->stream, node)
                           : mb__node_usable(req->stream, node);
}

/* Compares the closest fits of a lane. */
static void search_lane(const struct mb__request *req, const struct mb__lane *lane,
                        struct hole *best)
{
    struct mb__node *node = mb__heap_fit(lane, req->bytes);
    struct mb__link *link = node ? &node->by_size : NULL;
    uint64_t most = node ? node->bytes + MB_FRAME_BYTES : 0;

    for (unsigned tries = 0; link && tries < MB__FIT_TRIES; link = mb__tree_next(link)) {
        struct hole hole = {.node = MB__TREE_ENTRY(link, struct mb__node, by_size)};

        tries++;
        if (hole.node->bytes > most)
            break;
        if (!mb__lane_is_own(lane, req->stream) && !may_use(req, hole.node))
            continue;
        hole.cost = mb__place((struct mb__range){hole.node->addr, hole.node->bytes}, req->bytes,
                              &hole.addr);
        if (!best->node || hole.cost < best->cost)
            *best = hole;
    }
}

static uint64_t fragments(const struct mb__request *req)
{
    const struct mb_pool *pool = req->pool;
    uint64_t bytes = pool->ready.free_bytes - pool->ready.whole_bytes;

    if (req->stream && req->stream->index < pool->lane_count && pool->lanes[req->stream->index]) {
        const struct mb__lane *lane = pool->lanes[req->stream->index];

        bytes += lane->free_bytes - lane->whole_bytes;
    }
    return bytes;
}

/* Would the block be better composed of fragments, because there are too many of them? */
static bool should_compose(const struct mb__request *req, const struct hole *hole)
{
    return req->stream && !req->pool->keep && req->bytes >= MB__NEAR_FRAME &&
           hole->node->bytes != req->bytes && req->dev->config.growth != MB__GROWTH_FAST &&
           !req->dev->hw->caps.host_blocking &&
           fragments(req) > req->pool->heap.total_bytes / MB__FRAGMENT_SHARE;
}

static enum mb_err take_hole(struct mb__request *req, const struct hole *hole)
{
    enum mb_err err;

    if (req->dev->config.checks & MB__CHECK_UAF)
        return mb__stitch_range(req, hole->addr);
    if (should_compose(req, hole)) {
        struct mb__range range = {hole->node->addr, hole->node->bytes};

        err = mb__stitch_if_cheaper(req, mb__place_cost(range, req->bytes, hole->addr));
        if (err != MB_ERR_NO_MEMORY)
            return err;
    }
    err = mb__heap_prepare(&req->pool->heap, 2);
    if (err)
        return err;
    req->block->pieces =
        mb__heap_take(&req->pool->heap, hole->node, hole->addr, req->bytes, req->block);
    req->block->addr = hole->addr;
    return MB_OK;
}

static enum mb_err from_holes(struct mb__request *req)
{
    struct mb_pool *pool = req->pool;
    struct hole hole = {0};

    if (req->stream && req->stream->index < pool->lane_count && pool->lanes[req->stream->index])
        search_lane(req, pool->lanes[req->stream->index], &hole);
    search_lane(req, &pool->ready, &hole);
    if (!hole.node && req->ordered && req->stream) {
        for (uint32_t i = 0; i < pool->lane_count; i++)
            if (pool->lanes[i] && pool->lanes[i]->free_bytes && pool->follow_events)
                search_lane(req, pool->lanes[i], &hole);
        search_lane(req, &pool->apart, &hole);
    }
    return hole.node ? take_hole(req, &hole) : MB_ERR_NO_MEMORY;
}

static enum mb_err from_flushed(struct mb__request *req)
{
    return mb__bins_flush(req->dev, req->pool) ? from_holes(req) : MB_ERR_NO_MEMORY;
}

/* Large blocks wait in bins for a request of just their size. Any other large request is better
 * served when they are holes again, joined with their neighbours. */
static enum mb_err without_large_bins(struct mb__request *req)
{
    if (req->bytes >= MB__LARGE)
        mb__bins_flush_large(req->dev, req->pool);
    return from_holes(req);
}

static enum mb_err composed(struct mb__request *req)
{
    return mb__stitch(req);
}

static enum mb_err from_both(struct mb__request *req)
{
    enum mb_err err = from_holes(req);

    return err == MB_ERR_NO_MEMORY ? composed(req) : err;
}

static enum mb_err finished(struct mb__request *req)
{
    bool host = !req->stream;

    if (req->pool->opportunistic || host)
        mb__promote_for(req->pool, req->stream);
    req->ordered = true;
    return req->dev->config.growth == MB__GROWTH_FAST ? from_holes(req) : from_both(req);
}

static enum mb_err grown(struct mb__request *req)
{
    enum mb_err err = mb__pool_grow(req);

    req->grow_err = err;
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT)
        return MB_ERR_NO_MEMORY;
    return err ? err : from_both(req);
}

static enum mb_err released(struct mb__request *req)
{
    /* The pool's own limit stays, whoever gives back; what others hold counts against the device's.
     * */
    if (req->own_limit || !mb__release_others(req->dev, req->pool))
        return MB_ERR_NO_MEMORY;
    req->dev->counters.retries++;
    return grown(req);
}

static enum mb_err retry(struct mb__request *req)
{
    enum mb_err err = from_both(req);

    return err == MB_ERR_NO_MEMORY ? grown(req) : err;
}

static bool wait_for_others(struct mb__request *req)
{
    return req->stream && !req->pool->keep && req->pool->internal_deps &&
           mb__wait_for_others(req->pool, req->stream);
}

static enum mb_err waited(struct mb__request *req)
{
    return wait_for_others(req) ? retry(req) : MB_ERR_NO_MEMORY;
}

/* The pool has the bytes, and only their order is in the way: growing would take it beyond what was
 * ever in use at once, for good, where a wait delays one stream once. Without the bytes growth
 * cannot be helped, and no stream is made to wait for nothing. */
static enum mb_err spared(struct mb__request *req)
{
    const struct mb__heap *heap = &req->pool->heap;

    if (heap->used_bytes + req->bytes > heap->total_bytes || !req->pool->follow_events ||
        !wait_for_others(req))
        return MB_ERR_NO_MEMORY;
    return from_both(req);
}

/* The lock is dropped meanwhile; a pool without blocks may be destroyed then, and the stream. Their
 * records stay, and serve others. */
static enum mb_err wait_on_host(struct mb__request *req, const char *what)
{
    const struct mb__stream *stream = req->stream;
    mb_stream native = stream ? stream->native : NULL;
    uint32_t id = req->pool->id;
    enum mb_err err = mb__wait_on_host(req->dev);

    if (!mb__pool_is_open(req->pool) || req->pool->id != id)
        return mb__fail(MB_ERR_INVALID, "another thread destroyed the pool during the request");
    if (stream && (stream->retired || stream->native != native))
        return mb__fail(MB_ERR_INVALID, "another thread destroyed the stream %p during the request",
                        native);
    if (!err)
        return MB_OK;
    mb__log(MB_LOG_INFO, "runtime", "host wait for %s: %s", what, mb_error_detail());
    return MB_ERR_NO_MEMORY;
}

/* What other pools gave back last may still be shown by windows that were dropped only then: such
 * frames serve once the unmap has been executed. */
static enum mb_err after_drain(struct mb__request *req)
{
    struct mb_vm_stats stats;
    enum mb_err err;

    mb__vm_stats(req->dev->vm, &stats);
    if (!stats.draining_bytes)
        return MB_ERR_NO_MEMORY;
    err = wait_on_host(req, "frames");
    return err ? err : retry(req);
}

static enum mb_err after_host_wait(struct mb__request *req)
{
    enum mb_err err;

    if (req->pool->keep)
        return MB_ERR_NO_MEMORY; /* nothing that was captured has been executed */
    req->dev->counters.retries++;
    req->dev->counters.host_waits++;
    err = wait_on_host(req, "pending frees");
    if (err)
        return err;
    mb__bins_flush(req->dev, NULL);
    mb__promote(req->pool, true);
    err = retry(req);
    if (err == MB_ERR_NO_MEMORY)
        err = released(req);
    return err == MB_ERR_NO_MEMORY ? after_drain(req) : err;
}

enum mb_err mb__find_memory(struct mb__request *req)
{
    typedef enum mb_err step(struct mb__request *);
    /* By enum mb__growth; NULL ends each. */
    static step *const orders[][10] = {
        [MB__GROWTH_TIGHT] = {without_large_bins, from_flushed, composed, finished, spared, grown,
                              released, waited, after_host_wait},
        [MB__GROWTH_FAST] = {without_large_bins, from_flushed, finished, grown, composed, released,
                             waited, after_host_wait},
        [MB__GROWTH_PATIENT] = {without_large_bins, from_flushed, composed, finished, waited, grown,
                                released, after_host_wait},
        [MB__GROWTH_INDEPENDENT] = {without_large_bins, from_flushed, composed, finished, grown,
                                    released, waited, after_host_wait},
    };
    enum mb_err err = MB_ERR_NO_MEMORY;

    for (step *const *at = orders[req->dev->config.growth]; *at && err == MB_ERR_NO_MEMORY; at++)
        err = (*at)(req);
    return err;
}

/* ------------------------------------------------------------------ malloc */

/* The record is filled, the memory taken: from here on nothing fails. */
static void publish(struct mb__request *req, uint64_t requested)
{
    struct mb__block *block = req->block;
    struct mb_device *dev = req->dev;

    __atomic_store_n(&block->pool, req->pool, __ATOMIC_RELAXED);
    block->stream = req->stream;
    block->bytes = req->bytes;
    __atomic_store_n(&block->requested, requested, __ATOMIC_RELAXED);
    block->generation = ++dev->generation;
    __atomic_store_n(&block->state, MB__BLOCK_LIVE, __ATOMIC_RELEASE);
    mb__table_put(&dev->table, block->addr, block);
    mb__account(req->pool, 1, (int64_t)requested, (int64_t)req->bytes);
    mb__note_frames(dev);
    mb__watch_show(dev, block);
    dev->counters.mallocs++;
}

static enum mb_err malloc_locked(struct mb_device *dev, struct mb_pool *pool, uint64_t requested,
                                 bool host, mb_stream native, struct mb__block **out)
{
    struct mb__request req = {.dev = dev, .pool = pool};
    enum mb_err err = MB_OK;

    if (!mb__pool_is_open(pool)) /* another thread was first with the lock and destroyed it */
        return mb__pool_gone("mb_pool_malloc_async", pool);
    if (requested > dev->hw->caps.total_bytes) {
        dev->counters.failed_requests++;
        return mb__fail(
            MB_ERR_NO_MEMORY, "%llu bytes were asked for, the device has %llu in all; ask for less",
            (unsigned long long)requested, (unsigned long long)dev->hw->caps.total_bytes);
    }
    if (!host)
        err = mb__stream_get(dev, native, &req.stream);
    if (!err)
        err = mb__table_prepare(&dev->table);
    if (!err)
        err = block_new(dev, &req.block);
    if (err)
        return err;
    req.block->zone_bytes = mb__debug_zone(dev);
    req.bytes = mb__round(requested) + 2 * req.block->zone_bytes;
    mb__fold(pool->dev);
    err = mb__find_memory(&req);
    if (err) {
        block_drop(dev, req.block);
        dev->counters.failed_requests++;
        if (err != MB_ERR_NO_MEMORY)
            return err;
        return mb__oom_report(&req, requested,
                              req.grow_err == MB_ERR_LIMIT ? MB_ERR_LIMIT : MB_ERR_NO_MEMORY);
    }
    req.block->addr += req.block->zone_bytes;
    publish(&req, requested);
    if (req.stream)
        mb__bins_learn_stream(dev, req.stream);
    *out = req.block;
    return MB_OK;
}

static void take_back(struct mb_device *dev, struct mb__block *block);

enum mb_err mb__malloc(struct mb_device *dev, struct mb_pool *pool, uint64_t requested, bool host,
                       mb_stream native, void **out)
{
    struct mb__block *block = NULL;
    uint64_t start, ns;
    enum mb_err err;

    start = mb__now_ns();
    mb__lock(&dev->lock);
    err = malloc_locked(dev, pool, requested, host, native, &block);
    if (!err && block) {
        err = mb__debug_on_malloc(dev, block);
        if (err)
            take_back(dev, block);
        else
            *out = (void *)(uintptr_t)block->addr;
    }
    ns = mb__now_ns() - start;
    if (ns > dev->counters.malloc_max_ns)
        dev->counters.malloc_max_ns = ns;
    mb__unlock(&dev->lock);
    return err;
}

/* ------------------------------------------------------------------ free */

void mb__block_return(struct mb_device *dev, struct mb__block *block, struct mb__stream *stream,
                      uint64_t ticket)
{
    struct mb_pool *pool = block->pool;
    struct mb__order *order = block->uses; /* after the free: names its stream too */
    struct mb__lane *lane = &pool->ready;

    if (order)
        lane = &pool->apart;
    else if (stream)
        lane = pool->lanes[stream->index]; /* made when the block was freed */
    if (stream && ticket > stream->freed)
        stream->freed = ticket;
    mb__watch_hide(dev, block);
    if (block->window) {
        mb__window_cache(pool, block->window, stream, ticket, order);
        pool->stitched_live--;
    }
    mb__heap_give_all(&pool->heap, block->pieces, lane, ticket, order);
    block_drop(dev, block);
}

/* Not so while the warm path has a look at a live block. Lock held. */
static bool was_freed(const struct mb__block *block)
{
    return __atomic_load_n(&block->state, __ATOMIC_ACQUIRE) == MB__BLOCK_PINNED;
}

/* One more stream whose later frees wait for it. `ticket`: see struct mb__block.uses. */
static enum mb_err add_use(struct mb__block *block, struct mb__stream *stream, uint64_t ticket)
{
    struct mb__order *uses;

    for (unsigned i = 0; block->uses && i < block->uses->count; i++) {
        struct mb__order_point *point = &block->uses->points[i];

        if (point->stream != stream)
            continue;
        if (ticket > point->ticket)
            point->ticket = ticket;
        return MB_OK;
    }
    uses = mb__order_new(block->uses, stream, ticket);
    if (!uses)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the streams of a block");
    uses->refs = 1;
    if (!was_freed(block))
        stream->named++;
    mb__order_unref(block->uses);
    __atomic_store_n(&block->uses, uses, __ATOMIC_RELAXED);
    return MB_OK;
}

/* The order that its free has given to a pinned block becomes one that others can join. */
static enum mb_err join_order(struct mb__block *block, struct mb__stream *stream, uint64_t ticket)
{
    if (!block->uses && block->stream && block->stream != stream) {
        enum mb_err err = add_use(block, block->stream, block->ticket);

        if (err)
            return err;
    }
    if (block->uses)
        return add_use(block, stream, ticket);
    block->stream = stream; /* freed by the host, or on this very stream */
    block->ticket = ticket;
    return MB_OK;
}

enum mb_err mb__block_await(struct mb__block *block, struct mb__stream *stream)
{
    uint64_t ticket = mb__stream_ticket(stream);
    struct mb__lane *lane;
    enum mb_err err = mb__pool_lane(block->pool, stream, &lane);

    if (!err)
        err = was_freed(block) ? join_order(block, stream, ticket) : add_use(block, stream, ticket);
    if (!err && ticket > stream->freed)
        stream->freed = ticket;
    return err;
}

void mb__block_unpin(struct mb_device *dev, struct mb__block *block, uint32_t count)
{
    uint32_t pins = block->pins - count;

    __atomic_store_n(&block->pins, pins, __ATOMIC_RELEASE);
    if (pins || !was_freed(block))
        return;
    mb__debug_on_unpin(dev, block);
    mb__block_return(dev, block, block->stream, block->ticket);
}

enum mb_err mb__bad_pointer(struct mb_device *dev, const void *ptr, const char *call)
{
    uint64_t addr = (uint64_t)(uintptr_t)ptr;
    struct mb__block *block;

    if (dev->recent[(addr >> 9) % MB__RECENT] == addr)
        return mb__fail(MB_ERR_DOUBLE_FREE,
                        "%s(%p): the block was freed before; free each block once", call, ptr);
    block = mb__block_holding(dev, addr);
    if (block)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "%s(%p): the address lies 0x%llx bytes inside the block at 0x%llx of %llu "
                        "bytes; pass the address that malloc gave",
                        call, ptr, (unsigned long long)(addr - block->addr),
                        (unsigned long long)block->addr,
                        (unsigned long long)mb__block_requested(block));
    return mb__fail(MB_ERR_NOT_FOUND, "%s(%p): no block of this device starts there", call, ptr);
}

struct mb__block *mb__block_holding(struct mb_device *dev, uint64_t addr)
{
    struct mb__block *block = mb__window_block(dev, addr);

    for (struct mb_pool *pool = dev->pools; pool && !block; pool = pool->next) {
        struct mb__node *node = mb__heap_find(&pool->heap, addr);

        if (node && !node->lane && node->block && !((struct mb__block *)node->block)->window)
            block = node->block;
    }
    if (block && __atomic_load_n(&block->state, __ATOMIC_RELAXED) != MB__BLOCK_LIVE)
        return NULL;
    return block;
}

/* The host promises that the device is done with the block; that an alias of it has been unmapped,
 * of that it knows only the call. */
static enum mb_err unmaps_of(const struct mb__order *uses, struct mb__order **order)
{
    for (unsigned i = 0; uses && i < uses->count; i++) {
        const struct mb__order_point *point = &uses->points[i];
        struct mb__order *more;

        if (!point->ticket)
            continue;
        more = mb__order_new(*order, point->stream, point->ticket);
        if (!more)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the streams of a block");
        more->refs = 1;
        mb__order_unref(*order);
        *order = more;
    }
    return MB_OK;
}

/* What may fail in a free: the lane, and the joint order of a block that several streams used.
 * Tickets of the other streams are those open at the free. */
static enum mb_err prepare_free(struct mb__block *block, struct mb__stream *stream,
                                struct mb__order **order)
{
    struct mb__lane *lane;

    *order = NULL;
    if (!stream)
        return unmaps_of(block->uses, order);
    if (block->uses) {
        *order = mb__order_new(block->uses, stream, 0);
        if (!*order)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the streams of a block");
        (*order)->refs = 1;
        for (unsigned i = 0; i < (*order)->count; i++) {
            struct mb__order_point *point = &(*order)->points[i];
            struct mb__stream *user = point->stream;

            /* A retired stream's last ticket was closed when it retired. */
            point->ticket = mb__stream_ticket(user) - user->retired;
            if (point->ticket > user->freed)
                user->freed = point->ticket;
        }
    }
    return mb__pool_lane(block->pool, stream, &lane);
}

/* Out of the caller's hands; the bytes go back unless aliases of them live. */
static void unpublish(struct mb_device *dev, struct mb__block *block, struct mb__stream *stream,
                      struct mb__order *order)
{
    dev->recent[(block->addr >> 9) % MB__RECENT] = block->addr;
    dev->counters.frees++;
    mb__fold(block->pool->dev);
    mb__account(block->pool, -1, -(int64_t)block->requested, -(int64_t)block->bytes);
    mb__table_del(&dev->table, block->addr);
    mb__watch_note(dev, MB_HOOK_FREE, block->addr, block->requested,
                   stream ? stream->native : NULL);
    for (unsigned i = 0; block->uses && i < block->uses->count; i++)
        ((struct mb__stream *)block->uses->points[i].stream)->named--;
    mb__order_unref(block->uses);
    block->uses = order;
    block->stream = stream;
    /* A retired stream's last ticket was closed when it retired. */
    block->ticket = stream ? mb__stream_ticket(stream) - stream->retired : 0;
    if (!block->pins)
        mb__block_return(dev, block, stream, block->ticket);
}

/* A new block that the caller will not get, since its checks could not be set up. To those who
 * watch it has come and gone. */
static void take_back(struct mb_device *dev, struct mb__block *block)
{
    struct mb__stream *stream = block->stream;
    struct mb__order *order;
    enum mb_err err = MB_OK;

    dev->counters.failed_requests++;
    if (prepare_free(block, stream, &order)) {
        mb__log(MB_LOG_WARN, "runtime", "a block stays until the device is closed: %s",
                mb_error_detail());
        return;
    }
    /* Its zones may have been written over the pattern of free memory. */
    for (const struct mb__node *node = block->pieces; node && !err; node = node->piece_next)
        err = mb__debug_poison(dev, node->addr, node->bytes, stream);
    if (!err && !stream)
        err = mb__debug_settle(dev);
    if (err)
        mb__log(MB_LOG_WARN, "runtime", "poison: %s", mb_error_detail());
    __atomic_store_n(&block->state, MB__BLOCK_PINNED, __ATOMIC_RELEASE);
    mb__watch_note(dev, MB_HOOK_MALLOC, block->addr, block->requested,
                   stream ? stream->native : NULL);
    unpublish(dev, block, stream, order);
    dev->counters.mallocs--;
    dev->counters.frees--;
}

/* In a pool that keeps its memory nobody is asked whether the device is done, as a graph may be
 * replayed: there the host's free takes its place in the stream of the allocation, even if that has
 * been destroyed. */
static enum mb_err free_locked(struct mb_device *dev, void *ptr, bool host, mb_stream native)
{
    struct mb__block *block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    const char *call = host ? "mb_free" : "mb_free_async";
    struct mb__stream *stream = NULL;
    struct mb__order *order;
    uint32_t live = MB__BLOCK_LIVE;
    enum mb_err err = MB_OK;

    if (!block)
        return mb__bad_pointer(dev, ptr, call);
    if (!host)
        err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    /* From here on no other free of the block gets in; a failure puts the state back. */
    if (!__atomic_compare_exchange_n(&block->state, &live, MB__BLOCK_PINNED, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return mb__fail(MB_ERR_DOUBLE_FREE,
                        "%s(%p): the block was freed before; free each block once", call, ptr);
    if (host && block->pool->keep)
        stream = block->stream;
    err = prepare_free(block, stream, &order);
    if (!err)
        err = mb__debug_on_free(dev, block, stream);
    if (err) {
        mb__order_unref(order);
        __atomic_store_n(&block->state, MB__BLOCK_LIVE, __ATOMIC_RELEASE);
        return err;
    }
    unpublish(dev, block, stream, order);
    if (stream && !stream->retired)
        mb__bins_learn_stream(dev, stream);
    return MB_OK;
}

enum mb_err mb__free(struct mb_device *dev, void *ptr, bool host, mb_stream native)
{
    uint64_t start = mb__now_ns(), ns;
    enum mb_err err;

    mb__lock(&dev->lock);
    err = free_locked(dev, ptr, host, native);
    mb__zombies_poll(dev);
    ns = mb__now_ns() - start;
    if (ns > dev->counters.free_max_ns)
        dev->counters.free_max_ns = ns;
    mb__unlock(&dev->lock);
    return err;
}

enum mb_err mb__record_stream(struct mb_device *dev, void *ptr, mb_stream native)
{
    struct mb__block *block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    struct mb__stream *stream;
    enum mb_err err = mb__stream_get(dev, native, &stream);

    if (err)
        return err;
    if (!block || !mb__block_hold(block))
        return mb__bad_pointer(dev, ptr, "mb_record_stream");
    return add_use(block, stream, 0);
}
