/* SPDX-License-Identifier: MIT */
/*
 * report_page.c - the page of `bench all`: experiment by experiment, charts and the tables below
 * them. What is shown follows from the figures that are there; what is missing is said.
 */
#include "page.h"
#include "report_parts.h"
#include "sides.h"

#include <math.h>
#include <string.h>

#define GIB 1073741824.0
#define MIB 1048576.0

/* Every section's charts; a chart is drawn for measured and for modelled figures apart. */
static const struct chart_spec map_charts[] = {
    {PART_LINES, "map", "map", "complete", BY_HOW, "Map, until complete", true, true, NAN},
    {PART_LINES, "map", "map", "host", BY_HOW, "Map, host blocked", true, true, NAN},
    {PART_BARS, "map", "map", "complete", BY_HOW, "Map 2 GiB, until complete", true, true, 2 * GIB},
    {PART_LINES, "map", "map+invalidate", "complete", BY_HOW,
     "Map over entries in use, with its invalidate", true, true, NAN},
    {PART_LINES, "unmap", "unmap", "complete", BY_HOW, "Unmap, until complete", true, true, NAN},
    {PART_LINES, "remap", "remap", "complete", BY_HOW, "Remap of addresses in use", true, true,
     NAN},
    {PART_LINES, "alias", "alias", "complete", BY_HOW, "Alias: a second address", true, true, NAN},
    {PART_LINES, "protect", "protect", "complete", BY_HOW, "Permission change", true, true, NAN},
};
static const struct chart_spec alloc_charts[] = {
    {PART_LINES, "alloc", "alloc", "host", BY_HOW, "Allocate, host blocked", true, true, NAN},
    {PART_LINES, "alloc", "free", "host", BY_HOW, "Free, host blocked", true, true, NAN},
    {PART_BARS, "hot", "pair", "host", BY_HOW, "Allocate and free 1 MiB again and again, a pair",
     true, true, MIB},
};
static const struct chart_spec breakdown_charts[] = {
    {PART_LINES, "driver", NULL, "host", BY_WHAT, "The driver, call by call", true, true, NAN},
    {PART_LINES, "steps", NULL, "complete", BY_WHAT,
     "MoonBright, step by step; a flush is a difference of medians", true, true, NAN},
    {PART_LINES, "breakdown", NULL, "host", BY_WHAT, "Share of page tables as published", true,
     true, NAN},
};
static const struct chart_spec call_charts[] = {
    {PART_BARS, "calls", NULL, "host", BY_WHAT, "Median of every call at 2 MiB", true, true,
     2 * MIB},
    {PART_LINES, "calls", "mb_malloc_async", "host", BY_QUANTILE, "mb_malloc_async", true, true,
     NAN},
    {PART_LINES, "calls", "mb_free_async", "host", BY_QUANTILE, "mb_free_async", true, true, NAN},
    {PART_LINES, "calls", "map", "host", BY_QUANTILE, "map, host blocked", true, true, NAN},
    {PART_LINES, "calls", "mb_mem_create", "complete", BY_QUANTILE, "mb_mem_create", true, true,
     NAN},
    {PART_LINES, "host", "map", "host", BY_HOW, "map, the host's own work", true, true, NAN},
};
static const struct chart_spec degrade_charts[] = {
    {PART_LINES, "degrade", "unmap", "complete", BY_HOW, "Share of unmaps", false, false, NAN},
    {PART_LINES, "degrade", "permission change", "complete", BY_HOW, "Share of permission changes",
     false, false, NAN},
    {PART_LINES, "degrade", "same-address remap", "complete", BY_HOW,
     "Share of remaps at the same address", false, false, NAN},
    {PART_LINES, "degrade", "epoch wrap", "complete", BY_HOW, "Size of the ring of addresses", true,
     false, NAN},
};
static const struct chart_spec wrap_charts[] = {
    {PART_LINES, "wrap", "quarantine", "now", BY_HOW,
     "Addresses that wait for a flush, over addresses handed out, in one round", false, false, NAN},
    {PART_BARS, "wrap", "map and unmap 2 GiB", NULL, BY_BOTH, "With and without an epoch's end",
     true, false, NAN},
};
static const struct chart_spec suite_charts[] = {
    {PART_BARS, "suite", "all programs run", "in allocation calls", BY_HOW,
     "Time in allocation calls, all programs together", true, true, NAN},
};
static const struct chart_spec full_charts[] = {
    {PART_LINES, "full", "malloc_async", "host", BY_QUANTILE, "malloc_async", false, true, NAN},
    {PART_LINES, "full", "free_async", "host", BY_QUANTILE, "free_async", false, true, NAN},
    {PART_LINES, "full", "stitches", "share", BY_HOW, "Requests that were stitched", false, false,
     NAN},
};
static const struct chart_spec churn_charts[] = {
    {PART_LINES, "churn", "malloc_async", "host", BY_QUANTILE, "malloc_async, hour by hour", false,
     true, NAN},
    {PART_LINES, "churn", "held from the driver", NULL, BY_WHAT, "Held from the driver", false,
     false, NAN},
    {PART_LINES, "churn", "live", NULL, BY_WHAT, "Most bytes alive in the hour", false, false, NAN},
    {PART_LINES, "churn", "page-table memory", NULL, BY_WHAT, "Page-table memory", false, false,
     NAN},
};
static const struct chart_spec safety_charts[] = {
    {PART_BARS, "safety", "free_async + malloc_async", "median over default", BY_HOW,
     "free_async and malloc_async, times the default", false, false, NAN},
    {PART_BARS, "safety", "map + unmap 64 MiB", "median over default", BY_HOW,
     "Map and unmap 64 MiB, times the default", false, false, NAN},
};
static const struct chart_spec beside_charts[] = {
    {PART_BARS, "beside", "slowdown", "value", BY_HOW, "Random reads, time over time alone", false,
     false, NAN},
    {PART_BARS, "beside", "beside map", "host", BY_HOW,
     "Map 64 MiB beside a kernel of 60 ms, host blocked", true, true, 64 * MIB},
    {PART_LINES, "latency", "short kernel", "complete", BY_QUANTILE,
     "A short kernel after batches on another stream", false, false, NAN},
    {PART_BARS, "latency", "short kernel", "complete", BY_HOW, "A short kernel beside mapping",
     true, true, NAN},
};
static const struct chart_spec cliff_charts[] = {
    {PART_LINES, "cliff", NULL, "host", BY_HOW, "Frames from the driver", true, true, NAN},
    {PART_LINES, "calls", "mb_mem_create", "host", BY_HOW,
     "mb_mem_create, from frames held already", true, true, NAN},
};
static const struct chart_spec scale_charts[] = {
    {PART_LINES, "scale", "map 2 GB", "complete", BY_HOW, "Map 2 GB on several devices at once",
     false, true, NAN},
};

