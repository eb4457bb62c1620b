/* SPDX-License-Identifier: MIT */
#include "derive.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define PAGE_BYTES 2097152.0
#define SPACING 16.0 /* 32 MB for each range, in pages of 2 MB */

double derive_robson(double live_bytes, double page_bytes)
{
    double pages = ceil(live_bytes / page_bytes);

    return pages > 1 ? live_bytes * (0.5 * log2(pages) + 1) : live_bytes;
}

static void step(struct figures *set, const struct figure *from, const char *what, double value,
                 const char *note)
{
    struct figure f = *from;

    f.experiment = "steps";
    f.what = what;
    f.value = value;
    f.p99 = f.p999 = f.min = NAN;
    f.note = note;
    figures_add(set, &f);
}

/* Figures are copied before the list grows: figures_add() may move it. */
static void copy_step(struct figures *set, const char *call, const char *what)
{
    const struct figure *found;
    unsigned from = 0;

    while ((found = figures_next(set, &from, "calls", call, NULL, "complete", NAN))) {
        struct figure f = *found;

        step(set, &f, what, f.value, call);
    }
}

void derive_steps(struct figures *set)
{
    const struct figure *found;
    unsigned from = 0;

    copy_step(set, "mb_mem_create", "physical: frames get an owner");
    copy_step(set, "map", "page table: map");
    copy_step(set, "unmap", "unmap, with its flush");
    while ((found = figures_next(set, &from, "map", "map+invalidate", NULL, "complete", NAN))) {
        const struct figure *plain;
        struct figure f = *found;
        unsigned start = 0;
        char what[64];

        if (strcmp(f.how, "driver") == 0)
            continue; /* the driver flushes by itself, or not */
        while ((plain = figures_next(set, &start, "map", "map", f.how, "complete", f.x)))
            if (plain->origin == f.origin && plain->kind == f.kind)
                break;
        snprintf(what, sizeof(what), "flush, %.50s", f.how);
        if (plain && f.value > plain->value)
            step(set, &f, what, f.value - plain->value,
                 "a map with its invalidate less one without");
    }
}

void derive_facts(struct figures *set)
{
    static const struct {
        const char *fact;
        double bytes;
    } slabs[] = {{"slab_2m_ns", 2097152.0},
                 {"slab_32m_ns", 33554432.0},
                 {"slab_128m_ns", 134217728.0},
                 {"slab_512m_ns", 536870912.0},
                 {"slab_1g_ns", 1073741824.0}};
    unsigned count = set->count; /* what is added here is no fact */

    for (unsigned i = 0; i < count; i++) {
        struct figure f = set->list[i];

        if (strcmp(f.experiment, "facts") != 0 || isnan(f.value))
            continue;
        if (strcmp(f.what, "first_touch_ns") == 0) {
            f.experiment = "tlb";
            f.what = "first touch above a hit";
            figures_add(set, &f);
        }
        for (size_t k = 0; k < sizeof(slabs) / sizeof(slabs[0]); k++)
            if (strcmp(f.what, slabs[k].fact) == 0) {
                f.experiment = "cliff";
                f.what = "take from the driver and map at home";
                f.metric = "host";
                f.unit = "us";
                f.x = slabs[k].bytes;
                f.x_unit = "bytes";
                f.value /= 1000;
                figures_add(set, &f);
            }
    }
}

static void bound(struct figures *set, unsigned origin, const char *what, const char *how,
                  const char *metric, const char *unit, double x, double value)
{
    struct figure f = figure_blank();

    f.experiment = "budget";
    f.what = what;
    f.how = how;
    f.metric = metric;
    f.unit = unit;
    f.x = x;
    f.x_unit = isnan(x) ? "" : "bytes";
    f.value = value;
    f.kind = FIGURE_CALCULATED;
    f.origin = origin;
    f.note = "M (log2(M) / 2 + 1) pages, M live pages at the peak";
    figures_add(set, &f);
}

void derive_bound_of_80gb(struct figures *set, unsigned origin)
{
    double live = 80.0 * 1024 * 1024 * 1024, bytes = derive_robson(live, PAGE_BYTES);

    bound(set, origin, "Robson bound, 2 MB pages", "calculated", "value", "GB", live,
          bytes / (1024.0 * 1024 * 1024));
    bound(set, origin, "Robson bound, 32 MB spacing", "calculated", "value", "GB", live,
          SPACING * bytes / (1024.0 * 1024 * 1024));
}

void derive_bounds(struct figures *set, unsigned origin, const char *trace, double peak_bytes)
{
    double bytes = derive_robson(peak_bytes, PAGE_BYTES);

    bound(set, origin, trace, "Robson bound", "2 MB pages", "bytes", NAN, bytes);
    bound(set, origin, trace, "Robson bound", "32 MB spacing", "bytes", NAN, SPACING * bytes);
}
