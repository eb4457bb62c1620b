/* SPDX-License-Identifier: MIT */
/*
 * Callers and kernels that do not play by the rules: handles that are none, blocks freed twice or
 * from two threads, accesses after the free on every stream, kernels that store wherever they can.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"
#include "vm_peek.h"

static struct mb_hw_stream *hw_stream(mb_device dev, mb_stream native)
{
    struct mb_hw_stream *stream;

    RT_OK(sim_of(dev)->ops->stream_open(sim_of(dev), native, &stream));
    return stream;
}

/* ------------------------------------------------------------ forged handles */

enum { FORGED = 4096 };

/* Memory that holds no object: zeros, ones, random bytes, what a freed object left. */
static void *forge(uint64_t *state, char *memory)
{
    unsigned kind = (unsigned)mb_test_random_below(state, 3);

    for (unsigned i = 0; i < FORGED; i++)
        memory[i] = kind == 0 ? 0 : kind == 1 ? -1 : (char)mb_test_random(state);
    return memory + 8 * mb_test_random_below(state, FORGED / 16);
}

TEST(forged_handles)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    static _Alignas(64) char memory[FORGED];
    uint64_t state = mb_test_seed();
    void *block = rt_malloc(dev, 100000, NULL);
    unsigned tried = 0;

    for (unsigned round = 0; round < 5000; round++) {
        void *fake = forge(&state, memory), *out = NULL;
        struct mb_pointer_info info;
        struct mb_map_op op = {.kind = MB_MAP,
                               .prot = MB_PROT_READ_WRITE,
                               .va = fake,
                               .bytes = 2 * RT_MIB,
                               .mem = fake};
        uint64_t value;

        CHECK_EQ(mb_malloc(fake, 100, &out), MB_ERR_INVALID);
        CHECK_EQ(mb_free(fake, block), MB_ERR_INVALID);
        CHECK_EQ(mb_device_sync(fake), MB_ERR_INVALID);
        CHECK_EQ(mb_pool_get(fake, MB_POOL_LIMIT, &value), MB_ERR_INVALID);
        CHECK_EQ(mb_pool_destroy(fake), MB_ERR_INVALID);
        CHECK_EQ(mb_event_destroy(dev, fake), MB_ERR_INVALID);
        CHECK_EQ(mb_event_record(dev, fake, NULL), MB_ERR_INVALID);
        CHECK_EQ(mb_stream_wait_event(dev, NULL, fake), MB_ERR_INVALID);
        CHECK_EQ(mb_stream_destroy(dev, fake), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_mem_release(dev, fake), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_free(dev, fake), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_free_async(dev, fake, NULL), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_realloc(dev, fake, 10, &out), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_record_stream(dev, fake, NULL), MB_ERR_NOT_FOUND);
        CHECK_EQ(mb_pointer_info(dev, fake, &info), MB_ERR_NOT_FOUND);
        CHECK_NE(mb_mem_map(dev, &op), MB_OK);
        CHECK_NE(mb_mem_unreserve(dev, fake, 2 * RT_MIB), MB_OK);
        CHECK_PTR_EQ(out, NULL);
        tried += 17;
    }
    printf("COUNT calls with forged handles %u\n", tried);
    RT_OK(mb_free(dev, block));
    rt_close(dev);
}

