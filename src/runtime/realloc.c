/* SPDX-License-Identifier: MIT */
/*
 * realloc: in place, by mapping, or by copying.
 *
 *   in place    the block shrinks, or the next addresses are free for anybody
 *   by mapping  the block's frames and further ones are shown in a row at new addresses; the
 *               contents do not move. Possible when the rest of the block's last frame is free
 *   by copying  on the default stream, and the host waits
 *
 * The caller promises, as for mb_free(), that the device is not using the block.
 *
 * To those who watch, a resize is a free and a malloc, and so is a failed one, of the same size.
 *
 * Locking: takes the device's lock; dropped between the parts of a copy, during which the old block
 * stands.
 */
#include "base/err.h"
#include "base/log.h"
#include "runtime/debug.h"
#include "runtime/info.h"
#include "runtime/watch.h"

#define FRAME MB_FRAME_BYTES

/* Bookkeeping after the block's size changed. */
static void resized(struct mb_device *dev, struct mb__block *block, uint64_t requested,
                    uint64_t bytes)
{
    int64_t more_requested = (int64_t)(requested - block->requested);
    int64_t more_bytes = (int64_t)(bytes - block->bytes);

    mb__fold(block->pool->dev);
    __atomic_store_n(&block->requested, requested, __ATOMIC_RELAXED);
    block->bytes = bytes;
    mb__account(block->pool, 0, more_requested, more_bytes);
    mb__note_frames(dev);
}

static struct mb__node *last_piece(const struct mb__block *block)
{
    struct mb__node *node = block->pieces;

    while (node->piece_next)
        node = node->piece_next;
    return node;
}

/* [end of the block, +more) in one free node that anybody may use, or NULL. */
static struct mb__node *free_behind(const struct mb__block *block, uint64_t more)
{
    struct mb__node *next = last_piece(block)->next;

    return next && next->lane && mb__node_usable(NULL, next) && next->bytes >= more ? next : NULL;
}

static struct mb__node *last_but_one(const struct mb__block *block)
{
    struct mb__node *node = block->pieces;

    while (node->piece_next->piece_next)
        node = node->piece_next;
    return node;
}

/* A window shows the block's last frame to its end. */
static bool window_reaches(const struct mb__block *block, uint64_t more)
{
    const struct mb__node *last = last_piece(block);
    uint64_t end = last->addr + last->bytes;

    return !block->window || ((end + FRAME - 1) & ~(FRAME - 1)) - end >= more;
}

/* MB_ERR_NO_MEMORY: the block cannot grow where it is. */
static enum mb_err grow_in_place(struct mb_device *dev, struct mb__block *block, uint64_t requested,
                                 uint64_t bytes)
{
    struct mb__request req = {.dev = dev, .pool = block->pool, .block = block};
    uint64_t more = bytes - block->bytes;
    struct mb__node *last, *behind;
    enum mb_err err = mb__heap_prepare(&block->pool->heap, 2);

    if (err)
        return err;
    behind = free_behind(block, more);
    if (!behind || !window_reaches(block, more))
        return MB_ERR_NO_MEMORY;
    mb__take_range(&req, behind->addr, more);
    last = last_but_one(block);
    mb__heap_join_used(&block->pool->heap, last, last->piece_next);
    if (block->window) {
        block->window->bytes += more;
        block->window->ranges[block->window->count - 1].bytes += more;
    }
    resized(dev, block, requested, bytes);
    return MB_OK;
}

static void poison_rest(struct mb_device *dev, const struct mb__node *node)
{
    enum mb_err err = MB_OK;

    for (; node && !err; node = node->piece_next)
        err = mb__debug_poison(dev, node->addr, node->bytes, NULL);
    if (!err)
        err = mb__debug_settle(dev);
    if (err)
        mb__log(MB_LOG_WARN, "runtime", "poison: %s", mb_error_detail());
}

/* The upper part of the block's memory becomes anybody's. Cuts are prepared for. */
static void give_rest(struct mb__block *block, uint64_t bytes)
{
    struct mb_pool *pool = block->pool;
    struct mb__node *node = block->pieces, *rest;

    for (; bytes > node->bytes; node = node->piece_next)
        bytes -= node->bytes;
    if (bytes < node->bytes)
        mb__heap_split_used(&pool->heap, node, node->addr + bytes);
    rest = node->piece_next;
    node->piece_next = NULL;
    poison_rest(pool->dev, rest);
    while (rest) {
        struct mb__node *next = rest->piece_next;

        mb__heap_give(&pool->heap, rest, &pool->ready, 0, NULL);
        rest = next;
    }
}

