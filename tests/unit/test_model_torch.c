/* The model of PyTorch's caching allocator: sequences short enough to be computed by hand. */
#include <string.h>

#include "model_fixture.h"

TEST(small_requests_share_segments_of_2_mib)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t a = take(m, 0, 1);

    CHECK_EQ(GRANTED(m), 512);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    /* 2 MiB - 512 are left: 1 MiB fits right behind, a second one does not. */
    CHECK_EQ(take(m, 1, MIB), a + 512);
    CHECK_EQ(RESERVED(m), 2 * MIB);
    take(m, 2, MIB);
    CHECK_EQ(RESERVED(m), 4 * MIB);
    CHECK_EQ(GRANTED(m), 512 + 2 * MIB);
    CHECK_EQ(model_stats(m)->requested_bytes, 1 + 2 * MIB);
    CHECK_EQ(model_stats(m)->driver_allocs, 2);
    model_close(m);
}

TEST(large_segments_by_size_of_request)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t a = take(m, 0, MIB + 1); /* above 1 MiB: the large pool, 20 MiB */

    CHECK_EQ(RESERVED(m), 20 * MIB);
    CHECK_EQ(GRANTED(m), MIB + 512);
    /* 19 MiB - 512 are left: a request just below 10 MiB fits behind. */
    CHECK_EQ(take(m, 1, 10 * MIB - 512), a + MIB + 512);
    CHECK_EQ(RESERVED(m), 20 * MIB);
    /* 9 MiB are left: 10 MiB need a segment of their own, of exactly that size. */
    take(m, 2, 10 * MIB);
    CHECK_EQ(RESERVED(m), 30 * MIB);
    take(m, 3, 10 * MIB + 1); /* rounded up to 12 MiB */
    CHECK_EQ(RESERVED(m), 42 * MIB);
    model_close(m);
}

TEST(large_blocks_are_split_above_1_mib_of_rest)
{
    struct model *m = open_model("torch-caching", 0);

    take(m, 0, 11 * MIB + 512); /* segment 12 MiB, rest 1 MiB - 512: stays with the block */
    CHECK_EQ(GRANTED(m), 12 * MIB);
    take(m, 1, 11 * MIB); /* rest exactly 1 MiB: not more than 1 MiB, stays */
    CHECK_EQ(GRANTED(m), 24 * MIB);
    take(m, 2, 11 * MIB - 512); /* rest 1 MiB + 512: split off */
    CHECK_EQ(GRANTED(m), 35 * MIB - 512);
    CHECK_EQ(RESERVED(m), 36 * MIB);
    CHECK_EQ(model_stats(m)->splits, 1);
    model_close(m);
}

TEST(freed_neighbours_merge_and_whole_segments_can_go)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t a = take(m, 0, 4 * MIB);

    take(m, 1, 4 * MIB);
    take(m, 2, 4 * MIB);
    give(m, 1);
    give(m, 0);
    CHECK_EQ(take(m, 3, 8 * MIB), a); /* the hole of both */
    trim(m);
    CHECK_EQ(RESERVED(m), 20 * MIB); /* its segment is in use */
    give(m, 3);
    give(m, 2);
    CHECK_EQ(RESERVED(m), 20 * MIB);
    trim(m);
    CHECK_EQ(RESERVED(m), 0);
    CHECK_EQ(model_stats(m)->driver_frees, 1);
    CHECK_EQ(model_stats(m)->reserved_peak_bytes, 20 * MIB);
    model_close(m);
}

TEST(the_smallest_block_that_fits_is_taken)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t thirty = take(m, 0, 30 * MIB);
    uint64_t twenty = take(m, 1, 20 * MIB);

    take(m, 2, 40 * MIB);
    give(m, 0);
    give(m, 1);
    give(m, 2);
    CHECK_EQ(take(m, 3, 18 * MIB), twenty);
    CHECK_EQ(take(m, 4, 19 * MIB), thirty); /* 2 MiB are left of the 20 */
    CHECK_EQ(RESERVED(m), 90 * MIB);
    model_close(m);
}

