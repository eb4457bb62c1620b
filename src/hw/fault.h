/* SPDX-License-Identifier: MIT */
/*
 * fault.h - a device in front of another that fails on demand, for tests.
 *
 * mb__hw_fault_wrap() gives a device whose functions pass everything on to the inner one, except
 * that a chosen use fails, before the inner device hears of it: so a failed call has changed
 * nothing below, and the caller above has to show that nothing changed there either. A test counts
 * a program's uses once, then runs it again for every n with the n-th use failing.
 *
 * Only compiled with MB_FAULT_INJECTION.
 */
#ifndef MB_HW_FAULT_H
#define MB_HW_FAULT_H

#include "hw/hw.h"

#ifdef MB_FAULT_INJECTION

/* Functions of the table that can fail. */
#define MB_HW_FAULT_LIST(X)                                                                        \
    X(va_reserve)                                                                                  \
    X(va_release)                                                                                  \
    X(slab_acquire)                                                                                \
    X(slab_release)                                                                                \
    X(table_alloc)                                                                                 \
    X(tree_adopt)                                                                                  \
    X(submit)                                                                                      \
    X(submit_fence)                                                                                \
    X(stream_create)                                                                               \
    X(stream_destroy)                                                                              \
    X(stream_open)                                                                                 \
    X(fence_record)                                                                                \
    X(fence_wait_stream)                                                                           \
    X(fence_wait_host)                                                                             \
    X(device_sync)                                                                                 \
    X(fill)                                                                                        \
    X(verify)                                                                                      \
    X(copy)                                                                                        \
    X(copy_list)                                                                                   \
    X(read_slots)                                                                                  \
    X(scrub_slots)                                                                                 \
    X(peer_access)

enum mb_hw_fault_op {
#define MB_HW_FAULT_ENUM(name) MB_HW_FAULT_##name,
    MB_HW_FAULT_LIST(MB_HW_FAULT_ENUM)
#undef MB_HW_FAULT_ENUM
        MB_HW_FAULT_OPS,
    MB_HW_FAULT_ANY = MB_HW_FAULT_OPS, /* every function of the list counts together */
};

/* Takes `inner` over: closing *out closes it. Streams and fences are the inner device's own. */
enum mb_err mb__hw_fault_wrap(struct mb_hw_dev *inner, struct mb_hw_dev **out);
struct mb_hw_dev *mb__hw_fault_inner(struct mb_hw_dev *dev);
/* The n-th use from now on (1: the next) of `op` returns `err`; with `lasting` all later ones too.
 * n 0: none. Resets the count of `op`. Thread-safe. */
void mb__hw_fault_set(struct mb_hw_dev *dev, enum mb_hw_fault_op op, uint64_t n, enum mb_err err,
                      bool lasting);
/* The same for a device that is not open yet: the plan that the next mb__hw_fault_wrap() of the
 * calling thread starts with, once. */
void mb__hw_fault_next(enum mb_hw_fault_op op, uint64_t n, enum mb_err err, bool lasting);
/* Devices that the calling thread wraps from now on have a submit_fence even if the inner one has
 * none, as the software GPU: the cuda backend's way to submit. */
void mb__hw_fault_submit_fence(bool on);
/* Uses of `op` since open or the last set; failed ones included. */
uint64_t mb__hw_fault_uses(struct mb_hw_dev *dev, enum mb_hw_fault_op op);
/* Uses that were made to fail, of all functions, since open. */
uint64_t mb__hw_fault_hits(struct mb_hw_dev *dev);
const char *mb__hw_fault_name(enum mb_hw_fault_op op);

#endif
#endif
