/* SPDX-License-Identifier: MIT */
/* The pickle machine: plain data of every protocol is read, everything else is refused by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace/pickle.h"
#include "test.h"

enum {
    BUDGET = 1 << 20,
};

/* A literal with its length, as pickles hold zeros. */
#define BYTES(literal) (literal), sizeof(literal) - 1

static enum trace_status read_bytes(const char *data, size_t size, struct pickle_document **out,
                                    uint64_t *offset, char problem[256])
{
    struct trace_input *input = NULL;
    enum trace_status status;
    char error[256];

    CHECK_OK(trace_input_open_memory(data, size, &input, error, sizeof(error)));
    status = pickle_read(input, BUDGET, out, offset, problem);
    trace_input_close(input);
    return status;
}

static struct pickle_document *read_ok(const char *data, size_t size)
{
    struct pickle_document *document = NULL;
    uint64_t offset = 0;
    char problem[256] = "";

    if (read_bytes(data, size, &document, &offset, problem))
        FAIL("offset %llu: %s", (unsigned long long)offset, problem);
    return document;
}

static void check_refused(const char *data, size_t size, uint64_t at, const char *message)
{
    struct pickle_document *document = NULL;
    uint64_t offset = 0;
    char problem[256] = "";

    CHECK_EQ(read_bytes(data, size, &document, &offset, problem), TRACE_BAD_INPUT);
    CHECK_PTR_EQ(document, NULL);
    if (!strstr(problem, message))
        FAIL("message is\n  %s\nexpected\n  %s", problem, message);
    CHECK_EQ(offset, at);
}

/* {'a': [1, -2, 3.5, True, None], 'b': (7, 'x'), 'c': b'yz'} as each protocol writes it. */
static void check_sample(const char *data, size_t size)
{
    struct pickle_document *document = read_ok(data, size);
    const struct pickle_value *root = pickle_root(document);
    const struct pickle_value *a = pickle_get(root, "a");
    const struct pickle_value *b = pickle_get(root, "b");
    const struct pickle_value *c = pickle_get(root, "c");
    uint64_t number = 0;

    CHECK(a && a->kind == PICKLE_LIST);
    CHECK_EQ(a->u.items->count, 5);
    CHECK(pickle_unsigned(&a->u.items->values[0], &number));
    CHECK_EQ(number, 1);
    CHECK_EQ(a->u.items->values[1].u.integer, -2);
    CHECK(!pickle_unsigned(&a->u.items->values[1], &number));
    CHECK(a->u.items->values[2].u.real == 3.5);
    CHECK_EQ(a->u.items->values[3].kind, PICKLE_BOOL);
    CHECK_EQ(a->u.items->values[3].u.integer, 1);
    CHECK_EQ(a->u.items->values[4].kind, PICKLE_NONE);
    CHECK(b && b->kind == PICKLE_TUPLE);
    CHECK_EQ(b->u.items->count, 2);
    CHECK(pickle_is_text(&b->u.items->values[1], "x"));
    CHECK(c && (c->kind == PICKLE_BYTES || c->kind == PICKLE_STR));
    CHECK_EQ(c->length, 2);
    CHECK_PTR_EQ(pickle_get(root, "d"), NULL);
    pickle_free(document);
}

TEST(protocol_0)
{
    check_sample(BYTES("(dp0\nVa\np1\n(lp2\nI1\naI-2\naF3.5\naI01\naNasVb\np3\n(I7\nVx\np4\ntp5\n"
                       "sVc\np6\nS'yz'\np7\ns."));
}

TEST(protocol_1)
{
    check_sample(BYTES("}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xff"
                       "G@\x0c\0\0\0\0\0\0I01\nNeX\1\0\0\0bq\3(K\7X\1\0\0\0xq\4tq\5X\1\0\0\0cq\6"
                       "U\2yzq\7u."));
}

TEST(protocol_4_with_frame)
{
    check_sample(BYTES("\x80\4\x95\x34\0\0\0\0\0\0\0"
                       "}\x94(\x8c\1a\x94]\x94(K\1J\xfe\xff\xff\xffG@\x0c\0\0\0\0\0\0\x88Ne"
                       "\x8c\1b\x94K\7\x8c\1x\x94\x86\x94\x8c\1c\x94"
                       "C\2yz\x94u."));
}

