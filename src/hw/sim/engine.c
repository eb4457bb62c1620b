/* SPDX-License-Identifier: MIT */
/*
 * engine.c - executes what is queued, by virtual time or by drawn choices.
 *
 * BY TIME  Each stream's head has a time at which it can go on; the earliest goes on. An operation
 * has its effect when it starts and leaves the queue, which passes its ticket, when it ends. Ties
 * go to the stream that became active first. The device is run up to the host's time when the host
 * asks, beyond it when the host waits; a host that enqueues thousands of operations ahead is
 * blocked as on a device whose channel is full, which bounds the queues.
 *
 * EXPLORE  Any stream that may go on may be chosen, for a small part of its operation; between,
 * entries that no barrier has made visible trickle into the tables in any order, and posted stores
 * land. The choices come from one generator: the same seed and the same calls give the same run.
 *
 * DEADLOCK  Fences name tickets that exist, so nothing the host could enqueue would help a stream
 * that waits for another: when nothing is runnable and something is left, it is reported, with what
 * each stream waits for.
 */
#include "hw/sim/dev.h"

#include <stdio.h>
#include <string.h>

#define NEVER UINT64_MAX

enum {
    QUEUE_HIGH = 4096, /* operations at which the host is held back */
    QUEUE_LOW = 2048,
    EXPLORE_UNITS = 6, /* largest part of an operation done at once */
};

