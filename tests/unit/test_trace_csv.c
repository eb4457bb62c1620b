/* SPDX-License-Identifier: MIT */
/* The two text formats: what each event becomes, and the message for everything that is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "cli/trace/internal.h"
#include "test.h"

static const struct trace_options any = {.device = TRACE_ANY_DEVICE};

/* Opens text; must work. */
static struct trace_reader *open_text(const char *text)
{
    struct trace_reader *reader = NULL;
    char error[512] = "";
    enum trace_status status =
        trace_open_memory(text, strlen(text), "t", &any, &reader, error, sizeof(error));

    if (status)
        FAIL("%s", error);
    return reader;
}

/* The message of a text that has to be refused, at opening or later. */
static void check_refused(const void *data, size_t size, const char *message)
{
    struct trace_reader *reader = NULL;
    struct trace_event event;
    char error[1024] = "";
    enum trace_status status =
        trace_open_memory(data, size, "t", &any, &reader, error, sizeof(error));

    if (!status) {
        while ((status = trace_next(reader, &event)) == TRACE_OK)
            ;
        snprintf(error, sizeof(error), "%s", trace_error(reader));
        trace_close(reader);
    }
    CHECK_EQ(status, TRACE_BAD_INPUT);
    if (strncmp(error, message, strlen(message)) != 0)
        FAIL("message is\n  %s\nexpected\n  %s", error, message);
}

static void check_text_refused(const char *text, const char *message)
{
    check_refused(text, strlen(text), message);
}

TEST(torch_events)
{
    struct trace_reader *reader = open_text("# comment\n"
                                            "S,0,2097152,0\r\n"
                                            "a,7,1000,0\n"
                                            "\n"
                                            "a,8,0,5\n"
                                            "f,7,1000,0\n"
                                            "f,3,64,0\n"
                                            "s,0,2097152,0\n"
                                            "a,9,8,0x5");
    const struct trace_info *info;
    struct trace_event e;

    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_SEGMENT_ALLOC);
    CHECK_EQ(e.bytes, 2097152);
    CHECK_EQ(e.line, 2);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_ALLOC);
    CHECK_EQ(e.block, 7);
    CHECK_EQ(e.bytes, 1000);
    CHECK_EQ(e.slot, 0);
    CHECK_EQ(e.stream, 0);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.slot, 1);
    CHECK_EQ(e.stream, 1);
    CHECK_EQ(e.line, 5);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_FREE);
    CHECK_EQ(e.slot, 0);
    CHECK(!e.before_trace && !e.ordered);
    CHECK_OK(trace_next(reader, &e));
    CHECK(e.before_trace);
    CHECK_EQ(e.slot, TRACE_NO_SLOT);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_SEGMENT_FREE);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.slot, 0); /* taken again */
    CHECK_EQ(e.stream, 1);
    CHECK_EQ(trace_next(reader, &e), TRACE_END);
    CHECK_EQ(trace_next(reader, &e), TRACE_END);
    info = trace_info(reader);
    CHECK_EQ(info->format, TRACE_FORMAT_TORCH_CSV);
    CHECK_EQ(info->events, 7);
    CHECK_EQ(info->allocs, 3);
    CHECK_EQ(info->frees, 1);
    CHECK_EQ(info->frees_before_trace, 1);
    CHECK_EQ(info->requested_peak_bytes, 1000);
    CHECK_EQ(info->requested_bytes, 8);
    CHECK_EQ(info->segment_peak_bytes, 2097152);
    CHECK_EQ(info->segment_bytes, 0);
    CHECK_EQ(info->live_blocks, 2);
    CHECK_EQ(info->streams, 2);
    trace_close(reader);
}

/* Reads to the end, which must be a good one; the reader stays for trace_info(). */
static struct trace_reader *read_text(const char *text)
{
    struct trace_reader *reader = open_text(text);
    struct trace_event event;
    enum trace_status status;

