/* SPDX-License-Identifier: MIT */
/* report_parts.h - sections of the page: which charts, of which figures. For report_*.c alone. */
#ifndef MB_CLI_EVIDENCE_REPORT_PARTS_H
#define MB_CLI_EVIDENCE_REPORT_PARTS_H

#include <stdio.h>

#include "figure.h"
#include "svg.h"

enum part { PART_LINES, PART_BARS };
/* What tells one series, or bar, from another. */
enum part_by { BY_HOW, BY_WHAT, BY_BOTH, BY_QUANTILE };

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order that the tables read in */
struct chart_spec {
    enum part part;
    const char *experiment;
    const char *what, *metric; /* NULL: all */
    enum part_by by;
    const char *title;
    bool x_logarithmic, y_logarithmic;
    double at; /* BARS: of this x only; NaN: of those without x */
};

enum { SECTION_EXPERIMENTS = 6 };
struct section_spec {
    const char *id, *title, *lead;
    const struct chart_spec *charts;
    unsigned chart_count;
    const char *experiments[SECTION_EXPERIMENTS]; /* whose numbers stand below; NULL ends them */
};
#define SPECS(array) (unsigned)(sizeof(array) / sizeof((array)[0]))

extern const struct section_spec report_sections[];
extern const unsigned report_section_count;

void report_section(FILE *out, const struct figures *set, const struct section_spec *section);
/* Figures of experiments that no section shows. */
void report_others(FILE *out, const struct figures *set);

/* report_tables.c */
void report_numbers(FILE *out, const struct figures *set, const char *experiment);
/* MoonBright's own way, as against the vendor's, a model's or a published one. */
bool figure_is_ours(const struct figure *figure);
bool figure_is_stock(const struct figure *figure);
/* The way as the page calls it: "MoonBright, inline tables" for "device-inline". */
const char *figure_way(const struct figure *figure);

#endif
