/* SPDX-License-Identifier: MIT */
/*
 * probe.c - measures the facts of a profile on the device at hand.
 *
 * Facts about translation are the answers of litmus programs, turned into numbers. Costs are minima
 * over REPEATS: what the device needs, not what else the machine did. Differences (an entry, an
 * invalidate) are taken between minima of the same run.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/profile.h"
#include "probe/litmus.h"

enum {
    REPEATS = 60,
    FRAMES = 1024,
    SLOTS = 1024,
    MANY = 1001, /* entries; 1000 more than one */
    PAIRS = 64,  /* stream writes and waits in a row */
    DONE = MB_LAB_INVALIDATE | MB_LAB_MEMBAR,
};

struct probe {
    const char *backend;
    const struct mb_hw_config *config;
    uint64_t seed;
    struct mb_lab lab;
    struct mb_profile found;
    const struct mb_profile *known; /* NULL: none */
    bool modelled;
    char note[MB_PROFILE_FACTS][256]; /* why a fact was not measured, or what else it is */
};

static void missing(struct probe *p, enum mb_profile_fact fact, const char *why)
{
    snprintf(p->note[fact], sizeof(p->note[fact]), "%s", why);
}

/* ------------------------------------------------------------ translation */

/* Runs a litmus program on a device of its own; the number in its answer. */
static void ask(struct probe *p, enum mb_profile_fact fact, const char *program, const char *format,
                unsigned add)
{
    struct mb_litmus_result result;
    unsigned n;

    if (mb__litmus_run(p->backend, p->config, program, p->seed, &result)) {
        missing(p, fact, mb_error_detail());
    } else if (result.verdict == MB_LITMUS_NOT_RUN || sscanf(result.answer, format, &n) != 1) {
        missing(p, fact, result.answer);
    } else {
        p->found.value[fact] = n + add;
    }
}

static void translation(struct probe *p)
{
    ask(p, MB_PROFILE_group_slots, "stale-valid", "stale to distance %u", 1);
    if (p->modelled)
        ask(p, MB_PROFILE_invalid_group_slots, "stale-invalid", "stale to distance %u", 1);
    else
        missing(p, MB_PROFILE_invalid_group_slots,
                "windows of a CUDA context hold no invalid slots; ask with moonbright litmus "
                "--dangerous stale-invalid");
    ask(p, MB_PROFILE_walk_ahead_slots, "walk-ahead", "%u of", 0);
}

static void no_template(struct probe *p, const char *why)
{
    missing(p, MB_PROFILE_entry_low, why);
    missing(p, MB_PROFILE_entry_high, why);
}

/* Frames of the pool, as the driver mapped it at home, must have one and the same form. */
static void templates(struct probe *p)
{
    unsigned shift = mb_fmt_pfn_shift(p->lab.hw->caps.format);
    uint64_t tmpl = 0;

    if (!p->lab.ops->driver_entry) {
        no_template(p, "this backend shows no entries of the driver");
        return;
    }
    for (uint32_t i = 0; i < p->lab.frames; i += 61) {
        struct mb_pte pte;
        uint64_t bits;

        if (p->lab.ops->driver_entry(&p->lab, i, &pte)) {
            no_template(p, mb_error_detail());
            return;
        }
        bits = pte.lo - ((uint64_t)p->lab.pfn[i].n << shift);
        if (i && bits != tmpl) {
            no_template(p, "entries of the driver differ in form");
            return;
        }
        tmpl = bits;
    }
    p->found.value[MB_PROFILE_entry_low] = (uint32_t)tmpl;
    p->found.value[MB_PROFILE_entry_high] = (double)(tmpl >> 32);
}

/* ------------------------------------------------------------ costs */

struct cost {
    double host, complete;
};

/* Least of REPEATS of one kind of batch; frames are drawn anew for each. */
static enum mb_err least(struct probe *p, uint32_t count, unsigned flags, bool map,
                         struct cost *out)
{
    struct mb_lab *lab = &p->lab;
    enum mb_err err = MB_OK;
    mb_pfn *pfns = malloc(sizeof(*pfns) * (count + 1));

    if (!pfns)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a list of frames");
    *out = (struct cost){INFINITY, INFINITY};
    for (unsigned i = 0; !err && i < REPEATS; i++) {
        uint64_t start, back;

        for (uint32_t f = 0; f < count; f++)
            pfns[f] = lab->pfn[mb__rng_below(&lab->rng, lab->frames)];
        start = lab->ops->now(lab);
        err = map ? mb__lab_write(lab, lab->stream[0], 0, count, pfns, flags)
                  : lab->ops->nop(lab, lab->stream[0]);
        back = lab->ops->now(lab);
        if (!err)
            err = lab->ops->sync(lab, lab->stream[0]);
        out->host = fmin(out->host, (double)(back - start));
        out->complete = fmin(out->complete, (double)(lab->ops->now(lab) - start));
    }
    free(pfns);
    return err;
}

