/* SPDX-License-Identifier: MIT */
/*
 * Access of other devices to a device's memory.
 *
 * Addresses are unified: a peer sees a page where its owner sees it. The backend's driver writes
 * the peer's entries on the host and invalidates the peer's TLBs; here is only the record of what
 * is open, and the rule that keeps it true: **a page that is open to a peer keeps its frame**. A
 * block is pinned, as an alias pins it, so its free takes effect when the last peer has lost
 * access; a mapped page can be neither unmapped nor put to sleep (MB_ERR_BUSY). So a frame is free
 * only after the mappings of all devices are gone and invalidated.
 *
 * A page may be named by several records of one peer, as two blocks can share a frame: what the
 * peer's tables hold is the most that any of them grants. A change is made on a copy of the
 * records; pages for which the answer differs are told to the backend, and an error puts those back
 * that were told.
 *
 * Losing access is waited for: the host waits until the peer has done all that was enqueued on it
 * before. Nothing here is on a hot path.
 *
 * Locking: the owner's lock, and `lock` below around the records themselves. The backend is called
 * with the owner's lock only.
 */
#include "runtime/access.h"

#include <inttypes.h>

#include "base/err.h"
#include "base/log.h"
#include "runtime/vmm.h"

#define FRAME MB_FRAME_BYTES

struct grant {
    struct mb_device *peer;
    uint64_t va; /* of the first page */
    uint32_t pages;
    enum mb_prot prot;
    struct mb__block *block; /* pinned by this record; NULL: pages of mb_mem_reserve() */
};

typedef MB_VEC(struct grant) grants;

/* What one device has given. Owned by mb_device.given; made at the first grant. */
struct mb__given {
    struct mb_device *owner; /* constant */
    struct mb__given *next;  /* of `givers`; lock */
    grants list;             /* changed under the owner's lock and `lock`, read under either */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb__given *givers; /* lock */

/* A piece of one device's addresses. */
struct area {
    struct mb_device *owner;
    uint64_t va;
    uint32_t pages;
    struct mb__block *block;
};

static bool touches(const struct grant *grant, uint64_t va, uint64_t pages)
{
    return va < grant->va + grant->pages * FRAME && grant->va < va + pages * FRAME;
}

/* The most that the records grant `peer` on one page of their owner. */
static enum mb_prot granted(const grants *list, const struct mb_device *peer, uint64_t va)
{
    enum mb_prot most = MB_PROT_NONE;

    for (size_t i = 0; i < list->count; i++) {
        const struct grant *grant = &list->data[i];

        if (grant->peer == peer && grant->prot > most && touches(grant, va, 1))
            most = grant->prot;
    }
    return most;
}

/* ------------------------------------------------------------------ telling the backend */

static enum mb_err tell_backend(struct mb_device *owner, struct mb_device *peer, uint64_t va,
                                uint32_t count, enum mb_prot prot)
{
    mb_pfn *pfns;
    enum mb_err err = MB_OK;

    if (prot == MB_PROT_NONE) /* needs no memory: it is also how others are undone */
        return owner->hw->ops->peer_access(owner->hw, peer->hw, mb__va(va), count, NULL, prot);
    pfns = malloc(count * sizeof(*pfns));
    if (!pfns)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u frames", count);
    mb__vm_lookup_run(owner->vm, mb__va(va), count, pfns);
    for (uint32_t i = 0; !err && i < count; i++)
        if (mb__pfn_eq(pfns[i], MB_NO_PFN))
            err = mb__fail(MB_ERR_NOT_MAPPED, "page 0x%" PRIx64 " is not mapped", va + i * FRAME);
    if (!err)
        err = owner->hw->ops->peer_access(owner->hw, peer->hw, mb__va(va), count, pfns, prot);
    free(pfns);
    return err;
}

/* `count` pages of the owner from va on are `prot` for the peer from now on. */
static enum mb_err tell(struct mb_device *owner, struct mb_device *peer, uint64_t va,
                        uint32_t count, enum mb_prot prot)
{
    enum mb_err err = tell_backend(owner, peer, va, count, prot);

    if (!err)
        mb__vm_trail_peer(owner->vm, mb__va(va), count, peer->config.hw.ordinal, prot);
    return err;
}

/* Tells what differs between two sets of records on an area, for one peer; of *done pages it
 * may have been told. */
static enum mb_err tell_changes(const grants *from, const grants *to, const struct area *area,
                                struct mb_device *peer, uint32_t limit, uint32_t *done)
{
    enum mb_err err = MB_OK;
    uint32_t i = 0, run;
    bool untouched;

