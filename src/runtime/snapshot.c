/* SPDX-License-Identifier: MIT */
/*
 * A snapshot: what is allocated and what happened lately, in the structure of PyTorch's memory
 * snapshots, as a pickle of protocol 2 that builds dicts, lists, texts, numbers and None only.
 *
 * SEGMENTS  Every byte that a pool holds appears once: at the address where a block shows it, or at
 *           home. A segment is a run of home addresses without the pieces lent to windows, or the
 *           window of a block. The history says so too: when a block is stitched, its pieces
 *           leave (segment_unmap) and its window comes (segment_map), and the other way round when
 *           it is freed. A viewer that goes back through the events thus never meets a block
 *           without a segment. Frames of mb_mem_create() belong to no pool and are left out.
 *
 * Locking: records are held up and the device is locked while the text is built in host memory; the
 * file is written afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "runtime/watch.h"

enum {
    BATCH = 1000, /* items appended by one opcode: readers put them on a stack */
    NAMES = 64,   /* texts that are written once and referred to */
    PATH_BYTES = 4096,
};

/* A pickle being written. Owner: the stack of mb__snapshot(). */
struct pickle {
    MB_VEC(unsigned char) bytes;
    bool failed; /* no host memory */
    const char *names[NAMES];
    unsigned name_count;
};

/* ------------------------------------------------------------------ opcodes */

static void put(struct pickle *p, const void *data, size_t count)
{
    if (p->failed || !MB_VEC_RESERVE(&p->bytes, p->bytes.count + count)) {
        p->failed = true;
        return;
    }
    memcpy(p->bytes.data + p->bytes.count, data, count);
    p->bytes.count += count;
}

static void put_byte(struct pickle *p, unsigned value)
{
    unsigned char byte = (unsigned char)value;

    put(p, &byte, 1);
}

static void put_number(struct pickle *p, uint64_t value)
{
    unsigned char data[12] = {0};
    size_t count = 1;

    if (value < 256) {
        data[0] = 'K';
        data[count++] = (unsigned char)value;
    } else {
        /* LONG1: two's complement, so the topmost bit must be clear. */
        for (count = 2; value; value >>= 8)
            data[count++] = (unsigned char)value;
        count += data[count - 1] >> 7;
        data[0] = 0x8a;
        data[1] = (unsigned char)(count - 2);
    }
    put(p, data, count);
}

static void put_text(struct pickle *p, const char *text)
{
    size_t length = strlen(text);
    unsigned char head[5] = {'X', (unsigned char)length, (unsigned char)(length >> 8), 0, 0};

    put(p, head, sizeof(head));
    put(p, text, length);
}

/* A text that occurs often: a constant of this file. */
static void put_name(struct pickle *p, const char *name)
{
    unsigned i = 0;

    while (i < p->name_count && p->names[i] != name && strcmp(p->names[i], name) != 0)
        i++;
    if (i < p->name_count) {
        put_byte(p, 'h');
        put_byte(p, i);
        return;
    }
    put_text(p, name);
    if (i == NAMES)
        return;
    p->names[p->name_count++] = name;
    put_byte(p, 'q');
    put_byte(p, i);
}

static void dict_begin(struct pickle *p)
{
    put(p, "}(", 2);
}

static void dict_end(struct pickle *p)
{
    put_byte(p, 'u');
}

static void pair(struct pickle *p, const char *key, uint64_t value)
{
    put_name(p, key);
    put_number(p, value);
}

static void pair_name(struct pickle *p, const char *key, const char *name)
{
    put_name(p, key);
    put_name(p, name);
}

static void empty_list(struct pickle *p, const char *key)
{
    put_name(p, key);
    put_byte(p, ']');
}

/* A list with items counted in *count from 0; between two items list_next(). */
static void list_begin(struct pickle *p, unsigned *count)
{
    *count = 0;
    put(p, "](", 2);
}

static void list_next(struct pickle *p, unsigned *count)
{
    if (++*count % BATCH == 0)
        put(p, "e(", 2);
}

static void list_end(struct pickle *p)
{
    put_byte(p, 'e');
}

/* ------------------------------------------------------------------ segments */

/* One segment being written. */
struct segment {
    struct pickle *p;
    unsigned blocks; /* in the list so far */
    uint64_t total, allocated, active, requested;
};

static void segment_begin(struct segment *seg, struct pickle *p)
{
    *seg = (struct segment){.p = p};
    dict_begin(p);
    put_name(p, "blocks");
    list_begin(p, &seg->blocks);
}

