/* SPDX-License-Identifier: MIT */
#include "compare.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *compare_verdict_name(enum compare_verdict verdict)
{
    static const char *const names[] = {"same",    "WORSE", "better",      "changed",
                                        "MISSING", "new",   "UNITS DIFFER"};

    return names[verdict];
}

/* Relative standard error of the median; NaN: not known. */
static double relative_error(const struct figure *f)
{
    if (f->samples < 2 || isnan(f->p99) || !(f->value > 0))
        return NAN;
    /* Without a minimum, the upper half alone. */
    return 1.25 * (isnan(f->min) ? (f->p99 - f->value) / 2.33 : (f->p99 - f->min) / 4.8) /
           sqrt(f->samples) / f->value;
}

static double bound_of(const struct figure *a, const struct figure *b,
                       const struct compare_options *o)
{
    double x = relative_error(a), y = relative_error(b), both;

    if (a->kind == FIGURE_MODELLED && b->kind == FIGURE_MODELLED)
        return o->model;
    if (isnan(x) || isnan(y))
        return o->single > o->floor ? o->single : o->floor;
    both = 3 * sqrt(x * x + y * y);
    return both > o->floor ? both : o->floor;
}

static enum compare_verdict judge(double ratio, double bound, int direction)
{
    /* As far up as down: a third more and a quarter less are the same distance. */
    bool larger = ratio > 1 + bound, smaller = ratio < 1 / (1 + bound);

    if (!larger && !smaller)
        return COMPARE_SAME;
    if (!direction)
        return COMPARE_CHANGED;
    return larger == (direction > 0) ? COMPARE_BETTER : COMPARE_WORSE;
}

struct compare_row compare_figures(const struct figure *a, const struct figure *b,
                                   const struct compare_options *options)
{
    struct compare_row row = {a, b, NAN, NAN, COMPARE_SAME};

    if (!a || !b) {
        row.verdict = a ? COMPARE_MISSING : COMPARE_NEW;
        return row;
    }
    if (strcmp(a->unit, b->unit) != 0) {
        row.verdict = COMPARE_UNITS;
        return row;
    }
    if (isnan(a->value) || isnan(b->value)) {
        /* What was a number and is none any more is missing. */
        row.verdict = isnan(a->value) == isnan(b->value) ? COMPARE_SAME
                      : isnan(b->value)                  ? COMPARE_MISSING
                                                         : COMPARE_NEW;
        return row;
    }
    row.bound = bound_of(a, b, options);
    if (a->value == b->value) {
        row.ratio = 1;
        return row;
    }
    row.ratio = b->value / a->value;
    row.verdict = judge(row.ratio, row.bound, figure_direction(a));
    return row;
}

static bool same_name(const struct figures *x, const struct figure *f, const struct figures *y,
                      const struct figure *g, bool any_machine)
{
    return f->kind == g->kind && strcmp(f->experiment, g->experiment) == 0 &&
           strcmp(f->what, g->what) == 0 && strcmp(f->how, g->how) == 0 &&
           strcmp(f->metric, g->metric) == 0 && strcmp(f->x_unit, g->x_unit) == 0 &&
           (f->x == g->x || (isnan(f->x) && isnan(g->x))) &&
           (any_machine ||
            strcmp(x->origins[f->origin].machine, y->origins[g->origin].machine) == 0);
}

const struct figure *compare_find(const struct figures *to, const struct figures *from,
                                  unsigned index, bool any_machine)
{
    const struct figure *f = &from->list[index];
    unsigned before = 0;

    /* A name may stand there several times, as of several runs: the n-th is compared with the
     * n-th. */
    for (unsigned i = 0; i < index; i++)
        before += same_name(from, f, from, &from->list[i], any_machine);
    for (unsigned i = 0; i < to->count; i++)
        if (same_name(from, f, to, &to->list[i], any_machine) && !before--)
            return &to->list[i];
    return NULL;
}

static bool has_machine(const struct figures *set, const struct figure_origin *o)
{
    for (unsigned i = 0; i < set->origin_count; i++)
        if (strcmp(set->origins[i].machine, o->machine) == 0 &&
            strcmp(set->origins[i].driver, o->driver) == 0)
            return true;
    return false;
}

/* Whether figures of the origin hold on its machine only: what is published, calculated or a model
 * that runs alike everywhere does not. */
static bool is_bound(const struct figures *set, unsigned origin)
{
    bool host = strstr(set->origins[origin].machine, " on ") != NULL;

    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];

        if (f->origin == origin && !isnan(f->value) &&
            (f->kind == FIGURE_MEASURED || (f->kind == FIGURE_MODELLED && host)))
            return true;
    }
    return false;
}

static const struct figure_origin *first_bound(const struct figures *set)
{
    static const struct figure_origin nobody = {.machine = "no machine", .driver = ""};

    for (unsigned i = 0; i < set->origin_count; i++)
        if (is_bound(set, i))
            return &set->origins[i];
    return &nobody;
}

const char *compare_refusal(const struct figures *old_set, const struct figures *new_set,
                            char buffer[512])
{
    for (unsigned side = 0; side < 2; side++) {
        const struct figures *set = side ? new_set : old_set, *other = side ? old_set : new_set;
        const struct figure_origin *there = first_bound(other);

        for (unsigned i = 0; i < set->origin_count; i++) {
            const struct figure_origin *o = &set->origins[i];

            if (has_machine(other, o) || !is_bound(set, i))
                continue;
            snprintf(buffer, 512,
                     "the %s results are of «%.100s», driver «%.60s», the %s ones of «%.100s», "
                     "driver «%.60s»",
                     side ? "new" : "old", o->machine, o->driver, side ? "old" : "new",
                     there->machine, there->driver);
            return buffer;
        }
    }
    return NULL;
}
