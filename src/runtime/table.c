/* SPDX-License-Identifier: MIT */
/*
 * Open addressing with linear probing; removal shifts the entries behind back, so probes stay
 * short.
 *
 * Locking: writers hold the device's lock. A reader takes none: it reads the sequence, probes, and
 * reads the sequence again; if a writer was at work, it starts over. The arrays of earlier sizes
 * stay until the end, so that a late reader never touches freed memory; together they are smaller
 * than the present one. An address that its caller owns is found however often a reader starts
 * over, since nobody removes it.
 */
#include <stdlib.h>

#include "base/err.h"
#include "runtime/runtime.h"

struct slot {
    uint64_t addr;           /* 0: empty; atomic */
    struct mb__block *block; /* atomic */
};

struct mb__table_array {
    struct mb__table_array *next; /* of mb__table.old */
    unsigned bits;                /* log2 of the number of slots */
    struct slot slots[];
};

enum {
    FIRST_BITS = 10,
};

static size_t home_of(const struct mb__table_array *array, uint64_t addr)
{
    return (size_t)((addr >> 9) * 0x9e3779b97f4a7c15u >> (64 - array->bits));
}

static struct mb__table_array *array_new(unsigned bits)
{
    struct mb__table_array *array =
        calloc(1, sizeof(*array) + ((size_t)1 << bits) * sizeof(struct slot));

    if (array)
        array->bits = bits;
    return array;
}

static void slot_set(struct slot *slot, uint64_t addr, struct mb__block *block)
{
    __atomic_store_n(&slot->block, block, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->addr, addr, __ATOMIC_RELAXED);
}

static void array_put(struct mb__table_array *array, uint64_t addr, struct mb__block *block)
{
    size_t mask = ((size_t)1 << array->bits) - 1;
    size_t i = home_of(array, addr);

    while (array->slots[i].addr)
        i = (i + 1) & mask;
    slot_set(&array->slots[i], addr, block);
}

void mb__table_fini(struct mb__table *table)
{
    while (table->old) {
        struct mb__table_array *array = table->old;

        table->old = array->next;
        free(array);
    }
    free(table->array);
    *table = (struct mb__table){0};
}

/* Odd while the table changes: readers that saw any of it start over. */
static void begin(struct mb__table *table)
{
    __atomic_store_n(&table->sequence, table->sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

static void end(struct mb__table *table)
{
    __atomic_store_n(&table->sequence, table->sequence + 1, __ATOMIC_RELEASE);
}

enum mb_err mb__table_prepare(struct mb__table *table)
{
    struct mb__table_array *old = table->array, *array;

    if (old && (table->count + 1) * 2 <= (size_t)1 << old->bits)
        return MB_OK;
    array = array_new(old ? old->bits + 1 : FIRST_BITS);
    if (!array)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a table of %zu blocks",
                        table->count * 2);
    if (old) {
        for (size_t i = 0; i < (size_t)1 << old->bits; i++)
            if (old->slots[i].addr)
                array_put(array, old->slots[i].addr, old->slots[i].block);
        old->next = table->old;
        table->old = old;
    }
    begin(table);
    __atomic_store_n(&table->array, array, __ATOMIC_RELEASE);
    end(table);
    return MB_OK;
}

void mb__table_put(struct mb__table *table, uint64_t addr, struct mb__block *block)
{
    begin(table);
    array_put(table->array, addr, block);
    end(table);
    table->count++;
}

void mb__table_del(struct mb__table *table, uint64_t addr)
{
    struct mb__table_array *array = table->array;
    size_t mask = ((size_t)1 << array->bits) - 1;
    size_t hole = home_of(array, addr), i;

    while (array->slots[hole].addr != addr)
        hole = (hole + 1) & mask;
    begin(table);
    for (i = (hole + 1) & mask; array->slots[i].addr; i = (i + 1) & mask) {
        size_t home = home_of(array, array->slots[i].addr);

        /* Entry i may fill the hole unless its home lies behind the hole. */
        if (((i - home) & mask) < ((i - hole) & mask))
            continue;
        slot_set(&array->slots[hole], array->slots[i].addr, array->slots[i].block);
        hole = i;
    }
    slot_set(&array->slots[hole], 0, NULL);
    end(table);
    table->count--;
}

static struct mb__block *probe(const struct mb__table_array *array, uint64_t addr)
{
    size_t mask = ((size_t)1 << array->bits) - 1;
    size_t i = home_of(array, addr);

    /* Bounded: a table seen in the middle of a change may show no empty slot. */
    for (size_t tries = 0; tries <= mask; tries++, i = (i + 1) & mask) {
        uint64_t key = __atomic_load_n(&array->slots[i].addr, __ATOMIC_RELAXED);

        if (key == addr)
            return __atomic_load_n(&array->slots[i].block, __ATOMIC_RELAXED);
        if (!key)
            break;
    }
    return NULL;
}

struct mb__block *mb__table_get(const struct mb__table *table, uint64_t addr)
{
    for (;;) {
        uint64_t sequence = __atomic_load_n(&table->sequence, __ATOMIC_ACQUIRE);
        const struct mb__table_array *array = __atomic_load_n(&table->array, __ATOMIC_ACQUIRE);
        struct mb__block *block = array && !(sequence & 1) ? probe(array, addr) : NULL;

        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(sequence & 1) && __atomic_load_n(&table->sequence, __ATOMIC_RELAXED) == sequence)
            return block;
    }
}

struct mb__block *mb__table_next(const struct mb__table *table, size_t *at)
{
    const struct mb__table_array *array = table->array;

    if (!array)
        return NULL;
    while (*at < (size_t)1 << array->bits) {
        const struct slot *slot = &array->slots[(*at)++];

        if (slot->addr)
            return slot->block;
    }
    return NULL;
}
