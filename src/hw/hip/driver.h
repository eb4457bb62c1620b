/* SPDX-License-Identifier: MIT */
/*
 * driver.h - the part of the HIP runtime interface that MoonBright calls, opened at run time.
 *
 * Types are our own declarations of the documented C interface, so that building needs no ROCm and
 * the library needs nothing from it to load. The table is filled once per process; after fork the
 * child must not use it. The calls that an old runtime lacks stand first. Names and values:
 * hip_runtime_api.h of ROCm 6; what MoonBright relies on is listed in doc/amd.md together with the
 * versions whose sources were read.
 */
#ifndef MB_HW_HIP_DRIVER_H
#define MB_HW_HIP_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "moonbright.h"

/* Stands in everything the backend says, until somebody has run it on such hardware. */
#define MB_HIP_NOTE "not run on AMD hardware"
#define MB_HIP_PREFIX "hip (" MB_HIP_NOTE "): "
#define mb__hip_fail(err, ...) mb__fail((err), MB_HIP_PREFIX __VA_ARGS__)

typedef int hip_result; /* 0 is success */
typedef struct hip_mem_st *hip_mem;
typedef struct hip_stream_st *hip_stream;
typedef struct hip_event_st *hip_event;
typedef struct hip_module_st *hip_module;
typedef struct hip_function_st *hip_function;

enum {
    HIP_OK = 0,
    HIP_INVALID_VALUE = 1,
    HIP_OUT_OF_MEMORY = 2,
    HIP_NOT_INITIALIZED = 3,
    HIP_NO_DEVICE = 100,
    HIP_INVALID_DEVICE = 101,
    HIP_INVALID_IMAGE = 200,
    HIP_NO_BINARY = 209, /* the module has no code for this GPU */
    HIP_INVALID_HANDLE = 400,
    HIP_NOT_FOUND = 500,
    HIP_NOT_READY = 600,
    HIP_NOT_SUPPORTED = 801,
    HIP_UNKNOWN = 999,

    HIP_ATTR_MULTIPROCESSORS = 63,
    HIP_ATTR_VMM = 89,                  /* virtual memory management is supported */
    HIP_ATTR_STREAM_WAIT_VALUE = 10013, /* a stream can wait for a value in signal memory */

    HIP_STREAM_NON_BLOCKING = 1,
    HIP_EVENT_NO_TIMING = 2,
    HIP_WAIT_GEQ = 0,
    HIP_CAPTURE_NONE = 0,
    HIP_CAPTURE_RELAXED = 2,
    HIP_HOST_PORTABLE = 1,
    HIP_HOST_MAPPED = 2,
    HIP_HOST_COHERENT = 0x40000000,
    HIP_MALLOC_SIGNAL = 2, /* exactly 8 bytes; the host may read them */
    HIP_MEM_TYPE_PINNED = 1,
    HIP_MEM_LOCATION_DEVICE = 1,
    HIP_MEM_ACCESS_NONE = 0,
    HIP_MEM_ACCESS_READ = 1,
    HIP_MEM_ACCESS_READ_WRITE = 3,
    HIP_GRANULARITY_MINIMUM = 0,
};

struct hip_mem_location {
    int type;
    int id; /* device ordinal */
};

struct hip_mem_prop {
    int type;
    int requested_handle_type;
    struct hip_mem_location location;
    void *win32;
    struct {
        unsigned char compression;
        unsigned char rdma;
        unsigned short usage;
    } flags;
    unsigned char later[64]; /* zero; room for what later versions read */
};

struct hip_mem_access {
    struct hip_mem_location location;
    int flags;
};

