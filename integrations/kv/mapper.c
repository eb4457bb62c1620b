/* SPDX-License-Identifier: MIT */
/* mapper.c - the cache's addresses and pages on a device of MoonBright. */
#include "kv.h"

static mb_device device_of(void *user)
{
    return user;
}

static enum mb_err device_reserve(void *user, uint64_t bytes, void **va)
{
    return mb_mem_reserve(device_of(user), bytes, 0, va);
}

static void device_unreserve(void *user, void *va, uint64_t bytes)
{
    /* Nothing is mapped there any more, so only a lost device can refuse; it frees all itself. */
    (void)mb_mem_unreserve(device_of(user), va, bytes);
}

static enum mb_err device_create(void *user, uint64_t bytes, mb_mem *out)
{
    return mb_mem_create(device_of(user), bytes, out);
}

static void device_release(void *user, mb_mem mem)
{
    (void)mb_mem_release(device_of(user), mem);
}

static enum mb_err device_map(void *user, const struct mb_map_op *ops, unsigned count,
                              mb_stream stream)
{
    enum mb_err err = mb_mem_map_async(device_of(user), ops, count, stream);

    /* A device that was closed before its cache shows nothing: to the cache it is a lost one. */
    return err && !*mb_device_backend(device_of(user)) ? MB_ERR_DEVICE_LOST : err;
}

static enum mb_err device_copy(void *user, const struct mb_copy *list, unsigned count,
                               mb_stream stream)
{
    return mb_copy_list_async(device_of(user), list, count, stream);
}

static enum mb_err device_order(void *user, mb_stream from, mb_stream to)
{
    mb_event event;
    enum mb_err err = mb_event_create(device_of(user), &event);

    if (err)
        return err;
    err = mb_event_record(device_of(user), event, from);
    if (!err)
        err = mb_stream_wait_event(device_of(user), to, event);
    (void)mb_event_destroy(device_of(user), event);
    return err;
}

static const char *device_detail(void *user)
{
    (void)user;
    return mb_error_detail();
}

enum mb_err mb_kv_device_mapper(mb_device dev, struct mb_kv_mapper *out)
{
    uint64_t page = dev ? mb_page_bytes(dev) : 0;

    if (!page)
        return kv_fail(MB_ERR_INVALID, "this is no open device");
    *out = (struct mb_kv_mapper){
        .user = dev,
        .page_bytes = page,
        .reserve = device_reserve,
        .unreserve = device_unreserve,
        .create = device_create,
        .release = device_release,
        .map = device_map,
        .copy = device_copy,
        .order = device_order,
        .detail = device_detail,
    };
    return MB_OK;
}
