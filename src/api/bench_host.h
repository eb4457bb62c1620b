/* SPDX-License-Identifier: MIT */
/* bench_host.h - what the layers above a backend cost the calling thread. */
#ifndef MB_API_BENCH_HOST_H
#define MB_API_BENCH_HOST_H

#include "runtime/runtime.h"

/* mb_bench_run() with the name "host"; see bench_host.c. */
enum mb_err mb__bench_host(const struct mb__config *config, const struct mb_bench_options *options,
                           mb_bench_callback callback, void *user);

#endif
