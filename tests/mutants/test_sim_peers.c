/* SPDX-License-Identifier: MIT */
/*
 * A peer's TLBs are its own: leaving out its invalidate is seen, by contents and by the oracle.
 * Each case runs unchanged first, where nothing may be wrong.
 */
#include <string.h>

#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

#define PAGE (2 * RT_MIB)

struct pair {
    mb_device a, b;
};

static struct pair open_pair(const char *more, bool mutant)
{
    struct pair pair = {NULL, NULL};
    char config[128];

    snprintf(config, sizeof(config), "backend:sim,device_memory:128m%s", more);
    RT_OK(mb_open(0, config, &pair.a));
    RT_OK(mb_open(1, config, &pair.b));
    if (mutant)
        mb__sim_set_mutants(sim_of(pair.b), MB_SIM_NO_PEER_INVALIDATE);
    return pair;
}

static void give(struct pair pair, void *va, uint64_t bytes, enum mb_prot prot)
{
    struct mb_access access = {pair.b, prot};

    RT_OK(mb_mem_set_access(pair.a, va, bytes, &access, 1));
}

/* The block's frames go to somebody else while the peer still remembers them. */
static void reuse(struct pair pair, struct mb_stats *out, char *why, size_t size)
{
    void *secret, *block = rt_malloc(pair.a, 100 * RT_MIB, NULL);
    mb_pfn first = mb__vm_lookup(pair.a->vm, mb__va((uint64_t)(uintptr_t)block));

    give(pair, block, 8, MB_PROT_READ_WRITE);
    rt_fill(pair.b, block, 100 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(pair.b));
    CHECK(mb__sim_tlb_names_of(sim_of(pair.b), sim_of(pair.a), first));
    give(pair, block, 8, MB_PROT_NONE);
    *why = mb__sim_tlb_names_of(sim_of(pair.b), sim_of(pair.a), first) ? 'n' : 0;
    RT_OK(mb_free_async(pair.a, block, NULL));
    secret = rt_malloc(pair.a, 90 * RT_MIB, NULL);
    rt_fill(pair.a, secret, 90 * RT_MIB, 2, NULL);
    RT_OK(mb_device_sync(pair.a));
    /* A use after the access has gone: a fault if all is well, else it reaches the new owner. */
    (void)mb_fill_async(pair.b, block, 8, 3, NULL);
    (void)mb_device_sync(pair.b);
    rt_verify(pair.a, secret, 90 * RT_MIB, 2, NULL);
    RT_OK(mb_device_sync(pair.a));
    *out = rt_stats(pair.b);
    out->wrong_words = rt_stats(pair.a).wrong_words;
    if (*why)
        mb__sim_first_wrong(sim_of(pair.b), why, size);
    RT_OK(mb_free_async(pair.a, secret, NULL));
}

TEST(closing_without_the_peers_invalidate_reaches_the_next_owner)
{
    static const char *const kinds[] = {"", ",driver_home:yes", ",model:mi210", ",model:a100"};

    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        for (unsigned mutant = 0; mutant < 2; mutant++) {
            struct pair pair = open_pair(kinds[k], mutant);
            struct mb_stats stats;
            char why[200] = "";

            reuse(pair, &stats, why, sizeof(why));
            printf("%s%s: %s\n", kinds[k], mutant ? " without invalidate" : "", why);
            CHECK_EQ(*why != 0, mutant);
            CHECK_EQ(stats.wrong_accesses != 0, mutant);
            CHECK_EQ(stats.wrong_words != 0, mutant);
            CHECK_EQ(stats.faults != 0, !mutant);
            CHECK(!mutant || strstr(why, "foreign") || strstr(why, "released"));
            mb_close(pair.b);
            if (!mutant)
                rt_clean(pair.a);
            mb_close(pair.a);
        }
    }
}

