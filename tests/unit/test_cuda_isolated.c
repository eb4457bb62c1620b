/* SPDX-License-Identifier: MIT */
/*
 * Batches of isolated tables on the FAKE driver and the FAKE copy engine: what is in the tables'
 * memory after the copies is what the commands say and nothing else, a batch that is refused leaves
 * everything as it was, and a full channel is waited for. The stream is a list of the kernels that
 * were launched on it; it goes on by one of them whenever the code under test pauses.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/cuda/cuda.h"
#include "hw/nvrm/channel.h"
#include "nvrm_fake.h"
#include "support/alloc_faults.h"
#include "test.h"

enum {
    PIECES = 32,
    GAP = 20, /* after this piece the control addresses do not go on */
    SLOTS = PIECES * MB_CUDA_LEAVES,
    FRAMES = 300,
    POISON = 7,
    TABLE_PAGES = PIECES + 1,
    CMDS = 20000,
    LAUNCHES = 8192, /* more than a channel's ring has entries */
    AWAIT = 5,
    PRIVATE = 6,
    QUERIES = 3,
    ILLEGAL_ADDRESS = 700, /* libcuda's; fatal */
};
/* For what will happen: the fakes need no time, but this process may be stopped for a while. */
static const uint64_t guard_ns = (uint64_t)600 * 1000000000;

struct rig {
    struct nvrm_fake fake;
    struct mb_cuda dev;
    struct mb_hw_stream stream;
    struct mb_cuda_window window;
    struct mb_cuda_piece piece[PIECES];
    uint8_t cleared[SLOTS];
    struct mb_hw_view view;
    struct nvrm_client *client;
    struct nvrm_mem *shared, *tables;
    _Atomic uint64_t timeline;
    struct mb_pte want[SLOTS];
    uint8_t want_cleared[SLOTS];
    struct mb_hw_cmd cmds[CMDS];
    mb_pfn pfns[CMDS];
    unsigned count;
    uint64_t random;
    /* the stream */
    struct mb_await launch[LAUNCHES];
    unsigned launched, ran;
    bool stopped; /* it does not go on */
    bool lose;    /* the device is lost at the next pause */
    unsigned pauses;
    /* What libcuda says of the context, and whether the device is lost while it is asked. */
    cu_result context;
    bool lose_at_query;
    unsigned queries, go_on_after; /* the stream goes on after so many */
};
static struct rig *rig;

/* ------------------------------------------------------------ the stream */

static volatile uint64_t *word(uint64_t address)
{
    return (volatile uint64_t *)(uintptr_t)address;
}

/* One kernel: announces, waits for the answer, passes the fence. */
static void run_one(void)
{
    const struct mb_await *a = &rig->launch[rig->ran];

    if (rig->stopped || rig->ran == rig->launched)
        return;
    if (a->announce)
        *word(a->announce) = a->announce_value;
    nvrm_fake_gpu_run(&rig->fake);
    if (*word(a->answer) < a->answer_value)
        return;
    atomic_store((_Atomic uint64_t *)(uintptr_t)a->done, a->done_value);
    rig->ran++;
}

static void run_all(void)
{
    while (rig->ran < rig->launched) {
        unsigned before = rig->ran;

        run_one();
        CHECK_EQ(rig->ran, before + 1);
    }
}

static void lose_device(void)
{
    strcpy(rig->dev.lost_text, "the process is exiting");
    atomic_store(&rig->dev.lost, MB_ERR_DEVICE_LOST);
}

static void on_pause(const struct nvrm_os *os, unsigned turn)
{
    (void)os;
    (void)turn;
    rig->pauses++;
    nvrm_fake_gpu_run(&rig->fake);
    run_one();
    if (rig->lose)
        lose_device();
}

int __wrap_usleep(useconds_t us);

/* Between two tries to submit: not when the device is lost. */
int __wrap_usleep(useconds_t us)
{
    CHECK(us < 1000);
    CHECK_EQ(atomic_load(&rig->dev.lost), MB_OK);
    return 0;
}

static cu_result fake_launch(cu_function function, unsigned gx, unsigned gy, unsigned gz,
                             unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             cu_stream stream, void **params, void **extra)
{
    CHECK_EQ((uintptr_t)function, AWAIT);
    CHECK(gx * gy * gz * bx * by * bz == 1 && !shared && !stream && !extra);
    CHECK(rig->launched < LAUNCHES);
    rig->launch[rig->launched++] = *(const struct mb_await *)params[0];
    return CU_OK;
}

