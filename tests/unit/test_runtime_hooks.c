/* SPDX-License-Identifier: MIT */
/* Event hooks: each kind arrives with what it is about, and no lock is held; NVTX ranges. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "support/runtime_rig.h"

/* What a hook saw. */
struct seen {
    mb_device dev;
    unsigned count[MB_HOOK_REMAP + 1];
    struct mb_hook_event last[MB_HOOK_REMAP + 1];
    uint64_t time_us;
    void *inner; /* a block that the hook itself made */
    bool allocate;
};

/* Calls the library, which would stand still if a lock were held. */
static void look(void *user, const struct mb_hook_event *event)
{
    struct seen *seen = user;
    struct mb_stats stats;

    seen->count[event->kind]++;
    seen->last[event->kind] = *event;
    if (event->time_us < seen->time_us || mb_stats_get(seen->dev, &stats) || mb_check(seen->dev))
        abort();
    seen->time_us = event->time_us;
    if (seen->allocate && event->kind == MB_HOOK_MALLOC) {
        seen->allocate = false;
        if (mb_malloc_async(seen->dev, 99, NULL, &seen->inner))
            abort();
    }
}

/* A synchronize above the release threshold gives frames back, and says so before it returns. */
TEST(what_a_stream_sync_gives_back_is_told_by_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct seen seen = {.dev = dev};
    mb_stream stream = rt_stream(dev);
    mb_pool pool = NULL;

    RT_OK(mb_pool_default(dev, &pool));
    RT_OK(mb_pool_set(pool, MB_POOL_RELEASE_THRESHOLD, 0));
    RT_OK(mb_set_event_hook(dev, look, &seen));
    RT_OK(mb_free_async(dev, rt_malloc(dev, 60 * RT_MIB, stream), stream));
    RT_OK(mb_stream_sync(dev, stream));
    CHECK(seen.count[MB_HOOK_TRIM] >= 1);
    RT_OK(mb_set_event_hook(dev, NULL, NULL));
    RT_OK(mb_stream_destroy(dev, stream));
    rt_close(dev);
}

TEST(every_kind_arrives)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct seen seen = {.dev = dev};
    mb_stream stream = rt_stream(dev);
    char *blocks[4], *whole;
    void *va = NULL;
    mb_mem mem = NULL;
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 4 * RT_MIB};

    RT_OK(mb_set_event_hook(dev, look, &seen));
    blocks[0] = rt_malloc(dev, 1234, stream);
    CHECK_EQ(seen.count[MB_HOOK_MALLOC], 1);
    CHECK_PTR_EQ(seen.last[MB_HOOK_MALLOC].ptr, blocks[0]);
    CHECK_EQ(seen.last[MB_HOOK_MALLOC].bytes, 1234);
    CHECK_PTR_EQ(seen.last[MB_HOOK_MALLOC].stream, stream);
    CHECK(seen.count[MB_HOOK_GROW] >= 1);
    RT_OK(mb_free_async(dev, blocks[0], stream));
    CHECK_EQ(seen.last[MB_HOOK_FREE].bytes, 1234);
    CHECK_PTR_EQ(seen.last[MB_HOOK_FREE].ptr, blocks[0]);
    /* Every other one of four blocks that fill the device, then what is free in all. */
    for (unsigned i = 0; i < 4; i++)
        blocks[i] = rt_malloc(dev, 60 * RT_MIB, stream);
    RT_OK(mb_free_async(dev, blocks[0], stream));
    RT_OK(mb_free_async(dev, blocks[2], stream));
    whole = rt_malloc(dev, 116 * RT_MIB, stream);
    CHECK_EQ(seen.count[MB_HOOK_STITCH], 1);
    CHECK_PTR_EQ(seen.last[MB_HOOK_STITCH].ptr, whole);
    CHECK_EQ(mb_malloc_async(dev, 200 * RT_MIB, stream, &va), MB_ERR_NO_MEMORY);
    CHECK_EQ(seen.count[MB_HOOK_OOM], 1);
    CHECK_EQ(seen.last[MB_HOOK_OOM].bytes, 200 * RT_MIB);
    RT_OK(mb_free_async(dev, whole, stream));
    RT_OK(mb_free_async(dev, blocks[1], stream));
    RT_OK(mb_free_async(dev, blocks[3], stream));
    RT_OK(mb_device_sync(dev));
    {
        mb_pool pool = NULL;

        RT_OK(mb_pool_default(dev, &pool));
        RT_OK(mb_pool_trim(pool, 0));
    }
    CHECK(seen.count[MB_HOOK_TRIM] >= 1);
    RT_OK(mb_mem_reserve(dev, op.bytes, 0, &va));
    RT_OK(mb_mem_create(dev, op.bytes, &mem));
    op.va = va;
    op.mem = mem;
    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
    CHECK_EQ(seen.count[MB_HOOK_MAP], 1);
    CHECK_EQ(seen.count[MB_HOOK_REMAP], 1);
    RT_OK(mb_mem_sleep(dev, va, 2 * RT_MIB, stream));
    RT_OK(mb_mem_wake(dev, va, 2 * RT_MIB, stream));
    op.kind = MB_UNMAP;
    RT_OK(mb_mem_map(dev, &op));
    CHECK_EQ(seen.count[MB_HOOK_MAP], 2);
    CHECK_EQ(seen.count[MB_HOOK_UNMAP], 2);
    CHECK_EQ(seen.last[MB_HOOK_UNMAP].bytes, op.bytes);
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, op.bytes));
    CHECK_EQ(seen.count[MB_HOOK_MALLOC], 6);
    CHECK_EQ(seen.count[MB_HOOK_FREE], 6);
    rt_close(dev);
}

