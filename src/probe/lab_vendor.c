/* SPDX-License-Identifier: MIT */
/*
 * lab_vendor.c - what the CUDA driver's own calls cost, one turn at a time.
 *
 * A turn makes memory, does what is asked for, and gives everything back. The order of the handles
 * is drawn anew before each timed map, so that the driver too gets a list it has not seen. The
 * driver's mapping calls have taken effect when they return: complete is host.
 */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "probe/lab_cuda.h"

/* Four copies of 64 MiB over the slowest bus take a tenth of this. */
#define COPY_LIMIT_NS 500e6
#define CHECKED(lab, call, what) mb__lab_cuda_check((lab), (call), (what))

/* A turn of a way that maps handles. */
struct vmm {
    struct mb_lab *lab;
    struct mb_cuda *dev;
    uint64_t bytes, each;
    uint32_t count;    /* handles of one set */
    uint32_t made;     /* handles that exist, in both sets */
    cu_mem *handle;    /* two sets: the second for remap */
    cu_ptr va, second; /* second: for alias */
    bool mapped, aliased;
};

static double since(uint64_t start)
{
    return (double)(mb__now_ns() - start);
}

static void blank(struct mb_lab_turn *turn)
{
    for (unsigned i = 0; i < MB_LAB_STEPS; i++)
        turn->host_ns[i] = turn->complete_ns[i] = turn->used_ns[i] = NAN;
}

static void note(struct mb_lab_turn *turn, enum mb_lab_step step, double ns)
{
    turn->host_ns[step] = turn->complete_ns[step] = ns;
}

static enum mb_err touch_all(struct mb_lab *lab, uint64_t va, uint64_t bytes)
{
    enum mb_err err = lab->ops->touch(lab, lab->stream[0], mb__va(va), MB_FRAME_BYTES,
                                      (uint32_t)(bytes >> MB_FRAME_SHIFT), 1);

    return err ? err : lab->ops->sync(lab, lab->stream[0]);
}

/* ------------------------------------------------------------ handles */

static enum mb_err create(struct vmm *v, uint32_t count)
{
    struct cu_mem_prop prop = {
        .type = CU_MEM_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_DEVICE, .id = v->dev->ordinal},
    };
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < count; i++) {
        err = CHECKED(v->lab, v->dev->cu->mem_create(&v->handle[v->made], v->each, &prop, 0),
                      "cuMemCreate");
        v->made += !err;
    }
    return err;
}

static enum mb_err access_to(struct vmm *v, cu_ptr va, int flags)
{
    struct cu_mem_access a = {.location = {.type = CU_MEM_LOCATION_DEVICE, .id = v->dev->ordinal},
                              .flags = flags};

    return CHECKED(v->lab, v->dev->cu->mem_access(va, v->bytes, &a, 1), "cuMemSetAccess");
}

static enum mb_err map_at(struct vmm *v, cu_ptr va, const cu_mem *set)
{
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < v->count; i++)
        err = CHECKED(v->lab, v->dev->cu->mem_map(va + i * v->each, v->each, 0, set[i], 0),
                      "cuMemMap");
    return err ? err : access_to(v, va, CU_MEM_ACCESS_READ_WRITE);
}

static enum mb_err unmap_at(struct vmm *v, cu_ptr va)
{
    return CHECKED(v->lab, v->dev->cu->mem_unmap(va, v->bytes), "cuMemUnmap");
}

static void shuffle(struct vmm *v, cu_mem *set)
{
    for (uint32_t i = v->count; i > 1; i--) {
        uint32_t j = (uint32_t)mb__rng_below(&v->lab->rng, i);
        cu_mem x = set[i - 1];

        set[i - 1] = set[j];
        set[j] = x;
    }
}

/* ------------------------------------------------------------ steps */

static enum mb_err vmm_map(struct vmm *v, struct mb_lab_turn *turn)
{
    uint64_t start;
    enum mb_err err;

    shuffle(v, v->handle);
    start = mb__now_ns();
    err = map_at(v, v->va, v->handle);
    note(turn, MB_LAB_MAP, since(start));
    if (err)
        return err;
    v->mapped = true;
    err = touch_all(v->lab, v->va, v->bytes);
    turn->used_ns[MB_LAB_MAP] = since(start);
    return err;
}

static enum mb_err vmm_protect(struct vmm *v, struct mb_lab_turn *turn)
{
    uint64_t start = mb__now_ns();
    enum mb_err err = access_to(v, v->va, CU_MEM_ACCESS_READ);