static cu_result fake_capturing(cu_stream stream, int *status)
{
    (void)stream;
    *status = CU_CAPTURE_NONE;
    return CU_OK;
}

/* The private stream's; its third answer is the one that counts, as one look is not enough. */
static cu_result fake_query(cu_stream stream)
{
    CHECK_EQ((uintptr_t)stream, PRIVATE);
    if (++rig->queries == rig->go_on_after)
        rig->stopped = false;
    if (rig->queries < QUERIES)
        return CU_NOT_READY;
    if (rig->lose_at_query)
        lose_device();
    return rig->context;
}

static cu_result fake_ctx_id(cu_context context, unsigned long long *id)
{
    CHECK(!context);
    *id = rig->dev.ctx_id;
    return CU_OK;
}

static cu_result fake_error_name(cu_result result, const char **name)
{
    *name = result == (cu_result)ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "another";
    return CU_OK;
}

static const struct mb_cuda_driver driver = {
    .ctx_id = fake_ctx_id,
    .error_name = fake_error_name,
    .launch = fake_launch,
    .stream_capturing = fake_capturing,
    .stream_query = fake_query,
};

/* ------------------------------------------------------------ the device */

static struct mb_pte leaf(uint32_t frame)
{
    return mb__cuda_expect(&rig->dev.space, true, (uint64_t)frame << MB_FRAME_SHIFT);
}

static struct nvrm_mem *make_memory(uint64_t bytes)
{
    struct nvrm_mem *m = NULL;

    CHECK_OK(mb__nvrm_mem_create(rig->client, NVRM_MEM_SYSMEM, bytes, &m));
    CHECK_OK(mb__nvrm_mem_map_cpu(m));
    CHECK_OK(mb__nvrm_mem_map_gpu(m, rig->dev.vas));
    memset((void *)(uintptr_t)m->cpu.addr, 0, bytes);
    return m;
}

static struct mb_pte *slot(uint32_t i)
{
    uint32_t page = i / MB_CUDA_LEAVES + (i / MB_CUDA_LEAVES > GAP);

    return (struct mb_pte *)(uintptr_t)rig->tables->cpu.addr + page * MB_CUDA_LEAVES +
           i % MB_CUDA_LEAVES;
}

static void make_window(void)
{
    struct mb_cuda_window *w = &rig->window;

    rig->tables = make_memory(TABLE_PAGES * 4096);
    w->pieces = PIECES;
    w->piece = rig->piece;
    w->cleared = rig->cleared;
    for (uint32_t i = 0; i < PIECES; i++)
        w->piece[i].control_va = rig->tables->va + 4096ull * (i + (i > GAP));
    rig->view = (struct mb_hw_view){.bytes = SLOTS * MB_FRAME_BYTES,
                                    .leaf_shift = MB_FRAME_SHIFT,
                                    .slot_bytes = 16,
                                    .clear_pfn = rig->dev.poison_pfn,
                                    .cookie = (uintptr_t)w};
    for (uint32_t i = 0; i < SLOTS; i++)
        *slot(i) = rig->want[i] = leaf(POISON);
    memset(rig->cleared, 1, SLOTS);
    memset(rig->want_cleared, 1, SLOTS);
}

