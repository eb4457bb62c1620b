/* SPDX-License-Identifier: MIT */
/*
 * flush.c - one batch of what sequences want and their addresses do not show yet.
 *
 * The batch takes away first and shows then, and behind it come the copies of tails: from staging
 * addresses, which the same batch makes show the old blocks, to the sequences' own. Staging is
 * taken away by the next batch, as that costs nothing more. A batch that is refused has changed no
 * entry, so `shown` stays as it is and the next flush makes the difference anew.
 *
 * Only slots that something was asked of are looked at, and places that follow each other in
 * addresses and in memory become one operation without one being made for each.
 */
#include "wide.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static char *place_va(const struct mb_kv *kv, const struct kv_slot *slot, uint32_t group,
                      uint32_t place)
{
    return slot->va + group * kv->shape.range_bytes + place * kv->shape.page_bytes;
}

static enum mb_err push(struct mb_kv *kv, struct mb_map_op op)
{
    struct mb_map_op *last = kv->op_count > kv->op_first ? &kv->ops[kv->op_count - 1] : NULL;

    if (last && (char *)last->va + last->bytes == (char *)op.va && last->prot == op.prot &&
        last->mem == op.mem &&
        (op.kind != MB_MAP || last->mem_offset + last->bytes == op.mem_offset)) {
        last->bytes += op.bytes;
        return MB_OK;
    }
    if (kv->op_count == kv->op_capacity) {
        uint32_t capacity = kv->op_capacity ? 2 * kv->op_capacity : 64;
        struct mb_map_op *ops = realloc(kv->ops, capacity * sizeof(*ops));

        if (!ops)
            return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for %u operations", capacity);
        kv->ops = ops;
        kv->op_capacity = capacity;
    }
    kv->ops[kv->op_count++] = op;
    return MB_OK;
}

/* `blocks` blocks that follow `block` in its chunk. */
static struct mb_map_op map_op(const struct mb_kv *kv, void *va, uint32_t block, uint32_t blocks,
                               uint32_t group, enum mb_prot prot)
{
    uint32_t per = kv->config.chunk_blocks;

    return (struct mb_map_op){
        .kind = MB_MAP,
        .prot = prot,
        .va = va,
        .bytes = blocks * kv->shape.page_bytes,
        .mem = kv->chunks[block / per].mem,
        .mem_offset = ((uint64_t)group * per + block % per) * kv->shape.page_bytes,
    };
}

/* What a place needs: an unmap, a map, or other rights, as `kind` asks. */
static bool needs(uint32_t want, uint32_t shown, enum mb_map_kind kind)
{
    bool same = ((want ^ shown) & ~KV_READ_ONLY) == 0;

    if (kind == MB_UNMAP)
        return shown && !same;
    if (kind == MB_MAP)
        return want && !same;
    return same && want != shown;
}

/* A bit per kind that some dirty place of the slot needs. */
static unsigned needed_kinds(const struct kv_slot *slot)
{
    uint32_t unmap = 0, map = 0, protect = 0, count = slot->dirty_to - slot->dirty_from;
    bool any_want = kv_any(slot->want + slot->dirty_from, count);
    bool any_shown = kv_any(slot->shown + slot->dirty_from, count);

    /* Mostly all of it is new, or all of it goes. */
    if (!any_want || !any_shown)
        return (unsigned)any_want << MB_MAP | (unsigned)any_shown << MB_UNMAP;
    for (uint32_t i = slot->dirty_from; i < slot->dirty_to; i++) {
        uint32_t want = slot->want[i], shown = slot->shown[i], differ = want ^ shown;
        uint32_t other = (differ & ~KV_READ_ONLY) != 0;

        unmap |= other & (shown != 0);
        map |= other & (want != 0);
        protect |= !other & (differ != 0);
    }
    return unmap << MB_UNMAP | map << MB_MAP | protect << MB_PROTECT;
}

