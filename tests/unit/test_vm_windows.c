/* SPDX-License-Identifier: MIT */
/* Windows: placing, packs, guards, retirement, epochs, invalidates saved and needed, small
 * leaves. */
#include "unit/test_vm.h"

static uint64_t invalidates(struct rig *rig)
{
    struct mb_vm_stats stats;

    mb__vm_stats(rig->vm, &stats);
    return stats.invalidates;
}

static uint64_t quarantined(struct rig *rig)
{
    struct mb_vm_stats stats;

    mb__vm_stats(rig->vm, &stats);
    return stats.quarantined_bytes;
}

TEST(windows_are_aligned_and_apart)
{
    struct rig rig = rig_open((struct rig_config){0});
    mb_va a = window(&rig, 16), b = window(&rig, 17), c;

    CHECK_EQ(a.addr % (32 * MIB), 0);
    CHECK(b.addr >= a.addr + FRAMES(32)); /* a group, and its guard */
    CHECK_OK(mb__alloc_va(rig.vm, FRAMES(3), 512 * MIB, &c));
    CHECK_EQ(c.addr % (512 * MIB), 0);
    CHECK_EQ(mb__alloc_va(rig.vm, 4096, 0, &c), MB_ERR_INVALID);
    CHECK_EQ(mb__alloc_va(rig.vm, FRAMES(1), 3 * MIB, &c), MB_ERR_INVALID);
    CHECK_EQ(mb__alloc_va(rig.vm, (uint64_t)1 << 50, 0, &c), MB_ERR_NO_ADDRESS);
    CHECK_EQ(mb__free_va(rig.vm, a, FRAMES(15)), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb__free_va(rig.vm, mb__va(4096), FRAMES(15)), MB_ERR_NOT_FOUND);
    CHECK_OK(mb__free_va(rig.vm, a, FRAMES(16)));
    CHECK_EQ(mb__free_va(rig.vm, a, FRAMES(16)), MB_ERR_NOT_FOUND);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(small_windows_share_a_group_when_inline)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE});
    struct mb_run run = take(&rig, 4);
    mb_va a = window(&rig, 2), b = window(&rig, 2), c = window(&rig, 12);

    CHECK_EQ(a.addr / (32 * MIB), b.addr / (32 * MIB));
    CHECK_NE(c.addr / (32 * MIB), b.addr / (32 * MIB));
    run.frames = 2;
    map_run(&rig, 0, a, run);
    fill(&rig, 0, a, FRAMES(2), 1);
    run.home = mb__va_add(run.home, FRAMES(2));
    map_run(&rig, 0, b, run);
    fill(&rig, 0, b, FRAMES(2), 2);
    verify(&rig, 0, a, FRAMES(2), 1);
    rig_judge(&rig);
    unmap(&rig, 0, a, 2);
    CHECK_OK(mb__free_va(rig.vm, a, FRAMES(2)));
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(window(&rig, 2).addr, a.addr); /* the hole in the pack */
    rig_check(&rig);
    rig_close(&rig);
}

TEST(a_fresh_window_needs_no_invalidate)
{
    struct rig rig = rig_open((struct rig_config){
        .hw.explore = true, .hw.seed = mb_test_seed(), .vm.policy = MB_VM_POLICY_FRESH});
    struct mb_run run = take(&rig, 40);
    uint64_t before = invalidates(&rig);
    mb_va va = window(&rig, 40), small = window(&rig, 1);

    map_run(&rig, 0, va, run);
    CHECK_EQ(invalidates(&rig), before);
    fill(&rig, 0, va, FRAMES(40), 1);
    /* A neighbouring window is not touched by that. */
    run.frames = 1;
    map_run(&rig, 0, small, run);
    CHECK_EQ(invalidates(&rig), before);
    verify(&rig, 0, small, FRAMES(1), 1);
    /* A second map into a group in use is. */
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(a_group_in_use_needs_an_invalidate)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH});
    struct mb_run run = take(&rig, 1);
    mb_va va = window(&rig, 64);
    uint64_t before;

    map_run(&rig, 0, va, run);
    before = invalidates(&rig);
    map_run(&rig, 0, mb__va_add(va, FRAMES(15)), run); /* the same group */
    CHECK_EQ(invalidates(&rig), before + 1);
    map_run(&rig, 0, mb__va_add(va, FRAMES(16)), run); /* the next: walks may have run ahead */
    CHECK_EQ(invalidates(&rig), before + 2);
    map_run(&rig, 0, mb__va_add(va, FRAMES(48)), run); /* far away */
    CHECK_EQ(invalidates(&rig), before + 2);
    rig_check(&rig);
    rig_close(&rig);
}

