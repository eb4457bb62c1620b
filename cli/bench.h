/* SPDX-License-Identifier: MIT */
/* bench.h - the benches that the command has: `moonbright bench NAME`. */
#ifndef MB_CLI_BENCH_H
#define MB_CLI_BENCH_H

#include "cli.h"

/* Each is a command of its own, named "bench NAME" in messages and listed in cmd_bench.c. */
extern const struct cli_command cli_bench_frag;

#endif
