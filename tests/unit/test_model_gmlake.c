/* The model of GMLake: sequences computed by hand. */
#include "model_fixture.h"

/* Three free primitives of 20 MiB. */
static void three_free(struct model *m)
{
    for (uint32_t i = 0; i < 3; i++)
        take(m, i, 20 * MIB);
    for (uint32_t i = 0; i < 3; i++)
        give(m, i);
    CHECK_EQ(RESERVED(m), 60 * MIB);
}

TEST(large_requests_are_whole_pages)
{
    struct model *m = open_model("gmlake", 0);
    uint64_t a = take(m, 0, MIB + 1);

    CHECK_EQ(GRANTED(m), 2 * MIB);
    CHECK_EQ(RESERVED(m), 20 * MIB);
    CHECK_EQ(model_stats(m)->driver_maps, 10);
    CHECK_EQ(take(m, 1, 3 * MIB), a + 2 * MIB);
    CHECK_EQ(GRANTED(m), 6 * MIB);
    CHECK_EQ(RESERVED(m), 20 * MIB);
    model_close(m);
}

TEST(small_requests_are_as_in_pytorch)
{
    struct model *m = open_model("gmlake", 0);
    uint64_t a = take(m, 0, 100);

    CHECK_EQ(GRANTED(m), 512);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    CHECK_EQ(take(m, 1, MIB), a + 512);
    give(m, 0);
    give(m, 1);
    trim(m);
    CHECK_EQ(RESERVED(m), 0);
    model_close(m);
}

TEST(scattered_primitives_are_stitched)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 0);

    three_free(m);
    take(m, 3, 40 * MIB);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    CHECK_EQ(GRANTED(m), 40 * MIB);
    CHECK_EQ(model_stats(m)->stitches, 1);
    CHECK_EQ(model_stats(m)->driver_maps, 30 + 20);
    take(m, 4, 20 * MIB); /* the third */
    CHECK_EQ(RESERVED(m), 60 * MIB);
    model_close(m);
}

TEST(below_the_limit_nothing_is_stitched)
{
    struct model *m = open_model("gmlake", 0);

    three_free(m);
    take(m, 3, 40 * MIB);
    CHECK_EQ(RESERVED(m), 100 * MIB);
    CHECK_EQ(model_stats(m)->stitches, 0);
    model_close(m);
}

TEST(a_stitched_block_is_used_again)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 0);
    uint64_t a;

    three_free(m);
    a = take(m, 3, 40 * MIB);
    give(m, 3);
    CHECK_EQ(take(m, 3, 40 * MIB), a);
    CHECK_EQ(model_stats(m)->stitches, 1);
    give(m, 3);
    take(m, 4, 50 * MIB); /* more than it has: all three, the last one in part */
    CHECK_EQ(model_stats(m)->stitches, 2);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    take(m, 5, 10 * MIB);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    model_close(m);
}

TEST(a_stitched_block_waits_for_all_its_pages)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 0);
    uint64_t a;

    three_free(m);
    a = take(m, 3, 40 * MIB);
    give(m, 3);
    take(m, 4, 20 * MIB);
    take(m, 5, 20 * MIB);
    take(m, 6, 20 * MIB);
    take(m, 7, 40 * MIB); /* its pages are all in use */
    CHECK_EQ(RESERVED(m), 100 * MIB);
    give(m, 7);
    give(m, 4);
    give(m, 5);
    give(m, 6);
    CHECK(take(m, 8, 40 * MIB) != a); /* the primitive of 40 MiB comes first */
    CHECK_EQ(take(m, 9, 40 * MIB), a);
    CHECK_EQ(model_stats(m)->stitches, 1);
    model_close(m);
}

TEST(a_part_of_a_stitched_block_splits_its_primitives)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 0);
    uint64_t a;

    three_free(m);
    a = take(m, 3, 40 * MIB);
    give(m, 3);
    CHECK_EQ(take(m, 4, 30 * MIB), a);
    CHECK_EQ(GRANTED(m), 30 * MIB);
    take(m, 5, 20 * MIB); /* the third primitive */
    take(m, 6, 10 * MIB); /* what is left of the second */
    CHECK_EQ(RESERVED(m), 60 * MIB);
    give(m, 4);
    give(m, 6);
    CHECK_EQ(take(m, 7, 40 * MIB), a);
    CHECK_EQ(model_stats(m)->stitches, 1);
    model_close(m);
}

TEST(a_much_larger_stitched_block_is_left_alone)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB,reuse_limit:1", 0);
    uint64_t a;

    three_free(m);
    a = take(m, 3, 40 * MIB);
    give(m, 3);
    CHECK(take(m, 4, 30 * MIB) != a);
    CHECK_EQ(model_stats(m)->stitches, 2);
    model_close(m);
}

TEST(trimming_drops_stitched_blocks_and_frees_their_pages)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 0);

    three_free(m);
    take(m, 3, 40 * MIB);
    trim(m);
    CHECK_EQ(RESERVED(m), 40 * MIB);
    give(m, 3);
    trim(m);
    CHECK_EQ(RESERVED(m), 0);
    model_close(m);
}

TEST(a_full_device_stitches_what_is_free)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB", 100 * MIB);

    for (uint32_t i = 0; i < 10; i++)
        take(m, i, 10 * MIB);
    for (uint32_t i = 0; i < 10; i += 2)
        give(m, i);
    take(m, 20, 50 * MIB); /* half of the device, in five pieces */
    CHECK_EQ(RESERVED(m), 100 * MIB);
    refuse(m, 21, 2 * MIB);
    model_close(m);
}

TEST(stitching_can_be_left_for_emergencies)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB,defrag_level:1", 80 * MIB);

    three_free(m);
    take(m, 3, 20 * MIB);
    take(m, 4, 20 * MIB);
    take(m, 5, 20 * MIB);
    give(m, 3);
    give(m, 5);
    take(m, 6, 20 * MIB); /* a primitive fits: nothing to do */
    give(m, 6);
    take(m, 7, 40 * MIB); /* 20 MiB are left on the device: only stitching helps */
    CHECK_EQ(model_stats(m)->stitches, 1);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    model_close(m);
}

TEST(address_space_of_idle_stitched_blocks_is_collected)
{
    struct model *m = open_model("gmlake,frag_limit:2MiB,auto_gc:64MiB,reuse_limit:1", 0);

    three_free(m);
    take(m, 3, 40 * MIB);
    give(m, 3);
    take(m, 4, 60 * MIB); /* 100 MiB of stitched addresses, not checked before the next one */
    give(m, 4);
    CHECK_EQ(model_stats(m)->driver_unmaps, 0);
    take(m, 5, 50 * MIB);
    CHECK_EQ(model_stats(m)->driver_unmaps, 50);
    model_close(m);
}
