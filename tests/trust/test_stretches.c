/* SPDX-License-Identifier: MIT */
/*
 * Batches of mappings, each with every allocation of the host and every function of the backend
 * failing in turn: of one stretch of pages, of several, of more than go the short way, of
 * operations that meet on a page, of aliases, of sleep and wake. A refused batch says why and has
 * changed nothing: records, counts, the device's entries; the same call then does what a model of
 * single pages says. In the end nothing is held.
 */
#include <string.h>

#include "base/log.h"
#include "hw/fault.h"
#include "runtime/vmm_records.h"
#include "support/alloc_faults.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

#ifdef MB_FAULT_INJECTION

enum { FRAMES = 8, GONE = 4, PAGES = 40, OPS_MAX = 48, N_MAX = 500 };

/* What a page shows: `what` 0 nothing, else 1 + number of the object; BLOCK of the block. */
enum { BLOCK_VIEW = 4 };
struct view {
    unsigned what, index;
    enum mb_prot prot;
    bool asleep;
};

struct scene {
    mb_device dev;
    mb_stream stream;
    uint64_t page;
    mb_mem mem[3]; /* of FRAMES frames, and of GONE frames without a handle */
    void *block;   /* of two pages */
    char *va;      /* of PAGES pages: 0-7 show mem[0], 8-11 the released object, 12-13 the block */
    struct view view[PAGES]; /* what its pages are to show */
};

struct program {
    const char *name;
    unsigned (*ops)(const struct scene *s, struct mb_map_op *ops);
    enum mb_err (*call)(const struct scene *s, const struct mb_map_op *ops, unsigned count);
};

static char *page_at(const struct scene *s, unsigned page)
{
    return s->va + page * s->page;
}

static struct mb_map_op map(const struct scene *s, unsigned page, unsigned pages, unsigned mem,
                            unsigned index)
{
    return (struct mb_map_op){.kind = MB_MAP,
                              .prot = MB_PROT_READ_WRITE,
                              .va = page_at(s, page),
                              .bytes = pages * s->page,
                              .mem = s->mem[mem],
                              .mem_offset = index * s->page};
}

static struct mb_map_op alias(const struct scene *s, unsigned page, unsigned pages, void *src)
{
    return (struct mb_map_op){.kind = MB_ALIAS,
                              .prot = MB_PROT_READ_WRITE,
                              .va = page_at(s, page),
                              .bytes = pages * s->page,
                              .src = src};
}

static struct mb_map_op unmap(const struct scene *s, unsigned page, unsigned pages)
{
    return (struct mb_map_op){.kind = MB_UNMAP, .va = page_at(s, page), .bytes = pages * s->page};
}

static struct mb_map_op protect(const struct scene *s, unsigned page, unsigned pages)
{
    return (struct mb_map_op){
        .kind = MB_PROTECT, .prot = MB_PROT_READ, .va = page_at(s, page), .bytes = pages * s->page};
}

/* ------------------------------------------------------------ the model */

static unsigned page_of(const struct scene *s, const void *va)
{
    return (unsigned)(((const char *)va - s->va) / (ptrdiff_t)s->page);
}

static unsigned number_of(const struct scene *s, const struct mb_mem *mem)
{
    unsigned i = 0;

    while (s->mem[i] != mem)
        i++;
    return i;
}

static struct view source(const struct scene *s, const struct mb_map_op *op, unsigned i)
{
    const char *block = s->block, *src = op->src;

    if (src >= block && src < block + 2 * s->page)
        return (struct view){.what = BLOCK_VIEW,
                             .index = (unsigned)((src - block) / (ptrdiff_t)s->page) + i};
    return s->view[page_of(s, src) + i];
}

static void follow(struct scene *s, const struct mb_map_op *op)
{
    for (unsigned i = 0; i < op->bytes / s->page; i++) {
        struct view *view = &s->view[page_of(s, op->va) + i];

        if (op->kind == MB_MAP)
            *view = (struct view){.what = 1 + number_of(s, op->mem),
                                  .index = (unsigned)(op->mem_offset / s->page) + i};
        else if (op->kind == MB_ALIAS)
            *view = source(s, op, i);
        else if (op->kind == MB_UNMAP)
            *view = (struct view){.what = 0};
        if (op->kind != MB_UNMAP)
            view->prot = op->prot;
    }
}

