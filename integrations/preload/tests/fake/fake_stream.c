/* SPDX-License-Identifier: MIT */
/*
 * fake_stream.c - A FAKE of libcuda (see fake_cuda.h): streams as threads, values, events.
 *
 * Streams do not order themselves with the default one; calls that work at once on memory wait for
 * all streams instead. The per-thread default stream is one for each thread.
 */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum work { WRITE, WAIT, AFTER, KERNEL };

struct item {
    struct item *next;
    enum work work;
    _Atomic uint64_t *word; /* WRITE, WAIT */
    uint64_t value;
    struct stream *other; /* AFTER: until it has done `value` */
    const struct fake_kernel *kernel;
    void *arguments; /* KERNEL; owned */
};

/* Never freed: events name it. Everything under fake_lock. */
struct stream {
    struct stream *next;
    uint64_t issued, done;
    struct item *first, **last;
    int device; /* -1: a default stream, which a reset leaves */
    bool destroyed, broken;
};

struct event {
    struct stream *stream;
    uint64_t number;
};

static struct stream *streams, *legacy;
static __thread struct stream *per_thread;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static void *captured;

void fake_cuda_capture(void *stream)
{
    captured = stream;
}

/* fake_lock held: values are also written by the host, so look again soon. */
static void wait_a_little(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&changed, &fake_lock, &until);
}

static bool ready(const struct item *item)
{
    if (item->work == WAIT)
        return atomic_load(item->word) >= item->value;
    return item->work != AFTER || item->other->done >= item->value;
}

