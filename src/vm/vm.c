/* SPDX-License-Identifier: MIT */
/*
 * Opening, closing and small things of vm.
 *
 * Locking   One lock of rank MB_RANK_VM over the whole record. It is held across calls of the
 *           backend, none of which waits for the device but fence_wait_host and device_sync. Those
 *           are called with the lock held only for fences of the internal stream, which waits for
 *           nobody; waits for callers' streams are made without the lock.
 * Trade-off One lock: a batch is a few microseconds of record work, and the backend's submission is
 *           serial anyway.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/log.h"
#include "vm/internal.h"

#ifdef MB_MUTANTS
_Atomic int mb__vm_mutant = MB_VM_NO_MUTANT;
#endif

enum mb_err mb__no_host_memory(const char *what)
{
    return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %s; nothing was changed", what);
}

bool mb__fence_passed(struct mb_vm *vm, struct mb_hw_fence fence)
{
    return !fence.stream || vm->hw->ops->fence_done(vm->hw, fence);
}

/*
 * Submits and says when it is done. When the ticket of an accepted submission cannot be taken, a
 * wait for the whole device stands in for it. When that fails too nobody can say what has been
 * executed: the vm is lost, and every later call that would hand out or reuse something is refused.
 */
enum mb_err mb__vm_submit(struct mb_vm *vm, struct mb_hw_stream *stream,
                          const struct mb_hw_cmd *cmds, size_t count, struct mb_hw_fence *fence)
{
    const struct mb_hw_ops *ops = vm->hw->ops;
    struct mb_hw_fence ticket;
    enum mb_err err;

    if (ops->submit_fence)
        return ops->submit_fence(vm->hw, stream, cmds, (unsigned)count, fence);
    err = ops->submit(vm->hw, stream, cmds, (unsigned)count);
    if (err)
        return err;
    if (ops->fence_record(vm->hw, stream, &ticket)) {
        ticket = (struct mb_hw_fence){0};
        if (ops->device_sync(vm->hw)) {
            vm->lost = true;
            return mb__fail_in(MB_ERR_DEVICE_LOST,
                               "a batch was submitted, but neither its fence nor "
                               "a wait for the device could be had");
        }
    }
    *fence = ticket;
    return MB_OK;
}

void mb__vm_lose(struct mb_vm *vm)
{
    mb__lock(&vm->lock);
    vm->lost = true;
    mb__unlock(&vm->lock);
}

enum mb_err mb__vm_usable(const struct mb_vm *vm)
{
    if (vm->lost)
        return mb__fail(MB_ERR_DEVICE_LOST,
                        "an earlier batch or change of access has an unknown outcome, so no frame "
                        "or address may be reused; close the device");
    return MB_OK;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t round_up(uint64_t x, uint64_t step)
{
    return (x + step - 1) / step * step;
}

static enum mb_err check_config(const struct mb_hw_caps *caps, const struct mb_vm_config *config)
{
    if (config->policy > MB_VM_POLICY_FRESH)
        return mb__fail(MB_ERR_INVALID, "policy %d; allowed are auto, inline and fresh",
                        (int)config->policy);
    if (config->home_bytes % MB_FRAME_BYTES || config->ring_bytes % MB_FRAME_BYTES ||
        config->max_run_bytes % MB_FRAME_BYTES)
        return mb__fail(MB_ERR_INVALID,
                        "home_space is %" PRIu64 ", window_space %" PRIu64
                        " bytes; both must be multiples of 2 MiB",
                        config->home_bytes, config->ring_bytes);
    if (config->home_bytes && config->home_bytes < min_u64(caps->total_bytes, MB_FRAME_BYTES))
        return mb__fail(MB_ERR_INVALID, "home_space is smaller than one frame");
    return MB_OK;
}

/* Address space by default: four times the memory, so that holes of released slabs rarely
 * matter. */
static void choose_sizes(struct mb_vm *vm)
{
    const struct mb_hw_caps *caps = &vm->hw->caps;
    struct mb_vm_config *config = &vm->config;
    uint64_t total = round_up(caps->total_bytes, MB_FRAME_BYTES);
    uint64_t unit = UINT64_C(1) << 32;

    if (!config->home_bytes)
        config->home_bytes = min_u64(round_up(4 * total, unit), UINT64_C(1) << 40);
    if (!config->ring_bytes)
        config->ring_bytes =
            min_u64(max_u64(round_up(4 * total, unit), UINT64_C(1) << 38), UINT64_C(1) << 40);
    if (caps->va_bytes) {
        config->home_bytes =
            min_u64(config->home_bytes, caps->va_bytes / 2 & ~(MB_FRAME_BYTES - 1));
        config->ring_bytes =
            min_u64(config->ring_bytes, caps->va_bytes / 4 & ~(MB_FRAME_BYTES - 1));
    }
    if (!config->max_run_bytes)
        config->max_run_bytes = UINT64_C(512) << 20;
    vm->limit_bytes = caps->total_bytes & ~(MB_FRAME_BYTES - 1);
    if (config->limit_bytes)
        vm->limit_bytes = min_u64(vm->limit_bytes, config->limit_bytes & ~(MB_FRAME_BYTES - 1));
    vm->fresh = config->policy == MB_VM_POLICY_FRESH ||
                (config->policy == MB_VM_POLICY_AUTO && caps->fresh_is_default);
    vm->guard_groups = config->no_guard ? 0 : 1;
    vm->epoch_bytes = config->ring_bytes / 8;
}

static enum mb_err open_home(struct mb_vm *vm)
{
    enum mb_err err = mb__region_open(vm, MB__REGION_HOME, vm->config.home_bytes, MB_FRAME_SHIFT);

