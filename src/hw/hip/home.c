/* SPDX-License-Identifier: MIT */
/*
 * home.c - addresses and frames: slabs, mapped by HIP at their home.
 *
 * How       A slab is one handle per frame, as a handle can only be mapped whole and from offset
 *           0. Frame numbers are made up: HIP tells no physical addresses.
 * Alignment hipMemAddressReserve takes an alignment, but older runtimes do not look at it. A range
 *           that came unaligned is given back, and one with room to align is taken instead. Every
 *           range is remembered.
 * Locking   dev->table_lock for lists, figures and frame_handle; HIP's calls are made outside of
 *           it.
 */
#include "hw/hip/hip.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ addresses */

static void *give_back(struct mb_hip *dev, void *p, uint64_t bytes)
{
    (void)mb__hip_result(dev, dev->hip->unreserve(p, bytes), "releasing addresses");
    return NULL;
}

/* Fills the record. Asks for the alignment, and for room to align when that was not heeded. */
static enum mb_err reserve(struct mb_hip *dev, uint64_t bytes, uint64_t align,
                           struct mb_hip_reserve *r)
{
    void *p = NULL;
    enum mb_err err = MB_OK;

    r->bytes = bytes;
    for (unsigned wide = 0; !err && !p && wide < 2; wide++) {
        r->bytes = bytes + (wide ? align : 0);
        err = mb__hip_result(dev, dev->hip->reserve(&p, r->bytes, align, NULL, 0),
                             "reserving addresses");
        if (!err && !wide && (uintptr_t)p % align)
            p = give_back(dev, p, r->bytes);
    }
    r->base = (uintptr_t)p;
    r->va = (r->base + align - 1) & ~(align - 1);
    return err;
}

enum mb_err mb__hip_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_reserve *r;
    struct mb_hip_scope scope;
    enum mb_err err;

    if (!bytes || bytes % MB_FRAME_BYTES || align < MB_FRAME_BYTES || (align & (align - 1)))
        return mb__hip_fail(MB_ERR_INVALID,
                            "reserving %" PRIu64 " bytes aligned to %" PRIu64
                            ": both must be multiples of 2 MiB, the alignment a power of two",
                            bytes, align);
    if (bytes > dev->base.caps.va_bytes)
        return mb__hip_fail(MB_ERR_NO_ADDRESS,
                            "reserving %" PRIu64 " bytes: at most %" PRIu64 " are allowed", bytes,
                            dev->base.caps.va_bytes);
    r = calloc(1, sizeof(*r));
    if (!r)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for the record of a reservation");
    err = mb__hip_enter(dev, &scope);
    if (!err) {
        err = reserve(dev, bytes, align, r);
        mb__hip_leave(dev, &scope);
    }
    if (err) {
        free(r);
        return err == MB_ERR_NO_MEMORY ? mb__fail(MB_ERR_NO_ADDRESS, "%s", mb_error_detail()) : err;
    }
    *out = mb__va(r->va);
    pthread_mutex_lock(&dev->table_lock);
    r->next = dev->reserves;
    dev->reserves = r;
    pthread_mutex_unlock(&dev->table_lock);
    return MB_OK;
}

/* The record of a reservation, unlinked and the caller's; NULL: there is none. */
static struct mb_hip_reserve *take_record(struct mb_hip *dev, uint64_t va)
{
    struct mb_hip_reserve *r = NULL;

    pthread_mutex_lock(&dev->table_lock);
    for (struct mb_hip_reserve **at = &dev->reserves; *at; at = &(*at)->next) {
        if ((*at)->va == va) {
            r = *at;
            *at = r->next;
            break;
        }
    }
    pthread_mutex_unlock(&dev->table_lock);
    return r;
}

enum mb_err mb__hip_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_reserve *r;
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    r = take_record(dev, va.addr);
    if (r) {
        err = mb__hip_result(dev, dev->hip->unreserve((void *)(uintptr_t)r->base, r->bytes),
                             "releasing addresses");
        free(r);
    } else {
        err = mb__hip_fail(MB_ERR_NOT_FOUND, "0x%" PRIx64 " + %" PRIu64 " bytes are not reserved",
                           va.addr, bytes);
    }
    mb__hip_leave(dev, &scope);
    return err;
}

void mb__hip_drop_reserves(struct mb_hip *dev, bool live)
{
    while (dev->reserves) {
        struct mb_hip_reserve *r = dev->reserves;

        dev->reserves = r->next;
        if (live)
            (void)give_back(dev, (void *)(uintptr_t)r->base, r->bytes);
        free(r);
    }
}

/* ------------------------------------------------------------ frames */

