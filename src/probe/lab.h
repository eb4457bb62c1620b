/* SPDX-License-Identifier: MIT */
/*
 * lab.h - a device opened for measuring: frames, windows, streams, and work with more control than
 * the hw table gives.
 *
 * Litmus programs, the probe and the benches are written once against this header and run on the
 * software GPU and on CUDA. lab_sim.c and lab_cuda.c supply what differs: the clock, programs of
 * single instructions, copy engines, and the vendor's own calls.
 *
 * UNITS     frames and slots of 2 MiB; times in ns of the backend's host clock (virtual on sim).
 * OWNS      the lab owns its device; nobody else has it open through this object.
 * LOCKING   one thread per lab. The hw table below locks for itself.
 * SAFETY    entries are written through hw->submit() only, with the checks of the backend. The one
 *           exception, mb_lab_ops.spoil, writes invalid entries into the lab's own window and is
 *           for dangerous litmus programs, which run in a process of their own.
 */
#ifndef MB_PROBE_LAB_H
#define MB_PROBE_LAB_H

#include "base/rng.h"
#include "hw/hw.h"
#include "kernels/litmus.h"

struct mb_lab;

/* The vendor's ways to give memory, as the benches name them. */
enum mb_lab_vendor {
    MB_LAB_VMM_SMALL,  /* cuMemMap of one handle per 2 MiB, then one cuMemSetAccess */
    MB_LAB_VMM_ONE,    /* one handle for the whole range */
    MB_LAB_ALLOC,      /* cuMemAlloc, cuMemFree */
    MB_LAB_ASYNC_WARM, /* cuMemAllocAsync from a pool that keeps everything */
    MB_LAB_ASYNC_COLD, /* the same from a pool that gives everything back at a synchronize */
    MB_LAB_VENDORS,
};
const char *mb__lab_vendor_name(enum mb_lab_vendor way);

/* What one turn of a vendor's way does; ns each, NaN: this way has no such step. */
enum mb_lab_step {
    MB_LAB_CREATE,  /* handles alone */
    MB_LAB_MAP,     /* map and make accessible; allocation where that is one call */
    MB_LAB_PROTECT, /* read only */
    MB_LAB_REMAP,   /* unmap, and map other frames at the same address */
    MB_LAB_ALIAS,   /* the same frames at a second address */
    MB_LAB_UNMAP,   /* or free */
    MB_LAB_STEPS,
};
struct mb_lab_turn {
    double host_ns[MB_LAB_STEPS];     /* the calling thread is blocked */
    double complete_ns[MB_LAB_STEPS]; /* until it has taken effect */
    double used_ns[MB_LAB_STEPS];     /* until a kernel behind it has touched every page */
};

enum mb_lab_copy { MB_LAB_H2D, MB_LAB_D2H, MB_LAB_D2D, MB_LAB_COPIES };

