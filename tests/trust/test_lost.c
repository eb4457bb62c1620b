/* SPDX-License-Identifier: MIT */
/*
 * Completions that never come, queues that wait for each other, devices that die: every call ends,
 * with an error that has a text, the host's state stays consistent, and the process can go on with
 * a new device.
 */
#include <string.h>

#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

static struct mb_hw_stream *hw_stream(mb_device dev, mb_stream native)
{
    struct mb_hw_stream *stream;

    RT_OK(sim_of(dev)->ops->stream_open(sim_of(dev), native, &stream));
    return stream;
}

/* From here on the stream waits for the host to open gate 1. */
static void gate(mb_device dev, mb_stream stream)
{
    RT_OK(mb__sim_sem_wait(sim_of(dev), hw_stream(dev, stream), 1, 1));
}

static void open_gate(mb_device dev)
{
    mb__sim_sem_host(sim_of(dev), 1, 1);
}

/* A request that could only be met by memory whose stream never gets there gives up after wait_ms.
 * */
TEST(request_gives_up_and_succeeds_later)
{
    static const char *const configs[] = {"", ",policy:fresh", ",driver_home:yes",
                                          ",tables:isolated"};

    for (unsigned i = 0; i < 4; i++) {
        char config[128];
        mb_device dev;
        mb_stream stuck, other;
        void *block, *second = NULL;
        enum mb_err err;

        snprintf(config, sizeof(config), "backend:sim,device_memory:64m,wait_ms:1%s", configs[i]);
        dev = rt_open(config);
        stuck = rt_stream(dev);
        other = rt_stream(dev);
        block = rt_malloc(dev, 48 * RT_MIB, stuck);
        gate(dev, stuck);
        rt_fill(dev, block, 48 * RT_MIB, 1, stuck);
        RT_OK(mb_free_async(dev, block, stuck));
        RT_OK(mb_pool_set(dev->default_pool, MB_POOL_REUSE_INTERNAL_DEPS, 0));
        err = mb_malloc_async(dev, 40 * RT_MIB, other, &second);
        CHECK(err == MB_ERR_NO_MEMORY || err == MB_ERR_TIMEOUT);
        CHECK(mb_error_detail()[0]);
        CHECK_PTR_EQ(second, NULL);
        RT_OK(mb_check(dev));
        open_gate(dev);
        RT_OK(mb_malloc_async(dev, 40 * RT_MIB, other, &second));
        rt_fill(dev, second, 40 * RT_MIB, 2, other);
        rt_verify(dev, second, 40 * RT_MIB, 2, other);
        RT_OK(mb_free_async(dev, second, other));
        rt_close(dev);
    }
}

static const struct mb_hw_ops *real_ops;
static mb_pool doomed;

/* What another thread does while a request waits without the lock. */
static enum mb_err destroy_and_wait(struct mb_hw_dev *hw, struct mb_hw_fence fence, uint64_t ns)
{
    if (doomed)
        RT_OK(mb_pool_destroy(doomed));
    doomed = NULL;
    return real_ops->fence_wait_host(hw, fence, ns);
}

/* A pool that holds nothing may go while a request of it waits. */
TEST(pool_is_destroyed_while_a_request_waits)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream stream = rt_stream(dev), other = rt_stream(dev);
    struct mb_hw_ops ops = *dev->hw->ops;
    mb_pool pool = NULL, again = NULL;
    void *block = rt_malloc(dev, 48 * RT_MIB, stream), *ptr = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_REUSE_INTERNAL_DEPS, 0));
    gate(dev, stream);
    RT_OK(mb_free_async(dev, block, stream));
    real_ops = dev->hw->ops;
    ops.fence_wait_host = destroy_and_wait;
    dev->hw->ops = &ops;
    doomed = pool;
    CHECK_EQ(mb_pool_malloc_async(pool, 40 * RT_MIB, other, &ptr), MB_ERR_INVALID);
    dev->hw->ops = real_ops;
    CHECK_PTR_EQ(doomed, NULL);
    CHECK_PTR_EQ(ptr, NULL);
    open_gate(dev);
    RT_OK(mb_pool_create(dev, &again));
    RT_OK(mb_pool_malloc_async(again, 40 * RT_MIB, other, &ptr));
    RT_OK(mb_free_async(dev, ptr, other));
    RT_OK(mb_pool_destroy(again));
    rt_close(dev);
}

/* Waiting for what nobody will ever signal is named, not waited for. */
TEST(synchronize_names_who_waits)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream stuck = rt_stream(dev);

    gate(dev, stuck);
    CHECK_EQ(mb_stream_sync(dev, stuck), MB_ERR_DEADLOCK);
    CHECK(strstr(mb_error_detail(), "semaphore 1") != NULL);
    CHECK_EQ(mb_device_sync(dev), MB_ERR_DEADLOCK);
    RT_OK(mb_check(dev));
    open_gate(dev);
    RT_OK(mb_device_sync(dev));
    rt_close(dev);
}

/* Closing a device with work that can never end. */
TEST(close_with_a_stuck_stream)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    mb_stream stuck = rt_stream(dev);
    void *block = rt_malloc(dev, 4 * RT_MIB, stuck);

    gate(dev, stuck);
    rt_fill(dev, block, 4 * RT_MIB, 1, stuck);
    RT_OK(mb_free_async(dev, block, stuck));
    mb_close(dev);
    dev = rt_open("backend:sim,device_memory:64m");
    rt_close(dev);
}

/* ------------------------------------------------------------ a dead context */

