/* SPDX-License-Identifier: MIT */
/*
 * How prepared invalidates wait, word by word, and what the keys of helper channels mean. Words
 * were computed by hand from the bit positions in doc/driver-abi.md. No GPU.
 */
#include <string.h>

#include "hw/cuda/cuda.h"
#include "test.h"

enum { SHARED_VA = 0x12340000, WORDS = 32 };

struct rig {
    struct mb_cuda dev;
    struct nvrm_mem shared;
    struct nvrm_push push;
    uint32_t words[WORDS];
};

static void rig_open(struct rig *rig, const struct mb_hw_config *config)
{
    const struct nvrm_arch *hopper = NULL;

    memset(rig, 0, sizeof(*rig));
    CHECK_OK(mb__nvrm_arch_find(0x180, 0, &hopper));
    CHECK_OK(mb__cuda_helper_config(&rig->dev, config));
    rig->shared.va = SHARED_VA;
    rig->dev.shared_rm = &rig->shared;
    rig->dev.space.pdb = 0x123456789000;
    mb__nvrm_push_init(&rig->push, hopper, rig->words, WORDS);
}

/* acquire answer >= n - 1, acquire request >= n, invalidate, membar, release answer = n */
static void check_words(const struct mb_hw_config *config, uint64_t n, uint32_t acquire)
{
    struct rig rig;
    const uint32_t low = (uint32_t)n, high = (uint32_t)(n >> 32);
    const uint32_t want[] = {
        0x20050017, SHARED_VA + MB_SHARED_ANSWER,
        0,          low - 1,
        0,          acquire,
        0x20050017, SHARED_VA + MB_SHARED_REQUEST,
        0,          low,
        0,          acquire,
        0x2004000a, 0,
        0,          0x56789020,
        0x48001234, 0x2004000a,
        0,          0,
        1,          0x28000000,
        0x20050017, SHARED_VA + MB_SHARED_ANSWER,
        0,          low,
        high,       0x01000001,
    };

    rig_open(&rig, config);
    mb__cuda_helper_encode(&rig.dev, &rig.push, n);
    CHECK_PTR_EQ(rig.push.problem, NULL);
    CHECK_EQ(rig.push.count, sizeof(want) / sizeof(want[0]));
    CHECK_MEM_EQ(rig.words, want, sizeof(want));
}

TEST(a_prepared_invalidate_holds_its_queue)
{
    struct mb_hw_config config = {0};

    check_words(&config, 1, 0x3);
    check_words(&config, 0x100000000, 0x3); /* payloads of acquires are 32 bits and wrap */
    config.helper_wait = "hold";
    check_words(&config, 77, 0x3);
}

TEST(a_prepared_invalidate_gives_its_queue_away)
{
    struct mb_hw_config config = {.helper_wait = "switch"};

    check_words(&config, 1, 0x1003);
    check_words(&config, 0x7fffffff5, 0x1003);
}

TEST(keys_of_helper_channels)
{
    struct mb_hw_config config = {0};
    struct mb_cuda dev;

    memset(&dev, 0, sizeof(dev));
    CHECK_OK(mb__cuda_helper_config(&dev, &config));
    CHECK(dev.helper.hold && dev.helper.drain && dev.keep_views && !dev.fast);
    CHECK_EQ(dev.helper.engine, -1);
    CHECK_EQ(dev.helper.slice_us, 4);
    config = (struct mb_hw_config){.helper_engine = "6",
                                   .helper_end = "drop",
                                   .helper_slice_us = 64,
                                   .kernels = "fast",
                                   .walk_views = "close"};
    CHECK_OK(mb__cuda_helper_config(&dev, &config));
    CHECK(dev.helper.hold && !dev.helper.drain && !dev.keep_views && dev.fast);
    CHECK_EQ(dev.helper.engine, 6);
    CHECK_EQ(dev.helper.slice_us, 64);
    config.helper_engine = "apart";
    CHECK_OK(mb__cuda_helper_config(&dev, &config));
    CHECK_EQ(dev.helper.engine, -2);
}

TEST(unknown_values_change_nothing)
{
    const struct mb_hw_config wrong[] = {{.helper_engine = "20"}, {.helper_engine = "4x"},
                                         {.helper_engine = ""},   {.helper_wait = "spin"},
                                         {.helper_end = "wait"},  {.kernels = "quick"},
                                         {.walk_views = "lose"}};
    struct mb_cuda dev;

    memset(&dev, 0, sizeof(dev));
    dev.helper.engine = 5;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK_EQ(mb__cuda_helper_config(&dev, &wrong[i]), MB_ERR_CONFIG);
        CHECK_EQ(dev.helper.engine, 5);
    }
}

/* Nobody is asked: the list's first engine for the queue, its second for the rescue channel. */
TEST(the_rescue_channel_has_an_engine_of_its_own)
{
    static const struct {
        const char *engine;
        int queue, rescue;
    } cases[] = {{NULL, -1, 3}, {"list", -1, 3}, {"4", 4, 3}, {"3", 3, 4}, {"7", 7, 4}};

    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mb_hw_config config = {.helper_engine = cases[i].engine};
        struct nvrm_client client;
        struct rig rig;

        rig_open(&rig, &config);
        memset(&client, 0, sizeof(client));
        client.arch = rig.push.arch;
        rig.dev.rm = &client;
        CHECK_OK(mb__cuda_helper_engines(&rig.dev));
        CHECK_EQ(rig.dev.helper.engine, cases[i].queue);
        CHECK_EQ(rig.dev.helper.rescue_engine, cases[i].rescue);
    }
}
