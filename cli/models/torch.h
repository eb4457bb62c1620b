/* SPDX-License-Identifier: MIT */
/*
 * torch.h - the two PyTorch policies: what torch.c (cache) and torch_expandable.c (segments) share.
 *
 * A block is in exactly one of these states: live; waiting (freed, recorded streams still use it);
 * free and mapped, in pool.free; without memory, in pool.unmapped (expandable segments alone).
 */
#ifndef MB_CLI_MODELS_TORCH_H
#define MB_CLI_MODELS_TORCH_H

#include "internal.h"

#define TORCH_MIN_BLOCK ((uint64_t)512)
#define TORCH_SMALL_MAX ((uint64_t)1 << 20)      /* largest request of the small pool */
#define TORCH_SMALL_SEGMENT ((uint64_t)2 << 20)  /* unit of growth of the small pool */
#define TORCH_LARGE_SEGMENT ((uint64_t)20 << 20) /* and for requests below TORCH_MIN_LARGE */
#define TORCH_MIN_LARGE ((uint64_t)10 << 20)     /* from here a segment is the request's own */
#define TORCH_LARGE_ROUND ((uint64_t)2 << 20)    /* rounded to this */

enum { TORCH_LARGE, TORCH_SMALL, TORCH_POOLS };

struct torch_pool {
    struct model_set free;     /* by stream, size, address */
    struct model_set unmapped; /* by stream, address */
    uint64_t searches;         /* the clock of garbage collection */
};

struct torch {
    struct model base;
    bool expandable;
    struct torch_pool pools[TORCH_POOLS];
    struct model_block *waiting_first, *waiting_last; /* in order of their free */
    uint64_t waiting_bytes;
    struct model_segment *segments; /* expandable */

    /* Options. */
    uint64_t max_split_bytes;
    uint64_t max_rounding_bytes; /* surplus that an oversize block may have */
    double gc_threshold;         /* of the limit; 0: off */
    uint64_t divisions;          /* of each power of two that sizes are rounded up to; 0: off */
    uint64_t lag;                /* events until the device has done the work before them */
};

/* What is asked for. */
struct torch_request {
    uint64_t bytes; /* rounded */
    uint32_t stream;
    unsigned pool;
};

/* Takes a block that is in no set into the pool's free ones, merged with its free neighbours. */
void torch_insert(struct torch *torch, struct model_block *block);
/* The block made of `block` and those neighbours that are as mapped as it and not in use. */
struct model_block *torch_coalesce(struct torch *torch, struct model_block *block);
bool torch_unused(const struct model_block *block);

/* Maps memory for the request at the lowest address of its pool and stream; *out is in no set. */
enum model_status torch_expand(struct torch *torch, const struct torch_request *request,
                               struct model_block **out);
/* Gives back every whole granule of the pool's free blocks. */
enum model_status torch_shrink(struct torch *torch, struct torch_pool *pool);
bool torch_check_segments(const struct torch *torch, char *problem, size_t problem_size);
void torch_close_segments(struct torch *torch);

#endif
