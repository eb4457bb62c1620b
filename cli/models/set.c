/* SPDX-License-Identifier: MIT */
/*
 * set.c - ordered sets of blocks: a treap inside the blocks.
 *
 * Trade-off: no parent links, so a step to the next block is a descent from the root. Policies step
 * rarely and look up often.
 */
#include "internal.h"

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

int model_by_size_alone(const struct model_block *a, const struct model_block *b)
{
    int by_size = compare(a->bytes, b->bytes);

    return by_size ? by_size : compare(a->address, b->address);
}

int model_by_size(const struct model_block *a, const struct model_block *b)
{
    int by_stream = compare(a->stream, b->stream);

    return by_stream ? by_stream : model_by_size_alone(a, b);
}

int model_by_address(const struct model_block *a, const struct model_block *b)
{
    int by_stream = compare(a->stream, b->stream);

    return by_stream ? by_stream : compare(a->address, b->address);
}

void model_set_insert(struct model_set *set, struct model_block *block)
{
    struct model_block **link = &set->root;
    struct model_block **below = &block->left;
    struct model_block **above = &block->right;
    struct model_block *rest;

    while (*link && (*link)->priority >= block->priority)
        link = set->order(*link, block) < 0 ? &(*link)->right : &(*link)->left;
    /* What hung here is of lower priority: it is dealt out to the new block's two sides. */
    rest = *link;
    *link = block;
    while (rest) {
        if (set->order(rest, block) < 0) {
            *below = rest;
            below = &rest->right;
            rest = rest->right;
        } else {
            *above = rest;
            above = &rest->left;
            rest = rest->left;
        }
    }
    *below = NULL;
    *above = NULL;
    block->set = set;
    set->count++;
    set->bytes += block->bytes;
}

void model_set_remove(struct model_block *block)
{
    struct model_set *set = block->set;
    struct model_block **link = &set->root;
    struct model_block *left = block->left;
    struct model_block *right = block->right;

    while (*link != block)
        link = set->order(*link, block) < 0 ? &(*link)->right : &(*link)->left;
    while (left && right) {
        if (left->priority >= right->priority) {
            *link = left;
            link = &left->right;
            left = left->right;
        } else {
            *link = right;
            link = &right->left;
            right = right->left;
        }
    }
    *link = left ? left : right;
    block->set = NULL;
    block->left = NULL;
    block->right = NULL;
    set->count--;
    set->bytes -= block->bytes;
}

struct model_block *model_set_find(const struct model_set *set, const struct model_block *key)
{
    struct model_block *at = set->root;
    struct model_block *found = NULL;

    while (at) {
        if (set->order(at, key) >= 0) {
            found = at;
            at = at->left;
        } else {
            at = at->right;
        }
    }
    return found;
}

struct model_block *model_set_below(const struct model_set *set, const struct model_block *key)
{
    struct model_block *at = set->root;
    struct model_block *found = NULL;

    while (at) {
        if (set->order(at, key) < 0) {
            found = at;
            at = at->right;
        } else {
            at = at->left;
        }
    }
    return found;
}

struct model_block *model_set_first(const struct model_set *set)
{
    struct model_block *at = set->root;

    while (at && at->left)
        at = at->left;
    return at;
}

struct model_block *model_set_next(const struct model_block *block)
{
    const struct model_set *set = block->set;
    struct model_block *at = set->root;
    struct model_block *found = NULL;

    while (at) {
        if (set->order(at, block) > 0) {
            found = at;
            at = at->left;
        } else {
            at = at->right;
        }
    }
    return found;
}
