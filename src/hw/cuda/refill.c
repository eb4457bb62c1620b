/* SPDX-License-Identifier: MIT */
/*
 * refill.c - the helper channels that every device-table mode has, and the thread that looks after
 * them.
 *
 * queue     holds prepared invalidates for kernels that ask for them (program.h), topped up by the
 *           thread. Inline mode only.
 * rescue    invalidates on behalf of the host: new windows, exits, lost contexts. Nothing else is
 *           ever queued on it, so it is idle whenever it is needed.
 * thread    every few milliseconds: tops up, looks for errors of helper channels and of the
 *           context, and when the device is lost puts the driver's entries back. A dead helper ends
 *           the context: what waits for it would wait for ever, and must not be released.
 *
 * Numbers   CHUNK prepared invalidates per submission, CHUNKS submissions ahead. One is used up in
 *           no less than 1 us, so DEPTH outlasts the longest pause of the thread several times.
 * Locking   the thread owns `queue`; `rescue` is guarded by a flag that signal handlers may try.
 */
#include "hw/cuda/cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "hw/nvrm/channel.h"
#include "hw/nvrm/fence.h"

enum {
    CHUNK = 512,
    CHUNKS = 32,
    DEPTH = CHUNK * CHUNKS, /* 16384: at least 16 ms of requests without a pause */
    WORDS_EACH = 3 * NVRM_WORDS_SEMAPHORE + NVRM_WORDS_INVALIDATE,
    PERIOD_BUSY_US = 2000,
    PERIOD_IDLE_US = 10000,
    DRAIN_NS = 500000000, /* longest wait for all prepared invalidates */
};

struct mb_cuda_refill {
    struct mb_cuda *dev;
    struct nvrm_channel *queue;
    struct nvrm_channel *rescue;
    uint32_t *words;         /* one chunk, encoded */
    uint64_t ticket[CHUNKS]; /* of outstanding chunks, a ring */
    unsigned head, tail;     /* chunks submitted and used up; thread */
    uint64_t prepared;       /* number of the last prepared invalidate; thread */
    atomic_flag rescue_busy;
    pthread_t thread;
    pthread_mutex_t lock; /* of stop and wake */
    pthread_cond_t wake;
    bool stop, running;
    atomic_bool broken; /* by mb__cuda_refill_break() */
    bool restored;      /* after a loss; thread */
};

/* ------------------------------------------------------------ prepared invalidates */

static enum mb_err prepare_chunk(struct mb_cuda_refill *r)
{
    struct nvrm_push push;
    enum mb_err err;

    mb__nvrm_push_init(&push, r->dev->rm->arch, r->words, CHUNK * WORDS_EACH);
    for (unsigned i = 1; i <= CHUNK; i++)
        mb__cuda_helper_encode(r->dev, &push, r->prepared + i);
    err = mb__nvrm_channel_submit(r->queue, &push, 1, 0, &r->ticket[r->head % CHUNKS]);
    if (err)
        return err;
    r->head++;
    r->prepared += CHUNK;
    return MB_OK;
}

/* Returns whether anything had been used up. */
static bool top_up(struct mb_cuda_refill *r)
{
    bool used = false;

    while (r->tail != r->head && mb__nvrm_channel_done(r->queue, r->ticket[r->tail % CHUNKS])) {
        r->tail++;
        used = true;
    }
    while (r->head - r->tail < CHUNKS) {
        enum mb_err err = prepare_chunk(r);

        if (err == MB_ERR_BUSY)
            break;
        if (err) {
            (void)mb__cuda_lose(r->dev, MB_ERR_DEVICE_LOST, "preparing invalidates: %s",
                                mb_error_detail());
            break;
        }
    }
    return used;
}

/* ------------------------------------------------------------ rescue */

bool mb__cuda_rescue_invalidate(struct mb_cuda *dev, unsigned timeout_us)
{
    struct mb_cuda_refill *r = dev->refill;
    uint32_t words[NVRM_WORDS_INVALIDATE];
    struct nvrm_invalidate inval = {
        .pdb = dev->space.pdb, .aperture = NVRM_PDB_VIDMEM, .ack = true, .membar = NVRM_MEMBAR_GPU};
    uint64_t ticket, start = mb__now_ns();
    struct nvrm_push push;
    bool ok;

    if (!r || !r->rescue)
        return false;
    while (atomic_flag_test_and_set_explicit(&r->rescue_busy, memory_order_acquire)) {
        if (mb__now_ns() - start > (uint64_t)timeout_us * 1000)
            return false;
        mb__nvrm_cpu_relax();
    }
    mb__nvrm_push_init(&push, dev->rm->arch, words, NVRM_WORDS_INVALIDATE);
    mb__nvrm_push_invalidate(&push, &inval);
    ok = !mb__nvrm_channel_submit(r->rescue, &push, 1, 0, &ticket);
    if (ok && mb__nvrm_channel_wait(r->rescue, ticket, 1000000)) {
        mb__nvrm_channel_poke(r->rescue);
        ok = !mb__nvrm_channel_wait(r->rescue, ticket, (uint64_t)timeout_us * 1000);
    }
    atomic_flag_clear_explicit(&r->rescue_busy, memory_order_release);
    return ok;
}