/* Pointers to nowhere, to code, to the middle of live objects: none is followed. */
TEST(wild_handles)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    uint64_t state = mb_test_seed(), tried = 0;
    mb_event event;
    mb_pool pool;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_pool_create(dev, &pool));
    for (unsigned round = 0; round < 20000; round++) {
        uintptr_t near[] = {(uintptr_t)dev, (uintptr_t)event, (uintptr_t)pool,
                            (uintptr_t)&mb_malloc, (uintptr_t)&state};
        uintptr_t base = near[mb_test_random_below(&state, 5)];
        unsigned kind = (unsigned)mb_test_random_below(&state, 4);
        void *wild =
            (void *)(kind == 0   ? (uintptr_t)mb_test_random(&state)
                     : kind == 1 ? (uintptr_t)mb_test_random_below(&state, 4096)
                     : kind == 2 ? base + 1 + mb_test_random_below(&state, 64)
                                 : base ^ (uintptr_t)1 << mb_test_random_below(&state, 64));
        struct mb_map_op op = {.kind = MB_MAP,
                               .prot = MB_PROT_READ_WRITE,
                               .va = wild,
                               .bytes = 2 * RT_MIB,
                               .mem = wild};
        struct mb_stats stats;
        void *out = NULL;
        uint64_t value;

        if (wild == (void *)dev || wild == (void *)event || wild == (void *)pool)
            continue;
        CHECK_EQ(mb_malloc_async(wild, 100, NULL, &out), MB_ERR_INVALID);
        CHECK_EQ(mb_free_async(wild, wild, NULL), MB_ERR_INVALID);
        CHECK_EQ(mb_stats_get(wild, &stats), MB_ERR_INVALID);
        CHECK_EQ(mb_check_tables(wild, true, NULL), MB_ERR_INVALID);
        CHECK_STR_EQ(mb_device_name(wild), "");
        mb_close(wild);
        CHECK_EQ(mb_pool_malloc_async(wild, 100, NULL, &out), MB_ERR_INVALID);
        CHECK_EQ(mb_pool_get(wild, MB_POOL_LIMIT, &value), MB_ERR_INVALID);
        CHECK_EQ(mb_pool_trim(wild, 0), MB_ERR_INVALID);
        CHECK_EQ(mb_pool_destroy(wild), MB_ERR_INVALID);
        CHECK_EQ(mb_event_record(dev, wild, NULL), MB_ERR_INVALID);
        CHECK_EQ(mb_stream_wait_event(dev, NULL, wild), MB_ERR_INVALID);
        CHECK_EQ(mb_event_destroy(dev, wild), MB_ERR_INVALID);
        if (wild) {
            CHECK_EQ(mb_mem_release(dev, wild), MB_ERR_NOT_FOUND);
            CHECK_EQ(mb_free(dev, wild), MB_ERR_NOT_FOUND);
        }
        CHECK_NE(mb_mem_map(dev, &op), MB_OK);
        CHECK_PTR_EQ(out, NULL);
        tried += 16;
    }
    printf("COUNT calls with wild handles %llu\n", (unsigned long long)tried);
    RT_OK(mb_event_destroy(dev, event));
    RT_OK(mb_pool_destroy(pool));
    rt_close(dev);
}

/* Handles of a device that was closed, whose memory the heap may have given to others. */
TEST(handles_of_a_closed_device)
{
    void *filler[64];
    mb_device dev = rt_open("backend:sim,device_memory:64m"), next;
    mb_event event;
    mb_pool pool;
    uint64_t value;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_pool_create(dev, &pool));
    mb_close(dev);
    for (unsigned i = 0; i < 64; i++) {
        filler[i] = malloc(64 + 16 * i);
        CHECK(filler[i] != NULL);
        memset(filler[i], 0x6d, 64 + 16 * i);
    }
    CHECK_EQ(mb_pool_get(pool, MB_POOL_LIMIT, &value), MB_ERR_INVALID);
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_INVALID);
    next = rt_open("backend:sim,device_memory:64m");
    CHECK_EQ(mb_event_destroy(next, event), MB_ERR_INVALID);
    CHECK_EQ(mb_event_record(next, event, NULL), MB_ERR_INVALID);
    for (unsigned i = 0; i < 64; i++)
        free(filler[i]);
    rt_close(next);
}

/* Handles of objects that are gone: of another device, destroyed, closed. */
TEST(stale_handles)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m"), other;
    mb_event event;
    mb_pool pool;
    mb_mem mem;
    mb_stream stream = rt_stream(dev);
    void *block = rt_malloc(dev, 5000, stream), *out = NULL;
    uint64_t value;

    other = rt_open("backend:sim,device_memory:64m");
    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_mem_create(dev, 2 * RT_MIB, &mem));
    CHECK_EQ(mb_event_record(other, event, NULL), MB_ERR_INVALID);
    CHECK_EQ(mb_event_destroy(other, event), MB_ERR_INVALID);
    CHECK_EQ(mb_mem_release(other, mem), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_free(other, block), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_stream_destroy(other, stream), MB_ERR_NOT_FOUND);
    RT_OK(mb_event_destroy(dev, event));
    CHECK_EQ(mb_event_destroy(dev, event), MB_ERR_INVALID);
    CHECK_EQ(mb_event_record(dev, event, stream), MB_ERR_INVALID);
    CHECK_EQ(mb_stream_wait_event(dev, stream, event), MB_ERR_INVALID);
    RT_OK(mb_pool_destroy(pool));
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_INVALID);
    CHECK_EQ(mb_pool_get(pool, MB_POOL_LIMIT, &value), MB_ERR_INVALID);
    CHECK_EQ(mb_pool_malloc_async(pool, 100, NULL, &out), MB_ERR_INVALID);
    RT_OK(mb_mem_release(dev, mem));
    CHECK_EQ(mb_mem_release(dev, mem), MB_ERR_NOT_FOUND);
    RT_OK(mb_free_async(dev, block, stream));
    RT_OK(mb_stream_destroy(dev, stream));
    CHECK_EQ(mb_stream_destroy(dev, stream), MB_ERR_NOT_FOUND);
    rt_close(dev);
    CHECK_EQ(mb_free(dev, block),
             MB_ERR_INVALID); /* a device's handle is known to be dead for ever */
    rt_close(other);
}

