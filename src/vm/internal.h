/* SPDX-License-Identifier: MIT */
/*
 * internal.h - the record of vm: what its files share.
 *
 *   vm.c         open, close, statistics, the internal stream
 *   wait.c       what happens when fences have passed
 *   owner.c      capabilities of owners; the registry of frames that processes share
 *   frames.c     states, owners and references of frames; alloc_pfn, free_pfn
 *   slabs.c      slabs, their homes, growth, trim
 *   pgt.c        directories and leaf tables; the views of a range
 *   va.c         windows: handing out, retiring, recycling
 *   flush.c      whole invalidates and epochs
 *   batch.c      pte_pop: record first, then commands, then one submission
 *   coherence.c  which groups may be cached, which invalidates a batch needs
 *   trail.c      the audit log
 *   tables.c     live entries against the record
 *   audit.c      an independent reading of a finished batch (builds with assertions)
 *   check.c      the invariants as functions
 *   ranges.c     sets of ranges
 *
 * LOCKING   Everything here is guarded by mb_vm.lock unless its comment says «constant». Functions
 *           declared here expect the lock to be held, those of vm.h take it.
 */
#ifndef MB_VM_INTERNAL_H
#define MB_VM_INTERNAL_H

#include "base/lock.h"
#include "base/vec.h"
#include "vm/mutants.h"
#include "vm/ranges.h"
#include "vm/vm.h"

/* ------------------------------------------------------------ frames */

struct mb__journal;
struct mb__registry;

enum mb__frame_state {
    MB__NONE,     /* no slab of this vm holds it */
    MB__FREE,     /* in the pool; its home entry is valid */
    MB__OWNED,    /* handed out */
    MB__DRAINING, /* given back, but fences or windows still hold it; or of a zombie slab */
};

/* mb__frame.word: state in bits 0..1, FENCED in bit 2, references from bit 3 on. */
enum {
    MB__STATE = 3,
    MB__FENCED = 4, /* DRAINING: the free's fences have not passed */
    MB__REF = 8,    /* one reference */
    MB__REFS_MAX = 1 << 28,
};

/* One 2 MiB frame of physical memory: what a batch over scattered frames reads and writes. */
struct mb__frame {
    uint32_t word;
    uint32_t owner; /* tag of mb__alloc_pfn while OWNED; else 0 */
};

enum {
    MB__FRAME_PFN_BITS = MB_FRAME_SHIFT - MB_PFN_SHIFT,
    MB__FRAMES = 1 << (32 - MB__FRAME_PFN_BITS), /* 16 TiB: every pfn has a record */
};

/* One page of the home space. */
struct mb__home_page {
    uint32_t frame; /* physical address >> MB_FRAME_SHIFT; valid while slab is not 0 */
    uint32_t slab;  /* index into slabs; 0: a hole */
};

enum mb__slab_state {
    MB__SLAB_UNUSED,
    MB__SLAB_LIVE,
    MB__SLAB_ZOMBIE, /* giving it back failed half-way: its frames drain, a later trim retries */
};

struct mb__slab {
    struct mb_hw_slab hw; /* the backend's */
    enum mb__slab_state state;
    uint32_t first;  /* home page of its first frame */
    uint32_t frames; /* count */
    uint32_t free;   /* of them FREE */
    bool mapped;     /* its home entries are valid */
};

/* ------------------------------------------------------------ addresses */

/* A piece of a region that shares one last-level directory table, so that its leaves are one
 * view. */
struct mb__piece {
    struct mb_hw_view view; /* bytes 0: not built */
    uint64_t table, leaves; /* tree_is_ours: table memory, physical; leaves 0 for 2 MiB slots */
    uint64_t leaves_bytes;
};

enum {
    MB__SLOT_MAPPED = 1,
    MB__SLOT_PROT_SHIFT = 1, /* enum mb_prot in two bits */
    MB__SLOT_PROT = 3 << MB__SLOT_PROT_SHIFT,
    MB__SLOT_NEW = 16,    /* its entry, and the reference for it, are of the batch being built */
    MB__SLOT_TOUCHED = 8, /* in the log of the batch being built */
};