static const struct chart_spec kv_charts[] = {
    {PART_LINES, "kv", "TTFT, llama-3-8b, 90% shared", "prefix", BY_HOW,
     "Time to the first token, 90% of the prompt shared", true, true, NAN},
    {PART_LINES, "kv", "TTFT, llama-3-8b, 99% shared", "prefix", BY_HOW,
     "Time to the first token, 99% shared", true, true, NAN},
    {PART_LINES, "kv", "TTFT, llama-3-8b, 0% shared", "long", BY_HOW,
     "Time to the first token, nothing shared", true, true, NAN},
    {PART_LINES, "kv", "beam search, llama-3-8b, width 4", "tokens a second", BY_HOW,
     "Beam search, width 4", true, true, NAN},
};

const struct section_spec report_sections[] = {
    {"map",
     "Mapping",
     "The time from the call until the stream has passed it, and how long the "
     "calling thread is blocked. Both stock ways stand beside MoonBright: a "
     "handle for every 2 MB, which can be placed piece by piece, and one handle "
     "for all, which cannot.",
     map_charts,
     SPECS(map_charts),
     {"map", "unmap", "remap", "alias", "protect", NULL}},
    {"alloc",
     "Allocation",
     "Blocks from 512 bytes on; cuMemAlloc and the driver's own pool beside "
     "them.",
     alloc_charts,
     SPECS(alloc_charts),
     {"alloc", "hot", "replay calls", NULL}},
    {"breakdown",
     "Where an allocation’s time goes",
     "Bookkeeping (addresses), physical (frames), page tables, and the flush that an unmap needs. "
     "Published for the A100: 47 of 59 us, 422 of 437 us and 949 of 966 us are page tables.",
     breakdown_charts,
     SPECS(breakdown_charts),
     {"breakdown", "driver", "steps", NULL}},
    {"efficiency",
     "Memory held for real programs",
     "Peak of what the program had allocated over the peak of what the allocator held from the "
     "driver, for recorded PyTorch runs. What is marked «derived» was calculated from a model's "
     "shapes, not recorded.",
     NULL,
     0,
     {"efficiency", "efficiency, streams", "efficiency, limited", "train", "torch", NULL}},
    {"budget",
     "Addresses: the bound and what was used",
     "How much address space an allocator that never moves blocks may need for its peak (Robson’s "
     "bound, pages of 2 MB), with 32 MB between stitched ranges sixteen times that, and what each "
     "trace was really given, added up over its whole run.",
     NULL,
     0,
     {"budget", NULL}},
    {"wrap",
     "Epoch wrap",
     "Always-fresh addresses from a ring of 256 GB, gone through several times: what waits for a "
     "flush, what the flushes cost, and how much page-table memory the addresses need.",
     wrap_charts,
     SPECS(wrap_charts),
     {"wrap", NULL}},
    {"degrade",
     "Where fresh addresses stop helping",
     "Mean cost of an operation when a share of them must change entries in use.",
     degrade_charts,
     SPECS(degrade_charts),
     {"degrade", NULL}},
    {"calls",
     "Every call",
     "Median, 99th and 99.9th percentile of each public call.",
     call_charts,
     SPECS(call_charts),
     {"calls", "host", NULL}},
    {"beside",
     "Beside other work",
     "Who waits, and what a latency-critical kernel loses while "
     "another stream maps.",
     beside_charts,
     SPECS(beside_charts),
     {"beside", "latency", NULL}},
    {"full",
     "A nearly full device",
     "Mixed sizes, freed and allocated in random order, at 50% to "
     "99% of the memory.",
     full_charts,
     SPECS(full_charts),
     {"full", NULL}},
    {"churn",
     "A day of serving",
     "24 hours of simulated requests to a language model, 128 KiB of "
     "cache a token.",
     churn_charts,
     SPECS(churn_charts),
     {"churn", NULL}},
    {"safety",
     "What safety costs",
     "Each protection against the default of the same run; 1 is no "
     "cost.",
     safety_charts,
     SPECS(safety_charts),
     {"safety", NULL}},
    {"cliff",
     "Taking frames",
     "What a slab of frames costs by its size, and whether some size costs more a byte than the "
     "one below.",
     cliff_charts,
     SPECS(cliff_charts),
     {"cliff", NULL}},
    {"tlb",
     "Translation: facts and windows",
     "What the design relies on, asked of the hardware or "
     "of the model.",
     NULL,
     0,
     {"tlb", "facts", "litmus", NULL}},
    {"scale",
     "Several devices",
     "Published: the stock driver goes from 36 to 180 ms for 2 GB when "
     "four A100 map at once.",
     scale_charts,
     SPECS(scale_charts),
     {"scale", NULL}},
    {"suite",
     "Unmodified programs",
     "Time in allocation and free calls of existing programs, by the driver and with MoonBright "
     "preloaded; published of 1,013 programs, of which NVIDIA’s samples are a part.",
     suite_charts,
     SPECS(suite_charts),
     {"suite", "preload", NULL}},
    {"kv",
     "Serving language models",
     "Time to the first token with a shared prefix, and beam "
     "search.",
     kv_charts,
     SPECS(kv_charts),
     {"kv", NULL}},
};
const unsigned report_section_count = sizeof(report_sections) / sizeof(report_sections[0]);

