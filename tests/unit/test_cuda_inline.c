/* SPDX-License-Identifier: MIT */
/*
 * Batches of inline tables on a recorded driver: the launches that a batch becomes, executed over
 * tables in host memory, leave what its commands say. The first runs of a program are executed as
 * program.h says, those behind them by the kernel's own body (more.h), thread after thread in an
 * order of chance.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "hw/cuda/cuda.h"
#include "test.h"

#define MB_MORE_FN static
#define MB_MORE_STORE(slots, slot_bytes, i, lo) store_slot(slots, slot_bytes, i, lo)
static void store_slot(uint64_t slots, uint32_t slot_bytes, uint32_t i, uint64_t lo);
#include "kernels/cuda/more.h"

enum {
    FRAMES = 300,
    FAR = 70000, /* frames of a device whose numbers do not fit into 16 bits */
    VIEWS = 200,
    SLOTS = 256, /* of a view */
    CMDS = 400,
    POISON = 7,
};

enum { POP_S = 1, POP_M, POP_L, POP_XL, POP_RING };

static unsigned launches, invalidates, buffers;
static unsigned fails_at; /* launch of the batch that the driver refuses, from 1; 0: none */
static uint32_t written[VIEWS * SLOTS]; /* launches that wrote the slot in this batch */
static struct mb_rng rng;

struct rig {
    struct mb_cuda dev;
    struct mb_hw_stream stream;
    struct mb_cuda_window window;
    struct mb_hw_view view[VIEWS];
    struct mb_pte table[VIEWS * SLOTS], want[VIEWS * SLOTS];
    _Atomic uint64_t timeline;
    struct mb_hw_cmd cmds[CMDS];
    mb_pfn pfns[VIEWS * SLOTS];
    uint32_t used;
    unsigned count;
};
static struct rig *rig;

static void store_slot(uint64_t slots, uint32_t slot_bytes, uint32_t i, uint64_t lo)
{
    struct mb_pte *pte = (struct mb_pte *)(uintptr_t)slots + i;

    CHECK_EQ(slot_bytes, sizeof(*pte));
    CHECK(pte >= rig->table && pte < rig->table + sizeof(rig->table) / sizeof(*pte));
    CHECK_EQ(written[pte - rig->table], 0);
    written[pte - rig->table] = 1;
    *pte = (struct mb_pte){.lo = lo};
}

static void run_segment(const struct mb_pop_head *head, const struct mb_pop_segment *seg,
                        const uint16_t *shorts)
{
    const uint32_t *longs = (const uint32_t *)(uintptr_t)head->list;

    CHECK(seg->at == MB_POP_SAME || longs || shorts);
    for (uint32_t i = 0; i < seg->count; i++) {
        uint64_t lo = seg->tmpl;

        if (seg->at != MB_POP_SAME && (longs || shorts))
            lo |= (uint64_t)(longs ? longs[seg->at + i]
                                   : head->base_pfn +
                                         ((uint32_t)shorts[seg->at + i] << head->frame_shift))
                  << head->pfn_shift;
        store_slot(seg->slots, head->slot_bytes, i, lo);
    }
}

static cu_result fake_launch(cu_function function, unsigned gx, unsigned gy, unsigned gz,
                             unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             cu_stream stream, void **params, void **extra)
{
    static const uint32_t rooms[] = {[POP_S] = MB_POP_LIST_S,
                                     [POP_M] = MB_POP_LIST_M,
                                     [POP_L] = MB_POP_LIST_L,
                                     [POP_XL] = MB_POP_LIST_XL,
                                     [POP_RING] = 0};
    const struct mb_pop_head *head = params[0];
    uint32_t room = rooms[(uintptr_t)function], turn = (uint32_t)mb__rng_below(&rng, bx);
    uint16_t *list = NULL;

    CHECK(gx == 1 && gy == 1 && gz == 1 && by == 1 && bz == 1 && !shared && !stream && !extra);
    CHECK(bx >= 32 && bx <= MB_POP_THREADS && (bx & (bx - 1)) == 0);
    CHECK_EQ(!head->list, (uintptr_t)function != POP_RING);
    if (launches + 1 == fails_at)
        return CU_OUT_OF_MEMORY;
    if (room) { /* no more than what the kernel is given */
        list = malloc(room * sizeof(*list));
        CHECK(list != NULL);
        memcpy(list, head + 1, room * sizeof(*list));
    }
    for (uint32_t i = 0; i < head->segments && i < MB_POP_SEGMENTS; i++)
        run_segment(head, &head->segment[i], list);
    CHECK(head->segments <= MB_POP_SEGMENTS || list);
    for (uint32_t i = 0; head->segments > MB_POP_SEGMENTS && i < bx; i++)
        mb_pop_more(head, list, (i + turn) % bx, bx);
    free(list);
    memset(written, 0, sizeof(written));
    launches++;
    invalidates += (head->flags & MB_POP_INVALIDATE) != 0;
    if (head->done)
        atomic_store((_Atomic uint64_t *)(uintptr_t)head->done, head->done_value);
    return CU_OK;
}

