/* SPDX-License-Identifier: MIT */
#include "report.h"

#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "json.h"

double report_efficiency(uint64_t served_bytes, uint64_t reserved_bytes)
{
    return reserved_bytes ? (double)served_bytes / (double)reserved_bytes : 0;
}

bool report_is_simulated(const struct replay_result *result)
{
    return !strcmp(result->backend, "sim");
}

static double per_second(uint64_t count, uint64_t ns)
{
    return ns ? (double)count * 1e9 / (double)ns : 0;
}

/* ------------------------------------------------------------------ text */

static void print_peak(const char *label, uint64_t bytes, uint64_t allocated, const char *note)
{
    char text[CLI_NUMBER_MAX];

    printf("  %-20s%12s  %6.2f%%  %s\n", label, cli_format_bytes(bytes, text),
           100 * report_efficiency(allocated, bytes), note);
}

static void print_times(const char *label, const struct histogram *h)
{
    char p50[CLI_NUMBER_MAX];
    char p99[CLI_NUMBER_MAX];
    char max[CLI_NUMBER_MAX];
    char count[CLI_NUMBER_MAX];

    printf("  %-20s%12s  p50 %s, p99 %s, max %s\n", label, cli_format_count(h->count, count),
           cli_format_ns(histogram_percentile(h, 0.5), p50),
           cli_format_ns(histogram_percentile(h, 0.99), p99), cli_format_ns(h->max_ns, max));
}

static void print_count(const char *label, uint64_t count, const char *note)
{
    char text[CLI_NUMBER_MAX];

    printf("  %-20s%12s  %s\n", label, cli_format_count(count, text), note);
}

static void print_peaks(const struct replay_result *r)
{
    const struct trace_info *t = &r->trace;
    uint64_t allocated = r->served_peak_bytes;
    char text[CLI_NUMBER_MAX];

    printf("  %-20s%12s           %s\n", "peak allocated", cli_format_bytes(allocated, text),
           r->failed_requests ? "without the requests that failed" : "as the trace asked");
    if (r->failed_requests)
        printf("  %-20s%12s           with the requests that failed\n", "peak asked",
               cli_format_bytes(t->requested_peak_bytes, text));
    print_peak("peak reserved", r->stats.reserved_peak_bytes, allocated,
               "all bytes held from the driver");
    print_peak("peak frames in use", r->stats.frames_used_peak_bytes, allocated,
               "frames with at least one live byte");
    if (t->segments)
        print_peak("recorded reserved", t->segment_peak_bytes, t->requested_peak_bytes,
                   "PyTorch's own segments in this trace");
}

static void print_tables(const struct mb_stats *s)
{
    print_count("map batches", s->map_batches, "");
    print_count("unmap batches", s->unmap_batches, "");
    print_count("entries written", s->entries_written, "");
    print_count("invalidates", s->invalidates, "");
    print_count("stitches", s->stitches, "blocks made of scattered frames");
}

static void print_verify(const struct report_context *c, const struct replay_result *r)
{
    char writes[CLI_NUMBER_MAX];
    char reads[CLI_NUMBER_MAX];

    if (!strcmp(c->verify, "off"))
        printf("  %-20s%12s  try --verify\n", "contents", "not checked");
    else
        printf("  %-20s%12s  %s ranges written, %s read back; %llu blocks below 8 bytes not\n",
               "contents", c->verify, cli_format_count(r->writes, writes),
               cli_format_count(r->reads, reads), (unsigned long long)r->blocks_unchecked);
    print_count("wrong accesses", r->stats.wrong_accesses + r->stats.wrong_words + r->stats.faults,
                "stale or foreign translations, wrong words, faults");
}

