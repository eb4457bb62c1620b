/* SPDX-License-Identifier: MIT */
/*
 * load_samples.c - programs that do not know MoonBright, by scripts/gpu-samples: how long their
 * allocation and free calls take on the driver and on MoonBright, beside what is published of 1,013
 * programs of three suites. A program that fails on the driver alone says nothing; one that is
 * wrong on MoonBright is told, and its time counts nowhere.
 */
#include "load_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define DRIVER "cudaMalloc and its like, driver"
#define PRELOADED "MoonBright, preloaded"
#define IN_CALLS "in allocation calls"
#define ALL_OF_RUN "all programs run"

static struct figure blank(const struct loader *l, const char *what, const char *how)
{
    struct figure f = figure_blank();

    f.experiment = "suite";
    f.what = what;
    f.how = how;
    f.metric = IN_CALLS;
    f.unit = "us";
    f.kind = FIGURE_MEASURED;
    f.origin = l->origin_index;
    return f;
}

static void add_time(struct loader *l, const char *what, const char *how, const char *metric,
                     double us)
{
    struct figure f = blank(l, what, how);

    f.metric = metric;
    f.value = us;
    if (!isnan(us))
        figures_add(l->set, &f);
}

/* One program. */
static void add_program(struct loader *l, const struct json_value *row)
{
    const char *name = json_string(row, "name", "?");
    double vendor = json_number(row, "vendor_us", NAN),
           ours = json_number(row, "moonbright_us", NAN);
    struct figure wrong = blank(l, name, PRELOADED);

    if (!json_get(row, "right"))
        return;
    if (!json_truth(row, "right", false)) {
        wrong.metric = "wrong";
        wrong.unit = "failures";
        wrong.value = 1;
        wrong.note = json_string(row, "errors", "");
        figures_add(l->set, &wrong);
        return;
    }
    if (isnan(vendor) || isnan(ours))
        return; /* no allocation calls */
    add_time(l, name, DRIVER, IN_CALLS, vendor);
    add_time(l, name, PRELOADED, IN_CALLS, ours);
    add_time(l, name, PRELOADED, "opening the device, once", json_number(row, "open_us", NAN));
    l->suite_us[0] += vendor;
    l->suite_us[1] += ours;
}

static void add_saved(struct loader *l, const struct json_value *sum, const char *key,
                      const char *what, const char *note)
{
    struct figure f = blank(l, what, PRELOADED);

    f.metric = "value";
    f.unit = "%";
    f.value = 100 * json_number(sum, key, NAN);
    f.samples = load_count(sum, "timed");
    f.note = note;
    if (!isnan(f.value))
        figures_add(l->set, &f);
}

/* What the rows above it come to. */
static void add_summary(struct loader *l, const struct json_value *sum)
{
    unsigned programs = load_count(sum, "programs"), right = load_count(sum, "right");
    struct figure f = blank(l, "programs that are wrong", PRELOADED);
    char note[160];

    snprintf(note, sizeof(note),
             "%u of the 1,013 programs, all of NVIDIA's samples; %u of %u are right",
             load_count(sum, "timed"), right, programs);
    add_saved(l, sum, "mean_reduction", "allocation time saved, mean", note);
    add_saved(l, sum, "max_reduction", "allocation time saved, most", note);
    add_saved(l, sum, "min_reduction", "allocation time saved, least", note);
    if (l->suite_us[0] > 0) {
        add_time(l, ALL_OF_RUN, DRIVER, IN_CALLS, l->suite_us[0]);
        add_time(l, ALL_OF_RUN, PRELOADED, IN_CALLS, l->suite_us[1]);
    }
    f.metric = "total";
    f.unit = "failures";
    f.value = programs - right;
    figures_add(l->set, &f);
    l->suite_us[0] = l->suite_us[1] = 0;
}

bool load_sample(struct loader *l, const struct json_value *row)
{
    const char *what = json_string(row, "what", "");

    if (strcmp(what, "sample") == 0)
        add_program(l, row);
    else if (strcmp(what, "samples") == 0)
        add_summary(l, row);
    else
        return false;
    return true;
}
