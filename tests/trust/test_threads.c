/* SPDX-License-Identifier: MIT */
/*
 * Threads and streams at once: every public call from every thread, blocks handed from thread to
 * thread and from stream to stream, with contents verified. Under TSan this is the test of the
 * locks.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

enum { THREADS = 8, STREAMS = 6, SHARED = 64, ROUNDS = 250, PAGES = 12 };

/* A block on its way from one thread to another. */
struct parcel {
    void *ptr;
    uint64_t bytes, seed;
    unsigned stream;
};

struct crowd {
    mb_device dev;
    mb_stream stream[STREAMS];
    pthread_mutex_t lock; /* of parcel */
    struct parcel parcel[SHARED];
    uint64_t calls, refused; /* atomic */
};

struct member {
    struct crowd *crowd;
    uint64_t state;
    mb_event event;
    mb_mem mem;
    char *va;
    bool mapped;
};

static void swap_parcel(struct member *m, struct parcel *mine)
{
    unsigned at = (unsigned)mb_test_random_below(&m->state, SHARED);
    struct parcel other;

    pthread_mutex_lock(&m->crowd->lock);
    other = m->crowd->parcel[at];
    m->crowd->parcel[at] = *mine;
    pthread_mutex_unlock(&m->crowd->lock);
    *mine = other;
}

/* Verifies and frees a block, perhaps on another stream behind an event. */
static void consume(struct member *m, struct parcel *p)
{
    struct crowd *c = m->crowd;
    unsigned stream = (unsigned)mb_test_random_below(&m->state, STREAMS);

    if (!p->ptr)
        return;
    if (stream != p->stream) {
        RT_MUST(mb_event_record(c->dev, m->event, c->stream[p->stream]));
        RT_MUST(mb_stream_wait_event(c->dev, c->stream[stream], m->event));
    }
    RT_MUST(mb_verify_async(c->dev, p->ptr, p->bytes < 4096 ? p->bytes / 8 * 8 : 4096, p->seed,
                            c->stream[stream]));
    RT_MUST(mb_free_async(c->dev, p->ptr, c->stream[stream]));
    p->ptr = NULL;
}

static void produce(struct member *m, struct parcel *p)
{
    struct crowd *c = m->crowd;
    enum mb_err err;

    p->stream = (unsigned)mb_test_random_below(&m->state, STREAMS);
    p->bytes = mb_test_random_below(&m->state, 4) ? mb_test_random_below(&m->state, 100000) + 8
                                                  : mb_test_random_below(&m->state, 6 * RT_MIB) + 8;
    p->seed = mb_test_random(&m->state);
    err = mb_malloc_async(c->dev, p->bytes, c->stream[p->stream], &p->ptr);
    if (err) {
        __atomic_add_fetch(&c->refused, 1, __ATOMIC_RELAXED);
        p->ptr = NULL;
        return;
    }
    RT_MUST(mb_fill_async(c->dev, p->ptr, p->bytes < 4096 ? p->bytes / 8 * 8 : 4096, p->seed,
                          c->stream[p->stream]));
}

/* The thread's own pages: mapped, aliased, used and unmapped on any stream. */
static void remap(struct member *m)
{
    struct crowd *c = m->crowd;
    mb_stream stream = c->stream[mb_test_random_below(&m->state, STREAMS)];
    uint64_t seed = mb_test_random(&m->state), half = PAGES / 2 * 2 * RT_MIB;
    struct mb_map_op ops[2] = {
        {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = m->va, .bytes = half, .mem = m->mem},
        {.kind = MB_ALIAS,
         .prot = MB_PROT_READ_WRITE,
         .va = m->va + half,
         .bytes = half,
         .src = m->va}};

    RT_MUST(mb_mem_map_async(c->dev, ops, 2, stream));
    RT_MUST(mb_fill_async(c->dev, m->va + RT_MIB, 8192, seed, stream));
    RT_MUST(mb_verify_async(c->dev, m->va + half + RT_MIB, 8192, seed, stream));
    ops[0].kind = MB_UNMAP;
    ops[0].bytes = 2 * half;
    RT_MUST(mb_mem_map_async(c->dev, ops, 1, stream));
}

