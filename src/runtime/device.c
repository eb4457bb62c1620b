/* SPDX-License-Identifier: MIT */
/*
 * Opening and closing a device.
 *
 * A device's shell is never freed, only reused: a call on a closed device finds the magic gone
 * instead of foreign memory.
 *
 * Fork: the child owns no GPU. A handler marks it, and every call fails from then on; nothing is
 * closed there, since that would touch what the parent still uses.
 */
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "base/handles.h"
#include "base/log.h"
#include "hw/dry.h"
#include "hw/fault.h"
#include "hw/profile.h"
#include "runtime/access.h"
#include "runtime/debug.h"
#include "runtime/runtime.h"
#include "runtime/vmm.h"
#include "runtime/watch.h"

enum {
    BIN_BYTES = 8 << 20, /* default of cache_bytes: */
};

static pthread_mutex_t shells_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb_device *shells;                   /* closed ones; shells_lock */
static struct mb_device *opened;                   /* open ones, by the same link; shells_lock */
static struct mb__handles live = MB__HANDLES_INIT; /* open devices, for calls with any pointer */
static const struct mb_device *usual; /* one of them, or NULL: mostly the only one; atomic */
static bool in_fork;                  /* set in the child, which has one thread then */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void mark_child(void)
{
    in_fork = true;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, mark_child);
}

bool mb__in_fork(void)
{
    return in_fork;
}

bool mb__device_is_open(const struct mb_device *dev)
{
    if (__builtin_expect(dev && dev == __atomic_load_n(&usual, __ATOMIC_ACQUIRE), 1))
        return true;
    return mb__handles_has(&live, dev);
}

/* A shell with nothing set but its lock. */
static struct mb_device *shell_get(void)
{
    struct mb_device *dev;

    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&shells_lock);
    dev = shells;
    if (dev)
        shells = dev->next_shell;
    pthread_mutex_unlock(&shells_lock);
    if (!dev) {
        dev = mb__calloc_apart(1, sizeof(*dev));
        if (dev && mb__lock_init(&dev->lock, "device", MB_RANK_RUNTIME)) {
            free(dev);
            dev = NULL;
        }
    }
    return dev;
}

static void shell_put(struct mb_device *dev)
{
    const size_t head = sizeof(dev->magic), lock = offsetof(struct mb_device, lock);
    const size_t tail = lock + sizeof(dev->lock);

    /* Around the lock: another device at its end may be taking it, to see whom it gave access. */
    memset((char *)dev + head, 0, lock - head);
    memset((char *)dev + tail, 0, sizeof(*dev) - tail);
    pthread_mutex_lock(&shells_lock);
    dev->next_shell = shells;
    shells = dev;
    pthread_mutex_unlock(&shells_lock);
}

static void enlist(struct mb_device *dev)
{
    pthread_mutex_lock(&shells_lock);
    dev->next_shell = opened;
    opened = dev;
    if (!usual)
        __atomic_store_n(&usual, dev, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&shells_lock);
}

static void delist(struct mb_device *dev)
{
    pthread_mutex_lock(&shells_lock);
    if (usual == dev)
        __atomic_store_n(&usual, NULL, __ATOMIC_RELEASE);
    for (struct mb_device **at = &opened; *at; at = &(*at)->next_shell) {
        if (*at == dev) {
            *at = dev->next_shell;
            break;
        }
    }
    pthread_mutex_unlock(&shells_lock);
}

int mb__device_owning(const struct mb_device *not_this, uint64_t addr)
{
    int ordinal = -1;

    /* A device on the list cannot close before it has left the list. */
    pthread_mutex_lock(&shells_lock);
    for (struct mb_device *dev = opened; dev && ordinal < 0; dev = dev->next_shell) {
        if (dev == not_this)
            continue;
        mb__lock(&dev->lock);
        if (mb__vmm_reserved(dev, addr) || mb__block_holding(dev, addr))
            ordinal = dev->config.hw.ordinal;
        mb__unlock(&dev->lock);
    }
    pthread_mutex_unlock(&shells_lock);
    return ordinal;
}

/* In a child, another thread of the parent may have held the lock, and nobody gives it back. */
bool mb__device_any_open(void)
{
    bool any;

    if (in_fork || pthread_mutex_trylock(&shells_lock))
        return true;
    any = opened;
    pthread_mutex_unlock(&shells_lock);
    return any;
}

/* The library is unloaded: nobody can name a closed device any more. */
__attribute__((destructor)) static void free_shells(void)
{
    if (mb__device_any_open())
        return;
    pthread_mutex_lock(&shells_lock);
    while (shells) {
        struct mb_device *dev = shells;

        shells = dev->next_shell;
        mb__lock_destroy(&dev->lock);
        free(dev);
    }
    pthread_mutex_unlock(&shells_lock);
    mb__handles_fini(&live);
}

