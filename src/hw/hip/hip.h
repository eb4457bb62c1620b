/* SPDX-License-Identifier: MIT */
/*
 * hip.h - the inside of the `hip` backend: frames, addresses and mappings by HIP's virtual memory
 * calls.
 *
 *   driver.c    libamdhip64 by dlopen        open.c    ops table, open and close
 *   describe.c  what is here, what is not    stream.c  streams, timelines, fences
 *   home.c      addresses, slabs             tables.c  what is mapped now, later, or awaited
 *   work.c      fill, verify, copy
 *
 * No output of this backend has been seen on AMD hardware; MB_HIP_NOTE says so wherever it speaks.
 *
 * LOCKING   Order, outermost first: dev->map_lock -> stream->lock -> dev->stream_lock ->
 *           dev->table_lock. HIP is called under any of them but table_lock.
 * FORK      Every entry from above goes through mb__hip_enter(), which fails in a child.
 */
#ifndef MB_HW_HIP_HIP_H
#define MB_HW_HIP_HIP_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "hw/hip/driver.h"
#include "hw/hip/hip_backend.h"

enum {
    MB_HIP_STREAMS = 4096,  /* slots in the pinned block */
    MB_HIP_WORD_BYTES = 64, /* one timeline per cache line */
    MB_HIP_LEAF_KIND = 1,   /* MTYPE RW, what the driver gives local memory on GFX9.4.2 */
};
#define MB_HIP_PIECE_BYTES ((uint64_t)512 << 20) /* alignment of windows, as hw.h says */

/* One native stream. Never freed before the device closes, since fences name it; a closed one whose
 * fences have all passed may be reused for another native stream. */
struct mb_hw_stream {
    struct mb_hw_stream *next;  /* all streams; dev->stream_lock */
    hip_stream native;          /* NULL: the default stream; dev->stream_lock */
    bool open;                  /* dev->stream_lock */
    unsigned index;             /* of its words in the pinned block; constant */
    _Atomic uint64_t *timeline; /* last number that the device passed; written by the device */
    void *signal; /* the same as signal memory of HIP's; NULL: timeline lies in the pinned block */
    hip_event last;       /* without signal memory: recorded when somebody has to wait; lock */
    pthread_mutex_t lock; /* order of submissions on this stream */
    uint64_t seq;         /* last number whose write was enqueued; lock */
};

/* One handle per frame: HIP maps handles as a whole, with offset 0. */
struct mb_hip_slab {
    struct mb_hip_slab *next; /* dev->table_lock */
    hip_mem *handles;         /* `frames` of them; owned */
    mb_va home;
    mb_pfn first; /* made up: HIP does not tell physical addresses */
    uint32_t frames;
};

/* Reserved addresses; HIP may have given more than was asked, to be aligned. */
struct mb_hip_reserve {
    struct mb_hip_reserve *next; /* dev->table_lock */
    uint64_t va;                 /* what was given to the caller */
    uint64_t base, bytes;        /* what HIP gave */
};

/* What a slot of a window shows. */
struct mb_hip_slot {
    hip_mem handle; /* mapped now; NULL: nothing */
    mb_pfn pfn;
    uint8_t access; /* HIP_MEM_ACCESS_* */
    uint64_t leave; /* number of the queued unmap that will empty the slot; 0: none */
};

/* What one tree_adopt made; the view's cookie. */
struct mb_hip_window {
    struct mb_hip_window *next; /* dev->map_lock */
    mb_va va;
    uint32_t slots;
    struct mb_hip_slot *slot; /* dev->map_lock */
};

/* Slots to unmap once the fence has passed: those of the range that carry its number. */
struct mb_hip_leave {
    struct mb_hip_leave *next; /* in order of submission; dev->map_lock */
    struct mb_hw_fence fence;
    struct mb_hip_window *window;
    uint64_t number; /* from 1 */
    uint32_t first, count;
};

struct mb_hip {
    struct mb_hw_dev base; /* first */
    const struct mb_hip_driver *hip;
    int ordinal;
    pid_t owner;
    int runtime_version;
    bool wait_values; /* streams may wait for values in signal memory */

    hip_module module;
    hip_function fill, verify, copy;
    unsigned multiprocessors;
    uint64_t *wrong_dev; /* device memory, one counter per stream index */

    /* Pinned words: timelines, then what wrong_dev held after the stream's latest verify. */
    void *pinned;
    _Atomic uint64_t *wrong; /* MB_HIP_STREAMS of them */

    /* Fatal state. First writer wins; the text is valid when lost is neither MB_OK nor
     * MB_ERR_INTERNAL. */
    _Atomic int lost;
    char lost_text[256];

    hip_stream private_stream; /* asked for the device's state: others' may be gone */
    pthread_mutex_t stream_lock;
    struct mb_hw_stream *streams;
    unsigned stream_count;

    pthread_mutex_t table_lock; /* slabs, reserves, figures */
    struct mb_hip_slab *slabs;
    struct mb_hip_reserve *reserves;
    uint64_t held_bytes, limit_bytes; /* limit is constant */
    hip_mem *frame_handle; /* per frame number, NULL: not ours; table_lock, read anywhere */
    uint64_t frame_count;

