/* SPDX-License-Identifier: MIT */
/*
 * pte_pop: a batch of map, unmap and protect operations as one submission.
 *
 *   1. record    every operation is checked against the record and applied to it, in order; the log
 *                keeps what each touched slot held before. An error undoes the log.
 *   2. intend    the software GPU's oracle is told what the program must see from now on.
 *   3. plan      the log, not the operations, says what changes: a slot touched twice is written once.
 *                Slots that lose their entry and slots that get one become runs; references of new
 *                frames are taken.
 *   4. commands  wait for earlier batches of the same windows on other streams
 *                clear · BARRIER · INVALIDATE · MEMBAR     slots that lose their entry
 *                write · BARRIER · [INVALIDATE]            slots that get one
 *   5. submit    all or nothing; on failure references, record and oracle go back.
 *   6. commit    groups' states, windows' last fences, references of old frames once the fence passed.
 *
 * A remap clears before it writes, so that no address is mapped twice without an invalidate between.
 *
 * Locking   vm's lock over all of it, so that the order of submissions is the order of the record.
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "vm/internal.h"

enum mb_err mb__cmd(struct mb_vm *vm, struct mb_hw_cmd cmd)
{
    if (!MB_VEC_PUSH(&vm->batch.cmds, cmd))
        return mb__no_host_memory("a list of commands");
    return MB_OK;
}

enum mb_err mb__cmd_kind(struct mb_vm *vm, enum mb_hw_cmd_kind kind)
{
    return mb__cmd(vm, (struct mb_hw_cmd){.kind = kind});
}

/* ------------------------------------------------------------ record */

static void start(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;

    batch->number++;
    batch->log.count = batch->windows.count = batch->clears.count = batch->writes.count = 0;
    batch->pfns.count = batch->clear_drops.count = batch->write_drops.count = batch->cmds.count = 0;
    batch->old_mapped = 0;
    batch->refs_taken = batch->whole = false;
    batch->invalidates = 0;
}

static struct mb__slot *log_slot(struct mb_vm *vm, const struct mb__log *log)
{
    return &vm->region[log->region].slot[log->slot];
}

/* Notes what the slot holds before its first change in this batch; room was reserved. */
static void touch(struct mb_vm *vm, struct mb__slot *slot, uint8_t region, uint32_t index)
{
    struct mb__batch *batch = &vm->batch;

    if (slot->flags & MB__SLOT_TOUCHED)
        return;
    batch->log.data[batch->log.count++] =
        (struct mb__log){index, slot->pfn, (uint8_t)slot->flags, region};
    batch->old_mapped += slot->flags & MB__SLOT_MAPPED;
    slot->flags |= MB__SLOT_TOUCHED;
}

static void set_slot(struct mb__slot *slot, struct mb__window *window, uint32_t pfn, uint32_t flags)
{
    window->mapped += flags & MB__SLOT_MAPPED;
    window->mapped -= slot->flags & MB__SLOT_MAPPED;
    slot->pfn = pfn;
    slot->flags = flags | (slot->flags & MB__SLOT_TOUCHED);
}

static enum mb_err bad_frame(const struct mb_vm_op *op, uint32_t i, unsigned leaf_shift)
{
    uint32_t pfn = op->pfns[i].n;

    if (pfn & ((1u << (leaf_shift - MB_PFN_SHIFT)) - 1))
        return mb__fail(MB_ERR_INVALID,
                        "map at %#" PRIx64 ": frame number %#x of slot %u is not aligned "
                        "to the leaf of 2^%u bytes",
                        op->va.addr, pfn, i, leaf_shift);
    return mb__fail(MB_ERR_CORRUPT,
                    "map at %#" PRIx64 ": slot %u names frame %#x, which this vm does not "
                    "own; nothing was written",
                    op->va.addr, i, pfn);
}

/* May an entry of this leaf size name it? */
static bool frame_ok(struct mb_vm *vm, uint32_t pfn, unsigned leaf_shift)
{
    const struct mb__frame *frame;

    if (pfn & ((1u << (leaf_shift - MB_PFN_SHIFT)) - 1))
        return false;
    frame = mb__frame_at(vm, mb__frame_of(pfn));
    return frame && (frame->word & MB__STATE) == MB__OWNED && mb__frame_refs(frame) < MB__REFS_MAX;
}

