/* SPDX-License-Identifier: MIT */
/*
 * dev.h - the inside of the software GPU, shared by the files of this directory.
 *
 * LOCKING   One mutex per device, sim_dev.lock, taken by the entry points (ops.c, hooks.c, and the
 *           files that hold one function of the table each); every sim_* function below runs with
 *           it held. A second, process-wide lock in cost.c orders the modelled driver lock; it is
 *           taken last.
 * TIME      Virtual nanoseconds. host_ns is where the calling program is, now_ns the latest event
 *           that the device has processed. Device work is executed when the host waits, asks or has
 *           enqueued a lot; what it finds then is what it would have found at its own time, except
 *           that in explore mode the order is drawn.
 */
#ifndef MB_HW_SIM_DEV_H
#define MB_HW_SIM_DEV_H

#include <pthread.h>

#include "base/err.h"
#include "hw/hw.h"
#include "hw/sim/sim.h"
#include "kernels/pattern.h"
#include "kernels/pte_pop.h"

enum {
    SIM_ORDINALS = 8,
    SIM_ORDINAL_SHIFT = 44, /* addresses of ordinal n: from (n + 1) << 44 */
    SIM_PEER_SHIFT = 44,    /* GFX9: number of the device above its physical addresses */
};

/* ------------------------------------------------------------ models (model.c, cost.c) */

/* Cost at a size; tables are interpolated. */
struct sim_point {
    uint64_t bytes, ns;
};

struct sim_model {
    const char *name, *device_name, *driver;
    enum mb_fmt fmt;
    uint8_t kind;                                  /* memory kind of leaves */
    uint64_t memory_bytes;                         /* default size of the device */
    unsigned group_slots;                          /* leaf slots that a walk brings in */
    bool caches_invalid;                           /* invalid entries enter TLBs */
    unsigned utlbs;                                /* first-level TLBs, one per group of SMs */
    unsigned utlb_entries, l2_entries, ce_entries; /* groups each holds; powers of two */
    /* Virtual time, ns. */
    uint64_t submit_ns;          /* host: enqueue a batch, inline */
    uint64_t isolated_submit_ns; /* host: the same through the helper queue */
    uint64_t launch_ns;          /* host: enqueue a kernel */
    uint64_t query_ns;           /* host: ask for a fence */
    uint64_t start_ns;           /* enqueue to start on an idle stream */
    uint64_t kernel_ns;          /* least time of a kernel, pte_pop included */
    uint64_t pop_ns;             /* pte_pop above an empty kernel */
    uint64_t entry_ps;           /* picoseconds per entry written */
    uint64_t isolated_ns;        /* helper queue: per batch */
    uint64_t isolated_entry_ps;  /* and per entry */
    uint64_t invalidate_ns, membar_ns, barrier_ns;
    uint64_t sem_ns;           /* acquire or release of a semaphore */
    uint64_t walk_ns;          /* first touch above a TLB hit */
    uint64_t replay_ns;        /* a fault that heals */
    uint64_t bytes_per_us;     /* memory bandwidth */
    uint64_t step_ns, land_ns; /* one step of a test kernel; a posted store until it lands */
    /* The vendor's own calls, host blocked. */
    const struct sim_point *slab,
        *slab_free; /* create + map one handle; unmap + release; end: bytes 0 */
    const struct sim_point *stock_malloc, *stock_free, *stock_tables;
    uint64_t map_entry_ns, unmap_entry_ns; /* driver tables: per 2 MiB frame */
    uint64_t alias_entry_ns; /* the vendor's map of a frame that is mapped elsewhere already */
    uint64_t flush_ns;       /* driver: TLB flush */
    uint64_t reserve_ns;     /* driver: reserve addresses */
    unsigned
        contention_percent; /* a driver call lasts longer by this for each other device in one */
    struct sim_crowd_cost {
        unsigned thread, process, sharer; /* percent, for each other one of this kind */
    } crowd_map, crowd_unmap;
};

extern const struct sim_model mb__sim_models[];
extern const unsigned mb__sim_model_count;
/* NULL name: the default. NULL result: unknown. */
const struct sim_model *mb__sim_model_find(const char *name);
uint64_t mb__sim_cost_at(const struct sim_point *table, uint64_t bytes);

