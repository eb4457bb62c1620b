/* SPDX-License-Identifier: MIT */
/*
 * Aliases of blocks and other users of a block: its memory is nobody else's, and is not poisoned,
 * before all of them are done, in whatever order block, alias and stream come to their end.
 */
#include <string.h>

#include "runtime/runtime.h"
#include "support/runtime_rig.h"

static const uint64_t BYTES = 16 * RT_MIB;

static void keep_busy(mb_device dev, void *ptr, mb_stream stream)
{
    for (unsigned i = 0; i < 200; i++)
        rt_fill(dev, ptr, 2 * RT_MIB, i, stream);
}

static void *alias_of(mb_device dev, void *block, uint64_t bytes)
{
    struct mb_map_op op = {
        .kind = MB_ALIAS, .prot = MB_PROT_READ_WRITE, .bytes = bytes, .src = block};
    void *va = NULL;

    RT_OK(mb_mem_reserve(dev, bytes, 0, &va));
    op.va = va;
    RT_OK(mb_mem_map(dev, &op));
    return va;
}

static void unmap(mb_device dev, void *va, uint64_t bytes, mb_stream stream)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = va, .bytes = bytes};

    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
}

enum when { FREE_FIRST, UNMAP_FIRST };

/* A late write through the alias on one stream; the block's owner frees, takes memory again and
 * writes on another. */
static void late_writer(const char *config, enum when when, bool host)
{
    mb_device dev = rt_open(config);
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *block = rt_malloc(dev, BYTES, a), *va, *again, *work = NULL;

    RT_OK(mb_malloc(dev, 2 * RT_MIB, &work));
    RT_OK(mb_stream_sync(dev, a));
    va = alias_of(dev, block, BYTES);
    if (when == FREE_FIRST)
        RT_OK(host ? mb_free(dev, block) : mb_free_async(dev, block, a));
    keep_busy(dev, work, b);
    RT_OK(mb_fill_async(dev, va, BYTES, 77, b));
    unmap(dev, va, BYTES, b);
    if (when == UNMAP_FIRST)
        RT_OK(host ? mb_free(dev, block) : mb_free_async(dev, block, a));
    again = rt_malloc(dev, BYTES, a);
    rt_fill(dev, again, BYTES, 5, a);
    RT_OK(mb_device_sync(dev));
    rt_verify(dev, again, BYTES, 5, a);
    RT_OK(mb_free_async(dev, again, a));
    RT_OK(mb_free(dev, work));
    RT_OK(mb_mem_unreserve(dev, va, BYTES));
    rt_close(dev);
}

TEST(the_unmap_of_an_alias_is_an_order_of_its_block)
{
    late_writer("backend:sim,device_memory:64m", FREE_FIRST, false);
    late_writer("backend:sim,device_memory:64m", FREE_FIRST, true);
    late_writer("backend:sim,device_memory:64m", UNMAP_FIRST, false);
    late_writer("backend:sim,device_memory:64m", UNMAP_FIRST, true);
    late_writer("backend:sim,device_memory:64m,cache:no,explore:yes,seed:1", FREE_FIRST, true);
    late_writer("backend:sim,device_memory:64m,cache:no,explore:yes,seed:2", UNMAP_FIRST, false);
}

/* The same stream does it all: the memory is its own again at once. */
TEST(an_unmap_on_the_freeing_stream_costs_nothing)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,cache:no");
    mb_stream a = rt_stream(dev);
    void *block = rt_malloc(dev, BYTES, a), *va, *again;

    RT_OK(mb_stream_sync(dev, a));
    va = alias_of(dev, block, BYTES);
    RT_OK(mb_free_async(dev, block, a));
    rt_fill(dev, va, BYTES, 1, a);
    unmap(dev, va, BYTES, a);
    again = rt_malloc(dev, BYTES, a);
    CHECK_PTR_EQ(again, block);
    RT_OK(mb_free_async(dev, again, a));
    RT_OK(mb_mem_unreserve(dev, va, BYTES));
    rt_close(dev);
}

