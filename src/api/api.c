/* SPDX-License-Identifier: MIT */
/*
 * The public functions: handles, forks and arguments are checked here, the work is runtime's.
 *
 * Warm malloc_async and free_async pass through here and bins.c only; everything else takes the
 * device's lock around one call into runtime.
 */
#define _GNU_SOURCE /* dladdr */
#include "moonbright.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "api/config.h"
#include "api/enter.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/journal.h"
#include "kernels/pattern.h"
#include "runtime/debug.h"
#include "runtime/info.h"
#include "runtime/runtime.h"
#include "runtime/vmm.h"
#include "runtime/watch.h"

enum {
    MB_ORDINALS = 256, /* more GPUs than a machine has */
};

#define STRINGIFY(x) #x
#define VERSION_TEXT(major, minor, patch) STRINGIFY(major) "." STRINGIFY(minor) "." STRINGIFY(patch)

enum mb_err mb__bad_device(const struct mb_device *dev, const char *call)
{
    if (mb__in_fork())
        return mb__fail(MB_ERR_FORKED,
                        "%s: this process is a fork; open the device in the process that uses it",
                        call);
    return mb__fail(MB_ERR_INVALID, "%s: %p is no open device; use the handle that mb_open() gave",
                    call, (const void *)dev);
}

__attribute__((noinline, cold)) enum mb_err
mb__seek_owner(const struct mb_device *dev, const void *ptr, const char *call, enum mb_err err)
{
    int owner = mb__device_owning(dev, (uint64_t)(uintptr_t)ptr);

    if (owner < 0)
        return err;
    return mb__fail(err,
                    "%s(%p): the address belongs to device %d, this is device %d; call it with the "
                    "handle of device %d",
                    call, ptr, owner, dev->config.hw.ordinal, owner);
}

const char *mb_version(void)
{
    return VERSION_TEXT(MB_VERSION_MAJOR, MB_VERSION_MINOR, MB_VERSION_PATCH);
}

/* ------------------------------------------------------------------ devices */

enum mb_err mb_backends(struct mb_backend_info *list, unsigned capacity, unsigned *count)
{
    struct mb__config config;
    bool chosen = false;
    enum mb_err err;

    if (mb__in_fork())
        return mb__bad_device(NULL, __func__);
    err = mb__config_read(0, NULL, &config);
    if (err)
        return err;
    NEED(count && (list || !capacity),
         "mb_backends: count, and list unless capacity is 0, are needed");
    for (unsigned i = 0; i < mb__hw_backend_count; i++) {
        struct mb_backend_info info = {.name = mb__hw_backends[i].name};

        mb__hw_backends[i].describe(config.hw.ordinal, &info);
        info.chosen = !chosen && info.available &&
                      (!config.backend || strcmp(config.backend, info.name) == 0);
        chosen |= info.chosen;
        if (i < capacity)
            list[i] = info;
    }
    *count = mb__hw_backend_count;
    return MB_OK;
}

/* The backend that would serve `config`: the first one available at all. */
static const struct mb_hw_backend *choose_backend(const struct mb__config *config)
{
    for (unsigned i = 0; i < mb__hw_backend_count; i++) {
        const struct mb_hw_backend *backend = &mb__hw_backends[i];
        struct mb_backend_info info = {0};

        if (config->backend && strcmp(config->backend, backend->name) != 0)
            continue;
        backend->describe(0, &info);
        if (info.available || config->backend)
            return backend;
    }
    return NULL;
}

enum mb_err mb_device_count(const char *config, int *count)
{
    const struct mb_hw_backend *backend;
    struct mb_backend_info info = {.available = true};
    struct mb__config parsed;
    int ordinal = 0;
    enum mb_err err;

