/* SPDX-License-Identifier: MIT */
/*
 * cuda.h - the inside of the `cuda` backend.
 *
 * One device object serves one GPU through its primary context, in one of three ways to write page
 * tables (enum mb_cuda_tables). What differs is submit, homes and windows; streams, fences, device
 * work and lifetime are common.
 *
 *   driver.c     libcuda by dlopen             observe.c   libcuda's calls to the kernel driver
 *   open.c       ops table, open and close     discover.c  page directory, proof, helper
 *   stream.c     streams, fences, contexts     proof.c     pure: walk and comparison
 *   home.c       address space, slabs          window.c    donor-primed windows, their tables
 *   inline.c     a kernel writes the entries   isolated.c  a helper's copy engine writes them
 *   drivertab.c  the driver writes them        refill.c    prepared invalidates, watchdog
 *   helper.c     how helper channels are made and wait
 *   lifetime.c   exits, signals, fork, resets  describe.c  what could be opened here, why not
 *   work.c       fill, verify, copy            pages.c     device memory read over BAR1
 *   late.c       libcuda was there before us   got.c       redirected imports
 *   peer.c       access of other GPUs, by the driver
 *   scrub.c      leaf tables compared with the record by a kernel
 *   calls.c      libcuda's calls behind a clock, for benches
 *
 * LOCKING   Order, outermost first: device registry (lifetime.c), dev->table_lock, stream->lock,
 *           dev->stream_lock, a queue's own lock. libcuda is never called under the registry lock,
 *           as libcuda calls back into the observer, which takes it.
 * FORK      Every entry from above goes through mb__cuda_enter(), which fails in a child.
 */
#ifndef MB_HW_CUDA_CUDA_H
#define MB_HW_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "hw/cuda/cuda_backend.h"
#include "hw/cuda/driver.h"
#include "hw/cuda/observe.h"
#include "hw/cuda/proof.h"
#include "hw/hw.h"
#include "hw/nvrm/client.h"
#include "hw/nvrm/memory.h"
#include "hw/nvrm/push.h"
#include "kernels/cuda/program.h"

enum mb_cuda_tables { MB_CUDA_DRIVER, MB_CUDA_INLINE, MB_CUDA_ISOLATED };

enum {
    MB_CUDA_PIECE_SHIFT = 29, /* 512 MiB: what one leaf table covers */
    MB_CUDA_STREAMS = 4096,   /* timelines in the pinned block */
    MB_CUDA_WORD_BYTES = 64,  /* one timeline per cache line */
    MB_CUDA_OWNED_SLACK = 4,  /* frames are looked up four bytes at a time */
    MB_CUDA_VIEWS = 8, /* kept by walk_views:keep: a path of five pages, and some leaf tables */
};
#define MB_CUDA_PIECE_BYTES ((uint64_t)1 << MB_CUDA_PIECE_SHIFT)
/* Addresses that one reservation may take. */
#define MB_CUDA_VA_BYTES ((uint64_t)16 << 40)
/* Longest time that a kernel waits for a helper channel's answer before it ends the context. */
#define MB_CUDA_ANSWER_NS ((uint64_t)4000000000u)
/* Longest time that the host waits for room in a stream's helper channel, which comes when the
 * stream gets to an earlier batch. The callers hold vm's lock and that of the device's calls, so
 * every call on the device waits as long; with inline tables it is the same where cuLaunchKernel
 * waits for a full stream. A stream that waits for the very thread that waits here, or for one that
 * waits behind it, gives an error then. */
#define MB_CUDA_ROOM_NS ((uint64_t)4000000000u)
/* A wait for room asks libcuda this often whether the context still lives. Rarely, as libcuda may
 * be inside a reset on another thread, which waits for stream->lock to stop the queue. */
#define MB_CUDA_ROOM_ASK_NS ((uint64_t)1000000000u)

/* The shared page: words that kernels, streams and helper channels see. Byte offsets. */
enum {
    MB_SHARED_REQUEST = 0,    /* inline: highest ticket asked for */
    MB_SHARED_ANSWER = 4096,  /* inline: highest ticket answered */
    MB_SHARED_STREAM = 65536, /* isolated: per stream {announce, done}, 256 bytes apart */
    MB_SHARED_STREAM_STEP = 256,
    MB_SHARED_STREAM_DONE = 128,
};

