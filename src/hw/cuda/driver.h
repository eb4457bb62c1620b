/* SPDX-License-Identifier: MIT */
/*
 * driver.h - the part of the CUDA driver interface that MoonBright calls, opened at run time.
 *
 * Types are our own declarations of the documented C interface, so that building needs no toolkit
 * and the library needs nothing from CUDA to load. The table is filled once per process by
 * mb__cuda_driver(); after fork the child must not use it.
 */
#ifndef MB_HW_CUDA_DRIVER_H
#define MB_HW_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

typedef int cu_result; /* 0 is success */
typedef int cu_device;
typedef uint64_t cu_ptr;
typedef uint64_t cu_mem; /* allocation handle */
typedef struct cu_context_st *cu_context;
typedef struct cu_stream_st *cu_stream;
typedef struct cu_event_st *cu_event;
typedef struct cu_module_st *cu_module;
typedef struct cu_function_st *cu_function;
typedef struct cu_graph_st *cu_graph;
typedef struct cu_graph_exec_st *cu_graph_exec;

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_DEINITIALIZED = 4,
    CU_NOT_READY = 600,
    CU_CONTEXT_DESTROYED = 709,

    CU_ATTR_TOTAL_CONSTANT = 9,
    CU_ATTR_MULTIPROCESSORS = 16,
    CU_ATTR_INTEGRATED = 18,
    CU_ATTR_PCI_BUS = 33,
    CU_ATTR_PCI_DEVICE = 34,
    CU_ATTR_PCI_DOMAIN = 50,
    CU_ATTR_CC_MAJOR = 75,
    CU_ATTR_CC_MINOR = 76,
    CU_ATTR_HOST_PAGE_TABLES = 100, /* pageable memory access uses the host's page tables: Grace */

    CU_STREAM_NON_BLOCKING = 1,
    CU_WAIT_GEQ = 0,
    CU_CAPTURE_NONE = 0,
    CU_CAPTURE_RELAXED = 2,
    CU_HOST_ALLOC_PORTABLE = 1,
    CU_HOST_ALLOC_MAPPED = 2,
    CU_MEM_TYPE_PINNED = 1,
    CU_MEM_LOCATION_DEVICE = 1,
    CU_MEM_OP_WAIT64 = 4,
    CU_MEM_OP_WRITE64 = 5,
    CU_MEM_ACCESS_NONE = 0,
    CU_MEM_ACCESS_READ = 1,
    CU_MEM_ACCESS_READ_WRITE = 3,
};

struct cu_mem_location {
    int type;
    int id; /* device ordinal */
};