/*
 * What is known of a window's slots, one array for each property, so that a batch over a range
 * compares, copies and fills stretches of them. A mapping without access (MB_PROT_NONE) is MAPPED,
 * holds its frame and has a cleared entry on the device.
 */
struct mb__slots {
    mb_pfn *pfn;      /* valid while MAPPED */
    uint32_t *window; /* number of the window that has it, 0: none */
    uint8_t *flags;   /* MB__SLOT_*; NULL for the home region, as the other two */
};

enum {
    MB__GROUP_CACHED = 1, /* a TLB may hold translations of it */
    MB__GROUP_SHARED = 2, /* several windows, whose batches are not ordered, lie in it */
};

/* An aligned group of slots: what one walk may bring into a TLB. */
struct mb__group {
    uint16_t mapped; /* slots with a valid entry once every batch so far is done */
    uint16_t was;    /* batch `touched`: slots it changes that had a valid entry before */
    uint16_t now;    /* the same after */
    uint16_t flags;
    uint64_t touched; /* number of the last batch that changed a slot here */
    uint64_t dropped; /* number of the last batch that invalidated all of it after its clears */
};

struct mb__region {
    mb_va base;
    uint64_t bytes;         /* 0: not reserved */
    unsigned leaf_shift;    /* of its slots; constant */
    unsigned group_shift;   /* slots of a group, log2; constant */
    uint32_t slots, groups; /* counts */
    uint32_t top;           /* groups from here on were never handed out */
    bool strict_groups;     /* every map invalidates: nothing is known about such leaves */
    struct mb__slots slot;
    struct mb__group *group; /* NULL for the home region */
    struct mb__piece *piece;
    unsigned piece_shift; /* bytes of a piece, log2; constant */
    uint32_t pieces;
    struct mb__ranges clean; /* groups below top that may be handed out */
};

enum mb__region_index {
    MB__REGION_HOME,
    MB__REGION_2M, /* windows */
    MB__REGION_64K,
    MB__REGION_4K,
    MB__REGIONS,
};

enum mb__window_state {
    MB__WINDOW_LIVE,
    MB__WINDOW_WAITS,   /* freed, its last batch has not passed */
    MB__WINDOW_RETIRED, /* fresh policy: waits for a flush */
};

/* Slots [slot, slot + slots) as handed out by one mb__alloc_va. */
struct mb__window {
    uint32_t id;
    enum mb__window_state state;
    uint8_t region; /* enum mb__region_index */
    uint32_t slot, slots;
    uint32_t group, groups; /* whole groups taken, the guard behind included; groups 0: in a pack */
    struct mb__pack *pack;  /* small windows under the inline policy; else NULL */
    uint32_t mapped;        /* slots MAPPED */
    struct mb_hw_fence last; /* its last batch (or the building of its tables): later batches of
                                  other streams wait for it, so slots change in record order */
    uint64_t batch;          /* number of the last batch that named it */
    uint64_t flush;          /* RETIRED: the flush that was issued after its clear was visible; 0 */
    struct mb__window *next; /* RETIRED: in mb_vm.retired */
};

/* A group whose slots serve several small windows. */
struct mb__pack {
    uint32_t group;
    uint32_t used; /* bit per slot */
    uint8_t region;
    struct mb__pack *next, *prev; /* in mb_vm.packs[largest hole] */
};
enum { MB__PACK_SLOTS_MAX = 32 };

/* ------------------------------------------------------------ waits */

enum mb__wait_kind {
    MB__WAIT_FRAMES, /* home pages given back */
    MB__WAIT_REFS,   /* entries that named these frames are gone */
    MB__WAIT_WINDOW, /* a freed window's last batch */
    MB__WAIT_FLUSH,  /* a whole invalidate */
};

