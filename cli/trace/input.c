/* SPDX-License-Identifier: MIT */
/*
 * input.c - bytes of a trace, from anywhere, inflated on the way.
 *
 * HOW    One buffer of plain bytes. Reading moves what is left to its front and appends: straight
 *        from the source, or through zlib from a second buffer when the source begins with the gzip
 *        magic. Several gzip members in a row are one input, as gzip(1) has it.
 * BOUNDS Two buffers of 64 KiB, whatever the source holds; a compressed bomb costs time until the
 *        format refuses its content or the limit is passed, never memory or disk.
 */
#include "internal.h"

#include "input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

enum {
    BUFFER_BYTES = 64 * 1024,
};

struct trace_input {
    int fd;               /* -1: memory */
    bool owns_fd;         /* standard input is not ours to close */
    const uint8_t *mem;   /* rest of a memory input */
    size_t mem_left;      /* bytes at mem */
    bool source_ended;    /* nothing more will come from fd or mem */
    bool gzip;            /* the source is compressed */
    bool member_open;     /* gzip: inside a member, whose end has to come */
    bool ended;           /* no more plain bytes after the buffered ones */
    z_stream z;           /* gzip */
    uint64_t plain_bytes; /* put into `plain` so far */
    uint64_t limit_bytes; /* bound on plain_bytes */
    size_t begin, end;    /* unread part of plain */
    char problem[200];
    uint8_t plain[BUFFER_BYTES];
    uint8_t packed[BUFFER_BYTES];
};

const char *trace_input_problem(const struct trace_input *input)
{
    return input->problem;
}

void trace_input_limit(struct trace_input *input, uint64_t limit_bytes)
{
    input->limit_bytes = limit_bytes;
}

/* Up to `room` bytes from the source to `to`; *got 0 at its end. */
static enum trace_status source_read(struct trace_input *input, uint8_t *to, size_t room,
                                     size_t *got)
{
    ssize_t n;

    if (input->fd < 0) {
        *got = room < input->mem_left ? room : input->mem_left;
        if (*got)
            memcpy(to, input->mem, *got);
        input->mem += *got;
        input->mem_left -= *got;
        return TRACE_OK;
    }
    do {
        n = read(input->fd, to, room);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        snprintf(input->problem, sizeof(input->problem), "reading failed: %s", strerror(errno));
        return TRACE_CANNOT_READ;
    }
    *got = (size_t)n;
    return TRACE_OK;
}

/* Makes z.next_in non-empty unless the source has ended. */
static enum trace_status refill_packed(struct trace_input *input)
{
    size_t got = 0;
    enum trace_status status;

    if (input->z.avail_in || input->source_ended)
        return TRACE_OK;
    status = source_read(input, input->packed, sizeof(input->packed), &got);
    if (status)
        return status;
    input->source_ended = got == 0;
    input->z.next_in = input->packed;
    input->z.avail_in = (uInt)got;
    return TRACE_OK;
}

static enum trace_status bad_gzip(struct trace_input *input, const char *what)
{
    snprintf(input->problem, sizeof(input->problem),
             "%s after %llu plain bytes; expected a complete gzip file", what,
             (unsigned long long)input->plain_bytes);
    return TRACE_BAD_INPUT;
}

/* Inflates up to `room` bytes to `to`; *got 0 at the end of the last member. */
static enum trace_status inflate_some(struct trace_input *input, uint8_t *to, size_t room,
                                      size_t *got)
{
    input->z.next_out = to;
    input->z.avail_out = (uInt)room;
    while (input->z.avail_out == room) {
        enum trace_status status = refill_packed(input);
        int result;

        if (status)
            return status;
        if (!input->z.avail_in) {
            if (input->member_open)
                return bad_gzip(input, "the gzip data ends early");
            break;
        }
        if (!input->member_open) {
            if (inflateReset(&input->z) != Z_OK)
                return bad_gzip(input, "the gzip data cannot be read");
            input->member_open = true;
        }
        result = inflate(&input->z, Z_NO_FLUSH);
        if (result == Z_MEM_ERROR)
            return TRACE_HOST_MEMORY;
        if (result == Z_STREAM_END)
            input->member_open = false;
        else if (result != Z_OK && result != Z_BUF_ERROR)
            return bad_gzip(input, input->z.msg ? input->z.msg : "the gzip data is damaged");
    }
    *got = room - input->z.avail_out;
    return TRACE_OK;
}