/* What a backend supplies. NULL or MB_ERR_NOT_SUPPORTED: it cannot; mb_error_detail() says why. */
struct mb_lab_ops {
    bool modelled; /* times come from a model */
    enum mb_err (*open)(struct mb_lab *lab);
    void (*close)(struct mb_lab *lab);
    uint64_t (*now)(struct mb_lab *lab);
    /* Waits for a stream; NULL: everything. */
    enum mb_err (*sync)(struct mb_lab *lab, struct mb_hw_stream *stream);
    /* Is anything enqueued on the stream still to come? */
    bool (*busy)(struct mb_lab *lab, struct mb_hw_stream *stream);
    enum mb_err (*nop)(struct mb_lab *lab, struct mb_hw_stream *stream);
    /* Writes first + i at va + i * stride for i < count; one kernel. */
    enum mb_err (*touch)(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va, uint64_t stride,
                         uint32_t count, uint64_t first);
    /* Takes `ns` of device time; ends early when `gate` is opened (sim: it does not). */
    enum mb_err (*spin)(struct mb_lab *lab, struct mb_hw_stream *stream, uint64_t ns);
    void (*unspin)(struct mb_lab *lab);
    /* One launch of the steps; answers are valid after sync. `dependent`: programmatic launch. */
    enum mb_err (*run)(struct mb_lab *lab, struct mb_hw_stream *stream,
                       const struct mb_litmus_step *steps, unsigned count, bool dependent);
    /* Runs each list as a node of one graph, nodes in a chain, and waits. */
    enum mb_err (*run_graph)(struct mb_lab *lab, struct mb_hw_stream *stream,
                             const struct mb_litmus_step *steps, const unsigned *counts,
                             unsigned nodes);
    /* answer[index] = first word at va, read by a copy engine; valid after sync. */
    enum mb_err (*copy_read)(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va,
                             unsigned index);
    /* Later work of the stream waits for semaphore >= value; sets it. */
    enum mb_err (*sem_wait)(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                            uint64_t value);
    enum mb_err (*sem_set)(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                           uint64_t value);
    /* The host's own write to a semaphore, and how programs see it. */
    void (*sem_host)(struct mb_lab *lab, uint32_t sem, uint64_t value);
    /* Dangerous: slots become invalid entries, without an invalidate. */
    enum mb_err (*spoil)(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t slot,
                         uint32_t count);
    /* One turn of the vendor's way with `bytes`; `wanted` is a mask of 1 << enum mb_lab_step. */
    enum mb_err (*vendor)(struct mb_lab *lab, enum mb_lab_vendor way, uint64_t bytes,
                          unsigned wanted, struct mb_lab_turn *turn);
    /* A kernel of random reads over home space, so many per thread; its time is the caller's. */
    enum mb_err (*wander)(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t reads);
    /* Bytes per second of one copy of `bytes`. */
    enum mb_err (*copy_rate)(struct mb_lab *lab, enum mb_lab_copy way, uint64_t bytes,
                             double *bytes_per_s);
    /* Only the range of a batch is invalidated, where the backend can choose. */
    enum mb_err (*targeted)(struct mb_lab *lab, bool on);
    /* Mean ns of the first load of a page after everything was invalidated, and of a later one. */
    enum mb_err (*first_touch)(struct mb_lab *lab, uint32_t pages, double *first_ns,
                               double *later_ns);
    /* A complete invalidate asked for by the host. */
    enum mb_err (*invalidate)(struct mb_lab *lab);
    /* Software GPU: so many others are in the driver at the same time. NULL elsewhere. */
    void (*crowd)(struct mb_lab *lab, unsigned threads, unsigned processes, unsigned sharers);
    /* Faults on stale invalid entries so far, healed ones included. */
    uint64_t (*faults)(struct mb_lab *lab);
    /* Switches rules of the software GPU off: enum mb_litmus_off. NULL elsewhere. */
    void (*switch_off)(struct mb_lab *lab, unsigned rules);
    /* The vendor's entry for the frame at home slot `frame`, as the driver wrote it. */
    enum mb_err (*driver_entry)(struct mb_lab *lab, uint32_t frame, struct mb_pte *out);
    /* Size of the leaf behind a small allocation of the vendor's. Reads our own walk only. */
    enum mb_err (*small_leaf)(struct mb_lab *lab, uint64_t *leaf_bytes);
};
extern const struct mb_lab_ops mb__lab_sim, mb__lab_cuda;

struct mb_lab {
    struct mb_hw_dev *hw; /* owned */
    const struct mb_lab_ops *ops;
    void *own; /* of ops */
    const char *backend;
    struct mb_rng rng;
    uint64_t tmpl_rw, tmpl_ro;
    unsigned clock_khz; /* of the cycles that a kernel counted; 0: none did */
    /* Pool: frames in the order of acquisition. Owned; constant after mb__lab_pool(). */
    uint32_t frames;
    mb_pfn *pfn;
    mb_va home;
    struct mb_hw_slab *slab;
    unsigned slabs;
    /* Window. */
    struct mb_hw_view view;
    uint32_t slots;
    struct mb_hw_stream *stream[4]; /* made at open */
    mb_stream native[4];
    uint64_t *answer; /* MB_LITMUS_ANSWERS words; written by the device, read after sync */
};

/* Opens the backend named (NULL: the first available) with no window and no frames yet. */
enum mb_err mb__lab_open(const char *backend, const struct mb_hw_config *config, uint64_t seed,
                         struct mb_lab *lab);
/* `frames` of them, in slabs of at most `slab_bytes`. */
enum mb_err mb__lab_pool(struct mb_lab *lab, uint32_t frames, uint64_t slab_bytes);
/* `slots` rounded up to 512 MiB; all cleared. */
enum mb_err mb__lab_window(struct mb_lab *lab, uint32_t slots);
void mb__lab_close(struct mb_lab *lab);

static inline mb_va mb__lab_va(const struct mb_lab *lab, uint32_t slot)
{
    return mb__va_add(lab->view.va, (uint64_t)slot << MB_FRAME_SHIFT);
}

enum mb_lab_after {
    MB_LAB_INVALIDATE = 1 << 0, /* everything */
    MB_LAB_TARGETED = 1 << 1,   /* the slots written */
    MB_LAB_MEMBAR = 1 << 2,
    MB_LAB_READ_ONLY = 1 << 3,
};
/* One batch: slots from `slot` on show pfns (NULL: cleared), a barrier, then what flags say. */
enum mb_err mb__lab_write(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t slot,
                          uint32_t count, const mb_pfn *pfns, unsigned flags);

/* ------------------------------------------------------------ probe (probe.c), bench (bench*.c) */

enum mb_err mb__probe_run(const char *backend, const struct mb_hw_config *config, const char *path,
                          uint64_t seed, mb_fact_callback callback, void *user);
enum mb_err mb__bench_run(const char *backend, const struct mb_hw_config *config,
                          const struct mb_bench_options *options, mb_bench_callback callback,
                          void *user);

#endif
