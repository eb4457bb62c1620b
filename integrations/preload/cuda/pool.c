/* SPDX-License-Identifier: MIT */
/*
 * pool.c - memory pools.
 *
 * How       A handle of ours is the address of a record in a list; any other is the driver's. Each
 *           device has one for its default pool, which opens the device only when it is used.
 *           Pools that other processes shall import, and pools of host memory, are the driver's.
 * Locking   `lock` guards the list, its handles and the current pools. Records are used again,
 *           never freed, as a call may still have one whose pool another thread destroys; what they
 *           hold is then refused by MoonBright.
 * Meaning   As CUDA's, but a destroyed pool whose blocks live is kept until they are gone and the
 *           next pool call comes; peers have no access.
 */
#include "cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

struct cuda_pool {
    struct cuda_pool *next; /* lock */
    _Atomic(mb_pool) pool;  /* NULL: the default one, or gone with its context; set under lock */
    _Atomic int ordinal;    /* of `defaults`: its index; set under lock */
    bool doomed;            /* destroyed by the program; lock */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_pool *created; /* lock */
static struct cuda_pool *spare;   /* lock */
static struct cuda_pool defaults[CORE_DEVICES];
static cu_pool current[CORE_DEVICES]; /* NULL: the default one; lock */

static cu_pool handle_of(struct cuda_pool *pool)
{
    return (cu_pool)(void *)pool;
}

static bool is_default(const struct cuda_pool *pool)
{
    uintptr_t at = (uintptr_t)pool, first = (uintptr_t)defaults;

    return at >= first && at < first + sizeof(defaults) && (at - first) % sizeof(defaults[0]) == 0;
}

/* lock held */
static struct cuda_pool *find(cu_pool handle)
{
    struct cuda_pool *at = (struct cuda_pool *)(void *)handle;

    if (is_default(at))
        return at;
    for (struct cuda_pool *pool = created; pool; pool = pool->next) {
        if (handle_of(pool) == handle && !pool->doomed)
            return pool;
    }
    return NULL;
}

struct cuda_pool *cuda_pool_of(cu_pool handle)
{
    struct cuda_pool *pool;

    if (!handle || core_inside() || core_forked())
        return NULL;
    pthread_mutex_lock(&lock);
    pool = find(handle);
    pthread_mutex_unlock(&lock);
    return pool;
}

mb_pool cuda_pool_open(struct cuda_pool *pool)
{
    mb_device dev;
    mb_pool found = NULL;

    if (!is_default(pool))
        return pool->pool;
    dev = core_device(cuda_pool_device(pool));
    if (dev) {
        core_enter();
        if (mb_pool_default(dev, &found))
            found = NULL;
        core_leave();
    }
    return found;
}

int cuda_pool_device(const struct cuda_pool *pool)
{
    return is_default(pool) ? (int)(pool - defaults) : pool->ordinal;
}

cu_pool cuda_pool_vendor(struct cuda_pool *pool, int *result)
{
    cu_pool handle = NULL;

    /* One that went with its context is nobody's. */
    *result = is_default(pool) || pool->pool
                  ? REAL(device_default_pool, &handle, cuda_pool_device(pool))
                  : CU_INVALID_VALUE;
    return handle;
}

struct cuda_pool *cuda_pool_current(int ordinal, bool *vendor)
{
    struct cuda_pool *pool = NULL;
    cu_pool handle;

    pthread_mutex_lock(&lock);
    handle = current[ordinal];
    if (handle)
        pool = find(handle);
    pthread_mutex_unlock(&lock);
    *vendor = handle && !pool;
    return pool;
}

/* ------------------------------------------------------------ create, destroy */

/* lock held: tries the pools that blocks kept alive. */
static void bury(void)
{
    for (struct cuda_pool **at = &created; *at;) {
        struct cuda_pool *pool = *at;
        bool gone = pool->doomed && (!pool->pool || !mb_pool_destroy(pool->pool));

        if (!gone) {
            at = &pool->next;
            continue;
        }
        *at = pool->next;
        pool->next = spare;
        spare = pool;
    }
}

static void bury_all(void)
{
    core_enter();
    pthread_mutex_lock(&lock);
    bury();
    pthread_mutex_unlock(&lock);
    core_leave();
}

void cuda_pools_forget(int ordinal)
{
    pthread_mutex_lock(&lock);
    for (struct cuda_pool *pool = created; pool; pool = pool->next) {
        if (pool->ordinal == ordinal)
            pool->pool = NULL;
    }
    current[ordinal] = NULL;
    pthread_mutex_unlock(&lock);
}

static bool ours_to_create(const struct cu_pool_props *props)
{
    return props && props->alloc_type == CU_ALLOCATION_PINNED && !props->handle_types &&
           props->location.type == CU_LOCATION_DEVICE && core_serves(props->location.id);
}

static enum mb_err make(mb_device dev, const struct cu_pool_props *props, mb_pool *out)
{
    mb_pool pool = NULL;
    enum mb_err err;