/* ------------------------------------------------------------ watchdog */

/* Under the stream's lock, as the queue's channel may be stopped at any moment; a stream that is
 * submitting hears of errors itself. */
static void look_at_queue(struct mb_cuda *dev, struct mb_hw_stream *s)
{
    char text[160];

    if (pthread_mutex_trylock(&s->lock))
        return;
    if (s->queue && mb__cuda_queue_failed(s->queue, text, sizeof(text)))
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "%s", text);
    pthread_mutex_unlock(&s->lock);
}

static void look_at_helpers(struct mb_cuda_refill *r)
{
    struct mb_cuda *dev = r->dev;
    struct nvrm_channel_error error;

    if (r->queue && mb__nvrm_channel_error(r->queue, &error))
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "%s", mb_error_detail());
    if (r->rescue && mb__nvrm_channel_error(r->rescue, &error))
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "%s", mb_error_detail());
    pthread_mutex_lock(&dev->stream_lock);
    for (struct mb_hw_stream *s = dev->streams; s; s = s->next)
        look_at_queue(dev, s);
    pthread_mutex_unlock(&dev->stream_lock);
    if (r->queue)
        mb__nvrm_channel_poke(r->queue);
    if (atomic_load_explicit(&dev->pinned->error[0], memory_order_acquire))
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST,
                            "a kernel asked for invalidate %llu and got no answer from the helper "
                            "channel; it ended the context rather than go on with stale "
                            "translations",
                            (unsigned long long)atomic_load(&dev->pinned->error[1]));
}

/* Ends a context whose streams may wait for a helper that is gone. */
static void end_context(struct mb_cuda *dev)
{
    (void)dev->cu->launch(dev->trap, 1, 1, 1, 1, 1, 1, 0, dev->private_stream, NULL, NULL);
}

/* A fault of the application shows at its next call of ours; no stream is asked here, as a reset on
 * another thread could free it meanwhile. */
static void look(struct mb_cuda_refill *r)
{
    struct mb_cuda *dev = r->dev;

    if (!atomic_load_explicit(&dev->lost, memory_order_acquire) && mb__cuda_context_lives(dev))
        look_at_helpers(r);
    if (!atomic_load_explicit(&dev->lost, memory_order_acquire) || r->restored)
        return;
    if (!atomic_load(&dev->gone) && !atomic_load(&dev->destroyed))
        end_context(dev);
    r->restored = true;
    unsigned changed = mb__cuda_restore_windows(dev);
    bool ok = mb__cuda_rescue_invalidate(dev, 1000000);
    mb__log(MB_LOG_WARN, "cuda", "device lost: %u entries put back, invalidate %s", changed,
            ok ? "done" : "not answered");
}

static void *watch(void *user)
{
    struct mb_cuda_refill *r = user;
    unsigned period = PERIOD_BUSY_US;
    int mode = CU_CAPTURE_RELAXED;

    (void)r->dev->cu->ctx_set(r->dev->ctx);
    (void)r->dev->cu->capture_mode(&mode);
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct timespec until;

        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)period * 1000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&r->wake, &r->lock, &until);
        if (r->stop)
            break;
        pthread_mutex_unlock(&r->lock);
        if (atomic_load(&r->broken))
            mb__nvrm_channel_destroy(&r->queue);
        else if (r->queue && !atomic_load(&r->dev->lost))
            period = top_up(r) ? PERIOD_BUSY_US : PERIOD_IDLE_US;
        look(r);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* ------------------------------------------------------------ start and stop */

static enum mb_err make_shared(struct mb_cuda *dev)
{
    enum mb_err err = mb__nvrm_vas_create(dev->rm, &dev->vas);

    if (!err)
        err = mb__nvrm_mem_dup(dev->rm, dev->seen.client, dev->control_memory[1], MB_FRAME_BYTES,
                               true, &dev->shared_rm);
    return err ? err : mb__nvrm_mem_map_gpu(dev->shared_rm, dev->vas);
}

static enum mb_err start_thread(struct mb_cuda_refill *r)
{
    pthread_condattr_t attr;
    int rc;

    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->wake, &attr);
    pthread_condattr_destroy(&attr);
    rc = pthread_create(&r->thread, NULL, watch, r);
    if (rc)
        return mb__fail(MB_ERR_HOST_MEMORY, "starting the helper thread: %s", strerror(rc));
    r->running = true;
    return MB_OK;
}

