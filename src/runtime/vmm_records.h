/* SPDX-License-Identifier: MIT */
/*
 * vmm_records.h - what vmm.c and vmm_query.c share: reservations, their pages, memory objects.
 *
 * Guarded by the device's lock.
 */
#ifndef MB_RUNTIME_VMM_RECORDS_H
#define MB_RUNTIME_VMM_RECORDS_H

#include <inttypes.h>

#include "runtime/vmm.h"

#define FRAME MB_FRAME_BYTES

enum {
    OWNER = 0x6d656d, /* of vm's frames; pools count up from 1 */
};

enum page_state {
    PAGE_EMPTY,
    PAGE_MAPPED,
    PAGE_ASLEEP, /* its memory object keeps the place, without a frame */
};

struct page {
    mb_mem mem;              /* NULL: empty, or an alias of a block */
    struct mb__block *block; /* alias of a block: which it pins */
    uint32_t index;          /* frame of mem */
    mb_pfn pfn;              /* shown; valid while MAPPED */
    uint8_t state;           /* enum page_state */
    uint8_t prot;            /* enum mb_prot */
};

struct reservation {
    struct mb__link by_va; /* key (va, 0) */
    mb_va va;
    uint32_t count;
    uint64_t generation; /* of the last change of a page */
    struct page pages[];
};

struct mb_mem {
    struct mb_mem *prev, *next; /* of mb__vmm.mems */
    bool released;              /* the caller's handle is gone */
    uint32_t count;             /* frames, present or not */
    uint64_t shown;             /* sum of maps */
    struct mem_frame {
        mb_va home; /* MB_NO_VA: no frame (asleep, or already given back) */
        mb_pfn pfn;
        uint32_t maps; /* pages that show it, or sleep over it */
    } frames[];
};

struct change {
    struct page *page;
    struct reservation *where;
    struct page old, new;
};

struct mb__vmm {
    struct mb_tree reservations; /* by address */
    struct mb_mem *mems;
    uint64_t bytes;              /* of frames held by memory objects */
    MB_VEC(struct change) log;   /* of the batch being worked out */
    MB_VEC(struct mb_vm_op) ops; /* for vm */
    MB_VEC(mb_pfn) pfns;         /* for vm; ops point into it by index until submitted */
};

/* The reservation that holds all of addr .. addr + bytes; NULL if none. */
static inline struct reservation *find(struct mb_device *dev, uint64_t addr, uint64_t bytes)
{
    struct mb__link *link = mb__tree_at_most(&dev->vmm->reservations, addr, 0);
    struct reservation *where;

    if (!link)
        return NULL;
    where = MB__TREE_ENTRY(link, struct reservation, by_va);
    if (addr - where->va.addr >= where->count * FRAME ||
        bytes > where->count * FRAME - (addr - where->va.addr))
        return NULL;
    return where;
}

#endif
