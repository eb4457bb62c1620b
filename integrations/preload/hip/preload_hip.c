/* SPDX-License-Identifier: MIT */
/*
 * preload_hip.c - HIP's allocation calls, served by MoonBright in programs that were not built for
 * it.
 *
 *     LD_PRELOAD=libmoonbright-hip.so program
 *
 * How       The names below stand in front of libamdhip64's. Device memory comes from MoonBright's
 *           device of the current HIP device, opened at the first allocation with the
 *           configuration in $MOONBRIGHT. What MoonBright does not serve (host, managed, array,
 *           signal memory) goes on to HIP, as does everything when MoonBright cannot open the
 *           device, after one line that says why; MOONBRIGHT_PRELOAD=off does so silently.
 * Meaning   hipFree waits for the device first, as HIP's own does; hipFreeAsync is in stream
 *           order. A pointer that is not ours goes to HIP.
 * Locking   MoonBright locks for itself; the table of devices is common/core.c's.
 * End       Devices stay open until the process ends: HIP's own exit handlers may run first.
 *
 * Tested against a fake of HIP; not run on AMD hardware.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

#include "core.h"

const struct core_vendor core_vendor = {"hip preload (not run on AMD hardware)", "HIP",
                                        "backend:hip"};

enum {
    HIP_OK = 0,
    HIP_INVALID_VALUE = 1,
    HIP_OUT_OF_MEMORY = 2,
    HIP_NOT_INITIALIZED = 3,
    HIP_NOT_FOUND = 500,
    HIP_ILLEGAL_ADDRESS = 700,
    HIP_NOT_SUPPORTED = 801,
    HIP_UNKNOWN = 999,
};

/* As HIP 6 lays it out; HIP 5 differs in the numbers of `type` only. */
struct attributes {
    int type;
    int device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
};

/* HIP's own functions. X(member, name, arguments) */
#define NEXT_LIST(X)                                                                               \
    X(get_device, hipGetDevice, (int *device))                                                     \
    X(version, hipRuntimeGetVersion, (int *version))                                               \
    X(malloc, hipMalloc, (void **ptr, size_t bytes))                                               \
    X(ext_malloc, hipExtMallocWithFlags, (void **ptr, size_t bytes, unsigned flags))               \
    X(free, hipFree, (void *ptr))                                                                  \
    X(malloc_async, hipMallocAsync, (void **ptr, size_t bytes, void *stream))                      \
    X(free_async, hipFreeAsync, (void *ptr, void *stream))                                         \
    X(malloc_pool, hipMallocFromPoolAsync, (void **ptr, size_t bytes, void *pool, void *stream))   \
    X(mem_info, hipMemGetInfo, (size_t * free, size_t * total))                                    \
    X(attributes, hipPointerGetAttributes, (struct attributes * out, const void *ptr))             \
    X(range, hipMemGetAddressRange, (void **base, size_t *bytes, void *ptr))                       \
    X(ptr_info, hipMemPtrGetInfo, (void *ptr, size_t *bytes))

static struct {
#define NEXT_MEMBER(member, name, args) int(*member) args;
    NEXT_LIST(NEXT_MEMBER)
#undef NEXT_MEMBER
} next;

static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ------------------------------------------------------------ HIP's own functions */

