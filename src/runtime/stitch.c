/* SPDX-License-Identifier: MIT */
/*
 * Windows: a range of addresses that shows several home ranges in a row.
 *
 * To compose a block: plan (plan.c) over the ranges that the stream may use, take addresses, map
 * the frames on the stream, and only then take the ranges, which cannot fail. The block's first and
 * last frame may be shared with other blocks, which have addresses of their own.
 *
 * When the block is freed its ranges go back to the heap, but the mapping stays in a cache. An
 * address that nobody uses harms nobody: the frames remain the heap's. A later request of the same
 * size that finds all the ranges free takes it as it stands, as a training loop does in each step.
 *
 * Locking: the device's lock, over calls of vm too. Trade-off: cached windows cost addresses and
 * tables: bounded, dropped oldest first, on the stream that used them last; those in use stay.
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "runtime/watch.h"

#define FRAME MB_FRAME_BYTES

enum {
    WINDOW_TRIES = 16, /* cached windows of the right size that are looked at for one request */
};

static uint64_t frame_down(uint64_t addr)
{
    return addr & ~(FRAME - 1);
}

static uint64_t frame_up(uint64_t addr)
{
    return (addr + FRAME - 1) & ~(FRAME - 1);
}

/* ------------------------------------------------------------------ unmapping */

/* A stream behind whose work the window may be unmapped, or NULL: its users may still run and no
 * single stream is behind them. */
static struct mb__stream *unmap_stream(struct mb_device *dev, const struct mb__window *window)
{
    struct mb__stream *last = window->last;
    bool gone = last && (last->retired || window->last_ticket <= last->sealed);
    bool passed;

    if (gone) /* nobody else need ask: its owner does not use it any more */
        mb__stream_poll(dev, last);
    passed = !last || window->last_ticket <= last->done;
    for (unsigned i = 0; window->uses && i < window->uses->count; i++) {
        const struct mb__order_point *point = &window->uses->points[i];

        if (!mb__order_allows(NULL, point->stream, point->ticket))
            return NULL;
    }
    if (passed)
        return dev->own;
    return gone ? NULL : last;
}

static bool clear_entries(struct mb_device *dev, const struct mb__window *window)
{
    struct mb__stream *stream = unmap_stream(dev, window);
    struct mb_vm_op op = {.kind = MB_VM_UNMAP, .va = window->va, .frames = window->shown};

    if (!stream)
        return false;
    if (!mb__pte_pop(dev->vm, stream->hw, &op, 1, NULL))
        return true;
    mb__log(MB_LOG_WARN, "runtime", "unmap of a window: %s", mb_error_detail());
    return false;
}

/* The window is unmapped and in no list. */
static void free_addresses(struct mb_device *dev, struct mb__window *window)
{
    if (mb__free_va(dev->vm, window->va, window->frames * FRAME))
        mb__log(MB_LOG_WARN, "runtime", "addresses of a window: %s", mb_error_detail());
    mb__tree_erase(&dev->windows, &window->by_va);
    mb__order_unref(window->uses);
    free(window);
}

/* Unmaps and frees the record; false: not now. The window is in no list. */
static bool unmap_window(struct mb_device *dev, struct mb__window *window)
{
    if (!clear_entries(dev, window))
        return false;
    free_addresses(dev, window);
    return true;
}

static void make_zombie(struct mb_device *dev, struct mb__window *window)
{
    /* Without host memory the window stays mapped, harmless, until close. */
    if (!MB_VEC_PUSH(&dev->zombies, window))
        mb__log(MB_LOG_WARN, "runtime", "no host memory to remember a window");
}

static void shrink_quarantine(struct mb_device *dev, uint64_t keep_bytes)
{
    while (dev->quarantine_bytes > keep_bytes) {
        struct mb__window *oldest = dev->quarantine_oldest;

        dev->quarantine_oldest = oldest->newer;
        if (!dev->quarantine_oldest)
            dev->quarantine_newest = NULL;
        dev->quarantine_bytes -= oldest->frames * FRAME;
        free_addresses(dev, oldest);
    }
}

