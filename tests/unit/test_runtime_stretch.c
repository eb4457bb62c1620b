/* SPDX-License-Identifier: MIT */
/*
 * Batches of one stretch of pages, told as one operation, as a list or as ranges: all do the same;
 * what is wrong with one of them is said and changes nothing, and a device that refuses the batch
 * leaves pages, frames and counts as they were.
 */
#include <string.h>

#include "hw/fault.h"
#include "runtime/vmm_records.h"
#include "support/runtime_rig.h"

enum { PAGES = 8 };

struct scene {
    mb_device dev;
    mb_stream stream;
    uint64_t page; /* bytes */
    mb_mem mem;    /* of PAGES frames; frame i is filled with i + 1 */
    mb_mem other;  /* of PAGES frames */
    char *va;      /* of 2 * PAGES pages */
    char *shown;   /* frame i of mem at page i, while the scene lasts */
};

static struct mb_map_op map_op(const struct scene *s, char *va, mb_mem mem, unsigned index,
                               unsigned pages)
{
    return (struct mb_map_op){.kind = MB_MAP,
                              .prot = MB_PROT_READ_WRITE,
                              .va = va,
                              .bytes = pages * s->page,
                              .mem = mem,
                              .mem_offset = index * s->page};
}

static enum mb_err apply(const struct scene *s, const struct mb_map_op *ops, unsigned count)
{
    return mb_mem_map_async(s->dev, ops, count, s->stream);
}

static char *page_at(const struct scene *s, char *va, unsigned page)
{
    return va + page * s->page;
}

static struct scene set_up(const char *config)
{
    struct scene s = {.dev = rt_open(config)};
    struct mb_map_op op;
    void *va = NULL, *shown = NULL;

    s.stream = rt_stream(s.dev);
    s.page = mb_page_bytes(s.dev);
    RT_OK(mb_mem_reserve(s.dev, 2 * PAGES * s.page, 0, &va));
    RT_OK(mb_mem_reserve(s.dev, PAGES * s.page, 0, &shown));
    RT_OK(mb_mem_create(s.dev, PAGES * s.page, &s.mem));
    RT_OK(mb_mem_create(s.dev, PAGES * s.page, &s.other));
    s.va = va;
    s.shown = shown;
    op = map_op(&s, s.shown, s.mem, 0, PAGES);
    RT_OK(apply(&s, &op, 1));
    for (unsigned i = 0; i < PAGES; i++)
        RT_OK(mb_fill_async(s.dev, page_at(&s, s.shown, i), 4096, i + 1, s.stream));
    return s;
}

static void unmap(const struct scene *s, char *va, unsigned pages)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = va, .bytes = pages * s->page};

    RT_OK(apply(s, &op, 1));
}

/* Objects whose handles and pages are gone have given their frames back. */
static void tear_down(struct scene *s)
{
    RT_OK(mb_check(s->dev));
    RT_OK(mb_mem_release(s->dev, s->mem));
    RT_OK(mb_mem_release(s->dev, s->other));
    unmap(s, s->shown, PAGES);
    CHECK_EQ(rt_stats(s->dev).allocated_bytes, 0);
    RT_OK(mb_mem_unreserve(s->dev, s->shown, PAGES * s->page));
    RT_OK(mb_mem_unreserve(s->dev, s->va, 2 * PAGES * s->page));
    rt_close(s->dev);
}

/* Page i of `va` shows frame `frame[i]` of the scene's object. */
static void expect(const struct scene *s, char *va, const unsigned *frame)
{
    for (unsigned i = 0; i < PAGES; i++)
        RT_OK(mb_verify_async(s->dev, page_at(s, va, i), 4096, frame[i] + 1, s->stream));
    RT_OK(mb_check(s->dev));
}

static void expect_empty(const struct scene *s, char *va, unsigned pages)
{
    for (unsigned i = 0; i < pages; i++) {
        struct mb_map_op op = {.kind = MB_UNMAP, .va = page_at(s, va, i), .bytes = s->page};

        CHECK_EQ(apply(s, &op, 1), MB_ERR_NOT_MAPPED);
    }
    RT_OK(mb_check(s->dev));
}

