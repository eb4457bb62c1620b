/* fence.h - ordering of stores to memory that the GPU reads, and the pause of a spin loop. */
#ifndef MB_HW_NVRM_FENCE_H
#define MB_HW_NVRM_FENCE_H

/* All loads and stores before it, also to write-combined memory, are done before any after it. */
static inline void mb__nvrm_fence(void)
{
#if defined(__x86_64__)
    __builtin_ia32_mfence();
#elif defined(__aarch64__)
    __asm__ volatile("dsb sy" ::: "memory");
#else
#error "no fence for device memory on this processor"
#endif
}

static inline void mb__nvrm_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

#endif
