/* SPDX-License-Identifier: MIT */
/*
 * pte_pop.cl - pte_pop for GFX9 as an OpenCL C kernel, from the body that every other target uses.
 *
 * Compiled twice: by clang alone for AMD GPUs, where no OpenCL library is linked, and by an OpenCL runtime for
 * whatever device it has, which is how continuous integration executes it. The two differ only in how a work item
 * learns its number.
 *
 * Item n writes entries n, n + step, n + 2 * step, ... of the batch; step is the number of items, which the host
 * passes so that nothing but the item's own number has to be asked for.
 */
#include "kernels/pte_pop.h"

#define MB_CL_GROUP 256

#ifdef MB_CL_NO_LIBRARY /* clang -nogpulib for amdgcn */
static inline ulong mb_cl_item(void)
{
    return (ulong)__builtin_amdgcn_workgroup_id_x() * MB_CL_GROUP +
           (ulong)__builtin_amdgcn_workitem_id_x();
}
#else
static inline ulong mb_cl_item(void)
{
    return get_global_id(0);
}
#endif

#define MB_CL_POP(name, fmt, leaf_shift)                                                           \
    __kernel __attribute__((reqd_work_group_size(MB_CL_GROUP, 1, 1))) void name(                   \
        __global ulong *slots, ulong first, ulong count, __global const uint *pfns, ulong tmpl,    \
        ulong step)                                                                                \
    {                                                                                              \
        for (ulong i = mb_cl_item(); i < count; i += step)                                         \
            mb_pte_pop(fmt, leaf_shift, slots, first, i, pfns, tmpl);                              \
    }

/* Leaves of 2 MiB and 4 KiB, with translate-further (MI200, MI300) and without. */
MB_CL_POP(mb_pop_gfx9_tf_2m, MB_FMT_GFX9_TF, 21)
MB_CL_POP(mb_pop_gfx9_tf_4k, MB_FMT_GFX9_TF, 12)
MB_CL_POP(mb_pop_gfx9_2m, MB_FMT_GFX9, 21)
MB_CL_POP(mb_pop_gfx9_4k, MB_FMT_GFX9, 12)

/* `count` slots from `first` on get `value` as it is: clearing. */
__kernel __attribute__((reqd_work_group_size(MB_CL_GROUP, 1, 1))) void
mb_pop_same(__global ulong *slots, ulong first, ulong count, ulong value, ulong step)
{
    for (ulong i = mb_cl_item(); i < count; i += step)
        slots[first + i] = value;
}
