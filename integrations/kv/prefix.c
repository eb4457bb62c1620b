/* SPDX-License-Identifier: MIT */
/*
 * prefix.c - the prefix cache: a trie of blocks by the tokens in them.
 *
 * A node is found by its parent and its tokens, which are compared, not only hashed: a wrong hit
 * would be somebody else's text. Who uses a node uses its parents. Nodes without users wait in a
 * ring, oldest first. A sequence lets go of its nodes from the last to the first, so a parent
 * always stands behind its children there and the oldest node has none.
 */
#include "kv.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Two tokens at a time in two chains, since long prompts are hashed whole at each lookup. */
static uint64_t hash_of(const struct mb_kv *kv, const struct kv_node *parent, const int32_t *tokens)
{
    uint64_t h[2] = {(parent ? parent->hash : 0) ^ 0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u}, word;
    uint32_t i = 0, count = kv->shape.block_tokens;

    for (; i + 2 <= count; i += 2) {
        memcpy(&word, tokens + i, sizeof(word));
        h[i / 2 % 2] = ((h[i / 2 % 2] ^ word) * 0xff51afd7ed558ccdu) ^ h[i / 2 % 2] >> 32;
    }
    if (i < count)
        h[0] = (h[0] ^ (uint32_t)tokens[i]) * 0xff51afd7ed558ccdu;
    word = (h[0] ^ h[1] >> 29) * 0xc4ceb9fe1a85ec53u;
    return word ^ word >> 32;
}

static struct kv_node *find(const struct mb_kv *kv, const struct kv_node *parent,
                            const int32_t *tokens, uint64_t hash)
{
    size_t bytes = kv->shape.block_tokens * sizeof(*tokens);
    struct kv_node *node = kv->buckets[hash & (kv->bucket_count - 1)];

    while (node && (node->hash != hash || node->parent != parent ||
                    memcmp(node->tokens, tokens, bytes) != 0))
        node = node->next;
    return node;
}

/* More buckets if there are many nodes; without host memory the chains get longer, that is all. */
static void widen(struct mb_kv *kv)
{
    uint64_t count = 4 * kv->bucket_count;
    struct kv_node **buckets;

    if (kv->node_count < kv->bucket_count)
        return;
    buckets = calloc(count, sizeof(struct kv_node *));
    if (!buckets)
        return;
    for (uint64_t i = 0; i < kv->bucket_count; i++)
        for (struct kv_node *node = kv->buckets[i], *next; node; node = next) {
            next = node->next;
            node->next = buckets[node->hash & (count - 1)];
            buckets[node->hash & (count - 1)] = node;
        }
    free(kv->buckets);
    kv->buckets = buckets;
    kv->bucket_count = count;
}

/* ------------------------------------------------------------------ users, eviction */

void kv_node_use(struct mb_kv *kv, struct kv_node *node)
{
    if (node->users++)
        return;
    node->newer->older = node->older;
    node->older->newer = node->newer;
    kv->evictable--;
}

void kv_node_unuse(struct mb_kv *kv, struct kv_node *node)
{
    if (--node->users)
        return;
    node->newer = &kv->lru;
    node->older = kv->lru.older;
    node->older->newer = node;
    kv->lru.older = node;
    kv->evictable++;
}

bool kv_evict_one(struct mb_kv *kv)
{
    struct kv_node *node = kv->lru.newer, **link;

    if (node == &kv->lru)
        return false;
    node->newer->older = node->older;
    node->older->newer = node->newer;
    kv->evictable--;
    link = &kv->buckets[node->hash & (kv->bucket_count - 1)];
    while (*link != node)
        link = &(*link)->next;
    *link = node->next;
    kv->node_count--;
    if (node->parent)
        node->parent->children--;
    kv_unref(kv, node->block);
    free(node);
    kv->stats.evicted_blocks++;
    return true;
}

/* ------------------------------------------------------------------ attach */

static void show_node(struct mb_kv *kv, struct kv_slot *slot, struct kv_node *node)
{
    kv_node_use(kv, node);
    kv_set_want(kv, slot, slot->wanted, (node->block + 1) | KV_READ_ONLY);
    slot->nodes[slot->published++] = node;
    slot->tokens += kv->shape.block_tokens;
}

