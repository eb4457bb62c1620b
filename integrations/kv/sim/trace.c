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

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* What stands behind "key": ; NULL if it is not there. */
static const char *member(const char *line, const char *key)
{
    const char *at = strstr(line, key);

    at = at ? skip_blanks(at + strlen(key)) : NULL;
    return at && *at == ':' ? skip_blanks(at + 1) : NULL;
}

/* The number behind "key", which must be one, from `least` to `most`. */
static bool number_member(const char *line, const char *key, double least, double most, double *out)
{
    const char *at = member(line, key);
    char *end;

    if (!at || (*at != '-' && (*at < '0' || *at > '9')))
        return false;
    *out = strtod(at, &end);
    end += strspn(end, " \t");
    return (*end == ',' || *end == '}') && *out >= least && *out <= most;
}

static bool count_member(const char *line, const char *key, double least, uint32_t *out)
{
    double number = 0;

    if (!number_member(line, key, least, TOKENS_MAX, &number))
        return false;
    *out = (uint32_t)number;
    return (double)*out == number;
}

/* The list behind "hash_ids", to its end. */
static bool push_ids(struct trace *t, const char *at, uint32_t *count)
{
    char *end;

    if (!at || *at != '[')
        return false;
    do {
        unsigned long id;

        at = skip_blanks(at + 1);
        if (*at < '0' || *at > '9')
            return false;
        id = strtoul(at, &end, 10);
        /* Tokens are id * 512 + place, in 31 bits. */
        if (id > INT32_MAX / NAMED_TOKENS - 1 || !push_id(t, (uint32_t)id))
            return false;
        ++*count;
        at = skip_blanks(end);
    } while (*at == ',');
    return *at == ']';
}

/* Nothing but blanks behind the last brace. */
static bool is_whole(const char *line)
{
    const char *brace = strrchr(line, '}');

    return brace && !*skip_blanks(brace + 1);
}

static bool mooncake_line(struct trace *t, const char *line)
{
    struct request r = {.ids_at = t->id_count};
    double ms = 0;

    if (!is_whole(line) || !number_member(line, "\"timestamp\"", 0, TIME_MAX_MS, &ms) ||
        !count_member(line, "\"input_length\"", 1, &r.in) ||
        !count_member(line, "\"output_length\"", 0, &r.out) ||
        !push_ids(t, member(line, "\"hash_ids\""), &r.ids))
        return false;
    r.arrival_s = ms / 1000;
    return (uint64_t)r.ids * NAMED_TOKENS >= r.in && push_request(t, r);
}

/* 2023-11-16 18:15:46.6805900,374,44: seconds within the day do; the traces are of one hour. */
static bool azure_line(struct trace *t, const char *line)
{
    unsigned month, day, hour, minute, in, out;
    const char *time = strchr(line, ' ');
    double second;
    int end = 0;

    if (!strncmp(line, "TIMESTAMP", 9))
        return true;
    if (!time || strchr(time, '-') || /* a sign, which %u takes */
        sscanf(line, "%*4u-%2u-%2u %2u:%2u:%lf,%9u,%9u%n", &month, &day, &hour, &minute, &second,
               &in, &out, &end) != 7 ||
        *skip_blanks(line + end))
        return false;
    if (!in || in > TOKENS_MAX || out > TOKENS_MAX || month < 1 || month > 12 || day < 1 ||
        day > 31 || hour > 23 || minute > 59 || !(second >= 0 && second < 61))
        return false;
    return push_request(t, (struct request){hour * 3600 + minute * 60 + second, in, out, 0, 0});
}

/* False, having said why, if the file could not be read so far: it is damaged, or ends early. */
static bool is_sound(const char *path, gzFile file, unsigned number)
{
    int error = Z_OK;
    const char *why = gzerror(file, &error);

    if (error == Z_OK || error == Z_STREAM_END)
        return true;
    fprintf(stderr, "moonbright-kv: %s: after line %u: %s\n", path, number,
            error == Z_ERRNO ? strerror(errno) : why);
    return false;
}

/* Says what is wrong with a line. What damage made of it is no fault of the line's, and is known at
 * the end of what was compressed. */
static void refuse(const char *path, gzFile file, unsigned number, char *line)
{
    bool whole = strlen(line) < LINE_BYTES - 1 || strchr(line, '\n');

    while (!gzdirect(file) && gzread(file, line, LINE_BYTES) > 0)
        ;
    if (!is_sound(path, file, number - 1))
        return;
    if (whole)
        fprintf(stderr,
                "moonbright-kv: %s: line %u is no request; expected one of Mooncake's JSON "
                "lines or of Azure's CSV, in the order of their times\n",
                path, number);
    else
        fprintf(stderr, "moonbright-kv: %s: line %u has more than the %d bytes allowed\n", path,
                number, LINE_BYTES - 2);
}

/* All lines; false, having said which is wrong, or that the file is. */
static bool read_lines(struct trace *trace, const char *path, gzFile file, char *line)
{
    unsigned number = 0;

    while (gzgets(file, line, LINE_BYTES)) {
        bool good = strlen(line) < LINE_BYTES - 1 || strchr(line, '\n');

        number++;
        if (good)
            good = line[0] == '{' ? mooncake_line(trace, line) : azure_line(trace, line);
        if (!good) {
            refuse(path, file, number, line);
            return false;
        }
    }
    /* The end of the lines need not be the end of the file. */
    if (!is_sound(path, file, number))
        return false;
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
