/* SPDX-License-Identifier: MIT */
/*
 * moonbright_kv.h - a KV cache for transformers on ranges of addresses instead of block tables.
 *
 * Each sequence sees its keys and values at contiguous addresses, so that any attention kernel that
 * takes strides serves. Behind the addresses lie blocks of whole pages that sequences share: a
 * prefix computed before is shown, not copied; a beam is forked by showing the same pages; only the
 * block that a sequence is about to write into, if others see it too, is copied.
 *
 * LAYOUT     Layers are put into groups; a token of a group is [layer][K, V][head][element], and
 *            each group has one range of a sequence's addresses, token after token. A *block* is
 *            one page per group and holds mb_kv_shape.block_tokens tokens of all layers. It is what
 *            is shared, counted and evicted. doc/kv.md has the numbers behind the choice.
 * ORDER      mb_kv_append() and mb_kv_sync() take a stream: what was asked for since the last such
 *            call takes effect there, in one batch, and views are good for work enqueued on that
 *            stream afterwards. A cache has one stream at a time, that of the last such call, and
 *            work with its addresses belongs there; a call with another stream makes that one wait
 *            for all that the one before holds. All other calls only decide; they touch no page
 *            table and wait for nothing.
 * ERRORS     As in moonbright.h; a failed call changes nothing (blocks that nobody uses may have
 *            left the prefix cache, and memory had from the device stays the cache's).
 *            mb_kv_error_detail() says what was asked and what is allowed.
 *            An id that is not, or no longer, one of this cache's is MB_ERR_NOT_FOUND, always: ids
 *            are never used twice, one of another cache (among 1,023 opened one after another) is
 *            none of this one's, and a prefix is no sequence. A closed cache, and NULL where
 *            something is wanted, are MB_ERR_INVALID.
 * THREADS    All calls may be made from any thread, except mb_kv_close(), which must be the last.
 */
#ifndef MOONBRIGHT_KV_H
#define MOONBRIGHT_KV_H

#include <moonbright.h>

