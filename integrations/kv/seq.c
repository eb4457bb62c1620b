/* SPDX-License-Identifier: MIT */
/*
 * seq.c - sequences: open, grow, fork, reorder, cut, sleep, close.
 *
 * Growing is the one call that takes memory. It works item by item and writes down what each
 * sequence was, so that a failure at any point, the batch's refusal included, is undone backwards.
 *
 * A block is written into only by a sequence that alone refers to it. Sharing is noticed at the
 * next append: of two beams on one block the first to grow copies it and the last keeps it.
 */
#include "wide.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void kv_mark_dirty(struct mb_kv *kv, struct kv_slot *slot, uint32_t place, uint32_t count)
{
    uint32_t i = (uint32_t)(slot - kv->slots);

    if (!count)
        return;
    if (slot->dirty_from >= slot->dirty_to) {
        kv->dirty[i / 64] |= (uint64_t)1 << i % 64;
        slot->dirty_from = place;
        slot->dirty_to = place + count;
        return;
    }
    if (place < slot->dirty_from)
        slot->dirty_from = place;
    if (place + count > slot->dirty_to)
        slot->dirty_to = place + count;
}

void kv_set_want(struct mb_kv *kv, struct kv_slot *slot, uint32_t place, uint32_t entry)
{
    uint32_t old = slot->want[place];

    if (entry)
        kv_ref(kv, kv_block_of(entry));
    if (old)
        kv_unref(kv, kv_block_of(old));
    slot->want[place] = entry;
    kv_mark_dirty(kv, slot, place, 1);
    if (place >= slot->wanted && entry)
        slot->wanted = place + 1;
    if (!entry && place + 1 == slot->wanted)
        slot->wanted = place;
}

/* One reference more to each block; none is its first. */
static void refer(struct mb_kv *kv, const uint32_t *entries, uint32_t count)
{
    uint32_t part;

    for (; count; count -= part, entries += part) {
        part = count < KV_AT_ONCE ? count : KV_AT_ONCE;
        if (part == KV_AT_ONCE && kv_in_row(entries, entries[0])) {
            kv_count(kv->refs + kv_block_of(entries[0]), KV_AT_ONCE, 1);
            continue;
        }
        for (uint32_t i = 0; i < part; i++)
            kv->refs[kv_block_of(entries[i])]++;
    }
}

/* One reference less to each block of at most KV_AT_ONCE entries. */
static void unrefer(struct mb_kv *kv, const uint32_t *entries, uint32_t count)
{
    if (count == KV_AT_ONCE && kv_in_row(entries, entries[0])) {
        uint32_t *refs = kv->refs + kv_block_of(entries[0]);

        if (kv_all_other(refs, 1)) {
            kv_count(refs, KV_AT_ONCE, UINT32_MAX);
            return;
        }
    }
    while (count)
        kv_unref(kv, kv_block_of(entries[--count]));
}

/* The last places first, so that blocks taken next are consecutive again. */
static void forget_places(struct mb_kv *kv, struct kv_slot *slot, uint32_t blocks)
{
    if (slot->wanted <= blocks)
        return;
    kv_mark_dirty(kv, slot, blocks, slot->wanted - blocks);
    while (slot->wanted > blocks) {
        uint32_t left = slot->wanted - blocks, part = left < KV_AT_ONCE ? left : KV_AT_ONCE;

        slot->wanted -= part;
        unrefer(kv, slot->want + slot->wanted, part);
        memset(slot->want + slot->wanted, 0, part * sizeof(*slot->want));
    }
}

static void unpublish(struct mb_kv *kv, struct kv_slot *slot, uint32_t blocks)
{
    if (slot->published <= blocks)
        return;
    kv_unuse(kv, slot->deepest, slot->published - blocks);
    kv_back(&slot->deepest, slot->published - blocks);
    slot->published = blocks;
}

void kv_cut(struct mb_kv *kv, struct kv_slot *slot, uint32_t blocks)
{
    unpublish(kv, slot, blocks);
    forget_places(kv, slot, blocks);
}