/* ------------------------------------------------------------ physical memory (memory.c) */

enum {
    SIM_CHUNK_SHIFT = 16,
    SIM_CHUNKS = 1 << (MB_FRAME_SHIFT - SIM_CHUNK_SHIFT), /* per frame */
};

/* Bytes off..off+len of a chunk hold words mix(key + (physical address / 8) * GOLDEN). A single
 * arbitrary word is such a range of one. */
struct sim_extent {
    uint32_t off, len; /* bytes; multiples of 8 */
    uint64_t key;
};
struct sim_chunk {
    uint32_t count, capacity;
    struct sim_extent e[]; /* sorted, disjoint, maximal; gaps were never written */
};
/* Contents of one 2 MiB frame that was touched. */
struct sim_frame {
    bool whole;   /* one pattern all over; no chunks then */
    uint64_t key; /* of it */
    struct sim_chunk *chunk[SIM_CHUNKS];
};

/* Frames of a slab that are not consecutive: what mb_hw_slab.pfns points into. */
struct sim_pfns {
    struct sim_pfns *next, *prev; /* of sim_memory.lists */
    mb_pfn pfn[];
};

struct sim_memory {
    uint64_t base, bytes;     /* physical range of the frames; constant after open */
    uint32_t frames;          /* bytes / 2 MiB */
    uint32_t free_frames;     /* count of held[] == 0 */
    struct sim_frame **frame; /* NULL: untouched */
    uint8_t *held;            /* 1: part of a slab; 2: the driver's own (donor) */
    uint32_t next;            /* where the search for free frames starts */
    uint64_t host_bytes;      /* behind frame[] */
    bool failed;              /* the host ran out of memory: contents are incomplete */
    struct sim_pfns *lists;   /* of slabs that are held; freed at close */
};

enum mb_err mb__sim_memory_open(struct sim_memory *mem, uint64_t base, uint64_t bytes);
void mb__sim_memory_close(struct sim_memory *mem);
/* Frame index of an address, or UINT32_MAX outside. */
uint32_t mb__sim_memory_frame(const struct sim_memory *mem, uint64_t phys);
/* All ranges below lie in frames and are multiples of 8. */
void mb__sim_memory_write(struct sim_memory *mem, uint64_t phys, uint64_t bytes, uint64_t key);
/* Words of the range that are not as key says; never written ones count. */
uint64_t mb__sim_memory_differ(struct sim_memory *mem, uint64_t phys, uint64_t bytes, uint64_t key);
void mb__sim_memory_copy(struct sim_memory *to, uint64_t dst, struct sim_memory *from, uint64_t src,
                         uint64_t bytes);
uint64_t mb__sim_memory_word(struct sim_memory *mem, uint64_t phys);
void mb__sim_memory_set_word(struct sim_memory *mem, uint64_t phys, uint64_t word);
void mb__sim_memory_drop(struct sim_memory *mem, uint32_t frame);
/* Key of a pattern `seed` whose word `index` lies at phys. */
static inline uint64_t sim_key(uint64_t seed, uint64_t index, uint64_t phys)
{
    return seed + (index + 1 - phys / 8) * MB_PATTERN_GOLDEN;
}

/* ------------------------------------------------------------ table memory (table.c) */

/* One allocation of page-table memory; physically consecutive. */
struct sim_block {
    uint64_t phys, bytes;
    uint8_t *host;
    bool driver; /* belongs to the modelled driver's own tree */
};
struct sim_tables {
    struct sim_block *block; /* sorted by phys */
    unsigned count, capacity;
    uint64_t base; /* first address that may be given out */
    uint64_t bytes;
    unsigned hint; /* block of the last look-up */
    uint64_t root; /* phys */
};

struct sim_dev;
enum mb_err mb__sim_table_alloc(struct sim_dev *dev, uint64_t bytes, bool driver, uint64_t *phys);
/* False if there is no such allocation. */
bool mb__sim_table_free(struct sim_dev *dev, uint64_t phys, uint64_t bytes);
/* Host address of table memory, or NULL if [phys, phys + bytes) is none. */
void *mb__sim_table_at(struct sim_dev *dev, uint64_t phys, uint64_t bytes);
/* An entry of a table; false: no table memory there. */
bool mb__sim_table_read(struct sim_dev *dev, uint64_t phys, unsigned entry_bytes,
                        struct mb_pte *out);

