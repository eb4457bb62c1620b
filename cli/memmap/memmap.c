/* SPDX-License-Identifier: MIT */
#include "memmap.h"

#include <stdlib.h>
#include <string.h>

void memmap_free(struct memmap *map)
{
    for (unsigned i = 0; i < map->count; i++) {
        free(map->moments[i].pieces);
        free(map->moments[i].pages);
    }
    *map = (struct memmap){.count = 0};
}

struct memmap_moment *memmap_moment(struct memmap *map, uint64_t when, const char *label)
{
    struct memmap_moment *m;

    if (map->count == MEMMAP_MOMENTS_MAX)
        return NULL;
    m = &map->moments[map->count++];
    *m = (struct memmap_moment){.when = when};
    snprintf(m->label, sizeof(m->label), "%s", label);
    return m;
}

void memmap_add(struct memmap *map, struct memmap_moment *m, const struct memmap_piece *piece)
{
    if (m->count) {
        struct memmap_piece *last = &m->pieces[m->count - 1];

        if (last->who == piece->who && last->at + last->bytes == piece->at &&
            last->flags == piece->flags) {
            last->bytes += piece->bytes;
            return;
        }
    }
    if (m->count == m->capacity) {
        size_t capacity = m->capacity ? 2 * m->capacity : 256;
        struct memmap_piece *larger = realloc(m->pieces, capacity * sizeof(*larger));

        if (!larger) {
            map->failed = true;
            return;
        }
        m->pieces = larger;
        m->capacity = capacity;
    }
    m->pieces[m->count++] = *piece;
}

static int by_place(const void *a, const void *b)
{
    const struct memmap_piece *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->who < y->who ? -1 : x->who > y->who;
}

static int by_number(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

void memmap_finish(struct memmap *map, struct memmap_moment *m)
{
    (void)map;
    if (m->count)
        qsort(m->pieces, m->count, sizeof(*m->pieces), by_place);
    if (m->page_count)
        qsort(m->pages, m->page_count, sizeof(*m->pages), by_number);
}

/* ------------------------------------------------------------ numbers by number */

#define EMPTY UINT64_MAX
/* What the key of a removed entry becomes: no number looked for is that large. */
#define REMOVED (UINT64_MAX - 1)

static size_t slot_of(const struct memmap_table *t, uint64_t key)
{
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (t->capacity - 1);

    while (t->keys[at] != EMPTY && t->keys[at] != key)
        at = (at + 1) & (t->capacity - 1);
    return at;
}

static bool grow(struct memmap_table *t)
{
    struct memmap_table larger = {.capacity = 1024};

    while (larger.capacity < 4 * t->count + 4)
        larger.capacity *= 2;
    larger.keys = malloc(larger.capacity * sizeof(*larger.keys));
    larger.values = malloc(larger.capacity * sizeof(*larger.values));
    if (!larger.keys || !larger.values) {
        free(larger.keys);
        free(larger.values);
        return false;
    }
    for (size_t i = 0; i < larger.capacity; i++)
        larger.keys[i] = EMPTY;
    for (size_t i = 0; i < t->capacity; i++) {
        size_t at;

        if (t->keys[i] == EMPTY || t->keys[i] == REMOVED)
            continue;
        at = slot_of(&larger, t->keys[i]);
        larger.keys[at] = t->keys[i];
        larger.values[at] = t->values[i];
        larger.count++;
    }
    larger.used = larger.count;
    memmap_clear(t);
    *t = larger;
    return true;
}

bool memmap_put(struct memmap_table *t, uint64_t key, uint64_t value)
{
    size_t at;

    if (key >= REMOVED)
        return true; /* no place and no address is that large */
    if (2 * (t->used + 1) > t->capacity && !grow(t))
        return false;
    at = slot_of(t, key);
    if (t->keys[at] == EMPTY) {
        t->count++;
        t->used++;
    }
    t->keys[at] = key;
    t->values[at] = value;
    return true;
}

bool memmap_get(const struct memmap_table *t, uint64_t key, uint64_t *value)
{
    size_t at;

    if (!t->capacity || key >= REMOVED)
        return false;
    at = slot_of(t, key);
    if (t->keys[at] == EMPTY)
        return false;
    *value = t->values[at];
    return true;
}

void memmap_remove(struct memmap_table *t, uint64_t key)
{
    size_t at;

    if (!t->capacity || key >= REMOVED)
        return;
    at = slot_of(t, key);
    if (t->keys[at] == EMPTY)
        return;
    t->keys[at] = REMOVED;
    t->count--;
}

bool memmap_each(const struct memmap_table *t, size_t *at, uint64_t *key, uint64_t *value)
{
    for (; *at < t->capacity; (*at)++) {
        if (t->keys[*at] == EMPTY || t->keys[*at] == REMOVED)
            continue;
        *key = t->keys[*at];
        *value = t->values[(*at)++];
        return true;
    }
    return false;
}

void memmap_clear(struct memmap_table *t)
{
    free(t->keys);
    free(t->values);
    *t = (struct memmap_table){.keys = NULL};
}
