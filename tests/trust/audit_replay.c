/* SPDX-License-Identifier: MIT */
#include "audit_replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRAME = 2 << 20, PLANNED_MAX = 1 << 16 };

struct replay {
    struct audit_state *state;
    struct mb_audit_record *planned; /* of the open batch */
    size_t count;
    char *text; /* the first mistake */
    size_t size;
};

static void wrong(struct replay *r, const struct mb_audit_record *record, const char *what)
{
    if (!r->text[0])
        snprintf(r->text, r->size, "record %llu (%s, va 0x%llx, phys 0x%llx): %s",
                 (unsigned long long)record->sequence, mb_audit_name(record->kind),
                 (unsigned long long)record->va, (unsigned long long)record->phys, what);
}

static struct audit_page *at(struct audit_state *state, uint64_t va)
{
    for (size_t i = 0; i < state->count; i++) {
        if (state->page[i].va == va)
            return &state->page[i];
    }
    return NULL;
}

static void add(struct replay *r, struct audit_page page)
{
    struct audit_state *state = r->state;

    if (state->count == state->capacity) {
        state->capacity = state->capacity ? 2 * state->capacity : 64;
        state->page = realloc(state->page, state->capacity * sizeof(*state->page));
        if (!state->page)
            abort();
    }
    state->page[state->count++] = page;
}

static void map_page(struct replay *r, const struct mb_audit_record *record, uint64_t offset,
                     bool home)
{
    if (at(r->state, record->va + offset))
        wrong(r, record, "the address shows something already");
    add(r, (struct audit_page){record->va + offset, record->phys + offset, 0, home});
}

static void unmap_page(struct replay *r, const struct mb_audit_record *record, uint64_t offset,
                       bool home)
{
    struct audit_page *page = at(r->state, record->va + offset);

    if (!page || page->phys != record->phys + offset || page->home != home) {
        wrong(r, record, "the address does not show that");
        return;
    }
    if (page->owner)
        wrong(r, record, "the frame has an owner still");
    *page = r->state->page[--r->state->count];
}

static void own_page(struct replay *r, const struct mb_audit_record *record, uint64_t offset)
{
    struct audit_page *page = at(r->state, record->va + offset);

    if (!page || !page->home || page->phys != record->phys + offset)
        wrong(r, record, "the frame is not at home there");
    else if (record->kind == MB_AUDIT_TAKE ? page->owner != 0 : page->owner != record->owner)
        wrong(r, record, "the frame has another owner");
    else
        page->owner = record->kind == MB_AUDIT_TAKE ? record->owner : 0;
}

static void apply(struct replay *r, const struct mb_audit_record *record)
{
    for (uint64_t offset = 0; offset < record->bytes; offset += FRAME) {
        switch (record->kind) {
        case MB_AUDIT_HOME:
        case MB_AUDIT_MAP:
            map_page(r, record, offset, record->kind == MB_AUDIT_HOME);
            break;
        case MB_AUDIT_HOMELESS:
        case MB_AUDIT_UNMAP:
            unmap_page(r, record, offset, record->kind == MB_AUDIT_HOMELESS);
            break;
        case MB_AUDIT_TAKE:
        case MB_AUDIT_GIVE:
            own_page(r, record, offset);
            break;
        case MB_AUDIT_PROTECT:
            if (!at(r->state, record->va + offset))
                wrong(r, record, "the address shows nothing");
            break;
        default:
            break;
        }
    }
}

static void plan(struct replay *r, const struct mb_audit_record *record)
{
    if (r->count && r->planned[0].batch != record->batch)
        wrong(r, record, "the batch before has no outcome");
    if (r->count == PLANNED_MAX)
        wrong(r, record, "the batch has too many changes for this test");
    else
        r->planned[r->count++] = *record;
}

static void outcome(struct replay *r, const struct mb_audit_record *record)
{
    if (r->count && r->planned[0].batch != record->batch)
        wrong(r, record, "the outcome is another batch's");
    for (size_t i = 0; record->kind == MB_AUDIT_DONE && i < r->count; i++)
        apply(r, &r->planned[i]);
    r->count = 0;
}

static void visit(void *user, const struct mb_audit_record *record)
{
    struct replay *r = user;

    switch (record->kind) {
    case MB_AUDIT_SESSION:
    case MB_AUDIT_CLOSE: /* a killed session's mappings went with its process */
        r->state->count = r->count = 0;
        break;
    case MB_AUDIT_MAP:
    case MB_AUDIT_UNMAP:
    case MB_AUDIT_PROTECT:
        plan(r, record);
        break;
    case MB_AUDIT_DONE:
    case MB_AUDIT_UNDONE:
        outcome(r, record);
        break;
    default:
        apply(r, record);
        break;
    }
}

int audit_replay(const char *path, struct audit_state *state, struct mb_audit_summary *sum,
                 char *text, size_t size)
{
    struct replay r = {.state = state, .text = text, .size = size};
    enum mb_err err;

    memset(state, 0, sizeof(*state));
    text[0] = 0;
    r.planned = calloc(PLANNED_MAX, sizeof(*r.planned));
    if (!r.planned)
        abort();
    err = mb_audit_read(path, visit, &r, sum);
    if (err && !text[0])
        snprintf(text, size, "%s", mb_error_detail());
    state->open_batches = r.count != 0;
    free(r.planned);
    if (text[0])
        audit_state_free(state);
    return text[0] != 0;
}

void audit_state_free(struct audit_state *state)
{
    free(state->page);
    *state = (struct audit_state){0};
}