static enum mb_err note_window(struct mb_vm *vm, struct mb__window *window)
{
    if (window->batch == vm->batch.number)
        return MB_OK;
    if (!MB_VEC_PUSH(&vm->batch.windows, window))
        return mb__no_host_memory("a list of windows");
    window->batch = vm->batch.number;
    return MB_OK;
}

static uint32_t new_flags(enum mb_prot prot)
{
    return MB__SLOT_MAPPED | (uint32_t)prot << MB__SLOT_PROT_SHIFT;
}

/* Applies one operation to the record. Slots before an error stay changed: the log undoes them. */
static enum mb_err apply(struct mb_vm *vm, const struct mb_vm_op *op, struct mb__region *region)
{
    uint32_t first = (uint32_t)((op->va.addr - region->base.addr) >> region->leaf_shift), id = 0;
    uint8_t index = (uint8_t)(region - vm->region);
    struct mb__window *window = NULL;
    enum mb_err err;

    for (uint32_t i = 0; i < op->frames; i++) {
        struct mb__slot *slot = &region->slot[first + i];

        if (!slot->window)
            return mb__fail(MB_ERR_NOT_FOUND,
                            "slot %u of the operation at %#" PRIx64 " lies in no "
                            "window",
                            i, op->va.addr);
        if (slot->window != id) {
            id = slot->window;
            window = vm->windows.data[id];
            err = note_window(vm, window);
            if (err)
                return err;
        }
        if (op->kind == MB_VM_MAP) {
            if (!frame_ok(vm, op->pfns[i].n, region->leaf_shift))
                return bad_frame(op, i, region->leaf_shift);
            touch(vm, slot, index, first + i);
            set_slot(slot, window, op->pfns[i].n, new_flags(op->prot));
            continue;
        }
        if (!(slot->flags & MB__SLOT_MAPPED))
            return mb__fail(MB_ERR_NOT_MAPPED, "slot %u of the %s at %#" PRIx64 " is not mapped", i,
                            op->kind == MB_VM_UNMAP ? "unmap" : "protect", op->va.addr);
        touch(vm, slot, index, first + i);
        set_slot(slot, window, slot->pfn, op->kind == MB_VM_UNMAP ? 0 : new_flags(op->prot));
    }
    return MB_OK;
}

/* Puts back what the log says. */
static void undo_record(struct mb_vm *vm)
{
    for (size_t i = vm->batch.log.count; i-- > 0;) {
        const struct mb__log *log = &vm->batch.log.data[i];
        struct mb__slot *slot = log_slot(vm, log);

        set_slot(slot, vm->windows.data[slot->window], log->old_pfn, log->old_flags);
        slot->flags = log->old_flags;
    }
}

static bool prot_ok(enum mb_prot prot)
{
    return prot == MB_PROT_NONE || prot == MB_PROT_READ || prot == MB_PROT_READ_WRITE;
}

/* What can be said of an operation without the record of slots. */
static enum mb_err check_op(struct mb_vm *vm, const struct mb_vm_op *op, struct mb__region **out)
{
    struct mb__region *region = mb__window_region(vm, op->va);
    uint64_t offset;

    if (op->kind > MB_VM_PROTECT || !op->frames || (op->kind == MB_VM_MAP && !op->pfns) ||
        (op->kind != MB_VM_UNMAP && !prot_ok(op->prot)))
        return mb__fail(MB_ERR_INVALID,
                        "operation of kind %d on %u slots at %#" PRIx64 " with access %d: "
                        "kind, count, frames or access are not allowed",
                        (int)op->kind, op->frames, op->va.addr, (int)op->prot);
    if (!region)
        return mb__fail(MB_ERR_NOT_FOUND, "%#" PRIx64 " is in no window; use what alloc_va gave",
                        op->va.addr);
    offset = op->va.addr - region->base.addr;
    if (offset & ((UINT64_C(1) << region->leaf_shift) - 1))
        return mb__fail(MB_ERR_INVALID,
                        "%#" PRIx64 " is not aligned to the window's leaf of 2^%u bytes",
                        op->va.addr, region->leaf_shift);
    if (op->frames > region->slots - (offset >> region->leaf_shift))
        return mb__fail(MB_ERR_NOT_FOUND, "%u slots at %#" PRIx64 " leave the window", op->frames,
                        op->va.addr);
    *out = region;
    return MB_OK;
}

static enum mb_err record(struct mb_vm *vm, const struct mb_vm_op *ops, unsigned count)
{
    enum mb_err err = MB_OK;
    size_t slots = 0;

