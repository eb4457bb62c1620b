/* SPDX-License-Identifier: MIT */
/*
 * Two devices: the reports of the field once more, on device 1, while another thread of the process
 * works on device 0. With MB_TEST_BESIDE in the environment a neighbour starts before main and is
 * judged when the process ends: not a word wrong, every invariant, nothing left, and it has worked.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "moonbright.h"
#include "test.h"

enum { BLOCKS = 24, BYTES_MAX = 6 << 20 };

struct block {
    void *ptr;
    uint64_t bytes, seed;
};

static struct {
    pthread_t thread;
    pid_t pid;
    mb_device dev;
    mb_stream stream[2];
    bool stop;       /* atomic */
    uint64_t rounds; /* atomic */
} neighbour;

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "beside, line %d: %s does not hold: %s\n", __LINE__, #condition,       \
                    mb_error_detail());                                                            \
            _exit(97);                                                                             \
        }                                                                                          \
    } while (0)

static void give_back(struct block *block, mb_stream stream)
{
    MUST(!mb_verify_async(neighbour.dev, block->ptr, block->bytes, block->seed, stream));
    MUST(!mb_free_async(neighbour.dev, block->ptr, stream));
    block->ptr = NULL;
}

static void *work(void *unused)
{
    struct block blocks[BLOCKS] = {{NULL, 0, 0}};
    uint64_t random = 0x5eed;

    while (!__atomic_load_n(&neighbour.stop, __ATOMIC_RELAXED)) {
        unsigned i = (unsigned)mb_test_random_below(&random, BLOCKS);
        struct block *block = &blocks[i];
        mb_stream stream = neighbour.stream[i % 2];

        if (block->ptr) {
            give_back(block, stream);
        } else {
            block->bytes = (mb_test_random_below(&random, BYTES_MAX) + 8) / 8 * 8;
            block->seed = mb_test_random(&random);
            MUST(!mb_malloc_async(neighbour.dev, block->bytes, stream, &block->ptr));
            MUST(!mb_fill_async(neighbour.dev, block->ptr, block->bytes, block->seed, stream));
        }
        if (__atomic_add_fetch(&neighbour.rounds, 1, __ATOMIC_RELAXED) % 16 == 0)
            MUST(!mb_device_sync(neighbour.dev));
        usleep(200); /* the report is what this is about */
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        if (blocks[i].ptr)
            give_back(&blocks[i], neighbour.stream[i % 2]);
    return unused;
}

static void judge(void)
{
    struct mb_tables_report report;
    struct mb_stats stats;

    if (neighbour.pid != getpid())
        return; /* a child of a test */
    while (__atomic_load_n(&neighbour.rounds, __ATOMIC_RELAXED) < 64)
        usleep(1000);
    __atomic_store_n(&neighbour.stop, true, __ATOMIC_RELAXED);
    MUST(!pthread_join(neighbour.thread, NULL));
    MUST(!mb_device_sync(neighbour.dev));
    MUST(!mb_check(neighbour.dev));
    MUST(!mb_check_tables(neighbour.dev, false, &report) && !report.wrong);
    MUST(!mb_stats_get(neighbour.dev, &stats));
    MUST(!stats.wrong_words && !stats.wrong_accesses && !stats.faults && !stats.live_blocks);
    mb_close(neighbour.dev);
    printf("COUNT calls of a neighbour on another device %llu\n",
           (unsigned long long)(neighbour.rounds));
    fflush(stdout);
}

__attribute__((constructor)) static void start(void)
{
    if (!getenv("MB_TEST_BESIDE"))
        return;
    neighbour.pid = getpid();
    MUST(!mb_open(0, "backend:sim,device_memory:128m", &neighbour.dev));
    for (int i = 0; i < 2; i++)
        MUST(!mb_stream_create(neighbour.dev, &neighbour.stream[i]));
    MUST(!atexit(judge));
    MUST(!pthread_create(&neighbour.thread, NULL, work, NULL));
}
