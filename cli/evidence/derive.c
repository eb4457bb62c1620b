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

/* Cycles, as is published, where the kernel's are told; a model has none. */
static void add_first_touch(struct figures *set, struct figure f)
{
    double cycles;

    f.experiment = "tlb";
    f.what = "first touch above a hit, in time";
    figures_add(set, &f);
    if (sscanf(f.note, "%lf cycles at", &cycles) != 1)
        return;
    f.what = "first touch above a hit";
    f.unit = "cycles";
    f.value = cycles;
    figures_add(set, &f);
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
        if (strcmp(f.what, "first_touch_ns") == 0)
            add_first_touch(set, f);
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

/* Which attention kernels a cache has, by the end of its name; "": the decoder's own. */
static const char *kernels_of(const char *how)
{
    const char *end = strstr(how, "-flashinfer");

    return end ? end : "";
}

static bool is_cache(const char *how, const char *place)
{
    return strncmp(how, place, strlen(place)) == 0 && !strchr(how, ','); /* behind it a label */
}

/* By how many times the one is better than the peer with the same kernels, of the same run, model,
   size and kind: two runs of one file differ by more than what is compared. */
static double better(const struct figures *set, const struct figure *ours, const char *peer)
{
    const struct figure *f;
    unsigned from = 0;

    while ((f = figures_next(set, &from, "kv", ours->what, NULL, ours->metric, ours->x)))
        if (f->kind == ours->kind && is_cache(f->how, peer) && f->value > 0 &&
            strcmp(kernels_of(f->how), kernels_of(ours->how)) == 0 && f->origin == ours->origin)
            return figure_direction(ours) > 0 ? ours->value / f->value : f->value / ours->value;
    return NAN;
}

/* The best of the points that have a peer with such kernels (NULL: any) beside them; the worst is
   in its note. */
struct pairs {
    const char *beginning, *peer, *kernels, *name;
    enum figure_kind kind;
};

static bool is_point(const struct figure *f, const struct pairs *p)
{
    return strcmp(f->experiment, "kv") == 0 && f->kind == p->kind && f->value > 0 &&
           is_cache(f->how, "moonbright") && !strstr(f->what, ", 0% shared") &&
           strncmp(f->what, p->beginning, strlen(p->beginning)) == 0 &&
           (!p->kernels || strcmp(kernels_of(f->how), p->kernels) == 0);
}

static void add_most(struct figures *set, const struct pairs *p, const struct figure *point,
                     double ratio, double least)
{
    struct figure best = *point;
    char how[80], note[160];

    snprintf(how, sizeof(how), "MoonBright over %.20s%.20s, at most", p->peer,
             kernels_of(point->how));
    snprintf(note, sizeof(note), "%.80s, %.0f %.20s; elsewhere %.2f at least", point->what,
             point->x, point->x_unit, least);
    best.value = ratio;
    best.what = p->name;
    best.how = how;
    best.metric = "value";
    best.unit = "x faster";
    best.note = note;
    best.x = best.p99 = best.p999 = best.min = NAN;
    best.x_unit = "";
    figures_add(set, &best);
}

/* false: no point has such a peer */
static bool most(struct figures *set, const struct pairs *p)
{
    struct figure best = figure_blank();
    double most_ratio = NAN, least = NAN;

    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];
        double ratio = is_point(f, p) ? better(set, f, p->peer) : NAN;

        if (isnan(ratio))
            continue;
        if (!(ratio <= most_ratio)) {
            most_ratio = ratio;
            best = *f;
        }
        least = fmin(least, ratio); /* of a number and none it is the number */
    }
    if (isnan(most_ratio))
        return false;
    add_most(set, p, &best, most_ratio, least);
    return true;
}

/* CUDA's mapping calls have the same attention beside them either way. Tables are read by the
   kernels that are made for them, where those ran: others would make a slow peer. */
void derive_serving(struct figures *set)
{
    static const enum figure_kind kinds[] = {FIGURE_MEASURED, FIGURE_MODELLED};

    for (unsigned k = 0; k < 2; k++) {
        struct pairs ttft = {"TTFT", "cuda-vmm", NULL, "TTFT with prefix cache over vAttention",
                             kinds[k]};
        struct pairs beams = {"beam search", "paged", "-flashinfer", "beam search tokens over vLLM",
                              kinds[k]};

        most(set, &ttft);
        if (!most(set, &beams)) {
            beams.kernels = NULL;
            most(set, &beams);
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
