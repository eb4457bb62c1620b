/* SPDX-License-Identifier: MIT */
/*
 * Threads that allocate and free beside each other, hand blocks to one another, and take the slow
 * path and the statistics meanwhile. Meant for the thread sanitizer; the counts and the contents
 * must be right in any build.
 */
#include <pthread.h>
#include <stdlib.h>

#include "support/runtime_rig.h"

enum {
    THREADS = 4,
    ROUNDS = 3000,
    MAILBOXES = 16,
};

struct shared {
    mb_device dev;
    void *mailbox[MAILBOXES]; /* atomic: blocks on their way to another thread */
    unsigned errors;          /* atomic */
};

struct worker {
    struct shared *shared;
    unsigned number;
    mb_stream stream;
    pthread_t thread;
};

static void note(struct shared *shared, enum mb_err err)
{
    if (err)
        __atomic_add_fetch(&shared->errors, 1, __ATOMIC_RELAXED);
}

static uint64_t pick_bytes(uint64_t *state)
{
    static const uint64_t sizes[] = {512, 4096, 70000, 300000, 3000000};

    return sizes[mb_test_random_below(state, 5)];
}

/* Synchronous blocks may be freed by anybody; their contents are the device's business elsewhere.
 */
static void exchange(struct worker *worker, uint64_t *state)
{
    struct shared *shared = worker->shared;
    void *block = NULL, *other;

    note(shared, mb_malloc(shared->dev, pick_bytes(state), &block));
    other = __atomic_exchange_n(&shared->mailbox[mb_test_random_below(state, MAILBOXES)], block,
                                __ATOMIC_ACQ_REL);
    note(shared, mb_free(shared->dev, other));
}

static void work(struct worker *worker, uint64_t *state, uint64_t round)
{
    struct shared *shared = worker->shared;
    uint64_t bytes = pick_bytes(state), part = bytes < 4096 ? bytes : 4096;
    uint64_t seed = worker->number * ROUNDS + round;
    void *block = NULL;

    note(shared, mb_malloc_async(shared->dev, bytes, worker->stream, &block));
    if (!block)
        return;
    if (round % 8 == 0) {
        note(shared, mb_fill_async(shared->dev, block, part / 8 * 8, seed, worker->stream));
        note(shared, mb_verify_async(shared->dev, block, part / 8 * 8, seed, worker->stream));
    }
    note(shared, mb_free_async(shared->dev, block, worker->stream));
}

static void *run(void *arg)
{
    struct worker *worker = arg;
    struct shared *shared = worker->shared;
    uint64_t state = worker->number + 1;
    struct mb_stats stats;
    mb_pool pool;

    note(shared, mb_pool_default(shared->dev, &pool));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        work(worker, &state, round);
        if (round % 16 == 3)
            exchange(worker, &state);
        if (round % 500 == 250)
            note(shared, mb_stats_get(shared->dev, &stats));
        if (round % 1000 == 999)
            note(shared, mb_pool_trim(pool, 32 * RT_MIB));
    }
    return NULL;
}

static void run_all(const char *config)
{
    struct shared shared = {.dev = rt_open(config)};
    struct worker workers[THREADS];
    struct mb_stats stats;

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] =
            (struct worker){.shared = &shared, .number = i, .stream = rt_stream(shared.dev)};
        CHECK_EQ(pthread_create(&workers[i].thread, NULL, run, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    CHECK_EQ(shared.errors, 0);
    for (unsigned i = 0; i < MAILBOXES; i++)
        RT_OK(mb_free(shared.dev, shared.mailbox[i]));
    stats = rt_stats(shared.dev);
    CHECK_EQ(stats.malloc_calls, stats.free_calls);
    CHECK_EQ(stats.live_blocks, 0);
    rt_close(shared.dev);
}

TEST(threads_share_a_device)
{
    run_all("backend:sim,device_memory:2g");
}

TEST(threads_share_a_tight_device)
{
    run_all("backend:sim,device_memory:128m,cache_bytes:1m");
}

/* One block, freed by all threads at once: exactly one of them succeeds. */
struct race {
    mb_device dev;
    void *block;
    pthread_barrier_t start;
    unsigned wins; /* atomic */
};

static void *free_once(void *arg)
{
    struct race *race = arg;

    pthread_barrier_wait(&race->start);
    if (!mb_free_async(race->dev, race->block, NULL))
        __atomic_add_fetch(&race->wins, 1, __ATOMIC_RELAXED);
    return NULL;
}

TEST(one_of_many_frees_wins)
{
    struct race race = {.dev = rt_open("backend:sim,device_memory:256m")};

    pthread_barrier_init(&race.start, NULL, THREADS);
    for (unsigned round = 0; round < 200; round++) {
        pthread_t threads[THREADS];

        race.block = rt_malloc(race.dev, 512 * (1 + round % 3), NULL);
        race.wins = 0;
        for (unsigned i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&threads[i], NULL, free_once, &race), 0);
        for (unsigned i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        CHECK_EQ(race.wins, 1);
    }
    pthread_barrier_destroy(&race.start);
    rt_close(race.dev);
}

enum {
    FREERS = 4,
    BLOCKS = 4000,
};

struct freer {
    mb_device dev;
    void **blocks;
    unsigned *freed; /* atomic: successful frees of each block */
    bool host;
    unsigned wrong;
    pthread_t thread;
};

static void *free_all(void *arg)
{
    struct freer *freer = arg;

    for (unsigned i = 0; i < BLOCKS; i++) {
        enum mb_err err = freer->host ? mb_free(freer->dev, freer->blocks[i])
                                      : mb_free_async(freer->dev, freer->blocks[i], NULL);

        if (!err)
            __atomic_add_fetch(&freer->freed[i], 1, __ATOMIC_RELAXED);
        else if (err != MB_ERR_DOUBLE_FREE && err != MB_ERR_NOT_FOUND)
            freer->wrong++;
    }
    return NULL;
}

/* Several threads free the same blocks, by the warm path and by the slow one: one of them does. */
TEST(of_frees_at_once_one_succeeds)
{
    static void *blocks[BLOCKS];
    static unsigned freed[BLOCKS];
    mb_device dev = rt_open("backend:sim,device_memory:512m");
    struct freer freers[FREERS];

    for (unsigned round = 0; round < 4; round++) {
        for (unsigned i = 0; i < BLOCKS; i++) {
            RT_OK(mb_malloc(dev, 512 * (1 + (i * 7) % 40), &blocks[i]));
            freed[i] = 0;
        }
        for (unsigned i = 0; i < FREERS; i++) {
            freers[i] = (struct freer){.dev = dev, .blocks = blocks, .freed = freed, .host = i % 2};
            CHECK_EQ(pthread_create(&freers[i].thread, NULL, free_all, &freers[i]), 0);
        }
        for (unsigned i = 0; i < FREERS; i++) {
            CHECK_EQ(pthread_join(freers[i].thread, NULL), 0);
            CHECK_EQ(freers[i].wrong, 0);
        }
        for (unsigned i = 0; i < BLOCKS; i++)
            CHECK_EQ(freed[i], 1);
    }
    rt_close(dev);
}
