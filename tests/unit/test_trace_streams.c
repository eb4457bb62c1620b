/* SPDX-License-Identifier: MIT */
/*
 * The stream generator: same allocations in the same order, every use ordered. A vector clock for
 * each stream decides whether one event comes after another, from the events alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/trace/trace.h"
#include "test.h"

enum {
    STREAMS = 5,
    LIVE_MAX = 64,
    LINES = 20000,
};

/* A random valid trace of one stream. The caller frees it. */
static char *random_trace(uint64_t *state, size_t *size)
{
    unsigned live[LIVE_MAX];
    unsigned sizes[LIVE_MAX];
    unsigned count = 0;
    unsigned id = 0;
    char *text = malloc(32 * LINES);

    CHECK(text != NULL);
    *size = 0;
    for (unsigned i = 0; i < LINES; i++) {
        unsigned pick = (unsigned)mb_test_random_below(state, LIVE_MAX);

        if (pick < count) {
            *size += (size_t)sprintf(text + *size, "f,%u,%u,0\n", live[pick], sizes[pick]);
            live[pick] = live[--count];
            sizes[pick] = sizes[count];
        } else {
            sizes[count] = (unsigned)mb_test_random_below(state, 1 << 22);
            live[count] = ++id;
            *size += (size_t)sprintf(text + *size, "a,%u,%u,0\n", id, sizes[count]);
            count++;
        }
    }
    return text;
}

static struct trace_reader *open_spread(const char *text, size_t size, unsigned streams,
                                        uint64_t seed)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *inner = NULL;
    struct trace_reader *out = NULL;
    char error[512];

    CHECK_OK(trace_open_memory(text, size, "t", &options, &inner, error, sizeof(error)));
    CHECK_OK(trace_open_streams(inner, streams, seed, &out));
    return out;
}

/* What one stream has seen of every stream's own count of events. */
struct clocks {
    uint64_t seen[STREAMS][STREAMS];
};

struct use {
    uint32_t stream;
    uint64_t count; /* of the stream's events, at the use */
    bool told;      /* by RECORD_STREAM */
};

/* All uses of a block so far. */
struct life {
    struct use uses[256];
    unsigned count;
    uint64_t bytes;
    bool live;
};

static bool after(const struct clocks *c, uint32_t stream, const struct use *use)
{
    return c->seen[stream][use->stream] >= use->count;
}

static void check_all_before(const struct clocks *c, const struct life *life, uint32_t stream,
                             bool told_is_enough)
{
    for (unsigned i = 0; i < life->count; i++)
        CHECK((told_is_enough && life->uses[i].told) || after(c, stream, &life->uses[i]));
}

static void add_use(struct clocks *c, struct life *life, uint32_t stream)
{
    CHECK_LE(life->count, 255);
    life->uses[life->count++] = (struct use){.stream = stream, .count = ++c->seen[stream][stream]};
}

/* How often each kind of event and of free was seen, so that the test tests something. */
struct tally {
    unsigned uses, told, waits, free_here, free_elsewhere, free_without_wait;
};

static void check_free(struct clocks *c, struct life *life, const struct trace_event *e,
                       struct tally *tally)
{
    bool ordered = true;

    CHECK(life->live && e->ordered);
    CHECK_EQ(e->bytes, life->bytes);
    check_all_before(c, life, e->stream, true);
    for (unsigned i = 0; i < life->count; i++)
        ordered = ordered && after(c, e->stream, &life->uses[i]);
    /* The stream that may use the block last comes after every use. */
    check_all_before(c, life, e->other, false);
    tally->free_without_wait += !ordered;
    tally->free_here += e->stream == life->uses[0].stream;
    tally->free_elsewhere += e->stream != life->uses[0].stream;
    life->live = false;
}

static void check_event(struct clocks *c, struct life *lives, const struct trace_event *e,
                        struct tally *tally)
{
    struct life *life = e->slot < LIVE_MAX ? &lives[e->slot] : NULL;

    CHECK(e->stream < STREAMS);
    switch (e->op) {
    case TRACE_ALLOC:
        CHECK(life && !life->live);
        *life = (struct life){.live = true, .bytes = e->bytes};
        add_use(c, life, e->stream);
        break;
    case TRACE_USE:
        CHECK(life && life->live);
        check_all_before(c, life, e->stream, false);
        add_use(c, life, e->stream);
        tally->uses++;
        break;
    case TRACE_RECORD_STREAM:
        CHECK(life && life->live);
        for (unsigned i = 0; i < life->count; i++)
            if (life->uses[i].stream == e->stream)
                life->uses[i].told = true;
        tally->told++;
        break;
    case TRACE_WAIT:
        CHECK(e->other < STREAMS && e->other != e->stream);
        for (unsigned i = 0; i < STREAMS; i++)
            if (c->seen[e->stream][i] < c->seen[e->other][i])
                c->seen[e->stream][i] = c->seen[e->other][i];
        tally->waits++;
        break;
    case TRACE_FREE:
        CHECK(life != NULL);
        check_free(c, life, e, tally);
        break;
    default:
        FAIL("unexpected event %d", (int)e->op);
    }
}