/* ------------------------------------------------------------ translation (tlb.c, walker.c) */

enum sim_slot_flag {
    SIM_SLOT_VALID = 1 << 0,
    SIM_SLOT_READ_ONLY = 1 << 1,
    SIM_SLOT_NO_READ = 1 << 2,
    SIM_SLOT_BELOW = 1 << 3, /* a directory: smaller leaves below */
    SIM_SLOT_SPARSE = 1 << 4,
    SIM_SLOT_STOP = 1 << 5, /* invalid, the 4 KiB table is not asked */
};
/* A slot's frame number has 32 bits; above it the owning device's number, plus 1, or 0: own. */
enum { SIM_GROUP_MAX = 16, SIM_SLOT_PFN_SHIFT = 8, SIM_SLOT_PEER_SHIFT = 40 };

/* An aligned group of leaf slots as it was when walked. */
struct sim_group {
    uint64_t tag;     /* va >> group shift */
    uint32_t epoch;   /* valid while equal to the TLB's */
    uint8_t shift;    /* leaf_shift */
    uint16_t present; /* bit i: slot i is cached */
    uint32_t used;    /* for replacement */
    uint64_t
        slot[SIM_GROUP_MAX]; /* peer << SIM_SLOT_PEER_SHIFT | pfn << SIM_SLOT_PFN_SHIFT | flags */
};
enum { SIM_TLB_WAYS = 4 };
struct sim_tlb {
    struct sim_group *entry; /* sets of SIM_TLB_WAYS */
    uint32_t sets;           /* power of two */
    uint32_t epoch, clock;
    uint32_t
        small; /* entries with leaves below 2 MiB were inserted since the last whole invalidate */
};

/* A directory entry as it was when walked. */
struct sim_pde {
    uint64_t tag; /* va >> level shift, with the level in the low bits */
    uint32_t epoch;
    uint8_t valid, valid_big;
    uint64_t table, table_big;
};
enum { SIM_PDES = 256 };
struct sim_pdc {
    struct sim_pde entry[SIM_PDES];
    uint32_t epoch;
};

enum sim_fault {
    SIM_FAULT_NONE,
    SIM_FAULT_PDE,
    SIM_FAULT_PTE,
    SIM_FAULT_READ_ONLY,
    SIM_FAULT_NO_READ,
};
struct sim_where {
    uint64_t phys;
    uint64_t span;        /* bytes from the address to the end of the leaf (or hole) */
    enum sim_fault fault; /* then phys is meaningless */
    bool cached;          /* the answer came out of a TLB or the directory cache */
    bool sparse;
    uint8_t peer; /* whose phys it is: ordinal + 1; 0: the device's own */
};

enum mb_err mb__sim_tlb_open(struct sim_tlb *tlb, unsigned entries);
void mb__sim_tlb_close(struct sim_tlb *tlb);
/* The group of `va` for that leaf size, if its slot is present; *slot gets it. */
struct sim_group *mb__sim_tlb_find(struct sim_tlb *tlb, const struct sim_dev *dev, uint64_t va,
                                   unsigned leaf_shift, uint64_t *slot);
void mb__sim_tlb_insert(struct sim_tlb *tlb, const struct sim_dev *dev,
                        const struct sim_group *group);
/* bytes 0: everything. */
void mb__sim_tlb_invalidate(struct sim_tlb *tlb, const struct sim_dev *dev, uint64_t va,
                            uint64_t bytes);
struct sim_pde *mb__sim_pdc_find(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va,
                                 unsigned level);
void mb__sim_pdc_insert(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va, unsigned level,
                        const struct mb_dir *dir);
void mb__sim_pdc_invalidate(struct sim_pdc *pdc, const struct sim_dev *dev, uint64_t va,
                            uint64_t bytes);

