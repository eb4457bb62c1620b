/* SPDX-License-Identifier: MIT */
/* cmd_bench.c - `moonbright bench NAME`: finds the bench and runs it. */
#include "bench.h"
#include "evidence/evidence.h"

#include <stdio.h>
#include <string.h>

/* In the order of the list; NULL ends it. */
static const struct cli_command *const benches[] = {&cli_bench_all,     &cli_bench_compare,
                                                    &cli_bench_map,     &cli_bench_unmap,
                                                    &cli_bench_remap,   &cli_bench_alias,
                                                    &cli_bench_protect, &cli_bench_alloc,
                                                    &cli_bench_host,    &cli_bench_hot,
                                                    &cli_bench_beside,  &cli_bench_frag,
                                                    &cli_bench_calls,   &cli_bench_driver,
                                                    &cli_bench_degrade, &cli_bench_wrap,
                                                    &cli_bench_full,    &cli_bench_churn,
                                                    &cli_bench_safety,  &cli_bench_latency,
                                                    &cli_bench_scale,   NULL};

#define PREFIX_LENGTH (sizeof("bench ") - 1)

static int list(FILE *out, int code)
{
    fputs("usage: moonbright bench NAME [OPTION...]\n\nbenches:\n", out);
    for (size_t i = 0; benches[i]; i++)
        fprintf(out, "  %-9s %s\n", benches[i]->name + PREFIX_LENGTH, benches[i]->summary);
    fputs("\n`moonbright bench NAME --help` tells its options. No result passes or fails.\n", out);
    return code;
}

const struct cli_command *cli_bench_find(const char *name)
{
    for (size_t i = 0; benches[i]; i++)
        if (!strcmp(benches[i]->name + PREFIX_LENGTH, name))
            return benches[i];
    return NULL;
}

static int run(int argc, char **argv)
{
    if (argc < 2)
        return list(stderr, CLI_BAD_INPUT);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return list(stdout, CLI_OK);
    if (cli_bench_find(argv[1]))
        return cli_bench_find(argv[1])->run(argc - 1, argv + 1);
    cli_fail(CLI_BAD_INPUT, "bench", "there is no bench \"%.64s\"", argv[1]);
    return list(stderr, CLI_BAD_INPUT);
}

const struct cli_command cli_bench = {
    .name = "bench",
    .summary = "measure: mappings, allocations, fragmentation",
    .help =
        "usage: moonbright bench NAME [OPTION...]\n\n"
        "`moonbright bench` lists the benches, `moonbright bench NAME --help` tells the options "
        "of one.\n",
    .run = run,
};
