/* SPDX-License-Identifier: MIT */
/* Streams, fences and virtual time. */
#include "test.h"

#include "hw/sim/dev.h"
#include "support/sim_rig.h"

#include <string.h>

TEST(work_takes_effect_in_stream_order)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 1, 0, 2, 0, RIG_INVALIDATE);
    rig_fill(&rig, 1, 0, MB_FRAME_BYTES, 1);
    rig_verify(&rig, 1, 0, MB_FRAME_BYTES, 1);
    CHECK_OK(
        rig.ops->copy(rig.dev, rig.stream[1], rig_va(&rig, 1), rig_va(&rig, 0), MB_FRAME_BYTES));
    rig_fill(&rig, 1, 0, MB_FRAME_BYTES, 2);
    rig_verify(&rig, 1, 1, MB_FRAME_BYTES, 1);
    rig_verify(&rig, 1, 0, MB_FRAME_BYTES, 2);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    rig_verify(&rig, 1, 1, MB_FRAME_BYTES, 2);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_words, MB_FRAME_BYTES / 8);
    rig_close(&rig);
}

TEST(a_fence_passes_when_its_work_is_done)
{
    struct mb_hw_fence empty, early, late;
    struct sim_rig rig;

    rig_open(&rig, NULL);
    empty = rig_fence(&rig, 1);
    CHECK_EQ(empty.seq >= 1, 1);
    CHECK(rig.ops->fence_done(rig.dev, empty));
    CHECK(rig.ops->fence_done(rig.dev, (struct mb_hw_fence){NULL, 0}));
    rig_map(&rig, 1, 0, 1, 0, RIG_INVALIDATE);
    early = rig_fence(&rig, 1);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[1], 1000000));
    late = rig_fence(&rig, 1);
    CHECK(late.seq > early.seq);
    CHECK(!rig.ops->fence_done(rig.dev, late));
    CHECK_OK(rig.ops->fence_wait_host(rig.dev, early, 0));
    CHECK(rig.ops->fence_done(rig.dev, early));
    CHECK(!rig.ops->fence_done(rig.dev, late));
    mb__sim_host_pass(rig.dev, 2000000);
    CHECK(rig.ops->fence_done(rig.dev, late));
    rig_close(&rig);
}

/* Asking costs time, so a program that polls gets its answer. */
TEST(polling_makes_progress)
{
    struct mb_hw_fence fence;
    struct sim_rig rig;
    unsigned polls = 0;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[0], 10000));
    fence = rig_fence(&rig, 0);
    while (!rig.ops->fence_done(rig.dev, fence))
        polls++;
    CHECK(polls > 0);
    rig_close(&rig);
}

TEST(a_stream_waits_for_another)
{
    struct sim_rig rig;
    struct mb_hw_fence fence;

    for (unsigned explore = 0; explore < 2; explore++) {
        rig_open(&rig, &(struct mb_hw_config){.explore = explore, .seed = mb_test_seed()});
        rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
        CHECK_OK(rig_sync(&rig));
        CHECK_OK(mb__sim_delay(rig.dev, rig.stream[1], 100000));
        rig_fill(&rig, 1, 0, MB_FRAME_BYTES, 1);
        fence = rig_fence(&rig, 1);
        rig_wait(&rig, 2, fence);
        rig_verify(&rig, 2, 0, MB_FRAME_BYTES, 1);
        CHECK_OK(rig.ops->fence_wait_host(rig.dev, rig_fence(&rig, 2), 0));
        CHECK(rig.ops->fence_done(rig.dev, fence));
        CHECK_EQ(rig_counters(&rig).wrong_words, 0);
        rig_close(&rig);
    }
}

TEST(a_wait_may_time_out)
{
    struct sim_rig rig;
    struct mb_hw_fence fence;
    uint64_t before;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[0], 1000000));
    fence = rig_fence(&rig, 0);
    before = rig_sim(&rig).host_ns;
    CHECK_EQ(rig.ops->fence_wait_host(rig.dev, fence, 5000), MB_ERR_TIMEOUT);
    CHECK_EQ(rig_sim(&rig).host_ns, before + 5000);
    CHECK(!rig.ops->fence_done(rig.dev, fence));
    CHECK_OK(rig.ops->fence_wait_host(rig.dev, fence, 0));
    rig_close(&rig);
}

