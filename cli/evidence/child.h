/* SPDX-License-Identifier: MIT */
/* child.h - runs this command again, in a process of its own, and takes what it writes. */
#ifndef MB_CLI_EVIDENCE_CHILD_H
#define MB_CLI_EVIDENCE_CHILD_H

#include <stddef.h>

struct child_result {
    char *out; /* standard output, terminated; the caller frees it */
    size_t size;
    int status;        /* exit status; -1: ended by a signal, or not started */
    char problem[256]; /* last line of its standard error, or why it did not end; "" if none */
};

/* `words` ends with NULL and does not hold the program. Ends the child after `limit_s` seconds. */
void child_run(const char *const *words, unsigned limit_s, struct child_result *result);

#endif
