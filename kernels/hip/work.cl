/* SPDX-License-Identifier: MIT */
/*
 * work.cl - fill, verify and copy for AMD GPUs: the small device work of the `hip` backend, through the TLB.
 *
 * One translation unit with pte_pop.cl, by clang alone, so that a code object carries everything and needs nothing.
 */
#include "kernels/opencl/pte_pop.cl"
#include "kernels/pattern.h"

#define MB_HIP_KERNEL __kernel __attribute__((reqd_work_group_size(MB_CL_GROUP, 1, 1)))

MB_HIP_KERNEL void mb_fill(__global ulong *p, ulong words, ulong seed, ulong step)
{
    for (ulong i = mb_cl_item(); i < words; i += step)
        p[i] = mb_pattern(seed, i);
}

/* Adds the number of differing words to *wrong, which lies in device memory. */
MB_HIP_KERNEL void mb_verify(__global const ulong *p, ulong words, ulong seed, ulong step,
                             __global atomic_ulong *wrong)
{
    ulong bad = 0;

    for (ulong i = mb_cl_item(); i < words; i += step)
        bad += p[i] != mb_pattern(seed, i);
    if (bad)
        __opencl_atomic_fetch_add(wrong, bad, __ATOMIC_RELAXED, __OPENCL_MEMORY_SCOPE_DEVICE);
}

MB_HIP_KERNEL void mb_copy(__global ulong *dst, __global const ulong *src, ulong words, ulong step)
{
    for (ulong i = mb_cl_item(); i < words; i += step)
        dst[i] = src[i];
}
