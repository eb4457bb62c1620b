/* SPDX-License-Identifier: MIT */
/*
 * Driver tables on a recorded driver: which of its calls a batch costs. The worker, the submission
 * and the record of the window are the real ones; only libcuda is a table of functions that count.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/cuda/cuda.h"
#include "test.h"

enum { FRAMES = 64, SLOTS = 256, LOG = 64, DONE_WORD = 2 };

/* Calls since the last look. Written by the worker, read after its batch is done. */
struct calls {
    unsigned maps, unmaps, accesses;
    unsigned unmapped_slots, access_slots;
    int access;
};
static struct calls calls;

static cu_result fake_map(cu_ptr ptr, size_t bytes, size_t offset, cu_mem handle,
                          unsigned long long flags)
{
    (void)ptr;
    (void)offset;
    (void)handle;
    (void)flags;
    calls.maps += (unsigned)(bytes / MB_FRAME_BYTES);
    return CU_OK;
}

static cu_result fake_unmap(cu_ptr ptr, size_t bytes)
{
    (void)ptr;
    calls.unmaps++;
    calls.unmapped_slots += (unsigned)(bytes / MB_FRAME_BYTES);
    return CU_OK;
}

static cu_result fake_access(cu_ptr ptr, size_t bytes, const struct cu_mem_access *access,
                             size_t count)
{
    (void)ptr;
    (void)count;
    calls.accesses++;
    calls.access_slots += (unsigned)(bytes / MB_FRAME_BYTES);
    calls.access = access->flags;
    return CU_OK;
}

static cu_result fake_ctx_set(cu_context ctx)
{
    (void)ctx;
    return CU_OK;
}

static cu_result fake_capture_mode(int *mode)
{
    (void)mode;
    return CU_OK;
}

static cu_result fake_capturing(cu_stream stream, int *status)
{
    (void)stream;
    *status = CU_CAPTURE_NONE;
    return CU_OK;
}

/* The stream is idle: it announces itself at once. Its wait and its fence are not the test's. */
static bool stream_is_busy; /* it has not come to the batch yet */

static cu_result fake_ops(cu_stream stream, unsigned count, struct cu_mem_op *ops, unsigned flags)
{
    (void)stream;
    (void)count;
    (void)flags;
    if (!stream_is_busy)
        __atomic_store_n((uint64_t *)(uintptr_t)ops[0].address, ops[0].value, __ATOMIC_RELEASE);
    return CU_OK;
}

static const struct mb_cuda_driver driver = {
    .mem_map = fake_map,
    .mem_unmap = fake_unmap,
    .mem_access = fake_access,
    .ctx_set = fake_ctx_set,
    .capture_mode = fake_capture_mode,
    .stream_capturing = fake_capturing,
    .stream_ops = fake_ops,
};

struct rig {
    struct mb_cuda dev;
    struct mb_hw_stream stream;
    _Atomic uint64_t line[8];
    struct mb_hw_view view;
    uint64_t rw, ro;
};

static void rig_open(struct rig *rig)
{
    memset(rig, 0, sizeof(*rig));
    rig->dev.cu = &driver;
    rig->dev.tables = MB_CUDA_DRIVER;
    rig->dev.space = (struct mb_cuda_space){.fmt = MB_FMT_GMMU_V3, .kind = 6};
    rig->dev.owned = malloc(FRAMES + MB_CUDA_OWNED_SLACK);
    rig->dev.owned_frames = FRAMES;
    rig->dev.frame_handle = calloc(FRAMES, sizeof(*rig->dev.frame_handle));
    CHECK(rig->dev.owned && rig->dev.frame_handle);
    memset(rig->dev.owned, 1, FRAMES);
    memset(rig->dev.owned + FRAMES, 0, MB_CUDA_OWNED_SLACK);
    for (unsigned i = 0; i < FRAMES; i++)
        rig->dev.frame_handle[i] = 100 + i;
    rig->stream.timeline = rig->line;
    rig->stream.timeline_dev = (uintptr_t)rig->line;
    rig->stream.dev = &rig->dev;
    rig->rw = mb__cuda_expect(&rig->dev.space, true, 0).lo;
    rig->ro = mb__cuda_expect(&rig->dev.space, false, 0).lo;
    CHECK_OK(mb__cuda_driver_adopt(&rig->dev, mb__va((uint64_t)1 << 40), SLOTS * MB_FRAME_BYTES,
                                   &rig->view));
    CHECK_OK(mb__cuda_worker_start(&rig->dev));
}

