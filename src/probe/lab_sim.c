/* SPDX-License-Identifier: MIT */
/*
 * lab_sim.c - the lab on the software GPU: virtual time, programs through its test hooks.
 *
 * Accesses of programs are not judged by the oracle: a litmus program makes wrong ones on purpose.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/sim/sim.h"
#include "probe/litmus.h"

enum { MAX_STEPS = 4096 };

struct own {
    uint64_t answer[MB_LITMUS_ANSWERS];
    uint64_t copied_from; /* frame that copy_read() writes into */
    struct mb_sim_step step[MAX_STEPS];
};

static struct own *own_of(struct mb_lab *lab)
{
    return lab->own;
}

static enum mb_err sim_open(struct mb_lab *lab)
{
    lab->own = calloc(1, sizeof(struct own));
    if (!lab->own)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a lab");
    lab->answer = own_of(lab)->answer;
    return MB_OK;
}

static void sim_close(struct mb_lab *lab)
{
    free(lab->own);
    lab->own = NULL;
}

static uint64_t sim_now(struct mb_lab *lab)
{
    struct mb_sim_counters c;

    mb__sim_counters(lab->hw, &c);
    return c.host_ns;
}

static enum mb_err sim_sync(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    struct mb_hw_fence fence;
    enum mb_err err;

    if (!stream)
        return lab->hw->ops->device_sync(lab->hw);
    err = lab->hw->ops->fence_record(lab->hw, stream, &fence);
    return err ? err : lab->hw->ops->fence_wait_host(lab->hw, fence, 0);
}

static bool sim_busy(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    struct mb_hw_fence fence;

    return !lab->hw->ops->fence_record(lab->hw, stream, &fence) &&
           !lab->hw->ops->fence_done(lab->hw, fence);
}

static enum mb_err sim_nop(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    return mb__sim_kernel(lab->hw, stream, NULL, 0, MB_SIM_ROGUE);
}

static enum mb_err sim_touch(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va,
                             uint64_t stride, uint32_t count, uint64_t first)
{
    struct own *own = own_of(lab);

    if (count > MAX_STEPS)
        return mb__fail(MB_ERR_LIMIT, "touching %u pages; at most %d", count, MAX_STEPS);
    for (uint32_t i = 0; i < count; i++)
        own->step[i] = (struct mb_sim_step){
            .kind = MB_SIM_ST, .sm = i, .va = mb__va_add(va, i * stride), .value = first + i};
    return mb__sim_kernel(lab->hw, stream, own->step, count, MB_SIM_ROGUE);
}

static enum mb_err sim_spin(struct mb_lab *lab, struct mb_hw_stream *stream, uint64_t ns)
{
    return mb__sim_delay(lab->hw, stream, ns);
}

static void sim_unspin(struct mb_lab *lab)
{
    (void)lab;
}

enum { PAIR_HEAD = 2, PAIR_STEPS = 5 };

/* The model has no compiler: a read-only load is a non-coherent one. */
static void pair_steps(const struct mb_litmus_step *pair, struct mb_litmus_step parts[PAIR_STEPS])
{
    static const enum mb_litmus_op ops[PAIR_STEPS] = {
        MB_LITMUS_LD_NC, MB_LITMUS_SEM_SET, MB_LITMUS_SEM_WAIT, MB_LITMUS_FENCE, MB_LITMUS_LD_NC};

    for (unsigned k = 0; k < PAIR_STEPS; k++) {
        parts[k] = *pair;
        parts[k].op = ops[k];
        parts[k].value = pair->value + (ops[k] == MB_LITMUS_SEM_WAIT);
        parts[k].answer = pair->answer + (k == PAIR_STEPS - 1);
    }
}

static struct mb_sim_step sim_step(struct own *own, const struct mb_litmus_step *s)
{
    static const enum mb_sim_step_kind kinds[] = {
        [MB_LITMUS_LD_CA] = MB_SIM_LD_CA,     [MB_LITMUS_LD_CG] = MB_SIM_LD_CG,
        [MB_LITMUS_LD_VOL] = MB_SIM_LD_VOL,   [MB_LITMUS_LD_NC] = MB_SIM_LD_NC,
        [MB_LITMUS_ST] = MB_SIM_ST,           [MB_LITMUS_FENCE] = MB_SIM_FENCE,
        [MB_LITMUS_DELAY] = MB_SIM_DELAY,     [MB_LITMUS_SEM_WAIT] = MB_SIM_SEM_WAIT,
        [MB_LITMUS_SEM_SET] = MB_SIM_SEM_SET,
    };

    return (struct mb_sim_step){.kind = kinds[s->op],
                                .sm = s->thread,
                                .sem = s->sem,
                                .va = mb__va(s->va),
                                .value = s->value,
                                .out = s->answer == MB_LITMUS_NO_ANSWER ? NULL
                                                                        : &own->answer[s->answer]};
}

