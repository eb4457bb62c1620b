/* SPDX-License-Identifier: MIT */
/*
 * load.c - results of earlier runs as figures.
 *
 * FORMS  one object, or one a line:
 *        rows      {"bench": ..., "rows": [{"what", "how", "bytes", "host_us": {..}, ..}]}
 *        frag      the same with rows of {"trace", "policy", "efficiency", ..}
 *        tests     {"what": "run", "gpu": ..}, then lines {"what", "how", "entries", "host_us", ..}
 *        replay    {"trace", "policy", "efficiency", "malloc": {..}, ..}
 *        probe     {"facts": [..]}, or a profile: text that begins with moonbright-profile
 *        samples   {"what": "sample", "name", "vendor_us", ..}, then {"what": "samples", ..}
 *        litmus    {"programs": [..]}
 *        figures   what `bench all` and the benches of evidence/ write
 *        other     any object that tells its bench or command: its numbers by their own names
 */
#include "load_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "input_file.h"

#define PAGE_BYTES ((double)(2u << 20))
#define FILE_BYTES_MAX ((size_t)64 << 20)

/* ------------------------------------------------------------ heads */

/* File names have "nvidia-h200" for what the driver calls "NVIDIA H200": one machine, one name. */
static void spell_device(char *device)
{
    if (strncmp(device, "nvidia-", 7) != 0)
        return;
    for (; *device; device++)
        *device = (char)(*device == '-' ? ' ' : toupper((unsigned char)*device));
}

void load_machine(struct loader *l, const char *device, const char *tables)
{
    char name[sizeof(l->device)]; /* `device` may be l->device */

    snprintf(name, sizeof(name), "%s", device && *device ? device : "unknown");
    spell_device(name);
    memcpy(l->device, name, sizeof(name));
    snprintf(l->machine, sizeof(l->machine), "%s%s%s", name, tables && *tables ? ", " : "",
             tables ? tables : "");
    l->origin.machine = l->machine;
}

/* A command is a text, or a list of words. */
static void set_command(struct loader *l, const struct json_value *command)
{
    size_t used = 0;

    l->command[0] = '\0';
    if (command && command->kind == JSON_TEXT)
        snprintf(l->command, sizeof(l->command), "%s", command->text);
    for (const struct json_value *w = command && command->kind == JSON_ARRAY ? command->first
                                                                             : NULL;
         w && used < sizeof(l->command); w = w->next)
        used += (size_t)snprintf(l->command + used, sizeof(l->command) - used, "%s%s",
                                 used ? " " : "", w->kind == JSON_TEXT ? w->text : "?");
    l->origin.command = l->command;
}

/* Which tables, where only the command tells. */
static void tables_of_command(struct loader *l)
{
    const char *at = strstr(l->command, "tables:");
    char tables[24];

    if (at && sscanf(at, "tables:%16[a-z]", tables) == 1 && !strstr(l->machine, "device-") &&
        !strstr(l->machine, tables)) {
        size_t used = strlen(l->machine);

        snprintf(l->machine + used, sizeof(l->machine) - used, ", %s", tables);
    }
}

static void register_origin(struct loader *l, const struct json_value *head)
{
    l->origin.file = l->name;
    l->origin.driver = l->driver;
    l->origin.commit = json_string(head, "commit", "");
    l->origin.time = json_string(head, "time", "");
    set_command(l, json_get(head, "command"));
    l->derived = strstr(json_string(head, "note", ""), "Traces DERIVED") != NULL;
    tables_of_command(l);
    l->origin_index = figures_origin(l->set, &l->origin);
    l->has_origin = true;
}

void load_origin(struct loader *l, const struct json_value *head)
{
    snprintf(l->driver, sizeof(l->driver), "%s", json_string(head, "driver", ""));
    register_origin(l, head);
}

