/* SPDX-License-Identifier: MIT */
/*
 * peer.c - memory of one software GPU in the address space of another.
 *
 * Addresses are unified: each ordinal has its own part of them, so a peer sees an address where its
 * owner sees it. The peer's entries are written by the modelled driver on the host, in a part of
 * the peer's tree that is the driver's alone, in the real format: aperture «peer» with the owner's
 * number on NVIDIA; on AMD, where a peer is an address of device memory, the owner's number lies
 * above all physical addresses of the device. TLBs and the directory cache are the peer's own, so
 * what was walked before stays in them until the driver invalidates.
 *
 * ORACLE    The peer's shadow says what was opened to it. An access through a peer entry must reach
 * the expected frame of the device that owns the address, and a slab of that device must hold it.
 * LOCKING   One process-wide lock, share_lock, guards sim_dev.peer of all devices, and, of devices
 * that were opened to another one (sim_dev.shared), contents and held[]. It is taken with one
 * device's lock held and nothing is locked below it. Two devices' locks are never held together.
 * NOT MODELLED  The time that an access takes on the way to another device.
 */
#include "hw/sim/dev.h"

#include <string.h>

enum { ACCESSORS = 64 };

static pthread_mutex_t share_lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_dev *accessor[ACCESSORS]; /* devices that have or had peers; share_lock */

bool mb__sim_share(const struct sim_dev *dev, bool peer)
{
    if (!dev->shared && !peer)
        return false;
    pthread_mutex_lock(&share_lock);
    return true;
}

void mb__sim_unshare(bool taken)
{
    if (taken)
        pthread_mutex_unlock(&share_lock);
}

struct sim_memory *mb__sim_memory_of(struct sim_dev *dev, const struct sim_where *where)
{
    struct sim_dev *owner = !where->peer                 ? dev
                            : where->peer > SIM_ORDINALS ? NULL
                                                         : dev->peer[where->peer - 1];

    return owner ? &owner->mem : NULL;
}

unsigned mb__sim_peer_of(const struct sim_dev *dev, uint64_t va)
{
    uint64_t part = va >> SIM_ORDINAL_SHIFT;

    return part == (uint64_t)dev->ordinal + 1 || !part ? 0 : (unsigned)part;
}

/* First level at which the parts of two ordinals lie in different entries. */
static unsigned first_level(const struct sim_dev *dev)
{
    unsigned level = 0;

    while (dev->geo.level[level].shift > SIM_ORDINAL_SHIFT)
        level++;
    return level;
}

uint64_t mb__sim_root_of(const struct sim_dev *dev, uint64_t va, unsigned *level)
{
    if (!dev->peer_root || !mb__sim_peer_of(dev, va)) {
        *level = 0;
        return dev->tables.root;
    }
    *level = first_level(dev);
    return dev->peer_root;
}

/* ------------------------------------------------------------ the driver's part of the tree */

static uint64_t *slot_at(struct sim_dev *dev, uint64_t table, unsigned level, uint64_t va)
{
    const struct mb_fmt_level *at = &dev->geo.level[level];

    return mb__sim_table_at(dev, table + (uint64_t)mb_fmt_index(*at, va) * at->entry_bytes,
                            at->entry_bytes);
}

/* Leaf slot of va; tables are made on the way if `make`. NULL: there is none, or no memory. */
static uint64_t *leaf_slot(struct sim_dev *dev, uint64_t va, bool make)
{
    uint64_t table = dev->peer_root;

    for (unsigned l = first_level(dev); l < dev->geo.levels - 1; l++) {
        uint64_t *slot = slot_at(dev, table, l, va);
        struct mb_dir dir = {0};

        if (!slot)
            return NULL;
        if (!mb_fmt_decode_dir(dev->fmt, l, (struct mb_pte){slot[0], 0}, &dir) || !dir.valid) {
            memset(&dir, 0, sizeof(dir));
            dir.valid = 1;
            if (!make || mb__sim_table_alloc(dev, 4096, true, &dir.table_phys))
                return NULL;
            slot_at(dev, table, l, va)[0] = mb_fmt_encode_dir(dev->fmt, l, &dir).lo;
        }
        table = dir.table_phys;
    }
    return slot_at(dev, table, dev->geo.levels - 1, va);
}