static void rig_close(struct rig *rig)
{
    mb__cuda_worker_stop(&rig->dev);
    mb__cuda_driver_disown(&rig->dev, &rig->view);
    free(rig->dev.owned);
    free(rig->dev.frame_handle);
}

/* The calls of one batch; frame 0: clear. Slots show frame, frame + 1, ... */
static struct calls batch(struct rig *rig, uint32_t slot, uint32_t count, uint32_t frame,
                          uint64_t tmpl)
{
    mb_pfn pfns[FRAMES];
    struct mb_hw_fence done;
    struct mb_hw_cmd cmd = {.kind = MB_HW_LEAVES,
                            .leaves = {.view = &rig->view,
                                       .first = slot,
                                       .count = count,
                                       .pfns = frame ? pfns : NULL,
                                       .tmpl = tmpl}};

    for (uint32_t i = 0; i < count; i++)
        pfns[i] = (mb_pfn){(frame + i) * (uint32_t)MB_FRAME_PFNS};
    memset(&calls, 0, sizeof(calls));
    CHECK_OK(mb__cuda_driver_submit(&rig->dev, &rig->stream, &cmd, 1, &done));
    while (atomic_load_explicit(&rig->line[DONE_WORD], memory_order_acquire) < rig->stream.order)
        usleep(20);
    return calls;
}

TEST(a_new_range_gets_access_in_one_call)
{
    struct rig rig;
    struct calls c;

    rig_open(&rig);
    c = batch(&rig, 4, 8, 1, rig.rw);
    CHECK_EQ(c.maps, 8);
    CHECK_EQ(c.accesses, 1);
    CHECK_EQ(c.access_slots, 8);
    CHECK_EQ(c.access, CU_MEM_ACCESS_READ_WRITE);
    CHECK_EQ(c.unmaps, 0);
    rig_close(&rig);
}

TEST(what_is_as_it_was_costs_nothing)
{
    struct rig rig;
    struct calls c;

    rig_open(&rig);
    (void)batch(&rig, 0, 8, 1, rig.rw);
    c = batch(&rig, 0, 8, 1, rig.rw);
    CHECK_EQ(c.maps + c.unmaps + c.accesses, 0);
    /* Two slots go on to other frames: only they are touched. */
    c = batch(&rig, 2, 2, 20, rig.rw);
    CHECK_EQ(c.unmaps, 1);
    CHECK_EQ(c.unmapped_slots, 2);
    CHECK_EQ(c.maps, 2);
    CHECK_EQ(c.access_slots, 2);
    c = batch(&rig, 0, 8, 1, rig.rw);
    CHECK_EQ(c.maps, 2);
    CHECK_EQ(c.access_slots, 2);
    rig_close(&rig);
}

TEST(access_alone_changes_without_a_map)
{
    struct rig rig;
    struct calls c;
    struct mb_pte pte;

    rig_open(&rig);
    (void)batch(&rig, 0, 8, 1, rig.rw);
    c = batch(&rig, 2, 4, 3, rig.ro);
    CHECK_EQ(c.maps + c.unmaps, 0);
    CHECK_EQ(c.accesses, 1);
    CHECK_EQ(c.access_slots, 4);
    CHECK_EQ(c.access, CU_MEM_ACCESS_READ);
    CHECK_OK(mb__cuda_driver_read_slots(&rig.dev, &rig.view, 2, 1, &pte));
    CHECK_EQ(pte.lo, mb__cuda_expect(&rig.dev.space, false, 3 * MB_FRAME_BYTES).lo);
    /* Back to writable over all eight: the four that changed. */
    c = batch(&rig, 0, 8, 1, rig.rw);
    CHECK_EQ(c.access_slots, 4);
    rig_close(&rig);
}

TEST(access_is_given_again_after_an_unmap)
{
    struct rig rig;
    struct calls c;

    rig_open(&rig);
    (void)batch(&rig, 0, 8, 1, rig.rw);
    c = batch(&rig, 0, 8, 0, 0);
    CHECK_EQ(c.unmaps, 1);
    CHECK_EQ(c.unmapped_slots, 8);
    c = batch(&rig, 0, 8, 1, rig.rw);
    CHECK_EQ(c.maps, 8);
    CHECK_EQ(c.access_slots, 8);
    rig_close(&rig);
}

