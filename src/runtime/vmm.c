/* SPDX-License-Identifier: MIT */
/*
 * Addresses and frames apart: reserve, create, map, alias, sleep. This file has the reservations:
 * each is a window of vm with one record per page; see vmm_records.h for the others.
 *
 * Locking: the device's lock.
 */
#include "base/err.h"
#include "runtime/vmm_records.h"

enum mb_err mb__vmm_new(struct mb_device *dev)
{
    dev->vmm = calloc(1, sizeof(*dev->vmm));
    return dev->vmm ? MB_OK
                    : mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the mapping records");
}

void mb__vmm_fini(struct mb_device *dev)
{
    struct mb__vmm *vmm = dev->vmm;

    if (!vmm)
        return;
    while (vmm->reservations.root) {
        struct mb__link *link = mb__tree_first(&vmm->reservations);

        mb__tree_erase(&vmm->reservations, link);
        free(MB__TREE_ENTRY(link, struct reservation, by_va));
    }
    mb__mems_fini(dev);
    MB_VEC_FREE(&vmm->log);
    MB_VEC_FREE(&vmm->saved);
    MB_VEC_FREE(&vmm->ops);
    MB_VEC_FREE(&vmm->pfns);
    MB_VEC_FREE(&vmm->found);
    free(vmm);
    dev->vmm = NULL;
}

uint64_t mb__vmm_bytes(const struct mb_device *dev)
{
    return dev->vmm ? dev->vmm->bytes : 0;
}

enum mb_err mb__vmm_reserve(struct mb_device *dev, uint64_t bytes, uint64_t align, void **va)
{
    struct reservation *where;
    enum mb_err err = MB_OK;

    if (bytes % FRAME)
        err = mb__fail(MB_ERR_INVALID, "size 0x%" PRIx64 " is no multiple of the page, 0x%" PRIx64,
                       bytes, FRAME);
    if (!err && (!bytes || bytes / FRAME > UINT32_MAX))
        err = mb__fail(MB_ERR_INVALID,
                       "%" PRIu64 " bytes cannot be reserved; ask for 1 page to 2^32", bytes);
    if (!err && align & (align - 1))
        err = mb__fail(MB_ERR_INVALID, "alignment 0x%" PRIx64 " is no power of two", align);
    if (err)
        return err;
    where = calloc(1, sizeof(*where) + bytes / FRAME * sizeof(where->pages[0]));
    if (!where)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the records of %" PRIu64 " pages",
                        bytes / FRAME);
    err = mb__alloc_va(dev->vm, bytes, align > FRAME ? align : 0, &where->va);
    if (err) {
        free(where);
        return err;
    }
    where->count = (uint32_t)(bytes / FRAME);
    mb__tree_insert(&dev->vmm->reservations, &where->by_va, where->va.addr, 0);
    mb__note_held(dev);
    *va = (void *)(uintptr_t)where->va.addr;
    return MB_OK;
}

enum mb_err mb__vmm_unreserve(struct mb_device *dev, void *va, uint64_t bytes)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;
    struct reservation *where = find(dev, addr, 1);
    enum mb_err err;

    if (!where || where->va.addr != addr || where->count * FRAME != bytes)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "%p with %" PRIu64 " bytes is not a whole range of mb_mem_reserve()", va,
                        bytes);
    for (uint32_t i = 0; i < where->count; i++)
        if (where->pages[i].owner)
            return mb__fail(MB_ERR_BUSY, "page %u of the range at %p is %s; unmap it first", i, va,
                            page_state(&where->pages[i]) == PAGE_ASLEEP ? "asleep" : "mapped");
    err = mb__free_va(dev->vm, where->va, bytes);
    if (err)
        return err;
    dev->vmm->last = dev->vmm->last_source = NULL;
    mb__tree_erase(&dev->vmm->reservations, &where->by_va);
    free(where);
    return MB_OK;
}
