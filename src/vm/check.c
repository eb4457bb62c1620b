/* SPDX-License-Identifier: MIT */
/*
 * The invariants of the record, one function each; doc/invariants.md has the list. They recompute
 * from the frames and slots what the counters say, so a wrong counter and a wrong slot are both
 * seen.
 *
 * Cost      O(frames + slots handed out + waits): for tests and mb_check(), not for hot paths.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "vm/internal.h"

#define BROKEN(...) mb__fail(MB_ERR_CORRUPT, __VA_ARGS__)

static enum mb__frame_state state_at(struct mb_vm *vm, uint32_t page)
{
    return (enum mb__frame_state)(mb__frame_at(vm, vm->homes[page].frame)->word & MB__STATE);
}

/* Home pages that may hold something: up to the end of the highest slab. */
static uint32_t home_end(const struct mb_vm *vm)
{
    uint32_t end = 0;

    for (size_t i = 1; i < vm->slabs.count; i++) {
        const struct mb__slab *slab = &vm->slabs.data[i];

        if (slab->state != MB__SLAB_UNUSED && slab->first + slab->frames > end)
            end = slab->first + slab->frames;
    }
    return end;
}

/* Every frame has one home page and the reverse; FREE is exactly what the pool says; slabs
 * count. */
enum mb_err mb__check_frames(struct mb_vm *vm)
{
    uint32_t end = home_end(vm);

    if (!mb__ranges_valid(&vm->free) || !mb__ranges_valid(&vm->holes))
        return BROKEN("frames: the tree of free runs or of holes is broken");
    for (uint32_t page = 0; page < end; page++) {
        const struct mb__home_page *home = &vm->homes[page];
        struct mb__span span;
        bool hole = mb__ranges_at(&vm->holes, page, &span);
        bool pooled = mb__ranges_at(&vm->free, page, &span);
        const struct mb__frame *frame;

        if (hole != !home->slab)
            return BROKEN("frames: home page %u is %sin the holes and names slab %u", page,
                          hole ? "" : "not ", home->slab);
        if (hole && pooled)
            return BROKEN("frames: home page %u is a hole and in the pool", page);
        if (hole)
            continue;
        frame = mb__frame_at(vm, home->frame);
        if (vm->frame_home[home->frame] != page || state_at(vm, page) == MB__NONE)
            return BROKEN("frames: frame %#x of home page %u has another home or no state",
                          home->frame, page);
        if (pooled != (state_at(vm, page) == MB__FREE))
            return BROKEN("frames: home page %u is %sin the pool, its frame is in state %d", page,
                          pooled ? "" : "not ", (int)state_at(vm, page));
        if ((state_at(vm, page) == MB__OWNED) != (frame->owner != 0))
            return BROKEN("frames: home page %u has owner %u in state %d", page, frame->owner,
                          (int)state_at(vm, page));
    }
    return MB_OK;
}

/* Counts per slab and in all: owned + free + draining = held. */
enum mb_err mb__check_accounts(struct mb_vm *vm)
{
    uint32_t count[4] = {0}, held = 0;

    for (size_t i = 1; i < vm->slabs.count; i++) {
        const struct mb__slab *slab = &vm->slabs.data[i];
        uint32_t free_frames = 0;

        if (slab->state == MB__SLAB_UNUSED)
            continue;
        held += slab->frames;
        for (uint32_t page = slab->first; page < slab->first + slab->frames; page++) {
            if (vm->homes[page].slab != i)
                return BROKEN("accounts: home page %u names slab %u, it is of slab %zu", page,
                              vm->homes[page].slab, i);
            count[state_at(vm, page)]++;
            free_frames += state_at(vm, page) == MB__FREE;
        }
        if (free_frames != slab->free)
            return BROKEN("accounts: slab %zu has %u free frames and counts %u", i, free_frames,
                          slab->free);
    }
    if (held != vm->held || count[MB__FREE] != vm->free.total || count[MB__OWNED] != vm->owned ||
        count[MB__DRAINING] != vm->draining ||
        vm->owned + vm->free.total + vm->draining != vm->held)
        return BROKEN("accounts: held %u = owned %u + free %u + draining %u frames does not hold; "
                      "counted %u = %u + %u + %u",
                      vm->held, vm->owned, vm->free.total, vm->draining, held, count[MB__OWNED],
                      count[MB__FREE], count[MB__DRAINING]);
    if ((uint64_t)vm->held << MB_FRAME_SHIFT > vm->limit_bytes)
        return BROKEN("accounts: %u frames held, the limit is %" PRIu64 " MiB", vm->held,
                      vm->limit_bytes >> 20);
    return MB_OK;
}

