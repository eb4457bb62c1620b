/* SPDX-License-Identifier: MIT */
/* fake_core.c - A FAKE of libamdhip64 (see fake_hip.h): record of calls, devices, plain memory. */
#define _GNU_SOURCE
#include "fake_hip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

/* ------------------------------------------------------------ options, record, injected
 * failures */

static struct fake_options options;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);

    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void read_options(void)
{
    options.memory_bytes = number("FAKE_HIP_MEMORY", (uint64_t)4 << 30);
    options.granularity = number("FAKE_HIP_GRANULARITY", 4096);
    options.devices = (int)number("FAKE_HIP_DEVICES", 1);
    options.old = number("FAKE_HIP_OLD", 0) != 0;
    options.wait_values = number("FAKE_HIP_WAIT_VALUES", 1) != 0;
    options.vmm = number("FAKE_HIP_VMM", 1) != 0;
}

const struct fake_options *fake_options(void)
{
    pthread_once(&once, read_options);
    return &options;
}

static struct record {
    const char *name;
    uint64_t calls;
    uint64_t fail_at; /* number of the call that fails; 0: none */
    int result;
} records[96];

static pthread_mutex_t record_lock = PTHREAD_MUTEX_INITIALIZER;

/* record_lock held */
static struct record *record_of(const char *name)
{
    struct record *r = records;

    while (r->name && strcmp(r->name, name) != 0)
        r++;
    if (!r->name) {
        if (r == records + sizeof(records) / sizeof(records[0]) - 1)
            abort();
        r->name = strdup(name);
    }
    return r;
}

int fake_enter(const char *name)
{
    struct record *r;
    int result = FAKE_OK;

    pthread_mutex_lock(&record_lock);
    r = record_of(name);
    r->calls++;
    if (r->calls == r->fail_at)
        result = r->result;
    pthread_mutex_unlock(&record_lock);
    return result;
}

uint64_t fake_hip_count(const char *name)
{
    uint64_t calls;

    pthread_mutex_lock(&record_lock);
    calls = record_of(name)->calls;
    pthread_mutex_unlock(&record_lock);
    return calls;
}

void fake_hip_fail(const char *name, uint64_t nth, int result)
{
    struct record *r;

    pthread_mutex_lock(&record_lock);
    r = record_of(name);
    r->fail_at = nth ? r->calls + nth : 0;
    r->result = result;
    pthread_mutex_unlock(&record_lock);
}

/* ------------------------------------------------------------ devices */

static __thread int current;

#define FAKE(name, ...)                                                                            \
    FAKE_API int name(__VA_ARGS__);                                                                \
    int name(__VA_ARGS__)

FAKE(hipInit, unsigned flags)
{
    FAKE_ENTER();
    return flags ? FAKE_INVALID_VALUE : FAKE_OK;
}

FAKE(hipRuntimeGetVersion, int *version)
{
    FAKE_ENTER();
    *version = 60200000;
    return FAKE_OK;
}

FAKE_API const char *hipGetErrorName(int result);
const char *hipGetErrorName(int result)
{
    switch (result) {
    case FAKE_OK:
        return "hipSuccess";
    case FAKE_INVALID_VALUE:
        return "hipErrorInvalidValue";
    case FAKE_OUT_OF_MEMORY:
        return "hipErrorOutOfMemory";
    case FAKE_NO_DEVICE:
        return "hipErrorNoDevice";
    case 719:
        return "hipErrorLaunchFailure";
    default:
        return "hipErrorUnknown";
    }
}

FAKE(hipGetDeviceCount, int *count)
{
    FAKE_ENTER();
    *count = fake_options()->devices;
    return *count ? FAKE_OK : FAKE_NO_DEVICE;
}

FAKE(hipGetDevice, int *ordinal)
{
    *ordinal = current;
    return FAKE_OK;
}

FAKE(hipSetDevice, int ordinal)
{
    FAKE_ENTER();
    if (ordinal < 0 || ordinal >= fake_options()->devices)
        return FAKE_INVALID_DEVICE;
    current = ordinal;
    return FAKE_OK;
}

FAKE(hipDeviceGetName, char *name, int bytes, int device)
{
    FAKE_ENTER();
    if (device < 0 || device >= fake_options()->devices)
        return FAKE_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "FAKE HIP device %d (for tests)", device);
    return FAKE_OK;
}

FAKE(hipDeviceGetAttribute, int *value, int attribute, int device)
{
    FAKE_ENTER();
    if (device < 0 || device >= fake_options()->devices)
        return FAKE_INVALID_DEVICE;
    switch (attribute) {
    case 63: /* multiprocessor count */
        *value = 104;
        return FAKE_OK;
    case 89: /* virtual memory management */
        *value = fake_options()->vmm;
        return FAKE_OK;
    case 10013: /* stream wait value */
        *value = fake_options()->wait_values;
        return FAKE_OK;
    default:
        return FAKE_INVALID_VALUE;
    }
}

FAKE(hipThreadExchangeStreamCaptureMode, int *mode)
{
    (void)mode;
    FAKE_ENTER();
    return FAKE_OK;
}

/* ------------------------------------------------------------ plain memory */

enum { DEVICE, HOST, SIGNAL };

static struct block {
    struct block *next;
    char *at;
    size_t bytes;
    int kind;
} * blocks; /* fake_lock */

static uint64_t plain_bytes; /* of DEVICE blocks; fake_lock */

