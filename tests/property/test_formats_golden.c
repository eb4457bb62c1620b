/* SPDX-License-Identifier: MIT */
/* Entries known from vendor sources and from a device, in hex. doc/formats.md explains each. */
#include "kernels/formats.h"
#include "test.h"

#define V2 MB_FMT_GMMU_V2
#define V3 MB_FMT_GMMU_V3
#define G9 MB_FMT_GFX9
#define TF MB_FMT_GFX9_TF

/* Encoding gives `lo`, decoding gives the leaf back, template and address give `lo` too. */
static void check_leaf(enum mb_fmt fmt, unsigned shift, struct mb_leaf leaf, uint64_t lo)
{
    struct mb_pte pte = mb_fmt_encode_leaf(fmt, shift, &leaf);
    struct mb_leaf back;

    CHECK_EQ(pte.lo, lo);
    CHECK_EQ(pte.hi, 0);
    CHECK(mb_fmt_leaf_legal(fmt, shift, &leaf));
    CHECK(mb_fmt_decode_leaf(fmt, shift, pte, &back));
    CHECK_EQ(back.flags, leaf.flags);
    CHECK_EQ(back.aperture, leaf.aperture);
    CHECK_EQ(back.kind, leaf.kind);
    CHECK_EQ(back.peer, leaf.peer);
    CHECK_EQ(back.phys, leaf.phys);
    if (leaf.flags & MB_LEAF_VALID && leaf.aperture != MB_AP_PEER) {
        uint64_t tmpl = mb_fmt_leaf_template(fmt, shift, leaf.flags, leaf.aperture, leaf.kind);

        CHECK_EQ(mb_fmt_leaf_at(fmt, shift, tmpl, (uint32_t)(leaf.phys >> 12)).lo, lo);
    }
}

static void check_dir(enum mb_fmt fmt, unsigned level, struct mb_dir dir, uint64_t hi, uint64_t lo)
{
    struct mb_pte pte = mb_fmt_encode_dir(fmt, level, &dir);
    struct mb_dir back;

    CHECK_EQ(pte.lo, lo);
    CHECK_EQ(pte.hi, hi);
    CHECK(!mb_fmt_is_leaf(fmt, level, pte));
    CHECK(mb_fmt_decode_dir(fmt, level, pte, &back));
    CHECK_EQ(back.valid, dir.valid);
    CHECK_EQ(back.valid_big, dir.valid_big);
    CHECK_EQ(back.aperture, dir.aperture);
    CHECK_EQ(back.flags, dir.flags);
    CHECK_EQ(back.table_phys, dir.table_phys);
    CHECK_EQ(back.table_phys_big, dir.table_phys_big);
}

static struct mb_leaf vid(uint64_t phys, uint8_t kind)
{
    return (struct mb_leaf){.flags = MB_LEAF_VALID, .kind = kind, .phys = phys};
}

static struct mb_leaf sys_ro_uncached(uint8_t kind)
{
    return (struct mb_leaf){.flags = MB_LEAF_VALID | MB_LEAF_READ_ONLY | MB_LEAF_NO_ATOMICS |
                                     MB_LEAF_UNCACHED,
                            .aperture = MB_AP_SYS_COHERENT,
                            .kind = kind,
                            .phys = 0x34567000};
}

TEST(gmmu_v2_leaves)
{
    check_leaf(V2, 21, vid(0x123400000, 0), 0x0000000012340001);
    check_leaf(V2, 21, vid(0x123400000, 6), 0x0600000012340001);
    check_leaf(V2, 16, vid(0x123450000, 0), 0x0000000012345001);
    check_leaf(V2, 12, sys_ro_uncached(0), 0x00000000034567cd);
    check_leaf(V2, 29, vid(0x120000000, 0), 0x0000000012000001);
}

TEST(gmmu_v3_leaves)
{
    check_leaf(V3, 21, vid(0x123400000, 0), 0x0000000123400001);
    check_leaf(V3, 21, vid(0x123400000, 6), 0x0000000123400601);
    check_leaf(V3, 16, vid(0x123450000, 0), 0x0000000123450001);
    check_leaf(V3, 12, sys_ro_uncached(0), 0x000000003456706d);
    check_leaf(V3, 12, sys_ro_uncached(6), 0x000000003456766d);
}

/* What the driver of an H200 writes for a 2 MiB allocation: address | 0x681. */
TEST(cuda_own_entry_of_hopper)
{
    uint32_t flags = mb_fmt_user_flags(V3, 1);
    struct mb_leaf leaf = vid(0x1fe0200000, 6);

    CHECK_EQ(flags, MB_LEAF_VALID | MB_LEAF_NO_ACCESS_COUNT);
    CHECK_EQ(mb_fmt_leaf_template(V3, 21, flags, MB_AP_VID, 6), 0x681);
    leaf.flags = flags;
    check_leaf(V3, 21, leaf, 0x1fe0200681);
}