/* Who ran the lines that follow; what a head does not say is as in the one before. */
static void add_head(struct loader *l, const struct json_value *root)
{
    const char *device =
        json_string(root, "gpu", json_string(root, "machine", json_string(root, "device", "")));
    char before[sizeof(l->device)];

    memcpy(before, l->device, sizeof(before));
    load_machine(l, *device ? device : l->device, json_string(root, "tables", ""));
    if (json_get(root, "driver") || strcmp(before, l->device) != 0)
        snprintf(l->driver, sizeof(l->driver), "%s", json_string(root, "driver", ""));
    register_origin(l, root);
    l->suite_us[0] = l->suite_us[1] = 0; /* of a run that was cut off */
    l->pool = strcmp(json_string(root, "bench", ""), "cuda-async") == 0;
}

/* ------------------------------------------------------------ rows of times */

/* A count that a file tells; what is none is 0. */
unsigned load_count(const struct json_value *row, const char *key)
{
    double value = json_number(row, key, 0);

    return value >= 0 && value <= 4294967295.0 ? (unsigned)value : 0;
}

static void spread(struct loader *l, struct figure f, const char *metric,
                   const struct json_value *times)
{
    if (!times)
        return;
    f.metric = metric;
    f.unit = "us";
    f.value = json_number(times, "median", NAN);
    f.p99 = json_number(times, "p99", NAN);
    f.p999 = json_number(times, "p999", NAN);
    f.min = json_number(times, "min", NAN);
    figures_add(l->set, &f);
}

static const char *unit_of_note(const char *note)
{
    static const struct {
        const char *begin, *unit;
    } known[] = {{"million pairs a second", "M/s"},
                 {"million operations a second", "M/s"},
                 {"mappings a second", "/s"},
                 {"time over time alone", "x the normal"},
                 {"rate over rate alone", "of the rate alone"},
                 {"1: ", "1: yes"},
                 {"as above", "1: yes"},
                 {"GB/s", "GB/s"}};

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strncmp(note, known[i].begin, strlen(known[i].begin)) == 0)
            return known[i].unit;
    return "";
}

/* What a row's note says and its name does not: the number of threads. */
static const char *full_how(const char *how, const char *note, char buffer[128])
{
    const char *at = strstr(note, " on ");
    unsigned threads;

    if (!at || sscanf(at, " on %u thread", &threads) != 1)
        return how;
    snprintf(buffer, 128, "%.90s, %u thread%s", how, threads, threads == 1 ? "" : "s");
    return buffer;
}

