/* SPDX-License-Identifier: MIT */
/* cmd_map.c - `moonbright map TRACE|SNAPSHOT|LOG|live -o FILE`: who holds what, on a page. */
#include "cli.h"
#include "config.h"
#include "input_file.h"
#include "memmap.h"
#include "output_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum input { INPUT_TRACE, INPUT_PICKLE, INPUT_LOG };

/* By the first bytes; what gzip holds is taken for a trace, and the reader looks into it. */
static int kind_of(const char *path, enum input *kind, char error[MEMMAP_ERROR])
{
    unsigned char first[4] = {0};
    int fd = input_open(path, error);
    ssize_t n;

    if (fd < 0)
        return CLI_BAD_INPUT;
    n = pread(fd, first, sizeof(first), 0);
    close(fd);
    if (n < 0) {
        snprintf(error, MEMMAP_ERROR, "is a pipe, and is read more than once; expected a file");
        return CLI_BAD_INPUT;
    }
    if (!n) {
        snprintf(error, MEMMAP_ERROR, "the file is empty");
        return CLI_BAD_INPUT;
    }
    *kind = n == 4 && memcmp(first, "MBJ", 3) == 0 ? INPUT_LOG
            : first[0] == 0x80                     ? INPUT_PICKLE
                                                   : INPUT_TRACE;
    return CLI_OK;
}

/* The path behind "audit:" in the configuration of the environment. */
static bool live_log(char *path, size_t size)
{
    const char *at = getenv("MOONBRIGHT");

    for (; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, "audit:", 6) == 0) {
            snprintf(path, size, "%.*s", (int)strcspn(at + 6, ","), at + 6);
            return *path != '\0';
        }
    return false;
}

/* `shaped`: an option was given for the device that serves a TRACE. */
static int read_input(struct memmap *map, const char *path, const char *config, bool shaped,
                      unsigned moments)
{
    char error[MEMMAP_ERROR] = "";
    enum input kind;
    int code = kind_of(path, &kind, error);

    if (!code && shaped && kind != INPUT_TRACE)
        return cli_fail(CLI_BAD_INPUT, "map",
                        "--config and --device-memory are for a TRACE, which is served again; "
                        "%.200s is a %s, drawn as it was recorded",
                        path, kind == INPUT_LOG ? "LOG" : "SNAPSHOT");
    if (!code)
        code = kind == INPUT_LOG      ? memmap_of_log(map, path, moments, error)
               : kind == INPUT_PICKLE ? memmap_of_snapshot(map, path, moments, error)
                                      : memmap_of_trace(map, path, config, moments, error);
    if (code)
        return cli_fail(code, "map", "%.200s: %s", path, error);
    if (map->failed)
        return cli_fail(CLI_FAILED, "map", "the host is out of memory");
    if (!map->count)
        return cli_fail(CLI_BAD_INPUT, "map", "%.200s tells of no memory", path);
    snprintf(map->source, sizeof(map->source), "%.255s", path);
    return CLI_OK;
}

static int write_page(const struct memmap *map, const char *path)
{
    struct output_file file;
    int code = output_open(&file, "map", path);

    if (code)
        return code;
    if (!memmap_write(file.out, map))
        file.failed = true;
    code = output_close(&file);
    if (!code && strcmp(path, "-") != 0)
        fprintf(stderr, "%u moments: %s\n", map->count, path);
    return code;
}

static int run(int argc, char **argv)
{
    static struct memmap map; /* large, and a process draws one */
    struct device_options device = {.backend = "sim"};
    const char *out = NULL;
    unsigned moments = 24;
    const struct cli_option table[] = {{"-o", CLI_TEXT, &out},
                                       {"--moments", CLI_UNSIGNED, &moments},
                                       {"--config", CLI_TEXT, &device.config},
                                       {"--device-memory", CLI_BYTES, &device.memory_bytes},
                                       {NULL, CLI_FLAG, NULL}};
    char config[1024], log[512];
    const char *path;
    bool done = false;
    int count = 0, code = cli_parse(&cli_map, table, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (count != 1 || !out)
        return cli_fail(CLI_BAD_INPUT, "map", "expected one TRACE, SNAPSHOT, LOG or live, and -o");
    if (!moments || moments > MEMMAP_MOMENTS_MAX)
        return cli_fail(CLI_BAD_INPUT, "map", "--moments is %u; expected 1 to %d", moments,
                        MEMMAP_MOMENTS_MAX);
    path = argv[1];
    if (strcmp(path, "live") == 0) {
        if (!live_log(log, sizeof(log)))
            return cli_fail(CLI_BAD_INPUT, "map",
                            "live reads the audit log of a running program; start it with "
                            "MOONBRIGHT=audit:PATH and run this with the same variable");
        path = log;
    }
    if (output_same(path, out))
        return cli_fail(CLI_BAD_INPUT, "map", "-o would write over %.200s, which is read", path);
    code = output_check("map", out);
    if (!code)
        code = device_config("map", &device, config, sizeof(config));
    if (!code)
        code = read_input(&map, path, config, device.config || device.memory_bytes, moments);
    if (!code)
        code = write_page(&map, out);
    memmap_free(&map);
    return code;
}

const struct cli_command cli_map = {
    .name = "map",
    .summary = "a page that shows who holds which memory, over time",
    .help =
        "usage: moonbright map TRACE|SNAPSHOT|LOG|live -o FILE.html [OPTION...]\n\n"
        "  TRACE      events of PyTorch or RMM, served by MoonBright on the software GPU\n"
        "  SNAPSHOT   pickle of torch.cuda.memory._snapshot(): PyTorch's own memory, as it lay\n"
        "  LOG        audit log (configuration key audit:PATH): owners of frames\n"
        "  live       the audit log that $MOONBRIGHT names, of a program that is running\n\n"
        "  -o FILE            the page; - is standard output\n"
        "  --moments N        pictures, evenly spread over the events (default 24, at most 60)\n"
        "  --config K:V,...   of MoonBright, for a TRACE\n"
        "  --device-memory N  size of the software GPU's memory\n\n"
        "Stitched blocks, frames at several addresses and holes are marked. The page needs no\n"
        "network; without scripts its moments are buttons instead of a slider.\n",
    .run = run,
};
