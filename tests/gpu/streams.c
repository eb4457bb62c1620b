/* SPDX-License-Identifier: MIT */
/* streams.c - streams that wait for each other's maps; graphs; the sweep for tables in the address
 * space. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu.h"

static void expect_frame(struct gt *t, struct mb_hw_stream *s, uint32_t slot, uint32_t frame,
                         uint64_t value)
{
    struct gt_words a = gt_words(t, 1), v = gt_words(t, 1), out = gt_words(t, 1);

    a.host[0] = gt_slot_va(t, slot);
    v.host[0] = value;
    gt_poke(t, s, a, 1, v);
    gt_sync(t, s);
    a.host[0] = t->home[frame];
    gt_peek(t, s, a, 1, out);
    gt_sync(t, s);
    if (out.host[0] != value)
        GT_FAIL("slot %u does not show frame %u", slot, frame);
}

/* A is blocked by the host. A map on B, submitted after a map on A, must come through meanwhile;
 * then A's next map waits for B and B's next for A, and everything ends. */
int gt_test_streams(void)
{
    struct mb_hw_stream *a, *b;
    struct mb_hw_fence fa, fb;
    struct gt_words gate;
    struct gt t;
    unsigned rounds = (unsigned)gt_arg_u64("rounds", 50);

    gt_open(&t, gt_arg("tables", "inline"));
    gt_pool(&t, 64ull << 20, 4);
    gt_window(&t, 1);
    a = gt_stream(&t);
    b = gt_stream(&t);
    gate = gt_words(&t, 1);
    for (unsigned r = 1; r <= rounds; r++) {
        uint32_t x = r % 32, y = 64 + r % 32;

        GT_CU(t.cu->stream_wait64(a->native, gate.device, r, CU_WAIT_GEQ));
        gt_map(&t, a, x, 1, &t.pfn[x], t.tmpl_rw, true);
        gt_unmap(&t, a, 200, 4); /* needs the stream's earlier work: announces itself */
        GT_OK(t.hw->ops->fence_record(t.hw, a, &fa));
        gt_unmap(&t, b, 220, 4);
        gt_map(&t, b, y, 1, &t.pfn[y], t.tmpl_rw, true);
        GT_OK(t.hw->ops->fence_record(t.hw, b, &fb));
        GT_OK(t.hw->ops->fence_wait_host(t.hw, fb, 2000000000));
        GT_CHECK(!t.hw->ops->fence_done(t.hw, fa));
        /* crosswise: each waits for the other's maps and maps again */
        struct mb_hw_cmd cmd[4] = {
            {.kind = MB_HW_WAIT, .fence = fa},
            {.kind = MB_HW_LEAVES,
             .leaves = {.view = &t.view,
                        .first = 100 + x,
                        .count = 1,
                        .pfns = &t.pfn[x],
                        .tmpl = t.tmpl_rw}},
            {.kind = MB_HW_BARRIER},
            {.kind = MB_HW_INVALIDATE},
        };
        GT_OK(mb__cuda_submit_fence(t.hw, b, cmd, 4, &fb));
        cmd[0].fence = fb;
        cmd[1].leaves.first = 150 + x;
        GT_OK(mb__cuda_submit_fence(t.hw, a, cmd, 4, &fa));
        __atomic_store_n(&gate.host[0], r, __ATOMIC_RELEASE);
        GT_OK(t.hw->ops->fence_wait_host(t.hw, fa, 4000000000));
        expect_frame(&t, a, x, x, r * 4);
        expect_frame(&t, b, y, y, r * 4 + 1);
        expect_frame(&t, a, 150 + x, x, r * 4 + 2);
        expect_frame(&t, b, 100 + x, x, r * 4 + 3);
    }
    printf("RESULT streams tables %s rounds %u\n", t.hw->caps.tables, rounds);
    gt_close(&t);
    return 0;
}

/* ------------------------------------------------------------ graphs */

struct graph_calls {
    cu_result (*begin)(cu_stream, int);
    cu_result (*end)(cu_stream, cu_graph *);
    cu_result (*instantiate)(cu_graph_exec *, cu_graph, unsigned long long);
    cu_result (*launch)(cu_graph_exec, cu_stream);
    cu_result (*destroy)(cu_graph_exec);
};

/* Records {map of `count` frames with invalidate, touch of all of them}; replays it after other
 * maps. */
