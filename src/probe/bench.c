/* SPDX-License-Identifier: MIT */
/*
 * bench.c - what mapping costs, beside the vendor's own ways, in one run.
 *
 * FRAME LISTS  Every timed iteration of map, remap and alias brings a list of frames that was drawn
 *              a moment before, in host memory that the device has not seen; delivering it is part
 *              of the time. Protect and unmap name no frames or the same ones.
 * TIMES        host: the calling thread is blocked. complete: until the stream has passed the
 *              batch.
 *              used: until a kernel behind it has stored to every page. complete and used are
 *              separate iterations, as waiting in between would hide what overlaps.
 * ORDER        MoonBright's ways come first, while what libcuda asks of the kernel driver is seen
 *              from the start; then the vendor's, in a context in which MoonBright has no helper
 *              channel, as a program without it would see them. Each way is measured in a row, as
 *              programs use one of them. What device tables cost the vendor's calls is a row of its
 *              own, in bench_beside.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "probe/bench.h"

#define ROW_LIMIT_NS ((uint64_t)300000000)
static const uint64_t default_sizes[] = {2ull << 20,   16ull << 20, 128ull << 20,
                                         512ull << 20, 2ull << 30,  4ull << 30};

/* ------------------------------------------------------------ samples */

void mb__bench_add(struct mb_bench_series *s, double host, double complete, double used)
{
    if (s->count == MB_BENCH_SAMPLES)
        return;
    s->host[s->count] = host;
    s->complete[s->count] = complete;
    s->used[s->count++] = used;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Nearest rank; NaN if any sample is. */
static struct mb_spread spread(double *ns, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (isnan(ns[i]))
            count = 0;
    if (!count)
        return (struct mb_spread){NAN, NAN, NAN};
    qsort(ns, count, sizeof(*ns), by_value);
    return (struct mb_spread){ns[count / 2] / 1e3, ns[(unsigned)ceil(0.99 * count) - 1] / 1e3,
                              ns[0] / 1e3};
}

void mb__bench_tell(struct mb_bench *b, const char *what, const char *how, uint64_t bytes,
                    struct mb_bench_series *s, const char *note, double value)
{
    struct mb_bench_row row = {.what = what,
                               .how = how,
                               .bytes = bytes,
                               .samples = s->count,
                               .note = note,
                               .value = value,
                               .modelled = b->lab.ops->modelled};

    row.host = spread(s->host, s->count);
    row.complete = spread(s->complete, s->count);
    row.used = spread(s->used, s->count);
    b->callback(b->user, &row);
    s->count = 0;
}

void mb__bench_skip(struct mb_bench *b, const char *what, const char *how, uint64_t bytes)
{
    b->series->count = 0;
    mb__bench_tell(b, what, how, bytes, b->series, mb_error_detail(), NAN);
}

/* A row takes no longer than this once it has a few samples: a run has a foreseeable end. */
static bool late(const struct mb_bench *b, uint64_t started, unsigned samples)
{
    return !b->options->turn && !b->lab.ops->modelled && samples >= 5 &&
           mb__now_ns() - started > ROW_LIMIT_NS;
}

/* ------------------------------------------------------------ batches */

const mb_pfn *mb__bench_list(struct mb_bench *b, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = i + (uint32_t)mb__rng_below(&b->lab.rng, b->lab.frames - i);
        uint32_t x = b->order[i];

        b->order[i] = b->order[j];
        b->order[j] = x;
        b->list[i] = b->lab.pfn[b->order[i]];
    }
    return b->list;
}

/* What the slots must be before the timed batch, and what the batch does. */
struct kind {
    const char *name;
    bool starts_mapped, names_frames;
    unsigned flags;
    enum mb_lab_step vendor;
};
enum { DONE = MB_LAB_INVALIDATE | MB_LAB_MEMBAR };
static const struct kind kinds[] = {
    {"map", false, true, 0, MB_LAB_MAP},
    {"map+invalidate", false, true, DONE, MB_LAB_MAP},
    {"unmap", true, false, DONE, MB_LAB_UNMAP},
    {"remap", true, true, DONE, MB_LAB_REMAP},
    {"alias", false, true, DONE, MB_LAB_ALIAS},
    {"protect", true, true, DONE | MB_LAB_READ_ONLY, MB_LAB_PROTECT},
};

