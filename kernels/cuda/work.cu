/* SPDX-License-Identifier: MIT */
/* work.cu - fill, verify and copies: the small device work of the backend, through the TLB. */
#include "kernels/cuda/copy_list.h"
#include "kernels/pattern.h"

/* The part of one copy that block x of gridDim.x does, in units of `word`. Two loads stand before
 * their stores, as the compiler cannot know that source and destination do not overlap. */
template <typename word>
static __device__ void copy_part(word *dst, const word *src, uint64_t count)
{
    uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;

    for (; i + step < count; i += 2 * step) {
        word one = src[i], two = src[i + step];

        dst[i] = one;
        dst[i + step] = two;
    }
    if (i < count)
        dst[i] = src[i];
}

static __device__ void copy_entry(const struct mb_copy_entry &e)
{
    if ((e.dst | e.src | e.bytes) % 16)
        copy_part(reinterpret_cast<uint64_t *>(e.dst), reinterpret_cast<const uint64_t *>(e.src),
                  e.bytes / 8);
    else
        copy_part(reinterpret_cast<ulonglong2 *>(e.dst),
                  reinterpret_cast<const ulonglong2 *>(e.src), e.bytes / 16);
}

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

/* Block (x, y): part x of copy y. */
__global__ void __launch_bounds__(MB_COPY_LIST_THREADS)
    mb_copy_list_s(const __grid_constant__ struct mb_copy_list_s list)
{
    copy_entry(list.entry[blockIdx.y]);
}

__global__ void __launch_bounds__(MB_COPY_LIST_THREADS)
    mb_copy_list_l(const __grid_constant__ struct mb_copy_list_l list)
{
    copy_entry(list.entry[blockIdx.y]);
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
