/* SPDX-License-Identifier: MIT */
/*
 * Audit: reads a finished command list as the device will, against the log, and says whether every
 * changed slot gets what the order of operations demands:
 *
 *   an entry goes   clear < BARRIER < INVALIDATE of the slot < MEMBAR
 *                   (deferred, and no entry comes: clear < BARRIER)
 *   an entry comes  write < BARRIER [< INVALIDATE of the slot]
 *   both            the clear's MEMBAR < the write
 *
 * It shares no code with the planner: groups are counted slot by slot. It runs in builds with
 * assertions on every batch before it is submitted. A violation refuses the batch; builds with
 * mutants note it and go on, so that the oracle can be seen to catch it too.
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/err.h"
#include "vm/internal.h"

/* What one slot needs to know of the list; positions count from 1, 0: not found. */
struct order {
    size_t clear, write;
};

static bool leaves_cover(const struct mb__region *region, uint32_t slot,
                         const struct mb_hw_cmd *cmd)
{
    uint64_t va = mb__slot_va(region, slot).addr - cmd->leaves.view->va.addr;

    return va < cmd->leaves.view->bytes &&
           (va >> region->leaf_shift) - cmd->leaves.first < cmd->leaves.count;
}

static bool drop_covers(const struct mb__region *region, uint32_t slot, const struct mb_hw_cmd *cmd)
{
    uint64_t va = mb__slot_va(region, slot).addr;

    return !cmd->inval.bytes || va - cmd->inval.va.addr < cmd->inval.bytes;
}

static struct order find(const struct mb_vm *vm, const struct mb__region *region, uint32_t slot)
{
    struct order order = {0};

    for (size_t i = 0; i < vm->batch.cmds.count; i++) {
        const struct mb_hw_cmd *cmd = &vm->batch.cmds.data[i];

        if (cmd->kind != MB_HW_LEAVES || !leaves_cover(region, slot, cmd))
            continue;
        if (cmd->leaves.pfns)
            order.write = i + 1;
        else
            order.clear = i + 1;
    }
    return order;
}

/* First command of the kind behind position `from` (and, an INVALIDATE, covering the slot); 0:
 * none. */
static size_t after(const struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                    size_t from, enum mb_hw_cmd_kind kind)
{
    for (size_t i = from; from && i < vm->batch.cmds.count; i++) {
        const struct mb_hw_cmd *cmd = &vm->batch.cmds.data[i];

        if (cmd->kind == kind && (kind != MB_HW_INVALIDATE || drop_covers(region, slot, cmd)))
            return i + 1;
    }
    return 0;
}

/* Had the group a slot with an entry before the batch that the batch leaves as it is? `g` may be
 * -1. */
static bool keeps_entries(const struct mb_vm *vm, const struct mb__region *region, int64_t g)
{
    uint32_t first = (uint32_t)g << region->group_shift;

    for (uint32_t i = 0; g >= 0 && i < UINT32_C(1) << region->group_shift; i++) {
        struct order order;

        if (!mb__slot_visible(region->slot.flags[first + i]))
            continue;
        order = find(vm, region, first + i);
        if (!order.clear && !order.write)
            return true;
    }
    return false;
}

/* Position of the last clear in a group, 0: none. `g` may be -1. */
static size_t last_clear(const struct mb_vm *vm, const struct mb__region *region, int64_t g)
{
    uint32_t first = (uint32_t)g << region->group_shift;
    size_t last = 0;

    for (uint32_t i = 0; g >= 0 && i < UINT32_C(1) << region->group_shift; i++) {
        struct order order = find(vm, region, first + i);

        last = order.clear > last ? order.clear : last;
    }
    return last;
}

/* Does an invalidate of the slot stand before its write, but behind every clear of a slot through
 * which the group could have been walked? */
static bool dropped_before(const struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                           size_t write)
{
    uint32_t g = slot >> region->group_shift;
    size_t own = last_clear(vm, region, g);
    size_t ahead = vm->guard_groups ? last_clear(vm, region, (int64_t)g - 1) : 0;

    for (size_t i = own > ahead ? own : ahead; i + 1 < write; i++) {
        const struct mb_hw_cmd *cmd = &vm->batch.cmds.data[i];

        if (cmd->kind == MB_HW_INVALIDATE && drop_covers(region, slot, cmd))
            return true;
    }
    return false;
}

/* Must the slot be invalidated after it was written at position `write`? */
static bool must_drop(const struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                      size_t write)
{
    uint32_t g = slot >> region->group_shift;

    if (region->strict_groups || region->group[g].flags & MB__GROUP_SHARED)
        return true;
    if (keeps_entries(vm, region, g) ||
        (vm->guard_groups && keeps_entries(vm, region, (int64_t)g - 1)))
        return true;
    return region->group[g].flags & MB__GROUP_CACHED && !dropped_before(vm, region, slot, write);
}

/* Slot `k` of a stretch of the log. */
static const char *judge(const struct mb_vm *vm, const struct mb__log *log, uint32_t k)
{
    const struct mb__region *region = &vm->region[log->region];
    uint32_t slot = log->slot + k;
    uint8_t flags = region->slot.flags[slot];
    bool was = mb__slot_visible(log->old_flags), now = mb__slot_visible(flags);
    struct order order = find(vm, region, slot);
    size_t seen, drop, membar;

    if (was && now && mb__pfn_eq(vm->batch.old_pfns.data[log->old + k], region->slot.pfn[slot]) &&
        !((log->old_flags ^ flags) & MB__SLOT_PROT))
        return NULL;
    if (was && !order.clear)
        return "an entry is not cleared";
    if (now && !order.write)
        return "an entry is not written";
    seen = after(vm, region, slot, order.clear, MB_HW_BARRIER);
    drop = after(vm, region, slot, seen, MB_HW_INVALIDATE);
    membar = after(vm, region, slot, drop, MB_HW_MEMBAR);
    if (was && !seen)
        return "a clear is not made visible";
    if (was && (now || !vm->config.deferred) && (!drop || !membar))
        return drop ? "no membar follows the invalidate of a clear" : "a clear is not invalidated";
    if (was && now && order.write < membar)
        return "an address is mapped twice without an invalidate between";
    if (!now)
        return NULL;
    seen = after(vm, region, slot, order.write, MB_HW_BARRIER);
    if (!seen)
        return "a write is not made visible";
    if (must_drop(vm, region, slot, order.write) &&
        !after(vm, region, slot, seen, MB_HW_INVALIDATE))
        return "a slot of a cached group is not invalidated";
    return NULL;
}

enum mb_err mb__audit(struct mb_vm *vm)
{
    for (size_t i = 0; i < vm->batch.log.count; i++) {
        const struct mb__log *log = &vm->batch.log.data[i];
        const char *what = NULL;
        uint32_t k = 0;

        while (k < log->count && !(what = judge(vm, log, k)))
            k++;
        if (!what)
            continue;
        if (!vm->audit[0])
            snprintf(vm->audit, sizeof(vm->audit), "batch %" PRIu64 ", va %#" PRIx64 ": %s",
                     vm->batch.number, mb__slot_va(&vm->region[log->region], log->slot + k).addr,
                     what);
#ifdef MB_MUTANTS
        return MB_OK;
#else
        return mb__fail(MB_ERR_INTERNAL, "%s; nothing was submitted", vm->audit);
#endif
    }
    return MB_OK;
}
