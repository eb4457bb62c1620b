/*
 * vm.h - frames, addresses, page tables and their coherence: the five primitives.
 *
 *   alloc_va     addresses out of reserved space, in states FRESH, MAPPED, RETIRED(epoch)
 *   alloc_pfn    frames out of slabs, in states FREE, OWNED(refs), DRAINING(fence)
 *   pgt_create   leaf tables of a range exist and are linear; mb_hw_view
 *   pte_pop      the entries of a batch written on the device, in stream order
 *   tlb_flush    an invalidate in stream order, which also advances the epoch
 *
 * This layer keeps the host's record of every slot it owns; what the device's tables hold follows
 * from it and is compared by mb__vm_check_tables().
 *
 * LOCKING   One mutex per vm. Order: runtime -> vm -> backend. No call waits for the device unless
 *           its comment says so.
 * ACCOUNTS  sum of refs over frames = number of valid slots in the record (homes, windows).
 *           owned + free + draining = frames of all slabs.
 */
#ifndef MB_VM_VM_H
#define MB_VM_VM_H

#include "hw/hw.h"

struct mb_vm;

enum mb_vm_policy {
    MB_VM_POLICY_AUTO,   /* what the backend's caps say */
    MB_VM_POLICY_INLINE, /* same addresses again, an invalidate on the stream */
    MB_VM_POLICY_FRESH,  /* new addresses from a ring, one invalidate per epoch */
};

struct mb_vm_config {
    enum mb_vm_policy policy;
    bool deferred;          /* not strict: frames return before the invalidate of their old slots */
    uint64_t limit_bytes;   /* of slabs held; 0: what the device has */
    uint64_t home_bytes;    /* address space for homes; 0: 4 x device memory, at most 1 TiB */
    uint64_t ring_bytes;    /* address space for windows; 0: 4 x device memory, 256 GiB to 1 TiB */
    uint64_t max_run_bytes; /* larger slab requests are split; 0: 512 MiB */
    char audit[256];        /* file of the audit log; "": none */
    char registry[256];     /* file in which processes claim frames, owner.c; "": none */
    bool no_guard;          /* leave out the unused group behind each window: only where it is known
                               that no walk runs ahead past a block's end */
};

struct mb_vm_stats {
    uint64_t held_bytes; /* slabs held from the driver */
    uint64_t free_bytes; /* frames FREE in the pool */
    uint64_t draining_bytes;
    uint64_t owned_bytes;
    uint64_t table_bytes; /* page-table memory vm allocated */
    uint64_t map_batches, unmap_batches, entries_written, invalidates, epochs;
    uint64_t va_handed_out_bytes; /* windows, sum over time */
    uint64_t quarantined_bytes;   /* retired addresses waiting for a flush */
};

/* Does not own `hw`. */
enum mb_err mb__vm_open(struct mb_hw_dev *hw, const struct mb_vm_config *config,
                        struct mb_vm **out);
/* Waits for the device; unmaps everything; gives all slabs and addresses back. */
void mb__vm_close(struct mb_vm *vm);
struct mb_hw_dev *mb__vm_hw(struct mb_vm *vm);
/* Nobody knows any more who reaches what: from now on nothing is handed out or reused. */
void mb__vm_lose(struct mb_vm *vm);

/* ------------------------------------------------------------ frames (alloc_pfn) */

/* Frames that are consecutive at home: home is mapped and usable as one range of addresses. A run
 * may reach over several slabs, so its frames need not be physically consecutive: mb__home_pfns()
 * names them one by one. */
struct mb_run {
    mb_va home;      /* address of the first frame; always mapped */
    mb_pfn pfn;      /* of the first frame; never add to it */
    uint32_t frames; /* count */
};

enum mb_pfn_flag {
    MB_PFN_CONTIGUOUS = 1 << 0, /* one run or nothing */
    MB_PFN_NO_GROW = 1 << 1,    /* only what the pool holds */
    MB_PFN_NEAR_HIGH = 1 << 2,  /* grow at the top of the last slab's home, so that runs join */
};

