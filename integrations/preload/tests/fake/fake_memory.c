/* SPDX-License-Identifier: MIT */
/* fake_memory.c - A FAKE of libcuda (see fake_cuda.h): memory, copies, what an address is. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Everything under fake_lock. */
enum kind { BLOCK, POOLED, MANAGED, HOST, RESERVED, MAPPED };

struct range {
    struct range *next;
    enum kind kind;
    uint64_t at, bytes;
    struct handle *handle; /* of MAPPED */
    unsigned id;
};

struct handle {
    int file, device;
    uint64_t bytes;
    unsigned refs;
};

static struct range *ranges;
static uint64_t held;
static unsigned ids;
static int broken; /* set before calls that look at it */

uint64_t fake_cuda_held_bytes(void)
{
    return held;
}

void fake_cuda_break(int result)
{
    broken = result;
}

static uint64_t whole(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

/* fake_lock held. RESERVED ranges are found only if asked for. */
static struct range *find(uint64_t at, bool reserved)
{
    for (struct range *r = ranges; r; r = r->next) {
        if ((r->kind == RESERVED) == reserved && at >= r->at && at < r->at + r->bytes)
            return r;
    }
    return NULL;
}

/* fake_lock held */
static void add(enum kind kind, uint64_t at, uint64_t bytes, struct handle *handle)
{
    struct range *r = calloc(1, sizeof(*r));

    if (!r)
        abort();
    *r = (struct range){ranges, kind, at, bytes, handle, ++ids};
    ranges = r;
}

/* fake_lock held */
static void cut(struct range *range)
{
    struct range **at = &ranges;

    while (*at != range)
        at = &(*at)->next;
    *at = range->next;
    free(range);
}

static int take(cu_ptr *out, size_t bytes, enum kind kind)
{
    void *p;

    if (!fake_current())
        return FAKE_INVALID_CONTEXT;
    if (broken)
        return broken;
    if (!out || !bytes)
        return FAKE_INVALID_VALUE;
    if (kind != HOST && held + bytes > fake_options()->memory_bytes)
        return FAKE_OUT_OF_MEMORY;
    p = mmap(NULL, whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return FAKE_OUT_OF_MEMORY;
    pthread_mutex_lock(&fake_lock);
    add(kind, (uintptr_t)p, bytes, NULL);
    held += kind == HOST ? 0 : bytes;
    pthread_mutex_unlock(&fake_lock);
    *out = (uintptr_t)p;
    return FAKE_OK;
}

static int give(cu_ptr ptr, bool host)
{
    struct range *r;
    int result = FAKE_INVALID_VALUE;

    pthread_mutex_lock(&fake_lock);
    r = find(ptr, false);
    if (r && r->at == ptr && r->kind != MAPPED && (r->kind == HOST) == host) {
        munmap((void *)(uintptr_t)ptr, whole(r->bytes));
        held -= host ? 0 : r->bytes;
        cut(r);
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* ------------------------------------------------------------ plain memory */

FAKE(cuMemAlloc_v2, cu_ptr *ptr, size_t bytes)
{
    CALLED();
    return take(ptr, bytes, BLOCK);
}

FAKE(cuMemAllocPitch_v2, cu_ptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
    CALLED();
    *pitch = (width + 511) / 512 * 512;
    return element < 4 ? FAKE_INVALID_VALUE : take(ptr, *pitch * height, BLOCK);
}

FAKE(cuMemFree_v2, cu_ptr ptr)
{
    CALLED();
    fake_sync_all();
    if (broken)
        return broken;
    return ptr ? give(ptr, false) : FAKE_OK;
}

FAKE(cuMemAllocManaged, cu_ptr *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    CALLED();
    return take(ptr, bytes, MANAGED);
}

#define ASYNC(suffix)                                                                              \
    FAKE(cuMemAllocAsync##suffix, cu_ptr *ptr, size_t bytes, void *stream)                         \
    {                                                                                              \
        (void)stream;                                                                              \
        CALLED();                                                                                  \
        return take(ptr, bytes, POOLED);                                                           \
    }                                                                                              \
    FAKE(cuMemAllocFromPoolAsync##suffix, cu_ptr *ptr, size_t bytes, void *pool, void *stream)     \
    {                                                                                              \
        (void)stream;                                                                              \
        CALLED();                                                                                  \
        return pool ? take(ptr, bytes, POOLED) : FAKE_INVALID_VALUE;                               \
    }                                                                                              \
    FAKE(cuMemFreeAsync##suffix, cu_ptr ptr, void *stream)                                         \
    {                                                                                              \
        CALLED();                                                                                  \
        (void)fake_sync(stream); /* what the stream still does with it comes first */              \
        return give(ptr, false);                                                                   \
    }
ASYNC()
ASYNC(_ptsz)

FAKE(cuMemHostAlloc, void **ptr, size_t bytes, unsigned flags)
{
    cu_ptr at = 0;
    int result;

    (void)flags;
    CALLED();
    result = take(&at, bytes, HOST);
    *ptr = (void *)(uintptr_t)at;
    return result;
}

FAKE(cuMemFreeHost, void *ptr)
{
    CALLED();
    return give((uintptr_t)ptr, true);
}

FAKE(cuMemHostRegister_v2, void *ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    CALLED();
    return ptr && bytes ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemHostUnregister, void *ptr)
{
    CALLED();
    return ptr ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemHostGetDevicePointer_v2, cu_ptr *out, void *ptr, unsigned flags)
{
    (void)flags;
    CALLED();
    *out = (uintptr_t)ptr;
    return FAKE_OK;
}

FAKE(cuMemGetInfo_v2, size_t *free_bytes, size_t *total)
{
    CALLED();
    *total = fake_options()->memory_bytes;
    *free_bytes = *total - held;
    return fake_current() ? FAKE_OK : FAKE_INVALID_CONTEXT;
}

/* ------------------------------------------------------------ pools of the driver's */

static int default_pool[8], plain_pool;

FAKE(cuMemPoolCreate, void **pool, const void *props)
{
    CALLED();
    *pool = &plain_pool;
    return props ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemPoolDestroy, void *pool)
{
    CALLED();
    return pool == &plain_pool ? FAKE_OK : FAKE_INVALID_VALUE;
}

static bool is_pool(const void *pool)
{
    return pool == &plain_pool ||
           (pool >= (const void *)default_pool && pool < (const void *)(default_pool + 8));
}

FAKE(cuMemPoolSetAttribute, void *pool, int attribute, void *value)
{
    (void)attribute, (void)value;
    CALLED();
    return is_pool(pool) ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemPoolGetAttribute, void *pool, int attribute, void *value)
{
    (void)attribute, (void)value;
    CALLED();
    return is_pool(pool) ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemPoolTrimTo, void *pool, size_t keep)
{
    (void)keep;
    CALLED();
    return is_pool(pool) ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemPoolExportToShareableHandle, void *out, void *pool, int type, unsigned long long flags)
{
    (void)type, (void)flags;
    CALLED();
    *(int *)out = 7;
    return is_pool(pool) ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuDeviceGetDefaultMemPool, void **pool, int device)
{
    CALLED();
    *pool = &default_pool[device];
    return FAKE_OK;
}

FAKE(cuDeviceGetMemPool, void **pool, int device)
{
    CALLED();
    *pool = &default_pool[device];
    return FAKE_OK;
}

FAKE(cuDeviceSetMemPool, int device, void *pool)
{
    (void)device;
    CALLED();
    return is_pool(pool) ? FAKE_OK : FAKE_INVALID_VALUE;
}

/* ------------------------------------------------------------ addresses and handles */

FAKE(cuMemAddressReserve, cu_ptr *out, size_t bytes, size_t align, cu_ptr wanted,
     unsigned long long flags)
{
    uint64_t base, at;
    void *p;

    (void)wanted, (void)flags;
    CALLED();
    align = align < 4096 ? 4096 : align;
    p = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return FAKE_OUT_OF_MEMORY;
    base = (uintptr_t)p;
    at = (base + align - 1) / align * align;
    if (at > base)
        munmap(p, at - base);
    if (base + align > at)
        munmap((void *)(uintptr_t)(at + bytes), base + align - at);
    pthread_mutex_lock(&fake_lock);
    add(RESERVED, at, bytes, NULL);
    pthread_mutex_unlock(&fake_lock);
    *out = at;
    return FAKE_OK;
}

FAKE(cuMemAddressFree, cu_ptr ptr, size_t bytes)
{
    struct range *r;
    int result = FAKE_INVALID_VALUE;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    r = find(ptr, true);
    if (r && r->at == ptr && r->bytes == bytes) {
        munmap((void *)(uintptr_t)ptr, bytes);
        cut(r);
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(cuMemGetAllocationGranularity, size_t *bytes, const void *prop, int option)
{
    (void)option;
    CALLED();
    *bytes = (size_t)2 << 20;
    return prop ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemCreate, struct handle **out, size_t bytes, const int *prop, unsigned long long flags)
{
    struct handle *h;

    CALLED();
    if (broken)
        return broken;
    if (!prop || flags || !bytes || bytes % (2 << 20))
        return FAKE_INVALID_VALUE;
    if (held + bytes > fake_options()->memory_bytes)
        return FAKE_OUT_OF_MEMORY;
    h = calloc(1, sizeof(*h));
    if (!h)
        return FAKE_OUT_OF_MEMORY;
    *h = (struct handle){memfd_create("fake-cuda", MFD_CLOEXEC), prop[3], bytes, 1};
    if (h->file < 0 || ftruncate(h->file, (off_t)bytes)) {
        free(h);
        return FAKE_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&fake_lock);
    held += bytes;
    pthread_mutex_unlock(&fake_lock);
    *out = h;
    return FAKE_OK;
}

/* fake_lock held */
static void drop(struct handle *h)
{
    if (--h->refs)
        return;
    (void)close(h->file);
    held -= h->bytes;
    free(h);
}

FAKE(cuMemRelease, struct handle *h)
{
    CALLED();
    pthread_mutex_lock(&fake_lock);
    drop(h);
    pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

FAKE(cuMemMap, cu_ptr ptr, size_t bytes, size_t offset, struct handle *h, unsigned long long flags)
{
    int result = FAKE_INVALID_VALUE;
    void *at = (void *)(uintptr_t)ptr;

    (void)flags;
    CALLED();
    pthread_mutex_lock(&fake_lock);
    if (!find(ptr, false) && find(ptr, true) && !offset && bytes <= h->bytes &&
        mmap(at, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, h->file, 0) != MAP_FAILED) {
        add(MAPPED, ptr, bytes, h);
        h->refs++;
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* What a peer may do is not kept: whoever may use the memory at all may use it. */
FAKE(cuMemSetAccess, cu_ptr ptr, size_t bytes, const int *access, size_t count)
{
    int prot = access[2] == 3 ? PROT_READ | PROT_WRITE : access[2] == 1 ? PROT_READ : PROT_NONE;
    struct range *r;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    r = find(ptr, false);
    pthread_mutex_unlock(&fake_lock);
    if (count != 1 || !r || r->kind != MAPPED)
        return FAKE_INVALID_VALUE;
    if (access[1] != r->handle->device)
        return FAKE_OK;
    return mprotect((void *)(uintptr_t)ptr, bytes, prot) ? FAKE_INVALID_VALUE : FAKE_OK;
}

FAKE(cuMemUnmap, cu_ptr ptr, size_t bytes)
{
    int result = FAKE_INVALID_VALUE;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    for (uint64_t at = ptr; at < ptr + bytes;) {
        struct range *r = find(at, false);

        if (!r || r->kind != MAPPED || r->at != at)
            break;
        at += r->bytes;
        (void)mmap((void *)(uintptr_t)r->at, r->bytes, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        drop(r->handle);
        cut(r);
        result = at == ptr + bytes ? FAKE_OK : FAKE_INVALID_VALUE;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(cuMemRetainAllocationHandle, struct handle **out, void *address)
{
    struct range *r;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    r = find((uintptr_t)address, false);
    if (r && r->kind == MAPPED) {
        r->handle->refs++;
        *out = r->handle;
    }
    pthread_mutex_unlock(&fake_lock);
    return r && r->kind == MAPPED ? FAKE_OK : FAKE_INVALID_VALUE;
}

/* ------------------------------------------------------------ copies */

FAKE(cuMemcpyHtoD_v2, cu_ptr to, const void *from, size_t bytes)
{
    CALLED();
    fake_sync_all();
    memcpy((void *)(uintptr_t)to, from, bytes);
    return FAKE_OK;
}

FAKE(cuMemcpyDtoH_v2, void *to, cu_ptr from, size_t bytes)
{
    CALLED();
    fake_sync_all();
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return FAKE_OK;
}

FAKE(cuMemcpy, cu_ptr to, cu_ptr from, size_t bytes)
{
    CALLED();
    fake_sync_all();
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return FAKE_OK;
}

FAKE(cuMemsetD8_v2, cu_ptr ptr, unsigned char value, size_t bytes)
{
    CALLED();
    fake_sync_all();
    memset((void *)(uintptr_t)ptr, value, bytes);
    return FAKE_OK;
}

/* ------------------------------------------------------------ what an address is */

/* As the driver does, a mapping is told whole. */
static int attribute_of(void *out, int attribute, cu_ptr ptr)
{
    struct range *r;

    pthread_mutex_lock(&fake_lock);
    r = find(ptr, false);
    pthread_mutex_unlock(&fake_lock);
    if (!r)
        return FAKE_INVALID_VALUE;
    switch (attribute) {
    case 2: /* memory type */
        *(unsigned *)out = r->kind == HOST ? 1 : 2;
        return FAKE_OK;
    case 5: /* tokens */
        memset(out, 0x55, 16);
        return r->kind == HOST ? FAKE_INVALID_VALUE : FAKE_OK;
    case 7: /* buffer id */
        *(uint64_t *)out = r->id;
        return FAKE_OK;
    case 8: /* managed */
        *(unsigned char *)out = r->kind == MANAGED;
        return FAKE_OK;
    case 11: /* range */
        *(cu_ptr *)out = r->at;
        return FAKE_OK;
    case 12:
        *(size_t *)out = r->bytes;
        return FAKE_OK;
    default:
        return FAKE_INVALID_VALUE;
    }
}

FAKE(cuPointerGetAttribute, void *out, int attribute, cu_ptr ptr)
{
    CALLED();
    return attribute_of(out, attribute, ptr);
}

FAKE(cuPointerGetAttributes, unsigned count, int *attributes, void **out, cu_ptr ptr)
{
    CALLED();
    for (unsigned i = 0; i < count; i++)
        (void)attribute_of(out[i], attributes[i], ptr);
    return FAKE_OK;
}

FAKE(cuPointerSetAttribute, const void *value, int attribute, cu_ptr ptr)
{
    (void)attribute, (void)ptr;
    CALLED();
    return value ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemGetAddressRange_v2, cu_ptr *base, size_t *bytes, cu_ptr ptr)
{
    int result;

    CALLED();
    result = attribute_of(base, 11, ptr);
    return result ? FAKE_NOT_FOUND : attribute_of(bytes, 12, ptr);
}

FAKE(cuIpcGetMemHandle, void *handle, cu_ptr ptr)
{
    struct range *r;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    r = find(ptr, false);
    pthread_mutex_unlock(&fake_lock);
    memset(handle, 1, 64);
    return r && r->kind == BLOCK ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuMemGetHandleForAddressRange, void *handle, cu_ptr ptr, size_t bytes, int type,
     unsigned long long flags)
{
    (void)type, (void)flags;
    CALLED();
    *(int *)handle = 9;
    return bytes % 4096 || ptr % 4096 ? FAKE_INVALID_VALUE : FAKE_OK;
}