void report_text(const struct report_context *c, const struct replay_result *r)
{
    char events[CLI_NUMBER_MAX];
    char time[CLI_NUMBER_MAX];
    char text[CLI_NUMBER_MAX];

    printf("%s: %s, %s events, %u stream%s, policy %s\n", c->trace,
           trace_format_name(r->trace.format), cli_format_count(r->trace.events, events),
           r->trace.streams, r->trace.streams == 1 ? "" : "s", c->policy);
    printf("on %s%s%s, page tables: %s%s\n", r->backend, r->device_name[0] ? ", " : "",
           r->device_name, r->tables,
           report_is_simulated(r) ? "; host times include the software GPU's own work" : "");
    print_peaks(r);
    printf("  %-20s%12s  calls a second; %s calls in %s of host time\n", "rate",
           cli_format_count((uint64_t)per_second(r->mallocs + r->frees, r->wall_ns), text),
           cli_format_count(r->mallocs + r->frees, events), cli_format_ns(r->wall_ns, time));
    print_times("malloc", &r->malloc_times);
    print_times("free", &r->free_times);
    print_tables(&r->stats);
    if (r->waits || r->uses)
        print_count("waits", r->waits, "of a stream for another's event");
    if (r->trace.frees_before_trace)
        print_count("frees of old blocks", r->trace.frees_before_trace,
                    "allocated before the trace began: nothing to free");
    if (r->trace.failures)
        print_count("recorded failures", r->trace.failures, "refused in the recorded run");
    if (r->trace.ignored)
        print_count("ignored records", r->trace.ignored, "they move no memory");
    if (r->trace.devices > 1)
        printf("  %-20s%12u  of %u with events; --trace-device chooses\n", "recorded device",
               r->trace.device, r->trace.devices);
    print_count("failed requests", r->failed_requests, "");
    print_verify(c, r);
    if (c->tables) {
        print_count("entries compared", r->entries.entries,
                    "with the record, by mb_check_tables()");
        print_count("wrong entries", r->entries.wrong, "");
        print_count("repaired", r->entries.repaired, "");
    }
    printf("  %-20s%12s  %s\n", "result", r->wrong ? "WRONG" : "ok", r->problem);
}

/* ------------------------------------------------------------------ JSON */

static void json_times(struct json_writer *w, const char *key, const struct histogram *h)
{
    json_object(w, key);
    json_u64(w, "count", h->count);
    json_u64(w, "p50_ns", histogram_percentile(h, 0.5));
    json_u64(w, "p99_ns", histogram_percentile(h, 0.99));
    json_u64(w, "p999_ns", histogram_percentile(h, 0.999));
    json_u64(w, "max_ns", h->max_ns);
    json_u64(w, "total_ns", h->total_ns);
    json_end_object(w);
}

static void json_head(struct json_writer *w, const struct report_context *c,
                      const struct replay_result *r)
{
    json_text(w, "trace", c->trace);
    json_text(w, "format", trace_format_name(r->trace.format));
    json_text(w, "policy", c->policy);
    json_text(w, "backend", r->backend);
    json_text(w, "tables", r->tables);
    json_text(w, "device", r->device_name);
    json_text(w, "version", mb_version());
    json_bool(w, "simulated", report_is_simulated(r));
    json_text(w, "verify", c->verify);
    json_u64(w, "seed", c->seed);
    json_u64(w, "generated_streams", c->streams);
    json_u64(w, "streams", r->trace.streams);
}

static void json_peaks(struct json_writer *w, const struct replay_result *r)
{
    const struct trace_info *t = &r->trace;
    const struct mb_stats *s = &r->stats;
    uint64_t allocated = r->served_peak_bytes;

    json_u64(w, "peak_allocated_bytes", allocated);
    json_u64(w, "peak_asked_bytes", t->requested_peak_bytes);
    json_u64(w, "peak_reserved_bytes", s->reserved_peak_bytes);
    json_u64(w, "peak_frames_used_bytes", s->frames_used_peak_bytes);
    json_double(w, "efficiency", report_efficiency(allocated, s->reserved_peak_bytes));
    json_double(w, "efficiency_frames_used",
                report_efficiency(allocated, s->frames_used_peak_bytes));
    json_u64(w, "recorded_peak_reserved_bytes", t->segment_peak_bytes);
    json_u64(w, "overhead_bytes", s->overhead_bytes);
    json_u64(w, "table_bytes", s->table_bytes);
}