/* A driver that refuses the slice serves as well; others on the engine wait longer then. */
static enum mb_err make_queue(struct mb_cuda *dev, struct nvrm_channel **out)
{
    struct nvrm_channel_request request = {.ring_entries = 256,
                                           .push_bytes = 4u << 20,
                                           .copy_engine = dev->helper.engine,
                                           .timeslice_us = dev->helper.slice_us};
    enum mb_err err = mb__nvrm_channel_create(dev->vas, &request, out);

    if (!err)
        return MB_OK;
    mb__log(MB_LOG_INFO, "cuda", "no helper channel with a time slice of %u us: %s",
            request.timeslice_us, mb_error_detail());
    request.timeslice_us = 0;
    return mb__nvrm_channel_create(dev->vas, &request, out);
}

enum mb_err mb__cuda_refill_start(struct mb_cuda *dev)
{
    struct nvrm_channel_request small = {
        .ring_entries = 64, .push_bytes = 64u << 10, .copy_engine = -1};
    struct mb_cuda_refill *r = calloc(1, sizeof(*r));
    enum mb_err err;

    if (!r)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for the helper's record");
    r->dev = dev;
    atomic_flag_clear(&r->rescue_busy);
    dev->refill = r;
    err = make_shared(dev);
    if (!err)
        err = mb__cuda_helper_engines(dev);
    small.copy_engine = dev->helper.rescue_engine;
    if (!err)
        err = mb__nvrm_channel_create(dev->vas, &small, &r->rescue);
    if (!err && dev->tables == MB_CUDA_INLINE) {
        r->words = malloc(sizeof(uint32_t) * CHUNK * WORDS_EACH);
        if (!r->words)
            err = mb__fail(MB_ERR_HOST_MEMORY, "no memory for prepared invalidates");
        if (!err)
            err = make_queue(dev, &r->queue);
        if (!err)
            (void)top_up(r);
        if (!err && !r->head)
            err = mb__fail(MB_ERR_DEVICE_LOST, "no invalidate could be prepared");
    }
    if (!err)
        err = start_thread(r);
    /* Each channel's ring lies in a frame of its own. */
    dev->overhead_bytes += (r->queue ? 2 : 1) * MB_FRAME_BYTES;
    if (err)
        mb__cuda_refill_stop(dev);
    return err;
}

/* Lets all prepared invalidates run, so that the queue is idle when it is destroyed: the driver
 * waits about a second for a channel that waits. */
static void drain(struct mb_cuda_refill *r)
{
    uint32_t words[NVRM_WORDS_SEMAPHORE];
    struct nvrm_push push;
    uint64_t ticket;
    enum mb_err err;

    if (!r->queue || !r->rescue || !r->head)
        return;
    if (atomic_load(&r->dev->lost) && !r->dev->exiting)
        return;
    mb__nvrm_push_init(&push, r->dev->rm->arch, words, NVRM_WORDS_SEMAPHORE);
    mb__nvrm_push_release64(&push, r->dev->shared_rm->va + MB_SHARED_REQUEST, r->prepared, 0);
    err = mb__nvrm_channel_submit(r->rescue, &push, 1, DRAIN_NS, &ticket);
    if (!err)
        err = mb__nvrm_channel_idle(r->queue, DRAIN_NS);
    if (err)
        mb__log(MB_LOG_WARN, "cuda", "prepared invalidates are dropped: %s", mb_error_detail());
}

void mb__cuda_refill_rest(struct mb_cuda *dev)
{
    struct mb_cuda_refill *r = dev->refill;

    if (!r)
        return;
    if (r->running) {
        r->running = false;
        pthread_mutex_lock(&r->lock);
        r->stop = true;
        pthread_cond_signal(&r->wake);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    if (dev->helper.drain)
        drain(r);
}

void mb__cuda_refill_stop(struct mb_cuda *dev)
{
    struct mb_cuda_refill *r = dev->refill;

    if (!r)
        return;
    mb__cuda_refill_rest(dev);
    if (r->stop) { /* it ran */
        pthread_mutex_destroy(&r->lock);
        pthread_cond_destroy(&r->wake);
    }
    dev->refill = NULL;
    mb__nvrm_channel_destroy(&r->queue);
    mb__nvrm_channel_destroy(&r->rescue);
    free(r->words);
    free(r);
}

void mb__cuda_refill_break(struct mb_cuda *dev)
{
    struct mb_cuda_refill *r = dev->refill;

    if (!r)
        return;
    atomic_store(&r->broken, true);
    while (__atomic_load_n(&r->queue, __ATOMIC_ACQUIRE))
        usleep(100);
}
