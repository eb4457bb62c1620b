/* SPDX-License-Identifier: MIT */
/*
 * bench_latency.c - `moonbright bench latency`: what a short kernel on one stream waits while
 * another stream maps and unmaps: as fast as it can, with a limit on its rate, and with a higher
 * priority for the stream of the kernel.
 *
 * ON A GPU          Another thread maps; the kernel's latency is real time until its stream is
 *                   idle. Streams with a priority come from the driver itself.
 * ON THE SOFTWARE   One thread: so many batches are given to the other stream just before each
 * GPU               kernel. Priorities do not exist there.
 */
#include "evidence.h"
#include "run.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define RANGE ((uint64_t)64 << 20)
#define KERNEL_BYTES ((uint64_t)256 << 10)

struct latency {
    struct bench_run *run;
    mb_stream other;
    void *block, *va;
    mb_mem mem;
    double rate;           /* batches a second; 0: no limit */
    _Atomic bool stop;     /* set by the measuring thread */
    _Atomic int failure;   /* enum mb_err of the mapping thread */
    _Atomic uint64_t done; /* batches */
};

static enum mb_err batch(struct latency *l, enum mb_map_kind kind)
{
    struct mb_map_op op = {
        .kind = kind, .prot = MB_PROT_READ_WRITE, .va = l->va, .bytes = RANGE, .mem = l->mem};

    return mb_mem_map_async(l->run->dev, &op, 1, l->other);
}

static enum mb_err kernel(struct latency *l, mb_stream stream, struct histogram *h)
{
    uint64_t start = mb_clock_ns(l->run->dev);
    enum mb_err err = mb_fill_async(l->run->dev, l->block, KERNEL_BYTES, 1, stream);

    if (!err)
        err = mb_stream_sync(l->run->dev, stream);
    histogram_add(h, mb_clock_ns(l->run->dev) - start);
    return err;
}

static void tell(struct latency *l, const char *how, double x, const char *x_unit,
                 const struct histogram *h, const char *note)
{
    struct figure f = bench_figure(l->run, "latency", "short kernel", how, l->run->modelled);

    f.metric = "complete";
    f.x = x;
    f.x_unit = x_unit;
    f.note = note;
    bench_add_times(l->run, f, h);
}

/* ------------------------------------------------------------ the software GPU */

static enum mb_err modelled(struct latency *l)
{
    static const unsigned pending[] = {0, 1, 2, 4, 8, 16};
    static struct histogram h; /* large, and one runs at a time */
    enum mb_err err = MB_OK;

    for (size_t p = 0; !err && p < sizeof(pending) / sizeof(pending[0]); p++) {
        memset(&h, 0, sizeof(h));
        for (unsigned i = 0; !err && i < 100; i++) {
            for (unsigned k = 0; !err && k < pending[p]; k++)
                err = batch(l, k % 2 ? MB_UNMAP : MB_MAP);
            if (!err)
                err = kernel(l, l->run->stream, &h);
            if (!err && pending[p] % 2)
                err = batch(l, MB_UNMAP);
            if (!err)
                err = mb_stream_sync(l->run->dev, l->other);
        }
        tell(l, "batches given just before", pending[p], "batches", &h, "");
    }
    return err;
}

/* ------------------------------------------------------------ a GPU */

static void *mapper(void *argument)
{
    struct latency *l = argument;
    bool mapped = false;
    enum mb_err err = MB_OK;

    while (!err && !atomic_load(&l->stop)) {
        err = batch(l, mapped ? MB_UNMAP : MB_MAP);
        mapped = !mapped;
        atomic_fetch_add(&l->done, 1);
        if (l->rate > 0) {
            struct timespec pause = {.tv_nsec = (long)(1e9 / l->rate)};

            nanosleep(&pause, NULL);
        } else if (atomic_load(&l->done) % 64 == 0) {
            err = mb_stream_sync(l->run->dev, l->other); /* bounds what waits */
        }
    }
    if (!err && mapped)
        err = batch(l, MB_UNMAP);
    if (!err)
        err = mb_stream_sync(l->run->dev, l->other);
    atomic_store(&l->failure, (int)err);
    return NULL;
}