/* Tests with fault injection put a device in front that can be told to fail. */
static enum mb_err make_fallible(struct mb_device *dev)
{
#ifdef MB_FAULT_INJECTION
    struct mb_hw_dev *inner = dev->hw;
    enum mb_err err = mb__hw_fault_wrap(inner, &dev->hw);

    if (err)
        inner->ops->close(inner);
    return err;
#else
    (void)dev;
    return MB_OK;
#endif
}

/* Facts measured on this device take the place of built-in ones. */
static enum mb_err use_profile(struct mb_device *dev, const char *path)
{
    struct mb_profile profile;
    enum mb_err err = mb__profile_read(path, &profile);

    if (!err)
        err = mb__profile_apply(&profile, dev->hw);
    if (err)
        dev->hw->ops->close(dev->hw);
    return err;
}

/* The backend asked for, or the first that opens. */
static enum mb_err open_backend(struct mb_device *dev, const struct mb__config *config)
{
    enum mb_err err = MB_ERR_NO_DEVICE, first = MB_OK;
    struct mb__detail detail; /* of `first`: other backends write their own meanwhile */

    for (unsigned i = 0; i < mb__hw_backend_count; i++) {
        const struct mb_hw_backend *backend = &mb__hw_backends[i];
        struct mb_backend_info info = {0};

        if (config->backend && strcmp(config->backend, backend->name) != 0)
            continue;
        /* A GPU that cannot be opened is an error: its programs cannot use simulated memory. */
        if (first && strcmp(backend->name, "sim") == 0)
            break;
        backend->describe(config->hw.ordinal, &info);
        if (!info.available && !config->backend) {
            mb__log(MB_LOG_INFO, "runtime", "%s: %s", backend->name, info.reason);
            continue;
        }
        err = backend->open(&config->hw, &dev->hw);
        if (!err && *config->hw.profile)
            err = use_profile(dev, config->hw.profile);
        if (!err && config->dry)
            mb__hw_dry(dev->hw);
        if (!err)
            err = make_fallible(dev);
        if (!err) {
            dev->backend = backend;
            return MB_OK;
        }
        mb__log(MB_LOG_WARN, "runtime", "%s: %s", backend->name, mb_error_detail());
        if (!first) {
            first = err;
            mb__detail_keep(&detail);
        }
    }
    if (!first)
        return mb__fail(MB_ERR_NO_DEVICE, "no backend %s in this build that could be opened",
                        config->backend ? config->backend : "was found");
    mb__detail_put(&detail);
    return first;
}

/*
 * The first window costs the backend a donor, which is not to be had once memory has run out. The
 * smallest slab that can be one is taken before it, so that the donor's frames are of use: the
 * first allocations come out of them, and need no slab of their own.
 */
static void prime_windows(struct mb_device *dev)
{
    uint64_t bytes = dev->hw->caps.slab_step_bytes, limit = dev->config.vm.limit_bytes;
    uint32_t frames = (uint32_t)(bytes / MB_FRAME_BYTES);
    unsigned count = 0;
    struct mb_run run;
    mb_va va;

    if (!dev->hw->caps.home_by_driver || dev->hw->caps.host_blocking)
        return;
    if ((!limit || limit >= bytes) &&
        (mb__alloc_pfn(dev->vm, dev->default_pool->id, frames, 0, &run, 1, &count) ||
         mb__free_pfn(dev->vm, dev->default_pool->id, run, NULL, 0)))
        mb__log(MB_LOG_WARN, "runtime", "no memory yet: %s", mb_error_detail());
    if (mb__alloc_va(dev->vm, MB_FRAME_BYTES, 0, &va) || mb__free_va(dev->vm, va, MB_FRAME_BYTES))
        mb__log(MB_LOG_WARN, "runtime", "no window yet: %s", mb_error_detail());
}

/* Host records that the first allocation would make. */
static enum mb_err first_records(struct mb_device *dev)
{
    enum mb_err err = mb__table_prepare(&dev->table);

    return err ? err : mb__heap_prepare(&dev->default_pool->heap, 1);
}

/* The runtime's own stream and the default pool. */
static enum mb_err open_parts(struct mb_device *dev)
{
    mb_stream native;
    enum mb_err err = dev->hw->ops->stream_create(dev->hw, &native);

    if (err)
        return err;
    err = mb__stream_new(dev, native, &dev->own);
    if (err) {
        (void)dev->hw->ops->stream_destroy(dev->hw, native);
        return err;
    }
    dev->own->created = true;
    err = mb__pool_new(dev, &dev->default_pool);
    if (!err)
        err = mb__vmm_new(dev);
    if (!err)
        err = first_records(dev);
    if (err)
        return err;
    dev->default_pool->release_threshold = dev->config.release_threshold;
    prime_windows(dev);
    mb__note_held(dev);
    return MB_OK;
}

