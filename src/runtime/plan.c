/* SPDX-License-Identifier: MIT */
/*
 * Every range splits at frame boundaries into a head (the upper part of a frame), whole frames and
 * a tail (the lower part of a frame). A range inside one frame has neither and is of no use here;
 * it serves small requests.
 *
 * With x bytes of a head and y bytes of a tail a block of s bytes takes (s - x - y) / frame whole
 * frames. A choice of (x, y) is judged by what it leaves: heads and tails can end a later block but
 * are worth less than whole frames; a rest inside a frame is worth least. Taking a head whole and
 * then the y that it implies, from a tail that fits closely or from a split frame, covers all good
 * choices.
 *
 * Whole frames come from the ranges with fewest of them, so that large ranges stay whole.
 */
#include "runtime/plan.h"

#include "base/sort.h"
#include "base/types.h"

#define FRAME MB_FRAME_BYTES
#define NONE SIZE_MAX

/* Worth of a lost byte, in eighths: inside a frame / in a head or tail. Whole frames cost nothing.
 */
enum {
    COST_INSIDE = 8,
    COST_EDGE = 4,
};

struct parts {
    uint64_t head, tail, whole; /* bytes; whole counts frames' bytes between them */
    uint64_t first;             /* address of the first frame boundary in the range */
    bool usable;                /* it touches a frame boundary */
};

struct choice {
    size_t head, tail; /* index of a range, NONE: no such part */
    uint64_t x, y;     /* bytes taken from them; y also when a frame is split for it */
    uint64_t whole;    /* bytes of whole frames besides, without the split one */
    bool split;        /* y comes from a whole frame */
    int64_t cost;
};

static struct parts parts_of(const struct mb__range *range)
{
    struct parts parts = {0};
    uint64_t end = range->addr + range->bytes;
    uint64_t last = end & ~(FRAME - 1);

    parts.first = (range->addr + FRAME - 1) & ~(FRAME - 1);
    if (parts.first > end)
        return parts;
    parts.usable = true;
    parts.head = parts.first - range->addr;
    parts.tail = end - last;
    parts.whole = last - parts.first;
    return parts;
}

static inline uint64_t whole_of(const struct mb__range *range)
{
    uint64_t first = (range->addr + FRAME - 1) & ~(FRAME - 1);
    uint64_t last = (range->addr + range->bytes) & ~(FRAME - 1);

    return last > first ? last - first : 0;
}

static inline bool is_smaller(const struct mb__range *a, const struct mb__range *b)
{
    uint64_t whole_a = whole_of(a), whole_b = whole_of(b);

    if (whole_a != whole_b)
        return whole_a < whole_b;
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->addr < b->addr;
}

static inline bool is_below(const uint64_t *a, const uint64_t *b)
{
    return *a < *b;
}

MB_SORT_DEFINE(sort_by_whole, struct mb__range, is_smaller)
MB_SORT_DEFINE(sort_numbers, uint64_t, is_below)

/* The tails of the free ranges, smallest first and the first range's among equals: each a number
 * of (bytes, index of the range). */
struct tails {
    const uint64_t *at;
    size_t count;
};

enum {
    TAIL_SHIFT = 64 - MB_FRAME_SHIFT, /* a tail is less than a frame */
};

/* `scratch` has room for two numbers a range. */
static struct tails sort_tails(const struct mb__range *free, size_t count, uint64_t *scratch)
{
    size_t used = 0;

    for (size_t i = 0; i < count; i++) {
        uint64_t tail = parts_of(&free[i]).tail;

        if (tail)
            scratch[used++] = tail << TAIL_SHIFT | i;
    }
    sort_numbers(scratch, used, scratch + count);
    return (struct tails){scratch, used};
}

/* Index of the range with the smallest tail >= y, or NONE. */
static size_t fit_tail(const struct tails *tails, uint64_t y)
{
    size_t low = 0, high = tails->count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (tails->at[middle] >> TAIL_SHIFT < y)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == tails->count)
        return NONE;
    return (size_t)(tails->at[low] & ((UINT64_C(1) << TAIL_SHIFT) - 1));
}

