/* SPDX-License-Identifier: MIT */
/*
 * Access of several devices to one device's memory, on software GPUs: every device has TLBs and
 * page tables of its own, and its oracle knows what was opened to it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

#define PAGE (2 * RT_MIB)

static mb_device open_at(int ordinal, const char *more)
{
    char config[160];
    mb_device dev = NULL;

    snprintf(config, sizeof(config), "backend:sim,device_memory:128m%s%s", *more ? "," : "", more);
    RT_OK(mb_open(ordinal, config, &dev));
    return dev;
}

static enum mb_err give(mb_device owner, void *va, uint64_t bytes, mb_device dev, enum mb_prot prot)
{
    struct mb_access access = {dev, prot};

    return mb_mem_set_access(owner, va, bytes, &access, 1);
}

static enum mb_prot access_of(mb_device owner, const void *ptr, mb_device dev)
{
    enum mb_prot prot = MB_PROT_NONE;

    RT_OK(mb_mem_get_access(owner, ptr, dev, &prot));
    return prot;
}

static void *reserve(mb_device dev, uint64_t pages)
{
    void *va = NULL;

    RT_OK(mb_mem_reserve(dev, pages * PAGE, 0, &va));
    return va;
}

static enum mb_err map(mb_device dev, enum mb_map_kind kind, void *va, uint64_t pages, mb_mem mem,
                       const void *src)
{
    struct mb_map_op op = {.kind = kind,
                           .prot = MB_PROT_READ_WRITE,
                           .va = va,
                           .bytes = pages * PAGE,
                           .mem = mem,
                           .src = src};

    return mb_mem_map(dev, &op);
}

static char *mapped(mb_device dev, uint64_t pages, mb_mem *mem)
{
    void *va = reserve(dev, pages);

    RT_OK(mb_mem_create(dev, pages * PAGE, mem));
    RT_OK(map(dev, MB_MAP, va, pages, *mem, NULL));
    return va;
}

static void unmap_all(mb_device dev, void *va, uint64_t pages, mb_mem mem)
{
    RT_OK(map(dev, MB_UNMAP, va, pages, NULL, NULL));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, pages * PAGE));
}

static const char *const kinds[] = {"",
                                    "driver_home:yes",
                                    "model:a100",
                                    "model:mi210",
                                    "policy:fresh",
                                    "driver_home:yes,walk_ahead:yes",
                                    "tables:isolated"};

TEST(a_mapping_is_read_and_written_by_its_peers)
{
    for (unsigned k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
        mb_device a = open_at(0, kinds[k]), b = open_at(1, kinds[k]), c = open_at(7, kinds[k]);
        mb_mem mem = NULL;
        char *va = mapped(a, 5, &mem);
        struct mb_access both[2] = {{b, MB_PROT_READ_WRITE}, {c, MB_PROT_READ}};

        rt_fill(a, va, 5 * PAGE, 1, NULL);
        RT_OK(mb_device_sync(a));
        RT_OK(mb_device_can_access(b, a));
        RT_OK(mb_mem_set_access(a, va, 5 * PAGE, both, 2));
        CHECK_EQ(access_of(a, va, b), MB_PROT_READ_WRITE);
        CHECK_EQ(access_of(a, va + PAGE, c), MB_PROT_READ);
        CHECK_EQ(access_of(a, va, a), MB_PROT_READ_WRITE);
        rt_verify(b, va, 5 * PAGE, 1, NULL);
        rt_verify(c, va, 5 * PAGE, 1, NULL);
        RT_OK(mb_device_sync(c));
        rt_fill(b, va, 5 * PAGE, 2, NULL);
        rt_clean(b);
        rt_verify(a, va, 5 * PAGE, 2, NULL);
        rt_verify(c, va + PAGE, PAGE, 0, NULL);
        RT_OK(mb_device_sync(c));
        CHECK_EQ(rt_stats(c).wrong_words, PAGE / 8); /* another page's pattern */
        rt_clean(a);
        both[0].prot = both[1].prot = MB_PROT_NONE;
        RT_OK(mb_mem_set_access(a, va, 5 * PAGE, both, 2));
        CHECK_EQ(access_of(a, va, b), MB_PROT_NONE);
        unmap_all(a, va, 5, mem);
        mb_close(c);
        rt_close(b);
        rt_close(a);
    }
}