/* How helper channels are made; constant once the device is open. */
struct mb_cuda_helper {
    int engine;        /* copy engine; -1: first of the GPU's list that works; -2: not settled */
    int rescue_engine; /* of the rescue channel */
    bool hold;         /* prepared invalidates keep their engine's queue while they wait */
    bool drain;        /* let them run at close instead of dropping a channel that waits */
    uint32_t slice_us; /* of the channel with prepared invalidates; never 0 */
};

struct mb_cuda_queue;  /* isolated.c: a helper channel with its staging ring */
struct mb_cuda_refill; /* refill.c */
struct mb_cuda_worker; /* drivertab.c */

/* One native stream. Never freed before the device closes, since fences name it; a closed one whose
 * fences have all passed may be reused for another native stream. */
struct mb_hw_stream {
    struct mb_hw_stream *next; /* all streams; dev->stream_lock */
    struct mb_cuda *dev;
    cu_stream native;            /* NULL: the legacy default stream; dev->stream_lock */
    bool open;                   /* dev->stream_lock */
    unsigned index;              /* of the timeline and the shared words; constant */
    _Atomic uint64_t *timeline;  /* pinned; written by the device */
    cu_ptr timeline_dev;         /* the same for the device */
    pthread_mutex_t lock;        /* order of submissions on this stream */
    uint64_t seq;                /* last value whose write was enqueued; lock */
    uint64_t order;              /* isolated, driver: last number handed to the queue; lock */
    struct mb_cuda_queue *queue; /* isolated: own helper channel, made at first use; lock */
};

/* What a peer may do with a slab of one handle. */
struct mb_cuda_grant {
    struct mb_cuda_grant *next; /* of the slab; dev->table_lock */
    int ordinal;                /* of the peer */
    int access;                 /* CU_MEM_ACCESS_*: the most of frame[], which the driver has */
    uint8_t frame[];            /* asked for each */
};

/* A handle whose frames are mapped at home. */
struct mb_cuda_slab {
    struct mb_cuda_slab *next; /* dev->table_lock */
    cu_mem handle;
    cu_mem *handles; /* driver tables: one per frame, else NULL */
    uint64_t bytes;
    mb_va home;
    mb_pfn first;
    mb_pfn *pfns; /* as in mb_hw_slab */
    uint32_t frames;
    nvrm_handle memory_client, memory; /* the driver's names of the memory; 0 on driver tables */
    unsigned donor_uses; /* windows pieces that the driver maps with it; dev->table_lock */
    bool released;       /* given back by vm, kept only because windows are primed with it */
    struct mb_cuda_grant *grants; /* access of peers, device tables; owned; dev->table_lock */
};

/* One 512 MiB piece of a window. */
struct mb_cuda_piece {
    uint64_t table_phys;      /* proved leaf table */
    struct nvrm_cpu_map view; /* over BAR1, read and write */
    struct mb_cuda_slab *donor;
    uint64_t entry[MB_CUDA_LEAVES]; /* low words as the driver wrote them; restored at the end */
    uint64_t control_va;            /* isolated: in the control address space */
};

/* What one tree_adopt made; the view's cookie. */
struct mb_cuda_window {
    struct mb_cuda_window *next; /* dev->table_lock */
    mb_va va;
    unsigned pieces;
    uint64_t
        app_va; /* inline: where the tables are mapped in the application's space, 0 otherwise */
    bool live;  /* entries may differ from the driver's; table_lock */
    struct mb_cuda_piece *piece;
    /* Per slot, in order of submission: is it cleared? Isolated: table_lock; driver tables:
     * worker's lock; NULL otherwise. */
    uint8_t *cleared;
    cu_mem *mapped; /* driver tables: handle mapped at each slot, 0 none; worker's lock */
    mb_pfn *shown;  /* driver tables: frame shown at each slot; worker's lock */
    uint8_t *prot;  /* driver tables: access of each slot */
};

/* A buffer of frame numbers in pinned memory for launches whose list exceeds the parameters. */
struct mb_cuda_list {
    struct mb_cuda_list *next;
    uint32_t *host;
    cu_ptr device;
    uint32_t capacity;        /* frame numbers */
    struct mb_hw_fence fence; /* of the launch that reads it */
    bool captured;            /* part of a graph: never reused */
    bool taken;               /* being filled; table_lock */
};

/* A view over BAR1 that outlives its reader; addr NULL: none. */
struct mb_cuda_kept_view {
    uint64_t phys;
    struct nvrm_cpu_map map;
};

