/* SPDX-License-Identifier: MIT */
/*
 * pte_pop: a batch of map, unmap and protect operations as one submission.
 *
 *   1. record    every operation is checked against the record and applied to it, in order; the log
 *                keeps what each touched slot held before. New entries take their references. An
 *                error undoes the log.
 *   2. intend    the software GPU's oracle is told what the program must see from now on.
 *   3. plan      the log, not the operations, says what changes: a slot touched twice is written
 *                once. Slots that lose their entry and slots that get one become runs.
 *   4. commands  wait for earlier batches of the same windows on other streams
 *                clear · BARRIER · INVALIDATE · MEMBAR     slots that lose their entry
 *                write · BARRIER · [INVALIDATE]            slots that get one
 *   5. submit    all or nothing; on failure record, references and oracle go back.
 *   6. commit    groups' states, windows' last fences; references of old frames wait for the fence.
 *   7. poll      what earlier batches wait for, while the device is at work.
 *
 * A remap clears before it writes, so that no address is mapped twice without an invalidate
 * between.
 *
 * Locking   vm's lock over all of it, so that the order of submissions is the order of the record.
 * Cost      The frames of a map, one by one: they are scattered. All else goes by stretches of
 *           slots that are alike, with copies and fills. For several operations slots carry marks,
 *           since only then can one be touched twice, and plan looks at each one that changes its
 *           frame.
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

    batch->visible = 0;
    batch->single = false;

    batch->number++;
    batch->log.count = batch->windows.count = batch->clears.count = batch->writes.count = 0;
    batch->old_pfns.count = 0;
    batch->pfns.count = batch->clear_drops.count = batch->write_drops.count = batch->cmds.count = 0;
    batch->groups.count = 0;
    batch->whole = false;
    batch->invalidates = 0;
}

static void unref_now(struct mb_vm *vm, uint32_t pfn)
{
    if (!MB__VM_MUTANT(MB_VM_ALIAS_COUNT_NOT_TAKEN))
        mb__frame_at(vm, mb__frame_of(pfn))->word -= MB__REF;
}

/* Marks that the batch leaves in slots until it is committed or undone. */
static unsigned marks(const struct mb__batch *batch, unsigned wanted)
{
    return batch->single ? 0 : wanted;
}

static void unref_all_now(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        unref_now(vm, pfns[i].n);
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
                    "map at %#" PRIx64 ": slot %u names frame %#x, which the caller does not "
                    "own; nothing was written",
                    op->va.addr, i, pfn);
}

/* The window of a slot, entered into the batch; NULL: *err says why not. */
static struct mb__window *window_of(struct mb_vm *vm, const struct mb_vm_op *op,
                                    const struct mb__region *region, uint32_t slot,
                                    enum mb_err *err)
{
    struct mb__window *window = vm->windows.data[region->slot.window[slot]];

    if (!window) {
        *err = mb__fail(MB_ERR_NOT_FOUND,
                        "a slot of the operation at %#" PRIx64 " (%u slots) lies in no window",
                        op->va.addr, op->frames);
        return NULL;
    }
    if (window->batch != vm->batch.number) {
        if (!MB_VEC_PUSH(&vm->batch.windows, window)) {
            *err = mb__no_host_memory("a list of windows");
            return NULL;
        }
        window->batch = vm->batch.number;
    }
    return window;
}

static unsigned new_flags(enum mb_prot prot)
{
    return MB__SLOT_MAPPED | (unsigned)prot << MB__SLOT_PROT_SHIFT;
}

/* Part of an operation that lies in one window. */
struct part {
    const struct mb_vm_op *op;
    struct mb__region *region;
    struct mb__window *window;
    uint32_t from, to; /* slots of the operation */
    uint32_t first;    /* slot of the region that is the operation's slot 0 */
};

/* How many of `most` slots, at least one, have the flags of the first. */
static uint32_t alike(const uint8_t *flags, uint32_t most)
{
    const uint64_t eight = flags[0] * UINT64_C(0x0101010101010101);
    uint32_t n = 1;

    for (uint64_t next; n + sizeof(next) <= most; n += sizeof(next)) {
        memcpy(&next, flags + n, sizeof(next));
        if (next != eight)
            break;
    }
    while (n < most && flags[n] == flags[0])
        n++;
    return n;
}

static uint32_t count_other(const mb_pfn *a, const mb_pfn *b, uint32_t count)
{
    uint32_t other = 0;

    for (uint32_t i = 0; i < count; i++)
        other += a[i].n != b[i].n;
    return other;
}

