/* SPDX-License-Identifier: MIT */
/* clock.h - the host's monotonic time. */
#ifndef MB_BASE_CLOCK_H
#define MB_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Nanoseconds since some fixed point; never goes back. */
static inline uint64_t mb__now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif
