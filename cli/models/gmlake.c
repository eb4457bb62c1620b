/* SPDX-License-Identifier: MIT */
/*
 * gmlake.c - GMLake's stitching of 2 MiB pages in PyTorch's cache: policy gmlake.
 *
 * Requests above 1 MiB are rounded to whole pages of 2 MiB. Memory comes as primitive blocks: pages
 * at consecutive addresses, split and merged like PyTorch's. A request takes the smallest primitive
 * that fits; else the smallest stitched block from before whose pages are all free and that is not
 * too large; else, from frag_limit on, the pages of several primitives, largest first, are mapped
 * once more at new addresses: a stitched block. The same page may be part of many stitched blocks,
 * of which one at a time is in use. Smaller requests are PyTorch's small pool.
 *
 * Left out: recorded streams. A freed block is free at once, also where another stream was
 * recorded.
 *
 * A primitive is wholly free, or live, or used through one stitched block (`waiting`): taking a
 * part of one splits it.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#define PAGE ((uint64_t)2 << 20)
#define SMALL_MAX ((uint64_t)1 << 20)
#define MIN_BLOCK ((uint64_t)512)
#define MIN_LARGE ((uint64_t)10 << 20)
#define LARGE_SEGMENT ((uint64_t)20 << 20)

enum { LARGE, SMALL, STITCHED };

struct lake_block;

/* 2 MiB of the device. Owner: its segment. */
struct lake_page {
    struct lake_block *owner; /* the primitive it is part of */
    struct lake_block **in;   /* the stitched blocks that show it; owned */
    uint32_t count, capacity; /* of in */
    bool used;
};

/* What one call of the driver gave: the pages of a run of primitives. */
struct model_segment {
    struct model_segment *next;
    uint64_t address;
    size_t count;
    struct lake_page pages[];
};

struct lake_block {
    struct model_block base;  /* pool STITCHED: bytes is what is used while live, else the pages' */
    struct lake_page **pages; /* of a stitched block; owned */
    size_t count, free_pages; /* of pages */
    struct lake_block *older, *newer; /* list of the stitched blocks */
};

struct lake {
    struct model base;
    struct model_set free[3]; /* LARGE: free primitives; SMALL; STITCHED: all pages free */
    struct model_segment *segments;
    struct lake_block *newest;
    uint64_t stitched_bytes; /* address space of the stitched blocks */

    /* Options. */
    uint64_t frag_limit;
    uint64_t reuse_limit; /* times the request */
    uint64_t auto_gc;     /* bytes of stitched address space that start a collection */
    uint64_t defrag_level;
};

static struct lake *lake_of(struct model *model)
{
    return (struct lake *)(void *)model;
}

static struct lake_block *lake_block(struct model_block *block)
{
    return (struct lake_block *)(void *)block;
}

static struct lake_page *pages_of(const struct model_block *primitive, size_t *count)
{
    struct model_segment *segment = primitive->segment;

    *count = (size_t)(primitive->bytes / PAGE);
    return &segment->pages[(primitive->address - segment->address) / PAGE];
}

static void own_pages(struct model_block *primitive)
{
    size_t count;
    struct lake_page *pages = pages_of(primitive, &count);

    for (size_t i = 0; i < count; i++)
        pages[i].owner = lake_block(primitive);
}

/* ------------------------------------------------------------------ pages in use */

static void use_page(struct lake_page *page)
{
    page->used = true;
    for (uint32_t i = 0; i < page->count; i++) {
        struct lake_block *stitched = page->in[i];

        stitched->free_pages--;
        if (stitched->base.set)
            model_set_remove(&stitched->base);
    }
}

static void free_page(struct lake *lake, struct lake_page *page)
{
    page->used = false;
    for (uint32_t i = 0; i < page->count; i++) {
        struct lake_block *stitched = page->in[i];

        stitched->free_pages++;
        /* A live one has a page in use, so it does not come here. */
        if (stitched->free_pages == stitched->count)
            model_set_insert(&lake->free[STITCHED], &stitched->base);
    }
}

static void use_primitive(struct model_block *primitive)
{
    size_t count;
    struct lake_page *pages = pages_of(primitive, &count);

    for (size_t i = 0; i < count; i++)
        use_page(&pages[i]);
}

static bool unused(const struct model_block *block)
{
    return block && !block->live && !block->waiting;
}

/* A primitive or small block, in no set and in no use, becomes free. */
static void insert(struct lake *lake, struct model_block *block)
{
    if (unused(block->next)) {
        model_set_remove(block->next);
        model_block_merge_next(&lake->base, block);
    }
    if (unused(block->prev)) {
        block = block->prev;
        model_set_remove(block);
        model_block_merge_next(&lake->base, block);
    }
    if (block->pool == LARGE)
        own_pages(block);
    model_set_insert(&lake->free[block->pool], block);
}

