/* SPDX-License-Identifier: MIT */
/* Rules on failures, faults, counters and the end. */
#include "contract.h"

#include <pthread.h>
#include <string.h>

/* The batch is refused; slots, counters and the numbering of fences are as if it had never been. */
static void refused(struct contract *c, struct mb_hw_stream *s, const struct contract_window *w,
                    const mb_pfn *shown, const struct mb_hw_cmd *cmds, unsigned count)
{
    struct mb_hw_fence a = contract_fence(c, s), b = contract_fence(c, s), after;
    struct mb_hw_counters before, now;
    enum mb_err err;

    contract_wait_host(c, b);
    before = contract_counters(c);
    err = c->hw->submit(c->dev, s, cmds, count);
    CHECK_NE(err, MB_OK);
    CHECK_NE(err, MB_ERR_DEVICE_LOST);
    CHECK(mb_error_detail()[0]);
    after = contract_fence(c, s);
    CHECK_EQ(after.seq - b.seq, b.seq - a.seq);
    contract_wait_host(c, after);
    now = contract_counters(c);
    CHECK_EQ(now.batches, before.batches);
    CHECK_EQ(now.entries_written, before.entries_written);
    CHECK_EQ(now.invalidates, before.invalidates);
    contract_expect_slots(c, w, 0, 4, shown, true);
}

void contract_a_bad_batch_changes_nothing(struct contract *c)
{
    struct contract_window *w = contract_window(c, 4);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[8], bad[4];
    struct mb_hw_cmd cmds[4];

    contract_frames(c, pfns, 8);
    contract_map(c, s, w, 0, 4, pfns);
    /* Good commands first, so that a backend that applies as it goes is caught. */
    cmds[0] = contract_leaves(c, w, 0, 4, pfns + 4, true);
    cmds[1] = contract_cmd(MB_HW_BARRIER);
    cmds[2] = contract_invalidate(w, 0, 4);
    /* Beyond the view, by one, by wrap-around. */
    cmds[3] = contract_leaves(c, w, w->slots - 1, 2, pfns, true);
    refused(c, s, w, pfns, cmds, 4);
    cmds[3] = contract_leaves(c, w, w->slots, 1, NULL, true);
    refused(c, s, w, pfns, cmds, 4);
    cmds[3] = contract_leaves(c, w, UINT32_MAX, 2, pfns, true);
    refused(c, s, w, pfns, cmds, 4);
    /* A frame outside the device, and one that is not a frame's first page. */
    memcpy(bad, pfns, sizeof(bad));
    bad[2] = (mb_pfn){UINT32_MAX - MB_FRAME_PFNS + 1};
    cmds[3] = contract_leaves(c, w, 0, 4, bad, true);
    refused(c, s, w, pfns, cmds, 4);
    bad[2] = (mb_pfn){pfns[2].n + 1};
    cmds[3] = contract_leaves(c, w, 0, 4, bad, true);
    refused(c, s, w, pfns, cmds, 4);
    /* No such command. */
    cmds[3] = contract_cmd((enum mb_hw_cmd_kind)99);
    refused(c, s, w, pfns, cmds, 4);
    contract_verify(c, s, w, 0, 8, 0); /* still usable; contents are undefined, so not counted */
    CHECK_OK(c->hw->device_sync(c->dev));
    c->before.wrong_words = contract_counters(c).wrong_words;
    CHECK_EQ(c->hw->health(c->dev), MB_OK);
}

static void not_less(const struct mb_hw_counters *a, const struct mb_hw_counters *b)
{
    CHECK(a->wrong_words <= b->wrong_words);
    CHECK(a->wrong_accesses <= b->wrong_accesses);
    CHECK(a->faults <= b->faults);
    CHECK(a->invalidates <= b->invalidates);
    CHECK(a->entries_written <= b->entries_written);
    CHECK(a->batches <= b->batches);
}

void contract_counters_only_grow(struct contract *c)
{
    enum { SLOTS = 20 };
    struct contract_window *w = contract_window(c, SLOTS);
    struct mb_hw_stream *s = contract_stream(c);
    struct mb_hw_counters last, now;
    mb_pfn pfns[SLOTS];

    contract_frames(c, pfns, SLOTS);
    CHECK_OK(c->hw->device_sync(c->dev));
    last = contract_counters(c);
    for (uint32_t i = 1; i <= SLOTS; i++) {
        contract_map(c, s, w, 0, i, i % 3 ? pfns : NULL);
        if (i % 3)
            contract_fill(c, s, w, 0, i * MB_FRAME_BYTES, i);
        CHECK_OK(c->hw->device_sync(c->dev));
        now = contract_counters(c);
        not_less(&last, &now);
        /* One batch, i entries, one invalidate. */
        CHECK_EQ(now.batches - last.batches, 1);
        CHECK_EQ(now.entries_written - last.entries_written, i);
        CHECK_EQ(now.invalidates - last.invalidates, 1);
        last = now;
    }
    contract_sync(c);
}

