/* SPDX-License-Identifier: MIT */
/*
 * Streams, their tickets and clocks, and the question that the whole runtime turns on: may this
 * stream use memory that was freed on that one?
 *
 *   the same stream      yes, at once
 *   a known dependency   yes: clock[owner] has reached the ticket; mb_stream_wait_event() and our
 *                        own waits keep the clocks
 *   already executed     yes: the owner's point has passed; read from host memory
 *   otherwise            after a wait that we insert, if the pool allows it
 *
 * Fences are recorded when somebody wants the memory, not at each free: a free costs no device
 * call. The price is that the point recorded lies later than the free. The ticket is closed before
 * the fence is recorded, never after: see end_ticket().
 *
 * Locking: everything here runs under the device's lock, except reading a ticket.
 * Trade-offs: a retired stream keeps its record and lanes until its memory has been used up; its
 * index is then given to the next new stream. Tickets go on from where they were, so that what is
 * remembered of the old stream stays true.
 */
#include "base/err.h"
#include "base/handles.h"
#include "base/log.h"
#include "runtime/runtime.h"

static enum mb_err record_new(struct mb_device *dev, struct mb__stream **out)
{
    struct mb__stream *stream;

    if (dev->idle_streams.count) {
        *out = MB_VEC_POP(&dev->idle_streams);
        return MB_OK;
    }
    stream = calloc(1, sizeof(*stream));
    if (!stream || !MB_VEC_PUSH(&dev->streams, stream)) {
        free(stream);
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the record of a stream");
    }
    stream->index = (uint32_t)(dev->streams.count - 1);
    stream->ticket = 1;
    stream->retired = true; /* until opened */
    *out = stream;
    return MB_OK;
}

enum mb_err mb__stream_new(struct mb_device *dev, mb_stream native, struct mb__stream **out)
{
    struct mb_hw_stream *hw;
    struct mb__stream *stream = NULL;
    enum mb_err err;

    err = dev->hw->ops->stream_open(dev->hw, native, &hw);
    if (err)
        return err;
    err = record_new(dev, &stream);
    if (err)
        goto undo_open;
    if (!MB_VEC_RESERVE(&dev->idle_streams, dev->streams.count)) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the list of streams");
        goto undo_record;
    }
    err = mb__map_put_ptr(&dev->by_native, (uint64_t)(uintptr_t)native, stream);
    if (err)
        goto undo_record;
    stream->native = native;
    stream->hw = hw;
    stream->retired = false;
    stream->created = false;
    *out = stream;
    return MB_OK;
undo_record:
    if (dev->idle_streams.count < dev->idle_streams.capacity)
        (void)MB_VEC_PUSH(&dev->idle_streams, stream);
undo_open:
    dev->hw->ops->stream_close(dev->hw, hw);
    return err;
}

enum mb_err mb__stream_get(struct mb_device *dev, mb_stream native, struct mb__stream **out)
{
    struct mb__stream *stream = mb__map_get_ptr(&dev->by_native, (uint64_t)(uintptr_t)native);

    if (stream) {
        *out = stream;
        return MB_OK;
    }
    return mb__stream_new(dev, native, out);
}

enum mb_err mb__not_captured(const struct mb_device *dev, mb_stream native)
{
    if (!mb__capturing(dev, native))
        return MB_OK;
    return mb__fail(
        MB_ERR_NOT_SUPPORTED,
        "stream %p is being captured into a graph, which would run this again at every "
        "replay, at times that the allocator does not see; allocate and free what the "
        "graph uses in a pool with MB_POOL_KEEP, and do the rest outside of the capture",
        native);
}

/* ------------------------------------------------------------------ tickets and clocks */

/* Closes the open ticket and returns it; the fence behind it is recorded next. In this order, as
 * the warm path reads the ticket without the lock: a free that carries the old number had its work
 * enqueued before the fence, one that came later carries the new number, which this fence does not
 * promise. Without a fence the number is covered by the next that is recorded. */
static uint64_t end_ticket(struct mb__stream *stream)
{
    return __atomic_fetch_add(&stream->ticket, 1, __ATOMIC_SEQ_CST);
}

/* Closes the open ticket and records a fence behind it. */
static enum mb_err close_ticket(struct mb_device *dev, struct mb__stream *stream)
{
    struct mb__point *point;
    struct mb_hw_fence fence;
    uint64_t ticket;
    enum mb_err err = mb__not_captured(dev, stream->native);

