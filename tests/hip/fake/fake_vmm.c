/* SPDX-License-Identifier: MIT */
/* fake_vmm.c - A FAKE of libamdhip64 (see fake_hip.h): virtual memory management on a shared memory
 * file. */
#define _GNU_SOURCE
#include "fake_hip.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAKE(name, ...)                                                                            \
    FAKE_API int name(__VA_ARGS__);                                                                \
    int name(__VA_ARGS__)

/* All under fake_lock. */
struct handle {
    uint64_t offset, bytes; /* of the file */
    unsigned refs;          /* the caller's and one for each mapping */
    int device;             /* whose memory it is */
};

struct range {
    uint64_t va, bytes;
    struct handle *handle; /* of a mapping; NULL: a reservation */
};

struct ranges { /* sorted by address */
    struct range *at;
    size_t count, capacity;
};

static struct ranges reserved, mapped;
static int file = -1;
static uint8_t *taken; /* per granule of the file */
static uint64_t granules, held;

uint64_t fake_hip_held_bytes(void)
{
    return held;
}

uint64_t fake_hip_mappings(void)
{
    return mapped.count;
}

uint64_t fake_hip_reservations(void)
{
    return reserved.count;
}

static bool open_file(void)
{
    const struct fake_options *o = fake_options();

    if (file >= 0)
        return true;
    granules = o->memory_bytes / o->granularity;
    taken = calloc(granules, 1);
    file = memfd_create("fake-hip", MFD_CLOEXEC);
    return taken && file >= 0 && !ftruncate(file, (off_t)o->memory_bytes);
}