/* Places from `from` on that all are to show blocks following each other and show nothing yet. */
static uint32_t fresh_run(const struct kv_slot *slot, uint32_t from, uint32_t most)
{
    const uint32_t *want = slot->want + from, *shown = slot->shown + from;
    uint32_t first = want[0], count = 0;

    while (most - count >= KV_AT_ONCE && kv_in_row(want + count, first + count) &&
           !kv_any(shown + count, KV_AT_ONCE))
        count += KV_AT_ONCE;
    while (count < most && !shown[count] && want[count] == first + count)
        count++;
    return count;
}

/* Places from `from` on that all show something; it wants nothing, and so do those behind it. */
static uint32_t gone_run(const struct kv_slot *slot, uint32_t from, uint32_t most)
{
    const uint32_t *shown = slot->shown + from;
    uint32_t count = 0;

    while (most - count >= KV_AT_ONCE && kv_all_other(shown + count, 0))
        count += KV_AT_ONCE;
    while (count < most && shown[count])
        count++;
    return count;
}

/* Places from `from` on, which needs `kind`, that one operation serves. */
static uint32_t one_op(const struct mb_kv *kv, const struct kv_slot *slot, uint32_t from,
                       enum mb_map_kind kind)
{
    uint32_t most = slot->dirty_to - from, want = slot->want[from], left, count = 1;

    if (kind == MB_MAP) {
        left = kv->config.chunk_blocks - kv_block_of(want) % kv->config.chunk_blocks;
        most = left < most ? left : most;
        count = fresh_run(slot, from, most);
        return count ? count : 1;
    }
    if (kind == MB_UNMAP && !want)
        count = gone_run(slot, from, most);
    while (count < most && needs(slot->want[from + count], slot->shown[from + count], kind) &&
           (kind == MB_UNMAP || ((slot->want[from + count] ^ want) & KV_READ_ONLY) == 0))
        count++;
    return count;
}

static enum mb_err push_slot(struct mb_kv *kv, const struct kv_slot *slot, enum mb_map_kind kind)
{
    enum mb_err err = MB_OK;

    for (uint32_t group = 0; group < kv->shape.groups; group++) {
        kv->op_first = kv->op_count;
        for (uint32_t i = slot->dirty_from, count; !err && i < slot->dirty_to; i += count) {
            uint32_t want = slot->want[i];
            enum mb_prot prot = want & KV_READ_ONLY ? MB_PROT_READ : MB_PROT_READ_WRITE;
            char *va = place_va(kv, slot, group, i);

            count = 1;
            if (!needs(want, slot->shown[i], kind))
                continue;
            count = one_op(kv, slot, i, kind);
            if (kind == MB_MAP)
                err = push(kv, map_op(kv, va, kv_block_of(want), count, group, prot));
            else
                err = push(kv, (struct mb_map_op){.kind = kind,
                                                  .prot = kind == MB_UNMAP ? MB_PROT_NONE : prot,
                                                  .va = va,
                                                  .bytes = count * kv->shape.page_bytes});
        }
    }
    return err;
}

/* The next slot from *at on of which something was asked; *at goes past it. NULL: there is none. */
static struct kv_slot *next_dirty(struct mb_kv *kv, uint32_t *at)
{
    uint32_t words = kv->config.max_sequences / 64 + 1, word = *at / 64;
    uint64_t bits = word < words ? kv->dirty[word] & UINT64_MAX << *at % 64 : 0;

    while (!bits && ++word < words)
        bits = kv->dirty[word];
    if (!bits)
        return NULL;
    *at = word * 64 + (uint32_t)__builtin_ctzll(bits) + 1;
    return &kv->slots[*at - 1];
}

static enum mb_err push_all(struct mb_kv *kv)
{
    static const enum mb_map_kind order[] = {MB_UNMAP, MB_PROTECT, MB_MAP};
    struct kv_slot *slot;
    enum mb_err err = MB_OK;
    unsigned all = 0;

