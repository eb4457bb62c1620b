/* SPDX-License-Identifier: MIT */
/*
 * err.c - error names, texts and the per-thread detail.
 *
 * The detail lives in thread-local storage of fixed size, so that reporting an error never
 * allocates.
 */
#include "err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Written by mb__fail*() of this thread only. */
static _Thread_local char detail[MB__DETAIL_BYTES];

const char *mb_error_name(enum mb_err err)
{
    switch (err) {
#define MB_ERR_CASE(name, value, text)                                                             \
    case MB_##name:                                                                                \
        return "MB_" #name;
        MB_ERR_LIST(MB_ERR_CASE)
#undef MB_ERR_CASE
    }
    return "MB_ERR_UNKNOWN";
}

const char *mb_error_text(enum mb_err err)
{
    switch (err) {
#define MB_ERR_CASE(name, value, text)                                                             \
    case MB_##name:                                                                                \
        return text;
        MB_ERR_LIST(MB_ERR_CASE)
#undef MB_ERR_CASE
    }
    return "not an error code of this version";
}

const char *mb_error_detail(void)
{
    return detail;
}

void mb__detail_keep(struct mb__detail *kept)
{
    memcpy(kept->text, detail, sizeof(detail));
}

void mb__detail_put(const struct mb__detail *kept)
{
    memcpy(detail, kept->text, sizeof(detail));
}

/* Arguments may point into the old detail, so the new text is made aside. */
static void set_detail(const char *format, va_list args, const char *tail)
{
    char text[MB__DETAIL_BYTES];
    int used = vsnprintf(text, sizeof(text), format, args);

    if (used < 0) {
        text[0] = 0;
        used = 0;
    }
    if (tail && used < MB__DETAIL_BYTES - 1)
        snprintf(text + used, sizeof(text) - (size_t)used, ": %s", tail);
    memcpy(detail, text, sizeof(text));
}

enum mb_err(mb__fail)(enum mb_err err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set_detail(format, args, NULL);
    va_end(args);
    return err;
}

enum mb_err(mb__fail_in)(enum mb_err err, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    set_detail(format, args, detail);
    va_end(args);
    return err;
}
