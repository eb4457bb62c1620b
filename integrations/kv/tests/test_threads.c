/* SPDX-License-Identifier: MIT */
/* Threads with sequences of their own on one cache and one stream; for the thread sanitizer. */
#include "kv_rig.h"

enum {
    THREADS = 4,
    ROUNDS = 25,
};

/* Owner: the case; read only while threads run. */
struct shared {
    mb_device dev;
    mb_kv kv;
    mb_stream stream;
};

struct worker {
    pthread_t thread;
    const struct shared *shared;
    uint64_t seed;
};

static void *work(void *arg)
{
    struct worker *worker = arg;
    const struct shared *w = worker->shared;
    uint64_t state = worker->seed;
    int32_t tokens[160];

    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t count = 20 + (uint32_t)mb_test_random_below(&state, 100), hit = 0;
        mb_kv_seq seq = 0, beam = 0;

        for (uint32_t i = 0; i < 160; i++)
            tokens[i] = (int32_t)(i < 48 ? i : round % 5 * 100 + i);
        KV_OK(mb_kv_seq_open(w->kv, 0, &seq));
        KV_OK(mb_kv_attach(w->kv, seq, tokens, count - 1, &hit));
        kv_extend(w->dev, w->kv, seq, tokens, hit, count, w->stream);
        KV_OK(mb_kv_publish(w->kv, seq, tokens, count));
        KV_OK(mb_kv_fork(w->kv, seq, &beam));
        kv_extend(w->dev, w->kv, beam, tokens, count, count + 20, w->stream);
        kv_extend(w->dev, w->kv, seq, tokens, count, count + 9, w->stream);
        kv_verify(w->dev, w->kv, beam, tokens, count + 20, w->stream);
        kv_verify(w->dev, w->kv, seq, tokens, count + 9, w->stream);
        KV_OK(mb_kv_seq_close(w->kv, seq));
        KV_OK(mb_kv_seq_close(w->kv, beam));
    }
    return NULL;
}

TEST(threads_share_a_cache)
{
    struct mb_kv_config config = kv_small;
    struct worker workers[THREADS];
    struct shared shared = {0};

    config.limit_bytes = 400 << 20;
    shared.dev = rt_open("backend:sim,device_memory:1g");
    shared.stream = rt_stream(shared.dev);
    KV_OK(mb_kv_open(shared.dev, &config, &shared.kv));
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].shared = &shared;
        workers[i].seed = mb_test_seed() + i;
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    KV_OK(mb_kv_check(shared.kv));
    CHECK(kv_stats(shared.kv).hit_tokens > 0);
    KV_OK(mb_kv_close(shared.kv));
    rt_close(shared.dev);
}
