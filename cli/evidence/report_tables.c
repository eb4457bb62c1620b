/* SPDX-License-Identifier: MIT */
/* report_tables.c - the numbers below the charts: sizes down, ways across, or one line each. */
#include "page.h"
#include "report_parts.h"

#include <math.h>
#include <string.h>

enum { COLUMNS_MAX = 12, ROWS_MAX = 128, PIVOT_POINTS_MIN = 2 };

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* `bench scale` says first how several devices were driven. */
static const char *bare_way(const struct figure *f)
{
    static const char *const first[] = {"threads: ", "processes: ", "sharing one device: "};

    for (size_t i = 0; i < sizeof(first) / sizeof(first[0]); i++)
        if (begins(f->how, first[i]))
            return f->how + strlen(first[i]);
    return f->how;
}

bool figure_is_stock(const struct figure *f)
{
    const char *how = bare_way(f);

    return begins(how, "CUDA VMM") || begins(how, "cuMem") || begins(how, "PyTorch") ||
           begins(how, "cuda") || begins(how, "one handle") || begins(how, "2 MB handles");
}

bool figure_is_ours(const struct figure *f)
{
    static const char *const names[] = {"device-", "driver",     "simulated", "api,",
                                        "mb_",     "MoonBright", "moonbright"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (begins(bare_way(f), names[i]))
            return true;
    return false;
}

const char *figure_way(const struct figure *f)
{
    static const char *const names[][2] = {
        {"device-inline", "MoonBright, inline tables"},
        {"device-isolated", "MoonBright, isolated tables"},
        {"driver", "MoonBright on driver tables"},
        {"simulated", "MoonBright, software GPU"},
        {"processes: simulated", "MoonBright, software GPU, in processes"},
        {"threads: simulated", "MoonBright, software GPU, in threads"},
        {"api, one range", "MoonBright’s interface, one range"},
        {"api, page by page", "MoonBright’s interface, page by page"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(f->how, names[i][0]) == 0)
            return names[i][1];
    return f->how;
}

/* ------------------------------------------------------------ sizes down, ways across */

struct pivot {
    const struct figure *figure[ROWS_MAX][COLUMNS_MAX];
    double x[ROWS_MAX];
    const char *how[COLUMNS_MAX];
    unsigned origin[COLUMNS_MAX];
    unsigned rows, columns;
    const struct figure *first; /* its names are the table's */
};

static unsigned column_of(struct pivot *p, const struct figure *f)
{
    unsigned i;

    for (i = 0; i < p->columns; i++)
        if (strcmp(p->how[i], f->how) == 0 && p->origin[i] == f->origin)
            return i;
    if (i == COLUMNS_MAX)
        return i;
    p->how[i] = f->how;
    p->origin[i] = f->origin;
    p->columns++;
    return i;
}

static unsigned row_of(struct pivot *p, double x)
{
    unsigned at = 0;

    while (at < p->rows && p->x[at] < x)
        at++;
    if (at < p->rows && p->x[at] == x)
        return at;
    if (p->rows == ROWS_MAX)
        return ROWS_MAX;
    memmove(&p->x[at + 1], &p->x[at], (p->rows - at) * sizeof(p->x[0]));
    memmove(&p->figure[at + 1], &p->figure[at], (p->rows - at) * sizeof(p->figure[0]));
    memset(&p->figure[at], 0, sizeof(p->figure[0]));
    p->x[at] = x;
    p->rows++;
    return at;
}

static bool belongs(const struct figure *f, const struct figure *to)
{
    return strcmp(f->experiment, to->experiment) == 0 && strcmp(f->what, to->what) == 0 &&
           strcmp(f->metric, to->metric) == 0 && f->kind == to->kind && !isnan(f->x) &&
           strcmp(f->x_unit, to->x_unit) == 0;
}

static void number_cell(FILE *out, const struct figure *f)
{
    char text[48];

    if (!f || isnan(f->value)) {
        fputs("<td>–</td>", out);
        return;
    }
    fputs(figure_is_ours(f) ? "<td class=\"best\">" : "<td>", out);
    html_text(out, chart_number(f->value, strcmp(f->unit, "bytes") == 0, text));
    if (!isnan(f->p99) && f->p99 != f->value) {
        fputs("<br><small>p99 ", out);
        html_text(out, chart_number(f->p99, false, text));
        if (!isnan(f->p999)) {
            fputs(", p99.9 ", out);
            html_text(out, chart_number(f->p999, false, text));
        }
        fputs("</small>", out);
    }
    fputs("</td>", out);
}

/* The first stock way over the best of ours. */
static void ratio_cell(FILE *out, const struct figure *const *row, unsigned columns)
{
    const struct figure *stock = NULL, *ours = NULL;
    char text[48];

    for (unsigned i = 0; i < columns; i++) {
        const struct figure *f = row[i];

        if (!f || !(f->value > 0))
            continue;
        if (figure_is_stock(f) && !stock)
            stock = f;
        if (figure_is_ours(f) && (!ours || f->value < ours->value))
            ours = f;
    }
    fputs("<td>", out);
    if (stock && ours) {
        html_text(out, chart_number(stock->value / ours->value, false, text));
        fputs("×", out);
    }
    fputs("</td>", out);
}

static bool has_both(const struct pivot *p)
{
    bool ours = false, stock = false;

    for (unsigned i = 0; i < p->columns; i++) {
        const struct figure named = {.how = p->how[i]};

        ours |= figure_is_ours(&named);
        stock |= figure_is_stock(&named);
    }
    return ours && stock && strcmp(p->first->unit, "us") == 0;
}

static void x_cell(FILE *out, const struct figure *f, double x)
{
    char text[48];
    bool bytes = strcmp(f->x_unit, "bytes") == 0;

    fputs("<tr><td>", out);
    html_text(out, chart_number(x, bytes, text));
    if (!bytes) {
        fputc(' ', out);
        html_text(out, f->x_unit);
    }
    fputs("</td>", out);
}

static void write_pivot(FILE *out, const struct figures *set, const struct pivot *p)
{
    bool both = has_both(p);

    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Numbers\"><table>"
          "<caption>",
          out);
    html_text(out, p->first->what);
    fputs(", ", out);
    html_text(out, p->first->metric);
    if (*p->first->unit) {
        fputs(", ", out);
        html_text(out, strcmp(p->first->unit, "bytes") ? p->first->unit : "memory");
    }
    fputc(' ', out);
    page_badge(out, p->first->kind);
    fputs("</caption><thead><tr><th></th>", out);
    for (unsigned i = 0; i < p->columns; i++) {
        fputs("<th class=\"w\">", out);
        html_text(out, figure_way(&(struct figure){.how = p->how[i]}));
        fputs("<br><small>", out);
        html_text(out, set->origins[p->origin[i]].machine);
        fputs("</small></th>", out);
    }
    fputs(both ? "<th>stock ÷<br>MoonBright</th>" : "", out);
    fputs("</tr></thead><tbody>\n", out);
    for (unsigned r = 0; r < p->rows; r++) {
        x_cell(out, p->first, p->x[r]);
        for (unsigned i = 0; i < p->columns; i++)
            number_cell(out, p->figure[r][i]);
        if (both)
            ratio_cell(out, p->figure[r], p->columns);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void pivot(FILE *out, const struct figures *set, unsigned first)
{
    static struct pivot p; /* large, and one is written at a time */

    memset(&p, 0, sizeof(p));
    p.first = &set->list[first];
    for (unsigned i = first; i < set->count; i++) {
        const struct figure *f = &set->list[i];
        unsigned column, row;

        if (!belongs(f, p.first))
            continue;
        column = column_of(&p, f);
        row = column < COLUMNS_MAX ? row_of(&p, f->x) : ROWS_MAX;
        if (row < ROWS_MAX)
            p.figure[row][column] = f;
    }
    write_pivot(out, set, &p);
}

/* ------------------------------------------------------------ one line each */

static void plain_row(FILE *out, const struct figures *set, const struct figure *f)
{

    fputs("<tr><td class=\"w\">", out);
    html_text(out, f->what);
    fputs("</td><td class=\"t w\">", out);
    html_text(out, figure_way(f));
    fputs("</td><td class=\"t\">", out);
    html_text(out, f->metric);
    fputs("</td>", out);
    if (strcmp(f->unit, "efficiency") == 0) {
        fprintf(out, isnan(f->value) ? "<td>–" : "<td>%.1f%%", 100 * f->value);
        fputs("</td>", out);
    } else {
        number_cell(out, f);
    }
    fputs("<td class=\"t\">", out);
    html_text(out,
              strcmp(f->unit, "bytes") != 0 && strcmp(f->unit, "efficiency") != 0 ? f->unit : "");
    fputs("</td><td class=\"t w\">", out);
    page_badge(out, f->kind);
    fputc(' ', out);
    html_text(out, set->origins[f->origin].machine);
    if (*f->note) {
        fputs("<br><small>", out);
        html_text(out, f->note);
        fputs("</small>", out);
    }
    fputs("</td></tr>\n", out);
}

static void plain(FILE *out, const struct figures *set, const char *experiment)
{
    bool begun = false;

    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];

        if (strcmp(f->experiment, experiment) != 0 || !isnan(f->x))
            continue;
        if (!begun)
            fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Numbers\">"
                  "<table><thead><tr><th>what</th><th class=\"t\">how</th><th class=\"t\">metric"
                  "</th><th>value</th><th class=\"t\">unit</th><th class=\"t\">origin</th></tr>"
                  "</thead><tbody>\n",
                  out);
        begun = true;
        plain_row(out, set, f);
    }
    if (begun)
        fputs("</tbody></table></div>\n", out);
}

void report_numbers(FILE *out, const struct figures *set, const char *experiment)
{
    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i];
        bool seen = false;

        if (strcmp(f->experiment, experiment) != 0 || isnan(f->x))
            continue;
        for (unsigned k = 0; k < i && !seen; k++)
            seen = belongs(&set->list[k], f);
        if (!seen)
            pivot(out, set, i);
    }
    plain(out, set, experiment);
}
