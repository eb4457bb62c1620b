/* SPDX-License-Identifier: MIT */
/*
 * Every call of the backend made to fail at its n-th use, for every n: the failed call of vm must
 * have changed nothing, its checks must hold, the tables must agree, and the same call must succeed
 * once the backend works again.
 */
#include "unit/test_vm.h"

#include "base/log.h"
#include "hw/fault.h"

#ifdef MB_FAULT_INJECTION

enum { SLOTS = 20 };

struct world {
    struct rig rig; /* rig.hw is the failing device */
    struct mb_hw_dev *inner;
    struct mb_run a, b;
    mb_va va, other;
    bool lost; /* the vm has given up: the rest is skipped */
};

/* What a failed call may not change. */
struct picture {
    uint64_t owned, handed_out;
    uint32_t refs_a, refs_b, shown[2 * SLOTS];
};

static void take_picture(struct world *w, struct picture *p)
{
    struct mb_vm_stats stats;

    memset(p, 0, sizeof(*p));
    mb__vm_stats(w->rig.vm, &stats);
    p->owned = stats.owned_bytes;
    p->handed_out = stats.va_handed_out_bytes;
    for (uint32_t i = 0; i < SLOTS; i++) {
        p->shown[i] = mb__vm_lookup(w->rig.vm, mb__va_add(w->va, FRAMES(i))).n;
        p->shown[SLOTS + i] = mb__vm_lookup(w->rig.vm, mb__va_add(w->other, FRAMES(i))).n;
    }
    /* References only fall by themselves, when fences pass; they may not rise. */
    p->refs_a = mb__pfn_refs(w->rig.vm, w->a.pfn);
    p->refs_b = mb__pfn_refs(w->rig.vm, w->b.pfn);
}

static void compare(const struct picture *before, const struct picture *after, const char *call)
{
    if (before->owned != after->owned || before->handed_out != after->handed_out ||
        memcmp(before->shown, after->shown, sizeof(before->shown)) != 0 ||
        after->refs_a > before->refs_a || after->refs_b > before->refs_b)
        FAIL("%s failed and changed something", call);
}

static void tables_agree(struct world *w, const char *call)
{
    CHECK_OK(w->inner->ops->device_sync(w->inner));
    if (mb__vm_check(w->rig.vm))
        FAIL("after %s: %s", call, mb_error_detail());
    if (mb__vm_check_tables(w->rig.vm))
        FAIL("after %s: %s", call, mb_error_detail());
}

static void work_again(struct world *w)
{
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++)
        mb__hw_fault_set(w->rig.hw, (enum mb_hw_fault_op)op, 0, MB_OK, false);
}

