/* SPDX-License-Identifier: MIT */
/* Sizes, counts, times and options of the command line. */
#include <string.h>

#include "cli/cli.h"
#include "test.h"

TEST(sizes_are_read)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"80GiB", (uint64_t)80 << 30},
        {"80g", (uint64_t)80 << 30},
        {"80GB", 80000000000},
        {"2TiB", (uint64_t)2 << 40},
        {"7B", 7},
        {"512kib", 512 << 10},
    };
    static const char *const bad[] = {"",           "GiB",    "-1",   "1.5GiB",
                                      "12 GiB",     "12GiBs", "0x10", "99999999999999999999",
                                      "16777216TiB"};
    uint64_t bytes = 0;

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        CHECK(cli_parse_bytes(good[i].text, &bytes));
        CHECK_EQ(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        bytes = 77;
        CHECK(!cli_parse_bytes(bad[i], &bytes));
        CHECK_EQ(bytes, 77);
    }
}

TEST(numbers_are_read)
{
    uint64_t value = 0;

    CHECK(cli_parse_u64("18446744073709551615", &value));
    CHECK_EQ(value, UINT64_MAX);
    CHECK(cli_parse_u64("0xfF", &value));
    CHECK_EQ(value, 255);
    CHECK(!cli_parse_u64("18446744073709551616", &value));
    CHECK(!cli_parse_u64("0x", &value));
    CHECK(!cli_parse_u64("1a", &value));
    CHECK(!cli_parse_u64("", &value));
    CHECK(!cli_parse_u64("-1", &value));
}

TEST(numbers_are_written)
{
    char buffer[CLI_NUMBER_MAX];

    CHECK_STR_EQ(cli_format_count(0, buffer), "0");
    CHECK_STR_EQ(cli_format_count(999, buffer), "999");
    CHECK_STR_EQ(cli_format_count(50955, buffer), "50,955");
    CHECK_STR_EQ(cli_format_count(UINT64_MAX, buffer), "18,446,744,073,709,551,615");
    CHECK_STR_EQ(cli_format_bytes(1023, buffer), "1023 B");
    CHECK_STR_EQ(cli_format_bytes(1536, buffer), "1.50 KiB");
    CHECK_STR_EQ(cli_format_bytes((uint64_t)34 << 30, buffer), "34.00 GiB");
    CHECK_STR_EQ(cli_format_bytes(UINT64_MAX, buffer), "16.00 EiB");
    CHECK_STR_EQ(cli_format_ns(999, buffer), "999 ns");
    CHECK_STR_EQ(cli_format_ns(1250, buffer), "1.25 us");
    CHECK_STR_EQ(cli_format_ns(26700000, buffer), "26.70 ms");
    CHECK_STR_EQ(cli_format_ns(3000000000, buffer), "3.00 s");
}

TEST(near_words_are_found)
{
    static const char *const words[] = {"--verify", "--version", "--seed", NULL};

    CHECK_STR_EQ(cli_nearest("--verfy", words), "--verify");
    CHECK_STR_EQ(cli_nearest("--sed", words), "--seed");
    CHECK_PTR_EQ(cli_nearest("--completely-else", words), NULL);
    CHECK_PTR_EQ(cli_nearest("x", words), NULL);
}

/* Targets of the options below. */
struct targets {
    bool flag;
    const char *text;
    const char *choice;
    uint64_t number;
    unsigned small;
    uint64_t bytes;
};

static int parse(struct targets *t, int argc, char **argv, int *count, bool *done)
{
    const struct cli_option options[] = {
        {"--flag", CLI_FLAG, &t->flag},
        {"--text", CLI_TEXT, &t->text},
        {"--choice", CLI_CHOICE, &t->choice},
        {"--number", CLI_U64, &t->number},
        {"--small", CLI_UNSIGNED, &t->small},
        {"--bytes", CLI_BYTES, &t->bytes},
        {NULL, CLI_FLAG, NULL},
    };

    memset(t, 0, sizeof(*t));
    return cli_parse(&cli_replay, options, argc, argv, count, done);
}

TEST(options_and_arguments_mix)
{
    char text[] = "--text=a=b";
    char bytes[] = "--bytes=2MiB";
    char *argv[] = {"replay", "one", "--flag",  text, "--number", "0x10", "-",
                    bytes,    "two", "--small", "3",  "--choice", "--",   "--flag"};
    struct targets t;
    bool done = true;
    int count = 0;

    CHECK_EQ(parse(&t, 14, argv, &count, &done), CLI_OK);
    CHECK(!done && t.flag);
    CHECK_STR_EQ(t.text, "a=b");
    CHECK_STR_EQ(t.choice, "");
    CHECK_EQ(t.number, 16);
    CHECK_EQ(t.small, 3);
    CHECK_EQ(t.bytes, 2 << 20);
    CHECK_EQ(count, 4);
    CHECK_STR_EQ(argv[1], "one");
    CHECK_STR_EQ(argv[2], "-");
    CHECK_STR_EQ(argv[3], "two");
    CHECK_STR_EQ(argv[4], "--flag");
}

TEST(wrong_options_are_bad_input)
{
    static char unknown[] = "--flags";
    static char valued[] = "--flag=1";
    static char negative[] = "--number=-1";
    static char large[] = "--small=4294967296";
    static char size[] = "--bytes=many";
    static char missing[] = "--text";
    char *const words[] = {unknown, valued, negative, large, size, missing};
    struct targets t;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        char *argv[] = {"replay", words[i]};
        bool done = false;
        int count = 0;

        CHECK_EQ(parse(&t, 2, argv, &count, &done), CLI_BAD_INPUT);
    }
}
