/* SPDX-License-Identifier: MIT */
/* Rules on what accesses see after a map, a remap, an alias, an unmap. */
#include "contract.h"

#include <string.h>

enum { MANY = 200 };

void contract_scattered_frames_map(struct contract *c)
{
    struct contract_window *w = contract_window(c, MANY);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[MANY];

    contract_frames(c, pfns, MANY);
    contract_map(c, s, w, 0, MANY, pfns);
    /* One long range over all frames, read in one go and frame by frame. */
    contract_fill(c, s, w, 0, MANY * MB_FRAME_BYTES, 7);
    contract_verify(c, s, w, 0, MANY * MB_FRAME_BYTES, 7);
    for (uint32_t i = 0; i < MANY; i++)
        contract_fill(c, s, w, i, MB_FRAME_BYTES, 1000 + i);
    for (uint32_t i = 0; i < MANY; i++)
        contract_verify(c, s, w, i, MB_FRAME_BYTES, 1000 + i);
    contract_sync(c);
    contract_expect_slots(c, w, 0, MANY, pfns, true);
}

enum {
    RUNS = 400,   /* with their frames more than any backend sends to a device at once */
    RUN = 6,      /* slots of one; the one behind it stays clear */
    SHOWN = 64,   /* frames, each at many addresses */
    SAMPLE = 800, /* bytes that are looked at */
};

void contract_a_batch_of_many_runs_shows_all_of_them(struct contract *c)
{
    struct contract_window *w = contract_window(c, RUNS * (RUN + 1)),
                           *own = contract_window(c, SHOWN);
    struct mb_hw_stream *s = contract_stream(c);
    struct mb_hw_cmd cmds[RUNS + 3];
    mb_pfn pfns[SHOWN], shown[RUNS][RUN];

    contract_frames(c, pfns, SHOWN);
    contract_map(c, s, own, 0, SHOWN, pfns);
    for (uint32_t i = 0; i < SHOWN; i++)
        contract_fill(c, s, own, i, SAMPLE, i);
    for (uint32_t r = 0; r < RUNS; r++) {
        for (uint32_t i = 0; i < RUN; i++)
            shown[r][i] = pfns[(r + i * 7) % SHOWN];
        cmds[r] = contract_leaves(c, w, r * (RUN + 1), RUN, shown[r], true);
        contract_intend(c, w, r * (RUN + 1), RUN, shown[r]);
    }
    cmds[RUNS] = contract_cmd(MB_HW_BARRIER);
    cmds[RUNS + 1] = contract_invalidate(w, 0, RUNS * (RUN + 1));
    cmds[RUNS + 2] = contract_cmd(MB_HW_MEMBAR);
    CHECK_OK(c->hw->submit(c->dev, s, cmds, RUNS + 3));
    for (uint32_t r = 0; r < RUNS; r++) { /* each run at one of its slots */
        uint32_t i = r % RUN;

        contract_verify(c, s, w, r * (RUN + 1) + i, SAMPLE, (r + i * 7) % SHOWN);
    }
    contract_sync(c);
    for (uint32_t r = 0; r < RUNS; r += 9) {
        contract_expect_slots(c, w, r * (RUN + 1), RUN, shown[r], true);
        contract_expect_slots(c, w, r * (RUN + 1) + RUN, 1, NULL, true);
    }
}

void contract_verify_counts_every_wrong_word(struct contract *c)
{
    struct contract_window *w = contract_window(c, 2);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[2];

    contract_frames(c, pfns, 2);
    contract_map(c, s, w, 0, 2, pfns);
    contract_fill(c, s, w, 0, 2 * MB_FRAME_BYTES, 7);
    contract_sync(c);
    /* Another seed: every word differs, since words are a bijection of seed and index. */
    contract_verify(c, s, w, 0, 800, 8);
    CHECK_OK(c->hw->device_sync(c->dev));
    CHECK_EQ(contract_counters(c).wrong_words, c->before.wrong_words + 100);
    /* Five words changed in the middle. */
    CHECK_OK(c->hw->fill(c->dev, s, mb__va_add(w->view.va, MB_FRAME_BYTES - 16), 40, 99));
    contract_verify(c, s, w, 0, 2 * MB_FRAME_BYTES, 7);
    CHECK_OK(c->hw->device_sync(c->dev));
    CHECK_EQ(contract_counters(c).wrong_words, c->before.wrong_words + 105);
    c->before.wrong_words += 105;
    contract_sync(c);
}