static void set_up(void)
{
    struct mb_cuda *dev;

    rig = calloc(1, sizeof(*rig));
    CHECK(rig != NULL);
    rig->random = mb_test_seed();
    nvrm_fake_init(&rig->fake);
    rig->fake.os.pause = on_pause;
    struct nvrm_client_request request = {.os = &rig->fake.os,
                                          .version_text = nvrm_fake_version_text(&rig->fake),
                                          .select = NVRM_BY_MINOR,
                                          .minor = 5};
    CHECK_OK(mb__nvrm_client_open(&request, &rig->client));
    dev = &rig->dev;
    CHECK_OK(mb__nvrm_vas_create(rig->client, &dev->vas));
    rig->shared = make_memory(MB_FRAME_BYTES);
    dev->cu = &driver;
    dev->tables = MB_CUDA_ISOLATED;
    dev->rm = rig->client;
    dev->shared_rm = rig->shared;
    dev->control_va = (uintptr_t)rig->shared->cpu.addr - MB_FRAME_BYTES;
    dev->helper.engine = -1;
    dev->room_ns = guard_ns;
    dev->room_ask_ns = guard_ns;
    dev->private_stream = (cu_stream)(uintptr_t)PRIVATE;
    dev->await = (cu_function)(uintptr_t)AWAIT;
    dev->space = (struct mb_cuda_space){.fmt = MB_FMT_GMMU_V3, .kind = 6};
    dev->poison_pfn = (mb_pfn){POISON * (uint32_t)MB_FRAME_PFNS};
    dev->owned = calloc(FRAMES + MB_CUDA_OWNED_SLACK, 1);
    CHECK(dev->owned != NULL);
    dev->owned_frames = FRAMES;
    memset(dev->owned, 1, FRAMES);
    pthread_mutex_init(&dev->table_lock, NULL);
    rig->stream.dev = dev;
    rig->stream.timeline = &rig->timeline;
    rig->stream.timeline_dev = (uintptr_t)&rig->timeline;
    make_window();
}

static void tear_down(void)
{
    mb__cuda_queue_destroy(&rig->dev, rig->stream.queue);
    CHECK_EQ(rig->dev.overhead_bytes, 0);
    CHECK_EQ(rig->fake.bad_words, 0);
    mb__nvrm_mem_destroy(&rig->tables);
    mb__nvrm_mem_destroy(&rig->shared);
    mb__nvrm_client_close(&rig->client);
    CHECK_STR_EQ(nvrm_fake_left(&rig->fake), "");
    nvrm_fake_fini(&rig->fake);
    pthread_mutex_destroy(&rig->dev.table_lock);
    free(rig->dev.owned);
    free(rig);
}

/* ------------------------------------------------------------ batches */

static void add(enum mb_hw_cmd_kind kind)
{
    CHECK(rig->count < CMDS);
    rig->cmds[rig->count++] = (struct mb_hw_cmd){.kind = kind};
}

/* `count` slots from `first` on, all with one frame of chance, or cleared. */
static void add_leaves(uint32_t first, uint32_t count, bool clear)
{
    struct mb_hw_cmd *cmd = &rig->cmds[rig->count];

    add(MB_HW_LEAVES);
    cmd->leaves.view = &rig->view;
    cmd->leaves.first = first;
    cmd->leaves.count = count;
    cmd->leaves.pfns = clear ? NULL : &rig->pfns[first];
    cmd->leaves.tmpl = clear ? 0 : leaf(0).lo;
}

/* Frames of chance for every slot: what the pending batches hold was copied when they came. */
static void choose_frames(void)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        rig->pfns[i] = (mb_pfn){(uint32_t)mb_test_random_below(&rig->random, FRAMES) *
                                (uint32_t)MB_FRAME_PFNS};
}

/* A batch of `runs` runs that touch different slots, with its invalidate. */
static void make_runs(uint32_t runs, bool clear)
{
    rig->count = 0;
    choose_frames();
    for (uint32_t i = 0; i < runs; i++)
        add_leaves(2 * i % SLOTS, 1, clear);
    add(MB_HW_BARRIER);
    add(MB_HW_INVALIDATE);
    add(MB_HW_MEMBAR);
}

static enum mb_err send_batch(struct mb_hw_fence *done)
{
    return mb__cuda_isolated_submit(&rig->dev, &rig->stream, rig->cmds, rig->count, done);
}

/* What the batch does to tables and record. */
static void intend(void)
{
    for (unsigned c = 0; c < rig->count; c++) {
        const struct mb_hw_cmd *cmd = &rig->cmds[c];

        for (uint32_t i = 0; cmd->kind == MB_HW_LEAVES && i < cmd->leaves.count; i++) {
            const mb_pfn *pfns = cmd->leaves.pfns;

            rig->want[cmd->leaves.first + i] =
                leaf(pfns ? pfns[i].n / (uint32_t)MB_FRAME_PFNS : POISON);
            rig->want_cleared[cmd->leaves.first + i] = !pfns;
        }
    }
}

