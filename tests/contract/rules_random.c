/* SPDX-License-Identifier: MIT */
/*
 * Random programs against a model: what every slot shows and what every frame holds is known at
 * each step, in the order of the streams, so any wrong translation, lost write or broken order is
 * seen.
 */
#include "contract.h"

#include <string.h>

enum { STREAMS = 3, SLOTS = 40, FRAMES = 60, STEPS = 600, NO_FRAME = -1 };

/* What the model knows of one stream: its window, and frames that only it touches. */
struct lane {
    struct mb_hw_stream *stream;
    struct contract_window *window;
    mb_pfn pfn[FRAMES];
    uint64_t content[FRAMES]; /* seed of each frame */
    bool filled[FRAMES];
    int shown[SLOTS]; /* index of the frame in the slot, NO_FRAME: cleared */
};

static struct lane lanes[STREAMS];

static void open_lane(struct contract *c, struct lane *lane)
{
    memset(lane, 0, sizeof(*lane));
    lane->stream = contract_stream(c);
    lane->window = contract_window(c, SLOTS);
    contract_frames(c, lane->pfn, FRAMES);
    for (int i = 0; i < SLOTS; i++)
        lane->shown[i] = NO_FRAME;
}

static void map_some(struct contract *c, struct lane *lane)
{
    uint32_t first = (uint32_t)mb__rng_below(&c->rng, SLOTS);
    uint32_t count = 1 + (uint32_t)mb__rng_below(&c->rng, SLOTS - first);
    bool clear = mb__rng_below(&c->rng, 4) == 0;
    mb_pfn list[SLOTS];

    for (uint32_t i = 0; i < count; i++) {
        int frame = (int)mb__rng_below(&c->rng, FRAMES);

        lane->shown[first + i] = clear ? NO_FRAME : frame;
        list[i] = lane->pfn[frame];
    }
    contract_map(c, lane->stream, lane->window, first, count, clear ? NULL : list);
}

/* A mapped slot, or -1. */
static int any_slot(struct contract *c, const struct lane *lane)
{
    int start = (int)mb__rng_below(&c->rng, SLOTS);

    for (int i = 0; i < SLOTS; i++)
        if (lane->shown[(start + i) % SLOTS] != NO_FRAME)
            return (start + i) % SLOTS;
    return -1;
}

static void fill_one(struct contract *c, struct lane *lane)
{
    int slot = any_slot(c, lane);
    uint64_t seed = mb__rng_next(&c->rng);

    if (slot < 0)
        return;
    contract_fill(c, lane->stream, lane->window, (uint32_t)slot, MB_FRAME_BYTES, seed);
    lane->content[lane->shown[slot]] = seed;
    lane->filled[lane->shown[slot]] = true;
}

static void verify_one(struct contract *c, struct lane *lane)
{
    int slot = any_slot(c, lane);

    if (slot < 0 || !lane->filled[lane->shown[slot]])
        return;
    contract_verify(c, lane->stream, lane->window, (uint32_t)slot, MB_FRAME_BYTES,
                    lane->content[lane->shown[slot]]);
}

static void copy_one(struct contract *c, struct lane *lane)
{
    int to = any_slot(c, lane), from = any_slot(c, lane);

    if (to < 0 || from < 0 || lane->shown[to] == lane->shown[from])
        return;
    CHECK_OK(c->hw->copy(c->dev, lane->stream, contract_va(lane->window, (uint32_t)to),
                         contract_va(lane->window, (uint32_t)from), MB_FRAME_BYTES));
    lane->content[lane->shown[to]] = lane->content[lane->shown[from]];
    lane->filled[lane->shown[to]] = lane->filled[lane->shown[from]];
}

/* Two lanes trade a frame: each must wait for what the other has enqueued so far. */
static void trade(struct contract *c, struct lane *a, struct lane *b)
{
    int fa = (int)mb__rng_below(&c->rng, FRAMES), fb = (int)mb__rng_below(&c->rng, FRAMES);
    struct mb_hw_fence at_a, at_b;
    mb_pfn pfn = a->pfn[fa];
    uint64_t content = a->content[fa];
    bool filled = a->filled[fa];

    for (uint32_t i = 0; i < SLOTS; i++) {
        if (a->shown[i] == fa) {
            contract_map(c, a->stream, a->window, i, 1, NULL);
            a->shown[i] = NO_FRAME;
        }
        if (b->shown[i] == fb) {
            contract_map(c, b->stream, b->window, i, 1, NULL);
            b->shown[i] = NO_FRAME;
        }
    }
    at_a = contract_fence(c, a->stream);
    at_b = contract_fence(c, b->stream);
    CHECK_OK(c->hw->fence_wait_stream(c->dev, a->stream, at_b));
    CHECK_OK(c->hw->fence_wait_stream(c->dev, b->stream, at_a));
    a->pfn[fa] = b->pfn[fb];
    a->content[fa] = b->content[fb];
    a->filled[fa] = b->filled[fb];
    b->pfn[fb] = pfn;
    b->content[fb] = content;
    b->filled[fb] = filled;
}

static void check_lane(struct contract *c, struct lane *lane)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        int frame = lane->shown[i];

        contract_expect_slots(c, lane->window, i, 1, frame < 0 ? NULL : &lane->pfn[frame], true);
        if (frame >= 0 && lane->filled[frame])
            contract_verify(c, lane->stream, lane->window, i, MB_FRAME_BYTES, lane->content[frame]);
    }
    contract_sync(c);
}

void contract_random_programs_agree_with_a_model(struct contract *c)
{
    for (int i = 0; i < STREAMS; i++)
        open_lane(c, &lanes[i]);
    for (int step = 0; step < STEPS; step++) {
        unsigned which = (unsigned)mb__rng_below(&c->rng, STREAMS);
        struct lane *lane = &lanes[which];

        switch (mb__rng_below(&c->rng, 10)) {
        case 0:
        case 1:
            map_some(c, lane);
            break;
        case 2:
        case 3:
        case 4:
            fill_one(c, lane);
            break;
        case 5:
            copy_one(c, lane);
            break;
        case 6:
            trade(c, lane, &lanes[(which + 1) % STREAMS]);
            break;
        default:
            verify_one(c, lane);
        }
    }
    for (int i = 0; i < STREAMS; i++)
        check_lane(c, &lanes[i]);
}
