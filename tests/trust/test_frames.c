/* SPDX-License-Identifier: MIT */
/*
 * Batches that name frames they may not name: out of range, of another device, given back, of
 * nobody. Not one entry of such a batch is written, and no reference is taken.
 */
#include "unit/test_vm.h"

enum { SLOTS = 64, ROUNDS = 20000 };

struct bench {
    struct rig rig;
    struct mb_run mine, given_back;
    mb_va va;
};

static mb_pfn any_frame(struct bench *b, uint64_t *state, bool *good)
{
    uint64_t kind = mb_test_random_below(state, 6);
    mb_pfn pfn = {(uint32_t)mb_test_random(state)};

    *good = false;
    switch (kind) {
    case 0: /* anything */
        return pfn;
    case 1: /* far out of range, aligned */
        pfn.n |= UINT32_C(0xc0000000);
        pfn.n &= ~(uint32_t)(MB_FRAME_PFNS - 1);
        return pfn;
    case 2: /* one of ours, given back */
        CHECK_OK(mb__home_pfns(b->rig.vm, b->given_back.home, 1, &pfn));
        return pfn;
    case 3: /* of a frame that the device has, and nobody took */
        CHECK_OK(mb__home_pfns(b->rig.vm, b->mine.home, 1, &pfn));
        pfn.n += 1000 * MB_FRAME_PFNS;
        return pfn;
    case 4: /* inside one of ours */
        CHECK_OK(mb__home_pfns(b->rig.vm, b->mine.home, 1, &pfn));
        pfn.n += 1 + (uint32_t)mb_test_random_below(state, MB_FRAME_PFNS - 1);
        return pfn;
    default:
        CHECK_OK(mb__home_pfns(
            b->rig.vm, mb__va_add(b->mine.home, FRAMES(mb_test_random_below(state, 8))), 1, &pfn));
        *good = true;
        return pfn;
    }
}

static uint64_t entries_written(struct rig *rig)
{
    struct mb_hw_counters counters;

    rig->hw->ops->counters(rig->hw, &counters);
    return counters.entries_written;
}

TEST(foreign_frames_are_refused)
{
    struct bench b = {0};
    uint64_t state = mb_test_seed();
    unsigned refused = 0;

    b.rig = rig_open((struct rig_config){.hw.ordinal = 0});
    b.mine = take(&b.rig, 8);
    b.given_back = take(&b.rig, 8);
    CHECK_OK(mb__free_pfn(b.rig.vm, 1, b.given_back, NULL, 0));
    b.va = window(&b.rig, SLOTS);
    rig_check_tables(&b.rig);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t count = (uint32_t)mb_test_random_below(&state, 4) + 1;
        mb_pfn pfns[4];
        struct mb_vm_op op = {.kind = MB_VM_MAP,
                              .prot = MB_PROT_READ_WRITE,
                              .va =
                                  mb__va_add(b.va, FRAMES(mb_test_random_below(&state, SLOTS - 4))),
                              .frames = count,
                              .pfns = pfns,
                              .cap = mb__owner_cap(b.rig.vm, 1)};
        uint64_t before;
        bool good = true, each;
        enum mb_err err;

        for (uint32_t i = 0; i < count; i++) {
            pfns[i] = any_frame(&b, &state, &each);
            good &= each;
        }
        CHECK_OK(b.rig.hw->ops->device_sync(b.rig.hw));
        before = entries_written(&b.rig);
        err = mb__pte_pop(b.rig.vm, b.rig.stream[0], &op, 1, NULL);
        CHECK_OK(b.rig.hw->ops->device_sync(b.rig.hw));
        if (good) {
            CHECK_OK(err);
            continue;
        }
        CHECK(err == MB_ERR_CORRUPT || err == MB_ERR_INVALID);
        CHECK_EQ(entries_written(&b.rig), before);
        refused++;
        if (round % 500 == 0) {
            rig_check(&b.rig);
            rig_check_tables(&b.rig);
        }
    }
    printf("COUNT batches naming frames that are not the caller's, none written %u\n", refused);
    CHECK(refused > ROUNDS / 2);
    rig_check(&b.rig);
    rig_check_tables(&b.rig);
    rig_judge(&b.rig);
    rig_close(&b.rig);
}

/* The backend itself refuses frames that no slab holds, should the record ever be wrong. */
TEST(backend_refuses_frames_that_nobody_holds)
{
    struct rig rig = rig_open((struct rig_config){.hw.ordinal = 0});
    struct mb_run run = take(&rig, 4);
    mb_va va = window(&rig, 16);
    uint64_t state = mb_test_seed();

    map_run(&rig, 0, va, run);
    for (unsigned i = 0; i < 5000; i++) {
        const struct mb_hw_view *view = &rig.vm->region[MB__REGION_2M].piece[0].view;
        mb_pfn pfn = {(uint32_t)mb_test_random(&state) & ~(uint32_t)(MB_FRAME_PFNS - 1)};
        struct mb_hw_cmd cmd = {.kind = MB_HW_LEAVES, .leaves = {view, 0, 1, &pfn, 0}};

        if (!mb__pfn_home(rig.vm, pfn).addr)
            CHECK_EQ(rig.hw->ops->submit(rig.hw, rig.stream[0], &cmd, 1), MB_ERR_INVALID);
    }
    rig_check_tables(&rig);
    rig_close(&rig);
}
