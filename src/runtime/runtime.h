/* SPDX-License-Identifier: MIT */
/*
 * runtime.h - the allocator: what its source files share.
 *
 *   device.c   open, close                       pool.c     pools, growth, trim
 *   stream.c   streams, events, who may reuse    alloc.c    the slow path of malloc and free
 *   bins.c     the warm path                     stitch.c   blocks composed of several ranges
 *   table.c    address -> block                  vmm*.c     reserve, map, alias, sleep
 *   stats.c    counters and histograms           realloc.c  other sizes for a block
 *   debug.c    red zones, poison, leaks          info.c     queries, device work
 *   watch.c    trace, history, hook              snapshot.c what is allocated, as a file
 *   oom.c      the report of a failure           check.c    every invariant
 *   collect.c  ranges for a plan                 heap.c, plan.c, tree.h  pure data structures
 *
 * ORDER OF MEMORY   A *ticket* numbers the stretches of a stream between two recorded points. What
 * is freed on a stream carries the ticket open at that moment; recording a fence or an event closes
 * it. So freeing touches no device and reads one number, and "everything freed on T up to ticket t"
 * is a point that a fence, an event or a clock can name. clock[T] of stream S is the largest ticket
 * of T after which all later work of S comes.
 *
 * LOCKING   mb_device.lock guards everything not marked otherwise. Shard locks come after it: a
 * thread that holds a shard's lock takes no other. vm's and the backend's locks come after both;
 * shard locks are never held across a call into them. The warm path takes one shard's lock only.
 *
 * ACCOUNTS  per pool, at every moment that the lock and all shard locks are held:
 *   requested <= allocated <= used_frames * frame <= total_bytes (frames this pool owns)
 *   allocated + binned = heap.used_bytes
 */
#ifndef MB_RUNTIME_RUNTIME_H
#define MB_RUNTIME_RUNTIME_H

#include "base/hash.h"
#include "base/hist.h"
#include "base/lock.h"
#include "base/vec.h"
#include "hw/hw.h"
#include "runtime/heap.h"
#include "runtime/plan.h"
#include "vm/vm.h"

enum {
    MB__APART = 128,       /* bytes: what different threads write lies so far apart */
    MB__SHARDS = 64,       /* of the warm path; threads are dealt over them in turn */
    MB__BIN_SETS = 64,     /* per shard */
    MB__BIN_WAYS = 4,      /* bins per set */
    MB__STREAM_SLOTS = 16, /* per shard: cache of native handle -> record */
    MB__POINTS = 8,        /* recorded and not yet passed points kept per stream */
    MB__LARGE = 1 << 20,   /* from here on a block's bin is emptied for requests of other sizes */
    MB__RECENT = 4096,     /* remembered freed addresses, to tell a double free from nonsense */
    MB__WINDOWS_MAX = 512, /* cached windows per pool */
    MB__SAMPLE = 16,       /* one call in so many is timed */
    MB__SAMPLES_KEPT = 32, /* by a shard before they go into the common histogram */
    MB__FIT_TRIES = 8,     /* holes compared for one request */
    MB__ORDER_FENCES = 16, /* streams whose end frames given back may wait for */
    MB__FRAGMENT_SHARE =
        144, /* above 1/144 of the pool in fragments, blocks are composed of them */
};

/* ------------------------------------------------------------------ configuration */

enum mb__check {
    MB__CHECK_REDZONE = 1 << 0,
    MB__CHECK_POISON = 1 << 1,
    MB__CHECK_UAF = 1 << 2,
    MB__CHECK_LEAKS = 1 << 3,
};

enum mb__growth {
    MB__GROWTH_TIGHT, /* compose before growing; a stream waits for another if that saves growth */
    MB__GROWTH_FAST,  /* grow while the device has memory, compose afterwards */
    MB__GROWTH_PATIENT, /* make a stream wait for another before growing, whether it helps or not */
    MB__GROWTH_INDEPENDENT, /* as tight, but no stream waits while the device has memory */
};

enum mb__capture {
    MB__CAPTURE_AUTO,  /* check where it costs next to nothing: on the software GPU */
    MB__CAPTURE_CHECK, /* ask the backend at every call that takes a stream */
    MB__CAPTURE_TRUST, /* the program allocates from pools with MB_POOL_KEEP while it captures */
};

