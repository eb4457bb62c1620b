/* SPDX-License-Identifier: MIT */
/* The trace that a device writes: replayed, it asks for the same memory in the same order. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/runtime_rig.h"

enum {
    BLOCKS = 128,
    LINE = 256,
};

static const char *path_of(const char *name, char *out, size_t bytes)
{
    const char *dir = getenv("MB_BUILD_DIR");

    snprintf(out, bytes, "%s/%s.%ld.csv", dir ? dir : "/tmp", name, (long)getpid());
    return out;
}

static mb_device open_traced(const char *path, const char *more)
{
    char config[1024];

    snprintf(config, sizeof(config), "backend:sim,device_memory:512m,trace:%s%s", path, more);
    return rt_open(config);
}

static void work(mb_device dev, uint64_t *random, unsigned steps)
{
    void *blocks[BLOCKS] = {NULL};
    mb_stream streams[3] = {NULL, rt_stream(dev), rt_stream(dev)};

    while (steps--) {
        void **slot = &blocks[mb_test_random_below(random, BLOCKS)];
        mb_stream stream = streams[mb_test_random_below(random, 3)];

        if (!*slot) {
            *slot = rt_malloc(dev, mb_test_random_below(random, 3 << 20), stream);
        } else {
            RT_OK(mb_free_async(dev, *slot, stream));
            *slot = NULL;
        }
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        RT_OK(mb_free_async(dev, blocks[i], NULL));
}

/* Serves a csv trace; the lines are taken as this test's own reading of the format has them. */
static void serve(mb_device dev, const char *path)
{
    FILE *file = fopen(path, "r");
    void **blocks = calloc(1 << 16, sizeof(*blocks));
    char line[LINE];

    CHECK(file && blocks);
    while (fgets(line, sizeof(line), file)) {
        unsigned long long id, bytes, stream;
        char op;

        if (*line == '#')
            continue;
        CHECK_EQ(sscanf(line, "%c,%llu,%llu,%llx", &op, &id, &bytes, &stream), 4);
        CHECK(id < 1 << 16);
        if (op == 'a') {
            CHECK_PTR_EQ(blocks[id], NULL);
            blocks[id] = rt_malloc(dev, bytes, NULL);
        } else {
            CHECK_EQ(op, 'f');
            CHECK(blocks[id] != NULL);
            RT_OK(mb_free_async(dev, blocks[id], NULL));
            blocks[id] = NULL;
        }
    }
    fclose(file);
    free(blocks);
}

/* What the command says a trace needs at its peak; skips the case if it is not built. */
static uint64_t replayed_peak(const char *path)
{
    static const char key[] = "\"peak_allocated_bytes\":";
    const char *program = getenv("MB_MOONBRIGHT"), *at;
    char command[1200], line[8192] = "";
    FILE *pipe;

    if (!program || access(program, X_OK))
        SKIP("the command is not built (MB_MOONBRIGHT)");
    snprintf(command, sizeof(command), "'%s' replay --backend sim --json '%s'", program, path);
    pipe = popen(command, "r");
    CHECK(pipe && fgets(line, sizeof(line), pipe));
    CHECK_EQ(pclose(pipe), 0);
    at = strstr(line, key);
    CHECK(at != NULL);
    return strtoull(at + sizeof(key) - 1, NULL, 10);
}

/* First in the file: a fork of a process that has opened a device may open none. */
TEST(an_exit_without_close_leaves_a_complete_trace)
{
    char path[512], line[LINE], last[LINE] = "";
    pid_t child;
    int status = 0;
    FILE *file;

    path_of("exit", path, sizeof(path));
    child = fork();
    if (child == 0) {
        char config[1024];
        mb_device dev = NULL;
        void *ptr = NULL;

        snprintf(config, sizeof(config), "backend:sim,device_memory:256m,trace:%s", path);
        exit(mb_open(0, config, &dev) || mb_malloc_async(dev, 4242, NULL, &ptr));
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof(line), file))
        memcpy(last, line, sizeof(last));
    fclose(file);
    CHECK_STR_EQ(last, "a,1,4242,0\n");
    unlink(path);
}

TEST(a_written_trace_served_again_has_the_same_peaks)
{
    char path[512];
    mb_device dev = open_traced(path_of("peaks", path, sizeof(path)), "");
    uint64_t random = mb_test_seed();
    struct mb_stats first, again;

    work(dev, &random, 5000);
    first = rt_stats(dev);
    rt_close(dev);
    dev = rt_open("backend:sim,device_memory:512m");
    serve(dev, path);
    again = rt_stats(dev);
    CHECK_EQ(again.requested_peak_bytes, first.requested_peak_bytes);
    CHECK_EQ(again.allocated_peak_bytes, first.allocated_peak_bytes);
    CHECK_EQ(again.malloc_calls, first.malloc_calls);
    CHECK_EQ(again.free_calls, first.free_calls);
    rt_close(dev);
    CHECK_EQ(replayed_peak(path), first.requested_peak_bytes);
    unlink(path);
}

