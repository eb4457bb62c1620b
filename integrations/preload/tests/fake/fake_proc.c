/* SPDX-License-Identifier: MIT */
/*
 * fake_proc.c - A FAKE of libcuda (see fake_cuda.h): looking functions up.
 *
 * Names carry versions as the driver's do: a request for "cuMemAlloc" by a program of CUDA 3.2 or
 * later is for cuMemAlloc_v2, and one with per-thread default streams for the _ptsz variant. The
 * private tables that the CUDA runtime asks for are not there: NVIDIA's own runtime gets all its
 * functions and then gives up, which shows what it asked for.
 */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Exported by this very library; found through its own handle, whoever stands in front. */
static void *lookup(const char *name)
{
    static void *self;

    if (!self) {
        Dl_info info;

        if (dladdr((void *)(uintptr_t)fake_called, &info))
            self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    return self ? dlsym(self, name) : NULL;
}

static void trace(const char *name, int version, uint64_t flags, const void *found)
{
    const char *path = getenv("FAKE_CUDA_TRACE");
    FILE *file = path ? fopen(path, "ae") : NULL;

    if (!file)
        return;
    fprintf(file, "%s %d %llu %s\n", name, version, (unsigned long long)flags,
            found ? "found" : "missing");
    fclose(file);
}

enum { SUFFIX = 128 };

/* Second versions that came late. */
static int since(const char *full)
{
    if (!strcmp(full, "cuGetProcAddress_v2"))
        return 12000;
    return strcmp(full, "cuDevicePrimaryCtxReset_v2") ? 0 : 11000;
}

static void *find(const char *name, int version, uint64_t flags)
{
    static const char *const suffixes[] = {"_v2", ""};
    char full[SUFFIX];
    void *found = NULL;

    for (unsigned i = 0; i < 2 && !found; i++) {
        if (flags & 2) {
            snprintf(full, sizeof(full), "%s%s_ptsz", name, suffixes[i]);
            found = lookup(full);
        }
        if (!found) {
            snprintf(full, sizeof(full), "%s%s", name, suffixes[i]);
            if (version >= since(full))
                found = lookup(full);
        }
    }
    trace(name, version, flags, found);
    return found;
}

FAKE(cuGetProcAddress, const char *name, void **out, int version, uint64_t flags)
{
    CALLED();
    *out = find(name, version, flags);
    return *out ? FAKE_OK : FAKE_NOT_FOUND;
}

FAKE(cuGetProcAddress_v2, const char *name, void **out, int version, uint64_t flags, int *status)
{
    CALLED();
    *out = find(name, version, flags);
    if (status)
        *status = *out ? 0 : 1;
    return *out ? FAKE_OK : FAKE_NOT_FOUND;
}

/* ------------------------------------------------------------ tables */

FAKE(cuGetExportTable, const void **table, const unsigned char *uuid)
{
    char text[40];

    CALLED();
    for (unsigned i = 0; i < 16; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", uuid[i]);
    trace(text, 0, 0, NULL);
    *table = NULL;
    return FAKE_NOT_FOUND;
}
