/* SPDX-License-Identifier: MIT */
/*
 * host.c - what the vendor's driver does on the host: addresses and frames.
 *
 * ADDRESSES  First fit over a sorted list of reservations. Each ordinal has its own part of the
 * address space, so pointers of two devices differ.
 * FRAMES  First fit from where the last search ended; consecutive if the device has such a run,
 * else (or when asked to scatter) any free frames with an explicit list.
 */
#include "hw/sim/dev.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ addresses */

/* Windows of a driver's tree are whole last-level tables, so reservations are too. */
static uint64_t least_piece(const struct sim_dev *dev)
{
    const struct mb_fmt_level *last = &dev->geo.level[dev->geo.levels - 1];

    return dev->driver_home ? (uint64_t)1 << (last->shift + last->bits) : MB_FRAME_BYTES;
}

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) & ~(to - 1);
}

static enum mb_err add_range(struct sim_dev *dev, unsigned at, uint64_t va, uint64_t bytes)
{
    unsigned capacity = dev->range_capacity ? 2 * dev->range_capacity : 16;

    if (dev->range_count == dev->range_capacity) {
        struct sim_range *range = realloc(dev->range, capacity * sizeof(*range));

        if (!range)
            return mb__fail(MB_ERR_HOST_MEMORY, "software GPU: no host memory for a reservation");
        dev->range = range;
        dev->range_capacity = capacity;
    }
    memmove(&dev->range[at + 1], &dev->range[at], (dev->range_count - at) * sizeof(*dev->range));
    dev->range[at] = (struct sim_range){va, bytes, 0};
    dev->range_count++;
    return MB_OK;
}

static enum mb_err reserve(struct sim_dev *dev, uint64_t bytes, uint64_t align, mb_va *out)
{
    uint64_t piece = least_piece(dev), va = dev->va_base, limit = dev->va_base + dev->va_bytes;
    uint64_t whole = round_up(bytes, piece);
    unsigned i;
    enum mb_err err;

    if (!bytes || bytes % MB_FRAME_BYTES || align & (align - 1) || align % MB_FRAME_BYTES)
        return mb__fail(MB_ERR_INVALID,
                        "va_reserve: %llu bytes aligned to %llu; sizes are multiples of 2 MiB, "
                        "alignments powers of two from 2 MiB (or 0)",
                        (unsigned long long)bytes, (unsigned long long)align);
    align = align > piece ? align : piece;
    va = round_up(va, align);
    for (i = 0; i < dev->range_count; i++) {
        if (dev->range[i].va >= va && dev->range[i].va - va >= whole)
            break;
        va = round_up(dev->range[i].va + round_up(dev->range[i].bytes, piece), align);
    }
    if (whole < bytes || va >= limit || limit - va < whole)
        return mb__fail(MB_ERR_NO_ADDRESS, "va_reserve: no %llu bytes of addresses left",
                        (unsigned long long)bytes);
    err = add_range(dev, i, va, bytes);
    if (err)
        return err;
    dev->host_ns += dev->model->reserve_ns;
    *out = mb__va(va);
    return MB_OK;
}

enum mb_err mb__sim_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = reserve(dev, bytes, align, out);
    sim_unlock(dev);
    return err;
}

/* The reservation that holds the range, or NULL. */
struct sim_range *mb__sim_range_find(struct sim_dev *dev, uint64_t va, uint64_t bytes)
{
    for (unsigned i = 0; i < dev->range_count; i++) {
        struct sim_range *range = &dev->range[i];

        if (va >= range->va && va - range->va < range->bytes &&
            bytes <= range->bytes - (va - range->va))
            return range;
    }
    return NULL;
}

enum mb_err mb__sim_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes)
{
    struct sim_dev *dev = sim_dev_of(hw);
    struct sim_range *range;
    enum mb_err err = MB_OK;