enum sim_client { SIM_CLIENT_SM, SIM_CLIENT_CE };
/* Translates one address for utlb `group` (SM) or the copy engine. */
struct sim_where mb__sim_translate(struct sim_dev *dev, enum sim_client client, unsigned utlb,
                                   uint64_t va, bool write);
/* From the tables in memory, nothing cached. */
struct sim_where mb__sim_walk_memory(struct sim_dev *dev, uint64_t va, bool write);
/* Every TLB and directory cache. */
void mb__sim_invalidate(struct sim_dev *dev, uint64_t va, uint64_t bytes);

/* ------------------------------------------------------------ peers (peer.c) */

/* Around every use of contents or held[] of this device (`peer`: of another one). Returns what
 * mb__sim_unshare() needs. Not nested. */
bool mb__sim_share(const struct sim_dev *dev, bool peer);
void mb__sim_unshare(bool taken);
/* The memory that `where` lies in; NULL: its device is closed. Shared. */
struct sim_memory *mb__sim_memory_of(struct sim_dev *dev, const struct sim_where *where);
/* Ordinal + 1 of the device that owns the address; 0: this one, or nobody. */
unsigned mb__sim_peer_of(const struct sim_dev *dev, uint64_t va);
/* Table with which a walk of `va` begins, and its level. */
uint64_t mb__sim_root_of(const struct sim_dev *dev, uint64_t va, unsigned *level);
/* Frame and owner of a valid leaf as bits of a slot. */
uint64_t mb__sim_peer_slot(const struct sim_dev *dev, const struct mb_leaf *leaf);
/* The device is being closed: it is nobody's peer and has none. */
void mb__sim_peer_forget(struct sim_dev *dev);
enum mb_err mb__sim_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer, mb_va va,
                                uint32_t frames, const mb_pfn *pfns, enum mb_prot prot);

/* ------------------------------------------------------------ queues (stream.c) */

/* A queue of equal elements in one consecutive buffer; memory grows to the longest queue so far. */
struct sim_fifo {
    unsigned char *base;
    size_t head, tail, capacity; /* elements */
};
enum mb_err mb__sim_fifo_reserve(struct sim_fifo *fifo, size_t element_bytes, size_t count);

enum sim_op_kind {
    SIM_OP_WAIT,
    SIM_OP_LEAVES,
    SIM_OP_DIR,
    SIM_OP_BARRIER,
    SIM_OP_INVALIDATE,
    SIM_OP_MEMBAR,
    SIM_OP_FILL,
    SIM_OP_VERIFY,
    SIM_OP_COPY,
    SIM_OP_KERNEL,
    SIM_OP_DELAY,
    SIM_OP_SEM_WAIT,
    SIM_OP_SEM_SET,
    SIM_OP_JOIN, /* race check: payload is what the host knew */
};
enum sim_op_flag {
    SIM_OP_FIRST = 1 << 0,    /* of a batch: carries the batch's fixed cost */
    SIM_OP_ISOLATED = 1 << 1, /* runs on a helper queue */
    SIM_OP_CE = 1 << 2,
    SIM_OP_ROGUE = 1 << 3,
};

struct sim_op {
    uint8_t kind, flags;
    uint8_t leaf_shift, slot_bytes; /* LEAVES; DIR: slot_bytes */
    uint32_t words;                 /* payload in the stream's data queue, 32-bit words */
    uint64_t seq;                   /* ticket */
    uint64_t enqueue_ns;
    uint64_t pos; /* how far it has come: slots, bytes or steps */
    union {
        struct mb_hw_fence fence;
        struct {
            uint64_t table, tmpl;
            uint32_t first, count;
            bool clear;
        } leaves;
        struct {
            uint64_t addr;
            struct mb_pte value;
        } dir;
        struct {
            uint64_t va, bytes;
        } inval;
        struct {
            uint64_t va, src, bytes, seed;
            uint32_t runs, src_runs; /* expectation runs in the payload; 0: not judged */
            uint32_t pfn;            /* runs == 1: the run itself, payload empty */
        } access;
        struct {
            uint32_t sem;
            uint64_t value; /* DELAY: ns */
        } sem;
        struct {
            uint32_t steps;
        } kernel;
    };
};

