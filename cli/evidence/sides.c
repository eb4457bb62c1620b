/* SPDX-License-Identifier: MIT */
/* sides.c - which figures stand side by side. */
#include "sides.h"

#include <math.h>
#include <string.h>

#include "report_parts.h"

#define GIB 1073741824.0
#define MIB 1048576.0

/* Where a published figure is found; how NULL: there is none. */
struct place {
    const char *experiment, *what, *how;
    double x;
};

/* NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): in the order that the rows read in */
struct spec {
    const char *what;                         /* as the row is called */
    const char *experiment, *figure, *metric; /* figure: its `what`, as is_named() has it */
    double x;
    const char *ours;     /* its `how`, likewise; NULL: any of MoonBright's ways */
    const char *stock[2]; /* likewise, but whole */
    struct place published, published_stock;
    bool any_machine; /* bytes held do not depend on the machine */
};

#define VMM                                                                                        \
    {                                                                                              \
        "CUDA VMM, 2 MB handles", "CUDA VMM, one handle"                                           \
    }
#define NOWHERE                                                                                    \
    {                                                                                              \
        NULL, NULL, NULL, NAN                                                                      \
    }
#define A100_TABLES(bytes)                                                                         \
    {                                                                                              \
        "breakdown", "page table", "cudaMalloc (A100)", bytes                                      \
    }
#define A100_MALLOC(bytes)                                                                         \
    {                                                                                              \
        "alloc", "alloc", "cudaMalloc (A100)", bytes                                               \
    }
/* The rest: where the stock figure is published. */
#define GPUS(name, count, ...)                                                                     \
    {                                                                                              \
        name, "scale", "map 2 GB", "complete", count, "threads: *",                                \
            {"threads: CUDA VMM, 2 MB handles", "threads: CUDA VMM, one handle"}, NOWHERE,         \
            __VA_ARGS__, false                                                                     \
    }
#define TRACE(name, text)                                                                          \
    {                                                                                              \
        "memory held: " text, "efficiency", name, "peak allocated / peak reserved", NAN, NULL,     \
            {"PyTorch, default", "PyTorch, expandable"}, NOWHERE, NOWHERE, true                    \
    }
#define TRAIN(name, text)                                                                          \
    {                                                                                              \
        "training, held: " text, "train", name, "peak allocated / peak reserved", NAN,             \
            "MoonBright, inline tables", {"PyTorch, default", "PyTorch, expandable"}, NOWHERE,     \
            NOWHERE, false                                                                         \
    }
#define SAVED(name)                                                                                \
    {                                                                                              \
        name, "suite", name, "value", NAN, NULL, {NULL, NULL},                                     \
            {"suite", name, "published, 1,013 programs", NAN}, NOWHERE, false                      \
    }
#define ROBSON(name, text)                                                                         \
    {                                                                                              \
        text, "budget", name, "value", NAN, "calculated", {NULL, NULL},                            \
            {"budget", name, "published", NAN}, NOWHERE, false                                     \
    }
#define SERVED(name)                                                                               \
    {                                                                                              \
        name, "kv", name, "value", NAN, NULL, {NULL, NULL},                                        \
            {"kv", name, "published, at most", NAN}, NOWHERE, false                                \
    }

