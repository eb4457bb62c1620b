/* SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "base/str.h"
#include "test.h"

struct options {
    uint64_t count, size;
    int level, mode;
    bool flag;
    const char *model;
    char path[8];
};

static const char *const modes[] = {"inline", "fresh", NULL};
static const char *const models[] = {"h200", "a100", NULL};

#define AT(field) offsetof(struct options, field)
static const struct mb_conf_key keys[] = {
    {"count", MB_CONF_U64, AT(count), 1, 100, NULL, NULL},
    {"size", MB_CONF_BYTES, AT(size), 4096, 0, NULL, NULL},
    {"level", MB_CONF_INT, AT(level), 0, 7, NULL, NULL},
    {"mode", MB_CONF_CHOICE, AT(mode), 0, 0, modes, NULL},
    {"flag", MB_CONF_BOOL, AT(flag), 0, 0, NULL, NULL},
    {"model", MB_CONF_NAME, AT(model), 0, 0, models, NULL},
    {"path", MB_CONF_TEXT, AT(path), 0, 8, NULL, NULL},
};

static enum mb_err parse(const char *text, struct options *out)
{
    return mb__conf_parse(text, "config", keys, sizeof(keys) / sizeof(keys[0]), out, sizeof(*out));
}

TEST(all_types)
{
    struct options o = {0};

    CHECK_OK(parse("count:5, size:2g ,level : 7,mode:fresh,flag:on,model:a100,path:/a:b", &o));
    CHECK_EQ(o.count, 5);
    CHECK_EQ(o.size, 2ull << 30);
    CHECK_EQ(o.level, 7);
    CHECK_EQ(o.mode, 1);
    CHECK(o.flag);
    CHECK_PTR_EQ(o.model, models[1]);
    CHECK_STR_EQ(o.path, "/a:b");
}

TEST(nothing_given_changes_nothing)
{
    struct options o = {.count = 9}, before = o;

    CHECK_OK(parse(NULL, &o));
    CHECK_OK(parse("", &o));
    CHECK_OK(parse("  ", &o));
    CHECK_MEM_EQ(&o, &before, sizeof(o));
}

TEST(errors_say_what_and_where_and_change_nothing)
{
    static const struct {
        const char *text, *detail;
    } cases[] = {
        {"count:5,,flag:1", "config: \"\" at character 9: empty item"},
        {"count:5,", "config: \"\" at character 9: empty item"},
        {"count:5,flag", "\"flag\" at character 9: no ':'"},
        {"cuont:5", "\"cuont\" at character 1: unknown key; known are count, size, level, mode"},
        {":5", "\"\" at character 1: unknown key"},
        {"count:1,count:2", "\"count:2\" at character 9: the key is given twice"},
        {"count:0",
         "\"0\" at character 7: the value of count must be a whole number from 1 to 100"},
        {"count:101", "from 1 to 100"},
        {"count:", "\"\" at character 7: the value of count must be"},
        {"count:5x", "\"5x\" at character 7"},
        {"count:-1", "\"-1\" at character 7"},
        {"level:8", "from 0 to 7"},
        {"size:4095", "at least 4 KiB"},
        {"size:99999999999t", "a size like 512m or 4g"},
        {"size:1x", "a size like"},
        {"mode:other", "the value of mode must be inline, fresh"},
        {"model:H200", "must be h200, a100"},
        {"flag:2", "must be 0 or 1"},
        {"path:12345678", "a text of less than 8 bytes"},
    };

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct options o = {.count = 9, .path = "old"}, before = o;
        char text[64];

        CHECK_EQ(parse(cases[i].text, &o), MB_ERR_CONFIG);
        if (!strstr(mb_error_detail(), cases[i].detail))
            FAIL("%s: got <%s>, want <%s>", cases[i].text, mb_error_detail(), cases[i].detail);
        /* The same error after a good item. */
        snprintf(text, sizeof(text), "flag:1,%s", cases[i].text);
        if (strstr(cases[i].text, "flag") == NULL)
            CHECK_EQ(parse(text, &o), MB_ERR_CONFIG);
        CHECK_MEM_EQ(&o, &before, sizeof(o));
    }
}

TEST(sizes)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},           {"1", 1},
        {"0x10", 16},       {"512b", 512},
        {"1k", 1024},       {"2KB", 2048},
        {"3 MiB", 3 << 20}, {"4g", 4ull << 30},
        {"1T", 1ull << 40}, {"18446744073709551615", UINT64_MAX},
    };
    static const char *const bad[] = {
        "",   "k",   "1kk",       "1 ki b", "-1",  "1.5g", "18446744073709551616",
        "0x", "1ib", "16777216t", "1g1",    "0x1k"};
    uint64_t bytes;

    for (unsigned i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CHECK(mb__parse_bytes(good[i].text, strlen(good[i].text), &bytes));
        CHECK_EQ(bytes, good[i].bytes);
    }
    bytes = 42;
    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (mb__parse_bytes(bad[i], strlen(bad[i]), &bytes))
            FAIL("«%s» was taken as %llu", bad[i], (unsigned long long)bytes);
    CHECK_EQ(bytes, 42);
}

TEST(formatting)
{
    char out[32];

    CHECK_STR_EQ(mb__format_bytes(0, out, sizeof(out)), "0 B");
    CHECK_STR_EQ(mb__format_bytes(1023, out, sizeof(out)), "1023 B");
    CHECK_STR_EQ(mb__format_bytes(1024, out, sizeof(out)), "1 KiB");
    CHECK_STR_EQ(mb__format_bytes(3 << 19, out, sizeof(out)), "1.50 MiB");
    CHECK_STR_EQ(mb__format_bytes(141ull << 30, out, sizeof(out)), "141 GiB");
    CHECK_STR_EQ(mb__format_bytes(UINT64_MAX, out, sizeof(out)), "16.00 EiB");
}

/* Any bytes: an answer, never a fault; failure leaves the structure alone. */
TEST(random_texts)
{
    static const char alphabet[] = "count:size,level=flag 0123456789xkmg:,::,,\t\xff";
    struct mb_rng rng;
    int good = 0;

    mb__rng_seed(&rng, mb_test_seed());
    for (int i = 0; i < 20000; i++) {
        struct options o = {.count = 9}, before = o;
        char text[40];
        size_t bytes = (size_t)mb__rng_below(&rng, sizeof(text));

        for (size_t k = 0; k < bytes; k++)
            text[k] = alphabet[mb__rng_below(&rng, sizeof(alphabet) - 1)];
        text[bytes] = 0;
        if (i % 10 == 0)
            snprintf(text, sizeof(text), "count:%d", (int)mb__rng_below(&rng, 200));
        if (parse(text, &o) == MB_OK)
            good++;
        else
            CHECK_MEM_EQ(&o, &before, sizeof(o));
    }
    CHECK(good > 500);
}
