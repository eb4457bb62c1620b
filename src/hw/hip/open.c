/* SPDX-License-Identifier: MIT */
/* open.c - the backend's table of functions, opening and closing. */
#include "hw/hip/hip.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static const struct mb_hw_ops ops;

/* ------------------------------------------------------------ entering */

enum mb_err mb__hip_lose(struct mb_hip *dev, enum mb_err err, const char *format, ...)
{
    int expected = MB_OK;
    char text[sizeof(dev->lost_text)];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!strncmp(text, MB_HIP_PREFIX, strlen(MB_HIP_PREFIX))) /* said again below */
        memmove(text, text + strlen(MB_HIP_PREFIX), strlen(text) - strlen(MB_HIP_PREFIX) + 1);
    /* MB_ERR_INTERNAL marks "text is being written"; readers treat any value as lost. */
    if (atomic_compare_exchange_strong(&dev->lost, &expected, MB_ERR_INTERNAL)) {
        memcpy(dev->lost_text, text, sizeof(text));
        atomic_store_explicit(&dev->lost, (int)err, memory_order_release);
        mb__log(MB_LOG_ERROR, "hip", "device %d lost (" MB_HIP_NOTE "): %s", dev->ordinal, text);
    }
    return mb__hip_fail(err, "%s", text);
}

enum mb_err mb__hip_result(struct mb_hip *dev, hip_result result, const char *what)
{
    enum mb_err err = mb__hip_check(dev->hip, result, what);

    if (err == MB_ERR_DEVICE_LOST)
        (void)mb__hip_lose(dev, err, "%s", mb_error_detail());
    return err;
}

enum mb_err mb__hip_enter(struct mb_hip *dev, struct mb_hip_scope *scope)
{
    int current = -1;

    scope->before = -1;
    if (getpid() != dev->owner)
        return mb__hip_fail(MB_ERR_FORKED,
                            "this process is a fork of process %d, which owns the "
                            "device; open it again after exec",
                            (int)dev->owner);
    if (atomic_load_explicit(&dev->lost, memory_order_acquire))
        return mb__hip_fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text);
    if (dev->hip->get_device(&current) == HIP_OK && current == dev->ordinal)
        return MB_OK;
    if (dev->hip->set_device(dev->ordinal) != HIP_OK)
        return mb__hip_lose(dev, MB_ERR_DEVICE_LOST, "device %d cannot be made current",
                            dev->ordinal);
    scope->before = current;
    return MB_OK;
}

void mb__hip_leave(struct mb_hip *dev, struct mb_hip_scope *scope)
{
    if (scope->before >= 0)
        (void)dev->hip->set_device(scope->before);
}

/* ------------------------------------------------------------ tables that are the driver's */

static enum mb_err table_alloc(struct mb_hw_dev *hw, uint64_t bytes, uint64_t *phys)
{
    (void)hw;
    (void)bytes;
    (void)phys;
    return mb__hip_fail(MB_ERR_NOT_SUPPORTED, "page tables belong to the driver");
}

static void table_free(struct mb_hw_dev *hw, uint64_t phys, uint64_t bytes)
{
    (void)hw;
    (void)phys;
    (void)bytes;
}

static uint64_t root_phys(struct mb_hw_dev *hw)
{
    (void)hw;
    return 0; /* not known */
}

/* ------------------------------------------------------------ observation */

static void counters(struct mb_hw_dev *hw, struct mb_hw_counters *out)
{
    struct mb_hip *dev = mb__hip(hw);

    memset(out, 0, sizeof(*out));
    out->batches = atomic_load(&dev->batches);
    out->entries_written = atomic_load(&dev->entries);
    out->invalidates = atomic_load(&dev->invalidates);
    if (getpid() != dev->owner)
        return;
    for (unsigned i = 0; i < MB_HIP_STREAMS; i++)
        out->wrong_words += atomic_load_explicit(&dev->wrong[i], memory_order_relaxed);
}

static enum mb_err health(struct mb_hw_dev *hw)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);
    hip_result result;

    if (err)
        return err;
    result = dev->hip->stream_query(NULL);
    if (mb__hip_err(result) == MB_ERR_DEVICE_LOST)
        err = mb__hip_result(dev, result, "the device");
    mb__hip_leave(dev, &scope);
    return err;
}

/* ------------------------------------------------------------ open */

