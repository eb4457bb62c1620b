/* SPDX-License-Identifier: MIT */
/*
 * batch.c - the commands of submit(): checked, queued, executed.
 *
 * INLINE    The commands are operations of the stream itself.
 * ISOLATED  They are operations of a helper queue of the stream, which first waits for the stream;
 *           the stream then waits for the helper. Both waits are ordinary fences, so that the
 *           mutant with one helper queue for all streams shows the deadlock that it would have on a
 *           device.
 * DRIVER    Executed as inline, but the host pays the vendor's price per entry.
 *
 * VISIBILITY  By time an entry is in the table as soon as it is written. In explore mode it waits
 * in dev->pending until a drawn moment or the stream's BARRIER; writes of one stream to one slot
 * keep their order, all others do not.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ checks */

static unsigned slots_per_leaf(const struct sim_dev *dev, unsigned leaf_shift)
{
    return mb_fmt_leaf_slots(dev->fmt, leaf_shift);
}

static enum mb_err check_pfns(const struct sim_dev *dev, const mb_pfn *pfns, uint32_t count,
                              unsigned leaf_shift)
{
    uint64_t align = mb_fmt_leaf_align(dev->fmt, leaf_shift);

    for (uint32_t i = 0; i < count; i++) {
        uint64_t phys = mb__phys_of_pfn(pfns[i]);
        uint32_t frame = mb__sim_memory_frame(&dev->mem, phys);

        if (frame == UINT32_MAX || !dev->mem.held[frame])
            return mb__fail(
                MB_ERR_INVALID,
                "submit: entry %u names frame 0x%x, which no slab of this device holds; "
                "map frames between slab_acquire and slab_release only",
                i, pfns[i].n);
        if (phys & (align - 1))
            return mb__fail(MB_ERR_INVALID,
                            "submit: frame 0x%x is not aligned to its leaf of %llu bytes",
                            pfns[i].n, (unsigned long long)align);
    }
    return MB_OK;
}

static enum mb_err check_leaves(struct sim_dev *dev, const struct mb_hw_cmd *cmd)
{
    const struct mb_hw_view *view = cmd->leaves.view;
    uint64_t slots = view ? view->bytes >> view->leaf_shift : 0;
    unsigned per_leaf, slot_bytes;

    if (!view || (view->leaf_shift != 21 && view->leaf_shift != 16 && view->leaf_shift != 12) ||
        view->slot_bytes != mb_fmt_slot_bytes(dev->fmt, view->leaf_shift))
        return mb__fail(MB_ERR_INVALID,
                        "submit: the view is missing or its geometry is not that of "
                        "this device's entries");
    per_leaf = slots_per_leaf(dev, view->leaf_shift);
    slot_bytes = view->slot_bytes * per_leaf;
    if (cmd->leaves.first > slots || cmd->leaves.count > slots - cmd->leaves.first)
        return mb__fail(MB_ERR_INVALID, "submit: slots %u + %u lie outside the view's %llu",
                        cmd->leaves.first, cmd->leaves.count, (unsigned long long)slots);
    if (cmd->leaves.count &&
        !mb__sim_table_at(dev, view->table + (uint64_t)cmd->leaves.first * slot_bytes,
                          (uint64_t)cmd->leaves.count * slot_bytes))
        return mb__fail(MB_ERR_INVALID, "submit: the view's table at 0x%llx is no table memory",
                        (unsigned long long)view->table);
    if (!cmd->leaves.pfns)
        return MB_OK;
    return check_pfns(dev, cmd->leaves.pfns, cmd->leaves.count, view->leaf_shift);
}

static enum mb_err check_dir(struct sim_dev *dev, const struct mb_hw_cmd *cmd)
{
    const struct mb_fmt_level *level;