static const void *owner_of(const struct scene *s, const struct view *view)
{
    return view->what == BLOCK_VIEW ? NULL : s->mem[view->what - 1];
}

static void expect(const struct scene *s, const char *why)
{
    struct reservation *where = find(s->dev, (uint64_t)(uintptr_t)s->va, s->page);

    for (unsigned i = 0; i < PAGES; i++) {
        const struct view *view = &s->view[i];
        const struct page *page = &where->pages[i];
        mb_pfn shown = mb__vm_lookup(s->dev->vm, mb__va((uint64_t)(uintptr_t)page_at(s, i)));
        bool good;

        if (!view->what)
            good = !page->owner && !page->word && mb__pfn_eq(shown, MB_NO_PFN);
        else
            good = page_mem(page) == owner_of(s, view) &&
                   !page_block(page) == (view->what != BLOCK_VIEW) &&
                   page_index(page) == (view->what == BLOCK_VIEW ? 0 : view->index) &&
                   page_state(page) == (view->asleep ? PAGE_ASLEEP : PAGE_MAPPED) &&
                   (page->word & PAGE_PROT) >> PAGE_PROT_SHIFT == (uint32_t)view->prot &&
                   !(page->word & PAGE_MARKS) &&
                   mb__pfn_eq(shown, view->asleep ? MB_NO_PFN : page->pfn);
        if (!good)
            FAIL("%s: page %u does not show what it should", why, i);
    }
    if (mb_check(s->dev))
        FAIL("%s: %s", why, mb_error_detail());
}

/* Each page is read through the device. */
static void expect_contents(const struct scene *s)
{
    for (unsigned i = 0; i < PAGES; i++)
        if (s->view[i].what && !s->view[i].asleep)
            RT_OK(mb_verify_async(s->dev, page_at(s, i), 4096,
                                  s->view[i].what * 16 + s->view[i].index, s->stream));
    RT_OK(mb_stream_sync(s->dev, s->stream));
    CHECK_EQ(rt_stats(s->dev).wrong_words, 0);
    CHECK_EQ(rt_stats(s->dev).wrong_accesses, 0);
}

/* ------------------------------------------------------------ scenes */

static enum mb_err apply(const struct scene *s, const struct mb_map_op *ops, unsigned count)
{
    return mb_mem_map_async(s->dev, ops, count, s->stream);
}

static void done(struct scene *s, const struct mb_map_op *ops, unsigned count)
{
    RT_OK(apply(s, ops, count));
    for (unsigned i = 0; i < count; i++)
        follow(s, &ops[i]);
}

static void fill(const struct scene *s, unsigned page, unsigned pages)
{
    for (unsigned i = page; i < page + pages; i++)
        RT_OK(mb_fill_async(s->dev, page_at(s, i), 4096, s->view[i].what * 16 + s->view[i].index,
                            s->stream));
}

static struct scene set_up(const char *config)
{
    struct scene s = {.dev = rt_open(config)};
    struct mb_map_op ops[2];
    void *va = NULL;

    s.stream = rt_stream(s.dev);
    s.page = mb_page_bytes(s.dev);
    RT_OK(mb_mem_reserve(s.dev, PAGES * s.page, 0, &va));
    s.va = va;
    for (unsigned i = 0; i < 3; i++)
        RT_OK(mb_mem_create(s.dev, (i < 2 ? FRAMES : GONE) * s.page, &s.mem[i]));
    s.block = rt_malloc(s.dev, 2 * s.page, s.stream);
    ops[0] = map(&s, 0, FRAMES, 1, 0);
    done(&s, ops, 1);
    fill(&s, 0, FRAMES);
    ops[0] = unmap(&s, 0, FRAMES);
    ops[1] = map(&s, 0, FRAMES, 0, 0);
    done(&s, ops, 2);
    fill(&s, 0, FRAMES);
    ops[0] = map(&s, 8, GONE, 2, 0);
    done(&s, ops, 1);
    fill(&s, 8, GONE);
    RT_OK(mb_mem_release(s.dev, s.mem[2]));
    ops[0] = alias(&s, 12, 2, s.block);
    done(&s, ops, 1);
    fill(&s, 12, 2);
    RT_OK(mb_stream_sync(s.dev, s.stream));
    return s;
}

