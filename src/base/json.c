/* SPDX-License-Identifier: MIT */
/*
 * json.c - every value goes through begin_value(), which decides whether it fits at this place, and
 * writes comma, line break and key. Nothing is written for a call that does not fit.
 */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"

static void note(struct mb_json *json, enum mb_err err)
{
    if (!json->err)
        json->err = err;
}

static bool make_room(struct mb_json *json, size_t bytes)
{
    size_t size = json->size ? json->size : 256;
    char *grown;

    while (size - json->used <= bytes) {
        if (size > SIZE_MAX / 2)
            return false;
        size *= 2;
    }
    if (size == json->size)
        return true;
    grown = realloc(json->buffer, size);
    if (!grown)
        return false;
    json->buffer = grown;
    json->size = size;
    return true;
}

/* After a failed write nothing more is written: the document is lost and finish says so. */
static void put(struct mb_json *json, const char *text, size_t bytes)
{
    if (json->err == MB_ERR_IO || json->err == MB_ERR_HOST_MEMORY)
        return;
    if (json->file) {
        if (fwrite(text, 1, bytes, json->file) != bytes)
            json->err = MB_ERR_IO;
        return;
    }
    if (!make_room(json, bytes)) {
        json->err = MB_ERR_HOST_MEMORY;
        return;
    }
    memcpy(json->buffer + json->used, text, bytes);
    json->used += bytes;
    json->buffer[json->used] = 0;
}

static void put_text(struct mb_json *json, const char *text)
{
    put(json, text, strlen(text));
}

static void new_line(struct mb_json *json, unsigned depth)
{
    if (!json->indent)
        return;
    put(json, "\n", 1);
    for (unsigned i = 0; i < depth * json->indent; i++)
        put(json, " ", 1);
}

/* Bytes of the valid UTF-8 sequence at `s`, 0 if there is none. A 0 byte ends every sequence. */
static size_t utf8_bytes(const unsigned char *s)
{
    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xc2 && s[0] <= 0xdf)
        return (s[1] & 0xc0) == 0x80 ? 2 : 0;
    if ((s[0] & 0xf0) == 0xe0) {
        unsigned char low = s[0] == 0xe0 ? 0xa0 : 0x80;  /* no overlong forms */
        unsigned char high = s[0] == 0xed ? 0x9f : 0xbf; /* no surrogates */

        return s[1] >= low && s[1] <= high && (s[2] & 0xc0) == 0x80 ? 3 : 0;
    }
    if (s[0] >= 0xf0 && s[0] <= 0xf4) {
        unsigned char low = s[0] == 0xf0 ? 0x90 : 0x80;
        unsigned char high = s[0] == 0xf4 ? 0x8f : 0xbf; /* up to U+10FFFF */

        if (s[1] < low || s[1] > high || (s[2] & 0xc0) != 0x80)
            return 0;
        return (s[3] & 0xc0) == 0x80 ? 4 : 0;
    }
    return 0;
}

static void put_escaped(struct mb_json *json, unsigned char c)
{
    static const char short_form[] = {['\b'] = 'b', ['\f'] = 'f', ['\n'] = 'n', ['\r'] = 'r',
                                      ['\t'] = 't', ['"'] = '"',  ['\\'] = '\\'};
    char text[8];

    if (c < sizeof(short_form) && short_form[c])
        snprintf(text, sizeof(text), "\\%c", short_form[c]);
    else
        snprintf(text, sizeof(text), "\\u%04x", c);
    put_text(json, text);
}

static void put_string(struct mb_json *json, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    put(json, "\"", 1);
    while (*s) {
        size_t n = utf8_bytes(s);

        if (n == 0) {
            put_text(json, "\xef\xbf\xbd");
            n = 1;
        } else if (*s < 0x20 || *s == '"' || *s == '\\') {
            put_escaped(json, *s);
        } else {
            put(json, (const char *)s, n);
        }
        s += n;
    }
    put(json, "\"", 1);
}

