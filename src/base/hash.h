/* SPDX-License-Identifier: MIT */
/*
 * hash.h - a map from 64-bit keys (any value) to 64-bit values, by open addressing.
 *
 * Removing closes the gap instead of leaving a mark, so a map that lives for days stays as fast as
 * a new one. Load is at most 3/4; the table never shrinks. LOCKING: the caller's.
 */
#ifndef MB_BASE_HASH_H
#define MB_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

struct mb_map_slot {
    uint64_t key;   /* MB_MAP_EMPTY: unused */
    uint64_t value; /* caller's */
};
#define MB_MAP_EMPTY UINT64_MAX

/* Zero-initialised is empty. */
struct mb_map {
    struct mb_map_slot *slots; /* owned; 1 << bits of them, NULL while bits is 0 */
    unsigned bits;             /* log2 of the number of slots */
    bool has_empty_key;        /* the key MB_MAP_EMPTY itself is kept beside the table */
    uint64_t empty_key_value;
    size_t count; /* keys in the map */
};

void mb__map_free(struct mb_map *map);
/* Makes room for `count` keys in all, so that puts up to there cannot fail. MB_ERR_HOST_MEMORY. */
enum mb_err mb__map_reserve(struct mb_map *map, size_t count);
/* Adds or replaces. MB_ERR_HOST_MEMORY (then nothing changed; never when the key is there). */
enum mb_err mb__map_put(struct mb_map *map, uint64_t key, uint64_t value);
/* false: not there, *value untouched. value may be NULL. */
bool mb__map_get(const struct mb_map *map, uint64_t key, uint64_t *value);
/* Removes; false: was not there. value may be NULL, else gets the removed value. */
bool mb__map_del(struct mb_map *map, uint64_t key, uint64_t *value);
/* Removes all, keeps the memory. */
void mb__map_clear(struct mb_map *map);
/* Visits all in no order: start with *at = 0 until it returns false. Change nothing meanwhile. */
bool mb__map_next(const struct mb_map *map, size_t *at, uint64_t *key, uint64_t *value);

static inline enum mb_err mb__map_put_ptr(struct mb_map *map, uint64_t key, void *value)
{
    return mb__map_put(map, key, (uint64_t)(uintptr_t)value);
}
/* NULL: not there. */
static inline void *mb__map_get_ptr(const struct mb_map *map, uint64_t key)
{
    uint64_t value = 0;

    mb__map_get(map, key, &value);
    return (void *)(uintptr_t)value;
}
static inline void *mb__map_del_ptr(struct mb_map *map, uint64_t key)
{
    uint64_t value = 0;

    mb__map_del(map, key, &value);
    return (void *)(uintptr_t)value;
}

#endif
