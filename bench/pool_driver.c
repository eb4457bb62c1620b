/* SPDX-License-Identifier: MIT */
#include "pool_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct pool_driver cu;

enum {
    ALLOC_TYPE_PINNED = 1,
    LOCATION_DEVICE = 1,
    STREAM_NON_BLOCKING = 1,
    EVENT_NO_TIMING = 2,
};

static bool find_symbols(void *library)
{
    static const struct {
        const char *name;
        void *target;
    } symbols[] = {
        {"cuInit", &cu.init},
        {"cuDriverGetVersion", &cu.version},
        {"cuDeviceGet", &cu.device_get},
        {"cuDeviceGetName", &cu.device_name},
        {"cuDevicePrimaryCtxRetain", &cu.context_retain},
        {"cuCtxSetCurrent", &cu.context_set},
        {"cuCtxSynchronize", &cu.context_sync},
        {"cuMemPoolCreate", &cu.pool_create},
        {"cuMemPoolDestroy", &cu.pool_destroy},
        {"cuMemPoolGetAttribute", &cu.pool_get},
        {"cuMemPoolSetAttribute", &cu.pool_set},
        {"cuMemPoolTrimTo", &cu.pool_trim},
        {"cuMemAllocFromPoolAsync", &cu.alloc},
        {"cuMemFreeAsync", &cu.free},
        {"cuStreamCreate", &cu.stream_create},
        {"cuStreamDestroy_v2", &cu.stream_destroy},
        {"cuStreamSynchronize", &cu.stream_sync},
        {"cuStreamWaitEvent", &cu.stream_wait},
        {"cuEventCreate", &cu.event_create},
        {"cuEventDestroy_v2", &cu.event_destroy},
        {"cuEventRecord", &cu.event_record},
        {"cuMemcpyHtoDAsync_v2", &cu.write},
        {"cuMemcpyDtoHAsync_v2", &cu.read},
    };

    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *symbol = dlsym(library, symbols[i].name);

        if (!symbol)
            return false;
        memcpy(symbols[i].target, &symbol, sizeof(symbol));
    }
    return true;
}

const char *pool_driver_open(char name[96])
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *context = NULL;
    int device = 0;

    if (!library)
        return "there is no CUDA driver: libcuda.so.1 cannot be loaded";
    if (!find_symbols(library))
        return "the CUDA driver is too old for stream-ordered pools";
    if (cu.init(0) || cu.device_get(&device, 0))
        return "the CUDA driver finds no device";
    if (cu.device_name(name, 96, device) || cu.context_retain(&context, device) ||
        cu.context_set(context))
        return "the CUDA driver gives no context on device 0";
    return NULL;
}

void pool_driver_release(char *text, size_t size)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[512] = "";
    const char *word = NULL;

    snprintf(text, size, "unknown");
    if (!file)
        return;
    if (fgets(line, sizeof(line), file))
        word = line;
    fclose(file);
    /* The first word of digits and points: «580.159.04». */
    for (word = word ? strtok(line, " \t\n") : NULL; word; word = strtok(NULL, " \t\n")) {
        if (strchr(word, '.') && word[strspn(word, "0123456789.")] == '\0') {
            snprintf(text, size, "%s", word);
            return;
        }
    }
}

bool pool_fine(const char *what, cu_result result)
{
    if (result)
        fprintf(stderr, "bench_cuda_async: %s: CUDA error %d\n", what, result);
    return result == 0;
}

bool pool_open(void **pool, uint64_t limit_bytes)
{
    struct pool_props props = {.alloc_type = ALLOC_TYPE_PINNED,
                               .location = {LOCATION_DEVICE, 0},
                               .max_size = (size_t)limit_bytes};
    uint64_t keep_all = UINT64_MAX;

    return pool_fine("cuMemPoolCreate", cu.pool_create(pool, &props)) &&
           pool_fine("cuMemPoolSetAttribute",
                     cu.pool_set(*pool, POOL_RELEASE_THRESHOLD, &keep_all));
}

uint64_t pool_attribute(void *pool, int attribute)
{
    uint64_t value = 0;

    return pool_fine("cuMemPoolGetAttribute", cu.pool_get(pool, attribute, &value)) ? value : 0;
}

bool pool_stream(void **stream)
{
    return pool_fine("cuStreamCreate", cu.stream_create(stream, STREAM_NON_BLOCKING));
}

bool pool_order(void *stream, void *other)
{
    void *event = NULL;

    /* Destroying an event that was recorded is allowed: what waits for it still does. */
    return pool_fine("cuEventCreate", cu.event_create(&event, EVENT_NO_TIMING)) &&
           pool_fine("cuEventRecord", cu.event_record(event, other)) &&
           pool_fine("cuStreamWaitEvent", cu.stream_wait(stream, event, 0)) &&
           pool_fine("cuEventDestroy", cu.event_destroy(event));
}

double pool_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
