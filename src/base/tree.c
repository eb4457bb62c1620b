/* SPDX-License-Identifier: MIT */
/*
 * tree.c - red-black rebalancing.
 *
 * Invariants: the root is black; a red node has black children; every path from a node down to a
 * missing child passes the same number of black nodes. A missing child counts as black.
 *
 * Both fix-ups are written once for the two mirror images: `side` is the side on which the trouble
 * is.
 */
#include "tree.h"

static bool is_red(const struct mb_tree_node *node)
{
    return node && node->red;
}

static int side_of(const struct mb_tree_node *node)
{
    return node->parent->child[1] == node;
}

/* Makes whatever pointed to `from` (a child of `parent`, or the root) point to `to`. */
static void replace_child(struct mb_tree *tree, struct mb_tree_node *parent,
                          const struct mb_tree_node *from, struct mb_tree_node *to)
{
    if (!parent)
        tree->root = to;
    else
        parent->child[parent->child[1] == from] = to;
    if (to)
        to->parent = parent;
}

/* `node` goes down to `side`; its child of the other side takes its place. */
static void rotate(struct mb_tree *tree, struct mb_tree_node *node, int side)
{
    struct mb_tree_node *up = node->child[!side];

    node->child[!side] = up->child[side];
    if (up->child[side])
        up->child[side]->parent = node;
    replace_child(tree, node->parent, node, up);
    up->child[side] = node;
    node->parent = up;
    if (tree->update) {
        tree->update(node);
        tree->update(up);
    }
}

void mb__tree_update_up(struct mb_tree *tree, struct mb_tree_node *node)
{
    if (!tree->update)
        return;
    while (node && tree->update(node))
        node = node->parent;
}

/* As mb__tree_update_up() without the early end: for when a subtree lost or gained a node. */
static void update_all_up(struct mb_tree *tree, struct mb_tree_node *node)
{
    if (!tree->update)
        return;
    for (; node; node = node->parent)
        tree->update(node);
}

static void fix_red_pair(struct mb_tree *tree, struct mb_tree_node *node)
{
    while (is_red(node->parent)) {
        struct mb_tree_node *parent = node->parent, *grand = parent->parent;
        int side = side_of(parent);
        struct mb_tree_node *uncle = grand->child[!side];

        if (is_red(uncle)) {
            parent->red = uncle->red = false;
            grand->red = true;
            node = grand;
            continue;
        }
        if (side_of(node) != side) {
            rotate(tree, parent, side);
            parent = node;
        }
        parent->red = false;
        grand->red = true;
        rotate(tree, grand, !side);
        break;
    }
    tree->root->red = false;
}

void mb__tree_link(struct mb_tree *tree, struct mb_tree_node *node, struct mb_tree_node *parent,
                   int side)
{
    node->child[0] = node->child[1] = NULL;
    node->parent = parent;
    node->red = true;
    if (parent)
        parent->child[side] = node;
    else
        tree->root = node;
    tree->count++;
    update_all_up(tree, node);
    fix_red_pair(tree, node);
}

/* The other child of a node whose subtree at `side` lacks a black node: there must be one, or the
 * two sides would have been unequal before. */
static struct mb_tree_node *sibling(const struct mb_tree_node *parent, int side)
{
    struct mb_tree_node *other = parent->child[!side];

    if (!other)
        __builtin_unreachable();
    return other;
}

/* The subtree at `side` of `parent` lacks one black node. */
static void fix_black_height(struct mb_tree *tree, struct mb_tree_node *parent, int side)
{
    while (parent && !is_red(parent->child[side])) {
        struct mb_tree_node *other = sibling(parent, side);

        if (other->red) {
            other->red = false;
            parent->red = true;
            rotate(tree, parent, side);
            other = sibling(parent, side);
        }
        if (!is_red(other->child[0]) && !is_red(other->child[1])) {
            other->red = true;
            if (parent->parent)
                side = side_of(parent);
            if (parent->red || !parent->parent) {
                parent->red = false;
                return;
            }
            parent = parent->parent;
            continue;
        }
        if (!is_red(other->child[!side])) {
            other->child[side]->red = false;
            other->red = true;
            rotate(tree, other, !side);
            other = sibling(parent, side);
        }
        other->red = parent->red;
        parent->red = false;
        other->child[!side]->red = false;
        rotate(tree, parent, side);
        return;
    }
    if (parent)
        parent->child[side]->red = false;
}

/* Puts `next`, the successor of `node` in its right subtree, into node's place. Stores where a node
 * is now missing. */
