/* SPDX-License-Identifier: MIT */
/*
 * Misuse that needs two threads or two devices: objects destroyed twice at once, blocks freed
 * while they are shown elsewhere, frames of another device. One caller wins, the other is told; the
 * record holds, and no access is wrong.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "runtime/runtime.h"
#include "support/runtime_rig.h"

enum { RACES = 2000, PAGE = 2 << 20 };

/* ------------------------------------------------------------ destroyed twice at once */

enum kind { EVENT, POOL, STREAM, MEM, RANGE, KINDS };

struct pair {
    mb_device dev;
    enum kind kind;
    void *object;
    unsigned arrived; /* atomic */
    pthread_barrier_t start, end;
    enum mb_err result[2];
};

static enum mb_err destroy(struct pair *p)
{
    switch (p->kind) {
    case EVENT:
        return mb_event_destroy(p->dev, p->object);
    case POOL:
        return mb_pool_destroy(p->object);
    case STREAM:
        return mb_stream_destroy(p->dev, p->object);
    case MEM:
        return mb_mem_release(p->dev, p->object);
    default:
        return mb_mem_unreserve(p->dev, p->object, PAGE);
    }
}

static void *create(struct pair *p)
{
    void *object = NULL;

    switch (p->kind) {
    case EVENT:
        RT_OK(mb_event_create(p->dev, (mb_event *)&object));
        break;
    case POOL:
        RT_OK(mb_pool_create(p->dev, (mb_pool *)&object));
        break;
    case STREAM:
        RT_OK(mb_stream_create(p->dev, (mb_stream *)&object));
        break;
    case MEM:
        RT_OK(mb_mem_create(p->dev, PAGE, (mb_mem *)&object));
        break;
    default:
        RT_OK(mb_mem_reserve(p->dev, PAGE, 0, &object));
        break;
    }
    return object;
}

static void *destroyer(void *user)
{
    struct pair *p = user;

    for (unsigned i = 0; i < RACES; i++) {
        pthread_barrier_wait(&p->start);
        p->result[1] = destroy(p);
        pthread_barrier_wait(&p->end);
    }
    return NULL;
}

TEST(destroyed_by_two_threads)
{
    static struct pair p;
    pthread_t thread;

    memset(&p, 0, sizeof(p));
    p.dev = rt_open("backend:sim,device_memory:256m");
    CHECK_EQ(pthread_barrier_init(&p.start, NULL, 2), 0);
    CHECK_EQ(pthread_barrier_init(&p.end, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, destroyer, &p), 0);
    for (unsigned i = 0; i < RACES; i++) {
        p.kind = (enum kind)(i % KINDS);
        p.object = create(&p);
        pthread_barrier_wait(&p.start);
        p.result[0] = destroy(&p);
        pthread_barrier_wait(&p.end);
        CHECK_EQ(!p.result[0] + !p.result[1], 1);
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&p.start);
    pthread_barrier_destroy(&p.end);
    printf("COUNT objects destroyed by two threads at once %d\n", RACES);
    RT_OK(mb_check(p.dev));
    rt_close(p.dev);
}

static void *one_destroyer(void *user)
{
    struct pair *p = user;
    const unsigned me = __atomic_fetch_add(&p->arrived, 1, __ATOMIC_RELAXED);

    pthread_barrier_wait(&p->start);
    p->result[me] = destroy(p);
    return NULL;
}

/* Both threads find the object alive and wait for the lock, which the test holds. */
TEST(destroyed_while_another_waits)
{
    static struct pair p;

    memset(&p, 0, sizeof(p));
    p.dev = rt_open("backend:sim,device_memory:256m");
    CHECK_EQ(pthread_barrier_init(&p.start, NULL, 3), 0);
    for (unsigned i = 0; i < 10 * KINDS; i++) {
        pthread_t threads[2];

        p.kind = (enum kind)(i % KINDS);
        p.object = create(&p);
        p.arrived = 0;
        for (unsigned t = 0; t < 2; t++)
            CHECK_EQ(pthread_create(&threads[t], NULL, one_destroyer, &p), 0);
        mb__lock(&p.dev->lock);
        pthread_barrier_wait(&p.start);
        usleep(1000); /* if one of them comes later, it is only the easier case */
        mb__unlock(&p.dev->lock);
        for (unsigned t = 0; t < 2; t++)
            CHECK_EQ(pthread_join(threads[t], NULL), 0);
        CHECK_EQ(!p.result[0] + !p.result[1], 1);
    }
    pthread_barrier_destroy(&p.start);
    RT_OK(mb_check(p.dev));
    rt_close(p.dev);
}