/* The tables' memory is as intended: each slot, and the page that no piece shows. */
static void check_tables(void)
{
    static const char zero[4096];

    for (uint32_t i = 0; i < SLOTS; i++) {
        CHECK_EQ(slot(i)->lo, rig->want[i].lo);
        CHECK_EQ(slot(i)->hi, rig->want[i].hi);
    }
    CHECK_MEM_EQ((const char *)(uintptr_t)rig->tables->cpu.addr + (GAP + 1) * 4096, zero, 4096);
    CHECK_MEM_EQ(rig->cleared, rig->want_cleared, SLOTS);
}

static void submit(void)
{
    struct mb_hw_fence done = {0};

    CHECK_OK(send_batch(&done));
    CHECK_PTR_EQ(done.stream, &rig->stream);
    CHECK_EQ(done.seq, rig->stream.seq);
    intend();
}

/* The batch is refused with `err`, and everything is as before. */
static void refuse(enum mb_err err)
{
    struct mb_hw_fence done = {0};
    uint64_t seq = rig->stream.seq, order = rig->stream.order;
    unsigned launched = rig->launched, releases;

    if (!rig->stopped)
        run_all();
    releases = rig->fake.releases;
    CHECK_EQ(send_batch(&done), err);
    CHECK(!done.stream);
    CHECK_EQ(rig->stream.seq, seq);
    CHECK_EQ(rig->stream.order, order);
    CHECK_EQ(rig->launched, launched);
    CHECK_MEM_EQ(rig->cleared, rig->want_cleared, SLOTS);
    if (rig->stopped)
        return;
    nvrm_fake_gpu_run(&rig->fake);
    CHECK_EQ(rig->fake.releases, releases);
    check_tables();
}

TEST(a_batch_of_any_number_of_runs_writes_its_slots_and_no_others)
{
    static const uint32_t runs[] = {1, 400, 1023, 3000};

    for (unsigned i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        set_up();
        make_runs(runs[i], false);
        submit();
        run_all();
        check_tables();
        CHECK_EQ(rig->fake.copies, runs[i]);
        CHECK_EQ(rig->fake.invalidates, 1);
        CHECK_EQ(atomic_load(&rig->timeline), 1);
        make_runs(runs[i], true); /* and clears them, behind what the stream did before */
        submit();
        CHECK(rig->launch[1].announce != 0);
        run_all();
        check_tables();
        tear_down();
    }
}

TEST(long_runs_over_tables_that_do_not_follow_each_other)
{
    set_up();
    choose_frames();
    add_leaves(5, SLOTS - 7, false);
    add(MB_HW_INVALIDATE);
    submit();
    run_all();
    check_tables();
    CHECK_EQ(rig->fake.copies, 2);
    tear_down();
}

TEST(the_largest_batch_is_sent_and_one_copy_more_is_refused)
{
    const char *said;
    unsigned most = 0;

    set_up();
    make_runs(3, false); /* there is a channel */
    submit();
    make_runs(CMDS - 3, true);
    refuse(MB_ERR_LIMIT);
    said = strstr(mb_error_detail(), "takes ");
    CHECK(said && sscanf(said, "takes %u copies", &most) == 1);
    CHECK(most > 14000 && most < CMDS - 3);
    make_runs(most + 1, true);
    refuse(MB_ERR_LIMIT);
    CHECK(strstr(mb_error_detail(), "split it"));
    make_runs(most, false);
    submit();
    run_all();
    check_tables();
    tear_down();
}

/* Each invalidate has a flush before it and a membar of its own: the most words that there are. */
TEST(a_batch_with_an_invalidate_after_each_run)
{
    enum { PAIRS = 5000 };

    set_up();
    choose_frames();
    add(MB_HW_MEMBAR);
    for (uint32_t i = 0; i < PAIRS; i++) {
        add_leaves(i, 1, false);
        add(MB_HW_INVALIDATE);
    }
    submit();
    run_all();
    check_tables();
    CHECK_EQ(rig->fake.invalidates, PAIRS);
    rig->count = 0;
    for (uint32_t i = 0; i < CMDS; i++)
        add(MB_HW_INVALIDATE);
    refuse(MB_ERR_LIMIT);
    CHECK(strstr(mb_error_detail(), "takes 0 copies"));
    tear_down();
}