/* The oracle judges: a mapping other than the one told is counted, though no word is wrong. */
void contract_intend_is_checked(struct contract *c)
{
    struct contract_window *w = contract_window(c, 2);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[2];
    struct mb_hw_cmd cmds[3];

    if (!c->hw->intend || c->config->hw.no_oracle) {
        contract_cannot(c, "intend_is_checked", "the backend has no oracle");
        return;
    }
    contract_frames(c, pfns, 2);
    contract_map(c, s, w, 0, 1, &pfns[0]);
    contract_fill(c, s, w, 0, MB_FRAME_BYTES, 1);
    contract_sync(c);
    contract_intend(c, w, 0, 1, &pfns[1]);
    cmds[0] = contract_leaves(c, w, 0, 1, &pfns[0], true);
    cmds[1] = contract_cmd(MB_HW_BARRIER);
    cmds[2] = contract_invalidate(w, 0, 1);
    CHECK_OK(c->hw->submit(c->dev, s, cmds, 3));
    contract_verify(c, s, w, 0, MB_FRAME_BYTES, 1);
    CHECK_OK(c->hw->device_sync(c->dev));
    CHECK(contract_counters(c).wrong_accesses > c->before.wrong_accesses);
    c->before.wrong_accesses = contract_counters(c).wrong_accesses;
    /* Told rightly, it is silent again. */
    contract_intend(c, w, 0, 1, &pfns[0]);
    contract_verify(c, s, w, 0, MB_FRAME_BYTES, 1);
    contract_sync(c);
}

enum { THREADS = 4, THREAD_SLOTS = 12, THREAD_ROUNDS = 40 };

/* One thread's share; err and step tell what failed, as checks belong to the main thread. */
struct worker {
    struct contract *c;
    struct mb_hw_stream *stream;
    struct contract_window *window;
    mb_pfn pfns[THREAD_SLOTS];
    uint64_t id;
    enum mb_err err;
    const char *step;
};

static bool failed(struct worker *k, enum mb_err err, const char *step)
{
    k->err = err;
    k->step = step;
    return err != MB_OK;
}

static void *work(void *arg)
{
    struct worker *k = arg;
    const struct mb_hw_ops *hw = k->c->hw;
    struct mb_hw_dev *dev = k->c->dev;
    uint64_t bytes = THREAD_SLOTS * MB_FRAME_BYTES;
    mb_va va = k->window->view.va, extra;
    struct mb_hw_counters counters;
    struct mb_hw_fence fence;

    for (uint64_t round = 0; round < THREAD_ROUNDS; round++) {
        uint64_t seed = k->id << 32 | round;

        if (failed(k, hw->va_reserve(dev, MB_FRAME_BYTES, MB_FRAME_BYTES, &extra), "va_reserve") ||
            failed(k, contract_try_map(k->c, k->stream, k->window, 0, THREAD_SLOTS, k->pfns, true),
                   "map") ||
            failed(k, hw->fill(dev, k->stream, va, bytes, seed), "fill") ||
            failed(k, hw->verify(dev, k->stream, va, bytes, seed), "verify") ||
            failed(k, contract_try_map(k->c, k->stream, k->window, 0, THREAD_SLOTS, NULL, true),
                   "unmap") ||
            failed(k, hw->fence_record(dev, k->stream, &fence), "fence_record") ||
            (round % 4 == 0 && failed(k, hw->fence_wait_host(dev, fence, 0), "fence_wait_host")) ||
            failed(k, hw->va_release(dev, extra, MB_FRAME_BYTES), "va_release"))
            return NULL;
        hw->counters(dev, &counters);
        hw->fence_done(dev, fence);
    }
    return NULL;
}

