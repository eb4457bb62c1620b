/* SPDX-License-Identifier: MIT */
/* pickle_document.c - the store of a pickle's values, and looking into them. */
#include "pickle_document.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHUNK_BYTES = 64 * 1024, /* of text; a longer text gets a chunk of its own */
    KEYS_MAX = 64,           /* dicts with more keys are not looked into: no record has as many */
};

/* One piece of the store for text. Owner: the document. */
struct pickle_text_chunk {
    struct pickle_text_chunk *next;
    size_t used, size; /* of bytes */
    char bytes[];
};

enum trace_status pickle_charge(struct pickle_document *document, uint64_t bytes)
{
    if (bytes > document->budget)
        return TRACE_BAD_INPUT;
    document->budget -= bytes;
    return TRACE_OK;
}

enum trace_status pickle_items_new(struct pickle_document *document, size_t room,
                                   struct pickle_items **out)
{
    struct pickle_items *items;
    enum trace_status status;

    if (room > UINT32_MAX / 2)
        return TRACE_BAD_INPUT;
    status = pickle_charge(document, sizeof(*items) + room * sizeof(*items->values));
    if (status)
        return status;
    items = calloc(1, sizeof(*items));
    if (!items)
        return TRACE_HOST_MEMORY;
    if (room) {
        items->values = malloc(room * sizeof(*items->values));
        if (!items->values) {
            free(items);
            return TRACE_HOST_MEMORY;
        }
    }
    items->capacity = (uint32_t)room;
    items->next_owned = document->owned;
    document->owned = items;
    *out = items;
    return TRACE_OK;
}

static enum trace_status items_grow(struct pickle_document *document, struct pickle_items *items,
                                    size_t need)
{
    size_t wanted = items->capacity ? items->capacity : 4;
    struct pickle_value *moved;
    enum trace_status status;

    while (wanted < need)
        wanted *= 2;
    status = pickle_charge(document, (wanted - items->capacity) * sizeof(*moved));
    if (status)
        return status;
    moved = realloc(items->values, wanted * sizeof(*moved));
    if (!moved)
        return TRACE_HOST_MEMORY;
    items->values = moved;
    items->capacity = (uint32_t)wanted;
    return TRACE_OK;
}

enum trace_status pickle_items_append(struct pickle_document *document, struct pickle_items *items,
                                      const struct pickle_value *values, size_t count)
{
    enum trace_status status;

    if (items->count + count > UINT32_MAX / 2)
        return TRACE_BAD_INPUT;
    if (items->count + count > items->capacity) {
        status = items_grow(document, items, items->count + count);
        if (status)
            return status;
    }
    if (count)
        memcpy(items->values + items->count, values, count * sizeof(*values));
    items->count += (uint32_t)count;
    return TRACE_OK;
}

enum trace_status pickle_text_new(struct pickle_document *document, size_t bytes, char **out)
{
    struct pickle_text_chunk *chunk = document->texts;

    if (!chunk || chunk->size - chunk->used < bytes) {
        size_t size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
        enum trace_status status = pickle_charge(document, sizeof(*chunk) + size);

        if (status)
            return status;
        chunk = malloc(sizeof(*chunk) + size);
        if (!chunk)
            return TRACE_HOST_MEMORY;
        chunk->used = 0;
        chunk->size = size;
        chunk->next = document->texts;
        document->texts = chunk;
    }
    *out = chunk->bytes + chunk->used;
    chunk->used += bytes;
    return TRACE_OK;
}

void pickle_free(struct pickle_document *document)
{
    if (!document)
        return;
    while (document->owned) {
        struct pickle_items *items = document->owned;

        document->owned = items->next_owned;
        free(items->values);
        free(items);
    }
    while (document->texts) {
        struct pickle_text_chunk *chunk = document->texts;

        document->texts = chunk->next;
        free(chunk);
    }
    free(document);
}

/* ------------------------------------------------------------------ looking into values */

const struct pickle_value *pickle_root(const struct pickle_document *document)
{
    return &document->root;
}

bool pickle_is_text(const struct pickle_value *value, const char *text)
{
    return value && value->kind == PICKLE_STR && value->length == strlen(text) &&
           !memcmp(value->u.text, text, value->length);
}

const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key)
{
    const struct pickle_items *items;

    if (!dict || dict->kind != PICKLE_DICT)
        return NULL;
    items = dict->u.items;
    if (items->count > 2 * KEYS_MAX)
        return NULL;
    for (uint32_t i = items->count; i >= 2; i -= 2)
        if (pickle_is_text(&items->values[i - 2], key))
            return &items->values[i - 1];
    return NULL;
}

bool pickle_unsigned(const struct pickle_value *value, uint64_t *out)
{
    if (!value || value->kind != PICKLE_INT || value->u.integer < 0)
        return false;
    *out = (uint64_t)value->u.integer;
    return true;
}

const char *pickle_kind_name(enum pickle_kind kind)
{
    static const char *const names[PICKLE_KIND_COUNT] = {
        "None",  "bool", "int",  "int beyond 64 bits", "float", "str", "bytes",
        "tuple", "list", "dict",
    };

    return names[kind];
}
