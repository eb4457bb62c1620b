/* SPDX-License-Identifier: MIT */
/*
 * Two trees and two lists: by address (all nodes), by size (free nodes, one tree a lane), the links
 * between nodes that touch, and the free nodes of a lane that touch a frame boundary.
 *
 * A composed block may have very many pieces. When it is freed, those that join nothing are counted
 * and linked first, and come into the lane's tree together.
 *
 * Trade-offs: node records come from chunks that are given back only with the heap. Their number
 * follows the largest number of blocks and holes, not the bytes handed out.
 */
#include "runtime/heap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum {
    CHUNK_NODES = 256,
    NEAR_STEPS = 16, /* nodes that are looked at before the tree is */
};

struct mb__chunk {
    struct mb__chunk *next;
    struct mb__node nodes[CHUNK_NODES];
};

static uint64_t end_of(const struct mb__node *node)
{
    return node->addr + node->bytes;
}

static uint64_t frame_of(uint64_t addr)
{
    return addr >> MB_FRAME_SHIFT;
}

void mb__order_unref(struct mb__order *order)
{
    if (order && !--order->refs)
        free(order);
}

static void order_drop(struct mb__node *node)
{
    mb__order_unref(node->order);
    node->order = NULL;
}

void mb__heap_init(struct mb__heap *heap)
{
    memset(heap, 0, sizeof(*heap));
}

void mb__heap_fini(struct mb__heap *heap)
{
    for (struct mb__link *link = mb__tree_first(&heap->by_addr); link; link = mb__tree_next(link))
        order_drop(MB__TREE_ENTRY(link, struct mb__node, by_addr));
    while (heap->chunks) {
        struct mb__chunk *chunk = heap->chunks;

        heap->chunks = chunk->next;
        free(chunk);
    }
    memset(heap, 0, sizeof(*heap));
}

enum mb_err mb__heap_prepare(struct mb__heap *heap, unsigned nodes)
{
    while (heap->spare_count < nodes) {
        struct mb__chunk *chunk = aligned_alloc(_Alignof(struct mb__chunk), sizeof(*chunk));

        if (!chunk)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %d heap records of %zu bytes",
                            CHUNK_NODES, sizeof(struct mb__node));
        chunk->next = heap->chunks;
        heap->chunks = chunk;
        for (unsigned i = 0; i < CHUNK_NODES; i++) {
            chunk->nodes[i].piece_next = heap->spare;
            heap->spare = &chunk->nodes[i];
        }
        heap->spare_count += CHUNK_NODES;
    }
    return MB_OK;
}

/* A prepared record; callers of the public functions have made sure that there is one. */
static struct mb__node *node_new(struct mb__heap *heap, uint64_t addr, uint64_t bytes)
{
    struct mb__node *node = heap->spare;

    heap->spare = node->piece_next;
    heap->spare_count--;
    memset(node, 0, sizeof(*node));
    node->addr = addr;
    node->bytes = bytes;
    mb__tree_insert(&heap->by_addr, &node->by_addr, addr, 0);
    return node;
}

static void node_drop(struct mb__heap *heap, struct mb__node *node)
{
    mb__tree_erase(&heap->by_addr, &node->by_addr);
    node->piece_next = heap->spare;
    heap->spare = node;
    heap->spare_count++;
}

/* Bytes of the whole frames inside a node. */
static uint64_t whole_of(const struct mb__node *node)
{
    uint64_t first = (node->addr + MB_FRAME_BYTES - 1) & ~(MB_FRAME_BYTES - 1);
    uint64_t last = end_of(node) & ~(MB_FRAME_BYTES - 1);

    return last > first ? last - first : 0;
}

static void edge_push(struct mb__lane *lane, struct mb__node *node)
{
    node->edge_prev = lane->edge_last;
    node->edge_next = NULL;
    if (lane->edge_last)
        lane->edge_last->edge_next = node;
    else
        lane->edge_first = node;
    lane->edge_last = node;
    lane->edge_count++;
}

static void edge_drop(struct mb__lane *lane, struct mb__node *node)
{
    if (node->edge_prev)
        node->edge_prev->edge_next = node->edge_next;
    else
        lane->edge_first = node->edge_next;
    if (node->edge_next)
        node->edge_next->edge_prev = node->edge_prev;
    else
        lane->edge_last = node->edge_prev;
    node->edge_prev = node->edge_next = NULL;
    lane->edge_count--;
}

/* All that makes a node one of the lane's but its place in the tree. */
static void lane_account(struct mb__lane *lane, struct mb__node *node)
{
    node->lane = lane;
    if (mb__node_touches(node))
        edge_push(lane, node);
    lane->free_bytes += node->bytes;
    lane->whole_bytes += whole_of(node);
    if (lane->held)
        *lane->held |= lane->bit;
}

