/* SPDX-License-Identifier: MIT */
/*
 * driver.c - libcuda by dlopen.
 *
 * Locking    pthread_once; the table is constant afterwards.
 * Trade-offs libcuda is never closed: it has threads and exit handlers of its own, and closing it
 * under
 *            an application that uses it would be worse than keeping it.
 */
#include "hw/cuda/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "base/err.h"
#include "hw/cuda/calls.h"

static struct mb_cuda_driver table;
static enum mb_err open_result;
static char open_text[256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_once(void)
{
    static const char *const names[] = {"libcuda.so.1", "libcuda.so"};
    const char *why = "";

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) && !table.handle; i++) {
        table.handle = dlopen(names[i], RTLD_NOW | RTLD_GLOBAL);
        if (!table.handle)
            why = dlerror();
    }
    if (!table.handle) {
        open_result = MB_ERR_NO_DEVICE;
        snprintf(open_text, sizeof(open_text), "no CUDA driver: %s", why ? why : "libcuda.so.1");
        return;
    }
#define MB_CUDA_DRIVER_RESOLVE(member, symbol, args)                                               \
    *(void **)(&table.member) = dlsym(table.handle, symbol);                                       \
    if (!table.member && !open_result) {                                                           \
        open_result = MB_ERR_NOT_SUPPORTED;                                                        \
        snprintf(open_text, sizeof(open_text),                                                     \
                 "libcuda has no %s; MoonBright needs CUDA 12.0 "                                  \
                 "or later",                                                                       \
                 symbol);                                                                          \
    }
    MB_CUDA_DRIVER_LIST(MB_CUDA_DRIVER_RESOLVE)
#undef MB_CUDA_DRIVER_RESOLVE
}

enum mb_err mb__cuda_driver_open(const struct mb_cuda_driver **out)
{
    pthread_once(&once, open_once);
    if (open_result)
        return mb__fail(open_result, "%s", open_text);
    *out = mb__cuda_calls_table(&table);
    return MB_OK;
}

int mb__cuda_is_fatal(cu_result result)
{
    switch (result) {
    case 214: /* ECC uncorrectable */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case CU_CONTEXT_DESTROYED:
    case 710: /* assert */
    case 714: /* hardware stack */
    case 715: /* illegal instruction */
    case 716: /* misaligned address */
    case 717: /* invalid address space */
    case 718: /* invalid pc */
    case 719: /* launch failed */
    case 720: /* cooperative launch too large leaves no context either */
        return 1;
    default:
        return 0;
    }
}

enum mb_err mb__cuda_check(const struct mb_cuda_driver *cu, cu_result result, const char *what)
{
    const char *name = NULL;
    enum mb_err err = MB_ERR_DRIVER;

    if (result == CU_OK)
        return MB_OK;
    if (cu->error_name(result, &name) != CU_OK || !name)
        name = "unknown error";
    if (result == CU_OUT_OF_MEMORY)
        err = MB_ERR_NO_MEMORY;
    else if (mb__cuda_is_fatal(result))
        err = MB_ERR_DEVICE_LOST;
    return mb__fail(err, "%s: the CUDA driver says %s (%d)", what, name, result);
}
