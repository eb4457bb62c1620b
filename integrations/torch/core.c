/* SPDX-License-Identifier: MIT */
/*
 * core.c - devices, malloc and free of the PyTorch plug-in.
 *
 * How       PyTorch names a device by its number and keeps size, device and stream of every block,
 *           so a block needs no record here. An allocation goes to a graph's pool if a collection
 *           is under way that wants it, else to a sleeper's own pages if this thread has a tag,
 *           else to the pool that this thread uses, else to the device's default one.
 * Locking   `lock` guards opening; an open device never changes, so it is read without. Counters
 *           are atomic. pools.c and sleep.c have locks of their own; none is held while another is
 *           taken, nor while MoonBright is called with work for the device.
 * Fork      A handler marks the child. There nobody takes a lock of the plug-in's: a thread of the
 *           parent, which the child does not have, may have held it.
 * End       Devices stay open until the process ends: tensors are freed by exit handlers whose
 *           order nobody knows.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "moonbright_torch.h"
#include "plugin.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(mb_device) devices[MB__TORCH_DEVICES]; /* NULL: not open; set once, under lock */

static struct {
    _Atomic uint64_t mallocs, frees, failures, bad_frees, recorded, pool_mallocs;
} counts;

static _Thread_local char error_text[1024];
static _Thread_local mb_pool thread_pool[MB__TORCH_DEVICES]; /* NULL: the default pool */
static _Thread_local unsigned thread_pools;                  /* how many of them are set */

/* ------------------------------------------------------------------ errors */

const char *mb__torch_error(void)
{
    return error_text;
}

enum mb_err mb__torch_fail(enum mb_err err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error_text, sizeof(error_text), format, args);
    va_end(args);
    return err;
}

/* ------------------------------------------------------------------ devices */

static _Atomic bool forked; /* set in a child, which has one thread then */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void mark_child(void)
{
    atomic_store(&forked, true);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, mark_child);
}

bool mb__torch_forked(void)
{
    return atomic_load_explicit(&forked, memory_order_relaxed);
}

enum mb_err mb__torch_in_child(void)
{
    return mb__torch_fail(MB_ERR_FORKED, "MoonBright cannot be used in a forked child; start "
                                         "workers with the `spawn` method");
}

mb_device mb__torch_open_device(int device)
{
    if (device < 0 || device >= MB__TORCH_DEVICES)
        return NULL;
    return atomic_load_explicit(&devices[device], memory_order_acquire);
}

/* PyTorch's own allocator lets no stream wait for another, and kernels of several streams may wait
 * for each other's values, also across devices. So neither do we while there is memory, unless the
 * user asks for another growth. */
static const char *own_config(void)
{
    const char *at = getenv("MOONBRIGHT");

    while (at && *at) {
        at += strspn(at, ", ");
        if (strncmp(at, "growth:", 7) == 0)
            return NULL;
        at += strcspn(at, ",");
    }
    return "growth:independent";
}

enum mb_err mb__torch_device(int device, mb_device *out)
{
    mb_device dev = mb__torch_open_device(device);
    enum mb_err err = MB_OK;

    if (dev) {
        *out = dev;
        return MB_OK;
    }
    if (device < 0 || device >= MB__TORCH_DEVICES)
        return mb__torch_fail(MB_ERR_INVALID, "device %d: allowed are 0 to %d", device,
                              MB__TORCH_DEVICES - 1);
    (void)pthread_once(&fork_once, watch_forks);
    if (mb__torch_forked())
        return mb__torch_in_child();
    pthread_mutex_lock(&lock);
    dev = atomic_load_explicit(&devices[device], memory_order_relaxed);
    if (!dev)
        err = mb_open(device, own_config(), &dev);
    if (!err)
        atomic_store_explicit(&devices[device], dev, memory_order_release);
    pthread_mutex_unlock(&lock);
    if (err)
        return mb__torch_fail(err,
                              "MoonBright could not open device %d: %s. `moonbright info` tells "
                              "what is possible here; $MOONBRIGHT configures it",
                              device, mb_error_detail());
    *out = dev;
    return MB_OK;
}

enum mb_err mb_torch_device(int device, mb_device *out)
{
    return mb__torch_device(device, out);
}

enum mb_err mb_torch_device_if_open(int device, mb_device *out)
{
    mb_device dev = mb__torch_open_device(device);