/* block NULL: free. */
static void tile(struct segment *seg, uint64_t addr, uint64_t bytes, const struct mb__block *block)
{
    bool live = block && __atomic_load_n(&block->state, __ATOMIC_RELAXED) != MB__BLOCK_PINNED;
    uint64_t requested = block ? __atomic_load_n(&block->requested, __ATOMIC_RELAXED) : 0;

    if (!bytes)
        return;
    dict_begin(seg->p);
    pair(seg->p, "address", addr);
    pair(seg->p, "size", bytes);
    pair(seg->p, "requested_size", requested);
    pair_name(seg->p, "state",
              !block ? "inactive"
              : live ? "active_allocated"
                     : "active_pending_free");
    empty_list(seg->p, "frames");
    dict_end(seg->p);
    list_next(seg->p, &seg->blocks);
    seg->total += bytes;
    seg->allocated += live ? bytes : 0;
    seg->active += block ? bytes : 0;
    seg->requested += requested;
}

/* A block with its red zones, which are nobody's. */
static void tile_block(struct segment *seg, const struct mb__block *block)
{
    uint64_t zone = block->zone_bytes;

    tile(seg, block->addr - zone, zone, NULL);
    tile(seg, block->addr, block->bytes - 2 * zone, block);
    tile(seg, block->addr + block->bytes - 2 * zone, zone, NULL);
}

static void segment_end(struct segment *seg, const struct mb_device *dev, uint64_t addr)
{
    struct pickle *p = seg->p;

    list_end(p);
    pair(p, "device", (uint64_t)dev->config.hw.ordinal);
    pair(p, "address", addr);
    pair(p, "total_size", seg->total);
    pair(p, "allocated_size", seg->allocated);
    pair(p, "active_size", seg->active);
    pair(p, "requested_size", seg->requested);
    pair(p, "stream", 0);
    pair_name(p, "segment_type", "large");
    pair(p, "is_expandable", 1);
    empty_list(p, "frames");
    dict_end(p);
}

static bool is_lent(const struct mb__node *node)
{
    return !node->lane && ((const struct mb__block *)node->block)->window;
}

/* The run of home addresses from *node on; *node is what follows. */
static void put_run(struct pickle *p, const struct mb_device *dev, struct mb__link **link)
{
    const struct mb__node *node = MB__TREE_ENTRY(*link, struct mb__node, by_addr);
    uint64_t start = node->addr, end = node->addr;
    struct segment seg;

    segment_begin(&seg, p);
    while (*link) {
        node = MB__TREE_ENTRY(*link, struct mb__node, by_addr);
        if (node->addr != end || is_lent(node))
            break;
        end = node->addr + node->bytes;
        if (node->lane)
            tile(&seg, node->addr, node->bytes, NULL);
        else if (((const struct mb__block *)node->block)->pieces == node)
            tile_block(&seg, node->block); /* all its pieces lie in this run */
        *link = mb__tree_next(*link);
    }
    segment_end(&seg, dev, start);
}

static void put_window(struct pickle *p, const struct mb_device *dev, const struct mb__block *block)
{
    struct segment seg;

    segment_begin(&seg, p);
    tile_block(&seg, block);
    segment_end(&seg, dev, block->addr - block->zone_bytes);
}

static void put_pool(struct pickle *p, const struct mb_pool *pool, unsigned *count)
{
    struct mb__link *link = mb__tree_first(&pool->heap.by_addr);

    while (link) {
        const struct mb__node *node = MB__TREE_ENTRY(link, struct mb__node, by_addr);

        if (!is_lent(node)) {
            put_run(p, pool->dev, &link);
            list_next(p, count);
            continue;
        }
        if (((const struct mb__block *)node->block)->pieces == node) {
            put_window(p, pool->dev, node->block);
            list_next(p, count);
        }
        link = mb__tree_next(link);
    }
}

/* ------------------------------------------------------------------ history */

static const char *action_of(int kind)
{
    switch (kind) {
    case MB_HOOK_MALLOC:
        return "alloc";
    case MB_HOOK_FREE:
        return "free_requested";
    case MB_HOOK_GROW:
    case MB__WATCH_BACK:
    case MB__WATCH_SHOW:
        return "segment_map";
    case MB_HOOK_TRIM:
    case MB__WATCH_LEND:
    case MB__WATCH_HIDE:
        return "segment_unmap";
    case MB_HOOK_OOM:
        return "oom";
    default:
        return NULL;
    }
}

