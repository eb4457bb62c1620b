/* SPDX-License-Identifier: MIT */
/*
 * random.c - thousands of random maps, remaps, aliases, unmaps and protects on several streams at
 * once, each looked at through the window and through the driver's own mapping of the same frames.
 *
 * After each batch, in stream order and without a host wait:
 *   1. every frame concerned gets a value of its own, written through its home;
 *   2. the window's slots are read: each must show the value of the frame mapped there, or the
 *   poison; 3. writable slots are written through the window;
 *   4. the homes are read: each must show what came through the window.
 * Slots and frames are divided among the streams, so expectations follow from each stream's order
 * alone.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { LOOK = 96, DEPTH = 32, NONE = -1 };

#define POISON_WORD 0xdead0000beefull

/* One batch in flight: what was asked and what must come back. */
struct look {
    struct gt_words slot, home_in, value, seen, rw_slot, rw_value, home_out;
    uint64_t want_seen[LOOK], want_home[LOOK];
    uint32_t count, writable;
    uint64_t op;
    bool used;
};

struct lane {
    struct mb_hw_stream *stream;
    uint32_t first_slot, slots, first_frame, frames;
    int32_t *cur; /* frame at each slot of the lane, or NONE */
    bool *ro;
    struct look look[DEPTH];
    unsigned next;
};

static uint64_t wrong, looks, tables, kinds[5];

static void settle(struct gt *t, struct lane *l, struct look *k)
{
    if (!k->used)
        return;
    gt_sync(t, l->stream);
    for (uint32_t i = 0; i < k->count; i++) {
        bool bad = k->seen.host[i] != k->want_seen[i] ||
                   (k->want_home[i] && k->home_out.host[i] != k->want_home[i]);

        looks++;
        if (bad && wrong++ < 10)
            printf("wrong: op %" PRIu64 " look %u: window %" PRIx64 " want %" PRIx64
                   ", home %" PRIx64 " want %" PRIx64 "\n",
                   k->op, i, k->seen.host[i], k->want_seen[i], k->home_out.host[i],
                   k->want_home[i]);
    }
    k->used = false;
}

/* Does a writable slot among those looked at show the frame? */
static bool written_through(const struct lane *l, const uint32_t *slots, uint32_t n, int32_t frame)
{
    for (uint32_t i = 0; i < n; i++) {
        if (l->cur[slots[i]] == frame && !l->ro[slots[i]])
            return true;
    }
    return false;
}

static void look_at(struct gt *t, struct lane *l, struct look *k, const uint32_t *slots, uint32_t n,
                    uint64_t op, bool cleared_readable)
{
    uint32_t m = 0;

    k->op = op;
    k->count = k->writable = 0;
    for (uint32_t i = 0; i < n; i++) {
        int32_t f = l->cur[slots[i]];
        uint64_t v = op << 24 | (uint32_t)f;

        if (f == NONE && !cleared_readable)
            continue;
        k->slot.host[m] = gt_slot_va(t, l->first_slot + slots[i]);
        k->home_in.host[m] = f == NONE ? t->dev->control_va : t->home[f];
        k->value.host[m] = f == NONE ? POISON_WORD : v;
        k->want_seen[m] = k->value.host[m];
        k->want_home[m] = f == NONE                         ? POISON_WORD
                          : written_through(l, slots, n, f) ? v | 1u << 23
                                                            : v;
        if (f != NONE && !l->ro[slots[i]]) {
            k->rw_slot.host[k->writable] = k->slot.host[m];
            k->rw_value.host[k->writable++] = v | 1u << 23;
        }
        m++;
    }
    if (!m)
        return;
    k->count = m;
    k->used = true;
    gt_poke(t, l->stream, k->home_in, m, k->value);
    gt_peek(t, l->stream, k->slot, m, k->seen);
    if (k->writable)
        gt_poke(t, l->stream, k->rw_slot, k->writable, k->rw_value);
    gt_peek(t, l->stream, k->home_in, m, k->home_out);
}

/* Changes cur/ro of a run and submits the batch. */
static void change(struct gt *t, struct lane *l, struct mb_rng *rng, uint32_t at, uint32_t n,
                   mb_pfn *pfns)
{
    unsigned kind = (unsigned)mb__rng_below(rng, 8);
    bool ro = false, same = false;
    /* A batch of one command, or of many, as that of many sequences. */
    uint32_t few = 0, part = mb__rng_below(rng, 4) ? n : 1 + (uint32_t)mb__rng_below(rng, 4);

    if (kind == 7 || kind == 6) { /* protect: needs a mapped run */
        while (n && l->cur[at + n - 1] == NONE)
            n--;
        for (uint32_t i = 0; i < n; i++)
            same |= l->cur[at + i] == NONE;
        same = n && !same;
        ro = mb__rng_below(rng, 2) != 0;
        kind = same ? 4 : 0;
        n = n ? n : 1;
    }
    if (kind == 5) { /* unmap */
        for (uint32_t i = 0; i < n; i++)
            l->cur[at + i] = NONE;
        kinds[3]++;
        gt_map_in(t, l->stream, l->first_slot + at, n, NULL, 0, true, part);
        return;
    }
    if (kind == 3) /* alias: few frames at many slots */
        few = 1 + (uint32_t)mb__rng_below(rng, 3);
    kinds[same ? 4 : few ? 2 : l->cur[at] == NONE ? 0 : 1]++;
    for (uint32_t i = 0; i < n; i++) {
        if (!same)
            l->cur[at + i] = (int32_t)(l->first_frame + mb__rng_below(rng, few ? few : l->frames));
        l->ro[at + i] = ro;
        pfns[i] = t->pfn[l->cur[at + i]];
    }
    gt_map_in(t, l->stream, l->first_slot + at, n, pfns, ro ? t->tmpl_ro : t->tmpl_rw, true, part);
}

