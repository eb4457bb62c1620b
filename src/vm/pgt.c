/* SPDX-License-Identifier: MIT */
/*
 * pgt_create: directories and leaf tables of a region's pieces.
 *
 * A piece is what one last-level directory table covers (512 MiB on NVIDIA, 1 GiB on GFX9), so its
 * 2 MiB leaves lie one behind the other: the piece is one view. Smaller leaves lie in tables below;
 * these are allocated in one block per piece, which makes their view linear too.
 *
 * A tree of our own is extended from below: new tables are zeroed and reachable by nobody until the
 * entry of an existing table names them, which is written last, behind a barrier. An invalidate
 * ends it, since the old, invalid directory entry may be cached. All this happens on the internal
 * stream; a window's first batch waits there (mb__window.last).
 *
 * A driver's tree is adopted piece by piece.
 *
 * Locking   vm's lock.
 * Trade-off Tables are built when an address in them is first handed out and stay until close: a
 *           piece costs 4 KiB of device memory.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/log.h"
#include "vm/internal.h"

/* ------------------------------------------------------------ regions */

static unsigned log2_of(uint64_t x)
{
    unsigned n = 0;

    while (x >> (n + 1))
        n++;
    return n;
}

/* What one last-level table covers, in a tree of our own and in a driver's. */
static unsigned piece_shift(const struct mb_vm *vm)
{
    struct mb_fmt_level last = vm->geo.level[vm->geo.levels - 1];

    return last.shift + last.bits;
}

static enum mb_err region_records(struct mb__region *region, bool windows)
{
    enum mb_err err;

    region->piece = calloc(region->pieces, sizeof(*region->piece));
    if (!region->piece)
        return mb__no_host_memory("the record of page tables");
    if (!windows)
        return MB_OK;
    /* Untouched zero pages until used. */
    region->slot.pfn = calloc(region->slots, sizeof(*region->slot.pfn));
    region->slot.window = calloc(region->slots, sizeof(*region->slot.window));
    region->slot.flags = calloc(region->slots, sizeof(*region->slot.flags));
    region->group = calloc((size_t)region->groups + 1, sizeof(*region->group));
    if (!region->slot.pfn || !region->slot.window || !region->slot.flags || !region->group)
        return mb__no_host_memory("the record of slots");
    err = mb__ranges_init(&region->clean, region->groups);
    return err;
}

static void region_free(struct mb__region *region)
{
    free(region->piece);
    free(region->slot.pfn);
    free(region->slot.window);
    free(region->slot.flags);
    free(region->group);
    mb__ranges_fini(&region->clean);
    *region = (struct mb__region){0};
}

enum mb_err mb__region_open(struct mb_vm *vm, enum mb__region_index index, uint64_t bytes,
                            unsigned leaf_shift)
{
    struct mb__region region = {.leaf_shift = leaf_shift, .piece_shift = piece_shift(vm)};
    uint64_t piece = UINT64_C(1) << region.piece_shift;
    unsigned slots = vm->hw->caps.group_slots ? vm->hw->caps.group_slots : 1;
    enum mb_err err;

    region.bytes = (bytes + piece - 1) & ~(piece - 1);
    region.pieces = (uint32_t)(region.bytes >> region.piece_shift);
    region.slots = (uint32_t)(region.bytes >> leaf_shift);
    region.strict_groups = leaf_shift != MB_FRAME_SHIFT;
    region.group_shift = region.strict_groups ? MB_FRAME_SHIFT - leaf_shift : log2_of(slots);
    region.groups = region.slots >> region.group_shift;
    err = region_records(&region, index != MB__REGION_HOME);
    if (err)
        goto undo;
    err = vm->hw->ops->va_reserve(vm->hw, region.bytes, piece, &region.base);
    if (err)
        goto undo;
    vm->region[index] = region;
    return MB_OK;
undo:
    region_free(&region);
    return err;
}

