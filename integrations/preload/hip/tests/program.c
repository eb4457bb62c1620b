/* SPDX-License-Identifier: MIT */
/*
 * program.c - a program that knows HIP only, linked against the FAKE of tests/hip/fake. Run with
 * libmoonbright-hip.so in front it must work the same; it prints how often HIP's own calls were
 * reached.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_hip.h"

int hipMalloc(void **ptr, size_t bytes);
int hipExtMallocWithFlags(void **ptr, size_t bytes, unsigned flags);
int hipFree(void *ptr);
int hipMallocAsync(void **ptr, size_t bytes, void *stream);
int hipFreeAsync(void *ptr, void *stream);
int hipHostMalloc(void **ptr, size_t bytes, unsigned flags);
int hipHostFree(void *ptr);
int hipMemGetInfo(size_t *free_bytes, size_t *total);
int hipMemGetAddressRange(void **base, size_t *bytes, void *ptr);
int hipMemcpy(void *to, const void *from, size_t bytes, int kind);
int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream);
int hipStreamCreate(void **out);
int hipStreamSynchronize(void *stream);
int hipStreamDestroy(void *stream);
int hipDeviceSynchronize(void);

struct attributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
};
int hipPointerGetAttributes(struct attributes *out, const void *ptr);

#define MUST(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "program.c:%d: %s\n", __LINE__, #condition);                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) MUST((call) == 0)

enum { N = 40, ROUNDS = 200 };

static void blocks(void)
{
    char *host = malloc(4 << 20), *back = malloc(4 << 20);
    void *ptr[N] = {NULL};
    size_t bytes[N];
    unsigned state = 1;

    MUST(host && back);
    for (unsigned round = 0; round < ROUNDS; round++) {
        unsigned i = (state = state * 1103515245u + 12345u) >> 16, slot = i % N;

        if (ptr[slot]) {
            OK(hipMemcpy(back, ptr[slot], bytes[slot], 2));
            for (size_t k = 0; k < bytes[slot]; k++)
                MUST(back[k] == (char)(slot + k));
            OK(hipFree(ptr[slot]));
            ptr[slot] = NULL;
            continue;
        }
        bytes[slot] = 1 + i % (3 << 20);
        for (size_t k = 0; k < bytes[slot]; k++)
            host[k] = (char)(slot + k);
        OK(hipMalloc(&ptr[slot], bytes[slot]));
        OK(hipMemcpy(ptr[slot], host, bytes[slot], 1));
    }
    for (unsigned slot = 0; slot < N; slot++)
        OK(hipFree(ptr[slot]));
    free(host);
    free(back);
}

/* On streams, with host memory that stays until the copies are done. */
static void streams(void)
{
    enum { BYTES = 1 << 20, STREAMS = 3, TURNS = 30 };
    void *stream[STREAMS], *host = NULL, *back = NULL;

    OK(hipHostMalloc(&host, BYTES, 0));
    OK(hipHostMalloc(&back, (size_t)STREAMS * BYTES, 0));
    memset(host, 0x5a, BYTES);
    for (unsigned s = 0; s < STREAMS; s++)
        OK(hipStreamCreate(&stream[s]));
    for (unsigned turn = 0; turn < TURNS; turn++) {
        void *ptr = NULL, *s = stream[turn % STREAMS];

        OK(hipMallocAsync(&ptr, BYTES, s));
        OK(hipMemcpyAsync(ptr, host, BYTES, 1, s));
        OK(hipMemcpyAsync((char *)back + (size_t)(turn % STREAMS) * BYTES, ptr, BYTES, 2, s));
        OK(hipFreeAsync(ptr, s));
    }
    for (unsigned s = 0; s < STREAMS; s++) {
        OK(hipStreamSynchronize(stream[s]));
        MUST(!memcmp((char *)back + (size_t)s * BYTES, host, BYTES));
        OK(hipStreamDestroy(stream[s]));
    }
    OK(hipHostFree(back));
    OK(hipHostFree(host));
}

static void queries(void)
{
    size_t before = 0, after = 0, total = 0, bytes = 0;
    struct attributes a;
    void *ptr = NULL, *base = NULL, *signal = NULL;

    OK(hipMemGetInfo(&before, &total));
    OK(hipMalloc(&ptr, 64 << 20));
    OK(hipMemGetInfo(&after, &total));
    MUST(before - after >= 64 << 20 && before - after <= 96 << 20 && after < total);
    OK(hipPointerGetAttributes(&a, ptr));
    MUST(a.type == 2 && a.device == 0 && a.device_pointer == ptr && !a.host_pointer);
    OK(hipMemGetAddressRange(&base, &bytes, (char *)ptr + 12345));
    MUST(base == ptr && bytes == 64 << 20);
    OK(hipFree(ptr));
    MUST(hipPointerGetAttributes(&a, &a) != 0);
    /* Kinds of memory that are HIP's alone. */
    OK(hipExtMallocWithFlags(&signal, 8, 2));
    OK(hipFree(signal));
    ptr = &a;
    OK(hipMalloc(&ptr, 0));
    MUST(!ptr);
    OK(hipFree(NULL));
    MUST(hipMalloc(&ptr, (size_t)1 << 45) == 2);
    MUST(hipFree(&a) != 0);
}

int main(void)
{
    blocks();
    streams();
    queries();
    OK(hipDeviceSynchronize());
    printf("ok; HIP's own: hipMalloc %llu hipMallocAsync %llu hipMemMap %llu\n",
           (unsigned long long)fake_hip_count("hipMalloc"),
           (unsigned long long)fake_hip_count("hipMallocAsync"),
           (unsigned long long)fake_hip_count("hipMemMap"));
    return 0;
}