static cu_result fake_capturing(cu_stream stream, int *status)
{
    (void)stream;
    *status = CU_CAPTURE_NONE;
    return CU_OK;
}

static cu_result fake_capture_mode(int *mode)
{
    (void)mode;
    return CU_OK;
}

static cu_result fake_alloc(void **ptr, size_t bytes, unsigned flags)
{
    CHECK(flags & CU_HOST_ALLOC_MAPPED);
    *ptr = malloc(bytes);
    CHECK(*ptr != NULL);
    buffers++;
    return CU_OK;
}

static cu_result fake_free(void *ptr)
{
    free(ptr);
    buffers--;
    return CU_OK;
}

static cu_result fake_device_ptr(cu_ptr *device, void *ptr, unsigned flags)
{
    (void)flags;
    *device = (uintptr_t)ptr;
    return CU_OK;
}

static cu_result fake_error_name(cu_result result, const char **name)
{
    (void)result;
    *name = "an error of the fake";
    return CU_OK;
}

static const struct mb_cuda_driver driver = {
    .error_name = fake_error_name,
    .launch = fake_launch,
    .stream_capturing = fake_capturing,
    .capture_mode = fake_capture_mode,
    .host_alloc = fake_alloc,
    .host_free = fake_free,
    .host_device_ptr = fake_device_ptr,
};

static cu_function function(unsigned which)
{
    return (cu_function)(uintptr_t)which;
}

static struct mb_pte leaf(uint32_t frame)
{
    return mb__cuda_expect(&rig->dev.space, true, (uint64_t)frame << MB_FRAME_SHIFT);
}

static void set_up(void)
{
    struct mb_cuda *dev;

    rig = calloc(1, sizeof(*rig));
    CHECK(rig != NULL);
    dev = &rig->dev;
    mb__rng_seed(&rng, mb_test_seed());
    launches = invalidates = 0;
    dev->cu = &driver;
    dev->tables = MB_CUDA_INLINE;
    dev->space = (struct mb_cuda_space){.fmt = MB_FMT_GMMU_V3, .kind = 6};
    dev->poison_pfn = (mb_pfn){POISON * (uint32_t)MB_FRAME_PFNS};
    dev->pop_s = function(POP_S);
    dev->pop_m = function(POP_M);
    dev->pop_l = function(POP_L);
    dev->pop_xl = function(POP_XL);
    dev->pop_ring = function(POP_RING);
    dev->param_frames = MB_POP_LIST_XL;
    dev->pop_threads = MB_POP_THREADS;
    dev->owned = calloc(FAR + MB_CUDA_OWNED_SLACK, 1);
    CHECK(dev->owned != NULL);
    dev->owned_frames = FAR;
    memset(dev->owned, 1, FRAMES);
    dev->owned[FAR - 1] = 1;
    pthread_mutex_init(&dev->table_lock, NULL);
    rig->stream.dev = dev;
    rig->stream.timeline = &rig->timeline;
    rig->stream.timeline_dev = (uintptr_t)&rig->timeline;
    for (unsigned i = 0; i < VIEWS; i++)
        rig->view[i] = (struct mb_hw_view){.bytes = SLOTS * MB_FRAME_BYTES,
                                           .leaf_shift = MB_FRAME_SHIFT,
                                           .slot_bytes = 16,
                                           .table = (uintptr_t)&rig->table[i * SLOTS],
                                           .clear_pfn = dev->poison_pfn,
                                           .cookie = (uintptr_t)&rig->window};
    for (unsigned i = 0; i < VIEWS * SLOTS; i++)
        rig->table[i] = rig->want[i] = leaf(POISON);
}

static void tear_down(void)
{
    mb__cuda_lists_free(&rig->dev);
    CHECK_EQ(buffers, 0);
    pthread_mutex_destroy(&rig->dev.table_lock);
    free(rig->dev.owned);
    free(rig);
}