enum mb_err mb__hip_set_access(struct mb_hip *dev, uint64_t va, uint64_t bytes, int access)
{
    struct hip_mem_access a = {
        .location = {.type = HIP_MEM_LOCATION_DEVICE, .id = dev->ordinal},
        .flags = access,
    };

    return mb__hip_result(dev, dev->hip->mem_access((void *)(uintptr_t)va, bytes, &a, 1),
                          "giving access to a mapping");
}

/* Frames are handles of their own, so any range of them can be opened, at home and in windows, once
 * what is queued has been done. Not run on two AMD GPUs. */
enum mb_err mb__hip_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer, mb_va va,
                                uint32_t frames, const mb_pfn *pfns, enum mb_prot prot)
{
    struct mb_hip *dev = mb__hip(hw);
    struct hip_mem_access a = {
        .location = {.type = HIP_MEM_LOCATION_DEVICE, .id = mb__hip(peer)->ordinal},
        .flags = prot == MB_PROT_NONE   ? HIP_MEM_ACCESS_NONE
                 : prot == MB_PROT_READ ? HIP_MEM_ACCESS_READ
                                        : HIP_MEM_ACCESS_READ_WRITE,
    };
    struct mb_hip_scope scope;
    enum mb_err err;

    (void)pfns;
    if (dev->ordinal == a.location.id)
        return mb__hip_fail(MB_ERR_INVALID, "a GPU is no peer of itself");
    if (!frames)
        return MB_OK; /* hipMemSetAccess says whether it can */
    err = mb__hip_device_sync(hw);
    if (!err)
        err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    mb__hip_settle(dev);
    err = mb__hip_result(
        dev, dev->hip->mem_access((void *)(uintptr_t)va.addr, frames * MB_FRAME_BYTES, &a, 1),
        "giving access to a peer");
    mb__hip_leave(dev, &scope);
    return err;
}

hip_mem mb__hip_handle_of(const struct mb_hip *dev, mb_pfn pfn)
{
    uint64_t frame = pfn.n / MB_FRAME_PFNS;

    if (pfn.n % MB_FRAME_PFNS || frame >= dev->frame_count)
        return NULL;
    return __atomic_load_n(&dev->frame_handle[frame], __ATOMIC_ACQUIRE);
}

static void unmap_frames(struct mb_hip *dev, uint64_t va, uint32_t count)
{
    /* One by one: not every runtime takes a range of several mappings. */
    for (uint32_t i = 0; i < count; i++)
        (void)mb__hip_result(
            dev, dev->hip->mem_unmap((void *)(uintptr_t)(va + i * MB_FRAME_BYTES), MB_FRAME_BYTES),
            "unmapping device memory");
}

static void give_up(struct mb_hip *dev, struct mb_hip_slab *slab, uint32_t made, uint32_t mapped)
{
    unmap_frames(dev, slab->home.addr, mapped);
    for (uint32_t i = 0; i < made; i++)
        (void)mb__hip_result(dev, dev->hip->mem_release(slab->handles[i]), "freeing device memory");
    free(slab->handles);
    free(slab);
}

static enum mb_err make_frames(struct mb_hip *dev, struct mb_hip_slab *slab)
{
    struct hip_mem_prop prop = {
        .type = HIP_MEM_TYPE_PINNED,
        .location = {.type = HIP_MEM_LOCATION_DEVICE, .id = dev->ordinal},
    };
    uint32_t made = 0, mapped = 0;
    enum mb_err err = MB_OK;

    while (!err && made < slab->frames) {
        err = mb__hip_result(dev,
                             dev->hip->mem_create(&slab->handles[made], MB_FRAME_BYTES, &prop, 0),
                             "allocating device memory");
        made += !err;
    }
    while (!err && mapped < slab->frames) {
        void *at = (void *)(uintptr_t)(slab->home.addr + mapped * MB_FRAME_BYTES);

        err =
            mb__hip_result(dev, dev->hip->mem_map(at, MB_FRAME_BYTES, 0, slab->handles[mapped], 0),
                           "mapping device memory");
        mapped += !err;
    }
    if (!err)
        err = mb__hip_set_access(dev, slab->home.addr, slab->frames * MB_FRAME_BYTES,
                                 HIP_MEM_ACCESS_READ_WRITE);
    if (err)
        give_up(dev, slab, made, mapped);
    return err;
}

/* table_lock held. Makes the slab known under consecutive unused frame numbers. */
static enum mb_err publish(struct mb_hip *dev, struct mb_hip_slab *slab)
{
    uint64_t run = 0;

