/* SPDX-License-Identifier: MIT */
/*
 * peer.c - access of another GPU to frames of this one, by cuMemSetAccess.
 *
 * What      At home addresses the driver's record and ours agree, so there the driver can write the
 *           peer's entries. On device tables a slab is one handle, and the driver knows access to
 *           whole handles only: the peer gets the most that any page of the slab asks for. On
 *           driver tables frames are handles of their own, in windows too.
 * Refused   A window on device tables: the driver's record of it is the donor's, so a peer would
 *           be shown the donor. Entries of a peer that a device writes itself: which aperture and
 *           peer number reach the owner is not recorded in anything that could be proved first.
 * Proof     After the driver has worked on a slab of device tables, the owner's own entries there
 *           must be what they were.
 * Locking   dev->table_lock for the record; the driver is called without it. Callers do not change
 *           one device's access on two threads at once (runtime holds the owner's lock).
 *
 * Not run on two GPUs.
 */
#include "hw/cuda/cuda.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"

static enum mb_err possible(struct mb_cuda *dev, struct mb_cuda *peer)
{
    int can = 0;
    enum mb_err err;

    if (dev->device == peer->device)
        return mb__fail(MB_ERR_INVALID, "a GPU is no peer of itself");
    err = mb__cuda_check(dev->cu, dev->cu->can_access_peer(&can, peer->device, dev->device),
                         "asking for peer access");
    if (!err && !can)
        err = mb__fail(MB_ERR_NOT_SUPPORTED,
                       "GPU %d cannot reach the memory of GPU %d: neither NVLink nor a PCIe path "
                       "that the driver allows lies between them",
                       peer->ordinal, dev->ordinal);
    return err;
}

static enum mb_err set(struct mb_cuda *dev, const struct mb_cuda *peer, uint64_t va, uint64_t bytes,
                       int access)
{
    struct cu_mem_access a = {
        .location = {.type = CU_MEM_LOCATION_DEVICE, .id = peer->ordinal},
        .flags = access,
    };
    struct mb_cuda_own_calls own;
    enum mb_err err;

    mb__cuda_own_begin(&own, NULL);
    err = mb__cuda_result(dev, dev->cu->mem_access(va, bytes, &a, 1), "giving access to a peer");
    mb__cuda_own_end(&own);
    return err;
}

/* ------------------------------------------------------------ slabs of one handle */

/* table_lock held. Access of each frame for a peer; made on the first grant. */
static struct mb_cuda_grant *grant_of(struct mb_cuda_slab *slab, int ordinal, bool make)
{
    struct mb_cuda_grant *grant;

    for (grant = slab->grants; grant && grant->ordinal != ordinal; grant = grant->next)
        ;
    if (grant || !make)
        return grant;
    grant = calloc(1, sizeof(*grant) + slab->frames);
    if (!grant)
        return NULL;
    grant->ordinal = ordinal;
    grant->next = slab->grants;
    slab->grants = grant;
    return grant;
}

int mb__cuda_grant_set(struct mb_cuda_grant *grant, uint32_t frames, uint32_t first, uint32_t count,
                       int access, int *before)
{
    int most = CU_MEM_ACCESS_NONE;

    *before = grant->access;
    for (uint32_t i = 0; i < frames; i++) {
        if (i >= first && i < first + count)
            grant->frame[i] = (uint8_t)access;
        most = grant->frame[i] > most ? grant->frame[i] : most;
    }
    grant->access = most;
    return most;
}

/* After a proof that failed, whose text stays. False: the driver would not. */
static bool take_back(struct mb_cuda *dev, struct mb_cuda *peer, const struct mb_cuda_slab *slab,
                      int before)
{
    struct mb__detail detail;
    enum mb_err err;

    mb__detail_keep(&detail);
    err = set(dev, peer, slab->home.addr, slab->bytes, before);
    if (err)
        mb__log(MB_LOG_ERROR, "cuda", "a peer keeps its access: %s", mb_error_detail());
    mb__detail_put(&detail);
    return !err;
}

