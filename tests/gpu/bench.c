/* SPDX-License-Identifier: MIT */
/*
 * bench.c - what mapping costs, beside the driver's own ways, in one run.
 *
 * Every timed iteration of a map brings a new random frame list from host memory to the tables.
 * "host" is the time the calling thread is blocked, "complete" the time until the batch has
 * finished, "used" until a kernel that touches every mapped page has finished (used), measured by
 * the host; "touch alone" is that kernel without a map, "touch cold" behind an invalidate of
 * everything. Results are lines of JSON on the file named by out=.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { MAX_SAMPLES = 4096 };

struct series {
    double host[MAX_SAMPLES], complete[MAX_SAMPLES], used[MAX_SAMPLES];
    unsigned count;
};

static FILE *out;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double at(const double *sorted, unsigned count, double q)
{
    unsigned i = (unsigned)(q * (count - 1) + 0.5);

    return sorted[i];
}

static void report(const char *what, const char *how, uint64_t entries, struct series *s)
{
    char line[512];

    qsort(s->host, s->count, sizeof(double), by_value);
    qsort(s->complete, s->count, sizeof(double), by_value);
    qsort(s->used, s->count, sizeof(double), by_value);
    snprintf(line, sizeof(line),
             "{\"what\":\"%s\",\"how\":\"%s\",\"variant\":\"%s\",\"entries\":%" PRIu64
             ",\"samples\":%u,\"host_us\":{\"median\":%.2f,\"p99\":%.2f,\"min\":%.2f},"
             "\"complete_us\":{\"median\":%.2f,\"p99\":%.2f,\"min\":%.2f},"
             "\"used_us\":{\"median\":%.2f,\"p99\":%.2f,\"min\":%.2f}}",
             what, how, gt_arg("name", "default"), entries, s->count, at(s->host, s->count, 0.5),
             at(s->host, s->count, 0.99), s->host[0], at(s->complete, s->count, 0.5),
             at(s->complete, s->count, 0.99), s->complete[0], at(s->used, s->count, 0.5),
             at(s->used, s->count, 0.99), s->used[0]);
    printf("BENCH %s\n", line);
    if (out)
        fprintf(out, "%s\n", line);
    s->count = 0;
}

static void add(struct series *s, double host, double complete, double used)
{
    if (s->count < MAX_SAMPLES) {
        s->host[s->count] = host;
        s->complete[s->count] = complete;
        s->used[s->count++] = used;
    }
}

static struct series series;
static uint32_t *order;
static mb_pfn *pfns;

/* A new random list of frames, made outside of the timing, in memory the device has never seen. */
static void new_list(struct gt *t, struct mb_rng *rng, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + (uint32_t)mb__rng_below(rng, t->frames - i), x = order[i];

        order[i] = order[j];
        order[j] = x;
        pfns[i] = t->pfn[order[i]];
    }
}

enum way { MAP, MAP_INVALIDATE, UNMAP };

static void one(struct gt *t, struct mb_hw_stream *s, enum way way, uint32_t n, bool touch)
{
    if (way == UNMAP)
        gt_unmap(t, s, 0, n);
    else
        gt_map(t, s, 0, n, pfns, t->tmpl_rw, way == MAP_INVALIDATE);
    /* With driver tables nothing answers at an unmapped address. */
    if (touch && (way != UNMAP || t->dev->tables != MB_CUDA_DRIVER))
        gt_touch(t, s, t->view.va.addr, GT_FRAME, n, 1);
}