/* Something that happens once every fence has passed. One allocation. */
struct mb__wait {
    struct mb__wait *next; /* in the queue of its first fence's stream */
    enum mb__wait_kind kind;
    uint32_t first, count; /* FRAMES: home pages; REFS: count of pfns[] */
    struct mb__window *window;
    uint64_t flush; /* FLUSH: its number */
    mb_pfn *pfns;   /* REFS: in the frames, behind fences[] */
    unsigned fences_left, fences_max;
    struct mb_hw_fence fences[];
};

/* Waits by the stream of their first fence, in the order of tickets: one look at the head tells
 * about all, and no stream's wait hides behind another's. */
struct mb__queue {
    struct mb_hw_stream *stream;
    struct mb__wait *head, *tail;
};

/* ------------------------------------------------------------ batches */

/* Groups with slots that the batch changes. */
struct mb__touched {
    uint32_t group, groups;
    uint8_t region;
};

/* Consecutive slots that the batch touched, and what all of them held before. */
struct mb__log {
    uint32_t slot, count;
    uint32_t old; /* old_flags MAPPED: index of the first one's frame in mb__batch.old_pfns */
    uint8_t old_flags, region;
};

/* Consecutive slots that lose or get the same kind of entry. */
struct mb__run {
    uint32_t slot, count;
    uint32_t pfn; /* writes: index into mb__batch.pfns */
    uint8_t region, prot;
    bool remap; /* the slots lose an entry and get another one */
};

/* A range to invalidate, in groups. */
struct mb__drop {
    uint32_t group, groups;
    uint8_t region;
};

/* With more ranges than this, one invalidate of everything is cheaper (and what the vendor's own
 * driver does); the number of bytes does not matter. */
enum { MB__DROPS_MAX = 8 };

/* What a batch is made of; kept between batches for its memory. */
struct mb__batch {
    uint64_t number;            /* of this batch; counts from 1 */
    MB_VEC(struct mb__log) log; /* every slot touched, once, with what it held */
    MB_VEC(mb_pfn) old_pfns;    /* of the log's slots that were MAPPED, in its order */
    MB_VEC(struct mb__window *) windows;
    MB_VEC(struct mb__touched) groups; /* each once */
    MB_VEC(struct mb__run) clears, writes;
    MB_VEC(mb_pfn) pfns;  /* of writes */
    const mb_pfn *frames; /* of writes: pfns, the only operation's own list, or the record's */
    MB_VEC(struct mb__drop) clear_drops, write_drops;
    MB_VEC(struct mb_hw_cmd) cmds;
    uint32_t visible;        /* slots found with a visible entry; by a map: of another frame; by a
                                protect: with other access */
    bool single;             /* one operation: no slot is touched twice, so none is marked */
    enum mb_vm_op_kind kind; /* of it */
    bool whole;              /* an INVALIDATE covers everything */
    unsigned invalidates;    /* commands of that kind */
};

/* ------------------------------------------------------------ the vm */

/* A directory table of vm's own tree, above the last level. */
struct mb__dir {
    unsigned level;
    uint64_t prefix; /* va >> (shift of its parent's entries) */
    uint64_t phys;
};

struct mb_vm {
    struct mb_lock lock;
    struct mb_hw_dev *hw;        /* constant; not owned */
    struct mb_vm_config config;  /* constant */
    struct mb_fmt_geometry geo;  /* constant */
    bool fresh;                  /* policy; constant */
    unsigned guard_groups;       /* unused groups behind each window; constant */
    uint64_t limit_bytes;        /* of slabs; constant */
    mb_stream native;            /* internal stream: */
    struct mb_hw_stream *stream; /* constant; waits for nobody but itself */
    struct mb_hw_fence built;    /* the last building of tables, on the internal stream */

