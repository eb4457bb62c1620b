/*
 * hw.h - the table of functions that every backend fills.
 *
 * A backend provides frames, addresses, page-table memory, ordered writes of entries, invalidates,
 * fences and a little device work. Policy, ownership and the record of what is mapped are vm's.
 *
 * vm hands a backend a *batch*: a short list of commands that take effect in stream order. The same
 * list is executed by a software GPU, by a fused kernel, by a helper channel's copy engine or by
 * the vendor's driver; what a command promises is written at its kind below and tested by
 * tests/contract.
 *
 * LOCKING   A backend's functions may be called from any thread; each backend locks for itself and
 *           never calls upwards. vm holds its own lock across submit(), so a backend never waits
 *           for the device inside submit(), stream_*, fence_record, fence_done or
 *           fence_wait_stream. One exception: the cuda backend's device tables, for room in a queue
 *           that is full of earlier batches of the stream (MB_CUDA_ROOM_NS, cuLaunchKernel).
 * ERRORS    0 or an enum mb_err with mb__fail() detail set; a failed call changed nothing.
 * UNITS     bytes, nanoseconds, 4 KiB page-frame numbers.
 */
#ifndef MB_HW_HW_H
#define MB_HW_HW_H

#include "base/types.h"
#include "kernels/formats.h"
#include "kernels/pte_scrub.h"

struct mb_hw_dev;
struct mb_hw_stream; /* backend's own; one per native stream */

/* A point in a stream: done once the stream has passed ticket `seq`. stream NULL: done already.
 * Plain value, nothing to release; it stays valid after stream_close() (then it counts as done once
 * the stream had drained). */
struct mb_hw_fence {
    struct mb_hw_stream *stream;
    uint64_t seq; /* per stream, starts at 1, never wraps */
};

/* Frames held from the driver: `frames` frames of MB_FRAME_BYTES. */
struct mb_hw_slab {
    mb_pfn first;     /* of the first frame; when pfns is NULL they are consecutive */
    mb_pfn *pfns;     /* one per frame or NULL; owned by the backend until slab_release */
    uint32_t frames;  /* count */
    bool home_mapped; /* the driver itself mapped the frames, in order, at `home` */
    mb_va home;       /* as asked for */
    uint64_t cookie;  /* backend's own */
};

/* The linear leaf view of a VA range: entry i translates va + (i << leaf_shift). */
struct mb_hw_view {
    mb_va va;
    uint64_t bytes;
    unsigned leaf_shift; /* 21, 16 or 12 */
    unsigned slot_bytes; /* 16 or 8 */
    uint64_t table; /* backend's address of slot 0: physical on sim, VA of the writer on CUDA */
    mb_pfn
        clear_pfn; /* what "cleared" slots hold: a donor frame, or MB_NO_PFN for an invalid entry */
    uint64_t cookie; /* backend's own */
};

enum mb_hw_cmd_kind {
    /* Later commands of the batch start after `fence`. */
    MB_HW_WAIT,
    /* Write `count` leaf slots from `first` on: frame pfns[i] with template `tmpl`, or, with pfns
     * NULL, the view's cleared state. Slot writes are single and atomic; order among them is open.
     * */
    MB_HW_LEAVES,
    /* Write one directory entry of a tree that vm built (caps.tree_is_ours). */
    MB_HW_DIR,
    /* Entries written before are visible to every walker before later commands start. */
    MB_HW_BARRIER,
    /* No translation read before this command is used by an access that starts after it, for the
     * range, or for the whole space when bytes is 0. */
    MB_HW_INVALIDATE,
    /* Accesses that used a translation dropped by an earlier INVALIDATE have reached memory. */
    MB_HW_MEMBAR,
};

