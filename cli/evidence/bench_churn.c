/* SPDX-License-Identifier: MIT */
/*
 * bench_churn.c - `moonbright bench churn`: 24 hours of a simulated server of a language model in
 * as much real time as its allocations take. Requests arrive at random, more by day than by night;
 * each takes a block for its prompt and further blocks as it generates, and frees all of them at
 * its end, in an order that nobody planned. What is held, what it costs, hour by hour.
 *
 * MODEL   128 KiB of cache a token (8B parameters, grouped heads), blocks of 256 tokens, prompts
 *         and answers with a logarithmic normal distribution, 30 tokens a second each. A request
 *         for which there is no room waits outside and is counted.
 */
#include "evidence.h"
#include "run.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS_MAX = 4096, BLOCKS_MAX = 200, TOKENS_OF_BLOCK = 256, TOKENS_MAX = 32768 };
#define TOKEN_BYTES ((uint64_t)128 << 10)
#define TOKENS_A_SECOND 30.0

struct request {
    double next_s; /* its next event */
    unsigned tokens, last, blocks;
    void *prompt, *block[BLOCKS_MAX];
    uint64_t bytes;
};

struct churn {
    struct bench_run *run;
    struct request *heap[REQUESTS_MAX]; /* by next_s, smallest first */
    unsigned count, hour;
    uint64_t live, capacity, live_most;
    uint64_t served, refused, failed;
    struct histogram mallocs;
};

/* ------------------------------------------------------------ the heap */

static void swap(struct churn *c, unsigned a, unsigned b)
{
    struct request *r = c->heap[a];

    c->heap[a] = c->heap[b];
    c->heap[b] = r;
}

static void sink(struct churn *c)
{
    for (unsigned at = 0, child; (child = 2 * at + 1) < c->count; at = child) {
        if (child + 1 < c->count && c->heap[child + 1]->next_s < c->heap[child]->next_s)
            child++;
        if (c->heap[at]->next_s <= c->heap[child]->next_s)
            return;
        swap(c, at, child);
    }
}

static void push(struct churn *c, struct request *r)
{
    unsigned at = c->count++;

    c->heap[at] = r;
    for (; at && c->heap[at]->next_s < c->heap[(at - 1) / 2]->next_s; at = (at - 1) / 2)
        swap(c, at, (at - 1) / 2);
}

/* ------------------------------------------------------------ requests */

static double normal(struct bench_run *run)
{
    double u = bench_uniform(run) + 1e-12, v = bench_uniform(run);

    return sqrt(-2 * log(u)) * cos(2 * 3.14159265358979 * v);
}

static unsigned tokens(struct bench_run *run, double median, double sigma, unsigned most)
{
    double n = median * exp(sigma * normal(run));

    return n < 1 ? 1 : n > most ? most : (unsigned)n;
}

static enum mb_err take(struct churn *c, uint64_t bytes, void **out)
{
    uint64_t start = cli_now_ns();
    enum mb_err err = mb_malloc_async(c->run->dev, bytes, c->run->stream, out);

    histogram_add(&c->mallocs, cli_now_ns() - start);
    if (!err)
        c->live += bytes;
    c->live_most = c->live > c->live_most ? c->live : c->live_most;
    return err;
}

static enum mb_err finish(struct churn *c, struct request *r)
{
    enum mb_err err = mb_free_async(c->run->dev, r->prompt, c->run->stream);

    for (unsigned i = 0; i < r->blocks && !err; i++)
        err = mb_free_async(c->run->dev, r->block[i], c->run->stream);
    c->live -= r->bytes;
    c->served++;
    free(r);
    return err;
}

static enum mb_err arrive(struct churn *c, double now)
{
    unsigned prompt = tokens(c->run, 1100, 1.1, TOKENS_MAX);
    unsigned answer = tokens(c->run, 220, 0.8, TOKENS_OF_BLOCK * (BLOCKS_MAX - 1));
    struct request *r;
    enum mb_err err;

    if (c->count == REQUESTS_MAX || c->live + (prompt + answer) * TOKEN_BYTES > c->capacity) {
        c->refused++;
        return MB_OK;
    }
    r = calloc(1, sizeof(*r));
    if (!r)
        return MB_ERR_HOST_MEMORY;
    r->bytes = prompt * TOKEN_BYTES;
    r->tokens = prompt;
    r->last = prompt + answer;
    r->next_s = now + TOKENS_OF_BLOCK / TOKENS_A_SECOND * bench_uniform(c->run);
    err = take(c, r->bytes, &r->prompt);
    if (err) {
        free(r);
        c->failed += err == MB_ERR_NO_MEMORY;
        return err == MB_ERR_NO_MEMORY ? MB_OK : err;
    }
    push(c, r);
    return MB_OK;
}

/* The first of the heap grows, or ends. */
static enum mb_err go_on(struct churn *c)
{
    struct request *r = c->heap[0];
    enum mb_err err = MB_OK;
    bool ends = r->tokens >= r->last || r->blocks == BLOCKS_MAX;

    if (!ends) {
        err = take(c, TOKENS_OF_BLOCK * TOKEN_BYTES, &r->block[r->blocks]);
        if (err == MB_ERR_NO_MEMORY) {
            c->failed++;
            err = MB_OK;
            ends = true;
        } else if (!err) {
            r->blocks++;
            r->bytes += TOKENS_OF_BLOCK * TOKEN_BYTES;
            r->tokens += TOKENS_OF_BLOCK;
            r->next_s += TOKENS_OF_BLOCK / TOKENS_A_SECOND;
        }
    }
    if (ends)
        c->heap[0] = c->heap[--c->count];
    sink(c);
    return ends && !err ? finish(c, r) : err;
}

