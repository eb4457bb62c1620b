/* SPDX-License-Identifier: MIT */
/*
 * log.h - lines on stderr for people: never from hot paths.
 *
 * $MOONBRIGHT_LOG is one of off, error, warn (the default), info, debug; read at the first use.
 * One line is one write(2), so lines of several threads and processes do not mix. Thread-safe.
 */
#ifndef MB_BASE_LOG_H
#define MB_BASE_LOG_H

#include <stdbool.h>

enum mb_log_level {
    MB_LOG_OFF,
    MB_LOG_ERROR, /* something was lost or is broken */
    MB_LOG_WARN,  /* it works, but not as asked for */
    MB_LOG_INFO,  /* what was chosen, and why */
    MB_LOG_DEBUG, /* each step */
};

/* Would a line of this level be printed? */
bool mb__log_on(enum mb_log_level level);
/* Overrides the environment: for tests and the configuration. */
void mb__log_set(enum mb_log_level level);
/* Prints "moonbright: <level>: <module>: text"; cut at 1 KiB; the newline is added. */
__attribute__((format(printf, 3, 4))) void mb__log(enum mb_log_level level, const char *module,
                                                   const char *format, ...);

#endif