struct mb__config {
    struct mb_hw_config hw;
    struct mb_vm_config vm;
    const char *backend; /* NULL: first that opens */
    enum mb__growth growth;
    enum mb__capture capture;
    unsigned checks;            /* enum mb__check */
    bool no_bins;               /* every call takes the slow path */
    bool dry;                   /* batches are not executed: for measuring what they cost here */
    uint64_t bin_bytes;         /* of small blocks kept by one shard's bins; 0: 8 MiB */
    uint64_t window_bytes;      /* of cached windows per pool; 0: the device's memory */
    uint64_t release_threshold; /* of the default pool */
    uint64_t wait_ns;           /* longest host wait inside a failing request */
    uint64_t history;           /* events kept for snapshots; 0: none */
    bool trace_rmm;             /* the trace is written as RMM writes it */
    char trace[256];            /* file to write; "": none */
    char nvtx[256];             /* "yes", path of a library, or "": no ranges */
};

/* ------------------------------------------------------------------ streams */

struct mb__point {
    uint64_t ticket; /* everything up to it lies before the fence */
    uint64_t raises; /* mb__stream.raises then: equal to now, the stream's clock is still that */
    struct mb_hw_fence fence;
};

struct mb__stream {
    mb_stream native;        /* constant while in use */
    struct mb_hw_stream *hw; /* constant while in use */
    uint32_t index;          /* in mb_device.streams; constant */
    bool retired;            /* destroyed by its user; its memory is still in its lanes */
    bool created;            /* by mb_stream_create(): destroy gives it back to the backend */
    uint64_t ticket; /* the open one; from 1; written under the lock, read without (atomic) */
    uint64_t done;   /* the device has passed it */
    uint64_t named;  /* live blocks told by mb_record_stream() */
    uint64_t freed;  /* largest ticket that anything was freed with */
    uint64_t sealed; /* what carries a ticket up to it must not be done on the native stream */
    struct mb__point points[MB__POINTS]; /* oldest first */
    unsigned point_count;
    uint64_t *clock;      /* owned; by stream index */
    uint32_t clock_count; /* entries; those beyond are 0 */
    uint64_t raises;      /* times that the clock was raised */
};

struct mb_event {
    struct mb_device *dev;     /* NULL: destroyed; atomic, written under the lock */
    struct mb__stream *stream; /* NULL: never recorded */
    uint64_t ticket;           /* of `stream` */
    struct mb_hw_fence fence;
    uint64_t *clock; /* owned copy of the stream's clock then */
    uint32_t clock_count;
    struct mb_event *prev, *next; /* of mb_device.events */
};

/* ------------------------------------------------------------------ blocks */

enum mb__block_state {
    MB__BLOCK_NONE,   /* unused record */
    MB__BLOCK_LIVE,   /* the caller's */
    MB__BLOCK_BINNED, /* in a bin of the warm path, in the order of the bin's stream */
    MB__BLOCK_PINNED, /* freed, but aliases of its frames live */
};

struct mb__block {
    /* Two threads' blocks share no line, nor a pair of lines that processors fetch together. */
    _Alignas(MB__APART) uint32_t state; /* enum mb__block_state; atomic: a free wins by exchange */
    uint32_t pins; /* pages elsewhere that show this block's frames; lock; atomic */
    /* These two are looked at by whoever has found the record in the table, without a lock. */
    uint64_t requested;   /* as the caller asked; written by whoever changes the state; atomic */
    struct mb_pool *pool; /* constant while not NONE; atomic */
    uint64_t addr;        /* as given to the caller */
    uint64_t zone_bytes;  /* red zone on either side, part of bytes; 0 mostly */
    uint64_t bytes;       /* sum of the pieces */
    uint64_t ticket;      /* binned: what the free carried */
    uint64_t generation;  /* of the mapping at addr; grows with remaps */
    struct mb__stream *stream; /* of the allocation, or after a free of that; NULL: the host */
    struct mb__node *pieces;   /* used nodes in block order */
    struct mb__window *window; /* NULL: the block lies at its home addresses */
    struct mb__order *uses; /* one reference; NULL mostly. Streams told by mb_record_stream(), with
                               ticket 0, or on which aliases were unmapped, with the ticket of that.
                               After the free: the joint order, the stream of the free included */
    struct mb__block *next; /* of a bin, or of the unused records */
    bool shown;             /* mb__block_hold() was called: frees take the lock; atomic */
    /* What mb__vm_look() said when it was last asked; lock. */
    bool look_in_a_row;
    uint32_t look_refs, look_pages;
    uint64_t look_changes; /* 0: never asked */
};
_Static_assert(sizeof(struct mb__block) == MB__APART, "two lines per block");

