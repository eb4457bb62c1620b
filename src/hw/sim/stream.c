/* SPDX-License-Identifier: MIT */
/*
 * stream.c - streams, their queues of operations, tickets and fences.
 *
 * A stream is one object for its native handle and its wrapper. It is never freed before the
 * device, as fences point to it; once destroyed, closed and drained it serves the next
 * stream_create, and tickets go on counting, so older fences stay passed.
 *
 * A ticket is passed when no operation with an equal or smaller ticket is left: nothing is stored
 * per fence. Operations and payloads lie in two growing queues, so enqueueing allocates only when a
 * queue is longer than ever before.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for `count` more elements at the tail, which then lie consecutively. */
enum mb_err mb__sim_fifo_reserve(struct sim_fifo *fifo, size_t element_bytes, size_t count)
{
    size_t used = fifo->tail - fifo->head;
    size_t capacity = fifo->capacity ? fifo->capacity : 64;
    unsigned char *base;

    if (fifo->capacity - fifo->tail >= count)
        return MB_OK;
    if (fifo->head >= used && fifo->capacity - used >= count) {
        if (used)
            memcpy(fifo->base, fifo->base + fifo->head * element_bytes, used * element_bytes);
        fifo->head = 0;
        fifo->tail = used;
        return MB_OK;
    }
    while (capacity < 2 * (used + count))
        capacity *= 2;
    base = malloc(capacity * element_bytes);
    if (!base)
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a queue of %zu",
                        used + count);
    if (used)
        memcpy(base, fifo->base + fifo->head * element_bytes, used * element_bytes);
    free(fifo->base);
    *fifo = (struct sim_fifo){base, 0, used, capacity};
    return MB_OK;
}

struct sim_op *mb__sim_stream_head(struct mb_hw_stream *stream)
{
    return (struct sim_op *)(void *)stream->ops.base + stream->ops.head;
}

const uint32_t *mb__sim_stream_data(struct mb_hw_stream *stream)
{
    const uint32_t *base = (const void *)stream->data.base;

    /* A stream that never carried data has none. */
    return base ? base + stream->data.head : NULL;
}

static void deactivate(struct mb_hw_stream *stream)
{
    struct sim_dev *dev = stream->dev;

    /* Order is kept, so that explore mode draws from the same list whatever came before. */
    for (unsigned i = 0; i < dev->active_count; i++) {
        if (dev->active[i] != stream)
            continue;
        dev->active_count--;
        memmove(&dev->active[i], &dev->active[i + 1],
                (dev->active_count - i) * sizeof(struct mb_hw_stream *));
        break;
    }
    stream->active = false;
}

void mb__sim_stream_pop(struct mb_hw_stream *stream)
{
    stream->data.head += mb__sim_stream_head(stream)->words;
    stream->ops.head++;
    stream->ending = stream->blocked = false;
    stream->dev->queued--;
    if (stream->data.head == stream->data.tail)
        stream->data.head = stream->data.tail = 0;
    if (stream->ops.head == stream->ops.tail) {
        stream->ops.head = stream->ops.tail = 0;
        deactivate(stream);
    }
}

enum mb_err mb__sim_stream_reserve(struct mb_hw_stream *stream, size_t ops, size_t words)
{
    enum mb_err err = mb__sim_fifo_reserve(&stream->ops, sizeof(struct sim_op), ops);

    return err ? err : mb__sim_fifo_reserve(&stream->data, sizeof(uint32_t), words);
}

struct sim_op *mb__sim_stream_push(struct mb_hw_stream *stream, enum sim_op_kind kind)
{
    struct sim_dev *dev = stream->dev;
    struct sim_op *op = (struct sim_op *)(void *)stream->ops.base + stream->ops.tail++;

    memset(op, 0, sizeof(*op));
    op->kind = (uint8_t)kind;
    op->seq = ++stream->seq;
    op->enqueue_ns = dev->host_ns;
    dev->queued++;
    if (!stream->active) {
        stream->active = true;
        dev->active[dev->active_count++] = stream;
    }
    return op;
}

void mb__sim_stream_append(struct mb_hw_stream *stream, struct sim_op *op, const uint32_t *words,
                           uint32_t count)
{
    memcpy((uint32_t *)(void *)stream->data.base + stream->data.tail, words,
           count * sizeof(*words));
    stream->data.tail += count;
    op->words += count;
}