struct sim_kernel;   /* a running test kernel: kernel.c */
struct mb_sim_graph; /* what is being captured: graph.c */

struct mb_hw_stream {
    struct sim_dev *dev;
    uint32_t id;          /* number in messages; helper queues share their stream's */
    bool helper;          /* a helper queue */
    bool native_alive;    /* between stream_create and stream_destroy; the default stream always */
    bool opened;          /* between stream_open and stream_close */
    bool active;          /* in dev->active: has operations */
    bool blocked;         /* its head was found waiting */
    bool ending;          /* its head has had its effect and ends at ready_ns */
    uint64_t seq;         /* last ticket given out */
    uint64_t lost_seq;    /* tickets from here on never pass: the context died before */
    uint64_t ready_ns;    /* the device is done with earlier work of the stream */
    struct sim_fifo ops;  /* struct sim_op */
    struct sim_fifo data; /* uint32_t, payloads in the order of ops */
    struct mb_hw_stream *queue; /* isolated: its helper queue, made at first use */
    struct sim_kernel *kernel;  /* while the head is a KERNEL that has begun */
    uint32_t pending;           /* entries of it in dev->pending */
    struct mb_sim_graph *graph; /* while it is captured; shared by forked ones */
    bool joined;                /* in it: another stream waited for all that is captured here */
    uint64_t *clock;            /* race check: per stream the ticket that happened before */
    uint64_t host_version;      /* race check: of races.host that the stream was told */
};

struct sim_op *mb__sim_stream_head(struct mb_hw_stream *stream);
const uint32_t *mb__sim_stream_data(struct mb_hw_stream *stream);
/* The head is done: drops it with its payload. */
void mb__sim_stream_pop(struct mb_hw_stream *stream);
/* Room for `ops` operations and `words` of payload, so that the pushes that follow cannot fail. */
enum mb_err mb__sim_stream_reserve(struct mb_hw_stream *stream, size_t ops, size_t words);
/* Takes the next ticket; the caller fills the rest. Room must be reserved. */
struct sim_op *mb__sim_stream_push(struct mb_hw_stream *stream, enum sim_op_kind kind);
/* Appends payload to the operation pushed last. */
void mb__sim_stream_append(struct mb_hw_stream *stream, struct sim_op *op, const uint32_t *words,
                           uint32_t count);
bool mb__sim_fence_passed(struct mb_hw_fence fence);
bool mb__sim_stream_known(struct sim_dev *dev, const struct mb_hw_stream *stream);
struct mb_hw_stream *mb__sim_stream_new(struct sim_dev *dev);
void mb__sim_streams_close(struct sim_dev *dev);

/* ------------------------------------------------------------ oracle (oracle.c) */

enum { SIM_SHADOW_SHIFT = 12, SIM_SHADOW = 1 << SIM_SHADOW_SHIFT, SIM_WRONGS = 8 };
/* 2^12 pages of 2 MiB: frame number, SIM_NOTHING, or SIM_SMALL with a table of 4 KiB pages. */
struct sim_shadow {
    uint32_t page[SIM_SHADOW];
    uint32_t **small; /* NULL until needed; per page NULL or 512 frame numbers */
};
#define SIM_NOTHING UINT32_MAX
#define SIM_SMALL (UINT32_MAX - 1)

struct sim_oracle {
    struct sim_shadow **part; /* by (va - first address of ordinal 0) >> 33 */
    unsigned parts;
    unsigned wrongs; /* kept in wrong[] */
    struct mb_sim_wrong wrong[SIM_WRONGS];
};

/* The expectation of consecutive 4 KiB pages: frames pfn, pfn + 1, ... or SIM_NOTHING. */
struct sim_run {
    uint32_t pfn, pages;
};
/* Reads runs back while an operation proceeds. */
struct sim_expect {
    const struct sim_run *run;
    uint32_t left, in_run; /* runs left; pages of the first one already passed */
    bool judged;
};

enum mb_err mb__sim_oracle_open(struct sim_dev *dev);
void mb__sim_oracle_close(struct sim_dev *dev);
void mb__sim_oracle_intend(struct sim_dev *dev, uint64_t va, uint32_t count, unsigned leaf_shift,
                           const mb_pfn *pfns);
