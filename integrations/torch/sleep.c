/* SPDX-License-Identifier: MIT */
/*
 * sleep.c - blocks that can give up their frames and keep their addresses.
 *
 * How       A block made while its thread has a tag lies in addresses and frames of its own, in
 *           whole pages. Sleeping and waking go through all blocks of a tag. A free unmaps the
 *           block in the order of its stream, after the streams that were recorded for it.
 * Trade-off Whole pages: hence the least size MB_TORCH_SLEEPER_BYTES; smaller blocks are ordinary.
 * Locking   `lock` guards the records and is held across sleep and wake, so a block is not freed
 *           under them. `count` is read without: programs without tags pay one load. Tags are kept
 *           until the process ends; there are as many as the program has names.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "moonbright_torch.h"
#include "plugin.h"

enum { BUCKETS = 1024, STREAMS = 8 };

struct sleeper {
    struct sleeper *next; /* in its bucket */
    void *ptr;
    uint64_t asked_bytes, bytes; /* as PyTorch asked; whole pages */
    mb_mem mem;
    mb_device dev;
    int device;
    const char *tag;
    bool asleep;
    unsigned stream_count; /* recorded; STREAMS + 1: more, so wait for the device */
    void *streams[STREAMS];
};

struct tag {
    struct tag *next;
    char name[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sleeper *buckets[BUCKETS]; /* lock */
static struct tag *tags;                 /* lock */
static _Atomic uint64_t count;           /* of sleepers; changed under lock */

static _Thread_local const char *thread_tag; /* NULL: none */

static struct sleeper **bucket(const void *ptr)
{
    return &buckets[((uintptr_t)ptr >> 21) % BUCKETS];
}

/* lock held */
static struct sleeper **find(const void *ptr)
{
    struct sleeper **link = bucket(ptr);

    while (*link && (*link)->ptr != ptr)
        link = &(*link)->next;
    return link;
}

/* lock held; NULL: no such tag, or no memory for a new one */
static const char *intern(const char *name, bool make)
{
    size_t size = strlen(name) + 1;
    struct tag *tag;

    for (tag = tags; tag; tag = tag->next) {
        if (!strcmp(tag->name, name))
            return tag->name;
    }
    tag = make ? malloc(sizeof(*tag) + size) : NULL;
    if (!tag)
        return NULL;
    memcpy(tag->name, name, size);
    tag->next = tags;
    tags = tag;
    return tag->name;
}

enum mb_err mb_torch_tag(const char *tag)
{
    const char *name = NULL;

    if (tag && !*tag)
        return mb__torch_fail(MB_ERR_INVALID, "a tag has at least one character");
    if (mb__torch_forked())
        return mb__torch_in_child();
    if (tag) {
        pthread_mutex_lock(&lock);
        name = intern(tag, true);
        pthread_mutex_unlock(&lock);
        if (!name)
            return mb__torch_fail(MB_ERR_HOST_MEMORY, "no host memory for a tag");
    }
    thread_tag = name;
    return MB_OK;
}

bool mb__torch_sleeper_wanted(size_t bytes)
{
    return thread_tag && !mb__torch_forked() && bytes >= MB_TORCH_SLEEPER_BYTES;
}

uint64_t mb__torch_sleeper_count(void)
{
    return atomic_load(&count);
}

/* Driver tables make addresses known to the vendor's calls only once the map is done. */
static enum mb_err settle(mb_device dev, void *stream)
{
    return strcmp(mb_device_tables(dev), "driver") ? MB_OK : mb_stream_sync(dev, stream);
}

static enum mb_err map_pages(struct sleeper *s, void *stream)
{
    struct mb_map_op op = {
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = s->bytes, .mem = s->mem};
    enum mb_err err = mb_mem_reserve(s->dev, s->bytes, 0, &s->ptr);

    if (err)
        return err;
    op.va = s->ptr;
    err = mb_mem_map_async(s->dev, &op, 1, stream);
    if (err) {
        (void)mb_mem_unreserve(s->dev, s->ptr, s->bytes);
        return err;
    }
    return settle(s->dev, stream);
}

enum mb_err mb__torch_sleeper_malloc(mb_device dev, int device, size_t bytes, void *stream,
                                     void **out)
{
    uint64_t page = mb_page_bytes(dev);
    struct sleeper *s = calloc(1, sizeof(*s));
    enum mb_err err = MB_ERR_HOST_MEMORY;

    if (!s)
        return err;
    s->dev = dev;
    s->device = device;
    s->tag = thread_tag;
    s->asked_bytes = bytes;
    s->bytes = (bytes + page - 1) / page * page;
    err = mb_mem_create(dev, s->bytes, &s->mem);
    if (err)
        goto undo_alloc;
    err = map_pages(s, stream);
    if (err)
        goto undo_mem;
    pthread_mutex_lock(&lock);
    s->next = *bucket(s->ptr);
    *bucket(s->ptr) = s;
    atomic_fetch_add(&count, 1);
    pthread_mutex_unlock(&lock);
    *out = s->ptr;
    return MB_OK;
undo_mem:
    (void)mb_mem_release(dev, s->mem);
undo_alloc:
    free(s);
    return err;
}

/* Later work of `stream` comes after what the recorded streams have now. */
static enum mb_err join_streams(struct sleeper *s, void *stream)
{
    enum mb_err err = MB_OK;

    if (s->stream_count > STREAMS)
        return mb_device_sync(s->dev);
    for (unsigned i = 0; !err && i < s->stream_count; i++) {
        mb_event event = NULL;

        err = mb_event_create(s->dev, &event);
        if (err)
            return err;
        err = mb_event_record(s->dev, event, s->streams[i]);
        if (!err)
            err = mb_stream_wait_event(s->dev, stream, event);
        (void)mb_event_destroy(s->dev, event);
    }
    return err;
}

bool mb__torch_sleeper_free(mb_device dev, void *ptr, void *stream, enum mb_err *out)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = ptr};
    struct sleeper **link, *s;
    enum mb_err err;

