/* SPDX-License-Identifier: MIT */
/*
 * open.c - the backend's table of functions, opening and closing.
 *
 * Order     observer before cuInit, so that everything is seen; then context, kernels, timelines;
 *           then the better way to write tables is tried and, if nobody insisted on it, the reason
 *           why it is not possible is kept and the driver writes them.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"

extern const unsigned char mb__cuda_fatbin[];
extern const size_t mb__cuda_fatbin_size;

static const struct mb_hw_ops ops;

/* ------------------------------------------------------------ submission */

static enum mb_err check_kinds(const struct mb_hw_cmd *cmds, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (cmds[i].kind == MB_HW_DIR)
            return mb__fail(MB_ERR_NOT_SUPPORTED,
                            "command %u of %u: directories of a CUDA context are the driver's", i,
                            count);
        if ((unsigned)cmds[i].kind > MB_HW_MEMBAR)
            return mb__fail(MB_ERR_INVALID, "command %u of %u is of no known kind (%d)", i, count,
                            (int)cmds[i].kind);
    }
    return MB_OK;
}

static void count_batch(struct mb_cuda *dev, const struct mb_hw_cmd *cmds, unsigned count)
{
    uint64_t entries = 0, invalidates = 0;

    for (unsigned i = 0; i < count; i++) {
        entries += cmds[i].kind == MB_HW_LEAVES ? cmds[i].leaves.count : 0;
        invalidates += cmds[i].kind == MB_HW_INVALIDATE;
    }
    atomic_fetch_add_explicit(&dev->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&dev->entries, entries, memory_order_relaxed);
    atomic_fetch_add_explicit(&dev->invalidates, invalidates, memory_order_relaxed);
}

enum mb_err mb__cuda_submit_fence(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                  const struct mb_hw_cmd *cmds, unsigned count,
                                  struct mb_hw_fence *done)
{
    struct mb_cuda *dev = mb__cuda(hw);
    struct mb_cuda_scope scope;
    struct mb_hw_fence fence = {.stream = NULL};
    enum mb_err err = check_kinds(cmds, count);

    if (!err)
        err = mb__cuda_enter(dev, &scope);
    if (err)
        return err;
    pthread_mutex_lock(&stream->lock);
    if (dev->tables == MB_CUDA_INLINE)
        err = mb__cuda_inline_submit(dev, stream, cmds, count, &fence);
    else if (dev->tables == MB_CUDA_ISOLATED)
        err = mb__cuda_isolated_submit(dev, stream, cmds, count, &fence);
    else
        err = mb__cuda_driver_submit(dev, stream, cmds, count, &fence);
    pthread_mutex_unlock(&stream->lock);
    mb__cuda_leave(dev, &scope);
    if (err)
        return err;
    count_batch(dev, cmds, count);
    if (done)
        *done = fence;
    return MB_OK;
}

enum mb_err mb__cuda_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                            const struct mb_hw_cmd *cmds, unsigned count)
{
    return mb__cuda_submit_fence(hw, stream, cmds, count, NULL);
}

/* ------------------------------------------------------------ tables that are the driver's */

static enum mb_err table_alloc(struct mb_hw_dev *hw, uint64_t bytes, uint64_t *phys)
{
    (void)hw;
    (void)bytes;
    (void)phys;
    return mb__fail(MB_ERR_NOT_SUPPORTED, "page tables of a CUDA context belong to the driver");
}

static void table_free(struct mb_hw_dev *hw, uint64_t phys, uint64_t bytes)
{
    (void)hw;
    (void)phys;
    (void)bytes;
}

static uint64_t root_phys(struct mb_hw_dev *hw)
{
    return mb__cuda(hw)->space.pdb;
}

/* ------------------------------------------------------------ observation */

static void counters(struct mb_hw_dev *hw, struct mb_hw_counters *out)
{
    struct mb_cuda *dev = mb__cuda(hw);

    memset(out, 0, sizeof(*out));
    out->batches = atomic_load(&dev->batches);
    out->entries_written = atomic_load(&dev->entries);
    out->invalidates = atomic_load(&dev->invalidates);
    if (!atomic_load(&dev->gone) && !mb__cuda_forked())
        out->wrong_words = atomic_load(&dev->pinned->wrong);
    pthread_mutex_lock(&dev->table_lock);
    out->overhead_bytes = dev->overhead_bytes;
    out->table_bytes = dev->table_bytes;
    pthread_mutex_unlock(&dev->table_lock);
}

