/* SPDX-License-Identifier: MIT */
/*
 * observe.h - what libcuda asks of the kernel driver, seen from inside the process.
 *
 * libcuda's imports of ioctl and close are redirected to functions here that pass every call on
 * untouched. They remember a few names (files, handles) and tell a guard before a call that takes
 * something away, so that page tables can be put in order first. Nothing is kept of what
 * applications do.
 *
 * LOCKING   One internal mutex, never held across a call that is passed on, nor across the guard.
 * FORK      In a child everything is passed on and nothing is recorded.
 */
#ifndef MB_HW_CUDA_OBSERVE_H
#define MB_HW_CUDA_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "hw/nvrm/observe.h"
#include "moonbright.h"

enum { MB_SEEN_CHANNELS = 128, MB_SEEN_GPUS = 16 };

/* What is known about one GPU's address space in libcuda. */
struct mb_cuda_seen {
    uint8_t uuid[NVRM_UUID_BYTES];
    int uvm_fd;                                     /* libcuda's file of the UVM driver */
    int ctl_fd;                                     /* libcuda's control file, as given to UVM */
    nvrm_handle client, vaspace, device, subdevice; /* of libcuda; 0: not seen */
    unsigned channels;
    nvrm_handle channel[MB_SEEN_CHANNELS];
    bool mps;  /* registered as a client of the multi-process service */
    bool late; /* put together afterwards, not observed from the start */
};

/* One mapping of an allocation that libcuda asked for. */
struct mb_cuda_map_event {
    bool seen;
    int uvm_fd, ctl_fd;
    uint64_t base, bytes, offset; /* bytes */
    nvrm_handle client, memory;
    struct nvrm_abi_uvm_attr attr;
};

enum mb_cuda_loss_kind {
    MB_LOSS_SPACE,  /* the GPU's address space is being unregistered */
    MB_LOSS_RANGE,  /* [base, base + bytes) is being unmapped or freed; bytes 0: unknown length */
    MB_LOSS_OBJECT, /* RM object `object` of `client` is being freed */
    MB_LOSS_FILE,   /* `fd` is being closed */
};

struct mb_cuda_loss {
    enum mb_cuda_loss_kind kind;
    const uint8_t *uuid; /* SPACE; RANGE: the GPU that loses it, NULL: all that have it */
    uint64_t base, bytes;
    nvrm_handle client, object;
    int fd;
};

/* Called on libcuda's thread, inside libcuda, before the call is passed on: must not call libcuda.
 * */
typedef void (*mb_cuda_guard)(const struct mb_cuda_loss *loss);

/* Redirects libcuda's imports; libcuda must be loaded, and not yet initialised if everything is to
 * be seen. May be called again. MB_ERR_NOT_SUPPORTED for a driver series that nvrm does not know.
 * */
enum mb_err mb__cuda_observe(mb_cuda_guard guard);

/* A copy of what is known of the GPU; MB_ERR_NOT_FOUND if its registration was not seen. */
enum mb_err mb__cuda_observed(const uint8_t uuid[NVRM_UUID_BYTES], struct mb_cuda_seen *out);
/* Stores what was put together for a libcuda that was initialised before us. */
void mb__cuda_observe_late(const struct mb_cuda_seen *seen);

/* Until _end: the first mapping that libcuda makes on this thread goes to *event, and losses that
 * this thread causes are its own business, so the guard is not told. Nests: the inner one wins. */
struct mb_cuda_own_calls {
    struct mb_cuda_map_event *event, *outer_event;
    bool outer_own;
};
void mb__cuda_own_begin(struct mb_cuda_own_calls *own, struct mb_cuda_map_event *event);
void mb__cuda_own_end(struct mb_cuda_own_calls *own);

/* The decoders behind the hooks, for tests: what the hook does before and after passing a call on.
 * */
void mb__cuda_observe_before(enum nvrm_fd_kind kind, int fd, unsigned long request,
                             const void *arg);
void mb__cuda_observe_after(enum nvrm_fd_kind kind, int fd, unsigned long request, const void *arg);
/* Forgets everything and reads calls as of `series`. */
void mb__cuda_observe_reset(const struct nvrm_series *series, mb_cuda_guard guard);

#endif
