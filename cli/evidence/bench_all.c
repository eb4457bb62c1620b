/* SPDX-License-Identifier: MIT */
/*
 * bench_all.c - `moonbright bench all`: every experiment that this machine can do, each in a
 * process of its own with a time limit, then one JSON and one page, with committed results
 * beside them.
 *
 * A bench that fails is told on standard error, with --quiet too, in the JSON and on the page; the
 * others go on. One that is not possible on this machine is told in the same places and is no
 * failure.
 */
#include "child.h"
#include "derive.h"
#include "evidence.h"
#include "page.h"
#include "sides.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench_rows.h"
#include "data.h"
#include "output_file.h"

#include "moonbright.h"

enum { WORDS_MAX = 24, JOBS_MAX = 96, INCLUDES_MAX = 256, BACKENDS_MAX = 16 };

static const char sizes[] = "2MiB,16MiB,128MiB,512MiB,2GiB,8GiB";
static const char *const traces[] = {"densenet161", "gpt2", "llama-recompute",
                                     "moe-offload-recompute", "llama-generate-beam4"};

struct job {
    const char *name; /* for --only and messages */
    const char *words[WORDS_MAX];
    unsigned count, limit_s;
    const char *policy; /* a replay for the address budget; NULL: a bench */
    const char *trace;
    char path[1024]; /* of the trace */
    struct child_result result;
    double seconds;
};

/* One run of the command. */
struct all {
    const char *backend, *html, *json_path, *commit, *only;
    bool quick, quiet, no_run, cuda;
    unsigned device;
    const char *include[INCLUDES_MAX];
    unsigned include_count;
    char line[1024], device_text[16], devices_text[16];
    struct job *jobs;
    unsigned count, failed, left_out, origin;
    struct figures set;
};

/* For --only, and in its message. */
static const char *const experiments[] = {
    "map",    "unmap", "remap",   "alias", "protect", "alloc", "beside", "hot",
    "host",   "calls", "degrade", "wrap",  "full",    "churn", "safety", "latency",
    "driver", "frag",  "budget",  "probe", "litmus",  "scale", NULL};

/* ------------------------------------------------------------ jobs */

static bool wanted(const struct all *all, const char *name)
{
    size_t length = strlen(name);

    for (const char *at = all->only; at && *at; at += strcspn(at, ","), at += *at == ',')
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || !at[length]))
            return true;
    return !all->only;
}

static void word(struct job *job, const char *text)
{
    if (job->count < WORDS_MAX - 1)
        job->words[job->count++] = text;
}

/* NULL: not wanted. The words that all benches have. */
static struct job *job(struct all *all, const char *name, unsigned limit_s, const char *command)
{
    struct job *j;

    if (!wanted(all, name) || all->count == JOBS_MAX)
        return NULL;
    j = &all->jobs[all->count++];
    *j = (struct job){.name = name, .limit_s = limit_s};
    word(j, command);
    if (strcmp(command, "bench") == 0)
        word(j, name);
    word(j, "--backend");
    word(j, all->backend);
    word(j, "--json");
    if (all->commit && strcmp(command, "bench") == 0) {
        word(j, "--commit");
        word(j, all->commit);
    }
    if (all->device) {
        word(j, "--device");
        word(j, all->device_text);
    }
    return j;
}

static void mapping_jobs(struct all *all)
{
    static const char *const names[] = {"map",     "unmap", "remap", "alias",
                                        "protect", "alloc", "beside"};
    static const char *const tables[] = {"tables:inline", "tables:isolated", "tables:driver"};

    for (unsigned t = 0; t < (all->cuda ? 3u : 1u); t++)
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            struct job *j = job(all, names[i], 90, "bench");

            if (!j)
                continue;
            if (strcmp(names[i], "beside") != 0) {
                word(j, "--sizes");
                word(j, all->quick ? "2MiB,128MiB,2GiB" : sizes);
                if (all->quick) {
                    word(j, "--samples");
                    word(j, "5");
                }
            }
            if (!all->cuda)
                continue;
            word(j, "--config");
            word(j, tables[t]);
            if (t) /* the vendor's ways are measured once */
                word(j, "--no-vendor");
        }
}

