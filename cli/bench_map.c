/* SPDX-License-Identifier: MIT */
/*
 * bench_map.c - `moonbright bench map|unmap|remap|alias|protect|alloc|beside|host`: what a change
 * of a mapping costs, MoonBright's and the vendor's ways in one table of one run.
 *
 * The library measures batches and the vendor's calls; what the public interface adds to a batch is
 * measured here (bench_api.c), as a program would see it.
 */
#include "bench.h"
#include "bench_rows.h"
#include "config.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES_MAX = 32, OPTIONS_MAX = 16 };

static bool parse_sizes(const char *text, uint64_t *sizes, unsigned *count)
{
    char word[64];

    for (*count = 0; *text; (*count)++) {
        size_t length = strcspn(text, ",");

        if (*count == SIZES_MAX || length >= sizeof(word))
            return false;
        memcpy(word, text, length);
        word[length] = '\0';
        if (!cli_parse_bytes(word, &sizes[*count]) || !sizes[*count] ||
            sizes[*count] % ((uint64_t)2 << 20))
            return false;
        text += length;
        if (*text && !*++text) /* a comma at the end */
            return false;
    }
    return *count > 0;
}

static void on_row(void *user, const struct mb_bench_row *row)
{
    rows_add(user, row);
}

static int measure(const struct cli_command *command, struct rows *rows, unsigned device,
                   const char *config, const struct mb_bench_options *options)
{
    enum mb_err err = mb_bench_run((int)device, config, options, on_row, rows);

    if (!err && strcmp(options->name, "beside") != 0 && strcmp(options->name, "host") != 0)
        err = bench_api(device, config, options, on_row, rows);
    if (err)
        return cli_fail_call(command->name, err);
    return CLI_OK;
}

static struct cli_option *add(struct cli_option *end, const struct cli_option *list, size_t count)
{
    memcpy(end, list, count * sizeof(*list));
    return end + count;
}

/* Each bench takes the options that it heeds, and no others. */
static int run(const struct cli_command *command, int argc, char **argv)
{
    struct device_options device = {.backend = NULL};
    struct mb_bench_options options = {.name = command->name + sizeof("bench ") - 1, .seed = 1};
    struct rows rows = {.command = command->name};
    const char *sizes = NULL;
    uint64_t parsed[SIZES_MAX];
    unsigned ordinal = 0;
    bool no_vendor = false;
    bool beside = command == &cli_bench_beside, host = command == &cli_bench_host;
    const struct cli_option common[] = {{"--backend", CLI_TEXT, &device.backend},
                                        {"--device", CLI_UNSIGNED, &ordinal},
                                        {"--config", CLI_TEXT, &device.config},
                                        {"--device-memory", CLI_BYTES, &device.memory_bytes},
                                        {"--commit", CLI_TEXT, &rows.commit},
                                        {"--json", CLI_FLAG, &rows.as_json}};
    const struct cli_option sized[] = {{"--sizes", CLI_TEXT, &sizes},
                                       {"--samples", CLI_UNSIGNED, &options.samples},
                                       {"--seed", CLI_U64, &options.seed}};
    struct cli_option table[OPTIONS_MAX + 1] = {{NULL, CLI_FLAG, NULL}}, *end = table;
    char line[1024], config[1024];
    bool done = false;
    int count = 0, code;

    end = add(end, common, sizeof(common) / sizeof(common[0]));
    if (!beside)
        end = add(end, sized, sizeof(sized) / sizeof(sized[0]));
    else
        *end++ = (struct cli_option){"--pending", CLI_UNSIGNED, &options.pending};
    if (!host)
        *end++ = (struct cli_option){"--no-vendor", CLI_FLAG, &no_vendor};
    rows_command_line(argc, argv, line, sizeof(line));
    code = cli_parse(command, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, command->name, "\"%.64s\" was given; expected options only",
                        argv[1]);
    if (sizes && !parse_sizes(sizes, parsed, &options.size_count))
        return cli_fail(CLI_BAD_INPUT, command->name,
                        "--sizes is \"%.64s\"; expected multiples of 2MiB joined by commas", sizes);
    options.sizes = sizes ? parsed : NULL;
    options.no_vendor = no_vendor;
    code = device_config(command->name, &device, config, sizeof(config));
    if (code)
        return code;
    rows_begin(&rows, ordinal, config, line, options.seed);
    code = measure(command, &rows, ordinal, config, &options);
    rows_end(&rows);
    return code;
}

