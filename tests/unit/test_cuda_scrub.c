/* SPDX-License-Identifier: MIT */
/*
 * The scrubber of inline tables on a recorded driver: what the backend hands to the kernel, and
 * what it makes of its answer. The kernel's body is the one that the GPU runs (pte_scrub.h), over
 * tables in host memory; streams, pinned memory and launches are functions that count and can fail.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/cuda/cuda.h"
#include "test.h"

enum { SLOTS = 1024, NAMED = 16, KERNEL = 77 };

static unsigned launches, syncs, buffers, streams;
static unsigned fail_at; /* driver call, counted from 1, that fails; 0: none */
static unsigned calls;

static cu_result step(void)
{
    return ++calls == fail_at ? 2 : CU_OK; /* out of memory */
}

static cu_result fake_function(cu_function *function, cu_module module, const char *name)
{
    (void)module;
    CHECK_STR_EQ(name, "mb_scrub");
    if (step())
        return 2;
    *function = (cu_function)(uintptr_t)KERNEL;
    return CU_OK;
}

static cu_result fake_stream(cu_stream *stream, unsigned flags)
{
    CHECK_EQ(flags, CU_STREAM_NON_BLOCKING);
    if (step())
        return 2;
    streams++;
    *stream = (cu_stream)(uintptr_t)5;
    return CU_OK;
}

static cu_result fake_stream_end(cu_stream stream)
{
    CHECK_EQ((uintptr_t)stream, 5);
    streams--;
    return CU_OK;
}

static cu_result fake_sync(cu_stream stream)
{
    CHECK_EQ((uintptr_t)stream, 5);
    syncs++;
    return step();
}

static cu_result fake_alloc(void **ptr, size_t bytes, unsigned flags)
{
    CHECK(flags & CU_HOST_ALLOC_MAPPED);
    if (step())
        return 2;
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
    if (step())
        return 2;
    *device = (uintptr_t)ptr;
    return CU_OK;
}

static cu_result fake_current(cu_context *ctx)
{
    *ctx = NULL;
    return CU_OK;
}

static cu_result fake_capture_mode(int *mode)
{
    (void)mode;
    return CU_OK;
}

static cu_result fake_error_name(cu_result result, const char **name)
{
    (void)result;
    *name = "FAKE";
    return CU_OK;
}

/* Runs the threads one after the other. */
static cu_result fake_launch(cu_function function, unsigned gx, unsigned gy, unsigned gz,
                             unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             cu_stream stream, void **params, void **extra)
{
    const struct mb_pte *slot;
    const struct mb_scrub_want *want;
    uint32_t *out, count, capacity;

    CHECK_EQ((uintptr_t)function, KERNEL);
    CHECK_EQ((uintptr_t)stream, 5);
    CHECK(gx && gx <= 4 * 8 && gy == 1 && gz == 1 && bx == 256 && by == 1 && bz == 1 && !shared &&
          !extra);
    if (step())
        return 2;
    slot = (const struct mb_pte *)(uintptr_t) * (uint64_t *)params[0];
    CHECK_EQ(*(uint32_t *)params[1], sizeof(*slot));
    count = *(uint32_t *)params[2];
    want = (const struct mb_scrub_want *)(uintptr_t) * (cu_ptr *)params[3];
    out = (uint32_t *)(uintptr_t) * (uint64_t *)params[4];
    capacity = *(uint32_t *)params[5];
    CHECK_EQ(out[0], 0);
    for (uint32_t i = count; i-- > 0;) /* any order */
        if (mb_scrub_differs(slot[i], want[i]) && out[0]++ < capacity)
            out[out[0]] = i;
    launches++;
    return CU_OK;
}

static const struct mb_cuda_driver driver = {
    .module_function = fake_function,
    .stream_create = fake_stream,
    .stream_destroy = fake_stream_end,
    .stream_sync = fake_sync,
    .host_alloc = fake_alloc,
    .host_free = fake_free,
    .host_device_ptr = fake_device_ptr,
    .ctx_current = fake_current,
    .capture_mode = fake_capture_mode,
    .error_name = fake_error_name,
    .launch = fake_launch,
};

struct rig {
    struct mb_cuda dev;
    struct mb_cuda_window window;
    struct mb_hw_view view;
    struct mb_pte table[SLOTS];
    struct mb_scrub_want want[SLOTS];
    uint32_t wrong[NAMED], differing;
};