    if (!dev)
        return mb__torch_fail(MB_ERR_NOT_FOUND, "device %d is not open yet", device);
    *out = dev;
    return MB_OK;
}

/* ------------------------------------------------------------------ malloc and free */

static bool short_of_memory(enum mb_err err)
{
    return err == MB_ERR_NO_MEMORY || err == MB_ERR_NO_ADDRESS || err == MB_ERR_LIMIT;
}

/* The error of a failed malloc; PyTorch's users look for the first words. */
static enum mb_err malloc_failed(enum mb_err err, size_t bytes, int device)
{
    atomic_fetch_add_explicit(&counts.failures, 1, memory_order_relaxed);
    if (short_of_memory(err))
        return mb__torch_fail(err,
                              "CUDA out of memory. Tried to allocate %zu bytes on device %d. %s: "
                              "%s",
                              bytes, device, mb_error_name(err), mb_error_detail());
    if (err == MB_ERR_FORKED)
        return mb__torch_in_child();
    return mb__torch_fail(err, "MoonBright: allocating %zu bytes on device %d: %s: %s", bytes,
                          device, mb_error_name(err), mb_error_detail());
}

/* From `pool`, NULL: the default one. PyTorch may copy at once, so the block's map is waited for;
 * where that fails, as when the device is lost, the block goes back. */
static enum mb_err take_block(mb_device dev, mb_pool pool, size_t bytes, void *stream, void **out)
{
    enum mb_err err = pool ? mb_pool_malloc_async(pool, bytes, stream, out)
                           : mb_malloc_async(dev, bytes, stream, out);

    if (err)
        return err;
    err = mb_wait_mapped(dev, *out);
    if (err)
        (void)mb_free_async(dev, *out, stream);
    return err;
}

enum mb_err mb__torch_malloc(size_t bytes, int device, void *stream, void **out)
{
    mb_device dev = NULL;
    mb_pool pool = NULL;
    void *ptr = NULL;
    enum mb_err err = mb__torch_device(device, &dev);

    if (err) {
        atomic_fetch_add_explicit(&counts.failures, 1, memory_order_relaxed);
        return err; /* with its own text */
    }
    if (mb__torch_pool_match(device, stream, &pool)) {
        /* The pool may have to grow, which the driver forbids in some modes of a capture. */
        int mode = mb__torch_capture_mode(MB__TORCH_CAPTURE_RELAXED);

        err = take_block(dev, pool, bytes, stream, &ptr);
        (void)mb__torch_capture_mode(mode);
        if (!err)
            atomic_fetch_add_explicit(&counts.pool_mallocs, 1, memory_order_relaxed);
    } else if (mb__torch_sleeper_wanted(bytes)) {
        err = mb__torch_sleeper_malloc(dev, device, bytes, stream, &ptr);
    } else {
        err = take_block(dev, thread_pools ? thread_pool[device] : NULL, bytes, stream, &ptr);
    }
    if (err)
        return malloc_failed(err, bytes, device);
    atomic_fetch_add_explicit(&counts.mallocs, 1, memory_order_relaxed);
    *out = ptr;
    return MB_OK;
}

/* Runs in destructors: there is nobody to throw to. */
void mb__torch_free(void *ptr, int device, void *stream)
{
    mb_device dev = mb__torch_open_device(device);
    enum mb_err err;

    if (!ptr)
        return;
    if (!dev) {
        err = MB_ERR_NOT_FOUND;
    } else if (!mb__torch_sleeper_free(dev, ptr, stream, &err)) {
        err = mb_free_async(dev, ptr, stream);
    }
    if (!err) {
        atomic_fetch_add_explicit(&counts.frees, 1, memory_order_relaxed);
        return;
    }
    if (err == MB_ERR_FORKED) /* a child drops its copies of the parent's tensors */
        return;
    atomic_fetch_add_explicit(&counts.bad_frees, 1, memory_order_relaxed);
    (void)fprintf(stderr, "moonbright: torch: free of %p on device %d: %s: %s\n", ptr, device,
                  mb_error_name(err), dev ? mb_error_detail() : "the device is not open");
}