static void json_counts(struct json_writer *w, const struct report_context *c,
                        const struct replay_result *r)
{
    const struct trace_info *t = &r->trace;
    const struct mb_stats *s = &r->stats;

    json_u64(w, "events", t->events);
    json_u64(w, "malloc_calls", r->mallocs);
    json_u64(w, "free_calls", r->frees);
    json_u64(w, "frees_before_trace", t->frees_before_trace);
    json_u64(w, "recorded_failures", t->failures);
    json_u64(w, "ignored_records", t->ignored);
    json_u64(w, "live_blocks_at_end", t->live_blocks);
    json_u64(w, "failed_requests", r->failed_requests);
    json_u64(w, "failed_bytes", r->failed_bytes);
    json_u64(w, "wrong_accesses", s->wrong_accesses + s->wrong_words + s->faults);
    json_u64(w, "oracle_wrong_accesses", s->wrong_accesses);
    json_u64(w, "wrong_words", s->wrong_words);
    json_u64(w, "faults", s->faults);
    if (c->tables) {
        json_u64(w, "tables_entries", r->entries.entries);
        json_u64(w, "tables_wrong", r->entries.wrong);
        json_u64(w, "tables_foreign", r->entries.foreign);
        json_u64(w, "tables_repaired", r->entries.repaired);
    }
    json_u64(w, "ranges_written", r->writes);
    json_u64(w, "ranges_read", r->reads);
    json_u64(w, "read_bytes", r->bytes_read);
    json_u64(w, "blocks_unchecked", r->blocks_unchecked);
    json_u64(w, "uses_on_other_streams", r->uses);
    json_u64(w, "stream_waits", r->waits);
    json_u64(w, "record_stream_calls", r->record_streams);
    json_u64(w, "map_batches", s->map_batches);
    json_u64(w, "unmap_batches", s->unmap_batches);
    json_u64(w, "entries_written", s->entries_written);
    json_u64(w, "invalidates", s->invalidates);
    json_u64(w, "epochs", s->epochs);
    json_u64(w, "stitches", s->stitches);
    json_u64(w, "grows", s->grows);
    json_u64(w, "trims", s->trims);
    json_u64(w, "va_handed_out_bytes", s->va_handed_out_bytes);
    json_u64(w, "quarantined_bytes", s->quarantined_bytes);
}

/* null where nothing ended the replay early. */
static void json_error(struct json_writer *w, const struct replay_result *r)
{
    if (!r->error) {
        json_text(w, "error", NULL);
        return;
    }
    json_object(w, "error");
    json_text(w, "name", mb_error_name(r->error));
    json_text(w, "meaning", mb_error_text(r->error));
    json_text(w, "detail", r->problem);
    json_end_object(w);
}

/* The device could not be opened: a number would look measured, all but the one that says so. */
static void json_not_opened(struct json_writer *w, const struct report_context *c,
                            const struct replay_result *r)
{
    json_object(w, NULL);
    json_text(w, "trace", c->trace);
    json_text(w, "policy", c->policy);
    json_text(w, "backend", NULL);
    json_text(w, "version", mb_version());
    json_double(w, "efficiency", 0);
    json_bool(w, "ok", false);
    json_text(w, "problem", r->problem);
    json_error(w, r);
    json_end_object(w);
    json_finish(w);
}

void report_json(const struct report_context *c, const struct replay_result *r)
{
    struct json_writer w = {.out = stdout};
    uint64_t calls = r->mallocs + r->frees;
    uint64_t in_calls_ns = r->malloc_times.total_ns + r->free_times.total_ns;

    if (!r->backend[0]) {
        json_not_opened(&w, c, r);
        return;
    }
    json_object(&w, NULL);
    json_head(&w, c, r);
    json_peaks(&w, r);
    json_counts(&w, c, r);
    json_double(&w, "ops_per_second", per_second(calls, r->wall_ns));
    json_double(&w, "ops_per_second_in_calls", per_second(calls, in_calls_ns));
    json_double(&w, "wall_seconds", (double)r->wall_ns / 1e9);
    json_times(&w, "malloc", &r->malloc_times);
    json_times(&w, "free", &r->free_times);
    json_bool(&w, "ok", !r->wrong);
    json_text(&w, "problem", r->problem);
    json_error(&w, r);
    json_end_object(&w);
    json_finish(&w);
}