uint32_t kv_attach(struct mb_kv *kv, struct kv_slot *slot, const int32_t *tokens, uint32_t count)
{
    uint32_t step = kv->shape.block_tokens;
    struct kv_node *at = NULL;

    for (uint32_t done = 0; count - done >= step; done += step) {
        at = find(kv, at, tokens + done, hash_of(kv, at, tokens + done));
        if (!at)
            break;
        show_node(kv, slot, at);
    }
    kv->stats.lookup_tokens += count;
    kv->stats.hit_tokens += slot->tokens;
    return slot->tokens;
}

static enum mb_err check_empty(const struct mb_kv *kv, const struct kv_slot *slot, uint32_t count)
{
    if (slot->tokens)
        return kv_fail(MB_ERR_BUSY,
                       "sequence 0x%" PRIx64 " holds %u tokens; a prefix goes to an empty one",
                       kv_id(kv, slot), slot->tokens);
    if (count > slot->max_tokens)
        return kv_fail(MB_ERR_LIMIT,
                       "a prefix of %u tokens is beyond the reservation of sequence 0x%" PRIx64
                       ", %u tokens",
                       count, kv_id(kv, slot), slot->max_tokens);
    return MB_OK;
}

MB_API enum mb_err mb_kv_attach(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count,
                                uint32_t *hit)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&kv->lock);
    err = kv_find(kv, seq, false, &slot);
    if (!err)
        err = check_empty(kv, slot, count);
    if (!err)
        *hit = kv_attach(kv, slot, tokens, count);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_wake(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count,
                              uint32_t *hit)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&kv->lock);
    err = kv_find(kv, seq, true, &slot);
    if (!err && slot->state != KV_ASLEEP)
        err = kv_fail(MB_ERR_BUSY, "sequence 0x%" PRIx64 " is not asleep", seq);
    if (!err)
        err = check_empty(kv, slot, count);
    if (!err) {
        slot->state = KV_LIVE;
        *hit = kv_attach(kv, slot, tokens, count);
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ publish */

/* The node of the slot's next block, made if nobody has it. A second copy of a known block stays
 * the sequence's own: its keys and values are equal only up to rounding. */
static enum mb_err publish_block(struct mb_kv *kv, struct kv_slot *slot, const int32_t *tokens)
{
    struct kv_node *parent = slot->published ? slot->nodes[slot->published - 1] : NULL;
    uint64_t hash = hash_of(kv, parent, tokens);
    struct kv_node *node = find(kv, parent, tokens, hash);
    size_t bytes = kv->shape.block_tokens * sizeof(*tokens);

    if (node) {
        kv_node_use(kv, node);
        slot->nodes[slot->published++] = node;
        return MB_OK;
    }
    node = malloc(sizeof(*node) + bytes);
    if (!node)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for a prefix block");
    *node = (struct kv_node){.parent = parent, .hash = hash, .users = 1};
    node->tokens = (int32_t *)(node + 1);
    memcpy(node->tokens, tokens, bytes);
    node->block = kv_block_of(slot->want[slot->published]);
    node->next = kv->buckets[hash & (kv->bucket_count - 1)];
    kv->buckets[hash & (kv->bucket_count - 1)] = node;
    kv->node_count++;
    if (parent)
        parent->children++;
    kv_ref(kv, node->block);
    slot->nodes[slot->published++] = node;
    kv->stats.published_blocks++;
    widen(kv);
    return MB_OK;
}

MB_API enum mb_err mb_kv_publish(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count)
{
    uint32_t step, before;
    struct kv_slot *slot = NULL;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&kv->lock);
    step = kv->shape.block_tokens;
    err = kv_find(kv, seq, false, &slot);
    if (!err && count > slot->tokens)
        err = kv_fail(MB_ERR_INVALID, "%u tokens of sequence 0x%" PRIx64 ", which has %u", count,
                      seq, slot->tokens);
    before = err ? 0 : slot->published;
    while (!err && (slot->published + 1) * (uint64_t)step <= count)
        err = publish_block(kv, slot, tokens + (uint64_t)slot->published * step);
    while (err && slot && slot->published > before)
        kv_node_unuse(kv, slot->nodes[--slot->published]);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ held prefixes */

static enum mb_err find_hold(struct mb_kv *kv, mb_kv_prefix prefix, struct kv_hold **out)
{
    uint32_t place = (uint32_t)prefix, generation = (uint32_t)(prefix >> 32);
    struct kv_hold *hold = place && place <= kv->hold_count ? &kv->holds[place - 1] : NULL;

    if (!hold || !generation || generation > hold->generation)
        return kv_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " is no prefix of this cache", prefix);
    if (generation != hold->generation || !hold->node)
        return kv_fail(MB_ERR_NOT_FOUND,
                       "prefix 0x%" PRIx64 " is gone: it was given up with mb_kv_prefix_drop()",
                       prefix);
    *out = hold;
    return MB_OK;
}