/* A call that waits for the lock while the pool goes is refused like one that comes later. */
struct late {
    mb_pool pool;
    unsigned call;
    enum mb_err err;
};

static void *late_caller(void *user)
{
    struct late *late = user;
    uint64_t value;
    void *block;

    switch (late->call) {
    case 0:
        late->err = mb_pool_malloc_async(late->pool, 4096, NULL, &block);
        break;
    case 1:
        late->err = mb_pool_trim(late->pool, 0);
        break;
    case 2:
        late->err = mb_pool_set(late->pool, MB_POOL_LIMIT, 1 << 30);
        break;
    default:
        late->err = mb_pool_get(late->pool, MB_POOL_LIMIT, &value);
        break;
    }
    return NULL;
}

TEST(pool_goes_before_a_call_has_the_lock)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");

    for (unsigned i = 0; i < 40; i++) {
        struct late late = {.call = i % 4, .err = MB_ERR_BUSY};
        pthread_t thread;

        RT_OK(mb_pool_create(dev, &late.pool));
        mb__lock(&dev->lock);
        CHECK_EQ(pthread_create(&thread, NULL, late_caller, &late), 0);
        usleep(1000);
        RT_OK(mb__pool_delete(late.pool));
        mb__unlock(&dev->lock);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_EQ(late.err, MB_ERR_INVALID);
    }
    RT_OK(mb_check(dev));
    rt_close(dev);
}

/* ------------------------------------------------------------ free against map */

struct race {
    mb_device dev;
    void *block;
    char *va;
    mb_stream stream;
    pthread_barrier_t start, end;
    enum mb_err mapped;
    unsigned shown;
};