/* Submits behind a busy stream; returns whether the batch was done before the stream came there.
 * One that is expected to be is waited for, any other is given a moment. */
static bool overtakes(struct rig *rig, uint32_t slot, uint32_t count, uint32_t frame, bool expected)
{
    mb_pfn pfns[FRAMES];
    struct mb_hw_fence done;
    struct mb_hw_cmd cmd = {.kind = MB_HW_LEAVES,
                            .leaves = {.view = &rig->view,
                                       .first = slot,
                                       .count = count,
                                       .pfns = frame ? pfns : NULL,
                                       .tmpl = rig->rw}};
    bool early = false;

    for (uint32_t i = 0; i < count; i++)
        pfns[i] = (mb_pfn){(frame + i) * (uint32_t)MB_FRAME_PFNS};
    stream_is_busy = true;
    CHECK_OK(mb__cuda_driver_submit(&rig->dev, &rig->stream, &cmd, 1, &done));
    stream_is_busy = false;
    for (unsigned i = 0; !early && (expected || i < 500); i++) {
        usleep(20);
        early =
            atomic_load_explicit(&rig->line[DONE_WORD], memory_order_acquire) == rig->stream.order;
    }
    /* The stream comes there: whatever waited goes on. */
    atomic_store(&rig->line[1], rig->stream.order);
    while (atomic_load_explicit(&rig->line[DONE_WORD], memory_order_acquire) < rig->stream.order)
        usleep(20);
    return early;
}

TEST(empty_slots_are_filled_early_if_asked_for)
{
    struct rig rig;

    rig_open(&rig);
    CHECK(!overtakes(&rig, 0, 8, 1, false));
    rig_close(&rig);
    rig_open(&rig);
    rig.dev.early_maps = true;
    CHECK(overtakes(&rig, 0, 8, 1, true));
    CHECK(!overtakes(&rig, 4, 8, 20, false)); /* half of it is in use */
    CHECK(!overtakes(&rig, 0, 4, 0, false));  /* an unmap */
    CHECK(overtakes(&rig, 0, 4, 30, true));
    CHECK(!overtakes(&rig, 0, 4, 30, false)); /* the same again: not empty */
    CHECK(overtakes(&rig, 12, 4, 40, true));
    rig_close(&rig);
}

/* An early batch stays behind the batches of its stream that must wait. */
TEST(an_early_batch_does_not_overtake_its_stream)
{
    mb_pfn pfn = {5 * (uint32_t)MB_FRAME_PFNS};
    struct mb_hw_fence done;
    struct rig rig;

    rig_open(&rig);
    rig.dev.early_maps = true;
    CHECK(overtakes(&rig, 0, 1, 1, true));
    struct mb_hw_cmd clear = {.kind = MB_HW_LEAVES,
                              .leaves = {.view = &rig.view, .first = 0, .count = 1}};
    struct mb_hw_cmd fill = {
        .kind = MB_HW_LEAVES,
        .leaves = {.view = &rig.view, .first = 0, .count = 1, .pfns = &pfn, .tmpl = rig.rw}};

    stream_is_busy = true;
    CHECK_OK(mb__cuda_driver_submit(&rig.dev, &rig.stream, &clear, 1, &done));
    CHECK_OK(mb__cuda_driver_submit(&rig.dev, &rig.stream, &fill, 1, &done));
    stream_is_busy = false;
    usleep(20000);
    CHECK_EQ(atomic_load(&rig.line[DONE_WORD]), 1);
    atomic_store(&rig.line[1], rig.stream.order);
    while (atomic_load_explicit(&rig.line[DONE_WORD], memory_order_acquire) < rig.stream.order)
        usleep(20);
    struct mb_pte pte;

    CHECK_OK(mb__cuda_driver_read_slots(&rig.dev, &rig.view, 0, 1, &pte));
    CHECK_EQ(pte.lo, mb__cuda_expect(&rig.dev.space, true, 5 * MB_FRAME_BYTES).lo);
    rig_close(&rig);
}
