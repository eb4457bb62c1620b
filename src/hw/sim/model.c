/* SPDX-License-Identifier: MIT */
/*
 * model.c - what the modelled devices are, with the source of every number.
 *
 * Three kinds of sources: «H200» measured on one H200 with driver 580; «A100» published for the
 * A100 by the work MoonBright follows; «choice» where nothing is known and a plausible value is
 * taken. A choice never decides whether a test passes: costs only order events and feed benches.
 */
#include "hw/sim/dev.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* One handle: cuMemCreate + cuMemMap + cuMemSetAccess (H200). */
static const struct sim_point h200_slab[] = {
    {2 * MIB, 29900},   {16 * MIB, 29900}, {128 * MIB, 47400},
    {512 * MIB, 85500}, {2 * GIB, 161500}, {0, 0},
};
/* The same back: cuMemUnmap + cuMemRelease (H200). */
static const struct sim_point h200_slab_free[] = {
    {2 * MIB, 24000},    {16 * MIB, 30600}, {128 * MIB, 66200},
    {512 * MIB, 194200}, {2 * GIB, 616700}, {0, 0},
};
/* cudaMalloc, cudaFree (H200). */
static const struct sim_point h200_malloc[] = {
    {2 * MIB, 32500},   {16 * MIB, 33200}, {128 * MIB, 38700},
    {512 * MIB, 67200}, {2 * GIB, 119700}, {0, 0},
};
static const struct sim_point h200_free[] = {
    {2 * MIB, 27700},    {16 * MIB, 32400}, {128 * MIB, 64200},
    {512 * MIB, 177600}, {2 * GIB, 592000}, {0, 0},
};
/* Not split by the measurement; the map and access part of one handle stands for it (H200). */
static const struct sim_point h200_tables[] = {
    {2 * MIB, 21700},   {16 * MIB, 21800}, {128 * MIB, 38000},
    {512 * MIB, 49500}, {2 * GIB, 89800},  {0, 0},
};

/* cudaMalloc and the share of page tables in it (A100); 2 GiB goes on with the slope of the last
 * two. */
static const struct sim_point a100_malloc[] = {
    {2 * MIB, 59000},
    {16 * MIB, 437000},
    {128 * MIB, 966000},
    {0, 0},
};
static const struct sim_point a100_tables[] = {
    {2 * MIB, 47000},
    {16 * MIB, 422000},
    {128 * MIB, 949000},
    {0, 0},
};
/* Not published: as H200 (choice). */
/* Stock driver, two H200, 2 GB of 2 MB handles, each alone and with one other at the same time:
 * map 30.9 ms alone, 52.3 in two processes, 66.9 and 84.3 in two threads (mean taken), 60.6 with
 * two processes on one GPU; unmap 19.4 alone, 28.7, 34.7 and 47.5, 31.9. That each further one adds
 * as much again is the model: a lock that is held for a share of the call (choice). */
#define CROWD .crowd_map = {143, 69, 96}, .crowd_unmap = {112, 48, 64}
#define a100_free h200_free
#define a100_slab a100_malloc
#define a100_slab_free h200_slab_free

