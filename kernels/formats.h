/* SPDX-License-Identifier: MIT */
/*
 * formats.h - page-table entry formats, shared word for word by host, software GPU and device code
 * (C, CUDA C++, HIP, OpenCL C).
 *
 * Everything here is a pure function of its arguments: no state, no libc, no recursion, no pointers
 * to functions. Bit positions and where they come from: doc/formats.md.
 *
 * A leaf size is given as leaf_shift: 12, 16, 21, and 29 (GMMU) or 30 (GFX9). A directory level is
 * an index into mb_fmt_geometry().level, 0 at the root; a leaf in directory level l has
 * leaf_shift = level[l].shift.
 */
#ifndef MB_KERNELS_FORMATS_H
#define MB_KERNELS_FORMATS_H

#if defined(__OPENCL_VERSION__) || defined(__OPENCL_C_VERSION__)
typedef uchar uint8_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define MB_FMT_FN static inline
#define MB_FMT_GLOBAL __global
#elif defined(__CUDACC__) || defined(__HIPCC__)
#include <stdint.h>
#define MB_FMT_FN static __host__ __device__ inline
#define MB_FMT_GLOBAL
#else
#include <stdint.h>
#define MB_FMT_FN static inline
#define MB_FMT_GLOBAL
#endif

enum mb_fmt {
    MB_FMT_GMMU_V2 = 1, /* NVIDIA Pascal .. Ampere (GA100) */
    MB_FMT_GMMU_V3 = 2, /* NVIDIA Hopper, Blackwell */
    MB_FMT_GFX9 = 3,    /* AMD GFX9, no translate-further */
    MB_FMT_GFX9_TF = 4, /* AMD GFX9 with translate-further: MI210 */
};

/* One entry as it lies in memory, little-endian; hi is 0 where entries have 8 bytes. */
struct mb_pte {
    uint64_t lo, hi;
};

enum mb_aperture {
    MB_AP_VID = 0,
    MB_AP_PEER = 1, /* NVIDIA only: on AMD a peer is an address of device memory */
    MB_AP_SYS_COHERENT = 2,
    MB_AP_SYS_NONCOHERENT = 3,
};

/* A flag that a format has no bit for is ignored by the encoder: see mb_fmt_leaf_flags(). */
enum mb_leaf_flag {
    MB_LEAF_VALID = 1 << 0,
    MB_LEAF_READ_ONLY = 1 << 1,
    MB_LEAF_NO_ATOMICS = 1 << 2,
    MB_LEAF_UNCACHED = 1 << 3,
    MB_LEAF_PRIVILEGED = 1 << 4,
    MB_LEAF_NO_ACCESS_COUNT = 1 << 5, /* GMMU v3 ACD: what CUDA's own entries carry */
    MB_LEAF_SPARSE = 1 << 6,          /* valid is clear */
    MB_LEAF_NO_READ = 1 << 7,         /* GFX9 only: R clear */
    MB_LEAF_NO_EXEC = 1 << 8,         /* GFX9 only: X clear */
    MB_LEAF_SNOOPED = 1 << 9,         /* GFX9 only; set iff coherent in system memory */
    MB_LEAF_STOP = 1 << 10,           /* GMMU 64 KiB, valid is clear: 4 KiB table is not asked */
};

/* Meaning of a leaf. Without VALID every field but flags is 0. */
struct mb_leaf {
    uint32_t flags; /* enum mb_leaf_flag */
    uint8_t aperture;
    uint8_t kind;  /* NVIDIA memory kind; GFX9: MTYPE */
    uint8_t peer;  /* 0..7, MB_AP_PEER only */
    uint64_t phys; /* bytes, aligned to the leaf (GFX9 64 KiB: to 4 KiB, as it is 16 entries) */
};

enum mb_dir_flag {
    MB_DIR_CACHED = 1 << 0, /* GMMU: the table may be cached in the GPU's L2 (UVM: never) */
    MB_DIR_NO_ATS = 1 << 1, /* GMMU, but not in v2's dual entry: no ATS below (v3: PCF 2, 3) */
    MB_DIR_SPARSE = 1 << 2, /* GMMU: no table, accesses below read zero */
};

/* Meaning of a directory entry; on GMMU level "PDE0" is dual: big (64 KiB) and small (4 KiB) table.
 * When neither table is valid, every field but MB_DIR_SPARSE is 0. */
struct mb_dir {
    uint8_t valid;           /* small (or only) table */
    uint8_t valid_big;       /* dual entries only */
    uint8_t aperture;        /* of the table(s); never MB_AP_PEER */
    uint8_t flags;           /* enum mb_dir_flag, of both halves */
    uint64_t table_phys;     /* bytes; 4 KiB aligned (GFX9: 64 bytes) */
    uint64_t table_phys_big; /* bytes; 256-byte aligned */
};