/* The lines of scripts/gpu-test call the vendor's ways by other names than the benches. */
static void rename_vendor(struct figure *f)
{
    static const struct {
        const char *what, *how, *new_what, *new_how;
    } names[] = {
        {"cuMemMap+cuMemSetAccess", "2 MB handles", "map", "CUDA VMM, 2 MB handles"},
        {"cuMemMap+cuMemSetAccess", "one handle", "map", "CUDA VMM, one handle"},
        {"cuMemUnmap", "2 MB handles", "unmap", "CUDA VMM, 2 MB handles"},
        {"cuMemUnmap", "one handle", "unmap", "CUDA VMM, one handle"},
        {"cuMemAlloc", "driver", "alloc", "cuMemAlloc"},
        {"cuMemFree", "driver", "free", "cuMemAlloc"},
        {"cuMemAllocAsync+cuMemFreeAsync", "pool of the driver", "alloc + free",
         "cuMemAllocAsync, warm"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(f->what, names[i].what) == 0 && strcmp(f->how, names[i].how) == 0) {
            f->what = names[i].new_what;
            f->how = names[i].new_how;
            return;
        }
}

/* `bench scale` writes "map x4" for four devices at once: their number is what it is about. */
static void devices_of(struct figure *f, double bytes, char what[64])
{
    char name[24], size[CLI_NUMBER_MAX];
    unsigned devices;

    if (sscanf(f->what, "%23[a-z] x%u", name, &devices) != 2 || !(bytes >= 0 && bytes < 1.8e19))
        return;
    /* As the published figures are called. */
    snprintf(what, 64, "%s %s", name,
             bytes == 2147483648.0 ? "2 GB" : cli_format_bytes((uint64_t)bytes, size));
    f->what = what;
    f->x = devices;
    f->x_unit = "devices";
}

static const char *experiment_of(const char *what)
{
    static const char *const names[] = {"map", "unmap", "remap", "alias", "protect", "alloc"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strncmp(what, names[i], strlen(names[i])) == 0)
            return names[i];
    return strcmp(what, "free") == 0 ? "alloc" : "floor";
}

static void add_row(struct loader *l, const struct json_value *row, const char *experiment)
{
    struct figure f = figure_blank();
    char how[128], what[64];
    double bytes = json_number(row, "bytes", json_number(row, "entries", NAN) * PAGE_BYTES);
    double value = json_number(row, "value", NAN);

    if (!json_get(row, "how"))
        return; /* a remark, not a result */
    f.what = json_string(row, "what", "");
    f.how = json_string(row, "how", "");
    f.note = json_string(row, "note", "");
    rename_vendor(&f);
    f.how = full_how(f.how, f.note, how);
    f.experiment = experiment ? experiment : experiment_of(f.what);
    f.x = bytes > 0 ? bytes : NAN;
    f.x_unit = bytes > 0 ? "bytes" : "";
    if (strcmp(f.experiment, "scale") == 0)
        devices_of(&f, bytes, what);
    f.samples = load_count(row, "samples");
    f.kind = json_truth(row, "modelled", false) ? FIGURE_MODELLED : FIGURE_MEASURED;
    f.origin = l->origin_index;
    spread(l, f, "host", json_get(row, "host_us"));
    spread(l, f, "complete", json_get(row, "complete_us"));
    spread(l, f, "used", json_get(row, "used_us"));
    if (isnan(value) && json_get(row, "host_us"))
        return;
    f.metric = "value";
    f.unit = unit_of_note(f.note);
    f.value = value;
    figures_add(l->set, &f);
}

/* ------------------------------------------------------------ facts */

static void add_fact(struct loader *l, const char *name, const char *unit, double value,
                     enum figure_kind kind, const char *note)
{
    struct figure f = figure_blank();

    f.experiment = "facts";
    f.what = name;
    f.how = l->machine;
    f.metric = "value";
    f.unit = unit;
    f.value = value;
    f.kind = kind;
    f.note = note;
    f.origin = l->origin_index;
    figures_add(l->set, &f);
}

static void add_facts(struct loader *l, const struct json_value *root)
{
    const char *device = json_string(root, "device", json_string(root, "gpu", "sim"));
    bool model = strcmp(device, "sim") == 0;

    load_machine(l, model ? "software GPU" : device, json_string(root, "tables", ""));
    load_origin(l, root);
    for (const struct json_value *f = json_get(root, "facts")->first; f; f = f->next)
        add_fact(l, json_string(f, "name", ""), json_string(f, "unit", ""),
                 json_number(f, "value", NAN), model ? FIGURE_MODELLED : FIGURE_MEASURED,
                 json_string(f, "note", ""));
}

/* As the library asks of a profile: whole lines, and `end` in the last one from version 2 on. */
static bool profile_is_whole(const char *text, size_t size)
{
    bool old = strncmp(text, "moonbright-profile 1\n", 21) == 0;

    return text[size - 1] == '\n' && (old || (size > 5 && strcmp(text + size - 5, "\nend\n") == 0));
}

/* Lines «name value # unit»; «# name was not measured» and texts are passed over. */
static void add_profile(struct loader *l, char *text)
{
    char device[96] = "", driver[64] = "", tables[32] = "";
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[48], unit[16] = "";
        double value;

        if (sscanf(line, "device %95[^\n]", device) == 1 ||
            sscanf(line, "driver %63s", driver) == 1)
            continue;
        if (sscanf(line, "tables %31s", tables) == 1) {
            load_machine(l, device, tables);
            l->origin = (struct figure_origin){.file = l->name,
                                               .machine = l->machine,
                                               .driver = driver,
                                               .command = "moonbright probe -o FILE"};
            l->origin_index = figures_origin(l->set, &l->origin);
        } else if (sscanf(line, "%47[a-z0-9_] %lf # %15s", name, &value, unit) >= 2 && *device) {
            add_fact(l, name, unit, value, FIGURE_MEASURED, "");
            l->known++;
        }
    }
}

