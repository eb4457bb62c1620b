/* SPDX-License-Identifier: MIT */
/*
 * proof.h - is this the page table that we may write? Pure code over "read 8 bytes of a physical
 * page".
 *
 * Nothing here opens, maps or writes anything, so all of it is tested against recorded tables on a
 * machine without a GPU. Every refusal is MB_ERR_PROOF (MB_ERR_NOT_SUPPORTED for tables in system
 * memory and large leaves) with a text that names what was found and what was expected.
 *
 * UNITS  physical and virtual addresses in bytes.
 */
#ifndef MB_HW_CUDA_PROOF_H
#define MB_HW_CUDA_PROOF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/types.h"
#include "kernels/formats.h"

/* Reads the 8 bytes at `phys`, 8-byte aligned; the reader may look at one 4 KiB page at a time. */
struct mb_cuda_reader {
    enum mb_err (*read)(void *user, uint64_t phys, uint64_t *value);
    void *user;
};

/* Constant facts of a proof. */
struct mb_cuda_space {
    enum mb_fmt fmt;
    uint8_t kind;          /* of our own leaves */
    uint64_t memory_bytes; /* physical addresses of video memory are below this */
    uint64_t pdb;          /* physical address of the root table, from the instance blocks */
};

/* One channel's instance block: 32-bit words 128 and 129. */
struct mb_cuda_inst {
    uint32_t channel; /* handle, for messages */
    uint32_t word128, word129;
};

/*
 * The page-directory base that every channel names. All must agree; video memory only.
 * `memory_bytes` as in mb_cuda_space.
 */
enum mb_err mb__cuda_agree_pdb(const struct mb_cuda_inst *inst, unsigned count,
                               uint64_t memory_bytes, uint64_t *pdb);

enum { MB_CUDA_MAX_LEVELS = 6, MB_CUDA_LEAVES = 256 };

/* Tables passed on the way to a 2 MiB leaf; table[levels - 1] holds the leaf slots. */
struct mb_cuda_walk {
    unsigned levels;
    uint64_t table[MB_CUDA_MAX_LEVELS]; /* physical */
    uint32_t slot;                      /* index in the last table */
};

/* From the root to the table with the 2 MiB slots of `va`. Refuses a directory entry that is empty,
 * a leaf, in system memory, outside the memory, or that leads back to a table passed before. */
enum mb_err mb__cuda_walk(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                          uint64_t va, struct mb_cuda_walk *out);

/* The entry of our own frame at `phys`: what the driver must have written for it. */
struct mb_pte mb__cuda_expect(const struct mb_cuda_space *space, bool writable, uint64_t phys);

#define MB_CUDA_EMPTY UINT64_MAX

/*
 * Every one of the 256 slots of the leaf table `table` must be what it must be: `phys[i]` the
 * physical address of our frame in slot i, or MB_CUDA_EMPTY for the all-zero entry. At least one
 * slot must hold a frame (a page of zeros proves nothing), and no two tables of the walk may be the
 * same page.
 */
enum mb_err mb__cuda_prove_table(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                                 const struct mb_cuda_walk *walk,
                                 const uint64_t phys[MB_CUDA_LEAVES]);

/* Slots first .. first + count - 1 of `walk`'s leaf table hold ordinary writable leaves of ours;
 * their physical addresses go to phys[]. For homes, whose table may hold other mappings as well. */
enum mb_err mb__cuda_read_frames(const struct mb_cuda_space *space, struct mb_cuda_reader reader,
                                 const struct mb_cuda_walk *walk, uint32_t first, uint32_t count,
                                 uint64_t *phys);

#endif
