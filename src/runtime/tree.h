/* SPDX-License-Identifier: MIT */
/*
 * tree.h - trees ordered by a pair of numbers, over base's red-black tree.
 *
 * The heap keeps its ranges by (size, address) and by address; windows are kept by (size, serial)
 * and by address. The links carry the key, so one set of functions serves them all.
 *
 * LOCKING   The owner of the tree locks.
 */
#ifndef MB_RUNTIME_TREE_H
#define MB_RUNTIME_TREE_H

#include "base/tree.h"

struct mb__link {
    struct mb_tree_node node;
    uint64_t major, minor; /* the key; pairs are unique within one tree */
};

static inline int mb__link_order(const struct mb__link *a, const struct mb__link *b)
{
    if (a->major != b->major)
        return a->major < b->major ? -1 : 1;
    return a->minor < b->minor ? -1 : a->minor > b->minor;
}

MB_TREE_DEFINE(mb__links, struct mb__link, node, mb__link_order)

#define MB__TREE_ENTRY(link, type, member) ((type *)(void *)((char *)(link)-offsetof(type, member)))

/* Sets the key and adds the link, which must be in no tree. */
static inline void mb__tree_insert(struct mb_tree *tree, struct mb__link *link, uint64_t major,
                                   uint64_t minor)
{
    link->major = major;
    link->minor = minor;
    mb__links_insert(tree, link);
}

static inline void mb__tree_erase(struct mb_tree *tree, struct mb__link *link)
{
    mb__links_remove(tree, link);
}

/* Smallest link with (major, minor) >= the given pair, or NULL. */
static inline struct mb__link *mb__tree_at_least(const struct mb_tree *tree, uint64_t major,
                                                 uint64_t minor)
{
    return mb__links_at_least(tree, &(struct mb__link){.major = major, .minor = minor});
}

/* Largest link with (major, minor) <= the given pair, or NULL. */
static inline struct mb__link *mb__tree_at_most(const struct mb_tree *tree, uint64_t major,
                                                uint64_t minor)
{
    return mb__links_at_most(tree, &(struct mb__link){.major = major, .minor = minor});
}

static inline struct mb__link *mb__tree_first(const struct mb_tree *tree)
{
    return mb__links_first(tree);
}

static inline struct mb__link *mb__tree_last(const struct mb_tree *tree)
{
    return mb__links_last(tree);
}

static inline struct mb__link *mb__tree_next(const struct mb__link *link)
{
    return mb__links_next(link);
}

static inline struct mb__link *mb__tree_prev(const struct mb__link *link)
{
    return mb__links_prev(link);
}

#endif
