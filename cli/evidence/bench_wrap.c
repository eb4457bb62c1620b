/* SPDX-License-Identifier: MIT */
/*
 * bench_wrap.c - `moonbright bench wrap`: always-fresh addresses from a ring of 256 GB, gone
 * through several times: what the operation that wraps costs, how often the device is flushed,
 * how many addresses wait for that, and how much page-table memory they need.
 *
 * RECLAIM  An operation that flushes shows it by one invalidate more than its unmap needs. What
 *          such operations take beyond the mean of the others is the cost of reclaiming.
 */
#include "evidence.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CURVE_POINTS = 64 }; /* of the quarantine, in the first round through the ring */

/* Of operations that flush, or of those that do not. */
struct spent {
    uint64_t count, host_ns, complete_ns;
};

struct wrap {
    struct bench_run *run;
    const char *policy;
    uint64_t ring, bytes;
    struct histogram host, complete, wrapping; /* of those during which an epoch passed */
    struct spent plain, flushing;
    uint64_t tables_most, quarantine_most, epochs, invalidates;
    uint64_t next_point; /* of the curve: addresses handed out */
};

static void note(struct wrap *w, const struct mb_stats *stats, uint64_t host, uint64_t complete)
{
    bool flushed = stats->invalidates > w->invalidates + 1;
    struct spent *spent = flushed ? &w->flushing : &w->plain;

    spent->count++;
    spent->host_ns += host;
    spent->complete_ns += complete;
    w->invalidates = stats->invalidates;
    histogram_add(stats->epochs > w->epochs ? &w->wrapping : &w->complete, complete);
    w->epochs = stats->epochs;
    if (stats->table_bytes > w->tables_most)
        w->tables_most = stats->table_bytes;
}

/* As it stands between two operations. */
static void note_quarantine(struct wrap *w, const struct mb_stats *stats)
{
    if (stats->quarantined_bytes > w->quarantine_most)
        w->quarantine_most = stats->quarantined_bytes;
    if (stats->va_handed_out_bytes < w->next_point || w->next_point > w->ring)
        return;
    bench_add(w->run, "wrap", "quarantine", w->policy, "now", "bytes",
              (double)stats->va_handed_out_bytes, "bytes", (double)stats->quarantined_bytes, "");
    while (w->next_point <= stats->va_handed_out_bytes) /* an operation may pass several */
        w->next_point += w->ring / CURVE_POINTS;
}

/* From the reservation to the addresses' return; an epoch may pass in any of the calls. */
static enum mb_err one(struct wrap *w, struct mb_map_op *op)
{
    struct bench_run *run = w->run;
    struct mb_stats stats;
    uint64_t start = mb_clock_ns(run->dev), back, returned, done;
    enum mb_err err = mb_mem_reserve(run->dev, w->bytes, 0, &op->va);

    op->kind = MB_MAP;
    if (!err)
        err = mb_mem_map_async(run->dev, op, 1, run->stream);
    back = mb_clock_ns(run->dev);
    op->kind = MB_UNMAP;
    if (!err)
        err = mb_mem_map_async(run->dev, op, 1, run->stream);
    if (!err)
        err = mb_mem_unreserve(run->dev, op->va, w->bytes);
    returned = mb_clock_ns(run->dev);
    if (!err)
        err = mb_stream_sync(run->dev, run->stream);
    done = mb_clock_ns(run->dev);
    if (!err)
        err = mb_stats_get(run->dev, &stats);
    if (err)
        return err;
    histogram_add(&w->host, back - start);
    note(w, &stats, returned - start, done - start);
    note_quarantine(w, &stats);
    return MB_OK;
}

/* Of the operations that flush beyond the others, for one round through the ring. */
static double beyond_us(const struct wrap *w, uint64_t plain_ns, uint64_t flushing_ns)
{
    double rounds =
        (double)(w->plain.count + w->flushing.count) * (double)w->bytes / (double)w->ring;

    if (!w->plain.count)
        return NAN;
    return ((double)flushing_ns -
            (double)plain_ns / (double)w->plain.count * (double)w->flushing.count) /
           rounds / 1e3;
}

