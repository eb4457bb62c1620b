/* SPDX-License-Identifier: MIT */
/*
 * walker.c - from an address to a frame: first-level TLB, second-level TLB, directory cache,
 * tables.
 *
 * A walk goes down from the deepest directory entry that is cached, reads the leaf's aligned group
 * of slots as they are, and leaves it in both TLBs of the asking client. On models that cache
 * invalid entries, invalid slots and invalid directory entries stay as well, and answer later
 * accesses with the same fault until they are invalidated.
 *
 * Leaves below 2 MiB: the slot of the 2 MiB group says BELOW; the group of the small leaf has its
 * own entry, tagged with its size. The big (64 KiB) table is asked first; an empty slot there leads
 * to the 4 KiB table, a stop does not. Groups of small leaves are taken as 16 slots too; that was
 * measured for 2 MiB leaves only.
 */
#include "hw/sim/dev.h"

#include <string.h>

/* Where a client's translations are kept. */
struct client {
    struct sim_tlb *first, *second; /* second may be NULL */
    struct sim_pdc *pdc;            /* NULL: cache nothing, read memory */
};

static struct sim_where fault_at(enum sim_fault fault, unsigned shift, uint64_t va, bool cached)
{
    struct sim_where where = {0};

    where.fault = fault;
    where.cached = cached;
    where.span = ((uint64_t)1 << shift) - (va & (((uint64_t)1 << shift) - 1));
    return where;
}

static struct sim_where where_of(uint64_t slot, unsigned shift, uint64_t va, bool write,
                                 bool cached)
{
    uint64_t in_leaf = va & (((uint64_t)1 << shift) - 1);
    struct sim_where where = fault_at(SIM_FAULT_NONE, shift, va, cached);

    if (slot & SIM_SLOT_SPARSE)
        where.sparse = true;
    else if (!(slot & SIM_SLOT_VALID))
        where.fault = SIM_FAULT_PTE;
    else if (write && slot & SIM_SLOT_READ_ONLY)
        where.fault = SIM_FAULT_READ_ONLY;
    else if (!write && slot & SIM_SLOT_NO_READ)
        where.fault = SIM_FAULT_NO_READ;
    where.phys = ((uint64_t)(uint32_t)(slot >> SIM_SLOT_PFN_SHIFT) << MB_PFN_SHIFT) + in_leaf;
    where.peer = (uint8_t)(slot >> SIM_SLOT_PEER_SHIFT);
    return where;
}

static uint64_t slot_of_leaf(const struct sim_dev *dev, unsigned shift, struct mb_pte pte)
{
    struct mb_leaf leaf;
    uint64_t slot = 0;

    /* An entry with bits that the format does not know translates nothing here. */
    if (!mb_fmt_decode_leaf(dev->fmt, shift, pte, &leaf))
        return 0;
    if (leaf.flags & MB_LEAF_SPARSE)
        return SIM_SLOT_SPARSE;
    if (leaf.flags & MB_LEAF_STOP)
        return SIM_SLOT_STOP;
    if (!(leaf.flags & MB_LEAF_VALID) ||
        (leaf.aperture != MB_AP_VID && leaf.aperture != MB_AP_PEER))
        return 0;
    slot |= leaf.flags & MB_LEAF_READ_ONLY ? SIM_SLOT_READ_ONLY : 0;
    slot |= leaf.flags & MB_LEAF_NO_READ ? SIM_SLOT_NO_READ : 0;
    return slot | mb__sim_peer_slot(dev, &leaf) | SIM_SLOT_VALID;
}

/* A slot of the last directory level: leaf of 2 MiB, pointer below, or nothing. */
static uint64_t slot_of_last(const struct sim_dev *dev, struct mb_pte pte)
{
    unsigned last = dev->geo.levels - 1;
    struct mb_dir dir;

    if (mb_fmt_is_leaf(dev->fmt, last, pte))
        return slot_of_leaf(dev, MB_FRAME_SHIFT, pte);
    if (mb_fmt_decode_dir(dev->fmt, last, pte, &dir) && (dir.valid || dir.valid_big))
        return SIM_SLOT_BELOW;
    return slot_of_leaf(dev, MB_FRAME_SHIFT, pte) & SIM_SLOT_SPARSE;
}

