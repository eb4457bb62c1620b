/* SPDX-License-Identifier: MIT */
/*
 * variants.c - one way of making helper channels, measured: what it costs to get ready and to
 * close, and what the driver's own calls cost beside it. scripts/gpu-variants runs it for each way
 * in one go, together with `gputest bench`, and says which is best.
 *
 * The keys of the way are those of the configuration: helper_engine=, helper_wait=,
 * helper_slice_us=, helper_end=, walk_views=, kernels=; name= labels the line of JSON that goes to
 * out=. tables=driver is the driver's cost without any helper.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { TURNS = 15, HANDLES = 32 };
#define BYTES ((uint64_t)64 << 20)

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *us, unsigned count)
{
    qsort(us, count, sizeof(*us), by_value);
    return us[count / 2];
}

/* 64 MiB in `count` handles: medians of map with access, and of unmap. */
static void neighbours(struct gt *t, unsigned count, double *map_us, double *unmap_us)
{
    cu_mem handle[HANDLES];
    uint64_t each = BYTES / count;
    double map[TURNS], unmap[TURNS];
    mb_va va;

    for (unsigned i = 0; i < count; i++)
        GT_OK(mb__cuda_mem_create(t->dev, each, &handle[i]));
    GT_OK(t->hw->ops->va_reserve(t->hw, BYTES, MB_CUDA_PIECE_BYTES, &va));
    for (unsigned k = 0; k < TURNS; k++) {
        double t0 = gt_now_us(), t1;

        for (unsigned i = 0; i < count; i++)
            GT_CU(t->cu->mem_map(va.addr + i * each, each, 0, handle[i], 0));
        GT_OK(mb__cuda_set_access(t->dev, va.addr, BYTES, CU_MEM_ACCESS_READ_WRITE));
        t1 = gt_now_us();
        GT_CU(t->cu->mem_unmap(va.addr, BYTES));
        map[k] = t1 - t0;
        unmap[k] = gt_now_us() - t1;
    }
    for (unsigned i = 0; i < count; i++)
        GT_CU(t->cu->mem_release(handle[i]));
    GT_OK(t->hw->ops->va_release(t->hw, va, BYTES));
    *map_us = median(map, TURNS);
    *unmap_us = median(unmap, TURNS);
}

static void allocations(struct gt *t, double *alloc_us, double *free_us)
{
    double alloc[TURNS], give[TURNS];

    for (unsigned k = 0; k < TURNS; k++) {
        double t0 = gt_now_us(), t1;
        cu_ptr p;

        GT_CU(t->cu->mem_alloc(&p, BYTES));
        t1 = gt_now_us();
        GT_CU(t->cu->mem_free(p));
        alloc[k] = t1 - t0;
        give[k] = gt_now_us() - t1;
    }
    *alloc_us = median(alloc, TURNS);
    *free_us = median(give, TURNS);
}

int gt_test_variant(void)
{
    const char *tables = gt_arg("tables", "inline"), *path = gt_arg("out", NULL);
    unsigned slabs = (unsigned)gt_arg_u64("slabs", 128);
    uint64_t slab_bytes = gt_arg_u64("slab_mb", 512) << 20;
    double t0 = gt_now_us(), open_us, ready_us, close_us;
    double map1, unmap1, map32, unmap32, alloc, give;
    char line[768];
    struct gt t;
    FILE *out;

    gt_open(&t, tables);
    open_us = gt_now_us() - t0;
    neighbours(&t, 1, &map1, &unmap1);
    neighbours(&t, HANDLES, &map32, &unmap32);
    allocations(&t, &alloc, &give);
    t0 = gt_now_us();
    /* Driver tables take a handle for each frame: a small pool tells enough. */
    gt_pool(&t, slab_bytes, strcmp(tables, "driver") != 0 ? slabs : 1);
    ready_us = gt_now_us() - t0;
    t0 = gt_now_us();
    gt_close(&t);
    close_us = gt_now_us() - t0;
    snprintf(line, sizeof(line),
             "{\"what\":\"variant\",\"variant\":\"%s\",\"tables\":\"%s\",\"open_us\":%.0f,"
             "\"ready_bytes\":%" PRIu64 ",\"ready_us\":%.0f,\"close_us\":%.0f,"
             "\"map_one_us\":%.1f,\"unmap_one_us\":%.1f,\"map_32_us\":%.1f,\"unmap_32_us\":%.1f,"
             "\"alloc_us\":%.1f,\"free_us\":%.1f}",
             gt_arg("name", "default"), tables, open_us,
             (uint64_t)(strcmp(tables, "driver") != 0 ? slabs : 1) * slab_bytes, ready_us, close_us,
             map1, unmap1, map32, unmap32, alloc, give);
    printf("BENCH %s\n", line);
    out = path ? fopen(path, "a") : NULL;
    if (out) {
        fprintf(out, "%s\n", line);
        fclose(out);
    }
    return 0;
}
