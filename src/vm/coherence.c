/* SPDX-License-Identifier: MIT */
/*
 * Coherence: which invalidates a batch needs.
 *
 * A group is CLEAN when nothing on the device can have walked it since the last invalidate of it,
 * else CACHED. What the record knows:
 *
 *   - A group with a valid entry is CACHED: programs may access it at any moment. So is, where
 *     walks may run ahead, the group behind it.
 *   - Without valid entries nothing may access it; the next invalidate of all of it that comes
 *     after the clears makes it CLEAN.
 *   - That is only true in the order of one queue. All batches of a window are so ordered
 *     (mb__window.last), and a window's groups are its own, so the record's order is the device's.
 *     In SHARED groups it is not, so they count as CACHED always.
 *
 * A batch changes entries in two phases. Slots that lose their entry are cleared, then invalidated
 * (which also makes the clears' groups clean), then a membar lets stores through the old
 * translations reach memory. Then new entries are written. The second phase needs an invalidate for
 * a group that
 *
 *   - is SHARED, or
 *   - keeps valid entries that the batch does not change (they may be walked between the phases, or
 *     were before), or lies behind such a group, or
 *   - was CACHED and not invalidated in the first phase.
 *
 * In the deferred mode slots that are only unmapped are not invalidated: their groups stay CACHED.
 *
 * Locking   vm's lock.
 */
#include "base/err.h"
#include "vm/internal.h"

/* Enters a group into the batch. */
static bool enter(struct mb__batch *batch, struct mb__group *group, uint8_t region, uint32_t g)
{
    struct mb__touched *last =
        batch->groups.count ? &batch->groups.data[batch->groups.count - 1] : NULL;

    if (last && last->region == region && last->group + last->groups == g)
        last->groups++;
    else if (!MB_VEC_PUSH(&batch->groups, ((struct mb__touched){g, 1, region})))
        return false;
    group->touched = batch->number;
    group->was = group->now = 0;
    return true;
}

enum mb_err mb__groups_touch(struct mb_vm *vm, uint8_t index, uint32_t slot, uint32_t count,
                             bool was, bool now)
{
    const struct mb__region *region = &vm->region[index];
    uint32_t end = slot + count, size = UINT32_C(1) << region->group_shift, next;

    for (; slot < end; slot = next) {
        uint32_t g = slot >> region->group_shift;
        struct mb__group *group = &region->group[g];

        next = (slot | (size - 1)) + 1;
        next = next < end ? next : end;
        if (group->touched != vm->batch.number && !enter(&vm->batch, group, index, g))
            return mb__no_host_memory("a list of groups");
        group->was = (uint16_t)(group->was + (was ? next - slot : 0));
        group->now = (uint16_t)(group->now + (now ? next - slot : 0));
    }
    return MB_OK;
}

/* Valid entries of a group that this batch leaves alone. */
static unsigned kept(const struct mb_vm *vm, const struct mb__group *group)
{
    return group->touched == vm->batch.number ? (unsigned)(group->mapped - group->was)
                                              : group->mapped;
}

/* The group rule for slots that are about to be written. */
static bool must_drop(const struct mb_vm *vm, const struct mb__region *region, uint32_t g)
{
    const struct mb__group *group = &region->group[g];
    unsigned shift = region->piece_shift - region->leaf_shift - region->group_shift;
    bool donor = !mb__pfn_eq(region->piece[g >> shift].view.clear_pfn, MB_NO_PFN);

    if (MB__VM_MUTANT(MB_VM_GROUP_RULE_IGNORED_INVALID) && !donor)
        return false;
    if (MB__VM_MUTANT(MB_VM_GROUP_RULE_IGNORED_VALID) && donor)
        return false;
    if (region->strict_groups || group->flags & MB__GROUP_SHARED)
        return true;
    if (kept(vm, group) || (vm->guard_groups && g && kept(vm, group - 1)))
        return true;
    return group->flags & MB__GROUP_CACHED && group->dropped != vm->batch.number;
}

/* Ranges come in rising order within a window, so only the last one can be extended. */
static bool extend(struct mb__drop *last, uint8_t region, uint32_t group, uint32_t groups)
{
    if (last->region != region || group < last->group || group > last->group + last->groups)
        return false;
    if (group + groups > last->group + last->groups)
        last->groups = group + groups - last->group;
    return true;
}

static uint32_t first_group(const struct mb__region *region, const struct mb__run *run)
{
    return run->slot >> region->group_shift;
}