    pthread_mutex_t map_lock; /* windows' slots, the queue of leaves, mapping in windows */
    struct mb_hip_window *windows;
    struct mb_hip_leave *leave, **leave_last;
    uint64_t leave_number;        /* of the latest leave; map_lock */
    pthread_cond_t leave_changed; /* work for the worker, or work done by it */
    pthread_t worker;
    bool worker_runs, worker_stop; /* map_lock */
    bool unmapping;                /* the worker has taken a leave off the queue; map_lock */

    _Atomic uint64_t batches, entries, invalidates;
    _Atomic uint64_t waits; /* batches that had to wait for their stream inside submit */
};

struct mb_hip_scope {
    int before; /* ordinal that was current; -1: the same */
};

static inline struct mb_hip *mb__hip(struct mb_hw_dev *hw)
{
    return (struct mb_hip *)hw;
}

/* --- open.c --- */
/* Makes the device current for this thread. Fails in a fork's child and on a lost device. */
enum mb_err mb__hip_enter(struct mb_hip *dev, struct mb_hip_scope *scope);
void mb__hip_leave(struct mb_hip *dev, struct mb_hip_scope *scope);
/* Marks the device lost (first text wins) and returns err. */
__attribute__((format(printf, 3, 4))) enum mb_err mb__hip_lose(struct mb_hip *dev, enum mb_err err,
                                                               const char *format, ...);
/* As mb__hip_check(), and marks the device lost when the result says so. */
enum mb_err mb__hip_result(struct mb_hip *dev, hip_result result, const char *what);

/* --- stream.c --- */
enum mb_err mb__hip_streams_init(struct mb_hip *dev);
void mb__hip_streams_fini(struct mb_hip *dev);
enum mb_err mb__hip_stream_create(struct mb_hw_dev *hw, mb_stream *native);
enum mb_err mb__hip_stream_destroy(struct mb_hw_dev *hw, mb_stream native);
enum mb_err mb__hip_stream_open(struct mb_hw_dev *hw, mb_stream native, struct mb_hw_stream **out);
void mb__hip_stream_close(struct mb_hw_dev *hw, struct mb_hw_stream *stream);
enum mb_err mb__hip_fence_record(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                 struct mb_hw_fence *out);
bool mb__hip_fence_done(struct mb_hw_dev *hw, struct mb_hw_fence fence);
enum mb_err mb__hip_fence_wait_stream(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                      struct mb_hw_fence fence);
enum mb_err mb__hip_fence_wait_host(struct mb_hw_dev *hw, struct mb_hw_fence fence,
                                    uint64_t timeout_ns);
enum mb_err mb__hip_device_sync(struct mb_hw_dev *hw);
bool mb__hip_capturing(struct mb_hip *dev, struct mb_hw_stream *stream);
bool mb__hip_stream_capturing(struct mb_hw_dev *hw, mb_stream native);

/* --- home.c --- */
enum mb_err mb__hip_va_reserve(struct mb_hw_dev *hw, uint64_t bytes, uint64_t align, mb_va *out);
enum mb_err mb__hip_va_release(struct mb_hw_dev *hw, mb_va va, uint64_t bytes);
enum mb_err mb__hip_slab_acquire(struct mb_hw_dev *hw, uint64_t bytes, mb_va home,
                                 struct mb_hw_slab *out);
enum mb_err mb__hip_slab_release(struct mb_hw_dev *hw, struct mb_hw_slab *out);
enum mb_err mb__hip_peer_access(struct mb_hw_dev *hw, struct mb_hw_dev *peer, mb_va va,
                                uint32_t frames, const mb_pfn *pfns, enum mb_prot prot);
enum mb_err mb__hip_set_access(struct mb_hip *dev, uint64_t va, uint64_t bytes, int access);
/* The handle of a frame of ours, or NULL. */
hip_mem mb__hip_handle_of(const struct mb_hip *dev, mb_pfn pfn);
/* At closing, after the windows: what the caller left. live: HIP may be called. */
void mb__hip_drop_slabs(struct mb_hip *dev, bool live);
void mb__hip_drop_reserves(struct mb_hip *dev, bool live);

/* --- tables.c --- */
enum mb_err mb__hip_tables_start(struct mb_hip *dev);
void mb__hip_tables_stop(struct mb_hip *dev);
enum mb_err mb__hip_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                               struct mb_hw_view *out);
void mb__hip_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view);
/* At closing, when the worker has ended. live: HIP may be called. */
void mb__hip_drop_windows(struct mb_hip *dev, bool live);
enum mb_err mb__hip_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           const struct mb_hw_cmd *cmds, unsigned count);
enum mb_err mb__hip_read_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view, uint32_t first,
                               uint32_t count, struct mb_pte *out);
/* Returns when no queued unmap is left whose fence has passed. */
void mb__hip_settle(struct mb_hip *dev);

/* --- work.c --- */
enum mb_err mb__hip_work_init(struct mb_hip *dev);
void mb__hip_work_fini(struct mb_hip *dev);
enum mb_err mb__hip_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                         uint64_t bytes, uint64_t seed);
enum mb_err mb__hip_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                           uint64_t bytes, uint64_t seed);
enum mb_err mb__hip_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                         uint64_t bytes);
enum mb_err mb__hip_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                              const struct mb_copy *list, unsigned count);
/* The code objects of this build, newest GPU first; name NULL ends the list. */
struct mb_hip_code {
    const char *name; /* "gfx90a" */
    const unsigned char *bytes;
    size_t size;
};
extern const struct mb_hip_code mb__hip_code[];

#endif
