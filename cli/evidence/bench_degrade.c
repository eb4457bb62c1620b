/* SPDX-License-Identifier: MIT */
/*
 * bench_degrade.c - `moonbright bench degrade`: what an operation costs on average when a share of
 * the operations are not maps at new addresses but unmaps, permission changes, or remaps of
 * addresses in use; and when addresses are scarce, so that epochs wrap.
 *
 * Operations of 64 MiB follow each other on one stream without waits in between. All addresses show
 * the same few memory objects, so that only addresses grow.
 */
#include "evidence.h"
#include "run.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { OPERATIONS = 240, OBJECTS = 2 };
#define RANGE ((uint64_t)64 << 20)

enum kind { KIND_FREE, KIND_PROTECT, KIND_REMAP, KINDS };
static const char *const kind_names[KINDS] = {"unmap", "permission change", "same-address remap"};

struct mix {
    struct bench_run *run;
    void *va[OPERATIONS + 1];
    bool mapped[OPERATIONS + 1], read_only[OPERATIONS + 1];
    unsigned count, live;
    mb_mem mem[OBJECTS];
    uint64_t host_ns;
};

static enum mb_err submit(struct mix *m, const struct mb_map_op *ops, unsigned count)
{
    uint64_t start = mb_clock_ns(m->run->dev);
    enum mb_err err = mb_mem_map_async(m->run->dev, ops, count, m->run->stream);

    m->host_ns += mb_clock_ns(m->run->dev) - start;
    return err;
}

static enum mb_err map_new(struct mix *m)
{
    struct mb_map_op op = {.kind = MB_MAP,
                           .prot = MB_PROT_READ_WRITE,
                           .bytes = RANGE,
                           .mem = m->mem[m->count % OBJECTS]};
    enum mb_err err = mb_mem_reserve(m->run->dev, RANGE, 0, &m->va[m->count]);

    if (err)
        return err;
    op.va = m->va[m->count];
    err = submit(m, &op, 1);
    if (!err) {
        m->mapped[m->count] = true;
        m->live++;
    }
    m->count++;
    return err;
}

static enum mb_err change(struct mix *m, enum kind kind)
{
    struct mb_map_op ops[2] = {{.bytes = RANGE}, {.kind = MB_MAP, .bytes = RANGE}};
    unsigned at = (unsigned)bench_random(m->run, m->count);

    while (!m->mapped[at])
        at = (at + 1) % m->count;
    ops[0].va = ops[1].va = m->va[at];
    ops[0].kind = kind == KIND_PROTECT ? MB_PROTECT : MB_UNMAP;
    ops[0].prot = m->read_only[at] ? MB_PROT_READ_WRITE : MB_PROT_READ;
    ops[1].prot = MB_PROT_READ_WRITE;
    ops[1].mem = m->mem[(at + 1) % OBJECTS];
    m->read_only[at] = kind == KIND_PROTECT && !m->read_only[at];
    if (kind == KIND_FREE) {
        m->mapped[at] = false;
        m->live--;
    }
    return submit(m, ops, kind == KIND_REMAP ? 2 : 1);
}

static void drop(struct mix *m)
{
    for (unsigned i = 0; i < m->count; i++) {
        struct mb_map_op op = {.kind = MB_UNMAP, .va = m->va[i], .bytes = RANGE};

        if (m->mapped[i])
            (void)mb_mem_map_async(m->run->dev, &op, 1, m->run->stream);
    }
    (void)mb_stream_sync(m->run->dev, m->run->stream);
    for (unsigned i = 0; i < m->count; i++)
        (void)mb_mem_unreserve(m->run->dev, m->va[i], RANGE);
    for (unsigned i = 0; i < OBJECTS; i++)
        if (m->mem[i])
            (void)mb_mem_release(m->run->dev, m->mem[i]);
}

static void tell(struct mix *m, enum kind kind, const char *policy, unsigned share, unsigned count,
                 double complete_ns)
{
    struct figure f = bench_figure(m->run, "degrade", kind_names[kind], policy, m->run->modelled);

    f.x = share;
    f.x_unit = "%";
    f.unit = "us";
    f.samples = count;
    f.metric = "complete";
    f.value = complete_ns / count / 1e3;
    f.note = "mean of an operation";
    figures_add(&m->run->set, &f);
    f.metric = "host";
    f.value = (double)m->host_ns / count / 1e3;
    figures_add(&m->run->set, &f);
}