/* After an unmap of the whole group in the same window the group is clean again. */
TEST(an_unmap_cleans_its_groups)
{
    struct rig rig = rig_open((struct rig_config){.hw.explore = true, .hw.seed = mb_test_seed()});
    struct mb_run a = take(&rig, 16), b = take(&rig, 16);
    mb_va va = window(&rig, 16);
    uint64_t before;

    map_run(&rig, 0, va, a);
    fill(&rig, 0, va, FRAMES(16), 1);
    unmap(&rig, 0, va, 16);
    before = invalidates(&rig);
    map_run(&rig, 0, va, b);
    CHECK_EQ(invalidates(&rig), before);
    fill(&rig, 0, va, FRAMES(16), 2);
    verify(&rig, 0, a.home, FRAMES(16), 1);
    verify(&rig, 0, b.home, FRAMES(16), 2);
    rig_judge(&rig);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(inline_addresses_come_back_after_the_fence)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE, .streams = 2});
    struct mb_run run = take(&rig, 16);
    mb_va va = window(&rig, 16), other;

    map_run(&rig, 0, va, run);
    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 1, 1));
    unmap(&rig, 0, va, 16);
    CHECK_OK(mb__free_va(rig.vm, va, FRAMES(16)));
    other = window(&rig, 16);
    CHECK_NE(other.addr, va.addr);
    CHECK_EQ(quarantined(&rig), FRAMES(16));
    mb__sim_sem_host(rig.hw, 1, 1);
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(window(&rig, 16).addr, va.addr);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(fresh_addresses_come_back_after_a_flush)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH});
    struct mb_run run = take(&rig, 16);
    mb_va va = window(&rig, 16);
    struct mb_vm_stats stats;

    map_run(&rig, 0, va, run);
    unmap(&rig, 0, va, 16);
    CHECK_OK(mb__free_va(rig.vm, va, FRAMES(16)));
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    mb__vm_poll(rig.vm);
    CHECK_EQ(quarantined(&rig), FRAMES(16));
    CHECK_NE(window(&rig, 16).addr, va.addr);
    CHECK_OK(mb__tlb_flush(rig.vm, rig.stream[0], NULL));
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    mb__vm_poll(rig.vm);
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.quarantined_bytes, 0);
    CHECK_EQ(stats.epochs, 1);
    CHECK_EQ(window(&rig, 16).addr, va.addr);
    rig_check(&rig);
    rig_close(&rig);
}

/* A flush ahead of the clear does not count; one behind it in the same stream does. */
TEST(only_a_flush_behind_the_clear_counts)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH, .streams = 2});
    struct mb_run run = take(&rig, 16);
    mb_va va = window(&rig, 16);

    map_run(&rig, 0, va, run);
    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 1, 1));
    unmap(&rig, 0, va, 16);
    CHECK_OK(mb__free_va(rig.vm, va, FRAMES(16)));
    CHECK_OK(mb__tlb_flush(rig.vm, rig.stream[1], NULL)); /* another stream: ahead of the clear */
    mb__sim_sem_host(rig.hw, 1, 1);
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    mb__vm_poll(rig.vm);
    CHECK_EQ(quarantined(&rig), FRAMES(16));
    rig_check(&rig);
    va = window(&rig, 16);
    map_run(&rig, 0, va, run);
    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 2, 1));
    unmap(&rig, 0, va, 16);
    CHECK_OK(mb__free_va(rig.vm, va, FRAMES(16)));
    CHECK_OK(mb__tlb_flush(rig.vm, rig.stream[0], NULL)); /* the same stream: behind it */
    mb__sim_sem_host(rig.hw, 2, 1);
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    mb__vm_poll(rig.vm);
    CHECK_EQ(quarantined(&rig), 0);
    rig_check(&rig);
    rig_close(&rig);
}