    for (; !err && i < limit; i += run) {
        uint64_t va = area->va + i * FRAME;
        enum mb_prot prot = granted(to, peer, va);
        bool differs = prot != granted(from, peer, va);

        for (run = 1; i + run < limit; run++) {
            uint64_t next = va + run * FRAME;
            enum mb_prot then = granted(to, peer, next);

            if (then != prot || (then != granted(from, peer, next)) != differs)
                break;
        }
        if (differs)
            err = tell(area->owner, peer, va, run, prot);
        /* Of a run that the backend began and failed, a part may be told. */
        untouched = err == MB_ERR_NOT_SUPPORTED || err == MB_ERR_NOT_MAPPED;
        *done = untouched ? i : i + run;
    }
    return err;
}

/* ------------------------------------------------------------------ working out the records */

/* Takes the area out of the peer's records of pages; what is left of them stays. */
static bool cut(grants *list, const struct area *area, const struct mb_device *peer)
{
    uint64_t end = area->va + area->pages * FRAME;

    for (size_t i = 0; i < list->count;) {
        struct grant grant = list->data[i];
        struct grant left = grant, right = grant;

        if (grant.peer != peer || grant.block != area->block ||
            !touches(&grant, area->va, area->pages)) {
            i++;
            continue;
        }
        list->data[i] = list->data[--list->count];
        left.pages = grant.va < area->va ? (uint32_t)((area->va - grant.va) / FRAME) : 0;
        right.va = end;
        right.pages = grant.va + grant.pages * FRAME > end
                          ? (uint32_t)((grant.va + grant.pages * FRAME - end) / FRAME)
                          : 0;
        /* Neither touches the area any more, so the loop passes over them. */
        if ((left.pages && !MB_VEC_PUSH(list, left)) || (right.pages && !MB_VEC_PUSH(list, right)))
            return false;
    }
    return true;
}

static bool regrant(grants *list, const struct area *area, const struct mb_access *access)
{
    struct grant grant = {access->dev, area->va, area->pages, access->prot, area->block};

    return cut(list, area, access->dev) &&
           (access->prot == MB_PROT_NONE || MB_VEC_PUSH(list, grant));
}

/* The owner's lock is held. */
static bool copy_of(const struct mb_device *owner, grants *list)
{
    const grants *given = &owner->given->list;
    bool room = MB_VEC_RESERVE(list, given->count);

    for (size_t i = 0; room && i < given->count; i++)
        (void)MB_VEC_PUSH(list, given->data[i]);
    return room;
}

static void repin(struct mb_device *owner, const grants *list, bool pin)
{
    for (size_t i = 0; i < list->count; i++) {
        struct mb__block *block = list->data[i].block;

        if (block && pin)
            __atomic_store_n(&block->pins, block->pins + 1, __ATOMIC_RELAXED);
        else if (block)
            mb__block_unpin(owner, block, 1);
    }
}

/* The owner's records become those of `list`, which gets the old ones. Cannot fail. */
static void install(struct mb_device *owner, grants *list)
{
    grants old = owner->given->list;

    pthread_mutex_lock(&lock);
    owner->given->list = *list;
    pthread_mutex_unlock(&lock);
    repin(owner, list, true);
    repin(owner, &old, false);
    *list = old;
}

static bool make_given(struct mb_device *owner)
{
    struct mb__given *given = owner->given;

    if (given)
        return true;
    given = calloc(1, sizeof(*given));
    if (!given)
        return false;
    given->owner = owner;
    owner->given = given;
    pthread_mutex_lock(&lock);
    given->next = givers;
    givers = given;
    pthread_mutex_unlock(&lock);
    return true;
}

static void drop_given(struct mb_device *owner)
{
    struct mb__given **at = &givers;

    pthread_mutex_lock(&lock);
    while (*at && *at != owner->given)
        at = &(*at)->next;
    if (*at)
        *at = owner->given->next;
    pthread_mutex_unlock(&lock);
    MB_VEC_FREE(&owner->given->list);
    free(owner->given);
    owner->given = NULL;
}

/* ------------------------------------------------------------------ setting */

static enum mb_err no_memory(void)
{
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the record of who has access");
}

enum mb_err mb__access_possible(struct mb_device *dev, struct mb_device *peer)
{
    if (dev == peer)
        return MB_OK;
    if (dev->backend != peer->backend)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "device %d of %s and device %d of %s share no addresses",
                        dev->config.hw.ordinal, dev->backend->name, peer->config.hw.ordinal,
                        peer->backend->name);
    if (!dev->hw->ops->peer_access)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "the backend %s has no peers", dev->backend->name);
    return dev->hw->ops->peer_access(dev->hw, peer->hw, MB_NO_VA, 0, NULL, MB_PROT_NONE);
}