static enum mb_err health(struct mb_hw_dev *hw)
{
    struct mb_cuda *dev = mb__cuda(hw);
    int lost = atomic_load_explicit(&dev->lost, memory_order_acquire);
    struct mb_cuda_scope scope;
    cu_result result;

    if (!lost) {
        (void)mb__cuda_context_lives(dev);
        lost = atomic_load_explicit(&dev->lost, memory_order_acquire);
    }
    if (!lost && !mb__cuda_enter(dev, &scope)) {
        result = dev->cu->stream_query(dev->private_stream);
        if (result != CU_NOT_READY)
            (void)mb__cuda_result(dev, result, "the context");
        mb__cuda_leave(dev, &scope);
        lost = atomic_load_explicit(&dev->lost, memory_order_acquire);
    }
    return lost ? mb__fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text) : MB_OK;
}

/* ------------------------------------------------------------ open */

static enum mb_err load_kernels(struct mb_cuda *dev)
{
    struct {
        cu_function *to;
        const char *name;
    } list[] = {{&dev->pop_s, "mb_pop_s"},
                {&dev->pop_m, "mb_pop_m"},
                {&dev->pop_l, "mb_pop_l"},
                {&dev->pop_xl, "mb_pop_xl"},
                {&dev->pop_ring, "mb_pop_ring"},
                {&dev->await, "mb_await"},
                {&dev->trap, "mb_trap"},
                {&dev->nop, "mb_nop"},
                {&dev->fill, "mb_fill"},
                {&dev->verify, "mb_verify"},
                {&dev->copy, "mb_copy"},
                {&dev->copy_list_s, "mb_copy_list_s"},
                {&dev->copy_list_l, "mb_copy_list_l"}};
    enum mb_err err;

    if (!mb__cuda_fatbin_size)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "this build has no CUDA kernels: nvcc was not found when it was made");
    err = mb__cuda_check(dev->cu, dev->cu->module_load(&dev->module, mb__cuda_fatbin),
                         "loading MoonBright's kernels");
    for (unsigned i = 0; !err && i < sizeof(list) / sizeof(list[0]); i++)
        err = mb__cuda_check(
            dev->cu, dev->cu->module_function(list[i].to, dev->module, list[i].name), list[i].name);
    return err;
}

static enum mb_err open_context(struct mb_cuda *dev)
{
    const struct mb_cuda_driver *cu = dev->cu;
    struct cu_uuid uuid;
    cu_context popped;
    int count = 0;
    enum mb_err err = mb__cuda_check(cu, cu->init(0), "cuInit");

    (void)cu->driver_version(&dev->driver_version);

    if (!err)
        err = mb__cuda_check(cu, cu->device_count(&count), "counting devices");
    if (err)
        return mb__fail_in(MB_ERR_NO_DEVICE, "no CUDA device can be used");
    if (dev->ordinal < 0 || dev->ordinal >= count)
        return mb__fail(MB_ERR_NO_DEVICE, "device %d of %d CUDA devices", dev->ordinal, count);
    err = mb__cuda_check(cu, cu->device_get(&dev->device, dev->ordinal), "cuDeviceGet");
    if (!err)
        err = mb__cuda_check(cu, cu->device_uuid(&uuid, dev->device), "cuDeviceGetUuid");
    if (!err)
        err = mb__cuda_check(cu, cu->primary_retain(&dev->ctx, dev->device), "the primary context");
    if (err)
        return err;
    memcpy(dev->uuid, uuid.bytes, sizeof(dev->uuid));
    err = mb__cuda_check(cu, cu->ctx_push(dev->ctx), "the primary context");
    if (!err) {
        err =
            mb__cuda_check(cu, cu->ctx_id(dev->ctx, &dev->ctx_id), "the primary context's number");
        if (err)
            (void)cu->ctx_pop(&popped);
    }
    if (err) {
        (void)cu->primary_release(dev->device);
        dev->ctx = NULL;
    }
    return err;
}

static enum mb_err open_basics(struct mb_cuda *dev)
{
    const struct mb_cuda_driver *cu = dev->cu;
    enum mb_err err = load_kernels(dev);
    int sms = 0;

