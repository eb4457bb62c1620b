/* SPDX-License-Identifier: MIT */
/*
 * query.c - what an address is, and how much memory there is.
 *
 * The driver sees MoonBright's memory as mappings of its own, one slab or frame long; programs want
 * to hear of the block. So everything about the block is answered here. What is about the frames
 * (tokens for peer-to-peer transfer, identity of the memory, suitability for RDMA) the driver
 * answers where its record is the truth, at home addresses; elsewhere it is refused.
 */
#include "cuda.h"

#include <string.h>

enum {
    ATTR_CONTEXT = 1,
    ATTR_MEMORY_TYPE = 2,
    ATTR_DEVICE_POINTER = 3,
    ATTR_HOST_POINTER = 4,
    ATTR_P2P_TOKENS = 5,
    ATTR_SYNC_MEMOPS = 6,
    ATTR_BUFFER_ID = 7,
    ATTR_MANAGED = 8,
    ATTR_ORDINAL = 9,
    ATTR_LEGACY_IPC = 10,
    ATTR_RANGE_START = 11,
    ATTR_RANGE_BYTES = 12,
    ATTR_MAPPED = 13,
    ATTR_HANDLE_TYPES = 14,
    ATTR_RDMA_CAPABLE = 15,
    ATTR_ACCESS = 16,
    ATTR_POOL = 17,
    ATTR_MAPPING_BYTES = 18,
    ATTR_MAPPING_BASE = 19,
    ATTR_BLOCK_ID = 20,
    MEMORY_DEVICE = 2,
};

struct place {
    struct mb_pointer_info info;
    int ordinal;
    cu_ptr ptr;
};

static bool find(cu_ptr ptr, struct place *place)
{
    place->ptr = ptr;
    return core_owner((void *)(uintptr_t)ptr, &place->info, &place->ordinal) != NULL;
}

/* Unique while the block's frames stay, for addresses of which the driver knows nothing true. */
static uint64_t identity(const struct place *place)
{
    return (uint64_t)1 << 63 | (uint64_t)(uintptr_t)place->info.base << 8 |
           (place->info.generation & 255);
}

static int refuse_tokens(const struct place *place)
{
    core_note("CU_POINTER_ATTRIBUTE_P2P_TOKENS: the block at %p is composed of scattered "
              "frames, and the driver would give tokens for others; set MOONBRIGHT_PRELOAD=ipc, so "
              "that cuMemAlloc gives memory that can be registered",
              place->info.base);
    return CU_NOT_SUPPORTED;
}

/* Attributes of the frames. */
static int of_frames(const struct place *place, int attribute, void *out)
{
    if (place->info.driver_visible)
        return REAL(attribute, out, attribute, place->ptr);
    switch (attribute) {
    case ATTR_BUFFER_ID:
    case ATTR_BLOCK_ID:
        *(uint64_t *)out = identity(place);
        return CU_OK;
    case ATTR_RDMA_CAPABLE:
    case ATTR_SYNC_MEMOPS:
        *(unsigned char *)out = 0;
        return CU_OK;
    case ATTR_P2P_TOKENS:
        return refuse_tokens(place);
    default:
        return CU_INVALID_VALUE;
    }
}

/* Flags that are the same for a block and the mapping that it lies in. The driver writes them,
 * since it alone knows how wide its flags are; without a driver behind the address (the software
 * GPU) they are bytes. */
static int flag(const struct place *place, int attribute, bool value, void *out)
{
    if (REAL(attribute, out, attribute, place->ptr))
        *(unsigned char *)out = value;
    return CU_OK;
}