static enum mb_err check_list(struct mb_device *dev, const struct mb_access *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err;

        if (list[i].prot != MB_PROT_NONE && list[i].prot != MB_PROT_READ &&
            list[i].prot != MB_PROT_READ_WRITE)
            return mb__fail(MB_ERR_INVALID, "entry %u: %d is no protection; use MB_PROT_*", i,
                            (int)list[i].prot);
        for (unsigned k = 0; k < i; k++)
            if (list[k].dev == list[i].dev)
                return mb__fail(MB_ERR_INVALID, "entries %u and %u name the same device", k, i);
        err = mb__access_possible(dev, list[i].dev);
        if (err)
            return mb__fail_in(err, "entry %u: no access for device %d to device %d", i,
                               list[i].dev->config.hw.ordinal, dev->config.hw.ordinal);
    }
    return MB_OK;
}

/* Behind the block's last byte that is the caller's; its upper red zone may lie in a page of its
 * own, or of another block. */
static uint64_t users_end(const struct mb__block *block)
{
    return mb__block_end(block) - block->zone_bytes;
}

/* A block that was freed while it was open: access to it may still be taken back. */
static struct mb__block *freed_block(const struct mb_device *dev, uint64_t va)
{
    for (size_t i = 0; dev->given && i < dev->given->list.count; i++) {
        struct mb__block *block = dev->given->list.data[i].block;

        if (block && va >= block->addr && va < users_end(block))
            return block;
    }
    return NULL;
}

/* Pages of a reservation, as named, or all pages of the block. */
static enum mb_err locate(struct mb_device *dev, void *ptr, uint64_t bytes, bool closing,
                          struct area *out)
{
    uint64_t va = (uint64_t)(uintptr_t)ptr, end;
    struct mb__block *block;

    *out = (struct area){.owner = dev, .va = va, .pages = (uint32_t)(bytes / FRAME)};
    if (!bytes)
        return mb__fail(MB_ERR_INVALID, "access to 0 bytes");
    if (mb__vmm_reserved(dev, va)) {
        if (va % FRAME || bytes % FRAME)
            return mb__fail(MB_ERR_INVALID,
                            "address %p and size %" PRIu64 " must be multiples of the page", ptr,
                            bytes);
        if (!mb__vmm_covers(dev, va, bytes))
            return mb__fail(MB_ERR_NOT_MAPPED, "not all of [%p, +%" PRIu64 ") is mapped", ptr,
                            bytes);
        return MB_OK;
    }
    block = mb__block_to_show(dev, va);
    if (!block && closing)
        block = freed_block(dev, va);
    if (!block || va >= users_end(block) || bytes > users_end(block) - va)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "[%p, +%" PRIu64 ") lies neither in a mapping nor in a block of device %d",
                        ptr, bytes, dev->config.hw.ordinal);
    out->block = block;
    out->va = block->addr & ~(FRAME - 1);
    end = (users_end(block) + FRAME - 1) & ~(FRAME - 1);
    out->pages = (uint32_t)((end - out->va) / FRAME);
    return MB_OK;
}

/* The owner's own access is a protection like any other. */
static enum mb_err set_own(struct mb_device *dev, const struct area *area, enum mb_prot prot)
{
    struct mb_map_op op = {.kind = MB_PROTECT,
                           .prot = prot,
                           .va = (void *)(uintptr_t)area->va,
                           .bytes = area->pages * FRAME};

    if (!area->block)
        return mb__vmm_apply(dev, &op, 1, true, NULL);
    if (prot == MB_PROT_READ_WRITE)
        return MB_OK;
    return mb__fail(MB_ERR_NOT_SUPPORTED,
                    "a block's own device may always read and write it, as other blocks lie in its "
                    "pages; map memory of mb_mem_create() instead");
}