/* ------------------------------------------------------------ double frees */

static void refused(enum mb_err err)
{
    CHECK(err == MB_ERR_NOT_FOUND || err == MB_ERR_DOUBLE_FREE);
}

TEST(freed_twice_and_inside)
{
    static const char *const configs[] = {"", ",cache:no", ",check:uaf", ",driver_home:yes"};

    for (unsigned c = 0; c < 4; c++) {
        char config[128];
        mb_device dev;

        snprintf(config, sizeof(config), "backend:sim,device_memory:256m%s", configs[c]);
        dev = rt_open(config);
        for (uint64_t bytes = 1; bytes < 64 * RT_MIB; bytes = bytes * 3 + 17) {
            char *block = rt_malloc(dev, bytes, NULL);

            CHECK_EQ(mb_free(dev, block + 8), MB_ERR_NOT_FOUND);
            /* A block may have been there before. */
            refused(mb_free(dev, block - 512));
            refused(mb_free_async(dev, block + bytes, NULL));
            RT_OK(mb_free_async(dev, block, NULL));
            CHECK_EQ(mb_free_async(dev, block, NULL), MB_ERR_DOUBLE_FREE);
            CHECK_EQ(mb_free(dev, block), MB_ERR_DOUBLE_FREE);
        }
        rt_close(dev);
    }
}

enum { RACES = 3000 };

struct race {
    mb_device dev;
    void *block[RACES];
    pthread_barrier_t start;
    unsigned won[2];
    unsigned bad; /* answers that are neither success nor «freed before»; atomic */
};

static void free_race(struct race *race, unsigned me)
{
    for (unsigned i = 0; i < RACES; i++) {
        enum mb_err err;

        pthread_barrier_wait(&race->start);
        err = me ? mb_free(race->dev, race->block[i])
                 : mb_free_async(race->dev, race->block[i], NULL);
        race->won[me] += !err;
        if (err && err != MB_ERR_DOUBLE_FREE)
            __atomic_add_fetch(&race->bad, 1, __ATOMIC_RELAXED);
    }
}

static void *second_thread(void *user)
{
    free_race(user, 1);
    return NULL;
}

/* Two threads free the same block at once: one succeeds, the other is told. */
TEST(freed_by_two_threads)
{
    static struct race race;
    pthread_t thread;

    memset(&race, 0, sizeof(race));
    race.dev = rt_open("backend:sim,device_memory:512m");
    for (unsigned i = 0; i < RACES; i++)
        race.block[i] = rt_malloc(race.dev, i % 7 ? 2048 : 70000, NULL);
    CHECK_EQ(pthread_barrier_init(&race.start, NULL, 2), 0);
    CHECK_EQ(pthread_create(&thread, NULL, second_thread, &race), 0);
    free_race(&race, 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&race.start);
    printf("COUNT blocks freed by two threads at once %d\n", RACES);
    printf("%u and %u times the one or the other was first\n", race.won[0], race.won[1]);
    CHECK_EQ(race.won[0] + race.won[1], RACES);
    CHECK_EQ(race.bad, 0);
    rt_close(race.dev);
}

/* ------------------------------------------------------------ use after free */

/* With check:uaf an access after the free is a fault, on whatever stream it is made. */
TEST(use_after_free_on_every_stream)
{
    for (unsigned user = 0; user < 4; user++) {
        mb_device dev = rt_open("backend:sim,device_memory:256m,check:uaf");
        struct mb_sim_step step = {.kind = MB_SIM_ST, .value = 0xbad};
        mb_stream stream[4] = {NULL};
        void *block;

        for (unsigned i = 1; i < 4; i++)
            stream[i] = rt_stream(dev);
        block = rt_malloc(dev, 3 * RT_MIB, stream[0]);
        rt_fill(dev, block, 3 * RT_MIB, 1, stream[0]);
        RT_OK(mb_free_async(dev, block, stream[0]));
        RT_OK(mb_device_sync(dev));
        step.va.addr = (uint64_t)(uintptr_t)block + RT_MIB;
        RT_OK(mb__sim_kernel(sim_of(dev), hw_stream(dev, stream[user]), &step, 1, MB_SIM_ROGUE));
        CHECK_EQ(mb_device_sync(dev), MB_ERR_DEVICE_LOST);
        mb_close(dev);
    }
}