static bool keeps(const struct sim_dev *dev, uint64_t slot, bool own)
{
    bool valid = slot & (SIM_SLOT_VALID | SIM_SLOT_BELOW | SIM_SLOT_SPARSE);

    if (!valid && !dev->model->caches_invalid)
        return false;
    if (own)
        return true;
    return !(dev->mutants & (valid ? MB_SIM_NO_VALID_GROUP : MB_SIM_NO_INVALID_GROUP));
}

/* Reads the group of `va` out of the table at `table`; false: there is no table memory. */
static bool read_group(struct sim_dev *dev, uint64_t table, const struct mb_fmt_level *level,
                       uint64_t va, struct sim_group *group)
{
    unsigned slots = dev->model->group_slots, bytes = level->entry_bytes;
    unsigned own = mb_fmt_index(*level, va), first = own & ~(slots - 1);
    const uint64_t *word =
        mb__sim_table_at(dev, table + (uint64_t)first * bytes, (uint64_t)slots * bytes);

    if (!word)
        return false;
    group->tag = va >> level->shift >> __builtin_ctz(slots);
    group->shift = (uint8_t)level->shift;
    group->present = 0;
    for (unsigned i = 0; i < slots; i++, word += bytes / 8) {
        struct mb_pte pte = {word[0], bytes == 16 ? word[1] : 0};

        group->slot[i] = level->shift == MB_FRAME_SHIFT ? slot_of_last(dev, pte)
                                                        : slot_of_leaf(dev, level->shift, pte);
        if (keeps(dev, group->slot[i], first + i == own))
            group->present |= (uint16_t)(1u << i);
    }
    return true;
}

static void keep_group(struct sim_dev *dev, const struct client *client, struct sim_group *group)
{
    if (!client->pdc || !group->present)
        return;
    dev->sim.group_fills++;
    mb__sim_tlb_insert(client->first, dev, group);
    if (client->second)
        mb__sim_tlb_insert(client->second, dev, group);
}

static uint64_t own_slot(const struct sim_dev *dev, const struct sim_group *group, uint64_t va)
{
    return group->slot[(va >> group->shift) & (dev->model->group_slots - 1)];
}

/* Reads a directory entry of `level` in `table`, through the directory cache. False: fault. */
static bool directory(struct sim_dev *dev, const struct client *client, uint64_t table,
                      unsigned level, uint64_t va, struct mb_dir *dir)
{
    const struct mb_fmt_level *l = &dev->geo.level[level];
    struct mb_pte pte;

    memset(dir, 0, sizeof(*dir));
    if (mb__sim_table_read(dev, table + (uint64_t)mb_fmt_index(*l, va) * l->entry_bytes,
                           l->entry_bytes, &pte) &&
        !mb_fmt_decode_dir(dev->fmt, level, pte, dir))
        memset(dir, 0, sizeof(*dir)); /* a leaf or garbage where a directory must be */
    if (dir->aperture != MB_AP_VID)
        memset(dir, 0, sizeof(*dir));
    if (client->pdc && (dir->valid || dir->valid_big || dev->model->caches_invalid))
        mb__sim_pdc_insert(client->pdc, dev, va, level, dir);
    return dir->valid || dir->valid_big;
}

/* Table of the last level for `va`; false: *fault_shift says which entry is missing. */
static bool last_table(struct sim_dev *dev, const struct client *client, uint64_t va,
                       uint64_t *table, unsigned *fault_shift, bool *cached)
{
    unsigned last = dev->geo.levels - 1, level, top;
    struct mb_dir dir;

    *table = mb__sim_root_of(dev, va, &level);
    *cached = false;
    top = level;
    for (unsigned l = last; client->pdc && l-- > top;) {
        const struct sim_pde *pde = mb__sim_pdc_find(client->pdc, dev, va, l);

        if (pde && !pde->valid) {
            *cached = true;
            *fault_shift = dev->geo.level[l].shift;
            return false;
        }
        if (pde) {
            *table = pde->table;
            level = l + 1;
            break;
        }
    }
    for (; level < last; level++) {
        *fault_shift = dev->geo.level[level].shift;
        if (!directory(dev, client, *table, level, va, &dir))
            return false;
        *table = dir.table_phys;
    }
    return true;
}