/*
 * Takes exactly `frames` frames as runs, OWNED with refs = 1 (their home entry), owner `owner`
 * (accounting tag, not 0). Takes free ones first, best fit by run, then acquires slabs (which map
 * homes; costs host time). At most `capacity` runs are stored, *count of them used; all or nothing.
 * ERRORS  MB_ERR_NO_MEMORY, MB_ERR_LIMIT, MB_ERR_INVALID (frames 0, capacity too small).
 */
enum mb_err mb__alloc_pfn(struct mb_vm *vm, uint32_t owner, uint32_t frames, unsigned flags,
                          struct mb_run *runs, unsigned capacity, unsigned *count);
/* What growth is rounded up to now: caps.slab_step_bytes, or less while little is held. */
uint64_t mb__vm_step(struct mb_vm *vm);
/* Gives a run (any part of an earlier one) back. Frames DRAIN until every fence has passed and no
 * window names them. `fences` may be NULL with count 0. */
enum mb_err mb__free_pfn(struct mb_vm *vm, uint32_t owner, struct mb_run run,
                         const struct mb_hw_fence *fences, unsigned count);
/* Returns fully free slabs to the driver, highest home first, until at most keep_bytes are held;
 * *released gets bytes. Where vm maps homes itself, waits on the host for vm's own stream (which
 * waits for nobody) until their entries are cleared. */
enum mb_err mb__vm_trim(struct mb_vm *vm, uint64_t keep_bytes, uint64_t *released);
/* Home address of a frame this vm holds; MB_NO_VA otherwise. */
mb_va mb__pfn_home(struct mb_vm *vm, mb_pfn pfn);
/* The frame whose home page holds `va`; MB_NO_PFN otherwise. */
mb_pfn mb__home_pfn(struct mb_vm *vm, mb_va va);
/* The frames of `frames` home pages from `va` on, for MB_VM_MAP of a run elsewhere.
 * MB_ERR_NOT_FOUND when one of the pages is no home of a frame; `out` is then untouched. */
enum mb_err mb__home_pfns(struct mb_vm *vm, mb_va va, uint32_t frames, mb_pfn *out);
/* refs of a frame (0: not OWNED). */
uint32_t mb__pfn_refs(struct mb_vm *vm, mb_pfn pfn);

/* What the frames shown at a range of addresses have in common. */
struct mb_vm_look {
    uint64_t changes;   /* mb__vm_changes() of that moment */
    uint32_t refs_high; /* most references of one of them */
    bool in_a_row;      /* each follows the one before, physically */
};
/* Looks at `count` pages from va on, which are homes of frames or in one window and mapped;
 * O(count) under the lock. */
void mb__vm_look(struct mb_vm *vm, mb_va va, uint32_t count, struct mb_vm_look *out);
/* From 1; has grown whenever an entry or the references of an OWNED frame may have changed. */
uint64_t mb__vm_changes(struct mb_vm *vm);

/* ------------------------------------------------------------ windows (alloc_va, pgt_create) */

/* A page range for stitched or aliased mappings: tables exist, all slots cleared, translations of
 * it clean. align 0: one frame. Under the fresh policy ranges are whole clean groups and never
 * repeat within an epoch. Every call of mb__alloc_va is paired with mb__free_va of the same
 * range. */
/* Waits for the device only when every address is in use or retired: then for the oldest retired
 * one. ERRORS  MB_ERR_INVALID, MB_ERR_NO_ADDRESS, MB_ERR_HOST_MEMORY, what the backend reports. */
enum mb_err mb__alloc_va(struct mb_vm *vm, uint64_t bytes, uint64_t align, mb_va *out);
/* The same with leaves of 1 << leaf_shift bytes (21, 16 or 12): then `frames` in mb_vm_op counts
 * slots of that size and pfns name parts of owned frames. MB_ERR_NOT_SUPPORTED where the backend
 * cannot. */
enum mb_err mb__alloc_va_leaf(struct mb_vm *vm, uint64_t bytes, uint64_t align, unsigned leaf_shift,
                              mb_va *out);
