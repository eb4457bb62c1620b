/* SPDX-License-Identifier: MIT */
/*
 * pickle.c - the machine behind pickle.h.
 *
 * HOW    A pickle is a program for a stack machine with a memo. `stack` holds values, `marks` the
 *        heights at which MARK was seen. One function a group of opcodes, one switch that
 *        dispatches; what the switch does not know is refused by name.
 * FRAMES Protocol 4 wraps opcodes in frames. They are checked (no opcode crosses the end of its
 *        frame, none begins inside another) since a file that breaks this is damaged.
 * BUDGET Every byte that is kept is charged before it is allocated, the stacks and memo too.
 */
#include "pickle_document.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PROTOCOL_MAX = 5,
};

/* Only while reading. */
struct machine {
    struct trace_input *input;
    struct pickle_document *document;
    struct pickle_value *stack;
    size_t height, stack_capacity;
    size_t *marks; /* heights of the stack */
    size_t mark_count, mark_capacity;
    struct pickle_value *memo;
    bool *memo_set;
    size_t memo_capacity;
    size_t memo_count;  /* entries that are set */
    uint64_t offset;    /* of the next byte */
    uint64_t op_offset; /* of the opcode at work */
    uint64_t frame_end; /* 0: outside frames */
    char *problem;      /* 256 bytes */
};

__attribute__((format(printf, 2, 3))) static enum trace_status bad(struct machine *m,
                                                                   const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(m->problem, 256, format, arguments);
    va_end(arguments);
    return TRACE_BAD_INPUT;
}

/* ------------------------------------------------------------------ memory */

/* Gives the two failures of the document's store their text. */
static enum trace_status stored(struct machine *m, enum trace_status status)
{
    if (status == TRACE_BAD_INPUT)
        return bad(m, "the pickle builds more than fits the memory allowed for it; expected a "
                      "smaller snapshot");
    return status;
}

/* Doubles an array of `size`-byte items until `need` of them fit. */
static enum trace_status grow(struct machine *m, void **array, size_t *capacity, size_t need,
                              size_t size)
{
    size_t wanted = *capacity ? *capacity : 64;
    enum trace_status status;
    void *moved;

    if (need <= *capacity)
        return TRACE_OK;
    while (wanted < need)
        wanted *= 2;
    status = stored(m, pickle_charge(m->document, (uint64_t)(wanted - *capacity) * size));
    if (status)
        return status;
    moved = realloc(*array, wanted * size);
    if (!moved)
        return TRACE_HOST_MEMORY;
    *array = moved;
    *capacity = wanted;
    return TRACE_OK;
}

static enum trace_status push(struct machine *m, struct pickle_value value)
{
    enum trace_status status =
        grow(m, (void **)&m->stack, &m->stack_capacity, m->height + 1, sizeof(*m->stack));

    if (!status)
        m->stack[m->height++] = value;
    return status;
}

/* Height below which the present opcode may not reach: the last mark. */
static size_t floor_height(const struct machine *m)
{
    return m->mark_count ? m->marks[m->mark_count - 1] : 0;
}

static enum trace_status need_values(struct machine *m, size_t count)
{
    if (!m->stack || m->height - floor_height(m) < count)
        return bad(m, "the opcode needs %zu value(s) and the stack has %zu", count,
                   m->height - floor_height(m));
    return TRACE_OK;
}

static enum trace_status need_mark(struct machine *m)
{
    return m->mark_count ? TRACE_OK : bad(m, "the opcode needs a MARK and there is none");
}

/* ------------------------------------------------------------------ bytes in */

/* Shows exactly `bytes` next bytes (at most TRACE_PEEK_MAX). */
static enum trace_status take(struct machine *m, size_t bytes, const uint8_t **data)
{
    size_t available = 0;
    enum trace_status status = trace_input_peek(m->input, bytes, data, &available);

    if (status) {
        snprintf(m->problem, 256, "%s", trace_input_problem(m->input));
        return status;
    }
    if (available < bytes)
        return bad(m, "the pickle ends early; expected %zu more byte(s)", bytes - available);
    trace_input_take(m->input, bytes);
    m->offset += bytes;
    return TRACE_OK;
}

/* A little-endian number of 1 to 8 bytes. */
static enum trace_status take_number(struct machine *m, size_t bytes, uint64_t *out)
{
    const uint8_t *data = NULL;
    enum trace_status status = take(m, bytes, &data);