static enum mb_err batches(struct probe *p)
{
    struct cost nop = {0}, one = {0}, many = {0}, whole = {0}, range = {0};
    double *v = p->found.value;
    enum mb_err err = least(p, 0, 0, false, &nop);

    if (!err)
        err = least(p, 1, 0, true, &one);
    if (!err)
        err = least(p, MANY, 0, true, &many);
    if (!err)
        err = least(p, 1, DONE, true, &whole);
    if (err)
        return err;
    v[MB_PROFILE_launch_ns] = nop.host;
    v[MB_PROFILE_kernel_ns] = nop.complete;
    v[MB_PROFILE_submit_ns] = one.host;
    v[MB_PROFILE_map_ns] = one.complete;
    v[MB_PROFILE_entry_ps] = fmax(0, (many.complete - one.complete) * 1000 / (MANY - 1));
    v[MB_PROFILE_invalidate_ns] = fmax(0, whole.complete - one.complete);
    if (p->lab.ops->targeted(&p->lab, true)) {
        missing(p, MB_PROFILE_invalidate_range_ns, mb_error_detail());
        return MB_OK;
    }
    err = least(p, 1, MB_LAB_TARGETED | MB_LAB_MEMBAR, true, &range);
    if (!err)
        v[MB_PROFILE_invalidate_range_ns] = fmax(0, range.complete - one.complete);
    (void)p->lab.ops->targeted(&p->lab, false);
    return err;
}

/* Device time of one stream write and one satisfied wait behind it. */
static enum mb_err stream_values(struct probe *p)
{
    struct mb_lab *lab = &p->lab;
    double best[2] = {INFINITY, INFINITY};
    uint64_t value = 0;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < 20; i++) {
        for (unsigned many = 0; !err && many < 2; many++) {
            unsigned pairs = many ? PAIRS : PAIRS / 2;
            uint64_t start;

            /* Everything is enqueued behind a wait, so that only the device's time is seen. */
            err = lab->ops->sem_wait(lab, lab->stream[2], 12, value + 1);
            for (unsigned k = 0; !err && k < pairs; k++) {
                err = lab->ops->sem_set(lab, lab->stream[2], 11, value + k + 1);
                if (!err)
                    err = lab->ops->sem_wait(lab, lab->stream[2], 11, value + k + 1);
            }
            start = lab->ops->now(lab);
            lab->ops->sem_host(lab, 12, value + 1);
            if (!err)
                err = lab->ops->sync(lab, lab->stream[2]);
            best[many] = fmin(best[many], (double)(lab->ops->now(lab) - start));
            value += PAIRS + 1;
        }
    }
    if (!err)
        p->found.value[MB_PROFILE_stream_value_ns] = 2 * (best[1] - best[0]) / PAIRS;
    return err;
}

/* ------------------------------------------------------------ frames */

static enum mb_err slab_cost(struct probe *p, uint64_t bytes, double *ns)
{
    const struct mb_hw_ops *ops = p->lab.hw->ops;
    enum mb_err err = MB_OK;
    mb_va home;

    *ns = INFINITY;
    for (unsigned i = 0; !err && i < 8; i++) {
        struct mb_hw_slab slab;
        uint64_t start;

        err = ops->va_reserve(p->lab.hw, bytes, (uint64_t)512 << 20, &home);
        if (err)
            break;
        start = p->lab.ops->now(&p->lab);
        err = ops->slab_acquire(p->lab.hw, bytes, home, &slab);
        *ns = fmin(*ns, (double)(p->lab.ops->now(&p->lab) - start));
        if (!err)
            err = ops->slab_release(p->lab.hw, &slab);
        if (!err)
            err = ops->va_release(p->lab.hw, home, bytes);
    }
    return err;
}

/* A cliff is a size whose memory costs three times as much a byte as that of the size below it. */
static enum mb_err slabs(struct probe *p)
{
    static const struct {
        enum mb_profile_fact fact;
        uint64_t mib;
    } sizes[] = {{MB_PROFILE_slab_2m_ns, 2},
                 {MB_PROFILE_slab_32m_ns, 32},
                 {MB_PROFILE_slab_128m_ns, 128},
                 {MB_PROFILE_slab_512m_ns, 512},
                 {MB_PROFILE_slab_1g_ns, 1024}};
    double before = INFINITY, cliff = 0;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        double ns, each;