static struct rig *rig_new(void)
{
    struct rig *rig = calloc(1, sizeof(*rig));

    CHECK(rig != NULL);
    launches = syncs = calls = fail_at = 0;
    rig->dev.cu = &driver;
    rig->dev.tables = MB_CUDA_INLINE;
    rig->dev.multiprocessors = 4;
    rig->dev.owner_pid = getpid();
    rig->window.app_va = (uintptr_t)rig->table;
    rig->view.cookie = (uintptr_t)&rig->window;
    rig->view.bytes = SLOTS * MB_FRAME_BYTES;
    for (uint64_t i = 0; i < SLOTS; i++) {
        rig->table[i].lo = i << 12 | 1;
        rig->want[i] = (struct mb_scrub_want){i << 12 | 1, UINT64_MAX};
    }
    return rig;
}

static enum mb_err scrub(struct rig *rig, uint32_t first, uint32_t count)
{
    memset(rig->wrong, 0xff, sizeof(rig->wrong));
    rig->differing = UINT32_MAX;
    /* What is refused is refused before it looks at what it should find. */
    return mb__cuda_scrub_slots(&rig->dev.base, &rig->view, first, count,
                                &rig->want[first < SLOTS ? first : 0], rig->wrong, NAMED,
                                &rig->differing);
}

static void rig_end(struct rig *rig)
{
    mb__cuda_scrub_fini(&rig->dev);
    CHECK_EQ(buffers, 0);
    CHECK_EQ(streams, 0);
    free(rig);
}

TEST(names_what_differs)
{
    struct rig *rig = rig_new();

    CHECK_OK(scrub(rig, 0, SLOTS));
    CHECK_EQ(rig->differing, 0);
    rig->table[700].lo ^= 1 << 20;
    rig->table[703].hi = 1;
    CHECK_OK(scrub(rig, 600, 200));
    CHECK_EQ(rig->differing, 2);
    CHECK_EQ(rig->wrong[0] + rig->wrong[1], 203); /* 100 and 103, counted from the first */
    CHECK_EQ(rig->wrong[2], UINT32_MAX);
    CHECK_OK(scrub(rig, 704, 100));
    CHECK_EQ(rig->differing, 0);
    for (unsigned i = 0; i < 100; i++)
        rig->table[i].lo = 0;
    CHECK_OK(scrub(rig, 0, SLOTS)); /* more than there is room for: all are counted */
    CHECK_EQ(rig->differing, 102);
    CHECK_OK(scrub(rig, SLOTS, 0));
    CHECK_EQ(rig->differing, 0);
    CHECK_EQ(launches, 4);
    CHECK_EQ(syncs, 4);
    CHECK_EQ(buffers, 1); /* kept */
    CHECK_EQ(streams, 1);
    rig_end(rig);
}

TEST(only_inline_tables_and_slots_that_are_there)
{
    struct rig *rig = rig_new();

    CHECK_EQ(scrub(rig, SLOTS - 1, 2), MB_ERR_INVALID);
    CHECK_EQ(scrub(rig, UINT32_MAX, 2), MB_ERR_INVALID);
    rig->dev.tables = MB_CUDA_ISOLATED;
    CHECK_EQ(scrub(rig, 0, 1), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(rig->differing, UINT32_MAX);
    CHECK_EQ(launches, 0);
    rig_end(rig);
}

/* Every driver call of the first comparison fails once: nothing is left, and the next one works. */
TEST(failures_are_told_and_leave_nothing)
{
    unsigned failed = 0;

    for (unsigned n = 1;; n++) {
        struct rig *rig = rig_new();
        enum mb_err err;

        rig->table[3].lo = 0;
        fail_at = n;
        err = scrub(rig, 0, SLOTS);
        if (!err) {
            CHECK(calls < n);
            rig_end(rig);
            break;
        }
        failed++;
        CHECK_EQ(err, MB_ERR_NO_MEMORY);
        CHECK_EQ(rig->differing, UINT32_MAX);
        CHECK_OK(scrub(rig, 0, SLOTS));
        CHECK_EQ(rig->differing, 1);
        CHECK_EQ(rig->wrong[0], 3);
        rig_end(rig);
    }
    CHECK_EQ(failed, 6);
}