static void look_around(struct member *m)
{
    struct crowd *c = m->crowd;
    struct mb_stats stats;
    mb_pool pool;
    void *ptr = NULL;

    switch (mb_test_random_below(&m->state, 6)) {
    case 0:
        RT_MUST(mb_check(c->dev));
        break;
    case 1:
        RT_MUST(mb_check_tables(c->dev, mb_test_random(&m->state) & 1, NULL));
        break;
    case 2:
        RT_MUST(mb_stats_get(c->dev, &stats));
        break;
    case 3:
        RT_MUST(mb_pool_create(c->dev, &pool));
        if (!mb_pool_malloc_async(pool, 70000, c->stream[1], &ptr))
            RT_MUST(mb_free_async(c->dev, ptr, c->stream[1]));
        /* Streams of other threads may still be in front of the free. */
        while (mb_pool_destroy(pool) == MB_ERR_BUSY)
            RT_MUST(mb_device_sync(c->dev));
        break;
    case 4:
        RT_MUST(mb_device_sync(c->dev));
        break;
    default:
        RT_MUST(mb_pool_default(c->dev, &pool));
        RT_MUST(mb_pool_trim(pool, 32 * RT_MIB));
        break;
    }
}

static void *member_run(void *user)
{
    struct member *m = user;
    struct crowd *c = m->crowd;
    struct parcel mine = {0};

    RT_MUST(mb_event_create(c->dev, &m->event));
    RT_MUST(mb_mem_create(c->dev, PAGES / 2 * 2 * RT_MIB, &m->mem));
    RT_MUST(mb_mem_reserve(c->dev, PAGES * 2 * RT_MIB, 0, (void **)&m->va));
    for (unsigned i = 0; i < ROUNDS; i++) {
        consume(m, &mine);
        produce(m, &mine);
        swap_parcel(m, &mine);
        if (i % 8 == 0)
            remap(m);
        if (i % 32 == 31)
            look_around(m);
        __atomic_add_fetch(&c->calls, 1, __ATOMIC_RELAXED);
    }
    consume(m, &mine);
    RT_MUST(mb_mem_unreserve(c->dev, m->va, PAGES * 2 * RT_MIB));
    RT_MUST(mb_mem_release(c->dev, m->mem));
    RT_MUST(mb_event_destroy(c->dev, m->event));
    return NULL;
}

static void run_crowd(const char *config)
{
    static struct crowd crowd;
    static struct member member[THREADS];
    pthread_t thread[THREADS];

    memset(&crowd, 0, sizeof(crowd));
    memset(member, 0, sizeof(member));
    CHECK_EQ(pthread_mutex_init(&crowd.lock, NULL), 0);
    crowd.dev = rt_open(config);
    for (unsigned i = 1; i < STREAMS; i++)
        crowd.stream[i] = rt_stream(crowd.dev);
    for (unsigned i = 0; i < THREADS; i++) {
        member[i].crowd = &crowd;
        member[i].state = mb_test_seed() * 31 + i;
        CHECK_EQ(pthread_create(&thread[i], NULL, member_run, &member[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
    for (unsigned i = 0; i < SHARED; i++)
        consume(&member[0], &(struct parcel){0});
    for (unsigned i = 0; i < SHARED; i++) {
        struct parcel *p = &crowd.parcel[i];

        if (!p->ptr)
            continue;
        rt_clean(crowd.dev);
        RT_OK(mb_verify_async(crowd.dev, p->ptr, p->bytes < 4096 ? p->bytes / 8 * 8 : 4096, p->seed,
                              crowd.stream[p->stream]));
        RT_OK(mb_free_async(crowd.dev, p->ptr, crowd.stream[p->stream]));
    }
    printf("COUNT rounds of 8 threads on 6 streams %llu\n", (unsigned long long)(crowd.calls));
    printf("%s: %llu rounds, %llu requests refused\n", config, (unsigned long long)crowd.calls,
           (unsigned long long)crowd.refused);
    for (unsigned i = 1; i < STREAMS; i++)
        RT_OK(mb_stream_destroy(crowd.dev, crowd.stream[i]));
    rt_close(crowd.dev);
    pthread_mutex_destroy(&crowd.lock);
}

TEST(roomy)
{
    run_crowd("backend:sim,device_memory:1g");
}

TEST(tight_and_explored)
{
    run_crowd("backend:sim,device_memory:192m,explore:yes,seed:3");
}

TEST(fresh_addresses)
{
    run_crowd("backend:sim,device_memory:512m,policy:fresh,deferred:yes");
}

TEST(isolated_homes_by_the_driver)
{
    run_crowd("backend:sim,device_memory:512m,tables:isolated,driver_home:yes");
}
