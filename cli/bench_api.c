/* SPDX-License-Identifier: MIT */
/*
 * bench_api.c - mapping and allocating through the public interface, in time of the device's own
 * clock, so that the software GPU's figures stay modelled. Frames of an object are the library's
 * choice; a complete time ends where mb_stream_sync() returns.
 *
 * "api, one range": one operation that shows a memory object, a different one each time, whose
 * frames are the library's choice. "api, page by page": one operation for every page, in random
 * order, in one batch: the list is random and new, and the library checks every page of it.
 */
#include "bench_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row ends then, once it has a few samples. */
#define ROW_LIMIT_NS ((uint64_t)300000000)

enum {
    OBJECTS = 4, /* memory objects that take turns */
    SAMPLES_MAX = 400,
    PAGE_OPS_MAX = 1024,
};

struct api {
    mb_device dev;
    mb_stream stream;
    const struct mb_bench_options *options;
    mb_bench_callback callback;
    void *user;
    bool modelled;
    uint64_t page, random;
    unsigned samples;
    /* Of the size being measured; owned. */
    void *va, *second;
    bool mapped, aliased; /* anything at va, at second */
    mb_mem mem[OBJECTS];
    struct mb_map_op *ops; /* one per page */
    unsigned pages, turn;
    double host[SAMPLES_MAX], complete[SAMPLES_MAX];
};

static uint64_t next_random(struct api *api)
{
    uint64_t z = api->random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void tell(struct api *api, const char *what, const char *how, uint64_t bytes, unsigned count)
{
    struct mb_bench_row row = {.what = what,
                               .how = how,
                               .bytes = bytes,
                               .samples = count,
                               .used = {NAN, NAN, NAN},
                               .note = "",
                               .value = NAN,
                               .modelled = api->modelled};

    row.host = rows_spread(api->host, count);
    row.complete = rows_spread(api->complete, count);
    api->callback(api->user, &row);
}

/* ------------------------------------------------------------ mappings */

enum op_kind { API_MAP, API_UNMAP, API_REMAP, API_ALIAS, API_PROTECT };

static enum mb_err submit(struct api *api, const struct mb_map_op *ops, unsigned count)
{
    return mb_mem_map_async(api->dev, ops, count, api->stream);
}

/* All pages of the range, each in its place of a random page of a memory object. */
static unsigned page_ops(struct api *api, enum op_kind kind)
{
    for (unsigned i = 0; i < api->pages; i++)
        api->ops[i] = (struct mb_map_op){
            .kind = kind == API_UNMAP     ? MB_UNMAP
                    : kind == API_ALIAS   ? MB_ALIAS
                    : kind == API_PROTECT ? MB_PROTECT
                                          : MB_MAP,
            .prot = kind == API_PROTECT ? MB_PROT_READ : MB_PROT_READ_WRITE,
            .va = (char *)(kind == API_ALIAS ? api->second : api->va) + i * api->page,
            .bytes = api->page,
            .mem = api->mem[api->turn % OBJECTS],
            .mem_offset = i * api->page,
            .src = (char *)api->va + i * api->page};
    for (unsigned i = api->pages; i > 1; i--) {
        unsigned j = (unsigned)(next_random(api) % i);
        uint64_t offset = api->ops[i - 1].mem_offset;
        const void *src = api->ops[i - 1].src;

        api->ops[i - 1].mem_offset = api->ops[j].mem_offset;
        api->ops[j].mem_offset = offset;
        api->ops[i - 1].src = api->ops[j].src;
        api->ops[j].src = src;
    }
    api->turn++;
    return api->pages;
}

static unsigned range_op(struct api *api, enum op_kind kind)
{
    uint64_t bytes = api->pages * api->page;

    api->ops[0] =
        (struct mb_map_op){.kind = kind == API_UNMAP     ? MB_UNMAP
                                   : kind == API_ALIAS   ? MB_ALIAS
                                   : kind == API_PROTECT ? MB_PROTECT
                                                         : MB_MAP,
                           .prot = kind == API_PROTECT ? MB_PROT_READ : MB_PROT_READ_WRITE,
                           .va = kind == API_ALIAS ? api->second : api->va,
                           .bytes = bytes,
                           .mem = api->mem[api->turn++ % OBJECTS],
                           .src = api->va};
    return 1;
}

/* A remap is an unmap and a map in one batch. */
static unsigned operations(struct api *api, enum op_kind kind, bool by_page)
{
    unsigned count = by_page ? page_ops(api, kind) : range_op(api, kind);

    if (kind != API_REMAP)
        return count;
    memmove(api->ops + 1, api->ops, count * sizeof(*api->ops));
    api->ops[0] = (struct mb_map_op){
        .kind = MB_UNMAP, .va = api->va, .bytes = (uint64_t)api->pages * api->page};
    return count + 1;
}

static enum mb_err clear(struct api *api, void *va, bool *mapped)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = va, .bytes = (uint64_t)api->pages * api->page};
    enum mb_err err = *mapped ? submit(api, &op, 1) : MB_OK;

    *mapped = *mapped && err;
    return err;
}