    NEED(count, "mb_device_count: a place for the number is needed");
    if (mb__in_fork())
        return mb__bad_device(NULL, __func__);
    err = mb__config_read(0, config, &parsed);
    if (err)
        return err;
    backend = choose_backend(&parsed);
    for (; backend && ordinal < MB_ORDINALS; ordinal++) {
        backend->describe(ordinal, &info);
        if (!info.available)
            break;
    }
    *count = ordinal;
    return MB_OK;
}

/* While a device is open, dlclose() must not unmap the code of its threads, handlers and callbacks:
 * each open device holds a reference on the file that this code came from. Nothing to hold when the
 * library is linked into the program. */
static void *self(void)
{
    Dl_info info;

    return dladdr((const void *)(uintptr_t)&mb_open, &info) && info.dli_fname
               ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)
               : NULL;
}

static void *held; /* the file, while any device is open; by held_lock */
static unsigned holders;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static void hold_library(void)
{
    pthread_mutex_lock(&held_lock);
    if (!holders++)
        held = self();
    pthread_mutex_unlock(&held_lock);
}

/* The caller has a reference of its own, or could not call: this is never the last one. */
static void let_library_go(void)
{
    void *file = NULL;

    pthread_mutex_lock(&held_lock);
    if (!--holders) {
        file = held;
        held = NULL;
    }
    pthread_mutex_unlock(&held_lock);
    if (file)
        (void)dlclose(file);
}

enum mb_err mb_open(int ordinal, const char *config, mb_device *out)
{
    struct mb__config parsed;
    enum mb_err err;

    NEED(out, "mb_open: a place for the device is needed");
    if (mb__in_fork())
        return mb__bad_device(NULL, __func__);
    err = mb__config_read(ordinal, config, &parsed);
    if (!err)
        err = mb__device_open(&parsed, out);
    if (!err)
        hold_library();
    return err;
}

void mb_close(mb_device dev)
{
    if (mb__in_fork() || !mb__device_is_open(dev))
        return;
    mb__caller_set(__func__, NULL);
    if (mb__device_close(dev))
        let_library_go();
}

enum mb_err mb_device_sync(mb_device dev)
{
    enum mb_err err;

    ENTER(dev);
    mb__caller_set(__func__, NULL);
    err = mb__device_sync(dev);
    mb__watch_deliver(dev);
    return err;
}

const char *mb_device_backend(mb_device dev)
{
    return !mb__in_fork() && mb__device_is_open(dev) ? dev->backend->name : "";
}

const char *mb_device_tables(mb_device dev)
{
    return !mb__in_fork() && mb__device_is_open(dev) ? dev->hw->caps.tables : "";
}

const char *mb_device_name(mb_device dev)
{
    return !mb__in_fork() && mb__device_is_open(dev) ? dev->hw->caps.device_name : "";
}

/* ------------------------------------------------------------------ streams and events */

enum mb_err mb_stream_create(mb_device dev, mb_stream *out)
{
    ENTER(dev);
    NEED(out, "mb_stream_create: a place for the stream is needed");
    LOCKED(dev, mb__stream_create(dev, out));
}

enum mb_err mb_stream_destroy(mb_device dev, mb_stream stream)
{
    ENTER(dev);
    LOCKED(dev, mb__stream_destroy(dev, stream));
}

enum mb_err mb_stream_seal(mb_device dev, mb_stream stream)
{
    ENTER(dev);
    LOCKED(dev, mb__stream_seal(dev, stream));
}

enum mb_err mb_stream_sync(mb_device dev, mb_stream stream)
{
    enum mb_err err;

    ENTER(dev);
    mb__caller_set(__func__, stream);
    err = mb__stream_sync(dev, stream);
    mb__watch_deliver(dev);
    return err;
}

enum mb_err mb_event_create(mb_device dev, mb_event *out)
{
    ENTER(dev);
    NEED(out, "mb_event_create: a place for the event is needed");
    LOCKED(dev, mb__event_new(dev, out));
}