    /* A fence in a capture would pass at every replay, and not before the first. */
    if (err)
        return err;
    ticket = end_ticket(stream);
    err = dev->hw->ops->fence_record(dev->hw, stream->hw, &fence);
    if (err)
        return err;
    mb__stream_poll(dev, stream);
    if (stream->point_count == MB__POINTS)
        stream->point_count--; /* the newest gives way; those before it pass sooner */
    point = &stream->points[stream->point_count++];
    point->ticket = ticket;
    point->raises = stream->raises;
    point->fence = fence;
    return MB_OK;
}

static uint64_t covered(const struct mb__stream *stream)
{
    uint64_t last = stream->point_count ? stream->points[stream->point_count - 1].ticket : 0;

    return last > stream->done ? last : stream->done;
}

enum mb_err mb__stream_cover(struct mb_device *dev, struct mb__stream *stream)
{
    if (stream->freed <= covered(stream) || stream->retired)
        return MB_OK; /* a retired one was closed for good */
    return close_ticket(dev, stream);
}

void mb__stream_poll(struct mb_device *dev, struct mb__stream *stream)
{
    unsigned passed = 0;

    while (passed < stream->point_count &&
           dev->hw->ops->fence_done(dev->hw, stream->points[passed].fence))
        passed++;
    if (!passed)
        return;
    if (stream->points[passed - 1].ticket > stream->done)
        stream->done = stream->points[passed - 1].ticket;
    stream->point_count -= passed;
    for (unsigned i = 0; i < stream->point_count; i++)
        stream->points[i] = stream->points[i + passed];
}

uint64_t mb__stream_clock(const struct mb__stream *stream, const struct mb__stream *other)
{
    return other->index < stream->clock_count ? stream->clock[other->index] : 0;
}

static enum mb_err clock_reserve(struct mb__stream *stream, uint32_t count)
{
    size_t room = stream->clock_count;

    if (count <= stream->clock_count)
        return MB_OK;
    if (!mb__vec_reserve(&stream->clock, &room, count, sizeof(*stream->clock)))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the clock of a stream");
    memset(stream->clock + stream->clock_count, 0,
           (count - stream->clock_count) * sizeof(*stream->clock));
    stream->clock_count = count;
    return MB_OK;
}

/* Room is there. */
static void clock_raise(struct mb__stream *stream, const struct mb__stream *other, uint64_t ticket,
                        const uint64_t *clock, uint32_t clock_count)
{
    for (uint32_t i = 0; i < clock_count; i++)
        if (clock[i] > stream->clock[i])
            stream->clock[i] = clock[i];
    if (ticket > stream->clock[other->index])
        stream->clock[other->index] = ticket;
    stream->raises++;
}

/* Does all later work of `stream` come after the ticket, whatever the device has done by now? */
static bool order_known(const struct mb__stream *stream, const struct mb__stream *owner,
                        uint64_t ticket)
{
    return !owner || (stream && (owner == stream || ticket <= mb__stream_clock(stream, owner)));
}

bool mb__order_allows(const struct mb__stream *stream, const struct mb__stream *owner,
                      uint64_t ticket)
{
    return order_known(stream, owner, ticket) || ticket <= owner->done;
}

static bool node_passes(const struct mb__stream *stream, const struct mb__node *node,
                        bool (*test)(const struct mb__stream *, const struct mb__stream *,
                                     uint64_t))
{
    if (!node->lane)
        return false;
    if (!node->lane->apart)
        return test(stream, node->lane->owner, node->ticket);
    for (unsigned i = 0; i < node->order->count; i++)
        if (!test(stream, node->order->points[i].stream, node->order->points[i].ticket))
            return false;
    return true;
}

bool mb__node_usable(const struct mb__stream *stream, const struct mb__node *node)
{
    return node_passes(stream, node, mb__order_allows);
}

bool mb__node_ordered(const struct mb__stream *stream, const struct mb__node *node)
{
    return node_passes(stream, node, order_known);
}

struct mb__order *mb__order_new(const struct mb__order *uses, struct mb__stream *stream,
                                uint64_t ticket)
{
    unsigned count = uses ? uses->count : 0;
    struct mb__order *order = calloc(1, sizeof(*order) + (count + 1) * sizeof(order->points[0]));

    if (!order)
        return NULL;
    if (count)
        memcpy(order->points, uses->points, count * sizeof(order->points[0]));
    order->count = count;
    if (stream)
        order->points[order->count++] = (struct mb__order_point){stream, ticket};
    return order;
}

