/* SPDX-License-Identifier: MIT */
/*
 * sides.h - every published experiment side by side: what is published, what the stock driver does,
 * what MoonBright does, how many times better that is, and where it was measured or modelled.
 */
#ifndef MB_CLI_EVIDENCE_SIDES_H
#define MB_CLI_EVIDENCE_SIDES_H

#include <stdio.h>

#include "figure.h"

enum { SIDES_MAX = 48 };

/* Figures are the set's; NULL: there is none. */
struct side {
    const char *what;
    const struct figure *published;       /* of the published system */
    const struct figure *published_stock; /* of the stock driver, as published with it */
    const struct figure *stock[2]; /* on MoonBright's machine: the usual way, and another one */
    const struct figure *ours;     /* NULL: not run anywhere whose results are here */
    double ratio;                  /* by which ours is better than stock[0]; NaN: unknown */
};

/* Rows of which nothing is known are left out. Measured figures go before modelled ones. */
unsigned sides_of(const struct figures *set, struct side out[SIDES_MAX]);
/* Member "side_by_side" of the JSON. */
void sides_json(const struct figures *set, struct json_writer *w);
/* The table on top of the page. */
void sides_html(FILE *out, const struct figures *set);

#endif
