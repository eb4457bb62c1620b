/* SPDX-License-Identifier: MIT */
/*
 * kv.c - opening and closing a cache, the layout, errors, views and statistics.
 *
 * Layout: a group holds as many layers as divide the layers and make a page hold a whole number of
 * tokens, so that blocks begin at tokens and a token has one stride everywhere. More layers per
 * group mean fewer started pages per sequence, but one layer's attention then reaches over all of
 * them: see GROUP_TOKEN_MAX. The largest group below that is chosen unless the caller says other.
 */
#include "kv.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_CHUNK_BYTES = 1 << 30,
    TOKENS_MAX = 1 << 28,
    SEQUENCES_MAX = 1 << 20,
    BLOCKS_MAX = 1 << 29, /* with KV_READ_ONLY and + 1 they fit into an entry */
    /*
     * Bytes from a layer's token to its next one, at most, where the library chooses. Attention of
     * one layer reaches over tokens times this many bytes of addresses, whose translations do not
     * fit beyond some reach. Measured on an H200 (doc/kv.md, "Layout"): with 128 KiB from token to
     * token decoding is as fast as in a pool of blocks up to 34 GiB of reach, the most tried; with
     * 512 KiB it is at 16 GiB, takes 1.3 times the time at 34, and 1.7 to 2.4 times from 64 on. The
     * groups of a sequence are read one after the other, so smaller ones divide the reach.
     */
    GROUP_TOKEN_MAX = 128 << 10,
};

/* More addresses than any machine has; below it no product of a layout overflows. */
#define ADDRESSES_MAX ((uint64_t)1 << 57)

static _Thread_local char detail[1024];

void kv_tell(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(detail, sizeof(detail), format, args); /* NOLINT: the analyzer loses va_start */
    va_end(args);
}

enum mb_err kv_fail_map(const struct mb_kv *kv, enum mb_err err, const char *what)
{
    kv_tell("%s: %s: %s", what, mb_error_name(err), kv->map.detail(kv->map.user));
    return err;
}

MB_API const char *mb_kv_error_detail(void)
{
    return detail;
}

/* ------------------------------------------------------------------ layout */

static enum mb_err check_config(const struct mb_kv_config *c)
{
    uint64_t token = (uint64_t)c->kv_heads * c->head_dim * c->element_bytes;

    if (!c->layers || !c->kv_heads || !c->head_dim || !c->element_bytes || c->layers > 4096 ||
        c->kv_heads > 4096 || c->head_dim > 65536 || c->element_bytes > 16)
        return kv_fail(MB_ERR_INVALID,
                       "%u layers, %u heads of %u elements of %u bytes: each is at least 1, and at "
                       "most 4096, 4096, 65536, 16",
                       c->layers, c->kv_heads, c->head_dim, c->element_bytes);
    if (token % 8)
        return kv_fail(MB_ERR_INVALID,
                       "a token's keys have %" PRIu64 " bytes; they must be a multiple of 8",
                       token);
    if (!c->max_tokens || c->max_tokens > TOKENS_MAX || !c->max_sequences ||
        c->max_sequences > SEQUENCES_MAX)
        return kv_fail(MB_ERR_INVALID,
                       "max_tokens is %u and max_sequences %u; 1 to %d and 1 to %d are allowed",
                       c->max_tokens, c->max_sequences, TOKENS_MAX, SEQUENCES_MAX);
    if (c->chunk_blocks > BLOCKS_MAX)
        return kv_fail(MB_ERR_INVALID, "chunks of %u blocks; at most %d are allowed",
                       c->chunk_blocks, BLOCKS_MAX);
    return MB_OK;
}

/*
 * The layers of a group: the most whose token divides the page and is within GROUP_TOKEN_MAX; one
 * where its token alone is larger. 0: not even one layer's token divides the page.
 */
static uint32_t choose_group(uint32_t layers, uint64_t layer, uint64_t page)
{
    for (uint32_t i = layers; i > 1; i--)
        if (layers % i == 0 && i * layer <= GROUP_TOKEN_MAX && page % (i * layer) == 0)
            return i;
    return page % layer ? 0 : 1;
}