/* Behind us in the search order, or in the library itself if the program opened it. */
static void *find(const char *name)
{
    static const char *const files[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so"};
    void *function = dlsym(RTLD_NEXT, name);

    for (unsigned i = 0; !function && i < sizeof(files) / sizeof(files[0]); i++) {
        void *library = dlopen(files[i], RTLD_NOW | RTLD_NOLOAD);

        if (library)
            function = dlsym(library, name);
    }
    return function;
}

static void init(void)
{
#define NEXT_RESOLVE(member, name, args) *(void **)(&next.member) = find(#name);
    NEXT_LIST(NEXT_RESOLVE)
#undef NEXT_RESOLVE
}

/* Calls HIP's own; a function that it lacks is not supported. */
#define NEXT(member, ...) (next.member ? next.member(__VA_ARGS__) : HIP_NOT_SUPPORTED)

static int hip_of(enum mb_err err)
{
    switch (err) {
    case MB_OK:
        return HIP_OK;
    case MB_ERR_NO_MEMORY:
    case MB_ERR_NO_ADDRESS:
    case MB_ERR_LIMIT:
        return HIP_OUT_OF_MEMORY;
    case MB_ERR_INVALID:
    case MB_ERR_DOUBLE_FREE:
    case MB_ERR_NOT_FOUND:
        return HIP_INVALID_VALUE;
    case MB_ERR_NOT_SUPPORTED:
        return HIP_NOT_SUPPORTED;
    case MB_ERR_FORKED:
        return HIP_NOT_INITIALIZED;
    case MB_ERR_DEVICE_LOST:
        return HIP_ILLEGAL_ADDRESS;
    default:
        return HIP_UNKNOWN;
    }
}

/* ------------------------------------------------------------ devices */

/* MoonBright's device of the current HIP device; NULL: HIP serves. */
static mb_device current(void)
{
    int ordinal = 0;

    pthread_once(&once, init);
    if ((core_modes() & CORE_OFF) || core_inside() || NEXT(get_device, &ordinal))
        return NULL;
    return core_device(ordinal);
}

/* The device that knows the pointer; NULL: none of ours. */
static mb_device owner(const void *ptr, struct mb_pointer_info *info, int *ordinal)
{
    pthread_once(&once, init);
    return core_owner(ptr, info, ordinal);
}

/* ------------------------------------------------------------ the names */

#define EXPORT __attribute__((visibility("default")))
#define HIP(name, ...)                                                                             \
    EXPORT int name(__VA_ARGS__);                                                                  \
    int name(__VA_ARGS__)

static int take(mb_device dev, void **ptr, size_t bytes, void *stream, bool async)
{
    if (!ptr)
        return HIP_INVALID_VALUE;
    if (!bytes) {
        *ptr = NULL;
        return HIP_OK;
    }
    return hip_of(async ? mb_malloc_async(dev, bytes, stream, ptr) : mb_malloc(dev, bytes, ptr));
}

HIP(hipMalloc, void **ptr, size_t bytes)
{
    mb_device dev = current();

    return dev ? take(dev, ptr, bytes, NULL, false) : NEXT(malloc, ptr, bytes);
}

/* Flags ask for kinds of memory that only HIP has. */
HIP(hipExtMallocWithFlags, void **ptr, size_t bytes, unsigned flags)
{
    mb_device dev = flags ? NULL : current();

    pthread_once(&once, init);
    return dev ? take(dev, ptr, bytes, NULL, false) : NEXT(ext_malloc, ptr, bytes, flags);
}

HIP(hipMallocAsync, void **ptr, size_t bytes, void *stream)
{
    mb_device dev = current();

    return dev ? take(dev, ptr, bytes, stream, true) : NEXT(malloc_async, ptr, bytes, stream);
}

/* Pools of the program keep their meaning as limits and statistics of HIP's; the memory is
 * MoonBright's. */
HIP(hipMallocFromPoolAsync, void **ptr, size_t bytes, void *pool, void *stream)
{
    mb_device dev = current();

    return dev ? take(dev, ptr, bytes, stream, true) : NEXT(malloc_pool, ptr, bytes, pool, stream);
}

HIP(hipFree, void *ptr)
{
    struct mb_pointer_info info;
    int ordinal;
    mb_device dev = owner(ptr, &info, &ordinal);
    enum mb_err err;

    if (!dev)
        return NEXT(free, ptr);
    err = mb_device_sync(dev);
    return hip_of(err ? err : mb_free(dev, ptr));
}

HIP(hipFreeAsync, void *ptr, void *stream)
{
    struct mb_pointer_info info;
    int ordinal;
    mb_device dev = owner(ptr, &info, &ordinal);

    return dev ? hip_of(mb_free_async(dev, ptr, stream)) : NEXT(free_async, ptr, stream);
}

/* What MoonBright holds and nobody uses is free for the program. */
HIP(hipMemGetInfo, size_t *free_bytes, size_t *total)
{
    mb_device dev = current();
    struct mb_stats stats;
    int result = NEXT(mem_info, free_bytes, total);

    if (!result && dev && free_bytes && !mb_stats_get(dev, &stats))
        *free_bytes += stats.reserved_bytes - stats.allocated_bytes - stats.overhead_bytes;
    return result;
}

HIP(hipPointerGetAttributes, struct attributes *out, const void *ptr)
{
    struct mb_pointer_info info;
    int ordinal = 0, version = 0;
    mb_device dev = owner(ptr, &info, &ordinal);
    int result = NEXT(attributes, out, ptr);

    /* HIP knows the addresses as mappings of its own, unless it is too old for that. */
    if (!result || !dev || !out)
        return result;
    (void)NEXT(version, &version);
    *out = (struct attributes){.type = version >= 60000000 ? 2 : 1,
                               .device = ordinal,
                               .device_pointer = (void *)(uintptr_t)ptr};
    return HIP_OK;
}

/* HIP would tell the mapping, which is one frame or many blocks. */
HIP(hipMemGetAddressRange, void **base, size_t *bytes, void *ptr)
{
    struct mb_pointer_info info;
    int ordinal;

    if (!owner(ptr, &info, &ordinal))
        return NEXT(range, base, bytes, ptr);
    if (base)
        *base = info.base;
    if (bytes)
        *bytes = info.bytes;
    return HIP_OK;
}

HIP(hipMemPtrGetInfo, void *ptr, size_t *bytes)
{
    struct mb_pointer_info info;
    int ordinal;

    if (!owner(ptr, &info, &ordinal))
        return NEXT(ptr_info, ptr, bytes);
    if (!bytes)
        return HIP_INVALID_VALUE;
    *bytes = info.bytes;
    return HIP_OK;
}