TEST(integers_of_every_width)
{
    static const struct {
        const char *data;
        size_t size;
        enum pickle_kind kind;
        int64_t value;
    } cases[] = {
        {BYTES("K\xff."), PICKLE_INT, 255},
        {BYTES("M\xff\xff."), PICKLE_INT, 65535},
        {BYTES("J\xff\xff\xff\x7f."), PICKLE_INT, INT32_MAX},
        {BYTES("J\0\0\0\x80."), PICKLE_INT, INT32_MIN},
        {BYTES("\x8a\0."), PICKLE_INT, 0},
        {BYTES("\x8a\1\xff."), PICKLE_INT, -1},
        {BYTES("\x8a\6\0\0\0\x0a\x7f\0."), PICKLE_INT, 0x7f0a000000},
        {BYTES("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f."), PICKLE_INT, INT64_MAX},
        {BYTES("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."), PICKLE_BIG_INT, 0},
        {BYTES("\x8b\2\0\0\0\x10\x27."), PICKLE_INT, 10000},
        {BYTES("L123L\n."), PICKLE_INT, 123},
        {BYTES("I-9223372036854775807\n."), PICKLE_INT, -INT64_MAX},
        {BYTES("I9223372036854775808\n."), PICKLE_BIG_INT, 0},
        {BYTES("I00\n."), PICKLE_BOOL, 0},
        {BYTES("\x89."), PICKLE_BOOL, 0},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct pickle_document *document = read_ok(cases[i].data, cases[i].size);

        CHECK_EQ(pickle_root(document)->kind, cases[i].kind);
        CHECK_EQ(pickle_root(document)->u.integer, cases[i].value);
        pickle_free(document);
    }
}