TEST(gfx9_leaves)
{
    struct mb_leaf rwx = vid(0x123400000, 1);
    struct mb_leaf sys = {.flags =
                              MB_LEAF_VALID | MB_LEAF_READ_ONLY | MB_LEAF_NO_EXEC | MB_LEAF_SNOOPED,
                          .aperture = MB_AP_SYS_COHERENT,
                          .phys = 0x34567000};

    check_leaf(TF, 21, rwx, 0x02000001234004f1);
    check_leaf(G9, 21, rwx, 0x02400001234004f1);
    for (uint64_t i = 0; i < 16; i++) {
        struct mb_leaf part = vid(0x123450000 + (i << 12), 1);

        check_leaf(TF, 16, part, 0x0200000123450271 + (i << 12));
        check_leaf(G9, 16, part, 0x0200000123450271 + (i << 12));
    }
    check_leaf(TF, 12, sys, 0x0000000034567027);
    sys.kind = 3;
    check_leaf(G9, 12, sys, 0x0600000034567027);
}

TEST(gmmu_directories)
{
    struct mb_dir one = {.valid = 1, .table_phys = 0x80000000};
    struct mb_dir two = {
        .valid = 1, .valid_big = 1, .table_phys = 0x80000000, .table_phys_big = 0x80001100};

    for (unsigned level = 0; level < 3; level++)
        check_dir(V2, level, one, 0, 0x000000000800000a);
    for (unsigned level = 0; level < 4; level++)
        check_dir(V3, level, one, 0, 0x000000008000000a);
    check_dir(V2, 3, two, 0x000000000800000a, 0x000000000800011a);
    check_dir(V3, 4, two, 0x000000008000000a, 0x000000008000110a);
    /* One half alone: the other one is 0. */
    check_dir(V3, 4, one, 0x000000008000000a, 0);
    two.valid = 0;
    two.table_phys = 0;
    check_dir(V3, 4, two, 0, 0x000000008000110a);
    /* PCF 3: address translation services not allowed. */
    one.flags = MB_DIR_NO_ATS;
    check_dir(V3, 2, one, 0, 0x000000008000001a);
    check_dir(V2, 2, one, 0, 0x000000000800002a);
}

TEST(gfx9_directories)
{
    struct mb_dir dir = {.valid = 1, .table_phys = 0x80000000};

    check_dir(TF, 0, dir, 0, 0x0000000080000001);
    check_dir(TF, 1, dir, 0, 0x4800000080000001);
    check_dir(TF, 2, dir, 0, 0x0100000080000001);
    for (unsigned level = 0; level < 3; level++)
        check_dir(G9, level, dir, 0, 0x0000000080000001);
}

TEST(entries_without_a_translation)
{
    static const enum mb_fmt gmmu[] = {V2, V3};

    for (unsigned i = 0; i < 2; i++) {
        CHECK_EQ(mb_fmt_invalid_leaf(gmmu[i], 21).lo, 0);
        CHECK_EQ(mb_fmt_invalid_leaf(gmmu[i], 21).hi, 0);
        CHECK_EQ(mb_fmt_invalid_leaf(gmmu[i], 12).lo, 0);
        CHECK_EQ(mb_fmt_empty_leaf(gmmu[i], 16).lo, 0);
        CHECK_EQ(mb_fmt_sparse_leaf(gmmu[i], 21).lo, 8);
        CHECK_EQ(mb_fmt_sparse_leaf(gmmu[i], 16).lo, 8);
        CHECK_EQ(mb_fmt_sparse_leaf(gmmu[i], 12).lo, 8);
    }
    CHECK_EQ(mb_fmt_invalid_leaf(V2, 16).lo, 0x20);
    CHECK_EQ(mb_fmt_invalid_leaf(V3, 16).lo, 0x18);
    CHECK_EQ(mb_fmt_invalid_leaf(TF, 12).lo, 0x10);
    CHECK_EQ(mb_fmt_invalid_leaf(G9, 16).lo, 0x10);
    CHECK_EQ(mb_fmt_invalid_leaf(TF, 21).lo, 0x1000);
    CHECK_EQ(mb_fmt_invalid_leaf(G9, 21).lo, 0x0040000000000000);
    CHECK_EQ(mb_fmt_invalid_leaf(TF, 30).lo, 0x0040000000000000);
    CHECK_EQ(mb_fmt_sparse_leaf(TF, 12).lo, 1ull << 51);
}

/* All 32 codes of a valid GMMU v3 entry: bits uncached, privileged, read-only, no atomics, no
 * counting. */
