/* SPDX-License-Identifier: MIT */
/* fake_core.c - A FAKE of libcuda (see fake_cuda.h): record of calls, devices, contexts. */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static struct fake_options options;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void read_options(void)
{
    options.memory_bytes = number("FAKE_CUDA_MEMORY", (uint64_t)2 << 30);
    options.devices = (int)number("FAKE_CUDA_DEVICES", 1);
    options.version = (int)number("FAKE_CUDA_VERSION", 13000);
}

const struct fake_options *fake_options(void)
{
    pthread_once(&once, read_options);
    return &options;
}

/* ------------------------------------------------------------ record */

static struct {
    const char *name;
    uint64_t calls;
} records[256];
static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;

void fake_called(const char *name)
{
    unsigned i = 0;

    pthread_mutex_lock(&record_lock);
    while (records[i].name && strcmp(records[i].name, name) != 0)
        i++;
    if (i == sizeof(records) / sizeof(records[0]) - 1)
        abort();
    records[i].name = name;
    records[i].calls++;
    pthread_mutex_unlock(&record_lock);
}

uint64_t fake_cuda_count(const char *name)
{
    uint64_t calls = 0;

    pthread_mutex_lock(&record_lock);
    for (unsigned i = 0; records[i].name; i++)
        calls = strcmp(records[i].name, name) ? calls : records[i].calls;
    pthread_mutex_unlock(&record_lock);
    return calls;
}

/* ------------------------------------------------------------ devices */

FAKE(cuInit, unsigned flags)
{
    CALLED();
    return flags ? FAKE_INVALID_VALUE : FAKE_OK;
}

FAKE(cuDriverGetVersion, int *version)
{
    CALLED();
    *version = fake_options()->version;
    return FAKE_OK;
}

static bool good(int device)
{
    return device >= 0 && device < fake_options()->devices;
}

FAKE(cuDeviceGetCount, int *count)
{
    CALLED();
    *count = fake_options()->devices;
    return FAKE_OK;
}

FAKE(cuDeviceGet, int *device, int ordinal)
{
    CALLED();
    *device = ordinal;
    return good(ordinal) ? FAKE_OK : FAKE_INVALID_DEVICE;
}

FAKE(cuDeviceGetName, char *name, int bytes, int device)
{
    CALLED();
    snprintf(name, (size_t)bytes, "FAKE CUDA device %d (for tests)", device);
    return FAKE_OK;
}

FAKE(cuDeviceGetUuid_v2, unsigned char *uuid, int device)
{
    CALLED();
    memset(uuid, 0xfa, 16);
    uuid[15] = (unsigned char)device;
    return FAKE_OK;
}

FAKE(cuDeviceTotalMem_v2, size_t *bytes, int device)
{
    CALLED();
    *bytes = fake_options()->memory_bytes;
    return good(device) ? FAKE_OK : FAKE_INVALID_DEVICE;
}

