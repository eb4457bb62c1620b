/* SPDX-License-Identifier: MIT */
/*
 * trace.h - allocation traces as a sequence of checked events, whatever the file's format.
 *
 * A reader is a source of events: one of the file formats, or a filter on another reader. Consumers
 * (replay, policy models, benches) see only struct trace_event.
 *
 * PROMISES   Every ALLOC gets a slot, a small number that no other live block has, so that
 *            consumers index arrays and never hash. A FREE names a live block's slot or says that
 *            the block is from before the trace. Freeing twice, allocating an address that is live,
 *            sizes above TRACE_BLOCK_MAX and all other nonsense end the trace with TRACE_BAD_INPUT
 *            and a message «FILE:LINE: what is wrong, what is expected».
 * MEMORY     Bounded by struct trace_limits, whatever the input holds: text is streamed, also when
 *            compressed; nothing is unpacked to disk.
 * SAFETY     Nothing in an input is ever executed. No recursion on input.
 * THREADS    A reader belongs to one thread.
 * DEPENDS    on the C library and zlib alone, so that fuzzers link nothing else.
 */
#ifndef MB_CLI_TRACE_H
#define MB_CLI_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum trace_status {
    TRACE_OK = 0,
    TRACE_END,         /* no more events */
    TRACE_BAD_INPUT,   /* the input is wrong; trace_error() says where and how */
    TRACE_CANNOT_READ, /* the file could not be opened or read */
    TRACE_HOST_MEMORY, /* the host is out of memory */
};

enum trace_op {
    TRACE_ALLOC,
    TRACE_FREE,
    TRACE_ALLOC_FAILED,  /* the traced program asked for `bytes` and was refused */
    TRACE_SEGMENT_ALLOC, /* the traced allocator took `bytes` from the driver */
    TRACE_SEGMENT_FREE,  /* and gave them back */
    /* Only from the stream generator (streams.c): */
    TRACE_WAIT,          /* later work of `stream` waits for what `other` has now */
    TRACE_USE,           /* work of `stream` reads and writes the block */
    TRACE_RECORD_STREAM, /* the allocator is told that `stream` uses the block */
    TRACE_OP_COUNT
};

enum trace_format {
    TRACE_FORMAT_AUTO,
    TRACE_FORMAT_TORCH_CSV, /* op,id,bytes,stream */
    TRACE_FORMAT_RMM_CSV,   /* Thread,Time,Action,Pointer,Size,Stream */
    TRACE_FORMAT_SNAPSHOT,  /* pickle of a PyTorch memory snapshot */
    TRACE_FORMAT_COUNT
};

/* One event. Valid until the next call on its reader. */
struct trace_event {
    enum trace_op op;
    bool before_trace; /* FREE: the block was allocated before the trace began; no slot */
    bool ordered;      /* FREE: `stream` already comes after every use of the block, by WAIT or
                          RECORD_STREAM events; if not set, the trace does not say how the program
                          ordered a free on another stream, and the consumer has to */
    uint32_t slot;     /* ALLOC, FREE, USE, RECORD_STREAM: index of the live block */
    uint32_t stream;   /* index of the stream, dense from 0 in order of first appearance */
    uint32_t other;    /* WAIT: index of the stream waited for; FREE: the stream on which the block
                          may still be used just before this event */
    uint64_t block; /* the trace's own name of the block: id or address; may repeat after a free */
    uint64_t bytes; /* as requested; FREE: of the block if known, else as the trace says */
    uint64_t line;  /* line of the file, or offset for a pickle, for messages */
};

enum {
    TRACE_LINE_MAX = 1024,   /* bytes of a text line, without its end */
    TRACE_STREAMS_MAX = 1024 /* distinct streams of a trace */
};
#define TRACE_BLOCK_MAX ((uint64_t)1 << 48)   /* bytes of one block: 256 TiB */
#define TRACE_RUNNING_MAX ((uint64_t)1 << 62) /* bytes live at once, by the trace's own account */

