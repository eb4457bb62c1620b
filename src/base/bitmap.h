/* SPDX-License-Identifier: MIT */
/*
 * bitmap.h - a fixed number of bits, with searches by word.
 *
 * Bits past the end are kept 0. A search that finds nothing gives `bits`. LOCKING: the caller's.
 */
#ifndef MB_BASE_BITMAP_H
#define MB_BASE_BITMAP_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct mb_bitmap {
    uint64_t *words; /* owned */
    size_t bits;     /* number of bits */
};

/* All bits 0. false: no host memory. */
static inline bool mb__bitmap_init(struct mb_bitmap *map, size_t bits)
{
    uint64_t *words = calloc(bits / 64 + 1, sizeof(*words));

    if (!words)
        return false;
    map->words = words;
    map->bits = bits;
    return true;
}

static inline void mb__bitmap_free(struct mb_bitmap *map)
{
    free(map->words);
    map->words = NULL;
    map->bits = 0;
}

static inline bool mb__bitmap_test(const struct mb_bitmap *map, size_t i)
{
    return map->words[i / 64] >> (i % 64) & 1;
}

static inline void mb__bitmap_set(struct mb_bitmap *map, size_t i)
{
    map->words[i / 64] |= (uint64_t)1 << (i % 64);
}

static inline void mb__bitmap_clear(struct mb_bitmap *map, size_t i)
{
    map->words[i / 64] &= ~((uint64_t)1 << (i % 64));
}

/* Bits from..from+count-1 become `value`. */
static inline void mb__bitmap_assign(struct mb_bitmap *map, size_t from, size_t count, bool value)
{
    while (count) {
        size_t in_word = 64 - from % 64;
        size_t n = count < in_word ? count : in_word;
        uint64_t mask = (n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) << (from % 64);

        if (value)
            map->words[from / 64] |= mask;
        else
            map->words[from / 64] &= ~mask;
        from += n;
        count -= n;
    }
}

/* First bit at or after `from` that is `value`. */
static inline size_t mb__bitmap_find(const struct mb_bitmap *map, size_t from, bool value)
{
    uint64_t flip = value ? 0 : ~(uint64_t)0;

    while (from < map->bits) {
        uint64_t word = (map->words[from / 64] ^ flip) >> (from % 64);

        if (word) {
            from += (size_t)__builtin_ctzll(word);
            return from < map->bits ? from : map->bits;
        }
        from += 64 - from % 64;
    }
    return map->bits;
}

/* First bit at or after `from` that starts `count` clear ones. */
static inline size_t mb__bitmap_find_clear_run(const struct mb_bitmap *map, size_t from,
                                               size_t count)
{
    while (from < map->bits) {
        size_t start = mb__bitmap_find(map, from, false);
        size_t end = mb__bitmap_find(map, start, true);

        if (start < map->bits && end - start >= count)
            return start;
        from = end;
    }
    return map->bits;
}

/* Number of set bits in from..from+count-1. */
static inline size_t mb__bitmap_count(const struct mb_bitmap *map, size_t from, size_t count)
{
    size_t sum = 0;

    while (count) {
        size_t in_word = 64 - from % 64;
        size_t n = count < in_word ? count : in_word;
        uint64_t mask = (n == 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1) << (from % 64);

        sum += (size_t)__builtin_popcountll(map->words[from / 64] & mask);
        from += n;
        count -= n;
    }
    return sum;
}

#endif
