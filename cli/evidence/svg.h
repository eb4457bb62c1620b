/* SPDX-License-Identifier: MIT */
/*
 * svg.h - charts as inline SVG: bars and lines with logarithmic or even axes.
 *
 * Drawn for a width of CHART_WIDTH units, which a phone shows at nearly one pixel each, so that no
 * text becomes smaller than about 11 pixels there. Colours are classes (s0 to s7) that the page's
 * style sheet defines for light and dark; series also differ by mark and dash. Each chart has a
 * title and a description; the numbers stand in the page's tables too.
 */
#ifndef MB_CLI_EVIDENCE_SVG_H
#define MB_CLI_EVIDENCE_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { CHART_WIDTH = 400, CHART_SERIES_MAX = 10, CHART_POINTS_MAX = 64, CHART_BARS_MAX = 24 };

struct chart_series {
    char name[96];
    unsigned colour; /* 0 to 7 */
    unsigned count;
    double x[CHART_POINTS_MAX], y[CHART_POINTS_MAX];
};

struct chart_axis {
    const char *label; /* with its unit */
    bool logarithmic;
    bool bytes; /* ticks are powers of two with a byte unit */
};

struct chart_lines {
    const char *title;
    struct chart_axis x, y;
    struct chart_series series[CHART_SERIES_MAX];
    unsigned count;
};

struct chart_bar {
    char name[128], value_text[48];
    double value;    /* above 0 where logarithmic */
    unsigned colour; /* 0 to 7 */
};

struct chart_bars {
    const char *title, *unit;
    bool logarithmic;
    struct chart_bar bar[CHART_BARS_MAX];
    unsigned count;
};

/* Text with <, &, > and quotes escaped; control characters are left out. */
void html_text(FILE *out, const char *text);
/* Nothing is drawn without a point. */
void svg_lines(FILE *out, const struct chart_lines *chart);
void svg_bars(FILE *out, const struct chart_bars *chart);
/* Three significant digits, with a unit's prefix for bytes: "12.7", "33,000", "2 GiB". */
const char *chart_number(double value, bool bytes, char buffer[48]);

#endif
