/* SPDX-License-Identifier: MIT */
/*
 * Live entries against the record: what another module, or a mistake, did to the tables is found
 * here and can be put right.
 *
 * How       Piece by piece, by the device where the backend has a scrubber (kernels/pte_scrub.h),
 *           by reading the entries elsewhere. One that differs is looked at again and judged unless
 *           its window has a batch under way, whose entries may be of either side. Repairs are
 *           ordinary commands (leaves, BARRIER, INVALIDATE, MEMBAR) on vm's own stream.
 * Cost      One read of every table that exists, under the lock; on the host 16 bytes of record for
 *           each slot of a piece.
 * Locking   vm's lock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "vm/internal.h"

enum {
    AT_ONCE = 256,      /* entries read in one call */
    SCRUB_MOST = 65536, /* compared in one call: a kernel should have something to do */
    NAMED = 1024,       /* differing ones named in one call; with more the pass is repeated */
};

/* One pass over all tables. */
struct scrub {
    struct mb_vm *vm;
    bool repair;
    struct mb_tables_report sum;
    char first[192];       /* text of the first wrong entry */
    MB_VEC(mb_pfn) frames; /* of repairs, one each; commands point into it when it is complete */
    MB_VEC(struct mb__drop) slots;     /* to be rewritten: region, slot in .group */
    MB_VEC(struct mb_scrub_want) want; /* of one call */
};

/* What the record says of a slot. */
struct expected {
    uint32_t pfn;
    enum mb_prot prot; /* MB_PROT_NONE: cleared */
};

static bool entry_agrees(const struct mb_hw_view *view, const struct mb_leaf *leaf, bool valid,
                         struct expected want)
{
    if (want.prot == MB_PROT_NONE) {
        if (mb__pfn_eq(view->clear_pfn, MB_NO_PFN))
            return !valid;
        return valid && leaf->phys == mb__phys_of_pfn(view->clear_pfn);
    }
    return valid && leaf->phys == mb__phys_of_pfn((mb_pfn){want.pfn}) &&
           !(leaf->flags & MB_LEAF_READ_ONLY) == (want.prot == MB_PROT_READ_WRITE);
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

    return (x > y) - (x < y);
}

/* False: nothing is known. */
static bool expected(const struct mb_vm *vm, const struct mb__region *region, uint32_t i,
                     struct expected *out)
{
    *out = (struct expected){0, MB_PROT_NONE};
    if (region->slot.flags) {
        out->pfn = region->slot.pfn[i].n;
        if (region->slot.flags[i] & MB__SLOT_MAPPED)
            out->prot = mb__slot_prot(region->slot.flags[i]);
        return true;
    }
    if (i >= vm->home_pages || !vm->homes[i].slab)
        return true;
    if (vm->slabs.data[vm->homes[i].slab].state == MB__SLAB_ZOMBIE)
        return false;
    out->pfn = vm->homes[i].frame << MB__FRAME_PFN_BITS;
    if (vm->slabs.data[vm->homes[i].slab].mapped)
        out->prot = MB_PROT_READ_WRITE;
    return true;
}

/* Has the slot's window, live or given back, a batch under way? */
static bool busy(struct mb_vm *vm, const struct mb__region *region, uint32_t slot)
{
    for (size_t i = 1; region->slot.flags && i < vm->windows.count; i++) {
        const struct mb__window *window = vm->windows.data[i];

        if (window && &vm->region[window->region] == region && slot - window->slot < window->slots)
            return !mb__fence_passed(vm, window->last);
    }
    return false;
}

/* Does the entry let somebody reach a frame that this vm does not hold? */
static bool is_foreign(struct mb_vm *vm, const struct mb_hw_view *view, const struct mb_leaf *leaf,
                       bool valid)
{
    uint64_t frame = leaf->phys >> MB_FRAME_SHIFT;

    if (!valid || leaf->phys == mb__phys_of_pfn(view->clear_pfn))
        return false;
    return frame >= MB__FRAMES || (mb__frame_at(vm, (uint32_t)frame)->word & MB__STATE) == MB__NONE;
}

static enum mb_err note(struct scrub *scrub, const struct mb__region *region, uint32_t slot,
                        struct mb_pte pte, struct expected want, bool foreign)
{
    struct mb_vm *vm = scrub->vm;
    mb_va va = mb__slot_va(region, slot);
    struct mb__drop at = {slot, 1, (uint8_t)(region - vm->region)};