/* Tells all peers of the list; on failure those told before get back what they had. Where even that
 * fails, a peer may reach what the record says it cannot: the owner hands nothing out any more. */
static enum mb_err apply(const grants *from, const grants *to, const struct area *area,
                         const struct mb_access *list, unsigned count)
{
    enum mb_err err = MB_OK;
    uint32_t done = area->pages, ignored;
    struct mb__detail detail;
    unsigned i = 0;

    for (; !err && i < count; i++) {
        if (list[i].dev == area->owner)
            continue;
        done = 0;
        err = tell_changes(from, to, area, list[i].dev, area->pages, &done);
    }
    for (unsigned k = 0; !err && k < count; k++)
        if (list[k].dev == area->owner)
            err = set_own(area->owner, area, list[k].prot);
    mb__detail_keep(&detail);
    for (; err && i-- > 0; done = area->pages) {
        if (list[i].dev == area->owner)
            continue;
        if (!tell_changes(to, from, area, list[i].dev, done, &ignored))
            continue;
        mb__log(MB_LOG_ERROR, "runtime", "access of a peer could not be put back: %s",
                mb_error_detail());
        mb__vm_lose(area->owner->vm);
    }
    mb__detail_put(&detail);
    return err;
}

static enum mb_err set_locked(struct mb_device *dev, void *va, uint64_t bytes,
                              const struct mb_access *list, unsigned count)
{
    grants to = {0};
    struct area area;
    bool closing = true;
    enum mb_err err;

    for (unsigned i = 0; i < count; i++)
        closing &= list[i].prot == MB_PROT_NONE;
    err = locate(dev, va, bytes, closing, &area);

    if (!err && (!make_given(dev) || !copy_of(dev, &to)))
        err = no_memory();
    for (unsigned i = 0; !err && i < count; i++)
        if (list[i].dev != dev && !regrant(&to, &area, &list[i]))
            err = no_memory();
    if (!err)
        err = apply(&dev->given->list, &to, &area, list, count);
    if (!err)
        install(dev, &to);
    MB_VEC_FREE(&to);
    return err;
}

enum mb_err mb__access_set(struct mb_device *dev, void *va, uint64_t bytes,
                           const struct mb_access *list, unsigned count)
{
    enum mb_err err = check_list(dev, list, count);

    /* Work of a peer that still needs what it is about to lose. */
    for (unsigned i = 0; !err && i < count; i++)
        if (list[i].dev != dev && list[i].prot != MB_PROT_READ_WRITE)
            err = list[i].dev->hw->ops->device_sync(list[i].dev->hw);
    if (err)
        return err;
    mb__lock(&dev->lock);
    err = set_locked(dev, va, bytes, list, count);
    mb__unlock(&dev->lock);
    return err;
}

/* ------------------------------------------------------------------ questions */

enum mb_err mb__access_get(struct mb_device *dev, const void *ptr, const struct mb_device *peer,
                           enum mb_prot *out)
{
    uint64_t va = (uint64_t)(uintptr_t)ptr & ~(FRAME - 1);

    if (!mb__vmm_covers(dev, (uint64_t)(uintptr_t)ptr, 1) &&
        !mb__block_holding(dev, (uint64_t)(uintptr_t)ptr))
        return mb__fail(MB_ERR_NOT_FOUND, "%p lies in no live block and no mapping of this device",
                        ptr);
    if (peer == dev) {
        *out = MB_PROT_READ_WRITE;
        (void)mb__vmm_prot(dev, va, out);
        return MB_OK;
    }
    *out = dev->given ? granted(&dev->given->list, peer, va) : MB_PROT_NONE;
    return MB_OK;
}

bool mb__access_any(const struct mb_device *dev)
{
    return dev->given && dev->given->list.count;
}

int mb__access_peer(const struct mb_device *dev, const struct mb__block *block)
{
    for (size_t i = 0; dev->given && i < dev->given->list.count; i++)
        if (dev->given->list.data[i].block == block)
            return dev->given->list.data[i].peer->config.hw.ordinal;
    return -1;
}

enum mb_err mb__access_closed(const struct mb_device *dev, uint64_t addr, uint64_t bytes)
{
    for (size_t i = 0; dev->given && i < dev->given->list.count; i++) {
        const struct grant *grant = &dev->given->list.data[i];

        if (!grant->block && touches(grant, addr, bytes / FRAME))
            return mb__fail(MB_ERR_BUSY,
                            "a page of [0x%" PRIx64 ", +%" PRIu64
                            ") is open to device %d; take its access back with "
                            "mb_mem_set_access() and MB_PROT_NONE first",
                            addr, bytes, grant->peer->config.hw.ordinal);
    }
    return MB_OK;
}

