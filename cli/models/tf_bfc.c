/* SPDX-License-Identifier: MIT */
/*
 * tf_bfc.c - TensorFlow's «best fit with coalescing» allocator: policy tf-bfc.
 *
 * Memory comes from the driver in regions that double in size (allow_growth) or as one region of
 * all the memory. Free chunks lie in bins by powers of two; a request takes the smallest chunk that
 * fits, from the lowest bin that has one, and cuts it only if half of it or 128 MiB would be
 * wasted.
 *
 * Left out: TensorFlow gives a whole GPU one allocator for one compute stream, so streams are not
 * told apart; freed chunks that wait for other streams' counters (timestamps) are not modelled.
 */
#include "internal.h"

#define BFC_MIN_CHUNK ((uint64_t)256)
#define BFC_FIRST_REGION ((uint64_t)2 << 20)
#define BFC_MAX_WASTE ((uint64_t)128 << 20)

enum {
    BFC_BINS = 21,
};

struct bfc {
    struct model base;
    struct model_set bins[BFC_BINS];
    uint64_t next_region_bytes;

    /* Options. */
    bool allow_growth;
    bool garbage_collection;
};

static struct bfc *bfc_of(struct model *model)
{
    return (struct bfc *)(void *)model;
}

/* Bin b holds chunks of 256 << b bytes up to, not including, twice that; the last one all above. */
static unsigned bin_of(uint64_t bytes)
{
    unsigned bin = 63 - (unsigned)__builtin_clzll(bytes / BFC_MIN_CHUNK);

    return bin < BFC_BINS ? bin : BFC_BINS - 1;
}

static void insert(struct bfc *bfc, struct model_block *chunk)
{
    if (chunk->next && !chunk->next->live) {
        model_set_remove(chunk->next);
        model_block_merge_next(&bfc->base, chunk);
    }
    if (chunk->prev && !chunk->prev->live) {
        chunk = chunk->prev;
        model_set_remove(chunk);
        model_block_merge_next(&bfc->base, chunk);
    }
    model_set_insert(&bfc->bins[bin_of(chunk->bytes)], chunk);
}

static struct model_block *take_free(struct bfc *bfc, uint64_t bytes)
{
    struct model_block key = {.bytes = bytes};

    bfc->base.stats.searches++;
    for (unsigned bin = bin_of(bytes); bin < BFC_BINS; bin++) {
        struct model_block *chunk = model_set_find(&bfc->bins[bin], &key);

        bfc->base.stats.search_steps++;
        if (chunk) {
            model_set_remove(chunk);
            return chunk;
        }
    }
    return NULL;
}

/* One more region, of at least `bytes`. */
static enum model_status extend(struct bfc *bfc, uint64_t bytes)
{
    struct model *m = &bfc->base;
    uint64_t available = m->limit_bytes - m->stats.reserved_bytes;
    uint64_t take;
    struct model_block *chunk;
    bool raised = false;

    available -= available % BFC_MIN_CHUNK;
    if (bytes > available)
        return MODEL_NO_MEMORY;
    while (bytes > bfc->next_region_bytes) {
        bfc->next_region_bytes *= 2;
        raised = true;
    }
    take = bfc->next_region_bytes < available ? bfc->next_region_bytes : available;
    if (!raised)
        bfc->next_region_bytes *= 2;
    chunk = model_block_new(m);
    if (!chunk)
        return MODEL_HOST_MEMORY;
    chunk->bytes = take;
    chunk->address = model_driver_address(m, take);
    chunk->mapped = true;
    m->stats.driver_allocs++;
    model_driver_take(m, take, 0);
    insert(bfc, chunk);
    return MODEL_OK;
}

/* Regions without a live chunk go back to the driver; returns their bytes. */
static uint64_t release_regions(struct bfc *bfc)
{
    struct model *m = &bfc->base;
    uint64_t released = 0;

    for (unsigned bin = 0; bin < BFC_BINS; bin++) {
        struct model_block *next;

        for (struct model_block *chunk = model_set_first(&bfc->bins[bin]); chunk; chunk = next) {
            next = model_set_next(chunk);
            if (chunk->prev || chunk->next)
                continue;
            model_set_remove(chunk);
            m->stats.driver_frees++;
            m->stats.waits++; /* cudaFree waits for the device */
            model_driver_give(m, chunk->bytes, 0);
            released += chunk->bytes;
            model_block_delete(m, chunk);
        }
    }
    return released;
}

