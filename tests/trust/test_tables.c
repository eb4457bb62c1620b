/* SPDX-License-Identifier: MIT */
/*
 * Foreign and wrong page-table entries: another module of the process that can write tables (as it
 * can in inline mode) changes some, mb_check_tables() finds them, and repairs them.
 */
#include <string.h>

#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

enum { PAGES = 24 };

/* A device with a reservation of PAGES pages that shows a memory object, and a slab of somebody
 * else. */
struct victim {
    mb_device dev;
    mb_mem mem;
    void *va;
    struct mb_hw_slab stranger; /* not vm's */
    struct mb_hw_stream *stream;
    mb_stream native;
};

static const char *const configs[] = {
    "backend:sim,device_memory:512m",
    "backend:sim,device_memory:512m,driver_home:yes",
    "backend:sim,device_memory:512m,model:mi210",
    "backend:sim,device_memory:512m,model:a100,policy:fresh",
    "backend:sim,device_memory:512m,tables:isolated",
};
enum { CONFIGS = sizeof(configs) / sizeof(configs[0]) };

static struct victim victim_open(const char *config)
{
    struct victim v = {.dev = rt_open(config)};
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = PAGES * 2 * RT_MIB};
    const struct mb_hw_ops *ops = v.dev->hw->ops;
    mb_va home;

    RT_OK(mb_mem_create(v.dev, PAGES * 2 * RT_MIB, &v.mem));
    RT_OK(mb_mem_reserve(v.dev, PAGES * 2 * RT_MIB, 0, &v.va));
    op.va = v.va;
    op.mem = v.mem;
    RT_OK(mb_mem_map(v.dev, &op));
    rt_fill(v.dev, v.va, PAGES * 2 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(v.dev));
    RT_OK(ops->va_reserve(v.dev->hw, 32 * RT_MIB, 0, &home));
    RT_OK(ops->slab_acquire(v.dev->hw, 32 * RT_MIB, home, &v.stranger));
    RT_OK(ops->stream_create(v.dev->hw, &v.native));
    RT_OK(ops->stream_open(v.dev->hw, v.native, &v.stream));
    return v;
}

/* Contents are as the owner left them. */
static void victim_close(struct victim *v)
{
    struct mb_map_op op = {.kind = MB_UNMAP, .va = v->va, .bytes = PAGES * 2 * RT_MIB};

    rt_verify(v->dev, v->va, PAGES * 2 * RT_MIB, 1, NULL);
    rt_clean(v->dev);
    v->dev->hw->ops->stream_close(v->dev->hw, v->stream);
    RT_OK(v->dev->hw->ops->stream_destroy(v->dev->hw, v->native));
    RT_OK(v->dev->hw->ops->slab_release(v->dev->hw, &v->stranger));
    RT_OK(mb_mem_map(v->dev, &op));
    RT_OK(mb_mem_unreserve(v->dev, v->va, PAGES * 2 * RT_MIB));
    RT_OK(mb_mem_release(v->dev, v->mem));
    rt_close(v->dev);
}

static mb_pfn stranger_frame(const struct victim *v)
{
    return v->stranger.pfns ? v->stranger.pfns[3]
                            : (mb_pfn){v->stranger.first.n + 3 * MB_FRAME_PFNS};
}

/* Writes an entry as pte_pop would, but behind vm's back. pfn NULL: cleared. */
static void poke(const struct victim *v, uint64_t va, const mb_pfn *pfn, enum mb_prot prot)
{
    struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_LEAVES, .leaves = {.count = 1, .pfns = pfn}},
                                {.kind = MB_HW_BARRIER}};
    struct mb_hw_fence fence;

    cmds[0].leaves.view = vm_peek_view(v->dev->vm, va, &cmds[0].leaves.first);
    CHECK(cmds[0].leaves.view);
    cmds[0].leaves.tmpl = vm_peek_template(v->dev->vm, prot);
    RT_OK(v->dev->hw->ops->submit(v->dev->hw, v->stream, cmds, 2));
    RT_OK(v->dev->hw->ops->fence_record(v->dev->hw, v->stream, &fence));
    RT_OK(v->dev->hw->ops->fence_wait_host(v->dev->hw, fence, 0));
}

