/* SPDX-License-Identifier: MIT */
/* Frames, slabs and homes: fit, joining, growth, limits, draining, trim. */
#include "unit/test_vm.h"

static struct rig small_rig(uint64_t device_mib)
{
    return rig_open((struct rig_config){.hw.device_memory_bytes = device_mib * MIB, .streams = 2});
}

static uint64_t held(struct rig *rig)
{
    struct mb_vm_stats stats;

    mb__vm_stats(rig->vm, &stats);
    return stats.held_bytes / MB_FRAME_BYTES;
}

static void give(struct rig *rig, struct mb_run run)
{
    CHECK_OK(mb__free_pfn(rig->vm, 1, run, NULL, 0));
}

static enum mb_err ask(struct rig *rig, uint32_t frames, unsigned flags, struct mb_run *runs,
                       unsigned capacity, unsigned *count)
{
    return mb__alloc_pfn(rig->vm, 1, frames, flags, runs, capacity, count);
}

/* The first slab is a whole step; then the step follows what is held, so that no more than a small
 * share of it is ever in nobody's use. */
TEST(growth_is_rounded_to_a_step)
{
    struct rig rig = small_rig(64 * 1024);

    take(&rig, 1);
    CHECK_EQ(held(&rig), 16);
    CHECK_EQ(rig.vm->slabs.count - 1, 1);
    take(&rig, 15);
    CHECK_EQ(held(&rig), 16);
    take(&rig, 1);
    CHECK_EQ(held(&rig), 17);
    take(&rig, 1266); /* 2.5 GiB but for a frame or so */
    CHECK_EQ(held(&rig), 1283);
    take(&rig, 1);
    CHECK_EQ(held(&rig), 1285);
    take(&rig, 2);
    CHECK_EQ(held(&rig), 1287);
    take(&rig, 10000); /* 20 GiB and more */
    CHECK_EQ(held(&rig), 11287);
    CHECK_EQ(mb__vm_step(rig.vm), FRAMES(16));
    take(&rig, 2); /* one is free */
    CHECK_EQ(held(&rig), 11303);
    rig_check(&rig);
    rig_close(&rig);
}