TEST(gmmu_v3_pcf_table)
{
    static const struct {
        uint32_t flags;
        uint64_t pcf;
    } rows[] = {
        {0, 0x00},
        {MB_LEAF_PRIVILEGED, 0x02},
        {MB_LEAF_READ_ONLY, 0x04},
        {MB_LEAF_PRIVILEGED | MB_LEAF_READ_ONLY, 0x06},
        {MB_LEAF_NO_ATOMICS, 0x08},
        {MB_LEAF_PRIVILEGED | MB_LEAF_NO_ATOMICS, 0x0a},
        {MB_LEAF_READ_ONLY | MB_LEAF_NO_ATOMICS, 0x0c},
        {MB_LEAF_PRIVILEGED | MB_LEAF_READ_ONLY | MB_LEAF_NO_ATOMICS, 0x0e},
    };

    for (unsigned i = 0; i < 8; i++) {
        for (unsigned uncached = 0; uncached < 2; uncached++) {
            for (unsigned acd = 0; acd < 2; acd++) {
                uint32_t flags = MB_LEAF_VALID | rows[i].flags |
                                 (uncached ? MB_LEAF_UNCACHED : 0u) |
                                 (acd ? MB_LEAF_NO_ACCESS_COUNT : 0u);
                uint64_t pcf = rows[i].pcf | uncached | acd << 4;

                CHECK_EQ(mb_fmt_leaf_template(V3, 21, flags, MB_AP_VID, 0), 1 | pcf << 3);
            }
        }
    }
}

TEST(peers)
{
    struct mb_leaf leaf = {
        .flags = MB_LEAF_VALID, .aperture = MB_AP_PEER, .peer = 5, .phys = 0x123400000};

    check_leaf(V2, 21, leaf, 0x0000000012340003 | 5ull << 33);
    check_leaf(V3, 21, leaf, 0x0000000123400003 | 5ull << 61);
}

TEST(leaf_or_directory)
{
    struct mb_pte leaf2m = {0x123400681, 0}, dir = {0x8000000a, 0}, sparse = {8, 0}, zero = {0, 0};

    /* GMMU: bit 0, where a leaf can be. */
    CHECK(mb_fmt_is_leaf(V3, 4, leaf2m));
    CHECK(mb_fmt_is_leaf(V3, 3, leaf2m));
    CHECK(!mb_fmt_is_leaf(V3, 2, leaf2m));
    CHECK(mb_fmt_is_leaf(V2, 3, leaf2m));
    CHECK(mb_fmt_is_leaf(V2, 2, leaf2m));
    CHECK(!mb_fmt_is_leaf(V2, 1, leaf2m));
    CHECK(!mb_fmt_is_leaf(V3, 4, sparse));
    CHECK(!mb_fmt_is_leaf(V3, 4, zero));
    CHECK(!mb_fmt_is_leaf(V3, 4, dir));
    /* GFX9: P, valid or not. */
    CHECK(mb_fmt_is_leaf(G9, 2, (struct mb_pte){0x02400001234004f1, 0}));
    CHECK(mb_fmt_is_leaf(G9, 2, (struct mb_pte){0x0040000000000000, 0}));
    CHECK(mb_fmt_is_leaf(G9, 1, (struct mb_pte){0x0040000000000000, 0}));
    CHECK(!mb_fmt_is_leaf(G9, 2, (struct mb_pte){0x0000000080000001, 0}));
    CHECK(mb_fmt_is_leaf(TF, 1, (struct mb_pte){0x0040000000000001, 0}));
    CHECK(!mb_fmt_is_leaf(TF, 1, (struct mb_pte){0x4800000080000001, 0}));
    /* Translate-further turns it round in the last directory: F marks the pointer. */
    CHECK(mb_fmt_is_leaf(TF, 2, (struct mb_pte){0x02000001234004f1, 0}));
    CHECK(mb_fmt_is_leaf(TF, 2, (struct mb_pte){0x1000, 0}));
    CHECK(!mb_fmt_is_leaf(TF, 2, (struct mb_pte){0x0100000080000001, 0}));
}

TEST(geometry_of_the_tables)
{
    struct mb_fmt_geometry g = mb_fmt_geometry(V3);

    CHECK_EQ(g.va_bits, 57);
    CHECK_EQ(g.levels, 5);
    CHECK_EQ(g.level[0].shift, 56);
    CHECK_EQ(g.level[4].shift, 21);
    CHECK_EQ(g.level[4].entry_bytes, 16);
    CHECK_EQ(g.leaf_64k.table_bytes, 256);
    g = mb_fmt_geometry(V2);
    CHECK_EQ(g.va_bits, 49);
    CHECK_EQ(g.levels, 4);
    CHECK_EQ(g.level[0].shift, 47);
    CHECK_EQ(g.level[0].bits, 2);
    CHECK_EQ(g.level[0].table_bytes, 4096);
    g = mb_fmt_geometry(TF);
    CHECK_EQ(g.va_bits, 48);
    CHECK_EQ(g.levels, 3);
    CHECK_EQ(g.leaf_64k.entry_bytes, 0);
    CHECK_EQ(mb_fmt_geometry((enum mb_fmt)9).levels, 0);
    /* An address taken apart by hand: bits 56, 55:47, 46:38, 37:29, 28:21. */
    g = mb_fmt_geometry(V3);
    uint64_t va = 1ull << 56 | 0x1a5ull << 47 | 0x0f3ull << 38 | 0x155ull << 29 | 0xc7ull << 21;
    static const uint32_t index[] = {1, 0x1a5, 0x0f3, 0x155, 0xc7};
    for (unsigned l = 0; l < 5; l++)
        CHECK_EQ(mb_fmt_index(g.level[l], va), index[l]);
}