    core_enter();
    err = mb_pool_create(dev, &pool);
    if (!err && props->max_bytes)
        err = mb_pool_set(pool, MB_POOL_LIMIT, props->max_bytes);
    if (err && pool)
        (void)mb_pool_destroy(pool);
    core_leave();
    if (!err)
        *out = pool;
    return err;
}

/* A record in the list; NULL: no host memory. */
static struct cuda_pool *enter(mb_pool ours, int ordinal)
{
    struct cuda_pool *pool;

    pthread_mutex_lock(&lock);
    pool = spare;
    if (pool)
        spare = pool->next;
    else
        pool = calloc(1, sizeof(*pool));
    if (pool) {
        pool->pool = ours;
        pool->ordinal = ordinal;
        pool->doomed = false;
        pool->next = created;
        created = pool;
    }
    pthread_mutex_unlock(&lock);
    return pool;
}

CUDA(cuMemPoolCreate, cu_pool *out, const struct cu_pool_props *props)
{
    mb_device dev = out && ours_to_create(props) ? core_device(props->location.id) : NULL;
    struct cuda_pool *pool;
    mb_pool ours = NULL;
    enum mb_err err;

    if (!dev)
        return REAL(pool_create, out, props);
    bury_all();
    err = make(dev, props, &ours);
    if (err)
        return cuda_result(err);
    pool = enter(ours, props->location.id);
    if (!pool) {
        core_enter();
        (void)mb_pool_destroy(ours);
        core_leave();
        return CU_OUT_OF_MEMORY;
    }
    *out = handle_of(pool);
    return CU_OK;
}

/* lock held */
static bool is_dead(cu_pool handle)
{
    for (const struct cuda_pool *pool = spare; pool; pool = pool->next) {
        if ((const void *)pool == (const void *)handle)
            return true;
    }
    for (const struct cuda_pool *pool = created; pool; pool = pool->next) {
        if ((const void *)pool == (const void *)handle)
            return pool->doomed;
    }
    return false;
}

/* lock held. A device whose current pool it was goes back to its default one, as with the driver.
 * The lock is held across the driver's call: the handle may be another pool's right after it. */
static int destroy(cu_pool handle)
{
    struct cuda_pool *pool = handle ? find(handle) : NULL;
    int result = CU_OK;

    if (pool ? is_default(pool) : is_dead(handle))
        return CU_INVALID_VALUE;
    if (pool)
        pool->doomed = true;
    else
        result = REAL(pool_destroy, handle);
    for (int i = 0; !result && i < CORE_DEVICES; i++) {
        if (current[i] == handle)
            current[i] = NULL;
    }
    return result;
}

/* Of several threads that destroy a pool at once, one does. */
CUDA(cuMemPoolDestroy, cu_pool handle)
{
    int result;

    if (core_inside() || core_forked())
        return REAL(pool_destroy, handle);
    pthread_mutex_lock(&lock);
    result = destroy(handle);
    pthread_mutex_unlock(&lock);
    bury_all();
    return result;
}

bool cuda_pool_dead(cu_pool handle)
{
    bool dead;

    if (!handle || core_inside() || core_forked())
        return false;
    pthread_mutex_lock(&lock);
    dead = is_dead(handle);
    pthread_mutex_unlock(&lock);
    return dead;
}

/* Who serves `pool` (NULL: no handle of ours): *ours, or with NULL there the vendor, by *handle. */
static int route(struct cuda_pool *pool, cu_pool *handle, mb_pool *ours)
{
    int result = CU_OK;

    if (!pool && cuda_pool_dead(*handle))
        return CU_INVALID_VALUE;
    *ours = pool ? cuda_pool_open(pool) : NULL;
    if (pool && !*ours)
        *handle = cuda_pool_vendor(pool, &result);
    return result;
}

CUDA(cuMemPoolTrimTo, cu_pool handle, size_t keep)
{
    struct cuda_pool *pool = cuda_pool_of(handle);
    mb_pool ours;
    int result = route(pool, &handle, &ours);
    enum mb_err err;

    if (result)
        return result;
    if (!ours)
        return REAL(pool_trim, handle, keep);
    core_enter();
    err = mb_pool_trim(ours, keep);
    core_leave();
    return cuda_result(err);
}

/* ------------------------------------------------------------ attributes */

static const struct {
    enum mb_pool_attr attr;
    bool word; /* 64 bits, otherwise an int */
} attributes[] = {
    [1] = {MB_POOL_REUSE_FOLLOW_EVENTS, false}, [2] = {MB_POOL_REUSE_OPPORTUNISTIC, false},
    [3] = {MB_POOL_REUSE_INTERNAL_DEPS, false}, [4] = {MB_POOL_RELEASE_THRESHOLD, true},
    [5] = {MB_POOL_RESERVED_CURRENT, true},     [6] = {MB_POOL_RESERVED_HIGH, true},
    [7] = {MB_POOL_USED_CURRENT, true},         [8] = {MB_POOL_USED_HIGH, true},
};
enum { ATTRIBUTES = sizeof(attributes) / sizeof(attributes[0]) };

CUDA(cuMemPoolSetAttribute, cu_pool handle, int attribute, void *value)
{
    struct cuda_pool *pool = cuda_pool_of(handle);
    mb_pool ours;
    int result = route(pool, &handle, &ours);
    uint64_t number;
    enum mb_err err;

    if (result)
        return result;
    if (!ours)
        return REAL(pool_set, handle, attribute, value);
    if (!value || attribute < 1 || attribute >= ATTRIBUTES)
        return CU_INVALID_VALUE;
    number = attributes[attribute].word ? *(uint64_t *)value : (uint64_t)(*(int *)value != 0);
    core_enter();
    err = mb_pool_set(ours, attributes[attribute].attr, number);
    core_leave();
    return cuda_result(err);
}

/* Attributes that say how the pool was made; CUDA 13. */
static int get_fixed(const struct cuda_pool *pool, mb_pool ours, int attribute, void *value)
{
    enum { ALLOC_TYPE = 9, HANDLE_TYPES, LOCATION_ID, LOCATION_TYPE, MAX_BYTES, DECOMPRESS };
    uint64_t limit = 0;

    switch (attribute) {
    case ALLOC_TYPE:
        *(int *)value = CU_ALLOCATION_PINNED;
        return CU_OK;
    case HANDLE_TYPES:
    case DECOMPRESS:
        *(int *)value = 0;
        return CU_OK;
    case LOCATION_ID:
        *(int *)value = cuda_pool_device(pool);
        return CU_OK;
    case LOCATION_TYPE:
        *(int *)value = CU_LOCATION_DEVICE;
        return CU_OK;
    case MAX_BYTES:
        core_enter();
        (void)mb_pool_get(ours, MB_POOL_LIMIT, &limit);
        core_leave();
        *(uint64_t *)value = limit;
        return CU_OK;
    default:
        return CU_INVALID_VALUE;
    }
}

CUDA(cuMemPoolGetAttribute, cu_pool handle, int attribute, void *value)
{
    struct cuda_pool *pool = cuda_pool_of(handle);
    mb_pool ours;
    int result = route(pool, &handle, &ours);
    uint64_t number = 0;
    enum mb_err err;

    if (result)
        return result;
    if (!ours)
        return REAL(pool_get, handle, attribute, value);
    if (!value || attribute < 1)
        return CU_INVALID_VALUE;
    if (attribute >= ATTRIBUTES)
        return get_fixed(pool, ours, attribute, value);
    core_enter();
    err = mb_pool_get(ours, attributes[attribute].attr, &number);
    core_leave();
    if (err)
        return cuda_result(err);
    if (attributes[attribute].word)
        *(uint64_t *)value = number;
    else
        *(int *)value = (int)number;
    return CU_OK;
}

/* ------------------------------------------------------------ access, export */

CUDA(cuMemPoolSetAccess, cu_pool handle, const struct cu_access *list, size_t count)
{
    struct cuda_pool *pool = cuda_pool_of(handle);

    if (!pool)
        return REAL(pool_set_access, handle, list, count);
    for (size_t i = 0; list && i < count; i++) {
        bool own = list[i].location.type == CU_LOCATION_DEVICE &&
                   list[i].location.id == cuda_pool_device(pool);

        if (own ? list[i].flags == CU_ACCESS_READ_WRITE : !list[i].flags)
            continue;
        if (!own)
            core_note(
                "preload: cuMemPoolSetAccess: pool %p is MoonBright's, whose memory is mapped "
                "for device %d only; for peers, create the pool with a handle type, so that "
                "it is the driver's, or set MOONBRIGHT_PRELOAD=off",
                (void *)handle, cuda_pool_device(pool));
        return own ? CU_INVALID_VALUE : CU_NOT_SUPPORTED;
    }
    return list || !count ? CU_OK : CU_INVALID_VALUE;
}

CUDA(cuMemPoolGetAccess, int *flags, cu_pool handle, struct cu_location *location)
{
    struct cuda_pool *pool = cuda_pool_of(handle);

    if (!pool)
        return REAL(pool_get_access, flags, handle, location);
    if (!flags || !location)
        return CU_INVALID_VALUE;
    *flags = location->type == CU_LOCATION_DEVICE && location->id == cuda_pool_device(pool)
                 ? CU_ACCESS_READ_WRITE
                 : 0;
    return CU_OK;
}

CUDA(cuMemPoolExportToShareableHandle, void *out, cu_pool handle, int type, uint64_t flags)
{
    if (!cuda_pool_of(handle))
        return REAL(pool_export, out, handle, type, flags);
    core_note("cuMemPoolExportToShareableHandle: pool %p was created without a handle "
              "type, so it cannot be shared; name the type in its properties",
              (void *)handle);
    return CU_INVALID_VALUE;
}

/* ------------------------------------------------------------ which pool a device uses */

CUDA(cuDeviceGetDefaultMemPool, cu_pool *out, int device)
{
    /* The driver judges the device. */
    int result = REAL(device_default_pool, out, device);

    if (!result && out && core_serves(device))
        *out = handle_of(&defaults[device]);
    return result;
}

CUDA(cuDeviceGetMemPool, cu_pool *out, int device)
{
    cu_pool handle;
    int result = REAL(device_pool, out, device);

    if (result || !out || !core_serves(device))
        return result;
    pthread_mutex_lock(&lock);
    handle = current[device];
    pthread_mutex_unlock(&lock);
    *out = handle ? handle : handle_of(&defaults[device]);
    return CU_OK;
}

/* lock held: no pool is destroyed between the look and the entry. */
static int set_current(int device, cu_pool handle)
{
    struct cuda_pool *pool = handle ? find(handle) : NULL;
    int result = CU_OK;

    if (pool ? cuda_pool_device(pool) != device : is_dead(handle))
        return CU_INVALID_VALUE;
    if (!pool)
        result = REAL(device_set_pool, device, handle);
    if (!result)
        current[device] = pool && is_default(pool) ? NULL : handle;
    return result;
}

CUDA(cuDeviceSetMemPool, int device, cu_pool handle)
{
    int result;

    if (device < 0 || device >= CORE_DEVICES || core_inside() || core_forked())
        return REAL(device_set_pool, device, handle);
    pthread_mutex_lock(&lock);
    result = set_current(device, handle);
    pthread_mutex_unlock(&lock);
    return result;
}

static bool of_device(const struct cu_location *location, int type)
{
    return location && location->type == CU_LOCATION_DEVICE && type == CU_ALLOCATION_PINNED;
}

CUDA(cuMemGetDefaultMemPool, cu_pool *out, struct cu_location *location, int type)
{
    return of_device(location, type) ? cuDeviceGetDefaultMemPool(out, location->id)
                                     : REAL(default_pool, out, location, type);
}

CUDA(cuMemGetMemPool, cu_pool *out, struct cu_location *location, int type)
{
    return of_device(location, type) ? cuDeviceGetMemPool(out, location->id)
                                     : REAL(location_pool, out, location, type);
}

CUDA(cuMemSetMemPool, struct cu_location *location, int type, cu_pool handle)
{
    return of_device(location, type) ? cuDeviceSetMemPool(location->id, handle)
                                     : REAL(set_location_pool, location, type, handle);
}