/* check:uaf: the addresses fault from now on, and are not given out again for long. */
static void quarantine(struct mb_device *dev, struct mb__window *window)
{
    if (!clear_entries(dev, window)) {
        make_zombie(dev, window);
        return;
    }
    window->newer = NULL;
    if (dev->quarantine_newest)
        dev->quarantine_newest->newer = window;
    else
        dev->quarantine_oldest = window;
    dev->quarantine_newest = window;
    dev->quarantine_bytes += window->frames * FRAME;
    shrink_quarantine(dev, dev->config.window_bytes);
}
/* ------------------------------------------------------------------ mapping */

/* The frames under the pieces, one per page of the window, into dev->pfns. */
static enum mb_err list_frames(struct mb_device *dev, const struct mb__range *pieces, size_t count,
                               uint32_t frames)
{
    uint32_t used = 0;

    if (!MB_VEC_RESERVE(&dev->pfns, frames))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u frames", frames);
    for (size_t i = 0; i < count; i++) {
        uint64_t first = frame_down(pieces[i].addr);
        uint32_t part = (uint32_t)((frame_up(pieces[i].addr + pieces[i].bytes) - first) / FRAME);
        enum mb_err err = mb__home_pfns(dev->vm, mb__va(first), part, dev->pfns.data + used);

        if (err)
            return err;
        used += part;
    }
    return MB_OK;
}

static uint32_t frames_of(const struct mb__range *pieces, size_t count)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < count; i++)
        bytes += frame_up(pieces[i].addr + pieces[i].bytes) - frame_down(pieces[i].addr);
    return (uint32_t)(bytes / FRAME);
}

static struct mb__window *window_new(const struct mb__range *pieces, size_t count, uint64_t bytes)
{
    struct mb__window *window = calloc(1, sizeof(*window) + count * sizeof(*pieces));

    if (!window)
        return NULL;
    memcpy(window->ranges, pieces, count * sizeof(*pieces));
    window->count = (uint32_t)count;
    window->bytes = bytes;
    window->offset = pieces[0].addr % FRAME;
    window->frames = window->shown = frames_of(pieces, count);
    return window;
}

/* Addresses for a window. If there are none, cached windows and the older half of those in
 * quarantine make room. */
static enum mb_err take_addresses(struct mb_pool *pool, struct mb__window *window)
{
    struct mb_device *dev = pool->dev;
    uint64_t bytes = window->frames * FRAME;
    enum mb_err err = mb__alloc_va(dev->vm, bytes, 0, &window->va);

    if (err != MB_ERR_NO_ADDRESS)
        return err;
    for (struct mb_pool *each = dev->pools; each; each = each->next)
        mb__windows_drop(each, 0);
    shrink_quarantine(dev, dev->quarantine_bytes / 2);
    return mb__alloc_va(dev->vm, bytes, 0, &window->va);
}

/* Nobody will have the window after all, though its map has been submitted: a record of its own
 * stands for it until the entries are cleared. */
static void abandon(struct mb_device *dev, const struct mb__window *window)
{
    struct mb__window *left = malloc(sizeof(*left));

    if (!left) {
        mb__log(MB_LOG_WARN, "runtime", "a window stays mapped until the device is closed");
        return;
    }
    *left = *window;
    left->count = 0;
    mb__tree_insert(&dev->windows, &left->by_va, left->va.addr, 0);
    if (!unmap_window(dev, left))
        make_zombie(dev, left);
}

static enum mb_err map_window(struct mb__request *req, struct mb__window *window)
{
    struct mb_device *dev = req->dev;
    struct mb__stream *stream = req->stream ? req->stream : dev->own;
    struct mb_vm_op op = {.kind = MB_VM_MAP, .prot = MB_PROT_READ_WRITE, .frames = window->frames};
    uint64_t start = mb__now_ns();
    enum mb_err err = list_frames(dev, window->ranges, window->count, window->frames);

    if (!err)
        err = take_addresses(req->pool, window);
    if (err)
        return err;
    op.va = window->va;
    op.pfns = dev->pfns.data;
    op.cap = mb__owner_cap(dev->vm, req->pool->id);
    err = mb__pte_pop(dev->vm, stream->hw, &op, 1, &window->mapped);
    if (err) {
        (void)mb__free_va(dev->vm, window->va, window->frames * FRAME);
        return err;
    }
    window->mapped_on = stream;
    /* The runtime's own stream waits for nobody, so this wait is the time of the map alone. */
    if (!req->stream) {
        err = dev->hw->ops->fence_wait_host(dev->hw, window->mapped, 0);
        window->mapped_on = NULL;
        if (err)
            abandon(dev, window);
    }
    mb__hist_record(&dev->map_hist, mb__now_ns() - start);
    mb__note_held(dev); /* addresses may have cost donors */
    return err;
}

/* The block takes the window's ranges and its address. Nodes are prepared. */
static void occupy(struct mb__request *req, struct mb__window *window)
{
    for (uint32_t i = 0; i < window->count; i++)
        mb__take_range(req, window->ranges[i].addr, window->ranges[i].bytes);
    window->block = req->block;
    req->block->window = window;
    req->block->addr = window->va.addr + window->offset;
    req->pool->stitched_live++;
}

static enum mb_err compose(struct mb__request *req, const struct mb__range *pieces, size_t count)
{
    struct mb_device *dev = req->dev;
    struct mb__window *window;
    enum mb_err err = mb__heap_prepare(&req->pool->heap, 2 * (unsigned)count);

    if (err)
        return err;
    /* Several lanes, but one range: its home addresses do. */
    if (count == 1 && !(dev->config.checks & MB__CHECK_UAF)) {
        mb__take_range(req, pieces[0].addr, pieces[0].bytes);
        req->block->addr = pieces[0].addr;
        return MB_OK;
    }
    window = window_new(pieces, count, req->bytes);
    if (!window)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a window of %zu pieces", count);
    err = map_window(req, window);
    if (err) {
        free(window);
        return err;
    }
    mb__tree_insert(&dev->windows, &window->by_va, window->va.addr, 0);
    occupy(req, window);
    dev->counters.stitches++;
    mb__watch_note(dev, MB_HOOK_STITCH, req->block->addr, req->bytes,
                   req->stream ? req->stream->native : NULL);
    return MB_OK;
}

/* ------------------------------------------------------------------ cached windows */

static void uncache(struct mb_pool *pool, struct mb__window *window)
{
    mb__tree_erase(&pool->windows, &window->by_bytes);
    pool->window_bytes -= window->frames * FRAME;
    if (window->older)
        window->older->newer = window->newer;
    else
        pool->window_oldest = window->newer;
    if (window->newer)
        window->newer->older = window->older;
    else
        pool->window_newest = window->older;
    window->older = window->newer = NULL;
}

/* `near`: where the range before ended; gets where this one does. */
static bool range_usable(const struct mb__request *req, struct mb__range range,
                         struct mb__near *near)
{
    struct mb__node *node = mb__heap_find_near(&req->pool->heap, *near, range.addr);
    uint64_t end = range.addr + range.bytes;

    for (; node; node = node->next) {
        if (!mb__may_collect(req, node))
            return false;
        *near = (struct mb__near){node, node->edge_next};
        if (node->addr + node->bytes >= end)
            return true;
    }
    return false;
}

/* Its entries are in place for what the stream does next, and all its ranges are free. */
static bool window_fits(const struct mb__request *req, const struct mb__window *window)
{
    const struct mb_hw_ops *ops = req->dev->hw->ops;
    struct mb__near near = {0};

    if (window->mapped_on && window->mapped_on != req->stream &&
        !ops->fence_done(req->dev->hw, window->mapped))
        return false;
    for (uint32_t i = 0; i < window->count; i++)
        if (!range_usable(req, window->ranges[i], &near))
            return false;
    return true;
}

static enum mb_err reuse_window(struct mb__request *req)
{
    struct mb_pool *pool = req->pool;
    struct mb__link *link = mb__tree_at_least(&pool->windows, req->bytes, 0);

    for (unsigned tries = 0; link && link->major == req->bytes && tries < WINDOW_TRIES;
         tries++, link = mb__tree_next(link)) {
        struct mb__window *window = MB__TREE_ENTRY(link, struct mb__window, by_bytes);
        enum mb_err err;

        if (!window_fits(req, window))
            continue;
        err = mb__heap_prepare(&pool->heap, 2 * window->count);
        if (err)
            return err;
        uncache(pool, window);
        mb__order_unref(window->uses);
        window->uses = NULL;
        window->last = NULL;
        occupy(req, window);
        req->dev->counters.window_hits++;
        return MB_OK;
    }
    return MB_ERR_NO_MEMORY;
}