#ifdef __cplusplus
extern "C" {
#endif

MB_HANDLE(mb_kv);
typedef uint64_t mb_kv_seq;    /* 0 is never one */
typedef uint64_t mb_kv_prefix; /* 0 is never one */

/* Who provides addresses and pages. All calls are made under the cache's lock. */
struct mb_kv_mapper {
    void *user;
    uint64_t page_bytes;
    enum mb_err (*reserve)(void *user, uint64_t bytes, void **va);
    void (*unreserve)(void *user, void *va, uint64_t bytes);
    enum mb_err (*create)(void *user, uint64_t bytes, mb_mem *out);
    void (*release)(void *user, mb_mem mem);
    /* All or nothing, as mb_mem_map_async(); MB_ALIAS is not used. */
    enum mb_err (*map)(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream);
    /* Tails of sequences, in stream order; the copies do not overlap. As mb_copy_list_async(). */
    enum mb_err (*copy)(void *user, const struct mb_copy *list, unsigned count, mb_stream stream);
    /* Later work of `to` comes after what `from` holds now. */
    enum mb_err (*order)(void *user, mb_stream from, mb_stream to);
    const char *(*detail)(void *user); /* text of the last failure on this thread */
    void (*close)(void *user);         /* may be NULL */
};

struct mb_kv_config {
    uint32_t layers, kv_heads, head_dim, element_bytes;
    /* Layers per group, a divisor of `layers` whose token divides a page. 0: the most that keep a
     * layer's tokens within 128 KiB of each other, as attention slows down with the addresses that
     * it reaches over (doc/kv.md, «Layout»). */
    uint32_t group_layers;
    uint32_t max_tokens;    /* of one sequence: addresses are reserved for so many */
    uint32_t max_sequences; /* alive at once, beams included */
    uint32_t chunk_blocks;  /* blocks that are had at once when memory is needed; 0: chosen, so that
                             * at least seven eighths of the limit serve */
    uint64_t limit_bytes;   /* of pages, in whole chunks; 0: what the device gives */
};

/* What the cache made of its configuration. */
struct mb_kv_shape {
    uint64_t page_bytes;
    uint32_t block_tokens; /* tokens that a block holds */
    uint32_t groups;       /* ranges per sequence, and pages per block */
    uint32_t group_layers;
    uint64_t token_bytes; /* of all layers */
    uint64_t block_bytes; /* groups * page_bytes */
    uint64_t range_bytes; /* addresses of one group of one sequence */
};

/* The mapper of mb_kv_open(), for callers that replace a part of it, such as the copies. */
MB_API enum mb_err mb_kv_device_mapper(mb_device dev, struct mb_kv_mapper *out);
/* A process may have 256 caches open, those of mb_kv_open_on() included; one more is
 * MB_ERR_LIMIT. */
MB_API enum mb_err mb_kv_open(mb_device dev, const struct mb_kv_config *config, mb_kv *out);
/* The same on addresses of the caller's. The mapper is copied; `user` lives until mb_kv_close(),
 * which calls the mapper's close(). A failed mb_kv_open_on() does not: the mapper is still the
 * caller's then, to open with again or to close by mapper->close(mapper->user). */
MB_API enum mb_err mb_kv_open_on(const struct mb_kv_mapper *mapper,
                                 const struct mb_kv_config *config, mb_kv *out);
/* Unmaps in the order of the last stream; give that and the device up afterwards, not before. Of a
 * cache whose device was closed, calls that map are MB_ERR_DEVICE_LOST, and closing frees it. */
MB_API enum mb_err mb_kv_close(mb_kv kv);
MB_API enum mb_err mb_kv_get_shape(mb_kv kv, struct mb_kv_shape *out);
/* The calling thread's last failure of a call of this header; "" if none. */
MB_API const char *mb_kv_error_detail(void);

/* ------------------------------------------------------------------ sequences */

/* An empty sequence that may grow to `max_tokens` (0: the cache's maximum). MB_ERR_LIMIT if
 * max_sequences live. */
MB_API enum mb_err mb_kv_seq_open(mb_kv kv, uint32_t max_tokens, mb_kv_seq *out);
/* Its pages are anybody's in the order of the next append or sync; published ones stay cached. */
MB_API enum mb_err mb_kv_seq_close(mb_kv kv, mb_kv_seq seq);

struct mb_kv_grow {
    mb_kv_seq seq;
    uint32_t tokens;
};
/*
 * Makes room for new tokens at the ends of sequences, each of which may be named once: the step of
 * a decoder, for the whole batch. One batch of mappings in all, none if no sequence needs a page.
 * Blocks that are written into and that others see are replaced by copies. MB_ERR_NO_MEMORY: not
 * even evicting all unused prefixes would do. MB_ERR_LIMIT: a sequence would pass its maximum.
 */
MB_API enum mb_err mb_kv_append(mb_kv kv, const struct mb_kv_grow *list, unsigned count,
                                mb_stream stream);
/* Lets everything asked for so far take effect in the order of `stream`. */
MB_API enum mb_err mb_kv_sync(mb_kv kv, mb_stream stream);
/* Forgets what is behind the first `tokens` tokens. */
MB_API enum mb_err mb_kv_truncate(mb_kv kv, mb_kv_seq seq, uint32_t tokens);
/* A new sequence with the same tokens, sharing every page. */
MB_API enum mb_err mb_kv_fork(mb_kv kv, mb_kv_seq parent, mb_kv_seq *out);
/* seqs[i] becomes what seqs[from[i]] was, all at once; ids and addresses stay. */
MB_API enum mb_err mb_kv_reorder(mb_kv kv, const mb_kv_seq *seqs, const uint32_t *from,
                                 unsigned count);
/* Preemption: the sequence gives all pages back and keeps id and addresses; its tokens are gone. */
MB_API enum mb_err mb_kv_sleep(mb_kv kv, mb_kv_seq seq);
/* Awake again, holding what the prefix cache still has of `tokens`; as mb_kv_attach(). */
MB_API enum mb_err mb_kv_wake(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count,
                              uint32_t *hit);

/* Where a layer's keys or values are. Element [token][head][i] is at
 * base + token * token_stride + head * head_stride + i * element_bytes. */
struct mb_kv_view {
    void *base;
    uint64_t token_stride, head_stride; /* bytes */
    uint32_t tokens, max_tokens;
};
/* base stays the same for the life of the sequence. */
MB_API enum mb_err mb_kv_get_view(mb_kv kv, mb_kv_seq seq, uint32_t layer, bool values,
                                  struct mb_kv_view *out);

/* ------------------------------------------------------------------ prefixes */

/* Shows the longest prefix of `tokens` that was published, in whole blocks, at the front of an
 * empty sequence; *hit is its length. A decoder needs the last prompt token computed: ask for one
 * less. */
MB_API enum mb_err mb_kv_attach(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count,
                                uint32_t *hit);
/* Offers the full blocks among the sequence's first `count` tokens, which are `tokens`, to others.
 * The keys and values must be written by work that the last stream holds already. MB_ERR_INVALID: a
 * block of them is published already, as other tokens. Blocks that this sequence has published
 * before are not looked at again. */
MB_API enum mb_err mb_kv_publish(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count);
/* Keeps the published part of the first `count` tokens from eviction; *tokens gets its length. */
MB_API enum mb_err mb_kv_prefix_hold(mb_kv kv, mb_kv_seq seq, uint32_t count, mb_kv_prefix *out,
                                     uint32_t *tokens);
MB_API enum mb_err mb_kv_prefix_attach(mb_kv kv, mb_kv_seq seq, mb_kv_prefix prefix, uint32_t *hit);
MB_API enum mb_err mb_kv_prefix_drop(mb_kv kv, mb_kv_prefix prefix);
/* Evicts every prefix that nobody uses, and gives chunks without a used block back to the device
 * in the order of `stream`. */
MB_API enum mb_err mb_kv_trim(mb_kv kv, mb_stream stream);

/* ------------------------------------------------------------------ statistics */

/* Counts are since mb_kv_open(). held = live + cached + free blocks, at every moment. */
struct mb_kv_stats {
    uint64_t held_blocks;   /* had from the device */
    uint64_t live_blocks;   /* of at least one sequence */
    uint64_t cached_blocks; /* only in the prefix cache */
    uint64_t free_blocks;
    uint64_t room_blocks; /* an append may take so many: free, evictable, below the limit not had */
    uint64_t shown_blocks; /* sum over sequences; minus live_blocks: what sharing saves */
    uint64_t live_tokens;  /* sum over sequences */
    uint64_t sequences;    /* alive */
    uint64_t lookup_tokens, hit_tokens; /* of attach and wake */
    uint64_t published_blocks, evicted_blocks;
    uint64_t batches, ops, mapped_pages, unmapped_pages; /* given to the mapper */
    uint64_t copies, copied_bytes;                       /* of tails */
    uint64_t map_host_ns;                                /* host time inside the mapper's map() */
};
MB_API enum mb_err mb_kv_get_stats(mb_kv kv, struct mb_kv_stats *out);
/* Checks all counts and lists against each other; MB_ERR_CORRUPT with the first that is wrong. */
MB_API enum mb_err mb_kv_check(mb_kv kv);

#ifdef __cplusplus
}
#endif
#endif
