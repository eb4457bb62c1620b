/* SPDX-License-Identifier: MIT */
/*
 * cli.h - what the commands of `moonbright` share.
 *
 * A command is one file, cmd_<name>.c, with one struct cli_command that commands.c lists. Output
 * meant for the user's next program goes to standard output, everything else to standard error.
 */
#ifndef MB_CLI_H
#define MB_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

/* What the process exits with. */
enum cli_exit {
    CLI_OK = 0,
    CLI_FAILED = 1,    /* something did not work, or an answer was wrong */
    CLI_BAD_INPUT = 2, /* the command line or an input file is wrong */
};

struct cli_command {
    const char *name;
    const char *summary; /* one line, for the list of commands */
    const char *help;    /* synopsis and options, for `moonbright help NAME` */
    /* argv[0] is the command's name. Returns an enum cli_exit. */
    int (*run)(int argc, char **argv);
};

extern const struct cli_command cli_info, cli_demo, cli_replay, cli_bench, cli_probe, cli_litmus,
    cli_audit, cli_map, cli_version, cli_help;

/* In the order of the list that `help` prints; NULL ends it. */
extern const struct cli_command *const cli_commands[];
/* NULL if there is no such command. */
const struct cli_command *cli_find(const char *name);
/* The whole program: finds the command and runs it. */
int cli_main(int argc, char **argv);

/* ------------------------------------------------------------------ messages */

/* Prints «moonbright COMMAND: text» to standard error and returns `code`. */
__attribute__((format(printf, 3, 4))) int cli_fail(int code, const char *command,
                                                   const char *format, ...);
/* The same with the text of a call of the library that has just failed; returns the status: a
 * configuration that is wrong is bad input. */
int cli_fail_call(const char *command, enum mb_err err);
/* The word of `words` (NULL ends it) that looks most like `word`, or NULL if none looks like it. */
const char *cli_nearest(const char *word, const char *const *words);

/* ------------------------------------------------------------------ options */

enum cli_option_kind {
    CLI_FLAG,     /* bool */
    CLI_TEXT,     /* const char * */
    CLI_U64,      /* uint64_t, decimal or 0x */
    CLI_UNSIGNED, /* unsigned */
    CLI_BYTES,    /* uint64_t, with a unit: 80GiB */
    CLI_CHOICE,   /* const char *, "" without a value: --name or --name=VALUE */
};

/* One option; a table ends with a NULL name. */
struct cli_option {
    const char *name; /* with its dashes */
    enum cli_option_kind kind;
    void *target; /* of the type that kind says */
};

/*
 * Takes options off argv and stores their values; what is left, without argv[0], comes back in
 * order in argv[1..*count]. «--name value» and «--name=value» both work, «--» ends the options, «-»
 * is no option. On a mistake prints what and a hint, and returns CLI_BAD_INPUT. --help prints the
 * command's help and sets *done.
 */
int cli_parse(const struct cli_command *command, const struct cli_option *options, int argc,
              char **argv, int *count, bool *done);

/* ------------------------------------------------------------------ sizes and numbers */

/* "80GiB", "80G" (the same), "80GB" (10^9), "4096"; false if it is anything else or too large. */
bool cli_parse_bytes(const char *text, uint64_t *out);
/* Decimal or 0x; the whole text. */
bool cli_parse_u64(const char *text, uint64_t *out);

enum {
    CLI_NUMBER_MAX = 32, /* bytes that the next ones need */
};
/* "21.88 GiB" */
const char *cli_format_bytes(uint64_t bytes, char buffer[CLI_NUMBER_MAX]);
/* "50,955" */
const char *cli_format_count(uint64_t count, char buffer[CLI_NUMBER_MAX]);
/* "1.25 us" */
const char *cli_format_ns(uint64_t ns, char buffer[CLI_NUMBER_MAX]);

/* Monotonic. */
uint64_t cli_now_ns(void);

#endif