    while ((status = trace_next(reader, &event)) == TRACE_OK)
        ;
    CHECK_EQ(status, TRACE_END);
    return reader;
}

TEST(a_header_and_a_mark_of_utf8_are_passed_over)
{
    static const char *const beginnings[] = {
        "op,id,bytes,stream\n", "\xef\xbb\xbf", "\xef\xbb\xbfop,id,bytes,stream\r\n",
        "# comment\nop,id,bytes,stream\n", "\xef\xbb\xbf# comment\n\n"};

    for (size_t i = 0; i < sizeof(beginnings) / sizeof(beginnings[0]); i++) {
        struct trace_reader *reader;
        char text[128];

        snprintf(text, sizeof(text), "%sa,1,8,0\nf,1,8,0\n", beginnings[i]);
        reader = read_text(text);
        CHECK_EQ(trace_info(reader)->format, TRACE_FORMAT_TORCH_CSV);
        CHECK_EQ(trace_info(reader)->events, 2);
        trace_close(reader);
    }
    trace_close(read_text("\xef\xbb\xbfThread,Time,Action,Pointer,Size,Stream\n"
                          "1,0,allocate,0x10,8,0x0\n"));
    check_text_refused("a,1,8,0\nop,id,bytes,stream\n", "t:2: the operation is \"op\"");
    check_text_refused("op,id,bytes,stream\nop,id,bytes,stream\n", "t:2: the operation is \"op\"");
    check_text_refused("\xef\xbb\xbf\xef\xbb\xbf"
                       "a,1,8,0\n",
                       "t:1: the file begins with");
}

TEST(a_text_without_an_event_is_refused)
{
    check_text_refused("#\n# only comments\n", "t:2: the file ends without an event");
    check_text_refused("op,id,bytes,stream\n", "t:1: the file ends without an event");
    check_text_refused("Thread,Time,Action,Pointer,Size,Stream\n",
                       "t:1: the file ends without an event");
    /* A segment is an event, and so is a request for nothing, though it moves no memory. */
    trace_close(read_text("S,0,4096,0\n"));
    trace_close(read_text("Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x0,0,0x0\n"));
}

/* Recording may begin when segments are held already. */
TEST(a_segment_given_back_may_be_from_before_the_trace)
{
    struct trace_reader *reader = read_text("s,0,4096,0\nS,0,2097152,0\ns,0,4194304,0\n"
                                            "S,0,1048576,0\n");
    const struct trace_info *info = trace_info(reader);

    CHECK_EQ(info->segments, 2);
    CHECK_EQ(info->segment_peak_bytes, 2097152);
    CHECK_EQ(info->segment_bytes, 1048576);
    trace_close(reader);
}

TEST(rmm_events)
{
    struct trace_reader *reader =
        open_text("Thread,Time,Action,Pointer,Size,Stream\n"
                  "140573312345856,14:21:19:998533,allocate,0x30a000000,256,0x2\n"
                  "140573312345856,14:21:19.998533,allocate,0x30a000100,512,0\n"
                  "1,2,allocate failure,(nil),99999999,0x2\n"
                  "1,2,allocate,0x0,0,0x2\n"
                  "1,2,free,nullptr,0,0x2\n"
                  "1,2,deallocate,13052674048,256,0x0\n"
                  "1,2,free,0xdead00,64,0x2\n"
                  "1,2,allocate,0x30a000000,1024,0x2\n");
    const struct trace_info *info;
    struct trace_event e;

    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_ALLOC);
    CHECK_EQ(e.block, 0x30a000000);
    CHECK_EQ(e.bytes, 256);
    CHECK_EQ(e.stream, 0);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.stream, 1);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_ALLOC_FAILED);
    CHECK_EQ(e.bytes, 99999999);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.op, TRACE_FREE);
    CHECK_EQ(e.slot, 0);
    CHECK_EQ(e.stream, 1); /* freed on another stream than it was allocated on: */
    CHECK_EQ(e.other, 0);
    CHECK(!e.ordered);
    CHECK_EQ(e.line, 7);
    CHECK_OK(trace_next(reader, &e));
    CHECK(e.before_trace);
    CHECK_OK(trace_next(reader, &e));
    CHECK_EQ(e.slot, 0);
    CHECK_EQ(trace_next(reader, &e), TRACE_END);
    info = trace_info(reader);
    CHECK_EQ(info->format, TRACE_FORMAT_RMM_CSV);
    CHECK_EQ(info->failures, 1);
    CHECK_EQ(info->ignored, 2);
    CHECK_EQ(info->frees_before_trace, 1);
    CHECK_EQ(info->requested_peak_bytes, 1536);
    trace_close(reader);
}