static void take_place(struct mb_tree *tree, struct mb_tree_node *node, struct mb_tree_node *next,
                       struct mb_tree_node **hole, int *side)
{
    if (next == node->child[1]) {
        *hole = next;
        *side = 1;
    } else {
        *hole = next->parent;
        *side = 0;
        replace_child(tree, next->parent, next, next->child[1]);
        next->child[1] = node->child[1];
        next->child[1]->parent = next;
    }
    next->child[0] = node->child[0];
    next->child[0]->parent = next;
    replace_child(tree, node->parent, node, next);
}

void mb__tree_unlink(struct mb_tree *tree, struct mb_tree_node *node)
{
    struct mb_tree_node *hole = node->parent;
    bool lost_red = node->red;
    int side = hole ? side_of(node) : 0;

    if (node->child[0] && node->child[1]) {
        struct mb_tree_node *next = node->child[1];

        while (next->child[0])
            next = next->child[0];
        lost_red = next->red;
        take_place(tree, node, next, &hole, &side);
        next->red = node->red;
    } else {
        replace_child(tree, node->parent, node, node->child[node->child[1] != NULL]);
    }
    tree->count--;
    update_all_up(tree, hole);
    if (hole && !lost_red)
        fix_black_height(tree, hole, side);
    else if (!hole && tree->root)
        tree->root->red = false;
}

/* Puts the subtree's nodes in front of `list`, largest first; as deep as the tree is high. */
static struct mb_tree_node *prepend(struct mb_tree_node *node, struct mb_tree_node *list)
{
    while (node) {
        node->child[1] = prepend(node->child[1], list);
        list = node;
        node = node->child[0];
    }
    return list;
}

void mb__tree_flatten(struct mb_tree *tree, struct mb_tree_run *out)
{
    *out = (struct mb_tree_run){.last = mb__tree_end(tree, 1), .count = tree->count};
    out->first = prepend(tree->root, NULL);
    tree->root = NULL;
    tree->count = 0;
}

/* A subtree of the run's next `count` nodes. All levels are full but the last one, whose nodes are
 * red: they lie `reds` levels below its root. */
static struct mb_tree_node *build(const struct mb_tree *tree, struct mb_tree_run *run, size_t count,
                                  struct mb_tree_node *parent, unsigned reds)
{
    struct mb_tree_node *left, *node;

    if (!count)
        return NULL;
    left = build(tree, run, count / 2, NULL, reds - 1);
    node = mb__tree_run_pop(run);
    node->child[0] = left;
    if (left)
        left->parent = node;
    node->parent = parent;
    node->red = !reds;
    node->child[1] = build(tree, run, count - count / 2 - 1, node, reds - 1);
    if (tree->update)
        tree->update(node);
    return node;
}

void mb__tree_build(struct mb_tree *tree, struct mb_tree_run *run)
{
    unsigned full = 0; /* levels */

    while (((size_t)2 << full) - 1 <= run->count)
        full++;
    tree->count = run->count;
    tree->root = build(tree, run, run->count, NULL, full);
}

struct mb_tree_node *mb__tree_end(const struct mb_tree *tree, int side)
{
    /* cppcheck-suppress ctunullpointer ; callers pass their tree, which is never NULL */
    struct mb_tree_node *node = tree->root;

    while (node && node->child[side])
        node = node->child[side];
    return node;
}

struct mb_tree_node *mb__tree_step(const struct mb_tree_node *node, int side)
{
    struct mb_tree_node *at = node->child[side];

    if (at) {
        while (at->child[!side])
            at = at->child[!side];
        return at;
    }
    while (node->parent && side_of(node) == side)
        node = node->parent;
    return node->parent;
}

/* Black height of the subtree, 0 if it is broken. */
static unsigned check_subtree(const struct mb_tree *tree, struct mb_tree_node *node, size_t *count)
{
    unsigned height[2] = {1, 1};

    ++*count;
    for (int side = 0; side < 2; side++) {
        struct mb_tree_node *child = node->child[side];

        if (!child)
            continue;
        if (child->parent != node || (node->red && child->red))
            return 0;
        height[side] = check_subtree(tree, child, count);
    }
    if (height[0] != height[1] || height[0] == 0)
        return 0;
    if (tree->update && tree->update(node))
        return 0;
    return height[0] + !node->red;
}

bool mb__tree_check(const struct mb_tree *tree)
{
    size_t count = 0;

    if (!tree->root)
        return tree->count == 0;
    return !tree->root->red && !tree->root->parent && check_subtree(tree, tree->root, &count) &&
           count == tree->count;
}