static const struct spec specs[] = {
    {"map 2 GB, until complete",
     "map",
     "map",
     "complete",
     2 * GIB,
     NULL,
     VMM,
     {"map", "map", "published system (A100)", 2 * GIB},
     {"map", "map", "CUDA VMM (A100)", 2 * GIB},
     false},
    {"map 2 GB, host blocked", "map", "map", "host", 2 * GIB, NULL, VMM, NOWHERE, NOWHERE, false},
    {"unmap 2 GB, until complete", "unmap", "unmap", "complete", 2 * GIB, NULL, VMM, NOWHERE,
     NOWHERE, false},
    {"remap 2 GB in use", "remap", "remap", "complete", 2 * GIB, NULL, VMM, NOWHERE, NOWHERE,
     false},
    {"alias 2 GB", "alias", "alias", "complete", 2 * GIB, NULL, VMM, NOWHERE, NOWHERE, false},
    {"permission of 2 GB", "protect", "protect", "complete", 2 * GIB, NULL, VMM, NOWHERE, NOWHERE,
     false},
    {"page tables of 2 MB", "map", "map", "complete", 2 * MIB, NULL, VMM, NOWHERE,
     A100_TABLES(2 * MIB), false},
    {"page tables of 16 MB", "map", "map", "complete", 16 * MIB, NULL, VMM, NOWHERE,
     A100_TABLES(16 * MIB), false},
    {"page tables of 128 MB", "map", "map", "complete", 128 * MIB, NULL, VMM, NOWHERE,
     A100_TABLES(128 * MIB), false},
    {"TLB flush, above a map",
     "steps",
     "flush, *",
     "complete",
     2 * MIB,
     NULL,
     {NULL, NULL},
     NOWHERE,
     {"breakdown", "flush", "TLB flush (A100)", NAN},
     false},
    {"allocate 2 MB, again",
     "alloc",
     "alloc",
     "host",
     2 * MIB,
     NULL,
     {"cuMemAlloc", "cuMemAllocAsync, warm"},
     NOWHERE,
     A100_MALLOC(2 * MIB),
     false},
    {"allocate 16 MB, again",
     "alloc",
     "alloc",
     "host",
     16 * MIB,
     NULL,
     {"cuMemAlloc", "cuMemAllocAsync, warm"},
     NOWHERE,
     A100_MALLOC(16 * MIB),
     false},
    {"allocate 128 MB, again",
     "alloc",
     "alloc",
     "host",
     128 * MIB,
     NULL,
     {"cuMemAlloc", "cuMemAllocAsync, warm"},
     NOWHERE,
     A100_MALLOC(128 * MIB),
     false},
    {"allocate and free 1 MB, one thread",
     "hot",
     "pair",
     "host",
     MIB,
     "mb_malloc_async + mb_free_async, 1 thread",
     {"cuMemAllocAsync + cuMemFreeAsync, 1 thread", NULL},
     NOWHERE,
     NOWHERE,
     false},
    GPUS("map 2 GB, one GPU of one", 1, {"scale", "map 2 GB", "CUDA VMM (A100)", 1}),
    GPUS("map 2 GB, two GPUs at once", 2, NOWHERE),
    GPUS("map 2 GB, four GPUs at once", 4, {"scale", "map 2 GB", "CUDA VMM (A100)", 4}),
    {"first touch of a page above a hit",
     "tlb",
     "first touch above a hit",
     "value",
     NAN,
     "*",
     {NULL, NULL},
     NOWHERE,
     {"tlb", "first touch above a hit", "published (A100)", NAN},
     false},
    TRACE("densenet161", "DenseNet-161"),
    TRACE("gpt2", "GPT-2"),
    TRACE("llama-recompute", "Llama, recomputation"),
    TRACE("moe-offload-recompute", "mixture of experts, offload"),
    TRACE("llama-generate-beam4", "Llama, beam search"),
    TRAIN("densenet161", "DenseNet-161"),
    TRAIN("gpt2", "GPT-2"),
    TRAIN("llama-recompute", "Llama, recomputation"),
    TRAIN("moe-offload-recompute", "mixture of experts, offload"),
    TRAIN("llama-generate-beam4", "Llama, beam search"),
    TRAIN("diffusion-unet", "diffusion U-Net"),
    TRAIN("ragged-transformer", "transformer, ragged batch"),
    ROBSON("Robson bound, 2 MB pages", "addresses 80 GB can need"),
    ROBSON("Robson bound, 32 MB spacing", "the same, ranges 32 MB apart"),
    {"addresses GPT-2 was given, always fresh",
     "budget",
     "gpt2",
     "addresses handed out",
     NAN,
     "policy:fresh",
     {NULL, NULL},
     NOWHERE,
     NOWHERE,
     false},
    SERVED("TTFT with prefix cache over vAttention"),
    SERVED("beam search tokens over vLLM"),
    SAVED("allocation time saved, mean"),
    SAVED("allocation time saved, most"),
    {"time in allocation calls, all programs run",
     "suite",
     "all programs run",
     "in allocation calls",
     NAN,
     NULL,
     {"cudaMalloc and its like, driver", NULL},
     NOWHERE,
     NOWHERE,
     false},
};
_Static_assert(SPECS(specs) <= SIDES_MAX, "every row has its place");

/* ------------------------------------------------------------ finding */

/* `name` as specs have it; "*" at its end: any with this beginning. */
static bool is_named(const char *text, const char *name)
{
    size_t length = strlen(name);

    if (length && name[length - 1] == '*')
        return strncmp(text, name, length - 1) == 0;
    return strcmp(text, name) == 0;
}

static bool is_of(const struct figure *f, const struct spec *s)
{
    return strcmp(f->experiment, s->experiment) == 0 && is_named(f->what, s->figure) &&
           strcmp(f->metric, s->metric) == 0 && (isnan(s->x) || f->x == s->x) && !isnan(f->value);
}

/* The GPU alone: "NVIDIA H200" of "NVIDIA H200, inline", of "simulated H200 on a processor". */
static size_t device_length(const char *machine)
{
    const char *host = strstr(machine, " on ");
    size_t length = strcspn(machine, ",");

    return host && (size_t)(host - machine) < length ? (size_t)(host - machine) : length;
}