struct mb_hw_cmd {
    enum mb_hw_cmd_kind kind;
    union {
        struct mb_hw_fence fence; /* WAIT */
        struct {
            const struct mb_hw_view *view;
            uint32_t first, count;
            const mb_pfn *pfns; /* copied or consumed before submit returns */
            uint64_t tmpl;      /* mb_fmt_leaf_template(), ignored when pfns is NULL */
        } leaves;
        struct {
            uint64_t table_phys; /* of the directory table */
            uint32_t index;
            unsigned level; /* mb_fmt_geometry index */
            struct mb_pte value;
        } dir;
        struct {
            mb_va va;
            uint64_t bytes; /* 0: everything */
        } inval;
    };
};

/* Constant after open. */
struct mb_hw_caps {
    enum mb_fmt format;
    uint8_t kind;        /* memory kind for leaf templates (6 on Turing and later) */
    bool tree_is_ours;   /* vm builds directories with table_alloc + MB_HW_DIR; else tree_adopt */
    bool home_by_driver; /* slab_acquire maps at home itself */
    bool host_blocking;  /* entries are written by the vendor driver: submit costs host time */
    bool device_scrub;   /* scrub_slots() may be called, where there is one */
    bool neighbours_cached;   /* a walk caches an aligned group of slots, valid or not (NVIDIA) */
    unsigned group_slots;     /* 16 on NVIDIA, 1 elsewhere */
    bool fresh_is_default;    /* always-fresh is the better default policy here */
    uint64_t total_bytes;     /* device memory that slabs may take */
    uint64_t slab_step_bytes; /* growth of who holds much is in such steps; <= 32 MiB */
    uint64_t va_bytes;        /* how much address space va_reserve can give in all */
    uint64_t leaf_sizes;      /* bit s set: leaves of 1 << s bytes are possible */
    /* Costs for policy decisions: profile values, ns. */
    uint64_t submit_ns, entry_ns, invalidate_ns, slab_ns;
    char device_name[96];
    char driver[64];
    const char *tables; /* "simulated", "device-inline", "device-isolated", "driver" */
};

/* What a backend is opened with; zero means default. Parsed by api/config. */
struct mb_hw_config {
    int ordinal;
    uint32_t helper_slice_us;     /* cuda: of the channel that waits; 0: 4 */
    uint64_t device_memory_bytes; /* sim: size of the device; others: a cap */
    uint64_t seed;                /* sim: schedule exploration */
    const char *model;            /* sim: "h200" (default), "a100", "mi210" */
    const char *tables;           /* "inline", "isolated", "driver"; NULL: best that works */
    bool explore;                 /* sim: pick among all runnable commands at random, not by time */
    bool no_oracle;               /* sim: translate but do not judge */
    bool force;                   /* cuda: go on although another process uses the GPU */
    bool early_maps;  /* cuda, driver tables: a batch that only fills empty slots does not wait */
    bool driver_home; /* sim: behave as a backend whose driver maps homes and primes windows */
    bool walk_ahead;  /* sim: walks run past a block's end into the next group */
    bool self_heal;   /* sim: SM faults on stale invalid entries replay (CUDA context) */
    /* cuda: helper channels and kernels; NULL and 0 are the ways that have been measured */
    const char *helper_engine; /* copy engine: "list" (default), "apart", or its number */
    const char *helper_wait;   /* of prepared invalidates: "hold" (default) or "switch" */
    const char *helper_end;    /* of prepared invalidates at close: "drop" (default), "drain" */
    const char *walk_views;    /* of page tables: "close" (default) or "keep" */
    const char *scrub;         /* of inline tables, by: "host" (default) or "device" */
    const char *kernels;       /* "plain" (default) or "fast": forms of pte_pop's waits */
    char profile[256];         /* file of measured facts (hw/profile.h); "": built-in knowledge */
};

/* Results of device work so far; monotonic. */
struct mb_hw_counters {
    uint64_t wrong_words;    /* verify mismatches */
    uint64_t wrong_accesses; /* oracle verdicts (sim) */
    uint64_t faults;
    uint64_t invalidates, entries_written, batches;
    uint64_t table_bytes;
    uint64_t overhead_bytes; /* anchors, donors: held from the driver but useless to callers */
};

struct mb_hw_ops {
    const char *name; /* "sim", "cuda", "hip" */