static void set_bounds(struct mb_device *dev)
{
    uint64_t total = dev->hw->caps.total_bytes;

    if (!dev->config.bin_bytes)
        dev->config.bin_bytes = BIN_BYTES;
    if (!dev->config.window_bytes)
        dev->config.window_bytes = total;
    dev->asks_capture =
        dev->hw->ops->stream_capturing &&
        (dev->config.capture == MB__CAPTURE_CHECK ||
         (dev->config.capture == MB__CAPTURE_AUTO && strcmp(dev->backend->name, "sim") == 0));
    dev->bin_bytes = dev->config.bin_bytes;
    dev->large_bin_bytes = total / 16;
    /* Checks look at every block when it changes hands, which bins would hide. */
    dev->use_bins = !dev->config.no_bins && !(dev->config.checks & ~(unsigned)MB__CHECK_LEAKS);
}

/* Host records only; backend and vm are gone or were never there. */
static void free_records(struct mb_device *dev)
{
    mb__windows_fini(dev);
    mb__pools_fini(dev);
    mb__table_fini(&dev->table);
    mb__blocks_fini(dev);
    MB_VEC_FREE(&dev->ranges);
    MB_VEC_FREE(&dev->pieces);
    MB_VEC_FREE(&dev->pfns);
    mb__watch_fini(dev);
    free(dev->shards);
    shell_put(dev);
}

/* Everything after the backend, in reverse. */
static void close_parts(struct mb_device *dev)
{
    mb__vmm_fini(dev);
    mb__events_fini(dev);
    mb__streams_fini(dev);
    mb__vm_close(dev->vm);
}

enum mb_err mb__device_open(const struct mb__config *config, struct mb_device **out)
{
    struct mb_device *dev = shell_get();
    struct mb__shard *shards;
    enum mb_err err;

    if (!dev)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a device");
    dev->config = *config;
    shards = mb__calloc_apart(MB__SHARDS, sizeof(*shards));
    dev->shards = shards;
    if (!shards) {
        err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the warm path");
        goto undo_shell;
    }
    err = open_backend(dev, config);
    if (err)
        goto undo_shell;
    set_bounds(dev);
    err = mb__vm_open(dev->hw, &config->vm, &dev->vm);
    if (err)
        goto undo_hw;
    err = open_parts(dev);
    if (!err)
        err = mb__watch_open(dev);
    if (!err && !mb__handles_add(&live, dev))
        err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the list of devices");
    if (err)
        goto undo_parts;
    enlist(dev);
    __atomic_store_n(&dev->magic, MB__DEVICE_MAGIC, __ATOMIC_RELEASE);
    *out = dev;
    return MB_OK;
undo_parts:
    close_parts(dev);
undo_hw:
    dev->hw->ops->close(dev->hw);
undo_shell:
    free_records(dev);
    return err;
}

bool mb__device_close(struct mb_device *dev)
{
    uint32_t open = MB__DEVICE_MAGIC;

    if (!__atomic_compare_exchange_n(&dev->magic, &open, 0, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_RELAXED))
        return false;
    mb__handles_del(&live, dev);
    delist(dev);
    mb__access_end(dev);
    (void)dev->hw->ops->device_sync(dev->hw);
    mb__lock(&dev->lock);
    mb__debug_leaks(dev);
    mb__unlock(&dev->lock);
    close_parts(dev);
    dev->hw->ops->close(dev->hw);
    free_records(dev);
    return true;
}

enum mb_err mb__device_sync(struct mb_device *dev)
{
    MB_VEC(uint64_t) tickets = {0};
    enum mb_err err;

    mb__lock(&dev->lock);
    for (size_t i = 0; i < dev->streams.count; i++) {
        uint64_t ticket = dev->streams.data[i]->ticket;

        if (!MB_VEC_PUSH(&tickets, ticket))
            break;
        __atomic_store_n(&dev->streams.data[i]->ticket, ticket + 1, __ATOMIC_RELAXED);
    }
    mb__unlock(&dev->lock);
    err = dev->hw->ops->device_sync(dev->hw);
    mb__lock(&dev->lock);
    for (size_t i = 0; !err && i < tickets.count; i++)
        if (tickets.data[i] > dev->streams.data[i]->done)
            dev->streams.data[i]->done = tickets.data[i];
    if (!err) {
        mb__vm_poll(dev->vm);
        mb__zombies_poll(dev);
        mb__pools_after_sync(dev);
    }
    mb__unlock(&dev->lock);
    MB_VEC_FREE(&tickets);
    return err;
}