uint64_t mb__sim_random(struct sim_dev *dev)
{
    return mb_pattern_mix(dev->rng += MB_PATTERN_GOLDEN);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* May the head go on? */
bool mb__sim_runnable(struct sim_dev *dev, struct mb_hw_stream *stream)
{
    const struct sim_op *op = mb__sim_stream_head(stream);

    switch (op->kind) {
    case SIM_OP_WAIT:
        return dev->mutants & MB_SIM_EARLY_FENCE || mb__sim_fence_passed(op->fence);
    case SIM_OP_SEM_WAIT:
        return dev->sem[op->sem.sem] >= op->sem.value;
    case SIM_OP_KERNEL:
        return mb__sim_kernel_runnable(dev, stream, op);
    default:
        return true;
    }
}

/* Executes up to `budget` units of the head, see mb__sim_execute_*(). */
static void execute(struct sim_dev *dev, struct mb_hw_stream *stream, unsigned budget,
                    struct sim_step *step)
{
    struct sim_op *op = mb__sim_stream_head(stream);

    step->ns = 0;
    step->finished = true;
    switch (op->kind) {
    case SIM_OP_WAIT:
        step->ns = op->flags & SIM_OP_ISOLATED ? dev->model->sem_ns : 0;
        mb__sim_race_step(dev, stream, op);
        break;
    case SIM_OP_JOIN:
        mb__sim_race_step(dev, stream, op);
        break;
    case SIM_OP_SEM_WAIT:
        step->ns = dev->model->sem_ns;
        break;
    case SIM_OP_SEM_SET:
        step->ns = dev->model->sem_ns;
        dev->sem[op->sem.sem] = later(dev->sem[op->sem.sem], op->sem.value);
        break;
    case SIM_OP_DELAY:
        step->ns = op->sem.value;
        break;
    case SIM_OP_FILL:
    case SIM_OP_VERIFY:
    case SIM_OP_COPY:
        *step = mb__sim_execute_access(dev, stream, op, budget);
        break;
    case SIM_OP_KERNEL:
        *step = mb__sim_execute_kernel(dev, stream, op);
        break;
    default:
        *step = mb__sim_execute_batch(dev, stream, op, budget);
        break;
    }
}

/* ------------------------------------------------------------ by time */

static uint64_t next_ns(struct sim_dev *dev, struct mb_hw_stream *stream)
{
    uint64_t ns;

    if (stream->ending)
        return stream->ready_ns;
    if (!mb__sim_runnable(dev, stream)) {
        stream->blocked = true;
        return NEVER;
    }
    ns = later(stream->ready_ns, mb__sim_stream_head(stream)->enqueue_ns + dev->model->start_ns);
    return stream->blocked ? later(ns, dev->now_ns) : ns;
}

static uint64_t next_landing(const struct sim_dev *dev, unsigned *index)
{
    uint64_t ns = NEVER;

    for (unsigned i = 0; i < dev->posted_count; i++) {
        if (dev->posted[i].lands_ns < ns) {
            ns = dev->posted[i].lands_ns;
            *index = i;
        }
    }
    return ns;
}

static void go_on(struct sim_dev *dev, struct mb_hw_stream *stream, uint64_t ns)
{
    struct sim_step step;

    dev->now_ns = later(dev->now_ns, ns);
    if (stream->ending) {
        mb__sim_stream_pop(stream);
        return;
    }
    stream->blocked = false;
    execute(dev, stream, 0, &step);
    if (dev->lost)
        return;
    stream->ready_ns = ns + step.ns;
    stream->ending = step.finished;
    if (step.finished && !step.ns)
        mb__sim_stream_pop(stream);
}

/* The next event, if it is due at `limit`. */
static bool step_by_time(struct sim_dev *dev, uint64_t limit)
{
    struct mb_hw_stream *stream = NULL;
    uint64_t best = NEVER, landing;
    unsigned index = 0;

    for (unsigned i = 0; i < dev->active_count; i++) {
        uint64_t ns = next_ns(dev, dev->active[i]);

        if (ns < best) {
            best = ns;
            stream = dev->active[i];
        }
    }
    landing = next_landing(dev, &index);
    if (landing <= best && landing <= limit && landing != NEVER) {
        dev->now_ns = later(dev->now_ns, landing);
        mb__sim_land(dev, index);
        return true;
    }
    if (!stream || best > limit)
        return false;
    go_on(dev, stream, best);
    return true;
}

/* ------------------------------------------------------------ explore */

/* Half of the time the stream that is preferred at the moment, so that one may get far ahead of the
 * others; otherwise any. The preference changes now and then. */
static struct mb_hw_stream *draw_stream(struct sim_dev *dev)
{
    uint64_t choice = mb__sim_random(dev), best = 0;
    struct mb_hw_stream *chosen = NULL;
    unsigned seen = 0;

    if (choice % 16 == 0) {
        dev->preference = choice;
        dev->eager = choice >> 8 & 3;
    }
    for (unsigned i = 0; i < dev->active_count; i++) {
        struct mb_hw_stream *stream = dev->active[i];
        uint64_t rank = mb_pattern_mix(dev->preference + stream->id) | 1;

        if (!mb__sim_runnable(dev, stream))
            continue;
        if (choice & 16 ? rank > best : sim_random_below(dev, ++seen) == 0) {
            best = rank;
            chosen = stream;
        }
    }
    return chosen;
}

static bool step_explored(struct sim_dev *dev)
{
    uint64_t choice = sim_random_below(dev, 8);
    struct mb_hw_stream *stream = NULL;
    struct sim_step step;
    uint64_t ns;

    if (!(choice == 0 && dev->pending_count) && !(choice == 1 && dev->posted_count))
        stream = draw_stream(dev);
    if (!stream && dev->posted_count && (choice == 1 || !dev->pending_count)) {
        mb__sim_land(dev, (unsigned)sim_random_below(dev, dev->posted_count));
        return true;
    }
    if (!stream && dev->pending_count) {
        mb__sim_pending_drain(dev, NULL, false);
        return true;
    }
    if (!stream)
        return false;
    ns = later(stream->ready_ns, mb__sim_stream_head(stream)->enqueue_ns);
    dev->now_ns = later(dev->now_ns, ns);
    execute(dev, stream, 1 + (unsigned)sim_random_below(dev, EXPLORE_UNITS), &step);
    if (dev->lost)
        return true;
    stream->ready_ns = ns + step.ns;
    if (step.finished)
        mb__sim_stream_pop(stream);
    return true;
}

static bool step(struct sim_dev *dev, uint64_t limit)
{
    if (dev->lost)
        return false;
    return dev->explore ? step_explored(dev) : step_by_time(dev, limit);
}

/* ------------------------------------------------------------ for the host */

void mb__sim_engine_run(struct sim_dev *dev, uint64_t limit_ns)
{
    unsigned steps = dev->explore ? (unsigned)sim_random_below(dev, 4) : 0;

    if (!dev->explore) {
        while (step(dev, limit_ns))
            ;
        return;
    }
    while (steps-- && step(dev, NEVER))
        ;
}

void mb__sim_engine_kick(struct sim_dev *dev)
{
    /* How far the device lags behind the host is drawn too. */
    for (uint64_t n = dev->explore ? sim_random_below(dev, 1 + dev->eager) : 0; n; n--)
        (void)step(dev, NEVER);
    if (dev->queued < QUEUE_HIGH)
        return;
    while (dev->queued > QUEUE_LOW && step(dev, NEVER))
        ;
    if (!dev->explore)
        dev->host_ns = later(dev->host_ns, dev->now_ns);
}

static void waits_for(const struct sim_dev *dev, struct mb_hw_stream *stream, char *text,
                      size_t size)
{
    const struct sim_op *op = mb__sim_stream_head(stream);
    const char *of = stream->helper ? "helper queue of stream" : "stream";

    if (op->kind == SIM_OP_WAIT)
        snprintf(text, size, "%s %u waits for ticket %llu of %s %u; ", of, stream->id,
                 (unsigned long long)op->fence.seq,
                 op->fence.stream->helper ? "the helper queue of stream" : "stream",
                 op->fence.stream->id);
    else if (op->kind == SIM_OP_SEM_WAIT)
        snprintf(text, size, "%s %u waits for semaphore %u >= %llu (it is %llu); ", of, stream->id,
                 op->sem.sem, (unsigned long long)op->sem.value,
                 (unsigned long long)dev->sem[op->sem.sem]);
    else
        snprintf(text, size, "%s %u runs a kernel that spins on a semaphore; ", of, stream->id);
}

static enum mb_err deadlock(struct sim_dev *dev)
{
    char text[400] = "";
    size_t used = 0;

    for (unsigned i = 0; i < dev->active_count && used + 1 < sizeof(text); i++) {
        waits_for(dev, dev->active[i], text + used, sizeof(text) - used);
        used = strlen(text);
    }
    if (used >= 2)
        text[used - 2] = 0;
    return mb__fail(MB_ERR_DEADLOCK, "no stream can go on: %s", text);
}

/* Does a stream wait for something that the host may still set? */
static bool host_could_help(struct sim_dev *dev)
{
    for (unsigned i = 0; i < dev->active_count; i++) {
        if (mb__sim_stream_head(dev->active[i])->kind != SIM_OP_WAIT)
            return true;
    }
    return false;
}

static bool reached(struct sim_dev *dev, struct mb_hw_fence fence)
{
    if (fence.stream)
        return mb__sim_fence_passed(fence);
    return !dev->active_count && !dev->posted_count && !dev->pending_count;
}

enum mb_err mb__sim_engine_wait(struct sim_dev *dev, struct mb_hw_fence fence, uint64_t timeout_ns)
{
    uint64_t limit = timeout_ns ? dev->host_ns + timeout_ns : NEVER;
    uint64_t before = dev->now_ns;

    while (!reached(dev, fence)) {
        if (step(dev, limit))
            continue;
        if (dev->lost)
            return mb__sim_alive(dev);
        if (!timeout_ns || (!host_could_help(dev) && !step(dev, NEVER)))
            return deadlock(dev);
        if (reached(dev, fence))
            break;
        dev->host_ns = limit;
        return mb__fail(MB_ERR_TIMEOUT,
                        "the fence has not passed after %llu ns of virtual time; wait longer, or "
                        "look for a stream that waits",
                        (unsigned long long)timeout_ns);
    }
    mb__sim_race_host(dev, fence);
    /* A run by choices has no single time: the host has waited for the stream it asked about. */
    if (dev->explore && fence.stream)
        dev->host_ns = later(dev->host_ns, fence.stream->ready_ns);
    else if (dev->now_ns > before || dev->explore)
        dev->host_ns = later(dev->host_ns, dev->now_ns);
    return mb__sim_alive(dev);
}

/* ------------------------------------------------------------ the end of a context */

void mb__sim_lose(struct sim_dev *dev, const char *text)
{
    if (dev->lost)
        return;
    snprintf(dev->lost_text, sizeof(dev->lost_text), "%s", text);
    dev->lost = MB_ERR_DEVICE_LOST;
    for (unsigned i = 0; i < dev->active_count; i++) {
        struct mb_hw_stream *stream = dev->active[i];

        stream->lost_seq = mb__sim_stream_head(stream)->seq;
        stream->ops.head = stream->ops.tail = 0;
        stream->data.head = stream->data.tail = 0;
        stream->active = stream->ending = stream->blocked = false;
        stream->pending = 0;
    }
    dev->active_count = dev->posted_count = dev->pending_count = 0;
    dev->queued = 0;
}

enum mb_err mb__sim_alive(struct sim_dev *dev)
{
    if (dev->mem.failed)
        mb__sim_lose(dev, "the host has no memory left for the contents of the device");
    if (!dev->lost)
        return MB_OK;
    return mb__fail(dev->lost, "%s", dev->lost_text);
}