/* Geometry: level 0 is the root. */
struct mb_fmt_level {
    unsigned shift;       /* lowest VA bit of the index */
    unsigned bits;        /* width of the index */
    unsigned entry_bytes; /* 8 or 16 */
    unsigned table_bytes; /* bytes of one table to allocate (alignment included) */
};
struct mb_fmt_geometry {
    unsigned va_bits;
    unsigned levels; /* directories, root first, to the level that can hold 2 MiB leaves */
    struct mb_fmt_level level[6];
    struct mb_fmt_level leaf_64k, leaf_4k; /* tables below the last level; entry_bytes 0: none */
};

/* ------------------------------------------------------------------ bit fields */

#define MB_FMT_BIT(n) ((uint64_t)1 << (n))
/* Bits hi..lo set; 0 <= lo <= hi <= 63. */
#define MB_FMT_MASK(hi, lo) ((~(uint64_t)0 >> (63 - (hi))) & (~(uint64_t)0 << (lo)))

/* GMMU v2 and v3 PTE */
#define MB_GMMU_VALID MB_FMT_BIT(0) /* in PDE0 and PDE1 the same bit is IS_PTE */
#define MB_GMMU_AP_SHIFT 1
#define MB_GMMU_VOL MB_FMT_BIT(3) /* v2; alone it means sparse, as PCF 1 in v3 does */
#define MB_GMMU2_PRIV MB_FMT_BIT(5)
#define MB_GMMU2_RO MB_FMT_BIT(6)
#define MB_GMMU2_NOATOM MB_FMT_BIT(7)
#define MB_GMMU2_ADDR_SHIFT 8
#define MB_GMMU2_ADDR_SYS MB_FMT_MASK(53, 8)
#define MB_GMMU2_ADDR_VID MB_FMT_MASK(32, 8)
#define MB_GMMU2_PEER_SHIFT 33
#define MB_GMMU2_KIND_SHIFT 56
#define MB_GMMU2_STOP MB_GMMU2_PRIV /* 64 KiB, VALID clear */
#define MB_GMMU3_PCF_SHIFT 3
#define MB_GMMU3_KIND_SHIFT 8
#define MB_GMMU3_ADDR MB_FMT_MASK(51, 12)
#define MB_GMMU3_PEER_SHIFT 61
#define MB_GMMU3_STOP ((uint64_t)3 << MB_GMMU3_PCF_SHIFT) /* 64 KiB, VALID clear */

/* GMMU PDE: aperture 0 is invalid, 1 video memory, 2 and 3 as in a PTE. */
#define MB_GMMU_PDE_VOL MB_FMT_BIT(3) /* v3: PCF bit 0 */
#define MB_GMMU2_PDE_NO_ATS MB_FMT_BIT(5)
#define MB_GMMU3_PDE_NO_ATS MB_FMT_BIT(4) /* PCF bit 1 */
#define MB_GMMU2_BIG_ADDR_SHIFT 4
#define MB_GMMU2_BIG_SYS MB_FMT_MASK(53, 4)
#define MB_GMMU2_BIG_VID MB_FMT_MASK(32, 4)
#define MB_GMMU3_BIG_ADDR MB_FMT_MASK(51, 8)

/* GFX9 PTE and PDE */
#define MB_GFX9_VALID MB_FMT_BIT(0)
#define MB_GFX9_SYSTEM MB_FMT_BIT(1)
#define MB_GFX9_SNOOPED MB_FMT_BIT(2)
#define MB_GFX9_X MB_FMT_BIT(4)
#define MB_GFX9_R MB_FMT_BIT(5)
#define MB_GFX9_W MB_FMT_BIT(6)
#define MB_GFX9_FRAG_SHIFT 7
#define MB_GFX9_FRAG MB_FMT_MASK(11, 7)
#define MB_GFX9_ADDR MB_FMT_MASK(47, 12)
#define MB_GFX9_PDE_ADDR MB_FMT_MASK(47, 6)
#define MB_GFX9_PRT MB_FMT_BIT(51)
#define MB_GFX9_P MB_FMT_BIT(54)
#define MB_GFX9_F MB_FMT_BIT(56)
#define MB_GFX9_MTYPE_SHIFT 57
#define MB_GFX9_BFS_SHIFT 59
/* What the driver leaves in an entry without a translation: see doc/formats.md. */
#define MB_GFX9_PTB_INVALID MB_GFX9_X
#define MB_GFX9_TF_PDB0_INVALID MB_FMT_BIT(12)

/* ------------------------------------------------------------------ geometry */

MB_FMT_FN int mb_fmt_is_gmmu(enum mb_fmt fmt)
{
    return fmt == MB_FMT_GMMU_V2 || fmt == MB_FMT_GMMU_V3;
}