/* X(name of our member, exported symbol, result type, arguments) */
#define MB_HIP_DRIVER_LIST(X)                                                                      \
    X(init, "hipInit", hip_result, (unsigned flags))                                               \
    X(runtime_version, "hipRuntimeGetVersion", hip_result, (int *version))                         \
    X(error_name, "hipGetErrorName", const char *, (hip_result result))                            \
    X(device_count, "hipGetDeviceCount", hip_result, (int *count))                                 \
    X(get_device, "hipGetDevice", hip_result, (int *ordinal))                                      \
    X(set_device, "hipSetDevice", hip_result, (int ordinal))                                       \
    X(reserve, "hipMemAddressReserve", hip_result,                                                 \
      (void **ptr, size_t bytes, size_t align, void *addr, unsigned long long flags))              \
    X(unreserve, "hipMemAddressFree", hip_result, (void *ptr, size_t bytes))                       \
    X(mem_create, "hipMemCreate", hip_result,                                                      \
      (hip_mem * handle, size_t bytes, const struct hip_mem_prop *prop, unsigned long long flags)) \
    X(mem_release, "hipMemRelease", hip_result, (hip_mem handle))                                  \
    X(mem_map, "hipMemMap", hip_result,                                                            \
      (void *ptr, size_t bytes, size_t offset, hip_mem handle, unsigned long long flags))          \
    X(mem_unmap, "hipMemUnmap", hip_result, (void *ptr, size_t bytes))                             \
    X(mem_access, "hipMemSetAccess", hip_result,                                                   \
      (void *ptr, size_t bytes, const struct hip_mem_access *access, size_t count))                \
    X(mem_granularity, "hipMemGetAllocationGranularity", hip_result,                               \
      (size_t * bytes, const struct hip_mem_prop *prop, int option))                               \
    X(device_name, "hipDeviceGetName", hip_result, (char *name, int bytes, int device))            \
    X(device_attr, "hipDeviceGetAttribute", hip_result, (int *value, int attr, int device))        \
    X(device_sync, "hipDeviceSynchronize", hip_result, (void))                                     \
    X(module_load, "hipModuleLoadData", hip_result, (hip_module * module, const void *image))      \
    X(module_unload, "hipModuleUnload", hip_result, (hip_module module))                           \
    X(module_function, "hipModuleGetFunction", hip_result,                                         \
      (hip_function * function, hip_module module, const char *name))                              \
    X(launch, "hipModuleLaunchKernel", hip_result,                                                 \
      (hip_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,     \
       unsigned bz, unsigned shared, hip_stream stream, void **params, void **extra))              \
    X(stream_create, "hipStreamCreateWithFlags", hip_result,                                       \
      (hip_stream * stream, unsigned flags))                                                       \
    X(stream_destroy, "hipStreamDestroy", hip_result, (hip_stream stream))                         \
    X(stream_query, "hipStreamQuery", hip_result, (hip_stream stream))                             \
    X(stream_capturing, "hipStreamIsCapturing", hip_result, (hip_stream stream, int *status))      \
    X(stream_write64, "hipStreamWriteValue64", hip_result,                                         \
      (hip_stream stream, void *address, uint64_t value, unsigned flags))                          \
    X(stream_wait64, "hipStreamWaitValue64", hip_result,                                           \
      (hip_stream stream, void *address, uint64_t value, unsigned flags, uint64_t mask))           \
    X(stream_wait_event, "hipStreamWaitEvent", hip_result,                                         \
      (hip_stream stream, hip_event event, unsigned flags))                                        \
    X(event_create, "hipEventCreateWithFlags", hip_result, (hip_event * event, unsigned flags))    \
    X(event_record, "hipEventRecord", hip_result, (hip_event event, hip_stream stream))            \
    X(event_destroy, "hipEventDestroy", hip_result, (hip_event event))                             \
    X(capture_mode, "hipThreadExchangeStreamCaptureMode", hip_result, (int *mode))                 \
    X(mem_info, "hipMemGetInfo", hip_result, (size_t * free, size_t * total))                      \
    X(malloc, "hipMalloc", hip_result, (void **ptr, size_t bytes))                                 \
    X(malloc_with_flags, "hipExtMallocWithFlags", hip_result,                                      \
      (void **ptr, size_t bytes, unsigned flags))                                                  \
    X(free, "hipFree", hip_result, (void *ptr))                                                    \
    X(host_alloc, "hipHostMalloc", hip_result, (void **ptr, size_t bytes, unsigned flags))         \
    X(host_free, "hipHostFree", hip_result, (void *ptr))                                           \
    X(memset8, "hipMemset", hip_result, (void *ptr, int value, size_t bytes))                      \
    X(copy_to_host, "hipMemcpyDtoHAsync", hip_result,                                              \
      (void *to, void *from, size_t bytes, hip_stream stream))

struct mb_hip_driver {
#define MB_HIP_DRIVER_MEMBER(member, symbol, result, args) result(*member) args;
    MB_HIP_DRIVER_LIST(MB_HIP_DRIVER_MEMBER)
#undef MB_HIP_DRIVER_MEMBER
    void *handle;     /* of dlopen; kept until the process ends */
    const char *file; /* the name that could be opened */
};

/*
 * Opens libamdhip64 and resolves the table; initialises nothing. The same table on every call.
 * ERRORS  MB_ERR_NO_DEVICE when the library is not found (every name that was tried is in the
 *         text), MB_ERR_NOT_SUPPORTED when it lacks functions (all are named).
 */
enum mb_err mb__hip_driver_open(const struct mb_hip_driver **out);

/* MB_OK, or mb__fail() with HIP's own error name behind `what`. */
enum mb_err mb__hip_check(const struct mb_hip_driver *hip, hip_result result, const char *what);
/* Which of ours a result of HIP's is. */
enum mb_err mb__hip_err(hip_result result);

#endif
