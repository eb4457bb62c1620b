/* SPDX-License-Identifier: MIT */
/* Properties of the entry formats that hold for every field value. */
#include <stdbool.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/formats.h"
#include "kernels/pte_pop.h"
#include "test.h"

static const enum mb_fmt formats[] = {MB_FMT_GMMU_V2, MB_FMT_GMMU_V3, MB_FMT_GFX9, MB_FMT_GFX9_TF};
enum { FORMATS = 4, SHIFTS = 4, ALL_FLAGS = 1 << 11 };

static unsigned shift_of(enum mb_fmt fmt, unsigned i)
{
    static const unsigned shifts[] = {12, 16, 21};

    return i < 3 ? shifts[i] : mb_fmt_is_gmmu(fmt) ? 29 : 30;
}

/* Every bit that a valid leaf may have set, typed from the tables of doc/formats.md, not from code.
 */
static uint64_t leaf_bits(enum mb_fmt fmt, unsigned aperture)
{
    switch (fmt) {
    case MB_FMT_GMMU_V2:
        /* kind 63:56; address 53:8 or 32:8, peer 35:33; 7:5, 3:0 (bit 4, encrypted, is never set)
         */
        return 0xff000000000000efu | (aperture >= 2   ? 0x003fffffffffff00u
                                      : aperture == 1 ? 0x0000000fffffff00u
                                                      : 0x00000001ffffff00u);
    case MB_FMT_GMMU_V3:
        /* peer 63:61, address 51:12, kind 11:8, PCF 7:3, aperture 2:1, valid 0 */
        return 0x000fffffffffffffu | (aperture == 1 ? 0xe000000000000000u : 0);
    case MB_FMT_GFX9:
    case MB_FMT_GFX9_TF:
        /* MTYPE 58:57, P 54, address 47:12, FRAG 11:7, W R X 6:4, S 2, system 1, valid 0 */
        return 0x0640fffffffffff7u;
    }
    return 0;
}

static bool same_leaf(const struct mb_leaf *a, const struct mb_leaf *b)
{
    return a->flags == b->flags && a->aperture == b->aperture && a->kind == b->kind &&
           a->peer == b->peer && a->phys == b->phys;
}

/* Uniform over what the format can say; VALID always. */
static struct mb_leaf random_leaf(struct mb_rng *rng, enum mb_fmt fmt, unsigned shift)
{
    struct mb_leaf leaf = {0};
    bool gmmu = mb_fmt_is_gmmu(fmt);

    leaf.flags = (uint32_t)mb__rng_next(rng) & mb_fmt_leaf_flags(fmt);
    leaf.flags |= MB_LEAF_VALID;
    do
        leaf.aperture = (uint8_t)mb__rng_below(rng, 4);
    while (!gmmu && leaf.aperture == MB_AP_PEER);
    leaf.kind = (uint8_t)mb__rng_below(rng, fmt == MB_FMT_GMMU_V2   ? 256
                                            : fmt == MB_FMT_GMMU_V3 ? 16
                                                                    : 4);
    if (leaf.aperture == MB_AP_PEER)
        leaf.peer = (uint8_t)mb__rng_below(rng, 8);
    if (!gmmu && leaf.aperture == MB_AP_SYS_COHERENT)
        leaf.flags |= MB_LEAF_SNOOPED;
    if (!gmmu && leaf.aperture == MB_AP_SYS_NONCOHERENT)
        leaf.flags &= ~(uint32_t)MB_LEAF_SNOOPED;
    leaf.phys = mb__rng_below(rng, mb_fmt_phys_limit(fmt, leaf.aperture));
    leaf.phys >>= mb__rng_below(rng, 30);
    leaf.phys &= ~(mb_fmt_leaf_align(fmt, shift) - 1);
    return leaf;
}

TEST(decode_undoes_encode)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned i = 0; i < SHIFTS * 20000; i++) {
            unsigned shift = shift_of(formats[f], i % SHIFTS);
            struct mb_leaf leaf = random_leaf(&rng, formats[f], shift), back;
            struct mb_pte pte = mb_fmt_encode_leaf(formats[f], shift, &leaf);
            uint64_t tmpl =
                mb_fmt_leaf_template(formats[f], shift, leaf.flags, leaf.aperture, leaf.kind);

            CHECK(mb_fmt_decode_leaf(formats[f], shift, pte, &back));
            CHECK(same_leaf(&leaf, &back));
            CHECK(mb_fmt_leaf_legal(formats[f], shift, &leaf));
            CHECK_EQ(pte.hi, 0);
            CHECK_EQ(pte.lo & ~leaf_bits(formats[f], leaf.aperture), 0);
            if (leaf.phys >> 12 <= UINT32_MAX && leaf.aperture != MB_AP_PEER)
                CHECK_EQ(mb_fmt_leaf_at(formats[f], shift, tmpl, (uint32_t)(leaf.phys >> 12)).lo,
                         pte.lo);
        }
    }
}

