/* SPDX-License-Identifier: MIT */
/*
 * stream.c - streams and their timelines.
 *
 * How       Each stream owns one 64-bit word that the host can read, its timeline. A fence is a
 *           number that the stream writes there when it gets to it; numbers only grow. Another
 *           stream waits for a fence by waiting for the value, which HIP promises for signal
 *           memory only, 8 bytes each; where the device cannot do that, it waits for an event
 *           recorded at that moment, which may be later than the fence.
 * No host   A stream never waits for something that the host will do: HIP's unmap waits for every
 *           stream of the device, so the two would wait for each other (doc/amd.md).
 * Capture   A write that is captured would be replayed and put the word back. A fence recorded
 *           during a capture names the stream's next number, which is enqueued when somebody needs
 *           it outside the capture.
 * Locking   stream->lock orders the numbers with the enqueued writes; dev->stream_lock, which is
 *           taken before it, guards the list.
 */
#include "hw/hip/hip.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum mb_err mb__hip_streams_init(struct mb_hip *dev)
{
    size_t words = (size_t)MB_HIP_STREAMS * MB_HIP_WORD_BYTES, wrong = MB_HIP_STREAMS * 8;
    void *p = NULL;
    enum mb_err err =
        mb__hip_check(dev->hip,
                      dev->hip->host_alloc(&p, words + wrong,
                                           HIP_HOST_PORTABLE | HIP_HOST_MAPPED | HIP_HOST_COHERENT),
                      "pinned memory for timelines");

    if (err)
        return err;
    memset(p, 0, words + wrong);
    dev->pinned = p;
    dev->wrong = (_Atomic uint64_t *)(void *)((char *)p + words);
    return mb__hip_check(dev->hip,
                         dev->hip->stream_create(&dev->private_stream, HIP_STREAM_NON_BLOCKING),
                         "creating a stream");
}

static void free_stream(struct mb_hip *dev, struct mb_hw_stream *s)
{
    if (s->signal)
        (void)dev->hip->free(s->signal);
    if (s->last)
        (void)dev->hip->event_destroy(s->last);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void mb__hip_streams_fini(struct mb_hip *dev)
{
    while (dev->streams) {
        struct mb_hw_stream *s = dev->streams;

        dev->streams = s->next;
        free_stream(dev, s);
    }
    if (dev->private_stream)
        (void)dev->hip->stream_destroy(dev->private_stream);
    dev->private_stream = NULL;
    if (dev->pinned)
        (void)dev->hip->host_free(dev->pinned);
    dev->pinned = NULL;
}

bool mb__hip_capturing(struct mb_hip *dev, struct mb_hw_stream *stream)
{
    int status = HIP_CAPTURE_NONE;

    return dev->hip->stream_capturing(stream->native, &status) == HIP_OK &&
           status != HIP_CAPTURE_NONE;
}

bool mb__hip_stream_capturing(struct mb_hw_dev *hw, mb_stream native)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    int status = HIP_CAPTURE_NONE;
    bool capturing;

    if (!native || mb__hip_enter(dev, &scope))
        return false;
    capturing = dev->hip->stream_capturing((hip_stream)native, &status) == HIP_OK &&
                status != HIP_CAPTURE_NONE;
    mb__hip_leave(dev, &scope);
    return capturing;
}

/* ------------------------------------------------------------ streams */

enum mb_err mb__hip_stream_create(struct mb_hw_dev *hw, mb_stream *native)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    hip_stream stream = NULL;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    err = mb__hip_result(dev, dev->hip->stream_create(&stream, HIP_STREAM_NON_BLOCKING),
                         "creating a stream");
    mb__hip_leave(dev, &scope);
    if (!err)
        *native = stream;
    return err;
}

enum mb_err mb__hip_stream_destroy(struct mb_hw_dev *hw, mb_stream native)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    err = mb__hip_result(dev, dev->hip->stream_destroy(native), "destroying a stream");
    mb__hip_leave(dev, &scope);
    return err;
}