TEST(what_could_run_code_is_refused_by_name)
{
    static const struct {
        const char *data;
        size_t size;
        uint64_t at;
        const char *name;
    } cases[] = {
        {BYTES("cos\nsystem\n(S'true'\ntR."), 0, "the opcode GLOBAL is refused"},
        {BYTES("\x80\4\x8c\2os\x8c\6system\x93."), 14, "the opcode STACK_GLOBAL is refused"},
        {BYTES("NNR."), 2, "REDUCE"},
        {BYTES("NNb."), 2, "BUILD"},
        {BYTES("(ios\nsystem\n."), 1, "INST"},
        {BYTES("(No."), 2, "OBJ"},
        {BYTES("NN\x81."), 2, "NEWOBJ"},
        {BYTES("NNN\x92."), 3, "NEWOBJ_EX"},
        {BYTES("\x82\1."), 0, "EXT1"},
        {BYTES("\x83\1\0."), 0, "EXT2"},
        {BYTES("\x84\1\0\0\0."), 0, "EXT4"},
        {BYTES("P12\n."), 0, "PERSID"},
        {BYTES("NQ."), 1, "BINPERSID"},
        {BYTES("\x8f."), 0, "EMPTY_SET"},
        {BYTES("\x90."), 0, "ADDITEMS"},
        {BYTES("(\x91."), 1, "FROZENSET"},
        {BYTES("\x96\0\0\0\0\0\0\0\0."), 0, "BYTEARRAY8"},
        {BYTES("\x97."), 0, "NEXT_BUFFER"},
        {BYTES("\x98."), 0, "READONLY_BUFFER"},
        {BYTES("\xff."), 0, "there is no opcode 0xff"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refused(cases[i].data, cases[i].size, cases[i].at, cases[i].name);
}

TEST(damage_is_named_with_its_offset)
{
    static const struct {
        const char *data;
        size_t size;
        uint64_t at;
        const char *message;
    } cases[] = {
        {BYTES(""), 0, "the pickle ends early"},
        {BYTES("K"), 0, "the pickle ends early; expected 1 more byte(s)"},
        {BYTES("N"), 1, "the pickle ends early"},
        {BYTES("."), 0, "needs 1 value(s) and the stack has 0"},
        {BYTES("a."), 0, "needs 2 value(s)"},
        {BYTES("NNa."), 2, "values are put into a None; expected a list"},
        {BYTES("}Na."), 2, "values are put into a dict; expected a list"},
        {BYTES("e."), 0, "needs a MARK"},
        {BYTES("((u."), 2, "needs 1 value(s) and the stack has 0"},
        {BYTES("}(Nu."), 3, "a key without a value"},
        {BYTES("(Nd."), 2, "a key without a value"},
        {BYTES("0."), 0, "nothing to pop"},
        {BYTES("1."), 0, "nothing to pop"},
        {BYTES("NN."), 2, "stops with 2 values"},
        {BYTES("(N."), 2, "stops with 1 values and 1 marks"},
        {BYTES("N.N"), 2, "bytes after the end"},
        {BYTES("h\5."), 0, "memo entry 5 was never stored"},
        {BYTES("g-1\n."), 0, "a memo index is not a number"},
        {BYTES("Nr\xff\xff\xff\xff."), 1, "memo entry 4294967295 is far beyond"},
        {BYTES("q\0."), 0, "needs 1 value(s)"},
        {BYTES("\x80\6."), 0, "the protocol is 6; expected 0 to 5"},
        {BYTES("\x80\4\x95\2\0\0\0\0\0\0\0K\1K\2."), 15, "stops with 2 values"},
        {BYTES("\x80\4\x95\1\0\0\0\0\0\0\0K\1."), 11, "an opcode crosses the end of its frame"},
        {BYTES("\x95\x20\0\0\0\0\0\0\0N."), 10, "stops inside a frame"},
        {BYTES("\x95\x20\0\0\0\0\0\0\0\x95\1\0\0\0\0\0\0\0N."), 9, "begins inside another"},
        {BYTES("\x95\0\0\0\0\0\0\0\0."), 0, "a frame has 0 bytes"},
        {BYTES("X\xff\xff\xff\xff"), 0, "more than fits the memory"},
        {BYTES("X\0\0\1\0abc"), 0, "the pickle ends early"},
        {BYTES("\x8d\xff\xff\xff\xff\xff\xff\xff\xff"), 0, "expected less than 4 GiB"},
        {BYTES("I12x\n."), 0, "an integer has the character 0x78"},
        {BYTES("I\n."), 0, "an integer has no digits"},
        {BYTES("F1.2.3\n."), 0, "a float is not a number"},
        {BYTES("S'abc\n."), 0, "a STRING is not in quotes"},
        {BYTES("I12"), 0, "expected the end of a line"},
        {BYTES("\x8b\xff\xff\xff\xff."), 0, "an integer has 4294967295 bytes"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refused(cases[i].data, cases[i].size, cases[i].at, cases[i].message);
}

/* Every list holds the one before twice: 2^n values if anybody unfolded it. */
TEST(sharing_does_not_unfold)
{
    char data[8 * 1024];
    struct pickle_document *document;
    size_t n = 0;

    data[n++] = ']';
    data[n++] = 'q';
    data[n++] = 0;
    for (unsigned i = 0; i < 250; i++) {
        data[n++] = '0'; /* POP */
        data[n++] = ']';
        data[n++] = '(';
        data[n++] = 'h';
        data[n++] = (char)i;
        data[n++] = 'h';
        data[n++] = (char)i;
        data[n++] = 'e';
        data[n++] = 'q';
        data[n++] = (char)(i + 1);
    }
    data[n++] = '.';
    document = read_ok(data, n);
    CHECK_EQ(pickle_root(document)->u.items->count, 2);
    pickle_free(document);
}

TEST(depth_and_size_are_bounded_by_the_budget)
{
    size_t size = 4 << 20;
    char *data = malloc(size);

    CHECK(data != NULL);
    memset(data, '(', size);
    check_refused(data, size, 131072, "more than fits the memory");
    memset(data, ']', size);
    {
        struct pickle_document *document = NULL;
        uint64_t offset = 0;
        char problem[256];

        CHECK_EQ(read_bytes(data, size, &document, &offset, problem), TRACE_BAD_INPUT);
        CHECK(strstr(problem, "more than fits the memory") != NULL);
    }
    free(data);
}

/* Also on a stack that never held a value. */
TEST(sequences_of_nothing)
{
    struct pickle_document *document = read_ok(BYTES("(t."));

    CHECK_EQ(pickle_root(document)->kind, PICKLE_TUPLE);
    CHECK_EQ(pickle_root(document)->u.items->count, 0);
    pickle_free(document);
    pickle_free(read_ok(BYTES("(d.")));
    pickle_free(read_ok(BYTES("](e.")));
}

TEST(a_list_may_hold_itself)
{
    struct pickle_document *document = read_ok(BYTES("]q\0h\0a."));
    const struct pickle_value *root = pickle_root(document);

    CHECK_PTR_EQ(root->u.items->values[0].u.items, root->u.items);
    pickle_free(document);
}

TEST(every_cut_of_a_pickle_is_refused)
{
    static const char data[] = "\x80\4\x95\x34\0\0\0\0\0\0\0"
                               "}\x94(\x8c\1a\x94]\x94(K\1J\xfe\xff\xff\xffG@\x0c\0\0\0\0\0\0\x88Ne"
                               "\x8c\1b\x94K\7\x8c\1x\x94\x86\x94\x8c\1c\x94"
                               "C\2yz\x94u.";

    for (size_t cut = 0; cut < sizeof(data) - 1; cut++) {
        struct pickle_document *document = NULL;
        uint64_t offset = 0;
        char problem[256];

        CHECK_EQ(read_bytes(data, cut, &document, &offset, problem), TRACE_BAD_INPUT);
    }
}
