/* SPDX-License-Identifier: MIT */
/*
 * sort.h - sorting of small items by an order that is known where it is compiled.
 *
 *     static inline bool range_before(const struct range *a, const struct range *b)
 *     {
 *         return a->addr < b->addr;
 *     }
 *     MB_SORT_DEFINE(sort_ranges, struct range, range_before)
 *
 *     sort_ranges(ranges, count, scratch);     scratch: room for count items, of any contents
 *
 * Stable. What is in order already costs one look at each item, which is the usual case where lists
 * are collected from ordered structures; what consists of a few ordered stretches costs little
 * more. qsort() compares through a pointer, takes host memory, and makes all its comparisons then.
 *
 * OWNS      nothing.   LOCKING   the caller's.
 */
#ifndef MB_BASE_SORT_H
#define MB_BASE_SORT_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum {
    MB__SORT_BLOCK = 8, /* items that are sorted by insertion before blocks are merged */
};

#define MB_SORT_DEFINE(name, type, before)                                                         \
    static inline bool name##_is_done(const type *items, size_t count)                             \
    {                                                                                              \
        for (size_t i = 1; i < count; i++)                                                         \
            if (before(&items[i], &items[i - 1]))                                                  \
                return false;                                                                      \
        return true;                                                                               \
    }                                                                                              \
    static inline void name##_insert(type *items, size_t count)                                    \
    {                                                                                              \
        for (size_t i = 1; i < count; i++) {                                                       \
            type item = items[i];                                                                  \
            size_t at = i;                                                                         \
                                                                                                   \
            for (; at && before(&item, &items[at - 1]); at--)                                      \
                items[at] = items[at - 1];                                                         \
            items[at] = item;                                                                      \
        }                                                                                          \
    }                                                                                              \
    /* Two ordered stretches that lie in a row become one. */                                      \
    static inline void name##_merge(const type *low, size_t low_count, size_t count, type *out)    \
    {                                                                                              \
        const type *low_end = low + low_count, *high = low_end, *end = low + count;                \
                                                                                                   \
        if (low_count < count && before(high, high - 1)) {                                         \
            while (low < low_end && high < end) {                                                  \
                bool from_high = before(high, low);                                                \
                                                                                                   \
                *out++ = from_high ? *high : *low;                                                 \
                high += from_high;                                                                 \
                low += !from_high;                                                                 \
            }                                                                                      \
        }                                                                                          \
        memcpy(out, low, (size_t)(low_end - low) * sizeof(*out));                                  \
        memcpy(out + (low_end - low), high, (size_t)(end - high) * sizeof(*out));                  \
    }                                                                                              \
    static inline __attribute__((unused)) void name(type *items, size_t count, type *scratch)      \
    {                                                                                              \
        type *from = items, *to = scratch;                                                         \
                                                                                                   \
        if (name##_is_done(items, count))                                                          \
            return;                                                                                \
        for (size_t i = 0; i < count; i += MB__SORT_BLOCK)                                         \
            name##_insert(items + i, count - i < MB__SORT_BLOCK ? count - i : MB__SORT_BLOCK);     \
        for (size_t width = MB__SORT_BLOCK; width < count; width *= 2) {                           \
            type *next = from;                                                                     \
                                                                                                   \
            for (size_t i = 0; i < count; i += 2 * width) {                                        \
                size_t both = count - i < 2 * width ? count - i : 2 * width;                       \
                                                                                                   \
                name##_merge(from + i, both < width ? both : width, both, to + i);                 \
            }                                                                                      \
            from = to;                                                                             \
            to = next;                                                                             \
        }                                                                                          \
        if (from != items)                                                                         \
            memcpy(items, from, count * sizeof(*items));                                           \
    }

#endif
