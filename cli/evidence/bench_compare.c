/* SPDX-License-Identifier: MIT */
/* bench_compare.c - `moonbright bench compare OLD NEW`: ratios, noise, regressions. */
#include "compare.h"
#include "evidence.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json.h"

struct comparison {
    struct figures sets[2];
    struct compare_options options;
    bool as_json, all, allow_missing, modelled_only, other_machines;
    unsigned counts[COMPARE_VERDICTS];
    struct json_writer json;
};

static void json_number_or_none(struct json_writer *w, const char *key, const struct figure *f)
{
    json_double(w, key, f ? f->value : NAN);
}

static void tell_json(struct comparison *c, const struct compare_row *row)
{
    const struct figure *f = row->old_figure ? row->old_figure : row->new_figure;
    struct json_writer *w = &c->json;

    json_object(w, NULL);
    json_text(w, "experiment", f->experiment);
    json_text(w, "what", f->what);
    json_text(w, "how", f->how);
    json_text(w, "metric", f->metric);
    json_text(w, "unit", f->unit);
    json_double(w, "x", f->x);
    json_number_or_none(w, "old", row->old_figure);
    json_number_or_none(w, "new", row->new_figure);
    json_double(w, "ratio", row->ratio);
    json_double(w, "bound", row->bound);
    json_text(w, "verdict", compare_verdict_name(row->verdict));
    json_end_object(w);
}

static void print_value(const struct figure *f)
{
    if (f && !isnan(f->value))
        printf("%12.5g", f->value);
    else
        printf("%12s", "-");
}

static void tell_text(const struct compare_row *row)
{
    const struct figure *f = row->old_figure ? row->old_figure : row->new_figure;
    char at[CLI_NUMBER_MAX] = "";

    if (strcmp(f->x_unit, "bytes") == 0 && f->x >= 0 && f->x < 1.8e19)
        cli_format_bytes((uint64_t)f->x, at);
    else if (!isnan(f->x))
        snprintf(at, sizeof(at), "%g %.10s", f->x, f->x_unit);
    printf("%-13s%s: %s, %s%s%s, %s\n%13s", compare_verdict_name(row->verdict), f->experiment,
           f->what, f->how, *at ? ", " : "", at, f->metric, "");
    print_value(row->old_figure);
    print_value(row->new_figure);
    if (isnan(row->ratio))
        printf("%10s%12s", "-", "");
    else
        printf("%10.3f   ± %5.1f%%", row->ratio, 100 * row->bound);
    if (row->verdict == COMPARE_UNITS && row->old_figure && row->new_figure)
        printf("  %s, %s\n", row->old_figure->unit, row->new_figure->unit);
    else
        printf("  %s\n", f->unit);
}

static void tell(struct comparison *c, const struct compare_row *row)
{
    c->counts[row->verdict]++;
    if (c->as_json)
        tell_json(c, row);
    else if (c->all || row->verdict != COMPARE_SAME)
        tell_text(row);
}

/* Published figures are nobody's result. */
static bool counts(const struct comparison *c, const struct figure *f)
{
    return f->kind != FIGURE_PUBLISHED && (!c->modelled_only || f->kind == FIGURE_MODELLED);
}

static void compare_all(struct comparison *c)
{
    for (unsigned i = 0; i < c->sets[0].count; i++) {
        const struct figure *f = &c->sets[0].list[i];
        struct compare_row row;

        if (!counts(c, f))
            continue;
        row = compare_figures(f, compare_find(&c->sets[1], &c->sets[0], i, c->other_machines),
                              &c->options);
        tell(c, &row);
    }
    for (unsigned i = 0; i < c->sets[1].count; i++) {
        const struct figure *f = &c->sets[1].list[i];
        struct compare_row row;

        if (!counts(c, f) || compare_find(&c->sets[0], &c->sets[1], i, c->other_machines))
            continue;
        row = compare_figures(NULL, f, &c->options);
        tell(c, &row);
    }
}

static bool failed(const struct comparison *c)
{
    return c->counts[COMPARE_WORSE] || c->counts[COMPARE_UNITS] ||
           (c->counts[COMPARE_MISSING] && !c->allow_missing);
}

