/* SPDX-License-Identifier: MIT */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "cli.h"

enum {
    PERIOD_NS = 200000000,
};

void progress_begin(struct progress *p, const char *name, bool quiet)
{
    *p = (struct progress){.shown = !quiet && isatty(STDERR_FILENO), .name = name};
}

void progress_update(struct progress *p, uint64_t events, uint64_t live_bytes)
{
    char count[CLI_NUMBER_MAX];
    char bytes[CLI_NUMBER_MAX];
    uint64_t now;

    if (!p->shown)
        return;
    now = cli_now_ns();
    if (now < p->next_ns)
        return;
    p->next_ns = now + PERIOD_NS;
    p->dirty = true;
    fprintf(stderr, "\r\033[K%.40s: %s events, %s allocated", p->name,
            cli_format_count(events, count), cli_format_bytes(live_bytes, bytes));
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->dirty)
        fputs("\r\033[K", stderr);
    p->dirty = false;
}
