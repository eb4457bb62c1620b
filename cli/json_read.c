/* SPDX-License-Identifier: MIT */
#include "json_read.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 loses a document's list of blocks when a text is written into one of them. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory of a document: blocks that are only freed together. */
struct block {
    struct block *next;
    size_t used, size;
    _Alignas(8) char bytes[];
};

struct json_document {
    struct block *blocks; /* newest first */
    struct json_value root;
};

struct reader {
    struct json_document *document;
    const char *text, *at, *end;
    char *error; /* 160 bytes */
    bool failed;
};

static bool problem(struct reader *r, const char *what)
{
    unsigned line = 1, column = 1;

    if (r->failed)
        return false;
    r->failed = true;
    for (const char *p = r->text; p < r->at; p++) {
        column = *p == '\n' ? 1 : column + 1;
        line += *p == '\n';
    }
    snprintf(r->error, 160, "line %u, column %u: %s", line, column, what);
    return false;
}

static void *take(struct reader *r, size_t size)
{
    struct block *b = r->document->blocks;
    void *at;

    size = (size + 7) & ~(size_t)7;
    if (!b || b->size - b->used < size) {
        size_t room = size > 65536 ? size : 65536;

        b = malloc(sizeof(*b) + room);
        if (!b) {
            problem(r, "the host is out of memory");
            return NULL;
        }
        *b = (struct block){.next = r->document->blocks, .size = room};
        r->document->blocks = b;
    }
    at = b->bytes + b->used;
    b->used += size;
    return at;
}

static void skip_space(struct reader *r)
{
    while (r->at < r->end && strchr(" \t\r\n", *r->at) && *r->at)
        r->at++;
}

static bool word(struct reader *r, const char *text)
{
    size_t length = strlen(text);

    if ((size_t)(r->end - r->at) < length || memcmp(r->at, text, length) != 0)
        return problem(r, "expected a value");
    r->at += length;
    return true;
}

/* ------------------------------------------------------------ text */

static bool hex4(struct reader *r, unsigned *out)
{
    *out = 0;
    for (unsigned i = 0; i < 4; i++, r->at++) {
        char c = r->at < r->end ? *r->at : 0;
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                                : 16;

        if (digit > 15)
            return problem(r, "\\u needs four hexadecimal digits");
        *out = *out << 4 | digit;
    }
    return true;
}

static char *put_utf8(char *out, unsigned c)
{
    if (c < 0x80) {
        *out++ = (char)c;
    } else if (c < 0x800) {
        *out++ = (char)(0xc0 | c >> 6);
        *out++ = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        *out++ = (char)(0xe0 | c >> 12);
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    } else {
        *out++ = (char)(0xf0 | c >> 18);
        *out++ = (char)(0x80 | (c >> 12 & 0x3f));
        *out++ = (char)(0x80 | (c >> 6 & 0x3f));
        *out++ = (char)(0x80 | (c & 0x3f));
    }
    return out;
}

/* Behind «\u»; a lone surrogate and U+0000 become U+FFFD. */
static char *unicode(struct reader *r, char *out)
{
    unsigned c, low;

    if (!hex4(r, &c))
        return out;
    if (c >= 0xd800 && c < 0xdc00 && r->end - r->at >= 6 && r->at[0] == '\\' && r->at[1] == 'u') {
        r->at += 2;
        if (!hex4(r, &low))
            return out;
        c = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00)
                                          : 0xfffd;
    }
    return put_utf8(out, c == 0 || (c >= 0xd800 && c < 0xe000) ? 0xfffd : c);
}

static char *escape(struct reader *r, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at++ : 0;
    const char *found = c ? strchr(names, c) : NULL;

    if (c == 'u')
        return unicode(r, out);
    if (found)
        *out++ = values[found - names];
    else
        problem(r, "an unknown escape in a text");
    return out;
}

static const char *text(struct reader *r)
{
    const char *close;
    char *out, *start;

    if (r->at == r->end || *r->at != '"') {
        problem(r, "expected a text in quotes");
        return NULL;
    }
    r->at++;
    for (close = r->at; close < r->end && *close != '"'; close++)
        close += *close == '\\' && close + 1 < r->end;
    if (close >= r->end) {
        problem(r, "a text without its closing quote");
        return NULL;
    }
    /* An escape is never shorter than what it stands for. */
    out = start = take(r, (size_t)(close - r->at) + 4);
    while (out && !r->failed && *r->at != '"') {
        if ((unsigned char)*r->at < 0x20)
            problem(r, "a control character in a text");
        else if (*r->at == '\\')
            r->at++, out = escape(r, out);
        else
            *out++ = *r->at++;
    }
    if (!out || r->failed)
        return NULL;
    r->at++;
    *out = '\0';
    return start;
}

/* ------------------------------------------------------------ values */

