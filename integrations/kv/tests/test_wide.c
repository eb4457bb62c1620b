/* SPDX-License-Identifier: MIT */
/* Loops in wide steps do what one step after the other does, whatever the count is. */
#include "test.h"
#include "wide.h"

#include <string.h>

enum { MOST = 3 * KV_AT_ONCE + 3 };

static uint32_t draw(uint64_t *state)
{
    return (uint32_t)(mb_test_random(state) >> 32);
}

TEST(counts_change_by_as_much_as_is_said)
{
    uint64_t state = mb_test_seed();
    uint32_t list[MOST + 1], was[MOST + 1];

    for (uint32_t count = 0; count <= MOST; count++) {
        uint32_t by = count % 2 ? 1 : UINT32_MAX;

        for (uint32_t i = 0; i <= MOST; i++)
            was[i] = list[i] = draw(&state);
        kv_count(list, count, by);
        for (uint32_t i = 0; i <= MOST; i++)
            CHECK_EQ(list[i], was[i] + (i < count ? by : 0));
    }
}

TEST(entries_are_made_of_blocks)
{
    uint32_t blocks[MOST], entries[MOST + 1];

    for (uint32_t i = 0; i < MOST; i++)
        blocks[i] = 5 * i + 3;
    for (uint32_t count = 0; count <= MOST; count++) {
        memset(entries, 0, sizeof(entries));
        kv_read_only(entries, blocks, count);
        for (uint32_t i = 0; i <= MOST; i++)
            CHECK_EQ(entries[i], i < count ? (5 * i + 4) | KV_READ_ONLY : 0);
    }
}

TEST(one_number_is_found_wherever_it_is)
{
    uint32_t list[MOST] = {0};

    for (uint32_t count = 0; count <= MOST; count++)
        for (uint32_t at = 0; at < MOST; at++) {
            list[at] = KV_READ_ONLY;
            CHECK_EQ(kv_any(list, count), at < count);
            list[at] = 0;
        }
}

TEST(rows_end_where_one_is_other)
{
    uint32_t row[KV_AT_ONCE];

    for (uint32_t at = 0; at <= KV_AT_ONCE; at++)
        for (unsigned bit = 0; bit < 32; bit++) {
            for (uint32_t i = 0; i < KV_AT_ONCE; i++)
                row[i] = (7 + i) | KV_READ_ONLY;
            if (at < KV_AT_ONCE)
                row[at] ^= (uint32_t)1 << bit;
            CHECK_EQ(kv_in_row(row, 7 | KV_READ_ONLY), at == KV_AT_ONCE);
            CHECK(!kv_in_row(row, 8 | KV_READ_ONLY));
        }
}

TEST(all_other_sees_one_that_is_equal)
{
    uint32_t list[KV_AT_ONCE];

    for (uint32_t at = 0; at <= KV_AT_ONCE; at++) {
        for (uint32_t i = 0; i < KV_AT_ONCE; i++)
            list[i] = i == at ? 1 : 2 + i;
        CHECK_EQ(kv_all_other(list, 1), at == KV_AT_ONCE);
        CHECK(kv_all_other(list, 0));
    }
}

TEST(places_are_the_same_up_to_the_first_that_differs)
{
    uint32_t a[MOST], b[MOST];

    for (uint32_t i = 0; i < MOST; i++) {
        a[i] = i + 1;
        b[i] = i % 3 ? a[i] : a[i] | KV_READ_ONLY; /* rights do not matter */
    }
    for (uint32_t count = 0; count <= MOST; count++)
        for (uint32_t at = 0; at < MOST; at++) {
            b[at] ^= 64;
            CHECK_EQ(kv_same(a, b, count), at < count ? at : count);
            b[at] ^= 64;
        }
}
