/* SPDX-License-Identifier: MIT */
/*
 * stream.c - contexts, streams and their timelines.
 *
 * How       Each stream owns one 64-bit word in pinned memory, its timeline. A fence is a number
 *           that the stream writes there when it gets to it, so "is it done?" is a load, and "wait
 *           for it" on another stream is a stream wait for a value. Numbers only grow.
 * Capture   A write that is captured would be replayed and put the word back. A fence recorded
 *           during a capture therefore names the stream's next number, which is enqueued when
 *           somebody needs it outside the capture: it covers everything launched on the stream
 *           until then.
 * Locking   stream->lock orders the numbers with the enqueued writes; dev->stream_lock guards the
 *           list, and is taken before it.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

/* ------------------------------------------------------------ context */

enum mb_err mb__cuda_lose(struct mb_cuda *dev, enum mb_err err, const char *format, ...)
{
    int expected = MB_OK;
    char text[sizeof(dev->lost_text)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    /* MB_ERR_INTERNAL marks "text is being written"; readers treat any value as lost. */
    if (atomic_compare_exchange_strong(&dev->lost, &expected, MB_ERR_INTERNAL)) {
        memcpy(dev->lost_text, text, sizeof(text));
        atomic_store_explicit(&dev->lost, (int)err, memory_order_release);
        mb__log(MB_LOG_ERROR, "cuda", "device %d lost: %s", dev->ordinal, text);
    }
    return mb__fail(err, "%s", text);
}

enum mb_err mb__cuda_result(struct mb_cuda *dev, cu_result result, const char *what)
{
    enum mb_err err = mb__cuda_check(dev->cu, result, what);

    if (result == CU_CONTEXT_DESTROYED)
        atomic_store(&dev->destroyed, true);
    if (err == MB_ERR_DEVICE_LOST)
        (void)mb__cuda_lose(dev, err, "%s", mb_error_detail());
    return err;
}

bool mb__cuda_context_lives(struct mb_cuda *dev)
{
    unsigned long long id = 0;

    if (mb__cuda_forked() || atomic_load(&dev->lost))
        return false;
    if (dev->cu->ctx_id(dev->ctx, &id) == CU_OK && id == dev->ctx_id)
        return true;
    atomic_store(&dev->destroyed, true);
    (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "the application reset the CUDA context");
    return false;
}

enum mb_err mb__cuda_enter(struct mb_cuda *dev, struct mb_cuda_scope *scope)
{
    cu_context current = NULL;

    scope->pushed = false;
    if (mb__cuda_forked())
        return mb__fail(MB_ERR_FORKED,
                        "this process is a fork of process %d, which owns the device; "
                        "open it again after exec",
                        dev->owner_pid);
    if (atomic_load_explicit(&dev->lost, memory_order_acquire) && !dev->closing)
        return mb__fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text);
    if (dev->cu->ctx_current(&current) == CU_OK && current == dev->ctx)
        return MB_OK;
    if (dev->cu->ctx_push(dev->ctx) != CU_OK)
        return mb__cuda_lose(dev, MB_ERR_DEVICE_LOST,
                             "the device's primary context cannot be made current; was it reset?");
    scope->pushed = true;
    return MB_OK;
}

void mb__cuda_leave(struct mb_cuda *dev, struct mb_cuda_scope *scope)
{
    cu_context popped;

    if (scope->pushed)
        (void)dev->cu->ctx_pop(&popped);
}

enum mb_err mb__cuda_enter_relaxed(struct mb_cuda *dev, struct mb_cuda_scope *scope)
{
    enum mb_err err = mb__cuda_enter(dev, scope);

    if (err)
        return err;
    scope->capture_mode = CU_CAPTURE_RELAXED;
    (void)dev->cu->capture_mode(&scope->capture_mode);
    return MB_OK;
}

void mb__cuda_leave_relaxed(struct mb_cuda *dev, struct mb_cuda_scope *scope)
{
    (void)dev->cu->capture_mode(&scope->capture_mode);
    mb__cuda_leave(dev, scope);
}

