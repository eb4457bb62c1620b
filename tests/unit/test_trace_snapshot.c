/* SPDX-License-Identifier: MIT */
/* PyTorch snapshots, built here opcode by opcode as its pickler writes them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace/internal.h"
#include "test.h"

/* A pickle under construction. Owner: the test case. */
struct pickle {
    char bytes[64 * 1024];
    size_t size;
};

static void put(struct pickle *p, const char *bytes, size_t size)
{
    CHECK_LE(p->size + size, sizeof(p->bytes));
    memcpy(p->bytes + p->size, bytes, size);
    p->size += size;
}

#define PUT(p, literal) put((p), (literal), sizeof(literal) - 1)

static void put_text(struct pickle *p, const char *text)
{
    char head[2] = {(char)0x8c, (char)strlen(text)};

    put(p, head, 2);
    put(p, text, strlen(text));
    PUT(p, "\x94");
}

static void put_number(struct pickle *p, const char *key, uint64_t number)
{
    char bytes[10] = {(char)0x8a, 8};

    memcpy(bytes + 2, &number, 8); /* the tests run on little-endian machines, as the pickles are */
    put_text(p, key);
    put(p, bytes, 10);
}

static void begin(struct pickle *p)
{
    p->size = 0;
    PUT(p, "\x80\4}\x94(");
}

static void put_event(struct pickle *p, const char *action, uint64_t address, uint64_t bytes,
                      uint64_t stream)
{
    PUT(p, "}\x94(");
    put_text(p, "action");
    put_text(p, action);
    put_number(p, strcmp(action, "oom") ? "addr" : "device_free", address);
    put_number(p, "size", bytes);
    put_number(p, "stream", stream);
    put_number(p, "time_us", 1000);
    put_text(p, "frames");
    PUT(p, "]\x94u");
}

static void put_segment(struct pickle *p, uint64_t device, uint64_t bytes)
{
    PUT(p, "}\x94(");
    put_number(p, "device", device);
    put_number(p, "total_size", bytes);
    put_text(p, "segment_pool_id");
    PUT(p, "K\0K\0\x86\x94u");
}

static struct trace_reader *open_ok(const struct pickle *p, unsigned device)
{
    const struct trace_options options = {.device = device};
    struct trace_reader *reader = NULL;
    char error[1024] = "";

    if (trace_open_memory(p->bytes, p->size, "s", &options, &reader, error, sizeof(error)))
        FAIL("%s", error);
    return reader;
}

static void check_open_refused(const struct pickle *p, unsigned device, const char *message)
{
    const struct trace_options options = {.device = device};
    struct trace_reader *reader = NULL;
    char error[1024] = "";

    CHECK_EQ(trace_open_memory(p->bytes, p->size, "s", &options, &reader, error, sizeof(error)),
             TRACE_BAD_INPUT);
    if (strncmp(error, message, strlen(message)) != 0)
        FAIL("message is\n  %s\nexpected\n  %s", error, message);
}

/* Two devices: nothing on 0, on 1 a run that began with 40 MiB of segments held before. */
static void build(struct pickle *p)
{
    begin(p);
    put_text(p, "segments");
    PUT(p, "]\x94(");
    put_segment(p, 0, 7 << 20);
    put_segment(p, 1, 40 << 20);
    put_segment(p, 1, 2 << 20);
    PUT(p, "e");
    put_text(p, "device_traces");
    PUT(p, "]\x94(]\x94]\x94(");
    put_event(p, "segment_alloc", 0x7f0000000000, 20 << 20, 0);
    put_event(p, "alloc", 0x7f0000000000, 1000, 0);
    put_event(p, "alloc", 0x7f0000000400, 2000, 0x5588);
    put_event(p, "snapshot", 0, 0, 0);
    put_event(p, "oom", 12345, 9999, 0);
    put_event(p, "free_requested", 0x7f0000000000, 1000, 0);
    put_event(p, "free_completed", 0x7f0000000000, 1000, 0);
    put_event(p, "free_completed", 0x7e0000000000, 64, 0);
    put_event(p, "segment_free", 0x7f0000000000, 20 << 20, 0);
    put_event(p, "segment_map", 0x7d0000000000, 2 << 20, 0);
    PUT(p, "eeu.");
}