/* Index of the first range that ends above va. */
static size_t lookup(const struct ranges *r, uint64_t va)
{
    size_t lo = 0, hi = r->count;

    while (lo < hi) {
        size_t mid = (lo + hi) / 2;

        if (r->at[mid].va + r->at[mid].bytes > va)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

static void insert(struct ranges *r, struct range range)
{
    size_t i = lookup(r, range.va);

    if (r->count == r->capacity) {
        r->capacity = r->capacity ? 2 * r->capacity : 64;
        r->at = realloc(r->at, r->capacity * sizeof(*r->at));
        if (!r->at)
            abort();
    }
    for (size_t k = r->count++; k > i; k--)
        r->at[k] = r->at[k - 1];
    r->at[i] = range;
}

static void delete (struct ranges *r, size_t i)
{
    r->count--;
    for (; i < r->count; i++)
        r->at[i] = r->at[i + 1];
}

static bool overlaps(const struct ranges *r, uint64_t va, uint64_t bytes)
{
    size_t i = lookup(r, va);

    return i < r->count && r->at[i].va < va + bytes;
}

/* Index of the first of the mappings that cover the range exactly, or -1. */
static ptrdiff_t exact(uint64_t va, uint64_t bytes, size_t *count)
{
    size_t first = lookup(&mapped, va), i = first;
    uint64_t at = va;

    while (i < mapped.count && mapped.at[i].va == at && at < va + bytes)
        at += mapped.at[i++].bytes;
    *count = i - first;
    return at == va + bytes && *count ? (ptrdiff_t)first : -1;
}

bool fake_is_mapped(const void *address, size_t bytes)
{
    uint64_t va = (uintptr_t)address, end = va + bytes;
    size_t i = lookup(&mapped, va);

    while (i < mapped.count && mapped.at[i].va <= va && va < end)
        va = mapped.at[i].va + mapped.at[i].bytes, i++;
    return va >= end;
}

/* ------------------------------------------------------------ addresses */

static void *reserve_at(uint64_t bytes, uint64_t align)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *p = mmap(NULL, bytes + align, PROT_NONE, flags, -1, 0);
    uint64_t base = (uintptr_t)p, at = (base + align - 1) & ~(align - 1);

    if (p == MAP_FAILED)
        return NULL;
    if (at > base)
        munmap(p, at - base);
    munmap((void *)(uintptr_t)(at + bytes), base + align - at);
    return (void *)(uintptr_t)at;
}

FAKE(hipMemAddressReserve, void **out, size_t bytes, size_t align, void *wanted,
     unsigned long long flags)
{
    void *p;

    (void)wanted;
    FAKE_ENTER();
    if (!out || flags || !bytes || bytes % fake_options()->granularity || (align & (align - 1)))
        return FAKE_INVALID_VALUE;
    /* Older runtimes do not look at the alignment: an odd page shows who trusts them. */
    p = fake_options()->old ? reserve_at(bytes, 4096) : reserve_at(bytes, align ? align : 4096);
    if (!p)
        return FAKE_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    insert(&reserved, (struct range){(uintptr_t)p, bytes, NULL});
    pthread_mutex_unlock(&fake_lock);
    *out = p;
    return FAKE_OK;
}

FAKE(hipMemAddressFree, void *ptr, size_t bytes)
{
    uint64_t va = (uintptr_t)ptr;
    int result = FAKE_INVALID_VALUE;
    size_t i;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    i = lookup(&reserved, va);
    if (i < reserved.count && reserved.at[i].va == va && reserved.at[i].bytes == bytes &&
        !overlaps(&mapped, va, bytes)) {
        delete (&reserved, i);
        munmap(ptr, bytes);
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* ------------------------------------------------------------ handles */

struct prop {
    int type, handle_type;
    struct {
        int type, id;
    } location;
};

static bool good(const struct prop *prop)
{
    return prop && prop->type == 1 && prop->location.type == 1 && prop->location.id >= 0 &&
           prop->location.id < fake_options()->devices;
}

FAKE(hipMemGetAllocationGranularity, size_t *bytes, const struct prop *prop, int option)
{
    FAKE_ENTER();
    if (!bytes || !good(prop) || option < 0 || option > 1)
        return FAKE_INVALID_VALUE;
    *bytes = option ? (size_t)2 << 20 : fake_options()->granularity;
    return FAKE_OK;
}

/* fake_lock held. First fit. */
static int take_granules(uint64_t need, uint64_t *first)
{
    uint64_t run = 0;

    if (!open_file())
        return FAKE_OUT_OF_MEMORY;
    for (uint64_t g = 0; g < granules; g++) {
        run = taken[g] ? 0 : run + 1;
        if (run < need)
            continue;
        *first = g + 1 - need;
        for (uint64_t k = 0; k < need; k++)
            taken[*first + k] = 1;
        return FAKE_OK;
    }
    return FAKE_OUT_OF_MEMORY;
}

FAKE(hipMemCreate, struct handle **out, size_t bytes, const struct prop *prop,
     unsigned long long flags)
{
    uint64_t granularity = fake_options()->granularity, first = 0;
    struct handle *h;
    int result;

    FAKE_ENTER();
    if (!out || !bytes || flags || bytes % granularity || !good(prop))
        return FAKE_INVALID_VALUE;
    h = calloc(1, sizeof(*h));
    if (!h)
        return FAKE_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    result = take_granules(bytes / granularity, &first);
    if (!result) {
        *h = (struct handle){first * granularity, bytes, 1, prop->location.id};
        held += bytes;
    }
    pthread_mutex_unlock(&fake_lock);
    if (result)
        free(h);
    else
        *out = h;
    return result;
}

/* fake_lock held */
static void drop(struct handle *h)
{
    uint64_t granularity = fake_options()->granularity;

    if (--h->refs)
        return;
    for (uint64_t g = 0; g < h->bytes / granularity; g++)
        taken[h->offset / granularity + g] = 0;
    held -= h->bytes;
    free(h);
}

FAKE(hipMemRelease, struct handle *h)
{
    FAKE_ENTER();
    if (!h)
        return FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    drop(h);
    pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

/* ------------------------------------------------------------ mappings */

FAKE(hipMemMap, void *ptr, size_t bytes, size_t offset, struct handle *h, unsigned long long flags)
{
    uint64_t va = (uintptr_t)ptr;
    int result = FAKE_INVALID_VALUE;
    size_t i;

    FAKE_ENTER();
    if (!ptr || !h || offset || flags || !bytes || bytes % fake_options()->granularity)
        return FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    i = lookup(&reserved, va);
    if (i < reserved.count && reserved.at[i].va <= va &&
        va + bytes <= reserved.at[i].va + reserved.at[i].bytes && bytes <= h->bytes &&
        !overlaps(&mapped, va, bytes)) {
        /* No access yet. */
        result = mmap(ptr, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file, (off_t)h->offset) ==
                         MAP_FAILED
                     ? FAKE_OUT_OF_MEMORY
                     : FAKE_OK;
        if (!result) {
            insert(&mapped, (struct range){va, bytes, h});
            h->refs++;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

struct access {
    struct {
        int type, id;
    } location;
    int flags;
};

FAKE(hipMemSetAccess, void *ptr, size_t bytes, const struct access *access, size_t count)
{
    int prot = PROT_NONE, result = FAKE_INVALID_VALUE;
    size_t covered;
    ptrdiff_t first;

    FAKE_ENTER();
    if (!ptr || !bytes || !access || count != 1 || access->location.type != 1 ||
        access->location.id < 0 || access->location.id >= fake_options()->devices)
        return FAKE_INVALID_VALUE;
    if (access->flags == 1)
        prot = PROT_READ;
    else if (access->flags == 3)
        prot = PROT_READ | PROT_WRITE;
    else if (access->flags)
        return FAKE_INVALID_VALUE;
    pthread_mutex_lock(&fake_lock);
    first = exact((uintptr_t)ptr, bytes, &covered);
    /* All devices are this process: what protects is the owner's access, a peer's is only noted. */
    if (first >= 0 && mapped.at[first].handle->device != access->location.id)
        result = FAKE_OK;
    else if (first >= 0)
        result = mprotect(ptr, bytes, prot) ? FAKE_INVALID_VALUE : FAKE_OK;
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipMemUnmap, void *ptr, size_t bytes)
{
    int result = FAKE_INVALID_VALUE;
    ptrdiff_t first;
    size_t count;

    FAKE_ENTER();
    if (!ptr || !bytes)
        return FAKE_INVALID_VALUE;
    fake_sync_all();
    pthread_mutex_lock(&fake_lock);
    first = exact((uintptr_t)ptr, bytes, &count);
    if (first >= 0 && (count == 1 || !fake_options()->old)) {
        (void)mmap(ptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                   -1, 0);
        for (; count; count--) {
            drop(mapped.at[first].handle);
            delete (&mapped, (size_t)first);
        }
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}
