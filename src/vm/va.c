/* SPDX-License-Identifier: MIT */
/*
 * alloc_va: windows.
 *
 * A window is whole groups of slots, with one unused group behind it (guard): what another window's
 * accesses bring into a TLB, walking ahead included, is then never one of its slots, and the record
 * can say that its groups are clean. Under the inline policy windows of less than half a group
 * share groups (packs); their batches always invalidate.
 *
 *     inline   LIVE --free_va--> WAITS --its last batch passed--> clean again
 *     fresh    LIVE --free_va--> WAITS --its last batch passed--> RETIRED --a flush issued since
 *              then passed--> clean again
 *
 * Clean ranges are reused by best fit before addresses that were never used, since each new piece
 * of address space costs tables. Under the fresh policy a flush starts when an eighth of the ring
 * is retired, so that the ring rarely runs dry; when it does, the host waits for the oldest
 * retirement.
 *
 * Locking   vm's lock, given up while waiting for the device.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "vm/internal.h"

static uint32_t group_slots(const struct mb__region *region)
{
    return UINT32_C(1) << region->group_shift;
}

static uint64_t group_bytes(const struct mb__region *region)
{
    return UINT64_C(1) << (region->leaf_shift + region->group_shift);
}

struct mb__region *mb__window_region(struct mb_vm *vm, mb_va va)
{
    for (unsigned i = MB__REGION_2M; i < MB__REGIONS; i++) {
        if (mb__region_has(&vm->region[i], va))
            return &vm->region[i];
    }
    return NULL;
}

/* ------------------------------------------------------------ ranges of groups */

/* First group >= `from` whose address is a multiple of align. */
static uint32_t align_group(const struct mb__region *region, uint32_t from, uint64_t align)
{
    uint64_t size = group_bytes(region), va = region->base.addr + from * size;
    uint64_t up = align > size ? -va & (align - 1) : 0;

    return up / size < region->groups - from ? from + (uint32_t)(up / size) : region->groups;
}

/* From the groups that were handed out before. */
static bool take_clean(struct mb__region *region, uint32_t groups, uint64_t align, uint32_t *out)
{
    uint64_t slack = align > group_bytes(region) ? align / group_bytes(region) - 1 : 0;
    struct mb__span span;

    if (groups + slack > region->groups ||
        !mb__ranges_best(&region->clean, groups + (uint32_t)slack, &span))
        return false;
    *out = align_group(region, span.first, align);
    mb__ranges_cut(&region->clean, *out, groups);
    return true;
}

/* From the groups that never were, together with clean ones just below them. */
static bool take_top(struct mb__region *region, uint32_t groups, uint64_t align, uint32_t *out)
{
    struct mb__span span;
    uint32_t from = region->top, at;

    if (from && mb__ranges_at(&region->clean, from - 1, &span))
        from = span.first;
    at = align_group(region, from, align);
    if (at > region->groups || groups > region->groups - at)
        return false;
    if (at + groups > region->top) {
        mb__ranges_add(&region->clean, region->top, at + groups - region->top);
        region->top = at + groups;
    }
    mb__ranges_cut(&region->clean, at, groups);
    *out = at;
    return true;
}

/* ------------------------------------------------------------ packs */

/* Longest run of unused slots. */
static unsigned largest_hole(const struct mb__pack *pack, unsigned slots)
{
    unsigned best = 0, run = 0;

    for (unsigned i = 0; i < slots; i++) {
        run = pack->used >> i & 1 ? 0 : run + 1;
        best = run > best ? run : best;
    }
    return best;
}

static void pack_link(struct mb_vm *vm, struct mb__pack *pack)
{
    unsigned hole = largest_hole(pack, group_slots(&vm->region[pack->region]));

    pack->prev = NULL;
    pack->next = vm->packs[hole];
    if (pack->next)
        pack->next->prev = pack;
    vm->packs[hole] = pack;
}

