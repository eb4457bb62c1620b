/* SPDX-License-Identifier: MIT */
/*
 * internal.h - what the trace formats share: bytes in, lines, block names, messages.
 *
 * Only files of cli/trace and their tests include it. Everything belongs to one reader and so to
 * one thread; there are no locks.
 */
#ifndef MB_CLI_TRACE_INTERNAL_H
#define MB_CLI_TRACE_INTERNAL_H

#include "trace.h"

/* ------------------------------------------------------------------ input (input.c) */

/* A stream of bytes from a file, standard input or memory; gzip is recognised and inflated. */
struct trace_input;

/* On failure *out is untouched and `error` holds the message. `limit_bytes` bounds the plain
 * bytes. */
enum trace_status trace_input_open(const char *path, struct trace_input **out, char *error,
                                   size_t error_size);
enum trace_status trace_input_open_memory(const void *data, size_t size, struct trace_input **out,
                                          char *error, size_t error_size);
void trace_input_close(struct trace_input *input);
/* Plain bytes beyond this many are refused; without a call there is no bound. */
void trace_input_limit(struct trace_input *input, uint64_t limit_bytes);
/*
 * Shows the next plain bytes without taking them: at least `want` (at most TRACE_PEEK_MAX), fewer
 * only at the end of the input. Valid until the next call.
 */
enum trace_status trace_input_peek(struct trace_input *input, size_t want, const uint8_t **data,
                                   size_t *available);
void trace_input_take(struct trace_input *input, size_t bytes);
/* What went wrong, without file and position; "" before any failure. */
const char *trace_input_problem(const struct trace_input *input);

enum { TRACE_PEEK_MAX = 32 * 1024 };

/* ------------------------------------------------------------------ text (text.c) */

/* A piece of a line: not terminated. */
struct trace_text {
    const char *at;
    size_t length;
};

/* What the next line is, or TRACE_END. A line ends with \n, \r\n or the end of the input. */
enum trace_status trace_line(struct trace_input *input, struct trace_text *line,
                             char problem[TRACE_LINE_MAX / 4]);
/* Cuts the text before the first comma off *rest; false when nothing is left (an empty field
 * counts). */
bool trace_field(struct trace_text *rest, struct trace_text *field);
bool trace_text_is(struct trace_text text, const char *word);
/* Whole decimal number, or hexadecimal after 0x; false for anything else, a sign or an overflow. */
bool trace_number(struct trace_text text, uint64_t *out);
/* The text for a message: quoted, unprintable bytes as \xNN, cut after 40 bytes. Returns buffer. */
const char *trace_quote(struct trace_text text, char buffer[192]);

/* ------------------------------------------------------------------ blocks (blocks.c) */

/* What is known of a live block. */
struct trace_block {
    uint64_t name;      /* as the trace calls it */
    uint64_t bytes;     /* as requested */
    uint64_t line;      /* where it was allocated */
    uint32_t stream;    /* dense index */
    uint32_t next_free; /* while the slot is free: the next free slot, or TRACE_NO_SLOT */
};
#define TRACE_NO_SLOT UINT32_MAX
/* The first line of a compact log, which may be left out. */
#define TRACE_TORCH_HEADER "op,id,bytes,stream"

/*
 * Live blocks by name, and the names of freed ones, so that a second free is told from the free of
 * a block from before the trace. Names that come as consecutive numbers cost nothing after their
 * free.
 *
 * Invariants (trace_blocks_check): live + remembered = entries of the table; every live entry's
 * slot holds its name; slots = live + length of the free list.
 */
struct trace_blocks {
    uint64_t *names; /* open addressing, `capacity` entries, a power of two */
    uint32_t *slots; /* beside names: the slot, or one of the two marks in blocks.c */
    size_t capacity;
    size_t live;          /* entries with a slot */
    size_t remembered;    /* entries of freed names */
    uint64_t limit;       /* of live + remembered */
    uint64_t range_begin; /* every name in [begin, end) has been allocated at some time */
    uint64_t range_end;
    struct trace_block *records; /* by slot */
    uint32_t record_count;       /* slots ever used */
    uint32_t record_capacity;
    uint32_t free_slot; /* head of the list of free slots */
};

enum trace_block_state {
    TRACE_BLOCK_UNKNOWN, /* never seen: from before the trace */
    TRACE_BLOCK_LIVE,
    TRACE_BLOCK_FREED,
};

void trace_blocks_init(struct trace_blocks *blocks, uint64_t limit);
void trace_blocks_fini(struct trace_blocks *blocks);
enum trace_block_state trace_blocks_find(const struct trace_blocks *blocks, uint64_t name,
                                         uint32_t *slot);
/* The name must not be live. TRACE_BAD_INPUT when the limit is reached, TRACE_HOST_MEMORY. */
enum trace_status trace_blocks_add(struct trace_blocks *blocks, const struct trace_block *block,
                                   uint32_t *slot);
/* The slot must be live. The record stays readable until the next add. */
void trace_blocks_remove(struct trace_blocks *blocks, uint32_t slot);
/* false when an invariant is broken. For tests. */
bool trace_blocks_check(const struct trace_blocks *blocks);

/* ------------------------------------------------------------------ core (core.c) */

/* The part that every file format has. */
struct trace_core {
    char name[256]; /* of the file, for messages */
    char error[768];
    struct trace_info info;
    struct trace_blocks blocks;
    const char *position; /* "" for lines, "offset " for a pickle: stands before the number */
    uint64_t stream_names[TRACE_STREAMS_MAX]; /* dense index → the trace's own name */
};

/* One record as a format reads it. */
struct trace_record {
    enum trace_op op;
    uint64_t block;
    uint64_t bytes;
    uint64_t stream;  /* the trace's own name */
    uint64_t line;    /* or offset */
    bool bytes_known; /* FREE: the trace states the size, which then must agree */
};

void trace_core_init(struct trace_core *core, const char *name, enum trace_format format,
                     const struct trace_limits *limits);
void trace_core_fini(struct trace_core *core);
/* Stores «NAME:LINE: text», returns TRACE_BAD_INPUT. */
__attribute__((format(printf, 3, 4))) enum trace_status
trace_core_fail(struct trace_core *core, uint64_t line, const char *format, ...);
/* Passes on a failure of the input: its message gets the position. Returns status. */
enum trace_status trace_core_input_failed(struct trace_core *core, uint64_t line,
                                          enum trace_status status, const char *problem);
/* At the end of a text: TRACE_END, or bad input where not one record was read. */
enum trace_status trace_core_end(struct trace_core *core, uint64_t line);
/* Checks a record against all before it, keeps the accounts, fills *event. */
enum trace_status trace_core_accept(struct trace_core *core, const struct trace_record *record,
                                    struct trace_event *event);

/* ------------------------------------------------------------------ formats */

/* Each owns `input` from success on. On failure `error` holds the message. */
typedef enum trace_status (*trace_format_open)(struct trace_input *input, const char *name,
                                               const struct trace_options *options,
                                               struct trace_reader **out, char *error,
                                               size_t error_size);
enum trace_status trace_torch_csv_open(struct trace_input *input, const char *name,
                                       const struct trace_options *options,
                                       struct trace_reader **out, char *error, size_t error_size);
enum trace_status trace_rmm_csv_open(struct trace_input *input, const char *name,
                                     const struct trace_options *options, struct trace_reader **out,
                                     char *error, size_t error_size);
enum trace_status trace_snapshot_open(struct trace_input *input, const char *name,
                                      const struct trace_options *options,
                                      struct trace_reader **out, char *error, size_t error_size);

#endif