    for (unsigned i = 0; !err && i < count; i++) {
        struct mb__region *region;

        err = check_op(vm, &ops[i], &region);
        slots += ops[i].frames;
    }
    if (!err && !MB_VEC_RESERVE(&vm->batch.log, slots))
        err = mb__no_host_memory("the log of a batch");
    for (unsigned i = 0; !err && i < count; i++)
        err = apply(vm, &ops[i], mb__window_region(vm, ops[i].va));
    if (err)
        undo_record(vm);
    return err;
}

/* ------------------------------------------------------------ intend */

/* Says what the record now shows at the operations' addresses. */
static void intend(struct mb_vm *vm, const struct mb_vm_op *ops, unsigned count)
{
    if (!vm->hw->ops->intend)
        return;
    for (unsigned i = 0; i < count; i++) {
        const struct mb__region *region = mb__window_region(vm, ops[i].va);
        uint32_t first = (uint32_t)((ops[i].va.addr - region->base.addr) >> region->leaf_shift);

        for (uint32_t k = 0; k < ops[i].frames; k++) {
            const struct mb__slot *slot = &region->slot[first + k];
            mb_pfn pfn = {slot->pfn};

            vm->hw->ops->intend(vm->hw, mb__slot_va(region, first + k), 1, region->leaf_shift,
                                mb__slot_visible(slot->flags) ? &pfn : NULL);
        }
    }
}

/* ------------------------------------------------------------ plan */

/* Appends the slot to a list of runs, or lengthens the last run. */
static bool add_run(struct mb__run **data, size_t *count, size_t *capacity, struct mb__run run)
{
    struct mb__run *last = *count ? &(*data)[*count - 1] : NULL;

    if (last && last->slot + last->count == run.slot && last->region == run.region &&
        last->prot == run.prot && last->remap == run.remap) {
        last->count++;
        return true;
    }
    if (!mb__vec_reserve(data, capacity, *count + 1, sizeof(**data)))
        return false;
    (*data)[(*count)++] = run;
    return true;
}
#define ADD_RUN(list, run) add_run(&(list)->data, &(list)->count, &(list)->capacity, (run))

/* References and runs of one touched slot. */
static bool plan_slot(struct mb_vm *vm, const struct mb__log *log)
{
    struct mb__batch *batch = &vm->batch;
    struct mb__slot *slot = log_slot(vm, log);
    bool was = mb__slot_visible(log->old_flags), now = mb__slot_visible(slot->flags);
    struct mb__run run = {log->slot, 1, (uint32_t)batch->pfns.count, log->region, 0, was && now};

    if (was && now && log->old_pfn == slot->pfn &&
        !((log->old_flags ^ slot->flags) & MB__SLOT_PROT))
        return true;
    mb__group_touch(vm, &vm->region[log->region], log->slot, was, now);
    if (was && !ADD_RUN(&batch->clears, run))
        return false;
    if (!now)
        return true;
    run.prot = (uint8_t)mb__slot_prot(slot->flags);
    batch->pfns.data[batch->pfns.count++].n = slot->pfn;
    return ADD_RUN(&batch->writes, run);
}

static bool names_new_frame(const struct mb__log *log, const struct mb__slot *slot)
{
    return slot->flags & MB__SLOT_MAPPED &&
           (!(log->old_flags & MB__SLOT_MAPPED) || log->old_pfn != slot->pfn);
}

static bool leaves_old_frame(const struct mb__log *log, const struct mb__slot *slot)
{
    return log->old_flags & MB__SLOT_MAPPED &&
           (!(slot->flags & MB__SLOT_MAPPED) || log->old_pfn != slot->pfn);
}

/* Counts (or, to undo, uncounts) the entries that are new. */
static void count_refs(struct mb_vm *vm, bool take)
{
    if (MB__VM_MUTANT(MB_VM_ALIAS_COUNT_NOT_TAKEN))
        return;
    for (size_t i = 0; i < vm->batch.log.count; i++) {
        const struct mb__log *log = &vm->batch.log.data[i];
        const struct mb__slot *slot = log_slot(vm, log);

        if (!names_new_frame(log, slot))
            continue;
        if (take)
            mb__frame_at(vm, mb__frame_of(slot->pfn))->word += MB__REF;
        else
            mb__frame_at(vm, mb__frame_of(slot->pfn))->word -= MB__REF;
    }
}

