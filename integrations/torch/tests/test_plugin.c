/* SPDX-License-Identifier: MIT */
/*
 * The PyTorch plug-in through the functions that PyTorch calls, on the software GPU. Device 0 is
 * opened once, as in a program; every case leaves it as it found it. Streams run in an order drawn
 * at random, so a missing dependency shows within a few rounds.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"
#include "moonbright_torch.h"
#include "test.h"

#define MIB ((uint64_t)1 << 20)
#define DEVICE_BYTES (512 * MIB)

/* All of it runs once more with MB_TEST_TABLES=driver, where maps are waited for. */
__attribute__((constructor)) static void configure(void)
{
    const char *tables = getenv("MB_TEST_TABLES");
    char config[96];

    snprintf(config, sizeof(config), "backend:sim,device_memory:512m,explore:yes,tables:%.16s",
             tables ? tables : "inline");
    (void)setenv("MOONBRIGHT", config, 1);
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        enum mb_err ok_err = (call);                                                               \
        if (ok_err)                                                                                \
            FAIL("%s: %s: %s", #call, mb_error_name(ok_err), mb_error_detail());                   \
    } while (0)

static mb_device device(int ordinal)
{
    mb_device dev = NULL;

    OK(mb_torch_device(ordinal, &dev));
    return dev;
}

static mb_stream new_stream(void)
{
    mb_stream stream = NULL;

    OK(mb_stream_create(device(0), &stream));
    return stream;
}

static void *take(uint64_t bytes, void *stream)
{
    void *ptr = calls_malloc(bytes, 0, stream);

    if (!ptr)
        FAIL("malloc of %llu bytes: %s", (unsigned long long)bytes, calls_text());
    return ptr;
}

static void drop(void *ptr, uint64_t bytes, void *stream)
{
    mb_torch_free(ptr, (ssize_t)bytes, 0, stream);
}

static struct mb_stats stats(void)
{
    struct mb_stats now;

    OK(mb_stats_get(device(0), &now));
    return now;
}

/* Nothing live, nothing held, nothing wrong. */
static void clean(void)
{
    struct mb_stats now;
    struct mb_torch_counts counts;

    mb_torch_reset();
    now = stats();
    CHECK_EQ(now.live_blocks, 0);
    CHECK_EQ(now.requested_bytes, 0);
    CHECK_EQ(now.frames_used_bytes, 0);
    CHECK_EQ(now.wrong_words, 0);
    CHECK_EQ(now.wrong_accesses, 0);
    CHECK_EQ(now.faults, 0);
    mb_torch_counts_get(&counts);
    CHECK_EQ(counts.mallocs, counts.frees);
    CHECK_EQ(counts.bad_frees, 0);
    CHECK_EQ(counts.pools, 0);
    CHECK_EQ(counts.pools_retired, 0);
    CHECK_EQ(counts.sleepers, 0);
    CHECK_EQ(calls_filters(), 0);
    OK(mb_check(device(0)));
}

TEST(nothing_is_opened_before_it_is_needed)
{
    mb_device dev = NULL;

    mb_torch_init(2);
    mb_torch_reset();
    CHECK_EQ(mb_torch_device_if_open(0, &dev), MB_ERR_NOT_FOUND);
    CHECK(!dev);
    drop(take(100, NULL), 100, NULL);
    OK(mb_torch_device_if_open(0, &dev));
    CHECK_EQ(mb_torch_device_if_open(1, &dev), MB_ERR_NOT_FOUND);
    clean();
}

/* The address of a block that stream b gets while stream a has work before its free of another. */
static bool reuses(int ordinal)
{
    enum { BYTES = 64 << 20 };
    mb_device dev = device(ordinal);
    mb_stream a = NULL, b = NULL;
    void *first, *second;

    OK(mb_stream_create(dev, &a));
    OK(mb_stream_create(dev, &b));
    first = calls_malloc(BYTES, ordinal, a);
    CHECK(first != NULL);
    for (unsigned i = 0; i < 64; i++)
        OK(mb_fill_async(dev, first, BYTES, i, a));
    mb_torch_free(first, BYTES, ordinal, a);
    second = calls_malloc(BYTES, ordinal, b);
    CHECK(second != NULL);
    mb_torch_free(second, BYTES, ordinal, b);
    OK(mb_device_sync(dev));
    OK(mb_stream_destroy(dev, a));
    OK(mb_stream_destroy(dev, b));
    return first == second;
}

/* Kernels of two streams may wait for each other. Who wants the memory instead says so. */
TEST(no_stream_waits_for_another_unless_asked)
{
    const char *before = getenv("MOONBRIGHT");
    char with[160], old[120];

    snprintf(old, sizeof(old), "%s", before);
    snprintf(with, sizeof(with), "%s, growth:tight", old);
    mb_torch_init(2);
    CHECK(!reuses(0));
    CHECK_EQ(setenv("MOONBRIGHT", with, 1), 0);
    CHECK(reuses(1));
    CHECK_EQ(setenv("MOONBRIGHT", old, 1), 0);
    clean();
}

TEST(sizes_that_programs_ask_for)
{
    static const uint64_t sizes[] = {0, 1, 128, 6912, 2 * MIB - 1, 2 * MIB, 2 * MIB + 1};
    enum { COUNT = sizeof(sizes) / sizeof(sizes[0]) };
    mb_stream stream = new_stream();
    void *blocks[COUNT];

    for (unsigned i = 0; i < COUNT; i++) {
        blocks[i] = take(sizes[i], stream);
        for (unsigned j = 0; j < i; j++)
            CHECK(blocks[i] != blocks[j]);
        OK(mb_fill_async(device(0), blocks[i], sizes[i] / 8 * 8, i, stream));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        size_t bytes = 1;

        OK(mb_verify_async(device(0), blocks[i], sizes[i] / 8 * 8, i, stream));
        CHECK_PTR_EQ(mb_torch_base_alloc(blocks[i], &bytes), blocks[i]);
        CHECK_EQ(bytes, sizes[i]);
        drop(blocks[i], sizes[i], stream);
    }
    OK(mb_stream_sync(device(0), stream));
    OK(mb_stream_destroy(device(0), stream));
    clean();
}

TEST(a_block_is_found_by_an_address_inside_it)
{
    char *block = take(10 * MIB, NULL);
    size_t bytes = 0;

    CHECK_PTR_EQ(mb_torch_base_alloc(block + 5 * MIB, &bytes), block);
    CHECK_EQ(bytes, 10 * MIB);
    drop(block, 10 * MIB, NULL);
    clean();
}

TEST(shortage_throws_with_the_known_words_and_changes_nothing)
{
    void *block = take(400 * MIB, NULL);
    struct mb_stats before = stats(), after;
    struct mb_torch_counts counts;

    mb_torch_counts_get(&counts);
    CHECK(!calls_malloc(300 * MIB, 0, NULL));
    CHECK(!strncmp(calls_text(), "CUDA out of memory. Tried to allocate 314572800 bytes", 52));
    after = stats();
    CHECK_EQ(after.requested_bytes, before.requested_bytes);
    CHECK_EQ(after.live_blocks, before.live_blocks);
    drop(block, 400 * MIB, NULL);
    drop(take(300 * MIB, NULL), 300 * MIB, NULL);
    mb_torch_counts_get(&counts);
    CHECK(counts.failures >= 1);
    clean();
}

TEST(wrong_arguments_throw)
{
    CHECK(!calls_malloc(512, -1, NULL));
    CHECK(strstr(calls_text(), "allowed are 0 to"));
    CHECK(!calls_malloc(512, 40, NULL)); /* the software GPU has eight */
    CHECK(strstr(calls_text(), "could not open device 40"));
    CHECK(!calls_malloc((size_t)-5, 0, NULL));
    CHECK(!calls_fraction(1.5, 0));
    CHECK(strstr(calls_text(), "allowed are 0 to 1"));
    CHECK(!calls_record((void *)(uintptr_t)4096, NULL));
    clean();
}

TEST(devices_have_addresses_of_their_own)
{
    void *on_0 = take(MIB, NULL), *on_1 = calls_malloc(MIB, 1, NULL);
    struct mb_stats other;

    CHECK(on_1 && on_0 != on_1);
    CHECK(calls_record(on_1, NULL)); /* the device is found */
    OK(mb_stats_get(device(1), &other));
    CHECK_EQ(other.live_blocks, 1);
    mb_torch_free(on_1, MIB, 1, NULL);
    drop(on_0, MIB, NULL);
    OK(mb_stats_get(device(1), &other));
    CHECK_EQ(other.live_blocks, 0);
    clean();
}

TEST(a_recorded_stream_is_waited_for)
{
    mb_stream one = new_stream(), two = new_stream();

    for (unsigned round = 0; round < 20; round++) {
        void *block = take(256 * MIB, one), *next;

        OK(mb_stream_sync(device(0), one));
        for (uint64_t i = 0; i < 64; i++)
            OK(mb_fill_async(device(0), (char *)block + i * MIB, MIB, 7, two));
        CHECK(calls_record(block, two));
        drop(block, 256 * MIB, one);
        /* Reused too early, its words would be the other stream's. */
        next = take(256 * MIB, one);
        for (uint64_t i = 0; i < 64; i++)
            OK(mb_fill_async(device(0), (char *)next + i * MIB, MIB, 8, one));
        OK(mb_device_sync(device(0)));
        for (uint64_t i = 0; i < 64; i++)
            OK(mb_verify_async(device(0), (char *)next + i * MIB, MIB, 8, one));
        drop(next, 256 * MIB, one);
        OK(mb_device_sync(device(0)));
        CHECK_EQ(stats().wrong_words, 0);
    }
    OK(mb_stream_destroy(device(0), one));
    OK(mb_stream_destroy(device(0), two));
    clean();
}

TEST(empty_cache_gives_frames_back)
{
    drop(take(200 * MIB, NULL), 200 * MIB, NULL);
    CHECK(stats().reserved_bytes >= 200 * MIB);
    mb_torch_reset();
    CHECK_LE(stats().reserved_bytes, 64 * MIB);
    clean();
}

TEST(a_fraction_is_a_limit)
{
    CHECK(calls_fraction(0.5, 0));
    CHECK(!calls_malloc(300 * MIB, 0, NULL));
    CHECK(strstr(calls_text(), "out of memory"));
    drop(take(200 * MIB, NULL), 200 * MIB, NULL);
    CHECK(calls_fraction(1.0, 0));
    drop(take(300 * MIB, NULL), 300 * MIB, NULL);
    OK(mb_torch_set_limit(0, 100 * MIB));
    mb_torch_reset();
    CHECK(!calls_malloc(200 * MIB, 0, NULL));
    OK(mb_torch_set_limit(0, 0));
    clean();
}

TEST(a_pool_of_the_threads_own)
{
    mb_pool pool = NULL;
    uint64_t used = 0;
    void *inside, *outside;

    OK(mb_pool_create(device(0), &pool));
    OK(mb_torch_use_pool(0, pool));
    inside = take(10 * MIB, NULL);
    OK(mb_torch_use_pool(0, NULL));
    outside = take(20 * MIB, NULL);
    OK(mb_pool_get(pool, MB_POOL_USED_CURRENT, &used));
    CHECK_EQ(used, 10 * MIB);
    drop(inside, 10 * MIB, NULL);
    drop(outside, 20 * MIB, NULL);
    OK(mb_device_sync(device(0)));
    OK(mb_pool_destroy(pool));
    clean();
}

/* ------------------------------------------------------------------ graphs */

TEST(a_capture_allocates_from_its_own_pool)
{
    mb_stream captured = new_stream(), other = new_stream();
    struct mb_torch_counts counts;
    void *block, *again, *elsewhere;

    CHECK(calls_begin(0, 1, 0, captured, false));
    block = take(50 * MIB, captured);
    elsewhere = take(10 * MIB, other);
    mb_torch_counts_get(&counts);
    CHECK_EQ(counts.pools, 1);
    drop(block, 50 * MIB, captured);
    again = take(50 * MIB, captured); /* as the graph's own order allows */
    CHECK_PTR_EQ(again, block);
    drop(again, 50 * MIB, captured);
    CHECK(calls_end(0, 1, 0));
    CHECK_EQ(calls_filters(), 0);
    /* Free in the pool, but the graph will write there at every replay. */
    OK(mb_device_sync(device(0)));
    CHECK(!calls_malloc(480 * MIB, 0, other));
    calls_release(0, 1, 0);
    drop(elsewhere, 10 * MIB, other);
    drop(take(480 * MIB, other), 480 * MIB, other);
    OK(mb_device_sync(device(0)));
    OK(mb_stream_destroy(device(0), captured));
    OK(mb_stream_destroy(device(0), other));
    clean();
}

TEST(a_collection_is_of_one_device)
{
    struct mb_torch_counts before, after;

    mb_torch_counts_get(&before);
    CHECK(calls_begin(0, 7, 0, NULL, true));
    mb_torch_free(calls_malloc(MIB, 1, NULL), MIB, 1, NULL);
    CHECK(calls_end(0, 7, 0));
    calls_release(0, 7, 0);
    mb_torch_counts_get(&after);
    CHECK_EQ(after.pool_mallocs, before.pool_mallocs);
    clean();
}

TEST(graphs_share_a_pool_until_the_last_is_gone)
{
    mb_stream stream = new_stream();
    struct mb_torch_counts counts;
    void *first, *second;

    CHECK(calls_begin(0, 0, 9, stream, false));
    first = take(20 * MIB, stream);
    CHECK(calls_end(0, 0, 9));
    CHECK(calls_begin(0, 0, 9, stream, false));
    second = take(20 * MIB, stream);
    CHECK(calls_end(0, 0, 9));
    calls_release(0, 0, 9);
    mb_torch_counts_get(&counts);
    CHECK_EQ(counts.pools, 1);
    calls_release(0, 0, 9);
    mb_torch_counts_get(&counts);
    CHECK_EQ(counts.pools, 0);
    CHECK_EQ(counts.pools_retired, 1); /* its tensors live on */
    drop(first, 20 * MIB, stream);
    mb_torch_reset();
    mb_torch_counts_get(&counts);
    CHECK_EQ(counts.pools_retired, 1);
    drop(second, 20 * MIB, stream);
    OK(mb_device_sync(device(0)));
    OK(mb_stream_destroy(device(0), stream));
    clean();
}

TEST(misuse_of_pools_is_told)
{
    CHECK(!calls_end(0, 5, 5));
    CHECK(strstr(calls_text(), "does not collect"));
    CHECK(calls_begin(0, 5, 5, NULL, true));
    CHECK(!calls_begin(0, 5, 5, NULL, true));
    CHECK(strstr(calls_text(), "collects already"));
    CHECK(calls_end(0, 5, 5));
    CHECK(!calls_end(0, 5, 5));
    calls_release(0, 5, 5);
    calls_release(0, 5, 5); /* one line on stderr */
    CHECK(!calls_begin(99, 5, 5, NULL, true));
    clean();
}

TEST(a_filter_that_throws_takes_nothing)
{
    struct mb_torch_counts before, after;

    mb_torch_counts_get(&before);
    CHECK(calls_begin_broken(0, 6, 6));
    drop(take(MIB, NULL), MIB, NULL);
    CHECK(calls_end(0, 6, 6));
    calls_release(0, 6, 6);
    mb_torch_counts_get(&after);
    CHECK_EQ(after.pool_mallocs, before.pool_mallocs);
    clean();
}

/* ------------------------------------------------------------------ sleep */

TEST(sleepers_give_up_frames_and_keep_addresses)
{
    mb_stream stream = new_stream();
    uint64_t bytes = 0;
    void *weights, *small, *cache;

    OK(mb_torch_tag("weights"));
    weights = take(300 * MIB + 5, stream);
    small = take(1000, stream);
    OK(mb_torch_tag(NULL));
    OK(mb_fill_async(device(0), weights, 300 * MIB, 1, stream));
    OK(mb_torch_sleep(0, "weights", &bytes));
    CHECK_EQ(bytes, 302 * MIB);
    OK(mb_torch_sleep(0, "weights", &bytes));
    CHECK_EQ(bytes, 0);
    cache = take(450 * MIB, stream); /* would not fit beside them */
    OK(mb_fill_async(device(0), cache, 450 * MIB, 2, stream));
    CHECK_EQ(mb_torch_wake(0, "weights", &bytes), MB_ERR_NO_MEMORY);
    drop(cache, 450 * MIB, stream);
    OK(mb_torch_wake(0, "weights", &bytes));
    CHECK_EQ(bytes, 302 * MIB);
    OK(mb_fill_async(device(0), weights, 300 * MIB, 3, stream));
    OK(mb_verify_async(device(0), weights, 300 * MIB, 3, stream));
    drop(weights, 300 * MIB + 5, stream);
    drop(small, 1000, stream);
    OK(mb_device_sync(device(0)));
    OK(mb_stream_destroy(device(0), stream));
    clean();
}

TEST(a_sleeper_can_be_freed_asleep_and_waits_for_recorded_streams)
{
    mb_stream one = new_stream(), two = new_stream();
    size_t bytes = 0;
    char *a, *b;

    OK(mb_torch_tag("a"));
    a = take(4 * MIB, one);
    OK(mb_torch_tag("b"));
    b = take(100 * MIB, one);
    OK(mb_torch_tag(NULL));
    CHECK_PTR_EQ(mb_torch_base_alloc(a + MIB, &bytes), a);
    CHECK_EQ(bytes, 4 * MIB);
    OK(mb_torch_sleep(0, "a", NULL));
    drop(a, 4 * MIB, one);
    for (unsigned round = 0; round < 20; round++) {
        OK(mb_device_sync(device(0))); /* `two` may use what was made on `one` */
        for (uint64_t i = 0; i < 100; i++)
            OK(mb_fill_async(device(0), b + i * MIB, MIB, 1, two));
        CHECK(calls_record(b, two));
        drop(b, 100 * MIB, one); /* its unmap comes after the fills, or there are faults */
        OK(mb_device_sync(device(0)));
        CHECK_EQ(stats().faults, 0);
        OK(mb_torch_tag("b"));
        b = take(100 * MIB, one);
        OK(mb_torch_tag(NULL));
    }
    drop(b, 100 * MIB, one);
    CHECK_EQ(mb_torch_sleep(0, "b", NULL), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_torch_wake(0, "never", NULL), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_torch_tag(""), MB_ERR_INVALID);
    OK(mb_stream_destroy(device(0), one));
    OK(mb_stream_destroy(device(0), two));
    clean();
}

/* ------------------------------------------------------------------ threads, processes */

enum { THREADS = 4, ROUNDS = 300, LIVE = 24 };

struct worker {
    unsigned number;
    uint64_t seed;
    const char *failed; /* NULL: it went well */
};

/* Allocations of one thread on two streams, contents written and checked, graphs in between. */
static void *work(void *user)
{
    struct worker *w = user;
    mb_device dev = NULL;
    mb_stream streams[2] = {NULL, NULL};
    uint64_t state = w->seed, sizes[LIVE] = {0};
    void *blocks[LIVE] = {NULL};
    mb_stream homes[LIVE] = {NULL};
    int ordinal = (int)(w->number % 2);

    w->failed = "setup";
    if (mb_torch_device(ordinal, &dev) || mb_stream_create(dev, &streams[0]) ||
        mb_stream_create(dev, &streams[1]))
        return NULL;
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned slot = (unsigned)mb_test_random_below(&state, LIVE);
        bool graph = mb_test_random_below(&state, 16) == 0;

        if (blocks[slot]) {
            w->failed = "verify";
            if (mb_verify_async(dev, blocks[slot], sizes[slot], slot, homes[slot]))
                return NULL;
            mb_torch_free(blocks[slot], (ssize_t)sizes[slot], ordinal, homes[slot]);
        }
        if (graph && !calls_begin(ordinal, w->number + 1, 0, NULL, true)) {
            w->failed = "begin";
            return NULL;
        }
        sizes[slot] = 8 * (1 + mb_test_random_below(&state, MIB / 2));
        homes[slot] = streams[mb_test_random_below(&state, 2)];
        blocks[slot] = calls_malloc(sizes[slot], ordinal, homes[slot]);
        w->failed = "malloc or fill";
        if (!blocks[slot] || mb_fill_async(dev, blocks[slot], sizes[slot], slot, homes[slot]))
            return NULL;
        w->failed = "end";
        if (graph && !calls_end(ordinal, w->number + 1, 0))
            return NULL;
        if (graph)
            calls_release(ordinal, w->number + 1, 0);
    }
    for (unsigned i = 0; i < LIVE; i++)
        mb_torch_free(blocks[i], (ssize_t)sizes[i], ordinal, homes[i]);
    w->failed = "sync";
    if (mb_stream_sync(dev, streams[0]) || mb_stream_sync(dev, streams[1]) ||
        mb_stream_destroy(dev, streams[0]) || mb_stream_destroy(dev, streams[1]))
        return NULL;
    w->failed = NULL;
    return NULL;
}

