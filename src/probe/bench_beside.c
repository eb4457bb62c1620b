/* SPDX-License-Identifier: MIT */
/*
 * bench_beside.c - mapping beside other work.
 *
 * waits      A kernel that takes SPIN_NS runs on another stream while one call is made. Did the
 *            call come back, and had it taken effect, before that kernel ended? value: 1 if so.
 * neighbour  The vendor's own calls while device tables are open; value: their time over that in a
 *            context without.
 * slowdown   Random reads over all frames run on another stream while mappings are submitted as
 *            fast as the host can; value: their time with over without.
 * pending    Batches of several streams wait for a gate that the host holds shut; value: the rate
 *            of large copies meanwhile, over the rate with nothing pending.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "probe/bench.h"

#define SPIN_NS ((uint64_t)60000000)
#define NEIGHBOUR_BYTES ((uint64_t)64 << 20)
/* Streams that wait for a word hold one of the context's hardware queues each, and others that
 * share it wait with them: CUDA_DEVICE_MAX_CONNECTIONS of 32 leaves room for so many. */
enum { DONE = MB_LAB_INVALIDATE | MB_LAB_MEMBAR, GATE = 9, PENDING_STREAMS = 16 };

/* ------------------------------------------------------------ who waits */

static enum mb_err beside_ours(struct mb_bench *b, const char *what, bool map, uint32_t count)
{
    struct mb_lab *lab = &b->lab;
    enum mb_err err =
        mb__lab_write(lab, lab->stream[0], 0, count, map ? NULL : mb__bench_list(b, count), DONE);
    uint64_t start, back;
    bool free_of_it;

    if (!err)
        err = lab->ops->sync(lab, NULL);
    if (!err)
        err = lab->ops->spin(lab, lab->stream[1], SPIN_NS);
    start = lab->ops->now(lab);
    if (!err)
        err = mb__lab_write(lab, lab->stream[0], 0, count, map ? mb__bench_list(b, count) : NULL,
                            DONE);
    back = lab->ops->now(lab);
    if (!err)
        err = lab->ops->sync(lab, lab->stream[0]);
    free_of_it = lab->ops->busy(lab, lab->stream[1]);
    mb__bench_add(b->series, (double)(back - start), (double)(lab->ops->now(lab) - start), NAN);
    lab->ops->unspin(lab);
    if (!err)
        err = lab->ops->sync(lab, NULL);
    if (!err)
        mb__bench_tell(b, what, lab->hw->caps.tables, (uint64_t)count << MB_FRAME_SHIFT, b->series,
                       "1: done while a kernel ran on another stream", free_of_it);
    return err;
}

/* What a turn's step does while the kernel runs; the whole turn is made beside it. */
static enum mb_err beside_vendor(struct mb_bench *b, enum mb_lab_vendor way, uint64_t bytes)
{
    struct mb_lab *lab = &b->lab;
    struct mb_lab_turn turn;
    enum mb_err err = lab->ops->spin(lab, lab->stream[1], SPIN_NS);
    bool after;
    char how[64];

    if (!err)
        err = lab->ops->vendor(lab, way, bytes, 0, &turn);
    after = lab->ops->busy(lab, lab->stream[1]);
    lab->ops->unspin(lab);
    if (!err)
        err = lab->ops->sync(lab, NULL);
    if (err)
        return err;
    snprintf(how, sizeof(how), "%s", mb__lab_vendor_name(way));
    mb__bench_add(b->series, turn.host_ns[MB_LAB_MAP], turn.complete_ns[MB_LAB_MAP], NAN);
    mb__bench_tell(b, "beside map", how, bytes, b->series,
                   "1: map, touch and unmap were done while the kernel ran", after);
    mb__bench_add(b->series, turn.host_ns[MB_LAB_UNMAP], turn.complete_ns[MB_LAB_UNMAP], NAN);
    mb__bench_tell(b, "beside unmap", how, bytes, b->series, "as above", after);
    return MB_OK;
}

static enum mb_err who_waits(struct mb_bench *b)
{
    uint32_t count = (uint32_t)(b->most >> MB_FRAME_SHIFT);
    uint32_t few = count < 32 ? count : 32;
    enum mb_err err = beside_ours(b, "beside map", true, few);

    if (!err)
        err = beside_ours(b, "beside unmap", false, few);
    if (!err && count > few && !b->lab.hw->caps.host_blocking)
        err = beside_ours(b, "beside map", true, count);
    return err;
}

/* ------------------------------------------------------------ what the vendor's calls lose */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Medians of map and unmap of 64 MiB, nothing running beside. */
static enum mb_err vendor_medians(struct mb_bench *b, enum mb_lab_vendor way, double out[2])
{
    enum { TURNS = 9 };
    double ns[2][TURNS];
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < TURNS + 1; i++) {
        struct mb_lab_turn turn;

        err = b->lab.ops->vendor(&b->lab, way, NEIGHBOUR_BYTES, 0, &turn);
        if (!err && i) {
            ns[0][i - 1] = turn.complete_ns[MB_LAB_MAP];
            ns[1][i - 1] = turn.complete_ns[MB_LAB_UNMAP];
        }
    }
    for (unsigned k = 0; !err && k < 2; k++) {
        qsort(ns[k], TURNS, sizeof(double), by_value);
        out[k] = ns[k][TURNS / 2];
    }
    return err;
}

