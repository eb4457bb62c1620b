/* SPDX-License-Identifier: MIT */
/* core.c - checks every record against all before it, and keeps the trace's own accounts. */
#include "internal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void trace_core_init(struct trace_core *core, const char *name, enum trace_format format,
                     const struct trace_limits *limits)
{
    memset(core, 0, sizeof(*core));
    snprintf(core->name, sizeof(core->name), "%s", name);
    core->position = "";
    core->info.format = format;
    core->info.device = 0;
    trace_blocks_init(&core->blocks, limits->blocks);
}

void trace_core_fini(struct trace_core *core)
{
    trace_blocks_fini(&core->blocks);
}

enum trace_status trace_core_fail(struct trace_core *core, uint64_t line, const char *format, ...)
{
    char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    snprintf(core->error, sizeof(core->error), "%.200s:%s%" PRIu64 ": %s", core->name,
             core->position, line, text);
    return TRACE_BAD_INPUT;
}

enum trace_status trace_core_input_failed(struct trace_core *core, uint64_t line,
                                          enum trace_status status, const char *problem)
{
    if (status == TRACE_HOST_MEMORY)
        problem = "the host is out of memory";
    (void)trace_core_fail(core, line, "%s", problem);
    return status;
}

enum trace_status trace_core_end(struct trace_core *core, uint64_t line)
{
    const struct trace_info *info = &core->info;

    if (info->events || info->ignored)
        return TRACE_END;
    return trace_core_fail(core, line ? line : 1,
                           "the file ends without an event; expected an allocation trace");
}

/* The dense index of a stream; a new one for a name not seen before. */
static enum trace_status stream_index(struct trace_core *core, const struct trace_record *record,
                                      uint32_t *out)
{
    unsigned count = core->info.streams;

    for (unsigned i = 0; i < count; i++) {
        if (core->stream_names[i] == record->stream) {
            *out = i;
            return TRACE_OK;
        }
    }
    if (count == TRACE_STREAMS_MAX)
        return trace_core_fail(core, record->line,
                               "stream 0x%" PRIx64 " is one too many; expected at most %d streams",
                               record->stream, TRACE_STREAMS_MAX);
    core->stream_names[count] = record->stream;
    core->info.streams = count + 1;
    *out = count;
    return TRACE_OK;
}

/* Adds to a running total and its peak; false when the total would pass TRACE_RUNNING_MAX. */
static bool add_bytes(uint64_t *now, uint64_t *peak, uint64_t bytes)
{
    if (bytes > TRACE_RUNNING_MAX - *now)
        return false;
    *now += bytes;
    if (*now > *peak)
        *peak = *now;
    return true;
}

static enum trace_status accept_alloc(struct trace_core *core, const struct trace_record *record,
                                      struct trace_event *event)
{
    struct trace_info *info = &core->info;
    struct trace_block block = {.name = record->block,
                                .bytes = record->bytes,
                                .line = record->line,
                                .stream = event->stream};
    enum trace_status status;
    uint32_t slot;

    if (trace_blocks_find(&core->blocks, record->block, &slot) == TRACE_BLOCK_LIVE)
        return trace_core_fail(core, record->line,
                               "block 0x%" PRIx64 " is allocated again while it is live, allocated "
                               "at %s%" PRIu64 "; expected a free between",
                               record->block, *core->position ? core->position : "line ",
                               core->blocks.records[slot].line);
    status = trace_blocks_add(&core->blocks, &block, &event->slot);
    if (status == TRACE_BAD_INPUT)
        return trace_core_fail(core, record->line,
                               "block 0x%" PRIx64 " is one too many to remember; expected at most "
                               "%" PRIu64 " live and freed blocks",
                               record->block, core->blocks.limit);
    if (status)
        return trace_core_input_failed(core, record->line, status, "");
    if (!add_bytes(&info->requested_bytes, &info->requested_peak_bytes, record->bytes))
        return trace_core_fail(core, record->line,
                               "live blocks pass %" PRIu64
                               " bytes; expected a real device's memory",
                               TRACE_RUNNING_MAX);
    info->allocs++;
    info->live_blocks++;
    return TRACE_OK;
}

static enum trace_status accept_free(struct trace_core *core, const struct trace_record *record,
                                     struct trace_event *event)
{
    struct trace_info *info = &core->info;
    const struct trace_block *block;
    uint32_t slot;

    switch (trace_blocks_find(&core->blocks, record->block, &slot)) {
    case TRACE_BLOCK_UNKNOWN:
        event->before_trace = true;
        info->frees_before_trace++;
        return TRACE_OK;
    case TRACE_BLOCK_FREED:
        return trace_core_fail(core, record->line,
                               "block 0x%" PRIx64 " is freed a second time; expected one free for "
                               "each allocation",
                               record->block);
    case TRACE_BLOCK_LIVE:
        break;
    }
    block = &core->blocks.records[slot];
    if (record->bytes_known && record->bytes != block->bytes)
        return trace_core_fail(core, record->line,
                               "block 0x%" PRIx64 " is freed with %" PRIu64
                               " bytes; expected the %" PRIu64 " of its allocation at %s%" PRIu64,
                               record->block, record->bytes, block->bytes,
                               *core->position ? core->position : "line ", block->line);
    event->slot = slot;
    event->bytes = block->bytes;
    event->other = block->stream;
    trace_blocks_remove(&core->blocks, slot);
    info->requested_bytes -= event->bytes;
    info->frees++;
    info->live_blocks--;
    return TRACE_OK;
}

static enum trace_status accept_segment(struct trace_core *core, const struct trace_record *record)
{
    struct trace_info *info = &core->info;

    if (record->op == TRACE_SEGMENT_FREE) {
        /* More than is known to be held: taken before the trace began. */
        uint64_t known = record->bytes < info->segment_bytes ? record->bytes : info->segment_bytes;

        info->segment_bytes -= known;
        return TRACE_OK;
    }
    if (!add_bytes(&info->segment_bytes, &info->segment_peak_bytes, record->bytes))
        return trace_core_fail(core, record->line,
                               "segments pass %" PRIu64 " bytes; expected a real device's memory",
                               TRACE_RUNNING_MAX);
    info->segments++;
    return TRACE_OK;
}

enum trace_status trace_core_accept(struct trace_core *core, const struct trace_record *record,
                                    struct trace_event *event)
{
    enum trace_status status;

    *event = (struct trace_event){.op = record->op,
                                  .slot = TRACE_NO_SLOT,
                                  .block = record->block,
                                  .bytes = record->bytes,
                                  .line = record->line};
    if (record->bytes > TRACE_BLOCK_MAX)
        return trace_core_fail(core, record->line,
                               "the size is %" PRIu64 " bytes; expected at most %" PRIu64,
                               record->bytes, TRACE_BLOCK_MAX);
    status = stream_index(core, record, &event->stream);
    if (status)
        return status;
    switch (record->op) {
    case TRACE_ALLOC:
        status = accept_alloc(core, record, event);
        break;
    case TRACE_FREE:
        status = accept_free(core, record, event);
        break;
    case TRACE_SEGMENT_ALLOC:
    case TRACE_SEGMENT_FREE:
        status = accept_segment(core, record);
        break;
    default:
        core->info.failures++;
        break;
    }
    if (!status)
        core->info.events++;
    return status;
}
