/* SPDX-License-Identifier: MIT */
/* hist.c - merging and reading of histograms. */
#include "hist.h"

#include <math.h>

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

void mb__hist_record_shared(struct mb_hist *hist, uint64_t value)
{
    uint64_t max = load(&hist->max);

    __atomic_fetch_add(&hist->bin[mb__hist_bin(value)], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&hist->total, value, __ATOMIC_RELAXED);
    while (value > max && !__atomic_compare_exchange_n(&hist->max, &max, value, true,
                                                       __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

void mb__hist_merge(struct mb_hist *into, const struct mb_hist *from)
{
    uint64_t max = load(&from->max);

    for (unsigned i = 0; i < MB_HIST_BINS; i++)
        __atomic_store_n(&into->bin[i], into->bin[i] + load(&from->bin[i]), __ATOMIC_RELAXED);
    __atomic_store_n(&into->total, into->total + load(&from->total), __ATOMIC_RELAXED);
    if (max > into->max)
        __atomic_store_n(&into->max, max, __ATOMIC_RELAXED);
}

uint64_t mb__hist_count(const struct mb_hist *hist)
{
    uint64_t count = 0;

    for (unsigned i = 0; i < MB_HIST_BINS; i++)
        count += load(&hist->bin[i]);
    return count;
}

/* Rank, from 1, of the value that stands for the share q of `count` values. */
static uint64_t rank_of(double q, uint64_t count)
{
    double rank = ceil(q * (double)count);

    if (!(rank >= 1)) /* also NaN */
        return 1;
    return rank >= (double)count ? count : (uint64_t)rank;
}

/* Values for ascending shares q[0..n-1]; `count` was read before, writers may have added since. */
static void quantiles(const struct mb_hist *hist, uint64_t count, const double *q, uint64_t *out,
                      unsigned n)
{
    uint64_t max = load(&hist->max);
    uint64_t seen = 0;
    unsigned next = 0;

    for (unsigned i = 0; i < MB_HIST_BINS && next < n; i++) {
        seen += load(&hist->bin[i]);
        for (; next < n && count && seen >= rank_of(q[next], count); next++)
            out[next] = mb__hist_bin_high(i) < max ? mb__hist_bin_high(i) : max;
    }
    for (; next < n; next++)
        out[next] = count ? max : 0;
}

uint64_t mb__hist_quantile(const struct mb_hist *hist, double q)
{
    uint64_t value;

    quantiles(hist, mb__hist_count(hist), &q, &value, 1);
    return value;
}

void mb__hist_latency(const struct mb_hist *hist, struct mb_latency *out)
{
    static const double q[] = {0.5, 0.99, 0.999};
    uint64_t value[3];

    out->count = mb__hist_count(hist);
    quantiles(hist, out->count, q, value, 3);
    out->p50_ns = value[0];
    out->p99_ns = value[1];
    out->p999_ns = value[2];
    out->max_ns = load(&hist->max);
    out->total_ns = load(&hist->total);
}
