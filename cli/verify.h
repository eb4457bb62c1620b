/* SPDX-License-Identifier: MIT */
/*
 * verify.h - writes known words into blocks and reads them back through the device's own
 * translation.
 *
 * EDGES  Of every block: its first and last 64 bytes and, in every frame between, one word at a
 *        random place. FULL: every word. Written after the allocation and after each use on another
 *        stream; read before each such use, before the free, at random moments between, and at the
 *        block's two edges whenever a neighbour in the address space has been written.
 * WORDS  are 8 bytes; a block's last 1 to 7 bytes that fill no word are not written, and a block
 *        below 8 bytes is not checked at all (it is counted).
 * ORDER  All of a block's writes and reads are enqueued on the stream that owns it at that moment,
 *        so a difference is never the fault of the check.
 */
#ifndef MB_CLI_VERIFY_H
#define MB_CLI_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "address_tree.h"
#include "moonbright.h"

enum verify_mode {
    VERIFY_OFF,
    VERIFY_EDGES,
    VERIFY_FULL,
};

/* A block under check. The caller keeps it as long as the block lives. */
struct verify_block {
    uint64_t va;       /* device address */
    uint64_t bytes;    /* as requested */
    uint64_t seed;     /* of its present words; changes with every write */
    mb_stream present; /* the stream on which it may be used now */
};

/* Owner: the replay, on one thread. */
struct verifier {
    mb_device dev;
    enum verify_mode mode;
    uint64_t page_bytes;    /* of a frame; a power of two */
    uint64_t seed;          /* of all words */
    uint64_t writes, reads; /* ranges written and read so far */
    uint64_t bytes_written, bytes_read;
    uint64_t blocks_unchecked; /* too small for a word */
    struct address_tree tree;  /* live blocks by address */
};

void verifier_init(struct verifier *v, mb_device dev, enum verify_mode mode, uint64_t seed);
void verifier_fini(struct verifier *v);
/* A new block under the number `slot`: enters the tree and is written. */
enum mb_err verifier_add(struct verifier *v, uint32_t slot, struct verify_block *block);
/* Reads the two edges that touch the block from outside. `blocks` holds the slots' blocks. */
enum mb_err verifier_read_neighbours(struct verifier *v, uint32_t slot,
                                     const struct verify_block *blocks);
/* Writes all of the block's words anew. */
enum mb_err verifier_write(struct verifier *v, struct verify_block *block);
/* Reads all of the block's words. */
enum mb_err verifier_read(struct verifier *v, const struct verify_block *block);
/* Reads the edges and up to two of the words between, chosen by `random`. */
enum mb_err verifier_sample(struct verifier *v, const struct verify_block *block, uint64_t random);
/* The block is about to be freed: it leaves the tree. */
void verifier_remove(struct verifier *v, uint32_t slot);

#endif
