/* SPDX-License-Identifier: MIT */
/*
 * preload.c - a program that knows CUDA's driver interface only, to be put behind MoonBright
 * without a change:
 *
 *     cc preload.c -o program -ldl
 *     ./program                                              # the driver's own memory
 *     LD_PRELOAD=libmoonbright_preload.so ./program          # MoonBright's
 *     LD_PRELOAD=libmoonbright_preload.so MOONBRIGHT_PRELOAD=time ./program
 *
 * It needs no toolkit: the driver's functions are found at run time, as the CUDA runtime finds
 * them.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DRIVER(X)                                                                                  \
    X(cuInit, (unsigned flags))                                                                    \
    X(cuDevicePrimaryCtxRetain, (void **ctx, int device))                                          \
    X(cuCtxSetCurrent, (void *ctx))                                                                \
    X(cuMemAlloc_v2, (uint64_t * ptr, size_t bytes))                                               \
    X(cuMemFree_v2, (uint64_t ptr))                                                                \
    X(cuMemsetD8_v2, (uint64_t ptr, unsigned char value, size_t bytes))                            \
    X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))

#define DECLARE(name, args) static int(*name) args;
DRIVER(DECLARE)

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int result = (call);                                                                       \
        if (result) {                                                                              \
            fprintf(stderr, "%s: CUDA error %d\n", #call, result);                                 \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

int main(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *ctx = NULL;
    unsigned char byte = 0;
    uint64_t ptr = 0;

    if (!driver) {
        puts("no CUDA driver here");
        return 77;
    }
#define FIND(name, args) *(void **)(&name) = dlsym(driver, #name);
    DRIVER(FIND)
    CHECK(cuInit(0));
    CHECK(cuDevicePrimaryCtxRetain(&ctx, 0));
    CHECK(cuCtxSetCurrent(ctx));
    for (size_t bytes = (size_t)1 << 20; bytes <= (size_t)256 << 20; bytes <<= 2) {
        double start, taken;

        start = now_us();
        CHECK(cuMemAlloc_v2(&ptr, bytes));
        taken = now_us() - start;
        CHECK(cuMemsetD8_v2(ptr, 0x5a, bytes));
        CHECK(cuMemcpyDtoH_v2(&byte, ptr + bytes - 1, 1));
        CHECK(cuMemFree_v2(ptr));
        printf("%4zu MiB: allocated in %9.1f us, last byte %#x\n", bytes >> 20, taken, byte);
    }
    return 0;
}