static void step(struct gt *t, struct lane *l, struct mb_rng *rng, uint64_t op, mb_pfn *pfns)
{
    struct look *k = &l->look[l->next++ % DEPTH];
    uint32_t most = mb__rng_below(rng, 10) ? 48 : l->slots;
    uint32_t n = 1 + (uint32_t)mb__rng_below(rng, most);
    uint32_t at = (uint32_t)mb__rng_below(rng, l->slots - n + 1);
    uint32_t slots[LOOK], count = 0;

    settle(t, l, k);
    change(t, l, rng, at, n, pfns);
    for (uint32_t i = 0; i < n && count < LOOK - 16; i++)
        slots[count++] = n <= LOOK - 16 ? at + i : at + (uint32_t)mb__rng_below(rng, n);
    while (count < LOOK)
        slots[count++] = (uint32_t)mb__rng_below(rng, l->slots);
    /* Cleared slots can be read where they show the poison frame in stream order: isolated batches
     * that fill cleared slots may run before earlier work of their stream, which has no business
     * there. */
    look_at(t, l, k, slots, count, op, t->dev->tables == MB_CUDA_INLINE);
}

/* Everything settled: the tables themselves must hold what the lanes expect. */
static void check_tables(struct gt *t, struct lane *lanes, unsigned count)
{
    struct mb_pte *pte = calloc(t->slots, sizeof(*pte));

    for (unsigned i = 0; i < count; i++)
        gt_sync(t, lanes[i].stream);
    GT_OK(t->hw->ops->read_slots(t->hw, &t->view, 0, t->slots, pte));
    for (unsigned i = 0; i < count; i++) {
        struct lane *l = &lanes[i];

        for (uint32_t s = 0; s < l->slots; s++) {
            bool none = l->cur[s] == NONE;
            struct mb_pte want = {0, 0};

            if (!none || !mb__pfn_eq(t->view.clear_pfn, MB_NO_PFN))
                want =
                    mb__cuda_expect(&t->dev->space, none || !l->ro[s],
                                    mb__phys_of_pfn(none ? t->view.clear_pfn : t->pfn[l->cur[s]]));
            if (pte[l->first_slot + s].lo != want.lo || pte[l->first_slot + s].hi)
                GT_FAIL("slot %u holds %016" PRIx64 ", must hold %016" PRIx64, l->first_slot + s,
                        pte[l->first_slot + s].lo, want.lo);
        }
    }
    free(pte);
    tables++;
}

static void init_lane(struct gt *t, struct lane *l, unsigned i, unsigned lanes)
{
    memset(l, 0, sizeof(*l));
    l->stream = gt_stream(t);
    l->slots = t->slots / lanes;
    l->frames = t->frames / lanes;
    l->first_slot = i * l->slots;
    l->first_frame = i * l->frames;
    l->cur = malloc(sizeof(*l->cur) * l->slots);
    l->ro = calloc(l->slots, sizeof(*l->ro));
    for (uint32_t s = 0; s < l->slots; s++)
        l->cur[s] = NONE;
    for (unsigned d = 0; d < DEPTH; d++) {
        struct gt_words *w[] = {&l->look[d].slot,    &l->look[d].home_in, &l->look[d].value,
                                &l->look[d].seen,    &l->look[d].rw_slot, &l->look[d].rw_value,
                                &l->look[d].home_out};

        for (unsigned j = 0; j < sizeof(w) / sizeof(w[0]); j++)
            *w[j] = gt_words(t, LOOK);
    }
}

int gt_test_random(void)
{
    uint64_t ops = gt_arg_u64("ops", 10000), seed = gt_arg_u64("seed", 0);
    unsigned lanes = (unsigned)gt_arg_u64("streams", 4);
    struct lane *lane = calloc(lanes, sizeof(*lane));
    struct mb_rng rng;
    mb_pfn *pfns;
    struct gt t;
    double t0;

    if (!seed)
        seed = (uint64_t)gt_now_us();
    printf("seed %" PRIu64 "\n", seed);
    mb__rng_seed(&rng, seed);
    gt_open(&t, gt_arg("tables", "inline"));
    gt_pool(&t, gt_arg_u64("slab_mb", 64) << 20, (unsigned)gt_arg_u64("slabs", 16));
    gt_window(&t, (unsigned)gt_arg_u64("pieces", 4));
    pfns = calloc(t.slots, sizeof(*pfns));
    for (unsigned i = 0; i < lanes; i++)
        init_lane(&t, &lane[i], i, lanes);
    t0 = gt_now_us();
    for (uint64_t op = 1; op <= ops; op++) {
        step(&t, &lane[mb__rng_below(&rng, lanes)], &rng, op, pfns);
        if (op % 500 == 0)
            check_tables(&t, lane, lanes);
    }
    for (unsigned i = 0; i < lanes; i++) {
        for (unsigned d = 0; d < DEPTH; d++)
            settle(&t, &lane[i], &lane[i].look[d]);
    }
    printf("RESULT random tables %s ops %" PRIu64 " map %" PRIu64 " remap %" PRIu64
           " alias %" PRIu64 " unmap %" PRIu64 " protect %" PRIu64 " looks %" PRIu64
           " tables checked %" PRIu64 " wrong %" PRIu64 " seconds %.2f\n",
           t.hw->caps.tables, ops, kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], looks, tables,
           wrong, (gt_now_us() - t0) / 1e6);
    for (unsigned i = 0; i < lanes; i++)
        gt_unmap(&t, lane[i].stream, lane[i].first_slot, lane[i].slots);
    gt_close(&t);
    return wrong != 0;
}