/* Bytes of the regions without a live chunk. */
static uint64_t releasable(const struct bfc *bfc)
{
    uint64_t bytes = 0;

    for (unsigned bin = 0; bin < BFC_BINS; bin++)
        for (struct model_block *c = model_set_first(&bfc->bins[bin]); c; c = model_set_next(c))
            if (!c->prev && !c->next)
                bytes += c->bytes;
    return bytes;
}

static enum model_status obtain(struct bfc *bfc, uint64_t bytes, struct model_block **out)
{
    struct model *m = &bfc->base;
    enum model_status status;
    uint64_t idle;

    *out = take_free(bfc, bytes);
    if (*out)
        return MODEL_OK;
    status = extend(bfc, bytes);
    if (status == MODEL_NO_MEMORY && bfc->garbage_collection) {
        idle = releasable(bfc);
        if (!idle || bytes > m->limit_bytes - m->stats.reserved_bytes + idle)
            return MODEL_NO_MEMORY;
        release_regions(bfc);
        m->stats.retries++;
        status = extend(bfc, bytes);
    }
    if (status)
        return status;
    *out = take_free(bfc, bytes);
    return *out ? MODEL_OK : MODEL_NO_MEMORY;
}

static enum model_status bfc_alloc(struct model *model, uint64_t bytes, uint32_t stream,
                                   struct model_block **out)
{
    struct bfc *bfc = bfc_of(model);
    uint64_t rounded = model_round(bytes, BFC_MIN_CHUNK);
    struct model_block *chunk;

    MODEL_TRY(obtain(bfc, rounded, &chunk));
    if (chunk->bytes >= 2 * rounded || chunk->bytes - rounded >= BFC_MAX_WASTE) {
        struct model_block *rest = model_block_split(model, chunk, rounded);

        if (!rest)
            return MODEL_HOST_MEMORY;
        model_set_insert(&bfc->bins[bin_of(rest->bytes)], rest);
    }
    chunk->stream = stream;
    *out = chunk;
    return MODEL_OK;
}

static enum model_status bfc_free(struct model *model, struct model_block *chunk, uint32_t stream)
{
    (void)stream;
    chunk->shared = false;
    insert(bfc_of(model), chunk);
    return MODEL_OK;
}

static bool bfc_check(const struct model *model, char *problem, size_t size)
{
    const struct bfc *bfc = (const void *)model;
    uint64_t free_bytes = 0;

    for (unsigned bin = 0; bin < BFC_BINS; bin++) {
        free_bytes += bfc->bins[bin].bytes;
        for (struct model_block *c = model_set_first(&bfc->bins[bin]); c; c = model_set_next(c)) {
            const struct model_block *first = c;

            while (first->prev)
                first = first->prev;
            if (!model_check_chain(first, problem, size))
                return false;
            if (bin_of(c->bytes) != bin)
                return model_broken(problem, size, "a chunk is in the wrong bin");
            if (c->next && !c->next->live)
                return model_broken(problem, size, "two free neighbours are not merged");
        }
    }
    if (model->stats.granted_bytes + free_bytes != model->stats.reserved_bytes)
        return model_broken(problem, size, "granted + free is not reserved");
    return true;
}

static void bfc_defaults(struct model *model)
{
    struct bfc *bfc = bfc_of(model);

    bfc->allow_growth = true;
    bfc->garbage_collection = true;
    for (unsigned bin = 0; bin < BFC_BINS; bin++)
        bfc->bins[bin].order = model_by_size_alone;
}

static bool bfc_configure(struct model *model, char *error, size_t error_size)
{
    struct bfc *bfc = bfc_of(model);
    uint64_t all = model->limit_bytes - model->limit_bytes % BFC_MIN_CHUNK;

    if (all < BFC_MIN_CHUNK)
        return model_broken(error, error_size, "the limit is below 256 bytes, the smallest chunk");
    bfc->next_region_bytes = bfc->allow_growth && all > BFC_FIRST_REGION ? BFC_FIRST_REGION : all;
    return true;
}

static const struct model_option bfc_options[] = {
    {"allow_growth", MODEL_SWITCH, offsetof(struct bfc, allow_growth)},
    {"garbage_collection", MODEL_SWITCH, offsetof(struct bfc, garbage_collection)},
    {.name = NULL},
};

const struct model_ops model_tf_bfc = {
    .info = {.name = "tf-bfc",
             .summary = "TensorFlow's best fit with coalescing, with allow_growth",
             .options = "allow_growth:on|off (on), garbage_collection:on|off (on)"},
    .size = sizeof(struct bfc),
    .block_size = sizeof(struct model_block),
    .options = bfc_options,
    .defaults = bfc_defaults,
    .configure = bfc_configure,
    .alloc = bfc_alloc,
    .free = bfc_free,
    .check = bfc_check,
};
