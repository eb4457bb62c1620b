/* SPDX-License-Identifier: MIT */
/* program.h - the driver's functions as a program finds them, and checks. */
#ifndef MB_PRELOAD_PROGRAM_H
#define MB_PRELOAD_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t cu_ptr;

struct location {
    int type, id;
};
struct access {
    struct location location;
    int flags;
};
struct pool_props {
    int alloc_type, handle_types;
    struct location location;
    void *win32;
    size_t max_bytes;
    unsigned char reserved[56];
};

/* X(symbol, name for cuGetProcAddress, its version, flags, arguments) */
#define API(X)                                                                                     \
    X(cuInit, "cuInit", 2000, 0, (unsigned flags))                                                 \
    X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0, (void **ctx, int device))     \
    X(cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, 0, (int device))               \
    X(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, (int device))                   \
    X(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0, (void *ctx))                                    \
    X(cuCtxCreate_v2, "cuCtxCreate", 3020, 0, (void **ctx, unsigned flags, int device))            \
    X(cuCtxPopCurrent_v2, "cuCtxPopCurrent", 4000, 0, (void **ctx))                                \
    X(cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, 0, (void *peer, unsigned flags))       \
    X(cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, 0, (int *can, int device, int peer))   \
    X(cuStreamCreate, "cuStreamCreate", 2000, 0, (void **stream, unsigned flags))                  \
    X(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, (void *stream))                              \
    X(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, (cu_ptr * ptr, size_t bytes))                          \
    X(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0,                                              \
      (cu_ptr * ptr, size_t * pitch, size_t width, size_t height, unsigned element))               \
    X(cuMemFree_v2, "cuMemFree", 3020, 0, (cu_ptr ptr))                                            \
    X(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0,                                             \
      (cu_ptr * ptr, size_t bytes, unsigned flags))                                                \
    X(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0, (void **ptr, size_t bytes, unsigned flags))       \
    X(cuMemFreeHost, "cuMemFreeHost", 2000, 0, (void *ptr))                                        \
    X(cuMemAllocAsync, "cuMemAllocAsync", 11020, 0, (cu_ptr * ptr, size_t bytes, void *stream))    \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, 2,                                           \
      (cu_ptr * ptr, size_t bytes, void *stream))                                                  \
    X(cuMemFreeAsync, "cuMemFreeAsync", 11020, 0, (cu_ptr ptr, void *stream))                      \
    X(cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, 2, (cu_ptr ptr, void *stream))                 \
    X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, 0,                                \
      (cu_ptr * ptr, size_t bytes, void *pool, void *stream))                                      \
    X(cuMemPoolCreate, "cuMemPoolCreate", 11020, 0, (void **pool, const struct pool_props *props)) \
    X(cuMemPoolDestroy, "cuMemPoolDestroy", 11020, 0, (void *pool))                                \
    X(cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, 0, (void *pool, size_t keep))                     \
    X(cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, 0,                                    \
      (void *pool, int attribute, void *value))                                                    \
    X(cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, 0,                                    \
      (void *pool, int attribute, void *value))                                                    \
    X(cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020, 0,              \
      (void *out, void *pool, int type, uint64_t flags))                                           \
    X(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0, (void **pool, int device)) \
    X(cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, 0, (void **pool, int device))               \
    X(cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, 0, (int device, void *pool))                \
    X(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0, (size_t * free_bytes, size_t * total))             \
    X(cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, 0,                                    \
      (cu_ptr * base, size_t * bytes, cu_ptr ptr))                                                 \
    X(cuPointerGetAttribute, "cuPointerGetAttribute", 4000, 0,                                     \
      (void *out, int attribute, cu_ptr ptr))                                                      \
    X(cuPointerGetAttributes, "cuPointerGetAttributes", 7000, 0,                                   \
      (unsigned count, int *attributes, void **out, cu_ptr ptr))                                   \
    X(cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, 0, (void *handle, cu_ptr ptr))                 \
    X(cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, 0,                        \
      (void **handle, void *address))                                                              \
    X(cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070, 0,                    \
      (void *handle, cu_ptr ptr, size_t bytes, int type, uint64_t flags))                          \
    X(cuMemAddressReserve, "cuMemAddressReserve", 10020, 0,                                        \
      (cu_ptr * ptr, size_t bytes, size_t align, cu_ptr wanted, uint64_t flags))                   \
    X(cuMemAddressFree, "cuMemAddressFree", 10020, 0, (cu_ptr ptr, size_t bytes))                  \
    X(cuMemCreate, "cuMemCreate", 10020, 0,                                                        \
      (void **handle, size_t bytes, const void *props, uint64_t flags))                            \
    X(cuMemMap, "cuMemMap", 10020, 0,                                                              \
      (cu_ptr ptr, size_t bytes, size_t offset, void *handle, uint64_t flags))                     \
    X(cuMemSetAccess, "cuMemSetAccess", 10020, 0,                                                  \
      (cu_ptr ptr, size_t bytes, const struct access *access, size_t count))                       \
    X(cuMemUnmap, "cuMemUnmap", 10020, 0, (cu_ptr ptr, size_t bytes))                              \
    X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, 0, (cu_ptr to, const void *from, size_t bytes))       \
    X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, 0, (void *to, cu_ptr from, size_t bytes))             \
    X(cuMemcpy, "cuMemcpy", 4000, 0, (cu_ptr to, cu_ptr from, size_t bytes))                       \
    X(cuMemsetD8_v2, "cuMemsetD8", 3020, 0, (cu_ptr ptr, unsigned char value, size_t bytes))

struct api {
#define API_MEMBER(symbol, name, version, flags, args) int(*symbol) args;
    API(API_MEMBER)
#undef API_MEMBER
};
extern struct api cu;

/* "direct", "dlsym", "default" (dlsym of RTLD_DEFAULT), "proc", "proc_v1". */
void find_api(const char *way);

uint64_t fake_cuda_count(const char *name);
uint64_t fake_cuda_held_bytes(void);
void fake_cuda_capture(void *stream);
void fake_cuda_break(int result);

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) MUST((call) == 0)

#define MIB ((size_t)1 << 20)

/* Whether somebody waits for a lock of the file. */
bool is_waited_for(int fd);

#endif
