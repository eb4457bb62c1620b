/* SPDX-License-Identifier: MIT */
/* progress.h - one line that tells how far a long command is; only on a terminal. */
#ifndef MB_CLI_PROGRESS_H
#define MB_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Owner: the caller, on one thread. */
struct progress {
    bool shown; /* standard error is a terminal and not told to be quiet */
    bool dirty; /* a line stands there */
    const char *name;
    uint64_t next_ns; /* not drawn again before */
};

void progress_begin(struct progress *p, const char *name, bool quiet);
enum {
    PROGRESS_LINE_MAX = 512, /* bytes of a line, with its end */
};
/*
 * The line as drawn on a terminal of `columns`: always shorter than that, so that it stands on one
 * row. A name without room loses its beginning, where a path says least; figures are kept.
 */
void progress_line(char line[PROGRESS_LINE_MAX], const char *name, uint64_t events,
                   uint64_t live_bytes, unsigned columns);
/* Draws at most five times a second. */
void progress_update(struct progress *p, uint64_t events, uint64_t live_bytes);
/* Wipes the line. */
void progress_end(struct progress *p);

#endif
