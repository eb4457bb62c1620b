/* SPDX-License-Identifier: MIT */
/*
 * scrub.c - the comparison of leaf tables with the record, by a kernel (kernels/cuda/scrub.cu).
 *
 * Inline tables only: theirs are the only ones that have an address in the program's space. Behind
 * scrub:device, as it was not run on a GPU yet; without it vm reads the tables over BAR1.
 *
 * How       Record and result lie in one pinned buffer, kept until close. The kernel runs on a
 *           stream of its own, which waits for nobody: entries are compared as they are in memory,
 *           and vm looks at those that differ again.
 * Locking   vm's lock: one comparison at a time. libcuda is called in relaxed capture mode.
 */
#include <string.h>

#include "base/err.h"
#include "hw/cuda/cuda.h"

enum { THREADS = 256, BLOCKS_PER_SM = 8 };

/* In the buffer: `out` behind `want`. */
static uint32_t *out_of(const struct mb_cuda_scrub *s)
{
    return (uint32_t *)(void *)(s->want + s->slots);
}

static enum mb_err prepare(struct mb_cuda *dev, uint32_t slots, uint32_t named)
{
    struct mb_cuda_scrub *s = &dev->scrub;
    size_t bytes = slots * sizeof(*s->want) + (named + 1) * sizeof(uint32_t);
    void *host = NULL;
    cu_ptr device = 0;
    enum mb_err err = MB_OK;

    if (!s->kernel)
        err = mb__cuda_result(dev, dev->cu->module_function(&s->kernel, dev->module, "mb_scrub"),
                              "mb_scrub");
    if (!err && !s->stream)
        err = mb__cuda_result(dev, dev->cu->stream_create(&s->stream, CU_STREAM_NON_BLOCKING),
                              "a stream for the scrubber");
    if (err || (slots <= s->slots && named <= s->named))
        return err;
    err = mb__cuda_result(
        dev, dev->cu->host_alloc(&host, bytes, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_MAPPED),
        "pinned memory for the scrubber");
    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->host_device_ptr(&device, host, 0),
                          "device address of pinned memory");
    if (err) {
        (void)dev->cu->host_free(host);
        return err;
    }
    if (s->want)
        (void)dev->cu->host_free(s->want);
    s->want = host;
    s->device = device;
    s->slots = slots;
    s->named = named;
    return MB_OK;
}

static enum mb_err compare(struct mb_cuda *dev, uint64_t slots, uint32_t count, uint32_t capacity)
{
    struct mb_cuda_scrub *s = &dev->scrub;
    uint32_t slot_bytes = 16, blocks = (count + THREADS - 1) / THREADS;
    uint64_t out = s->device + s->slots * sizeof(*s->want);
    void *params[] = {&slots, &slot_bytes, &count, &s->device, &out, &capacity};
    enum mb_err err;

    if (blocks > dev->multiprocessors * BLOCKS_PER_SM)
        blocks = dev->multiprocessors * BLOCKS_PER_SM;
    err = mb__cuda_result(
        dev, dev->cu->launch(s->kernel, blocks, 1, 1, THREADS, 1, 1, 0, s->stream, params, NULL),
        "launching the scrubber");
    return err ? err
               : mb__cuda_result(dev, dev->cu->stream_sync(s->stream), "waiting for the scrubber");
}

enum mb_err mb__cuda_scrub_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view,
                                 uint32_t first, uint32_t count, const struct mb_scrub_want *want,
                                 uint32_t *wrong, uint32_t capacity, uint32_t *differing)
{
    struct mb_cuda *dev = mb__cuda(hw);
    const struct mb_cuda_window *w = (const struct mb_cuda_window *)(uintptr_t)view->cookie;
    uint32_t slots = (uint32_t)(view->bytes >> MB_FRAME_SHIFT), found;
    struct mb_cuda_scope scope;
    enum mb_err err;

    if (dev->tables != MB_CUDA_INLINE || !w->app_va)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "only inline tables have an address for a kernel");
    if (first > slots || count > slots - first)
        return mb__fail(MB_ERR_INVALID, "slots %u + %u are outside the window", first, count);
    err = mb__cuda_enter_relaxed(dev, &scope);
    if (err)
        return err;
    err = prepare(dev, count, capacity);
    if (!err && count) {
        memcpy(dev->scrub.want, want, count * sizeof(*want));
        *out_of(&dev->scrub) = 0;
        err = compare(dev, w->app_va + (uint64_t)first * 16, count, capacity);
    }
    if (!err) {
        found = count ? *out_of(&dev->scrub) : 0;
        memcpy(wrong, out_of(&dev->scrub) + 1,
               sizeof(*wrong) * (found < capacity ? found : capacity));
        *differing = found;
    }
    mb__cuda_leave_relaxed(dev, &scope);
    return err;
}

void mb__cuda_scrub_fini(struct mb_cuda *dev)
{
    if (dev->scrub.stream)
        (void)dev->cu->stream_destroy(dev->scrub.stream);
    if (dev->scrub.want)
        (void)dev->cu->host_free(dev->scrub.want);
    dev->scrub = (struct mb_cuda_scrub){0};
}
