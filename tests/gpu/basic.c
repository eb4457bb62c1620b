/* SPDX-License-Identifier: MIT */
/* basic.c - discovery, homes, one window: the first things that must be right. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "hw/cuda/driver.h"

/* Prints every entry that a proof looked at, in the form of the recordings under tests/data. */
static void record(struct mb_cuda *dev, uint64_t va, const char *what)
{
    struct mb_fmt_geometry g = mb_fmt_geometry(dev->space.fmt);
    struct mb_cuda_pages *pages = aligned_alloc(64, sizeof(*pages));
    struct mb_cuda_walk walk;

    mb__cuda_pages_init(dev, pages);
    GT_OK(mb__cuda_walk(&dev->space, mb__cuda_pages_reader(pages), va, &walk));
    printf("# %s: va 0x%" PRIx64 "\n", what, va);
    for (unsigned level = 0; level < g.levels; level++) {
        unsigned entries = 1u << g.level[level].bits;

        pages->want_copy = true;
        for (unsigned i = 0; i < entries; i++) {
            struct mb_cuda_reader r = mb__cuda_pages_reader(pages);
            unsigned words = g.level[level].entry_bytes / 8;
            uint64_t w[2] = {0, 0};

            for (unsigned k = 0; k < words; k++)
                GT_OK(r.read(r.user, walk.table[level] + (i * words + k) * 8, &w[k]));
            if (w[0] || w[1])
                printf("REC %" PRIx64 " %x %016" PRIx64 " %016" PRIx64 "\n", walk.table[level],
                       i * g.level[level].entry_bytes, w[0], w[1]);
        }
    }
    mb__cuda_pages_fini(pages);
    free(pages);
}

static void print_device(const struct gt *t)
{
    const struct mb_cuda *dev = t->dev;

    printf("tables %s, reason \"%s\"\n", t->hw->caps.tables, dev->tables_reason);
    printf("device \"%s\" driver %s libcuda %d memory %" PRIu64 "\n", t->hw->caps.device_name,
           t->hw->caps.driver, dev->driver_version, t->hw->caps.total_bytes);
    if (!dev->rm)
        return;
    printf("client 0x%x vaspace 0x%x device 0x%x subdevice 0x%x channels %u late %d uvm fd %d\n",
           dev->seen.client, dev->seen.vaspace, dev->seen.device, dev->seen.subdevice,
           dev->seen.channels, dev->seen.late, dev->seen.uvm_fd);
    printf("pdb 0x%" PRIx64 " control va 0x%" PRIx64 " table 0x%" PRIx64 " frames 0x%" PRIx64
           " 0x%" PRIx64 " memory 0x%" PRIx64 "\n",
           dev->space.pdb, dev->control_va, dev->control_table, dev->control_phys[0],
           dev->control_phys[1], dev->space.memory_bytes);
}

/* late=1: libcuda is up and has worked before MoonBright comes; late=init: it is up, no more. */
static void use_cuda_first(void)
{
    const struct mb_cuda_driver *cu;
    cu_context ctx;
    cu_ptr p;

    GT_OK(mb__cuda_driver_open(&cu));
    GT_CU(cu->init(0));
    if (!strcmp(gt_arg("late", ""), "init"))
        return;
    GT_CU(cu->primary_retain(&ctx, 0));
    GT_CU(cu->ctx_set(ctx));
    GT_CU(cu->mem_alloc(&p, 1 << 20));
    GT_CU(cu->memset8(p, 1, 1 << 20));
    GT_CU(cu->ctx_sync());
}

int gt_test_discover(void)
{
    struct mb_backend_info info;
    struct gt t;
    double t0;

    mb__cuda_describe(0, &info);
    printf("describe: available %d tables %s device \"%s\" driver %s reason \"%s\"\n",
           info.available, info.tables, info.device_name, info.driver, info.reason);
    if (gt_arg("late", NULL))
        use_cuda_first();
    t0 = gt_now_us();
    gt_open(&t, gt_arg("tables", NULL));
    printf("open: %.0f us\n", gt_now_us() - t0);
    print_device(&t);
    if (gt_arg_u64("record", 0) && t.dev->rm)
        record(t.dev, t.dev->control_va, "control range");
    if (gt_arg_u64("pool", 0)) {
        uint64_t mb = gt_arg_u64("slab_mb", 512);

        t0 = gt_now_us();
        gt_pool(&t, mb << 20, (unsigned)gt_arg_u64("pool", 0));
        printf("pool: %u slabs of %" PRIu64 " MB, %.0f us in all; first pfn 0x%x list %d\n",
               t.slabs, mb, gt_now_us() - t0, t.pfn[0].n, t.slab[0].pfns != NULL);
    }
    t0 = gt_now_us();
    gt_close(&t);
    printf("close: %.0f us\n", gt_now_us() - t0);
    return gt_arg("want", NULL) && strcmp(gt_arg("want", ""), info.tables) != 0;
}