void mb__region_close(struct mb_vm *vm, struct mb__region *region)
{
    if (region->bytes && vm->hw->ops->va_release(vm->hw, region->base, region->bytes))
        mb__log(MB_LOG_WARN, "vm", "%" PRIu64 " GiB of address space were not given back: %s",
                region->bytes >> 30, mb_error_detail());
    region_free(region);
}

/* ------------------------------------------------------------ tables */

static enum mb_err table_alloc(struct mb_vm *vm, uint64_t bytes, uint64_t *phys)
{
    enum mb_err err = vm->hw->ops->table_alloc(vm->hw, bytes, phys);

    if (!err)
        vm->table_bytes += bytes;
    return err;
}

static void table_free(struct mb_vm *vm, uint64_t phys, uint64_t bytes)
{
    vm->hw->ops->table_free(vm->hw, phys, bytes);
    vm->table_bytes -= bytes;
}

static unsigned last_level(const struct mb_vm *vm)
{
    return vm->geo.levels - 1;
}

static void piece_free(struct mb_vm *vm, struct mb__piece *piece)
{
    if (piece->table)
        table_free(vm, piece->table, vm->geo.level[last_level(vm)].table_bytes);
    if (piece->leaves)
        table_free(vm, piece->leaves, piece->leaves_bytes);
    *piece = (struct mb__piece){0};
}

static enum mb_err dir_cmd(struct mb_vm *vm, uint64_t table, unsigned level, mb_va va,
                           const struct mb_dir *dir)
{
    struct mb_hw_cmd cmd = {.kind = MB_HW_DIR};

    cmd.dir.table_phys = table;
    cmd.dir.index = mb_fmt_index(vm->geo.level[level], va.addr);
    cmd.dir.level = level;
    cmd.dir.value = mb_fmt_encode_dir(vm->hw->caps.format, level, dir);
    return mb__cmd(vm, cmd);
}

/* The directory table of `level` above `va`, made if need be; *made tells. Level 0 is the root. */
static enum mb_err dir_table(struct mb_vm *vm, unsigned level, mb_va va, uint64_t *phys, bool *made)
{
    uint64_t prefix = level ? va.addr >> vm->geo.level[level - 1].shift : 0;
    enum mb_err err;

    *made = false;
    if (!level) {
        *phys = vm->hw->ops->root_phys(vm->hw);
        return MB_OK;
    }
    for (size_t i = 0; i < vm->dirs.count; i++) {
        if (vm->dirs.data[i].level == level && vm->dirs.data[i].prefix == prefix) {
            *phys = vm->dirs.data[i].phys;
            return MB_OK;
        }
    }
    if (!MB_VEC_RESERVE(&vm->dirs, vm->dirs.count + 1))
        return mb__no_host_memory("the record of directories");
    err = table_alloc(vm, vm->geo.level[level].table_bytes, phys);
    if (err)
        return err;
    vm->dirs.data[vm->dirs.count++] = (struct mb__dir){level, prefix, *phys};
    *made = true;
    return MB_OK;
}

/* Tables of leaves below the last level, and the entries that name them. */
static enum mb_err small_leaves(struct mb_vm *vm, const struct mb__region *region,
                                struct mb__piece *piece, mb_va va)
{
    unsigned level = last_level(vm);
    struct mb_fmt_level leaf = region->leaf_shift == 16 ? vm->geo.leaf_64k : vm->geo.leaf_4k;
    uint64_t tables = UINT64_C(1) << vm->geo.level[level].bits;
    enum mb_err err = table_alloc(vm, tables * leaf.table_bytes, &piece->leaves);

    if (err)
        return err;
    piece->leaves_bytes = tables * leaf.table_bytes;
    for (uint64_t i = 0; !err && i < tables; i++) {
        uint64_t phys = piece->leaves + i * leaf.table_bytes;
        struct mb_dir dir = {.aperture = MB_AP_VID};

        if (region->leaf_shift == 16) {
            dir.valid_big = 1;
            dir.table_phys_big = phys;
        } else {
            dir.valid = 1;
            dir.table_phys = phys;
        }
        err = dir_cmd(vm, piece->table, level, mb__va_add(va, i << MB_FRAME_SHIFT), &dir);
    }
    return err ? err : mb__cmd_kind(vm, MB_HW_BARRIER);
}