/* Cuts a primitive in no set and puts the rest, free, into its set; *block keeps `bytes`. */
static enum model_status keep(struct lake *lake, struct model_block *block, uint64_t bytes)
{
    struct model_block *rest = model_block_split(&lake->base, block, bytes);

    if (!rest)
        return MODEL_HOST_MEMORY;
    if (rest->pool == LARGE)
        own_pages(rest);
    model_set_insert(&lake->free[rest->pool], rest);
    return MODEL_OK;
}

/* ------------------------------------------------------------------ stitched blocks */

static bool show_page(struct lake_page *page, struct lake_block *stitched)
{
    if (page->count == page->capacity) {
        uint32_t capacity = page->capacity ? 2 * page->capacity : 4;
        struct lake_block **grown = realloc(page->in, capacity * sizeof(struct lake_block *));

        if (!grown)
            return false;
        page->in = grown;
        page->capacity = capacity;
    }
    page->in[page->count++] = stitched;
    return true;
}

static void hide_page(struct lake_page *page, const struct lake_block *stitched)
{
    for (uint32_t i = 0; i < page->count; i++) {
        if (page->in[i] == stitched) {
            page->in[i] = page->in[--page->count];
            return;
        }
    }
}

static void drop_stitched(struct lake *lake, struct lake_block *stitched)
{
    struct model *m = &lake->base;

    if (stitched->base.set)
        model_set_remove(&stitched->base);
    for (size_t i = 0; i < stitched->count; i++)
        hide_page(stitched->pages[i], stitched);
    if (stitched->newer)
        stitched->newer->older = stitched->older;
    else
        lake->newest = stitched->older;
    if (stitched->older)
        stitched->older->newer = stitched->newer;
    lake->stitched_bytes -= stitched->count * PAGE;
    m->stats.driver_unmaps += stitched->count;
    m->stats.driver_reserves++;
    free(stitched->pages);
    stitched->pages = NULL;
    model_block_delete(m, &stitched->base);
}

/* Gives up the addresses of the stitched blocks that are not live; their pages stay. */
static void collect_stitched(struct lake *lake)
{
    struct lake_block *older;

    for (struct lake_block *s = lake->newest; s; s = older) {
        older = s->older;
        if (!s->base.live)
            drop_stitched(lake, s);
    }
}

/* A stitched block, live to be, of the pages of the primitives in the list `first`. */
static enum model_status make_stitched(struct lake *lake, struct model_block *first, uint64_t bytes,
                                       uint32_t stream, struct model_block **out)
{
    struct model *m = &lake->base;
    struct model_block *block = model_block_new(m);
    struct lake_block *stitched = block ? lake_block(block) : NULL;

    if (!block)
        return MODEL_HOST_MEMORY;
    block->pool = STITCHED;
    block->bytes = bytes;
    block->stream = stream;
    block->address = model_driver_address(m, bytes);
    stitched->older = lake->newest;
    if (lake->newest)
        lake->newest->newer = stitched;
    lake->newest = stitched;
    lake->stitched_bytes += bytes;
    stitched->pages = malloc((size_t)(bytes / PAGE) * sizeof(struct lake_page *));
    if (!stitched->pages)
        return MODEL_HOST_MEMORY;
    for (struct model_block *b = first; b; b = b->queued) {
        size_t count;
        struct lake_page *pages = pages_of(b, &count);

        for (size_t i = 0; i < count; i++) {
            if (!show_page(&pages[i], stitched))
                return MODEL_HOST_MEMORY;
            stitched->pages[stitched->count++] = &pages[i];
        }
    }
    m->stats.stitches++;
    m->stats.driver_reserves++;
    m->stats.driver_maps += stitched->count;
    m->stats.driver_access++;
    *out = block;
    return MODEL_OK;
}

/* The stream's largest primitives that together hold `bytes`, as a list; NULL if all do not. */
static struct model_block *gather(struct lake *lake, uint64_t bytes, uint32_t stream,
                                  uint64_t *total)
{
    const struct model_set *set = &lake->free[LARGE];
    struct model_block key = {.bytes = UINT64_MAX, .stream = stream, .address = UINT64_MAX};
    struct model_block *first = NULL;
    struct model_block *last = NULL;

    *total = 0;
    while (*total < bytes) {
        struct model_block *b = model_set_below(set, last ? last : &key);

        lake->base.stats.search_steps++;
        if (!b || b->stream != stream)
            return NULL;
        b->queued = NULL;
        if (last)
            last->queued = b;
        else
            first = b;
        last = b;
        *total += b->bytes;
    }
    return first;
}

