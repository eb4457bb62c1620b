/* SPDX-License-Identifier: MIT */
/*
 * stress.h - many threads on many streams, and every byte of every block read back.
 *
 * Uses the public interface alone, so that scripts/gpu-test can compile it with -DSTRESS_MAIN
 * against the library on a GPU machine; tests run it on the software GPU.
 */
#ifndef MB_TESTS_TRUST_STRESS_H
#define MB_TESTS_TRUST_STRESS_H

#include <stdint.h>

enum { STRESS_THREADS = 16, STRESS_STREAMS = 8 };

struct stress_plan {
    const char *config; /* of mb_open() */
    uint64_t seed;
    uint64_t seconds; /* 0: `rounds` of each thread instead */
    uint64_t rounds;
    uint64_t most_bytes; /* of one block */
};

struct stress_sum {
    uint64_t blocks, bytes; /* allocated, filled, verified and freed */
    uint64_t refused;       /* requests that found no memory */
    uint64_t maps;          /* windows mapped, aliased, read through the alias and unmapped */
};

/* 0, or 1 after a line on stderr that says what was wrong. */
int stress_run(const struct stress_plan *plan, struct stress_sum *sum);

#endif