void mb__window_cache(struct mb_pool *pool, struct mb__window *window, struct mb__stream *stream,
                      uint64_t ticket, struct mb__order *uses)
{
    const struct mb__config *config = &pool->dev->config;

    window->block = NULL;
    /* A host free promises that no device work uses the block; its map may still be under way. */
    if (window->mapped_on && pool->dev->hw->ops->fence_done(pool->dev->hw, window->mapped))
        window->mapped_on = NULL;
    window->last = stream ? stream : window->mapped_on;
    window->last_ticket = stream ? ticket : 0;
    if (!stream && window->last) /* a retired stream's last ticket was closed when it retired */
        window->last_ticket = mb__stream_ticket(window->last) - window->last->retired;
    if (window->last && window->last_ticket > window->last->freed)
        window->last->freed = window->last_ticket;
    window->uses = uses;
    if (uses)
        uses->refs++;
    if (config->checks & MB__CHECK_UAF) {
        quarantine(pool->dev, window);
        return;
    }
    mb__tree_insert(&pool->windows, &window->by_bytes, window->bytes, ++pool->window_serial);
    window->older = pool->window_newest;
    if (window->older)
        window->older->newer = window;
    else
        pool->window_oldest = window;
    pool->window_newest = window;
    pool->window_bytes += window->frames * FRAME;
    if (pool->window_bytes > config->window_bytes || pool->windows.count > MB__WINDOWS_MAX)
        mb__windows_drop(pool, config->window_bytes - config->window_bytes / 8);
}

void mb__windows_drop(struct mb_pool *pool, uint64_t keep_bytes)
{
    struct mb__window *window = pool->window_oldest;

    while (window && (pool->window_bytes > keep_bytes || pool->windows.count > MB__WINDOWS_MAX)) {
        struct mb__window *newer = window->newer;

        if (unmap_stream(pool->dev, window)) {
            uncache(pool, window);
            if (!unmap_window(pool->dev, window))
                make_zombie(pool->dev, window);
        }
        window = newer;
    }
}

enum mb_err mb__windows_orphan(struct mb_pool *pool)
{
    struct mb_device *dev = pool->dev;

    if (!MB_VEC_RESERVE(&dev->zombies, dev->zombies.count + pool->windows.count))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the windows of a pool");
    while (pool->window_oldest) {
        struct mb__window *window = pool->window_oldest;

        uncache(pool, window);
        if (!unmap_window(dev, window))
            make_zombie(dev, window);
    }
    return MB_OK;
}

void mb__zombies_poll(struct mb_device *dev)
{
    for (size_t i = dev->zombies.count; i-- > 0;) {
        struct mb__window *window = dev->zombies.data[i];

        if (unmap_window(dev, window))
            MB_VEC_SWAP_REMOVE(&dev->zombies, i);
    }
}

void mb__windows_fini(struct mb_device *dev)
{
    while (dev->windows.root) {
        struct mb__window *window = MB__TREE_ENTRY(dev->windows.root, struct mb__window, by_va);

        mb__tree_erase(&dev->windows, &window->by_va);
        mb__order_unref(window->uses);
        free(window);
    }
    MB_VEC_FREE(&dev->zombies);
}

struct mb__block *mb__window_block(struct mb_device *dev, uint64_t addr)
{
    struct mb__link *link = mb__tree_at_most(&dev->windows, addr, 0);
    struct mb__window *window;

    if (!link)
        return NULL;
    window = MB__TREE_ENTRY(link, struct mb__window, by_va);
    if (!window->block || addr < window->block->addr || addr >= window->block->addr + window->bytes)
        return NULL;
    return window->block;
}

/* ------------------------------------------------------------------ the entries */

enum mb_err mb__stitch_range(struct mb__request *req, uint64_t addr)
{
    struct mb__range range = {addr, req->bytes};

    return compose(req, &range, 1);
}

enum mb_err mb__stitch(struct mb__request *req)
{
    struct mb_device *dev = req->dev;
    struct mb__plan plan;
    enum mb_err err;

