/* SPDX-License-Identifier: MIT */
/*
 * trust.c - the scrubber on real tables: entries that another module's kernel changes behind the
 * record are named by a kernel that compares table and record at memory speed. Inline tables only:
 * nothing in the program can address the others.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "gpu.h"
#include "kernels/pte_scrub.h"

enum { NAMED = 1024 };

struct scrubber {
    struct gt *t;
    cu_function kernel;
    struct gt_words want; /* struct mb_scrub_want, two words a slot; pinned, read over the bus */
    struct gt_words out;  /* 32-bit words: count, then slots */
    cu_ptr want_device;   /* the same in device memory: a frame's home */
};

static void expect_slot(struct scrubber *s, uint32_t slot, mb_pfn pfn)
{
    struct gt *t = s->t;
    enum mb_fmt fmt = t->hw->caps.format;

    s->want.host[2 * slot] = mb_fmt_leaf_at(fmt, MB_FRAME_SHIFT, t->tmpl_rw, pfn.n).lo;
    s->want.host[2 * slot + 1] = UINT64_MAX;
}

/* Runs over the whole window; the list of differing slots is in s->out. */
static uint32_t scrub(struct scrubber *s, struct mb_hw_stream *stream, double *us)
{
    struct gt *t = s->t;
    uint64_t slots = t->view.table;
    uint32_t slot_bytes = t->view.slot_bytes, count = t->slots, capacity = NAMED;
    void *params[] = {&slots, &slot_bytes, &count, &s->want_device, &s->out.device, &capacity};
    double start;

    memset(s->out.host, 0, (NAMED + 2) * 4);
    gt_sync(t, stream);
    start = gt_now_us();
    GT_CU(t->cu->launch(s->kernel, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream->native, params,
                        NULL));
    gt_sync(t, stream);
    if (us)
        *us = gt_now_us() - start;
    return *(uint32_t *)s->out.host;
}

/* The record goes to device memory with the copy engine, at a home that no slot shows. */
static void send_record(struct scrubber *s)
{
    cu_result (*copy)(cu_ptr, const void *, size_t);

    *(void **)&copy = gt_symbol(s->t, "cuMemcpyHtoD_v2");
    GT_CU(copy(s->want_device, s->want.host, (size_t)s->t->slots * sizeof(struct mb_scrub_want)));
}

/* Other device code of the process stores into the leaf table. */
static void damage(struct scrubber *s, struct mb_hw_stream *stream, const uint32_t *slot,
                   uint32_t count)
{
    struct gt_words at = gt_words(s->t, count), value = gt_words(s->t, count);

    for (uint32_t i = 0; i < count; i++) {
        at.host[i] = s->t->view.table + (uint64_t)slot[i] * s->t->view.slot_bytes;
        /* The entry of its neighbour: one of our own frames, so that no access leaves the pool. */
        value.host[i] = s->want.host[2 * (slot[i] ^ 1)];
    }
    gt_poke(s->t, stream, at, count, value);
    gt_sync(s->t, stream);
}

/* What the backend's own use of the kernel names (scrub:device), all of it among the damaged. */
static uint32_t backend_names(struct scrubber *s, const uint32_t *slot, uint32_t count)
{
    struct gt *t = s->t;
    uint32_t wrong[NAMED], differing = 0, known = 0;

    GT_OK(t->hw->ops->scrub_slots(t->hw, &t->view, 0, t->slots,
                                  (const struct mb_scrub_want *)(void *)s->want.host, wrong, NAMED,
                                  &differing));
    for (uint32_t i = 0; i < differing && i < NAMED; i++)
        for (uint32_t k = 0; k < count; k++)
            known += wrong[i] == slot[k];
    return known == differing ? differing : UINT32_MAX;
}

int gt_test_scrub(void)
{
    uint64_t seed = gt_arg_u64("seed", (uint64_t)gt_now_us()), found = 0;
    uint32_t slot[64];
    struct scrubber s = {0};
    struct mb_hw_stream *stream;
    struct mb_rng rng;
    struct gt t;
    double us, best = 1e18;

    printf("seed %" PRIu64 "\n", seed);
    mb__rng_seed(&rng, seed);
    gt_open(&t, gt_arg("tables", "inline"));
    if (t.dev->tables != MB_CUDA_INLINE)
        gt_skip("scrub: only inline tables can be addressed by a kernel of the program");
    gt_pool(&t, 512ull << 20, (unsigned)gt_arg_u64("pool", 2));
    gt_window(&t, 1);
    stream = gt_stream(&t);
    s.t = &t;
    GT_CU(t.cu->module_function(&s.kernel, t.dev->module, "mb_scrub"));
    s.want = gt_words(&t, 2 * (size_t)t.slots);
    s.out = gt_words(&t, NAMED / 2 + 1);
    s.want_device = t.home[t.frames - 1];
    GT_CHECK(t.slots < t.frames && t.slots * sizeof(struct mb_scrub_want) <= GT_FRAME);
    gt_map(&t, stream, 0, t.slots, t.pfn, t.tmpl_rw, true);
    for (uint32_t i = 0; i < t.slots; i++)
        expect_slot(&s, i, t.pfn[i]);
    send_record(&s);
    GT_CHECK(scrub(&s, stream, NULL) == 0);
    for (unsigned round = 0; round < 100; round++) {
        uint32_t count = 1 + (uint32_t)mb__rng_below(&rng, 64);

        for (uint32_t i = 0; i < count; i++) /* each once, apart from its neighbour */
            slot[i] =
                4 * ((uint32_t)mb__rng_below(&rng, t.slots / 4 / 64) + i * (t.slots / 4 / 64));
        damage(&s, stream, slot, count);
        GT_CHECK(scrub(&s, stream, NULL) == count);
        GT_CHECK(backend_names(&s, slot, count) == count);
        found += count;
        for (uint32_t i = 0; i < count; i++) { /* repair */
            gt_map(&t, stream, slot[i], 1, &t.pfn[slot[i]], t.tmpl_rw, true);
        }
        GT_CHECK(scrub(&s, stream, &us) == 0);
        best = us < best ? us : best;
    }
    printf("RESULT scrub %" PRIu64 " entries changed, all named, none else; %u entries in %.1f us "
           "with launch and wait: %.0f million entries a second\n",
           found, t.slots, best, t.slots / best);
    gt_close(&t);
    return 0;
}