TEST(torch_mistakes_are_named_with_their_line)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a,1,8,0\nx,2,8,0\n", "t:2: the operation is \"x\"; expected a (allocate)"},
        {"a,1,8\n", "t:1: the line has fewer than 4 fields; expected op,id,bytes,stream"},
        {"a,1,8,0,0\n", "t:1: the line has more than 4 fields"},
        {"a,1,-5,0\n", "t:1: the size is \"-5\"; expected a whole number"},
        {"a,1,99999999999999999999999,0\n", "t:1: the size is \"99999999999999999999999\""},
        {"a,1,281474976710657,0\n", "t:1: the size is 281474976710657 bytes; expected at most"},
        {"a,-1,8,0\n", "t:1: the id is \"-1\""},
        {"a,0x,8,0\n", "t:1: the id is \"0x\""},
        {"a,1,8,\n", "t:1: the stream is \"\""},
        {"a,1,8,0 \n", "t:1: the stream is \"0 \""},
        {"#\n\na,1,8,0\nf,1,8,0\nf,1,8,0\n", "t:5: block 0x1 is freed a second time"},
        {"a,1,8,0\na,9,8,0\nf,9,8,0\nf,9,8,0\n", "t:4: block 0x9 is freed a second time"},
        {"a,1,8,0\na,1,8,0\n",
         "t:2: block 0x1 is allocated again while it is live, allocated at line 1"},
        {"a,1,8,0\nf,1,9,0\n",
         "t:2: block 0x1 is freed with 9 bytes; expected the 8 of its allocation at line 1"},
        {"a,1,8,0\n\x80\x04\x95\n", "t:2: the operation is \"\\x80\\x04\\x95\""},
        {"", "t:1: the file is empty"},
        {"\n\n", "t:1: the file begins with"},
        {"hello", "t:1: the file begins with \"hello\"; expected"},
        {"PK\x03\x04zip", "t:1: the file begins with \"PK\\x03\\x04zip\""},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text_refused(cases[i].text, cases[i].message);
    check_refused("a,1,8,0\na,\0,8,0\n", 16, "t:2: the id is \"\\x00\"");
}

#define RMM_HEADER "Thread,Time,Action,Pointer,Size,Stream\n"

TEST(rmm_mistakes_are_named_with_their_line)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {RMM_HEADER "1,2,reallocate,0x1,8,0\n", "t:2: the action is \"reallocate\"; expected"},
        {RMM_HEADER "1,2,allocate,0xg,8,0\n", "t:2: the pointer is \"0xg\""},
        {RMM_HEADER "1,2,allocate,0x1,-8,0\n", "t:2: the size is \"-8\""},
        {RMM_HEADER "1,2,allocate,0x1,8,main\n", "t:2: the stream is \"main\""},
        {RMM_HEADER "1,2,allocate,0x0,8,0\n", "t:2: the pointer is \"0x0\"; expected an address"},
        {RMM_HEADER "1,2,allocate,0x1,8\n", "t:2: the line has fewer than 6 fields"},
        {RMM_HEADER "1,2,allocate,0x1,8,0,0\n", "t:2: the line has more than 6 fields"},
        {RMM_HEADER "1,2,allocate,0x1,8,0\n1,2,free,0x1,8,0\n1,2,free,0x1,8,0\n",
         "t:4: block 0x1 is freed a second time"},
        {"Thread,Time,Action,Pointer,Size\n", "t:1: the first line is"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_text_refused(cases[i].text, cases[i].message);
}