/* Garbage in any field: nothing spills into another field. */
TEST(no_bit_outside_the_fields)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + 1);
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned i = 0; i < SHIFTS * 20000; i++) {
            unsigned shift = shift_of(formats[f], i % SHIFTS);
            struct mb_leaf leaf = {.flags = (uint32_t)mb__rng_next(&rng) | MB_LEAF_VALID,
                                   .aperture = (uint8_t)mb__rng_below(&rng, 4),
                                   .kind = (uint8_t)mb__rng_next(&rng),
                                   .peer = (uint8_t)mb__rng_next(&rng),
                                   .phys = mb__rng_next(&rng)};
            struct mb_pte pte = mb_fmt_encode_leaf(formats[f], shift, &leaf);
            struct mb_leaf back;

            CHECK_EQ(pte.hi, 0);
            CHECK_EQ(pte.lo & ~leaf_bits(formats[f], leaf.aperture), 0);
            /* What came out is an entry of the format, only not of that leaf. */
            CHECK(mb_fmt_decode_leaf(formats[f], shift, pte, &back));
            CHECK_EQ(mb_fmt_encode_leaf(formats[f], shift, &back).lo, pte.lo);
        }
    }
}

/* Any 64 bits: either refused, or understood so well that encoding gives them again. */
TEST(encode_undoes_decode)
{
    struct mb_rng rng;
    unsigned taken[FORMATS] = {0};

    mb__rng_seed(&rng, mb_test_seed() + 2);
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned i = 0; i < SHIFTS * 20000; i++) {
            unsigned shift = shift_of(formats[f], i % SHIFTS);
            struct mb_leaf leaf = random_leaf(&rng, formats[f], shift);
            struct mb_pte pte = mb_fmt_encode_leaf(formats[f], shift, &leaf);

            for (uint64_t n = mb__rng_below(&rng, 4); n; n--)
                pte.lo ^= MB_FMT_BIT(mb__rng_below(&rng, 64));
            if (!mb_fmt_decode_leaf(formats[f], shift, pte, &leaf))
                continue;
            taken[f]++;
            if (!mb_fmt_is_gmmu(formats[f]) && shift == 12 && pte.lo & 1)
                pte.lo &= ~MB_GFX9_FRAG;
            if (pte.lo)
                CHECK_EQ(mb_fmt_encode_leaf(formats[f], shift, &leaf).lo, pte.lo);
        }
        CHECK(taken[f] > 1000);
    }
}

static unsigned all_flags_of(enum mb_fmt fmt, unsigned shift)
{
    unsigned legal = 0;

    for (uint32_t flags = 0; flags < ALL_FLAGS; flags++) {
        struct mb_leaf leaf = {.flags = flags}, back;
        struct mb_pte pte = mb_fmt_encode_leaf(fmt, shift, &leaf);

        CHECK(mb_fmt_decode_leaf(fmt, shift, pte, &back));
        if (flags & MB_LEAF_VALID)
            CHECK_EQ(back.flags, flags & mb_fmt_leaf_flags(fmt));
        else
            CHECK_EQ(back.flags & MB_LEAF_VALID, 0);
        legal += (unsigned)mb_fmt_leaf_legal(fmt, shift, &leaf);
    }
    return legal;
}

/* All 2^11 flag words: as many are legal as there are combinations of the format's own flags, plus
 * empty, sparse and, for 64 KiB on GMMU, stop. */
TEST(every_combination_of_flags)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned i = 0; i < SHIFTS; i++) {
            unsigned shift = shift_of(formats[f], i);
            unsigned own = (unsigned)__builtin_popcount(mb_fmt_leaf_flags(formats[f])) - 1;
            unsigned extra = mb_fmt_is_gmmu(formats[f]) && shift == 16 ? 3 : 2;

            CHECK_EQ(all_flags_of(formats[f], shift), (1u << own) + extra);
        }
    }
}

/* All kinds, apertures, peers, by brute force. */
TEST(every_kind_aperture_and_peer)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        unsigned legal = 0, kinds = formats[f] == MB_FMT_GMMU_V2   ? 256
                                    : formats[f] == MB_FMT_GMMU_V3 ? 16
                                                                   : 4;

        for (unsigned n = 0; n < 256 * 4 * 16; n++) {
            struct mb_leaf leaf = {.flags = MB_LEAF_VALID,
                                   .kind = (uint8_t)n,
                                   .aperture = (uint8_t)(n >> 8 & 3),
                                   .peer = (uint8_t)(n >> 10)};

            legal += (unsigned)mb_fmt_leaf_legal(formats[f], 21, &leaf);
        }
        /* NVIDIA: three apertures with peer 0, and peer with 8. AMD: no peer aperture; coherent
         * memory would need the snoop flag, which is not set here. */
        CHECK_EQ(legal, kinds * (mb_fmt_is_gmmu(formats[f]) ? 3 + 8 : 2));
    }
}

