/* SPDX-License-Identifier: MIT */
/* A batch of isolated tables that waited for its stream's lock while the helper queues were stopped
 * (at exit, or as the context goes) is told that the device is lost. */
#include <stdlib.h>
#include <string.h>

#include "hw/cuda/cuda.h"
#include "test.h"

static cu_result fake_capturing(cu_stream stream, int *status)
{
    (void)stream;
    *status = CU_CAPTURE_NONE;
    return CU_OK;
}

static const struct mb_cuda_driver driver = {.stream_capturing = fake_capturing};

TEST(a_batch_behind_the_end_of_its_queue)
{
    enum { MORE_THAN_A_QUEUE = 1 << 20 };
    struct mb_cuda *dev = calloc(1, sizeof(*dev));
    struct mb_hw_stream *stream = calloc(1, sizeof(*stream));
    struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_BARRIER}, {.kind = MB_HW_INVALIDATE}};
    struct mb_hw_fence done = {0};

    CHECK(dev && stream);
    dev->cu = &driver;
    dev->tables = MB_CUDA_ISOLATED;
    strcpy(dev->lost_text, "the process is exiting");
    atomic_store(&dev->lost, MB_ERR_DEVICE_LOST);
    stream->dev = dev;
    stream->queue = calloc(1, MORE_THAN_A_QUEUE); /* without its channel, as a stopped one is */
    CHECK(stream->queue != NULL);
    CHECK_EQ(mb__cuda_isolated_submit(dev, stream, cmds, 2, &done), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "exiting"));
    CHECK(!done.stream);
    CHECK_EQ(mb__cuda_queue_poison(dev, stream), MB_ERR_INVALID);
    mb__cuda_queue_stop(stream->queue); /* once more does nothing */
    free(stream->queue);
    free(stream);
    free(dev);
}