/* dev->stream_lock held. A closed stream that has drained, or NULL. */
static struct mb_hw_stream *find_closed(struct mb_hip *dev)
{
    for (struct mb_hw_stream *s = dev->streams; s; s = s->next) {
        if (!s->open && atomic_load_explicit(s->timeline, memory_order_acquire) >= s->seq)
            return s;
    }
    return NULL;
}

/* The word that the stream writes to and others wait for. */
static enum mb_err make_timeline(struct mb_hip *dev, struct mb_hw_stream *s)
{
    if (!dev->wait_values) {
        s->timeline = (_Atomic uint64_t *)(void *)((char *)dev->pinned +
                                                   (size_t)s->index * MB_HIP_WORD_BYTES);
        return mb__hip_check(dev->hip, dev->hip->event_create(&s->last, HIP_EVENT_NO_TIMING),
                             "creating an event");
    }
    enum mb_err err = mb__hip_check(
        dev->hip, dev->hip->malloc_with_flags(&s->signal, 8, HIP_MALLOC_SIGNAL), "signal memory");
    if (!err) {
        s->timeline = s->signal;
        atomic_store(s->timeline, 0);
    }
    return err;
}

/* dev->stream_lock held */
static enum mb_err new_stream(struct mb_hip *dev, struct mb_hw_stream **out)
{
    struct mb_hw_stream *s;
    enum mb_err err;

    if (dev->stream_count == MB_HIP_STREAMS)
        return mb__hip_fail(MB_ERR_LIMIT,
                            "MoonBright serves at most %d streams of a device at once",
                            MB_HIP_STREAMS);
    s = calloc(1, sizeof(*s));
    if (!s)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for a stream's record");
    s->index = dev->stream_count;
    pthread_mutex_init(&s->lock, NULL);
    err = make_timeline(dev, s);
    if (err) {
        free_stream(dev, s);
        return err;
    }
    dev->stream_count++;
    s->next = dev->streams;
    dev->streams = s;
    *out = s;
    return MB_OK;
}

enum mb_err mb__hip_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    struct mb_hw_stream *s;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    if ((uintptr_t)native == 1) /* hipStreamLegacy */
        native = NULL;
    pthread_mutex_lock(&dev->stream_lock);
    for (s = dev->streams; s; s = s->next) {
        if (s->open && s->native == native)
            break;
    }
    if (!s) {
        s = find_closed(dev);
        if (!s)
            err = new_stream(dev, &s);
        if (!err && s) {
            s->native = native;
            s->open = true;
        }
    }
    pthread_mutex_unlock(&dev->stream_lock);
    mb__hip_leave(dev, &scope);
    if (!err)
        *out = s;
    return err;
}

/* ------------------------------------------------------------ fences */

/* lock held, not capturing */
static enum mb_err write_next(struct mb_hip *dev, struct mb_hw_stream *s)
{
    enum mb_err err = mb__hip_result(
        dev, dev->hip->stream_write64(s->native, (void *)(uintptr_t)s->timeline, s->seq + 1, 0),
        "writing a fence");

    if (!err)
        s->seq++;
    return err;
}

void mb__hip_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;

    if (!mb__hip_enter(dev, &scope)) {
        /* Fences that name the number after the last must come true as well. The native stream is
         * still there: its owner tells before it goes. Where the driver refuses, as after a fatal
         * fault, everything on it has been executed or never will be. */
        pthread_mutex_lock(&stream->lock);
        if (mb__hip_capturing(dev, stream) || write_next(dev, stream))
            stream->seq = atomic_load_explicit(stream->timeline, memory_order_acquire) + 1;
        else if (stream->last)
            (void)dev->hip->event_record(stream->last, stream->native);
        pthread_mutex_unlock(&stream->lock);
        mb__hip_leave(dev, &scope);
    }
    /* Under both: who waits for a fence of it looks under the stream's own. */
    pthread_mutex_lock(&dev->stream_lock);
    pthread_mutex_lock(&stream->lock);
    stream->open = false;
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&dev->stream_lock);
}

