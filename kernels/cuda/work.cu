/* SPDX-License-Identifier: MIT */
/* work.cu - fill, verify and copy: the small device work of the backend, through the TLB. */
#include "kernels/pattern.h"

extern "C" {

__global__ void __launch_bounds__(512) mb_fill(uint64_t *p, uint64_t words, uint64_t seed)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < words; i += step)
        p[i] = mb_pattern(seed, i);
}

/* Adds the number of differing words to *wrong. */
__global__ void __launch_bounds__(512)
    mb_verify(const uint64_t *p, uint64_t words, uint64_t seed, unsigned long long *wrong)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    unsigned long long bad = 0;

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < words; i += step)
        bad += p[i] != mb_pattern(seed, i);
    if (bad)
        atomicAdd_system(wrong, bad);
}

__global__ void __launch_bounds__(512) mb_copy(uint64_t *dst, const uint64_t *src, uint64_t words)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;

    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < words; i += step)
        dst[i] = src[i];
}

/* Cheap oracle of tests and benches, one word per address: which frame does a page show? */
__global__ void mb_peek(const uint64_t *address, uint32_t count, uint64_t *out)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        out[i] = *reinterpret_cast<const volatile uint64_t *>(address[i]);
}

__global__ void mb_poke(const uint64_t *address, uint32_t count, const uint64_t *value)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        *reinterpret_cast<volatile uint64_t *>(address[i]) = value[i];
}

/* The same for pages `stride` bytes apart: word i gets first + i. */
__global__ void mb_touch(char *base, uint64_t stride, uint32_t count, uint64_t first)
{
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < count)
        *reinterpret_cast<volatile uint64_t *>(base + i * stride) = first + i;
}
}
