/*
 * The two PyTorch models against what PyTorch itself did in the runs that the bundled traces were
 * recorded from: the peaks that it reported, and for the default allocator every segment it took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace/trace.h"
#include "model_fixture.h"

/*
 * Peaks in GiB, as reported by PyTorch 2.11 on one H200 in two runs of each program. Of densenet161
 * the model takes two segments of 2 MiB 34 lines before PyTorch did, see doc/models.md.
 */
static const struct recorded {
    const char *trace;
    double allocated_gib;
    double caching_gib;
    double expandable_gib;
    size_t segments;          /* taken in the recorded run */
    size_t segments_at_fault; /* taken at another request; each counts there and here */
} recorded[] = {
    {"densenet161", 18.3, 21.76, 18.38, 347, 4},
    {"gpt2", 21.9, 34.22, 22.95, 392, 0},
    {"llama-recompute", 17.6, 27.62, 18.37, 236, 0},
    {"moe-offload-recompute", 4.7, 8.25, 5.81, 53, 0},
    {"llama-generate-beam4", 5.6, 6.44, 5.79, 95, 0},
};

enum {
    TRACES = sizeof(recorded) / sizeof(recorded[0]),
};

/* What the trace says of segments, beside what the model does. */
struct segments {
    uint64_t expected; /* taken by PyTorch for the coming request; 0: none */
    size_t seen, taken, differ;
};

static void observe(void *user, bool taken, uint64_t bytes, uint32_t stream)
{
    struct segments *s = user;

    (void)stream;
    if (!taken)
        return;
    s->taken++;
    if (bytes == s->expected)
        s->expected = 0;
    else
        s->differ++;
}

static void forget_expected(struct segments *s)
{
    s->differ += s->expected != 0;
    s->expected = 0;
}

static struct trace_reader *open_trace(const char *name)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    const char *root = getenv("MB_SOURCE_DIR");
    struct trace_reader *reader = NULL;
    char path[4096];
    char error[1024];

    snprintf(path, sizeof(path), "%s/data/torch/%s.csv.gz", root ? root : ".", name);
    if (trace_open(path, &options, &reader, error, sizeof(error)))
        FAIL("%s; MB_SOURCE_DIR must be the project's directory", error);
    return reader;
}

static void replay(struct model *model, const char *trace, struct segments *segments)
{
    struct trace_reader *reader = open_trace(trace);
    struct trace_event event;
    enum trace_status status;

    model_observe(model, observe, segments);
    while ((status = trace_next(reader, &event)) == TRACE_OK) {
        if (event.op == TRACE_SEGMENT_ALLOC) {
            forget_expected(segments);
            segments->expected = event.bytes;
            segments->seen++;
            continue;
        }
        CHECK_EQ(model_event(model, &event), MODEL_OK);
        if (event.op == TRACE_ALLOC)
            forget_expected(segments);
    }
    CHECK_EQ(status, TRACE_END);
    check_model(model);
    trace_close(reader);
}

static void check_near(const char *trace, const char *what, uint64_t bytes, double gib)
{
    double have = (double)bytes / 1073741824.0;
    double off = have / gib - 1;

    printf("  %-22s %-18s model %7.3f GiB, PyTorch %6.2f GiB, %+.2f%%\n", trace, what, have, gib,
           100 * off);
    if (off < -0.03 || off > 0.03)
        FAIL("%s: %s is %.3f GiB, PyTorch reported %.2f: more than 3%% apart", trace, what, have,
             gib);
}

TEST(caching_reproduces_the_recorded_peaks_and_segments)
{
    for (size_t i = 0; i < TRACES; i++) {
        const struct recorded *r = &recorded[i];
        struct model *m = open_model("torch-caching", 0);
        struct segments segments = {0};

        replay(m, r->trace, &segments);
        check_near(r->trace, "peak reserved", model_stats(m)->reserved_peak_bytes, r->caching_gib);
        check_near(r->trace, "peak allocated", model_stats(m)->granted_peak_bytes,
                   r->allocated_gib);
        CHECK_EQ(segments.seen, r->segments);
        CHECK_EQ(segments.taken, r->segments);
        CHECK_EQ(segments.differ, r->segments_at_fault);
        model_close(m);
    }
}

TEST(expandable_reproduces_the_recorded_peaks)
{
    for (size_t i = 0; i < TRACES; i++) {
        const struct recorded *r = &recorded[i];
        struct model *m = open_model("torch-expandable", 0);
        struct segments segments = {0};

        replay(m, r->trace, &segments);
        check_near(r->trace, "peak reserved", model_stats(m)->reserved_peak_bytes,
                   r->expandable_gib);
        check_near(r->trace, "peak allocated", model_stats(m)->granted_peak_bytes,
                   r->allocated_gib);
        model_close(m);
    }
}

TEST(every_policy_serves_every_trace)
{
    for (size_t i = 0; i < TRACES; i++) {
        for (size_t p = 0; model_infos[p]; p++) {
            struct model *m = open_model(model_infos[p]->name, 0);
            struct segments segments = {0};

            replay(m, recorded[i].trace, &segments);
            CHECK_EQ(model_stats(m)->failed_requests, 0);
            CHECK_EQ(model_stats(m)->unknown_frees, 0);
            CHECK(model_stats(m)->reserved_peak_bytes >= model_stats(m)->granted_peak_bytes);
            model_close(m);
        }
    }
}
