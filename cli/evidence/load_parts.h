/* SPDX-License-Identifier: MIT */
/* load_parts.h - what load.c, load_traces.c and load_samples.c share: one file's reading. For them
 * alone. */
#ifndef MB_CLI_EVIDENCE_LOAD_PARTS_H
#define MB_CLI_EVIDENCE_LOAD_PARTS_H

#include "figure.h"

struct loader {
    struct figures *set;
    const char *name;
    struct figure_origin origin; /* of the lines that follow */
    unsigned origin_index;
    bool has_origin; /* origin_index is one of the set's */
    unsigned known;  /* objects that were understood */
    char device[128], driver[64], machine[192], command[1024]; /* machine: device and tables */
    bool derived;       /* the file's note says that its traces were not recorded */
    bool pool;          /* its lines are of the vendor's own pool (bench/bench_cuda_async) */
    double suite_us[2]; /* of programs since the last summary: on the driver, on MoonBright */
    char label[48];     /* of a note: what every way of the file is called besides; "" */
};

/* "DEVICE, TABLES" becomes the machine of the lines that follow. */
void load_machine(struct loader *l, const char *device, const char *tables);
/* Machine as set, all else from the head. */
void load_origin(struct loader *l, const struct json_value *head);
/* A count that a file tells; what is none is 0. */
unsigned load_count(const struct json_value *row, const char *key);

/* load_traces.c: one replay, or a line of the vendor's pool; rows of `bench frag`. */
void load_replay(struct loader *l, const struct json_value *row);
void load_frag(struct loader *l, const struct json_value *root);
/* One run of the training study (integrations/torch/study). */
void load_study(struct loader *l, const struct json_value *row);
/* load_samples.c: a line of scripts/gpu-samples, a program or the summary; false: it is neither. */
bool load_sample(struct loader *l, const struct json_value *row);

#endif