/* Everything goes: no frame may be held by anything forgotten. */
static void tear_down(struct scene *s)
{
    for (unsigned i = 0; i < PAGES; i++) {
        struct mb_map_op op = unmap(s, i, 1);

        if (s->view[i].what)
            RT_OK(apply(s, &op, 1));
    }
    RT_OK(mb_mem_release(s->dev, s->mem[0]));
    RT_OK(mb_mem_release(s->dev, s->mem[1]));
    RT_OK(mb_free_async(s->dev, s->block, s->stream));
    RT_OK(mb_mem_unreserve(s->dev, s->va, PAGES * s->page));
    RT_OK(mb_device_sync(s->dev));
    RT_OK(mb_check_tables(s->dev, false, NULL));
    rt_close(s->dev);
}

/* ------------------------------------------------------------ programs */

static unsigned one_list(const struct scene *s, struct mb_map_op *ops)
{
    for (unsigned i = 0; i < FRAMES; i++)
        ops[i] = map(s, 16 + i, 1, i & 1, (i * 5) % FRAMES);
    return FRAMES;
}

static unsigned list_over(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = unmap(s, 0, FRAMES);
    for (unsigned i = 0; i < FRAMES; i++)
        ops[1 + i] = map(s, i, 1, i & 1, (i * 3) % FRAMES);
    return 1 + FRAMES;
}

static unsigned ranges_over(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = unmap(s, 8, GONE);
    ops[1] = map(s, 8, 1, 0, 3);
    ops[2] = map(s, 9, 3, 1, 2);
    return 3;
}

/* Sequences that end, begin, change; the last pages of a released object. */
static unsigned apart(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = unmap(s, 8, GONE);
    ops[1] = map(s, 16, 5, 1, 1);
    ops[2] = map(s, 21, 3, 0, 2);
    ops[3] = protect(s, 4, 2);
    ops[4] = unmap(s, 0, 2);
    ops[5] = unmap(s, 2, 2);
    ops[6] = map(s, 30, 1, 0, 0);
    return 7;
}

/* `count` stretches that do not touch. */
static unsigned spread(const struct scene *s, struct mb_map_op *ops, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        ops[i] = i < 4   ? unmap(s, 2 * i, 1)
                 : i < 6 ? protect(s, 2 * i - 7, 1)
                 : i < 8 ? unmap(s, 2 * i - 4, 1)
                         : map(s, 14 + 2 * (i - 8), 1, i & 1, i % FRAMES);
    return count;
}

static unsigned sixteen(const struct scene *s, struct mb_map_op *ops)
{
    return spread(s, ops, 16);
}

static unsigned eighteen(const struct scene *s, struct mb_map_op *ops)
{
    return spread(s, ops, 18);
}

/* Pages that are touched more than once, also of the block and of the released object. */
static unsigned overlapping(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = unmap(s, 0, 4);
    ops[1] = map(s, 0, 2, 1, 0);
    ops[2] = map(s, 2, 2, 0, 4);
    ops[3] = protect(s, 1, 8);
    ops[4] = unmap(s, 3, 1);
    ops[5] = alias(s, 20, 6, page_at(s, 8));
    ops[6] = unmap(s, 8, 6);
    ops[7] = alias(s, 8, 2, page_at(s, 22));
    ops[8] = unmap(s, 20, 1);
    return 9;
}

static unsigned alias_range(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = alias(s, 24, 12, s->va);
    return 1;
}

static unsigned alias_list(const struct scene *s, struct mb_map_op *ops)
{
    for (unsigned i = 0; i < 12; i++)
        ops[i] = alias(s, 24 + i, 1, page_at(s, (i * 5) % 12));
    return 12;
}

static unsigned of_blocks(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = unmap(s, 12, 2);
    ops[1] = alias(s, 15, 2, s->block);
    ops[2] = alias(s, 18, 1, s->block);
    ops[3] = map(s, 12, 1, 1, 7);
    return 4;
}

static unsigned one_op(const struct scene *s, struct mb_map_op *ops)
{
    ops[0] = map(s, 16, FRAMES, 1, 0);
    return 1;
}