/* ------------------------------------------------------------------ lanes */

/* Room for the lane of a stream, and for its bit. */
static bool grow_lanes(struct mb_pool *pool, uint32_t index)
{
    uint32_t count = (index / 64 + 1) * 64;
    struct mb__lane **lanes = realloc(pool->lanes, count * sizeof(struct mb__lane *));
    uint64_t *held;

    if (!lanes)
        return false;
    pool->lanes = lanes;
    held = realloc(pool->held, count / 64 * sizeof(*held));
    if (!held)
        return false;
    pool->held = held;
    memset(lanes + pool->lane_count, 0, (count - pool->lane_count) * sizeof(struct mb__lane *));
    memset(held + pool->lane_count / 64, 0, (count - pool->lane_count) / 64 * sizeof(*held));
    for (uint32_t i = 0; i < pool->lane_count; i++)
        if (lanes[i])
            lanes[i]->held = &held[i / 64];
    pool->lane_count = count;
    return true;
}

enum mb_err mb__pool_lane(struct mb_pool *pool, struct mb__stream *stream, struct mb__lane **out)
{
    if (!stream) {
        *out = &pool->ready;
        return MB_OK;
    }
    if (stream->index >= pool->lane_count && !grow_lanes(pool, stream->index))
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the lanes of a pool");
    if (!pool->lanes[stream->index]) {
        struct mb__lane *lane = calloc(1, sizeof(*lane));

        if (!lane)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a lane of a pool");
        lane->owner = stream;
        lane->held = &pool->held[stream->index / 64];
        lane->bit = UINT64_C(1) << stream->index % 64;
        pool->lanes[stream->index] = lane;
    }
    *out = pool->lanes[stream->index];
    return MB_OK;
}

/* Moves the nodes of one lane whose order has been met. */
static bool promote_lane(struct mb_pool *pool, struct mb__lane *lane)
{
    struct mb__link *link = mb__tree_first(&lane->by_size);
    bool moved = false;

    while (link) {
        struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_size);

        link = mb__tree_next(link);
        if (!mb__node_usable(NULL, node))
            continue;
        /* Joins with ready neighbours only, so `link` stays in this lane. */
        mb__heap_move(&pool->heap, node, &pool->ready, 0);
        moved = true;
    }
    return moved;
}

/* Index of the next stream, from `from` on, whose order may keep bytes of the pool; the number of
 * streams when there is none. Bytes that are apart may wait for any. */
static uint32_t next_holder(const struct mb_pool *pool, uint32_t from)
{
    uint32_t streams = (uint32_t)pool->dev->streams.count;
    uint64_t word;

    if (pool->apart.free_bytes)
        return from;
    for (uint32_t i = from; i < pool->lane_count; i = (i / 64 + 1) * 64) {
        word = pool->held[i / 64] >> i % 64;
        if (word)
            return i + (uint32_t)__builtin_ctzll(word);
    }
    return streams;
}

static bool promote_but(struct mb_pool *pool, bool record, const struct mb__stream *except)
{
    struct mb_device *dev = pool->dev;
    uint32_t streams = (uint32_t)dev->streams.count;
    bool moved = false;

    /* That work has finished says nothing about the replays of a graph. */
    if (pool->keep)
        return false;
    for (uint32_t i = next_holder(pool, 0); i < streams; i = next_holder(pool, i + 1)) {
        struct mb__stream *stream = dev->streams.data[i];
        struct mb__lane *lane = i < pool->lane_count ? pool->lanes[i] : NULL;

        if (stream == except)
            continue;
        mb__stream_poll(dev, stream);
        if (record)
            (void)mb__stream_cover(dev, stream);
        mb__stream_poll(dev, stream);
        if (lane && lane->free_bytes)
            moved |= promote_lane(pool, lane);
    }
    if (pool->apart.free_bytes)
        moved |= promote_lane(pool, &pool->apart);
    return moved;
}

bool mb__promote(struct mb_pool *pool, bool record)
{
    return promote_but(pool, record, NULL);
}

/* A part of the stream's own bytes would be joined with what it frees next no more, and which part
 * depends on how far the device is: for the stream the holes are best left whole. */
void mb__promote_for(struct mb_pool *pool, const struct mb__stream *stream)
{
    (void)promote_but(pool, true, stream);
}