static uint32_t end_group(const struct mb__region *region, const struct mb__run *run)
{
    return ((run->slot + run->count - 1) >> region->group_shift) + 1;
}

/* Phase one: all groups with cleared slots, and the one behind (which walks may have run into). */
static enum mb_err plan_clears(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;

    for (size_t i = 0; i < batch->clears.count; i++) {
        const struct mb__run *run = &batch->clears.data[i];
        struct mb__region *region = &vm->region[run->region];
        uint32_t first = first_group(region, run), end = end_group(region, run) + vm->guard_groups;
        size_t n = batch->clear_drops.count;

        if (vm->config.deferred && !run->remap)
            continue;
        if (MB__VM_MUTANT(MB_VM_NO_INVALIDATE_ON_REMAP) && run->remap)
            continue;
        end = end < region->groups ? end : region->groups;
        for (uint32_t g = first; g < end; g++)
            region->group[g].dropped = batch->number;
        if (n && extend(&batch->clear_drops.data[n - 1], run->region, first, end - first))
            continue;
        if (!MB_VEC_PUSH(&batch->clear_drops, ((struct mb__drop){first, end - first, run->region})))
            return mb__no_host_memory("a list of invalidates");
    }
    return MB_OK;
}

/* Phase two. */
static enum mb_err plan_writes(struct mb_vm *vm)
{
    struct mb__batch *batch = &vm->batch;

    for (size_t i = 0; i < batch->writes.count; i++) {
        const struct mb__run *run = &batch->writes.data[i];
        struct mb__region *region = &vm->region[run->region];
        uint32_t end = end_group(region, run);

        if (MB__VM_MUTANT(MB_VM_NO_INVALIDATE_ON_REMAP) && run->remap)
            continue;
        for (uint32_t g = first_group(region, run); g < end; g++) {
            size_t n = batch->write_drops.count;

            if (!must_drop(vm, region, g) ||
                (n && extend(&batch->write_drops.data[n - 1], run->region, g, 1)))
                continue;
            if (!MB_VEC_PUSH(&batch->write_drops, ((struct mb__drop){g, 1, run->region})))
                return mb__no_host_memory("a list of invalidates");
        }
    }
    return MB_OK;
}

enum mb_err mb__drops_plan(struct mb_vm *vm)
{
    enum mb_err err = plan_clears(vm);

    return err ? err : plan_writes(vm);
}

enum mb_err mb__drops_emit(struct mb_vm *vm, const struct mb__drop *drops, size_t count)
{
    struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};
    enum mb_err err = MB_OK;

    if (count > MB__DROPS_MAX) {
        vm->batch.whole = true;
        vm->batch.invalidates++;
        return mb__cmd(vm, cmd);
    }
    for (size_t i = 0; !err && i < count; i++) {
        const struct mb__region *region = &vm->region[drops[i].region];
        unsigned shift = region->group_shift + region->leaf_shift;

        cmd.inval.va = mb__va_add(region->base, (uint64_t)drops[i].group << shift);
        cmd.inval.bytes = (uint64_t)drops[i].groups << shift;
        vm->batch.invalidates++;
        err = mb__cmd(vm, cmd);
    }
    return err;
}

/* The state of a group after the batch. */
static void settle(struct mb_vm *vm, struct mb__region *region, uint32_t g)
{
    struct mb__group *group = &region->group[g];

    if (group->mapped || (vm->guard_groups && g && (group - 1)->mapped))
        group->flags |= MB__GROUP_CACHED;
    else if (group->dropped == vm->batch.number)
        group->flags &= (uint16_t)~MB__GROUP_CACHED;
}

void mb__groups_commit(struct mb_vm *vm)
{
    const struct mb__touched *touched = vm->batch.groups.data;
    const struct mb__touched *end;

    if (!vm->batch.groups.count)
        return;
    end = touched + vm->batch.groups.count;
    for (; touched < end; touched++) {
        struct mb__group *group = &vm->region[touched->region].group[touched->group];

        for (uint32_t i = 0; i < touched->groups; i++, group++) {
            group->mapped = (uint16_t)(group->mapped + group->now - group->was);
            group->was = group->now = 0;
        }
    }
    for (touched = vm->batch.groups.data; touched < end; touched++) {
        struct mb__region *region = &vm->region[touched->region];
        uint32_t last = touched->group + touched->groups + vm->guard_groups;

        last = last < region->groups ? last : region->groups;
        for (uint32_t g = touched->group; g < last; g++)
            settle(vm, region, g);
    }
}
