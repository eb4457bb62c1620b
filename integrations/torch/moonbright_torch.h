/* SPDX-License-Identifier: MIT */
/*
 * moonbright_torch.h - libmoonbright-torch.so, MoonBright as PyTorch's allocator of device memory.
 *
 * PyTorch takes the first group through torch.cuda.memory.CUDAPluggableAllocator; the Python
 * package `moonbright` hands them over. The second group is what PyTorch has no call for. Streams
 * are the vendor's, or those of mb_stream_create() on the software GPU.
 *
 * DEVICES   Device n is opened by the first call that needs it, with the configuration in
 *           $MOONBRIGHT, and stays open until the process ends.
 * ERRORS    The first group throws C++ exceptions, since PyTorch would take a NULL for memory:
 *           torch.OutOfMemoryError when memory is short and PyTorch is in the process, otherwise
 *           std::runtime_error, a RuntimeError in Python. What runs in destructors never throws but
 *           writes one line to stderr. The second group returns enum mb_err.
 * THREADS   All calls may be made from any thread.
 */
#ifndef MOONBRIGHT_TORCH_H
#define MOONBRIGHT_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "moonbright.h"

#ifdef __cplusplus
#include <functional>
#include <utility>
extern "C" {
#endif

/* ------------------------------------------------------------------ called by PyTorch */

MB_API void *mb_torch_malloc(ssize_t bytes, int device, void *stream);
/* `stream` is the one of the allocation: later work there may reuse the block at once. */
MB_API void mb_torch_free(void *ptr, ssize_t bytes, int device, void *stream);
/* Number of devices that PyTorch sees. Opens none. */
MB_API void mb_torch_init(int devices);
/* torch.cuda.empty_cache(): free frames of every open device go back to the driver. */
MB_API void mb_torch_reset(void);
/* torch.cuda.set_per_process_memory_fraction(). */
MB_API void mb_torch_memory_fraction(double fraction, int device);
/* Start and size of the block that holds ptr. */
MB_API void *mb_torch_base_alloc(void *ptr, size_t *bytes);
/* Tensor.record_stream(). */
MB_API void mb_torch_record_stream(void *ptr, void *stream);
#ifdef __cplusplus
/* Allocations on streams for which the filter is true come from the pool of that name, which is
 * made for it, until the next call. Pools belong to graphs: see MB_POOL_KEEP. */
MB_API void mb_torch_begin_allocate_to_pool(int device,
                                            std::pair<unsigned long long, unsigned long long> id,
                                            std::function<bool(void *)> filter);
MB_API void mb_torch_end_allocate_to_pool(int device,
                                          std::pair<unsigned long long, unsigned long long> id);
/* Called once for each begin; the last gives the pool's memory free. */
MB_API void mb_torch_release_pool(int device, std::pair<unsigned long long, unsigned long long> id);
#endif

/* ------------------------------------------------------------------ called by programs */

struct mb_torch_counts {
    uint64_t mallocs, frees;       /* calls by PyTorch that succeeded */
    uint64_t failures;             /* mallocs that threw */
    uint64_t bad_frees;            /* frees that MoonBright refused; each was told on stderr */
    uint64_t recorded_streams;     /* record_stream calls taken */
    uint64_t pool_mallocs;         /* of `mallocs`: from a graph's pool */
    uint64_t pools, pools_retired; /* graphs' pools in use; released, but with live blocks */
    uint64_t sleepers;             /* live blocks made under mb_torch_tag() */
};
MB_API void mb_torch_counts_get(struct mb_torch_counts *out);

/* The device that serves PyTorch's device `device`; opens it if need be. */
MB_API enum mb_err mb_torch_device(int device, mb_device *out);
/* The same without opening: MB_ERR_NOT_FOUND if it is not open. */
MB_API enum mb_err mb_torch_device_if_open(int device, mb_device *out);

/* Bytes of frames that PyTorch's blocks may take on the device; 0: no limit. Graphs' pools are not
 * counted in. */
MB_API enum mb_err mb_torch_set_limit(int device, uint64_t bytes);

/* What this thread allocates on `device` comes from `pool`; NULL: from the default one again. The
 * pool must live until then. */
MB_API enum mb_err mb_torch_use_pool(int device, mb_pool pool);

/* What this thread allocates from now on, in blocks of at least MB_TORCH_SLEEPER_BYTES, can sleep
 * under that name; NULL ends it. Such a block takes whole pages of mb_page_bytes(). */
enum { MB_TORCH_SLEEPER_BYTES = 1 << 20 };
MB_API enum mb_err mb_torch_tag(const char *tag);
/* Waits for the device; then the tag's blocks keep their addresses and lose their frames and
 * contents, until mb_torch_wake(). Blocks asleep already stay so. *bytes (may be NULL): given up.
 * MB_ERR_NOT_FOUND: no live block has that tag. */
MB_API enum mb_err mb_torch_sleep(int device, const char *tag, uint64_t *bytes);
/* On MB_ERR_NO_MEMORY some blocks may be awake already; call again once there is memory. */
MB_API enum mb_err mb_torch_wake(int device, const char *tag, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
