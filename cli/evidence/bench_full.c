/* SPDX-License-Identifier: MIT */
/*
 * bench_full.c - `moonbright bench full`: malloc and free on a device that is 50% to 99% full of
 * blocks of mixed sizes that are freed and allocated in random order. How many requests fail, and
 * what those that succeed cost.
 */
#include "evidence.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS_MAX = 65536 };

struct full {
    struct bench_run *run;
    struct {
        void *at;
        uint64_t bytes;
    } block[BLOCKS_MAX];
    unsigned count;
    uint64_t live, capacity;
    struct histogram mallocs, frees, modelled;
    unsigned failed, asked;
};

/* Half the requests below 1 MiB, half 1 to 256 MiB, evenly in the logarithm. */
static uint64_t draw_size(struct full *f)
{
    bool small = bench_random(f->run, 2);
    double low = small ? 9 : 20, high = small ? 20 : 28;
    double bits = low + (high - low) * bench_uniform(f->run);

    return (uint64_t)exp2(bits);
}

static enum mb_err add(struct full *f, uint64_t bytes, bool timed)
{
    uint64_t start = cli_now_ns(), clock = mb_clock_ns(f->run->dev);
    void *at;
    enum mb_err err = mb_malloc_async(f->run->dev, bytes, f->run->stream, &at);

    if (err)
        return err;
    if (timed) {
        histogram_add(&f->mallocs, cli_now_ns() - start);
        histogram_add(&f->modelled, mb_clock_ns(f->run->dev) - clock);
    }
    f->block[f->count].at = at;
    f->block[f->count++].bytes = bytes;
    f->live += bytes;
    return MB_OK;
}

static enum mb_err drop_one(struct full *f, bool timed)
{
    unsigned i = (unsigned)bench_random(f->run, f->count);
    uint64_t start = cli_now_ns();
    enum mb_err err = mb_free_async(f->run->dev, f->block[i].at, f->run->stream);

    if (timed)
        histogram_add(&f->frees, cli_now_ns() - start);
    f->live -= f->block[i].bytes;
    f->block[i] = f->block[--f->count];
    return err;
}

static enum mb_err turn(struct full *f, uint64_t target, bool timed)
{
    uint64_t bytes = draw_size(f);
    enum mb_err err = MB_OK;

    while (!err && f->count && (f->live + bytes > target || f->count == BLOCKS_MAX))
        err = drop_one(f, timed);
    if (err || f->live + bytes > target)
        return err;
    f->asked += timed;
    err = add(f, bytes, timed);
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT) {
        f->failed += timed;
        return MB_OK;
    }
    return err;
}

static void tell(struct full *f, unsigned percent)
{
    struct bench_run *run = f->run;
    struct figure g = bench_figure(run, "full", "malloc_async", "MoonBright", false);
    struct mb_stats stats;

    g.x = percent;
    g.x_unit = "%";
    g.metric = "host";
    bench_add_times(run, g, &f->mallocs);
    g.metric = "device clock";
    g.kind = run->modelled ? FIGURE_MODELLED : FIGURE_MEASURED;
    bench_add_times(run, g, &f->modelled);
    g.kind = FIGURE_MEASURED;
    g.metric = "host";
    g.what = "free_async";
    bench_add_times(run, g, &f->frees);
    bench_add(run, "full", "requests refused", "MoonBright", "share", "%", percent, "%",
              f->asked ? 100.0 * f->failed / f->asked : NAN,
              "of those that fit into the free bytes");
    if (mb_stats_get(run->dev, &stats) == MB_OK && stats.malloc_calls)
        bench_add(run, "full", "stitches", "MoonBright", "share", "%", percent, "%",
                  100.0 * (double)stats.stitches / (double)stats.malloc_calls, "of all requests");
}

static enum mb_err at_level(struct bench_run *run, struct full *f, unsigned percent)
{
    unsigned turns = run->quick ? 500 : 4000;
    enum mb_err err = MB_OK;
    uint64_t target;

    memset(f, 0, sizeof(*f));
    f->run = run;
    f->capacity = run->device.memory_bytes;
    target = f->capacity / 100 * percent;
    for (unsigned i = 0; !err && i < 4 * turns && f->live + (256u << 20) < target; i++)
        err = turn(f, target, false);
    for (unsigned i = 0; !err && i < turns; i++)
        err = turn(f, target, true);
    if (!err)
        tell(f, percent);
    while (!err && f->count)
        err = drop_one(f, false);
    return err;
}

static int run(int argc, char **argv)
{
    static const unsigned levels[] = {50, 75, 90, 95, 97, 98, 99};
    struct bench_run run = {.command = NULL, .device = {.memory_bytes = (uint64_t)16 << 30}};
    const struct cli_option extra[] = {
        BENCH_RUN_SEED(&run), BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_full, extra, argc, argv, &done);
    struct full *full = calloc(1, sizeof(*full));
    enum mb_err err = full ? MB_OK : MB_ERR_HOST_MEMORY;

    for (size_t i = 0; !code && !done && !err && i < sizeof(levels) / sizeof(levels[0]); i++) {
        err = bench_run_open(&run, "");
        if (!err)
            err = at_level(&run, full, levels[i]);
        bench_run_close(&run);
    }
    free(full);
    return code || done ? code : bench_run_end(&run, err);
}

const struct cli_command cli_bench_full = {
    .name = "bench full",
    .summary = "malloc and free on a device that is 50% to 99% full",
    .help = "usage: moonbright bench full [OPTION...]\n\n"
            "--device-memory is 16GiB by default.\n\n" BENCH_RUN_SEED_HELP BENCH_RUN_QUICK_HELP
                BENCH_RUN_HELP,
    .run = run,
};
