/* SPDX-License-Identifier: MIT */
/*
 * blocks.c - names of blocks → slots.
 *
 * HOW    Open addressing with linear probing and backward-shift deletion, so that no tombstones
 *        gather in a trace that allocates and frees for hours. The hash is a fixed strong mix: a
 *        hostile trace may still aim at one chain, which costs time bounded by the limit on entries
 *        per look-up.
 * TRADE  A freed name has to be remembered to tell a second free from the free of a block from
 *        before the trace. Recorders that number their blocks give consecutive names; those need
 *        only a range.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    FIRST_CAPACITY = 1024,
    DEFAULT_LIMIT = 8 * 1024 * 1024,
};
/* Marks beside slots; slots themselves are below the limit, which is below both. */
#define SLOT_EMPTY UINT32_MAX
#define SLOT_FREED (UINT32_MAX - 1)

void trace_blocks_init(struct trace_blocks *blocks, uint64_t limit)
{
    memset(blocks, 0, sizeof(*blocks));
    blocks->limit = limit && limit < DEFAULT_LIMIT * 64u ? limit : DEFAULT_LIMIT;
    blocks->free_slot = TRACE_NO_SLOT;
}

void trace_blocks_fini(struct trace_blocks *blocks)
{
    free(blocks->names);
    free(blocks->slots);
    free(blocks->records);
    memset(blocks, 0, sizeof(*blocks));
}

static size_t home_of(const struct trace_blocks *blocks, uint64_t name)
{
    uint64_t z = name + 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (size_t)(z ^ (z >> 31)) & (blocks->capacity - 1);
}

/* Index of the name's entry, or of the empty entry where it would go. Capacity must not be 0. */
static size_t locate(const struct trace_blocks *blocks, uint64_t name)
{
    size_t i = home_of(blocks, name);

    while (blocks->slots[i] != SLOT_EMPTY && blocks->names[i] != name)
        i = (i + 1) & (blocks->capacity - 1);
    return i;
}

static bool in_range(const struct trace_blocks *blocks, uint64_t name)
{
    return name >= blocks->range_begin && name < blocks->range_end;
}

enum trace_block_state trace_blocks_find(const struct trace_blocks *blocks, uint64_t name,
                                         uint32_t *slot)
{
    enum trace_block_state absent =
        in_range(blocks, name) ? TRACE_BLOCK_FREED : TRACE_BLOCK_UNKNOWN;
    uint32_t found;

    if (!blocks->capacity)
        return absent;
    found = blocks->slots[locate(blocks, name)];
    if (found == SLOT_EMPTY)
        return absent;
    if (found == SLOT_FREED)
        return TRACE_BLOCK_FREED;
    *slot = found;
    return TRACE_BLOCK_LIVE;
}

/* Doubles the table. */
static enum trace_status grow_table(struct trace_blocks *blocks)
{
    size_t old_capacity = blocks->capacity;
    size_t capacity = old_capacity ? 2 * old_capacity : FIRST_CAPACITY;
    uint64_t *old_names = blocks->names;
    uint32_t *old_slots = blocks->slots;
    uint64_t *names = malloc(capacity * sizeof(*names));
    uint32_t *slots = malloc(capacity * sizeof(*slots));

    if (!names || !slots) {
        free(names);
        free(slots);
        return TRACE_HOST_MEMORY;
    }
    memset(slots, 0xff, capacity * sizeof(*slots)); /* SLOT_EMPTY */
    blocks->names = names;
    blocks->slots = slots;
    blocks->capacity = capacity;
    for (size_t i = 0; i < old_capacity; i++) {
        size_t to;

        if (old_slots[i] == SLOT_EMPTY)
            continue;
        to = locate(blocks, old_names[i]);
        names[to] = old_names[i];
        slots[to] = old_slots[i];
    }
    free(old_names);
    free(old_slots);
    return TRACE_OK;
}

/* Makes sure that a slot can be taken. */
static enum trace_status grow_records(struct trace_blocks *blocks)
{
    uint32_t capacity = blocks->record_capacity ? 2 * blocks->record_capacity : FIRST_CAPACITY;
    struct trace_block *records;