/* The small tables below a 2 MiB slot, from the directory cache or memory. */
static bool small_tables(struct sim_dev *dev, const struct client *client, uint64_t va,
                         uint64_t last, struct mb_dir *dir)
{
    unsigned level = dev->geo.levels - 1;
    const struct sim_pde *pde = client->pdc ? mb__sim_pdc_find(client->pdc, dev, va, level) : NULL;

    if (!pde)
        return directory(dev, client, last, level, va, dir);
    dir->valid = pde->valid;
    dir->valid_big = pde->valid_big;
    dir->table_phys = pde->table;
    dir->table_phys_big = pde->table_big;
    return pde->valid || pde->valid_big;
}

static struct sim_where walk_small(struct sim_dev *dev, const struct client *client, uint64_t va,
                                   uint64_t last, bool write)
{
    struct sim_group group;
    struct mb_dir dir;
    uint64_t slot;

    if (!small_tables(dev, client, va, last, &dir))
        return fault_at(SIM_FAULT_PDE, MB_FRAME_SHIFT, va, false);
    if (dir.valid_big && read_group(dev, dir.table_phys_big, &dev->geo.leaf_64k, va, &group)) {
        slot = own_slot(dev, &group, va);
        if (slot || !dir.valid) {
            keep_group(dev, client, &group);
            return where_of(slot, 16, va, write, false);
        }
    }
    if (!dir.valid || !read_group(dev, dir.table_phys, &dev->geo.leaf_4k, va, &group))
        return fault_at(SIM_FAULT_PDE, 16, va, false);
    keep_group(dev, client, &group);
    return where_of(own_slot(dev, &group, va), 12, va, write, false);
}

static struct sim_where walk(struct sim_dev *dev, const struct client *client, uint64_t va,
                             bool write)
{
    struct sim_group group;
    unsigned shift = MB_FRAME_SHIFT;
    uint64_t table, slot;
    bool cached;

    if (va >> dev->geo.va_bits)
        return fault_at(SIM_FAULT_PDE, MB_FRAME_SHIFT, va, false);
    if (!last_table(dev, client, va, &table, &shift, &cached) ||
        !read_group(dev, table, &dev->geo.level[dev->geo.levels - 1], va, &group))
        return fault_at(SIM_FAULT_PDE, shift, va, cached);
    keep_group(dev, client, &group);
    slot = own_slot(dev, &group, va);
    if (slot & SIM_SLOT_BELOW)
        return walk_small(dev, client, va, table, write);
    return where_of(slot, MB_FRAME_SHIFT, va, write, false);
}

/* In one TLB: small leaves first, as they shadow a BELOW slot. */
static bool look_up(struct sim_dev *dev, struct sim_tlb *tlb, uint64_t va, bool write,
                    struct sim_where *where, struct sim_group **group)
{
    static const unsigned small[2] = {12, 16};
    uint64_t slot;

    for (unsigned i = 0; tlb->small && i < 2; i++) {
        *group = mb__sim_tlb_find(tlb, dev, va, small[i], &slot);
        /* An empty 64 KiB slot says nothing by itself: the 4 KiB table answers. */
        if (*group && (slot || small[i] == 12)) {
            *where = where_of(slot, small[i], va, write, true);
            return true;
        }
    }
    *group = mb__sim_tlb_find(tlb, dev, va, MB_FRAME_SHIFT, &slot);
    if (!*group || slot & SIM_SLOT_BELOW)
        return false;
    *where = where_of(slot, MB_FRAME_SHIFT, va, write, true);
    return true;
}

struct sim_where mb__sim_translate(struct sim_dev *dev, enum sim_client who, unsigned utlb,
                                   uint64_t va, bool write)
{
    struct client client = {&dev->ce, NULL, &dev->ce_pdc};
    struct sim_where where;
    struct sim_group *group;

    if (who == SIM_CLIENT_SM)
        client = (struct client){&dev->utlb[utlb], &dev->l2, &dev->pdc};
    if (look_up(dev, client.first, va, write, &where, &group)) {
        dev->sim.utlb_hits++;
    } else if (client.second && look_up(dev, client.second, va, write, &where, &group)) {
        dev->sim.l2_hits++;
        mb__sim_tlb_insert(client.first, dev, group);
    } else {
        dev->sim.walks++;
        where = walk(dev, &client, va, write);
    }
    if (where.fault && where.cached)
        dev->sim.invalid_hits++;
    return where;
}

struct sim_where mb__sim_walk_memory(struct sim_dev *dev, uint64_t va, bool write)
{
    struct client client = {NULL, NULL, NULL};

    return walk(dev, &client, va, write);
}
