/* SPDX-License-Identifier: MIT */
/*
 * Two treaps over one array of nodes: a node hangs in the tree by place (key: first) and in the
 * tree by size (key: count, first). Priorities are a fixed hash of `first`, so equal histories give
 * equal trees and a failure repeats. Nodes are named by 32-bit indices, which halves the links and
 * lets the array lie in untouched zero pages.
 */
#include "vm/ranges.h"

#include <stdlib.h>

#include "base/err.h"

enum tree {
    BY_PLACE,
    BY_SIZE,
};

struct mb__ranges_node {
    struct mb__span span;
    uint32_t left[2], right[2]; /* per tree; 0: none */
};

static uint32_t priority(const struct mb__ranges *set, uint32_t n)
{
    uint64_t x = set->nodes[n].span.first * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(x >> 32) ^ (uint32_t)(x >> 11);
}

static bool span_less(enum tree tree, struct mb__span a, struct mb__span b)
{
    if (tree == BY_SIZE && a.count != b.count)
        return a.count < b.count;
    return a.first < b.first;
}

static bool node_less(const struct mb__ranges *set, enum tree tree, uint32_t a, uint32_t b)
{
    return span_less(tree, set->nodes[a].span, set->nodes[b].span);
}

/* Cuts the tree at `root` into what comes before node n and what comes after, as its two sides. */
static void split(struct mb__ranges *set, enum tree tree, uint32_t root, uint32_t n)
{
    uint32_t *left = &set->nodes[n].left[tree], *right = &set->nodes[n].right[tree];

    while (root) {
        if (node_less(set, tree, root, n)) {
            *left = root;
            left = &set->nodes[root].right[tree];
            root = *left;
        } else {
            *right = root;
            right = &set->nodes[root].left[tree];
            root = *right;
        }
    }
    *left = *right = 0;
}

static void insert(struct mb__ranges *set, enum tree tree, uint32_t n)
{
    uint32_t *at = &set->root[tree];

    while (*at && priority(set, *at) >= priority(set, n))
        at = node_less(set, tree, n, *at) ? &set->nodes[*at].left[tree]
                                          : &set->nodes[*at].right[tree];
    split(set, tree, *at, n);
    *at = n;
}

static void erase(struct mb__ranges *set, enum tree tree, uint32_t n)
{
    uint32_t *at = &set->root[tree];
    uint32_t a = set->nodes[n].left[tree], b = set->nodes[n].right[tree];

    while (*at != n)
        at = node_less(set, tree, n, *at) ? &set->nodes[*at].left[tree]
                                          : &set->nodes[*at].right[tree];
    while (a && b) {
        if (priority(set, a) > priority(set, b)) {
            *at = a;
            at = &set->nodes[a].right[tree];
            a = *at;
        } else {
            *at = b;
            at = &set->nodes[b].left[tree];
            b = *at;
        }
    }
    *at = a ? a : b;
}

static void put(struct mb__ranges *set, uint32_t first, uint32_t count)
{
    uint32_t n = set->spare;

    if (n)
        set->spare = set->nodes[n].span.first;
    else
        n = set->fresh++;
    set->nodes[n].span = (struct mb__span){first, count};
    insert(set, BY_PLACE, n);
    insert(set, BY_SIZE, n);
    set->total += count;
}

static void drop(struct mb__ranges *set, uint32_t n)
{
    erase(set, BY_PLACE, n);
    erase(set, BY_SIZE, n);
    set->total -= set->nodes[n].span.count;
    set->nodes[n].span.first = set->spare;
    set->spare = n;
}

/* The last node that starts at `unit` or before; 0: none. */
static uint32_t before(const struct mb__ranges *set, uint32_t unit)
{
    uint32_t found = 0;

    for (uint32_t at = set->root[BY_PLACE]; at;) {
        if (set->nodes[at].span.first <= unit) {
            found = at;
            at = set->nodes[at].right[BY_PLACE];
        } else {
            at = set->nodes[at].left[BY_PLACE];
        }
    }
    return found;
}

