/* SPDX-License-Identifier: MIT */
/*
 * NVTX ranges around malloc and free, for profilers' time lines.
 *
 * Two functions of NVIDIA's tools extension are looked up when a device is opened that asks for
 * them; nothing is linked. The older library of that name and the newer one for other languages
 * both export them under the names below. The library stays open for the life of the process,
 * since a profiler may have hooked itself into it.
 */
#include <dlfcn.h>
#include <string.h>

#include "base/log.h"
#include "runtime/watch.h"

struct mb__nvtx {
    int (*push)(const char *name); /* returns the depth; negative: no profiler listens */
    int (*pop)(void);
};

static void *open_library(const char *which)
{
    static const char *const names[] = {"libnvToolsExt.so.1", "libnvtx3interop.so.1",
                                        "libnvToolsExt.so", "libnvtx3interop.so"};
    void *library = NULL;

    if (strcmp(which, "yes") != 0)
        return dlopen(which, RTLD_NOW | RTLD_LOCAL);
    for (unsigned i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library;
}

struct mb__nvtx *mb__nvtx_open(const char *which)
{
    void *library = open_library(which);
    struct mb__nvtx *nvtx = library ? calloc(1, sizeof(*nvtx)) : NULL;
    const char *reason = dlerror();

    if (nvtx) {
        *(void **)&nvtx->push = dlsym(library, "nvtxRangePushA");
        *(void **)&nvtx->pop = dlsym(library, "nvtxRangePop");
        if (nvtx->push && nvtx->pop)
            return nvtx;
        reason = "it lacks nvtxRangePushA or nvtxRangePop";
        free(nvtx);
    }
    mb__log(MB_LOG_WARN, "nvtx", "no ranges: %s", reason ? reason : "no host memory");
    if (library)
        dlclose(library);
    return NULL;
}

void mb__nvtx_close(struct mb__nvtx *nvtx)
{
    free(nvtx);
}

void mb__nvtx_push(const struct mb__nvtx *nvtx, const char *name)
{
    if (nvtx)
        nvtx->push(name);
}

void mb__nvtx_pop(const struct mb__nvtx *nvtx)
{
    if (nvtx)
        nvtx->pop();
}
