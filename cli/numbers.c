/* SPDX-License-Identifier: MIT */
/* numbers.c - sizes, counts and times, in and out. */
#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Digits of `text` up to `end`; false if there are none or they overflow. */
static bool parse_digits(const char *text, unsigned base, const char **end, uint64_t *out)
{
    static const char digits[] = "0123456789abcdef";
    uint64_t value = 0;
    const char *at = text;

    for (; *at; at++) {
        const char *digit = strchr(digits, *at >= 'A' && *at <= 'F' ? *at - 'A' + 'a' : *at);

        if (!digit || digit - digits >= (int)base)
            break;
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, (uint64_t)(digit - digits), &value))
            return false;
    }
    *end = at;
    *out = value;
    return at != text;
}

bool cli_parse_u64(const char *text, uint64_t *out)
{
    const char *end = text;
    uint64_t value = 0;
    bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');

    if (!parse_digits(hex ? text + 2 : text, hex ? 16 : 10, &end, &value) || *end)
        return false;
    *out = value;
    return true;
}

bool cli_parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", (uint64_t)1 << 10},
        {"KiB", (uint64_t)1 << 10},
        {"M", (uint64_t)1 << 20},
        {"MiB", (uint64_t)1 << 20},
        {"G", (uint64_t)1 << 30},
        {"GiB", (uint64_t)1 << 30},
        {"T", (uint64_t)1 << 40},
        {"TiB", (uint64_t)1 << 40},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
    };
    const char *end = text;
    uint64_t value = 0;

    if (!parse_digits(text, 10, &end, &value))
        return false;
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcasecmp(end, units[i].unit) != 0)
            continue;
        if (__builtin_mul_overflow(value, units[i].bytes, &value))
            return false;
        *out = value;
        return true;
    }
    return false;
}

const char *cli_format_bytes(uint64_t bytes, char buffer[CLI_NUMBER_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    unsigned unit = 0;

    while (value >= 1024 && unit < 6) {
        value /= 1024;
        unit++;
    }
    snprintf(buffer, CLI_NUMBER_MAX, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    return buffer;
}

const char *cli_format_count(uint64_t count, char buffer[CLI_NUMBER_MAX])
{
    char plain[CLI_NUMBER_MAX];
    size_t length = (size_t)snprintf(plain, sizeof(plain), "%" PRIu64, count);
    size_t n = 0;

    for (size_t i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            buffer[n++] = ',';
        buffer[n++] = plain[i];
    }
    buffer[n] = '\0';
    return buffer;
}

const char *cli_format_ns(uint64_t ns, char buffer[CLI_NUMBER_MAX])
{
    if (ns < 1000)
        snprintf(buffer, CLI_NUMBER_MAX, "%" PRIu64 " ns", ns);
    else if (ns < 1000000)
        snprintf(buffer, CLI_NUMBER_MAX, "%.2f us", (double)ns / 1e3);
    else if (ns < 1000000000)
        snprintf(buffer, CLI_NUMBER_MAX, "%.2f ms", (double)ns / 1e6);
    else
        snprintf(buffer, CLI_NUMBER_MAX, "%.2f s", (double)ns / 1e9);
    return buffer;
}

uint64_t cli_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
