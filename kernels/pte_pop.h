/* SPDX-License-Identifier: MIT */
/*
 * pte_pop.h - the one body of pte_pop: entry i of a batch becomes one store into the leaf table.
 *
 * The software GPU compiles it as C, device kernels as CUDA C++, HIP or OpenCL C. A wrapper decides
 * how i is spread over lanes and what makes the stores visible to walkers afterwards; nothing here
 * orders anything.
 *
 * The whole slot is written at once: 8 bytes, or 16 where a slot has two words. The high word of a
 * leaf is 0, so a walker that saw the two words of a leaf-to-leaf change apart would see no third
 * value. Define MB_POP_STORE8 and MB_POP_STORE16 before including to store in another way.
 */
#ifndef MB_KERNELS_PTE_POP_H
#define MB_KERNELS_PTE_POP_H

#include "formats.h"

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
#define MB_POP_FN static inline
#ifndef MB_POP_STORE8
#define MB_POP_STORE8(slot, lo) (*(slot) = (lo))
#endif
#ifndef MB_POP_STORE16
#define MB_POP_STORE16(slot, lo, hi) (*(__global ulong2 *)(slot) = (ulong2)((lo), (hi)))
#endif
#elif defined(__CUDACC__) || defined(__HIPCC__)
#define MB_POP_FN static __device__ inline
#ifndef MB_POP_STORE8
#define MB_POP_STORE8(slot, lo) (*(volatile uint64_t *)(slot) = (lo))
#endif
#ifndef MB_POP_STORE16
#define MB_POP_STORE16(slot, lo, hi) (*(ulonglong2 *)(slot) = make_ulonglong2((lo), (hi)))
#endif
#else
#define MB_POP_FN static inline
#ifndef MB_POP_STORE8
#define MB_POP_STORE8(slot, lo) __atomic_store_n((slot), (lo), __ATOMIC_RELAXED)
#endif
#ifndef MB_POP_STORE16
/* Low word last: a reader that sees it sees the new high word too (release). */
#define MB_POP_STORE16(slot, lo, hi)                                                               \
    (__atomic_store_n((slot) + 1, (hi), __ATOMIC_RELAXED),                                         \
     __atomic_store_n((slot), (lo), __ATOMIC_RELEASE))
#endif
#endif

/* Stores `pte` into slot `index` of the table at `slots`; slot_bytes is 8 or 16, the table is
 * aligned to it. */
MB_POP_FN void mb_pop_store(MB_FMT_GLOBAL uint64_t *slots, unsigned slot_bytes, uint64_t index,
                            struct mb_pte pte)
{
    if (slot_bytes == 16)
        MB_POP_STORE16(slots + 2 * index, pte.lo, pte.hi);
    else
        MB_POP_STORE8(slots + index, pte.lo);
}

/* Slot `index` shows frame `pfn`. With fmt and leaf_shift constant this is a shift, an or and a
 * store. */
MB_POP_FN void mb_pop_leaf(enum mb_fmt fmt, unsigned leaf_shift, MB_FMT_GLOBAL uint64_t *slots,
                           uint64_t index, uint64_t tmpl, uint32_t pfn)
{
    mb_pop_store(slots, mb_fmt_slot_bytes(fmt, leaf_shift), index,
                 mb_fmt_leaf_at(fmt, leaf_shift, tmpl, pfn));
}

/*
 * pte_pop, entry i of a batch: slot first + i shows pfns[i]. `slots` is the table's slot 0, `tmpl`
 * comes from mb_fmt_leaf_template(); each pfn is aligned to the leaf.
 */
MB_POP_FN void mb_pte_pop(enum mb_fmt fmt, unsigned leaf_shift, MB_FMT_GLOBAL uint64_t *slots,
                          uint64_t first, uint64_t i, MB_FMT_GLOBAL const uint32_t *pfns,
                          uint64_t tmpl)
{
    mb_pop_leaf(fmt, leaf_shift, slots, first + i, tmpl, pfns[i]);
}

#endif
