/* SPDX-License-Identifier: MIT */
#include "histogram.h"

#include <stddef.h>

/* Times below 64 ns have a bin each; above, the top 7 bits choose. */
static size_t bin_of(uint64_t ns)
{
    unsigned shift;

    if (ns < 1u << HISTOGRAM_FRACTION_BITS)
        return (size_t)ns;
    shift = 63 - (unsigned)__builtin_clzll(ns) - HISTOGRAM_FRACTION_BITS;
    return ((size_t)shift << HISTOGRAM_FRACTION_BITS) + (size_t)(ns >> shift);
}

/* The largest time of a bin. */
static uint64_t edge_of(size_t bin)
{
    unsigned shift;
    uint64_t top;

    if (bin < 2u << HISTOGRAM_FRACTION_BITS)
        return bin;
    shift = (unsigned)(bin >> HISTOGRAM_FRACTION_BITS) - 1;
    top = bin - ((size_t)shift << HISTOGRAM_FRACTION_BITS);
    return ((top + 1) << shift) - 1;
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    h->count++;
    h->total_ns += ns;
    if (ns > h->max_ns)
        h->max_ns = ns;
    h->bins[bin_of(ns)]++;
}

uint64_t histogram_percentile(const struct histogram *h, double share)
{
    uint64_t wanted = (uint64_t)((double)h->count * share);
    uint64_t seen = 0;

    if (!h->count)
        return 0;
    if ((double)wanted < (double)h->count * share || !wanted)
        wanted++;
    for (size_t bin = 0; bin < HISTOGRAM_BINS; bin++) {
        seen += h->bins[bin];
        if (seen >= wanted)
            return edge_of(bin) < h->max_ns ? edge_of(bin) : h->max_ns;
    }
    return h->max_ns;
}