#define DEVICE_OPTIONS                                                                             \
    "  --backend NAME      sim or cuda (default: as mb_open chooses)\n"                            \
    "  --config TEXT       more configuration: tables:isolated, model:a100, ...\n"                 \
    "  --device N          which GPU, from 0; the software GPU is there 8 times\n"                 \
    "  --device-memory N   size of the software GPU's memory\n"

#define OTHER_OPTIONS                                                                              \
    "  --no-vendor         leave the vendor's own calls out\n"                                     \
    "  --commit TEXT       of the tree that was built, for the JSON\n"                             \
    "  --json              one JSON object instead of a table\n\n"                                 \
    "Times in microseconds: host, the calling thread is blocked; complete, until the stream has\n" \
    "passed it; used, until a kernel behind it has touched every page. Every timed mapping "       \
    "brings\n"                                                                                     \
    "a new random list of frames. On the software GPU times are modelled.\n"

#define OPTIONS                                                                                    \
    DEVICE_OPTIONS "  --sizes A,B,...     bytes of one operation (default 2MiB to 4GiB)\n"         \
                   "  --samples N         per line (default 300; fewer of what lasts long)\n"      \
                   "  --seed N            of the frame lists (default 1)\n" OTHER_OPTIONS

#define BENCH(id, name_, summary_)                                                                 \
    static int run_##id(int argc, char **argv)                                                     \
    {                                                                                              \
        return run(&cli_bench_##id, argc, argv);                                                   \
    }                                                                                              \
    const struct cli_command cli_bench_##id = {                                                    \
        .name = "bench " name_,                                                                    \
        .summary = summary_,                                                                       \
        .help = "usage: moonbright bench " name_ " [OPTION...]\n\n" OPTIONS,                       \
        .run = run_##id,                                                                           \
    };

BENCH(map, "map", "frames get addresses, beside the vendor's ways")
BENCH(unmap, "unmap", "addresses lose their frames")
BENCH(remap, "remap", "addresses in use show other frames")
BENCH(alias, "alias", "frames in use get further addresses")
BENCH(protect, "protect", "mappings become read-only")
BENCH(alloc, "alloc", "malloc and free of large blocks")

static int run_host(int argc, char **argv)
{
    return run(&cli_bench_host, argc, argv);
}

const struct cli_command cli_bench_host = {
    .name = "bench host",
    .summary = "what mapping calls cost the host, above the backend and in it",
    .help =
        "usage: moonbright bench host [OPTION...]\n\n"
        "  --backend NAME      sim (default) or cuda\n"
        "  --config TEXT       more configuration: tables:isolated, ...\n"
        "  --device N          which GPU, from 0; the software GPU is there 8 times\n"
        "  --sizes A,B,...     bytes of one operation (default 2MiB to 8GiB)\n"
        "  --samples N         per line (default 200)\n"
        "  --device-memory N   size of the software GPU's memory\n"
        "  --seed N            of the frame lists (default 1)\n"
        "  --commit TEXT       of the tree that was built, for the JSON\n"
        "  --json              one JSON object instead of a table\n\n"
        "Real time in microseconds that public calls block the calling thread on a device that\n"
        "takes batches and executes none; the last column is nanoseconds a page.\n\n"
        "With --backend cuda: where the host's time of one map (--sizes: one, default 2GiB) goes "
        "on a\n"
        "GPU, stage by stage and by what the thread did before; the last column counts libcuda's\n"
        "calls.\n",
    .run = run_host,
};

static int run_beside(int argc, char **argv)
{
    /* Before the driver starts: pending streams must not share hardware queues with copies. */
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return run(&cli_bench_beside, argc, argv);
}

const struct cli_command cli_bench_beside = {
    .name = "bench beside",
    .summary = "mapping beside kernels and copies: who waits, who slows down",
    .help =
        "usage: moonbright bench beside [OPTION...]\n\n"
        "  --pending N         batches that wait while copies run (default 1000)\n" DEVICE_OPTIONS
            OTHER_OPTIONS,
    .run = run_beside,
};