void contract_copies_go_through_mappings(struct contract *c)
{
    struct contract_window *w = contract_window(c, 16);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[16];

    contract_frames(c, pfns, 16);
    contract_map(c, s, w, 0, 16, pfns);
    contract_fill(c, s, w, 0, 8 * MB_FRAME_BYTES, 7);
    CHECK_OK(c->hw->copy(c->dev, s, contract_va(w, 8), contract_va(w, 0), 8 * MB_FRAME_BYTES));
    contract_verify(c, s, w, 8, 8 * MB_FRAME_BYTES, 7);
    /* A piece that begins and ends inside frames. */
    contract_fill(c, s, w, 8, 8 * MB_FRAME_BYTES, 8);
    CHECK_OK(c->hw->copy(c->dev, s, mb__va_add(w->view.va, 9 * MB_FRAME_BYTES + 8),
                         mb__va_add(w->view.va, 1 * MB_FRAME_BYTES + 24), 3 * MB_FRAME_BYTES));
    contract_fill(c, s, w, 0, 8 * MB_FRAME_BYTES, 9);
    CHECK_OK(c->hw->copy(c->dev, s, mb__va_add(w->view.va, 1 * MB_FRAME_BYTES + 24),
                         mb__va_add(w->view.va, 9 * MB_FRAME_BYTES + 8), 3 * MB_FRAME_BYTES));
    contract_fill(c, s, w, 0, MB_FRAME_BYTES + 24, 7);
    CHECK_OK(c->hw->copy(c->dev, s, contract_va(w, 8), contract_va(w, 0), 4 * MB_FRAME_BYTES + 24));
    contract_verify(c, s, w, 8, 4 * MB_FRAME_BYTES + 24, 7);
    contract_sync(c);
}

enum {
    LISTED = 400, /* more than one launch of any backend */
    GAP = 16,     /* bytes between what copies write */
};