static void bench_way(struct gt *t, struct mb_hw_stream *s, struct mb_rng *rng, enum way way,
                      uint32_t n, unsigned samples)
{
    static const char *const names[] = {"map", "map+invalidate", "unmap"};
    unsigned warm = samples > 100 ? 20 : 2;

    for (unsigned i = 0; i < samples + warm; i++) {
        double t0 = 0, t1 = 0, complete = 0;

        /* once until the batch itself is complete, once until a kernel behind it has used every
         * page */
        for (unsigned pass = 0; pass < 2; pass++) {
            new_list(t, rng, n);
            if (way != MAP_INVALIDATE) {
                /* unmap starts from mapped slots, map from cleared ones */
                one(t, s, way == UNMAP ? MAP_INVALIDATE : UNMAP, n, true);
                gt_sync(t, s);
            }
            t0 = gt_now_us();
            one(t, s, way, n, false);
            t1 = gt_now_us();
            if (pass && (way != UNMAP || t->dev->tables != MB_CUDA_DRIVER))
                gt_touch(t, s, t->view.va.addr, GT_FRAME, n, 1);
            gt_sync(t, s);
            if (!pass)
                complete = gt_now_us() - t0;
        }
        if (i >= warm)
            add(&series, t1 - t0, complete, gt_now_us() - t0);
    }
    report(names[way], t->hw->caps.tables, n, &series);
}

static void bench_touch(struct gt *t, struct mb_hw_stream *s, uint32_t n, const char *what,
                        bool cold)
{
    for (unsigned i = 0; i < 520; i++) {
        double t0, t1;

        if (cold)
            GT_CHECK(mb__cuda_rescue_invalidate(t->dev, 100000));
        t0 = gt_now_us();

        if (n)
            gt_touch(t, s, t->home_va.addr, GT_FRAME, n, 1);
        else
            GT_CU(t->cu->launch(t->dev->nop, 1, 1, 1, 32, 1, 1, 0, s->native, NULL, NULL));
        t1 = gt_now_us();
        gt_sync(t, s);
        if (i >= 20)
            add(&series, t1 - t0, gt_now_us() - t0, gt_now_us() - t0);
    }
    report(what, "kernel", n, &series);
}

static void bench_tables(struct gt *t, const char *tables, struct mb_rng *rng)
{
    static const uint32_t all[] = {1, 64, 256, 1024, 2048}, few[] = {1, 1024};
    const uint32_t *sizes = gt_arg_u64("few", 0) ? few : all;
    unsigned size_count = gt_arg_u64("few", 0) ? 2 : 5;
    unsigned samples = !strcmp(tables, "driver") ? 20 : (unsigned)gt_arg_u64("samples", 500);
    struct mb_hw_stream *s;

    gt_open(t, tables);
    gt_pool(t, !strcmp(tables, "driver") ? 64ull << 20 : 512ull << 20,
            !strcmp(tables, "driver") ? 64 : 8);
    gt_window(t, 8);
    t->dev->param_frames = (uint32_t)gt_arg_u64("params", MB_POP_LIST_XL);
    t->dev->pop_threads = (uint32_t)gt_arg_u64("threads", MB_POP_THREADS);
    GT_CHECK(t->dev->pop_threads >= 32 && t->dev->pop_threads <= MB_POP_THREADS);
    t->dev->targeted = gt_arg_u64("targeted", 0) != 0;
    s = gt_stream(t);
    order = calloc(t->frames, sizeof(*order));
    pfns = calloc(t->frames, sizeof(*pfns));
    for (uint32_t i = 0; i < t->frames; i++)
        order[i] = i;
    if (strcmp(tables, "driver") != 0) {
        bench_touch(t, s, 0, "empty kernel", false);
        bench_touch(t, s, 0, "empty kernel cold", true);
        bench_touch(t, s, 1024, "touch alone", false);
        bench_touch(t, s, 1024, "touch cold", true);
    }
    for (unsigned i = 0; i < size_count; i++) {
        unsigned n = !strcmp(tables, "driver") && sizes[i] > 64 ? 3 : samples;

        if (!strcmp(tables, "driver") && sizes[i] == 2048)
            continue;
        bench_way(t, s, rng, MAP, sizes[i], n);
        bench_way(t, s, rng, MAP_INVALIDATE, sizes[i], n);
        bench_way(t, s, rng, UNMAP, sizes[i], n);
    }
    gt_unmap(t, s, 0, t->slots);
    gt_close(t);
    free(order);
    free(pfns);
}

/* ------------------------------------------------------------ the vendor's ways */