    for (uint32_t at = 0; (slot = next_dirty(kv, &at)); all |= slot->kinds)
        slot->kinds = needed_kinds(slot);
    kv->op_count = kv->op_first = 0;
    if (kv->staged)
        err = push(kv, (struct mb_map_op){.kind = MB_UNMAP,
                                          .va = kv->staging,
                                          .bytes = kv->staged * kv->shape.block_bytes});
    for (unsigned k = 0; k < sizeof(order) / sizeof(order[0]); k++)
        for (uint32_t at = 0; !err && all >> order[k] & 1 && (slot = next_dirty(kv, &at));)
            if (slot->kinds >> order[k] & 1)
                err = push_slot(kv, slot, order[k]);
    kv->op_first = kv->op_count;
    for (uint32_t i = 0; !err && i < kv->tail_count; i++)
        for (uint32_t g = 0; !err && g < kv->shape.groups; g++)
            err = push(
                kv, map_op(kv, kv->staging + i * kv->shape.block_bytes + g * kv->shape.page_bytes,
                           kv->tails[i].from, 1, g, MB_PROT_READ));
    return err;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* All is shown as it is wanted. */
static void settle(struct mb_kv *kv)
{
    struct kv_slot *slot;

    for (uint32_t at = 0; (slot = next_dirty(kv, &at));) {
        memcpy(slot->shown + slot->dirty_from, slot->want + slot->dirty_from,
               (slot->dirty_to - slot->dirty_from) * sizeof(*slot->shown));
        slot->dirty_from = slot->dirty_to = 0;
        kv->dirty[(at - 1) / 64] &= ~((uint64_t)1 << (at - 1) % 64);
    }
    kv->staged = kv->tail_count;
}

static enum mb_err submit(struct mb_kv *kv, mb_stream stream)
{
    uint64_t begin = now_ns();
    enum mb_err err = kv->map.map(kv->map.user, kv->ops, kv->op_count, stream);

    kv->stats.map_host_ns += now_ns() - begin;
    if (err)
        return kv_fail_map(kv, err, "the batch of mappings");
    kv->stats.batches++;
    kv->stats.ops += kv->op_count;
    for (uint32_t i = 0; i < kv->op_count; i++) {
        uint64_t pages = kv->ops[i].bytes / kv->shape.page_bytes;

        kv->stats.mapped_pages += kv->ops[i].kind == MB_MAP ? pages : 0;
        kv->stats.unmapped_pages += kv->ops[i].kind == MB_UNMAP ? pages : 0;
    }
    return MB_OK;
}

static enum mb_err copy_tails(struct mb_kv *kv, mb_stream stream)
{
    uint32_t count = 0;
    enum mb_err err;

    for (uint32_t i = 0; i < kv->tail_count; i++)
        for (uint32_t g = 0; g < kv->shape.groups; g++)
            kv->copies[count++] = (struct mb_copy){
                .dst = place_va(kv, &kv->slots[kv->tails[i].slot], g, kv->tails[i].place),
                .src = kv->staging + i * kv->shape.block_bytes + g * kv->shape.page_bytes,
                .bytes = kv->tails[i].tokens * kv->token_stride,
            };
    if (!count)
        return MB_OK;
    err = kv->map.copy(kv->map.user, kv->copies, count, stream);
    if (err)
        return kv_fail_map(kv, err, "copies of shared tails");
    kv->stats.copies += kv->tail_count;
    for (uint32_t i = 0; i < count; i++)
        kv->stats.copied_bytes += kv->copies[i].bytes;
    return MB_OK;
}

/* The stream is the cache's once it holds something of it: a refused one must not be ordered after
 * later. With nothing to map before the first batch there is nothing to order either. */
static void adopt(struct mb_kv *kv, mb_stream stream)
{
    if (!kv->have_stream && !kv->op_count)
        return;
    kv->have_stream = true;
    kv->stream = stream;
}

enum mb_err kv_flush(struct mb_kv *kv, mb_stream stream)
{
    enum mb_err err = push_all(kv);

    if (!err && kv->have_stream && kv->stream != stream) {
        err = kv->map.order(kv->map.user, kv->stream, stream);
        if (err)
            kv_fail_map(kv, err, "ordering two streams");
    }
    if (!err && kv->op_count)
        err = submit(kv, stream);
    if (err)
        return err;
    adopt(kv, stream);
    settle(kv);
    return copy_tails(kv, stream);
}
