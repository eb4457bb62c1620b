/*
 * arch.h - what differs between GPU generations: class numbers, entry format, TLB operations.
 *
 * The driver reports an architecture and an implementation number; an implementation that is not in
 * the table is refused by name. Integrated GPUs are refused on purpose: their page tables lie in
 * system memory.
 */
#ifndef MB_HW_NVRM_ARCH_H
#define MB_HW_NVRM_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "moonbright.h"

enum nvrm_mmu { NVRM_MMU_V2, NVRM_MMU_V3 };

enum { NVRM_COPY_CHOICES = 6 };

/* Static, read only. */
struct nvrm_arch {
    const char *name;            /* "GH100" */
    uint32_t architecture;       /* as the driver numbers it */
    uint32_t implementation_low; /* first and last implementation number of the entry */
    uint32_t implementation_high;
    enum nvrm_mmu mmu;         /* format of page tables */
    bool measured;             /* false: read in the published sources only, «not run» */
    uint8_t top_level;         /* MEM_OP_C level of the root: 5 for v2, 6 for v3 */
    uint8_t semaphore_va_bits; /* of a semaphore's address in host methods */
    uint8_t copy_va_bits;      /* of a copy engine's source and destination */
    /* Whether a membar method may follow a TLB invalidate. Where not, the invalidate itself is
     * acknowledged globally and carries the system membar. */
    bool membar_after_invalidate;
    bool usermode_params;     /* the usermode class takes struct nvrm_abi_usermode */
    uint16_t doorbell_offset; /* bytes, in the usermode region */
    uint16_t channel_class;
    uint16_t copy_class;
    uint16_t usermode_class;
    uint16_t compute_class;  /* to find other processes' contexts */
    uint16_t graphics_class; /* likewise */
    /* Copy engines to try for the helper, best first; ends with 0xff. libcuda takes low numbers. */
    uint8_t copy_choice[NVRM_COPY_CHOICES];
};

/* MB_ERR_NOT_SUPPORTED, with what is known, if there is no entry. */
enum mb_err mb__nvrm_arch_find(uint32_t architecture, uint32_t implementation,
                               const struct nvrm_arch **out);

/* Entry `index`, NULL past the end; for listings and tests. */
const struct nvrm_arch *mb__nvrm_arch_at(unsigned index);

#endif
