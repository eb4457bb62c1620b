/* SPDX-License-Identifier: MIT */
/* report_section.c - a section of the page: its charts, then its numbers. */
#include "page.h"
#include "report_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool matches(const struct figure *f, const struct chart_spec *spec, enum figure_kind kind)
{
    return (f->kind == kind || (f->kind == FIGURE_PUBLISHED && kind == FIGURE_MEASURED)) &&
           !isnan(f->value) && strcmp(f->experiment, spec->experiment) == 0 &&
           (!spec->what || strcmp(f->what, spec->what) == 0) &&
           (!spec->metric || strcmp(f->metric, spec->metric) == 0);
}

/* ------------------------------------------------------------ names and colours */

/* Only where two machines meet in a chart; without the host that a software GPU runs on. */
static void add_machine(const struct figures *set, const struct figure *f, bool machines,
                        char name[96])
{
    const char *machine = set->origins[f->origin].machine, *host = strstr(machine, " on ");
    size_t used = strlen(name);

    if (machines && f->kind != FIGURE_PUBLISHED)
        snprintf(name + used, 96 - used, " · %.*s", host ? (int)(host - machine) : 30, machine);
}

static void series_name(const struct figures *set, const struct figure *f, enum part_by by,
                        bool machines, char name[96])
{
    if (by == BY_BOTH)
        snprintf(name, 96, "%.50s, %.40s", figure_way(f), f->metric);
    else
        snprintf(name, 96, "%.90s", by == BY_WHAT ? f->what : figure_way(f));
    add_machine(set, f, machines, name);
    if (f->kind == FIGURE_PUBLISHED && !strstr(name, "published"))
        snprintf(name + strlen(name), 96 - strlen(name), " (published)");
}

/* Ours, theirs and published have colours of their own, whatever the chart. */
static unsigned colour_of(const struct figure *f, unsigned nth[3])
{
    static const unsigned ours[] = {0, 2, 5}, stock[] = {1, 4, 7};

    if (f->kind == FIGURE_PUBLISHED)
        return 3;
    if (figure_is_stock(f))
        return stock[nth[1]++ % 3];
    if (figure_is_ours(f))
        return ours[nth[0]++ % 3];
    return (unsigned[]){0, 1, 2, 3, 4, 5, 7}[nth[2]++ % 7];
}

static bool several_machines(const struct figures *set, const struct chart_spec *spec,
                             enum figure_kind kind)
{
    const struct figure *first = NULL;

    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];

        if (f->kind != kind || !matches(f, spec, kind))
            continue;
        if (first &&
            strcmp(set->origins[first->origin].machine, set->origins[f->origin].machine) != 0)
            return true;
        first = first ? first : f;
    }
    return false;
}

/* ------------------------------------------------------------ lines */

static void add_point(struct chart_series *s, double x, double y)
{
    unsigned at = s->count;

    /* The same measured again, of a later file: the latest is drawn, the table has them all. */
    for (unsigned i = 0; i < s->count; i++)
        if (s->x[i] == x) {
            s->y[i] = y;
            return;
        }
    if (s->count == CHART_POINTS_MAX)
        return;
    while (at && s->x[at - 1] > x) {
        s->x[at] = s->x[at - 1];
        s->y[at] = s->y[at - 1];
        at--;
    }
    s->x[at] = x;
    s->y[at] = y;
    s->count++;
}

static struct chart_series *series(struct chart_lines *c, const char *name)
{
    for (unsigned i = 0; i < c->count; i++)
        if (strcmp(c->series[i].name, name) == 0)
            return &c->series[i];
    if (c->count == CHART_SERIES_MAX)
        return NULL;
    snprintf(c->series[c->count].name, sizeof(c->series[0].name), "%s", name);
    return &c->series[c->count++];
}

