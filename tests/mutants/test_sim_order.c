/* SPDX-License-Identifier: MIT */
/* Steps that keep streams, frames and queues in order, removed one at a time. */
#include "sim_mutant.h"

#include <string.h>

static const struct mb_hw_config h200 = {0};

/* ------------------------------------------------------------ frame reused before its fence */

static void reuse_frame(struct sim_rig *rig, bool broken)
{
    struct mb_hw_fence fence;

    rig_map(rig, 0, 0, 1, 0, RIG_INVALIDATE);
    CHECK_OK(mb__sim_delay(rig->dev, rig->stream[0], 50000));
    for (unsigned i = 0; i < 4; i++) {
        rig_fill(rig, 0, 0, MB_FRAME_BYTES, 1);
        rig_verify(rig, 0, 0, MB_FRAME_BYTES, 1);
    }
    fence = rig_fence(rig, 0);
    /* Freed in stream 0's order; stream 1 takes the frame at another address. */
    if (!broken)
        rig_wait(rig, 1, fence);
    rig_map(rig, 1, 32, 1, 0, RIG_INVALIDATE);
    for (unsigned i = 0; i < 4; i++) {
        rig_fill(rig, 1, 32, MB_FRAME_BYTES, 2);
        rig_verify(rig, 1, 32, MB_FRAME_BYTES, 2);
    }
}

static struct sim_verdict frame_reuse(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    reuse_frame(&rig, broken);
    return rig_verdict(&rig);
}

TEST(frame_reused_before_its_fence)
{
    check_mutant(frame_reuse, &h200, 1);
}

/* The race check needs no luck: it sees the missing order under every schedule. */
TEST(frame_reuse_is_a_race_under_every_seed)
{
    for (unsigned broken = 0; broken < 2; broken++) {
        for (unsigned i = 0; i < 20; i++) {
            struct sim_rig rig;
            char text[256];

            rig_open(&rig, &(struct mb_hw_config){.explore = true, .seed = mb_test_seed() + i});
            CHECK_OK(mb__sim_race_check(rig.dev, true));
            reuse_frame(&rig, broken);
            CHECK_OK(rig_sync(&rig));
            CHECK_EQ(rig_sim(&rig).races != 0, broken);
            mb__sim_first_race(rig.dev, text, sizeof(text));
            CHECK_EQ(strstr(text, "no fence orders") != NULL, broken);
            rig_close(&rig);
        }
    }
}

/* The device passes fences too early. */
static struct sim_verdict early_fence(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    if (broken)
        mb__sim_set_mutants(rig.dev, MB_SIM_EARLY_FENCE);
    reuse_frame(&rig, false);
    return rig_verdict(&rig);
}

TEST(fence_signalled_early)
{
    check_mutant(early_fence, &h200, 1);
}

/* ------------------------------------------------------------ membar after the invalidate */

/*
 * A kernel on stream 1 stores to slot 0 and goes on running. Stream 0 takes the frame away and
 * gives it to slot 32. The store was translated in time; only the membar says that it has arrived.
 */
static struct sim_verdict rogue_store_on(const struct mb_hw_config *config, unsigned mutants,
                                         bool broken)
{
    struct sim_rig rig;
    struct mb_sim_step steps[3] = {
        {.kind = MB_SIM_ST, .value = 0x5e1f},
        {.kind = MB_SIM_SEM_SET, .sem = 1, .value = 1},
        {.kind = MB_SIM_SEM_WAIT, .sem = 2, .value = 1},
    };

    rig_open(&rig, config);
    mb__sim_set_mutants(rig.dev, mutants);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    CHECK_OK(rig_sync(&rig));
    steps[0].va = rig_va(&rig, 0);
    CHECK_OK(mb__sim_kernel(rig.dev, rig.stream[1], steps, 3, 0));
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[0], 1, 1));
    rig_unmap(&rig, 0, 0, 1, RIG_INVALIDATE | (broken ? 0 : RIG_MEMBAR));
    rig_map(&rig, 0, 32, 1, 0, RIG_INVALIDATE);
    rig_fill(&rig, 0, 32, 64, 7);
    CHECK_OK(mb__sim_sem_set(rig.dev, rig.stream[0], 2, 1));
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[0], 10000));
    rig_verify(&rig, 0, 32, 64, 7);
    return rig_verdict(&rig);
}

static struct sim_verdict rogue_store(const struct mb_hw_config *config, bool broken)
{
    return rogue_store_on(config, 0, broken);
}

TEST(membar_after_the_invalidate_missing)
{
    check_mutant(rogue_store, &h200, 1);
}

/* The device itself drops the command. */
static struct sim_verdict deaf_membar(const struct mb_hw_config *config, bool broken)
{
    return rogue_store_on(config, broken ? MB_SIM_NO_MEMBAR : 0, false);
}

TEST(membar_without_effect)
{
    check_mutant(deaf_membar, &h200, 1);
}

/* ------------------------------------------------------------ one queue for two streams */

/*
 * Stream 0 waits for a word that stream 1 writes, then maps; stream 1 maps, then writes the word.
 * With a queue for each stream that is fine. With one queue, stream 0's map stands in front of
 * stream 1's and waits for stream 0.
 */
static struct sim_verdict shared_queue(const struct mb_hw_config *config, bool broken)
{
    struct sim_rig rig;

    rig_open(&rig, config);
    if (broken)
        mb__sim_set_mutants(rig.dev, MB_SIM_SHARED_QUEUE);
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[0], 5, 1));
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_map(&rig, 1, 32, 1, 1, RIG_INVALIDATE);
    rig_touch(&rig, 1, 32);
    CHECK_OK(mb__sim_sem_set(rig.dev, rig.stream[1], 5, 1));
    rig_touch(&rig, 0, 0);
    return rig_verdict(&rig);
}

TEST(one_queue_shared_by_two_streams)
{
    struct mb_hw_config isolated = {.tables = "isolated"};
    struct sim_verdict verdict;

    check_mutant(shared_queue, &isolated, MUTANT_SEEDS);
    verdict = shared_queue(&isolated, true);
    CHECK_EQ(verdict.err, MB_ERR_DEADLOCK);
    CHECK(strstr(mb_error_detail(), "stream 0 waits for semaphore 5 >= 1") != NULL);
    CHECK(strstr(mb_error_detail(), "helper queue of stream 0 waits for ticket") != NULL);
}
