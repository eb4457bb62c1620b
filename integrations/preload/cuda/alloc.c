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

static enum mb_err take(mb_device dev, size_t bytes, cu_ptr *ptr)
{
    void *p = NULL;
    enum mb_err err;

    core_enter();
    err = mb_malloc(dev, bytes, &p);
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
    int ordinal;
    mb_device dev = ptr && bytes ? serving(&ordinal) : NULL;
    enum mb_err err;

    if (!dev)
        return REAL(mem_alloc, ptr, bytes);
    err = take(dev, bytes, ptr);
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
    err = take(dev, bytes, ptr);
    if (lost(err))
        return REAL(mem_pitch, ptr, pitch, width, height, element);
    if (!err)
        *pitch = row;
    return told(err);
}

static int take_async(mb_device dev, mb_pool pool, size_t bytes, void *stream, enum cuda_zero zero,
                      cu_ptr *ptr)
{
    struct cuda_side side;
    void *p = NULL;
    int result = cuda_side(stream, zero, &side);
    enum mb_err err;

    if (result)
        return result;
    core_enter();
    err = pool ? mb_pool_malloc_async(pool, bytes, side.stream, &p)
               : mb_malloc_async(dev, bytes, side.stream, &p);
    core_leave();
    result = told(err);
    if (!result)
        result = cuda_side_before(&side);
    if (result && p) {
        core_enter();
        (void)mb_free_async(dev, p, side.stream);
        core_leave();
    }
    if (!result)
        *ptr = (cu_ptr)(uintptr_t)p;
    return result;
}

/* MoonBright's pool for cuMemAllocAsync; false: the driver has to serve. */
static bool async_from(cu_ptr *ptr, size_t bytes, void *stream, mb_device *dev, mb_pool *pool)
{
    struct cuda_pool *from;
    bool vendor = false;
    int ordinal = 0;

    *pool = NULL;
    *dev = ptr && bytes ? cuda_current(&ordinal) : NULL;
    if (!*dev || cuda_capturing(stream))
        return false;
    from = cuda_pool_current(ordinal, &vendor);
    if (vendor)
        return false;
    *pool = from ? cuda_pool_open(from) : NULL;
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
    mb_device dev;
    mb_pool pool;

    return async_from(ptr, bytes, stream, &dev, &pool)
               ? take_async(dev, pool, bytes, stream, LEGACY, ptr)
               : REAL(alloc_async, ptr, bytes, stream);
}

CUDA(cuMemAllocAsync_ptsz, cu_ptr *ptr, size_t bytes, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    mb_device dev;
    mb_pool pool;

    return async_from(ptr, bytes, named(stream, PER_THREAD), &dev, &pool)
               ? take_async(dev, pool, bytes, stream, PER_THREAD, ptr)
               : REAL(alloc_async_pt, ptr, bytes, stream);
}

/* Fills *pool with what MoonBright is to take from; NULL: the driver serves, with *handle. */
static mb_device pool_from(cu_ptr *ptr, size_t bytes, cu_pool *handle, void *stream, mb_pool *pool,
                           int *result)
{
    struct cuda_pool *ours = cuda_pool_of(*handle);
    int ordinal = 0;
    mb_device dev = NULL;

    *result = CU_OK;
    if (!ours)
        return NULL;
    *pool = ptr && bytes ? cuda_pool_open(ours) : NULL;
    if (*pool && !cuda_capturing(stream))
        dev = cuda_current(&ordinal);
    if (!dev)
        *handle = cuda_pool_vendor(ours, result);
    return dev;
}

CUDA(cuMemAllocFromPoolAsync, cu_ptr *ptr, size_t bytes, cu_pool handle, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    mb_pool pool;
    int result;
    mb_device dev = pool_from(ptr, bytes, &handle, stream, &pool, &result);

    if (dev)
        return take_async(dev, pool, bytes, stream, LEGACY, ptr);
    return result ? result : REAL(alloc_pool, ptr, bytes, handle, stream);
}

CUDA(cuMemAllocFromPoolAsync_ptsz, cu_ptr *ptr, size_t bytes, cu_pool handle, void *stream)
{
    CORE_TIMED(CORE_ALLOC_ASYNC);
    mb_pool pool;
    int result;
    mb_device dev = pool_from(ptr, bytes, &handle, named(stream, PER_THREAD), &pool, &result);

    if (dev)
        return take_async(dev, pool, bytes, stream, PER_THREAD, ptr);
    return result ? result : REAL(alloc_pool_pt, ptr, bytes, handle, stream);
}

/* ------------------------------------------------------------ free */

CUDA(cuMemFree_v2, cu_ptr ptr)
{
    CORE_TIMED(CORE_FREE);
    struct mb_pointer_info info;
    enum mb_err err;
    int ordinal;
    mb_device dev = core_owner((void *)(uintptr_t)ptr, &info, &ordinal);

    if (!dev)
        return REAL(mem_free, ptr);
    core_enter();
    err = mb_device_sync(dev);
    if (!err)
        err = mb_free(dev, (void *)(uintptr_t)ptr);
    core_leave();
    return lost(err) ? REAL(mem_free, ptr) : cuda_result(err);
}

/* The device that took the block back, or an error; MB_ERR_NOT_FOUND: none of ours. */
static enum mb_err give_async(cu_ptr ptr, void *stream)
{
    enum mb_err err = MB_ERR_NOT_FOUND;

    core_enter();
    for (int i = 0; i < CORE_DEVICES && err == MB_ERR_NOT_FOUND; i++) {
        mb_device dev = core_opened(i);

        if (dev)
            err = mb_free_async(dev, (void *)(uintptr_t)ptr, stream);
    }
    core_leave();
    return err;
}

/* *ours false: the driver has to answer. */
static int free_on(cu_ptr ptr, void *stream, enum cuda_zero zero, bool *ours)
{
    struct mb_pointer_info info;
    struct cuda_side side;
    enum mb_err err;
    int result, ordinal;

    *ours = false;
    if (!ptr || core_inside())
        return CU_OK;
    if (cuda_capturing(named(stream, zero))) {
        *ours = core_owner((void *)(uintptr_t)ptr, &info, &ordinal) != NULL;
        if (*ours)
            core_note("cuMemFreeAsync: the stream is being captured, and only memory that "
                      "the graph allocated can be freed by it");
        return CU_INVALID_VALUE;
    }
    result = cuda_side(stream, zero, &side);
    if (!result)
        result = cuda_side_behind(&side);
    err = result ? MB_OK : give_async(ptr, side.stream);
    *ours = result || (err != MB_ERR_NOT_FOUND && !lost(err));
    return result ? result : cuda_result(err);
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