TEST(the_rmm_format_too)
{
    char path[512];
    mb_device dev = open_traced(path_of("rmm", path, sizeof(path)), ",trace_format:rmm");
    uint64_t random = mb_test_seed() + 1;
    struct mb_stats stats;
    void *ptr = NULL;
    char line[LINE];
    bool failure = false;
    FILE *file;

    CHECK_EQ(mb_malloc_async(dev, RT_GIB, NULL, &ptr), MB_ERR_NO_MEMORY);
    work(dev, &random, 2000);
    stats = rt_stats(dev);
    rt_close(dev);
    file = fopen(path, "r");
    CHECK(file && fgets(line, sizeof(line), file));
    CHECK_STR_EQ(line, "Thread,Time,Action,Pointer,Size,Stream\n");
    while (fgets(line, sizeof(line), file))
        failure |= strstr(line, ",allocate failure,0x0,1073741824,0x0\n") != NULL;
    fclose(file);
    CHECK(failure);
    CHECK_EQ(replayed_peak(path), stats.requested_peak_bytes);
    unlink(path);
}

TEST(realloc_is_a_free_and_a_malloc)
{
    char path[512];
    mb_device dev = open_traced(path_of("realloc", path, sizeof(path)), "");
    void *ptr = rt_malloc(dev, 100000, NULL), *wall = rt_malloc(dev, 512, NULL), *grown = NULL;
    struct mb_stats stats;

    RT_OK(mb_device_sync(dev));
    RT_OK(mb_realloc(dev, ptr, 50000, &ptr));
    RT_OK(mb_realloc(dev, ptr, 9000000, &grown));
    CHECK_EQ(mb_realloc(dev, grown, RT_GIB, &grown), MB_ERR_NO_MEMORY);
    RT_OK(mb_free(dev, grown));
    RT_OK(mb_free(dev, wall));
    stats = rt_stats(dev);
    rt_close(dev);
    CHECK_EQ(replayed_peak(path), stats.requested_peak_bytes);
    unlink(path);
}

struct worker {
    mb_device dev;
    uint64_t random;
    void **slots; /* shared by all; exchanged atomically */
};

/* Blocks go from thread to thread: each takes what another left and frees it. */
static void *churn(void *opaque)
{
    struct worker *worker = opaque;

    for (unsigned i = 0; i < 4000; i++) {
        uint64_t slot = mb_test_random_below(&worker->random, 32);
        void *ptr = NULL;

        if (mb_malloc_async(worker->dev, 1 + mb_test_random_below(&worker->random, 8000), NULL,
                            &ptr))
            abort();
        ptr = __atomic_exchange_n(&worker->slots[slot], ptr, __ATOMIC_ACQ_REL);
        if (mb_free_async(worker->dev, ptr, NULL))
            abort();
    }
    return NULL;
}

TEST(threads_write_one_order_that_can_be_served)
{
    char path[512];
    mb_device dev = open_traced(path_of("threads", path, sizeof(path)), "");
    void *slots[32] = {NULL};
    struct worker workers[4];
    pthread_t threads[4];

    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (struct worker){dev, mb_test_seed() + i, slots};
        CHECK_EQ(pthread_create(&threads[i], NULL, churn, &workers[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < 32; i++)
        RT_OK(mb_free_async(dev, slots[i], NULL));
    rt_close(dev);
    dev = rt_open("backend:sim,device_memory:512m");
    serve(dev, path);
    CHECK_EQ(rt_stats(dev).malloc_calls, 16000);
    rt_close(dev);
    unlink(path);
}

TEST(files_that_cannot_be_used_are_refused_at_open)
{
    char path[512], config[1024];
    mb_device dev = open_traced(path_of("busy", path, sizeof(path)), ""), other = NULL;
    void *ptr = rt_malloc(dev, 1000, NULL);

    snprintf(config, sizeof(config), "backend:sim,device_memory:256m,trace:%s", path);
    CHECK_EQ(mb_open(1, config, &other), MB_ERR_BUSY);
    CHECK(strstr(mb_error_detail(), "%d"));
    CHECK_EQ(mb_open(1, "backend:sim,device_memory:256m,trace:/nonexistent/x", &other), MB_ERR_IO);
    CHECK_EQ(mb_open(1, "backend:sim,device_memory:256m,trace:x%q", &other), MB_ERR_CONFIG);
    CHECK_EQ(mb_open(1, "backend:sim,trace_format:json", &other), MB_ERR_CONFIG);
    CHECK_PTR_EQ(other, NULL);
    RT_OK(mb_free(dev, ptr));
    rt_close(dev);
    CHECK_EQ(replayed_peak(path), 1000);
    unlink(path);
}