    /* Clears every entry it wrote, waits, frees everything. Never fails; reports by log. */
    void (*close)(struct mb_hw_dev *dev);

    /* --- addresses --- align is a power of two >= MB_FRAME_BYTES. */
    enum mb_err (*va_reserve)(struct mb_hw_dev *dev, uint64_t bytes, uint64_t align, mb_va *out);
    enum mb_err (*va_release)(struct mb_hw_dev *dev, mb_va va, uint64_t bytes);

    /* --- frames --- `home` lies in reserved space; backends with home_by_driver map there, others
     * only remember it. MB_ERR_NO_MEMORY when the driver has none. */
    enum mb_err (*slab_acquire)(struct mb_hw_dev *dev, uint64_t bytes, mb_va home,
                                struct mb_hw_slab *out);
    /* Every entry naming these frames has been cleared and invalidated before. */
    enum mb_err (*slab_release)(struct mb_hw_dev *dev, struct mb_hw_slab *slab);

    /* --- page-table memory --- */
    /* tree_is_ours: `bytes` of zeroed, physically consecutive table memory, 4 KiB aligned. */
    enum mb_err (*table_alloc)(struct mb_hw_dev *dev, uint64_t bytes, uint64_t *phys);
    void (*table_free)(struct mb_hw_dev *dev, uint64_t phys, uint64_t bytes);
    /* Physical address of the root table (tree_is_ours). */
    uint64_t (*root_phys)(struct mb_hw_dev *dev);
    /* !tree_is_ours: make the leaf tables of a reserved range exist, prove them, prime every slot,
     * and give the linear view. 512 MiB aligned pieces. */
    enum mb_err (*tree_adopt)(struct mb_hw_dev *dev, mb_va va, uint64_t bytes,
                              struct mb_hw_view *out);
    void (*tree_disown)(struct mb_hw_dev *dev, struct mb_hw_view *view);

