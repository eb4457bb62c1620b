/* SPDX-License-Identifier: MIT */
/*
 * Where the host's time of one map of many pages goes, on the `cuda` backend.
 *
 * Ways       one range      one operation on an object whose frames were found between others
 *            kv             as a KV cache attaches: read only, two objects of half the pages each,
 *                           an operation for each, begun inside a table so that one table more is
 *                           written
 *            page by page   an operation for every page, each shows a random one
 *            vm             mb__pte_pop() alone, of the frames of the first
 * States     what came before the call on this thread and stream:
 *            passed         the stream's work is done, known by its timeline; no context is current
 *            current        the same, and the device's context is current, as in most programs
 *            synced         as passed, and libcuda was asked to wait for the stream
 *            cold           as passed; then 64 MiB of other memory were written, so that records
 *                           lie outside of the core's caches
 *            busy           as passed; then the stream gets work that takes longer than the call
 * Stages     before backend runtime and vm, until the batch is handed over
 *            backend        its submission, all of it
 *            after backend  until the call returns
 *            launch, context, capturing, stream   of the backend's time: calls of libcuda (value:
 *                           how many), on a second device whose calls are timed one by one
 *            own            the backend without libcuda there: checks and encoding
 *            owns           of that, the check of who owns the frames, called by itself
 * Each map is followed by a small kernel at the addresses, and by an unmap, outside of the timing.
 *
 * The stages before, in and after the backend are told apart by functions that stand in the
 * device's table in front of its own; no other device has them.
 */
#include "api/bench_stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/bench_host.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "hw/cuda/calls.h"
#include "hw/cuda/cuda.h"
#include "runtime/vmm_records.h"

enum {
    SAMPLES = 200,
    WARM_UP = 10,
    SAMPLES_MAX = 1000,
    OFFSET_PAGES = 100, /* of the kv way in its range */
    COLD_BYTES = 64 << 20,
    BUSY_BYTES = 512 << 20,
};

enum way { RANGE, KV, PAGES, VM, WAYS };
enum state { PASSED, CURRENT, SYNCED, COLD, BUSY, STATES };
/* Those of libcuda's calls stand behind LIBCUDA in the order of enum mb_cuda_call. */
enum stage { TOTAL, BEFORE, BACKEND, AFTER, OWN, LIBCUDA, STAGES = LIBCUDA + MB_CUDA_CALL_KINDS };

static const char *const ways[WAYS] = {"one range", "kv", "page by page", "vm"};
static const char *const states[STATES] = {"passed", "current", "synced", "cold", "busy"};
static const char *const stages[STAGES] = {"total", "before backend", "backend", "after backend",
                                           "own",   "launch",         "context", "capturing",
                                           "stream"};

struct bench {
    const struct mb_bench_options *options;
    mb_bench_callback callback;
    void *user;
    mb_device dev;
    mb_stream native;
    struct mb__stream *stream;
    struct mb_rng rng;
    bool calls; /* libcuda's are timed */
    unsigned pages, samples;
    /* Of the device; it frees them. */
    mb_mem apart, half[2];
    void *va, *busy;
    mb_va window; /* of the way vm */
    /* Owned. */
    struct mb_map_op *ops;
    char *cold;
    double us[STAGES][SAMPLES_MAX];
    unsigned calls_made[MB_CUDA_CALL_KINDS]; /* of libcuda in the last map */
};

/* ------------------------------------------------------------------ stages of the backend */

/* The device in front of whose functions ours stand, and when its last batch came and went. */
static struct mb_hw_ops front;
static const struct mb_hw_ops *behind;
static uint64_t handed_over, taken;

static enum mb_err submit_fence(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                const struct mb_hw_cmd *cmds, unsigned count,
                                struct mb_hw_fence *done)
{
    enum mb_err err;

    handed_over = mb__now_ns();
    err = behind->submit_fence(dev, stream, cmds, count, done);
    taken = mb__now_ns();
    return err;
}

static void stand_in_front(struct mb_hw_dev *hw)
{
    behind = hw->ops;
    front = *hw->ops;
    front.submit_fence = submit_fence;
    hw->ops = &front;
}

