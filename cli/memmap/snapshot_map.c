/* SPDX-License-Identifier: MIT */
/*
 * snapshot_map.c - PyTorch's memory as it lay there, from a snapshot: its end is known
 * («segments»), and the events before it («device_traces») are undone one by one, so that each
 * earlier moment is right also when recording began late.
 */
#include "memmap.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "trace/pickle.h"

#define PICKLE_BYTES ((uint64_t)4 << 30)
#define PICKLE_MEMORY ((uint64_t)1 << 30)

struct state {
    struct memmap *map;
    struct memmap_table live; /* bytes by address */
    struct memmap_table held; /* pages */
    bool failed;
};

static const struct pickle_items *list_of(const struct pickle_value *v)
{
    return v && v->kind == PICKLE_LIST ? v->u.items : NULL;
}

static void hold(struct state *s, uint64_t at, uint64_t bytes, bool held)
{
    uint64_t first = at >> MEMMAP_PAGE_SHIFT;
    uint64_t last = (at + bytes + ((uint64_t)1 << MEMMAP_PAGE_SHIFT) - 1) >> MEMMAP_PAGE_SHIFT;

    /* A page of 2 MiB each: a size beyond all devices is no reason to fill the host's memory. */
    if (last - first > (uint64_t)1 << 24)
        return;
    for (; first < last; first++)
        if (!held)
            memmap_remove(&s->held, first);
        else if (!memmap_put(&s->held, first, 1))
            s->failed = true;
}

/* One segment at the end. false: it is not what a snapshot's segment is. */
static bool end_segment(struct state *s, const struct pickle_value *segment)
{
    const struct pickle_items *blocks = list_of(pickle_get(segment, "blocks"));
    uint64_t at, bytes, next;

    if (!pickle_unsigned(pickle_get(segment, "address"), &at) ||
        !pickle_unsigned(pickle_get(segment, "total_size"), &bytes) || !blocks)
        return false;
    hold(s, at, bytes, true);
    next = at;
    for (uint32_t i = 0; i < blocks->count; i++) {
        const struct pickle_value *block = &blocks->values[i];
        uint64_t size;

        if (!pickle_unsigned(pickle_get(block, "size"), &size))
            return false;
        /* Older snapshots do not say where a block lies: behind the one before it. */
        (void)pickle_unsigned(pickle_get(block, "address"), &next);
        if (!pickle_is_text(pickle_get(block, "state"), "inactive") &&
            !memmap_put(&s->live, next, size))
            s->failed = true;
        next += size;
    }
    return true;
}

static void undo(struct state *s, const struct pickle_value *event)
{
    const struct pickle_value *action = pickle_get(event, "action");
    uint64_t at, bytes;

    if (!pickle_unsigned(pickle_get(event, "addr"), &at) ||
        !pickle_unsigned(pickle_get(event, "size"), &bytes))
        return;
    if (pickle_is_text(action, "alloc"))
        memmap_remove(&s->live, at);
    else if (pickle_is_text(action, "free_completed"))
        s->failed |= !memmap_put(&s->live, at, bytes);
    else if (pickle_is_text(action, "segment_alloc") || pickle_is_text(action, "segment_map"))
        hold(s, at, bytes, false);
    else if (pickle_is_text(action, "segment_free") || pickle_is_text(action, "segment_unmap"))
        hold(s, at, bytes, true);
}

static void take_moment(struct state *s, uint64_t when, uint64_t total)
{
    char label[64];
    uint64_t at, bytes;
    size_t i = 0;
    struct memmap_moment *m;

    snprintf(label, sizeof(label), "event %llu of %llu", (unsigned long long)when,
             (unsigned long long)total);
    m = memmap_moment(s->map, when, label);
    if (!m)
        return;
    while (memmap_each(&s->live, &i, &at, &bytes)) {
        const struct memmap_piece piece = {.at = at, .bytes = bytes, .who = at, .whole = bytes};

        m->live_bytes += bytes;
        m->blocks++;
        memmap_add(s->map, m, &piece);
    }
    m->pages = malloc((s->held.count + 1) * sizeof(*m->pages));
    if (!m->pages) {
        s->failed = true;
        return;
    }
    i = 0;
    while (memmap_each(&s->held, &i, &at, &bytes))
        m->pages[m->page_count++] = at;
    m->held_bytes = (uint64_t)m->page_count << MEMMAP_PAGE_SHIFT;
    memmap_finish(s->map, m);
}

static void reverse(struct memmap *map)
{
    for (unsigned i = 0; i < map->count / 2; i++) {
        struct memmap_moment m = map->moments[i];

        map->moments[i] = map->moments[map->count - 1 - i];
        map->moments[map->count - 1 - i] = m;
    }
}

/* The first device that has events. */
static const struct pickle_items *events_of(const struct pickle_value *root)
{
    const struct pickle_items *devices = list_of(pickle_get(root, "device_traces"));

    for (uint32_t i = 0; devices && i < devices->count; i++)
        if (list_of(&devices->values[i]) && list_of(&devices->values[i])->count)
            return list_of(&devices->values[i]);
    return NULL;
}

static int walk(struct state *s, const struct pickle_value *root, unsigned moments,
                char error[MEMMAP_ERROR])
{
    const struct pickle_items *segments = list_of(pickle_get(root, "segments"));
    const struct pickle_items *events = events_of(root);
    uint64_t total = events ? events->count : 0, at = total;

    if (!segments) {
        snprintf(error, MEMMAP_ERROR,
                 "the pickle has no list \"segments\"; expected what "
                 "torch.cuda.memory._snapshot() returns");
        return CLI_BAD_INPUT;
    }
    for (uint32_t i = 0; i < segments->count; i++)
        if (!end_segment(s, &segments->values[i])) {
            snprintf(error, MEMMAP_ERROR,
                     "segment %u is not as expected: address, total_size, blocks with their size",
                     i);
            return CLI_BAD_INPUT;
        }
    for (unsigned m = moments; m-- > 0;) {
        uint64_t until = moments > 1 ? total * m / (moments - 1) : total;

        while (events && at > until)
            undo(s, &events->values[--at]);
        take_moment(s, at, total);
        if (!total)
            break; /* there is only the end */
    }
    reverse(s->map);
    return CLI_OK;
}

int memmap_of_snapshot(struct memmap *map, const char *path, unsigned moments,
                       char error[MEMMAP_ERROR])
{
    struct state s = {.map = map};
    struct pickle_document *document = NULL;
    struct trace_input *input = NULL;
    char problem[256] = "";
    uint64_t offset = 0;
    enum trace_status status = trace_input_open(path, &input, error, MEMMAP_ERROR);
    int code = CLI_BAD_INPUT;

    if (status)
        return CLI_BAD_INPUT;
    trace_input_limit(input, PICKLE_BYTES);
    status = pickle_read(input, PICKLE_MEMORY, &document, &offset, problem);
    trace_input_close(input);
    if (status) {
        snprintf(error, MEMMAP_ERROR, "byte %llu: %s", (unsigned long long)offset, problem);
        return status == TRACE_HOST_MEMORY ? CLI_FAILED : CLI_BAD_INPUT;
    }
    code = walk(&s, pickle_root(document), moments, error);
    pickle_free(document);
    if (!code && (s.failed || map->failed)) {
        snprintf(error, MEMMAP_ERROR, "the host is out of memory");
        code = CLI_FAILED;
    }
    snprintf(map->what, sizeof(map->what),
             "PyTorch’s own blocks and segments, by address, from a memory snapshot");
    map->who = "block";
    map->time = "event";
    memmap_clear(&s.live);
    memmap_clear(&s.held);
    return code;
}