    if (err)
        return err;
    vm->home_pages = vm->region[MB__REGION_HOME].slots;
    vm->homes = calloc(vm->home_pages, sizeof(*vm->homes));
    if (!vm->homes || !MB_VEC_PUSH(&vm->slabs, (struct mb__slab){0}))
        return mb__no_host_memory("the record of homes");
    err = mb__ranges_init(&vm->holes, vm->home_pages);
    if (!err)
        err = mb__ranges_init(&vm->free, vm->home_pages);
    if (err)
        return err;
    mb__ranges_add(&vm->holes, 0, vm->home_pages);
    return MB_OK;
}

static enum mb_err open_stream(struct mb_vm *vm)
{
    enum mb_err err = vm->hw->ops->stream_create(vm->hw, &vm->native);

    if (err)
        return err;
    err = vm->hw->ops->stream_open(vm->hw, vm->native, &vm->stream);
    if (err)
        vm->hw->ops->stream_destroy(vm->hw, vm->native);
    return err;
}

static void free_record(struct mb_vm *vm)
{
    mb__frames_close(vm);
    mb__ranges_fini(&vm->holes);
    mb__ranges_fini(&vm->free);
    free(vm->homes);
    MB_VEC_FREE(&vm->slabs);
    MB_VEC_FREE(&vm->taken);
    MB_VEC_FREE(&vm->dirs);
    MB_VEC_FREE(&vm->windows);
    MB_VEC_FREE(&vm->spare_windows);
    MB_VEC_FREE(&vm->queues);
    MB_VEC_FREE(&vm->batch.log);
    MB_VEC_FREE(&vm->batch.old_pfns);
    MB_VEC_FREE(&vm->batch.windows);
    MB_VEC_FREE(&vm->batch.groups);
    MB_VEC_FREE(&vm->batch.clears);
    MB_VEC_FREE(&vm->batch.writes);
    MB_VEC_FREE(&vm->batch.pfns);
    MB_VEC_FREE(&vm->batch.clear_drops);
    MB_VEC_FREE(&vm->batch.write_drops);
    MB_VEC_FREE(&vm->batch.cmds);
    mb__lock_destroy(&vm->lock);
    free(vm);
}

enum mb_err mb__vm_open(struct mb_hw_dev *hw, const struct mb_vm_config *config, struct mb_vm **out)
{
    static const struct mb_vm_config defaults;
    struct mb_vm *vm;
    enum mb_err err = check_config(&hw->caps, config ? config : &defaults);