static inline uint64_t mb__block_requested(const struct mb__block *block)
{
    return __atomic_load_n(&block->requested, __ATOMIC_RELAXED);
}

/* Behind the last byte of the block's memory, red zones included. */
static inline uint64_t mb__block_end(const struct mb__block *block)
{
    return block->addr - block->zone_bytes + block->bytes;
}

/* A range of addresses that shows pieces of the heap in a row. With a block: its address. Without:
 * cached, and useful again once all its pieces are free. */
struct mb__window {
    struct mb__link by_bytes;         /* key (bytes, serial); in pool.windows while cached */
    struct mb__window *older, *newer; /* of pool.window_oldest/newest while cached */
    mb_va va;                         /* of the first page */
    uint32_t frames;                  /* pages of addresses */
    uint32_t shown;               /* mapped ones, from the first; fewer after the block shrank */
    uint64_t bytes;               /* of the block; it starts at va + offset */
    uint64_t offset;              /* within the first page */
    struct mb_hw_fence mapped;    /* the map has been executed */
    struct mb__stream *mapped_on; /* NULL: known to have been executed */
    struct mb__stream *last;      /* the last block's free; NULL: no device work is left */
    uint64_t last_ticket;
    struct mb__order *uses;  /* one reference; joint order of the last free, if several streams */
    struct mb__link by_va;   /* key (first byte, 0); in mb_device.windows always */
    struct mb__block *block; /* whose address it is; NULL: cached */
    uint32_t count;
    struct mb__range ranges[]; /* home ranges in block order */
};

/* ------------------------------------------------------------------ warm path */

struct mb__bin {
    struct mb_pool *pool;      /* NULL: unused */
    struct mb__stream *stream; /* whose order; NULL: anybody's */
    uint64_t bytes;
    struct mb__block *head;
    uint32_t count;
    uint32_t used_at; /* shard.clock of the last use */
};

/* What the warm path of one shard did to a pool's live bytes since they were last brought into the
 * pool's base. Under its shard's lock. */
struct mb__account {
    /* Live; may be negative: freed here, taken elsewhere. */
    _Alignas(MB__APART) int64_t blocks, requested, allocated;
    int64_t requested_high, allocated_high; /* largest since the last fold */
    uint64_t mallocs, frees;                /* calls since open */
    uint64_t malloc_bytes;                  /* handed out since open, after rounding */
    struct mb_pool *pool;                   /* whose; constant while the pool is open */
    struct mb__account *next;               /* of mb__shard.touched */
    bool touched;                           /* on that list */
};

struct mb__shard {
    _Alignas(MB__APART) uint32_t lock; /* spin; atomic */
    uint32_t clock;                    /* counts uses */
    uint32_t calls;                    /* for sampling; not exact */
    uint32_t sample_count[2];          /* of samples[]: of malloc, of free */
    uint64_t bytes;                    /* in the bins, of blocks below MB__LARGE */
    uint64_t large_bytes;              /* of the others; also read without the lock (atomic) */
    struct mb__account *touched;       /* differ from 0: what a slow call has to look at */
    struct {
        mb_stream native;
        struct mb__stream *stream; /* NULL: empty */
    } streams[MB__STREAM_SLOTS];
    struct mb__bin bins[MB__BIN_SETS][MB__BIN_WAYS];
    uint32_t samples[2][MB__SAMPLES_KEPT]; /* ns; not in the device's histograms yet */
};

/* Address -> block. Readers take no lock; see table.c. */
struct mb__table {
    uint64_t sequence;             /* odd while a writer changes the table; atomic */
    struct mb__table_array *array; /* atomic */
    struct mb__table_array *old;   /* outgrown ones, kept for late readers */
    size_t count;
};

/* ------------------------------------------------------------------ pools and device */

/* Blocks and bytes in callers' hands; both in bytes, as asked and after rounding. */
struct mb__live {
    int64_t blocks, requested, allocated;
};

