/* SPDX-License-Identifier: MIT */
/* The walker reads tables whose bytes are written here by hand, from the formats' golden values. */
#include "test.h"

#include "support/sim_rig.h"

#include <string.h>

/* A device with empty tables; raw entries go in through DIR commands, which write any value. */
struct bare {
    struct mb_hw_dev *dev;
    const struct mb_hw_ops *ops;
    struct mb_hw_stream *stream;
    uint64_t base; /* of table memory: address of the next table */
};

static void bare_open(struct bare *bare, const char *model)
{
    struct mb_hw_config config = {.model = model, .device_memory_bytes = (uint64_t)32 << 30};

    CHECK_OK(mb__sim_open(&config, &bare->dev));
    bare->ops = bare->dev->ops;
    CHECK_OK(bare->ops->stream_open(bare->dev, NULL, &bare->stream));
}

static uint64_t new_table(struct bare *bare)
{
    uint64_t phys;

    CHECK_OK(bare->ops->table_alloc(bare->dev, 4096, &phys));
    return phys;
}

static void put(struct bare *bare, uint64_t table, unsigned level, uint32_t index, uint64_t lo,
                uint64_t hi)
{
    struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

    cmd.dir.table_phys = table;
    cmd.dir.level = level;
    cmd.dir.index = index;
    cmd.dir.value = (struct mb_pte){lo, hi};
    CHECK_OK(bare->ops->submit(bare->dev, bare->stream, &cmd, 1));
    CHECK_OK(bare->ops->device_sync(bare->dev));
}

/* Leaves of 8 bytes: through the last single-entry level's command, level 0. */
static void put8(struct bare *bare, uint64_t table, uint32_t index, uint64_t value)
{
    struct mb_hw_view view = {.va = {0},
                              .bytes = (uint64_t)512 << 12,
                              .leaf_shift = 12,
                              .slot_bytes = 8,
                              .table = table,
                              .clear_pfn = MB_NO_PFN};
    struct mb_pte check;
    struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

    /* Level 1 of every format has 8-byte entries and at least 512 of them, or the same table in
     * parts. */
    cmd.dir.table_phys = table + (uint64_t)index * 8;
    cmd.dir.level = 1;
    cmd.dir.value = (struct mb_pte){value, 0};
    CHECK_OK(bare->ops->submit(bare->dev, bare->stream, &cmd, 1));
    CHECK_OK(bare->ops->device_sync(bare->dev));
    CHECK_OK(bare->ops->read_slots(bare->dev, &view, index, 1, &check));
    CHECK_EQ(check.lo, value);
}

static uint32_t walk(struct bare *bare, uint64_t va)
{
    return mb__sim_walk(bare->dev, mb__va(va)).n;
}

/* VA with index 1 in every level, so that no table is confused with another. */
#define GMMU_VA                                                                                    \
    ((uint64_t)1 << 47 | (uint64_t)2 << 38 | (uint64_t)3 << 29 | (uint64_t)4 << 21 |               \
     (uint64_t)5 << 16 | (uint64_t)6 << 12)

/* v3: PDE to video memory is address | 2 | PCF 1 << 3; leaf is address | 1, in place. */
TEST(gmmu_v3_leaves_of_three_sizes)
{
    struct bare bare;
    uint64_t root, pd3, pd2, pd1, pd0, big, small;

    bare_open(&bare, "h200");
    root = bare.ops->root_phys(bare.dev);
    pd3 = new_table(&bare);
    pd2 = new_table(&bare);
    pd1 = new_table(&bare);
    pd0 = new_table(&bare);
    big = new_table(&bare);
    small = new_table(&bare);
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    put(&bare, root, 0, 0, pd3 | 0xa, 0);
    put(&bare, pd3, 1, 1, pd2 | 0xa, 0);
    put(&bare, pd2, 2, 2, pd1 | 0xa, 0);
    put(&bare, pd1, 3, 3, pd0 | 0xa, 0);
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    put(&bare, pd0, 4, 4, 0x0000000123400601, 0);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123400 + 5 * 16 + 6);
    /* Dual: big table in the low half, small one in the high half. */
    put(&bare, pd0, 4, 4, big | 0xa, small | 0xa);
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    put8(&bare, small, 5 * 16 + 6, 0x0000000123456601);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123456);
    put8(&bare, big, 5, 0x0000000123450601);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123456); /* PA 0x1_2345_0000 + 6 pages */
    CHECK_EQ(walk(&bare, GMMU_VA + 4096), 0x123457);
    put8(&bare, big, 5, 0x18); /* stop: the small table is not asked */
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    put8(&bare, big, 5, 0);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123456);
    put(&bare, pd0, 4, 4, 0x8, 0); /* sparse */
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    put(&bare, pd0, 4, 4, 0x0000000123400607, 0); /* system memory: not of this device */
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    bare.ops->close(bare.dev);
}