    if (err)
        return err;
    vm = calloc(1, sizeof(*vm));
    if (!vm || mb__lock_init(&vm->lock, "vm", MB_RANK_VM)) {
        free(vm);
        return mb__no_host_memory("a vm");
    }
    vm->hw = hw;
    vm->config = config ? *config : defaults;
    vm->geo = mb_fmt_geometry(hw->caps.format);
    choose_sizes(vm);
    err = mb__frames_open(vm);
    if (!err)
        err = open_stream(vm);
    if (err)
        goto undo_record;
    err = open_home(vm);
    if (!err)
        err = mb__owner_open(vm);
    if (!err)
        err = mb__trail_open(vm);
    if (err)
        goto undo_home;
    if (!MB_VEC_PUSH(&vm->windows, NULL)) {
        err = mb__no_host_memory("the list of windows");
        goto undo_home;
    }
    *out = vm;
    return MB_OK;

undo_home:
    mb__trail_close(vm, true);
    mb__registry_close(vm);
    mb__region_close(vm, &vm->region[MB__REGION_HOME]);
    hw->ops->stream_close(hw, vm->stream);
    hw->ops->stream_destroy(hw, vm->native);
undo_record:
    free_record(vm);
    return err;
}

static void drop_waits(struct mb_vm *vm)
{
    for (size_t i = 0; i < vm->queues.count; i++) {
        struct mb__wait *next;

        for (struct mb__wait *wait = vm->queues.data[i].head; wait; wait = next) {
            next = wait->next;
            free(wait); /* its window is in the list of windows */
        }
    }
    vm->queues.count = 0;
}

void mb__vm_close(struct mb_vm *vm)
{
    const struct mb_hw_ops *ops;
    bool alive;

    if (!vm)
        return;
    ops = vm->hw->ops;
    alive = !vm->lost && !ops->device_sync(vm->hw);
    mb__lock(&vm->lock);
    if (alive) {
        mb__poll(vm);
        mb__unmap_all(vm);
    }
    mb__windows_close(vm);
    mb__slabs_close(vm, alive);
    mb__pgt_close(vm, alive);
    for (unsigned i = 0; i < MB__REGIONS; i++)
        mb__region_close(vm, &vm->region[i]);
    drop_waits(vm);
    mb__trail_close(vm, alive);
    mb__registry_close(vm);
    mb__unlock(&vm->lock);
    ops->stream_close(vm->hw, vm->stream);
    if (ops->stream_destroy(vm->hw, vm->native))
        mb__log(MB_LOG_WARN, "vm", "the internal stream was not given back: %s", mb_error_detail());
    free_record(vm);
}

struct mb_hw_dev *mb__vm_hw(struct mb_vm *vm)
{
    return vm->hw;
}

void mb__vm_poll(struct mb_vm *vm)
{
    mb__lock(&vm->lock);
    mb__poll(vm);
    mb__unlock(&vm->lock);
}

/* Waits without the lock, so that other threads' work, which the fence may need, goes on. */
enum mb_err mb__vm_drain(struct mb_vm *vm)
{
    enum mb_err err = MB_OK;

    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    while (!err) {
        struct mb_hw_fence fence;

        mb__poll(vm);
        if (mb__wait_oldest(vm, true, &fence)) {
            mb__unlock(&vm->lock);
            err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
            mb__lock(&vm->lock);
        } else if (vm->retired) {
            err = mb__flush(vm, vm->stream, NULL);
        } else {
            break;
        }
    }
    mb__unlock(&vm->lock);
    return err;
}

void mb__vm_stats(struct mb_vm *vm, struct mb_vm_stats *out)
{
    mb__lock(&vm->lock);
    *out = vm->stats;
    out->held_bytes = vm->held * MB_FRAME_BYTES;
    out->free_bytes = vm->free.total * MB_FRAME_BYTES;
    out->draining_bytes = vm->draining * MB_FRAME_BYTES;
    out->owned_bytes = vm->owned * MB_FRAME_BYTES;
    out->table_bytes = vm->table_bytes;
    out->quarantined_bytes = vm->retired_bytes + vm->waiting_bytes;
    mb__unlock(&vm->lock);
}

mb_pfn mb__vm_lookup(struct mb_vm *vm, mb_va va)
{
    const struct mb__region *region;
    mb_pfn pfn = MB_NO_PFN;

    mb__lock(&vm->lock);
    region = mb__window_region(vm, va);
    if (region) {
        uint32_t slot = mb__slot_at(region, va);

        if (region->slot.flags[slot] & MB__SLOT_MAPPED)
            pfn = region->slot.pfn[slot];
    }
    mb__unlock(&vm->lock);
    return region ? pfn : mb__home_pfn(vm, va);
}

void mb__vm_lookup_run(struct mb_vm *vm, mb_va va, uint32_t count, mb_pfn *out)
{
    const struct mb__region *region;

    mb__lock(&vm->lock);
    region = mb__window_region(vm, va);
    for (uint32_t i = 0; region && i < count; i++, va = mb__va_add(va, MB_FRAME_BYTES)) {
        bool inside = mb__region_has(region, va);
        uint32_t slot = inside ? mb__slot_at(region, va) : 0;

        out[i] = MB_NO_PFN;
        if (inside && region->slot.flags[slot] & MB__SLOT_MAPPED)
            out[i] = region->slot.pfn[slot];
    }
    mb__unlock(&vm->lock);
    if (!region && mb__home_pfns(vm, va, count, out))
        for (uint32_t i = 0; i < count; i++)
            out[i] = MB_NO_PFN;
}