static void kill_device(mb_device dev, mb_stream stream)
{
    struct mb_sim_step step = {.kind = MB_SIM_ST, .va = {UINT64_C(0x7ffff0000000)}};

    RT_OK(mb__sim_kernel(sim_of(dev), hw_stream(dev, stream), &step, 1, MB_SIM_ROGUE));
    CHECK_EQ(mb_device_sync(dev), MB_ERR_DEVICE_LOST);
}

/* Every call of the interface on a lost device: what needs the device says that it is lost. */
static void call_everything(mb_device dev, mb_stream stream, void *block, mb_mem mem, void *va,
                            unsigned *refused)
{
    struct mb_map_op op = {
        .kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .va = va, .bytes = 2 * RT_MIB, .mem = mem};
    struct mb_pointer_info info;
    struct mb_stats stats;
    void *ptr = NULL;
    mb_event event = NULL;
    mb_stream created = NULL;
    mb_pool pool = NULL;
    mb_mem made = NULL;
    enum mb_err errs[] = {
        mb_malloc(dev, 40 * RT_MIB, &ptr),
        mb_malloc_async(dev, 40 * RT_MIB, stream, &ptr),
        mb_realloc(dev, block, 20 * RT_MIB, &block),
        mb_record_stream(dev, block, stream),
        mb_fill_async(dev, block, 4096, 1, stream),
        mb_verify_async(dev, block, 4096, 1, stream),
        mb_copy_async(dev, block, (char *)block + 4096, 4096, stream),
        mb_mem_map_async(dev, &op, 1, stream),
        mb_mem_map(dev, &op),
        mb_mem_sleep(dev, va, 2 * RT_MIB, stream),
        mb_mem_wake(dev, va, 2 * RT_MIB, stream),
        mb_mem_create(dev, 40 * RT_MIB, &made),
        mb_event_create(dev, &event),
        mb_event_record(dev, event, stream),
        mb_stream_wait_event(dev, stream, event),
        mb_stream_create(dev, &created),
        mb_pool_create(dev, &pool),
        mb_pool_trim(dev->default_pool, 0),
        mb_stream_sync(dev, stream),
        mb_device_sync(dev),
        mb_pointer_info(dev, block, &info),
        mb_stats_get(dev, &stats),
        mb_check_tables(dev, true, NULL),
        mb_free_async(dev, block, stream),
    };

    for (unsigned i = 0; i < sizeof(errs) / sizeof(errs[0]); i++) {
        if (errs[i] == MB_ERR_DEVICE_LOST)
            ++*refused;
        else if (errs[i] != MB_OK && errs[i] != MB_ERR_NOT_MAPPED && errs[i] != MB_ERR_MAPPED &&
                 errs[i] != MB_ERR_INVALID && errs[i] != MB_ERR_NO_MEMORY &&
                 errs[i] != MB_ERR_NOT_FOUND)
            FAIL("call %u on a lost device: %s", i, mb_error_name(errs[i]));
    }
}

TEST(lost_device_refuses_and_a_new_one_works)
{
    static const char *const configs[] = {"",
                                          ",policy:fresh,deferred:yes",
                                          ",driver_home:yes",
                                          ",tables:isolated",
                                          ",model:mi210",
                                          ",tables:driver"};

    for (unsigned i = 0; i < 6; i++) {
        char config[128];
        mb_device dev;
        mb_stream stream;
        mb_mem mem;
        void *block, *va;
        unsigned refused = 0;

        snprintf(config, sizeof(config), "backend:sim,device_memory:128m%s", configs[i]);
        dev = rt_open(config);
        stream = rt_stream(dev);
        block = rt_malloc(dev, 8 * RT_MIB, stream);
        RT_OK(mb_mem_create(dev, 2 * RT_MIB, &mem));
        RT_OK(mb_mem_reserve(dev, 4 * RT_MIB, 0, &va));
        kill_device(dev, stream);
        CHECK(strstr(mb_error_detail(), "fatal MMU fault") != NULL);
        call_everything(dev, stream, block, mem, va, &refused);
        CHECK(refused >= 8);
        RT_OK(mb_check(dev));
        mb_close(dev);
        CHECK_EQ(mb_device_sync(dev), MB_ERR_INVALID);
        dev = rt_open(config);
        block = rt_malloc(dev, 8 * RT_MIB, NULL);
        rt_fill(dev, block, 8 * RT_MIB, 3, NULL);
        rt_verify(dev, block, 8 * RT_MIB, 3, NULL);
        RT_OK(mb_free(dev, block));
        rt_close(dev);
    }
}

/* All streams of isolated tables behind one helper queue: the deadlock is named, the device can be
 * closed. */
TEST(helper_queue_that_waits_for_itself)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,tables:isolated");
    mb_stream a = rt_stream(dev), b = rt_stream(dev);
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 2 * RT_MIB};
    mb_mem mem;
    void *va;

    mb__sim_set_mutants(sim_of(dev), MB_SIM_SHARED_QUEUE);
    RT_OK(mb_mem_create(dev, 2 * RT_MIB, &mem));
    RT_OK(mb_mem_reserve(dev, 8 * RT_MIB, 0, &va));
    op.mem = mem;
    op.va = va;
    RT_OK(mb__sim_sem_wait(sim_of(dev), hw_stream(dev, a), 5, 1));
    RT_OK(mb_mem_map_async(dev, &op, 1, a));
    op.va = (char *)va + 4 * RT_MIB;
    RT_OK(mb_mem_map_async(dev, &op, 1, b));
    RT_OK(mb__sim_sem_set(sim_of(dev), hw_stream(dev, b), 5, 1));
    CHECK_EQ(mb_device_sync(dev), MB_ERR_DEADLOCK);
    CHECK(strstr(mb_error_detail(), "helper queue") != NULL);
    RT_OK(mb_check(dev));
    mb_close(dev);
}
