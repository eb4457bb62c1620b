/* SPDX-License-Identifier: MIT */
/*
 * blocks.c - blocks of the cache: where they come from and who holds them.
 *
 * Blocks come in chunks of one memory object each, laid out group by group, so that blocks taken
 * one after another are consecutive there and one operation maps many.
 *
 * Room is made in this order: free blocks, another chunk up to the limit, eviction of prefixes that
 * nobody uses, oldest first. A device that has no memory left counts as a limit; any other failure
 * of it is the caller's to hear.
 */
#include "kv.h"

#include <inttypes.h>
#include <stdlib.h>

static void push_free(struct mb_kv *kv, uint32_t block)
{
    kv->free_list[kv->free_count++] = block;
}

/* Records for one more place of a chunk. */
static enum mb_err grow_records(struct mb_kv *kv)
{
    uint64_t blocks = ((uint64_t)kv->chunk_count + 1) * kv->config.chunk_blocks;
    struct kv_chunk *chunks = realloc(kv->chunks, (kv->chunk_count + 1) * sizeof(*chunks));
    uint32_t *refs, *read_by, *free_list;
    bool *cached;

    if (chunks)
        kv->chunks = chunks;
    refs = realloc(kv->refs, (blocks + 1) * sizeof(*refs));
    if (refs)
        kv->refs = refs;
    read_by = realloc(kv->read_by, (blocks + 1) * sizeof(*read_by));
    if (read_by)
        kv->read_by = read_by;
    cached = realloc(kv->cached, (blocks + 1) * sizeof(*cached));
    if (cached)
        kv->cached = cached;
    free_list = realloc(kv->free_list, (blocks + 1) * sizeof(*free_list));
    if (free_list)
        kv->free_list = free_list;
    if (!chunks || !refs || !read_by || !cached || !free_list)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for the records of %" PRIu64 " blocks",
                       blocks);
    kv->chunks[kv->chunk_count] = (struct kv_chunk){0};
    for (uint64_t i = blocks - kv->config.chunk_blocks; i < blocks; i++)
        kv->refs[i] = kv->read_by[i] = kv->cached[i] = 0;
    kv->chunk_count++;
    return MB_OK;
}

uint64_t kv_held_blocks(const struct mb_kv *kv)
{
    uint64_t chunks = 0;

    for (uint32_t i = 0; i < kv->chunk_count; i++)
        chunks += kv->chunks[i].mem != NULL;
    return chunks * kv->config.chunk_blocks;
}

static enum mb_err grow(struct mb_kv *kv)
{
    uint32_t place = 0, per = kv->config.chunk_blocks;
    mb_mem mem = NULL;
    enum mb_err err;

    if (kv_held_blocks(kv) >= (uint64_t)kv->chunk_limit * per)
        return kv_fail(MB_ERR_LIMIT, "the cache holds its limit of %u chunks", kv->chunk_limit);
    while (place < kv->chunk_count && kv->chunks[place].mem)
        place++;
    err = place == kv->chunk_count ? grow_records(kv) : MB_OK;
    if (err)
        return err;
    err = kv->map.create(kv->map.user, per * kv->shape.block_bytes, &mem);
    if (err)
        return kv_fail_map(kv, err, "memory for KV blocks");
    kv->chunks[place].mem = mem;
    for (uint32_t i = per; i-- > 0;)
        push_free(kv, place * per + i);
    return MB_OK;
}

uint64_t kv_room(const struct mb_kv *kv)
{
    uint64_t room = kv->free_count;

    room += kv_evictable_blocks(kv, UINT64_MAX);
    if (kv->config.limit_bytes)
        room += (uint64_t)kv->chunk_limit * kv->config.chunk_blocks - kv_held_blocks(kv);
    return room;
}

/* Who holds the memory, for the text of a failure; `why` is what stopped another chunk. */
static enum mb_err out_of_blocks(struct mb_kv *kv, uint64_t count, enum mb_err why)
{
    bool device = why == MB_ERR_NO_MEMORY; /* or the limit */
    uint32_t live = 0, asleep = 0;

    for (uint32_t i = 0; i < kv->config.max_sequences; i++) {
        live += kv->slots[i].state == KV_LIVE;
        asleep += kv->slots[i].state == KV_ASLEEP;
    }
    return kv_fail(MB_ERR_NO_MEMORY,
                   "%" PRIu64 " blocks of %" PRIu64 " bytes are wanted, %u are free of %" PRIu64
                   "; %u sequences live, %u sleep, %" PRIu64 " prefix blocks are unused. %s%s%s"
                   "Close or mb_kv_sleep() a sequence, or %s",
                   count, kv->shape.block_bytes, kv->free_count, kv_held_blocks(kv), live, asleep,
                   kv->evictable, device ? "The device has no memory for another chunk: " : "",
                   device ? kv->map.detail(kv->map.user) : "", device ? ". " : "",
                   device ? "have smaller chunks by chunk_blocks" : "raise limit_bytes");
}

enum mb_err kv_make_room(struct mb_kv *kv, uint64_t count)
{
    while (kv->free_count < count) {
        enum mb_err err = grow(kv);

        if (!err)
            continue;
        if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT)
            return err;
        /* Evicting all would not do, so nothing goes. */
        if (kv->free_count + kv_evictable_blocks(kv, count - kv->free_count) < count)
            return out_of_blocks(kv, count, err);
        while (kv->free_count < count)
            if (!kv_evict_one(kv))
                return out_of_blocks(kv, count, err);
    }
    return MB_OK;
}

bool kv_evict_for(struct mb_kv *kv, uint32_t block)
{
    if (kv->refs[block] - kv->read_by[block] != 2 || !kv_is_evictable(kv, block))
        return false;
    while (kv->refs[block] - kv->read_by[block] != 1 && kv_evict_one(kv))
        ;
    return true;
}

uint32_t kv_take(struct mb_kv *kv)
{
    return kv->free_list[--kv->free_count];
}

void kv_ref(struct mb_kv *kv, uint32_t block)
{
    if (!kv->refs[block]++)
        kv->chunks[block / kv->config.chunk_blocks].used++;
}

void kv_unref(struct mb_kv *kv, uint32_t block)
{
    if (--kv->refs[block])
        return;
    kv->chunks[block / kv->config.chunk_blocks].used--;
    push_free(kv, block);
}

/* Only after a flush: nothing shows a block without references then. */
void kv_drop_unused_chunks(struct mb_kv *kv)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < kv->chunk_count; i++) {
        if (!kv->chunks[i].mem || kv->chunks[i].used)
            continue;
        kv->map.release(kv->map.user, kv->chunks[i].mem);
        kv->chunks[i].mem = NULL;
    }
    for (uint32_t i = 0; i < kv->free_count; i++)
        if (kv->chunks[kv->free_list[i] / kv->config.chunk_blocks].mem)
            kv->free_list[kept++] = kv->free_list[i];
    kv->free_count = kept;
}