TEST(a_block_is_opened_where_it_lies_at_home_or_stitched)
{
    mb_device a = open_at(2, "driver_home:yes"), b = open_at(3, "driver_home:yes");
    void *holes[30], *block;
    struct mb_pointer_info info;

    for (unsigned i = 0; i < 30; i++)
        holes[i] = rt_malloc(a, 4 * RT_MIB, NULL);
    for (unsigned i = 0; i < 30; i += 2)
        RT_OK(mb_free_async(a, holes[i], NULL));
    block = rt_malloc(a, 50 * RT_MIB, NULL);
    RT_OK(mb_pointer_info(a, block, &info));
    CHECK(info.stitched);
    rt_fill(a, block, 50 * RT_MIB, 3, NULL);
    rt_fill(a, holes[1], 4 * RT_MIB, 4, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(give(a, block, 50 * RT_MIB, b, MB_PROT_READ));
    RT_OK(give(a, holes[1], 512, b, MB_PROT_READ_WRITE));
    rt_verify(b, block, 50 * RT_MIB, 3, NULL);
    rt_verify(b, holes[1], 4 * RT_MIB, 4, NULL);
    rt_fill(b, holes[1], 4 * RT_MIB, 5, NULL);
    rt_clean(b);
    rt_verify(a, holes[1], 4 * RT_MIB, 5, NULL);
    RT_OK(give(a, block, 1, b, MB_PROT_NONE));
    RT_OK(give(a, holes[1], 1, b, MB_PROT_NONE));
    for (unsigned i = 1; i < 30; i += 2)
        RT_OK(mb_free_async(a, holes[i], NULL));
    RT_OK(mb_free_async(a, block, NULL));
    rt_close(a);
    rt_close(b);
}

TEST(frames_of_a_freed_block_come_back_when_the_last_peer_has_lost_them)
{
    mb_device a = open_at(0, ""), b = open_at(1, ""), c = open_at(2, "");
    void *block = rt_malloc(a, 100 * RT_MIB, NULL), *more = NULL;

    rt_fill(a, block, 100 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(give(a, block, 8, b, MB_PROT_READ));
    RT_OK(give(a, block, 8, c, MB_PROT_READ));
    RT_OK(mb_free_async(a, block, NULL));
    CHECK_EQ(mb_free_async(a, block, NULL), MB_ERR_DOUBLE_FREE);
    RT_OK(mb_device_sync(a));
    CHECK_EQ(mb_malloc_async(a, 60 * RT_MIB, NULL, &more), MB_ERR_NO_MEMORY);
    rt_verify(b, block, 100 * RT_MIB, 1, NULL); /* still there */
    rt_clean(b);
    CHECK_EQ(give(a, block, 8, c, MB_PROT_READ_WRITE), MB_ERR_NOT_FOUND);
    RT_OK(give(a, block, 8, b, MB_PROT_NONE));
    rt_close(b);
    CHECK_EQ(mb_malloc_async(a, 60 * RT_MIB, NULL, &more), MB_ERR_NO_MEMORY);
    mb_close(c); /* takes its access back */
    more = rt_malloc(a, 60 * RT_MIB, NULL);
    RT_OK(mb_free_async(a, more, NULL));
    rt_close(a);
}

/* It says which block, who has it and what ends that, and the pool goes once it is done. */
TEST(a_pool_is_not_destroyed_under_a_peer_or_an_alias)
{
    mb_device a = open_at(0, ""), b = open_at(1, "");
    mb_pool pool = NULL;
    void *block = NULL, *view = reserve(a, 2);
    char where[40];

    RT_OK(mb_pool_create(a, &pool));
    RT_OK(mb_pool_malloc_async(pool, 6 * RT_MIB, NULL, &block));
    RT_OK(give(a, block, 8, b, MB_PROT_READ));
    RT_OK(map(a, MB_ALIAS, view, 2, NULL,
              (void *)(((uintptr_t)block + PAGE - 1) & ~(uintptr_t)(PAGE - 1))));
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), "1 blocks of the pool live"));
    RT_OK(mb_free_async(a, block, NULL));
    snprintf(where, sizeof(where), "%p", block);
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), where) && strstr(mb_error_detail(), "open to device 1"));
    CHECK(strstr(mb_error_detail(), "MB_PROT_NONE"));
    RT_OK(give(a, block, 8, b, MB_PROT_NONE));
    CHECK_EQ(mb_pool_destroy(pool), MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), where) && strstr(mb_error_detail(), "by 2 pages"));
    RT_OK(map(a, MB_UNMAP, view, 2, NULL, NULL));
    RT_OK(mb_pool_destroy(pool));
    RT_OK(mb_mem_unreserve(a, view, 2 * PAGE));
    rt_close(b);
    rt_close(a);
}