struct mb_pool {
    /* What the warm path reads, and what the slow one writes, lie apart. */
    _Alignas(MB__APART) uint32_t magic; /* MB__POOL_MAGIC while open; atomic; records live as long
                                           as their device */
    uint32_t id;                        /* owner tag of its frames; lock; atomic */
    struct mb_device *dev;              /* the record's, open or spare */
    bool keep; /* MB_POOL_KEEP: memory and addresses stay the pool's own; lock; atomic */
    struct mb_pool *prev, *next; /* of mb_device.pools */
    _Alignas(MB__APART) struct mb__heap heap;
    struct mb__lane ready;   /* usable by anybody */
    struct mb__lane apart;   /* several streams each */
    struct mb__lane **lanes; /* by stream index; NULL entries: nothing yet */
    uint64_t *held;          /* bit per lane: it has free bytes; as many as lane_count; owned */
    uint32_t lane_count;     /* a multiple of 64 */
    struct mb_tree windows;  /* cached ones */
    struct mb__window *window_oldest, *window_newest;
    uint64_t window_bytes; /* of cached ones */
    uint64_t window_serial;
    uint64_t limit_bytes;       /* 0: none */
    uint64_t release_threshold; /* bytes */
    bool follow_events, opportunistic, internal_deps;
    struct mb__live base;    /* live, without what the shards' accounts say */
    struct mb__live excess;  /* while accounts are brought in: how far one shard was above them */
    struct mb_pool *settled; /* while accounts are brought in: next pool of which any was */
    bool settling;           /* on that list */
    uint64_t requested_peak, allocated_peak, reserved_peak; /* reserved: heap.total_bytes */
    uint64_t stitched_live;
    struct mb__account accounts[MB__SHARDS]; /* each by its shard's lock */
};

static inline bool mb__pool_keeps(const struct mb_pool *pool)
{
    return __atomic_load_n(&pool->keep, __ATOMIC_RELAXED);
}

struct mb__counters {
    uint64_t failed_requests, stitches, window_hits, grows, trims, waits;
    uint64_t looks;                          /* free ranges that plans looked at */
    uint64_t mallocs, frees;                 /* of the slow path, and of pools that are gone */
    uint64_t malloc_bytes;                   /* likewise; handed out since open, after rounding */
    uint64_t retries;                        /* requests that had to make room to go on */
    uint64_t host_waits;                     /* of them, those for which the host waited */
    uint64_t frames_peak, reserved_peak;     /* bytes; all pools and mappings */
    uint64_t requested_peak, allocated_peak; /* bytes; all pools and mappings */
    uint64_t malloc_max_ns, free_max_ns;     /* slow path: every call */
    uint64_t own_wrong_words;                /* verify mismatches of debug.c */
    uint64_t poison_hits;                    /* blocks found written after their free */
};

struct mb_device {
    uint32_t magic; /* MB__DEVICE_MAGIC while open; atomic; shells are never freed */
    struct mb_device *next_shell;
    const struct mb_hw_backend *backend;
    struct mb_hw_dev *hw;
    struct mb_vm *vm;
    struct mb__config config; /* constant after open */
    /* What the warm path reads lies apart from what the slow one writes. */
    _Alignas(MB__APART) struct mb__shard *shards; /* MB__SHARDS of them; constant after open */
    bool use_bins;                                /* constant after open */
    bool asks_capture;                            /* captures are looked for; constant after open */
    uint64_t bin_bytes;                           /* bound of mb__shard.bytes; constant */
    uint64_t large_bin_bytes;                     /* bound of mb__shard.large_bytes; constant */
    struct mb__watch *watch; /* NULL: nobody looks on; set once (atomic); owned */
    struct mb_pool *default_pool;
    struct mb__table table;
    _Alignas(MB__APART) struct mb_lock lock;
    uint64_t touched;                         /* bit per shard that has touched accounts; atomic */
    MB_VEC(struct mb__stream *) streams;      /* by index; records live until close */
    MB_VEC(struct mb__stream *) idle_streams; /* retired, empty: to be used again */
    struct mb_tree windows;                   /* all stitched windows, by address */
    struct mb_map by_native;                  /* native handle -> record, open streams */
    struct mb__stream *own;                   /* the runtime's own stream: maps for host requests */
    struct mb_event *events;
    struct mb_event *spare_events; /* destroyed ones, by next; kept until close, so that
                                                 their handles are known to be dead */
    struct mb__live base;          /* sum over all pools' */
    struct mb_pool *pools;
    struct mb_pool *spare_pools; /* records of deleted ones, linked by next */
    uint32_t next_pool_id;
    struct mb__block *spare_blocks; /* unused records */
    MB_VEC(struct mb__block *) block_chunks;
    MB_VEC(struct mb__range) ranges, pieces; /* scratch of planning */
    MB_VEC(mb_pfn) pfns;                     /* scratch of mapping */
    struct mb__window *quarantine_oldest,
        *quarantine_newest; /* check:uaf; unmapped, by older/newer */
    uint64_t quarantine_bytes;
    MB_VEC(struct mb__window *)
    zombies;                     /* of pools gone, to be unmapped when their users are done */
    uint64_t recent[MB__RECENT]; /* addresses freed lately */
    uint64_t generation;         /* last one given out */
    struct mb__given *given; /* what is open to other devices: access.c; NULL: nothing ever was */
    struct mb__counters counters;
    struct mb_hist malloc_hist, free_hist, map_hist;
    struct mb__vmm *vmm;
    mb_remap_hook hook;
    void *hook_user;
};

