/* SPDX-License-Identifier: MIT */
/*
 * torch_replay - recorded PyTorch runs served by the plug-in's own entry points, contents checked.
 *
 *     torch_replay TRACE.csv.gz...
 *
 * Of every block the first and last 64 bytes and a word in each 2 MiB between are written after the
 * allocation and read before the free. Prints one JSON object a line for each trace; each is a
 * process of its own, since PyTorch's devices stay open. $MOONBRIGHT configures, as in PyTorch;
 * without it the software GPU serves. Exit status 0: every request served, nothing read wrong,
 * and 98% of what was held from the driver at the peak was allocated.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "calls.h"
#include "moonbright_torch.h"

enum { EDGE = 64, STREAMS = 64 };
#define FRAME ((uint64_t)2 << 20)
#define WANTED 0.98

struct block {
    char *ptr; /* NULL: not live */
    uint64_t bytes;
    unsigned stream;
};

struct replay {
    const char *path;
    mb_device dev;
    mb_stream streams[STREAMS]; /* [0] is the default one */
    struct block *blocks;       /* by id */
    uint64_t capacity, requests;
};

static _Noreturn void die(const struct replay *r, const char *what, const char *why)
{
    (void)fprintf(stderr, "torch_replay: %s: %s: %s\n", r->path, what, why);
    exit(1);
}

static void must(const struct replay *r, const char *what, enum mb_err err)
{
    if (err)
        die(r, what, mb_error_detail());
}

static void touch(const struct replay *r, uint64_t id, char *at, uint64_t bytes, bool write)
{
    mb_stream stream = r->streams[r->blocks[id].stream];

    must(r, write ? "fill" : "verify",
         write ? mb_fill_async(r->dev, at, bytes, id, stream)
               : mb_verify_async(r->dev, at, bytes, id, stream));
}

/* The words of a block that are looked at. */
static void look(const struct replay *r, uint64_t id, bool write)
{
    const struct block *b = &r->blocks[id];
    uint64_t words = b->bytes / 8 * 8, edge = words < EDGE ? words : EDGE;

    if (!words)
        return;
    touch(r, id, b->ptr, edge, write);
    for (uint64_t at = FRAME; at + FRAME < words; at += FRAME)
        touch(r, id, b->ptr + at, 8, write);
    if (words >= 2 * EDGE)
        touch(r, id, b->ptr + words - EDGE, EDGE, write);
}

static struct block *block_of(struct replay *r, uint64_t id)
{
    uint64_t capacity = r->capacity ? r->capacity : 4096;
    struct block *more;

    if (id < r->capacity)
        return &r->blocks[id];
    while (capacity <= id)
        capacity *= 2;
    more = realloc(r->blocks, capacity * sizeof(*more));
    if (!more)
        die(r, "list of blocks", "no host memory");
    memset(more + r->capacity, 0, (capacity - r->capacity) * sizeof(*more));
    r->blocks = more;
    r->capacity = capacity;
    return &more[id];
}

static void serve(struct replay *r, char op, uint64_t id, uint64_t bytes, unsigned number)
{
    struct block *b = block_of(r, id);

    if (number >= STREAMS)
        die(r, "stream", "too many");
    if (number && !r->streams[number])
        must(r, "stream", mb_stream_create(r->dev, &r->streams[number]));
    r->requests++;
    if (op == 'a') {
        *b = (struct block){calls_malloc(bytes, 0, r->streams[number]), bytes, number};
        if (!b->ptr)
            die(r, "malloc", calls_text());
        look(r, id, true);
        return;
    }
    if (!b->ptr)
        return; /* allocated before the recording began */
    look(r, id, false);
    mb_torch_free(b->ptr, (ssize_t)b->bytes, 0, r->streams[b->stream]);
    b->ptr = NULL;
}

static int report(const struct replay *r)
{
    struct mb_torch_counts counts;
    struct mb_stats stats;
    double efficiency;
    bool ok;

    must(r, "sync", mb_device_sync(r->dev));
    must(r, "stats", mb_stats_get(r->dev, &stats));
    must(r, "check", mb_check(r->dev));
    mb_torch_counts_get(&counts);
    efficiency = (double)stats.requested_peak_bytes / (double)stats.reserved_peak_bytes;
    ok = efficiency >= WANTED && !stats.wrong_words && !stats.wrong_accesses && !stats.faults &&
         !counts.bad_frees && !counts.failures;
    (void)printf("{\"what\": \"torch-plugin-replay\", \"trace\": \"%s\", \"backend\": \"%s\", "
                 "\"tables\": \"%s\", \"requests\": %" PRIu64 ", \"requested_peak_bytes\": %" PRIu64
                 ", \"reserved_peak_bytes\": %" PRIu64 ", \"efficiency\": %.5f, \"stitches\": "
                 "%" PRIu64 ", \"wrong_words\": %" PRIu64 ", \"wrong_accesses\": %" PRIu64
                 ", \"faults\": %" PRIu64 ", \"bad_frees\": %" PRIu64 ", \"ok\": %s}\n",
                 strrchr(r->path, '/') ? strrchr(r->path, '/') + 1 : r->path,
                 mb_device_backend(r->dev), mb_device_tables(r->dev), r->requests,
                 stats.requested_peak_bytes, stats.reserved_peak_bytes, efficiency, stats.stitches,
                 stats.wrong_words, stats.wrong_accesses, stats.faults, counts.bad_frees,
                 ok ? "true" : "false");
    (void)fflush(stdout);
    return ok ? 0 : 1;
}

static int replay(const char *path)
{
    struct replay r = {.path = path};
    gzFile file = gzopen(path, "rb");
    char line[256];
    int status;

    if (!file)
        die(&r, "open", "not readable");
    must(&r, "device", mb_torch_device(0, &r.dev));
    while (gzgets(file, line, sizeof(line))) {
        uint64_t id, bytes;
        unsigned stream;
        char op;

        if (sscanf(line, "%c,%" SCNu64 ",%" SCNu64 ",%u", &op, &id, &bytes, &stream) == 4 &&
            (op == 'a' || op == 'f'))
            serve(&r, op, id, bytes, stream);
    }
    (void)gzclose(file);
    status = report(&r);
    free(r.blocks);
    return status;
}

int main(int argc, char **argv)
{
    int failed = argc < 2;

    if (failed)
        (void)fprintf(stderr, "usage: torch_replay TRACE.csv.gz...\n");
    (void)setenv("MOONBRIGHT", "backend:sim", 0);
    for (int i = 1; i < argc; i++) {
        int status = 1;
        pid_t child = fork();

        if (!child)
            exit(replay(argv[i]));
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            failed = 1;
    }
    return failed;
}