    if (status)
        return status;
    *out = 0;
    for (size_t i = bytes; i-- > 0;)
        *out = *out << 8 | data[i];
    return TRACE_OK;
}

/* Copies `length` bytes to the document's store in pieces that the input can show at once. A lie
 * about the length costs address space within the budget; its pages are never touched. */
static enum trace_status take_text(struct machine *m, uint64_t length, enum pickle_kind kind,
                                   struct pickle_value *out)
{
    const uint8_t *data = NULL;
    enum trace_status status;
    char *text = NULL;

    if (length > UINT32_MAX)
        return bad(m, "a text has %" PRIu64 " bytes; expected less than 4 GiB", length);
    if (length > m->document->budget)
        return stored(m, TRACE_BAD_INPUT);
    status = stored(m, pickle_text_new(m->document, (size_t)length, &text));
    for (uint64_t done = 0; !status && done < length;) {
        size_t piece = length - done < TRACE_PEEK_MAX ? (size_t)(length - done) : TRACE_PEEK_MAX;

        status = take(m, piece, &data);
        if (!status)
            memcpy(text + done, data, piece);
        done += piece;
    }
    if (status)
        return status;
    *out = (struct pickle_value){.kind = kind, .length = (uint32_t)length, .u = {.text = text}};
    return TRACE_OK;
}

/* The rest of a protocol 0 line, without its end; valid until the next take. */
static enum trace_status take_line(struct machine *m, struct trace_text *out)
{
    const uint8_t *data = NULL;
    const uint8_t *newline = NULL;
    size_t available = 0;
    size_t want = 1;

    while (!newline) {
        enum trace_status status = trace_input_peek(m->input, want, &data, &available);

        if (status) {
            snprintf(m->problem, 256, "%s", trace_input_problem(m->input));
            return status;
        }
        newline = available ? memchr(data, '\n', available) : NULL;
        if (!newline && available < want)
            return bad(m, "the pickle ends early; expected the end of a line");
        if (!newline && available >= TRACE_PEEK_MAX)
            return bad(m, "a line argument is longer than %d bytes", TRACE_PEEK_MAX);
        want = available + 1;
    }
    out->at = (const char *)data;
    out->length = (size_t)(newline - data);
    trace_input_take(m->input, out->length + 1);
    m->offset += out->length + 1;
    return TRACE_OK;
}

/* ------------------------------------------------------------------ opcodes: numbers, text */

static struct pickle_value value_int(int64_t integer)
{
    return (struct pickle_value){.kind = PICKLE_INT, .u = {.integer = integer}};
}

static enum trace_status push_fixed_int(struct machine *m, size_t bytes, bool is_signed)
{
    uint64_t number = 0;
    enum trace_status status = take_number(m, bytes, &number);

    if (status)
        return status;
    return push(m, value_int(is_signed ? (int64_t)(int32_t)(uint32_t)number : (int64_t)number));
}

/* LONG1, LONG4: two's complement of any length; beyond 8 bytes only the fact is kept. */
static enum trace_status push_long(struct machine *m, size_t length_bytes)
{
    uint64_t length = 0;
    uint64_t number = 0;
    const uint8_t *data = NULL;
    enum trace_status status = take_number(m, length_bytes, &length);

    if (status)
        return status;
    if (length > TRACE_PEEK_MAX)
        return bad(m, "an integer has %" PRIu64 " bytes; expected at most %d", length,
                   TRACE_PEEK_MAX);
    if (!length)
        return push(m, value_int(0));
    status = take(m, (size_t)length, &data);
    if (status)
        return status;
    if (length > sizeof(number))
        return push(m, (struct pickle_value){.kind = PICKLE_BIG_INT});
    number = data[length - 1] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = (size_t)length; i-- > 0;)
        number = number << 8 | data[i];
    return push(m, value_int((int64_t)number));
}

/* INT «12», also «00» and «01» for booleans; LONG «12L». */
static enum trace_status push_text_int(struct machine *m)
{
    struct trace_text text = {NULL, 0};
    enum trace_status status = take_line(m, &text);
    bool negative;
    uint64_t number = 0;