enum mb_err mb_event_destroy(mb_device dev, mb_event event)
{
    ENTER(dev);
    NEED(mb__event_of(event, dev), "mb_event_destroy: %p is no event of this device",
         (void *)event);
    LOCKED(dev, mb__event_drop(event));
}

enum mb_err mb_event_record(mb_device dev, mb_event event, mb_stream stream)
{
    ENTER(dev);
    NEED(mb__event_of(event, dev), "mb_event_record: %p is no event of this device", (void *)event);
    LOCKED(dev, mb__event_record(event, stream));
}

enum mb_err mb_stream_wait_event(mb_device dev, mb_stream stream, mb_event event)
{
    ENTER(dev);
    NEED(mb__event_of(event, dev), "mb_stream_wait_event: %p is no event of this device",
         (void *)event);
    LOCKED(dev, mb__event_wait(event, stream));
}

/* ------------------------------------------------------------------ malloc */

static enum mb_err any_malloc(mb_device dev, mb_pool pool, size_t bytes, bool host,
                              mb_stream stream, void **out)
{
    uint64_t start = mb__sample_start(dev);
    enum mb_err err = MB_OK;

    if (!mb__bins_malloc(dev, pool, bytes, host, stream, out)) {
        mb__caller_set(host ? "mb_malloc" : "mb_malloc_async", stream);
        err = mb__malloc(dev, pool, bytes, host, stream, out);
    }
    if (start)
        mb__sample_end(dev, false, start);
    return err;
}

static enum mb_err any_free(mb_device dev, void *ptr, bool host, mb_stream stream)
{
    uint64_t start = mb__sample_start(dev);
    struct mb__block *block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    enum mb_err err = MB_OK;

    if (!block || !mb__bins_free(dev, (uint64_t)(uintptr_t)ptr, block, host, stream)) {
        mb__caller_set(host ? "mb_free" : "mb_free_async", stream);
        err = mb__free(dev, ptr, host, stream);
    }
    if (start)
        mb__sample_end(dev, true, start);
    return err;
}

static bool is_shortage(enum mb_err err)
{
    return err == MB_ERR_NO_MEMORY || err == MB_ERR_NO_ADDRESS || err == MB_ERR_LIMIT;
}

/* With somebody looking on; kept out of the warm path's code. */
static __attribute__((noinline)) enum mb_err
watched_malloc(mb_device dev, mb_pool pool, size_t bytes, bool host, mb_stream stream, void **out)
{
    struct mb__watch *watch = mb__watch(dev);
    enum mb_err err;

    mb__nvtx_push(watch->nvtx, host ? "mb_malloc" : "mb_malloc_async");
    err = any_malloc(dev, pool, bytes, host, stream, out);
    mb__nvtx_pop(watch->nvtx);
    mb__lock(&watch->order);
    if (!err)
        mb__watch_note(dev, MB_HOOK_MALLOC, (uint64_t)(uintptr_t)*out, bytes, stream);
    else if (is_shortage(err))
        mb__watch_note(dev, MB_HOOK_OOM, 0, bytes, stream);
    mb__unlock(&watch->order);
    mb__watch_deliver(dev);
    return err;
}

/* The slow path makes the record itself, before the block's window goes; the warm one is recorded
 * here. */
static enum mb_err free_and_note(mb_device dev, void *ptr, bool host, mb_stream stream)
{
    struct mb__block *block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    uint64_t requested = block ? mb__block_requested(block) : 0;

    if (!block || !mb__bins_free(dev, (uint64_t)(uintptr_t)ptr, block, host, stream)) {
        mb__caller_set(host ? "mb_free" : "mb_free_async", stream);
        return mb__free(dev, ptr, host, stream);
    }
    mb__watch_note(dev, MB_HOOK_FREE, (uint64_t)(uintptr_t)ptr, requested, stream);
    return MB_OK;
}

