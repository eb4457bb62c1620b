/* SPDX-License-Identifier: MIT */
/* trace.c - reads Mooncake's JSON lines and Azure's CSV, gzipped or not (data/serving). */
#include "sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum {
    NAMED_TOKENS = 512, /* tokens that one id of the trace names */
    LINE_BYTES = 1 << 16,
    TOKENS_MAX = 100000000, /* of a request: larger than any window */
};

#define TIME_MAX_MS 1e12 /* thirty years */

static bool push_request(struct trace *t, struct request r)
{
    if (t->count && r.arrival_s < t->requests[t->count - 1].arrival_s)
        return false;
    if (t->count == t->capacity) {
        uint32_t capacity = t->capacity ? 2 * t->capacity : 1024;
        struct request *grown = realloc(t->requests, capacity * sizeof(*grown));

        if (!grown)
            return false;
        t->requests = grown;
        t->capacity = capacity;
    }
    t->requests[t->count++] = r;
    return true;
}

static bool push_id(struct trace *t, uint32_t id)
{
    if (t->id_count == t->id_capacity) {
        uint32_t capacity = t->id_capacity ? 2 * t->id_capacity : 4096;
        uint32_t *grown = realloc(t->ids, capacity * sizeof(*grown));

        if (!grown)
            return false;
        t->ids = grown;
        t->id_capacity = capacity;
    }
    t->ids[t->id_count++] = id;
    return true;
}

/* The number behind "key": ; -1 if it is not there. */
static double member(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    at = at ? strchr(at, ':') : NULL;
    return at ? strtod(at + 1, NULL) : -1;
}

static bool mooncake_line(struct trace *t, const char *line)
{
    double ms = member(line, "\"timestamp\""), in = member(line, "\"input_length\""),
           out = member(line, "\"output_length\"");
    const char *at = strstr(line, "\"hash_ids\"");
    struct request r = {.ids_at = t->id_count};
    char *end;

    at = at ? strchr(at, '[') : NULL;
    if (!(ms >= 0 && ms <= TIME_MAX_MS) || !(in >= 1 && in <= TOKENS_MAX) ||
        !(out >= 0 && out <= TOKENS_MAX) || !at)
        return false;
    r.arrival_s = ms / 1000;
    r.in = (uint32_t)in;
    r.out = (uint32_t)out;
    for (at++; *at && *at != ']'; at = *end == ',' ? end + 1 : end) {
        unsigned long id = strtoul(at, &end, 10);

        /* Tokens are id * 512 + place, in 31 bits. */
        if (end == at || id > INT32_MAX / NAMED_TOKENS - 1 || !push_id(t, (uint32_t)id))
            return false;
        r.ids++;
    }
    return (uint64_t)r.ids * NAMED_TOKENS >= r.in && push_request(t, r);
}

/* 2023-11-16 18:15:46.6805900,374,44: seconds within the day do; the traces are of one hour. */
static bool azure_line(struct trace *t, const char *line)
{
    unsigned hour, minute, in, out;
    double second;

    if (!strncmp(line, "TIMESTAMP", 9))
        return true;
    if (sscanf(line, "%*u-%*u-%*u %u:%u:%lf,%u,%u", &hour, &minute, &second, &in, &out) != 5 ||
        !in || in > TOKENS_MAX || out > TOKENS_MAX || hour > 23 || minute > 59 ||
        !(second >= 0 && second < 61))
        return false;
    return push_request(t, (struct request){hour * 3600 + minute * 60 + second, in, out, 0, 0});
}

/* All lines; false, having said which is wrong, or that the file is. */
static bool read_lines(struct trace *trace, const char *path, gzFile file, char *line)
{
    unsigned number = 0;
    int error = Z_OK;
    const char *why;

    while (gzgets(file, line, LINE_BYTES)) {
        number++;
        if (!(line[0] == '{' ? mooncake_line(trace, line) : azure_line(trace, line))) {
            fprintf(stderr,
                    "moonbright-kv: %s: line %u is no request; expected one of Mooncake's JSON "
                    "lines or of Azure's CSV, in the order of their times\n",
                    path, number);
            return false;
        }
    }
    /* The end of the lines need not be the end of the file. */
    why = gzerror(file, &error);
    if (error != Z_OK && error != Z_STREAM_END) {
        fprintf(stderr, "moonbright-kv: %s: after line %u: %s\n", path, number,
                error == Z_ERRNO ? strerror(errno) : why);
        return false;
    }
    if (!trace->count)
        fprintf(stderr, "moonbright-kv: %s holds no request\n", path);
    return trace->count != 0;
}

bool trace_load(struct trace *trace, const char *path)
{
    gzFile file = gzopen(path, "rb");
    char *line = malloc(LINE_BYTES);
    bool good;

    *trace = (struct trace){0};
    if (!file)
        fprintf(stderr, "moonbright-kv: %s: cannot be read: %s\n", path, strerror(errno));
    good = file && line && read_lines(trace, path, file, line);
    for (uint32_t i = trace->count; good && i-- > 0;)
        trace->requests[i].arrival_s -= trace->requests[0].arrival_s;
    if (file)
        gzclose(file);
    free(line);
    if (!good)
        trace_free(trace);
    return good;
}

void trace_free(struct trace *trace)
{
    free(trace->requests);
    free(trace->ids);
    *trace = (struct trace){0};
}

void trace_tokens(const struct trace *trace, uint32_t i, int32_t *out)
{
    const struct request *r = &trace->requests[i];

    /* Without names a prompt shares nothing: its first token is its own. */
    for (uint32_t j = 0; j < r->in; j++)
        out[j] = r->ids ? (int32_t)(trace->ids[r->ids_at + j / NAMED_TOKENS] * NAMED_TOKENS +
                                    j % NAMED_TOKENS)
                        : (int32_t)(j ? j : i);
}
