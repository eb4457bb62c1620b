/* SPDX-License-Identifier: MIT */
/*
 * ops.c - the software GPU as a backend: opening, closing, and the short functions of the table.
 *
 * Physical layout: nothing below 256 MiB, so that address 0 is never a frame; then the frames; then
 * table memory. Addresses: 16 TiB for each ordinal, from (ordinal + 1) << 44.
 */
#include "hw/sim/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_BASE ((uint64_t)256 << 20)
/* Physical addresses kept above and below the frames for page tables. */
#define TABLE_SPACE ((uint64_t)2 << 30)
#define VA_BYTES ((uint64_t)1 << SIM_ORDINAL_SHIFT)

void mb__sim_describe(int ordinal, struct mb_backend_info *out)
{
    const struct sim_model *model = mb__sim_model_find(NULL);

    memset(out, 0, sizeof(*out));
    out->name = "sim";
    out->tables = "simulated";
    out->available = ordinal >= 0 && ordinal < SIM_ORDINALS;
    out->reason = out->available ? "software GPU: results are correct, times are modelled"
                                 : "the software GPU has ordinals 0 to 7";
    snprintf(out->device_name, sizeof(out->device_name), "%s", model->device_name);
    snprintf(out->driver, sizeof(out->driver), "%s", model->driver);
}

/* ------------------------------------------------------------ opening */

static bool named(const char *tables, const char *name)
{
    return tables && strcmp(tables, name) == 0;
}

static enum mb_err check_config(const struct mb_hw_config *config, const struct sim_model **model)
{
    *model = mb__sim_model_find(config->model);
    if (!*model)
        return mb__fail(MB_ERR_CONFIG, "model \"%s\" is unknown; allowed are h200, a100, mi210",
                        config->model);
    if (config->ordinal < 0 || config->ordinal >= SIM_ORDINALS)
        return mb__fail(MB_ERR_NO_DEVICE, "device %d asked; the software GPU has 0 to %d",
                        config->ordinal, SIM_ORDINALS - 1);
    if (config->tables && !named(config->tables, "inline") && !named(config->tables, "isolated") &&
        !named(config->tables, "driver"))
        return mb__fail(MB_ERR_CONFIG,
                        "tables \"%s\" is unknown; allowed are inline, isolated, driver",
                        config->tables);
    if (config->device_memory_bytes % MB_FRAME_BYTES ||
        config->device_memory_bytes > mb_fmt_phys_limit((*model)->fmt, MB_AP_VID) - TABLE_SPACE ||
        config->device_memory_bytes > (uint64_t)1 << 43)
        return mb__fail(
            MB_ERR_CONFIG,
            "device memory of %llu bytes; allowed are multiples of 2 MiB up to what the "
            "model's entries reach",
            (unsigned long long)config->device_memory_bytes);
    return MB_OK;
}

static void fill_caps(struct sim_dev *dev)
{
    const struct sim_model *m = dev->model;
    struct mb_hw_caps *caps = &dev->hw.caps;

    caps->format = m->fmt;
    caps->kind = m->kind;
    caps->tree_is_ours = !dev->driver_home;
    caps->fresh_is_default = !dev->driver_home && !dev->walk_ahead;
    caps->home_by_driver = dev->driver_home;
    caps->host_blocking = dev->driver_tables;
    caps->device_scrub = true;
    caps->neighbours_cached = m->group_slots > 1;
    caps->group_slots = m->group_slots;
    caps->total_bytes = dev->mem.bytes;
    caps->slab_step_bytes = (uint64_t)32 << 20;
    caps->va_bytes = dev->va_bytes;
    caps->leaf_sizes = (uint64_t)1 << 21;
    if (!dev->driver_home)
        caps->leaf_sizes |= (uint64_t)1 << 16 | (uint64_t)1 << 12;
    caps->submit_ns = dev->driver_tables ? m->map_entry_ns
                      : dev->isolated    ? m->isolated_submit_ns
                                         : m->submit_ns;
    caps->entry_ns = dev->driver_tables ? m->map_entry_ns : 1 + m->entry_ps / 1000;
    caps->invalidate_ns = m->invalidate_ns;
    caps->slab_ns = mb__sim_cost_at(m->slab, caps->slab_step_bytes);
    snprintf(caps->device_name, sizeof(caps->device_name), "%s", m->device_name);
    snprintf(caps->driver, sizeof(caps->driver), "%s", m->driver);
    caps->tables = "simulated";
}

