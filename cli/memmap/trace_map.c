/* SPDX-License-Identifier: MIT */
/*
 * trace_map.c - a trace served by MoonBright on the software GPU, and where its blocks lie.
 *
 * The public interface does not tell physical addresses; the audit log does. At each moment the log
 * so far is read: every home and every window gives addresses their frames; a live block's pieces
 * follow from its addresses. Streams are those of the trace; work on them is not.
 */
#include "memmap.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "trace/trace.h"

#include "moonbright.h"

#define PAGE ((uint64_t)1 << MEMMAP_PAGE_SHIFT)

struct block {
    uint64_t at, bytes, number; /* at 0: not live */
};

struct server {
    struct memmap *map;
    mb_device dev;
    mb_stream streams[TRACE_STREAMS_MAX];
    struct block *blocks; /* by slot */
    size_t capacity;
    uint64_t number;      /* of blocks so far */
    uint64_t total, peak; /* events; the one after which most bytes are live */
    char log[64];
    struct memmap_table frame; /* of an address's page, >> MEMMAP_PAGE_SHIFT */
    struct memmap_table held;
    struct memmap_table refused, first; /* first: address page that was met for a frame */
    bool failed;
    char *error;
};

/* ------------------------------------------------------------ the log so far */

static void note_refused(void *user, const struct mb_audit_record *r)
{
    struct server *s = user;

    if (r->kind == MB_AUDIT_UNDONE && !memmap_put(&s->refused, r->batch, 1))
        s->failed = true;
}

static void note_pages(void *user, const struct mb_audit_record *r)
{
    struct server *s = user;
    uint64_t va = r->va >> MEMMAP_PAGE_SHIFT, frame = r->phys >> MEMMAP_PAGE_SHIFT, ignored;
    bool home = r->kind == MB_AUDIT_HOME, homeless = r->kind == MB_AUDIT_HOMELESS;

    if (r->batch && memmap_get(&s->refused, r->batch, &ignored))
        return;
    for (uint64_t n = r->bytes >> MEMMAP_PAGE_SHIFT; n; n--, va++, frame++) {
        if (home || r->kind == MB_AUDIT_MAP)
            s->failed |= !memmap_put(&s->frame, va, frame);
        else if (homeless || r->kind == MB_AUDIT_UNMAP)
            memmap_remove(&s->frame, va);
        if (home)
            s->failed |= !memmap_put(&s->held, frame, 1);
        else if (homeless)
            memmap_remove(&s->held, frame);
    }
}

static enum mb_err read_log(struct server *s)
{
    enum mb_err err;

    memmap_clear(&s->frame);
    memmap_clear(&s->held);
    memmap_clear(&s->refused);
    memmap_clear(&s->first);
    err = mb_audit_read(s->log, note_refused, s, NULL);
    return err ? err : mb_audit_read(s->log, note_pages, s, NULL);
}

/* ------------------------------------------------------------ a moment */

/* The parts of a block, one frame at a time; where they are in a row, memmap_add() joins them. */
static void add_block(struct server *s, struct memmap_moment *m, const struct block *b)
{
    uint64_t expected = UINT64_MAX, end = b->at + b->bytes;
    size_t from = m->count;
    bool stitched = false;

    for (uint64_t at = b->at; at < end;) {
        uint64_t frame, first, next = (at | (PAGE - 1)) + 1;
        struct memmap_piece piece = {.who = b->number, .whole = b->bytes};

        next = next < end ? next : end;
        if (!memmap_get(&s->frame, at >> MEMMAP_PAGE_SHIFT, &frame))
            return; /* not mapped: nothing to show */
        piece.at = (frame << MEMMAP_PAGE_SHIFT) + (at & (PAGE - 1));
        piece.bytes = next - at;
        stitched |= expected != UINT64_MAX && piece.at != expected;
        expected = piece.at + piece.bytes;
        if (!memmap_get(&s->first, frame, &first))
            s->failed |= !memmap_put(&s->first, frame, at >> MEMMAP_PAGE_SHIFT);
        else if (first != at >> MEMMAP_PAGE_SHIFT)
            piece.flags |= MEMMAP_ALIASED;
        memmap_add(s->map, m, &piece);
        at = next;
    }
    for (size_t i = from; stitched && i < m->count; i++)
        m->pieces[i].flags |= MEMMAP_STITCHED;
}

static enum mb_err take_moment(struct server *s, uint64_t when)
{
    char label[64];
    uint64_t page, value;
    size_t at = 0;
    enum mb_err err = read_log(s);
    struct memmap_moment *m;

    snprintf(label, sizeof(label), "event %llu of %llu%s", (unsigned long long)when,
             (unsigned long long)s->total, when == s->peak ? ", the peak" : "");
    m = err ? NULL : memmap_moment(s->map, when, label);
    if (!m)
        return err;
    for (size_t i = 0; i < s->capacity; i++)
        if (s->blocks[i].at) {
            m->live_bytes += s->blocks[i].bytes;
            m->blocks++;
            add_block(s, m, &s->blocks[i]);
        }
    m->pages = malloc((s->held.count + 1) * sizeof(*m->pages));
    if (!m->pages)
        return MB_ERR_HOST_MEMORY;
    while (memmap_each(&s->held, &at, &page, &value))
        m->pages[m->page_count++] = page;
    m->held_bytes = (uint64_t)m->page_count << MEMMAP_PAGE_SHIFT;
    memmap_finish(s->map, m);
    return s->failed ? MB_ERR_HOST_MEMORY : MB_OK;
}

