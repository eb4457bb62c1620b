/* SPDX-License-Identifier: MIT */
/*
 * cuda.h - inside the preload library for CUDA: what is intercepted, and the driver's own
 * functions.
 *
 * Only the driver interface is intercepted. The CUDA runtime, shared or static, of any version,
 * gets every function of the driver by dlopen("libcuda.so.1"), dlsym() and cuGetProcAddress(); so
 * one place answers for both, and the runtime's own bookkeeping (contexts, errors, zero sizes)
 * stays what it is. Programs reach the names in three ways: as symbols, since this library stands
 * in front; by dlsym(), which is ours too; by cuGetProcAddress().
 *
 * Types are our own declarations of the documented C interface: building needs no toolkit.
 */
#ifndef MB_PRELOAD_CUDA_H
#define MB_PRELOAD_CUDA_H

#include "core.h"

typedef uint64_t cu_ptr;
typedef struct cu_pool_st *cu_pool; /* the driver's, or a struct cuda_pool of ours */

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_PEER_UNSUPPORTED = 217,
    CU_NOT_FOUND = 500,
    CU_NOT_SUPPORTED = 801,
    CU_UNKNOWN = 999,

    CU_LOCATION_DEVICE = 1,
    CU_ALLOCATION_PINNED = 1,
    CU_ACCESS_READ_WRITE = 3,
};

struct cu_location {
    int type, id;
};
struct cu_access {
    struct cu_location location;
    int flags;
};
struct cu_pool_props {
    int alloc_type, handle_types;
    struct cu_location location;
    void *win32;
    size_t max_bytes; /* 0 before CUDA 12.2, where it was reserved */
    unsigned char reserved[56];
};

/* Which stream the value 0 names in a function. */
enum cuda_zero { ANY, LEGACY, PER_THREAD };

/*
 * Intercepted: X(member, symbol, name for cuGetProcAddress, since which version it is this one,
 * meaning of stream 0, arguments).
 */