static void pack_unlink(struct mb_vm *vm, struct mb__pack *pack)
{
    unsigned hole = largest_hole(pack, group_slots(&vm->region[pack->region]));

    if (pack->prev)
        pack->prev->next = pack->next;
    else
        vm->packs[hole] = pack->next;
    if (pack->next)
        pack->next->prev = pack->prev;
}

static uint32_t pack_mask(uint32_t first, uint32_t slots)
{
    return (uint32_t)(((UINT64_C(1) << slots) - 1) << first);
}

/* Marks the smallest hole that holds `slots`. */
static uint32_t pack_take(struct mb_vm *vm, struct mb__pack *pack, uint32_t slots)
{
    uint32_t all = group_slots(&vm->region[pack->region]), best = 0, best_run = UINT32_MAX;

    for (uint32_t i = 0, run = 0; i <= all; i++) {
        if (i < all && !(pack->used >> i & 1)) {
            run++;
            continue;
        }
        if (run >= slots && run < best_run) {
            best_run = run;
            best = i - run;
        }
        run = 0;
    }
    pack_unlink(vm, pack);
    pack->used |= pack_mask(best, slots);
    pack_link(vm, pack);
    return best;
}

static struct mb__pack *find_pack(struct mb_vm *vm, uint32_t slots)
{
    for (unsigned hole = slots; hole <= MB__PACK_SLOTS_MAX; hole++) {
        if (vm->packs[hole])
            return vm->packs[hole];
    }
    return NULL;
}

static void pack_give(struct mb_vm *vm, struct mb__pack *pack, uint32_t first, uint32_t slots)
{
    struct mb__region *region = &vm->region[pack->region];

    pack_unlink(vm, pack);
    pack->used &= ~pack_mask(first, slots);
    if (pack->used) {
        pack_link(vm, pack);
        return;
    }
    region->group[pack->group].flags &= (uint16_t)~MB__GROUP_SHARED;
    mb__ranges_add(&region->clean, pack->group, 1 + vm->guard_groups);
    free(pack);
}

/* ------------------------------------------------------------ records of windows */

/* Gives a placed window its number. Until then nobody sees it, though vm's lock may be given up. */
static enum mb_err window_enter(struct mb_vm *vm, struct mb__window *window)
{
    uint32_t id = vm->spare_windows.count ? vm->spare_windows.data[vm->spare_windows.count - 1]
                                          : (uint32_t)vm->windows.count;

    /* Room for every number to become a spare one, so that giving back cannot fail. */
    if (!MB_VEC_RESERVE(&vm->spare_windows, vm->windows.count + 1))
        return mb__no_host_memory("the list of windows");
    if (id == vm->windows.count) {
        if (!MB_VEC_PUSH(&vm->windows, NULL))
            return mb__no_host_memory("the list of windows");
    } else {
        vm->spare_windows.count--;
    }
    window->id = id;
    vm->windows.data[id] = window;
    return MB_OK;
}

static void window_free(struct mb_vm *vm, struct mb__window *window)
{
    if (window->id) {
        vm->windows.data[window->id] = NULL;
        vm->spare_windows.data[vm->spare_windows.count++] = window->id; /* room: window_enter */
    }
    free(window);
}

static void name_slots(struct mb__region *region, const struct mb__window *window, uint32_t id)
{
    for (uint32_t i = 0; i < window->slots; i++)
        region->slot.window[window->slot + i] = id;
}

static uint64_t window_bytes(const struct mb_vm *vm, const struct mb__window *window)
{
    return (uint64_t)window->slots << vm->region[window->region].leaf_shift;
}

/* ------------------------------------------------------------ handing out */

/* Places the window; MB_ERR_NO_ADDRESS (without text) when there is no range for it. */
static enum mb_err place(struct mb_vm *vm, struct mb__window *window, uint64_t align)
{
    struct mb__region *region = &vm->region[window->region];
    uint32_t slots = group_slots(region), group;
    bool small = !vm->fresh && !region->strict_groups && window->slots <= slots / 2 &&
                 align <= (UINT64_C(1) << region->leaf_shift);
    struct mb__pack *pack = small ? find_pack(vm, window->slots) : NULL;

