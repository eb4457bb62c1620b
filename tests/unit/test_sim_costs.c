/* SPDX-License-Identifier: MIT */
/*
 * Every cost of every model, read from a device that runs: the virtual clock before and after.
 *
 * The numbers stand here a second time, on purpose: a cost that changes in the model has to change
 * here as well, with the measurement that says so. Only the vendor's own malloc, free, alias and
 * page-table share are asked for by mb__sim_stock_ns(), as nothing on the device performs them.
 */
#include "test.h"

#include "support/sim_rig.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

enum { SIZES = 5, ENTRIES = 2048 };
static const uint64_t size[SIZES] = {2 * MIB, 16 * MIB, 128 * MIB, 512 * MIB, 2048 * MIB};

/* What one model costs; ns unless named otherwise. */
struct expected {
    const char *model;
    uint64_t submit, isolated_submit, launch, query, start, kernel, pop, entries, isolated,
        isolated_entries; /* entries: ENTRIES of them */
    uint64_t invalidate, membar, barrier, sem, walk, replay, fill_128_mib, step, land;
    uint64_t map, unmap, alias, flush, reserve, contention_percent;
    uint64_t slab[SIZES], slab_free[SIZES], stock_malloc[SIZES], stock_free[SIZES], tables[SIZES];
};

/* 2 GiB of the A100 tables continues the line from 16 to 128 MiB. */
#define A100_MALLOC                                                                                \
    {                                                                                              \
        59000, 437000, 966000, 2779714, 10034571                                                   \
    }
#define A100_TABLES                                                                                \
    {                                                                                              \
        47000, 422000, 949000, 2755857, 9983285                                                    \
    }
#define H200_SLAB_FREE                                                                             \
    {                                                                                              \
        24000, 30600, 66200, 194200, 616700                                                        \
    }
#define H200_FREE                                                                                  \
    {                                                                                              \
        27700, 32400, 64200, 177600, 592000                                                        \
    }
/* MI210 is a choice throughout: the A100 but for bandwidth. */
#define A100_COSTS                                                                                 \
    .submit = 3600, .isolated_submit = 9000, .launch = 3600, .query = 20, .start = 1400,           \
    .kernel = 3700, .pop = 1000, .entries = 1433, .isolated = 5000, .isolated_entries = 30720,     \
    .invalidate = 2500, .membar = 500, .barrier = 400, .sem = 1700, .walk = 678, .replay = 28000,  \
    .step = 500, .land = 1000, .map = 35156, .unmap = 17556, .alias = 32965, .flush = 26800,       \
    .reserve = 3000, .contention_percent = 115, .slab = A100_MALLOC, .slab_free = H200_SLAB_FREE,  \
    .stock_malloc = A100_MALLOC, .stock_free = H200_FREE, .tables = A100_TABLES

static const struct expected expected[] = {
    {
        .model = "h200",
        .submit = 3600,
        .isolated_submit = 9000,
        .launch = 3600,
        .query = 20,
        .start = 1400,
        .kernel = 3700,
        .pop = 1000,
        .entries = 1433,
        .isolated = 5000,
        .isolated_entries = 30720,
        .invalidate = 2500,
        .membar = 500,
        .barrier = 400,
        .sem = 1700,
        .walk = 131,
        .replay = 28000,
        .fill_128_mib = 29885,
        .step = 500,
        .land = 1000,
        .map = 26118,
        .unmap = 17556,
        .alias = 32965,
        .flush = 16000,
        .reserve = 3000,
        .contention_percent = 115,
        .slab = {29900, 29900, 47400, 85500, 161500},
        .slab_free = H200_SLAB_FREE,
        .stock_malloc = {32500, 33200, 38700, 67200, 119700},
        .stock_free = H200_FREE,
        .tables = {21700, 21800, 38000, 49500, 89800},
    },
    {.model = "a100", .fill_128_mib = 69363, A100_COSTS},
    {.model = "mi210", .fill_128_mib = 81940, A100_COSTS},
};

enum { MODELS = sizeof(expected) / sizeof(expected[0]) };

static void open_model(struct sim_rig *rig, const char *model, const char *tables)
{
    rig_open(rig, &(struct mb_hw_config){.model = model, .tables = tables, .self_heal = true});
}

static uint64_t now(struct sim_rig *rig)
{
    return rig_sim(rig).host_ns;
}

/* Waits for everything; the time since `before`. */
static uint64_t done_since(struct sim_rig *rig, uint64_t before)
{
    CHECK_OK(rig_sync(rig));
    return now(rig) - before;
}

/* A table that belongs to no tree: entries go there as fast as anywhere and change nothing. */
static struct mb_hw_view loose_view(struct sim_rig *rig)
{
    struct mb_hw_view view = rig->view;

