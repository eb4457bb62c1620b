/* SPDX-License-Identifier: MIT */
/*
 * replay.c - turns events into calls.
 *
 * ORDER  Allocations and frees come in the trace's order, each on its event's stream. Where a trace
 *        has a block freed on another stream than it was used on and does not say how the program
 *        ordered the two, an event is recorded on the one and waited for on the other, since the
 *        program must have done something like it.
 * CHECK  After the last event every live block is read and freed; then the accounts must be empty
 *        and the library's own check must hold. The trace's peak, kept by the reader, must be the
 *        library's.
 */
#include "replay.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "progress.h"

enum {
    PROGRESS_EVENTS = 2048, /* between two looks at the clock and the statistics */
};

/* A slot's block. Owner: the replay. */
enum block_state {
    BLOCK_NONE,
    BLOCK_LIVE,
    BLOCK_REFUSED, /* the request failed; its free is passed over */
};

/* Arrays by slot and by stream grow together with the numbers that the reader gives. */
struct replay {
    const struct replay_options *options;
    struct replay_result *result;
    mb_device dev;
    struct verifier verifier;
    struct verify_block *blocks; /* by slot */
    uint8_t *states;             /* by slot: enum block_state */
    uint32_t slot_capacity;
    uint32_t slots;                       /* 1 + the highest slot in use so far */
    mb_stream streams[TRACE_STREAMS_MAX]; /* by dense index; [0] is the default stream */
    mb_event events[TRACE_STREAMS_MAX];   /* one a stream, recorded anew for every wait */
    bool stream_open[TRACE_STREAMS_MAX];
    bool event_open[TRACE_STREAMS_MAX];
    uint64_t random;
    uint64_t line;      /* of the event at work */
    uint64_t polled_at; /* line of the last look at the statistics */
    struct progress progress;
};

/* ------------------------------------------------------------------ policies */

static enum mb_err ordered_malloc(mb_device dev, uint64_t bytes, mb_stream stream, void **out)
{
    return mb_malloc_async(dev, bytes, stream, out);
}

static enum mb_err ordered_free(mb_device dev, void *ptr, mb_stream stream)
{
    return mb_free_async(dev, ptr, stream);
}

static enum mb_err blocking_malloc(mb_device dev, uint64_t bytes, mb_stream stream, void **out)
{
    (void)stream;
    return mb_malloc(dev, bytes, out);
}

/* The program would have to wait for its work before a blocking free, and so do we. */
static enum mb_err blocking_free(mb_device dev, void *ptr, mb_stream stream)
{
    enum mb_err err = mb_stream_sync(dev, stream);

    return err ? err : mb_free(dev, ptr);
}

const struct replay_policy replay_policies[] = {
    {"moonbright", "stream-ordered: mb_malloc_async and mb_free_async", ordered_malloc,
     ordered_free},
    {"moonbright-blocking", "mb_malloc, and mb_free after the stream's work", blocking_malloc,
     blocking_free},
};
const unsigned replay_policy_count = sizeof(replay_policies) / sizeof(replay_policies[0]);

