/* SPDX-License-Identifier: MIT */
/* text.c - lines and fields of text traces, without copies. */
#include "internal.h"

#include <stdio.h>
#include <string.h>

enum trace_status trace_line(struct trace_input *input, struct trace_text *line,
                             char problem[TRACE_LINE_MAX / 4])
{
    const uint8_t *data = NULL;
    const uint8_t *newline = NULL;
    size_t available = 0;
    size_t want = 1;

    /* Asks for more only while the line's end is not among what is already there. */
    for (;;) {
        enum trace_status status = trace_input_peek(input, want, &data, &available);

        if (status) {
            snprintf(problem, TRACE_LINE_MAX / 4, "%s", trace_input_problem(input));
            return status;
        }
        if (!available)
            return TRACE_END;
        newline = memchr(data, '\n', available);
        if (newline || available < want || available > TRACE_LINE_MAX + 1)
            break;
        want = available + 1;
    }
    line->at = (const char *)data;
    line->length = newline ? (size_t)(newline - data) : available;
    if (line->length > TRACE_LINE_MAX + 1) {
        snprintf(problem, TRACE_LINE_MAX / 4,
                 "the line is longer than %d bytes; expected a text trace with short lines",
                 TRACE_LINE_MAX);
        return TRACE_BAD_INPUT;
    }
    trace_input_take(input, line->length + (newline != NULL));
    if (line->length && line->at[line->length - 1] == '\r')
        line->length--;
    return TRACE_OK;
}

bool trace_field(struct trace_text *rest, struct trace_text *field)
{
    const char *comma;

    if (!rest->at)
        return false;
    comma = memchr(rest->at, ',', rest->length);
    field->at = rest->at;
    if (!comma) {
        field->length = rest->length;
        rest->at = NULL;
        rest->length = 0;
        return true;
    }
    field->length = (size_t)(comma - rest->at);
    rest->at = comma + 1;
    rest->length -= field->length + 1;
    return true;
}

bool trace_text_is(struct trace_text text, const char *word)
{
    return text.length == strlen(word) && !memcmp(text.at, word, text.length);
}

static int digit_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return 99;
}

bool trace_number(struct trace_text text, uint64_t *out)
{
    uint64_t value = 0;
    unsigned base = 10;
    size_t i = 0;

    if (text.length > 2 && text.at[0] == '0' && (text.at[1] == 'x' || text.at[1] == 'X')) {
        base = 16;
        i = 2;
    }
    if (i == text.length)
        return false;
    for (; i < text.length; i++) {
        unsigned digit = (unsigned)digit_of(text.at[i]);

        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    return true;
}

const char *trace_quote(struct trace_text text, char buffer[192])
{
    size_t shown = text.length < 40 ? text.length : 40;
    size_t n = 0;

    buffer[n++] = '"';
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text.at[i];

        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\')
            buffer[n++] = (char)c;
        else
            n += (size_t)snprintf(buffer + n, 5, "\\x%02x", c);
    }
    snprintf(buffer + n, 192 - n, "\"%s", shown < text.length ? "..." : "");
    return buffer;
}