static __attribute__((noinline)) enum mb_err watched_free(mb_device dev, void *ptr, bool host,
                                                          mb_stream stream)
{
    struct mb__watch *watch = mb__watch(dev);
    uint64_t start;
    enum mb_err err;

    mb__nvtx_push(watch->nvtx, host ? "mb_free" : "mb_free_async");
    mb__lock(&watch->order);
    start = mb__sample_start(dev);
    err = free_and_note(dev, ptr, host, stream);
    if (start)
        mb__sample_end(dev, true, start);
    mb__unlock(&watch->order);
    mb__nvtx_pop(watch->nvtx);
    mb__watch_deliver(dev);
    return err;
}

/* While the stream is captured, only a pool that keeps its memory may serve it. */
static __attribute__((noinline, cold)) enum mb_err captured(mb_device dev, mb_stream stream,
                                                            const char *call)
{
    enum mb_err err = mb__not_captured(dev, stream);

    return err ? mb__fail_in(err, "%s", call) : MB_OK;
}

static inline enum mb_err check_free(mb_device dev, const void *ptr, bool host, mb_stream stream)
{
    const struct mb__block *block;
    const struct mb_pool *pool;

    if (host || !mb__capturing(dev, stream))
        return MB_OK;
    block = mb__table_get(&dev->table, (uint64_t)(uintptr_t)ptr);
    /* Another free may be giving the record back: then it has no pool. */
    pool = block ? __atomic_load_n(&block->pool, __ATOMIC_RELAXED) : NULL;
    return pool && mb__pool_keeps(pool) ? MB_OK : captured(dev, stream, "mb_free_async");
}

static inline enum mb_err do_malloc(mb_device dev, mb_pool pool, size_t bytes, bool host,
                                    mb_stream stream, void **out)
{
    if (!host && !mb__pool_keeps(pool) && mb__capturing(dev, stream))
        return captured(dev, stream, "mb_malloc_async");
    if (__builtin_expect(mb__watch(dev) != NULL, 0))
        return watched_malloc(dev, pool, bytes, host, stream, out);
    return any_malloc(dev, pool, bytes, host, stream, out);
}

static inline enum mb_err do_free(mb_device dev, void *ptr, bool host, mb_stream stream)
{
    enum mb_err err = check_free(dev, ptr, host, stream);

    if (err)
        return err;
    if (__builtin_expect(mb__watch(dev) != NULL, 0))
        return watched_free(dev, ptr, host, stream);
    return any_free(dev, ptr, host, stream);
}

/* Records of both blocks are made inside, so all of it is one step to those who watch. */
static enum mb_err do_realloc(mb_device dev, void *ptr, size_t bytes, void **out)
{
    struct mb__watch *watch = mb__watch(dev);
    enum mb_err err;

    if (watch)
        mb__lock(&watch->order);
    err = mb__realloc(dev, ptr, bytes, out);
    if (watch && is_shortage(err))
        mb__watch_note(dev, MB_HOOK_OOM, 0, bytes, NULL);
    if (watch)
        mb__unlock(&watch->order);
    mb__watch_deliver(dev);
    return err;
}

enum mb_err mb_malloc(mb_device dev, size_t bytes, void **out)
{
    ENTER(dev);
    NEED(out, "mb_malloc: a place for the address is needed");
    return do_malloc(dev, dev->default_pool, bytes, true, NULL, out);
}

enum mb_err mb_free(mb_device dev, void *ptr)
{
    ENTER(dev);
    return ptr ? name_owner(dev, ptr, __func__, do_free(dev, ptr, true, NULL)) : MB_OK;
}

enum mb_err mb_realloc(mb_device dev, void *ptr, size_t bytes, void **out)
{
    ENTER(dev);
    NEED(out, "mb_realloc: a place for the address is needed");
    mb__caller_set(__func__, NULL);
    return ptr ? name_owner(dev, ptr, __func__, do_realloc(dev, ptr, bytes, out))
               : mb_malloc(dev, bytes, out);
}