/* Notes what a stretch of slots with these flags holds, unless the batch has done so before; room
 * was reserved. */
static void note(struct mb__batch *batch, const struct mb__region *region, uint8_t index,
                 uint32_t slot, uint32_t count)
{
    struct mb__log *last = batch->log.count ? &batch->log.data[batch->log.count - 1] : NULL;
    uint8_t flags = region->slot.flags[slot];
    uint32_t old = (uint32_t)batch->old_pfns.count;

    if (flags & MB__SLOT_TOUCHED)
        return;
    if (flags & MB__SLOT_MAPPED) {
        memcpy(batch->old_pfns.data + old, region->slot.pfn + slot, count * sizeof(mb_pfn));
        batch->old_pfns.count += count;
    }
    if (last && last->slot + last->count == slot && last->region == index &&
        last->old_flags == flags)
        last->count += count;
    else
        batch->log.data[batch->log.count++] = /* NOLINT: record() has reserved it */
            (struct mb__log){slot, count, old, flags, index};
}

/*
 * Both apply operations to the record; slots before an error stay changed, the log undoes them. A
 * new entry takes its reference at once, whatever the slot showed before; the old entry's goes when
 * the batch's fence has passed, or here, if the batch itself made it and it was never written.
 */
static enum mb_err map_part(struct mb_vm *vm, const struct part *part)
{
    const struct mb_vm_op *op = part->op;
    const mb_pfn *pfns = op->pfns + part->from;
    struct mb__slots *slots = &part->region->slot;
    unsigned flags = new_flags(op->prot) | marks(&vm->batch, MB__SLOT_NEW | MB__SLOT_TOUCHED);
    uint32_t leaf_mask = (1u << (part->region->leaf_shift - MB_PFN_SHIFT)) - 1;
    uint32_t count = part->to - part->from, slot = part->first + part->from, end = slot + count;
    uint32_t taken = mb__refs_take(vm, pfns, count, leaf_mask, op->cap);

    if (taken < count) {
        unref_all_now(vm, pfns, taken);
        return bad_frame(op, part->from + taken, part->region->leaf_shift);
    }
    for (; slot < end; slot += count, pfns += count) {
        unsigned old = slots->flags[slot];

        count = alike(slots->flags + slot, end - slot);
        note(&vm->batch, part->region, (uint8_t)(part->region - vm->region), slot, count);
        part->window->mapped += old & MB__SLOT_MAPPED ? 0 : count;
        if (mb__slot_visible(old))
            vm->batch.visible += count_other(slots->pfn + slot, pfns, count);
        if (old & MB__SLOT_NEW)
            unref_all_now(vm, slots->pfn + slot, count);
        memcpy(slots->pfn + slot, pfns, count * sizeof(*pfns));
        memset(slots->flags + slot, (int)flags, count);
    }
    return MB_OK;
}

static enum mb_err change_part(struct mb_vm *vm, const struct part *part)
{
    const struct mb_vm_op *op = part->op;
    struct mb__slots *slots = &part->region->slot;
    unsigned flags = op->kind == MB_VM_PROTECT ? new_flags(op->prot) : 0;
    unsigned touched = marks(&vm->batch, MB__SLOT_TOUCHED);
    uint32_t slot = part->first + part->from, end = part->first + part->to, count;

    for (; slot < end && slots->flags[slot] & MB__SLOT_MAPPED; slot += count) {
        unsigned old = slots->flags[slot], kept = flags ? old & MB__SLOT_NEW : 0;

        count = alike(slots->flags + slot, end - slot);
        note(&vm->batch, part->region, (uint8_t)(part->region - vm->region), slot, count);
        vm->batch.visible += mb__slot_visible(old) && old != flags ? count : 0;
        part->window->mapped -= flags ? 0 : count;
        if (!flags && old & MB__SLOT_NEW)
            unref_all_now(vm, slots->pfn + slot, count);
        memset(slots->flags + slot, (int)(flags | touched | kept), count);
    }
    if (slot == end)
        return MB_OK;
    return mb__fail(MB_ERR_NOT_MAPPED, "slot %u of the %s at %#" PRIx64 " is not mapped",
                    slot - part->first, flags ? "protect" : "unmap", op->va.addr);
}

static enum mb_err apply(struct mb_vm *vm, const struct mb_vm_op *op)
{
    struct part part = {.op = op, .region = mb__window_region(vm, op->va)};
    enum mb_err err = MB_OK;