    for (uint64_t f = 1; f < dev->frame_count; f++) {
        run = dev->frame_handle[f] ? 0 : run + 1;
        if (run < slab->frames)
            continue;
        f = f + 1 - run;
        slab->first = (mb_pfn){(uint32_t)(f * MB_FRAME_PFNS)};
        for (uint32_t i = 0; i < slab->frames; i++)
            __atomic_store_n(&dev->frame_handle[f + i], slab->handles[i], __ATOMIC_RELEASE);
        slab->next = dev->slabs;
        dev->slabs = slab;
        return MB_OK;
    }
    return mb__hip_fail(MB_ERR_NO_MEMORY, "no room for %u frame numbers", slab->frames);
}

/* ------------------------------------------------------------ slabs */

/* Counts `bytes` against the cap. */
static enum mb_err hold(struct mb_hip *dev, uint64_t bytes, mb_va home)
{
    bool fits;

    if (!bytes || bytes % MB_FRAME_BYTES || home.addr % MB_FRAME_BYTES ||
        bytes / MB_FRAME_BYTES > UINT32_MAX)
        return mb__hip_fail(MB_ERR_INVALID,
                            "a slab of %" PRIu64 " bytes at 0x%" PRIx64
                            ": both are multiples of 2 MiB",
                            bytes, home.addr);
    pthread_mutex_lock(&dev->table_lock);
    fits = bytes <= dev->limit_bytes && dev->held_bytes <= dev->limit_bytes - bytes;
    if (fits)
        dev->held_bytes += bytes;
    pthread_mutex_unlock(&dev->table_lock);
    if (!fits)
        return mb__hip_fail(MB_ERR_NO_MEMORY,
                            "%" PRIu64 " bytes more would pass the %" PRIu64
                            " bytes that this device may take",
                            bytes, dev->limit_bytes);
    return MB_OK;
}

static enum mb_err make_slab(struct mb_hip *dev, uint64_t bytes, mb_va home,
                             struct mb_hip_slab **out)
{
    struct mb_hip_slab *slab = calloc(1, sizeof(*slab));
    enum mb_err err;

    if (slab) {
        slab->home = home;
        slab->frames = (uint32_t)(bytes / MB_FRAME_BYTES);
        slab->handles = calloc(slab->frames, sizeof(hip_mem));
    }
    if (!slab || !slab->handles) {
        free(slab);
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for the record of a slab");
    }
    err = make_frames(dev, slab);
    if (err)
        return err;
    pthread_mutex_lock(&dev->table_lock);
    err = publish(dev, slab);
    pthread_mutex_unlock(&dev->table_lock);
    if (err)
        give_up(dev, slab, slab->frames, slab->frames);
    else
        *out = slab;
    return err;
}

enum mb_err mb__hip_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                 struct mb_hw_slab *out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_slab *slab = NULL;
    struct mb_hip_scope scope;
    enum mb_err err = hold(dev, bytes, home);

    if (err)
        return err;
    err = mb__hip_enter(dev, &scope);
    if (!err) {
        err = make_slab(dev, bytes, home, &slab);
        mb__hip_leave(dev, &scope);
    }
    if (err || !slab) {
        pthread_mutex_lock(&dev->table_lock);
        dev->held_bytes -= bytes;
        pthread_mutex_unlock(&dev->table_lock);
        return err;
    }
    *out = (struct mb_hw_slab){.first = slab->first,
                               .frames = slab->frames,
                               .home_mapped = true,
                               .home = home,
                               .cookie = (uintptr_t)slab};
    return MB_OK;
}

static void drop_slab(struct mb_hip *dev, struct mb_hip_slab *slab)
{
    struct mb_hip_slab **at;

    pthread_mutex_lock(&dev->table_lock);
    for (uint32_t i = 0; i < slab->frames; i++)
        __atomic_store_n(&dev->frame_handle[slab->first.n / MB_FRAME_PFNS + i], (hip_mem)NULL,
                         __ATOMIC_RELEASE);
    for (at = &dev->slabs; *at != slab; at = &(*at)->next)
        ;
    *at = slab->next;
    dev->held_bytes -= slab->frames * MB_FRAME_BYTES;
    pthread_mutex_unlock(&dev->table_lock);
    give_up(dev, slab, slab->frames, slab->frames);
}

enum mb_err mb__hip_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    /* The entries were cleared in stream order; the worker may not have got to all of them. */
    mb__hip_settle(dev);
    drop_slab(dev, (struct mb_hip_slab *)(uintptr_t)out->cookie);
    mb__hip_leave(dev, &scope);
    memset(out, 0, sizeof(*out));
    return MB_OK;
}

void mb__hip_drop_slabs(struct mb_hip *dev, bool live)
{
    while (dev->slabs) {
        struct mb_hip_slab *slab = dev->slabs;

        if (live) {
            drop_slab(dev, slab);
            continue;
        }
        dev->slabs = slab->next;
        free(slab->handles);
        free(slab);
    }
}