enum mb_err mb_malloc_async(mb_device dev, size_t bytes, mb_stream stream, void **out)
{
    ENTER(dev);
    NEED(out, "mb_malloc_async: a place for the address is needed");
    return do_malloc(dev, dev->default_pool, bytes, false, stream, out);
}

enum mb_err mb_free_async(mb_device dev, void *ptr, mb_stream stream)
{
    ENTER(dev);
    return ptr ? name_owner(dev, ptr, __func__, do_free(dev, ptr, false, stream)) : MB_OK;
}

enum mb_err mb_record_stream(mb_device dev, void *ptr, mb_stream stream)
{
    ENTER(dev);
    LOCKED_PTR(dev, ptr, mb__record_stream(dev, ptr, stream));
}

/* ------------------------------------------------------------------ pools */

#define ENTER_POOL(pool)                                                                           \
    do {                                                                                           \
        if (__builtin_expect(mb__in_fork(), 0))                                                    \
            return mb__bad_device(NULL, __func__);                                                 \
        if (__builtin_expect(!mb__pool_is_open(pool), 0))                                          \
            return mb__pool_gone(__func__, pool);                                                  \
    } while (0)

/* Another thread may destroy the pool before the lock is taken. Its record stays, so does `dev`. */
#define LOCKED_POOL(pool, expression)                                                              \
    LOCKED((pool)->dev, mb__pool_is_open(pool) ? (expression) : mb__pool_gone(__func__, pool))

enum mb_err mb_pool_create(mb_device dev, mb_pool *out)
{
    ENTER(dev);
    NEED(out, "mb_pool_create: a place for the pool is needed");
    LOCKED(dev, mb__pool_new(dev, out));
}

enum mb_err mb_pool_destroy(mb_pool pool)
{
    ENTER_POOL(pool);
    LOCKED_POOL(pool, mb__pool_delete(pool));
}

enum mb_err mb_pool_default(mb_device dev, mb_pool *out)
{
    ENTER(dev);
    NEED(out, "mb_pool_default: a place for the pool is needed");
    *out = dev->default_pool;
    return MB_OK;
}

enum mb_err mb_pool_set(mb_pool pool, enum mb_pool_attr attr, uint64_t value)
{
    ENTER_POOL(pool);
    LOCKED_POOL(pool, mb__pool_set(pool, attr, value));
}

enum mb_err mb_pool_get(mb_pool pool, enum mb_pool_attr attr, uint64_t *value)
{
    ENTER_POOL(pool);
    NEED(value, "mb_pool_get: a place for the value is needed");
    LOCKED_POOL(pool, mb__pool_get(pool, attr, value));
}

enum mb_err mb_pool_malloc_async(mb_pool pool, size_t bytes, mb_stream stream, void **out)
{
    ENTER_POOL(pool);
    NEED(out, "mb_pool_malloc_async: a place for the address is needed");
    return do_malloc(pool->dev, pool, bytes, false, stream, out);
}

enum mb_err mb_pool_trim(mb_pool pool, uint64_t keep_bytes)
{
    ENTER_POOL(pool);
    LOCKED_POOL(pool, mb__pool_trim(pool, keep_bytes));
}

/* ------------------------------------------------------------------ device work */

uint64_t mb_pattern_word(uint64_t seed, uint64_t index)
{
    return mb_pattern(seed, index);
}

static enum mb_err check_words(const void *va, uint64_t bytes, const char *call)
{
    NEED(!((uintptr_t)va % 8) && !(bytes % 8),
         "%s: address %p and size %llu must be multiples of 8", call, va,
         (unsigned long long)bytes);
    return MB_OK;
}

enum mb_err mb_fill_async(mb_device dev, void *va, uint64_t bytes, uint64_t seed, mb_stream stream)
{
    enum mb_err err;

    ENTER(dev);
    err = check_words(va, bytes, __func__);
    if (err || !bytes)
        return err;
    LOCKED(dev, mb__device_fill(dev, va, bytes, seed, stream));
}

