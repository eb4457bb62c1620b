/* SPDX-License-Identifier: MIT */
/*
 * memory.c - physical memory that costs what is touched.
 *
 * Nothing stores bytes. Contents are ranges that follow one pattern (kernels/pattern.h): the
 * pattern's argument is linear in the address, so a range is its bounds and one number, the key,
 * and stays so however it is cut, joined or copied. An arbitrary word is a range of one, its key
 * found by inverting the mix. Comparing a range with a pattern compares keys: the mix is a
 * bijection, so different keys mean that every word differs.
 *
 * A frame that holds one pattern is two words. Otherwise its contents lie in chunks of 64 KiB, each
 * a sorted array of ranges; 64 bytes touched anywhere cost 16.
 *
 * Trade-off: a chunk of 8,192 words with nothing in common costs twice its bytes. Programs that
 * store such data word by word are test kernels, which are small.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((uint32_t)1 << SIM_CHUNK_SHIFT)

enum mb_err mb__sim_memory_open(struct sim_memory *mem, uint64_t base, uint64_t bytes)
{
    mem->base = base;
    mem->bytes = bytes;
    mem->frames = mem->free_frames = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    mem->frame = calloc(mem->frames, sizeof(struct sim_frame *));
    mem->held = calloc(mem->frames, 1);
    mem->host_bytes = mem->frames * (sizeof(struct sim_frame *) + 1);
    if (mem->frame && mem->held)
        return MB_OK;
    free(mem->frame);
    free(mem->held);
    mem->frame = NULL;
    mem->held = NULL;
    return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for %u frame records",
                    mem->frames);
}

void mb__sim_memory_close(struct sim_memory *mem)
{
    for (uint32_t i = 0; mem->frame && i < mem->frames; i++)
        mb__sim_memory_drop(mem, i);
    while (mem->lists) {
        struct sim_pfns *next = mem->lists->next;

        free(mem->lists);
        mem->lists = next;
    }
    free(mem->frame);
    free(mem->held);
}

uint32_t mb__sim_memory_frame(const struct sim_memory *mem, uint64_t phys)
{
    if (phys < mem->base || phys - mem->base >= mem->bytes)
        return UINT32_MAX;
    return (uint32_t)((phys - mem->base) >> MB_FRAME_SHIFT);
}

static size_t chunk_size(uint32_t capacity)
{
    return sizeof(struct sim_chunk) + capacity * sizeof(struct sim_extent);
}

void mb__sim_memory_drop(struct sim_memory *mem, uint32_t index)
{
    struct sim_frame *frame = mem->frame[index];

    if (!frame)
        return;
    for (unsigned i = 0; i < SIM_CHUNKS; i++) {
        if (frame->chunk[i])
            mem->host_bytes -= chunk_size(frame->chunk[i]->capacity);
        free(frame->chunk[i]);
    }
    free(frame);
    mem->host_bytes -= sizeof(*frame);
    mem->frame[index] = NULL;
}

static struct sim_frame *touch_frame(struct sim_memory *mem, uint32_t index)
{
    struct sim_frame *frame = mem->frame[index];

    if (frame)
        return frame;
    frame = calloc(1, sizeof(*frame));
    if (!frame) {
        mem->failed = true;
        return NULL;
    }
    mem->host_bytes += sizeof(*frame);
    mem->frame[index] = frame;
    return frame;
}

/* Room for `count` ranges; NULL when the host has no memory. */
static struct sim_chunk *grow_chunk(struct sim_memory *mem, struct sim_chunk **slot, uint32_t count)
{
    struct sim_chunk *old = *slot, *chunk;
    uint32_t capacity = old ? old->capacity : 2;
    size_t old_size = old ? chunk_size(old->capacity) : 0;

    if (old && count <= old->capacity)
        return old;
    /* Half as much again: most chunks stay small and there may be a million of them. */
    while (capacity < count)
        capacity += capacity / 2 + 1;
    chunk = realloc(old, chunk_size(capacity));
    if (!chunk) {
        mem->failed = true;
        return NULL;
    }
    if (!old)
        chunk->count = 0;
    mem->host_bytes += chunk_size(capacity) - old_size;
    chunk->capacity = capacity;
    *slot = chunk;
    return chunk;
}

