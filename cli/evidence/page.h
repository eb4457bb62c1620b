/* SPDX-License-Identifier: MIT */
/* page.h - one self-contained HTML page: head, style, sections, tables; no script, no network. */
#ifndef MB_CLI_EVIDENCE_PAGE_H
#define MB_CLI_EVIDENCE_PAGE_H

#include <stdio.h>

#include "figure.h"

/* `more_style` is added to the style sheet; may be "". */
void page_begin(FILE *out, const char *title, const char *more_style);
void page_end(FILE *out);
/* A small label that says what kind of number stands beside it. */
void page_badge(FILE *out, enum figure_kind kind);

/* report_page.c: the page of `bench all`. */
struct report_head {
    const char *command, *commit, *version, *time;
    unsigned failed; /* benches that did not run, told on the page */
};
void report_write(FILE *out, const struct figures *set, const struct report_head *head);

#endif