static void step_aside(struct mb_hw_dev *hw)
{
    hw->ops = behind;
}

/* ------------------------------------------------------------------ the timed call */

static unsigned make_ops(struct bench *b, enum way way, enum mb_map_kind kind)
{
    struct mb_map_op op = {.kind = kind,
                           .prot = MB_PROT_READ_WRITE,
                           .va = b->va,
                           .bytes = b->pages * MB_FRAME_BYTES,
                           .mem = b->apart};

    if (way == KV)
        op.va = (char *)b->va + OFFSET_PAGES * MB_FRAME_BYTES;
    b->ops[0] = op;
    if (kind == MB_UNMAP || way == RANGE)
        return 1;
    if (way == KV) {
        op.prot = MB_PROT_READ;
        op.bytes /= 2;
        for (unsigned i = 0; i < 2; i++) {
            b->ops[i] = op;
            b->ops[i].mem = b->half[i];
            op.va = (char *)op.va + op.bytes;
        }
        return 2;
    }
    op.bytes = MB_FRAME_BYTES;
    for (unsigned i = 0; i < b->pages; i++) {
        unsigned j = (unsigned)mb__rng_below(&b->rng, i + 1);

        op.va = (char *)b->va + i * MB_FRAME_BYTES;
        b->ops[i] = op;
        b->ops[i].mem_offset = b->ops[j].mem_offset;
        b->ops[j].mem_offset = i * MB_FRAME_BYTES;
    }
    return b->pages;
}

static double us_between(uint64_t from, uint64_t to)
{
    return (double)(to - from) / 1e3;
}

/* Times go to place `at` of every stage. */
static enum mb_err call(struct bench *b, enum way way, enum mb_map_kind kind, unsigned at)
{
    struct mb_vm_op op = {.kind = kind == MB_MAP ? MB_VM_MAP : MB_VM_UNMAP,
                          .prot = MB_PROT_READ_WRITE,
                          .cap = mb__owner_cap(b->dev->vm, OWNER),
                          .va = b->window,
                          .frames = b->pages,
                          .pfns = b->apart->pfns};
    unsigned count = way == VM ? 1 : make_ops(b, way, kind);
    struct mb_cuda_calls *calls = mb__cuda_calls();
    struct mb_hw_fence fence;
    uint64_t start, end;
    enum mb_err err;

    *calls = (struct mb_cuda_calls){0};
    start = mb__now_ns();
    if (way == VM)
        err = mb__pte_pop(b->dev->vm, b->stream->hw, &op, 1, &fence);
    else
        err = mb_mem_map_async(b->dev, b->ops, count, b->native);
    end = mb__now_ns();
    if (err)
        return err;
    b->us[TOTAL][at] = us_between(start, end);
    b->us[BEFORE][at] = us_between(start, handed_over);
    b->us[BACKEND][at] = us_between(handed_over, taken);
    b->us[AFTER][at] = us_between(taken, end);
    b->us[OWN][at] = b->us[BACKEND][at];
    for (unsigned i = 0; i < MB_CUDA_CALL_KINDS; i++) {
        b->us[LIBCUDA + i][at] = (double)calls->ns[i] / 1e3;
        b->us[OWN][at] -= b->us[LIBCUDA + i][at];
        b->calls_made[i] = kind == MB_MAP ? calls->count[i] : b->calls_made[i];
    }
    return MB_OK;
}

/* ------------------------------------------------------------------ states */

/* As a program that uses the CUDA runtime has the context; one that only uses MoonBright has
 * none. */
static void make_current(struct bench *b, bool on)
{
    const struct mb_cuda *cuda = mb__cuda(b->dev->hw);

    (void)cuda->cu->ctx_set(on ? cuda->ctx : NULL);
}

static enum mb_err reach(struct bench *b, enum state state)
{
    enum mb_err err = mb_stream_sync(b->dev, b->native);