MB_FMT_FN struct mb_fmt_level mb_fmt_make_level(unsigned shift, unsigned bits, unsigned entry_bytes,
                                                unsigned table_bytes)
{
    struct mb_fmt_level level;

    level.shift = shift;
    level.bits = bits;
    level.entry_bytes = entry_bytes;
    level.table_bytes = table_bytes;
    return level;
}

/* Constant per format; `levels` is 0 for an unknown format. Hot paths keep a copy. */
MB_FMT_FN struct mb_fmt_geometry mb_fmt_geometry(enum mb_fmt fmt)
{
    struct mb_fmt_geometry g;
    unsigned n = 0;

    for (unsigned i = 0; i < 6; i++)
        g.level[i] = mb_fmt_make_level(0, 0, 0, 0);
    g.leaf_64k = g.leaf_4k = g.level[0];
    g.va_bits = 0;
    if (mb_fmt_is_gmmu(fmt)) {
        g.va_bits = fmt == MB_FMT_GMMU_V3 ? 57 : 49;
        if (fmt == MB_FMT_GMMU_V3)
            g.level[n++] = mb_fmt_make_level(56, 1, 8, 4096);
        g.level[n++] = mb_fmt_make_level(47, fmt == MB_FMT_GMMU_V3 ? 9 : 2, 8, 4096);
        g.level[n++] = mb_fmt_make_level(38, 9, 8, 4096);
        g.level[n++] = mb_fmt_make_level(29, 9, 8, 4096);
        g.level[n++] = mb_fmt_make_level(21, 8, 16, 4096);
        g.leaf_64k = mb_fmt_make_level(16, 5, 8, 256);
        g.leaf_4k = mb_fmt_make_level(12, 9, 8, 4096);
    } else if (fmt == MB_FMT_GFX9 || fmt == MB_FMT_GFX9_TF) {
        g.va_bits = 48;
        g.level[n++] = mb_fmt_make_level(39, 9, 8, 4096);
        g.level[n++] = mb_fmt_make_level(30, 9, 8, 4096);
        g.level[n++] = mb_fmt_make_level(21, 9, 8, 4096);
        g.leaf_4k = mb_fmt_make_level(12, 9, 8, 4096);
    }
    g.levels = n;
    return g;
}

/* Index of `va` in a table of that level. */
MB_FMT_FN uint32_t mb_fmt_index(struct mb_fmt_level level, uint64_t va)
{
    return (uint32_t)((va >> level.shift) & (MB_FMT_BIT(level.bits) - 1));
}

/* Can a leaf of that size exist? */
MB_FMT_FN int mb_fmt_has_leaf(enum mb_fmt fmt, unsigned leaf_shift)
{
    return leaf_shift == 12 || leaf_shift == 16 || leaf_shift == 21 ||
           leaf_shift == (mb_fmt_is_gmmu(fmt) ? 29u : 30u);
}

/* Bytes of one leaf slot. */
MB_FMT_FN unsigned mb_fmt_slot_bytes(enum mb_fmt fmt, unsigned leaf_shift)
{
    return mb_fmt_is_gmmu(fmt) && leaf_shift == 21 ? 16 : 8;
}

/* Consecutive slots that one leaf fills: 16 for a 64 KiB leaf on GFX9, else 1. */
MB_FMT_FN unsigned mb_fmt_leaf_slots(enum mb_fmt fmt, unsigned leaf_shift)
{
    return !mb_fmt_is_gmmu(fmt) && leaf_shift == 16 ? 16 : 1;
}

/* ------------------------------------------------------------------ leaves */

/* The flags that a valid leaf of this format can carry. */
MB_FMT_FN uint32_t mb_fmt_leaf_flags(enum mb_fmt fmt)
{
    uint32_t common = MB_LEAF_VALID | MB_LEAF_READ_ONLY;

    if (!mb_fmt_is_gmmu(fmt))
        return common | MB_LEAF_NO_READ | MB_LEAF_NO_EXEC | MB_LEAF_SNOOPED;
    common |= MB_LEAF_NO_ATOMICS | MB_LEAF_UNCACHED | MB_LEAF_PRIVILEGED;
    return fmt == MB_FMT_GMMU_V3 ? common | MB_LEAF_NO_ACCESS_COUNT : common;
}

/* Flags of an ordinary user mapping, as the vendor's own driver chooses them; 0 where the format
 * lacks them. */
MB_FMT_FN uint32_t mb_fmt_user_flags(enum mb_fmt fmt, int writable)
{
    uint32_t flags = MB_LEAF_VALID | MB_LEAF_NO_ACCESS_COUNT;

    if (!writable)
        flags |= MB_LEAF_READ_ONLY | MB_LEAF_NO_ATOMICS;
    return flags & mb_fmt_leaf_flags(fmt);
}

