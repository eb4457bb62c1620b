/* SPDX-License-Identifier: MIT */
/* Snapshots: python's pickle and the command's own reader read them, and they hold what is true. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime_rig.h"

enum {
    BLOCKS = 64,
};

/* A path in the build directory, for one process. */
static const char *path_of(const char *name, char *out, size_t bytes)
{
    const char *dir = getenv("MB_BUILD_DIR");

    snprintf(out, bytes, "%s/%s.%ld.pickle", dir ? dir : "/tmp", name, (long)getpid());
    return out;
}

static void judge(mb_device dev, const char *path, bool events)
{
    struct mb_stats stats = rt_stats(dev);
    const char *source = getenv("MB_SOURCE_DIR");
    char command[1024];

    snprintf(command, sizeof(command),
             "python3 '%s/tests/unit/snapshot_check.py' '%s' %llu %llu %d", source ? source : ".",
             path, (unsigned long long)stats.allocated_bytes,
             (unsigned long long)stats.requested_bytes, events);
    CHECK_EQ(system(command), 0);
}

/* Random blocks on two streams of a device so small that many are stitched. */
static void work(mb_device dev, uint64_t *random, void **blocks, unsigned steps)
{
    mb_stream streams[2] = {NULL, rt_stream(dev)};

    while (steps--) {
        void **slot = &blocks[mb_test_random_below(random, BLOCKS)];
        mb_stream stream = streams[mb_test_random_below(random, 2)];
        uint64_t bytes = mb_test_random_below(random, 4) ? 1 + mb_test_random_below(random, 9 << 20)
                                                         : mb_test_random_below(random, 5000);

        if (!*slot) {
            enum mb_err err = mb_malloc_async(dev, bytes, stream, slot);

            CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
        } else if (mb_test_random_below(random, 8)) {
            RT_OK(mb_free_async(dev, *slot, stream));
            *slot = NULL;
        } else {
            enum mb_err err;

            RT_OK(mb_device_sync(dev));
            err = mb_realloc(dev, *slot, bytes, slot);
            CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
        }
    }
    RT_OK(mb_stream_destroy(dev, streams[1]));
}

static void free_all(mb_device dev, void **blocks)
{
    RT_OK(mb_device_sync(dev));
    for (unsigned i = 0; i < BLOCKS; i++)
        RT_OK(mb_free(dev, blocks[i]));
}

TEST(segments_and_history_are_one_consistent_story)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,history:100000");
    uint64_t random = mb_test_seed();
    void *blocks[BLOCKS] = {NULL};
    char path[512];

    path_of("history", path, sizeof(path));
    for (unsigned round = 0; round < 6; round++) {
        work(dev, &random, blocks, 250);
        RT_OK(mb_snapshot(dev, path));
        judge(dev, path, true);
    }
    CHECK(rt_stats(dev).stitches > 0);
    free_all(dev, blocks);
    RT_OK(mb_snapshot(dev, path));
    judge(dev, path, true);
    rt_close(dev);
    unlink(path);
}

/* PyTorch's own reader: what only a viewer would stumble over. */
TEST(pytorch_opens_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,history:100000");
    uint64_t random = mb_test_seed() + 2;
    void *blocks[BLOCKS] = {NULL};
    const char *source = getenv("MB_SOURCE_DIR");
    char path[512], command[1024];
    int status;

    path_of("viewer", path, sizeof(path));
    work(dev, &random, blocks, 400);
    RT_OK(mb_snapshot(dev, path));
    snprintf(command, sizeof(command), "python3 '%s/tests/unit/snapshot_viewer.py' '%s' %llu",
             source ? source : ".", path, (unsigned long long)rt_stats(dev).allocated_bytes);
    status = system(command);
    free_all(dev, blocks);
    rt_close(dev);
    unlink(path);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        SKIP("no PyTorch here; MB_TORCH_PYTHON=path of an interpreter that has it");
    CHECK_EQ(WEXITSTATUS(status), 0);
}

TEST(a_short_history_keeps_the_last_events)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m,history:50");
    uint64_t random = mb_test_seed() + 1;
    void *blocks[BLOCKS] = {NULL};
    char path[512];

    path_of("short", path, sizeof(path));
    work(dev, &random, blocks, 500);
    RT_OK(mb_snapshot(dev, path));
    judge(dev, path, true);
    free_all(dev, blocks);
    rt_close(dev);
    unlink(path);
}

TEST(without_a_history_segments_are_there)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,check:redzone");
    void *ptr = rt_malloc(dev, 3000000, NULL), *other = rt_malloc(dev, 0, NULL);
    char path[512];

    path_of("plain", path, sizeof(path));
    RT_OK(mb_snapshot(dev, path));
    RT_OK(mb_free(dev, ptr));
    RT_OK(mb_free(dev, other));
    RT_OK(mb_snapshot(dev, path));
    judge(dev, path, false);
    CHECK_EQ(mb_snapshot(dev, "/nonexistent/file"), MB_ERR_IO);
    CHECK_EQ(mb_snapshot(dev, ""), MB_ERR_INVALID);
    CHECK_EQ(access("/nonexistent/file", F_OK), -1);
    rt_close(dev);
    unlink(path);
}

static uint64_t member(const char *json, const char *key)
{
    const char *at = strstr(json, key);

    CHECK(at != NULL);
    return strtoull(at + strlen(key), NULL, 10);
}

TEST(replay_reads_the_history)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,history:1000");
    const char *program = getenv("MB_MOONBRIGHT");
    void *first = rt_malloc(dev, 10 << 20, NULL), *second;
    char path[512], command[1200], line[8192];
    FILE *pipe;

    if (!program || access(program, X_OK))
        SKIP("the command is not built (MB_MOONBRIGHT)");
    second = rt_malloc(dev, 777, NULL);
    RT_OK(mb_free_async(dev, first, NULL));
    first = rt_malloc(dev, 5 << 20, NULL);
    path_of("replay", path, sizeof(path));
    RT_OK(mb_snapshot(dev, path));
    snprintf(command, sizeof(command), "'%s' replay --backend sim --json '%s'", program, path);
    pipe = popen(command, "r");
    CHECK(pipe && fgets(line, sizeof(line), pipe));
    CHECK_EQ(pclose(pipe), 0);
    CHECK_EQ(member(line, "\"peak_allocated_bytes\":"), (10 << 20) + 777);
    CHECK_EQ(member(line, "\"malloc_calls\":"), 3);
    RT_OK(mb_free(dev, first));
    RT_OK(mb_free(dev, second));
    rt_close(dev);
    unlink(path);
}
