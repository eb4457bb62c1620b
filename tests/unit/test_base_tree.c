/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/tree.h"
#include "test.h"

/* A block as the runtime's cache keeps it: found by (size, address) and, with augmentation, by
 * address. */
struct block {
    struct mb_tree_node by_size, by_addr;
    uint64_t size, addr, max_size_below;
    bool there;
};

static int size_order(const struct block *a, const struct block *b)
{
    if (a->size != b->size)
        return a->size < b->size ? -1 : 1;
    return a->addr < b->addr ? -1 : a->addr > b->addr;
}

static int addr_order(const struct block *a, const struct block *b)
{
    return a->addr < b->addr ? -1 : a->addr > b->addr;
}

MB_TREE_DEFINE(size_tree, struct block, by_size, size_order)
MB_TREE_DEFINE(addr_tree, struct block, by_addr, addr_order)

static bool update_max(struct mb_tree_node *node)
{
    struct block *b = MB_TREE_ITEM(node, struct block, by_addr);
    uint64_t max = b->size;

    for (int side = 0; side < 2; side++) {
        struct block *child = addr_tree_item(node->child[side]);

        if (child && child->max_size_below > max)
            max = child->max_size_below;
    }
    if (max == b->max_size_below)
        return false;
    b->max_size_below = max;
    return true;
}

enum { BLOCKS = 257 };
static struct block blocks[BLOCKS];

static void check_searches(struct mb_tree *sizes, struct mb_tree *addrs, struct mb_rng *rng)
{
    struct block key = {.size = mb__rng_below(rng, 12), .addr = mb__rng_below(rng, BLOCKS * 2)};
    struct block *least = NULL, *most = NULL, *by_addr = NULL;

    for (int i = 0; i < BLOCKS; i++) {
        struct block *b = &blocks[i];

        if (!b->there)
            continue;
        if (size_order(b, &key) >= 0 && (!least || size_order(b, least) < 0))
            least = b;
        if (size_order(b, &key) <= 0 && (!most || size_order(b, most) > 0))
            most = b;
        if (b->addr == key.addr)
            by_addr = b;
    }
    CHECK_PTR_EQ(size_tree_at_least(sizes, &key), least);
    CHECK_PTR_EQ(size_tree_at_most(sizes, &key), most);
    CHECK_PTR_EQ(addr_tree_find(addrs, &key), by_addr);
}

static void check_walk(struct mb_tree *addrs, size_t count)
{
    struct block *last = NULL;
    uint64_t max = 0;
    size_t n = 0;

    for (struct block *b = addr_tree_first(addrs); b; b = addr_tree_next(b)) {
        CHECK(!last || last->addr < b->addr);
        CHECK_PTR_EQ(addr_tree_prev(b), last);
        max = b->size > max ? b->size : max;
        last = b;
        n++;
    }
    CHECK_PTR_EQ(addr_tree_last(addrs), last);
    CHECK_EQ(n, count);
    if (addrs->root)
        CHECK_EQ(addr_tree_item(addrs->root)->max_size_below, max);
}

static void insert(struct mb_tree *sizes, struct mb_tree *addrs, struct block *b)
{
    CHECK(size_tree_insert(sizes, b));
    CHECK(!size_tree_insert(sizes, b));
    CHECK(addr_tree_insert(addrs, b));
    b->there = true;
}

static void take_out(struct mb_tree *sizes, struct mb_tree *addrs, struct block *b)
{
    size_tree_remove(sizes, b);
    addr_tree_remove(addrs, b);
    b->there = false;
}

TEST(random_operations_agree_with_an_array)
{
    struct mb_tree sizes = {0}, addrs = {.update = update_max};
    struct mb_rng rng;
    size_t count = 0;

    memset(blocks, 0, sizeof(blocks));
    mb__rng_seed(&rng, mb_test_seed());
    for (int step = 0; step < 20000; step++) {
        struct block *b = &blocks[mb__rng_below(&rng, BLOCKS)];
        bool growing = step / 4000 % 2 == 0;

        if (!b->there && (growing || mb__rng_below(&rng, 3) == 0)) {
            b->addr = (uint64_t)(b - blocks) * 2;
            b->size = mb__rng_below(&rng, 12); /* many equal sizes */
            insert(&sizes, &addrs, b);
            count++;
        } else if (b->there && (!growing || mb__rng_below(&rng, 3) == 0)) {
            take_out(&sizes, &addrs, b);
            count--;
        } else if (b->there) {
            /* Changes in place: out of the size order, in the other tree only the summary. */
            size_tree_remove(&sizes, b);
            b->size = mb__rng_below(&rng, 12);
            CHECK(size_tree_insert(&sizes, b));
            mb__tree_update_up(&addrs, &b->by_addr);
        }
        CHECK(mb__tree_check(&sizes));
        CHECK(mb__tree_check(&addrs));
        CHECK_EQ(sizes.count, count);
        check_searches(&sizes, &addrs, &rng);
        if (step % 50 == 0)
            check_walk(&addrs, count);
    }
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].there)
            take_out(&sizes, &addrs, &blocks[i]);
    CHECK_PTR_EQ(sizes.root, NULL);
    CHECK_PTR_EQ(addrs.root, NULL);
    CHECK_PTR_EQ(addr_tree_first(&addrs), NULL);
}

static int by_size_then_addr(const void *left, const void *right)
{
    return size_order(*(struct block *const *)left, *(struct block *const *)right);
}