static void lane_insert(struct mb__lane *lane, struct mb__node *node)
{
    lane_account(lane, node);
    mb__tree_insert(&lane->by_size, &node->by_size, node->bytes, node->addr);
}

static void lane_erase(struct mb__node *node)
{
    node->lane->free_bytes -= node->bytes;
    node->lane->whole_bytes -= whole_of(node);
    if (!node->lane->free_bytes && node->lane->held)
        *node->lane->held &= ~node->lane->bit;
    mb__tree_erase(&node->lane->by_size, &node->by_size);
    if (mb__node_touches(node))
        edge_drop(node->lane, node);
    node->lane = NULL;
}

/* Cuts a node that is in no lane; the lower part keeps the record. */
static struct mb__node *cut(struct mb__heap *heap, struct mb__node *node, uint64_t addr)
{
    struct mb__node *upper = node_new(heap, addr, end_of(node) - addr);

    node->bytes = addr - node->addr;
    upper->ticket = node->ticket;
    upper->order = node->order;
    if (upper->order)
        upper->order->refs++;
    upper->prev = node;
    upper->next = node->next;
    if (upper->next)
        upper->next->prev = upper;
    node->next = upper;
    return upper;
}

/* Joins `upper` into `lower`, which touches it; both are in no lane. */
static void merge(struct mb__heap *heap, struct mb__node *lower, struct mb__node *upper)
{
    lower->bytes += upper->bytes;
    if (upper->ticket > lower->ticket)
        lower->ticket = upper->ticket;
    lower->next = upper->next;
    if (lower->next)
        lower->next->prev = lower;
    node_drop(heap, upper);
}

static struct mb__node *join_neighbours(struct mb__heap *heap, struct mb__node *node,
                                        struct mb__lane *lane)
{
    if (lane->apart)
        return node;
    if (node->next && node->next->lane == lane) {
        lane_erase(node->next);
        merge(heap, node, node->next);
    }
    if (node->prev && node->prev->lane == lane) {
        struct mb__node *lower = node->prev;

        lane_erase(lower);
        merge(heap, lower, node);
        node = lower;
    }
    return node;
}

static bool used_below(const struct mb__node *node)
{
    uint64_t frame = frame_of(node->addr);

    for (const struct mb__node *at = node->prev; at && frame_of(end_of(at) - 1) == frame;
         at = at->prev)
        if (!at->lane)
            return true;
    return false;
}

static bool used_above(const struct mb__node *node)
{
    uint64_t frame = frame_of(end_of(node) - 1);

    for (const struct mb__node *at = node->next; at && frame_of(at->addr) == frame; at = at->next)
        if (!at->lane)
            return true;
    return false;
}

/* Frames that hold bytes of this node and of no other used node. */
static uint64_t sole_frames(const struct mb__node *node)
{
    uint64_t first = frame_of(node->addr), last = frame_of(end_of(node) - 1);
    uint64_t frames = last - first + 1;

    if (first == last)
        return !(used_below(node) || used_above(node));
    return frames - used_below(node) - used_above(node);
}

void mb__heap_add(struct mb__heap *heap, struct mb__lane *lane, uint64_t addr, uint64_t bytes)
{
    struct mb__link *below = mb__tree_at_most(&heap->by_addr, addr, 0);
    struct mb__link *above = mb__tree_at_least(&heap->by_addr, addr, 0);
    struct mb__node *node = node_new(heap, addr, bytes);

    if (below) {
        struct mb__node *lower = MB__TREE_ENTRY(below, struct mb__node, by_addr);

        if (end_of(lower) == addr) {
            lower->next = node;
            node->prev = lower;
        }
    }
    if (above) {
        struct mb__node *upper = MB__TREE_ENTRY(above, struct mb__node, by_addr);

        if (upper->addr == addr + bytes) {
            upper->prev = node;
            node->next = upper;
        }
    }
    heap->total_bytes += bytes;
    node = join_neighbours(heap, node, lane);
    lane_insert(lane, node);
}

void mb__heap_remove(struct mb__heap *heap, struct mb__node *node, uint64_t addr, uint64_t bytes)
{
    struct mb__lane *lane = node->lane;

    lane_erase(node);
    if (end_of(node) > addr + bytes) {
        struct mb__node *upper = cut(heap, node, addr + bytes);

        lane_insert(lane, upper);
    }
    if (node->addr < addr) {
        struct mb__node *lower = node;

        node = cut(heap, node, addr);
        lane_insert(lane, lower);
    }
    if (node->prev)
        node->prev->next = NULL;
    if (node->next)
        node->next->prev = NULL;
    heap->total_bytes -= bytes;
    order_drop(node);
    node_drop(heap, node);
}

