/* SPDX-License-Identifier: MIT */
/*
 * alloc.c - taking and giving memory.
 *
 * What MoonBright does not serve goes to the driver with the caller's arguments, so that its answer
 * is the driver's: no context, another context than the primary one, nonsense arguments, a stream
 * that is being captured (its allocations are nodes of the graph), a child of fork().
 * cuMemFree waits for the device, as the driver's does: nobody says which streams use the block.
 */
#include "cuda.h"
#include "held.h"

#include <string.h>

/* The driver knows best how a lost context is told. */
static bool lost(enum mb_err err)
{
    return err == MB_ERR_DEVICE_LOST || err == MB_ERR_FORKED;
}

static int told(enum mb_err err)
{
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT || err == MB_ERR_NO_ADDRESS) {
        const char *wants = (core_modes() & CORE_TIME) ? mb_error_detail() : NULL;

        if (wants)
            core_note("%s", wants);
    }
    return cuda_result(err);
}

static enum mb_err take(mb_device dev, int ordinal, size_t bytes, cu_ptr *ptr)
{
    void *p = NULL;
    enum mb_err err;

    core_enter();
    err = mb_malloc(dev, bytes, &p);
    if (!err && !held_add((cu_ptr)(uintptr_t)p, ordinal)) {
        (void)mb_free(dev, p);
        err = MB_ERR_HOST_MEMORY;
    }
    core_leave();
    if (!err)
        *ptr = (cu_ptr)(uintptr_t)p;
    return err;
}

/* With "ipc", memory that cuIpcGetMemHandle and peers accept is the driver's. */
static mb_device serving(int *ordinal)
{
    return core_modes() & CORE_IPC ? NULL : cuda_current(ordinal);
}

CUDA(cuMemAlloc_v2, cu_ptr *ptr, size_t bytes)
{
    CORE_TIMED(CORE_ALLOC);
    int ordinal = 0;
    mb_device dev = ptr && bytes ? serving(&ordinal) : NULL;
    enum mb_err err;

    if (!dev)
        return REAL(mem_alloc, ptr, bytes);
    err = take(dev, ordinal, bytes, ptr);
    return lost(err) ? REAL(mem_alloc, ptr, bytes) : told(err);
}

enum { PITCH_BYTES = 512 }; /* what textures ask for on all devices of compute capability 5 to 12 */