FAKE(cuDeviceGetAttribute, int *value, int attribute, int device)
{
    CALLED();
    switch (attribute) {
    case 16: /* multiprocessors */
        *value = 4;
        break;
    case 75: /* compute capability */
        *value = 9;
        break;
    case 10: /* warp */
        *value = 32;
        break;
    case 41:  /* unified addressing */
    case 102: /* virtual memory management */
    case 115: /* memory pools */
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return good(device) ? FAKE_OK : FAKE_INVALID_DEVICE;
}

FAKE(cuDeviceCanAccessPeer, int *can, int device, int peer)
{
    CALLED();
    *can = device != peer;
    return good(device) && good(peer) ? FAKE_OK : FAKE_INVALID_DEVICE;
}

static int error_text(int result, const char **text)
{
    *text = result ? "CUDA_ERROR_OF_THE_FAKE" : "CUDA_SUCCESS";
    return FAKE_OK;
}

FAKE(cuGetErrorName, int result, const char **name)
{
    CALLED();
    return error_text(result, name);
}

FAKE(cuGetErrorString, int result, const char **name)
{
    CALLED();
    return error_text(result, name);
}

/* ------------------------------------------------------------ contexts */

enum { DEPTH = 16 };

static struct fake_context primary[8];
static unsigned long long ids; /* fake_lock */
static __thread struct fake_context *stack[DEPTH];
static __thread unsigned top; /* number of entries */

struct fake_context *fake_current(void)
{
    return top ? stack[top - 1] : NULL;
}

FAKE(cuDevicePrimaryCtxRetain, struct fake_context **ctx, int device)
{
    CALLED();
    if (!good(device))
        return FAKE_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    if (!primary[device].alive)
        primary[device] = (struct fake_context){.device = device, .alive = true, .id = ++ids};
    primary[device].refs++;
    pthread_mutex_unlock(&fake_lock);
    *ctx = &primary[device];
    return FAKE_OK;
}

FAKE(cuDevicePrimaryCtxRelease_v2, int device)
{
    int result = FAKE_INVALID_CONTEXT;

    CALLED();
    pthread_mutex_lock(&fake_lock);
    if (good(device) && primary[device].refs) {
        primary[device].alive = --primary[device].refs > 0;
        result = FAKE_OK;
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

/* As in CUDA, the handle stays and names the context that the next use makes. */
static int reset(int device)
{
    if (!good(device))
        return FAKE_INVALID_DEVICE;
    pthread_mutex_lock(&fake_lock);
    primary[device].id = ++ids;
    fake_end_streams(device);
    pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

FAKE(cuDevicePrimaryCtxReset, int device)
{
    CALLED();
    return reset(device);
}

FAKE(cuDevicePrimaryCtxReset_v2, int device)
{
    CALLED();
    return reset(device);
}

FAKE(cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active)
{
    CALLED();
    if (!good(device))
        return FAKE_INVALID_DEVICE;
    *flags = 0;
    *active = primary[device].alive;
    return FAKE_OK;
}

FAKE(cuDevicePrimaryCtxSetFlags_v2, int device, unsigned flags)
{
    (void)flags;
    CALLED();
    return good(device) ? FAKE_OK : FAKE_INVALID_DEVICE;
}

FAKE(cuCtxCreate_v2, struct fake_context **ctx, unsigned flags, int device)
{
    struct fake_context *c = calloc(1, sizeof(*c));

    (void)flags;
    CALLED();
    if (!c || !good(device) || top == DEPTH) {
        free(c);
        return FAKE_INVALID_VALUE;
    }
    pthread_mutex_lock(&fake_lock);
    *c = (struct fake_context){.device = device, .alive = true, .id = ++ids};
    pthread_mutex_unlock(&fake_lock);
    stack[top++] = c;
    *ctx = c;
    return FAKE_OK;
}

FAKE(cuCtxGetCurrent, struct fake_context **ctx)
{
    CALLED();
    *ctx = fake_current();
    return FAKE_OK;
}

FAKE(cuCtxSetCurrent, struct fake_context *ctx)
{
    CALLED();
    if (!ctx) {
        top = top ? top - 1 : 0;
        return FAKE_OK;
    }
    if (!top)
        top = 1;
    stack[top - 1] = ctx;
    return FAKE_OK;
}

FAKE(cuCtxPushCurrent_v2, struct fake_context *ctx)
{
    CALLED();
    if (top == DEPTH || !ctx || !ctx->alive)
        return FAKE_INVALID_CONTEXT;
    stack[top++] = ctx;
    return FAKE_OK;
}

FAKE(cuCtxPopCurrent_v2, struct fake_context **ctx)
{
    CALLED();
    if (!top)
        return FAKE_INVALID_CONTEXT;
    top--;
    if (ctx)
        *ctx = stack[top];
    return FAKE_OK;
}

FAKE(cuCtxGetDevice, int *device)
{
    CALLED();
    if (!top)
        return FAKE_INVALID_CONTEXT;
    *device = fake_current()->device;
    return FAKE_OK;
}

FAKE(cuCtxGetId, struct fake_context *ctx, unsigned long long *id)
{
    CALLED();
    ctx = ctx ? ctx : fake_current();
    if (!ctx || !ctx->alive)
        return FAKE_INVALID_CONTEXT;
    *id = ctx->id;
    return FAKE_OK;
}

FAKE(cuCtxGetApiVersion, struct fake_context *ctx, unsigned *version)
{
    (void)ctx;
    CALLED();
    *version = 3020;
    return FAKE_OK;
}

FAKE(cuCtxEnablePeerAccess, struct fake_context *peer, unsigned flags)
{
    CALLED();
    return peer && !flags ? FAKE_OK : FAKE_INVALID_VALUE;
}

/* ------------------------------------------------------------ modules: kernels do nothing */

FAKE(cuModuleLoadData, void **module, const void *image)
{
    CALLED();
    *module = calloc(1, 1);
    return image && *module ? FAKE_OK : FAKE_INVALID_VALUE;
}

FAKE(cuModuleUnload, void *module)
{
    CALLED();
    free(module);
    return FAKE_OK;
}

/* A kernel that the fake can run, or the module itself for one that does nothing. */
FAKE(cuModuleGetFunction, const void **function, void *module, const char *name)
{
    const struct fake_kernel *kernel = name ? fake_kernel_named(name) : NULL;

    CALLED();
    *function = kernel ? (const void *)kernel : module;
    return name ? FAKE_OK : FAKE_INVALID_VALUE;
}