/* `stream` waits for all that was freed on `other` so far, and may use it from then on. */
static bool wait_for(struct mb_device *dev, struct mb__stream *stream, struct mb__stream *other)
{
    struct mb__point last;
    bool same;

    if (mb__stream_cover(dev, other) || !other->point_count ||
        clock_reserve(stream, (uint32_t)dev->streams.count))
        return false;
    last = other->points[other->point_count - 1];
    if (last.ticket <= mb__stream_clock(stream, other))
        return false;
    if (dev->hw->ops->fence_wait_stream(dev->hw, stream->hw, last.fence))
        return false;
    /* What `other` waited for itself counts only if it did so before the point. */
    same = last.raises == other->raises;
    clock_raise(stream, other, last.ticket, other->clock, same ? other->clock_count : 0);
    dev->counters.waits++;
    return true;
}

bool mb__wait_for_others(struct mb_pool *pool, struct mb__stream *stream)
{
    struct mb_device *dev = pool->dev;
    uint32_t streams = (uint32_t)dev->streams.count;
    bool waited = false;

    for (uint32_t i = next_holder(pool, 0); i < streams; i = next_holder(pool, i + 1))
        if (dev->streams.data[i] != stream)
            waited |= wait_for(dev, stream, dev->streams.data[i]);
    return waited;
}

/* The last point of every stream on which something was freed that has not passed yet. */
static size_t pending_fences(struct mb_device *dev, struct mb_hw_fence *list, size_t capacity)
{
    size_t count = 0;

    for (uint32_t i = 0; i < dev->streams.count && count < capacity; i++) {
        struct mb__stream *stream = dev->streams.data[i];

        if (stream->freed <= stream->done)
            continue;
        (void)mb__stream_cover(dev, stream);
        if (stream->point_count)
            list[count++] = stream->points[stream->point_count - 1].fence;
    }
    return count;
}

/* Frames that vm has back but that a cached window still shows cannot come free: let go of the
 * windows. */
static void drop_idle_windows(struct mb_device *dev)
{
    struct mb_vm_stats stats;

    for (uint32_t i = 0; i < dev->streams.count; i++)
        mb__stream_poll(dev, dev->streams.data[i]);
    mb__vm_stats(dev->vm, &stats);
    for (struct mb_pool *pool = dev->pools; stats.draining_bytes && pool; pool = pool->next)
        mb__windows_drop(pool, 0);
    mb__zombies_poll(dev);
}

enum mb_err mb__wait_on_host(struct mb_device *dev)
{
    enum { AT_ONCE = 64 };
    struct mb_hw_fence list[AT_ONCE];
    size_t count = pending_fences(dev, list, AT_ONCE);
    enum mb_err err = MB_OK;

    mb__unlock(&dev->lock);
    for (size_t i = 0; i < count && !err; i++)
        err = dev->hw->ops->fence_wait_host(dev->hw, list[i], dev->config.wait_ns);
    mb__lock(&dev->lock);
    drop_idle_windows(dev);
    mb__unlock(&dev->lock);
    if (!err)
        err = mb__vm_drain(dev->vm);
    mb__lock(&dev->lock);
    return err;
}

/* ------------------------------------------------------------------ retirement */

/* A retired stream whose memory is used up or passed: its index may serve again. */
static bool is_empty(struct mb_device *dev, const struct mb__stream *stream)
{
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        if (stream->index < pool->lane_count && pool->lanes[stream->index] &&
            pool->lanes[stream->index]->free_bytes)
            return false;
    return !stream->named && stream->done + 1 >= stream->ticket;
}

static void collect_idle(struct mb_device *dev)
{
    for (uint32_t i = 0; i < dev->streams.count; i++) {
        struct mb__stream *stream = dev->streams.data[i];

        if (!stream->retired || !stream->hw)
            continue;
        mb__stream_poll(dev, stream);
        if (!is_empty(dev, stream))
            continue;
        stream->hw = NULL;
        stream->native = NULL;
        (void)MB_VEC_PUSH(&dev->idle_streams, stream); /* room was made when it was opened */
    }
}

/* Its memory stays in its lanes until the last point has passed; then anybody may use it. */
enum mb_err mb__stream_destroy(struct mb_device *dev, mb_stream native)
{
    struct mb__stream *stream = mb__map_get_ptr(&dev->by_native, (uint64_t)(uintptr_t)native);
    enum mb_err err;

