/* SPDX-License-Identifier: MIT */
/* load_traces.c - what was held to serve a trace or a program: replays, `bench frag`, the vendor's
 * own pool, the training study. */
#include "load_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trace/trace.h"

/* ------------------------------------------------------------ traces */

/* Traces spread over streams, and runs under a limit, are experiments of their own. */
static const char *experiment_of_run(const struct json_value *run)
{
    return json_number(run, "limit_bytes", 0) > 0         ? "efficiency, limited"
           : json_number(run, "generated_streams", 0) > 0 ? "efficiency, streams"
                                                          : "efficiency";
}

/* "derived/gpt2-xl.csv.gz" is "gpt2-xl, derived", by the row, by the command or by what the file
 * says of all: recorded traces have the same names. */
static void name_of_trace(const struct loader *l, const struct json_value *row, char name[80])
{
    const char *trace = json_string(row, "trace", "");
    char path[80];

    trace_short_name(trace, name, 61);
    snprintf(path, sizeof(path), "derived/%.60s.", name);
    if (*name && (l->derived || json_truth(row, "derived", false) || strstr(trace, path) ||
                  strstr(l->command, path)))
        snprintf(name + strlen(name), 80 - strlen(name), ", derived");
}

/* One more figure of what `like` is of, if the row tells it. */
static void add_told(struct loader *l, const struct figure *like, const struct json_value *row,
                     const char *key, const char *metric, const char *unit)
{
    struct figure f = *like;

    f.metric = metric;
    f.unit = unit;
    f.value = json_number(row, key, NAN);
    if (!isnan(f.value))
        figures_add(l->set, &f);
}

static void efficiency(struct loader *l, const struct json_value *row, const char *experiment,
                       enum figure_kind kind, const char *how)
{
    struct figure f = figure_blank();
    char what[80];

    name_of_trace(l, row, what);
    f.experiment = experiment;
    f.what = what;
    f.how = how;
    f.metric = "peak allocated / peak reserved";
    f.unit = "efficiency";
    f.value = json_number(row, "efficiency", json_number(row, "efficiency_granted", NAN));
    f.kind = kind;
    f.origin = l->origin_index;
    figures_add(l->set, &f);
    add_told(l, &f, row, "failed_requests", "failed requests", "failures");
    add_told(l, &f, row, "va_handed_out_bytes", "addresses handed out", "bytes");
    add_told(l, &f, row, "epochs", "epochs", "");
}

static void calls_of_replay(struct loader *l, const struct json_value *row, const char *call)
{
    const struct json_value *times = json_get(row, call);
    struct figure f = figure_blank();
    char how[80];

    if (!times)
        return;
    name_of_trace(l, row, how);
    f.experiment = "replay calls";
    f.what = call;
    f.how = how;
    f.metric = "host";
    f.unit = "us";
    f.value = json_number(times, "p50_ns", NAN) / 1e3;
    f.p99 = json_number(times, "p99_ns", NAN) / 1e3;
    f.p999 = json_number(times, "p999_ns", NAN) / 1e3;
    f.samples = load_count(times, "count");
    f.kind = FIGURE_MEASURED;
    f.origin = l->origin_index;
    figures_add(l->set, &f);
}

/* The rules of another allocator, or MoonBright on the software GPU. */
static bool is_model(const struct json_value *row)
{
    return json_truth(row, "model", false) || json_truth(row, "simulated", false) ||
           strcmp(json_string(row, "backend", ""), "sim") == 0;
}

void load_replay(struct loader *l, const struct json_value *row)
{
    const char *what = json_string(row, "what", "");
    char how[160];

    if (l->pool) { /* the file's head has said who it was, and where */
        efficiency(l, row, experiment_of_run(row), FIGURE_MEASURED, "CUDA's pool");
        return;
    }
    load_machine(l, json_string(row, "device", "software GPU"), json_string(row, "tables", ""));
    load_origin(l, row);
    /* The plug-in's replays have no policy: they are MoonBright's by another door. */
    snprintf(how, sizeof(how), "%.40s, %s%s%.60s",
             json_string(row, "policy", *what ? "MoonBright" : "?"), *what ? what : "",
             *what ? ", " : "", l->machine);
    efficiency(l, row, experiment_of_run(row), is_model(row) ? FIGURE_MODELLED : FIGURE_MEASURED,
               how);
    calls_of_replay(l, row, "malloc");
    calls_of_replay(l, row, "free");
}

/* Allocator and tables, as the other files name them. */
static void name_of_allocator(const struct json_value *row, char how[96])
{
    const char *name = json_string(row, "allocator", ""),
               *tables = json_string(row, "configured_tables", "");
    bool ours = strcmp(name, "moonbright") == 0;

    snprintf(how, 96, "%s%.30s%s%s", ours ? "MoonBright, " : "PyTorch, ",
             ours ? (*tables ? tables : "default") : name, ours ? " tables" : "",
             json_number(row, "again", 0) > 0 ? ", again" : "");
}

void load_study(struct loader *l, const struct json_value *row)
{
    const struct json_value *times = json_get(row, "step_ms");
    struct figure f = figure_blank();
    char how[96];

    name_of_allocator(row, how);
    f.experiment = "train";
    f.what = json_string(row, "workload", "");
    f.how = how;
    f.kind = FIGURE_MEASURED;
    f.origin = l->origin_index;
    add_told(l, &f, row, "efficiency", "peak allocated / peak reserved", "efficiency");
    add_told(l, &f, row, "reserved_peak_bytes", "peak reserved", "bytes");
    add_told(l, &f, row, "driver_calls", "driver calls", "");
    if (!times)
        return;
    f.samples = load_count(row, "steps") / 2;
    add_told(l, &f, times, "median", "step, median", "ms");
    add_told(l, &f, times, "p99", "step, 99th percentile", "ms");
}

void load_frag(struct loader *l, const struct json_value *root)
{
    load_machine(l, "software GPU and models", "");
    load_origin(l, root);
    for (const struct json_value *r = json_get(root, "rows")->first; r; r = r->next)
        efficiency(l, r, experiment_of_run(root), is_model(r) ? FIGURE_MODELLED : FIGURE_MEASURED,
                   json_string(r, "policy", "?"));
}
