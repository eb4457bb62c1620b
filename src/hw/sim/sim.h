/* SPDX-License-Identifier: MIT */
/*
 * sim.h - what tests may do with the software GPU beyond the hw table.
 *
 * Nothing above hw/ uses this header; it exists for tests, litmus programs and benches. Every
 * function takes a device that the "sim" backend opened and locks it. doc/software-gpu.md tells
 * which rule each hook belongs to.
 */
#ifndef MB_HW_SIM_SIM_H
#define MB_HW_SIM_SIM_H

#include "hw/hw.h"

/* The rows that hw.c lists. */
void mb__sim_describe(int ordinal, struct mb_backend_info *out);
enum mb_err mb__sim_open(const struct mb_hw_config *config, struct mb_hw_dev **out);

/* ------------------------------------------------------------ variants */

/* Safety steps that the device leaves out, or rules of its hardware that are switched off. */
enum mb_sim_mutant {
    MB_SIM_NO_INVALIDATE = 1 << 0,      /* INVALIDATE commands have no effect */
    MB_SIM_NO_INVALID_GROUP = 1 << 1,   /* a walk brings in no invalid neighbours */
    MB_SIM_NO_VALID_GROUP = 1 << 2,     /* a walk brings in no valid neighbours */
    MB_SIM_NO_MEMBAR = 1 << 3,          /* MEMBAR commands have no effect */
    MB_SIM_SHARED_QUEUE = 1 << 4,       /* isolated: all streams share one helper queue */
    MB_SIM_EARLY_FENCE = 1 << 5,        /* stream waits and fence_done do not wait */
    MB_SIM_NO_BARRIER = 1 << 6,         /* BARRIER commands have no effect */
    MB_SIM_NO_L1 = 1 << 7,              /* loads are not kept in L1 */
    MB_SIM_WARM_L1 = 1 << 8,            /* a kernel starts with the L1 of the one before it */
    MB_SIM_NO_PEER_INVALIDATE = 1 << 9, /* opening and closing leaves this peer's TLBs alone */
};
void mb__sim_set_mutants(struct mb_hw_dev *dev, unsigned mutants);

/* Restarts the choices of explore mode; the device should be idle. */
void mb__sim_set_seed(struct mb_hw_dev *dev, uint64_t seed);
/* Slabs get frames that are not consecutive (pfns list), as on a fragmented device. */
void mb__sim_set_scatter(struct mb_hw_dev *dev, bool scatter);
/* copy() runs on a copy engine: its own TLB, never heals. */
void mb__sim_set_copy_engine(struct mb_hw_dev *dev, bool on);

/* ------------------------------------------------------------ work with more control */

enum mb_sim_step_kind {
    MB_SIM_LD_CA,    /* cached in L1 */
    MB_SIM_LD_CG,    /* around L1 */
    MB_SIM_LD_VOL,   /* around L1 */
    MB_SIM_LD_NC,    /* non-coherent: cached, and a fence does not drop it */
    MB_SIM_ST,       /* posted: lands later, see doc */
    MB_SIM_FENCE,    /* __threadfence of this SM's thread */
    MB_SIM_DELAY,    /* value: ns */
    MB_SIM_SEM_WAIT, /* until semaphore `sem` >= value, spinning inside the kernel */
    MB_SIM_SEM_SET,  /* semaphore `sem` = max(present, value) */
};

/* One instruction of a test kernel. */
struct mb_sim_step {
    enum mb_sim_step_kind kind;
    unsigned sm;    /* which SM executes it: own L1, uTLB of its group */
    uint32_t sem;   /* < MB_SIM_SEMAPHORES */
    mb_va va;       /* multiple of 8 */
    uint64_t value; /* ST, DELAY, SEM_* */
    uint64_t
        *out; /* loads: where the word goes (or NULL); the caller's, until the kernel is done */
};

enum { MB_SIM_SEMAPHORES = 64 };

enum mb_sim_kernel_flag {
    MB_SIM_ROGUE = 1 << 0, /* the oracle does not judge its accesses */
};

/* Enqueues a kernel that executes `steps` in order. The steps are copied. */
enum mb_err mb__sim_kernel(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                           const struct mb_sim_step *steps, unsigned count, unsigned flags);
/* A kernel that only takes time. */
enum mb_err mb__sim_delay(struct mb_hw_dev *dev, struct mb_hw_stream *stream, uint64_t ns);
/* Stream memory operations on semaphore `sem`: later work waits for >= value; sets it. */
enum mb_err mb__sim_sem_wait(struct mb_hw_dev *dev, struct mb_hw_stream *stream, uint32_t sem,
                             uint64_t value);
enum mb_err mb__sim_sem_set(struct mb_hw_dev *dev, struct mb_hw_stream *stream, uint32_t sem,
                            uint64_t value);
/* The host opens a gate: sets the semaphore now. */
void mb__sim_sem_host(struct mb_hw_dev *dev, uint32_t sem, uint64_t value);
/* copy() on a copy engine whatever mb__sim_set_copy_engine() says. */
enum mb_err mb__sim_copy_ce(struct mb_hw_dev *dev, struct mb_hw_stream *stream, mb_va dst,
                            mb_va src, uint64_t bytes);

/* ------------------------------------------------------------ graphs */

/* Fills, verifies and copies enqueued on a stream between begin and end are recorded and not
 * executed; everything else that is enqueued there is refused. A launch enqueues them all. */