TEST(the_owner_may_close_first)
{
    mb_device a = open_at(4, ""), b = open_at(5, "");
    mb_mem mem = NULL;
    char *va = mapped(a, 3, &mem);
    void *block = rt_malloc(a, 100, NULL);

    RT_OK(give(a, va, 3 * PAGE, b, MB_PROT_READ_WRITE));
    RT_OK(give(a, block, 100, b, MB_PROT_READ_WRITE));
    rt_fill(b, va, 3 * PAGE, 1, NULL);
    mb_close(a);
    rt_clean(b);
    a = open_at(4, "");
    rt_verify(b, va, 8, 1, NULL); /* nothing is open to it any more */
    CHECK_EQ(mb_device_sync(b), MB_ERR_DEVICE_LOST);
    mb_close(b);
    rt_close(a);
}

TEST(pages_may_differ_and_what_is_open_stays_mapped)
{
    mb_device a = open_at(0, ""), b = open_at(1, "");
    mb_stream stream = rt_stream(a);
    mb_mem mem = NULL;
    char *va = mapped(a, 8, &mem);
    struct mb_map_op part = {.kind = MB_UNMAP, .va = va + 6 * PAGE, .bytes = 2 * PAGE};

    rt_fill(a, va, 8 * PAGE, 1, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(give(a, va + PAGE, 6 * PAGE, b, MB_PROT_READ));
    RT_OK(give(a, va + 3 * PAGE, 2 * PAGE, b, MB_PROT_NONE));
    RT_OK(give(a, va + 2 * PAGE, PAGE, b, MB_PROT_READ_WRITE));
    for (unsigned i = 0; i < 8; i++)
        CHECK_EQ(access_of(a, va + i * PAGE, b), i == 2                       ? MB_PROT_READ_WRITE
                                                 : i == 1 || i == 5 || i == 6 ? MB_PROT_READ
                                                                              : MB_PROT_NONE);
    rt_verify(b, va + 5 * PAGE, 0, 1, NULL);
    rt_fill(b, va + 2 * PAGE, PAGE, 7, NULL);
    rt_clean(b);
    CHECK_EQ(mb_mem_map_async(a, &part, 1, stream), MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), "device 1"));
    CHECK_EQ(mb_mem_sleep(a, va + 6 * PAGE, PAGE, stream), MB_ERR_BUSY);
    part.va = va + 7 * PAGE;
    part.bytes = PAGE;
    RT_OK(mb_mem_map_async(a, &part, 1, stream)); /* a partial unmap beside what is open */
    part =
        (struct mb_map_op){.kind = MB_PROTECT, .prot = MB_PROT_READ, .va = va, .bytes = 7 * PAGE};
    RT_OK(mb_mem_map_async(a, &part, 1, stream)); /* the owner's access is its own */
    RT_OK(mb_stream_sync(a, stream));
    rt_fill(b, va + 2 * PAGE, PAGE, 8, NULL);
    rt_clean(b);
    rt_verify(a, va + 2 * PAGE, PAGE, 8, stream);
    RT_OK(give(a, va, 7 * PAGE, b, MB_PROT_NONE));
    RT_OK(map(a, MB_UNMAP, va, 7, NULL, NULL));
    RT_OK(mb_mem_release(a, mem));
    RT_OK(mb_mem_unreserve(a, va, 8 * PAGE));
    rt_close(b);
    rt_close(a);
}

