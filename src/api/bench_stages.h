/* SPDX-License-Identifier: MIT */
/* bench_stages.h - where the host's time of one mapping call goes, on a real backend. */
#ifndef MB_API_BENCH_STAGES_H
#define MB_API_BENCH_STAGES_H

#include "runtime/runtime.h"

/* mb_bench_run() with the name "host" on the backend cuda; see bench_stages.c. */
enum mb_err mb__bench_stages(const struct mb__config *config,
                             const struct mb_bench_options *options, mb_bench_callback callback,
                             void *user);

#endif