static enum mb_err choose_device(struct mb_hip *dev)
{
    const struct mb_hip_driver *hip = dev->hip;
    int count = 0, vmm = 0, wait = 0;
    enum mb_err err = mb__hip_check(hip, hip->init(0), "hipInit");

    if (!err)
        err = mb__hip_check(hip, hip->device_count(&count), "counting devices");
    if (err || dev->ordinal < 0 || dev->ordinal >= count)
        return mb__hip_fail(MB_ERR_NO_DEVICE, "device %d of %d HIP devices", dev->ordinal, count);
    err = mb__hip_check(hip, hip->device_attr(&vmm, HIP_ATTR_VMM, dev->ordinal),
                        "asking for virtual memory management");
    if (!err && !vmm)
        err = mb__hip_fail(MB_ERR_NOT_SUPPORTED, "the device has no virtual memory management");
    (void)hip->device_attr(&wait, HIP_ATTR_STREAM_WAIT_VALUE, dev->ordinal);
    dev->wait_values = wait != 0;
    (void)hip->runtime_version(&dev->runtime_version);
    return err;
}

/* Frames are 2 MiB everywhere above: HIP's smallest piece has to divide that. */
static enum mb_err check_granularity(struct mb_hip *dev)
{
    struct hip_mem_prop prop = {
        .type = HIP_MEM_TYPE_PINNED,
        .location = {.type = HIP_MEM_LOCATION_DEVICE, .id = dev->ordinal},
    };
    size_t step = 0;
    enum mb_err err =
        mb__hip_check(dev->hip, dev->hip->mem_granularity(&step, &prop, HIP_GRANULARITY_MINIMUM),
                      "asking for the granularity");

    if (!err && (!step || MB_FRAME_BYTES % step))
        err = mb__hip_fail(MB_ERR_NOT_SUPPORTED,
                           "HIP maps in pieces of %zu bytes; MoonBright needs a divisor of 2 MiB",
                           step);
    return err;
}

static enum mb_err open_memory(struct mb_hip *dev)
{
    size_t free_bytes = 0, total = 0;
    enum mb_err err =
        mb__hip_check(dev->hip, dev->hip->mem_info(&free_bytes, &total), "asking for memory");

    if (err)
        return err;
    if (dev->limit_bytes > total)
        dev->limit_bytes = total;
    /* Numbers are made up, so runs must be found between what is in use: four times the room. */
    dev->frame_count = 4 * (total >> MB_FRAME_SHIFT) + 1;
    dev->frame_handle = calloc(dev->frame_count, sizeof(hip_mem));
    if (!dev->frame_handle)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for the record of frames");
    return check_granularity(dev);
}

/* Costs are not measured: map and unmap as published for the A100 model, slab likewise. */
static void fill_caps(struct mb_hip *dev)
{
    struct mb_hw_caps *c = &dev->base.caps;

    c->format = MB_FMT_GFX9_TF;
    c->kind = MB_HIP_LEAF_KIND;
    c->home_by_driver = true;
    c->host_blocking = true;
    c->group_slots = 1;
    c->fresh_is_default = true;
    c->total_bytes = dev->limit_bytes / MB_FRAME_BYTES * MB_FRAME_BYTES;
    c->slab_step_bytes = MB_FRAME_BYTES;
    c->va_bytes = (uint64_t)4 << 40; /* HIP takes addresses from the host program's own 128 TiB */
    c->leaf_sizes = MB_FRAME_BYTES;
    c->submit_ns = 6000;
    c->entry_ns = 35000;
    c->slab_ns = 60000;
    (void)dev->hip->device_name(c->device_name, (int)sizeof(c->device_name), dev->ordinal);
    snprintf(c->driver, sizeof(c->driver), "HIP %d.%d (" MB_HIP_NOTE ")",
             dev->runtime_version / 10000000, dev->runtime_version / 100000 % 100);
    c->tables = "driver";
}

static void destroy(struct mb_hip *dev)
{
    mb__hip_streams_fini(dev);
    mb__hip_work_fini(dev);
    pthread_mutex_destroy(&dev->stream_lock);
    pthread_mutex_destroy(&dev->table_lock);
    pthread_mutex_destroy(&dev->map_lock);
    pthread_cond_destroy(&dev->leave_changed);
    free(dev->frame_handle);
    free(dev);
}

