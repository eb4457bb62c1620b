/* SPDX-License-Identifier: MIT */
#include "program.h"

#include "support/runtime_rig.h"

/* Makes a call; when it failed, has that looked at and makes it again. */
#define STEP(w, call)                                                                              \
    do {                                                                                           \
        enum mb_err step_err;                                                                      \
                                                                                                   \
        if ((w)->lost)                                                                             \
            break;                                                                                 \
        (w)->calls++;                                                                              \
        step_err = (call);                                                                         \
        if (!step_err)                                                                             \
            break;                                                                                 \
        (w)->failures++;                                                                           \
        (w)->failed_once = true;                                                                   \
        (w)->failed((w), #call, step_err);                                                         \
        if (!(w)->lost && (call))                                                                  \
            FAIL("%s: %s fails although everything works again: %s", (w)->fault, #call,            \
                 mb_error_detail());                                                               \
    } while (0)

static void *page(const struct world *w, unsigned i)
{
    return (char *)w->va + i * 2 * RT_MIB;
}

static enum mb_err map_two(struct world *w, unsigned at, unsigned mem, mb_stream stream)
{
    struct mb_map_op op = {.kind = MB_MAP,
                           .prot = MB_PROT_READ_WRITE,
                           .va = page(w, at),
                           .bytes = 4 * RT_MIB,
                           .mem = w->mem[mem]};

    return mb_mem_map_async(w->dev, &op, 1, stream);
}

static enum mb_err change(struct world *w, enum mb_map_kind kind, unsigned at, unsigned pages,
                          unsigned src)
{
    struct mb_map_op op = {.kind = kind,
                           .prot = MB_PROT_READ_WRITE,
                           .va = page(w, at),
                           .bytes = pages * 2 * RT_MIB,
                           .src = page(w, src)};

    return mb_mem_map_async(w->dev, &op, 1, w->stream[0]);
}

static enum mb_err fill(struct world *w, void *ptr, uint64_t bytes, uint64_t seed, unsigned stream)
{
    return mb_fill_async(w->dev, ptr, bytes, seed, w->stream[stream]);
}

static enum mb_err verify(struct world *w, void *ptr, uint64_t bytes, uint64_t seed,
                          unsigned stream)
{
    return mb_verify_async(w->dev, ptr, bytes, seed, w->stream[stream]);
}

/* Blocks: fragments first, so that the last one is stitched. */
static void drive_blocks(struct world *w)
{
    for (unsigned i = 0; i < 8; i++) {
        STEP(w, mb_malloc_async(w->dev, 5 * RT_MIB, w->stream[0], &w->block[i]));
        STEP(w, fill(w, w->block[i], 5 * RT_MIB, i, 0));
    }
    for (unsigned i = 0; i < 8; i += 2)
        STEP(w, mb_free_async(w->dev, w->block[i], w->stream[0]));
    STEP(w, mb_malloc_async(w->dev, 17 * RT_MIB, w->stream[0], &w->block[8]));
    STEP(w, fill(w, w->block[8], 17 * RT_MIB, 8, 0));
    STEP(w, mb_event_record(w->dev, w->event, w->stream[0]));
    STEP(w, mb_stream_wait_event(w->dev, w->stream[1], w->event));
    STEP(w, verify(w, w->block[8], 17 * RT_MIB, 8, 1));
    STEP(w, mb_record_stream(w->dev, w->block[8], w->stream[1]));
    STEP(w, mb_free_async(w->dev, w->block[8], w->stream[0]));
    STEP(w, mb_malloc(w->dev, 700, &w->block[9]));
    STEP(w, mb_device_sync(w->dev));
    STEP(w, mb_realloc(w->dev, w->block[9], 9 * RT_MIB, &w->block[9]));
    STEP(w, mb_free(w->dev, w->block[9]));
    for (unsigned i = 1; i < 8; i += 2) {
        STEP(w, verify(w, w->block[i], 5 * RT_MIB, i, 0));
        STEP(w, mb_free_async(w->dev, w->block[i], w->stream[i & 1]));
    }
}

static void drive_pool(struct world *w)
{
    STEP(w, mb_pool_create(w->dev, &w->pool));
    STEP(w, mb_pool_malloc_async(w->pool, 6 * RT_MIB, w->stream[1], &w->block[0]));
    STEP(w, mb_free_async(w->dev, w->block[0], w->stream[1]));
    STEP(w, mb_stream_sync(w->dev, w->stream[1]));
    STEP(w, mb_pool_trim(w->pool, 0));
    STEP(w, mb_pool_destroy(w->pool));
}

static void drive_mappings(struct world *w)
{
    STEP(w, mb_mem_create(w->dev, 4 * RT_MIB, &w->mem[0]));
    STEP(w, mb_mem_create(w->dev, 4 * RT_MIB, &w->mem[1]));
    STEP(w, mb_mem_reserve(w->dev, PROGRAM_PAGES * 2 * RT_MIB, 0, &w->va));
    STEP(w, map_two(w, 0, 0, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 70, 0));
    STEP(w, change(w, MB_ALIAS, 2, 2, 0));
    STEP(w, verify(w, page(w, 2), 4 * RT_MIB, 70, 0));
    STEP(w, change(w, MB_UNMAP, 0, 2, 0));
    STEP(w, map_two(w, 0, 1, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 71, 0));
    STEP(w, verify(w, page(w, 2), 4 * RT_MIB, 70, 0));
    STEP(w, mb_mem_sleep(w->dev, page(w, 0), 4 * RT_MIB, w->stream[0]));
    STEP(w, mb_mem_wake(w->dev, page(w, 0), 4 * RT_MIB, w->stream[0]));
    STEP(w, fill(w, page(w, 0), 4 * RT_MIB, 72, 0));
    STEP(w, verify(w, page(w, 0), 4 * RT_MIB, 72, 0));
    STEP(w, change(w, MB_PROTECT, 2, 2, 0));
    STEP(w, change(w, MB_UNMAP, 0, 4, 0));
    STEP(w, mb_stream_sync(w->dev, w->stream[0]));
    STEP(w, mb_mem_unreserve(w->dev, w->va, PROGRAM_PAGES * 2 * RT_MIB));
    STEP(w, mb_mem_release(w->dev, w->mem[0]));
    STEP(w, mb_mem_release(w->dev, w->mem[1]));
}

void program_run(struct world *w)
{
    STEP(w, mb_stream_create(w->dev, &w->stream[0]));
    STEP(w, mb_stream_create(w->dev, &w->stream[1]));
    STEP(w, mb_event_create(w->dev, &w->event));
    drive_blocks(w);
    drive_pool(w);
    drive_mappings(w);
    STEP(w, mb_event_destroy(w->dev, w->event));
    STEP(w, mb_stream_destroy(w->dev, w->stream[0]));
    STEP(w, mb_stream_destroy(w->dev, w->stream[1]));
    STEP(w, mb_device_sync(w->dev));
}

void program_finish(struct world *w)
{
    struct mb_pool *pool;
    struct mb_stats stats;

    if (w->lost) {
        mb_close(w->dev);
        return;
    }
    rt_clean(w->dev);
    RT_OK(mb_pool_default(w->dev, &pool));
    RT_OK(mb_pool_trim(pool, 0));
    /* A trim that could give back only a part was a success; the rest goes now. */
    RT_OK(mb_device_sync(w->dev));
    RT_OK(mb_pool_trim(pool, 0));
    stats = rt_stats(w->dev);
    if (stats.reserved_bytes != stats.overhead_bytes)
        FAIL("%s: %llu bytes are held at the end, %llu of them overhead", w->fault,
             (unsigned long long)stats.reserved_bytes, (unsigned long long)stats.overhead_bytes);
    RT_OK(mb_check_tables(w->dev, false, NULL));
    rt_close(w->dev);
}
