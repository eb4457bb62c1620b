/*
 * The model cuda-async against the real pool on one H200 (bench/results/pool-h200*.jsonl): every
 * scripted question of the probe that the model's calls can express, and for the bundled traces the
 * peak and the address of every allocation.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/data.h"
#include "cli/json_read.h"
#include "cli/trace/trace.h"
#include "model_fixture.h"

enum {
    NAMES = 26,
    BLOCKS = 512, /* of one name */
};

/* ------------------------------------------------------------------ files of results */

struct results {
    char *text;
    size_t size, at;
    struct json_document *line; /* the last one read */
};

static void source_path(char *path, size_t size, const char *name)
{
    const char *root = getenv("MB_SOURCE_DIR");

    snprintf(path, size, "%s/%s", root ? root : ".", name);
}

static void open_results(struct results *r, const char *name)
{
    char path[4096];
    FILE *file;
    long size;

    source_path(path, sizeof(path), name);
    file = fopen(path, "r");
    if (!file)
        FAIL("%s cannot be read; MB_SOURCE_DIR must be the project's directory", path);
    CHECK(!fseek(file, 0, SEEK_END));
    size = ftell(file);
    CHECK(size > 0);
    rewind(file);
    *r = (struct results){.text = malloc((size_t)size), .size = (size_t)size};
    CHECK(r->text);
    CHECK_EQ(fread(r->text, 1, r->size, file), r->size);
    fclose(file);
}

/* NULL at the end. */
static const struct json_value *next_line(struct results *r)
{
    char error[160];
    size_t used = 0;

    json_free(r->line);
    r->line = NULL;
    while (r->at < r->size && r->text[r->at] == '\n')
        r->at++;
    if (r->at == r->size)
        return NULL;
    r->line = json_parse(r->text + r->at, r->size - r->at, &used, error);
    if (!r->line)
        FAIL("byte %zu: %s", r->at, error);
    r->at += used;
    return json_root(r->line);
}

static void close_results(struct results *r)
{
    json_free(r->line);
    free(r->text);
}

/* ------------------------------------------------------------------ the probe's scripts */

/* One script on a model. */
struct run {
    struct model *model;
    bool live[NAMES][BLOCKS];
    uint64_t first; /* address of the first block */
    const char *script;
};

static uint32_t slot_of(unsigned name, unsigned i)
{
    return name * BLOCKS + i;
}

/* «32M+1»: sizes as bench/pool_probe.c has them. */
static uint64_t parse_size(const char *text)
{
    uint64_t sum = 0;

    for (;;) {
        char *end = NULL;
        uint64_t part = strtoull(text, &end, 10);

        CHECK(end != text);
        part <<= *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
        end += *end == 'K' || *end == 'M' || *end == 'G';
        sum += part;
        if (*end != '+')
            return sum;
        text = end + 1;
    }
}

/*
 * Trims to a size are not the model's calls; limits are left out because the pool rounds them up to
 * granules, which a model must not.
 */
static bool can_run(const char *script)
{
    static const char *const others[] = {"l ", "t 5", "t 3", "t 1", "t 9"};

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (strstr(script, others[i]))
            return false;
    return true;
}

static void free_some(struct run *run, unsigned name, const char *which, bool down, uint32_t stream)
{
    unsigned number = *which ? (unsigned)strtoul(which + 1, NULL, 10) : 1;

    for (unsigned n = 0; n < BLOCKS; n++) {
        unsigned i = down ? BLOCKS - 1 - n : n;

        if (!run->live[name][i] || (*which == '.' ? i != number : i % number != 0))
            continue;
        CHECK_EQ(model_free(run->model, slot_of(name, i), stream), MODEL_OK);
        run->live[name][i] = false;
    }
}

static void allocate(struct run *run, unsigned name, const struct json_value *step, uint32_t stream)
{
    const char *rest = json_string(step, "step", "") + 3;
    const struct json_value *place = json_get(step, "places");
    unsigned count = 1;
    char size[32];

    CHECK(sscanf(rest, " %31s %u", size, &count) >= 1);
    place = place ? place->first : NULL;
    for (unsigned i = 0; i < count; i++, place = place->next) {
        uint64_t address;

        CHECK_EQ(model_alloc(run->model, slot_of(name, i), parse_size(size), stream), MODEL_OK);
        address = model_address(run->model, slot_of(name, i));
        run->live[name][i] = true;
        if (!run->first)
            run->first = address;
        CHECK(place);
        if ((long long)(address - run->first) != strtoll(place->text, NULL, 10))
            FAIL("«%s», step «%s», block %u: the model says %lld, the pool said %s", run->script,
                 json_string(step, "step", ""), i, (long long)(address - run->first), place->text);
    }
}

static void run_step(struct run *run, const struct json_value *step)
{
    const char *text = json_string(step, "step", "");
    unsigned name = (unsigned)(text[0] && text[1] ? text[2] - 'A' : 0);

    switch (text[0]) {
    case 's':
    case 'S':
        CHECK_EQ(model_sync(run->model), MODEL_OK);
        break;
    case 't':
        CHECK_EQ(model_trim(run->model), MODEL_OK);
        break;
    case 'm': /* marks: what memory a block has is not the model's to say */
    case 'v':
    case 'r': /* open_run() has seen it */
        break;
    case 'a':
    case 'b':
        allocate(run, name, step, text[0] == 'b');
        break;
    case 'f':
    case 'd':
    case 'g':
        free_some(run, name, text + 3, text[0] == 'd', text[0] == 'g');
        break;
    case 'w':
        CHECK_EQ(model_wait(run->model, 1, 0), MODEL_OK);
        break;
    default:
        FAIL("«%s»: step «%s» is unknown here", run->script, text);
    }
    check_model(run->model);
    if (RESERVED(run->model) != (uint64_t)json_number(step, "reserved", -1))
        FAIL("«%s», after step «%s»: the model holds %lu, the pool held %.0f", run->script, text,
             (unsigned long)RESERVED(run->model), json_number(step, "reserved", -1));
}