/* It is what a backend primes windows with, which does not go by slabs of any size. */
TEST(the_first_slab_is_a_step)
{
    struct rig rig = small_rig(1024);

    take(&rig, 100);
    CHECK_EQ(rig.vm->slabs.count - 1, 2);
    CHECK_EQ(rig.vm->slabs.data[1].frames, 16);
    CHECK_EQ(held(&rig), 112);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(smallest_hole_that_fits_is_taken)
{
    struct rig rig = small_rig(1024);
    struct mb_run a = take(&rig, 20), wall1 = take(&rig, 1), b = take(&rig, 10),
                  wall2 = take(&rig, 1);
    struct mb_run c;

    give(&rig, a);
    give(&rig, b);
    c = take(&rig, 9);
    CHECK_EQ(c.home.addr, b.home.addr);
    c = take(&rig, 11);
    CHECK_EQ(c.home.addr, a.home.addr);
    (void)wall1;
    (void)wall2;
    rig_check(&rig);
    rig_close(&rig);
}

TEST(runs_join_over_slabs)
{
    struct rig rig = small_rig(1024);
    struct mb_run a = take(&rig, 16), b = take(&rig, 16), c = take(&rig, 16), all;

    CHECK_EQ(b.home.addr, a.home.addr + FRAMES(16));
    CHECK_EQ(c.home.addr, b.home.addr + FRAMES(16));
    give(&rig, a);
    give(&rig, c);
    give(&rig, b);
    all = take(&rig, 48);
    CHECK_EQ(all.home.addr, a.home.addr);
    CHECK_EQ(held(&rig), 48);
    fill(&rig, 0, all.home, FRAMES(48), 4);
    verify(&rig, 0, all.home, FRAMES(48), 4);
    rig_judge(&rig);
    rig_check(&rig);
    rig_close(&rig);
}

/* Only what is missing is taken: free frames at the end of the last slab are part of the run. */
TEST(growth_joins_the_free_end)
{
    struct rig rig = small_rig(1024);
    struct mb_run a = take(&rig, 6), b;

    b = take(&rig, 20); /* 10 are free behind a */
    CHECK_EQ(b.home.addr, a.home.addr + FRAMES(6));
    CHECK_EQ(held(&rig), 26);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(large_requests_are_split_into_slabs_that_join)
{
    struct rig rig = rig_open(
        (struct rig_config){.hw.device_memory_bytes = 2048 * MIB, .vm.max_run_bytes = 128 * MIB});
    struct mb_run run = take(&rig, 500);

    CHECK_EQ(rig.vm->slabs.count - 1, 8);
    CHECK_EQ(run.frames, 500);
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}

TEST(several_runs_make_one_request)
{
    struct rig rig = small_rig(128);
    struct mb_run keep[4], hole[4], got[8];
    unsigned count = 0;

    for (int i = 0; i < 4; i++) {
        hole[i] = take(&rig, 12);
        keep[i] = take(&rig, 4);
    }
    for (int i = 0; i < 4; i++)
        give(&rig, hole[i]);
    (void)keep;
    CHECK_EQ(ask(&rig, 30, MB_PFN_CONTIGUOUS | MB_PFN_NO_GROW, got, 8, &count), MB_ERR_NO_MEMORY);
    CHECK_EQ(ask(&rig, 30, MB_PFN_CONTIGUOUS, got, 8, &count), MB_ERR_NO_MEMORY);
    CHECK_EQ(ask(&rig, 30, MB_PFN_NO_GROW, got, 2, &count), MB_ERR_INVALID);
    CHECK_EQ(count, 0);
    CHECK_OK(ask(&rig, 30, 0, got, 3, &count));
    CHECK_EQ(count, 3);
    CHECK_EQ(got[0].frames + got[1].frames + got[2].frames, 30);
    rig_check(&rig);
    rig_close(&rig);
}

/* The pool has half of it, the rest is a new slab. */
TEST(pool_and_growth_together)
{
    struct rig rig = small_rig(1024);
    struct mb_run a = take(&rig, 10), wall = take(&rig, 6), got[4];
    unsigned count = 0;

    (void)wall;
    give(&rig, a);
    CHECK_OK(ask(&rig, 20, 0, got, 4, &count));
    CHECK_EQ(count, 2);
    CHECK_EQ(got[0].frames + got[1].frames, 20);
    CHECK_EQ(held(&rig), 26);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(limit_and_memory_are_told_apart)
{
    struct rig rig = small_rig(64);
    struct mb_run run;
    unsigned count;

    CHECK_EQ(ask(&rig, 33, 0, &run, 1, &count), MB_ERR_NO_MEMORY);
    CHECK_OK(ask(&rig, 32, 0, &run, 1, &count));
    CHECK_EQ(ask(&rig, 1, 0, &run, 1, &count), MB_ERR_NO_MEMORY);
    rig_check(&rig);
    rig_close(&rig);

    rig = rig_open(
        (struct rig_config){.hw.device_memory_bytes = 1024 * MIB, .vm.limit_bytes = 50 * MIB});
    CHECK_EQ(ask(&rig, 26, 0, &run, 1, &count), MB_ERR_LIMIT);
    CHECK_OK(ask(&rig, 25, 0, &run, 1, &count)); /* the step is cut to the limit */
    CHECK_EQ(ask(&rig, 1, 0, &run, 1, &count), MB_ERR_LIMIT);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(wrong_frees_are_refused)
{
    struct rig rig = small_rig(256);
    struct mb_run run = take(&rig, 8), part = run, out = run;

    CHECK_EQ(mb__free_pfn(rig.vm, 2, run, NULL, 0), MB_ERR_INVALID);
    out.frames = 0;
    CHECK_EQ(mb__free_pfn(rig.vm, 1, out, NULL, 0), MB_ERR_NOT_FOUND);
    out = run;
    out.home.addr = 4096;
    CHECK_EQ(mb__free_pfn(rig.vm, 1, out, NULL, 0), MB_ERR_NOT_FOUND);
    out = run;
    out.home = mb__va_add(run.home, FRAMES(64));
    CHECK_EQ(mb__free_pfn(rig.vm, 1, out, NULL, 0), MB_ERR_NOT_FOUND);
    part.frames = 3;
    give(&rig, part);
    CHECK_EQ(mb__free_pfn(rig.vm, 1, run, NULL, 0), MB_ERR_DOUBLE_FREE);
    part.home = mb__va_add(run.home, FRAMES(3));
    part.frames = 5;
    give(&rig, part);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(frames_drain_until_every_fence_has_passed)
{
    struct rig rig = small_rig(256);
    struct mb_run run = take(&rig, 16);
    struct mb_hw_fence fences[2];
    struct mb_vm_stats stats;

    for (unsigned i = 0; i < 2; i++) {
        CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[i], 1 + i, 1));
        CHECK_OK(rig.hw->ops->fence_record(rig.hw, rig.stream[i], &fences[i]));
    }
    CHECK_OK(mb__free_pfn(rig.vm, 1, run, fences, 2));
    mb__sim_sem_host(rig.hw, 2, 1);
    mb__sim_host_pass(rig.hw, 1000000);
    mb__vm_poll(rig.vm);
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.draining_bytes, FRAMES(16));
    CHECK_EQ(stats.free_bytes, 0);
    rig_check(&rig);
    mb__sim_sem_host(rig.hw, 1, 1);
    mb__sim_host_pass(rig.hw, 1000000);
    mb__vm_poll(rig.vm);
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.draining_bytes, 0);
    CHECK_EQ(stats.free_bytes, FRAMES(16));
    rig_check(&rig);
    rig_close(&rig);
}

/* One stream's open fence holds up nobody else's frames. */
TEST(streams_drain_apart)
{
    struct rig rig = small_rig(256);
    struct mb_run a = take(&rig, 16), b = take(&rig, 16);
    struct mb_hw_fence fence;
    struct mb_vm_stats stats;

    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 1, 1));
    CHECK_OK(rig.hw->ops->fence_record(rig.hw, rig.stream[0], &fence));
    CHECK_OK(mb__free_pfn(rig.vm, 1, a, &fence, 1));
    CHECK_OK(mb__sim_delay(rig.hw, rig.stream[1], 1000));
    CHECK_OK(rig.hw->ops->fence_record(rig.hw, rig.stream[1], &fence));
    CHECK_OK(mb__free_pfn(rig.vm, 1, b, &fence, 1));
    mb__sim_host_pass(rig.hw, 1000000);
    mb__vm_poll(rig.vm);
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.free_bytes, FRAMES(16));
    CHECK_EQ(stats.draining_bytes, FRAMES(16));
    mb__sim_sem_host(rig.hw, 1, 1);
    CHECK_OK(mb__vm_drain(rig.vm));
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.free_bytes, FRAMES(32));
    rig_check(&rig);
    rig_close(&rig);
}

