/* SPDX-License-Identifier: MIT */
/* fake_stream.c - A FAKE of libamdhip64 (see fake_hip.h): streams as threads, events, values,
 * copies. */
#define _GNU_SOURCE
#include "fake_hip.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAKE(name, ...)                                                                            \
    FAKE_API int name(__VA_ARGS__);                                                                \
    int name(__VA_ARGS__)

/* Never freed: others may name it. Everything under fake_lock. */
struct fake_stream {
    struct fake_stream *next;
    pthread_t thread;
    pid_t pid;             /* whose thread it is */
    uint64_t issued, done; /* numbers of work */
    struct item *first, **last;
    unsigned flags;
    bool destroyed, paused;
    bool ended, joined; /* the thread */
};

/* Work of a stream that starts when another has come to a number. */
struct after {
    struct fake_stream *stream;
    uint64_t number;
};

struct item {
    struct item *next;
    fake_work run; /* NULL: nothing to do but wait */
    void *arguments;
    const _Atomic uint64_t *value; /* waits until *value >= at_least */
    uint64_t at_least;
    unsigned after_count;
    struct after after[];
};

static struct fake_stream *streams, *null_stream;
static bool pause_all, process_ends;
static int broken;
static _Atomic pid_t owner; /* of the threads of the newest stream */

static bool ready(const struct fake_stream *s, const struct item *item)
{
    if (broken)
        return true;
    if (s->paused || pause_all)
        return false;
    for (unsigned i = 0; i < item->after_count; i++) {
        if (item->after[i].stream->done < item->after[i].number)
            return false;
    }
    return !item->value || *item->value >= item->at_least;
}

/* fake_lock held: until something changes; values may be written by the host, so not for ever. */
static void wait_for_change(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&fake_changed, &fake_lock, &until);
}

/* fake_lock held. Of a device that fails, too: what runs then may still use memory. */
static void wait_until_done(const struct fake_stream *s, uint64_t number)
{
    while (s->done < number && !s->ended)
        wait_for_change();
}

/* A failure stops the device: what it had begun ends, what waits is dropped, and from here on
 * nothing of it writes, so that its memory may go. */
void fake_hip_break(int result)
{
    pthread_mutex_lock(&fake_lock);
    broken = result;
    pthread_cond_broadcast(&fake_changed);
    for (struct fake_stream *s = streams; s && broken; s = s->next) {
        while (s->first)
            wait_for_change();
    }
    pthread_mutex_unlock(&fake_lock);
}