/* ------------------------------------------------------------ hours */

static void tell(struct churn *c)
{
    static struct mb_stats last;
    struct bench_run *run = c->run;
    struct figure f = bench_figure(run, "churn", "malloc_async", "MoonBright", false);
    double hour = ++c->hour, tables;
    const char *note;
    struct mb_stats s;

    if (mb_stats_get(run->dev, &s))
        return;
    if (c->hour == 1)
        memset(&last, 0, sizeof(last));
    f.x = hour;
    f.x_unit = "h";
    f.metric = "host";
    bench_add_times(run, f, &c->mallocs);
    bench_add(run, "churn", "live", "MoonBright", "most", "bytes", hour, "h", (double)c->live_most,
              "");
    bench_add(run, "churn", "held from the driver", "MoonBright", "most so far", "bytes", hour, "h",
              (double)s.reserved_peak_bytes, "");
    bench_add(run, "churn", "frames in use over held", "MoonBright", "now", "%", hour, "h",
              100.0 * (double)s.requested_bytes / (double)s.frames_used_bytes,
              "bytes asked for over frames with a live byte");
    tables = bench_table_bytes(run, s.table_bytes, &note);
    bench_add(run, "churn", "page-table memory", "MoonBright", "now", "bytes", hour, "h", tables,
              note);
    bench_add(run, "churn", "stitches", "MoonBright", "in the hour", "", hour, "h",
              (double)(s.stitches - last.stitches), "");
    bench_add(run, "churn", "addresses handed out", "MoonBright", "so far", "bytes", hour, "h",
              (double)s.va_handed_out_bytes, "");
    last = s;
    c->live_most = c->live;
    memset(&c->mallocs, 0, sizeof(c->mallocs));
}

static enum mb_err serve(struct churn *c, double hours, double a_second)
{
    double end = hours * 3600, next = 0, now = 0;
    enum mb_err err = MB_OK;

    while (!err && now < end) {
        bool arrival = !c->count || next < c->heap[0]->next_s;

        now = arrival ? next : c->heap[0]->next_s;
        if (now >= 3600.0 * (c->hour + 1))
            tell(c);
        if (arrival) {
            /* From 40% at night to 160% by day. */
            double rate = a_second * (1 - 0.6 * cos(2 * 3.14159265358979 * now / 86400));

            err = arrive(c, now);
            next = now - log(bench_uniform(c->run) + 1e-12) / rate;
        } else {
            err = go_on(c);
        }
    }
    if (!err && c->hour < hours)
        tell(c);
    return err;
}

static void tell_all(struct churn *c)
{
    struct bench_run *run = c->run;
    struct mb_stats s;

    if (mb_stats_get(run->dev, &s))
        return;
    bench_add(run, "churn", "requests served", "MoonBright", "total", "", NAN, "",
              (double)c->served, "");
    bench_add(run, "churn", "requests without room", "MoonBright", "total", "", NAN, "",
              (double)c->refused, "the server itself sent them away");
    bench_add(run, "churn", "allocations failed", "MoonBright", "total", "failures", NAN, "",
              (double)c->failed, "");
    bench_add(run, "churn", "wrong accesses", "MoonBright", "total", "failures", NAN, "",
              (double)(s.wrong_accesses + s.wrong_words + s.faults), "of the oracle");
}

static enum mb_err churn(struct bench_run *run, double hours, double a_second)
{
    struct churn *c = calloc(1, sizeof(*c));
    enum mb_err err = c ? bench_run_open(run, "") : MB_ERR_HOST_MEMORY;

    if (!err) {
        c->run = run;
        c->capacity = run->device.memory_bytes / 100 * 97;
        err = serve(c, hours, a_second);
    }
    if (!err)
        err = mb_check(run->dev);
    if (!err)
        tell_all(c);
    while (c && c->count) {
        enum mb_err freed = finish(c, c->heap[--c->count]);

        err = err ? err : freed;
    }
    free(c);
    bench_run_close(run);
    return err;
}

#define HOURS_BY_DEFAULT UINT_MAX

static int run(int argc, char **argv)
{
    struct bench_run run = {.command = NULL, .device = {.memory_bytes = (uint64_t)64 << 30}};
    unsigned hours = HOURS_BY_DEFAULT, rate = 700;
    const struct cli_option extra[] = {{"--hours", CLI_UNSIGNED, &hours},
                                       {"--rate", CLI_UNSIGNED, &rate},
                                       BENCH_RUN_SEED(&run),
                                       BENCH_RUN_QUICK(&run),
                                       {NULL, CLI_FLAG, NULL}};
    bool done = false;
    int code = bench_run_parse(&run, &cli_bench_churn, extra, argc, argv, &done);

    if (code || done)
        return code;
    if (hours == HOURS_BY_DEFAULT)
        hours = run.quick ? 4 : 24;
    if (!hours || hours > 10000 || !rate || rate > 100000)
        return cli_fail(CLI_BAD_INPUT, "bench churn",
                        "%u hours at %u requests in 100 s were asked for; 1 to 10,000 hours and 1 "
                        "to 100,000 requests are allowed",
                        hours, rate);
    return bench_run_end(&run, churn(&run, hours, rate / 100.0));
}

const struct cli_command cli_bench_churn = {
    .name = "bench churn",
    .summary = "24 hours of a simulated server",
    .help = "usage: moonbright bench churn [OPTION...]\n\n"
            "  --hours N           simulated (default 24; with --quick 4)\n"
            "  --rate N            requests in 100 seconds, on average (default 700)\n"
            "--device-memory is 64GiB by default.\n\n" BENCH_RUN_SEED_HELP BENCH_RUN_QUICK_HELP
                BENCH_RUN_HELP,
    .run = run,
};
