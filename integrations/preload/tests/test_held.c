/* SPDX-License-Identifier: MIT */
/* test_held.c - the record of blocks against a plain array, by four threads at once; and forgetting
 * a device. Prints its seed; an argument is another one. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "held.h"

enum { THREADS = 4, BLOCKS = 4096, STEPS = 40000, DEVICES = 5 };

static uint64_t seed;
static bool held[THREADS][BLOCKS]; /* each thread's own */

static void must(bool truth, const char *what)
{
    if (truth)
        return;
    fprintf(stderr, "test_held: %s; seed %" PRIu64 "\n", what, seed);
    exit(1);
}

static uint64_t address(unsigned thread, unsigned block)
{
    return (uint64_t)(thread + 1) << 40 | (uint64_t)block * 512 * 3;
}

static void *run(void *user)
{
    unsigned thread = (unsigned)(uintptr_t)user;
    uint64_t state = seed + thread;

    for (unsigned step = 0; step < STEPS; step++) {
        unsigned block = (unsigned)((state = state * 6364136223846793005u + 1) >> 40) % BLOCKS;
        uint64_t at = address(thread, block);
        int device = (int)(block % DEVICES);

        if (held[thread][block]) {
            must(held_find(at) == device && held_take(at) == device, "a block was lost");
            must(held_take(at) == -1, "a block was taken twice");
        } else {
            must(held_find(at) == -1 && held_add(at, device), "a block was there before");
        }
        held[thread][block] = !held[thread][block];
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];

    seed = argc > 1 ? strtoull(argv[1], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %" PRIu64 "\n", seed);
    for (uintptr_t t = 0; t < THREADS; t++)
        must(!pthread_create(&threads[t], NULL, run, (void *)t), "no thread");
    for (unsigned t = 0; t < THREADS; t++)
        must(!pthread_join(threads[t], NULL), "no end of a thread");
    held_forget(2);
    for (unsigned t = 0; t < THREADS; t++) {
        for (unsigned block = 0; block < BLOCKS; block++) {
            int device = (int)(block % DEVICES);
            bool there = held[t][block] && device != 2;

            must(held_find(address(t, block)) == (there ? device : -1),
                 "forgetting one device changed another, or too little");
        }
    }
    return 0;
}
