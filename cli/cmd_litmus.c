/* SPDX-License-Identifier: MIT */
/*
 * cmd_litmus.c - `moonbright litmus`: asks the hardware the questions that the design relies on.
 *
 * Every program runs in a process of its own, forked before anything touches the device: a context
 * that one of them ends is not the next one's.
 */
#include "cli.h"
#include "config.h"
#include "json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "moonbright.h"

enum { PROGRAMS_MAX = 64 };

struct litmus {
    bool list, as_json, dangerous;
    unsigned device;
    uint64_t seed;
    char config[1024];
    struct json_writer json;
    unsigned confirmed, changed, not_run;
    bool failed; /* a program that ends no context got no answer */
};

/* What the child sends: fixed size, so that a short read means that it died. */
struct message {
    enum mb_err err;
    enum mb_litmus_verdict verdict;
    char text[256]; /* the answer, or the error's detail */
};

static struct message ask(const struct litmus *l, const char *name)
{
    struct message m = {.err = MB_OK};
    struct mb_litmus_result result;

    m.err = mb_litmus_run((int)l->device, l->config, name, l->seed, &result);
    if (m.err) {
        snprintf(m.text, sizeof(m.text), "%s: %s", mb_error_name(m.err), mb_error_detail());
        return m;
    }
    m.verdict = result.verdict;
    snprintf(m.text, sizeof(m.text), "%s", result.answer);
    return m;
}

static bool send_message(int fd, const struct message *m)
{
    const char *at = (const char *)m;
    size_t left = sizeof(*m);

    while (left) {
        ssize_t n = write(fd, at, left);

        if (n <= 0)
            return false;
        at += n;
        left -= (size_t)n;
    }
    return true;
}

static bool receive(int fd, struct message *m)
{
    char *at = (char *)m;
    size_t left = sizeof(*m);

    while (left) {
        ssize_t n = read(fd, at, left);

        if (n <= 0)
            return false;
        at += n;
        left -= (size_t)n;
    }
    return true;
}

/* False: no process could be made. */
static bool ask_apart(const struct litmus *l, const char *name, struct message *m)
{
    int ends[2], status = 0;
    pid_t child;

    if (pipe(ends))
        return false;
    fflush(NULL);
    child = fork();
    if (child == 0) {
        struct message answer = ask(l, name);

        close(ends[0]);
        _exit(send_message(ends[1], &answer) ? 0 : 1);
    }
    close(ends[1]);
    if (child > 0 && !receive(ends[0], m)) {
        m->err = MB_ERR_DEVICE_LOST;
        m->verdict = MB_LITMUS_NOT_RUN;
        snprintf(m->text, sizeof(m->text), "its process ended without an answer");
    }
    close(ends[0]);
    if (child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status))
        snprintf(m->text, sizeof(m->text), "its process was ended by signal %d", WTERMSIG(status));
    return child > 0;
}

static const char *word(const struct message *m)
{
    return m->err                              ? "failed"
           : m->verdict == MB_LITMUS_CONFIRMED ? "confirmed"
           : m->verdict == MB_LITMUS_CHANGED   ? "CHANGED"
                                               : "not run";
}

static void tell(struct litmus *l, const struct mb_litmus_info *info, const struct message *m)
{
    if (m->err || m->verdict == MB_LITMUS_NOT_RUN)
        l->not_run++;
    else if (m->verdict == MB_LITMUS_CONFIRMED)
        l->confirmed++;
    else
        l->changed++;
    if (!l->as_json) {
        printf("%-24s %-10s %s", info->name, word(m), m->text);
        if (!m->err && m->verdict == MB_LITMUS_CHANGED)
            printf("; rule %s says: %s", info->rule, info->expected);
        putchar('\n');
        fflush(stdout);
        return;
    }
    json_object(&l->json, NULL);
    json_text(&l->json, "name", info->name);
    json_text(&l->json, "question", info->question);
    json_text(&l->json, "rule", info->rule);
    json_text(&l->json, "expected", info->expected);
    json_text(&l->json, "verdict", word(m));
    json_text(&l->json, "answer", m->text);
    json_end_object(&l->json);
}

static int run_one(struct litmus *l, const struct mb_litmus_info *info, bool named)
{
    struct message m = {.verdict = MB_LITMUS_NOT_RUN};

    if (info->dangerous && !l->dangerous && !strstr(l->config, "backend:sim")) {
        snprintf(m.text, sizeof(m.text), "may end the context: add --dangerous%s",
                 named ? " to run it" : "");
    } else if (!ask_apart(l, info->name, &m)) {
        return cli_fail(CLI_FAILED, "litmus", "no process could be made for %s", info->name);
    }
    if (m.err == MB_ERR_CONFIG) /* of no program */
        return cli_fail(CLI_BAD_INPUT, "litmus", "%s", m.text);
    l->failed |= m.err && !info->dangerous;
    tell(l, info, &m);
    return CLI_OK;
}

