/* SPDX-License-Identifier: MIT */
/*
 * log.c - one line, one write.
 *
 * Locking: none. The level is an atomic; two threads that read the environment at once find the
 * same.
 */
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_BYTES = 1024,
    LEVEL_UNREAD = -1,
};

static const char *const level_names[] = {"off", "error", "warn", "info", "debug"};
enum { LEVEL_COUNT = sizeof(level_names) / sizeof(level_names[0]) };

static atomic_int current_level = LEVEL_UNREAD; /* enum mb_log_level */

static void put_line(char *line, size_t used)
{
    int saved = errno;
    size_t done = 0;

    line[used++] = '\n';
    while (done < used) {
        ssize_t n = write(STDERR_FILENO, line + done, used - done);

        if (n <= 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    errno = saved;
}

static int level_of_env(void)
{
    const char *text = getenv("MOONBRIGHT_LOG");
    char line[LINE_BYTES];
    int used;

    if (!text || !*text)
        return MB_LOG_WARN;
    for (int i = 0; i < LEVEL_COUNT; i++)
        if (strcmp(text, level_names[i]) == 0)
            return i;
    used = snprintf(
        line, sizeof(line),
        "moonbright: warn: log: MOONBRIGHT_LOG=%.80s: want off, error, warn, info or debug; "
        "taking warn",
        text);
    if (used > 0)
        put_line(line, (size_t)used);
    return MB_LOG_WARN;
}

bool mb__log_on(enum mb_log_level level)
{
    int now = atomic_load_explicit(&current_level, memory_order_relaxed);

    if (now == LEVEL_UNREAD) {
        int unread = LEVEL_UNREAD;

        now = level_of_env();
        /* A level that mb__log_set() stored meanwhile stands. */
        if (!atomic_compare_exchange_strong(&current_level, &unread, now))
            now = unread;
    }
    return level != MB_LOG_OFF && (int)level <= now;
}

void mb__log_set(enum mb_log_level level)
{
    atomic_store(&current_level, (int)level);
}

void mb__log(enum mb_log_level level, const char *module, const char *format, ...)
{
    char line[LINE_BYTES + 1];
    va_list args;
    int head, text;
    size_t used;

    if (!mb__log_on(level))
        return;
    head = snprintf(line, LINE_BYTES, "moonbright: %s: %.40s: ", level_names[level], module);
    if (head < 0)
        return;
    va_start(args, format);
    text = vsnprintf(line + head, (size_t)(LINE_BYTES - head), format, args);
    va_end(args);
    if (text < 0)
        return;
    used = (size_t)head + (size_t)text;
    put_line(line, used < LINE_BYTES ? used : LINE_BYTES - 1);
}