    if (!err)
        err = mb__cuda_check(cu, cu->stream_create(&dev->private_stream, CU_STREAM_NON_BLOCKING),
                             "creating a stream");
    if (!err)
        err = mb__cuda_streams_init(dev);
    if (!err)
        err = mb__cuda_check(cu, cu->device_attr(&sms, CU_ATTR_MULTIPROCESSORS, dev->device),
                             "asking for multiprocessors");
    dev->multiprocessors = (unsigned)sms;
    return err;
}

static enum mb_err make_owned(struct mb_cuda *dev, uint64_t frames)
{
    dev->owned_frames = frames;
    dev->owned = calloc((size_t)frames + MB_CUDA_OWNED_SLACK, 1);
    if (dev->owned && dev->tables == MB_CUDA_DRIVER)
        dev->frame_handle = calloc((size_t)frames, sizeof(*dev->frame_handle));
    if (!dev->owned || (dev->tables == MB_CUDA_DRIVER && !dev->frame_handle))
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for the record of frames");
    return MB_OK;
}

static enum mb_err open_device_tables(struct mb_cuda *dev)
{
    enum mb_err err = mb__cuda_discover(dev);

    if (!err)
        err = make_owned(dev, dev->phys->bytes >> MB_FRAME_SHIFT);
    if (!err)
        err = mb__cuda_refill_start(dev);
    if (!err)
        return MB_OK;
    mb__cuda_refill_stop(dev);
    mb__cuda_discover_undo(dev);
    free(dev->owned);
    dev->owned = NULL;
    return err;
}

static enum mb_err open_driver_tables(struct mb_cuda *dev, size_t total)
{
    int major = 0;

    dev->tables = MB_CUDA_DRIVER;
    (void)dev->cu->device_attr(&major, CU_ATTR_CC_MAJOR, dev->device);
    dev->space = (struct mb_cuda_space){.fmt = major >= 9 ? MB_FMT_GMMU_V3 : MB_FMT_GMMU_V2,
                                        .kind = NVRM_KIND_GENERIC};
    enum mb_err err = make_owned(dev, 4 * (total >> MB_FRAME_SHIFT));
    return err ? err : mb__cuda_worker_start(dev);
}

/* `wanted`: NULL, "inline", "isolated", "driver"; `seen`: the observer's verdict. */
static enum mb_err choose_tables(struct mb_cuda *dev, const char *wanted, enum mb_err seen,
                                 const char *seen_text, size_t total)
{
    enum mb_err err = seen;

    if (wanted && !strcmp(wanted, "driver")) {
        snprintf(dev->tables_reason, sizeof(dev->tables_reason), "driver tables were asked for");
        return open_driver_tables(dev, total);
    }
    if (wanted && strcmp(wanted, "inline") != 0 && strcmp(wanted, "isolated") != 0)
        return mb__fail(MB_ERR_CONFIG, "tables:%s is unknown; inline, isolated or driver", wanted);
    dev->tables = wanted && !strcmp(wanted, "isolated") ? MB_CUDA_ISOLATED : MB_CUDA_INLINE;
    dev->room_ns = MB_CUDA_ROOM_NS;
    dev->room_ask_ns = MB_CUDA_ROOM_ASK_NS;
    if (!err)
        err = open_device_tables(dev);
    else
        (void)mb__fail(err, "%s", seen_text);
    if (!err)
        return MB_OK;
    if (wanted)
        return mb__fail_in(err, "tables:%s is not possible", wanted);
    snprintf(dev->tables_reason, sizeof(dev->tables_reason), "%s", mb_error_detail());
    /* A rank that finds another process on its GPU can change that; a user without root cannot. */
    mb__log(err == MB_ERR_BUSY ? MB_LOG_WARN : MB_LOG_INFO, "cuda", "driver tables: %s",
            dev->tables_reason);
    return open_driver_tables(dev, total);
}

