/* SPDX-License-Identifier: MIT */
/*
 * dry.c - see dry.h. The device keeps its own functions except for those that batches reach, so
 * frames, addresses and streams are as real as before, and closing is the backend's own.
 *
 * LOCKING  The table is written before the first device uses it and holds the same ever after.
 */
#include "hw/dry.h"

static struct mb_hw_ops dry_ops; /* of the one backend */

static enum mb_err submit(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                          const struct mb_hw_cmd *cmds, unsigned count)
{
    (void)dev;
    (void)stream;
    (void)cmds;
    (void)count;
    return MB_OK;
}

static enum mb_err submit_fence(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                const struct mb_hw_cmd *cmds, unsigned count,
                                struct mb_hw_fence *done)
{
    *done = (struct mb_hw_fence){0};
    return submit(dev, stream, cmds, count);
}

void mb__hw_dry(struct mb_hw_dev *dev)
{
    if (!dry_ops.name)
        dry_ops = *dev->ops;
    dry_ops.submit = submit;
    dry_ops.submit_fence = submit_fence;
    dry_ops.intend = NULL; /* an oracle would expect what never happens */
    dev->ops = &dry_ops;
}