/* v2: addresses shifted right by 4 (PDE, leaf) or kept (big half), kind in the top byte. */
TEST(gmmu_v2_leaves_of_three_sizes)
{
    struct bare bare;
    uint64_t root, pd2, pd1, pd0, big, small;

    bare_open(&bare, "a100");
    root = bare.ops->root_phys(bare.dev);
    pd2 = new_table(&bare);
    pd1 = new_table(&bare);
    pd0 = new_table(&bare);
    big = new_table(&bare);
    small = new_table(&bare);
    put(&bare, root, 0, 1, pd2 >> 4 | 0xa, 0);
    put(&bare, pd2, 1, 2, pd1 >> 4 | 0xa, 0);
    put(&bare, pd1, 2, 3, pd0 >> 4 | 0xa, 0);
    put(&bare, pd0, 3, 4, 0x0600000012340001, 0);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123400 + 5 * 16 + 6);
    put(&bare, pd0, 3, 4, big >> 4 | 0xa, small >> 4 | 0xa);
    put8(&bare, small, 5 * 16 + 6, 0x0600000012345601);
    CHECK_EQ(walk(&bare, GMMU_VA), 0x123456);
    put8(&bare, big, 5, 0x0600000012345001);
    CHECK_EQ(walk(&bare, GMMU_VA + 4096), 0x123457);
    put8(&bare, big, 5, 0x20);
    CHECK_EQ(walk(&bare, GMMU_VA), MB_NO_PFN.n);
    bare.ops->close(bare.dev);
}

/* Translate-further: P is clear in a 2 MiB leaf, F says that a table follows. */
TEST(gfx9_translate_further_leaves)
{
    const uint64_t va = (uint64_t)2 << 39 | (uint64_t)3 << 30 | (uint64_t)4 << 21 |
                        (uint64_t)5 << 16 | (uint64_t)6 << 12;
    struct bare bare;
    uint64_t root, pdb1, pdb0, ptb;

    bare_open(&bare, "mi210");
    root = bare.ops->root_phys(bare.dev);
    pdb1 = new_table(&bare);
    pdb0 = new_table(&bare);
    ptb = new_table(&bare);
    put(&bare, root, 0, 2, pdb1 | 0x1, 0);
    put(&bare, pdb1, 1, 3, pdb0 | 0x4800000000000001, 0);
    put(&bare, pdb0, 2, 4, 0x0000000000001000, 0); /* the driver's initial fill */
    CHECK_EQ(walk(&bare, va), MB_NO_PFN.n);
    put(&bare, pdb0, 2, 4, 0x02000001234004F1, 0);
    CHECK_EQ(walk(&bare, va), 0x123400 + 5 * 16 + 6);
    put(&bare, pdb0, 2, 4, ptb | 0x0100000000000001, 0);
    CHECK_EQ(walk(&bare, va), MB_NO_PFN.n);
    put8(&bare, ptb, 5 * 16 + 6, 0x0200000123456271); /* one of sixteen with FRAG 4 */
    CHECK_EQ(walk(&bare, va), 0x123456);
    put8(&bare, ptb, 5 * 16 + 6, 0x10); /* the driver's fill of an empty slot */
    CHECK_EQ(walk(&bare, va), MB_NO_PFN.n);
    bare.ops->close(bare.dev);
}

