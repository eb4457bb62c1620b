/* SPDX-License-Identifier: MIT */
/*
 * Statistics under the names that PyTorch's memory_stats() uses, where they mean the same, and
 * under names of our own below "moonbright." where there is no such name.
 *
 * Locking: the device's lock.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "runtime/runtime.h"

/* Counts all, stores what fits. */
struct writer {
    char *out;
    size_t capacity, needed;
    bool json, any;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...)
{
    bool fits = w->needed < w->capacity;
    va_list args;
    int count;

    va_start(args, format);
    count = vsnprintf(fits ? w->out + w->needed : NULL, fits ? w->capacity - w->needed : 0, format,
                      args);
    va_end(args);
    w->needed += count > 0 ? (size_t)count : 0;
}

static void pair(struct writer *w, const char *key, const char *what, uint64_t value)
{
    const char *dot = *what ? "." : "";

    if (w->json)
        put(w, "%s\"%s%s%s\": %" PRIu64, w->any ? ",\n  " : "  ", key, dot, what, value);
    else
        put(w, "%s%s%s %" PRIu64 "\n", key, dot, what, value);
    w->any = true;
}

/* total: since open; freed is what of it is not there any more. */
static void level(struct writer *w, const char *key, uint64_t current, uint64_t peak)
{
    pair(w, key, "current", current);
    pair(w, key, "peak", peak);
}

static void flow(struct writer *w, const char *key, uint64_t total, uint64_t current)
{
    pair(w, key, "allocated", total);
    pair(w, key, "freed", total - current);
}

static void put_torch(struct writer *w, struct mb_device *dev, const struct mb_stats *stats)
{
    const struct mb__counters *counters = &dev->counters;
    struct mb__flow bytes = mb__bytes_since_open(dev);

    level(w, "requested_bytes.all", stats->requested_bytes, stats->requested_peak_bytes);
    level(w, "allocated_bytes.all", stats->allocated_bytes, stats->allocated_peak_bytes);
    flow(w, "allocated_bytes.all", bytes.total, bytes.live);
    level(w, "reserved_bytes.all", stats->reserved_bytes, stats->reserved_peak_bytes);
    pair(w, "allocation.all", "current", stats->live_blocks);
    flow(w, "allocation.all", stats->malloc_calls, stats->malloc_calls - stats->free_calls);
    pair(w, "num_alloc_retries", "", counters->retries);
    pair(w, "num_ooms", "", stats->failed_requests);
    pair(w, "num_device_alloc", "", stats->grows);
    pair(w, "num_device_free", "", stats->trims);
    pair(w, "num_sync_all_streams", "", counters->host_waits);
}

static void put_own(struct writer *w, const struct mb_device *dev, const struct mb_stats *stats)
{
    level(w, "moonbright.frames_used_bytes", stats->frames_used_bytes,
          stats->frames_used_peak_bytes);
    pair(w, "moonbright.overhead_bytes", "current", stats->overhead_bytes);
    pair(w, "moonbright.table_bytes", "current", stats->table_bytes);
    pair(w, "moonbright.stitched_blocks", "current", stats->stitched_blocks);
    pair(w, "moonbright.stitches", "", stats->stitches);
    pair(w, "moonbright.stream_waits", "", dev->counters.waits);
    pair(w, "moonbright.map_batches", "", stats->map_batches);
    pair(w, "moonbright.entries_written", "", stats->entries_written);
    pair(w, "moonbright.invalidates", "", stats->invalidates);
    pair(w, "moonbright.va_handed_out_bytes", "", stats->va_handed_out_bytes);
    pair(w, "moonbright.quarantined_bytes", "current", stats->quarantined_bytes);
}

static void put_all(struct writer *w, struct mb_device *dev, const struct mb_stats *stats)
{
    if (w->json)
        put(w, "{\n");
    put_torch(w, dev, stats);
    put_own(w, dev, stats);
    if (w->json)
        put(w, "\n}\n");
    w->needed++; /* the terminating 0 */
}

enum mb_err mb__stats_text(struct mb_device *dev, enum mb_stats_format format, char *out,
                           size_t capacity, size_t *needed)
{
    struct writer count = {.json = format == MB_STATS_JSON}, w = count;
    struct mb_stats stats;
    enum mb_err err;

    if (format != MB_STATS_TEXT && format != MB_STATS_JSON)
        return mb__fail(MB_ERR_INVALID,
                        "mb_stats_text: %d is no format; use MB_STATS_TEXT or "
                        "MB_STATS_JSON",
                        (int)format);
    err = mb__stats_get(dev, &stats);
    if (err)
        return err;
    put_all(&count, dev, &stats);
    if (capacity && capacity < count.needed)
        return mb__fail(MB_ERR_INVALID,
                        "mb_stats_text: %zu bytes are needed, %zu were given; give more, or 0 to "
                        "ask how many",
                        count.needed, capacity);
    if (capacity) {
        w.out = out;
        w.capacity = capacity;
        put_all(&w, dev, &stats);
    }
    if (needed)
        *needed = count.needed;
    return MB_OK;
}