/* With device tables open, nothing running; compared later. */
static enum mb_err neighbours(struct mb_bench *b)
{
    enum mb_err err = MB_OK;

    for (unsigned way = 0; !err && way < MB_LAB_VENDORS; way++)
        err = vendor_medians(b, (enum mb_lab_vendor)way, b->beside_ns[way]);
    return err;
}

static void tell_neighbour(struct mb_bench *b, enum mb_lab_vendor way, const double plain[2])
{
    static const char *const names[2] = {"neighbour map", "neighbour unmap"};

    for (unsigned k = 0; k < 2; k++) {
        mb__bench_add(b->series, NAN, b->beside_ns[way][k], NAN);
        mb__bench_tell(b, names[k], mb__lab_vendor_name(way), NEIGHBOUR_BYTES, b->series,
                       "device tables open; time over the time in a context without them",
                       b->beside_ns[way][k] / plain[k]);
    }
}

enum mb_err mb__bench_beside_vendor(struct mb_bench *b)
{
    enum mb_err err = MB_OK;

    if (b->lab.ops->modelled)
        return MB_OK;
    for (unsigned w = 0; !err && w < MB_LAB_VENDORS; w++) {
        enum mb_lab_vendor way = (enum mb_lab_vendor)w;
        double plain[2];

        err = vendor_medians(b, way, plain);
        if (!err && b->beside_ns[way][0] > 0)
            tell_neighbour(b, way, plain);
        if (!err)
            err = beside_vendor(b, way, NEIGHBOUR_BYTES);
    }
    return err;
}

/* ------------------------------------------------------------ what the others lose */

enum load { NOTHING, MAP_CLEAN, MAP_WHOLE, MAP_RANGE, VENDOR_VMM, LOADS };
static const char *const load_names[LOADS] = {"nothing beside it", "maps", "maps, each invalidates",
                                              "maps, each invalidates its range",
                                              "cuMemMap and cuMemUnmap"};

static enum mb_err one_load(struct mb_bench *b, enum load load, uint32_t count)
{
    static const unsigned flags[LOADS] = {
        [MAP_WHOLE] = DONE, [MAP_RANGE] = MB_LAB_TARGETED | MB_LAB_MEMBAR};
    struct mb_lab_turn turn;
    enum mb_err err;

    if (load == VENDOR_VMM)
        return b->lab.ops->vendor(&b->lab, MB_LAB_VMM_SMALL, (uint64_t)count << MB_FRAME_SHIFT, 0,
                                  &turn);
    err = mb__lab_write(&b->lab, b->lab.stream[0], 0, count, mb__bench_list(b, count), flags[load]);
    return err ? err : b->lab.ops->sync(&b->lab, b->lab.stream[0]);
}

/* Time of the reading kernel while `load` goes on; `done` counts the mappings meanwhile. */
static enum mb_err wander_beside(struct mb_bench *b, enum load load, uint32_t count, uint32_t reads,
                                 double *ns, unsigned *done)
{
    struct mb_lab *lab = &b->lab;
    uint64_t start = lab->ops->now(lab), end = 0;
    enum mb_err err = lab->ops->wander(lab, lab->stream[1], reads);

    *done = 0;
    while (!err && lab->ops->busy(lab, lab->stream[1])) {
        if (load == NOTHING)
            continue;
        err = one_load(b, load, count);
        *done += !err;
    }
    end = lab->ops->now(lab);
    if (!err)
        err = lab->ops->sync(lab, NULL);
    *ns = (double)(end - start);
    return err;
}

static enum mb_err slowdown(struct mb_bench *b)
{
    enum { READS = 20000, COUNT = 32 };
    struct mb_lab *lab = &b->lab;
    double alone = NAN;
    enum mb_err err = MB_OK;

    if (!lab->ops->wander) {
        (void)mb__fail(MB_ERR_NOT_SUPPORTED,
                       "kernels that share a device are not modelled in time");
        mb__bench_skip(b, "slowdown", "", 0);
        return MB_OK;
    }
    for (unsigned load = 0; !err && load < LOADS; load++) {
        double ns = 0, best = NAN;
        unsigned done = 0;
        char note[96];

        if (load == VENDOR_VMM && b->options->no_vendor)
            continue;
        if (lab->hw->caps.host_blocking && (load == MAP_WHOLE || load == MAP_RANGE))
            continue;
        err = load == MAP_RANGE || load == MAP_WHOLE ? lab->ops->targeted(lab, load == MAP_RANGE)
                                                     : MB_OK;
        if (err == MB_ERR_NOT_SUPPORTED && load == MAP_RANGE) {
            mb__bench_skip(b, "slowdown", load_names[load], 0);
            err = MB_OK;
            continue;
        }
        err = MB_OK;
        for (unsigned i = 0; !err && i < 3; i++) {
            err = wander_beside(b, (enum load)load, COUNT, READS, &ns, &done);
            best = isnan(best) || ns < best ? ns : best;
            mb__bench_add(b->series, NAN, ns, NAN);
        }
        if (load == NOTHING)
            alone = best;
        snprintf(note, sizeof(note), "time over time alone; %.0f mappings of 64 MiB a second",
                 done / (ns * 1e-9));
        if (!err)
            mb__bench_tell(b, "slowdown", load_names[load], 0, b->series, note, best / alone);
    }
    return err;
}

