/* SPDX-License-Identifier: MIT */
#include "svg.h"

#include <math.h>
#include <string.h>

enum {
    LEFT = 52,  /* of the plot: room for ticks */
    RIGHT = 12, /* beside it */
    TOP = 14,
    PLOT_HEIGHT = 210,
    LEGEND_ROW = 18,
    BAR_ROW = 40,
    TICKS_MAX = 12
};

static unsigned serial; /* of charts: ids of titles must differ on a page */

void html_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            if ((unsigned char)*text >= 0x20 || *text == '\n' || *text == '\t')
                fputc(*text, out);
        }
    }
}

/* Thousands get commas. */
static void grouped(double value, unsigned decimals, char buffer[48])
{
    char digits[40];
    size_t length, whole, at = 0;

    snprintf(digits, sizeof(digits), "%.*f", (int)decimals, value);
    length = strlen(digits);
    whole = strcspn(digits, ".");
    for (size_t i = 0; i < length && at < 46; i++) {
        if (i && i < whole && (whole - i) % 3 == 0 && digits[i - 1] != '-')
            buffer[at++] = ',';
        buffer[at++] = digits[i];
    }
    buffer[at] = '\0';
}

const char *chart_number(double value, bool bytes, char buffer[48])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    double size = fabs(value);

    if (isnan(value)) {
        snprintf(buffer, 48, "–");
        return buffer;
    }
    if (bytes) {
        for (; size >= 1024 && unit < 5; unit++)
            size /= 1024;
        snprintf(buffer, 48, "%.3g %s", value < 0 ? -size : size, units[unit]);
    } else if (size >= 100 || value == 0) {
        grouped(value, 0, buffer);
    } else if (size >= 0.001) {
        snprintf(buffer, 48, "%.*f", size >= 10 ? 1 : size >= 1 ? 2 : 3, value);
    } else {
        snprintf(buffer, 48, "%.2g", value);
    }
    return buffer;
}

/* As much as one row holds; cut between characters. */
static void short_text(FILE *out, const char *text, unsigned most)
{
    char buffer[160];
    unsigned columns = 0;
    size_t i;

    for (i = 0; i < sizeof(buffer) - 5 && text[i]; i++) {
        columns += ((unsigned char)text[i] & 0xc0) != 0x80;
        if (columns > most)
            break;
        buffer[i] = text[i];
    }
    buffer[i] = '\0';
    html_text(out, buffer);
    if (text[i])
        fputs("…", out);
}

/* On an axis: without zeros that say nothing. */
static const char *tick_text(double value, bool bytes, char buffer[48])
{
    if (bytes || (fabs(value) >= 1000 && fabs(value) < 1e6))
        return chart_number(value, bytes, buffer);
    if (fabs(value) >= 1e6) {
        snprintf(buffer, 48, "%g M", value / 1e6);
        return buffer;
    }
    snprintf(buffer, 48, "%.4g", value);
    return buffer;
}

/* ------------------------------------------------------------ axes */

struct scale {
    double low, high; /* of the axis, in its own measure: logarithm or value */
    bool logarithmic;
    double from, to; /* in units of the drawing */
    double tick[TICKS_MAX];
    unsigned ticks;
};

static double measure(const struct scale *s, double value)
{
    return s->logarithmic ? log10(value) : value;
}

static double place(const struct scale *s, double value)
{
    double share = s->high > s->low ? (measure(s, value) - s->low) / (s->high - s->low) : 0.5;

    return s->from + share * (s->to - s->from);
}

/* 1, 2 or 5 times a power of ten. */
static double even_step(double span, unsigned wanted)
{
    double raw = span / wanted, power = pow(10, floor(log10(raw)));
    double digit = raw / power;

    return power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
}

static void byte_ticks(struct scale *s)
{
    double low = s->low / log10(2), high = s->high / log10(2);
    double step = ceil((high - low) / 5);

    for (double at = ceil(low - 1e-9); at <= high + 1e-9 && s->ticks < TICKS_MAX; at += step)
        s->tick[s->ticks++] = exp2(at);
}

static void log_scale(struct scale *s, bool bytes, bool widen)
{
    double step;

    if (widen) {
        s->low = floor(s->low + 1e-9);
        s->high = ceil(s->high - 1e-9);
    }
    if (s->high <= s->low)
        s->high = s->low + 1;
    if (bytes) {
        byte_ticks(s);
        return;
    }
    step = ceil((s->high - s->low) / 6);
    for (double at = ceil(s->low - 1e-9); at <= s->high + 1e-9 && s->ticks < TICKS_MAX; at += step)
        s->tick[s->ticks++] = pow(10, at);
}