/* Scripts with a threshold begin with it. */
static struct model *open_run(const char *script)
{
    unsigned long long bytes = 0;
    char spec[64] = "cuda-async";
    char size[32];

    if (*script == 'r') {
        CHECK(sscanf(script, "r %31[^; ]", size) == 1);
        bytes = parse_size(size);
        snprintf(spec, sizeof(spec), "cuda-async,release_threshold:%llu", bytes);
    }
    return open_model(spec, 0);
}

TEST(the_model_answers_the_probe_as_the_pool_did)
{
    struct results results;
    const struct json_value *line;
    unsigned scripts = 0;
    unsigned left_out = 0;

    open_results(&results, "bench/results/pool-h200.jsonl");
    while ((line = next_line(&results))) {
        static struct run run; /* large */

        if (strcmp(json_string(line, "what", ""), "probe") != 0)
            continue;
        run = (struct run){.script = json_string(line, "script", "")};
        if (!can_run(run.script)) {
            left_out++;
            continue;
        }
        run.model = open_run(run.script);
        for (const struct json_value *s = json_get(line, "steps")->first; s; s = s->next)
            run_step(&run, s);
        model_close(run.model);
        scripts++;
    }
    close_results(&results);
    printf("  %u scripts as the pool answered, %u that a model has no calls for\n", scripts,
           left_out);
    CHECK_EQ(scripts + left_out, 145);
    CHECK_EQ(left_out, 5);
}

/* ------------------------------------------------------------------ traces */

struct answers {
    uint64_t first, digest; /* FNV-1a of 64 bits over the places, see the file's first line */
    uint64_t peak_bytes;
};

static void add_place(struct answers *a, uint64_t address)
{
    if (!a->first) {
        a->first = address;
        a->digest = UINT64_C(0xcbf29ce484222325);
    }
    for (unsigned i = 0; i < 8; i++) {
        a->digest ^= (address - a->first) >> (8 * i) & 0xff;
        a->digest *= UINT64_C(0x100000001b3);
    }
}

static void replay(const char *trace, struct answers *answers)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct model *model = open_model("cuda-async", 0);
    struct trace_reader *reader = NULL;
    struct trace_event event;
    enum trace_status status;
    char path[4096];
    char name[128];
    char error[1024];

    snprintf(name, sizeof(name), "data/torch/%s.csv.gz", trace);
    source_path(path, sizeof(path), name);
    if (trace_open(path, &options, &reader, error, sizeof(error)))
        FAIL("%s", error);
    *answers = (struct answers){.first = 0};
    while ((status = trace_next(reader, &event)) == TRACE_OK) {
        CHECK_EQ(model_event(model, &event), MODEL_OK);
        if (event.op == TRACE_ALLOC)
            add_place(answers, model_address(model, event.slot));
    }
    CHECK_EQ(status, TRACE_END);
    check_model(model);
    answers->peak_bytes = model_stats(model)->reserved_peak_bytes;
    trace_close(reader);
    model_close(model);
}

/* The bundled ones as recorded; the others need what is not in the project. */
static bool bundled(const struct json_value *line, const char *what)
{
    return !strcmp(json_string(line, "what", ""), what) && !json_truth(line, "derived", true) &&
           json_number(line, "generated_streams", 0) == 0 &&
           json_number(line, "limit_bytes", 0) == 0 && !json_truth(line, "logged", false);
}

TEST(every_block_of_the_traces_lies_where_the_pool_put_it)
{
    struct results results;
    const struct json_value *line;
    unsigned traces = 0;

    open_results(&results, "bench/results/pool-h200-places.jsonl");
    while ((line = next_line(&results))) {
        struct answers answers;

        if (!bundled(line, "places"))
            continue;
        replay(json_string(line, "trace", ""), &answers);
        if (answers.digest != strtoull(json_string(line, "digest", ""), NULL, 16))
            FAIL("%s: some block of the model lies elsewhere", json_string(line, "trace", ""));
        traces++;
    }
    close_results(&results);
    CHECK_EQ(traces, 5);
}

TEST(the_peaks_of_the_traces_are_the_pools)
{
    struct results results;
    const struct json_value *line;
    unsigned traces = 0;
    uint64_t allocated = 0;
    uint64_t reserved = 0;
    char data[4096];

    source_path(data, sizeof(data), "data");
    CHECK(!setenv("MOONBRIGHT_DATA", data, 1));
    open_results(&results, "bench/results/pool-h200.jsonl");
    while ((line = next_line(&results))) {
        struct answers answers;

        if (!bundled(line, "trace"))
            continue;
        replay(json_string(line, "trace", ""), &answers);
        CHECK_EQ(answers.peak_bytes, (uint64_t)json_number(line, "peak_reserved_bytes", 0));
        /* What bench frag shows as measured. */
        CHECK(data_recorded_pool(json_string(line, "trace", ""), &allocated, &reserved));
        CHECK_EQ(allocated, (uint64_t)json_number(line, "peak_allocated_bytes", 0));
        CHECK_EQ(reserved, answers.peak_bytes);
        traces++;
    }
    close_results(&results);
    CHECK_EQ(traces, 5);
}
