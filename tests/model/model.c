/* SPDX-License-Identifier: MIT */
#include "model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moonbright.h"
#include "test.h"

struct block {
    char *ptr;
    uint64_t bytes, number;
    unsigned stream; /* whose order it lives in; MODEL_STREAMS: none, synchronous */
};

struct run {
    mb_device dev;
    mb_stream streams[MODEL_STREAMS];
    struct block slots[MODEL_SLOTS];
    uint64_t capacity, numbers;
    char *text; /* of the first failure */
    bool failed;
};

static const char *const names[MODEL_KINDS] = {
    "malloc", "malloc_sync", "free", "free_sync", "realloc", "use",
    "verify", "order",       "trim", "sync",      "stream",  "check",
};

/* ------------------------------------------------------------------ programs */

static enum model_op_kind pick_kind(uint64_t *state)
{
    static const unsigned weights[MODEL_KINDS] = {40, 6, 22, 4, 4, 10, 8, 6, 1, 1, 1, 1};
    unsigned sum = 0, at;

    for (unsigned i = 0; i < MODEL_KINDS; i++)
        sum += weights[i];
    at = (unsigned)mb_test_random_below(state, sum);
    for (unsigned i = 0;; i++) {
        if (at < weights[i])
            return (enum model_op_kind)i;
        at -= weights[i];
    }
}

/* Many small ones, some near multiples of the page, a few that need most of the device. */
static uint64_t pick_bytes(uint64_t *state, uint64_t capacity)
{
    uint64_t page = (uint64_t)2 << 20;

    switch (mb_test_random_below(state, 8)) {
    case 0:
        return mb_test_random_below(state, 600);
    case 1:
    case 2:
        return mb_test_random_below(state, 1 << 16);
    case 3:
        return page * (1 + mb_test_random_below(state, 4)) + 512 * mb_test_random_below(state, 3) -
               512;
    case 4:
    case 5:
        return mb_test_random_below(state, capacity / 24);
    case 6:
        return mb_test_random_below(state, capacity / 6);
    default:
        return mb_test_random_below(state, 8 * page);
    }
}

void model_generate(uint64_t seed, struct model_op *ops, size_t count, uint64_t capacity)
{
    uint64_t state = seed;

    for (size_t i = 0; i < count; i++)
        ops[i] = (struct model_op){
            .kind = pick_kind(&state),
            .slot = (unsigned)mb_test_random_below(&state, MODEL_SLOTS),
            .stream = (unsigned)mb_test_random_below(&state, MODEL_STREAMS),
            .other = (unsigned)mb_test_random_below(&state, MODEL_STREAMS),
            .bytes = pick_bytes(&state, capacity),
        };
}

void model_print(const struct model_op *ops, size_t count)
{
    for (size_t i = 0; i < count; i++)
        printf("  %zu: %s slot %u stream %u other %u bytes %" PRIu64 "\n", i, names[ops[i].kind],
               ops[i].slot, ops[i].stream, ops[i].other, ops[i].bytes);
}

/* ------------------------------------------------------------------ the naive side */

static bool note_failure(struct run *run, const char *what, enum mb_err err)
{
    if (!run->failed)
        snprintf(run->text, MODEL_TEXT, "%s: %s: %s", what, mb_error_name(err), mb_error_detail());
    run->failed = true;
    return false;
}