TEST(a_window_keeps_a_freed_frame)
{
    struct rig rig = small_rig(256);
    struct mb_run run = take(&rig, 2);
    struct mb_vm_stats stats;
    mb_va va = window(&rig, 2);

    map_run(&rig, 0, va, run);
    give(&rig, run);
    CHECK_OK(mb__vm_drain(rig.vm));
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.draining_bytes, FRAMES(2));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 0);
    rig_check(&rig);
    unmap(&rig, 0, va, 2);
    CHECK_OK(mb__vm_drain(rig.vm));
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.draining_bytes, 0);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(trim_takes_the_highest_free_slabs)
{
    struct rig rig = small_rig(1024);
    struct mb_run a = take(&rig, 16), b = take(&rig, 16), c = take(&rig, 16), again;
    uint64_t released = 1;

    give(&rig, a);
    give(&rig, b);
    CHECK_OK(mb__vm_trim(rig.vm, FRAMES(32), &released));
    CHECK_EQ(released, FRAMES(16));
    CHECK_EQ(held(&rig), 32);
    CHECK(mb__pfn_eq(mb__home_pfn(rig.vm, b.home), MB_NO_PFN));
    CHECK(!mb__pfn_eq(mb__home_pfn(rig.vm, a.home), MB_NO_PFN));
    rig_check(&rig);
    rig_check_tables(&rig);
    CHECK_OK(mb__vm_trim(rig.vm, 0, &released));
    CHECK_EQ(released, FRAMES(16));
    CHECK_EQ(held(&rig), 16);
    /* The holes are used again, lowest first. */
    again = take(&rig, 20);
    CHECK_EQ(again.home.addr, a.home.addr);
    fill(&rig, 0, again.home, FRAMES(20), 1);
    fill(&rig, 0, c.home, FRAMES(16), 2);
    verify(&rig, 0, again.home, FRAMES(20), 1);
    rig_judge(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}

/* A device in pieces: the driver cannot give one large slab but gives small ones. */
static enum mb_err (*real_slab_acquire)(struct mb_hw_dev *, uint64_t, mb_va, struct mb_hw_slab *);
static uint64_t largest_slab;

static enum mb_err small_slabs_only(struct mb_hw_dev *dev, uint64_t bytes, mb_va home,
                                    struct mb_hw_slab *out)
{
    if (bytes > largest_slab)
        return mb__fail(MB_ERR_NO_MEMORY, "no piece of %llu bytes", (unsigned long long)bytes);
    return real_slab_acquire(dev, bytes, home, out);
}

TEST(growth_takes_smaller_slabs_when_large_ones_fail)
{
    struct rig rig = small_rig(1024);
    const struct mb_hw_ops *ops = rig.hw->ops;
    struct mb_hw_ops changed = *ops;
    struct mb_run run, none;
    unsigned count;

    real_slab_acquire = ops->slab_acquire;
    changed.slab_acquire = small_slabs_only;
    rig.hw->ops = &changed;
    largest_slab = 64 * MIB;
    run = take(&rig, 200);
    CHECK_EQ(run.frames, 200);
    CHECK_LE(held(&rig), 208);
    rig_check(&rig);
    largest_slab = 0;
    CHECK_EQ(ask(&rig, 100, 0, &none, 1, &count), MB_ERR_NO_MEMORY);
    rig_check(&rig);
    rig.hw->ops = ops;
    rig_close(&rig);
}

static enum mb_err (*real_slab_release)(struct mb_hw_dev *, struct mb_hw_slab *);
static struct mb_hw_slab real_slab;

/* A driver that speaks of frames which no entry can name. */
static enum mb_err slab_at_the_end(struct mb_hw_dev *dev, uint64_t bytes, mb_va home,
                                   struct mb_hw_slab *out)
{
    enum mb_err err = real_slab_acquire(dev, bytes, home, out);

    real_slab = *out;
    out->pfns = NULL;
    out->first.n = UINT32_MAX - (MB_FRAME_PFNS - 1);
    return err;
}

static enum mb_err release_real_slab(struct mb_hw_dev *dev, struct mb_hw_slab *slab)
{
    (void)slab;
    return real_slab_release(dev, &real_slab);
}

TEST(frames_beyond_the_last_number_are_refused)
{
    struct rig rig = small_rig(256);
    const struct mb_hw_ops *ops = rig.hw->ops;
    struct mb_hw_ops changed = *ops;
    struct mb_run none;
    unsigned count;

    real_slab_acquire = ops->slab_acquire;
    real_slab_release = ops->slab_release;
    changed.slab_acquire = slab_at_the_end;
    changed.slab_release = release_real_slab;
    rig.hw->ops = &changed;
    CHECK_EQ(ask(&rig, 8, 0, &none, 1, &count), MB_ERR_DRIVER);
    CHECK_EQ(held(&rig), 0);
    rig.hw->ops = ops;
    CHECK_EQ(take(&rig, 8).frames, 8);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(scattered_frames_have_one_home)
{
    struct rig rig = small_rig(512);
    struct mb_run run;
    mb_pfn pfns[32];
    bool scattered = false;

    mb__sim_set_scatter(rig.hw, true);
    run = take(&rig, 32);
    CHECK_OK(mb__home_pfns(rig.vm, run.home, 32, pfns));
    for (uint32_t i = 0; i < 32; i++) {
        CHECK_EQ(mb__pfn_home(rig.vm, pfns[i]).addr, run.home.addr + FRAMES(i));
        scattered |= pfns[i].n != run.pfn.n + i * MB_FRAME_PFNS;
    }
    CHECK(scattered);
    CHECK_EQ(mb__home_pfns(rig.vm, run.home, 1000000, pfns), MB_ERR_NOT_FOUND);
    fill(&rig, 0, run.home, FRAMES(32), 9);
    verify(&rig, 0, run.home, FRAMES(32), 9);
    rig_judge(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}

/* 141 GB in single frames: the pool's structures bear it. */
TEST(a_whole_h200)
{
    struct rig rig = rig_open((struct rig_config){.hw.device_memory_bytes = FRAMES(72192ull)});
    struct mb_run run = take(&rig, 72192), part = run;

    part.frames = 1;
    for (uint32_t i = 0; i < run.frames; i += 2) {
        part.home = mb__va_add(run.home, FRAMES((uint64_t)i));
        give(&rig, part);
    }
    rig_check(&rig);
    CHECK_EQ(take(&rig, 1).home.addr, run.home.addr);
    for (uint32_t i = 1; i < run.frames; i += 2) {
        part.home = mb__va_add(run.home, FRAMES((uint64_t)i));
        give(&rig, part);
    }
    part.home = run.home;
    give(&rig, part);
    rig_check(&rig);
    CHECK_EQ(take(&rig, 72192).home.addr, run.home.addr);
    rig_close(&rig);
}
