/* SPDX-License-Identifier: MIT */
/*
 * What is mapped where: questions about reservations, and their invariants.
 *
 * Locking: the device's lock.
 */
#include "base/err.h"
#include "runtime/vmm_records.h"

bool mb__vmm_covers(struct mb_device *dev, uint64_t addr, uint64_t bytes)
{
    struct reservation *where = find(dev, addr, bytes);

    if (!where)
        return false;
    for (uint64_t i = (addr - where->va.addr) / FRAME;
         i <= (addr + bytes - 1 - where->va.addr) / FRAME; i++)
        if (page_state(&where->pages[i]) != PAGE_MAPPED)
            return false;
    return true;
}

bool mb__vmm_prot(struct mb_device *dev, uint64_t addr, enum mb_prot *out)
{
    struct reservation *where = find(dev, addr, 1);
    const struct page *page = where ? &where->pages[(addr - where->va.addr) / FRAME] : NULL;

    if (!page || page_state(page) != PAGE_MAPPED)
        return false;
    *out = (enum mb_prot)((page->word & PAGE_PROT) >> PAGE_PROT_SHIFT);
    return true;
}

/* Looks at all mapped pages around this one, unless no mapping has changed since the last time. */
static void look(struct mb_device *dev, struct reservation *where, uint32_t page)
{
    uint32_t first = page, last = page;

    if (page >= where->look_first && page <= where->look_last &&
        where->look.changes == mb__vm_changes(dev->vm))
        return;
    while (first && page_state(&where->pages[first - 1]) == PAGE_MAPPED)
        first--;
    while (last + 1 < where->count && page_state(&where->pages[last + 1]) == PAGE_MAPPED)
        last++;
    where->look_first = first;
    where->look_last = last;
    mb__vm_look(dev->vm, mb__va_add(where->va, first * FRAME), last - first + 1, &where->look);
}

bool mb__vmm_info(struct mb_device *dev, uint64_t addr, struct mb_pointer_info *out)
{
    struct reservation *where = find(dev, addr, 1);
    uint32_t page;

    if (!where)
        return false;
    page = (uint32_t)((addr - where->va.addr) / FRAME);
    if (page_state(&where->pages[page]) != PAGE_MAPPED)
        return false;
    look(dev, where, page);
    *out = (struct mb_pointer_info){
        .base = (void *)(uintptr_t)(where->va.addr + where->look_first * FRAME),
        .bytes = (where->look_last - where->look_first + 1) * FRAME,
        .generation = where->generation,
        .stitched = !where->look.in_a_row,
        /* its home is no alias */
        .aliases_high = where->look.refs_high ? where->look.refs_high - 1 : 0};
    return true;
}

bool mb__vmm_reserved(struct mb_device *dev, uint64_t addr)
{
    return find(dev, addr, 1) != NULL;
}

/* Each mapped page shows its frame in vm's record. */
static enum mb_err check_reservation(struct mb_device *dev, const struct reservation *where)
{
    for (uint32_t i = 0; i < where->count; i++) {
        const struct page *page = &where->pages[i];
        mb_pfn shown = mb__vm_lookup(dev->vm, mb__va_add(where->va, i * FRAME));
        mb_pfn wanted = page_state(page) == PAGE_MAPPED ? page->pfn : MB_NO_PFN;
        const struct mb_mem *mem = page_mem(page);

        if (!mb__pfn_eq(shown, wanted))
            return mb__fail(MB_ERR_CORRUPT,
                            "page 0x%" PRIx64 " shows frame 0x%x, the record says 0x%x",
                            where->va.addr + i * FRAME, shown.n, wanted.n);
        if (page->word & PAGE_MARKS || !page->owner != !page_state(page))
            return mb__fail(MB_ERR_CORRUPT, "page 0x%" PRIx64 " has a half-made record 0x%x",
                            where->va.addr + i * FRAME, page->word);
        if (mem && page_index(page) >= mem->count)
            return mb__fail(MB_ERR_CORRUPT,
                            "page 0x%" PRIx64 " shows frame %u of a memory object that has %u",
                            where->va.addr + i * FRAME, page_index(page), mem->count);
        if (mem && page_state(page) == PAGE_MAPPED &&
            !mb__pfn_eq(mem->pfns[page_index(page)], page->pfn))
            return mb__fail(MB_ERR_CORRUPT,
                            "page 0x%" PRIx64 " shows frame 0x%x, its memory object has 0x%x there",
                            where->va.addr + i * FRAME, page->pfn.n, mem->pfns[page_index(page)].n);
    }
    return MB_OK;
}

