/* arch.c - see arch.h. */
#include "hw/nvrm/arch.h"

#include <stddef.h>

#include "base/err.h"

enum { DOORBELL = 0x90 }; /* "notify channel pending" of the usermode region, all generations */

#define COPY_ORDER                                                                                 \
    {                                                                                              \
        4, 3, 2, 1, 0xff                                                                           \
    }

static const struct nvrm_arch table[] = {
    {
        .name = "GA100",
        .architecture = 0x170,
        .mmu = NVRM_MMU_V2,
        .top_level = 5,
        .semaphore_va_bits = 40,
        .copy_va_bits = 49,
        .membar_after_invalidate = true,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xc56f,
        .copy_class = 0xc6b5,
        .usermode_class = 0xc561,
        .compute_class = 0xc6c0,
        .graphics_class = 0xc697,
        .copy_choice = COPY_ORDER,
    },
    {
        .name = "GA10x",
        .architecture = 0x170,
        .implementation_low = 2,
        .implementation_high = 7,
        .mmu = NVRM_MMU_V2,
        .top_level = 5,
        .semaphore_va_bits = 40,
        .copy_va_bits = 49,
        .membar_after_invalidate = true,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xc56f,
        .copy_class = 0xc7b5,
        .usermode_class = 0xc561,
        .compute_class = 0xc7c0,
        .graphics_class = 0xc797,
        .copy_choice = COPY_ORDER,
    },
    {
        .name = "GH100",
        .architecture = 0x180,
        .measured = true,
        .mmu = NVRM_MMU_V3,
        .top_level = 6,
        .semaphore_va_bits = 57,
        .copy_va_bits = 57,
        .membar_after_invalidate = true,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xc86f,
        .copy_class = 0xc8b5,
        .usermode_class = 0xc661,
        .usermode_params = true,
        .compute_class = 0xcbc0,
        .graphics_class = 0xcb97,
        .copy_choice = COPY_ORDER,
    },
    {
        .name = "AD10x",
        .architecture = 0x190,
        .implementation_low = 2,
        .implementation_high = 7,
        .mmu = NVRM_MMU_V2,
        .top_level = 5,
        .semaphore_va_bits = 40,
        .copy_va_bits = 49,
        .membar_after_invalidate = true,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xc56f,
        .copy_class = 0xc7b5,
        .usermode_class = 0xc561,
        .compute_class = 0xc9c0,
        .graphics_class = 0xc997,
        .copy_choice = COPY_ORDER,
    },
    {
        .name = "GB10x",
        .architecture = 0x1a0,
        .implementation_high = 4,
        .mmu = NVRM_MMU_V3,
        .top_level = 6,
        .semaphore_va_bits = 57,
        .copy_va_bits = 57,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xc96f,
        .copy_class = 0xc9b5,
        .usermode_class = 0xc661,
        .usermode_params = true,
        .compute_class = 0xcdc0,
        .graphics_class = 0xcd97,
        .copy_choice = COPY_ORDER,
    },
    {
        .name = "GB20x",
        .architecture = 0x1b0,
        .implementation_low = 2,
        .implementation_high = 7,
        .mmu = NVRM_MMU_V3,
        .top_level = 6,
        .semaphore_va_bits = 57,
        .copy_va_bits = 57,
        .doorbell_offset = DOORBELL,
        .channel_class = 0xca6f,
        .copy_class = 0xcab5,
        .usermode_class = 0xc761,
        .usermode_params = true,
        .compute_class = 0xcec0,
        .graphics_class = 0xce97,
        .copy_choice = COPY_ORDER,
    },
};

enum { TABLE_COUNT = sizeof table / sizeof table[0] };

const struct nvrm_arch *mb__nvrm_arch_at(unsigned index)
{
    return index < TABLE_COUNT ? &table[index] : NULL;
}

enum mb_err mb__nvrm_arch_find(uint32_t architecture, uint32_t implementation,
                               const struct nvrm_arch **out)
{
    for (unsigned i = 0; i < TABLE_COUNT; i++) {
        const struct nvrm_arch *entry = &table[i];
        if (entry->architecture == architecture && implementation >= entry->implementation_low &&
            implementation <= entry->implementation_high) {
            *out = entry;
            return MB_OK;
        }
    }
    return mb__fail(MB_ERR_NOT_SUPPORTED,
                    "GPU architecture 0x%x, implementation 0x%x: device tables know GA100, GA10x, "
                    "AD10x, GH100, GB10x and GB20x boards (not integrated GPUs); use driver tables",
                    architecture, implementation);
}