TEST(poison_waits_for_recorded_streams)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,check:poison");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    void *work = NULL, *block = NULL;
    mb_event event;

    RT_OK(mb_event_create(dev, &event));
    RT_OK(mb_malloc(dev, 2 * RT_MIB, &work));
    for (unsigned round = 0; round < 2; round++) {
        block = rt_malloc(dev, BYTES, a);
        rt_fill(dev, block, BYTES, 1, a);
        RT_OK(mb_event_record(dev, event, a));
        RT_OK(mb_stream_wait_event(dev, b, event));
        RT_OK(mb_record_stream(dev, block, b));
        keep_busy(dev, work, b);
        if (round)
            rt_fill(dev, block, BYTES, 9, b); /* would look like a use after free */
        else
            rt_verify(dev, block, BYTES, 1, b);
        RT_OK(mb_free_async(dev, block, a));
    }
    RT_OK(mb_device_sync(dev));
    block = rt_malloc(dev, BYTES, a);
    RT_OK(mb_free_async(dev, block, a));
    RT_OK(mb_event_destroy(dev, event));
    RT_OK(mb_free(dev, work));
    rt_close(dev);
}

TEST(poison_waits_for_the_last_alias)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,check:poison");
    mb_stream a = rt_stream(dev);
    void *block = NULL, *va;

    RT_OK(mb_malloc(dev, BYTES, &block));
    va = alias_of(dev, block, BYTES);
    RT_OK(mb_fill_async(dev, va, BYTES, 1, a));
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_free(dev, block));
    RT_OK(mb_verify_async(dev, va, BYTES, 1, a));
    RT_OK(mb_fill_async(dev, va, BYTES, 2, a));
    unmap(dev, va, BYTES, a);
    RT_OK(mb_malloc(dev, BYTES, &block));
    RT_OK(mb_free(dev, block));
    RT_OK(mb_mem_unreserve(dev, va, BYTES));
    rt_close(dev);
}

TEST(the_tail_that_realloc_gives_back_is_poisoned)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m,check:poison");
    void *block = NULL, *rest = NULL, *out = NULL;

    RT_OK(mb_malloc(dev, 6 * RT_MIB, &block));
    rt_fill(dev, block, 6 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, block, 2 * RT_MIB, &out));
    RT_OK(mb_malloc(dev, 4 * RT_MIB, &rest));
    RT_OK(mb_free(dev, rest));
    RT_OK(mb_free(dev, out));
    rt_close(dev);
}

/* The block's pins are wrong by `by` while mb_check() looks. */
static void miscount(mb_device dev, struct mb__block *block, uint32_t by)
{
    char where[40];

    block->pins += by;
    CHECK_EQ(mb_check(dev), MB_ERR_CORRUPT);
    snprintf(where, sizeof(where), "block 0x%llx: ", (unsigned long long)block->addr);
    CHECK(strstr(mb_error_detail(), where) && strstr(mb_error_detail(), "pins"));
    block->pins -= by;
    RT_OK(mb_check(dev));
}

/* A pin too many keeps a block's memory for ever, one too few gives it to somebody else. */
TEST(the_check_counts_pins)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m"), peer = NULL;
    void *bare = rt_malloc(dev, BYTES, NULL), *shown = rt_malloc(dev, BYTES, NULL);
    void *view = alias_of(dev, shown, 4 * RT_MIB), *again = alias_of(dev, shown, 2 * RT_MIB);
    struct mb__block *one = mb__table_get(&dev->table, (uint64_t)(uintptr_t)bare);
    struct mb__block *two = mb__table_get(&dev->table, (uint64_t)(uintptr_t)shown);
    struct mb_access access;

    RT_OK(mb_open(1, "backend:sim,device_memory:128m", &peer));
    access = (struct mb_access){peer, MB_PROT_READ};
    RT_OK(mb_mem_set_access(dev, bare, 8, &access, 1));
    RT_OK(mb_mem_set_access(dev, shown, 8, &access, 1));
    CHECK_EQ(one->pins, 1);
    CHECK_EQ(two->pins, 4);
    for (unsigned freed = 0; freed < 2; freed++) { /* then it is in no table any more */
        miscount(dev, one, 1);
        miscount(dev, one, (uint32_t)-1);
        miscount(dev, two, 1);
        miscount(dev, two, (uint32_t)-1);
        if (!freed)
            RT_OK(mb_free_async(dev, shown, NULL));
    }
    access.prot = MB_PROT_NONE;
    RT_OK(mb_mem_set_access(dev, shown, 8, &access, 1));
    miscount(dev, two, 1);
    unmap(dev, view, 4 * RT_MIB, NULL);
    unmap(dev, again, 2 * RT_MIB, NULL);
    RT_OK(mb_mem_set_access(dev, bare, 8, &access, 1));
    miscount(dev, one, 1);
    RT_OK(mb_free_async(dev, bare, NULL));
    rt_close(peer);
    rt_close(dev);
}

/* ------------------------------------------------------------------ what a pointer's frames are */