#define MB__DEVICE_MAGIC 0x6d6f6f6eu
#define MB__POOL_MAGIC 0x706f6f6cu

/* A request on its way through the steps of alloc.c. */
struct mb__request {
    struct mb_device *dev;
    struct mb_pool *pool;
    struct mb__stream *stream; /* NULL: must be usable by anybody at once */
    struct mb__block *block;   /* record to fill */
    struct mb__node *last;     /* piece that mb__take_range() gave it last; NULL: unknown */
    struct mb__node *listed;   /* the one that its lane's list had behind it; NULL: none */
    uint64_t bytes;            /* rounded */
    uint64_t missing_bytes;    /* what the last plan lacked; 0: unknown */
    bool ordered;              /* other streams' memory may be used where order allows */
    enum mb_err grow_err;      /* why growth failed last; MB_OK: it did not */
    bool own_limit;            /* it failed at the limit of the pool, not of the device */
};

/* ------------------------------------------------------------------ device.c */

/* True in a fork of the process that opened devices. */
bool mb__in_fork(void);
enum mb_err mb__device_open(const struct mb__config *config, struct mb_device **out);
/* False: another thread closes it. */
bool mb__device_close(struct mb_device *dev);
enum mb_err mb__device_sync(struct mb_device *dev);
bool mb__device_is_open(const struct mb_device *dev);
/* For destructors of the library, which run at exit too, before other threads and other libraries'
 * destructors are done: may anybody still have a handle? */
bool mb__device_any_open(void);
/* Ordinal of another open device whose block or mapping holds the address; -1: none. Takes that
 * device's lock, so no device may be locked. */
int mb__device_owning(const struct mb_device *not_this, uint64_t addr);

/* ------------------------------------------------------------------ table.c */

void mb__table_fini(struct mb__table *table);
/* Makes one put possible. MB_ERR_HOST_MEMORY. */
enum mb_err mb__table_prepare(struct mb__table *table);
void mb__table_put(struct mb__table *table, uint64_t addr, struct mb__block *block);
void mb__table_del(struct mb__table *table, uint64_t addr);
/* NULL: no block starts there. Takes no lock. */
struct mb__block *mb__table_get(const struct mb__table *table, uint64_t addr);
/* Visits all; start with *at = 0. Lock held. */
struct mb__block *mb__table_next(const struct mb__table *table, size_t *at);

/* ------------------------------------------------------------------ stream.c */

/* Is the stream known to be recorded into a graph now? Takes no lock. */
static inline bool mb__capturing(const struct mb_device *dev, mb_stream native)
{
    return dev->asks_capture && dev->hw->ops->stream_capturing(dev->hw, native);
}
/* MB_ERR_NOT_SUPPORTED while it is. */
enum mb_err mb__not_captured(const struct mb_device *dev, mb_stream native);
/* Finds or opens the record of a native stream. Lock held. */
enum mb_err mb__stream_get(struct mb_device *dev, mb_stream native, struct mb__stream **out);
enum mb_err mb__stream_new(struct mb_device *dev, mb_stream native, struct mb__stream **out);
static inline uint64_t mb__stream_ticket(const struct mb__stream *stream)
{
    return __atomic_load_n(&stream->ticket, __ATOMIC_RELAXED);
}
/* Makes the last point cover all that was freed; records a fence if it does not yet. */
enum mb_err mb__stream_cover(struct mb_device *dev, struct mb__stream *stream);
/* Reads which recorded points have passed. Touches host memory only. */
void mb__stream_poll(struct mb_device *dev, struct mb__stream *stream);
/* Is everything in the lane freed on just this stream (NULL: free for anybody)? */
static inline bool mb__lane_is_own(const struct mb__lane *lane, const struct mb__stream *stream)
{
    return !lane->apart && lane->owner == stream;
}
uint64_t mb__stream_clock(const struct mb__stream *stream, const struct mb__stream *other);
/* May `stream` (NULL: anybody) use what `lane` freed at `ticket`? */
bool mb__order_allows(const struct mb__stream *stream, const struct mb__stream *owner,
                      uint64_t ticket);