TEST(threads_streams_devices_and_graphs_at_once)
{
    struct worker workers[THREADS];
    pthread_t threads[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){i, mb_test_seed() + i, "not started"};
        CHECK_EQ(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        if (workers[i].failed)
            FAIL("thread %u: %s: %s", i, workers[i].failed, calls_text());
    }
    clean();
    OK(mb_check(device(1)));
}

TEST(a_forked_child_is_told_to_spawn)
{
    void *block = take(MIB, NULL);
    pid_t child = fork();
    int status = 0;

    if (!child) {
        bool told = !calls_malloc(MIB, 0, NULL) && strstr(calls_text(), "spawn");

        drop(block, MIB, NULL); /* the child's copy of the tensor goes */
        _exit(told ? 0 : 1);
    }
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    drop(block, MIB, NULL);
    clean();
}

static struct {
    pthread_barrier_t inside, forked;
    bool met;
} asleep;

/* In the middle of a sleep, which holds the plug-in's lock. */
static void meet(void *user, const struct mb_hook_event *event)
{
    (void)user;
    if (event->kind != MB_HOOK_UNMAP || asleep.met)
        return;
    asleep.met = true;
    pthread_barrier_wait(&asleep.inside);
    pthread_barrier_wait(&asleep.forked);
}

static void *put_to_sleep(void *user)
{
    uint64_t bytes;

    (void)user;
    return mb_torch_sleep(0, "weights", &bytes) ? (void *)1 : NULL;
}