/* `time`: how desperate the request is, from 0 to 2. */
static enum model_status stitch(struct lake *lake, uint64_t bytes, uint32_t stream, unsigned time,
                                struct model_block **out)
{
    struct model_block *first;
    uint64_t total;

    if (bytes < lake->frag_limit || time < lake->defrag_level)
        return MODEL_NO_MEMORY;
    lake->base.stats.searches++;
    first = gather(lake, bytes, stream, &total);
    if (!first)
        return MODEL_NO_MEMORY;
    for (struct model_block *b = first; b; b = b->queued) {
        model_set_remove(b);
        if (!b->queued && total > bytes)
            MODEL_TRY(keep(lake, b, b->bytes - (total - bytes)));
        b->waiting = true;
        use_primitive(b);
    }
    if (lake->stitched_bytes > lake->auto_gc)
        collect_stitched(lake);
    return make_stitched(lake, first, bytes, stream, out);
}

/*
 * Splits the primitive, in no set, where used pages meet free ones; the free parts go to their set.
 */
static enum model_status part(struct lake *lake, struct model_block *primitive)
{
    for (;;) {
        size_t count;
        struct lake_page *pages = pages_of(primitive, &count);
        struct model_block *rest = NULL;
        size_t same = 1;

        while (same < count && pages[same].used == pages[0].used)
            same++;
        if (same < count) {
            rest = model_block_split(&lake->base, primitive, same * PAGE);
            if (!rest)
                return MODEL_HOST_MEMORY;
            own_pages(rest);
        }
        primitive->waiting = pages[0].used;
        if (!pages[0].used)
            model_set_insert(&lake->free[LARGE], primitive);
        if (!rest)
            return MODEL_OK;
        primitive = rest;
    }
}

/* A stitched block from before whose pages are all free. */
static enum model_status reuse(struct lake *lake, uint64_t bytes, uint32_t stream,
                               struct model_block **out)
{
    struct model_block key = {.bytes = bytes, .stream = stream};
    struct model_block *block = model_set_find(&lake->free[STITCHED], &key);
    struct lake_block *stitched = block ? lake_block(block) : NULL;
    size_t wanted = (size_t)(bytes / PAGE);

    lake->base.stats.searches++;
    if (!block || block->stream != stream || block->bytes / lake->reuse_limit > bytes)
        return MODEL_NO_MEMORY;
    model_set_remove(block);
    block->bytes = bytes;
    for (size_t i = 0; i < wanted; i++)
        use_page(stitched->pages[i]);
    for (size_t i = 0; i < wanted; i++) {
        struct model_block *primitive = &stitched->pages[i]->owner->base;

        if (!primitive->set)
            continue; /* has had its turn */
        model_set_remove(primitive);
        MODEL_TRY(part(lake, primitive));
    }
    *out = block;
    return MODEL_OK;
}

static void free_stitched(struct lake *lake, struct lake_block *stitched)
{
    size_t used = (size_t)(stitched->base.bytes / PAGE);

    stitched->base.bytes = stitched->count * PAGE;
    for (size_t i = 0; i < used; i++)
        free_page(lake, stitched->pages[i]);
    for (size_t i = 0; i < used; i++) {
        struct model_block *primitive = &stitched->pages[i]->owner->base;

        if (!primitive->waiting)
            continue;
        primitive->waiting = false;
        insert(lake, primitive);
    }
}

/* ------------------------------------------------------------------ memory of the driver */

static enum model_status add_segment(struct lake *lake, uint64_t bytes, struct model_block *block)
{
    size_t count = (size_t)(bytes / PAGE);
    struct model *m = &lake->base;
    struct model_segment *segment = calloc(1, sizeof(*segment) + count * sizeof(struct lake_page));

    if (!segment)
        return MODEL_HOST_MEMORY;
    segment->address = block->address;
    segment->count = count;
    segment->next = lake->segments;
    lake->segments = segment;
    block->segment = segment;
    own_pages(block);
    m->stats.driver_reserves++;
    m->stats.driver_allocs += count;
    m->stats.driver_maps += count;
    m->stats.driver_access++;
    return MODEL_OK;
}

static uint64_t segment_bytes(uint64_t bytes)
{
    if (bytes <= SMALL_MAX)
        return PAGE;
    return bytes < MIN_LARGE ? LARGE_SEGMENT : model_round(bytes, PAGE);
}

static enum model_status grow(struct lake *lake, uint64_t bytes, uint32_t stream,
                              struct model_block **out)
{
    struct model *m = &lake->base;
    uint64_t take = segment_bytes(bytes);
    struct model_block *block;