enum mb_err mb_torch_use_pool(int device, mb_pool pool)
{
    if (device < 0 || device >= MB__TORCH_DEVICES)
        return mb__torch_fail(MB_ERR_INVALID, "device %d: allowed are 0 to %d", device,
                              MB__TORCH_DEVICES - 1);
    if (thread_pool[device])
        thread_pools--;
    if (pool)
        thread_pools++;
    thread_pool[device] = pool;
    return MB_OK;
}

/* ------------------------------------------------------------------ the rest of PyTorch's calls */

void mb__torch_reset(void)
{
    mb__torch_pool_sweep();
    for (int i = 0; i < MB__TORCH_DEVICES; i++) {
        mb_device dev = mb__torch_open_device(i);
        mb_pool pool = NULL;
        enum mb_err err;

        if (!dev)
            continue;
        err = mb_pool_default(dev, &pool);
        /* Like PyTorch's own: what streams have freed but not yet passed can be given back only
         * once they have. */
        if (!err)
            err = mb_device_sync(dev);
        if (!err)
            err = mb_pool_trim(pool, 0);
        if (err && err != MB_ERR_FORKED)
            (void)fprintf(stderr, "moonbright: torch: empty_cache of device %d: %s: %s\n", i,
                          mb_error_name(err), mb_error_detail());
    }
}

enum mb_err mb_torch_set_limit(int device, uint64_t bytes)
{
    mb_device dev = NULL;
    mb_pool pool = NULL;
    enum mb_err err = mb__torch_device(device, &dev);

    if (err)
        return err;
    err = mb_pool_default(dev, &pool);
    if (!err)
        err = mb_pool_set(pool, MB_POOL_LIMIT, bytes);
    if (err)
        return mb__torch_fail(err, "limit of %" PRIu64 " bytes on device %d: %s", bytes, device,
                              mb_error_detail());
    return MB_OK;
}

enum mb_err mb__torch_fraction(double fraction, int device)
{
    mb_device dev = NULL;
    uint64_t total = 0;
    enum mb_err err;

    if (!(fraction >= 0 && fraction <= 1))
        return mb__torch_fail(MB_ERR_INVALID, "memory fraction %g: allowed are 0 to 1", fraction);
    err = mb__torch_device(device, &dev);
    if (!err)
        err = mb__torch_total(dev, device, &total);
    if (err)
        return err;
    /* 0 bytes would mean no limit. */
    return mb_torch_set_limit(device, fraction < 1 ? (uint64_t)(fraction * (double)total) + 1 : 0);
}

void *mb__torch_base(void *ptr, size_t *bytes)
{
    void *base = NULL;

    if (mb__torch_sleeper_base(ptr, &base, bytes))
        return base;
    for (int i = 0; i < MB__TORCH_DEVICES; i++) {
        mb_device dev = mb__torch_open_device(i);
        struct mb_pointer_info info;

        if (!dev || mb_pointer_info(dev, ptr, &info))
            continue;
        if (bytes)
            *bytes = info.bytes;
        return info.base;
    }
    if (bytes)
        *bytes = 0;
    return ptr;
}

enum mb_err mb__torch_record(void *ptr, void *stream)
{
    enum mb_err err = MB_ERR_NOT_FOUND;

    if (!ptr)
        return MB_OK;
    if (!mb__torch_sleeper_record(ptr, stream, &err)) {
        /* PyTorch does not say which device; addresses of two devices differ. */
        for (int i = 0; err == MB_ERR_NOT_FOUND && i < MB__TORCH_DEVICES; i++) {
            mb_device dev = mb__torch_open_device(i);

            if (dev)
                err = mb_record_stream(dev, ptr, stream);
        }
    }
    if (err)
        return mb__torch_fail(err, "record_stream of %p: %s: %s", ptr, mb_error_name(err),
                              mb_error_detail());
    atomic_fetch_add_explicit(&counts.recorded, 1, memory_order_relaxed);
    return MB_OK;
}

void mb_torch_counts_get(struct mb_torch_counts *out)
{
    out->mallocs = atomic_load(&counts.mallocs);
    out->frees = atomic_load(&counts.frees);
    out->failures = atomic_load(&counts.failures);
    out->bad_frees = atomic_load(&counts.bad_frees);
    out->recorded_streams = atomic_load(&counts.recorded);
    out->pool_mallocs = atomic_load(&counts.pool_mallocs);
    mb__torch_pool_counts(&out->pools, &out->pools_retired);
    out->sleepers = mb__torch_sleeper_count();
}