/*
 * Without the check, a block at home stays mapped: what a stray access reaches is memory of this
 * process's own pool. It never reaches a frame that is not held, nor one through a window that was
 * unmapped.
 */
TEST(stray_access_stays_inside_the_pool)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct mb_sim_step step = {.kind = MB_SIM_ST, .value = 0xbad};
    struct mb_sim_counters counters;
    void *block = rt_malloc(dev, 3 * RT_MIB, NULL);

    RT_OK(mb_free_async(dev, block, NULL));
    step.va.addr = (uint64_t)(uintptr_t)block;
    RT_OK(mb__sim_kernel(sim_of(dev), hw_stream(dev, NULL), &step, 1, MB_SIM_ROGUE));
    RT_OK(mb_device_sync(dev));
    mb__sim_counters(sim_of(dev), &counters);
    CHECK_EQ(counters.released_accesses, 0);
    rt_clean(dev);
    rt_close(dev);
}

/* ------------------------------------------------------------ page tables */

/* No entry anywhere leads to a page table: every valid leaf names a frame of the device's memory,
 * and tables lie elsewhere. */
static uint64_t leaves_checked(mb_device dev)
{
    const struct mb_hw_view *view;
    uint64_t checked = 0;

    for (unsigned v = 0; (view = vm_peek_view_at(dev->vm, v)); v++) {
        uint32_t slots = (uint32_t)(view->bytes >> view->leaf_shift);

        for (uint32_t i = 0; i < slots; i++) {
            mb_va va = mb__va_add(view->va, (uint64_t)i << view->leaf_shift);
            mb_pfn pfn = mb__sim_walk(sim_of(dev), va);

            if (mb__pfn_eq(pfn, MB_NO_PFN))
                continue;
            checked++;
            if (!mb__pfn_eq(pfn, mb__vm_lookup(dev->vm, va)) && !mb__pfn_eq(pfn, view->clear_pfn))
                FAIL("0x%llx shows frame 0x%x, which the record does not know",
                     (unsigned long long)va.addr, pfn.n);
        }
    }
    return checked;
}

/* A kernel that stores to every address that translates changes memory, and not one entry. */
TEST(kernel_that_stores_everywhere_changes_no_entry)
{
    static const char *const tables[] = {"isolated", "inline"};

    for (unsigned t = 0; t < 2; t++) {
        const struct mb_hw_view *view;
        char config[128];
        mb_device dev;
        void *block[6];
        uint64_t stores = 0, leaves;

        snprintf(config, sizeof(config), "backend:sim,device_memory:128m,tables:%s", tables[t]);
        dev = rt_open(config);
        for (unsigned i = 0; i < 6; i++)
            block[i] = rt_malloc(dev, 15 * RT_MIB, NULL);
        for (unsigned i = 0; i < 6; i += 2)
            RT_OK(mb_free_async(dev, block[i], NULL));
        block[0] = rt_malloc(dev, 40 * RT_MIB, NULL); /* stitched: a window */
        RT_OK(mb_device_sync(dev));
        leaves = leaves_checked(dev);
        CHECK(leaves > 60);
        for (unsigned v = 0; (view = vm_peek_view_at(dev->vm, v)); v++) {
            for (uint64_t off = 0; off < view->bytes; off += MB_FRAME_BYTES) {
                struct mb_sim_step step = {.kind = MB_SIM_ST, .value = UINT64_MAX};

                step.va = mb__va_add(view->va, off + stores * 8 % MB_FRAME_BYTES);
                if (mb__pfn_eq(mb__sim_walk(sim_of(dev), step.va), MB_NO_PFN))
                    continue;
                RT_OK(mb__sim_kernel(sim_of(dev), hw_stream(dev, NULL), &step, 1, MB_SIM_ROGUE));
                stores++;
            }
        }
        RT_OK(mb_device_sync(dev));
        RT_OK(mb_check_tables(dev, false, NULL));
        CHECK_EQ(leaves_checked(dev), leaves);
        printf("%s: %llu stores, %llu leaves\n", tables[t], (unsigned long long)stores,
               (unsigned long long)leaves);
        RT_OK(mb_free_async(dev, block[0], NULL));
        for (unsigned i = 1; i < 6; i += 2)
            RT_OK(mb_free_async(dev, block[i], NULL));
        RT_OK(mb_device_sync(dev));
        rt_close(dev);
    }
}