/* 64 GB ready in one go, in 512 MB slabs. */
int gt_test_ready(void)
{
    struct gt t;
    double t0;

    gt_open(&t, gt_arg("tables", "inline"));
    t0 = gt_now_us();
    gt_pool(&t, 512ull << 20, (unsigned)gt_arg_u64("slabs", 128));
    printf("RESULT ready_bytes %" PRIu64 " us %.0f\n", t.home_bytes, gt_now_us() - t0);
    t0 = gt_now_us();
    gt_close(&t);
    printf("close %.0f us\n", gt_now_us() - t0);
    return 0;
}

static void check_slots(struct gt *t, const uint64_t *want_phys)
{
    struct mb_pte *pte = calloc(t->slots, sizeof(*pte));

    GT_OK(t->hw->ops->read_slots(t->hw, &t->view, 0, t->slots, pte));
    for (uint32_t i = 0; i < t->slots; i++) {
        struct mb_pte want = mb__cuda_expect(&t->dev->space, true, want_phys[i]);

        if (pte[i].lo != want.lo || pte[i].hi)
            GT_FAIL("slot %u holds %016" PRIx64 ", not %016" PRIx64, i, pte[i].lo, want.lo);
    }
    free(pte);
}

/* Adopt, map a few frames, use them, clear, look at every slot in between, disown, and look again
 * that the driver's mapping of the donor is what it was. */
int gt_test_window(void)
{
    uint32_t count = (uint32_t)gt_arg_u64("count", 32);
    struct mb_hw_stream *s;
    struct gt_words a, v, out;
    uint64_t *want;
    mb_pfn *pfns;
    struct gt t;
    double t0;

    gt_open(&t, gt_arg("tables", "inline"));
    print_device(&t);
    gt_pool(&t, gt_arg_u64("slab_mb", 32) << 20, 4);
    t0 = gt_now_us();
    gt_window(&t, (unsigned)gt_arg_u64("pieces", 2));
    printf("adopt %u slots: %.0f us, tables at 0x%" PRIx64 "\n", t.slots, gt_now_us() - t0,
           t.view.table);
    s = gt_stream(&t);
    want = calloc(t.slots, sizeof(*want));
    pfns = calloc(count, sizeof(*pfns));
    a = gt_words(&t, count);
    v = gt_words(&t, count);
    out = gt_words(&t, count);
    for (uint32_t i = 0; i < t.slots; i++)
        want[i] = mb__phys_of_pfn(t.dev->poison_pfn);
    check_slots(&t, want);
    printf("all slots cleared\n");
    /* frames in reverse order, from slot 240 on, so that a table border is crossed */
    for (uint32_t i = 0; i < count; i++) {
        pfns[i] = t.pfn[count - 1 - i];
        want[240 + i] = mb__phys_of_pfn(pfns[i]);
        a.host[i] = gt_slot_va(&t, 240 + i);
        v.host[i] = 0xabc000 + i;
    }
    gt_map(&t, s, 240, count, pfns, t.tmpl_rw, true);
    gt_poke(&t, s, a, count, v);
    gt_sync(&t, s);
    check_slots(&t, want);
    for (uint32_t i = 0; i < count; i++)
        a.host[i] = t.home[count - 1 - i];
    gt_peek(&t, s, a, count, out);
    gt_sync(&t, s);
    for (uint32_t i = 0; i < count; i++)
        GT_CHECK(out.host[i] == v.host[i]);
    printf("%u frames written through the window, read through their homes\n", count);
    gt_unmap(&t, s, 240, count);
    gt_sync(&t, s);
    for (uint32_t i = 0; i < count; i++)
        want[240 + i] = mb__phys_of_pfn(t.dev->poison_pfn);
    check_slots(&t, want);
    printf("unmapped\n");
    struct mb_hw_counters c;
    t.hw->ops->counters(t.hw, &c);
    printf("overhead %" PRIu64 " bytes, batches %" PRIu64 " entries %" PRIu64 "\n",
           c.overhead_bytes, c.batches, c.entries_written);
    t0 = gt_now_us();
    gt_close(&t);
    printf("close: %.0f us\n", gt_now_us() - t0);
    free(want);
    free(pfns);
    return 0;
}
