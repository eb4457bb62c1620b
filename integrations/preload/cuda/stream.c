/* SPDX-License-Identifier: MIT */
/*
 * stream.c - streams as MoonBright is to see them.
 *
 * Per-thread default streams of all threads have the one handle 2, so MoonBright cannot tell them
 * apart, and memory freed on one would be given to another without an order. Each thread therefore
 * has a helper stream in each context, which takes part in MoonBright's order in its place.
 * Trade-off   Two calls of the driver at each allocation and free on such a stream.
 * Locking     Helpers are the thread's own. They go to a list when the thread ends, and the next
 *             thread takes them from there; `lock`.
 */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

#define STREAM_LEGACY ((void *)1)
#define STREAM_PER_THREAD ((void *)2)

enum { NON_BLOCKING = 1, NO_TIMING = 2 };

struct helper {
    struct helper *next;
    void *ctx, *stream, *event;
    uint64_t resets; /* of the context when it was made; a reset ends its streams and events */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;
static struct helper *unused; /* lock */

static void give(void *user)
{
    struct helper *list = user;

    pthread_mutex_lock(&lock);
    while (list) {
        struct helper *next = list->next;

        list->next = unused;
        unused = list;
        list = next;
    }
    pthread_mutex_unlock(&lock);
}

static void make_key(void)
{
    have_key = !pthread_key_create(&key, give);
}

static struct helper *take_unused(void *ctx)
{
    struct helper *found = NULL;

    pthread_mutex_lock(&lock);
    for (struct helper **at = &unused; *at; at = &(*at)->next) {
        if ((*at)->ctx == ctx) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Makes its stream and event, or makes them anew after a reset, which took the old ones. */
static int fill(struct helper *h, uint64_t resets)
{
    void *stream = NULL, *event = NULL;
    int result = REAL(stream_create, &stream, NON_BLOCKING);

    if (!result)
        result = REAL(event_create, &event, NO_TIMING);
    if (result) {
        if (stream)
            (void)REAL(stream_destroy, stream);
        return result;
    }
    h->stream = stream;
    h->event = event;
    h->resets = resets;
    return CU_OK;
}

static int make_helper(void *ctx, uint64_t resets, struct helper **out)
{
    struct helper *h = calloc(1, sizeof(*h));
    int result;

    if (!h)
        return CU_OUT_OF_MEMORY;
    h->ctx = ctx;
    result = fill(h, resets);
    if (result) {
        free(h);
        return result;
    }
    *out = h;
    return CU_OK;
}

static int helper(struct cuda_side *out)
{
    struct helper *list, *h;
    void *ctx = NULL;
    int result = REAL(ctx_current, &ctx);
    uint64_t resets = cuda_resets(ctx);

    pthread_once(&once, make_key);
    if (result || !have_key)
        return result ? result : CU_UNKNOWN;
    list = pthread_getspecific(key);
    for (h = list; h && h->ctx != ctx; h = h->next)
        ;
    if (!h) {
        h = take_unused(ctx);
        if (!h)
            result = make_helper(ctx, resets, &h);
        if (result)
            return result;
        h->next = list;
        if (pthread_setspecific(key, h)) {
            h->next = NULL;
            give(h);
            return CU_OUT_OF_MEMORY;
        }
    }
    result = h->resets == resets ? CU_OK : fill(h, resets);
    if (result)
        return result;
    out->stream = h->stream;
    out->event = h->event;
    return CU_OK;
}

int cuda_side(void *stream, enum cuda_zero zero, struct cuda_side *out)
{
    if (!stream && zero == PER_THREAD)
        stream = STREAM_PER_THREAD;
    *out = (struct cuda_side){.stream = stream == STREAM_LEGACY ? NULL : stream, .caller = stream};
    return stream == STREAM_PER_THREAD ? helper(out) : CU_OK;
}

int cuda_side_behind(const struct cuda_side *side)
{
    int result = side->event ? REAL(event_record, side->event, side->caller) : CU_OK;

    return result || !side->event ? result : REAL(stream_wait, side->stream, side->event, 0);
}

int cuda_side_before(const struct cuda_side *side)
{
    int result = side->event ? REAL(event_record, side->event, side->stream) : CU_OK;

    return result || !side->event ? result : REAL(stream_wait, side->caller, side->event, 0);
}

bool cuda_capturing(void *stream)
{
    int status = 0;

    return REAL(stream_capturing, stream, &status) || status;
}