    if (!dev->hw.caps.tree_is_ours)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "submit: directories of this device belong to its driver; use tree_adopt");
    if (cmd->dir.level >= dev->geo.levels)
        return mb__fail(MB_ERR_INVALID, "submit: directory level %u, allowed are 0 to %u",
                        cmd->dir.level, dev->geo.levels - 1);
    level = &dev->geo.level[cmd->dir.level];
    if (cmd->dir.index >> level->bits ||
        !mb__sim_table_at(dev, cmd->dir.table_phys + (uint64_t)cmd->dir.index * level->entry_bytes,
                          level->entry_bytes))
        return mb__fail(MB_ERR_INVALID,
                        "submit: entry %u of the directory at 0x%llx (level %u) is no table memory",
                        cmd->dir.index, (unsigned long long)cmd->dir.table_phys, cmd->dir.level);
    return MB_OK;
}

static enum mb_err check_command(struct sim_dev *dev, const struct mb_hw_cmd *cmd)
{
    switch (cmd->kind) {
    case MB_HW_WAIT:
        if (cmd->fence.stream && cmd->fence.stream->dev != dev)
            return mb__fail(MB_ERR_INVALID, "submit: the fence belongs to another device");
        return MB_OK;
    case MB_HW_LEAVES:
        return check_leaves(dev, cmd);
    case MB_HW_DIR:
        return check_dir(dev, cmd);
    case MB_HW_INVALIDATE:
        if (cmd->inval.va.addr + cmd->inval.bytes < cmd->inval.va.addr)
            return mb__fail(MB_ERR_INVALID, "submit: the range to invalidate wraps");
        return MB_OK;
    case MB_HW_BARRIER:
    case MB_HW_MEMBAR:
        return MB_OK;
    }
    return mb__fail(MB_ERR_INVALID, "submit: unknown command kind %d", (int)cmd->kind);
}

/* ------------------------------------------------------------ enqueue */

static void push_leaves(struct sim_dev *dev, struct mb_hw_stream *queue,
                        const struct mb_hw_cmd *cmd, struct sim_op *op)
{
    const struct mb_hw_view *view = cmd->leaves.view;
    struct mb_pte clear = mb_fmt_invalid_leaf(dev->fmt, view->leaf_shift);

    op->leaf_shift = (uint8_t)view->leaf_shift;
    op->slot_bytes = (uint8_t)view->slot_bytes;
    op->leaves.table = view->table;
    op->leaves.first = cmd->leaves.first;
    op->leaves.count = cmd->leaves.count;
    op->leaves.clear = !cmd->leaves.pfns;
    op->leaves.tmpl = cmd->leaves.tmpl;
    if (cmd->leaves.pfns) {
        mb__sim_stream_append(queue, op, &cmd->leaves.pfns->n, cmd->leaves.count);
        return;
    }
    if (!mb__pfn_eq(view->clear_pfn, MB_NO_PFN))
        clear = mb__sim_driver_entry(dev, view->clear_pfn);
    op->leaves.tmpl = clear.lo;
}

static void push_command(struct sim_dev *dev, struct mb_hw_stream *queue,
                         const struct mb_hw_cmd *cmd, unsigned flags)
{
    static const uint8_t kind[] = {
        [MB_HW_WAIT] = SIM_OP_WAIT,     [MB_HW_LEAVES] = SIM_OP_LEAVES,
        [MB_HW_DIR] = SIM_OP_DIR,       [MB_HW_BARRIER] = SIM_OP_BARRIER,
        [MB_HW_MEMBAR] = SIM_OP_MEMBAR, [MB_HW_INVALIDATE] = SIM_OP_INVALIDATE,
    };
    struct sim_op *op = mb__sim_stream_push(queue, (enum sim_op_kind)kind[cmd->kind]);

    op->flags = (uint8_t)flags;
    if (cmd->kind == MB_HW_WAIT) {
        op->fence = cmd->fence;
    } else if (cmd->kind == MB_HW_LEAVES) {
        push_leaves(dev, queue, cmd, op);
    } else if (cmd->kind == MB_HW_DIR) {
        op->slot_bytes = (uint8_t)dev->geo.level[cmd->dir.level].entry_bytes;
        op->dir.addr = cmd->dir.table_phys + (uint64_t)cmd->dir.index * op->slot_bytes;
        op->dir.value = cmd->dir.value;
    } else if (cmd->kind == MB_HW_INVALIDATE) {
        op->inval.va = cmd->inval.va.addr;
        op->inval.bytes = cmd->inval.bytes;
    }
}

