/* SPDX-License-Identifier: MIT */
/*
 * figure.h - numbers with their origin: what `bench all` collects, shows and compares.
 *
 * A figure is one number of one experiment. Nothing here has a number without a kind and an origin:
 * who measured or calculated it, on which machine, with which command.
 */
#ifndef MB_CLI_EVIDENCE_FIGURE_H
#define MB_CLI_EVIDENCE_FIGURE_H

#include <stdbool.h>
#include <stdint.h>

#include "../json.h"
#include "../json_read.h"

enum figure_kind {
    FIGURE_MEASURED,   /* on the machine that the origin names */
    FIGURE_MODELLED,   /* virtual time or decisions of a model: no evidence about hardware */
    FIGURE_PUBLISHED,  /* of the work that MoonBright follows, or of a vendor */
    FIGURE_CALCULATED, /* from other figures or by a formula, which the note tells */
    FIGURE_KINDS
};
const char *figure_kind_name(enum figure_kind kind);

/* Where figures come from. Texts are the set's; "" where unknown. */
/* Note of a figure without a value. */
#define FIGURE_TABLES_UNSEEN "the driver makes the page tables and does not tell"

struct figure_origin {
    const char *file;    /* as given to --include; "" for this run */
    const char *machine; /* "NVIDIA H200, device-inline" */
    const char *driver, *commit, *command, *time;
};

/* Texts are the set's and never NULL; times are in microseconds if unit is "us". */
struct figure {
    const char *experiment; /* "map" */
    const char *what, *how; /* operation; who did it */
    const char *metric;     /* "host", "complete", "used", "value", ... */
    const char *unit;       /* "us", "%", "GB", ... */
    const char *x_unit;     /* "bytes", "%", ...; "" if x is NaN */
    const char *note;       /* what the value is, or why there is none */
    double x;               /* size, share, ...; NaN: none */
    double value;           /* median or only value; NaN: none, and note says why */
    double p99, p999, min;  /* NaN: unknown */
    unsigned samples;
    enum figure_kind kind;
    unsigned origin; /* index */
};

struct figure_text; /* chunk of texts */

/* Owner: the caller, on one thread. Begin with zeros. */
struct figures {
    struct figure *list;
    unsigned count, capacity;
    struct figure_origin *origins;
    unsigned origin_count, origin_capacity;
    struct figure_text *texts;
    bool failed; /* the host ran out of memory: something is missing */
};

void figures_free(struct figures *set);
/* A copy that lives as long as the set; NULL becomes "". */
const char *figures_text(struct figures *set, const char *text);
/* Copies the texts; an equal one is not added again. Returns its index. */
unsigned figures_origin(struct figures *set, const struct figure_origin *origin);
/* With texts NULL, kind MEASURED, numbers NaN. */
struct figure figure_blank(void);
/* Copies the texts. */
void figures_add(struct figures *set, const struct figure *figure);
/* The first from *from on that matches; NULL matches all, and NaN any x. *from becomes the index
 * behind it. NULL: no more. */
const struct figure *figures_next(const struct figures *set, unsigned *from, const char *experiment,
                                  const char *what, const char *how, const char *metric, double x);
/* 1: larger is better; -1: smaller is; 0: neither, or nobody knows. */
int figure_direction(const struct figure *figure);

/* One JSON array, member `key`: "origins", "figures". */
void figures_json(const struct figures *set, struct json_writer *w);

/* load.c: adds the results of a file, of any form that the benches, tests and probe write. Returns
 * an enum cli_exit; `error` says what was wrong. `name` is shown for the path. */
int figures_load(struct figures *set, const char *path, const char *name, char error[256]);
/* The same of bytes. */
int figures_load_text(struct figures *set, const char *text, size_t size, const char *name,
                      char error[256]);
/* The whole file, terminated; NULL and `error` on failure. The caller frees it. */
char *figures_read_file(const char *path, size_t *size, char error[256]);

/* published.c: what is published, by experiment. */
void figures_add_published(struct figures *set);

#endif