/* Small leaves written by LEAVES, used through the TLB. */
static void small_leaves(const char *model, unsigned leaf_shift)
{
    struct sim_rig rig;
    struct mb_hw_view view;
    struct mb_dir dir = {0};
    uint64_t table;
    mb_pfn pfns[32];
    unsigned count = 32, last;
    uint64_t tmpl;

    rig_open(&rig, &(struct mb_hw_config){.model = model});
    last = rig.geo.levels - 1;
    CHECK_OK(rig.ops->table_alloc(rig.dev, 4096, &table));
    dir.valid = leaf_shift == 12 || !rig.geo.leaf_64k.entry_bytes;
    dir.valid_big = !dir.valid;
    dir.table_phys = dir.valid ? table : 0;
    dir.table_phys_big = dir.valid ? 0 : table;
    view = (struct mb_hw_view){.va = rig_va(&rig, 4),
                               .bytes = MB_FRAME_BYTES,
                               .leaf_shift = leaf_shift,
                               .slot_bytes = 8,
                               .table = table,
                               .clear_pfn = MB_NO_PFN};
    tmpl = mb_fmt_leaf_template(rig.dev->caps.format, leaf_shift,
                                mb_fmt_user_flags(rig.dev->caps.format, 1), MB_AP_VID,
                                rig.dev->caps.kind);
    /* Every other leaf of a frame, backwards. */
    for (unsigned i = 0; i < count; i++)
        pfns[i].n = rig_pfn(&rig, 7).n + ((2 * (count - 1 - i)) << (leaf_shift - 12)) % 512;
    rig.ops->intend(rig.dev, view.va, count, leaf_shift, pfns);
    rig_submit(
        &rig, 0,
        (struct mb_hw_cmd[3]){
            {.kind = MB_HW_LEAVES, .leaves = {&view, 0, count, pfns, tmpl}},
            {.kind = MB_HW_DIR,
             .dir = {rig.view.table, 4, last, mb_fmt_encode_dir(rig.dev->caps.format, last, &dir)}},
            {.kind = MB_HW_BARRIER}},
        3);
    for (unsigned i = 0; i < count / 2; i++) {
        mb_va va = mb__va_add(view.va, (uint64_t)(count - 1 - i) << leaf_shift);

        CHECK_OK(rig.ops->fill(rig.dev, rig.stream[0], va, (uint64_t)1 << leaf_shift, i));
        CHECK_OK(rig.ops->verify(rig.dev, rig.stream[0], va, (uint64_t)1 << leaf_shift, i));
    }
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    CHECK_EQ(mb__sim_walk(rig.dev, view.va).n, pfns[0].n);
    rig_close(&rig);
}

TEST(small_leaves_translate)
{
    static const char *const model[] = {"h200", "a100", "mi210"};

    for (unsigned m = 0; m < 3; m++) {
        small_leaves(model[m], 12);
        small_leaves(model[m], 16);
    }
}

TEST(read_only_leaves_refuse_stores)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig.tmpl = mb_fmt_leaf_template(rig.dev->caps.format, MB_FRAME_SHIFT,
                                    mb_fmt_user_flags(rig.dev->caps.format, 0), MB_AP_VID, 6);
    rig_map(&rig, 0, 0, 1, 0, 0);
    rig_verify(&rig, 0, 0, 8, 0);
    CHECK_OK(rig_sync(&rig));
    rig_touch(&rig, 0, 0);
    CHECK_EQ(rig_sync(&rig), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "FAULT_RO_VIOLATION") != NULL);
    rig_close(&rig);
}

TEST(unmapped_addresses_fault)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_touch(&rig, 0, 3);
    CHECK_EQ(rig_sync(&rig), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "FAULT_PTE") != NULL);
    CHECK_EQ(rig_counters(&rig).faults, 1);
    /* Nobody was promised a frame there. */
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    rig_close(&rig);
}
