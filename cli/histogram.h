/* SPDX-License-Identifier: MIT */
/*
 * histogram.h - times in bins of at most 1.6% relative width, for percentiles without keeping them
 * all.
 *
 * The library has one of its own, but inside; this one also times calls that it does not.
 */
#ifndef MB_CLI_HISTOGRAM_H
#define MB_CLI_HISTOGRAM_H

#include <stdint.h>

enum {
    HISTOGRAM_FRACTION_BITS = 6, /* 64 bins in each factor of two */
    HISTOGRAM_BINS = (64 - HISTOGRAM_FRACTION_BITS + 1) << HISTOGRAM_FRACTION_BITS,
};

/* Owner: the caller, on one thread. Begin with zeros. */
struct histogram {
    uint64_t count;
    uint64_t total_ns;
    uint64_t max_ns;
    uint64_t bins[HISTOGRAM_BINS];
};

void histogram_add(struct histogram *h, uint64_t ns);
/* The smallest bin edge that at least `share` (0..1) of the times do not pass; 0 if there are
 * none. */
uint64_t histogram_percentile(const struct histogram *h, double share);

#endif