static struct mb_pte peer_entry(const struct sim_dev *dev, unsigned owner, mb_pfn pfn,
                                bool writable)
{
    struct mb_leaf leaf = {
        .flags = mb_fmt_user_flags(dev->fmt, writable),
        .aperture = MB_AP_PEER,
        .kind = dev->model->kind,
        .peer = (uint8_t)owner,
        .phys = mb__phys_of_pfn(pfn),
    };

    if (!mb_fmt_is_gmmu(dev->fmt)) {
        leaf.aperture = MB_AP_VID;
        leaf.peer = 0;
        leaf.phys |= (uint64_t)(owner + 1) << SIM_PEER_SHIFT;
    }
    return mb_fmt_encode_leaf(dev->fmt, MB_FRAME_SHIFT, &leaf);
}

uint64_t mb__sim_peer_slot(const struct sim_dev *dev, const struct mb_leaf *leaf)
{
    uint64_t phys = leaf->phys, peer = 0;

    if (leaf->aperture == MB_AP_PEER) {
        peer = (uint64_t)leaf->peer + 1;
    } else if (!mb_fmt_is_gmmu(dev->fmt)) {
        peer = phys >> SIM_PEER_SHIFT;
        phys &= ((uint64_t)1 << SIM_PEER_SHIFT) - 1;
    }
    return phys >> MB_PFN_SHIFT << SIM_SLOT_PFN_SHIFT | peer << SIM_SLOT_PEER_SHIFT;
}

/* All or nothing: tables exist before an entry is written. */
static enum mb_err make_tables(struct sim_dev *dev, uint64_t va, uint32_t frames)
{
    uint64_t reach = MB_FRAME_BYTES << dev->geo.level[dev->geo.levels - 1].bits;
    uint64_t end = va + frames * MB_FRAME_BYTES;
    enum mb_err err = MB_OK;

    if (!dev->peer_root)
        err = mb__sim_table_alloc(dev, 4096, true, &dev->peer_root);
    for (uint64_t at = va & ~(reach - 1); !err && at < end; at += reach)
        if (!leaf_slot(dev, at, true))
            err = mb__fail(MB_ERR_NO_MEMORY, "peer_access: no memory for page tables");
    return err;
}

static void write_entries(struct sim_dev *dev, unsigned owner, uint64_t va, uint32_t frames,
                          const mb_pfn *pfns, enum mb_prot prot)
{
    bool open = prot != MB_PROT_NONE;

    for (uint32_t i = 0; i < frames; i++, va += MB_FRAME_BYTES) {
        struct mb_pte pte = open ? peer_entry(dev, owner, pfns[i], prot == MB_PROT_READ_WRITE)
                                 : mb_fmt_invalid_leaf(dev->fmt, MB_FRAME_SHIFT);
        uint64_t *slot = leaf_slot(dev, va, false);

        if (slot)
            mb_pop_store(slot, dev->geo.level[dev->geo.levels - 1].entry_bytes, 0, pte);
        if (dev->judge)
            mb__sim_oracle_intend(dev, va, 1, MB_FRAME_SHIFT, open ? &pfns[i] : NULL);
    }
}

/* ------------------------------------------------------------ opening and closing */

/* One device may be open twice, at the same addresses: a peer can see one of the two. */
static enum mb_err enlist(struct sim_dev *peer, struct sim_dev *owner)
{
    struct sim_dev **free_place = NULL;
    bool found = false, taken;

    pthread_mutex_lock(&share_lock);
    for (unsigned i = 0; i < ACCESSORS && !found; i++) {
        found = accessor[i] == peer;
        if (!accessor[i] && !free_place)
            free_place = &accessor[i];
    }
    if (!found && free_place)
        *free_place = peer;
    found |= free_place != NULL;
    taken = peer->peer[owner->ordinal] && peer->peer[owner->ordinal] != owner;
    if (found && !taken)
        peer->peer[owner->ordinal] = owner;
    pthread_mutex_unlock(&share_lock);
    if (taken)
        return mb__fail(MB_ERR_BUSY,
                        "peer_access: device %d was opened twice, and device %d has had access to "
                        "the other one, which has the same addresses; close that first",
                        owner->ordinal, peer->ordinal);
    if (!found)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "peer_access: more than %d devices have peers",
                        ACCESSORS);
    return MB_OK;
}