    if (req->pool->keep)
        return MB_ERR_NO_MEMORY; /* a window could not be mapped again at each replay */
    err = reuse_window(req);
    if (err != MB_ERR_NO_MEMORY)
        return err;
    err = mb__collect(req);
    if (err)
        return err;
    for (size_t i = 0; i < dev->ranges.count; i++) {
        struct mb__range range = dev->ranges.data[i];

        if (range.bytes < req->bytes)
            continue;
        mb__place(range, req->bytes, &range.addr);
        range.bytes = req->bytes;
        return compose(req, &range, 1);
    }
    plan = mb__plan(dev->ranges.data, dev->ranges.count, req->bytes, dev->pieces.data);
    req->missing_bytes = plan.missing_bytes;
    if (!plan.count)
        return MB_ERR_NO_MEMORY;
    return compose(req, dev->pieces.data, plan.count);
}

enum mb_err mb__stitch_if_cheaper(struct mb__request *req, int64_t cost)
{
    struct mb_device *dev = req->dev;
    enum mb_err err = reuse_window(req);
    struct mb__plan plan;

    if (err != MB_ERR_NO_MEMORY)
        return err;
    err = mb__collect(req);
    if (err)
        return err;
    plan = mb__plan(dev->ranges.data, dev->ranges.count, req->bytes, dev->pieces.data);
    if (!plan.count || plan.cost >= cost)
        return MB_ERR_NO_MEMORY;
    return compose(req, dev->pieces.data, plan.count);
}

/* ------------------------------------------------------------------ shorter blocks */

enum mb_err mb__window_shrink(struct mb_device *dev, struct mb__window *window, uint64_t bytes)
{
    uint32_t pages = (uint32_t)(frame_up(window->offset + bytes) / FRAME), count = 0;
    struct mb_vm_op op = {.kind = MB_VM_UNMAP,
                          .va = mb__va_add(window->va, pages * FRAME),
                          .frames = window->shown - pages};
    uint64_t left = bytes;
    enum mb_err err = MB_OK;

    /* The caller of realloc promises that no device work uses the block; its map may be under way
     * still. */
    if (op.frames && window->mapped_on)
        err = dev->hw->ops->fence_wait_host(dev->hw, window->mapped, 0);
    if (!err && op.frames)
        err = mb__pte_pop(dev->vm, dev->own->hw, &op, 1, NULL);
    if (err)
        return err;
    for (; left; count++) {
        struct mb__range *range = &window->ranges[count];

        range->bytes = range->bytes < left ? range->bytes : left;
        left -= range->bytes;
    }
    window->count = count;
    window->shown = pages;
    window->bytes = bytes;
    return MB_OK;
}

/* ------------------------------------------------------------------ longer blocks */

/* The block's own ranges, neighbours joined, at the front of dev->pieces; `rest` behind them is the
 * free part of its last frame. Room for both is there. */
static size_t own_ranges(const struct mb__block *block, struct mb__range *pieces, uint64_t *end)
{
    size_t used = 0;

    for (const struct mb__node *node = block->pieces; node; node = node->piece_next) {
        if (used && pieces[used - 1].addr + pieces[used - 1].bytes == node->addr)
            pieces[used - 1].bytes += node->bytes;
        else
            pieces[used++] = (struct mb__range){node->addr, node->bytes};
    }
    *end = pieces[used - 1].addr + pieces[used - 1].bytes;
    return used;
}

static size_t count_pieces(const struct mb__block *block)
{
    size_t count = 0;

    for (const struct mb__node *node = block->pieces; node; node = node->piece_next)
        count++;
    return count;
}

/* Cuts [addr, addr + bytes) out of the collected ranges; false: it is not wholly in one of them. */
static bool claim_range(struct mb_device *dev, uint64_t addr, uint64_t bytes)
{
    for (size_t i = 0; i < dev->ranges.count; i++) {
        struct mb__range *range = &dev->ranges.data[i];

        if (range->addr != addr || range->bytes < bytes)
            continue;
        range->addr += bytes;
        range->bytes -= bytes;
        if (!range->bytes)
            MB_VEC_SWAP_REMOVE(&dev->ranges, i);
        return true;
    }
    return false;
}

