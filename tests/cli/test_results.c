/* SPDX-License-Identifier: MIT */
/* The reader of JSON, loading of results, noise bounds, Robson's bound, charts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/evidence/compare.h"
#include "cli/evidence/derive.h"
#include "cli/evidence/figure.h"
#include "cli/evidence/svg.h"
#include "cli/json_read.h"
#include "cli/memmap/memmap.h"
#include "test.h"

static struct json_document *parse(const char *text, char error[160])
{
    return json_parse(text, strlen(text), NULL, error);
}

TEST(json_values)
{
    char error[160];
    struct json_document *d = parse(
        " {\"a\": [1, -2.5e1, true, null], \"b\": {\"c\": \"x\\n\\u00e9\\ud83d\\ude00\"}} ", error);
    const struct json_value *a;

    CHECK(d != NULL);
    a = json_get(json_root(d), "a")->first;
    CHECK(a->number == 1 && a->next->number == -25 && a->next->next->truth);
    CHECK_EQ(a->next->next->next->kind, JSON_NULL);
    CHECK(a->next->next->next->next == NULL);
    CHECK_STR_EQ(json_string(json_get(json_root(d), "b"), "c", ""), "x\n\xc3\xa9\xf0\x9f\x98\x80");
    CHECK_STR_EQ(json_string(json_root(d), "none", "otherwise"), "otherwise");
    CHECK(json_get(NULL, "a") == NULL && json_number(a, "x", 7) == 7);
    json_free(d);
}

TEST(json_refuses)
{
    static const char *const wrong[] = {"",
                                        "{",
                                        "[1,]",
                                        "{\"a\" 1}",
                                        "{\"a\": 1, \"a\": 2}",
                                        "1 2",
                                        "\"open",
                                        "\"\\x\"",
                                        "[1 2]",
                                        "nul",
                                        "+1",
                                        "1e999",
                                        "--1",
                                        "\"\\u12g4\"",
                                        "\"a\nb\"",
                                        "{\"a\": \"\\\"",
                                        "]",
                                        "\"\\u\""};
    char deep[200], error[160];

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct json_document *d = parse(wrong[i], error);

        if (d)
            FAIL("«%s» was read", wrong[i]);
        CHECK(strstr(error, "line ") != NULL);
    }
    memset(deep, '[', sizeof(deep));
    CHECK(json_parse(deep, sizeof(deep), NULL, error) == NULL);
    CHECK(strstr(error, "deep") != NULL);
}

/* Every prefix and every changed byte of a value: read or refused, never past its end. */
TEST(json_damaged)
{
    static const char text[] = "{\"a\": [1, \"\\u00e9\\\"x\", {\"b\": -1.5e3}], \"c\": false}";
    char error[160];

    for (size_t n = 0; n < sizeof(text) - 1; n++) {
        char *copy = malloc(n ? n : 1); /* exactly as long, for the sanitizers */

        memcpy(copy, text, n);
        CHECK(json_parse(copy, n, NULL, error) == NULL);
        free(copy);
    }
    for (size_t i = 0; i < sizeof(text) - 1; i++)
        for (unsigned byte = 0; byte < 256; byte += 5) {
            char *copy = malloc(sizeof(text) - 1);

            memcpy(copy, text, sizeof(text) - 1);
            copy[i] = (char)byte;
            json_free(json_parse(copy, sizeof(text) - 1, NULL, error));
            free(copy);
        }
}

static void load(struct figures *set, const char *text)
{
    char error[256] = "";

    if (figures_load_text(set, text, strlen(text), "test", error))
        FAIL("%s", error);
}

TEST(loads_rows_and_threads)
{
    struct figures set = {.list = NULL};

    load(&set, "{\"bench\": \"bench hot\", \"device\": \"D\", \"driver\": \"1\", \"command\": "
               "[\"a\", \"b\"],"
               "\"rows\": [{\"what\": \"pair\", \"how\": \"h\", \"bytes\": 512, \"samples\": 1, "
               "\"modelled\": false,"
               "\"host_us\": {\"median\": 0.5}, \"value\": 2, "
               "\"note\": \"million pairs a second on 2 threads, real time\"}]}");
    CHECK_EQ(set.count, 2);
    CHECK_STR_EQ(set.list[0].experiment, "hot");
    CHECK_STR_EQ(set.list[0].how, "h, 2 threads");
    CHECK_STR_EQ(set.list[0].unit, "us");
    CHECK_STR_EQ(set.list[1].unit, "M/s");
    CHECK_EQ(figure_direction(&set.list[0]), -1);
    CHECK_EQ(figure_direction(&set.list[1]), 1);
    CHECK_STR_EQ(set.origins[0].command, "a b");
    figures_free(&set);
}

