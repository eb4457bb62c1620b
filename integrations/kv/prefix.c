/* SPDX-License-Identifier: MIT */
/* prefix.c - attaching, publishing and holding prefixes; trie.c finds them. */
#include "kv.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <inttypes.h>
#include <stdlib.h>

/* ------------------------------------------------------------------ attach */

/* Shows what is cached of the tokens at the front of an empty slot; returns the length. */
static uint32_t attach(struct mb_kv *kv, struct kv_slot *slot, const int32_t *tokens,
                       uint32_t count)
{
    struct kv_spot spot = {0};
    uint32_t blocks = kv_walk(kv, &spot, tokens, count / kv->shape.block_tokens);

    kv_show_prefix(kv, slot, spot, blocks);
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

    KV_NEED(tokens || !count, "list of tokens");
    KV_NEED(hit, "place for a length");
    KV_ENTER(kv);
    err = kv_find(kv, seq, false, &slot);
    if (!err)
        err = check_empty(kv, slot, count);
    if (!err)
        *hit = attach(kv, slot, tokens, count);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_wake(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count,
                              uint32_t *hit)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    KV_NEED(tokens || !count, "list of tokens");
    KV_NEED(hit, "place for a length");
    KV_ENTER(kv);
    err = kv_find(kv, seq, true, &slot);
    if (!err && slot->state != KV_ASLEEP)
        err = kv_fail(MB_ERR_BUSY, "sequence 0x%" PRIx64 " is not asleep", seq);
    if (!err)
        err = check_empty(kv, slot, count);
    if (!err) {
        slot->state = KV_LIVE;
        *hit = attach(kv, slot, tokens, count);
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ publish */

/* What nobody published as these tokens may not have been published as others either: a block holds
 * one text, and was counted as evictable for one. */
static enum mb_err check_new(const struct mb_kv *kv, const struct kv_slot *slot, uint32_t from,
                             uint32_t blocks)
{
    for (uint32_t i = from; i < from + blocks; i++)
        if (kv->cached[kv_block_of(slot->want[i])])
            return kv_fail(MB_ERR_INVALID,
                           "block %u of sequence 0x%" PRIx64 " (from token %u on) is published "
                           "already, as other tokens",
                           i, kv_id(kv, slot), i * kv->shape.block_tokens);
    return MB_OK;
}

/* The next `blocks` blocks of the slot. Of a known block a second copy stays the sequence's own:
 * its keys and values are equal only up to rounding. */
static enum mb_err publish(struct mb_kv *kv, struct kv_slot *slot, const int32_t *tokens,
                           uint32_t blocks)
{
    struct kv_spot spot = slot->deepest;
    uint32_t known = kv_walk(kv, &spot, tokens, blocks);
    enum mb_err err = check_new(kv, slot, slot->published + known, blocks - known);

    if (err)
        return err;
    kv_use(kv, spot, known);
    if (known < blocks)
        err = kv_add_behind(kv, &spot, tokens + (uint64_t)known * kv->shape.block_tokens,
                            slot->want + slot->published + known, blocks - known);
    if (err) {
        kv_unuse(kv, spot, known);
        return err;
    }
    slot->deepest = spot;
    slot->published += blocks;
    return MB_OK;
}

MB_API enum mb_err mb_kv_publish(mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t count)
{
    struct kv_slot *slot = NULL;
    enum mb_err err = MB_OK;
    uint32_t step, blocks;

    KV_NEED(tokens || !count, "list of tokens");
    KV_ENTER(kv);
    step = kv->shape.block_tokens;
    blocks = count / step;
    err = kv_find(kv, seq, false, &slot);
    if (!err && count > slot->tokens)
        err = kv_fail(MB_ERR_INVALID, "%u tokens of sequence 0x%" PRIx64 ", which has %u", count,
                      seq, slot->tokens);
    if (!err && blocks > slot->published)
        err =
            publish(kv, slot, tokens + (uint64_t)slot->published * step, blocks - slot->published);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ held prefixes */

static enum mb_err find_hold(struct mb_kv *kv, mb_kv_prefix prefix, struct kv_hold **out)
{
    uint32_t place = kv_place_of(kv, prefix), generation = (uint32_t)(prefix >> 32);
    struct kv_hold *hold = place < kv->hold_count ? &kv->holds[place] : NULL;

    if (hold && !(prefix & KV_PREFIX))
        return kv_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " is no prefix but a sequence", prefix);
    if (!hold || !generation || generation > hold->generation)
        return kv_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " is no prefix of this cache", prefix);
    if (generation != hold->generation || !hold->spot.run)
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

    /* A place whose ids are used up serves nobody any more. */
    while (place < kv->hold_count &&
           (kv->holds[place].spot.run || kv->holds[place].generation == UINT32_MAX))
        place++;
    if (place < kv->hold_count)
        return &kv->holds[place];
    if (kv->hold_count == (1u << KV_PLACE_BITS) - 1) /* what ids can name */
        return NULL;
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

    KV_NEED(out && tokens, "place for a prefix or its length");
    KV_ENTER(kv);
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
            err = kv_fail(MB_ERR_HOST_MEMORY, "no host memory for a held prefix besides %u others",
                          kv->hold_count);
    }
    if (!err) {
        hold->generation++;
        hold->blocks = blocks;
        hold->spot = slot->deepest;
        kv_back(&hold->spot, slot->published - blocks);
        kv_use(kv, hold->spot, blocks);
        *out = kv_make_id(kv, hold->generation, KV_PREFIX, (uint32_t)(hold - kv->holds));
        *tokens = blocks * kv->shape.block_tokens;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_prefix_attach(mb_kv kv, mb_kv_seq seq, mb_kv_prefix prefix, uint32_t *hit)
{
    struct kv_hold *hold;
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    KV_NEED(hit, "place for a length");
    KV_ENTER(kv);
    err = find_hold(kv, prefix, &hold);
    if (!err)
        err = kv_find(kv, seq, false, &slot);
    if (!err)
        err = check_empty(kv, slot, hold->blocks * kv->shape.block_tokens);
    if (!err) {
        kv_show_prefix(kv, slot, hold->spot, hold->blocks);
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

    KV_ENTER(kv);
    err = find_hold(kv, prefix, &hold);
    if (!err) {
        kv_unuse(kv, hold->spot, hold->blocks);
        hold->spot = (struct kv_spot){0};
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_trim(mb_kv kv, mb_stream stream)
{
    enum mb_err err;

    KV_ENTER(kv);
    while (kv_evict_one(kv))
        ;
    err = kv_flush(kv, stream);
    if (!err)
        kv_drop_unused_chunks(kv);
    pthread_mutex_unlock(&kv->lock);
    return err;
}