static void *run(void *user)
{
    struct stream *s = user;

    pthread_mutex_lock(&fake_lock);
    for (;;) {
        struct item *item = s->first;

        if (!item && s->destroyed)
            break;
        if (!item) {
            pthread_cond_wait(&changed, &fake_lock);
            continue;
        }
        if (!ready(item)) {
            wait_a_little();
            continue;
        }
        if (item->work == WRITE)
            atomic_store(item->word, item->value);
        if (item->work == KERNEL) { /* takes its time: others go on */
            pthread_mutex_unlock(&fake_lock);
            fake_kernel_run(item->kernel, item->arguments);
            pthread_mutex_lock(&fake_lock);
            free(item->arguments);
        }
        s->first = item->next;
        if (!s->first)
            s->last = &s->first;
        s->done++;
        free(item);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* fake_lock held */
static struct stream *new_stream(int device)
{
    struct stream *s = calloc(1, sizeof(*s));
    pthread_t thread;

    if (!s)
        abort();
    s->device = device;
    s->last = &s->first;
    if (pthread_create(&thread, NULL, run, s))
        abort();
    pthread_detach(thread);
    s->next = streams;
    streams = s;
    return s;
}

/* fake_lock held. NULL: no such stream. */
static struct stream *find(void *handle)
{
    if (!handle || handle == (void *)1)
        return legacy ? legacy : (legacy = new_stream(-1));
    if (handle == (void *)2)
        return per_thread ? per_thread : (per_thread = new_stream(-1));
    for (struct stream *s = streams; s; s = s->next) {
        if (s != handle)
            continue;
        if (!s->destroyed)
            return s;
        /* libcuda reads what was there: a crash on a good day. */
        fprintf(stderr, "fake libcuda: stream %p was destroyed and is used\n", handle);
        abort();
    }
    return NULL;
}

/* The number of the work; 0: no such stream. */
static uint64_t enqueue(void *handle, struct item item, struct stream **out)
{
    struct item *copy = malloc(sizeof(*copy));
    struct stream *s;
    uint64_t number = 0;

    if (!copy)
        abort();
    *copy = item;
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    if (s) {
        *s->last = copy;
        s->last = &copy->next;
        number = ++s->issued;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&fake_lock);
    if (!s)
        free(copy);
    else if (out)
        *out = s;
    return number;
}

bool fake_enqueue_kernel(void *stream, const struct fake_kernel *kernel, void *arguments)
{
    return enqueue(stream, (struct item){.work = KERNEL, .kernel = kernel, .arguments = arguments},
                   NULL) != 0;
}

void fake_sync_all(void)
{
    pthread_mutex_lock(&fake_lock);
    for (struct stream *s = streams; s; s = s->next) {
        for (uint64_t until = s->issued; s->done < until;)
            wait_a_little();
    }
    pthread_mutex_unlock(&fake_lock);
}

/* ------------------------------------------------------------ streams */

FAKE(cuStreamCreate, void **stream, unsigned flags)
{
    (void)flags;
    CALLED();
    if (!fake_current())
        return FAKE_INVALID_CONTEXT;
    pthread_mutex_lock(&fake_lock);
    *stream = new_stream(fake_current()->device);
    pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

FAKE(cuStreamCreateWithPriority, void **stream, unsigned flags, int priority)
{
    (void)priority;
    CALLED();
    return cuStreamCreate(stream, flags);
}

FAKE(cuCtxGetStreamPriorityRange, int *least, int *greatest)
{
    CALLED();
    *least = *greatest = 0;
    return FAKE_OK;
}

FAKE(cuStreamDestroy_v2, void *stream)
{
    struct stream *s;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    s = stream > (void *)2 ? find(stream) : NULL;
    if (s)
        s->destroyed = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&fake_lock);
    return s ? FAKE_OK : FAKE_INVALID_HANDLE;
}

void fake_end_streams(int device)
{
    for (struct stream *s = streams; s; s = s->next)
        s->destroyed |= s->device == device;
    pthread_cond_broadcast(&changed);
}

FAKE(cuStreamQuery, void *stream)
{
    struct stream *s;
    int result;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    s = find(stream);
    result = !s ? FAKE_INVALID_HANDLE : s->done < s->issued ? FAKE_NOT_READY : FAKE_OK;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

bool fake_sync(void *stream)
{
    struct stream *s;

    pthread_mutex_lock(&fake_lock);
    s = find(stream);
    for (uint64_t until = s ? s->issued : 0; s && s->done < until;)
        wait_a_little();
    pthread_mutex_unlock(&fake_lock);
    return s != NULL;
}

FAKE(cuStreamSynchronize, void *stream)
{
    CALLED();
    return fake_sync(stream) ? FAKE_OK : FAKE_INVALID_HANDLE;
}

FAKE(cuCtxSynchronize, void)
{
    CALLED();
    if (!fake_current())
        return FAKE_INVALID_CONTEXT;
    fake_sync_all();
    return FAKE_OK;
}

FAKE(cuStreamIsCapturing, void *stream, int *status)
{
    CALLED();
    *status = stream && stream == captured;
    return FAKE_OK;
}

FAKE(cuThreadExchangeStreamCaptureMode, int *mode)
{
    (void)mode;
    CALLED();
    return FAKE_OK;
}

/* ------------------------------------------------------------ values */

static int value_work(void *stream, enum work work, cu_ptr address, uint64_t value)
{
    struct item item = {
        .work = work, .word = (_Atomic uint64_t *)(uintptr_t)address, .value = value};

    return enqueue(stream, item, NULL) ? FAKE_OK : FAKE_INVALID_HANDLE;
}

FAKE(cuStreamWriteValue64_v2, void *stream, cu_ptr address, uint64_t value, unsigned flags)
{
    (void)flags;
    CALLED();
    return value_work(stream, WRITE, address, value);
}

FAKE(cuStreamWaitValue64_v2, void *stream, cu_ptr address, uint64_t value, unsigned flags)
{
    (void)flags;
    CALLED();
    return value_work(stream, WAIT, address, value);
}

struct op {
    int kind; /* 4: wait, 5: write */
    cu_ptr address;
    uint64_t value;
    uint64_t rest[3];
};

FAKE(cuStreamBatchMemOp_v2, void *stream, unsigned count, struct op *ops, unsigned flags)
{
    int result = FAKE_OK;

    (void)flags;
    CALLED();
    for (unsigned i = 0; i < count && !result; i++)
        result =
            ops[i].kind == 4 || ops[i].kind == 5
                ? value_work(stream, ops[i].kind == 4 ? WAIT : WRITE, ops[i].address, ops[i].value)
                : FAKE_INVALID_VALUE;
    return result;
}

/* ------------------------------------------------------------ events */

FAKE(cuEventCreate, struct event **event, unsigned flags)
{
    (void)flags;
    CALLED();
    *event = calloc(1, sizeof(**event));
    return *event ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

FAKE(cuEventDestroy_v2, struct event *event)
{
    CALLED();
    free(event);
    return FAKE_OK;
}

/* Everything before it on the stream: a write of nothing has its number. */
FAKE(cuEventRecord, struct event *event, void *stream)
{
    static _Atomic uint64_t nowhere;
    struct item item = {.work = WRITE, .word = &nowhere};

    CALLED();
    event->number = enqueue(stream, item, &event->stream);
    return event->number ? FAKE_OK : FAKE_INVALID_HANDLE;
}

FAKE(cuStreamWaitEvent, void *stream, struct event *event, unsigned flags)
{
    struct item item = {.work = AFTER, .other = event->stream, .value = event->number};

    (void)flags;
    CALLED();
    if (!event->stream)
        return FAKE_OK;
    return enqueue(stream, item, NULL) ? FAKE_OK : FAKE_INVALID_HANDLE;
}
