/* SPDX-License-Identifier: MIT */
/*
 * fake_cuda.h - A FAKE of libcuda.so.1, for tests of what stands in front of it. It is not CUDA,
 * and what runs on it has not run on a GPU.
 *
 * It has what the CUDA runtime (the toolkit's own, static and shared) and MoonBright's `cuda`
 * backend with driver tables call. Device memory is memory of the process, so that copies and
 * fills are real: plain allocations are anonymous memory, handles are pieces of a shared memory
 * file that mappings show. Streams are threads that write and wait for values; copies and fills
 * run in the call, after all streams. Of kernels, MoonBright's small ones (kernels/cuda/work.cu)
 * are run by the stream's thread; all others do nothing. Contexts are the primary one of each
 * device and those that cuCtxCreate makes.
 *
 * Environment, read once: FAKE_CUDA_MEMORY (bytes, default 2 GiB), FAKE_CUDA_DEVICES (default 1),
 * FAKE_CUDA_VERSION (default 13000), FAKE_CUDA_TRACE (a file that gets one line per function that
 * was asked for).
 *
 * Every call is counted: tests find fake_cuda_count() with dlsym.
 */
#ifndef MB_PRELOAD_FAKE_CUDA_H
#define MB_PRELOAD_FAKE_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

/* ------------------------------------------------------------ for tests */

/* How often a function was called, by its exported name. */
FAKE_API uint64_t fake_cuda_count(const char *name);
/* Bytes of device memory that are taken: plain blocks and handles. */
FAKE_API uint64_t fake_cuda_held_bytes(void);
/* From now on calls that take or give memory end with this, as after a kernel's fault. */
FAKE_API void fake_cuda_break(int result);
/* From now on cuStreamIsCapturing tells that this stream is captured; NULL: none. */
FAKE_API void fake_cuda_capture(void *stream);

/* ------------------------------------------------------------ inside the fake */

enum {
    FAKE_OK = 0,
    FAKE_INVALID_VALUE = 1,
    FAKE_OUT_OF_MEMORY = 2,
    FAKE_INVALID_DEVICE = 101,
    FAKE_INVALID_CONTEXT = 201,
    FAKE_INVALID_HANDLE = 400,
    FAKE_NOT_FOUND = 500,
    FAKE_NOT_READY = 600,
    FAKE_NOT_SUPPORTED = 801,
};

struct fake_options {
    uint64_t memory_bytes;
    int devices, version;
};
const struct fake_options *fake_options(void);

struct fake_context {
    int device;
    unsigned refs; /* of a primary one */
    unsigned long long id;
    bool alive;
};
/* The calling thread's, or NULL. */
struct fake_context *fake_current(void);

void fake_called(const char *name);
#define FAKE(name, ...)                                                                            \
    FAKE_API int name(__VA_ARGS__);                                                                \
    int name(__VA_ARGS__)
#define CALLED() fake_called(__func__)

/* A kernel that the fake can run, NULL: it does nothing. */
struct fake_kernel;
const struct fake_kernel *fake_kernel_named(const char *name);
const struct fake_kernel *fake_kernel_known(const void *function);
/* Arguments as cuLaunchKernel gets them, copied: free() it. NULL: no host memory. */
void *fake_kernel_arguments(const struct fake_kernel *kernel, void **params);
void fake_kernel_run(const struct fake_kernel *kernel, const void *arguments);
/* Behind what the stream has. False: no such stream. */
bool fake_enqueue_kernel(void *stream, const struct fake_kernel *kernel, void *arguments);

/* Waits until everything enqueued so far has run. */
void fake_sync_all(void);
/* False: there is no such stream. */
bool fake_sync(void *stream);
/* fake_lock held: the streams that were made on a device are no more. */
void fake_end_streams(int device);

/* One for everything. */
extern pthread_mutex_t fake_lock;

typedef uint64_t cu_ptr;

#endif
