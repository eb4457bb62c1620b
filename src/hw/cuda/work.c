/* SPDX-License-Identifier: MIT */
/* work.c - device work that tests, replay and benches need: kernels that go through the TLB. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "hw/cuda/cuda.h"
#include "kernels/cuda/copy_list.h"

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

/* ------------------------------------------------------------ lists of copies */

/* Blocks of a list of large copies, in turns of all that the GPU runs at once: enough for the last
 * turn not to matter. */
enum { TURNS = 8 };

static enum mb_err check_list(const struct mb_copy *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err = MB_OK;

        if (list[i].bytes)
            err = check((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].bytes);
        if (err)
            return mb__fail_in(err, "copy %u of 0 to %u", i, count - 1);
    }
    return MB_OK;
}

/* One launch for up to MB_COPY_LIST_L copies; the context is entered. Blocks go round in their
 * copy, so one that is larger than the others is only slower, and only copies of less than a tile
 * for each block leave blocks without work. */
static enum mb_err launch_list(struct mb_cuda *dev, struct mb_hw_stream *stream,
                               const struct mb_copy *list, unsigned count)
{
    union {
        struct mb_copy_list_s s;
        struct mb_copy_list_l l;
    } params;
    void *param = &params;
    bool few = count <= MB_COPY_LIST_S;
    uint64_t largest = 0, tiles, most;

    _Static_assert(sizeof(params.s) == 384 && sizeof(params.l) == 4032,
                   "the driver copies as much as the kernels declare");
    memset(&params, 0, few ? sizeof(params.s) : sizeof(params.l));
    for (unsigned i = 0; i < count; i++) {
        params.l.entry[i] =
            (struct mb_copy_entry){(uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].bytes};
        if (list[i].bytes > largest)
            largest = list[i].bytes;
    }
    if (!largest)
        return MB_OK;
    tiles = (largest + MB_COPY_LIST_TILE - 1) / MB_COPY_LIST_TILE;
    most = (uint64_t)dev->multiprocessors * BLOCKS_PER_SM * TURNS / count;
    if (tiles > most)
        tiles = most ? most : 1;
    return mb__cuda_result(dev,
                           dev->cu->launch(few ? dev->copy_list_s : dev->copy_list_l,
                                           (unsigned)tiles, count, 1, MB_COPY_LIST_THREADS, 1, 1, 0,
                                           stream->native, &param, NULL),
                           "launching a list of copies");
}

enum mb_err mb__cuda_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                               const struct mb_copy *list, unsigned count)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err = check_list(list, count);

    if (err || !count)
        return err;
    err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    for (unsigned at = 0; !err && at < count; at += MB_COPY_LIST_L)
        err = launch_list(dev, stream, list + at,
                          count - at < MB_COPY_LIST_L ? count - at : MB_COPY_LIST_L);
    mb__cuda_leave(dev, &scope);
    return err;
}
