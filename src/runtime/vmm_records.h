/* SPDX-License-Identifier: MIT */
/*
 * vmm_records.h - what the files of the mapping calls share: reservations, their pages, memory
 * objects, the batch being worked out.
 *
 *   vmm.c        reservations                    vmm_batch.c  map, unmap, alias, protect
 *   vmm_mem.c    memory objects                  vmm_plain.c  the same, of one stretch of pages
 *   vmm_query.c  what is mapped where,           vmm_sleep.c  sleep and wake
 *                invariants
 *
 * COST      A page's record is 16 bytes; every step of a batch is one loop over them.
 * LOCKING   The device's lock guards everything here.
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

/* Parts of struct page.word. */
enum {
    PAGE_INDEX = (1 << 24) - 1, /* frame of the memory object; 0 for blocks and empty pages */
    PAGE_STATE_SHIFT = 24,      /* enum page_state, two bits */
    PAGE_PROT_SHIFT = 26,       /* enum mb_prot, two bits */
    PAGE_OF_BLOCK = 1 << 28,    /* an alias of a block, which it pins */
    /* Marks, only while a batch is worked out: */
    PAGE_TOUCHED = 1 << 29, /* changed by it */
    PAGE_WAS = 1 << 30,     /* was MAPPED before it */
};
#define PAGE_MOVED (UINT32_C(1) << 31) /* shows a frame that the batch gave it */
#define PAGE_MARKS (PAGE_MOVED | (uint32_t)PAGE_TOUCHED | (uint32_t)PAGE_WAS)
#define PAGE_STATE ((uint32_t)3 << PAGE_STATE_SHIFT)
#define PAGE_PROT ((uint32_t)3 << PAGE_PROT_SHIFT)

struct page {
    void *owner;   /* struct mb_mem, struct mb__block (PAGE_OF_BLOCK) or NULL: empty */
    uint32_t word; /* PAGE_* */
    mb_pfn pfn;    /* shown; valid while MAPPED */
};

struct reservation {
    struct mb__link by_va; /* key (va, 0) */
    mb_va va;
    uint32_t count;
    uint64_t generation;            /* of the last change of a page */
    struct mb_vm_look look;         /* of mapped pages [look_first, look_last]; changes 0: none */
    uint32_t look_first, look_last; /* what is beside them is not mapped */
    struct page pages[];
};

struct mb_mem {
    struct mb_mem *prev, *next; /* of mb__vmm.mems */
    bool released;              /* the caller's handle is gone */
    uint32_t count;             /* frames, present or not */
    uint32_t absent;            /* of them: asleep, or already given back */
    uint64_t shown;             /* sum of maps */
    mb_pfn *pfns;               /* by index; in this allocation; of absent frames MB_NO_PFN */
    uint32_t *maps;             /* pages that show it, or sleep over it; in this allocation */
    mb_va homes[];              /* MB_NO_VA: absent */
};

/* Pages [first, first + count) that a step of the batch changed. What they held before stands in
 * mb__vmm.saved, in the order of the log; a saved word without PAGE_TOUCHED is what the page held
 * before the batch. */
struct change {
    struct reservation *where;
    uint32_t first, count;
    bool empty; /* they were, and not touched before: nothing is saved */
};

struct mb__vmm {
    struct mb_tree reservations;     /* by address */
    struct reservation *last;        /* found last, or NULL */
    struct reservation *last_source; /* the same for sources of aliases */
    struct mb_mem *mems;
    struct mb_map by_handle;     /* of mems not released: address -> 1 */
    struct mb_mem *last_mem;     /* asked for last and not released, or NULL */
    uint64_t bytes;              /* of frames held by memory objects */
    MB_VEC(struct change) log;   /* of the batch being worked out */
    MB_VEC(struct page) saved;   /* of the log's pages, old */
    size_t changed;              /* pages of the log */
    MB_VEC(struct mb_vm_op) ops; /* for vm */
    MB_VEC(mb_pfn) pfns;         /* for vm; ops point into it by index until submitted */
    MB_VEC(mb_pfn) found;        /* frames of a block that is being aliased */
};

static inline unsigned page_state(const struct page *page)
{
    return (page->word & PAGE_STATE) >> PAGE_STATE_SHIFT;
}