struct mb__node *mb__heap_fit(const struct mb__lane *lane, uint64_t bytes)
{
    struct mb__link *link = mb__tree_at_least(&lane->by_size, bytes, 0);

    return link ? MB__TREE_ENTRY(link, struct mb__node, by_size) : NULL;
}

struct mb__node *mb__heap_take(struct mb__heap *heap, struct mb__node *node, uint64_t addr,
                               uint64_t bytes, void *block)
{
    struct mb__lane *lane = node->lane;

    lane_erase(node);
    if (end_of(node) > addr + bytes)
        lane_insert(lane, cut(heap, node, addr + bytes));
    if (node->addr < addr) {
        struct mb__node *lower = node;

        node = cut(heap, node, addr);
        lane_insert(lane, lower);
    }
    order_drop(node);
    node->block = block;
    node->ticket = 0;
    node->piece_next = NULL;
    heap->used_bytes += bytes;
    heap->used_frames += sole_frames(node);
    return node;
}

/* The node is nobody's for a moment. */
static void release(struct mb__heap *heap, struct mb__node *node, uint64_t ticket,
                    struct mb__order *order)
{
    heap->used_frames -= sole_frames(node);
    heap->used_bytes -= node->bytes;
    node->block = NULL;
    node->piece_next = NULL;
    node->ticket = ticket;
    node->order = order;
    if (order)
        order->refs++;
}

struct mb__node *mb__heap_give(struct mb__heap *heap, struct mb__node *node, struct mb__lane *lane,
                               uint64_t ticket, struct mb__order *order)
{
    release(heap, node, ticket, order);
    node = join_neighbours(heap, node, lane);
    lane_insert(lane, node);
    return node;
}

/* Will the node be joined with this neighbour, now or when more of its block has been freed? */
static bool will_join(const struct mb__node *node, const struct mb__node *neighbour,
                      const struct mb__lane *lane)
{
    return neighbour && !lane->apart &&
           (neighbour->lane == lane || (!neighbour->lane && neighbour->block == node->block));
}

/* The node goes behind those that wait to come into the tree, which come first if it is smaller. */
static void lane_append(struct mb__lane *lane, struct mb_tree_run *run, struct mb__node *node)
{
    struct mb__link *link = &node->by_size, *last;

    lane_account(lane, node);
    link->major = node->bytes;
    link->minor = node->addr;
    last = run->last ? MB_TREE_ITEM(run->last, struct mb__link, node) : NULL;
    if (last && mb__link_order(last, link) > 0) {
        mb__links_add_all(&lane->by_size, run);
        *run = (struct mb_tree_run){0};
    }
    mb__tree_run_push(run, &link->node);
}

/* Those in the run are free already, but no other node is joined with any of them. */
void mb__heap_give_all(struct mb__heap *heap, struct mb__node *pieces, struct mb__lane *lane,
                       uint64_t ticket, struct mb__order *order)
{
    struct mb_tree_run run = {0};

    for (struct mb__node *node = pieces, *next; node; node = next) {
        next = node->piece_next;
        if (will_join(node, node->prev, lane) || will_join(node, node->next, lane)) {
            mb__heap_give(heap, node, lane, ticket, order);
            continue;
        }
        release(heap, node, ticket, order);
        lane_append(lane, &run, node);
    }
    mb__links_add_all(&lane->by_size, &run);
}

struct mb__node *mb__heap_move(struct mb__heap *heap, struct mb__node *node, struct mb__lane *lane,
                               uint64_t ticket)
{
    lane_erase(node);
    node->ticket = ticket;
    order_drop(node);
    node = join_neighbours(heap, node, lane);
    lane_insert(lane, node);
    return node;
}

struct mb__node *mb__heap_split_used(struct mb__heap *heap, struct mb__node *node, uint64_t addr)
{
    struct mb__node *upper = cut(heap, node, addr);

    upper->block = node->block;
    upper->piece_next = node->piece_next;
    node->piece_next = upper;
    return upper;
}

void mb__heap_join_used(struct mb__heap *heap, struct mb__node *lower, struct mb__node *upper)
{
    lower->piece_next = upper->piece_next;
    merge(heap, lower, upper);
}

struct mb__node *mb__heap_find(const struct mb__heap *heap, uint64_t addr)
{
    struct mb__link *link = mb__tree_at_most(&heap->by_addr, addr, 0);
    struct mb__node *node;

    if (!link)
        return NULL;
    node = MB__TREE_ENTRY(link, struct mb__node, by_addr);
    return addr < end_of(node) ? node : NULL;
}