static enum mb_err prepare(struct mb_bench *b, const struct kind *k, uint32_t count)
{
    struct mb_lab *lab = &b->lab;
    const mb_pfn *pfns = k->starts_mapped ? mb__bench_list(b, count) : NULL;
    enum mb_err err = mb__lab_write(lab, lab->stream[0], 0, count, pfns, DONE);

    /* The slots are in the TLBs, as those of memory in use are. With the driver's tables nothing
     * answers at cleared ones: an access would end the context. */
    if (!err && !lab->ops->modelled && (pfns || !lab->hw->caps.host_blocking))
        err = lab->ops->touch(lab, lab->stream[0], lab->view.va, MB_FRAME_BYTES, count, 1);
    if (!err)
        err = lab->ops->sync(lab, lab->stream[0]);
    if (k->names_frames && k->vendor != MB_LAB_PROTECT)
        (void)mb__bench_list(b, count);
    return err;
}

/* All that are measured at once begin together. */
static void await_turn(const struct mb_bench *b)
{
    if (b->options->turn)
        b->options->turn(b->options->turn_user);
}

static enum mb_err timed(struct mb_bench *b, const struct kind *k, uint32_t count, bool use,
                         double *host, double *done)
{
    struct mb_lab *lab = &b->lab;
    uint64_t start, back;
    enum mb_err err;

    await_turn(b);
    start = lab->ops->now(lab);
    err = mb__lab_write(lab, lab->stream[0], 0, count, k->names_frames ? b->list : NULL, k->flags);

    back = lab->ops->now(lab);
    if (!err && use)
        err = lab->ops->touch(lab, lab->stream[0], lab->view.va, MB_FRAME_BYTES, count, 1);
    if (!err)
        err = lab->ops->sync(lab, lab->stream[0]);
    *host = (double)(back - start);
    *done = (double)(lab->ops->now(lab) - start);
    return err;
}

/* An access to what may not be accessed would end the context: used is not measured there. */
static bool usable(const struct mb_bench *b, const struct kind *k)
{
    return !b->lab.ops->modelled && k->vendor != MB_LAB_PROTECT && k->vendor != MB_LAB_UNMAP;
}

static enum mb_err bench_kind(struct mb_bench *b, const struct kind *k, uint64_t bytes)
{
    uint32_t count = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    unsigned samples = b->samples, warm = samples > 50 ? 10 : 2;
    uint64_t started = mb__now_ns();
    enum mb_err err = MB_OK;

    if (b->lab.hw->caps.host_blocking)
        warm = 1; /* each takes long */
    for (unsigned i = 0; !err && i < samples + warm && !late(b, started, b->series->count); i++) {
        double host = NAN, complete = NAN, used = NAN, ignored;

        err = prepare(b, k, count);
        if (!err)
            err = timed(b, k, count, false, &host, &complete);
        if (!err && usable(b, k)) {
            err = prepare(b, k, count);
            if (!err)
                err = timed(b, k, count, true, &ignored, &used);
        }
        if (i >= warm)
            mb__bench_add(b->series, host, complete, used);
    }
    if (!err)
        mb__bench_tell(b, k->name, b->lab.hw->caps.tables, bytes, b->series, "", NAN);
    return err;
}

/* ------------------------------------------------------------ the vendor's ways */

static enum mb_err vendor_way(struct mb_bench *b, const char *what, enum mb_lab_step step,
                              enum mb_lab_vendor way, uint64_t bytes)
{
    uint64_t started = mb__now_ns();
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < b->samples + 1 && !late(b, started, b->series->count); i++) {
        struct mb_lab_turn turn;

        await_turn(b);
        err = b->lab.ops->vendor(&b->lab, way, bytes, 1u << step, &turn);
        if (!err && i)
            mb__bench_add(b->series, turn.host_ns[step], turn.complete_ns[step],
                          turn.used_ns[step]);
    }
    if (err == MB_ERR_NOT_SUPPORTED || err == MB_ERR_NO_MEMORY) {
        mb__bench_skip(b, what, mb__lab_vendor_name(way), bytes);
        return MB_OK;
    }
    if (!err)
        mb__bench_tell(b, what, mb__lab_vendor_name(way), bytes, b->series, "", NAN);
    return err;
}

