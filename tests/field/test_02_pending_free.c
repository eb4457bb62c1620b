/* SPDX-License-Identifier: MIT */
/*
 * Report 2 of the field (pytorch#189504): out of memory although the free of a fitting block was
 * pending; the same call succeeded a moment later. Here: the request takes the block in stream
 * order.
 */
#include "support/runtime_rig.h"

static const uint64_t BLOCK = 3 * RT_GIB;

/* A long kernel: fills that take far longer than the host needs to get to the request. */
static void keep_busy(mb_device dev, void *ptr, mb_stream stream)
{
    for (unsigned i = 0; i < 8; i++)
        rt_fill(dev, ptr, BLOCK, i, stream);
}

TEST(request_takes_a_block_whose_user_still_runs)
{
    mb_device dev = rt_open("backend:sim,device_memory:4g");
    mb_stream owner = rt_stream(dev), user = rt_stream(dev);
    mb_event ready;
    void *block = rt_malloc(dev, BLOCK, owner), *again;

    RT_OK(mb_event_create(dev, &ready));
    RT_OK(mb_event_record(dev, ready, owner));
    RT_OK(mb_stream_wait_event(dev, user, ready));
    keep_busy(dev, block, user);
    RT_OK(mb_record_stream(dev, block, user));
    RT_OK(mb_free_async(dev, block, owner));
    again = rt_malloc(dev, BLOCK, owner);
    /* Were the block handed out too early, the user's last fill would land in it. */
    rt_fill(dev, again, BLOCK, 100, owner);
    rt_verify(dev, again, BLOCK, 100, owner);
    RT_OK(mb_free_async(dev, again, owner));
    RT_OK(mb_event_destroy(dev, ready));
    rt_close(dev);
}

TEST(request_on_another_stream_waits_in_stream_order)
{
    mb_device dev = rt_open("backend:sim,device_memory:4g");
    mb_stream first = rt_stream(dev), second = rt_stream(dev);
    void *block = rt_malloc(dev, BLOCK, first), *again;

    keep_busy(dev, block, first);
    RT_OK(mb_free_async(dev, block, first));
    again = rt_malloc(dev, BLOCK, second);
    rt_fill(dev, again, BLOCK, 100, second);
    rt_verify(dev, again, BLOCK, 100, second);
    RT_OK(mb_free_async(dev, again, second));
    rt_close(dev);
}

TEST(synchronous_request_waits_on_the_host)
{
    mb_device dev = rt_open("backend:sim,device_memory:4g");
    mb_stream stream = rt_stream(dev), other = rt_stream(dev);
    void *block = rt_malloc(dev, BLOCK, stream), *again = NULL;

    keep_busy(dev, block, stream);
    RT_OK(mb_free_async(dev, block, stream));
    RT_OK(mb_malloc(dev, BLOCK, &again));
    rt_fill(dev, again, BLOCK, 100, other);
    rt_verify(dev, again, BLOCK, 100, other);
    RT_OK(mb_stream_sync(dev, other));
    RT_OK(mb_free(dev, again));
    rt_close(dev);
}
