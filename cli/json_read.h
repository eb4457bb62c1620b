/* SPDX-License-Identifier: MIT */
/*
 * json_read.h - reads JSON values into a tree: results of earlier runs, which are small.
 *
 * ACCEPTS   RFC 8259, UTF-8 not checked (text is passed on as it is). Numbers become doubles: what
 *           is read here is measured or counted far below 2^53.
 * REFUSES   nesting beyond JSON_DEPTH_MAX, a key twice, anything after the value but white space.
 * OWNS      A document owns all its values and their text; they live until json_free().
 */
#ifndef MB_CLI_JSON_READ_H
#define MB_CLI_JSON_READ_H

#include <stdbool.h>
#include <stddef.h>

enum { JSON_DEPTH_MAX = 64 };

enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_TEXT, JSON_ARRAY, JSON_OBJECT };

/* Members of arrays and objects are a list in the order of the text. */
struct json_value {
    enum json_kind kind;
    bool truth;
    double number;
    const char *text;         /* TEXT, without quotes and escapes, terminated */
    const char *key;          /* of this value in its object; NULL elsewhere */
    struct json_value *first; /* ARRAY, OBJECT: NULL if empty */
    struct json_value *next;  /* of the same array or object */
};

struct json_document;

/*
 * Reads one value from text[0..size). On failure returns NULL and `error` says what and at which
 * line and column. *used (may be NULL) gets the bytes read: then more text may follow, as in files
 * of one object a line.
 */
struct json_document *json_parse(const char *text, size_t size, size_t *used, char error[160]);
void json_free(struct json_document *document);
const struct json_value *json_root(const struct json_document *document);

/* NULL if absent, or if `value` is NULL or no object. */
const struct json_value *json_get(const struct json_value *value, const char *key);
/* `otherwise` if absent or of another kind. */
double json_number(const struct json_value *value, const char *key, double otherwise);
const char *json_string(const struct json_value *value, const char *key, const char *otherwise);
bool json_truth(const struct json_value *value, const char *key, bool otherwise);

#endif