static void keep_cheaper(struct choice *best, const struct choice *choice, uint64_t whole_bytes)
{
    if (choice->whole + (choice->split ? FRAME : 0) <= whole_bytes && choice->cost < best->cost)
        *best = *choice;
}

/* Completes a choice whose head part is fixed, in the ways there are, and keeps the best. */
static void complete(struct choice *best, struct choice choice, const struct mb__range *free,
                     const struct tails *tails, uint64_t bytes, uint64_t whole_bytes)
{
    int64_t head_cost = choice.cost;
    uint64_t rest = bytes - choice.x;

    choice.tail = NONE;
    choice.split = false;
    choice.y = rest % FRAME;
    choice.whole = rest - choice.y;
    if (!choice.y) {
        keep_cheaper(best, &choice, whole_bytes);
        return;
    }
    choice.split = true;
    choice.cost = head_cost + COST_EDGE * (int64_t)(FRAME - choice.y);
    keep_cheaper(best, &choice, whole_bytes);
    choice.split = false;
    choice.tail = fit_tail(tails, choice.y);
    if (choice.tail == NONE)
        return;
    uint64_t tail = parts_of(&free[choice.tail]).tail;

    choice.cost = head_cost - COST_EDGE * (int64_t)tail + COST_INSIDE * (int64_t)(tail - choice.y);
    keep_cheaper(best, &choice, whole_bytes);
}

static struct choice choose(const struct mb__range *free, const struct tails *tails, size_t count,
                            uint64_t bytes, uint64_t whole_bytes, bool heads)
{
    struct choice best = {.head = NONE, .tail = NONE, .cost = INT64_MAX};
    struct choice choice = {.head = NONE, .tail = NONE};

    complete(&best, choice, free, tails, bytes, whole_bytes);
    for (size_t i = 0; heads && i < count; i++) {
        uint64_t head = parts_of(&free[i]).head;
        uint64_t exact = bytes % FRAME;

        if (!head)
            continue;
        choice.head = i;
        if (head <= bytes) {
            choice.x = head;
            choice.cost = -COST_EDGE * (int64_t)head;
            complete(&best, choice, free, tails, bytes, whole_bytes);
        }
        if (exact && exact < head) {
            choice.x = exact;
            choice.cost = -COST_EDGE * (int64_t)head + COST_INSIDE * (int64_t)(head - exact);
            complete(&best, choice, free, tails, bytes, whole_bytes);
        }
    }
    return best;
}

/* Smallest number of fresh whole frames, in one range, with which a choice exists: a head and a
 * tail save at most what the largest of them hold. */
static uint64_t missing(const struct mb__range *free, const struct tails *tails, size_t count,
                        uint64_t bytes, uint64_t whole_bytes, bool heads)
{
    uint64_t head = 0, tail = 0;

    for (size_t i = 0; i < count; i++) {
        struct parts parts = parts_of(&free[i]);

        head = parts.head > head ? parts.head : head;
        tail = parts.tail > tail ? parts.tail : tail;
    }
    uint64_t least = whole_bytes + head + tail;
    uint64_t fresh = bytes > least ? (bytes - least + FRAME - 1) & ~(FRAME - 1) : FRAME;

    while (choose(free, tails, count, bytes, whole_bytes + fresh, heads).cost == INT64_MAX)
        fresh += FRAME;
    return fresh;
}

static size_t append(struct mb__range *pieces, size_t used, uint64_t addr, uint64_t bytes)
{
    if (!bytes)
        return used;
    if (used && pieces[used - 1].addr + pieces[used - 1].bytes == addr) {
        pieces[used - 1].bytes += bytes;
        return used;
    }
    pieces[used] = (struct mb__range){addr, bytes};
    return used + 1;
}

static size_t compose(const struct mb__range *free, size_t count, const struct choice *choice,
                      struct mb__range *pieces)
{
    size_t used = 0;
    uint64_t left = choice->whole + (choice->split ? choice->y : 0);

