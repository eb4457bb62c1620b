/* SPDX-License-Identifier: MIT */
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "test.h"

static void expect(struct mb_json *json, enum mb_err err, const char *text)
{
    char *got;

    CHECK_EQ(mb__json_finish(json), err);
    got = mb__json_take(json);
    CHECK(got != NULL);
    CHECK_STR_EQ(got, text);
    free(got);
}

TEST(a_document)
{
    struct mb_json j;

    mb__json_to_memory(&j, 0);
    mb__json_object(&j, NULL);
    mb__json_string(&j, "name", "sim");
    mb__json_u64(&j, "bytes", UINT64_MAX);
    mb__json_i64(&j, "delta", INT64_MIN);
    mb__json_array(&j, "list");
    mb__json_bool(&j, NULL, true);
    mb__json_null(&j, NULL);
    mb__json_array(&j, NULL);
    mb__json_end(&j);
    mb__json_end(&j);
    mb__json_double(&j, "share", 0.1);
    mb__json_string(&j, "none", NULL);
    mb__json_end(&j);
    expect(&j, MB_OK,
           "{\"name\":\"sim\",\"bytes\":18446744073709551615,\"delta\":-9223372036854775808,"
           "\"list\":[true,null,[]],\"share\":0.1,\"none\":null}");
}

