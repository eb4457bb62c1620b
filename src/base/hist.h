/* SPDX-License-Identifier: MIT */
/*
 * hist.h - a log-linear histogram of 64-bit values, meant for latencies in nanoseconds.
 *
 * Values below 64 have a bin each; above, every power of two is cut into 64 bins, so a bin is at
 * most 1/64 = 1.6% wide relative to its values. Range: all of uint64_t. Size: 30 KiB.
 *
 * count = sum of bins. LOCKING: one writer at a time with mb__hist_record() (the caller's lock), or
 * any number with mb__hist_record_shared(); not both on one histogram. Readers need no lock; what
 * they read while a writer runs may miss its newest values.
 */
#ifndef MB_BASE_HIST_H
#define MB_BASE_HIST_H

#include <stdint.h>

#include "moonbright.h"

enum {
    MB_HIST_SUB_BITS = 6,
    MB_HIST_SUB = 1 << MB_HIST_SUB_BITS, /* bins per power of two */
    MB_HIST_BINS = MB_HIST_SUB * (64 - MB_HIST_SUB_BITS + 1),
};

/* Zero-initialised is empty. Fields are accessed by relaxed atomics. */
struct mb_hist {
    uint64_t bin[MB_HIST_BINS]; /* number of values */
    uint64_t total;             /* sum of values; wraps */
    uint64_t max;               /* largest value */
};

static inline unsigned mb__hist_bin(uint64_t value)
{
    unsigned shift;

    if (value < MB_HIST_SUB)
        return (unsigned)value;
    shift = 63u - (unsigned)__builtin_clzll(value) - MB_HIST_SUB_BITS;
    return (shift + 1) * MB_HIST_SUB + (unsigned)(value >> shift & (MB_HIST_SUB - 1));
}

/* Smallest and largest value of a bin. */
static inline uint64_t mb__hist_bin_low(unsigned bin)
{
    unsigned octave = bin / MB_HIST_SUB;

    if (octave == 0)
        return bin;
    return (uint64_t)(MB_HIST_SUB + bin % MB_HIST_SUB) << (octave - 1);
}
static inline uint64_t mb__hist_bin_high(unsigned bin)
{
    unsigned octave = bin / MB_HIST_SUB;

    return mb__hist_bin_low(bin) + (octave == 0 ? 0 : ((uint64_t)1 << (octave - 1)) - 1);
}

/* Adds one value; the caller's lock keeps other writers out. */
static inline void mb__hist_record(struct mb_hist *hist, uint64_t value)
{
    uint64_t *bin = &hist->bin[mb__hist_bin(value)];

    /* Load and store, no read-modify-write: it is cheap, and readers still see whole words. */
    __atomic_store_n(bin, *bin + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&hist->total, hist->total + value, __ATOMIC_RELAXED);
    if (value > hist->max)
        __atomic_store_n(&hist->max, value, __ATOMIC_RELAXED);
}

/* Adds one value; any number of threads at once. */
void mb__hist_record_shared(struct mb_hist *hist, uint64_t value);
/* Adds all of `from`; the caller keeps writers off `into`. */
void mb__hist_merge(struct mb_hist *into, const struct mb_hist *from);
uint64_t mb__hist_count(const struct mb_hist *hist);
/*
 * The value that at least the share `q` (0..1) of the values do not exceed: the top of its bin, or
 * the maximum if that is less. 0 when empty.
 */
uint64_t mb__hist_quantile(const struct mb_hist *hist, double q);
/* All figures of the public structure in one pass. */
void mb__hist_latency(const struct mb_hist *hist, struct mb_latency *out);

#endif