/* The answer by looking at every page anew. */
static void check_info(mb_device dev, void *ptr, uint64_t base, uint64_t bytes, uint32_t homes)
{
    struct mb_pointer_info info;
    mb_pfn before = MB_NO_PFN;
    uint32_t most = 0;
    bool stitched = false;

    for (uint64_t at = base & ~(MB_FRAME_BYTES - 1); at < base + bytes; at += MB_FRAME_BYTES) {
        mb_pfn pfn = mb__vm_lookup(dev->vm, mb__va(at));
        uint32_t refs = mb__pfn_refs(dev->vm, pfn);

        most = refs > most ? refs : most;
        stitched |= !mb__pfn_eq(before, MB_NO_PFN) && pfn.n != before.n + MB_FRAME_PFNS;
        before = pfn;
    }
    for (unsigned asked = 0; asked < 2; asked++) { /* the second answer is a remembered one */
        RT_OK(mb_pointer_info(dev, ptr, &info));
        CHECK_EQ((uintptr_t)info.base, base);
        CHECK_EQ(info.bytes, bytes);
        CHECK_EQ(info.stitched, stitched);
        CHECK_EQ(info.aliases_high, most - homes);
    }
}

/* Mapped pages around one of the range, by what was mapped; and the block that they show. */
static void check_views(mb_device dev, char *view, const bool *mapped, unsigned pages)
{
    for (unsigned i = 0; i < pages; i++) {
        struct mb_pointer_info info;
        unsigned first = i, last = i;

        if (!mapped[i]) {
            CHECK_EQ(mb_pointer_info(dev, view + i * MB_FRAME_BYTES, &info), MB_ERR_NOT_FOUND);
            continue;
        }
        while (first && mapped[first - 1])
            first--;
        while (last + 1 < pages && mapped[last + 1])
            last++;
        check_info(dev, view + i * MB_FRAME_BYTES + 17, (uintptr_t)view + first * MB_FRAME_BYTES,
                   (last - first + 1) * MB_FRAME_BYTES, 1);
    }
}

enum { VIEWS = 8, STEPS = 600 };

/* Aliases come and go, blocks grow, shrink and are composed: no remembered answer outlives them. */
TEST(pointer_info_follows_every_change)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    uint64_t random = mb_test_seed(), bytes = BYTES;
    bool mapped[VIEWS] = {false};
    void *block = rt_malloc(dev, bytes, NULL), *holes[12], *va = NULL;
    char *view;

    RT_OK(mb_mem_reserve(dev, VIEWS * MB_FRAME_BYTES, 0, &va));
    view = va;
    for (unsigned i = 0; i < 12; i++)
        holes[i] = rt_malloc(dev, 3 * RT_MIB, NULL);
    for (unsigned i = 0; i < 12; i += 2)
        RT_OK(mb_free(dev, holes[i]));
    for (unsigned step = 0; step < STEPS; step++) {
        unsigned at = (unsigned)mb_test_random_below(&random, VIEWS);
        uint64_t wanted = (9 + mb_test_random_below(&random, 12)) * RT_MIB;
        struct mb_map_op op = {.kind = mapped[at] ? MB_UNMAP : MB_ALIAS,
                               .prot = MB_PROT_READ_WRITE,
                               .va = view + at * MB_FRAME_BYTES,
                               .bytes = MB_FRAME_BYTES};
        void *moved = NULL;

        op.src = (void *)(((uintptr_t)block + MB_FRAME_BYTES - 1) & ~(MB_FRAME_BYTES - 1));
        if (mb_test_random_below(&random, 3)) {
            RT_OK(mb_mem_map_async(dev, &op, 1, NULL));
            mapped[at] = !mapped[at];
        } else if (!mb_realloc(dev, block, wanted, &moved)) { /* not while it is shown */
            block = moved;
            bytes = wanted;
        }
        if (!mb_test_random_below(&random, 4))
            RT_OK(mb_device_sync(dev));
        if (!mb_test_random_below(&random, 8))
            for (unsigned i = 0; i < VIEWS; i++) {
                op = (struct mb_map_op){
                    .kind = MB_UNMAP, .va = view + i * MB_FRAME_BYTES, .bytes = MB_FRAME_BYTES};
                if (mapped[i])
                    RT_OK(mb_mem_map(dev, &op));
                mapped[i] = false;
            }
        check_info(dev, block, (uintptr_t)block, bytes, 0);
        check_views(dev, view, mapped, VIEWS);
        for (unsigned i = 1; i < 12; i += 2)
            check_info(dev, holes[i], (uintptr_t)holes[i], 3 * RT_MIB, 0);
    }
    RT_OK(mb_device_sync(dev));
    mb_close(dev);
}
