/* SPDX-License-Identifier: MIT */
/* The writer of JSON, the histogram, and the tree of addresses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/address_tree.h"
#include "cli/histogram.h"
#include "cli/json.h"
#include "cli/progress.h"
#include "test.h"

static const char *progress_at(unsigned columns, const char *name)
{
    static char line[PROGRESS_LINE_MAX];

    progress_line(line, name, 1234567, (uint64_t)3 << 30, columns);
    return line;
}

TEST(progress_fits_the_terminal)
{
    static const char path[] = "runs/2025-01-01/rank-17/allocations-of-the-last-hour.csv.gz";
    static const char figures[] = "1,234,567 events, 3.00 GiB allocated";

    CHECK_STR_EQ(progress_at(80, "gpt2"), "gpt2: 1,234,567 events, 3.00 GiB allocated");
    CHECK_STR_EQ(progress_at(200, path),
                 "...allocations-of-the-last-hour.csv.gz: 1,234,567 events, 3.00 GiB allocated");
    CHECK_STR_EQ(progress_at(60, path),
                 "...e-last-hour.csv.gz: 1,234,567 events, 3.00 GiB allocated");
    CHECK_STR_EQ(progress_at(42, path), figures);
    CHECK_STR_EQ(progress_at(10, path), "1,234,567");
    CHECK_STR_EQ(progress_at(1, path), "");
    /* A cut falls between characters: e with an accent is two bytes. */
    CHECK_STR_EQ(progress_at(48, "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"
                                 "\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"),
                 "...\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9: "
                 "1,234,567 events, 3.00 GiB allocated");
    for (unsigned columns = 0; columns < 120; columns++)
        CHECK(strlen(progress_at(columns, path)) < (columns ? columns : 1));
}

TEST(json_is_written_and_escaped)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    struct json_writer w = {.out = out};

    CHECK(out != NULL);
    json_object(&w, NULL);
    json_text(&w, "text", "a\"b\\c\n\x01\x7f\xc3\xa9");
    json_text(&w, "bad", "\xff|\xc0\x80|\xed\xa0\x80|\xf5|\xe2\x82");
    json_text(&w, "none", NULL);
    json_u64(&w, "large", UINT64_MAX);
    json_double(&w, "half", 0.5);
    json_double(&w, "not", NAN);
    json_bool(&w, "yes", true);
    json_array(&w, "list");
    json_u64(&w, NULL, 1);
    json_object(&w, NULL);
    json_end_object(&w);
    json_array(&w, NULL);
    json_end_array(&w);
    json_end_array(&w);
    json_end_object(&w);
    json_finish(&w);
    fclose(out);
    CHECK_STR_EQ(text, "{\"text\": \"a\\\"b\\\\c\\u000a\\u0001\\u007f\xc3\xa9\", "
                       "\"bad\": \"\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|\\ufffd|"
                       "\\ufffd\\ufffd\", \"none\": null, "
                       "\"large\": 18446744073709551615, \"half\": 0.5, \"not\": null, "
                       "\"yes\": true, \"list\": [1, {}, []]}\n");
    free(text);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

enum {
    TIMES = 5000,
};

TEST(percentiles_are_within_a_bin_of_the_true_ones)
{
    static const double shares[] = {0.01, 0.5, 0.9, 0.99, 0.999, 1};
    uint64_t state = mb_test_seed() + 5;
    struct histogram *h = calloc(1, sizeof(*h));
    uint64_t *times = malloc(TIMES * sizeof(*times));

    CHECK(h && times);
    CHECK_EQ(histogram_percentile(h, 0.5), 0);
    for (size_t i = 0; i < TIMES; i++) {
        times[i] = mb_test_random(&state) >> mb_test_random_below(&state, 64);
        histogram_add(h, times[i]);
    }
    qsort(times, TIMES, sizeof(*times), compare);
    for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
        uint64_t exact = times[(size_t)ceil(shares[i] * TIMES) - 1];
        uint64_t got = histogram_percentile(h, shares[i]);

        CHECK(got >= exact);
        CHECK(got - exact <= exact / 64);
    }
    CHECK_EQ(h->max_ns, times[TIMES - 1]);
    CHECK_EQ(histogram_percentile(h, 1), h->max_ns);
    histogram_add(h, UINT64_MAX);
    CHECK_EQ(histogram_percentile(h, 1), UINT64_MAX);
    free(times);
    free(h);
}

enum {
    SLOTS = 300,
    STEPS = 20000,
};

/* The neighbours by looking at all. */
static void scan(const uint64_t *addresses, uint64_t at, uint32_t *below, uint32_t *above)
{
    *below = ADDRESS_TREE_NONE;
    *above = ADDRESS_TREE_NONE;
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (!addresses[i] || addresses[i] == at)
            continue;
        if (addresses[i] < at && (*below == ADDRESS_TREE_NONE || addresses[*below] < addresses[i]))
            *below = i;
        if (addresses[i] > at && (*above == ADDRESS_TREE_NONE || addresses[*above] > addresses[i]))
            *above = i;
    }
}

TEST(neighbours_agree_with_a_scan)
{
    uint64_t state = mb_test_seed() + 6;
    uint64_t addresses[SLOTS] = {0}; /* 0: not in the tree */
    struct address_tree tree;

    address_tree_init(&tree);
    for (unsigned step = 0; step < STEPS; step++) {
        uint32_t slot = (uint32_t)mb_test_random_below(&state, SLOTS);
        uint64_t at =
            (slot + 1) * (uint64_t)1000 + mb_test_random_below(&state, 200000) * SLOTS * 2000;
        uint32_t below[2];
        uint32_t above[2];

        if (addresses[slot]) {
            address_tree_remove(&tree, slot);
            addresses[slot] = 0;
        } else {
            CHECK(address_tree_insert(&tree, slot, at));
            addresses[slot] = at;
        }
        if (mb_test_random_below(&state, 2) && addresses[slot])
            at = addresses[slot];
        address_tree_neighbours(&tree, at, &below[0], &above[0]);
        scan(addresses, at, &below[1], &above[1]);
        CHECK_EQ(below[0], below[1]);
        CHECK_EQ(above[0], above[1]);
    }
    address_tree_fini(&tree);
}
