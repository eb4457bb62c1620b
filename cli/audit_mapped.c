/* SPDX-License-Identifier: MIT */
/*
 * audit_mapped.c - follows an audit log page by page: homes and windows that show a frame, who has
 * the frame, what a program may do there.
 *
 * A session begins with nothing, as the mappings of the one before went with its process.
 */
#include "audit_mapped.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t PAGE = (uint64_t)1 << MEMMAP_PAGE_SHIFT;

static bool keep(struct audit_kept *kept, const struct mb_audit_record *record)
{
    if (!kept->at || kept->count == kept->capacity) {
        size_t capacity = kept->capacity ? 2 * kept->capacity : 256;
        struct mb_audit_record *grown = realloc(kept->at, capacity * sizeof(*grown));

        if (!grown)
            return false;
        kept->at = grown;
        kept->capacity = capacity;
    }
    kept->at[kept->count++] = *record;
    return true;
}

static void forget(struct audit_kept *kept)
{
    free(kept->at);
    *kept = (struct audit_kept){NULL, 0, 0};
}

static struct mb_audit_record *page_at(const struct audit_mapped *m, uint64_t va)
{
    uint64_t place;

    return memmap_get(&m->places, va, &place) ? &m->pages.at[place] : NULL;
}

/* The page of the record at an offset shows its frame from now on. */
static void put(struct audit_mapped *m, const struct mb_audit_record *record, uint64_t offset)
{
    struct mb_audit_record page = *record, *old = page_at(m, record->va + offset);

    page.va += offset;
    page.phys += offset;
    page.bytes = PAGE;
    if (old)
        *old = page;
    else if (!keep(&m->pages, &page) || !memmap_put(&m->places, page.va, m->pages.count - 1))
        m->no_memory = true;
}

/* The last page takes its place. */
static void drop(struct audit_mapped *m, struct mb_audit_record *page)
{
    struct mb_audit_record *last = &m->pages.at[--m->pages.count];

    memmap_remove(&m->places, page->va);
    if (page == last)
        return;
    *page = *last;
    if (!memmap_put(&m->places, page->va, (uint64_t)(page - m->pages.at)))
        m->no_memory = true;
}

static void change_page(struct audit_mapped *m, const struct mb_audit_record *record,
                        uint64_t offset)
{
    struct mb_audit_record *page = page_at(m, record->va + offset);

    if (record->kind == MB_AUDIT_HOME || record->kind == MB_AUDIT_MAP) {
        put(m, record, offset);
        return;
    }
    if (!page)
        return;
    switch (record->kind) {
    case MB_AUDIT_HOMELESS:
    case MB_AUDIT_UNMAP:
        drop(m, page);
        break;
    case MB_AUDIT_TAKE:
    case MB_AUDIT_GIVE:
        page->owner = record->kind == MB_AUDIT_TAKE ? record->owner : 0;
        break;
    case MB_AUDIT_PROTECT:
        page->prot = record->prot;
        break;
    default:
        break;
    }
}

/* A session begins, or ends in order. */
static void begin_anew(struct audit_mapped *m)
{
    memmap_clear(&m->places);
    forget(&m->pages);
    forget(&m->open);
}

void audit_mapped_take(struct audit_mapped *m, const struct mb_audit_record *record,
                       enum audit_outcome outcome)
{
    if (record->kind == MB_AUDIT_SESSION || record->kind == MB_AUDIT_CLOSE) {
        begin_anew(m);
        m->closed = record->kind == MB_AUDIT_CLOSE;
        if (!m->closed)
            m->session = *record;
        return;
    }
    if (outcome == AUDIT_REFUSED || !record->bytes)
        return;
    if ((record->va | record->bytes) & (PAGE - 1))
        m->odd = true;
    else if (outcome == AUDIT_UNKNOWN)
        m->no_memory |= !keep(&m->open, record);
    else
        for (uint64_t offset = 0; offset < record->bytes; offset += PAGE)
            change_page(m, record, offset);
}

static int by_address(const void *a, const void *b)
{
    const struct mb_audit_record *x = a, *y = b;

    return x->va < y->va ? -1 : x->va > y->va;
}

/* Does b go on where a ends, mapped by the same record? */
static bool goes_on(const struct mb_audit_record *a, const struct mb_audit_record *b)
{
    return a->va + a->bytes == b->va && a->phys + a->bytes == b->phys && a->kind == b->kind &&
           a->sequence == b->sequence && a->owner == b->owner && a->prot == b->prot;
}

bool audit_mapped_each(const struct audit_mapped *m, mb_audit_visit visit, void *user)
{
    struct mb_audit_record *sorted = malloc((m->pages.count + 1) * sizeof(*sorted));
    size_t count = m->pages.count;

    if (!sorted)
        return false;
    if (count)
        memcpy(sorted, m->pages.at, count * sizeof(*sorted));
    qsort(sorted, count, sizeof(*sorted), by_address);
    for (size_t i = 0; i < count;) {
        struct mb_audit_record piece = sorted[i++];

        while (i < count && goes_on(&piece, &sorted[i]))
            piece.bytes += sorted[i++].bytes;
        visit(user, &piece);
    }
    free(sorted);
    return true;
}

void audit_mapped_free(struct audit_mapped *m)
{
    begin_anew(m);
}