/* A ring that is much smaller than what is handed out: it wraps by flushes, never gives an address
 * early, and its memory stays what it was. */
static void churn(struct rig_config config, unsigned rounds)
{
    struct rig rig;
    struct mb_run run;
    struct mb_vm_stats stats;
    uint64_t tables = 0;

    config.hw.explore = true;
    config.hw.seed = mb_test_seed();
    config.vm.ring_bytes = 1024 * MIB;
    config.streams = 2;
    rig = rig_open(config);
    run = take(&rig, 16);
    for (unsigned i = 0; i < rounds; i++) {
        mb_va va = window(&rig, 16);
        unsigned stream = i % 2;

        /* The frames pass from stream to stream. */
        CHECK_OK(rig.hw->ops->device_sync(rig.hw));
        map_run(&rig, stream, va, run);
        fill(&rig, stream, va, FRAMES(16), i + 1);
        verify(&rig, stream, va, FRAMES(16), i + 1);
        unmap(&rig, stream, va, 16);
        CHECK_OK(mb__free_va(rig.vm, va, FRAMES(16)));
        mb__vm_stats(rig.vm, &stats);
        if (i == rounds / 2)
            tables = stats.table_bytes;
    }
    rig_judge(&rig);
    rig_check(&rig);
    mb__vm_stats(rig.vm, &stats);
    CHECK_EQ(stats.va_handed_out_bytes, FRAMES(16ull * rounds));
    CHECK_EQ(stats.table_bytes, tables);
    if (config.vm.policy == MB_VM_POLICY_FRESH)
        CHECK(stats.epochs >= rounds / 32);
    rig_close(&rig);
}

TEST(ring_wraps)
{
    churn((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH}, 2000);
    churn((struct rig_config){.vm.policy = MB_VM_POLICY_FRESH, .vm.deferred = true}, 2000);
    churn((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE}, 2000);
    churn((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE, .vm.deferred = true}, 2000);
}

/* Every address is retired and its stream still busy: the host waits for the oldest, and gets
 * it. */
TEST(an_exhausted_ring_waits_for_the_oldest)
{
    struct rig rig = rig_open(
        (struct rig_config){.vm = {.policy = MB_VM_POLICY_FRESH, .ring_bytes = 1024 * MIB}});
    struct mb_run run = take(&rig, 1);

    for (unsigned i = 0; i < 40; i++) {
        mb_va va = window(&rig, 100);

        map_run(&rig, 0, va, run);
        CHECK_OK(mb__sim_delay(rig.hw, rig.stream[0], 100000));
        unmap(&rig, 0, va, 1);
        CHECK_OK(mb__free_va(rig.vm, va, FRAMES(100)));
    }
    rig_check(&rig);
    rig_close(&rig);
}

TEST(a_full_ring_says_so)
{
    struct rig rig = rig_open((struct rig_config){.vm.ring_bytes = 512 * MIB});
    mb_va va;

    window(&rig, 200);
    CHECK_EQ(mb__alloc_va(rig.vm, FRAMES(200), 0, &va), MB_ERR_NO_ADDRESS);
    CHECK(strstr(mb_error_detail(), "in use"));
    rig_check(&rig);
    rig_close(&rig);
}

/* The batches of a window are executed in the record's order, whatever their streams do. */
TEST(batches_of_a_window_wait_for_each_other)
{
    struct rig rig = rig_open((struct rig_config){.streams = 2});
    struct mb_run a = take(&rig, 16), b = take(&rig, 16);
    mb_va va = window(&rig, 16);

    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 1, 1));
    map_run(&rig, 0, va, a); /* held up */
    map_run(&rig, 1, va, b); /* must come second all the same */
    mb__sim_host_pass(rig.hw, 10000000);
    mb__vm_poll(rig.vm);
    CHECK(mb__pfn_eq(mb__sim_walk(rig.hw, va), MB_NO_PFN));
    mb__sim_sem_host(rig.hw, 1, 1);
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    CHECK(mb__pfn_eq(mb__sim_walk(rig.hw, va), b.pfn));
    rig_check_tables(&rig);
    rig_close(&rig);
}

