/* SPDX-License-Identifier: MIT */
/*
 * See stress.h. Each thread holds a few blocks. A block is filled from end to end on the stream it
 * was allocated on, and verified from end to end before its free: on that stream, or on another one
 * behind an event. Now and then a window is mapped, aliased, written through one address and read
 * through the other. Wrong words are counted by the device and looked at in the end.
 */
#include "stress.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "moonbright.h"

enum { HELD = 6, PAGE = 2 << 20, PAGES = 6 };

struct held {
    char *ptr;
    uint64_t bytes, seed;
    unsigned stream;
};

struct stress {
    const struct stress_plan *plan;
    mb_device dev;
    mb_stream stream[STRESS_STREAMS];
    time_t end;
    bool failed; /* atomic */
};

struct worker {
    struct stress *all;
    struct held held[HELD];
    struct stress_sum sum;
    uint64_t random;
    mb_event event;
    mb_mem mem;
    char *va;
};

static uint64_t next(struct worker *w, uint64_t bound)
{
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return w->random % bound;
}

static bool ok(struct worker *w, enum mb_err err, const char *what)
{
    if (!err)
        return true;
    if (!__atomic_exchange_n(&w->all->failed, true, __ATOMIC_RELAXED))
        fprintf(stderr, "stress: %s: %s: %s\n", what, mb_error_name(err), mb_error_detail());
    return false;
}
#define OK(call) ok(w, call, #call)

static bool give_back(struct worker *w, struct held *h)
{
    struct stress *s = w->all;
    unsigned reader = (unsigned)next(w, STRESS_STREAMS);

    if (!h->ptr)
        return true;
    if (reader != h->stream && (!OK(mb_event_record(s->dev, w->event, s->stream[h->stream])) ||
                                !OK(mb_stream_wait_event(s->dev, s->stream[reader], w->event))))
        return false;
    if (!OK(mb_verify_async(s->dev, h->ptr, h->bytes, h->seed, s->stream[reader])) ||
        !OK(mb_free_async(s->dev, h->ptr, s->stream[reader])))
        return false;
    w->sum.blocks++;
    w->sum.bytes += h->bytes;
    h->ptr = NULL;
    return true;
}

static bool take(struct worker *w, struct held *h)
{
    struct stress *s = w->all;
    uint64_t most = s->plan->most_bytes >> next(w, 16);
    enum mb_err err;
    void *ptr;

    h->bytes = (next(w, most < 8 ? 8 : most) + 8) & ~UINT64_C(7);
    h->stream = (unsigned)next(w, STRESS_STREAMS);
    h->seed = next(w, UINT64_MAX);
    err = mb_malloc_async(s->dev, h->bytes, s->stream[h->stream], &ptr);
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT) {
        w->sum.refused++;
        return true;
    }
    if (!ok(w, err, "mb_malloc_async"))
        return false;
    h->ptr = ptr;
    return OK(mb_fill_async(s->dev, h->ptr, h->bytes, h->seed, s->stream[h->stream]));
}

/* Written at one address, read at the other; the mapping goes on the same stream. */
static bool remap(struct worker *w)
{
    struct stress *s = w->all;
    mb_stream stream = s->stream[next(w, STRESS_STREAMS)];
    uint64_t half = PAGES / 2 * (uint64_t)PAGE, seed = next(w, UINT64_MAX);
    struct mb_map_op ops[2] = {
        {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = w->va, .bytes = half, .mem = w->mem},
        {.kind = MB_ALIAS, .prot = MB_PROT_READ, .va = w->va + half, .bytes = half, .src = w->va}};

    if (!OK(mb_mem_map_async(s->dev, ops, 2, stream)) ||
        !OK(mb_fill_async(s->dev, w->va, half, seed, stream)) ||
        !OK(mb_verify_async(s->dev, w->va + half, half, seed, stream)))
        return false;
    ops[0].kind = MB_UNMAP;
    ops[0].bytes = 2 * half;
    w->sum.maps++;
    return OK(mb_mem_map_async(s->dev, ops, 1, stream));
}

static bool work(struct worker *w)
{
    struct stress *s = w->all;

    for (uint64_t round = 0; !__atomic_load_n(&s->failed, __ATOMIC_RELAXED); round++) {
        struct held *h = &w->held[next(w, HELD)];

        if (s->plan->seconds ? time(NULL) >= s->end : round >= s->plan->rounds)
            break;
        if (!give_back(w, h) || !take(w, h))
            return false;
        if (round % 16 == 15 && !remap(w))
            return false;
        if (round % 64 == 63 && !OK(mb_stream_sync(s->dev, s->stream[next(w, STRESS_STREAMS)])))
            return false;
    }
    for (unsigned i = 0; i < HELD; i++) {
        if (!give_back(w, &w->held[i]))
            return false;
    }
    return true;
}

