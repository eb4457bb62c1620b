/* SPDX-License-Identifier: MIT */
#include "address_tree.h"

#include <stdlib.h>

static uint32_t priority(uint32_t slot)
{
    uint32_t x = slot * 0x9e3779b9u + 0x7f4a7c15u;

    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

void address_tree_init(struct address_tree *tree)
{
    *tree = (struct address_tree){.root = ADDRESS_TREE_NONE};
}

void address_tree_fini(struct address_tree *tree)
{
    free(tree->nodes);
    address_tree_init(tree);
}

static bool need_node(struct address_tree *tree, uint32_t slot)
{
    uint32_t capacity = tree->capacity ? tree->capacity : 1024;
    struct address_node *moved;

    if (slot < tree->capacity)
        return true;
    while (capacity <= slot)
        capacity *= 2;
    moved = realloc(tree->nodes, capacity * sizeof(*moved));
    if (!moved)
        return false;
    tree->nodes = moved;
    tree->capacity = capacity;
    return true;
}

/* Splits a subtree into what is below `address` and the rest, going down once. */
static void split(struct address_tree *tree, uint32_t from, uint64_t address, uint32_t *below,
                  uint32_t *rest)
{
    while (from != ADDRESS_TREE_NONE) {
        struct address_node *node = &tree->nodes[from];

        if (node->address < address) {
            *below = from;
            below = &node->right;
            from = node->right;
        } else {
            *rest = from;
            rest = &node->left;
            from = node->left;
        }
    }
    *below = ADDRESS_TREE_NONE;
    *rest = ADDRESS_TREE_NONE;
}

/* Joins two subtrees, all addresses of `a` below those of `b`. */
static uint32_t join(struct address_tree *tree, uint32_t a, uint32_t b)
{
    uint32_t root = ADDRESS_TREE_NONE;
    uint32_t *link = &root;

    while (a != ADDRESS_TREE_NONE && b != ADDRESS_TREE_NONE) {
        if (priority(a) > priority(b)) {
            *link = a;
            link = &tree->nodes[a].right;
            a = *link;
        } else {
            *link = b;
            link = &tree->nodes[b].left;
            b = *link;
        }
    }
    *link = a != ADDRESS_TREE_NONE ? a : b;
    return root;
}

bool address_tree_insert(struct address_tree *tree, uint32_t slot, uint64_t address)
{
    uint32_t *link = &tree->root;
    struct address_node *node;

    if (!need_node(tree, slot))
        return false;
    while (*link != ADDRESS_TREE_NONE && priority(*link) >= priority(slot)) {
        node = &tree->nodes[*link];
        link = node->address < address ? &node->right : &node->left;
    }
    node = &tree->nodes[slot];
    node->address = address;
    split(tree, *link, address, &node->left, &node->right);
    *link = slot;
    return true;
}

void address_tree_remove(struct address_tree *tree, uint32_t slot)
{
    uint64_t address = tree->nodes[slot].address;
    uint32_t *link = &tree->root;

    while (*link != slot) {
        struct address_node *node = &tree->nodes[*link];

        link = node->address < address ? &node->right : &node->left;
    }
    *link = join(tree, tree->nodes[slot].left, tree->nodes[slot].right);
}

void address_tree_neighbours(const struct address_tree *tree, uint64_t address, uint32_t *below,
                             uint32_t *above)
{
    uint32_t at = tree->root;

    *below = ADDRESS_TREE_NONE;
    *above = ADDRESS_TREE_NONE;
    while (at != ADDRESS_TREE_NONE) {
        if (tree->nodes[at].address < address) {
            *below = at;
            at = tree->nodes[at].right;
        } else {
            at = tree->nodes[at].left;
        }
    }
    for (at = tree->root; at != ADDRESS_TREE_NONE;) {
        if (tree->nodes[at].address > address) {
            *above = at;
            at = tree->nodes[at].left;
        } else {
            at = tree->nodes[at].right;
        }
    }
}
