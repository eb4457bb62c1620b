/* SPDX-License-Identifier: MIT */
/*
 * Scripts of the probe. Steps are separated by «;», SIZE may end with K, M or G and be a sum of two
 * («32M+1»):
 *
 *     a NAME SIZE [COUNT]   allocate on stream 0, blocks NAME.0 .. NAME.(COUNT-1)
 *     b NAME SIZE [COUNT]   the same on stream 1
 *     f NAME[.I|/K]         free on stream 0: all live blocks of NAME, block I, or every K-th
 *     d NAME[.I|/K]         the same from the last block on, downwards
 *     g NAME[.I|/K]         free on stream 1
 *     m NAME                write a mark to the start of each 2 MiB of NAME's live blocks
 *     v NAME                read those marks back
 *     s / S                 wait for stream 0 / for the context
 *     w / W                 stream 1 waits for stream 0 / stream 0 for stream 1
 *     t SIZE                trim to SIZE
 *     r SIZE                release threshold
 *     l SIZE                limit of the pool; the first step
 */
#include "pool_probe.h"

#include "pool_driver.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/json.h"

enum { NAMES = 26, BLOCKS_MAX = 512, MARKS_MAX = 4096, GRANULE = 2 << 20 };

/* One script under way. Owner: pool_probe_script(). */
struct probe {
    void *pool, *stream[2];
    struct json_writer json;
    cu_pointer first; /* address of the script's first block; answers are relative to it */
    cu_pointer at[NAMES][BLOCKS_MAX]; /* 0: not live */
    uint64_t bytes[NAMES][BLOCKS_MAX];
    uint64_t script;           /* number of the script, in the marks */
    uint64_t marks[MARKS_MAX]; /* being copied to the device: must stay until it has done so */
    unsigned marked;
};

static bool fault(const char *step, const char *why)
{
    fprintf(stderr, "bench_cuda_async: step «%s»: %s\n", step, why);
    return false;
}

static bool parse_size(const char *text, uint64_t *out)
{
    uint64_t sum = 0;

    for (;;) {
        char *end = NULL;
        uint64_t part = strtoull(text, &end, 10);

        if (end == text)
            return false;
        part <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += *end == 'K' || *end == 'M' || *end == 'G';
        sum += part;
        if (*end != '+') {
            *out = sum;
            return *end == '\0';
        }
        text = end + 1;
    }
}

/* ------------------------------------------------------------------ allocate and free */

/* Relative to the first block, so that two runs can be compared. */
static void put_place(struct probe *p, cu_pointer at)
{
    char text[32];

    snprintf(text, sizeof(text), "%" PRId64, (int64_t)(at - p->first));
    json_text(&p->json, NULL, text);
}

static bool step_alloc(struct probe *p, const char *step, unsigned name, uint64_t bytes,
                       unsigned count, unsigned stream)
{
    unsigned refused = 0;
    cu_result last = 0;
    double start = pool_now_us();

    if (count > BLOCKS_MAX)
        return fault(step, "too many blocks");
    json_array(&p->json, "places");
    for (unsigned i = 0; i < count; i++) {
        cu_result result = cu.alloc(&p->at[name][i], bytes, p->pool, p->stream[stream]);

        if (result) {
            p->at[name][i] = 0;
            last = result;
            refused++;
            continue;
        }
        if (!p->first)
            p->first = p->at[name][i];
        p->bytes[name][i] = bytes;
        put_place(p, p->at[name][i]);
    }
    json_end_array(&p->json);
    json_double(&p->json, "us", pool_now_us() - start);
    if (refused) {
        json_u64(&p->json, "refused", refused);
        json_u64(&p->json, "error", (uint64_t)last);
    }
    return true;
}

static bool free_one(struct probe *p, unsigned name, unsigned i, unsigned stream)
{
    cu_pointer at = p->at[name][i];

    p->at[name][i] = 0;
    return !at || pool_fine("cuMemFreeAsync", cu.free(at, p->stream[stream]));
}