uint32_t mb__sim_oracle_expect(struct sim_dev *dev, uint64_t va);
/* Appends the runs of a range to dev->scratch; returns their number or 0 when out of host memory.
 * */
uint32_t mb__sim_oracle_snapshot(struct sim_dev *dev, uint64_t va, uint64_t bytes);
/* Judges one translated piece. */
void mb__sim_oracle_judge(struct sim_dev *dev, const struct mb_hw_stream *stream, const char *work,
                          uint64_t va, uint64_t bytes, const struct sim_where *where,
                          struct sim_expect *expect);
void mb__sim_oracle_note(struct sim_dev *dev, const struct mb_hw_stream *stream, const char *work,
                         const char *why, uint64_t va, uint32_t expected, uint32_t actual);

/* ------------------------------------------------------------ race check (race.c) */

enum { SIM_RACE_STREAMS = 64, SIM_RACE_SHIFT = 9 };
/* Latest accesses of one 512-byte piece of physical memory. */
struct sim_cell {
    uint64_t piece; /* phys >> 9, plus 1; 0: free */
    uint64_t write_seq, read_seq[2];
    uint8_t writer, reader[2]; /* stream numbers; valid where the ticket is not 0 */
};
struct sim_races {
    bool on;
    struct sim_cell *cell;           /* open addressing */
    size_t cells, used;              /* capacity, a power of two; occupied */
    uint64_t host[SIM_RACE_STREAMS]; /* per stream: the ticket that the host knows to have passed */
    uint64_t host_version;           /* grows when host[] does */
    char first[256];
};
void mb__sim_race_close(struct sim_dev *dev);
/* Before an enqueue: tells the stream what the host knew by then. */
enum mb_err mb__sim_race_enqueue(struct sim_dev *dev, struct mb_hw_stream *stream);
/* The host has seen the fence pass. */
void mb__sim_race_host(struct sim_dev *dev, struct mb_hw_fence fence);
void mb__sim_race_access(struct sim_dev *dev, struct mb_hw_stream *stream, uint64_t phys,
                         uint64_t bytes, bool write);
/* A wait or a note from the host was executed. */
void mb__sim_race_step(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op);

/* ------------------------------------------------------------ the device */

/* A store that was translated and has not reached memory. */
struct sim_posted {
    uint64_t phys, bytes, key, lands_ns;
    struct mb_hw_stream *stream;
    unsigned sm;
};
/* Explore mode: an entry written and not yet visible to walkers. */
struct sim_pending {
    uint64_t addr;
    struct mb_pte value;
    struct mb_hw_stream *stream;
    uint8_t slot_bytes;
};

/* A piece of address space that va_reserve gave out. */
struct sim_range {
    uint64_t va, bytes;
    uint64_t leaf_tables; /* driver_home: phys of its linear last-level tables, 0 until needed */
};

struct sim_dev {
    struct mb_hw_dev hw; /* first: what callers hold */
    pthread_mutex_t lock;
    const struct sim_model *model;
    struct mb_fmt_geometry geo;
    enum mb_fmt fmt;
    int ordinal;
    bool explore, judge, driver_home, walk_ahead, self_heal, isolated, driver_tables;
    bool scatter, copy_engine;
    bool shared; /* frames were opened to a peer: share_lock of peer.c guards contents; lock */
    struct sim_dev *peer[SIM_ORDINALS]; /* whose memory was opened to this device; share_lock */
    uint64_t peer_root; /* phys of the first table for addresses of others; 0 until needed */
    unsigned mutants;
    struct sim_crowd {
        unsigned threads, processes, sharers;
    } crowd;           /* of mb__sim_set_crowd() */
    unsigned captures; /* streams being captured; written under the lock, read without (atomic) */
    uint64_t rng;
    uint64_t preference; /* explore: decides which stream is preferred */
    uint64_t eager;      /* explore: steps that an enqueue may run, less one */
    uint64_t host_ns, now_ns;

