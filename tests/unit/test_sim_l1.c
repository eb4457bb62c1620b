/* SPDX-License-Identifier: MIT */
/* L1 data caches: tagged by address, as measured through two addresses of one frame. */
#include "test.h"

#include "kernels/pattern.h"
#include "support/sim_rig.h"

enum { OLD = 0x01d, NEW = 0x4e3 };

/* Slots 0 and 32 show the same frame. */
static void open_aliased(struct sim_rig *rig)
{
    rig_open(rig, NULL);
    rig_map(rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_map(rig, 0, 32, 1, 0, RIG_INVALIDATE);
}

static void run(struct sim_rig *rig, struct mb_sim_step *steps, unsigned count)
{
    CHECK_OK(mb__sim_kernel(rig->dev, rig->stream[0], steps, count, 0));
    CHECK_OK(rig_sync(rig));
}

static struct mb_sim_step store(const struct sim_rig *rig, unsigned slot, uint64_t value)
{
    return (struct mb_sim_step){.kind = MB_SIM_ST, .va = rig_va(rig, slot), .value = value};
}

static struct mb_sim_step load(const struct sim_rig *rig, enum mb_sim_step_kind kind, unsigned slot,
                               uint64_t *out)
{
    return (struct mb_sim_step){.kind = kind, .va = rig_va(rig, slot), .out = out};
}

/* Inside one kernel: load at address B, store at address A, load at B again. */
static uint64_t second_load(enum mb_sim_step_kind kind, bool fence)
{
    struct sim_rig rig;
    uint64_t first = 0, second = 0;
    struct mb_sim_step steps[5];
    unsigned n = 0;

    open_aliased(&rig);
    steps[0] = store(&rig, 0, OLD);
    run(&rig, steps, 1);
    steps[n++] = load(&rig, kind, 32, &first);
    steps[n++] = store(&rig, 0, NEW);
    if (fence)
        steps[n++] = (struct mb_sim_step){.kind = MB_SIM_FENCE};
    steps[n++] = load(&rig, kind, 32, &second);
    run(&rig, steps, n);
    CHECK_EQ(first, OLD);
    rig_close(&rig);
    return second;
}

TEST(a_cached_load_may_be_old)
{
    CHECK_EQ(second_load(MB_SIM_LD_CA, false), OLD);
}

TEST(cg_and_volatile_are_fresh)
{
    CHECK_EQ(second_load(MB_SIM_LD_CG, false), NEW);
    CHECK_EQ(second_load(MB_SIM_LD_VOL, false), NEW);
}

TEST(a_fence_makes_cached_loads_fresh)
{
    CHECK_EQ(second_load(MB_SIM_LD_CA, true), NEW);
}

TEST(a_non_coherent_load_stays_old_after_a_fence)
{
    CHECK_EQ(second_load(MB_SIM_LD_NC, false), OLD);
    CHECK_EQ(second_load(MB_SIM_LD_NC, true), OLD);
}

TEST(a_kernel_boundary_is_fresh)
{
    static const enum mb_sim_step_kind kind[] = {MB_SIM_LD_CA, MB_SIM_LD_NC};

    for (unsigned k = 0; k < 2; k++) {
        struct sim_rig rig;
        uint64_t first = 0, second = 0;
        struct mb_sim_step step;

        open_aliased(&rig);
        step = store(&rig, 0, OLD);
        run(&rig, &step, 1);
        step = load(&rig, kind[k], 32, &first);
        run(&rig, &step, 1);
        step = store(&rig, 0, NEW);
        run(&rig, &step, 1);
        step = load(&rig, kind[k], 32, &second);
        run(&rig, &step, 1);
        CHECK_EQ(first, OLD);
        CHECK_EQ(second, NEW);
        rig_close(&rig);
    }
}

TEST(a_store_updates_its_own_line)
{
    struct sim_rig rig;
    uint64_t first = 0, second = 0;
    struct mb_sim_step steps[4];

    open_aliased(&rig);
    steps[0] = store(&rig, 0, OLD);
    steps[1] = load(&rig, MB_SIM_LD_CA, 0, &first);
    steps[2] = store(&rig, 0, NEW);
    steps[3] = load(&rig, MB_SIM_LD_CA, 0, &second);
    run(&rig, steps, 4);
    CHECK_EQ(first, OLD);
    CHECK_EQ(second, NEW);
    rig_close(&rig);
}

/* Another SM neither sees the line nor, before it lands, the store. */
TEST(other_sms_have_their_own_lines)
{
    struct sim_rig rig;
    uint64_t seen = 0;
    struct mb_sim_step steps[4];

    open_aliased(&rig);
    steps[0] = store(&rig, 0, OLD);
    run(&rig, steps, 1);
    steps[0] = load(&rig, MB_SIM_LD_CA, 0, NULL);
    steps[0].sm = 1;
    steps[1] = store(&rig, 0, NEW);
    steps[2] = (struct mb_sim_step){.kind = MB_SIM_FENCE};
    steps[3] = load(&rig, MB_SIM_LD_CA, 0, &seen);
    steps[3].sm = 1;
    run(&rig, steps, 4);
    CHECK_EQ(seen, OLD);
    steps[3].sm = 2;
    run(&rig, steps + 3, 1);
    CHECK_EQ(seen, NEW);
    rig_close(&rig);
}

/* A line needs no translation: it outlives a remap with all its invalidates, as long as the kernel
 * runs. */
TEST(a_line_outlives_a_remap)
{
    struct sim_rig rig;
    uint64_t first = 0, cached = 0, around = 0;
    struct mb_sim_step steps[5];

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_fill(&rig, 0, 0, 64, 1);
    CHECK_OK(rig_sync(&rig));
    steps[0] = load(&rig, MB_SIM_LD_CA, 0, &first);
    steps[1] = (struct mb_sim_step){.kind = MB_SIM_SEM_SET, .sem = 0, .value = 1};
    steps[2] = (struct mb_sim_step){.kind = MB_SIM_SEM_WAIT, .sem = 1, .value = 1};
    steps[3] = load(&rig, MB_SIM_LD_CA, 0, &cached);
    steps[4] = load(&rig, MB_SIM_LD_CG, 0, &around);
    CHECK_OK(mb__sim_kernel(rig.dev, rig.stream[1], steps, 5, MB_SIM_ROGUE));
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[0], 0, 1));
    rig_map(&rig, 0, 0, 1, 1, RIG_INVALIDATE | RIG_MEMBAR);
    rig_fill(&rig, 0, 0, 64, 2);
    CHECK_OK(mb__sim_sem_set(rig.dev, rig.stream[0], 1, 1));
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(first, mb_pattern(1, 0));
    CHECK_EQ(cached, mb_pattern(1, 0));
    CHECK_EQ(around, mb_pattern(2, 0));
    rig_close(&rig);
}
