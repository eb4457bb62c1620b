/* SPDX-License-Identifier: MIT */
/* One device used by several threads, each with its own stream and slots; meant for TSan as well.
 * */
#include "test.h"

#include "support/sim_rig.h"

#include <pthread.h>

enum { THREADS = 4, ROUNDS = 200 };

struct worker {
    struct mb_hw_dev *dev;
    const struct mb_hw_view *view;
    uint64_t tmpl;
    mb_pfn pfn[2];
    unsigned first; /* slot */
    unsigned failed;
};

static void remap(struct worker *w, struct mb_hw_stream *stream, unsigned round)
{
    mb_va va = mb__va_add(w->view->va, (uint64_t)w->first << MB_FRAME_SHIFT);
    mb_pfn pfn = w->pfn[round % 2];
    struct mb_hw_cmd cmds[4] = {{.kind = MB_HW_LEAVES},
                                {.kind = MB_HW_BARRIER},
                                {.kind = MB_HW_INVALIDATE},
                                {.kind = MB_HW_MEMBAR}};
    struct mb_hw_fence fence;

    cmds[0].leaves.view = w->view;
    cmds[0].leaves.first = w->first;
    cmds[0].leaves.count = 1;
    cmds[0].leaves.pfns = &pfn;
    cmds[0].leaves.tmpl = w->tmpl;
    cmds[2].inval.va = va;
    cmds[2].inval.bytes = MB_FRAME_BYTES;
    w->dev->ops->intend(w->dev, va, 1, MB_FRAME_SHIFT, &pfn);
    w->failed += w->dev->ops->submit(w->dev, stream, cmds, 4) != MB_OK;
    w->failed += w->dev->ops->fill(w->dev, stream, va, MB_FRAME_BYTES, round) != MB_OK;
    w->failed += w->dev->ops->verify(w->dev, stream, va, MB_FRAME_BYTES, round) != MB_OK;
    w->failed += w->dev->ops->fence_record(w->dev, stream, &fence) != MB_OK;
    if (round % 4 == 0)
        w->failed += w->dev->ops->fence_wait_host(w->dev, fence, 0) != MB_OK;
    else
        (void)w->dev->ops->fence_done(w->dev, fence);
}

static void *work(void *argument)
{
    struct worker *w = argument;
    struct mb_hw_stream *stream;
    mb_stream native;

    w->failed += w->dev->ops->stream_create(w->dev, &native) != MB_OK;
    w->failed += w->dev->ops->stream_open(w->dev, native, &stream) != MB_OK;
    for (unsigned i = 0; i < ROUNDS && !w->failed; i++)
        remap(w, stream, i);
    w->dev->ops->stream_close(w->dev, stream);
    w->failed += w->dev->ops->stream_destroy(w->dev, native) != MB_OK;
    return NULL;
}

static void many_threads(const struct mb_hw_config *config)
{
    struct worker worker[THREADS];
    pthread_t thread[THREADS];
    struct sim_rig rig;

    rig_open(&rig, config);
    for (unsigned i = 0; i < THREADS; i++) {
        /* All in one group of slots: what one thread does to the TLB the others see. */
        worker[i] = (struct worker){
            rig.dev, &rig.view, rig.tmpl, {rig_pfn(&rig, 2 * i), rig_pfn(&rig, 2 * i + 1)}, i, 0};
        CHECK_EQ(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(worker[i].failed, 0);
    }
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    CHECK_EQ(rig_counters(&rig).batches >= THREADS * ROUNDS, 1);
    rig_close(&rig);
}

TEST(threads_share_a_device)
{
    many_threads(&(struct mb_hw_config){0});
    many_threads(&(struct mb_hw_config){.tables = "isolated"});
    many_threads(&(struct mb_hw_config){.explore = true, .seed = mb_test_seed()});
    many_threads(&(struct mb_hw_config){.driver_home = true, .self_heal = true});
}

static void *open_and_close(void *argument)
{
    struct mb_hw_config config = {
        .ordinal = *(int *)argument, .tables = "driver", .device_memory_bytes = (uint64_t)1 << 30};
    unsigned long failed = 0;

    for (unsigned i = 0; i < 20; i++) {
        struct mb_hw_slab slab;
        struct mb_hw_dev *dev;
        mb_va va;

        if (mb__sim_open(&config, &dev))
            return (void *)1;
        failed += dev->ops->va_reserve(dev, 64 << 20, 0, &va) != MB_OK;
        failed += dev->ops->slab_acquire(dev, 64 << 20, va, &slab) != MB_OK;
        failed += dev->ops->slab_release(dev, &slab) != MB_OK;
        dev->ops->close(dev);
    }
    return (void *)failed;
}

TEST(devices_are_opened_by_several_threads)
{
    int ordinal[THREADS] = {0, 1, 2, 2};
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, open_and_close, &ordinal[i]), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *failed;

        pthread_join(thread[i], &failed);
        CHECK_PTR_EQ(failed, NULL);
    }
}
