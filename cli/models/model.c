/* SPDX-License-Identifier: MIT */
/* model.c - opens a policy, turns events into its calls, and keeps the counters. */
#include "internal.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SLAB_BLOCKS = 256,
};
/* More address space below it than any trace can use up. */
#define MODEL_TOP ((uint64_t)1 << 62)

struct model_slab {
    struct model_slab *next;
    max_align_t blocks[];
};

static const struct model_ops *const policies[] = {
    &model_torch_caching, &model_torch_expandable, &model_tf_bfc,
    &model_cuda_async,    &model_gmlake,           NULL,
};

const struct model_info *const model_infos[] = {
    &model_torch_caching.info, &model_torch_expandable.info, &model_tf_bfc.info,
    &model_cuda_async.info,    &model_gmlake.info,           NULL,
};

/* ------------------------------------------------------------------ events */

static enum model_status make_room(struct model *model, uint32_t slot)
{
    size_t capacity = model->block_capacity ? model->block_capacity : 1024;
    struct model_block **grown;

    if (slot < model->block_capacity)
        return MODEL_OK;
    while (capacity <= slot)
        capacity *= 2;
    grown = realloc(model->blocks, capacity * sizeof(struct model_block *));
    if (!grown)
        return MODEL_HOST_MEMORY;
    memset(grown + model->block_capacity, 0,
           (capacity - model->block_capacity) * sizeof(struct model_block *));
    model->blocks = grown;
    model->block_capacity = capacity;
    return MODEL_OK;
}

enum model_status model_alloc(struct model *model, uint32_t slot, uint64_t bytes, uint32_t stream)
{
    struct model_block *block = NULL;
    enum model_status status;

    model->now++;
    MODEL_TRY(make_room(model, slot));
    assert(!model->blocks[slot]);
    status = model->ops->alloc(model, bytes ? bytes : 1, stream, &block);
    if (status == MODEL_NO_MEMORY)
        model->stats.failed_requests++;
    if (status)
        return status;
    model_grant(model, block, bytes);
    model->stats.allocs++;
    model->stats.live_blocks++;
    model->blocks[slot] = block;
    return MODEL_OK;
}

enum model_status model_free(struct model *model, uint32_t slot, uint32_t stream)
{
    struct model_block *block = slot < model->block_capacity ? model->blocks[slot] : NULL;

    model->now++;
    if (!block) {
        model->stats.unknown_frees++;
        return MODEL_OK;
    }
    model->blocks[slot] = NULL;
    model->stats.frees++;
    model->stats.live_blocks--;
    model_ungrant(model, block);
    return model->ops->free(model, block, stream);
}

void model_record_stream(struct model *model, uint32_t slot, uint32_t stream)
{
    struct model_block *block = slot < model->block_capacity ? model->blocks[slot] : NULL;

    model->now++;
    if (block && block->stream != stream)
        block->shared = true;
}

enum model_status model_wait(struct model *model, uint32_t stream, uint32_t other)
{
    model->now++;
    return model->ops->wait ? model->ops->wait(model, stream, other) : MODEL_OK;
}

enum model_status model_sync(struct model *model)
{
    model->now++;
    return model->ops->sync ? model->ops->sync(model) : MODEL_OK;
}

enum model_status model_trim(struct model *model)
{
    model->now++;
    return model->ops->trim ? model->ops->trim(model) : MODEL_OK;
}

enum model_status model_event(struct model *model, const struct trace_event *event)
{
    switch (event->op) {
    case TRACE_ALLOC:
        return model_alloc(model, event->slot, event->bytes, event->stream);
    case TRACE_FREE:
        if (!event->before_trace)
            return model_free(model, event->slot, event->stream);
        model->now++;
        model->stats.unknown_frees++;
        return MODEL_OK;
    case TRACE_RECORD_STREAM:
        model_record_stream(model, event->slot, event->stream);
        return MODEL_OK;
    case TRACE_WAIT:
        return model_wait(model, event->stream, event->other);
    default:
        return MODEL_OK;
    }
}

/* ------------------------------------------------------------------ counters */