static void push_wait(struct mb_hw_stream *queue, struct mb_hw_fence fence)
{
    struct sim_op *op = mb__sim_stream_push(queue, SIM_OP_WAIT);

    op->flags = SIM_OP_ISOLATED;
    op->fence = fence;
}

static void push_batch(struct sim_dev *dev, struct mb_hw_stream *queue,
                       const struct mb_hw_cmd *cmds, unsigned count, unsigned flags)
{
    unsigned first = SIM_OP_FIRST;

    for (unsigned i = 0; i < count; i++) {
        bool wait = cmds[i].kind == MB_HW_WAIT;

        push_command(dev, queue, &cmds[i], flags | (wait ? 0 : first));
        first = wait ? first : 0;
    }
}

/* The queue that executes the stream's batches; NULL with detail when the host has no memory. */
static struct mb_hw_stream *queue_of(struct sim_dev *dev, struct mb_hw_stream *stream)
{
    struct mb_hw_stream **queue = &stream->queue;

    if (!dev->isolated)
        return stream;
    if (dev->mutants & MB_SIM_SHARED_QUEUE)
        queue = &dev->shared_queue;
    if (!*queue) {
        *queue = mb__sim_stream_new(dev);
        if (*queue) {
            (*queue)->helper = true;
            (*queue)->id = stream->id;
        }
    }
    return *queue;
}

static void charge_host(struct sim_dev *dev, const struct mb_hw_cmd *cmds, unsigned count)
{
    uint64_t ns = 0;

    if (!dev->driver_tables) {
        dev->host_ns += dev->isolated ? dev->model->isolated_submit_ns : dev->model->submit_ns;
        return;
    }
    for (unsigned i = 0; i < count; i++) {
        if (cmds[i].kind == MB_HW_LEAVES)
            ns += cmds[i].leaves.count *
                  (cmds[i].leaves.pfns ? dev->model->map_entry_ns : dev->model->unmap_entry_ns);
        else if (cmds[i].kind == MB_HW_INVALIDATE)
            ns += dev->model->flush_ns;
    }
    mb__sim_driver_call(dev, ns);
}

static enum mb_err submit_locked(struct sim_dev *dev, struct mb_hw_stream *stream,
                                 const struct mb_hw_cmd *cmds, unsigned count)
{
    size_t words = 0;
    struct mb_hw_stream *queue;
    enum mb_err err = mb__sim_alive(dev);

    for (unsigned i = 0; i < count && !err; i++) {
        err = check_command(dev, &cmds[i]);
        if (cmds[i].kind == MB_HW_LEAVES && cmds[i].leaves.pfns)
            words += cmds[i].leaves.count;
    }
    if (err)
        return err;
    queue = queue_of(dev, stream);
    if (!queue)
        return MB_ERR_HOST_MEMORY;
    err = mb__sim_stream_reserve(queue, (size_t)count + 1, words);
    if (!err)
        err = mb__sim_stream_reserve(stream, queue == stream ? (size_t)count + 1 : 1, 0);
    if (err)
        return err;
    /* The device can start when the call is through. */
    charge_host(dev, cmds, count);
    if (queue != stream)
        push_wait(queue, (struct mb_hw_fence){stream, stream->seq});
    push_batch(dev, queue, cmds, count, queue != stream ? SIM_OP_ISOLATED : 0);
    if (queue != stream)
        push_wait(stream, (struct mb_hw_fence){queue, queue->seq});
    dev->counters.batches++;
    mb__sim_engine_kick(dev);
    return MB_OK;
}

