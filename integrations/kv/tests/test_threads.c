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

/* What no other case calls at once: whole caches, all counts, eviction, and what is refused. */
static void *come_and_go(void *arg)
{
    struct worker *worker = arg;
    const struct shared *w = worker->shared;
    struct mb_kv_config config = kv_small;
    uint64_t state = worker->seed;
    int32_t tokens[160];

    config.max_sequences = 2;
    config.limit_bytes = 16 << 20;
    config.chunk_blocks = 1;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t hit = 0, count = 20 + (uint32_t)mb_test_random_below(&state, 20);
        mb_kv_seq seqs[2] = {0}, own = 0;
        mb_kv_prefix prefix = 0;
        mb_kv kv = NULL;

        for (uint32_t i = 0; i < 160; i++)
            tokens[i] = (int32_t)(worker->seed * 1000 + i);
        KV_OK(mb_kv_open(w->dev, &config, &kv));
        KV_OK(mb_kv_seq_open(kv, 0, &own));
        KV_OK(mb_kv_seq_open(w->kv, 0, &seqs[0]));
        CHECK_EQ(mb_kv_truncate(w->kv, own, 0), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_kv_truncate(kv, seqs[0], 0), MB_ERR_NOT_FOUND);
        kv_extend(w->dev, kv, own, tokens, 0, count, w->stream);
        KV_OK(mb_kv_attach(w->kv, seqs[0], tokens, count, &hit));
        kv_extend(w->dev, w->kv, seqs[0], tokens, hit, 50, w->stream);
        KV_OK(mb_kv_publish(w->kv, seqs[0], tokens, 50));
        KV_OK(mb_kv_prefix_hold(w->kv, seqs[0], 50, &prefix, &hit));
        KV_OK(mb_kv_fork(w->kv, seqs[0], &seqs[1]));
        KV_OK(mb_kv_reorder(w->kv, seqs, (uint32_t[]){1, 1}, 2));
        KV_OK(mb_kv_sleep(w->kv, seqs[1]));
        KV_OK(mb_kv_trim(w->kv, w->stream));
        KV_OK(mb_kv_wake(w->kv, seqs[1], tokens, 50, &hit));
        CHECK_EQ(hit, 48);
        KV_OK(mb_kv_sync(w->kv, w->stream));
        kv_verify(w->dev, w->kv, seqs[0], tokens, 50, w->stream);
        kv_verify(w->dev, w->kv, seqs[1], tokens, 48, w->stream);
        kv_verify(w->dev, kv, own, tokens, count, w->stream);
        KV_OK(mb_kv_check(w->kv));
        CHECK(kv_stats(w->kv).sequences >= 2);
        KV_OK(mb_kv_prefix_drop(w->kv, prefix));
        KV_OK(mb_kv_seq_close(w->kv, seqs[0]));
        KV_OK(mb_kv_seq_close(w->kv, seqs[1]));
        KV_OK(mb_kv_close(kv));
    }
    return NULL;
}

static void with_threads(void *(*body)(void *))
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
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, body, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(workers[i].thread, NULL), 0);
    KV_OK(mb_kv_check(shared.kv));
    CHECK(kv_stats(shared.kv).hit_tokens > 0);
    KV_OK(mb_kv_close(shared.kv));
    rt_close(shared.dev);
}

TEST(threads_share_a_cache)
{
    with_threads(work);
}

TEST(caches_come_and_go_beside_one_in_use)
{
    with_threads(come_and_go);
}
