/* SPDX-License-Identifier: MIT */
/*
 * json.h - a streaming JSON writer (RFC 8259), to a file or into memory.
 *
 *     struct mb_json json;
 *     mb__json_to_file(&json, stdout, 0);
 *     mb__json_object(&json, NULL);
 *     mb__json_u64(&json, "frames", n);
 *     mb__json_end(&json);
 *     err = mb__json_finish(&json);
 *
 * What has been written when mb__json_finish() returns is one valid document whatever was called: a
 * call that does not fit (a missing or superfluous key, a second value at the top, an unopened end)
 * is left out and remembered as the error; open containers are closed. Text that is not UTF-8 gets
 * U+FFFD in place of the bad bytes; NaN and infinities become null. LOCKING: the caller's.
 */
#ifndef MB_BASE_JSON_H
#define MB_BASE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "moonbright.h"

enum {
    MB_JSON_DEPTH = 32, /* containers within containers */
};

struct mb_json {
    FILE *file;        /* NULL: text goes to buffer; not owned */
    char *buffer;      /* owned until mb__json_take() */
    size_t used, size; /* bytes in buffer, without the closing 0 */
    unsigned indent;   /* spaces per level; 0: everything on one line */
    unsigned depth;    /* open containers */
    unsigned skipping; /* containers opened by left-out calls, so that their ends match */
    bool array[MB_JSON_DEPTH + 1];  /* [d]: container d is an array; [0]: the top */
    bool filled[MB_JSON_DEPTH + 1]; /* [d]: it has a member already */
    enum mb_err err;                /* first error */
};

void mb__json_to_file(struct mb_json *json, FILE *file, unsigned indent);
void mb__json_to_memory(struct mb_json *json, unsigned indent);
/* Closes what is open, ends the line of a file. MB_ERR_IO, MB_ERR_HOST_MEMORY, MB_ERR_INTERNAL (a
 * call was left out). Call it exactly once; frees nothing. */
enum mb_err mb__json_finish(struct mb_json *json);
/* The text, to be freed by the caller with free(); NULL if there was no memory. After finish. */
char *mb__json_take(struct mb_json *json);
/* Drops a memory writer's text. */
void mb__json_drop(struct mb_json *json);

/* `key` is NULL in arrays and at the top, and only there. */
void mb__json_object(struct mb_json *json, const char *key);
void mb__json_array(struct mb_json *json, const char *key);
void mb__json_end(struct mb_json *json);
/* text NULL: null. */
void mb__json_string(struct mb_json *json, const char *key, const char *text);
void mb__json_u64(struct mb_json *json, const char *key, uint64_t value);
void mb__json_i64(struct mb_json *json, const char *key, int64_t value);
/* Shortest of 15, 16 or 17 digits that reads back the same. */
void mb__json_double(struct mb_json *json, const char *key, double value);
void mb__json_bool(struct mb_json *json, const char *key, bool value);
void mb__json_null(struct mb_json *json, const char *key);

#endif
