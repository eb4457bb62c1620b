/* SPDX-License-Identifier: MIT */
/*
 * bench_calls.c - `moonbright bench calls`: the 50th, 99th and 99.9th percentile of every public
 * call, and what reserve, create, map, unmap and their kin cost by size.
 *
 * Each sample is one call from a state that is set up outside of the timing and taken down after.
 */
#include "evidence.h"
#include "run.h"

#include <math.h>
#include <string.h>

/* A row ends then, once it has a few samples. */
#define ROW_LIMIT_NS ((uint64_t)400000000)

struct calls {
    struct bench_run *run;
    uint64_t bytes, page;
    void *va[2];
    mb_mem mem[3]; /* the third only lives inside a sample */
    void *block;
    mb_event event;
    bool mapped, aliased;
    unsigned turn;
};

static enum mb_err submit(struct calls *c, enum mb_map_kind kind, unsigned at, enum mb_prot prot)
{
    struct mb_map_op op = {.kind = kind,
                           .prot = prot,
                           .va = c->va[at],
                           .bytes = c->bytes,
                           .mem = c->mem[c->turn & 1],
                           .src = c->va[0]};

    return mb_mem_map_async(c->run->dev, &op, 1, c->run->stream);
}

static enum mb_err settle(struct calls *c)
{
    enum mb_err err = MB_OK;

    if (c->aliased)
        err = submit(c, MB_UNMAP, 1, MB_PROT_NONE);
    c->aliased = c->aliased && err;
    if (!err && c->mapped)
        err = submit(c, MB_UNMAP, 0, MB_PROT_NONE);
    c->mapped = c->mapped && err;
    return err ? err : mb_stream_sync(c->run->dev, c->run->stream);
}

static enum mb_err nothing(struct calls *c)
{
    (void)c;
    return MB_OK;
}

static enum mb_err map(struct calls *c)
{
    enum mb_err err = submit(c, MB_MAP, 0, MB_PROT_READ_WRITE);

    c->mapped = !err;
    return err;
}

static enum mb_err mapped(struct calls *c)
{
    enum mb_err err = map(c);

    return err ? err : mb_stream_sync(c->run->dev, c->run->stream);
}

static enum mb_err unmap(struct calls *c)
{
    enum mb_err err = submit(c, MB_UNMAP, 0, MB_PROT_NONE);

    c->mapped = c->mapped && err;
    return err;
}

static enum mb_err protect(struct calls *c)
{
    return submit(c, MB_PROTECT, 0, MB_PROT_READ);
}

static enum mb_err alias(struct calls *c)
{
    enum mb_err err = submit(c, MB_ALIAS, 1, MB_PROT_READ_WRITE);

    c->aliased = !err;
    return err;
}

/* The same addresses, the other memory object. */
static enum mb_err remap(struct calls *c)
{
    struct mb_map_op ops[2] = {{.kind = MB_UNMAP, .va = c->va[0], .bytes = c->bytes},
                               {.kind = MB_MAP,
                                .prot = MB_PROT_READ_WRITE,
                                .va = c->va[0],
                                .bytes = c->bytes,
                                .mem = c->mem[++c->turn & 1]}};

    return mb_mem_map_async(c->run->dev, ops, 2, c->run->stream);
}

static enum mb_err sleep_range(struct calls *c)
{
    return mb_mem_sleep(c->run->dev, c->va[0], c->bytes, c->run->stream);
}

static enum mb_err wake_range(struct calls *c)
{
    return mb_mem_wake(c->run->dev, c->va[0], c->bytes, c->run->stream);
}

/* Sleep and wake want frames that nobody else holds: the object lives by its mapping alone. */
static enum mb_err own_mapped(struct calls *c)
{
    struct mb_map_op op = {
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = c->va[0], .bytes = c->bytes};
    enum mb_err err = mb_mem_create(c->run->dev, c->bytes, &op.mem);

    if (err)
        return err;
    err = mb_mem_map_async(c->run->dev, &op, 1, c->run->stream);
    c->mapped = !err;
    (void)mb_mem_release(c->run->dev, op.mem);
    return err ? err : mb_stream_sync(c->run->dev, c->run->stream);
}

