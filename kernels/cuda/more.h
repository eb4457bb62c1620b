/* SPDX-License-Identifier: MIT */
/*
 * more.h - the segments of a program behind its first MB_POP_SEGMENTS; see program.h.
 *
 * These are mostly short, one for each of many sequences, so each is one warp's. One body for the
 * device and for the host's test of it. Whoever includes it defines MB_MORE_FN and
 * MB_MORE_STORE(slots, slot_bytes, i, lo), which stores a whole slot.
 */
#ifndef MB_KERNELS_CUDA_MORE_H
#define MB_KERNELS_CUDA_MORE_H

#include "kernels/cuda/program.h"

/* The part of thread `thread` of `threads`, a multiple of 32. `list`: the parameters' frame
 * numbers. */
MB_MORE_FN void mb_pop_more(const struct mb_pop_head *head, const uint16_t *list, uint32_t thread,
                            uint32_t threads)
{
    const struct mb_pop_segment *more =
        (const struct mb_pop_segment *)(const void *)(list + head->more);

    for (uint32_t s = thread / 32; s + MB_POP_SEGMENTS < head->segments; s += threads / 32) {
        const struct mb_pop_segment *seg = &more[s];

        for (uint32_t i = thread % 32; i < seg->count; i += 32) {
            uint64_t lo = seg->tmpl;
            uint32_t pfn = head->base_pfn;

            if (seg->at != MB_POP_SAME) {
                pfn += (uint32_t)list[seg->at + i] << head->frame_shift;
                lo |= (uint64_t)pfn << head->pfn_shift;
            }
            MB_MORE_STORE(seg->slots, head->slot_bytes, i, lo);
        }
    }
}

#endif