static inline uint32_t page_index(const struct page *page)
{
    return page->word & PAGE_INDEX;
}

/* The memory object; NULL: empty, or an alias of a block. */
static inline struct mb_mem *page_mem(const struct page *page)
{
    return page->word & PAGE_OF_BLOCK ? NULL : page->owner;
}

static inline struct mb__block *page_block(const struct page *page)
{
    return page->word & PAGE_OF_BLOCK ? page->owner : NULL;
}

static inline uint32_t page_word(enum page_state state, enum mb_prot prot)
{
    return (uint32_t)state << PAGE_STATE_SHIFT | (uint32_t)prot << PAGE_PROT_SHIFT;
}

/* The reservation that holds all of addr .. addr + bytes; NULL if none. `last`: what was found last
 * in this way. */
static inline struct reservation *find_near(struct mb_device *dev, uint64_t addr, uint64_t bytes,
                                            struct reservation **last)
{
    struct reservation *where = *last;
    struct mb__link *link;

    if (!where || addr - where->va.addr >= where->count * FRAME) {
        link = mb__tree_at_most(&dev->vmm->reservations, addr, 0);
        if (!link)
            return NULL;
        where = MB__TREE_ENTRY(link, struct reservation, by_va);
    }
    if (addr - where->va.addr >= where->count * FRAME ||
        bytes > where->count * FRAME - (addr - where->va.addr))
        return NULL;
    *last = where;
    return where;
}

static inline struct reservation *find(struct mb_device *dev, uint64_t addr, uint64_t bytes)
{
    return find_near(dev, addr, bytes, &dev->vmm->last);
}

/* Marks of a page that the batch changes, by its word until now. */
static inline uint32_t next_marks(uint32_t word)
{
    uint32_t was = (word & PAGE_STATE) == (uint32_t)PAGE_MAPPED << PAGE_STATE_SHIFT;

    return word & PAGE_TOUCHED ? word & PAGE_MARKS
                               : (uint32_t)PAGE_TOUCHED | was * (uint32_t)PAGE_WAS;
}

/* --- vmm_mem.c */
bool mb__mem_known_slow(const struct mb_device *dev, const struct mb_mem *mem);
static inline bool mb__mem_known(const struct mb_device *dev, const struct mb_mem *mem)
{
    return (mem && mem == dev->vmm->last_mem) || mb__mem_known_slow(dev, mem);
}
/* Fills arrays of `frames` places. May drop the device's lock for a wait: the caller looks again at
 * what it looked at before. */
enum mb_err mb__mem_frames(struct mb_device *dev, uint32_t frames, mb_va *homes, mb_pfn *pfns);
/* Frames [first, first + count) of the object go back to vm; absent ones are passed over. */
void mb__mem_give_back(struct mb_device *dev, struct mb_mem *mem, uint32_t first, uint32_t count);
/* Frames of these pages of a released object that nobody shows any more go back to vm, and the
 * object with the last of them. */
void mb__mem_let_go(struct mb_device *dev, struct mb_mem *mem, const struct page *pages,
                    uint32_t count);
void mb__mems_fini(struct mb_device *dev);

/* --- vmm_batch.c */
void mb__batch_begin(struct mb__vmm *vmm);
/* Logs pages [first, first + count) before they change. MB_ERR_HOST_MEMORY. */
enum mb_err mb__batch_note(struct mb__vmm *vmm, struct reservation *where, uint32_t first,
                           uint32_t count);
/* Hands the batch to vm; all or nothing. host: done when the call returns. */
enum mb_err mb__batch_end(struct mb_device *dev, struct mb__stream *stream, bool host);
/* The batch has been taken and stays, whatever comes of the wait; where its fence cannot be
 * awaited, the whole device is. The lock is given up meanwhile: the batch may stand behind work of
 * a stream that waits for another thread of the program. */
enum mb_err mb__batch_wait(struct mb_device *dev, struct mb_hw_fence fence);
/* Puts back what the log says. */
void mb__batch_undo(struct mb__vmm *vmm);

/* --- vmm_plain.c */
/* The whole batch, if it is one stretch of pages changed in one way: true, and *err says how it
 * went. false: it is not, or something is wrong with it; nothing has changed. */
bool mb__batch_plain(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                     struct mb__stream *stream, bool host, enum mb_err *err);

#endif