const struct sim_model mb__sim_models[] = {
    {
        .name = "h200",
        .device_name = "simulated H200 141GB",
        .driver = "simulated GMMU v3",
        .fmt = MB_FMT_GMMU_V3,
        .kind = 6, /* what CUDA's own entries carry (H200) */
        .memory_bytes = 141 * (uint64_t)1000000000 / (2 * MIB) * (2 * MIB),
        .group_slots = 16,          /* stale for neighbours 1..15, fresh from 16 on (H200) */
        .caches_invalid = true,     /* H200: faults without an invalidate */
        .utlbs = 8,                 /* one per GPC (choice: 8 full GPCs) */
        .utlb_entries = 64,         /* choice: 2 GiB of reach */
        .l2_entries = 4096,         /* choice: 128 GiB of reach, so that staleness lasts */
        .ce_entries = 256,          /* choice */
        .submit_ns = 3600,          /* pte_pop launch, host blocked 3.6-3.7 us (H200) */
        .isolated_submit_ns = 9000, /* 8-10 us (H200) */
        .launch_ns = 3600,          /* empty kernel, host blocked (H200) */
        .query_ns = 20,             /* choice: a read of host memory */
        .start_ns = 1400,           /* 8.7 us until complete = 3.6 host + this + 3.7 (H200) */
        .kernel_ns = 3700,          /* back to back (H200) */
        .pop_ns = 1000,             /* 9.7 us for one entry against 8.7 (H200) */
        .entry_ps = 700,            /* 10.4 us for 1,024 (H200) */
        .isolated_ns = 5000,        /* 13-16 us until complete for one entry (H200) */
        .isolated_entry_ps = 15000, /* 28-38 us for 1,024 (H200) */
        .invalidate_ns = 2500,      /* 2.4-2.6 us asked from a kernel (H200) */
        .membar_ns = 500,           /* choice; contained in the 3.4 us that the fused form adds */
        .barrier_ns = 400,          /* choice; as above */
        .sem_ns = 1700,             /* waiting for the stream first: 3-4 us for two (H200) */
        .walk_ns = 131,             /* 635 against 375 cycles at 1.98 GHz (H200) */
        .replay_ns = 28000,         /* mean of a healed fault (H200) */
        .bytes_per_us = 4491000,    /* read through scattered frames, GB/s (H200) */
        .step_ns = 500,             /* choice: one dependent access */
        .land_ns = 1000,            /* choice */
        .slab = h200_slab,
        .slab_free = h200_slab_free,
        .stock_malloc = h200_malloc,
        .stock_free = h200_free,
        .stock_tables = h200_tables,
        .map_entry_ns = 26118,     /* 26,745 us for 1,024 frames (H200) */
        .unmap_entry_ns = 17556,   /* 17,977 us for 1,024 frames (H200) */
        .alias_entry_ns = 32965,   /* 33,756 us for 1,024 frames (H200) */
        .flush_ns = 16000,         /* driver's invalidate, 16-36 us (H200) */
        .reserve_ns = 3000,        /* 0.5-29 us by size (H200) */
        .contention_percent = 115, /* 30.9 ms alone, 52-84 ms beside one other (H200): middle */
        CROWD,
    },
    {
        .name = "a100",
        .device_name = "simulated A100 80GB",
        .driver = "simulated GMMU v2",
        .fmt = MB_FMT_GMMU_V2,
        .kind = 6,
        .memory_bytes = 80 * GIB,
        .group_slots = 16, /* choice: as H200, the entry formats share PDE0's 16-byte slots */
        .caches_invalid = true,
        .utlbs = 8,
        .utlb_entries = 64,
        .l2_entries = 2048, /* choice: 64 GiB of reach */
        .ce_entries = 256,
        .submit_ns = 3600, /* choice for this and the next ten: as H200 */
        .isolated_submit_ns = 9000,
        .launch_ns = 3600,
        .query_ns = 20,
        .start_ns = 1400,
        .kernel_ns = 3700,
        .pop_ns = 1000,
        .entry_ps = 700,
        .isolated_ns = 5000,
        .isolated_entry_ps = 15000,
        .invalidate_ns = 2500,
        .membar_ns = 500,
        .barrier_ns = 400,
        .sem_ns = 1700,
        .walk_ns = 678,          /* first touch +956 cycles (A100) at 1.41 GHz */
        .replay_ns = 28000,      /* choice: as H200 */
        .bytes_per_us = 1935000, /* data sheet, GB/s */
        .step_ns = 500,
        .land_ns = 1000,
        .slab = a100_slab,
        .slab_free = a100_slab_free,
        .stock_malloc = a100_malloc,
        .stock_free = a100_free,
        .stock_tables = a100_tables,
        .map_entry_ns = 35156,   /* 2 GB map 36 ms (A100) */
        .unmap_entry_ns = 17556, /* choice: as H200 */
        .alias_entry_ns = 32965, /* choice: as H200 */
        .flush_ns = 26800,       /* TLB flush (A100) */
        .reserve_ns = 3000,
        .contention_percent = 115,
        CROWD,
    },
    {
        .name = "mi210",
        .device_name = "simulated MI210 64GB",
        .driver = "simulated GFX9 translate-further",
        .fmt = MB_FMT_GFX9_TF,
        .kind = 1, /* MTYPE RW: local memory on 9.4.2 (driver source) */
        .memory_bytes = 64 * GIB,
        .group_slots =
            1, /* driver source: fresh maps skip the flush, so no neighbours are cached */
        .caches_invalid = false, /* same evidence */
        .utlbs = 8,
        .utlb_entries = 64,
        .l2_entries = 4096,
        .ce_entries = 256,
        /* No AMD hardware was at hand: every time below is a choice, taken from the A100. */
        .submit_ns = 3600,
        .isolated_submit_ns = 9000,
        .launch_ns = 3600,
        .query_ns = 20,
        .start_ns = 1400,
        .kernel_ns = 3700,
        .pop_ns = 1000,
        .entry_ps = 700,
        .isolated_ns = 5000,
        .isolated_entry_ps = 15000,
        .invalidate_ns = 2500,
        .membar_ns = 500,
        .barrier_ns = 400,
        .sem_ns = 1700,
        .walk_ns = 678,
        .replay_ns = 28000,
        .bytes_per_us = 1638000, /* data sheet, GB/s */
        .step_ns = 500,
        .land_ns = 1000,
        .slab = a100_slab,
        .slab_free = a100_slab_free,
        .stock_malloc = a100_malloc,
        .stock_free = a100_free,
        .stock_tables = a100_tables,
        .map_entry_ns = 35156,
        .unmap_entry_ns = 17556,
        .alias_entry_ns = 32965,
        .flush_ns = 26800,
        .reserve_ns = 3000,
        .contention_percent = 115,
        CROWD,
    },
};
const unsigned mb__sim_model_count = sizeof(mb__sim_models) / sizeof(mb__sim_models[0]);