/* Pieces of 8 bytes to 32 KiB from the front half of a window to its back half, with gaps. */
static void draw_list(struct contract *c, const struct contract_window *w, struct mb_copy *list)
{
    uint64_t from = contract_va(w, 0).addr, to = contract_va(w, 8).addr + GAP;

    for (unsigned i = 0; i < LISTED; i++) {
        uint64_t bytes = 8 * (1 + mb__rng_below(&c->rng, 4096));

        from += 8 * mb__rng_below(&c->rng, 2);
        to += 8 * mb__rng_below(&c->rng, 2);
        /* Half of them in units of 16 bytes where the addresses are. */
        if (i % 2 && bytes > 8)
            bytes &= ~(uint64_t)15;
        list[i] = (struct mb_copy){(void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes};
        from += bytes;
        to += bytes + GAP;
    }
    list[LISTED / 2].bytes = 0;
}

static void fill_at(struct contract *c, struct mb_hw_stream *s, const void *va, uint64_t bytes,
                    uint64_t seed)
{
    CHECK_OK(c->hw->fill(c->dev, s, mb__va((uintptr_t)va), bytes, seed));
}

static void verify_at(struct contract *c, struct mb_hw_stream *s, const void *va, uint64_t bytes,
                      uint64_t seed)
{
    CHECK_OK(c->hw->verify(c->dev, s, mb__va((uintptr_t)va), bytes, seed));
}

void contract_lists_of_copies_are_made_whole(struct contract *c)
{
    struct contract_window *w = contract_window(c, 16);
    struct mb_hw_stream *s = contract_stream(c);
    static const unsigned counts[] = {LISTED, 1, 17, 0};
    struct mb_copy list[LISTED], bad;
    mb_pfn pfns[16];

    contract_frames(c, pfns, 16);
    contract_map(c, s, w, 0, 16, pfns);
    draw_list(c, w, list);
    for (unsigned round = 0; round < 4; round++) {
        unsigned count = counts[round];

        for (unsigned i = 0; i < LISTED; i++) {
            fill_at(c, s, list[i].src, list[i].bytes, 1000 * round + i);
            fill_at(c, s, list[i].dst, list[i].bytes + GAP, 5000 + i);
        }
        CHECK_OK(c->hw->copy_list(c->dev, s, list, count));
        for (unsigned i = 0; i < LISTED; i++) {
            uint64_t bytes = list[i].bytes;

            verify_at(c, s, list[i].dst, bytes, i < count ? 1000 * round + i : 5000 + i);
            /* The words behind it, from the pattern's own start: fill the copied ones again. */
            fill_at(c, s, list[i].dst, bytes, 5000 + i);
            verify_at(c, s, list[i].dst, bytes + GAP, 5000 + i);
        }
    }
    /* Of no bytes, no address is looked at. */
    for (unsigned i = 0; i < 2; i++) {
        bad = (struct mb_copy){(char *)list[0].dst + i, (const char *)list[0].src + !i, 0};
        CHECK_OK(c->hw->copy_list(c->dev, s, &bad, 1));
    }
    /* The last one is wrong: none is made. */
    bad = list[LISTED - 1];
    list[LISTED - 1].bytes -= 4;
    CHECK_EQ(c->hw->copy_list(c->dev, s, list, LISTED), MB_ERR_INVALID);
    list[LISTED - 1] = bad;
    list[LISTED - 1].src = (const char *)bad.src + 4;
    CHECK_EQ(c->hw->copy_list(c->dev, s, list, LISTED), MB_ERR_INVALID);
    list[LISTED - 1] = bad;
    list[LISTED - 1].dst = (char *)bad.dst + 4;
    CHECK_EQ(c->hw->copy_list(c->dev, s, list, LISTED), MB_ERR_INVALID);
    list[LISTED - 1] = bad;
    for (unsigned i = 0; i < LISTED; i++)
        verify_at(c, s, list[i].dst, list[i].bytes + GAP, 5000 + i);
    contract_sync(c);
}

void contract_an_alias_shows_the_same_memory(struct contract *c)
{
    struct contract_window *a = contract_window(c, 64), *b = contract_window(c, 64);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[64];

    contract_frames(c, pfns, 32);
    /* In the second window in reverse, and each frame twice in the first one. */
    memcpy(pfns + 32, pfns, 32 * sizeof(pfns[0]));
    contract_map(c, s, a, 0, 64, pfns);
    for (uint32_t i = 0; i < 32; i++)
        contract_map(c, s, b, i, 1, &pfns[31 - i]);
    for (uint32_t round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < 32; i++)
            contract_fill(c, s, a, i, MB_FRAME_BYTES, round * 100 + i);
        for (uint32_t i = 0; i < 32; i++) {
            contract_verify(c, s, a, 32 + i, MB_FRAME_BYTES, round * 100 + i);
            contract_verify(c, s, b, 31 - i, MB_FRAME_BYTES, round * 100 + i);
        }
    }
    contract_sync(c);
}

void contract_a_remap_shows_the_new_frame(struct contract *c)
{
    enum { SLOTS = 48, FRAMES = 160, ROUNDS = 60 };
    struct contract_window *w = contract_window(c, SLOTS), *all = contract_window(c, FRAMES);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[FRAMES], shown[SLOTS];

    contract_frames(c, pfns, FRAMES);
    contract_map(c, s, all, 0, FRAMES, pfns);
    for (uint32_t i = 0; i < FRAMES; i++)
        contract_fill(c, s, all, i, MB_FRAME_BYTES, i);
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t first = (uint32_t)mb__rng_below(&c->rng, SLOTS);
        uint32_t count = 1 + (uint32_t)mb__rng_below(&c->rng, SLOTS - first);
        uint32_t chosen[SLOTS];

        if (round == 0) {
            first = 0;
            count = SLOTS;
        }
        for (uint32_t i = 0; i < count; i++) {
            chosen[i] = (uint32_t)mb__rng_below(&c->rng, FRAMES);
            shown[i] = pfns[chosen[i]];
        }
        contract_map(c, s, w, first, count, shown);
        /* No host wait in the whole loop: old translations are cached when the next remap comes. */
        for (uint32_t i = 0; i < count; i++)
            contract_verify(c, s, w, first + i, MB_FRAME_BYTES, chosen[i]);
    }
    contract_sync(c);
}