    struct mb__frame *frames; /* MB__FRAMES of them, by physical address; see frames.c */
    bool frames_huge;         /* they were asked to be on huge pages */
    uint32_t *frame_home;     /* as many: their home pages; valid unless NONE */
    uint64_t last_cap;        /* presented last and found right, */
    uint32_t last_owner;      /* of this owner; 0: none yet */
    struct mb__home_page *homes;
    uint32_t home_pages;
    MB_VEC(struct mb__slab) slabs;  /* [0] is nobody */
    struct mb__ranges holes;        /* home pages without a slab */
    struct mb__ranges free;         /* home pages whose frame is FREE */
    uint32_t held, owned, draining; /* frames */
    uint64_t pending_refs;          /* references that wait for fences */
    uint64_t refs_gone;             /* waits for references that are over; written under the lock */
    MB_VEC(struct mb__span) taken;  /* scratch of alloc_pfn, trim */

    struct mb__region region[MB__REGIONS];
    MB_VEC(struct mb__dir) dirs;
    uint64_t table_bytes;
    MB_VEC(struct mb__window *) windows;            /* by id; [0] NULL */
    MB_VEC(uint32_t) spare_windows;                 /* free ids */
    struct mb__pack *packs[MB__PACK_SLOTS_MAX + 1]; /* by their largest hole in slots */
    uint64_t recycled;                              /* windows whose addresses came back, in all */
    struct mb__window *retired;                     /* fresh policy */
    uint64_t retired_bytes;                         /* of those */
    uint64_t waiting_bytes;                         /* windows in state WAITS */
    uint64_t flushes, flushes_pending;              /* issued in all; not complete */
    uint64_t epoch_bytes; /* so much retired address space starts a flush; constant */

    MB_VEC(struct mb__queue) queues;
    size_t fences_waiting; /* sum of fences_left; queues has room for as many */
    struct mb__batch batch;
    struct mb_vm_stats stats;      /* the counters in it */
    struct mb__journal *journal;   /* the audit log, or NULL; constant */
    struct mb__registry *registry; /* frames that this process claims, or NULL; constant */
    uint64_t secret[4];            /* of the capabilities; constant */
    bool lost;       /* the outcome of a submission is unknown; nothing is reused any more */
    char audit[160]; /* the first batch that broke an order rule; "" if none */
};

/* --- vm.c */
/* Submits and records the fence. All or nothing; see the source for what happens when it cannot
 * be. */
enum mb_err mb__vm_submit(struct mb_vm *vm, struct mb_hw_stream *stream,
                          const struct mb_hw_cmd *cmds, size_t count, struct mb_hw_fence *fence);
/* MB_ERR_DEVICE_LOST once the outcome of a batch is unknown. */
enum mb_err mb__vm_usable(const struct mb_vm *vm);
bool mb__fence_passed(struct mb_vm *vm, struct mb_hw_fence fence);
enum mb_err mb__no_host_memory(const char *what);

/* --- wait.c */
/* NULL: no host memory (detail set). */
struct mb__wait *mb__wait_new(struct mb_vm *vm, enum mb__wait_kind kind, unsigned fences,
                              uint32_t frames);
void mb__wait_drop(struct mb_vm *vm, struct mb__wait *wait);
void mb__wait_fence(struct mb__wait *wait, struct mb_hw_fence fence);
/* Hands the wait over; it happens at once when no fence is open. Cannot fail. */
void mb__wait_start(struct mb_vm *vm, struct mb__wait *wait);
void mb__poll(struct mb_vm *vm);
/* A fence to wait for when addresses (or anything, any = true) must come back; false: none. */
bool mb__wait_oldest(struct mb_vm *vm, bool any, struct mb_hw_fence *out);

