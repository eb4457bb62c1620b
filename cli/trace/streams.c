/* SPDX-License-Identifier: MIT */
/*
 * streams.c - makes a trace of many streams from one of few, so that stream order matters.
 *
 * SCHEME  Each allocation goes to a random stream, its home. While it lives, about one allocation
 *         in two makes a random live block be used on another stream: that stream first waits for
 *         the block's present stream, then reads and writes the block, and is its present stream
 *         from then on. A quarter of these uses is also told to the allocator by RECORD_STREAM. At
 *         its end a block is freed in one of four ways:
 *             on its present stream;
 *             on its home, which first waits for the present stream;
 *             on a third stream, which first waits for the present stream;
 *             on its home without a wait, if all its uses elsewhere were told by RECORD_STREAM:
 *             then it is the allocator that must not hand out the memory before they have ended.
 *         So every use of a block is ordered with every other use of it and with its free, while
 *         different blocks are free to meet in any order.
 * SAME    The order of allocations and frees is the inner trace's, hence its peaks too. All choices
 *         come from the seed.
 * MEMORY  One record for each slot of the inner reader, a queue of at most four events.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    STREAMS_MAX = 64, /* bits of used_mask */
    QUEUE_MAX = 8,
    PICKS = 4, /* tries to hit a live block at random */
};

/* A slot's block. Owner: the filter. Valid while the inner reader's block lives. */
struct spread_block {
    uint64_t block;
    uint64_t bytes;
    uint32_t home;
    uint32_t present; /* the stream whose work comes after all other uses */
    bool live;
    bool moved;    /* used on another stream than its home */
    bool all_told; /* every such use was told by RECORD_STREAM */
};

struct spread {
    struct trace_reader *inner;  /* owned */
    unsigned count;              /* streams */
    uint64_t state;              /* of the random sequence */
    struct spread_block *blocks; /* by slot */
    uint32_t capacity;
    uint32_t slots; /* slots seen: 1 + the highest */
    struct trace_event queue[QUEUE_MAX];
    unsigned head, queued;
    bool no_memory;
    struct trace_info info; /* the inner one's with our number of streams */
};