    struct sim_memory mem;
    struct sim_tables tables;
    struct sim_tlb utlb[8], l2, ce;
    struct sim_pdc pdc, ce_pdc;
    struct sim_oracle oracle;
    struct sim_races races;

    uint64_t va_base, va_bytes;
    struct sim_range *range; /* sorted by va */
    unsigned range_count, range_capacity;
    uint32_t donor; /* driver_home: frame number behind cleared slots; SIM_NOTHING until needed */

    struct mb_hw_stream **stream; /* every stream ever made; [0] the default one */
    unsigned stream_count, stream_capacity;
    struct mb_hw_stream **active; /* those with operations; capacity as of stream */
    unsigned active_count;
    struct mb_hw_stream *shared_queue; /* the helper queue of MB_SIM_SHARED_QUEUE */
    uint64_t queued;                   /* operations on all streams */
    uint64_t sem[MB_SIM_SEMAPHORES];

    struct sim_posted *posted;
    unsigned posted_count, posted_capacity;
    struct sim_pending *pending;
    unsigned pending_count, pending_capacity;
    uint32_t *scratch; /* runs of the access being enqueued */
    size_t scratch_count, scratch_capacity;

    struct mb_hw_counters counters;
    struct mb_sim_counters sim;
    enum mb_err lost; /* MB_OK while the context lives */
    char lost_text[256];
};

static inline struct sim_dev *sim_dev_of(struct mb_hw_dev *hw)
{
    return (struct sim_dev *)hw;
}
static inline void sim_lock(struct sim_dev *dev)
{
    pthread_mutex_lock(&dev->lock);
}
static inline void sim_unlock(struct sim_dev *dev)
{
    pthread_mutex_unlock(&dev->lock);
}
uint64_t mb__sim_random(struct sim_dev *dev);
static inline uint64_t sim_random_below(struct sim_dev *dev, uint64_t bound)
{
    return mb__sim_random(dev) % bound;
}
/* The context dies: everything queued is dropped, every later call answers with this. */
void mb__sim_lose(struct sim_dev *dev, const char *text);
/* MB_OK, or the error of a dead context with its text as detail. */
enum mb_err mb__sim_alive(struct sim_dev *dev);

/* ------------------------------------------------------------ engine (engine.c) */

/* Result of executing a part of an operation. */
struct sim_step {
    uint64_t ns;   /* virtual time it took */
    bool finished; /* the operation has had all its effects */
};
/* Runs what is due at virtual time limit_ns (explore: a random amount). */
void mb__sim_engine_run(struct sim_dev *dev, uint64_t limit_ns);
/* Runs until the fence has passed (stream NULL: until nothing is left). MB_OK, MB_ERR_TIMEOUT (time
 * mode), MB_ERR_DEADLOCK with detail. Moves host_ns. */
enum mb_err mb__sim_engine_wait(struct sim_dev *dev, struct mb_hw_fence fence, uint64_t timeout_ns);
/* After an enqueue: bounds the queues; explore: may run something. */
void mb__sim_engine_kick(struct sim_dev *dev);
bool mb__sim_runnable(struct sim_dev *dev, struct mb_hw_stream *stream);
void mb__sim_pending_drain(struct sim_dev *dev, struct mb_hw_stream *stream, bool all);

/* budget: largest number of units (64 slots, leaves) to do; 0: all. A kernel does one step. */
struct sim_step mb__sim_execute_batch(struct sim_dev *dev, struct mb_hw_stream *stream,
                                      struct sim_op *op, unsigned budget);
struct sim_step mb__sim_execute_access(struct sim_dev *dev, struct mb_hw_stream *stream,
                                       struct sim_op *op, unsigned budget);
struct sim_step mb__sim_execute_kernel(struct sim_dev *dev, struct mb_hw_stream *stream,
                                       struct sim_op *op);
bool mb__sim_kernel_runnable(struct sim_dev *dev, struct mb_hw_stream *stream,
                             const struct sim_op *op);
void mb__sim_kernel_free(struct mb_hw_stream *stream);
/* A fault of `client`; true: it healed, try again. Otherwise the context is dead. */
bool mb__sim_heal(struct sim_dev *dev, struct mb_hw_stream *stream, enum sim_client client,
                  uint64_t va, bool write, const struct sim_where *where);