enum mb_err mb__bench_vendors(struct mb_bench *b, const char *what, enum mb_lab_step step,
                              uint64_t bytes)
{
    bool allocates = step == MB_LAB_MAP || step == MB_LAB_UNMAP;
    unsigned last = allocates ? MB_LAB_VENDORS : MB_LAB_ALLOC;
    unsigned ways = b->options->vendor_ways;
    enum mb_err err = MB_OK;

    last = ways && ways < last ? ways : last;
    for (unsigned way = 0; !err && way < last; way++)
        err = vendor_way(b, what, step, (enum mb_lab_vendor)way, bytes);
    return err;
}

/* ------------------------------------------------------------ floors */

/* An empty kernel, and the touching kernel over frames that are mapped at home already. */
static enum mb_err floors(struct mb_bench *b, uint64_t bytes)
{
    struct mb_lab *lab = &b->lab;
    uint32_t count = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    enum mb_err err = MB_OK;

    for (unsigned touch = 0; !err && touch < (lab->ops->modelled ? 1u : 2u); touch++) {
        for (unsigned i = 0; !err && i < b->samples + 10; i++) {
            uint64_t start = lab->ops->now(lab), back;

            err = touch ? lab->ops->touch(lab, lab->stream[0], lab->home, MB_FRAME_BYTES, count, 1)
                        : lab->ops->nop(lab, lab->stream[0]);
            back = lab->ops->now(lab);
            if (!err)
                err = lab->ops->sync(lab, lab->stream[0]);
            if (i >= 10)
                mb__bench_add(b->series, (double)(back - start),
                              (double)(lab->ops->now(lab) - start), NAN);
        }
        if (!err)
            mb__bench_tell(b, "floor", touch ? "touching kernel alone" : "empty kernel",
                           touch ? bytes : 0, b->series, "", NAN);
    }
    return err;
}

/* ------------------------------------------------------------ running */

static bool is_kind(const struct kind *k, const char *name)
{
    size_t length = strcspn(k->name, "+");

    return strlen(name) == length && strncmp(k->name, name, length) == 0;
}

static enum mb_err our_rows(struct mb_bench *b)
{
    enum mb_err err = floors(b, b->most);

    for (unsigned s = 0; !err && s < b->size_count; s++)
        for (unsigned i = 0; !err && i < sizeof(kinds) / sizeof(kinds[0]); i++)
            if (is_kind(&kinds[i], b->options->name))
                err = bench_kind(b, &kinds[i], b->sizes[s]);
    return err;
}

static enum mb_err vendor_rows(struct mb_bench *b)
{
    const char *name = b->options->name;
    enum mb_err err = MB_OK;

    for (unsigned s = 0; !err && s < b->size_count; s++) {
        for (unsigned i = 0; !err && i < sizeof(kinds) / sizeof(kinds[0]); i++)
            if (strcmp(kinds[i].name, name) == 0)
                err = mb__bench_vendors(b, name, kinds[i].vendor, b->sizes[s]);
        if (strcmp(name, "alloc") != 0)
            continue;
        err = mb__bench_vendors(b, "alloc", MB_LAB_MAP, b->sizes[s]);
        if (!err)
            err = mb__bench_vendors(b, "free", MB_LAB_UNMAP, b->sizes[s]);
    }
    return err;
}

