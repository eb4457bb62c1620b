/* The model of PyTorch's expandable segments: sequences computed by hand. */
#include "model_fixture.h"

TEST(memory_is_mapped_in_granules_at_the_end)
{
    struct model *m = open_model("torch-expandable", 0);
    uint64_t a = take(m, 0, 30 * MIB); /* 2 granules of 20 MiB, 10 MiB of them free */

    CHECK_EQ(RESERVED(m), 40 * MIB);
    CHECK_EQ(model_stats(m)->driver_maps, 2);
    CHECK_EQ(model_stats(m)->driver_allocs, 2);
    CHECK_EQ(model_stats(m)->driver_reserves, 1);
    /* The free 10 MiB and one granule more. */
    CHECK_EQ(take(m, 1, 25 * MIB), a + 30 * MIB);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    CHECK_EQ(take(m, 2, 5 * MIB), a + 55 * MIB);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    take(m, 3, 512); /* the small pool: its own segment, 2 MiB */
    CHECK_EQ(RESERVED(m), 62 * MIB);
    CHECK_EQ(model_stats(m)->driver_reserves, 2);
    CHECK_EQ(GRANTED(m), 60 * MIB + 512);
    model_close(m);
}

TEST(every_rest_is_split_off)
{
    struct model *m = open_model("torch-expandable", 0);

    take(m, 0, 20 * MIB - 512); /* large pool: 512 bytes are left and stay usable */
    CHECK_EQ(GRANTED(m), 20 * MIB - 512);
    CHECK_EQ(model_stats(m)->splits, 1);
    model_close(m);
}

TEST(freed_blocks_merge_over_growth)
{
    struct model *m = open_model("torch-expandable", 0);
    uint64_t a = take(m, 0, 30 * MIB);

    take(m, 1, 25 * MIB);
    give(m, 0);
    give(m, 1);
    CHECK_EQ(take(m, 2, 55 * MIB), a);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    model_close(m);
}

TEST(trimming_unmaps_whole_free_granules_only)
{
    struct model *m = open_model("torch-expandable", 0);
    uint64_t a = take(m, 0, 30 * MIB);

    take(m, 1, 25 * MIB);
    give(m, 0);
    trim(m); /* of 0..30 MiB the first granule; 55..60 is none */
    CHECK_EQ(RESERVED(m), 40 * MIB);
    CHECK_EQ(model_stats(m)->driver_unmaps, 1);
    /* The hole and the free 10 MiB behind it are the lowest place for 30 MiB. */
    CHECK_EQ(take(m, 2, 30 * MIB), a);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    give(m, 1);
    give(m, 2);
    trim(m);
    CHECK_EQ(RESERVED(m), 0);
    CHECK_EQ(model_stats(m)->driver_reserves, 2); /* the address space went too */
    take(m, 3, 20 * MIB);
    CHECK_EQ(RESERVED(m), 20 * MIB);
    model_close(m);
}

TEST(a_hole_is_preferred_to_the_end_that_can_grow)
{
    struct model *m = open_model("torch-expandable", 0);
    uint64_t a = take(m, 0, 15 * MIB);

    take(m, 1, 15 * MIB);
    take(m, 2, 5 * MIB); /* 5 MiB are left at the end of 40 */
    give(m, 1);          /* a hole of 15 MiB */
    CHECK_EQ(RESERVED(m), 40 * MIB);
    CHECK_EQ(take(m, 3, 4 * MIB), a + 15 * MIB); /* though the end fits better */
    model_close(m);
}

TEST(streams_have_their_own_segments)
{
    struct model *m = open_model("torch-expandable", 0);

    take(m, 0, 5 * MIB);
    take_on(m, 1, 5 * MIB, 1);
    CHECK_EQ(RESERVED(m), 40 * MIB);
    CHECK_EQ(model_stats(m)->driver_reserves, 2);
    model_close(m);
}

TEST(a_full_device_refuses_and_leaves_all_as_it_was)
{
    struct model *m = open_model("torch-expandable", 100 * MIB);

    take(m, 0, 50 * MIB);   /* 60 MiB mapped, 10 free */
    refuse(m, 1, 60 * MIB); /* 10 + 3 granules, 2 are left */
    CHECK_EQ(RESERVED(m), 60 * MIB);
    take(m, 2, 50 * MIB); /* 10 + 2 granules */
    CHECK_EQ(RESERVED(m), 100 * MIB);
    refuse(m, 3, 2 * MIB);
    CHECK_EQ(model_stats(m)->failed_requests, 2);
    model_close(m);
}

TEST(memory_moves_between_streams_under_pressure)
{
    struct model *m = open_model("torch-expandable", 100 * MIB);

    take(m, 0, 100 * MIB);
    give(m, 0);
    take_on(m, 1, 80 * MIB, 1); /* unmapped at stream 0, mapped at stream 1 */
    CHECK_EQ(RESERVED(m), 80 * MIB);
    CHECK_EQ(model_stats(m)->retries, 1);
    CHECK_EQ(model_stats(m)->driver_unmaps, 5);
    model_close(m);
}

TEST(half_free_in_pieces_still_serves_after_growth)
{
    /*
     * Ten times 10 MiB, every other one free: whole granules are not, so nothing can be unmapped.
     */
    struct model *m = open_model("torch-expandable", 100 * MIB);

    for (uint32_t i = 0; i < 10; i++)
        take(m, i, 10 * MIB);
    for (uint32_t i = 0; i < 10; i += 2)
        give(m, i);
    refuse(m, 20, 20 * MIB);
    CHECK_EQ(RESERVED(m), 100 * MIB);
    give(m, 1); /* 0..30 MiB are free */
    take(m, 21, 30 * MIB);
    model_close(m);
}
