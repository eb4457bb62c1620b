/* SPDX-License-Identifier: MIT */
/* Rules on streams, fences and the order that they give. */
#include "contract.h"

#include <string.h>

void contract_streams_have_one_wrapper(struct contract *c)
{
    struct mb_hw_stream *a = NULL, *b = NULL, *again = NULL, *none = NULL;
    mb_stream native_a = NULL, native_b = NULL;

    CHECK_OK(c->hw->stream_create(c->dev, &native_a));
    CHECK_OK(c->hw->stream_create(c->dev, &native_b));
    CHECK(native_a && native_b && native_a != native_b);
    CHECK_OK(c->hw->stream_open(c->dev, native_a, &a));
    CHECK_OK(c->hw->stream_open(c->dev, native_b, &b));
    CHECK_OK(c->hw->stream_open(c->dev, native_a, &again));
    CHECK_OK(c->hw->stream_open(c->dev, NULL, &none));
    CHECK_PTR_EQ(a, again);
    CHECK_PTR_EQ(none, c->setup);
    CHECK(a != b && a != none && b != none);
    c->hw->stream_close(c->dev, a);
    c->hw->stream_close(c->dev, b);
    CHECK_OK(c->hw->stream_destroy(c->dev, native_a));
    CHECK_OK(c->hw->stream_destroy(c->dev, native_b));
    /* Many, one after the other. */
    for (int i = 0; i < 50; i++) {
        CHECK_OK(c->hw->stream_create(c->dev, &native_a));
        CHECK_OK(c->hw->stream_open(c->dev, native_a, &a));
        contract_wait_host(c, contract_fence(c, a));
        c->hw->stream_close(c->dev, a);
        CHECK_OK(c->hw->stream_destroy(c->dev, native_a));
    }
}

/* Of batches and work on one stream each takes effect after the one before. */
void contract_batches_keep_their_order(struct contract *c)
{
    enum { FRAMES = 12 };
    struct contract_window *w = contract_window(c, 1), *all = contract_window(c, FRAMES);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[FRAMES];

    contract_frames(c, pfns, FRAMES);
    contract_map(c, s, all, 0, FRAMES, pfns);
    for (uint32_t i = 0; i < FRAMES; i++)
        contract_fill(c, s, all, i, MB_FRAME_BYTES, 0);
    /* Each map is followed by a write through it, in turn with maps: a map that ran early or late
     * would leave some frame with another's seed. */
    for (uint32_t i = 0; i < FRAMES; i++) {
        contract_map(c, s, w, 0, 1, &pfns[i]);
        contract_fill(c, s, w, 0, MB_FRAME_BYTES, 1 + i);
    }
    for (uint32_t i = 0; i < FRAMES; i++)
        contract_verify(c, s, all, i, MB_FRAME_BYTES, 1 + i);
    contract_map(c, s, w, 0, 1, &pfns[0]);
    contract_map(c, s, w, 0, 1, &pfns[1]);
    contract_sync(c);
    contract_expect_slots(c, w, 0, 1, &pfns[1], true);
}

static void order_by_fence(struct contract *c, struct mb_hw_stream *a, struct mb_hw_stream *b,
                           bool by_command)
{
    enum { SLOTS = 16 };
    struct contract_window *wa = contract_window(c, SLOTS), *wb = contract_window(c, SLOTS);
    mb_pfn pfns[SLOTS];

    contract_frames(c, pfns, SLOTS);
    for (uint64_t round = 0; round < 20; round++) {
        struct mb_hw_fence ready, used;

        contract_map(c, a, wa, 0, SLOTS, pfns);
        contract_fill(c, a, wa, 0, SLOTS * MB_FRAME_BYTES, round);
        ready = contract_fence(c, a);
        if (by_command) {
            struct mb_hw_cmd cmds[] = {
                contract_wait(ready),
                contract_leaves(c, wb, 0, SLOTS, pfns, true),
                contract_cmd(MB_HW_BARRIER),
                contract_invalidate(wb, 0, SLOTS),
            };

            contract_intend(c, wb, 0, SLOTS, pfns);
            CHECK_OK(c->hw->submit(c->dev, b, cmds, 4));
        } else {
            CHECK_OK(c->hw->fence_wait_stream(c->dev, b, ready));
            contract_map(c, b, wb, 0, SLOTS, pfns);
        }
        contract_verify(c, b, wb, 0, SLOTS * MB_FRAME_BYTES, round);
        used = contract_fence(c, b);
        /* The next round writes the same frames. */
        CHECK_OK(c->hw->fence_wait_stream(c->dev, a, used));
    }
    contract_sync(c);
}