void kv_show_prefix(struct mb_kv *kv, struct kv_slot *slot, struct kv_spot last, uint32_t blocks)
{
    uint32_t place = blocks, part;

    kv_use(kv, last, blocks);
    slot->deepest = last;
    for (; place; place -= part, last = last.run->parent) {
        part = last.at + 1;
        kv_read_only(slot->want + place - part, last.run->blocks, part);
    }
    refer(kv, slot->want, blocks); /* the prefix cache has them */
    slot->published = slot->wanted = blocks;
    slot->tokens = blocks * kv->shape.block_tokens;
    kv_mark_dirty(kv, slot, 0, blocks);
}

/* ------------------------------------------------------------------ open, close */

static enum mb_err prepare_slot(struct mb_kv *kv, struct kv_slot *slot)
{
    uint32_t *want, *shown;
    void *va = NULL;
    enum mb_err err;

    if (slot->va)
        return MB_OK;
    want = calloc(kv->max_blocks, sizeof(*want));
    shown = calloc(kv->max_blocks, sizeof(*shown));
    if (!want || !shown) {
        err = kv_fail(MB_ERR_HOST_MEMORY, "no host memory for the records of a sequence");
        goto undo;
    }
    err = kv->map.reserve(kv->map.user, kv->shape.groups * kv->shape.range_bytes, &va);
    if (err) {
        kv_fail_map(kv, err, "addresses for a sequence");
        goto undo;
    }
    slot->va = va;
    slot->want = want;
    slot->shown = shown;
    return MB_OK;
undo:
    free(want);
    free(shown);
    return err;
}

static enum mb_err open_slot(struct mb_kv *kv, uint32_t max_tokens, struct kv_slot **out)
{
    struct kv_slot *slot = NULL;
    enum mb_err err;

    if (max_tokens > kv->config.max_tokens)
        return kv_fail(MB_ERR_LIMIT, "a sequence of %u tokens; the cache reserves for at most %u",
                       max_tokens, kv->config.max_tokens);
    for (uint32_t i = 0; i < kv->config.max_sequences && !(slot && slot->va); i++)
        if (kv->slots[i].state == KV_DEAD && kv->slots[i].generation != UINT32_MAX &&
            (!slot || kv->slots[i].va))
            slot = &kv->slots[i];
    if (!slot)
        return kv_fail(MB_ERR_LIMIT, "%u sequences live; max_sequences allows no more",
                       kv->config.max_sequences);
    err = prepare_slot(kv, slot);
    if (err)
        return err;
    slot->state = KV_LIVE;
    slot->generation++;
    slot->tokens = 0;
    slot->max_tokens = max_tokens ? max_tokens : kv->config.max_tokens;
    *out = slot;
    return MB_OK;
}

