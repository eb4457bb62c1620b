/* SPDX-License-Identifier: MIT */
/*
 * audit_mapped.h - what was mapped at the end of an audit log's last session, from its records.
 *
 * Owner: the caller, on one thread. Begin with zeros.
 */
#ifndef MB_CLI_AUDIT_MAPPED_H
#define MB_CLI_AUDIT_MAPPED_H

#include <stdbool.h>
#include <stddef.h>

#include "memmap/memmap.h"
#include "moonbright.h"

/* Records that were kept; owned. */
struct audit_kept {
    struct mb_audit_record *at;
    size_t count, capacity;
};

struct audit_mapped {
    struct memmap_table places;     /* page's address -> its place in `pages` */
    struct audit_kept pages;        /* each of one page, in no order */
    struct audit_kept open;         /* changes of which nobody knows whether they were done */
    struct mb_audit_record session; /* the last one's first record */
    bool closed;                    /* it was closed: nothing is mapped */
    bool no_memory, odd;            /* odd: a record is not of whole pages */
};

enum audit_outcome { AUDIT_DONE, AUDIT_REFUSED, AUDIT_UNKNOWN };

/* The next record of the log, with what became of its batch; of no batch: done. */
void audit_mapped_take(struct audit_mapped *m, const struct mb_audit_record *record,
                       enum audit_outcome outcome);
/* What is mapped, in order of addresses; pages that one record mapped side by side are one. False:
 * the host is out of memory. */
bool audit_mapped_each(const struct audit_mapped *m, mb_audit_visit visit, void *user);
void audit_mapped_free(struct audit_mapped *m);

#endif