static enum mb_err plan(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;

    if (!MB_VEC_RESERVE(&batch->pfns, batch->log.count))
        return mb__no_host_memory("the frames of a batch");
    for (size_t i = 0; i < batch->log.count; i++) {
        if (!plan_slot(vm, &batch->log.data[i]))
            return mb__no_host_memory("the runs of a batch");
    }
    return mb__drops_plan(vm);
}

/* ------------------------------------------------------------ commands */

/* Earlier batches of the windows on other streams, once per stream. */
static enum mb_err emit_waits(struct mb_vm *vm, const struct mb_hw_stream *stream)
{
    struct mb__batch *batch = &vm->batch;

    for (size_t i = 0; i < batch->windows.count; i++) {
        struct mb_hw_fence fence = batch->windows.data[i]->last;
        struct mb_hw_cmd cmd = {.kind = MB_HW_WAIT};
        size_t k = 0;

        if (!fence.stream || fence.stream == stream || mb__fence_passed(vm, fence))
            continue;
        while (k < batch->cmds.count && batch->cmds.data[k].fence.stream != fence.stream)
            k++;
        cmd.fence = fence;
        if (k == batch->cmds.count) {
            enum mb_err err = mb__cmd(vm, cmd);

            if (err)
                return err;
        } else if (batch->cmds.data[k].fence.seq < fence.seq) {
            batch->cmds.data[k] = cmd;
        }
    }
    return MB_OK;
}

static enum mb_err emit_clears(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;
    enum mb_err err = MB_OK;

    for (size_t i = 0; !err && i < batch->clears.count; i++) {
        const struct mb__run *run = &batch->clears.data[i];

        err =
            mb__pgt_leaves(vm, &vm->region[run->region], run->slot, run->count, NULL, MB_PROT_NONE);
    }
    if (!err && batch->clears.count)
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
    if (!err)
        err = mb__drops_emit(vm, batch->clear_drops.data, batch->clear_drops.count);
    if (!err && batch->clear_drops.count && !MB__VM_MUTANT(MB_VM_NO_MEMBAR_AFTER_INVALIDATE))
        err = mb__cmd_kind(vm, MB_HW_MEMBAR);
    return err;
}

static enum mb_err emit_writes(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;
    enum mb_err err = MB_OK;

    for (size_t i = 0; !err && i < batch->writes.count; i++) {
        const struct mb__run *run = &batch->writes.data[i];

        err = mb__pgt_leaves(vm, &vm->region[run->region], run->slot, run->count,
                             batch->pfns.data + run->pfn, (enum mb_prot)run->prot);
    }
    if (!err && batch->writes.count)
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
    return err ? err : mb__drops_emit(vm, batch->write_drops.data, batch->write_drops.count);
}

static enum mb_err emit(struct mb_vm *vm, const struct mb_hw_stream *stream)
{
    enum mb_err err = emit_waits(vm, stream);

    if (!err)
        err = emit_clears(vm);
    if (!err)
        err = emit_writes(vm);
    if (!err && !vm->batch.cmds.count) /* nothing changes, but the fence is wanted */
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
#ifndef NDEBUG
    if (!err)
        err = mb__audit(vm);
#endif
    return err;
}

/* ------------------------------------------------------------ commit */

static void commit(struct mb_vm *vm, struct mb_hw_fence fence, struct mb__wait *refs)
{
    struct mb__batch *batch = &vm->batch;

    mb__groups_commit(vm);
    for (size_t i = 0; i < batch->windows.count; i++)
        batch->windows.data[i]->last = fence;
    for (size_t i = 0; i < batch->log.count; i++) {
        const struct mb__log *log = &batch->log.data[i];
        struct mb__slot *slot = log_slot(vm, log);

        slot->flags &= ~(uint32_t)MB__SLOT_TOUCHED;
        if (refs && leaves_old_frame(log, slot))
            refs->frames[refs->count++] = mb__frame_of(log->old_pfn);
    }
    for (size_t i = 0; i < batch->clears.count; i++)
        vm->stats.entries_written += batch->clears.data[i].count;
    vm->stats.entries_written += batch->pfns.count;
    vm->stats.map_batches += batch->writes.count != 0;
    vm->stats.unmap_batches += batch->clears.count != 0;
    vm->stats.invalidates += batch->invalidates;
}

/* Records of waits, taken before the point of no return. */
struct waits {
    struct mb__wait *refs, *flush;
};

static void drop_waits(struct mb_vm *vm, struct waits *waits)
{
    mb__wait_drop(vm, waits->refs);
    mb__wait_drop(vm, waits->flush);
}