static void print_list(const struct litmus *l, const struct mb_litmus_info *list, unsigned count)
{
    (void)l;
    for (unsigned i = 0; i < count; i++)
        printf("%-24s %s\n%-24s rule %s: %s%s\n", list[i].name, list[i].question, "", list[i].rule,
               list[i].expected, list[i].dangerous ? " (dangerous)" : "");
}

static int run_all(struct litmus *l, const struct mb_litmus_info *list, unsigned count,
                   char **names, int name_count)
{
    int code = CLI_OK;

    for (int i = 0; i < name_count; i++) {
        const char *known[PROGRAMS_MAX + 1] = {NULL};
        const char *nearest;
        bool found = false;

        for (unsigned k = 0; k < count; k++) {
            known[k] = list[k].name;
            found |= !strcmp(list[k].name, names[i]);
        }
        nearest = cli_nearest(names[i], known);
        if (!found)
            return cli_fail(CLI_BAD_INPUT, "litmus", "there is no program \"%.64s\"%s%s", names[i],
                            nearest ? "; did you mean " : "", nearest ? nearest : "");
    }
    if (l->as_json) {
        json_object(&l->json, NULL);
        json_text(&l->json, "version", mb_version());
        json_u64(&l->json, "seed", l->seed);
        json_array(&l->json, "programs");
    }
    for (unsigned k = 0; !code && k < count; k++) {
        bool wanted = name_count == 0;

        for (int i = 0; i < name_count; i++)
            wanted |= !strcmp(list[k].name, names[i]);
        if (wanted)
            code = run_one(l, &list[k], name_count > 0);
    }
    if (l->as_json) {
        json_end_array(&l->json);
        json_u64(&l->json, "confirmed", l->confirmed);
        json_u64(&l->json, "changed", l->changed);
        json_u64(&l->json, "not_run", l->not_run);
        json_end_object(&l->json);
        json_finish(&l->json);
    } else if (!code) {
        printf("%u confirmed, %u changed, %u not run (seed %llu)\n", l->confirmed, l->changed,
               l->not_run, (unsigned long long)l->seed);
    }
    return code;
}

static int run(int argc, char **argv)
{
    struct device_options device = {.backend = NULL};
    struct litmus l = {.seed = 1, .json = {.out = stdout}};
    struct mb_litmus_info list[PROGRAMS_MAX];
    const struct cli_option table[] = {
        {"--list", CLI_FLAG, &l.list},         {"--backend", CLI_TEXT, &device.backend},
        {"--device", CLI_UNSIGNED, &l.device}, {"--config", CLI_TEXT, &device.config},
        {"--seed", CLI_U64, &l.seed},          {"--dangerous", CLI_FLAG, &l.dangerous},
        {"--json", CLI_FLAG, &l.as_json},      {NULL, CLI_FLAG, NULL}};
    unsigned programs = 0;
    bool done = false;
    int count = 0, code = cli_parse(&cli_litmus, table, argc, argv, &count, &done);

    if (code || done)
        return code;
    if (l.list && argc > 2)
        return cli_fail(CLI_BAD_INPUT, "litmus", "--list takes no other word: it asks no GPU");
    code = device_config("litmus", &device, l.config, sizeof(l.config));
    if (code)
        return code;
    if (mb_litmus_list(list, PROGRAMS_MAX, &programs))
        return cli_fail(CLI_FAILED, "litmus", "%s", mb_error_detail());
    programs = programs < PROGRAMS_MAX ? programs : PROGRAMS_MAX;
    if (l.list) {
        print_list(&l, list, programs);
        return CLI_OK;
    }
    code = run_all(&l, list, programs, argv + 1, count);
    if (!code && !l.confirmed && !l.changed)
        code = cli_fail(CLI_FAILED, "litmus", "no program got an answer: nothing is confirmed");
    return code ? code : l.changed || l.failed ? CLI_FAILED : CLI_OK;
}

const struct cli_command cli_litmus = {
    .name = "litmus",
    .summary = "ask the hardware what the design relies on",
    .help =
        "usage: moonbright litmus [OPTION...] [NAME...]\n\n"
        "  --list          the programs: question, rule of the software GPU, its answer; alone\n"
        "  --backend NAME  sim or cuda (default: as mb_open chooses)\n"
        "  --config TEXT   more configuration: tables:isolated, model:a100, ...\n"
        "  --device N      which GPU, from 0; the software GPU is there 8 times\n"
        "  --dangerous     also those that may end a CUDA context (each has its own process)\n"
        "  --seed N        of drawn orders (default 1)\n"
        "  --json          one JSON object\n\n"
        "Exit status 1 if the hardware answers otherwise than a rule says, or not at all.\n",
    .run = run,
};
