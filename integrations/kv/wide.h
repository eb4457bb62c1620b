/* SPDX-License-Identifier: MIT */
/*
 * wide.h - loops over records of blocks, in steps of a constant number.
 *
 * Compilers make such loops wide (SIMD) at -O2, and others not. A prefix of 2 GB has 1,024 blocks,
 * and attaching it passes over its records several times.
 */
#ifndef MB_KV_WIDE_H
#define MB_KV_WIDE_H

#include "kv.h"

/* Tests build the cache with a smaller one, so that their small programs have wide steps. */
#ifndef KV_AT_ONCE
#define KV_AT_ONCE 32
#endif

/* Adds `by` to each of the counts, modulo 2^32. */
static inline void kv_count(uint32_t *counts, uint32_t count, uint32_t by)
{
    for (; count >= KV_AT_ONCE; count -= KV_AT_ONCE, counts += KV_AT_ONCE)
        for (uint32_t i = 0; i < KV_AT_ONCE; i++)
            counts[i] += by;
    for (uint32_t i = 0; i < count; i++)
        counts[i] += by;
}

/* Is any of the numbers not 0? */
static inline bool kv_any(const uint32_t *list, uint32_t count)
{
    uint32_t any = 0;

    for (; count >= KV_AT_ONCE; count -= KV_AT_ONCE, list += KV_AT_ONCE)
        for (uint32_t i = 0; i < KV_AT_ONCE; i++)
            any |= list[i];
    for (uint32_t i = 0; i < count; i++)
        any |= list[i];
    return any != 0;
}

/* Entries of read-only blocks. */
static inline void kv_read_only(uint32_t *restrict entries, const uint32_t *restrict blocks,
                                uint32_t count)
{
    for (; count >= KV_AT_ONCE; count -= KV_AT_ONCE, entries += KV_AT_ONCE, blocks += KV_AT_ONCE)
        for (uint32_t i = 0; i < KV_AT_ONCE; i++)
            entries[i] = (blocks[i] + 1) | KV_READ_ONLY;
    for (uint32_t i = 0; i < count; i++)
        entries[i] = (blocks[i] + 1) | KV_READ_ONLY;
}

/* Are KV_AT_ONCE entries `first` and those of the blocks behind it, with the same rights? */
static inline bool kv_in_row(const uint32_t *entries, uint32_t first)
{
    uint32_t differ = 0;

    for (uint32_t i = 0; i < KV_AT_ONCE; i++)
        differ |= entries[i] ^ (first + i);
    return !differ;
}

/* Are KV_AT_ONCE numbers all other than `one`? */
static inline bool kv_all_other(const uint32_t *list, uint32_t one)
{
    uint32_t equal = 0;

    for (uint32_t i = 0; i < KV_AT_ONCE; i++)
        equal |= list[i] == one;
    return !equal;
}

/* How many of `count` entries at the front name the same blocks, with whatever rights. */
static inline uint32_t kv_same(const uint32_t *a, const uint32_t *b, uint32_t count)
{
    uint32_t same = 0, differ = 0;

    for (; count - same >= KV_AT_ONCE; same += KV_AT_ONCE) {
        const uint32_t *x = a + same, *y = b + same;

        for (uint32_t i = 0; i < KV_AT_ONCE; i++)
            differ |= x[i] ^ y[i];
        if (differ & ~KV_READ_ONLY)
            break;
    }
    while (same < count && !((a[same] ^ b[same]) & ~KV_READ_ONLY))
        same++;
    return same;
}

#endif
