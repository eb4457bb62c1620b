/* SPDX-License-Identifier: MIT */
/* config.h - the configuration keys: see doc/configuration.md. */
#ifndef MB_API_CONFIG_H
#define MB_API_CONFIG_H

#include "runtime/runtime.h"

/*
 * Defaults, then $MOONBRIGHT, then `text` (NULL: nothing). MB_ERR_CONFIG names the key and lists
 * what is known.
 */
enum mb_err mb__config_read(int ordinal, const char *text, struct mb__config *out);

#endif
