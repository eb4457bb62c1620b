/* SPDX-License-Identifier: MIT */
/*
 * str.c - parsing of configuration texts.
 *
 * Values are stored into a copy of the caller's structure, which replaces it at the end: a text
 * with an error in its last item changes nothing.
 */
#include "str.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "err.h"

/* A piece of the text, not terminated. */
struct span {
    const char *at;
    size_t bytes;
};

/* One parse; see mb__conf_parse(). */
struct parse {
    const char *text, *origin;
    const struct mb_conf_key *keys;
    unsigned key_count;
    char *out;  /* the copy */
    char *seen; /* [key]: given already */
};

static struct span trim(struct span s)
{
    while (s.bytes && isspace((unsigned char)s.at[0])) {
        s.at++;
        s.bytes--;
    }
    while (s.bytes && isspace((unsigned char)s.at[s.bytes - 1]))
        s.bytes--;
    return s;
}

static bool span_is(struct span s, const char *text)
{
    return strlen(text) == s.bytes && memcmp(s.at, text, s.bytes) == 0;
}

/* Digits of `base` from the start; *used of them. false: none, or more than 64 bits. */
static bool leading_digits(const char *text, size_t bytes, unsigned base, uint64_t *out,
                           size_t *used)
{
    uint64_t value = 0;
    size_t i = 0;

    for (; i < bytes; i++) {
        int c = tolower((unsigned char)text[i]);
        unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                         : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                                                : 99;

        if (digit >= base)
            break;
        if (__builtin_mul_overflow(value, base, &value) ||
            __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    *used = i;
    return i > 0;
}

bool mb__parse_u64(const char *text, size_t bytes, uint64_t *out)
{
    unsigned base = 10;
    uint64_t value;
    size_t used;

    if (bytes > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
        base = 16;
        text += 2;
        bytes -= 2;
    }
    if (!leading_digits(text, bytes, base, &value, &used) || used != bytes)
        return false;
    *out = value;
    return true;
}

bool mb__parse_bytes(const char *text, size_t bytes, uint64_t *out)
{
    static const char units[] = "kmgt";
    uint64_t value;
    unsigned shift = 0;
    size_t used;

    if (mb__parse_u64(text, bytes, out))
        return true;
    if (!leading_digits(text, bytes, 10, &value, &used))
        return false;
    struct span unit = trim((struct span){text + used, bytes - used});
    const char *letter = unit.bytes ? strchr(units, tolower((unsigned char)unit.at[0])) : NULL;

    if (letter && *letter) {
        shift = 10 * (unsigned)(letter - units + 1);
        unit.at++;
        unit.bytes--;
        if (unit.bytes == 2 && tolower((unsigned char)unit.at[0]) == 'i') {
            unit.at++;
            unit.bytes--;
        }
    }
    if (unit.bytes > 1 || (unit.bytes == 1 && tolower((unsigned char)unit.at[0]) != 'b'))
        return false;
    if (value > UINT64_MAX >> shift)
        return false;
    *out = value << shift;
    return true;
}

bool mb__parse_bool(const char *text, size_t bytes, bool *out)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};

    for (unsigned i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (span_is((struct span){text, bytes}, words[i])) {
            *out = i % 2;
            return true;
        }
    }
    return false;
}

const char *mb__format_bytes(uint64_t bytes, char *out, size_t out_bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;

    while (unit < 6 && bytes >> (10 * (unit + 1)))
        unit++;
    if (unit == 0 || bytes % ((uint64_t)1 << (10 * unit)) == 0)
        snprintf(out, out_bytes, "%" PRIu64 " %s", bytes >> (10 * unit), units[unit]);
    else
        snprintf(out, out_bytes, "%.2f %s", (double)bytes / (double)((uint64_t)1 << (10 * unit)),
                 units[unit]);
    return out;
}

/* Adds a word to a list in `list` ("a, b, c"), as far as it fits. */
static void add_word(char *list, size_t size, const char *word)
{
    size_t used = strlen(list);

    snprintf(list + used, size - used, "%s%s", used ? ", " : "", word);
}

static enum mb_err bad_item(const struct parse *p, struct span item, const char *what)
{
    return mb__fail(MB_ERR_CONFIG, "%s: \"%.*s\" at character %zu: %s", p->origin, (int)item.bytes,
                    item.at, (size_t)(item.at - p->text) + 1, what);
}

static enum mb_err unknown_key(const struct parse *p, struct span key)
{
    char list[760] = "", what[800];

    for (unsigned i = 0; i < p->key_count; i++)
        add_word(list, sizeof(list), p->keys[i].name);
    snprintf(what, sizeof(what), "unknown key; known are %s", list);
    return bad_item(p, key, what);
}