static void own_jobs(struct all *all)
{
    static const struct {
        const char *name;
        unsigned limit_s;
    } names[] = {{"calls", 180}, {"degrade", 120}, {"wrap", 60},   {"full", 120},
                 {"churn", 180}, {"safety", 120},  {"latency", 60}};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct job *j = job(all, names[i].name, names[i].limit_s, "bench");

        if (j && all->quick)
            word(j, "--quick");
    }
}

static void budget_jobs(struct all *all)
{
    static const char *const policies[] = {"policy:fresh", "policy:inline"};

    for (size_t t = 0; t < sizeof(traces) / sizeof(traces[0]) - (all->quick ? 1 : 0); t++)
        for (unsigned p = 0; p < 2; p++) {
            struct job *j = job(all, "budget", 300, "replay");
            char name[64];

            if (!j)
                continue;
            snprintf(name, sizeof(name), "torch/%s.csv.gz", traces[t]);
            if (!data_find(name, j->path, sizeof(j->path))) {
                all->count--;
                continue;
            }
            j->policy = policies[p];
            j->trace = traces[t];
            word(j, "--config");
            word(j, policies[p]);
            word(j, "--quiet");
            word(j, j->path);
        }
}

/* Of what is no number: why a bench brought none. */
static void note_problem(struct all *all, const struct job *j, const char *why)
{
    struct figure f = figure_blank();

    f.experiment = "not run";
    f.what = j->name;
    f.how = j->trace ? j->trace : "";
    f.metric = "problem";
    f.note = why;
    f.origin = all->origin;
    figures_add(&all->set, &f);
}

static void leave_out_scale(struct all *all, const char *reason)
{
    char why[160];

    snprintf(why, sizeof(why), "not possible here: %s", reason);
    all->left_out++;
    note_problem(all, &(struct job){.name = "scale"}, why);
    fprintf(stderr, "moonbright bench all: scale: %s\n", why);
}

/* Devices are counted without opening one, so that none seems to be in use. */
static void scale_job(struct all *all)
{
    char config[64], why[160];
    int devices = 0;
    struct job *j;

    if (!wanted(all, "scale"))
        return;
    snprintf(config, sizeof(config), "backend:%.32s", all->backend);
    if (all->device) {
        leave_out_scale(all, "it takes devices from 0 on, and --device named another");
        return;
    }
    /* None at all: the bench says what is missing. */
    if (mb_device_count(config, &devices) || devices != 1) {
        j = job(all, "scale", 120, "bench");
        snprintf(all->devices_text, sizeof(all->devices_text), "%d", devices < 8 ? devices : 8);
        if (j && all->cuda && devices > 2) {
            word(j, "--devices");
            word(j, all->devices_text);
        }
    } else {
        snprintf(why, sizeof(why), "it takes 2 devices or more, and the backend %.32s has 1",
                 all->backend);
        leave_out_scale(all, why);
    }
}

static void other_jobs(struct all *all)
{
    struct job *j = job(all, "hot", 120, "bench");

    if (j && all->quick) {
        word(j, "--milliseconds");
        word(j, "20");
    }
    j = job(all, "host", 60, "bench");
    if (j && all->quick) {
        word(j, "--samples");
        word(j, "10");
    }
    if (all->cuda)
        (void)job(all, "driver", 200, "bench");
    j = job(all, "frag", 600, "bench");
    if (j && all->quick) {
        char *path = j->path;

        if (data_find("torch/gpt2.csv.gz", path, sizeof(j->path)))
            word(j, path);
    }
    (void)job(all, "probe", 60, "probe");
    (void)job(all, "litmus", 120, "litmus");
    scale_job(all);
}

/* ------------------------------------------------------------ results */

__attribute__((format(printf, 4, 5))) static void say(const struct all *all, unsigned at,
                                                      const struct job *j, const char *format, ...)
{
    va_list more;

    if (all->quiet)
        return;
    fprintf(stderr, "[%2u/%u] %s%s%s%s%s", at, all->count, j->name, j->trace ? " " : "",
            j->trace ? j->trace : "", j->policy ? ", " : "", j->policy ? j->policy : "");
    va_start(more, format);
    vfprintf(stderr, format, more);
    va_end(more);
}

