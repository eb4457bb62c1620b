/* SPDX-License-Identifier: MIT */
/*
 * cuda_vmm.c - the KV cache on CUDA's own virtual memory calls, as vAttention maps it: a peer to
 * measure against, with the same decisions. A handle of 2 MiB per page, since one can be mapped
 * only as a whole; one cuMemSetAccess per run of pages. cuMemUnmap knows no streams, so the stream
 * is waited for before something is taken away. All pages are writable: the driver offers no other
 * access to device memory. A call of the driver that fails in the middle leaves a cache that can
 * only be closed. libcuda is looked up at run time. A mapper's `user` is the ordinal of its device.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "moonbright_kv.h"

enum {
    PAGE_SHIFT = 21,
    PINNED = 1,     /* CU_MEM_ALLOCATION_TYPE_PINNED */
    ON_DEVICE = 1,  /* CU_MEM_LOCATION_TYPE_DEVICE */
    READ_WRITE = 3, /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
};

typedef uint64_t cu_handle, cu_ptr;

/* CUmemLocation, CUmemAllocationProp, CUmemAccessDesc of the driver's interface. */
struct cu_location {
    int type, id;
};
struct cu_prop {
    int type, handle_types;
    struct cu_location location;
    void *win32;
    unsigned char flags[8];
};
struct cu_access {
    struct cu_location location;
    int flags;
};

/* Filled once by mb_kv_vmm_mapper(), read only afterwards. */
static struct {
    int (*reserve)(cu_ptr *va, size_t bytes, size_t align, cu_ptr hint, unsigned long long flags);
    int (*unreserve)(cu_ptr va, size_t bytes);
    int (*create)(cu_handle *out, size_t bytes, const struct cu_prop *prop,
                  unsigned long long flags);
    int (*release)(cu_handle handle);
    int (*map)(cu_ptr va, size_t bytes, size_t offset, cu_handle handle, unsigned long long flags);
    int (*unmap)(cu_ptr va, size_t bytes);
    int (*access)(cu_ptr va, size_t bytes, const struct cu_access *desc, size_t count);
    int (*copy)(cu_ptr dst, cu_ptr src, size_t bytes, void *stream);
    int (*sync)(void *stream);
} cu;

/* What an mb_mem is here. */
struct handles {
    uint64_t count;
    cu_handle of[];
};

static _Thread_local char text[128];

static enum mb_err failed(const char *what, int result, enum mb_err err)
{
    snprintf(text, sizeof(text), "%s: CUDA error %d", what, result);
    return err;
}

static int ordinal(void *user)
{
    return (int)(intptr_t)user;
}

static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    cu_ptr at = 0;
    int result = cu.reserve(&at, bytes, 0, 0, 0);

    (void)user;
    if (result)
        return failed("cuMemAddressReserve", result, MB_ERR_NO_ADDRESS);
    *va = (void *)(uintptr_t)at;
    return MB_OK;
}

static void unreserve(void *user, void *va, uint64_t bytes)
{
    (void)user;
    (void)cu.unreserve((cu_ptr)(uintptr_t)va, bytes);
}

static void release(void *user, mb_mem mem)
{
    struct handles *handles = (struct handles *)(void *)mem;

    (void)user;
    for (uint64_t i = 0; i < handles->count; i++)
        (void)cu.release(handles->of[i]);
    free(handles);
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    struct cu_prop prop = {.type = PINNED, .location = {ON_DEVICE, ordinal(user)}};
    uint64_t count = bytes >> PAGE_SHIFT;
    struct handles *handles = calloc(1, sizeof(*handles) + count * sizeof(handles->of[0]));

    if (!handles) {
        snprintf(text, sizeof(text), "no host memory for the records of %" PRIu64 " handles",
                 count);
        return MB_ERR_HOST_MEMORY;
    }
    for (; handles->count < count; handles->count++) {
        int result = cu.create(&handles->of[handles->count], (size_t)1 << PAGE_SHIFT, &prop, 0);

        if (!result)
            continue;
        release(user, (mb_mem)(void *)handles);
        return failed("cuMemCreate", result, result == 2 ? MB_ERR_NO_MEMORY : MB_ERR_DRIVER);
    }
    *out = (mb_mem)(void *)handles;
    return MB_OK;
}