static struct mb_tables_report expect(const struct victim *v, bool repair, enum mb_err err)
{
    struct mb_tables_report report;

    memset(&report, 0xee, sizeof(report));
    CHECK_EQ(mb_check_tables(v->dev, repair, &report), err);
    if (err)
        CHECK(strstr(mb_error_detail(), "tables: the entry of") != NULL);
    return report;
}

static uint64_t page(const struct victim *v, unsigned i)
{
    return (uint64_t)(uintptr_t)v->va + i * 2 * RT_MIB;
}

/* Finds `wrong` entries, `foreign` of them foreign, the first at `first`; repairs; all is well
 * again. */
static void found_and_repaired(const struct victim *v, uint64_t wrong, uint64_t foreign,
                               uint64_t first)
{
    struct mb_tables_report report = expect(v, false, MB_ERR_CORRUPT);

    CHECK_EQ(report.wrong, wrong);
    CHECK_EQ(report.foreign, foreign);
    CHECK_EQ(report.repaired, 0);
    CHECK_EQ((uint64_t)(uintptr_t)report.first, first);
    CHECK_EQ(report.busy, 0);
    report = expect(v, true, MB_OK);
    CHECK_EQ(report.wrong, wrong);
    CHECK_EQ(report.repaired, wrong);
    report = expect(v, false, MB_OK);
    CHECK_EQ(report.wrong, 0);
    CHECK_PTR_EQ(report.first, NULL);
}

TEST(nothing_wrong)
{
    for (unsigned i = 0; i < CONFIGS; i++) {
        struct victim v = victim_open(configs[i]);
        struct mb_tables_report report = expect(&v, false, MB_OK);

        CHECK(report.entries >= PAGES);
        CHECK_EQ(report.wrong, 0);
        CHECK_EQ(report.busy, 0);
        CHECK_OK(mb_check_tables(v.dev, true, NULL));
        victim_close(&v);
    }
}

/* A frame of another owner is shown where one of ours was: the next access would reach it. */
TEST(foreign_frame)
{
    for (unsigned i = 0; i < CONFIGS; i++) {
        struct victim v = victim_open(configs[i]);
        mb_pfn pfn = stranger_frame(&v);

        poke(&v, page(&v, 5), &pfn, MB_PROT_READ_WRITE);
        CHECK(mb__pfn_eq(mb__sim_walk(mb__hw_fault_inner(v.dev->hw), mb__va(page(&v, 5))), pfn));
        found_and_repaired(&v, 1, 1, page(&v, 5));
        victim_close(&v);
    }
}

/* One of our own frames at a place where it does not belong, a cleared entry, other access. */
TEST(wrong_frame_cleared_entry_wrong_access)
{
    for (unsigned i = 0; i < CONFIGS; i++) {
        struct victim v = victim_open(configs[i]);
        mb_pfn pfn = mb__vm_lookup(v.dev->vm, mb__va(page(&v, 9)));
        mb_pfn own = mb__vm_lookup(v.dev->vm, mb__va(page(&v, 17)));

        poke(&v, page(&v, 2), &pfn, MB_PROT_READ_WRITE);
        poke(&v, page(&v, 16), NULL, MB_PROT_NONE);
        poke(&v, page(&v, 17), &own, MB_PROT_READ);
        found_and_repaired(&v, 3, 0, page(&v, 2));
        victim_close(&v);
    }
}

/* An address that shows nothing is given a frame. */
TEST(entry_where_none_must_be)
{
    for (unsigned i = 0; i < CONFIGS; i++) {
        struct victim v = victim_open(configs[i]);
        mb_pfn own = mb__vm_lookup(v.dev->vm, mb__va(page(&v, 0)));

        poke(&v, page(&v, PAGES + 3), &own, MB_PROT_READ_WRITE);
        found_and_repaired(&v, 1, 0, page(&v, PAGES + 3));
        victim_close(&v);
    }
}