static void add_litmus(struct loader *l, const struct json_value *root)
{
    const char *device = json_string(root, "device", json_string(root, "gpu", "sim"));
    bool model = strcmp(device, "sim") == 0;

    load_machine(l, model ? "software GPU" : device, json_string(root, "tables", ""));
    load_origin(l, root);
    for (const struct json_value *p = json_get(root, "programs")->first; p; p = p->next) {
        struct figure f = figure_blank();

        f.experiment = "litmus";
        f.what = json_string(p, "name", "");
        f.how = json_string(p, "verdict", "");
        f.metric = "answer";
        f.note = json_string(p, "answer", "");
        f.kind = model ? FIGURE_MODELLED : FIGURE_MEASURED;
        f.origin = l->origin_index;
        figures_add(l->set, &f);
    }
}

/* ------------------------------------------------------------ figures */

static enum figure_kind kind_of(const char *name)
{
    for (unsigned k = 0; k < FIGURE_KINDS; k++)
        if (strcmp(name, figure_kind_name((enum figure_kind)k)) == 0)
            return (enum figure_kind)k;
    return FIGURE_CALCULATED;
}

static unsigned origin_of(struct loader *l, const struct json_value *root, double index)
{
    const struct json_value *origins = json_get(root, "origins");
    const struct json_value *o = origins ? origins->first : NULL;
    struct figure_origin origin = {.file = l->name};

    while (o && index-- >= 1)
        o = o->next;
    if (*json_string(o, "file", ""))
        origin.file = json_string(o, "file", "");
    origin.machine = json_string(o, "machine", "unknown");
    origin.driver = json_string(o, "driver", "");
    origin.commit = json_string(o, "commit", "");
    origin.command = json_string(o, "command", "");
    origin.time = json_string(o, "time", "");
    return figures_origin(l->set, &origin);
}

/* Every result of `bench all` brings the published figures: one of each is enough. */
static bool has_published(const struct figures *set, const struct figure *f)
{
    const struct figure *other;
    unsigned from = 0;

    while ((other = figures_next(set, &from, f->experiment, f->what, f->how, f->metric, f->x)))
        if (other->kind == FIGURE_PUBLISHED && other->value == f->value)
            return true;
    return false;
}

/* Results of benches that did not know it yet have 0 for page tables that nobody sees. */
static void forget_unseen_tables(struct figure *f)
{
    static const char name[] = "page-table memory";

    if (f->kind != FIGURE_MEASURED || f->value != 0 ||
        strncmp(f->what, name, sizeof(name) - 1) != 0)
        return;
    f->value = NAN;
    f->note = FIGURE_TABLES_UNSEEN;
}

