/* SPDX-License-Identifier: MIT */
/* report_sides.c - the table on top of the page. */
#include <math.h>
#include <string.h>

#include "page.h"
#include "report_parts.h"
#include "sides.h"

/* Microseconds go without their unit, which the caption names. */
static void value_text(FILE *out, const struct figure *f)
{
    char text[48];
    bool bytes = strcmp(f->unit, "bytes") == 0;

    if (strcmp(f->unit, "efficiency") == 0) {
        fprintf(out, "%.1f%%", 100 * f->value);
        return;
    }
    html_text(out, chart_number(f->value, bytes, text));
    if (strcmp(f->unit, "x faster") == 0)
        fputs("×", out);
    else if (strcmp(f->unit, "%") == 0)
        fputs("%", out);
    else if (!bytes && *f->unit && strcmp(f->unit, "us") != 0)
        fprintf(out, " %s", f->unit);
}

static void cell(FILE *out, const struct figure *f, const char *class)
{
    fprintf(out, "<td%s>", class);
    if (f)
        value_text(out, f);
    else
        fputs("–", out);
    fputs("</td>", out);
}

static void row(FILE *out, const struct figures *set, const struct side *s)
{
    char text[48];

    fputs("<tr><td>", out);
    html_text(out, s->what);
    if (s->ours) {
        fputs("<br>", out);
        page_badge(out, s->ours->kind);
    }
    fputs("</td>", out);
    if (s->ours)
        cell(out, s->ours, " class=\"best\"");
    else
        fputs("<td>not run</td>", out);
    cell(out, s->stock[0], "");
    fputs("<td>", out);
    html_text(out, isnan(s->ratio) ? "–" : chart_number(s->ratio, false, text));
    fputs(isnan(s->ratio) ? "</td>" : "×</td>", out);
    cell(out, s->stock[1], "");
    cell(out, s->published, "");
    cell(out, s->published_stock, "");
    fputs("<td class=\"t w\">", out);
    html_text(out, s->ours ? set->origins[s->ours->origin].machine : "");
    fputs("</td><td class=\"t w\">", out);
    html_text(out, s->ours ? figure_way(s->ours) : "");
    if (s->ours && *s->ours->note && strcmp(s->ours->unit, "x faster") == 0) {
        fputs("<br><small>", out);
        html_text(out, s->ours->note);
        fputs("</small>", out);
    }
    fputs("</td></tr>\n", out);
}

void sides_html(FILE *out, const struct figures *set)
{
    static struct side sides[SIDES_MAX]; /* large, and a process writes one */
    unsigned count = sides_of(set, sides);

    fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Side by side\">"
          "<table><caption>Side by side; microseconds where no unit is named</caption><thead><tr>"
          "<th>what</th><th>Moon&shy;Bright</th><th>stock*</th><th>ratio</th><th>stock,<br>other "
          "way†</th><th>published<br>(A100)</th><th>stock as<br>published</th>"
          "<th class=\"t\">machine</th><th class=\"t\">way</th></tr></thead><tbody>\n",
          out);
    for (unsigned i = 0; i < count; i++)
        row(out, set, &sides[i]);
    fputs("</tbody></table></div>\n<p class=\"meta\">* Mappings: a handle for every 2 MB. "
          "Allocations: cuMemAlloc; for the pair, the driver’s warm pool. Programs: the driver’s "
          "allocation calls. Memory held: PyTorch’s default, as recorded. † One handle for all; "
          "the driver’s warm pool; expandable segments. "
          "A ratio compares figures of one machine, one kind and one file, and is how many times "
          "better MoonBright is; memory held does not depend on the machine. Published figures are "
          "of another machine and only stand beside. «not run»: no result is here.</p>\n",
          out);
}