/* A replay's figures, renamed: they are here for their addresses. */
static void as_budget(struct all *all, const struct job *j, unsigned from)
{
    char error[160];
    struct json_document *d = json_parse(j->result.out, j->result.size, NULL, error);
    const struct json_value *root = d ? json_root(d) : NULL;
    double peak = json_number(root, "peak_reserved_bytes", 0);

    for (unsigned i = from; i < all->set.count; i++) {
        struct figure *f = &all->set.list[i];

        if (strcmp(f->experiment, "efficiency") == 0) {
            f->experiment = figures_text(&all->set, "budget");
            f->what = figures_text(&all->set, j->trace);
            f->how = figures_text(&all->set, j->policy);
            f->kind = all->cuda ? FIGURE_MEASURED : FIGURE_MODELLED;
        } else {
            f->experiment = figures_text(&all->set, "replay calls");
            f->how = figures_text(&all->set, j->policy);
        }
    }
    if (peak > 0 && strcmp(j->policy, "policy:fresh") == 0)
        derive_bounds(&all->set, all->origin, j->trace, peak);
    json_free(d);
}

/* Not progress: told with --quiet, too. */
static void note_failure(struct all *all, const struct job *j, const char *why)
{
    all->failed++;
    note_problem(all, j, why);
    fprintf(stderr, "%smoonbright bench all: %s%s%s%s%s FAILED after %.1f s: %s\n",
            all->quiet ? "" : "\r", j->name, j->trace ? " " : "", j->trace ? j->trace : "",
            j->policy ? ", " : "", j->policy ? j->policy : "", j->seconds, why);
}

/* What a child that brought no result said; never nothing. */
static const char *reason_of(const struct job *j, const char *error, char buffer[64])
{
    if (*error)
        return error;
    if (*j->result.problem)
        return j->result.problem;
    snprintf(buffer, 64, "it ended with status %d and said nothing", j->result.status);
    return buffer;
}

static void run_job(struct all *all, unsigned at)
{
    struct job *j = &all->jobs[at];
    unsigned before = all->set.count;
    uint64_t start = cli_now_ns();
    char error[256] = "", silent[64];
    int code = CLI_FAILED;

    say(all, at + 1, j, " ...\r");
    child_run(j->words, j->limit_s, &j->result);
    j->seconds = (double)(cli_now_ns() - start) / 1e9;
    /* litmus and probe tell differences by their status: what they wrote counts. */
    if (j->result.size && (j->result.status == CLI_OK || strcmp(j->words[0], "litmus") == 0))
        code = figures_load_text(&all->set, j->result.out, j->result.size, "", error);
    if (code) {
        note_failure(all, j, reason_of(j, error, silent));
    } else {
        if (j->policy)
            as_budget(all, j, before);
        /* The probe's and the litmus programs' JSON does not say what they asked. */
        for (unsigned i = before; all->cuda && !j->policy && i < all->set.count; i++)
            if (strcmp(j->words[0], "bench") != 0)
                all->set.list[i].kind = FIGURE_MEASURED;
        say(all, at + 1, j, ": %.1f s\n", j->seconds);
    }
    free(j->result.out);
    j->result.out = NULL;
}

/* ------------------------------------------------------------ output */

static int write_json(struct all *all, const char *when)
{
    struct output_file file;
    struct json_writer w = {.out = NULL};

    if (output_open(&file, "bench all", all->json_path))
        return CLI_FAILED;
    w.out = file.out;
    json_object(&w, NULL);
    json_text(&w, "bench", "all");
    json_text(&w, "version", mb_version());
    json_text(&w, "commit", all->commit);
    json_text(&w, "command", all->line);
    json_text(&w, "time", when);
    json_text(&w, "backend", all->backend);
    json_u64(&w, "not_run", all->failed);
    sides_json(&all->set, &w);
    figures_json(&all->set, &w);
    json_end_object(&w);
    json_finish(&w);
    return output_close(&file);
}

static int write_html(struct all *all, const char *when)
{
    const struct report_head head = {.command = all->line,
                                     .commit = all->commit ? all->commit : "",
                                     .version = mb_version(),
                                     .time = when,
                                     .failed = all->failed};
    struct output_file file;

    if (output_open(&file, "bench all", all->html))
        return CLI_FAILED;
    report_write(file.out, &all->set, &head);
    return output_close(&file);
}