TEST(long_lines_are_refused_and_the_longest_allowed_is_read)
{
    char text[2 * TRACE_LINE_MAX];

    memset(text, '#', sizeof(text));
    text[TRACE_LINE_MAX] = '\n';
    memcpy(text + TRACE_LINE_MAX + 1, "a,1,8,0\n", 9);
    trace_close(open_text(text));
    memset(text, '#', sizeof(text));
    check_refused(text, sizeof(text), "t:1: the line is longer than 1024 bytes");
}

TEST(too_many_streams_are_refused)
{
    char *text = malloc(64 * (TRACE_STREAMS_MAX + 1));
    size_t n = 0;

    CHECK(text != NULL);
    for (unsigned i = 0; i <= TRACE_STREAMS_MAX; i++)
        n += (size_t)sprintf(text + n, "a,%u,8,%u\n", i, 1000000 + i);
    check_refused(text, n, "t:1025: stream 0xf4640 is one too many");
    free(text);
}

TEST(the_sum_of_live_blocks_is_bounded)
{
    enum { COUNT = 16384 + 1 };
    char *text = malloc(64 * COUNT);
    size_t n = 0;

    CHECK(text != NULL);
    for (unsigned i = 0; i < COUNT; i++)
        n += (size_t)sprintf(text + n, "a,%u,281474976710656,0\n", i);
    check_refused(text, n, "t:16385: live blocks pass 4611686018427387904 bytes");
    free(text);
}

/* ------------------------------------------------------------------ gzip */

/* Compresses to a fresh block; sets *packed_size. */
static uint8_t *gzip(const void *data, size_t size, size_t *packed_size)
{
    z_stream z = {0};
    size_t room = size + size / 8 + 256;
    uint8_t *packed = malloc(room);

    CHECK(packed != NULL);
    CHECK_EQ(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)size;
    z.next_out = packed;
    z.avail_out = (uInt)room;
    CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
    *packed_size = room - z.avail_out;
    deflateEnd(&z);
    return packed;
}

static uint64_t count_events(const void *data, size_t size)
{
    struct trace_reader *reader = NULL;
    struct trace_event event;
    char error[512];
    uint64_t count = 0;

    CHECK_OK(trace_open_memory(data, size, "t", &any, &reader, error, sizeof(error)));
    while (trace_next(reader, &event) == TRACE_OK)
        count++;
    CHECK_STR_EQ(trace_error(reader), "");
    trace_close(reader);
    return count;
}

/* A long trace, so that lines cross the borders of every buffer. */
static char *long_trace(unsigned lines, size_t *size)
{
    char *text = malloc(32 * (size_t)lines);
    size_t n = 0;

    CHECK(text != NULL);
    for (unsigned i = 0; i < lines; i++)
        n += (size_t)sprintf(text + n, "a,%u,%u,0\n", i + 1, i % 977);
    *size = n;
    return text;
}

TEST(gzip_and_several_members)
{
    size_t size = 0;
    size_t packed_size = 0;
    char *text = long_trace(50000, &size);
    uint8_t *packed = gzip(text, size, &packed_size);
    uint8_t *twice = malloc(2 * packed_size);

    CHECK(twice != NULL);
    CHECK_EQ(count_events(text, size), 50000);
    CHECK_EQ(count_events(packed, packed_size), 50000);
    memcpy(twice, packed, packed_size);
    memcpy(twice + packed_size, packed, packed_size);
    /* The second member repeats the ids of the first. */
    check_refused(twice, 2 * packed_size, "t:50001: block 0x1 is allocated again");
    free(twice);
    free(packed);
    free(text);
}

