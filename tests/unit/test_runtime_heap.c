/* SPDX-License-Identifier: MIT */
/* The heap against a map of granules: what is free, in which lane, which frames are in use. */
#include "runtime/heap.h"

#include <stdlib.h>
#include <string.h>

#include "test.h"

enum {
    FRAMES = 8,
    GRANULES = FRAMES * (int)(MB_FRAME_BYTES / MB__GRANULE),
    LANES = 3,
    LIVE = 64,
};

static const uint64_t BASE = (uint64_t)1 << 40;

struct rig {
    struct mb__heap heap;
    struct mb__lane lanes[LANES];
    struct mb__node *live[LIVE];
    uint8_t map[GRANULES]; /* 0: used; lane + 1: free there */
};

static void mark(struct rig *rig, uint64_t addr, uint64_t bytes, unsigned value)
{
    memset(rig->map + (addr - BASE) / MB__GRANULE, (int)value, bytes / MB__GRANULE);
}

/* Frames with a used granule, counted one by one. */
static uint64_t frames_in_use(const struct rig *rig)
{
    uint64_t frames = 0;

    for (int frame = 0; frame < FRAMES; frame++)
        frames += memchr(rig->map + frame * (GRANULES / FRAMES), 0, GRANULES / FRAMES) != NULL;
    return frames;
}

static uint64_t free_in(const struct rig *rig, unsigned lane)
{
    uint64_t granules = 0;

    for (int i = 0; i < GRANULES; i++)
        granules += rig->map[i] == lane + 1;
    return granules * MB__GRANULE;
}

static void compare(const struct rig *rig)
{
    CHECK_OK(mb__heap_check(&rig->heap));
    CHECK_EQ(rig->heap.used_frames, frames_in_use(rig));
    for (unsigned lane = 0; lane < LANES; lane++) {
        CHECK_OK(mb__lane_check(&rig->lanes[lane]));
        CHECK_EQ(rig->lanes[lane].free_bytes, free_in(rig, lane));
    }
}

static void take(struct rig *rig, unsigned slot, uint64_t *state)
{
    struct mb__lane *lane = &rig->lanes[mb_test_random_below(state, LANES)];
    uint64_t bytes = MB__GRANULE * (1 + mb_test_random_below(state, 6000));
    struct mb__node *node = mb__heap_fit(lane, bytes);
    uint64_t room, at;

    if (!node)
        return;
    CHECK(node->bytes >= bytes);
    room = (node->bytes - bytes) / MB__GRANULE;
    at = node->addr + MB__GRANULE * mb_test_random_below(state, room + 1);
    CHECK_OK(mb__heap_prepare(&rig->heap, 2));
    rig->live[slot] = mb__heap_take(&rig->heap, node, at, bytes, rig);
    CHECK_EQ(rig->live[slot]->addr, at);
    CHECK_EQ(rig->live[slot]->bytes, bytes);
    mark(rig, at, bytes, 0);
}

static void give(struct rig *rig, unsigned slot, uint64_t *state)
{
    unsigned lane = (unsigned)mb_test_random_below(state, LANES);
    struct mb__node *node = rig->live[slot];

    mark(rig, node->addr, node->bytes, lane + 1);
    mb__heap_give(&rig->heap, node, &rig->lanes[lane], 1 + mb_test_random_below(state, 9), NULL);
    rig->live[slot] = NULL;
}

/* Moves the smallest node of one lane to another. */
static void move(struct rig *rig, uint64_t *state)
{
    unsigned from = (unsigned)mb_test_random_below(state, LANES);
    unsigned to = (unsigned)mb_test_random_below(state, LANES);
    struct mb__node *node = mb__heap_fit(&rig->lanes[from], MB__GRANULE);

    if (!node || from == to)
        return;
    mark(rig, node->addr, node->bytes, to + 1);
    mb__heap_move(&rig->heap, node, &rig->lanes[to], 0);
}

TEST(random_operations_agree_with_a_map)
{
    static struct rig rig;
    uint64_t state = mb_test_seed();

    memset(&rig, 0, sizeof(rig));
    mb__heap_init(&rig.heap);
    CHECK_OK(mb__heap_prepare(&rig.heap, 1));
    mb__heap_add(&rig.heap, &rig.lanes[0], BASE, FRAMES * MB_FRAME_BYTES);
    mark(&rig, BASE, FRAMES * MB_FRAME_BYTES, 1);
    for (unsigned i = 0; i < 20000; i++) {
        unsigned slot = (unsigned)mb_test_random_below(&state, LIVE);

        if (mb_test_random_below(&state, 16) == 0)
            move(&rig, &state);
        else if (rig.live[slot])
            give(&rig, slot, &state);
        else
            take(&rig, slot, &state);
        if (i % 97 == 0)
            compare(&rig);
    }
    compare(&rig);
    mb__heap_fini(&rig.heap);
}