/* The addresses of a sequence, and of the copies of all, can be counted. */
static enum mb_err check_sizes(const struct mb_kv_config *c, uint64_t page, uint64_t tokens,
                               uint32_t groups)
{
    uint64_t places;

    if (tokens > TOKENS_MAX)
        return kv_fail(MB_ERR_INVALID,
                       "a page of %" PRIu64 " bytes holds %" PRIu64 " tokens; at most %d are "
                       "allowed, by smaller pages or larger groups",
                       page, tokens, TOKENS_MAX);
    places = (c->max_tokens + tokens - 1) / tokens;
    if (places < c->max_sequences)
        places = c->max_sequences;
    if (page > ADDRESSES_MAX / groups / places)
        return kv_fail(MB_ERR_INVALID,
                       "%u tokens of a sequence, or %u sequences, in %u ranges of pages of %" PRIu64
                       " bytes: together they may have %" PRIu64 " addresses",
                       c->max_tokens, c->max_sequences, groups, page, ADDRESSES_MAX);
    return MB_OK;
}

static enum mb_err choose_layout(const struct mb_kv_config *c, uint64_t page,
                                 struct mb_kv_shape *shape)
{
    uint64_t layer = 2 * (uint64_t)c->kv_heads * c->head_dim * c->element_bytes;
    uint32_t group = c->group_layers;
    enum mb_err err;

    if (!layer || page < layer)
        return kv_fail(MB_ERR_INVALID,
                       "a layer's token has %" PRIu64
                       " bytes and must fit into a page, of %" PRIu64,
                       layer, page);
    if (group && (c->layers % group || page % (group * layer)))
        return kv_fail(MB_ERR_INVALID,
                       "groups of %u layers: the number must divide %u layers, and %" PRIu64
                       " bytes per token must divide the page of %" PRIu64,
                       group, c->layers, group * layer, page);
    if (!group)
        group = choose_group(c->layers, layer, page);
    if (!group)
        return kv_fail(MB_ERR_INVALID,
                       "a layer's %" PRIu64 " bytes per token do not divide the page of %" PRIu64
                       "; pad the head dimension",
                       layer, page);
    err = check_sizes(c, page, page / (group * layer), c->layers / group);
    if (err)
        return err;
    shape->page_bytes = page;
    shape->group_layers = group;
    shape->groups = c->layers / group;
    shape->block_tokens = (uint32_t)(page / (group * layer));
    shape->token_bytes = c->layers * layer;
    shape->block_bytes = shape->groups * page;
    shape->range_bytes =
        ((uint64_t)c->max_tokens + shape->block_tokens - 1) / shape->block_tokens * page;
    return MB_OK;
}

/* ------------------------------------------------------------------ open, close */

static void free_records(struct mb_kv *kv)
{
    for (uint32_t i = 0; kv->slots && i < kv->config.max_sequences; i++) {
        free(kv->slots[i].want);
        free(kv->slots[i].shown);
    }
    for (uint64_t i = 0; i < kv->bucket_count; i++)
        for (struct kv_run *run = kv->buckets[i], *next; run; run = next) {
            next = run->next;
            kv_free_run(run);
        }
    free(kv->buckets);
    free(kv->heap);
    free(kv->dirty);
    free(kv->chunks);
    free(kv->refs);
    free(kv->read_by);
    free(kv->cached);
    free(kv->free_list);
    free(kv->slots);
    free(kv->holds);
    free(kv->tails);
    free(kv->undo);
    free(kv->copies);
    free(kv->ops);
    free(kv);
}

/* Of the usual size; smaller where more than an eighth of `all` blocks would be left over, which
 * one block at a time never leaves. */
static uint64_t usual_chunk(uint64_t block, uint64_t all)
{
    uint64_t blocks = block > DEFAULT_CHUNK_BYTES ? 1 : DEFAULT_CHUNK_BYTES / block;

    while (all % blocks > all / 8)
        blocks--;
    return blocks;
}

static void choose_chunks(struct mb_kv *kv)
{
    uint64_t blocks = kv->config.chunk_blocks, limit = kv->config.limit_bytes, most;
    uint64_t all = limit ? limit / kv->shape.block_bytes : 0; /* blocks */

    if (!blocks)
        blocks = usual_chunk(kv->shape.block_bytes, all);
    if (limit && blocks > all)
        blocks = all;
    if (!blocks)
        blocks = 1;
    if (blocks > BLOCKS_MAX)
        blocks = BLOCKS_MAX;
    most = BLOCKS_MAX / blocks;
    kv->config.chunk_blocks = (uint32_t)blocks;
    kv->chunk_limit = (uint32_t)(limit && all / blocks < most ? all / blocks : most);
}

