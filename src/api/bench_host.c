/* SPDX-License-Identifier: MIT */
/*
 * What a public call costs the calling thread without the backend: real time on a device that takes
 * every batch and executes none (hw/dry.h). The frames, the checks, the records of runtime and vm
 * are those of every program.
 *
 *   one range        one operation on a memory object of consecutive frames
 *   one range, apart one operation on an object whose frames were found one by one between others
 *   page by page     one operation for every page, each shows a random page of that object
 *   in any order     the same operations, shuffled
 *   composed         a block of malloc made of holes of one frame each
 *   scattered        one operation on one of eight objects in turn, whose frames were drawn from
 *                    all over a pool 32 times as large, where that is no more than 64 GiB
 *   scattered, cold  the same, and before each call the program wrote 64 MiB of its own
 *
 * value: nanoseconds for each page. Rows of what a call needs undone are told beside it, so each
 * timed call begins from the same state.
 */
#include "api/bench_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/bench_stages.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"

enum {
    SAMPLES = 200,
    WARM_UP = 5,
    SAMPLES_MAX = 4096,
    POOL = 32, /* scattered: frames for each one that is mapped */
    POOL_MAX = 32768,
    OBJECTS = 8,
    COLD_BYTES = 64 << 20,
    COLD_SAMPLES = 50, /* each takes long */
};

enum kind { MAP, REMAP, ALIAS, PROTECT, UNMAP, SLEEP, WAKE, KINDS };

static const char *const kind_names[KINDS] = {"map",   "remap", "alias", "protect",
                                              "unmap", "sleep", "wake"};

struct host {
    const struct mb_bench_options *options;
    mb_bench_callback callback;
    void *user;
    mb_device dev;
    mb_stream stream;
    struct mb_rng rng;
    /* Of one size; owned. */
    unsigned pages, samples;
    mb_mem packed, apart; /* consecutive frames; frames between others */
    void *va, *second;
    struct mb_map_op *ops; /* pages + 1 of them */
    bool shuffle;          /* lists of operations */
    double us[KINDS][SAMPLES_MAX];
};

static uint64_t size_of(const struct host *h)
{
    return h->pages * MB_FRAME_BYTES;
}