static struct mb_hip *new_device(const struct mb_hip_driver *hip, const struct mb_hw_config *config)
{
    struct mb_hip *dev = calloc(1, sizeof(*dev));

    if (!dev)
        return NULL;
    dev->base.ops = &ops;
    dev->hip = hip;
    dev->ordinal = config->ordinal;
    dev->owner = getpid();
    dev->limit_bytes = config->device_memory_bytes ? config->device_memory_bytes : UINT64_MAX;
    pthread_mutex_init(&dev->stream_lock, NULL);
    pthread_mutex_init(&dev->table_lock, NULL);
    pthread_mutex_init(&dev->map_lock, NULL);
    pthread_cond_init(&dev->leave_changed, NULL);
    return dev;
}

enum mb_err mb__hip_open(const struct mb_hw_config *config, struct mb_hw_dev **out)
{
    const struct mb_hip_driver *hip;
    struct mb_hip_scope scope;
    struct mb_hip *dev;
    enum mb_err err = mb__hip_driver_open(&hip);

    if (err)
        return err;
    if (config->tables && strcmp(config->tables, "driver") != 0)
        return mb__hip_fail(
            MB_ERR_NOT_SUPPORTED,
            "tables:%s is not possible: only the driver writes page tables here, until "
            "the kernel driver maps them into the process; use tables:driver",
            config->tables);
    dev = new_device(hip, config);
    if (!dev)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for a device");
    err = choose_device(dev);
    if (!err)
        err = mb__hip_enter(dev, &scope);
    if (err)
        goto undo;
    err = open_memory(dev);
    if (!err)
        err = mb__hip_work_init(dev);
    if (!err)
        err = mb__hip_streams_init(dev);
    if (!err)
        err = mb__hip_tables_start(dev);
    mb__hip_leave(dev, &scope);
    if (err)
        goto undo;
    fill_caps(dev);
    mb__log(MB_LOG_INFO, "hip", "device %d, %s, by %s", dev->ordinal, dev->base.caps.driver,
            hip->file);
    *out = &dev->base;
    return MB_OK;
undo:
    destroy(dev);
    return err;
}

static void close_device(struct mb_hw_dev *hw)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    bool live;

    if (getpid() != dev->owner) /* the parent's: nothing of it is ours to touch */
        return;
    if (mb__hip_device_sync(hw))
        mb__log(MB_LOG_WARN, "hip", "closing: %s", mb_error_detail());
    mb__hip_settle(dev);
    mb__hip_tables_stop(dev);
    live = !mb__hip_enter(dev, &scope);
    mb__hip_drop_windows(dev, live);
    mb__hip_drop_slabs(dev, live);
    mb__hip_drop_reserves(dev, live);
    mb__log(MB_LOG_DEBUG, "hip", "%" PRIu64 " batches waited for their stream (" MB_HIP_NOTE ")",
            atomic_load(&dev->waits));
    if (live)
        mb__hip_leave(dev, &scope);
    destroy(dev);
}

static const struct mb_hw_ops ops = {
    .name = "hip",
    .close = close_device,
    .va_reserve = mb__hip_va_reserve,
    .va_release = mb__hip_va_release,
    .slab_acquire = mb__hip_slab_acquire,
    .slab_release = mb__hip_slab_release,
    .table_alloc = table_alloc,
    .table_free = table_free,
    .root_phys = root_phys,
    .tree_adopt = mb__hip_tree_adopt,
    .tree_disown = mb__hip_tree_disown,
    .submit = mb__hip_submit,
    .stream_create = mb__hip_stream_create,
    .stream_destroy = mb__hip_stream_destroy,
    .stream_open = mb__hip_stream_open,
    .stream_close = mb__hip_stream_close,
    .fence_record = mb__hip_fence_record,
    .fence_done = mb__hip_fence_done,
    .fence_wait_stream = mb__hip_fence_wait_stream,
    .fence_wait_host = mb__hip_fence_wait_host,
    .device_sync = mb__hip_device_sync,
    .fill = mb__hip_fill,
    .verify = mb__hip_verify,
    .copy = mb__hip_copy,
    .copy_list = mb__hip_copy_list,
    .counters = counters,
    .health = health,
    .read_slots = mb__hip_read_slots,
    .peer_access = mb__hip_peer_access,
    .stream_capturing = mb__hip_stream_capturing,
};
