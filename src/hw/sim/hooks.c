/* SPDX-License-Identifier: MIT */
/* hooks.c - the short hooks of sim.h. */
#include "hw/sim/dev.h"

#include <string.h>

void mb__sim_set_mutants(struct mb_hw_dev *hw, unsigned mutants)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->mutants = mutants;
    sim_unlock(dev);
}

void mb__sim_set_seed(struct mb_hw_dev *hw, uint64_t seed)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->rng = seed;
    dev->preference = dev->eager = 0;
    sim_unlock(dev);
}

void mb__sim_set_scatter(struct mb_hw_dev *hw, bool scatter)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->scatter = scatter;
    sim_unlock(dev);
}

void mb__sim_set_copy_engine(struct mb_hw_dev *hw, bool on)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->copy_engine = on;
    sim_unlock(dev);
}

/* ------------------------------------------------------------ work */

static enum mb_err push_simple(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                               enum sim_op_kind kind, uint32_t sem, uint64_t value)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    if (!err && sem >= MB_SIM_SEMAPHORES)
        err = mb__fail(MB_ERR_INVALID, "semaphore %u; allowed are 0 to %d", sem,
                       MB_SIM_SEMAPHORES - 1);
    if (!err)
        err = mb__sim_stream_reserve(stream, 1, 0);
    if (!err) {
        struct sim_op *op = mb__sim_stream_push(stream, kind);

        op->sem.sem = sem;
        op->sem.value = value;
        mb__sim_engine_kick(dev);
    }
    sim_unlock(dev);
    return err;
}

enum mb_err mb__sim_delay(struct mb_hw_dev *hw, struct mb_hw_stream *stream, uint64_t ns)
{
    return push_simple(hw, stream, SIM_OP_DELAY, 0, ns);
}

enum mb_err mb__sim_sem_wait(struct mb_hw_dev *hw, struct mb_hw_stream *stream, uint32_t sem,
                             uint64_t value)
{
    return push_simple(hw, stream, SIM_OP_SEM_WAIT, sem, value);
}

enum mb_err mb__sim_sem_set(struct mb_hw_dev *hw, struct mb_hw_stream *stream, uint32_t sem,
                            uint64_t value)
{
    return push_simple(hw, stream, SIM_OP_SEM_SET, sem, value);
}

void mb__sim_sem_host(struct mb_hw_dev *hw, uint32_t sem, uint64_t value)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    if (sem < MB_SIM_SEMAPHORES && dev->sem[sem] < value) {
        /* What was due before now has not seen it. */
        if (!dev->explore)
            mb__sim_engine_run(dev, dev->host_ns);
        dev->sem[sem] = value;
        if (dev->now_ns < dev->host_ns)
            dev->now_ns = dev->host_ns;
    }
    sim_unlock(dev);
}

enum mb_err mb__sim_copy_ce(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                            uint64_t bytes)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_access_enqueue(dev, stream, SIM_OP_COPY, dst, src, bytes, 0, SIM_OP_CE);
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ observation */

void mb__sim_counters(struct mb_hw_dev *hw, struct mb_sim_counters *out)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    *out = dev->sim;
    out->queued_ops = dev->queued;
    out->host_ns = dev->host_ns;
    out->device_ns = dev->now_ns;
    out->memory_bytes = dev->mem.host_bytes + dev->tables.bytes;
    sim_unlock(dev);
}

void mb__sim_host_pass(struct mb_hw_dev *hw, uint64_t ns)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->host_ns += ns;
    if (!dev->explore)
        mb__sim_engine_run(dev, dev->host_ns);
    sim_unlock(dev);
}

mb_pfn mb__sim_walk(struct mb_hw_dev *hw, mb_va va)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct sim_where where;

    sim_lock(dev);
    where = mb__sim_walk_memory(dev, va.addr, false);
    sim_unlock(dev);
    return where.fault || where.sparse ? MB_NO_PFN : mb__pfn_of_phys(where.phys);
}

bool mb__sim_cached(struct mb_hw_dev *hw, mb_va va)
{
    static const unsigned shift[3] = {21, 16, 12};
    struct sim_dev *dev = sim_dev_of(hw);
    bool cached = false;
    uint64_t slot;

    sim_lock(dev);
    for (unsigned i = 0; i < 3; i++) {
        for (unsigned g = 0; g < dev->model->utlbs; g++)
            cached |= mb__sim_tlb_find(&dev->utlb[g], dev, va.addr, shift[i], &slot) != NULL;
        cached |= mb__sim_tlb_find(&dev->l2, dev, va.addr, shift[i], &slot) != NULL;
    }
    sim_unlock(dev);
    return cached;
}

static bool names(const struct sim_dev *dev, const struct sim_tlb *tlb, uint64_t frame)
{
    for (size_t i = 0; i < (size_t)tlb->sets * SIM_TLB_WAYS; i++) {
        const struct sim_group *group = &tlb->entry[i];

        for (unsigned s = 0; group->epoch == tlb->epoch && s < dev->model->group_slots; s++) {
            if (group->present >> s & 1 && group->slot[s] & SIM_SLOT_VALID &&
                group->slot[s] >> SIM_SLOT_PFN_SHIFT >> (MB_FRAME_SHIFT - MB_PFN_SHIFT) == frame)
                return true;
        }
    }
    return false;
}

static bool any_names(struct sim_dev *dev, uint64_t frame)
{
    bool found;

    sim_lock(dev);
    found = names(dev, &dev->l2, frame) || names(dev, &dev->ce, frame);
    for (unsigned i = 0; i < dev->model->utlbs && !found; i++)
        found = names(dev, &dev->utlb[i], frame);
    sim_unlock(dev);
    return found;
}

bool mb__sim_tlb_names(struct mb_hw_dev *hw, mb_pfn pfn)
{
    return any_names(sim_dev_of(hw), pfn.n >> (MB_FRAME_SHIFT - MB_PFN_SHIFT));
}

bool mb__sim_tlb_names_of(struct mb_hw_dev *hw, const struct mb_hw_dev *owner, mb_pfn pfn)
{
    const struct sim_dev *of = (const struct sim_dev *)owner;
    uint64_t peer = (uint64_t)of->ordinal + 1;

    return any_names(sim_dev_of(hw), (peer << (SIM_SLOT_PEER_SHIFT - SIM_SLOT_PFN_SHIFT) | pfn.n) >>
                                         (MB_FRAME_SHIFT - MB_PFN_SHIFT));
}

uint64_t mb__sim_peek(struct mb_hw_dev *hw, uint64_t phys)
{
    struct sim_dev *dev = sim_dev_of(hw);
    uint64_t word = 0;

    bool taken;

    sim_lock(dev);
    taken = mb__sim_share(dev, false);
    if (mb__sim_memory_frame(&dev->mem, phys) != UINT32_MAX)
        word = mb__sim_memory_word(&dev->mem, phys);
    mb__sim_unshare(taken);
    sim_unlock(dev);
    return word;
}