static int finish(struct comparison *c)
{
    unsigned total = 0;

    for (unsigned v = 0; v < COMPARE_VERDICTS; v++)
        total += c->counts[v];
    if (c->as_json) {
        json_end_array(&c->json);
        for (unsigned v = 0; v < COMPARE_VERDICTS; v++)
            json_u64(&c->json, compare_verdict_name((enum compare_verdict)v), c->counts[v]);
        json_bool(&c->json, "ok", !failed(c));
        json_end_object(&c->json);
        json_finish(&c->json);
    } else {
        printf("%u figures: %u same, %u worse, %u better, %u changed, %u missing, %u new, %u with "
               "other units\n",
               total, c->counts[COMPARE_SAME], c->counts[COMPARE_WORSE], c->counts[COMPARE_BETTER],
               c->counts[COMPARE_CHANGED], c->counts[COMPARE_MISSING], c->counts[COMPARE_NEW],
               c->counts[COMPARE_UNITS]);
    }
    return failed(c) ? CLI_FAILED : CLI_OK;
}

static int load_both(struct comparison *c, char **paths)
{
    char error[256], why[512];

    for (unsigned side = 0; side < 2; side++)
        if (figures_load(&c->sets[side], paths[side], paths[side], error))
            return cli_fail(CLI_BAD_INPUT, "bench compare", "%s", error);
    if (!c->other_machines && compare_refusal(&c->sets[0], &c->sets[1], why))
        return cli_fail(CLI_BAD_INPUT, "bench compare",
                        "%s; times of different machines say nothing about a change. Give results "
                        "of one machine, or --other-machines to see the ratios anyway",
                        why);
    return CLI_OK;
}

static int percent(const char *name, const char *text, double *out)
{
    char *end;
    double value;

    if (!text)
        return CLI_OK;
    value = strtod(text, &end);
    if (end == text || *end || !(value >= 0) || value > 1000)
        return cli_fail(CLI_BAD_INPUT, "bench compare",
                        "%s is \"%.32s\"; expected percent, 0 to 1000", name, text);
    *out = value / 100;
    return CLI_OK;
}

static int run(int argc, char **argv)
{
    static struct comparison c; /* large, and a process makes one */
    const char *floor = NULL, *single = NULL, *model = NULL;
    bool done = false;
    const struct cli_option table[] = {{"--json", CLI_FLAG, &c.as_json},
                                       {"--all", CLI_FLAG, &c.all},
                                       {"--allow-missing", CLI_FLAG, &c.allow_missing},
                                       {"--modelled", CLI_FLAG, &c.modelled_only},
                                       {"--other-machines", CLI_FLAG, &c.other_machines},
                                       {"--floor", CLI_TEXT, &floor},
                                       {"--single", CLI_TEXT, &single},
                                       {"--model", CLI_TEXT, &model},
                                       {NULL, CLI_FLAG, NULL}};
    int count = 0, code;

    c = (struct comparison){.options = {.floor = 0.10, .single = 0.5, .model = 0.005}};
    code = cli_parse(&cli_bench_compare, table, argc, argv, &count, &done);
    if (code || done)
        return code;
    if (count != 2)
        return cli_fail(CLI_BAD_INPUT, "bench compare", "%d files were given; expected OLD and NEW",
                        count);
    code = percent("--floor", floor, &c.options.floor);
    if (!code)
        code = percent("--single", single, &c.options.single);
    if (!code)
        code = percent("--model", model, &c.options.model);
    if (!code)
        code = load_both(&c, argv + 1);
    if (!code) {
        if (c.as_json) {
            c.json = (struct json_writer){.out = stdout};
            json_object(&c.json, NULL);
            json_array(&c.json, "rows");
        }
        compare_all(&c);
        code = finish(&c);
    }
    figures_free(&c.sets[0]);
    figures_free(&c.sets[1]);
    return code;
}

const struct cli_command cli_bench_compare = {
    .name = "bench compare",
    .summary = "two results of one machine: ratios, noise, regressions",
    .help = "usage: moonbright bench compare OLD NEW [OPTION...]\n\n"
            "OLD and NEW are results of any bench (--json), or of `bench all`.\n\n"
            "  --floor PERCENT    differences up to this are never a finding (default 10)\n"
            "  --single PERCENT   the same where there is one sample or no spread (default 50)\n"
            "  --model PERCENT    the same where both are modelled (default 0.5)\n"
            "  --modelled         only figures of models, which have no noise\n"
            "  --all              also show what is the same\n"
            "  --allow-missing    figures that NEW lacks are no failure\n"
            "  --other-machines   compare although the machines or drivers differ\n"
            "  --json             one JSON object\n\n"
            "Exit status: 0 nothing is worse outside noise; 1 something is, is missing, or has "
            "another\nunit; 2 the files cannot be read or are of different machines.\n",
    .run = run,
};