/* Median, p99 and p99.9 of one thing as three lines, of every machine its own. */
static void add_quantiles(struct chart_lines *c, const struct figures *set, const struct figure *f,
                          bool logarithmic, bool machines)
{
    static const char *const names[] = {"median", "p99", "p99.9"};
    const double value[] = {f->value, f->p99, f->p999};

    for (unsigned i = 0; i < 3; i++) {
        struct chart_series *s;
        char name[96];

        if (isnan(value[i]) || (logarithmic && !(value[i] > 0)))
            continue;
        snprintf(name, sizeof(name), "%s", names[i]);
        add_machine(set, f, machines, name);
        s = series(c, name);
        if (s) {
            if (!s->count)
                s->colour = c->count <= 3 ? (unsigned[]){0, 4, 1}[i] : (unsigned[]){2, 5, 6}[i];
            add_point(s, f->x, value[i]);
        }
    }
}

static void add_figure(struct chart_lines *c, const struct figures *set, const struct figure *f,
                       const struct chart_spec *spec, bool machines, unsigned nth[3])
{
    char name[96];
    struct chart_series *s;

    if (isnan(f->x) || (spec->x_logarithmic && !(f->x > 0)))
        return;
    if (spec->by == BY_QUANTILE) {
        add_quantiles(c, set, f, spec->y_logarithmic, machines);
        return;
    }
    if (spec->y_logarithmic && !(f->value > 0))
        return;
    series_name(set, f, spec->by, machines, name);
    s = series(c, name);
    if (!s)
        return;
    if (!s->count)
        s->colour = colour_of(f, nth);
    add_point(s, f->x, f->value);
}

static bool lines(struct chart_lines *c, const struct figures *set, const struct chart_spec *spec,
                  enum figure_kind kind)
{
    bool machines = several_machines(set, spec, kind), own = false;
    unsigned nth[3] = {0, 0, 0}, most = 0;

    memset(c, 0, sizeof(*c));
    c->title = spec->title;
    c->x.logarithmic = spec->x_logarithmic;
    c->y.logarithmic = spec->y_logarithmic;
    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];

        if (!matches(f, spec, kind) || isnan(f->x))
            continue;
        own |= f->kind == kind || strcmp(f->experiment, "breakdown") == 0;
        c->x.bytes = strcmp(f->x_unit, "bytes") == 0;
        c->x.label = c->x.bytes ? "size" : *f->x_unit == '%' ? "share, %" : f->x_unit;
        c->y.bytes = strcmp(f->unit, "bytes") == 0;
        c->y.label = c->y.bytes ? "" : f->unit;
        add_figure(c, set, f, spec, machines, nth);
    }
    for (unsigned i = 0; i < c->count; i++)
        most = c->series[i].count > most ? c->series[i].count : most;
    return own && most > 1;
}

/* ------------------------------------------------------------ bars */

static bool bars(struct chart_bars *c, const struct figures *set, const struct chart_spec *spec,
                 enum figure_kind kind)
{
    bool machines = several_machines(set, spec, kind), own = false;

    memset(c, 0, sizeof(*c));
    c->title = spec->title;
    c->logarithmic = spec->x_logarithmic;
    for (unsigned i = 0; i < set->count && c->count < CHART_BARS_MAX; i++) {
        const struct figure *f = &set->list[i];
        struct chart_bar *bar = &c->bar[c->count];
        char number[48];
        bool here = isnan(spec->at) ? isnan(f->x) || spec->by == BY_BOTH : f->x == spec->at;

        if (!matches(f, spec, kind) || !here || (c->logarithmic && !(f->value > 0)))
            continue;
        own |= f->kind == kind;
        series_name(set, f, spec->by == BY_QUANTILE ? BY_HOW : spec->by, machines, bar->name);
        bar->value = f->value;
        /* A bar stands by its name: the colour only says whose it is. */
        bar->colour = colour_of(f, (unsigned[3]){0});
        chart_number(f->value, strcmp(f->unit, "bytes") == 0, number);
        snprintf(bar->value_text, sizeof(bar->value_text), "%.30s%s", number,
                 strcmp(f->unit, "us") == 0             ? " us"
                 : strcmp(f->unit, "x the normal") == 0 ? "×"
                 : strcmp(f->unit, "%") == 0            ? "%"
                                                        : "");
        c->count++;
    }
    return own && c->count > 1;
}

