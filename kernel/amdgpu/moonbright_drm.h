/* SPDX-License-Identifier: MIT */
/*
 * moonbright_drm.h - DESIGN of a user interface for device-written page tables on amdgpu.
 * Compiled, never run.
 *
 * One ioctl on the render node of the GPU, on the same open file that the process gave to KFD,
 * since that file owns the address space. It needs CAP_SYS_RAWIO: a process that can write its
 * page tables can map any memory of the GPU.
 *
 * STATES    A window is a range of addresses that the driver keeps away from; its last-level
 *           directories exist, are pinned and visible to the GPU at `tables_va`, entry i of the
 *           window at tables_va + 8 * i. Frames are 2 MiB of device memory that stay where they
 *           are. Entries are the process's business from then on: the driver looks at them only
 *           when frames go back.
 * RESET     After a reset that lost device memory every call but the drops fails with ECANCELED.
 * SUSPEND   Pinned memory does not survive a suspend to disk or RAM; the machine must not suspend
 *           meanwhile.
 */
#ifndef MOONBRIGHT_DRM_H
#define MOONBRIGHT_DRM_H

#include <drm/drm.h>

#define DRM_AMDGPU_MB 0x5f /* the last number of the driver-private range */
#define DRM_IOCTL_AMDGPU_MB DRM_IOWR(DRM_COMMAND_BASE + DRM_AMDGPU_MB, struct drm_amdgpu_mb)

#define AMDGPU_MB_VERSION 1

enum drm_amdgpu_mb_op {
    AMDGPU_MB_QUERY,       /* out: query */
    AMDGPU_MB_FRAMES_ADD,  /* in and out: frames */
    AMDGPU_MB_FRAMES_DROP, /* in: frames.id. EBUSY while an entry of a window names one of them */
    AMDGPU_MB_WINDOW_ADD,  /* in: window. EINVAL when a range is in use */
    AMDGPU_MB_WINDOW_DROP, /* in: window.va */
    AMDGPU_MB_FLUSH,       /* returns when no translation from before the call is used any more */
};

struct drm_amdgpu_mb_query {
    __u32 version;
    __u32 gc_version;        /* IP_VERSION(9, 4, 2) on MI200 */
    __u32 translate_further; /* 1: a 2 MiB leaf has P and F clear */
    __u32 block_size;        /* 9 */
    __u64 frame_bytes;       /* 2 MiB */
    __u64 window_step;       /* 1 GiB: what one last-level directory covers */
    __u64 pinned_bytes;      /* held by this file now */
    __u64 pinned_max;
};

struct drm_amdgpu_mb_frames {
    __u32 count; /* FRAMES_ADD, 1 to 65536 */
    __u32 id;    /* out of FRAMES_ADD */
    __u64 list;  /* FRAMES_ADD: user address of `count` words; each gets what goes into an entry */
};

struct drm_amdgpu_mb_window {
    __u64 va;        /* multiple of window_step */
    __u64 bytes;     /* the same, at most 1 TiB */
    __u64 tables_va; /* multiple of 4 KiB; bytes / 2 MiB * 8 bytes become usable there */
};

struct drm_amdgpu_mb {
    __u32 op;
    __u32 flags; /* 0 */
    union {
        struct drm_amdgpu_mb_query query;
        struct drm_amdgpu_mb_frames frames;
        struct drm_amdgpu_mb_window window;
    };
};

#endif