static enum mb_err shrink(struct mb_device *dev, struct mb__block *block, uint64_t requested,
                          uint64_t bytes)
{
    enum mb_err err = mb__heap_prepare(&block->pool->heap, 1);

    if (!err && block->window && bytes < block->bytes)
        err = mb__window_shrink(dev, block->window, bytes);
    if (err)
        return err;
    if (bytes < block->bytes)
        give_rest(block, bytes);
    resized(dev, block, requested, bytes);
    return MB_OK;
}

/* Without moving the contents, if that can be done. */
static enum mb_err resize(struct mb_device *dev, struct mb__block *block, uint64_t requested)
{
    uint64_t bytes = mb__round(requested) + 2 * block->zone_bytes;
    enum mb_err err;

    if (block->zone_bytes || block->pool->keep)
        return MB_ERR_NO_MEMORY; /* its zones would have to move, or it has to stay: copy */
    if (bytes <= block->bytes)
        return shrink(dev, block, requested, bytes);
    mb__promote(block->pool, true);
    err = grow_in_place(dev, block, requested, bytes);
    return err == MB_ERR_NO_MEMORY ? mb__stitch_longer(dev, block, requested, bytes) : err;
}

/* The block to be resized, as it was when the lock was held. */
struct old_block {
    uint64_t bytes; /* as asked for */
    struct mb_pool *pool;
    struct mb__stream
        *stream; /* of the allocation; records of streams live as long as the device */
};

static enum mb_err resize_watched(struct mb_device *dev, struct mb__block *block,
                                  uint64_t requested)
{
    enum mb_err err;

    mb__watch_note(dev, MB_HOOK_FREE, block->addr, block->requested, NULL);
    mb__watch_hide(dev, block);
    err = resize(dev, block, requested);
    mb__watch_show(dev, block);
    mb__watch_note(dev, MB_HOOK_MALLOC, block->addr, block->requested, NULL);
    return err;
}

static enum mb_err try_resize(struct mb_device *dev, void *ptr, uint64_t requested, void **out,
                              struct old_block *old)
{
    struct mb__block *block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    uint32_t live = MB__BLOCK_LIVE;
    enum mb_err err = MB_ERR_NO_MEMORY;

    /* Until it is live again, a free of the block comes to the lock and waits. */
    if (!block || !__atomic_compare_exchange_n(&block->state, &live, MB__BLOCK_PINNED, false,
                                               __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
        return mb__bad_pointer(dev, ptr, "mb_realloc");
    *old = (struct old_block){block->requested, block->pool, block->stream};
    /* Rounding must not wrap; malloc tells and counts it. What aliases show is left alone. */
    if (requested <= dev->hw->caps.total_bytes && !block->pins)
        err = resize_watched(dev, block, requested);
    if (!err)
        *out = (void *)(uintptr_t)block->addr;
    __atomic_store_n(&block->state, MB__BLOCK_LIVE, __ATOMIC_RELEASE);
    return err;
}

/* In a pool that keeps its memory the host frees in the order of the allocation's stream, and the
 * new block takes the place of the old one. Nobody else knows it yet. */
static void keep_order(struct mb_device *dev, const void *new, const struct old_block *old)
{
    struct mb__block *block;

    mb__lock(&dev->lock);
    block = mb__table_get(&dev->table, (uint64_t)(uintptr_t) new);
    if (block && block->pool->keep)
        block->stream = old->stream;
    mb__unlock(&dev->lock);
}

/* On the default stream; the host waits. */
static enum mb_err copy_over(struct mb_device *dev, void *dst, void *src, uint64_t bytes)
{
    enum mb_err err;

    mb__lock(&dev->lock);
    err = mb__not_captured(dev, NULL);
    if (!err && bytes)
        err = mb__device_copy(dev, dst, src, (bytes + 7) & ~(uint64_t)7, NULL);
    mb__unlock(&dev->lock);
    return err ? err : mb__stream_sync(dev, NULL);
}

enum mb_err mb__realloc(struct mb_device *dev, void *ptr, uint64_t requested, void **out)
{
    struct old_block old = {0};
    void *new;
    enum mb_err err;

    mb__lock(&dev->lock);
    err = try_resize(dev, ptr, requested, out, &old);
    mb__unlock(&dev->lock);
    if (err != MB_ERR_NO_MEMORY)
        return err;
    err = mb__malloc(dev, old.pool, requested, true, NULL, &new);
    if (err)
        return err;
    keep_order(dev, new, &old);
    mb__watch_note(dev, MB_HOOK_MALLOC, (uint64_t)(uintptr_t) new, requested, NULL);
    err = copy_over(dev, new, ptr, old.bytes < requested ? old.bytes : requested);
    if (err) {
        (void)mb__free(dev, new, true, NULL);
        return err;
    }
    err = mb__free(dev, ptr, true, NULL);
    if (err) { /* a breach of its red zones, or another thread freed it: the old block stands */
        (void)mb__free(dev, new, true, NULL);
        return err;
    }
    *out = new;
    return MB_OK;
}