static void add_figures(struct loader *l, const struct json_value *root)
{
    for (const struct json_value *v = json_get(root, "figures")->first; v; v = v->next) {
        struct figure f = {
            .experiment = json_string(v, "experiment", ""),
            .what = json_string(v, "what", ""),
            .how = json_string(v, "how", ""),
            .metric = json_string(v, "metric", ""),
            .unit = json_string(v, "unit", ""),
            .x_unit = json_string(v, "x_unit", ""),
            .note = json_string(v, "note", ""),
            .x = json_number(v, "x", NAN),
            .value = json_number(v, "value", NAN),
            .p99 = json_number(v, "p99", NAN),
            .p999 = json_number(v, "p999", NAN),
            .min = json_number(v, "min", NAN),
            .samples = load_count(v, "samples"),
            .kind = kind_of(json_string(v, "kind", "")),
            .origin = origin_of(l, root, json_number(v, "origin", 0)),
        };

        forget_unseen_tables(&f);
        if (f.kind != FIGURE_PUBLISHED || !has_published(l->set, &f))
            figures_add(l->set, &f);
    }
}

/* ------------------------------------------------------------ objects, files */

static bool is_list(const struct json_value *root, const char *key)
{
    const struct json_value *v = json_get(root, key);

    return v && v->kind == JSON_ARRAY;
}

static void add_rows(struct loader *l, const struct json_value *root)
{
    const char *bench = json_string(root, "bench", "");

    if (strncmp(bench, "bench ", 6) == 0)
        bench += 6;
    load_machine(l, json_string(root, "device", "unknown"), json_string(root, "tables", ""));
    load_origin(l, root);
    for (const struct json_value *r = json_get(root, "rows")->first; r; r = r->next)
        add_row(l, r, bench);
}

/* A line of scripts/gpu-test: its operations are those of `bench map` and so on. */
static void add_test_line(struct loader *l, const struct json_value *root)
{
    const char *what = json_string(root, "what", "");

    if (strcmp(what, "step") == 0 || strcmp(what, "run") == 0)
        return; /* what was run, not what came out */
    if (strcmp(what, "note") == 0)
        snprintf(l->label, sizeof(l->label), "%.40s", json_string(root, "label", ""));
    else
        add_row(l, root, NULL);
}

/* ------------------------------------------------------------ any other form */

static const char *unit_of_name(const char *name)
{
    static const char *const units[][2] = {{"_ns", "ns"},       {"_us", "us"},    {"_ms", "ms"},
                                           {"_bytes", "bytes"}, {"seconds", "s"}, {"percent", "%"}};
    size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        size_t suffix = strlen(units[i][0]);

        if (length >= suffix && strcmp(name + length - suffix, units[i][0]) == 0)
            return units[i][1];
    }
    return "";
}

/* The texts of an object name its numbers; what is above it gives `path`. */
static void add_any(struct loader *l, const struct json_value *value, const char *experiment,
                    const char *path, unsigned depth)
{
    char what[160], below[160];
    struct figure f = figure_blank();
    size_t used = (size_t)snprintf(what, sizeof(what), "%s", path);

    experiment = json_string(value, "bench", experiment);
    for (const struct json_value *m = value->first; m && value->kind == JSON_OBJECT; m = m->next)
        if (m->kind == JSON_TEXT && depth && used < sizeof(what) - 1 &&
            strcmp(m->key, "bench") != 0 && strcmp(m->key, "version") != 0)
            used += (size_t)snprintf(what + used, sizeof(what) - used, "%s%s", used ? ", " : "",
                                     m->text);
    f.experiment = experiment;
    f.what = what;
    f.origin = l->origin_index;
    f.kind = json_truth(value, "modelled", json_truth(value, "simulated", false)) ? FIGURE_MODELLED
                                                                                  : FIGURE_MEASURED;
    for (const struct json_value *m = value->first; m && depth < 16; m = m->next) {
        if (m->kind == JSON_NUMBER && m->key) {
            f.metric = m->key;
            f.unit = unit_of_name(m->key);
            f.value = m->number;
            figures_add(l->set, &f);
        } else if (m->kind == JSON_OBJECT || m->kind == JSON_ARRAY) {
            snprintf(below, sizeof(below), "%.100s%s%.50s", what,
                     m->key && m->kind == JSON_OBJECT && *what ? ", " : "",
                     m->key && m->kind == JSON_OBJECT ? m->key : "");
            add_any(l, m, experiment, below, depth + 1);
        }
    }
}