    view.bytes = (uint64_t)ENTRIES << MB_FRAME_SHIFT;
    CHECK_OK(rig->ops->table_alloc(rig->dev, (uint64_t)ENTRIES * view.slot_bytes, &view.table));
    return view;
}

/* From the call of a batch of `count` entries and the commands of the given kinds to its end. */
static uint64_t batch(struct sim_rig *rig, const struct mb_hw_view *view, unsigned count,
                      const enum mb_hw_cmd_kind *kinds, unsigned kind_count)
{
    struct mb_hw_cmd cmds[4];
    uint64_t before = now(rig);

    memset(cmds, 0, sizeof(cmds));
    cmds[0].kind = MB_HW_LEAVES;
    cmds[0].leaves.view = view;
    cmds[0].leaves.count = count;
    cmds[0].leaves.tmpl = rig->tmpl;
    for (unsigned i = 0; i < kind_count; i++)
        cmds[1 + i].kind = kinds[i];
    rig_submit(rig, 0, cmds, 1 + kind_count);
    return done_since(rig, before);
}

/* What one more command adds to a batch. */
static uint64_t command(struct sim_rig *rig, const struct mb_hw_view *view,
                        enum mb_hw_cmd_kind kind)
{
    return batch(rig, view, 1, &kind, 1) - batch(rig, view, 1, NULL, 0);
}

static void check_streams(const struct expected *e)
{
    struct mb_hw_fence fence;
    struct sim_rig rig;
    uint64_t before;

    open_model(&rig, e->model, NULL);
    before = now(&rig);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[1], 10));
    CHECK_EQ(now(&rig) - before, 0);
    CHECK_EQ(done_since(&rig, before), e->start + 10);
    before = now(&rig);
    CHECK_OK(mb__sim_sem_set(rig.dev, rig.stream[1], 1, 1));
    CHECK_EQ(done_since(&rig, before), e->start + e->sem);
    before = now(&rig);
    CHECK_OK(mb__sim_sem_wait(rig.dev, rig.stream[1], 1, 1));
    CHECK_EQ(done_since(&rig, before), e->start + e->sem);
    CHECK_OK(mb__sim_delay(rig.dev, rig.stream[1], 100000));
    fence = rig_fence(&rig, 1);
    before = now(&rig);
    CHECK(!rig.ops->fence_done(rig.dev, fence));
    CHECK_EQ(now(&rig) - before, e->query);
    CHECK_OK(rig_sync(&rig));
    rig_close(&rig);
}

static void check_kernels(const struct expected *e)
{
    const struct mb_sim_step delay = {.kind = MB_SIM_DELAY};
    struct mb_sim_step store = {.kind = MB_SIM_ST, .value = 7};
    struct sim_rig rig;
    uint64_t before, end;

    open_model(&rig, e->model, NULL);
    rig_map(&rig, 1, 0, 1, 0, RIG_INVALIDATE);
    rig_touch(&rig, 1, 0);
    CHECK_OK(rig_sync(&rig));
    before = now(&rig);
    CHECK_OK(mb__sim_kernel(rig.dev, rig.stream[1], &delay, 1, 0));
    CHECK_EQ(now(&rig) - before, e->launch);
    CHECK_EQ(done_since(&rig, before), e->launch + e->start + e->kernel);
    store.va = rig_va(&rig, 0);
    before = now(&rig);
    CHECK_OK(mb__sim_kernel(rig.dev, rig.stream[1], &store, 1, 0));
    CHECK_EQ(done_since(&rig, before), e->launch + e->start + e->kernel + e->step);

    /* The store of a kernel that goes on for long lands by itself. */
    {
        const struct mb_sim_step steps[2] = {store, {.kind = MB_SIM_DELAY, .value = 100000}};

        CHECK_OK(mb__sim_kernel(rig.dev, rig.stream[1], steps, 2, 0));
    }
    end = rig_sim(&rig).landed;
    mb__sim_host_pass(rig.dev, e->start + e->land - 1);
    CHECK_EQ(rig_sim(&rig).landed, end);
    mb__sim_host_pass(rig.dev, 1);
    CHECK_EQ(rig_sim(&rig).landed, end + 1);
    CHECK_OK(rig_sync(&rig));
    rig_close(&rig);
}

static uint64_t fill_time(struct sim_rig *rig, unsigned slot, uint64_t bytes)
{
    uint64_t before = now(rig);

    rig_fill(rig, 1, slot, bytes, 1);
    return done_since(rig, before);
}

