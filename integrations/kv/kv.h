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

/* A block of the prefix cache, and with it all blocks before it. */
struct kv_spot {
    struct kv_run *run; /* NULL: before all prompts */
    uint32_t at;        /* 0 if run is NULL */
};

/* Blocks of the prefix cache that follow each other; see trie.c. */
struct kv_run {
    struct kv_spot parent; /* what block 0 stands behind; lives at least as long */
    struct kv_run *next;   /* in its hash bucket */
    uint64_t id;           /* never used twice, so that hashes do not depend on addresses */
    uint64_t hash;         /* of parent and the tokens of block 0 */
    uint32_t count;        /* blocks, at least 1 */
    uint32_t capacity;     /* blocks that the arrays have room for */
    uint32_t used;         /* blocks with users: the first ones */
    uint32_t heap_at;      /* place in mb_kv.heap, + 1; 0 if used is count */
    uint32_t *blocks;      /* numbers of blocks; each is one of their refs */
    uint32_t *users;       /* sequences and held prefixes; a user of a block uses those before it */
    uint64_t *stamps;      /* mb_kv.clock when the last user let go; valid while users is 0 */
    int32_t *tokens;       /* block_tokens of each block */
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
    uint32_t published;     /* blocks that the prefix cache knows: the first ones */
    struct kv_spot deepest; /* the last of them; its block may be another with the same tokens */
    uint32_t dirty_from, dirty_to; /* places where want and shown may differ */
    unsigned kinds;                /* a bit per kind of operation that they need; of a flush */
    uint64_t stamp;                /* of the last append that named it */
};

struct kv_hold {
    struct kv_spot spot; /* run NULL: dropped */
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
    uint32_t number; /* of the cache, in its ids */
    struct mb_kv_mapper map;
    struct mb_kv_config config;
    struct mb_kv_shape shape;
    uint64_t token_stride; /* bytes of a token in its group */
    uint32_t max_blocks;   /* places of a sequence */

    struct kv_chunk *chunks; /* chunk_count places */
    uint32_t chunk_count, chunk_limit;
    uint32_t *refs;    /* of each block of each place */
    uint32_t *read_by; /* of each: copies of the append under way; each is one of its refs */
    bool *cached;      /* of each: a run has it */
    uint32_t *free_list;
    uint32_t free_count;

    struct kv_run **buckets; /* a power of two */
    uint64_t bucket_count, next_run_id;
    uint32_t run_count;
    struct kv_run **heap; /* runs whose last block is unused, the oldest block on top */
    uint32_t heap_count, heap_capacity;
    uint64_t clock;     /* of stamps; grows whenever blocks of a run lose their last user */
    uint64_t evictable; /* blocks of runs without users */

    struct kv_slot *slots;
    uint64_t *dirty; /* a bit per slot: dirty_from < dirty_to */
    struct kv_hold *holds;
    uint32_t hold_count;

    struct kv_tail *tails; /* max_sequences */
    uint32_t tail_count;
    struct kv_undo *undo; /* max_sequences */
    char *staging;        /* addresses that show the sources of copies; groups pages per tail */
    uint32_t staged;      /* places of it that show something */
    struct mb_copy *copies;
    struct mb_map_op *ops;
    uint32_t op_count, op_capacity;
    uint32_t op_first; /* operations may be joined from here on */

    bool have_stream;
    mb_stream stream; /* of the last batch */
    uint64_t stamp;
    struct mb_kv_stats stats;
};

/*
 * Ids: generation of the place, 32 bits | KV_PREFIX or not | number of the cache, 10 bits | place +
 * 1, KV_PLACE_BITS. So neither an id of another cache nor one of the other kind passes for one.
 */
#define KV_PREFIX ((uint32_t)1 << 31)
#define KV_PLACE_BITS 21

static inline uint64_t kv_make_id(const struct mb_kv *kv, uint32_t generation, uint32_t kind,
                                  uint32_t place)
{
    return (uint64_t)generation << 32 | kind | kv->number << KV_PLACE_BITS | (place + 1);
}

/* Its place, or one that is none if the id is not of this cache. */
static inline uint32_t kv_place_of(const struct mb_kv *kv, uint64_t id)
{
    uint32_t mine = kv->number << KV_PLACE_BITS, low = (uint32_t)id & ~KV_PREFIX;

    return low >> KV_PLACE_BITS == kv->number ? low - mine - 1 : UINT32_MAX;
}

/* Where every call begins: is it a cache? Then with its lock held. */
#define KV_ENTER(kv)                                                                               \
    do {                                                                                           \
        if (__builtin_expect(!kv_is_open(kv), 0))                                                  \
            return kv_no_cache(kv, __func__);                                                      \
        pthread_mutex_lock(&(kv)->lock);                                                           \
    } while (0)

/* Before it: what must not be NULL. `count` of 0 needs no list. */
#define KV_NEED(condition, what)                                                                   \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            return kv_fail(MB_ERR_INVALID, "%s: NULL is no %s", __func__, what);                   \
    } while (0)

/* handle.c */
bool kv_is_open(const struct mb_kv *kv);
enum mb_err kv_no_cache(const struct mb_kv *kv, const char *call);
/* From now on it is one; gives it its number. */
enum mb_err kv_enlist(struct mb_kv *kv);
void kv_delist(const struct mb_kv *kv);

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
uint64_t kv_held_blocks(const struct mb_kv *kv); /* had from the device */
uint64_t kv_room(const struct mb_kv *kv);
void kv_drop_unused_chunks(struct mb_kv *kv);

/* trie.c */
/* How many of the blocks of `tokens` are known behind *spot, which moves to the last of them. */
uint32_t kv_walk(const struct mb_kv *kv, struct kv_spot *spot, const int32_t *tokens,
                 uint32_t blocks);
/* Moves so many blocks towards the beginning. */
void kv_back(struct kv_spot *spot, uint32_t blocks);
/* A user more or less for `last` and the blocks before it, `blocks` in all. Blocks before those
 * have users that stay. */
void kv_use(struct mb_kv *kv, struct kv_spot last, uint32_t blocks);
void kv_unuse(struct mb_kv *kv, struct kv_spot last, uint32_t blocks);
/* Publishes blocks that are not known behind *spot, which the caller uses, and moves it; they have
 * one user. `entries` as in kv_slot.want. */
enum mb_err kv_add_behind(struct mb_kv *kv, struct kv_spot *spot, const int32_t *tokens,
                          const uint32_t *entries, uint32_t blocks);
bool kv_evict_one(struct mb_kv *kv);
/* A prefix that nobody uses has the block. */
bool kv_is_evictable(const struct mb_kv *kv, uint32_t block);
/* Blocks that eviction would free, at least up to `most`; a sequence holds the others as well. */
uint64_t kv_evictable_blocks(const struct mb_kv *kv, uint64_t most);
void kv_free_run(struct kv_run *run);
/* Adds the runs' blocks to `counted`. */
enum mb_err kv_check_trie(const struct mb_kv *kv, uint32_t *counted);

/* seq.c */
/* The place of a slot shall show `entry`; counts references. */
void kv_set_want(struct mb_kv *kv, struct kv_slot *slot, uint32_t place, uint32_t entry);
/* `count` places from `place` on may differ from what is shown. */
void kv_mark_dirty(struct mb_kv *kv, struct kv_slot *slot, uint32_t place, uint32_t count);
/* An empty slot shows the published blocks up to `last`, `blocks` in all, and uses them. */
void kv_show_prefix(struct mb_kv *kv, struct kv_slot *slot, struct kv_spot last, uint32_t blocks);
/* Forgets places from `blocks` on and published blocks among them. */
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