static const unsigned straight[PAGES] = {0, 1, 2, 3, 4, 5, 6, 7};
static const unsigned crossed[PAGES] = {5, 2, 7, 0, 1, 1, 6, 3};

/* One operation for each page of `va`: of MB_MAP and MB_ALIAS, page i is to show frame[i]. */
static void list(const struct scene *s, struct mb_map_op *ops, enum mb_map_kind kind, char *va,
                 const unsigned *frame)
{
    for (unsigned i = 0; i < PAGES; i++) {
        ops[i] = map_op(s, page_at(s, va, i), s->mem, frame[i], 1);
        ops[i].kind = kind;
        ops[i].prot = kind == MB_PROTECT ? MB_PROT_READ : MB_PROT_READ_WRITE;
        ops[i].src = page_at(s, s->shown, frame[i]);
    }
}

TEST(lists_do_what_their_operations_say)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[PAGES + 1], whole;

    list(&s, ops, MB_MAP, s.va, crossed);
    RT_OK(apply(&s, ops, PAGES));
    expect(&s, s.va, crossed);
    /* Other frames in their place. */
    ops[0] = (struct mb_map_op){.kind = MB_UNMAP, .va = s.va, .bytes = PAGES * s.page};
    list(&s, ops + 1, MB_MAP, s.va, straight);
    RT_OK(apply(&s, ops, PAGES + 1));
    expect(&s, s.va, straight);
    whole = map_op(&s, s.va, s.mem, 0, PAGES);
    ops[1] = whole;
    RT_OK(apply(&s, ops, 2)); /* the same ones again */
    expect(&s, s.va, straight);
    list(&s, ops, MB_ALIAS, page_at(&s, s.va, PAGES), crossed);
    RT_OK(apply(&s, ops, PAGES));
    expect(&s, page_at(&s, s.va, PAGES), crossed);
    list(&s, ops, MB_PROTECT, s.va, straight);
    RT_OK(apply(&s, ops, PAGES));
    expect(&s, s.va, straight);
    for (unsigned i = 0; i < PAGES; i++) {
        enum mb_prot prot = MB_PROT_NONE;

        RT_OK(mb_mem_get_access(s.dev, page_at(&s, s.va, i), s.dev, &prot));
        CHECK_EQ(prot, MB_PROT_READ);
    }
    list(&s, ops, MB_UNMAP, s.va, straight);
    RT_OK(apply(&s, ops, PAGES));
    expect_empty(&s, s.va, PAGES);
    unmap(&s, page_at(&s, s.va, PAGES), PAGES);
    tear_down(&s);
}

/* Pages that the operation makes are sources of the next: all of it shows the first frame. */
TEST(an_alias_may_follow_itself)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op op = map_op(&s, s.va, s.mem, 3, 1);
    static const unsigned frame[PAGES] = {3, 3, 3, 3, 3, 3, 3, 3};

    RT_OK(apply(&s, &op, 1));
    op = map_op(&s, page_at(&s, s.va, 1), NULL, 0, PAGES - 1);
    op.kind = MB_ALIAS;
    op.src = s.va;
    RT_OK(apply(&s, &op, 1));
    expect(&s, s.va, frame);
    unmap(&s, s.va, PAGES);
    tear_down(&s);
}