static enum mb_err set_slab(struct mb_cuda *dev, struct mb_cuda *peer, struct mb_cuda_slab *slab,
                            uint32_t first, uint32_t count, int access)
{
    struct mb_cuda_grant *grant;
    uint8_t *old = malloc(count);
    int before = 0, after = 0;
    bool kept = false; /* the driver gave it, and did not take it back: the record says so */
    enum mb_err err = MB_OK;

    if (!old)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for the record of a peer's access");
    pthread_mutex_lock(&dev->table_lock);
    grant = grant_of(slab, peer->ordinal, access != CU_MEM_ACCESS_NONE);
    if (grant) {
        memcpy(old, grant->frame + first, count);
        after = mb__cuda_grant_set(grant, slab->frames, first, count, access, &before);
    }
    pthread_mutex_unlock(&dev->table_lock);
    if (!grant && access != CU_MEM_ACCESS_NONE)
        err = mb__fail(MB_ERR_HOST_MEMORY, "no memory for the record of a peer's access");
    if (!err && before != after) {
        err = set(dev, peer, slab->home.addr, slab->bytes, after);
        if (!err) {
            err = mb__cuda_slab_prove(dev, slab);
            kept = err && !take_back(dev, peer, slab, before);
        }
        if (err && !kept) {
            pthread_mutex_lock(&dev->table_lock);
            memcpy(grant->frame + first, old, count);
            grant->access = before;
            pthread_mutex_unlock(&dev->table_lock);
        }
    }
    free(old);
    return err;
}

/* ------------------------------------------------------------ where an address lies */

static struct mb_cuda_slab *slab_at(struct mb_cuda *dev, uint64_t va)
{
    struct mb_cuda_slab *slab;

    pthread_mutex_lock(&dev->table_lock);
    for (slab = dev->slabs; slab; slab = slab->next)
        if (!slab->released && va >= slab->home.addr && va - slab->home.addr < slab->bytes)
            break;
    pthread_mutex_unlock(&dev->table_lock);
    return slab;
}

static enum mb_err not_at_home(uint64_t va)
{
    return mb__fail(MB_ERR_NOT_SUPPORTED,
                    "0x%" PRIx64 " is shown by entries that the device wrote: the driver "
                    "would give a peer its own record of that address, which is not what "
                    "is there. Open memory that is not stitched or mapped, or use "
                    "tables:driver",
                    va);
}

static enum mb_err at_home(struct mb_cuda *dev, struct mb_cuda *peer, uint64_t va, uint64_t bytes,
                           int access)
{
    enum mb_err err = MB_OK;

    while (!err && bytes) {
        struct mb_cuda_slab *slab = slab_at(dev, va);
        uint64_t part;

        if (!slab)
            return not_at_home(va);
        part = slab->home.addr + slab->bytes - va;
        part = part < bytes ? part : bytes;
        err = set_slab(dev, peer, slab, (uint32_t)((va - slab->home.addr) / MB_FRAME_BYTES),
                       (uint32_t)(part / MB_FRAME_BYTES), access);
        va += part;
        bytes -= part;
    }
    return err;
}

/* All or nothing is asked before anything is done. */
static enum mb_err check_homes(struct mb_cuda *dev, uint64_t va, uint64_t bytes)
{
    for (uint64_t off = 0; off < bytes; off += MB_FRAME_BYTES)
        if (!slab_at(dev, va + off))
            return not_at_home(va + off);
    return MB_OK;
}

enum mb_err mb__cuda_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer_hw, mb_va va,
                                 uint32_t frames, const mb_pfn *pfns, enum mb_prot prot)
{
    struct mb_cuda *dev = mb__cuda(hw), *peer = mb__cuda(peer_hw);
    int access = prot == MB_PROT_NONE   ? CU_MEM_ACCESS_NONE
                 : prot == MB_PROT_READ ? CU_MEM_ACCESS_READ
                                        : CU_MEM_ACCESS_READ_WRITE;
    struct mb_cuda_scope scope;
    enum mb_err err = possible(dev, peer);

    (void)pfns;
    if (err || !frames)
        return err;
    /* Batches that are still with the worker come first. */
    if (dev->tables == MB_CUDA_DRIVER)
        err = mb__cuda_device_sync(hw);
    if (!err)
        err = mb__cuda_enter_relaxed(dev, &scope);
    if (err)
        return err;
    if (dev->tables == MB_CUDA_DRIVER) {
        err = set(dev, peer, va.addr, frames * MB_FRAME_BYTES, access);
    } else {
        err = check_homes(dev, va.addr, frames * MB_FRAME_BYTES);
        if (!err)
            err = at_home(dev, peer, va.addr, frames * MB_FRAME_BYTES, access);
    }
    mb__cuda_leave_relaxed(dev, &scope);
    return err;
}
