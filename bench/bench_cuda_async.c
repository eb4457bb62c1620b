/* SPDX-License-Identifier: MIT */
/*
 * bench_cuda_async.c - the driver's own pool, fed with traces: peak reserved and peak used bytes,
 * time per call, the same peaks of the model cuda-async beside them; and the probe of its rules.
 *
 *     bench_cuda_async [OPTION...] [DIRECTORY of the bundled traces; default data/torch]
 *
 *     --check         status 1 if the model's reserved peak is more than 10% off the pool's
 *     --all           also: the traces over 4 streams, moe-offload-recompute under 5,000 MiB, the
 *                     probe, and every trace of --derived
 *     --derived DIR   more traces, *.csv.gz
 *     --json FILE     one JSON line a measurement, the first one about the run
 *     --log FILE.gz   every call with its address and what the pool held, in a pass of its own
 *     --script TEXT   only this script of the probe, answers to standard output; see pool_probe.c
 *     --seconds N     what has not begun after N seconds is left out, and said so; default 120
 *     --commit TEXT   for the JSON; default is the variable COMMIT
 *
 * Exit status: 0 measured or no GPU (said so), 1 an error or --check found the model off, 2 wrong
 * arguments; with --check 77 without a GPU.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "cli/json.h"
#include "cli/models/model.h"
#include "cli/trace/trace.h"
#include "pool_driver.h"
#include "pool_probe.h"

#define TOLERANCE 0.10
#define SEED 1 /* of generated streams, as `moonbright bench frag` has it */

enum { STREAMS_MAX = 64, GROWTHS_MAX = 4096 };

static struct {
    bool check, all;
    const char *directory, *derived, *json, *log, *script, *commit;
    double seconds;
} option = {.directory = "data/torch", .seconds = 120};

/* One trace to be fed, and how. */
struct job {
    const char *name, *path;
    unsigned streams; /* generated; 0: as recorded */
    uint64_t limit_bytes;
    bool derived; /* of --derived: no recording */
    bool logged;
};

/*
 * One number for where the blocks of a pass lay: FNV-1a of 64 bits over the addresses in the order
 * of the requests, each less that of the first, as eight bytes, lowest first.
 */
struct places {
    uint64_t first, digest;
};

/* What the pool answered. */
struct outcome {
    struct places places, model_places;
    uint64_t reserved_high, used_high, requested_peak;
    uint64_t calls, refused;
    double us_per_call;
    uint64_t growths, growth_call[GROWTHS_MAX], growth_reserved[GROWTHS_MAX];
};

/* A block of the trace. */
struct block {
    cu_pointer at;  /* 0: not live, or refused */
    uint64_t users; /* bit s: the allocator was told that stream s uses it */
};

/* The pool, and where the live blocks of the trace are. Owner: measure(). */
struct real {
    void *pool;
    void *streams[STREAMS_MAX];
    struct block *blocks;
    size_t capacity;
    struct outcome *outcome;
    gzFile log; /* NULL: no log */
    uint64_t reserved;
};

static void add_place(struct places *places, uint64_t address)
{
    if (!places->first)
        *places = (struct places){.first = address, .digest = UINT64_C(0xcbf29ce484222325)};
    for (unsigned i = 0; i < 8; i++) {
        places->digest ^= (address - places->first) >> (8 * i) & 0xff;
        places->digest *= UINT64_C(0x100000001b3);
    }
}

/* ------------------------------------------------------------------ events for the pool */

static bool make_room(struct real *real, uint32_t slot)
{
    size_t capacity = 2 * (size_t)slot + 1024;
    struct block *grown;

    if (slot < real->capacity)
        return true;
    grown = realloc(real->blocks, capacity * sizeof(*grown));
    if (!grown) {
        fprintf(stderr, "bench_cuda_async: the host is out of memory\n");
        return false;
    }
    memset(grown + real->capacity, 0, (capacity - real->capacity) * sizeof(*grown));
    real->blocks = grown;
    real->capacity = capacity;
    return true;
}