    if (blocks->free_slot != TRACE_NO_SLOT || blocks->record_count < blocks->record_capacity)
        return TRACE_OK;
    records = realloc(blocks->records, capacity * sizeof(*records));
    if (!records)
        return TRACE_HOST_MEMORY;
    blocks->records = records;
    blocks->record_capacity = capacity;
    return TRACE_OK;
}

static uint32_t take_slot(struct trace_blocks *blocks)
{
    uint32_t slot = blocks->free_slot;

    if (slot == TRACE_NO_SLOT)
        return blocks->record_count++;
    blocks->free_slot = blocks->records[slot].next_free;
    return slot;
}

/* Extends the range of names seen, or begins it; a jump leaves it as it is. */
static void note_name(struct trace_blocks *blocks, uint64_t name)
{
    if (blocks->range_begin == blocks->range_end) {
        blocks->range_begin = name;
        blocks->range_end = name;
    }
    if (name == blocks->range_end && name != UINT64_MAX)
        blocks->range_end = name + 1;
}

enum trace_status trace_blocks_add(struct trace_blocks *blocks, const struct trace_block *block,
                                   uint32_t *slot)
{
    enum trace_status status;
    uint32_t taken;
    size_t i;

    if (4 * (blocks->live + blocks->remembered + 1) > 3 * blocks->capacity) {
        status = grow_table(blocks);
        if (status)
            return status;
    }
    i = locate(blocks, block->name);
    if (blocks->slots[i] == SLOT_EMPTY && blocks->live + blocks->remembered >= blocks->limit)
        return TRACE_BAD_INPUT;
    status = grow_records(blocks);
    if (status)
        return status;
    if (blocks->slots[i] == SLOT_FREED)
        blocks->remembered--;
    taken = take_slot(blocks);
    blocks->names[i] = block->name;
    blocks->slots[i] = taken;
    blocks->live++;
    blocks->records[taken] = *block;
    blocks->records[taken].next_free = TRACE_NO_SLOT;
    note_name(blocks, block->name);
    *slot = taken;
    return TRACE_OK;
}

/* Empties entry i and moves up those of its chain that the gap would hide. */
static void erase_entry(struct trace_blocks *blocks, size_t i)
{
    size_t mask = blocks->capacity - 1;
    size_t gap = i;

    for (size_t j = (i + 1) & mask; blocks->slots[j] != SLOT_EMPTY; j = (j + 1) & mask) {
        size_t home = home_of(blocks, blocks->names[j]);

        /* j may move to the gap unless its home lies cyclically in (gap, j]. */
        if (((j - home) & mask) < ((j - gap) & mask))
            continue;
        blocks->names[gap] = blocks->names[j];
        blocks->slots[gap] = blocks->slots[j];
        gap = j;
    }
    blocks->slots[gap] = SLOT_EMPTY;
}

void trace_blocks_remove(struct trace_blocks *blocks, uint32_t slot)
{
    uint64_t name = blocks->records[slot].name;
    size_t i = locate(blocks, name);

    if (in_range(blocks, name)) {
        erase_entry(blocks, i);
    } else {
        blocks->slots[i] = SLOT_FREED;
        blocks->remembered++;
    }
    blocks->live--;
    blocks->records[slot].next_free = blocks->free_slot;
    blocks->free_slot = slot;
}

bool trace_blocks_check(const struct trace_blocks *blocks)
{
    size_t live = 0;
    size_t remembered = 0;
    size_t free_slots = 0;

    for (size_t i = 0; i < blocks->capacity; i++) {
        uint32_t slot = blocks->slots[i];

        if (slot == SLOT_EMPTY)
            continue;
        if (locate(blocks, blocks->names[i]) != i)
            return false;
        if (slot == SLOT_FREED) {
            remembered++;
            continue;
        }
        live++;
        if (slot >= blocks->record_count || blocks->records[slot].name != blocks->names[i])
            return false;
    }
    for (uint32_t s = blocks->free_slot; s != TRACE_NO_SLOT; s = blocks->records[s].next_free)
        if (++free_slots > blocks->record_count)
            return false;
    return live == blocks->live && remembered == blocks->remembered &&
           live + free_slots == blocks->record_count;
}