TEST(a_gate_that_nobody_opens_is_a_deadlock)
{
    struct sim_rig rig;
    struct mb_hw_fence fence;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[1], 3, 1));
    fence = rig_fence(&rig, 1);
    rig_wait(&rig, 2, fence);
    fence = rig_fence(&rig, 2);
    CHECK_EQ(rig.ops->fence_wait_host(rig.dev, fence, 0), MB_ERR_DEADLOCK);
    CHECK(strstr(mb_error_detail(), "stream 1 waits for semaphore 3 >= 1 (it is 0)") != NULL);
    CHECK(strstr(mb_error_detail(), "of stream 1") != NULL);
    CHECK_EQ(rig.ops->fence_wait_host(rig.dev, fence, 1000), MB_ERR_TIMEOUT);
    mb__sim_sem_host(rig.dev, 3, 1);
    CHECK_OK(rig.ops->fence_wait_host(rig.dev, fence, 0));
    rig_close(&rig);
}

/* A stream that is held back holds nobody else back. */
TEST(streams_are_independent)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[1], 0, 1));
    rig_map(&rig, 1, 0, 1, 0, RIG_INVALIDATE);
    rig_map(&rig, 2, 32, 1, 1, RIG_INVALIDATE);
    rig_touch(&rig, 2, 32);
    CHECK_OK(rig.ops->fence_wait_host(rig.dev, rig_fence(&rig, 2), 0));
    CHECK_EQ(mb__sim_walk(rig.dev, rig_va(&rig, 0)).n, MB_NO_PFN.n);
    mb__sim_sem_host(rig.dev, 0, 1);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_walk(rig.dev, rig_va(&rig, 0)).n, rig_pfn(&rig, 0).n);
    rig_close(&rig);
}

/* A batch enqueued while its stream is stopped has read its list already. */
TEST(submit_copies_its_frame_list)
{
    struct sim_rig rig;
    mb_pfn pfn;
    struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_LEAVES}, {.kind = MB_HW_BARRIER}};

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[0], 0, 1));
    pfn = rig_pfn(&rig, 4);
    cmds[0].leaves.view = &rig.view;
    cmds[0].leaves.count = 1;
    cmds[0].leaves.pfns = &pfn;
    cmds[0].leaves.tmpl = rig.tmpl;
    rig_submit(&rig, 0, cmds, 2);
    pfn = rig_pfn(&rig, 5);
    mb__sim_sem_host(rig.dev, 0, 1);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_walk(rig.dev, rig_va(&rig, 0)).n, rig_pfn(&rig, 4).n);
    rig_close(&rig);
}

/* A busy program; returns what tells one run from another. */
static uint64_t signature(uint64_t seed, bool explore, const char *tables)
{
    struct sim_rig rig;
    struct mb_sim_counters sim;
    uint64_t state = 42, sum = 0;

    rig_open(&rig, &(struct mb_hw_config){.explore = explore, .seed = seed, .tables = tables});
    for (unsigned i = 0; i < 300; i++) {
        unsigned stream = (unsigned)mb_test_random_below(&state, RIG_STREAMS);
        unsigned slot = stream * 64 + (unsigned)mb_test_random_below(&state, 16);

        rig_map(&rig, stream, slot, 1, slot % RIG_FRAMES, RIG_INVALIDATE);
        rig_fill(&rig, stream, slot, 4096, i);
        if (i % 50 == 0)
            rig_wait(&rig, (stream + 1) % RIG_STREAMS, rig_fence(&rig, stream));
        sum += rig.ops->fence_done(rig.dev, rig_fence(&rig, stream));
        sum *= 3;
    }
    CHECK_OK(rig_sync(&rig));
    sim = rig_sim(&rig);
    sum = sum * 31 + sim.walks;
    sum = sum * 31 + sim.utlb_hits;
    sum = sum * 31 + sim.posted;
    sum = sum * 31 + sim.device_ns;
    for (unsigned i = 0; i < RIG_FRAMES; i++)
        sum = sum * 31 + mb__sim_peek(rig.dev, mb__phys_of_pfn(rig_pfn(&rig, i)));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    rig_close(&rig);
    return sum;
}

TEST(the_same_seed_is_the_same_run)
{
    uint64_t seed = mb_test_seed(), first = signature(seed, true, NULL);
    unsigned same = 0;

    CHECK_EQ(signature(seed, true, NULL), first);
    CHECK_EQ(signature(1, false, "isolated"), signature(2, false, "isolated"));
    for (uint64_t i = 1; i <= 10; i++)
        same += signature(seed + i, true, NULL) == first;
    CHECK(same < 10);
}

/* What the host pays and when a batch is done: the measured figures, through the whole engine. */
TEST(h200_costs_are_as_measured)
{
    struct sim_rig rig;
    uint64_t before, blocked, complete;

    rig_open(&rig, NULL);
    before = rig_sim(&rig).host_ns;
    rig_map(&rig, 0, 0, 1, 0, 0);
    blocked = rig_sim(&rig).host_ns - before;
    CHECK_OK(rig_sync(&rig));
    complete = rig_sim(&rig).host_ns - before;
    CHECK_EQ(blocked, 3600);
    CHECK(complete > 9000 && complete < 10500);
    before = rig_sim(&rig).host_ns;
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE | RIG_MEMBAR);
    CHECK_OK(rig_sync(&rig));
    complete = rig_sim(&rig).host_ns - before;
    CHECK(complete > 12500 && complete < 14000);
    rig_close(&rig);
}