    if (status)
        return status;
    if (trace_text_is(text, "00") || trace_text_is(text, "01"))
        return push(
            m, (struct pickle_value){.kind = PICKLE_BOOL, .u = {.integer = text.at[1] == '1'}});
    if (text.length && text.at[text.length - 1] == 'L')
        text.length--;
    negative = text.length && text.at[0] == '-';
    if (negative) {
        text.at++;
        text.length--;
    }
    for (size_t i = 0; i < text.length; i++)
        if (text.at[i] < '0' || text.at[i] > '9')
            return bad(m, "an integer has the character 0x%02x", (unsigned char)text.at[i]);
    if (!text.length)
        return bad(m, "an integer has no digits");
    if (!trace_number(text, &number) || number > INT64_MAX)
        return push(m, (struct pickle_value){.kind = PICKLE_BIG_INT});
    return push(m, value_int(negative ? -(int64_t)number : (int64_t)number));
}

static enum trace_status push_text_float(struct machine *m)
{
    struct trace_text text = {NULL, 0};
    enum trace_status status = take_line(m, &text);
    char copy[64];
    char *end;
    double real;

    if (status)
        return status;
    if (!text.length || text.length >= sizeof(copy))
        return bad(m, "a float has %zu characters; expected 1 to 63", text.length);
    memcpy(copy, text.at, text.length);
    copy[text.length] = '\0';
    real = strtod(copy, &end);
    if (end != copy + text.length)
        return bad(m, "a float is not a number");
    return push(m, (struct pickle_value){.kind = PICKLE_FLOAT, .u = {.real = real}});
}

/* BINFLOAT: 8 bytes, big-endian. */
static enum trace_status push_float(struct machine *m)
{
    struct pickle_value value = {.kind = PICKLE_FLOAT};
    const uint8_t *data = NULL;
    uint64_t bits = 0;
    enum trace_status status = take(m, 8, &data);

    if (status)
        return status;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | data[i];
    memcpy(&value.u.real, &bits, sizeof(bits));
    return push(m, value);
}

static enum trace_status push_sized_text(struct machine *m, size_t length_bytes,
                                         enum pickle_kind kind)
{
    struct pickle_value value = {.kind = kind};
    uint64_t length = 0;
    enum trace_status status = take_number(m, length_bytes, &length);

    if (!status)
        status = take_text(m, length, kind, &value);
    return status ? status : push(m, value);
}

/* STRING and UNICODE of protocol 0; escapes are kept as written: no record has any in its keys. */
static enum trace_status push_line_text(struct machine *m, bool quoted)
{
    struct pickle_value value = {.kind = PICKLE_STR};
    struct trace_text text = {NULL, 0};
    enum trace_status status = take_line(m, &text);
    char *copy = NULL;

    if (status)
        return status;
    if (quoted) {
        if (text.length < 2 || text.at[0] != text.at[text.length - 1] ||
            (text.at[0] != '\'' && text.at[0] != '"'))
            return bad(m, "a STRING is not in quotes");
        text.at++;
        text.length -= 2;
    }
    status = stored(m, pickle_text_new(m->document, text.length, &copy));
    if (status)
        return status;
    memcpy(copy, text.at, text.length);
    value.length = (uint32_t)text.length;
    value.u.text = copy;
    return push(m, value);
}

/* ------------------------------------------------------------------ opcodes: sequences */

static enum trace_status push_mark(struct machine *m)
{
    enum trace_status status =
        grow(m, (void **)&m->marks, &m->mark_capacity, m->mark_count + 1, sizeof(*m->marks));

    if (!status)
        m->marks[m->mark_count++] = m->height;
    return status;
}

static enum trace_status push_empty(struct machine *m, enum pickle_kind kind)
{
    struct pickle_value value = {.kind = kind};
    enum trace_status status = stored(m, pickle_items_new(m->document, 0, &value.u.items));

    return status ? status : push(m, value);
}

/* The top `count` values become one sequence. */
static enum trace_status collect(struct machine *m, size_t count, enum pickle_kind kind)
{
    struct pickle_value value = {.kind = kind};
    enum trace_status status = stored(m, pickle_items_new(m->document, count, &value.u.items));

    /* With nothing to collect there may be no stack yet. */
    if (!status && count)
        status = stored(m, pickle_items_append(m->document, value.u.items,
                                               m->stack + m->height - count, count));
    if (status)
        return status;
    m->height -= count;
    return push(m, value);
}