/* What is wrong with one operation of a list of maps, and what is only unusual. */
TEST(one_operation_of_a_list_is_not_as_the_others)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[PAGES];
    enum { ODD = 5 };
    void *block = NULL;

    for (unsigned what = 0; what < 6; what++) {
        enum mb_err err;

        list(&s, ops, MB_MAP, s.va, crossed);
        if (what == 0)
            ops[ODD].mem = (mb_mem)(void *)s.va;
        else if (what == 1)
            ops[ODD].mem_offset = PAGES * s.page;
        else if (what == 2)
            ops[ODD].mem_offset += 4096;
        else if (what == 3)
            ops[ODD].prot = (enum mb_prot)2;
        else if (what == 4)
            ops[ODD].va = page_at(&s, s.va, ODD - 1);
        else
            ops[ODD].kind = MB_UNMAP;
        err = apply(&s, ops, PAGES);
        CHECK(err == MB_ERR_NOT_FOUND || err == MB_ERR_INVALID || err == MB_ERR_MAPPED ||
              err == MB_ERR_NOT_MAPPED);
        CHECK(strstr(mb_error_detail(), "operation 5 of 8"));
        expect_empty(&s, s.va, 2 * PAGES);
    }
    RT_OK(mb_malloc(s.dev, s.page, &block));
    for (unsigned what = 0; what < 4; what++) {
        list(&s, ops, what == 3 ? MB_ALIAS : MB_MAP, s.va, straight);
        if (what == 0)
            ops[ODD].mem = s.other;
        else if (what == 1)
            ops[ODD].prot = MB_PROT_READ;
        else if (what == 2)
            ops[ODD].va = page_at(&s, s.va, PAGES);
        else
            ops[ODD].src = block;
        RT_OK(apply(&s, ops, PAGES));
        RT_OK(mb_check(s.dev));
        RT_OK(mb_verify_async(s.dev, page_at(&s, s.va, ODD + 1), 4096, ODD + 2, s.stream));
        for (unsigned i = 0; i < PAGES; i++)
            unmap(&s, ops[i].va, 1);
    }
    RT_OK(mb_free(s.dev, block));
    tear_down(&s);
}

/* Three operations on ranges in a row, of both objects and of unlike lengths. */
static void ranges(const struct scene *s, struct mb_map_op *ops, char *va)
{
    ops[0] = map_op(s, va, s->mem, 2, 3);
    ops[1] = map_op(s, page_at(s, va, 3), s->mem, 0, 1);
    ops[2] = map_op(s, page_at(s, va, 4), s->other, 4, 4);
}

static void expect_ranges(const struct scene *s, char *va)
{
    static const unsigned frame[4] = {2, 3, 4, 0};

    for (unsigned i = 0; i < 4; i++)
        RT_OK(mb_verify_async(s->dev, page_at(s, va, i), 4096, frame[i] + 1, s->stream));
    for (unsigned i = 4; i < PAGES; i++)
        RT_OK(mb_verify_async(s->dev, page_at(s, va, i), 4096, 100 + i, s->stream));
    RT_OK(mb_check(s->dev));
}

TEST(ranges_in_a_row_do_what_their_operations_say)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[4];
    enum mb_prot prot = MB_PROT_NONE;

    ranges(&s, ops, s.va);
    RT_OK(apply(&s, ops, 3));
    for (unsigned i = 4; i < PAGES; i++)
        RT_OK(mb_fill_async(s.dev, page_at(&s, s.va, i), 4096, 100 + i, s.stream));
    expect_ranges(&s, s.va);
    /* They are the whole range's already, and are made so anew; an unmap of less is not before them
     * all. */
    ops[0] = (struct mb_map_op){.kind = MB_UNMAP, .va = s.va, .bytes = PAGES * s.page};
    ranges(&s, ops + 1, s.va);
    RT_OK(apply(&s, ops, 4));
    expect_ranges(&s, s.va);
    ops[0].bytes -= s.page;
    CHECK_EQ(apply(&s, ops, 4), MB_ERR_MAPPED);
    expect_ranges(&s, s.va);
    ranges(&s, ops, s.va);
    for (unsigned i = 0; i < 3; i++) {
        ops[i].kind = MB_PROTECT;
        ops[i].prot = MB_PROT_READ;
    }
    RT_OK(apply(&s, ops, 3));
    expect_ranges(&s, s.va);
    RT_OK(mb_mem_get_access(s.dev, page_at(&s, s.va, 5), s.dev, &prot));
    CHECK_EQ(prot, MB_PROT_READ);
    for (unsigned i = 0; i < 3; i++)
        ops[i].kind = MB_UNMAP;
    RT_OK(apply(&s, ops, 3));
    expect_empty(&s, s.va, PAGES);
    tear_down(&s);
}