struct mb__node *mb__heap_find_near(const struct mb__heap *heap, struct mb__near near,
                                    uint64_t addr)
{
    struct mb__node *node = near.listed;

    if (node && addr >= node->addr && addr < end_of(node))
        return node;
    node = near.low && near.low->addr <= addr ? near.low : NULL;
    for (unsigned i = 0; node && i < NEAR_STEPS; i++, node = node->next)
        if (addr < end_of(node))
            return node;
    return mb__heap_find(heap, addr);
}

static enum mb_err check_neighbours(const struct mb__node *node)
{
    if (!node->bytes || node->addr % MB__GRANULE || node->bytes % MB__GRANULE)
        return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 "+0x%" PRIx64 " is off the granule",
                        node->addr, node->bytes);
    if (node->next && (node->next->addr != end_of(node) || node->next->prev != node))
        return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " and the next do not touch",
                        node->addr);
    if (node->lane && !node->lane->apart && node->next && node->next->lane == node->lane)
        return mb__fail(MB_ERR_CORRUPT, "heap: free neighbours at 0x%" PRIx64 " were not joined",
                        node->addr);
    if (!(node->lane && mb__node_touches(node)) && (node->edge_prev || node->edge_next))
        return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " is in no list and has neighbours",
                        node->addr);
    if (node->lane && (node->by_size.major != node->bytes || node->by_size.minor != node->addr))
        return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " has a stale size key",
                        node->addr);
    return MB_OK;
}

/* Walks by address: sums, neighbours, and the frames with a used byte counted afresh. */
enum mb_err mb__heap_check(const struct mb__heap *heap)
{
    uint64_t total = 0, used = 0, frames = 0, end = 0, last_frame = UINT64_MAX;

    for (struct mb__link *link = mb__tree_first(&heap->by_addr); link; link = mb__tree_next(link)) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_addr);
        enum mb_err err = check_neighbours(node);

        if (err)
            return err;
        if (node->addr < end || link->major != node->addr)
            return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " overlaps the one below",
                            node->addr);
        end = end_of(node);
        total += node->bytes;
        if (node->lane)
            continue;
        used += node->bytes;
        frames += frame_of(end - 1) - frame_of(node->addr) + (frame_of(node->addr) != last_frame);
        last_frame = frame_of(end - 1);
    }
    if (total != heap->total_bytes || used != heap->used_bytes || frames != heap->used_frames)
        return mb__fail(MB_ERR_CORRUPT,
                        "heap: %" PRIu64 " bytes, %" PRIu64 " used in %" PRIu64
                        " frames were counted; the accounts say %" PRIu64 ", %" PRIu64 ", %" PRIu64,
                        total, used, frames, heap->total_bytes, heap->used_bytes,
                        heap->used_frames);
    return MB_OK;
}

/* Is the list whole, and all in it the lane's and at a boundary? */
static bool edges_hold(const struct mb__lane *lane)
{
    const struct mb__node *before = NULL;
    size_t count = 0;

    for (const struct mb__node *node = lane->edge_first; node; node = node->edge_next) {
        if (node->lane != lane || !mb__node_touches(node) || node->edge_prev != before ||
            count++ == lane->edge_count)
            return false;
        before = node;
    }
    return before == lane->edge_last && count == lane->edge_count;
}

enum mb_err mb__lane_check(const struct mb__lane *lane)
{
    uint64_t bytes = 0, whole = 0;
    size_t count = 0, touching = 0;
    const struct mb__link *before = NULL;

    if (!mb__tree_check(&lane->by_size))
        return mb__fail(MB_ERR_CORRUPT, "heap: a lane's tree is out of balance");
    for (struct mb__link *link = mb__tree_first(&lane->by_size); link; link = mb__tree_next(link)) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_size);

        if (node->lane != lane)
            return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " hangs in a foreign lane",
                            node->addr);
        if (before && mb__link_order(before, link) >= 0)
            return mb__fail(MB_ERR_CORRUPT, "heap: node 0x%" PRIx64 " is out of order in its lane",
                            node->addr);
        before = link;
        bytes += node->bytes;
        whole += whole_of(node);
        touching += mb__node_touches(node);
        count++;
    }
    if (touching != lane->edge_count || !edges_hold(lane))
        return mb__fail(MB_ERR_CORRUPT,
                        "heap: %zu free nodes of a lane touch a frame boundary; its list of %zu is "
                        "of others",
                        touching, lane->edge_count);
    if (bytes != lane->free_bytes || whole != lane->whole_bytes || count != lane->by_size.count)
        return mb__fail(MB_ERR_CORRUPT,
                        "heap: a lane holds %" PRIu64
                        " bytes in %zu nodes; its accounts say %" PRIu64 " in %zu",
                        bytes, count, lane->free_bytes, lane->by_size.count);
    return MB_OK;
}