    note(turn, MB_LAB_PROTECT, since(start));
    return err ? err : access_to(v, v->va, CU_MEM_ACCESS_READ_WRITE);
}

static enum mb_err vmm_alias(struct vmm *v, struct mb_lab_turn *turn)
{
    enum mb_err err = CHECKED(
        v->lab, v->dev->cu->reserve(&v->second, v->bytes, MB_FRAME_BYTES, 0, 0), "reserving");
    uint64_t start;

    if (err)
        return err;
    shuffle(v, v->handle);
    start = mb__now_ns();
    err = map_at(v, v->second, v->handle);
    note(turn, MB_LAB_ALIAS, since(start));
    v->aliased = !err;
    if (!err)
        err = touch_all(v->lab, v->second, v->bytes);
    turn->used_ns[MB_LAB_ALIAS] = since(start);
    return err;
}

static enum mb_err vmm_remap(struct vmm *v, struct mb_lab_turn *turn)
{
    enum mb_err err = create(v, v->count);
    uint64_t start;

    if (err)
        return err;
    shuffle(v, v->handle + v->count);
    start = mb__now_ns();
    err = unmap_at(v, v->va);
    v->mapped = err != MB_OK;
    if (!err)
        err = map_at(v, v->va, v->handle + v->count);
    note(turn, MB_LAB_REMAP, since(start));
    v->mapped = !err;
    if (!err)
        err = touch_all(v->lab, v->va, v->bytes);
    turn->used_ns[MB_LAB_REMAP] = since(start);
    return err;
}

static enum mb_err vmm_steps(struct vmm *v, unsigned wanted, struct mb_lab_turn *turn)
{
    uint64_t start = mb__now_ns();
    enum mb_err err = create(v, v->count);

    note(turn, MB_LAB_CREATE, since(start));
    if (!err)
        err = vmm_map(v, turn);
    if (!err && wanted & 1u << MB_LAB_PROTECT)
        err = vmm_protect(v, turn);
    if (!err && wanted & 1u << MB_LAB_ALIAS)
        err = vmm_alias(v, turn);
    if (!err && wanted & 1u << MB_LAB_REMAP)
        err = vmm_remap(v, turn);
    if (err)
        return err;
    start = mb__now_ns();
    err = unmap_at(v, v->va);
    note(turn, MB_LAB_UNMAP, since(start));
    v->mapped = err != MB_OK;
    return err;
}

static void vmm_drop(struct vmm *v)
{
    if (v->aliased)
        (void)unmap_at(v, v->second);
    if (v->mapped)
        (void)unmap_at(v, v->va);
    for (uint32_t i = 0; i < v->made; i++)
        (void)v->dev->cu->mem_release(v->handle[i]);
    if (v->second)
        (void)v->dev->cu->unreserve(v->second, v->bytes);
    if (v->va)
        (void)v->dev->cu->unreserve(v->va, v->bytes);
    free(v->handle);
}

static enum mb_err vmm_turn(struct mb_lab *lab, uint64_t bytes, bool one, unsigned wanted,
                            struct mb_lab_turn *turn)
{
    struct vmm v = {.lab = lab, .dev = mb__cuda(lab->hw), .bytes = bytes};
    enum mb_err err;

    v.each = one ? bytes : MB_FRAME_BYTES;
    v.count = (uint32_t)(bytes / v.each);
    v.handle = calloc(2 * (size_t)v.count, sizeof(*v.handle));
    if (!v.handle)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for %u handles", v.count);
    err = CHECKED(lab, v.dev->cu->reserve(&v.va, bytes, MB_FRAME_BYTES, 0, 0), "reserving");
    if (!err)
        err = vmm_steps(&v, wanted, turn);
    vmm_drop(&v);
    return err;
}

/* ------------------------------------------------------------ malloc */

static enum mb_err alloc_turn(struct mb_lab *lab, uint64_t bytes, struct mb_lab_turn *turn)
{
    const struct mb_cuda_driver *cu = mb__cuda(lab->hw)->cu;
    uint64_t start = mb__now_ns();
    cu_ptr p;
    enum mb_err err = CHECKED(lab, cu->mem_alloc(&p, bytes), "cuMemAlloc");

    note(turn, MB_LAB_MAP, since(start));
    if (err)
        return err;
    err = touch_all(lab, p, bytes);
    turn->used_ns[MB_LAB_MAP] = since(start);
    start = mb__now_ns();
    if (!err)
        err = CHECKED(lab, cu->mem_free(p), "cuMemFree");
    note(turn, MB_LAB_UNMAP, since(start));
    return err;
}

