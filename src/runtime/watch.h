/* SPDX-License-Identifier: MIT */
/*
 * watch.h - who looks on: the trace file, the history, the event hook, NVTX ranges.
 *
 * A device that nobody watches has no struct mb__watch, and the warm path asks just that.
 *
 * ORDER     Records of one address are in the order in which the address changed hands. A free and
 *           its record are made under `order`; a malloc's record is made under it after the malloc.
 *           So whoever gets freed memory is recorded after the free.
 * LOCKING   `order` comes before the device's lock, `lock` after all others. Hooks are called with
 *           neither held.
 */
#ifndef MB_RUNTIME_WATCH_H
#define MB_RUNTIME_WATCH_H

#include "runtime/runtime.h"

enum {
    MB__RANK_ORDER = MB_RANK_RUNTIME - 5,
    /* Kinds beyond those of enum mb_hook_kind, for the history alone: bytes of the heap are lent to
     * a window or come back; a window shows a block or shows nothing. */
    MB__WATCH_LEND = 100,
    MB__WATCH_BACK,
    MB__WATCH_SHOW,
    MB__WATCH_HIDE,
};

struct mb__record {
    int kind;         /* enum mb_hook_kind or one of the above */
    uint64_t addr;    /* 0: none */
    uint64_t bytes;   /* as the caller asked, for malloc, free and oom */
    uint64_t stream;  /* native handle; 0: the default stream, or none */
    uint64_t time_us; /* since 1970 */
};

struct mb__watch {
    struct mb_lock order, lock;
    struct mb__tracefile *file; /* NULL: no trace; constant after open; contents under lock */
    struct mb__record *ring;    /* the last ring_size records; owned; NULL: no history; lock */
    uint64_t ring_size;         /* entries; constant after open */
    uint64_t ring_count;        /* recorded so far; lock */
    mb_event_hook hook;         /* lock */
    void *hook_user;            /* lock */
    MB_VEC(struct mb_hook_event) queue; /* not delivered yet; lock */
    bool told_loss;                     /* an event was dropped for want of host memory; lock */
    struct mb__nvtx *nvtx;              /* NULL: none; constant after open */
};

/* ------------------------------------------------------------------ watch.c */

static inline struct mb__watch *mb__watch(const struct mb_device *dev)
{
    return __atomic_load_n(&dev->watch, __ATOMIC_ACQUIRE);
}
/* What the configuration asks for. MB_ERR_IO, MB_ERR_BUSY (another device writes that file),
 * MB_ERR_HOST_MEMORY. */
enum mb_err mb__watch_open(struct mb_device *dev);
/* Flushes and closes; nobody else uses the device. */
void mb__watch_fini(struct mb_device *dev);
enum mb_err mb__watch_set_hook(struct mb_device *dev, mb_event_hook hook, void *user);
/* One record. With or without the device's lock. Nothing where nobody watches. */
void mb__watch_note(struct mb_device *dev, int kind, uint64_t addr, uint64_t bytes,
                    mb_stream stream);
/* Calls the hook for all that is queued. No lock held. Nothing inside a hook: the loop around it
 * goes on. */
void mb__watch_deliver(struct mb_device *dev);
/* The block's window takes the place of its pieces, or the other way round. Device's lock held. */
void mb__watch_show(struct mb_device *dev, const struct mb__block *block);
void mb__watch_hide(struct mb_device *dev, const struct mb__block *block);

/* ------------------------------------------------------------------ tracefile.c */

/* Creates or empties the file; %d in the path is the ordinal, %p the process. `lock` guards every
 * later use. MB_ERR_IO, MB_ERR_BUSY, MB_ERR_HOST_MEMORY. */
enum mb_err mb__tracefile_open(const char *path, bool rmm, int ordinal, struct mb_lock *lock,
                               struct mb__tracefile **out);
/* malloc, free and oom are written, other kinds are not. Lock held. */
void mb__tracefile_write(struct mb__tracefile *file, const struct mb__record *record);
/* NULL is allowed. Lock not held. */
void mb__tracefile_close(struct mb__tracefile *file);

/* ------------------------------------------------------------------ nvtx.c */

/* `which`: "yes" for the usual libraries, else the path of one. NULL with a logged reason if it
 * cannot be had: ranges are a help, not a need. */
struct mb__nvtx *mb__nvtx_open(const char *which);
void mb__nvtx_close(struct mb__nvtx *nvtx);
/* NULL is allowed. */
void mb__nvtx_push(const struct mb__nvtx *nvtx, const char *name);
void mb__nvtx_pop(const struct mb__nvtx *nvtx);

/* ------------------------------------------------------------------ snapshot.c */

/* Takes `order` and the device's lock. MB_ERR_IO, MB_ERR_HOST_MEMORY. */
enum mb_err mb__snapshot(struct mb_device *dev, const char *path);

#endif
