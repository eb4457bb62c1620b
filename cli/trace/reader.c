/* SPDX-License-Identifier: MIT */
/* reader.c - the event interface, and which format an input has. */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TEXT_BYTES ((uint64_t)64 << 30)

/* An event source and its operations. Owner: who opened it. */
struct trace_reader {
    const struct trace_source_ops *ops;
    void *self;               /* owned */
    enum trace_status status; /* sticky: once not OK, `next` is not called again */
};

struct trace_reader *trace_reader_new(const struct trace_source_ops *ops, void *self)
{
    struct trace_reader *reader = calloc(1, sizeof(*reader));

    if (reader) {
        reader->ops = ops;
        reader->self = self;
    }
    return reader;
}

enum trace_status trace_next(struct trace_reader *reader, struct trace_event *event)
{
    if (reader->status == TRACE_OK)
        reader->status = reader->ops->next(reader->self, event);
    return reader->status;
}

const struct trace_info *trace_info(struct trace_reader *reader)
{
    return reader->ops->info(reader->self);
}

const char *trace_error(struct trace_reader *reader)
{
    return reader->ops->error(reader->self);
}

void trace_close(struct trace_reader *reader)
{
    if (!reader)
        return;
    reader->ops->close(reader->self);
    free(reader);
}

void trace_short_name(const char *path, char *name, size_t size)
{
    static const char *const endings[] = {".gz", ".csv", ".json", ".pickle", ".pkl"};
    const char *slash = strrchr(path, '/');

    snprintf(name, size, "%s", slash ? slash + 1 : path);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);

        if (length > ending && !strcmp(name + length - ending, endings[i]))
            name[length - ending] = '\0';
    }
}

/* ------------------------------------------------------------------ formats */

static const char *const format_names[TRACE_FORMAT_COUNT] = {
    [TRACE_FORMAT_AUTO] = "auto",
    [TRACE_FORMAT_TORCH_CSV] = "torch-csv",
    [TRACE_FORMAT_RMM_CSV] = "rmm-csv",
    [TRACE_FORMAT_SNAPSHOT] = "torch-snapshot",
};

static const trace_format_open format_opens[TRACE_FORMAT_COUNT] = {
    [TRACE_FORMAT_TORCH_CSV] = trace_torch_csv_open,
    [TRACE_FORMAT_RMM_CSV] = trace_rmm_csv_open,
    [TRACE_FORMAT_SNAPSHOT] = trace_snapshot_open,
};

const char *trace_format_name(enum trace_format format)
{
    return (unsigned)format < TRACE_FORMAT_COUNT ? format_names[format] : "unknown";
}

bool trace_format_by_name(const char *name, enum trace_format *out)
{
    for (unsigned i = 0; i < TRACE_FORMAT_COUNT; i++) {
        if (!strcmp(name, format_names[i])) {
            *out = (enum trace_format)i;
            return true;
        }
    }
    return false;
}

/*
 * From the first bytes: a pickle begins with PROTO (0x80) or, in protocols 0 and 1, with the opcode
 * of a dict, list, mark or (then refused) a global; an RMM log with its header; the compact log
 * with a comment, its header, or an operation and a comma.
 */
static enum trace_format recognise(const uint8_t *data, size_t size)
{
    static const char rmm[] = "Thread,Time,Action,";
    static const char torch[] = TRACE_TORCH_HEADER;

    while (size && (*data == '\n' || *data == '\r')) {
        data++;
        size--;
    }
    if (!size)
        return TRACE_FORMAT_AUTO;
    if (size >= sizeof(rmm) - 1 && !memcmp(data, rmm, sizeof(rmm) - 1))
        return TRACE_FORMAT_RMM_CSV;
    if (size >= sizeof(torch) - 1 && !memcmp(data, torch, sizeof(torch) - 1))
        return TRACE_FORMAT_TORCH_CSV;
    if (data[0] == '#' || (size >= 2 && data[1] == ',' && strchr("afSs", data[0]) && data[0]))
        return TRACE_FORMAT_TORCH_CSV;
    if (data[0] == 0x80 || (data[0] && strchr("(}]c", data[0])))
        return TRACE_FORMAT_SNAPSHOT;
    return TRACE_FORMAT_AUTO;
}

/* The first bytes, behind the mark that some editors put before UTF-8. */
static enum trace_status first_bytes(struct trace_input *input, const uint8_t **data,
                                     size_t *available)
{
    static const uint8_t mark[] = {0xef, 0xbb, 0xbf};
    enum trace_status status = trace_input_peek(input, 64, data, available);

    if (status || *available < sizeof(mark) || memcmp(*data, mark, sizeof(mark)) != 0)
        return status;
    trace_input_take(input, sizeof(mark));
    return trace_input_peek(input, 64, data, available);
}

static enum trace_status choose_format(struct trace_input *input, const char *name,
                                       enum trace_format *format, char *error, size_t error_size)
{
    const uint8_t *data = NULL;
    size_t available = 0;
    enum trace_status status = first_bytes(input, &data, &available);
    char quoted[192];

    if (status) {
        snprintf(error, error_size, "%s:1: %s", name,
                 status == TRACE_HOST_MEMORY ? "the host is out of memory"
                                             : trace_input_problem(input));
        return status;
    }
    if (!available) {
        snprintf(error, error_size, "%s:1: the file is empty; expected an allocation trace", name);
        return TRACE_BAD_INPUT;
    }
    if (*format == TRACE_FORMAT_AUTO)
        *format = recognise(data, available);
    if (*format != TRACE_FORMAT_AUTO)
        return TRACE_OK;
    snprintf(error, error_size,
             "%s:1: the file begins with %s; expected op,id,bytes,stream lines, an RMM log, or a "
             "PyTorch snapshot pickle",
             name, trace_quote((struct trace_text){(const char *)data, available}, quoted));
    return TRACE_BAD_INPUT;
}

/* OWNS input in every case. */
static enum trace_status open_input(struct trace_input *input, const char *name,
                                    const struct trace_options *options, struct trace_reader **out,
                                    char *error, size_t error_size)
{
    uint64_t text_bytes = options->limits.text_bytes;
    enum trace_format format = options->format;
    enum trace_status status;

    trace_input_limit(input, text_bytes ? text_bytes : DEFAULT_TEXT_BYTES);
    status = choose_format(input, name, &format, error, error_size);
    if (!status)
        status = format_opens[format](input, name, options, out, error, error_size);
    if (status)
        trace_input_close(input);
    return status;
}

static const struct trace_options default_options = {.device = TRACE_ANY_DEVICE};

enum trace_status trace_open(const char *path, const struct trace_options *options,
                             struct trace_reader **out, char *error, size_t error_size)
{
    const char *name = strcmp(path, "-") ? path : "standard input";
    struct trace_input *input = NULL;
    char problem[256];
    enum trace_status status = trace_input_open(path, &input, problem, sizeof(problem));

    if (status) {
        snprintf(error, error_size, status == TRACE_BAD_INPUT ? "%s:1: %s" : "%s: %s", name,
                 problem);
        return status;
    }
    return open_input(input, name, options ? options : &default_options, out, error, error_size);
}

enum trace_status trace_open_memory(const void *data, size_t size, const char *name,
                                    const struct trace_options *options, struct trace_reader **out,
                                    char *error, size_t error_size)
{
    struct trace_input *input = NULL;
    char problem[256];
    enum trace_status status =
        trace_input_open_memory(data, size, &input, problem, sizeof(problem));

    if (status) {
        snprintf(error, error_size, "%s:1: %s", name, problem);
        return status;
    }
    return open_input(input, name, options ? options : &default_options, out, error, error_size);
}