/* The block moves to the window: its old ranges are its own already, the new ones are taken. */
static void move_to_window(struct mb__request *req, struct mb__window *window, size_t own,
                           uint64_t own_rest)
{
    struct mb__block *block = req->block;
    struct mb_device *dev = req->dev;
    const struct mb__range *joint = &window->ranges[own - 1];

    if (own_rest)
        mb__take_range(req, joint->addr + joint->bytes - own_rest, own_rest);
    for (uint32_t i = (uint32_t)own; i < window->count; i++)
        mb__take_range(req, window->ranges[i].addr, window->ranges[i].bytes);
    mb__table_del(&dev->table, block->addr);
    if (block->window)
        mb__window_cache(req->pool, block->window, NULL, 0, NULL);
    else
        req->pool->stitched_live++;
    window->block = block;
    block->window = window;
    block->addr = window->va.addr + window->offset;
    block->generation = ++dev->generation;
    mb__tree_insert(&dev->windows, &window->by_va, window->va.addr, 0);
    mb__table_put(&dev->table, block->addr, block);
    dev->counters.stitches++;
    mb__watch_note(dev, MB_HOOK_STITCH, block->addr, window->bytes, NULL);
}

/* Plans the continuation into dev->pieces behind the block's own ranges. *rest: bytes of the
 * block's last frame that join its last range. Returns all pieces; 0 if it cannot be done, with
 * req->missing_bytes set if more memory would do. */
static size_t plan_longer(struct mb__request *req, uint64_t more, size_t *own, uint64_t *rest)
{
    struct mb_device *dev = req->dev;
    struct mb__plan plan = {0};
    uint64_t end;

    req->missing_bytes = 0;
    *own = own_ranges(req->block, dev->pieces.data, &end);
    *rest = frame_up(end) - end;
    if (*rest > more)
        *rest = more;
    if (*rest && !claim_range(dev, end, *rest))
        return 0;
    if (more > *rest) {
        plan = mb__plan_longer(dev->ranges.data, dev->ranges.count, more - *rest,
                               dev->pieces.data + *own);
        req->missing_bytes = plan.missing_bytes;
        if (!plan.count)
            return 0;
    }
    dev->pieces.data[*own - 1].bytes += *rest;
    return *own + plan.count;
}

/* Collects and plans; grows the pool by what is missing, once. MB_ERR_NO_MEMORY: it cannot be done.
 */
static enum mb_err find_longer(struct mb__request *req, uint64_t more, size_t *own, uint64_t *rest,
                               size_t *count)
{
    struct mb_device *dev = req->dev;
    enum mb_err err = MB_OK;

    for (unsigned tries = 0; !err && tries < 2; tries++) {
        err = mb__collect(req);
        if (!err && !MB_VEC_RESERVE(&dev->pieces, dev->ranges.count + 2 + count_pieces(req->block)))
            err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the plan of a longer block");
        if (err)
            return err;
        *count = plan_longer(req, more, own, rest);
        if (*count)
            return MB_OK;
        err = req->missing_bytes ? mb__pool_grow(req) : MB_ERR_NO_MEMORY;
    }
    return err == MB_ERR_LIMIT || !err ? MB_ERR_NO_MEMORY : err;
}

enum mb_err mb__stitch_longer(struct mb_device *dev, struct mb__block *block, uint64_t requested,
                              uint64_t bytes)
{
    struct mb__request req = {.dev = dev, .pool = block->pool, .block = block};
    uint64_t more = bytes - block->bytes, rest;
    struct mb__window *window;
    size_t own, count;
    enum mb_err err = find_longer(&req, more, &own, &rest, &count);

    if (!err)
        err = mb__heap_prepare(&block->pool->heap, 2 * (unsigned)count + 2);
    if (!err)
        err = mb__table_prepare(&dev->table);
    if (err)
        return err;
    window = window_new(dev->pieces.data, count, bytes);
    if (!window)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a window of %zu pieces", count);
    err = map_window(&req, window);
    if (err) {
        free(window);
        return err;
    }
    move_to_window(&req, window, own, rest);
    mb__fold(block->pool->dev);
    mb__account(block->pool, 0, (int64_t)(requested - block->requested), (int64_t)more);
    __atomic_store_n(&block->requested, requested, __ATOMIC_RELAXED);
    block->bytes = bytes;
    mb__note_frames(dev);
    return MB_OK;
}