TEST(aliases_are_seen_by_the_peer_at_each_address)
{
    mb_device a = open_at(0, ""), b = open_at(1, "");
    mb_mem mem = NULL;
    char *va = mapped(a, 2, &mem), *other = reserve(a, 2);

    RT_OK(map(a, MB_ALIAS, other, 2, NULL, va));
    rt_fill(a, va, 2 * PAGE, 1, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(give(a, other, 2 * PAGE, b, MB_PROT_READ_WRITE));
    RT_OK(mb_verify_async(b, other, 2 * PAGE, rt_seed(va, 1), NULL));
    RT_OK(mb_fill_async(b, other, 2 * PAGE, rt_seed(va, 2), NULL));
    rt_clean(b);
    rt_verify(a, va, 2 * PAGE, 2, NULL);
    /* The address by which the peer does not see it may go. */
    RT_OK(map(a, MB_UNMAP, va, 2, NULL, NULL));
    RT_OK(mb_mem_release(a, mem));
    RT_OK(mb_verify_async(b, other, 2 * PAGE, rt_seed(va, 2), NULL));
    rt_clean(b);
    CHECK_EQ(map(a, MB_UNMAP, other, 2, NULL, NULL), MB_ERR_BUSY);
    RT_OK(give(a, other, 2 * PAGE, b, MB_PROT_NONE));
    RT_OK(map(a, MB_UNMAP, other, 2, NULL, NULL));
    RT_OK(mb_mem_unreserve(a, va, 2 * PAGE));
    RT_OK(mb_mem_unreserve(a, other, 2 * PAGE));
    rt_close(b);
    rt_close(a);
}

TEST(copies_between_devices)
{
    mb_device a = open_at(0, ""), b = open_at(1, "");
    void *from = rt_malloc(a, 9 * RT_MIB, NULL), *to = rt_malloc(b, 9 * RT_MIB, NULL);

    rt_fill(a, from, 9 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(give(a, from, 1, b, MB_PROT_READ));
    RT_OK(mb_copy_async(b, to, from, 9 * RT_MIB, NULL));
    RT_OK(mb_verify_async(b, to, 9 * RT_MIB, rt_seed(from, 1), NULL));
    rt_clean(b);
    RT_OK(give(a, from, 1, b, MB_PROT_NONE));
    RT_OK(mb_free(a, from));
    RT_OK(mb_free(b, to));
    rt_close(a);
    rt_close(b);
}

TEST(what_cannot_be_is_refused_and_changes_nothing)
{
    mb_device a = open_at(0, ""), b = open_at(1, ""), old = open_at(2, "model:mi210");
    mb_mem mem = NULL;
    char *va = mapped(a, 3, &mem);
    void *block = rt_malloc(a, 100, NULL), *hole = reserve(a, 1);
    struct mb_access twice[2] = {{b, MB_PROT_READ}, {b, MB_PROT_READ_WRITE}};
    struct mb_access mixed[2] = {{b, MB_PROT_READ_WRITE}, {old, MB_PROT_READ}};
    enum mb_prot prot;

    CHECK_EQ(mb_mem_set_access(a, va, PAGE, twice, 2), MB_ERR_INVALID);
    CHECK_EQ(mb_mem_set_access(a, va, PAGE, NULL, 1), MB_ERR_INVALID);
    CHECK_EQ(mb_mem_set_access(a, va, PAGE, mixed, 2), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb_device_can_access(old, a), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(give(a, va, PAGE, b, (enum mb_prot)2), MB_ERR_INVALID);
    CHECK_EQ(give(a, va, 0, b, MB_PROT_READ), MB_ERR_INVALID);
    CHECK_EQ(give(a, va + 8, PAGE, b, MB_PROT_READ), MB_ERR_INVALID);
    CHECK_EQ(give(a, va, 4 * PAGE, b, MB_PROT_READ), MB_ERR_NOT_MAPPED);
    CHECK_EQ(give(a, hole, PAGE, b, MB_PROT_READ), MB_ERR_NOT_MAPPED);
    CHECK_EQ(give(a, block, 4 * RT_MIB, b, MB_PROT_READ), MB_ERR_NOT_FOUND);
    CHECK_EQ(give(b, block, 100, a, MB_PROT_READ), MB_ERR_NOT_FOUND);
    CHECK(strstr(mb_error_detail(), "belongs to device 0"));
    CHECK_EQ(give(a, block, 100, a, MB_PROT_READ), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(mb_mem_get_access(a, hole, b, &prot), MB_ERR_NOT_FOUND);
    CHECK_EQ(access_of(a, va, b), MB_PROT_NONE);
    CHECK_EQ(access_of(a, block, b), MB_PROT_NONE);
    RT_OK(give(a, va, PAGE, a, MB_PROT_READ));
    CHECK_EQ(access_of(a, va, a), MB_PROT_READ);
    RT_OK(mb_free(a, block));
    RT_OK(mb_mem_unreserve(a, hole, PAGE));
    unmap_all(a, va, 3, mem);
    rt_close(b);
    rt_close(a);
    mb_close(old);
}

TEST(checks_know_what_a_peer_may_use)
{
    mb_device a = open_at(0, "check:redzone|poison"), b = open_at(1, "check:redzone|poison");
    void *block = rt_malloc(a, 3 * RT_MIB, NULL);

    CHECK_EQ(mb_fill_async(b, block, 8, 1, NULL), MB_ERR_INVALID);
    RT_OK(give(a, block, 8, b, MB_PROT_READ_WRITE));
    rt_fill(b, block, 3 * RT_MIB, 1, NULL);
    rt_clean(b);
    rt_verify(a, block, 3 * RT_MIB, 1, NULL);
    RT_OK(give(a, block, 8, b, MB_PROT_NONE));
    RT_OK(mb_free_async(a, block, NULL));
    rt_close(a);
    rt_close(b);
}

/* Two openings of one device have the same addresses: a peer sees the first, and never the second
 * in its place. */
TEST(a_device_that_is_open_twice)
{
    mb_device a = open_at(0, ""), twin = open_at(0, ""), b = open_at(1, "");
    void *block = rt_malloc(a, 4 * RT_MIB, NULL), *other = rt_malloc(twin, 4 * RT_MIB, NULL);

    rt_fill(a, block, 4 * RT_MIB, 1, NULL);
    rt_fill(twin, other, 4 * RT_MIB, 2, NULL);
    RT_OK(mb_device_sync(a));
    RT_OK(mb_device_sync(twin));
    RT_OK(give(a, block, 8, b, MB_PROT_READ));
    CHECK_EQ(give(twin, other, 8, b, MB_PROT_READ), MB_ERR_BUSY);
    CHECK_EQ(access_of(twin, other, b), MB_PROT_NONE);
    CHECK_EQ(give(a, block, 8, twin, MB_PROT_READ), MB_ERR_INVALID);
    rt_verify(b, block, 4 * RT_MIB, 1, NULL);
    rt_clean(b);
    mb_close(a);
    RT_OK(give(twin, other, 8, b, MB_PROT_READ));
    rt_verify(b, other, 4 * RT_MIB, 2, NULL);
    rt_close(b);
    RT_OK(mb_free(twin, other));
    rt_close(twin);
}

/* The upper red zone of a block may be all that it has of its last page, or lie behind the last
 * mapped one. */
TEST(red_zones_are_not_opened)
{
    static const char *const checks[] = {"", "check:redzone", "check:redzone|uaf", "check:uaf"};

    for (unsigned k = 0; k < sizeof(checks) / sizeof(checks[0]); k++) {
        mb_device a = open_at(0, checks[k]), b = open_at(1, checks[k]);
        void *block = NULL, *next = NULL;

        RT_OK(mb_malloc(a, 2 * PAGE - 1024, &block));
        RT_OK(mb_malloc(a, PAGE - 1024, &next));
        RT_OK(give(a, block, 2 * PAGE - 1024, b, MB_PROT_READ));
        CHECK_EQ(access_of(a, block, b), MB_PROT_READ);
        if (((uintptr_t)block ^ (uintptr_t)next) >= 2 * PAGE)
            CHECK_EQ(access_of(a, next, b), MB_PROT_NONE);
        rt_fill(a, block, 2 * PAGE - 1024, 1, NULL);
        RT_OK(mb_device_sync(a));
        rt_verify(b, block, 2 * PAGE - 1024, 1, NULL);
        rt_clean(b);
        CHECK(mb_fill_async(b, block, UINT64_MAX - 7, 1, NULL) == MB_ERR_INVALID);
        RT_OK(give(a, block, 8, b, MB_PROT_NONE));
        RT_OK(mb_free(a, block));
        RT_OK(mb_free(a, next));
        rt_close(a);
        rt_close(b);
    }
}

/* ------------------------------------------------------------------ threads */

enum {
    THREADS = 4,
    ROUNDS = 60,
};

struct worker {
    mb_device owner, peer;
    char *va;
    uint64_t pages;
    unsigned failed;
};

static void *open_and_close(void *opaque)
{
    struct worker *worker = opaque;
    mb_stream stream = NULL;

    worker->failed |= (unsigned)mb_stream_create(worker->peer, &stream);
    for (uint64_t i = 0; i < ROUNDS; i++) {
        void *block = NULL;

        worker->failed |=
            give(worker->owner, worker->va, worker->pages * PAGE, worker->peer, MB_PROT_READ_WRITE);
        worker->failed |=
            (unsigned)mb_fill_async(worker->peer, worker->va, worker->pages * PAGE, i, stream);
        worker->failed |=
            (unsigned)mb_verify_async(worker->peer, worker->va, worker->pages * PAGE, i, stream);
        worker->failed |= (unsigned)mb_malloc_async(worker->owner, 3 * RT_MIB, NULL, &block);
        worker->failed |= (unsigned)mb_fill_async(worker->owner, block, 3 * RT_MIB, i, NULL);
        worker->failed |= (unsigned)give(worker->owner, block, 8, worker->peer, MB_PROT_READ);
        worker->failed |= (unsigned)mb_free_async(worker->owner, block, NULL);
        worker->failed |=
            give(worker->owner, worker->va, worker->pages * PAGE, worker->peer, MB_PROT_NONE);
        worker->failed |= (unsigned)give(worker->owner, block, 8, worker->peer, MB_PROT_NONE);
    }
    return NULL;
}

TEST(threads_of_several_peers)
{
    mb_device dev[THREADS];
    struct worker worker[THREADS];
    pthread_t thread[THREADS];
    mb_mem mem[THREADS];

    for (int i = 0; i < THREADS; i++) {
        RT_OK(mb_open(i, "backend:sim,device_memory:1g", &dev[i]));
        mem[i] = NULL;
        worker[i] = (struct worker){.owner = dev[i], .va = mapped(dev[i], 4, &mem[i]), .pages = 4};
    }
    for (int i = 0; i < THREADS; i++) {
        worker[i].peer = dev[(i + 1) % THREADS];
        CHECK_EQ(pthread_create(&thread[i], NULL, open_and_close, &worker[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        CHECK_EQ(worker[i].failed, 0);
    }
    for (int i = 0; i < THREADS; i++) {
        rt_clean(dev[i]);
        unmap_all(dev[i], worker[i].va, 4, mem[i]);
    }
    for (int i = 0; i < THREADS; i++)
        rt_close(dev[i]);
}