/* The bits that hold a leaf's address. */
MB_FMT_FN uint64_t mb_fmt_leaf_addr_mask(enum mb_fmt fmt, unsigned aperture)
{
    if (fmt == MB_FMT_GMMU_V2)
        return aperture == MB_AP_VID || aperture == MB_AP_PEER ? MB_GMMU2_ADDR_VID
                                                               : MB_GMMU2_ADDR_SYS;
    return fmt == MB_FMT_GMMU_V3 ? MB_GMMU3_ADDR : MB_GFX9_ADDR;
}

/* Where bit 12 of a physical address lies in a leaf. */
MB_FMT_FN unsigned mb_fmt_pfn_shift(enum mb_fmt fmt)
{
    return fmt == MB_FMT_GMMU_V2 ? MB_GMMU2_ADDR_SHIFT : 12;
}

/* Addresses below this fit into a leaf, bytes. */
MB_FMT_FN uint64_t mb_fmt_phys_limit(enum mb_fmt fmt, unsigned aperture)
{
    uint64_t mask = mb_fmt_leaf_addr_mask(fmt, aperture);
    unsigned shift = mb_fmt_pfn_shift(fmt);

    return ((mask >> shift) + 1) << 12;
}

/* Alignment of mb_leaf.phys, bytes. */
MB_FMT_FN uint64_t mb_fmt_leaf_align(enum mb_fmt fmt, unsigned leaf_shift)
{
    return MB_FMT_BIT(mb_fmt_leaf_slots(fmt, leaf_shift) == 1 ? leaf_shift : 12);
}

MB_FMT_FN uint64_t mb_fmt_gmmu_template(enum mb_fmt fmt, uint32_t flags, unsigned aperture,
                                        unsigned kind)
{
    uint64_t v = MB_GMMU_VALID | (uint64_t)(aperture & 3) << MB_GMMU_AP_SHIFT;

    if (fmt == MB_FMT_GMMU_V2) {
        v |= flags & MB_LEAF_UNCACHED ? MB_GMMU_VOL : 0;
        v |= flags & MB_LEAF_PRIVILEGED ? MB_GMMU2_PRIV : 0;
        v |= flags & MB_LEAF_READ_ONLY ? MB_GMMU2_RO : 0;
        v |= flags & MB_LEAF_NO_ATOMICS ? MB_GMMU2_NOATOM : 0;
        return v | (uint64_t)(kind & 0xff) << MB_GMMU2_KIND_SHIFT;
    }
    v |= flags & MB_LEAF_UNCACHED ? MB_FMT_BIT(MB_GMMU3_PCF_SHIFT) : 0;
    v |= flags & MB_LEAF_PRIVILEGED ? MB_FMT_BIT(MB_GMMU3_PCF_SHIFT + 1) : 0;
    v |= flags & MB_LEAF_READ_ONLY ? MB_FMT_BIT(MB_GMMU3_PCF_SHIFT + 2) : 0;
    v |= flags & MB_LEAF_NO_ATOMICS ? MB_FMT_BIT(MB_GMMU3_PCF_SHIFT + 3) : 0;
    v |= flags & MB_LEAF_NO_ACCESS_COUNT ? MB_FMT_BIT(MB_GMMU3_PCF_SHIFT + 4) : 0;
    return v | (uint64_t)(kind & 0xf) << MB_GMMU3_KIND_SHIFT;
}

/* P marks a leaf in a directory; translate-further inverts that in PDB0. */
MB_FMT_FN uint64_t mb_fmt_gfx9_leaf_mark(enum mb_fmt fmt, unsigned leaf_shift)
{
    return leaf_shift > 21 || (leaf_shift == 21 && fmt == MB_FMT_GFX9) ? MB_GFX9_P : 0;
}

MB_FMT_FN uint64_t mb_fmt_gfx9_template(enum mb_fmt fmt, unsigned leaf_shift, uint32_t flags,
                                        unsigned aperture, unsigned kind)
{
    uint64_t v = MB_GFX9_VALID | mb_fmt_gfx9_leaf_mark(fmt, leaf_shift);

    v |= aperture >= MB_AP_SYS_COHERENT ? MB_GFX9_SYSTEM : 0;
    v |= flags & MB_LEAF_SNOOPED || aperture == MB_AP_SYS_COHERENT ? MB_GFX9_SNOOPED : 0;
    v |= flags & MB_LEAF_NO_EXEC ? 0 : MB_GFX9_X;
    v |= flags & MB_LEAF_NO_READ ? 0 : MB_GFX9_R;
    v |= flags & MB_LEAF_READ_ONLY ? 0 : MB_GFX9_W;
    v |= (uint64_t)(leaf_shift - 12) << MB_GFX9_FRAG_SHIFT;
    return v | (uint64_t)(kind & 3) << MB_GFX9_MTYPE_SHIFT;
}