/* Takes a block of many pieces from anywhere and of any lane, as a composed one does. Its pieces
 * may touch, and lie in one frame. */
static struct mb__node *take_pieces(struct rig *rig, unsigned slot, uint64_t *state)
{
    struct mb__node *first = NULL, **tail = &first;
    struct mb__near near = {0};
    uint64_t grain = mb_test_random_below(state, 2) ? MB_FRAME_BYTES / 8 : 4 * MB__GRANULE;
    bool rising = mb_test_random_below(state, 2);
    uint64_t grains = FRAMES * MB_FRAME_BYTES / grain, step = 0;

    for (uint64_t n = 1 + mb_test_random_below(state, 60); n; n--) {
        step = rising ? step + 2 : mb_test_random_below(state, grains);

        uint64_t at = BASE + grain * (step % grains);
        struct mb__node *node = mb__heap_find_near(&rig->heap, near, at);
        uint64_t room = node->addr + node->bytes - at;

        CHECK_PTR_EQ(node, mb__heap_find(&rig->heap, at));
        near = (struct mb__near){node, node->edge_next};
        if (!node->lane)
            continue;
        room = room < grain ? room : grain;
        CHECK_OK(mb__heap_prepare(&rig->heap, 2));
        *tail = mb__heap_take(&rig->heap, node, at, room, &rig->live[slot]);
        mark(rig, at, room, 0);
        near.low = *tail;
        tail = &(*tail)->piece_next;
    }
    return first;
}

/* What single frees and moves leave is not different from what they leave all together. */
TEST(pieces_given_together_agree_with_a_map)
{
    static struct rig rig;
    struct mb__node *held[4] = {0};
    uint64_t state = mb_test_seed();

    memset(&rig, 0, sizeof(rig));
    rig.lanes[2].apart = true;
    mb__heap_init(&rig.heap);
    CHECK_OK(mb__heap_prepare(&rig.heap, 1));
    mb__heap_add(&rig.heap, &rig.lanes[0], BASE, FRAMES * MB_FRAME_BYTES);
    mark(&rig, BASE, FRAMES * MB_FRAME_BYTES, 1);
    for (unsigned i = 0; i < 4000; i++) {
        unsigned slot = (unsigned)mb_test_random_below(&state, 4);
        unsigned lane = (unsigned)mb_test_random_below(&state, 8);

        lane = lane < 6 ? lane % 2 : lane == 6 ? 2 : 0;
        for (struct mb__node *node = held[slot]; node; node = node->piece_next)
            mark(&rig, node->addr, node->bytes, lane + 1);
        mb__heap_give_all(&rig.heap, held[slot], &rig.lanes[lane], 1 + i % 9, NULL);
        held[slot] = take_pieces(&rig, slot, &state);
        move(&rig, &state);
        if (i % 7 == 0)
            compare(&rig);
    }
    compare(&rig);
    mb__heap_fini(&rig.heap);
}

TEST(runs_that_touch_are_joined)
{
    struct mb__heap heap;
    struct mb__lane lane = {0};

    mb__heap_init(&heap);
    CHECK_OK(mb__heap_prepare(&heap, 3));
    mb__heap_add(&heap, &lane, BASE, MB_FRAME_BYTES);
    mb__heap_add(&heap, &lane, BASE + 2 * MB_FRAME_BYTES, MB_FRAME_BYTES);
    CHECK_EQ(lane.by_size.count, 2);
    mb__heap_add(&heap, &lane, BASE + MB_FRAME_BYTES, MB_FRAME_BYTES);
    CHECK_EQ(lane.by_size.count, 1);
    CHECK_EQ(mb__heap_fit(&lane, 3 * MB_FRAME_BYTES)->addr, BASE);
    CHECK_OK(mb__heap_check(&heap));
    mb__heap_fini(&heap);
}