static enum mb_err make_records(struct mb_kv *kv)
{
    uint32_t n = kv->config.max_sequences;

    kv->bucket_count = 1024;
    kv->buckets = calloc(kv->bucket_count, sizeof(struct kv_run *));
    kv->slots = calloc(n, sizeof(*kv->slots));
    kv->dirty = calloc(n / 64 + 1, sizeof(*kv->dirty));
    kv->tails = calloc(n, sizeof(*kv->tails));
    kv->undo = calloc(n, sizeof(*kv->undo));
    kv->copies = calloc((uint64_t)n * kv->shape.groups + 1, sizeof(*kv->copies));
    if (kv->buckets && kv->slots && kv->dirty && kv->tails && kv->undo && kv->copies)
        return MB_OK;
    if (!kv->buckets)
        kv->bucket_count = 0;
    return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for the records of %u sequences", n);
}

MB_API enum mb_err mb_kv_open_on(const struct mb_kv_mapper *mapper,
                                 const struct mb_kv_config *config, mb_kv *out)
{
    struct mb_kv_shape shape = {0};
    void *staging = NULL;
    struct mb_kv *kv;
    enum mb_err err;

    if (!mapper || !config || !out)
        return kv_fail(MB_ERR_INVALID, "NULL is no mapper, configuration or place for a result");
    if (!mapper->reserve || !mapper->unreserve || !mapper->create || !mapper->release ||
        !mapper->map || !mapper->copy || !mapper->order || !mapper->detail)
        return kv_fail(MB_ERR_INVALID, "a mapper lacks a call; only close may be NULL");
    err = check_config(config);
    if (!err)
        err = choose_layout(config, mapper->page_bytes, &shape);
    if (err)
        return err;
    kv = calloc(1, sizeof(*kv));
    if (!kv)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for a cache");
    kv->map = *mapper;
    kv->config = *config;
    kv->shape = shape;
    kv->token_stride = shape.page_bytes / shape.block_tokens;
    kv->max_blocks = (uint32_t)(shape.range_bytes / mapper->page_bytes);
    choose_chunks(kv);
    if (config->limit_bytes && !kv->chunk_limit)
        err = kv_fail(MB_ERR_INVALID, "the limit of %" PRIu64 " bytes is below a block of %" PRIu64,
                      config->limit_bytes, shape.block_bytes);
    if (!err)
        err = make_records(kv);
    if (!err)
        err = kv_enlist(kv);
    if (!err) {
        err = kv->map.reserve(kv->map.user, config->max_sequences * shape.block_bytes, &staging);
        if (err)
            kv_fail_map(kv, err, "addresses for copies");
    }
    if (err) {
        kv_delist(kv);
        free_records(kv);
        return err;
    }
    kv->staging = staging;
    pthread_mutex_init(&kv->lock, NULL);
    *out = kv;
    return MB_OK;
}

MB_API enum mb_err mb_kv_open(mb_device dev, const struct mb_kv_config *config, mb_kv *out)
{
    struct mb_kv_mapper mapper;
    enum mb_err err = mb_kv_device_mapper(dev, &mapper);

    return err ? err : mb_kv_open_on(&mapper, config, out);
}

MB_API enum mb_err mb_kv_close(mb_kv kv)
{
    enum mb_err err;

    if (!kv)
        return MB_OK;
    KV_ENTER(kv);
    for (uint32_t i = 0; i < kv->config.max_sequences; i++)
        if (kv->slots[i].state != KV_DEAD)
            kv_cut(kv, &kv->slots[i], 0);
    err = kv_flush(kv, kv->stream);
    /* What is shown stays; the cache stays usable, its sequences empty. A lost device shows
     * nothing. */
    if (err && err != MB_ERR_DEVICE_LOST) {
        for (uint32_t i = 0; i < kv->config.max_sequences; i++)
            kv->slots[i].tokens = 0;
        pthread_mutex_unlock(&kv->lock);
        return err;
    }
    kv_delist(kv);
    for (uint32_t i = 0; i < kv->config.max_sequences; i++)
        if (kv->slots[i].va)
            kv->map.unreserve(kv->map.user, kv->slots[i].va,
                              kv->shape.groups * kv->shape.range_bytes);
    kv->map.unreserve(kv->map.user, kv->staging, kv->config.max_sequences * kv->shape.block_bytes);
    for (uint32_t i = 0; i < kv->chunk_count; i++)
        if (kv->chunks[i].mem)
            kv->map.release(kv->map.user, kv->chunks[i].mem);
    if (kv->map.close)
        kv->map.close(kv->map.user);
    pthread_mutex_unlock(&kv->lock);
    pthread_mutex_destroy(&kv->lock);
    free_records(kv);
    return MB_OK;
}