TEST(every_use_is_ordered_with_all_others_and_with_the_free)
{
    uint64_t state = mb_test_seed() + 2;
    size_t size = 0;
    char *text = random_trace(&state, &size);
    struct trace_reader *reader = open_spread(text, size, STREAMS, mb_test_random(&state));
    struct life *lives = calloc(LIVE_MAX, sizeof(*lives));
    struct clocks clocks = {0};
    struct tally tally = {0};
    struct trace_event event;
    enum trace_status status;

    CHECK(lives != NULL);
    while ((status = trace_next(reader, &event)) == TRACE_OK)
        check_event(&clocks, lives, &event, &tally);
    CHECK_EQ(status, TRACE_END);
    CHECK_EQ(trace_info(reader)->streams, STREAMS);
    CHECK(tally.uses > LINES / 10 && tally.told && tally.waits);
    CHECK(tally.free_here && tally.free_elsewhere && tally.free_without_wait);
    free(lives);
    trace_close(reader);
    free(text);
}

TEST(allocations_and_frees_keep_their_order)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    uint64_t state = mb_test_seed() + 3;
    size_t size = 0;
    char *text = random_trace(&state, &size);
    struct trace_reader *spread = open_spread(text, size, 3, 1);
    struct trace_reader *plain = NULL;
    struct trace_event a;
    struct trace_event b;
    char error[512];

    CHECK_OK(trace_open_memory(text, size, "t", &options, &plain, error, sizeof(error)));
    while (trace_next(plain, &a) == TRACE_OK) {
        do {
            CHECK_OK(trace_next(spread, &b));
        } while (b.op != TRACE_ALLOC && b.op != TRACE_FREE);
        CHECK_EQ(a.op, b.op);
        CHECK_EQ(a.block, b.block);
        CHECK_EQ(a.slot, b.slot);
        CHECK_EQ(a.bytes, b.bytes);
        CHECK_EQ(a.line, b.line);
    }
    CHECK_EQ(trace_info(plain)->requested_peak_bytes, trace_info(spread)->requested_peak_bytes);
    trace_close(plain);
    trace_close(spread);
    free(text);
}

TEST(the_same_seed_gives_the_same_events)
{
    uint64_t state = mb_test_seed() + 4;
    size_t size = 0;
    char *text = random_trace(&state, &size);
    struct trace_reader *readers[3];
    struct trace_event e[3];
    unsigned different = 0;

    for (unsigned i = 0; i < 3; i++)
        readers[i] = open_spread(text, size, 64, i == 2 ? 8 : 7);
    for (unsigned step = 0; step < 1000; step++) {
        for (unsigned i = 0; i < 3; i++)
            CHECK_OK(trace_next(readers[i], &e[i]));
        CHECK_EQ(e[0].op, e[1].op);
        CHECK_EQ(e[0].stream, e[1].stream);
        CHECK_EQ(e[0].slot, e[1].slot);
        different += e[0].op != e[2].op || e[0].stream != e[2].stream;
    }
    CHECK(different > 100);
    for (unsigned i = 0; i < 3; i++)
        trace_close(readers[i]);
    free(text);
}

TEST(errors_of_the_inner_trace_come_through)
{
    static const char text[] = "a,1,8,0\nf,1,8,0\nf,1,8,0\n";
    struct trace_reader *reader = open_spread(text, sizeof(text) - 1, 2, 1);
    struct trace_event event;
    enum trace_status status;

    while ((status = trace_next(reader, &event)) == TRACE_OK)
        ;
    CHECK_EQ(status, TRACE_BAD_INPUT);
    CHECK(strstr(trace_error(reader), "t:3: ") == trace_error(reader));
    trace_close(reader);
}

TEST(the_number_of_streams_is_checked)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *inner = NULL;
    struct trace_reader *out = NULL;
    char error[512];

    CHECK_OK(trace_open_memory("a,1,8,0\n", 8, "t", &options, &inner, error, sizeof(error)));
    CHECK_EQ(trace_open_streams(inner, 1, 1, &out), TRACE_BAD_INPUT);
    CHECK_EQ(trace_open_streams(inner, 65, 1, &out), TRACE_BAD_INPUT);
    CHECK_PTR_EQ(out, NULL);
    trace_close(inner);
}
