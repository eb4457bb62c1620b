/* SPDX-License-Identifier: MIT */
/* bench.h - what the files of the benches share. */
#ifndef MB_PROBE_BENCH_H
#define MB_PROBE_BENCH_H

#include "probe/lab.h"

enum { MB_BENCH_SAMPLES = 4096 };

/* Samples of one row, ns. */
struct mb_bench_series {
    double host[MB_BENCH_SAMPLES], complete[MB_BENCH_SAMPLES], used[MB_BENCH_SAMPLES];
    unsigned count;
};

/* One run. Owner: mb__bench_run(), on one thread. */
struct mb_bench {
    struct mb_lab lab;
    const struct mb_bench_options *options;
    mb_bench_callback callback;
    void *user;
    const uint64_t *sizes;
    unsigned size_count, samples;
    uint64_t most;                  /* largest size */
    uint32_t *order;                /* a permutation of the pool; owned */
    mb_pfn *list;                   /* the latest list of frames; owned */
    struct mb_bench_series *series; /* being filled; owned */
    /* beside: medians of the vendor's map and unmap with device tables open, ns; 0: none */
    double beside_ns[MB_LAB_VENDORS][2];
};

void mb__bench_add(struct mb_bench_series *series, double host, double complete, double used);
/* Tells the row and empties the series. */
void mb__bench_tell(struct mb_bench *b, const char *what, const char *how, uint64_t bytes,
                    struct mb_bench_series *series, const char *note, double value);
/* Tells that there is nothing, with the thread's last error as the reason. */
void mb__bench_skip(struct mb_bench *b, const char *what, const char *how, uint64_t bytes);
/* A new random list, valid until the next. */
const mb_pfn *mb__bench_list(struct mb_bench *b, uint32_t count);
enum mb_err mb__bench_vendors(struct mb_bench *b, const char *what, enum mb_lab_step step,
                              uint64_t bytes);
/* bench_beside.c: who waits for a running kernel, what it loses, copies beside pending batches;
 * then the vendor's part in a context without helper channels. */
enum mb_err mb__bench_beside(struct mb_bench *b);
enum mb_err mb__bench_beside_vendor(struct mb_bench *b);

#endif