static void vendor_vmm(struct gt *t, uint32_t n, bool one_handle, unsigned samples)
{
    uint64_t bytes = n * GT_FRAME, each = one_handle ? bytes : GT_FRAME;
    uint32_t count = one_handle ? 1 : n;
    cu_mem *h = calloc(count, sizeof(*h));
    static struct series unmap;
    mb_va va;

    for (uint32_t i = 0; i < count; i++)
        GT_OK(mb__cuda_mem_create(t->dev, each, &h[i]));
    GT_OK(t->hw->ops->va_reserve(t->hw, bytes, MB_CUDA_PIECE_BYTES, &va));
    for (unsigned k = 0; k < samples; k++) {
        double t0 = gt_now_us(), t1, t2;

        for (uint32_t i = 0; i < count; i++)
            GT_CU(t->cu->mem_map(va.addr + i * each, each, 0, h[i], 0));
        GT_OK(mb__cuda_set_access(t->dev, va.addr, bytes, CU_MEM_ACCESS_READ_WRITE));
        t1 = gt_now_us();
        GT_CU(t->cu->mem_unmap(va.addr, bytes));
        t2 = gt_now_us();
        if (k) {
            add(&series, t1 - t0, t1 - t0, t1 - t0);
            add(&unmap, t2 - t1, t2 - t1, t2 - t1);
        }
    }
    report("cuMemMap+cuMemSetAccess", one_handle ? "one handle" : "2 MB handles", n, &series);
    report("cuMemUnmap", one_handle ? "one handle" : "2 MB handles", n, &unmap);
    for (uint32_t i = 0; i < count; i++)
        GT_CU(t->cu->mem_release(h[i]));
    GT_OK(t->hw->ops->va_release(t->hw, va, bytes));
    free(h);
}

static void vendor_malloc(struct gt *t, uint32_t n, unsigned samples)
{
    cu_result (*alloc_async)(cu_ptr *, size_t, cu_stream);
    cu_result (*free_async)(cu_ptr, cu_stream);
    static struct series frees;
    cu_stream s;

    *(void **)&alloc_async = gt_symbol(t, "cuMemAllocAsync");
    *(void **)&free_async = gt_symbol(t, "cuMemFreeAsync");
    for (unsigned k = 0; k < samples + 1; k++) {
        double t0 = gt_now_us(), t1, t2;
        cu_ptr p;

        GT_CU(t->cu->mem_alloc(&p, n * GT_FRAME));
        t1 = gt_now_us();
        GT_CU(t->cu->mem_free(p));
        t2 = gt_now_us();
        if (k) {
            add(&series, t1 - t0, t1 - t0, t1 - t0);
            add(&frees, t2 - t1, t2 - t1, t2 - t1);
        }
    }
    report("cuMemAlloc", "driver", n, &series);
    report("cuMemFree", "driver", n, &frees);
    GT_CU(t->cu->stream_create(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned k = 0; k < 10 * samples; k++) {
        double t0 = gt_now_us(), t1;
        cu_ptr p;

        GT_CU(alloc_async(&p, n * GT_FRAME, s));
        GT_CU(free_async(p, s));
        t1 = gt_now_us();
        if (k >= samples)
            add(&series, t1 - t0, t1 - t0, t1 - t0);
    }
    GT_CU(t->cu->stream_sync(s));
    report("cuMemAllocAsync+cuMemFreeAsync", "pool of the driver", n, &series);
}

int gt_test_bench(void)
{
    uint64_t seed = gt_arg_u64("seed", (uint64_t)gt_now_us());
    const char *path = gt_arg("out", NULL), *tables = gt_arg("tables", "inline");
    struct mb_rng rng;
    struct gt t;

    mb__rng_seed(&rng, seed);
    out = path ? fopen(path, "a") : NULL;
    printf("seed %" PRIu64 "\n", seed);
    if (!strcmp(tables, "vendor")) {
        gt_open(&t, "driver");
        vendor_vmm(&t, 1, false, 100);
        vendor_vmm(&t, 64, false, 20);
        vendor_vmm(&t, 1024, false, 6);
        vendor_vmm(&t, 1024, true, 50);
        vendor_malloc(&t, 1, 50);
        vendor_malloc(&t, 64, 50);
        vendor_malloc(&t, 1024, 20);
        gt_close(&t);
    } else {
        bench_tables(&t, tables, &rng);
    }
    if (out)
        fclose(out);
    return 0;
}