/* The first node in order that is not less than `key`; 0: none. */
static uint32_t at_least(const struct mb__ranges *set, enum tree tree, struct mb__span key)
{
    uint32_t found = 0;

    for (uint32_t at = set->root[tree]; at;) {
        if (span_less(tree, set->nodes[at].span, key)) {
            at = set->nodes[at].right[tree];
        } else {
            found = at;
            at = set->nodes[at].left[tree];
        }
    }
    return found;
}

static bool give(const struct mb__ranges *set, uint32_t n, struct mb__span *out)
{
    if (n)
        *out = set->nodes[n].span;
    return n != 0;
}

enum mb_err mb__ranges_init(struct mb__ranges *set, uint32_t units)
{
    /* At most every second unit starts a range; one more while add() joins, one for nobody. */
    size_t nodes = (size_t)units / 2 + 3;

    *set = (struct mb__ranges){.fresh = 1, .units = units};
    set->nodes = calloc(nodes, sizeof(*set->nodes));
    if (!set->nodes)
        return mb__fail(MB_ERR_HOST_MEMORY,
                        "a set of ranges over %u units needs %zu bytes of host memory", units,
                        nodes * sizeof(*set->nodes));
    return MB_OK;
}

void mb__ranges_fini(struct mb__ranges *set)
{
    free(set->nodes);
    *set = (struct mb__ranges){0};
}

void mb__ranges_add(struct mb__ranges *set, uint32_t first, uint32_t count)
{
    uint32_t low = before(set, first), high;

    if (!count)
        return;
    high = at_least(set, BY_PLACE, (struct mb__span){first + count, 0});
    if (high && set->nodes[high].span.first == first + count) {
        count += set->nodes[high].span.count;
        drop(set, high);
    }
    if (low && set->nodes[low].span.first + set->nodes[low].span.count == first) {
        first = set->nodes[low].span.first;
        count += set->nodes[low].span.count;
        drop(set, low);
    }
    put(set, first, count);
}

void mb__ranges_cut(struct mb__ranges *set, uint32_t first, uint32_t count)
{
    uint32_t n = before(set, first);
    struct mb__span all = set->nodes[n].span;
    uint32_t end = first + count;

    drop(set, n);
    if (first > all.first)
        put(set, all.first, first - all.first);
    if (end < all.first + all.count)
        put(set, end, all.first + all.count - end);
}

bool mb__ranges_best(const struct mb__ranges *set, uint32_t count, struct mb__span *out)
{
    return give(set, at_least(set, BY_SIZE, (struct mb__span){0, count}), out);
}

bool mb__ranges_larger_first(const struct mb__ranges *set, const struct mb__span *after,
                             struct mb__span *out)
{
    uint32_t found = 0;

    for (uint32_t at = set->root[BY_SIZE]; at;) {
        if (!after || span_less(BY_SIZE, set->nodes[at].span, *after)) {
            found = at;
            at = set->nodes[at].right[BY_SIZE];
        } else {
            at = set->nodes[at].left[BY_SIZE];
        }
    }
    return give(set, found, out);
}

bool mb__ranges_at(const struct mb__ranges *set, uint32_t unit, struct mb__span *out)
{
    uint32_t n = before(set, unit);

    if (!n || unit - set->nodes[n].span.first >= set->nodes[n].span.count)
        return false;
    return give(set, n, out);
}

bool mb__ranges_from(const struct mb__ranges *set, uint32_t unit, struct mb__span *out)
{
    return give(set, at_least(set, BY_PLACE, (struct mb__span){unit, 0}), out);
}

bool mb__ranges_valid(const struct mb__ranges *set)
{
    struct mb__span span, same;
    uint32_t total = 0, from = 0, by_place = 0, by_size = 0;

    for (; mb__ranges_from(set, from, &span); from = span.first + span.count, by_place++) {
        /* Joined: a gap of at least one unit in front of every range but the first. */
        if (!span.count || (by_place && span.first == from) || span.first >= set->units ||
            span.count > set->units - span.first)
            return false;
        if (!give(set, at_least(set, BY_SIZE, span), &same) || same.first != span.first ||
            same.count != span.count)
            return false;
        total += span.count;
    }
    for (bool more = mb__ranges_larger_first(set, NULL, &span); more; by_size++)
        more = mb__ranges_larger_first(set, &span, &span);
    return total == set->total && by_place == by_size;
}