static bool number(struct reader *r, double *out)
{
    char buffer[64], *end;
    size_t length = 0;

    while (r->at + length < r->end && length < sizeof(buffer) - 1 && r->at[length] &&
           strchr("+-.0123456789eE", r->at[length])) {
        buffer[length] = r->at[length];
        length++;
    }
    buffer[length] = '\0';
    if (!length || strchr("+.eE", buffer[0]))
        return problem(r, "expected a value");
    *out = strtod(buffer, &end);
    if (*end || !isfinite(*out))
        return problem(r, "not a number");
    r->at += length;
    return true;
}

static bool value(struct reader *r, struct json_value *out, unsigned depth);

static bool check_key(struct reader *r, const struct json_value *object, const char *key)
{
    for (const struct json_value *m = object->first; m; m = m->next)
        if (m->key && strcmp(m->key, key) == 0)
            return problem(r, "the same key twice");
    return true;
}

static bool member(struct reader *r, struct json_value *parent, struct json_value **tail,
                   unsigned depth)
{
    struct json_value *m = take(r, sizeof(*m));

    if (!m)
        return false;
    *m = (struct json_value){.kind = JSON_NULL};
    if (parent->kind == JSON_OBJECT) {
        m->key = text(r);
        if (!m->key || !check_key(r, parent, m->key))
            return false;
        skip_space(r);
        if (r->at == r->end || *r->at != ':')
            return problem(r, "expected a colon");
        r->at++;
    }
    if (!value(r, m, depth))
        return false;
    if (*tail)
        (*tail)->next = m;
    else
        parent->first = m;
    *tail = m;
    return true;
}

static bool members(struct reader *r, struct json_value *out, char close, unsigned depth)
{
    struct json_value *tail = NULL;

    if (depth == JSON_DEPTH_MAX)
        return problem(r, "nested too deep");
    r->at++;
    skip_space(r);
    if (r->at < r->end && *r->at == close) {
        r->at++;
        return true;
    }
    for (;;) {
        skip_space(r);
        if (!member(r, out, &tail, depth + 1))
            return false;
        skip_space(r);
        if (r->at == r->end || (*r->at != ',' && *r->at != close))
            return problem(r, "expected a comma or the end of an array or object");
        if (*r->at++ == close)
            return true;
    }
}

static bool value(struct reader *r, struct json_value *out, unsigned depth)
{
    skip_space(r);
    switch (r->at < r->end ? *r->at : 0) {
    case '{':
        out->kind = JSON_OBJECT;
        return members(r, out, '}', depth);
    case '[':
        out->kind = JSON_ARRAY;
        return members(r, out, ']', depth);
    case '"':
        out->kind = JSON_TEXT;
        out->text = text(r);
        return out->text != NULL;
    case 't':
    case 'f':
        out->kind = JSON_BOOL;
        out->truth = *r->at == 't';
        return word(r, out->truth ? "true" : "false");
    case 'n':
        return word(r, "null");
    default:
        out->kind = JSON_NUMBER;
        return number(r, &out->number);
    }
}

struct json_document *json_parse(const char *bytes, size_t size, size_t *used, char error[160])
{
    struct reader r = {.text = bytes, .at = bytes, .end = bytes + size, .error = error};

    r.document = calloc(1, sizeof(*r.document));
    if (!r.document) {
        snprintf(error, 160, "the host is out of memory");
        return NULL;
    }
    value(&r, &r.document->root, 0);
    skip_space(&r);
    if (!r.failed && !used && r.at < r.end)
        problem(&r, "something follows the value");
    if (r.failed) {
        json_free(r.document);
        return NULL;
    }
    if (used)
        *used = (size_t)(r.at - bytes);
    return r.document;
}

void json_free(struct json_document *document)
{
    while (document && document->blocks) {
        struct block *b = document->blocks;

        document->blocks = b->next;
        free(b);
    }
    free(document);
}

const struct json_value *json_root(const struct json_document *document)
{
    return &document->root;
}

const struct json_value *json_get(const struct json_value *v, const char *key)
{
    for (v = v && v->kind == JSON_OBJECT ? v->first : NULL; v; v = v->next)
        if (strcmp(v->key, key) == 0)
            return v;
    return NULL;
}

double json_number(const struct json_value *v, const char *key, double otherwise)
{
    const struct json_value *found = json_get(v, key);

    return found && found->kind == JSON_NUMBER ? found->number : otherwise;
}

const char *json_string(const struct json_value *v, const char *key, const char *otherwise)
{
    const struct json_value *found = json_get(v, key);

    return found && found->kind == JSON_TEXT ? found->text : otherwise;
}

bool json_truth(const struct json_value *v, const char *key, bool otherwise)
{
    const struct json_value *found = json_get(v, key);

    return found && found->kind == JSON_BOOL ? found->truth : otherwise;
}
