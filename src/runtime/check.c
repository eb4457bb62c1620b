/* SPDX-License-Identifier: MIT */
/*
 * mb_check(): every invariant of the runtime, then vm's. Each is a function that names what is
 * broken.
 *
 * Locking: the device's lock. Threads on the warm path may move blocks between callers and bins
 * meanwhile, so sums over live blocks are compared only after all bins have been flushed and
 * counted under the shard locks; a check beside running threads still compares everything that the
 * lock guards.
 */
#include <inttypes.h>

#include "base/err.h"
#include "runtime/access.h"
#include "runtime/runtime.h"
#include "runtime/vmm.h"

/* total = used + what the lanes hold; each lane's own sums. */
static enum mb_err check_pool_bytes(struct mb_pool *pool)
{
    uint64_t free_bytes = pool->ready.free_bytes + pool->apart.free_bytes;
    enum mb_err err = mb__heap_check(&pool->heap);

    if (!err)
        err = mb__lane_check(&pool->ready);
    if (!err)
        err = mb__lane_check(&pool->apart);
    for (uint32_t i = 0; !err && i < pool->lane_count; i++) {
        if (!pool->lanes[i])
            continue;
        free_bytes += pool->lanes[i]->free_bytes;
        if ((pool->held[i / 64] >> i % 64 & 1) != (pool->lanes[i]->free_bytes != 0))
            return mb__fail(MB_ERR_CORRUPT, "pool %u: the index of lanes is wrong at %u", pool->id,
                            i);
        err = mb__lane_check(pool->lanes[i]);
    }
    if (err)
        return err;
    if (pool->heap.used_bytes + free_bytes != pool->heap.total_bytes)
        return mb__fail(MB_ERR_CORRUPT,
                        "pool %u: used %" PRIu64 " + free %" PRIu64 " is not the total %" PRIu64,
                        pool->id, pool->heap.used_bytes, free_bytes, pool->heap.total_bytes);
    return MB_OK;
}

/* requested <= allocated <= frames used <= owned. */
static enum mb_err check_pool_order(struct mb_pool *pool)
{
    struct mb__live live = mb__pool_live(pool);
    uint64_t mapped = pool->heap.used_frames * MB_FRAME_BYTES;

    if (live.requested < 0 || live.requested > live.allocated ||
        (uint64_t)live.allocated > mapped || mapped > pool->heap.total_bytes)
        return mb__fail(MB_ERR_CORRUPT,
                        "pool %u: requested %" PRId64 ", allocated %" PRId64
                        ", frames used %" PRIu64 ", owned %" PRIu64 " do not grow in this order",
                        pool->id, live.requested, live.allocated, mapped, pool->heap.total_bytes);
    return MB_OK;
}

/* The pieces of a block are its nodes, sum up to it, and lie where its addresses say. */
static enum mb_err check_block(const struct mb__block *block)
{
    uint64_t bytes = 0, home = block->pieces ? block->pieces->addr : 0;

    for (const struct mb__node *node = block->pieces; node; node = node->piece_next) {
        if (node->lane || node->block != block)
            return mb__fail(MB_ERR_CORRUPT, "block 0x%" PRIx64 ": a piece is not its own",
                            block->addr);
        if (!block->window && node->addr != home + bytes)
            return mb__fail(MB_ERR_CORRUPT, "block 0x%" PRIx64 ": pieces are not in a row",
                            block->addr);
        bytes += node->bytes;
    }
    if (bytes != block->bytes)
        return mb__fail(MB_ERR_CORRUPT,
                        "block 0x%" PRIx64 ": %" PRIu64 " bytes in pieces, not %" PRIu64,
                        block->addr, bytes, block->bytes);
    if (!block->window && home != block->addr - block->zone_bytes)
        return mb__fail(MB_ERR_CORRUPT, "block 0x%" PRIx64 ": its memory is at 0x%" PRIx64,
                        block->addr, home);
    return MB_OK;
}

static enum mb_err check_blocks(struct mb_device *dev)
{
    struct mb__block *block;
    size_t at = 0, count = 0;

    while ((block = mb__table_next(&dev->table, &at))) {
        enum mb_err err = check_block(block);

        if (err)
            return err;
        if (mb__table_get(&dev->table, block->addr) != block)
            return mb__fail(MB_ERR_CORRUPT, "block 0x%" PRIx64 " is not found by its address",
                            block->addr);
        count++;
    }
    if (count != dev->table.count)
        return mb__fail(MB_ERR_CORRUPT, "the table has %zu blocks and counts %zu", count,
                        dev->table.count);
    return MB_OK;
}

enum mb_err mb__pin_counted(struct mb_map *pins, const struct mb__block *block)
{
    uint64_t key = (uint64_t)(uintptr_t)block, count = 0;

    (void)mb__map_get(pins, key, &count);
    return mb__map_put(pins, key, count + 1)
               ? mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a check")
               : MB_OK;
}

/* Takes the blocks of a pool out of what was counted. Freed blocks that are pinned are in no table,
 * but their pieces are. */