/* The call just made, and what the pool holds if that has changed. */
static void log_call(struct real *real, const struct trace_event *event)
{
    struct outcome *o = real->outcome;
    uint64_t reserved;

    if (!real->log)
        return;
    reserved = pool_attribute(real->pool, POOL_RESERVED);
    gzprintf(real->log, "%c,%u,%llu", event->op == TRACE_ALLOC ? 'a' : 'f', event->slot,
             (unsigned long long)event->bytes);
    if (event->op == TRACE_ALLOC)
        gzprintf(real->log, ",%llx", real->blocks[event->slot].at);
    if (reserved != real->reserved) {
        gzprintf(real->log, ",reserved %llu", (unsigned long long)reserved);
        if (o->growths < GROWTHS_MAX) {
            o->growth_call[o->growths] = o->calls;
            o->growth_reserved[o->growths] = reserved;
        }
        o->growths++;
    }
    gzputs(real->log, "\n");
    real->reserved = reserved;
}

static bool real_alloc(struct real *real, const struct trace_event *event)
{
    struct block *block;
    cu_result result;

    if (!make_room(real, event->slot))
        return false;
    block = &real->blocks[event->slot];
    *block = (struct block){.at = 0};
    result = cu.alloc(&block->at, event->bytes, real->pool, real->streams[event->stream]);
    real->outcome->calls++;
    if (result == CU_OUT_OF_MEMORY) {
        block->at = 0;
        real->outcome->refused++;
        return true;
    }
    if (!pool_fine("cuMemAllocFromPoolAsync", result))
        return false;
    add_place(&real->outcome->places, block->at);
    log_call(real, event);
    return true;
}

/* The stream of the free waits for whoever uses the block, as PyTorch's backend makes it. */
static bool real_free(struct real *real, const struct trace_event *event)
{
    struct block *block = &real->blocks[event->slot];
    uint64_t users = block->users;
    cu_pointer at = block->at;

    *block = (struct block){.at = 0};
    if (!at)
        return true;
    if (!event->ordered && event->other < STREAMS_MAX)
        users |= UINT64_C(1) << event->other;
    for (unsigned s = 0; users >> s; s++)
        if (users >> s & 1 && s != event->stream &&
            !pool_order(real->streams[event->stream], real->streams[s]))
            return false;
    real->outcome->calls++;
    if (!pool_fine("cuMemFreeAsync", cu.free(at, real->streams[event->stream])))
        return false;
    log_call(real, event);
    return true;
}

static bool real_event(struct real *real, const struct trace_event *event)
{
    if (event->stream >= STREAMS_MAX)
        return false;
    if (!real->streams[event->stream] && !pool_stream(&real->streams[event->stream]))
        return false;
    switch (event->op) {
    case TRACE_ALLOC:
        return real_alloc(real, event);
    case TRACE_FREE:
        return event->before_trace || real_free(real, event);
    case TRACE_WAIT:
        return event->other >= STREAMS_MAX || !real->streams[event->other] ||
               pool_order(real->streams[event->stream], real->streams[event->other]);
    case TRACE_RECORD_STREAM:
        real->blocks[event->slot].users |= UINT64_C(1) << event->stream;
        return true;
    default:
        return true;
    }
}

/* ------------------------------------------------------------------ a trace */

static bool open_trace(const struct job *job, struct trace_reader **reader)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *spread = NULL;
    char error[1024];

    if (trace_open(job->path, &options, reader, error, sizeof(error))) {
        fprintf(stderr, "bench_cuda_async: %s\n", error);
        return false;
    }
    if (!job->streams)
        return true;
    if (trace_open_streams(*reader, job->streams, SEED, &spread)) {
        fprintf(stderr, "bench_cuda_async: %s over %u streams cannot be made\n", job->path,
                job->streams);
        trace_close(*reader);
        return false;
    }
    *reader = spread;
    return true;
}

static bool model_takes(struct model *model, const struct trace_event *event, struct places *places)
{
    enum model_status status = model_event(model, event);

    if (event->op == TRACE_ALLOC && status == MODEL_OK)
        add_place(places, model_address(model, event->slot));
    return status == MODEL_OK || status == MODEL_NO_MEMORY;
}

/* Every event of the trace to one of the two; the other is NULL. */
static bool feed(const struct job *job, struct real *real, struct model *model,
                 struct places *places)
{
    struct trace_reader *reader = NULL;
    struct trace_event event;
    enum trace_status status;
    bool fine = true;

    if (!open_trace(job, &reader))
        return false;
    while (fine && (status = trace_next(reader, &event)) == TRACE_OK) {
        fine = real ? real_event(real, &event) : model_takes(model, &event, places);
    }
    if (fine && status != TRACE_END) {
        fprintf(stderr, "bench_cuda_async: %s\n", trace_error(reader));
        fine = false;
    }
    if (fine && real)
        real->outcome->requested_peak = trace_info(reader)->requested_peak_bytes;
    trace_close(reader);
    return fine;
}