TEST(of_equal_blocks_the_lowest_address_is_taken)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t first = take(m, 0, 30 * MIB);
    uint64_t second = take(m, 1, 30 * MIB);

    CHECK(second < first); /* the driver's addresses go down */
    give(m, 1);
    give(m, 0);
    CHECK_EQ(take(m, 2, 30 * MIB), second);
    CHECK_EQ(take(m, 3, 30 * MIB), first);
    model_close(m);
}

TEST(pools_and_streams_do_not_mix)
{
    struct model *m = open_model("torch-caching", 0);
    uint64_t a = take(m, 0, 20 * MIB);

    give(m, 0);
    take(m, 1, MIB); /* small pool: a segment of its own */
    CHECK_EQ(RESERVED(m), 22 * MIB);
    take_on(m, 2, 20 * MIB, 1); /* another stream: another segment */
    CHECK_EQ(RESERVED(m), 42 * MIB);
    give_on(m, 2, 0); /* goes back to its own stream, not to the freeing one */
    CHECK_EQ(take(m, 3, 20 * MIB), a);
    take(m, 4, 20 * MIB);
    CHECK_EQ(RESERVED(m), 62 * MIB);
    model_close(m);
}

TEST(a_full_device_empties_the_cache_and_retries)
{
    struct model *m = open_model("torch-caching", 64 * MIB);

    take(m, 0, 40 * MIB);
    give(m, 0);
    take(m, 1, 60 * MIB);
    CHECK_EQ(RESERVED(m), 60 * MIB);
    CHECK_EQ(model_stats(m)->retries, 1);
    CHECK_EQ(model_stats(m)->driver_frees, 1);
    refuse(m, 2, 5 * MIB);
    CHECK_EQ(model_stats(m)->failed_requests, 1);
    give(m, 2); /* the trace frees what was refused: nothing to do */
    CHECK_EQ(model_stats(m)->unknown_frees, 1);
    give(m, 1);
    take(m, 3, 64 * MIB);
    model_close(m);
}

TEST(a_split_segment_fails_with_half_of_it_free)
{
    struct model *m = open_model("torch-caching", 100 * MIB);

    take(m, 0, 100 * MIB);
    give(m, 0);
    for (uint32_t i = 0; i < 10; i++)
        take(m, i, 10 * MIB);
    for (uint32_t i = 0; i < 10; i += 2)
        give(m, i);
    refuse(m, 20, 20 * MIB);
    CHECK_EQ(RESERVED(m), 100 * MIB);
    CHECK_EQ(GRANTED(m), 50 * MIB);
    model_close(m);
}

TEST(max_split_size_keeps_large_blocks_for_large_requests)
{
    struct model *m = open_model("torch-caching,max_split_size:200MiB", 0);
    uint64_t a = take(m, 0, 300 * MIB);

    give(m, 0);
    take(m, 1, 100 * MIB); /* too small for the oversize block */
    CHECK_EQ(RESERVED(m), 400 * MIB);
    take(m, 2, 250 * MIB); /* would waste 50 MiB, 20 are allowed */
    CHECK_EQ(RESERVED(m), 650 * MIB);
    CHECK_EQ(take(m, 3, 290 * MIB), a); /* wastes 10 MiB, unsplit */
    CHECK_EQ(GRANTED(m), 650 * MIB);
    model_close(m);
}

TEST(max_split_size_frees_an_oversize_block_first)
{
    struct model *m = open_model("torch-caching,max_split_size:200MiB", 500 * MIB);

    take(m, 0, 300 * MIB);
    take(m, 1, 20 * MIB);
    give(m, 1);
    give(m, 0);
    take(m, 2, 250 * MIB);
    CHECK_EQ(RESERVED(m), 270 * MIB); /* the 20 MiB stayed */
    CHECK_EQ(model_stats(m)->retries, 0);
    model_close(m);
}