static void begin(void)
{
    rig->count = rig->used = 0;
    launches = invalidates = 0;
}

static void add(enum mb_hw_cmd_kind kind)
{
    CHECK(rig->count < CMDS);
    rig->cmds[rig->count++] = (struct mb_hw_cmd){.kind = kind};
}

/* Slots of one view get frames of chance, or are cleared. */
static void add_leaves(unsigned view, uint32_t first, uint32_t count, bool clear)
{
    struct mb_hw_cmd *cmd = &rig->cmds[rig->count];

    add(MB_HW_LEAVES);
    cmd->leaves.view = &rig->view[view];
    cmd->leaves.first = first;
    cmd->leaves.count = count;
    cmd->leaves.pfns = clear ? NULL : rig->pfns + rig->used;
    cmd->leaves.tmpl = clear ? 0 : leaf(0).lo;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t frame = clear ? POISON : (uint32_t)mb__rng_below(&rng, FRAMES);

        rig->want[view * SLOTS + first + i] = leaf(frame);
        if (!clear)
            rig->pfns[rig->used++] = (mb_pfn){frame * (uint32_t)MB_FRAME_PFNS};
    }
}

/* The tables hold what the commands say, and the batch's fence has passed. */
static void submit(void)
{
    struct mb_hw_fence done = {0};

    CHECK_OK(mb__cuda_inline_submit(&rig->dev, &rig->stream, rig->cmds, rig->count, &done));
    CHECK(memcmp(rig->table, rig->want, sizeof(rig->want)) == 0);
    CHECK(done.stream == &rig->stream);
    CHECK(mb__cuda_fence_done(&rig->dev.base, done));
}

TEST(an_entry_in_each_of_many_tables_is_one_launch)
{
    set_up();
    for (unsigned tables = 1; tables <= MB_POP_SEGMENTS + MB_POP_MORE; tables++) {
        begin();
        for (unsigned i = 0; i < tables; i++)
            add_leaves(i, tables % SLOTS, 1, false);
        add(MB_HW_BARRIER);
        add(MB_HW_INVALIDATE);
        submit();
        CHECK_EQ(launches, 1);
        CHECK_EQ(invalidates, 1);
    }
    begin();
    for (unsigned i = 0; i <= MB_POP_SEGMENTS + MB_POP_MORE; i++)
        add_leaves(i, 3, 1, false);
    submit();
    CHECK_EQ(launches, 2);
    tear_down();
}

/* As many numbers as there is room for beside so many segments, and one more. */
TEST(what_fills_the_parameters_to_the_last_number)
{
    set_up();
    for (unsigned more = 2; more <= 20; more++) {
        for (unsigned over = 0; over < 2; over++) {
            uint32_t left = MB_POP_LIST_XL - more * MB_POP_MORE_ROOM + over;

            begin();
            for (unsigned i = 0, others = MB_POP_SEGMENTS + more; others-- > 0; i++) {
                uint32_t n = left - others < SLOTS ? left - others : SLOTS;

                add_leaves(i, 0, n, false);
                left -= n;
            }
            CHECK_EQ(left, 0);
            submit();
            CHECK_EQ(launches, 1 + over);
        }
    }
    tear_down();
}

TEST(lists_elsewhere)
{
    set_up();
    rig->dev.param_frames = 4;
    begin();
    for (unsigned i = 0; i < 20; i++)
        add_leaves(i, i, 2, i % 3 == 0);
    submit();
    CHECK_EQ(launches, 4);
    CHECK_EQ(buffers, 1);
    rig->dev.param_frames = MB_POP_LIST_XL;
    begin();
    for (unsigned i = 0; i < 20; i++)
        add_leaves(i, i, 1, false);
    rig->pfns[19].n = (FAR - 1) * (uint32_t)MB_FRAME_PFNS;
    rig->want[19 * SLOTS + 19] = leaf(FAR - 1);
    rig->pfns[3].n = 0;
    rig->want[3 * SLOTS + 3] = leaf(0);
    submit();
    CHECK_EQ(launches, 4);
    tear_down();
}

/* More numbers than a launch has room for: in parameters where runs are many, elsewhere where they
 * are few, whichever takes fewer launches, of which full ones count twice. */