static enum mb_err awaited(const struct scene *s, const struct mb_map_op *ops, unsigned count)
{
    return count == 1 ? mb_mem_map(s->dev, ops) : MB_ERR_INTERNAL;
}

static const struct program programs[] = {
    {"list", one_list, apply},           {"list over", list_over, apply},
    {"ranges over", ranges_over, apply}, {"apart", apart, apply},
    {"sixteen", sixteen, apply},         {"eighteen", eighteen, apply},
    {"overlapping", overlapping, apply}, {"alias of a range", alias_range, apply},
    {"aliases", alias_list, apply},      {"aliases of blocks", of_blocks, apply},
    {"awaited", one_op, awaited}};
enum { PROGRAMS = sizeof(programs) / sizeof(programs[0]), HOST = MB_HW_FAULT_ANY + 1 };

/* ------------------------------------------------------------ faults */

static uint64_t runs, failures, lost;

static void arm(struct scene *s, int op, uint64_t n, bool lasting)
{
    if (op == HOST)
        fail_at(n, lasting);
    else
        mb__hw_fault_set(s->dev->hw, (enum mb_hw_fault_op)op, n, MB_ERR_DRIVER, lasting);
}

static bool is_lost(const struct scene *s)
{
    return vm_peek_lost(s->dev->vm) || s->dev->hw->ops->health(s->dev->hw);
}

/* Returns whether the fault was met. */
static bool run(const char *config, const struct program *p, int op, uint64_t n, bool lasting)
{
    struct scene s = set_up(config);
    struct mb_map_op ops[OPS_MAX];
    unsigned count = p->ops(&s, ops);
    uint64_t before = mb__hw_fault_hits(s.dev->hw);
    char why[128];
    enum mb_err err;
    bool met, waits = op == MB_HW_FAULT_ANY && lasting && p->call == awaited;

    snprintf(why, sizeof(why), "%s, %s fails %s use %llu", p->name,
             op == HOST ? "an allocation" : mb__hw_fault_name((enum mb_hw_fault_op)op),
             lasting ? "from" : "at", (unsigned long long)n);
    runs++;
    arm(&s, op, n, lasting);
    err = p->call(&s, ops, count);
    met = op == HOST ? plan.hits : mb__hw_fault_hits(s.dev->hw) != before;
    arm(&s, op, 0, false);
    if (is_lost(&s)) {
        lost++;
        mb_close(s.dev);
        return met;
    }
    failures += err != MB_OK;
    /* Without any wait the batch of a call that waits stands, and is told so. */
    if (err && !(waits && strstr(mb_error_detail(), "the pages have changed"))) {
        CHECK(met && mb_error_detail()[0]);
        expect(&s, why);
        RT_OK(mb_device_sync(s.dev));
        RT_OK(mb_check_tables(s.dev, false, NULL));
        if (p->call(&s, ops, count))
            FAIL("%s: and then too: %s", why, mb_error_detail());
    }
    for (unsigned i = 0; i < count; i++)
        follow(&s, &ops[i]);
    expect(&s, why);
    expect_contents(&s);
    tear_down(&s);
    return met;
}

static void sweep(const char *config)
{
    mb__log_set(MB_LOG_OFF); /* injected faults say nothing new */
    runs = failures = lost = 0;
    for (unsigned p = 0; p < PROGRAMS; p++) {
        for (int op = 0; op <= HOST; op++) {
            for (int lasting = 0; lasting < 2; lasting++) {
                uint64_t n = 1;

                while (n < N_MAX && run(config, &programs[p], op, n, lasting))
                    n++;
                CHECK(n < N_MAX);
            }
        }
    }
    printf("COUNT batches of mappings with a fault in turn %llu\n", (unsigned long long)runs);
    printf("COUNT of these batches refused %llu\n", (unsigned long long)failures);
    printf("COUNT devices lost by these batches %llu\n", (unsigned long long)lost);
    CHECK(failures > 2 * PROGRAMS);
}

TEST(own_tables)
{
    sweep("backend:sim,device_memory:128m");
}

TEST(fresh_and_deferred)
{
    sweep("backend:sim,device_memory:128m,policy:fresh,deferred:yes");
}

TEST(isolated)
{
    sweep("backend:sim,device_memory:128m,tables:isolated,driver_home:yes");
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