/* ------------------------------------------------------------ copies beside pending batches */

static enum mb_err make_pending(struct mb_bench *b, struct mb_hw_stream **streams, unsigned pending)
{
    enum { COUNT = PENDING_STREAMS };
    struct mb_lab *lab = &b->lab;
    uint32_t per = lab->slots / COUNT; /* a window has 256 slots at least */
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < COUNT; i++)
        err = lab->ops->sem_wait(lab, streams[i], GATE, 1);
    /* Each stream has slots of its own: no batch of one waits for a batch of another. */
    for (unsigned i = 0; !err && i < pending; i++) {
        mb_pfn pfn = lab->pfn[i % lab->frames];

        err = mb__lab_write(lab, streams[i % COUNT], i % COUNT * per + i / COUNT % per, 1, &pfn,
                            DONE);
    }
    return err;
}

static enum mb_err rates(struct mb_lab *lab, double out[MB_LAB_COPIES])
{
    enum mb_err err = MB_OK;

    for (unsigned way = 0; !err && way < MB_LAB_COPIES; way++) {
        out[way] = 0;
        for (unsigned i = 0; !err && i < 4; i++) {
            double rate = 0;

            err = lab->ops->copy_rate(lab, (enum mb_lab_copy)way, 32ull << 20, &rate);
            out[way] = rate > out[way] ? rate : out[way];
        }
        if (err == MB_ERR_TIMEOUT) {
            /* An answer too: these copies stand still. Nothing after them can be told. */
            out[way] = 0;
            for (way++; way < MB_LAB_COPIES; way++)
                out[way] = NAN;
            return MB_OK;
        }
    }
    return err;
}

static void tell_rates(struct mb_bench *b, const double *alone, const double *beside,
                       unsigned pending, unsigned streams)
{
    static const char *const names[MB_LAB_COPIES] = {"host to device", "device to host",
                                                     "device to device"};

    for (unsigned way = 0; way < MB_LAB_COPIES; way++) {
        char note[128];

        snprintf(note, sizeof(note),
                 "rate over rate alone (%.1f GB/s) with %u batches pending on %u streams",
                 alone[way] * 1e-9, pending, streams);
        mb__bench_tell(b, "pending", names[way], 32ull << 20, b->series, note,
                       beside[way] / alone[way]);
    }
}

static enum mb_err copies_beside(struct mb_bench *b)
{
    struct mb_lab *lab = &b->lab;
    struct mb_hw_stream *streams[PENDING_STREAMS] = {0};
    mb_stream native[PENDING_STREAMS] = {0};
    double alone[MB_LAB_COPIES], beside[MB_LAB_COPIES];
    unsigned pending = b->options->pending ? b->options->pending : 1000;
    const unsigned count = PENDING_STREAMS;
    enum mb_err err = lab->ops->sync(lab, NULL);

    if (!lab->ops->copy_rate || lab->hw->caps.host_blocking) {
        (void)mb__fail(MB_ERR_NOT_SUPPORTED, "needs copy engines and device tables");
        mb__bench_skip(b, "pending", "", 0);
        return err;
    }
    for (unsigned i = 0; !err && i < count; i++) {
        err = lab->hw->ops->stream_create(lab->hw, &native[i]);
        if (!err)
            err = lab->hw->ops->stream_open(lab->hw, native[i], &streams[i]);
        /* Queues are made at first use, which is not what is measured. */
        if (!err)
            err = mb__lab_write(lab, streams[i], i, 1, &lab->pfn[i], DONE);
    }
    if (!err)
        err = lab->ops->sync(lab, NULL);
    lab->ops->sem_host(lab, GATE, 0);
    if (!err)
        err = rates(lab, alone);
    if (!err)
        err = make_pending(b, streams, pending);
    if (!err)
        err = rates(lab, beside);
    lab->ops->sem_host(lab, GATE, 1);
    if (lab->ops->sync(lab, NULL) && !err)
        err = MB_ERR_DEVICE_LOST;
    for (unsigned i = 0; i < count; i++) {
        if (streams[i])
            lab->hw->ops->stream_close(lab->hw, streams[i]);
        if (native[i])
            (void)lab->hw->ops->stream_destroy(lab->hw, native[i]);
    }
    if (!err)
        tell_rates(b, alone, beside, pending, count);
    return err;
}

enum mb_err mb__bench_beside(struct mb_bench *b)
{
    enum mb_err err = who_waits(b);

    if (!err && !b->lab.ops->modelled && !b->options->no_vendor)
        err = neighbours(b);
    if (!err)
        err = slowdown(b);
    return err ? err : copies_beside(b);
}