    if (!err && state == SYNCED)
        err = mb__cuda_driver_sync(b->dev->hw, b->stream->hw);
    if (!err && state == BUSY)
        err = mb_fill_async(b->dev, b->busy, BUSY_BYTES, 1, b->native);
    for (size_t i = 0; state == COLD && i < COLD_BYTES; i += 64)
        b->cold[i]++;
    return err;
}

/* A kernel has used the addresses, then they are empty again, and all of it is done. */
static enum mb_err use_and_unmap(struct bench *b, enum way way)
{
    void *va = way == VM ? (void *)(uintptr_t)b->window.addr : b->ops[0].va;
    enum mb_err err = mb_verify_async(b->dev, va, 64, 1, b->native);

    return err ? err : call(b, way, MB_UNMAP, SAMPLES_MAX - 1);
}

static unsigned samples_in(const struct bench *b, enum state state)
{
    return state == COLD && b->samples > 50 ? 50 : b->samples; /* each takes long */
}

static void tell(struct bench *b, const char *what, const char *how, double *us, unsigned count,
                 double value)
{
    struct mb_spread none = {NAN, NAN, NAN};
    struct mb_bench_row row = {.what = what,
                               .how = how,
                               .bytes = b->pages * MB_FRAME_BYTES,
                               .samples = count,
                               .host = mb__bench_spread(us, count),
                               .complete = none,
                               .used = none,
                               .note = isnan(value) ? "" : "calls",
                               .value = value};

    b->callback(b->user, &row);
}

static enum mb_err one_way(struct bench *b, enum way way, enum state state)
{
    unsigned samples = samples_in(b, state);
    char how[64];
    enum mb_err err = MB_OK;

    make_current(b, state == CURRENT);
    for (unsigned i = 0; !err && i < samples + WARM_UP; i++) {
        err = reach(b, state);
        if (!err)
            err = call(b, way, MB_MAP, i < WARM_UP ? 0 : i - WARM_UP);
        if (!err)
            err = use_and_unmap(b, way);
    }
    make_current(b, false);
    snprintf(how, sizeof(how), "%s, %s", ways[way], states[state]);
    for (unsigned stage = 0; !err && stage < STAGES; stage++) {
        double value = stage < LIBCUDA ? (double)NAN : (double)b->calls_made[stage - LIBCUDA];

        if (b->calls == (stage >= OWN))
            tell(b, stages[stage], how, b->us[stage], samples, value);
    }
    return err;
}

/* ------------------------------------------------------------------ parts by themselves */

static enum mb_err launches(struct bench *b, enum mb_cuda_empty what, enum state state)
{
    unsigned samples = samples_in(b, state);
    char how[64];
    enum mb_err err = MB_OK;

    make_current(b, state == CURRENT);
    for (unsigned i = 0; !err && i < samples + WARM_UP; i++) {
        uint64_t start;

        err = reach(b, state);
        start = mb__now_ns();
        if (!err)
            err = mb__cuda_empty(b->dev->hw, b->stream->hw, what);
        b->us[TOTAL][i < WARM_UP ? 0 : i - WARM_UP] = us_between(start, mb__now_ns());
    }
    make_current(b, false);
    snprintf(how, sizeof(how), "%s, %s", mb__cuda_empty_name(what), states[state]);
    if (!err)
        tell(b, "empty launch", how, b->us[TOTAL], samples, NAN);
    return err;
}

static enum mb_err owns(struct bench *b, enum state state)
{
    unsigned samples = samples_in(b, state);
    bool all = true;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < samples + WARM_UP; i++) {
        struct mb_cuda_span span = {UINT32_MAX, 0};
        uint64_t start;

        err = reach(b, state);
        start = mb__now_ns();
        all = mb__cuda_owns(mb__cuda(b->dev->hw), b->apart->pfns, b->pages, &span) && all;
        b->us[OWN][i < WARM_UP ? 0 : i - WARM_UP] = us_between(start, mb__now_ns());
    }
    if (!err && !all)
        err = mb__fail(MB_ERR_INTERNAL, "the device does not know its own frames");
    if (!err)
        tell(b, "owns", states[state], b->us[OWN], samples, NAN);
    return err;
}