static void put_event(struct pickle *p, const struct mb__record *record, const char *action)
{
    bool segment = record->kind != MB_HOOK_MALLOC && record->kind != MB_HOOK_FREE;

    dict_begin(p);
    pair_name(p, "action", action);
    pair(p, "addr", record->addr);
    pair(p, "size", record->bytes);
    /* A segment belongs to no stream; neighbours are joined if their streams agree. */
    pair(p, "stream", segment && record->kind != MB_HOOK_OOM ? 0 : record->stream);
    pair(p, "time_us", record->time_us);
    empty_list(p, "frames");
    if (record->kind == MB_HOOK_OOM)
        pair(p, "device_free", 0);
    dict_end(p);
}

static void put_history(struct pickle *p, const struct mb__watch *watch)
{
    uint64_t at = watch->ring_count > watch->ring_size ? watch->ring_count - watch->ring_size : 0;
    unsigned count;

    list_begin(p, &count);
    for (; at < watch->ring_count; at++) {
        const struct mb__record *record = &watch->ring[at % watch->ring_size];
        const char *action = action_of(record->kind);

        if (!action)
            continue;
        put_event(p, record, action);
        list_next(p, &count);
        if (record->kind != MB_HOOK_FREE)
            continue;
        put_event(p, record, "free_completed");
        list_next(p, &count);
    }
    list_end(p);
}

/* ------------------------------------------------------------------ the whole */

static const char *growth_name(enum mb__growth growth)
{
    static const char *const names[] = {"tight", "fast", "patient", "independent"};

    return names[growth];
}

static void put_settings(struct pickle *p, const struct mb_device *dev)
{
    dict_begin(p);
    pair_name(p, "allocator", "MoonBright");
    put_name(p, "version");
    put_text(p, mb_version());
    put_name(p, "backend");
    put_text(p, dev->backend->name);
    put_name(p, "device_name");
    put_text(p, dev->hw->caps.device_name);
    pair_name(p, "growth", growth_name(dev->config.growth));
    put_name(p, "limit");
    if (dev->config.vm.limit_bytes)
        put_number(p, dev->config.vm.limit_bytes);
    else
        put_byte(p, 'N');
    pair(p, "history", dev->config.history);
    dict_end(p);
}

/* Both locks held. */
static void build(struct pickle *p, struct mb_device *dev)
{
    struct mb__watch *watch = mb__watch(dev);
    unsigned count;

    mb__bins_flush(dev, NULL);
    put(p, "\x80\x02", 2);
    dict_begin(p);
    put_name(p, "segments");
    list_begin(p, &count);
    for (const struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        put_pool(p, pool, &count);
    list_end(p);
    put_name(p, "device_traces");
    list_begin(p, &count);
    for (int i = 0; i < dev->config.hw.ordinal; i++)
        put_byte(p, ']');
    if (watch && watch->ring)
        put_history(p, watch);
    else
        put_byte(p, ']');
    list_end(p);
    put_name(p, "allocator_settings");
    put_settings(p, dev);
    dict_end(p);
    put_byte(p, '.');
}

static enum mb_err io_error(const char *path)
{
    return mb__fail(MB_ERR_IO,
                    "mb_snapshot: %s: %s; choose a file in a directory that can be "
                    "written",
                    path, strerror(errno));
}

static bool write_all(int fd, const unsigned char *data, size_t bytes)
{
    while (bytes) {
        ssize_t count = write(fd, data, bytes);

        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        data += count;
        bytes -= (size_t)count;
    }
    return true;
}

/* Beside the wanted file first, so that a failure leaves what was there. */
static enum mb_err save(const struct pickle *p, const char *path)
{
    char beside[PATH_BYTES];
    int length = snprintf(beside, sizeof(beside), "%s.XXXXXX", path), fd;
    bool written;
    enum mb_err err;

    if (length < 0 || length >= PATH_BYTES)
        return mb__fail(MB_ERR_INVALID, "mb_snapshot: the path has more than %d bytes",
                        PATH_BYTES - 8);
    fd = mkstemp(beside);
    if (fd < 0)
        return io_error(path);
    written = fchmod(fd, 0644) == 0 && write_all(fd, p->bytes.data, p->bytes.count);
    if (close(fd) == 0 && written && rename(beside, path) == 0)
        return MB_OK;
    err = io_error(path);
    unlink(beside);
    return err;
}

enum mb_err mb__snapshot(struct mb_device *dev, const char *path)
{
    struct mb__watch *watch = mb__watch(dev);
    struct pickle p = {0};
    enum mb_err err;

    if (watch)
        mb__lock(&watch->order);
    mb__lock(&dev->lock);
    build(&p, dev);
    mb__unlock(&dev->lock);
    if (watch)
        mb__unlock(&watch->order);
    err = p.failed ? mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a snapshot") : save(&p, path);
    MB_VEC_FREE(&p.bytes);
    return err;
}