/* The model's kernel executes its steps one after the other: the second half of a pair comes behind
 * the others' steps. */
static enum mb_err sim_run(struct mb_lab *lab, struct mb_hw_stream *stream,
                           const struct mb_litmus_step *steps, unsigned count, bool dependent)
{
    struct own *own = own_of(lab);
    struct mb_litmus_step pair[PAIR_STEPS];
    bool paired = false;
    unsigned used = 0;

    /* The model's programmatic launches wait for all of the launch before, as the litmus does. */
    (void)dependent;
    if (count + PAIR_STEPS > MAX_STEPS)
        return mb__fail(MB_ERR_LIMIT, "a program of %u steps; at most %d", count,
                        MAX_STEPS - PAIR_STEPS);
    for (unsigned i = 0; i < count; i++) {
        if (steps[i].op != MB_LITMUS_READ_ONLY_PAIR) {
            own->step[used++] = sim_step(own, &steps[i]);
            continue;
        }
        if (paired)
            return mb__fail(MB_ERR_NOT_SUPPORTED, "two pairs of read-only loads in one program");
        paired = true;
        pair_steps(&steps[i], pair);
        for (unsigned k = 0; k < PAIR_HEAD; k++)
            own->step[used++] = sim_step(own, &pair[k]);
    }
    for (unsigned k = PAIR_HEAD; paired && k < PAIR_STEPS; k++)
        own->step[used++] = sim_step(own, &pair[k]);
    return mb__sim_kernel(lab->hw, stream, own->step, used, MB_SIM_ROGUE);
}

/* A graph's chain of nodes is a chain of kernels: the model has no other notion of one. */
static enum mb_err sim_run_graph(struct mb_lab *lab, struct mb_hw_stream *stream,
                                 const struct mb_litmus_step *steps, const unsigned *counts,
                                 unsigned nodes)
{
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < nodes; i++) {
        err = sim_run(lab, stream, steps, counts[i], false);
        steps += counts[i];
    }
    return err ? err : sim_sync(lab, stream);
}

/* The copy goes into the last frame of the pool through the window's last slot, and the word is
 * looked up in physical memory after the wait. */
static enum mb_err sim_copy_read(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va,
                                 unsigned index)
{
    mb_pfn pfn = lab->pfn[lab->frames - 1];
    uint32_t slot = lab->slots - 1;
    enum mb_err err = mb__lab_write(lab, stream, slot, 1, &pfn, MB_LAB_TARGETED | MB_LAB_MEMBAR);

    if (!err)
        err = mb__sim_copy_ce(lab->hw, stream, mb__lab_va(lab, slot), va, 8);
    if (!err)
        err = sim_sync(lab, stream);
    if (!err)
        lab->answer[index] = mb__sim_peek(lab->hw, mb__phys_of_pfn(pfn));
    return err;
}

static enum mb_err sim_sem_wait(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                                uint64_t value)
{
    return mb__sim_sem_wait(lab->hw, stream, sem, value);
}

static enum mb_err sim_sem_set(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                               uint64_t value)
{
    return mb__sim_sem_set(lab->hw, stream, sem, value);
}

static void sim_sem_host(struct mb_lab *lab, uint32_t sem, uint64_t value)
{
    mb__sim_sem_host(lab->hw, sem, value);
}

/* Where the tree is ours, cleared is invalid. */
static enum mb_err sim_spoil(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t slot,
                             uint32_t count)
{
    if (!lab->hw->caps.tree_is_ours)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "slots of a primed window are never invalid");
    return mb__lab_write(lab, stream, slot, count, NULL, 0);
}

static void sim_crowd(struct mb_lab *lab, unsigned threads, unsigned processes, unsigned sharers)
{
    mb__sim_set_crowd(lab->hw, threads, processes, sharers);
}

static enum mb_err sim_vendor(struct mb_lab *lab, enum mb_lab_vendor way, uint64_t bytes,
                              unsigned wanted, struct mb_lab_turn *turn)
{
    bool vmm = way == MB_LAB_VMM_SMALL || way == MB_LAB_VMM_ONE;
    enum mb_sim_stock map = way == MB_LAB_VMM_SMALL ? MB_SIM_STOCK_MAP
                            : way == MB_LAB_VMM_ONE ? MB_SIM_STOCK_MALLOC_TABLES
                                                    : MB_SIM_STOCK_MALLOC;
    double map_ns = (double)mb__sim_stock_ns(lab->hw, map, bytes);
    double unmap_ns =
        (double)mb__sim_stock_ns(lab->hw, vmm ? MB_SIM_STOCK_UNMAP : MB_SIM_STOCK_FREE, bytes);

    for (unsigned i = 0; i < MB_LAB_STEPS; i++)
        turn->host_ns[i] = turn->complete_ns[i] = turn->used_ns[i] = NAN;
    if (way == MB_LAB_ASYNC_WARM || way == MB_LAB_ASYNC_COLD)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "the vendor's pool is not modelled in time");
    if (way == MB_LAB_VMM_ONE)
        unmap_ns = NAN; /* the model has no figure for it */
    turn->host_ns[MB_LAB_MAP] = map_ns;
    turn->host_ns[MB_LAB_UNMAP] = unmap_ns;
    if (vmm) {
        turn->host_ns[MB_LAB_REMAP] = map_ns + unmap_ns;
        turn->host_ns[MB_LAB_ALIAS] = map_ns;
        turn->host_ns[MB_LAB_PROTECT] = map_ns;
    }
    for (unsigned i = 0; i < MB_LAB_STEPS; i++) {
        if (!(wanted & 1u << i))
            turn->host_ns[i] = NAN;
        turn->complete_ns[i] = turn->host_ns[i];
    }
    return MB_OK;
}

