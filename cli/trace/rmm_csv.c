/* SPDX-License-Identifier: MIT */
/*
 * rmm_csv.c - the log of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.
 *
 * Actions are «allocate», «free» (some versions «deallocate») and «allocate failure». Pointers and
 * streams are hexadecimal with 0x or decimal; a null pointer is printed as 0x0, (nil) or nullptr.
 * Requests for 0 bytes get the null pointer in RMM and take no memory: they are ignored. Thread and
 * time are not used; the order of the lines is the order of the calls.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>

static const char header_line[] = "Thread,Time,Action,Pointer,Size,Stream";

enum {
    FIELD_THREAD,
    FIELD_TIME,
    FIELD_ACTION,
    FIELD_POINTER,
    FIELD_SIZE,
    FIELD_STREAM,
    FIELD_COUNT,
};

/* Owner: the reader. */
struct rmm_csv {
    struct trace_core core;
    struct trace_input *input;
    uint64_t line;    /* number of the line last read */
    bool header_seen; /* the first line that is not empty has to be the header */
};

static enum trace_status bad_field(struct rmm_csv *self, const char *what, struct trace_text text,
                                   const char *expected)
{
    char quoted[192];

    return trace_core_fail(&self->core, self->line, "the %s is %s; expected %s", what,
                           trace_quote(text, quoted), expected);
}

static enum trace_status parse_action(struct rmm_csv *self, struct trace_text text,
                                      enum trace_op *op)
{
    if (trace_text_is(text, "allocate"))
        *op = TRACE_ALLOC;
    else if (trace_text_is(text, "free") || trace_text_is(text, "deallocate"))
        *op = TRACE_FREE;
    else if (trace_text_is(text, "allocate failure"))
        *op = TRACE_ALLOC_FAILED;
    else
        return bad_field(self, "action", text, "allocate, free, deallocate or allocate failure");
    return TRACE_OK;
}

static bool parse_pointer(struct trace_text text, uint64_t *out)
{
    if (trace_text_is(text, "(nil)") || trace_text_is(text, "nullptr")) {
        *out = 0;
        return true;
    }
    return trace_number(text, out);
}

static enum trace_status parse_line(struct rmm_csv *self, struct trace_text line,
                                    struct trace_record *record)
{
    struct trace_text fields[FIELD_COUNT];
    enum trace_status status;
    unsigned count = 0;

    while (count < FIELD_COUNT && trace_field(&line, &fields[count]))
        count++;
    if (count < FIELD_COUNT || line.at)
        return trace_core_fail(&self->core, self->line,
                               "the line has %s than 6 fields; expected %s",
                               count < FIELD_COUNT ? "fewer" : "more", header_line);
    status = parse_action(self, fields[FIELD_ACTION], &record->op);
    if (status)
        return status;
    if (!parse_pointer(fields[FIELD_POINTER], &record->block))
        return bad_field(self, "pointer", fields[FIELD_POINTER], "an address, like 0x7f0a00000000");
    if (!trace_number(fields[FIELD_SIZE], &record->bytes))
        return bad_field(self, "size", fields[FIELD_SIZE], "a whole number of bytes, 0 or more");
    if (!parse_pointer(fields[FIELD_STREAM], &record->stream))
        return bad_field(self, "stream", fields[FIELD_STREAM], "a number, like 0 or 0x7f0a1c20");
    record->line = self->line;
    record->bytes_known = true;
    if (!record->block && record->bytes && record->op == TRACE_ALLOC)
        return bad_field(self, "pointer", fields[FIELD_POINTER],
                         "an address, as the allocation did not fail");
    return TRACE_OK;
}

/* TRACE_OK with *use false: the line has no event. */
static enum trace_status handle_line(struct rmm_csv *self, struct trace_text line,
                                     struct trace_record *record, bool *use)
{
    enum trace_status status;

    *use = false;
    if (!line.length)
        return TRACE_OK;
    if (!self->header_seen) {
        self->header_seen = true;
        return trace_text_is(line, header_line) ? TRACE_OK
                                                : bad_field(self, "first line", line, header_line);
    }
    status = parse_line(self, line, record);
    if (status)
        return status;
    *use = record->block || record->op == TRACE_ALLOC_FAILED;
    if (!*use)
        self->core.info.ignored++;
    return TRACE_OK;
}

static enum trace_status rmm_next(void *opaque, struct trace_event *event)
{
    struct rmm_csv *self = opaque;
    char problem[TRACE_LINE_MAX / 4];
    struct trace_record record = {0};
    struct trace_text line;
    bool use;

    for (;;) {
        enum trace_status status = trace_line(self->input, &line, problem);

        if (status == TRACE_END)
            return trace_core_end(&self->core, self->line);
        self->line++;
        if (status)
            return trace_core_input_failed(&self->core, self->line, status, problem);
        status = handle_line(self, line, &record, &use);
        if (status)
            return status;
        if (use)
            return trace_core_accept(&self->core, &record, event);
    }
}

static const struct trace_info *rmm_info(void *opaque)
{
    struct rmm_csv *self = opaque;

    return &self->core.info;
}

static const char *rmm_error(void *opaque)
{
    struct rmm_csv *self = opaque;

    return self->core.error;
}

static void rmm_close(void *opaque)
{
    struct rmm_csv *self = opaque;

    trace_core_fini(&self->core);
    trace_input_close(self->input);
    free(self);
}

static const struct trace_source_ops rmm_ops = {rmm_next, rmm_info, rmm_error, rmm_close};

enum trace_status trace_rmm_csv_open(struct trace_input *input, const char *name,
                                     const struct trace_options *options, struct trace_reader **out,
                                     char *error, size_t error_size)
{
    struct rmm_csv *self = calloc(1, sizeof(*self));
    struct trace_reader *reader = self ? trace_reader_new(&rmm_ops, self) : NULL;

    if (!reader) {
        snprintf(error, error_size, "%s: the host is out of memory", name);
        free(self);
        return TRACE_HOST_MEMORY;
    }
    trace_core_init(&self->core, name, TRACE_FORMAT_RMM_CSV, &options->limits);
    self->input = input;
    *out = reader;
    return TRACE_OK;
}