/* false: there is no number in it */
static bool add_other(struct loader *l, const struct json_value *root)
{
    bool calculated = json_truth(root, "calculated", false);
    unsigned before = l->set->count;

    if (!json_get(root, "bench") && !json_get(root, "command"))
        return false;
    load_machine(l,
                 json_string(root, "device",
                             json_string(root, "machine", calculated ? "calculated" : "unknown")),
                 json_string(root, "tables", ""));
    load_origin(l, root);
    add_any(l, root, l->name, "", 0);
    for (unsigned i = before; calculated && i < l->set->count; i++)
        l->set->list[i].kind = FIGURE_CALCULATED;
    return l->set->count > before;
}

/* ------------------------------------------------------------ the cache of language models */

/* Time to the first token by length, tokens a second by batch; everything else by its own name. */
static void add_kv(struct loader *l, const struct json_value *root)
{
    const char *what = json_string(root, "what", ""), *model = json_string(root, "model", "");
    bool modelled = strncmp(json_string(root, "figures", ""), "model", 5) == 0;
    struct figure f = figure_blank();
    unsigned before = l->set->count;
    char name[96], how[144], layout[40] = "";

    /* Layouts that the library did not choose are not compared. */
    if (json_get(root, "group_layers"))
        snprintf(layout, sizeof(layout), ", groups of %.0f", json_number(root, "group_layers", 0));
    snprintf(how, sizeof(how), "%.30s%s%s%s", json_string(root, "cache", ""), layout,
             *l->label ? ", " : "", l->label);
    f.experiment = "kv";
    f.what = name;
    f.how = how;
    f.origin = l->origin_index;
    f.kind = modelled ? FIGURE_MODELLED : FIGURE_MEASURED;
    if (json_get(root, "ttft_ms") && json_get(root, "tokens")) {
        snprintf(name, sizeof(name), "TTFT, %.40s, %.0f%% shared", model,
                 100 * json_number(root, "share", 0));
        f.metric = strcmp(what, "long") ? "prefix" : "long";
        f.unit = "ms";
        f.x = json_number(root, "tokens", NAN);
        f.x_unit = "tokens";
        f.value = json_number(root, "ttft_ms", NAN);
        figures_add(l->set, &f);
    } else if (json_get(root, "tokens_per_s") && json_get(root, "batch")) {
        snprintf(name, sizeof(name), "beam search, %.40s, width %.0f", model,
                 json_number(root, "width", 0));
        f.metric = "tokens a second";
        f.unit = "/s";
        f.x = json_number(root, "batch", NAN);
        f.x_unit = "batch";
        f.value = json_number(root, "tokens_per_s", NAN);
        figures_add(l->set, &f);
    } else {
        add_any(l, root, "kv", "", 1);
        for (unsigned i = before; i < l->set->count; i++) {
            l->set->list[i].how = figures_text(l->set, f.how);
            l->set->list[i].kind = f.kind;
        }
    }
}

static bool is_kv(const struct json_value *root)
{
    return json_get(root, "cache") || strcmp(json_string(root, "what", ""), "attach") == 0;
}

static bool add_object(struct loader *l, const struct json_value *root)
{
    if (is_list(root, "figures"))
        add_figures(l, root);
    else if (is_list(root, "facts"))
        add_facts(l, root);
    else if (is_list(root, "programs"))
        add_litmus(l, root);
    else if (is_list(root, "rows") && json_get(json_get(root, "rows")->first, "policy"))
        load_frag(l, root);
    else if (is_list(root, "rows") && json_get(json_get(root, "rows")->first, "how"))
        add_rows(l, root);
    else if (json_get(root, "trace") && json_get(root, "efficiency"))
        load_replay(l, root);
    else if (is_kv(root) || (json_get(root, "what") && !is_list(root, "rows"))) {
        const char *what = json_string(root, "what", "");

        /* Lines without an origin of their own have the last one's; a first one makes it. */
        if (strcmp(what, "run") == 0 || (!l->has_origin && strcmp(what, "note") != 0))
            add_head(l, root);
        if (is_kv(root))
            add_kv(l, root);
        else if (strcmp(what, "torch-study") == 0)
            load_study(l, root);
        else if (!load_sample(l, root))
            add_test_line(l, root);
    } else {
        return add_other(l, root);
    }
    return true;
}

