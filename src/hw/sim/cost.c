/* SPDX-License-Identifier: MIT */
/*
 * cost.c - interpolated costs, and the lock inside the vendor's driver.
 *
 * CONTENTION  Driver calls of several devices take longer when they overlap (two H200: 30.9 ->
 * 52-84 ms for 2 GB). Each device has a virtual clock of its own, so a call says from when to when
 * it lasts; calls of other devices that overlap count, each adding contention_percent. Only the
 * latest call of a device is remembered: enough, as a device's calls follow each other.
 */
#include "hw/sim/dev.h"

#include <string.h>

enum { DRIVER_DEVICES = 64 };

static pthread_mutex_t driver_lock = PTHREAD_MUTEX_INITIALIZER;
/* The latest driver call of each device that ever made one; lock: driver_lock. */
static struct {
    const struct sim_dev *dev;
    uint64_t begin_ns, end_ns;
} driver_call[DRIVER_DEVICES];

const struct sim_model *mb__sim_model_find(const char *name)
{
    if (!name)
        return &mb__sim_models[0];
    for (unsigned i = 0; i < mb__sim_model_count; i++) {
        if (!strcmp(mb__sim_models[i].name, name))
            return &mb__sim_models[i];
    }
    return NULL;
}

/* Straight lines between the points; the last line goes on beyond the table. */
uint64_t mb__sim_cost_at(const struct sim_point *table, uint64_t bytes)
{
    const struct sim_point *a = table, *b = table + 1;

    if (bytes <= a->bytes)
        return a->ns;
    while (b[1].bytes && bytes > b->bytes)
        a = b++;
    return (uint64_t)((double)a->ns + (double)(b->ns - a->ns) * (double)(bytes - a->bytes) /
                                          (double)(b->bytes - a->bytes));
}

static unsigned overlapping_calls(const struct sim_dev *dev, uint64_t begin_ns, uint64_t end_ns)
{
    unsigned count = 0;

    for (unsigned i = 0; i < DRIVER_DEVICES; i++) {
        if (driver_call[i].dev && driver_call[i].dev != dev && driver_call[i].begin_ns < end_ns &&
            driver_call[i].end_ns > begin_ns)
            count++;
    }
    return count;
}

/* A table that is full only loses contention, not correctness. */
static void remember_call(const struct sim_dev *dev, uint64_t begin_ns, uint64_t end_ns)
{
    unsigned slot = DRIVER_DEVICES;

    for (unsigned i = DRIVER_DEVICES; i-- > 0;) {
        if (driver_call[i].dev == dev) {
            slot = i;
            break;
        }
        if (!driver_call[i].dev)
            slot = i;
    }
    if (slot == DRIVER_DEVICES)
        return;
    driver_call[slot].dev = dev;
    driver_call[slot].begin_ns = begin_ns;
    driver_call[slot].end_ns = end_ns;
}

/* The lock's share of a call, for each other one that is in the driver. */
static uint64_t crowded(const struct sim_dev *dev, const struct sim_crowd_cost *cost, uint64_t ns)
{
    const struct sim_crowd *crowd = &dev->crowd;

    return ns + ns *
                    (crowd->threads * cost->thread + crowd->processes * cost->process +
                     crowd->sharers * cost->sharer) /
                    100;
}

void mb__sim_set_crowd(struct mb_hw_dev *hw, unsigned threads, unsigned processes, unsigned sharers)
{
    struct sim_dev *dev = sim_dev_of(hw);

    sim_lock(dev);
    dev->crowd = (struct sim_crowd){threads, processes, sharers};
    sim_unlock(dev);
}

void mb__sim_driver_call(struct sim_dev *dev, uint64_t ns)
{
    unsigned others;

    if (dev->crowd.threads || dev->crowd.processes || dev->crowd.sharers) {
        dev->host_ns += crowded(dev, &dev->model->crowd_map, ns);
        return;
    }
    pthread_mutex_lock(&driver_lock);
    others = overlapping_calls(dev, dev->host_ns, dev->host_ns + ns);
    ns += ns * others * dev->model->contention_percent / 100;
    remember_call(dev, dev->host_ns, dev->host_ns + ns);
    pthread_mutex_unlock(&driver_lock);
    dev->host_ns += ns;
}

void mb__sim_driver_forget(const struct sim_dev *dev)
{
    pthread_mutex_lock(&driver_lock);
    for (unsigned i = 0; i < DRIVER_DEVICES; i++) {
        if (driver_call[i].dev == dev)
            driver_call[i].dev = NULL;
    }
    pthread_mutex_unlock(&driver_lock);
}

uint64_t mb__sim_stock_ns(struct mb_hw_dev *hw, enum mb_sim_stock what, uint64_t bytes)
{
    const struct sim_dev *dev = sim_dev_of(hw);
    const struct sim_model *m = dev->model;
    uint64_t frames = (bytes + MB_FRAME_BYTES - 1) / MB_FRAME_BYTES;

    switch (what) {
    case MB_SIM_STOCK_MALLOC:
        return mb__sim_cost_at(m->stock_malloc, bytes);
    case MB_SIM_STOCK_FREE:
        return mb__sim_cost_at(m->stock_free, bytes);
    case MB_SIM_STOCK_MALLOC_TABLES:
        return mb__sim_cost_at(m->stock_tables, bytes);
    case MB_SIM_STOCK_MAP:
        return crowded(dev, &m->crowd_map, frames * m->map_entry_ns);
    case MB_SIM_STOCK_UNMAP:
        return crowded(dev, &m->crowd_unmap, frames * m->unmap_entry_ns);
    case MB_SIM_STOCK_ALIAS:
        return crowded(dev, &m->crowd_map, frames * m->alias_entry_ns);
    case MB_SIM_STOCK_TLB_FLUSH:
        return m->flush_ns;
    case MB_SIM_STOCK_FIRST_TOUCH:
        return m->walk_ns;
    }
    return 0;
}