MB_API enum mb_err mb_kv_get_shape(mb_kv kv, struct mb_kv_shape *out)
{
    KV_NEED(out, "place for a shape");
    KV_ENTER(kv);
    *out = kv->shape;
    pthread_mutex_unlock(&kv->lock);
    return MB_OK;
}

/* ------------------------------------------------------------------ ids, views */

mb_kv_seq kv_id(const struct mb_kv *kv, const struct kv_slot *slot)
{
    return kv_make_id(kv, slot->generation, 0, (uint32_t)(slot - kv->slots));
}

enum mb_err kv_find(struct mb_kv *kv, mb_kv_seq seq, bool asleep, struct kv_slot **out)
{
    uint32_t place = kv_place_of(kv, seq), generation = (uint32_t)(seq >> 32);
    struct kv_slot *slot = place < kv->config.max_sequences ? &kv->slots[place] : NULL;

    if (slot && seq & KV_PREFIX)
        return kv_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " is no sequence but a prefix", seq);
    if (!slot || !generation || generation > slot->generation)
        return kv_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " is no sequence of this cache", seq);
    if (slot->state == KV_DEAD || slot->generation != generation)
        return kv_fail(MB_ERR_NOT_FOUND,
                       "sequence 0x%" PRIx64 " is dead: it was closed with mb_kv_seq_close()", seq);
    if (slot->state == KV_ASLEEP && !asleep)
        return kv_fail(MB_ERR_BUSY, "sequence 0x%" PRIx64 " is asleep; mb_kv_wake() it first", seq);
    *out = slot;
    return MB_OK;
}

MB_API enum mb_err mb_kv_get_view(mb_kv kv, mb_kv_seq seq, uint32_t layer, bool values,
                                  struct mb_kv_view *out)
{
    const struct mb_kv_config *c;
    struct kv_slot *slot;
    uint64_t head, half;
    enum mb_err err;

