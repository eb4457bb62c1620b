/* SPDX-License-Identifier: MIT */
/*
 * hash.c - linear probing with backward-shift removal.
 *
 * Invariant: no unused slot lies between a key's first choice and where it is. Removal keeps it by
 * moving later keys of the run into the gap, each no further back than its own first choice.
 */
#include "hash.h"

#include <stdlib.h>
#include <string.h>

#include "err.h"

enum {
    MIN_BITS = 4,
};

static size_t capacity(const struct mb_map *map)
{
    return map->slots ? (size_t)1 << map->bits : 0;
}

/* Keys are mostly aligned addresses and small numbers: all is mixed, the top bits chosen. */
static size_t first_choice(const struct mb_map *map, uint64_t key)
{
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
    key *= 0xbf58476d1ce4e5b9u;
    return (size_t)(key >> (64 - map->bits));
}

/* The key's slot, or the unused one where it belongs. There is always an unused slot. */
static size_t find(const struct mb_map *map, uint64_t key)
{
    size_t mask = capacity(map) - 1;
    size_t i = first_choice(map, key);

    while (map->slots[i].key != key && map->slots[i].key != MB_MAP_EMPTY)
        i = (i + 1) & mask;
    return i;
}

static enum mb_err grow(struct mb_map *map, unsigned bits)
{
    struct mb_map grown = *map;
    size_t bytes = sizeof(*map->slots) << bits;

    grown.slots = malloc(bytes);
    if (!grown.slots)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a table of %zu bytes", bytes);
    memset(grown.slots, 0xff, bytes); /* MB_MAP_EMPTY everywhere */
    grown.bits = bits;
    for (size_t i = 0; i < capacity(map); i++)
        if (map->slots[i].key != MB_MAP_EMPTY)
            grown.slots[find(&grown, map->slots[i].key)] = map->slots[i];
    free(map->slots);
    *map = grown;
    return MB_OK;
}

void mb__map_free(struct mb_map *map)
{
    free(map->slots);
    memset(map, 0, sizeof(*map));
}

enum mb_err mb__map_reserve(struct mb_map *map, size_t count)
{
    unsigned bits = map->slots ? map->bits : MIN_BITS;

    if (count > SIZE_MAX / 64)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a table of %zu keys", count);
    while (count > ((size_t)3 << bits) / 4)
        bits++;
    return map->slots && bits == map->bits ? MB_OK : grow(map, bits);
}

enum mb_err mb__map_put(struct mb_map *map, uint64_t key, uint64_t value)
{
    enum mb_err err;
    size_t i;

    if (key == MB_MAP_EMPTY) {
        map->count += !map->has_empty_key;
        map->has_empty_key = true;
        map->empty_key_value = value;
        return MB_OK;
    }
    if (map->slots) {
        i = find(map, key);
        if (map->slots[i].key == key) {
            map->slots[i].value = value;
            return MB_OK;
        }
    }
    err = mb__map_reserve(map, map->count + 1);
    if (err)
        return err;
    i = find(map, key);
    map->slots[i].key = key;
    map->slots[i].value = value;
    map->count++;
    return MB_OK;
}

bool mb__map_get(const struct mb_map *map, uint64_t key, uint64_t *value)
{
    uint64_t found = map->empty_key_value;

    if (key == MB_MAP_EMPTY) {
        if (!map->has_empty_key)
            return false;
    } else {
        size_t i = map->slots ? find(map, key) : 0;

        if (!map->slots || map->slots[i].key != key)
            return false;
        found = map->slots[i].value;
    }
    if (value)
        *value = found;
    return true;
}

static void close_gap(struct mb_map *map, size_t gap)
{
    size_t mask = capacity(map) - 1;

    for (size_t i = (gap + 1) & mask; map->slots[i].key != MB_MAP_EMPTY; i = (i + 1) & mask) {
        size_t home = first_choice(map, map->slots[i].key);

        /* Movable when its first choice does not lie cyclically within (gap, i]. */
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            map->slots[gap] = map->slots[i];
            gap = i;
        }
    }
    map->slots[gap].key = MB_MAP_EMPTY;
}

bool mb__map_del(struct mb_map *map, uint64_t key, uint64_t *value)
{
    if (!mb__map_get(map, key, value))
        return false;
    if (key == MB_MAP_EMPTY)
        map->has_empty_key = false;
    else
        close_gap(map, find(map, key));
    map->count--;
    return true;
}

void mb__map_clear(struct mb_map *map)
{
    if (map->slots)
        memset(map->slots, 0xff, sizeof(*map->slots) << map->bits);
    map->has_empty_key = false;
    map->count = 0;
}

bool mb__map_next(const struct mb_map *map, size_t *at, uint64_t *key, uint64_t *value)
{
    size_t slots = capacity(map);

    for (; *at < slots; ++*at) {
        if (map->slots[*at].key == MB_MAP_EMPTY)
            continue;
        *key = map->slots[*at].key;
        *value = map->slots[*at].value;
        ++*at;
        return true;
    }
    if (*at > slots || !map->has_empty_key)
        return false;
    *key = MB_MAP_EMPTY;
    *value = map->empty_key_value;
    *at = slots + 1;
    return true;
}