/* `which`: "" for all, ".I" or "/K". */
static bool step_free(struct probe *p, const char *step, unsigned name, const char *which,
                      unsigned stream, bool down)
{
    unsigned number = *which ? (unsigned)strtoul(which + 1, NULL, 10) : 1;

    if (*which == '.')
        return number < BLOCKS_MAX ? free_one(p, name, number, stream) : fault(step, "which one?");
    if (!number || (*which && *which != '/'))
        return fault(step, "which ones?");
    for (unsigned n = 0; n < BLOCKS_MAX; n++) {
        unsigned i = down ? BLOCKS_MAX - 1 - n : n;

        if (i % number == 0 && !free_one(p, name, i, stream))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ marks */

/* script, name, block, granule. */
static uint64_t mark_of(const struct probe *p, unsigned name, unsigned i, uint64_t granule)
{
    return p->script << 48 | (uint64_t)(name + 1) << 40 | (uint64_t)i << 20 | granule;
}

static bool step_mark(struct probe *p, unsigned name)
{
    for (unsigned i = 0; i < BLOCKS_MAX; i++) {
        for (uint64_t at = 0; p->at[name][i] && at + 8 <= p->bytes[name][i]; at += GRANULE) {
            uint64_t *mark = &p->marks[p->marked];

            if (p->marked == MARKS_MAX)
                return fault("m", "too many marks in one script");
            *mark = mark_of(p, name, i, at / GRANULE);
            p->marked++;
            if (!pool_fine("cuMemcpyHtoDAsync",
                           cu.write(p->at[name][i] + at, mark, sizeof(*mark), p->stream[0])))
                return false;
        }
    }
    return true;
}

/* "A.3+5 x 16": sixteen granules, the first one marked as granule 5 of block 3 of A. */
static void put_run(struct probe *p, uint64_t mark, uint64_t count)
{
    unsigned name = (unsigned)(mark >> 40 & 0xff);
    char text[96];

    if (mark && mark >> 48 == p->script && name >= 1 && name <= NAMES)
        snprintf(text, sizeof(text), "%c.%u+%u x %" PRIu64, (char)('A' + name - 1),
                 (unsigned)(mark >> 20 & 0xfffff), (unsigned)(mark & 0xfffff), count);
    else
        snprintf(text, sizeof(text), "%s x %" PRIu64, mark ? "other" : "zero", count);
    json_text(&p->json, NULL, text);
}

static bool view_block(struct probe *p, unsigned name, unsigned i)
{
    uint64_t start = 0;
    uint64_t count = 0;

    for (uint64_t at = 0; at + 8 <= p->bytes[name][i]; at += GRANULE) {
        uint64_t mark = 0;
        bool goes_on;

        if (!pool_fine("cuMemcpyDtoHAsync",
                       cu.read(&mark, p->at[name][i] + at, sizeof(mark), p->stream[0])) ||
            !pool_fine("cuStreamSynchronize", cu.stream_sync(p->stream[0])))
            return false;
        if (mark >> 48 != p->script)
            mark = mark ? ~UINT64_C(0) : 0;
        goes_on = count && (mark >> 48 == p->script ? mark == start + count : mark == start);
        if (count && !goes_on) {
            put_run(p, start, count);
            count = 0;
        }
        if (!count)
            start = mark;
        count++;
    }
    put_run(p, start, count);
    return true;
}

static bool step_view(struct probe *p, unsigned name)
{
    bool fine = true;

    json_array(&p->json, "marks");
    for (unsigned i = 0; fine && i < BLOCKS_MAX; i++)
        if (p->at[name][i])
            fine = view_block(p, name, i);
    json_end_array(&p->json);
    return fine;
}

/* ------------------------------------------------------------------ steps */

static bool step_named(struct probe *p, const char *step, const char *rest)
{
    unsigned count = 1;
    char size[32];
    uint64_t bytes = 0;
    unsigned name = (unsigned)(*rest - 'A');

    if (name >= NAMES)
        return fault(step, "a name is A to Z");
    rest++;
    switch (*step) {
    case 'a':
    case 'b':
        if (sscanf(rest, " %31s %u", size, &count) < 1 || !parse_size(size, &bytes))
            return fault(step, "which size?");
        return step_alloc(p, step, name, bytes, count, *step == 'b');
    case 'f':
    case 'd':
        return step_free(p, step, name, rest, 0, *step == 'd');
    case 'g':
        return step_free(p, step, name, rest, 1, false);
    case 'm':
        return step_mark(p, name);
    case 'v':
        return step_view(p, name);
    default:
        return fault(step, "unknown");
    }
}

static bool do_step(struct probe *p, const char *step)
{
    const char *rest = step + 1 + strspn(step + 1, " ");
    uint64_t bytes = 0;

    switch (*step) {
    case 's':
        return pool_fine("cuStreamSynchronize", cu.stream_sync(p->stream[0]));
    case 'S':
        return pool_fine("cuCtxSynchronize", cu.context_sync());
    case 'w':
        return pool_order(p->stream[1], p->stream[0]);
    case 'W':
        return pool_order(p->stream[0], p->stream[1]);
    case 'l':
        return true; /* pool_limit() has seen it */
    case 't':
        return parse_size(rest, &bytes) ? pool_fine("cuMemPoolTrimTo", cu.pool_trim(p->pool, bytes))
                                        : fault(step, "which size?");
    case 'r':
        return parse_size(rest, &bytes)
                   ? pool_fine("cuMemPoolSetAttribute",
                               cu.pool_set(p->pool, POOL_RELEASE_THRESHOLD, &bytes))
                   : fault(step, "which size?");
    default:
        return step_named(p, step, rest);
    }
}

static bool run_steps(struct probe *p, const char *script)
{
    char *copy = strdup(script);
    char *save = NULL;
    bool fine = copy != NULL;

    json_array(&p->json, "steps");
    for (char *step = copy ? strtok_r(copy, ";", &save) : NULL; fine && step;
         step = strtok_r(NULL, ";", &save)) {
        step += strspn(step, " ");
        json_object(&p->json, NULL);
        json_text(&p->json, "step", step);
        fine = do_step(p, step);
        json_u64(&p->json, "reserved", pool_attribute(p->pool, POOL_RESERVED));
        json_u64(&p->json, "used", pool_attribute(p->pool, POOL_USED));
        json_end_object(&p->json);
    }
    json_end_array(&p->json);
    free(copy);
    return fine;
}

static bool pool_limit(const char *script, uint64_t *limit)
{
    char size[32];

    *limit = 0;
    return *script != 'l' || (sscanf(script, "l %31[^; ]", size) == 1 && parse_size(size, limit));
}

bool pool_probe_script(FILE *out, const char *script)
{
    static uint64_t scripts;
    struct probe *p = calloc(1, sizeof(*p));
    uint64_t limit;
    bool fine;

    if (!p || !pool_limit(script, &limit)) {
        free(p);
        return fault(script, "cannot be run");
    }
    p->json.out = out;
    p->script = ++scripts;
    json_object(&p->json, NULL);
    json_text(&p->json, "what", "probe");
    json_text(&p->json, "script", script);
    fine = pool_open(&p->pool, limit) && pool_stream(&p->stream[0]) && pool_stream(&p->stream[1]) &&
           run_steps(p, script);
    json_u64(&p->json, "reserved_high", p->pool ? pool_attribute(p->pool, POOL_RESERVED_HIGH) : 0);
    json_u64(&p->json, "used_high", p->pool ? pool_attribute(p->pool, POOL_USED_HIGH) : 0);
    json_bool(&p->json, "complete", fine);
    json_end_object(&p->json);
    json_finish(&p->json);
    for (unsigned name = 0; fine && name < NAMES; name++)
        fine = step_free(p, script, name, "", 0, false);
    if (fine)
        fine = pool_fine("cuCtxSynchronize", cu.context_sync()) &&
               pool_fine("cuMemPoolDestroy", cu.pool_destroy(p->pool)) &&
               pool_fine("cuStreamDestroy", cu.stream_destroy(p->stream[0])) &&
               pool_fine("cuStreamDestroy", cu.stream_destroy(p->stream[1]));
    free(p);
    return fine;
}

/* ------------------------------------------------------------------ the questions */

static const char *const sizes[] = {
    "1",    "512",  "4K",     "64K",   "512K", "1M",   "1M+1",    "2M",   "2M+1",  "4M",
    "8M",   "15M",  "16M",    "16M+1", "20M",  "31M",  "32M",     "33M",  "32M+1", "48M",
    "63M",  "64M",  "65M",    "96M+1", "100M", "128M", "129M",    "200M", "256M",  "256M+1",
    "500M", "512M", "512M+1", "1G",    "1G+1", "2G",   "2G+512K",
};

/* NOLINTBEGIN(bugprone-suspicious-missing-comma): some take two lines */
static const char *const questions[] = {
    /* Rounding and places of small blocks. */
    "a A 1; a B 1; a C 255; a D 256; a E 257; a F 511; a G 512; a H 513; a I 1000; a J 4096; "
    "a K 5000; a L 65535; a M 100000; a N 1M; a O 1M+1; a P 1",
    "a A 2M+1; a B 2M+1; a C 3M+5; a D 10M+7; a E 1",
    /* Growth one by one: does a request span two chunks, does growth get larger? */
    "a A 20M 12",
    "a A 1M 200",
    "a A 3M 100",
    "a A 17M 20",
    "a A 33M 20",
    "a A 48M 16",
    "a A 100M 16",
    "a A 32M 40",
    "a A 1K 300",
    /* Small and large beside each other. */
    "a A 1K; a B 40M; a C 1K; a D 3M; a E 1K; a F 30M; a G 1K; a H 600K; a I 1500K",
    "a A 31M; a B 1M; a C 1M; a D 31M; a E 33M; a F 31M; a G 1M",
    /* Holes of whole chunks, not neighbours: are they put together under a new address? */
    "a A 32M 8; m A; f A/2; a B 128M; v B",
    "a A 32M 8; f A/2; a B 128M",
    "a A 32M 8; m A; f A/2; s; a B 128M; v B",
    "a A 32M 8; m A; f A/2; S; a B 128M; v B",
    "a A 32M 8; f A/2; s; a B 128M",
    "a A 32M 8; m A; f A/2; s; a B 64M; v B; a C 64M; v C",
    "a A 32M 8; m A; f A/2; s; a B 256M; v B",
    "a A 32M 8; m A; f A/2; s; a B 33M; v B; a C 33M; v C; a D 31M; v D; a E 31M; v E",
    "a A 64M 8; m A; f A/2; s; a B 256M; v B",
    "a A 64M 8; m A; f A/2; a B 96M; v B; a C 96M; v C; a D 64M; v D",
    /* Smaller holes: parts of chunks. */
    "a A 16M 16; m A; f A/2; a B 128M; v B",
    "a A 16M 16; m A; f A/2; s; a B 128M; v B",
    "a A 2M 64; m A; f A/2; s; a B 64M; v B",
    "a A 2M 64; m A; f A/2; a B 4M; v B",
    "a A 2M 64; m A; f A/2; s; a B 4M; v B",
    "a A 4M 64; m A; f A/2; s; a B 6M; v B; a C 32M; v C",
    "a A 1M 64; m A; f A/2; s; a B 2M; v B; a C 32M; v C",
    "a A 512K 256; m A; f A/2; s; a B 32M; v B",
    "a A 48M 8; m A; f A/2; s; a B 192M; v B",
    "a A 48M 8; m A; f A/2; a B 192M; v B",
    "a A 34M 8; m A; f A/2; s; a B 128M; v B",
    "a A 34M 8; m A; f A/2; s; a B 136M; v B",
    "a A 40M 8; m A; f A/2; s; a B 80M; v B; a C 80M; v C",
    "a A 62M 8; m A; f A/2; s; a B 100M; v B",
    "a A 100M 4; m A; f A/2; s; a B 200M; v B",
    /* A hole at the end and growth: is the hole extended or left? */
    "a A 32M; a B 32M; m B; f B; a C 64M; v C",
    "a A 32M; a B 32M; m B; f B; s; a C 64M; v C",
    "a A 16M; a B 48M; m B; f B; s; a C 100M; v C",
    "a A 20M; a B 100M; v B; a C 20M; a D 40M",
    "a A 64M; m A; f A; a B 96M; v B",
    "a A 64M; m A; f A; s; a B 96M; v B",
    /* Neighbours that are free merge; order of the frees; over the ends of chunks. */
    "a A 8M 4; f A.0; f A.1; a B 16M",
    "a A 8M 4; f A.1; f A.0; a B 16M",
    "a A 8M 4; f A.1; f A.2; s; a B 16M",
    "a A 32M 4; m A; f A.1; f A.2; a B 64M; v B",
    "a A 32M 4; m A; f A.1; f A.2; s; a B 64M; v B",
    "a A 24M 8; m A; f A.1; f A.2; f A.3; a B 72M; v B",
    "a A 24M 8; m A; f A.1; f A.2; f A.3; s; a B 72M; v B",
    "a A 8M 16; m A; f A; a B 128M; v B",
    "a A 8M 16; m A; f A; s; a B 128M; v B",
    /* Best fit or first fit; equal sizes; the order of the frees. */
    "a A 10M; a B 1K; a C 6M; a D 1K; a E 8M; a F 1K; f A; f C; f E; a G 5M; a H 7M; a I 9M",
    "a A 10M; a B 1K; a C 6M; a D 1K; a E 8M; a F 1K; f E; f C; f A; s; a G 5M; a H 7M; a I 9M",
    "a A 6M; a B 2M; a C 10M; a D 2M; a E 8M; a F 2M; f E; f C; f A; s; a G 5M; a H 7M; a I 9M",
    "a A 6M; a B 2M; a C 10M; a D 2M; a E 8M; a F 2M; f E; f C; f A; a G 4M; a H 4M; a I 4M; "
    "a J 2M; a K 2M",
    "a A 4M 16; f A.6; f A.2; f A.12; f A.4; a B 4M 4",
    "a A 4M 16; f A.6; f A.2; f A.12; f A.4; s; a B 4M 4",
    "a A 40M 16; m A; f A.6; f A.2; f A.12; f A.4; s; a B 40M 4; v B",
    "a A 100K; a B 1K; a C 60K; a D 1K; a E 80K; a F 1K; f A; f C; f E; a G 50K; a H 70K; a I 90K",
    "a A 100K; a B 1K; a C 60K; a D 1K; a E 80K; a F 1K; f A; f C; f E; s; a G 50K; a H 70K; "
    "a I 90K",
    "a A 1K 8; f A; a B 1K 8",
    "a A 1K 8; d A; a B 1K 8",
    "a A 40M; a B 50M; a C 60M; a D 70M; f A; f B; f C; f D; a E 45M; a F 65M; a G 35M",
    /* Splitting: what of the rest serves others? */
    "a A 31M; f A; a B 30M; a C 1M; a D 512K",
    "a A 4M; a X 1K; f A; a B 3584K; a C 512K",
    "a A 1G; f A; a B 1; a C 1G; a D 900M",
    "a A 1G; f A; s; a B 1; a C 1G; a D 900M",
    "a A 64M; m A; f A; a B 33M; v B; a C 31M; v C",
    "a A 256M; m A; f A; a B 20M; v B; a C 200M; v C; a D 30M; v D",
    "a A 100M; m A; f A; s; a B 20M; v B; a C 200M; v C",
    /* A small live block in the middle of memory that is free otherwise. */
    "a A 16M; a B 1K; a C 200M; m C; f A; f C; s; a D 220M; v D",
    "a A 256M; f A; a B 1K; a C 256M; v C",
    "a A 8M 32; m A; f A/2; f A.1; f A.3; s; a B 32M; v B; a C 100M; v C",
    /* Old addresses after their memory went elsewhere. */
    "a A 32M 8; m A; f A/2; s; a B 128M; v B; f B; s; a C 32M 4; v C",
    "a A 32M 8; m A; f A/2; s; a B 128M; f B; a C 32M 4; v C; a D 128M; v D",
    "a A 32M 8; m A; f A/2; s; a B 128M; v B; f A; s; a D 256M; v D",
    "a A 64M 16; f A/2; s; a B 512M; f B; f A; s; a C 1G; f C; s; a A 64M 16",
    /* What a trim gives back, with and without holes, before and after a wait. */
    "a A 32M 8; f A/2; s; t 0",
    "a A 32M 8; f A/2; t 0; s; t 0",
    "a A 16M 16; f A/2; s; t 0",
    "a A 48M 8; f A/2; s; t 0",
    "a A 2M 64; f A/2; s; t 0",
    "a A 1K; a B 100M; f B; s; t 0; a C 100M",
    "a A 100M; f A; s; t 50M; t 33M; t 32M; t 31M; t 1; t 0",
    "a A 1K 8; f A; s; t 0",
    "a A 100M; m A; f A; s; t 0; a B 100M; v B",
    "a A 1G; f A; s; t 900M; t 500M; t 100M; t 0",
    /* The release threshold. */
    "r 0; a A 100M; f A; s; a B 1K; s; f B; s",
    "r 0; a A 32M 8; f A/2; s; f A; s",
    "r 0; a A 16M 16; f A/2; s; f A; s",
    "r 64M; a A 32M 8; f A; s",
    "r 64M; a A 100M; f A; s",
    "r 0; a A 100M; f A; S",
    "r 0; a A 100M; f A; a B 100M; s",
    /* Between streams: with nothing, an event, a wait of the host. */
    "a A 64M; m A; f A; b B 64M",
    "a A 64M; f A; b B 64M",
    "a A 64M; f A; w; b B 64M",
    "a A 64M; f A; s; b B 64M",
    "b A 64M; g A; a B 64M; b C 64M",
    "a A 32M 8; m A; f A/2; w; b B 128M; v B",
    "a A 32M 8; f A/2; b B 128M",
    "a A 32M 4; b B 32M 4; f A; g B; a C 256M",
    "a A 32M 4; b B 32M 4; f A; g B; S; a C 256M; v C",
    /* A limit. */
    "l 100M; a A 60M; a B 60M; a C 36M; a D 32M",
    "l 256M; a A 32M 8; m A; f A/2; a B 128M; v B; f B; a C 160M",
    "l 256M; a A 48M 5; f A/2; a B 100M; s; a C 100M",
};
/* NOLINTEND(bugprone-suspicious-missing-comma) */

bool pool_probe(FILE *out)
{
    char script[64];

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        snprintf(script, sizeof(script), "a A %s; f A; s; t 0", sizes[i]);
        if (!pool_probe_script(out, script))
            return false;
    }
    for (size_t i = 0; i < sizeof(questions) / sizeof(questions[0]); i++)
        if (!pool_probe_script(out, questions[i]))
            return false;
    return true;
}
