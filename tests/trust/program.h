/* SPDX-License-Identifier: MIT */
/*
 * program.h - a program of public calls that touches everything an allocator does, for tests that
 * make calls fail: each call that fails is told, and made again, and must then succeed.
 */
#ifndef MB_TESTS_TRUST_PROGRAM_H
#define MB_TESTS_TRUST_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

#include "moonbright.h"

enum { PROGRAM_BLOCKS = 10, PROGRAM_PAGES = 6 };

struct world {
    mb_device dev;
    mb_stream stream[2];
    mb_event event;
    mb_pool pool;
    mb_mem mem[2];
    void *va, *block[PROGRAM_BLOCKS];
    bool lost;        /* set by `failed`: only closing is left */
    bool failed_once; /* some call failed */
    uint64_t calls, failures;
    const char *fault; /* what is being injected, for messages */
    /* Looks closely at what a failed call left behind, and makes things work again. */
    void (*failed)(struct world *w, const char *call, enum mb_err err);
};

void program_run(struct world *w);
/* Nothing may be left, neither with the caller nor with the driver. Closes. */
void program_finish(struct world *w);

#endif
