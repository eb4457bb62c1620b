/* SPDX-License-Identifier: MIT */
/*
 * Sleep drops frames and keeps addresses; wake gives new frames. Both are batches (vmm_batch.c)
 * whose pages keep their place in the memory object and its count. A frame that is shown twice
 * cannot sleep.
 *
 * Locking: the device's lock.
 */
#include "base/err.h"
#include "runtime/access.h"
#include "runtime/vmm_records.h"

static enum mb_err locate(struct mb_device *dev, void *va, uint64_t bytes,
                          struct reservation **where)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;

    if ((addr | bytes) % FRAME)
        return mb__fail(MB_ERR_INVALID,
                        "[%p, +%" PRIu64 ") does not consist of whole pages of 0x%" PRIx64, va,
                        bytes, FRAME);
    *where = bytes ? find(dev, addr, bytes) : NULL;
    if (!*where)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "[%p, +%" PRIu64 ") does not lie in one range of mb_mem_reserve()", va,
                        bytes);
    return MB_OK;
}

static uint64_t page_addr(const struct reservation *where, uint32_t page)
{
    return where->va.addr + page * FRAME;
}

/* May the page sleep? */
static enum mb_err check_page(const struct reservation *where, uint32_t number)
{
    const struct page *page = &where->pages[number];
    const struct mb_mem *mem = page_mem(page);

    if (page_state(page) != PAGE_MAPPED)
        return mb__fail(MB_ERR_NOT_MAPPED, "page 0x%" PRIx64 " is not mapped",
                        page_addr(where, number));
    if (!mem || mem->maps[page_index(page)] != 1)
        return mb__fail(MB_ERR_BUSY,
                        "the frame of page 0x%" PRIx64 " is shown elsewhere too; unmap "
                        "the other pages first",
                        page_addr(where, number));
    return MB_OK;
}

static uint32_t with_state(uint32_t word, enum page_state state)
{
    return (word & ~PAGE_STATE) | page_word(state, MB_PROT_NONE) | next_marks(word);
}

static enum mb_err sleep_pages(struct mb_device *dev, struct reservation *where, uint32_t first,
                               uint32_t count)
{
    enum mb_err err = mb__batch_note(dev->vmm, where, first, count);

    for (uint32_t i = first; !err && i < first + count; i++) {
        if (page_state(&where->pages[i]) == PAGE_ASLEEP)
            continue;
        err = check_page(where, i);
        if (!err)
            where->pages[i].word = with_state(where->pages[i].word, PAGE_ASLEEP);
    }
    return err;
}

/* The frames of sleeping pages go back, neighbours together. */
static void drop_frames(struct mb_device *dev, const struct page *page, uint32_t count)
{
    uint32_t run;

    for (; count; page += run, count -= run) {
        for (run = 1; run < count && page[run].owner == page->owner &&
                      page_index(&page[run]) == page_index(page) + run;)
            run++;
        mb__mem_give_back(dev, page_mem(page), page_index(page), run);
    }
}

enum mb_err mb__vmm_sleep(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native)
{
    uint32_t first, count = (uint32_t)(bytes / FRAME);
    struct mb__stream *stream;
    struct reservation *where;
    enum mb_err err = locate(dev, va, bytes, &where);

    if (!err)
        err = mb__access_closed(dev, (uint64_t)(uintptr_t)va, bytes);
    if (!err)
        err = mb__not_captured(dev, native);
    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    first = (uint32_t)(((uint64_t)(uintptr_t)va - where->va.addr) / FRAME);
    mb__batch_begin(dev->vmm);
    err = sleep_pages(dev, where, first, count);
    if (!err)
        err = mb__batch_end(dev, stream, false);
    if (err) {
        mb__batch_undo(dev->vmm);
        return err;
    }
    drop_frames(dev, &where->pages[first], count);
    return MB_OK;
}