/* The range must be unmapped (in stream order at least): reuse waits for the unmap's fence.
 * MB_ERR_BUSY while a slot of it is mapped, MB_ERR_NOT_FOUND when it is not a whole range handed
 * out. */
enum mb_err mb__free_va(struct mb_vm *vm, mb_va va, uint64_t bytes);

/* ------------------------------------------------------------ mapping (pte_pop, tlb_flush) */

/* What an owner of mb__alloc_pfn() presents to have its frames named in entries. Constant for the
 * vm's life, unlike any other owner's or vm's, never 0. Thread-safe, no lock. */
uint64_t mb__owner_cap(const struct mb_vm *vm, uint32_t owner);

enum mb_vm_op_kind { MB_VM_MAP, MB_VM_UNMAP, MB_VM_PROTECT };

struct mb_vm_op {
    enum mb_vm_op_kind kind;
    enum mb_prot prot;  /* MAP, PROTECT */
    mb_va va;           /* in a window */
    uint32_t frames;    /* slots */
    const mb_pfn *pfns; /* MAP: one per slot, each OWNED by this vm; each mapping adds one ref */
    uint64_t cap;       /* MAP: mb__owner_cap() of the one owner of all of them */
};

/*
 * Applies all operations in order on `stream`, in one submission, or none of them. MAP over a
 * mapped slot is a remap: the old frame loses a reference when the batch is done. Invalidates are
 * added where the record says that a translation may be cached. *done (may be NULL) gets the
 * batch's fence; references drop when it has passed.
 * ERRORS  MB_ERR_INVALID, MB_ERR_NOT_FOUND (va outside windows), MB_ERR_NOT_MAPPED (unmap or
 *         protect of a cleared slot), MB_ERR_CORRUPT (a frame is not owned, or not by whom the
 *         capability is of, or another process has claimed it: nothing is written).
 */
enum mb_err mb__pte_pop(struct mb_vm *vm, struct mb_hw_stream *stream, const struct mb_vm_op *ops,
                        unsigned count, struct mb_hw_fence *done);
/* Invalidate everything on `stream`; ends the epoch once complete. */
enum mb_err mb__tlb_flush(struct mb_vm *vm, struct mb_hw_stream *stream, struct mb_hw_fence *done);
/* Frame shown at a window or home address by the record; MB_NO_PFN if none. */
mb_pfn mb__vm_lookup(struct mb_vm *vm, mb_va va);
/* The same for `count` addresses, a frame apart, under one lock. */
void mb__vm_lookup_run(struct mb_vm *vm, mb_va va, uint32_t count, mb_pfn *out);

/* `count` pages from va on, all mapped, are open to device `peer` as `prot` says from now on: for
 * the audit log alone, the entries are the backend's. Never fails: what cannot be written waits. */
void mb__vm_trail_peer(struct mb_vm *vm, mb_va va, uint32_t count, int peer, enum mb_prot prot);

/* Moves fences that have passed: draining frames, retired addresses. Cheap; called by the
 * runtime. */
void mb__vm_poll(struct mb_vm *vm);
/* Waits on the host for everything draining or quarantined. */
enum mb_err mb__vm_drain(struct mb_vm *vm);

void mb__vm_stats(struct mb_vm *vm, struct mb_vm_stats *out);
/* Every invariant of the record; each is its own function in check.c. MB_ERR_CORRUPT + detail. */
enum mb_err mb__vm_check(struct mb_vm *vm);
/* Compares the device's tables with the record. Entries of windows with a batch under way are not
 * judged. MB_ERR_CORRUPT + detail for the first that differs. */
enum mb_err mb__vm_check_tables(struct mb_vm *vm);
/* The same over all of them, counted; with `repair` writes the record over what differs. Then waits
 * on the host for vm's own stream, which waits for nobody. *out is filled with MB_ERR_CORRUPT too.
 * */
enum mb_err mb__vm_scrub(struct mb_vm *vm, bool repair, struct mb_tables_report *out);

#endif