/* Entries that name each frame: mapped homes, window slots, and entries whose clear is under
 * way. */
static enum mb_err count_entries(struct mb_vm *vm, uint32_t *entries, uint32_t end)
{
    for (uint32_t page = 0; page < end; page++)
        entries[page] = vm->homes[page].slab && vm->slabs.data[vm->homes[page].slab].mapped;
    for (size_t i = 1; i < vm->windows.count; i++) {
        const struct mb__window *window = vm->windows.data[i];

        for (uint32_t k = 0; window && k < window->slots; k++) {
            const struct mb__slots *slots = &vm->region[window->region].slot;
            uint32_t pfn = slots->pfn[window->slot + k].n;
            const struct mb__frame *frame = mb__frame_at(vm, mb__frame_of(pfn));

            if (!(slots->flags[window->slot + k] & MB__SLOT_MAPPED))
                continue;
            if ((frame->word & MB__STATE) == MB__NONE)
                return BROKEN("refs: a slot names frame %#x, which no slab holds", pfn);
            entries[vm->frame_home[mb__frame_of(pfn)]]++;
        }
    }
    for (size_t i = 0; i < vm->queues.count; i++) {
        for (const struct mb__wait *wait = vm->queues.data[i].head; wait; wait = wait->next) {
            for (uint32_t k = 0; wait->kind == MB__WAIT_REFS && k < wait->count; k++)
                entries[vm->frame_home[mb__frame_of(wait->pfns[k].n)]]++;
        }
    }
    return MB_OK;
}

enum mb_err mb__check_refs(struct mb_vm *vm)
{
    uint32_t end = home_end(vm);
    uint32_t *entries = calloc((size_t)end + 1, sizeof(*entries));
    enum mb_err err;

    if (!entries)
        return mb__no_host_memory("a check");
    err = count_entries(vm, entries, end);
    for (uint32_t page = 0; !err && page < end; page++) {
        const struct mb__frame *frame;
        uint32_t refs;

        if (!vm->homes[page].slab)
            continue;
        frame = mb__frame_at(vm, vm->homes[page].frame);
        refs = mb__frame_refs(frame);
        if (refs != entries[page])
            err = BROKEN("refs: frame %#x (home page %u) has %u references, %u entries name it",
                         vm->homes[page].frame, page, refs, entries[page]);
    }
    free(entries);
    return err;
}

/* A window's entry names a frame that is OWNED, or DRAINING because of such entries. */
enum mb_err mb__check_owned(struct mb_vm *vm)
{
    for (size_t i = 1; i < vm->windows.count; i++) {
        const struct mb__window *window = vm->windows.data[i];

        for (uint32_t k = 0; window && k < window->slots; k++) {
            const struct mb__slots *slots = &vm->region[window->region].slot;
            uint32_t pfn = slots->pfn[window->slot + k].n;
            const struct mb__frame *frame = mb__frame_at(vm, mb__frame_of(pfn));

            if (!(slots->flags[window->slot + k] & MB__SLOT_MAPPED))
                continue;
            if ((frame->word & MB__STATE) == MB__FREE || (frame->word & MB__STATE) == MB__NONE)
                return BROKEN("owned: slot %u of the window at %#" PRIx64
                              " names frame %#x, which is "
                              "not owned",
                              k, mb__slot_va(&vm->region[window->region], window->slot).addr, pfn);
        }
    }
    return MB_OK;
}