void model_grant(struct model *model, struct model_block *block, uint64_t requested_bytes)
{
    struct model_stats *s = &model->stats;

    block->live = true;
    block->requested_bytes = requested_bytes;
    s->requested_bytes += requested_bytes;
    s->granted_bytes += block->bytes;
    if (s->requested_bytes > s->requested_peak_bytes)
        s->requested_peak_bytes = s->requested_bytes;
    if (s->granted_bytes > s->granted_peak_bytes)
        s->granted_peak_bytes = s->granted_bytes;
}

void model_ungrant(struct model *model, struct model_block *block)
{
    block->live = false;
    model->stats.requested_bytes -= block->requested_bytes;
    model->stats.granted_bytes -= block->bytes;
}

bool model_driver_fits(const struct model *model, uint64_t bytes)
{
    return bytes <= model->limit_bytes - model->stats.reserved_bytes;
}

void model_driver_take(struct model *model, uint64_t bytes, uint32_t stream)
{
    struct model_stats *s = &model->stats;

    s->reserved_bytes += bytes;
    if (s->reserved_bytes > s->reserved_peak_bytes)
        s->reserved_peak_bytes = s->reserved_bytes;
    if (model->observer)
        model->observer(model->observer_user, true, bytes, stream);
}

void model_driver_give(struct model *model, uint64_t bytes, uint32_t stream)
{
    assert(bytes <= model->stats.reserved_bytes);
    model->stats.reserved_bytes -= bytes;
    if (model->observer)
        model->observer(model->observer_user, false, bytes, stream);
}

uint64_t model_driver_address(struct model *model, uint64_t bytes)
{
    model->next_address -= model_round(bytes, 2 * MODEL_MIB);
    return model->next_address;
}

uint64_t model_driver_calls(const struct model_stats *s)
{
    return s->driver_allocs + s->driver_frees + s->driver_maps + s->driver_unmaps +
           s->driver_access + s->driver_reserves;
}

/* ------------------------------------------------------------------ opening and closing */

static void complain(char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void complain(char *error, size_t error_size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error, error_size, format, arguments);
    va_end(arguments);
}

static const struct model_ops *find_policy(const char *name, size_t length)
{
    for (size_t i = 0; policies[i]; i++)
        if (strlen(policies[i]->info.name) == length &&
            !memcmp(policies[i]->info.name, name, length))
            return policies[i];
    return NULL;
}

static enum model_status unknown_policy(const char *name, size_t length, char *error, size_t size)
{
    int used = snprintf(error, size, "there is no policy \"%.*s\"; there are", (int)length, name);

    for (size_t i = 0; policies[i] && used > 0 && (size_t)used < size; i++)
        used += snprintf(error + used, size - (size_t)used, "%s %s", i ? "," : "",
                         policies[i]->info.name);
    return MODEL_BAD_OPTIONS;
}

static bool parse_fraction(const char *text, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value >= 0 && value <= 1))
        return false;
    *out = value;
    return true;
}

/* A number, for bytes with one of the units KiB, MiB, GiB; "max" is UINT64_MAX. */
static bool parse_number(const char *text, bool bytes, uint64_t *out)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB"};
    char *end;
    unsigned long long value;

    if (bytes && !strcmp(text, "max")) {
        *out = UINT64_MAX;
        return true;
    }
    if (text[0] < '0' || text[0] > '9' || strlen(text) > 18)
        return false;
    value = strtoull(text, &end, 10);
    for (unsigned i = 0; i < (bytes ? 4 : 1); i++) {
        if (!strcmp(end, units[i]) && value <= UINT64_MAX >> (10 * i)) {
            *out = (uint64_t)value << (10 * i);
            return true;
        }
    }
    return false;
}

static const char *wanted(const struct model_option *option)
{
    switch (option->kind) {
    case MODEL_BYTES:
        return "bytes like 4096, 200MiB or max";
    case MODEL_FRACTION:
        return "a number from 0 to 1";
    case MODEL_NUMBER:
        return "a whole number";
    case MODEL_SWITCH:
        return "on or off";
    }
    return "";
}

static bool store(struct model *model, const struct model_option *option, const char *value)
{
    char *target = (char *)model + option->offset;

    switch (option->kind) {
    case MODEL_FRACTION:
        return parse_fraction(value, (double *)(void *)target);
    case MODEL_BYTES:
    case MODEL_NUMBER:
        return parse_number(value, option->kind == MODEL_BYTES, (uint64_t *)(void *)target);
    case MODEL_SWITCH:
        *(bool *)target = !strcmp(value, "on");
        return !strcmp(value, "on") || !strcmp(value, "off");
    }
    return false;
}