static int take(void **ptr, size_t bytes, int kind)
{
    struct block *b = calloc(1, sizeof(*b));
    size_t whole = (bytes + 4095) / 4096 * 4096;
    void *at = mmap(NULL, whole ? whole : 4096, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (!b || at == MAP_FAILED) {
        free(b);
        return FAKE_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&fake_lock);
    if (kind == DEVICE &&
        plain_bytes + fake_hip_held_bytes() + bytes > fake_options()->memory_bytes) {
        pthread_mutex_unlock(&fake_lock);
        munmap(at, whole ? whole : 4096);
        free(b);
        return FAKE_OUT_OF_MEMORY;
    }
    plain_bytes += kind == DEVICE ? bytes : 0;
    *b = (struct block){.next = blocks, .at = at, .bytes = bytes, .kind = kind};
    blocks = b;
    pthread_mutex_unlock(&fake_lock);
    *ptr = at;
    return FAKE_OK;
}

static int give(void *ptr, bool host)
{
    struct block *b = NULL;

    if (!ptr)
        return FAKE_OK;
    /* As hipFree does: after everything that may use it. */
    fake_sync_all();
    pthread_mutex_lock(&fake_lock);
    for (struct block **at = &blocks; *at; at = &(*at)->next) {
        if ((*at)->at == ptr && ((*at)->kind == HOST) == host) {
            b = *at;
            *at = b->next;
            plain_bytes -= b->kind == DEVICE ? b->bytes : 0;
            break;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    if (!b)
        return FAKE_INVALID_VALUE;
    munmap(b->at, b->bytes ? (b->bytes + 4095) / 4096 * 4096 : 4096);
    free(b);
    return FAKE_OK;
}

FAKE(hipMalloc, void **ptr, size_t bytes)
{
    FAKE_ENTER();
    if (!ptr)
        return FAKE_INVALID_VALUE;
    if (!bytes) {
        *ptr = NULL;
        return FAKE_OK;
    }
    return take(ptr, bytes, DEVICE);
}

FAKE(hipExtMallocWithFlags, void **ptr, size_t bytes, unsigned flags)
{
    FAKE_ENTER();
    if (flags == 2)
        return bytes == 8 ? take(ptr, bytes, SIGNAL) : FAKE_INVALID_VALUE;
    return flags ? FAKE_INVALID_VALUE : take(ptr, bytes, DEVICE);
}

FAKE(hipFree, void *ptr)
{
    FAKE_ENTER();
    return give(ptr, false);
}

/* Stream order is that of the host here: a fake may be slow. */
FAKE(hipMallocAsync, void **ptr, size_t bytes, void *stream)
{
    (void)stream;
    FAKE_ENTER();
    return bytes ? take(ptr, bytes, DEVICE) : FAKE_INVALID_VALUE;
}

FAKE(hipFreeAsync, void *ptr, void *stream)
{
    (void)stream;
    FAKE_ENTER();
    return give(ptr, false);
}

FAKE(hipMemGetAddressRange, void **base, size_t *bytes, void *ptr)
{
    int result = FAKE_NOT_FOUND;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    for (const struct block *b = blocks; b; b = b->next) {
        if ((char *)ptr >= b->at && (char *)ptr < b->at + b->bytes) {
            *base = b->at;
            *bytes = b->bytes;
            result = FAKE_OK;
        }
    }
    pthread_mutex_unlock(&fake_lock);
    return result;
}

FAKE(hipHostMalloc, void **ptr, size_t bytes, unsigned flags)
{
    (void)flags;
    FAKE_ENTER();
    return take(ptr, bytes, HOST);
}

FAKE(hipHostFree, void *ptr)
{
    FAKE_ENTER();
    return give(ptr, true);
}

FAKE(hipMemGetInfo, size_t *free_bytes, size_t *total)
{
    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    *total = fake_options()->memory_bytes;
    *free_bytes = *total - plain_bytes - fake_hip_held_bytes();
    pthread_mutex_unlock(&fake_lock);
    return FAKE_OK;
}

bool fake_is_signal(const void *address)
{
    for (const struct block *b = blocks; b; b = b->next) {
        if (b->kind == SIGNAL && b->at == (const char *)address)
            return true;
    }
    return false;
}

bool fake_is_known(const void *address, size_t bytes)
{
    const char *at = address;

    for (const struct block *b = blocks; b; b = b->next) {
        if (at >= b->at && at - b->at <= (ptrdiff_t)b->bytes &&
            bytes <= b->bytes - (size_t)(at - b->at))
            return true;
    }
    return fake_is_mapped(address, bytes);
}

/* ------------------------------------------------------------ attributes of pointers */

struct attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
};

FAKE(hipPointerGetAttributes, struct attributes *out, const void *ptr)
{
    bool known = false;
    int kind = DEVICE;

    FAKE_ENTER();
    pthread_mutex_lock(&fake_lock);
    for (const struct block *b = blocks; b; b = b->next) {
        if ((const char *)ptr >= b->at && (const char *)ptr < b->at + b->bytes) {
            kind = b->kind;
            known = true;
        }
    }
    known = known || fake_is_mapped(ptr, 1);
    pthread_mutex_unlock(&fake_lock);
    if (!known)
        return FAKE_INVALID_VALUE;
    *out =
        (struct attributes){.type = kind == HOST ? 1 : 2, .device_pointer = (void *)(uintptr_t)ptr};
    if (kind == HOST)
        out->host_pointer = (void *)(uintptr_t)ptr;
    return FAKE_OK;
}
