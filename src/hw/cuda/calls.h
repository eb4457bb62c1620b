/* SPDX-License-Identifier: MIT */
/*
 * calls.h - what libcuda takes of a batch's host time, call by call: for benches.
 *
 * A device that is opened while timing is on gets a table of libcuda's functions of which those
 * that a batch reaches stand behind a clock. Other devices call libcuda directly, as always.
 */
#ifndef MB_HW_CUDA_CALLS_H
#define MB_HW_CUDA_CALLS_H

#include <stdbool.h>

#include "hw/cuda/driver.h"
#include "hw/hw.h"

enum mb_cuda_call {
    MB_CUDA_CALL_LAUNCH,    /* of kernels */
    MB_CUDA_CALL_CONTEXT,   /* asking for, making and leaving the current context */
    MB_CUDA_CALL_CAPTURING, /* is the stream captured? */
    MB_CUDA_CALL_STREAM,    /* waits, writes and questions of streams */
    MB_CUDA_CALL_KINDS,
};

/* Of one thread, since it was set to 0. */
struct mb_cuda_calls {
    unsigned count[MB_CUDA_CALL_KINDS];
    uint64_t ns[MB_CUDA_CALL_KINDS];
};

/* Devices that are opened from now on; no other thread may be opening one. */
void mb__cuda_calls_time(bool on);
/* The calling thread's. */
struct mb_cuda_calls *mb__cuda_calls(void);
/* What a device that is being opened calls: `table`, or the timed one. */
const struct mb_cuda_driver *mb__cuda_calls_table(const struct mb_cuda_driver *table);

/* Launches that do nothing, with the parameters of each of inline mode's kernels. */
enum mb_cuda_empty {
    MB_CUDA_EMPTY_KERNEL, /* no parameters */
    MB_CUDA_EMPTY_S,
    MB_CUDA_EMPTY_M,
    MB_CUDA_EMPTY_L,
    MB_CUDA_EMPTY_XL,
    MB_CUDA_EMPTY_RING,
    MB_CUDA_EMPTY_KINDS,
};
const char *mb__cuda_empty_name(enum mb_cuda_empty what);
enum mb_err mb__cuda_empty(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           enum mb_cuda_empty what);
/* cuStreamSynchronize: the driver itself sees that the stream is done. */
enum mb_err mb__cuda_driver_sync(struct mb_hw_dev *hw, struct mb_hw_stream *stream);

#endif