/* The entry of a leaf without VALID: `flags` is 0, MB_LEAF_SPARSE or MB_LEAF_STOP. */
MB_FMT_FN uint64_t mb_fmt_no_leaf(enum mb_fmt fmt, unsigned leaf_shift, uint32_t flags)
{
    uint64_t v;

    if (mb_fmt_is_gmmu(fmt)) {
        if (flags & MB_LEAF_SPARSE)
            return MB_GMMU_VOL;
        if (flags & MB_LEAF_STOP && leaf_shift == 16)
            return fmt == MB_FMT_GMMU_V2 ? MB_GMMU2_STOP : MB_GMMU3_STOP;
        return 0;
    }
    v = mb_fmt_gfx9_leaf_mark(fmt, leaf_shift);
    if (leaf_shift == 21 && fmt == MB_FMT_GFX9_TF)
        v = MB_GFX9_TF_PDB0_INVALID;
    if (flags & MB_LEAF_SPARSE)
        return v | MB_GFX9_PRT;
    return leaf_shift < 21 ? MB_GFX9_PTB_INVALID : v;
}

/* Everything of a leaf but its address. `flags` without VALID gives the entry to write as it is. */
MB_FMT_FN uint64_t mb_fmt_leaf_template(enum mb_fmt fmt, unsigned leaf_shift, uint32_t flags,
                                        unsigned aperture, unsigned kind)
{
    if (!(flags & MB_LEAF_VALID))
        return mb_fmt_no_leaf(fmt, leaf_shift, flags);
    if (mb_fmt_is_gmmu(fmt))
        return mb_fmt_gmmu_template(fmt, flags, aperture, kind);
    return mb_fmt_gfx9_template(fmt, leaf_shift, flags, aperture, kind);
}

/* Adds the address: what pte_pop does per entry. `tmpl` is of a VALID leaf; pfn counts 4 KiB pages,
 * is aligned to the leaf and lies below mb_fmt_phys_limit(): nothing is masked here. */
MB_FMT_FN struct mb_pte mb_fmt_leaf_at(enum mb_fmt fmt, unsigned leaf_shift, uint64_t tmpl,
                                       uint32_t pfn)
{
    struct mb_pte pte;

    (void)leaf_shift;
    pte.lo = tmpl | (uint64_t)pfn << mb_fmt_pfn_shift(fmt);
    pte.hi = 0;
    return pte;
}

/* Fields that do not fit are cut to their width; mb_fmt_leaf_legal() tells whether any would be. */
MB_FMT_FN struct mb_pte mb_fmt_encode_leaf(enum mb_fmt fmt, unsigned leaf_shift,
                                           const struct mb_leaf *leaf)
{
    uint64_t phys = leaf->phys & ~(mb_fmt_leaf_align(fmt, leaf_shift) - 1);
    struct mb_pte pte;

    pte.lo = mb_fmt_leaf_template(fmt, leaf_shift, leaf->flags, leaf->aperture, leaf->kind);
    pte.hi = 0;
    if (!(leaf->flags & MB_LEAF_VALID))
        return pte;
    pte.lo |= (phys >> 12 << mb_fmt_pfn_shift(fmt)) & mb_fmt_leaf_addr_mask(fmt, leaf->aperture);
    if (mb_fmt_is_gmmu(fmt) && leaf->aperture == MB_AP_PEER)
        pte.lo |= (uint64_t)(leaf->peer & 7)
                  << (fmt == MB_FMT_GMMU_V2 ? MB_GMMU2_PEER_SHIFT : MB_GMMU3_PEER_SHIFT);
    return pte;
}

MB_FMT_FN void mb_fmt_gmmu_decode(enum mb_fmt fmt, uint64_t v, struct mb_leaf *leaf)
{
    uint32_t pcf;

    leaf->aperture = (uint8_t)(v >> MB_GMMU_AP_SHIFT & 3);
    if (fmt == MB_FMT_GMMU_V2) {
        leaf->kind = (uint8_t)(v >> MB_GMMU2_KIND_SHIFT);
        /* The same order of bits as PCF, with a hole: VOL 3, PRIV 5, RO 6, NOATOM 7. */
        pcf = (uint32_t)(v >> 3 & 1) | (uint32_t)(v >> 4 & 0xe);
    } else {
        leaf->kind = (uint8_t)(v >> MB_GMMU3_KIND_SHIFT & 0xf);
        pcf = (uint32_t)(v >> MB_GMMU3_PCF_SHIFT & 0x1f);
    }
    if (leaf->aperture == MB_AP_PEER)
        leaf->peer =
            (uint8_t)(v >> (fmt == MB_FMT_GMMU_V2 ? MB_GMMU2_PEER_SHIFT : MB_GMMU3_PEER_SHIFT) & 7);
    leaf->flags |= pcf & 1 ? MB_LEAF_UNCACHED : 0;
    leaf->flags |= pcf & 2 ? MB_LEAF_PRIVILEGED : 0;
    leaf->flags |= pcf & 4 ? MB_LEAF_READ_ONLY : 0;
    leaf->flags |= pcf & 8 ? MB_LEAF_NO_ATOMICS : 0;
    leaf->flags |= pcf & 16 ? MB_LEAF_NO_ACCESS_COUNT : 0;
}