enum mb_err mb__hip_fence_record(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                 struct mb_hw_fence *out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    uint64_t seq;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    pthread_mutex_lock(&stream->lock);
    if (!mb__hip_capturing(dev, stream)) {
        err = write_next(dev, stream);
        seq = stream->seq;
    } else {
        seq = stream->seq + 1;
    }
    pthread_mutex_unlock(&stream->lock);
    mb__hip_leave(dev, &scope);
    if (!err)
        *out = (struct mb_hw_fence){.stream = stream, .seq = seq};
    return err;
}

bool mb__hip_fence_done(struct mb_hw_dev *hw, struct mb_hw_fence fence)
{
    (void)hw;
    return !fence.stream ||
           atomic_load_explicit(fence.stream->timeline, memory_order_acquire) >= fence.seq;
}

/* Enqueues the write of a fence that was recorded during a capture, if nobody did so far; without
 * signal memory also an event behind it. */
static enum mb_err ensure_written(struct mb_hip *dev, struct mb_hw_fence fence, bool event)
{
    struct mb_hw_stream *s = fence.stream;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&s->lock);
    if (s->seq < fence.seq) {
        if (mb__hip_capturing(dev, s))
            err =
                mb__hip_fail(MB_ERR_NOT_SUPPORTED,
                             "the fence belongs to a stream that is still being captured: end the "
                             "capture before something outside waits for it; between streams of "
                             "one capture use hipEventRecord() and hipStreamWaitEvent()");
        else
            err = write_next(dev, s);
    }
    if (!err && event && s->last && s->open)
        err = mb__hip_result(dev, dev->hip->event_record(s->last, s->native), "recording an event");
    pthread_mutex_unlock(&s->lock);
    return err;
}

static hip_result enqueue_wait(struct mb_hip *dev, struct mb_hw_stream *stream,
                               struct mb_hw_fence fence)
{
    if (fence.stream->last)
        return dev->hip->stream_wait_event(stream->native, fence.stream->last, 0);
    return dev->hip->stream_wait64(stream->native, fence.stream->signal, fence.seq, HIP_WAIT_GEQ,
                                   UINT64_MAX);
}

enum mb_err mb__hip_fence_wait_stream(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                      struct mb_hw_fence fence)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err;

    if (fence.stream == stream || mb__hip_fence_done(hw, fence))
        return MB_OK;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    err = ensure_written(dev, fence, true);
    if (!err) {
        pthread_mutex_lock(&stream->lock);
        err = mb__hip_result(dev, enqueue_wait(dev, stream, fence),
                             "waiting for a fence on a stream");
        pthread_mutex_unlock(&stream->lock);
    }
    mb__hip_leave(dev, &scope);
    return err;
}

/* The device's fatal error, if there is one: asked for when a wait takes long. */
static enum mb_err query(struct mb_hip *dev)
{
    hip_result result = dev->hip->stream_query(dev->private_stream);

    if (mb__hip_err(result) == MB_ERR_DEVICE_LOST)
        return mb__hip_result(dev, result, "waiting for a fence");
    return atomic_load(&dev->lost) ? mb__hip_fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text) : MB_OK;
}

enum mb_err mb__hip_fence_wait_host(struct mb_hw_dev *hw, struct mb_hw_fence fence,
                                    uint64_t timeout_ns)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    uint64_t start;
    enum mb_err err;

    if (mb__hip_fence_done(hw, fence))
        return MB_OK;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    err = ensure_written(dev, fence, false);
    start = mb__now_ns();
    for (unsigned spin = 0; !err && !mb__hip_fence_done(hw, fence); spin++) {
        uint64_t waited = mb__now_ns() - start;

        if (timeout_ns && waited > timeout_ns)
            err = mb__hip_fail(MB_ERR_TIMEOUT,
                               "the stream has not reached its fence %" PRIu64 " after %" PRIu64
                               " ns",
                               fence.seq, waited);
        else if (waited > 50000 && spin % 64 == 0)
            err = query(dev);
        if (waited > 200000)
            usleep(20);
        else if (waited > 20000)
            sched_yield();
    }
    mb__hip_leave(dev, &scope);
    return err;
}

enum mb_err mb__hip_device_sync(struct mb_hw_dev *hw)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    err = mb__hip_result(dev, dev->hip->device_sync(), "waiting for the device");
    mb__hip_leave(dev, &scope);
    return err;
}