    if (!pack) {
        uint32_t groups = small ? 1 : (window->slots - 1) / slots + 1;

        groups += vm->guard_groups;
        if (!take_clean(region, groups, align, &group) && !take_top(region, groups, align, &group))
            return MB_ERR_NO_ADDRESS;
        window->group = group;
        window->groups = groups;
        window->slot = group << region->group_shift;
        if (!small)
            return MB_OK;
        pack = calloc(1, sizeof(*pack));
        if (!pack) {
            mb__ranges_add(&region->clean, group, groups);
            return mb__no_host_memory("the record of a group");
        }
        *pack = (struct mb__pack){.group = group, .region = window->region};
        region->group[group].flags |= MB__GROUP_SHARED;
        window->groups = 0;
        pack_link(vm, pack);
    }
    window->pack = pack;
    window->slot = (pack->group << region->group_shift) + pack_take(vm, pack, window->slots);
    return MB_OK;
}

/* The window's addresses may be handed out again. */
void mb__window_recycle(struct mb_vm *vm, struct mb__window *window)
{
    struct mb__region *region = &vm->region[window->region];

    vm->recycled++;
    if (window->pack) {
        pack_give(vm, window->pack, window->slot & (group_slots(region) - 1), window->slots);
    } else {
        /* A flush since the last unmap makes groups clean; the inline policy's record says
         * itself. */
        for (uint32_t i = 0; vm->fresh && i < window->groups; i++)
            region->group[window->group + i].flags &= (uint16_t)~MB__GROUP_CACHED;
        mb__ranges_add(&region->clean, window->group, window->groups);
    }
    window_free(vm, window);
}

static bool fits_region(const struct mb_vm *vm, const struct mb__region *region, uint64_t bytes,
                        uint64_t align)
{
    uint64_t groups = (bytes - 1) / group_bytes(region) + 1 + vm->guard_groups;

    return groups <= region->groups - align_group(region, 0, align);
}

/* Why no window of that size and alignment can ever be had. */
static enum mb_err never_fits(const struct mb_vm *vm, const struct mb__region *region,
                              uint64_t bytes, uint64_t align)
{
    uint64_t most = align;

    if (!fits_region(vm, region, bytes, 0))
        return mb__fail(MB_ERR_NO_ADDRESS,
                        "a window of %" PRIu64 " MiB does not fit into the %" PRIu64
                        " GiB of window addresses",
                        bytes >> 20, region->bytes >> 30);
    while (!fits_region(vm, region, bytes, most))
        most /= 2;
    return mb__fail(MB_ERR_NO_ADDRESS,
                    "%" PRIu64 " MiB aligned to 0x%" PRIx64
                    " were asked for; window addresses are [0x%" PRIx64 ", +0x%" PRIx64
                    "), where the largest alignment for this size is 0x%" PRIx64,
                    bytes >> 20, align, region->base.addr, region->bytes, most);
}

/* Makes addresses come back: a flush, or a wait for the oldest one on its way. The lock is given up
 * during the wait. MB_ERR_NO_ADDRESS: nothing is on its way. */
static enum mb_err make_room(struct mb_vm *vm, const struct mb__region *region, uint64_t bytes)
{
    uint64_t recycled = vm->recycled;
    struct mb_hw_fence fence;
    enum mb_err err;

    mb__poll(vm);
    if (vm->recycled != recycled)
        return MB_OK;
    if (mb__wait_oldest(vm, false, &fence)) {
        mb__unlock(&vm->lock);
        err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
        mb__lock(&vm->lock);
        mb__poll(vm);
        return err;
    }
    if (vm->retired)
        return mb__flush(vm, vm->stream, NULL);
    return mb__fail(MB_ERR_NO_ADDRESS,
                    "no range of %" PRIu64 " MiB among %" PRIu64
                    " GiB of window addresses: they are "
                    "in use; free windows or open with more window_space",
                    bytes >> 20, region->bytes >> 30);
}