/* The range or the choices of a key, for messages. */
static void describe(const struct mb_conf_key *key, char *out, size_t size)
{
    char low[32], high[32];

    switch (key->type) {
    case MB_CONF_U64:
    case MB_CONF_INT:
        snprintf(out, size, "a whole number from %" PRIu64, key->min);
        if (key->max)
            snprintf(out, size, "a whole number from %" PRIu64 " to %" PRIu64, key->min, key->max);
        break;
    case MB_CONF_BYTES:
        snprintf(out, size, "a size like 512m or 4g, at least %s",
                 mb__format_bytes(key->min, low, sizeof(low)));
        if (key->max)
            snprintf(out, size, "a size like 512m or 4g, from %s to %s",
                     mb__format_bytes(key->min, low, sizeof(low)),
                     mb__format_bytes(key->max, high, sizeof(high)));
        break;
    case MB_CONF_BOOL:
        snprintf(out, size, "0 or 1 (also no, yes, off, on, false, true)");
        break;
    case MB_CONF_CHOICE:
    case MB_CONF_NAME:
        out[0] = 0;
        for (unsigned i = 0; key->choices[i]; i++)
            add_word(out, size, key->choices[i]);
        break;
    case MB_CONF_TEXT:
        snprintf(out, size, "a text of less than %" PRIu64 " bytes%s", key->max,
                 key->min ? " and not empty; to go without, leave the key out" : "");
        break;
    }
}

static bool in_range(const struct mb_conf_key *key, uint64_t value)
{
    uint64_t max = key->max ? key->max : key->type == MB_CONF_INT ? INT32_MAX : UINT64_MAX;

    return value >= key->min && value <= max;
}

static bool store_choice(const struct mb_conf_key *key, struct span value, void *field)
{
    for (int i = 0; key->choices[i]; i++) {
        if (!span_is(value, key->choices[i]))
            continue;
        if (key->type == MB_CONF_CHOICE)
            memcpy(field, &i, sizeof(i));
        else
            memcpy(field, &key->choices[i], sizeof(key->choices[i]));
        return true;
    }
    return false;
}

/* false: the value is not one the key allows; the field is untouched. */
static bool store(const struct mb_conf_key *key, struct span value, char *field)
{
    uint64_t number;
    bool flag;
    int small;

    switch (key->type) {
    case MB_CONF_U64:
    case MB_CONF_INT:
    case MB_CONF_BYTES:
        if (!(key->type == MB_CONF_BYTES ? mb__parse_bytes : mb__parse_u64)(value.at, value.bytes,
                                                                            &number) ||
            !in_range(key, number))
            return false;
        small = (int)number;
        if (key->type == MB_CONF_INT)
            memcpy(field, &small, sizeof(small));
        else
            memcpy(field, &number, sizeof(number));
        return true;
    case MB_CONF_BOOL:
        if (!mb__parse_bool(value.at, value.bytes, &flag))
            return false;
        memcpy(field, &flag, sizeof(flag));
        return true;
    case MB_CONF_CHOICE:
    case MB_CONF_NAME:
        return store_choice(key, value, field);
    case MB_CONF_TEXT:
        if (value.bytes >= key->max || value.bytes < key->min)
            return false;
        memcpy(field, value.at, value.bytes);
        field[value.bytes] = 0;
        return true;
    }
    return false;
}

static enum mb_err parse_item(struct parse *p, struct span item)
{
    const char *colon = memchr(item.at, ':', item.bytes);
    char allowed[320], what[400];
    struct span key, value;
    unsigned i = 0;

    if (!item.bytes)
        return bad_item(p, item, "empty item; want key:value, separated by single commas");
    if (!colon)
        return bad_item(p, item, "no ':'; want key:value");
    key = trim((struct span){item.at, (size_t)(colon - item.at)});
    value = trim((struct span){colon + 1, item.bytes - (size_t)(colon + 1 - item.at)});
    while (i < p->key_count && !span_is(key, p->keys[i].name))
        i++;
    if (i == p->key_count)
        return unknown_key(p, key);
    if (p->seen[i])
        return bad_item(p, item, "the key is given twice; leave one");
    p->seen[i] = 1;
    if (store(&p->keys[i], value, p->out + p->keys[i].offset))
        return MB_OK;
    describe(&p->keys[i], allowed, sizeof(allowed));
    snprintf(what, sizeof(what), "the value of %s must be %s", p->keys[i].name, allowed);
    return bad_item(p, value, what);
}

enum mb_err mb__conf_parse(const char *text, const char *origin, const struct mb_conf_key *keys,
                           unsigned key_count, void *out, size_t out_bytes)
{
    struct parse p = {text ? text : "", origin, keys, key_count, NULL, NULL};
    const char *at = p.text;
    enum mb_err err = MB_OK;

    if (!trim((struct span){at, strlen(at)}).bytes)
        return MB_OK;
    p.out = malloc(out_bytes + key_count);
    if (!p.out)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory to read the configuration");
    p.seen = p.out + out_bytes;
    memcpy(p.out, out, out_bytes);
    memset(p.seen, 0, key_count);
    for (;;) {
        size_t bytes = strcspn(at, ",");

        err = parse_item(&p, trim((struct span){at, bytes}));
        if (err || !at[bytes])
            break;
        at += bytes + 1;
    }
    if (!err)
        memcpy(out, p.out, out_bytes);
    free(p.out);
    return err;
}
