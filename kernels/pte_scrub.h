/* SPDX-License-Identifier: MIT */
/*
 * pte_scrub.h - the one body of the scrubber: does entry i of a leaf table differ from the record?
 *
 * The host lists for each slot what the low word must be and which bits of it count; the device
 * reads entries and list at the speed of its memory and names the few that differ, which the host
 * then judges one by one. The software GPU compiles this as C, kernels/cuda/scrub.cu as CUDA C++.
 *
 * An entry is read as two loads of 8 bytes at most; entries that a batch is changing meanwhile may
 * be named without being wrong, so the host looks again.
 */
#ifndef MB_KERNELS_PTE_SCRUB_H
#define MB_KERNELS_PTE_SCRUB_H

#include "formats.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define MB_SCRUB_FN static __device__ inline
#else
#define MB_SCRUB_FN static inline
#endif

/* What the record says of one slot. mask 0: nothing is known, anything is right. */
struct mb_scrub_want {
    uint64_t word; /* low word of the entry */
    uint64_t mask; /* bits that count */
};

/* 1: the entry is not what the record says. The high word of a leaf is 0; a slot that must show
 * nothing is judged by the bits of its low word alone. */
MB_SCRUB_FN int mb_scrub_differs(struct mb_pte entry, struct mb_scrub_want want)
{
    return ((entry.lo ^ want.word) & want.mask) != 0 ||
           (entry.hi != 0 && (want.word & want.mask) != 0);
}

#endif