/* Adds all of `fresh` at once, to both trees. */
static void add_all(struct mb_tree *sizes, struct mb_tree *addrs, struct block **fresh,
                    size_t count)
{
    struct mb_tree_run by_addr = {0}, by_size = {0};

    for (size_t i = 0; i < count; i++) { /* they come by address */
        mb__tree_run_push(&by_addr, &fresh[i]->by_addr);
        fresh[i]->there = true;
    }
    qsort(fresh, count, sizeof(struct block *), by_size_then_addr);
    for (size_t i = 0; i < count; i++)
        mb__tree_run_push(&by_size, &fresh[i]->by_size);
    addr_tree_add_all(addrs, &by_addr);
    size_tree_add_all(sizes, &by_size);
}

/* Runs of all lengths into trees of all sizes: both ways of adding them, and what lies between. */
TEST(runs_join_a_tree)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (unsigned round = 0; round < 600; round++) {
        struct mb_tree sizes = {0}, addrs = {.update = update_max};
        struct block *fresh[BLOCKS];
        uint64_t first = mb__rng_below(&rng, 9), second = 1 + mb__rng_below(&rng, 8);
        size_t count = 0, all = 0;

        memset(blocks, 0, sizeof(blocks));
        for (int i = 0; i < BLOCKS; i++) {
            struct block *b = &blocks[i];

            b->addr = (uint64_t)i * 2;
            b->size = mb__rng_below(&rng, 12);
            if (mb__rng_below(&rng, 8) < first) {
                insert(&sizes, &addrs, b);
                all++;
            } else if (mb__rng_below(&rng, 8) < second) {
                fresh[count++] = b;
            }
        }
        add_all(&sizes, &addrs, fresh, count);
        CHECK_EQ(sizes.count, all + count);
        CHECK(mb__tree_check(&sizes));
        CHECK(mb__tree_check(&addrs));
        check_walk(&addrs, all + count);
        for (unsigned i = 0; i < 8; i++)
            check_searches(&sizes, &addrs, &rng);
        for (int i = 0; i < BLOCKS; i += 3)
            if (blocks[i].there)
                take_out(&sizes, &addrs, &blocks[i]);
        CHECK(mb__tree_check(&sizes));
        CHECK(mb__tree_check(&addrs));
    }
}

/* A tree of each number of nodes up to a few full ones. */
TEST(a_run_makes_a_balanced_tree)
{
    for (size_t count = 0; count <= BLOCKS; count++) {
        struct mb_tree addrs = {.update = update_max};
        struct mb_tree_run run = {0};

        memset(blocks, 0, sizeof(blocks));
        for (size_t i = 0; i < count; i++) {
            blocks[i].addr = i;
            mb__tree_run_push(&run, &blocks[i].by_addr);
        }
        mb__tree_build(&addrs, &run);
        CHECK(mb__tree_check(&addrs));
        CHECK_EQ(addrs.count, count);
        mb__tree_flatten(&addrs, &run);
        CHECK_EQ(run.count, count);
        CHECK_PTR_EQ(addrs.root, NULL);
        for (size_t i = 0; i < count; i++)
            CHECK_PTR_EQ(mb__tree_run_pop(&run), &blocks[i].by_addr);
        CHECK_PTR_EQ(run.first, NULL);
        CHECK_PTR_EQ(run.last, NULL);
    }
}

/* Every order of inserting and of removing 6 nodes. */
static void permute(uint8_t *list, unsigned n, unsigned done, void (*use)(const uint8_t *))
{
    if (done == n) {
        use(list);
        return;
    }
    for (unsigned i = done; i < n; i++) {
        uint8_t t = list[done];

        list[done] = list[i];
        list[i] = t;
        permute(list, n, done + 1, use);
        t = list[done];
        list[done] = list[i];
        list[i] = t;
    }
}

enum { SMALL = 6 };
static uint8_t insert_order[SMALL];

static void remove_in_order(const uint8_t *order)
{
    struct mb_tree sizes = {0}, addrs = {.update = update_max};

    for (int i = 0; i < SMALL; i++) {
        struct block *b = &blocks[insert_order[i]];

        b->addr = b->size = insert_order[i];
        b->max_size_below = 0;
        insert(&sizes, &addrs, b);
    }
    for (int i = 0; i < SMALL; i++) {
        take_out(&sizes, &addrs, &blocks[order[i]]);
        if (!mb__tree_check(&sizes) || !mb__tree_check(&addrs))
            FAIL("broken after removing %d", order[i]);
    }
}

static void insert_in_order(const uint8_t *order)
{
    uint8_t list[SMALL] = {0, 1, 2, 3, 4, 5};

    memcpy(insert_order, order, SMALL);
    permute(list, SMALL, 0, remove_in_order);
}

TEST(all_small_orders)
{
    uint8_t list[SMALL] = {0, 1, 2, 3, 4, 5};

    memset(blocks, 0, sizeof(blocks));
    permute(list, SMALL, 0, insert_in_order);
}

TEST(check_finds_damage)
{
    struct mb_tree sizes = {0}, addrs = {.update = update_max};

    memset(blocks, 0, sizeof(blocks));
    for (uint64_t i = 0; i < 50; i++) {
        blocks[i].addr = blocks[i].size = i;
        insert(&sizes, &addrs, &blocks[i]);
    }
    CHECK(mb__tree_check(&sizes) && mb__tree_check(&addrs));
    sizes.count++;
    CHECK(!mb__tree_check(&sizes));
    sizes.count--;
    sizes.root->child[0]->red ^= true;
    CHECK(!mb__tree_check(&sizes));
    sizes.root->child[0]->red ^= true;
    sizes.root->child[1]->parent = NULL;
    CHECK(!mb__tree_check(&sizes));
    addr_tree_item(addrs.root)->max_size_below++;
    CHECK(!mb__tree_check(&addrs));
}