    if (!stream || !native || stream == dev->own)
        return mb__fail(MB_ERR_NOT_FOUND, "%p is no stream that this device has seen", native);
    /* Forgotten first: what the warm path frees on it from now on comes to this lock, and finds no
     * stream. Behind the flush it would stay in a bin, which the next stream with this record
     * would serve itself from. */
    mb__bins_forget_stream(dev, stream);
    mb__bins_flush(dev, NULL);
    err = close_ticket(dev, stream);
    if (err)
        return err;
    mb__map_del(&dev->by_native, (uint64_t)(uintptr_t)native, NULL);
    stream->retired = true;
    dev->hw->ops->stream_close(dev->hw, stream->hw);
    /* The record is gone: the caller could not try again, so for him the stream is destroyed. */
    if (stream->created && dev->hw->ops->stream_destroy(dev->hw, native))
        mb__log(MB_LOG_WARN, "runtime",
                "a stream stays with the backend until the device is closed: %s",
                mb_error_detail());
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        mb__promote(pool, false);
    return MB_OK;
}

/* CUDA's and HIP's default streams, NULL, legacy and per thread, are never destroyed. */
static bool lasts(mb_stream native)
{
    return (uintptr_t)native <= 2;
}

enum mb_err mb__stream_seal(struct mb_device *dev, mb_stream native)
{
    struct mb__stream *stream = mb__map_get_ptr(&dev->by_native, (uint64_t)(uintptr_t)native);
    enum mb_err err;

    if (!stream || lasts(native))
        return MB_OK;
    /* What lies in bins would come to its lane later, and ask the stream for a fence then. */
    mb__bins_flush_stream(dev, stream);
    err = mb__stream_cover(dev, stream);
    if (!err)
        stream->sealed = stream->ticket - 1;
    return err;
}

enum mb_err mb__stream_create(struct mb_device *dev, mb_stream *out)
{
    struct mb__stream *stream = NULL;
    mb_stream native;
    enum mb_err err;

    collect_idle(dev);
    err = dev->hw->ops->stream_create(dev->hw, &native);
    if (err)
        return err;
    err = mb__stream_new(dev, native, &stream);
    if (err) {
        (void)dev->hw->ops->stream_destroy(dev->hw, native);
        return err;
    }
    stream->created = true;
    *out = native;
    return MB_OK;
}

enum mb_err mb__stream_sync(struct mb_device *dev, mb_stream native)
{
    struct mb__stream *stream;
    struct mb_hw_fence fence;
    uint64_t ticket = 0;
    enum mb_err err;

    mb__lock(&dev->lock);
    err = mb__not_captured(dev, native);
    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (!err) {
        ticket = end_ticket(stream);
        err = dev->hw->ops->fence_record(dev->hw, stream->hw, &fence);
    }
    mb__unlock(&dev->lock);
    if (err)
        return err;
    err = dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
    if (err)
        return err;
    mb__lock(&dev->lock);
    if (ticket > stream->done)
        stream->done = ticket;
    mb__pools_after_sync(dev);
    mb__unlock(&dev->lock);
    return MB_OK;
}

/* ------------------------------------------------------------------ events */

static struct mb__handles live =
    MB__HANDLES_INIT; /* events of all devices, for calls with any pointer */

__attribute__((destructor)) static void forget_events(void)
{
    if (!mb__device_any_open())
        mb__handles_fini(&live);
}

/* Who looks at it without the lock reads `dev`, which is NULL. */
static void event_clear(struct mb_event *event)
{
    const size_t kept = offsetof(struct mb_event, stream);

    memset((char *)event + kept, 0, sizeof(*event) - kept);
}

enum mb_err mb__event_new(struct mb_device *dev, mb_event *out)
{
    struct mb_event *event = dev->spare_events;

    if (event) {
        dev->spare_events = event->next;
        event_clear(event);
    } else {
        event = calloc(1, sizeof(*event));
    }
    if (!event || !mb__handles_add(&live, event)) {
        if (event) { /* it may be a record that another thread still looks at */
            event->next = dev->spare_events;
            dev->spare_events = event;
        }
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for an event");
    }
    __atomic_store_n(&event->dev, dev, __ATOMIC_RELEASE);
    event->next = dev->events;
    if (event->next)
        event->next->prev = event;
    dev->events = event;
    *out = event;
    return MB_OK;
}

