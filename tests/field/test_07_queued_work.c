/* SPDX-License-Identifier: MIT */
/*
 * Report 7 of the field (pytorch#196258, vllm PR 43020): memory was unmapped under work that was
 * still queued. 200 times: a tensor of 2048 x 7168 floats, filled and dropped, without a host wait.
 */
#include "support/runtime_rig.h"

static const uint64_t TENSOR = 2048u * 7168u * 4u;

static void run(const char *config, bool trim)
{
    mb_device dev = rt_open(config);
    mb_stream stream = rt_stream(dev);
    mb_pool pool;

    RT_OK(mb_pool_default(dev, &pool));
    for (unsigned i = 0; i < 200; i++) {
        void *tensor = rt_malloc(dev, TENSOR, stream);

        rt_fill(dev, tensor, TENSOR, i, stream);
        rt_verify(dev, tensor, TENSOR, i, stream);
        RT_OK(mb_free_async(dev, tensor, stream));
        if (trim && i % 10 == 9)
            RT_OK(mb_pool_trim(pool, 0));
    }
    rt_close(dev);
}

TEST(drop_after_fill_without_waiting)
{
    run("backend:sim,device_memory:1g", false);
}

TEST(drop_and_trim_without_waiting)
{
    run("backend:sim,device_memory:1g", true);
}

TEST(drop_and_unmap_without_waiting)
{
    run("backend:sim,device_memory:1g,check:uaf", false);
}