static enum mb_err asleep(struct calls *c)
{
    enum mb_err err = own_mapped(c);

    if (!err)
        err = sleep_range(c);
    return err ? err : mb_stream_sync(c->run->dev, c->run->stream);
}

static enum mb_err awake_again(struct calls *c)
{
    return wake_range(c);
}

static enum mb_err reserve(struct calls *c)
{
    return mb_mem_reserve(c->run->dev, c->bytes, 0, &c->block);
}

static enum mb_err unreserve(struct calls *c)
{
    return mb_mem_unreserve(c->run->dev, c->block, c->bytes);
}

static enum mb_err create(struct calls *c)
{
    return mb_mem_create(c->run->dev, c->bytes, &c->mem[2]);
}

static enum mb_err release(struct calls *c)
{
    return mb_mem_release(c->run->dev, c->mem[2]);
}

static enum mb_err malloc_block(struct calls *c)
{
    return mb_malloc(c->run->dev, c->bytes, &c->block);
}

static enum mb_err free_block(struct calls *c)
{
    return mb_free(c->run->dev, c->block);
}

static enum mb_err malloc_async(struct calls *c)
{
    return mb_malloc_async(c->run->dev, c->bytes, c->run->stream, &c->block);
}

static enum mb_err free_async(struct calls *c)
{
    return mb_free_async(c->run->dev, c->block, c->run->stream);
}

static enum mb_err grow(struct calls *c)
{
    return mb_realloc(c->run->dev, c->block, c->bytes + c->bytes / 2, &c->block);
}

static enum mb_err record_stream(struct calls *c)
{
    return mb_record_stream(c->run->dev, c->block, c->run->stream);
}

static enum mb_err pointer_info(struct calls *c)
{
    struct mb_pointer_info info;

    return mb_pointer_info(c->run->dev, c->block, &info);
}

static enum mb_err stats_get(struct calls *c)
{
    struct mb_stats stats;

    return mb_stats_get(c->run->dev, &stats);
}

static enum mb_err event_record(struct calls *c)
{
    return mb_event_record(c->run->dev, c->event, c->run->stream);
}

static enum mb_err wait_event(struct calls *c)
{
    return mb_stream_wait_event(c->run->dev, c->run->stream, c->event);
}

/* What is timed, and the calls before and after that are not. */
static const struct call {
    const char *name;
    enum mb_err (*before)(struct calls *c), (*timed)(struct calls *c), (*after)(struct calls *c);
    bool device;  /* changes mappings: the device's clock */
    bool by_size; /* for all sizes; else for the first only */
} calls[] = {
    {"mb_malloc", nothing, malloc_block, free_block, false, true},
    {"mb_free", malloc_block, free_block, nothing, false, true},
    {"mb_malloc_async", nothing, malloc_async, free_async, false, true},
    {"mb_free_async", malloc_async, free_async, nothing, false, true},
    {"mb_realloc, by a half", malloc_block, grow, free_block, false, true},
    {"mb_record_stream", malloc_block, record_stream, free_block, false, false},
    {"mb_pointer_info", malloc_block, pointer_info, free_block, false, false},
    {"mb_stats_get", nothing, stats_get, nothing, false, false},
    {"mb_event_record", nothing, event_record, nothing, false, false},
    {"mb_stream_wait_event", event_record, wait_event, nothing, false, false},
    {"mb_mem_reserve", nothing, reserve, unreserve, false, true},
    {"mb_mem_unreserve", reserve, unreserve, nothing, false, true},
    {"mb_mem_create", nothing, create, release, true, true},
    {"mb_mem_release", create, release, nothing, true, true},
    {"map", nothing, map, settle, true, true},
    {"unmap", mapped, unmap, settle, true, true},
    {"remap, same addresses", mapped, remap, settle, true, true},
    {"alias", mapped, alias, settle, true, true},
    {"protect", mapped, protect, settle, true, true},
    {"mb_mem_sleep", own_mapped, sleep_range, awake_again, true, true},
    {"mb_mem_wake", asleep, wake_range, nothing, true, true},
};

static uint64_t now(const struct calls *c, const struct call *call)
{
    return call->device ? mb_clock_ns(c->run->dev) : cli_now_ns();
}