static enum mb_err sim_targeted(struct mb_lab *lab, bool on)
{
    (void)lab;
    (void)on; /* commands say themselves what they are about */
    return MB_OK;
}

static enum mb_err sim_invalidate(struct mb_lab *lab)
{
    struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};
    enum mb_err err = lab->hw->ops->submit(lab->hw, lab->stream[0], &cmd, 1);

    return err ? err : sim_sync(lab, lab->stream[0]);
}

/* A program of one load per group against the same program again: the difference is the walks. */
static enum mb_err sim_first_touch(struct mb_lab *lab, uint32_t pages, double *first_ns,
                                   double *later_ns)
{
    uint32_t step = lab->hw->caps.group_slots;
    double *out[2] = {first_ns, later_ns};
    enum mb_err err = MB_OK;

    if (pages > lab->slots / step)
        pages = lab->slots / step;
    if (pages > MAX_STEPS)
        pages = MAX_STEPS;
    for (unsigned turn = 0; !err && turn < 2; turn++) {
        uint64_t before;

        if (!turn)
            err = sim_invalidate(lab);
        for (uint32_t i = 0; i < pages; i++)
            own_of(lab)->step[i] =
                (struct mb_sim_step){.kind = MB_SIM_LD_CG, .va = mb__lab_va(lab, i * step)};
        before = sim_now(lab);
        if (!err)
            err = mb__sim_kernel(lab->hw, lab->stream[0], own_of(lab)->step, pages, MB_SIM_ROGUE);
        if (!err)
            err = sim_sync(lab, lab->stream[0]);
        *out[turn] = (double)(sim_now(lab) - before) / pages;
    }
    return err;
}

static uint64_t sim_faults(struct mb_lab *lab)
{
    struct mb_hw_counters c;

    lab->hw->ops->counters(lab->hw, &c);
    return c.faults;
}

static enum mb_err sim_driver_entry(struct mb_lab *lab, uint32_t frame, struct mb_pte *out)
{
    /* The model's driver writes what the format says; there is no second source to compare with. */
    *out = mb_fmt_leaf_at(lab->hw->caps.format, MB_FRAME_SHIFT, lab->tmpl_rw, lab->pfn[frame].n);
    return MB_OK;
}

static void sim_switch_off(struct mb_lab *lab, unsigned rules)
{
    static const struct {
        unsigned rule, mutant;
    } map[] = {
        {MB_LITMUS_OFF_VALID, MB_SIM_NO_VALID_GROUP},
        {MB_LITMUS_OFF_INVALID, MB_SIM_NO_INVALID_GROUP},
        {MB_LITMUS_OFF_INVALIDATE, MB_SIM_NO_INVALIDATE},
        {MB_LITMUS_OFF_MEMBAR, MB_SIM_NO_MEMBAR},
        {MB_LITMUS_OFF_L1, MB_SIM_NO_L1},
        {MB_LITMUS_OFF_BOUNDARY, MB_SIM_WARM_L1},
    };
    unsigned mutants = 0;

    for (unsigned i = 0; i < sizeof(map) / sizeof(map[0]); i++)
        mutants |= rules & map[i].rule ? map[i].mutant : 0;
    mb__sim_set_mutants(lab->hw, mutants);
}

const struct mb_lab_ops mb__lab_sim = {
    .modelled = true,
    .open = sim_open,
    .close = sim_close,
    .now = sim_now,
    .sync = sim_sync,
    .busy = sim_busy,
    .nop = sim_nop,
    .touch = sim_touch,
    .spin = sim_spin,
    .unspin = sim_unspin,
    .run = sim_run,
    .run_graph = sim_run_graph,
    .copy_read = sim_copy_read,
    .sem_wait = sim_sem_wait,
    .sem_set = sim_sem_set,
    .sem_host = sim_sem_host,
    .spoil = sim_spoil,
    .vendor = sim_vendor,
    .crowd = sim_crowd,
    .targeted = sim_targeted,
    .first_touch = sim_first_touch,
    .invalidate = sim_invalidate,
    .faults = sim_faults,
    .switch_off = sim_switch_off,
    .driver_entry = sim_driver_entry,
};