/* Homes are in the record too, where vm writes them. */
TEST(home_entry)
{
    struct victim v = victim_open(configs[0]);
    mb_pfn pfn = stranger_frame(&v);
    mb_va home = mb__pfn_home(v.dev->vm, mb__vm_lookup(v.dev->vm, mb__va(page(&v, 1))));

    poke(&v, home.addr, &pfn, MB_PROT_READ_WRITE);
    found_and_repaired(&v, 1, 1, home.addr);
    victim_close(&v);
}

TEST(random_damage_is_all_found_and_all_repaired)
{
    uint64_t state = mb_test_seed();
    unsigned pokes = 0;

    for (unsigned round = 0; round < 40; round++) {
        struct victim v = victim_open(configs[round % CONFIGS]);
        bool hit[PAGES] = {false};
        uint64_t wrong = 0, first = UINT64_MAX;

        for (unsigned n = (unsigned)mb_test_random_below(&state, PAGES) + 1; n; n--) {
            unsigned at = (unsigned)mb_test_random_below(&state, PAGES);
            mb_pfn pfn = stranger_frame(&v);

            poke(&v, page(&v, at), mb_test_random(&state) & 1 ? &pfn : NULL, MB_PROT_READ_WRITE);
            first = page(&v, at) < first ? page(&v, at) : first;
            wrong += !hit[at];
            hit[at] = true;
            pokes++;
        }
        CHECK_EQ(expect(&v, false, MB_ERR_CORRUPT).wrong, wrong);
        CHECK_EQ((uint64_t)(uintptr_t)expect(&v, false, MB_ERR_CORRUPT).first, first);
        CHECK_EQ(expect(&v, true, MB_OK).repaired, wrong);
        victim_close(&v);
    }
    printf("COUNT entries changed behind the record's back, found and repaired %u\n", pokes);
}

/* More wrong entries than the scrubber names in one call, and a backend without a scrubber. */
TEST(many_wrong_entries_and_no_scrubber)
{
    enum { MANY = 1100 };
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = MANY * 2 * RT_MIB};
    mb_device dev = rt_open("backend:sim,device_memory:4g");
    struct mb_hw_ops ops = *dev->hw->ops;
    const struct mb_hw_ops *saved = dev->hw->ops;
    struct victim v = {.dev = dev};
    uint64_t state = mb_test_seed();
    unsigned wrong = 0, shift = (unsigned)mb_test_random_below(&state, 7);

    RT_OK(mb_mem_create(dev, op.bytes, &v.mem));
    RT_OK(mb_mem_reserve(dev, op.bytes, 0, &v.va));
    op.va = v.va;
    op.mem = v.mem;
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(dev->hw->ops->stream_create(dev->hw, &v.native));
    RT_OK(dev->hw->ops->stream_open(dev->hw, v.native, &v.stream));
    for (unsigned i = 0; i < MANY; i++, wrong++)
        poke(&v, page(&v, i), NULL, MB_PROT_NONE);
    found_and_repaired(&v, wrong, 0, page(&v, 0));
    ops.scrub_slots = NULL;
    for (unsigned round = 0; round < 2; round++) { /* the same damage, seen both ways */
        dev->hw->ops = round ? &ops : saved;
        for (unsigned i = shift; i < MANY; i += 7)
            poke(&v, page(&v, i), NULL, MB_PROT_NONE);
        found_and_repaired(&v, (MANY - shift + 6) / 7, 0, page(&v, shift));
    }
    dev->hw->ops = saved;
    dev->hw->ops->stream_close(dev->hw, v.stream);
    RT_OK(dev->hw->ops->stream_destroy(dev->hw, v.native));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map(dev, &op));
    RT_OK(mb_mem_unreserve(dev, v.va, op.bytes));
    RT_OK(mb_mem_release(dev, v.mem));
    rt_close(dev);
}