    if (choice->head != NONE)
        used = append(pieces, used, parts_of(&free[choice->head]).first - choice->x, choice->x);
    for (size_t i = 0; i < count && left; i++) {
        struct parts parts = parts_of(&free[i]);
        uint64_t take = parts.whole < left ? parts.whole : left;

        used = append(pieces, used, parts.first, take);
        left -= take;
    }
    if (choice->tail != NONE) {
        struct parts parts = parts_of(&free[choice->tail]);

        used = append(pieces, used, parts.first + parts.whole, choice->y);
    }
    return used;
}

static struct mb__plan make_plan(struct mb__range *free, size_t count, uint64_t bytes,
                                 struct mb__range *pieces, bool heads)
{
    struct mb__plan plan = {0};
    uint64_t whole_bytes = 0;
    size_t usable = 0;
    struct choice choice;
    struct tails tails;

    for (size_t i = 0; i < count; i++) {
        struct parts parts = parts_of(&free[i]);

        if (!parts.usable)
            continue;
        whole_bytes += parts.whole;
        free[usable++] = free[i];
    }
    sort_by_whole(free, usable, pieces); /* scratch until the pieces are known */
    tails = sort_tails(free, usable, (uint64_t *)(void *)pieces);
    choice = choose(free, &tails, usable, bytes, whole_bytes, heads);
    if (choice.cost == INT64_MAX) {
        plan.missing_bytes = missing(free, &tails, usable, bytes, whole_bytes, heads);
        return plan;
    }
    plan.cost = choice.cost;
    plan.count = compose(free, usable, &choice, pieces);
    return plan;
}

struct mb__plan mb__plan(struct mb__range *free, size_t count, uint64_t bytes,
                         struct mb__range *pieces)
{
    return make_plan(free, count, bytes, pieces, true);
}

struct mb__plan mb__plan_longer(struct mb__range *free, size_t count, uint64_t bytes,
                                struct mb__range *pieces)
{
    return make_plan(free, count, bytes, pieces, false);
}

/* Worth lost in [addr, end) by not being whole frames. */
static int64_t fragment_cost(uint64_t addr, uint64_t end)
{
    struct mb__range range = {addr, end - addr};
    struct parts parts = parts_of(&range);

    if (!parts.usable)
        return COST_INSIDE * (int64_t)range.bytes;
    return COST_EDGE * (int64_t)(parts.head + parts.tail);
}

int64_t mb__place_cost(struct mb__range range, uint64_t bytes, uint64_t addr)
{
    uint64_t end = range.addr + range.bytes;

    return fragment_cost(range.addr, addr) + fragment_cost(addr + bytes, end) -
           fragment_cost(range.addr, end);
}

/* What a block will be worth as a hole. One that nearly fills a frame should lie in one: else it
 * leaves a head and a tail, of which a composed block can use one each. Smaller ones do not care:
 * kept out of the way of boundaries they would leave a gap in each frame. */
static int64_t hole_cost(uint64_t addr, uint64_t bytes)
{
    struct mb__range range = {addr, bytes};
    struct parts parts = parts_of(&range);
    uint64_t smaller = parts.head < parts.tail ? parts.head : parts.tail;

    if (bytes >= FRAME)
        return COST_EDGE * (int64_t)(parts.head + parts.tail);
    return bytes < MB__NEAR_FRAME ? 0 : COST_EDGE * (int64_t)smaller;
}

int64_t mb__place(struct mb__range range, uint64_t bytes, uint64_t *addr)
{
    uint64_t end = range.addr + range.bytes;
    uint64_t first = (range.addr + FRAME - 1) & ~(FRAME - 1), last = end & ~(FRAME - 1);
    uint64_t places[4] = {range.addr, end - bytes, first, last - bytes};
    int64_t best = INT64_MAX;

    for (unsigned i = 0; i < 4; i++) {
        int64_t cost;

        if (places[i] < range.addr || places[i] + bytes > end || places[i] + bytes < bytes)
            continue;
        cost = mb__place_cost(range, bytes, places[i]) + hole_cost(places[i], bytes);
        if (cost < best) {
            best = cost;
            *addr = places[i];
        }
    }
    return best;
}
