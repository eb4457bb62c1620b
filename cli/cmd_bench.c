/* SPDX-License-Identifier: MIT */
/* cmd_bench.c - `moonbright bench NAME`: finds the bench and runs it. */
#include "bench.h"

#include <stdio.h>
#include <string.h>

/* In the order of the list; NULL ends it. */
static const struct cli_command *const benches[] = {&cli_bench_map,
                                                    &cli_bench_unmap,
                                                    &cli_bench_remap,
                                                    &cli_bench_alias,
                                                    &cli_bench_protect,
                                                    &cli_bench_alloc,
                                                    &cli_bench_host,
                                                    &cli_bench_hot,
                                                    &cli_bench_beside,
                                                    &cli_bench_frag,
                                                    NULL};

#define PREFIX_LENGTH (sizeof("bench ") - 1)

static int list(FILE *out, int code)
{
    fputs("usage: moonbright bench NAME [OPTION...]\n\nbenches:\n", out);
    for (size_t i = 0; benches[i]; i++)
        fprintf(out, "  %-9s %s\n", benches[i]->name + PREFIX_LENGTH, benches[i]->summary);
    fputs("\n`moonbright bench NAME --help` tells its options. No result passes or fails.\n", out);
    return code;
}

static int run(int argc, char **argv)
{
    if (argc < 2)
        return list(stderr, CLI_BAD_INPUT);
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return list(stdout, CLI_OK);
    for (size_t i = 0; benches[i]; i++)
        if (!strcmp(benches[i]->name + PREFIX_LENGTH, argv[1]))
            return benches[i]->run(argc - 1, argv + 1);
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