TEST(one_of_the_ranges_is_not_as_the_others)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[3];

    for (unsigned what = 0; what < 6; what++) {
        ranges(&s, ops, s.va);
        if (what == 0)
            ops[2].mem = (mb_mem)(void *)s.va;
        else if (what == 1)
            ops[2].mem_offset = 5 * s.page;
        else if (what == 2)
            ops[2].bytes += 4096;
        else if (what == 3)
            ops[2].prot = (enum mb_prot)2;
        else if (what == 4)
            ops[2].bytes = 0;
        else
            ops[2].bytes = UINT64_MAX / s.page * s.page;
        CHECK(apply(&s, ops, 3));
        CHECK(strstr(mb_error_detail(), "operation 2 of 3"));
        expect_empty(&s, s.va, 2 * PAGES);
    }
    ranges(&s, ops, s.va);
    ops[0].bytes = 0;
    ops[1].va = s.va;
    ops[2].va = page_at(&s, s.va, 1);
    CHECK(apply(&s, ops, 3));
    CHECK(strstr(mb_error_detail(), "operation 0 of 3"));
    expect_empty(&s, s.va, 2 * PAGES);
    for (unsigned what = 0; what < 2; what++) {
        ranges(&s, ops, s.va);
        if (what == 0)
            ops[1].prot = MB_PROT_READ;
        else
            ops[1].va = page_at(&s, s.va, PAGES + 1);
        RT_OK(apply(&s, ops, 3));
        RT_OK(mb_verify_async(s.dev, ops[1].va, 4096, 1, s.stream));
        RT_OK(mb_verify_async(s.dev, s.va, 4096, 3, s.stream));
        RT_OK(mb_check(s.dev));
        for (unsigned i = 0; i < 3; i++)
            unmap(&s, ops[i].va, (unsigned)(ops[i].bytes / s.page));
    }
    tear_down(&s);
}

/* One ends, one begins, one changes, and one moves: pages 0 to 3, 8 to 11, 4 to 7 and 12 to 15. */
static unsigned several(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = (struct mb_map_op){.kind = MB_UNMAP, .va = s->va, .bytes = 4 * s->page};
    ops[1] = map_op(s, page_at(s, s->va, 8), s->mem, 0, 4);
    ops[2] = map_op(s, page_at(s, s->va, 12), s->mem, 6, 2);
    ops[3] = map_op(s, page_at(s, s->va, 14), s->mem, 3, 2);
    ops[4] = map_op(s, page_at(s, s->va, 4), NULL, 0, 4);
    ops[4].kind = MB_PROTECT;
    ops[4].prot = MB_PROT_READ;
    return 5;
}

static void expect_several(const struct scene *s)
{
    static const unsigned frame[PAGES] = {0, 1, 2, 3, 6, 7, 3, 4};
    enum mb_prot prot = MB_PROT_NONE;

    expect_empty(s, s->va, 4);
    expect(s, page_at(s, s->va, PAGES), frame);
    RT_OK(mb_verify_async(s->dev, page_at(s, s->va, 5), 4096, 6, s->stream));
    RT_OK(mb_mem_get_access(s->dev, page_at(s, s->va, 7), s->dev, &prot));
    CHECK_EQ(prot, MB_PROT_READ);
    RT_OK(mb_check(s->dev));
}