static enum mb_err make_waits(struct mb_vm *vm, struct waits *waits)
{
    *waits = (struct waits){0};
    if (vm->batch.old_mapped) {
        waits->refs = mb__wait_new(vm, MB__WAIT_REFS, 1, vm->batch.old_mapped);
        if (!waits->refs)
            return MB_ERR_HOST_MEMORY;
    }
    /* A batch that invalidates everything ends an epoch on its way. */
    if (vm->batch.whole && vm->retired) {
        waits->flush = mb__wait_new(vm, MB__WAIT_FLUSH, 1, 0);
        if (!waits->flush)
            return MB_ERR_HOST_MEMORY;
    }
    return MB_OK;
}

static void start_waits(struct mb_vm *vm, struct waits *waits, struct mb_hw_fence fence)
{
    if (waits->refs) {
        mb__wait_fence(waits->refs, fence);
        mb__wait_start(vm, waits->refs);
    }
    if (waits->flush)
        mb__flush_issued(vm, waits->flush, fence);
}

/* Steps 3 to 6; the record has been changed. */
static enum mb_err execute(struct mb_vm *vm, struct mb_hw_stream *stream, struct mb_hw_fence *done)
{
    struct waits waits = {0};
    struct mb_hw_fence fence;
    enum mb_err err = plan(vm);

    if (!err)
        err = emit(vm, stream);
    if (!err)
        err = make_waits(vm, &waits);
    if (err)
        goto undo_waits;
    count_refs(vm, true);
    err = mb__vm_submit(vm, stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (err)
        goto undo_refs;
    commit(vm, fence, waits.refs);
    start_waits(vm, &waits, fence);
    if (done)
        *done = fence;
    return MB_OK;

undo_refs:
    count_refs(vm, false);
undo_waits:
    drop_waits(vm, &waits);
    return err;
}

enum mb_err mb__pte_pop(struct mb_vm *vm, struct mb_hw_stream *stream, const struct mb_vm_op *ops,
                        unsigned count, struct mb_hw_fence *done)
{
    enum mb_err err;

    if (!stream || !ops || !count)
        return mb__fail(MB_ERR_INVALID, "pte_pop needs a stream and at least one operation");
    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    if (err)
        goto out;
    mb__poll(vm);
    start(vm);
    err = record(vm, ops, count);
    if (err)
        goto out;
    intend(vm, ops, count);
    err = execute(vm, stream, done);
    if (err) {
        undo_record(vm);
        intend(vm, ops, count);
    }
out:
    mb__unlock(&vm->lock);
    return err;
}

mb_pfn mb__vm_lookup(struct mb_vm *vm, mb_va va)
{
    const struct mb__region *region;
    mb_pfn pfn = MB_NO_PFN;

    mb__lock(&vm->lock);
    region = mb__window_region(vm, va);
    if (region) {
        const struct mb__slot *slot =
            &region->slot[(va.addr - region->base.addr) >> region->leaf_shift];

        if (slot->flags & MB__SLOT_MAPPED)
            pfn.n = slot->pfn;
    }
    mb__unlock(&vm->lock);
    return region ? pfn : mb__home_pfn(vm, va);
}

/* ------------------------------------------------------------ close */

static enum mb_err clear_window(struct mb_vm *vm, const struct mb__window *window)
{
    struct mb__region *region = &vm->region[window->region];
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < window->slots; i++) {
        struct mb__slot *slot = &region->slot[window->slot + i];

        if (mb__slot_visible(slot->flags))
            err = mb__pgt_leaves(vm, region, window->slot + i, 1, NULL, MB_PROT_NONE);
        if (vm->hw->ops->intend)
            vm->hw->ops->intend(vm->hw, mb__slot_va(region, window->slot + i), 1,
                                region->leaf_shift, NULL);
    }
    return err;
}

void mb__unmap_all(struct mb_vm *vm)
{
    struct mb_hw_fence fence;
    enum mb_err err = MB_OK;

    start(vm);
    for (size_t i = 1; !err && i < vm->windows.count; i++) {
        if (vm->windows.data[i] && vm->windows.data[i]->mapped)
            err = clear_window(vm, vm->windows.data[i]);
    }
    if (!err && !vm->batch.cmds.count)
        return;
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_INVALIDATE);
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_MEMBAR);
    if (!err)
        err = mb__vm_submit(vm, vm->stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (!err && fence.stream)
        err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
    if (err)
        mb__log(MB_LOG_WARN, "vm", "entries could not be cleared before closing: %s",
                mb_error_detail());
}
