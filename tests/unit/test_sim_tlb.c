/* SPDX-License-Identifier: MIT */
/* The TLB of the software GPU: what a walk brings in, what an invalidate drops, who heals. */
#include "test.h"

#include "support/sim_rig.h"

#include <string.h>

/* Prime a group with frame 0..15, touch slot 0, rewrite slot d, access it: which frame is reached?
 * */
static bool neighbour_is_stale(const char *model, unsigned distance)
{
    struct sim_rig rig;
    bool stale;

    rig_open(&rig, &(struct mb_hw_config){.model = model});
    rig_map(&rig, 0, 0, 48, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, distance, 1, 50, 0);
    rig_touch(&rig, 0, distance);
    CHECK_OK(rig_sync(&rig));
    stale = rig_counters(&rig).wrong_accesses != 0;
    rig_close(&rig);
    return stale;
}

/* Measured on an H200: distances 1..15 go to the old frame, 16 and more to the new one. */
TEST(valid_neighbours_within_16_slots_are_stale)
{
    static const char *const model[] = {"h200", "a100"};

    for (unsigned m = 0; m < 2; m++) {
        for (unsigned d = 1; d < 40; d++)
            CHECK_EQ(neighbour_is_stale(model[m], d), d < 16);
    }
}

TEST(amd_caches_single_entries)
{
    for (unsigned d = 1; d < 20; d++)
        CHECK(!neighbour_is_stale("mi210", d));
}

/* The group is aligned, not centred: slot 5 and slot 16 are 11 apart and in different groups. */
TEST(groups_are_aligned)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 48, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 5);
    CHECK_OK(rig_sync(&rig));
    CHECK(mb__sim_cached(rig.dev, rig_va(&rig, 0)));
    CHECK(mb__sim_cached(rig.dev, rig_va(&rig, 15)));
    CHECK(!mb__sim_cached(rig.dev, rig_va(&rig, 16)));
    rig_close(&rig);
}

/* Map slot 0 only, touch it, map slot d, access it without an invalidate. */
static enum mb_err fill_invalid_neighbour(const struct mb_hw_config *config, unsigned distance,
                                          struct mb_sim_counters *sim, struct mb_hw_counters *hw)
{
    struct sim_rig rig;
    enum mb_err err;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, distance, 1, 1, 0);
    rig_touch(&rig, 0, distance);
    err = rig_sync(&rig);
    *sim = rig_sim(&rig);
    *hw = rig_counters(&rig);
    rig_close(&rig);
    return err;
}

TEST(invalid_neighbours_fault)
{
    static const struct mb_hw_config config = {0};
    struct mb_sim_counters sim;
    struct mb_hw_counters hw;

    for (unsigned d = 1; d < 34; d++) {
        enum mb_err err = fill_invalid_neighbour(&config, d, &sim, &hw);

        CHECK_EQ(err, d < 16 ? MB_ERR_DEVICE_LOST : MB_OK);
        CHECK_EQ(hw.faults, d < 16);
        CHECK_EQ(hw.wrong_accesses, d < 16);
    }
}

TEST(self_heal_replays_the_fault)
{
    static const struct mb_hw_config config = {.self_heal = true};
    struct mb_sim_counters sim;
    struct mb_hw_counters hw;

    CHECK_OK(fill_invalid_neighbour(&config, 7, &sim, &hw));
    CHECK_EQ(sim.replays, 1);
    CHECK_EQ(hw.faults, 1);
    CHECK_EQ(hw.wrong_accesses, 0);
}

TEST(amd_does_not_cache_invalid_entries)
{
    static const struct mb_hw_config config = {.model = "mi210"};
    struct mb_sim_counters sim;
    struct mb_hw_counters hw;

    CHECK_OK(fill_invalid_neighbour(&config, 1, &sim, &hw));
    CHECK_EQ(hw.faults, 0);
}

TEST(copy_engine_never_heals)
{
    struct sim_rig rig;

    rig_open(&rig, &(struct mb_hw_config){.self_heal = true});
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_map(&rig, 0, 32, 1, 2, 0);
    CHECK_OK(mb__sim_copy_ce(rig.dev, rig.stream[0], rig_va(&rig, 32), rig_va(&rig, 0), 8));
    CHECK_OK(rig_sync(&rig));
    rig_map(&rig, 0, 1, 1, 1, 0);
    CHECK_OK(mb__sim_copy_ce(rig.dev, rig.stream[0], rig_va(&rig, 1), rig_va(&rig, 0), 8));
    CHECK_EQ(rig_sync(&rig), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "copy engine") != NULL);
    CHECK_EQ(rig.ops->health(rig.dev), MB_ERR_DEVICE_LOST);
    rig_close(&rig);
}

/* What SMs have walked says nothing about the copy engine's own TLB. */
TEST(copy_engine_has_its_own_tlb)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_map(&rig, 0, 32, 1, 2, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 1, 1, 1, 0);
    CHECK_OK(mb__sim_copy_ce(rig.dev, rig.stream[0], rig_va(&rig, 1), rig_va(&rig, 0), 8));
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    rig_close(&rig);
}

TEST(whole_invalidate_makes_fresh)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 16, 0, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 3, 1, 50, RIG_INVALIDATE);
    rig_fill(&rig, 0, 3, MB_FRAME_BYTES, 9);
    rig_verify(&rig, 0, 3, MB_FRAME_BYTES, 9);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    CHECK_EQ(mb__sim_peek(rig.dev, mb__phys_of_pfn(rig_pfn(&rig, 50))) != 0, 1);
    rig_close(&rig);
}