bool mb__node_usable(const struct mb__stream *stream, const struct mb__node *node);
/* The same without what is only so because the device has finished: for pools with MB_POOL_KEEP. */
bool mb__node_ordered(const struct mb__stream *stream, const struct mb__node *node);
/* Moves what the device has passed into the pool's ready lane; true if anything moved. With
 * `record`, first records fences on streams that hold free bytes. */
bool mb__promote(struct mb_pool *pool, bool record);
/* The same for a request of `stream`, NULL: of the host; what it may use anyway is left as it
 * is. */
void mb__promote_for(struct mb_pool *pool, const struct mb__stream *stream);
/* Later work of `stream` waits for all that other streams hold free in the pool; true if one was
 * added. */
bool mb__wait_for_others(struct mb_pool *pool, struct mb__stream *stream);
/* Host wait for all that is pending, lock dropped meanwhile. */
enum mb_err mb__wait_on_host(struct mb_device *dev);
enum mb_err mb__pool_lane(struct mb_pool *pool, struct mb__stream *stream, struct mb__lane **out);
enum mb_err mb__stream_create(struct mb_device *dev, mb_stream *out);
enum mb_err mb__stream_destroy(struct mb_device *dev, mb_stream native);
enum mb_err mb__stream_seal(struct mb_device *dev, mb_stream native);
enum mb_err mb__event_new(struct mb_device *dev, mb_event *out);
bool mb__event_of(const struct mb_event *event, const struct mb_device *dev);
/* MB_ERR_INVALID: another thread was first. */
enum mb_err mb__event_drop(struct mb_event *event);
void mb__streams_fini(struct mb_device *dev);
void mb__events_fini(struct mb_device *dev);
enum mb_err mb__stream_sync(struct mb_device *dev, mb_stream native);
enum mb_err mb__event_record(struct mb_event *event, mb_stream native);
enum mb_err mb__event_wait(struct mb_event *event, mb_stream native);
/* A new order: (stream, ticket) and everything in `uses`. NULL: no host memory. refs 0. */
struct mb__order *mb__order_new(const struct mb__order *uses, struct mb__stream *stream,
                                uint64_t ticket);

/* ------------------------------------------------------------------ bins.c */

/* The warm paths. false: not served, take the slow one. */
bool mb__bins_malloc(struct mb_device *dev, struct mb_pool *pool, uint64_t requested, bool host,
                     mb_stream native, void **out);
/* `block`: what the table has at `addr`, or had just now. */
bool mb__bins_free(struct mb_device *dev, uint64_t addr, struct mb__block *block, bool host,
                   mb_stream native);
/* Timing of every MB__SAMPLE-th call: returns the start time, or 0 when this call is not timed. */
uint64_t mb__sample_start(struct mb_device *dev);
/* Ends it, of a malloc or a free. */
void mb__sample_end(struct mb_device *dev, bool free, uint64_t start);
/* Brings the samples of all shards into the histograms. */
void mb__samples_collect(struct mb_device *dev);
/* `count` zeroed items of `bytes`, MB__APART aligned (a divisor of bytes); for free(). NULL: no
 * host memory. */
void *mb__calloc_apart(size_t count, size_t bytes);
/* Gives all blocks of the pool's bins (NULL: of all pools) back to the heap; true if there were
 * any. */