static void fill_caps(struct mb_cuda *dev, size_t total)
{
    static const char *const names[] = {"driver", "device-inline", "device-isolated"};
    struct mb_hw_caps *c = &dev->base.caps;
    bool driver = dev->tables == MB_CUDA_DRIVER;

    c->format = dev->space.fmt;
    c->kind = dev->space.kind;
    c->home_by_driver = true;
    c->host_blocking = driver;
    c->device_scrub = dev->scrub_device && dev->tables == MB_CUDA_INLINE;
    c->neighbours_cached = !driver;
    c->group_slots = driver ? 1 : 16;
    c->total_bytes = dev->limit_bytes < total ? dev->limit_bytes : total;
    c->slab_step_bytes = driver ? (uint64_t)2 << 20 : (uint64_t)32 << 20;
    c->va_bytes = MB_CUDA_VA_BYTES;
    c->leaf_sizes = MB_FRAME_BYTES;
    c->submit_ns = driver ? 6000 : dev->tables == MB_CUDA_INLINE ? 4000 : 8000;
    c->entry_ns = driver ? 26000 : 1;
    c->invalidate_ns = driver ? 0 : 3000;
    c->slab_ns = driver ? 35000 : 120000;
    (void)dev->cu->device_name(c->device_name, (int)sizeof(c->device_name), dev->device);
    if (dev->rm)
        snprintf(c->driver, sizeof(c->driver), "%s", dev->rm->version.text);
    else
        snprintf(c->driver, sizeof(c->driver), "CUDA %d.%d", dev->driver_version / 1000,
                 dev->driver_version % 1000 / 10);
    c->tables = names[dev->tables];
}

static void close_context(struct mb_cuda *dev)
{
    cu_context popped;

    bool destroyed = atomic_load(&dev->destroyed);

    mb__cuda_streams_fini(dev);
    if (dev->private_stream && !destroyed)
        (void)dev->cu->stream_destroy(dev->private_stream);
    if (dev->module && !destroyed)
        (void)dev->cu->module_unload(dev->module);
    (void)dev->cu->ctx_pop(&popped);
    (void)dev->cu->primary_release(dev->device);
}

static void free_record(struct mb_cuda *dev)
{
    pthread_mutex_destroy(&dev->table_lock);
    free(dev->owned);
    free(dev->frame_handle);
    free(dev);
}

/* Installed before cuInit; what is known about libcuda afterwards decides about device tables. */
static enum mb_err observe_early(const char *wanted, char text[256])
{
    enum mb_err err;

    text[0] = '\0';
    mb__cuda_lifetime_init();
    if (wanted && !strcmp(wanted, "driver"))
        return MB_OK;
    err = mb__cuda_observe(mb__cuda_guard);
    if (err)
        snprintf(text, 256, "%s", mb_error_detail());
    return err;
}

enum mb_err mb__cuda_open(const struct mb_hw_config *config, struct mb_hw_dev **out)
{
    const struct mb_cuda_driver *cu;
    struct mb_cuda *dev;
    char text[256];
    size_t free_bytes = 0, total = 0;
    cu_context popped;
    enum mb_err err = mb__cuda_driver_open(&cu), seen;

    if (err)
        return err;
    if (mb__cuda_forked())
        return mb__fail(MB_ERR_FORKED, "a fork of a process with an open device cannot open one");
    seen = observe_early(config->tables, text);
    dev = calloc(1, sizeof(*dev));
    if (!dev)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a device");
    dev->base.ops = &ops;
    dev->cu = cu;
    dev->ordinal = config->ordinal;
    dev->owner_pid = getpid();
    dev->force = config->force;
    dev->early_maps = config->early_maps;
    dev->scrub_device = config->scrub && strcmp(config->scrub, "device") == 0;
    dev->param_frames = MB_POP_LIST_XL;
    dev->pop_threads = MB_POP_THREADS;
    dev->limit_bytes = config->device_memory_bytes ? config->device_memory_bytes : UINT64_MAX;
    atomic_flag_clear(&dev->views_busy);
    pthread_mutex_init(&dev->table_lock, NULL);
    err = mb__cuda_helper_config(dev, config);
    if (!err)
        err = open_context(dev);
    if (err)
        goto undo_record;
    err = open_basics(dev);
    if (!err)
        err = mb__cuda_check(cu, cu->mem_info(&free_bytes, &total), "asking for memory");
    if (!err)
        err = choose_tables(dev, config->tables, seen, text, total);
    if (err)
        goto undo_context;
    fill_caps(dev, total);
    mb__cuda_register(dev);
    (void)cu->ctx_pop(&popped);
    *out = &dev->base;
    return MB_OK;
undo_context:
    close_context(dev);
undo_record:
    free_record(dev);
    return err;
}

/* ------------------------------------------------------------ close */

static void drop_windows(struct mb_cuda *dev)
{
    while (dev->windows) {
        struct mb_hw_view view = {.cookie = (uintptr_t)dev->windows};

        mb__cuda_tree_disown(&dev->base, &view);
    }
}

static void drop_slabs(struct mb_cuda *dev)
{
    while (dev->slabs && !dev->slabs->released) {
        struct mb_hw_slab slab = {.cookie = (uintptr_t)dev->slabs};

        if (mb__cuda_slab_release(&dev->base, &slab))
            break;
    }
}

