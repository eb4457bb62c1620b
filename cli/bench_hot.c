/* SPDX-License-Identifier: MIT */
/*
 * bench_hot.c - `moonbright bench hot`: pairs of malloc_async and free_async per second, by threads
 * and block sizes, beside the vendor's pool in the same run.
 *
 * Each thread has a stream of its own and frees what it has just allocated, or keeps a small set of
 * blocks and replaces a random one (--live). Nothing waits for the device: it is the host's path
 * that is measured, in real time, on the software GPU too.
 */
#include "bench.h"
#include "bench_rows.h"
#include "config.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 64, LIVE_MAX = 1024, BATCH = 256 };

/* The vendor's calls; NULL: not there. */
struct vendor {
    int (*init)(unsigned);
    int (*retain)(void **, int);
    int (*set)(void *);
    int (*stream_create)(void **, unsigned);
    int (*stream_destroy)(void *);
    int (*stream_sync)(void *);
    int (*alloc)(unsigned long long *, size_t, void *);
    int (*release)(unsigned long long, void *);
    int (*pool)(void **, int);
    int (*pool_set)(void *, int, void *);
    void *context;
};

/* One measured cell of the table. */
struct cell {
    mb_device dev; /* NULL: the vendor's */
    const struct vendor *vendor;
    uint64_t bytes, ns;
    unsigned threads, live;
    pthread_barrier_t barrier;
    atomic_bool stop;
    atomic_uint failed;
};

/* One thread. */
struct worker {
    struct cell *cell;
    pthread_t thread;
    void *stream;
    void *held[LIVE_MAX]; /* `live` of them */
    uint64_t random, pairs, ns;
};

/* ------------------------------------------------------------------ one pair */

static bool give(struct worker *w, unsigned slot)
{
    struct cell *c = w->cell;
    unsigned long long p = 0;
    bool fine;

    if (c->dev)
        return mb_malloc_async(c->dev, c->bytes, w->stream, &w->held[slot]) == MB_OK;
    fine = c->vendor->alloc(&p, c->bytes, w->stream) == 0;
    w->held[slot] = (void *)(uintptr_t)p; /* NOLINT: an address of the device */
    return fine;
}

static bool take(struct worker *w, unsigned slot)
{
    struct cell *c = w->cell;
    void *p = w->held[slot];

    w->held[slot] = NULL;
    if (c->dev)
        return mb_free_async(c->dev, p, w->stream) == MB_OK;
    return c->vendor->release((unsigned long long)(uintptr_t)p, w->stream) == 0;
}

static bool pair(struct worker *w)
{
    unsigned slot = 0;

    if (w->cell->live > 1) {
        w->random = w->random * 6364136223846793005u + 1442695040888963407u;
        slot = (unsigned)((w->random >> 33) % w->cell->live);
    }
    if (w->cell->live <= 1)
        return give(w, 0) && take(w, 0);
    return take(w, slot) && give(w, slot);
}

/* ------------------------------------------------------------------ threads */

static bool begin(struct worker *w)
{
    struct cell *c = w->cell;

    if (c->dev)
        return mb_stream_create(c->dev, &w->stream) == MB_OK;
    return c->vendor->set(c->vendor->context) == 0 && c->vendor->stream_create(&w->stream, 1) == 0;
}

static void finish(struct worker *w)
{
    struct cell *c = w->cell;

    for (unsigned i = 0; c->live > 1 && i < c->live; i++)
        if (w->held[i])
            (void)take(w, i);
    if (c->dev) {
        (void)mb_stream_sync(c->dev, w->stream);
        (void)mb_stream_destroy(c->dev, w->stream);
    } else {
        (void)c->vendor->stream_sync(w->stream);
        (void)c->vendor->stream_destroy(w->stream);
    }
}

static void *work(void *user)
{
    struct worker *w = user;
    struct cell *c = w->cell;
    bool fine = begin(w);
    uint64_t start;

    for (unsigned i = 0; fine && c->live > 1 && i < c->live; i++)
        fine = give(w, i);
    for (unsigned i = 0; fine && i < 4 * BATCH; i++)
        fine = pair(w);
    pthread_barrier_wait(&c->barrier);
    start = cli_now_ns();
    /* Once at least: on a busy machine the time may be over before this thread runs at all. */
    do {
        for (unsigned i = 0; fine && i < BATCH; i++)
            fine = pair(w);
        w->pairs += BATCH;
        /* The device's queue must not grow without end. */
        if (!c->dev && w->pairs % (64 * BATCH) == 0)
            (void)c->vendor->stream_sync(w->stream);
    } while (fine && !atomic_load_explicit(&c->stop, memory_order_relaxed));
    w->ns = cli_now_ns() - start;
    if (!fine)
        atomic_fetch_add(&c->failed, 1);
    pthread_barrier_wait(&c->barrier);
    finish(w);
    return NULL;
}