TEST(loads_profiles)
{
    struct figures set = {.list = NULL};

    load(&set, "moonbright-profile 1\ndevice NVIDIA H200\ndriver 580\ntables device-inline\n"
               "map_ns 8692 # ns\n# slab_1g_ns was not measured\n");
    CHECK_EQ(set.count, 1);
    CHECK_STR_EQ(set.list[0].what, "map_ns");
    CHECK(set.list[0].value == 8692);
    CHECK_STR_EQ(set.origins[0].machine, "NVIDIA H200, device-inline");
    figures_free(&set);
}

static struct figure times(double median, unsigned samples, double p99, double min)
{
    struct figure f = figure_blank();

    f.unit = "us";
    f.value = median;
    f.samples = samples;
    f.p99 = p99;
    f.min = min;
    return f;
}

TEST(noise_bounds)
{
    const struct compare_options o = {.floor = 0.02, .single = 0.5, .model = 0.001};
    struct figure a = times(100, 100, 148, 100), b = times(100, 100, 148, 100);
    struct compare_row row = compare_figures(&a, &b, &o);

    /* s = 10, so 1.25% for each median, and three of both together are 5.3%. */
    CHECK(fabs(row.bound - 3 * sqrt(2) * 0.0125) < 1e-9);
    b.value = 105;
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_SAME);
    b = times(112, 100, 160, 112);
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_WORSE);
    CHECK_EQ(compare_figures(&b, &a, &o).verdict, COMPARE_BETTER);
    b.samples = 1;
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_SAME);
    a.kind = b.kind = FIGURE_MODELLED;
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_WORSE);
    /* From nothing to something is a change; 0 and 0 is none. */
    a.value = b.value = 0;
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_SAME);
    b.value = 1;
    CHECK_EQ(compare_figures(&a, &b, &o).verdict, COMPARE_WORSE);
}

TEST(robson)
{
    double gib = 1073741824.0;

    CHECK(fabs(derive_robson(80 * gib, 2097152) / gib - 693) < 1);
    CHECK(derive_robson(2097152, 2097152) == 2097152);
    /* Four pages: 4 (2 / 2 + 1). */
    CHECK(derive_robson(4 * 2097152.0, 2097152) == 8 * 2097152.0);
}

TEST(numbers_of_charts)
{
    char text[48];

    CHECK_STR_EQ(chart_number(32951, false, text), "32,951");
    CHECK_STR_EQ(chart_number(1234567, false, text), "1,234,567");
    CHECK_STR_EQ(chart_number(12.66, false, text), "12.7");
    CHECK_STR_EQ(chart_number(0.0941, false, text), "0.094");
    CHECK_STR_EQ(chart_number(2147483648.0, true, text), "2 GiB");
    CHECK_STR_EQ(chart_number(NAN, false, text), "–");
    CHECK_STR_EQ(chart_number(-1234, false, text), "-1,234");
}

/* Odd data must draw something that a parser takes: no NaN, no infinity, balanced tags. */
TEST(charts_of_odd_data)
{
    static struct chart_lines c;
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);

    c.title = "<odd> & \"so\"";
    c.x = (struct chart_axis){.label = "x", .logarithmic = true, .bytes = true};
    c.y = (struct chart_axis){.label = "us", .logarithmic = true};
    svg_lines(out, &c); /* nothing to draw */
    CHECK_EQ(ftell(out), 0);
    c.count = 2;
    c.series[0].count = c.series[1].count = 1;
    c.series[0].x[0] = c.series[1].x[0] = 4096;
    c.series[0].y[0] = c.series[1].y[0] = 1e-9;
    svg_lines(out, &c);
    c.x.logarithmic = c.y.logarithmic = false;
    c.series[0].y[0] = c.series[1].y[0] = 0;
    svg_lines(out, &c);
    fclose(out);
    CHECK(strstr(text, "nan") == NULL && strstr(text, "inf") == NULL);
    CHECK(strstr(text, "&lt;odd&gt; &amp; &quot;so&quot;") != NULL);
    CHECK(strstr(text, "</svg>") != NULL);
    free(text);
}

TEST(table_of_numbers)
{
    struct memmap_table t = {.keys = NULL};
    uint64_t value = 0;
    size_t at = 0, seen = 0;
    uint64_t key;

    for (uint64_t round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 5000; i++)
            CHECK(memmap_put(&t, i * 4096, i + round));
        for (uint64_t i = 0; i < 5000; i += 2)
            memmap_remove(&t, i * 4096);
        CHECK_EQ(t.count, 2500);
    }
    for (uint64_t i = 0; i < 5000; i++) {
        CHECK_EQ(memmap_get(&t, i * 4096, &value), i % 2 == 1);
        if (i % 2)
            CHECK_EQ(value, i + 2);
    }
    while (memmap_each(&t, &at, &key, &value))
        seen++;
    CHECK_EQ(seen, 2500);
    memmap_remove(&t, 77);
    memmap_clear(&t);
    CHECK(!memmap_get(&t, 0, &value));
}