/* After the watchdog has ended, which looks at the queues. */
static void drop_queues(struct mb_cuda *dev)
{
    for (struct mb_hw_stream *s = dev->streams; s; s = s->next) {
        mb__cuda_queue_destroy(dev, s->queue);
        s->queue = NULL;
    }
}

/* The context is gone: only what the kernel driver and the host hold is ours to free. */
static void close_lost(struct mb_cuda *dev)
{
    bool gone = atomic_load(&dev->gone);

    if (mb__cuda_restore_windows(dev))
        (void)mb__cuda_rescue_invalidate(dev, 1000000);
    mb__cuda_refill_stop(dev);
    drop_queues(dev);
    mb__nvrm_mem_destroy(&dev->shared_rm);
    mb__cuda_pages_drop(dev);
    mb__nvrm_phys_destroy(&dev->phys);
    mb__nvrm_vas_destroy(&dev->vas);
    mb__nvrm_client_close(&dev->rm);
    mb__cuda_streams_fini(dev);
    if (!gone)
        (void)dev->cu->primary_release(dev->device);
}

static void close_live(struct mb_cuda *dev)
{
    drop_windows(dev);
    drop_slabs(dev);
    mb__cuda_refill_stop(dev);
    drop_queues(dev);
    if (dev->list_va)
        (void)dev->cu->unreserve(dev->list_va, MB_FRAME_BYTES);
    mb__cuda_discover_undo(dev);
    mb__cuda_lists_free(dev);
    mb__cuda_scrub_fini(dev);
    close_context(dev);
}

/* A reset context takes no mapping and no handle with it: they are given back in its successor. */
static bool enter_successor(struct mb_cuda *dev)
{
    cu_context ctx;

    if (!atomic_load(&dev->destroyed) || atomic_load(&dev->gone) ||
        dev->cu->primary_retain(&ctx, dev->device) != CU_OK)
        return false;
    dev->ctx = ctx;
    dev->closing = true;
    return true;
}

static void close_device(struct mb_hw_dev *hw)
{
    struct mb_cuda *dev = mb__cuda(hw);
    bool live;

    if (mb__cuda_forked()) /* the parent's: nothing of it is ours to touch */
        return;
    if (!mb__cuda_context_lives(dev) || mb__cuda_device_sync(hw))
        mb__log(MB_LOG_WARN, "cuda", "closing: %s", mb_error_detail());
    mb__cuda_worker_stop(dev);
    mb__cuda_unregister(dev);
    live =
        (!atomic_load(&dev->lost) || enter_successor(dev)) && dev->cu->ctx_push(dev->ctx) == CU_OK;
    if (live)
        close_live(dev);
    else
        close_lost(dev);
    free_record(dev);
}

static const struct mb_hw_ops ops = {
    .name = "cuda",
    .close = close_device,
    .va_reserve = mb__cuda_va_reserve,
    .va_release = mb__cuda_va_release,
    .slab_acquire = mb__cuda_slab_acquire,
    .slab_release = mb__cuda_slab_release,
    .table_alloc = table_alloc,
    .table_free = table_free,
    .root_phys = root_phys,
    .tree_adopt = mb__cuda_tree_adopt,
    .tree_disown = mb__cuda_tree_disown,
    .submit = mb__cuda_submit,
    .stream_create = mb__cuda_stream_create,
    .stream_destroy = mb__cuda_stream_destroy,
    .stream_open = mb__cuda_stream_open,
    .stream_close = mb__cuda_stream_close,
    .fence_record = mb__cuda_fence_record,
    .fence_done = mb__cuda_fence_done,
    .fence_wait_stream = mb__cuda_fence_wait_stream,
    .fence_wait_host = mb__cuda_fence_wait_host,
    .device_sync = mb__cuda_device_sync,
    .fill = mb__cuda_fill,
    .verify = mb__cuda_verify,
    .copy = mb__cuda_copy,
    .copy_list = mb__cuda_copy_list,
    .counters = counters,
    .health = health,
    .read_slots = mb__cuda_read_slots,
    .submit_fence = mb__cuda_submit_fence,
    .scrub_slots = mb__cuda_scrub_slots,
    .peer_access = mb__cuda_peer_access,
    .stream_capturing = mb__cuda_stream_capturing,
    .event_wait = mb__cuda_event_wait,
};