/* A frame in use or in the pool has its home mapped, so what keeps it alive in the driver lives. */
enum mb_err mb__check_homes(struct mb_vm *vm)
{
    for (size_t i = 1; i < vm->slabs.count; i++) {
        const struct mb__slab *slab = &vm->slabs.data[i];

        if (slab->state == MB__SLAB_LIVE && !slab->mapped)
            return BROKEN("homes: slab %zu at home page %u is in use and its home is not mapped", i,
                          slab->first);
        if (slab->state == MB__SLAB_ZOMBIE && slab->free)
            return BROKEN("homes: slab %zu is half given back and has frames in the pool", i);
    }
    return MB_OK;
}

static enum mb_err check_window(struct mb_vm *vm, const struct mb__window *window)
{
    const struct mb__region *region = &vm->region[window->region];
    uint32_t id = window->state == MB__WINDOW_LIVE ? window->id : 0, mapped = 0;

    for (uint32_t k = 0; k < window->slots; k++) {
        uint32_t slot = window->slot + k, group = slot >> region->group_shift;
        uint8_t flags = region->slot.flags[slot];
        struct mb__span span;

        if (region->slot.window[slot] != id)
            return BROKEN("windows: slot %u of window %u names window %u", k, window->id,
                          region->slot.window[slot]);
        if (flags & (MB__SLOT_TOUCHED | MB__SLOT_NEW))
            return BROKEN("windows: slot %u of window %u is marked by no batch", k, window->id);
        if (mb__ranges_at(&region->clean, group, &span) || group >= region->top)
            return BROKEN("windows: slot %u of window %u lies among clean addresses", k,
                          window->id);
        mapped += flags & MB__SLOT_MAPPED;
    }
    if (mapped != window->mapped || (mapped && window->state != MB__WINDOW_LIVE))
        return BROKEN("windows: window %u in state %d counts %u mapped slots and has %u",
                      window->id, (int)window->state, window->mapped, mapped);
    return MB_OK;
}

/* States of addresses: handed out, on their way back, clean; each slot in exactly one. */
enum mb_err mb__check_windows(struct mb_vm *vm)
{
    uint64_t groups[MB__REGIONS] = {0}, retired = 0, waiting = 0;
    enum mb_err err = MB_OK;

    for (size_t i = 1; !err && i < vm->windows.count; i++) {
        const struct mb__window *window = vm->windows.data[i];
        uint64_t bytes;

        if (!window)
            continue;
        bytes = (uint64_t)window->slots << vm->region[window->region].leaf_shift;
        retired += window->state == MB__WINDOW_RETIRED ? bytes : 0;
        waiting += window->state == MB__WINDOW_WAITS ? bytes : 0;
        groups[window->region] += window->groups;
        err = check_window(vm, window);
    }
    for (unsigned hole = 0; !err && hole <= MB__PACK_SLOTS_MAX; hole++) {
        for (const struct mb__pack *pack = vm->packs[hole]; pack; pack = pack->next)
            groups[pack->region] += 1 + vm->guard_groups;
    }
    for (unsigned r = MB__REGION_2M; !err && r < MB__REGIONS; r++) {
        const struct mb__region *region = &vm->region[r];

        if (region->bytes &&
            (!mb__ranges_valid(&region->clean) || groups[r] + region->clean.total != region->top))
            err = BROKEN("windows: region %u handed out %" PRIu64
                         " groups, %u are clean, %u were ever "
                         "used",
                         r, groups[r], region->clean.total, region->top);
    }
    if (!err && (retired != vm->retired_bytes || waiting != vm->waiting_bytes))
        err = BROKEN("windows: %" PRIu64 " bytes retired and %" PRIu64 " waiting, counted %" PRIu64
                     " and %" PRIu64,
                     vm->retired_bytes, vm->waiting_bytes, retired, waiting);
    return err;
}

