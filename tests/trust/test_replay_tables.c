/* SPDX-License-Identifier: MIT */
/*
 * `moonbright replay --tables[=repair]`: an entry that somebody else clears during a replay is
 * found at its end, and repaired if that is asked for. It is a failure either way.
 */
#include <string.h>

#include "cli/cli.h"
#include "cli/replay.h"
#include "cli/trace/trace.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

enum { BLOCKS = 20 };

static bool harm; /* the next stitched block loses its first entry */

/* Clears the entry of the page behind the library's back. */
static void clear_entry(mb_device dev, uint64_t va)
{
    const struct mb_hw_ops *ops = dev->hw->ops;
    struct mb_hw_cmd cmds[2] = {{.kind = MB_HW_LEAVES, .leaves = {.count = 1}},
                                {.kind = MB_HW_BARRIER}};
    struct mb_hw_stream *stream;
    struct mb_hw_fence fence;
    mb_stream native;

    cmds[0].leaves.view = vm_peek_view(dev->vm, va, &cmds[0].leaves.first);
    CHECK(cmds[0].leaves.view);
    RT_OK(mb_device_sync(dev));
    RT_OK(ops->stream_create(dev->hw, &native));
    RT_OK(ops->stream_open(dev->hw, native, &stream));
    RT_OK(ops->submit(dev->hw, stream, cmds, 2));
    RT_OK(ops->fence_record(dev->hw, stream, &fence));
    RT_OK(ops->fence_wait_host(dev->hw, fence, 0));
    ops->stream_close(dev->hw, stream);
    RT_OK(ops->stream_destroy(dev->hw, native));
}

static enum mb_err take(mb_device dev, uint64_t bytes, mb_stream stream, void **out)
{
    struct mb_pointer_info info;
    enum mb_err err = mb_malloc_async(dev, bytes, stream, out);

    if (err || !harm)
        return err;
    RT_OK(mb_pointer_info(dev, *out, &info));
    if (info.stitched)
        clear_entry(dev, (uint64_t)(uintptr_t)*out);
    harm &= !info.stitched;
    return MB_OK;
}

/* The last block is made of every second of the others' frames. */
static struct trace_reader *trace(void)
{
    static char text[2048];
    struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *reader = NULL;
    char error[1024];
    size_t at = 0;

    for (unsigned i = 0; i < BLOCKS; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "a,%u,4194304,0\n", i);
    for (unsigned i = 0; i < BLOCKS; i += 2)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "f,%u,4194304,0\n", i);
    at += (size_t)snprintf(text + at, sizeof(text) - at, "a,99,16777216,0\n");
    if (trace_open_memory(text, at, "trace", &options, &reader, error, sizeof(error)))
        FAIL("%s", error);
    return reader;
}

static int replay(enum replay_tables tables, bool damaged, struct replay_result *out)
{
    const struct replay_policy policy = {
        .name = "test", .summary = "", .malloc = take, .free = mb_free_async};
    const struct replay_options options = {.policy = &policy,
                                           .config = "backend:sim,device_memory:128m",
                                           .tables = tables,
                                           .seed = 1,
                                           .quiet = true};
    struct trace_reader *reader = trace();
    int code;

    harm = damaged;
    code = replay_run(reader, "trace", &options, out);
    trace_close(reader);
    CHECK(!harm); /* a block was stitched */
    CHECK(out->stats.stitches > 0 || damaged);
    return code;
}

TEST(tables_as_the_record_says)
{
    static struct replay_result result;

    CHECK_EQ(replay(TABLES_OFF, false, &result), CLI_OK);
    CHECK_EQ(result.entries.entries, 0);
    CHECK_EQ(replay(TABLES_LOOK, false, &result), CLI_OK);
    CHECK(result.entries.entries > 0);
    CHECK_EQ(result.entries.wrong, 0);
    CHECK_EQ(replay(TABLES_REPAIR, false, &result), CLI_OK);
    CHECK_EQ(result.entries.repaired, 0);
}

TEST(an_entry_that_somebody_else_cleared)
{
    static struct replay_result result;

    CHECK_EQ(replay(TABLES_LOOK, true, &result), CLI_FAILED);
    CHECK_EQ(result.entries.wrong, 1);
    CHECK_EQ(result.entries.repaired, 0);
    CHECK(result.wrong && strstr(result.problem, "1 of"));
    CHECK_EQ(replay(TABLES_REPAIR, true, &result), CLI_FAILED);
    CHECK_EQ(result.entries.wrong, 1);
    CHECK_EQ(result.entries.repaired, 1);
    CHECK(result.wrong && strstr(result.problem, "1 of"));
}
