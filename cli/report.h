/* SPDX-License-Identifier: MIT */
/* report.h - a replay's result for people and for programs. */
#ifndef MB_CLI_REPORT_H
#define MB_CLI_REPORT_H

#include "replay.h"

/* What the result alone does not say. */
struct report_context {
    const char *trace; /* the file's name */
    const char *policy;
    const char *verify; /* "off", "edges", "full" */
    bool tables;        /* were compared with the record */
    uint64_t seed;
    unsigned streams; /* of the generator; 0: as in the trace */
};

/* peak served / peak reserved, 0 to 1; 0 when nothing was held. */
double report_efficiency(uint64_t served_bytes, uint64_t reserved_bytes);
/* true where times are those of the software GPU on this host, not of a device */
bool report_is_simulated(const struct replay_result *result);
/* A table on standard output. */
void report_text(const struct report_context *context, const struct replay_result *result);
/*
 * One JSON object on one line of standard output. doc/traces.md lists its members. Of a device that
 * could not be opened it says that and why, and has no measurements.
 */
void report_json(const struct report_context *context, const struct replay_result *result);

#endif