void contract_threads_share_a_device(struct contract *c)
{
    static struct worker worker[THREADS];
    pthread_t thread[THREADS];

    for (unsigned i = 0; i < THREADS; i++) {
        memset(&worker[i], 0, sizeof(worker[i]));
        worker[i].c = c;
        worker[i].id = i + 1;
        worker[i].stream = contract_stream(c);
        worker[i].window = contract_window(c, THREAD_SLOTS);
        contract_frames(c, worker[i].pfns, THREAD_SLOTS);
    }
    for (unsigned i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, work, &worker[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < THREADS; i++)
        if (worker[i].err)
            FAIL("thread %u: %s: %s", i, worker[i].step, mb_error_name(worker[i].err));
    contract_sync(c);
}

/* The device is lost after it, and says so; close still takes everything back (contract_run). */
static void expect_lost(struct contract *c, struct mb_hw_stream *s)
{
    struct mb_hw_fence fence;

    CHECK_EQ(c->hw->device_sync(c->dev), MB_ERR_DEVICE_LOST);
    CHECK(contract_counters(c).faults > c->before.faults);
    CHECK_EQ(c->hw->health(c->dev), MB_ERR_DEVICE_LOST);
    CHECK(mb_error_detail()[0]);
    if (c->hw->fence_record(c->dev, s, &fence) == MB_OK)
        CHECK_EQ(c->hw->fence_wait_host(c->dev, fence, 0), MB_ERR_DEVICE_LOST);
    c->lost = true;
}

void contract_an_unmapped_access_faults(struct contract *c)
{
    struct contract_window *w = contract_window(c, 4);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[4];

    if (!c->config->may_fault) {
        contract_cannot(c, "an_unmapped_access_faults", "it would end the process's context");
        return;
    }
    contract_frames(c, pfns, 4);
    contract_map(c, s, w, 0, 4, pfns);
    contract_fill(c, s, w, 0, 4 * MB_FRAME_BYTES, 1);
    contract_map(c, s, w, 1, 2, NULL);
    contract_sync(c);
    contract_verify(c, s, w, 1, 64, 1);
    if (mb__pfn_eq(w->view.clear_pfn, MB_NO_PFN)) {
        expect_lost(c, s);
        return;
    }
    /* Cleared slots show a donor: no fault, but no trace of the old frame, and the oracle sees it.
     */
    CHECK_OK(c->hw->device_sync(c->dev));
    CHECK_EQ(contract_counters(c).wrong_words, c->before.wrong_words + 8);
    if (c->hw->intend && !c->config->hw.no_oracle)
        CHECK(contract_counters(c).wrong_accesses > c->before.wrong_accesses);
    c->before = contract_counters(c);
}

void contract_a_read_only_mapping_is_not_written(struct contract *c)
{
    struct contract_window *w = contract_window(c, 2);
    struct mb_hw_stream *s = contract_stream(c);
    mb_pfn pfns[2];

    contract_frames(c, pfns, 2);
    contract_map(c, s, w, 0, 2, pfns);
    contract_fill(c, s, w, 0, 2 * MB_FRAME_BYTES, 1);
    CHECK_OK(contract_try_map(c, s, w, 0, 1, pfns, false));
    contract_verify(c, s, w, 0, 2 * MB_FRAME_BYTES, 1);
    contract_sync(c);
    contract_expect_slots(c, w, 0, 1, pfns, false);
    contract_expect_slots(c, w, 1, 1, pfns + 1, true);
    /* Writable again, and back. */
    contract_map(c, s, w, 0, 1, pfns);
    contract_fill(c, s, w, 0, 2 * MB_FRAME_BYTES, 2);
    CHECK_OK(contract_try_map(c, s, w, 0, 1, pfns, false));
    contract_verify(c, s, w, 0, 2 * MB_FRAME_BYTES, 2);
    contract_sync(c);
    if (!c->config->may_fault) {
        contract_cannot(c, "a_read_only_mapping_is_not_written",
                        "its last part would end the process's context");
        return;
    }
    contract_fill(c, s, w, 0, 64, 3);
    expect_lost(c, s);
}

/* Nothing is given back by the rule: streams have work, slots are mapped, slabs and ranges are
 * held. Leaks are for the sanitizers to see. */
void contract_close_takes_everything_back(struct contract *c)
{
    struct mb_hw_slab *slab = contract_slab(c, c->caps->slab_step_bytes);
    struct contract_window *w = contract_window(c, 40);
    struct mb_hw_stream *a = contract_stream(c), *b = contract_stream(c);
    mb_pfn pfns[40];
    mb_va va;

    (void)slab;
    contract_frames(c, pfns, 40);
    contract_map(c, a, w, 0, 40, pfns);
    contract_fill(c, a, w, 0, 40 * MB_FRAME_BYTES, 1);
    CHECK_OK(c->hw->fence_wait_stream(c->dev, b, contract_fence(c, a)));
    contract_verify(c, b, w, 0, 40 * MB_FRAME_BYTES, 1);
    contract_map(c, b, w, 0, 20, NULL);
    CHECK_OK(c->hw->va_reserve(c->dev, 64 * MB_FRAME_BYTES, MB_FRAME_BYTES, &va));
    if (c->caps->tree_is_ours) {
        uint64_t phys;

        CHECK_OK(c->hw->table_alloc(c->dev, 8192, &phys));
    }
    c->hw->close(c->dev);
    c->dev = NULL;
}
