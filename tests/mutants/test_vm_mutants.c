/* SPDX-License-Identifier: MIT */
/*
 * vm with one safety step left out: a scenario each, right on the correct code with every seed
 * tried, and wrong to the eyes of the device with the mutant.
 *
 * What may see it: the oracle (a translation that the program must not get, or a fault), the
 * contents (a pattern that is not there), the checks of the record, and the audit of command lists.
 * The first two count as the device's eyes.
 */
#include "unit/test_vm.h"

#include "vm/mutants.h"

enum {
    SEEDS = 25,       /* tried on the correct code, and on the mutant */
    MOST_SEEDS = 500, /* on a mutant that no seed so far has shown */
    STORES = 16,
};

enum seen {
    SEEN_ORACLE = 1,
    SEEN_WORDS = 2,
    SEEN_CHECK = 4,
    SEEN_AUDIT = 8,
};

struct scenario {
    const char *name;
    enum mb_vm_mutant mutant;
    struct rig_config config;
    void (*run)(struct rig *rig);
};

/* Calls that a dead context refuses are part of the outcome, so results are not checked here. */
static void try_fill(struct rig *rig, unsigned stream, mb_va va, uint64_t bytes, uint64_t seed)
{
    (void)rig->hw->ops->fill(rig->hw, rig->stream[stream], va, bytes, seed);
}

static void try_verify(struct rig *rig, unsigned stream, mb_va va, uint64_t bytes, uint64_t seed)
{
    (void)rig->hw->ops->verify(rig->hw, rig->stream[stream], va, bytes, seed);
}

static struct mb_hw_fence now_on(struct rig *rig, unsigned stream)
{
    struct mb_hw_fence fence = {0};

    (void)rig->hw->ops->fence_record(rig->hw, rig->stream[stream], &fence);
    return fence;
}

static void try_map(struct rig *rig, unsigned stream, mb_va va, struct mb_run run)
{
    mb_pfn pfns[64];
    struct mb_vm_op op = {.kind = MB_VM_MAP,
                          .prot = MB_PROT_READ_WRITE,
                          .va = va,
                          .frames = run.frames,
                          .pfns = pfns,
                          .cap = mb__owner_cap(rig->vm, 1)};

    CHECK(run.frames <= 64);
    CHECK_OK(mb__home_pfns(rig->vm, run.home, run.frames, pfns));
    (void)mb__pte_pop(rig->vm, rig->stream[stream], &op, 1, NULL);
}

static void try_unmap(struct rig *rig, unsigned stream, mb_va va, uint32_t slots)
{
    struct mb_vm_op op = {.kind = MB_VM_UNMAP, .va = va, .frames = slots};

    (void)mb__pte_pop(rig->vm, rig->stream[stream], &op, 1, NULL);
}

/* ------------------------------------------------------------ scenarios */

static void remap(struct rig *rig)
{
    struct mb_run a = take(rig, 8), b = take(rig, 8);
    mb_va va = window(rig, 16);

    try_map(rig, 0, va, a);
    try_fill(rig, 0, va, FRAMES(8), 1);
    try_map(rig, 0, va, b);
    try_fill(rig, 0, va, FRAMES(8), 2);
    try_verify(rig, 0, a.home, FRAMES(8), 1);
    try_verify(rig, 0, b.home, FRAMES(8), 2);
}

/* Slot 0 is walked, which brings in its neighbours as they are; then slot 3 gets an entry. */
static void neighbour(struct rig *rig)
{
    struct mb_run a = take(rig, 1), b = take(rig, 1);
    mb_va va = window(rig, 16), later = mb__va_add(va, FRAMES(3));

    try_map(rig, 0, va, a);
    try_fill(rig, 0, va, FRAMES(1), 1);
    try_map(rig, 0, later, b);
    try_fill(rig, 0, later, FRAMES(1), 2);
    try_verify(rig, 0, b.home, FRAMES(1), 2);
}

/* A's user is slow; whoever gets A's frames next must not meet him. */
static void early_reuse(struct rig *rig)
{
    struct mb_run a = take(rig, 16), b;
    struct mb_hw_fence fence;

    (void)mb__sim_delay(rig->hw, rig->stream[0], 1000000);
    try_fill(rig, 0, a.home, FRAMES(16), 1);
    fence = now_on(rig, 0);
    CHECK_OK(mb__free_pfn(rig->vm, 1, a, &fence, 1));
    b = take(rig, 16);
    try_fill(rig, 1, b.home, FRAMES(16), 2);
    (void)rig->hw->ops->device_sync(rig->hw);
    try_verify(rig, 1, b.home, FRAMES(16), 2);
}