/* Under the fresh policy: starts the flush that makes retired addresses usable before they are
 * needed. Nobody waits for it; when it cannot be submitted now, the next call tries again. */
static void flush_early(struct mb_vm *vm)
{
    if (vm->fresh && vm->retired_bytes >= vm->epoch_bytes && !vm->flushes_pending)
        (void)mb__flush(vm, vm->stream, NULL);
}

/* Finds a place, waiting if it must; gives up the lock meanwhile. */
static enum mb_err place_somewhere(struct mb_vm *vm, struct mb__window *window, uint64_t bytes,
                                   uint64_t align)
{
    enum mb_err err;

    mb__poll(vm);
    flush_early(vm);
    while ((err = place(vm, window, align)) == MB_ERR_NO_ADDRESS) {
        err = make_room(vm, &vm->region[window->region], bytes);
        if (err)
            return err;
    }
    return err;
}

static enum mb_err alloc_locked(struct mb_vm *vm, enum mb__region_index index, uint64_t bytes,
                                uint64_t align, mb_va *out)
{
    struct mb__region *region = &vm->region[index];
    struct mb__window *window = calloc(1, sizeof(*window));
    enum mb_err err;

    if (!window)
        return mb__no_host_memory("the record of a window");
    window->region = (uint8_t)index;
    window->slots = (uint32_t)(bytes >> region->leaf_shift);
    err = place_somewhere(vm, window, bytes, align);
    if (err) {
        window_free(vm, window);
        return err;
    }
    err = mb__pgt_create(vm, region, mb__slot_va(region, window->slot), bytes);
    if (!err)
        err = window_enter(vm, window);
    if (err) {
        mb__window_recycle(vm, window);
        return err;
    }
    if (!MB__VM_MUTANT(MB_VM_LEAF_BEFORE_DIRECTORY) && !mb__fence_passed(vm, vm->built))
        window->last = vm->built;
    name_slots(region, window, window->id);
    vm->stats.va_handed_out_bytes += bytes;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): vm->windows holds the window */
    *out = mb__slot_va(region, window->slot);
    return MB_OK;
}

static enum mb_err open_region(struct mb_vm *vm, unsigned leaf_shift, enum mb__region_index *index)
{
    const struct mb_hw_caps *caps = &vm->hw->caps;
    uint64_t bytes = vm->config.ring_bytes;
    enum mb_err err;

    *index = leaf_shift == 21 ? MB__REGION_2M : leaf_shift == 16 ? MB__REGION_64K : MB__REGION_4K;
    if (vm->region[*index].bytes)
        return MB_OK;
    if (leaf_shift != 21) {
        struct mb_fmt_level leaf = leaf_shift == 16 ? vm->geo.leaf_64k : vm->geo.leaf_4k;

        if (!caps->tree_is_ours || !leaf.entry_bytes || !(caps->leaf_sizes >> leaf_shift & 1))
            return mb__fail(MB_ERR_NOT_SUPPORTED,
                            "leaves of %u KiB need page tables that MoonBright "
                            "builds itself and a format that has them; this "
                            "device offers 2 MiB",
                            1u << (leaf_shift - 10));
        bytes /= 16; /* the record is per slot */
    }
    err = mb__region_open(vm, *index, bytes, leaf_shift);
    /* A smaller ring serves as well; it only flushes more often. */
    while (err == MB_ERR_NO_ADDRESS && bytes > UINT64_C(1) << 30) {
        bytes /= 2;
        err = mb__region_open(vm, *index, bytes, leaf_shift);
    }
    if (!err && leaf_shift == 21)
        vm->epoch_bytes = vm->region[*index].bytes / 8;
    return err;
}