bool mb__bins_flush(struct mb_device *dev, const struct mb_pool *pool);
/* The same for blocks from MB__LARGE on. */
void mb__bins_flush_large(struct mb_device *dev, const struct mb_pool *pool);
/* Those of one stream, of all pools. */
void mb__bins_flush_stream(struct mb_device *dev, const struct mb__stream *stream);
/* Bytes of a pool's blocks in bins. All shard locks are taken in turn. */
uint64_t mb__bins_bytes(struct mb_device *dev, const struct mb_pool *pool);
/* Lets the warm path of this thread find the stream, for which every pool has a lane then. */
void mb__bins_learn_stream(struct mb_device *dev, struct mb__stream *stream);
/* Forgets cached records of a stream in every shard. */
void mb__bins_forget_stream(struct mb_device *dev, const struct mb__stream *stream);
/* Shards that threads have been dealt to so far. */
unsigned mb__shards_active(void);
void mb__shard_lock(struct mb__shard *shard);
void mb__shard_unlock(struct mb__shard *shard);

/* ------------------------------------------------------------------ alloc.c */

static inline uint64_t mb__round(uint64_t bytes)
{
    return bytes ? (bytes + MB__GRANULE - 1) & ~(uint64_t)(MB__GRANULE - 1) : MB__GRANULE;
}
/* host: the block must be usable by anybody at once; native is ignored. */
enum mb_err mb__malloc(struct mb_device *dev, struct mb_pool *pool, uint64_t requested, bool host,
                       mb_stream native, void **out);
enum mb_err mb__free(struct mb_device *dev, void *ptr, bool host, mb_stream native);
enum mb_err mb__record_stream(struct mb_device *dev, void *ptr, mb_stream native);
/* From now on the block's frees take the lock. False: one came first, the block is not live. Lock
 * held. */
bool mb__block_hold(struct mb__block *block);
/* Frees the records of all blocks, live ones too, at close. */
void mb__blocks_fini(struct mb_device *dev);
/* Returns a block's pieces and window; it is in no table and no account. Lock held. */
void mb__block_return(struct mb_device *dev, struct mb__block *block, struct mb__stream *stream,
                      uint64_t ticket);
/* Whoever gets the block's memory waits for what is on `stream` now, where an alias of it is about
 * to be unmapped. MB_ERR_HOST_MEMORY. */
enum mb_err mb__block_await(struct mb__block *block, struct mb__stream *stream);
/* Drops `count` pins; the last one returns a block that was freed meanwhile. */
void mb__block_unpin(struct mb_device *dev, struct mb__block *block, uint32_t count);
/* The live block that holds `addr`, or NULL. Lock held. */
struct mb__block *mb__block_holding(struct mb_device *dev, uint64_t addr);
enum mb_err mb__find_memory(struct mb__request *req);
/* Takes [addr, addr + bytes) of free nodes for the block, appending to its pieces. Prepared. */
void mb__take_range(struct mb__request *req, uint64_t addr, uint64_t bytes);
/* MB_ERR_NOT_FOUND or MB_ERR_DOUBLE_FREE with detail. */
enum mb_err mb__bad_pointer(struct mb_device *dev, const void *ptr, const char *call);

/* ------------------------------------------------------------------ collect.c */

/* Ranges that the request's stream may use, joined and by address, into dev->ranges, with room for
 * a plan of them in dev->pieces. MB_ERR_HOST_MEMORY. */
enum mb_err mb__collect(struct mb__request *req);
/* Is the node one of those that mb__collect() finds? NULL: no. */
bool mb__may_collect(const struct mb__request *req, const struct mb__node *node);

/* ------------------------------------------------------------------ stitch.c */

/* Composes the block from usable ranges, from a cached window if one fits. MB_ERR_NO_MEMORY: the
 * ranges do not suffice and req->missing_bytes is set. */
enum mb_err mb__stitch(struct mb__request *req);
/* The same only if it makes less of the fragments than `cost`; MB_ERR_NO_MEMORY otherwise. */
enum mb_err mb__stitch_if_cheaper(struct mb__request *req, int64_t cost);
/* Shows [addr, addr + req->bytes), free bytes, through a window of its own. */
enum mb_err mb__stitch_range(struct mb__request *req, uint64_t addr);
/* Shows the block's ranges and further ones in a row at a new address, which it gets.
 * MB_ERR_NO_MEMORY: the block's last frame cannot be continued, or memory is short; nothing
 * changed. */
enum mb_err mb__stitch_longer(struct mb_device *dev, struct mb__block *block, uint64_t requested,
                              uint64_t bytes);
