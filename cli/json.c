/* SPDX-License-Identifier: MIT */
#include "json.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>

/* Length of the UTF-8 sequence at s, 1 to 4, or 0 if it is none (RFC 3629). The text is
 * terminated. */
static unsigned utf8_length(const unsigned char *s)
{
    unsigned length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;

    if (s[0] > 0xf4)
        return 0;
    for (unsigned i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return length;
}

static void quoted(struct json_writer *w, const char *value)
{
    const unsigned char *s = (const unsigned char *)value;

    fputc('"', w->out);
    while (*s) {
        unsigned length = utf8_length(s);

        if (!length) {
            fputs("\\ufffd", w->out);
            length = 1;
        } else if (*s < 0x20 || *s == 0x7f) {
            fprintf(w->out, "\\u%04x", *s);
        } else if (*s == '"' || *s == '\\') {
            fprintf(w->out, "\\%c", *s);
        } else {
            fwrite(s, 1, length, w->out);
        }
        s += length;
    }
    fputc('"', w->out);
}

/* What stands before a value. */
static void lead(struct json_writer *w, const char *key)
{
    if (w->need_comma)
        fputs(", ", w->out);
    if (key) {
        quoted(w, key);
        fputs(": ", w->out);
    }
    w->need_comma = true;
}

void json_object(struct json_writer *w, const char *key)
{
    lead(w, key);
    fputc('{', w->out);
    w->need_comma = false;
}

void json_end_object(struct json_writer *w)
{
    fputc('}', w->out);
    w->need_comma = true;
}

void json_array(struct json_writer *w, const char *key)
{
    lead(w, key);
    fputc('[', w->out);
    w->need_comma = false;
}

void json_end_array(struct json_writer *w)
{
    fputc(']', w->out);
    w->need_comma = true;
}

void json_text(struct json_writer *w, const char *key, const char *value)
{
    lead(w, key);
    if (value)
        quoted(w, value);
    else
        fputs("null", w->out);
}

void json_u64(struct json_writer *w, const char *key, uint64_t value)
{
    lead(w, key);
    fprintf(w->out, "%" PRIu64, value);
}

void json_double(struct json_writer *w, const char *key, double value)
{
    lead(w, key);
    if (isfinite(value))
        fprintf(w->out, "%.9g", value);
    else
        fputs("null", w->out);
}

void json_bool(struct json_writer *w, const char *key, bool value)
{
    lead(w, key);
    fputs(value ? "true" : "false", w->out);
}

void json_finish(struct json_writer *w)
{
    fputc('\n', w->out);
    w->need_comma = false;
}