MB_FMT_FN void mb_fmt_gfx9_decode(uint64_t v, struct mb_leaf *leaf)
{
    leaf->kind = (uint8_t)(v >> MB_GFX9_MTYPE_SHIFT & 3);
    leaf->flags |= v & MB_GFX9_X ? 0 : MB_LEAF_NO_EXEC;
    leaf->flags |= v & MB_GFX9_R ? 0 : MB_LEAF_NO_READ;
    leaf->flags |= v & MB_GFX9_W ? 0 : MB_LEAF_READ_ONLY;
    leaf->flags |= v & MB_GFX9_SNOOPED ? MB_LEAF_SNOOPED : 0;
    if (v & MB_GFX9_SYSTEM)
        leaf->aperture = v & MB_GFX9_SNOOPED ? MB_AP_SYS_COHERENT : MB_AP_SYS_NONCOHERENT;
}

/* 1 and *leaf for an entry without a translation; 0 if it is none of the known codes. */
MB_FMT_FN int mb_fmt_decode_no_leaf(enum mb_fmt fmt, unsigned leaf_shift, uint64_t v,
                                    struct mb_leaf *leaf)
{
    if (v == 0 || v == mb_fmt_no_leaf(fmt, leaf_shift, 0))
        return 1;
    if (v == mb_fmt_no_leaf(fmt, leaf_shift, MB_LEAF_SPARSE)) {
        leaf->flags = MB_LEAF_SPARSE;
        return 1;
    }
    if (mb_fmt_is_gmmu(fmt) && leaf_shift == 16 &&
        v == mb_fmt_no_leaf(fmt, leaf_shift, MB_LEAF_STOP)) {
        leaf->flags = MB_LEAF_STOP;
        return 1;
    }
    return 0;
}

/*
 * 1: *leaf is what the entry means; encoding it again gives the entry (but see below). 0: the entry
 * is not a leaf of that size, or carries a bit that no field here owns; *leaf is then undefined.
 * Two encodings are accepted and not reproduced: zero on GFX9, and any FRAG in a 4 KiB entry of
 * GFX9, since FRAG speaks of neighbours, not of the translation.
 */
MB_FMT_FN int mb_fmt_decode_leaf(enum mb_fmt fmt, unsigned leaf_shift, struct mb_pte pte,
                                 struct mb_leaf *leaf)
{
    uint64_t v = pte.lo, mask;

    leaf->flags = 0;
    leaf->aperture = leaf->kind = leaf->peer = 0;
    leaf->phys = 0;
    if (pte.hi || !mb_fmt_has_leaf(fmt, leaf_shift))
        return 0;
    if (!(v & 1)) /* VALID in every format */
        return mb_fmt_decode_no_leaf(fmt, leaf_shift, v, leaf);
    leaf->flags = MB_LEAF_VALID;
    if (mb_fmt_is_gmmu(fmt))
        mb_fmt_gmmu_decode(fmt, v, leaf);
    else
        mb_fmt_gfx9_decode(v, leaf);
    mask = mb_fmt_leaf_addr_mask(fmt, leaf->aperture);
    leaf->phys = (v & mask) >> mb_fmt_pfn_shift(fmt) << 12;
    if (leaf_shift == 12 && !mb_fmt_is_gmmu(fmt))
        v &= ~MB_GFX9_FRAG;
    return mb_fmt_encode_leaf(fmt, leaf_shift, leaf).lo == v;
}

/* Can the leaf be encoded without losing anything? */
MB_FMT_FN int mb_fmt_leaf_legal(enum mb_fmt fmt, unsigned leaf_shift, const struct mb_leaf *leaf)
{
    struct mb_leaf back;

    if (!mb_fmt_has_leaf(fmt, leaf_shift) ||
        !mb_fmt_decode_leaf(fmt, leaf_shift, mb_fmt_encode_leaf(fmt, leaf_shift, leaf), &back))
        return 0;
    return back.flags == leaf->flags && back.aperture == leaf->aperture &&
           back.kind == leaf->kind && back.peer == leaf->peer && back.phys == leaf->phys;
}

/* An entry that translates nothing and lets no other table answer. */
MB_FMT_FN struct mb_pte mb_fmt_invalid_leaf(enum mb_fmt fmt, unsigned leaf_shift)
{
    struct mb_pte pte;

    pte.lo = mb_fmt_no_leaf(fmt, leaf_shift, MB_LEAF_STOP);
    pte.hi = 0;
    return pte;
}

