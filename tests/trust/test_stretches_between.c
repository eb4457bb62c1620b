/* SPDX-License-Identifier: MIT */
/*
 * What happens around batches of several stretches: other threads on other streams that show the
 * same frames and destroy what they can, a fork, a free or a release in the moment of the
 * submission, a capture, a device that is lost.
 */
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

enum { FRAMES = 8, PAGES = 24 };

static struct mb_map_op op_of(enum mb_map_kind kind, char *va, unsigned page, unsigned pages,
                              mb_mem mem, unsigned index)
{
    return (struct mb_map_op){.kind = kind,
                              .prot = MB_PROT_READ_WRITE,
                              .va = va + page * 2 * RT_MIB,
                              .bytes = pages * 2 * RT_MIB,
                              .mem = mem,
                              .mem_offset = index * 2 * RT_MIB};
}

/* Addresses that show frames 0 to 3 of an object at pages 0 to 3. */
struct place {
    mb_device dev;
    mb_stream stream;
    mb_mem mem; /* frame i is filled with i + 1 */
    char *va;   /* of PAGES pages */
};

static struct place set_up(mb_device dev)
{
    struct place p = {.dev = dev, .stream = rt_stream(dev)};
    struct mb_map_op op;
    void *va = NULL;

    RT_OK(mb_mem_reserve(dev, PAGES * 2 * RT_MIB, 0, &va));
    p.va = va;
    RT_OK(mb_mem_create(dev, FRAMES * 2 * RT_MIB, &p.mem));
    op = op_of(MB_MAP, p.va, 0, FRAMES, p.mem, 0);
    RT_OK(mb_mem_map(dev, &op));
    for (unsigned i = 0; i < FRAMES; i++)
        RT_OK(mb_fill_async(dev, p.va + i * 2 * RT_MIB, 4096, i + 1, p.stream));
    op = op_of(MB_UNMAP, p.va, 4, 4, NULL, 0);
    RT_OK(mb_mem_map_async(dev, &op, 1, p.stream));
    return p;
}

/* One ends, two begin, one moves: behind it frames 4 to 7 stand at 8 to 11 and at 20 to 23. */
static unsigned there(const struct place *p, struct mb_map_op *ops)
{
    ops[0] = op_of(MB_UNMAP, p->va, 0, 4, NULL, 0);
    ops[1] = op_of(MB_MAP, p->va, 8, 4, p->mem, 4);
    ops[2] = op_of(MB_MAP, p->va, 20, 2, p->mem, 4);
    ops[3] = op_of(MB_MAP, p->va, 22, 2, p->mem, 6);
    return 4;
}

static unsigned back(const struct place *p, struct mb_map_op *ops)
{
    ops[0] = op_of(MB_UNMAP, p->va, 20, 4, NULL, 0);
    ops[1] = op_of(MB_MAP, p->va, 0, 4, p->mem, 0);
    ops[2] = op_of(MB_UNMAP, p->va, 8, 4, NULL, 0);
    return 3;
}

static enum mb_err verify(const struct place *p, unsigned page, unsigned frame)
{
    return mb_verify_async(p->dev, p->va + page * 2 * RT_MIB, 4096, frame + 1, p->stream);
}

static void verify_there(const struct place *p)
{
    for (unsigned i = 0; i < 4; i++) {
        RT_MUST(verify(p, 8 + i, 4 + i));
        RT_MUST(verify(p, 20 + i, 4 + i));
    }
}

static void verify_back(const struct place *p)
{
    for (unsigned i = 0; i < 4; i++)
        RT_MUST(verify(p, i, i));
}

/* The pages are as set_up() or back() left them. */
static void tear_down(struct place *p)
{
    struct mb_map_op op = op_of(MB_UNMAP, p->va, 0, 4, NULL, 0);

    verify_back(p);
    RT_OK(mb_mem_map_async(p->dev, &op, 1, p->stream));
    RT_OK(mb_mem_release(p->dev, p->mem));
    RT_OK(mb_mem_unreserve(p->dev, p->va, PAGES * 2 * RT_MIB));
    RT_OK(mb_stream_destroy(p->dev, p->stream));
}

/* ------------------------------------------------------------ threads */

enum { ROUNDS = 120 };

/* The other thread's frames at addresses of one's own, and a fresh object that lives in a batch. */
static void *rounds(void *user)
{
    struct place *p = user;
    struct mb_map_op ops[6];

    for (unsigned round = 0; round < ROUNDS; round++) {
        mb_mem fresh = NULL;
        unsigned count;

        RT_MUST(mb_mem_create(p->dev, 4 * RT_MIB, &fresh));
        count = there(p, ops);
        ops[count] = op_of(MB_MAP, p->va, 16, 2, fresh, 0);
        RT_MUST(mb_mem_map_async(p->dev, ops, count + 1, p->stream));
        RT_MUST(mb_mem_release(p->dev, fresh));
        RT_MUST(mb_fill_async(p->dev, p->va + 16 * 2 * RT_MIB, 4096, round, p->stream));
        verify_there(p);
        RT_MUST(mb_verify_async(p->dev, p->va + 16 * 2 * RT_MIB, 4096, round, p->stream));
        count = back(p, ops);
        ops[count] = op_of(MB_UNMAP, p->va, 16, 2, NULL, 0);
        RT_MUST(mb_mem_map_async(p->dev, ops, count + 1, p->stream));
        verify_back(p);
        if (round % 16 == 0)
            RT_MUST(mb_check(p->dev));
    }
    return NULL;
}

