/* SPDX-License-Identifier: MIT */
/*
 * Which free ranges a plan may use.
 *
 * A plan costs time for each range that it looks at, and there may be very many: so at most LOOKS
 * of them and two for each frame of the request are looked at, the largest first where there are
 * more. The pool may then grow although a plan existed; once it cannot grow any more, all are
 * looked at, so no request fails for want of a look.
 *
 * Locking: the device's lock.
 */
#include "base/err.h"
#include "base/sort.h"
#include "runtime/runtime.h"

#define FRAME MB_FRAME_BYTES

enum {
    LOOKS = 1024,
    NEIGHBOURS = 64, /* ranges inside one frame that lengthen one at its boundary, looked at */
};

/* Is the node one of those that collect() finds? */
bool mb__may_collect(const struct mb__request *req, const struct mb__node *node)
{
    if (!node || !node->lane)
        return false;
    if (mb__lane_is_own(node->lane, req->stream) || node->lane == &req->pool->ready)
        return true;
    return req->ordered && (node->lane->apart || (req->stream && req->pool->follow_events)) &&
           mb__node_usable(req->stream, node);
}

static enum mb_err push_range(struct mb_device *dev, const struct mb__node *node)
{
    if (MB_VEC_PUSH(&dev->ranges, ((struct mb__range){node->addr, node->bytes})))
        return MB_OK;
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory to plan with %zu ranges",
                    dev->ranges.count);
}

/* The ranges inside the frames at both ends that touch this one: they lengthen it, whatever lane
 * they are in. What lies between two ranges that touch boundaries is pushed from the lower one. */
static enum mb_err push_neighbours(struct mb__request *req, const struct mb__node *node)
{
    const struct mb__node *at = node->next, *low = node->prev;
    enum mb_err err = MB_OK;

    for (unsigned n = 0;
         !err && n < NEIGHBOURS && mb__may_collect(req, at) && !mb__node_touches(at); n++) {
        err = push_range(req->dev, at);
        at = at->next;
    }
    for (unsigned n = 0; n < NEIGHBOURS && mb__may_collect(req, low) && !mb__node_touches(low); n++)
        low = low->prev;
    if (err || mb__may_collect(req, low))
        return err;
    for (at = node->prev; !err && at != low; at = at->prev)
        err = push_range(req->dev, at);
    return err;
}

/* Takes one node of a lane, and what lengthens it. */
static enum mb_err collect_node(struct mb__request *req, const struct mb__lane *lane,
                                const struct mb__node *node, bool all)
{
    enum mb_err err;

    req->dev->counters.looks++;
    if (!mb__lane_is_own(lane, req->stream) && !mb__node_usable(req->stream, node))
        return MB_OK;
    err = push_range(req->dev, node);
    return err || all ? err : push_neighbours(req, node);
}

/* Too many to look at: the largest first. All those of a frame or more touch a boundary. */
static enum mb_err collect_largest(struct mb__request *req, const struct mb__lane *lane, bool all,
                                   uint64_t end)
{
    struct mb__link *link = mb__tree_last(&lane->by_size);
    enum mb_err err = MB_OK;

    for (; !err && link && req->dev->counters.looks < end; link = mb__tree_prev(link)) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_size);

        if (all || mb__node_touches(node))
            err = collect_node(req, lane, node, all);
        else
            req->dev->counters.looks++;
    }
    return err;
}

/* Blocks of less than a frame may lie in ranges inside frames, joined ones too. Larger ones have no
 * use for them, and there may be very many. `end`: of mb__counters.looks. */
static enum mb_err collect_lane(struct mb__request *req, const struct mb__lane *lane, uint64_t end)
{
    bool all = req->bytes < FRAME;
    enum mb_err err = MB_OK;

    if (req->dev->counters.looks + (all ? lane->by_size.count : lane->edge_count) > end)
        return collect_largest(req, lane, all, end);
    if (!all) {
        for (const struct mb__node *node = lane->edge_first; !err && node; node = node->edge_next)
            err = collect_node(req, lane, node, all);
        return err;
    }
    for (struct mb__link *link = mb__tree_first(&lane->by_size); !err && link;
         link = mb__tree_next(link))
        err = collect_node(req, lane, MB__TREE_ENTRY(link, struct mb__node, by_size), all);
    return err;
}

static inline bool lies_before(const struct mb__range *a, const struct mb__range *b)
{
    return a->addr < b->addr;
}

MB_SORT_DEFINE(sort_by_addr, struct mb__range, lies_before)

/* Joins ranges of different lanes that touch. dev->pieces has room for as many. */
static void join(struct mb_device *dev)
{
    struct mb__range *list = dev->ranges.data;
    size_t used = 0;

    if (dev->ranges.count < 2)
        return;
    sort_by_addr(list, dev->ranges.count, dev->pieces.data);
    for (size_t i = 1; i < dev->ranges.count; i++) {
        if (list[used].addr + list[used].bytes == list[i].addr)
            list[used].bytes += list[i].bytes;
        else
            list[++used] = list[i];
    }
    dev->ranges.count = used + 1;
}

/* All ranges that the request's stream may use, into dev->ranges. */
static enum mb_err collect(struct mb__request *req)
{
    struct mb_pool *pool = req->pool;
    uint64_t most = LOOKS + 2 * (req->bytes / FRAME);
    uint64_t end = req->grow_err ? UINT64_MAX : req->dev->counters.looks + most;
    enum mb_err err = collect_lane(req, &pool->ready, end);

    for (uint32_t i = 0; !err && req->stream && i < pool->lane_count; i++) {
        struct mb__lane *lane = pool->lanes[i];

        if (!lane || !lane->free_bytes)
            continue;
        if (mb__lane_is_own(lane, req->stream) || (req->ordered && pool->follow_events))
            err = collect_lane(req, lane, end);
    }
    if (!err && req->ordered && pool->apart.free_bytes)
        err = collect_lane(req, &pool->apart, end);
    return err;
}

enum mb_err mb__collect(struct mb__request *req)
{
    enum mb_err err;

    MB_VEC_CLEAR(&req->dev->ranges);
    err = collect(req);
    if (err)
        return err;
    if (!MB_VEC_RESERVE(&req->dev->pieces, req->dev->ranges.count + 2))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a plan of %zu pieces",
                        req->dev->ranges.count + 2);
    join(req->dev);
    return MB_OK;
}