TEST(many_runs_stay_in_the_parameters)
{
    uint32_t each = 20, room = each + MB_POP_MORE_ROOM;

    set_up();
    for (unsigned runs = 100; runs <= VIEWS; runs += 10) {
        begin();
        for (unsigned i = 0; i < runs; i++)
            add_leaves(i, i, each, false);
        add(MB_HW_INVALIDATE);
        submit();
        CHECK_EQ(buffers, 0);
        CHECK(launches >= runs * each / MB_POP_LIST_XL &&
              launches <= runs * room / MB_POP_LIST_XL + 1);
        CHECK_EQ(invalidates, 1);
    }
    begin();
    for (unsigned i = 0; i < 2 * MB_POP_SEGMENTS; i++)
        add_leaves(i, 0, SLOTS, false);
    submit();
    CHECK_EQ(buffers, 1);
    CHECK_EQ(launches, 2);
    tear_down();
}

/* Clears and an invalidate, then maps and perhaps one. */
static void random_batch(void)
{
    unsigned views = 1 + (unsigned)mb__rng_below(&rng, VIEWS), most;
    unsigned from = (unsigned)mb__rng_below(&rng, VIEWS - views + 1);
    bool clears = mb__rng_below(&rng, 2) != 0;

    begin();
    most = 1 + (unsigned)mb__rng_below(&rng, mb__rng_below(&rng, 4) ? 4 : SLOTS);
    for (unsigned phase = clears ? 0 : 1; phase < 2; phase++) {
        for (unsigned i = from; i < from + views && rig->count < CMDS - 4; i++) {
            uint32_t first = (uint32_t)mb__rng_below(&rng, SLOTS - most + 1);
            uint32_t count = 1 + (uint32_t)mb__rng_below(&rng, most);

            add_leaves(i, first, count, phase == 0);
            i += (unsigned)mb__rng_below(&rng, 3);
        }
        add(MB_HW_BARRIER);
        if (phase == 0 || mb__rng_below(&rng, 2))
            add(MB_HW_INVALIDATE);
        if (phase == 0)
            add(MB_HW_MEMBAR);
    }
    submit();
}

TEST(random_batches)
{
    unsigned most = 0;

    set_up();
    for (unsigned i = 0; i < 2000; i++) {
        random_batch();
        most = launches > most ? launches : most;
    }
    printf("a batch of %u launches\n", most);
    tear_down();
}

/* A batch of four launches with frame numbers elsewhere; what its caller is told. */
static enum mb_err submit_refused(unsigned at, struct mb_hw_fence *done)
{
    enum mb_err err;

    rig->dev.param_frames = 4;
    begin();
    for (unsigned i = 0; i < 20; i++)
        add_leaves(i, i, 2, false);
    fails_at = at;
    err = mb__cuda_inline_submit(&rig->dev, &rig->stream, rig->cmds, rig->count, done);
    fails_at = 0;
    return err;
}

/* All or nothing: a driver that refuses the first launch has changed nothing. Refuses it a later
 * one, the device may be at work with the first, which nobody can take back: it is lost, and what
 * the first reads is nobody's any more. */
TEST(a_launch_that_the_driver_refuses)
{
    struct mb_hw_fence done = {0};

    for (unsigned at = 1; at <= 4; at++) {
        set_up();
        CHECK_EQ(submit_refused(at, &done), at == 1 ? MB_ERR_NO_MEMORY : MB_ERR_DEVICE_LOST);
        CHECK(!done.stream && !rig->stream.seq);
        CHECK_EQ(atomic_load(&rig->dev.lost), at == 1 ? MB_OK : MB_ERR_DEVICE_LOST);
        CHECK_EQ(rig->dev.lists->taken, at != 1);
        if (at == 1) {
            for (unsigned i = 0; i < VIEWS * SLOTS; i++)
                rig->want[i] = leaf(POISON);
            CHECK(memcmp(rig->table, rig->want, sizeof(rig->want)) == 0);
        } else {
            CHECK(strstr(mb_error_detail(), "in part"));
        }
        tear_down();
    }
}

TEST(a_frame_of_nobody_is_refused_before_anything_is_sent)
{
    struct mb_hw_fence done = {0};

    set_up();
    begin();
    for (unsigned i = 0; i < 30; i++)
        add_leaves(i, 0, 2, false);
    rig->pfns[57].n = FRAMES * (uint32_t)MB_FRAME_PFNS;
    CHECK_EQ(mb__cuda_inline_submit(&rig->dev, &rig->stream, rig->cmds, rig->count, &done),
             MB_ERR_CORRUPT);
    CHECK_EQ(launches, 0);
    CHECK(!done.stream);
    tear_down();
}