/* Makes the tables of one piece and appends the commands that link them in, lowest first. */
static enum mb_err build_piece(struct mb_vm *vm, const struct mb__region *region,
                               struct mb__piece *piece, mb_va va)
{
    struct mb_hw_cmd drop = {.kind = MB_HW_INVALIDATE};
    unsigned last = last_level(vm);
    uint64_t phys[6] = {0};
    bool made[6] = {false};
    enum mb_err err = MB_OK;

    for (unsigned level = 0; !err && level < last; level++)
        err = dir_table(vm, level, va, &phys[level], &made[level]);
    if (!err)
        err = table_alloc(vm, vm->geo.level[last].table_bytes, &piece->table);
    if (err)
        return err;
    phys[last] = piece->table;
    made[last] = true;
    if (region->leaf_shift != MB_FRAME_SHIFT)
        err = small_leaves(vm, region, piece, va);
    for (unsigned level = last; !err && level > 0; level--) {
        struct mb_dir dir = {.valid = 1, .aperture = MB_AP_VID, .table_phys = phys[level]};

        if (!made[level])
            continue;
        err = dir_cmd(vm, phys[level - 1], level - 1, va, &dir);
        if (!err)
            err = mb__cmd_kind(vm, MB_HW_BARRIER);
    }
    drop.inval.va = va;
    drop.inval.bytes = UINT64_C(1) << region->piece_shift;
    return err ? err : mb__cmd(vm, drop);
}

static mb_va piece_va(const struct mb__region *region, uint32_t i)
{
    return mb__va_add(region->base, (uint64_t)i << region->piece_shift);
}

static void set_view(struct mb_vm *vm, const struct mb__region *region, uint32_t i)
{
    struct mb__piece *piece = &region->piece[i];

    piece->view = (struct mb_hw_view){
        .va = piece_va(region, i),
        .bytes = UINT64_C(1) << region->piece_shift,
        .leaf_shift = region->leaf_shift,
        .slot_bytes = mb_fmt_slot_bytes(vm->hw->caps.format, region->leaf_shift),
        .table = piece->leaves ? piece->leaves : piece->table,
        .clear_pfn = MB_NO_PFN,
    };
}

/* Builds what is missing of pieces [first, end) of our own tree, in one submission. */
static enum mb_err build(struct mb_vm *vm, struct mb__region *region, uint32_t first, uint32_t end)
{
    size_t old_dirs = vm->dirs.count;
    struct mb_hw_fence fence = {0};
    enum mb_err err = MB_OK;

    vm->batch.cmds.count = 0;
    for (uint32_t i = first; !err && i < end; i++) {
        if (!region->piece[i].view.bytes)
            err = build_piece(vm, region, &region->piece[i], piece_va(region, i));
    }
    if (!err && vm->batch.cmds.count)
        err = mb__vm_submit(vm, vm->stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (!err && vm->batch.cmds.count)
        vm->built = fence;
    for (uint32_t i = first; i < end; i++) {
        if (region->piece[i].view.bytes)
            continue;
        if (err)
            piece_free(vm, &region->piece[i]);
        else
            set_view(vm, region, i);
    }
    while (err && vm->dirs.count > old_dirs) {
        struct mb__dir *dir = &vm->dirs.data[--vm->dirs.count];

        table_free(vm, dir->phys, vm->geo.level[dir->level].table_bytes);
    }
    return err;
}

static enum mb_err adopt(struct mb_vm *vm, struct mb__region *region, uint32_t first, uint32_t end)
{
    uint64_t bytes = UINT64_C(1) << region->piece_shift;
    enum mb_err err = MB_OK;

