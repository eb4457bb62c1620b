/* SPDX-License-Identifier: MIT */
/*
 * kv.h - records of the KV cache, shared by its sources.
 *
 * A cache decides first and maps later. `want` says which block a sequence shall see at each place,
 * `shown` what its addresses show; kv_flush() makes one batch of the difference. So a block may
 * change hands many times between two batches without a page table being touched, and a batch that
 * is refused leaves nothing to undo but the decisions of the call under way.
 *
 * refs of a block = sequences that want it at some place + 1 if a prefix node holds it. A block
 * without refs is free at once, though addresses may still show it until the next batch: that batch
 * takes it away there before, in stream order, anybody writes into it.
 *
 * Locking: everything here is guarded by kv->lock; functions named kv_* are called under it.
 */
#ifndef MB_KV_H
#define MB_KV_H

#include <pthread.h>

#include "moonbright_kv.h"

/* Flag in an entry of want and shown. */
#define KV_READ_ONLY ((uint32_t)1 << 31)

/* Blocks that came from the device together. */
struct kv_chunk {
    mb_mem mem;    /* NULL: the place is unused */
    uint32_t used; /* blocks with refs */
};

/* A block of the prefix cache: these tokens behind those of the parent. */
struct kv_node {
    struct kv_node *parent;        /* NULL: begins a prompt. Lives at least as long */
    struct kv_node *next;          /* in its hash bucket */
    struct kv_node *newer, *older; /* in the LRU list, while users is 0 */
    uint64_t hash;
    uint32_t block;
    uint32_t users;    /* sequences and held prefixes; a user of a node uses its parents too */
    uint32_t children; /* nodes whose parent it is */
    int32_t *tokens;   /* block_tokens; behind the node, in the same allocation */
};

enum kv_state {
    KV_DEAD,
    KV_LIVE,
    KV_ASLEEP,
};

/* A place for a sequence; its addresses are reserved at first use and serve the next one too. */
struct kv_slot {
    enum kv_state state;
    uint32_t generation; /* of the id; grows when a sequence is opened */
    char *va;            /* groups * range_bytes; NULL: not reserved yet */
    uint32_t max_tokens, tokens;
    uint32_t *want, *shown; /* max_blocks each: block + 1 | KV_READ_ONLY, or 0 */
    uint32_t wanted;        /* places in `want`; behind them all are 0 */
    struct kv_node **nodes; /* max_blocks; the first `published` are known to the cache */
    uint32_t published;
    uint32_t dirty_from, dirty_to; /* places where want and shown may differ */
    uint64_t stamp;                /* of the last append that named it */
};

struct kv_hold {
    struct kv_node *node; /* NULL: dropped */
    uint32_t generation;
    uint32_t blocks;
};

/* A tail that the append under way copies. */
struct kv_tail {
    uint32_t slot, place;
    uint32_t from; /* block */
    uint32_t tokens;
};

struct kv_undo {
    uint32_t slot, tokens,
        tail_entry; /* before; tail_entry of the place at tokens / block_tokens */
};

struct mb_kv {
    pthread_mutex_t lock;
    struct mb_kv_mapper map;
    struct mb_kv_config config;
    struct mb_kv_shape shape;
    uint64_t token_stride; /* bytes of a token in its group */
    uint32_t max_blocks;   /* places of a sequence */

    struct kv_chunk *chunks; /* chunk_count places */
    uint32_t chunk_count, chunk_limit;
    uint32_t *refs;    /* of each block of each place */
    uint32_t *read_by; /* of each: copies of the append under way; each is one of its refs */
    uint32_t *free_list;
    uint32_t free_count;

    struct kv_node **buckets; /* a power of two */
    uint64_t bucket_count, node_count;
    struct kv_node lru; /* ring; lru.newer is the oldest */
    uint64_t evictable; /* nodes in the ring */

    struct kv_slot *slots;
    struct kv_hold *holds;
    uint32_t hold_count;

    struct kv_tail *tails; /* max_sequences */
    uint32_t tail_count;
    struct kv_undo *undo; /* max_sequences */
    char *staging;        /* addresses that show the sources of copies; groups pages per tail */
    uint32_t staged;      /* places of it that show something */
    struct mb_kv_copy *copies;
    struct mb_map_op *ops;
    uint32_t op_count, op_capacity;
    uint32_t op_first; /* operations may be joined from here on */

    bool have_stream;
    mb_stream stream; /* of the last batch */
    uint64_t stamp;
    struct mb_kv_stats stats;
};

/* kv.c */
/* Keeps the text of a failure for mb_kv_error_detail(). */
void kv_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A macro, so that compilers see which error it is, and that it is one. */
#define kv_fail(err, ...) (kv_tell(__VA_ARGS__), (err))
/* A mapper's failure: its own words behind ours. */
enum mb_err kv_fail_map(const struct mb_kv *kv, enum mb_err err, const char *what);
/* The slot of an id. `asleep`: a sleeping one will do. */
enum mb_err kv_find(struct mb_kv *kv, mb_kv_seq seq, bool asleep, struct kv_slot **out);
mb_kv_seq kv_id(const struct mb_kv *kv, const struct kv_slot *slot);

/* blocks.c */
/* Makes sure that `count` blocks can be taken; may grow and evict. */
enum mb_err kv_make_room(struct mb_kv *kv, uint64_t count);
/* Evicts until only one sequence holds the block. False: something else than an unused prefix holds
 * it as well, and nothing was evicted. */
bool kv_evict_for(struct mb_kv *kv, uint32_t block);
uint32_t kv_take(struct mb_kv *kv); /* after kv_make_room(); to be given a reference at once */
void kv_ref(struct mb_kv *kv, uint32_t block);
void kv_unref(struct mb_kv *kv, uint32_t block);
uint64_t kv_room(const struct mb_kv *kv);
void kv_drop_unused_chunks(struct mb_kv *kv);

/* prefix.c */
void kv_node_use(struct mb_kv *kv, struct kv_node *node);
void kv_node_unuse(struct mb_kv *kv, struct kv_node *node);
bool kv_evict_one(struct mb_kv *kv);
/* Shows what is cached of the tokens at the front of an empty slot; returns the length. */
uint32_t kv_attach(struct mb_kv *kv, struct kv_slot *slot, const int32_t *tokens, uint32_t count);

/* seq.c */
/* The place of a slot shall show `entry`; counts references. */
void kv_set_want(struct mb_kv *kv, struct kv_slot *slot, uint32_t place, uint32_t entry);
/* Forgets places from `blocks` on and published nodes among them. */
void kv_cut(struct mb_kv *kv, struct kv_slot *slot, uint32_t blocks);

/* flush.c */
enum mb_err kv_flush(struct mb_kv *kv, mb_stream stream);

static inline uint32_t kv_block_of(uint32_t entry)
{
    return (entry & ~KV_READ_ONLY) - 1;
}

static inline uint32_t kv_blocks_for(const struct mb_kv *kv, uint32_t tokens)
{
    return tokens / kv->shape.block_tokens + (tokens % kv->shape.block_tokens != 0);
}

#endif