TEST(events_of_a_snapshot)
{
    struct pickle *p = malloc(sizeof(*p));
    const struct trace_info *info;
    struct trace_reader *reader;
    struct trace_event e;

    CHECK(p != NULL);
    build(p);
    reader = open_ok(p, TRACE_ANY_DEVICE);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_SEGMENT_ALLOC);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_ALLOC);
    CHECK_EQ(e.block, 0x7f0000000000);
    CHECK_EQ(e.bytes, 1000);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.stream, 1);
    CHECK_EQ(e.line, 2);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_ALLOC_FAILED);
    CHECK_EQ(e.bytes, 9999);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_FREE);
    CHECK_EQ(e.slot, 0);
    CHECK_OK(trace_next(reader, &e));
    CHECK(e.before_trace);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_SEGMENT_FREE);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_SEGMENT_ALLOC);
    CHECK_EQ(trace_next(reader, &e), TRACE_END);
    info = trace_info(reader);
    CHECK_EQ(info->device, 1);
    CHECK_EQ(info->devices, 1);
    CHECK_EQ(info->ignored, 2);
    CHECK_EQ(info->failures, 1);
    CHECK_EQ(info->frees_before_trace, 1);
    /* 42 MiB at the end, 2 of them mapped last; so 40 before, and 60 at most. */
    CHECK_EQ(info->segment_bytes, 42 << 20);
    CHECK_EQ(info->segment_peak_bytes, 60 << 20);
    CHECK_EQ(info->requested_peak_bytes, 3000);
    trace_close(reader);
    free(p);
}

TEST(the_device_can_be_chosen)
{
    struct pickle *p = malloc(sizeof(*p));

    CHECK(p != NULL);
    build(p);
    trace_close(open_ok(p, 1));
    check_open_refused(p, 0, "s:offset 0: the snapshot has no events of that device");
    check_open_refused(p, 2, "s:offset 0: the snapshot has no events of that device");
    free(p);
}

TEST(other_pickles_are_no_snapshots)
{
    struct pickle *p = malloc(sizeof(*p));

    CHECK(p != NULL);
    p->size = 0;
    PUT(p, "\x80\4K\1.");
    check_open_refused(p, TRACE_ANY_DEVICE, "s:offset 0: the pickle is no PyTorch memory snapshot");
    begin(p);
    put_text(p, "device_traces");
    PUT(p, "K\1u.");
    check_open_refused(p, TRACE_ANY_DEVICE, "s:offset 0: the pickle is no PyTorch memory snapshot");
    begin(p);
    put_text(p, "device_traces");
    PUT(p, "]\x94K\1au.");
    check_open_refused(p, TRACE_ANY_DEVICE, "s:offset 0: \"device_traces\" holds something else");
    begin(p);
    put_text(p, "device_traces");
    PUT(p, "]\x94]\x94"
           "au.");
    check_open_refused(p, TRACE_ANY_DEVICE, "s:offset 0: the snapshot holds no events");
    p->size = 0;
    PUT(p, "\x80\4\x8c\2os\x8c\6system\x93.");
    check_open_refused(p, TRACE_ANY_DEVICE, "s:offset 14: the opcode STACK_GLOBAL is refused");
    free(p);
}

/* A snapshot with the given events; the message of the first that has to be refused. */
static void check_event_refused(void (*events)(struct pickle *p), const char *message)
{
    struct pickle *p = malloc(sizeof(*p));
    struct trace_reader *reader;
    struct trace_event event;
    enum trace_status status;

    CHECK(p != NULL);
    begin(p);
    put_text(p, "device_traces");
    PUT(p, "]\x94]\x94(");
    events(p);
    PUT(p, "eau.");
    reader = open_ok(p, TRACE_ANY_DEVICE);
    while ((status = trace_next(reader, &event)) == TRACE_OK)
        ;
    CHECK_EQ(status, TRACE_BAD_INPUT);
    if (strncmp(trace_error(reader), message, strlen(message)) != 0)
        FAIL("message is\n  %s\nexpected\n  %s", trace_error(reader), message);
    trace_close(reader);
    free(p);
}

static void double_free(struct pickle *p)
{
    put_event(p, "alloc", 0x1000, 8, 0);
    put_event(p, "free_completed", 0x1000, 8, 0);
    put_event(p, "free_completed", 0x1000, 8, 0);
}

static void negative_size(struct pickle *p)
{
    put_event(p, "alloc", 0x1000, (uint64_t)-8, 0);
}

static void no_dict(struct pickle *p)
{
    put_event(p, "alloc", 0x1000, 8, 0);
    PUT(p, "K\1");
}

static void no_stream(struct pickle *p)
{
    PUT(p, "}\x94(");
    put_text(p, "action");
    put_text(p, "alloc");
    put_number(p, "addr", 1);
    put_number(p, "size", 1);
    PUT(p, "u");
}

/* A dict with thousands of keys, shared by many events, must not cost a look-up each. */
static void many_keys(struct pickle *p)
{
    PUT(p, "}\x94(");
    put_text(p, "action");
    put_text(p, "alloc");
    for (unsigned i = 0; i < 1000; i++)
        PUT(p, "NN");
    PUT(p, "u");
}

TEST(events_that_are_wrong_are_named_with_their_number)
{
    check_event_refused(double_free, "s:event 2: block 0x1000 is freed a second time");
    check_event_refused(negative_size, "s:event 0: the event has no \"size\"");
    check_event_refused(no_dict, "s:event 1: the event is a int without a text \"action\"");
    check_event_refused(no_stream, "s:event 0: the event has no \"stream\"");
    check_event_refused(many_keys, "s:event 0: the event is a dict without a text \"action\"");
}