/* `text`: «key:value,key:value», is cut up; NULL: none. */
static enum model_status parse_options(struct model *model, char *text, char *error, size_t size)
{
    static const struct model_option none = {.name = NULL};
    const char *name = model->ops->info.name;
    uint64_t seen = 0; /* by option */

    for (char *pair = strsep(&text, ","); pair; pair = strsep(&text, ",")) {
        const struct model_option *first = model->ops->options ? model->ops->options : &none;
        const struct model_option *option = first;
        char *value = strchr(pair, ':');

        if (!*pair) {
            complain(error, size, "policy %s: an option is missing beside a comma", name);
            return MODEL_BAD_OPTIONS;
        }
        if (value)
            *value++ = '\0';
        while (option->name && strcmp(option->name, pair) != 0)
            option++;
        if (!option->name) {
            complain(error, size, "policy %s has no option \"%.40s\"; it has: %s", name, pair,
                     model->ops->info.options[0] ? model->ops->info.options : "none");
            return MODEL_BAD_OPTIONS;
        }
        if (!value || !store(model, option, value)) {
            complain(error, size, "option %s of policy %s is \"%.40s\"; expected %s", pair, name,
                     value ? value : "", wanted(option));
            return MODEL_BAD_OPTIONS;
        }
        if (seen & UINT64_C(1) << (option - first)) {
            complain(error, size, "policy %s: the option %s is given twice", name, pair);
            return MODEL_BAD_OPTIONS;
        }
        seen |= UINT64_C(1) << (option - first);
    }
    if (model->ops->configure && !model->ops->configure(model, error, size))
        return MODEL_BAD_OPTIONS;
    return MODEL_OK;
}

static enum model_status configure(struct model *model, const char *text, char *error, size_t size)
{
    char *copy = text ? strdup(text) : NULL;
    enum model_status status = MODEL_HOST_MEMORY;

    if (copy || !text)
        status = parse_options(model, copy, error, size);
    free(copy);
    if (status == MODEL_HOST_MEMORY)
        complain(error, size, "the host is out of memory");
    return status;
}

enum model_status model_open(const char *spec, uint64_t limit_bytes, struct model **out,
                             char *error, size_t error_size)
{
    size_t length = strcspn(spec, ",");
    const struct model_ops *ops = find_policy(spec, length);
    struct model *model;
    enum model_status status;

    if (!ops)
        return unknown_policy(spec, length, error, error_size);
    model = calloc(1, ops->size);
    if (!model) {
        complain(error, error_size, "the host is out of memory");
        return MODEL_HOST_MEMORY;
    }
    model->ops = ops;
    model->limit_bytes = limit_bytes ? limit_bytes : MODEL_DEVICE_BYTES;
    model->next_address = MODEL_TOP;
    ops->defaults(model);
    status = configure(model, spec[length] ? spec + length + 1 : NULL, error, error_size);
    if (status) {
        model_close(model);
        return status;
    }
    *out = model;
    return MODEL_OK;
}

void model_close(struct model *model)
{
    if (!model)
        return;
    if (model->ops->close)
        model->ops->close(model);
    while (model->slabs) {
        struct model_slab *slab = model->slabs;

        model->slabs = slab->next;
        free(slab);
    }
    free(model->blocks);
    free(model);
}

void model_observe(struct model *model, model_observer observer, void *user)
{
    model->observer = observer;
    model->observer_user = user;
}

const struct model_info *model_info(const struct model *model)
{
    return &model->ops->info;
}

const struct model_stats *model_stats(const struct model *model)
{
    return &model->stats;
}

uint64_t model_address(const struct model *model, uint32_t slot)
{
    return slot < model->block_capacity && model->blocks[slot] ? model->blocks[slot]->address : 0;
}

/* ------------------------------------------------------------------ blocks */

static uint32_t next_priority(struct model *model)
{
    uint64_t z = model->priorities += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(z >> 32);
}