/* The same through a window: the reference of a slow unmap. */
static void early_unref(struct rig *rig)
{
    struct mb_run a = take(rig, 16), b;
    mb_va va = window(rig, 16);

    try_map(rig, 0, va, a);
    (void)mb__sim_delay(rig->hw, rig->stream[0], 1000000);
    try_fill(rig, 0, va, FRAMES(16), 1);
    try_unmap(rig, 0, va, 16);
    CHECK_OK(mb__free_pfn(rig->vm, 1, a, NULL, 0));
    b = take(rig, 16);
    try_fill(rig, 1, b.home, FRAMES(16), 2);
    (void)rig->hw->ops->device_sync(rig->hw);
    try_verify(rig, 1, b.home, FRAMES(16), 2);
}

static void epoch(struct rig *rig)
{
    struct mb_run a = take(rig, 16), b = take(rig, 16);
    mb_va va = window(rig, 16), again;

    try_map(rig, 0, va, a);
    try_fill(rig, 0, va, FRAMES(16), 1);
    try_unmap(rig, 0, va, 16);
    CHECK_OK(mb__free_va(rig->vm, va, FRAMES(16)));
    (void)rig->hw->ops->device_sync(rig->hw);
    mb__vm_poll(rig->vm);
    again = window(rig, 16);
    try_map(rig, 0, again, b);
    try_fill(rig, 0, again, FRAMES(16), 2);
    try_verify(rig, 0, a.home, FRAMES(16), 1);
    try_verify(rig, 0, b.home, FRAMES(16), 2);
}

/* The owner lets go while a window still shows the frames. */
static void alias(struct rig *rig)
{
    struct mb_run a = take(rig, 16), b;
    mb_va va = window(rig, 16);

    try_map(rig, 0, va, a);
    CHECK_OK(mb__free_pfn(rig->vm, 1, a, NULL, 0));
    b = take(rig, 16);
    try_fill(rig, 0, b.home, FRAMES(16), 2);
    try_fill(rig, 0, va, FRAMES(16), 1);
    try_verify(rig, 0, b.home, FRAMES(16), 2);
}

/* The tables of a window are not there yet when it is first used. */
static void directory(struct rig *rig)
{
    struct mb_run a = take(rig, 4);
    mb_va va = window(rig, 4);

    try_map(rig, 0, va, a);
    try_fill(rig, 0, va, FRAMES(4), 1);
    try_verify(rig, 0, a.home, FRAMES(4), 1);
}

/*
 * A kernel that goes on running has stored through the window and says so. Its store may be on the
 * way still when the window is unmapped, but not when the unmap is done.
 */
static void membar(struct rig *rig)
{
    struct mb_run a = take(rig, STORES), b;
    mb_va va = window(rig, STORES);
    struct mb_sim_step steps[STORES + 2];
    struct mb_hw_fence fence;

    for (uint32_t i = 0; i < STORES; i++)
        steps[i] = (struct mb_sim_step){
            .kind = MB_SIM_ST, .va = mb__va_add(va, FRAMES(i)), .value = 0x5a5a};
    steps[STORES] = (struct mb_sim_step){.kind = MB_SIM_SEM_SET, .sem = 1, .value = 1};
    /* The kernel goes on. */
    steps[STORES + 1] = (struct mb_sim_step){.kind = MB_SIM_SEM_WAIT, .sem = 2, .value = 1};
    try_map(rig, 1, va, a);
    CHECK_OK(mb__sim_kernel(rig->hw, rig->stream[1], steps, STORES + 2, 0));
    CHECK_OK(mb__sim_sem_wait(rig->hw, rig->stream[0], 1, 1));
    fence = unmap(rig, 0, va, STORES);
    CHECK_OK(mb__free_pfn(rig->vm, 1, a, NULL, 0));
    CHECK_OK(rig->hw->ops->fence_wait_host(rig->hw, fence, 0));
    b = take(rig, STORES); /* the same frames, since they are free now */
    CHECK(mb__pfn_eq(a.pfn, b.pfn));
    try_fill(rig, 0, b.home, FRAMES(STORES), 2);
    fence = now_on(rig, 0);
    CHECK_OK(rig->hw->ops->fence_wait_host(rig->hw, fence, 0));
    mb__sim_sem_host(rig->hw, 2, 1);
    (void)rig->hw->ops->device_sync(rig->hw);
    try_verify(rig, 0, b.home, FRAMES(STORES), 2);
}

/* ------------------------------------------------------------ judging */

