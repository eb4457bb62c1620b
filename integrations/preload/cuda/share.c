/* SPDX-License-Identifier: MIT */
/*
 * share.c - handing memory to others: processes, RDMA devices, the driver's own mapping calls.
 *
 * MoonBright's blocks answer as memory of cuMemAlloc does: they have no allocation handle that a
 * program may retain, and they are nobody's to unmap. What the driver would answer is about its
 * mapping of a whole slab, with other blocks in it, so it is asked only where that is harmless.
 */
#include "cuda.h"

static bool ours(cu_ptr ptr, struct mb_pointer_info *info)
{
    int ordinal;

    return core_owner((void *)(uintptr_t)ptr, info, &ordinal) != NULL;
}

CUDA(cuIpcGetMemHandle, void *handle, cu_ptr ptr)
{
    struct mb_pointer_info info;

    if (!ours(ptr, &info))
        return REAL(ipc_handle, handle, ptr);
    core_note("cuIpcGetMemHandle: the block at %p is MoonBright's, and the driver shares "
              "memory of its own by this call only; set MOONBRIGHT_PRELOAD=ipc, so that cuMemAlloc "
              "and cudaMalloc give such memory",
              info.base);
    return CU_NOT_SUPPORTED;
}

/* As for memory of cuMemAlloc: there is no handle. */
CUDA(cuMemRetainAllocationHandle, uint64_t *handle, void *address)
{
    struct mb_pointer_info info;

    return ours((cu_ptr)(uintptr_t)address, &info) ? CU_INVALID_VALUE
                                                   : REAL(retain_handle, handle, address);
}

CUDA(cuMemPoolExportPointer, void *out, cu_ptr ptr)
{
    struct mb_pointer_info info;

    if (!ours(ptr, &info))
        return REAL(pool_export_ptr, out, ptr);
    core_note("cuMemPoolExportPointer: the block at %p is of a pool that was created "
              "without a handle type, so it cannot be shared",
              info.base);
    return CU_INVALID_VALUE;
}

/* A file of these addresses for RDMA: right where the driver's record is, and for one block. */
CUDA(cuMemGetHandleForAddressRange, void *handle, cu_ptr ptr, size_t bytes, int type,
     uint64_t flags)
{
    struct mb_pointer_info info;
    cu_ptr base;

    if (!ours(ptr, &info))
        return REAL(range_handle, handle, ptr, bytes, type, flags);
    base = (cu_ptr)(uintptr_t)info.base;
    if (ptr + bytes > base + info.bytes)
        return CU_INVALID_VALUE;
    if (info.driver_visible)
        return REAL(range_handle, handle, ptr, bytes, type, flags);
    core_note("cuMemGetHandleForAddressRange: the block at %p is composed of scattered "
              "frames, and the driver would hand out others; set MOONBRIGHT_PRELOAD=ipc, so that "
              "cuMemAlloc gives memory that can be registered",
              info.base);
    return CU_NOT_SUPPORTED;
}

/* ------------------------------------------------------------ the driver's mapping calls */

static int refuse(const char *call, const struct mb_pointer_info *info)
{
    core_note("%s: the addresses belong to MoonBright's block at %p, which only cuMemFree "
              "gives back",
              call, info->base);
    return CU_INVALID_VALUE;
}

CUDA(cuMemSetAccess, cu_ptr ptr, size_t bytes, const struct cu_access *list, size_t count)
{
    struct mb_pointer_info info;

    return ours(ptr, &info) ? refuse("cuMemSetAccess", &info)
                            : REAL(set_access, ptr, bytes, list, count);
}

CUDA(cuMemUnmap, cu_ptr ptr, size_t bytes)
{
    struct mb_pointer_info info;

    return ours(ptr, &info) ? refuse("cuMemUnmap", &info) : REAL(unmap, ptr, bytes);
}

CUDA(cuMemAddressFree, cu_ptr ptr, size_t bytes)
{
    struct mb_pointer_info info;

    return ours(ptr, &info) ? refuse("cuMemAddressFree", &info) : REAL(address_free, ptr, bytes);
}