/* ------------------------------------------------------------ cards */

/* FIGURE_KINDS: several kinds, which the bars tell. */
static void card_begin(FILE *out, const char *title, enum figure_kind kind)
{
    fputs("<div class=\"card\"><h3>", out);
    html_text(out, title);
    if (kind < FIGURE_KINDS) {
        fputc(' ', out);
        page_badge(out, kind);
    }
    fputs("</h3>\n", out);
}

/* Where it was, if that is one place. */
static void card_end(FILE *out, const struct figures *set, const struct chart_spec *spec,
                     enum figure_kind kind, const char *axis)
{
    const struct figure *any = NULL;

    for (unsigned i = 0; i < set->count && !any; i++)
        if (set->list[i].kind == kind && matches(&set->list[i], spec, kind))
            any = &set->list[i];
    fputs("<p>", out);
    html_text(out, axis);
    if (any && !several_machines(set, spec, kind)) {
        fputs(*axis ? " · " : "", out);
        html_text(out, set->origins[any->origin].machine);
    }
    fputs("</p></div>\n", out);
}

static void chart(FILE *out, const struct figures *set, const struct chart_spec *spec,
                  enum figure_kind kind)
{
    static struct chart_lines line_chart; /* large, and one is drawn at a time */
    static struct chart_bars bar_chart;

    if (spec->part == PART_LINES) {
        char axis[64];

        if (!lines(&line_chart, set, spec, kind))
            return;
        snprintf(axis, sizeof(axis), "%.20s%s", line_chart.y.label,
                 spec->y_logarithmic ? ", logarithmic" : "");
        card_begin(out, spec->title,
                   strcmp(spec->experiment, "breakdown") == 0 ? FIGURE_PUBLISHED : kind);
        svg_lines(out, &line_chart);
        card_end(out, set, spec, kind, *line_chart.y.label ? axis : "");
    } else if (bars(&bar_chart, set, spec, kind)) {
        card_begin(out, spec->title, kind);
        svg_bars(out, &bar_chart);
        card_end(out, set, spec, kind, spec->x_logarithmic ? "logarithmic" : "");
    }
}

/* ------------------------------------------------------------ charts of one section only */

enum { TRACES_MAX = 256 };

/* The distinct `what` of an experiment, in their order. */
static unsigned distinct(const struct figures *set, const char *experiment, const char **what,
                         unsigned most)
{
    unsigned count = 0;

    for (unsigned i = 0; i < set->count && count < most; i++) {
        const struct figure *f = &set->list[i];
        bool seen = strcmp(f->experiment, experiment) != 0 || f->kind == FIGURE_PUBLISHED;

        for (unsigned k = 0; k < count && !seen; k++)
            seen = strcmp(what[k], f->what) == 0;
        if (!seen)
            what[count++] = f->what;
    }
    return count;
}

static bool on_efficiency_chart(const struct figures *set, unsigned at, const char *trace)
{
    const struct figure *f = &set->list[at];

    if (strcmp(f->experiment, "efficiency") != 0 || strcmp(f->what, trace) != 0 ||
        strcmp(f->unit, "efficiency") != 0 || isnan(f->value))
        return false;
    for (unsigned i = 0; i < at; i++) /* the same, run twice */
        if (strcmp(set->list[i].how, f->how) == 0 && set->list[i].value == f->value &&
            on_efficiency_chart(set, i, trace))
            return false;
    return true;
}

static void efficiency_bar(struct chart_bar *bar, const struct figure *f)
{
    const char *way = strcmp(f->how, "moonbright") ? f->how : "MoonBright, software GPU";
    bool ours = figure_is_ours(f);

    snprintf(bar->name, sizeof(bar->name), "%s%.90s%s", ours && way == f->how ? "MoonBright" : "",
             ours && way == f->how ? way + strcspn(way, ",") : way,
             f->kind == FIGURE_MODELLED && !ours ? " «model»" : "");
    snprintf(bar->value_text, sizeof(bar->value_text), "%.1f%%", 100 * f->value);
    bar->value = 100 * f->value;
    bar->colour = ours ? 0 : strstr(f->how, "PyTorch") ? 1 : f->kind == FIGURE_MODELLED ? 6 : 2;
}