bool mb__sim_fence_passed(struct mb_hw_fence fence)
{
    struct mb_hw_stream *stream = fence.stream;

    if (!stream)
        return true;
    if (stream->lost_seq && fence.seq >= stream->lost_seq)
        return false;
    /* Of a capture: nothing has been executed since. */
    if (fence.seq > stream->seq)
        return false;
    return stream->ops.head == stream->ops.tail || mb__sim_stream_head(stream)->seq > fence.seq;
}

bool mb__sim_stream_known(struct sim_dev *dev, const struct mb_hw_stream *stream)
{
    for (unsigned i = 0; i < dev->stream_count; i++) {
        if (dev->stream[i] == stream)
            return true;
    }
    return false;
}

static enum mb_err grow_lists(struct sim_dev *dev)
{
    unsigned capacity = dev->stream_capacity ? 2 * dev->stream_capacity : 16;
    struct mb_hw_stream **list;

    if (dev->stream_count < dev->stream_capacity)
        return MB_OK;
    list = realloc(dev->stream, capacity * sizeof(struct mb_hw_stream *));
    if (list) {
        dev->stream = list;
        list = realloc(dev->active, capacity * sizeof(struct mb_hw_stream *));
    }
    if (!list)
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a stream");
    dev->active = list;
    dev->stream_capacity = capacity;
    return MB_OK;
}

struct mb_hw_stream *mb__sim_stream_new(struct sim_dev *dev)
{
    struct mb_hw_stream *stream;

    if (grow_lists(dev))
        return NULL;
    stream = calloc(1, sizeof(*stream));
    if (!stream) {
        mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a stream");
        return NULL;
    }
    stream->dev = dev;
    stream->id = dev->stream_count;
    dev->stream[dev->stream_count++] = stream;
    return stream;
}

void mb__sim_streams_close(struct sim_dev *dev)
{
    mb__sim_captures_close(dev);
    for (unsigned i = 0; i < dev->stream_count; i++) {
        struct mb_hw_stream *stream = dev->stream[i];

        mb__sim_kernel_free(stream);
        free(stream->ops.base);
        free(stream->data.base);
        free(stream->clock);
        free(stream);
    }
    free(dev->stream);
    free(dev->active);
}

/* A stream that nobody can name any more and that has nothing left to do. */
static struct mb_hw_stream *reusable(struct sim_dev *dev)
{
    for (unsigned i = 1; i < dev->stream_count; i++) {
        struct mb_hw_stream *stream = dev->stream[i];

        if (!stream->helper && !stream->native_alive && !stream->opened && !stream->active &&
            !(stream->queue && stream->queue->active))
            return stream;
    }
    return NULL;
}

enum mb_err mb__sim_stream_create(struct mb_hw_dev *hw, mb_stream *native)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct mb_hw_stream *stream;
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    stream = err ? NULL : reusable(dev);
    if (!err && !stream) {
        stream = mb__sim_stream_new(dev);
        err = stream ? MB_OK : MB_ERR_HOST_MEMORY;
    }
    if (!err) {
        stream->native_alive = true;
        stream->ready_ns = dev->host_ns;
        *native = stream;
    }
    sim_unlock(dev);
    return err;
}

/* The stream behind a native handle, or NULL with the detail set. */
static struct mb_hw_stream *native_of(struct sim_dev *dev, mb_stream native)
{
    struct mb_hw_stream *stream = native ? native : dev->stream[0];

    if (mb__sim_stream_known(dev, stream) && !stream->helper && stream->native_alive)
        return stream;
    mb__fail(
        MB_ERR_NOT_FOUND,
        "stream %p is not one of this device; allowed are NULL and what stream_create gave and "
        "stream_destroy has not taken back",
        native);
    return NULL;
}

enum mb_err mb__sim_stream_destroy(struct mb_hw_dev *hw, mb_stream native)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct mb_hw_stream *stream;
    enum mb_err err = MB_OK;

    sim_lock(dev);
    stream = native_of(dev, native);
    if (!stream)
        err = MB_ERR_NOT_FOUND;
    else if (stream == dev->stream[0])
        err = mb__fail(MB_ERR_INVALID, "the default stream cannot be destroyed");
    else
        stream->native_alive = false;
    sim_unlock(dev);
    return err;
}

enum mb_err mb__sim_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct mb_hw_stream *stream;

    sim_lock(dev);
    stream = native_of(dev, native);
    if (stream) {
        stream->opened = true;
        *out = stream;
    }
    sim_unlock(dev);
    return stream ? MB_OK : MB_ERR_NOT_FOUND;
}

void mb__sim_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    if (mb__sim_stream_known(dev, stream))
        stream->opened = false;
    sim_unlock(dev);
}