/*
 * A stream writes through slots while another one remaps them and then writes the old frames by
 * another address. Which stores of the first stream still go to the old frames is open; that none
 * of them lands there after the batch's MEMBAR is not.
 */
void contract_old_accesses_land_before_a_membar_ends(struct contract *c)
{
    enum { SLOTS = 24, ROUNDS = 40 };
    struct contract_window *w = contract_window(c, SLOTS), *old = contract_window(c, SLOTS);
    struct mb_hw_stream *writer = contract_stream(c), *mapper = contract_stream(c);
    mb_pfn pfns[2 * SLOTS];

    if (c->hw->intend && !c->config->hw.no_oracle) {
        contract_cannot(c, "old_accesses_land_before_a_membar_ends",
                        "the oracle does not allow a write that races with a remap");
        return;
    }
    if (c->dev->caps.host_blocking) {
        contract_cannot(c, "old_accesses_land_before_a_membar_ends",
                        "the driver unmaps before it maps: a write in between ends the context");
        return;
    }
    contract_frames(c, pfns, 2 * SLOTS);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        contract_map(c, c->setup, old, 0, SLOTS, pfns);
        contract_map(c, c->setup, w, 0, SLOTS, pfns);
        contract_sync(c);
        contract_fill(c, writer, w, 0, SLOTS * MB_FRAME_BYTES, 2 * round);
        contract_map(c, mapper, w, 0, SLOTS, pfns + SLOTS);
        contract_fill(c, mapper, old, 0, SLOTS * MB_FRAME_BYTES, 2 * round + 1);
        CHECK_OK(c->hw->device_sync(c->dev));
        contract_verify(c, c->setup, old, 0, SLOTS * MB_FRAME_BYTES, 2 * round + 1);
        contract_sync(c);
    }
}

/* Slots around a remapped one go on showing what they showed, cached or not. */
void contract_neighbours_of_a_remap_stay(struct contract *c)
{
    enum { SLOTS = 33 };
    struct contract_window *w = contract_window(c, SLOTS);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[SLOTS + 1], shown[SLOTS];
    uint32_t content[SLOTS], spare = SLOTS;

    contract_frames(c, pfns, SLOTS + 1);
    memcpy(shown, pfns, sizeof(shown));
    contract_map(c, s, w, 0, SLOTS, pfns);
    for (uint32_t i = 0; i < SLOTS; i++) {
        content[i] = i;
        contract_fill(c, s, w, i, MB_FRAME_BYTES, i);
    }
    for (uint32_t i = 0; i < SLOTS; i++) {
        mb_pfn freed = shown[i];

        shown[i] = pfns[spare];
        contract_map(c, s, w, i, 1, &shown[i]);
        content[i] = 1000 + i;
        contract_fill(c, s, w, i, MB_FRAME_BYTES, content[i]);
        for (uint32_t k = 0; k < SLOTS; k++)
            contract_verify(c, s, w, k, 512, content[k]);
        pfns[spare] = freed;
    }
    for (uint32_t k = 0; k < SLOTS; k++)
        contract_verify(c, s, w, k, MB_FRAME_BYTES, content[k]);
    contract_sync(c);
    contract_expect_slots(c, w, 0, SLOTS, shown, true);
}