static enum trace_status collect_fixed(struct machine *m, size_t count)
{
    enum trace_status status = need_values(m, count);

    return status ? status : collect(m, count, PICKLE_TUPLE);
}

/* Everything above the last mark. */
static enum trace_status collect_marked(struct machine *m, enum pickle_kind kind)
{
    enum trace_status status = need_mark(m);
    size_t count;

    if (status)
        return status;
    count = m->height - floor_height(m);
    if (kind == PICKLE_DICT && count % 2)
        return bad(m, "a dict has a key without a value");
    m->mark_count--;
    return collect(m, count, kind);
}

/* Moves the top `count` values into the list or dict below them. */
static enum trace_status put_into(struct machine *m, size_t count, enum pickle_kind kind)
{
    struct pickle_value *target;
    enum trace_status status = need_values(m, count + 1);

    if (status)
        return status;
    target = &m->stack[m->height - count - 1];
    if (target->kind != kind)
        return bad(m, "values are put into a %s; expected a %s", pickle_kind_name(target->kind),
                   pickle_kind_name(kind));
    if (kind == PICKLE_DICT && count % 2)
        return bad(m, "a dict has a key without a value");
    status = stored(
        m, pickle_items_append(m->document, target->u.items, m->stack + m->height - count, count));
    if (!status)
        m->height -= count;
    return status;
}

static enum trace_status put_marked_into(struct machine *m, enum pickle_kind kind)
{
    enum trace_status status = need_mark(m);
    size_t count;

    if (status)
        return status;
    count = m->height - floor_height(m);
    m->mark_count--;
    return put_into(m, count, kind);
}

/* POP takes a mark when nothing is above it; POP_MARK takes all down to it. */
static enum trace_status pop(struct machine *m, bool to_mark)
{
    if (!to_mark && m->height > floor_height(m)) {
        m->height--;
        return TRACE_OK;
    }
    if (!m->mark_count)
        return bad(m, "there is nothing to pop");
    m->height = m->marks[--m->mark_count];
    return TRACE_OK;
}

/* ------------------------------------------------------------------ opcodes: memo, frames */

static enum trace_status memo_put(struct machine *m, uint64_t index)
{
    size_t capacity = m->memo_capacity;
    enum trace_status status = need_values(m, 1);

    if (status)
        return status;
    /* Writers count up; a jump far ahead is there to eat memory. */
    if (index > 2 * (uint64_t)m->memo_count + 4096)
        return bad(m, "memo entry %" PRIu64 " is far beyond the %zu in use", index, m->memo_count);
    if (index >= m->memo_capacity) {
        status = grow(m, (void **)&m->memo_set, &capacity, (size_t)index + 1, sizeof(bool));
        if (status)
            return status;
        memset(m->memo_set + m->memo_capacity, 0, capacity - m->memo_capacity);
        capacity = m->memo_capacity;
        status = grow(m, (void **)&m->memo, &capacity, (size_t)index + 1, sizeof(*m->memo));
        if (status)
            return status;
        m->memo_capacity = capacity;
    }
    m->memo_count += !m->memo_set[index];
    m->memo_set[index] = true;
    m->memo[index] = m->stack[m->height - 1];
    return TRACE_OK;
}

static enum trace_status memo_get(struct machine *m, uint64_t index)
{
    if (index >= m->memo_capacity || !m->memo_set[index])
        return bad(m, "memo entry %" PRIu64 " was never stored", index);
    return push(m, m->memo[index]);
}

static enum trace_status memo_op(struct machine *m, size_t bytes, bool put)
{
    struct trace_text text = {NULL, 0};
    uint64_t index = 0;
    enum trace_status status;

    if (bytes) {
        status = take_number(m, bytes, &index);
    } else {
        status = take_line(m, &text);
        if (!status && !trace_number(text, &index))
            return bad(m, "a memo index is not a number");
    }
    if (status)
        return status;
    return put ? memo_put(m, index) : memo_get(m, index);
}

static enum trace_status begin_frame(struct machine *m)
{
    uint64_t length = 0;
    enum trace_status status = take_number(m, 8, &length);

    if (status)
        return status;
    if (m->frame_end)
        return bad(m, "a frame begins inside another, which ends at offset %" PRIu64, m->frame_end);
    if (!length || length > INT64_MAX)
        return bad(m, "a frame has %" PRIu64 " bytes", length);
    m->frame_end = m->offset + length;
    return TRACE_OK;
}

