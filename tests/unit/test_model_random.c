/*
 * Random events on every policy, all invariants after each; and the ordered set against a sorted
 * list.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/internal.h"
#include "model_fixture.h"

enum {
    SLOTS = 48,
    STREAMS = 3,
};

/* Sizes from all of the policies' classes, so that splits, merges and refusals happen. */
static uint64_t random_bytes(uint64_t *state)
{
    switch (mb_test_random_below(state, 4)) {
    case 0:
        return mb_test_random_below(state, 4096);
    case 1:
        return mb_test_random_below(state, 2 * MIB);
    case 2:
        return mb_test_random_below(state, 24 * MIB);
    default:
        return (1 + mb_test_random_below(state, 16)) * 4 * MIB;
    }
}

static void random_event(struct model *m, uint64_t *state, bool *live)
{
    uint32_t slot = (uint32_t)mb_test_random_below(state, SLOTS);
    uint32_t stream = (uint32_t)mb_test_random_below(state, STREAMS);
    uint64_t what = mb_test_random_below(state, 100);

    if (what < 3) {
        CHECK_EQ(model_wait(m, stream, (stream + 1) % STREAMS), MODEL_OK);
    } else if (what < 8) {
        model_record_stream(m, slot, stream);
    } else if (what < 10) {
        CHECK_EQ(what == 8 ? model_sync(m) : model_trim(m), MODEL_OK);
    } else if (live[slot]) {
        CHECK_EQ(model_free(m, slot, stream), MODEL_OK);
        live[slot] = false;
    } else {
        enum model_status status = model_alloc(m, slot, random_bytes(state), stream);

        CHECK(status == MODEL_OK || status == MODEL_NO_MEMORY);
        live[slot] = status == MODEL_OK;
    }
}

/* No two live blocks may share an address; stitched ones have their own. */
static void check_apart(const struct model *m, const bool *live)
{
    for (uint32_t a = 0; a < SLOTS; a++)
        for (uint32_t b = 0; live[a] && b < a; b++)
            CHECK(!live[b] || model_address(m, a) != model_address(m, b));
}

static void run_random(const char *spec, uint64_t limit_bytes, uint64_t seed)
{
    struct model *m = open_model(spec, limit_bytes);
    uint64_t state = seed;
    bool live[SLOTS] = {false};

    for (unsigned i = 0; i < 3000; i++) {
        random_event(m, &state, live);
        check_model(m);
        check_apart(m, live);
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        if (live[slot])
            CHECK_EQ(model_free(m, slot, 0), MODEL_OK);
    CHECK_EQ(model_sync(m), MODEL_OK);
    check_model(m);
    CHECK_EQ(model_stats(m)->granted_bytes, 0);
    CHECK_EQ(model_stats(m)->requested_bytes, 0);
    CHECK_EQ(model_stats(m)->allocs, model_stats(m)->frees);
    model_close(m);
}

TEST(random_events_keep_every_invariant)
{
    static const char *const specs[] = {
        "torch-caching",
        "torch-caching,lag:20",
        "torch-caching,max_split_size:32MiB,garbage_collection_threshold:0.6",
        "torch-caching,roundup_power2_divisions:8",
        "torch-expandable",
        "torch-expandable,lag:20",
        "tf-bfc",
        "tf-bfc,allow_growth:off",
        "cuda-async",
        "cuda-async,lag:20",
        "cuda-async,lag:20,opportunistic:off,release_threshold:64MiB",
        "gmlake",
        "gmlake,frag_limit:2MiB",
        "gmlake,frag_limit:16MiB,reuse_limit:2,auto_gc:256MiB",
        "gmlake,frag_limit:2MiB,defrag_level:2",
    };

    for (size_t i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
        run_random(specs[i], 0, mb_test_seed());
        run_random(specs[i], 512 * MIB, mb_test_seed() + 1);
        run_random(specs[i], 100 * MIB, mb_test_seed() + 2);
    }
}

/* ------------------------------------------------------------------ the set */

enum {
    BLOCKS = 300,
};

static int compare_blocks(const void *a, const void *b)
{
    return model_by_size(*(const struct model_block *const *)a,
                         *(const struct model_block *const *)b);
}

/* All of the set's answers against the members in a sorted array. */
static void check_set(const struct model_set *set, struct model_block *blocks)
{
    struct model_block *sorted[BLOCKS] = {NULL};
    size_t count = 0;
    struct model_block *at = model_set_first(set);

    for (size_t i = 0; i < BLOCKS; i++)
        if (blocks[i].set)
            sorted[count++] = &blocks[i];
    /* NOLINTNEXTLINE(bugprone-sizeof-expression): an array of pointers */
    qsort(sorted, count, sizeof(sorted[0]), compare_blocks);
    CHECK_EQ(set->count, count);
    for (size_t i = 0; i < count; i++) {
        CHECK_PTR_EQ(at, sorted[i]);
        CHECK_PTR_EQ(model_set_find(set, sorted[i]), sorted[i]);
        CHECK_PTR_EQ(model_set_below(set, sorted[i]), i ? sorted[i - 1] : NULL);
        at = model_set_next(at);
    }
    CHECK(!at);
}

TEST(sets_answer_as_a_sorted_list)
{
    static struct model_block blocks[BLOCKS];
    struct model_set set = {.order = model_by_size};
    uint64_t state = mb_test_seed() + 3;

    memset(blocks, 0, sizeof(blocks));
    for (size_t i = 0; i < BLOCKS; i++)
        blocks[i] = (struct model_block){.address = 4096 + i,
                                         .bytes = 1 + mb_test_random_below(&state, 20),
                                         .stream = (uint32_t)mb_test_random_below(&state, 3),
                                         .priority = (uint32_t)mb_test_random(&state)};
    for (unsigned step = 0; step < 2000; step++) {
        struct model_block *block = &blocks[mb_test_random_below(&state, BLOCKS)];

        if (block->set)
            model_set_remove(block);
        else
            model_set_insert(&set, block);
        if (step % 20 == 0)
            check_set(&set, blocks);
    }
}