/* ------------------------------------------------------------ events */

static enum mb_err stream_of(struct server *s, uint32_t index, mb_stream *out)
{
    enum mb_err err = MB_OK;

    if (!s->streams[index])
        err = mb_stream_create(s->dev, &s->streams[index]);
    *out = s->streams[index];
    return err;
}

static enum mb_err serve_alloc(struct server *s, const struct trace_event *e, mb_stream stream)
{
    struct block *b;
    void *at;
    enum mb_err err = mb_malloc_async(s->dev, e->bytes, stream, &at);

    if (err)
        return err;
    if (e->slot >= s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 1024;
        struct block *larger;

        while (capacity <= e->slot)
            capacity *= 2;
        larger = realloc(s->blocks, capacity * sizeof(*larger));
        if (!larger)
            return MB_ERR_HOST_MEMORY;
        memset(larger + s->capacity, 0, (capacity - s->capacity) * sizeof(*larger));
        s->blocks = larger;
        s->capacity = capacity;
    }
    b = &s->blocks[e->slot];
    *b = (struct block){.at = (uint64_t)(uintptr_t)at, .bytes = e->bytes, .number = ++s->number};
    return MB_OK;
}

static enum mb_err serve(struct server *s, const struct trace_event *e)
{
    mb_stream stream;
    enum mb_err err;

    if (e->op != TRACE_ALLOC && (e->op != TRACE_FREE || e->before_trace))
        return MB_OK;
    err = stream_of(s, e->stream, &stream);
    if (err)
        return err;
    if (e->op == TRACE_ALLOC)
        return serve_alloc(s, e, stream);
    err = mb_free_async(s->dev, (void *)(uintptr_t)s->blocks[e->slot].at, stream);
    s->blocks[e->slot].at = 0;
    return err;
}

static int open_trace(const char *path, struct trace_reader **out, char *error)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};

    return trace_open(path, &options, out, error, MEMMAP_ERROR) ? CLI_BAD_INPUT : CLI_OK;
}

static int count_events(struct server *s, const char *path, char *error)
{
    struct trace_reader *reader;
    struct trace_event event;
    enum trace_status status;
    uint64_t most = 0;
    int code = open_trace(path, &reader, error);

    if (code)
        return code;
    while (!(status = trace_next(reader, &event))) {
        uint64_t live = trace_info(reader)->requested_bytes;

        s->total++;
        if (live > most) {
            most = live;
            s->peak = s->total;
        }
    }
    if (status != TRACE_END)
        snprintf(error, MEMMAP_ERROR, "%s", trace_error(reader));
    trace_close(reader);
    if (status == TRACE_END && !s->total)
        snprintf(error, MEMMAP_ERROR, "the trace holds no events");
    return status == TRACE_END && s->total ? CLI_OK : CLI_BAD_INPUT;
}

/* Moments evenly spread, and the peak in place of one of them. */
static enum mb_err serve_all(struct server *s, struct trace_reader *reader, unsigned moments)
{
    struct trace_event event;
    uint64_t at = 0, taken = 0, even = moments > 1 ? moments - 1 : 0;
    enum mb_err err = MB_OK;

    while (!err && !trace_next(reader, &event)) {
        err = serve(s, &event);
        at++;
        if (!err && (at * even / s->total > taken || at == s->peak))
            err = take_moment(s, at);
        taken = at * even / s->total;
    }
    return err;
}

static int run(struct server *s, const char *path, const char *config, unsigned moments)
{
    struct trace_reader *reader = NULL;
    char text[1200];
    enum mb_err err;
    int code = open_trace(path, &reader, s->error);

    if (code)
        return code;
    snprintf(text, sizeof(text), "%.1000s%saudit:%s", config, *config ? "," : "", s->log);
    err = mb_open(0, text, &s->dev);
    if (!err)
        err = serve_all(s, reader, moments);
    if (err) {
        snprintf(s->error, MEMMAP_ERROR, "%s: %s", mb_error_name(err), mb_error_detail());
        code = CLI_FAILED;
    }
    if (s->dev)
        mb_close(s->dev);
    trace_close(reader);
    return code;
}

int memmap_of_trace(struct memmap *map, const char *path, const char *config, unsigned moments,
                    char error[MEMMAP_ERROR])
{
    static struct server s; /* large, and one runs at a time */
    int code, file;

    s = (struct server){.map = map, .error = error};
    code = count_events(&s, path, error);
    if (code)
        return code;
    snprintf(s.log, sizeof(s.log), P_tmpdir "/moonbright-map-XXXXXX");
    file = mkstemp(s.log);
    if (file < 0) {
        snprintf(error, MEMMAP_ERROR, "no file can be made in " P_tmpdir);
        return CLI_FAILED;
    }
    close(file);
    code = run(&s, path, config, moments);
    unlink(s.log);
    if (!code && map->failed) {
        snprintf(error, MEMMAP_ERROR, "the host is out of memory");
        code = CLI_FAILED;
    }
    snprintf(map->what, sizeof(map->what),
             "blocks in device memory, the trace served by MoonBright on the software GPU");
    map->who = "block";
    map->time = "event";
    free(s.blocks);
    memmap_clear(&s.frame);
    memmap_clear(&s.held);
    memmap_clear(&s.refused);
    memmap_clear(&s.first);
    return code;
}