static void apply_config(struct sim_dev *dev, const struct mb_hw_config *config)
{
    dev->ordinal = config->ordinal;
    dev->explore = config->explore;
    dev->judge = !config->no_oracle;
    dev->driver_home = config->driver_home;
    dev->walk_ahead = config->walk_ahead;
    dev->self_heal = config->self_heal;
    dev->isolated = named(config->tables, "isolated");
    dev->driver_tables = named(config->tables, "driver");
    dev->rng = config->seed;
    dev->donor = SIM_NOTHING;
    dev->va_base = (uint64_t)(config->ordinal + 1) << SIM_ORDINAL_SHIFT;
    dev->va_bytes = VA_BYTES;
    dev->fmt = dev->model->fmt;
    dev->geo = mb_fmt_geometry(dev->fmt);
    dev->pdc.epoch = dev->ce_pdc.epoch = 1;
}

static enum mb_err open_parts(struct sim_dev *dev, uint64_t bytes)
{
    enum mb_err err = mb__sim_memory_open(&dev->mem, FRAME_BASE, bytes);

    dev->tables.base = FRAME_BASE + bytes;
    for (unsigned i = 0; i < dev->model->utlbs && !err; i++)
        err = mb__sim_tlb_open(&dev->utlb[i], dev->model->utlb_entries);
    if (!err)
        err = mb__sim_tlb_open(&dev->l2, dev->model->l2_entries);
    if (!err)
        err = mb__sim_tlb_open(&dev->ce, dev->model->ce_entries);
    if (!err)
        err = mb__sim_oracle_open(dev);
    if (!err)
        err = mb__sim_table_alloc(dev, 4096, dev->driver_home, &dev->tables.root);
    if (!err && !mb__sim_stream_new(dev))
        err = MB_ERR_HOST_MEMORY;
    if (!err)
        dev->stream[0]->native_alive = true;
    return err;
}

static void free_device(struct sim_dev *dev)
{
    mb__sim_peer_forget(dev);
    mb__sim_driver_forget(dev);
    mb__sim_streams_close(dev);
    mb__sim_race_close(dev);
    mb__sim_oracle_close(dev);
    for (unsigned i = 0; i < dev->model->utlbs; i++)
        mb__sim_tlb_close(&dev->utlb[i]);
    mb__sim_tlb_close(&dev->l2);
    mb__sim_tlb_close(&dev->ce);
    for (unsigned i = 0; i < dev->tables.count; i++)
        free(dev->tables.block[i].host);
    free(dev->tables.block);
    mb__sim_memory_close(&dev->mem);
    free(dev->range);
    free(dev->posted);
    free(dev->pending);
    free(dev->scratch);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static void sim_close(struct mb_hw_dev *hw)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    (void)mb__sim_engine_wait(dev, (struct mb_hw_fence){NULL, 0}, 0);
    sim_unlock(dev);
    free_device(dev);
}

/* ------------------------------------------------------------ tables */

static enum mb_err sim_table_alloc_op(struct mb_hw_dev *hw, uint64_t bytes, uint64_t *phys)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    if (!err && dev->driver_home)
        err = mb__fail(MB_ERR_NOT_SUPPORTED,
                       "table_alloc: the tree belongs to the driver here; use tree_adopt");
    if (!err)
        err = mb__sim_table_alloc(dev, bytes, false, phys);
    sim_unlock(dev);
    return err;
}

static void sim_table_free_op(struct mb_hw_dev *hw, uint64_t phys, uint64_t bytes)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    if (!dev->explore)
        mb__sim_engine_run(dev, dev->host_ns);
    (void)mb__sim_table_free(dev, phys, bytes);
    sim_unlock(dev);
}

static uint64_t sim_root_phys(struct mb_hw_dev *hw)
{
    return sim_dev_of(hw)->tables.root; /* constant after open */
}

static enum mb_err read_slots(struct sim_dev *dev, const struct mb_hw_view *view, uint32_t first,
                              uint32_t count, struct mb_pte *out)
{
    uint64_t step = (uint64_t)view->slot_bytes * mb_fmt_leaf_slots(dev->fmt, view->leaf_shift);

    for (uint32_t i = 0; i < count; i++) {
        if (!mb__sim_table_read(dev, view->table + (first + i) * step, view->slot_bytes, &out[i]))
            return mb__fail(MB_ERR_INVALID,
                            "read_slots: slot %u of the view at 0x%llx is no table memory",
                            first + i, (unsigned long long)view->va.addr);
    }
    return MB_OK;
}

