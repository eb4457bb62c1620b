/* SPDX-License-Identifier: MIT */
/*
 * pickle.h - reads Python pickles of plain data, and nothing but plain data.
 *
 * BUILDS    None, bool, int, float, str, bytes, tuple, list, dict, of protocols 0 to 5.
 * REFUSES   every opcode that names, calls or builds anything else (GLOBAL, REDUCE, BUILD, EXT,
 *           PERSID and their kin, sets, out-of-band buffers), by name and offset. So nothing of the
 *           file is ever executed or looked up.
 * MEMORY    What is built is bounded by the caller's budget; sharing by the memo stays sharing, so
 *           a small file cannot unfold. No recursion: depth costs budget only.
 * OWNS      The document owns every value; they live until pickle_free().
 */
#ifndef MB_CLI_TRACE_PICKLE_H
#define MB_CLI_TRACE_PICKLE_H

#include "internal.h"

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_BIG_INT, /* beyond 64 bits with sign; the value is not kept */
    PICKLE_FLOAT,
    PICKLE_STR,
    PICKLE_BYTES,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_DICT,
    PICKLE_KIND_COUNT
};

struct pickle_items;

struct pickle_value {
    enum pickle_kind kind;
    uint32_t length; /* STR, BYTES: bytes, not terminated */
    union {
        int64_t integer; /* BOOL, INT */
        double real;
        const char *text;
        struct pickle_items *items; /* TUPLE, LIST; DICT: keys and values in turn */
    } u;
};

/* A sequence. Owner: the document. */
struct pickle_items {
    struct pickle_items *next_owned; /* list of all of the document */
    struct pickle_value *values;
    uint32_t count;
    uint32_t capacity;
};

struct pickle_document;

/*
 * Reads one pickle up to its end and the end of the input. `memory_bytes` bounds what is built. On
 * failure *out is untouched, `problem` says what, *offset where (bytes from the start).
 */
enum trace_status pickle_read(struct trace_input *input, uint64_t memory_bytes,
                              struct pickle_document **out, uint64_t *offset, char problem[256]);
void pickle_free(struct pickle_document *document);
const struct pickle_value *pickle_root(const struct pickle_document *document);

/* The value of a text key, the last of several; NULL if absent or `dict` is no dict. */
const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key);
/* true if it is a string of just these characters */
bool pickle_is_text(const struct pickle_value *value, const char *text);
/* An integer that is not negative; false for all else, also NULL. */
bool pickle_unsigned(const struct pickle_value *value, uint64_t *out);
/* "dict"; never NULL */
const char *pickle_kind_name(enum pickle_kind kind);

#endif
