/* SPDX-License-Identifier: MIT */
/*
 * gpu.h - the program that tests the `cuda` backend on a GPU.
 *
 * One executable, one test per process: `gputest NAME [KEY=VALUE]...`; scripts/gpu-test runs them.
 * No test framework is linked, as GPU machines rarely have one. Exit status 0 passed, 1 failed, 77
 * skipped with «SKIP: reason».
 */
#ifndef MB_TESTS_GPU_GPU_H
#define MB_TESTS_GPU_GPU_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/rng.h"
#include "hw/cuda/cuda.h"

#define GT_FRAME MB_FRAME_BYTES

/* Ends the process with status 1. */
_Noreturn __attribute__((format(printf, 3, 4))) void gt_fail(const char *file, int line,
                                                             const char *format, ...);
#define GT_FAIL(...) gt_fail(__FILE__, __LINE__, __VA_ARGS__)
#define GT_CHECK(condition)                                                                        \
    do {                                                                                           \
        if (!(condition))                                                                          \
            GT_FAIL("check failed: %s", #condition);                                               \
    } while (0)
#define GT_OK(call)                                                                                \
    do {                                                                                           \
        enum mb_err gt_err_ = (call);                                                              \
        if (gt_err_)                                                                               \
            GT_FAIL("%s: %s: %s", #call, mb_error_name(gt_err_), mb_error_detail());               \
    } while (0)
#define GT_CU(call)                                                                                \
    do {                                                                                           \
        cu_result gt_result_ = (call);                                                             \
        if (gt_result_)                                                                            \
            GT_FAIL("%s: CUDA error %d", #call, gt_result_);                                       \
    } while (0)
_Noreturn void gt_skip(const char *reason);

/* "KEY=VALUE" of the command line, or the default. */
const char *gt_arg(const char *key, const char *fallback);
uint64_t gt_arg_u64(const char *key, uint64_t fallback);

double gt_now_us(void);

/* An open device with a pool of frames and test kernels. */
struct gt {
    struct mb_hw_dev *hw;
    struct mb_cuda *dev;
    const struct mb_cuda_driver *cu;
    cu_function peek, poke, touch;
    /* pool */
    uint32_t frames;
    mb_pfn *pfn;    /* of frame i */
    uint64_t *home; /* its address in the driver's own mapping */
    mb_va home_va;
    uint64_t home_bytes;
    struct mb_hw_slab *slab;
    unsigned slabs;
    /* window */
    struct mb_hw_view view;
    uint32_t slots;
    uint64_t tmpl_rw, tmpl_ro;
};

/* tables: "inline", "isolated", "driver", or NULL for the best. Makes the context current. */
void gt_open(struct gt *t, const char *tables);
/* `slab_bytes` each, `slabs` of them, one after the other in address space. */
void gt_pool(struct gt *t, uint64_t slab_bytes, unsigned slabs);
void gt_window(struct gt *t, unsigned pieces);
void gt_close(struct gt *t);
struct mb_hw_stream *gt_stream(struct gt *t);

/* Pinned array of `count` words, visible to the device under the same index; never freed. */
struct gt_words {
    uint64_t *host;
    cu_ptr device;
};
struct gt_words gt_words(struct gt *t, size_t count);

/* out.host[i] = first word at addresses.host[i], on the stream. */
void gt_peek(struct gt *t, struct mb_hw_stream *s, struct gt_words addresses, uint32_t count,
             struct gt_words out);
void gt_poke(struct gt *t, struct mb_hw_stream *s, struct gt_words addresses, uint32_t count,
             struct gt_words values);
void gt_touch(struct gt *t, struct mb_hw_stream *s, uint64_t base, uint64_t stride, uint32_t count,
              uint64_t first);
void gt_sync(struct gt *t, struct mb_hw_stream *s);

/* Batches. */
void gt_map(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count,
            const mb_pfn *pfns, uint64_t tmpl, bool invalidate);
/* The same in commands of at most `part` slots each, or of more: no more than 64 commands. */
void gt_map_in(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count,
               const mb_pfn *pfns, uint64_t tmpl, bool invalidate, uint32_t part);
void gt_unmap(struct gt *t, struct mb_hw_stream *s, uint32_t first, uint32_t count);
uint64_t gt_slot_va(const struct gt *t, uint32_t slot);
void gt_shuffle(struct mb_rng *rng, uint32_t *list, uint32_t count);

/* Other CUDA symbols, by name; fails the test if missing. */
void *gt_symbol(struct gt *t, const char *name);

/* Tests: one file each or several to a file. */
int gt_test_discover(void);
int gt_test_window(void);
int gt_test_random(void);
int gt_test_streams(void);
int gt_test_graph(void);
int gt_test_reset(void);
int gt_test_fork(void);
int gt_test_broken(void);
int gt_test_victim(void);
int gt_test_kill(void);
int gt_test_refused(void);
int gt_test_sweep(void);
int gt_test_exit(void);
int gt_test_bench(void);
int gt_test_ready(void);
int gt_test_variant(void);
int gt_test_scrub(void);

#endif