static int finish(struct all *all)
{
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    int code = CLI_OK;

    if (gmtime_r(&now, &utc))
        strftime(when, sizeof(when), "%Y-%m-%d", &utc);
    derive_steps(&all->set);
    derive_facts(&all->set);
    derive_serving(&all->set);
    derive_bound_of_80gb(&all->set, all->origin);
    if (all->set.failed)
        return cli_fail(CLI_FAILED, "bench all", "the host is out of memory");
    if (all->json_path)
        code = write_json(all, when);
    if (!code && all->html)
        code = write_html(all, when);
    if (!all->quiet && !code)
        fprintf(stderr, "%u figures%s%s%s%s\n", all->set.count, all->html ? "; page: " : "",
                all->html ? all->html : "", all->json_path ? "; JSON: " : "",
                all->json_path ? all->json_path : "");
    return code ? code : all->failed ? CLI_FAILED : CLI_OK;
}

/* ------------------------------------------------------------ the command */

/* The one that mb_open() would choose. */
static const char *chosen_backend(void)
{
    struct mb_backend_info list[BACKENDS_MAX];
    unsigned count = 0;

    if (!mb_backends(list, BACKENDS_MAX, &count))
        for (unsigned i = 0; i < count && i < BACKENDS_MAX; i++)
            if (list[i].chosen)
                return list[i].name;
    return "sim";
}

/* "path" or "label=path": the label is shown. */
static int include(struct all *all, const char *argument)
{
    char error[256];

    if (figures_load(&all->set, argument, argument, error))
        return cli_fail(CLI_BAD_INPUT, "bench all", "%s", error);
    return CLI_OK;
}

static int run_everything(struct all *all)
{
    const struct figure_origin self = {
        .machine = "calculated", .commit = all->commit, .command = all->line};
    int code = CLI_OK;

    all->origin = figures_origin(&all->set, &self);
    figures_add_published(&all->set);
    for (unsigned i = 0; i < all->include_count && !code; i++)
        code = include(all, all->include[i]);
    if (code)
        return code;
    if (!all->no_run) {
        mapping_jobs(all);
        own_jobs(all);
        other_jobs(all);
        budget_jobs(all);
    }
    if (all->only && !all->no_run && !all->count && !all->left_out)
        return cli_fail(CLI_BAD_INPUT, "bench all",
                        "--only is \"%.64s\"; none of these is an experiment here", all->only);
    for (unsigned i = 0; i < all->count; i++)
        run_job(all, i);
    return finish(all);
}

/* --include may be given several times, which the common parser does not know: taken out here. */
static int take_includes(struct all *all, int *argc, char **argv)
{
    int kept = 1;

    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--include") != 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (i + 1 == *argc)
            return cli_fail(CLI_BAD_INPUT, "bench all", "--include needs a file");
        /* As a shell spreads a pattern: all words up to the next option. */
        for (i++; i < *argc && strncmp(argv[i], "--", 2) != 0; i++) {
            if (all->include_count == INCLUDES_MAX)
                return cli_fail(CLI_BAD_INPUT, "bench all", "more than %d files to include",
                                INCLUDES_MAX);
            all->include[all->include_count++] = argv[i];
        }
        i--;
    }
    *argc = kept;
    argv[kept] = NULL;
    return CLI_OK;
}

static int unknown_experiment(const char *name, size_t length)
{
    char list[512];
    size_t used = 0;

    for (size_t i = 0; experiments[i] && used < sizeof(list); i++)
        used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", i ? ", " : "",
                                 experiments[i]);
    return cli_fail(CLI_BAD_INPUT, "bench all",
                    "--only names \"%.*s\", which is no experiment; there are: %s",
                    (int)(length < 64 ? length : 64), name, list);
}

/* A name with a typing error would be left out of an hour's work. */
static int check_only(const char *only)
{
    for (const char *at = only; at; at = strchr(at, ','), at = at ? at + 1 : NULL) {
        size_t length = strcspn(at, ","), i = 0;

        while (experiments[i] &&
               (strlen(experiments[i]) != length || strncmp(at, experiments[i], length) != 0))
            i++;
        if (!experiments[i])
            return unknown_experiment(at, length);
    }
    return CLI_OK;
}

static int check_backend(const char *backend)
{
    if (!backend || strcmp(backend, "sim") == 0 || strcmp(backend, "cuda") == 0)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "bench all",
                    "--backend is \"%.32s\"; measuring is possible on sim and cuda", backend);
}

/* As every bench would say, one after the other. */
static int check_device(const struct all *all)
{
    char config[64];
    int devices = 0;

    if (!all->device)
        return CLI_OK;
    snprintf(config, sizeof(config), "backend:%.32s", all->backend);
    if (mb_device_count(config, &devices))
        return cli_fail(CLI_BAD_INPUT, "bench all", "%s", mb_error_detail());
    if (all->device < (unsigned)devices)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "bench all",
                    "--device is %u; the backend %.32s has %d devices here, numbered from 0",
                    all->device, all->backend, devices);
}

