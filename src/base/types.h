/*
 * types.h - the address types of the whole library.
 *
 * A virtual address and a frame number are distinct one-field structs, so that mixing them does not
 * compile. A frame number counts 4 KiB pages of device physical memory whatever the leaf size, as
 * in the entry formats: 32 bits reach 16 TiB. A 2 MiB frame is named by the number of its first
 * page.
 */
#ifndef MB_BASE_TYPES_H
#define MB_BASE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

typedef struct {
    uint64_t addr; /* bytes, canonical form of the backend */
} mb_va;

typedef struct {
    uint32_t n; /* device physical address >> MB_PFN_SHIFT */
} mb_pfn;

enum {
    MB_PFN_SHIFT = 12,
    MB_FRAME_SHIFT = 21,
    MB_FRAME_PFNS = 1 << (MB_FRAME_SHIFT - MB_PFN_SHIFT), /* 512 */
};
#define MB_FRAME_BYTES ((uint64_t)1 << MB_FRAME_SHIFT)

#define MB_NO_PFN ((mb_pfn){UINT32_MAX})
#define MB_NO_VA ((mb_va){0})

static inline mb_va mb__va(uint64_t addr)
{
    return (mb_va){addr};
}
static inline mb_va mb__va_add(mb_va va, uint64_t bytes)
{
    return (mb_va){va.addr + bytes};
}
static inline mb_pfn mb__pfn_of_phys(uint64_t phys)
{
    return (mb_pfn){(uint32_t)(phys >> MB_PFN_SHIFT)};
}
static inline uint64_t mb__phys_of_pfn(mb_pfn pfn)
{
    return (uint64_t)pfn.n << MB_PFN_SHIFT;
}
static inline bool mb__pfn_eq(mb_pfn a, mb_pfn b)
{
    return a.n == b.n;
}

#endif