/* The state before a timed operation. */
static enum mb_err before(struct api *api, enum op_kind kind)
{
    struct mb_map_op map = {.kind = MB_MAP,
                            .prot = MB_PROT_READ_WRITE,
                            .va = api->va,
                            .bytes = (uint64_t)api->pages * api->page,
                            .mem = api->mem[api->turn++ % OBJECTS]};
    enum mb_err err = clear(api, api->second, &api->aliased);

    if (!err)
        err = clear(api, api->va, &api->mapped);
    if (!err && kind != API_MAP) {
        err = submit(api, &map, 1);
        api->mapped = !err;
    }
    return err ? err : mb_stream_sync(api->dev, api->stream);
}

static enum mb_err bench_mapping(struct api *api, const char *name, enum op_kind kind, bool by_page)
{
    unsigned taken = 0;
    uint64_t started = cli_now_ns();
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < api->samples + 3; i++) {
        unsigned count;
        uint64_t start, back;

        err = before(api, kind);
        count = operations(api, kind, by_page);
        start = mb_clock_ns(api->dev);
        if (!err)
            err = submit(api, api->ops, count);
        back = mb_clock_ns(api->dev);
        api->mapped = err ? api->mapped : kind != API_UNMAP;
        api->aliased = !err && kind == API_ALIAS;
        if (!err)
            err = mb_stream_sync(api->dev, api->stream);
        if (taken >= 5 && !api->modelled && cli_now_ns() - started > ROW_LIMIT_NS)
            break;
        if (i < 3)
            continue;
        api->host[taken] = (double)(back - start) / 1e3;
        api->complete[taken++] = (double)(mb_clock_ns(api->dev) - start) / 1e3;
    }
    if (!err)
        tell(api, name, by_page ? "api, page by page" : "api, one range",
             (uint64_t)api->pages * api->page, taken);
    return err;
}

/* ------------------------------------------------------------ one size */

static void drop(struct api *api)
{
    uint64_t bytes = (uint64_t)api->pages * api->page;

    (void)clear(api, api->second, &api->aliased);
    (void)clear(api, api->va, &api->mapped);
    (void)mb_stream_sync(api->dev, api->stream);
    if (api->va)
        (void)mb_mem_unreserve(api->dev, api->va, bytes);
    if (api->second)
        (void)mb_mem_unreserve(api->dev, api->second, bytes);
    for (unsigned i = 0; i < OBJECTS; i++)
        if (api->mem[i])
            (void)mb_mem_release(api->dev, api->mem[i]);
    free(api->ops);
    memset(api->mem, 0, sizeof(api->mem));
    api->va = api->second = NULL;
    api->ops = NULL;
    api->mapped = api->aliased = false;
}

static enum mb_err make(struct api *api, uint64_t bytes)
{
    enum mb_err err;

    api->pages = (unsigned)(bytes / api->page);
    api->ops = calloc(api->pages + 1, sizeof(*api->ops));
    if (!api->ops)
        return MB_ERR_HOST_MEMORY;
    err = mb_mem_reserve(api->dev, bytes, 0, &api->va);
    if (!err)
        err = mb_mem_reserve(api->dev, bytes, 0, &api->second);
    for (unsigned i = 0; !err && i < OBJECTS; i++)
        err = mb_mem_create(api->dev, bytes, &api->mem[i]);
    return err;
}