static enum mb_err compare_pins(const struct mb_pool *pool, struct mb_map *pins)
{
    for (struct mb__link *link = mb__tree_first(&pool->heap.by_addr); link;
         link = mb__tree_next(link)) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_addr);
        const struct mb__block *block = node->lane ? NULL : node->block;
        uint64_t count = 0;

        if (!block || block->pieces != node)
            continue;
        (void)mb__map_del(pins, (uint64_t)(uintptr_t)block, &count);
        if (count != block->pins)
            return mb__fail(MB_ERR_CORRUPT,
                            "block 0x%" PRIx64 ": %u pins, but %" PRIu64
                            " aliases and peers show it",
                            block->addr, block->pins, count);
    }
    return MB_OK;
}

/* pins of a block = pages that show its frames + records of access to it. */
static enum mb_err check_pins(struct mb_device *dev)
{
    struct mb_map pins = {0};
    enum mb_err err = mb__vmm_count_pins(dev, &pins);

    if (!err)
        err = mb__access_count_pins(dev, &pins);
    for (struct mb_pool *pool = dev->pools; pool && !err; pool = pool->next)
        err = compare_pins(pool, &pins);
    if (!err && pins.count)
        err = mb__fail(MB_ERR_CORRUPT, "%zu records show blocks that are in no pool", pins.count);
    mb__map_free(&pins);
    return err;
}

/* Each page of a window shows the frame under its piece. */
static enum mb_err check_window(struct mb_device *dev, const struct mb__window *window)
{
    uint32_t page = 0;

    for (uint32_t i = 0; i < window->count; i++) {
        uint64_t at = window->ranges[i].addr & ~(MB_FRAME_BYTES - 1);
        uint64_t end = window->ranges[i].addr + window->ranges[i].bytes;

        for (; at < end; at += MB_FRAME_BYTES, page++) {
            mb_va va = mb__va_add(window->va, page * MB_FRAME_BYTES);

            if (!mb__pfn_eq(mb__vm_lookup(dev->vm, va), mb__home_pfn(dev->vm, mb__va(at))))
                return mb__fail(MB_ERR_CORRUPT,
                                "window 0x%" PRIx64
                                ": page %u does not show the frame of 0x%" PRIx64,
                                window->va.addr, page, at);
        }
    }
    if (page != window->shown || page > window->frames)
        return mb__fail(MB_ERR_CORRUPT, "window 0x%" PRIx64 ": %u pages in pieces, not %u",
                        window->va.addr, page, window->shown);
    return MB_OK;
}

static enum mb_err check_windows(struct mb_device *dev)
{
    for (struct mb__link *link = mb__tree_first(&dev->windows); link; link = mb__tree_next(link)) {
        const struct mb__window *window = MB__TREE_ENTRY(link, struct mb__window, by_va);
        enum mb_err err = window->block ? check_window(dev, window) : MB_OK;

        if (err)
            return err;
    }
    return MB_OK;
}

/* done < every recorded point < the open ticket, points in order; no clock beyond the open ticket;
 * behind what is sealed a fence was recorded, as nobody will ask the stream for one. */
static enum mb_err check_streams(struct mb_device *dev)
{
    for (size_t i = 0; i < dev->streams.count; i++) {
        const struct mb__stream *stream = dev->streams.data[i];
        uint64_t last = 0;

        for (unsigned p = 0; p < stream->point_count; p++) {
            if (stream->points[p].ticket <= last)
                return mb__fail(MB_ERR_CORRUPT, "stream %zu: its points are out of order", i);
            last = stream->points[p].ticket;
        }
        if (last >= stream->ticket || stream->done >= stream->ticket ||
            stream->freed > stream->ticket)
            return mb__fail(MB_ERR_CORRUPT, "stream %zu: a ticket was passed before it closed", i);
        if (stream->done > last)
            last = stream->done;
        if (stream->sealed >= stream->ticket ||
            (stream->freed <= stream->sealed && stream->freed > last))
            return mb__fail(MB_ERR_CORRUPT, "stream %zu: sealed, and no fence is behind it", i);
        for (uint32_t t = 0; t < stream->clock_count; t++)
            if (t < dev->streams.count && stream->clock[t] >= dev->streams.data[t]->ticket)
                return mb__fail(MB_ERR_CORRUPT, "stream %zu: its clock of %u runs ahead", i, t);
    }
    return MB_OK;
}

/* check:poison found writes to free memory. */
static enum mb_err check_poison(struct mb_device *dev)
{
    if (!dev->counters.poison_hits)
        return MB_OK;
    return mb__fail(MB_ERR_CORRUPT,
                    "%" PRIu64 " blocks had been written after their free; the log names them",
                    dev->counters.poison_hits);
}

enum mb_err mb__check_all(struct mb_device *dev)
{
    enum mb_err err = check_poison(dev);

    mb__bins_flush(dev, NULL);
    for (struct mb_pool *pool = dev->pools; pool && !err; pool = pool->next) {
        err = check_pool_bytes(pool);
        if (!err)
            err = check_pool_order(pool);
    }
    if (!err)
        err = check_blocks(dev);
    if (!err)
        err = check_windows(dev);
    if (!err)
        err = check_streams(dev);
    if (!err)
        err = mb__vmm_check(dev);
    if (!err)
        err = mb__access_check(dev);
    if (!err)
        err = check_pins(dev);
    return err ? err : mb__vm_check(dev->vm);
}