TEST(gzip_cut_anywhere_is_refused)
{
    size_t size = 0;
    size_t packed_size = 0;
    char *text = long_trace(300, &size);
    uint8_t *packed = gzip(text, size, &packed_size);

    for (size_t cut = 3; cut < packed_size; cut += 7) {
        struct trace_reader *reader = NULL;
        struct trace_event event;
        char error[512];
        enum trace_status status =
            trace_open_memory(packed, cut, "t", &any, &reader, error, sizeof(error));

        while (!status)
            status = trace_next(reader, &event);
        CHECK_EQ(status, TRACE_BAD_INPUT);
        trace_close(reader);
    }
    free(packed);
    free(text);
}

/* Padding bits before the checksum carry nothing, so a flip there may pass, but then all is
 * intact. */
TEST(gzip_with_a_flipped_bit_is_refused_or_intact)
{
    size_t size = 0;
    size_t packed_size = 0;
    char *text = long_trace(100, &size);
    uint8_t *packed = gzip(text, size, &packed_size);
    unsigned harmless = 0;

    /* From behind the header, whose time and flags carry no content. */
    for (size_t i = 10; i < packed_size; i++) {
        struct trace_reader *reader = NULL;
        struct trace_event event;
        char error[512];
        enum trace_status status;

        packed[i] ^= 0x10;
        status = trace_open_memory(packed, packed_size, "t", &any, &reader, error, sizeof(error));
        while (!status)
            status = trace_next(reader, &event);
        if (status == TRACE_END) {
            harmless++;
            CHECK_EQ(trace_info(reader)->events, 100);
            CHECK_EQ(trace_info(reader)->requested_bytes, 100 * 99 / 2);
        } else {
            CHECK_EQ(status, TRACE_BAD_INPUT);
        }
        trace_close(reader);
        packed[i] ^= 0x10;
    }
    CHECK_LE(harmless, 1);
    free(packed);
    free(text);
}

TEST(a_gzip_bomb_is_refused_by_its_content_or_the_limit)
{
    const struct trace_options small = {.device = TRACE_ANY_DEVICE,
                                        .limits = {.text_bytes = 1 << 20}};
    size_t size = 8 << 20;
    size_t packed_size = 0;
    char *zeros = calloc(1, size);
    struct trace_reader *reader = NULL;
    struct trace_event event;
    char error[512];
    uint8_t *packed;
    enum trace_status status;

    CHECK(zeros != NULL);
    packed = gzip(zeros, size, &packed_size);
    check_refused(packed, packed_size, "t:1: the file begins with");
    free(packed);
    for (size_t i = 0; i < size; i += 2)
        memcpy(zeros + i, "#\n", 2); /* NOLINT(bugprone-not-null-terminated-result): bytes */
    packed = gzip(zeros, size, &packed_size);
    CHECK_OK(trace_open_memory(packed, packed_size, "t", &small, &reader, error, sizeof(error)));
    status = trace_next(reader, &event);
    CHECK_EQ(status, TRACE_BAD_INPUT);
    CHECK(strstr(trace_error(reader), "larger than 1048576 bytes once decompressed") != NULL);
    trace_close(reader);
    free(packed);
    free(zeros);
}

TEST(a_missing_file_is_not_bad_input)
{
    struct trace_reader *reader = NULL;
    char error[512];

    CHECK_EQ(trace_open("/nonexistent/trace.csv", NULL, &reader, error, sizeof(error)),
             TRACE_CANNOT_READ);
    CHECK(strstr(error, "/nonexistent/trace.csv: cannot be opened: No such file") == error);
    CHECK_EQ(trace_open("/", NULL, &reader, error, sizeof(error)), TRACE_CANNOT_READ);
    CHECK_PTR_EQ(reader, NULL);
}

TEST(format_names_round_trip)
{
    enum trace_format format = TRACE_FORMAT_COUNT;

    for (unsigned i = 0; i < TRACE_FORMAT_COUNT; i++) {
        CHECK(trace_format_by_name(trace_format_name((enum trace_format)i), &format));
        CHECK_EQ(format, i);
    }
    CHECK(!trace_format_by_name("csv", &format));
}