    sim_lock(dev);
    range = mb__sim_range_find(dev, va.addr, bytes);
    if (!range || range->va != va.addr || range->bytes != bytes) {
        err = mb__fail(MB_ERR_NOT_FOUND,
                       "va_release: 0x%llx + %llu is not a reservation; release whole reservations",
                       (unsigned long long)va.addr, (unsigned long long)bytes);
    } else {
        mb__sim_driver_tables_free(dev, range);
        dev->range_count--;
        memmove(range, range + 1,
                (dev->range_count - (unsigned)(range - dev->range)) * sizeof(*range));
        dev->host_ns += dev->model->reserve_ns;
    }
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ frames */

/* Start of a run of `count` free frames, from `from` on around the device; UINT32_MAX: none. */
static uint32_t find_run(const struct sim_memory *mem, uint32_t count, uint32_t from)
{
    uint32_t run = 0;

    for (uint32_t n = 0, i = from; n < mem->frames + count; n++, i++) {
        if (i == mem->frames) {
            i = 0;
            run = 0; /* a run does not go around the end */
        }
        run = mem->held[i] ? 0 : run + 1;
        if (run == count)
            return i + 1 - count;
    }
    return UINT32_MAX;
}

static mb_pfn pfn_of_frame(const struct sim_memory *mem, uint32_t frame)
{
    return mb__pfn_of_phys(mem->base + ((uint64_t)frame << MB_FRAME_SHIFT));
}

/* Any free frames, in an order that is not theirs when drawn. */
static void take_scattered(struct sim_dev *dev, struct mb_hw_slab *slab)
{
    struct sim_memory *mem = &dev->mem;
    uint32_t taken = 0, at = dev->scatter ? (uint32_t)sim_random_below(dev, mem->frames) : 0;

    while (taken < slab->frames) {
        at = at % mem->frames;
        if (!mem->held[at]) {
            mem->held[at] = 1;
            slab->pfns[taken] = pfn_of_frame(mem, at);
            if (!taken++)
                slab->first = slab->pfns[0];
        }
        at += dev->scatter ? 1 + (uint32_t)sim_random_below(dev, 7) : 1;
    }
}

static enum mb_err take_frames(struct sim_dev *dev, struct mb_hw_slab *slab)
{
    struct sim_memory *mem = &dev->mem;
    uint32_t first = dev->scatter ? UINT32_MAX : find_run(mem, slab->frames, mem->next);

    if (first != UINT32_MAX) {
        memset(&mem->held[first], 1, slab->frames);
        mem->next = (first + slab->frames) % mem->frames;
        slab->first = pfn_of_frame(mem, first);
    } else {
        struct sim_pfns *list = malloc(sizeof(*list) + slab->frames * sizeof(*slab->pfns));

        if (!list)
            return mb__fail(MB_ERR_HOST_MEMORY,
                            "software GPU: no host memory for a slab of %u frames", slab->frames);
        *list = (struct sim_pfns){.next = mem->lists};
        if (mem->lists)
            mem->lists->prev = list;
        mem->lists = list;
        slab->pfns = list->pfn;
        take_scattered(dev, slab);
    }
    mem->free_frames -= slab->frames;
    return MB_OK;
}

static void free_list(struct sim_memory *mem, mb_pfn *pfns)
{
    struct sim_pfns *list;

    if (!pfns)
        return;
    list = (struct sim_pfns *)(void *)((char *)pfns - offsetof(struct sim_pfns, pfn));
    if (list->prev)
        list->prev->next = list->next;
    else
        mem->lists = list->next;
    if (list->next)
        list->next->prev = list->prev;
    free(list);
}

static void give_frames(struct sim_dev *dev, const struct mb_hw_slab *slab)
{
    struct sim_memory *mem = &dev->mem;
    uint32_t first = mb__sim_memory_frame(mem, mb__phys_of_pfn(slab->first));
    bool taken = mb__sim_share(dev, false);

    for (uint32_t i = 0; i < slab->frames; i++) {
        uint32_t frame =
            slab->pfns ? mb__sim_memory_frame(mem, mb__phys_of_pfn(slab->pfns[i])) : first + i;

        mem->held[frame] = 0;
        mb__sim_memory_drop(mem, frame);
    }
    mb__sim_unshare(taken);
    mem->free_frames += slab->frames;
    free_list(mem, slab->pfns);
}

/* All frames named by the slab are held; a slab that was given back, or is garbage, is refused. */
static bool slab_valid(const struct sim_dev *dev, const struct mb_hw_slab *slab)
{
    for (uint32_t i = 0; i < slab->frames; i++) {
        uint64_t phys = slab->pfns ? mb__phys_of_pfn(slab->pfns[i])
                                   : mb__phys_of_pfn(slab->first) + i * MB_FRAME_BYTES;
        uint32_t frame = mb__sim_memory_frame(&dev->mem, phys);

        if (frame == UINT32_MAX || dev->mem.held[frame] != 1)
            return false;
    }
    return slab->frames != 0;
}

static enum mb_err acquire(struct sim_dev *dev, uint64_t bytes, mb_va home, struct mb_hw_slab *out)
{
    struct mb_hw_slab slab = {.home = home, .frames = (uint32_t)(bytes >> MB_FRAME_SHIFT)};
    enum mb_err err = mb__sim_alive(dev);
    bool taken;