/* ------------------------------------------------------------ the top */

static void top(FILE *out, const struct figures *set, const struct report_head *head)
{
    fputs("<header>\n<h1>MoonBright, side by side</h1>\n<p class=\"lead\">What is published, what "
          "the "
          "stock driver does, what MoonBright does: experiment by experiment, every number with "
          "its origin.</p>\n<p class=\"meta\">",
          out);
    fputs("Version ", out);
    html_text(out, head->version);
    if (*head->commit) {
        fputs(", commit ", out);
        html_text(out, head->commit);
    }
    fputs(", ", out);
    html_text(out, head->time);
    fputs("</p>\n<details><summary>Command</summary><p class=\"meta\"><code>", out);
    html_text(out, head->command);
    fputs("</code></p></details>\n<p>", out);
    page_badge(out, FIGURE_MEASURED);
    fputs(" on the machine named. ", out);
    page_badge(out, FIGURE_MODELLED);
    fputs(" in virtual time or by the rules of a model: no evidence about hardware. ", out);
    page_badge(out, FIGURE_PUBLISHED);
    fputs(" by the authors of the system that MoonBright follows. ", out);
    page_badge(out, FIGURE_CALCULATED);
    fputs(" by a formula from other figures.</p>\n<nav aria-label=\"Experiments\"><ul>\n", out);
    for (unsigned i = 0; i < report_section_count; i++) {
        fprintf(out, "<li><a href=\"#%s\">", report_sections[i].id);
        html_text(out, report_sections[i].title);
        fputs("</a></li>\n", out);
    }
    fputs("</ul></nav>\n", out);
    sides_html(out, set);
    fputs("</header>\n", out);
}

