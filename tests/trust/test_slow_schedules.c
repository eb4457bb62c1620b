/* SPDX-License-Identifier: MIT */
/*
 * One program under thousands of schedules: what is runnable on the device is run in drawn order,
 * piece by piece, entries arrive when they like. Whatever the order, contents, translations and the
 * happens-before check between streams must be right.
 */
#include <string.h>

#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

enum { SCHEDULES = 4000, STREAMS = 4, BLOCKS = 12, STEPS = 60, PAGES = 8 };

struct program {
    mb_device dev;
    mb_stream stream[STREAMS];
    mb_event event;
    uint64_t state; /* of the program; the schedule's seed is the device's */
    struct {
        void *ptr;
        uint64_t bytes, seed;
        unsigned stream;
    } block[BLOCKS];
    mb_mem mem[2];
    char *va;
};

static uint64_t below(struct program *p, uint64_t n)
{
    return mb_test_random_below(&p->state, n);
}

/* Both ends of a block: the first and the last page that it lies on. */
static void ends(struct program *p, unsigned i, unsigned stream, bool write)
{
    uint64_t bytes = p->block[i].bytes, part = bytes < 8192 ? bytes : 8192;
    char *end = (char *)p->block[i].ptr + bytes - part;

    if (write) {
        RT_OK(mb_fill_async(p->dev, p->block[i].ptr, part, p->block[i].seed, p->stream[stream]));
        if (bytes >= 2 * part)
            RT_OK(mb_fill_async(p->dev, end, part, ~p->block[i].seed, p->stream[stream]));
        return;
    }
    RT_OK(mb_verify_async(p->dev, p->block[i].ptr, part, p->block[i].seed, p->stream[stream]));
    if (bytes >= 2 * part)
        RT_OK(mb_verify_async(p->dev, end, part, ~p->block[i].seed, p->stream[stream]));
}

static void order(struct program *p, unsigned from, unsigned to)
{
    RT_OK(mb_event_record(p->dev, p->event, p->stream[from]));
    RT_OK(mb_stream_wait_event(p->dev, p->stream[to], p->event));
}

static void allocate_or_free(struct program *p)
{
    unsigned i = (unsigned)below(p, BLOCKS), stream = (unsigned)below(p, STREAMS);

    if (p->block[i].ptr) {
        if (stream != p->block[i].stream)
            order(p, p->block[i].stream, stream);
        ends(p, i, stream, false);
        RT_OK(mb_free_async(p->dev, p->block[i].ptr, p->stream[stream]));
        p->block[i].ptr = NULL;
        return;
    }
    p->block[i].bytes = (below(p, 9 * RT_MIB) + 8) / 8 * 8;
    p->block[i].seed = mb_test_random(&p->state);
    p->block[i].stream = stream;
    if (mb_malloc_async(p->dev, p->block[i].bytes, p->stream[stream], &p->block[i].ptr)) {
        p->block[i].ptr = NULL;
        return;
    }
    ends(p, i, stream, true);
}

/* Two memory objects take turns at the same addresses, on streams that follow each other. */
static void remap(struct program *p, unsigned *last)
{
    unsigned stream = (unsigned)below(p, STREAMS), m = (unsigned)below(p, 2);
    struct mb_map_op ops[2] = {{.kind = MB_UNMAP, .va = p->va, .bytes = PAGES * 2 * RT_MIB},
                               {.kind = MB_MAP,
                                .prot = MB_PROT_READ_WRITE,
                                .va = p->va,
                                .bytes = PAGES * 2 * RT_MIB,
                                .mem = p->mem[m]}};
    uint64_t seed = mb_test_random(&p->state);

    if (stream != *last)
        order(p, *last, stream);
    *last = stream;
    RT_OK(mb_mem_map_async(p->dev, ops, 2, p->stream[stream]));
    /* Every page is used: each has a translation of its own. */
    for (unsigned i = 0; i < PAGES; i++) {
        char *page = p->va + i * 2 * RT_MIB;

        RT_OK(mb_fill_async(p->dev, page, 4096, seed + i, p->stream[stream]));
        RT_OK(mb_verify_async(p->dev, page, 4096, seed + i, p->stream[stream]));
    }
}

static void set_up(struct program *p, const char *config)
{
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = PAGES * 2 * RT_MIB};

    p->dev = rt_open(config);
    RT_OK(mb__sim_race_check(mb__hw_fault_inner(p->dev->hw), true));
    for (unsigned i = 1; i < STREAMS; i++)
        p->stream[i] = rt_stream(p->dev);
    RT_OK(mb_event_create(p->dev, &p->event));
    for (unsigned i = 0; i < 2; i++)
        RT_OK(mb_mem_create(p->dev, PAGES * 2 * RT_MIB, &p->mem[i]));
    RT_OK(mb_mem_reserve(p->dev, PAGES * 2 * RT_MIB, 0, (void **)&p->va));
    op.va = p->va;
    op.mem = p->mem[0];
    RT_OK(mb_mem_map(p->dev, &op));
}

static void tear_down(struct program *p)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = p->va, .bytes = PAGES * 2 * RT_MIB};
    struct mb_sim_counters counters;
    char text[256];

    for (unsigned i = 0; i < BLOCKS; i++)
        if (p->block[i].ptr)
            RT_OK(mb_free_async(p->dev, p->block[i].ptr, p->stream[p->block[i].stream]));
    RT_OK(mb_device_sync(p->dev));
    mb__sim_counters(mb__hw_fault_inner(p->dev->hw), &counters);
    mb__sim_first_race(mb__hw_fault_inner(p->dev->hw), text, sizeof(text));
    if (counters.races)
        FAIL("%llu races: %s", (unsigned long long)counters.races, text);
    RT_OK(mb_mem_map(p->dev, &op));
    RT_OK(mb_mem_unreserve(p->dev, p->va, PAGES * 2 * RT_MIB));
    for (unsigned i = 0; i < 2; i++)
        RT_OK(mb_mem_release(p->dev, p->mem[i]));
    RT_OK(mb_event_destroy(p->dev, p->event));
    rt_close(p->dev);
}

/* `like`: configuration without seed. */
static void explore(const char *like)
{
    for (unsigned i = 0; i < SCHEDULES; i++) {
        struct program p = {.state = mb_test_seed() + i / 100}; /* each program 100 times */
        char config[160];
        unsigned last = 0;

        snprintf(config, sizeof(config), "backend:sim,explore:yes,seed:%llu,%s",
                 (unsigned long long)(mb_test_seed() % 1000000007 + i), like);
        set_up(&p, config);
        for (unsigned step = 0; step < STEPS; step++) {
            if (below(&p, 5))
                allocate_or_free(&p);
            else
                remap(&p, &last);
        }
        tear_down(&p);
    }
    printf("COUNT schedules explored %d\n", SCHEDULES);
    printf("%s: %d schedules of %d steps on %d streams\n", like, SCHEDULES, STEPS, STREAMS);
}

TEST(inline_tables)
{
    explore("device_memory:160m");
}

TEST(isolated_tables)
{
    explore("device_memory:160m,tables:isolated");
}

TEST(fresh_addresses)
{
    explore("device_memory:160m,policy:fresh,deferred:yes,window_space:2g");
}

TEST(homes_by_the_driver_and_walks_ahead)
{
    explore("device_memory:160m,driver_home:yes,walk_ahead:yes");
}