/* Frames for the sleeping pages of a range; both arrays are the caller's to free. */
static enum mb_err wake_frames(struct mb_device *dev, uint32_t asleep, mb_va **homes, mb_pfn **pfns)
{
    *homes = calloc(asleep ? asleep : 1, sizeof(**homes));
    *pfns = calloc(asleep ? asleep : 1, sizeof(**pfns));
    if (!*homes || !*pfns)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a list of %u frames", asleep);
    return asleep ? mb__mem_frames(dev, asleep, *homes, *pfns) : MB_OK;
}

static enum mb_err wake_pages(struct mb_device *dev, struct reservation *where, uint32_t first,
                              uint32_t count, const mb_pfn *pfns)
{
    enum mb_err err = mb__batch_note(dev->vmm, where, first, count);

    for (uint32_t i = first; !err && i < first + count; i++) {
        struct page *page = &where->pages[i];

        if (page_state(page) != PAGE_ASLEEP)
            continue;
        page->word = with_state(page->word, PAGE_MAPPED) | PAGE_MOVED;
        page->pfn = *pfns++;
    }
    return err;
}

/* The objects of the pages that woke have frames again. */
static void settle_frames(struct mb_device *dev, const struct page *page, uint32_t count,
                          const mb_va *homes, const mb_pfn *pfns)
{
    for (; count; page++, count--) {
        struct mb_mem *mem = page_mem(page);
        uint32_t index = page_index(page);

        if (!mem || mem->homes[index].addr)
            continue;
        mem->homes[index] = *homes++;
        mem->pfns[index] = *pfns++;
        mem->absent--;
        dev->vmm->bytes += FRAME;
    }
}

static uint32_t count_asleep(const struct page *page, uint32_t count)
{
    uint32_t asleep = 0;

    for (uint32_t i = 0; i < count; i++)
        asleep += page_state(&page[i]) == PAGE_ASLEEP;
    return asleep;
}

/* While frames were waited for, another thread may have changed the range, or begun a capture. */
static enum mb_err look_again(struct mb_device *dev, void *va, uint64_t bytes, uint32_t asleep,
                              mb_stream native, struct reservation **where, uint32_t *first)
{
    enum mb_err err = locate(dev, va, bytes, where);

    if (!err)
        err = mb__not_captured(dev, native);
    if (err)
        return err;
    *first = (uint32_t)(((uint64_t)(uintptr_t)va - (*where)->va.addr) / FRAME);
    if (count_asleep(&(*where)->pages[*first], (uint32_t)(bytes / FRAME)) == asleep)
        return MB_OK;
    return mb__fail(MB_ERR_BUSY, "another thread changed the range at %p during its wake", va);
}

enum mb_err mb__vmm_wake(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native)
{
    uint32_t count = (uint32_t)(bytes / FRAME), asleep, first;
    struct mb__stream *stream;
    struct reservation *where;
    mb_va *homes = NULL;
    mb_pfn *pfns = NULL;
    enum mb_err err = locate(dev, va, bytes, &where);

    if (!err)
        err = mb__not_captured(dev, native);
    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (err)
        return err;
    first = (uint32_t)(((uint64_t)(uintptr_t)va - where->va.addr) / FRAME);
    asleep = count_asleep(&where->pages[first], count);
    err = wake_frames(dev, asleep, &homes, &pfns);
    if (err)
        goto done;
    mb__batch_begin(dev->vmm);
    err = look_again(dev, va, bytes, asleep, native, &where, &first);
    if (!err)
        err = mb__stream_get(dev, native, &stream);
    if (!err)
        err = wake_pages(dev, where, first, count, pfns);
    if (!err)
        err = mb__batch_end(dev, stream, false);
    if (err) {
        mb__batch_undo(dev->vmm);
        for (uint32_t i = 0; i < asleep; i++)
            (void)mb__free_pfn(dev->vm, OWNER, (struct mb_run){homes[i], pfns[i], 1}, NULL, 0);
        goto done;
    }
    settle_frames(dev, &where->pages[first], count, homes, pfns);
    mb__note_usage(dev);
done:
    free(homes);
    free(pfns);
    return err;
}