static enum mb_err run_mix(struct bench_run *run, enum kind kind, const char *policy,
                           unsigned share)
{
    static struct mix m; /* large, and one runs at a time */
    unsigned count = run->quick ? OPERATIONS / 4 : OPERATIONS;
    enum mb_err err = MB_OK;
    uint64_t start;

    m = (struct mix){.run = run};
    for (unsigned i = 0; !err && i < OBJECTS; i++)
        err = mb_mem_create(run->dev, RANGE, &m.mem[i]);
    if (!err)
        err = map_new(&m);
    if (!err)
        err = mb_stream_sync(run->dev, run->stream);
    m.host_ns = 0;
    start = mb_clock_ns(run->dev);
    for (unsigned i = 0; !err && i < count; i++)
        err = m.live && bench_random(run, 100) < share ? change(&m, kind) : map_new(&m);
    if (!err)
        err = mb_stream_sync(run->dev, run->stream);
    if (!err)
        tell(&m, kind, policy, share, count, (double)(mb_clock_ns(run->dev) - start));
    drop(&m);
    return err;
}

/* Addresses for `space` only: epochs must wrap. */
static enum mb_err run_wrap(struct bench_run *run, uint64_t space)
{
    struct mb_stats before, after;
    struct mb_map_op op = {.prot = MB_PROT_READ_WRITE, .bytes = RANGE};
    unsigned count = run->quick ? 200 : 2000;
    enum mb_err err = mb_mem_create(run->dev, RANGE, &op.mem);
    double wraps;
    uint64_t start;

    if (!err)
        err = mb_stats_get(run->dev, &before);
    start = mb_clock_ns(run->dev);
    for (unsigned i = 0; !err && i < count; i++) {
        err = mb_mem_reserve(run->dev, RANGE, 0, &op.va);
        op.kind = MB_MAP;
        if (!err)
            err = mb_mem_map_async(run->dev, &op, 1, run->stream);
        op.kind = MB_UNMAP;
        if (!err)
            err = mb_mem_map_async(run->dev, &op, 1, run->stream);
        if (!err)
            err = mb_mem_unreserve(run->dev, op.va, RANGE);
    }
    if (!err)
        err = mb_stream_sync(run->dev, run->stream);
    if (!err)
        err = mb_stats_get(run->dev, &after);
    if (err)
        return err;
    wraps = 1000.0 * (double)(after.epochs - before.epochs) / count;
    bench_add(run, "degrade", "epoch wrap", "policy:fresh", "complete", "us", (double)space,
              "bytes", (double)(mb_clock_ns(run->dev) - start) / count / 1e3,
              "mean of a map and an unmap of 64 MiB");
    bench_add(run, "degrade", "epoch wrap", "policy:fresh", "epochs per 1,000", "", (double)space,
              "bytes", wraps, "flushes of the whole ring");
    return mb_mem_release(run->dev, op.mem);
}

static enum mb_err with_policy(struct bench_run *run, const char *policy)
{
    static const unsigned shares[] = {0, 10, 25, 50, 75, 90, 100};
    enum mb_err err = bench_run_open(run, policy);

    for (unsigned kind = 0; !err && kind < KINDS; kind++)
        for (size_t i = 0; !err && i < sizeof(shares) / sizeof(shares[0]); i++)
            err = run_mix(run, (enum kind)kind, policy, shares[i]);
    bench_run_close(run);
    return err;
}

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL};
    const struct cli_option extra[] = {
        BENCH_RUN_SEED(&run), BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_degrade, extra, argc, argv, &done);
    enum mb_err err;

    if (code || done)
        return code;
    err = with_policy(&run, "policy:inline");
    if (!err)
        err = with_policy(&run, "policy:fresh");
    for (unsigned shift = 31; !err && shift <= 38; shift += shift < 37 ? 2 : 1) {
        char config[64];

        snprintf(config, sizeof(config), "policy:fresh,window_space:%llu", 1ull << shift);
        err = bench_run_open(&run, config);
        if (!err)
            err = run_wrap(&run, (uint64_t)1 << shift);
        bench_run_close(&run);
    }
    return bench_run_end(&run, err);
}

const struct cli_command cli_bench_degrade = {
    .name = "bench degrade",
    .summary = "cost against the share of unmaps, permission changes, remaps, epoch wraps",
    .help =
        "usage: moonbright bench degrade [OPTION...]\n\n" BENCH_RUN_SEED_HELP BENCH_RUN_QUICK_HELP
            BENCH_RUN_HELP,
    .run = run,
};
