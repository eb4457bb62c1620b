/* SPDX-License-Identifier: MIT */
/*
 * driver.c - the two things that the plug-in asks the CUDA driver itself, if PyTorch has loaded it.
 *
 * Nothing is linked: libcuda is only looked up when it is in the process already. The relaxed
 * capture mode has not been run on a GPU.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static struct {
    int (*device_get)(int *device, int ordinal);
    int (*total_mem)(size_t *bytes, int device);
    int (*exchange)(int *mode);
} cuda; /* written once; a member is NULL if the driver lacks it */

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    if (!library)
        return;
    *(void **)&cuda.device_get = dlsym(library, "cuDeviceGet");
    *(void **)&cuda.total_mem = dlsym(library, "cuDeviceTotalMem_v2");
    *(void **)&cuda.exchange = dlsym(library, "cuThreadExchangeStreamCaptureMode");
}

/* Value of `device_memory` in a configuration, in bytes; 0: not there. mb_open() has checked the
 * text, so units are known ones. */
static uint64_t configured(const char *config)
{
    static const char key[] = "device_memory:", units[] = "kmgt";
    const char *at = config ? strstr(config, key) : NULL, *unit;
    char *end;
    unsigned long long value;

    if (!at)
        return 0;
    value = strtoull(at + sizeof(key) - 1, &end, 0);
    unit = *end ? strchr(units, *end | 0x20) : NULL;
    return unit ? value << (10 * (unit - units + 1)) : value;
}

enum mb_err mb__torch_total(mb_device dev, int device, uint64_t *out)
{
    uint64_t limit = configured(getenv("MOONBRIGHT"));
    size_t bytes = 0;
    int handle;

    if (!strcmp(mb_device_backend(dev), "cuda")) {
        (void)pthread_once(&once, find);
        if (cuda.device_get && cuda.total_mem && !cuda.device_get(&handle, device) &&
            !cuda.total_mem(&bytes, handle)) {
            *out = limit && limit < bytes ? limit : bytes;
            return MB_OK;
        }
    }
    if (!limit)
        return mb__torch_fail(MB_ERR_NOT_SUPPORTED,
                              "the size of device %d's memory is not known; set "
                              "device_memory:BYTES in $MOONBRIGHT, or a limit in bytes",
                              device);
    *out = limit;
    return MB_OK;
}

int mb__torch_capture_mode(int mode)
{
    if (mode < 0)
        return -1;
    (void)pthread_once(&once, find);
    return cuda.exchange && !cuda.exchange(&mode) ? mode : -1;
}
