/* SPDX-License-Identifier: MIT */
/* Steps that keep translations right, removed one at a time. */
#include "sim_mutant.h"

static const struct mb_hw_config h200 = {0};

/* ------------------------------------------------------------ no invalidate on remap */

static struct sim_verdict remap(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_fill(&rig, 0, 0, MB_FRAME_BYTES, 1);
    rig_map(&rig, 0, 0, 1, 1, broken ? 0 : RIG_INVALIDATE | RIG_MEMBAR);
    rig_fill(&rig, 0, 0, MB_FRAME_BYTES, 2);
    rig_verify(&rig, 0, 0, MB_FRAME_BYTES, 2);
    return rig_verdict(&rig);
}

TEST(no_invalidate_on_remap)
{
    struct mb_hw_config isolated = {.tables = "isolated"}, amd = {.model = "mi210"};

    /* Under drawn orders an access takes one of several first-level TLBs, but all ask the second.
     * */
    check_mutant(remap, &h200, MUTANT_SEEDS);
    check_mutant(remap, &isolated, MUTANT_SEEDS);
    check_mutant(remap, &amd, MUTANT_SEEDS);
}

/* The device itself drops the command. */
static struct sim_verdict deaf_device(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    if (broken)
        mb__sim_set_mutants(rig.dev, MB_SIM_NO_INVALIDATE);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 0, 1, 1, RIG_INVALIDATE | RIG_MEMBAR);
    rig_touch(&rig, 0, 0);
    return rig_verdict(&rig);
}

TEST(invalidate_without_effect)
{
    check_mutant(deaf_device, &h200, MUTANT_SEEDS);
}

/* ------------------------------------------------------------ the group rule */

static struct sim_verdict grow_beside_invalid(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 1, 1, 1, broken ? 0 : RIG_TARGETED);
    rig_touch(&rig, 0, 1);
    return rig_verdict(&rig);
}

TEST(group_rule_ignored_for_an_invalid_neighbour)
{
    check_mutant(grow_beside_invalid, &h200, MUTANT_SEEDS);
}

static struct sim_verdict change_beside_valid(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 16, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 9, 1, 20, broken ? 0 : RIG_TARGETED);
    rig_fill(&rig, 0, 9, MB_FRAME_BYTES, 4);
    rig_verify(&rig, 0, 9, MB_FRAME_BYTES, 4);
    return rig_verdict(&rig);
}

TEST(group_rule_ignored_for_a_valid_neighbour)
{
    struct mb_hw_config primed = {.driver_home = true};

    check_mutant(change_beside_valid, &h200, MUTANT_SEEDS);
    check_mutant(change_beside_valid, &primed, MUTANT_SEEDS);
}

/* Without the rule in the device the same mistakes pass: the rule is what catches them. */
TEST(a_device_without_the_group_rule_is_blind)
{
    static const unsigned off[2] = {MB_SIM_NO_INVALID_GROUP, MB_SIM_NO_VALID_GROUP};

    for (unsigned i = 0; i < 2; i++) {
        struct sim_verdict verdict;
        struct sim_rig rig;

        rig_open(&rig, &h200);
        mb__sim_set_mutants(rig.dev, off[i]);
        rig_map(&rig, 0, 0, i ? 16 : 1, 0, i ? RIG_INVALIDATE : 0);
        rig_touch(&rig, 0, 0);
        rig_map(&rig, 0, 1, 1, 20, 0);
        rig_touch(&rig, 0, 1);
        verdict = rig_verdict(&rig);
        CHECK(!caught(&verdict));
    }
}

/* ------------------------------------------------------------ visibility */

/* A second window under a directory entry of its own; its leaf is used by another stream. */
static struct sim_verdict new_directory(const struct mb_hw_config *config, bool broken)
{
    struct mb_hw_cmd dir[2] = {{.kind = MB_HW_DIR}, {.kind = MB_HW_BARRIER}};
    struct mb_hw_view view;
    struct mb_hw_fence fence;
    uint64_t table;
    struct sim_rig rig;
    mb_pfn pfn;

    rig_open(&rig, config);
    CHECK_OK(rig.ops->table_alloc(rig.dev, 4096, &table));
    view = rig.view;
    view.table = table;
    CHECK_OK(rig.ops->va_reserve(rig.dev, (uint64_t)512 << 20, (uint64_t)512 << 20, &view.va));
    view.bytes = (uint64_t)512 << 20;
    dir[0].dir.table_phys = rig.directory;
    dir[0].dir.level = rig.geo.levels - 2;
    dir[0].dir.index = mb_fmt_index(rig.geo.level[rig.geo.levels - 2], view.va.addr);
    dir[0].dir.value = mb_fmt_encode_dir(rig.dev->caps.format, rig.geo.levels - 2,
                                         &(struct mb_dir){.valid = 1, .table_phys = table});
    pfn = rig_pfn(&rig, 3);
    rig.ops->intend(rig.dev, view.va, 1, MB_FRAME_SHIFT, &pfn);
    if (!broken)
        rig_submit(&rig, 0, dir, 2);
    rig_submit(
        &rig, 0,
        (struct mb_hw_cmd[2]){{.kind = MB_HW_LEAVES, .leaves = {&view, 0, 1, &pfn, rig.tmpl}},
                              {.kind = MB_HW_BARRIER}},
        2);
    fence = rig_fence(&rig, 0);
    if (broken)
        rig_submit(&rig, 0, dir, 2);
    rig_wait(&rig, 1, fence);
    rig_took(rig.ops->fill(rig.dev, rig.stream[1], view.va, 64, 1));
    rig_took(rig.ops->verify(rig.dev, rig.stream[1], view.va, 64, 1));
    return rig_verdict(&rig);
}

TEST(leaf_written_before_its_directory)
{
    check_mutant(new_directory, &h200, 1);
}

static struct sim_verdict barrier(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    rig_map(&rig, 0, 0, 8, 0, RIG_INVALIDATE | (broken ? RIG_NO_BARRIER : 0));
    for (unsigned i = 0; i < 8; i++)
        rig_touch(&rig, 0, i);
    return rig_verdict(&rig);
}

TEST(barrier_after_the_entries_missing)
{
    check_mutant(barrier, &h200, 1);
}