/* The thread that holds the lock is not in the child, which must not wait for it. */
TEST(a_child_forked_while_blocks_go_to_sleep_drops_its_copies)
{
    void *weights, *failed = NULL;
    pthread_t thread;
    pid_t child;
    int status = 0;

    OK(mb_torch_tag("weights"));
    weights = take(4 * MIB, NULL);
    CHECK_EQ(pthread_barrier_init(&asleep.inside, NULL, 2), 0);
    CHECK_EQ(pthread_barrier_init(&asleep.forked, NULL, 2), 0);
    OK(mb_set_event_hook(device(0), meet, NULL));
    CHECK_EQ(pthread_create(&thread, NULL, put_to_sleep, NULL), 0);
    pthread_barrier_wait(&asleep.inside);
    child = fork();
    if (!child) {
        (void)alarm(600); /* else a hang is the parent's too */
        drop(weights, 4 * MIB, NULL);
        _exit(!calls_malloc(4 * MIB, 0, NULL) && strstr(calls_text(), "spawn") ? 0 : 1);
    }
    pthread_barrier_wait(&asleep.forked);
    CHECK_EQ(pthread_join(thread, &failed), 0);
    CHECK(!failed);
    CHECK(child > 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    OK(mb_set_event_hook(device(0), NULL, NULL));
    OK(mb_torch_tag(NULL));
    drop(weights, 4 * MIB, NULL);
    OK(mb_device_sync(device(0)));
    pthread_barrier_destroy(&asleep.inside);
    pthread_barrier_destroy(&asleep.forked);
    clean();
}

TEST(a_free_that_cannot_be_is_counted_and_told)
{
    struct mb_torch_counts before, after;

    mb_torch_counts_get(&before);
    drop((void *)(uintptr_t)(64 * MIB), 512, NULL);
    drop(NULL, 0, NULL); /* is none */
    mb_torch_counts_get(&after);
    CHECK_EQ(after.bad_frees, before.bad_frees + 1);
}