static void check_accesses(const struct expected *e)
{
    struct sim_rig rig;
    uint64_t kernel = e->launch + e->start + e->kernel, template;

    open_model(&rig, e->model, NULL);
    rig_map(&rig, 1, 0, 64, 0, RIG_INVALIDATE);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(fill_time(&rig, 0, 8), kernel + e->walk);
    CHECK_EQ(fill_time(&rig, 0, 8), kernel);
    (void)fill_time(&rig, 0, 128 * MIB);
    CHECK_EQ(fill_time(&rig, 0, 128 * MIB), kernel + e->fill_128_mib);

    /* A translation that lets read only, cached; the entry lets write by now: the fault heals. */
    template = rig.tmpl;
    rig.tmpl = mb_fmt_leaf_template(rig.dev->caps.format, MB_FRAME_SHIFT,
                                    mb_fmt_user_flags(rig.dev->caps.format, 0), MB_AP_VID,
                                    rig.dev->caps.kind);
    rig_map(&rig, 1, 128, 1, 0, RIG_INVALIDATE);
    rig_verify(&rig, 1, 128, 8, 1);
    rig.tmpl = template;
    rig_map(&rig, 1, 128, 1, 0, 0);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(fill_time(&rig, 128, 8), kernel + e->replay + e->walk);
    CHECK_EQ(rig_sim(&rig).replays, 1);
    rig_close(&rig);
}

static void check_batches(const struct expected *e)
{
    struct mb_hw_view view;
    struct sim_rig rig;
    uint64_t before, one = e->submit + e->start + e->kernel + e->pop;

    open_model(&rig, e->model, NULL);
    view = loose_view(&rig);
    before = now(&rig);
    rig_unmap(&rig, 0, 0, 1, RIG_NO_BARRIER);
    CHECK_EQ(now(&rig) - before, e->submit);
    CHECK_OK(rig_sync(&rig));
    CHECK_EQ(batch(&rig, &view, 1, NULL, 0), one);
    CHECK_EQ(batch(&rig, &view, ENTRIES, NULL, 0), one + e->entries);
    CHECK_EQ(command(&rig, &view, MB_HW_INVALIDATE), e->invalidate);
    CHECK_EQ(command(&rig, &view, MB_HW_MEMBAR), e->membar);
    CHECK_EQ(command(&rig, &view, MB_HW_BARRIER), e->barrier);
    rig_close(&rig);
}

/* By a helper queue: it waits for the stream, works, and the stream waits for it. */
static void check_isolated(const struct expected *e)
{
    struct mb_hw_view view;
    struct sim_rig rig;
    uint64_t before, entry;

    open_model(&rig, e->model, "isolated");
    view = loose_view(&rig);
    before = now(&rig);
    rig_unmap(&rig, 0, 0, 1, RIG_NO_BARRIER);
    CHECK_EQ(now(&rig) - before, e->isolated_submit);
    CHECK_OK(rig_sync(&rig));
    entry = e->isolated_entries / ENTRIES;
    CHECK_EQ(batch(&rig, &view, 1, NULL, 0),
             e->isolated_submit + e->start + 2 * e->sem + e->isolated + entry);
    CHECK_EQ(batch(&rig, &view, ENTRIES, NULL, 0) - batch(&rig, &view, 1, NULL, 0),
             e->isolated_entries - entry);
    rig_close(&rig);
}

/* By the vendor's driver: the host is blocked for every entry. */
static void check_driver(const struct expected *e)
{
    const struct mb_hw_cmd flush = {.kind = MB_HW_INVALIDATE};
    struct sim_rig rig;
    uint64_t before;

    open_model(&rig, e->model, "driver");
    for (unsigned count = 1; count <= 64; count *= 2) {
        before = now(&rig);
        rig_map(&rig, 0, 0, count, 0, RIG_NO_BARRIER);
        CHECK_EQ(now(&rig) - before, count * e->map);
        before = now(&rig);
        rig_unmap(&rig, 0, 0, count, RIG_NO_BARRIER);
        CHECK_EQ(now(&rig) - before, count * e->unmap);
    }
    before = now(&rig);
    rig_submit(&rig, 0, &flush, 1);
    CHECK_EQ(now(&rig) - before, e->flush);
    CHECK_OK(rig_sync(&rig));
    rig_close(&rig);
}

static void check_memory(const struct expected *e)
{
    struct mb_hw_config config = {.model = e->model, .device_memory_bytes = 4096 * MIB};
    struct mb_sim_counters before, after;
    struct mb_hw_slab slab;
    struct mb_hw_dev *dev;
    mb_va home;

    CHECK_OK(mb__sim_open(&config, &dev));
    for (unsigned i = 0; i < SIZES; i++) {
        mb__sim_counters(dev, &before);
        CHECK_OK(dev->ops->va_reserve(dev, size[i], 0, &home));
        mb__sim_counters(dev, &after);
        CHECK_EQ(after.host_ns - before.host_ns, e->reserve);
        CHECK_OK(dev->ops->slab_acquire(dev, size[i], home, &slab));
        mb__sim_counters(dev, &before);
        CHECK_EQ(before.host_ns - after.host_ns, e->slab[i]);
        CHECK_OK(dev->ops->slab_release(dev, &slab));
        mb__sim_counters(dev, &after);
        CHECK_EQ(after.host_ns - before.host_ns, e->slab_free[i]);
        CHECK_OK(dev->ops->va_release(dev, home, size[i]));
        mb__sim_counters(dev, &before);
        CHECK_EQ(before.host_ns - after.host_ns, e->reserve);
    }
    dev->ops->close(dev);
}