/* What the scrubber keeps between two comparisons. vm's lock. */
struct mb_cuda_scrub {
    cu_function kernel; /* NULL: not loaded yet, as the stream */
    cu_stream stream;
    struct mb_scrub_want *want; /* pinned: the record, behind it the count and the named slots */
    cu_ptr device;              /* the same for the device */
    uint32_t slots, named;      /* room for */
};

struct mb_cuda {
    struct mb_hw_dev base; /* first */
    const struct mb_cuda_driver *cu;
    enum mb_cuda_tables tables;
    char tables_reason[512]; /* why not the better tables; "" if they are the best */
    int ordinal;
    int owner_pid;
    int driver_version; /* 13000: CUDA 13.0 */
    cu_device device;
    cu_context ctx;            /* primary, retained */
    unsigned long long ctx_id; /* of it: another number after a reset */
    uint8_t uuid[16];
    struct mb_cuda *registry_next; /* lifetime.c */

    /* Kernels; constant after open. */
    cu_module module;
    cu_function pop_s, pop_m, pop_l, pop_xl, pop_ring, await, trap, nop, fill, verify, copy;
    cu_function copy_list_s, copy_list_l;
    unsigned multiprocessors;
    cu_stream private_stream; /* the watchdog's, for ending the context */

    /* Fatal state. Set once, first writer wins; text is valid when lost is not MB_OK. */
    _Atomic int lost; /* enum mb_err */
    char lost_text[256];
    atomic_bool
        destroyed;    /* the context was reset: its streams, modules and events are gone, mappings
                              and handles are not */
    atomic_bool gone; /* the address space itself is being taken away: no more calls of libcuda */
    bool exiting;     /* lost by the end of the process alone: channels still work; at_exit() */
    bool closing;     /* close goes on although the device is lost */

    /* Pinned words: error[2] of kernels, wrong words, timelines. Device writes, host reads. */
    struct mb_cuda_pinned {
        _Atomic uint64_t error[2]; /* program.h */
        _Atomic uint64_t wrong;    /* mb_verify */
        uint64_t pad[5];
    } * pinned;
    cu_ptr pinned_dev;
    _Atomic uint64_t *timelines;
    cu_ptr timelines_dev;

    pthread_mutex_t stream_lock;
    struct mb_hw_stream *streams;
    unsigned stream_count;

    pthread_mutex_t table_lock; /* slabs, windows, donors, lists, capacity figures */
    struct mb_cuda_slab *slabs;
    struct mb_cuda_window *windows;
    struct mb_cuda_list *lists;
    uint64_t held_bytes, overhead_bytes, table_bytes;
    uint64_t limit_bytes; /* cap of held_bytes; constant */
    uint8_t *owned; /* per 2 MiB frame number: 1 ours; written under table_lock, read anywhere */
    uint64_t owned_frames; /* entries; MB_CUDA_OWNED_SLACK bytes more are never set */
    cu_mem *frame_handle;  /* driver tables: handle per frame number (made up, not physical) */

    /* Device tables; NULL or 0 on driver tables. */
    struct nvrm_client *rm;
    struct nvrm_vas *vas;
    struct nvrm_phys *phys;
    struct mb_cuda_seen seen; /* what the observer found: constant after discovery */
    struct mb_cuda_space space;
    uint64_t control_va;      /* reserved 512 MiB in the application's space: poison, shared page */
    cu_mem poison, shared;    /* handles mapped in the first two slots of it */
    uint64_t control_phys[2]; /* their frames */
    nvrm_handle control_memory[2];
    struct nvrm_abi_uvm_attr attr; /* how libcuda maps device memory: for views of leaf tables */
    int uvm_fd;                    /* of libcuda */
    mb_pfn poison_pfn;
    uint64_t control_table;     /* proved leaf table of control_va */
    struct nvrm_mem *shared_rm; /* the shared page as our client's object */
    uint64_t list_va;           /* inline: 2 MiB of application VA that shows leaf tables */
    unsigned list_used;         /* pages of it handed out; table_lock */
    bool keep_views;            /* walk_views:keep; constant after open */
    atomic_flag views_busy;     /* held by the reader that may use views */
    unsigned next_view;         /* replaced next; views_busy */
    struct mb_cuda_kept_view views[MB_CUDA_VIEWS]; /* views_busy */
    struct mb_cuda_helper helper;
    struct mb_cuda_refill *refill;
    struct mb_cuda_worker *worker;