static struct kv_hold *new_hold(struct mb_kv *kv)
{
    struct kv_hold *holds;
    uint32_t place = 0;

    while (place < kv->hold_count && kv->holds[place].node)
        place++;
    if (place < kv->hold_count)
        return &kv->holds[place];
    holds = realloc(kv->holds, (kv->hold_count + 1) * sizeof(*holds));
    if (!holds)
        return NULL;
    kv->holds = holds;
    kv->holds[kv->hold_count] = (struct kv_hold){0};
    return &kv->holds[kv->hold_count++];
}

MB_API enum mb_err mb_kv_prefix_hold(mb_kv kv, mb_kv_seq seq, uint32_t count, mb_kv_prefix *out,
                                     uint32_t *tokens)
{
    struct kv_hold *hold = NULL;
    struct kv_slot *slot;
    enum mb_err err = MB_OK;
    uint32_t blocks = 0;

    pthread_mutex_lock(&kv->lock);
    err = kv_find(kv, seq, false, &slot);
    if (!err) {
        blocks = count / kv->shape.block_tokens;
        if (blocks > slot->published)
            blocks = slot->published;
        if (!blocks)
            err = kv_fail(MB_ERR_INVALID,
                          "no block of sequence 0x%" PRIx64 "'s first %u tokens is published; a "
                          "block holds %u",
                          seq, count, kv->shape.block_tokens);
    }
    if (!err) {
        hold = new_hold(kv);
        if (!hold)
            err = kv_fail(MB_ERR_HOST_MEMORY, "no host memory for a held prefix");
    }
    if (!err) {
        hold->generation++;
        hold->blocks = blocks;
        hold->node = slot->nodes[blocks - 1];
        for (struct kv_node *node = hold->node; node; node = node->parent)
            kv_node_use(kv, node);
        *out = (uint64_t)hold->generation << 32 | (uint32_t)(hold - kv->holds + 1);
        *tokens = blocks * kv->shape.block_tokens;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_prefix_attach(mb_kv kv, mb_kv_seq seq, mb_kv_prefix prefix, uint32_t *hit)
{
    struct kv_hold *hold;
    struct kv_slot *slot;
    struct kv_node *node;
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&kv->lock);
    err = find_hold(kv, prefix, &hold);
    if (!err)
        err = kv_find(kv, seq, false, &slot);
    if (!err)
        err = check_empty(kv, slot, hold->blocks * kv->shape.block_tokens);
    if (!err) {
        /* The nodes are known from the last to the first; places are filled from the first on. */
        node = hold->node;
        for (uint32_t i = hold->blocks; i-- > 0; node = node->parent)
            slot->nodes[i] = node;
        for (uint32_t i = 0; i < hold->blocks; i++)
            show_node(kv, slot, slot->nodes[i]);
        kv->stats.lookup_tokens += slot->tokens;
        kv->stats.hit_tokens += slot->tokens;
        *hit = slot->tokens;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_prefix_drop(mb_kv kv, mb_kv_prefix prefix)
{
    enum mb_err err = MB_OK;
    struct kv_hold *hold;

    pthread_mutex_lock(&kv->lock);
    err = find_hold(kv, prefix, &hold);
    if (!err) {
        for (struct kv_node *node = hold->node; node; node = node->parent)
            kv_node_unuse(kv, node);
        hold->node = NULL;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_trim(mb_kv kv, mb_stream stream)
{
    enum mb_err err;

    pthread_mutex_lock(&kv->lock);
    while (kv_evict_one(kv))
        ;
    err = kv_flush(kv, stream);
    if (!err)
        kv_drop_unused_chunks(kv);
    pthread_mutex_unlock(&kv->lock);
    return err;
}
