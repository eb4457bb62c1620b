/* SPDX-License-Identifier: MIT */
/*
 * What the tests of vm share: a software GPU with a vm on it, and short forms of the calls.
 *
 * Header only, since suites are linked separately.
 */
#ifndef MB_TESTS_TEST_VM_H
#define MB_TESTS_TEST_VM_H

#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/sim/sim.h"
#include "vm/internal.h"
#include "vm/vm.h"

#define MIB ((uint64_t)1 << 20)
#define FRAMES(n) ((n)*MB_FRAME_BYTES)

struct rig {
    struct mb_hw_dev *hw;
    struct mb_vm *vm;
    struct mb_hw_stream *stream[4];
    mb_stream native[4];
    unsigned streams;
};

struct rig_config {
    struct mb_hw_config hw;
    struct mb_vm_config vm;
    unsigned streams; /* 0: 1 */
};

__attribute__((unused)) static void rig_streams(struct rig *rig, unsigned count)
{
    rig->streams = count ? count : 1;
    for (unsigned i = 0; i < rig->streams; i++) {
        CHECK_OK(rig->hw->ops->stream_create(rig->hw, &rig->native[i]));
        CHECK_OK(rig->hw->ops->stream_open(rig->hw, rig->native[i], &rig->stream[i]));
    }
}

__attribute__((unused)) static struct rig rig_open(struct rig_config config)
{
    struct rig rig = {0};

    if (!config.hw.device_memory_bytes)
        config.hw.device_memory_bytes = 4096 * MIB;
    CHECK_OK(mb__sim_open(&config.hw, &rig.hw));
    if (mb__vm_open(rig.hw, &config.vm, &rig.vm))
        FAIL("vm_open: %s", mb_error_detail());
    rig_streams(&rig, config.streams);
    return rig;
}

/* The device has seen nothing wrong so far. */
__attribute__((unused)) static void rig_judge(struct rig *rig)
{
    struct mb_hw_counters counters;
    char text[512];

    CHECK_OK(rig->hw->ops->device_sync(rig->hw));
    CHECK_OK(rig->hw->ops->health(rig->hw));
    rig->hw->ops->counters(rig->hw, &counters);
    mb__sim_first_wrong(rig->hw, text, sizeof(text));
    if (counters.wrong_accesses || counters.wrong_words || counters.faults)
        FAIL("%llu wrong accesses, %llu wrong words, %llu faults: %s",
             (unsigned long long)counters.wrong_accesses, (unsigned long long)counters.wrong_words,
             (unsigned long long)counters.faults, text);
}

__attribute__((unused)) static void rig_check(struct rig *rig)
{
    if (mb__vm_check(rig->vm))
        FAIL("vm_check: %s", mb_error_detail());
}

__attribute__((unused)) static void rig_check_tables(struct rig *rig)
{
    CHECK_OK(rig->hw->ops->device_sync(rig->hw));
    if (mb__vm_check_tables(rig->vm))
        FAIL("vm_check_tables: %s", mb_error_detail());
}

__attribute__((unused)) static void rig_close(struct rig *rig)
{
    mb__vm_close(rig->vm);
    for (unsigned i = 0; i < rig->streams; i++) {
        rig->hw->ops->stream_close(rig->hw, rig->stream[i]);
        CHECK_OK(rig->hw->ops->stream_destroy(rig->hw, rig->native[i]));
    }
    rig->hw->ops->close(rig->hw);
}

/* One run of frames, or the test fails. */
__attribute__((unused)) static struct mb_run take(struct rig *rig, uint32_t frames)
{
    struct mb_run run;
    unsigned count = 0;

    if (mb__alloc_pfn(rig->vm, 1, frames, MB_PFN_CONTIGUOUS, &run, 1, &count))
        FAIL("alloc_pfn(%u): %s", frames, mb_error_detail());
    CHECK_EQ(count, 1);
    CHECK_EQ(run.frames, frames);
    return run;
}

__attribute__((unused)) static mb_va window(struct rig *rig, uint32_t slots)
{
    mb_va va = {0};

    if (mb__alloc_va(rig->vm, FRAMES(slots), 0, &va))
        FAIL("alloc_va(%u): %s", slots, mb_error_detail());
    return va;
}

__attribute__((unused)) static struct mb_hw_fence pop(struct rig *rig, unsigned stream,
                                                      struct mb_vm_op op)
{
    struct mb_hw_fence fence = {0};

    if (mb__pte_pop(rig->vm, rig->stream[stream], &op, 1, &fence))
        FAIL("pte_pop: %s", mb_error_detail());
    return fence;
}

/* Maps `frames` frames of a run from its first one on at `va`. */
__attribute__((unused)) static struct mb_hw_fence map_run(struct rig *rig, unsigned stream,
                                                          mb_va va, struct mb_run run)
{
    mb_pfn *pfns = calloc(run.frames, sizeof(*pfns));
    struct mb_hw_fence fence;

    CHECK(pfns);
    CHECK_OK(mb__home_pfns(rig->vm, run.home, run.frames, pfns));
    fence = pop(rig, stream,
                (struct mb_vm_op){.kind = MB_VM_MAP,
                                  .prot = MB_PROT_READ_WRITE,
                                  .va = va,
                                  .frames = run.frames,
                                  .pfns = pfns,
                                  .cap = mb__owner_cap(rig->vm, 1)});
    free(pfns);
    return fence;
}

__attribute__((unused)) static struct mb_hw_fence unmap(struct rig *rig, unsigned stream, mb_va va,
                                                        uint32_t slots)
{
    return pop(rig, stream, (struct mb_vm_op){.kind = MB_VM_UNMAP, .va = va, .frames = slots});
}

__attribute__((unused)) static void fill(struct rig *rig, unsigned stream, mb_va va, uint64_t bytes,
                                         uint64_t seed)
{
    CHECK_OK(rig->hw->ops->fill(rig->hw, rig->stream[stream], va, bytes, seed));
}

__attribute__((unused)) static void verify(struct rig *rig, unsigned stream, mb_va va,
                                           uint64_t bytes, uint64_t seed)
{
    CHECK_OK(rig->hw->ops->verify(rig->hw, rig->stream[stream], va, bytes, seed));
}

#endif