/* The body that device and host share: every bit that counts is seen, in every format. */
TEST(scrubber_body)
{
    uint64_t state = mb_test_seed();
    unsigned tried = 0;

    for (int fmt = MB_FMT_GMMU_V2; fmt <= MB_FMT_GFX9_TF; fmt++) {
        for (unsigned i = 0; i < 1000; i++) {
            uint32_t flags = mb_fmt_user_flags((enum mb_fmt)fmt, i & 1);
            uint64_t tmpl =
                mb_fmt_leaf_template((enum mb_fmt)fmt, MB_FRAME_SHIFT, flags, MB_AP_VID, 6);
            uint32_t pfn = (uint32_t)mb_test_random_below(&state, 1 << 20) * MB_FRAME_PFNS;
            struct mb_pte pte = mb_fmt_leaf_at((enum mb_fmt)fmt, MB_FRAME_SHIFT, tmpl, pfn);
            struct mb_scrub_want want = {pte.lo, UINT64_MAX}, none = {0, 1}, any = {0, 0};
            struct mb_pte bad = pte;

            CHECK(!mb_scrub_differs(pte, want));
            CHECK(mb_scrub_differs(pte, none));
            CHECK(!mb_scrub_differs(pte, any));
            bad.lo ^= UINT64_C(1) << mb_test_random_below(&state, 64);
            CHECK(mb_scrub_differs(bad, want));
            bad = pte;
            bad.hi = UINT64_C(1) << mb_test_random_below(&state, 64);
            CHECK(mb_scrub_differs(bad, want));
            CHECK(!mb_scrub_differs((struct mb_pte){0}, none));
            tried += 6;
        }
    }
    printf("COUNT entries compared by the scrubber's body %u\n", tried);
}

/* A batch that has not come to its turn: its entries may be of either side, so they are not judged.
 * */
TEST(batches_under_way_are_not_judged)
{
    struct victim v = victim_open(configs[0]);
    struct mb_hw_dev *sim = mb__hw_fault_inner(v.dev->hw);
    mb_stream stream = rt_stream(v.dev);
    struct mb_map_op unmap = {.kind = MB_UNMAP, .va = v.va, .bytes = 4 * RT_MIB};
    struct mb_map_op map = {
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = v.va, .bytes = 4 * RT_MIB, .mem = v.mem};
    struct mb_hw_stream *hw;

    RT_OK(sim->ops->stream_open(sim, stream, &hw));
    RT_OK(mb__sim_sem_wait(sim, hw, 1, 1));
    RT_OK(mb_mem_map_async(v.dev, &unmap, 1, stream));
    CHECK_EQ(expect(&v, false, MB_OK).busy, 2);
    CHECK_EQ(expect(&v, true, MB_OK).busy, 2);
    mb__sim_sem_host(sim, 1, 1);
    RT_OK(mb_device_sync(v.dev));
    CHECK_EQ(expect(&v, false, MB_OK).busy, 0);
    RT_OK(mb_mem_map_async(v.dev, &map, 1, stream));
    RT_OK(mb_stream_sync(v.dev, stream));
    RT_OK(mb_stream_destroy(v.dev, stream));
    victim_close(&v);
}

#ifdef MB_FAULT_INJECTION
/* A repair that fails says so, and can be tried again. */
TEST(repair_that_fails)
{
    static const enum mb_hw_fault_op ops[] = {MB_HW_FAULT_read_slots, MB_HW_FAULT_submit,
                                              MB_HW_FAULT_fence_wait_host, MB_HW_FAULT_scrub_slots};

    for (unsigned i = 0; i < 4; i++) {
        struct victim v = victim_open(configs[0]);
        mb_pfn pfn = stranger_frame(&v);
        struct mb_tables_report report = {0};

        poke(&v, page(&v, 7), &pfn, MB_PROT_READ_WRITE);
        mb__hw_fault_set(v.dev->hw, ops[i], 1, MB_ERR_DRIVER, false);
        CHECK_EQ(mb_check_tables(v.dev, true, &report), MB_ERR_DRIVER);
        CHECK(strstr(mb_error_detail(), "injected") != NULL);
        CHECK_EQ(report.entries, 0);
        CHECK_OK(mb_check_tables(v.dev, true, &report));
        CHECK_OK(mb_check_tables(v.dev, false, &report));
        CHECK_EQ(report.wrong, 0);
        victim_close(&v);
    }
}
#endif

TEST(bad_devices)
{
    struct mb_tables_report report;

    CHECK_EQ(mb_check_tables(NULL, false, &report), MB_ERR_INVALID);
}
