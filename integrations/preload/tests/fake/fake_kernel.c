/* SPDX-License-Identifier: MIT */
/*
 * fake_kernel.c - A FAKE of libcuda (see fake_cuda.h): MoonBright's small kernels, on the host.
 *
 * Those of kernels/cuda/work.cu, so that what tests of the `cuda` backend with driver tables write
 * is really there to be read. A kernel that touches an unmapped address ends the process.
 */
#define _GNU_SOURCE
#include "fake_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/copy_list.h"
#include "kernels/pattern.h"

enum { MOST = 4 };

/* Arguments are kept one behind the other, each from a word of its own on. */
struct fake_kernel {
    const char *name;
    void (*run)(const uint64_t *a);
    unsigned count;             /* of parameters */
    unsigned short bytes[MOST]; /* of each */
};

static uint64_t *words_at(uint64_t address)
{
    return (uint64_t *)(uintptr_t)address;
}

static void fill(const uint64_t *a)
{
    for (uint64_t i = 0; i < a[1]; i++)
        words_at(a[0])[i] = mb_pattern(a[2], i);
}

static void verify(const uint64_t *a)
{
    uint64_t bad = 0;

    for (uint64_t i = 0; i < a[1]; i++)
        bad += words_at(a[0])[i] != mb_pattern(a[2], i);
    if (bad)
        __atomic_fetch_add(words_at(a[3]), bad, __ATOMIC_RELAXED);
}

static void copy(const uint64_t *a)
{
    memmove(words_at(a[0]), words_at(a[1]), a[2] * 8);
}

static void copy_entries(const struct mb_copy_entry *entry, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        memmove(words_at(entry[i].dst), words_at(entry[i].src), entry[i].bytes);
}

/* What the host left empty holds copies of nothing. */
static void copy_list_s(const uint64_t *a)
{
    copy_entries(((const struct mb_copy_list_s *)(const void *)a)->entry, MB_COPY_LIST_S);
}

static void copy_list_l(const uint64_t *a)
{
    copy_entries(((const struct mb_copy_list_l *)(const void *)a)->entry, MB_COPY_LIST_L);
}

static void peek(const uint64_t *a)
{
    for (uint64_t i = 0; i < a[1]; i++)
        words_at(a[2])[i] = *words_at(words_at(a[0])[i]);
}

static void poke(const uint64_t *a)
{
    for (uint64_t i = 0; i < a[1]; i++)
        *words_at(words_at(a[0])[i]) = words_at(a[2])[i];
}

static void touch(const uint64_t *a)
{
    for (uint64_t i = 0; i < a[2]; i++)
        *words_at(a[0] + i * a[1]) = a[3] + i;
}

static void copy_bytes(const uint64_t *a)
{
    memmove(words_at(a[0]), words_at(a[1]), a[2]);
}

static void nop(const uint64_t *a)
{
    (void)a;
}

static const struct fake_kernel kernels[] = {
    {"mb_nop", nop, 0, {0}},
    {"mb_fill", fill, 3, {8, 8, 8}},
    {"mb_verify", verify, 4, {8, 8, 8, 8}},
    {"mb_copy", copy, 3, {8, 8, 8}},
    {"mb_copy_list_s", copy_list_s, 1, {sizeof(struct mb_copy_list_s)}},
    {"mb_copy_list_l", copy_list_l, 1, {sizeof(struct mb_copy_list_l)}},
    {"mb_peek", peek, 3, {8, 4, 8}},
    {"mb_poke", poke, 3, {8, 4, 8}},
    {"mb_touch", touch, 4, {8, 8, 4, 8}},
};
enum { KERNELS = sizeof(kernels) / sizeof(kernels[0]) };
/* Not by name: what the copy calls enqueue. */
static const struct fake_kernel copier = {"", copy_bytes, 3, {8, 8, 8}};

const struct fake_kernel *fake_kernel_named(const char *name)
{
    for (unsigned i = 0; i < KERNELS; i++) {
        if (!strcmp(kernels[i].name, name))
            return &kernels[i];
    }
    return NULL;
}

const struct fake_kernel *fake_kernel_known(const void *function)
{
    for (unsigned i = 0; i < KERNELS; i++) {
        if (function == &kernels[i])
            return &kernels[i];
    }
    return NULL;
}

void *fake_kernel_arguments(const struct fake_kernel *kernel, void **params)
{
    size_t words = 0;
    uint64_t *a;

    for (unsigned i = 0; i < kernel->count; i++)
        words += (kernel->bytes[i] + 7u) / 8;
    a = calloc(words + 1, sizeof(*a));
    for (unsigned i = 0, at = 0; a && i < kernel->count; i++) {
        memcpy(&a[at], params[i], kernel->bytes[i]);
        at += (kernel->bytes[i] + 7u) / 8;
    }
    return a;
}

void fake_kernel_run(const struct fake_kernel *kernel, const void *arguments)
{
    kernel->run(arguments);
}

/* --------------------------------------------------------- launches and copies in stream order */

static int launch(const void *function, void *stream, void **params)
{
    const struct fake_kernel *kernel = function == &copier ? &copier : fake_kernel_known(function);
    void *arguments;

    if (!kernel)
        return function ? FAKE_OK : FAKE_INVALID_VALUE;
    arguments = fake_kernel_arguments(kernel, params);
    if (!arguments)
        return FAKE_OUT_OF_MEMORY;
    if (fake_enqueue_kernel(stream, kernel, arguments))
        return FAKE_OK;
    free(arguments);
    return FAKE_INVALID_HANDLE;
}

FAKE(cuLaunchKernel, const void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
     unsigned by, unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)extra;
    CALLED();
    return launch(function, stream, params);
}

struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const void *attributes;
    unsigned count;
};

FAKE(cuLaunchKernelEx, const struct launch_config *config, const void *function, void **params,
     void **extra)
{
    (void)extra;
    CALLED();
    return launch(function, config->stream, params);
}

static int copy_in_order(uint64_t to, uint64_t from, uint64_t bytes, void *stream)
{
    void *params[] = {&to, &from, &bytes};

    return launch(&copier, stream, params);
}

FAKE(cuMemcpyDtoDAsync_v2, cu_ptr to, cu_ptr from, size_t bytes, void *stream)
{
    CALLED();
    return copy_in_order(to, from, bytes, stream);
}

FAKE(cuMemcpyDtoHAsync_v2, void *to, cu_ptr from, size_t bytes, void *stream)
{
    CALLED();
    return copy_in_order((uintptr_t)to, from, bytes, stream);
}

FAKE(cuMemcpyHtoDAsync_v2, cu_ptr to, const void *from, size_t bytes, void *stream)
{
    CALLED();
    return copy_in_order(to, (uintptr_t)from, bytes, stream);
}

/* ------------------------------------------------------------ graphs: there are none */

FAKE(cuStreamBeginCapture_v2, void *stream, int mode)
{
    (void)stream, (void)mode;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}

FAKE(cuStreamEndCapture, void *stream, void **graph)
{
    (void)stream, (void)graph;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}

FAKE(cuGraphInstantiateWithFlags, void **exec, void *graph, unsigned long long flags)
{
    (void)exec, (void)graph, (void)flags;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}

FAKE(cuGraphLaunch, void *exec, void *stream)
{
    (void)exec, (void)stream;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}

FAKE(cuGraphExecDestroy, void *exec)
{
    (void)exec;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}

FAKE(cuGraphDestroy, void *graph)
{
    (void)graph;
    CALLED();
    return FAKE_NOT_SUPPORTED;
}
