/* SPDX-License-Identifier: MIT */
/*
 * Properties of plans over random free ranges:
 *   the pieces are free, disjoint, and sum up to the request
 *   every piece but the first starts at a frame boundary, every piece but the last ends at one
 *   if a choice of head and tail makes a plan, one is found (compared with a search of all choices)
 *   what is said to be missing suffices, and less does not
 */
#include "runtime/plan.h"

#include <string.h>

#include "base/types.h"
#include "test.h"

enum {
    RANGES = 12,
    ROUNDS = 20000,
};

static const uint64_t G = 512, F = MB_FRAME_BYTES, BASE = (uint64_t)1 << 40;

/* Ranges with gaps between them. Sizes in quarter frames at times, so that exact fits occur. */
static size_t make_ranges(uint64_t *state, struct mb__range *ranges)
{
    size_t count = mb_test_random_below(state, RANGES + 1);
    uint64_t at = BASE, unit = mb_test_random_below(state, 2) ? G : F / 4;

    for (size_t i = 0; i < count; i++) {
        at += unit * (1 + mb_test_random_below(state, F / unit));
        ranges[i].addr = at;
        ranges[i].bytes = unit * (1 + mb_test_random_below(state, 3 * F / unit));
        at += ranges[i].bytes;
    }
    return count;
}

static bool is_inside(const struct mb__range *ranges, size_t count, struct mb__range piece)
{
    for (size_t i = 0; i < count; i++)
        if (piece.addr >= ranges[i].addr &&
            piece.addr + piece.bytes <= ranges[i].addr + ranges[i].bytes)
            return true;
    return false;
}

static void check_pieces(const struct mb__range *ranges, size_t count, uint64_t bytes,
                         const struct mb__range *pieces, size_t pieces_count)
{
    uint64_t sum = 0;

    CHECK_LE(pieces_count, count + 2);
    for (size_t i = 0; i < pieces_count; i++) {
        sum += pieces[i].bytes;
        CHECK(pieces[i].bytes > 0);
        CHECK(is_inside(ranges, count, pieces[i]));
        CHECK(i == 0 || pieces[i].addr % F == 0);
        CHECK(i + 1 == pieces_count || (pieces[i].addr + pieces[i].bytes) % F == 0);
        for (size_t j = 0; j < i; j++)
            CHECK(pieces[i].addr >= pieces[j].addr + pieces[j].bytes ||
                  pieces[j].addr >= pieces[i].addr + pieces[i].bytes);
    }
    CHECK_EQ(sum, bytes);
}

static uint64_t up(uint64_t addr)
{
    return (addr + F - 1) / F * F;
}

/* Whole frames of all ranges; the sizes of heads and tails. */
struct supply {
    uint64_t whole, heads[RANGES + 1], tails[RANGES + 1];
    size_t count;
};

static struct supply supply_of(const struct mb__range *ranges, size_t count)
{
    struct supply supply = {0};

    for (size_t i = 0; i < count; i++) {
        uint64_t end = ranges[i].addr + ranges[i].bytes, first = up(ranges[i].addr);
        uint64_t last = end / F * F;

        if (first > end)
            continue;
        supply.whole += last - first;
        supply.heads[supply.count] = first - ranges[i].addr;
        supply.tails[supply.count++] = end - last;
    }
    supply.count++; /* no head, no tail */
    return supply;
}

/* Could x of this head, y of that tail and whole frames make the block? A split frame serves as a
 * tail. */
static bool pair_does(uint64_t head, uint64_t tail, uint64_t whole, uint64_t bytes)
{
    uint64_t rest = bytes % F;

    if (bytes <= head)
        return true;
    /* x + y = rest, or rest + F, with x <= head and y <= tail */
    for (uint64_t edges = rest; edges <= rest + F && edges <= bytes; edges += F)
        if (edges <= head + tail && bytes - edges <= whole)
            return true;
    return (rest ? bytes - rest + F : bytes) <= whole ||
           (head < bytes && up(bytes - head) <= whole);
}

static bool can_do(const struct supply *supply, uint64_t bytes)
{
    for (size_t i = 0; i < supply->count; i++)
        for (size_t j = 0; j < supply->count; j++)
            if (pair_does(supply->heads[i], supply->tails[j], supply->whole, bytes))
                return true;
    return false;
}

/* Adds the missing frames as one more range far away and plans again. */
static struct mb__plan plan_with(const struct mb__range *ranges, size_t count, uint64_t bytes,
                                 uint64_t fresh, struct mb__range *pieces)
{
    struct mb__range more[RANGES + 1];

    memcpy(more, ranges, count * sizeof(*ranges));
    if (fresh)
        more[count++] = (struct mb__range){BASE << 1, fresh};
    return mb__plan(more, count, bytes, pieces);
}

