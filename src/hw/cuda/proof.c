/* SPDX-License-Identifier: MIT */
/*
 * proof.c - the walk through a page tree and the comparison with what must be there.
 *
 * How       A proof compares whole entries, never fields: the entry that mb_fmt_encode_leaf() makes
 *           for our frame either is in the slot or it is not. A bit that this code does not know is
 *           a mismatch.
 * Locking   none; no state.
 */
#include "hw/cuda/proof.h"

#include <inttypes.h>

#include "base/err.h"

enum {
    PAGE = 4096,
    TARGET_MASK = 3, /* word 128, bits 1:0: 0 is video memory */
};

enum mb_err mb__cuda_agree_pdb(const struct mb_cuda_inst *inst, unsigned count,
                               uint64_t memory_bytes, uint64_t *pdb)
{
    uint64_t agreed = 0;

    if (!count)
        return mb__fail(MB_ERR_PROOF, "no channel of this process was found, so nothing names its "
                                      "page directory");
    for (unsigned i = 0; i < count; i++) {
        uint64_t base = (uint64_t)inst[i].word129 << 32 | (inst[i].word128 & ~(uint32_t)(PAGE - 1));

        if (inst[i].word128 & TARGET_MASK)
            return mb__fail(
                MB_ERR_NOT_SUPPORTED,
                "channel 0x%x keeps its page directory outside video memory (target %u)",
                inst[i].channel, inst[i].word128 & TARGET_MASK);
        if (!base || base >= memory_bytes)
            return mb__fail(MB_ERR_PROOF,
                            "channel 0x%x names page directory 0x%" PRIx64
                            ", outside the 0x%" PRIx64 " bytes of video memory",
                            inst[i].channel, base, memory_bytes);
        if (i && base != agreed)
            return mb__fail(MB_ERR_PROOF,
                            "channels disagree about the page directory: 0x%x says 0x%" PRIx64
                            ", 0x%x says 0x%" PRIx64,
                            inst[0].channel, agreed, inst[i].channel, base);
        agreed = base;
    }
    *pdb = agreed;
    return MB_OK;
}

static enum mb_err read_entry(struct mb_cuda_reader reader, struct mb_fmt_level level,
                              uint64_t table, uint32_t index, struct mb_pte *out)
{
    uint64_t at = table + (uint64_t)index * level.entry_bytes;
    struct mb_pte pte = {0, 0};
    enum mb_err err = reader.read(reader.user, at, &pte.lo);

    if (!err && level.entry_bytes == 16)
        err = reader.read(reader.user, at + 8, &pte.hi);
    if (!err)
        *out = pte;
    return err;
}

/* The table that directory entry `pte` names, if a walk of ours may follow it. */
static enum mb_err follow(const struct mb_cuda_space *space, unsigned level, struct mb_pte pte,
                          uint64_t va, uint64_t *next)
{
    struct mb_dir dir;

    if (mb_fmt_is_leaf(space->fmt, level, pte))
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "va 0x%" PRIx64 " is mapped by a leaf of level %u (0x%016" PRIx64
                        "), larger than 2 MiB",
                        va, level, pte.lo);
    if (!mb_fmt_decode_dir(space->fmt, level, pte, &dir))
        return mb__fail(MB_ERR_PROOF,
                        "directory entry 0x%016" PRIx64 " of level %u for va 0x%" PRIx64
                        " is not of the expected format",
                        pte.lo, level, va);
    if (!dir.valid)
        return mb__fail(MB_ERR_PROOF, "no table at level %u for va 0x%" PRIx64, level + 1, va);
    if (dir.aperture != MB_AP_VID)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "the table of level %u for va 0x%" PRIx64 " is in system memory", level + 1,
                        va);
    if (dir.table_phys % PAGE || !dir.table_phys || dir.table_phys >= space->memory_bytes)
        return mb__fail(MB_ERR_PROOF,
                        "the table of level %u for va 0x%" PRIx64 " would lie at 0x%" PRIx64
                        ", outside the 0x%" PRIx64 " bytes of video memory",
                        level + 1, va, dir.table_phys, space->memory_bytes);
    *next = dir.table_phys;
    return MB_OK;
}

enum mb_err mb__cuda_walk(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                          uint64_t va, struct mb_cuda_walk *out)
{
    struct mb_fmt_geometry g = mb_fmt_geometry(space->fmt);
    struct mb_cuda_walk walk = {.levels = g.levels};