TEST(driver_calls_of_several_devices_slow_each_other)
{
    struct sim_rig rig[3];
    uint64_t alone, beside;
    static const struct mb_hw_config config[3] = {{.tables = "driver"},
                                                  {.tables = "driver", .ordinal = 1},
                                                  {.tables = "driver", .ordinal = 2}};
    uint64_t before;

    for (unsigned i = 0; i < 3; i++)
        rig_open(&rig[i], &config[i]);
    /* Bring the clocks apart, so that the first map overlaps nothing. */
    mb__sim_host_pass(rig[0].dev, 1000000000);
    before = rig_sim(&rig[0]).host_ns;
    rig_map(&rig[0], 0, 0, 64, 0, 0);
    alone = rig_sim(&rig[0]).host_ns - before;
    CHECK_EQ(alone, 64 * (uint64_t)26118);
    mb__sim_host_pass(rig[1].dev, before - rig_sim(&rig[1]).host_ns);
    before = rig_sim(&rig[1]).host_ns;
    rig_map(&rig[1], 0, 0, 64, 0, 0);
    beside = rig_sim(&rig[1]).host_ns - before;
    /* Two H200: 30.9 ms alone, 52 to 84 ms together. */
    CHECK(beside * 10 >= alone * 17 && beside * 10 <= alone * 27);
    for (unsigned i = 0; i < 3; i++)
        rig_close(&rig[i]);
}

TEST(stock_costs_of_the_a100_are_as_published)
{
    struct mb_hw_config config = {.model = "a100"};
    struct mb_hw_dev *dev;

    CHECK_OK(mb__sim_open(&config, &dev));
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC, (uint64_t)2 << 20), 59000);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC, (uint64_t)16 << 20), 437000);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC, (uint64_t)128 << 20), 966000);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC_TABLES, (uint64_t)128 << 20), 949000);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_TLB_FLUSH, 0), 26800);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MAP, (uint64_t)2 << 30) / 1000000, 35);
    dev->ops->close(dev);
}

/* Tickets outlive the stream; its object serves the next one and old fences stay passed. */
TEST(fences_outlive_their_stream)
{
    struct sim_rig rig;
    struct mb_hw_fence fence;
    struct mb_hw_stream *again;
    mb_stream native;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[1], 5000));
    fence = rig_fence(&rig, 1);
    rig.ops->stream_close(rig.dev, rig.stream[1]);
    CHECK_OK(rig.ops->stream_destroy(rig.dev, rig.native[1]));
    CHECK_EQ(rig.ops->stream_open(rig.dev, rig.native[1], &again), MB_ERR_NOT_FOUND);
    CHECK(!rig.ops->fence_done(rig.dev, fence));
    CHECK_OK(rig.ops->fence_wait_host(rig.dev, fence, 0));
    CHECK_OK(rig.ops->stream_create(rig.dev, &native));
    CHECK_OK(rig.ops->stream_open(rig.dev, native, &again));
    CHECK_OK(mb__sim_delay(rig.dev, again, 5000));
    CHECK(rig.ops->fence_done(rig.dev, fence));
    rig_close(&rig);
}

/* A queue of any length holds a bounded number of operations. */
TEST(queues_are_bounded)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    for (unsigned i = 0; i < 50000; i++) {
        rig_touch(&rig, 0, 0);
        CHECK(rig_sim(&rig).queued_ops <= 8192);
    }
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    rig_close(&rig);
}

TEST(a_dead_context_says_why)
{
    struct sim_rig rig;
    struct mb_hw_fence before, after;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    before = rig_fence(&rig, 0);
    rig_touch(&rig, 0, 1);
    after = rig_fence(&rig, 0);
    CHECK_EQ(rig_sync(&rig), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "fatal MMU fault") != NULL);
    CHECK(rig.ops->fence_done(rig.dev, before));
    CHECK(!rig.ops->fence_done(rig.dev, after));
    CHECK_EQ(rig.ops->fence_wait_host(rig.dev, after, 0), MB_ERR_DEVICE_LOST);
    CHECK_EQ(rig.ops->fill(rig.dev, rig.stream[0], rig_va(&rig, 0), 8, 0), MB_ERR_DEVICE_LOST);
    CHECK_OK(rig.ops->slab_release(rig.dev, &rig.slab));
    rig_close(&rig);
}