enum mb_err mb__alloc_va_leaf(struct mb_vm *vm, uint64_t bytes, uint64_t align, unsigned leaf_shift,
                              mb_va *out)
{
    enum mb__region_index index = MB__REGION_2M;
    enum mb_err err;

    if (leaf_shift != 21 && leaf_shift != 16 && leaf_shift != 12)
        return mb__fail(MB_ERR_INVALID, "leaf size 2^%u; allowed are 21, 16 and 12", leaf_shift);
    if (!bytes || bytes & ((UINT64_C(1) << leaf_shift) - 1) || align & (align - 1))
        return mb__fail(MB_ERR_INVALID,
                        "alloc_va of %" PRIu64 " bytes aligned to %" PRIu64
                        "; a multiple of the leaf size and a power of two are "
                        "wanted",
                        bytes, align);
    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    if (!err)
        err = open_region(vm, leaf_shift, &index);
    if (!err && !fits_region(vm, &vm->region[index], bytes, align))
        err = never_fits(vm, &vm->region[index], bytes, align);
    if (!err)
        err = alloc_locked(vm, index, bytes, align, out);
    mb__unlock(&vm->lock);
    return err;
}

enum mb_err mb__alloc_va(struct mb_vm *vm, uint64_t bytes, uint64_t align, mb_va *out)
{
    return mb__alloc_va_leaf(vm, bytes, align, MB_FRAME_SHIFT, out);
}

/* ------------------------------------------------------------ taking back */

void mb__window_passed(struct mb_vm *vm, struct mb__window *window)
{
    vm->waiting_bytes -= window_bytes(vm, window);
    if (!vm->fresh || MB__VM_MUTANT(MB_VM_EPOCH_RECYCLED_WITHOUT_FLUSH)) {
        mb__window_recycle(vm, window);
        return;
    }
    window->state = MB__WINDOW_RETIRED;
    window->next = vm->retired;
    vm->retired = window;
    vm->retired_bytes += window_bytes(vm, window);
}

static struct mb__window *find_window(struct mb_vm *vm, mb_va va, uint64_t bytes)
{
    struct mb__region *region = mb__window_region(vm, va);
    struct mb__window *window;

    if (!region)
        return NULL;
    window = vm->windows.data[region->slot.window[mb__slot_at(region, va)]];
    if (!window || mb__slot_va(region, window->slot).addr != va.addr ||
        window_bytes(vm, window) != bytes)
        return NULL;
    return window;
}

static enum mb_err free_locked(struct mb_vm *vm, mb_va va, uint64_t bytes)
{
    struct mb__window *window = find_window(vm, va, bytes);
    struct mb__wait *wait;

    if (!window)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "free_va of %" PRIu64 " bytes at %#" PRIx64 ": that is not a "
                        "whole window; give back what alloc_va gave",
                        bytes, va.addr);
    if (window->mapped)
        return mb__fail(MB_ERR_BUSY,
                        "free_va at %#" PRIx64 ": %u slots are mapped; unmap them first", va.addr,
                        window->mapped);
    wait = mb__wait_new(vm, MB__WAIT_WINDOW, 1, 0);
    if (!wait)
        return MB_ERR_HOST_MEMORY;
    if (window->last.stream)
        mb__wait_fence(wait, window->last);
    wait->window = window;
    name_slots(&vm->region[window->region], window, 0);
    window->state = MB__WINDOW_WAITS;
    vm->waiting_bytes += bytes;
    mb__wait_start(vm, wait);
    return MB_OK;
}

enum mb_err mb__free_va(struct mb_vm *vm, mb_va va, uint64_t bytes)
{
    enum mb_err err;

    mb__lock(&vm->lock);
    mb__poll(vm);
    err = free_locked(vm, va, bytes);
    mb__unlock(&vm->lock);
    return err;
}

void mb__windows_close(struct mb_vm *vm)
{
    for (size_t i = 1; i < vm->windows.count; i++) {
        struct mb__window *window = vm->windows.data[i];

        if (!window)
            continue;
        if (window->pack) {
            struct mb__pack *pack = window->pack;
            struct mb__region *region = &vm->region[pack->region];

            pack_give(vm, pack, window->slot & (group_slots(region) - 1), window->slots);
        }
        free(window);
    }
    vm->windows.count = 0;
    vm->retired = NULL;
}
