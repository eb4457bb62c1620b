/* SPDX-License-Identifier: MIT */
/*
 * Every function of the backend fails at its n-th use, for every n, under a program of public calls: a failed
 * call says why, has changed nothing, every invariant holds, live entries are the record's, and the same
 * call succeeds once the backend works again. In the end nothing is held.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

#ifdef MB_FAULT_INJECTION

enum { BLOCKS = 10, PAGES = 6, N_MAX = 2000 };

struct world {
    mb_device dev;
    mb_stream stream[2];
    mb_event event;
    mb_pool pool;
    mb_mem mem[2];
    void *va, *block[BLOCKS];
    bool lost; /* the outcome of a batch is unknown: only closing is left */
    bool failed_once;
};

static uint64_t calls, failures, programs;
static char fault[64]; /* the one of the running program */

static const enum mb_err codes[] = {MB_ERR_DRIVER,  MB_ERR_NO_MEMORY,  MB_ERR_DEVICE_LOST,
                                    MB_ERR_TIMEOUT, MB_ERR_PERMISSION, MB_ERR_HOST_MEMORY};
enum { CODES = sizeof(codes) / sizeof(codes[0]) };

static void work_again(struct world *w)
{
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++)
        mb__hw_fault_set(w->dev->hw, (enum mb_hw_fault_op)op, 0, MB_OK, false);
}

static void look_closely(struct world *w, const char *call, enum mb_err err)
{
    struct mb_hw_dev *sim = mb__hw_fault_inner(w->dev->hw);

    failures++;
    w->failed_once = true;
    /* The report of a request without memory says who holds what, not which call brought that about. */
    if (!mb_error_detail()[0] ||
        (err != MB_ERR_NO_MEMORY && !strstr(mb_error_detail(), "injected") &&
         !strstr(mb_error_detail(), "unknown outcome") &&
         !strstr(mb_error_detail(), "could be had")))
        FAIL("%s: %s failed with %s without the reason: %s", fault, call, mb_error_name(err),
             mb_error_detail());
    work_again(w);
    w->lost = vm_peek_lost(w->dev->vm);
    if (w->lost)
        return;
    CHECK_OK(sim->ops->device_sync(sim));
    if (mb_check(w->dev))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
    if (mb_check_tables(w->dev, false, NULL))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
}

