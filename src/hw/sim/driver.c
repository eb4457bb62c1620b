/* SPDX-License-Identifier: MIT */
/*
 * driver.c - the tree of a modelled vendor driver (driver_home), as in a CUDA context.
 *
 * The driver owns root and directories. Every reservation gets last-level tables that lie one after
 * another, so each part of it has a linear view. Slabs are mapped at home by the host; windows are
 * primed: each slot holds the donor, one frame whose contents mean nothing, so that every slot was
 * valid before it is taken over. Reaching the donor is a wrong access like any other: nothing is
 * expected there.
 */
#include "hw/sim/dev.h"

#include <string.h>

enum { HELD_BY_DRIVER = 2 };

struct mb_pte mb__sim_driver_entry(const struct sim_dev *dev, mb_pfn pfn)
{
    uint64_t tmpl = mb_fmt_leaf_template(dev->fmt, MB_FRAME_SHIFT, mb_fmt_user_flags(dev->fmt, 1),
                                         MB_AP_VID, dev->model->kind);

    return mb_fmt_leaf_at(dev->fmt, MB_FRAME_SHIFT, tmpl, pfn.n);
}

static unsigned last_level(const struct sim_dev *dev)
{
    return dev->geo.levels - 1;
}

/* Bytes of addresses that one last-level table translates. */
static uint64_t table_reach(const struct sim_dev *dev)
{
    const struct mb_fmt_level *last = &dev->geo.level[last_level(dev)];

    return (uint64_t)1 << (last->shift + last->bits);
}

static unsigned slot_bytes(const struct sim_dev *dev)
{
    return dev->geo.level[last_level(dev)].entry_bytes;
}

/* Directory entry of `level` for va; tables above are made. NULL: no memory. */
static uint64_t *directory_slot(struct sim_dev *dev, uint64_t va, unsigned level)
{
    uint64_t table = dev->tables.root;

    for (unsigned l = 0;; l++) {
        const struct mb_fmt_level *at = &dev->geo.level[l];
        uint64_t *slot = mb__sim_table_at(
            dev, table + (uint64_t)mb_fmt_index(*at, va) * at->entry_bytes, at->entry_bytes);
        struct mb_pte pte;
        struct mb_dir dir = {0};

        if (l == level || !slot)
            return slot;
        pte = (struct mb_pte){slot[0], 0};
        if (!mb_fmt_decode_dir(dev->fmt, l, pte, &dir) || !dir.valid) {
            memset(&dir, 0, sizeof(dir));
            dir.valid = 1;
            if (mb__sim_table_alloc(dev, 4096, true, &dir.table_phys))
                return NULL;
            /* The allocation may have moved nothing, but look the slot up again: no assumption. */
            slot = mb__sim_table_at(dev, table + (uint64_t)mb_fmt_index(*at, va) * at->entry_bytes,
                                    at->entry_bytes);
            slot[0] = mb_fmt_encode_dir(dev->fmt, l, &dir).lo;
        }
        table = dir.table_phys;
    }
}

/* Links (or with phys 0 unlinks) the last-level tables of a range. */
static enum mb_err link_tables(struct sim_dev *dev, const struct sim_range *range, uint64_t phys)
{
    uint64_t reach = table_reach(dev);

    for (uint64_t off = 0; off < range->bytes; off += reach) {
        uint64_t *slot = directory_slot(dev, range->va + off, last_level(dev) - 1);
        struct mb_dir dir = {.valid = phys != 0,
                             .table_phys = phys ? phys + off / reach * 4096 : 0};

        if (!slot)
            return MB_ERR_NO_MEMORY;
        slot[0] = mb_fmt_encode_dir(dev->fmt, last_level(dev) - 1, &dir).lo;
    }
    mb__sim_invalidate(dev, range->va, range->bytes);
    return MB_OK;
}

static uint64_t tables_bytes(const struct sim_dev *dev, const struct sim_range *range)
{
    uint64_t reach = table_reach(dev);

    return (range->bytes + reach - 1) / reach * 4096;
}

enum mb_err mb__sim_driver_tables(struct sim_dev *dev, struct sim_range *range)
{
    uint64_t phys;
    enum mb_err err;

    if (range->leaf_tables)
        return MB_OK;
    err = mb__sim_table_alloc(dev, tables_bytes(dev, range), true, &phys);
    if (err)
        return err;
    err = link_tables(dev, range, phys);
    if (err) {
        mb__sim_table_free(dev, phys, tables_bytes(dev, range));
        return err;
    }
    range->leaf_tables = phys;
    return MB_OK;
}

/* Directories above stay, as they do in a driver. */
void mb__sim_driver_tables_free(struct sim_dev *dev, struct sim_range *range)
{
    if (!range->leaf_tables)
        return;
    (void)link_tables(dev, range, 0);
    mb__sim_table_free(dev, range->leaf_tables, tables_bytes(dev, range));
    range->leaf_tables = 0;
}

/* Host writes `count` slots from va on: the slab's frames in order, one frame everywhere, or
 * cleared. */
