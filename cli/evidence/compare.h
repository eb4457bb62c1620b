/* SPDX-License-Identifier: MIT */
/*
 * compare.h - two sets of figures of the same machine, figure by figure.
 *
 * NOISE   The bound of a ratio is the larger of a floor and three standard errors of the difference
 *         of the two medians. A median's standard error is taken as 1.25 s / sqrt(n), with s from
 *         the samples' spread: (p99 - min) / 4.8, which is s of normal samples. One sample, or no
 *         spread, says nothing about noise: then a wider bound holds. Figures of the model have no
 *         noise, so their bound is narrow.
 */
#ifndef MB_CLI_EVIDENCE_COMPARE_H
#define MB_CLI_EVIDENCE_COMPARE_H

#include "figure.h"

enum compare_verdict {
    COMPARE_SAME,    /* within noise */
    COMPARE_WORSE,   /* a regression outside noise */
    COMPARE_BETTER,  /* outside noise */
    COMPARE_CHANGED, /* differs, but nobody said which way is better */
    COMPARE_MISSING, /* in the old only */
    COMPARE_NEW,     /* in the new only */
    COMPARE_UNITS,   /* the units differ: nothing can be said */
    COMPARE_VERDICTS
};
const char *compare_verdict_name(enum compare_verdict verdict);

struct compare_options {
    double floor, single, model; /* relative bounds: 0.1 is 10% */
};

struct compare_row {
    const struct figure *old_figure, *new_figure; /* NULL: missing there */
    double ratio, bound;                          /* new / old; relative */
    enum compare_verdict verdict;
};

/* Both not NULL, or one. */
struct compare_row compare_figures(const struct figure *old_figure, const struct figure *new_figure,
                                   const struct compare_options *options);
/* The figure of `to` with the name, kind and, unless any will do, machine of from->list[index];
 * NULL if there is none. */
const struct figure *compare_find(const struct figures *to, const struct figures *from,
                                  unsigned index, bool any_machine);
/* NULL if the sets can be compared, else why not: the first machine or driver with figures of its
 * own that the other set has not. */
const char *compare_refusal(const struct figures *old_set, const struct figures *new_set,
                            char buffer[512]);

#endif