/* Memory for words grows at powers of two: sizes around all of the smaller ones. */
TEST(words_are_counted_as_they_are_written)
{
    enum { PAIRS = 160, MORE = 3 };

    set_up();
    for (uint32_t n = 0; n < PAIRS * MORE; n++) {
        rig->count = 0;
        choose_frames();
        add(MB_HW_MEMBAR);
        for (uint32_t i = 0; i < n / MORE; i++) {
            add_leaves(i, 1, false);
            add(MB_HW_INVALIDATE);
        }
        for (uint32_t i = 0; i < n % MORE; i++)
            add_leaves(PAIRS + i, 1, false);
        submit();
        run_all();
    }
    check_tables();
    tear_down();
}

/* Words fill up with large batches, the ring with small ones: invalidates alone, which need no
 * staging buffers, as the fake driver has few objects. */
static void fill_up(uint32_t runs, unsigned batches)
{
    set_up();
    for (unsigned i = 0; i < batches; i++) {
        make_runs(runs, i % 3 == 2);
        submit();
    }
    CHECK(rig->pauses > 100);
    CHECK(rig->ran > 0 && rig->ran < rig->launched);
    run_all();
    check_tables();
    CHECK_EQ(atomic_load(&rig->timeline), batches);
    tear_down();
}

TEST(a_full_push_buffer_is_waited_for)
{
    fill_up(1000, 300);
}

TEST(a_full_ring_is_waited_for)
{
    fill_up(0, 6000);
}

/* Batches until the channel is full. The stream does not go on: they pend. */
static void pend(void)
{
    struct mb_hw_fence done;

    rig->stopped = true;
    rig->dev.room_ns = 1;
    for (;;) {
        make_runs(3000, false);
        if (send_batch(&done))
            break;
        intend();
    }
    CHECK(rig->launched > 2);
}

TEST(a_stream_that_does_not_go_on_is_busy_and_nothing_is_sent)
{
    set_up();
    make_runs(3000, false);
    submit();
    pend();
    make_runs(3000, true); /* no slot may count as cleared */
    refuse(MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), "too many batches are pending on this stream"));
    rig->stopped = false;
    rig->dev.room_ns = guard_ns;
    submit();
    run_all();
    check_tables();
    tear_down();
}

TEST(a_wait_for_room_ends_when_the_device_is_lost)
{
    set_up();
    pend();
    rig->dev.room_ns = guard_ns;
    rig->lose = true;
    refuse(MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "exiting"));
    tear_down();
}

/* The stream does not go on, and libcuda is asked at each turn of the wait. */
static void pend_and_ask(cu_result context, bool lose, const char *word)
{
    set_up();
    pend();
    rig->dev.room_ns = guard_ns;
    rig->dev.room_ask_ns = 1;
    rig->context = context;
    rig->lose_at_query = lose;
    refuse(MB_ERR_DEVICE_LOST);
    CHECK_EQ(rig->queries, QUERIES);
    CHECK(strstr(mb_error_detail(), word));
    CHECK_EQ(atomic_load(&rig->dev.lost), MB_ERR_DEVICE_LOST);
    tear_down();
}

TEST(a_wait_for_room_ends_when_the_context_has_failed)
{
    pend_and_ask((cu_result)ILLEGAL_ADDRESS, false, "waiting for the device");
}

TEST(a_wait_for_room_ends_when_the_device_is_lost_while_libcuda_is_asked)
{
    pend_and_ask(CU_NOT_READY, true, "exiting");
}

TEST(a_context_that_lives_is_waited_for)
{
    set_up();
    pend();
    rig->dev.room_ns = guard_ns;
    rig->dev.room_ask_ns = 1;
    rig->context = CU_NOT_READY;
    rig->go_on_after = QUERIES;
    make_runs(3000, true);
    submit();
    CHECK(rig->queries >= QUERIES);
    run_all();
    check_tables();
    tear_down();
}

TEST(without_memory_for_the_words_nothing_is_changed)
{
    set_up();
    make_runs(3, false);
    submit();
    run_all();
    make_runs(3000, true);
    fail_at(1, false);
    refuse(MB_ERR_HOST_MEMORY);
    CHECK_EQ(plan.hits, 1);
    CHECK(strstr(mb_error_detail(), "words"));
    fail_at(0, false);
    submit();
    run_all();
    check_tables();
    tear_down();
}