static bool sync_all(struct real *real)
{
    for (unsigned s = 0; s < STREAMS_MAX; s++)
        if (real->streams[s] && !pool_fine("cuStreamSynchronize", cu.stream_sync(real->streams[s])))
            return false;
    return true;
}

/* Blocks that live at the end of the trace go too, so that the next trace has all memory. */
static bool close_real(struct real *real)
{
    bool fine = true;

    for (size_t i = 0; fine && i < real->capacity; i++)
        if (real->blocks[i].at)
            fine = pool_fine("cuMemFreeAsync", cu.free(real->blocks[i].at, real->streams[0]));
    fine = fine && sync_all(real) && pool_fine("cuMemPoolDestroy", cu.pool_destroy(real->pool));
    for (unsigned s = 0; s < STREAMS_MAX; s++)
        if (real->streams[s])
            fine = pool_fine("cuStreamDestroy", cu.stream_destroy(real->streams[s])) && fine;
    free(real->blocks);
    return fine;
}

static bool measure(const struct job *job, gzFile log, struct outcome *outcome)
{
    struct real real = {.pool = NULL, .outcome = outcome, .log = job->logged ? log : NULL};
    double start;

    memset(outcome, 0, sizeof(*outcome));
    if (real.log)
        gzprintf(real.log, "# %s%s, limit %llu\n", job->name, job->derived ? ", derived" : "",
                 (unsigned long long)job->limit_bytes);
    if (!pool_open(&real.pool, job->limit_bytes) || !pool_stream(&real.streams[0]))
        return false;
    start = pool_now_us();
    if (!feed(job, &real, NULL, NULL) || !sync_all(&real))
        return false;
    outcome->us_per_call = (pool_now_us() - start) / (double)outcome->calls;
    outcome->reserved_high = pool_attribute(real.pool, POOL_RESERVED_HIGH);
    outcome->used_high = pool_attribute(real.pool, POOL_USED_HIGH);
    return close_real(&real);
}

/* ------------------------------------------------------------------ results */

static void put_growth(struct json_writer *w, const struct outcome *o)
{
    json_u64(w, "growths", o->growths);
    json_array(w, "growth");
    for (uint64_t i = 0; i < o->growths && i < GROWTHS_MAX; i++) {
        json_array(w, NULL);
        json_u64(w, NULL, o->growth_call[i]);
        json_u64(w, NULL, o->growth_reserved[i]);
        json_end_array(w);
    }
    json_end_array(w);
}

static void put_job(FILE *out, const struct job *job, const struct outcome *o,
                    const struct model_stats *model)
{
    struct json_writer w = {.out = out};
    char digest[17];

    json_object(&w, NULL);
    json_text(&w, "what", "trace");
    json_text(&w, "trace", job->name);
    json_bool(&w, "derived", job->derived);
    json_u64(&w, "generated_streams", job->streams);
    json_u64(&w, "seed", SEED);
    json_u64(&w, "limit_bytes", job->limit_bytes);
    json_text(&w, "release_threshold", "max");
    json_bool(&w, "logged", job->logged);
    json_u64(&w, "calls", o->calls);
    json_u64(&w, "failed_requests", o->refused);
    json_u64(&w, "peak_allocated_bytes", o->requested_peak);
    json_u64(&w, "peak_reserved_bytes", o->reserved_high);
    json_u64(&w, "peak_used_bytes", o->used_high);
    if (o->reserved_high)
        json_double(&w, "efficiency", (double)o->used_high / (double)o->reserved_high);
    json_double(&w, "us_per_call", o->us_per_call);
    json_u64(&w, "model_peak_reserved_bytes", model->reserved_peak_bytes);
    json_u64(&w, "model_peak_granted_bytes", model->granted_peak_bytes);
    json_u64(&w, "model_failed_requests", model->failed_requests);
    snprintf(digest, sizeof(digest), "%016" PRIx64, o->places.digest);
    json_text(&w, "places", digest);
    snprintf(digest, sizeof(digest), "%016" PRIx64, o->model_places.digest);
    json_text(&w, "model_places", digest);
    if (job->logged)
        put_growth(&w, o);
    json_end_object(&w);
    json_finish(&w);
    fflush(out);
}

