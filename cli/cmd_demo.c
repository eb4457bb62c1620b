/* SPDX-License-Identifier: MIT */
/*
 * cmd_demo.c - `moonbright demo`: a real training run's allocations, served here and now, beside
 * what PyTorch reached with them.
 */
#include "cli.h"
#include "config.h"
#include "data.h"
#include "replay.h"
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char demo_trace[] = "gpt2";

/* A trace of the bundle as it is spoken of. */
static void print_intro(const char *path)
{
    fprintf(
        stderr,
        "Replaying %s: every allocation of 12 training steps of GPT-2 (24 layers) in PyTorch 2.11\n"
        "on an NVIDIA H200. Every block's edges and a word in each of its frames are written, and\n"
        "read back through the page tables.\n",
        path);
}

static void print_row(const char *label, uint64_t allocated, uint64_t reserved, double efficiency)
{
    char a[CLI_NUMBER_MAX];
    char r[CLI_NUMBER_MAX];

    printf("  %-34s%12s%12s%10.1f%%\n", label, cli_format_bytes(allocated, a),
           cli_format_bytes(reserved, r), 100 * efficiency);
}

static void print_table(const struct replay_result *r)
{
    uint64_t allocated = r->served_peak_bytes;
    struct recorded_result recorded;
    char label[64];

    printf("\n  %-34s%12s%12s%11s\n", "", "allocated", "reserved", "efficiency");
    if (data_recorded(demo_trace, &recorded)) {
        print_row("PyTorch, default (recorded)", recorded.allocated_bytes, recorded.reserved_bytes,
                  recorded.efficiency);
        print_row("PyTorch, expandable segments", recorded.allocated_bytes,
                  recorded.reserved_expandable_bytes, recorded.efficiency_expandable);
    }
    snprintf(label, sizeof(label), "MoonBright on %s (this run)", r->backend);
    print_row(label, allocated, r->stats.reserved_peak_bytes,
              report_efficiency(allocated, r->stats.reserved_peak_bytes));
    print_row("  counting only frames in use", allocated, r->stats.frames_used_peak_bytes,
              report_efficiency(allocated, r->stats.frames_used_peak_bytes));
}

static void print_facts(const struct replay_result *r)
{
    char calls[CLI_NUMBER_MAX];
    char time[CLI_NUMBER_MAX];
    char reads[CLI_NUMBER_MAX];
    char malloc_p50[CLI_NUMBER_MAX];
    char malloc_p99[CLI_NUMBER_MAX];

    printf("\n  %s calls in %s; malloc p50 %s, p99 %s; %" PRIu64 " requests failed.\n",
           cli_format_count(r->mallocs + r->frees, calls), cli_format_ns(r->wall_ns, time),
           cli_format_ns(histogram_percentile(&r->malloc_times, 0.5), malloc_p50),
           cli_format_ns(histogram_percentile(&r->malloc_times, 0.99), malloc_p99),
           r->failed_requests);
    printf("  %s ranges read back, %" PRIu64 " wrong.\n", cli_format_count(r->reads, reads),
           r->stats.wrong_accesses + r->stats.wrong_words + r->stats.faults);
    printf(
        "\n  allocated, reserved: peaks in bytes; reserved is all that was held from the driver.\n"
        "  PyTorch counts allocated bytes in steps of 512; its two rows were measured on an H200,\n"
        "  each in a run of its own.\n");
    if (report_is_simulated(r))
        printf("  The GPU here is MoonBright's software GPU: page tables, TLBs and memory are "
               "modelled,\n"
               "  and the times are this host's, the model's own work included. They say nothing "
               "about\n"
               "  a real GPU's speed.\n");
    else
        printf("  The GPU is %s; page tables are written by: %s.\n", r->device_name, r->tables);
}

static int run(int argc, char **argv)
{
    static struct replay_result result; /* large */
    struct device_options device = {0};
    const struct cli_option table[] = {{"--backend", CLI_TEXT, &device.backend},
                                       {"--config", CLI_TEXT, &device.config},
                                       {"--seed", CLI_U64, &device.seed},
                                       {NULL, CLI_FLAG, NULL}};
    const struct trace_options trace = {.device = TRACE_ANY_DEVICE};
    struct replay_options options = {.policy = &replay_policies[0], .verify = VERIFY_EDGES};
    struct trace_reader *reader = NULL;
    char config[1024];
    char path[4096];
    char name[64];
    char error[1024];
    bool done = false;
    int count = 0;
    int code = cli_parse(&cli_demo, table, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, "demo",
                        "\"%.64s\" was given; expected options only; "
                        "`moonbright replay` takes traces",
                        argv[1]);
    code = device_config("demo", &device, config, sizeof(config));
    if (code)
        return code;
    snprintf(name, sizeof(name), "torch/%s.csv.gz", demo_trace);
    if (!data_find(name, path, sizeof(path)))
        return cli_fail(CLI_FAILED, "demo",
                        "the bundled trace is not at %s; set MOONBRIGHT_DATA to the directory that "
                        "holds torch/",
                        path);
    if (trace_open(path, &trace, &reader, error, sizeof(error)))
        return cli_fail(CLI_FAILED, "demo", "%s", error);
    print_intro(path);
    options.config = config;
    options.seed = device.seed ? device.seed : 1;
    code = replay_run(reader, demo_trace, &options, &result);
    trace_close(reader);
    if (!result.backend[0] || result.bad_input)
        return cli_fail(code, "demo", "%s", result.problem);
    print_table(&result);
    print_facts(&result);
    if (code)
        cli_fail(code, "demo", "%s", result.problem);
    return code;
}

const struct cli_command cli_demo = {
    .name = "demo",
    .summary = "replay a real training run's allocations, beside PyTorch's result",
    .help = "usage: moonbright demo [--backend NAME] [--config K:V,...] [--seed N]\n\n"
            "Uses the best backend present; without a GPU the software GPU, and says so.\n",
    .run = run,
};
