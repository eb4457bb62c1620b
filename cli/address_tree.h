/* SPDX-License-Identifier: MIT */
/*
 * address_tree.h - live blocks in order of their address, to find a block's neighbours.
 *
 * A treap whose nodes are named by number, in an array that grows: the caller's slots. Heap order
 * by a fixed mix of the number, so that the shape does not depend on the order of the calls.
 */
#ifndef MB_CLI_ADDRESS_TREE_H
#define MB_CLI_ADDRESS_TREE_H

#include <stdbool.h>
#include <stdint.h>

#define ADDRESS_TREE_NONE UINT32_MAX

/* A slot's node. Owner: the tree. Valid while the slot is in the tree. */
struct address_node {
    uint64_t address;
    uint32_t left, right; /* slots, or ADDRESS_TREE_NONE */
};

/* Owner: the caller, on one thread. Begin with address_tree_init(). */
struct address_tree {
    struct address_node *nodes; /* by slot; owned */
    uint32_t capacity;
    uint32_t root;
};

void address_tree_init(struct address_tree *tree);
void address_tree_fini(struct address_tree *tree);
/* The slot must not be in the tree, nor its address. false: the host is out of memory. */
bool address_tree_insert(struct address_tree *tree, uint32_t slot, uint64_t address);
/* The slot must be in the tree. */
void address_tree_remove(struct address_tree *tree, uint32_t slot);
/* The slots with the next lower and the next higher address, or ADDRESS_TREE_NONE. */
void address_tree_neighbours(const struct address_tree *tree, uint64_t address, uint32_t *below,
                             uint32_t *above);

#endif
