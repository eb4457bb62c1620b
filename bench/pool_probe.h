/* SPDX-License-Identifier: MIT */
/*
 * pool_probe.h - small scripted sequences of calls whose answers show the rules of the driver's
 * pool: granularity of growth, rounding, which hole serves a request, whether the physical memory
 * of a hole comes back under other addresses, what a trim gives back.
 */
#ifndef MB_BENCH_POOL_PROBE_H
#define MB_BENCH_POOL_PROBE_H

#include <stdbool.h>
#include <stdio.h>

/*
 * Every question on a pool of its own, one JSON line a question with the raw answers of all its
 * steps. False when the driver failed in a way that no question expects; what was answered before
 * is written.
 */
bool pool_probe(FILE *out);
/* One script for trying things out; see pool_probe.c for its words. */
bool pool_probe_script(FILE *out, const char *script);

#endif
