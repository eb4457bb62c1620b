/* SPDX-License-Identifier: MIT */
/* work.c - device work that tests, replay and benches need: kernels that go through the TLB. */
#include <inttypes.h>
#include <stddef.h>

#include "base/err.h"
#include "hw/cuda/cuda.h"

enum { THREADS = 512, BLOCKS_PER_SM = 4 };

static enum mb_err check(uint64_t a, uint64_t b, uint64_t bytes)
{
    if (a % 8 || b % 8 || bytes % 8)
        return mb__fail(MB_ERR_INVALID,
                        "device work at 0x%" PRIx64 " on %" PRIu64
                        " bytes: addresses and sizes are multiples of 8",
                        a | b, bytes);
    return MB_OK;
}

static enum mb_err launch(struct mb_cuda *dev, cu_function f, struct mb_hw_stream *stream,
                          uint64_t words, void **params, const char *what)
{
    uint64_t blocks = (words + THREADS - 1) / THREADS;
    struct mb_cuda_scope scope;
    enum mb_err err;

    if (!words)
        return MB_OK;
    if (blocks > (uint64_t)dev->multiprocessors * BLOCKS_PER_SM)
        blocks = (uint64_t)dev->multiprocessors * BLOCKS_PER_SM;
    err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    err = mb__cuda_result(
        dev,
        dev->cu->launch(f, (unsigned)blocks, 1, 1, THREADS, 1, 1, 0, stream->native, params, NULL),
        what);
    mb__cuda_leave(dev, &scope);
    return err;
}

enum mb_err mb__cuda_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                          uint64_t bytes, uint64_t seed)
{
    struct mb_cuda *dev = mb__cuda(hw);
    uint64_t words = bytes / 8;
    void *params[] = {&va.addr, &words, &seed};
    enum mb_err err = check(va.addr, 0, bytes);

    return err ? err : launch(dev, dev->fill, stream, words, params, "launching fill");
}

enum mb_err mb__cuda_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                            uint64_t bytes, uint64_t seed)
{
    struct mb_cuda *dev = mb__cuda(hw);
    uint64_t words = bytes / 8;
    cu_ptr wrong = dev->pinned_dev + offsetof(struct mb_cuda_pinned, wrong);
    void *params[] = {&va.addr, &words, &seed, &wrong};
    enum mb_err err = check(va.addr, 0, bytes);

    return err ? err : launch(dev, dev->verify, stream, words, params, "launching verify");
}

enum mb_err mb__cuda_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                          uint64_t bytes)
{
    struct mb_cuda *dev = mb__cuda(hw);
    uint64_t words = bytes / 8;
    void *params[] = {&dst.addr, &src.addr, &words};
    enum mb_err err = check(dst.addr, src.addr, bytes);

    return err ? err : launch(dev, dev->copy, stream, words, params, "launching copy");
}
