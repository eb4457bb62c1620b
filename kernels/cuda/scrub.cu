/* SPDX-License-Identifier: MIT */
/*
 * scrub.cu - live leaf entries against the host's record; see kernels/pte_scrub.h.
 *
 * Reads 16 or 8 bytes of table and 16 of record for each slot, all coalesced. Slots that differ are
 * counted, and the first `capacity` of them listed in any order. `out[0]` must be 0 before.
 *
 * Run on an H200 by the test `scrub` of tests/gpu, not by mb_check_tables().
 */
#include "kernels/pte_scrub.h"

namespace
{

/* Entries may change under the kernel: loads that no compiler keeps. */
__device__ inline struct mb_pte load_entry(const uint64_t *slots, uint32_t slot_bytes, uint64_t i)
{
    struct mb_pte pte;

    if (slot_bytes == 16) {
        asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                     : "=l"(pte.lo), "=l"(pte.hi)
                     : "l"(slots + 2 * i)
                     : "memory");
    } else {
        asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
                     : "=l"(pte.lo)
                     : "l"(slots + i)
                     : "memory");
        pte.hi = 0;
    }
    return pte;
}

} // namespace

extern "C" __global__ void mb_scrub(const uint64_t *slots, uint32_t slot_bytes, uint32_t count,
                                    const struct mb_scrub_want *want, uint32_t *out,
                                    uint32_t capacity)
{
    uint32_t step = gridDim.x * blockDim.x;

    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (!mb_scrub_differs(load_entry(slots, slot_bytes, i), want[i]))
            continue;
        uint32_t at = atomicAdd(&out[0], 1u); /* rare: nearly all entries are right */

        if (at < capacity)
            out[1 + at] = i;
    }
}
