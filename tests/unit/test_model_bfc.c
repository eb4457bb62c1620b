/* The model of TensorFlow's allocator: sequences computed by hand. */
#include "model_fixture.h"

TEST(regions_double)
{
    struct model *m = open_model("tf-bfc", 0);

    take(m, 0, 1);
    CHECK_EQ(GRANTED(m), 256);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    take(m, 1, 3 * MIB); /* the next region is 4 MiB */
    CHECK_EQ(RESERVED(m), 6 * MIB);
    CHECK_EQ(GRANTED(m), 4 * MIB + 256); /* less than half would be left: not cut */
    take(m, 2, 8 * MIB);
    CHECK_EQ(RESERVED(m), 14 * MIB);
    model_close(m);
}

TEST(a_large_request_raises_the_region_size_once)
{
    struct model *m = open_model("tf-bfc", 0);

    take(m, 0, 20 * MIB); /* 2, 4, 8, 16, 32 */
    CHECK_EQ(RESERVED(m), 32 * MIB);
    take(m, 1, 20 * MIB); /* still 32, and 64 from now on */
    CHECK_EQ(RESERVED(m), 64 * MIB);
    take(m, 2, 20 * MIB);
    CHECK_EQ(RESERVED(m), 128 * MIB);
    CHECK_EQ(model_stats(m)->driver_allocs, 3);
    model_close(m);
}

TEST(a_chunk_is_cut_when_half_of_it_would_be_wasted)
{
    struct model *m = open_model("tf-bfc", 0);
    uint64_t a = take(m, 0, MIB);

    CHECK_EQ(GRANTED(m), MIB);
    CHECK_EQ(take(m, 1, MIB - 256), a + MIB); /* a rest of 256 bytes is kept with it */
    CHECK_EQ(GRANTED(m), 2 * MIB);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    model_close(m);
}

TEST(a_chunk_is_cut_when_128_mib_would_be_wasted)
{
    struct model *m = open_model("tf-bfc,allow_growth:off", 1024 * MIB);

    take(m, 0, 600 * MIB); /* all memory is one region; 424 MiB are left */
    CHECK_EQ(RESERVED(m), 1024 * MIB);
    CHECK_EQ(GRANTED(m), 600 * MIB);
    take(m, 1, 300 * MIB); /* of 424: 124 MiB stay with it */
    CHECK_EQ(GRANTED(m), 1024 * MIB);
    model_close(m);
}

TEST(chunks_merge_with_both_neighbours)
{
    struct model *m = open_model("tf-bfc", 0);
    uint64_t a = take(m, 0, 512 * KIB);

    take(m, 1, 512 * KIB);
    take(m, 2, 512 * KIB);
    take(m, 3, 512 * KIB);
    give(m, 0);
    give(m, 2);
    give(m, 1);
    CHECK_EQ(take(m, 4, 1536 * KIB), a);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    model_close(m);
}

TEST(the_smallest_fitting_chunk_of_the_lowest_bin_is_taken)
{
    struct model *m = open_model("tf-bfc", 0);
    uint64_t a;
    uint64_t b;

    /* Regions of 2, 4, 8 MiB, each one chunk. */
    take(m, 0, 2 * MIB);
    b = take(m, 1, 4 * MIB);
    take(m, 2, 8 * MIB);
    give(m, 0);
    give(m, 1);
    give(m, 2);
    /*
     * 2.5 MiB is of bin 2..4 MiB, whose only chunk is too small; the 4 MiB chunk is in the next
     * one.
     */
    a = take(m, 3, 2560 * KIB);
    CHECK_EQ(a, b);
    CHECK_EQ(RESERVED(m), 14 * MIB);
    model_close(m);
}

TEST(idle_regions_go_when_memory_runs_out)
{
    struct model *m = open_model("tf-bfc", 48 * MIB);

    take(m, 0, 20 * MIB); /* region of 32 MiB */
    refuse(m, 1, 20 * MIB);
    give(m, 0);
    take(m, 2, 40 * MIB); /* the region goes; the next is cut to what there is */
    CHECK_EQ(RESERVED(m), 48 * MIB);
    CHECK_EQ(model_stats(m)->driver_frees, 1);
    model_close(m);
}

TEST(without_collection_idle_regions_stay)
{
    struct model *m = open_model("tf-bfc,garbage_collection:off", 48 * MIB);

    take(m, 0, 20 * MIB);
    give(m, 0);
    refuse(m, 1, 40 * MIB);
    CHECK_EQ(RESERVED(m), 32 * MIB);
    model_close(m);
}
