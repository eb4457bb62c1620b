/* SPDX-License-Identifier: MIT */
/*
 * model.h - random programs run on the allocator and, in parallel, on a naive one.
 *
 * The naive allocator never reuses an address: a block is a number, a size, a stream and a pattern
 * that must be found in it until it is freed. A program is a list of operations that stays
 * meaningful when any of them is left out, so a failing one can be shrunk.
 */
#ifndef MB_TESTS_MODEL_MODEL_H
#define MB_TESTS_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum model_op_kind {
    MODEL_MALLOC,      /* slot, stream, bytes; frees the slot's block first */
    MODEL_MALLOC_SYNC, /* slot, bytes */
    MODEL_FREE,        /* slot, stream: after an event of the block's stream if it is another */
    MODEL_FREE_SYNC,   /* slot: after a synchronize */
    MODEL_REALLOC,     /* slot, bytes: after a synchronize */
    MODEL_USE,         /* slot, stream: verified there, told by record_stream */
    MODEL_VERIFY,      /* slot */
    MODEL_ORDER,       /* stream waits for an event of stream `other` */
    MODEL_TRIM,        /* keep bytes */
    MODEL_SYNC,        /* the device */
    MODEL_STREAM,      /* stream is destroyed and another takes its place */
    MODEL_CHECK,       /* mb_check */
    MODEL_KINDS
};

struct model_op {
    enum model_op_kind kind;
    unsigned slot, stream, other;
    uint64_t bytes;
};

enum {
    MODEL_SLOTS = 48,
    MODEL_STREAMS = 4,
    MODEL_TEXT = 1024,
};

/* Fills `ops` with a random program. Sizes are chosen so that memory runs short at times. */
void model_generate(uint64_t seed, struct model_op *ops, size_t count, uint64_t capacity);
/* Runs a program on a new device. false: `text` says what went wrong. */
bool model_run(const char *config, uint64_t capacity, const struct model_op *ops, size_t count,
               char *text);
void model_print(const struct model_op *ops, size_t count);

/* Removes operations as long as `fails` still holds; returns how many are left at the front of ops.
 * At most `budget` runs. */
typedef bool model_fails(void *context, const struct model_op *ops, size_t count);
size_t model_shrink(struct model_op *ops, size_t count, model_fails *fails, void *context,
                    unsigned budget);

#endif
