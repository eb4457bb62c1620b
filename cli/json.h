/* SPDX-License-Identifier: MIT */
/*
 * json.h - writes JSON, member by member, to a stream.
 *
 * Why not a library: the usual small ones keep numbers as doubles, which round byte counts above
 * 2^53, and build a tree first; a report needs neither reading nor a tree. The library's own writer
 * is internal to it, and the command may use its public header only.
 *
 * Usage: open values with json_object/json_array, members by json_u64(w, "key", 1); inside an array
 * the key is NULL. Commas and quoting are the writer's business. One value on one line.
 */
#ifndef MB_CLI_JSON_H
#define MB_CLI_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Owner: the caller, on one thread. Begin with {.out = file}. */
struct json_writer {
    FILE *out;
    bool need_comma; /* a value stands before the next one */
};

void json_object(struct json_writer *w, const char *key);
void json_end_object(struct json_writer *w);
void json_array(struct json_writer *w, const char *key);
void json_end_array(struct json_writer *w);
/* Bytes that are not UTF-8 come out as U+FFFD. NULL becomes null. */
void json_text(struct json_writer *w, const char *key, const char *value);
void json_u64(struct json_writer *w, const char *key, uint64_t value);
/* Not finite becomes null, as JSON has no such number. */
void json_double(struct json_writer *w, const char *key, double value);
void json_bool(struct json_writer *w, const char *key, bool value);
/* Ends the line. */
void json_finish(struct json_writer *w);

#endif