/* Each bit of an address goes through alone; the first one past the field does not. */
TEST(every_address_bit)
{
    for (unsigned f = 0; f < FORMATS; f++) {
        for (unsigned i = 0; i < SHIFTS * 4; i++) {
            unsigned shift = shift_of(formats[f], i / 4);
            uint8_t ap = (uint8_t)(i % 4);
            uint64_t align = mb_fmt_leaf_align(formats[f], shift);
            uint64_t limit = mb_fmt_phys_limit(formats[f], ap);
            uint32_t flags = MB_LEAF_VALID;

            if (!mb_fmt_is_gmmu(formats[f]) && ap == MB_AP_PEER)
                continue;
            if (!mb_fmt_is_gmmu(formats[f]) && ap == MB_AP_SYS_COHERENT)
                flags |= MB_LEAF_SNOOPED;
            for (unsigned bit = 0; bit < 64; bit++) {
                struct mb_leaf leaf = {.flags = flags, .aperture = ap, .phys = 1ull << bit};
                bool fits = leaf.phys >= align && leaf.phys < limit;

                CHECK_EQ(mb_fmt_leaf_legal(formats[f], shift, &leaf), fits);
            }
        }
    }
    CHECK_EQ(mb_fmt_phys_limit(MB_FMT_GMMU_V2, MB_AP_VID), 1ull << 37);
    CHECK_EQ(mb_fmt_phys_limit(MB_FMT_GMMU_V2, MB_AP_SYS_COHERENT), 1ull << 58);
    CHECK_EQ(mb_fmt_phys_limit(MB_FMT_GMMU_V3, MB_AP_VID), 1ull << 52);
    CHECK_EQ(mb_fmt_phys_limit(MB_FMT_GFX9, MB_AP_VID), 1ull << 48);
}

static bool same_dir(const struct mb_dir *a, const struct mb_dir *b)
{
    return a->valid == b->valid && a->valid_big == b->valid_big && a->aperture == b->aperture &&
           a->flags == b->flags && a->table_phys == b->table_phys &&
           a->table_phys_big == b->table_phys_big;
}

static struct mb_dir random_dir(struct mb_rng *rng, enum mb_fmt fmt, unsigned level)
{
    static const uint8_t apertures[] = {MB_AP_VID, MB_AP_SYS_COHERENT, MB_AP_SYS_NONCOHERENT};
    struct mb_dir dir = {.valid = mb__rng_below(rng, 4) != 0};
    uint64_t limit;

    if (mb_fmt_is_dual(fmt, level))
        dir.valid_big = mb__rng_next(rng) & 1;
    if (!dir.valid && !dir.valid_big) {
        dir.flags = mb_fmt_is_gmmu(fmt) && mb__rng_next(rng) & 1 ? MB_DIR_SPARSE : 0;
        return dir;
    }
    dir.aperture = apertures[mb__rng_below(rng, 3)];
    if (mb_fmt_is_gmmu(fmt))
        dir.flags = (uint8_t)mb__rng_below(rng, 4); /* CACHED, NO_ATS */
    if (fmt == MB_FMT_GMMU_V2 && level == 3)
        dir.flags &= MB_DIR_CACHED;
    limit = mb_fmt_phys_limit(fmt, dir.aperture);
    if (dir.valid)
        dir.table_phys = mb__rng_below(rng, limit) & ~(mb_fmt_is_gmmu(fmt) ? 4095ull : 63ull);
    if (dir.valid_big)
        dir.table_phys_big = mb__rng_below(rng, limit) & ~255ull;
    return dir;
}

TEST(directories_both_ways)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + 3);
    for (unsigned f = 0; f < FORMATS; f++) {
        unsigned levels = mb_fmt_geometry(formats[f]).levels;

        CHECK_EQ(mb_fmt_levels(formats[f]), levels);
        for (unsigned i = 0; i < levels * 10000; i++) {
            unsigned level = i % levels;
            struct mb_dir dir = random_dir(&rng, formats[f], level), back;
            struct mb_pte pte = mb_fmt_encode_dir(formats[f], level, &dir);

            if (formats[f] == MB_FMT_GFX9_TF && level == 2 && !dir.valid)
                CHECK(mb_fmt_is_leaf(formats[f], level, pte));
            else
                CHECK(!mb_fmt_is_leaf(formats[f], level, pte));
            CHECK(mb_fmt_decode_dir(formats[f], level, pte, &back));
            CHECK(same_dir(&dir, &back));
            /* One bit of noise: refused, or understood exactly. */
            if (mb_fmt_is_dual(formats[f], level) && mb__rng_next(&rng) & 1)
                pte.hi ^= MB_FMT_BIT(mb__rng_below(&rng, 64));
            else
                pte.lo ^= MB_FMT_BIT(mb__rng_below(&rng, 64));
            if (mb_fmt_decode_dir(formats[f], level, pte, &back)) {
                struct mb_pte again = mb_fmt_encode_dir(formats[f], level, &back);

                CHECK_EQ(again.lo, pte.lo);
                CHECK_EQ(again.hi, pte.hi);
            }
        }
    }
}