/* Lock held. */
static bool page_open(const struct mb_device *peer, uint64_t page)
{
    for (const struct mb__given *given = givers; given; given = given->next)
        if (granted(&given->list, peer, page) != MB_PROT_NONE)
            return true;
    return false;
}

bool mb__access_covers(const struct mb_device *peer, uint64_t addr, uint64_t bytes)
{
    uint64_t page = addr & ~(FRAME - 1);
    bool covered = bytes <= UINT64_MAX - addr;

    pthread_mutex_lock(&lock);
    for (; covered && page < addr + bytes; page += FRAME)
        covered = page_open(peer, page);
    pthread_mutex_unlock(&lock);
    return covered;
}

enum mb_err mb__access_check(struct mb_device *dev)
{
    for (size_t i = 0; dev->given && i < dev->given->list.count; i++) {
        const struct grant *grant = &dev->given->list.data[i];

        for (uint32_t k = 0; k < grant->pages; k++)
            if (mb__pfn_eq(mb__vm_lookup(dev->vm, mb__va(grant->va + k * FRAME)), MB_NO_PFN))
                return mb__fail(MB_ERR_CORRUPT,
                                "page 0x%" PRIx64 " is open to device %d and shows nothing",
                                grant->va + k * FRAME, grant->peer->config.hw.ordinal);
    }
    return MB_OK;
}

enum mb_err mb__access_count_pins(const struct mb_device *dev, struct mb_map *pins)
{
    enum mb_err err = MB_OK;

    for (size_t i = 0; !err && dev->given && i < dev->given->list.count; i++)
        if (dev->given->list.data[i].block)
            err = mb__pin_counted(pins, dev->given->list.data[i].block);
    return err;
}

/* ------------------------------------------------------------------ the end of a device */

/* Takes back what the owner gave to `peer` (NULL: to all). The owner's lock is held, so neither
 * device can go meanwhile: each takes this way before its backend is closed. */
static void take_back(struct mb_device *owner, const struct mb_device *peer)
{
    grants *list = &owner->given->list;

    /* In place, as nothing here may fail for want of memory. */
    for (size_t i = list->count; i-- > 0;) {
        struct grant grant = list->data[i];

        if (peer && grant.peer != peer)
            continue;
        /* A peer whose work ends badly must lose its access all the same. */
        if (grant.peer->hw->ops->device_sync(grant.peer->hw))
            mb__log(MB_LOG_WARN, "runtime", "device %d before it loses access: %s",
                    grant.peer->config.hw.ordinal, mb_error_detail());
        if (tell(owner, grant.peer, grant.va, grant.pages, MB_PROT_NONE))
            mb__log(MB_LOG_WARN, "runtime", "access of device %d at its end: %s",
                    grant.peer->config.hw.ordinal, mb_error_detail());
        pthread_mutex_lock(&lock);
        list->data[i] = list->data[--list->count];
        pthread_mutex_unlock(&lock);
        if (grant.block)
            mb__block_unpin(owner, grant.block, 1);
    }
}

/* Somebody who has given access to `peer`; NULL: nobody has. */
static struct mb_device *giver_of(const struct mb_device *peer)
{
    struct mb_device *owner = NULL;

    pthread_mutex_lock(&lock);
    for (const struct mb__given *given = givers; given; given = given->next)
        for (size_t i = 0; i < given->list.count; i++)
            if (given->list.data[i].peer == peer)
                owner = given->owner;
    pthread_mutex_unlock(&lock);
    return owner;
}

void mb__access_end(struct mb_device *dev)
{
    struct mb_device *owner;

    /* A device's record is never freed, so its lock may be taken even if it is closed by now. */
    for (unsigned tries = 0; tries < 64 && (owner = giver_of(dev)); tries++) {
        mb__lock(&owner->lock);
        if (owner->given)
            take_back(owner, dev);
        mb__unlock(&owner->lock);
    }
    mb__lock(&dev->lock);
    if (dev->given) {
        take_back(dev, NULL);
        drop_given(dev);
    }
    mb__unlock(&dev->lock);
}
