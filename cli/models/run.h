/* SPDX-License-Identifier: MIT */
/* run.h - a whole trace through one model, and its figures for people and for programs. */
#ifndef MB_CLI_MODELS_RUN_H
#define MB_CLI_MODELS_RUN_H

#include "../json.h"
#include "model.h"

/* What came of it. */
struct model_result {
    const struct model_info *info; /* of the policy */
    char spec[128];                /* with options, as typed */
    struct model_stats stats;
    struct trace_info trace;
    uint64_t host_ns;     /* the model's own work, with reading the trace */
    uint64_t limit_bytes; /* 0: the whole device */
    char problem[640];    /* why it failed; "" otherwise */
};

/* Whether `spec` names a model, whatever its options: else it may be one of MoonBright's policies.
 * */
bool model_named(const char *spec);
/*
 * Runs the reader's events, at most `max_events` (0: all), through the model `spec` and checks its
 * invariants at the end. Fills *result either way and returns an enum cli_exit. The trace's refused
 * requests are no failure: they are counted.
 */
int model_run(struct trace_reader *reader, const char *spec, uint64_t limit_bytes,
              uint64_t max_events, struct model_result *result);

/* `trace`: the file's name. */
void model_report_text(const char *trace, const struct model_result *result);
/* One JSON object on one line of standard output. */
void model_report_json(const char *trace, const struct model_result *result);
/* The members of that object that tell of memory and calls, into an open object. */
void model_json_figures(struct json_writer *w, const struct model_result *result);

#endif