static enum mb_err check_options(const struct mb_bench_options *o)
{
    static const char *const names[] = {"map",     "unmap", "remap", "alias",
                                        "protect", "alloc", "beside"};
    bool known = false;

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        known = known || strcmp(o->name, names[i]) == 0;
    if (!known)
        return mb__fail(MB_ERR_INVALID,
                        "there is no bench \"%.32s\"; there are map, unmap, remap, alias, "
                        "protect, alloc, beside and host",
                        o->name);
    for (unsigned i = 0; i < o->size_count; i++)
        if (!o->sizes[i] || o->sizes[i] % MB_FRAME_BYTES || o->sizes[i] > (uint64_t)64 << 30)
            return mb__fail(MB_ERR_INVALID,
                            "a size of %llu bytes; multiples of 2 MiB up to 64 GiB are allowed",
                            (unsigned long long)o->sizes[i]);
    return MB_OK;
}

static enum mb_err plan(struct mb_bench *b)
{
    const struct mb_bench_options *o = b->options;

    b->sizes = o->sizes ? o->sizes : default_sizes;
    b->size_count = o->sizes ? o->size_count : sizeof(default_sizes) / sizeof(default_sizes[0]);
    for (unsigned i = 0; i < b->size_count; i++)
        b->most = b->sizes[i] > b->most ? b->sizes[i] : b->most;
    b->series = calloc(1, sizeof(*b->series));
    return b->series ? MB_OK : mb__fail(MB_ERR_HOST_MEMORY, "no memory for samples");
}

static enum mb_err open_bench(struct mb_bench *b, const char *backend,
                              const struct mb_hw_config *config)
{
    enum mb_err err = mb__lab_open(backend, config, b->options->seed, &b->lab);

    if (err)
        return err;
    b->samples = b->options->samples ? b->options->samples : b->lab.ops->modelled ? 20 : 300;
    if (b->lab.ops->crowd)
        b->lab.ops->crowd(&b->lab, b->options->crowd_threads, b->options->crowd_processes,
                          b->options->crowd_sharers);
    if (b->samples > MB_BENCH_SAMPLES - 20)
        b->samples = MB_BENCH_SAMPLES - 20;
    return MB_OK;
}

/* The vendor's calls, where MoonBright has no helper channel. */
static enum mb_err measure_vendor(struct mb_bench *b, const char *backend,
                                  const struct mb_hw_config *config)
{
    struct mb_hw_config plain = *config;
    enum mb_err err;

    plain.tables = "driver";
    err = open_bench(b, backend, &plain);
    if (err)
        return err;
    err = strcmp(b->options->name, "beside") == 0 ? mb__bench_beside_vendor(b) : vendor_rows(b);
    mb__lab_close(&b->lab);
    return err;
}

static enum mb_err measure_ours(struct mb_bench *b, const char *backend,
                                const struct mb_hw_config *config)
{
    uint32_t slots = (uint32_t)(b->most >> MB_FRAME_SHIFT);
    enum mb_err err = open_bench(b, backend, config);

    if (err)
        return err;
    /* Twice as many frames as are mapped, so that a list is a choice as well as an order. */
    err = mb__lab_pool(&b->lab, 2 * slots + 64, (uint64_t)512 << 20);
    if (!err)
        err = mb__lab_window(&b->lab, slots);
    b->order = calloc(b->lab.frames + 1, sizeof(*b->order));
    b->list = calloc(b->lab.frames + 1, sizeof(*b->list));
    if (!err && (!b->order || !b->list))
        err = mb__fail(MB_ERR_HOST_MEMORY, "no memory for lists of frames");
    for (uint32_t i = 0; b->order && i < b->lab.frames; i++)
        b->order[i] = i;
    if (!err)
        err = strcmp(b->options->name, "beside") == 0 ? mb__bench_beside(b) : our_rows(b);
    mb__lab_close(&b->lab);
    free(b->order);
    free(b->list);
    return err;
}

enum mb_err mb__bench_run(const char *backend, const struct mb_hw_config *config,
                          const struct mb_bench_options *options, mb_bench_callback callback,
                          void *user)
{
    struct mb_bench b = {.options = options, .callback = callback, .user = user};
    enum mb_err err = check_options(options);

    if (!err)
        err = plan(&b);
    if (!err)
        err = measure_ours(&b, backend, config);
    if (!err && !options->no_vendor)
        err = measure_vendor(&b, backend, config);
    free(b.series);
    return err;
}
