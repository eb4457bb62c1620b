/* SPDX-License-Identifier: MIT */
/*
 * run.h - what the benches of this directory share: options, device, samples, output.
 *
 * CLOCKS  Calls that change mappings are timed with the device's clock: real time on a GPU, virtual
 *         time on the software GPU, whose figures are then modelled. Calls that only touch the
 *         host's own records are timed in real time everywhere: measured, on the machine named.
 */
#ifndef MB_CLI_EVIDENCE_RUN_H
#define MB_CLI_EVIDENCE_RUN_H

#include "cli.h"
#include "config.h"
#include "figure.h"
#include "histogram.h"

#include "moonbright.h"

enum { RUN_OPTIONS_MAX = 24 };

/* Owner: one run of a bench, on one thread. */
struct bench_run {
    const struct cli_command *command;
    struct device_options device;
    unsigned ordinal;
    uint64_t seed;
    const char *commit; /* NULL: not told */
    bool as_json, quick;
    char line[1024];   /* as typed */
    char config[1024]; /* of `device`, complete */

    mb_device dev; /* NULL: none open */
    mb_stream stream;
    bool modelled; /* the device is the software GPU */
    unsigned origin;
    struct figures set;
    uint64_t random;
};

/* Parses the common options and `extra` (NULL ends it). On success or help as cli_parse(). */
int bench_run_parse(struct bench_run *run, const struct cli_command *command,
                    const struct cli_option *extra, int argc, char **argv, bool *done);

/* For `extra`: of a bench that draws, of one that can be shortened. */
#define BENCH_RUN_SEED(run)                                                                        \
    {                                                                                              \
        "--seed", CLI_U64, &(run)->seed                                                            \
    }
#define BENCH_RUN_QUICK(run)                                                                       \
    {                                                                                              \
        "--quick", CLI_FLAG, &(run)->quick                                                         \
    }
#define BENCH_RUN_SEED_HELP "  --seed N            default 1\n"
#define BENCH_RUN_QUICK_HELP "  --quick             fewer samples, for a first look\n"
#define BENCH_RUN_HELP                                                                             \
    "  --backend NAME      sim or cuda (default: as mb_open chooses)\n"                            \
    "  --config TEXT       more configuration: tables:isolated, model:a100, ...\n"                 \
    "  --device N          which GPU, from 0; the software GPU is there 8 times\n"                 \
    "  --device-memory N   size of the software GPU's memory\n"                                    \
    "  --commit TEXT       of the tree that was built, for the JSON\n"                             \
    "  --json              one JSON object instead of a table\n"

/* Opens the device with the options' configuration and `more` keys ("" or "key:value,..."), which
 * win over nothing: a key given twice is the library's error. Creates the stream. */
enum mb_err bench_run_open(struct bench_run *run, const char *more);
void bench_run_close(struct bench_run *run);
/* Prints the table or the JSON, frees the figures; returns an enum cli_exit, from `err` with the
 * library's text. */
int bench_run_end(struct bench_run *run, enum mb_err err);

/* Below `limit`, which is not 0. */
uint64_t bench_random(struct bench_run *run, uint64_t limit);
/* 0 to 1. */
double bench_uniform(struct bench_run *run);

/* A figure of this run; change what differs, then figures_add(). `modelled`: in virtual time. */
struct figure bench_figure(const struct bench_run *run, const char *experiment, const char *what,
                           const char *how, bool modelled);
/* A single number. */
void bench_add(struct bench_run *run, const char *experiment, const char *what, const char *how,
               const char *metric, const char *unit, double x, const char *x_unit, double value,
               const char *note);
/* Page-table memory as a figure: NAN on a device whose driver makes the tables, where none is seen;
 * *note says so. */
double bench_table_bytes(const struct bench_run *run, uint64_t bytes, const char **note);
/* Percentiles of times in microseconds; p99 from 100 samples on, p99.9 from 1,000 on. */
void bench_add_times(struct bench_run *run, struct figure f, const struct histogram *h);

#endif