    _Atomic uint64_t batches, entries, invalidates;
    bool force;
    bool early_maps;   /* driver tables; constant after open */
    bool fast;         /* kernels: shorter waits; constant after open */
    bool scrub_device; /* inline: tables are compared by a kernel; constant after open */
    struct mb_cuda_scrub scrub;
    uint32_t param_frames;   /* inline: longest list that travels in launch parameters */
    uint32_t pop_threads;    /* inline: of a launch at most, a power of two to MB_POP_THREADS */
    _Atomic unsigned queues; /* isolated: helper channels of streams */
    bool targeted;           /* isolated: invalidate only the range that a batch names */
    uint64_t room_ns;        /* isolated: MB_CUDA_ROOM_NS; constant after open */
    uint64_t room_ask_ns;    /* isolated: MB_CUDA_ROOM_ASK_NS; constant after open */
};

struct mb_cuda_scope {
    bool pushed;
    int capture_mode;
};

static inline struct mb_cuda *mb__cuda(struct mb_hw_dev *hw)
{
    return (struct mb_cuda *)hw;
}

/* --- stream.c --- */
/* Makes the primary context current for this thread. Fails in a fork's child and on a lost device.
 * */
enum mb_err mb__cuda_enter(struct mb_cuda *dev, struct mb_cuda_scope *scope);
void mb__cuda_leave(struct mb_cuda *dev, struct mb_cuda_scope *scope);
/* The same for calls that a thread under strict stream capture could not make. */
enum mb_err mb__cuda_enter_relaxed(struct mb_cuda *dev, struct mb_cuda_scope *scope);
void mb__cuda_leave_relaxed(struct mb_cuda *dev, struct mb_cuda_scope *scope);
/* Marks the device lost (first text wins) and returns err. */
__attribute__((format(printf, 3, 4))) enum mb_err
mb__cuda_lose(struct mb_cuda *dev, enum mb_err err, const char *format, ...);
/* As mb__cuda_check(), and marks the device lost when the result ends the context. */
enum mb_err mb__cuda_result(struct mb_cuda *dev, cu_result result, const char *what);
/* Is the context still the one that was opened? Marks the device lost if it was reset. */
bool mb__cuda_context_lives(struct mb_cuda *dev);
/* For waits that take long: MB_ERR_DEVICE_LOST if the context was reset or has a fatal error. */
enum mb_err mb__cuda_context_error(struct mb_cuda *dev);
bool mb__cuda_capturing(struct mb_cuda *dev, struct mb_hw_stream *stream);
bool mb__cuda_stream_capturing(struct mb_hw_dev *hw, mb_stream native);
enum mb_err mb__cuda_streams_init(struct mb_cuda *dev);
void mb__cuda_streams_fini(struct mb_cuda *dev);
enum mb_err mb__cuda_stream_create(struct mb_hw_dev *hw, mb_stream *native);
enum mb_err mb__cuda_stream_destroy(struct mb_hw_dev *hw, mb_stream native);
enum mb_err mb__cuda_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out);
void mb__cuda_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream);
enum mb_err mb__cuda_fence_record(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                  struct mb_hw_fence *out);
bool mb__cuda_fence_done(struct mb_hw_dev *hw, struct mb_hw_fence fence);
enum mb_err mb__cuda_event_wait(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                struct mb_hw_fence fence);
enum mb_err mb__cuda_fence_wait_stream(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                       struct mb_hw_fence fence);
enum mb_err mb__cuda_fence_wait_host(struct mb_hw_dev *hw, struct mb_hw_fence fence,
                                     uint64_t timeout_ns);
enum mb_err mb__cuda_device_sync(struct mb_hw_dev *hw);

/* --- home.c --- */
enum mb_err mb__cuda_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out);
enum mb_err mb__cuda_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes);
enum mb_err mb__cuda_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                  struct mb_hw_slab *out);
enum mb_err mb__cuda_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *slab);
/* Creates a handle of frames on this GPU, never compressible. */
enum mb_err mb__cuda_mem_create(struct mb_cuda *dev, uint64_t bytes, cu_mem *out);
/* Maps [va, va + bytes) to the whole handle, read and write; *event (may be NULL) gets what the
 * driver told the kernel. */