/* Tries a call; when the backend made it fail, looks closely and tries again. */
#define STEP(w, call)                                                                              \
    do {                                                                                           \
        struct picture before, after;                                                              \
                                                                                                   \
        if ((w)->lost)                                                                             \
            break;                                                                                 \
        take_picture((w), &before);                                                                \
        if (!(call))                                                                               \
            break;                                                                                 \
        work_again(w);                                                                             \
        take_picture((w), &after);                                                                 \
        compare(&before, &after, #call);                                                           \
        (w)->lost = (w)->rig.vm->lost;                                                             \
        if ((w)->lost)                                                                             \
            break;                                                                                 \
        tables_agree((w), #call);                                                                  \
        if (call)                                                                                  \
            FAIL("%s fails although the backend works again: %s", #call, mb_error_detail());       \
    } while (0)

static enum mb_err take_run(struct world *w, uint32_t frames, struct mb_run *run)
{
    unsigned count;

    return mb__alloc_pfn(w->rig.vm, 1, frames, MB_PFN_CONTIGUOUS, run, 1, &count);
}

static enum mb_err try_map(struct world *w, mb_va va, struct mb_run run)
{
    struct mb_vm_op op = {.kind = MB_VM_MAP, .prot = MB_PROT_READ_WRITE, .va = va, .frames = SLOTS};
    mb_pfn pfns[SLOTS];

    CHECK_OK(mb__home_pfns(w->rig.vm, run.home, SLOTS, pfns));
    op.pfns = pfns;
    op.cap = mb__owner_cap(w->rig.vm, 1);
    return mb__pte_pop(w->rig.vm, w->rig.stream[0], &op, 1, NULL);
}

static enum mb_err try_change(struct world *w, mb_va va, enum mb_vm_op_kind kind)
{
    struct mb_vm_op op = {.kind = kind, .prot = MB_PROT_READ, .va = va, .frames = SLOTS};

    return mb__pte_pop(w->rig.vm, w->rig.stream[0], &op, 1, NULL);
}

static void drive(struct world *w)
{
    struct mb_hw_dev *inner = w->inner;
    uint64_t released = 0;

    STEP(w, take_run(w, SLOTS, &w->a));
    STEP(w, take_run(w, 3 * SLOTS, &w->b));
    STEP(w, mb__alloc_va(w->rig.vm, FRAMES(SLOTS), 0, &w->va));
    STEP(w, mb__alloc_va(w->rig.vm, FRAMES(SLOTS), 64 * MIB, &w->other));
    STEP(w, try_map(w, w->va, w->a));
    if (!w->lost)
        CHECK_OK(inner->ops->fill(inner, w->rig.stream[0], w->va, FRAMES(SLOTS), 5));
    STEP(w, try_map(w, w->other, w->a));
    STEP(w, try_map(w, w->va, w->b)); /* a remap */
    STEP(w, try_change(w, w->other, MB_VM_PROTECT));
    if (!w->lost)
        CHECK_OK(inner->ops->verify(inner, w->rig.stream[0], w->other, FRAMES(SLOTS), 5));
    STEP(w, try_change(w, w->va, MB_VM_UNMAP));
    STEP(w, mb__free_va(w->rig.vm, w->va, FRAMES(SLOTS)));
    STEP(w, mb__tlb_flush(w->rig.vm, w->rig.stream[0], NULL));
    STEP(w, mb__free_pfn(w->rig.vm, 1, w->b, NULL, 0));
    STEP(w, mb__vm_drain(w->rig.vm));
    STEP(w, mb__vm_trim(w->rig.vm, 0, &released));
    STEP(w, mb__alloc_va(w->rig.vm, FRAMES(SLOTS), 0, &w->va));
    STEP(w, try_change(w, w->other, MB_VM_UNMAP));
    STEP(w, mb__free_pfn(w->rig.vm, 1, w->a, NULL, 0));
    STEP(w, mb__vm_drain(w->rig.vm));
    STEP(w, mb__vm_trim(w->rig.vm, 0, &released));
}

static void open_world(struct world *w, const struct rig_config *config)
{
    memset(w, 0, sizeof(*w));
    CHECK_OK(mb__sim_open(&config->hw, &w->inner));
    CHECK_OK(mb__hw_fault_wrap(w->inner, &w->rig.hw));
    rig_streams(&w->rig, 1);
    work_again(w);
}

static void close_world(struct world *w)
{
    bool lost = w->lost;

    if (w->rig.vm && !lost) {
        struct mb_vm_stats stats;
        uint64_t released;

        /* A trim that could give back only a part was a success; the rest goes now. */
        CHECK_OK(mb__vm_trim(w->rig.vm, 0, &released));
        tables_agree(w, "everything");
        mb__vm_stats(w->rig.vm, &stats);
        CHECK_EQ(stats.held_bytes, 0);
    }
    if (!lost) {
        struct rig judged = {.hw = w->inner};

        rig_judge(&judged);
    }
    rig_close(&w->rig);
}

/* One program with the n-th use of `op` failing; false: it has fewer uses. */
static bool run_with_fault(const struct rig_config *config, enum mb_hw_fault_op op, uint64_t n,
                           bool lasting)
{
    struct world w;
    enum mb_err err;
    bool hit;

    open_world(&w, config);
    mb__hw_fault_set(w.rig.hw, op, n,
                     op == MB_HW_FAULT_slab_acquire ? MB_ERR_NO_MEMORY : MB_ERR_DRIVER, lasting);
    err = mb__vm_open(w.rig.hw, &config->vm, &w.rig.vm);
    if (err) {
        CHECK_PTR_EQ(w.rig.vm, NULL);
        work_again(&w);
        CHECK_OK(mb__vm_open(w.rig.hw, &config->vm, &w.rig.vm));
    }
    drive(&w);
    hit = mb__hw_fault_hits(w.rig.hw) != 0;
    work_again(&w);
    close_world(&w);
    return hit;
}

static void sweep(struct rig_config config)
{
    unsigned runs = 0;

    mb__log_set(MB_LOG_ERROR); /* warnings of injected faults say nothing new */
    config.hw.device_memory_bytes = 1024 * MIB;
    config.hw.explore = true;
    config.vm.max_run_bytes = 32 * MIB; /* several slabs for one request */
    config.vm.ring_bytes = 1024 * MIB;
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++) {
        for (int lasting = 0; lasting < 2; lasting++) {
            uint64_t n = 1;

            while (run_with_fault(&config, (enum mb_hw_fault_op)op, n, lasting) && n < 1000)
                n++;
            runs += (unsigned)n;
            if (n > 1 && !lasting)
                printf("%s: %llu uses\n",
                       op == MB_HW_FAULT_ANY ? "any" : mb__hw_fault_name((enum mb_hw_fault_op)op),
                       (unsigned long long)(n - 1));
        }
    }
    printf("COUNT programs with a failing backend function below vm %u\n", runs);
    CHECK(runs > 100);
}

TEST(own_tables)
{
    sweep((struct rig_config){.hw.model = "h200"});
}

TEST(fresh_and_deferred)
{
    sweep((struct rig_config){.vm = {.policy = MB_VM_POLICY_FRESH, .deferred = true}});
}

TEST(driver_tables_adopted)
{
    sweep((struct rig_config){.hw.driver_home = true});
}

TEST(isolated_amd)
{
    sweep((struct rig_config){.hw = {.model = "mi210", .tables = "isolated"}});
}

#else

TEST(faults)
{
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
}

#endif
