/* SPDX-License-Identifier: MIT */
/*
 * log.c - who owns which frames, from an audit log, which may be of a running program.
 *
 * Read three times: how many records and which batches were refused; then, record by record, who
 * owns each frame and how many windows show it. Sessions follow each other: the last one is drawn.
 */
#include "memmap.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"

#include "moonbright.h"

struct log {
    struct memmap *map;
    unsigned moments;
    uint64_t records, session, last_session, at; /* `at`: records of the drawn session so far */
    struct memmap_table refused;                 /* batches of the last session */
    struct memmap_table owner;                   /* of a frame; frames without one are not in it */
    struct memmap_table held;                    /* frames had from the driver */
    struct memmap_table windows;                 /* addresses that show a frame beside its home */
    bool failed;
};

static void count(void *user, const struct mb_audit_record *r)
{
    struct log *l = user;

    if (r->kind == MB_AUDIT_SESSION) {
        l->last_session++;
        l->records = 0;
        memmap_clear(&l->refused);
    }
    l->records += r->kind != MB_AUDIT_CLOSE; /* draw() passes it over */
    if (r->kind == MB_AUDIT_UNDONE && !memmap_put(&l->refused, r->batch, 1))
        l->failed = true;
}

static void set_pages(struct log *l, struct memmap_table *t, const struct mb_audit_record *r,
                      uint64_t value, bool remove)
{
    for (uint64_t at = r->phys >> MEMMAP_PAGE_SHIFT, n = r->bytes >> MEMMAP_PAGE_SHIFT; n;
         n--, at++)
        if (remove)
            memmap_remove(t, at);
        else if (!memmap_put(t, at, value))
            l->failed = true;
}

static void show_pages(struct log *l, const struct mb_audit_record *r, int by)
{
    for (uint64_t at = r->phys >> MEMMAP_PAGE_SHIFT, n = r->bytes >> MEMMAP_PAGE_SHIFT; n;
         n--, at++) {
        uint64_t shown = 0;

        (void)memmap_get(&l->windows, at, &shown);
        if (by < 0 && shown <= 1)
            memmap_remove(&l->windows, at);
        else if (!memmap_put(&l->windows, at, shown + (uint64_t)(int64_t)by))
            l->failed = true;
    }
}

static void apply(struct log *l, const struct mb_audit_record *r)
{
    uint64_t refused;

    if (memmap_get(&l->refused, r->batch, &refused) && r->batch)
        return;
    switch (r->kind) {
    case MB_AUDIT_HOME:
        set_pages(l, &l->held, r, 1, false);
        break;
    case MB_AUDIT_HOMELESS:
        set_pages(l, &l->held, r, 0, true);
        break;
    case MB_AUDIT_TAKE:
        set_pages(l, &l->owner, r, r->owner, false);
        break;
    case MB_AUDIT_GIVE:
        set_pages(l, &l->owner, r, 0, true);
        break;
    case MB_AUDIT_MAP:
        show_pages(l, r, 1);
        break;
    case MB_AUDIT_UNMAP:
        show_pages(l, r, -1);
        break;
    default:
        break;
    }
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void take_moment(struct log *l)
{
    char label[64];
    uint64_t page, value, owner;
    size_t at = 0;
    struct memmap_moment *m;

    snprintf(label, sizeof(label), "record %llu", (unsigned long long)l->at);
    m = memmap_moment(l->map, l->at, label);
    if (!m)
        return;
    m->pages = malloc((l->held.count + 1) * sizeof(*m->pages));
    if (!m->pages) {
        l->failed = true;
        return;
    }
    while (memmap_each(&l->held, &at, &page, &value))
        m->pages[m->page_count++] = page;
    qsort(m->pages, m->page_count, sizeof(*m->pages), by_number);
    m->held_bytes = (uint64_t)m->page_count << MEMMAP_PAGE_SHIFT;
    for (size_t i = 0; i < m->page_count; i++) {
        struct memmap_piece piece = {.at = m->pages[i] << MEMMAP_PAGE_SHIFT,
                                     .bytes = (uint64_t)1 << MEMMAP_PAGE_SHIFT};
        uint64_t shown = 0;

        if (!memmap_get(&l->owner, m->pages[i], &owner))
            continue;
        (void)memmap_get(&l->windows, m->pages[i], &shown);
        piece.who = owner;
        piece.flags = (shown ? MEMMAP_STITCHED : 0u) | (shown > 1 ? MEMMAP_ALIASED : 0u);
        m->live_bytes += piece.bytes;
        memmap_add(l->map, m, &piece);
    }
    m->blocks = m->count;
    for (size_t i = 0; i < m->count; i++)
        m->pieces[i].whole = m->pieces[i].bytes;
}

static void draw(void *user, const struct mb_audit_record *r)
{
    struct log *l = user;

    l->session += r->kind == MB_AUDIT_SESSION;
    if (l->session != l->last_session)
        return;
    /* The moment before a close: after it nothing is held. */
    if (r->kind == MB_AUDIT_CLOSE)
        return;
    apply(l, r);
    l->at++;
    if (l->at * l->moments / l->records > l->map->count || l->at == l->records)
        take_moment(l);
}

int memmap_of_log(struct memmap *map, const char *path, unsigned moments, char error[MEMMAP_ERROR])
{
    struct log l = {.map = map, .moments = moments};
    struct mb_audit_summary summary = {0};
    enum mb_err err = mb_audit_read(path, count, &l, &summary);
    int code = CLI_OK;

    if (!err && l.records)
        err = mb_audit_read(path, draw, &l, NULL);
    if (err || l.failed || !map->count) {
        snprintf(error, MEMMAP_ERROR, "%s",
                 err ? mb_error_detail()
                 : l.failed
                     ? "the host is out of memory"
                     : "the log holds no change of a mapping yet; let the program allocate first");
        code = err == MB_ERR_HOST_MEMORY || l.failed ? CLI_FAILED : CLI_BAD_INPUT;
    }
    snprintf(map->what, sizeof(map->what), "owners of frames in the last session of an audit log%s",
             summary.closed ? "" : ", which is still being written or was cut off");
    map->who = "owner";
    map->time = "record";
    memmap_clear(&l.refused);
    memmap_clear(&l.owner);
    memmap_clear(&l.held);
    memmap_clear(&l.windows);
    return code;
}