/* Pairs per second over all threads, and the mean ns of one pair on one thread; false: failed. */
static bool run_cell(struct cell *c, double *per_second, double *pair_ns)
{
    struct worker *workers = calloc(c->threads, sizeof(*workers));
    unsigned started = 0;

    if (!workers || pthread_barrier_init(&c->barrier, NULL, c->threads + 1)) {
        free(workers);
        return false;
    }
    *per_second = *pair_ns = 0;
    for (; started < c->threads; started++) {
        workers[started].cell = c;
        workers[started].random = started + 1;
        if (pthread_create(&workers[started].thread, NULL, work, &workers[started]))
            abort(); /* the others wait at the barrier for it */
    }
    pthread_barrier_wait(&c->barrier);
    for (uint64_t start = cli_now_ns(); cli_now_ns() - start < c->ns;) {
        const struct timespec ms = {.tv_nsec = 1000000};

        (void)nanosleep(&ms, NULL);
    }
    atomic_store(&c->stop, true);
    pthread_barrier_wait(&c->barrier);
    for (unsigned i = 0; i < c->threads; i++) {
        pthread_join(workers[i].thread, NULL);
        *per_second += (double)workers[i].pairs / ((double)workers[i].ns * 1e-9);
        *pair_ns += (double)workers[i].ns / (double)workers[i].pairs / c->threads;
    }
    pthread_barrier_destroy(&c->barrier);
    free(workers);
    return !atomic_load(&c->failed);
}

/* ------------------------------------------------------------------ the vendor */

/* NULL when its pool can be used, else why not. */
static const char *open_vendor(struct vendor *v, int device)
{
    const struct {
        const char *name;
        void *target;
    } symbols[] = {{"cuInit", &v->init},
                   {"cuDevicePrimaryCtxRetain", &v->retain},
                   {"cuCtxSetCurrent", &v->set},
                   {"cuStreamCreate", &v->stream_create},
                   {"cuStreamDestroy_v2", &v->stream_destroy},
                   {"cuStreamSynchronize", &v->stream_sync},
                   {"cuMemAllocAsync", &v->alloc},
                   {"cuMemFreeAsync", &v->release},
                   {"cuDeviceGetDefaultMemPool", &v->pool},
                   {"cuMemPoolSetAttribute", &v->pool_set}};
    enum { RELEASE_THRESHOLD = 4 };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t keep_all = UINT64_MAX;
    void *pool = NULL;

    if (!library)
        return "there is no CUDA driver: libcuda.so.1 cannot be loaded";
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (!symbol)
            return "the CUDA driver lacks stream-ordered pools";
        memcpy(symbols[i].target, &symbol, sizeof(symbol));
    }
    if (v->init(0) || v->retain(&v->context, device) || v->set(v->context))
        return "the CUDA driver gives no context";
    if (v->pool(&pool, device) || v->pool_set(pool, RELEASE_THRESHOLD, &keep_all))
        return "the CUDA driver gives no pool";
    return NULL;
}

/* ------------------------------------------------------------------ command */

struct hot {
    struct rows rows;
    mb_device dev;
    struct vendor vendor;
    const char *no_vendor; /* why there are no rows of it; NULL: there are */
    uint64_t ns;
    unsigned threads, live;
};

static int one_cell(struct hot *hot, bool vendor, uint64_t bytes, unsigned threads)
{
    struct cell c = {.dev = vendor ? NULL : hot->dev,
                     .vendor = &hot->vendor,
                     .bytes = bytes,
                     .ns = hot->ns,
                     .threads = threads,
                     .live = hot->live};
    double per_second, pair_ns;
    char note[96];
    struct mb_bench_row row = {.what = "pair",
                               .how = vendor ? "cuMemAllocAsync + cuMemFreeAsync"
                                             : "mb_malloc_async + mb_free_async",
                               .bytes = bytes,
                               .samples = threads,
                               .complete = {NAN, NAN, NAN},
                               .used = {NAN, NAN, NAN},
                               .note = note};

    if (!run_cell(&c, &per_second, &pair_ns))
        return cli_fail(CLI_FAILED, "bench hot", "%s of %lu bytes on %u threads failed", row.how,
                        (unsigned long)bytes, threads);
    row.host = (struct mb_spread){pair_ns / 1e3, NAN, NAN};
    row.value = per_second / 1e6;
    snprintf(note, sizeof(note), "million pairs a second on %u thread%s, real time", threads,
             threads == 1 ? "" : "s");
    rows_add(&hot->rows, &row);
    return CLI_OK;
}