static void check_stock(const struct expected *e)
{
    struct mb_hw_config config = {.model = e->model};
    struct mb_hw_dev *dev;

    CHECK_OK(mb__sim_open(&config, &dev));
    for (unsigned i = 0; i < SIZES; i++) {
        uint64_t frames = size[i] >> MB_FRAME_SHIFT;

        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC, size[i]), e->stock_malloc[i]);
        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_FREE, size[i]), e->stock_free[i]);
        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MALLOC_TABLES, size[i]), e->tables[i]);
        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_MAP, size[i]), frames * e->map);
        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_UNMAP, size[i]), frames * e->unmap);
        CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_ALIAS, size[i]), frames * e->alias);
    }
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_TLB_FLUSH, 0), e->flush);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_FIRST_TOUCH, 0), e->walk);
    dev->ops->close(dev);
}

/* A driver call beside one of another device. */
static void check_contention(const struct expected *e)
{
    uint64_t before, alone = 16 * e->map;
    struct sim_rig first, second;

    open_model(&first, e->model, "driver");
    rig_open(&second, &(struct mb_hw_config){.model = e->model, .tables = "driver", .ordinal = 1});
    mb__sim_host_pass(first.dev, 1000000000);
    before = now(&first);
    rig_map(&first, 0, 0, 16, 0, RIG_NO_BARRIER);
    CHECK_EQ(now(&first) - before, alone);
    mb__sim_host_pass(second.dev, before - now(&second));
    rig_map(&second, 0, 0, 16, 0, RIG_NO_BARRIER);
    CHECK_EQ(now(&second) - before, alone + alone * e->contention_percent / 100);
    rig_close(&first);
    rig_close(&second);
}

#define FOR_EVERY_MODEL(check)                                                                     \
    TEST(check##_of_every_model)                                                                   \
    {                                                                                              \
        for (unsigned i = 0; i < MODELS; i++)                                                      \
            check(&expected[i]);                                                                   \
    }

FOR_EVERY_MODEL(check_streams)
FOR_EVERY_MODEL(check_kernels)
FOR_EVERY_MODEL(check_accesses)
FOR_EVERY_MODEL(check_batches)
FOR_EVERY_MODEL(check_isolated)
FOR_EVERY_MODEL(check_driver)
FOR_EVERY_MODEL(check_memory)
FOR_EVERY_MODEL(check_stock)
FOR_EVERY_MODEL(check_contention)

static uint64_t stock_us(struct mb_hw_dev *dev, enum mb_sim_stock what, uint64_t bytes)
{
    return (mb__sim_stock_ns(dev, what, bytes) + 500) / 1000;
}

/* The figures as they were published or measured, in their own units. */
TEST(figures_of_the_a100_as_published)
{
    struct mb_hw_config config = {.model = "a100"};
    struct mb_hw_dev *dev;

    CHECK_OK(mb__sim_open(&config, &dev));
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 2 * MIB), 59);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 16 * MIB), 437);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 128 * MIB), 966);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC_TABLES, 2 * MIB), 47);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC_TABLES, 16 * MIB), 422);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC_TABLES, 128 * MIB), 949);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MAP, 2048 * MIB), 36000);
    CHECK_EQ(mb__sim_stock_ns(dev, MB_SIM_STOCK_TLB_FLUSH, 0), 26800);
    /* Cycles at 1.41 GHz. */
    CHECK_EQ((mb__sim_stock_ns(dev, MB_SIM_STOCK_FIRST_TOUCH, 0) * 1410 + 500) / 1000, 956);
    dev->ops->close(dev);
}

TEST(figures_of_the_h200_as_measured)
{
    struct mb_hw_config config = {.model = "h200"};
    struct mb_hw_dev *dev;

    CHECK_OK(mb__sim_open(&config, &dev));
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 2 * MIB), 33);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 128 * MIB), 39);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MALLOC, 2048 * MIB), 120);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_FREE, 2 * MIB), 28);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_FREE, 128 * MIB), 64);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_FREE, 2048 * MIB), 592);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_MAP, 2048 * MIB), 26745);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_UNMAP, 2048 * MIB), 17977);
    CHECK_EQ(stock_us(dev, MB_SIM_STOCK_ALIAS, 2048 * MIB), 33756);
    dev->ops->close(dev);
}