enum mb_err mb__sim_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           const struct mb_hw_cmd *cmds, unsigned count)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_not_captured(stream, "submit");
    if (!err)
        err = submit_locked(dev, stream, cmds, count);
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ entries on their way */

static void store_entry(struct sim_dev *dev, uint64_t addr, unsigned slot_bytes,
                        struct mb_pte value)
{
    uint64_t *slot = mb__sim_table_at(dev, addr, slot_bytes);

    /* Table memory that was freed meanwhile takes the write without a trace, as on a device. */
    if (slot)
        mb_pop_store(slot, slot_bytes, 0, value);
}

static bool pending_room(struct sim_dev *dev)
{
    unsigned capacity = dev->pending_capacity ? 2 * dev->pending_capacity : 256;
    struct sim_pending *pending;

    if (dev->pending_count < dev->pending_capacity)
        return true;
    pending = realloc(dev->pending, capacity * sizeof(*pending));
    if (!pending)
        return false;
    dev->pending = pending;
    dev->pending_capacity = capacity;
    return true;
}

static void write_entry(struct sim_dev *dev, struct mb_hw_stream *stream, uint64_t addr,
                        unsigned slot_bytes, struct mb_pte value)
{
    if (!dev->explore || !pending_room(dev)) {
        store_entry(dev, addr, slot_bytes, value);
        return;
    }
    dev->pending[dev->pending_count++] =
        (struct sim_pending){addr, value, stream, (uint8_t)slot_bytes};
    stream->pending++;
}

/* Entry `index` arrives; an older write of the same stream to the same slot goes first. */
static void drain_one(struct sim_dev *dev, unsigned index)
{
    struct sim_pending pending;

    for (unsigned i = 0; i < index; i++) {
        if (dev->pending[i].addr == dev->pending[index].addr &&
            dev->pending[i].stream == dev->pending[index].stream) {
            index = i;
            break;
        }
    }
    pending = dev->pending[index];
    dev->pending_count--;
    memmove(&dev->pending[index], &dev->pending[index + 1],
            (dev->pending_count - index) * sizeof(pending));
    pending.stream->pending--;
    store_entry(dev, pending.addr, pending.slot_bytes, pending.value);
}

void mb__sim_pending_drain(struct sim_dev *dev, struct mb_hw_stream *stream, bool all)
{
    unsigned kept = 0;

    if (!all) {
        drain_one(dev, (unsigned)sim_random_below(dev, dev->pending_count));
        return;
    }
    for (unsigned i = 0; i < dev->pending_count; i++) {
        struct sim_pending *pending = &dev->pending[i];

        if (pending->stream != stream) {
            dev->pending[kept++] = *pending;
            continue;
        }
        store_entry(dev, pending->addr, pending->slot_bytes, pending->value);
    }
    dev->pending_count = kept;
    stream->pending = 0;
}

/* ------------------------------------------------------------ execution */

/* Slots [op->pos, end), all at once: the body that device kernels run. */
static void pop_all(struct sim_dev *dev, const struct sim_op *op, const uint32_t *pfns,
                    uint32_t end)
{
    unsigned per_leaf = slots_per_leaf(dev, op->leaf_shift);
    uint64_t first = op->leaves.first;
    uint64_t *slots = mb__sim_table_at(dev, op->leaves.table + first * op->slot_bytes * per_leaf,
                                       (uint64_t)end * op->slot_bytes * per_leaf);
    struct mb_pte clear = {op->leaves.tmpl, 0};

    if (!slots)
        return;
    for (uint64_t i = op->pos; i < end; i++) {
        for (unsigned k = 0; k < per_leaf; k++) {
            if (op->leaves.clear)
                mb_pop_store(slots, op->slot_bytes, i * per_leaf + k, clear);
            else if (per_leaf == 1)
                mb_pte_pop(dev->fmt, op->leaf_shift, slots, 0, i, pfns, op->leaves.tmpl);
            else
                mb_pop_leaf(dev->fmt, op->leaf_shift, slots, i * per_leaf + k, op->leaves.tmpl,
                            pfns[i] + k);
        }
    }
}

