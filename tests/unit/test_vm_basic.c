/* SPDX-License-Identifier: MIT */
/* vm on the software GPU: frames, homes, windows, mapping, inline policy. */
#include "unit/test_vm.h"

TEST(open_and_close)
{
    struct rig rig = rig_open((struct rig_config){0});

    rig_check(&rig);
    rig_close(&rig);
}

TEST(homes_are_usable_at_once)
{
    struct rig rig = rig_open((struct rig_config){.hw.explore = true, .streams = 2});
    struct mb_run run = take(&rig, 5);

    fill(&rig, 0, run.home, FRAMES(5), 7);
    verify(&rig, 0, run.home, FRAMES(5), 7);
    for (uint32_t i = 0; i < 5; i++) {
        mb_pfn pfn = mb__home_pfn(rig.vm, mb__va_add(run.home, FRAMES(i)));

        CHECK_EQ(mb__pfn_home(rig.vm, pfn).addr, run.home.addr + FRAMES(i));
        CHECK_EQ(mb__pfn_refs(rig.vm, pfn), 1);
    }
    rig_check(&rig);
    rig_check_tables(&rig);
    CHECK_OK(mb__free_pfn(rig.vm, 1, run, NULL, 0));
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 0);
    rig_check(&rig);
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(a_window_shows_frames_and_lets_go)
{
    struct rig rig = rig_open((struct rig_config){.hw.explore = true});
    struct mb_run run = take(&rig, 40);
    mb_va va = window(&rig, 40);
    struct mb_hw_fence fence;

    fill(&rig, 0, run.home, FRAMES(40), 3);
    map_run(&rig, 0, va, run);
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 2);
    CHECK(mb__pfn_eq(mb__vm_lookup(rig.vm, va), run.pfn));
    verify(&rig, 0, va, FRAMES(40), 3);
    rig_check(&rig);
    CHECK_EQ(mb__free_va(rig.vm, va, FRAMES(40)), MB_ERR_BUSY);
    fence = unmap(&rig, 0, va, 40);
    CHECK_OK(mb__free_va(rig.vm, va, FRAMES(40)));
    rig_check(&rig);
    CHECK_OK(rig.hw->ops->fence_wait_host(rig.hw, fence, 0));
    mb__vm_poll(rig.vm);
    CHECK_EQ(mb__pfn_refs(rig.vm, run.pfn), 1);
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_judge(&rig);
    rig_close(&rig);
}

TEST(a_remap_shows_the_new_frames)
{
    struct rig rig = rig_open((struct rig_config){.hw.explore = true, .hw.seed = mb_test_seed()});
    struct mb_run a = take(&rig, 20), b = take(&rig, 20);
    mb_va va = window(&rig, 20);

    fill(&rig, 0, a.home, FRAMES(20), 1);
    fill(&rig, 0, b.home, FRAMES(20), 2);
    map_run(&rig, 0, va, a);
    verify(&rig, 0, va, FRAMES(20), 1);
    map_run(&rig, 0, va, b);
    verify(&rig, 0, va, FRAMES(20), 2);
    rig_check(&rig);
    rig_judge(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}