static double replay(struct gt *t, const struct graph_calls *g, struct mb_hw_stream *s,
                     uint32_t count, unsigned replays, struct mb_rng *rng)
{
    struct gt_words homes = gt_words(t, t->frames), out = gt_words(t, t->frames);
    uint32_t *order = malloc(sizeof(*order) * t->frames);
    mb_pfn *pfns = malloc(sizeof(*pfns) * t->frames), *other = malloc(sizeof(*pfns) * t->frames);
    cu_graph graph;
    cu_graph_exec exec;
    double best = 1e18;

    for (uint32_t i = 0; i < t->frames; i++)
        order[i] = i;
    gt_shuffle(rng, order, t->frames);
    for (uint32_t i = 0; i < count; i++) {
        pfns[i] = t->pfn[order[i]];
        homes.host[i] = t->home[order[i]];
    }
    GT_CU(g->begin(s->native, CU_CAPTURE_RELAXED));
    gt_map(t, s, 0, count, pfns, t->tmpl_rw, true);
    gt_touch(t, s, t->view.va.addr, GT_FRAME, count, 0x5500000);
    GT_CU(g->end(s->native, &graph));
    GT_CU(g->instantiate(&exec, graph, 0));
    for (unsigned r = 0; r < replays; r++) {
        double t0;

        gt_shuffle(rng, order, t->frames);
        for (uint32_t i = 0; i < count; i++)
            other[i] = t->pfn[order[i]];
        gt_map(t, s, 0, count, other, t->tmpl_rw, true);
        gt_touch(t, s, t->view.va.addr, GT_FRAME, count, 0x7700000);
        gt_sync(t, s);
        t0 = gt_now_us();
        GT_CU(g->launch(exec, s->native));
        gt_sync(t, s);
        best = gt_now_us() - t0 < best ? gt_now_us() - t0 : best;
        gt_peek(t, s, homes, count, out);
        gt_sync(t, s);
        for (uint32_t i = 0; i < count; i++) {
            if (out.host[i] != 0x5500000 + i)
                GT_FAIL("replay %u: frame %u holds %" PRIx64, r, i, out.host[i]);
        }
    }
    GT_CU(g->destroy(exec));
    return best;
}

int gt_test_graph(void)
{
    struct graph_calls g;
    struct mb_hw_stream *s;
    struct mb_rng rng;
    uint64_t seed = gt_arg_u64("seed", (uint64_t)gt_now_us());
    struct gt t;

    printf("seed %" PRIu64 "\n", seed);
    mb__rng_seed(&rng, seed);
    gt_open(&t, gt_arg("tables", "inline"));
    *(void **)&g.begin = gt_symbol(&t, "cuStreamBeginCapture_v2");
    *(void **)&g.end = gt_symbol(&t, "cuStreamEndCapture");
    *(void **)&g.instantiate = gt_symbol(&t, "cuGraphInstantiateWithFlags");
    *(void **)&g.launch = gt_symbol(&t, "cuGraphLaunch");
    *(void **)&g.destroy = gt_symbol(&t, "cuGraphExecDestroy");
    gt_pool(&t, 512ull << 20, 8);
    gt_window(&t, 8);
    s = gt_stream(&t);
    if (t.dev->tables != MB_CUDA_INLINE) {
        struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};
        cu_graph graph;

        GT_CU(g.begin(s->native, CU_CAPTURE_RELAXED));
        enum mb_err err = mb__cuda_submit_fence(t.hw, s, &cmd, 1, NULL);
        printf("in a capture: %s: %s\n", mb_error_name(err), mb_error_detail());
        GT_CU(g.end(s->native, &graph));
        gt_close(&t);
        return err != MB_ERR_NOT_SUPPORTED;
    }
    printf("RESULT graph entries 1024 replays 50 best_us %.2f\n",
           replay(&t, &g, s, 1024, 50, &rng));
    printf("RESULT graph entries 2048 replays 20 best_us %.2f\n",
           replay(&t, &g, s, 2048, 20, &rng));
    gt_close(&t);
    return 0;
}

/* ------------------------------------------------------------ sweep */

struct sweep {
    struct gt *t;
    struct mb_cuda_pages *pages;
    uint64_t tables, leaves, hits;
};

static bool shows_table(const struct gt *t, uint64_t phys, uint64_t bytes)
{
    const struct mb_cuda *dev = t->dev;

    if (dev->control_table >= phys && dev->control_table < phys + bytes)
        return true;
    for (const struct mb_cuda_window *w = dev->windows; w; w = w->next) {
        for (unsigned p = 0; p < w->pieces; p++) {
            if (w->piece[p].table_phys >= phys && w->piece[p].table_phys < phys + bytes)
                return true;
        }
    }
    return false;
}