static enum mb_err map_run(int device, const struct mb_map_op *op)
{
    struct cu_access access = {{ON_DEVICE, device}, READ_WRITE};
    const struct handles *handles = (const struct handles *)(const void *)op->mem;
    cu_ptr va = (cu_ptr)(uintptr_t)op->va;
    int result = 0;

    for (uint64_t i = 0; !result && i < op->bytes >> PAGE_SHIFT; i++)
        result = cu.map(va + (i << PAGE_SHIFT), (size_t)1 << PAGE_SHIFT, 0,
                        handles->of[(op->mem_offset >> PAGE_SHIFT) + i], 0);
    if (result)
        return failed("cuMemMap", result, MB_ERR_DRIVER);
    result = cu.access(va, op->bytes, &access, 1);
    return result ? failed("cuMemSetAccess", result, MB_ERR_DRIVER) : MB_OK;
}

static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    enum mb_err err = MB_OK;
    bool waited = false;

    for (unsigned i = 0; !err && i < count; i++) {
        int result = 0;

        if (ops[i].kind == MB_MAP)
            err = map_run(ordinal(user), &ops[i]);
        if (ops[i].kind != MB_UNMAP)
            continue;
        if (!waited)
            result = cu.sync(stream);
        waited = true;
        if (!result)
            result = cu.unmap((cu_ptr)(uintptr_t)ops[i].va, ops[i].bytes);
        if (result)
            err = failed("cuMemUnmap", result, MB_ERR_DRIVER);
    }
    return err;
}

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    int result = 0;

    (void)user;
    for (unsigned i = 0; !result && i < count; i++)
        result = cu.copy((cu_ptr)(uintptr_t)list[i].dst, (cu_ptr)(uintptr_t)list[i].src,
                         list[i].bytes, stream);
    return result ? failed("cuMemcpyDtoDAsync", result, MB_ERR_DRIVER) : MB_OK;
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    int result = cu.sync(from);

    (void)user;
    (void)to;
    return result ? failed("cuStreamSynchronize", result, MB_ERR_DRIVER) : MB_OK;
}

static const char *detail(void *user)
{
    (void)user;
    return text;
}

static bool look_up(void)
{
    static const struct {
        const char *name;
        void *to;
    } names[] = {
        {"cuMemAddressReserve", &cu.reserve},
        {"cuMemAddressFree", &cu.unreserve},
        {"cuMemCreate", &cu.create},
        {"cuMemRelease", &cu.release},
        {"cuMemMap", &cu.map},
        {"cuMemUnmap", &cu.unmap},
        {"cuMemSetAccess", &cu.access},
        {"cuMemcpyDtoDAsync_v2", &cu.copy},
        {"cuStreamSynchronize", &cu.sync},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);

    for (unsigned i = 0; library && i < sizeof(names) / sizeof(names[0]); i++) {
        void *symbol = dlsym(library, names[i].name);

        if (!symbol)
            return false;
        __builtin_memcpy(names[i].to, &symbol, sizeof(symbol));
    }
    return library != NULL;
}

/* Maps on CUDA device `device`, whose context must be current on calling threads. */
MB_API enum mb_err mb_kv_vmm_mapper(int device, struct mb_kv_mapper *out);
MB_API enum mb_err mb_kv_vmm_mapper(int device, struct mb_kv_mapper *out)
{
    if (!look_up())
        return MB_ERR_NO_DEVICE;
    *out = (struct mb_kv_mapper){
        .user = (void *)(intptr_t)device,
        .page_bytes = (uint64_t)1 << PAGE_SHIFT,
        .reserve = reserve,
        .unreserve = unreserve,
        .create = create,
        .release = release,
        .map = map,
        .copy = copy,
        .order = order,
        .detail = detail,
    };
    return MB_OK;
}