static bool add_slab(struct model *model)
{
    size_t step = (size_t)model_round(model->ops->block_size, sizeof(max_align_t));
    struct model_slab *slab = malloc(sizeof(*slab) + SLAB_BLOCKS * step);

    if (!slab)
        return false;
    slab->next = model->slabs;
    model->slabs = slab;
    for (size_t i = 0; i < SLAB_BLOCKS; i++) {
        struct model_block *block = (void *)((char *)slab->blocks + i * step);

        block->right = model->unused;
        model->unused = block;
    }
    return true;
}

struct model_block *model_block_new(struct model *model)
{
    struct model_block *block;

    if (!model->unused && !add_slab(model))
        return NULL;
    block = model->unused;
    model->unused = block->right;
    memset(block, 0, model->ops->block_size);
    block->priority = next_priority(model);
    return block;
}

void model_block_delete(struct model *model, struct model_block *block)
{
    assert(!block->set);
    block->right = model->unused;
    model->unused = block;
}

struct model_block *model_block_after(struct model *model, struct model_block *block,
                                      uint64_t address, uint64_t bytes)
{
    struct model_block *added = model_block_new(model);

    if (!added)
        return NULL;
    added->address = address;
    added->bytes = bytes;
    added->stream = block->stream;
    added->stamp = block->stamp;
    added->pool = block->pool;
    added->mapped = block->mapped;
    added->segment = block->segment;
    added->prev = block;
    added->next = block->next;
    if (added->next)
        added->next->prev = added;
    block->next = added;
    return added;
}

struct model_block *model_block_split(struct model *model, struct model_block *block,
                                      uint64_t bytes)
{
    struct model_block *rest;

    assert(!block->set && bytes < block->bytes);
    rest = model_block_after(model, block, block->address + bytes, block->bytes - bytes);
    if (rest) {
        block->bytes = bytes;
        model->stats.splits++;
    }
    return rest;
}

void model_block_merge_next(struct model *model, struct model_block *block)
{
    struct model_block *next = block->next;

    assert(!block->set && !next->set && block->address + block->bytes == next->address);
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next)
        block->next->prev = block;
    model_block_delete(model, next);
    model->stats.merges++;
}

/* ------------------------------------------------------------------ checks */

bool model_broken(char *problem, size_t problem_size, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(problem, problem_size, format, arguments);
    va_end(arguments);
    return false;
}

bool model_check_chain(const struct model_block *first, char *problem, size_t problem_size)
{
    for (const struct model_block *b = first; b; b = b->next) {
        if (!b->bytes)
            return model_broken(problem, problem_size, "an empty block at %#lx",
                                (unsigned long)b->address);
        if (b->next && (b->next->prev != b || b->address + b->bytes != b->next->address))
            return model_broken(problem, problem_size, "a gap in the segment after block %#lx",
                                (unsigned long)b->address);
        if ((b->live || b->waiting) && b->set)
            return model_broken(problem, problem_size, "the used block %#lx is in a free set",
                                (unsigned long)b->address);
    }
    return true;
}

bool model_check(const struct model *model, char *problem, size_t problem_size)
{
    const struct model_stats *s = &model->stats;
    uint64_t requested = 0;
    uint64_t granted = 0;

    for (size_t i = 0; i < model->block_capacity; i++) {
        const struct model_block *block = model->blocks[i];

        if (!block)
            continue;
        if (!block->live || block->waiting || block->set)
            return model_broken(problem, problem_size, "slot %zu holds a block that is not live",
                                i);
        requested += block->requested_bytes;
        granted += block->bytes;
    }
    if (requested != s->requested_bytes || granted != s->granted_bytes)
        return model_broken(problem, problem_size,
                            "live blocks hold %lu bytes, the counter says %lu",
                            (unsigned long)granted, (unsigned long)s->granted_bytes);
    if (requested > granted || granted > s->reserved_bytes)
        return model_broken(
            problem, problem_size, "requested %lu <= granted %lu <= reserved %lu fails",
            (unsigned long)requested, (unsigned long)granted, (unsigned long)s->reserved_bytes);
    if (s->reserved_bytes > model->limit_bytes)
        return model_broken(problem, problem_size, "%lu bytes are held, the limit is %lu",
                            (unsigned long)s->reserved_bytes, (unsigned long)model->limit_bytes);
    return model->ops->check(model, problem, problem_size);
}