/* Both devices keep invalid neighbours: a page opened beside a page in use. */
static uint64_t neighbour(struct pair pair)
{
    mb_mem mem = NULL;
    void *va = NULL;
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 2 * PAGE};
    uint64_t faults;

    RT_OK(mb_mem_create(pair.a, 2 * PAGE, &mem));
    RT_OK(mb_mem_reserve(pair.a, 2 * PAGE, 0, &va));
    op.va = va;
    op.mem = mem;
    RT_OK(mb_mem_map(pair.a, &op));
    give(pair, va, PAGE, MB_PROT_READ_WRITE);
    rt_fill(pair.b, va, PAGE, 1, NULL);
    RT_OK(mb_device_sync(pair.b));
    give(pair, (char *)va + PAGE, PAGE, MB_PROT_READ_WRITE);
    rt_fill(pair.b, (char *)va + PAGE, PAGE, 1, NULL);
    (void)mb_device_sync(pair.b);
    faults = rt_stats(pair.b).faults;
    return faults;
}

TEST(opening_without_the_peers_invalidate_faults_beside_a_page_in_use)
{
    for (unsigned mutant = 0; mutant < 2; mutant++) {
        struct pair pair = open_pair("", mutant);

        CHECK_EQ(neighbour(pair) != 0, mutant);
        mb_close(pair.b);
        mb_close(pair.a);
    }
}

/* What runtime never does: the owner goes first, and the frames with it. The peer's oracle says
 * so. */
TEST(an_entry_that_outlives_its_owner_is_seen)
{
    struct mb_hw_config config = {.device_memory_bytes = 64 * RT_MIB};
    struct mb_hw_dev *a = NULL, *b = NULL;
    struct mb_hw_counters counters;
    struct mb_hw_stream *stream = NULL;
    struct mb_hw_slab slab;
    char why[200];
    mb_va home;

    CHECK_OK(mb__sim_open(&config, &a));
    config.ordinal = 1;
    CHECK_OK(mb__sim_open(&config, &b));
    CHECK_OK(a->ops->va_reserve(a, 4 * PAGE, PAGE, &home));
    CHECK_OK(a->ops->slab_acquire(a, 4 * PAGE, home, &slab));
    for (uint32_t i = 0; i < 4; i++) {
        mb_pfn pfn = slab.pfns ? slab.pfns[i] : (mb_pfn){slab.first.n + i * MB_FRAME_PFNS};

        CHECK_OK(a->ops->peer_access(a, b, mb__va_add(home, i * PAGE), 1, &pfn, MB_PROT_READ));
    }
    CHECK_EQ(a->ops->peer_access(a, a, home, 1, &slab.first, MB_PROT_READ), MB_ERR_INVALID);
    CHECK_EQ(a->ops->peer_access(a, b, mb__va_add(home, 1 << 20), 1, &slab.first, MB_PROT_READ),
             MB_ERR_INVALID);
    CHECK_OK(b->ops->stream_open(b, NULL, &stream));
    CHECK_OK(b->ops->verify(b, stream, home, 4 * PAGE, 1));
    CHECK_OK(b->ops->device_sync(b));
    b->ops->counters(b, &counters);
    CHECK_EQ(counters.wrong_accesses, 0);
    CHECK_EQ(counters.faults, 0);
    CHECK_OK(a->ops->slab_release(a, &slab));
    CHECK_OK(b->ops->verify(b, stream, home, PAGE, 1));
    CHECK_OK(b->ops->device_sync(b));
    a->ops->close(a);
    CHECK_OK(b->ops->verify(b, stream, home, PAGE, 1));
    CHECK_OK(b->ops->device_sync(b));
    b->ops->counters(b, &counters);
    CHECK_EQ(counters.wrong_accesses, 2);
    mb__sim_first_wrong(b, why, sizeof(why));
    CHECK(strstr(why, "released"));
    b->ops->close(b);
}

/* Read access is read access in the peer's own entries. */
TEST(a_write_through_a_read_only_peer_entry_faults)
{
    struct pair pair = open_pair("", false);
    void *block = rt_malloc(pair.a, PAGE, NULL);

    give(pair, block, 8, MB_PROT_READ);
    RT_OK(mb_fill_async(pair.b, block, 8, 1, NULL));
    CHECK_EQ(mb_device_sync(pair.b), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "RO_VIOLATION"));
    mb_close(pair.b);
    RT_OK(mb_free_async(pair.a, block, NULL));
    rt_close(pair.a);
}