static void even_scale(struct scale *s, bool bytes, bool from_zero)
{
    double step, unit = 1;

    if (from_zero && s->low > 0)
        s->low = 0;
    if (s->high <= s->low)
        s->high = s->low + 1;
    while (bytes && (s->high - s->low) / 5 >= 1024 * unit)
        unit *= 1024;
    step = unit * even_step((s->high - s->low) / unit, 5);
    if (from_zero)
        s->high = ceil(s->high / step - 1e-9) * step;
    for (double at = ceil(s->low / step) * step; at <= s->high + step / 1e6 && s->ticks < TICKS_MAX;
         at += step)
        s->tick[s->ticks++] = fabs(at) < step / 1e6 ? 0 : at;
}

/* ------------------------------------------------------------ lines */

static void begin(FILE *out, const char *title, double height)
{
    serial++;
    fprintf(
        out,
        "<svg class=\"chart\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" role=\"img\" "
        "aria-labelledby=\"t%u d%u\">\n<title id=\"t%u\">",
        CHART_WIDTH, height, CHART_WIDTH, height, serial, serial, serial);
    html_text(out, title);
    fprintf(out, "</title><desc id=\"d%u\">", serial);
}

static void x_axis(FILE *out, const struct scale *s, const struct chart_axis *axis, double bottom)
{
    char text[48];

    for (unsigned i = 0; i < s->ticks; i++) {
        double x = place(s, s->tick[i]);
        const char *anchor = x > CHART_WIDTH - 30 ? "end" : "middle";

        fprintf(out, "<path class=\"grid\" d=\"M%.1f %dV%.1f\"/>", x, TOP, bottom);
        fprintf(out, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">",
                x > CHART_WIDTH - 30 ? CHART_WIDTH - 4.0 : x, bottom + 16, anchor);
        html_text(out, tick_text(s->tick[i], axis->bytes, text));
        fputs("</text>\n", out);
    }
    fprintf(out, "<path class=\"axis\" d=\"M%d %.1fH%d\"/>", LEFT, bottom, CHART_WIDTH - RIGHT);
    fprintf(out, "<text class=\"label\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">",
            (LEFT + CHART_WIDTH - RIGHT) / 2.0, bottom + 34);
    html_text(out, axis->label);
    fputs("</text>\n", out);
}

