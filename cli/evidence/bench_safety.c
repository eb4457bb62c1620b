/* SPDX-License-Identifier: MIT */
/*
 * bench_safety.c - `moonbright bench safety`: what each safety costs, one way against the other:
 * strict and deferred frames, inline and isolated tables, invalidates and fresh addresses, the
 * debug checks, the audit log, the validator.
 */
#include "evidence.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LIVE = 64 };
#define RANGE ((uint64_t)64 << 20)

struct way {
    const char *name, *config;
    bool validator; /* mb_check() every 100 operations */
    bool tables;    /* only where device tables are */
    bool audit;     /* a scratch file's path follows the config */
};
static const struct way ways[] = {
    {"as it is by default", "", false, false, false},
    {"frames back early (deferred)", "deferred:yes", false, false, false},
    {"no guard groups", "guard:no", false, false, false},
    {"always-fresh addresses", "policy:fresh", false, false, false},
    {"invalidates on the stream", "policy:inline", false, false, false},
    {"validator every 100 calls", "", true, false, false},
    {"leak reports", "check:leaks", false, false, false},
    {"red zones", "check:redzone", false, false, false},
    {"red zones and poison", "check:redzone|poison", false, false, false},
    {"use-after-free addresses", "check:uaf", false, false, false},
    {"audit log", "audit:", false, false, true},
    {"inline tables", "tables:inline", false, true, false},
    {"isolated tables", "tables:isolated", false, true, false},
    {"driver tables", "tables:driver", false, true, false},
};

static enum mb_err mallocs(struct bench_run *run, const struct way *way, struct histogram *h)
{
    unsigned samples = run->quick ? 300 : 3000;
    void *live[LIVE] = {NULL};
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < samples; i++) {
        unsigned at = (unsigned)bench_random(run, LIVE);
        uint64_t bytes = 512 + bench_random(run, 8u << 20), start = cli_now_ns();

        if (live[at])
            err = mb_free_async(run->dev, live[at], run->stream);
        live[at] = NULL;
        if (!err)
            err = mb_malloc_async(run->dev, bytes, run->stream, &live[at]);
        if (!err && way->validator && i % 100 == 99)
            err = mb_check(run->dev);
        histogram_add(h, cli_now_ns() - start);
    }
    for (unsigned i = 0; i < LIVE; i++)
        if (live[i])
            (void)mb_free_async(run->dev, live[i], run->stream);
    return err;
}

static enum mb_err maps(struct bench_run *run, struct histogram *h)
{
    struct mb_map_op op = {.prot = MB_PROT_READ_WRITE, .bytes = RANGE};
    unsigned samples = run->quick ? 20 : 200;
    enum mb_err err = mb_mem_create(run->dev, RANGE, &op.mem);

    for (unsigned i = 0; !err && i < samples; i++) {
        uint64_t start;

        err = mb_mem_reserve(run->dev, RANGE, 0, &op.va);
        start = mb_clock_ns(run->dev);
        op.kind = MB_MAP;
        if (!err)
            err = mb_mem_map_async(run->dev, &op, 1, run->stream);
        op.kind = MB_UNMAP;
        if (!err)
            err = mb_mem_map_async(run->dev, &op, 1, run->stream);
        if (!err)
            err = mb_stream_sync(run->dev, run->stream);
        if (!err)
            histogram_add(h, mb_clock_ns(run->dev) - start);
        if (!err)
            err = mb_mem_unreserve(run->dev, op.va, RANGE);
    }
    if (!err)
        err = mb_mem_release(run->dev, op.mem);
    return err;
}

static double median_us(const struct histogram *h)
{
    return h->count ? (double)histogram_percentile(h, 0.5) / 1e3 : NAN;
}

/* The times of one way, and how many times those of the first one, the default, they are. */
static void tell(struct bench_run *run, const struct way *way, const struct histogram *pair,
                 const struct histogram *map, double first[2])
{
    struct figure f = bench_figure(run, "safety", "free_async + malloc_async", way->name, false);

    f.metric = "host";
    bench_add_times(run, f, pair);
    f = bench_figure(run, "safety", "map + unmap 64 MiB", way->name, run->modelled);
    f.metric = "complete";
    bench_add_times(run, f, map);
    if (isnan(first[0])) {
        first[0] = median_us(pair);
        first[1] = median_us(map);
    }
    f = bench_figure(run, "safety", "free_async + malloc_async", way->name, false);
    f.metric = "median over default";
    f.unit = "x the normal";
    f.value = median_us(pair) / first[0];
    figures_add(&run->set, &f);
    f.what = "map + unmap 64 MiB";
    f.kind = run->modelled ? FIGURE_MODELLED : FIGURE_MEASURED;
    f.value = median_us(map) / first[1];
    figures_add(&run->set, &f);
}

static enum mb_err one_way(struct bench_run *run, const struct way *way, const char *scratch,
                           double first[2])
{
    static struct histogram pair, map; /* large, and one runs at a time */
    char config[256];
    enum mb_err err;

    memset(&pair, 0, sizeof(pair));
    memset(&map, 0, sizeof(map));
    snprintf(config, sizeof(config), "%s%s", way->config, way->audit ? scratch : "");
    err = bench_run_open(run, config);
    if (err)
        return err;
    err = mallocs(run, way, &pair);
    if (!err)
        err = maps(run, &map);
    if (!err)
        tell(run, way, &pair, &map, first);
    bench_run_close(run);
    return err;
}

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL, .device = {.memory_bytes = (uint64_t)16 << 30}};
    double first[2] = {NAN, NAN};
    char scratch[] = P_tmpdir "/moonbright-audit-XXXXXX";
    const struct cli_option extra[] = {
        BENCH_RUN_SEED(&run), BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false, cuda;
    int code = bench_run_parse(&run, &cli_bench_safety, extra, argc, argv, &done), file;
    enum mb_err err = MB_OK;

    if (code || done)
        return code;
    file = mkstemp(scratch);
    if (file < 0)
        return cli_fail(CLI_FAILED, "bench safety", "no file can be made in " P_tmpdir);
    close(file);
    unlink(scratch);
    err = bench_run_open(&run, "");
    cuda = !err && strcmp(mb_device_backend(run.dev), "cuda") == 0;
    bench_run_close(&run);
    for (size_t i = 0; !err && i < sizeof(ways) / sizeof(ways[0]); i++)
        if (cuda || !ways[i].tables)
            err = one_way(&run, &ways[i], scratch, first);
    unlink(scratch);
    return bench_run_end(&run, err);
}

const struct cli_command cli_bench_safety = {
    .name = "bench safety",
    .summary = "what each safety costs, with and without",
    .help = "usage: moonbright bench safety [OPTION...]\n\n"
            "--device-memory is 16GiB by default.\n\n" BENCH_RUN_SEED_HELP BENCH_RUN_QUICK_HELP
                BENCH_RUN_HELP,
    .run = run,
};