static void *page_at(void *va, unsigned page)
{
    return (char *)va + page * MB_FRAME_BYTES;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

struct mb_spread mb__bench_spread(double *us, unsigned count)
{
    qsort(us, count, sizeof(*us), by_value);
    return (struct mb_spread){us[count / 2], us[count * 99 / 100], us[0]};
}

static void tell(const struct host *h, const char *what, const char *how, double *us)
{
    struct mb_spread none = {NAN, NAN, NAN};
    struct mb_bench_row row = {.what = what,
                               .how = how,
                               .bytes = size_of(h),
                               .samples = h->samples,
                               .complete = none,
                               .used = none,
                               .note = "ns a page, real time, no backend"};

    row.host = mb__bench_spread(us, h->samples);
    row.value = row.host.median_us * 1e3 / h->pages;
    h->callback(h->user, &row);
}

/* ------------------------------------------------------------------ mappings */

static struct mb_map_op whole(const struct host *h, enum mb_map_kind kind, void *va, mb_mem mem)
{
    return (struct mb_map_op){.kind = kind,
                              .prot = kind == MB_PROTECT ? MB_PROT_READ : MB_PROT_READ_WRITE,
                              .va = va,
                              .bytes = size_of(h),
                              .mem = mem,
                              .src = h->va};
}

/* One operation for each page of `va`, its source a random one. */
static void by_page(struct host *h, struct mb_map_op *ops, enum mb_map_kind kind, void *va)
{
    struct mb_map_op op = whole(h, kind, va, h->apart);

    for (unsigned i = 0; i < h->pages; i++) {
        unsigned j = (unsigned)mb__rng_below(&h->rng, i + 1);

        op.va = page_at(va, i);
        op.bytes = MB_FRAME_BYTES;
        ops[i] = op;
        ops[i].mem_offset = ops[j].mem_offset;
        ops[j].mem_offset = i * MB_FRAME_BYTES;
        ops[i].src = ops[j].src;
        ops[j].src = page_at(h->va, i);
    }
    for (unsigned left = h->shuffle ? h->pages : 0; left > 1; left--) {
        unsigned i = left - 1, j = (unsigned)mb__rng_below(&h->rng, left);
        struct mb_map_op op_i = ops[i];

        ops[i] = ops[j];
        ops[j] = op_i;
    }
}

struct timed {
    enum kind kind;
    double us;
    enum mb_err err;
};

static void timed_map(struct host *h, struct timed *t, enum kind kind, const struct mb_map_op *ops,
                      unsigned count)
{
    uint64_t start;

    t->kind = kind;
    if (t->err)
        return;
    start = mb__now_ns();
    t->err = mb_mem_map_async(h->dev, ops, count, h->stream);
    t->us = (double)(mb__now_ns() - start) / 1e3;
}

static void timed_rest(struct host *h, struct timed *t, enum kind kind)
{
    uint64_t start = mb__now_ns();

    t->kind = kind;
    if (t->err)
        return;
    t->err = (kind == SLEEP ? mb_mem_sleep : mb_mem_wake)(h->dev, h->va, size_of(h), h->stream);
    t->us = (double)(mb__now_ns() - start) / 1e3;
}

static void keep(struct host *h, const struct timed *t, unsigned round)
{
    if (!t->err && round >= WARM_UP)
        h->us[t->kind][round - WARM_UP] = t->us;
}

/* Every kind once, from nothing mapped to nothing mapped. */
static enum mb_err ranges_once(struct host *h, mb_mem mem, unsigned round)
{
    struct mb_map_op op = whole(h, MB_MAP, h->va, mem);
    struct mb_map_op alias = whole(h, MB_ALIAS, h->second, NULL);
    struct mb_map_op unalias = whole(h, MB_UNMAP, h->second, NULL);
    struct mb_map_op remap[2] = {whole(h, MB_UNMAP, h->va, NULL), op};
    struct timed t = {0};

    timed_map(h, &t, MAP, &op, 1);
    keep(h, &t, round);
    remap[1].mem = mem == h->apart ? h->packed : h->apart;
    if (!t.err)
        t.err = mb_mem_map_async(h->dev, remap, 2, h->stream);
    remap[1].mem = mem;
    timed_map(h, &t, REMAP, remap, 2);
    keep(h, &t, round);
    timed_map(h, &t, ALIAS, &alias, 1);
    keep(h, &t, round);
    if (!t.err)
        t.err = mb_mem_map_async(h->dev, &unalias, 1, h->stream);
    op.kind = MB_PROTECT;
    op.prot = MB_PROT_READ;
    timed_map(h, &t, PROTECT, &op, 1);
    keep(h, &t, round);
    timed_rest(h, &t, SLEEP);
    keep(h, &t, round);
    timed_rest(h, &t, WAKE);
    keep(h, &t, round);
    timed_map(h, &t, UNMAP, remap, 1);
    keep(h, &t, round);
    return t.err;
}

static enum mb_err pages_once(struct host *h, unsigned round)
{
    struct mb_map_op clear = whole(h, MB_UNMAP, h->va, NULL);
    struct mb_map_op unalias = whole(h, MB_UNMAP, h->second, NULL);
    struct timed t = {0};

    by_page(h, h->ops, MB_MAP, h->va);
    timed_map(h, &t, MAP, h->ops, h->pages);
    keep(h, &t, round);
    h->ops[0] = clear;
    by_page(h, h->ops + 1, MB_MAP, h->va);
    timed_map(h, &t, REMAP, h->ops, h->pages + 1);
    keep(h, &t, round);
    by_page(h, h->ops, MB_ALIAS, h->second);
    timed_map(h, &t, ALIAS, h->ops, h->pages);
    keep(h, &t, round);
    if (!t.err)
        t.err = mb_mem_map_async(h->dev, &unalias, 1, h->stream);
    by_page(h, h->ops, MB_PROTECT, h->va);
    timed_map(h, &t, PROTECT, h->ops, h->pages);
    keep(h, &t, round);
    by_page(h, h->ops, MB_UNMAP, h->va);
    timed_map(h, &t, UNMAP, h->ops, h->pages);
    keep(h, &t, round);
    return t.err;
}

static enum mb_err tell_ranges(struct host *h, mb_mem mem, const char *how)
{
    enum mb_err err = MB_OK;

    for (unsigned round = 0; !err && round < h->samples + WARM_UP; round++)
        err = ranges_once(h, mem, round);
    for (unsigned kind = 0; !err && kind < KINDS; kind++)
        tell(h, kind_names[kind], how, h->us[kind]);
    return err;
}

static enum mb_err tell_pages(struct host *h, bool shuffle)
{
    enum mb_err err = MB_OK;

    h->shuffle = shuffle;
    for (unsigned round = 0; !err && round < h->samples + WARM_UP; round++)
        err = pages_once(h, round);
    for (unsigned kind = 0; !err && kind <= UNMAP; kind++)
        tell(h, kind_names[kind], shuffle ? "in any order" : "page by page", h->us[kind]);
    return err;
}

enum mb_err mb__bench_apart(mb_device dev, unsigned pages, mb_mem *out)
{
    mb_mem *ones = calloc(2 * (size_t)pages, sizeof(mb_mem));
    enum mb_err err = ones ? MB_OK : MB_ERR_HOST_MEMORY;

    for (unsigned i = 0; !err && i < 2 * pages; i++)
        err = mb_mem_create(dev, MB_FRAME_BYTES, &ones[i]);
    for (unsigned i = 0; !err && i < 2 * pages; i += 2) {
        err = mb_mem_release(dev, ones[i]);
        ones[i] = NULL;
    }
    if (!err)
        err = mb_mem_create(dev, pages * MB_FRAME_BYTES, out);
    for (unsigned i = 0; ones && i < 2 * pages; i++)
        if (ones[i])
            (void)mb_mem_release(dev, ones[i]);
    free(ones);
    return err;
}

static enum mb_err mappings(struct host *h)
{
    enum mb_err err = mb_mem_reserve(h->dev, size_of(h), 0, &h->va);

    if (!err)
        err = mb_mem_reserve(h->dev, size_of(h), 0, &h->second);
    if (!err)
        err = mb_mem_create(h->dev, size_of(h), &h->packed);
    if (!err)
        err = mb__bench_apart(h->dev, h->pages, &h->apart);
    if (!err)
        err = tell_pages(h, false); /* first: a wake gives the object other frames */
    if (!err && h->pages > 1)
        err = tell_pages(h, true);
    if (!err)
        err = tell_ranges(h, h->apart, "one range, apart");
    return err ? err : tell_ranges(h, h->packed, "one range");
}

/* ------------------------------------------------------------------ composed blocks */

/* Blocks of one frame each, every second freed again: holes of one frame. */
static enum mb_err make_holes(struct host *h, void **blocks)
{
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < 2 * h->pages; i++)
        err = mb_malloc_async(h->dev, MB_FRAME_BYTES, h->stream, &blocks[i]);
    for (unsigned i = 0; !err && i < 2 * h->pages; i += 2)
        err = mb_free_async(h->dev, blocks[i], h->stream);
    return err;
}