void mb__sim_peer_forget(struct sim_dev *dev)
{
    pthread_mutex_lock(&share_lock);
    for (unsigned i = 0; i < ACCESSORS; i++) {
        if (accessor[i] == dev)
            accessor[i] = NULL;
        for (unsigned k = 0; accessor[i] && k < SIM_ORDINALS; k++)
            if (accessor[i]->peer[k] == dev)
                accessor[i]->peer[k] = NULL;
    }
    pthread_mutex_unlock(&share_lock);
}

/* The owner's side: the frames are its own, and from now on not its alone. */
static enum mb_err check_owner(struct sim_dev *dev, mb_va va, uint32_t frames, const mb_pfn *pfns)
{
    enum mb_err err = mb__sim_alive(dev);

    if (!err &&
        (va.addr % MB_FRAME_BYTES || !mb__sim_range_find(dev, va.addr, frames * MB_FRAME_BYTES)))
        err = mb__fail(MB_ERR_INVALID,
                       "peer_access: 0x%llx with %u frames; allowed are whole frames in reserved "
                       "addresses of the owner",
                       (unsigned long long)va.addr, frames);
    for (uint32_t i = 0; !err && pfns && i < frames; i++) {
        uint32_t frame = mb__sim_memory_frame(&dev->mem, mb__phys_of_pfn(pfns[i]));

        if (frame == UINT32_MAX || dev->mem.held[frame] != 1)
            err = mb__fail(MB_ERR_INVALID, "peer_access: frame 0x%x is in no slab of device %d",
                           pfns[i].n, dev->ordinal);
    }
    if (!err)
        dev->shared = true;
    return err;
}

/* What the driver does on the peer's side. Closing waits for stores that are on the way. */
static enum mb_err change(struct sim_dev *peer, unsigned owner, mb_va va, uint32_t frames,
                          const mb_pfn *pfns, enum mb_prot prot)
{
    enum mb_err err = mb__sim_alive(peer);

    if (!err && (prot != MB_PROT_NONE || peer->peer_root))
        err = make_tables(peer, va.addr, frames);
    if (err)
        return err;
    /* By time, the device has come as far as the host. */
    if (!peer->explore)
        mb__sim_engine_run(peer, peer->host_ns);
    if (peer->peer_root)
        write_entries(peer, owner, va.addr, frames, pfns, prot);
    if (!(peer->mutants & MB_SIM_NO_PEER_INVALIDATE)) {
        mb__sim_invalidate(peer, va.addr, frames * MB_FRAME_BYTES);
        mb__sim_land_all(peer, NULL, UINT32_MAX);
    }
    mb__sim_driver_call(peer, frames * (prot == MB_PROT_NONE ? peer->model->unmap_entry_ns
                                                             : peer->model->map_entry_ns));
    return MB_OK;
}

enum mb_err mb__sim_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer_hw, mb_va va,
                                uint32_t frames, const mb_pfn *pfns, enum mb_prot prot)
{
    struct sim_dev *dev = sim_dev_of(hw), *peer = sim_dev_of(peer_hw);
    enum mb_err err;

    if (peer_hw->ops->peer_access != mb__sim_peer_access || peer->ordinal == dev->ordinal)
        return mb__fail(MB_ERR_INVALID, "peer_access: a peer is another device of this backend");
    if (peer->fmt != dev->fmt)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "peer_access: devices %d and %d are of different kinds (%s, %s)",
                        dev->ordinal, peer->ordinal, dev->model->name, peer->model->name);
    if (!frames)
        return MB_OK;
    if (prot != MB_PROT_NONE && !pfns)
        return mb__fail(MB_ERR_INVALID, "peer_access: no frames are named");
    sim_lock(dev);
    err = check_owner(dev, va, frames, prot == MB_PROT_NONE ? NULL : pfns);
    sim_unlock(dev);
    if (err)
        return err;
    err = enlist(peer, dev);
    if (err)
        return err;
    sim_lock(peer);
    err = change(peer, (unsigned)dev->ordinal, va, frames, pfns, prot);
    sim_unlock(peer);
    return err;
}
