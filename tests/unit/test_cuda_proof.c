/* SPDX-License-Identifier: MIT */
/* The walk and the proof against tables recorded on an H200, and against every way to differ from
 * them. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/cuda/proof.h"
#include "test.h"

#define RECORDING "tests/data/cuda-tables-h200-580.159.04.txt"

enum { WORDS = 512, INSTS = 16 };

struct word {
    uint64_t at, value;
};

/* A recording, and the copy of it that a test spoils. */
struct recording {
    uint64_t va;
    struct mb_cuda_space space;
    struct mb_cuda_inst inst[INSTS];
    unsigned insts;
    uint64_t phys[MB_CUDA_LEAVES];
    struct word word[WORDS];
    unsigned words;
    uint64_t unreadable; /* page that cannot be read; UINT64_MAX: none */
    unsigned reads;
};

static void put(struct recording *r, uint64_t at, uint64_t value)
{
    for (unsigned i = 0; i < r->words; i++) {
        if (r->word[i].at == at) {
            r->word[i].value = value;
            return;
        }
    }
    CHECK(r->words < WORDS);
    r->word[r->words++] = (struct word){at, value};
}

static uint64_t get(const struct recording *r, uint64_t at)
{
    for (unsigned i = 0; i < r->words; i++) {
        if (r->word[i].at == at)
            return r->word[i].value;
    }
    return 0;
}

static enum mb_err read_word(void *user, uint64_t phys, uint64_t *value)
{
    struct recording *r = user;

    CHECK_EQ(phys % 8, 0);
    r->reads++;
    if (phys / 4096 == r->unreadable / 4096)
        return mb__fail(MB_ERR_PERMISSION, "page 0x%" PRIx64 " cannot be viewed", phys);
    *value = get(r, phys);
    return MB_OK;
}

static struct mb_cuda_reader reader(struct recording *r)
{
    return (struct mb_cuda_reader){read_word, r};
}

static void load(struct recording *r)
{
    const char *root = getenv("MB_SOURCE_DIR");
    char path[512], line[256];
    uint64_t a, b, c, d;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", root ? root : ".", RECORDING);
    memset(r, 0, sizeof(*r));
    r->unreadable = UINT64_MAX;
    r->space.fmt = MB_FMT_GMMU_V3;
    r->space.kind = 6;
    for (unsigned i = 0; i < MB_CUDA_LEAVES; i++)
        r->phys[i] = MB_CUDA_EMPTY;
    f = fopen(path, "r");
    if (!f)
        FAIL("%s cannot be opened", path);
    while (fgets(line, sizeof(line), f)) {
        if (sscanf(line, "va %" SCNx64, &a) == 1) {
            r->va = a;
        } else if (sscanf(line, "pdb %" SCNx64, &a) == 1) {
            r->space.pdb = a;
        } else if (sscanf(line, "memory %" SCNx64, &a) == 1) {
            r->space.memory_bytes = a;
        } else if (sscanf(line, "inst %" SCNx64 " %" SCNx64 " %" SCNx64, &a, &b, &c) == 3) {
            CHECK(r->insts < INSTS);
            r->inst[r->insts++] = (struct mb_cuda_inst){(uint32_t)a, (uint32_t)b, (uint32_t)c};
        } else if (sscanf(line, "frame %" SCNu64 " %" SCNx64, &a, &b) == 2) {
            CHECK(a < MB_CUDA_LEAVES);
            r->phys[a] = b;
        } else if (sscanf(line, "REC %" SCNx64 " %" SCNx64 " %" SCNx64 " %" SCNx64, &a, &b, &c,
                          &d) == 4) {
            put(r, a + b, c);
            put(r, a + b + 8, d ? d : get(r, a + b + 8));
        }
    }
    fclose(f);
    CHECK(r->words && r->insts && r->space.pdb);
}

static struct mb_cuda_walk walk_ok(struct recording *r)
{
    struct mb_cuda_walk walk;

    CHECK_OK(mb__cuda_walk(&r->space, reader(r), r->va, &walk));
    return walk;
}