/* One block of all holes. Windows are not kept, so it is mapped anew each time. */
static enum mb_err composed_once(struct host *h, double *mallocs, double *frees)
{
    uint64_t start = mb__now_ns(), between;
    void *block;
    enum mb_err err = mb_malloc_async(h->dev, size_of(h), h->stream, &block);

    between = mb__now_ns();
    *mallocs = (double)(between - start) / 1e3;
    if (err)
        return err;
    between = mb__now_ns();
    err = mb_free_async(h->dev, block, h->stream);
    *frees = (double)(mb__now_ns() - between) / 1e3;
    return err;
}

static enum mb_err composed(struct host *h)
{
    void **blocks = calloc(2 * (size_t)h->pages, sizeof(void *));
    enum mb_err err = blocks ? make_holes(h, blocks) : MB_ERR_HOST_MEMORY;

    for (unsigned i = 0; !err && i < WARM_UP; i++)
        err = composed_once(h, &h->us[MAP][0], &h->us[UNMAP][0]);
    for (unsigned i = 0; !err && i < h->samples; i++)
        err = composed_once(h, &h->us[MAP][i], &h->us[UNMAP][i]);
    if (!err) {
        tell(h, "malloc", "composed of single frames", h->us[MAP]);
        tell(h, "free", "composed of single frames", h->us[UNMAP]);
    }
    free(blocks);
    return err;
}

/* ------------------------------------------------------------------ scattered frames */

/* An object whose frames are a random choice of those that `ones` still hold, one each. */
static enum mb_err draw(struct host *h, mb_mem *ones, mb_mem *out)
{
    enum mb_err err = MB_OK;

    for (unsigned left = h->pages; !err && left;) {
        mb_mem *one = &ones[mb__rng_below(&h->rng, POOL * h->pages)];

        if (!*one)
            continue;
        err = mb_mem_release(h->dev, *one);
        *one = NULL;
        left--;
    }
    return err ? err : mb_mem_create(h->dev, size_of(h), out);
}

static void write_own(char *own)
{
    for (size_t i = 0; own && i < COLD_BYTES; i += 64)
        own[i]++;
}

/* `own`: the program's memory, written before each call; NULL: none. */
static enum mb_err tell_scattered(struct host *h, const mb_mem *objects, char *own)
{
    const char *how = own ? "scattered, cold" : "scattered";
    unsigned all = h->samples;
    enum mb_err err = MB_OK;

