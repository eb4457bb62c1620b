/* SPDX-License-Identifier: MIT */
/*
 * lab_cuda.h - what the two files of the CUDA lab share.
 *
 * The declarations of driver calls are our own, as in hw/cuda/driver.h; these are the calls that
 * only measuring needs.
 */
#ifndef MB_PROBE_LAB_CUDA_H
#define MB_PROBE_LAB_CUDA_H

#include <dlfcn.h>

#include "hw/cuda/cuda.h"
#include "probe/lab.h"

enum {
    MB_LAB_CUDA_STEPS = 65536, /* in the ring of steps */
    MB_LAB_PROGRAMMATIC = 6,   /* launch attribute: programmatic stream serialization */
    MB_LAB_POOL_THRESHOLD = 4, /* pool attribute: release threshold */
    MB_LAB_BULK_BYTES = 64 << 20,
};

/* CUlaunchAttribute and CUlaunchConfig, as documented. */
struct mb_lab_attribute {
    int id;
    int pad;
    int value[16];
};
struct mb_lab_launch {
    unsigned grid[3], block[3], shared_bytes;
    cu_stream stream;
    struct mb_lab_attribute *attrs;
    unsigned attr_count;
};
_Static_assert(sizeof(struct mb_lab_attribute) == 72, "CUlaunchAttribute");
_Static_assert(sizeof(struct mb_lab_launch) == 56, "CUlaunchConfig");

#define MB_LAB_CUDA_LIST(X)                                                                        \
    X(launch_ex, "cuLaunchKernelEx",                                                               \
      (const struct mb_lab_launch *config, cu_function f, void **params, void **extra))            \
    X(begin_capture, "cuStreamBeginCapture_v2", (cu_stream stream, int mode))                      \
    X(end_capture, "cuStreamEndCapture", (cu_stream stream, cu_graph * graph))                     \
    X(instantiate, "cuGraphInstantiateWithFlags",                                                  \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                            \
    X(graph_launch, "cuGraphLaunch", (cu_graph_exec exec, cu_stream stream))                       \
    X(exec_destroy, "cuGraphExecDestroy", (cu_graph_exec exec))                                    \
    X(graph_destroy, "cuGraphDestroy", (cu_graph graph))                                           \
    X(copy_d2h, "cuMemcpyDtoHAsync_v2", (void *to, cu_ptr from, size_t bytes, cu_stream stream))   \
    X(copy_h2d, "cuMemcpyHtoDAsync_v2",                                                            \
      (cu_ptr to, const void *from, size_t bytes, cu_stream stream))                               \
    X(copy_d2d, "cuMemcpyDtoDAsync_v2", (cu_ptr to, cu_ptr from, size_t bytes, cu_stream stream))  \
    X(default_pool, "cuDeviceGetDefaultMemPool", (void **pool, cu_device device))                  \
    X(pool_set, "cuMemPoolSetAttribute", (void *pool, int attr, void *value))                      \
    X(pool_trim, "cuMemPoolTrimTo", (void *pool, size_t keep_bytes))                               \
    X(alloc_async, "cuMemAllocAsync", (cu_ptr * ptr, size_t bytes, cu_stream stream))              \
    X(free_async, "cuMemFreeAsync", (cu_ptr ptr, cu_stream stream))

struct mb_lab_pinned {
    void *host;
    cu_ptr device;
};

/* Owner: the lab, its thread. */
struct mb_lab_cuda {
    cu_function litmus, dependent, spin, wander, touch, first_touch;
#define MB_LAB_MEMBER(member, symbol, args) cu_result(*member) args;
    MB_LAB_CUDA_LIST(MB_LAB_MEMBER)
#undef MB_LAB_MEMBER
    struct mb_lab_pinned steps, words, bulk; /* bulk: made at the first copy_rate */
    unsigned used;                           /* steps of the ring */
    cu_ptr answers_dev, sems_dev, stop_dev;
    volatile uint64_t *sems, *stop;
};

struct mb_lab_cuda *mb__lab_cuda_own(struct mb_lab *lab);
enum mb_err mb__lab_cuda_check(struct mb_lab *lab, cu_result result, const char *what);
enum mb_err mb__lab_cuda_vendor(struct mb_lab *lab, enum mb_lab_vendor way, uint64_t bytes,
                                unsigned wanted, struct mb_lab_turn *turn);
enum mb_err mb__lab_cuda_copy_rate(struct mb_lab *lab, enum mb_lab_copy way, uint64_t bytes,
                                   double *bytes_per_s);

#endif