struct cu_mem_prop {
    int type;
    int requested_handle_types;
    struct cu_mem_location location;
    void *win32;
    struct {
        unsigned char compression; /* always 0: compressible frames are refused */
        unsigned char rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cu_mem_access {
    struct cu_mem_location location;
    int flags;
};

struct cu_uuid {
    unsigned char bytes[16];
};

/* One stream memory operation of a batch; `op` is CU_MEM_OP_*. */
struct cu_mem_op {
    int op;
    cu_ptr address;
    uint64_t value;
    unsigned flags;
    uint64_t pad[2]; /* the driver's union has 48 bytes */
};
_Static_assert(sizeof(struct cu_mem_op) == 48, "size of the driver's union");

/* X(return-type-less list): name of our member, exported symbol, arguments */
#define MB_CUDA_DRIVER_LIST(X)                                                                     \
    X(init, "cuInit", (unsigned flags))                                                            \
    X(driver_version, "cuDriverGetVersion", (int *version))                                        \
    X(error_name, "cuGetErrorName", (cu_result result, const char **name))                         \
    X(device_count, "cuDeviceGetCount", (int *count))                                              \
    X(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                                \
    X(device_name, "cuDeviceGetName", (char *name, int bytes, cu_device device))                   \
    X(device_uuid, "cuDeviceGetUuid_v2", (struct cu_uuid * uuid, cu_device device))                \
    X(device_total, "cuDeviceTotalMem_v2", (size_t * bytes, cu_device device))                     \
    X(device_attr, "cuDeviceGetAttribute", (int *value, int attr, cu_device device))               \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (cu_context * ctx, cu_device device))            \
    X(primary_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                         \
    X(primary_state, "cuDevicePrimaryCtxGetState",                                                 \
      (cu_device device, unsigned *flags, int *active))                                            \
    X(ctx_current, "cuCtxGetCurrent", (cu_context * ctx))                                          \
    X(ctx_set, "cuCtxSetCurrent", (cu_context ctx))                                                \
    X(ctx_push, "cuCtxPushCurrent_v2", (cu_context ctx))                                           \
    X(ctx_pop, "cuCtxPopCurrent_v2", (cu_context * ctx))                                           \
    X(ctx_id, "cuCtxGetId", (cu_context ctx, unsigned long long *id))                              \
    X(ctx_sync, "cuCtxSynchronize", (void))                                                        \
    X(module_load, "cuModuleLoadData", (cu_module * module, const void *image))                    \
    X(module_unload, "cuModuleUnload", (cu_module module))                                         \
    X(module_function, "cuModuleGetFunction",                                                      \
      (cu_function * function, cu_module module, const char *name))                                \
    X(launch, "cuLaunchKernel",                                                                    \
      (cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,      \
       unsigned bz, unsigned shared, cu_stream stream, void **params, void **extra))               \
    X(stream_create, "cuStreamCreate", (cu_stream * stream, unsigned flags))                       \
    X(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                                    \
    X(stream_sync, "cuStreamSynchronize", (cu_stream stream))                                      \
    X(stream_query, "cuStreamQuery", (cu_stream stream))                                           \
    X(stream_capturing, "cuStreamIsCapturing", (cu_stream stream, int *status))                    \
    X(stream_wait_event, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))  \
    X(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                           \
    X(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                           \
    X(event_destroy, "cuEventDestroy_v2", (cu_event event))                                        \
    X(stream_write64, "cuStreamWriteValue64_v2",                                                   \
      (cu_stream stream, cu_ptr addr, uint64_t value, unsigned flags))                             \
    X(stream_wait64, "cuStreamWaitValue64_v2",                                                     \
      (cu_stream stream, cu_ptr addr, uint64_t value, unsigned flags))                             \
    X(stream_ops, "cuStreamBatchMemOp_v2",                                                         \
      (cu_stream stream, unsigned count, struct cu_mem_op *ops, unsigned flags))                   \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                              \
    X(mem_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                                \
    X(mem_alloc, "cuMemAlloc_v2", (cu_ptr * ptr, size_t bytes))                                    \
    X(mem_free, "cuMemFree_v2", (cu_ptr ptr))                                                      \
    X(host_alloc, "cuMemHostAlloc", (void **ptr, size_t bytes, unsigned flags))                    \
    X(host_free, "cuMemFreeHost", (void *ptr))                                                     \
    X(host_register, "cuMemHostRegister_v2", (void *ptr, size_t bytes, unsigned flags))            \
    X(host_unregister, "cuMemHostUnregister", (void *ptr))                                         \
    X(host_device_ptr, "cuMemHostGetDevicePointer_v2",                                             \
      (cu_ptr * device_ptr, void *ptr, unsigned flags))                                            \
    X(memset8, "cuMemsetD8_v2", (cu_ptr ptr, unsigned char value, size_t count))                   \
    X(reserve, "cuMemAddressReserve",                                                              \
      (cu_ptr * ptr, size_t bytes, size_t align, cu_ptr addr, unsigned long long flags))           \
    X(unreserve, "cuMemAddressFree", (cu_ptr ptr, size_t bytes))                                   \
    X(mem_create, "cuMemCreate",                                                                   \
      (cu_mem * handle, size_t bytes, const struct cu_mem_prop *prop, unsigned long long flags))   \
    X(mem_release, "cuMemRelease", (cu_mem handle))                                                \
    X(mem_map, "cuMemMap",                                                                         \
      (cu_ptr ptr, size_t bytes, size_t offset, cu_mem handle, unsigned long long flags))          \
    X(mem_unmap, "cuMemUnmap", (cu_ptr ptr, size_t bytes))                                         \
    X(can_access_peer, "cuDeviceCanAccessPeer", (int *can, cu_device device, cu_device peer))      \
    X(mem_access, "cuMemSetAccess",                                                                \
      (cu_ptr ptr, size_t bytes, const struct cu_mem_access *access, size_t count))                \
    X(mem_granularity, "cuMemGetAllocationGranularity",                                            \
      (size_t * bytes, const struct cu_mem_prop *prop, int option))

struct mb_cuda_driver {
#define MB_CUDA_DRIVER_MEMBER(member, symbol, args) cu_result(*member) args;
    MB_CUDA_DRIVER_LIST(MB_CUDA_DRIVER_MEMBER)
#undef MB_CUDA_DRIVER_MEMBER
    void *handle; /* of dlopen; kept until the process ends */
};

/*
 * Opens libcuda.so.1 and resolves the table; does not call cuInit. The same table on every call.
 * ERRORS  MB_ERR_NO_DEVICE when there is no libcuda, MB_ERR_NOT_SUPPORTED when it lacks a function.
 */
enum mb_err mb__cuda_driver_open(const struct mb_cuda_driver **out);

/* MB_OK, or mb__fail() with the driver's own error name behind `what`: MB_ERR_NO_MEMORY for its out
 * of memory, MB_ERR_DEVICE_LOST for errors that end a context, MB_ERR_DRIVER otherwise. */
enum mb_err mb__cuda_check(const struct mb_cuda_driver *cu, cu_result result, const char *what);
/* Does this result mean that the context is gone for good? */
int mb__cuda_is_fatal(cu_result result);

#endif