    h->samples = own && all > COLD_SAMPLES ? COLD_SAMPLES : all;
    for (unsigned round = 0; !err && round < h->samples + WARM_UP; round++) {
        struct mb_map_op map = whole(h, MB_MAP, h->va, objects[round % OBJECTS]);
        struct mb_map_op unmap = whole(h, MB_UNMAP, h->va, NULL);
        struct timed t = {0};

        write_own(own);
        timed_map(h, &t, MAP, &map, 1);
        keep(h, &t, round);
        write_own(own);
        timed_map(h, &t, UNMAP, &unmap, 1);
        keep(h, &t, round);
        err = t.err;
    }
    if (!err) {
        tell(h, kind_names[MAP], how, h->us[MAP]);
        tell(h, kind_names[UNMAP], how, h->us[UNMAP]);
    }
    h->samples = all;
    return err;
}

static enum mb_err scattered(struct host *h)
{
    mb_mem *ones = calloc((size_t)POOL * h->pages, sizeof(mb_mem));
    char *own = calloc(COLD_BYTES, 1);
    mb_mem objects[OBJECTS];
    enum mb_err err = ones && own ? mb_mem_reserve(h->dev, size_of(h), 0, &h->va)
                                  : mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a pool");

    for (unsigned i = 0; !err && i < POOL * h->pages; i++)
        err = mb_mem_create(h->dev, MB_FRAME_BYTES, &ones[i]);
    for (unsigned i = 0; !err && i < OBJECTS; i++)
        err = draw(h, ones, &objects[i]);
    if (!err)
        err = tell_scattered(h, objects, NULL);
    if (!err)
        err = tell_scattered(h, objects, own);
    free(ones);
    free(own);
    return err;
}

/* ------------------------------------------------------------------ one size, one device */

/* Each on a device of its own: what one leaves behind must not serve the next. */
static enum mb_err on_device(struct host *h, const struct mb__config *config,
                             enum mb_err (*part)(struct host *))
{
    enum mb_err err = mb__device_open(config, &h->dev);

    if (err)
        return err;
    h->packed = h->apart = NULL;
    h->va = h->second = NULL;
    err = mb_stream_create(h->dev, &h->stream);
    if (!err)
        err = part(h);
    mb_close(h->dev);
    return err;
}

static enum mb_err one_size(struct host *h, const struct mb__config *config, uint64_t bytes)
{
    struct mb__config apart = *config;
    enum mb_err err;

    h->pages = (unsigned)(bytes / MB_FRAME_BYTES);
    h->ops = calloc(h->pages + 1, sizeof(*h->ops));
    if (!h->ops)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %u operations", h->pages);
    err = on_device(h, config, mappings);
    apart.no_bins = true;
    apart.window_bytes = 1;
    if (!err && h->pages > 1)
        err = on_device(h, &apart, composed);
    if (!err && POOL * h->pages <= POOL_MAX)
        err = on_device(h, config, scattered);
    free(h->ops);
    return err;
}

enum mb_err mb__bench_host(const struct mb__config *config, const struct mb_bench_options *options,
                           mb_bench_callback callback, void *user)
{
    static const uint64_t usual[] = {2ull << 20, 128ull << 20, 2ull << 30, 8ull << 30};
    const uint64_t *sizes = options->sizes ? options->sizes : usual;
    unsigned count = options->sizes ? options->size_count : sizeof(usual) / sizeof(usual[0]);
    struct mb__config dry = *config;
    struct host *h;
    enum mb_err err = MB_OK;

    if (config->backend && strcmp(config->backend, "cuda") == 0)
        return mb__bench_stages(config, options, callback, user);
    if (config->backend && strcmp(config->backend, "sim") != 0)
        return mb__fail(MB_ERR_INVALID,
                        "bench host runs on sim, whose batches may be left out, and "
                        "on cuda; \"bench map\" measures other backends");
    h = calloc(1, sizeof(*h));
    if (!h)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for samples");
    dry.backend = "sim";
    dry.dry = true;
    dry.hw.no_oracle = true;
    *h = (struct host){.options = options, .callback = callback, .user = user};
    h->samples = options->samples ? options->samples : SAMPLES;
    h->samples = h->samples < SAMPLES_MAX ? h->samples : SAMPLES_MAX;
    mb__rng_seed(&h->rng, options->seed);
    for (unsigned i = 0; !err && i < count; i++)
        err = one_size(h, &dry, sizes[i]);
    free(h);
    return err;
}