void contract_unmapping_clears(struct contract *c)
{
    enum { SLOTS = 40 };
    struct contract_window *w = contract_window(c, SLOTS);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[SLOTS];

    contract_frames(c, pfns, SLOTS);
    contract_expect_slots(c, w, 0, SLOTS, NULL, true);
    contract_map(c, s, w, 0, SLOTS, pfns);
    contract_fill(c, s, w, 0, SLOTS * MB_FRAME_BYTES, 3);
    contract_map(c, s, w, 5, 20, NULL);
    contract_expect_slots(c, w, 0, 5, pfns, true);
    contract_expect_slots(c, w, 5, 20, NULL, true);
    contract_expect_slots(c, w, 25, SLOTS - 25, pfns + 25, true);
    /* Mapped again elsewhere, the frames hold what they held. */
    contract_map(c, s, w, 5, 20, pfns + 5);
    contract_verify(c, s, w, 0, SLOTS * MB_FRAME_BYTES, 3);
    contract_sync(c);
}

static void one_large_batch(struct contract *c, struct contract_window *w, const mb_pfn *frames,
                            uint32_t frame_count, uint32_t slots)
{
    struct mb_hw_stream *s = c->setup;
    uint32_t *chosen = calloc(slots, sizeof(*chosen));
    mb_pfn *list = calloc(slots, sizeof(*list)), *copy = calloc(slots, sizeof(*copy));

    CHECK(chosen && list && copy);
    for (uint32_t i = 0; i < slots; i++) {
        chosen[i] = (uint32_t)mb__rng_below(&c->rng, frame_count);
        list[i] = copy[i] = frames[chosen[i]];
    }
    contract_map(c, s, w, 0, slots, list);
    /* The list is the backend's business only until submit returns. */
    memset(list, 0xee, slots * sizeof(*list));
    for (uint32_t i = 0; i < slots; i++)
        contract_verify(c, s, w, i, 64, chosen[i]);
    contract_sync(c);
    contract_expect_slots(c, w, 0, slots, copy, true);
    free(chosen);
    free(list);
    free(copy);
}

void contract_large_batches(struct contract *c)
{
    enum { FRAMES = 256 };
    struct contract_window *w = contract_window(c, 8192), *all = contract_window(c, FRAMES);
    mb_pfn pfns[FRAMES];

    contract_frames(c, pfns, FRAMES);
    contract_map(c, c->setup, all, 0, FRAMES, pfns);
    for (uint32_t i = 0; i < FRAMES; i++)
        contract_fill(c, c->setup, all, i, 64, i);
    for (int round = 0; round < 3; round++)
        one_large_batch(c, w, pfns, FRAMES, 1024);
    one_large_batch(c, w, pfns, FRAMES, 8192);
}

/* Several ranges of several windows, a clear and one invalidate of everything in one batch. */
void contract_one_batch_many_commands(struct contract *c)
{
    enum { SLOTS = 32 };
    struct contract_window *a = contract_window(c, SLOTS), *b = contract_window(c, SLOTS);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[SLOTS], twisted[SLOTS];
    struct mb_hw_cmd cmds[SLOTS + 4];
    unsigned n = 0;

    contract_frames(c, pfns, SLOTS);
    contract_map(c, s, a, 0, SLOTS, pfns);
    for (uint32_t i = 0; i < SLOTS; i++)
        contract_fill(c, s, a, i, MB_FRAME_BYTES, i);
    for (uint32_t i = 0; i < SLOTS; i++) {
        twisted[i] = pfns[SLOTS - 1 - i];
        cmds[n++] = contract_leaves(c, b, i, 1, &twisted[i], true);
    }
    cmds[n++] = contract_leaves(c, a, 0, SLOTS, NULL, true);
    cmds[n++] = contract_cmd(MB_HW_BARRIER);
    cmds[n++] = contract_cmd(MB_HW_INVALIDATE); /* bytes 0: everything */
    cmds[n++] = contract_cmd(MB_HW_MEMBAR);
    contract_intend(c, b, 0, SLOTS, twisted);
    contract_intend(c, a, 0, SLOTS, NULL);
    CHECK_OK(c->hw->submit(c->dev, s, cmds, n));
    for (uint32_t i = 0; i < SLOTS; i++)
        contract_verify(c, s, b, i, MB_FRAME_BYTES, SLOTS - 1 - i);
    contract_sync(c);
    contract_expect_slots(c, a, 0, SLOTS, NULL, true);
    contract_expect_slots(c, b, 0, SLOTS, twisted, true);
}