    if (!scrub->sum.wrong++) {
        scrub->sum.first = (void *)(uintptr_t)va.addr;
        snprintf(scrub->first, sizeof(scrub->first),
                 "tables: the entry of %#" PRIx64 " is %#" PRIx64 ":%#" PRIx64
                 "%s, the record says "
                 "frame %#x with access %d",
                 va.addr, pte.hi, pte.lo, foreign ? ", which names a foreign frame" : "", want.pfn,
                 (int)want.prot);
    }
    scrub->sum.foreign += foreign;
    if (!scrub->repair)
        return MB_OK;
    if (!MB_VEC_PUSH(&scrub->slots, at) || !MB_VEC_PUSH(&scrub->frames, (mb_pfn){want.pfn}))
        return mb__no_host_memory("a list of repairs");
    return MB_OK;
}

static bool decode(const struct mb_vm *vm, const struct mb_hw_view *view, struct mb_pte pte,
                   struct mb_leaf *leaf)
{
    *leaf = (struct mb_leaf){0};
    return mb_fmt_decode_leaf(vm->hw->caps.format, view->leaf_shift, pte, leaf) &&
           leaf->flags & MB_LEAF_VALID;
}

/* Looks again at an entry that differs. Its batch may have passed since it was read; none can have
 * been submitted, so a second difference stands. */
static enum mb_err judge(struct scrub *scrub, const struct mb__region *region,
                         const struct mb_hw_view *view, uint32_t slot, struct expected want)
{
    struct mb_vm *vm = scrub->vm;
    uint32_t base = (uint32_t)((view->va.addr - region->base.addr) >> region->leaf_shift);
    struct mb_leaf leaf;
    struct mb_pte pte;
    enum mb_err err;
    bool valid;

    if (busy(vm, region, base + slot)) {
        scrub->sum.busy++;
        return MB_OK;
    }
    err = vm->hw->ops->read_slots(vm->hw, view, slot, 1, &pte);
    if (err)
        return err;
    valid = decode(vm, view, pte, &leaf);
    if (entry_agrees(view, &leaf, valid, want))
        return MB_OK;
    return note(scrub, region, base + slot, pte, want, is_foreign(vm, view, &leaf, valid));
}

static enum mb_err compare(struct scrub *scrub, const struct mb__region *region,
                           const struct mb_hw_view *view, uint32_t first, uint32_t count)
{
    struct mb_vm *vm = scrub->vm;
    struct mb_pte pte[AT_ONCE];
    uint32_t base = (uint32_t)((view->va.addr - region->base.addr) >> region->leaf_shift);
    enum mb_err err = vm->hw->ops->read_slots(vm->hw, view, first, count, pte);

    for (uint32_t i = 0; !err && i < count; i++) {
        struct expected want;
        struct mb_leaf leaf;
        bool valid = decode(vm, view, pte[i], &leaf);

        scrub->sum.entries++;
        if (expected(vm, region, base + first + i, &want) &&
            !entry_agrees(view, &leaf, valid, want))
            err = judge(scrub, region, view, first + i, want);
    }
    return err;
}

/* What the slot's entry must be, for the device. */
static struct mb_scrub_want wanted(const struct mb_vm *vm, const struct mb__region *region,
                                   const struct mb_hw_view *view, uint32_t slot)
{
    enum mb_fmt fmt = vm->hw->caps.format;
    uint64_t valid = mb_fmt_leaf_template(fmt, view->leaf_shift, mb_fmt_user_flags(fmt, 1),
                                          MB_AP_VID, vm->hw->caps.kind) &
                     1; /* bit 0 of every format */
    struct expected want;

    if (!expected(vm, region, slot, &want))
        return (struct mb_scrub_want){0, 0};
    if (want.prot != MB_PROT_NONE)
        return (struct mb_scrub_want){
            mb_fmt_leaf_at(fmt, view->leaf_shift, mb__pgt_template(vm, view->leaf_shift, want.prot),
                           want.pfn)
                .lo,
            UINT64_MAX};
    if (mb__pfn_eq(view->clear_pfn, MB_NO_PFN))
        return (struct mb_scrub_want){0, valid};
    return (struct mb_scrub_want){valid | (uint64_t)view->clear_pfn.n << mb_fmt_pfn_shift(fmt),
                                  valid | mb_fmt_leaf_addr_mask(fmt, MB_AP_VID)};
}

/* One piece, or as much of it as one call takes, by the device. Judging waits for nothing. */
static enum mb_err scrub_piece(struct scrub *scrub, const struct mb__region *region,
                               const struct mb_hw_view *view, uint32_t first, uint32_t count)
{
    struct mb_vm *vm = scrub->vm;
    uint32_t base = (uint32_t)((view->va.addr - region->base.addr) >> region->leaf_shift);
    uint32_t named[NAMED], differing = 0;
    enum mb_err err;

    scrub->want.count = 0;
    if (!MB_VEC_RESERVE(&scrub->want, count))
        return mb__no_host_memory("a list of entries");
    for (uint32_t i = 0; i < count; i++)
        scrub->want.data[i] = wanted(vm, region, view, base + first + i);
    err = vm->hw->ops->scrub_slots(vm->hw, view, first, count, scrub->want.data, named, NAMED,
                                   &differing);
    if (err)
        return err;
    if (differing > NAMED) { /* too many to name: as where there is no scrubber */
        for (uint32_t i = 0; !err && i < count; i += AT_ONCE)
            err =
                compare(scrub, region, view, first + i, count - i < AT_ONCE ? count - i : AT_ONCE);
        return err;
    }
    scrub->sum.entries += count;
    qsort(named, differing, sizeof(named[0]), by_number);
    for (uint32_t i = 0; !err && i < differing; i++) {
        struct expected want;

        if (expected(vm, region, base + first + named[i], &want))
            err = judge(scrub, region, view, first + named[i], want);
    }
    return err;
}