static int cells(struct hot *hot)
{
    static const uint64_t sizes[] = {512, 4096, 65536, 1 << 20, 2 << 20, 20 << 20, 256 << 20};
    int code = CLI_OK;

    for (unsigned threads = 1; !code && threads <= hot->threads; threads *= 2) {
        for (unsigned i = 0; !code && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            /* What all threads hold at once must fit. */
            if (sizes[i] * threads * hot->live > (uint64_t)8 << 30)
                continue;
            code = one_cell(hot, false, sizes[i], threads);
            if (!code && !hot->no_vendor)
                code = one_cell(hot, true, sizes[i], threads);
        }
    }
    return code;
}

static int run(int argc, char **argv)
{
    struct device_options device = {.backend = NULL};
    struct hot hot = {.rows = {.command = "bench hot"}, .threads = 8, .live = 1};
    unsigned ordinal = 0, milliseconds = 50;
    bool no_vendor = false, done = false;
    const struct cli_option table[] = {{"--backend", CLI_TEXT, &device.backend},
                                       {"--device", CLI_UNSIGNED, &ordinal},
                                       {"--config", CLI_TEXT, &device.config},
                                       {"--device-memory", CLI_BYTES, &device.memory_bytes},
                                       {"--threads", CLI_UNSIGNED, &hot.threads},
                                       {"--live", CLI_UNSIGNED, &hot.live},
                                       {"--milliseconds", CLI_UNSIGNED, &milliseconds},
                                       {"--no-vendor", CLI_FLAG, &no_vendor},
                                       {"--commit", CLI_TEXT, &hot.rows.commit},
                                       {"--json", CLI_FLAG, &hot.rows.as_json},
                                       {NULL, CLI_FLAG, NULL}};
    char line[1024], config[1024];
    int count = 0, code;
    enum mb_err err;

    rows_command_line(argc, argv, line, sizeof(line));
    code = cli_parse(&cli_bench_hot, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (count || !hot.threads || hot.threads > THREADS_MAX || !hot.live || hot.live > LIVE_MAX)
        return cli_fail(CLI_BAD_INPUT, "bench hot",
                        "1 to %d threads, 1 to %d live blocks and no other words are allowed",
                        THREADS_MAX, LIVE_MAX);
    code = device_config("bench hot", &device, config, sizeof(config));
    if (code)
        return code;
    hot.ns = (uint64_t)milliseconds * 1000000;
    err = mb_open((int)ordinal, config, &hot.dev);
    if (err)
        return cli_fail_call("bench hot", err);
    if (strcmp(mb_device_backend(hot.dev), "cuda") != 0)
        hot.no_vendor = "the vendor's pool is not modelled in time";
    else
        hot.no_vendor = no_vendor ? "not wanted" : open_vendor(&hot.vendor, (int)ordinal);
    rows_begin(&hot.rows, ordinal, config, line, 1);
    code = cells(&hot);
    rows_end(&hot.rows);
    if (hot.no_vendor && !hot.rows.as_json)
        printf("No rows of cuMemAllocAsync: %s.\n", hot.no_vendor);
    mb_close(hot.dev);
    return code;
}

const struct cli_command cli_bench_hot = {
    .name = "bench hot",
    .summary = "malloc_async and free_async per second, by threads and sizes",
    .help = "usage: moonbright bench hot [OPTION...]\n\n"
            "  --backend NAME      sim or cuda (default: as mb_open chooses)\n"
            "  --config TEXT       more configuration\n"
            "  --device N          which GPU, from 0; the software GPU is there 8 times\n"
            "  --device-memory N   size of the software GPU's memory\n"
            "  --threads N         1, 2, 4, ... up to N (default 8)\n"
            "  --live N            blocks that each thread holds (default 1: free at once)\n"
            "  --milliseconds N    for each line (default 50)\n"
            "  --no-vendor         leave the vendor's pool out\n"
            "  --commit TEXT       of the tree that was built, for the JSON\n"
            "  --json              one JSON object instead of a table\n",
    .run = run,
};