static void map_small(struct contract *c, unsigned leaf_shift)
{
    enum { FRAMES = 3, MAX_LEAVES = FRAMES * MB_FRAME_PFNS };
    struct contract_window *w = contract_small_window(c, leaf_shift, FRAMES);
    uint32_t leaf_bytes = 1u << leaf_shift, per_frame = 1u << (MB_FRAME_SHIFT - leaf_shift);
    static mb_pfn list[MAX_LEAVES];
    mb_pfn frames[FRAMES];

    contract_frames(c, frames, FRAMES);
    for (uint32_t i = 0; i < w->slots; i++)
        list[i].n = frames[i / per_frame].n + (i % per_frame << (leaf_shift - MB_PFN_SHIFT));
    for (uint32_t i = w->slots; i > 1; i--) {
        uint32_t k = (uint32_t)mb__rng_below(&c->rng, i);
        mb_pfn t = list[i - 1];

        list[i - 1] = list[k];
        list[k] = t;
    }
    contract_map(c, c->setup, w, 0, w->slots, list);
    contract_fill(c, c->setup, w, 0, w->slots * leaf_bytes, 5);
    contract_verify(c, c->setup, w, 0, w->slots * leaf_bytes, 5);
    for (uint32_t i = 0; i < w->slots; i++)
        contract_fill(c, c->setup, w, i, leaf_bytes, 1000 + i);
    /* Two leaves change places. */
    mb_pfn t = list[1];
    list[1] = list[w->slots - 1];
    list[w->slots - 1] = t;
    contract_map(c, c->setup, w, 1, 1, &list[1]);
    contract_map(c, c->setup, w, w->slots - 1, 1, &list[w->slots - 1]);
    for (uint32_t i = 0; i < w->slots; i++) {
        uint32_t was = i == 1 ? w->slots - 1 : i == w->slots - 1 ? 1 : i;

        contract_verify(c, c->setup, w, i, leaf_bytes, 1000 + was);
    }
    contract_sync(c);
    contract_expect_slots(c, w, 0, w->slots, list, true);
}

void contract_small_leaves(struct contract *c)
{
    if (!c->caps->tree_is_ours) {
        contract_cannot(c, "small_leaves", "the backend keeps its own tree, with 2 MiB leaves");
        return;
    }
    for (unsigned shift = 12; shift <= 16; shift += 4) {
        if (!(c->caps->leaf_sizes >> shift & 1))
            continue;
        /* On GFX9 a 64 KiB leaf is 16 entries of 4 KiB: not a slot of its own. */
        if (shift == 16 && !c->geometry.leaf_64k.entry_bytes)
            continue;
        map_small(c, shift);
    }
}

/* Ranges and their tables are made and dropped while others stay in use. */
void contract_windows_come_and_go(struct contract *c)
{
    enum { LIVE = 4, SLOTS = 20 };
    struct contract_window *w[LIVE] = {NULL};
    mb_pfn pfns[LIVE][SLOTS];

    for (unsigned i = 0; i < LIVE; i++)
        contract_frames(c, pfns[i], SLOTS);
    for (unsigned step = 0; step < 24; step++) {
        unsigned i = (unsigned)mb__rng_below(&c->rng, LIVE);

        if (w[i]) {
            contract_drop_window(c, w[i]);
            w[i] = NULL;
        } else {
            w[i] = contract_window(c, SLOTS);
            contract_map(c, c->setup, w[i], 0, SLOTS, pfns[i]);
            contract_fill(c, c->setup, w[i], 0, SLOTS * MB_FRAME_BYTES, i);
        }
        for (unsigned k = 0; k < LIVE; k++)
            if (w[k])
                contract_verify(c, c->setup, w[k], 0, SLOTS * MB_FRAME_BYTES, k);
        contract_sync(c);
    }
}
