/* SPDX-License-Identifier: MIT */
/*
 * Every call of the backend fails once, at every use of it in a program; the program goes on, and
 * the validator finds every invariant intact. A failed call of ours must have changed nothing.
 */
#include <stdio.h>

#include "hw/fault.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

#ifdef MB_FAULT_INJECTION

enum {
    BLOCKS = 24,
    STEPS = 60,
};

struct program {
    mb_device dev;
    mb_stream streams[2];
    struct {
        void *ptr;
        mb_stream stream;
    } blocks[BLOCKS];
    unsigned failures;      /* calls that reported one */
    struct mb_stats before; /* the call under way */
};

/* A call that may fail: on failure the statistics that callers see must be what they were. */
static enum mb_err judge(struct program *program, enum mb_err err)
{
    struct mb_stats after;

    if (!err)
        return err;
    program->failures++;
    after = rt_stats(program->dev);
    CHECK_EQ(after.requested_bytes, program->before.requested_bytes);
    CHECK_EQ(after.live_blocks, program->before.live_blocks);
    return err;
}

#define MAY_FAIL(program, call)                                                                    \
    ((program)->before = rt_stats((program)->dev), judge((program), (call)))

static void drop(struct program *program, unsigned i)
{
    if (program->blocks[i].ptr &&
        !MAY_FAIL(program,
                  mb_free_async(program->dev, program->blocks[i].ptr, program->blocks[i].stream)))
        program->blocks[i].ptr = NULL;
}

static void mappings(struct program *program)
{
    uint64_t page = mb_page_bytes(program->dev);
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 4 * page};
    mb_mem mem = NULL;
    void *va = NULL;

    if (MAY_FAIL(program, mb_mem_reserve(program->dev, 8 * page, 0, &va)))
        return;
    if (!MAY_FAIL(program, mb_mem_create(program->dev, 4 * page, &mem))) {
        op.va = va;
        op.mem = mem;
        if (!MAY_FAIL(program, mb_mem_map_async(program->dev, &op, 1, program->streams[0]))) {
            (void)MAY_FAIL(program, mb_mem_sleep(program->dev, va, page, program->streams[0]));
            (void)MAY_FAIL(program, mb_mem_wake(program->dev, va, page, program->streams[0]));
            op.kind = MB_UNMAP;
            /* One failure per run: the second try works. */
            if (mb_mem_map_async(program->dev, &op, 1, program->streams[0]))
                RT_OK(mb_mem_map_async(program->dev, &op, 1, program->streams[0]));
        }
        RT_OK(mb_mem_release(program->dev, mem));
    }
    RT_OK(mb_mem_unreserve(program->dev, va, 8 * page));
}

static void step(struct program *program, uint64_t *state)
{
    unsigned i = (unsigned)mb_test_random_below(state, BLOCKS);
    mb_stream stream = program->streams[mb_test_random_below(state, 2)];
    uint64_t bytes = 1 + mb_test_random_below(state, 12 * RT_MIB);
    void *ptr = NULL;

    drop(program, i);
    if (program->blocks[i].ptr)
        return;
    if (MAY_FAIL(program, mb_malloc_async(program->dev, bytes, stream, &ptr)))
        return;
    program->blocks[i].ptr = ptr;
    program->blocks[i].stream = stream;
    (void)MAY_FAIL(program, mb_fill_async(program->dev, ptr, 8, 1, stream));
}

/* Runs the program with the n-th use of `op` failing; returns the uses it made. */
static uint64_t run(enum mb_hw_fault_op op, uint64_t n, unsigned *failures)
{
    struct program program = {.dev = rt_open("backend:sim,device_memory:96m,cache:no,seed:1")};
    uint64_t state = 4711, uses;
    mb_pool pool;
    void *ptr = NULL;

    program.streams[0] = rt_stream(program.dev);
    program.streams[1] = rt_stream(program.dev);
    mb__hw_fault_set(program.dev->hw, op, n, MB_ERR_DRIVER, false);
    for (unsigned i = 0; i < STEPS; i++)
        step(&program, &state);
    if (!MAY_FAIL(&program, mb_malloc(program.dev, 5 * RT_MIB, &ptr)))
        if (mb_free(program.dev, ptr))
            RT_OK(mb_free(program.dev, ptr));
    mappings(&program);
    RT_OK(mb_pool_default(program.dev, &pool));
    (void)MAY_FAIL(&program, mb_pool_trim(pool, 0));
    uses = mb__hw_fault_uses(program.dev->hw, op);
    mb__hw_fault_set(program.dev->hw, op, 0, MB_OK, false);
    RT_OK(mb_check(program.dev));
    for (unsigned i = 0; i < BLOCKS; i++)
        drop(&program, i);
    *failures += program.failures;
    rt_close(program.dev);
    return uses;
}

TEST(every_backend_call_may_fail_at_every_use)
{
    unsigned failures = 0, runs = 0;

    for (unsigned op = 0; op < MB_HW_FAULT_OPS; op++) {
        uint64_t uses = run((enum mb_hw_fault_op)op, 0, &failures);
        /* Long programs use some calls hundreds of times; every use of the first 40, then some. */
        for (uint64_t n = 1; n <= uses; n += n < 40 ? 1 : 7) {
            run((enum mb_hw_fault_op)op, n, &failures);
            runs++;
        }
        printf("%s: %llu uses\n", mb__hw_fault_name((enum mb_hw_fault_op)op),
               (unsigned long long)uses);
    }
    CHECK(runs > 100);
    CHECK(failures > 0);
}

#else

TEST(every_backend_call_may_fail_at_every_use)
{
    SKIP("this build has no fault injection; configure with -DMB_FAULTS=ON");
}

#endif