static enum mb_err sample(struct calls *c, const struct call *call, struct histogram *host,
                          struct histogram *complete)
{
    enum mb_err err = call->before(c);
    uint64_t start, back;

    if (err)
        return err;
    start = now(c, call);
    err = call->timed(c);
    back = now(c, call);
    if (err)
        return err;
    histogram_add(host, back - start);
    if (call->device) {
        err = mb_stream_sync(c->run->dev, c->run->stream);
        histogram_add(complete, mb_clock_ns(c->run->dev) - start);
    }
    if (!err)
        err = call->after(c);
    return err ? err : settle(c);
}

static enum mb_err measure(struct calls *c, const struct call *call)
{
    static struct histogram host, complete; /* large, and one row runs at a time */
    struct bench_run *run = c->run;
    bool modelled = call->device && run->modelled;
    unsigned samples = modelled ? 20 : run->quick ? 200 : 5000;
    struct figure f = bench_figure(run, "calls", call->name, "MoonBright", modelled);
    uint64_t started = cli_now_ns();
    enum mb_err err = MB_OK;

    memset(&host, 0, sizeof(host));
    memset(&complete, 0, sizeof(complete));
    for (unsigned i = 0; !err && i < samples + 3; i++) {
        if (i == 3) { /* the first ones fill caches */
            memset(&host, 0, sizeof(host));
            memset(&complete, 0, sizeof(complete));
        }
        if (host.count >= 5 && cli_now_ns() - started > ROW_LIMIT_NS)
            break;
        err = sample(c, call, &host, &complete);
    }
    f.x = (double)c->bytes;
    f.x_unit = "bytes";
    if (!err) {
        f.metric = "host";
        bench_add_times(run, f, &host);
        f.metric = "complete";
        if (call->device)
            bench_add_times(run, f, &complete);
    }
    return err;
}

/* ------------------------------------------------------------ one size */

static void drop(struct calls *c)
{
    (void)settle(c);
    for (unsigned i = 0; i < 2; i++) {
        if (c->va[i])
            (void)mb_mem_unreserve(c->run->dev, c->va[i], c->bytes);
        if (c->mem[i])
            (void)mb_mem_release(c->run->dev, c->mem[i]);
        c->va[i] = NULL;
        c->mem[i] = NULL;
    }
}

static enum mb_err one_size(struct calls *c, uint64_t bytes, bool first)
{
    enum mb_err err = MB_OK;

    c->bytes = bytes;
    for (unsigned i = 0; !err && i < 2; i++) {
        err = mb_mem_reserve(c->run->dev, bytes, 0, &c->va[i]);
        if (!err)
            err = mb_mem_create(c->run->dev, bytes, &c->mem[i]);
    }
    for (size_t i = 0; !err && i < sizeof(calls) / sizeof(calls[0]); i++)
        if (first || calls[i].by_size)
            err = measure(c, &calls[i]);
    drop(c);
    return err;
}

static int run(int argc, char **argv)
{
    static const uint64_t sizes[] = {2ull << 20,   16ull << 20, 128ull << 20,
                                     512ull << 20, 2ull << 30,  8ull << 30};
    struct bench_run run = {.command = NULL};
    struct calls c = {.run = &run};
    const struct cli_option extra[] = {BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_calls, extra, argc, argv, &done);
    enum mb_err err;

    if (code || done)
        return code;
    err = bench_run_open(&run, "");
    if (!err) {
        c.page = mb_page_bytes(run.dev);
        err = mb_event_create(run.dev, &c.event);
    }
    for (size_t i = 0; !err && i < sizeof(sizes) / sizeof(sizes[0]); i++)
        err = one_size(&c, sizes[i], i == 0);
    return bench_run_end(&run, err);
}

const struct cli_command cli_bench_calls = {
    .name = "bench calls",
    .summary = "p50, p99, p99.9 of every public call, by size",
    .help = "usage: moonbright bench calls [OPTION...]\n\n" BENCH_RUN_QUICK_HELP BENCH_RUN_HELP "\n"
            "Calls that change mappings are timed by the device's clock: modelled on the software "
            "GPU.\n",
    .run = run,
};