TEST(plans_are_sound_and_none_is_missed)
{
    uint64_t state = mb_test_seed();

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct mb__range ranges[RANGES], pieces[RANGES + 3];
        size_t count = make_ranges(&state, ranges);
        struct supply supply = supply_of(ranges, count);
        uint64_t bytes = G * (1 + mb_test_random_below(&state, 10 * F / G));
        struct mb__plan plan = plan_with(ranges, count, bytes, 0, pieces);

        if (plan.count) {
            check_pieces(ranges, count, bytes, pieces, plan.count);
            continue;
        }
        CHECK(!can_do(&supply, bytes));
        CHECK(plan.missing_bytes > 0 && plan.missing_bytes % F == 0);
        CHECK(plan_with(ranges, count, bytes, plan.missing_bytes, pieces).count > 0);
        CHECK(!plan_with(ranges, count, bytes, plan.missing_bytes - F, pieces).count);
    }
}

/* The head alone is the block, to the byte. */
TEST(a_head_that_fits_exactly)
{
    struct mb__range ranges[1] = {{BASE + F / 4, F}}, pieces[3];
    struct mb__plan plan = mb__plan(ranges, 1, F - F / 4, pieces);

    CHECK_EQ(plan.count, 1);
    CHECK_EQ(pieces[0].addr, BASE + F / 4);
    CHECK_EQ(pieces[0].bytes, F - F / 4);
}

TEST(continuations_start_at_a_frame)
{
    uint64_t state = mb_test_seed() + 1;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct mb__range ranges[RANGES], copy[RANGES], pieces[RANGES + 2];
        size_t count = make_ranges(&state, ranges);
        uint64_t bytes = G * (1 + mb_test_random_below(&state, 6 * F / G));
        struct mb__plan plan;

        memcpy(copy, ranges, sizeof(copy));
        plan = mb__plan_longer(copy, count, bytes, pieces);
        if (!plan.count)
            continue;
        check_pieces(ranges, count, bytes, pieces, plan.count);
        CHECK_EQ(pieces[0].addr % F, 0);
    }
}

TEST(places_are_inside_and_prefer_frame_boundaries)
{
    uint64_t state = mb_test_seed() + 2;

    for (unsigned round = 0; round < ROUNDS; round++) {
        struct mb__range range = {BASE + G * mb_test_random_below(&state, 2 * F / G),
                                  G * (1 + mb_test_random_below(&state, 6 * F / G))};
        uint64_t bytes = G * (1 + mb_test_random_below(&state, range.bytes / G)), addr = 0;

        mb__place(range, bytes, &addr);
        CHECK(addr >= range.addr && addr + bytes <= range.addr + range.bytes);
        CHECK_EQ(addr % G, 0);
    }
    /* A whole frame goes where it is one frame, not across two. */
    struct mb__range range = {BASE + F / 2, 4 * F};
    uint64_t addr = 0;

    mb__place(range, F, &addr);
    CHECK_EQ(addr % F, 0);
    /* A small block in a tail goes to its end, so that the tail still starts at the boundary. */
    range = (struct mb__range){BASE, F / 2};
    mb__place(range, 4096, &addr);
    CHECK_EQ(addr, BASE + F / 2 - 4096);
    /* One that nearly fills a frame stays in one: as a hole it is one part then, not two. */
    range = (struct mb__range){BASE + F / 2, 3 * F};
    mb__place(range, MB__NEAR_FRAME, &addr);
    CHECK(addr % F + MB__NEAR_FRAME <= F);
    /* Smaller ones leave no gaps at boundaries. */
    mb__place(range, 3 * F / 4, &addr);
    CHECK(addr == range.addr || addr + 3 * F / 4 == range.addr + range.bytes);
}

TEST(fragments_are_consumed_before_large_ranges)
{
    /* Half a frame at the end of one, half at the start of another, and plenty elsewhere. */
    struct mb__range ranges[3] = {
        {BASE + F / 2, F / 2}, {BASE + 4 * F, F / 2}, {BASE + 16 * F, 2 * F}};
    struct mb__range pieces[5];
    struct mb__plan plan = mb__plan(ranges, 3, 3 * F, pieces);

    CHECK_EQ(plan.count, 3);
    CHECK_EQ(pieces[0].addr, BASE + F / 2);
    CHECK_EQ(pieces[2].addr, BASE + 4 * F);
    CHECK(plan.cost < 0);
}
