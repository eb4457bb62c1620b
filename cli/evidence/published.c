/* SPDX-License-Identifier: MIT */
/*
 * published.c - figures of the system that MoonBright follows, as published (OSDI 2026; on NVIDIA
 * A100 80 GB unless the how says otherwise). They are shown beside ours and never compared across
 * machines as if they were one.
 */
#include "figure.h"

#include <math.h>
#include <stddef.h>

#define MIB 1048576.0

static const struct {
    const char *experiment, *what, *how, *metric, *unit;
    double x;
    const char *x_unit;
    double value;
    const char *note;
} published[] = {
    {"alloc", "alloc", "cudaMalloc (A100)", "host", "us", 2 * MIB, "bytes", 59, ""},
    {"alloc", "alloc", "cudaMalloc (A100)", "host", "us", 16 * MIB, "bytes", 437, ""},
    {"alloc", "alloc", "cudaMalloc (A100)", "host", "us", 128 * MIB, "bytes", 966, ""},
    {"breakdown", "page table", "cudaMalloc (A100)", "host", "us", 2 * MIB, "bytes", 47, ""},
    {"breakdown", "page table", "cudaMalloc (A100)", "host", "us", 16 * MIB, "bytes", 422, ""},
    {"breakdown", "page table", "cudaMalloc (A100)", "host", "us", 128 * MIB, "bytes", 949, ""},
    {"breakdown", "flush", "TLB flush (A100)", "host", "us", NAN, "", 26.8, ""},
    {"map", "map", "CUDA VMM (A100)", "complete", "us", 2048 * MIB, "bytes", 36000, ""},
    {"map", "map", "published system (A100)", "complete", "us", 2048 * MIB, "bytes", 14, ""},
    {"scale", "map 2 GB", "CUDA VMM (A100)", "complete", "us", 1, "devices", 36000, ""},
    {"scale", "map 2 GB", "CUDA VMM (A100)", "complete", "us", 4, "devices", 180000, ""},
    {"tlb", "first touch above a hit", "published (A100)", "value", "cycles", NAN, "", 956, ""},
    {"suite", "allocation time saved, mean", "published, 1,013 programs", "value", "%", NAN, "",
     76.5, "of the allocation time of three suites"},
    {"suite", "allocation time saved, most", "published, 1,013 programs", "value", "%", NAN, "",
     99.3, "of the allocation time of three suites"},
    {"kv", "TTFT with prefix cache over vAttention", "published, at most", "value", "x faster", NAN,
     "", 8.2, ""},
    {"kv", "beam search tokens over vLLM", "published, at most", "value", "x faster", NAN, "", 3.6,
     ""},
    {"budget", "Robson bound, 2 MB pages", "published", "value", "GB", 80 * 1024 * MIB, "bytes",
     693, "addresses that 80 GB can need"},
    {"budget", "Robson bound, 32 MB spacing", "published", "value", "GB", 80 * 1024 * MIB, "bytes",
     11000, "addresses that 80 GB can need"},
};

void figures_add_published(struct figures *set)
{
    const struct figure_origin origin = {.file = "published",
                                         .machine = "as published",
                                         .command = "the published evaluation (OSDI 2026)"};
    unsigned index = figures_origin(set, &origin);

    for (size_t i = 0; i < sizeof(published) / sizeof(published[0]); i++) {
        struct figure f = figure_blank();

        f.experiment = published[i].experiment;
        f.what = published[i].what;
        f.how = published[i].how;
        f.metric = published[i].metric;
        f.unit = published[i].unit;
        f.x = published[i].x;
        f.x_unit = published[i].x_unit;
        f.value = published[i].value;
        f.note = published[i].note;
        f.kind = FIGURE_PUBLISHED;
        f.origin = index;
        figures_add(set, &f);
    }
}