    if (err)
        return err;
    if (!bytes || bytes % MB_FRAME_BYTES || home.addr % MB_FRAME_BYTES)
        return mb__fail(MB_ERR_INVALID,
                        "slab_acquire: %llu bytes at home 0x%llx; both are multiples of 2 MiB",
                        (unsigned long long)bytes, (unsigned long long)home.addr);
    if (bytes >> MB_FRAME_SHIFT > dev->mem.free_frames)
        return mb__fail(MB_ERR_NO_MEMORY, "slab_acquire: %llu bytes asked, %llu are free",
                        (unsigned long long)bytes,
                        (unsigned long long)dev->mem.free_frames << MB_FRAME_SHIFT);
    if (!mb__sim_range_find(dev, home.addr, bytes))
        return mb__fail(MB_ERR_INVALID,
                        "slab_acquire: home 0x%llx + %llu does not lie in reserved addresses",
                        (unsigned long long)home.addr, (unsigned long long)bytes);
    taken = mb__sim_share(dev, false);
    err = take_frames(dev, &slab);
    mb__sim_unshare(taken);
    if (err)
        return err;
    if (dev->driver_home) {
        err = mb__sim_driver_map(dev, home.addr, &slab);
        if (err) {
            give_frames(dev, &slab);
            return err;
        }
        slab.home_mapped = true;
    }
    mb__sim_driver_call(dev, mb__sim_cost_at(dev->model->slab, bytes));
    *out = slab;
    return MB_OK;
}

enum mb_err mb__sim_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                 struct mb_hw_slab *out)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = acquire(dev, bytes, home, out);
    sim_unlock(dev);
    return err;
}

enum mb_err mb__sim_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *slab)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err = MB_OK;

    sim_lock(dev);
    if (!slab_valid(dev, slab)) {
        err = mb__fail(MB_ERR_NOT_FOUND,
                       "slab_release: the slab is not one that this device gave out");
    } else {
        /* What the host has ordered before is past: by time, the device has come that far. */
        if (!dev->explore)
            mb__sim_engine_run(dev, dev->host_ns);
        if (slab->home_mapped)
            mb__sim_driver_unmap(dev, slab->home.addr, slab->frames);
        give_frames(dev, slab);
        mb__sim_driver_call(
            dev, mb__sim_cost_at(dev->model->slab_free, (uint64_t)slab->frames << MB_FRAME_SHIFT));
        memset(slab, 0, sizeof(*slab));
    }
    sim_unlock(dev);
    return err;
}