/* Bounds on what an input may cost; 0 takes the default. */
struct trace_limits {
    uint64_t blocks;        /* live blocks plus remembered freed names; default 8,388,608 */
    uint64_t text_bytes;    /* of a text trace after decompression; default 64 GiB */
    uint64_t pickle_bytes;  /* of a pickle after decompression; default 4 GiB */
    uint64_t pickle_memory; /* host bytes for what a pickle builds; default 1 GiB */
};

struct trace_options {
    enum trace_format format; /* AUTO looks at the first bytes */
    unsigned device;          /* SNAPSHOT: which device's events; UINT_MAX: first that has any */
    struct trace_limits limits;
};
#define TRACE_ANY_DEVICE ((unsigned)-1)

/* What is known besides the events. Counts and peaks grow while events are read. */
struct trace_info {
    enum trace_format format;
    uint64_t events;             /* read so far */
    uint64_t allocs, frees;      /* `frees` without the next */
    uint64_t frees_before_trace; /* frees of blocks from before the trace */
    uint64_t ignored;            /* records that say nothing about memory, or of an unknown kind */
    uint64_t failures;           /* the traced program's own refused requests */
    uint64_t segments;           /* SEGMENT_ALLOC seen */
    uint64_t requested_bytes, requested_peak_bytes; /* live now, and most at any moment */
    uint64_t segment_bytes, segment_peak_bytes;     /* held by the traced allocator, likewise;
                                                       SNAPSHOT: with what it held before */
    uint64_t live_blocks;
    unsigned streams; /* distinct streams seen */
    unsigned device;  /* SNAPSHOT: the device whose events these are */
    unsigned devices; /* SNAPSHOT: how many devices have events */
};

struct trace_reader;

/*
 * What an event source implements. `next` fills *event or returns END or an error, after which it
 * is not called again. `close` frees the source; it is called exactly once.
 */
struct trace_source_ops {
    enum trace_status (*next)(void *self, struct trace_event *event);
    const struct trace_info *(*info)(void *self);
    const char *(*error)(void *self);
    void (*close)(void *self);
};

/*
 * Opens `path`, "-" for standard input, compressed or not. On failure *out is untouched and `error`
 * (of error_size bytes) holds the message.
 */
enum trace_status trace_open(const char *path, const struct trace_options *options,
                             struct trace_reader **out, char *error, size_t error_size);
/* The same on bytes in memory, which must live as long as the reader; `name` is for messages. */
enum trace_status trace_open_memory(const void *data, size_t size, const char *name,
                                    const struct trace_options *options, struct trace_reader **out,
                                    char *error, size_t error_size);
/*
 * A filter that spreads the events of `inner` over `count` streams (2..64) and adds uses on other
 * streams with the ordering that makes them right. Same seed, same events. OWNS inner from success
 * on. What it adds is documented in streams.c and doc/traces.md.
 */
enum trace_status trace_open_streams(struct trace_reader *inner, unsigned count, uint64_t seed,
                                     struct trace_reader **out);
/* NULL when the host is out of memory; then `self` is not closed. */
struct trace_reader *trace_reader_new(const struct trace_source_ops *ops, void *self);

enum trace_status trace_next(struct trace_reader *reader, struct trace_event *event);
/* Valid until the next call on the reader. */
const struct trace_info *trace_info(struct trace_reader *reader);
/* The message of the last error, or "". */
const char *trace_error(struct trace_reader *reader);
/* NULL is allowed. */
void trace_close(struct trace_reader *reader);

/* "gpt2" of "data/gpt2.csv.gz", in `name`: without the directory and the endings of traces. */
void trace_short_name(const char *path, char *name, size_t size);

/* "torch-csv"; never NULL. */
const char *trace_format_name(enum trace_format format);
/* false if no format has that name. */
bool trace_format_by_name(const char *name, enum trace_format *out);

#endif