/* Options that say how to run, where nothing is run. */
static int check_no_run(const struct all *all)
{
    const char *option = all->only     ? "--only"
                         : all->quick  ? "--quick"
                         : all->device ? "--device"
                                       : NULL;

    if (!all->no_run || !option)
        return CLI_OK;
    return cli_fail(CLI_BAD_INPUT, "bench all",
                    "%s has no meaning with --no-run, which shows all that --include brings",
                    option);
}

/* Before minutes of work, not after them. */
static int check_outputs(const struct all *all)
{
    int code = CLI_OK;

    if (all->html && all->json_path && output_same(all->html, all->json_path))
        return cli_fail(CLI_BAD_INPUT, "bench all",
                        "--html and --json both name %.200s; one would write over the other",
                        all->html);
    if (all->html)
        code = output_check("bench all", all->html);
    if (!code && all->json_path)
        code = output_check("bench all", all->json_path);
    return code;
}

static int run(int argc, char **argv)
{
    static struct all all; /* large, and a process runs one */
    const struct cli_option table[] = {
        {"--backend", CLI_TEXT, &all.backend}, {"--device", CLI_UNSIGNED, &all.device},
        {"--html", CLI_TEXT, &all.html},       {"--json", CLI_TEXT, &all.json_path},
        {"--commit", CLI_TEXT, &all.commit},   {"--only", CLI_TEXT, &all.only},
        {"--quick", CLI_FLAG, &all.quick},     {"--no-run", CLI_FLAG, &all.no_run},
        {"--quiet", CLI_FLAG, &all.quiet},     {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int count = 0, code;

    all = (struct all){.backend = NULL};
    rows_command_line(argc, argv, all.line, sizeof(all.line));
    code = take_includes(&all, &argc, argv);
    if (!code)
        code = cli_parse(&cli_bench_all, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (count)
        return cli_fail(CLI_BAD_INPUT, "bench all", "\"%.64s\" was given; expected options only",
                        argv[1]);
    if (!all.html && !all.json_path)
        return cli_fail(CLI_BAD_INPUT, "bench all", "say where to: --html FILE, --json FILE");
    code = check_only(all.only);
    if (!code)
        code = check_backend(all.backend);
    if (!code)
        code = check_no_run(&all);
    all.backend = all.backend ? all.backend : chosen_backend();
    if (!code)
        code = check_device(&all);
    if (!code)
        code = check_outputs(&all);
    if (code)
        return code;
    all.cuda = strcmp(all.backend, "cuda") == 0;
    snprintf(all.device_text, sizeof(all.device_text), "%u", all.device);
    all.jobs = calloc(JOBS_MAX, sizeof(*all.jobs));
    if (!all.jobs)
        return cli_fail(CLI_FAILED, "bench all", "the host is out of memory");
    code = run_everything(&all);
    free(all.jobs);
    figures_free(&all.set);
    return code;
}

const struct cli_command cli_bench_all = {
    .name = "bench all",
    .summary = "every experiment: one page, one JSON",
    .help = "usage: moonbright bench all --html FILE --json FILE [OPTION...]\n\n"
            "  --html FILE         a page that needs no network and no script; - is standard "
            "output\n"
            "  --json FILE         the same as numbers, for `bench compare`\n"
            "  --include FILE...   results of earlier runs or other machines, shown beside\n"
            "  --backend NAME      sim or cuda (default: as mb_open chooses)\n"
            "  --device N          which GPU, from 0; the software GPU is there 8 times\n"
            "  --only A,B,...      these experiments: map, unmap, remap, alias, protect, alloc, "
            "beside,\n"
            "                      hot, host, calls, degrade, wrap, full, churn, safety, latency, "
            "driver, frag,\n"
            "                      budget, probe, litmus, scale\n"
            "  --no-run            only what --include brings\n"
            "  --quick             fewer samples, sizes and traces\n"
            "  --commit TEXT       of the tree that was built, for page and JSON\n"
            "  --quiet             no progress; what fails or is not possible is told\n\n"
            "Each bench runs in a process of its own. Exit status 1: a bench failed; the page says "
            "which.\n",
    .run = run,
};