    if (!atomic_load_explicit(&count, memory_order_acquire) || mb__torch_forked())
        return false;
    pthread_mutex_lock(&lock);
    link = find(ptr);
    s = *link;
    if (!s || s->dev != dev) {
        pthread_mutex_unlock(&lock);
        return false;
    }
    op.bytes = s->bytes;
    err = join_streams(s, stream);
    if (!err)
        err = mb_mem_map_async(dev, &op, 1, stream);
    if (!err) {
        *link = s->next;
        atomic_fetch_sub(&count, 1);
    }
    pthread_mutex_unlock(&lock);
    *out = err;
    if (err)
        return true;
    *out = mb_mem_release(dev, s->mem);
    if (!*out)
        *out = mb_mem_unreserve(dev, s->ptr, s->bytes);
    free(s);
    return true;
}

bool mb__torch_sleeper_record(void *ptr, void *stream, enum mb_err *err)
{
    struct sleeper *s;
    unsigned i = 0;

    if (!atomic_load_explicit(&count, memory_order_acquire) || mb__torch_forked())
        return false;
    pthread_mutex_lock(&lock);
    s = *find(ptr);
    if (s) {
        unsigned known = s->stream_count < STREAMS ? s->stream_count : STREAMS;

        while (i < known && s->streams[i] != stream)
            i++;
        if (i == known && i < STREAMS) {
            s->streams[i] = stream;
            s->stream_count = i + 1;
        } else if (i == STREAMS) {
            s->stream_count = STREAMS + 1;
        }
        *err = MB_OK;
    }
    pthread_mutex_unlock(&lock);
    return s != NULL;
}

bool mb__torch_sleeper_base(const void *ptr, void **base, size_t *bytes)
{
    uintptr_t at = (uintptr_t)ptr;
    bool found = false;

    if (!atomic_load_explicit(&count, memory_order_acquire) || mb__torch_forked())
        return false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < BUCKETS && !found; i++) {
        for (struct sleeper *s = buckets[i]; s && !found; s = s->next) {
            found = at - (uintptr_t)s->ptr < s->bytes;
            if (!found)
                continue;
            *base = s->ptr;
            if (bytes)
                *bytes = s->asked_bytes;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* lock held. Puts one block to sleep or wakes it. */
static enum mb_err turn(struct sleeper *s, bool asleep, uint64_t *bytes)
{
    enum mb_err err;

    if (s->asleep == asleep)
        return MB_OK;
    err = asleep ? mb_mem_sleep(s->dev, s->ptr, s->bytes, NULL)
                 : mb_mem_wake(s->dev, s->ptr, s->bytes, NULL);
    if (err)
        return err;
    s->asleep = asleep;
    *bytes += s->bytes;
    return MB_OK;
}

/* All blocks of a tag; the device has finished before and after, whatever the stream. */
static enum mb_err turn_all(int device, const char *tag, bool asleep, uint64_t *bytes)
{
    mb_device dev = mb__torch_open_device(device);
    const char *name;
    uint64_t turned = 0, found = 0;
    enum mb_err err = MB_OK;

    if (!tag || !dev)
        return mb__torch_fail(MB_ERR_INVALID, tag ? "device %d is not open" : "device %d: no tag",
                              device);
    if (mb__torch_forked())
        return mb__torch_in_child();
    err = mb_device_sync(dev);
    pthread_mutex_lock(&lock);
    name = intern(tag, false);
    for (unsigned i = 0; name && i < BUCKETS; i++) {
        for (struct sleeper *s = buckets[i]; s && !err; s = s->next) {
            if (s->dev != dev || s->tag != name)
                continue;
            found++;
            err = turn(s, asleep, &turned);
        }
    }
    pthread_mutex_unlock(&lock);
    if (!err)
        err = mb_device_sync(dev);
    if (err)
        return mb__torch_fail(err, "%s of «%s» on device %d: %s", asleep ? "sleep" : "wake", tag,
                              device, mb_error_detail());
    if (!found)
        return mb__torch_fail(MB_ERR_NOT_FOUND,
                              "no block with the tag «%s» lives on device %d; blocks of %d bytes "
                              "and more get the tag that their thread has when they are made",
                              tag, device, MB_TORCH_SLEEPER_BYTES);
    if (bytes)
        *bytes = turned;
    return MB_OK;
}

enum mb_err mb_torch_sleep(int device, const char *tag, uint64_t *bytes)
{
    return turn_all(device, tag, true, bytes);
}

enum mb_err mb_torch_wake(int device, const char *tag, uint64_t *bytes)
{
    return turn_all(device, tag, false, bytes);
}
