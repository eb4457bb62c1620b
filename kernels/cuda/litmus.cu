/* SPDX-License-Identifier: MIT */
/* litmus.cu - the interpreter of litmus programs, and loads that benches put beside a mapping. */
#include "kernels/litmus.h"

namespace
{

__device__ inline uint64_t litmus_now_ns()
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__device__ inline uint64_t litmus_load(const struct mb_litmus_step &s)
{
    uint64_t v = 0;

    switch (s.op) {
    case MB_LITMUS_LD_CA:
        asm volatile("ld.global.ca.u64 %0, [%1];" : "=l"(v) : "l"(s.va) : "memory");
        break;
    case MB_LITMUS_LD_CG:
        asm volatile("ld.global.cg.u64 %0, [%1];" : "=l"(v) : "l"(s.va) : "memory");
        break;
    case MB_LITMUS_LD_NC:
        asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(v) : "l"(s.va) : "memory");
        break;
    default:
        asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(s.va) : "memory");
        break;
    }
    return v;
}

__device__ inline void litmus_wait(volatile uint64_t *sem, uint64_t value)
{
    uint64_t start = litmus_now_ns();

    while (*sem < value && litmus_now_ns() - start < MB_LITMUS_PATIENCE_NS)
        ;
}

/* const and __restrict__ promise the compiler that nobody writes there while this runs. */
__device__ inline void litmus_read_only_pair(const uint64_t *__restrict__ at, uint64_t *sem,
                                             uint64_t value, volatile uint64_t *answer)
{
    answer[0] = __ldg(at);
    *(volatile uint64_t *)sem = value;
    litmus_wait(sem, value + 1);
    __threadfence();
    answer[1] = __ldg(at);
}

} // namespace

extern "C" {

/* Block b executes the steps of thread b. Semaphores lie in device or pinned memory. */
__global__ void mb_litmus(const struct mb_litmus_step *step, uint32_t count, uint64_t *sem,
                          volatile uint64_t *answer)
{
    for (uint32_t i = 0; i < count; i++) {
        struct mb_litmus_step s = step[i];
        uint64_t start;

        if (s.thread != blockIdx.x)
            continue;
        switch (s.op) {
        case MB_LITMUS_ST:
            asm volatile("st.global.u64 [%0], %1;" : : "l"(s.va), "l"(s.value) : "memory");
            break;
        case MB_LITMUS_FENCE:
            __threadfence();
            break;
        case MB_LITMUS_DELAY:
            for (start = litmus_now_ns(); litmus_now_ns() - start < s.value;)
                ;
            break;
        case MB_LITMUS_SEM_WAIT:
            litmus_wait(sem + s.sem, s.value);
            break;
        case MB_LITMUS_SEM_SET:
            *(volatile uint64_t *)(sem + s.sem) = s.value;
            break;
        case MB_LITMUS_READ_ONLY_PAIR:
            litmus_read_only_pair(reinterpret_cast<const uint64_t *>(s.va), sem + s.sem, s.value,
                                  answer + s.answer);
            break;
        default: {
            uint64_t v = litmus_load(s);

            if (s.answer != MB_LITMUS_NO_ANSWER)
                answer[s.answer] = v;
        }
        }
    }
}

/* The same behind a programmatic dependent launch: waits for the launch before it first. */
__global__ void mb_litmus_dependent(const struct mb_litmus_step *step, uint32_t count,
                                    uint64_t *sem, volatile uint64_t *answer)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
    for (uint32_t i = 0; i < count; i++) {
        struct mb_litmus_step s = step[i];

        if (s.thread != blockIdx.x)
            continue;
        if (s.op == MB_LITMUS_ST)
            asm volatile("st.global.u64 [%0], %1;" : : "l"(s.va), "l"(s.value) : "memory");
        else if (s.op <= MB_LITMUS_LD_NC && s.answer != MB_LITMUS_NO_ANSWER)
            answer[s.answer] = litmus_load(s);
    }
    (void)sem;
}

/* Takes time, `ns` of it, unless *stop becomes non-zero. */
__global__ void mb_spin(uint64_t ns, const volatile uint64_t *stop)
{
    uint64_t start = litmus_now_ns();

    while (litmus_now_ns() - start < ns && !*stop)
        ;
}

/* Random 8-byte reads over `words` words from `base`, `reads` per thread: work that needs its
 * translations. The sum keeps the compiler honest. */
__global__ void __launch_bounds__(256)
    mb_wander(const uint64_t *base, uint64_t words, uint32_t reads, uint64_t *sum)
{
    uint64_t x = (blockIdx.x * (uint64_t)blockDim.x + threadIdx.x + 1) * 0x9e3779b97f4a7c15u;
    uint64_t total = 0;

    for (uint32_t i = 0; i < reads; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        total += base[__umul64hi(x, words)];
    }
    if (total == 0x123456789abcdef0u)
        *sum = total;
}

/* First touch: the clock of one thread around one load per page, in cycles and by the wall. */
__global__ void mb_first_touch(const uint64_t *base, uint64_t stride_words, uint32_t pages,
                               volatile uint64_t *out)
{
    uint64_t v = 0, before, after;

    for (uint32_t i = 0; i < pages; i++) {
        const uint64_t *at = base + i * stride_words + (v & 0);

        before = clock64();
        asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
        v &= 0;
        asm volatile("" : "+l"(v) : : "memory");
        after = clock64() + v;
        out[i] = after - before;
    }
}
}