static enum mb_err beside(struct latency *l, const char *how, mb_stream stream, double rate,
                          bool maps)
{
    static struct histogram h; /* large, and one runs at a time */
    unsigned samples = l->run->quick ? 300 : 3000;
    uint64_t start;
    char note[80] = "";
    pthread_t thread;
    enum mb_err err = MB_OK;

    memset(&h, 0, sizeof(h));
    l->rate = rate;
    atomic_store(&l->stop, false);
    atomic_store(&l->failure, 0);
    atomic_store(&l->done, 0);
    if (maps && pthread_create(&thread, NULL, mapper, l))
        return MB_ERR_HOST_MEMORY;
    start = cli_now_ns();
    for (unsigned i = 0; !err && i < samples; i++)
        err = kernel(l, stream, &h);
    if (maps) {
        atomic_store(&l->stop, true);
        pthread_join(thread, NULL);
        err = err ? err : (enum mb_err)atomic_load(&l->failure);
        snprintf(note, sizeof(note), "%.0f batches a second beside",
                 (double)atomic_load(&l->done) / ((double)(cli_now_ns() - start) / 1e9));
    }
    tell(l, how, NAN, "", &h, note);
    return err;
}

/* A stream of the highest priority, by the driver's own calls; NULL if there is none. The library
 * leaves no context current in its callers' threads: the primary one is its own, too. */
static mb_stream priority_stream(unsigned ordinal)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*range)(int *, int *), (*create)(void **, unsigned, int), least = 0, greatest = 0;
    int (*retain)(void **, int), (*use)(void *);
    void *stream = NULL, *context = NULL;

    if (!cuda)
        return NULL;
    *(void **)&retain = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    *(void **)&use = dlsym(cuda, "cuCtxSetCurrent");
    *(void **)&range = dlsym(cuda, "cuCtxGetStreamPriorityRange");
    *(void **)&create = dlsym(cuda, "cuStreamCreateWithPriority");
    if (!retain || !use || !range || !create || retain(&context, (int)ordinal) || use(context) ||
        range(&least, &greatest) || create(&stream, 1, greatest))
        return NULL;
    return stream;
}

static enum mb_err measured(struct latency *l)
{
    mb_stream plain = l->run->stream, high = priority_stream(l->run->ordinal);
    enum mb_err err = beside(l, "alone", plain, 0, false);

    if (!err)
        err = beside(l, "beside maps, no limit", plain, 0, true);
    if (!err)
        err = beside(l, "beside maps, at most 1,000/s", plain, 1000, true);
    if (!err && high)
        err = beside(l, "high priority, beside maps, no limit", high, 0, true);
    if (!err && high)
        err = beside(l, "high priority, at most 1,000/s", high, 1000, true);
    if (!err && !high)
        bench_add(l->run, "latency", "short kernel", "high priority", "complete", "us", NAN, "",
                  NAN, "the driver gave no stream with a priority");
    return err;
}

static enum mb_err measure(struct latency *l, bool threads)
{
    struct bench_run *run = l->run;
    enum mb_err err = mb_stream_create(run->dev, &l->other);

    if (!err)
        err = mb_malloc(run->dev, KERNEL_BYTES, &l->block);
    if (!err)
        err = mb_mem_reserve(run->dev, RANGE, 0, &l->va);
    if (!err)
        err = mb_mem_create(run->dev, RANGE, &l->mem);
    if (!err)
        err = run->modelled && !threads ? modelled(l) : measured(l);
    return err;
}

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL};
    struct latency l = {.run = &run};
    bool done = false, threads = false;
    const struct cli_option extra[] = {
        {"--threads", CLI_FLAG, &threads}, BENCH_RUN_QUICK(&run), {NULL, CLI_FLAG, NULL}};
    int code = bench_run_parse(&run, &cli_bench_latency, extra, argc, argv, &done);
    enum mb_err err;

    if (code || done)
        return code;
    err = bench_run_open(&run, "");
    if (!err)
        err = measure(&l, threads);
    return bench_run_end(&run, err);
}

const struct cli_command cli_bench_latency = {
    .name = "bench latency",
    .summary = "a short kernel beside mapping on another stream",
    .help = "usage: moonbright bench latency [OPTION...]\n\n"
            "  --threads           another thread maps, also on the software GPU (as on a "
            "GPU)\n" BENCH_RUN_QUICK_HELP BENCH_RUN_HELP,
    .run = run,
};