bool mb__cuda_capturing(struct mb_cuda *dev, struct mb_hw_stream *stream)
{
    int status = CU_CAPTURE_NONE;

    return dev->cu->stream_capturing(stream->native, &status) == CU_OK && status != CU_CAPTURE_NONE;
}

/* The one stream that cannot be asked while another one is captured is not captured itself. */
bool mb__cuda_stream_capturing(struct mb_hw_dev *hw, mb_stream native)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    int status = CU_CAPTURE_NONE;
    bool capturing;

    if (!native || mb__cuda_enter(dev, &scope))
        return false;
    capturing =
        dev->cu->stream_capturing((cu_stream)native, &status) == CU_OK && status != CU_CAPTURE_NONE;
    mb__cuda_leave(dev, &scope);
    return capturing;
}

/* ------------------------------------------------------------ streams */

enum { PINNED_BYTES = MB_CUDA_STREAMS * MB_CUDA_WORD_BYTES + 4096 };

/* Memory of our own, registered with the driver: it stays readable when the context is reset, and
 * shared pages are not copied when the process forks. */
enum mb_err mb__cuda_streams_init(struct mb_cuda *dev)
{
    void *p = mmap(NULL, PINNED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    enum mb_err err;

    if (p == MAP_FAILED)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for timelines");
    err = mb__cuda_check(
        dev->cu,
        dev->cu->host_register(p, PINNED_BYTES, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_MAPPED),
        "pinning memory for timelines");
    if (err) {
        (void)munmap(p, PINNED_BYTES);
        return err;
    }
    err = mb__cuda_check(dev->cu, dev->cu->host_device_ptr(&dev->pinned_dev, p, 0),
                         "device address of pinned memory");
    dev->pinned = p;
    dev->timelines = (_Atomic uint64_t *)((char *)p + 4096);
    dev->timelines_dev = dev->pinned_dev + 4096;
    pthread_mutex_init(&dev->stream_lock, NULL);
    return err;
}

void mb__cuda_streams_fini(struct mb_cuda *dev)
{
    while (dev->streams) {
        struct mb_hw_stream *s = dev->streams;

        dev->streams = s->next;
        mb__cuda_queue_destroy(dev, s->queue);
        pthread_mutex_destroy(&s->lock);
        free(s);
    }
    if (!dev->pinned)
        return;
    if (!atomic_load(&dev->gone))
        (void)dev->cu->host_unregister(dev->pinned);
    (void)munmap(dev->pinned, PINNED_BYTES);
    pthread_mutex_destroy(&dev->stream_lock);
    dev->pinned = NULL;
}

enum mb_err mb__cuda_stream_create(struct mb_hw_dev *hw, mb_stream *native)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    cu_stream stream = NULL;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->stream_create(&stream, CU_STREAM_NON_BLOCKING),
                          "creating a stream");
    mb__cuda_leave(dev, &scope);
    if (!err)
        *native = stream;
    return err;
}

enum mb_err mb__cuda_stream_destroy(struct mb_hw_dev *hw, mb_stream native)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->stream_destroy(native), "destroying a stream");
    mb__cuda_leave(dev, &scope);
    return err;
}

/* dev->stream_lock held. A closed stream that has drained, or NULL. */
static struct mb_hw_stream *find_closed(struct mb_cuda *dev)
{
    for (struct mb_hw_stream *s = dev->streams; s; s = s->next) {
        if (!s->open && atomic_load_explicit(s->timeline, memory_order_acquire) >= s->seq)
            return s;
    }
    return NULL;
}

/* dev->stream_lock held */
static enum mb_err new_stream(struct mb_cuda *dev, struct mb_hw_stream **out)
{
    struct mb_hw_stream *s;

