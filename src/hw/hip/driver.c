/* SPDX-License-Identifier: MIT */
/*
 * driver.c - libamdhip64 by dlopen.
 *
 * Locking    pthread_once; the table is constant afterwards.
 * Trade-offs The library is never closed: it has threads and exit handlers of its own. It is opened
 *            locally, so that its symbols do not stand in front of another HIP in the process; if
 *            the program has loaded one of these names, dlopen gives that one.
 */
#include "hw/hip/driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static struct mb_hip_driver table;
static enum mb_err open_result;
static char open_text[480];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void append(const char *text)
{
    size_t used = strlen(open_text);

    snprintf(open_text + used, sizeof(open_text) - used, "%s", text);
}

static void not_found(const char *why)
{
    open_result = MB_ERR_NO_DEVICE;
    snprintf(open_text, sizeof(open_text),
             "no HIP runtime: none of libamdhip64.so.7, .6, .5 and libamdhip64.so can be opened "
             "(%.200s); "
             "install ROCm, or put its lib directory into LD_LIBRARY_PATH",
             why ? why : "no reason given");
}

enum { NAMED = 10 };
static unsigned missing_count;

/* In one line, so that a person sees at once whether another ROCm is needed. */
static void missing(const char *symbol)
{
    if (!open_result)
        snprintf(open_text, sizeof(open_text), "%s lacks", table.file);
    open_result = MB_ERR_NOT_SUPPORTED;
    if (missing_count++ >= NAMED)
        return;
    append(missing_count > 1 ? ", " : " ");
    append(symbol);
}

static void end_of_missing(void)
{
    char text[96] = "";

    if (missing_count > NAMED)
        snprintf(text, sizeof(text), " and %u more", missing_count - NAMED);
    append(text);
    append("; MoonBright needs ROCm 5.6 or later");
}

static void open_once(void)
{
    static const char *const names[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5",
                                        "libamdhip64.so"};
    char why[256] = "";

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]) && !table.handle; i++) {
        table.handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        table.file = names[i];
        /* The first reason is of the newest name; a later one only says the same of an older. */
        if (!table.handle && !why[0]) {
            const char *said = dlerror(); /* the next dlopen frees it */

            snprintf(why, sizeof(why), "%s", said ? said : "unknown");
        }
    }
    if (!table.handle) {
        not_found(why);
        return;
    }
#define MB_HIP_DRIVER_RESOLVE(member, symbol, result, args)                                        \
    *(void **)(&table.member) = dlsym(table.handle, symbol);                                       \
    if (!table.member)                                                                             \
        missing(symbol);
    MB_HIP_DRIVER_LIST(MB_HIP_DRIVER_RESOLVE)
#undef MB_HIP_DRIVER_RESOLVE
    if (open_result)
        end_of_missing();
}

enum mb_err mb__hip_driver_open(const struct mb_hip_driver **out)
{
    pthread_once(&once, open_once);
    if (open_result)
        return mb__hip_fail(open_result, "%s", open_text);
    *out = &table;
    return MB_OK;
}

enum mb_err mb__hip_err(hip_result result)
{
    switch (result) {
    case HIP_OK:
        return MB_OK;
    case HIP_OUT_OF_MEMORY:
        return MB_ERR_NO_MEMORY;
    case HIP_NO_DEVICE:
    case HIP_INVALID_DEVICE:
        return MB_ERR_NO_DEVICE;
    case HIP_NO_BINARY:
    case HIP_NOT_SUPPORTED:
        return MB_ERR_NOT_SUPPORTED;
    case 214: /* ECC uncorrectable */
    case 700: /* illegal address */
    case 702: /* launch timeout */
    case 710: /* assert */
    case 719: /* launch failure */
        return MB_ERR_DEVICE_LOST;
    default:
        return MB_ERR_DRIVER;
    }
}

enum mb_err mb__hip_check(const struct mb_hip_driver *hip, hip_result result, const char *what)
{
    const char *name;

    if (result == HIP_OK)
        return MB_OK;
    name = hip->error_name(result);
    return mb__hip_fail(mb__hip_err(result), "%s: HIP says %s (%d)", what, name ? name : "?",
                        result);
}
