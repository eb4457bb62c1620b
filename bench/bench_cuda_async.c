/* SPDX-License-Identifier: MIT */
/*
 * bench_cuda_async.c - the driver's own pool beside the model cuda-async, both fed with the bundled
 * traces on one stream: peak reserved and peak used bytes, and time per call of the real one.
 *
 *     bench_cuda_async [--check] [DIRECTORY of the traces; default data/torch]
 *
 * Exit status: 0 measured or no GPU (said so), 1 an error; with --check also 1 if the model's
 * reserved peak is more than 10% off the pool's, and 77 without a GPU.
 *
 * Links no CUDA: the driver is looked up at run time, its few types are declared here.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/models/model.h"
#include "cli/trace/trace.h"

#define TOLERANCE 0.10

typedef int cu_result; /* CUresult, 0 is success */
typedef unsigned long long cu_pointer;

/* CUmemPoolProps: 88 bytes. */
struct pool_props {
    int alloc_type, handle_types;
    struct {
        int type, id;
    } location;
    void *security_attributes;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct pool_props) == 88, "the driver's struct has another size");

enum {
    ALLOC_TYPE_PINNED = 1,
    LOCATION_DEVICE = 1,
    ATTR_RELEASE_THRESHOLD = 4,
    ATTR_RESERVED_HIGH = 6,
    ATTR_USED_HIGH = 8,
    STREAM_NON_BLOCKING = 1,
};

/* The driver's functions that are called. */
static struct {
    cu_result (*init)(unsigned);
    cu_result (*device_get)(int *, int);
    cu_result (*device_name)(char *, int, int);
    cu_result (*context_retain)(void **, int);
    cu_result (*context_set)(void *);
    cu_result (*pool_create)(void **, const struct pool_props *);
    cu_result (*pool_destroy)(void *);
    cu_result (*pool_get)(void *, int, void *);
    cu_result (*pool_set)(void *, int, void *);
    cu_result (*alloc)(cu_pointer *, size_t, void *, void *);
    cu_result (*free)(cu_pointer, void *);
    cu_result (*stream_create)(void **, unsigned);
    cu_result (*stream_sync)(void *);
} cu;

/* NULL when a device is ready, else why not. */
static const char *open_driver(char name[96])
{
    static const struct {
        const char *name;
        void *target;
    } symbols[] = {
        {"cuInit", &cu.init},
        {"cuDeviceGet", &cu.device_get},
        {"cuDeviceGetName", &cu.device_name},
        {"cuDevicePrimaryCtxRetain", &cu.context_retain},
        {"cuCtxSetCurrent", &cu.context_set},
        {"cuMemPoolCreate", &cu.pool_create},
        {"cuMemPoolDestroy", &cu.pool_destroy},
        {"cuMemPoolGetAttribute", &cu.pool_get},
        {"cuMemPoolSetAttribute", &cu.pool_set},
        {"cuMemAllocFromPoolAsync", &cu.alloc},
        {"cuMemFreeAsync", &cu.free},
        {"cuStreamCreate", &cu.stream_create},
        {"cuStreamSynchronize", &cu.stream_sync},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    int device = 0;

    if (!library)
        return "there is no CUDA driver: libcuda.so.1 cannot be loaded";
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (!symbol)
            return "the CUDA driver is too old for stream-ordered pools";
        memcpy(symbols[i].target, &symbol, sizeof(symbol));
    }
    if (cu.init(0) || cu.device_get(&device, 0))
        return "the CUDA driver finds no device";
    if (cu.device_name(name, 96, device) || cu.context_retain(&context, device) ||
        cu.context_set(context))
        return "the CUDA driver gives no context on device 0";
    return NULL;
}

/* The pool, and where the live blocks of the trace are. Owner: run_trace(). */
struct real {
    void *pool, *stream;
    cu_pointer *blocks;
    size_t capacity;
    unsigned long calls;
};

static bool complain(const char *what, cu_result result)
{
    if (result)
        fprintf(stderr, "bench_cuda_async: %s: CUDA error %d\n", what, result);
    return result == 0;
}

static bool open_pool(struct real *real)
{
    struct pool_props props = {.alloc_type = ALLOC_TYPE_PINNED, .location = {LOCATION_DEVICE, 0}};
    uint64_t keep_all = UINT64_MAX;

    return complain("cuMemPoolCreate", cu.pool_create(&real->pool, &props)) &&
           complain("cuMemPoolSetAttribute",
                    cu.pool_set(real->pool, ATTR_RELEASE_THRESHOLD, &keep_all)) &&
           complain("cuStreamCreate", cu.stream_create(&real->stream, STREAM_NON_BLOCKING));
}

static bool make_room(struct real *real, uint32_t slot)
{
    size_t capacity = 2 * (size_t)slot + 1024;
    cu_pointer *grown;

    if (slot < real->capacity)
        return true;
    grown = realloc(real->blocks, capacity * sizeof(*grown));
    if (!grown) {
        fprintf(stderr, "bench_cuda_async: the host is out of memory\n");
        return false;
    }
    real->blocks = grown;
    real->capacity = capacity;
    return true;
}