static void write_slots(struct sim_dev *dev, const struct sim_range *range, uint64_t va,
                        uint32_t count, const struct mb_hw_slab *slab, uint32_t same)
{
    uint64_t index = (va - range->va) >> MB_FRAME_SHIFT;
    uint64_t *slots = mb__sim_table_at(dev, range->leaf_tables, tables_bytes(dev, range));

    for (uint32_t i = 0; i < count; i++) {
        struct mb_pte pte = mb_fmt_invalid_leaf(dev->fmt, MB_FRAME_SHIFT);

        if (slab)
            pte = mb__sim_driver_entry(
                dev, slab->pfns ? slab->pfns[i] : (mb_pfn){slab->first.n + i * MB_FRAME_PFNS});
        else if (same != SIM_NOTHING)
            pte = mb__sim_driver_entry(dev, (mb_pfn){same});
        mb_pop_store(slots, slot_bytes(dev), index + i, pte);
    }
    mb__sim_invalidate(dev, va, (uint64_t)count << MB_FRAME_SHIFT);
}

static void intend_slab(struct sim_dev *dev, uint64_t va, const struct mb_hw_slab *slab)
{
    for (uint32_t i = 0; i < slab->frames; i++) {
        mb_pfn pfn = slab->pfns ? slab->pfns[i] : (mb_pfn){slab->first.n + i * MB_FRAME_PFNS};

        mb__sim_oracle_intend(dev, va + i * MB_FRAME_BYTES, 1, MB_FRAME_SHIFT, &pfn);
    }
}

enum mb_err mb__sim_driver_map(struct sim_dev *dev, uint64_t va, const struct mb_hw_slab *slab)
{
    struct sim_range *range = mb__sim_range_find(dev, va, (uint64_t)slab->frames << MB_FRAME_SHIFT);
    enum mb_err err = mb__sim_driver_tables(dev, range);

    if (err)
        return err;
    write_slots(dev, range, va, slab->frames, slab, SIM_NOTHING);
    intend_slab(dev, va, slab);
    return MB_OK;
}

void mb__sim_driver_unmap(struct sim_dev *dev, uint64_t va, uint32_t frames)
{
    struct sim_range *range = mb__sim_range_find(dev, va, (uint64_t)frames << MB_FRAME_SHIFT);

    mb__sim_oracle_intend(dev, va, frames, MB_FRAME_SHIFT, NULL);
    if (!range || !range->leaf_tables)
        return;
    write_slots(dev, range, va, frames, NULL, SIM_NOTHING);
    mb__sim_land_all(dev, NULL, UINT32_MAX);
}

enum mb_err mb__sim_donor(struct sim_dev *dev)
{
    struct sim_memory *mem = &dev->mem;
    bool taken;

    if (dev->donor != SIM_NOTHING)
        return MB_OK;
    for (uint32_t i = mem->frames; i-- > 0;) {
        if (mem->held[i])
            continue;
        taken = mb__sim_share(dev, false);
        mem->held[i] = HELD_BY_DRIVER;
        mb__sim_unshare(taken);
        mem->free_frames--;
        dev->donor = mb__pfn_of_phys(mem->base + ((uint64_t)i << MB_FRAME_SHIFT)).n;
        dev->counters.overhead_bytes += MB_FRAME_BYTES;
        return MB_OK;
    }
    return mb__fail(MB_ERR_NO_MEMORY, "tree_adopt: no frame left for the donor");
}

static enum mb_err adopt(struct sim_dev *dev, mb_va va, uint64_t bytes, struct mb_hw_view *out)
{
    uint64_t reach = table_reach(dev);
    struct sim_range *range = mb__sim_range_find(dev, va.addr, bytes);
    uint32_t slots = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    enum mb_err err;

    if (!dev->driver_home)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "tree_adopt: the tree of this device is the caller's; use table_alloc");
    if (!bytes || va.addr % reach || bytes % MB_FRAME_BYTES || !range)
        return mb__fail(MB_ERR_INVALID,
                        "tree_adopt: 0x%llx + %llu; allowed are reserved ranges that start at a "
                        "multiple of %llu",
                        (unsigned long long)va.addr, (unsigned long long)bytes,
                        (unsigned long long)reach);
    err = mb__sim_donor(dev);
    if (!err)
        err = mb__sim_driver_tables(dev, range);
    if (err)
        return err;
    write_slots(dev, range, va.addr, slots, NULL, dev->donor);
    /* One driver mapping per slot. */
    mb__sim_driver_call(dev, slots * dev->model->map_entry_ns);
    *out = (struct mb_hw_view){
        .va = va,
        .bytes = bytes,
        .leaf_shift = MB_FRAME_SHIFT,
        .slot_bytes = slot_bytes(dev),
        .table = range->leaf_tables + ((va.addr - range->va) >> MB_FRAME_SHIFT) * slot_bytes(dev),
        .clear_pfn = {dev->donor},
    };
    return MB_OK;
}

enum mb_err mb__sim_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                               struct mb_hw_view *out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = adopt(dev, va, bytes, out);
    sim_unlock(dev);
    return err;
}

void mb__sim_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct sim_range *range;

    sim_lock(dev);
    range = mb__sim_range_find(dev, view->va.addr, view->bytes);
    if (range && range->leaf_tables)
        write_slots(dev, range, view->va.addr, (uint32_t)(view->bytes >> MB_FRAME_SHIFT), NULL,
                    SIM_NOTHING);
    memset(view, 0, sizeof(*view));
    sim_unlock(dev);
}