#define TRY(run, call)                                                                             \
    do {                                                                                           \
        enum mb_err try_err = (call);                                                              \
        if (try_err)                                                                               \
            return note_failure((run), #call, try_err);                                            \
    } while (0)

static mb_stream native(struct run *run, unsigned stream)
{
    return stream < MODEL_STREAMS ? run->streams[stream] : NULL;
}

static bool wait_for(struct run *run, unsigned waiter, unsigned other)
{
    mb_event event;

    if (waiter == other)
        return true;
    TRY(run, mb_event_create(run->dev, &event));
    TRY(run, mb_event_record(run->dev, event, native(run, other)));
    TRY(run, mb_stream_wait_event(run->dev, native(run, waiter), event));
    TRY(run, mb_event_destroy(run->dev, event));
    return true;
}

static uint64_t seed_of(const struct block *block)
{
    return block->number * 0x9e3779b97f4a7c15u;
}

/* Both ends and a word in each page: enough to see any other block's writes. */
static bool fill(struct run *run, const struct block *block)
{
    uint64_t bytes = block->bytes / 8 * 8;

    TRY(run,
        mb_fill_async(run->dev, block->ptr, bytes, seed_of(block), native(run, block->stream)));
    return true;
}

static bool verify(struct run *run, const struct block *block, uint64_t bytes, unsigned stream)
{
    TRY(run,
        mb_verify_async(run->dev, block->ptr, bytes / 8 * 8, seed_of(block), native(run, stream)));
    return true;
}

static bool overlaps(struct run *run, const struct block *block)
{
    uint64_t bytes = block->bytes ? block->bytes : 1;

    for (unsigned i = 0; i < MODEL_SLOTS; i++) {
        const struct block *other = &run->slots[i];
        uint64_t other_bytes = other->bytes ? other->bytes : 1;

        if (other != block && other->ptr && block->ptr < other->ptr + other_bytes &&
            other->ptr < block->ptr + bytes)
            return true;
    }
    return false;
}

/* Bytes of whole frames that live blocks cannot touch: each block may lie across one frame more
 * than its size needs at either end. */
static bool must_fit(struct run *run, uint64_t bytes)
{
    uint64_t frame = (uint64_t)2 << 20, used = 0;

    for (unsigned i = 0; i < MODEL_SLOTS; i++)
        if (run->slots[i].ptr)
            used += (run->slots[i].bytes / frame + 2) * frame;
    return used + (bytes / frame + 2) * frame <= run->capacity;
}

/* ------------------------------------------------------------------ operations */

static bool do_free(struct run *run, struct block *block, unsigned stream)
{
    if (!block->ptr)
        return true;
    if (!verify(run, block, block->bytes, block->stream) || !wait_for(run, stream, block->stream))
        return false;
    TRY(run, mb_free_async(run->dev, block->ptr, native(run, stream)));
    block->ptr = NULL;
    return true;
}

static bool do_malloc(struct run *run, const struct model_op *op, bool sync)
{
    struct block *block = &run->slots[op->slot];
    void *ptr = NULL;
    enum mb_err err;

    if (!do_free(run, block, block->stream))
        return false;
    block->bytes = op->bytes;
    block->number = ++run->numbers;
    block->stream = sync ? MODEL_STREAMS : op->stream;
    err = sync ? mb_malloc(run->dev, op->bytes, &ptr)
               : mb_malloc_async(run->dev, op->bytes, native(run, op->stream), &ptr);
    if (err == MB_ERR_NO_MEMORY && !must_fit(run, op->bytes))
        return true;
    if (err)
        return note_failure(run, "malloc", err);
    block->ptr = ptr;
    if ((uintptr_t)ptr % 512)
        return note_failure(run, "alignment", MB_ERR_CORRUPT);
    if (overlaps(run, block))
        return note_failure(run, "two live blocks overlap", MB_ERR_CORRUPT);
    return fill(run, block);
}

static bool do_free_sync(struct run *run, struct block *block)
{
    if (!block->ptr)
        return true;
    if (!verify(run, block, block->bytes, block->stream))
        return false;
    TRY(run, mb_device_sync(run->dev));
    TRY(run, mb_free(run->dev, block->ptr));
    block->ptr = NULL;
    return true;
}

static bool do_realloc(struct run *run, struct block *block, uint64_t bytes)
{
    void *ptr = NULL;
    uint64_t kept = bytes < block->bytes ? bytes : block->bytes;
    enum mb_err err;

    if (!block->ptr)
        return true;
    TRY(run, mb_device_sync(run->dev));
    err = mb_realloc(run->dev, block->ptr, bytes, &ptr);
    if (err == MB_ERR_NO_MEMORY)
        return true; /* the old block stands: later operations find it as it was */
    if (err)
        return note_failure(run, "realloc", err);
    block->ptr = ptr;
    block->bytes = bytes;
    if (overlaps(run, block))
        return note_failure(run, "two live blocks overlap after realloc", MB_ERR_CORRUPT);
    return verify(run, block, kept, block->stream) && fill(run, block);
}

static bool do_use(struct run *run, struct block *block, unsigned stream)
{
    if (!block->ptr)
        return true;
    if (!wait_for(run, stream, block->stream) || !verify(run, block, block->bytes, stream))
        return false;
    TRY(run, mb_record_stream(run->dev, block->ptr, native(run, stream)));
    return true;
}

static bool do_stream(struct run *run, unsigned stream)
{
    unsigned heir = (stream + 1) % MODEL_STREAMS;

    /* Blocks of the stream go on in the order of another, which waits for it first. */
    if (!wait_for(run, heir, stream))
        return false;
    for (unsigned i = 0; i < MODEL_SLOTS; i++)
        if (run->slots[i].stream == stream)
            run->slots[i].stream = heir;
    TRY(run, mb_stream_destroy(run->dev, run->streams[stream]));
    TRY(run, mb_stream_create(run->dev, &run->streams[stream]));
    return true;
}

static bool step(struct run *run, const struct model_op *op)
{
    struct block *block = &run->slots[op->slot];
    mb_pool pool;

    switch (op->kind) {
    case MODEL_MALLOC:
        return do_malloc(run, op, false);
    case MODEL_MALLOC_SYNC:
        return do_malloc(run, op, true);
    case MODEL_FREE:
        return do_free(run, block, op->stream);
    case MODEL_FREE_SYNC:
        return do_free_sync(run, block);
    case MODEL_REALLOC:
        return do_realloc(run, block, op->bytes);
    case MODEL_USE:
        return do_use(run, block, op->stream);
    case MODEL_VERIFY:
        return !block->ptr || verify(run, block, block->bytes, block->stream);
    case MODEL_ORDER:
        return wait_for(run, op->stream, op->other);
    case MODEL_TRIM:
        TRY(run, mb_pool_default(run->dev, &pool));
        TRY(run, mb_pool_trim(pool, op->bytes));
        return true;
    case MODEL_SYNC:
        TRY(run, mb_device_sync(run->dev));
        return true;
    case MODEL_STREAM:
        return do_stream(run, op->stream);
    case MODEL_CHECK:
    case MODEL_KINDS:
        TRY(run, mb_check(run->dev));
        return true;
    }
    return false;
}

/* Frees everything and looks at what the device has to say. */
static bool finish(struct run *run)
{
    struct mb_stats stats;

    for (unsigned i = 0; i < MODEL_SLOTS; i++)
        if (!do_free(run, &run->slots[i], run->slots[i].stream))
            return false;
    TRY(run, mb_device_sync(run->dev));
    TRY(run, mb_check(run->dev));
    TRY(run, mb_stats_get(run->dev, &stats));
    if (stats.wrong_words || stats.wrong_accesses || stats.faults) {
        snprintf(run->text, MODEL_TEXT,
                 "%" PRIu64 " wrong words, %" PRIu64 " wrong accesses, %" PRIu64 " faults",
                 stats.wrong_words, stats.wrong_accesses, stats.faults);
        return false;
    }
    if (stats.requested_bytes || stats.allocated_bytes || stats.live_blocks) {
        snprintf(run->text, MODEL_TEXT, "%" PRIu64 " blocks and %" PRIu64 " bytes are left",
                 stats.live_blocks, stats.requested_bytes);
        return false;
    }
    return true;
}

bool model_run(const char *config, uint64_t capacity, const struct model_op *ops, size_t count,
               char *text)
{
    struct run run = {.capacity = capacity, .text = text};
    bool good = true;
    enum mb_err err = mb_open(0, config, &run.dev);

    if (err) {
        snprintf(text, MODEL_TEXT, "open: %s", mb_error_detail());
        return false;
    }
    for (unsigned i = 0; i < MODEL_STREAMS; i++)
        good = good && !mb_stream_create(run.dev, &run.streams[i]);
    for (unsigned i = 0; i < MODEL_SLOTS; i++)
        run.slots[i].stream = MODEL_STREAMS;
    for (size_t i = 0; good && i < count; i++)
        good = step(&run, &ops[i]);
    good = good && finish(&run);
    mb_close(run.dev);
    return good;
}

/* ------------------------------------------------------------------ shrinking */

/* Delta debugging: try without each chunk, halving the chunk size when none can go. */
size_t model_shrink(struct model_op *ops, size_t count, model_fails *fails, void *context,
                    unsigned budget)
{
    struct model_op *trial = malloc(count * sizeof(*trial));
    size_t chunk = count / 2;

    while (trial && chunk && budget) {
        bool removed = false;

        for (size_t at = 0; at + chunk <= count && budget;) {
            memcpy(trial, ops, at * sizeof(*ops));
            memcpy(trial + at, ops + at + chunk, (count - at - chunk) * sizeof(*ops));
            budget--;
            if (fails(context, trial, count - chunk)) {
                count -= chunk;
                memcpy(ops, trial, count * sizeof(*ops));
                removed = true;
            } else {
                at += chunk;
            }
        }
        if (!removed)
            chunk /= 2;
        else if (chunk > count)
            chunk = count;
    }
    free(trial);
    return count;
}