static void two_threads(const char *config)
{
    mb_device dev = rt_open(config);
    struct place first = set_up(dev), second = first;
    pthread_t thread[2];
    struct mb_map_op op;
    void *va = NULL;

    RT_OK(mb_mem_reserve(dev, PAGES * 2 * RT_MIB, 0, &va));
    second.va = va;
    second.stream = rt_stream(dev);
    op = op_of(MB_MAP, second.va, 0, 4, second.mem, 0);
    RT_OK(mb_stream_sync(dev, first.stream));
    RT_OK(mb_mem_map(dev, &op));
    CHECK(!pthread_create(&thread[0], NULL, rounds, &first));
    CHECK(!pthread_create(&thread[1], NULL, rounds, &second));
    for (unsigned i = 0; i < 2; i++)
        CHECK(!pthread_join(thread[i], NULL));
    RT_OK(mb_check_tables(dev, false, NULL));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map_async(dev, &op, 1, second.stream));
    RT_OK(mb_mem_unreserve(dev, second.va, PAGES * 2 * RT_MIB));
    RT_OK(mb_stream_destroy(dev, second.stream));
    tear_down(&first);
    rt_close(dev);
}

TEST(two_streams_show_the_same_frames)
{
    two_threads("backend:sim,device_memory:128m");
    two_threads("backend:sim,device_memory:128m,explore:yes");
    two_threads("backend:sim,device_memory:128m,policy:fresh,deferred:yes,explore:yes");
    two_threads("backend:sim,device_memory:128m,tables:isolated,explore:yes");
}

/* ------------------------------------------------------------ in the moment of the submission */

static const struct mb_hw_ops *real_ops;
static const struct place *during;
static pid_t child;
static pthread_t helper;
static enum mb_err helper_err[2];

/* What another thread does while the batch has been handed over and is not settled: it waits for
 * the lock, and then finds what the batch has made. */
static void *take_away(void *user)
{
    const struct place *p = user;

    helper_err[0] = mb_mem_release(p->dev, p->mem);
    helper_err[1] = mb_mem_unreserve(p->dev, p->va, PAGES * 2 * RT_MIB);
    return NULL;
}

static enum mb_err submit_with_thread(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                      const struct mb_hw_cmd *cmds, unsigned count)
{
    enum mb_err err = real_ops->submit(hw, stream, cmds, count);

    if (during && pthread_create(&helper, NULL, take_away, (void *)(uintptr_t)during))
        abort();
    during = NULL;
    return err;
}

static enum mb_err submit_with_fork(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                                    const struct mb_hw_cmd *cmds, unsigned count)
{
    enum mb_err err = real_ops->submit(hw, stream, cmds, count);
    struct mb_map_op ops[4];

    if (!during)
        return err;
    child = fork();
    if (!child) { /* the lock is held by a thread that it does not have */
        bool good = mb_mem_map_async(during->dev, ops, there(during, ops), during->stream) ==
                        MB_ERR_FORKED &&
                    mb_check(during->dev) == MB_ERR_FORKED;

        mb_close(during->dev);
        _exit(good ? 7 : 1);
    }
    during = NULL;
    return err;
}

static void with_submit(struct place *p, struct mb_hw_ops *ops)
{
    struct mb_map_op list[4];

    real_ops = p->dev->hw->ops;
    during = p;
    p->dev->hw->ops = ops;
    RT_OK(mb_mem_map_async(p->dev, list, there(p, list), p->stream));
    CHECK(!during);
}

TEST(what_a_batch_shows_is_released_before_it_settles)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_hw_ops ops = *dev->hw->ops;
    struct place p = set_up(dev);
    struct mb_map_op list[2] = {op_of(MB_UNMAP, p.va, 8, 4, NULL, 0),
                                op_of(MB_UNMAP, p.va, 20, 4, NULL, 0)};

    ops.submit = submit_with_thread;
    with_submit(&p, &ops);
    CHECK(!pthread_join(helper, NULL));
    dev->hw->ops = real_ops;
    CHECK_OK(helper_err[0]);
    CHECK_EQ(helper_err[1], MB_ERR_BUSY);
    RT_OK(mb_check(dev));
    verify_there(&p);
    RT_OK(mb_mem_map_async(dev, list, 2, p.stream));
    CHECK_EQ(rt_stats(dev).allocated_bytes, 0);
    RT_OK(mb_mem_unreserve(dev, p.va, PAGES * 2 * RT_MIB));
    RT_OK(mb_stream_destroy(dev, p.stream));
    rt_close(dev);
}