/* The model's reserved peak over the pool's goes to *ratio. */
static bool run_job(const struct job *job, FILE *json, gzFile log, double *ratio)
{
    static struct outcome outcome; /* too large for the stack */
    const struct model_stats *stats;
    struct model *model = NULL;
    char error[256];
    bool fine;

    if (model_open("cuda-async", job->limit_bytes, &model, error, sizeof(error))) {
        fprintf(stderr, "bench_cuda_async: %s\n", error);
        return false;
    }
    stats = model_stats(model);
    fine = measure(job, log, &outcome) && feed(job, NULL, model, &outcome.model_places);
    if (fine) {
        *ratio = outcome.reserved_high
                     ? (double)stats->reserved_peak_bytes / (double)outcome.reserved_high
                     : 0;
        printf("%-23s%3u%14lu%14lu%+8.2f%%%14lu%14lu%5lu%9.2f  %s\n", job->name, job->streams,
               (unsigned long)outcome.reserved_high, (unsigned long)stats->reserved_peak_bytes,
               100 * (*ratio - 1), (unsigned long)outcome.used_high,
               (unsigned long)stats->granted_peak_bytes, (unsigned long)outcome.refused,
               outcome.us_per_call,
               outcome.places.digest == outcome.model_places.digest ? "same" : "other");
        if (json)
            put_job(json, job, &outcome, stats);
    }
    model_close(model);
    return fine;
}

static void put_run(FILE *out, const char *device, int argc, char **argv)
{
    struct json_writer w = {.out = out};
    char release[64];
    int version = 0;

    pool_driver_release(release, sizeof(release));
    cu.version(&version);
    json_object(&w, NULL);
    json_text(&w, "what", "run");
    json_text(&w, "bench", "cuda-async");
    json_text(&w, "commit", option.commit);
    json_text(&w, "device", device);
    json_text(&w, "driver", release);
    json_u64(&w, "cuda", (uint64_t)version);
    json_array(&w, "command");
    for (int i = 0; i < argc; i++)
        json_text(&w, NULL, argv[i]);
    json_end_array(&w);
    json_end_object(&w);
    json_finish(&w);
    fflush(out);
}

/* ------------------------------------------------------------------ what is run */

/* The jobs of a run. Owner: main(). */
struct plan {
    struct job *jobs;
    size_t count, capacity;
};

static bool add(struct plan *plan, const char *directory, const char *name, struct job job)
{
    char path[4096];
    struct job *grown;

    if (plan->count == plan->capacity) {
        grown = realloc(plan->jobs, (2 * plan->capacity + 16) * sizeof(*grown));
        if (!grown)
            return false;
        plan->jobs = grown;
        plan->capacity = 2 * plan->capacity + 16;
    }
    snprintf(path, sizeof(path), "%s/%s.csv.gz", directory, name);
    job.path = strdup(path);
    job.name = strdup(name);
    plan->jobs[plan->count++] = job;
    return job.path && job.name;
}

static int of_traces(const struct dirent *entry)
{
    const char *end = strstr(entry->d_name, ".csv.gz");

    return end && end[7] == '\0';
}

/* Every trace of the directory, in the order of names. */
static bool add_all(struct plan *plan, const char *directory)
{
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, of_traces, alphasort);
    bool fine = count > 0;

    if (!fine)
        fprintf(stderr, "bench_cuda_async: there are no *.csv.gz in %s\n", directory);
    for (int i = 0; i < count; i++) {
        entries[i]->d_name[strlen(entries[i]->d_name) - strlen(".csv.gz")] = '\0';
        fine = fine && add(plan, directory, entries[i]->d_name, (struct job){.derived = true});
        free(entries[i]);
    }
    free((void *)entries);
    return fine;
}

static const char *const traces[] = {"densenet161", "gpt2", "llama-recompute",
                                     "moe-offload-recompute", "llama-generate-beam4"};
enum { TRACES = sizeof(traces) / sizeof(traces[0]) };

static bool make_plan(struct plan *plan)
{
    bool fine = true;
    size_t plain;

    for (unsigned i = 0; fine && i < TRACES; i++)
        fine = add(plan, option.directory, traces[i], (struct job){.streams = 0});
    if (option.all) {
        for (unsigned i = 0; fine && i < TRACES; i++)
            fine = add(plan, option.directory, traces[i], (struct job){.streams = 4});
        fine = fine && add(plan, option.directory, "moe-offload-recompute",
                           (struct job){.limit_bytes = UINT64_C(5000) << 20});
    }
    if (fine && option.derived)
        fine = add_all(plan, option.derived);
    plain = plan->count;
    for (size_t i = 0; fine && option.log && i < plain; i++) {
        struct job job = plan->jobs[i];
        const char *directory =
            i < TRACES || job.streams || job.limit_bytes ? option.directory : option.derived;

        job.logged = true;
        fine = job.streams || add(plan, directory, job.name, job);
    }
    return fine;
}