static bool real_event(struct real *real, const struct trace_event *event)
{
    real->calls += event->op == TRACE_ALLOC || event->op == TRACE_FREE;
    if (event->op == TRACE_FREE && !event->before_trace)
        return complain("cuMemFreeAsync", cu.free(real->blocks[event->slot], real->stream));
    if (event->op != TRACE_ALLOC)
        return true;
    return make_room(real, event->slot) &&
           complain("cuMemAllocFromPoolAsync",
                    cu.alloc(&real->blocks[event->slot], event->bytes, real->pool, real->stream));
}

/* Every event of the trace at `path` to one of the two; the other is NULL. */
static bool feed(const char *path, struct real *real, struct model *model)
{
    const struct trace_options options = {.device = TRACE_ANY_DEVICE};
    struct trace_reader *reader = NULL;
    struct trace_event event;
    enum trace_status status;
    char error[1024];
    bool fine = true;

    if (trace_open(path, &options, &reader, error, sizeof(error))) {
        fprintf(stderr, "bench_cuda_async: %s\n", error);
        return false;
    }
    while (fine && (status = trace_next(reader, &event)) == TRACE_OK)
        fine = real ? real_event(real, &event) : model_event(model, &event) == MODEL_OK;
    if (fine && status != TRACE_END) {
        fprintf(stderr, "bench_cuda_async: %s\n", trace_error(reader));
        fine = false;
    }
    trace_close(reader);
    return fine;
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* The model's reserved peak over the pool's goes to *ratio. */
static bool compare(const char *name, const char *path, struct real *real, struct model *model,
                    double *ratio)
{
    uint64_t reserved = 0;
    uint64_t used = 0;
    double start = now_us();
    double us;

    if (!feed(path, real, NULL) || !complain("cuStreamSynchronize", cu.stream_sync(real->stream)))
        return false;
    us = (now_us() - start) / (double)real->calls;
    if (!complain("cuMemPoolGetAttribute",
                  cu.pool_get(real->pool, ATTR_RESERVED_HIGH, &reserved)) ||
        !complain("cuMemPoolGetAttribute", cu.pool_get(real->pool, ATTR_USED_HIGH, &used)) ||
        !feed(path, NULL, model))
        return false;
    *ratio = (double)model_stats(model)->reserved_peak_bytes / (double)reserved;
    printf("%-23s%14lu%14lu%+8.2f%%%14lu%14lu%9.2f\n", name, (unsigned long)reserved,
           (unsigned long)model_stats(model)->reserved_peak_bytes, 100 * (*ratio - 1),
           (unsigned long)used, (unsigned long)model_stats(model)->granted_peak_bytes, us);
    return true;
}

static bool run_trace(const char *directory, const char *name, double *ratio)
{
    struct real real = {.pool = NULL};
    struct model *model = NULL;
    char path[4096];
    char error[256];
    bool fine;

    snprintf(path, sizeof(path), "%s/%s.csv.gz", directory, name);
    if (model_open("cuda-async", 0, &model, error, sizeof(error))) {
        fprintf(stderr, "bench_cuda_async: %s\n", error);
        return false;
    }
    fine = open_pool(&real) && compare(name, path, &real, model, ratio);
    /* Blocks that live at the end of the trace go now, so that the next trace has all memory. */
    for (size_t i = 0; fine && i < real.capacity; i++)
        if (model_address(model, (uint32_t)i))
            fine = complain("cuMemFreeAsync", cu.free(real.blocks[i], real.stream));
    if (fine)
        fine = complain("cuStreamSynchronize", cu.stream_sync(real.stream)) &&
               complain("cuMemPoolDestroy", cu.pool_destroy(real.pool));
    model_close(model);
    free(real.blocks);
    return fine;
}

int main(int argc, char **argv)
{
    static const char *const traces[] = {"densenet161", "gpt2", "llama-recompute",
                                         "moe-offload-recompute", "llama-generate-beam4"};
    bool check = argc > 1 && !strcmp(argv[1], "--check");
    const char *directory = argc > 1 + check ? argv[1 + check] : "data/torch";
    char device[96] = "";
    const char *problem = open_driver(device);
    unsigned apart = 0;

    if (problem) {
        printf("SKIP: bench_cuda_async: %s\n", problem);
        return check ? 77 : 0;
    }
    printf("cudaMallocAsync's pool on %s beside the «model» cuda-async, bytes\n", device);
    printf("%-23s%14s%14s%9s%14s%14s%9s\n", "trace", "reserved", "model", "", "used", "model",
           "us/call");
    for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
        double ratio = 1;

        if (!run_trace(directory, traces[i], &ratio))
            return 1;
        apart += ratio < 1 - TOLERANCE || ratio > 1 + TOLERANCE;
    }
    printf("%u of %zu reserved peaks are more than %.0f%% apart\n", apart,
           sizeof(traces) / sizeof(traces[0]), 100 * TOLERANCE);
    return check && apart ? 1 : 0;
}
