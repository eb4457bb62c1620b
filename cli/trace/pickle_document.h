/* SPDX-License-Identifier: MIT */
/* pickle_document.h - what a pickle's values are kept in; for pickle.c alone. */
#ifndef MB_CLI_TRACE_PICKLE_DOCUMENT_H
#define MB_CLI_TRACE_PICKLE_DOCUMENT_H

#include "pickle.h"

struct pickle_text_chunk;

/* Owns every value of a pickle. */
struct pickle_document {
    struct pickle_items *owned;      /* all sequences */
    struct pickle_text_chunk *texts; /* newest first */
    uint64_t budget;                 /* bytes that may still be allocated */
    struct pickle_value root;        /* valid once reading has succeeded */
};

/* These return TRACE_BAD_INPUT when the budget does not allow it, or TRACE_HOST_MEMORY. */
enum trace_status pickle_charge(struct pickle_document *document, uint64_t bytes);
/* A new sequence with room for `room` values. */
enum trace_status pickle_items_new(struct pickle_document *document, size_t room,
                                   struct pickle_items **out);
enum trace_status pickle_items_append(struct pickle_document *document, struct pickle_items *items,
                                      const struct pickle_value *values, size_t count);
/* Room for `bytes` of text. */
enum trace_status pickle_text_new(struct pickle_document *document, size_t bytes, char **out);

#endif