/* --- frames.c */
enum mb_err mb__frames_open(struct mb_vm *vm);
void mb__frames_grown(struct mb_vm *vm); /* after slabs were taken */
void mb__frames_close(struct mb_vm *vm);
static inline uint32_t mb__frame_of(uint32_t pfn)
{
    return pfn >> MB__FRAME_PFN_BITS;
}
static inline struct mb__frame *mb__frame_at(const struct mb_vm *vm, uint32_t frame)
{
    return &vm->frames[frame];
}
static inline uint32_t mb__frame_refs(const struct mb__frame *frame)
{
    return frame->word / MB__REF;
}
/* Fences of a given back run have passed. */
void mb__frames_passed(struct mb_vm *vm, uint32_t first, uint32_t count);
/* What growth is rounded up to. */
uint32_t mb__step_frames(const struct mb_vm *vm);
/* DRAINING frames go into the pool. */
void mb__frames_free(struct mb_vm *vm, uint32_t first, uint32_t count);
/* A reference to each frame of a list that an entry of this leaf size (bits of a frame number that
 * must be 0) may name for who presents `cap`: only OWNED frames have a capability. Returns how many
 * could be had before one that could not. */
uint32_t mb__refs_take(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count, uint32_t leaf_mask,
                       uint64_t cap);
/* Entries naming these frames are gone for good. */
void mb__refs_drop(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count);
void mb__frame_counts(struct mb_vm *vm, uint32_t first, uint32_t count, bool become_free);

/* --- owner.c; without a registry its functions do nothing. */
enum mb_err mb__owner_open(struct mb_vm *vm);
enum mb_err mb__registry_open(struct mb_vm *vm);
void mb__registry_close(struct mb_vm *vm);
/* All frames of a slab or none. MB_ERR_DRIVER: a living process holds one. */
enum mb_err mb__registry_claim(struct mb_vm *vm, const struct mb_hw_slab *slab);
void mb__registry_unclaim(struct mb_vm *vm, const struct mb_hw_slab *slab);
/* MB_ERR_CORRUPT: one of the frames is not claimed by this vm, so no entry may name it. */
enum mb_err mb__registry_holds(const struct mb_vm *vm, const mb_pfn *pfns, uint32_t count);

/* --- slabs.c */
/* Takes slabs of together at least `need` frames, with homes from `at` on; `want` as far as
 * possible. */
enum mb_err mb__grow(struct mb_vm *vm, uint32_t at, uint32_t need, uint32_t want);
/* Gives slabs back that an earlier failure left half-way, as far as possible. *released grows by
 * frames. */
void mb__zombies_retry(struct mb_vm *vm, uint32_t *released);
enum mb_err mb__trim(struct mb_vm *vm, uint32_t keep, uint32_t *released);
void mb__slabs_close(struct mb_vm *vm, bool alive);

/* --- pgt.c */
enum mb_err mb__region_open(struct mb_vm *vm, enum mb__region_index index, uint64_t bytes,
                            unsigned leaf_shift);
void mb__region_close(struct mb_vm *vm, struct mb__region *region);
/* Tables of the range exist afterwards, in the order of the internal stream. */
enum mb_err mb__pgt_create(struct mb_vm *vm, struct mb__region *region, mb_va va, uint64_t bytes);
void mb__pgt_close(struct mb_vm *vm, bool alive);
/* Appends LEAVES commands for slots [slot, slot + count), one per piece. pfns NULL: cleared. */
enum mb_err mb__pgt_leaves(struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                           uint32_t count, const mb_pfn *pfns, enum mb_prot prot);
uint64_t mb__pgt_template(const struct mb_vm *vm, unsigned leaf_shift, enum mb_prot prot);
static inline mb_va mb__slot_va(const struct mb__region *region, uint32_t slot)
{
    return mb__va_add(region->base, (uint64_t)slot << region->leaf_shift);
}
/* Of an address in the region. */
static inline uint32_t mb__slot_at(const struct mb__region *region, mb_va va)
{
    return (uint32_t)((va.addr - region->base.addr) >> region->leaf_shift);
}
static inline bool mb__region_has(const struct mb__region *region, mb_va va)
{
    return va.addr - region->base.addr < region->bytes;
}

/* --- va.c */
void mb__window_passed(struct mb_vm *vm, struct mb__window *window);
void mb__window_recycle(struct mb_vm *vm, struct mb__window *window);
/* The window region of an address; NULL: none. */
struct mb__region *mb__window_region(struct mb_vm *vm, mb_va va);
void mb__windows_close(struct mb_vm *vm);