/* First range that ends after `off`. */
static uint32_t first_after(const struct sim_chunk *chunk, uint32_t off)
{
    uint32_t lo = 0, hi = chunk->count;

    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;

        if (chunk->e[mid].off + chunk->e[mid].len > off)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Puts n ranges in place of [lo, hi). */
static void splice(struct sim_memory *mem, struct sim_chunk **slot, uint32_t lo, uint32_t hi,
                   const struct sim_extent *with, uint32_t n)
{
    uint32_t old = *slot ? (*slot)->count : 0;
    struct sim_chunk *chunk = grow_chunk(mem, slot, old - (hi - lo) + n);

    if (!chunk)
        return;
    if (hi - lo != n)
        memmove(&chunk->e[lo + n], &chunk->e[hi], (old - hi) * sizeof(chunk->e[0]));
    memcpy(&chunk->e[lo], with, n * sizeof(with[0]));
    chunk->count = old - (hi - lo) + n;
}

/* [off, off + len) of a chunk gets `key`, or becomes unwritten when `hole`. */
static void write_chunk(struct sim_memory *mem, struct sim_chunk **slot, uint32_t off, uint32_t len,
                        uint64_t key, bool hole)
{
    const struct sim_chunk *chunk = *slot;
    struct sim_extent with[3], mine = {off, len, key};
    uint32_t count = chunk ? chunk->count : 0, lo = chunk ? first_after(chunk, off) : 0, hi = lo;
    uint32_t end = off + len, n = 0;

    while (hi < count && chunk->e[hi].off < end)
        hi++;
    if (hi == lo + 1 && chunk->e[lo].off == off && chunk->e[lo].len == len && !hole &&
        (lo == 0 || chunk->e[lo - 1].key != key) && (hi == count || chunk->e[hi].key != key)) {
        (*slot)->e[lo].key = key;
        return;
    }
    if (!hole && lo > 0 && chunk->e[lo - 1].off + chunk->e[lo - 1].len == off &&
        chunk->e[lo - 1].key == key) {
        lo--;
        mine.off = chunk->e[lo].off;
    } else if (lo < hi && chunk->e[lo].off < off) {
        if (!hole && chunk->e[lo].key == key)
            mine.off = chunk->e[lo].off;
        else
            with[n++] =
                (struct sim_extent){chunk->e[lo].off, off - chunk->e[lo].off, chunk->e[lo].key};
    }
    mine.len = end - mine.off;
    if (!hole)
        with[n++] = mine;
    if (hi > lo) {
        const struct sim_extent *last = &chunk->e[hi - 1];
        uint32_t last_end = last->off + last->len;

        if (last_end > end && !hole && last->key == key)
            with[n - 1].len = last_end - with[n - 1].off;
        else if (last_end > end)
            with[n++] = (struct sim_extent){end, last_end - end, last->key};
    }
    if (!hole && hi < count && chunk->e[hi].off == end && chunk->e[hi].key == key) {
        with[n - 1].len = chunk->e[hi].off + chunk->e[hi].len - with[n - 1].off;
        hi++;
    }
    splice(mem, slot, lo, hi, with, n);
}

/* The frame holds one pattern; give it chunks that say the same. */
static void unfold_frame(struct sim_memory *mem, struct sim_frame *frame)
{
    frame->whole = false;
    for (unsigned i = 0; i < SIM_CHUNKS; i++)
        write_chunk(mem, &frame->chunk[i], 0, CHUNK_BYTES, frame->key, false);
}

static void fold_frame(struct sim_memory *mem, struct sim_frame *frame, uint64_t key)
{
    for (unsigned i = 0; i < SIM_CHUNKS; i++) {
        if (frame->chunk[i])
            mem->host_bytes -= chunk_size(frame->chunk[i]->capacity);
        free(frame->chunk[i]);
        frame->chunk[i] = NULL;
    }
    frame->whole = true;
    frame->key = key;
}

static void write_range(struct sim_memory *mem, uint64_t phys, uint64_t bytes, uint64_t key,
                        bool hole)
{
    while (bytes) {
        uint64_t in_frame = (phys - mem->base) & (MB_FRAME_BYTES - 1);
        uint64_t in_chunk = in_frame & (CHUNK_BYTES - 1);
        uint64_t piece = CHUNK_BYTES - in_chunk;
        struct sim_frame *frame = touch_frame(mem, mb__sim_memory_frame(mem, phys));

        if (!frame)
            return;
        if (!in_frame && bytes >= MB_FRAME_BYTES && !hole) {
            fold_frame(mem, frame, key);
            piece = MB_FRAME_BYTES;
        } else {
            piece = piece < bytes ? piece : bytes;
            if (frame->whole && (hole || frame->key != key))
                unfold_frame(mem, frame);
            if (!frame->whole)
                write_chunk(mem, &frame->chunk[in_frame >> SIM_CHUNK_SHIFT], (uint32_t)in_chunk,
                            (uint32_t)piece, key, hole);
        }
        phys += piece;
        bytes -= piece;
    }
}

void mb__sim_memory_write(struct sim_memory *mem, uint64_t phys, uint64_t bytes, uint64_t key)
{
    write_range(mem, phys, bytes, key, false);
}

/* The longest piece from phys on, at most `bytes`, that is one pattern (*written, *key) or
 * unwritten. */
static uint64_t piece_at(struct sim_memory *mem, uint64_t phys, uint64_t bytes, bool *written,
                         uint64_t *key)
{
    uint64_t in_frame = (phys - mem->base) & (MB_FRAME_BYTES - 1);
    uint32_t off = (uint32_t)(in_frame & (CHUNK_BYTES - 1));
    const struct sim_frame *frame = mem->frame[mb__sim_memory_frame(mem, phys)];
    const struct sim_chunk *chunk;
    uint64_t piece = MB_FRAME_BYTES - in_frame;
    uint32_t i;

    *written = false;
    if (frame && frame->whole) {
        *written = true;
        *key = frame->key;
    } else if (frame) {
        piece = CHUNK_BYTES - off;
        chunk = frame->chunk[in_frame >> SIM_CHUNK_SHIFT];
        i = chunk ? first_after(chunk, off) : 0;
        if (chunk && i < chunk->count) {
            *written = chunk->e[i].off <= off;
            piece = *written ? chunk->e[i].off + chunk->e[i].len - off : chunk->e[i].off - off;
            *key = chunk->e[i].key;
        }
    }
    return piece < bytes ? piece : bytes;
}

uint64_t mb__sim_memory_differ(struct sim_memory *mem, uint64_t phys, uint64_t bytes, uint64_t key)
{
    uint64_t wrong = 0;

    while (bytes) {
        bool written;
        uint64_t found = 0;
        uint64_t piece = piece_at(mem, phys, bytes, &written, &found);

        if (!written || found != key)
            wrong += piece / 8;
        phys += piece;
        bytes -= piece;
    }
    return wrong;
}

/* Front to back: source and destination of one call do not overlap, or the result is as undefined
 * as on a device. */
void mb__sim_memory_copy(struct sim_memory *to, uint64_t dst, struct sim_memory *from, uint64_t src,
                         uint64_t bytes)
{
    while (bytes) {
        bool written;
        uint64_t key = 0;
        uint64_t piece = piece_at(from, src, bytes, &written, &key);

        /* The key counts from physical address 0: moving the words moves it by the distance. */
        write_range(to, dst, piece, key + (src / 8 - dst / 8) * MB_PATTERN_GOLDEN, !written);
        src += piece;
        dst += piece;
        bytes -= piece;
    }
}

/* Never written memory reads as a value that shows where it came from. */
uint64_t mb__sim_memory_word(struct sim_memory *mem, uint64_t phys)
{
    bool written;
    uint64_t key = 0;

    (void)piece_at(mem, phys, 8, &written, &key);
    if (!written)
        return (uint64_t)0xdeadbeef << 32 | (uint32_t)(phys >> 3);
    return mb_pattern_mix(key + phys / 8 * MB_PATTERN_GOLDEN);
}

void mb__sim_memory_set_word(struct sim_memory *mem, uint64_t phys, uint64_t word)
{
    write_range(mem, phys, 8, mb_pattern_unmix(word) - phys / 8 * MB_PATTERN_GOLDEN, false);
}
