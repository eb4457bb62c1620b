/* SPDX-License-Identifier: MIT */
/*
 * tree.h - intrusive red-black trees with optional augmentation.
 *
 *     struct block { struct mb_tree_node by_size; uint64_t size, addr; };
 *     static inline int block_order(const struct block *a, const struct block *b)
 *     {
 *         if (a->size != b->size)
 *             return a->size < b->size ? -1 : 1;
 *         return a->addr < b->addr ? -1 : a->addr > b->addr;
 *     }
 *     MB_TREE_DEFINE(size_tree, struct block, by_size, block_order)
 *
 *     struct mb_tree tree = {0};
 *     size_tree_insert(&tree, block);
 *     best = size_tree_at_least(&tree, &(struct block){.size = wanted});
 *
 * Functions made by MB_TREE_DEFINE(name, ...), all O(log n) unless said:
 *     bool  name_insert(tree, item)       false: an equal one is there, nothing changed
 *     void  name_remove(tree, item)       item must be in the tree
 *     void  name_add_all(tree, run)       items in ascending order, see struct mb_tree_run; none of
 *                                         them equal to one in the tree. Many of them cost a few
 *                                         steps each, whatever the tree holds up to a multiple of
 *                                         their number
 *     T    *name_find(tree, key)          the equal one or NULL
 *     T    *name_at_least(tree, key)      the smallest that is not below key, or NULL
 *     T    *name_at_most(tree, key)       the largest that is not above key, or NULL
 *     T    *name_first(tree), name_last(tree)
 *     T    *name_next(item), name_prev(item)     O(1) on average over a walk
 * `key` is an item of which only what the order looks at is set.
 *
 * AUGMENTATION  tree.update recomputes a node's summary from itself and its children and tells
 * whether it changed. It is kept right by insert and remove; after changing an item's own
 * contribution in place call mb__tree_update_up().
 *
 * OWNS      nothing: nodes live in the caller's items. A node is in one tree at a time.
 * LOCKING   the caller's.
 */
#ifndef MB_BASE_TREE_H
#define MB_BASE_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mb_tree_node {
    struct mb_tree_node *child[2]; /* smaller, larger */
    struct mb_tree_node *parent;   /* NULL: root */
    bool red;
};

/* Zero-initialised is empty. */
struct mb_tree {
    struct mb_tree_node *root;
    bool (*update)(struct mb_tree_node *node); /* NULL: no augmentation; constant */
    size_t count;                              /* nodes in the tree */
};

/* Items that are in no tree, in ascending order, linked by child[1]. Zero-initialised is empty. */
struct mb_tree_run {
    struct mb_tree_node *first, *last;
    size_t count;
};

enum {
    MB__TREE_RUN_FEW = 8,   /* fewer items than that are inserted one by one, */
    MB__TREE_RUN_SHARE = 4, /* and those of which the tree holds so many times as many */
};

static inline void mb__tree_run_push(struct mb_tree_run *run, struct mb_tree_node *node)
{
    node->child[1] = NULL;
    if (run->last)
        run->last->child[1] = node;
    else
        run->first = node;
    run->last = node;
    run->count++;
}

static inline struct mb_tree_node *mb__tree_run_pop(struct mb_tree_run *run)
{
    struct mb_tree_node *node = run->first;

    run->first = node->child[1];
    if (!run->first)
        run->last = NULL;
    run->count--;
    return node;
}

/* Moves all of `more`, whose items are larger, behind those of `run`. */
static inline void mb__tree_run_append(struct mb_tree_run *run, struct mb_tree_run *more)
{
    if (!more->count)
        return;
    if (run->last)
        run->last->child[1] = more->first;
    else
        run->first = more->first;
    run->last = more->last;
    run->count += more->count;
    *more = (struct mb_tree_run){0};
}

/* Takes the tree apart: it is empty then. O(n). */
void mb__tree_flatten(struct mb_tree *tree, struct mb_tree_run *out);
/* Makes an empty tree hold a run, balanced. O(n). */
void mb__tree_build(struct mb_tree *tree, struct mb_tree_run *run);
/* Links `node` below `parent` (NULL: as root) on `side`, where there is no child, and rebalances.
 */
void mb__tree_link(struct mb_tree *tree, struct mb_tree_node *node, struct mb_tree_node *parent,
                   int side);
void mb__tree_unlink(struct mb_tree *tree, struct mb_tree_node *node);
/* side 0: first, 1: last. */
struct mb_tree_node *mb__tree_end(const struct mb_tree *tree, int side);
/* side 1: next, 0: previous. */
struct mb_tree_node *mb__tree_step(const struct mb_tree_node *node, int side);
/* Recomputes summaries from `node` towards the root, as far as they change. */
void mb__tree_update_up(struct mb_tree *tree, struct mb_tree_node *node);
/* Links, colours, black heights and count are what they must be. O(n), for tests and check
 * functions; summaries are checked by calling update, which must then report no change. */
bool mb__tree_check(const struct mb_tree *tree);

/* The item around a node; NULL stays NULL. */
static inline void *mb__tree_item(struct mb_tree_node *node, size_t offset)
{
    return node ? (char *)node - offset : NULL;
}