enum mb_err mb__vmm_count_pins(struct mb_device *dev, struct mb_map *pins)
{
    enum mb_err err = MB_OK;

    for (struct mb__link *link = mb__tree_first(&dev->vmm->reservations); link;
         link = mb__tree_next(link)) {
        const struct reservation *where = MB__TREE_ENTRY(link, struct reservation, by_va);

        for (uint32_t i = 0; !err && i < where->count; i++)
            if (page_block(&where->pages[i]))
                err = mb__pin_counted(pins, page_block(&where->pages[i]));
    }
    return err;
}

/* Every page that names a frame changes its count. */
static void count_pages(struct mb_device *dev, uint32_t step)
{
    for (struct mb__link *link = mb__tree_first(&dev->vmm->reservations); link;
         link = mb__tree_next(link)) {
        const struct reservation *where = MB__TREE_ENTRY(link, struct reservation, by_va);

        for (uint32_t i = 0; i < where->count; i++) {
            struct mb_mem *mem = page_mem(&where->pages[i]);

            if (mem)
                mem->maps[page_index(&where->pages[i])] += step;
        }
    }
}

/* A frame's count is the number of pages that name it: without them it is 0. The counts are taken
 * down and put up again, so a check needs no memory; the lock hides it. */
static enum mb_err check_counts(struct mb_device *dev)
{
    enum mb_err err = MB_OK;

    count_pages(dev, UINT32_MAX);
    for (const struct mb_mem *mem = dev->vmm->mems; mem; mem = mem->next) {
        for (uint32_t i = 0; !err && i < mem->count; i++)
            if (mem->maps[i])
                err = mb__fail(MB_ERR_CORRUPT,
                               "frame %u of a memory object counts %d pages more than show it", i,
                               (int)mem->maps[i]);
    }
    count_pages(dev, 1);
    return err;
}

/* The sum of a memory object's counts is the number of pages that name it. */
enum mb_err mb__vmm_check(struct mb_device *dev)
{
    uint64_t named = 0, counted = 0, frames = 0;

    for (struct mb__link *link = mb__tree_first(&dev->vmm->reservations); link;
         link = mb__tree_next(link)) {
        const struct reservation *where = MB__TREE_ENTRY(link, struct reservation, by_va);
        enum mb_err err = check_reservation(dev, where);

        if (err)
            return err;
        for (uint32_t i = 0; i < where->count; i++)
            named += page_mem(&where->pages[i]) != NULL;
    }
    for (const struct mb_mem *mem = dev->vmm->mems; mem; mem = mem->next) {
        uint32_t absent = 0;
        uint64_t shown = 0;

        for (uint32_t i = 0; i < mem->count; i++) {
            shown += mem->maps[i];
            absent += !mem->homes[i].addr;
        }
        counted += shown;
        if (shown != mem->shown)
            return mb__fail(MB_ERR_CORRUPT,
                            "a memory object is shown by %" PRIu64 " pages, it says %" PRIu64,
                            shown, mem->shown);
        frames += mem->count - absent;
        if (absent != mem->absent)
            return mb__fail(MB_ERR_CORRUPT,
                            "a memory object lacks %" PRIu32 " frames, it says %" PRIu32, absent,
                            mem->absent);
    }
    if (named != counted || frames * FRAME != dev->vmm->bytes)
        return mb__fail(MB_ERR_CORRUPT,
                        "mappings: %" PRIu64 " pages name frames, which count %" PRIu64 "; %" PRIu64
                        " frames are held, the account says %" PRIu64 " bytes",
                        named, counted, frames, dev->vmm->bytes);
    return check_counts(dev);
}