/* Appends plain bytes to the buffer; sets `ended` when there are none. */
static enum trace_status fill(struct trace_input *input)
{
    size_t got = 0;
    enum trace_status status;

    if (input->begin) {
        memmove(input->plain, input->plain + input->begin, input->end - input->begin);
        input->end -= input->begin;
        input->begin = 0;
    }
    if (input->gzip)
        status = inflate_some(input, input->plain + input->end, BUFFER_BYTES - input->end, &got);
    else
        status = source_read(input, input->plain + input->end, BUFFER_BYTES - input->end, &got);
    if (status)
        return status;
    input->ended = got == 0;
    input->end += got;
    input->plain_bytes += got;
    if (input->plain_bytes > input->limit_bytes) {
        snprintf(input->problem, sizeof(input->problem),
                 "the input is larger than %llu bytes%s; expected a smaller one",
                 (unsigned long long)input->limit_bytes, input->gzip ? " once decompressed" : "");
        return TRACE_BAD_INPUT;
    }
    return TRACE_OK;
}

enum trace_status trace_input_peek(struct trace_input *input, size_t want, const uint8_t **data,
                                   size_t *available)
{
    while (input->end - input->begin < want && !input->ended) {
        enum trace_status status = fill(input);

        if (status)
            return status;
    }
    *data = input->plain + input->begin;
    *available = input->end - input->begin;
    return TRACE_OK;
}

void trace_input_take(struct trace_input *input, size_t bytes)
{
    input->begin += bytes;
}

/* Looks at the first two bytes of the source and turns to gzip when they say so. */
static enum trace_status recognise(struct trace_input *input)
{
    const uint8_t *data;
    size_t available;
    enum trace_status status = trace_input_peek(input, 2, &data, &available);

    if (status || available < 2 || data[0] != 0x1f || data[1] != 0x8b)
        return status;
    memcpy(input->packed, data, available);
    input->z.next_in = input->packed;
    input->z.avail_in = (uInt)available;
    if (inflateInit2(&input->z, 15 + 16) != Z_OK)
        return TRACE_HOST_MEMORY;
    input->gzip = true;
    input->source_ended = input->ended;
    input->ended = false;
    input->begin = input->end = 0;
    input->plain_bytes = 0;
    return TRACE_OK;
}

static struct trace_input *input_new(void)
{
    struct trace_input *input = calloc(1, sizeof(*input));

    if (input) {
        input->fd = -1;
        input->limit_bytes = UINT64_MAX;
    }
    return input;
}

static enum trace_status finish_open(struct trace_input *input, struct trace_input **out,
                                     char *error, size_t error_size)
{
    enum trace_status status = recognise(input);

    if (status) {
        snprintf(error, error_size, "%s",
                 input->problem[0] ? input->problem : "the host is out of memory");
        trace_input_close(input);
        return status;
    }
    *out = input;
    return TRACE_OK;
}

enum trace_status trace_input_open(const char *path, struct trace_input **out, char *error,
                                   size_t error_size)
{
    struct trace_input *input = input_new();
    char problem[INPUT_PROBLEM];

    if (!input) {
        snprintf(error, error_size, "the host is out of memory");
        return TRACE_HOST_MEMORY;
    }
    if (!strcmp(path, "-")) {
        input->fd = STDIN_FILENO;
    } else {
        input->fd = input_open(path, problem);
        input->owns_fd = true;
        if (input->fd < 0) {
            snprintf(error, error_size, "%s", problem);
            free(input);
            return TRACE_CANNOT_READ;
        }
    }
    return finish_open(input, out, error, error_size);
}

enum trace_status trace_input_open_memory(const void *data, size_t size, struct trace_input **out,
                                          char *error, size_t error_size)
{
    struct trace_input *input = input_new();

    if (!input) {
        snprintf(error, error_size, "the host is out of memory");
        return TRACE_HOST_MEMORY;
    }
    input->mem = data;
    input->mem_left = size;
    return finish_open(input, out, error, error_size);
}

void trace_input_close(struct trace_input *input)
{
    if (!input)
        return;
    if (input->gzip)
        inflateEnd(&input->z);
    if (input->owns_fd && input->fd >= 0)
        close(input->fd);
    free(input);
}