static enum mb_err mappings(struct api *api, uint64_t bytes)
{
    static const char *const names[] = {"map", "unmap", "remap", "alias", "protect"};
    enum mb_err err = make(api, bytes);

    for (unsigned kind = 0; !err && kind < sizeof(names) / sizeof(names[0]); kind++) {
        if (strcmp(names[kind], api->options->name) != 0)
            continue;
        err = bench_mapping(api, names[kind], (enum op_kind)kind, false);
        if (!err && kind != API_UNMAP && kind != API_PROTECT && api->pages > 1 &&
            api->pages <= PAGE_OPS_MAX)
            err = bench_mapping(api, names[kind], (enum op_kind)kind, true);
    }
    drop(api);
    return err;
}

/* ------------------------------------------------------------ malloc */

/* What is warm costs the host only, so its time is real on every backend. */
static enum mb_err allocations(struct api *api, uint64_t bytes, bool async)
{
    const char *how = async ? "mb_malloc_async" : "mb_malloc";
    double *frees = calloc(api->samples, sizeof(*frees));
    enum mb_err err = frees ? MB_OK : MB_ERR_HOST_MEMORY;

    for (unsigned i = 0; !err && i < api->samples + 2; i++) {
        uint64_t start = cli_now_ns(), between;
        void *p;

        err = async ? mb_malloc_async(api->dev, bytes, api->stream, &p)
                    : mb_malloc(api->dev, bytes, &p);
        between = cli_now_ns();
        if (err)
            break;
        if (i >= 2)
            api->host[i - 2] = (double)(between - start) / 1e3;
        between = cli_now_ns();
        err = async ? mb_free_async(api->dev, p, api->stream) : mb_free(api->dev, p);
        if (i >= 2)
            frees[i - 2] = (double)(cli_now_ns() - between) / 1e3;
    }
    if (!err) {
        memcpy(api->complete, api->host, sizeof(api->host));
        tell(api, "alloc", how, bytes, api->samples);
        memcpy(api->host, frees, api->samples * sizeof(*frees));
        memcpy(api->complete, frees, api->samples * sizeof(*frees));
        tell(api, "free", async ? "mb_free_async" : "mb_free", bytes, api->samples);
    }
    free(frees);
    return err;
}

/* ------------------------------------------------------------ running */

static enum mb_err run_size(struct api *api, uint64_t bytes)
{
    enum mb_err err;

    if (strcmp(api->options->name, "alloc") != 0)
        return mappings(api, bytes);
    api->modelled = false;
    err = allocations(api, bytes, false);
    return err ? err : allocations(api, bytes, true);
}

enum mb_err bench_api(unsigned device, const char *config, const struct mb_bench_options *options,
                      mb_bench_callback callback, void *user)
{
    static const uint64_t usual[] = {2ull << 20,   16ull << 20, 128ull << 20,
                                     512ull << 20, 2ull << 30,  4ull << 30};
    const uint64_t *sizes = options->sizes ? options->sizes : usual;
    unsigned count = options->sizes ? options->size_count : sizeof(usual) / sizeof(usual[0]);
    struct api *api = calloc(1, sizeof(*api));
    enum mb_err err;

    if (!api)
        return MB_ERR_HOST_MEMORY;
    *api = (struct api){
        .options = options, .callback = callback, .user = user, .random = options->seed};
    err = mb_open((int)device, config, &api->dev);
    if (err)
        goto undo;
    api->modelled = strcmp(mb_device_backend(api->dev), "sim") == 0;
    api->page = mb_page_bytes(api->dev);
    api->samples = options->samples ? options->samples : api->modelled ? 20 : 200;
    api->samples = api->samples < SAMPLES_MAX ? api->samples : SAMPLES_MAX;
    err = mb_stream_create(api->dev, &api->stream);
    for (unsigned i = 0; !err && i < count; i++)
        err = run_size(api, sizes[i]);
    mb_close(api->dev);
undo:
    free(api);
    return err;
}