TEST(a_hook_may_allocate_and_is_called_for_that_too)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    struct seen seen = {.dev = dev, .allocate = true};
    void *ptr;

    RT_OK(mb_set_event_hook(dev, look, &seen));
    ptr = rt_malloc(dev, 50, NULL);
    CHECK(seen.inner != NULL);
    CHECK_EQ(seen.count[MB_HOOK_MALLOC], 2);
    CHECK_EQ(seen.last[MB_HOOK_MALLOC].bytes, 99);
    RT_OK(mb_set_event_hook(dev, NULL, NULL));
    RT_OK(mb_free_async(dev, ptr, NULL));
    RT_OK(mb_free_async(dev, seen.inner, NULL));
    CHECK_EQ(seen.count[MB_HOOK_FREE], 0);
    rt_close(dev);
}

static void add_up(void *user, const struct mb_hook_event *event)
{
    uint64_t *sums = user;

    if (event->kind == MB_HOOK_MALLOC || event->kind == MB_HOOK_FREE)
        __atomic_add_fetch(&sums[event->kind], event->bytes, __ATOMIC_RELAXED);
}

static void *churn(void *opaque)
{
    mb_device dev = opaque;

    for (uint64_t i = 1; i <= 3000; i++) {
        void *ptr = NULL;

        if (mb_malloc_async(dev, i, NULL, &ptr) || mb_free_async(dev, ptr, NULL))
            abort();
    }
    return NULL;
}

TEST(no_event_is_lost_among_threads)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    uint64_t sums[MB_HOOK_REMAP + 1] = {0};
    pthread_t threads[4];

    RT_OK(mb_set_event_hook(dev, add_up, sums));
    for (unsigned i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, churn, dev), 0);
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(sums[MB_HOOK_MALLOC], 4 * 3000 * 3001 / 2);
    CHECK_EQ(sums[MB_HOOK_FREE], 4 * 3000 * 3001 / 2);
    rt_close(dev);
}

/* A FAKE of the tools extension that counts, made here: the real one needs a profiler to show
 * anything. */
static const char fake_source[] = "static int depth, pushes;\n"
                                  "int nvtxRangePushA(const char *name)\n"
                                  "{ if (name[0] != 'm' || name[1] != 'b') depth = 1000000;\n"
                                  "  pushes++; return depth++; }\n"
                                  "int nvtxRangePop(void) { return --depth; }\n"
                                  "int fake_depth(void) { return depth; }\n"
                                  "int fake_pushes(void) { return pushes; }\n";

#include <dlfcn.h>

TEST(nvtx_ranges_open_and_close_in_a_fake_library)
{
    const char *dir = getenv("MB_BUILD_DIR"), *cc = getenv("MB_CC");
    char source[512], library[512], command[2048], config[1024];
    int (*depth)(void) = NULL, (*pushes)(void) = NULL;
    void *handle, *ptr, *big = NULL;
    mb_device dev;
    FILE *file;

    snprintf(source, sizeof(source), "%s/fake_nvtx.%ld.c", dir ? dir : "/tmp", (long)getpid());
    snprintf(library, sizeof(library), "%s/fake_nvtx.%ld.so", dir ? dir : "/tmp", (long)getpid());
    file = fopen(source, "w");
    CHECK(file && fputs(fake_source, file) >= 0);
    CHECK_EQ(fclose(file), 0);
    snprintf(command, sizeof(command), "'%s' -shared -fPIC -o '%s' '%s'", cc ? cc : "cc", library,
             source);
    CHECK_EQ(system(command), 0);
    snprintf(config, sizeof(config), "backend:sim,device_memory:256m,nvtx:%s", library);
    dev = rt_open(config);
    handle = dlopen(library, RTLD_NOW);
    CHECK(handle != NULL);
    *(void **)&depth = dlsym(handle, "fake_depth");
    *(void **)&pushes = dlsym(handle, "fake_pushes");
    ptr = rt_malloc(dev, 1000, NULL);
    CHECK_EQ(mb_malloc(dev, RT_GIB, &big), MB_ERR_NO_MEMORY);
    RT_OK(mb_free_async(dev, ptr, NULL));
    CHECK_EQ(pushes(), 3);
    CHECK_EQ(depth(), 0);
    rt_close(dev);
    unlink(source);
    unlink(library);
}

TEST(without_the_library_the_device_opens_all_the_same)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m,nvtx:/nonexistent/nvtx.so");
    void *ptr = rt_malloc(dev, 1000, NULL);

    RT_OK(mb_free_async(dev, ptr, NULL));
    rt_close(dev);
}