static enum trace_status check_protocol(struct machine *m)
{
    uint64_t protocol = 0;
    enum trace_status status = take_number(m, 1, &protocol);

    if (!status && protocol > PROTOCOL_MAX)
        return bad(m, "the protocol is %" PRIu64 "; expected 0 to %d", protocol, PROTOCOL_MAX);
    return status;
}

static enum trace_status duplicate(struct machine *m)
{
    enum trace_status status = need_values(m, 1);

    return status ? status : push(m, m->stack[m->height - 1]);
}

/* ------------------------------------------------------------------ dispatch */

static const char *refused_name(uint8_t op)
{
    static const struct {
        uint8_t op;
        const char *name;
    } names[] = {
        {'c', "GLOBAL"},
        {'R', "REDUCE"},
        {'b', "BUILD"},
        {'i', "INST"},
        {'o', "OBJ"},
        {'P', "PERSID"},
        {'Q', "BINPERSID"},
        {0x81, "NEWOBJ"},
        {0x82, "EXT1"},
        {0x83, "EXT2"},
        {0x84, "EXT4"},
        {0x8f, "EMPTY_SET"},
        {0x90, "ADDITEMS"},
        {0x91, "FROZENSET"},
        {0x92, "NEWOBJ_EX"},
        {0x93, "STACK_GLOBAL"},
        {0x96, "BYTEARRAY8"},
        {0x97, "NEXT_BUFFER"},
        {0x98, "READONLY_BUFFER"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (names[i].op == op)
            return names[i].name;
    return NULL;
}

static enum trace_status refuse(struct machine *m, uint8_t op)
{
    const char *name = refused_name(op);

    if (name)
        return bad(m,
                   "the opcode %s is refused: it could run code or build objects; expected plain "
                   "dicts, lists, tuples, texts and numbers",
                   name);
    return bad(m, "there is no opcode 0x%02x; expected a pickle of protocol 0 to %d", op,
               PROTOCOL_MAX);
}

static enum trace_status run_scalar(struct machine *m, uint8_t op)
{
    switch (op) {
    case 'N':
        return push(m, (struct pickle_value){.kind = PICKLE_NONE});
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return push(m, (struct pickle_value){.kind = PICKLE_BOOL, .u = {.integer = op == 0x88}});
    case 'I': /* INT */
    case 'L': /* LONG */
        return push_text_int(m);
    case 'J': /* BININT */
        return push_fixed_int(m, 4, true);
    case 'K': /* BININT1 */
        return push_fixed_int(m, 1, false);
    case 'M': /* BININT2 */
        return push_fixed_int(m, 2, false);
    case 0x8a: /* LONG1 */
        return push_long(m, 1);
    case 0x8b: /* LONG4 */
        return push_long(m, 4);
    case 'F': /* FLOAT */
        return push_text_float(m);
    case 'G': /* BINFLOAT */
        return push_float(m);
    case 'S': /* STRING */
        return push_line_text(m, true);
    case 'V': /* UNICODE */
        return push_line_text(m, false);
    case 'T': /* BINSTRING */
    case 'X': /* BINUNICODE */
        return push_sized_text(m, 4, PICKLE_STR);
    case 'U':  /* SHORT_BINSTRING */
    case 0x8c: /* SHORT_BINUNICODE */
        return push_sized_text(m, 1, PICKLE_STR);
    case 0x8d: /* BINUNICODE8 */
        return push_sized_text(m, 8, PICKLE_STR);
    case 'C': /* SHORT_BINBYTES */
        return push_sized_text(m, 1, PICKLE_BYTES);
    case 'B': /* BINBYTES */
        return push_sized_text(m, 4, PICKLE_BYTES);
    case 0x8e: /* BINBYTES8 */
        return push_sized_text(m, 8, PICKLE_BYTES);
    default:
        return refuse(m, op);
    }
}

static enum trace_status run(struct machine *m, uint8_t op)
{
    switch (op) {
    case '(': /* MARK */
        return push_mark(m);
    case '0': /* POP */
    case '1': /* POP_MARK */
        return pop(m, op == '1');
    case '2': /* DUP */
        return duplicate(m);
    case '}': /* EMPTY_DICT */
        return push_empty(m, PICKLE_DICT);
    case ']': /* EMPTY_LIST */
        return push_empty(m, PICKLE_LIST);
    case ')': /* EMPTY_TUPLE */
        return push_empty(m, PICKLE_TUPLE);
    case 'd': /* DICT */
        return collect_marked(m, PICKLE_DICT);
    case 'l': /* LIST */
        return collect_marked(m, PICKLE_LIST);
    case 't': /* TUPLE */
        return collect_marked(m, PICKLE_TUPLE);
    case 0x85: /* TUPLE1 to TUPLE3 */
    case 0x86:
    case 0x87:
        return collect_fixed(m, (size_t)op - 0x84);
    case 'a': /* APPEND */
        return put_into(m, 1, PICKLE_LIST);
    case 'e': /* APPENDS */
        return put_marked_into(m, PICKLE_LIST);
    case 's': /* SETITEM */
        return put_into(m, 2, PICKLE_DICT);
    case 'u': /* SETITEMS */
        return put_marked_into(m, PICKLE_DICT);
    case 'p': /* PUT */
        return memo_op(m, 0, true);
    case 'q': /* BINPUT */
        return memo_op(m, 1, true);
    case 'r': /* LONG_BINPUT */
        return memo_op(m, 4, true);
    case 'g': /* GET */
        return memo_op(m, 0, false);
    case 'h': /* BINGET */
        return memo_op(m, 1, false);
    case 'j': /* LONG_BINGET */
        return memo_op(m, 4, false);
    case 0x94: /* MEMOIZE */
        return memo_put(m, m->memo_count);
    case 0x80: /* PROTO */
        return check_protocol(m);
    case 0x95: /* FRAME */
        return begin_frame(m);
    default:
        return run_scalar(m, op);
    }
}

/* After STOP: one value, no open mark or frame, nothing behind. */
static enum trace_status finish(struct machine *m)
{
    const uint8_t *data = NULL;
    size_t available = 0;
    enum trace_status status = need_values(m, 1);

    if (status)
        return status;
    if (m->mark_count || m->height != 1)
        return bad(m, "the pickle stops with %zu values and %zu marks; expected one value",
                   m->height, m->mark_count);
    if (m->frame_end)
        return bad(m, "the pickle stops inside a frame, which ends at offset %" PRIu64,
                   m->frame_end);
    status = trace_input_peek(m->input, 1, &data, &available);
    if (status) {
        snprintf(m->problem, 256, "%s", trace_input_problem(m->input));
        return status;
    }
    m->op_offset = m->offset;
    if (available)
        return bad(m, "there are bytes after the end of the pickle; expected none");
    m->document->root = m->stack[0];
    return TRACE_OK;
}

static enum trace_status run_all(struct machine *m)
{
    for (;;) {
        const uint8_t *byte = NULL;
        enum trace_status status;
        uint8_t op;

        m->op_offset = m->offset;
        status = take(m, 1, &byte);
        if (status)
            return status;
        op = *byte;
        if (op != '.')
            status = run(m, op);
        if (status)
            return status;
        if (m->frame_end && m->offset > m->frame_end)
            return bad(m, "an opcode crosses the end of its frame at offset %" PRIu64,
                       m->frame_end);
        if (m->offset == m->frame_end)
            m->frame_end = 0;
        if (op == '.')
            return finish(m);
    }
}

enum trace_status pickle_read(struct trace_input *input, uint64_t memory_bytes,
                              struct pickle_document **out, uint64_t *offset, char problem[256])
{
    struct pickle_document *document = calloc(1, sizeof(*document));
    struct machine m = {.input = input, .document = document, .problem = problem};
    enum trace_status status;

    *offset = 0;
    if (!document) {
        snprintf(problem, 256, "the host is out of memory");
        return TRACE_HOST_MEMORY;
    }
    document->budget = memory_bytes;
    problem[0] = '\0';
    status = run_all(&m);
    if (status == TRACE_HOST_MEMORY)
        snprintf(problem, 256, "the host is out of memory");
    free(m.stack);
    free(m.marks);
    free(m.memo);
    free(m.memo_set);
    *offset = m.op_offset;
    if (status) {
        pickle_free(document);
        return status;
    }
    *out = document;
    return TRACE_OK;
}