static struct mb_device *waits; /* whose call waits; NULL once it has */

static enum mb_err wait_without_lock(struct mb_hw_dev *hw, struct mb_hw_fence fence, uint64_t ns)
{
    if (waits && mb__trylock(&waits->lock)) {
        mb__unlock(&waits->lock);
        waits = NULL;
    }
    return real_ops->fence_wait_host(hw, fence, ns);
}

/* The pages may be a stream's that gets there only when another thread has done something. */
TEST(others_go_on_while_a_mapping_is_awaited)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_hw_ops ops = *dev->hw->ops;
    struct place p = set_up(dev);
    void *block = rt_malloc(dev, 4 * RT_MIB, p.stream);
    struct mb_map_op list[4] = {
        op_of(MB_MAP, p.va, 8, 4, p.mem, 4), op_of(MB_ALIAS, p.va, 12, 1, NULL, 0),
        op_of(MB_UNMAP, p.va, 12, 1, NULL, 0), op_of(MB_UNMAP, p.va, 8, 4, NULL, 0)};

    list[1].src = block; /* the general way; the others go the short one */
    real_ops = dev->hw->ops;
    ops.fence_wait_host = wait_without_lock;
    dev->hw->ops = &ops;
    for (unsigned i = 0; i < 4; i++) {
        waits = dev;
        RT_OK(mb_mem_map(dev, &list[i]));
        CHECK_PTR_EQ(waits, NULL);
    }
    dev->hw->ops = real_ops;
    RT_OK(mb_free_async(dev, block, p.stream));
    tear_down(&p);
    rt_close(dev);
}

TEST(a_fork_before_a_batch_settles)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_hw_ops ops = *dev->hw->ops;
    struct place p = set_up(dev);
    struct mb_map_op list[4];
    int status = 0;

    ops.submit = submit_with_fork;
    with_submit(&p, &ops);
    dev->hw->ops = real_ops;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    RT_OK(mb_check(dev));
    verify_there(&p);
    RT_OK(mb_mem_map_async(dev, list, back(&p, list), p.stream));
    tear_down(&p);
    rt_close(dev);
}

/* ------------------------------------------------------------ captures and losses */

TEST(a_batch_in_a_capture_is_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_sim_graph *graph = NULL;
    struct place p = set_up(dev);
    struct mb_map_op list[4];
    unsigned count = there(&p, list);

    RT_OK(mb_stream_sync(dev, p.stream));
    CHECK_OK(mb__sim_capture_begin(sim_of(dev), p.stream));
    CHECK_EQ(mb_mem_map_async(dev, list, count, p.stream), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "is being captured") != NULL);
    verify_back(&p);
    CHECK_OK(mb__sim_capture_end(sim_of(dev), p.stream, &graph));
    mb__sim_graph_free(graph);
    verify_back(&p);
    RT_OK(mb_mem_map_async(dev, list, count, p.stream));
    verify_there(&p);
    RT_OK(mb_mem_map_async(dev, list, back(&p, list), p.stream));
    tear_down(&p);
    rt_close(dev);
}

/* The device dies behind one batch: the next is refused, and nothing of it stays in the record. */
TEST(a_lost_device_takes_no_stretch)
{
    struct mb_sim_step step = {.kind = MB_SIM_ST, .va = {UINT64_C(0x7ffff0000000)}};
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct place p = set_up(dev);
    struct mb_map_op list[4], op = op_of(MB_UNMAP, p.va, 0, 1, NULL, 0);
    struct mb_pointer_info info;
    struct mb_hw_stream *stream;

    RT_OK(mb_mem_map_async(dev, list, there(&p, list), p.stream));
    RT_OK(mb_mem_map_async(dev, list, back(&p, list), p.stream));
    RT_OK(mb_stream_sync(dev, p.stream));
    RT_OK(sim_of(dev)->ops->stream_open(sim_of(dev), p.stream, &stream));
    RT_OK(mb__sim_kernel(sim_of(dev), stream, &step, 1, MB_SIM_ROGUE));
    CHECK_EQ(mb_device_sync(dev), MB_ERR_DEVICE_LOST);
    CHECK_EQ(mb_mem_map_async(dev, list, there(&p, list), p.stream), MB_ERR_DEVICE_LOST);
    CHECK_EQ(mb_mem_map_async(dev, &op, 1, p.stream), MB_ERR_DEVICE_LOST);
    RT_OK(mb_check(dev));
    RT_OK(mb_pointer_info(dev, p.va, &info));
    CHECK(mb_pointer_info(dev, p.va + 8 * 2 * RT_MIB, &info) != MB_OK || !info.bytes);
    mb_close(dev);
}
