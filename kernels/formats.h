/*
 * formats.h - page-table entry formats, shared word for word by host, software GPU and device code
 * (C, CUDA C++, HIP, OpenCL C).
 *
 * Everything here is a pure function of its arguments. Bit positions: doc/formats.md.
 */
#ifndef MB_KERNELS_FORMATS_H
#define MB_KERNELS_FORMATS_H

#if defined(__OPENCL_VERSION__)
typedef uchar uint8_t;
typedef uint uint32_t;
typedef ulong uint64_t;
#define MB_FMT_FN static inline
#elif defined(__CUDACC__) || defined(__HIPCC__)
#include <stdint.h>
#define MB_FMT_FN static __host__ __device__ inline
#else
#include <stdint.h>
#define MB_FMT_FN static inline
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

enum mb_aperture { MB_AP_VID = 0, MB_AP_PEER = 1, MB_AP_SYS_COHERENT = 2, MB_AP_SYS_NONCOHERENT = 3 };

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
    MB_LEAF_SNOOPED = 1 << 9,         /* GFX9 only */
};

/* Meaning of a leaf. */
struct mb_leaf {
    uint32_t flags; /* enum mb_leaf_flag */
    uint8_t aperture;
    uint8_t kind;   /* NVIDIA memory kind; GFX9: MTYPE */
    uint64_t phys;  /* bytes, aligned to the leaf */
};

/* Meaning of a directory entry; on GMMU level "PDE0" is dual: big (64 KiB) and small (4 KiB) table. */
struct mb_dir {
    uint8_t valid;       /* small (or only) table */
    uint8_t valid_big;   /* dual entries only */
    uint8_t aperture;    /* of the table(s) */
    uint64_t table_phys; /* bytes */
    uint64_t table_phys_big;
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
    unsigned levels;      /* directory levels, root first, down to the level that can hold 2 MiB leaves */
    struct mb_fmt_level level[6];
    struct mb_fmt_level leaf_64k, leaf_4k; /* tables below the last level; entry_bytes 0: none */
};

#endif