static void refuses_walk(struct recording *r, enum mb_err want, const char *word)
{
    struct mb_cuda_walk walk, before;

    memset(&walk, 0x5a, sizeof(walk));
    before = walk;
    CHECK_EQ(mb__cuda_walk(&r->space, reader(r), r->va, &walk), want);
    CHECK_MEM_EQ(&walk, &before, sizeof(walk));
    if (!strstr(mb_error_detail(), word))
        FAIL("\"%s\" does not speak of \"%s\"", mb_error_detail(), word);
}

static void refuses_proof(struct recording *r, const char *word)
{
    struct mb_cuda_walk walk = walk_ok(r);

    CHECK_EQ(mb__cuda_prove_table(&r->space, reader(r), &walk, r->phys), MB_ERR_PROOF);
    if (!strstr(mb_error_detail(), word))
        FAIL("\"%s\" does not speak of \"%s\"", mb_error_detail(), word);
}

TEST(the_recorded_tables_are_proved)
{
    struct recording r;
    struct mb_cuda_walk walk;
    uint64_t pdb = 0, phys[2];

    load(&r);
    CHECK_OK(mb__cuda_agree_pdb(r.inst, r.insts, r.space.memory_bytes, &pdb));
    CHECK_EQ(pdb, r.space.pdb);
    walk = walk_ok(&r);
    CHECK_EQ(walk.levels, 5);
    CHECK_EQ(walk.table[1], 0x202000);
    CHECK_EQ(walk.table[4], 0x23d000);
    CHECK_EQ(walk.slot, 0);
    CHECK_OK(mb__cuda_prove_table(&r.space, reader(&r), &walk, r.phys));
    CHECK_OK(mb__cuda_read_frames(&r.space, reader(&r), &walk, 0, 2, phys));
    CHECK_EQ(phys[0], 0x21000000);
    CHECK_EQ(phys[1], 0x21200000);
    /* Empty slots hold no frame. */
    CHECK_EQ(mb__cuda_read_frames(&r.space, reader(&r), &walk, 0, 3, phys), MB_ERR_PROOF);
    CHECK_EQ(mb__cuda_read_frames(&r.space, reader(&r), &walk, 255, 2, phys), MB_ERR_INVALID);
}

TEST(our_template_is_the_drivers)
{
    struct recording r;

    load(&r);
    CHECK_EQ(mb__cuda_expect(&r.space, true, 0x21200000).lo, 0x21200681);
    CHECK_EQ(mb__cuda_expect(&r.space, true, 0x21200000).hi, 0);
    CHECK(mb__cuda_expect(&r.space, false, 0x21200000).lo != 0x21200681);
}

TEST(every_bit_of_a_proved_slot_matters)
{
    struct recording r;

    for (unsigned slot = 0; slot < MB_CUDA_LEAVES; slot += slot < 3 ? 1 : 63) {
        for (unsigned bit = 0; bit < 128; bit++) {
            uint64_t at = 0x23d000 + slot * 16u + bit / 64 * 8u;

            load(&r);
            put(&r, at, get(&r, at) ^ (uint64_t)1 << bit % 64);
            refuses_proof(&r, "must hold");
        }
    }
}

TEST(every_bit_of_a_directory_matters)
{
    static const uint64_t at[] = {0x201000, 0x202000, 0x203000, 0x2040c8};
    struct mb_cuda_walk walk;
    struct recording r;

    for (unsigned i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
        for (unsigned bit = 0; bit < 64; bit++) {
            enum mb_err err;

            load(&r);
            put(&r, at[i], get(&r, at[i]) ^ (uint64_t)1 << bit);
            err = mb__cuda_walk(&r.space, reader(&r), r.va, &walk);
            /* Bits 3 and 4 are policy (cached, ATS), not place: the proof that follows decides. */
            if (!err)
                err = mb__cuda_prove_table(&r.space, reader(&r), &walk, r.phys);
            if (bit == 3 || bit == 4)
                CHECK_OK(err);
            else
                CHECK_NE(err, MB_OK);
        }
    }
}

