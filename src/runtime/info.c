/* SPDX-License-Identifier: MIT */
/* What an address is, and device work on it. Locking: the device's lock. */
#include "runtime/info.h"

#include "base/err.h"
#include "runtime/debug.h"
#include "runtime/vmm.h"

#define FRAME MB_FRAME_BYTES

/* Asks about every frame under the block only if a mapping has changed since the last time. */
static void look_at_frames(struct mb_device *dev, struct mb__block *block,
                           struct mb_pointer_info *out)
{
    uint64_t first = block->addr & ~(FRAME - 1);
    uint64_t end = block->addr + block->bytes - block->zone_bytes;
    uint32_t pages = (uint32_t)((end - first + FRAME - 1) / FRAME);

    if (block->look_pages != pages || block->look_changes != mb__vm_changes(dev->vm)) {
        struct mb_vm_look look;

        mb__vm_look(dev->vm, mb__va(first), pages, &look);
        block->look_in_a_row = look.in_a_row;
        block->look_refs = look.refs_high;
        block->look_pages = pages;
        block->look_changes = look.changes;
    }
    out->stitched = !block->look_in_a_row;
    out->aliases_high = block->look_refs;
}

enum mb_err mb__pointer_info(struct mb_device *dev, const void *ptr, struct mb_pointer_info *out)
{
    uint64_t addr = (uint64_t)(uintptr_t)ptr;
    struct mb__block *block;

    if (mb__vmm_info(dev, addr, out))
        return MB_OK;
    block = mb__block_holding(dev, addr);
    if (!block)
        return mb__fail(MB_ERR_NOT_FOUND, "%p lies in no live block and no mapping of this device",
                        ptr);
    *out = (struct mb_pointer_info){
        .base = (void *)(uintptr_t)block->addr,
        .bytes = mb__block_requested(block),
        .generation = block->generation,
        .driver_visible = !block->window && dev->hw->caps.home_by_driver,
    };
    look_at_frames(dev, block, out);
    return MB_OK;
}

enum mb_err mb__wait_mapped(struct mb_device *dev, const void *ptr)
{
    const struct mb_hw_ops *ops = dev->hw->ops;
    struct mb_hw_fence mapped = {.stream = NULL};
    struct mb__block *block;

    mb__lock(&dev->lock);
    block = mb__block_holding(dev, (uint64_t)(uintptr_t)ptr);
    if (block && block->window && block->window->mapped_on) {
        if (ops->fence_done(dev->hw, block->window->mapped))
            block->window->mapped_on = NULL;
        else
            mapped = block->window->mapped;
    }
    mb__unlock(&dev->lock);
    if (!block)
        return mb__fail(MB_ERR_NOT_FOUND, "%p lies in no live block of this device", ptr);
    return mapped.stream ? ops->fence_wait_host(dev->hw, mapped, 0) : MB_OK;
}

enum mb_err mb__device_fill(struct mb_device *dev, void *va, uint64_t bytes, uint64_t seed,
                            mb_stream native)
{
    struct mb__stream *stream;
    enum mb_err err = mb__stream_get(dev, native, &stream);

    if (!err)
        err = mb__debug_range(dev, va, bytes, "mb_fill_async");
    if (err)
        return err;
    return dev->hw->ops->fill(dev->hw, stream->hw, mb__va((uint64_t)(uintptr_t)va), bytes, seed);
}

enum mb_err mb__device_verify(struct mb_device *dev, const void *va, uint64_t bytes, uint64_t seed,
                              mb_stream native)
{
    struct mb__stream *stream;
    enum mb_err err = mb__stream_get(dev, native, &stream);

    if (!err)
        err = mb__debug_range(dev, va, bytes, "mb_verify_async");
    if (err)
        return err;
    return dev->hw->ops->verify(dev->hw, stream->hw, mb__va((uint64_t)(uintptr_t)va), bytes, seed);
}

enum mb_err mb__device_copy(struct mb_device *dev, void *dst, const void *src, uint64_t bytes,
                            mb_stream native)
{
    struct mb__stream *stream;
    enum mb_err err = mb__stream_get(dev, native, &stream);

    if (!err)
        err = mb__debug_range(dev, dst, bytes, "mb_copy_async");
    if (!err)
        err = mb__debug_range(dev, src, bytes, "mb_copy_async");
    if (err)
        return err;
    return dev->hw->ops->copy(dev->hw, stream->hw, mb__va((uint64_t)(uintptr_t)dst),
                              mb__va((uint64_t)(uintptr_t)src), bytes);
}

enum mb_err mb__device_copy_list(struct mb_device *dev, const struct mb_copy *list, unsigned count,
                                 mb_stream native)
{
    struct mb__stream *stream;
    enum mb_err err = mb__stream_get(dev, native, &stream);

    for (unsigned i = 0; !err && i < count; i++) {
        if (!list[i].bytes)
            continue;
        err = mb__debug_range(dev, list[i].dst, list[i].bytes, "mb_copy_list_async");
        if (!err)
            err = mb__debug_range(dev, list[i].src, list[i].bytes, "mb_copy_list_async");
        if (err)
            return mb__fail_in(err, "copy %u of 0 to %u", i, count - 1);
    }
    return err ? err : dev->hw->ops->copy_list(dev->hw, stream->hw, list, count);
}
