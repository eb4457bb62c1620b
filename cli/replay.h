/* SPDX-License-Identifier: MIT */
/* replay.h - serves a trace with MoonBright on one device and measures it. */
#ifndef MB_CLI_REPLAY_H
#define MB_CLI_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "histogram.h"
#include "moonbright.h"
#include "trace/trace.h"
#include "verify.h"

/* How allocations are made. Lives as long as the process. */
struct replay_policy {
    const char *name;
    const char *summary;
    /* Both in the order of `stream`; same contract as the calls of moonbright.h. */
    enum mb_err (*malloc)(mb_device dev, uint64_t bytes, mb_stream stream, void **out);
    enum mb_err (*free)(mb_device dev, void *ptr, mb_stream stream);
};

extern const struct replay_policy replay_policies[];
extern const unsigned replay_policy_count;

enum replay_tables { TABLES_OFF, TABLES_LOOK, TABLES_REPAIR };

struct replay_options {
    const struct replay_policy *policy;
    const char *config; /* for mb_open(), complete; NULL takes the environment's */
    unsigned device;    /* ordinal for mb_open() */
    enum verify_mode verify;
    enum replay_tables tables; /* compare the device's page tables with the library's record */
    uint64_t seed;
    uint64_t limit_bytes; /* of the default pool; 0: none */
    uint64_t max_events;  /* stop after as many; 0: all */
    bool quiet;           /* no progress, no notes */
};

/* What came out. Units are in the names; stats are the library's at the end of the trace. */
struct replay_result {
    char backend[16]; /* "": the device could not be opened, and nothing below was measured */
    char tables[24];
    char device_name[96];
    struct trace_info trace;
    uint64_t events;          /* handled, also those that the stream generator added */
    uint64_t mallocs, frees;  /* calls made */
    uint64_t failed_requests; /* refused for want of memory */
    uint64_t failed_bytes;
    /* live now, and most at any moment, without what was refused: what efficiency is made of */
    uint64_t served_bytes, served_peak_bytes;
    uint64_t uses, waits, record_streams; /* of the stream generator, and waits that cross-stream
                                             frees needed */
    uint64_t wall_ns;                     /* from the first event to the last work's end */
    struct histogram malloc_times, free_times;
    struct mb_stats stats;
    struct mb_tables_report entries; /* with blocks that live at the end, and without; summed */
    uint64_t writes, reads, bytes_read, blocks_unchecked; /* of the verifier */
    bool wrong;           /* something that must not be: see problem */
    char problem[640];    /* first thing that went wrong; "" if nothing */
    enum mb_err error;    /* what ended the replay early; MB_OK if nothing did */
    bool bad_input;       /* the trace is at fault: problem is its message */
    uint64_t wrong_after; /* lines (or events) between which the first wrong word was noticed */
    uint64_t wrong_before;
};

/* false: there is no such policy */
bool replay_policy_by_name(const char *name, const struct replay_policy **out);
/*
 * Replays until the end of the trace or the first error that cannot be passed over, fills *result
 * either way. Returns an enum cli_exit. `name` is for the progress.
 */
int replay_run(struct trace_reader *reader, const char *name, const struct replay_options *options,
               struct replay_result *result);

#endif