enum mb_err mb__cuda_mem_map(struct mb_cuda *dev, uint64_t va, uint64_t bytes, cu_mem handle,
                             struct mb_cuda_map_event *event);
enum mb_err mb__cuda_set_access(struct mb_cuda *dev, uint64_t va, uint64_t bytes, int access);
/* Lowest and highest frame number of a batch; starts as {UINT32_MAX, 0}. */
struct mb_cuda_span {
    uint32_t low, high;
};
/* Is every frame number of the list owned by this device? Widens *span to them. */
bool mb__cuda_owns(const struct mb_cuda *dev, const mb_pfn *pfns, uint32_t count,
                   struct mb_cuda_span *span);
void mb__cuda_own(struct mb_cuda *dev, mb_pfn pfn, bool owned);
/* The owner's entries of a slab's home must be what they were when it came. */
enum mb_err mb__cuda_slab_prove(struct mb_cuda *dev, const struct mb_cuda_slab *slab);
/* The last window primed with a slab that vm has given back is gone: free its memory. */
void mb__cuda_slab_put(struct mb_cuda *dev, struct mb_cuda_slab *slab);

/* --- peer.c --- */
enum mb_err mb__cuda_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer, mb_va va,
                                 uint32_t frames, const mb_pfn *pfns, enum mb_prot prot);
/* Pure. Notes what `count` frames from `first` on ask for; returns what the whole slab of `frames`
 * needs then, and in *before what it needed. */
int mb__cuda_grant_set(struct mb_cuda_grant *grant, uint32_t frames, uint32_t first, uint32_t count,
                       int access, int *before);

/* --- window.c --- */
enum mb_err mb__cuda_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                                struct mb_hw_view *out);
void mb__cuda_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view);
enum mb_err mb__cuda_read_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view, uint32_t first,
                                uint32_t count, struct mb_pte *out);
/* MB_OK if the command may run on this device's windows; else named and refused. */
enum mb_err mb__cuda_check_leaves(struct mb_cuda *dev, const struct mb_hw_cmd *cmd,
                                  struct mb_cuda_window **window, struct mb_cuda_span *span);
/* Writes the driver's own entries back into all windows over BAR1. No locks, no allocation, no
 * libcuda: runs in signal handlers and inside libcuda. Returns the number of slots that differed.
 * */
unsigned mb__cuda_restore_windows(struct mb_cuda *dev);
/* Takes the tables out of the application's address space. Kernel calls only. */
void mb__cuda_unmap_tables(struct mb_cuda *dev, struct mb_cuda_window *window);

/* --- discover.c --- */
/* Finds and proves; on success dev->rm .. dev->control_table are set. Nothing is written. */
enum mb_err mb__cuda_discover(struct mb_cuda *dev);
void mb__cuda_discover_undo(struct mb_cuda *dev);
/* Reader over BAR1, one page at a time. Owned by the caller, who calls mb__cuda_pages_fini(). */
struct mb_cuda_pages {
    struct mb_cuda *dev;
    uint64_t phys;           /* page now mapped, UINT64_MAX none */
    struct nvrm_cpu_map map; /* of it */
    bool keeps;              /* views are the device's, which this reader holds */
    bool copied;             /* copy[] holds the page */
    bool want_copy;          /* copy whole pages: few wide reads instead of many narrow ones */
    uint64_t copy[512] __attribute__((aligned(64)));
};
void mb__cuda_pages_init(struct mb_cuda *dev, struct mb_cuda_pages *pages);
void mb__cuda_pages_fini(struct mb_cuda_pages *pages);
/* Undoes the views that were kept. No reader is under way. */
void mb__cuda_pages_drop(struct mb_cuda *dev);
struct mb_cuda_reader mb__cuda_pages_reader(struct mb_cuda_pages *pages);
/* Copies one 4 KiB page of device memory by wide loads. */
void mb__cuda_read_page(const volatile void *from, uint64_t to[512]);

/* --- inline.c, isolated.c, drivertab.c: hw->submit and its fence-returning form --- */
enum mb_err mb__cuda_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                            const struct mb_hw_cmd *cmds, unsigned count);
enum mb_err mb__cuda_submit_fence(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                  const struct mb_hw_cmd *cmds, unsigned count,
                                  struct mb_hw_fence *done);
enum mb_err mb__cuda_inline_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                   const struct mb_hw_cmd *cmds, unsigned count,
                                   struct mb_hw_fence *done);