TEST(old_blocks_are_collected_above_the_threshold)
{
    struct model *m = open_model("torch-caching,garbage_collection_threshold:0.5", 1000 * MIB);

    take(m, 0, 300 * MIB);
    give(m, 0);
    take(m, 1, 310 * MIB); /* 300 MiB are held: below the threshold of 500 */
    CHECK_EQ(RESERVED(m), 610 * MIB);
    take(m, 2, 320 * MIB); /* 610 are: the unused block goes before the driver is asked */
    CHECK_EQ(RESERVED(m), 630 * MIB);
    CHECK_EQ(model_stats(m)->driver_frees, 1);
    CHECK_EQ(model_stats(m)->retries, 0);
    model_close(m);
}

TEST(sizes_round_up_to_divisions_of_powers_of_two)
{
    struct model *m = open_model("torch-caching,roundup_power2_divisions:4", 0);

    take(m, 0, 1200); /* not above 4 * 512: to 512 bytes */
    CHECK_EQ(GRANTED(m), 1536);
    take(m, 1, 5000); /* between 4096 and 8192 in steps of 1024 */
    CHECK_EQ(GRANTED(m), 1536 + 5120);
    take(m, 2, 8192);
    CHECK_EQ(GRANTED(m), 1536 + 5120 + 8192);
    model_close(m);
}

TEST(a_recorded_stream_delays_the_reuse)
{
    struct model *m = open_model("torch-caching,lag:3", 0);
    uint64_t a = take(m, 0, 20 * MIB);

    model_record_stream(m, 0, 1);
    give(m, 0); /* event 3 */
    CHECK(take(m, 1, 20 * MIB) != a);
    CHECK_EQ(RESERVED(m), 40 * MIB);
    take(m, 2, 512);
    CHECK_EQ(take(m, 3, 20 * MIB), a); /* event 6: three later */
    model_close(m);
}

TEST(a_full_device_waits_for_recorded_streams)
{
    struct model *m = open_model("torch-caching,lag:1000", 20 * MIB);
    uint64_t a = take(m, 0, 20 * MIB);

    model_record_stream(m, 0, 1);
    give(m, 0);
    CHECK(take(m, 1, 20 * MIB) != a); /* the segment went back and came anew */
    CHECK_EQ(RESERVED(m), 20 * MIB);
    CHECK_EQ(model_stats(m)->retries, 1);
    model_close(m);
}

TEST(zero_bytes_take_the_smallest_block)
{
    struct model *m = open_model("torch-caching", 0);

    take(m, 0, 0);
    CHECK_EQ(GRANTED(m), 512);
    CHECK_EQ(model_stats(m)->requested_bytes, 0);
    model_close(m);
}

TEST(wrong_specifications_are_refused_with_a_reason)
{
    static const struct {
        const char *spec;
        const char *reason;
    } cases[] = {
        {"torch", "there is no policy \"torch\"; there are torch-caching,"},
        {"", "there is no policy \"\""},
        {"torch-caching,speed:9",
         "policy torch-caching has no option \"speed\"; it has: max_split"},
        {"torch-caching,max_split_size", "option max_split_size of policy torch-caching is \"\""},
        {"torch-caching,max_split_size:1", "expected more than 20MiB"},
        {"torch-caching,max_split_size:1XB", "expected bytes like 4096, 200MiB or max"},
        {"torch-caching,max_split_size:99999999999GiB", "expected bytes"},
        {"torch-caching,garbage_collection_threshold:1.5", "expected a number from 0 to 1"},
        {"torch-caching,roundup_power2_divisions:3", "expected a power of two"},
        {"torch-caching,lag:-1", "expected a whole number"},
        {"tf-bfc,allow_growth:yes", "expected on or off"},
        {"gmlake,reuse_limit:0", "reuse_limit must be 1 or more"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = NULL;
        char error[512] = "";

        CHECK_EQ(model_open(cases[i].spec, 0, &m, error, sizeof(error)), MODEL_BAD_OPTIONS);
        CHECK(!m);
        if (!strstr(error, cases[i].reason))
            FAIL("%s: the message is: %s", cases[i].spec, error);
    }
}

TEST(every_listed_policy_opens)
{
    for (size_t i = 0; model_infos[i]; i++) {
        struct model *m = open_model(model_infos[i]->name, 64 * MIB);

        CHECK_STR_EQ(model_info(m)->name, model_infos[i]->name);
        take(m, 0, 100);
        give(m, 0);
        model_close(m);
    }
}