static void look_leaf(struct sweep *w, unsigned shift, struct mb_pte pte, uint64_t va)
{
    struct mb_leaf leaf;

    if (!mb_fmt_decode_leaf(w->t->dev->space.fmt, shift, pte, &leaf) ||
        !(leaf.flags & MB_LEAF_VALID))
        return;
    w->leaves++;
    if (leaf.aperture == MB_AP_VID && shows_table(w->t, leaf.phys, (uint64_t)1 << shift)) {
        w->hits++;
        printf("va 0x%" PRIx64 " shows a leaf table: entry %016" PRIx64 "\n", va, pte.lo);
    }
}

static uint64_t word(struct sweep *w, uint64_t phys)
{
    struct mb_cuda_reader r = mb__cuda_pages_reader(w->pages);
    uint64_t v;

    w->pages->want_copy = true;
    GT_OK(r.read(r.user, phys, &v));
    return v;
}

static void sweep_small(struct sweep *w, unsigned shift, struct mb_fmt_level level, uint64_t table,
                        uint64_t va)
{
    w->tables++;
    for (uint32_t i = 0; i < 1u << level.bits; i++) {
        struct mb_pte pte = {.lo = word(w, table + i * 8ull), .hi = 0};

        look_leaf(w, shift, pte, va + ((uint64_t)i << level.shift));
    }
}

/* Every table below `table`, read only: the process's own tree. */
static void sweep_level(struct sweep *w, unsigned level, uint64_t table, uint64_t va)
{
    enum mb_fmt fmt = w->t->dev->space.fmt;
    struct mb_fmt_geometry g = mb_fmt_geometry(fmt);
    struct mb_fmt_level l = g.level[level];
    uint32_t count = 1u << l.bits;
    struct mb_pte *pte = calloc(count, sizeof(*pte));

    w->tables++;
    for (uint32_t i = 0; i < count; i++) {
        pte[i].lo = word(w, table + (uint64_t)i * l.entry_bytes);
        if (l.entry_bytes == 16)
            pte[i].hi = word(w, table + (uint64_t)i * l.entry_bytes + 8);
    }
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = va + ((uint64_t)i << l.shift);
        struct mb_dir dir;

        if (mb_fmt_is_leaf(fmt, level, pte[i])) {
            look_leaf(w, l.shift, pte[i], at);
            continue;
        }
        if (!mb_fmt_decode_dir(fmt, level, pte[i], &dir)) {
            printf("odd directory entry %016" PRIx64 ":%016" PRIx64 "\n", pte[i].hi, pte[i].lo);
            continue;
        }
        if (dir.valid_big && dir.aperture == MB_AP_VID)
            sweep_small(w, 16, g.leaf_64k, dir.table_phys_big, at);
        if (!dir.valid || dir.aperture != MB_AP_VID)
            continue;
        if (level + 1 < g.levels)
            sweep_level(w, level + 1, dir.table_phys, at);
        else
            sweep_small(w, 12, g.leaf_4k, dir.table_phys, at);
    }
    free(pte);
}

/* Isolated: no leaf anywhere in the application's address space shows a leaf table. Inline is the
 * control: there the sweep must find exactly the tables of the window. */
int gt_test_sweep(void)
{
    struct sweep w = {.t = NULL};
    struct mb_hw_stream *s;
    struct gt t;

    gt_open(&t, gt_arg("tables", "isolated"));
    gt_pool(&t, 64ull << 20, 2);
    gt_window(&t, 3);
    s = gt_stream(&t);
    gt_map(&t, s, 250, 32, t.pfn, t.tmpl_rw, true);
    gt_sync(&t, s);
    w.t = &t;
    w.pages = aligned_alloc(64, sizeof(*w.pages));
    mb__cuda_pages_init(t.dev, w.pages);
    sweep_level(&w, 0, t.dev->space.pdb, 0);
    mb__cuda_pages_fini(w.pages);
    printf("RESULT sweep tables %s read %" PRIu64 " leaves %" PRIu64 " hits %" PRIu64 "\n",
           t.hw->caps.tables, w.tables, w.leaves, w.hits);
    uint64_t want = t.dev->tables == MB_CUDA_INLINE ? 3 : 0;
    /* Right after views were taken down, a doorbell must not be missed. */
    gt_unmap(&t, s, 250, 32);
    gt_sync(&t, s);
    gt_close(&t);
    return w.hits != want;
}