void contract_a_wait_orders_streams(struct contract *c)
{
    struct mb_hw_stream *a = contract_stream(c), *b = contract_stream(c);
    struct mb_hw_fence done = {NULL, 0};

    order_by_fence(c, a, b, true);
    order_by_fence(c, b, a, false);
    /* A fence of no stream, and one of the stream itself, hold nothing up. */
    CHECK_OK(c->hw->fence_wait_stream(c->dev, a, done));
    CHECK_OK(c->hw->fence_wait_stream(c->dev, a, contract_fence(c, a)));
    contract_sync(c);
}

/* A thousand batches behind a stream with work: submit takes them all, and they end right. A
 * backend that waited for the device inside submit could only do so in the end, so what is checked
 * is that all is accepted and applied; how long submit takes is a bench. */
void contract_submit_never_blocks(struct contract *c)
{
    enum { SLOTS = 64, BATCHES = 1000 };
    struct contract_window *wa = contract_window(c, SLOTS), *wb = contract_window(c, SLOTS);
    struct mb_hw_stream *a = contract_stream(c), *b = contract_stream(c);
    mb_pfn pfns[2 * SLOTS], last[SLOTS];
    uint32_t content[SLOTS];

    contract_frames(c, pfns, 2 * SLOTS);
    contract_map(c, a, wa, 0, SLOTS, pfns);
    for (uint32_t i = 0; i < SLOTS; i++)
        contract_fill(c, a, wa, i, MB_FRAME_BYTES, i);
    CHECK_OK(c->hw->fence_wait_stream(c->dev, b, contract_fence(c, a)));
    for (uint32_t i = 0; i < BATCHES; i++) {
        uint32_t slot = i % SLOTS;

        content[slot] = (uint32_t)mb__rng_below(&c->rng, SLOTS);
        last[slot] = pfns[content[slot]];
        contract_map(c, b, wb, slot, 1, &last[slot]);
    }
    for (uint32_t i = 0; i < SLOTS; i++)
        contract_verify(c, b, wb, i, MB_FRAME_BYTES, content[i]);
    contract_sync(c);
    contract_expect_slots(c, wb, 0, SLOTS, last, true);
}

void contract_fences_are_monotonic(struct contract *c)
{
    enum { FENCES = 40 };
    struct contract_window *w = contract_window(c, 8);
    struct mb_hw_stream *s = contract_stream(c);
    struct mb_hw_fence fence[FENCES], none = {NULL, 0};
    mb_pfn pfns[8];

    contract_frames(c, pfns, 8);
    CHECK(c->hw->fence_done(c->dev, none));
    CHECK_OK(c->hw->fence_wait_host(c->dev, none, 1));
    for (int i = 0; i < FENCES; i++) {
        contract_map(c, s, w, 0, 8, pfns);
        contract_fill(c, s, w, 0, 8 * MB_FRAME_BYTES, (uint64_t)i);
        fence[i] = contract_fence(c, s);
        CHECK_PTR_EQ(fence[i].stream, s);
        CHECK(fence[i].seq >= 1);
        if (i)
            CHECK(fence[i].seq > fence[i - 1].seq);
    }
    /* A limit too short to be kept is a time-out or, on a fast device, success; nothing else. */
    enum mb_err err = c->hw->fence_wait_host(c->dev, fence[FENCES - 1], 1);
    CHECK(err == MB_OK || err == MB_ERR_TIMEOUT);
    for (int i = 0; i < FENCES; i += 7) {
        contract_wait_host(c, fence[i]);
        for (int k = 0; k <= i; k++)
            CHECK(c->hw->fence_done(c->dev, fence[k]));
    }
    /* Asked from the newest backwards, a passed fence has all older ones passed. */
    for (int i = FENCES; i > 0; i--)
        if (c->hw->fence_done(c->dev, fence[i - 1]))
            for (int k = 0; k < i; k++)
                CHECK(c->hw->fence_done(c->dev, fence[k]));
    contract_wait_host(c, fence[FENCES - 1]);
    contract_sync(c);
}