/* A valid leaf of a directory level is never read as a table, and no table as a leaf. */
TEST(leaves_and_tables_are_told_apart)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + 4);
    for (unsigned f = 0; f < FORMATS; f++) {
        struct mb_fmt_geometry g = mb_fmt_geometry(formats[f]);

        for (unsigned i = 0; i < 20000; i++) {
            unsigned level = g.levels - 1 - i % 2;
            struct mb_leaf leaf = random_leaf(&rng, formats[f], g.level[level].shift);
            struct mb_pte pte = mb_fmt_encode_leaf(formats[f], g.level[level].shift, &leaf);
            struct mb_dir dir;

            CHECK(mb_fmt_has_leaf(formats[f], g.level[level].shift));
            CHECK(mb_fmt_is_leaf(formats[f], level, pte));
            CHECK(!mb_fmt_decode_dir(formats[f], level, pte, &dir));
        }
    }
}

TEST(levels_tile_the_address)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + 5);
    for (unsigned f = 0; f < FORMATS; f++) {
        struct mb_fmt_geometry g = mb_fmt_geometry(formats[f]);
        unsigned top = g.va_bits;

        for (unsigned l = 0; l < g.levels; l++) {
            CHECK_EQ(g.level[l].shift + g.level[l].bits, top);
            CHECK(g.level[l].entry_bytes << g.level[l].bits <= g.level[l].table_bytes);
            top = g.level[l].shift;
        }
        CHECK_EQ(top, 21);
        CHECK_EQ(g.leaf_4k.shift, 12);
        CHECK_EQ(g.leaf_4k.shift + g.leaf_4k.bits, 21);
        CHECK_EQ(g.leaf_4k.entry_bytes, mb_fmt_slot_bytes(formats[f], 12));
        if (g.leaf_64k.entry_bytes)
            CHECK_EQ(g.leaf_64k.shift + g.leaf_64k.bits, 21);
        CHECK_EQ(g.level[g.levels - 1].entry_bytes, mb_fmt_slot_bytes(formats[f], 21));
        for (int i = 0; i < 1000; i++) {
            uint64_t va = mb__rng_next(&rng) & ((1ull << g.va_bits) - 1), sum = va & 0xfff;

            for (unsigned l = 0; l < g.levels; l++)
                sum += (uint64_t)mb_fmt_index(g.level[l], va) << g.level[l].shift;
            sum += (uint64_t)mb_fmt_index(g.leaf_4k, va) << 12;
            CHECK_EQ(sum, va);
        }
    }
}

/* pte_pop writes the slots it is told to, whole, and no other. */
TEST(pte_pop_writes_its_slots)
{
    enum { SLOTS = 64 };
    _Alignas(16) uint64_t table[2 * SLOTS];
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed() + 6);
    for (unsigned n = 0; n < FORMATS * SHIFTS * 50; n++) {
        enum mb_fmt fmt = formats[n % FORMATS];
        unsigned shift = shift_of(fmt, n / FORMATS % SHIFTS);
        unsigned words = mb_fmt_slot_bytes(fmt, shift) / 8;
        uint64_t first = mb__rng_below(&rng, SLOTS), count = mb__rng_below(&rng, SLOTS - first + 1);
        uint64_t tmpl = mb_fmt_leaf_template(fmt, shift, mb_fmt_user_flags(fmt, 1), MB_AP_VID, 1);
        uint32_t pfns[SLOTS];

        memset(table, 0xa5, sizeof(table));
        for (uint64_t i = 0; i < count; i++) {
            pfns[i] = (uint32_t)(mb__rng_below(&rng, 64) << (shift - 12));
            mb_pte_pop(fmt, shift, table, first, i, pfns, tmpl);
        }
        for (uint64_t i = 0; i < SLOTS * words; i++) {
            uint64_t slot = i / words, want = 0xa5a5a5a5a5a5a5a5u;
            struct mb_leaf leaf = {.flags = mb_fmt_user_flags(fmt, 1), .kind = 1};

            if (slot >= first && slot < first + count) {
                leaf.phys = (uint64_t)pfns[slot - first] << 12;
                want = i % words ? 0 : mb_fmt_encode_leaf(fmt, shift, &leaf).lo;
            }
            CHECK_EQ(table[i], want);
        }
    }
}
