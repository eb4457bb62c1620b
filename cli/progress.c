/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

enum {
    PERIOD_NS = 200000000,
    COLUMNS = 80,        /* where the terminal does not tell */
    NAME_COLUMNS = 40,   /* a name is never shown longer */
    NAME_COLUMNS_MIN = 6 /* with less room it is left out */
};

void progress_begin(struct progress *p, const char *name, bool quiet)
{
    *p = (struct progress){.shown = !quiet && isatty(STDERR_FILENO), .name = name};
}

/* Bytes of UTF-8 that begin a character; each is taken to be one column wide. */
static bool begins(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

static unsigned columns_of(const char *text)
{
    unsigned columns = 0;

    for (; *text; text++)
        columns += begins(*text);
    return columns;
}

/* The part of a path that fits: behind a slash if possible. */
static const char *tail(const char *name, unsigned columns)
{
    unsigned left = columns_of(name);
    const char *cut;

    while (left > columns) {
        name++;
        while (!begins(*name))
            name++;
        left--;
    }
    cut = strchr(name, '/');
    return cut && cut[1] ? cut + 1 : name;
}

void progress_line(char line[PROGRESS_LINE_MAX], const char *name, uint64_t events,
                   uint64_t live_bytes, unsigned columns)
{
    char count[CLI_NUMBER_MAX];
    char bytes[CLI_NUMBER_MAX];
    char figures[3 * CLI_NUMBER_MAX];
    unsigned room = columns > 1 ? columns - 1 : 0; /* the last column would wrap on some */
    unsigned used =
        (unsigned)snprintf(figures, sizeof(figures), "%s events, %s allocated",
                           cli_format_count(events, count), cli_format_bytes(live_bytes, bytes));
    unsigned name_room = room > used + 2 ? room - used - 2 : 0;

    if (name_room > NAME_COLUMNS)
        name_room = NAME_COLUMNS;
    if (columns_of(name) <= name_room)
        snprintf(line, PROGRESS_LINE_MAX, "%s: %s", name, figures);
    else if (name_room >= NAME_COLUMNS_MIN)
        snprintf(line, PROGRESS_LINE_MAX, "...%s: %s", tail(name, name_room - 3), figures);
    else
        snprintf(line, PROGRESS_LINE_MAX, "%.*s", (int)room, figures);
}

static unsigned terminal_columns(void)
{
    struct winsize size = {0};

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : COLUMNS;
}

void progress_update(struct progress *p, uint64_t events, uint64_t live_bytes)
{
    char line[PROGRESS_LINE_MAX];
    uint64_t now;

    if (!p->shown)
        return;
    now = cli_now_ns();
    if (now < p->next_ns)
        return;
    p->next_ns = now + PERIOD_NS;
    p->dirty = true;
    progress_line(line, p->name, events, live_bytes, terminal_columns());
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->dirty)
        fputs("\r\033[K", stderr);
    p->dirty = false;
}
