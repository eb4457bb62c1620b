/* SPDX-License-Identifier: MIT */
/*
 * Report 3 of the field (rmm#1245, rmm#2039): pools kept apart per stream fragment each other. Two
 * streams alternate mixed sizes, one goes away, and the other asks for 80% of the capacity.
 */
#include "support/runtime_rig.h"

enum {
    LIVE = 64,
    ROUNDS = 3000,
};

static const uint64_t CAPACITY = 8 * RT_GIB;

struct slot {
    void *ptr;
    uint64_t bytes, number;
    mb_stream stream;
};

static void empty(mb_device dev, struct slot *slot)
{
    if (!slot->ptr)
        return;
    rt_verify(dev, slot->ptr, slot->bytes < 4096 ? slot->bytes : 4096, slot->number, slot->stream);
    RT_OK(mb_free_async(dev, slot->ptr, slot->stream));
    slot->ptr = NULL;
}

static void churn(mb_device dev, struct slot *slots, mb_stream *streams, uint64_t *state)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct slot *slot = &slots[mb_test_random_below(state, LIVE)];

        empty(dev, slot);
        slot->stream = streams[round % 2];
        slot->bytes = (1 + mb_test_random_below(state, 48))
                      << (9 + mb_test_random_below(state, 12));
        slot->number = round;
        slot->ptr = rt_malloc(dev, slot->bytes, slot->stream);
        rt_fill(dev, slot->ptr, slot->bytes < 4096 ? slot->bytes : 4096, round, slot->stream);
    }
}

TEST(what_one_stream_left_serves_the_other)
{
    mb_device dev = rt_open("backend:sim,device_memory:8g");
    mb_stream streams[2] = {rt_stream(dev), rt_stream(dev)};
    struct slot slots[LIVE] = {{0}};
    uint64_t state = mb_test_seed();
    void *large;

    churn(dev, slots, streams, &state);
    for (unsigned i = 0; i < LIVE; i++)
        if (slots[i].stream == streams[0] || slots[i].bytes > CAPACITY / 1024)
            empty(dev, &slots[i]);
    RT_OK(mb_stream_destroy(dev, streams[0]));
    large = rt_malloc(dev, CAPACITY / 10 * 8, streams[1]);
    rt_fill(dev, large, CAPACITY / 10 * 8, 9, streams[1]);
    rt_verify(dev, large, CAPACITY / 10 * 8, 9, streams[1]);
    RT_OK(mb_free_async(dev, large, streams[1]));
    for (unsigned i = 0; i < LIVE; i++)
        empty(dev, &slots[i]);
    rt_close(dev);
}
