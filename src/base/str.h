/* SPDX-License-Identifier: MIT */
/*
 * str.h - configuration texts, "key:value,key:value", and the numbers in them.
 *
 * A table says which keys there are; parsing fills a structure, or changes nothing and says
 * precisely what is wrong where. A value may contain ':' but no ','. Blanks around items, keys and
 * values are ignored; an empty text is no items; "a:1,,b:2" is an error. Keys may be given once.
 */
#ifndef MB_BASE_STR_H
#define MB_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

enum mb_conf_type {
    MB_CONF_U64,   /* uint64_t: decimal or 0x; between min and max */
    MB_CONF_INT,   /* int: decimal; between min and max */
    MB_CONF_BYTES, /* uint64_t: number with an optional k, m, g, t (powers of 1024; "MB", "MiB" too)
                    */
    MB_CONF_BOOL,  /* bool: 0 1 no yes off on false true */
    MB_CONF_CHOICE, /* int: index into choices */
    MB_CONF_NAME,   /* const char *: the string of choices itself, static */
    MB_CONF_TEXT,   /* char[max]: any text, shorter than max */
};

struct mb_conf_key {
    const char *name;
    enum mb_conf_type type;
    size_t offset;     /* of the field in the structure to fill */
    uint64_t min, max; /* U64, INT, BYTES: inclusive, max 0 means no limit; TEXT: max is the size,
                          min the least length */
    const char *const *choices; /* CHOICE, NAME: NULL-terminated */
    const char *help;           /* one line; may be NULL */
};

/*
 * Reads `text` (NULL: as "") into `out`, a structure of out_bytes; fields of keys not given stay as
 * they are. `origin` names the text in messages: "MOONBRIGHT", "config". MB_ERR_CONFIG,
 * MB_ERR_HOST_MEMORY.
 */
enum mb_err mb__conf_parse(const char *text, const char *origin, const struct mb_conf_key *keys,
                           unsigned key_count, void *out, size_t out_bytes);

/* The whole of the `bytes` characters is one number of that type; false if not, or out of range. */
bool mb__parse_u64(const char *text, size_t bytes, uint64_t *out);
bool mb__parse_bytes(const char *text, size_t bytes, uint64_t *out);
bool mb__parse_bool(const char *text, size_t bytes, bool *out);

/* "1.50 GiB", "512 B" into `out`; returns out. */
const char *mb__format_bytes(uint64_t bytes, char *out, size_t out_bytes);

#endif