static void efficiency_charts(FILE *out, const struct figures *set)
{
    static struct chart_bars c; /* large, and one is drawn at a time */
    const char *traces[TRACES_MAX];
    unsigned count = distinct(set, "efficiency", traces, TRACES_MAX);
    bool folded = false;

    /* What was recorded before what was derived. */
    for (unsigned n = 0; n < 2 * count; n++) {
        unsigned t = n % count;

        if ((strstr(traces[t], ", derived") != NULL) != (n >= count))
            continue;
        if (n >= count && !folded) {
            fputs("<details style=\"grid-column:1/-1\"><summary>Derived, not recorded: training "
                  "set-ups</summary><div class=\"cards\">\n",
                  out);
            folded = true;
        }
        memset(&c, 0, sizeof(c));
        c.title = traces[t];
        for (unsigned i = 0; i < set->count && c.count < CHART_BARS_MAX; i++)
            if (on_efficiency_chart(set, i, traces[t]))
                efficiency_bar(&c.bar[c.count++], &set->list[i]);
        if (c.count < 2)
            continue;
        card_begin(out, traces[t], FIGURE_KINDS);
        svg_bars(out, &c);
        fputs("<p>peak allocated ÷ peak held; 100% is no waste. «model»: calculated from the "
              "rules of that allocator (doc/models.md).</p></div>\n",
              out);
    }
    if (folded)
        fputs("</div></details>\n", out);
}

static void budget_charts(FILE *out, const struct figures *set)
{
    static struct chart_bars c; /* large, and one is drawn at a time */
    const char *traces[TRACES_MAX];
    unsigned count = distinct(set, "budget", traces, TRACES_MAX);
    char number[48];

    for (unsigned t = 0; t < count; t++) {
        bool measured = false;

        memset(&c, 0, sizeof(c));
        c.title = traces[t];
        c.logarithmic = true;
        for (unsigned i = 0; i < set->count && c.count < CHART_BARS_MAX; i++) {
            const struct figure *f = &set->list[i];
            struct chart_bar *bar = &c.bar[c.count];

            if (strcmp(f->experiment, "budget") != 0 || strcmp(f->what, traces[t]) != 0 ||
                strcmp(f->unit, "bytes") != 0 || !(f->value > 0))
                continue;
            snprintf(bar->name, sizeof(bar->name), "%.70s, %.50s", f->how, f->metric);
            snprintf(bar->value_text, sizeof(bar->value_text), "%s",
                     chart_number(f->value, true, number));
            bar->value = f->value;
            measured |= f->kind == FIGURE_MEASURED;
            bar->colour = f->kind == FIGURE_CALCULATED ? 6 : strstr(f->how, "fresh") ? 0 : 2;
            c.count++;
        }
        if (c.count < 2)
            continue;
        card_begin(out, traces[t], measured ? FIGURE_MEASURED : FIGURE_MODELLED);
        svg_bars(out, &c);
        fputs("<p>logarithmic · grey: calculated bounds</p></div>\n", out);
    }
}

/* Slots that one walk caches, by the answer of the litmus program. */
static void window_charts(FILE *out, const struct figures *set)
{
    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];
        unsigned last;

        if (strcmp(f->experiment, "litmus") != 0 ||
            sscanf(f->note, "stale to distance %u", &last) != 1 || last > 30)
            continue;
        card_begin(out, "Entries that one walk keeps", f->kind);
        fprintf(out,
                "<svg class=\"chart\" viewBox=\"0 0 400 86\" width=\"400\" height=\"86\" "
                "role=\"img\" aria-labelledby=\"w%u\"><title id=\"w%u\">After a change without "
                "an invalidate, neighbours up to distance %u show the old frame</title>\n",
                i, i, last);
        for (unsigned d = 0; d < 32; d++)
            fprintf(out,
                    "<rect class=\"s%u\" x=\"%.1f\" y=\"22\" width=\"10.5\" height=\"30\" "
                    "rx=\"2\"/>",
                    d <= last ? 1u : 2u, d * 12.4);
        fprintf(out,
                "<text x=\"0\" y=\"14\">old to distance %u</text>"
                "<text x=\"400\" y=\"14\" text-anchor=\"end\">new from %u on</text>"
                "<text class=\"tick\" x=\"0\" y=\"72\">0</text>"
                "<text class=\"tick\" x=\"%.1f\" y=\"72\">%u slots = %u MiB</text></svg>\n",
                last, last + 1, (last + 1) * 12.4, last + 1, 2 * (last + 1));
        fprintf(out, "<p>Distance in slots of 2 MiB from the entry that was walked · ");
        html_text(out, f->how);
        fputs(" · ", out);
        html_text(out, set->origins[f->origin].machine);
        fputs("</p></div>\n", out);
    }
}

