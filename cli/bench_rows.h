/* SPDX-License-Identifier: MIT */
/* bench_rows.h - the lines of a bench, as a table for people or one JSON object for programs. */
#ifndef MB_CLI_BENCH_ROWS_H
#define MB_CLI_BENCH_ROWS_H

#include "cli.h"
#include "json.h"

#include "moonbright.h"

/* Owner: one run of a bench. Fill command, commit and as_json, then call rows_begin(). */
struct rows {
    const char *command;
    const char *commit; /* NULL: not told */
    bool as_json;
    bool modelled; /* some row was */
    unsigned count;
    struct json_writer json;
};

/* What was typed, for the record. */
void rows_command_line(int argc, char **argv, char *buffer, size_t size);
/* Head: device, driver, time, command. */
void rows_begin(struct rows *rows, unsigned device, const char *config, const char *command_line,
                uint64_t seed);
void rows_add(struct rows *rows, const struct mb_bench_row *row);
void rows_end(struct rows *rows);

/* Sorts; `count` is not 0. */
struct mb_spread rows_spread(double *us, unsigned count);

/* bench_api.c: the same operations through the public interface. */
enum mb_err bench_api(unsigned device, const char *config, const struct mb_bench_options *options,
                      mb_bench_callback callback, void *user);

#endif