static enum mb_err sim_read_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view,
                                  uint32_t first, uint32_t count, struct mb_pte *out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    if (!dev->explore)
        mb__sim_engine_run(dev, dev->host_ns);
    if ((uint64_t)first + count > view->bytes >> view->leaf_shift)
        err = mb__fail(MB_ERR_INVALID, "read_slots: slots %u + %u lie outside the view", first,
                       count);
    else
        err = read_slots(dev, view, first, count, out);
    sim_unlock(dev);
    return err;
}

/* The scrubber's body, run over the tables as a kernel would. */
static enum mb_err sim_scrub_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view,
                                   uint32_t first, uint32_t count, const struct mb_scrub_want *want,
                                   uint32_t *wrong, uint32_t capacity, uint32_t *differing)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err = MB_OK;
    uint32_t found = 0;

    sim_lock(dev);
    if (!dev->explore)
        mb__sim_engine_run(dev, dev->host_ns);
    if ((uint64_t)first + count > view->bytes >> view->leaf_shift)
        err = mb__fail(MB_ERR_INVALID, "scrub_slots: slots %u + %u lie outside the view", first,
                       count);
    for (uint32_t i = 0; !err && i < count; i++) {
        struct mb_pte pte = {0};

        err = read_slots(dev, view, first + i, 1, &pte);
        if (!err && mb_scrub_differs(pte, want[i])) {
            if (found < capacity)
                wrong[found] = i;
            found++;
        }
    }
    if (!err)
        *differing = found;
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ fences */

static enum mb_err sim_fence_record(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                    struct mb_hw_fence *out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    if (!err)
        *out = (struct mb_hw_fence){stream, stream->graph ? stream->seq + 1 : ++stream->seq};
    sim_unlock(dev);
    return err;
}

/* A fence recorded during a capture that is over comes true where the stream is now. */
static void settle_captured(struct mb_hw_fence fence)
{
    if (fence.stream && !fence.stream->graph && fence.seq > fence.stream->seq)
        fence.stream->seq = fence.seq;
}

static bool sim_fence_done(struct mb_hw_dev *hw, struct mb_hw_fence fence)
{
    struct sim_dev *dev = sim_dev_of(hw);
    bool passed;

    if (!fence.stream)
        return true;
    sim_lock(dev);
    passed = mb__sim_fence_passed(fence);
    if (!passed && !dev->lost) {
        dev->host_ns += dev->model->query_ns;
        mb__sim_engine_run(dev, dev->host_ns);
        passed = mb__sim_fence_passed(fence) || dev->mutants & MB_SIM_EARLY_FENCE;
    }
    if (passed)
        mb__sim_race_host(dev, fence);
    sim_unlock(dev);
    return passed;
}

static enum mb_err push_wait(struct sim_dev *dev, struct mb_hw_stream *stream,
                             struct mb_hw_fence fence)
{
    enum mb_err err = mb__sim_stream_reserve(stream, 1, 0);
    struct sim_op *op;

    if (err)
        return err;
    settle_captured(fence);
    op = mb__sim_stream_push(stream, SIM_OP_WAIT);
    op->fence = fence;
    mb__sim_engine_kick(dev);
    return MB_OK;
}

static enum mb_err check_fence(struct sim_dev *dev, struct mb_hw_fence fence, const char *call)
{
    enum mb_err err = mb__sim_alive(dev);

    if (!err && fence.stream && fence.stream->dev != dev)
        err = mb__fail(MB_ERR_INVALID, "%s: the fence belongs to another device", call);
    return err;
}

static enum mb_err sim_fence_wait_stream(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                         struct mb_hw_fence fence)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = check_fence(dev, fence, "fence_wait_stream");
    if (!err)
        err = mb__sim_not_captured(stream, "fence_wait_stream");
    if (!err && fence.stream)
        err = mb__sim_not_captured(fence.stream, "fence_wait_stream");
    if (!err)
        err = push_wait(dev, stream, fence);
    sim_unlock(dev);
    return err;
}