bool mb__event_of(const struct mb_event *event, const struct mb_device *dev)
{
    return mb__handles_has(&live, event) && __atomic_load_n(&event->dev, __ATOMIC_ACQUIRE) == dev;
}

/* The handle was looked at before the lock was taken. */
static enum mb_err event_gone(const struct mb_event *event)
{
    return mb__fail(MB_ERR_INVALID, "%p is no event any more: another thread destroyed it",
                    (const void *)event);
}

enum mb_err mb__event_drop(struct mb_event *event)
{
    struct mb_device *dev = event->dev;

    if (!dev)
        return event_gone(event);
    if (event->prev)
        event->prev->next = event->next;
    else
        dev->events = event->next;
    if (event->next)
        event->next->prev = event->prev;
    __atomic_store_n(&event->dev, NULL, __ATOMIC_RELEASE);
    mb__handles_del(&live, event);
    free(event->clock);
    event->clock = NULL;
    event->prev = NULL;
    event->next = dev->spare_events;
    dev->spare_events = event;
    return MB_OK;
}

enum mb_err mb__event_record(struct mb_event *event, mb_stream native)
{
    struct mb_device *dev = event->dev;
    struct mb__stream *stream;
    struct mb_hw_fence fence;
    uint64_t *clock = NULL, ticket;
    enum mb_err err;

    if (!dev)
        return event_gone(event);
    err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    if (stream->clock_count) {
        clock = malloc(stream->clock_count * sizeof(*clock));
        if (!clock)
            return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the clock of an event");
        memcpy(clock, stream->clock, stream->clock_count * sizeof(*clock));
    }
    ticket = end_ticket(stream);
    err = dev->hw->ops->fence_record(dev->hw, stream->hw, &fence);
    if (err) {
        free(clock);
        return err;
    }
    free(event->clock);
    event->clock = clock;
    event->clock_count = stream->clock_count;
    event->stream = stream;
    event->fence = fence;
    event->ticket = ticket;
    return MB_OK;
}

/* What the program orders. *edge: inside a graph, so the order holds at its replays only. */
static enum mb_err wait_as_asked(struct mb_device *dev, struct mb__stream *stream,
                                 struct mb_hw_fence fence, bool *edge)
{
    const struct mb_hw_ops *ops = dev->hw->ops;
    enum mb_err err = ops->event_wait ? ops->event_wait(dev->hw, stream->hw, fence)
                                      : ops->fence_wait_stream(dev->hw, stream->hw, fence);

    *edge = !err && ops->stream_capturing && ops->stream_capturing(dev->hw, stream->native);
    return err;
}

enum mb_err mb__event_wait(struct mb_event *event, mb_stream native)
{
    struct mb_device *dev = event->dev;
    struct mb__stream *stream;
    bool edge;
    enum mb_err err;

    if (!dev)
        return event_gone(event);
    if (!event->stream)
        return MB_OK; /* as in CUDA: waiting for an event never recorded waits for nothing */
    err = mb__stream_get(dev, native, &stream);
    if (!err)
        err = clock_reserve(stream, (uint32_t)dev->streams.count);
    if (!err)
        err = wait_as_asked(dev, stream, event->fence, &edge);
    if (err)
        return err;
    if (!edge)
        clock_raise(stream, event->stream, event->ticket, event->clock, event->clock_count);
    return MB_OK;
}

void mb__events_fini(struct mb_device *dev)
{
    while (dev->events) {
        struct mb_event *event = dev->events;

        dev->events = event->next;
        mb__handles_del(&live, event);
        free(event->clock);
        free(event);
    }
    while (dev->spare_events) {
        struct mb_event *event = dev->spare_events;

        dev->spare_events = event->next;
        free(event);
    }
}

void mb__streams_fini(struct mb_device *dev)
{
    for (size_t i = 0; i < dev->streams.count; i++) {
        struct mb__stream *stream = dev->streams.data[i];

        /* A stream of the vendor's may be gone, and the device is idle: the backend, which is
         * closed next, frees what it knows of it without asking it for anything more. */
        if (!stream->retired && stream->created) {
            dev->hw->ops->stream_close(dev->hw, stream->hw);
            (void)dev->hw->ops->stream_destroy(dev->hw, stream->native);
        }
        free(stream->clock);
        free(stream);
    }
    MB_VEC_FREE(&dev->streams);
    MB_VEC_FREE(&dev->idle_streams);
    mb__map_free(&dev->by_native);
}
