/* SPDX-License-Identifier: MIT */
/*
 * table.c - page-table memory: physical addresses above the frames, backed byte for byte.
 *
 * Entries are real bytes, since the walker has to read what pte_pop wrote. Addresses are found
 * first fit in a sorted list; a list of a few thousand allocations is searched by halves, with the
 * last hit tried first, as walks and batches stay in one table for long.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

/* First block whose end lies above `phys`. */
static unsigned block_after(const struct sim_tables *tables, uint64_t phys)
{
    unsigned lo = 0, hi = tables->count;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (tables->block[mid].phys + tables->block[mid].bytes > phys)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static bool room_for_block(struct sim_tables *tables)
{
    unsigned capacity = tables->capacity ? 2 * tables->capacity : 64;
    struct sim_block *block;

    if (tables->count < tables->capacity)
        return true;
    block = realloc(tables->block, capacity * sizeof(*block));
    if (!block)
        return false;
    tables->block = block;
    tables->capacity = capacity;
    return true;
}

enum mb_err mb__sim_table_alloc(struct sim_dev *dev, uint64_t bytes, bool driver, uint64_t *phys)
{
    struct sim_tables *tables = &dev->tables;
    uint64_t at = tables->base;
    uint64_t limit = mb_fmt_phys_limit(dev->fmt, MB_AP_VID);
    unsigned i;
    void *host;

    if (!bytes || bytes % 4096)
        return mb__fail(MB_ERR_INVALID,
                        "table memory of %llu bytes asked; multiples of 4096 are allowed",
                        (unsigned long long)bytes);
    for (i = 0; i < tables->count && tables->block[i].phys - at < bytes; i++)
        at = tables->block[i].phys + tables->block[i].bytes;
    if (at + bytes > limit || at + bytes < at)
        return mb__fail(MB_ERR_NO_MEMORY, "no physical addresses left for %llu bytes of tables",
                        (unsigned long long)bytes);
    host = calloc(1, bytes);
    if (!host || !room_for_block(tables)) {
        free(host);
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for %llu bytes of tables",
                        (unsigned long long)bytes);
    }
    memmove(&tables->block[i + 1], &tables->block[i], (tables->count - i) * sizeof(*tables->block));
    tables->block[i] = (struct sim_block){at, bytes, host, driver};
    tables->count++;
    tables->bytes += bytes;
    *phys = at;
    return MB_OK;
}

bool mb__sim_table_free(struct sim_dev *dev, uint64_t phys, uint64_t bytes)
{
    struct sim_tables *tables = &dev->tables;
    unsigned i = block_after(tables, phys);

    if (i == tables->count || tables->block[i].phys != phys || tables->block[i].bytes != bytes)
        return false;
    free(tables->block[i].host);
    tables->count--;
    tables->bytes -= bytes;
    memmove(&tables->block[i], &tables->block[i + 1], (tables->count - i) * sizeof(*tables->block));
    tables->hint = 0;
    return true;
}

static bool inside(const struct sim_block *block, uint64_t phys, uint64_t bytes)
{
    return phys >= block->phys && phys - block->phys < block->bytes &&
           bytes <= block->bytes - (phys - block->phys);
}

void *mb__sim_table_at(struct sim_dev *dev, uint64_t phys, uint64_t bytes)
{
    struct sim_tables *tables = &dev->tables;
    const struct sim_block *block;

    if (tables->hint >= tables->count || !inside(&tables->block[tables->hint], phys, bytes)) {
        tables->hint = block_after(tables, phys);
        if (tables->hint == tables->count || !inside(&tables->block[tables->hint], phys, bytes))
            return NULL;
    }
    block = &tables->block[tables->hint];
    return block->host + (phys - block->phys);
}

bool mb__sim_table_read(struct sim_dev *dev, uint64_t phys, unsigned entry_bytes,
                        struct mb_pte *out)
{
    const uint64_t *word = mb__sim_table_at(dev, phys, entry_bytes);

    if (!word)
        return false;
    out->lo = word[0];
    out->hi = entry_bytes == 16 ? word[1] : 0;
    return true;
}