void contract_fences_outlive_their_stream(struct contract *c)
{
    struct contract_window *w = contract_window(c, 4);
    struct mb_hw_stream *other = contract_stream(c);
    mb_pfn pfns[4];

    contract_frames(c, pfns, 4);
    contract_map(c, other, w, 0, 4, pfns);
    for (uint64_t round = 0; round < 10; round++) {
        struct mb_hw_stream *s = NULL;
        mb_stream native = NULL;
        struct mb_hw_fence fence;

        CHECK_OK(c->hw->stream_create(c->dev, &native));
        CHECK_OK(c->hw->stream_open(c->dev, native, &s));
        CHECK_OK(c->hw->fence_wait_stream(c->dev, s, contract_fence(c, other)));
        contract_fill(c, s, w, 0, 4 * MB_FRAME_BYTES, round);
        fence = contract_fence(c, s);
        c->hw->stream_close(c->dev, s);
        CHECK_OK(c->hw->stream_destroy(c->dev, native));
        /* The stream is gone; its work and its fence are not. */
        CHECK_OK(c->hw->fence_wait_stream(c->dev, other, fence));
        contract_verify(c, other, w, 0, 4 * MB_FRAME_BYTES, round);
        contract_wait_host(c, fence);
        CHECK(c->hw->fence_done(c->dev, fence));
    }
    contract_sync(c);
}

/*
 * Streams hand a frame round: each waits for the one before, maps it, adds its mark, passes it on,
 * so that every stream waits for every other again and again, always for something enqueued
 * earlier.
 */
void contract_streams_that_wait_for_each_other_go_on(struct contract *c)
{
    enum { STREAMS = 5, ROUNDS = 40 };
    struct mb_hw_stream *s[STREAMS];
    struct contract_window *w[STREAMS];
    struct mb_hw_fence passed = {NULL, 0};
    mb_pfn ball, own[STREAMS];

    contract_frames(c, &ball, 1);
    contract_frames(c, own, STREAMS);
    for (int i = 0; i < STREAMS; i++) {
        s[i] = contract_stream(c);
        w[i] = contract_window(c, 4);
        contract_map(c, s[i], w[i], 3, 1, &own[i]);
    }
    for (uint64_t turn = 0; turn < STREAMS * ROUNDS; turn++) {
        unsigned i = (unsigned)mb__rng_below(&c->rng, STREAMS);
        unsigned k = (unsigned)mb__rng_below(&c->rng, STREAMS);
        struct mb_hw_cmd cmds[] = {
            contract_wait(passed),
            contract_leaves(c, w[i], 0, 1, &ball, true),
            contract_cmd(MB_HW_BARRIER),
            contract_invalidate(w[i], 0, 1),
        };

        contract_intend(c, w[i], 0, 1, &ball);
        CHECK_OK(c->hw->submit(c->dev, s[i], cmds, 4));
        if (turn)
            contract_verify(c, s[i], w[i], 0, MB_FRAME_BYTES, turn - 1);
        contract_fill(c, s[i], w[i], 0, MB_FRAME_BYTES, turn);
        contract_map(c, s[i], w[i], 0, 1, NULL);
        passed = contract_fence(c, s[i]);
        /* A map of another stream in between, which depends on nothing. */
        contract_map(c, s[k], w[k], 1, 1, &own[k]);
        contract_fill(c, s[k], w[k], 1, 4096, turn);
        contract_verify(c, s[k], w[k], 3, 4096, turn);
    }
    contract_sync(c);
}
