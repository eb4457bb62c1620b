/*
 * The model of cudaMallocAsync's pool: sequences computed by hand, of what the pool itself was not
 * asked; what it was asked is in test_model_pool.c.
 */
#include "model_fixture.h"

TEST(the_pool_grows_by_32_mib)
{
    struct model *m = open_model("cuda-async", 0);
    uint64_t a = take(m, 0, 1);

    CHECK_EQ(GRANTED(m), 512);
    CHECK_EQ(RESERVED(m), 32 * MIB);
    CHECK_EQ(take(m, 1, 31 * MIB), a + 512);
    CHECK_EQ(RESERVED(m), 32 * MIB);
    take(m, 2, 33 * MIB);
    CHECK_EQ(RESERVED(m), 96 * MIB);
    CHECK_EQ(GRANTED(m), 64 * MIB + 512);
    model_close(m);
}

TEST(blocks_are_reused_and_merge_in_stream_order)
{
    struct model *m = open_model("cuda-async,lag:1000", 0);
    uint64_t a = take(m, 0, 8 * MIB);

    take(m, 1, 8 * MIB);
    take(m, 2, 16 * MIB);
    give(m, 0);
    give(m, 1);
    CHECK_EQ(take(m, 3, 16 * MIB), a);
    CHECK_EQ(RESERVED(m), 32 * MIB);
    model_close(m);
}

TEST(another_stream_needs_an_order)
{
    struct model *m = open_model("cuda-async,lag:1000", 0);
    uint64_t a = take(m, 0, 32 * MIB);

    give(m, 0);
    CHECK(take_on(m, 1, 32 * MIB, 1) != a);
    CHECK_EQ(RESERVED(m), 64 * MIB);
    CHECK_EQ(model_wait(m, 2, 0), MODEL_OK); /* stream 2 after 0, stream 1 after 2 */
    CHECK_EQ(model_wait(m, 1, 2), MODEL_OK);
    CHECK_EQ(take_on(m, 2, 32 * MIB, 1), a);
    CHECK_EQ(RESERVED(m), 64 * MIB);
    model_close(m);
}

TEST(a_wait_covers_only_what_was_freed_before)
{
    struct model *m = open_model("cuda-async,lag:1000", 0);
    uint64_t a = take(m, 0, 32 * MIB);

    CHECK_EQ(model_wait(m, 1, 0), MODEL_OK);
    give(m, 0);
    CHECK(take_on(m, 1, 32 * MIB, 1) != a);
    model_close(m);
}

TEST(following_events_can_be_off)
{
    struct model *m = open_model("cuda-async,lag:1000,follow_events:off", 0);
    uint64_t a = take(m, 0, 32 * MIB);

    give(m, 0);
    CHECK_EQ(model_wait(m, 1, 0), MODEL_OK);
    CHECK(take_on(m, 1, 32 * MIB, 1) != a);
    model_close(m);
}

TEST(completed_frees_serve_any_stream)
{
    struct model *m = open_model("cuda-async,lag:3", 0);
    uint64_t a = take(m, 0, 32 * MIB);

    give(m, 0);                              /* event 2 */
    CHECK(take_on(m, 1, 32 * MIB, 1) != a);  /* 3 */
    give_on(m, 1, 1);                        /* 4 */
    CHECK_EQ(take_on(m, 2, 16 * MIB, 2), a); /* 5: three after the first free */
    model_close(m);
}

TEST(a_full_device_makes_the_stream_wait)
{
    struct model *m = open_model("cuda-async,lag:1000", 32 * MIB);
    uint64_t a = take(m, 0, 20 * MIB);

    give(m, 0);
    CHECK_EQ(take_on(m, 1, 20 * MIB, 1), a);
    CHECK_EQ(model_stats(m)->waits, 1);
    model_close(m);

    m = open_model("cuda-async,lag:1000,internal_deps:off", 32 * MIB);
    take(m, 0, 20 * MIB);
    give(m, 0);
    CHECK_EQ(model_alloc(m, 1, 20 * MIB, 1), MODEL_NO_MEMORY);
    CHECK_EQ(RESERVED(m), 32 * MIB);
    model_close(m);
}

TEST(a_full_device_moves_idle_memory)
{
    struct model *m = open_model("cuda-async", 128 * MIB);
    uint64_t a = take(m, 0, 64 * MIB);

    take(m, 1, 1 * MIB);
    give(m, 0);
    CHECK_EQ(RESERVED(m), 96 * MIB);
    /* 31 MiB behind block 1 are there, the rest comes from where block 0 was. */
    CHECK_EQ(take(m, 2, 90 * MIB), a + 65 * MIB);
    CHECK_EQ(RESERVED(m), 96 * MIB);
    CHECK_EQ(model_stats(m)->driver_unmaps, 2);
    /* What a refused request has moved and taken stays where it is. */
    refuse(m, 3, 70 * MIB);
    CHECK_EQ(RESERVED(m), 128 * MIB);
    take(m, 4, 32 * MIB);
    CHECK_EQ(RESERVED(m), 128 * MIB);
    model_close(m);
}

TEST(waiting_for_the_device_releases_above_the_threshold)
{
    struct model *m = open_model("cuda-async,release_threshold:40MiB,lag:1000", 0);

    take(m, 0, 20 * MIB);
    take(m, 1, 30 * MIB);
    take(m, 2, 33 * MIB);
    CHECK_EQ(RESERVED(m), 96 * MIB);
    give(m, 1);
    give(m, 2);
    trim(m);
    CHECK_EQ(RESERVED(m), 96 * MIB);   /* the frees are not known to have completed */
    CHECK_EQ(model_sync(m), MODEL_OK); /* two granules are idle, one more is held than 40 MiB */
    check_model(m);
    CHECK_EQ(RESERVED(m), 64 * MIB);
    give(m, 0);
    CHECK_EQ(model_sync(m), MODEL_OK);
    CHECK_EQ(RESERVED(m), 64 * MIB); /* with one less the threshold were not held */
    trim(m);
    CHECK_EQ(RESERVED(m), 0);
    model_close(m);
}

TEST(waiting_joins_what_streams_freed_side_by_side)
{
    struct model *m = open_model("cuda-async,lag:1000", 0);
    uint64_t a = take(m, 0, 16 * MIB);

    take(m, 1, 16 * MIB);
    give_on(m, 0, 0);
    give_on(m, 1, 1);
    CHECK_EQ(model_stats(m)->merges, 0);
    CHECK_EQ(model_sync(m), MODEL_OK);
    check_model(m);
    CHECK_EQ(model_stats(m)->merges, 2); /* with each other and with the free end of the pool */
    CHECK_EQ(take(m, 2, 32 * MIB), a);
    model_close(m);
}

/* Only the derived traces, which are not bundled, tell this from the rest being a new free. */
TEST(the_rest_of_a_pending_block_keeps_its_place_among_the_frees)
{
    struct model *m = open_model("cuda-async", 0);
    uint64_t y;

    take(m, 0, 8 * MIB);
    take(m, 1, MIB);
    y = take(m, 2, 2 * MIB);
    take(m, 3, MIB);
    give(m, 0);
    give(m, 2);
    take(m, 4, 6 * MIB);               /* leaves 2 MiB of block 0 */
    CHECK_EQ(model_sync(m), MODEL_OK); /* last freed first: block 2, then that rest */
    CHECK_EQ(take(m, 5, 2 * MIB), y);
    model_close(m);
}