/* Of one machine and one file: a ratio of anything else would compare two days. */
static bool same_run(const struct figures *set, const struct figure *a, const struct figure *b)
{
    const struct figure_origin *p = &set->origins[a->origin], *q = &set->origins[b->origin];
    size_t length = device_length(p->machine);

    return strcmp(p->file, q->file) == 0 && length == device_length(q->machine) &&
           strncmp(p->machine, q->machine, length) == 0;
}

static const struct figure *stock_of(const struct figures *set, const struct spec *s,
                                     const char *how, const struct figure *ours)
{
    for (unsigned i = 0; how && i < set->count; i++) {
        const struct figure *f = &set->list[i];

        if (is_of(f, s) && f->kind == ours->kind && strcmp(f->how, how) == 0 &&
            (s->any_machine || same_run(set, f, ours)))
            return f;
    }
    return NULL;
}

static bool is_better(const struct figure *a, const struct figure *than)
{
    return figure_direction(a) > 0 ? a->value > than->value : a->value < than->value;
}

/* The best of MoonBright's ways, of those that have a stock figure beside them if any has. */
static void find_ours(const struct figures *set, const struct spec *s, enum figure_kind kind,
                      struct side *side)
{
    bool beside = false;

    for (unsigned i = 0; i < set->count; i++) {
        const struct figure *f = &set->list[i], *stock;

        if (f->kind != kind || !is_of(f, s) ||
            (s->ours ? !is_named(f->how, s->ours) : !figure_is_ours(f)) || figure_is_stock(f))
            continue;
        stock = stock_of(set, s, s->stock[0], f);
        if (side->ours && ((beside && !stock) || (beside == !!stock && !is_better(f, side->ours))))
            continue;
        side->ours = f;
        side->stock[0] = stock;
        beside = stock != NULL;
    }
    if (side->ours)
        side->stock[1] = stock_of(set, s, s->stock[1], side->ours);
}

static const struct figure *published_at(const struct figures *set, const struct place *p)
{
    unsigned from = 0;
    const struct figure *f;

    while (p->how &&
           (f = figures_next(set, &from, p->experiment, p->what, p->how, NULL, p->x)) != NULL)
        if (f->kind == FIGURE_PUBLISHED)
            return f;
    return NULL;
}

static double ratio_of(const struct side *side)
{
    double stock = side->stock[0] ? side->stock[0]->value : NAN;
    double ours = side->ours ? side->ours->value : NAN;

    if (!(stock > 0) || !(ours > 0))
        return NAN;
    return figure_direction(side->ours) > 0 ? ours / stock : stock / ours;
}

unsigned sides_of(const struct figures *set, struct side out[SIDES_MAX])
{
    static const enum figure_kind kinds[] = {FIGURE_MEASURED, FIGURE_MODELLED, FIGURE_CALCULATED};
    unsigned count = 0;

    for (size_t i = 0; i < SPECS(specs); i++) {
        struct side *side = &out[count];

        *side = (struct side){.what = specs[i].what};
        for (size_t k = 0; k < SPECS(kinds) && !side->ours; k++)
            find_ours(set, &specs[i], kinds[k], side);
        side->published = published_at(set, &specs[i].published);
        side->published_stock = published_at(set, &specs[i].published_stock);
        side->ratio = ratio_of(side);
        count += side->ours || side->published || side->published_stock;
    }
    return count;
}

/* ------------------------------------------------------------ JSON */

static void json_value(struct json_writer *w, const char *key, const struct figure *f)
{
    json_double(w, key, f ? f->value : NAN);
}

void sides_json(const struct figures *set, struct json_writer *w)
{
    static struct side sides[SIDES_MAX]; /* large, and a process writes one */
    unsigned count = sides_of(set, sides);

    json_array(w, "side_by_side");
    for (unsigned i = 0; i < count; i++) {
        const struct side *s = &sides[i];
        const struct figure *named = s->ours        ? s->ours
                                     : s->published ? s->published
                                                    : s->published_stock;

        json_object(w, NULL);
        json_text(w, "what", s->what);
        json_text(w, "unit", named->unit);
        if (s->published_stock && strcmp(s->published_stock->unit, named->unit) != 0)
            json_text(w, "published_unit", s->published_stock->unit);
        json_value(w, "published", s->published);
        json_value(w, "published_stock", s->published_stock);
        json_value(w, "stock", s->stock[0]);
        json_value(w, "stock_other_way", s->stock[1]);
        json_value(w, "moonbright", s->ours);
        json_double(w, "ratio", s->ratio);
        json_text(w, "kind", s->ours ? figure_kind_name(s->ours->kind) : "not run");
        json_text(w, "machine", s->ours ? set->origins[s->ours->origin].machine : "");
        json_text(w, "way", s->ours ? figure_way(s->ours) : "");
        json_text(w, "file", s->ours ? set->origins[s->ours->origin].file : "");
        json_end_object(w);
    }
    json_end_array(w);
}