/* Attributes of the block; sizes of the results are the driver's. */
static int of_block(const struct place *place, int attribute, void *out)
{
    switch (attribute) {
    case ATTR_CONTEXT:
        *(void **)out = cuda_context(place->ordinal);
        return CU_OK;
    case ATTR_MEMORY_TYPE:
        *(unsigned *)out = MEMORY_DEVICE;
        return CU_OK;
    case ATTR_DEVICE_POINTER:
        *(cu_ptr *)out = place->ptr;
        return CU_OK;
    case ATTR_MANAGED:
    case ATTR_LEGACY_IPC:
        return flag(place, attribute, false, out);
    case ATTR_ORDINAL:
        *(int *)out = place->ordinal;
        return CU_OK;
    case ATTR_MAPPED:
        return flag(place, attribute, true, out);
    case ATTR_RANGE_START:
    case ATTR_MAPPING_BASE:
        *(cu_ptr *)out = (cu_ptr)(uintptr_t)place->info.base;
        return CU_OK;
    case ATTR_RANGE_BYTES:
    case ATTR_MAPPING_BYTES:
        *(size_t *)out = place->info.bytes;
        return CU_OK;
    case ATTR_HANDLE_TYPES:
        *(uint64_t *)out = 0;
        return CU_OK;
    case ATTR_ACCESS:
        *(int *)out = CU_ACCESS_READ_WRITE;
        return CU_OK;
    case ATTR_POOL:
        *(void **)out = NULL;
        return CU_OK;
    case ATTR_HOST_POINTER:
        return CU_INVALID_VALUE; /* as for any device memory */
    default:
        return of_frames(place, attribute, out);
    }
}

CUDA(cuPointerGetAttribute, void *out, int attribute, cu_ptr ptr)
{
    struct place place;

    return out && find(ptr, &place) ? of_block(&place, attribute, out)
                                    : REAL(attribute, out, attribute, ptr);
}

static size_t size_of(int attribute)
{
    switch (attribute) {
    case ATTR_MANAGED:
    case ATTR_LEGACY_IPC:
    case ATTR_MAPPED:
    case ATTR_SYNC_MEMOPS:
    case ATTR_RDMA_CAPABLE:
        return 1;
    case ATTR_MEMORY_TYPE:
    case ATTR_ORDINAL:
    case ATTR_ACCESS:
        return 4;
    case ATTR_P2P_TOKENS:
        return 16;
    default:
        return 8;
    }
}

/* Unlike the single call, what does not apply is 0 here and no error. */
CUDA(cuPointerGetAttributes, unsigned count, int *attributes, void **out, cu_ptr ptr)
{
    struct place place;

    if (!count || !attributes || !out || !find(ptr, &place))
        return REAL(attributes, count, attributes, out, ptr);
    for (unsigned i = 0; i < count; i++) {
        int result;

        if (!out[i])
            return CU_INVALID_VALUE;
        result = of_block(&place, attributes[i], out[i]);
        if (result == CU_NOT_SUPPORTED)
            return result;
        if (result)
            memset(out[i], 0, size_of(attributes[i]));
    }
    return CU_OK;
}

CUDA(cuPointerSetAttribute, const void *value, int attribute, cu_ptr ptr)
{
    struct place place;

    if (!find(ptr, &place) || place.info.driver_visible)
        return REAL(set_attribute, value, attribute, ptr);
    core_note("cuPointerSetAttribute: the block at %p is composed of scattered frames, of "
              "which the driver has no record; set MOONBRIGHT_PRELOAD=ipc",
              place.info.base);
    return CU_NOT_SUPPORTED;
}

CUDA(cuMemGetAddressRange_v2, cu_ptr *base, size_t *bytes, cu_ptr ptr)
{
    struct place place;

    if (!find(ptr, &place))
        return REAL(range, base, bytes, ptr);
    if (base)
        *base = (cu_ptr)(uintptr_t)place.info.base;
    if (bytes)
        *bytes = place.info.bytes;
    return CU_OK;
}

/* What MoonBright holds and nobody uses is free for the program. */
CUDA(cuMemGetInfo_v2, size_t *free_bytes, size_t *total)
{
    struct mb_stats stats;
    int ordinal;
    int result = REAL(mem_info, free_bytes, total);
    mb_device dev = !result && free_bytes ? cuda_current(&ordinal) : NULL;
    uint64_t unused = 0;

    if (!dev)
        return result;
    core_enter();
    if (!mb_stats_get(dev, &stats))
        unused = stats.reserved_bytes - stats.overhead_bytes - stats.frames_used_bytes;
    core_leave();
    *free_bytes += (size_t)unused;
    return result;
}