    if (dev->stream_count == MB_CUDA_STREAMS)
        return mb__fail(MB_ERR_LIMIT, "MoonBright serves at most %d streams of a device at once",
                        MB_CUDA_STREAMS);
    s = calloc(1, sizeof(*s));
    if (!s)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a stream's record");
    s->dev = dev;
    s->index = dev->stream_count++;
    s->timeline =
        (_Atomic uint64_t *)((char *)dev->timelines + (size_t)s->index * MB_CUDA_WORD_BYTES);
    s->timeline_dev = dev->timelines_dev + (uint64_t)s->index * MB_CUDA_WORD_BYTES;
    pthread_mutex_init(&s->lock, NULL);
    s->next = dev->streams;
    dev->streams = s;
    *out = s;
    return MB_OK;
}

enum mb_err mb__cuda_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_hw_stream *s;
    enum mb_err err = MB_OK;

    if (mb__cuda_forked())
        return mb__fail(MB_ERR_FORKED, "a fork cannot use its parent's device");
    if ((uintptr_t)native == 1) /* cudaStreamLegacy */
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
    if (!err)
        *out = s;
    return err;
}

/* ------------------------------------------------------------ fences */

/* lock held, not capturing */
static enum mb_err write_next(struct mb_cuda *dev, struct mb_hw_stream *s)
{
    enum mb_err err = mb__cuda_result(
        dev, dev->cu->stream_write64(s->native, s->timeline_dev, s->seq + 1, 0), "writing a fence");

    if (!err)
        s->seq++;
    return err;
}

void mb__cuda_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (!err) {
        /* Fences that name the number after the last must come true as well. The native stream is
         * still there: its owner tells before it goes. Where the driver refuses, as after a fatal
         * fault, everything on it has been executed or never will be. */
        pthread_mutex_lock(&stream->lock);
        if (mb__cuda_capturing(dev, stream) || write_next(dev, stream))
            stream->seq = atomic_load_explicit(stream->timeline, memory_order_acquire) + 1;
        pthread_mutex_unlock(&stream->lock);
        mb__cuda_leave(dev, &scope);
    }
    /* Under both: who waits for a fence of it looks under the stream's own. */
    pthread_mutex_lock(&dev->stream_lock);
    pthread_mutex_lock(&stream->lock);
    stream->open = false;
    pthread_mutex_unlock(&stream->lock);
    pthread_mutex_unlock(&dev->stream_lock);
}

enum mb_err mb__cuda_fence_record(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                  struct mb_hw_fence *out)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    uint64_t seq;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    pthread_mutex_lock(&stream->lock);
    if (!mb__cuda_capturing(dev, stream)) {
        err = write_next(dev, stream);
        seq = stream->seq;
    } else {
        seq = stream->seq + 1;
    }
    pthread_mutex_unlock(&stream->lock);
    mb__cuda_leave(dev, &scope);
    if (!err)
        *out = (struct mb_hw_fence){.stream = stream, .seq = seq};
    return err;
}

bool mb__cuda_fence_done(struct mb_hw_dev *hw, struct mb_hw_fence fence)
{
    (void)hw;
    return !fence.stream ||
           atomic_load_explicit(fence.stream->timeline, memory_order_acquire) >= fence.seq;
}

/* Enqueues the write of a fence that was recorded during a capture, if nobody did so far. */
static enum mb_err ensure_written(struct mb_cuda *dev, struct mb_hw_fence fence)
{
    struct mb_hw_stream *s = fence.stream;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&s->lock);
    if (s->seq < fence.seq && s->open) {
        if (mb__cuda_capturing(dev, s))
            err = mb__fail(MB_ERR_NOT_SUPPORTED,
                           "the fence belongs to a stream that is still being captured: end the "
                           "capture before MoonBright's own work waits for it");
        else
            err = write_next(dev, s);
    }
    pthread_mutex_unlock(&s->lock);
    return err;
}

enum mb_err mb__cuda_enqueue_wait(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                  struct mb_hw_fence fence)
{
    return mb__cuda_result(
        dev,
        dev->cu->stream_wait64(stream->native, fence.stream->timeline_dev, fence.seq, CU_WAIT_GEQ),
        "waiting for a fence on a stream");
}