static void tell_reclaim(struct wrap *w)
{
    struct bench_run *run = w->run;
    double ring = (double)w->ring;
    double rounds = (double)(w->plain.count + w->flushing.count) * (double)w->bytes / ring;

    bench_add(run, "wrap", "quarantine", w->policy, "most", "bytes", ring, "bytes",
              (double)w->quarantine_most, "");
    bench_add(run, "wrap", "reclaim", w->policy, "flushes a round", "", ring, "bytes",
              (double)w->flushing.count / rounds, "");
    bench_add(run, "wrap", "reclaim", w->policy, "host, a round", "us", ring, "bytes",
              beyond_us(w, w->plain.host_ns, w->flushing.host_ns),
              "all operations of a round that flush, beyond the mean of the others");
    bench_add(run, "wrap", "reclaim", w->policy, "complete, a round", "us", ring, "bytes",
              beyond_us(w, w->plain.complete_ns, w->flushing.complete_ns), "as above");
}

static enum mb_err tell(struct wrap *w)
{
    struct bench_run *run = w->run;
    const char *policy = w->policy;
    struct figure f = bench_figure(run, "wrap", "map and unmap 2 GiB", policy, run->modelled);
    double ring = (double)w->ring, tables;
    const char *note;
    struct mb_stats stats;
    enum mb_err err = mb_stats_get(run->dev, &stats);

    if (err)
        return err;
    f.x = ring;
    f.x_unit = "bytes";
    f.metric = "host";
    bench_add_times(run, f, &w->host);
    f.metric = "complete";
    bench_add_times(run, f, &w->complete);
    f.metric = "complete, while an epoch passes";
    if (!w->wrapping.count)
        f.note = "no epoch passed";
    bench_add_times(run, f, &w->wrapping);
    bench_add(run, "wrap", "epochs", policy, "count", "", ring, "bytes", (double)stats.epochs, "");
    bench_add(run, "wrap", "invalidates", policy, "count", "", ring, "bytes",
              (double)stats.invalidates, "");
    bench_add(run, "wrap", "addresses handed out", policy, "value", "bytes", ring, "bytes",
              (double)stats.va_handed_out_bytes, "");
    tables = bench_table_bytes(run, w->tables_most, &note);
    bench_add(run, "wrap", "page-table memory, most", policy, "value", "bytes", ring, "bytes",
              tables, note);
    bench_add(run, "wrap", "page-table memory per ring byte", policy, "value", "%", ring, "bytes",
              100 * tables / ring, note);
    tell_reclaim(w);
    return MB_OK;
}

static enum mb_err go_round(struct bench_run *run, uint64_t ring, const char *policy)
{
    static struct wrap w; /* large, and one runs at a time */
    struct mb_map_op op = {.prot = MB_PROT_READ_WRITE};
    uint64_t rounds;
    char config[96];
    enum mb_err err;

    w = (struct wrap){.run = run, .policy = policy, .ring = ring, .bytes = (uint64_t)2 << 30};
    snprintf(config, sizeof(config), "%s,window_space:%llu", policy, (unsigned long long)ring);
    err = bench_run_open(run, config);
    if (!err)
        err = mb_mem_create(run->dev, w.bytes, &op.mem);
    op.bytes = w.bytes;
    rounds = (run->quick ? 1 : 3) * ring / w.bytes + 8;
    for (uint64_t i = 0; !err && i < rounds; i++)
        err = one(&w, &op);
    if (!err)
        err = tell(&w);
    if (!err)
        err = mb_mem_release(run->dev, op.mem);
    bench_run_close(run);
    return err;
}

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL};
    uint64_t ring = (uint64_t)256 << 30;
    const struct cli_option extra[] = {
        {"--ring", CLI_BYTES, &ring}, BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_wrap, extra, argc, argv, &done);
    enum mb_err err;

    if (code || done)
        return code;
    err = go_round(&run, ring, "policy:fresh");
    if (!err)
        err = go_round(&run, ring, "policy:inline");
    return bench_run_end(&run, err);
}

const struct cli_command cli_bench_wrap = {
    .name = "bench wrap",
    .summary = "epoch wrap of a 256 GiB ring of addresses",
    .help =
        "usage: moonbright bench wrap [OPTION...]\n\n"
        "  --ring BYTES        addresses (default 256GiB)\n" BENCH_RUN_QUICK_HELP BENCH_RUN_HELP,
    .run = run,
};
