/* SPDX-License-Identifier: MIT */
/*
 * torch_csv.c - the compact log of PyTorch's allocator: op,id,bytes,stream, one event a line.
 *
 *     a  a block was allocated      S  the allocator took a segment from the driver
 *     f  its free has completed     s  it gave a segment back
 *
 * Ids are numbers, unique for a block's life; S and s have 0 there. # starts a comment line. The
 * first other line may be the header, op,id,bytes,stream.
 */
#include "internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* Owner: the reader. */
struct torch_csv {
    struct trace_core core;
    struct trace_input *input;
    uint64_t line;   /* number of the line last read */
    bool lines_seen; /* one that is no comment */
};

static enum trace_status bad_number(struct torch_csv *self, const char *what,
                                    struct trace_text text)
{
    char quoted[192];

    return trace_core_fail(&self->core, self->line,
                           "the %s is %s; expected a whole number, 0 or more, below 2^64", what,
                           trace_quote(text, quoted));
}

static enum trace_status parse_op(struct torch_csv *self, struct trace_text text, enum trace_op *op)
{
    char quoted[192];

    if (text.length == 1) {
        switch (text.at[0]) {
        case 'a':
            *op = TRACE_ALLOC;
            return TRACE_OK;
        case 'f':
            *op = TRACE_FREE;
            return TRACE_OK;
        case 'S':
            *op = TRACE_SEGMENT_ALLOC;
            return TRACE_OK;
        case 's':
            *op = TRACE_SEGMENT_FREE;
            return TRACE_OK;
        default:
            break;
        }
    }
    return trace_core_fail(
        &self->core, self->line,
        "the operation is %s; expected a (allocate), f (free), S (segment taken) "
        "or s (segment given back)",
        trace_quote(text, quoted));
}

static enum trace_status parse_line(struct torch_csv *self, struct trace_text line,
                                    struct trace_record *record)
{
    struct trace_text fields[4];
    enum trace_status status;
    unsigned count = 0;

    while (count < 4 && trace_field(&line, &fields[count]))
        count++;
    status = parse_op(self, fields[0], &record->op);
    if (status)
        return status;
    if (count < 4 || line.at)
        return trace_core_fail(&self->core, self->line,
                               "the line has %s than 4 fields; expected op,id,bytes,stream",
                               count < 4 ? "fewer" : "more");
    if (!trace_number(fields[1], &record->block))
        return bad_number(self, "id", fields[1]);
    if (!trace_number(fields[2], &record->bytes))
        return bad_number(self, "size", fields[2]);
    if (!trace_number(fields[3], &record->stream))
        return bad_number(self, "stream", fields[3]);
    record->line = self->line;
    record->bytes_known = true;
    return TRACE_OK;
}

static enum trace_status torch_next(void *opaque, struct trace_event *event)
{
    struct torch_csv *self = opaque;
    char problem[TRACE_LINE_MAX / 4];
    struct trace_record record = {0};
    struct trace_text line;

    for (;;) {
        enum trace_status status = trace_line(self->input, &line, problem);

        if (status == TRACE_END)
            return trace_core_end(&self->core, self->line);
        self->line++;
        if (status)
            return trace_core_input_failed(&self->core, self->line, status, problem);
        if (!line.length || line.at[0] == '#')
            continue;
        if (!self->lines_seen) {
            self->lines_seen = true;
            if (trace_text_is(line, TRACE_TORCH_HEADER))
                continue;
        }
        status = parse_line(self, line, &record);
        return status ? status : trace_core_accept(&self->core, &record, event);
    }
}

static const struct trace_info *torch_info(void *opaque)
{
    struct torch_csv *self = opaque;

    return &self->core.info;
}

static const char *torch_error(void *opaque)
{
    struct torch_csv *self = opaque;

    return self->core.error;
}

static void torch_close(void *opaque)
{
    struct torch_csv *self = opaque;

    trace_core_fini(&self->core);
    trace_input_close(self->input);
    free(self);
}

static const struct trace_source_ops torch_ops = {torch_next, torch_info, torch_error, torch_close};

enum trace_status trace_torch_csv_open(struct trace_input *input, const char *name,
                                       const struct trace_options *options,
                                       struct trace_reader **out, char *error, size_t error_size)
{
    struct torch_csv *self = calloc(1, sizeof(*self));
    struct trace_reader *reader = self ? trace_reader_new(&torch_ops, self) : NULL;

    if (!reader) {
        snprintf(error, error_size, "%s: the host is out of memory", name);
        free(self);
        return TRACE_HOST_MEMORY;
    }
    trace_core_init(&self->core, name, TRACE_FORMAT_TORCH_CSV, &options->limits);
    self->input = input;
    *out = reader;
    return TRACE_OK;
}
