/* SPDX-License-Identifier: MIT */
/*
 * ranges.h - a set of disjoint ranges of small integers, found by size and by place.
 *
 * Free runs of frames, holes between slabs and clean addresses are all such sets. Ranges that touch
 * are joined at once, so a range is always as long as it can be.
 *
 * UNITS     of the owner: home pages, groups of slots.
 * LOCKING   The owner locks.
 * MEMORY    Room for the largest possible number of ranges is taken by init (untouched until used),
 *           so that no later call can fail.
 * COST      O(log n) expected for each call.
 */
#ifndef MB_VM_RANGES_H
#define MB_VM_RANGES_H

#include "base/types.h"

struct mb__span {
    uint32_t first, count; /* [first, first + count) */
};

struct mb__ranges {
    struct mb__ranges_node *nodes; /* [0] is nobody; owned */
    uint32_t root[2];              /* by place, by size */
    uint32_t spare;                /* first unused node, linked by span.first; 0: take `fresh` */
    uint32_t fresh;                /* nodes from here on were never used */
    uint32_t units;                /* all ranges lie in [0, units) */
    uint32_t total;                /* sum of counts */
};

enum mb_err mb__ranges_init(struct mb__ranges *set, uint32_t units);
void mb__ranges_fini(struct mb__ranges *set);

/* Adds [first, first + count), of which no unit may be in the set; joins it with its neighbours. */
void mb__ranges_add(struct mb__ranges *set, uint32_t first, uint32_t count);
/* Removes [first, first + count), which must lie in one range of the set. */
void mb__ranges_cut(struct mb__ranges *set, uint32_t first, uint32_t count);

/* Each stores a range of the set and returns true, or returns false and stores nothing. */
/* Smallest one of at least `count`; the lowest among equals. */
bool mb__ranges_best(const struct mb__ranges *set, uint32_t count, struct mb__span *out);
/* Next in the order of falling size; `after` NULL: the largest one. `after` need not be in the
 * set. */
bool mb__ranges_larger_first(const struct mb__ranges *set, const struct mb__span *after,
                             struct mb__span *out);
/* The one that holds `unit`. */
bool mb__ranges_at(const struct mb__ranges *set, uint32_t unit, struct mb__span *out);
/* The first one that starts at `unit` or later. */
bool mb__ranges_from(const struct mb__ranges *set, uint32_t unit, struct mb__span *out);

/* Order, disjointness, joining, both trees agree, total. */
bool mb__ranges_valid(const struct mb__ranges *set);

#endif
