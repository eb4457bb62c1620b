/* SPDX-License-Identifier: MIT */
/*
 * cmd_probe.c - `moonbright probe`: measures the facts that the design relies on, compares them
 * with what is built in, and writes a profile that the library reads.
 */
#include "cli.h"
#include "config.h"
#include "json.h"
#include "output_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "moonbright.h"

struct probe {
    bool as_json;
    struct json_writer json;
    unsigned differs, missing;
};

static const char *word(enum mb_fact_verdict verdict)
{
    static const char *const words[] = {"as known", "DIFFERS", "new", "not measured"};

    return words[verdict];
}

static void on_fact(void *user, const struct mb_fact *fact)
{
    struct probe *p = user;

    p->differs += fact->verdict == MB_FACT_DIFFERS;
    p->missing += fact->verdict == MB_FACT_NOT_MEASURED;
    if (p->as_json) {
        json_object(&p->json, NULL);
        json_text(&p->json, "name", fact->name);
        json_text(&p->json, "unit", fact->unit);
        json_double(&p->json, "value", fact->value);
        json_double(&p->json, "known", fact->known);
        json_text(&p->json, "verdict", word(fact->verdict));
        json_text(&p->json, "note", fact->note);
        json_end_object(&p->json);
        return;
    }
    printf("%-20s", fact->name);
    if (isnan(fact->value))
        printf("%12s %-6s", "-", fact->unit);
    else if (strcmp(fact->unit, "bits") == 0) /* as doc/probe.md and doc/formats.md write them */
        printf("%#12llx %-6s", (unsigned long long)fact->value, fact->unit);
    else
        printf("%12.10g %-6s", fact->value, fact->unit);
    printf(" %-13s", word(fact->verdict));
    if (fact->verdict == MB_FACT_DIFFERS)
        printf(" built in: %.10g", fact->known);
    printf("%s\n", fact->note);
}

static int run(int argc, char **argv)
{
    struct device_options device = {.backend = NULL};
    struct probe p = {.json = {.out = stdout}};
    const char *path = NULL;
    unsigned ordinal = 0;
    uint64_t seed = 1;
    const struct cli_option table[] = {{"--backend", CLI_TEXT, &device.backend},
                                       {"--device", CLI_UNSIGNED, &ordinal},
                                       {"--config", CLI_TEXT, &device.config},
                                       {"--seed", CLI_U64, &seed},
                                       {"-o", CLI_TEXT, &path},
                                       {"--json", CLI_FLAG, &p.as_json},
                                       {NULL, CLI_FLAG, NULL}};
    char config[1024];
    bool done = false;
    int count = 0, code = cli_parse(&cli_probe, table, argc, argv, &count, &done);
    enum mb_err err;

    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, "probe", "\"%.64s\" was given; expected options only",
                        argv[1]);
    code = device_config("probe", &device, config, sizeof(config));
    if (!code && path)
        code = output_check("probe", path);
    if (code)
        return code;
    if (p.as_json) {
        json_object(&p.json, NULL);
        json_text(&p.json, "version", mb_version());
        json_u64(&p.json, "seed", seed);
        json_array(&p.json, "facts");
    }
    err = mb_probe_run((int)ordinal, config, path, seed, on_fact, &p);
    if (p.as_json) {
        json_end_array(&p.json);
        json_u64(&p.json, "differ", p.differs);
        json_end_object(&p.json);
        json_finish(&p.json);
    }
    if (err)
        return cli_fail_call("probe", err);
    if (!p.as_json)
        printf("%u facts differ from the built-in profile, %u were not measured\n", p.differs,
               p.missing);
    if (path)
        fprintf(stderr, "profile: %s; use it with MOONBRIGHT=profile:%s\n", path, path);
    return CLI_OK;
}

const struct cli_command cli_probe = {
    .name = "probe",
    .summary = "measure this GPU, write a profile",
    .help = "usage: moonbright probe [OPTION...]\n\n"
            "  -o FILE         write a profile; the configuration key profile:FILE reads it\n"
            "  --backend NAME  sim or cuda (default: as mb_open chooses)\n"
            "  --config TEXT   more configuration\n"
            "  --device N      which GPU, from 0; the software GPU is there 8 times\n"
            "  --seed N        of frame lists (default 1)\n"
            "  --json          one JSON object\n\n"
            "Needs device tables, and the GPU to itself.\n",
    .run = run,
};
