/* SPDX-License-Identifier: MIT */
/*
 * journal.h - an append-only file of records that outlives its writer.
 *
 * FORMAT    Records of MB_JOURNAL_BYTES, in the machine's byte order, each with a magic number, a
 *           checksum of the rest, and a sequence number that counts from 1 in each session. A
 *           session starts with a record of kind MB_AUDIT_SESSION. doc/audit.md has the layout.
 * CRASH     Every flush is one write of whole records to a file opened for appending. A writer
 *           killed at any moment leaves whole records, maybe not all of its last write; a machine
 *           that stops may leave a torn tail, which readers report and the next writer cuts off.
 * LOCKING   The caller's; the file itself is locked against a second writer (flock).
 */
#ifndef MB_BASE_JOURNAL_H
#define MB_BASE_JOURNAL_H

#include "moonbright.h"

enum { MB_JOURNAL_BYTES = 128 };

struct mb__journal;

/* Opens or creates `path`, cuts off a torn tail, writes the session record. MB_ERR_IO, MB_ERR_BUSY
 * (another writer has it), MB_ERR_CORRUPT (not a journal), MB_ERR_HOST_MEMORY. */
enum mb_err mb__journal_open(const char *path, const char *device, struct mb__journal **out);
/* Flushes what it can. NULL is allowed. In a fork of the opening process: frees the memory only. */
void mb__journal_close(struct mb__journal *journal);
/* Takes sequence, time, process and call from here and from the calling thread. A record that goes
 * on where the one before it ended, with another frame, joins a list behind it. What cannot be
 * buffered makes every later flush fail, so nothing is lost in silence. */
void mb__journal_add(struct mb__journal *journal, struct mb_audit_record record);
/* MB_ERR_IO with the reason: the records stay buffered and the next flush tries again. */
enum mb_err mb__journal_flush(struct mb__journal *journal);
/* Before records that may have to be forgotten, and: forgets what was added since then and not
 * flushed, also what there was no room for. */
struct mb__journal_mark {
    size_t count;            /* records in the buffer */
    uint64_t sequence, lost; /* as in the journal */
};
struct mb__journal_mark mb__journal_mark(struct mb__journal *journal);
void mb__journal_rewind(struct mb__journal *journal, const struct mb__journal_mark *mark);

enum mb_err mb__journal_read(const char *path, mb_audit_visit visit, void *user,
                             struct mb_audit_summary *out);

/* What the calling thread's records will say of who made them. `call` is static. */
void mb__caller_set(const char *call, const void *stream);

#endif
