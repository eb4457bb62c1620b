/* SPDX-License-Identifier: MIT */
/* bench.h - the benches that the command has: `moonbright bench NAME`. */
#ifndef MB_CLI_BENCH_H
#define MB_CLI_BENCH_H

#include "cli.h"

/* Each is a command of its own, named "bench NAME" in messages and listed in cmd_bench.c. */
extern const struct cli_command cli_bench_frag, cli_bench_map, cli_bench_unmap, cli_bench_remap,
    cli_bench_alias, cli_bench_protect, cli_bench_alloc, cli_bench_beside, cli_bench_hot,
    cli_bench_host, cli_bench_scale;

#endif
