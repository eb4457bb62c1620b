/* SPDX-License-Identifier: MIT */
/* options.c - the command line. */
#include "cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WORD_MAX = 40, /* longer words look like nothing */
    OPTIONS_MAX = 40,
};

static unsigned least(unsigned a, unsigned b, unsigned c)
{
    unsigned ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Insertions, deletions and replacements that make one word of the other. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[WORD_MAX + 1];
    size_t length_a = strlen(a);
    size_t length_b = strlen(b);

    if (length_a > WORD_MAX || length_b > WORD_MAX)
        return UINT_MAX;
    for (size_t j = 0; j <= length_b; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= length_a; i++) {
        unsigned corner = row[0];

        row[0] = (unsigned)i;
        for (size_t j = 1; j <= length_b; j++) {
            unsigned above = row[j];

            row[j] = least(above + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
            corner = above;
        }
    }
    return row[length_b];
}

const char *cli_nearest(const char *word, const char *const *words)
{
    const char *best = NULL;
    unsigned best_distance = 4;

    for (; *words; words++) {
        unsigned d = distance(word, *words);

        if (d < best_distance && d < strlen(word)) {
            best_distance = d;
            best = *words;
        }
    }
    return best;
}

/* Where to read on, and which option was perhaps meant by a word that is none. */
static int hint(const struct cli_command *command, const char *word,
                const struct cli_option *options)
{
    const char *names[OPTIONS_MAX + 1] = {NULL};
    const char *nearest;

    for (size_t i = 0; i < OPTIONS_MAX && options[i].name; i++)
        names[i] = options[i].name;
    nearest = word ? cli_nearest(word, names) : NULL;
    if (nearest)
        fprintf(stderr, "Did you mean %s? ", nearest);
    fprintf(stderr, "Try `moonbright %s --help`.\n", command->name);
    return CLI_BAD_INPUT;
}

static bool store(const struct cli_option *option, const char *value)
{
    uint64_t number = 0;

    switch (option->kind) {
    case CLI_FLAG:
        *(bool *)option->target = true;
        return true;
    case CLI_TEXT:
    case CLI_CHOICE:
        *(const char **)option->target = value;
        return true;
    case CLI_U64:
        return cli_parse_u64(value, option->target);
    case CLI_UNSIGNED:
        if (!cli_parse_u64(value, &number) || number > UINT_MAX)
            return false;
        *(unsigned *)option->target = (unsigned)number;
        return true;
    case CLI_BYTES:
        return cli_parse_bytes(value, option->target);
    }
    return false;
}

static const char *wanted(enum cli_option_kind kind)
{
    switch (kind) {
    case CLI_BYTES:
        return "a size like 80GiB, 512MiB or 4096";
    case CLI_U64:
        return "a whole number, 0 or more";
    case CLI_UNSIGNED:
        return "a whole number from 0 to 4294967295";
    default:
        return "a value";
    }
}

/* Takes argv[*i], an option, and its value; *i moves to the last word that was used. */
static int take_option(const struct cli_command *command, const struct cli_option *options,
                       int argc, char **argv, int *i)
{
    char *word = argv[*i];
    char *equals = strchr(word, '=');
    const struct cli_option *option = options;
    const char *value = equals ? equals + 1 : NULL;
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    bool alone;

    while (option->name &&
           (strlen(option->name) != length || memcmp(option->name, word, length) != 0))
        option++;
    if (!option->name) {
        cli_fail(CLI_BAD_INPUT, command->name, "there is no option %.64s", word);
        if (equals)
            *equals = '\0';
        return hint(command, word, options);
    }
    alone = option->kind == CLI_FLAG || option->kind == CLI_CHOICE;
    if (option->kind == CLI_FLAG && value) {
        cli_fail(CLI_BAD_INPUT, command->name, "%s takes no value", option->name);
        return hint(command, NULL, options);
    }
    if (!value && !alone && *i + 1 < argc)
        value = argv[++*i];
    if (!value && !alone) {
        cli_fail(CLI_BAD_INPUT, command->name, "%s has no value; expected %s", option->name,
                 wanted(option->kind));
        return hint(command, NULL, options);
    }
    if (!store(option, value ? value : ""))
        return cli_fail(CLI_BAD_INPUT, command->name, "%s is \"%.64s\"; expected %s", option->name,
                        value, wanted(option->kind));
    return CLI_OK;
}

int cli_parse(const struct cli_command *command, const struct cli_option *options, int argc,
              char **argv, int *count, bool *done)
{
    int kept = 0;
    bool ended = false;

    *done = false;
    for (int i = 1; i < argc; i++) {
        int code;

        if (ended || argv[i][0] != '-' || !argv[i][1]) {
            argv[++kept] = argv[i];
            continue;
        }
        if (!strcmp(argv[i], "--")) {
            ended = true;
            continue;
        }
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(command->help, stdout);
            *done = true;
            return CLI_OK;
        }
        code = take_option(command, options, argc, argv, &i);
        if (code)
            return code;
    }
    *count = kept;
    return CLI_OK;
}
