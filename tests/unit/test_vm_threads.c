/* SPDX-License-Identifier: MIT */
/* Threads with a stream each share one vm: run it under TSan too. */
#include "unit/test_vm.h"

#include <pthread.h>

#include "base/rng.h"

enum { THREADS = 4, ROUNDS = 120 };

struct worker {
    pthread_t thread;
    struct rig *rig;
    uint64_t seed;
    unsigned stream;
    char failure[300];
};

/* Checks of the test layer may not be made on other threads. */
#define DO(w, call)                                                                                \
    do {                                                                                           \
        if (call) {                                                                                \
            snprintf((w)->failure, sizeof((w)->failure), "%s: %.200s", #call, mb_error_detail());  \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static bool round_of(struct worker *w, struct mb_rng *rng)
{
    struct mb_hw_dev *hw = w->rig->hw;
    struct mb_hw_stream *stream = w->rig->stream[w->stream];
    uint32_t frames = 1 + (uint32_t)mb__rng_below(rng, 20);
    uint64_t seed = mb__rng_next(rng) | 1, released;
    struct mb_vm_op op = {.kind = MB_VM_MAP, .prot = MB_PROT_READ_WRITE, .frames = frames};
    struct mb_hw_fence fence;
    mb_pfn pfns[20];
    struct mb_run run;
    unsigned count;

    DO(w, mb__alloc_pfn(w->rig->vm, 1 + w->stream, frames, MB_PFN_CONTIGUOUS, &run, 1, &count));
    DO(w, mb__alloc_va(w->rig->vm, FRAMES(frames), 0, &op.va));
    DO(w, mb__home_pfns(w->rig->vm, run.home, frames, pfns));
    op.pfns = pfns;
    op.cap = mb__owner_cap(w->rig->vm, 1 + w->stream);
    DO(w, mb__pte_pop(w->rig->vm, stream, &op, 1, NULL));
    DO(w, hw->ops->fill(hw, stream, op.va, FRAMES(frames), seed));
    DO(w, hw->ops->verify(hw, stream, run.home, FRAMES(frames), seed));
    DO(w, !mb__pfn_eq(mb__vm_lookup(w->rig->vm, op.va), run.pfn));
    op.kind = MB_VM_UNMAP;
    DO(w, mb__pte_pop(w->rig->vm, stream, &op, 1, &fence));
    DO(w, mb__free_va(w->rig->vm, op.va, FRAMES(frames)));
    DO(w, mb__free_pfn(w->rig->vm, 1 + w->stream, run, &fence, 1));
    if (mb__rng_below(rng, 8) == 0)
        DO(w, mb__vm_trim(w->rig->vm, FRAMES(64), &released));
    if (mb__rng_below(rng, 16) == 0)
        DO(w, mb__tlb_flush(w->rig->vm, stream, NULL));
    if (mb__rng_below(rng, 16) == 0)
        DO(w, mb__vm_check(w->rig->vm));
    if (mb__rng_below(rng, 32) == 0)
        DO(w, mb__vm_drain(w->rig->vm));
    return true;
}

static void *work(void *arg)
{
    struct worker *w = arg;
    struct mb_rng rng;

    mb__rng_seed(&rng, w->seed);
    for (int i = 0; i < ROUNDS; i++) {
        if (!round_of(w, &rng))
            break;
    }
    return NULL;
}

static void share(struct rig_config config)
{
    struct worker workers[THREADS];
    struct rig rig;

    config.streams = THREADS;
    config.hw.explore = true;
    config.hw.seed = mb_test_seed();
    config.vm.ring_bytes = 1024 * MIB;
    rig = rig_open(config);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.rig = &rig, .stream = i, .seed = mb_test_seed() + i};
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        if (workers[i].failure[0])
            FAIL("thread %u: %s", i, workers[i].failure);
    }
    CHECK_OK(mb__vm_drain(rig.vm));
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(inline_policy)
{
    share((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE});
}

TEST(fresh_policy)
{
    share((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH});
}

TEST(driver_homes_isolated_deferred)
{
    share((struct rig_config){.hw = {.driver_home = true, .tables = "isolated"},
                              .vm.deferred = true});
}