/* A targeted invalidate promises its range and nothing more: the other slots may stay stale. */
TEST(targeted_invalidate_drops_its_range_only)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 16, 0, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 3, 1, 50, RIG_TARGETED);
    CHECK_OK(rig_sync(&rig));
    CHECK(!mb__sim_cached(rig.dev, rig_va(&rig, 3)));
    CHECK(mb__sim_cached(rig.dev, rig_va(&rig, 4)));
    rig_touch(&rig, 0, 3);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    /* The range above covered slot 3; slot 40's group is walked, slot 41 changed, slot 40
     * invalidated. */
    rig_map(&rig, 0, 32, 16, 0, 0);
    rig_touch(&rig, 0, 40);
    rig_map(&rig, 0, 41, 1, 51, 0);
    rig_map(&rig, 0, 40, 1, 8, RIG_TARGETED);
    rig_touch(&rig, 0, 41);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 1);
    rig_close(&rig);
}

TEST(a_frame_is_named_until_it_is_invalidated)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 4, 0, 0);
    rig_touch(&rig, 0, 1);
    CHECK_OK(rig_sync(&rig));
    CHECK(mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 1)));
    CHECK(mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 3))); /* a neighbour */
    CHECK(!mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 4)));
    rig_unmap(&rig, 0, 1, 1, 0);
    CHECK_OK(rig_sync(&rig));
    CHECK(mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 1)));
    rig_unmap(&rig, 0, 1, 1, RIG_TARGETED | RIG_MEMBAR);
    CHECK_OK(rig_sync(&rig));
    CHECK(!mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 1)));
    CHECK(mb__sim_tlb_names(rig.dev, rig_pfn(&rig, 3)));
    rig_close(&rig);
}

TEST(walk_ahead_brings_in_the_next_group)
{
    struct sim_rig rig;

    for (unsigned ahead = 0; ahead < 2; ahead++) {
        rig_open(&rig, &(struct mb_hw_config){.walk_ahead = ahead});
        rig_map(&rig, 0, 0, 32, 0, 0);
        rig_fill(&rig, 0, 0, 16 * MB_FRAME_BYTES, 1);
        rig_map(&rig, 0, 20, 1, 50, 0);
        rig_touch(&rig, 0, 20);
        CHECK_OK(rig_sync(&rig));
        CHECK_EQ(rig_counters(&rig).wrong_accesses, ahead);
        rig_close(&rig);
    }
}

/* A directory entry that was walked while empty stays empty until it is invalidated. */
TEST(empty_directories_are_cached)
{
    for (unsigned flush = 0; flush < 2; flush++) {
        struct sim_rig rig;
        struct mb_hw_cmd cmds[3] = {
            {.kind = MB_HW_DIR}, {.kind = MB_HW_BARRIER}, {.kind = MB_HW_INVALIDATE}};
        struct mb_pte was;
        unsigned level;

        /* The walk past the last block of the first table finds the second table's directory entry
         * empty. */
        rig_open(&rig, &(struct mb_hw_config){.walk_ahead = true});
        level = rig.geo.levels - 2;
        rig_map(&rig, 0, 0, 1, 0, 0);
        rig_map(&rig, 0, 255, 2, 1, 0);
        cmds[0].dir.table_phys = rig.directory;
        cmds[0].dir.level = level;
        cmds[0].dir.index = mb_fmt_index(rig.geo.level[level], rig_va(&rig, 256).addr);
        was = mb_fmt_encode_dir(rig.dev->caps.format, level,
                                &(struct mb_dir){.valid = 1, .table_phys = rig.view.table + 4096});
        rig_submit(&rig, 0, cmds, 3);
        rig_touch(&rig, 0, 255);
        cmds[0].dir.value = was;
        rig_submit(&rig, 0, cmds, flush ? 3 : 2);
        rig_touch(&rig, 0, 256);
        CHECK_EQ(rig_sync(&rig), flush ? MB_OK : MB_ERR_DEVICE_LOST);
        if (!flush)
            CHECK(strstr(mb_error_detail(), "FAULT_PDE") != NULL);
        rig_close(&rig);
    }
}

/* The primed window of a driver's tree: cleared slots are valid and show the donor. */
TEST(donor_is_stale_until_invalidated)
{
    struct mb_sim_wrong wrong;
    struct sim_rig rig;

    rig_open(&rig, &(struct mb_hw_config){.driver_home = true});
    CHECK(!mb__pfn_eq(rig.view.clear_pfn, MB_NO_PFN));
    CHECK_EQ(rig_counters(&rig).overhead_bytes, MB_FRAME_BYTES);
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 1, 1, 1, 0);
    rig_touch(&rig, 0, 1);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_wrongs(rig.dev, &wrong, 1), 1);
    CHECK_EQ(wrong.actual.n, rig.view.clear_pfn.n);
    CHECK_EQ(wrong.expected.n, rig_pfn(&rig, 1).n);
    rig_close(&rig);
}

TEST(homes_are_mapped_by_the_driver)
{
    struct sim_rig rig;

    rig_open(&rig, &(struct mb_hw_config){.driver_home = true});
    CHECK(rig.slab.home_mapped);
    CHECK_EQ(mb__sim_walk(rig.dev, rig.home).n, rig_pfn(&rig, 0).n);
    CHECK_OK(rig.ops->fill(rig.dev, rig.stream[0], rig.home, 4 * MB_FRAME_BYTES, 3));
    CHECK_OK(rig.ops->verify(rig.dev, rig.stream[0], rig.home, 4 * MB_FRAME_BYTES, 3));
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    CHECK_OK(rig.ops->slab_release(rig.dev, &rig.slab));
    CHECK_EQ(mb__sim_walk(rig.dev, rig.home).n, MB_NO_PFN.n);
    rig_close(&rig);
}