enum mb_err mb_verify_async(mb_device dev, const void *va, uint64_t bytes, uint64_t seed,
                            mb_stream stream)
{
    enum mb_err err;

    ENTER(dev);
    err = check_words(va, bytes, __func__);
    if (err || !bytes)
        return err;
    LOCKED(dev, mb__device_verify(dev, va, bytes, seed, stream));
}

enum mb_err mb_copy_async(mb_device dev, void *dst, const void *src, uint64_t bytes,
                          mb_stream stream)
{
    enum mb_err err;

    ENTER(dev);
    err = check_words(dst, bytes, __func__);
    if (!err)
        err = check_words(src, bytes, __func__);
    if (err || !bytes)
        return err;
    LOCKED(dev, mb__device_copy(dev, dst, src, bytes, stream));
}

enum mb_err mb_copy_list_async(mb_device dev, const struct mb_copy *list, unsigned count,
                               mb_stream stream)
{
    ENTER(dev);
    NEED(list || !count, "mb_copy_list_async: %u copies and no list of them", count);
    for (unsigned i = 0; i < count; i++)
        NEED(!list[i].bytes ||
                 !(((uintptr_t)list[i].dst | (uintptr_t)list[i].src | list[i].bytes) % 8),
             "mb_copy_list_async: copy %u of 0 to %u: destination %p, source %p and size %llu must "
             "be multiples of 8; nothing was copied",
             i, count - 1, list[i].dst, list[i].src, (unsigned long long)list[i].bytes);
    if (!count)
        return MB_OK;
    LOCKED(dev, mb__device_copy_list(dev, list, count, stream));
}

/* ------------------------------------------------------------------ statistics, checks */

enum mb_err mb_stats_get(mb_device dev, struct mb_stats *out)
{
    ENTER(dev);
    NEED(out, "mb_stats_get: a place for the statistics is needed");
    LOCKED(dev, mb__stats_get(dev, out));
}

enum mb_err mb_stats_reset_peaks(mb_device dev)
{
    ENTER(dev);
    mb__lock(&dev->lock);
    mb__stats_reset_peaks(dev);
    mb__unlock(&dev->lock);
    return MB_OK;
}

enum mb_err mb_stats_text(mb_device dev, enum mb_stats_format format, char *out, size_t capacity,
                          size_t *needed)
{
    ENTER(dev);
    NEED(out || !capacity, "mb_stats_text: a place for %zu bytes is needed", capacity);
    LOCKED(dev, mb__stats_text(dev, format, out, capacity, needed));
}

enum mb_err mb_snapshot(mb_device dev, const char *path)
{
    enum mb_err err;

    ENTER(dev);
    NEED(path && *path, "mb_snapshot: the path of a file to write is needed");
    err = mb__snapshot(dev, path);
    mb__watch_deliver(dev);
    return err;
}

enum mb_err mb_check(mb_device dev)
{
    ENTER(dev);
    LOCKED(dev, mb__check_all(dev));
}

enum mb_err mb_check_tables(mb_device dev, bool repair, struct mb_tables_report *out)
{
    ENTER(dev);
    LOCKED(dev, mb__vm_scrub(dev->vm, repair, out));
}

/* ------------------------------------------------------------------ audit log */

enum mb_err mb_audit_read(const char *path, mb_audit_visit visit, void *user,
                          struct mb_audit_summary *out)
{
    NEED(path, "mb_audit_read: the name of a log is needed");
    return mb__journal_read(path, visit, user, out);
}

const char *mb_audit_name(enum mb_audit_kind kind)
{
    static const char *const names[] = {"session", "home",  "homeless", "take", "give",
                                        "map",     "unmap", "protect",  "done", "undone",
                                        "repair",  "close", "peer"};

    return (unsigned)kind < MB_AUDIT_KINDS ? names[kind] : "?";
}