/* Before any thread runs: on a tight device, blocks of the first ones could take what a later one
 * needs for its window. */
static bool prepare(struct worker *w, struct stress *s, uint64_t random)
{
    w->all = s;
    w->random = random | 1;
    return OK(mb_event_create(s->dev, &w->event)) &&
           OK(mb_mem_create(s->dev, PAGES / 2 * (uint64_t)PAGE, &w->mem)) &&
           OK(mb_mem_reserve(s->dev, PAGES * (uint64_t)PAGE, 0, (void **)&w->va));
}

static void *worker_run(void *user)
{
    struct worker *w = user;
    mb_device dev = w->all->dev;

    if (work(w)) {
        (void)OK(mb_mem_unreserve(dev, w->va, PAGES * (uint64_t)PAGE));
        (void)OK(mb_mem_release(dev, w->mem));
        (void)OK(mb_event_destroy(dev, w->event));
    }
    return NULL;
}

/* Nothing is wrong after all of it, and nothing is left. */
static int judge(struct stress *s)
{
    struct mb_tables_report report = {0};
    struct mb_stats stats;
    struct worker self = {.all = s}, *w = &self;

    if (!OK(mb_device_sync(s->dev)) || !OK(mb_check(s->dev)) || !OK(mb_stats_get(s->dev, &stats)))
        return 1;
    /* Driver tables cannot be read; everything else must agree. */
    if (strcmp(mb_device_tables(s->dev), "driver") != 0 &&
        !OK(mb_check_tables(s->dev, false, &report)))
        return 1;
    if (stats.wrong_words || stats.wrong_accesses) {
        fprintf(stderr, "stress: %llu wrong words, %llu wrong accesses\n",
                (unsigned long long)stats.wrong_words, (unsigned long long)stats.wrong_accesses);
        return 1;
    }
    return 0;
}

int stress_run(const struct stress_plan *plan, struct stress_sum *sum)
{
    static struct worker worker[STRESS_THREADS];
    struct stress s = {.plan = plan, .end = time(NULL) + (time_t)plan->seconds};
    struct worker self = {.all = &s}, *w = &self;
    pthread_t thread[STRESS_THREADS];
    unsigned started = 0;
    int rc;

    *sum = (struct stress_sum){0};
    memset(worker, 0, sizeof(worker));
    if (!OK(mb_open(0, plan->config, &s.dev)))
        return 1;
    for (unsigned i = 1; i < STRESS_STREAMS; i++) {
        if (!OK(mb_stream_create(s.dev, &s.stream[i])))
            return 1;
    }
    for (unsigned i = 0; i < STRESS_THREADS; i++) {
        if (!prepare(&worker[i], &s, (plan->seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15)))
            return 1;
    }
    for (; started < STRESS_THREADS; started++) {
        if (pthread_create(&thread[started], NULL, worker_run, &worker[started]))
            break;
    }
    for (unsigned i = 0; i < started; i++) {
        pthread_join(thread[i], NULL);
        sum->blocks += worker[i].sum.blocks;
        sum->bytes += worker[i].sum.bytes;
        sum->refused += worker[i].sum.refused;
        sum->maps += worker[i].sum.maps;
    }
    rc = s.failed || started < STRESS_THREADS ? 1 : judge(&s);
    for (unsigned i = 1; i < STRESS_STREAMS && !rc; i++)
        rc = !OK(mb_stream_destroy(s.dev, s.stream[i]));
    mb_close(s.dev);
    return rc;
}

#ifdef STRESS_MAIN
/* stress CONFIG SECONDS [SEED] */
int main(int argc, char **argv)
{
    struct stress_plan plan = {.most_bytes = UINT64_C(256) << 20};
    struct stress_sum sum;
    int rc;

    if (argc < 3) {
        fprintf(stderr, "usage: stress CONFIG SECONDS [SEED]\n");
        return 2;
    }
    plan.config = argv[1];
    plan.seconds = strtoull(argv[2], NULL, 0);
    plan.seed = argc > 3 ? strtoull(argv[3], NULL, 0) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)plan.seed);
    rc = stress_run(&plan, &sum);
    printf("RESULT stress %d threads %d streams %llu s: %llu blocks, %llu bytes read back, %llu "
           "refused, %llu windows, %s\n",
           STRESS_THREADS, STRESS_STREAMS, (unsigned long long)plan.seconds,
           (unsigned long long)sum.blocks, (unsigned long long)sum.bytes,
           (unsigned long long)sum.refused, (unsigned long long)sum.maps, rc ? "WRONG" : "0 wrong");
    return rc;
}
#endif