/* --- flush.c */
/* A whole invalidate has been submitted: retired windows whose clear it follows are marked. */
void mb__flush_issued(struct mb_vm *vm, struct mb__wait *wait, struct mb_hw_fence fence);
void mb__flush_passed(struct mb_vm *vm, uint64_t flush);
enum mb_err mb__flush(struct mb_vm *vm, struct mb_hw_stream *stream, struct mb_hw_fence *done);

/* --- coherence.c */
/* Slots that the batch changes; was, now: they had a visible entry before, have one after. Adds to
 * what was said of their groups before in this batch. */
enum mb_err mb__groups_touch(struct mb_vm *vm, uint8_t region, uint32_t slot, uint32_t count,
                             bool was, bool now);
/* Fills clear_drops and write_drops from clears, writes and the log. */
enum mb_err mb__drops_plan(struct mb_vm *vm);
enum mb_err mb__drops_emit(struct mb_vm *vm, const struct mb__drop *drops, size_t count);
/* The batch has been submitted: group states follow. */
void mb__groups_commit(struct mb_vm *vm);

/* --- batch.c */
static inline enum mb_prot mb__slot_prot(uint32_t flags)
{
    return (enum mb_prot)((flags & MB__SLOT_PROT) >> MB__SLOT_PROT_SHIFT);
}
/* Is there an entry that translates? */
static inline bool mb__slot_visible(uint32_t flags)
{
    return (flags & MB__SLOT_MAPPED) && (flags & MB__SLOT_PROT);
}
enum mb_err mb__cmd(struct mb_vm *vm, struct mb_hw_cmd cmd);
enum mb_err mb__cmd_kind(struct mb_vm *vm, enum mb_hw_cmd_kind kind);
/* Clears every mapped slot of every window: for close. */
void mb__unmap_all(struct mb_vm *vm);

/* --- trail.c: the audit log; without one they do nothing. */
enum mb_err mb__trail_open(struct mb_vm *vm);
/* clean: nothing is mapped any more. */
void mb__trail_close(struct mb_vm *vm, bool clean);
/* Home pages [first, first + count) as `kind` says. */
void mb__trail_frames(struct mb_vm *vm, enum mb_audit_kind kind, uint32_t owner, uint32_t first,
                      uint32_t count);
/* What the batch will change; MB_ERR_IO: it must not be submitted. */
enum mb_err mb__trail_plan(struct mb_vm *vm);
void mb__trail_outcome(struct mb_vm *vm, bool done);
void mb__trail_repair(struct mb_vm *vm, mb_va va, uint32_t pfn, uint64_t bytes);

/* --- audit.c */
/* Reads the finished command list of the batch against its log. MB_ERR_INTERNAL + detail. */
enum mb_err mb__audit(struct mb_vm *vm);

/* --- check.c: one function per invariant, MB_ERR_CORRUPT + detail. */
enum mb_err mb__check_frames(struct mb_vm *vm); /* states, homes, slabs */
enum mb_err mb__check_refs(struct mb_vm *vm);   /* invariant 1: entries naming a frame = its refs */
enum mb_err
mb__check_owned(struct mb_vm *vm); /* invariant 1: no entry names a frame that is free */
enum mb_err mb__check_accounts(struct mb_vm *vm); /* invariant 4 */
enum mb_err
mb__check_windows(struct mb_vm *vm);            /* every slot belongs to one window, states of VA */
enum mb_err mb__check_groups(struct mb_vm *vm); /* invariants 2 and 3 */
enum mb_err mb__check_waits(struct mb_vm *vm);  /* queues, fences */
enum mb_err mb__check_order(struct mb_vm *vm);  /* what audit.c saw */
enum mb_err
mb__check_homes(struct mb_vm *vm); /* invariant 7: an entry's frame has its home mapped */

#endif