/* The window's block shrinks to `bytes`: pages behind it are unmapped. On failure nothing changed.
 */
enum mb_err mb__window_shrink(struct mb_device *dev, struct mb__window *window, uint64_t bytes);
/* The block of a window was freed. */
void mb__window_cache(struct mb_pool *pool, struct mb__window *window, struct mb__stream *stream,
                      uint64_t ticket, struct mb__order *uses);
/* Unmaps cached windows, oldest first, until at most `keep` bytes of them stay; those whose users
 * may still run stay too. */
void mb__windows_drop(struct mb_pool *pool, uint64_t keep_bytes);
/* Hands the windows of a pool that goes away to the device. MB_ERR_HOST_MEMORY. */
enum mb_err mb__windows_orphan(struct mb_pool *pool);
void mb__zombies_poll(struct mb_device *dev);
/* The block whose window holds `addr`, or NULL. */
struct mb__block *mb__window_block(struct mb_device *dev, uint64_t addr);
/* Frees all records at close; maps nothing. */
void mb__windows_fini(struct mb_device *dev);

/* ------------------------------------------------------------------ pool.c */

enum mb_err mb__pool_new(struct mb_device *dev, struct mb_pool **out);
enum mb_err mb__pool_delete(struct mb_pool *pool);
void mb__pools_fini(struct mb_device *dev);
bool mb__pool_is_open(const struct mb_pool *pool);
/* MB_ERR_INVALID with detail. */
enum mb_err mb__pool_gone(const char *call, const struct mb_pool *pool);
/* Adds req->missing_bytes (or the whole request) of frames to the pool. MB_ERR_NO_MEMORY, _LIMIT.
 */
enum mb_err mb__pool_grow(struct mb__request *req);
/* Gives whole free frames back to vm until the pool holds at most keep_bytes. */
void mb__pool_release(struct mb_pool *pool, uint64_t keep_bytes);
/* The same for every pool but one; true if any frame was released. */
bool mb__release_others(struct mb_device *dev, const struct mb_pool *pool);
enum mb_err mb__pool_trim(struct mb_pool *pool, uint64_t keep_bytes);
/* After a synchronize: release thresholds. */
void mb__pools_after_sync(struct mb_device *dev);
enum mb_err mb__pool_set(struct mb_pool *pool, enum mb_pool_attr attr, uint64_t value);
enum mb_err mb__pool_get(struct mb_pool *pool, enum mb_pool_attr attr, uint64_t *value);

/* ------------------------------------------------------------------ stats.c */

/* Live figures of a pool, shards included. Lock held. */
struct mb__live mb__pool_live(struct mb_pool *pool);
/* Brings the peaks up to date before base figures change. Lock held. */
void mb__fold(struct mb_device *dev);
/* Adds to the base figures of a pool and keeps the peaks. */
void mb__account(struct mb_pool *pool, int64_t blocks, int64_t requested, int64_t allocated);
/* After frames were taken into use / after vm or the backend may hold more or less than before. */
void mb__note_frames(struct mb_device *dev);
void mb__note_held(struct mb_device *dev);
/* After memory objects gained frames: all peaks. */
void mb__note_usage(struct mb_device *dev);
enum mb_err mb__stats_get(struct mb_device *dev, struct mb_stats *out);
/* Bytes of blocks, after rounding: handed out since open, and live. */
struct mb__flow {
    uint64_t total, live;
};
struct mb__flow mb__bytes_since_open(struct mb_device *dev);
/* Before a pool goes: what its warm path counted is the device's from now on. */
void mb__stats_inherit(struct mb_pool *pool);

/* ------------------------------------------------------------------ keys.c */

enum mb_err mb__stats_text(struct mb_device *dev, enum mb_stats_format format, char *out,
                           size_t capacity, size_t *needed);
void mb__stats_reset_peaks(struct mb_device *dev);

/* ------------------------------------------------------------------ oom.c */

/* The text of a failed request: what was asked, who holds what, holes, limits. Returns err. */
enum mb_err mb__oom_report(struct mb__request *req, uint64_t requested, enum mb_err err);

/* ------------------------------------------------------------------ check.c */

enum mb_err mb__check_all(struct mb_device *dev);
/* One more pin of the block for mb__check_all() to find. MB_ERR_HOST_MEMORY. */
enum mb_err mb__pin_counted(struct mb_map *pins, const struct mb__block *block);

#endif
