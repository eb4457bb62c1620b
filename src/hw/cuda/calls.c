/* SPDX-License-Identifier: MIT */
/* calls.c - see calls.h. LOCKING: the table is written before a device has it; counts are a
 * thread's own. */
#include "hw/cuda/calls.h"

#include <string.h>

#include "base/clock.h"
#include "hw/cuda/cuda.h"

static const struct mb_cuda_driver *real; /* behind `timed` */
static struct mb_cuda_driver timed;
static bool timing;
static _Thread_local struct mb_cuda_calls calls;

static cu_result note(enum mb_cuda_call kind, uint64_t start, cu_result result)
{
    calls.ns[kind] += mb__now_ns() - start;
    calls.count[kind]++;
    return result;
}

/* The start is read before the call is made. */
#define TIMED(kind, call)                                                                          \
    do {                                                                                           \
        uint64_t start_ = mb__now_ns();                                                            \
        cu_result result_ = (call);                                                                \
                                                                                                   \
        return note((kind), start_, result_);                                                      \
    } while (0)

static cu_result launch(cu_function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                        unsigned by, unsigned bz, unsigned shared, cu_stream stream, void **params,
                        void **extra)
{
    TIMED(MB_CUDA_CALL_LAUNCH,
          real->launch(function, gx, gy, gz, bx, by, bz, shared, stream, params, extra));
}

static cu_result ctx_current(cu_context *ctx)
{
    TIMED(MB_CUDA_CALL_CONTEXT, real->ctx_current(ctx));
}

static cu_result ctx_push(cu_context ctx)
{
    TIMED(MB_CUDA_CALL_CONTEXT, real->ctx_push(ctx));
}

static cu_result ctx_pop(cu_context *ctx)
{
    TIMED(MB_CUDA_CALL_CONTEXT, real->ctx_pop(ctx));
}

static cu_result stream_capturing(cu_stream stream, int *status)
{
    TIMED(MB_CUDA_CALL_CAPTURING, real->stream_capturing(stream, status));
}

static cu_result stream_query(cu_stream stream)
{
    TIMED(MB_CUDA_CALL_STREAM, real->stream_query(stream));
}

static cu_result stream_write64(cu_stream stream, cu_ptr addr, uint64_t value, unsigned flags)
{
    TIMED(MB_CUDA_CALL_STREAM, real->stream_write64(stream, addr, value, flags));
}

static cu_result stream_wait64(cu_stream stream, cu_ptr addr, uint64_t value, unsigned flags)
{
    TIMED(MB_CUDA_CALL_STREAM, real->stream_wait64(stream, addr, value, flags));
}

static cu_result stream_ops(cu_stream stream, unsigned count, struct cu_mem_op *ops, unsigned flags)
{
    TIMED(MB_CUDA_CALL_STREAM, real->stream_ops(stream, count, ops, flags));
}

void mb__cuda_calls_time(bool on)
{
    timing = on;
}

struct mb_cuda_calls *mb__cuda_calls(void)
{
    return &calls;
}

const struct mb_cuda_driver *mb__cuda_calls_table(const struct mb_cuda_driver *table)
{
    if (!timing)
        return table;
    if (!real) {
        timed = *table;
        timed.launch = launch;
        timed.ctx_current = ctx_current;
        timed.ctx_push = ctx_push;
        timed.ctx_pop = ctx_pop;
        timed.stream_capturing = stream_capturing;
        timed.stream_query = stream_query;
        timed.stream_write64 = stream_write64;
        timed.stream_wait64 = stream_wait64;
        timed.stream_ops = stream_ops;
        real = table;
    }
    return &timed;
}

/* ------------------------------------------------------------ launches by themselves */

const char *mb__cuda_empty_name(enum mb_cuda_empty what)
{
    static const char *const names[MB_CUDA_EMPTY_KINDS] = {
        "no parameters",       "64 frame numbers",    "512 frame numbers",
        "1,024 frame numbers", "1,920 frame numbers", "a list elsewhere"};

    return names[what];
}

enum mb_err mb__cuda_empty(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           enum mb_cuda_empty what)
{
    struct mb_cuda *dev = mb__cuda(hw);
    const cu_function f[MB_CUDA_EMPTY_KINDS] = {dev->nop,   dev->pop_s,  dev->pop_m,
                                                dev->pop_l, dev->pop_xl, dev->pop_ring};
    static const struct {
        struct mb_pop_head head; /* no segments, no flags, no fence */
        uint16_t list[MB_POP_LIST_XL];
    } nothing;
    const void *parameters = &nothing;
    void *params[1];
    struct mb_cuda_scope scope;
    unsigned threads = what == MB_CUDA_EMPTY_KERNEL ? 32 : dev->pop_threads;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    memcpy(&params[0], &parameters, sizeof(parameters)); /* libcuda only reads */
    err = mb__cuda_result(dev,
                          dev->cu->launch(f[what], 1, 1, 1, threads, 1, 1, 0, stream->native,
                                          what == MB_CUDA_EMPTY_KERNEL ? NULL : params, NULL),
                          "launching a kernel that does nothing");
    mb__cuda_leave(dev, &scope);
    return err;
}

enum mb_err mb__cuda_driver_sync(struct mb_hw_dev *hw, struct mb_hw_stream *stream)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    enum mb_err err = mb__cuda_enter(dev, &scope);

    if (err)
        return err;
    err = mb__cuda_result(dev, dev->cu->stream_sync(stream->native), "waiting for a stream");
    mb__cuda_leave(dev, &scope);
    return err;
}