    if (!model_driver_fits(m, take))
        return MODEL_NO_MEMORY;
    block = model_block_new(m);
    if (!block)
        return MODEL_HOST_MEMORY;
    block->address = model_driver_address(m, take);
    block->bytes = take;
    block->stream = stream;
    block->pool = bytes <= SMALL_MAX ? SMALL : LARGE;
    block->mapped = true;
    if (block->pool == LARGE)
        MODEL_TRY(add_segment(lake, take, block));
    else
        m->stats.driver_allocs++;
    model_driver_take(m, take, stream);
    *out = block;
    return MODEL_OK;
}

static void free_segment(struct lake *lake, struct model_segment *segment)
{
    struct model_segment **link = &lake->segments;

    while (*link != segment)
        link = &(*link)->next;
    *link = segment->next;
    for (size_t i = 0; i < segment->count; i++)
        free(segment->pages[i].in);
    free(segment);
}

/* Whether a live stitched block shows a page of the primitive, used or not: then it cannot go. */
static bool is_shown(const struct model_block *primitive)
{
    size_t count;
    const struct lake_page *pages = pages_of(primitive, &count);

    for (size_t i = 0; i < count; i++)
        if (pages[i].count)
            return true;
    return false;
}

/* The block is a whole segment, free. */
static void release(struct lake *lake, struct model_block *block)
{
    struct model *m = &lake->base;
    size_t pages = (size_t)(block->bytes / PAGE);

    model_set_remove(block);
    m->stats.waits++;
    m->stats.driver_frees += block->pool == LARGE ? pages : 1;
    if (block->pool == LARGE) {
        m->stats.driver_unmaps += pages;
        m->stats.driver_reserves++;
        free_segment(lake, block->segment);
    }
    model_driver_give(m, block->bytes, block->stream);
    model_block_delete(m, block);
}

static void release_all(struct lake *lake)
{
    struct model_block *next;

    collect_stitched(lake);
    for (unsigned pool = LARGE; pool <= SMALL; pool++) {
        for (struct model_block *b = model_set_first(&lake->free[pool]); b; b = next) {
            next = model_set_next(b);
            if (!b->prev && !b->next && (pool == SMALL || !is_shown(b)))
                release(lake, b);
        }
    }
}

/* ------------------------------------------------------------------ the policy */

static struct model_block *take_free(struct lake *lake, uint64_t bytes, uint32_t stream)
{
    struct model_set *set = &lake->free[bytes <= SMALL_MAX ? SMALL : LARGE];
    struct model_block key = {.bytes = bytes, .stream = stream};
    struct model_block *block = model_set_find(set, &key);

    lake->base.stats.searches++;
    if (!block || block->stream != stream)
        return NULL;
    model_set_remove(block);
    return block;
}

/* A primitive or small block of at least `bytes`, or a stitched one of just as many. */
static enum model_status obtain(struct lake *lake, uint64_t bytes, uint32_t stream,
                                struct model_block **out)
{
    bool large = bytes > SMALL_MAX;
    enum model_status status = MODEL_NO_MEMORY;

    *out = take_free(lake, bytes, stream);
    if (*out)
        return MODEL_OK;
    if (large)
        status = reuse(lake, bytes, stream, out);
    for (unsigned time = 0; time <= 2 && status == MODEL_NO_MEMORY; time++) {
        if (large)
            status = stitch(lake, bytes, stream, time, out);
        if (status == MODEL_NO_MEMORY && time == 1) {
            release_all(lake);
            lake->base.stats.retries++;
        }
        if (status == MODEL_NO_MEMORY && time < 2)
            status = grow(lake, bytes, stream, out);
    }
    return status;
}

static enum model_status lake_alloc(struct model *model, uint64_t bytes, uint32_t stream,
                                    struct model_block **out)
{
    struct lake *lake = lake_of(model);
    uint64_t rounded = model_round(bytes, MIN_BLOCK);
    struct model_block *block;

    if (rounded > SMALL_MAX)
        rounded = model_round(rounded, PAGE);
    MODEL_TRY(obtain(lake, rounded, stream, &block));
    if (block->bytes > rounded)
        MODEL_TRY(keep(lake, block, rounded));
    if (block->pool == LARGE)
        use_primitive(block);
    *out = block;
    return MODEL_OK;
}

static enum model_status lake_free(struct model *model, struct model_block *block, uint32_t stream)
{
    struct lake *lake = lake_of(model);
    size_t count;
    struct lake_page *pages;