static uint64_t random_next(struct spread *self)
{
    uint64_t z = (self->state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint32_t random_below(struct spread *self, uint32_t bound)
{
    return (uint32_t)(random_next(self) % bound);
}

/* A stream that is not `avoid`. */
static uint32_t other_stream(struct spread *self, uint32_t avoid)
{
    uint32_t stream = random_below(self, self->count - 1);

    return stream + (stream >= avoid);
}

static struct trace_event *enqueue(struct spread *self, enum trace_op op, uint32_t stream,
                                   uint64_t line)
{
    struct trace_event *event = &self->queue[(self->head + self->queued++) % QUEUE_MAX];

    *event = (struct trace_event){.op = op, .stream = stream, .slot = TRACE_NO_SLOT, .line = line};
    return event;
}

static void enqueue_wait(struct spread *self, uint32_t stream, uint32_t other, uint64_t line)
{
    if (stream != other)
        enqueue(self, TRACE_WAIT, stream, line)->other = other;
}

static struct trace_event *enqueue_block(struct spread *self, enum trace_op op, uint32_t slot,
                                         uint32_t stream, uint64_t line)
{
    const struct spread_block *block = &self->blocks[slot];
    struct trace_event *event = enqueue(self, op, stream, line);

    event->slot = slot;
    event->block = block->block;
    event->bytes = block->bytes;
    event->ordered = true;
    return event;
}

static enum trace_status need_slot(struct spread *self, uint32_t slot)
{
    uint32_t capacity = self->capacity ? self->capacity : 1024;
    struct spread_block *moved;

    if (slot >= self->slots)
        self->slots = slot + 1;
    if (slot < self->capacity)
        return TRACE_OK;
    while (capacity <= slot)
        capacity *= 2;
    moved = realloc(self->blocks, capacity * sizeof(*moved));
    if (!moved) {
        self->no_memory = true;
        return TRACE_HOST_MEMORY;
    }
    memset(moved + self->capacity, 0, (capacity - self->capacity) * sizeof(*moved));
    self->blocks = moved;
    self->capacity = capacity;
    return TRACE_OK;
}

/* Perhaps uses a random live block on another stream. */
static void maybe_use(struct spread *self, uint64_t line)
{
    bool told = random_below(self, 4) == 0;
    struct spread_block *block = NULL;
    uint32_t slot = 0;
    uint32_t stream;

    if (random_below(self, 2))
        return;
    for (unsigned i = 0; i < PICKS && !block; i++) {
        slot = random_below(self, self->slots);
        if (self->blocks[slot].live && self->blocks[slot].bytes)
            block = &self->blocks[slot];
    }
    if (!block)
        return;
    stream = other_stream(self, block->present);
    enqueue_wait(self, stream, block->present, line);
    enqueue_block(self, TRACE_USE, slot, stream, line);
    block->present = stream;
    if (stream == block->home)
        return;
    block->moved = true;
    if (told)
        enqueue_block(self, TRACE_RECORD_STREAM, slot, stream, line);
    else
        block->all_told = false;
}

static enum trace_status spread_alloc(struct spread *self, const struct trace_event *event)
{
    uint32_t home = random_below(self, self->count);
    enum trace_status status = need_slot(self, event->slot);

    if (status)
        return status;
    self->blocks[event->slot] = (struct spread_block){.block = event->block,
                                                      .bytes = event->bytes,
                                                      .home = home,
                                                      .present = home,
                                                      .live = true,
                                                      .all_told = true};
    enqueue_block(self, TRACE_ALLOC, event->slot, home, event->line);
    maybe_use(self, event->line);
    return TRACE_OK;
}

static void spread_free(struct spread *self, const struct trace_event *event)
{
    struct spread_block *block = &self->blocks[event->slot];
    uint32_t stream = block->present;
    bool waits = true;

    switch (random_below(self, 4)) {
    case 0:
        break;
    case 1:
        stream = block->home;
        enqueue_wait(self, stream, block->present, event->line);
        break;
    case 2:
        stream = other_stream(self, block->present);
        enqueue_wait(self, stream, block->present, event->line);
        break;
    default:
        stream = block->home;
        waits = !block->moved || !block->all_told;
        if (waits)
            enqueue_wait(self, stream, block->present, event->line);
        break;
    }
    enqueue_block(self, TRACE_FREE, event->slot, stream, event->line)->other =
        waits ? stream : block->present;
    block->live = false;
}

static enum trace_status spread_next(void *opaque, struct trace_event *event)
{
    struct spread *self = opaque;
    enum trace_status status;

    if (!self->queued) {
        status = trace_next(self->inner, event);
        if (status)
            return status;
        if (event->op == TRACE_ALLOC)
            status = spread_alloc(self, event);
        else if (event->op == TRACE_FREE && !event->before_trace)
            spread_free(self, event);
        else
            return TRACE_OK;
        if (status)
            return status;
    }
    *event = self->queue[self->head];
    self->head = (self->head + 1) % QUEUE_MAX;
    self->queued--;
    return TRACE_OK;
}

static const struct trace_info *spread_info(void *opaque)
{
    struct spread *self = opaque;

    self->info = *trace_info(self->inner);
    self->info.streams = self->count;
    return &self->info;
}

static const char *spread_error(void *opaque)
{
    struct spread *self = opaque;

    return self->no_memory ? "the host is out of memory" : trace_error(self->inner);
}

static void spread_close(void *opaque)
{
    struct spread *self = opaque;

    trace_close(self->inner);
    free(self->blocks);
    free(self);
}

static const struct trace_source_ops spread_ops = {spread_next, spread_info, spread_error,
                                                   spread_close};

enum trace_status trace_open_streams(struct trace_reader *inner, unsigned count, uint64_t seed,
                                     struct trace_reader **out)
{
    struct spread *self;
    struct trace_reader *reader;

    if (count < 2 || count > STREAMS_MAX)
        return TRACE_BAD_INPUT;
    self = calloc(1, sizeof(*self));
    reader = self ? trace_reader_new(&spread_ops, self) : NULL;
    if (!reader) {
        free(self);
        return TRACE_HOST_MEMORY;
    }
    self->inner = inner;
    self->count = count;
    self->state = seed;
    *out = reader;
    return TRACE_OK;
}