static unsigned look(struct rig *rig)
{
    struct mb_hw_counters counters;
    unsigned seen = 0;

    (void)rig->hw->ops->device_sync(rig->hw);
    rig->hw->ops->counters(rig->hw, &counters);
    if (counters.wrong_accesses || counters.faults || rig->hw->ops->health(rig->hw))
        seen |= SEEN_ORACLE;
    if (counters.wrong_words)
        seen |= SEEN_WORDS;
    if (rig->vm->audit[0])
        seen |= SEEN_AUDIT;
    rig->vm->audit[0] = 0;
    if (mb__vm_check(rig->vm))
        seen |= SEEN_CHECK;
    return seen;
}

static unsigned run_once(const struct scenario *scenario, uint64_t seed, enum mb_vm_mutant mutant)
{
    struct rig_config config = scenario->config;
    struct rig rig;
    unsigned seen;

    config.hw.explore = true;
    config.hw.seed = seed;
    config.streams = 2;
    rig = rig_open(config);
    atomic_store(&mb__vm_mutant, mutant);
    scenario->run(&rig);
    seen = look(&rig);
    atomic_store(&mb__vm_mutant, MB_VM_NO_MUTANT);
    rig_close(&rig);
    return seen;
}

static void run_scenario(const struct scenario *scenario)
{
    unsigned oracle = 0, words = 0, check = 0, audit = 0, device = 0, tried = 0;

    for (uint64_t i = 0; i < SEEDS; i++) {
        unsigned seen = run_once(scenario, mb_test_seed() + i, MB_VM_NO_MUTANT);

        if (seen)
            FAIL("%s: the correct code is wrong (%#x) with seed %#llx", scenario->name, seen,
                 (unsigned long long)(mb_test_seed() + i));
    }
    for (; tried < SEEDS || (!device && tried < MOST_SEEDS); tried++) {
        unsigned seen = run_once(scenario, mb_test_seed() + tried, scenario->mutant);

        oracle += (seen & SEEN_ORACLE) != 0;
        words += (seen & SEEN_WORDS) != 0;
        check += (seen & SEEN_CHECK) != 0;
        audit += (seen & SEEN_AUDIT) != 0;
        device += (seen & (SEEN_ORACLE | SEEN_WORDS)) != 0;
    }
    printf("%s: of %u seeds seen by oracle %u, contents %u, checks %u, audit %u\n", scenario->name,
           tried, oracle, words, check, audit);
    if (!device)
        FAIL("%s: the device did not notice the missing step in %u seeds", scenario->name, tried);
}

#define SCENARIO(test, number, function, ...)                                                      \
    TEST(test)                                                                                     \
    {                                                                                              \
        run_scenario(&(struct scenario){                                                           \
            .name = #test, .mutant = number, .config = {__VA_ARGS__}, .run = function});           \
    }

SCENARIO(no_invalidate_on_remap, MB_VM_NO_INVALIDATE_ON_REMAP, remap, .hw.ordinal = 0)
SCENARIO(no_invalidate_on_remap_amd, MB_VM_NO_INVALIDATE_ON_REMAP, remap, .hw.model = "mi210")
SCENARIO(group_rule_invalid, MB_VM_GROUP_RULE_IGNORED_INVALID, neighbour, .hw.ordinal = 0)
SCENARIO(group_rule_invalid_fresh, MB_VM_GROUP_RULE_IGNORED_INVALID, neighbour,
         .vm.policy = MB_VM_POLICY_FRESH)
SCENARIO(group_rule_valid, MB_VM_GROUP_RULE_IGNORED_VALID, neighbour, .hw.driver_home = true)
SCENARIO(frame_reused_before_fence, MB_VM_FRAME_REUSED_BEFORE_FENCE, early_reuse, .hw.ordinal = 0)
SCENARIO(reference_dropped_before_fence, MB_VM_FRAME_REUSED_BEFORE_FENCE, early_unref,
         .hw.ordinal = 0)
SCENARIO(epoch_without_flush, MB_VM_EPOCH_RECYCLED_WITHOUT_FLUSH, epoch,
         .vm = {.policy = MB_VM_POLICY_FRESH, .deferred = true})
SCENARIO(alias_not_counted, MB_VM_ALIAS_COUNT_NOT_TAKEN, alias, .hw.ordinal = 0)
SCENARIO(leaf_before_directory, MB_VM_LEAF_BEFORE_DIRECTORY, directory, .hw.ordinal = 0)
SCENARIO(no_membar, MB_VM_NO_MEMBAR_AFTER_INVALIDATE, membar, .hw.ordinal = 0)
