/* SPDX-License-Identifier: MIT */
/* commands.c - the list of commands, `help` and `version`. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "moonbright.h"

const struct cli_command *const cli_commands[] = {
    &cli_info,  &cli_demo, &cli_replay,  &cli_bench, &cli_probe, &cli_litmus,
    &cli_audit, &cli_map,  &cli_version, &cli_help,  NULL,
};

enum {
    COMMAND_COUNT = sizeof(cli_commands) / sizeof(cli_commands[0]) - 1,
};

const struct cli_command *cli_find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (!strcmp(cli_commands[i]->name, name))
            return cli_commands[i];
    return NULL;
}

int cli_fail(int code, const char *command, const char *format, ...)
{
    va_list arguments;

    fflush(stdout);
    fprintf(stderr, "moonbright %s: ", command);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return code;
}

int cli_fail_call(const char *command, enum mb_err err)
{
    return cli_fail(err == MB_ERR_CONFIG ? CLI_BAD_INPUT : CLI_FAILED, command, "%s: %s",
                    mb_error_name(err), mb_error_detail());
}

static void print_overview(FILE *out)
{
    fputs("usage: moonbright COMMAND [OPTION...]\n\ncommands:\n", out);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-9s %s\n", cli_commands[i]->name, cli_commands[i]->summary);
    fputs("\n`moonbright help COMMAND` tells its options.\n"
          "Exit status: 0 all is well, 1 something failed or was wrong, 2 bad input.\n",
          out);
}

static int unknown_command(const char *name)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};
    const char *nearest;

    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = cli_commands[i]->name;
    nearest = cli_nearest(name, names);
    fprintf(stderr, "moonbright: there is no command \"%.64s\"", name);
    if (nearest)
        fprintf(stderr, "; did you mean %s?", nearest);
    fputs("\nTry `moonbright help` for the list.\n", stderr);
    return CLI_BAD_INPUT;
}

int cli_main(int argc, char **argv)
{
    const struct cli_command *command;
    int code;

    if (argc < 2) {
        print_overview(stderr);
        return CLI_BAD_INPUT;
    }
    if (!strcmp(argv[1], "--version"))
        command = &cli_version;
    else if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        command = &cli_help;
    else
        command = cli_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    code = command->run(argc - 1, argv + 1);
    /* An answer that did not reach its reader is no success. */
    if (fflush(stdout) || ferror(stdout))
        code =
            cli_fail(CLI_FAILED, command->name, "writing the output failed: %s", strerror(errno));
    return code;
}

static int run_help(int argc, char **argv)
{
    const struct cli_command *command;

    if (argc < 2) {
        print_overview(stdout);
        return CLI_OK;
    }
    if (argc > 2)
        return cli_fail(CLI_BAD_INPUT, "help",
                        "%d arguments were given; expected at most one command", argc - 1);
    command = cli_find(argv[1]);
    if (!command)
        return unknown_command(argv[1]);
    fputs(command->help, stdout);
    return CLI_OK;
}

static int run_version(int argc, char **argv)
{
    static const struct cli_option options[] = {{NULL, CLI_FLAG, NULL}};
    bool done = false;
    int count = 0;
    int code = cli_parse(&cli_version, options, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, "version", "\"%.64s\" was given; expected nothing", argv[1]);
    printf("moonbright %s\n", mb_version());
    return CLI_OK;
}

const struct cli_command cli_help = {
    .name = "help",
    .summary = "this list, or the options of a command",
    .help = "usage: moonbright help [COMMAND]\n",
    .run = run_help,
};

const struct cli_command cli_version = {
    .name = "version",
    .summary = "the version of the library in use",
    .help = "usage: moonbright version\n",
    .run = run_version,
};