static enum mb_err pool_keep(struct mb_lab *lab, uint64_t keep)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    void *pool;
    enum mb_err err =
        CHECKED(lab, own->default_pool(&pool, mb__cuda(lab->hw)->device), "the driver's pool");

    if (!err)
        err = CHECKED(lab, own->pool_set(pool, MB_LAB_POOL_THRESHOLD, &keep), "its threshold");
    if (!err && !keep)
        err = CHECKED(lab, own->pool_trim(pool, 0), "trimming the driver's pool");
    return err;
}

/* The free of one turn is the pool's memory of the next, so a warm turn needs one before it. */
static enum mb_err async_turn(struct mb_lab *lab, uint64_t bytes, bool warm,
                              struct mb_lab_turn *turn)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    struct mb_hw_stream *s = lab->stream[0];
    enum mb_err err = pool_keep(lab, warm ? UINT64_MAX : 0);

    for (unsigned i = 0; !err && i < (warm ? 2u : 1u); i++) {
        uint64_t start = mb__now_ns();
        cu_ptr p = 0;

        err = CHECKED(lab, own->alloc_async(&p, bytes, s->native), "cuMemAllocAsync");
        turn->host_ns[MB_LAB_MAP] = since(start);
        if (!err)
            err = lab->ops->sync(lab, s);
        turn->complete_ns[MB_LAB_MAP] = since(start);
        if (!err)
            err = touch_all(lab, p, bytes);
        start = mb__now_ns();
        if (!err)
            err = CHECKED(lab, own->free_async(p, s->native), "cuMemFreeAsync");
        turn->host_ns[MB_LAB_UNMAP] = since(start);
        if (!err)
            err = lab->ops->sync(lab, s);
        turn->complete_ns[MB_LAB_UNMAP] = since(start);
    }
    return err;
}

enum mb_err mb__lab_cuda_vendor(struct mb_lab *lab, enum mb_lab_vendor way, uint64_t bytes,
                                unsigned wanted, struct mb_lab_turn *turn)
{
    enum mb_err err;

    blank(turn);
    if (way == MB_LAB_VMM_SMALL || way == MB_LAB_VMM_ONE)
        err = vmm_turn(lab, bytes, way == MB_LAB_VMM_ONE, wanted, turn);
    else if (way == MB_LAB_ALLOC)
        err = alloc_turn(lab, bytes, turn);
    else
        err = async_turn(lab, bytes, way == MB_LAB_ASYNC_WARM, turn);
    return err;
}

/* ------------------------------------------------------------ copies */

enum mb_err mb__lab_cuda_copy_rate(struct mb_lab *lab, enum mb_lab_copy way, uint64_t bytes,
                                   double *bytes_per_s)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    const struct mb_cuda_driver *cu = mb__cuda(lab->hw)->cu;
    cu_stream s = lab->stream[3]->native;
    enum mb_err err = MB_OK;
    uint64_t start;

    if (bytes > MB_LAB_BULK_BYTES || 2 * bytes > (uint64_t)lab->frames << MB_FRAME_SHIFT)
        return mb__fail(MB_ERR_LIMIT, "copies of %llu bytes", (unsigned long long)bytes);
    if (!own->bulk.host)
        err = CHECKED(lab, cu->host_alloc(&own->bulk.host, MB_LAB_BULK_BYTES, 0), "pinned memory");
    if (err)
        return err;
    start = mb__now_ns();
    for (unsigned i = 0; !err && i < 4; i++) {
        cu_ptr at = lab->home.addr;

        err = CHECKED(lab,
                      way == MB_LAB_H2D   ? own->copy_h2d(at, own->bulk.host, bytes, s)
                      : way == MB_LAB_D2H ? own->copy_d2h(own->bulk.host, at, bytes, s)
                                          : own->copy_d2d(at, at + bytes, bytes, s),
                      "a copy");
    }
    while (!err && lab->ops->busy(lab, lab->stream[3])) {
        if (since(start) > COPY_LIMIT_NS)
            err =
                mb__fail(MB_ERR_TIMEOUT, "copies did not end within %.0f ms", COPY_LIMIT_NS / 1e6);
    }
    if (!err)
        err = lab->ops->sync(lab, lab->stream[3]);
    *bytes_per_s = 4.0 * (double)bytes / (since(start) * 1e-9);
    return err;
}