/* Windows that share nothing wait for nobody. */
TEST(other_windows_do_not_wait)
{
    struct rig rig = rig_open((struct rig_config){.vm.policy = MB_VM_POLICY_INLINE, .streams = 2});
    struct mb_run a = take(&rig, 2), b = take(&rig, 2);
    mb_va va = window(&rig, 2), vb = window(&rig, 2); /* even in one group */
    struct mb_hw_fence fence;

    CHECK_OK(rig.hw->ops->device_sync(rig.hw)); /* their tables are built */
    CHECK_OK(mb__sim_sem_wait(rig.hw, rig.stream[0], 1, 1));
    map_run(&rig, 0, va, a);
    fence = map_run(&rig, 1, vb, b);
    CHECK_OK(rig.hw->ops->fence_wait_host(rig.hw, fence, 1000000000));
    fill(&rig, 1, vb, FRAMES(2), 3);
    mb__sim_sem_host(rig.hw, 1, 1);
    fill(&rig, 0, va, FRAMES(2), 4);
    verify(&rig, 1, vb, FRAMES(2), 3);
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(protection_is_kept_by_the_device)
{
    struct rig rig = rig_open((struct rig_config){0});
    struct mb_run run = take(&rig, 16);
    mb_va va = window(&rig, 16);
    struct mb_hw_counters counters;

    map_run(&rig, 0, va, run);
    fill(&rig, 0, va, FRAMES(16), 1);
    pop(&rig, 0,
        (struct mb_vm_op){.kind = MB_VM_PROTECT, .prot = MB_PROT_READ, .va = va, .frames = 8});
    rig_check_tables(&rig);
    verify(&rig, 0, va, FRAMES(16), 1);
    rig_judge(&rig);
    fill(&rig, 0, va, 8, 2); /* not allowed */
    (void)rig.hw->ops->device_sync(rig.hw);
    rig.hw->ops->counters(rig.hw, &counters);
    CHECK_EQ(counters.faults, 1);
    rig_close(&rig);
}

TEST(no_access_keeps_the_frame)
{
    struct rig rig = rig_open((struct rig_config){0});
    struct mb_run run = take(&rig, 4);
    mb_va va = window(&rig, 4);

    map_run(&rig, 0, va, run);
    fill(&rig, 0, va, FRAMES(4), 1);
    pop(&rig, 0, (struct mb_vm_op){.kind = MB_VM_PROTECT, .va = va, .frames = 4});
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK(mb__pfn_eq(mb__vm_lookup(rig.vm, va), run.pfn));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 2);
    CHECK_OK(rig.hw->ops->device_sync(rig.hw));
    CHECK(mb__pfn_eq(mb__sim_walk(rig.hw, va), MB_NO_PFN));
    rig_check_tables(&rig);
    rig_check(&rig);
    pop(&rig, 0,
        (struct mb_vm_op){
            .kind = MB_VM_PROTECT, .prot = MB_PROT_READ_WRITE, .va = va, .frames = 4});
    verify(&rig, 0, va, FRAMES(4), 1);
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(wrong_operations_change_nothing)
{
    struct rig rig = rig_open((struct rig_config){0});
    struct mb_run run = take(&rig, 4);
    mb_va va = window(&rig, 4);
    mb_pfn odd = {run.pfn.n + 1};
    struct mb_vm_op op = {.kind = MB_VM_UNMAP, .va = va, .frames = 1};

    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 0, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb__pte_pop(rig.vm, NULL, &op, 1, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_NOT_MAPPED);
    op.frames = 0;
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID);
    op.frames = 5;
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_NOT_MAPPED);
    op = (struct mb_vm_op){.kind = MB_VM_MAP, .va = va, .frames = 1, .prot = MB_PROT_READ};
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID); /* no frames */
    op.pfns = &run.pfn;
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID); /* no capability */
    op.cap = mb__owner_cap(rig.vm, 1);
    op.pfns = &odd;
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID);
    op.pfns = &run.pfn;
    op.prot = (enum mb_prot)2;
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID);
    op.prot = MB_PROT_READ;
    op.va = run.home; /* homes are not remapped */
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_NOT_FOUND);
    op.va = mb__va_add(va, FRAMES(4)); /* behind the window */
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_NOT_FOUND);
    op.va = mb__va_add(va, 4096);
    CHECK_EQ(mb__pte_pop(rig.vm, rig.stream[0], &op, 1, NULL), MB_ERR_INVALID);
    rig_check(&rig);
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 1);
    rig_close(&rig);
}