/* Explore mode: the same as single entries on their way. */
static void pop_some(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                     const uint32_t *pfns, uint32_t end)
{
    unsigned per_leaf = slots_per_leaf(dev, op->leaf_shift);

    for (uint64_t i = op->pos; i < end; i++) {
        for (unsigned k = 0; k < per_leaf; k++) {
            uint64_t slot = (op->leaves.first + i) * per_leaf + k;
            struct mb_pte value = {op->leaves.tmpl, 0};

            if (!op->leaves.clear)
                value = mb_fmt_leaf_at(dev->fmt, op->leaf_shift, op->leaves.tmpl, pfns[i] + k);
            write_entry(dev, stream, op->leaves.table + slot * op->slot_bytes, op->slot_bytes,
                        value);
        }
    }
}

static struct sim_step execute_leaves(struct sim_dev *dev, struct mb_hw_stream *stream,
                                      struct sim_op *op, unsigned budget)
{
    const struct sim_model *m = dev->model;
    uint32_t left = op->leaves.count - (uint32_t)op->pos;
    /* A batch is many lanes at once: larger parts than of other work. */
    uint32_t part = budget && budget * 64 < left ? budget * 64 : left;
    uint32_t end = (uint32_t)op->pos + part;
    const uint32_t *pfns = mb__sim_stream_data(stream);

    if (dev->explore)
        pop_some(dev, stream, op, pfns, end);
    else
        pop_all(dev, op, pfns, end);
    op->pos = end;
    dev->counters.entries_written += part;
    return (struct sim_step){
        part * (op->flags & SIM_OP_ISOLATED ? m->isolated_entry_ps : m->entry_ps) / 1000,
        end == op->leaves.count};
}

static void execute_invalidate(struct sim_dev *dev, const struct sim_op *op)
{
    dev->counters.invalidates++;
    if (!(dev->mutants & MB_SIM_NO_INVALIDATE))
        mb__sim_invalidate(dev, op->inval.va, op->inval.bytes);
}

static struct sim_step execute_barrier(struct sim_dev *dev, struct mb_hw_stream *stream)
{
    struct sim_step step = {dev->model->barrier_ns, true};

    if (dev->mutants & MB_SIM_NO_BARRIER || !stream->pending)
        return step;
    if (dev->explore && sim_random_below(dev, 2)) {
        mb__sim_pending_drain(dev, NULL, false);
        step.finished = !stream->pending;
        return step;
    }
    mb__sim_pending_drain(dev, stream, true);
    return step;
}

struct sim_step mb__sim_execute_batch(struct sim_dev *dev, struct mb_hw_stream *stream,
                                      struct sim_op *op, unsigned budget)
{
    const struct sim_model *m = dev->model;
    struct sim_step step = {0, true};
    uint64_t fixed = 0;

    if (op->flags & SIM_OP_FIRST && !op->pos)
        fixed = op->flags & SIM_OP_ISOLATED ? m->isolated_ns : m->kernel_ns + m->pop_ns;
    if (op->kind == SIM_OP_LEAVES) {
        step = execute_leaves(dev, stream, op, budget);
    } else if (op->kind == SIM_OP_DIR) {
        write_entry(dev, stream, op->dir.addr, op->slot_bytes, op->dir.value);
        dev->counters.entries_written++;
        step.ns = m->entry_ps / 1000;
    } else if (op->kind == SIM_OP_BARRIER) {
        step = execute_barrier(dev, stream);
    } else if (op->kind == SIM_OP_INVALIDATE) {
        execute_invalidate(dev, op);
        step.ns = m->invalidate_ns;
    } else if (op->kind == SIM_OP_MEMBAR) {
        if (!(dev->mutants & MB_SIM_NO_MEMBAR))
            mb__sim_land_all(dev, NULL, UINT32_MAX);
        step.ns = m->membar_ns;
    }
    step.ns += fixed;
    return step;
}
