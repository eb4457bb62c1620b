/* SPDX-License-Identifier: MIT */
/* The oracle: what is expected, what counts as wrong, what is told about it. */
#include "test.h"

#include "support/sim_rig.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

TEST(the_first_wrong_access_is_told_in_full)
{
    struct sim_rig rig;
    struct mb_sim_wrong wrong[2];
    char text[256], want[256];

    rig_open(&rig, NULL);
    mb__sim_first_wrong(rig.dev, text, sizeof(text));
    CHECK_STR_EQ(text, "");
    rig_map(&rig, 0, 0, 16, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 5, 1, 40, 0);
    CHECK_OK(rig.ops->fill(rig.dev, rig.stream[0], mb__va_add(rig_va(&rig, 5), 8192), 64, 1));
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_wrongs(rig.dev, wrong, 2), 1);
    CHECK_EQ(wrong[0].va.addr, rig_va(&rig, 5).addr + 8192);
    CHECK_EQ(wrong[0].expected.n, rig_pfn(&rig, 40).n + 2);
    CHECK_EQ(wrong[0].actual.n, rig_pfn(&rig, 5).n + 2);
    CHECK_STR_EQ(wrong[0].work, "fill");
    CHECK_STR_EQ(wrong[0].why, "stale");
    mb__sim_first_wrong(rig.dev, text, sizeof(text));
    snprintf(want, sizeof(want),
             "stale fill: va 0x%" PRIx64 " must reach frame 0x%x, reached frame 0x%x; stream 0 at "
             "%" PRIu64 " ns",
             wrong[0].va.addr, wrong[0].expected.n, wrong[0].actual.n, wrong[0].time_ns);
    CHECK_STR_EQ(text, want);
    rig_close(&rig);
}

/* The expectation is the one of the enqueue, however late the access is executed. */
TEST(expectations_are_taken_at_the_enqueue)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[0], 1000));
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 0, 1, 1, RIG_INVALIDATE | RIG_MEMBAR);
    rig_touch(&rig, 0, 0);
    rig_unmap(&rig, 0, 0, 1, RIG_INVALIDATE | RIG_MEMBAR);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    rig_close(&rig);
}

TEST(an_entry_without_an_intention_is_foreign)
{
    struct sim_rig rig;
    struct mb_sim_wrong wrong;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE | RIG_NO_INTEND);
    rig_touch(&rig, 0, 0);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_wrongs(rig.dev, &wrong, 1), 1);
    CHECK_STR_EQ(wrong.why, "foreign");
    CHECK_EQ(wrong.expected.n, MB_NO_PFN.n);
    rig_close(&rig);
}

TEST(a_frame_given_back_may_not_be_reached)
{
    struct sim_rig rig;
    struct mb_sim_wrong wrong;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    CHECK_OK(rig_sync(&rig));
    CHECK_OK(rig.ops->slab_release(rig.dev, &rig.slab));
    rig_touch(&rig, 0, 0);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(mb__sim_wrongs(rig.dev, &wrong, 1), 1);
    CHECK_STR_EQ(wrong.why, "released");
    CHECK_EQ(rig_sim(&rig).released_accesses, 1);
    rig_close(&rig);
}

/* Scattered frames under one access: each page is judged by itself. */
TEST(every_page_of_a_long_access_is_judged)
{
    for (unsigned explore = 0; explore < 2; explore++) {
        struct sim_rig rig;
        struct mb_sim_wrong wrong[8];

        rig_open(&rig, &(struct mb_hw_config){.explore = explore, .seed = mb_test_seed()});
        for (unsigned i = 0; i < 32; i++)
            rig_map(&rig, 0, i, 1, (i * 7) % 32, 0);
        rig_fill(&rig, 0, 0, 32 * MB_FRAME_BYTES, 1);
        CHECK_OK(rig_sync(&rig));
        CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
        /* Two of them change behind the device's back. */
        rig_intend(&rig, 3, 1, 40);
        rig_intend(&rig, 30, 1, 41);
        CHECK_OK(rig.ops->verify(rig.dev, rig.stream[0], mb__va_add(rig.window, 4096),
                                 31 * MB_FRAME_BYTES, 1));
        CHECK_OK(rig_sync(&rig));
        CHECK_EQ(mb__sim_wrongs(rig.dev, wrong, 8), 2);
        CHECK_EQ(wrong[0].va.addr, rig_va(&rig, 3).addr);
        CHECK_EQ(wrong[1].va.addr, rig_va(&rig, 30).addr);
        CHECK_EQ(rig_sim(&rig).accesses, 64);
        rig_close(&rig);
    }
}

