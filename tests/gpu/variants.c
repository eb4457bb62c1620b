/* SPDX-License-Identifier: MIT */
/*
 * variants.c - one way of making helper channels, measured: what it costs to get ready and to
 * close, and what the driver's own calls and a program's copies cost beside it.
 * scripts/gpu-variants runs it for each way in one go, together with `gputest bench`, and says
 * which is best.
 *
 * The keys of the way are those of the configuration: helper_engine=, helper_wait=,
 * helper_slice_us=, helper_end=, walk_views=, kernels=; name= labels the line of JSON that goes to
 * out=. tables=driver is the driver's cost without any helper.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"
#include "hw/nvrm/engines.h"

enum { TURNS = 15, HANDLES = 32, COPIES = 200, LARGE_COPIES = 30 };
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

enum { TO_GPU, TO_HOST, WITHIN, WAYS };

/* Copies of a program: medians until they are complete; an engine that is held makes them wait. */
struct copies {
    double us[WAYS];   /* 4 KiB, some of which no copy engine sees */
    double mid[WAYS];  /* 256 KiB */
    double rate[WAYS]; /* 32 MiB, GB/s */
};

static void copies(struct gt *t, struct copies *c)
{
    typedef cu_result (*copy_fn)(uintptr_t to, uintptr_t from, size_t bytes, cu_stream stream);
    static const char *const name[WAYS] = {"cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
                                           "cuMemcpyDtoDAsync_v2"};
    const size_t large = (size_t)32 << 20;
    cu_stream stream = gt_stream(t)->native;
    cu_ptr a, b;
    void *host;

    GT_CU(t->cu->mem_alloc(&a, large));
    GT_CU(t->cu->mem_alloc(&b, large));
    GT_CU(t->cu->host_alloc(&host, large, 0));
    for (int way = 0; way < WAYS; way++) {
        uintptr_t to = way == TO_HOST ? (uintptr_t)host : a;
        uintptr_t from = way == TO_GPU ? (uintptr_t)host : b;
        double us[COPIES] = {0}, found[3];
        copy_fn copy;

        *(void **)&copy = gt_symbol(t, name[way]);
        for (int size = 0; size < 3; size++) {
            static const size_t bytes[] = {4096, 256 << 10, 32 << 20};
            unsigned count = size < 2 ? COPIES : LARGE_COPIES;

            for (unsigned k = 0; k < count; k++) {
                double t0 = gt_now_us();

                GT_CU(copy(to, from, bytes[size], stream));
                GT_CU(t->cu->stream_sync(stream));
                us[k] = gt_now_us() - t0;
            }
            found[size] = median(us, count);
        }
        c->us[way] = found[0];
        c->mid[way] = found[1];
        c->rate[way] = (double)large / 1e3 / found[2];
    }
    GT_CU(t->cu->host_free(host));
    GT_CU(t->cu->mem_free(a));
    GT_CU(t->cu->mem_free(b));
}

/* What the driver says about its copy engines, and which work we think is on which. */
static void write_engines(const struct gt *t, FILE *out)
{
    struct nvrm_copy_caps caps[NVRM_COPY_ENGINES];
    int user[NVRM_USERS];
    const char *comma = "";

    GT_OK(mb__nvrm_copy_caps(t->dev->rm, caps));
    mb__nvrm_copy_users(caps, t->dev->rm->series->scrub_engines, user);
    fprintf(out, "{\"what\":\"copy engines\",\"engines\":[");
    for (unsigned i = 0; i < NVRM_COPY_ENGINES; i++) {
        const struct nvrm_copy_caps *c = &caps[i];

        if (!c->there)
            continue;
        fprintf(out,
                "%s{\"engine\":%u,\"hardware\":%u,\"graphics\":%d,\"shared\":%d,"
                "\"system_read\":%d,\"system_write\":%d,\"link\":%d}",
                comma, i, c->hardware, c->graphics, c->shared, c->system_read, c->system_write,
                c->link);
        comma = ",";
    }
    fprintf(out,
            "],\"to_gpu\":%d,\"to_host\":%d,\"internal\":%d,\"to_peer\":%d,"
            "\"memops\":%d}\n",
            user[NVRM_USER_TO_GPU], user[NVRM_USER_TO_HOST], user[NVRM_USER_INTERNAL],
            user[NVRM_USER_TO_PEER], user[NVRM_USER_MEMOPS]);
}

int gt_test_variant(void)
{
    const char *tables = gt_arg("tables", "inline"), *path = gt_arg("out", NULL);
    unsigned slabs = (unsigned)gt_arg_u64("slabs", 128);
    uint64_t slab_bytes = gt_arg_u64("slab_mb", 512) << 20;
    double t0 = gt_now_us(), open_us, ready_us, close_us;
    double map1, unmap1, map32, unmap32, alloc, give;
    char line[1024];
    struct copies c;
    struct gt t;
    FILE *out;

    gt_open(&t, tables);
    open_us = gt_now_us() - t0;
    neighbours(&t, 1, &map1, &unmap1);
    neighbours(&t, HANDLES, &map32, &unmap32);
    allocations(&t, &alloc, &give);
    copies(&t, &c);
    out = path ? fopen(path, "a") : NULL;
    if (out && t.dev->rm && !strcmp(gt_arg("name", "default"), "default"))
        write_engines(&t, out);
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
             "\"alloc_us\":%.1f,\"free_us\":%.1f,\"to_gpu_us\":%.1f,\"to_host_us\":%.1f,"
             "\"within_us\":%.1f,\"to_gpu_256k_us\":%.1f,\"to_host_256k_us\":%.1f,"
             "\"to_gpu_gbs\":%.1f,\"to_host_gbs\":%.1f,"
             "\"within_gbs\":%.1f}",
             gt_arg("name", "default"), tables, open_us,
             (uint64_t)(strcmp(tables, "driver") != 0 ? slabs : 1) * slab_bytes, ready_us, close_us,
             map1, unmap1, map32, unmap32, alloc, give, c.us[TO_GPU], c.us[TO_HOST], c.us[WITHIN],
             c.mid[TO_GPU], c.mid[TO_HOST], c.rate[TO_GPU], c.rate[TO_HOST], c.rate[WITHIN]);
    printf("BENCH %s\n", line);
    if (out) {
        fprintf(out, "%s\n", line);
        fclose(out);
    }
    return 0;
}