TEST(walks_stop_where_they_must)
{
    struct recording r;

    load(&r);
    put(&r, 0x203000, 0);
    refuses_walk(&r, MB_ERR_PROOF, "no table at level 3");
    load(&r);
    put(&r, 0x2040c8, 0x20000000 | 0x681); /* a 512 MiB leaf */
    refuses_walk(&r, MB_ERR_NOT_SUPPORTED, "larger than 2 MiB");
    load(&r);
    put(&r, 0x203000, 0x204000 | 0xc); /* aperture 2: system memory */
    refuses_walk(&r, MB_ERR_NOT_SUPPORTED, "system memory");
    load(&r);
    put(&r, 0x203000, (r.space.memory_bytes + 4096) | 0xa);
    refuses_walk(&r, MB_ERR_PROOF, "outside");
    load(&r);
    put(&r, 0x203000, 0x201000 | 0xa); /* back to the root */
    refuses_walk(&r, MB_ERR_PROOF, "again");
    load(&r);
    r.unreadable = 0x204000;
    refuses_walk(&r, MB_ERR_PERMISSION, "cannot be viewed");
    load(&r);
    r.va = (uint64_t)1 << 57;
    refuses_walk(&r, MB_ERR_INVALID, "57 bits");
}

TEST(a_proof_needs_a_frame_and_frames_that_are_ours)
{
    struct recording r;

    load(&r);
    put(&r, 0x23d000, 0);
    put(&r, 0x23d010, 0);
    r.phys[0] = r.phys[1] = MB_CUDA_EMPTY;
    refuses_proof(&r, "no frame of ours");
    load(&r);
    r.phys[0] += MB_FRAME_BYTES; /* the resource manager names another frame */
    refuses_proof(&r, "slot 0");
    load(&r);
    r.phys[2] = 0x21400000; /* we mapped a frame that is not there */
    refuses_proof(&r, "slot 2");
    load(&r);
    r.phys[1] = 0x21200000 + 4096;
    refuses_proof(&r, "no frame");
    load(&r);
    r.phys[1] = r.space.memory_bytes / MB_FRAME_BYTES * MB_FRAME_BYTES + MB_FRAME_BYTES;
    refuses_proof(&r, "no frame");
    load(&r);
    r.space.kind = 0; /* another memory kind than the driver's */
    refuses_proof(&r, "slot 0");
}

TEST(a_page_that_cannot_be_read_proves_nothing)
{
    struct mb_cuda_walk walk;
    struct recording r;

    load(&r);
    walk = walk_ok(&r);
    r.unreadable = 0x23d000;
    CHECK_EQ(mb__cuda_prove_table(&r.space, reader(&r), &walk, r.phys), MB_ERR_PERMISSION);
}

TEST(channels_must_agree)
{
    struct recording r;
    uint64_t pdb = 4711;

    load(&r);
    CHECK_EQ(mb__cuda_agree_pdb(r.inst, 0, r.space.memory_bytes, &pdb), MB_ERR_PROOF);
    for (unsigned i = 0; i < r.insts; i++) {
        struct mb_cuda_inst keep = r.inst[i];

        r.inst[i].word128 += 0x1000;
        CHECK_EQ(mb__cuda_agree_pdb(r.inst, r.insts, r.space.memory_bytes, &pdb), MB_ERR_PROOF);
        r.inst[i] = keep;
        r.inst[i].word129 = 1;
        CHECK_EQ(mb__cuda_agree_pdb(r.inst, r.insts, r.space.memory_bytes, &pdb), MB_ERR_PROOF);
        r.inst[i] = keep;
        r.inst[i].word128 |= 2;
        CHECK_EQ(mb__cuda_agree_pdb(r.inst, r.insts, r.space.memory_bytes, &pdb),
                 MB_ERR_NOT_SUPPORTED);
        r.inst[i] = keep;
    }
    for (unsigned i = 0; i < r.insts; i++)
        r.inst[i].word128 = r.inst[i].word129 = 0;
    CHECK_EQ(mb__cuda_agree_pdb(r.inst, r.insts, r.space.memory_bytes, &pdb), MB_ERR_PROOF);
    CHECK_EQ(pdb, 4711);
}