CUDA(cuMemAllocPitch_v2, cu_ptr *ptr, size_t *pitch, size_t width, size_t height, unsigned element)
{
    CORE_TIMED(CORE_ALLOC);
    bool good = ptr && pitch && width && height && width <= SIZE_MAX - PITCH_BYTES &&
                (element == 4 || element == 8 || element == 16);
    size_t row = good ? (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES : 0, bytes = 0;
    int ordinal;
    mb_device dev = good && !__builtin_mul_overflow(row, height, &bytes) ? serving(&ordinal) : NULL;
    enum mb_err err;

    if (!dev)
        return REAL(mem_pitch, ptr, pitch, width, height, element);
    err = take(dev, ordinal, bytes, ptr);
    if (lost(err))
        return REAL(mem_pitch, ptr, pitch, width, height, element);
    if (!err)
        *pitch = row;
    return told(err);
}

/* Where memory is taken from. */
struct source {
    mb_device dev; /* NULL: the driver serves */
    int ordinal;
    mb_pool pool; /* NULL: the default one */
};

static int take_async(const struct source *from, size_t bytes, void *stream, enum cuda_zero zero,
                      cu_ptr *ptr)
{
    struct cuda_side side;
    void *p = NULL;
    int result = cuda_side(stream, zero, &side);
    enum mb_err err;

    if (result)
        return result;
    core_enter();
    err = from->pool ? mb_pool_malloc_async(from->pool, bytes, side.stream, &p)
                     : mb_malloc_async(from->dev, bytes, side.stream, &p);
    if (!err)
        err = mb_wait_mapped(from->dev, p); /* CUDA's copies may come at once */
    core_leave();
    if (lost(err))
        return zero == PER_THREAD ? REAL(alloc_async_pt, ptr, bytes, stream)
                                  : REAL(alloc_async, ptr, bytes, stream);
    result = told(err);
    if (!result)
        result = cuda_side_before(&side);
    if (!result && !held_add((cu_ptr)(uintptr_t)p, from->ordinal))
        result = CU_OUT_OF_MEMORY;
    if (result && p) {
        core_enter();
        (void)mb_free_async(from->dev, p, side.stream);
        core_leave();
    }
    if (!result)
        *ptr = (cu_ptr)(uintptr_t)p;
    return result;
}

/* For cuMemAllocAsync; false: the driver has to serve. */
static bool async_from(cu_ptr *ptr, size_t bytes, void *stream, struct source *from)
{
    struct cuda_pool *pool;
    bool vendor = false;

    *from = (struct source){.dev = NULL};
    if (ptr && bytes)
        from->dev = cuda_current(&from->ordinal);
    if (!from->dev || cuda_capturing(stream))
        return false;
    pool = cuda_pool_current(from->ordinal, &vendor);
    if (vendor)
        return false;
    from->pool = pool ? cuda_pool_open(pool) : NULL;
    return true;
}

/* The value 0 in the caller's variant, for the driver's functions that have no variants. */
static void *named(void *stream, enum cuda_zero zero)
{
    return !stream && zero == PER_THREAD ? (void *)2 : stream;
}

CUDA(cuMemAllocAsync, cu_ptr *ptr, size_t bytes, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    struct source from;

    return async_from(ptr, bytes, stream, &from) ? take_async(&from, bytes, stream, LEGACY, ptr)
                                                 : REAL(alloc_async, ptr, bytes, stream);
}

CUDA(cuMemAllocAsync_ptsz, cu_ptr *ptr, size_t bytes, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    struct source from;

    return async_from(ptr, bytes, named(stream, PER_THREAD), &from)
               ? take_async(&from, bytes, stream, PER_THREAD, ptr)
               : REAL(alloc_async_pt, ptr, bytes, stream);
}

/* For a pool by its handle; false: the driver serves, with *handle. */
static bool pool_from(cu_ptr *ptr, size_t bytes, cu_pool *handle, void *stream, struct source *from,
                      int *result)
{
    struct cuda_pool *ours = cuda_pool_of(*handle);

    *result = CU_OK;
    *from = (struct source){.dev = NULL};
    if (!ours && cuda_pool_dead(*handle))
        *result = CU_INVALID_VALUE;
    if (!ours)
        return false;
    from->pool = ptr && bytes ? cuda_pool_open(ours) : NULL;
    if (from->pool && !cuda_capturing(stream)) {
        from->ordinal = cuda_pool_device(ours);
        from->dev = core_opened(from->ordinal);
    }
    if (!from->dev)
        *handle = cuda_pool_vendor(ours, result);
    return from->dev != NULL;
}

CUDA(cuMemAllocFromPoolAsync, cu_ptr *ptr, size_t bytes, cu_pool handle, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    struct source from;
    int result;

    if (pool_from(ptr, bytes, &handle, stream, &from, &result))
        return take_async(&from, bytes, stream, LEGACY, ptr);
    return result ? result : REAL(alloc_pool, ptr, bytes, handle, stream);
}

CUDA(cuMemAllocFromPoolAsync_ptsz, cu_ptr *ptr, size_t bytes, cu_pool handle, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    struct source from;
    int result;

    if (pool_from(ptr, bytes, &handle, named(stream, PER_THREAD), &from, &result))
        return take_async(&from, bytes, stream, PER_THREAD, ptr);
    return result ? result : REAL(alloc_pool_pt, ptr, bytes, handle, stream);
}

/* ------------------------------------------------------------ free */

/* Takes the block out of the record; NULL: the driver has to answer. */
static mb_device holder(cu_ptr ptr, int *ordinal)
{
    mb_device dev = NULL;

    if (core_inside() || core_forked())
        return NULL;
    *ordinal = held_take(ptr);
    if (*ordinal >= 0)
        dev = core_opened(*ordinal);
    if (*ordinal >= 0 && !dev) /* its device is being closed */
        (void)held_add(ptr, *ordinal);
    return dev;
}

/* What could not be given back is still held. */
static enum mb_err given(enum mb_err err, cu_ptr ptr, int ordinal)
{
    if (err)
        (void)held_add(ptr, ordinal);
    return err;
}

CUDA(cuMemFree_v2, cu_ptr ptr)
{
    CORE_TIMED(CORE_FREE);
    enum mb_err err;
    int ordinal;
    mb_device dev = holder(ptr, &ordinal);

    if (!dev)
        return REAL(mem_free, ptr);
    core_enter();
    err = mb_device_sync(dev);
    if (!err)
        err = mb_free(dev, (void *)(uintptr_t)ptr);
    err = given(err, ptr, ordinal);
    core_leave();
    return lost(err) ? REAL(mem_free, ptr) : cuda_result(err);
}

/* *ours false: the driver has to answer. */
static int free_on(cu_ptr ptr, void *stream, enum cuda_zero zero, bool *ours)
{
    struct cuda_side side;
    enum mb_err err;
    mb_device dev;
    int result, ordinal;

    *ours = !core_inside() && !core_forked() && held_find(ptr) >= 0;
    if (!*ours)
        return CU_OK;
    if (cuda_capturing(named(stream, zero))) {
        core_note("cuMemFreeAsync: the stream is being captured, and only memory that the graph "
                  "allocated can be freed by it");
        return CU_INVALID_VALUE;
    }
    result = cuda_side(stream, zero, &side);
    if (!result)
        result = cuda_side_behind(&side);
    dev = result ? NULL : holder(ptr, &ordinal);
    *ours = result || dev;
    if (!dev)
        return result;
    core_enter();
    err = given(mb_free_async(dev, (void *)(uintptr_t)ptr, side.stream), ptr, ordinal);
    core_leave();
    *ours = !lost(err);
    return cuda_result(err);
}

CUDA(cuMemFreeAsync, cu_ptr ptr, void *stream)
{
    CORE_TIMED(CORE_FREE_ASYNC);
    bool ours;
    int result = free_on(ptr, stream, LEGACY, &ours);

    return ours ? result : REAL(free_async, ptr, stream);
}

CUDA(cuMemFreeAsync_ptsz, cu_ptr ptr, void *stream)
{
    CORE_TIMED(CORE_FREE_ASYNC);
    bool ours;
    int result = free_on(ptr, stream, PER_THREAD, &ours);

    return ours ? result : REAL(free_async_pt, ptr, stream);
}
