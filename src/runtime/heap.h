/* SPDX-License-Identifier: MIT */
/*
 * heap.h - free and used ranges of home addresses.
 *
 * The heap knows which bytes of the frames it was given are free, in whose order they became free,
 * and which frames hold no used byte. It maps nothing and waits for nothing.
 *
 * Every byte of every run given to the heap lies in exactly one node. A free node hangs in the size
 * tree of one *lane*: a lane is the order in which its bytes may be reused, one per stream and one
 * for bytes that anybody may use. Neighbours of one lane are joined at once; neighbours of
 * different lanes stay apart, so that a request never waits for a stream only because of its
 * neighbour's bytes.
 *
 * UNITS     bytes; all addresses and sizes are multiples of MB__GRANULE.
 * LOCKING   The owner locks (the device's mutex).
 * ACCOUNTS  total_bytes = used_bytes + sum of free_bytes over lanes.
 *           used_frames = frames with at least one used byte.
 */
#ifndef MB_RUNTIME_HEAP_H
#define MB_RUNTIME_HEAP_H

#include "base/types.h"
#include "runtime/tree.h"

/* Blocks start and end on this; a multiple of the 128-byte lines that blocks may not share. */
enum {
    MB__GRANULE = 512,
};

struct mb__lane {
    struct mb_tree by_size; /* its free nodes by (bytes, address) */
    /* Those of them that touch a frame boundary, in the order in which they came; by edge_prev and
     * edge_next. */
    struct mb__node *edge_first, *edge_last;
    size_t edge_count;
    uint64_t free_bytes;  /* sum over them */
    uint64_t whole_bytes; /* sum over them of the whole frames inside; the rest are fragments */
    void *owner;          /* the stream's record; NULL: usable by anybody */
    uint64_t *held;       /* word with `bit`, set while free_bytes is not 0; NULL: none */
    uint64_t bit;         /* of the pool's index of lanes */
    bool apart;           /* its nodes are never joined: each has an order of its own */
};

/* What several streams must have passed before bytes may be reused. Shared by the parts of a node.
 */
struct mb__order {
    unsigned refs;  /* free nodes, a block or a window that name it */
    unsigned count; /* points below */
    struct mb__order_point {
        void *stream;    /* the owner's record of a stream */
        uint64_t ticket; /* to be passed there */
    } points[];
};

/* Drops one reference; the last one frees. NULL is allowed. */
void mb__order_unref(struct mb__order *order);

/* Three lines of the processor's caches: what walks and neighbours look at is in the first. */
struct mb__node {
    _Alignas(64) uint64_t addr, bytes; /* home addresses */
    struct mb__node *prev, *next;      /* nodes that touch this one; NULL at the edge of a run */
    struct mb__lane *lane;             /* free: whose order; NULL while used */
    uint64_t ticket;             /* free: reusable by others once the lane's stream passed this */
    void *block;                 /* used: the owner's record */
    struct mb__node *piece_next; /* used: next piece of the same block, in block order */
    struct mb__link by_size;     /* key (bytes, addr); in the lane's tree while free */
    struct mb__node *edge_prev, *edge_next; /* of the lane's list if it is there; else NULL */
    struct mb__link by_addr;                /* key (addr, 0); in the heap's tree always */
    struct mb__order *order; /* free in a lane that is apart: one reference; NULL elsewhere */
};

struct mb__heap {
    struct mb_tree by_addr;   /* every node */
    struct mb__node *spare;   /* unused node records, linked by piece_next */
    unsigned spare_count;     /* length of that list */
    struct mb__chunk *chunks; /* memory of all records, freed by fini */
    uint64_t total_bytes, used_bytes, used_frames;
};

void mb__heap_init(struct mb__heap *heap);
/* Forgets everything; frees host memory only. */
void mb__heap_fini(struct mb__heap *heap);
/* Makes the next `nodes` splits possible without host memory. MB_ERR_HOST_MEMORY. */
enum mb_err mb__heap_prepare(struct mb__heap *heap, unsigned nodes);

/* Adds a run of new free bytes (whole frames) to `lane`. Needs 1 prepared node. */
void mb__heap_add(struct mb__heap *heap, struct mb__lane *lane, uint64_t addr, uint64_t bytes);
/* Removes free bytes [addr, addr + bytes) of one node from the heap. Needs 1 prepared node. */
void mb__heap_remove(struct mb__heap *heap, struct mb__node *node, uint64_t addr, uint64_t bytes);

/* Smallest free node of the lane that holds `bytes`, lowest address among equals; NULL if none. */
struct mb__node *mb__heap_fit(const struct mb__lane *lane, uint64_t bytes);
/* Marks [addr, addr + bytes) of a free node used and returns its node. Needs 2 prepared nodes. */
struct mb__node *mb__heap_take(struct mb__heap *heap, struct mb__node *node, uint64_t addr,
                               uint64_t bytes, void *block);
/* Frees a used node into a lane and joins it with free neighbours of that lane. Returns the result.
 * `order` (lanes that are apart; else NULL) gains a reference. */
struct mb__node *mb__heap_give(struct mb__heap *heap, struct mb__node *node, struct mb__lane *lane,
                               uint64_t ticket, struct mb__order *order);
/* The same for a block's pieces, linked by piece_next, at less than the sum of their costs. */
void mb__heap_give_all(struct mb__heap *heap, struct mb__node *pieces, struct mb__lane *lane,
                       uint64_t ticket, struct mb__order *order);
/* Moves a free node to another lane and joins it there. Returns the result. */
struct mb__node *mb__heap_move(struct mb__heap *heap, struct mb__node *node, struct mb__lane *lane,
                               uint64_t ticket);
/* Cuts a used node in two at `addr`, strictly inside; returns the upper part. Needs 1 prepared. */
struct mb__node *mb__heap_split_used(struct mb__heap *heap, struct mb__node *node, uint64_t addr);
/* The upper of two used nodes of one block that touch, in block order, becomes part of the lower.
 * */
void mb__heap_join_used(struct mb__heap *heap, struct mb__node *lower, struct mb__node *upper);
/* Can it be part of a composed block? One inside a frame cannot. */
static inline bool mb__node_touches(const struct mb__node *node)
{
    uint64_t first = (node->addr + MB_FRAME_BYTES - 1) & ~(MB_FRAME_BYTES - 1);

    return first <= node->addr + node->bytes;
}
/* The node that holds `addr`, or NULL. */
struct mb__node *mb__heap_find(const struct mb__heap *heap, uint64_t addr);
/* Where one node was found: the next one is often near. Zero-initialised: nowhere. */
struct mb__near {
    struct mb__node *low;    /* below most others in the same run, by next */
    struct mb__node *listed; /* the next in its lane's list, where composed blocks left pieces in
                                their order */
};
/* The same as mb__heap_find(), in a few steps if it is near. */
struct mb__node *mb__heap_find_near(const struct mb__heap *heap, struct mb__near near,
                                    uint64_t addr);

/* Every equation of this header. MB_ERR_CORRUPT with detail. */
enum mb_err mb__heap_check(const struct mb__heap *heap);
enum mb_err mb__lane_check(const struct mb__lane *lane);

#endif
