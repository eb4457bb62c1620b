/* SPDX-License-Identifier: MIT */
/* find.c - the ways in which programs come to the driver's functions. */
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>

struct api cu;

#define DECLARE(symbol, name, version, flags, args) int symbol args;
API(DECLARE)
int cuGetProcAddress(const char *name, void **out, int version, uint64_t flags);

typedef int (*proc_v1)(const char *name, void **out, int version, uint64_t flags);
typedef int (*proc_v2)(const char *name, void **out, int version, uint64_t flags, int *status);

static void direct(void)
{
#define DIRECT(symbol, name, version, flags, args) cu.symbol = symbol;
    API(DIRECT)
}

static void by_dlsym(void *library)
{
#define DLSYM(symbol, name, version, flags, args)                                                  \
    *(void **)(&cu.symbol) = dlsym(library, #symbol);                                              \
    MUST(cu.symbol);
    API(DLSYM)
}

/* As the CUDA runtime does it. */
static void by_proc(void *library)
{
    proc_v2 get;
    int status = -1;

    *(void **)(&get) = dlsym(library, "cuGetProcAddress_v2");
    MUST(get);
    OK(get("cuGetProcAddress", (void **)&get, 12000, 0, &status));
#define PROC(symbol, name, version, flags, args)                                                   \
    OK(get(name, (void **)&cu.symbol, version, flags, &status));                                   \
    MUST(cu.symbol &&status == 0);
    API(PROC)
    MUST(get("cuNothingOfThisName", (void **)&get, 12000, 0, &status) != 0);
}

static void by_proc_v1(void)
{
    proc_v1 get = cuGetProcAddress;

    OK(get("cuGetProcAddress", (void **)&get, 11030, 0));
#define PROC_V1(symbol, name, version, flags, args)                                                \
    OK(get(name, (void **)&cu.symbol, version, flags));
    API(PROC_V1)
}

void find_api(const char *way)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    MUST(library);
    if (!strcmp(way, "direct"))
        direct();
    else if (!strcmp(way, "dlsym"))
        by_dlsym(library);
    else if (!strcmp(way, "default"))
        by_dlsym(RTLD_DEFAULT);
    else if (!strcmp(way, "proc"))
        by_proc(library);
    else if (!strcmp(way, "proc_v1"))
        by_proc_v1();
    else
        MUST(way == NULL); /* no such way */
}