    KV_NEED(out, "place for a view");
    KV_ENTER(kv);
    c = &kv->config;
    head = (uint64_t)c->head_dim * c->element_bytes;
    half = c->kv_heads * head;
    err = kv_find(kv, seq, true, &slot);
    if (!err && layer >= c->layers)
        err = kv_fail(MB_ERR_INVALID, "layer %u of sequence 0x%" PRIx64 "; there are %u", layer,
                      seq, c->layers);
    if (!err) {
        uint32_t group = layer / kv->shape.group_layers, within = layer % kv->shape.group_layers;

        out->base =
            slot->va + group * kv->shape.range_bytes + 2 * within * half + (values ? half : 0);
        out->token_stride = kv->token_stride;
        out->head_stride = head;
        out->tokens = slot->tokens;
        out->max_tokens = slot->max_tokens;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ statistics, checks */

MB_API enum mb_err mb_kv_get_stats(mb_kv kv, struct mb_kv_stats *out)
{
    struct mb_kv_stats stats;

    KV_NEED(out, "place for statistics");
    KV_ENTER(kv);
    stats = kv->stats;
    stats.live_tokens = stats.shown_blocks = stats.sequences = 0;
    stats.held_blocks = kv_held_blocks(kv);
    for (uint32_t i = 0; i < kv->config.max_sequences; i++) {
        if (kv->slots[i].state == KV_DEAD)
            continue;
        stats.sequences++;
        stats.live_tokens += kv->slots[i].tokens;
        stats.shown_blocks += kv->slots[i].wanted;
    }
    stats.free_blocks = kv->free_count;
    stats.cached_blocks = kv_evictable_blocks(kv, UINT64_MAX);
    stats.live_blocks = stats.held_blocks - stats.free_blocks - stats.cached_blocks;
    stats.room_blocks = kv_room(kv);
    pthread_mutex_unlock(&kv->lock);
    *out = stats;
    return MB_OK;
}

/* References as they must be, counted from sequences and nodes. */
static enum mb_err check_refs(struct mb_kv *kv, uint32_t *counted, uint32_t blocks)
{
    enum mb_err err;

    for (uint32_t i = 0; i < kv->config.max_sequences; i++) {
        const struct kv_slot *slot = &kv->slots[i];

        if (slot->state == KV_DEAD && slot->wanted)
            return kv_fail(MB_ERR_CORRUPT, "dead slot %u wants %u blocks", i, slot->wanted);
        if (slot->state == KV_LIVE && slot->wanted != kv_blocks_for(kv, slot->tokens))
            return kv_fail(MB_ERR_CORRUPT, "slot %u: %u blocks for %u tokens", i, slot->wanted,
                           slot->tokens);
        if ((slot->dirty_from < slot->dirty_to) != (kv->dirty[i / 64] >> i % 64 & 1))
            return kv_fail(MB_ERR_CORRUPT, "slot %u: places %u to %u are dirty, its bit differs", i,
                           slot->dirty_from, slot->dirty_to);
        for (uint32_t j = 0; j < slot->wanted; j++)
            counted[kv_block_of(slot->want[j])]++;
        for (uint32_t j = 0; slot->want && j < kv->max_blocks; j++) {
            bool clean = j < slot->dirty_from || j >= slot->dirty_to;

            if (clean && slot->want[j] != slot->shown[j])
                return kv_fail(MB_ERR_CORRUPT, "slot %u, place %u: want %x, shown %x", i, j,
                               slot->want[j], slot->shown[j]);
        }
    }
    err = kv_check_trie(kv, counted);
    if (err)
        return err;
    for (uint32_t i = 0; i < blocks; i++)
        if (counted[i] != kv->refs[i])
            return kv_fail(MB_ERR_CORRUPT, "block %u has %u references, counted %u", i, kv->refs[i],
                           counted[i]);
    return MB_OK;
}

static enum mb_err check_free(struct mb_kv *kv, uint32_t *seen)
{
    uint64_t unused = 0, held = 0;

    for (uint32_t i = 0; i < kv->free_count; i++) {
        uint32_t block = kv->free_list[i];

        if (seen[block] || kv->refs[block] || !kv->chunks[block / kv->config.chunk_blocks].mem)
            return kv_fail(MB_ERR_CORRUPT, "block %u is on the free list wrongly", block);
        seen[block] = 1;
    }
    for (uint32_t i = 0; i < kv->chunk_count; i++) {
        uint32_t used = 0;

        for (uint32_t j = 0; j < kv->config.chunk_blocks; j++)
            used += kv->refs[i * kv->config.chunk_blocks + j] != 0;
        if (used != kv->chunks[i].used || (used && !kv->chunks[i].mem))
            return kv_fail(MB_ERR_CORRUPT, "chunk %u counts %u used blocks of %u", i,
                           kv->chunks[i].used, used);
        held += kv->chunks[i].mem ? kv->config.chunk_blocks : 0;
        unused += kv->chunks[i].mem ? kv->config.chunk_blocks - used : 0;
    }
    if (unused != kv->free_count)
        return kv_fail(MB_ERR_CORRUPT, "%u free blocks, %" PRIu64 " unused of %" PRIu64,
                       kv->free_count, unused, held);
    return MB_OK;
}

MB_API enum mb_err mb_kv_check(mb_kv kv)
{
    uint32_t blocks, *scratch;
    enum mb_err err;

    KV_ENTER(kv);
    blocks = kv->chunk_count * kv->config.chunk_blocks;
    scratch = calloc(2 * (uint64_t)blocks + 1, sizeof(*scratch));
    if (!scratch) {
        pthread_mutex_unlock(&kv->lock);
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory to count %u blocks", blocks);
    }
    err = check_refs(kv, scratch, blocks);
    if (!err)
        err = check_free(kv, scratch + blocks);
    free(scratch);
    pthread_mutex_unlock(&kv->lock);
    return err;
}