/* A copy between addresses that are cut by pages at different places. */
TEST(both_sides_of_a_copy_are_judged)
{
    struct sim_rig rig;

    rig_open(&rig, NULL);
    rig_map(&rig, 0, 0, 4, 0, 0);
    rig_map(&rig, 0, 32, 4, 20, 0);
    rig_fill(&rig, 0, 0, 3 * MB_FRAME_BYTES, 5);
    CHECK_OK(rig.ops->copy(rig.dev, rig.stream[0], mb__va_add(rig_va(&rig, 32), 1000),
                           rig_va(&rig, 0), 3 * MB_FRAME_BYTES));
    CHECK_OK(rig.ops->verify(rig.dev, rig.stream[0], mb__va_add(rig_va(&rig, 32), 1000),
                             3 * MB_FRAME_BYTES, 5));
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    rig_intend(&rig, 33, 1, 50);
    rig_intend(&rig, 1, 1, 51);
    CHECK_OK(rig.ops->copy(rig.dev, rig.stream[0], mb__va_add(rig_va(&rig, 32), 1000),
                           rig_va(&rig, 0), 2 * MB_FRAME_BYTES));
    CHECK_OK(rig_sync(&rig));
    CHECK(rig_counters(&rig).wrong_accesses >= 2);
    rig_close(&rig);
}

TEST(without_the_oracle_only_contents_tell)
{
    struct sim_rig rig;

    rig_open(&rig, &(struct mb_hw_config){.no_oracle = true});
    rig_map(&rig, 0, 0, 1, 0, RIG_INVALIDATE);
    rig_touch(&rig, 0, 0);
    rig_map(&rig, 0, 0, 1, 1, 0);
    rig_fill(&rig, 0, 0, MB_FRAME_BYTES, 2);
    rig_verify(&rig, 0, 0, MB_FRAME_BYTES, 2);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_accesses, 0);
    /* Written and read through the same stale translation: the data looks right. */
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    rig_close(&rig);
}

/* ------------------------------------------------------------ races */

/* Stream 1 writes, stream 2 reads; what orders them? */
enum order { NO_ORDER, BY_FENCE, BY_HOST, BY_POLL, THROUGH_A_THIRD };

static uint64_t races(enum order order)
{
    struct mb_hw_fence fence;
    struct sim_rig rig;
    uint64_t found;

    rig_open(&rig, NULL);
    CHECK_OK(mb__sim_race_check(rig.dev, true));
    rig_map(&rig, 1, 0, 1, 0, RIG_INVALIDATE);
    rig_fill(&rig, 1, 0, 4096, 1);
    fence = rig_fence(&rig, 1);
    if (order == BY_FENCE)
        rig_wait(&rig, 2, fence);
    if (order == BY_HOST)
        CHECK_OK(rig.ops->fence_wait_host(rig.dev, fence, 0));
    while (order == BY_POLL && !rig.ops->fence_done(rig.dev, fence))
        ;
    if (order == THROUGH_A_THIRD) {
        rig_wait(&rig, 3, fence);
        rig_wait(&rig, 2, rig_fence(&rig, 3));
    }
    if (order == NO_ORDER) /* time passes, but nobody looks */
        mb__sim_host_pass(rig.dev, 100000);
    rig_verify(&rig, 2, 0, 4096, 1);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(rig_counters(&rig).wrong_words, 0);
    found = rig_sim(&rig).races;
    rig_close(&rig);
    return found;
}

TEST(unordered_streams_race)
{
    CHECK_EQ(races(NO_ORDER), 8);
    CHECK_EQ(races(BY_FENCE), 0);
    CHECK_EQ(races(BY_HOST), 0);
    CHECK_EQ(races(BY_POLL), 0);
    CHECK_EQ(races(THROUGH_A_THIRD), 0);
}
