/* SPDX-License-Identifier: MIT */
/* run.c - a trace through a model. */
#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../cli.h"

bool model_named(const char *spec)
{
    size_t length = strcspn(spec, ",");

    for (size_t i = 0; model_infos[i]; i++)
        if (strlen(model_infos[i]->name) == length && !memcmp(model_infos[i]->name, spec, length))
            return true;
    return false;
}

/* Until the end of the trace or a failure; returns an enum cli_exit. */
static int feed(struct trace_reader *reader, struct model *model, uint64_t max_events,
                struct model_result *result)
{
    struct trace_event event;
    enum trace_status status = TRACE_END;

    while (!max_events || trace_info(reader)->events < max_events) {
        status = trace_next(reader, &event);
        if (status)
            break;
        if (model_event(model, &event) == MODEL_HOST_MEMORY)
            status = TRACE_HOST_MEMORY;
        if (status)
            break;
    }
    if (status == TRACE_BAD_INPUT || status == TRACE_CANNOT_READ) {
        snprintf(result->problem, sizeof(result->problem), "%s", trace_error(reader));
        return CLI_BAD_INPUT;
    }
    if (status == TRACE_HOST_MEMORY) {
        snprintf(result->problem, sizeof(result->problem), "the host is out of memory");
        return CLI_FAILED;
    }
    return CLI_OK;
}

int model_run(struct trace_reader *reader, const char *spec, uint64_t limit_bytes,
              uint64_t max_events, struct model_result *result)
{
    struct model *model = NULL;
    uint64_t start = cli_now_ns();
    char broken[256];
    int code;
    enum model_status status;

    memset(result, 0, sizeof(*result));
    snprintf(result->spec, sizeof(result->spec), "%s", spec);
    result->limit_bytes = limit_bytes;
    status = model_open(spec, limit_bytes, &model, result->problem, sizeof(result->problem));
    if (status)
        return status == MODEL_HOST_MEMORY ? CLI_FAILED : CLI_BAD_INPUT;
    code = feed(reader, model, max_events, result);
    if (!code && !model_check(model, broken, sizeof(broken))) {
        snprintf(result->problem, sizeof(result->problem), "the model is broken: %s", broken);
        code = CLI_FAILED;
    }
    result->info = model_info(model);
    result->stats = *model_stats(model);
    result->trace = *trace_info(reader);
    result->host_ns = cli_now_ns() - start;
    model_close(model);
    return code;
}

static double ratio(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 1;
}

static void print_bytes(const char *name, uint64_t bytes, const char *note)
{
    char text[CLI_NUMBER_MAX];

    printf("  %-20s%12s  %s\n", name, cli_format_bytes(bytes, text), note);
}

static void print_count(const char *name, uint64_t count, const char *note)
{
    char text[CLI_NUMBER_MAX];

    printf("  %-20s%12s%s%s\n", name, cli_format_count(count, text), *note ? "  " : "", note);
}

void model_report_text(const char *trace, const struct model_result *r)
{
    const struct model_stats *s = &r->stats;
    char text[CLI_NUMBER_MAX];

    printf("%s: %s, %s events, %u stream%s, policy %s %s\n", trace,
           trace_format_name(r->trace.format), cli_format_count(r->trace.events, text),
           r->trace.streams, r->trace.streams == 1 ? "" : "s", r->spec, MODEL_MARK);
    printf("%s: %s; no device was used, nothing was timed\n", MODEL_MARK, r->info->summary);
    print_bytes("peak allocated", s->requested_peak_bytes, "as the trace asked");
    print_bytes("peak granted", s->granted_peak_bytes, "after the policy's rounding");
    print_bytes("peak reserved", s->reserved_peak_bytes, "all bytes held from the driver");
    printf("  %-20s%11.2f%%  peak allocated / peak reserved\n", "efficiency",
           100 * ratio(s->requested_peak_bytes, s->reserved_peak_bytes));
    printf("  %-20s%11.2f%%  peak granted / peak reserved, as PyTorch reports it\n", "",
           100 * ratio(s->granted_peak_bytes, s->reserved_peak_bytes));
    if (r->trace.segments)
        print_bytes("recorded reserved", r->trace.segment_peak_bytes,
                    "PyTorch's own segments in this trace");
    print_count("driver calls", model_driver_calls(s), "");
    print_count("  allocations", s->driver_allocs, "cudaMalloc or cuMemCreate");
    print_count("  frees", s->driver_frees, "cudaFree or cuMemRelease");
    print_count("  maps, unmaps", s->driver_maps + s->driver_unmaps, "");
    print_count("waits", s->waits, "of the host or a stream, forced by the policy");
    print_count("searches", s->searches, "");
    print_count("splits, merges", s->splits + s->merges, "");
    print_count("stitches", s->stitches, "");
    print_count("cache emptied", s->retries, "times, to serve a request");
    if (s->unknown_frees)
        print_count("frees of old blocks", s->unknown_frees, "or of refused requests");
    print_count("failed requests", s->failed_requests, "");
}

void model_json_figures(struct json_writer *w, const struct model_result *r)
{
    const struct model_stats *s = &r->stats;

    json_u64(w, "peak_allocated_bytes", s->requested_peak_bytes);
    json_u64(w, "peak_granted_bytes", s->granted_peak_bytes);
    json_u64(w, "peak_reserved_bytes", s->reserved_peak_bytes);
    json_double(w, "efficiency", ratio(s->requested_peak_bytes, s->reserved_peak_bytes));
    json_double(w, "efficiency_granted", ratio(s->granted_peak_bytes, s->reserved_peak_bytes));
    json_u64(w, "failed_requests", s->failed_requests);
    json_u64(w, "driver_calls", model_driver_calls(s));
    json_u64(w, "driver_allocs", s->driver_allocs);
    json_u64(w, "driver_frees", s->driver_frees);
    json_u64(w, "driver_maps", s->driver_maps);
    json_u64(w, "driver_unmaps", s->driver_unmaps);
    json_u64(w, "driver_access", s->driver_access);
    json_u64(w, "driver_reserves", s->driver_reserves);
    json_u64(w, "waits", s->waits);
    json_u64(w, "searches", s->searches);
    json_u64(w, "search_steps", s->search_steps);
    json_u64(w, "splits", s->splits);
    json_u64(w, "merges", s->merges);
    json_u64(w, "stitches", s->stitches);
    json_u64(w, "retries", s->retries);
}

/* The keys that a replay on a device has too are there, null where a model has no answer. */
void model_report_json(const char *trace, const struct model_result *r)
{
    struct json_writer w = {.out = stdout};

    json_object(&w, NULL);
    json_text(&w, "trace", trace);
    json_text(&w, "format", trace_format_name(r->trace.format));
    json_text(&w, "policy", r->spec);
    json_text(&w, "label", MODEL_MARK);
    json_bool(&w, "model", true);
    json_text(&w, "backend", NULL);
    json_u64(&w, "limit_bytes", r->limit_bytes);
    json_u64(&w, "streams", r->trace.streams);
    json_u64(&w, "events", r->trace.events);
    model_json_figures(&w, r);
    json_u64(&w, "recorded_peak_reserved_bytes", r->trace.segment_peak_bytes);
    json_text(&w, "wrong_accesses", NULL);
    json_text(&w, "ops_per_second", NULL);
    json_double(&w, "host_seconds", (double)r->host_ns / 1e9);
    json_bool(&w, "ok", !r->problem[0]);
    json_text(&w, "problem", r->problem);
    json_end_object(&w);
    json_finish(&w);
}