/* Posted stores. */
void mb__sim_post(struct sim_dev *dev, const struct sim_posted *posted);
void mb__sim_land(struct sim_dev *dev, unsigned index);
/* Those of a stream (NULL: all), on one SM (UINT32_MAX: any). */
void mb__sim_land_all(struct sim_dev *dev, const struct mb_hw_stream *stream, unsigned sm);

/* ------------------------------------------------------------ graphs (graph.c) */

/* Is an access to be recorded instead? *err says whether that worked. */
bool mb__sim_graph_takes(struct mb_hw_stream *stream, enum sim_op_kind kind, mb_va va, mb_va src,
                         uint64_t bytes, uint64_t seed, enum mb_err *err);
/* The same for copies: all of them or none. */
bool mb__sim_graph_takes_list(struct mb_hw_stream *stream, const struct mb_copy *list,
                              unsigned count, enum mb_err *err);
/* The stream waits for a point of `other`. inside: of its capture, so the stream is captured too
 * from now on. Lock held. MB_ERR_NOT_SUPPORTED: that is not in this graph. */
enum mb_err mb__sim_capture_wait(struct mb_hw_stream *stream, struct mb_hw_stream *other,
                                 bool inside);
/* Every capture ends, and its graph goes: for close. */
void mb__sim_captures_close(struct sim_dev *dev);
/* MB_ERR_NOT_SUPPORTED while the stream is captured. */
enum mb_err mb__sim_not_captured(const struct mb_hw_stream *stream, const char *what);
bool mb__sim_stream_capturing(struct mb_hw_dev *hw, mb_stream native);

/* ------------------------------------------------------------ addresses, frames (host.c, driver.c)
 * */

struct sim_range *mb__sim_range_find(struct sim_dev *dev, uint64_t va, uint64_t bytes);
/* The linear last-level tables of a reserved range in the driver's own tree. */
enum mb_err mb__sim_driver_tables(struct sim_dev *dev, struct sim_range *range);
void mb__sim_driver_tables_free(struct sim_dev *dev, struct sim_range *range);
enum mb_err mb__sim_driver_map(struct sim_dev *dev, uint64_t va, const struct mb_hw_slab *slab);
void mb__sim_driver_unmap(struct sim_dev *dev, uint64_t va, uint32_t frames);
enum mb_err mb__sim_donor(struct sim_dev *dev);
struct mb_pte mb__sim_driver_entry(const struct sim_dev *dev, mb_pfn pfn);
/* A driver call of `ns` by the host, longer while other devices are in one. */
void mb__sim_driver_call(struct sim_dev *dev, uint64_t ns);
/* The device is being closed. */
void mb__sim_driver_forget(const struct sim_dev *dev);

/* ------------------------------------------------------------ functions of the table */

enum mb_err mb__sim_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out);
enum mb_err mb__sim_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes);
enum mb_err mb__sim_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                 struct mb_hw_slab *out);
enum mb_err mb__sim_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *slab);
enum mb_err mb__sim_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                               struct mb_hw_view *out);
void mb__sim_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view);
enum mb_err mb__sim_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           const struct mb_hw_cmd *cmds, unsigned count);
enum mb_err mb__sim_stream_create(struct mb_hw_dev *hw, mb_stream *native);
enum mb_err mb__sim_stream_destroy(struct mb_hw_dev *hw, mb_stream native);
enum mb_err mb__sim_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out);
void mb__sim_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream);
enum mb_err mb__sim_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                         uint64_t bytes, uint64_t seed);
enum mb_err mb__sim_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                           uint64_t bytes, uint64_t seed);
enum mb_err mb__sim_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                         uint64_t bytes);
enum mb_err mb__sim_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                              const struct mb_copy *list, unsigned count);
/* Enqueues an access operation; `flags` of enum sim_op_flag. Lock held. */
enum mb_err mb__sim_access_enqueue(struct sim_dev *dev, struct mb_hw_stream *stream,
                                   enum sim_op_kind kind, mb_va va, mb_va src, uint64_t bytes,
                                   uint64_t seed, unsigned flags);

#endif