static void two_clocks(struct bench *b)
{
    for (unsigned i = 0; i < b->samples; i++) {
        uint64_t start = mb__now_ns();

        b->us[TOTAL][i] = us_between(start, mb__now_ns());
    }
    tell(b, "clock", "two readings", b->us[TOTAL], b->samples, NAN);
}

static enum mb_err parts(struct bench *b)
{
    enum mb_err err = MB_OK;

    two_clocks(b);
    for (unsigned state = 0; !err && state < STATES; state++) {
        err = owns(b, state);
        for (unsigned what = 0; !err && what < MB_CUDA_EMPTY_KINDS; what++)
            err = launches(b, what, state);
    }
    return err;
}

/* ------------------------------------------------------------------ one device */

static enum mb_err set_up(struct bench *b)
{
    uint64_t bytes = b->pages * MB_FRAME_BYTES;
    enum mb_err err = mb_stream_create(b->dev, &b->native);

    if (!err)
        err = mb__stream_get(b->dev, b->native, &b->stream);
    if (!err)
        err = mb_malloc(b->dev, BUSY_BYTES, &b->busy);
    if (!err)
        err = mb__bench_apart(b->dev, b->pages, &b->apart);
    for (unsigned i = 0; !err && i < 2; i++)
        err = mb_mem_create(b->dev, bytes / 2, &b->half[i]);
    if (!err)
        err = mb_mem_reserve(b->dev, bytes + OFFSET_PAGES * MB_FRAME_BYTES, 0, &b->va);
    return err ? err : mb__alloc_va(b->dev->vm, bytes, 0, &b->window);
}

static enum mb_err all_ways(struct bench *b)
{
    enum mb_err err = set_up(b);

    for (unsigned state = 0; !err && state < STATES; state++)
        for (unsigned way = 0; !err && way < WAYS; way++)
            err = one_way(b, way, state);
    if (!err && !b->calls)
        err = parts(b);
    if (!err)
        err = mb_stream_sync(b->dev, b->native);
    return err ? err : mb__free_va(b->dev->vm, b->window, b->pages * MB_FRAME_BYTES);
}

static enum mb_err on_device(struct bench *b, const struct mb__config *config, bool calls)
{
    struct mb_hw_dev *hw;
    enum mb_err err;

    b->calls = calls;
    mb__cuda_calls_time(calls);
    err = mb__device_open(config, &b->dev);
    mb__cuda_calls_time(false);
    if (err)
        return err;
    hw = b->dev->hw;
    if (hw->ops->submit_fence) {
        stand_in_front(hw);
        err = all_ways(b);
        step_aside(hw);
    } else {
        err = mb__fail(MB_ERR_NOT_SUPPORTED, "this build's devices stand behind fault injection");
    }
    mb_close(b->dev);
    return err;
}

enum mb_err mb__bench_stages(const struct mb__config *config,
                             const struct mb_bench_options *options, mb_bench_callback callback,
                             void *user)
{
    struct bench *b = calloc(1, sizeof(*b));
    uint64_t bytes = options->size_count ? options->sizes[0] : (uint64_t)2 << 30;
    enum mb_err err = MB_OK;

    if (!b)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for samples");
    *b = (struct bench){.options = options, .callback = callback, .user = user};
    b->pages = (unsigned)(bytes / MB_FRAME_BYTES);
    b->samples = options->samples ? options->samples : SAMPLES;
    b->samples = b->samples < SAMPLES_MAX - 1 ? b->samples : SAMPLES_MAX - 1;
    b->ops = calloc(b->pages + 1, sizeof(*b->ops));
    b->cold = calloc(COLD_BYTES, 1);
    mb__rng_seed(&b->rng, options->seed);
    if (options->size_count > 1 || b->pages < 2 || b->pages % 2)
        err = mb__fail(MB_ERR_INVALID, "bench host takes one size here, of an even number of pages "
                                       "of 2 MiB");
    else if (!b->ops || !b->cold)
        err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %u operations", b->pages);
    for (unsigned calls = 0; !err && calls < 2; calls++)
        err = on_device(b, config, calls);
    free(b->ops);
    free(b->cold);
    free(b);
    return err;
}