bool replay_policy_by_name(const char *name, const struct replay_policy **out)
{
    for (unsigned i = 0; i < replay_policy_count; i++) {
        if (!strcmp(replay_policies[i].name, name)) {
            *out = &replay_policies[i];
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------ problems */

/* Keeps the first problem. */
__attribute__((format(printf, 2, 3))) static void note_problem(struct replay *r, const char *format,
                                                               ...)
{
    va_list arguments;

    r->result->wrong = true;
    if (r->result->problem[0])
        return;
    va_start(arguments, format);
    vsnprintf(r->result->problem, sizeof(r->result->problem), format, arguments);
    va_end(arguments);
}

/* An error after which the replay cannot go on. */
static int fatal(struct replay *r, const char *call, enum mb_err err)
{
    if (!r->result->error)
        r->result->error = err;
    note_problem(r, "line %" PRIu64 ": %s: %s: %s", r->line, call, mb_error_name(err),
                 *mb_error_detail() ? mb_error_detail() : mb_error_text(err));
    return CLI_FAILED;
}

static int check_call(struct replay *r, const char *call, enum mb_err err)
{
    return err ? fatal(r, call, err) : CLI_OK;
}

static int no_memory(struct replay *r)
{
    return fatal(r, "replay", MB_ERR_HOST_MEMORY);
}

/* ------------------------------------------------------------------ streams */

static int get_stream(struct replay *r, uint32_t index, mb_stream *out)
{
    if (index && !r->stream_open[index]) {
        enum mb_err err = mb_stream_create(r->dev, &r->streams[index]);

        if (err)
            return fatal(r, "mb_stream_create", err);
        r->stream_open[index] = true;
    }
    *out = r->streams[index];
    return CLI_OK;
}

/* Later work of `stream` waits for what is on `other` now. */
static int make_wait(struct replay *r, uint32_t stream, uint32_t other)
{
    mb_stream later = NULL;
    mb_stream earlier = NULL;
    enum mb_err err = MB_OK;

    if (stream == other)
        return CLI_OK;
    if (get_stream(r, stream, &later) || get_stream(r, other, &earlier))
        return CLI_FAILED;
    if (!r->event_open[other]) {
        err = mb_event_create(r->dev, &r->events[other]);
        if (err)
            return fatal(r, "mb_event_create", err);
        r->event_open[other] = true;
    }
    err = mb_event_record(r->dev, r->events[other], earlier);
    if (!err)
        err = mb_stream_wait_event(r->dev, later, r->events[other]);
    if (err)
        return fatal(r, "mb_stream_wait_event", err);
    r->result->waits++;
    return CLI_OK;
}

/* ------------------------------------------------------------------ events */

static int need_slot(struct replay *r, uint32_t slot)
{
    uint32_t capacity = r->slot_capacity ? r->slot_capacity : 1024;
    struct verify_block *blocks;
    uint8_t *states;

    if (slot >= r->slots)
        r->slots = slot + 1;
    if (slot < r->slot_capacity)
        return CLI_OK;
    while (capacity <= slot)
        capacity *= 2;
    blocks = realloc(r->blocks, capacity * sizeof(*blocks));
    if (!blocks)
        return no_memory(r);
    r->blocks = blocks;
    states = realloc(r->states, capacity);
    if (!states)
        return no_memory(r);
    r->states = states;
    memset(states + r->slot_capacity, BLOCK_NONE, capacity - r->slot_capacity);
    r->slot_capacity = capacity;
    return CLI_OK;
}

static uint64_t random_next(struct replay *r)
{
    uint64_t z = (r->random += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Reads a part of some live block, as a program would at any moment. */
static int sample_live(struct replay *r)
{
    uint64_t random = random_next(r);
    uint32_t slot = (uint32_t)(random % r->slots);

    if (r->states[slot] != BLOCK_LIVE)
        return CLI_OK;
    return check_call(r, "mb_verify_async",
                      verifier_sample(&r->verifier, &r->blocks[slot], random));
}

static int refuse(struct replay *r, const struct trace_event *event, enum mb_err err)
{
    struct replay_result *result = r->result;

    if (err != MB_ERR_NO_MEMORY && err != MB_ERR_LIMIT && err != MB_ERR_NO_ADDRESS)
        return fatal(r, "malloc", err);
    if (!result->failed_requests)
        note_problem(r, "line %" PRIu64 ": a request of %" PRIu64 " bytes failed: %s: %.400s",
                     event->line, event->bytes, mb_error_name(err), mb_error_detail());
    result->failed_requests++;
    result->failed_bytes += event->bytes;
    r->states[event->slot] = BLOCK_REFUSED;
    return CLI_OK;
}

static int do_alloc(struct replay *r, const struct trace_event *event)
{
    struct verify_block *block;
    mb_stream stream = NULL;
    void *ptr = NULL;
    uint64_t begin;
    enum mb_err err;

    if (need_slot(r, event->slot) || get_stream(r, event->stream, &stream))
        return CLI_FAILED;
    begin = cli_now_ns();
    err = r->options->policy->malloc(r->dev, event->bytes, stream, &ptr);
    histogram_add(&r->result->malloc_times, cli_now_ns() - begin);
    r->result->mallocs++;
    if (err)
        return refuse(r, event, err);
    r->states[event->slot] = BLOCK_LIVE;
    r->result->served_bytes += event->bytes;
    if (r->result->served_bytes > r->result->served_peak_bytes)
        r->result->served_peak_bytes = r->result->served_bytes;
    block = &r->blocks[event->slot];
    *block = (struct verify_block){
        .va = (uint64_t)(uintptr_t)ptr, .bytes = event->bytes, .present = stream};
    if (r->options->verify == VERIFY_OFF)
        return CLI_OK;
    err = verifier_add(&r->verifier, event->slot, block);
    if (!err)
        err = verifier_read_neighbours(&r->verifier, event->slot, r->blocks);
    return err ? fatal(r, "mb_fill_async", err) : sample_live(r);
}

/* The last read, on the stream that may still use the block, and the order to the free's stream. */
static int before_free(struct replay *r, const struct trace_event *event)
{
    struct verify_block *block = &r->blocks[event->slot];

    if (r->options->verify != VERIFY_OFF) {
        if (get_stream(r, event->other, &block->present) ||
            check_call(r, "mb_verify_async", verifier_read(&r->verifier, block)))
            return CLI_FAILED;
        verifier_remove(&r->verifier, event->slot);
    }
    return event->ordered ? CLI_OK : make_wait(r, event->stream, event->other);
}

static int do_free(struct replay *r, const struct trace_event *event)
{
    mb_stream stream = NULL;
    uint64_t begin;
    enum mb_err err;

    if (event->before_trace)
        return CLI_OK;
    if (r->states[event->slot] == BLOCK_REFUSED) {
        r->states[event->slot] = BLOCK_NONE;
        return CLI_OK;
    }
    if (before_free(r, event) || get_stream(r, event->stream, &stream))
        return CLI_FAILED;
    r->states[event->slot] = BLOCK_NONE;
    r->result->served_bytes -= r->blocks[event->slot].bytes;
    begin = cli_now_ns();
    err = r->options->policy->free(r->dev, (void *)(uintptr_t)r->blocks[event->slot].va, stream);
    histogram_add(&r->result->free_times, cli_now_ns() - begin);
    r->result->frees++;
    return check_call(r, "free", err);
}

static int do_use(struct replay *r, const struct trace_event *event)
{
    struct verify_block *block = &r->blocks[event->slot];
    enum mb_err err;

    r->result->uses++;
    if (r->states[event->slot] != BLOCK_LIVE)
        return CLI_OK;
    if (get_stream(r, event->stream, &block->present))
        return CLI_FAILED;
    if (r->options->verify == VERIFY_OFF)
        return CLI_OK;
    err = verifier_read(&r->verifier, block);
    if (!err)
        err = verifier_write(&r->verifier, block);
    return check_call(r, "mb_fill_async", err);
}

static int do_record_stream(struct replay *r, const struct trace_event *event)
{
    mb_stream stream = NULL;

    r->result->record_streams++;
    if (r->states[event->slot] != BLOCK_LIVE)
        return CLI_OK;
    if (get_stream(r, event->stream, &stream))
        return CLI_FAILED;
    return check_call(
        r, "mb_record_stream",
        mb_record_stream(r->dev, (void *)(uintptr_t)r->blocks[event->slot].va, stream));
}

static int do_event(struct replay *r, const struct trace_event *event)
{
    switch (event->op) {
    case TRACE_ALLOC:
        return do_alloc(r, event);
    case TRACE_FREE:
        return do_free(r, event);
    case TRACE_WAIT:
        return make_wait(r, event->stream, event->other);
    case TRACE_USE:
        return do_use(r, event);
    case TRACE_RECORD_STREAM:
        return do_record_stream(r, event);
    default:
        return CLI_OK; /* the traced allocator's own business: the reader keeps count */
    }
}

/* ------------------------------------------------------------------ the run */

/* Notes between which lines the first wrong word or access was seen. */
static int poll_stats(struct replay *r)
{
    struct mb_stats stats;
    enum mb_err err = mb_stats_get(r->dev, &stats);

    if (err)
        return fatal(r, "mb_stats_get", err);
    if (!r->result->wrong_before && (stats.wrong_words || stats.wrong_accesses || stats.faults)) {
        r->result->wrong_after = r->polled_at;
        r->result->wrong_before = r->line;
    }
    r->polled_at = r->line;
    return CLI_OK;
}

static int run_events(struct replay *r, struct trace_reader *reader)
{
    struct trace_event event;
    enum trace_status status;

    while ((status = trace_next(reader, &event)) == TRACE_OK) {
        int code;

        r->line = event.line;
        code = do_event(r, &event);
        if (code)
            return code;
        if (++r->result->events % PROGRESS_EVENTS == 0) {
            code = poll_stats(r);
            if (code)
                return code;
            progress_update(&r->progress, r->result->events, trace_info(reader)->requested_bytes);
        }
        if (r->result->events == r->options->max_events)
            return CLI_OK;
    }
    if (status == TRACE_END)
        return CLI_OK;
    /* The input's fault is what the caller has to hear, whatever went wrong before. */
    r->result->bad_input = status != TRACE_HOST_MEMORY;
    r->result->problem[0] = '\0';
    note_problem(r, "%s", trace_error(reader));
    return status == TRACE_HOST_MEMORY ? CLI_FAILED : CLI_BAD_INPUT;
}

/* Every live entry against the record. What is wrong is the run's problem, also if it was repaired:
 * somebody else wrote there. */
static int compare_tables(struct replay *r)
{
    struct mb_tables_report found = {0}, *sum = &r->result->entries;
    enum mb_err err;

    if (r->options->tables == TABLES_OFF)
        return CLI_OK;
    err = mb_check_tables(r->dev, r->options->tables == TABLES_REPAIR, &found);
    sum->entries += found.entries;
    sum->wrong += found.wrong;
    sum->foreign += found.foreign;
    sum->repaired += found.repaired;
    if (found.wrong)
        note_problem(
            r, "%" PRIu64 " of %" PRIu64 " entries are not as the record says, the first at %p",
            found.wrong, found.entries, found.first);
    return err == MB_ERR_CORRUPT && found.wrong ? CLI_FAILED
                                                : check_call(r, "mb_check_tables", err);
}

/* Reads what still lives, waits for everything, and takes the final statistics. */
static int finish(struct replay *r)
{
    enum mb_err err = MB_OK;

    for (uint32_t slot = 0; slot < r->slots && r->options->verify != VERIFY_OFF && !err; slot++)
        if (r->states[slot] == BLOCK_LIVE)
            err = verifier_read(&r->verifier, &r->blocks[slot]);
    if (err)
        return fatal(r, "mb_verify_async", err);
    err = mb_device_sync(r->dev);
    if (err)
        return fatal(r, "mb_device_sync", err);
    if (poll_stats(r) || compare_tables(r))
        return CLI_FAILED;
    return check_call(r, "mb_stats_get", mb_stats_get(r->dev, &r->result->stats));
}

/* Frees what still lives; nothing may be left in the accounts then. */
static int empty(struct replay *r)
{
    struct mb_stats stats;
    enum mb_err err;

    for (uint32_t slot = 0; slot < r->slots; slot++) {
        if (r->states[slot] != BLOCK_LIVE)
            continue;
        err = r->options->policy->free(r->dev, (void *)(uintptr_t)r->blocks[slot].va,
                                       r->blocks[slot].present);
        if (err)
            return fatal(r, "free", err);
        r->states[slot] = BLOCK_NONE;
    }
    err = mb_device_sync(r->dev);
    if (!err)
        err = mb_stats_get(r->dev, &stats);
    if (!err && (stats.live_blocks || stats.requested_bytes))
        note_problem(r,
                     "after every free %" PRIu64 " blocks with %" PRIu64 " bytes are still in the "
                     "accounts",
                     stats.live_blocks, stats.requested_bytes);
    if (!err)
        err = mb_check(r->dev);
    if (err)
        return check_call(r, "mb_check", err);
    return compare_tables(r);
}

/* What must be so after a good run. */
static void judge(struct replay *r)
{
    const struct mb_stats *s = &r->result->stats;
    const struct replay_result *result = r->result;

    if (s->wrong_words || s->wrong_accesses || s->faults)
        note_problem(r,
                     "%" PRIu64 " wrong words, %" PRIu64 " wrong accesses, %" PRIu64
                     " faults; the first between lines %" PRIu64 " and %" PRIu64,
                     s->wrong_words, s->wrong_accesses, s->faults, result->wrong_after,
                     result->wrong_before);
    if (!result->failed_requests && result->served_peak_bytes != result->trace.requested_peak_bytes)
        note_problem(r, "the trace's peak is %" PRIu64 " bytes, %" PRIu64 " were asked for",
                     result->trace.requested_peak_bytes, result->served_peak_bytes);
    if (s->requested_peak_bytes != result->served_peak_bytes)
        note_problem(r,
                     "the peak of what was served is %" PRIu64
                     " bytes, the library's account says %" PRIu64,
                     result->served_peak_bytes, s->requested_peak_bytes);
}

static void name_device(struct replay *r)
{
    struct replay_result *result = r->result;

    snprintf(result->backend, sizeof(result->backend), "%s", mb_device_backend(r->dev));
    snprintf(result->tables, sizeof(result->tables), "%s", mb_device_tables(r->dev));
    snprintf(result->device_name, sizeof(result->device_name), "%s", mb_device_name(r->dev));
}

static int set_limit(struct replay *r)
{
    mb_pool pool = NULL;
    enum mb_err err;

    if (!r->options->limit_bytes)
        return CLI_OK;
    err = mb_pool_default(r->dev, &pool);
    if (!err)
        err = mb_pool_set(pool, MB_POOL_LIMIT, r->options->limit_bytes);
    return check_call(r, "mb_pool_set", err);
}

static void close_streams(struct replay *r)
{
    for (unsigned i = 0; i < TRACE_STREAMS_MAX; i++) {
        if (r->event_open[i])
            (void)mb_event_destroy(r->dev, r->events[i]);
        if (r->stream_open[i])
            (void)mb_stream_destroy(r->dev, r->streams[i]);
    }
}

static int run_on_device(struct replay *r, struct trace_reader *reader)
{
    struct replay_result *result = r->result;
    uint64_t begin;
    int code;

    name_device(r);
    code = set_limit(r);
    if (code)
        return code;
    verifier_init(&r->verifier, r->dev, r->options->verify, r->options->seed);
    begin = cli_now_ns();
    code = run_events(r, reader);
    if (!code)
        code = finish(r);
    if (code)
        (void)mb_stats_get(r->dev, &result->stats); /* so far; a lost device may refuse */
    result->wall_ns = cli_now_ns() - begin;
    result->trace = *trace_info(reader);
    result->writes = r->verifier.writes;
    result->reads = r->verifier.reads;
    result->bytes_read = r->verifier.bytes_read;
    result->blocks_unchecked = r->verifier.blocks_unchecked;
    if (!code)
        judge(r);
    if (!code)
        code = empty(r);
    verifier_fini(&r->verifier);
    close_streams(r);
    return code;
}

int replay_run(struct trace_reader *reader, const char *name, const struct replay_options *options,
               struct replay_result *result)
{
    struct replay *r = calloc(1, sizeof(*r));
    enum mb_err err;
    int code;

    memset(result, 0, sizeof(*result));
    if (!r) {
        result->wrong = true;
        snprintf(result->problem, sizeof(result->problem), "the host is out of memory");
        return CLI_FAILED;
    }
    r->options = options;
    r->result = result;
    r->random = options->seed;
    err = mb_open((int)options->device, options->config, &r->dev);
    if (err) {
        result->error = err;
        note_problem(r, "mb_open: %s: %s", mb_error_name(err), mb_error_detail());
        code = err == MB_ERR_CONFIG ? CLI_BAD_INPUT : CLI_FAILED;
    } else {
        progress_begin(&r->progress, name, options->quiet);
        code = run_on_device(r, reader);
        progress_end(&r->progress);
        mb_close(r->dev);
    }
    free(r->blocks);
    free(r->states);
    free(r);
    return code ? code : result->wrong ? CLI_FAILED : CLI_OK;
}