static void y_axis(FILE *out, const struct scale *s, const struct chart_axis *axis)
{
    char text[48];

    for (unsigned i = 0; i < s->ticks; i++) {
        double y = place(s, s->tick[i]);

        fprintf(out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>", LEFT, y, CHART_WIDTH - RIGHT);
        fprintf(out, "<text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", LEFT - 6,
                y + 4);
        html_text(out, tick_text(s->tick[i], axis->bytes, text));
        fputs("</text>\n", out);
    }
}

/* A different shape for every series, for those who do not see the colours. */
static void mark(FILE *out, unsigned colour, double x, double y)
{
    switch (colour % 4) {
    case 0:
        fprintf(out, "<circle class=\"s%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>", colour, x, y);
        break;
    case 1:
        fprintf(out, "<rect class=\"s%u\" x=\"%.1f\" y=\"%.1f\" width=\"7\" height=\"7\"/>", colour,
                x - 3.5, y - 3.5);
        break;
    case 2:
        fprintf(out, "<path class=\"s%u\" d=\"M%.1f %.1fl4.5 8h-9z\"/>", colour, x, y - 5);
        break;
    default:
        fprintf(out, "<path class=\"s%u\" d=\"M%.1f %.1fl4.5 4.5-4.5 4.5-4.5-4.5z\"/>", colour, x,
                y - 4.5);
    }
}

static void one_series(FILE *out, const struct chart_series *s, const struct scale *x,
                       const struct scale *y)
{
    if (s->count > 1) {
        fprintf(out, "<path class=\"line l%u\" d=\"", s->colour);
        for (unsigned i = 0; i < s->count; i++)
            fprintf(out, "%c%.1f %.1f", i ? 'L' : 'M', place(x, s->x[i]), place(y, s->y[i]));
        fputs("\"/>", out);
    }
    for (unsigned i = 0; i < s->count && s->count <= 16; i++)
        mark(out, s->colour, place(x, s->x[i]), place(y, s->y[i]));
    fputc('\n', out);
}

static void extend(struct scale *s, double value, bool *any)
{
    double m = measure(s, value);

    s->low = *any && s->low < m ? s->low : m;
    s->high = *any && s->high > m ? s->high : m;
    *any = true;
}

/* false: nothing to draw */
static bool fit(const struct chart_lines *c, struct scale *x, struct scale *y, double bottom)
{
    bool any_x = false, any_y = false;

    *x = (struct scale){
        .logarithmic = c->x.logarithmic, .from = LEFT, .to = CHART_WIDTH - RIGHT - 4};
    *y = (struct scale){.logarithmic = c->y.logarithmic, .from = bottom, .to = TOP};
    for (unsigned i = 0; i < c->count; i++)
        for (unsigned k = 0; k < c->series[i].count; k++) {
            extend(x, c->series[i].x[k], &any_x);
            extend(y, c->series[i].y[k], &any_y);
        }
    if (!any_x)
        return false;
    if (x->logarithmic)
        log_scale(x, c->x.bytes, false);
    else
        even_scale(x, c->x.bytes, false);
    if (y->logarithmic)
        log_scale(y, false, true);
    else
        even_scale(y, c->y.bytes, true);
    return true;
}

void svg_lines(FILE *out, const struct chart_lines *c)
{
    double bottom = TOP + PLOT_HEIGHT;
    double legend = bottom + 44;
    struct scale x, y;
    char a[48], b[48];

    if (!fit(c, &x, &y, bottom))
        return;
    begin(out, c->title, legend + LEGEND_ROW * c->count + 4);
    for (unsigned i = 0; i < c->count; i++) {
        const struct chart_series *s = &c->series[i];

        html_text(out, s->name);
        if (s->count)
            fprintf(out, ": from %s to %s. ", chart_number(s->y[0], c->y.bytes, a),
                    chart_number(s->y[s->count - 1], c->y.bytes, b));
    }
    fputs("</desc>\n", out);
    x_axis(out, &x, &c->x, bottom);
    y_axis(out, &y, &c->y);
    for (unsigned i = 0; i < c->count; i++)
        one_series(out, &c->series[i], &x, &y);
    for (unsigned i = 0; i < c->count; i++) {
        double row = legend + LEGEND_ROW * (i + 0.5);

        fprintf(out, "<path class=\"line l%u\" d=\"M8 %.1fh22\"/>", c->series[i].colour, row);
        mark(out, c->series[i].colour, 19, row);
        fprintf(out, "<text class=\"legend\" x=\"36\" y=\"%.1f\">", row + 4);
        short_text(out, c->series[i].name, 50);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
}

/* ------------------------------------------------------------ bars */

void svg_bars(FILE *out, const struct chart_bars *c)
{
    struct scale s = {.logarithmic = c->logarithmic, .from = 0, .to = CHART_WIDTH - 96};
    bool any = false;

    for (unsigned i = 0; i < c->count; i++)
        extend(&s, c->bar[i].value, &any);
    if (!any)
        return;
    if (s.logarithmic)
        s.low = floor(s.low) - (s.low - floor(s.low) < 0.05 ? 1 : 0);
    else
        s.low = 0;
    if (s.high <= s.low)
        s.high = s.low + 1;
    begin(out, c->title, BAR_ROW * c->count + 6);
    for (unsigned i = 0; i < c->count; i++) {
        html_text(out, c->bar[i].name);
        fputs(": ", out);
        html_text(out, c->bar[i].value_text);
        fputs(". ", out);
    }
    fputs("</desc>\n", out);
    for (unsigned i = 0; i < c->count; i++) {
        double y = BAR_ROW * i, width = place(&s, c->bar[i].value);

        fprintf(out, "<text class=\"legend\" x=\"0\" y=\"%.1f\">", y + 14);
        short_text(out, c->bar[i].name, 56);
        fprintf(out,
                "</text>\n<rect class=\"track\" x=\"0\" y=\"%.1f\" width=\"%d\" height=\"12\" "
                "rx=\"3\"/>",
                y + 20, CHART_WIDTH - 96);
        fprintf(out,
                "<rect class=\"s%u\" x=\"0\" y=\"%.1f\" width=\"%.1f\" height=\"12\" rx=\"3\"/>",
                c->bar[i].colour, y + 20, width < 3 ? 3 : width);
        fprintf(out, "<text class=\"value\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">", CHART_WIDTH,
                y + 31);
        html_text(out, c->bar[i].value_text);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
}
