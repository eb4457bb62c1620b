/* SPDX-License-Identifier: MIT */
/* bench_host.h - what the layers above a backend cost the calling thread. */
#ifndef MB_API_BENCH_HOST_H
#define MB_API_BENCH_HOST_H

#include "runtime/runtime.h"

/* mb_bench_run() with the name "host"; see bench_host.c. */
enum mb_err mb__bench_host(const struct mb__config *config, const struct mb_bench_options *options,
                           mb_bench_callback callback, void *user);

/* Of `count` samples, which are sorted: median, 99th percentile, least. */
struct mb_spread mb__bench_spread(double *us, unsigned count);
/* An object of `pages` frames that lie between others: every second one of many objects of one
 * frame is given up for it. */
enum mb_err mb__bench_apart(mb_device dev, unsigned pages, mb_mem *out);

#endif
