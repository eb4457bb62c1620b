/* SPDX-License-Identifier: MIT */
/*
 * plan.h - how to compose a block from free ranges that no hole is large enough for.
 *
 * A page table maps whole frames, so a block that is composed of several ranges is
 *
 *     [the upper part of one frame] [whole frames ...] [the lower part of one frame]
 *
 * where the parts may be missing. The two partly used frames stay shared with whatever else lies in
 * them, which has its own addresses. Planning is a pure function: it looks at a list of ranges and
 * returns a list of pieces; carrying it out is the caller's.
 *
 * UNITS   bytes, multiples of MB__GRANULE.
 */
#ifndef MB_RUNTIME_PLAN_H
#define MB_RUNTIME_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/types.h"

/* Bytes from which on a block nearly fills a frame, and is placed with care as larger ones are. */
#define MB__NEAR_FRAME (MB_FRAME_BYTES - MB_FRAME_BYTES / 8)

/* A free range; ranges that touch have been joined. */
struct mb__range {
    uint64_t addr, bytes;
};

struct mb__plan {
    uint64_t
        missing_bytes; /* 0: pieces are given; else fresh whole frames in one range that would do */
    int64_t cost;      /* what the plan makes of the fragments, in eighths of a byte; <0: better */
    size_t count;      /* pieces */
};

/*
 * Composes `bytes` from `free` (any order; it is sorted in place) and stores the pieces in block
 * order. `pieces` has room for count + 2. With count 0 nothing fits and missing_bytes says what
 * would help.
 */
struct mb__plan mb__plan(struct mb__range *free, size_t count, uint64_t bytes,
                         struct mb__range *pieces);
/* The same for the continuation of a block that ends at a frame boundary: it starts at one as well.
 */
struct mb__plan mb__plan_longer(struct mb__range *free, size_t count, uint64_t bytes,
                                struct mb__range *pieces);

/*
 * The best address for a block of `bytes` inside one range: what is left should reach frame
 * boundaries, and so should the block, since it will be a hole one day. Stores the address; returns
 * the cost in the units of mb__plan.cost. Precondition: bytes <= range.bytes.
 */
int64_t mb__place(struct mb__range range, uint64_t bytes, uint64_t *addr);
/* The same without what the block itself will leave: comparable with mb__plan.cost. */
int64_t mb__place_cost(struct mb__range range, uint64_t bytes, uint64_t addr);

#endif
