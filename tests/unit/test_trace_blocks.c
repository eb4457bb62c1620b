/* SPDX-License-Identifier: MIT */
/* Names of blocks to slots: against a plain array as the model, and the bounds. */
#include <stdlib.h>
#include <string.h>

#include "cli/trace/internal.h"
#include "test.h"

static uint32_t add(struct trace_blocks *blocks, uint64_t name)
{
    const struct trace_block block = {.name = name, .bytes = name + 1};
    uint32_t slot = TRACE_NO_SLOT;

    CHECK_EQ(trace_blocks_add(blocks, &block, &slot), TRACE_OK);
    return slot;
}

TEST(consecutive_names_cost_nothing_after_their_free)
{
    struct trace_blocks blocks;
    uint32_t slot;

    trace_blocks_init(&blocks, 0);
    for (uint64_t name = 1; name <= 100000; name++) {
        slot = add(&blocks, name);
        trace_blocks_remove(&blocks, slot);
    }
    CHECK_EQ(blocks.remembered, 0);
    CHECK_EQ(blocks.record_count, 1);
    CHECK_EQ(trace_blocks_find(&blocks, 77, &slot), TRACE_BLOCK_FREED);
    CHECK_EQ(trace_blocks_find(&blocks, 0, &slot), TRACE_BLOCK_UNKNOWN);
    CHECK_EQ(trace_blocks_find(&blocks, 100001, &slot), TRACE_BLOCK_UNKNOWN);
    CHECK(trace_blocks_check(&blocks));
    trace_blocks_fini(&blocks);
}

TEST(the_largest_names_work)
{
    struct trace_blocks blocks;
    uint32_t slot;

    trace_blocks_init(&blocks, 0);
    slot = add(&blocks, UINT64_MAX - 1);
    trace_blocks_remove(&blocks, slot);
    slot = add(&blocks, UINT64_MAX);
    trace_blocks_remove(&blocks, slot);
    CHECK_EQ(trace_blocks_find(&blocks, UINT64_MAX, &slot), TRACE_BLOCK_FREED);
    CHECK_EQ(trace_blocks_find(&blocks, UINT64_MAX - 1, &slot), TRACE_BLOCK_FREED);
    CHECK_EQ(trace_blocks_find(&blocks, 0, &slot), TRACE_BLOCK_UNKNOWN);
    CHECK(trace_blocks_check(&blocks));
    trace_blocks_fini(&blocks);
}

TEST(the_limit_counts_live_and_remembered_names)
{
    struct trace_blocks blocks;
    const struct trace_block more = {.name = 5000};
    uint32_t slot = 7;

    trace_blocks_init(&blocks, 4);
    for (uint64_t i = 0; i < 4; i++)
        slot = add(&blocks, 1000 * (i + 1));
    CHECK_EQ(trace_blocks_add(&blocks, &more, &slot), TRACE_BAD_INPUT);
    trace_blocks_remove(&blocks, slot);
    CHECK_EQ(trace_blocks_add(&blocks, &more, &slot), TRACE_BAD_INPUT);
    /* A remembered name may live again. */
    CHECK_EQ(add(&blocks, 4000), slot);
    CHECK(trace_blocks_check(&blocks));
    trace_blocks_fini(&blocks);
}

enum {
    NAMES = 3000,
    STEPS = 60000,
};

TEST(random_names_agree_with_a_model)
{
    uint64_t state = mb_test_seed() + 1;
    enum trace_block_state *model = calloc(NAMES, sizeof(*model));
    uint64_t *names = malloc(NAMES * sizeof(*names));
    struct trace_blocks blocks;

    CHECK(model && names);
    trace_blocks_init(&blocks, 0);
    for (size_t i = 0; i < NAMES; i++)
        names[i] = i % 2 ? mb_test_random(&state) : 10 + i; /* scattered, and nearly a range */
    for (unsigned step = 0; step < STEPS; step++) {
        size_t i = (size_t)mb_test_random_below(&state, NAMES);
        uint32_t slot = TRACE_NO_SLOT;

        CHECK_EQ(trace_blocks_find(&blocks, names[i], &slot), model[i]);
        if (model[i] == TRACE_BLOCK_LIVE) {
            CHECK_EQ(blocks.records[slot].bytes, names[i] + 1);
            trace_blocks_remove(&blocks, slot);
            model[i] = TRACE_BLOCK_FREED;
        } else {
            slot = add(&blocks, names[i]);
            CHECK_EQ(blocks.records[slot].name, names[i]);
            model[i] = TRACE_BLOCK_LIVE;
        }
        if (step % 1000 == 0)
            CHECK(trace_blocks_check(&blocks));
    }
    CHECK(trace_blocks_check(&blocks));
    trace_blocks_fini(&blocks);
    free(names);
    free(model);
}