/* One frame at many addresses, and the same map again: references count entries. */
TEST(aliases_count)
{
    struct rig rig = rig_open((struct rig_config){0});
    struct mb_run run = take(&rig, 1);
    mb_pfn pfns[20];
    mb_va va = window(&rig, 20);
    struct mb_vm_op op = {.kind = MB_VM_MAP,
                          .prot = MB_PROT_READ_WRITE,
                          .va = va,
                          .frames = 20,
                          .pfns = pfns,
                          .cap = mb__owner_cap(rig.vm, 1)};

    for (int i = 0; i < 20; i++)
        pfns[i] = run.pfn;
    pop(&rig, 0, op);
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 21);
    pop(&rig, 0, op);
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 21);
    fill(&rig, 0, va, FRAMES(1), 1);
    verify(&rig, 0, mb__va_add(va, FRAMES(19)), FRAMES(1), 1);
    rig_judge(&rig);
    unmap(&rig, 0, va, 20);
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 1);
    rig_check(&rig);
    rig_close(&rig);
}

/* A batch over the border of two leaf tables, and more places than targeted invalidates pay for. */
TEST(batches_cross_tables)
{
    struct rig rig = rig_open((struct rig_config){.hw.explore = true, .hw.seed = mb_test_seed()});
    struct mb_run run = take(&rig, 600);
    mb_va va = window(&rig, 600);
    struct mb_vm_op ops[12];
    mb_pfn pfns[12];

    map_run(&rig, 0, va, run);
    fill(&rig, 0, va, FRAMES(600), 1);
    rig_check_tables(&rig);
    for (uint32_t i = 0; i < 12; i++) {
        pfns[i] = mb__home_pfn(rig.vm, mb__va_add(run.home, FRAMES(599 - i)));
        ops[i] = (struct mb_vm_op){.kind = MB_VM_MAP,
                                   .prot = MB_PROT_READ_WRITE,
                                   .va = mb__va_add(va, FRAMES(48 * i)),
                                   .frames = 1,
                                   .pfns = &pfns[i],
                                   .cap = mb__owner_cap(rig.vm, 1)};
    }
    CHECK_OK(mb__pte_pop(rig.vm, rig.stream[0], ops, 12, NULL));
    for (uint32_t i = 0; i < 12; i++)
        fill(&rig, 0, ops[i].va, FRAMES(1), 100 + i);
    for (uint32_t i = 0; i < 12; i++)
        verify(&rig, 0, mb__va_add(run.home, FRAMES(599 - i)), FRAMES(1), 100 + i);
    rig_judge(&rig);
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}