static enum mb_err check_group(const struct mb_vm *vm, const struct mb__region *region, uint32_t g)
{
    const struct mb__group *group = &region->group[g];
    unsigned mapped = 0;
    struct mb__span span;

    for (uint32_t i = 0; i < UINT32_C(1) << region->group_shift; i++)
        mapped += mb__slot_visible(region->slot.flags[(g << region->group_shift) + i]);
    if (mapped != group->mapped)
        return BROKEN("groups: group %u counts %u entries and has %u", g, group->mapped, mapped);
    if (mapped && !(group->flags & MB__GROUP_CACHED))
        return BROKEN("groups: group %u has entries and counts as clean", g);
    if (vm->guard_groups && mapped && g + 1 < region->groups &&
        !((group + 1)->flags & MB__GROUP_CACHED))
        return BROKEN("groups: walks may run from group %u into the next, which counts as clean",
                      g);
    if (vm->fresh && mb__ranges_at(&region->clean, g, &span) && group->flags)
        return BROKEN("groups: group %u is to be handed out fresh with flags %u", g, group->flags);
    return MB_OK;
}

/* What counts as clean cannot be cached. */
enum mb_err mb__check_groups(struct mb_vm *vm)
{
    enum mb_err err = MB_OK;

    for (unsigned r = MB__REGION_2M; r < MB__REGIONS; r++) {
        for (uint32_t g = 0; !err && g < vm->region[r].top; g++)
            err = check_group(vm, &vm->region[r], g);
    }
    return err;
}

/* Queues in the order of tickets, with room for what may come; pending references counted. */
enum mb_err mb__check_waits(struct mb_vm *vm)
{
    uint64_t refs = 0;
    size_t fences = 0;

    for (size_t i = 0; i < vm->queues.count; i++) {
        const struct mb__queue *queue = &vm->queues.data[i];
        uint64_t seq = 0;

        for (const struct mb__wait *wait = queue->head; wait; wait = wait->next) {
            struct mb_hw_fence fence;

            if (!wait->fences_left)
                return BROKEN("waits: a wait without fences stands in a queue");
            fence = wait->fences[wait->fences_left - 1];
            if (fence.stream != queue->stream || fence.seq < seq)
                return BROKEN("waits: ticket %" PRIu64 " stands behind %" PRIu64 " or in another "
                              "stream's queue",
                              fence.seq, seq);
            if (!wait->next && queue->tail != wait)
                return BROKEN("waits: a queue's end is not its last wait");
            seq = fence.seq;
            fences += wait->fences_max;
            refs += wait->kind == MB__WAIT_REFS ? wait->count : 0;
        }
    }
    if (fences != vm->fences_waiting || refs != vm->pending_refs)
        return BROKEN("waits: %zu fences and %" PRIu64 " references wait, counted %zu and %" PRIu64,
                      vm->fences_waiting, vm->pending_refs, fences, refs);
    return MB_OK;
}

/* No batch so far broke the order of operations. */
enum mb_err mb__check_order(struct mb_vm *vm)
{
    if (vm->audit[0])
        return BROKEN("order: %s", vm->audit);
    return MB_OK;
}

enum mb_err mb__vm_check(struct mb_vm *vm)
{
    static enum mb_err (*const checks[])(struct mb_vm *) = {
        mb__check_frames,  mb__check_accounts, mb__check_refs,  mb__check_owned, mb__check_homes,
        mb__check_windows, mb__check_groups,   mb__check_waits, mb__check_order,
    };
    enum mb_err err = MB_OK;

    mb__lock(&vm->lock);
    for (size_t i = 0; !err && i < sizeof(checks) / sizeof(checks[0]); i++)
        err = checks[i](vm);
    mb__unlock(&vm->lock);
    return err;
}