MB_API enum mb_err mb_kv_seq_open(mb_kv kv, uint32_t max_tokens, mb_kv_seq *out)
{
    struct kv_slot *slot;
    enum mb_err err;

    KV_NEED(out, "place for a sequence");
    KV_ENTER(kv);
    err = open_slot(kv, max_tokens, &slot);
    if (!err)
        *out = kv_id(kv, slot);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_seq_close(mb_kv kv, mb_kv_seq seq)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    KV_ENTER(kv);
    err = kv_find(kv, seq, true, &slot);
    if (!err) {
        kv_cut(kv, slot, 0);
        slot->tokens = 0;
        slot->state = KV_DEAD;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ grow */

/* Copies that are to read the block are no owners of it. */
static bool is_own(const struct mb_kv *kv, uint32_t block)
{
    return kv->refs[block] - kv->read_by[block] == 1;
}

/* The last, unfilled block becomes the sequence's own; by a copy if others refer to it. */
static enum mb_err own_tail(struct mb_kv *kv, struct kv_slot *slot)
{
    uint32_t filled = slot->tokens % kv->shape.block_tokens, entry, block;
    enum mb_err err;

    if (!filled)
        return MB_OK;
    entry = slot->want[slot->wanted - 1];
    block = kv_block_of(entry);
    err = is_own(kv, block) ? MB_OK : kv_make_room(kv, 1);
    if (err == MB_ERR_NO_MEMORY && kv_evict_for(kv, block))
        err = MB_OK;
    if (is_own(kv, block)) { /* by now: the prefix that shared it may just have been evicted */
        if (entry & KV_READ_ONLY)
            kv_set_want(kv, slot, slot->wanted - 1, block + 1);
        return MB_OK;
    }
    if (err)
        return err;
    kv_ref(kv, block);
    kv->read_by[block]++;
    kv_set_want(kv, slot, slot->wanted - 1, kv_take(kv) + 1);
    kv->tails[kv->tail_count++] =
        (struct kv_tail){(uint32_t)(slot - kv->slots), slot->wanted - 1, block, filled};
    return MB_OK;
}

/* Until now no block that a copy reads could be taken: another copy of the batch might have written
 * it. */
static void let_go_of_tails(struct mb_kv *kv)
{
    while (kv->tail_count) {
        uint32_t block = kv->tails[--kv->tail_count].from;

        kv->read_by[block]--;
        kv_unref(kv, block);
    }
}

static enum mb_err grow_one(struct mb_kv *kv, struct kv_slot *slot, uint32_t tokens)
{
    uint32_t blocks = kv_blocks_for(kv, slot->tokens + tokens);
    enum mb_err err;

    if (!tokens)
        return MB_OK;
    err = own_tail(kv, slot);
    if (!err && blocks > slot->wanted)
        err = kv_make_room(kv, blocks - slot->wanted);
    if (err)
        return err;
    if (blocks > slot->wanted)
        kv_mark_dirty(kv, slot, slot->wanted, blocks - slot->wanted);
    for (; slot->wanted < blocks; slot->wanted++) {
        uint32_t block = kv_take(kv);

        kv_ref(kv, block);
        slot->want[slot->wanted] = block + 1;
    }
    slot->tokens += tokens;
    return MB_OK;
}

static void undo_one(struct mb_kv *kv, const struct kv_undo *undo)
{
    struct kv_slot *slot = &kv->slots[undo->slot];
    uint32_t blocks = kv_blocks_for(kv, undo->tokens);

    forget_places(kv, slot, blocks);
    if (blocks && slot->want[blocks - 1] != undo->tail_entry)
        kv_set_want(kv, slot, blocks - 1, undo->tail_entry);
    slot->tokens = undo->tokens;
}

/* Everything that can be refused without looking at memory. Fills kv->undo. */
static enum mb_err check_grow(struct mb_kv *kv, const struct mb_kv_grow *list, unsigned count)
{
    enum mb_err err = MB_OK;

    if (count > kv->config.max_sequences)
        return kv_fail(MB_ERR_INVALID, "%u sequences in one append; at most %u live", count,
                       kv->config.max_sequences);
    kv->stamp++;
    for (unsigned i = 0; i < count; i++) {
        struct kv_slot *slot;

        err = kv_find(kv, list[i].seq, false, &slot);
        if (err)
            return err;
        if (slot->stamp == kv->stamp)
            return kv_fail(MB_ERR_INVALID, "sequence 0x%" PRIx64 " is named twice in one append",
                           list[i].seq);
        slot->stamp = kv->stamp;
        if (list[i].tokens > slot->max_tokens - slot->tokens)
            return kv_fail(MB_ERR_LIMIT,
                           "sequence 0x%" PRIx64 " has %u tokens and %u more are beyond its "
                           "reservation of %u",
                           list[i].seq, slot->tokens, list[i].tokens, slot->max_tokens);
        kv->undo[i] = (struct kv_undo){(uint32_t)(slot - kv->slots), slot->tokens,
                                       slot->wanted ? slot->want[slot->wanted - 1] : 0};
    }
    return MB_OK;
}

MB_API enum mb_err mb_kv_append(mb_kv kv, const struct mb_kv_grow *list, unsigned count,
                                mb_stream stream)
{
    unsigned done = 0;
    enum mb_err err;

    KV_NEED(list || !count, "list of sequences");
    KV_ENTER(kv);
    err = check_grow(kv, list, count);
    /* The undo record of a sequence is good for its own change only. */
    for (; !err && done < count; done++)
        err = grow_one(kv, &kv->slots[kv->undo[done].slot], list[done].tokens);
    if (!err)
        err = kv_flush(kv, stream);
    while (err && done > 0)
        undo_one(kv, &kv->undo[--done]);
    let_go_of_tails(kv);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_sync(mb_kv kv, mb_stream stream)
{
    enum mb_err err;

    KV_ENTER(kv);
    err = kv_flush(kv, stream);
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_truncate(mb_kv kv, mb_kv_seq seq, uint32_t tokens)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    KV_ENTER(kv);
    err = kv_find(kv, seq, false, &slot);
    if (!err && tokens > slot->tokens)
        err = kv_fail(MB_ERR_INVALID, "sequence 0x%" PRIx64 " has %u tokens and cannot keep %u",
                      seq, slot->tokens, tokens);
    if (!err) {
        slot->tokens = tokens;
        unpublish(kv, slot, tokens / kv->shape.block_tokens);
        kv_cut(kv, slot, kv_blocks_for(kv, tokens));
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

MB_API enum mb_err mb_kv_sleep(mb_kv kv, mb_kv_seq seq)
{
    struct kv_slot *slot;
    enum mb_err err = MB_OK;

    KV_ENTER(kv);
    err = kv_find(kv, seq, false, &slot);
    if (!err) {
        kv_cut(kv, slot, 0);
        slot->tokens = 0;
        slot->state = KV_ASLEEP;
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

/* ------------------------------------------------------------------ fork, reorder */

/* What a sequence is; for a reorder, where all of them change at once. Owner: the call. */
struct image {
    uint32_t tokens, blocks, published, same; /* the first `same` places are the target's already */
    uint32_t *want;                           /* places same .. blocks */
    struct kv_spot deepest;
};

static void make_like(struct mb_kv *kv, struct kv_slot *slot, const struct image *image)
{
    /* New references first, so that a block both have is never without one. */
    if (image->deepest.run != slot->deepest.run || image->deepest.at != slot->deepest.at) {
        kv_use(kv, image->deepest, image->published);
        unpublish(kv, slot, 0);
        slot->deepest = image->deepest;
        slot->published = image->published;
    }
    for (uint32_t i = image->same; i < image->blocks; i++) {
        uint32_t entry = image->want[i - image->same];

        if (!slot->want[i] || kv_block_of(slot->want[i]) != kv_block_of(entry))
            kv_set_want(kv, slot, i, entry | KV_READ_ONLY);
    }
    forget_places(kv, slot, image->blocks);
    slot->tokens = image->tokens;
}

static enum mb_err take_image(const struct kv_slot *of, const struct kv_slot *target,
                              struct image *image)
{
    uint32_t least = of->wanted < target->wanted ? of->wanted : target->wanted;
    size_t left;

    *image = (struct image){of->tokens, of->wanted, of->published, 0, NULL, of->deepest};
    image->same = kv_same(of->want, target->want, least);
    left = of->wanted - image->same;
    image->want = calloc(left + 1, sizeof(*image->want));
    if (!image->want)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory to note %u blocks", of->wanted);
    if (left)
        memcpy(image->want, of->want + image->same, left * sizeof(*image->want));
    return MB_OK;
}

/* A new sequence is empty, so everything is its parent's. */
static void copy_slot(struct mb_kv *kv, struct kv_slot *slot, const struct kv_slot *from)
{
    kv_use(kv, from->deepest, from->published);
    slot->deepest = from->deepest;
    slot->published = from->published;
    for (uint32_t i = 0; i < from->wanted; i++)
        slot->want[i] = from->want[i] | KV_READ_ONLY;
    refer(kv, slot->want, from->wanted);
    slot->wanted = from->wanted;
    slot->tokens = from->tokens;
    kv_mark_dirty(kv, slot, 0, from->wanted);
}

MB_API enum mb_err mb_kv_fork(mb_kv kv, mb_kv_seq parent, mb_kv_seq *out)
{
    struct kv_slot *from = NULL, *slot = NULL;
    enum mb_err err = MB_OK;

    KV_NEED(out, "place for a sequence");
    KV_ENTER(kv);
    err = kv_find(kv, parent, false, &from);
    if (!err)
        err = open_slot(kv, from->max_tokens, &slot);
    if (!err) {
        copy_slot(kv, slot, from);
        *out = kv_id(kv, slot);
    }
    pthread_mutex_unlock(&kv->lock);
    return err;
}

static enum mb_err check_reorder(struct mb_kv *kv, const mb_kv_seq *seqs, const uint32_t *from,
                                 unsigned count)
{
    enum mb_err err = MB_OK;

    if (count > kv->config.max_sequences)
        return kv_fail(MB_ERR_INVALID, "%u sequences in one reorder; at most %u live", count,
                       kv->config.max_sequences);
    kv->stamp++;
    for (unsigned i = 0; i < count; i++) {
        struct kv_slot *slot, *source;

        err = kv_find(kv, seqs[i], false, &slot);
        if (err)
            return err;
        if (slot->stamp == kv->stamp)
            return kv_fail(MB_ERR_INVALID, "sequence 0x%" PRIx64 " is named twice in one reorder",
                           seqs[i]);
        slot->stamp = kv->stamp;
        if (from[i] >= count)
            return kv_fail(MB_ERR_INVALID, "sequence %u of %u comes from number %u", i, count,
                           from[i]);
        err = kv_find(kv, seqs[from[i]], false, &source);
        if (err)
            return err;
        if (source->tokens > slot->max_tokens)
            return kv_fail(MB_ERR_LIMIT,
                           "the %u tokens of sequence 0x%" PRIx64
                           " are beyond the reservation of 0x%" PRIx64 ", %u",
                           source->tokens, seqs[from[i]], seqs[i], slot->max_tokens);
    }
    return MB_OK;
}

/* All images hold what they name while sequences let go of it and take it up. */
static void hold_images(struct mb_kv *kv, const struct image *images, unsigned count, bool hold)
{
    for (unsigned i = 0; i < count; i++) {
        if (hold)
            kv_use(kv, images[i].deepest, images[i].published);
        else
            kv_unuse(kv, images[i].deepest, images[i].published);
        for (uint32_t j = images[i].blocks; j-- > images[i].same;) {
            uint32_t block = kv_block_of(images[i].want[j - images[i].same]);

            hold ? kv_ref(kv, block) : kv_unref(kv, block);
        }
    }
}

static struct kv_slot *slot_of(struct mb_kv *kv, mb_kv_seq seq)
{
    return &kv->slots[kv_place_of(kv, seq)]; /* of an id that was found good */
}

MB_API enum mb_err mb_kv_reorder(mb_kv kv, const mb_kv_seq *seqs, const uint32_t *from,
                                 unsigned count)
{
    struct image *images = NULL;
    enum mb_err err;

    KV_NEED((seqs && from) || !count, "list of sequences");
    KV_ENTER(kv);
    err = check_reorder(kv, seqs, from, count);
    if (!err) {
        images = calloc(count + 1, sizeof(*images));
        if (!images)
            err = kv_fail(MB_ERR_HOST_MEMORY, "no host memory to reorder %u sequences", count);
    }
    for (unsigned i = 0; !err && i < count; i++)
        if (from[i] != i)
            err = take_image(slot_of(kv, seqs[from[i]]), slot_of(kv, seqs[i]), &images[i]);
    if (!err) {
        hold_images(kv, images, count, true);
        for (unsigned i = 0; i < count; i++)
            if (from[i] != i)
                make_like(kv, slot_of(kv, seqs[i]), &images[i]);
        hold_images(kv, images, count, false);
    }
    for (unsigned i = 0; images && i < count; i++)
        free(images[i].want);
    free(images);
    pthread_mutex_unlock(&kv->lock);
    return err;
}