/* ------------------------------------------------------------ the end */

static void origins(FILE *out, const struct figures *set)
{
    fputs("<section id=\"origins\"><h2>Origins</h2><p class=\"lead\">Every run that the numbers "
          "come from.</p>\n<div class=\"scroll\" tabindex=\"0\" role=\"region\" "
          "aria-label=\"Origins\"><table><thead><tr><th>file</th><th class=\"t\">machine</th>"
          "<th class=\"t\">driver</th><th class=\"t\">commit</th><th class=\"t\">command</th></tr>"
          "</thead><tbody>\n",
          out);
    for (unsigned i = 0; i < set->origin_count; i++) {
        const struct figure_origin *o = &set->origins[i];
        const char *const cells[] = {*o->file ? o->file : "this run", o->machine, o->driver,
                                     o->commit, o->command};

        fputs("<tr>", out);
        for (unsigned k = 0; k < 5; k++) {
            fprintf(out, "<td class=\"t%s\">", k == 1 || k == 4 ? " w" : "");
            html_text(out, *cells[k] ? cells[k] : "–");
            fputs("</td>", out);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div></section>\n", out);
}

void report_write(FILE *out, const struct figures *set, const struct report_head *head)
{
    page_begin(out, "MoonBright, side by side", "");
    top(out, set, head);
    fputs("<main>\n", out);
    for (unsigned i = 0; i < report_section_count; i++)
        report_section(out, set, &report_sections[i]);
    report_others(out, set);
    origins(out, set);
    fputs("</main>\n<footer><p>", out);
    if (head->failed)
        fprintf(out, "%u bench%s did not run to the end; standard error and the JSON say why. ",
                head->failed, head->failed == 1 ? "" : "es");
    fputs("This page needs no network and no script.</p></footer>\n", out);
    page_end(out);
}