    if (!g.levels || g.levels > MB_CUDA_MAX_LEVELS)
        return mb__fail(MB_ERR_INTERNAL, "format %d has %u levels", space->fmt, g.levels);
    if (g.va_bits < 64 && va >> g.va_bits)
        return mb__fail(MB_ERR_INVALID, "va 0x%" PRIx64 " has more than %u bits", va, g.va_bits);
    walk.table[0] = space->pdb;
    for (unsigned level = 0; level + 1 < g.levels; level++) {
        struct mb_pte pte;
        enum mb_err err = read_entry(reader, g.level[level], walk.table[level],
                                     mb_fmt_index(g.level[level], va), &pte);

        if (!err)
            err = follow(space, level, pte, va, &walk.table[level + 1]);
        if (err)
            return err;
        for (unsigned i = 0; i <= level; i++) {
            if (walk.table[i] == walk.table[level + 1])
                return mb__fail(MB_ERR_PROOF,
                                "the table of level %u for va 0x%" PRIx64
                                " is the table of level %u again (0x%" PRIx64 ")",
                                level + 1, va, i, walk.table[i]);
        }
    }
    walk.slot = mb_fmt_index(g.level[g.levels - 1], va);
    *out = walk;
    return MB_OK;
}

struct mb_pte mb__cuda_expect(const struct mb_cuda_space *space, bool writable, uint64_t phys)
{
    struct mb_leaf leaf = {.flags = mb_fmt_user_flags(space->fmt, writable),
                           .aperture = MB_AP_VID,
                           .kind = space->kind,
                           .phys = phys};

    return mb_fmt_encode_leaf(space->fmt, MB_FRAME_SHIFT, &leaf);
}

static enum mb_err prove_slot(const struct mb_cuda_space *space, struct mb_pte pte, uint32_t slot,
                              uint64_t phys)
{
    struct mb_pte want = {0, 0};

    if (phys != MB_CUDA_EMPTY) {
        if (phys % MB_FRAME_BYTES || phys >= space->memory_bytes)
            return mb__fail(MB_ERR_PROOF, "our frame 0x%" PRIx64 " of slot %u is no frame", phys,
                            slot);
        want = mb__cuda_expect(space, true, phys);
    }
    if (pte.lo != want.lo || pte.hi != want.hi)
        return mb__fail(MB_ERR_PROOF,
                        "slot %u holds 0x%016" PRIx64 ":%016" PRIx64 ", but must hold 0x%016" PRIx64
                        ":%016" PRIx64,
                        slot, pte.hi, pte.lo, want.hi, want.lo);
    return MB_OK;
}

enum mb_err mb__cuda_prove_table(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                                 const struct mb_cuda_walk *walk,
                                 const uint64_t phys[MB_CUDA_LEAVES])
{
    struct mb_fmt_geometry g = mb_fmt_geometry(space->fmt);
    struct mb_fmt_level last = g.level[g.levels - 1];
    unsigned frames = 0;

    if (walk->levels != g.levels || last.entry_bytes != 16 || last.bits != 8)
        return mb__fail(MB_ERR_INTERNAL, "the walk is of another format");
    for (uint32_t slot = 0; slot < MB_CUDA_LEAVES; slot++) {
        struct mb_pte pte;
        enum mb_err err = read_entry(reader, last, walk->table[g.levels - 1], slot, &pte);

        if (!err)
            err = prove_slot(space, pte, slot, phys[slot]);
        if (err)
            return mb__fail_in(err, "leaf table 0x%" PRIx64, walk->table[g.levels - 1]);
        frames += phys[slot] != MB_CUDA_EMPTY;
    }
    if (!frames)
        return mb__fail(MB_ERR_PROOF, "leaf table 0x%" PRIx64 " holds no frame of ours",
                        walk->table[g.levels - 1]);
    return MB_OK;
}

enum mb_err mb__cuda_read_frames(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                                 const struct mb_cuda_walk *walk, uint32_t first, uint32_t count,
                                 uint64_t *phys)
{
    struct mb_fmt_geometry g = mb_fmt_geometry(space->fmt);
    struct mb_fmt_level last = g.level[g.levels - 1];

    if (first > MB_CUDA_LEAVES || count > MB_CUDA_LEAVES - first)
        return mb__fail(MB_ERR_INVALID, "slots %u..%u of 256", first, first + count);
    for (uint32_t i = 0; i < count; i++) {
        struct mb_pte pte;
        struct mb_leaf leaf;
        enum mb_err err = read_entry(reader, last, walk->table[g.levels - 1], first + i, &pte);

        if (err)
            return err;
        if (!mb_fmt_decode_leaf(space->fmt, MB_FRAME_SHIFT, pte, &leaf))
            leaf.phys = 0;
        /* Decoding gives the address only; the whole entry must be what we would write. */
        err = prove_slot(space, pte, first + i, leaf.phys);
        if (err)
            return mb__fail_in(err, "leaf table 0x%" PRIx64, walk->table[g.levels - 1]);
        phys[i] = leaf.phys;
    }
    return MB_OK;
}