    for (uint32_t i = first; !err && i < end; i++) {
        struct mb_hw_view view;

        if (region->piece[i].view.bytes)
            continue;
        err = vm->hw->ops->tree_adopt(vm->hw, piece_va(region, i), bytes, &view);
        if (!err)
            region->piece[i].view = view;
    }
    /* Pieces adopted before the failure stay: they are empty and serve the next call. */
    return err;
}

enum mb_err mb__pgt_create(struct mb_vm *vm, struct mb__region *region, mb_va va, uint64_t bytes)
{
    uint64_t offset = va.addr - region->base.addr;
    uint32_t first = (uint32_t)(offset >> region->piece_shift);
    uint32_t end = (uint32_t)((offset + bytes - 1) >> region->piece_shift) + 1;

    if (vm->hw->caps.tree_is_ours)
        return build(vm, region, first, end);
    return adopt(vm, region, first, end);
}

/* ------------------------------------------------------------ leaves */

uint64_t mb__pgt_template(const struct mb_vm *vm, unsigned leaf_shift, enum mb_prot prot)
{
    const struct mb_hw_caps *caps = &vm->hw->caps;
    uint32_t flags = mb_fmt_user_flags(caps->format, prot == MB_PROT_READ_WRITE);

    return mb_fmt_leaf_template(caps->format, leaf_shift, flags, MB_AP_VID, caps->kind);
}

enum mb_err mb__pgt_leaves(struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                           uint32_t count, const mb_pfn *pfns, enum mb_prot prot)
{
    unsigned shift = region->piece_shift - region->leaf_shift;
    struct mb_hw_cmd cmd = {.kind = MB_HW_LEAVES};
    enum mb_err err = MB_OK;

    cmd.leaves.tmpl = pfns ? mb__pgt_template(vm, region->leaf_shift, prot) : 0;
    /* Here, since every entry with a frame comes this way: windows, homes, repairs. */
    if (pfns && vm->registry)
        err = mb__registry_holds(vm, pfns, count);
    while (!err && count) {
        uint32_t first = slot & ((UINT32_C(1) << shift) - 1);
        uint32_t part = (UINT32_C(1) << shift) - first;

        part = part < count ? part : count;
        cmd.leaves.view = &region->piece[slot >> shift].view;
        cmd.leaves.first = first;
        cmd.leaves.count = part;
        cmd.leaves.pfns = pfns;
        err = mb__cmd(vm, cmd);
        pfns = pfns ? pfns + part : NULL;
        slot += part;
        count -= part;
    }
    return err;
}

/* ------------------------------------------------------------ close */

/* Takes our tree out of the root, so that the device forgets it before its memory goes. */
static void unlink_tree(struct mb_vm *vm)
{
    const struct mb_dir none = {0};
    struct mb_hw_fence fence;
    enum mb_err err = MB_OK;

    vm->batch.cmds.count = 0;
    for (size_t i = 0; !err && i < vm->dirs.count; i++) {
        struct mb__dir dir = vm->dirs.data[i];
        mb_va va = {dir.prefix << vm->geo.level[0].shift};

        if (dir.level == 1)
            err = dir_cmd(vm, vm->hw->ops->root_phys(vm->hw), 0, va, &none);
    }
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_INVALIDATE);
    if (!err)
        err = mb__vm_submit(vm, vm->stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (!err && fence.stream)
        err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
    if (err)
        mb__log(MB_LOG_WARN, "vm", "the page tables were not unlinked from the root: %s",
                mb_error_detail());
}

void mb__pgt_close(struct mb_vm *vm, bool alive)
{
    if (alive && vm->dirs.count)
        unlink_tree(vm);
    for (unsigned r = 0; r < MB__REGIONS; r++) {
        struct mb__region *region = &vm->region[r];

        for (uint32_t i = 0; region->piece && i < region->pieces; i++) {
            if (!vm->hw->caps.tree_is_ours && region->piece[i].view.bytes)
                vm->hw->ops->tree_disown(vm->hw, &region->piece[i].view);
            piece_free(vm, &region->piece[i]);
        }
    }
    while (vm->dirs.count) {
        struct mb__dir *dir = &vm->dirs.data[--vm->dirs.count];

        table_free(vm, dir->phys, vm->geo.level[dir->level].table_bytes);
    }
}