#define MB_TREE_ITEM(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

#define MB_TREE_DEFINE(name, type, member, order)                                                  \
    static inline __attribute__((unused)) type *name##_item(struct mb_tree_node *node)             \
    {                                                                                              \
        return mb__tree_item(node, offsetof(type, member));                                        \
    }                                                                                              \
    static inline __attribute__((unused)) bool name##_insert(struct mb_tree *tree, type *item)     \
    {                                                                                              \
        struct mb_tree_node *parent = NULL, *at = tree->root;                                      \
        int side = 0;                                                                              \
                                                                                                   \
        while (at) {                                                                               \
            int cmp = order(item, MB_TREE_ITEM(at, type, member));                                 \
                                                                                                   \
            if (cmp == 0)                                                                          \
                return false;                                                                      \
            side = cmp > 0;                                                                        \
            parent = at;                                                                           \
            at = at->child[side];                                                                  \
        }                                                                                          \
        mb__tree_link(tree, &item->member, parent, side);                                          \
        return true;                                                                               \
    }                                                                                              \
    static inline                                                                                  \
        __attribute__((unused)) void name##_add_all(struct mb_tree *tree, struct mb_tree_run *run) \
    {                                                                                              \
        struct mb_tree_run old = {0}, all = {0};                                                   \
                                                                                                   \
        if (run->count < MB__TREE_RUN_FEW || tree->count > MB__TREE_RUN_SHARE * run->count) {      \
            while (run->count)                                                                     \
                (void)name##_insert(tree, name##_item(mb__tree_run_pop(run)));                     \
            return;                                                                                \
        }                                                                                          \
        mb__tree_flatten(tree, &old);                                                              \
        while (old.count && run->count) {                                                          \
            bool from_old = order(MB_TREE_ITEM(old.first, type, member),                           \
                                  MB_TREE_ITEM(run->first, type, member)) < 0;                     \
                                                                                                   \
            mb__tree_run_push(&all, mb__tree_run_pop(from_old ? &old : run));                      \
        }                                                                                          \
        mb__tree_run_append(&all, &old);                                                           \
        mb__tree_run_append(&all, run);                                                            \
        mb__tree_build(tree, &all);                                                                \
    }                                                                                              \
    static inline __attribute__((unused)) void name##_remove(struct mb_tree *tree, type *item)     \
    {                                                                                              \
        mb__tree_unlink(tree, &item->member);                                                      \
    }                                                                                              \
    static inline __attribute__((unused))                                                          \
    type *name##_find(const struct mb_tree *tree, const type *key)                                 \
    {                                                                                              \
        struct mb_tree_node *at = tree->root;                                                      \
                                                                                                   \
        while (at) {                                                                               \
            int cmp = order(key, MB_TREE_ITEM(at, type, member));                                  \
                                                                                                   \
            if (cmp == 0)                                                                          \
                return MB_TREE_ITEM(at, type, member);                                             \
            at = at->child[cmp > 0];                                                               \
        }                                                                                          \
        return NULL;                                                                               \
    }                                                                                              \
    static inline __attribute__((unused))                                                          \
    type *name##_at_least(const struct mb_tree *tree, const type *key)                             \
    {                                                                                              \
        struct mb_tree_node *at = tree->root, *best = NULL;                                        \
                                                                                                   \
        while (at) {                                                                               \
            bool below = order(key, MB_TREE_ITEM(at, type, member)) > 0;                           \
                                                                                                   \
            if (!below)                                                                            \
                best = at;                                                                         \
            at = at->child[below];                                                                 \
        }                                                                                          \
        return mb__tree_item(best, offsetof(type, member));                                        \
    }                                                                                              \
    static inline __attribute__((unused))                                                          \
    type *name##_at_most(const struct mb_tree *tree, const type *key)                              \
    {                                                                                              \
        struct mb_tree_node *at = tree->root, *best = NULL;                                        \
                                                                                                   \
        while (at) {                                                                               \
            bool above = order(key, MB_TREE_ITEM(at, type, member)) < 0;                           \
                                                                                                   \
            if (!above)                                                                            \
                best = at;                                                                         \
            at = at->child[!above];                                                                \
        }                                                                                          \
        return mb__tree_item(best, offsetof(type, member));                                        \
    }                                                                                              \
    static inline __attribute__((unused)) type *name##_first(const struct mb_tree *tree)           \
    {                                                                                              \
        return name##_item(mb__tree_end(tree, 0));                                                 \
    }                                                                                              \
    static inline __attribute__((unused)) type *name##_last(const struct mb_tree *tree)            \
    {                                                                                              \
        return name##_item(mb__tree_end(tree, 1));                                                 \
    }                                                                                              \
    static inline __attribute__((unused)) type *name##_next(const type *item)                      \
    {                                                                                              \
        return name##_item(mb__tree_step(&item->member, 1));                                       \
    }                                                                                              \
    static inline __attribute__((unused)) type *name##_prev(const type *item)                      \
    {                                                                                              \
        return name##_item(mb__tree_step(&item->member, 0));                                       \
    }

#endif