static enum mb_err sim_event_wait(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                  struct mb_hw_fence fence)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct mb_hw_stream *other = fence.stream;
    bool inside; /* the fence is a point of a capture */
    enum mb_err err;

    sim_lock(dev);
    err = check_fence(dev, fence, "event_wait");
    if (err)
        goto out;
    inside = other && other->graph && fence.seq > other->seq;
    if (!inside && !stream->graph)
        err = push_wait(dev, stream, fence);
    else if (other != stream && (inside || !mb__sim_fence_passed(fence)))
        err = mb__sim_capture_wait(stream, other, inside);
out:
    sim_unlock(dev);
    return err;
}

static enum mb_err sim_fence_wait_host(struct mb_hw_dev *hw, struct mb_hw_fence fence,
                                       uint64_t timeout_ns)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err = MB_OK;

    if (!fence.stream)
        return MB_OK;
    sim_lock(dev);
    settle_captured(fence);
    if (fence.stream->dev != dev)
        err = mb__fail(MB_ERR_INVALID, "fence_wait_host: the fence belongs to another device");
    else
        err = mb__sim_engine_wait(dev, fence, timeout_ns);
    sim_unlock(dev);
    return err;
}

static enum mb_err sim_device_sync(struct mb_hw_dev *hw)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_engine_wait(dev, (struct mb_hw_fence){NULL, 0}, 0);
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ observation */

static void sim_counters_op(struct mb_hw_dev *hw, struct mb_hw_counters *out)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    *out = dev->counters;
    out->table_bytes = dev->tables.bytes;
    sim_unlock(dev);
}

static enum mb_err sim_health(struct mb_hw_dev *hw)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    sim_unlock(dev);
    return err;
}

static void sim_intend(struct mb_hw_dev *hw, mb_va va, uint32_t count, unsigned leaf_shift,
                       const mb_pfn *pfns)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    mb__sim_oracle_intend(dev, va.addr, count, leaf_shift, pfns);
    sim_unlock(dev);
}

static const struct mb_hw_ops sim_ops = {
    .name = "sim",
    .close = sim_close,
    .va_reserve = mb__sim_va_reserve,
    .va_release = mb__sim_va_release,
    .slab_acquire = mb__sim_slab_acquire,
    .slab_release = mb__sim_slab_release,
    .table_alloc = sim_table_alloc_op,
    .table_free = sim_table_free_op,
    .root_phys = sim_root_phys,
    .tree_adopt = mb__sim_tree_adopt,
    .tree_disown = mb__sim_tree_disown,
    .submit = mb__sim_submit,
    .stream_create = mb__sim_stream_create,
    .stream_destroy = mb__sim_stream_destroy,
    .stream_open = mb__sim_stream_open,
    .stream_close = mb__sim_stream_close,
    .fence_record = sim_fence_record,
    .fence_done = sim_fence_done,
    .fence_wait_stream = sim_fence_wait_stream,
    .fence_wait_host = sim_fence_wait_host,
    .device_sync = sim_device_sync,
    .fill = mb__sim_fill,
    .verify = mb__sim_verify,
    .copy = mb__sim_copy,
    .copy_list = mb__sim_copy_list,
    .counters = sim_counters_op,
    .health = sim_health,
    .intend = sim_intend,
    .read_slots = sim_read_slots,
    .scrub_slots = sim_scrub_slots,
    .peer_access = mb__sim_peer_access,
    .stream_capturing = mb__sim_stream_capturing,
    .event_wait = sim_event_wait,
};

/* Without an oracle: what it would be told is not worked out either. Written once. */
static struct mb_hw_ops unjudged_ops;

static void make_unjudged_ops(void)
{
    unjudged_ops = sim_ops;
    unjudged_ops.intend = NULL;
}

enum mb_err mb__sim_open(const struct mb_hw_config *config, struct mb_hw_dev **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const struct mb_hw_config defaults;
    const struct sim_model *model;
    struct sim_dev *dev;
    enum mb_err err;

    (void)pthread_once(&once, make_unjudged_ops);
    config = config ? config : &defaults;
    err = check_config(config, &model);
    if (err)
        return err;
    dev = calloc(1, sizeof(*dev));
    if (!dev)
        return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a device");
    dev->model = model;
    pthread_mutex_init(&dev->lock, NULL);
    apply_config(dev, config);
    err = open_parts(dev, config->device_memory_bytes ? config->device_memory_bytes
                                                      : model->memory_bytes);
    if (err) {
        free_device(dev);
        return err;
    }
    dev->hw.ops = dev->judge ? &sim_ops : &unjudged_ops;
    fill_caps(dev);
    *out = &dev->hw;
    return MB_OK;
}