static void small_leaves(const char *model, unsigned shift)
{
    struct rig rig = rig_open(
        (struct rig_config){.hw = {.model = model, .explore = true, .seed = mb_test_seed()}});
    struct mb_run run = take(&rig, 2);
    uint64_t leaf = (uint64_t)1 << shift;
    struct mb_vm_op op = {.kind = MB_VM_MAP, .prot = MB_PROT_READ_WRITE, .frames = 40};
    mb_pfn pfns[40];
    mb_va va;

    CHECK_OK(mb__alloc_va_leaf(rig.vm, 64 * leaf, 0, shift, &va));
    for (uint32_t i = 0; i < 40; i++) /* every second piece of the frames, backwards */
        pfns[i].n = run.pfn.n + ((78 - 2 * i) % (512u >> (shift - 12))) * (uint32_t)(leaf >> 12);
    op.va = va;
    op.pfns = pfns;
    op.cap = mb__owner_cap(rig.vm, 1);
    if (shift == 16) /* 32 leaves in a frame */
        op.frames = 16;
    pop(&rig, 0, op);
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 1 + op.frames);
    fill(&rig, 0, va, op.frames * leaf, 7);
    verify(&rig, 0, va, op.frames * leaf, 7);
    verify(&rig, 0, mb__va_add(mb__pfn_home(rig.vm, pfns[0]), 0), leaf, 7);
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_judge(&rig);
    op.kind = MB_VM_UNMAP;
    pop(&rig, 0, op);
    CHECK_OK(mb__free_va(rig.vm, va, 64 * leaf));
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 1);
    rig_check(&rig);
    rig_close(&rig);
}

TEST(leaves_of_4_and_64_kib)
{
    struct rig rig;
    mb_va va;

    small_leaves("h200", 12);
    small_leaves("h200", 16);
    small_leaves("a100", 12);
    small_leaves("a100", 16);
    small_leaves("mi210", 12);
    rig = rig_open((struct rig_config){.hw.model = "mi210"});
    CHECK_EQ(mb__alloc_va_leaf(rig.vm, 65536, 0, 16, &va), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb__alloc_va_leaf(rig.vm, 65536, 0, 13, &va), MB_ERR_INVALID);
    rig_close(&rig);
    rig = rig_open((struct rig_config){.hw.driver_home = true});
    CHECK_EQ(mb__alloc_va_leaf(rig.vm, 4096, 0, 12, &va), MB_ERR_NOT_SUPPORTED);
    rig_close(&rig);
}

/* A flush that has passed by the time it is recorded, with a window still in front of it. */
TEST(a_drain_always_ends)
{
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct rig rig =
            rig_open((struct rig_config){.hw = {.explore = true, .seed = mb_test_seed() + seed},
                                         .vm = {.policy = MB_VM_POLICY_FRESH}});
        struct mb_run run = take(&rig, 1);
        mb_va va = window(&rig, 1);

        map_run(&rig, 0, va, run);
        unmap(&rig, 0, va, 1);
        CHECK_OK(mb__free_va(rig.vm, va, FRAMES(1)));
        CHECK_OK(mb__tlb_flush(rig.vm, rig.stream[0], NULL));
        CHECK_OK(mb__vm_drain(rig.vm));
        CHECK_EQ(quarantined(&rig), 0);
        rig_check(&rig);
        rig_close(&rig);
    }
}

/* 128 TiB of addresses out of a ring of 256 GiB: always fresh, and no more tables than the ring. */
TEST(hands_out_128_tib)
{
    struct rig rig = rig_open((struct rig_config){
        .vm = {.policy = MB_VM_POLICY_FRESH, .ring_bytes = (uint64_t)256 << 30}});
    struct mb_run run = take(&rig, 2);
    struct mb_vm_stats stats = {0};
    uint64_t before = 0;

    while (stats.va_handed_out_bytes <= (uint64_t)128 << 40) {
        mb_va va = window(&rig, 1024);

        before = invalidates(&rig);
        map_run(&rig, 0, mb__va_add(va, FRAMES(stats.epochs % 1000)), run);
        CHECK_EQ(invalidates(&rig), before);
        fill(&rig, 0, mb__va_add(va, FRAMES(stats.epochs % 1000)), FRAMES(2), stats.epochs + 1);
        unmap(&rig, 0, mb__va_add(va, FRAMES(stats.epochs % 1000)), 2);
        CHECK_OK(mb__free_va(rig.vm, va, FRAMES(1024)));
        mb__vm_stats(rig.vm, &stats);
    }
    CHECK_LE(stats.table_bytes, (uint64_t)4 << 20);
    CHECK_LE(rig.vm->windows.count, 1024);
    CHECK(stats.epochs >= 512);
    rig_judge(&rig);
    rig_check(&rig);
    rig_close(&rig);
}