static enum mb_err compare_view(struct scrub *scrub, const struct mb__region *region,
                                const struct mb_hw_view *view)
{
    uint32_t slots = (uint32_t)(view->bytes >> region->leaf_shift);
    bool device = scrub->vm->hw->caps.device_scrub && scrub->vm->hw->ops->scrub_slots;
    uint32_t most = device ? SCRUB_MOST : AT_ONCE;
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < slots; i += most) {
        uint32_t count = slots - i < most ? slots - i : most;

        err = device ? scrub_piece(scrub, region, view, i, count)
                     : compare(scrub, region, view, i, count);
    }
    return err;
}

static enum mb_err compare_all(struct scrub *scrub)
{
    enum mb_err err = MB_OK;

    for (unsigned r = 0; r < MB__REGIONS; r++) {
        const struct mb__region *region = &scrub->vm->region[r];

        for (uint32_t p = 0; !err && p < region->pieces; p++)
            err = compare_view(scrub, region, &region->piece[p].view);
    }
    return err;
}

/* Writes the record over the entries that were noted, and waits. */
static enum mb_err rewrite(struct scrub *scrub)
{
    static const enum mb_hw_cmd_kind rest[] = {MB_HW_BARRIER, MB_HW_INVALIDATE, MB_HW_MEMBAR};
    struct mb_vm *vm = scrub->vm;
    struct mb_hw_fence fence;
    enum mb_err err = MB_OK;

    vm->batch.cmds.count = 0;
    for (size_t i = 0; !err && i < scrub->slots.count; i++) {
        const struct mb__region *region = &vm->region[scrub->slots.data[i].region];
        uint32_t slot = scrub->slots.data[i].group;
        struct expected want;

        (void)expected(vm, region, slot, &want);
        err = mb__pgt_leaves(vm, region, slot, 1,
                             want.prot == MB_PROT_NONE ? NULL : &scrub->frames.data[i], want.prot);
    }
    for (unsigned i = 0; !err && i < sizeof(rest) / sizeof(rest[0]); i++)
        err = mb__cmd_kind(vm, rest[i]);
    if (!err)
        err = mb__vm_submit(vm, vm->stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (!err && fence.stream)
        err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
    for (size_t i = 0; !err && i < scrub->slots.count; i++) {
        const struct mb__region *region = &vm->region[scrub->slots.data[i].region];

        mb__trail_repair(vm, mb__slot_va(region, scrub->slots.data[i].group),
                         scrub->frames.data[i].n, UINT64_C(1) << region->leaf_shift);
    }
    return err;
}

/* A second look says how many of the wrong entries are right now. */
static enum mb_err repair(struct scrub *scrub)
{
    struct scrub again = {.vm = scrub->vm};
    enum mb_err err = rewrite(scrub);

    if (!err)
        err = compare_all(&again);
    MB_VEC_FREE(&again.want);
    if (err)
        return err;
    scrub->sum.repaired = scrub->sum.wrong -
                          (again.sum.wrong < scrub->sum.wrong ? again.sum.wrong : scrub->sum.wrong);
    if (again.sum.wrong)
        return mb__fail(MB_ERR_CORRUPT, "%s; it was written over and is wrong again", again.first);
    return MB_OK;
}

enum mb_err mb__vm_scrub(struct mb_vm *vm, bool fix, struct mb_tables_report *out)
{
    struct scrub scrub = {.vm = vm, .repair = fix};
    enum mb_err err;

    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    if (!err) {
        mb__poll(vm);
        err = compare_all(&scrub);
    }
    if (!err && scrub.sum.wrong)
        err = fix ? repair(&scrub) : mb__fail(MB_ERR_CORRUPT, "%s", scrub.first);
    mb__unlock(&vm->lock);
    MB_VEC_FREE(&scrub.frames);
    MB_VEC_FREE(&scrub.slots);
    MB_VEC_FREE(&scrub.want);
    if (out && (!err || err == MB_ERR_CORRUPT))
        *out = scrub.sum;
    return err;
}

enum mb_err mb__vm_check_tables(struct mb_vm *vm)
{
    return mb__vm_scrub(vm, false, NULL);
}