/* As mb_fmt_invalid_leaf(), but a 64 KiB entry of GMMU sends the walker to the 4 KiB table. */
MB_FMT_FN struct mb_pte mb_fmt_empty_leaf(enum mb_fmt fmt, unsigned leaf_shift)
{
    struct mb_pte pte;

    pte.lo = mb_fmt_no_leaf(fmt, leaf_shift, 0);
    pte.hi = 0;
    return pte;
}

/* Nothing mapped, accesses do not fault: reads give zero, writes vanish. */
MB_FMT_FN struct mb_pte mb_fmt_sparse_leaf(enum mb_fmt fmt, unsigned leaf_shift)
{
    struct mb_pte pte;

    pte.lo = mb_fmt_no_leaf(fmt, leaf_shift, MB_LEAF_SPARSE);
    pte.hi = 0;
    return pte;
}

/* ------------------------------------------------------------------ directories */

/* The last level of GMMU: 16-byte entries with a big and a small half. */
MB_FMT_FN int mb_fmt_is_dual(enum mb_fmt fmt, unsigned level)
{
    return (fmt == MB_FMT_GMMU_V2 && level == 3) || (fmt == MB_FMT_GMMU_V3 && level == 4);
}

MB_FMT_FN unsigned mb_fmt_levels(enum mb_fmt fmt)
{
    return fmt == MB_FMT_GMMU_V3 ? 5 : fmt == MB_FMT_GMMU_V2 ? 4 : 3;
}

/*
 * Does the walker take this entry of a directory as a leaf? An entry that says so may still be
 * invalid on GFX9; on GMMU the leaf's VALID is the bit that says it, so that an entry without it is
 * a directory entry with aperture 0: empty or sparse.
 */
MB_FMT_FN int mb_fmt_is_leaf(enum mb_fmt fmt, unsigned level, struct mb_pte pte)
{
    unsigned last = mb_fmt_levels(fmt) - 1;

    if (mb_fmt_is_gmmu(fmt))
        return (level == last || level == last - 1) && (pte.lo & MB_GMMU_VALID) != 0;
    if (fmt == MB_FMT_GFX9_TF && level == last)
        return (pte.lo & MB_GFX9_F) == 0;
    return (pte.lo & MB_GFX9_P) != 0;
}

/* One GMMU directory half; big: the 64 KiB half of a dual entry. */
MB_FMT_FN uint64_t mb_fmt_gmmu_pde(enum mb_fmt fmt, int big, const struct mb_dir *dir)
{
    uint64_t phys = big ? dir->table_phys_big : dir->table_phys;
    unsigned aperture = dir->aperture == MB_AP_VID ? 1u : dir->aperture & 3u;
    uint64_t v = (uint64_t)aperture << MB_GMMU_AP_SHIFT;

    v |= dir->flags & MB_DIR_CACHED ? 0 : MB_GMMU_PDE_VOL;
    if (fmt == MB_FMT_GMMU_V3) {
        v |= dir->flags & MB_DIR_NO_ATS ? MB_GMMU3_PDE_NO_ATS : 0;
        return v | (phys & (big ? MB_GMMU3_BIG_ADDR : MB_GMMU3_ADDR));
    }
    if (big)
        return v | ((phys >> 8 << MB_GMMU2_BIG_ADDR_SHIFT) &
                    (aperture == 1 ? MB_GMMU2_BIG_VID : MB_GMMU2_BIG_SYS));
    return v | ((phys >> 12 << MB_GMMU2_ADDR_SHIFT) &
                (aperture == 1 ? MB_GMMU2_ADDR_VID : MB_GMMU2_ADDR_SYS));
}

MB_FMT_FN struct mb_pte mb_fmt_gfx9_pde(enum mb_fmt fmt, unsigned level, const struct mb_dir *dir)
{
    struct mb_pte pte;

    pte.hi = pte.lo = 0;
    if (!dir->valid)
        return pte;
    pte.lo = MB_GFX9_VALID | (dir->table_phys & MB_GFX9_PDE_ADDR);
    pte.lo |= dir->aperture >= MB_AP_SYS_COHERENT ? MB_GFX9_SYSTEM : 0;
    pte.lo |= dir->aperture == MB_AP_SYS_COHERENT ? MB_GFX9_SNOOPED : 0;
    if (fmt == MB_FMT_GFX9_TF && level == 1)
        pte.lo |= (uint64_t)9 << MB_GFX9_BFS_SHIFT;
    if (fmt == MB_FMT_GFX9_TF && level == 2)
        pte.lo |= MB_GFX9_F;
    return pte;
}

/* Fields that do not fit are cut to their width. Without a valid table the entry is empty or
 * sparse. */
