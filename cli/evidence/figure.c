/* SPDX-License-Identifier: MIT */
#include "figure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Texts are interned, so that the same one is kept once. */
struct figure_text {
    struct figure_text *next;
    char text[];
};

enum { TEXT_CHAINS_LOOKED_AT = 64 };

const char *figure_kind_name(enum figure_kind kind)
{
    static const char *const names[] = {"measured", "modelled", "published", "calculated"};

    return names[kind];
}

void figures_free(struct figures *set)
{
    while (set->texts) {
        struct figure_text *t = set->texts;

        set->texts = t->next;
        free(t);
    }
    free(set->list);
    free(set->origins);
    *set = (struct figures){.list = NULL};
}

const char *figures_text(struct figures *set, const char *text)
{
    struct figure_text *t = set->texts;
    size_t size;

    if (!text || !*text)
        return "";
    /* Neighbours repeat each other's texts. */
    for (unsigned i = 0; t && i < TEXT_CHAINS_LOOKED_AT; i++, t = t->next)
        if (strcmp(t->text, text) == 0)
            return t->text;
    size = strlen(text) + 1;
    t = malloc(sizeof(*t) + size);
    if (!t) {
        set->failed = true;
        return "";
    }
    memcpy(t->text, text, size);
    t->next = set->texts;
    set->texts = t;
    return t->text;
}

/* Room for one more of `size` bytes each. */
static bool grow(void **list, unsigned count, unsigned *capacity, size_t size)
{
    unsigned wanted = *capacity ? 2 * *capacity : 64;
    void *larger;

    if (count < *capacity)
        return true;
    larger = realloc(*list, wanted * size);
    if (!larger)
        return false;
    *list = larger;
    *capacity = wanted;
    return true;
}

static bool same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

unsigned figures_origin(struct figures *set, const struct figure_origin *o)
{
    void *list = set->origins;

    for (unsigned i = 0; i < set->origin_count; i++) {
        const struct figure_origin *k = &set->origins[i];

        if (same_text(k->file, o->file) && same_text(k->machine, o->machine) &&
            same_text(k->driver, o->driver) && same_text(k->commit, o->commit) &&
            same_text(k->command, o->command) && same_text(k->time, o->time))
            return i;
    }
    if (!grow(&list, set->origin_count, &set->origin_capacity, sizeof(*o))) {
        set->failed = true;
        return 0;
    }
    set->origins = list;
    set->origins[set->origin_count] = (struct figure_origin){
        .file = figures_text(set, o->file),
        .machine = figures_text(set, o->machine),
        .driver = figures_text(set, o->driver),
        .commit = figures_text(set, o->commit),
        .command = figures_text(set, o->command),
        .time = figures_text(set, o->time),
    };
    return set->origin_count++;
}

struct figure figure_blank(void)
{
    return (struct figure){.x = NAN, .value = NAN, .p99 = NAN, .p999 = NAN, .min = NAN};
}

void figures_add(struct figures *set, const struct figure *figure)
{
    struct figure copy = *figure;
    void *list = set->list;

    if (!grow(&list, set->count, &set->capacity, sizeof(*figure))) {
        set->failed = true;
        return;
    }
    set->list = list;
    copy.experiment = figures_text(set, copy.experiment);
    copy.what = figures_text(set, copy.what);
    copy.how = figures_text(set, copy.how);
    copy.metric = figures_text(set, copy.metric);
    copy.unit = figures_text(set, copy.unit);
    copy.x_unit = figures_text(set, copy.x_unit);
    copy.note = figures_text(set, copy.note);
    set->list[set->count++] = copy;
}

const struct figure *figures_next(const struct figures *set, unsigned *from, const char *experiment,
                                  const char *what, const char *how, const char *metric, double x)
{
    while (*from < set->count) {
        const struct figure *f = &set->list[(*from)++];

        if ((!experiment || same_text(f->experiment, experiment)) &&
            (!what || same_text(f->what, what)) && (!how || same_text(f->how, how)) &&
            (!metric || same_text(f->metric, metric)) && (isnan(x) || f->x == x))
            return f;
    }
    return NULL;
}

int figure_direction(const struct figure *f)
{
    static const char *const smaller[] = {"us",     "ns",  "ms",           "s",     "cycles",
                                          "GiB VA", "KiB", "x the normal", "waste", "failures"};
    static const char *const larger[] = {"M/s",        "/s",       "GB/s",
                                         "efficiency", "x faster", "of the rate alone"};

    for (unsigned i = 0; i < sizeof(smaller) / sizeof(smaller[0]); i++)
        if (same_text(f->unit, smaller[i]))
            return -1;
    for (unsigned i = 0; i < sizeof(larger) / sizeof(larger[0]); i++)
        if (same_text(f->unit, larger[i]))
            return 1;
    return 0;
}

/* ------------------------------------------------------------ JSON */

/* Bytes and counts keep all their digits. */
static void json_exact(struct json_writer *w, const char *key, double value)
{
    if (value >= 0 && value < 9e15 && value == floor(value))
        json_u64(w, key, (uint64_t)value);
    else
        json_double(w, key, value);
}

static void json_known(struct json_writer *w, const char *key, double value)
{
    if (!isnan(value))
        json_double(w, key, value);
}

static void json_figure(struct json_writer *w, const struct figure *f)
{
    json_object(w, NULL);
    json_text(w, "experiment", f->experiment);
    json_text(w, "what", f->what);
    json_text(w, "how", f->how);
    json_text(w, "metric", f->metric);
    json_text(w, "unit", f->unit);
    if (!isnan(f->x)) {
        json_exact(w, "x", f->x);
        json_text(w, "x_unit", f->x_unit);
    }
    json_exact(w, "value", f->value);
    json_known(w, "p99", f->p99);
    json_known(w, "p999", f->p999);
    json_known(w, "min", f->min);
    if (f->samples)
        json_u64(w, "samples", f->samples);
    json_text(w, "kind", figure_kind_name(f->kind));
    json_u64(w, "origin", f->origin);
    if (*f->note)
        json_text(w, "note", f->note);
    json_end_object(w);
}

void figures_json(const struct figures *set, struct json_writer *w)
{
    json_array(w, "origins");
    for (unsigned i = 0; i < set->origin_count; i++) {
        const struct figure_origin *o = &set->origins[i];

        json_object(w, NULL);
        json_text(w, "file", o->file);
        json_text(w, "machine", o->machine);
        json_text(w, "driver", o->driver);
        json_text(w, "commit", o->commit);
        json_text(w, "command", o->command);
        json_text(w, "time", o->time);
        json_end_object(w);
    }
    json_end_array(w);
    json_array(w, "figures");
    for (unsigned i = 0; i < set->count; i++)
        json_figure(w, &set->list[i]);
    json_end_array(w);
}