/* May a value stand here? If so, everything in front of it is written. */
static bool begin_value(struct mb_json *json, const char *key)
{
    bool in_object = json->depth > 0 && !json->array[json->depth];
    bool at_top = json->depth == 0;

    if (json->skipping)
        return false;
    if (in_object != (key != NULL) || (at_top && json->filled[0])) {
        note(json, MB_ERR_INTERNAL);
        return false;
    }
    if (json->filled[json->depth])
        put(json, ",", 1);
    json->filled[json->depth] = true;
    if (!at_top)
        new_line(json, json->depth);
    if (key) {
        put_string(json, key);
        put_text(json, json->indent ? ": " : ":");
    }
    return true;
}

static void begin_container(struct mb_json *json, const char *key, bool array)
{
    if (json->depth == MB_JSON_DEPTH)
        note(json, MB_ERR_INTERNAL);
    if (json->depth == MB_JSON_DEPTH || !begin_value(json, key)) {
        json->skipping++;
        return;
    }
    json->depth++;
    json->array[json->depth] = array;
    json->filled[json->depth] = false;
    put_text(json, array ? "[" : "{");
}

void mb__json_to_memory(struct mb_json *json, unsigned indent)
{
    memset(json, 0, sizeof(*json));
    json->indent = indent;
}

void mb__json_to_file(struct mb_json *json, FILE *file, unsigned indent)
{
    mb__json_to_memory(json, indent);
    json->file = file;
}

void mb__json_object(struct mb_json *json, const char *key)
{
    begin_container(json, key, false);
}

void mb__json_array(struct mb_json *json, const char *key)
{
    begin_container(json, key, true);
}

void mb__json_end(struct mb_json *json)
{
    unsigned depth = json->depth;

    if (json->skipping) {
        json->skipping--;
        return;
    }
    if (depth == 0) {
        note(json, MB_ERR_INTERNAL);
        return;
    }
    if (json->filled[depth])
        new_line(json, depth - 1);
    put_text(json, json->array[depth] ? "]" : "}");
    json->depth--;
}

void mb__json_string(struct mb_json *json, const char *key, const char *text)
{
    if (!text)
        mb__json_null(json, key);
    else if (begin_value(json, key))
        put_string(json, text);
}

void mb__json_u64(struct mb_json *json, const char *key, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    if (begin_value(json, key))
        put_text(json, text);
}

void mb__json_i64(struct mb_json *json, const char *key, int64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRId64, value);
    if (begin_value(json, key))
        put_text(json, text);
}

void mb__json_double(struct mb_json *json, const char *key, double value)
{
    char text[40];

    if (!isfinite(value)) {
        mb__json_null(json, key);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    /* Some locales write another decimal sign; JSON knows one. */
    text[strcspn(text, ",")] = text[strcspn(text, ",")] ? '.' : 0;
    if (begin_value(json, key))
        put_text(json, text);
}

void mb__json_bool(struct mb_json *json, const char *key, bool value)
{
    if (begin_value(json, key))
        put_text(json, value ? "true" : "false");
}

void mb__json_null(struct mb_json *json, const char *key)
{
    if (begin_value(json, key))
        put_text(json, "null");
}

enum mb_err mb__json_finish(struct mb_json *json)
{
    json->skipping = 0;
    if (json->depth)
        note(json, MB_ERR_INTERNAL);
    while (json->depth)
        mb__json_end(json);
    if (!json->filled[0]) {
        note(json, MB_ERR_INTERNAL);
        mb__json_null(json, NULL);
    }
    if (json->file) {
        put(json, "\n", 1);
        if (fflush(json->file) != 0)
            note(json, MB_ERR_IO);
    }
    switch (json->err) {
    case MB_OK:
        return MB_OK;
    case MB_ERR_IO:
        return mb__fail(MB_ERR_IO, "writing JSON failed; is the disk full or the pipe closed?");
    case MB_ERR_HOST_MEMORY:
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for %zu bytes of JSON", json->used);
    default:
        return mb__fail(json->err, "a value was written where JSON allows none; it was left out");
    }
}

char *mb__json_take(struct mb_json *json)
{
    char *text = json->err == MB_ERR_HOST_MEMORY ? NULL : json->buffer;

    if (text)
        json->buffer = NULL;
    mb__json_drop(json);
    return text;
}

void mb__json_drop(struct mb_json *json)
{
    free(json->buffer);
    json->buffer = NULL;
    json->used = json->size = 0;
}