static int load_json(struct loader *l, const char *text, size_t size, char error[256])
{
    for (size_t at = 0, used = 0; at < size; at += used) {
        char problem[160];
        struct json_document *d = json_parse(text + at, size - at, &used, problem);
        bool known;

        if (!d) {
            snprintf(error, 256, "%.60s, after byte %zu: %s", l->name, at, problem);
            return CLI_BAD_INPUT;
        }
        known = add_object(l, json_root(d));
        json_free(d);
        if (!known) {
            snprintf(error, 256,
                     "%.60s, after byte %zu: no result of a bench; expected an object with rows, "
                     "figures, facts, programs, or a trace and its efficiency",
                     l->name, at);
            return CLI_BAD_INPUT;
        }
        l->known++;
    }
    return CLI_OK;
}

int figures_load_text(struct figures *set, const char *text, size_t size, const char *name,
                      char error[256])
{
    struct loader l = {.set = set, .name = name, .origin = {.file = name, .machine = "unknown"}};
    int code;

    if (strncmp(text, "moonbright-profile", 18) == 0) {
        char *copy;

        if (!profile_is_whole(text, size)) {
            snprintf(error, 256, "%.200s: the profile is cut off", name);
            return CLI_BAD_INPUT;
        }
        copy = strdup(text);
        if (!copy) {
            snprintf(error, 256, "the host is out of memory");
            return CLI_FAILED;
        }
        add_profile(&l, copy);
        free(copy);
        code = CLI_OK;
    } else {
        code = load_json(&l, text, size, error);
    }
    if (!code && !l.known) {
        snprintf(error, 256, "%.100s holds no result", name);
        code = CLI_BAD_INPUT;
    }
    if (!code && set->failed) {
        snprintf(error, 256, "the host is out of memory");
        code = CLI_FAILED;
    }
    return code;
}

char *figures_read_file(const char *path, size_t *size, char error[256])
{
    bool opened = strcmp(path, "-") != 0;
    char problem[INPUT_PROBLEM] = "cannot be opened: the host is out of memory";
    int fd = opened ? input_open(path, problem) : -1;
    FILE *file = !opened ? stdin : fd >= 0 ? fdopen(fd, "rb") : NULL;
    char *text = NULL;
    size_t room = 0, n;

    *size = 0;
    if (!file) {
        snprintf(error, 256, "%.100s %.150s", path, problem);
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    do {
        if (*size + 65536 > room) {
            char *larger = room < FILE_BYTES_MAX ? realloc(text, room = 2 * room + 131072) : NULL;

            if (!larger) {
                snprintf(error, 256, "%.150s is too large for a result (limit 64 MiB)", path);
                free(text);
                text = NULL;
                break;
            }
            text = larger;
        }
        n = fread(text + *size, 1, 65535, file);
        *size += n;
    } while (n);
    if (text && ferror(file)) {
        snprintf(error, 256, "%.200s cannot be read", path);
        free(text);
        text = NULL;
    }
    if (text)
        text[*size] = '\0';
    if (opened)
        fclose(file);
    return text;
}

int figures_load(struct figures *set, const char *path, const char *name, char error[256])
{
    size_t size;
    char *text = figures_read_file(path, &size, error);
    int code = CLI_BAD_INPUT;

    if (text)
        code = figures_load_text(set, text, size, name, error);
    free(text);
    return code;
}
