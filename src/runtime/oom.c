/* SPDX-License-Identifier: MIT */
/*
 * The report of a failed request. The caller's thread gets a text that fits mb_error_detail(); the
 * log at level info gets who holds what in full.
 *
 * Locking: the device's lock.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "base/log.h"
#include "runtime/runtime.h"

enum {
    TOP = 3,      /* largest blocks named */
    CLASSES = 64, /* powers of two */
};

struct holders {
    const struct mb__block *top[TOP]; /* largest first */
    uint64_t bytes[CLASSES];          /* live, by log2 of the size */
    uint64_t count[CLASSES];
    uint64_t live;
};

static void note_block(struct holders *holders, const struct mb__block *block)
{
    unsigned class = 63u - (unsigned)__builtin_clzll(block->bytes);

    holders->bytes[class] += block->bytes;
    holders->count[class]++;
    holders->live++;
    for (unsigned i = 0; i < TOP; i++) {
        if (holders->top[i] && holders->top[i]->bytes >= block->bytes)
            continue;
        for (unsigned j = TOP - 1; j > i; j--)
            holders->top[j] = holders->top[j - 1];
        holders->top[i] = block;
        return;
    }
}

static void find_holders(struct mb_device *dev, struct holders *holders)
{
    struct mb__block *block;
    size_t at = 0;

    *holders = (struct holders){0};
    while ((block = mb__table_next(&dev->table, &at)))
        if (__atomic_load_n(&block->state, __ATOMIC_RELAXED) == MB__BLOCK_LIVE)
            note_block(holders, block);
}

static uint64_t largest_hole(const struct mb__lane *lane)
{
    struct mb__link *link = mb__tree_last(&lane->by_size);

    return link ? link->major : 0;
}

struct holes {
    uint64_t usable,
        pending;      /* bytes the request's stream may use / that other streams still hold */
    uint64_t largest; /* bytes of the largest hole, whoever may use it */
};

static void note_lane(struct holes *holes, const struct mb__request *req,
                      const struct mb__lane *lane)
{
    uint64_t largest = largest_hole(lane);

    if (mb__lane_is_own(lane, req->stream) || lane == &req->pool->ready)
        holes->usable += lane->free_bytes;
    else
        holes->pending += lane->free_bytes;
    if (largest > holes->largest)
        holes->largest = largest;
}

static struct holes find_holes(const struct mb__request *req)
{
    struct holes holes = {0};

    note_lane(&holes, req, &req->pool->ready);
    note_lane(&holes, req, &req->pool->apart);
    for (uint32_t i = 0; i < req->pool->lane_count; i++)
        if (req->pool->lanes[i])
            note_lane(&holes, req, req->pool->lanes[i]);
    return holes;
}

static void log_classes(const struct holders *holders)
{
    if (!mb__log_on(MB_LOG_INFO))
        return;
    for (unsigned i = 0; i < CLASSES; i++)
        if (holders->count[i])
            mb__log(MB_LOG_INFO, "runtime",
                    "live blocks of %" PRIu64 " bytes and more: %" PRIu64 ", %" PRIu64 " bytes",
                    (uint64_t)1 << i, holders->count[i], holders->bytes[i]);
}

/* " (largest: ...)", or nothing. */
static void print_top(char *text, size_t size, const struct holders *holders)
{
    size_t used = 0;

    text[0] = 0;
    for (unsigned i = 0; i < TOP && holders->top[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu64,
                                 i ? ", " : " (largest: ", holders->top[i]->bytes);
    if (used && used < size)
        snprintf(text + used, size - used, ")");
}

enum mb_err mb__oom_report(struct mb__request *req, uint64_t requested, enum mb_err err)
{
    struct mb_device *dev = req->dev;
    struct holes holes = find_holes(req);
    struct holders holders;
    struct mb_vm_stats vm;
    char top[96], limit[96] = "";

    find_holders(dev, &holders);
    mb__vm_stats(dev->vm, &vm);
    log_classes(&holders);
    print_top(top, sizeof(top), &holders);
    if (req->grow_err == MB_ERR_LIMIT)
        snprintf(limit, sizeof(limit), "; the limit of %" PRIu64 " bytes stops growth",
                 req->own_limit ? req->pool->limit_bytes : dev->config.vm.limit_bytes);
    return mb__fail(err,
                    "%" PRIu64 " bytes: the pool owns %" PRIu64 " of %" PRIu64
                    " on the device, %" PRIu64 " live blocks hold %" PRIu64
                    "%s; free for this stream %" PRIu64 ", pending on others %" PRIu64
                    ", largest hole %" PRIu64 "; draining %" PRIu64
                    "%s; free blocks, or ask for less",
                    requested, req->pool->heap.total_bytes, dev->hw->caps.total_bytes, holders.live,
                    req->pool->heap.used_bytes, top, holes.usable, holes.pending, holes.largest,
                    vm.draining_bytes, limit);
}