    /* --- ordered writes --- in order on `stream`, all or nothing, no host wait. */
    enum mb_err (*submit)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                          const struct mb_hw_cmd *cmds, unsigned count);

    /* --- streams and fences --- */
    enum mb_err (*stream_create)(struct mb_hw_dev *dev, mb_stream *native);
    enum mb_err (*stream_destroy)(struct mb_hw_dev *dev, mb_stream native);
    /* The wrapper of a native stream; the same pointer for the same native until stream_close. */
    enum mb_err (*stream_open)(struct mb_hw_dev *dev, mb_stream native, struct mb_hw_stream **out);
    void (*stream_close)(struct mb_hw_dev *dev, struct mb_hw_stream *stream);
    enum mb_err (*fence_record)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                struct mb_hw_fence *out);
    bool (*fence_done)(struct mb_hw_dev *dev, struct mb_hw_fence fence); /* memory read only */
    enum mb_err (*fence_wait_stream)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                     struct mb_hw_fence fence);
    /* Blocks the host; MB_ERR_TIMEOUT, MB_ERR_DEADLOCK, MB_ERR_DEVICE_LOST. timeout 0: no limit. */
    enum mb_err (*fence_wait_host)(struct mb_hw_dev *dev, struct mb_hw_fence fence,
                                   uint64_t timeout_ns);
    enum mb_err (*device_sync)(struct mb_hw_dev *dev);

    /* --- device work, through the TLB --- addresses and sizes multiples of 8 */
    enum mb_err (*fill)(struct mb_hw_dev *dev, struct mb_hw_stream *stream, mb_va va,
                        uint64_t bytes, uint64_t seed);
    enum mb_err (*verify)(struct mb_hw_dev *dev, struct mb_hw_stream *stream, mb_va va,
                          uint64_t bytes, uint64_t seed);
    enum mb_err (*copy)(struct mb_hw_dev *dev, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                        uint64_t bytes);
    /* As mb_copy_list_async(): all is checked before anything is enqueued, and in no order among
     * themselves. The list is read during the call. Only the driver's refusal of a launch may leave
     * a part enqueued. */
    enum mb_err (*copy_list)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                             const struct mb_copy *list, unsigned count);

    /* --- observation --- */
    void (*counters)(struct mb_hw_dev *dev, struct mb_hw_counters *out);
    /* MB_OK, or the fatal error that ended the context, with its text. */
    enum mb_err (*health)(struct mb_hw_dev *dev);
    /* Optional (NULL on hardware). vm says, before it computes any command, what the program must
     * see from the next access it enqueues: count slots from va on show pfns (NULL: nothing). */
    void (*intend)(struct mb_hw_dev *dev, mb_va va, uint32_t count, unsigned leaf_shift,
                   const mb_pfn *pfns);
    /* Reads `count` slots of a view as they are in memory now, for checks; host blocking. */
    enum mb_err (*read_slots)(struct mb_hw_dev *dev, const struct mb_hw_view *view, uint32_t first,
                              uint32_t count, struct mb_pte *out);
    /* Optional (NULL: submit, then fence_record). As submit, and *done is the batch's own fence,
     * for less than a fence_record would cost. Untouched on failure. */
    enum mb_err (*submit_fence)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                                const struct mb_hw_cmd *cmds, unsigned count,
                                struct mb_hw_fence *done);
    /* Optional (NULL, or caps.device_scrub not set: vm reads the slots and compares). The device
     * compares slots [first, first + count) of a view as they are in memory now with `want`; host
     * blocking. *differing counts all that differ, wrong[] gets the first `capacity` found, as
     * offsets from `first`, in any order.
     */
    enum mb_err (*scrub_slots)(struct mb_hw_dev *dev, const struct mb_hw_view *view, uint32_t first,
                               uint32_t count, const struct mb_scrub_want *want, uint32_t *wrong,
                               uint32_t capacity, uint32_t *differing);
    /* --- peers --- optional (NULL: no device may use another one's memory). Sets what `peer`,
     * another open device of this backend, may do at the addresses of `dev` from va on, which show
     * pfns: `prot`, or with MB_PROT_NONE nothing (pfns may be NULL then). By the driver, on the
     * host: when it returns, no access of the peer that starts later uses an older translation, and
     * those that used one have reached memory. The caller has made sure that the peer's own work
     * does not need what is taken away, and closes what it opened before the frames change hands or
     * either device is closed. frames 0: changes nothing, says whether it could be done.
     * MB_ERR_NOT_SUPPORTED with the reason, and nothing has changed; after another error a part may
     * have, and the caller sets again what was. */
    enum mb_err (*peer_access)(struct mb_hw_dev *dev, struct mb_hw_dev *peer, mb_va va,
                               uint32_t frames, const mb_pfn *pfns, enum mb_prot prot);
    /* --- capture --- optional (NULL: nothing is ever captured). Is what is enqueued on the stream
     * now recorded into a graph instead of executed? Waits for nothing. */
    bool (*stream_capturing)(struct mb_hw_dev *dev, mb_stream native);
    /* Optional (NULL: as fence_wait_stream). A wait that the program asked for. Of a point inside a
     * capture under way, the stream is captured into the same graph from then on, or joined there;
     * it may come after more of the other stream than the point. No wait of our own may do that:
     * fence_wait_stream refuses. MB_ERR_NOT_SUPPORTED: no graph can hold this wait. */
    enum mb_err (*event_wait)(struct mb_hw_dev *dev, struct mb_hw_stream *stream,
                              struct mb_hw_fence fence);
};

/* First member of every backend's device. */
struct mb_hw_dev {
    const struct mb_hw_ops *ops;
    struct mb_hw_caps caps;
};

/* One row per compiled-in backend, in order of preference. */
struct mb_hw_backend {
    const char *name;
    /* Fills name, available, tables, reason, device_name, driver; changes nothing on the machine.
     * */
    void (*describe)(int ordinal, struct mb_backend_info *out);
    enum mb_err (*open)(const struct mb_hw_config *config, struct mb_hw_dev **out);
};
extern const struct mb_hw_backend mb__hw_backends[];
extern const unsigned mb__hw_backend_count;

#endif