/* ------------------------------------------------------------ sections */

static bool shows(const struct section_spec *s, const char *experiment)
{
    for (unsigned i = 0; i < SECTION_EXPERIMENTS && s->experiments[i]; i++)
        if (strcmp(s->experiments[i], experiment) == 0)
            return true;
    return false;
}

/* Bits of the kinds of which the section has a number. */
static unsigned kinds_of(const struct figures *set, const struct section_spec *s)
{
    unsigned kinds = 0;

    for (unsigned i = 0; i < set->count; i++)
        if (shows(s, set->list[i].experiment) &&
            (!isnan(set->list[i].value) || !strcmp(s->id, "tlb")))
            kinds |= 1u << set->list[i].kind;
    return kinds;
}

static void numbers(FILE *out, const struct figures *set, const struct section_spec *s)
{
    fputs("<details><summary>Numbers</summary>\n", out);
    for (unsigned i = 0; i < SECTION_EXPERIMENTS && s->experiments[i]; i++)
        report_numbers(out, set, s->experiments[i]);
    fputs("</details>\n", out);
}

void report_section(FILE *out, const struct figures *set, const struct section_spec *s)
{
    static const enum figure_kind order[] = {FIGURE_MEASURED, FIGURE_MODELLED};
    unsigned kinds = kinds_of(set, s);

    fprintf(out, "<section id=\"%s\"><h2>", s->id);
    html_text(out, s->title);
    fputs("</h2>\n<p class=\"lead\">", out);
    html_text(out, s->lead);
    fputs("</p>\n", out);
    if (!(kinds & 1u << FIGURE_MEASURED) && !(kinds & 1u << FIGURE_MODELLED))
        fputs("<p>MoonBright has no result of this here yet; what is published stands below.</p>\n",
              out);
    fputs("<div class=\"cards\">\n", out);
    for (unsigned k = 0; k < 2; k++)
        for (unsigned i = 0; i < s->chart_count; i++)
            chart(out, set, &s->charts[i], order[k]);
    if (shows(s, "efficiency"))
        efficiency_charts(out, set);
    if (shows(s, "budget"))
        budget_charts(out, set);
    if (shows(s, "litmus"))
        window_charts(out, set);
    fputs("</div>\n", out);
    if (kinds)
        numbers(out, set, s);
    fputs("</section>\n", out);
}

void report_others(FILE *out, const struct figures *set)
{
    bool begun = false;

    for (unsigned i = 0; i < set->count; i++) {
        const char *experiment = set->list[i].experiment;
        bool shown = false;

        for (unsigned s = 0; s < report_section_count && !shown; s++)
            shown = shows(&report_sections[s], experiment);
        for (unsigned k = 0; k < i && !shown; k++)
            shown = strcmp(set->list[k].experiment, experiment) == 0;
        if (shown)
            continue;
        if (!begun)
            fputs("<section id=\"others\"><h2>Further results</h2>\n", out);
        begun = true;
        fputs("<details><summary>", out);
        html_text(out, experiment);
        fputs("</summary>\n", out);
        report_numbers(out, set, experiment);
        fputs("</details>\n", out);
    }
    if (begun)
        fputs("</section>\n", out);
}