    part.first = mb__slot_at(part.region, op->va);
    for (; !err && part.from < op->frames; part.from = part.to) {
        uint32_t slot = part.first + part.from, left;

        part.window = window_of(vm, op, part.region, slot, &err);
        if (!part.window)
            break;
        left = part.window->slot + part.window->slots - slot;
        part.to = op->frames - part.from < left ? op->frames : part.from + left;
        err = op->kind == MB_VM_MAP ? map_part(vm, &part) : change_part(vm, &part);
    }
    return err;
}

static void undo_slot(struct mb_vm *vm, const struct mb__log *log, uint32_t k)
{
    struct mb__slots *slots = &vm->region[log->region].slot;
    uint32_t slot = log->slot + k;
    struct mb__window *window = vm->windows.data[slots->window[slot]];
    uint8_t flags = slots->flags[slot];

    if (flags & MB__SLOT_NEW || (vm->batch.single && vm->batch.kind == MB_VM_MAP))
        unref_now(vm, slots->pfn[slot].n);
    window->mapped += log->old_flags & MB__SLOT_MAPPED;
    window->mapped -= flags & MB__SLOT_MAPPED;
    if (log->old_flags & MB__SLOT_MAPPED)
        slots->pfn[slot] = vm->batch.old_pfns.data[log->old + k];
    slots->flags[slot] = log->old_flags;
}