/* Shows the block's pages elsewhere while its owner frees it. */
static void *mapper(void *user)
{
    struct race *r = user;

    for (unsigned i = 0; i < RACES; i++) {
        struct mb_map_op op = {.kind = MB_ALIAS, .prot = MB_PROT_READ_WRITE, .bytes = 2 * PAGE};

        pthread_barrier_wait(&r->start);
        op.va = r->va;
        op.src = (void *)(((uintptr_t)r->block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        r->mapped = mb_mem_map_async(r->dev, &op, 1, r->stream);
        pthread_barrier_wait(&r->end);
    }
    return NULL;
}

/*
 * Either the alias came first, then the frames stay as they are until it is gone, or the free did,
 * then there is nothing to show. New blocks filled meanwhile must not show through.
 */
TEST(free_races_with_map)
{
    static struct race r;
    uint64_t state = mb_test_seed();
    mb_stream other;
    pthread_t thread;

    memset(&r, 0, sizeof(r));
    r.dev = rt_open("backend:sim,device_memory:128m");
    r.stream = rt_stream(r.dev);
    other = rt_stream(r.dev);
    RT_OK(mb_mem_reserve(r.dev, 2 * PAGE, 0, (void **)&r.va));
    CHECK_EQ(pthread_barrier_init(&r.start, NULL, 2), 0);
    CHECK_EQ(pthread_barrier_init(&r.end, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, mapper, &r), 0);
    for (unsigned i = 0; i < RACES; i++) {
        struct mb_map_op unmap = {.kind = MB_UNMAP, .va = r.va, .bytes = 2 * PAGE};
        char *page;
        void *next;

        r.block = rt_malloc(r.dev, 3 * PAGE, other);
        page = (char *)(((uintptr_t)r.block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
        RT_OK(mb_fill_async(r.dev, page, 2 * PAGE, i, other));
        RT_OK(mb_stream_sync(r.dev, other));
        pthread_barrier_wait(&r.start);
        /* Somewhere in the middle of the map, which takes a few microseconds. */
        for (uint64_t spin = mb_test_random_below(&state, 20000); spin; spin--)
            __asm__ volatile("" ::: "memory");
        RT_OK(mb_free_async(r.dev, r.block, other));
        pthread_barrier_wait(&r.end);
        next = rt_malloc(r.dev, 3 * PAGE, other);
        RT_OK(mb_fill_async(r.dev, next, 3 * PAGE, ~(uint64_t)i, other));
        CHECK(!r.mapped || r.mapped == MB_ERR_NOT_FOUND);
        if (!r.mapped) {
            r.shown++;
            RT_OK(mb_verify_async(r.dev, r.va, 2 * PAGE, i, r.stream));
            RT_OK(mb_mem_map_async(r.dev, &unmap, 1, r.stream));
        }
        RT_OK(mb_free_async(r.dev, next, other));
        if (i % 100 == 0)
            RT_OK(mb_check(r.dev));
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&r.start);
    pthread_barrier_destroy(&r.end);
    printf("COUNT frees that raced with an alias of their block %d\n", RACES);
    printf("%u of them after the alias\n", r.shown);
    rt_clean(r.dev);
    RT_OK(mb_mem_unreserve(r.dev, r.va, 2 * PAGE));
    RT_OK(mb_stream_destroy(r.dev, r.stream));
    RT_OK(mb_stream_destroy(r.dev, other));
    rt_close(r.dev);
}

/* ------------------------------------------------------------ frames of another device */

static void refused(mb_device dev, struct mb_map_op op, enum mb_err want)
{
    CHECK_EQ(mb_mem_map(dev, &op), want);
    CHECK(mb_error_detail()[0] != 0);
}

/* A block, a mapping and a memory object of one device cannot be shown by another. */
TEST(aliases_of_another_device)
{
    mb_device a = rt_open("backend:sim,device_memory:128m"),
              b = rt_open("backend:sim,device_memory:128m");
    struct mb_map_op op = {.prot = MB_PROT_READ_WRITE, .bytes = PAGE};
    void *block = rt_malloc(a, 8 * PAGE, NULL), *va_a, *va_b, *apart;
    struct mb_hw_counters before, after;
    mb_mem mem;

    RT_OK(mb_mem_create(a, 2 * PAGE, &mem));
    /* Software GPUs begin with the same addresses, which are then each one's own. */
    RT_OK(mb_mem_reserve(a, 64 * PAGE, 0, &apart));
    RT_OK(mb_mem_reserve(a, 2 * PAGE, 0, &va_a));
    RT_OK(mb_mem_reserve(b, 4 * PAGE, 0, &va_b));
    op.va = va_a;
    op.kind = MB_MAP;
    op.mem = mem;
    RT_OK(mb_mem_map(a, &op));
    RT_OK(mb_device_sync(b));
    b->hw->ops->counters(b->hw, &before);
    op.va = va_b;
    CHECK_NE((uintptr_t)va_a, (uintptr_t)va_b);
    refused(b, op, MB_ERR_NOT_FOUND); /* the memory object */
    op.kind = MB_ALIAS;
    op.src = va_a;
    refused(b, op, MB_ERR_NOT_FOUND);
    op.src = (void *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    refused(b, op, MB_ERR_NOT_FOUND);
    op.va = va_a; /* into a's reservation, from b's point of view */
    op.src = va_b;
    refused(b, op, MB_ERR_NOT_FOUND);
    RT_OK(mb_device_sync(b));
    b->hw->ops->counters(b->hw, &after);
    CHECK_EQ(after.entries_written, before.entries_written);
    RT_OK(mb_check(a));
    RT_OK(mb_check(b));
    RT_OK(mb_check_tables(a, false, NULL));
    RT_OK(mb_check_tables(b, false, NULL));
    rt_clean(a);
    mb_close(b);
    mb_close(a);
}