struct mb_sim_graph;
enum mb_err mb__sim_capture_begin(struct mb_hw_dev *dev, mb_stream native);
enum mb_err mb__sim_capture_end(struct mb_hw_dev *dev, mb_stream native, struct mb_sim_graph **out);
enum mb_err mb__sim_graph_launch(struct mb_hw_dev *dev, const struct mb_sim_graph *graph,
                                 struct mb_hw_stream *stream);
void mb__sim_graph_free(struct mb_sim_graph *graph);

/* ------------------------------------------------------------ observation */

struct mb_sim_counters {
    uint64_t utlb_hits, l2_hits; /* translations found in a first-level, second-level TLB */
    uint64_t walks;              /* table walks */
    uint64_t group_fills;        /* leaf groups brought in */
    uint64_t invalid_hits;       /* faults on a cached invalid entry */
    uint64_t replays;            /* faults that healed */
    uint64_t posted, landed;     /* stores in flight: taken, done */
    uint64_t accesses;           /* pages judged by the oracle */
    uint64_t released_accesses;  /* accesses to frames that no slab holds */
    uint64_t races;              /* unordered conflicting accesses of two streams (race check on) */
    uint64_t queued_ops;         /* enqueued and not yet done */
    uint64_t host_ns;            /* virtual time of the host */
    uint64_t device_ns;          /* virtual time the device has reached */
    uint64_t memory_bytes;       /* host memory behind frames and tables */
};
void mb__sim_counters(struct mb_hw_dev *dev, struct mb_sim_counters *out);
/* Adds to the host's virtual clock: the program computes for so long. */
void mb__sim_host_pass(struct mb_hw_dev *dev, uint64_t ns);

/* What the oracle saw. */
struct mb_sim_wrong {
    mb_va va;
    mb_pfn expected, actual; /* MB_NO_PFN: nothing */
    uint32_t stream;         /* number; 0 is the default stream */
    uint64_t time_ns;        /* virtual */
    const char *work;        /* "fill", "verify", ... */
    const char *why;         /* "stale", "foreign", "released", "fault" */
};
/* The first wrong accesses, at most `capacity` (8 are kept); returns how many. */
unsigned mb__sim_wrongs(struct mb_hw_dev *dev, struct mb_sim_wrong *out, unsigned capacity);
/* The first one as a line of text; "" if there is none. */
void mb__sim_first_wrong(struct mb_hw_dev *dev, char *text, size_t size);

/* Looks up without a TLB: what the tables in memory say now. MB_NO_PFN: nothing mapped. */
mb_pfn mb__sim_walk(struct mb_hw_dev *dev, mb_va va);
/* Is any translation of `va` (valid or not) cached for SMs? */
bool mb__sim_cached(struct mb_hw_dev *dev, mb_va va);
/* Could an access that starts now reach the 2 MiB frame through a cached translation? Memory's
 * tables are not asked. For the strict rule that a free frame is named by no TLB. */
bool mb__sim_tlb_names(struct mb_hw_dev *dev, mb_pfn pfn);
/* The same for a frame of another device, `owner`. */
bool mb__sim_tlb_names_of(struct mb_hw_dev *dev, const struct mb_hw_dev *owner, mb_pfn pfn);
/* A word of physical memory now; for tests of contents. */
uint64_t mb__sim_peek(struct mb_hw_dev *dev, uint64_t phys);

/* ------------------------------------------------------------ races */

/* Happens-before check between streams: fills and copies write, verifies and sources of copies
 * read, in pieces of 512 bytes of physical memory (blocks of the allocator are aligned so). Order
 * comes from streams, fence waits and what the host had seen to pass when it enqueued; only the
 * first 64 streams are watched, test kernels are not. Off by default; switch it on before any work.
 * */
enum mb_err mb__sim_race_check(struct mb_hw_dev *dev, bool on);
void mb__sim_first_race(struct mb_hw_dev *dev, char *text, size_t size);

/* ------------------------------------------------------------ costs */

enum mb_sim_stock {
    MB_SIM_STOCK_MALLOC, /* cudaMalloc of so many bytes */
    MB_SIM_STOCK_FREE,
    MB_SIM_STOCK_MALLOC_TABLES, /* page-table share of MALLOC */
    MB_SIM_STOCK_MAP,           /* driver maps so many bytes as single 2 MiB frames */
    MB_SIM_STOCK_UNMAP,
    MB_SIM_STOCK_ALIAS,     /* as MAP, of frames that another address shows already */
    MB_SIM_STOCK_TLB_FLUSH, /* bytes ignored */
    MB_SIM_STOCK_FIRST_TOUCH,
};
/* From now on so many others are in the vendor's driver whenever this device is: devices of threads
 * of the same process, of other processes, other processes on this device. Each makes a driver call
 * that maps or unmaps last longer by a share of its own time, as measured (model.c). 0, 0, 0: only
 * what devices of this process really do at the same virtual time counts. */
void mb__sim_set_crowd(struct mb_hw_dev *dev, unsigned threads, unsigned processes,
                       unsigned sharers);
/* What the model says the vendor's own call costs, ns; for comparison in benches. */
uint64_t mb__sim_stock_ns(struct mb_hw_dev *dev, enum mb_sim_stock what, uint64_t bytes);

#endif