MB_FMT_FN struct mb_pte mb_fmt_encode_dir(enum mb_fmt fmt, unsigned level, const struct mb_dir *dir)
{
    struct mb_pte pte;

    if (!mb_fmt_is_gmmu(fmt))
        return mb_fmt_gfx9_pde(fmt, level, dir);
    pte.lo = pte.hi = 0;
    if (!dir->valid && !dir->valid_big) {
        pte.lo = dir->flags & MB_DIR_SPARSE ? MB_GMMU_PDE_VOL : 0;
        return pte;
    }
    if (mb_fmt_is_dual(fmt, level)) {
        pte.lo = dir->valid_big ? mb_fmt_gmmu_pde(fmt, 1, dir) : 0;
        pte.hi = dir->valid ? mb_fmt_gmmu_pde(fmt, 0, dir) : 0;
    } else if (dir->valid) {
        pte.lo = mb_fmt_gmmu_pde(fmt, 0, dir);
        /* Not in v2's dual entries: bit 5 belongs to the big table's address there as well. */
        if (fmt == MB_FMT_GMMU_V2 && dir->flags & MB_DIR_NO_ATS)
            pte.lo |= MB_GMMU2_PDE_NO_ATS;
    }
    return pte;
}

/* Reads one valid half into *dir (aperture and flags of the half read last). */
MB_FMT_FN void mb_fmt_gmmu_decode_pde(enum mb_fmt fmt, int big, uint64_t v, struct mb_dir *dir)
{
    unsigned aperture = (unsigned)(v >> MB_GMMU_AP_SHIFT & 3);
    uint64_t phys;

    dir->aperture = (uint8_t)(aperture == 1 ? 0 : aperture); /* 1 is MB_AP_VID */
    dir->flags = (uint8_t)(v & MB_GMMU_PDE_VOL ? 0 : MB_DIR_CACHED);
    if (fmt == MB_FMT_GMMU_V3) {
        dir->flags |= (uint8_t)(v & MB_GMMU3_PDE_NO_ATS ? MB_DIR_NO_ATS : 0);
        phys = v & (big ? MB_GMMU3_BIG_ADDR : MB_GMMU3_ADDR);
    } else if (big) {
        phys = (v & (aperture == 1 ? MB_GMMU2_BIG_VID : MB_GMMU2_BIG_SYS)) >>
               MB_GMMU2_BIG_ADDR_SHIFT << 8;
    } else {
        phys = (v & (aperture == 1 ? MB_GMMU2_ADDR_VID : MB_GMMU2_ADDR_SYS)) >> MB_GMMU2_ADDR_SHIFT
                                                                                    << 12;
    }
    if (big) {
        dir->valid_big = 1;
        dir->table_phys_big = phys;
    } else {
        dir->valid = 1;
        dir->table_phys = phys;
    }
}

MB_FMT_FN void mb_fmt_clear_dir(struct mb_dir *dir)
{
    dir->valid = dir->valid_big = dir->aperture = dir->flags = 0;
    dir->table_phys = dir->table_phys_big = 0;
}

/*
 * 1: *dir is what the entry means and encodes to the entry again. 0: it is a leaf, or not an entry
 * that these fields can say (the halves of a dual entry must agree in aperture and flags); *dir is
 * then undefined. The fill of an empty GFX9 directory, P without VALID, counts as a leaf.
 */
MB_FMT_FN int mb_fmt_decode_dir(enum mb_fmt fmt, unsigned level, struct mb_pte pte,
                                struct mb_dir *dir)
{
    struct mb_pte back;

    mb_fmt_clear_dir(dir);
    if (level >= mb_fmt_levels(fmt))
        return 0;
    if (pte.lo == 0 && pte.hi == 0)
        return 1;
    if (mb_fmt_is_leaf(fmt, level, pte))
        return 0;
    if (!mb_fmt_is_gmmu(fmt)) {
        dir->valid = (uint8_t)(pte.lo & MB_GFX9_VALID);
        if (pte.lo & MB_GFX9_SYSTEM)
            dir->aperture = pte.lo & MB_GFX9_SNOOPED ? MB_AP_SYS_COHERENT : MB_AP_SYS_NONCOHERENT;
        dir->table_phys = pte.lo & MB_GFX9_PDE_ADDR;
    } else {
        int dual = mb_fmt_is_dual(fmt, level);
        uint64_t small = dual ? pte.hi : pte.lo;

        if (dual && pte.lo >> MB_GMMU_AP_SHIFT & 3)
            mb_fmt_gmmu_decode_pde(fmt, 1, pte.lo, dir);
        if (small >> MB_GMMU_AP_SHIFT & 3)
            mb_fmt_gmmu_decode_pde(fmt, 0, small, dir);
        if (!dir->valid && !dir->valid_big)
            dir->flags = MB_DIR_SPARSE;
        else if (fmt == MB_FMT_GMMU_V2 && !dual && pte.lo & MB_GMMU2_PDE_NO_ATS)
            dir->flags |= MB_DIR_NO_ATS;
    }
    back = mb_fmt_encode_dir(fmt, level, dir);
    return back.lo == pte.lo && back.hi == pte.hi;
}

#endif
