/* SPDX-License-Identifier: MIT */
/* trace_fuzz.h - what the targets for traces have in common. */
#ifndef MB_TESTS_TRACE_FUZZ_H
#define MB_TESTS_TRACE_FUZZ_H

#include <stdlib.h>
#include <string.h>

#include "cli/trace/internal.h"

/* Small bounds, so that the fuzzer finds inputs that go past them. */
static const struct trace_limits fuzz_limits = {
    .blocks = 512, .text_bytes = 1 << 17, .pickle_bytes = 1 << 17, .pickle_memory = 1 << 20};

static inline void fuzz_need(bool condition)
{
    if (!condition)
        abort();
}

/* What every reader promises of its events, by a list of the slots that live. */
static inline void fuzz_read_all(struct trace_reader *reader)
{
    bool live[1024] = {false};
    struct trace_event event;
    enum trace_status status;
    uint64_t now = 0;
    uint64_t peak = 0;

    while ((status = trace_next(reader, &event)) == TRACE_OK) {
        fuzz_need((unsigned)event.op < TRACE_OP_COUNT && event.stream < TRACE_STREAMS_MAX);
        fuzz_need(event.bytes <= TRACE_BLOCK_MAX);
        if (event.op == TRACE_ALLOC) {
            fuzz_need(event.slot < 512 && !live[event.slot]);
            live[event.slot] = true;
            now += event.bytes;
            peak = now > peak ? now : peak;
        } else if (event.op == TRACE_FREE && !event.before_trace) {
            fuzz_need(event.slot < 512 && live[event.slot] && event.bytes <= now);
            live[event.slot] = false;
            now -= event.bytes;
        } else if (event.op == TRACE_USE || event.op == TRACE_RECORD_STREAM) {
            fuzz_need(event.slot < 512 && live[event.slot]);
        }
    }
    if (status == TRACE_END) {
        fuzz_need(!*trace_error(reader));
        fuzz_need(trace_info(reader)->requested_peak_bytes == peak);
    } else {
        /* A message has a position and says what was expected, or that a bound was met. */
        fuzz_need(strchr(trace_error(reader), ':') != NULL);
    }
}

/* Reads the input as `format`; with `streams` above 1 through the stream generator too. */
static inline void fuzz_format(const uint8_t *data, size_t size, enum trace_format format,
                               unsigned streams)
{
    const struct trace_options options = {
        .format = format, .device = TRACE_ANY_DEVICE, .limits = fuzz_limits};
    struct trace_reader *reader = NULL;
    struct trace_reader *spread = NULL;
    char error[1024] = "";

    if (trace_open_memory(data, size, "fuzz", &options, &reader, error, sizeof(error))) {
        fuzz_need(!strncmp(error, "fuzz:", 5));
        return;
    }
    if (streams > 1 && !trace_open_streams(reader, streams, size, &spread))
        reader = spread;
    fuzz_read_all(reader);
    trace_close(reader);
}

#endif