enum mb_err mb__cuda_fence_wait_stream(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                       struct mb_hw_fence fence)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err;

    if (fence.stream == stream || mb__cuda_fence_done(hw, fence))
        return MB_OK;
    err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    err = ensure_written(dev, fence);
    if (!err) {
        pthread_mutex_lock(&stream->lock);
        err = mb__cuda_enqueue_wait(dev, stream, fence);
        pthread_mutex_unlock(&stream->lock);
    }
    mb__cuda_leave(dev, &scope);
    return err;
}

/* The driver's own events make the edge of the graph: what is captured on the fence's stream so far
 * comes before what will be on `stream`, which is captured too from now on. */
static enum mb_err join_capture(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                struct mb_hw_stream *other)
{
    enum { NO_TIMING = 2 };
    cu_event event = NULL;
    enum mb_err err =
        mb__cuda_result(dev, dev->cu->event_create(&event, NO_TIMING), "an event of a capture");

    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->event_record(event, other->native),
                          "recording an event in a capture");
    if (!err)
        err = mb__cuda_result(dev, dev->cu->stream_wait_event(stream->native, event, 0),
                              "waiting for an event of another stream's capture");
    (void)dev->cu->event_destroy(event);
    return err;
}

/* Only a fence that was recorded in a capture under way has a number that is not written yet. */
enum mb_err mb__cuda_event_wait(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                struct mb_hw_fence fence)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_hw_stream *other = fence.stream;
    struct mb_cuda_scope scope;
    bool inside;
    enum mb_err err;

    if (other == stream || mb__cuda_fence_done(hw, fence))
        return MB_OK;
    pthread_mutex_lock(&other->lock);
    inside = other->open && other->seq < fence.seq;
    pthread_mutex_unlock(&other->lock);
    if (!inside)
        return mb__cuda_fence_wait_stream(hw, stream, fence);
    err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    inside = mb__cuda_capturing(dev, other);
    if (inside)
        err = join_capture(dev, stream, other);
    mb__cuda_leave(dev, &scope);
    return inside ? err : mb__cuda_fence_wait_stream(hw, stream, fence);
}

/* The context's fatal error, if there is one: asked for when a wait takes long. Any stream tells
 * it, and the fence's own may have been destroyed. */
enum mb_err mb__cuda_context_error(struct mb_cuda *dev)
{
    cu_result result;

    if (!mb__cuda_context_lives(dev))
        return mb__fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text);
    result = dev->cu->stream_query(dev->private_stream);

    if (mb__cuda_is_fatal(result))
        return mb__cuda_result(dev, result, "waiting for the device");
    return atomic_load(&dev->lost) ? mb__fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text) : MB_OK;
}

enum mb_err mb__cuda_fence_wait_host(struct mb_hw_dev *hw, struct mb_hw_fence fence,
                                     uint64_t timeout_ns)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    uint64_t start;
    enum mb_err err;

    if (mb__cuda_fence_done(hw, fence))
        return MB_OK;
    err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    err = ensure_written(dev, fence);
    start = mb__now_ns();
    for (unsigned spin = 0; !err && !mb__cuda_fence_done(hw, fence); spin++) {
        uint64_t waited = mb__now_ns() - start;

        if (timeout_ns && waited > timeout_ns)
            err = mb__fail(MB_ERR_TIMEOUT,
                           "the stream has not reached its fence %" PRIu64 " after %" PRIu64 " ns",
                           fence.seq, waited);
        else if (waited > 50000 && spin % 64 == 0)
            err = mb__cuda_context_error(dev);
        if (waited > 200000)
            usleep(20);
        else if (waited > 20000)
            sched_yield();
    }
    mb__cuda_leave(dev, &scope);
    return err;
}

enum mb_err mb__cuda_device_sync(struct mb_hw_dev *hw)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->ctx_sync(), "waiting for the device");
    mb__cuda_leave(dev, &scope);
    return err;
}