enum mb_err mb__cuda_isolated_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                     const struct mb_hw_cmd *cmds, unsigned count,
                                     struct mb_hw_fence *done);
enum mb_err mb__cuda_driver_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                   const struct mb_hw_cmd *cmds, unsigned count,
                                   struct mb_hw_fence *done);
/* Enqueues the waits that a WAIT command means on `stream`; lock held. */
enum mb_err mb__cuda_enqueue_wait(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                  struct mb_hw_fence fence);
void mb__cuda_lists_free(struct mb_cuda *dev);
enum mb_err mb__cuda_queue_create(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                  struct mb_cuda_queue **out);
void mb__cuda_queue_destroy(struct mb_cuda *dev, struct mb_cuda_queue *queue);
/* Drops what is queued and frees the channel; stream->lock held. */
void mb__cuda_queue_stop(struct mb_cuda_queue *queue);
/* For tests: the stream's helper channel runs into a fault of its own and is stopped by the driver.
 * */
enum mb_err mb__cuda_queue_poison(struct mb_cuda *dev, struct mb_hw_stream *stream);
/* True, with the reason in text, when the helper channel of `queue` has failed; rings its doorbell
 * again. */
bool mb__cuda_queue_failed(struct mb_cuda_queue *queue, char *text, size_t bytes);
enum mb_err mb__cuda_worker_start(struct mb_cuda *dev);
void mb__cuda_worker_stop(struct mb_cuda *dev);
enum mb_err mb__cuda_driver_adopt(struct mb_cuda *dev, mb_va va, uint64_t bytes,
                                  struct mb_hw_view *out);
void mb__cuda_driver_disown(struct mb_cuda *dev, struct mb_hw_view *view);
enum mb_err mb__cuda_driver_read_slots(struct mb_cuda *dev, const struct mb_hw_view *view,
                                       uint32_t first, uint32_t count, struct mb_pte *out);

/* --- helper.c --- */
/* Reads the configuration into dev->helper and dev->fast; MB_ERR_CONFIG for unknown values. */
enum mb_err mb__cuda_helper_config(struct mb_cuda *dev, const struct mb_hw_config *config);
/* Settles engines that depend on the GPU. Asks the driver only for helper_engine:apart. */
enum mb_err mb__cuda_helper_engines(struct mb_cuda *dev);
/* One prepared invalidate: number n of the inline queue. */
void mb__cuda_helper_encode(const struct mb_cuda *dev, struct nvrm_push *push, uint64_t n);

/* --- refill.c --- */
enum mb_err mb__cuda_refill_start(struct mb_cuda *dev);
/* Ends the thread and lets prepared invalidates run; what other threads may be using stays. */
void mb__cuda_refill_rest(struct mb_cuda *dev);
/* The same, and frees everything; nobody else may be in a call. */
void mb__cuda_refill_stop(struct mb_cuda *dev);
/* Invalidates the whole space and waits, on a channel of its own. No locks but an atomic flag, no
 * libcuda: usable in signal handlers. False if the channel does not answer within timeout_us. */
bool mb__cuda_rescue_invalidate(struct mb_cuda *dev, unsigned timeout_us);
/* For tests: the helper stops answering, as if its channel had died. */
void mb__cuda_refill_break(struct mb_cuda *dev);

/* --- lifetime.c --- */
/* Installs the handlers of the process, once. Before libcuda's first call if possible. */
void mb__cuda_lifetime_init(void);
void mb__cuda_register(struct mb_cuda *dev);
void mb__cuda_unregister(struct mb_cuda *dev);
bool mb__cuda_forked(void);
/* What the observer tells before libcuda takes something away. */
void mb__cuda_guard(const struct mb_cuda_loss *loss);

/* --- scrub.c: hw->scrub_slots --- */
enum mb_err mb__cuda_scrub_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view,
                                 uint32_t first, uint32_t count, const struct mb_scrub_want *want,
                                 uint32_t *wrong, uint32_t capacity, uint32_t *differing);
/* Context current, no comparison under way. */
void mb__cuda_scrub_fini(struct mb_cuda *dev);

/* --- work.c --- */
enum mb_err mb__cuda_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                          uint64_t bytes, uint64_t seed);
enum mb_err mb__cuda_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                            uint64_t bytes, uint64_t seed);
enum mb_err mb__cuda_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                          uint64_t bytes);
enum mb_err mb__cuda_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                               const struct mb_copy *list, unsigned count);

#endif
