/* SPDX-License-Identifier: MIT */
/*
 * flush.c - one batch of what sequences want and their addresses do not show yet.
 *
 * The batch takes away first and shows then, and behind it come the copies of tails: from staging
 * addresses, which the same batch makes show the old blocks, to the sequences' own. Staging is
 * taken away by the next batch, as that costs nothing more. A batch that is refused has changed no
 * entry, so `shown` stays as it is and the next flush makes the difference anew.
 */
#include "kv.h"

#include <stdlib.h>
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

static struct mb_map_op map_op(const struct mb_kv *kv, void *va, uint32_t block, uint32_t group,
                               enum mb_prot prot)
{
    uint32_t per = kv->config.chunk_blocks;

    return (struct mb_map_op){
        .kind = MB_MAP,
        .prot = prot,
        .va = va,
        .bytes = kv->shape.page_bytes,
        .mem = kv->chunks[block / per].mem,
        .mem_offset = ((uint64_t)group * per + block % per) * kv->shape.page_bytes,
    };
}

/* What place of a slot needs: an unmap, a map, or other rights, as `kind` asks. */
static bool needs(const struct kv_slot *slot, uint32_t place, enum mb_map_kind kind)
{
    uint32_t want = slot->want[place], shown = slot->shown[place];
    bool same = ((want ^ shown) & ~KV_READ_ONLY) == 0;

    if (kind == MB_UNMAP)
        return shown && !same;
    if (kind == MB_MAP)
        return want && !same;
    return same && want != shown;
}

static enum mb_err push_slot(struct mb_kv *kv, const struct kv_slot *slot, enum mb_map_kind kind)
{
    enum mb_err err = MB_OK;

    for (uint32_t group = 0; group < kv->shape.groups; group++) {
        kv->op_first = kv->op_count;
        for (uint32_t i = slot->dirty_from; !err && i < slot->dirty_to; i++) {
            uint32_t want = slot->want[i];
            enum mb_prot prot = want & KV_READ_ONLY ? MB_PROT_READ : MB_PROT_READ_WRITE;
            char *va = place_va(kv, slot, group, i);

            if (!needs(slot, i, kind))
                continue;
            if (kind == MB_MAP)
                err = push(kv, map_op(kv, va, kv_block_of(want), group, prot));
            else
                err = push(kv, (struct mb_map_op){.kind = kind,
                                                  .prot = kind == MB_UNMAP ? MB_PROT_NONE : prot,
                                                  .va = va,
                                                  .bytes = kv->shape.page_bytes});
        }
    }
    return err;
}

static enum mb_err push_all(struct mb_kv *kv)
{
    static const enum mb_map_kind order[] = {MB_UNMAP, MB_PROTECT, MB_MAP};
    enum mb_err err = MB_OK;

    kv->op_count = kv->op_first = 0;
    if (kv->staged)
        err = push(kv, (struct mb_map_op){.kind = MB_UNMAP,
                                          .va = kv->staging,
                                          .bytes = kv->staged * kv->shape.block_bytes});
    for (unsigned k = 0; k < sizeof(order) / sizeof(order[0]); k++)
        for (uint32_t i = 0; !err && i < kv->config.max_sequences; i++)
            if (kv->slots[i].dirty_from < kv->slots[i].dirty_to)
                err = push_slot(kv, &kv->slots[i], order[k]);
    kv->op_first = kv->op_count;
    for (uint32_t i = 0; !err && i < kv->tail_count; i++)
        for (uint32_t g = 0; !err && g < kv->shape.groups; g++)
            err = push(
                kv, map_op(kv, kv->staging + i * kv->shape.block_bytes + g * kv->shape.page_bytes,
                           kv->tails[i].from, g, MB_PROT_READ));
    return err;
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
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
    for (uint32_t i = 0; i < kv->config.max_sequences; i++) {
        struct kv_slot *slot = &kv->slots[i];

        for (uint32_t j = slot->dirty_from; j < slot->dirty_to; j++)
            slot->shown[j] = slot->want[j];
        slot->dirty_from = slot->dirty_to = 0;
    }
    kv->staged = kv->tail_count;
    return MB_OK;
}

static enum mb_err copy_tails(struct mb_kv *kv, mb_stream stream)
{
    uint32_t count = 0;
    enum mb_err err;

    for (uint32_t i = 0; i < kv->tail_count; i++)
        for (uint32_t g = 0; g < kv->shape.groups; g++)
            kv->copies[count++] = (struct mb_kv_copy){
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

enum mb_err kv_flush(struct mb_kv *kv, mb_stream stream)
{
    enum mb_err err = push_all(kv);

    if (!err && kv->have_stream && kv->stream != stream) {
        err = kv->map.order(kv->map.user, kv->stream, stream);
        if (err)
            kv_fail_map(kv, err, "ordering two streams");
    }
    if (err)
        return err;
    kv->have_stream = true;
    kv->stream = stream;
    if (kv->op_count)
        err = submit(kv, stream);
    return err ? err : copy_tails(kv, stream);
}
