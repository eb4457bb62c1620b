/* SPDX-License-Identifier: MIT */
/*
 * sim_rig.h - a software GPU with a window of addresses, some frames and a few streams, for tests
 * below vm that write their batches by hand.
 *
 * Calls that must work are checked inside, so a rig may only be used on the thread of the case.
 * Enqueueing on a device whose context has died is no failure: the verdict comes at rig_sync().
 */
#ifndef MB_TESTS_SIM_RIG_H
#define MB_TESTS_SIM_RIG_H

#include "hw/sim/sim.h"

enum {
    RIG_FRAMES = 64,
    RIG_STREAMS = 4,
    RIG_SLOTS = 512, /* of the window: 1 GiB */
};

struct sim_rig {
    struct mb_hw_dev *dev;
    const struct mb_hw_ops *ops;
    struct mb_hw_stream *stream[RIG_STREAMS]; /* [0] is the default one */
    mb_stream native[RIG_STREAMS];
    struct mb_fmt_geometry geo;
    mb_va home;             /* reserved for the slab */
    struct mb_hw_slab slab; /* RIG_FRAMES frames, without a mapping unless driver_home */
    mb_va window;           /* aligned to 1 GiB */
    struct mb_hw_view view; /* of the window; all slots cleared */
    uint64_t tmpl;          /* leaf of 2 MiB, writable */
    uint64_t directory;     /* tree_is_ours: table whose entries point to last-level tables */
};

/* What rig_map and rig_unmap put after the entries. */
enum rig_flag {
    RIG_INVALIDATE = 1 << 0, /* everything */
    RIG_TARGETED = 1 << 1,   /* the slots written */
    RIG_MEMBAR = 1 << 2,
    RIG_NO_BARRIER = 1 << 3,
    RIG_NO_INTEND = 1 << 4,
};

/* The result of an enqueue: success or a dead context. */
void rig_took(enum mb_err err);

void rig_open(struct sim_rig *rig, const struct mb_hw_config *config);
void rig_close(struct sim_rig *rig);

mb_pfn rig_pfn(const struct sim_rig *rig, unsigned frame);
mb_va rig_va(const struct sim_rig *rig, unsigned slot);
/* Slots slot .. slot + count show frames frame, frame + 1, ... */
void rig_map(struct sim_rig *rig, unsigned stream, unsigned slot, unsigned count, unsigned frame,
             unsigned flags);
void rig_unmap(struct sim_rig *rig, unsigned stream, unsigned slot, unsigned count, unsigned flags);
void rig_intend(struct sim_rig *rig, unsigned slot, unsigned count, unsigned frame);
void rig_submit(struct sim_rig *rig, unsigned stream, const struct mb_hw_cmd *cmds, unsigned count);

void rig_fill(struct sim_rig *rig, unsigned stream, unsigned slot, uint64_t bytes, uint64_t seed);
void rig_verify(struct sim_rig *rig, unsigned stream, unsigned slot, uint64_t bytes, uint64_t seed);
/* One access of 8 bytes at the start of a slot. */
void rig_touch(struct sim_rig *rig, unsigned stream, unsigned slot);

struct mb_hw_fence rig_fence(struct sim_rig *rig, unsigned stream);
void rig_wait(struct sim_rig *rig, unsigned stream, struct mb_hw_fence fence);
/* Waits for everything; returns what device_sync says. */
enum mb_err rig_sync(struct sim_rig *rig);

struct mb_hw_counters rig_counters(struct sim_rig *rig);
struct mb_sim_counters rig_sim(struct sim_rig *rig);

#endif