TEST(indented)
{
    struct mb_json j;

    mb__json_to_memory(&j, 2);
    mb__json_object(&j, NULL);
    mb__json_array(&j, "a");
    mb__json_u64(&j, NULL, 1);
    mb__json_u64(&j, NULL, 2);
    mb__json_end(&j);
    mb__json_object(&j, "b");
    mb__json_end(&j);
    mb__json_end(&j);
    expect(&j, MB_OK, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(strings_are_escaped)
{
    struct mb_json j;

    mb__json_to_memory(&j, 0);
    mb__json_object(&j, NULL);
    mb__json_string(&j, "q\"", "\b\f\n\r\t\"\\/\x01\x1f\x7f");
    mb__json_end(&j);
    expect(&j, MB_OK, "{\"q\\\"\":\"\\b\\f\\n\\r\\t\\\"\\\\/\\u0001\\u001f\x7f\"}");
}

TEST(bytes_that_are_not_utf8_are_replaced)
{
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"gr\xc3\xbc\xc3\x9f", "gr\xc3\xbc\xc3\x9f"},
        {"\xe2\x82\xac \xf0\x9f\x8c\x99", "\xe2\x82\xac \xf0\x9f\x8c\x99"},
        {"\xff", "\xef\xbf\xbd"},
        {"\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd"},                                 /* overlong */
        {"\xe0\x80\xaf", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                 /* overlong */
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},                 /* surrogate */
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"}, /* > U+10FFFF */
        {"\xe2\x82", "\xef\xbf\xbd\xef\xbf\xbd"},                                 /* cut short */
        {"\xc3", "\xef\xbf\xbd"},
        {"\xf0\x9f\x8c", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[64];
        struct mb_json j;

        snprintf(text, sizeof(text), "\"%s\"", cases[i].out);
        mb__json_to_memory(&j, 0);
        mb__json_string(&j, NULL, cases[i].in);
        expect(&j, MB_OK, text);
    }
}

TEST(doubles_read_back_the_same)
{
    static const double special[] = {0, -0.0, 1, 1e22, DBL_MAX, DBL_MIN, 0x1p-1074, 1.0 / 3};
    struct mb_rng rng;

    mb__rng_seed(&rng, mb_test_seed());
    for (int i = 0; i < 2000; i++) {
        uint64_t bits = mb__rng_next(&rng);
        double value;
        struct mb_json j;
        char *text;

        memcpy(&value, &bits, sizeof(value));
        if (i < 8)
            value = special[i];
        mb__json_to_memory(&j, 0);
        mb__json_double(&j, NULL, value);
        CHECK_OK(mb__json_finish(&j));
        text = mb__json_take(&j);
        if (isfinite(value))
            CHECK(strtod(text, NULL) == value);
        else
            CHECK_STR_EQ(text, "null");
        free(text);
    }
}

TEST(misuse_is_left_out_and_told)
{
    struct mb_json j;

    mb__json_to_memory(&j, 0);
    mb__json_end(&j);         /* nothing open */
    mb__json_u64(&j, "k", 1); /* key at the top */
    mb__json_object(&j, NULL);
    mb__json_u64(&j, NULL, 2); /* no key in an object */
    mb__json_object(&j, NULL); /* same, with contents */
    mb__json_u64(&j, "lost", 3);
    mb__json_end(&j);
    mb__json_array(&j, "a");
    mb__json_u64(&j, "k", 4); /* key in an array */
    mb__json_u64(&j, NULL, 5);
    mb__json_end(&j);
    mb__json_end(&j);
    mb__json_u64(&j, NULL, 6); /* second value at the top */
    expect(&j, MB_ERR_INTERNAL, "{\"a\":[5]}");

    mb__json_to_memory(&j, 0);
    expect(&j, MB_ERR_INTERNAL, "null");

    mb__json_to_memory(&j, 0);
    mb__json_array(&j, NULL);
    mb__json_object(&j, NULL);
    expect(&j, MB_ERR_INTERNAL, "[{}]");
}

TEST(depth_is_limited)
{
    struct mb_json j;
    char want[2 * MB_JSON_DEPTH + 1];

    mb__json_to_memory(&j, 0);
    for (int i = 0; i < MB_JSON_DEPTH + 5; i++)
        mb__json_array(&j, NULL);
    for (int i = 0; i < MB_JSON_DEPTH + 5; i++)
        mb__json_end(&j);
    memset(want, '[', MB_JSON_DEPTH);
    memset(want + MB_JSON_DEPTH, ']', MB_JSON_DEPTH);
    want[2 * MB_JSON_DEPTH] = 0;
    expect(&j, MB_ERR_INTERNAL, want);
}

TEST(a_full_disk_is_an_error)
{
    FILE *full = fopen("/dev/full", "w");
    struct mb_json j;

    if (!full)
        SKIP("/dev/full cannot be opened");
    mb__json_to_file(&j, full, 0);
    mb__json_string(&j, NULL, "text");
    CHECK_EQ(mb__json_finish(&j), MB_ERR_IO);
    fclose(full);
}

/* Any sequence of calls gives a document that an independent reader accepts. */
static void random_calls(struct mb_json *j, struct mb_rng *rng)
{
    for (uint64_t n = mb__rng_below(rng, 60); n; n--) {
        char text[12];
        const char *key = mb__rng_below(rng, 2) ? text : NULL;
        size_t bytes = (size_t)mb__rng_below(rng, sizeof(text));

        for (size_t i = 0; i < bytes; i++)
            text[i] = (char)(1 + mb__rng_below(rng, 255));
        text[bytes] = 0;
        switch (mb__rng_below(rng, 8)) {
        case 0:
            mb__json_object(j, key);
            break;
        case 1:
            mb__json_array(j, key);
            break;
        case 2:
            mb__json_end(j);
            break;
        case 3:
            mb__json_u64(j, key, mb__rng_next(rng));
            break;
        case 4:
            mb__json_double(j, key, mb__rng_unit(rng) * 1e6 - 5e5);
            break;
        case 5:
            mb__json_bool(j, key, mb__rng_next(rng) & 1);
            break;
        default:
            mb__json_string(j, key, text);
        }
    }
}

TEST(python_reads_whatever_was_called)
{
    static const char reader[] = "python3 -c 'import json, sys\n"
                                 "n = 0\n"
                                 "for line in sys.stdin.buffer:\n"
                                 "    json.loads(line.decode(\"utf-8\")); n += 1\n"
                                 "sys.exit(0 if n == 500 else 3)'";
    struct mb_rng rng;
    FILE *python;

    if (system("python3 -c 'import json'") != 0)
        SKIP("python3 is not installed");
    python = popen(reader, "w");
    CHECK(python != NULL);
    mb__rng_seed(&rng, mb_test_seed());
    for (int i = 0; i < 500; i++) {
        struct mb_json j;

        mb__json_to_file(&j, python, 0);
        random_calls(&j, &rng);
        mb__json_finish(&j);
    }
    CHECK_EQ(pclose(python), 0);
}
