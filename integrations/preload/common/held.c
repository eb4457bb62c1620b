/* SPDX-License-Identifier: MIT */
/*
 * held.c - see held.h.
 *
 * How       Open addressing in shards; a removal moves later entries of its run back, so there are
 *           no tombstones. At most half of a shard's places are taken.
 * Locking   One spin lock per shard, held for a few loads; a growing shard holds it longer.
 */
#include "held.h"

#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

enum { SHARDS = 64, FIRST_PLACES = 64 };

struct entry {
    uint64_t address; /* 0: free place */
    int ordinal;
};

static struct shard {
    atomic_bool locked;
    struct entry *entries;
    size_t places, count; /* a power of two */
} shards[SHARDS];

static void lock(struct shard *s)
{
    while (atomic_exchange_explicit(&s->locked, true, memory_order_acquire))
        sched_yield();
}

static void unlock(struct shard *s)
{
    atomic_store_explicit(&s->locked, false, memory_order_release);
}

/* Blocks begin on 512 bytes. */
static uint64_t hash(uint64_t address)
{
    return (address >> 9) * 0x9e3779b97f4a7c15u;
}

static struct shard *lock_shard(uint64_t address)
{
    struct shard *s = &shards[hash(address) >> 58];

    lock(s);
    return s;
}

/* s locked. The place of the address, or the free one where it would go. */
static size_t place_of(const struct shard *s, uint64_t address)
{
    size_t at = (hash(address) >> 16) & (s->places - 1);

    while (s->entries[at].address && s->entries[at].address != address)
        at = (at + 1) & (s->places - 1);
    return at;
}

/* s locked */
static bool grow(struct shard *s)
{
    struct shard wider = {.places = s->places ? 2 * s->places : FIRST_PLACES};

    wider.entries = calloc(wider.places, sizeof(*wider.entries));
    if (!wider.entries)
        return false;
    for (size_t i = 0; i < s->places; i++) {
        if (s->entries[i].address)
            wider.entries[place_of(&wider, s->entries[i].address)] = s->entries[i];
    }
    free(s->entries);
    s->entries = wider.entries;
    s->places = wider.places;
    return true;
}

bool held_add(uint64_t address, int ordinal)
{
    struct shard *s = lock_shard(address);
    bool room = 2 * s->count < s->places || grow(s);

    if (room) {
        struct entry *e = &s->entries[place_of(s, address)];

        s->count += !e->address;
        *e = (struct entry){address, ordinal};
    }
    unlock(s);
    return room;
}

/* s locked. An entry behind the hole moves into it unless its own place lies between. */
static void remove_at(struct shard *s, size_t hole)
{
    size_t mask = s->places - 1;

    for (size_t at = (hole + 1) & mask; s->entries[at].address; at = (at + 1) & mask) {
        size_t own = (hash(s->entries[at].address) >> 16) & mask;

        if (((at - own) & mask) >= ((at - hole) & mask)) {
            s->entries[hole] = s->entries[at];
            hole = at;
        }
    }
    s->entries[hole].address = 0;
    s->count--;
}

static int find(uint64_t address, bool take)
{
    struct shard *s = lock_shard(address);
    int ordinal = -1;

    if (address && s->places) {
        size_t at = place_of(s, address);

        if (s->entries[at].address)
            ordinal = s->entries[at].ordinal;
        if (take && ordinal >= 0)
            remove_at(s, at);
    }
    unlock(s);
    return ordinal;
}

int held_take(uint64_t address)
{
    return find(address, true);
}

int held_find(uint64_t address)
{
    return find(address, false);
}

void held_forget(int ordinal)
{
    for (unsigned i = 0; i < SHARDS; i++) {
        struct shard *s = &shards[i];

        lock(s);
        for (size_t at = 0; at < s->places;) {
            /* What a removal moves here has to be looked at too. */
            if (s->entries[at].address && s->entries[at].ordinal == ordinal)
                remove_at(s, at);
            else
                at++;
        }
        unlock(s);
    }
}
