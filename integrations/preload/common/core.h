/* SPDX-License-Identifier: MIT */
/*
 * core.h - what the preload libraries of CUDA and HIP share: switches, devices, times.
 *
 * Each library has a copy of its own. Nothing here runs before the first intercepted call: a
 * program that never allocates device memory sees no more than two mapped files.
 */
#ifndef MB_PRELOAD_CORE_H
#define MB_PRELOAD_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

enum { CORE_DEVICES = 64 };

/* Defined by each library: how it calls itself, whose calls it answers, and what it opens. */
struct core_vendor {
    const char *preload; /* "preload" */
    const char *name;    /* "CUDA" */
    const char *backend; /* "backend:cuda"; used unless $MOONBRIGHT names one */
};
extern const struct core_vendor core_vendor;

/* $MOONBRIGHT_PRELOAD: words separated by commas, read once. */
enum core_mode {
    CORE_OFF = 1,   /* "off": the vendor serves everything */
    CORE_TIME = 2,  /* "time": how long allocation calls take is told when the process ends */
    CORE_TRACE = 8, /* "trace": one line for each function that the program gets from here */
    CORE_IPC = 4,   /* "ipc": what can be shared with other processes comes from the vendor */
};
unsigned core_modes(void);

/* One line on stderr behind "moonbright: " and the library's name for itself; no allocation, so it
 * may be called anywhere. */
void core_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ------------------------------------------------------------ devices */

/*
 * MoonBright's device of a vendor's ordinal, opened at the first request with $MOONBRIGHT. NULL:
 * the vendor serves; why was told once.
 * Also NULL in a child of fork(). Thread-safe; calls of this thread while it opens get NULL.
 */
mb_device core_device(int ordinal);
/* The same if it is open, else NULL. Lock-free. */
mb_device core_opened(int ordinal);
/* Does MoonBright serve this device, or would it try to? */
bool core_serves(int ordinal);
/* Closes it; the next core_device() opens anew. */
void core_close(int ordinal);
/* The open device that knows the address; NULL: none. */
mb_device core_owner(const void *ptr, struct mb_pointer_info *info, int *ordinal);

/* In a child of fork(). Asked before a lock is taken, which a thread of the parent may have held
 * for ever. */
bool core_forked(void);
/* True while this thread is inside MoonBright: what it calls of the vendor's is for the vendor. */
bool core_inside(void);
void core_enter(void);
void core_leave(void);

/* ------------------------------------------------------------ times */

enum core_kind { CORE_ALLOC, CORE_FREE, CORE_ALLOC_ASYNC, CORE_FREE_ASYNC, CORE_KINDS };

struct core_stamp {
    uint64_t start_ns;   /* 0: not measured */
    uint64_t opening_ns; /* what the thread had waited for devices to be opened until then */
    enum core_kind kind;
};
struct core_stamp core_begin(enum core_kind kind);
void core_end(struct core_stamp *stamp);
/* Measures from here to the end of the block. */
#define CORE_TIMED(kind)                                                                           \
    struct core_stamp core_stamp __attribute__((cleanup(core_end), unused)) = core_begin(kind)

#endif
