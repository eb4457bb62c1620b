/* SPDX-License-Identifier: MIT */
/*
 * Where records go: into the trace file, the ring of the history and the queue of the hook.
 *
 * Many records are made deep under the device's lock, where no foreign code may run. So hook
 * events are queued, and every public call delivers what is queued when it has dropped its locks;
 * that may be another thread's event.
 */
#include "runtime/watch.h"

#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/log.h"

static _Thread_local bool delivering; /* this thread is inside mb__watch_deliver() */

static uint64_t wall_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static void watch_free(struct mb__watch *watch)
{
    mb__tracefile_close(watch->file);
    mb__nvtx_close(watch->nvtx);
    MB_VEC_FREE(&watch->queue);
    free(watch->ring);
    mb__lock_destroy(&watch->order);
    mb__lock_destroy(&watch->lock);
    free(watch);
}

static struct mb__watch *watch_new(void)
{
    struct mb__watch *watch = calloc(1, sizeof(*watch));

    if (!watch)
        return NULL;
    if (mb__lock_init(&watch->order, "records", MB__RANK_ORDER))
        goto undo_watch;
    if (mb__lock_init(&watch->lock, "watch", MB_RANK_LEAF))
        goto undo_order;
    return watch;
undo_order:
    mb__lock_destroy(&watch->order);
undo_watch:
    free(watch);
    return NULL;
}

enum mb_err mb__watch_open(struct mb_device *dev)
{
    const struct mb__config *config = &dev->config;
    struct mb__watch *watch;
    enum mb_err err = MB_OK;

    if (!*config->trace && !config->history && !*config->nvtx)
        return MB_OK;
    watch = watch_new();
    if (!watch)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory to watch a device");
    if (config->history) {
        watch->ring_size = config->history;
        watch->ring = malloc(config->history * sizeof(*watch->ring));
        if (!watch->ring)
            err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a history of %llu events",
                           (unsigned long long)config->history);
    }
    if (!err && *config->trace)
        err = mb__tracefile_open(config->trace, config->trace_rmm, config->hw.ordinal, &watch->lock,
                                 &watch->file);
    if (err) {
        watch_free(watch);
        return err;
    }
    if (*config->nvtx)
        watch->nvtx = mb__nvtx_open(config->nvtx);
    __atomic_store_n(&dev->watch, watch, __ATOMIC_RELEASE);
    return MB_OK;
}

void mb__watch_fini(struct mb_device *dev)
{
    if (dev->watch)
        watch_free(dev->watch);
    dev->watch = NULL;
}

/* Once there, a watch stays until the device closes: other threads may be looking at it. */
enum mb_err mb__watch_set_hook(struct mb_device *dev, mb_event_hook hook, void *user)
{
    struct mb__watch *watch, *expected = NULL;

    if (!mb__watch(dev)) {
        watch = hook ? watch_new() : NULL;
        if (!watch)
            return hook ? mb__fail(MB_ERR_HOST_MEMORY, "no host memory to watch a device") : MB_OK;
        if (!__atomic_compare_exchange_n(&dev->watch, &expected, watch, false, __ATOMIC_ACQ_REL,
                                         __ATOMIC_ACQUIRE))
            watch_free(watch);
    }
    watch = mb__watch(dev);
    mb__lock(&watch->lock);
    watch->hook = hook;
    watch->hook_user = user;
    if (!hook)
        watch->queue.count = 0;
    mb__unlock(&watch->lock);
    return MB_OK;
}

/* ------------------------------------------------------------------ records */

static void enqueue(struct mb__watch *watch, const struct mb__record *record)
{
    struct mb_hook_event event = {.kind = (enum mb_hook_kind)record->kind,
                                  .ptr = (void *)(uintptr_t)record->addr,
                                  .bytes = record->bytes,
                                  .stream = (mb_stream)(uintptr_t)record->stream,
                                  .time_us = record->time_us};

    if (!MB_VEC_PUSH(&watch->queue, event) && !watch->told_loss) {
        watch->told_loss = true;
        mb__log(MB_LOG_WARN, "watch", "no host memory: events for the hook are lost");
    }
}

void mb__watch_note(struct mb_device *dev, int kind, uint64_t addr, uint64_t bytes,
                    mb_stream stream)
{
    struct mb__watch *watch = mb__watch(dev);
    struct mb__record record = {
        .kind = kind, .addr = addr, .bytes = bytes, .stream = (uint64_t)(uintptr_t)stream};

    if (!watch)
        return;
    mb__lock(&watch->lock);
    record.time_us = wall_us(); /* under the lock, so that times do not go back */
    if (watch->ring)
        watch->ring[watch->ring_count++ % watch->ring_size] = record;
    if (watch->file)
        mb__tracefile_write(watch->file, &record);
    if (watch->hook && kind < MB__WATCH_LEND)
        enqueue(watch, &record);
    mb__unlock(&watch->lock);
}

static void note_pieces(struct mb_device *dev, const struct mb__block *block, int kind)
{
    for (const struct mb__node *node = block->pieces; node; node = node->piece_next)
        mb__watch_note(dev, kind, node->addr, node->bytes, NULL);
}

void mb__watch_show(struct mb_device *dev, const struct mb__block *block)
{
    if (!mb__watch(dev) || !block->window)
        return;
    note_pieces(dev, block, MB__WATCH_LEND);
    mb__watch_note(dev, MB__WATCH_SHOW, block->addr - block->zone_bytes, block->bytes, NULL);
}

void mb__watch_hide(struct mb_device *dev, const struct mb__block *block)
{
    if (!mb__watch(dev) || !block->window)
        return;
    mb__watch_note(dev, MB__WATCH_HIDE, block->addr - block->zone_bytes, block->bytes, NULL);
    note_pieces(dev, block, MB__WATCH_BACK);
}

/* ------------------------------------------------------------------ delivery */

void mb__watch_deliver(struct mb_device *dev)
{
    struct mb__watch *watch = mb__watch(dev);

    if (!watch || delivering)
        return;
    delivering = true;
    for (;;) {
        MB_VEC(struct mb_hook_event) batch = {0};
        mb_event_hook hook;
        void *user;

        mb__lock(&watch->lock);
        hook = watch->hook;
        user = watch->hook_user;
        batch.data = watch->queue.data;
        batch.count = watch->queue.count;
        memset(&watch->queue, 0, sizeof(watch->queue));
        mb__unlock(&watch->lock);
        for (size_t i = 0; hook && i < batch.count; i++)
            hook(user, &batch.data[i]);
        if (!batch.count) {
            MB_VEC_FREE(&batch);
            break;
        }
        MB_VEC_FREE(&batch);
    }
    delivering = false;
}