#define CUDA_LIST(X)                                                                               \
    X(proc_v1, cuGetProcAddress, "cuGetProcAddress", 11030, ANY,                                   \
      (const char *name, void **out, int version, uint64_t flags))                                 \
    X(proc, cuGetProcAddress_v2, "cuGetProcAddress", 12000, ANY,                                   \
      (const char *name, void **out, int version, uint64_t flags, int *status))                    \
    X(mem_alloc, cuMemAlloc_v2, "cuMemAlloc", 3020, ANY, (cu_ptr * ptr, size_t bytes))             \
    X(mem_pitch, cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, ANY,                                 \
      (cu_ptr * ptr, size_t * pitch, size_t width, size_t height, unsigned element))               \
    X(mem_free, cuMemFree_v2, "cuMemFree", 3020, ANY, (cu_ptr ptr))                                \
    X(alloc_async, cuMemAllocAsync, "cuMemAllocAsync", 11020, LEGACY,                              \
      (cu_ptr * ptr, size_t bytes, void *stream))                                                  \
    X(alloc_async_pt, cuMemAllocAsync_ptsz, "cuMemAllocAsync", 11020, PER_THREAD,                  \
      (cu_ptr * ptr, size_t bytes, void *stream))                                                  \
    X(free_async, cuMemFreeAsync, "cuMemFreeAsync", 11020, LEGACY, (cu_ptr ptr, void *stream))     \
    X(free_async_pt, cuMemFreeAsync_ptsz, "cuMemFreeAsync", 11020, PER_THREAD,                     \
      (cu_ptr ptr, void *stream))                                                                  \
    X(alloc_pool, cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", 11020, LEGACY,               \
      (cu_ptr * ptr, size_t bytes, cu_pool pool, void *stream))                                    \
    X(alloc_pool_pt, cuMemAllocFromPoolAsync_ptsz, "cuMemAllocFromPoolAsync", 11020, PER_THREAD,   \
      (cu_ptr * ptr, size_t bytes, cu_pool pool, void *stream))                                    \
    X(pool_create, cuMemPoolCreate, "cuMemPoolCreate", 11020, ANY,                                 \
      (cu_pool * pool, const struct cu_pool_props *props))                                         \
    X(pool_destroy, cuMemPoolDestroy, "cuMemPoolDestroy", 11020, ANY, (cu_pool pool))              \
    X(pool_trim, cuMemPoolTrimTo, "cuMemPoolTrimTo", 11020, ANY, (cu_pool pool, size_t keep))      \
    X(pool_set, cuMemPoolSetAttribute, "cuMemPoolSetAttribute", 11020, ANY,                        \
      (cu_pool pool, int attribute, void *value))                                                  \
    X(pool_get, cuMemPoolGetAttribute, "cuMemPoolGetAttribute", 11020, ANY,                        \
      (cu_pool pool, int attribute, void *value))                                                  \
    X(pool_set_access, cuMemPoolSetAccess, "cuMemPoolSetAccess", 11020, ANY,                       \
      (cu_pool pool, const struct cu_access *list, size_t count))                                  \
    X(pool_get_access, cuMemPoolGetAccess, "cuMemPoolGetAccess", 11020, ANY,                       \
      (int *flags, cu_pool pool, struct cu_location *location))                                    \
    X(pool_export, cuMemPoolExportToShareableHandle, "cuMemPoolExportToShareableHandle", 11020,    \
      ANY, (void *out, cu_pool pool, int type, uint64_t flags))                                    \
    X(pool_export_ptr, cuMemPoolExportPointer, "cuMemPoolExportPointer", 11020, ANY,               \
      (void *out, cu_ptr ptr))                                                                     \
    X(device_default_pool, cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, ANY,     \
      (cu_pool * pool, int device))                                                                \
    X(device_pool, cuDeviceGetMemPool, "cuDeviceGetMemPool", 11020, ANY,                           \
      (cu_pool * pool, int device))                                                                \
    X(device_set_pool, cuDeviceSetMemPool, "cuDeviceSetMemPool", 11020, ANY,                       \
      (int device, cu_pool pool))                                                                  \
    X(default_pool, cuMemGetDefaultMemPool, "cuMemGetDefaultMemPool", 13000, ANY,                  \
      (cu_pool * pool, struct cu_location * location, int type))                                   \
    X(location_pool, cuMemGetMemPool, "cuMemGetMemPool", 13000, ANY,                               \
      (cu_pool * pool, struct cu_location * location, int type))                                   \
    X(set_location_pool, cuMemSetMemPool, "cuMemSetMemPool", 13000, ANY,                           \
      (struct cu_location * location, int type, cu_pool pool))                                     \
    X(mem_info, cuMemGetInfo_v2, "cuMemGetInfo", 3020, ANY, (size_t * free_bytes, size_t * total)) \
    X(range, cuMemGetAddressRange_v2, "cuMemGetAddressRange", 3020, ANY,                           \
      (cu_ptr * base, size_t * bytes, cu_ptr ptr))                                                 \
    X(attribute, cuPointerGetAttribute, "cuPointerGetAttribute", 4000, ANY,                        \
      (void *out, int attribute, cu_ptr ptr))                                                      \
    X(attributes, cuPointerGetAttributes, "cuPointerGetAttributes", 7000, ANY,                     \
      (unsigned count, int *attributes, void **out, cu_ptr ptr))                                   \
    X(set_attribute, cuPointerSetAttribute, "cuPointerSetAttribute", 6000, ANY,                    \
      (const void *value, int attribute, cu_ptr ptr))                                              \
    X(ipc_handle, cuIpcGetMemHandle, "cuIpcGetMemHandle", 4010, ANY, (void *handle, cu_ptr ptr))   \
    X(retain_handle, cuMemRetainAllocationHandle, "cuMemRetainAllocationHandle", 11000, ANY,       \
      (uint64_t * handle, void *address))                                                          \
    X(range_handle, cuMemGetHandleForAddressRange, "cuMemGetHandleForAddressRange", 11070, ANY,    \
      (void *handle, cu_ptr ptr, size_t bytes, int type, uint64_t flags))                          \
    X(set_access, cuMemSetAccess, "cuMemSetAccess", 10020, ANY,                                    \
      (cu_ptr ptr, size_t bytes, const struct cu_access *list, size_t count))                      \
    X(unmap, cuMemUnmap, "cuMemUnmap", 10020, ANY, (cu_ptr ptr, size_t bytes))                     \
    X(address_free, cuMemAddressFree, "cuMemAddressFree", 10020, ANY, (cu_ptr ptr, size_t bytes))  \
    X(primary_reset_v1, cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, ANY,             \
      (int device))                                                                                \
    X(primary_reset, cuDevicePrimaryCtxReset_v2, "cuDevicePrimaryCtxReset", 11000, ANY,            \
      (int device))                                                                                \
    X(stream_destroy, cuStreamDestroy_v2, "cuStreamDestroy", 4000, ANY, (void *stream))            \
    X(can_access_peer, cuDeviceCanAccessPeer, "cuDeviceCanAccessPeer", 4000, ANY,                  \
      (int *can, int device, int peer))                                                            \
    X(enable_peer, cuCtxEnablePeerAccess, "cuCtxEnablePeerAccess", 4000, ANY,                      \
      (void *peer, unsigned flags))

/* Called, but not intercepted: X(member, symbol, arguments). */
#define CUDA_OTHERS(X)                                                                             \
    X(ctx_current, cuCtxGetCurrent, (void **ctx))                                                  \
    X(ctx_device, cuCtxGetDevice, (int *device))                                                   \
    X(primary_retain, cuDevicePrimaryCtxRetain, (void **ctx, int device))                          \
    X(primary_release, cuDevicePrimaryCtxRelease_v2, (int device))                                 \
    X(stream_capturing, cuStreamIsCapturing, (void *stream, int *status))                          \
    X(stream_create, cuStreamCreate, (void **stream, unsigned flags))                              \
    X(stream_wait, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                 \
    X(event_create, cuEventCreate, (void **event, unsigned flags))                                 \
    X(event_record, cuEventRecord, (void *event, void *stream))

struct cuda_real {
#define CUDA_MEMBER(member, symbol, name, since, zero, args) int(*member) args;
#define CUDA_OTHER_MEMBER(member, symbol, args) int(*member) args;
    CUDA_LIST(CUDA_MEMBER)
    CUDA_OTHERS(CUDA_OTHER_MEMBER)
#undef CUDA_MEMBER
#undef CUDA_OTHER_MEMBER
};

/* libcuda's own functions; never NULL, members that it lacks are. Thread-safe. */
const struct cuda_real *cuda_real(void);
/* Calls the driver's own. */
#define REAL(member, ...)                                                                          \
    (cuda_real()->member ? cuda_real()->member(__VA_ARGS__) : CU_NOT_SUPPORTED)

#define EXPORT __attribute__((visibility("default")))
#define CUDA(name, ...)                                                                            \
    EXPORT int name(__VA_ARGS__);                                                                  \
    int name(__VA_ARGS__)

#define CUDA_DECLARE(member, symbol, name, since, zero, args) EXPORT int symbol args;
CUDA_LIST(CUDA_DECLARE)
#undef CUDA_DECLARE

/* ------------------------------------------------------------ context.c */

/* MoonBright's device if the thread's context is the primary one of a device that it serves. */
mb_device cuda_current(int *ordinal);
/* The driver's result for a failure; mb_error_detail() has the words. */
int cuda_result(enum mb_err err);
/* Primary context of an opened device, or NULL. */
void *cuda_context(int ordinal);
/* How often the program reset the current context, whose handle stays; 0: it is no primary one.
 * What was made in it before a reset is gone. */
uint64_t cuda_resets(void *ctx);

/* ------------------------------------------------------------ stream.c */

/*
 * The stream to give to MoonBright for a caller's. Per-thread default streams share one handle, so
 * each thread has a helper stream, which is ordered behind the caller's by cuda_side_behind() and
 * before it by cuda_side_before().
 */
struct cuda_side {
    void *stream, *event; /* the helper; NULL if the caller's stream serves itself */
    void *caller;
};
int cuda_side(void *stream, enum cuda_zero zero, struct cuda_side *out);
int cuda_side_behind(const struct cuda_side *side);
int cuda_side_before(const struct cuda_side *side);
/* Is the stream being captured, or may it not even be asked? Then the driver must answer. */
bool cuda_capturing(void *stream);

/* ------------------------------------------------------------ pool.c */

struct cuda_pool;
/* The pool of ours behind a handle, or NULL. */
struct cuda_pool *cuda_pool_of(cu_pool handle);
/* Is it a handle of ours whose pool is gone? The driver would follow it. */
bool cuda_pool_dead(cu_pool handle);
/* What cuMemAllocAsync takes memory from on this device: ours, or NULL with *vendor: the driver. */
struct cuda_pool *cuda_pool_current(int ordinal, bool *vendor);
/* MoonBright's pool; opens the device. NULL: the driver serves the device. */
mb_pool cuda_pool_open(struct cuda_pool *pool);
/* The driver's handle to pass on for one of ours that the driver has to serve after all. */
cu_pool cuda_pool_vendor(struct cuda_pool *pool, int *result);
int cuda_pool_device(const struct cuda_pool *pool);
/* The pools of a device that is being reset are no more. */
void cuda_pools_forget(int ordinal);

#endif