    (void)stream;
    block->shared = false;
    if (block->pool == STITCHED) {
        free_stitched(lake, lake_block(block));
        return MODEL_OK;
    }
    if (block->pool == LARGE) {
        pages = pages_of(block, &count);
        for (size_t i = 0; i < count; i++)
            free_page(lake, &pages[i]);
    }
    insert(lake, block);
    return MODEL_OK;
}

static enum model_status lake_trim(struct model *model)
{
    release_all(lake_of(model));
    return MODEL_OK;
}

static bool check_segments(const struct lake *lake, char *problem, size_t size)
{
    for (const struct model_segment *segment = lake->segments; segment; segment = segment->next) {
        for (size_t i = 0; i < segment->count; i++) {
            const struct lake_page *page = &segment->pages[i];
            const struct model_block *owner = &page->owner->base;

            if (page->used == unused(owner) || (owner->set != NULL) == page->used)
                return model_broken(problem, size, "a page and its primitive differ about use");
            if (owner->segment != segment || segment->address + i * PAGE < owner->address ||
                segment->address + i * PAGE >= owner->address + owner->bytes)
                return model_broken(problem, size, "a page is outside of its primitive");
        }
    }
    return true;
}

static bool check_stitched(const struct lake *lake, char *problem, size_t size)
{
    for (const struct lake_block *s = lake->newest; s; s = s->older) {
        size_t free_pages = 0;

        for (size_t i = 0; i < s->count; i++)
            free_pages += !s->pages[i]->used;
        if (free_pages != s->free_pages)
            return model_broken(problem, size, "a stitched block counts its free pages wrongly");
        if ((s->base.set != NULL) != (!s->base.live && free_pages == s->count))
            return model_broken(problem, size, "a stitched block is wrongly in or out of its set");
    }
    return true;
}

static bool lake_check(const struct model *model, char *problem, size_t size)
{
    const struct lake *lake = (const void *)model;

    for (unsigned pool = LARGE; pool <= SMALL; pool++) {
        for (struct model_block *b = model_set_first(&lake->free[pool]); b; b = model_set_next(b)) {
            const struct model_block *first = b;

            while (first->prev)
                first = first->prev;
            if (!model_check_chain(first, problem, size))
                return false;
        }
    }
    if (model->stats.granted_bytes + lake->free[LARGE].bytes + lake->free[SMALL].bytes !=
        model->stats.reserved_bytes)
        return model_broken(problem, size, "granted + free is not reserved");
    return check_segments(lake, problem, size) && check_stitched(lake, problem, size);
}

static void lake_close(struct model *model)
{
    struct lake *lake = lake_of(model);

    while (lake->segments)
        free_segment(lake, lake->segments);
    for (struct lake_block *s = lake->newest; s; s = s->older)
        free(s->pages);
}

static void lake_defaults(struct model *model)
{
    struct lake *lake = lake_of(model);

    for (unsigned pool = LARGE; pool <= STITCHED; pool++)
        lake->free[pool].order = model_by_size;
    lake->frag_limit = 512 * MODEL_MIB;
    lake->reuse_limit = 10;
    lake->auto_gc = 1000 * 1024 * MODEL_MIB;
}

static bool lake_configure(struct model *model, char *error, size_t error_size)
{
    const struct lake *lake = lake_of(model);

    if (!lake->reuse_limit || lake->frag_limit < PAGE || lake->defrag_level > 2)
        return model_broken(error, error_size,
                            "reuse_limit must be 1 or more, frag_limit 2MiB or more, "
                            "defrag_level 0, 1 or 2");
    return true;
}

static const struct model_option lake_options[] = {
    {"frag_limit", MODEL_BYTES, offsetof(struct lake, frag_limit)},
    {"reuse_limit", MODEL_NUMBER, offsetof(struct lake, reuse_limit)},
    {"auto_gc", MODEL_BYTES, offsetof(struct lake, auto_gc)},
    {"defrag_level", MODEL_NUMBER, offsetof(struct lake, defrag_level)},
    {.name = NULL},
};

const struct model_ops model_gmlake = {
    .info = {.name = "gmlake",
             .summary = "GMLake's stitching in PyTorch's cache, default settings",
             .options = "frag_limit:BYTES (512MiB), reuse_limit:TIMES (10), "
                        "auto_gc:BYTES (1000GiB), defrag_level:0..2 (0)"},
    .size = sizeof(struct lake),
    .block_size = sizeof(struct lake_block),
    .options = lake_options,
    .defaults = lake_defaults,
    .configure = lake_configure,
    .alloc = lake_alloc,
    .free = lake_free,
    .trim = lake_trim,
    .check = lake_check,
    .close = lake_close,
};