/* Puts back what the log says, and the references that the batch took. */
static void undo_record(struct mb_vm *vm)
{
    for (size_t i = 0; i < vm->batch.log.count; i++) {
        for (uint32_t k = 0; k < vm->batch.log.data[i].count; k++)
            undo_slot(vm, &vm->batch.log.data[i], k);
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

    if (op->kind > MB_VM_PROTECT || !op->frames ||
        (op->kind == MB_VM_MAP && (!op->pfns || !op->cap)) ||
        (op->kind != MB_VM_UNMAP && !prot_ok(op->prot)))
        return mb__fail(MB_ERR_INVALID,
                        "operation of kind %d on %u slots at %#" PRIx64 " with access %d: "
                        "kind, count, frames, capability or access are not allowed",
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

    vm->batch.single = count == 1;
    vm->batch.kind = ops[0].kind;
    for (unsigned i = 0; !err && i < count; i++) {
        struct mb__region *region;

        err = check_op(vm, &ops[i], &region);
        slots += ops[i].frames;
    }
    if (!err &&
        (!MB_VEC_RESERVE(&vm->batch.log, slots) || !MB_VEC_RESERVE(&vm->batch.old_pfns, slots)))
        err = mb__no_host_memory("the log of a batch");
    for (unsigned i = 0; !err && i < count; i++)
        err = apply(vm, &ops[i]);
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
        uint32_t slot = mb__slot_at(region, ops[i].va), end = slot + ops[i].frames;

        for (; slot < end; slot++)
            vm->hw->ops->intend(vm->hw, mb__slot_va(region, slot), 1, region->leaf_shift,
                                mb__slot_visible(region->slot.flags[slot]) ? &region->slot.pfn[slot]
                                                                           : NULL);
    }
}

/* ------------------------------------------------------------ plan */

/* What happens to a slot's visible entry, in a few bits, so that equal slots are seen at once. */
enum {
    CHANGE_WAS = 1, /* it loses one */
    CHANGE_NOW = 2, /* it gets one */
    CHANGE_PROT_SHIFT = 2,
};

/* `same`: both name the same frame. */
static inline unsigned change_of(unsigned old_flags, unsigned flags, bool same)
{
    unsigned was = mb__slot_visible(old_flags), now = mb__slot_visible(flags);

    if (was & now && same && !((old_flags ^ flags) & MB__SLOT_PROT))
        return 0;
    if (!now)
        return was;
    return was | CHANGE_NOW | (unsigned)mb__slot_prot(flags) << CHANGE_PROT_SHIFT;
}

/* What happens to slot `k` of a stretch of the log. */
static inline unsigned change_at(const struct mb_vm *vm, const struct mb__log *log, uint32_t k)
{
    const struct mb__slots *slots = &vm->region[log->region].slot;
    uint32_t slot = log->slot + k;
    bool same = log->old_flags & MB__SLOT_MAPPED &&
                mb__pfn_eq(vm->batch.old_pfns.data[log->old + k], slots->pfn[slot]);

    return change_of(log->old_flags, slots->flags[slot], same);
}

/* Appends a run to a list, or lengthens the last one. `list` is a MB_VEC of runs. */
static inline bool joins(const struct mb__run *last, const struct mb__run *run)
{
    return last->slot + last->count == run->slot && last->region == run->region &&
           last->prot == run->prot && last->remap == run->remap;
}
#define ADD_RUN(list, run)                                                                         \
    (((list)->count && joins(&(list)->data[(list)->count - 1], &(run)))                            \
         ? ((list)->data[(list)->count - 1].count += (run).count, true)                            \
         : MB_VEC_PUSH((list), (run)))

/* Slots [slot, slot + count) all change in the same way; their new frames are the last in pfns. */
static bool plan_stretch(struct mb__batch *batch, uint8_t region, uint32_t slot, uint32_t count,
                         unsigned change)
{
    struct mb__run run = {.slot = slot,
                          .count = count,
                          .region = region,
                          .remap = (change & CHANGE_WAS) && (change & CHANGE_NOW)};

    if (change & CHANGE_WAS && !ADD_RUN(&batch->clears, run))
        return false;
    if (!(change & CHANGE_NOW))
        return true;
    run.prot = (uint8_t)(change >> CHANGE_PROT_SHIFT);
    run.pfn = (uint32_t)batch->pfns.count - count;
    return ADD_RUN(&batch->writes, run);
}

/* The longest part of a log's stretch from slot `k` on that lies in one group and changes in one
 * way. Returns its length; 0: no memory. */
static uint32_t plan_from(struct mb_vm *vm, const struct mb__log *log, uint32_t k)
{
    struct mb__batch *batch = &vm->batch;
    const struct mb__region *region = &vm->region[log->region];
    uint32_t first = log->slot + k, last = first | ((UINT32_C(1) << region->group_shift) - 1);
    uint32_t most = last - first + 1 < log->count - k ? last - first + 1 : log->count - k;
    const uint8_t *flags = region->slot.flags + first;
    unsigned change = change_at(vm, log, k);
    uint32_t count = 1;

    /* Frames matter where one entry takes the place of another. */
    if (!(log->old_flags & MB__SLOT_MAPPED) || !(*flags & MB__SLOT_MAPPED))
        count = alike(flags, most);
    while (count < most && change_at(vm, log, k + count) == change)
        count++;
    if (!change)
        return count;
    if (change & CHANGE_NOW) {
        memcpy(batch->pfns.data + batch->pfns.count, region->slot.pfn + first,
               count * sizeof(mb_pfn));
        batch->pfns.count += count;
    }
    if (!plan_stretch(batch, log->region, first, count, change) ||
        mb__groups_touch(vm, log->region, first, count, change & CHANGE_WAS, change & CHANGE_NOW))
        return 0;
    return count;
}

static enum mb_err plan_each(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;
    size_t slots = 0;

    for (size_t i = 0; i < batch->log.count; i++)
        slots += batch->log.data[i].count;
    if (!MB_VEC_RESERVE(&batch->pfns, slots))
        return mb__no_host_memory("the frames of a batch");
    batch->frames = batch->pfns.data;
    for (size_t i = 0; i < batch->log.count; i++) {
        const struct mb__log *log = &batch->log.data[i];

        for (uint32_t k = 0, count; k < log->count; k += count) {
            count = plan_from(vm, log, k);
            if (!count)
                return mb__no_host_memory("the runs of a batch");
        }
    }
    return MB_OK;
}

/* One operation that changes all its slots in one way, as most are: one run, and no look at
 * slots. */
static enum mb_err plan_uniform(struct mb_vm *vm, const struct mb_vm_op *op, unsigned change)
{
    struct mb__batch *batch = &vm->batch;
    uint32_t slot = batch->log.data[0].slot;
    uint8_t index = batch->log.data[0].region;

    batch->frames = op->kind == MB_VM_PROTECT ? vm->region[index].slot.pfn + slot : op->pfns;
    batch->pfns.count = op->frames; /* what plan_stretch counts back from */
    if (!plan_stretch(batch, index, slot, op->frames, change))
        return mb__no_host_memory("the runs of a batch");
    return mb__groups_touch(vm, index, slot, op->frames, change & CHANGE_WAS, change & CHANGE_NOW);
}

static enum mb_err plan(struct mb_vm *vm, const struct mb_vm_op *ops)
{
    const struct mb__batch *batch = &vm->batch;
    unsigned now = CHANGE_NOW | (unsigned)ops->prot << CHANGE_PROT_SHIFT;
    bool all = batch->visible == ops->frames; /* slots lose an entry (a map: another frame's) */
    enum mb_err err;

    if (batch->single && ops->kind == MB_VM_MAP && ops->prot && (!batch->old_pfns.count || all))
        err = plan_uniform(vm, ops, all ? now | CHANGE_WAS : now);
    else if (batch->single && ops->kind == MB_VM_UNMAP && all)
        err = plan_uniform(vm, ops, CHANGE_WAS);
    else if (batch->single && ops->kind == MB_VM_PROTECT && all && ops->prot)
        err = plan_uniform(vm, ops, now | CHANGE_WAS);
    else
        err = plan_each(vm);
    return err ? err : mb__drops_plan(vm);
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
                             batch->frames + run->pfn, (enum mb_prot)run->prot);
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

/* Without marks every old entry has gone the same way. */
static void settle_single(struct mb_vm *vm, struct mb__wait *refs)
{
    if (!refs)
        return;
    refs->count = (uint32_t)vm->batch.old_pfns.count;
    memcpy(refs->pfns, vm->batch.old_pfns.data, refs->count * sizeof(*refs->pfns));
}

/* Slots lose their marks; old entries' references go into `refs` (NULL: there are none). */
static void settle_slots(struct mb_vm *vm, struct mb__wait *refs)
{
    const struct mb__log *log = vm->batch.log.data, *end = log + vm->batch.log.count;
    uint32_t count = 0;

    for (; log < end; log++) {
        uint8_t *flags = vm->region[log->region].slot.flags + log->slot;
        const mb_pfn *old =
            log->old_flags & MB__SLOT_MAPPED ? vm->batch.old_pfns.data + log->old : NULL;

        for (uint32_t k = 0, same; k < log->count; k += same) {
            unsigned now = flags[k];

            same = alike(flags + k, log->count - k);
            memset(flags + k, (int)(now & ~(unsigned)(MB__SLOT_TOUCHED | MB__SLOT_NEW)), same);
            /* The old entry is gone, or another one (of the same frame perhaps) is in its place. */
            if (!refs || !old || (now & MB__SLOT_MAPPED && !(now & MB__SLOT_NEW)))
                continue;
            memcpy(refs->pfns + count, old + k, same * sizeof(*old));
            count += same;
        }
    }
    if (refs)
        refs->count = count;
}

static void commit(struct mb_vm *vm, struct mb_hw_fence fence, struct mb__wait *refs)
{
    struct mb__batch *batch = &vm->batch;

    mb__groups_commit(vm);
    if (batch->single)
        settle_single(vm, refs);
    else
        settle_slots(vm, refs);
    for (size_t i = 0; i < batch->windows.count; i++)
        batch->windows.data[i]->last = fence;
    for (size_t i = 0; i < batch->clears.count; i++)
        vm->stats.entries_written += batch->clears.data[i].count;
    for (size_t i = 0; i < batch->writes.count; i++)
        vm->stats.entries_written += batch->writes.data[i].count;
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
    /* A protect alone leaves every reference where it is. */
    if (vm->batch.old_pfns.count && !(vm->batch.single && vm->batch.kind == MB_VM_PROTECT)) {
        waits->refs = mb__wait_new(vm, MB__WAIT_REFS, 1, (uint32_t)vm->batch.old_pfns.count);
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
static enum mb_err execute(struct mb_vm *vm, struct mb_hw_stream *stream,
                           const struct mb_vm_op *ops, struct mb_hw_fence *done)
{
    struct waits waits = {0};
    struct mb_hw_fence fence;
    enum mb_err err = plan(vm, ops);

    if (!err)
        err = emit(vm, stream);
    if (!err)
        err = make_waits(vm, &waits);
    if (!err)
        err = mb__trail_plan(vm);
    if (err)
        goto undo;
    err = mb__vm_submit(vm, stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (err) {
        struct mb__detail detail;

        mb__detail_keep(&detail);
        if (err != MB_ERR_DEVICE_LOST) /* else it may have been executed, in part or whole */
            mb__trail_outcome(vm, false);
        mb__detail_put(&detail);
        goto undo;
    }
    mb__trail_outcome(vm, true);
    commit(vm, fence, waits.refs);
    start_waits(vm, &waits, fence);
    if (done)
        *done = fence;
    return MB_OK;

undo:
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
    start(vm);
    err = record(vm, ops, count);
    if (err)
        goto out;
    intend(vm, ops, count);
    err = execute(vm, stream, ops, done);
    if (err) {
        undo_record(vm);
        intend(vm, ops, count);
        goto out;
    }
    mb__poll(vm); /* behind the submission: the device is at work meanwhile */
out:
    mb__unlock(&vm->lock);
    return err;
}

/* ------------------------------------------------------------ close */

static enum mb_err clear_window(struct mb_vm *vm, const struct mb__window *window)
{
    struct mb__region *region = &vm->region[window->region];
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < window->slots; i++) {
        if (mb__slot_visible(region->slot.flags[window->slot + i]))
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
