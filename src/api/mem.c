/* SPDX-License-Identifier: MIT */
/* The public functions of addresses, frames and mappings, and of who may use them. */
#include "moonbright.h"

#include "api/enter.h"
#include "runtime/access.h"
#include "runtime/info.h"
#include "runtime/vmm.h"

uint64_t mb_page_bytes(mb_device dev)
{
    (void)dev;
    return MB_FRAME_BYTES;
}

enum mb_err mb_mem_reserve(mb_device dev, uint64_t bytes, uint64_t align, void **va)
{
    ENTER(dev);
    NEED(va, "mb_mem_reserve: a place for the address is needed");
    LOCKED(dev, mb__vmm_reserve(dev, bytes, align, va));
}

enum mb_err mb_mem_unreserve(mb_device dev, void *va, uint64_t bytes)
{
    ENTER(dev);
    LOCKED_PTR(dev, va, mb__vmm_unreserve(dev, va, bytes));
}

enum mb_err mb_mem_create(mb_device dev, uint64_t bytes, mb_mem *out)
{
    ENTER(dev);
    NEED(out, "mb_mem_create: a place for the memory is needed");
    LOCKED(dev, mb__vmm_create(dev, bytes, out));
}

enum mb_err mb_mem_release(mb_device dev, mb_mem mem)
{
    ENTER(dev);
    LOCKED(dev, mb__vmm_release(dev, mem));
}

/* Tells the hooks of each range whose frames may have changed; no lock is held. Mostly there are
 * none: then the operations are not read again. */
static void call_hook(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                      mb_stream stream, uint64_t generation, mb_remap_hook hook, void *user)
{
    if (!hook && !mb__watch(dev))
        return;
    for (unsigned i = 0; i < count; i++) {
        uint64_t addr = (uint64_t)(uintptr_t)ops[i].va;

        if (ops[i].kind == MB_PROTECT)
            continue;
        mb__watch_note(dev, ops[i].kind == MB_UNMAP ? MB_HOOK_UNMAP : MB_HOOK_MAP, addr,
                       ops[i].bytes, stream);
        mb__watch_note(dev, MB_HOOK_REMAP, addr, ops[i].bytes, stream);
        if (hook)
            hook(user, ops[i].va, ops[i].bytes, generation);
    }
    mb__watch_deliver(dev);
}

static enum mb_err apply(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                         bool host, mb_stream stream)
{
    mb_remap_hook hook;
    void *user;
    uint64_t generation;
    enum mb_err err;

    mb__caller_set(host ? "mb_mem_map" : "mb_mem_map_async", stream);
    mb__lock(&dev->lock);
    err = mb__vmm_apply(dev, ops, count, host, stream);
    generation = dev->generation;
    hook = dev->hook;
    user = dev->hook_user;
    mb__unlock(&dev->lock);
    if (!err)
        call_hook(dev, ops, count, stream, generation, hook, user);
    for (unsigned i = 0; err == MB_ERR_NOT_FOUND && i < count; i++) {
        const void *ptr = ops[i].kind == MB_ALIAS ? ops[i].src : ops[i].va;

        (void)name_owner(dev, ptr, host ? "mb_mem_map" : "mb_mem_map_async", err);
    }
    return err;
}

enum mb_err mb_mem_map(mb_device dev, const struct mb_map_op *op)
{
    ENTER(dev);
    NEED(op, "mb_mem_map: an operation is needed");
    return apply(dev, op, 1, true, NULL);
}

enum mb_err mb_mem_map_async(mb_device dev, const struct mb_map_op *ops, unsigned count,
                             mb_stream stream)
{
    ENTER(dev);
    NEED(ops || !count, "mb_mem_map_async: %u operations are needed, the list is NULL", count);
    return apply(dev, ops, count, false, stream);
}

static enum mb_err sleep_or_wake(struct mb_device *dev, void *va, uint64_t bytes, mb_stream stream,
                                 bool wake)
{
    struct mb_map_op range = {.kind = wake ? MB_MAP : MB_UNMAP, .va = va, .bytes = bytes};
    mb_remap_hook hook;
    void *user;
    uint64_t generation;
    enum mb_err err;

    mb__caller_set(wake ? "mb_mem_wake" : "mb_mem_sleep", stream);
    mb__lock(&dev->lock);
    err = wake ? mb__vmm_wake(dev, va, bytes, stream) : mb__vmm_sleep(dev, va, bytes, stream);
    generation = dev->generation;
    hook = dev->hook;
    user = dev->hook_user;
    mb__unlock(&dev->lock);
    if (!err)
        call_hook(dev, &range, 1, stream, generation, hook, user);
    return name_owner(dev, va, wake ? "mb_mem_wake" : "mb_mem_sleep", err);
}

enum mb_err mb_mem_sleep(mb_device dev, void *va, uint64_t bytes, mb_stream stream)
{
    ENTER(dev);
    return sleep_or_wake(dev, va, bytes, stream, false);
}

enum mb_err mb_mem_wake(mb_device dev, void *va, uint64_t bytes, mb_stream stream)
{
    ENTER(dev);
    return sleep_or_wake(dev, va, bytes, stream, true);
}

enum mb_err mb_mem_set_access(mb_device owner, void *va, uint64_t bytes,
                              const struct mb_access *list, unsigned count)
{
    ENTER(owner);
    NEED(list || !count, "mb_mem_set_access: %u entries are needed, the list is NULL", count);
    for (unsigned i = 0; i < count; i++)
        NEED(mb__device_is_open(list[i].dev), "mb_mem_set_access: entry %u: %p is no open device",
             i, (void *)list[i].dev);
    mb__caller_set(__func__, NULL);
    return name_owner(owner, va, __func__, mb__access_set(owner, va, bytes, list, count));
}

enum mb_err mb_mem_get_access(mb_device owner, const void *ptr, mb_device dev, enum mb_prot *out)
{
    ENTER(owner);
    ENTER(dev);
    NEED(out, "mb_mem_get_access: a place for the answer is needed");
    LOCKED_PTR(owner, ptr, mb__access_get(owner, ptr, dev, out));
}

enum mb_err mb_device_can_access(mb_device dev, mb_device owner)
{
    ENTER(dev);
    ENTER(owner);
    return mb__access_possible(owner, dev);
}

enum mb_err mb_pointer_info(mb_device dev, const void *ptr, struct mb_pointer_info *out)
{
    ENTER(dev);
    NEED(out, "mb_pointer_info: a place for the answer is needed");
    LOCKED_PTR(dev, ptr, mb__pointer_info(dev, ptr, out));
}

enum mb_err mb_wait_mapped(mb_device dev, const void *ptr)
{
    ENTER(dev);
    if (!ptr || !dev->hw->caps.host_blocking)
        return MB_OK;
    return name_owner(dev, ptr, __func__, mb__wait_mapped(dev, ptr));
}

enum mb_err mb_set_remap_hook(mb_device dev, mb_remap_hook hook, void *user)
{
    ENTER(dev);
    mb__lock(&dev->lock);
    dev->hook = hook;
    dev->hook_user = user;
    mb__unlock(&dev->lock);
    return MB_OK;
}

enum mb_err mb_set_event_hook(mb_device dev, mb_event_hook hook, void *user)
{
    ENTER(dev);
    return mb__watch_set_hook(dev, hook, user);
}
