/* SPDX-License-Identifier: MIT */
/*
 * internal.h - what the models share: blocks, ordered sets of them, the driver's account, options.
 *
 * Only files of cli/models include it. Everything belongs to one model and so to one thread; there
 * are no locks.
 */
#ifndef MB_CLI_MODELS_INTERNAL_H
#define MB_CLI_MODELS_INTERNAL_H

#include "model.h"

/* Returns from the calling function, with the status, unless it is MODEL_OK. */
#define MODEL_TRY(call)                                                                            \
    do {                                                                                           \
        enum model_status try_status_ = (call);                                                    \
        if (try_status_)                                                                           \
            return try_status_;                                                                    \
    } while (0)

#define MODEL_MIB ((uint64_t)1 << 20)

/* ------------------------------------------------------------------ blocks */

struct model_set;
struct model_segment;

/*
 * A range of a segment: live, free, or address space without memory. Owner: the model's arena.
 * Blocks of one segment are neighbours through prev and next and cover it without a gap: address +
 * bytes == next->address.
 */
struct model_block {
    struct model_set *set;            /* the set it is in, or NULL */
    struct model_block *left, *right; /* of the set's tree; right: next of the arena's free list */
    struct model_block *prev, *next;  /* neighbours by address, or NULL */
    struct model_block *queued;       /* next of a policy's queue */
    struct model_segment *segment;    /* policies that need more of a segment than its blocks */
    uint64_t address;
    uint64_t bytes;
    uint64_t requested_bytes; /* live: as asked */
    uint64_t stamp;           /* a policy's own time of the last change */
    uint32_t stream;          /* whose request or free the block belongs to */
    uint32_t priority;        /* of the tree */
    uint16_t pool;            /* a policy's own number */
    bool live;                /* given out */
    bool waiting;             /* freed, but streams may still use it */
    bool mapped;              /* has memory */
    bool shared;              /* recorded on a stream other than its own */
};

/* Negative, 0 or positive, as strcmp; 0 only for a block and itself. */
typedef int (*model_order)(const struct model_block *a, const struct model_block *b);

/* Blocks in order. A treap: expected logarithmic time, deterministic by the arena's priorities. */
struct model_set {
    struct model_block *root;
    size_t count;
    uint64_t bytes; /* sum over the blocks */
    model_order order;
};

/* By stream, size, address. */
int model_by_size(const struct model_block *a, const struct model_block *b);
/* By stream, address. */
int model_by_address(const struct model_block *a, const struct model_block *b);
/* By size, address, whatever the stream. */
int model_by_size_alone(const struct model_block *a, const struct model_block *b);

/* The block must be in no set; its keys must not change while it is in one. */
void model_set_insert(struct model_set *set, struct model_block *block);
void model_set_remove(struct model_block *block);
/* The first block that is not below the key; NULL if none. The key is in no set. */
struct model_block *model_set_find(const struct model_set *set, const struct model_block *key);
/* The last block below the key. */
struct model_block *model_set_below(const struct model_set *set, const struct model_block *key);
struct model_block *model_set_first(const struct model_set *set);
/* The block after one that is in the set. */
struct model_block *model_set_next(const struct model_block *block);

/* ------------------------------------------------------------------ the model */

/* An option of a policy: where its value goes. A table ends with a NULL name. */
struct model_option {
    const char *name;
    enum { MODEL_BYTES, MODEL_FRACTION, MODEL_NUMBER, MODEL_SWITCH } kind;
    size_t offset; /* in the policy's struct: uint64_t, double, uint64_t, bool */
};

/* What a policy implements. NULL: the policy has nothing to do there. */
struct model_ops {
    struct model_info info;
    size_t size;       /* of the policy's struct, which begins with struct model */
    size_t block_size; /* of its blocks, which begin with struct model_block */
    const struct model_option *options;
    void (*defaults)(struct model *model);
    /* Checks options that depend on each other: false with a message in `error`. */
    bool (*configure)(struct model *model, char *error, size_t error_size);
    /* Serves a request of bytes > 0; *out gets a live block. */
    enum model_status (*alloc)(struct model *model, uint64_t bytes, uint32_t stream,
                               struct model_block **out);
    enum model_status (*free)(struct model *model, struct model_block *block, uint32_t stream);
    enum model_status (*wait)(struct model *model, uint32_t stream, uint32_t other);
    enum model_status (*sync)(struct model *model);
    enum model_status (*trim)(struct model *model);
    bool (*check)(const struct model *model, char *problem, size_t problem_size);
    void (*close)(struct model *model); /* frees what is not in the arena */
};

/* A piece of the arena; `blocks` bytes follow. */
struct model_slab;

struct model {
    const struct model_ops *ops;
    struct model_stats stats;
    uint64_t limit_bytes;        /* most that may be held from the driver */
    uint64_t now;                /* events seen */
    uint64_t next_address;       /* below it lies what the driver has not handed out */
    struct model_block **blocks; /* by slot; NULL where none lives */
    size_t block_capacity;
    struct model_slab *slabs;   /* owned */
    struct model_block *unused; /* blocks of the slabs that are free for use */
    uint64_t priorities;        /* state of the generator */
    model_observer observer;
    void *observer_user;
};

extern const struct model_ops model_torch_caching, model_torch_expandable, model_tf_bfc,
    model_cuda_async, model_gmlake;

/* A zeroed block of ops->block_size bytes, or NULL. */
struct model_block *model_block_new(struct model *model);
void model_block_delete(struct model *model, struct model_block *block);
/* A new block behind `block` in its segment, with its attributes, in no set. */
struct model_block *model_block_after(struct model *model, struct model_block *block,
                                      uint64_t address, uint64_t bytes);
/* Cuts `block`, which is in no set, after `bytes`; the rest, not live, comes back in no set. */
struct model_block *model_block_split(struct model *model, struct model_block *block,
                                      uint64_t bytes);
/* Makes one block of `block` and its next neighbour; both are in no set. */
void model_block_merge_next(struct model *model, struct model_block *block);
/* Adds a block's bytes to what is granted; it becomes live. */
void model_grant(struct model *model, struct model_block *block, uint64_t requested_bytes);
void model_ungrant(struct model *model, struct model_block *block);

/* ------------------------------------------------------------------ the driver's account */

/* false if the limit would be passed. */
bool model_driver_fits(const struct model *model, uint64_t bytes);
/* Takes `bytes` that fit; counts no call, as policies take memory by different calls. */
void model_driver_take(struct model *model, uint64_t bytes, uint32_t stream);
void model_driver_give(struct model *model, uint64_t bytes, uint32_t stream);
/*
 * Addresses for `bytes`, never handed out before, at a 2 MiB boundary. Each lies below the one
 * before, as on the machine of the traces: among blocks of one size the policies prefer the lowest
 * address, and only this direction reproduces the segments that PyTorch took there (doc/models.md).
 */
uint64_t model_driver_address(struct model *model, uint64_t bytes);

/* ------------------------------------------------------------------ */

static inline uint64_t model_round(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Writes the text and returns false: for checks. */
__attribute__((format(printf, 3, 4))) bool model_broken(char *problem, size_t problem_size,
                                                        const char *format, ...);
/* One segment's blocks from its first on, linked and without a gap. */
bool model_check_chain(const struct model_block *first, char *problem, size_t problem_size);

#endif