TEST(stretches_without_a_page_in_common)
{
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[6], whole = map_op(&s, s.va, s.mem, 0, PAGES);
    mb_mem gone = NULL;
    unsigned count;
    uint64_t before;

    RT_OK(apply(&s, &whole, 1));
    count = several(&s, ops);
    ops[4].bytes += s.page; /* one page is begun and changed: the general way, which is right too */
    RT_OK(apply(&s, ops, count));
    unmap(&s, page_at(&s, s.va, 4), 3 * PAGES / 2);
    RT_OK(apply(&s, &whole, 1));
    count = several(&s, ops);
    ops[1].mem_offset = 5 * s.page; /* there are no four frames from there */
    CHECK_EQ(apply(&s, ops, count), MB_ERR_INVALID);
    expect(&s, s.va, straight);
    count = several(&s, ops);
    RT_OK(apply(&s, ops, count));
    expect_several(&s);
    unmap(&s, page_at(&s, s.va, 4), 3 * PAGES / 2);
    /* The last pages of an object whose handle is gone make room for others. */
    before = rt_stats(s.dev).allocated_bytes;
    RT_OK(mb_mem_create(s.dev, 4 * s.page, &gone));
    ops[0] = map_op(&s, s.va, gone, 0, 4);
    RT_OK(apply(&s, ops, 1));
    RT_OK(mb_mem_release(s.dev, gone));
    whole = map_op(&s, page_at(&s, s.va, 4), s.mem, 0, 4);
    RT_OK(apply(&s, &whole, 1));
    RT_OK(apply(&s, ops, several(&s, ops)));
    CHECK_EQ(rt_stats(s.dev).allocated_bytes, before);
    RT_OK(mb_check(s.dev));
    unmap(&s, page_at(&s, s.va, 4), 3 * PAGES / 2);
    tear_down(&s);
}

TEST(a_check_sees_counts_that_went_to_the_wrong_frame)
{
    struct scene s = set_up("backend:sim,device_memory:128m");

    s.mem->maps[2]++;
    s.mem->maps[5]--;
    CHECK_EQ(mb_check(s.dev), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "frame 2 of a memory object counts 1 pages more"));
    s.mem->maps[2]--;
    s.mem->maps[5]++;
    tear_down(&s);
}

#ifdef MB_FAULT_INJECTION

/* The backend refuses the next batch; the one after is taken. */
static void refused_then_taken(const struct scene *s, const struct mb_map_op *ops, unsigned count,
                               const unsigned *before)
{
    mb__hw_fault_set(s->dev->hw, MB_HW_FAULT_submit, 1, MB_ERR_DRIVER, false);
    CHECK_EQ(apply(s, ops, count), MB_ERR_DRIVER);
    mb__hw_fault_set(s->dev->hw, MB_HW_FAULT_submit, 0, MB_OK, false);
    if (before)
        expect(s, s->va, before);
    else
        expect_empty(s, s->va, PAGES);
    RT_OK(apply(s, ops, count));
    RT_OK(mb_check(s->dev));
}

TEST(a_refused_batch_changes_nothing)
{
    static const enum mb_map_kind makes[] = {MB_MAP, MB_ALIAS};
    struct scene s = set_up("backend:sim,device_memory:128m");
    struct mb_map_op ops[PAGES + 1], whole = map_op(&s, s.va, s.mem, 0, PAGES);

    for (unsigned i = 0; i < 2; i++) {
        list(&s, ops, makes[i], s.va, crossed);
        refused_then_taken(&s, ops, PAGES, NULL);
        unmap(&s, s.va, PAGES);
        whole.kind = makes[i];
        whole.src = s.shown;
        refused_then_taken(&s, &whole, 1, NULL);
        ops[0] = (struct mb_map_op){.kind = MB_UNMAP, .va = s.va, .bytes = PAGES * s.page};
        list(&s, ops + 1, MB_MAP, s.va, crossed);
        refused_then_taken(&s, ops, PAGES + 1, straight);
        list(&s, ops, MB_PROTECT, s.va, crossed);
        refused_then_taken(&s, ops, PAGES, crossed);
        list(&s, ops, MB_UNMAP, s.va, crossed);
        refused_then_taken(&s, ops, PAGES, crossed);
        expect_empty(&s, s.va, PAGES);
    }
    ranges(&s, ops, s.va);
    refused_then_taken(&s, ops, 3, NULL);
    unmap(&s, s.va, PAGES);
    whole = map_op(&s, s.va, s.mem, 0, PAGES);
    RT_OK(apply(&s, &whole, 1));
    refused_then_taken(&s, ops, several(&s, ops), straight);
    expect_several(&s);
    unmap(&s, page_at(&s, s.va, 4), 3 * PAGES / 2);
    tear_down(&s);
}

#else

TEST(a_refused_batch_changes_nothing)
{
    SKIP("this build has no fault injection; configure with -DMB_FAULTS=ON");
}

#endif
