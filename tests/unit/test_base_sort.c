/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/sort.h"
#include "test.h"

struct item {
    unsigned key, place;
};

static inline bool is_before(const struct item *a, const struct item *b)
{
    return a->key < b->key;
}

MB_SORT_DEFINE(sort_items, struct item, is_before)

enum { MOST = 700 };

/* Equal keys stay in their order, so that all places are told. */
static int by_key_then_place(const void *left, const void *right)
{
    const struct item *a = left, *b = right;

    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

static void sort_and_compare(struct item *items, size_t count)
{
    static struct item wanted[MOST], scratch[MOST + 1];

    memcpy(wanted, items, count * sizeof(*items));
    qsort(wanted, count, sizeof(*wanted), by_key_then_place);
    memset(scratch, 0x5a, sizeof(scratch));
    sort_items(items, count, scratch);
    for (size_t i = 0; i < count; i++) {
        CHECK_EQ(items[i].key, wanted[i].key);
        CHECK_EQ(items[i].place, wanted[i].place);
    }
    CHECK_EQ(scratch[count].key, 0x5a5a5a5a); /* no more room is used than was given */
}

TEST(every_small_count_of_random_items)
{
    static struct item items[MOST];
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (size_t count = 0; count < MOST; count += 1 + count / 40) {
        for (unsigned keys = 1; keys <= 1024; keys *= 4) {
            for (unsigned i = 0; i < count; i++)
                items[i] = (struct item){(unsigned)mb__rng_below(&rng, keys), i};
            sort_and_compare(items, count);
        }
    }
}

TEST(stretches_in_order_and_against_it)
{
    static struct item items[MOST];
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (unsigned round = 0; round < 200; round++) {
        unsigned count = (unsigned)mb__rng_below(&rng, MOST), key = 0;

        for (unsigned i = 0; i < count; i++) {
            bool jump = mb__rng_below(&rng, 1 + round) == 0;

            key = jump ? (unsigned)mb__rng_below(&rng, 10000) + 1000 : key + (round % 2 ? 1 : -1u);
            items[i] = (struct item){key, i};
        }
        sort_and_compare(items, count);
    }
}