TEST(removed_bytes_leave_a_gap)
{
    struct mb__heap heap;
    struct mb__lane lane = {0};

    mb__heap_init(&heap);
    CHECK_OK(mb__heap_prepare(&heap, 4));
    mb__heap_add(&heap, &lane, BASE, 4 * MB_FRAME_BYTES);
    mb__heap_remove(&heap, mb__heap_find(&heap, BASE), BASE + MB_FRAME_BYTES, MB_FRAME_BYTES);
    CHECK_EQ(heap.total_bytes, 3 * MB_FRAME_BYTES);
    CHECK(!mb__heap_find(&heap, BASE + MB_FRAME_BYTES));
    CHECK(!mb__heap_fit(&lane, 3 * MB_FRAME_BYTES));
    CHECK_EQ(mb__heap_fit(&lane, 2 * MB_FRAME_BYTES)->addr, BASE + 2 * MB_FRAME_BYTES);
    CHECK(!mb__heap_find(&heap, BASE)->next);
    CHECK_OK(mb__heap_check(&heap));
    CHECK_OK(mb__lane_check(&lane));
    mb__heap_fini(&heap);
}

TEST(nodes_of_a_lane_apart_stay_apart_and_keep_their_order)
{
    struct mb__heap heap;
    struct mb__lane lane = {0}, apart = {.apart = true};
    struct mb__order *order = calloc(1, sizeof(*order) + sizeof(order->points[0]));
    struct mb__node *low, *high;

    CHECK(order);
    order->refs = 1;
    mb__heap_init(&heap);
    CHECK_OK(mb__heap_prepare(&heap, 8));
    mb__heap_add(&heap, &lane, BASE, MB_FRAME_BYTES);
    low = mb__heap_take(&heap, mb__heap_find(&heap, BASE), BASE, 4096, &heap);
    high = mb__heap_take(&heap, mb__heap_find(&heap, BASE + 4096), BASE + 4096, 4096, &heap);
    mb__heap_give(&heap, low, &apart, 0, order);
    mb__heap_give(&heap, high, &apart, 0, order);
    CHECK_EQ(apart.by_size.count, 2);
    CHECK_EQ(order->refs, 3);
    /* A cut shares the order; what is taken drops it. */
    mb__heap_take(&heap, low, BASE + 512, 512, &heap);
    CHECK_EQ(order->refs, 4);
    CHECK_EQ(apart.by_size.count, 3);
    CHECK_OK(mb__heap_check(&heap));
    mb__heap_fini(&heap);
    CHECK_EQ(order->refs, 1);
    mb__order_unref(order);
}

TEST(check_sees_a_wrong_account)
{
    struct mb__heap heap;
    struct mb__lane lane = {0};

    mb__heap_init(&heap);
    CHECK_OK(mb__heap_prepare(&heap, 4));
    mb__heap_add(&heap, &lane, BASE, MB_FRAME_BYTES);
    mb__heap_take(&heap, mb__heap_find(&heap, BASE), BASE, 512, &heap);
    heap.used_frames++;
    CHECK_EQ(mb__heap_check(&heap), MB_ERR_CORRUPT);
    heap.used_frames--;
    heap.used_bytes -= 512;
    CHECK_EQ(mb__heap_check(&heap), MB_ERR_CORRUPT);
    heap.used_bytes += 512;
    CHECK_OK(mb__heap_check(&heap));
    lane.free_bytes++;
    CHECK_EQ(mb__lane_check(&lane), MB_ERR_CORRUPT);
    mb__heap_fini(&heap);
}

/* Holes inside frames are no use to a composed block: the index does not hold them, however many.
 * */
TEST(holes_inside_frames_are_not_indexed)
{
    struct mb__heap heap;
    struct mb__lane lane = {0};
    unsigned block = 0;

    mb__heap_init(&heap);
    CHECK_OK(mb__heap_prepare(&heap, GRANULES));
    mb__heap_add(&heap, &lane, BASE, 2 * MB_FRAME_BYTES);
    CHECK_EQ(lane.edge_count, 1);
    for (uint64_t at = 0; at < 2 * MB_FRAME_BYTES; at += 2 * MB__GRANULE) {
        struct mb__node *node = mb__heap_find(&heap, BASE + at);

        CHECK_OK(mb__heap_prepare(&heap, 2));
        (void)mb__heap_take(&heap, node, BASE + at, MB__GRANULE, &block);
    }
    /* Every second granule is free; the last of each frame ends at its boundary. */
    CHECK_EQ(lane.by_size.count, 2 * MB_FRAME_BYTES / (2 * MB__GRANULE));
    CHECK_EQ(lane.edge_count, 2);
    CHECK_OK(mb__heap_check(&heap));
    CHECK_OK(mb__lane_check(&lane));
    mb__heap_fini(&heap);
}
