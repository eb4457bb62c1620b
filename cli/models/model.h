/* SPDX-License-Identifier: MIT */
/*
 * model.h - other allocators' policies as models, for comparison with MoonBright on the same trace.
 *
 * A model gets the events of a trace and decides as the allocator it is named after would: which
 * cached block serves a request, what is split and merged, when the driver is asked for more and
 * what goes back. It places blocks in a made-up address space and counts; it touches no memory and
 * no device. What each model takes over and what it leaves out is in doc/models.md. Every output of
 * a model's figures must carry MODEL_MARK, so that nobody takes them for measurements.
 *
 * UNITS      Bytes. Time is the number of events seen: a trace has no clock.
 * ERRORS     MODEL_NO_MEMORY refuses one request and changes nothing but counters and what the
 *            policy itself gives up before refusing (it empties its cache, as its original does).
 *            After MODEL_HOST_MEMORY the model may only be closed.
 * THREADS    A model belongs to one thread.
 * DEPENDS    on the C library and cli/trace/trace.h alone, so that other programs can link it.
 */
#ifndef MB_CLI_MODEL_H
#define MB_CLI_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../trace/trace.h"

/* Stands beside the policy's name wherever figures of a model are shown. */
#define MODEL_MARK "«model»"

enum model_status {
    MODEL_OK = 0,
    MODEL_NO_MEMORY,   /* the request does not fit under the limit */
    MODEL_HOST_MEMORY, /* the host is out of memory */
    MODEL_BAD_OPTIONS, /* unknown policy, option or value; see the message */
};

/* One policy. Static storage. */
struct model_info {
    const char *name;    /* "torch-caching" */
    const char *summary; /* one line */
    const char *options; /* "key:value" pairs that it takes, with defaults; "" if none */
};

/*
 * Invariants, checked by model_check(): requested <= granted <= reserved, for the current figures
 * and so for the peaks; granted + free = reserved, where free is the sum over the free blocks.
 */
struct model_stats {
    uint64_t requested_bytes, requested_peak_bytes; /* as the trace asked */
    uint64_t granted_bytes, granted_peak_bytes;   /* after the policy's rounding: what PyTorch calls
                                                       allocated_bytes */
    uint64_t reserved_bytes, reserved_peak_bytes; /* held from the driver */
    uint64_t live_blocks;
    uint64_t allocs, frees;   /* requests served, blocks given back */
    uint64_t failed_requests; /* refused */
    uint64_t retries;         /* times the cache was emptied to serve a request */
    uint64_t unknown_frees;   /* frees of blocks from before the trace or of refused requests */

    /* Calls of the driver, by kind; model_driver_calls() is the sum. */
    uint64_t driver_allocs;   /* cudaMalloc, or cuMemCreate of one handle */
    uint64_t driver_frees;    /* cudaFree, cuMemRelease */
    uint64_t driver_maps;     /* cuMemMap */
    uint64_t driver_unmaps;   /* cuMemUnmap */
    uint64_t driver_access;   /* cuMemSetAccess */
    uint64_t driver_reserves; /* cuMemAddressReserve, cuMemAddressFree */
    uint64_t waits;           /* a stream or the device is waited for, by host or stream */

    uint64_t searches;     /* look-ups of a free block */
    uint64_t search_steps; /* blocks looked at by them, beyond the ordered look-up itself */
    uint64_t splits, merges;
    uint64_t stitches; /* blocks made of pages that are not neighbours */
};

struct model;

/* The policies, in the order of the tables; NULL ends the list. */
extern const struct model_info *const model_infos[];

/*
 * Makes a model from «NAME» or «NAME,key:value,key:value». `limit_bytes` bounds what it may hold
 * from the driver, 0 for the memory of the device that the traces come from, see
 * MODEL_DEVICE_BYTES. On failure *out is untouched and `error` holds what was wrong and what is
 * allowed.
 */
enum model_status model_open(const char *spec, uint64_t limit_bytes, struct model **out,
                             char *error, size_t error_size);
/* NULL is allowed. */
void model_close(struct model *model);

/* One NVIDIA H200 as its driver reports it: 143,771 MiB. */
#define MODEL_DEVICE_BYTES ((uint64_t)143771 << 20)

/*
 * One event of a trace. Segment events and refusals of the traced program are ignored. A refused
 * request returns MODEL_NO_MEMORY; its later free is ignored and counted.
 */
enum model_status model_event(struct model *model, const struct trace_event *event);

/* The same by parts; `slot` names a live block, as in trace_event. */
enum model_status model_alloc(struct model *model, uint32_t slot, uint64_t bytes, uint32_t stream);
enum model_status model_free(struct model *model, uint32_t slot, uint32_t stream);
/* `stream` uses the block too, as with record_stream() in PyTorch. */
void model_record_stream(struct model *model, uint32_t slot, uint32_t stream);
/* What `stream` does later comes after what `other` has been given so far. */
enum model_status model_wait(struct model *model, uint32_t stream, uint32_t other);
/* The program waits for the device. */
enum model_status model_sync(struct model *model);
/* The program asks for the cache to be emptied, as with empty_cache() in PyTorch. */
enum model_status model_trim(struct model *model);

const struct model_info *model_info(const struct model *model);
const struct model_stats *model_stats(const struct model *model);
uint64_t model_driver_calls(const struct model_stats *stats);

/* Where a live block lies; 0 if the slot has none. For tests. */
uint64_t model_address(const struct model *model, uint32_t slot);
/* Every invariant; false with what is broken in `problem`. Linear in the number of blocks. */
bool model_check(const struct model *model, char *problem, size_t problem_size);

/*
 * Told of memory taken from the driver (taken) or given back, in order. `stream`: for whose
 * request.
 */
typedef void (*model_observer)(void *user, bool taken, uint64_t bytes, uint32_t stream);
void model_observe(struct model *model, model_observer observer, void *user);

#endif