/* Makes a call; when the backend made it fail, looks closely and makes it again. */
#define STEP(w, call)                                                                              \
    do {                                                                                           \
        enum mb_err step_err;                                                                      \
                                                                                                   \
        if ((w)->lost)                                                                             \
            break;                                                                                 \
        calls++;                                                                                   \
        step_err = (call);                                                                         \
        if (!step_err)                                                                             \
            break;                                                                                 \
        look_closely((w), #call, step_err);                                                        \
        if (!(w)->lost && (call))                                                                  \
            FAIL("%s: %s fails although the backend works again: %s", fault, #call,                \
                 mb_error_detail());                                                               \
    } while (0)

static void *page(const struct world *w, unsigned i)
{
    return (char *)w->va + i * 2 * RT_MIB;
}

static enum mb_err map_two(struct world *w, unsigned at, unsigned mem, mb_stream stream)
{
    struct mb_map_op op = {.kind = MB_MAP,
                           .prot = MB_PROT_READ_WRITE,
                           .va = page(w, at),
                           .bytes = 4 * RT_MIB,
                           .mem = w->mem[mem]};

    return mb_mem_map_async(w->dev, &op, 1, stream);
}

static enum mb_err change(struct world *w, enum mb_map_kind kind, unsigned at, unsigned pages,
                          unsigned src)
{
    struct mb_map_op op = {.kind = kind,
                           .prot = MB_PROT_READ_WRITE,
                           .va = page(w, at),
                           .bytes = pages * 2 * RT_MIB,
                           .src = page(w, src)};

    return mb_mem_map_async(w->dev, &op, 1, w->stream[0]);
}

static enum mb_err fill(struct world *w, void *ptr, uint64_t bytes, uint64_t seed, unsigned stream)
{
    return mb_fill_async(w->dev, ptr, bytes, seed, w->stream[stream]);
}

static enum mb_err verify(struct world *w, void *ptr, uint64_t bytes, uint64_t seed,
                          unsigned stream)
{
    return mb_verify_async(w->dev, ptr, bytes, seed, w->stream[stream]);
}

/* Blocks: fragments first, so that the last one is stitched. */
static void drive_blocks(struct world *w)
{
    for (unsigned i = 0; i < 8; i++) {
        STEP(w, mb_malloc_async(w->dev, 5 * RT_MIB, w->stream[0], &w->block[i]));
        STEP(w, fill(w, w->block[i], 5 * RT_MIB, i, 0));
    }
    for (unsigned i = 0; i < 8; i += 2)
        STEP(w, mb_free_async(w->dev, w->block[i], w->stream[0]));
    STEP(w, mb_malloc_async(w->dev, 17 * RT_MIB, w->stream[0], &w->block[8]));
    STEP(w, fill(w, w->block[8], 17 * RT_MIB, 8, 0));
    STEP(w, mb_event_record(w->dev, w->event, w->stream[0]));
    STEP(w, mb_stream_wait_event(w->dev, w->stream[1], w->event));
    STEP(w, verify(w, w->block[8], 17 * RT_MIB, 8, 1));
    STEP(w, mb_record_stream(w->dev, w->block[8], w->stream[1]));
    STEP(w, mb_free_async(w->dev, w->block[8], w->stream[0]));
    STEP(w, mb_malloc(w->dev, 700, &w->block[9]));
    STEP(w, mb_device_sync(w->dev));
    STEP(w, mb_realloc(w->dev, w->block[9], 9 * RT_MIB, &w->block[9]));
    STEP(w, mb_free(w->dev, w->block[9]));
    for (unsigned i = 1; i < 8; i += 2) {
        STEP(w, verify(w, w->block[i], 5 * RT_MIB, i, 0));
        STEP(w, mb_free_async(w->dev, w->block[i], w->stream[i & 1]));
    }
}

static void drive_pool(struct world *w)
{
    STEP(w, mb_pool_create(w->dev, &w->pool));
    STEP(w, mb_pool_malloc_async(w->pool, 6 * RT_MIB, w->stream[1], &w->block[0]));
    STEP(w, mb_free_async(w->dev, w->block[0], w->stream[1]));
    STEP(w, mb_stream_sync(w->dev, w->stream[1]));
    STEP(w, mb_pool_trim(w->pool, 0));
    STEP(w, mb_pool_destroy(w->pool));
}

static void drive_mappings(struct world *w)
{
    STEP(w, mb_mem_create(w->dev, 4 * RT_MIB, &w->mem[0]));
    STEP(w, mb_mem_create(w->dev, 4 * RT_MIB, &w->mem[1]));
    STEP(w, mb_mem_reserve(w->dev, PAGES * 2 * RT_MIB, 0, &w->va));
    STEP(w, map_two(w, 0, 0, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 70, 0));
    STEP(w, change(w, MB_ALIAS, 2, 2, 0));
    STEP(w, verify(w, page(w, 2), 4 * RT_MIB, 70, 0));
    STEP(w, change(w, MB_UNMAP, 0, 2, 0));
    STEP(w, map_two(w, 0, 1, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 71, 0));
    STEP(w, verify(w, page(w, 2), 4 * RT_MIB, 70, 0));
    STEP(w, mb_mem_sleep(w->dev, page(w, 0), 4 * RT_MIB, w->stream[0]));
    STEP(w, mb_mem_wake(w->dev, page(w, 0), 4 * RT_MIB, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 72, 0));
    STEP(w, verify(w, page(w, 0), 4 * RT_MIB, 72, 0));
    STEP(w, change(w, MB_PROTECT, 2, 2, 0));
    STEP(w, change(w, MB_UNMAP, 0, 4, 0));
    STEP(w, mb_stream_sync(w->dev, w->stream[0]));
    STEP(w, mb_mem_unreserve(w->dev, w->va, PAGES * 2 * RT_MIB));
    STEP(w, mb_mem_release(w->dev, w->mem[0]));
    STEP(w, mb_mem_release(w->dev, w->mem[1]));
}

static void drive(struct world *w)
{
    STEP(w, mb_stream_create(w->dev, &w->stream[0]));
    STEP(w, mb_stream_create(w->dev, &w->stream[1]));
    STEP(w, mb_event_create(w->dev, &w->event));
    drive_blocks(w);
    drive_pool(w);
    drive_mappings(w);
    STEP(w, mb_event_destroy(w->dev, w->event));
    STEP(w, mb_stream_destroy(w->dev, w->stream[0]));
    STEP(w, mb_stream_destroy(w->dev, w->stream[1]));
    STEP(w, mb_device_sync(w->dev));
}

/* Nothing is left, neither with the caller nor with the driver. */
static void finish(struct world *w)
{
    struct mb_pool *pool;
    struct mb_stats stats;

    if (w->lost) {
        mb_close(w->dev);
        return;
    }
    rt_clean(w->dev);
    RT_OK(mb_pool_default(w->dev, &pool));
    RT_OK(mb_pool_trim(pool, 0));
    /* A trim that could give back only a part was a success; the rest goes now. */
    RT_OK(mb_device_sync(w->dev));
    RT_OK(mb_pool_trim(pool, 0));
    stats = rt_stats(w->dev);
    if (stats.reserved_bytes != stats.overhead_bytes)
        FAIL("%s: %llu bytes are held at the end, %llu of them overhead", fault,
             (unsigned long long)stats.reserved_bytes, (unsigned long long)stats.overhead_bytes);
    RT_OK(mb_check_tables(w->dev, false, NULL));
    rt_close(w->dev);
}

/* One program with the n-th use of `op` failing; false: it has fewer uses. */
static bool run_with_fault(const char *config, enum mb_hw_fault_op op, uint64_t n, bool lasting)
{
    enum mb_err code = op == MB_HW_FAULT_slab_acquire ? MB_ERR_NO_MEMORY : codes[n % CODES];
    struct world w = {0};
    bool hit;

    programs++;
    snprintf(fault, sizeof(fault), "%s %s use %llu", mb__hw_fault_name(op), lasting ? "from" : "at",
             (unsigned long long)n);
    mb__hw_fault_next(op, n, code, lasting);
    if (mb_open(0, config, &w.dev)) {
        failures++;
        CHECK_PTR_EQ(w.dev, NULL);
        CHECK(strstr(mb_error_detail(), "injected") != NULL);
        w.dev = rt_open(config);
        w.failed_once = true;
    }
    drive(&w);
    hit = w.failed_once || mb__hw_fault_hits(w.dev->hw);
    work_again(&w);
    finish(&w);
    return hit;
}

static void sweep(const char *config)
{
    uint64_t before = programs;

    mb__log_set(MB_LOG_OFF); /* injected faults say nothing new */
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++) {
        for (int lasting = 0; lasting < 2; lasting++) {
            uint64_t n = 1;

            while (n < N_MAX && run_with_fault(config, (enum mb_hw_fault_op)op, n, lasting))
                n++;
            CHECK(n < N_MAX);
        }
    }
    printf("%llu programs, %llu calls, %llu of them failed\n",
           (unsigned long long)(programs - before), (unsigned long long)calls,
           (unsigned long long)failures);
    CHECK(programs - before > 100);
    calls = failures = 0;
}

TEST(own_tables)
{
    sweep("backend:sim,device_memory:128m,explore:yes");
}

TEST(fresh_and_deferred)
{
    sweep("backend:sim,device_memory:128m,policy:fresh,deferred:yes");
}

TEST(homes_mapped_by_the_driver)
{
    sweep("backend:sim,device_memory:128m,driver_home:yes");
}

TEST(isolated_amd)
{
    sweep("backend:sim,device_memory:128m,model:mi210,tables:isolated");
}

TEST(driver_tables)
{
    sweep("backend:sim,device_memory:128m,tables:driver,cache:no");
}

#else

TEST(faults)
{
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
}

#endif
