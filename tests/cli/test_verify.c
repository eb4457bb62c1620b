/* SPDX-License-Identifier: MIT */
/*
 * The verifier on the software GPU: every word that it wrote and somebody else overwrote is
 * counted, and what it promises to cover is covered.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/verify.h"
#include "test.h"

enum {
    PAGE = 2 << 20,
    EDGE = 64,
};

/* A device with one block under check. */
struct rig {
    mb_device dev;
    struct verifier verifier;
    struct verify_block block;
};

static uint64_t wrong_words(struct rig *rig)
{
    struct mb_stats stats;

    CHECK_OK(mb_device_sync(rig->dev));
    CHECK_OK(mb_stats_get(rig->dev, &stats));
    CHECK_EQ(stats.wrong_accesses, 0);
    return stats.wrong_words;
}

static void set_up(struct rig *rig, uint64_t bytes, enum verify_mode mode)
{
    void *ptr = NULL;

    memset(rig, 0, sizeof(*rig));
    CHECK_OK(mb_open(0, "backend:sim,device_memory:1GiB", &rig->dev));
    CHECK_OK(mb_malloc(rig->dev, bytes, &ptr));
    verifier_init(&rig->verifier, rig->dev, mode, mb_test_seed());
    rig->block = (struct verify_block){.va = (uint64_t)(uintptr_t)ptr, .bytes = bytes};
    CHECK_OK(verifier_add(&rig->verifier, 0, &rig->block));
    CHECK_OK(verifier_read(&rig->verifier, &rig->block));
    CHECK_EQ(wrong_words(rig), 0);
}

static void tear_down(struct rig *rig)
{
    verifier_remove(&rig->verifier, 0);
    verifier_fini(&rig->verifier);
    CHECK_OK(mb_free(rig->dev, (void *)(uintptr_t)rig->block.va));
    mb_close(rig->dev);
}

/* Overwrites a part of the block; how many words the next full read finds wrong. */
static uint64_t found_after_damage(struct rig *rig, uint64_t offset, uint64_t bytes)
{
    uint64_t before = wrong_words(rig);
    uint64_t found;

    CHECK_OK(
        mb_fill_async(rig->dev, (void *)(uintptr_t)(rig->block.va + offset), bytes, 0xbad, NULL));
    CHECK_OK(verifier_read(&rig->verifier, &rig->block));
    found = wrong_words(rig) - before;
    CHECK_OK(verifier_write(&rig->verifier, &rig->block));
    CHECK_OK(verifier_read(&rig->verifier, &rig->block));
    CHECK_EQ(wrong_words(rig), before + found);
    return found;
}

TEST(edges_of_blocks_of_all_sizes)
{
    static const uint64_t sizes[] = {
        8,       9,    15,       16,   64,       72,         128,           136,
        1000,    4096, PAGE - 8, PAGE, PAGE + 8, PAGE + 512, 3 * PAGE - 40, 5 * PAGE + 24,
        40 << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t end = sizes[i] & ~(uint64_t)7;
        uint64_t edge = end < EDGE ? end : EDGE;
        struct rig rig;

        set_up(&rig, sizes[i], VERIFY_EDGES);
        CHECK_EQ(found_after_damage(&rig, 0, edge), edge / 8);
        CHECK_EQ(found_after_damage(&rig, end - edge, edge), edge / 8);
        CHECK_EQ(found_after_damage(&rig, 0, 8), 1);
        CHECK_EQ(found_after_damage(&rig, end - 8, 8), 1);
        tear_down(&rig);
    }
}

TEST(every_frame_between_the_edges_has_a_word)
{
    struct rig rig;
    uint64_t first;
    unsigned frames = 0;

    set_up(&rig, 9 * (uint64_t)PAGE + 4096, VERIFY_EDGES);
    first = (rig.block.va + PAGE - 1) / PAGE * PAGE - rig.block.va;
    for (uint64_t at = first; at + PAGE <= rig.block.bytes; at += PAGE) {
        uint64_t begin = at ? at : EDGE; /* a frame that the head edge is in is covered by it */

        if (at)
            CHECK(found_after_damage(&rig, begin, at + PAGE - begin) >= 1);
        frames++;
    }
    CHECK(frames >= 8);
    tear_down(&rig);
}

TEST(full_covers_every_word)
{
    struct rig rig;
    uint64_t state = mb_test_seed() + 7;
    uint64_t bytes = 3 * (uint64_t)PAGE + 1000;

    set_up(&rig, bytes, VERIFY_FULL);
    for (unsigned i = 0; i < 20; i++)
        CHECK_EQ(found_after_damage(&rig, mb_test_random_below(&state, bytes / 8) * 8, 8), 1);
    tear_down(&rig);
}

TEST(blocks_below_a_word_are_counted)
{
    struct rig rig;

    set_up(&rig, 7, VERIFY_EDGES);
    CHECK_EQ(rig.verifier.blocks_unchecked, 1);
    CHECK_EQ(rig.verifier.writes, 0);
    tear_down(&rig);
    set_up(&rig, 0, VERIFY_FULL);
    CHECK_EQ(rig.verifier.blocks_unchecked, 1);
    tear_down(&rig);
}

/* Three blocks in a row of addresses, the outer ones damaged on the sides that face the middle
 * one. */
TEST(neighbours_are_read_where_they_touch)
{
    struct verify_block blocks[3];
    struct rig rig;
    void *area = NULL;

    memset(&rig, 0, sizeof(rig));
    CHECK_OK(mb_open(0, "backend:sim,device_memory:1GiB", &rig.dev));
    CHECK_OK(mb_malloc(rig.dev, 3 * (uint64_t)4096, &area));
    verifier_init(&rig.verifier, rig.dev, VERIFY_EDGES, 1);
    for (uint32_t i = 0; i < 3; i++) {
        blocks[i] =
            (struct verify_block){.va = (uint64_t)(uintptr_t)area + i * 4096, .bytes = 4096};
        CHECK_OK(verifier_add(&rig.verifier, i, &blocks[i]));
    }
    CHECK_OK(verifier_read_neighbours(&rig.verifier, 1, blocks));
    CHECK_EQ(wrong_words(&rig), 0);
    CHECK_OK(mb_fill_async(rig.dev, (char *)area + 4096 - 8, 8, 0xbad, NULL));
    CHECK_OK(verifier_read_neighbours(&rig.verifier, 1, blocks));
    CHECK_EQ(wrong_words(&rig), 1);
    CHECK_OK(mb_fill_async(rig.dev, (char *)area + 8192, 16, 0xbad, NULL));
    CHECK_OK(verifier_read_neighbours(&rig.verifier, 1, blocks));
    CHECK_EQ(wrong_words(&rig), 1 + 3);
    for (uint32_t i = 0; i < 3; i++)
        verifier_remove(&rig.verifier, i);
    verifier_fini(&rig.verifier);
    CHECK_OK(mb_free(rig.dev, area));
    mb_close(rig.dev);
}
