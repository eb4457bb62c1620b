/* SPDX-License-Identifier: MIT */
/* derive.h - figures that follow from others: steps of an allocation, bounds on addresses. */
#ifndef MB_CLI_EVIDENCE_DERIVE_H
#define MB_CLI_EVIDENCE_DERIVE_H

#include "figure.h"

/*
 * Robson's bound: addresses that an allocator which never moves blocks may need, at most, for
 * `live_bytes` of blocks of 1 to live_bytes/page_bytes pages, whose number is rounded up to powers
 * of two: M (log2(M) / 2 + 1) pages of M live ones.
 */
double derive_robson(double live_bytes, double page_bytes);
/* Experiment "steps": physical, page table, flush, unmap by size, from "calls" and "map". */
void derive_steps(struct figures *set);
/* Experiments "cliff" (frames from the driver, by size) and "tlb", from facts of the probe. */
void derive_facts(struct figures *set);
/* Experiment "kv": by which MoonBright's cache is better than its peers, at most, from its runs. */
void derive_serving(struct figures *set);
/* The bound for 80 GB, to be held against what is published. */
void derive_bound_of_80gb(struct figures *set, unsigned origin);
/* Both bounds for the peak of a trace. */
void derive_bounds(struct figures *set, unsigned origin, const char *trace, double peak_bytes);

#endif