        err = slab_cost(p, sizes[i].mib << 20, &ns);
        if (err)
            break;
        each = ns / (double)sizes[i].mib;
        if (each > 3 * before && cliff == 0)
            cliff = (double)sizes[i].mib;
        before = each;
        p->found.value[sizes[i].fact] = ns;
    }
    if (!err)
        p->found.value[MB_PROFILE_slab_cliff_mib] = cliff;
    return err;
}

/* ------------------------------------------------------------ running */

static void small_leaf(struct probe *p)
{
    uint64_t bytes;

    if (!p->lab.ops->small_leaf)
        missing(p, MB_PROFILE_small_alloc_leaf_kib, "the modelled driver allocates frames only");
    else if (p->lab.ops->small_leaf(&p->lab, &bytes))
        missing(p, MB_PROFILE_small_alloc_leaf_kib, mb_error_detail());
    else
        p->found.value[MB_PROFILE_small_alloc_leaf_kib] = (double)(bytes >> 10);
}

/* Kernels count cycles, which is what is published; with the clock's rate they are nanoseconds. */
static void first_touch(struct probe *p)
{
    double first, later;

    if (p->lab.ops->first_touch(&p->lab, 32, &first, &later)) {
        missing(p, MB_PROFILE_first_touch_ns, mb_error_detail());
        return;
    }
    p->found.value[MB_PROFILE_first_touch_ns] = first - later;
    if (p->lab.clock_khz)
        snprintf(p->note[MB_PROFILE_first_touch_ns], sizeof(p->note[0]), "%.0f cycles at %.0f MHz",
                 (first - later) * p->lab.clock_khz / 1e6, p->lab.clock_khz / 1e3);
}

static enum mb_err costs(struct probe *p)
{
    enum mb_err err = mb__lab_pool(&p->lab, FRAMES, (uint64_t)512 << 20);

    if (!err)
        err = mb__lab_window(&p->lab, SLOTS);
    if (!err)
        err = mb__lab_write(&p->lab, p->lab.stream[0], 0, FRAMES, p->lab.pfn, DONE);
    if (!err)
        err = p->lab.ops->sync(&p->lab, NULL);
    if (err)
        return err;
    templates(p);
    small_leaf(p);
    first_touch(p);
    err = batches(p);
    if (!err)
        err = stream_values(p);
    return err ? err : slabs(p);
}

static void tell(const struct probe *p, mb_fact_callback callback, void *user)
{
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++) {
        double known = p->known ? p->known->value[i] : NAN, value = p->found.value[i];
        double tolerance = p->modelled ? 0.01 : mb__profile_tolerance((enum mb_profile_fact)i);
        struct mb_fact fact = {.name = mb__profile_name((enum mb_profile_fact)i),
                               .unit = mb__profile_unit((enum mb_profile_fact)i),
                               .value = value,
                               .known = known,
                               .note = p->note[i]};

        if (isnan(value))
            fact.verdict = MB_FACT_NOT_MEASURED;
        else if (isnan(known))
            fact.verdict = MB_FACT_NEW;
        else if (fabs(value - known) <= fmax(known, 1) * tolerance / 100)
            fact.verdict = MB_FACT_AS_KNOWN;
        else
            fact.verdict = MB_FACT_DIFFERS;
        callback(user, &fact);
    }
}

enum mb_err mb__probe_run(const char *backend, const struct mb_hw_config *config, const char *path,
                          uint64_t seed, mb_fact_callback callback, void *user)
{
    struct probe *p = calloc(1, sizeof(*p));
    struct mb_hw_config used = *config;
    enum mb_err err;

    if (!p)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a probe");
    p->backend = backend;
    p->config = config;
    p->seed = seed;
    mb__profile_clear(&p->found);
    used.no_oracle = true; /* frames are mapped at random, also twice */
    err = mb__lab_open(backend, &used, seed, &p->lab);
    if (err)
        goto undo;
    p->modelled = p->lab.ops->modelled;
    snprintf(p->found.device, sizeof(p->found.device), "%s", p->lab.hw->caps.device_name);
    snprintf(p->found.driver, sizeof(p->found.driver), "%s", p->lab.hw->caps.driver);
    snprintf(p->found.tables, sizeof(p->found.tables), "%s", p->lab.hw->caps.tables);
    p->known = mb__profile_builtin(p->found.device, p->found.tables);
    if (p->lab.hw->caps.host_blocking)
        err = mb__fail(MB_ERR_NOT_SUPPORTED,
                       "with driver tables there is nothing of MoonBright's to measure; device "
                       "tables are needed");
    if (!err)
        err = costs(p);
    mb__lab_close(&p->lab);
    if (err)
        goto undo;
    translation(p);
    tell(p, callback, user);
    if (path)
        err = mb__profile_write(path, &p->found);
undo:
    free(p);
    return err;
}