/* Jobs that --check counts are the bundled traces as recorded, which come first. */
static bool run_plan(const struct plan *plan, FILE *json, gzFile log, unsigned *apart)
{
    double end = pool_now_us() + option.seconds * 1e6;

    printf("%-23s%3s%14s%14s%9s%14s%14s%5s%9s  %s\n", "trace", "str", "reserved", "model", "",
           "used", "model", "ref.", "us/call", "places");
    for (size_t i = 0; i < plan->count; i++) {
        double ratio = 1;

        if (pool_now_us() > end) {
            printf("%zu of %zu passes were left out: the %.0f seconds are over\n", plan->count - i,
                   plan->count, option.seconds);
            return true;
        }
        if (!run_job(&plan->jobs[i], json, log, &ratio))
            return false;
        if (i < TRACES)
            *apart += ratio < 1 - TOLERANCE || ratio > 1 + TOLERANCE;
    }
    return true;
}

static int run(const char *device, int argc, char **argv)
{
    FILE *json = option.json ? fopen(option.json, "w") : NULL;
    gzFile log = option.log ? gzopen(option.log, "wb6") : NULL;
    struct plan plan = {.jobs = NULL};
    unsigned apart = 0;
    bool fine = (!option.json || json) && (!option.log || log);

    if (!fine)
        fprintf(stderr, "bench_cuda_async: %s cannot be written\n",
                option.json && !json ? option.json : option.log);
    printf("cudaMallocAsync's pool on %s beside the «model» cuda-async, bytes\n", device);
    if (fine && json)
        put_run(json, device, argc, argv);
    if (fine && option.all && json)
        fine = pool_probe(json) && !fflush(json);
    fine = fine && make_plan(&plan) && run_plan(&plan, json, log, &apart);
    if (fine)
        printf("%u of %d reserved peaks are more than %.0f%% apart\n", apart, TRACES,
               100 * TOLERANCE);
    for (size_t i = 0; i < plan.count; i++) {
        free((void *)plan.jobs[i].name);
        free((void *)plan.jobs[i].path);
    }
    free(plan.jobs);
    if (json && fclose(json))
        fine = false;
    if (log && gzclose(log) != Z_OK)
        fine = false;
    return fine && !(option.check && apart) ? 0 : 1;
}

/* ------------------------------------------------------------------ arguments */

static bool parse(int argc, char **argv)
{
    static const struct {
        const char *name;
        const char **target;
    } texts[] = {{"--derived", &option.derived},
                 {"--json", &option.json},
                 {"--log", &option.log},
                 {"--script", &option.script},
                 {"--commit", &option.commit}};
    enum { TEXTS = sizeof(texts) / sizeof(texts[0]) };

    option.commit = getenv("COMMIT");
    for (int i = 1; i < argc; i++) {
        unsigned t = 0;

        while (t < TEXTS && strcmp(argv[i], texts[t].name) != 0)
            t++;
        if (!strcmp(argv[i], "--check")) {
            option.check = true;
        } else if (!strcmp(argv[i], "--all")) {
            option.all = true;
        } else if (t < TEXTS && i + 1 < argc) {
            *texts[t].target = argv[++i];
        } else if (!strcmp(argv[i], "--seconds") && i + 1 < argc && atof(argv[i + 1]) > 0) {
            option.seconds = atof(argv[++i]);
        } else if (argv[i][0] != '-') {
            option.directory = argv[i];
        } else {
            fprintf(stderr,
                    "bench_cuda_async: %s is no option or lacks its value; there are --check, "
                    "--all, --derived DIR, --json FILE, --log FILE.gz, --script TEXT, "
                    "--seconds N (above 0), --commit TEXT\n",
                    argv[i]);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    char device[96] = "";
    const char *problem;

    if (!parse(argc, argv))
        return 2;
    problem = pool_driver_open(device);
    if (problem) {
        printf("SKIP: bench_cuda_async: %s\n", problem);
        return option.check ? 77 : 0;
    }
    if (option.script)
        return pool_probe_script(stdout, option.script) ? 0 : 1;
    return run(device, argc, argv);
}
