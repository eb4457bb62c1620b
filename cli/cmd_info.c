/* SPDX-License-Identifier: MIT */
/* cmd_info.c - `moonbright info`: which backends there are, which is chosen, and why not the
 * others. */
#include "cli.h"
#include "json.h"

#include <stdio.h>

#include "moonbright.h"

enum {
    BACKENDS_MAX = 16,
};

static void print_text(const struct mb_backend_info *list, unsigned count)
{
    const char *chosen = "none";

    for (unsigned i = 0; i < count; i++)
        if (list[i].chosen)
            chosen = list[i].name;
    printf("MoonBright %s, backend %s\n", mb_version(), chosen);
    for (unsigned i = 0; i < count; i++) {
        const struct mb_backend_info *b = &list[i];

        printf("\n%s: %s\n", b->name,
               b->chosen      ? "chosen"
               : b->available ? "available, not chosen"
                              : "not available");
        if (b->device_name[0])
            printf("  device  %s\n", b->device_name);
        if (b->driver[0])
            printf("  driver  %s\n", b->driver);
        if (b->available && b->tables)
            printf("  page tables written by  %s\n", b->tables);
        if (b->reason && b->reason[0])
            printf("  %s  %s\n", b->available ? "note" : "reason", b->reason);
    }
}

static void print_json(const struct mb_backend_info *list, unsigned count)
{
    struct json_writer w = {.out = stdout};
    const char *chosen = NULL;

    for (unsigned i = 0; i < count; i++)
        if (list[i].chosen)
            chosen = list[i].name;
    json_object(&w, NULL);
    json_text(&w, "version", mb_version());
    json_text(&w, "chosen", chosen);
    json_array(&w, "backends");
    for (unsigned i = 0; i < count; i++) {
        json_object(&w, NULL);
        json_text(&w, "name", list[i].name);
        json_bool(&w, "available", list[i].available);
        json_bool(&w, "chosen", list[i].chosen);
        json_text(&w, "tables", list[i].tables);
        json_text(&w, "reason", list[i].reason);
        json_text(&w, "device", list[i].device_name);
        json_text(&w, "driver", list[i].driver);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_end_object(&w);
    json_finish(&w);
}

static int run(int argc, char **argv)
{
    bool as_json = false;
    const struct cli_option options[] = {{"--json", CLI_FLAG, &as_json}, {NULL, CLI_FLAG, NULL}};
    struct mb_backend_info list[BACKENDS_MAX];
    unsigned found = 0;
    enum mb_err err;
    bool done = false;
    int count = 0;
    int code = cli_parse(&cli_info, options, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, "info", "\"%.64s\" was given; expected options only",
                        argv[1]);
    err = mb_backends(list, BACKENDS_MAX, &found);
    if (err)
        return cli_fail_call("info", err);
    if (found > BACKENDS_MAX)
        found = BACKENDS_MAX;
    if (as_json)
        print_json(list, found);
    else
        print_text(list, found);
    return CLI_OK;
}

const struct cli_command cli_info = {
    .name = "info",
    .summary = "backends on this machine, which is chosen and why",
    .help = "usage: moonbright info [--json]\n\n"
            "  --json  one JSON object\n",
    .run = run,
};
