/* SPDX-License-Identifier: MIT */
/* evidence.h - the benches of this directory, and the commands that show and compare results. */
#ifndef MB_CLI_EVIDENCE_EVIDENCE_H
#define MB_CLI_EVIDENCE_EVIDENCE_H

#include "cli.h"

extern const struct cli_command cli_bench_all, cli_bench_calls, cli_bench_degrade, cli_bench_wrap,
    cli_bench_full, cli_bench_churn, cli_bench_safety, cli_bench_latency, cli_bench_driver,
    cli_bench_compare;

/* cmd_bench.c: NULL if there is no such bench. */
const struct cli_command *cli_bench_find(const char *name);

#endif