static void *run_stream(void *user)
{
    struct fake_stream *s = user;

    pthread_mutex_lock(&fake_lock);
    while (!process_ends && (s->first || !s->destroyed)) {
        struct item *item = s->first;

        if (!item) {
            pthread_cond_wait(&fake_changed, &fake_lock);
            continue;
        }
        if (!ready(s, item)) {
            wait_for_change();
            continue;
        }
        if (item->run && !broken) {
            pthread_mutex_unlock(&fake_lock);
            item->run(item->arguments);
            pthread_mutex_lock(&fake_lock);
        }
        s->first = item->next;
        if (!s->first)
            s->last = &s->first;
        s->done++;
        free(item->arguments);
        free(item);
        pthread_cond_broadcast(&fake_changed);
    }
    s->ended = true;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

/* fake_lock held, which a thread that has ended needs no more. */
static void join_ended(void)
{
    for (struct fake_stream *s = streams; s; s = s->next) {
        if (s->ended && !s->joined && s->pid == getpid()) {
            pthread_join(s->thread, NULL);
            s->joined = true;
        }
    }
}

/* No thread is left half torn down for a leak check to look at, nor at work when its memory goes.
 * A child of fork has none of its parent's, and maybe a lock that one of them had. */
__attribute__((destructor)) static void end_threads(void)
{
    if (owner != getpid())
        return;
    pthread_mutex_lock(&fake_lock);
    process_ends = true;
    pthread_cond_broadcast(&fake_changed);
    for (struct fake_stream *s = streams; s; s = s->next) {
        while (s->pid == getpid() && !s->ended)
            wait_for_change();
    }
    join_ended();
    pthread_mutex_unlock(&fake_lock);
}

/* fake_lock held */
static struct fake_stream *new_stream(unsigned flags)
{
    struct fake_stream *s = calloc(1, sizeof(*s));

    if (!s)
        return NULL;
    join_ended();
    s->flags = flags;
    s->pid = getpid();
    owner = s->pid;
    s->last = &s->first;
    if (pthread_create(&s->thread, NULL, run_stream, s)) {
        free(s);
        return NULL;
    }
    s->next = streams;
    streams = s;
    return s;
}

/* fake_lock held. NULL: no such stream. */
static struct fake_stream *find(void *handle)
{
    if (!handle || handle == (void *)1) {
        if (!null_stream)
            null_stream = new_stream(0);
        return null_stream;
    }
    for (struct fake_stream *s = streams; s; s = s->next) {
        if (s == handle && !s->destroyed && s != null_stream)
            return s;
    }
    return NULL;
}

/* fake_lock held. The order between the default stream and blocking ones, and what the caller asks
 * for. */
static struct item *new_item(struct fake_stream *s, const struct after *more)
{
    unsigned most = 2;
    struct item *item;

    for (struct fake_stream *o = streams; o; o = o->next)
        most++;
    item = calloc(1, sizeof(*item) + most * sizeof(item->after[0]));
    if (!item)
        abort();
    if (more)
        item->after[item->after_count++] = *more;
    if (s == null_stream) {
        for (struct fake_stream *o = streams; o; o = o->next) {
            if (o != s && !(o->flags & 1))
                item->after[item->after_count++] = (struct after){o, o->issued};
        }
    } else if (!(s->flags & 1) && null_stream) {
        item->after[item->after_count++] = (struct after){null_stream, null_stream->issued};
    }
    return item;
}

/* fake_lock held */
static void append(struct fake_stream *s, struct item *item)
{
    s->issued++;
    *s->last = item;
    s->last = &item->next;
    pthread_cond_broadcast(&fake_changed);
}

int fake_enqueue(void *handle, fake_work run, void *arguments)
{
    struct fake_stream *s;
    struct item *item;
    int result = FAKE_OK;

    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    if (broken || !s) {
        result = broken ? broken : FAKE_CONTEXT_DESTROYED;
        free(arguments);
    } else {
        item = new_item(s, NULL);
        item->run = run;
        item->arguments = arguments;
        append(s, item);
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

void fake_sync_all(void)
{
    pthread_mutex_lock(&fake_lock);
    for (struct fake_stream *s = streams; s; s = s->next)
        wait_until_done(s, s->issued);
    pthread_mutex_unlock(&fake_lock);
}

void fake_hip_pause(void *handle, bool paused)
{
    pthread_mutex_lock(&fake_lock);
    if (handle)
        ((struct fake_stream *)handle)->paused = paused;
    else
        pause_all = paused;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

/* ------------------------------------------------------------ streams */

FAKE(hipStreamCreateWithFlags, void **out, unsigned flags)
{
    struct fake_stream *s;

    FAKE_ENTER();
    if (!out || flags > 1)
        return FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    (void)find(NULL);
    s = new_stream(flags);
    pthread_mutex_unlock(&fake_lock);
    if (!s)
        return FAKE_OUT_OF_MEMORY;
    *out = s;
    return FAKE_OK;
}

FAKE(hipStreamCreate, void **out)
{
    return hipStreamCreateWithFlags(out, 0);
}

FAKE(hipStreamDestroy, void *handle)
{
    struct fake_stream *s;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    s = handle ? find(handle) : NULL;
    if (s)
        s->destroyed = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return s ? FAKE_OK : FAKE_INVALID_HANDLE;
}

FAKE(hipStreamQuery, void *handle)
{
    struct fake_stream *s;
    int result;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    result = broken                 ? broken
             : !s                   ? FAKE_CONTEXT_DESTROYED
             : s->done != s->issued ? FAKE_NOT_READY
                                    : FAKE_OK;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipStreamSynchronize, void *handle)
{
    struct fake_stream *s;
    int result = FAKE_OK;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    if (!s)
        result = FAKE_CONTEXT_DESTROYED;
    if (s)
        wait_until_done(s, s->issued);
    result = broken ? broken : result;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipDeviceSynchronize, void)
{
    int result;

    FAKE_ENTER();
    fake_sync_all();
    pthread_mutex_lock(&fake_lock);
    result = broken;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipStreamIsCapturing, void *handle, int *status)
{
    (void)handle;
    FAKE_ENTER();
    *status = 0;
    return FAKE_OK;
}

/* ------------------------------------------------------------ values */

struct write {
    _Atomic uint64_t *at;
    uint64_t value;
};

static void do_write(void *arguments)
{
    struct write *w = arguments;

    *w->at = w->value;
}

FAKE(hipStreamWriteValue64, void *handle, void *address, uint64_t value, unsigned flags)
{
    struct write *w;
    bool known;

    (void)flags;
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    known = fake_is_known(address, 8);
    pthread_mutex_unlock(&fake_lock);
    if (!known)
        return FAKE_INVALID_VALUE;
    w = malloc(sizeof(*w));
    if (!w)
        return FAKE_OUT_OF_MEMORY;
    *w = (struct write){address, value};
    return fake_enqueue(handle, do_write, w);
}

FAKE(hipStreamWaitValue64, void *handle, void *address, uint64_t value, unsigned flags,
     uint64_t mask)
{
    struct fake_stream *s;
    int result = FAKE_OK;

    FAKE_ENTER();
    if (!fake_options()->wait_values)
        return FAKE_NOT_SUPPORTED;
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    if (flags || mask != UINT64_MAX || !fake_is_signal(address)) {
        result = FAKE_INVALID_VALUE;
    } else if (broken || !s) {
        result = broken ? broken : FAKE_CONTEXT_DESTROYED;
    } else {
        struct item *item = new_item(s, NULL);

        item->value = address;
        item->at_least = value;
        append(s, item);
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* ------------------------------------------------------------ events */

FAKE(hipEventCreateWithFlags, struct after **out, unsigned flags)
{
    (void)flags;
    FAKE_ENTER();
    *out = calloc(1, sizeof(**out));
    return *out ? FAKE_OK : FAKE_OUT_OF_MEMORY;
}

FAKE(hipEventDestroy, struct after *event)
{
    FAKE_ENTER();
    free(event);
    return FAKE_OK;
}

FAKE(hipEventRecord, struct after *event, void *handle)
{
    struct fake_stream *s;
    int result;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    result = broken ? broken : s ? FAKE_OK : FAKE_CONTEXT_DESTROYED;
    if (!result) {
        append(s, new_item(s, NULL));
        *event = (struct after){s, s->issued};
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipStreamWaitEvent, void *handle, struct after *event, unsigned flags)
{
    struct fake_stream *s;
    int result;

    FAKE_ENTER();
    if (flags || !event)
        return FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    s = find(handle);
    result = broken ? broken : s ? FAKE_OK : FAKE_CONTEXT_DESTROYED;
    if (!result && event->stream)
        append(s, new_item(s, event));
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* ------------------------------------------------------------ copies */

struct copy {
    char *to;
    const char *from;
    size_t bytes;
    int value; /* from NULL: set */
};

static void do_copy(void *arguments)
{
    struct copy *c = arguments;

    /* A word arrives whole, as by a device. */
    if (c->from && c->bytes == 8 && !((uintptr_t)c->to % 8) && !((uintptr_t)c->from % 8))
        atomic_store((_Atomic uint64_t *)(uintptr_t)c->to,
                     atomic_load((const _Atomic uint64_t *)(uintptr_t)c->from));
    else if (c->from)
        memmove(c->to, c->from, c->bytes);
    else
        memset(c->to, c->value, c->bytes);
}

static int enqueue_copy(void *handle, struct copy copy)
{
    struct copy *c;

    c = malloc(sizeof(*c));
    if (!c)
        return FAKE_OUT_OF_MEMORY;
    *c = copy;
    return fake_enqueue(handle, do_copy, c);
}

FAKE(hipMemcpyDtoHAsync, void *to, void *from, size_t bytes, void *handle)
{
    bool known;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    known = fake_is_known(from, bytes);
    pthread_mutex_unlock(&fake_lock);
    return known ? enqueue_copy(handle, (struct copy){to, from, bytes, 0}) : FAKE_INVALID_VALUE;
}

FAKE(hipMemset, void *to, int value, size_t bytes)
{
    bool known;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    known = fake_is_known(to, bytes);
    pthread_mutex_unlock(&fake_lock);
    return known ? enqueue_copy(NULL, (struct copy){to, NULL, bytes, value}) : FAKE_INVALID_VALUE;
}

/* kind: 1 host to device, 2 device to host, 3 device to device; here all the same. */
FAKE(hipMemcpyAsync, void *to, const void *from, size_t bytes, int kind, void *handle)
{
    FAKE_ENTER();
    if (kind < 1 || kind > 4)
        return FAKE_INVALID_VALUE;
    return enqueue_copy(handle, (struct copy){to, from, bytes, 0});
}

FAKE(hipMemcpy, void *to, const void *from, size_t bytes, int kind)
{
    int result = hipMemcpyAsync(to, from, bytes, kind, NULL);

    return result ? result : hipStreamSynchronize(NULL);
}
