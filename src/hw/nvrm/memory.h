/*
 * memory.h - memory objects of the client, their CPU and GPU mappings, the control address space,
 * and views of physical video memory.
 *
 * The control address space is the client's own: the application's kernels cannot reach it. Its
 * addresses are chosen by the driver. Channels (channel.h) run in it.
 *
 * CPU mappings are hidden from children made by fork(). Mappings of video memory go through BAR1
 * and are write-combined: fence before the GPU is told to look.
 *
 * LOCKING  Every function may be called from any thread, but not two on the same object at once.
 * UNITS    bytes.
 */
#ifndef MB_HW_NVRM_MEMORY_H
#define MB_HW_NVRM_MEMORY_H

#include "hw/nvrm/client.h"

/* One CPU mapping; empty when addr is NULL. Owned by whatever embeds it, which unmaps it before the
 * object behind it goes: closing the client does not know of it. */
struct nvrm_cpu_map {
    volatile void *addr;
    size_t bytes;
    uint64_t linear; /* the driver's name of the mapping */
    nvrm_handle device, memory;
};

enum nvrm_cpu_access { NVRM_CPU_READ_WRITE, NVRM_CPU_READ_ONLY };

/*
 * Maps [offset, offset + bytes) of an object. `device` is the client's device or subdevice.
 * `on_gpu` tells that the memory is behind the GPU's BARs and not in host memory. Offset and bytes
 * are multiples of 4096.
 */
enum mb_err mb__nvrm_cpu_map(struct nvrm_client *client, nvrm_handle device, nvrm_handle memory,
                             bool on_gpu, uint64_t offset, size_t bytes,
                             enum nvrm_cpu_access access, struct nvrm_cpu_map *out);
/* Empties the map; an empty one is allowed. In a child of fork() there is nothing to unmap. */
void mb__nvrm_cpu_unmap(struct nvrm_client *client, struct nvrm_cpu_map *map);

/* The control address space. */
struct nvrm_vas {
    struct nvrm_object object;
    struct nvrm_client *client;
    nvrm_handle space, virt; /* address space; the object that mappings are made through */
    nvrm_handle usermode;    /* region with the doorbell */
    struct nvrm_cpu_map usermode_map;
    volatile uint32_t *doorbell; /* write a channel's token */
};

enum mb_err mb__nvrm_vas_create(struct nvrm_client *client, struct nvrm_vas **out);
/* Everything mapped in it must be gone. Sets *vas to NULL; NULL inside is allowed. */
void mb__nvrm_vas_destroy(struct nvrm_vas **vas);

/* Maps part of a memory object in the control space with `flags` (NVRM_DMA_*); *va is its address.
 * */
enum mb_err mb__nvrm_gpu_map(struct nvrm_vas *vas, nvrm_handle memory, uint64_t offset,
                             uint64_t bytes, uint32_t flags, uint64_t *va);
void mb__nvrm_gpu_unmap(struct nvrm_vas *vas, nvrm_handle memory, uint64_t va);

enum nvrm_mem_kind {
    NVRM_MEM_VIDMEM,        /* contiguous video memory in 2 MiB pages; bytes round up to that */
    NVRM_MEM_SYSMEM,        /* host memory, 4 KiB pages, not cached by the CPU (measured) */
    NVRM_MEM_SYSMEM_CACHED, /* host memory that the CPU caches and the GPU snoops («not run») */
};

/* A memory object. Read only for callers. */
struct nvrm_mem {
    struct nvrm_object object;
    struct nvrm_client *client;
    nvrm_handle handle;
    uint64_t bytes;
    bool on_gpu;             /* video memory, reached through BAR1 */
    struct nvrm_cpu_map cpu; /* .addr NULL until mapped */
    struct nvrm_vas *vas;    /* where it is mapped for the GPU; NULL: nowhere */
    uint64_t va;             /* its address there */
};

enum mb_err mb__nvrm_mem_create(struct nvrm_client *client, enum nvrm_mem_kind kind, uint64_t bytes,
                                struct nvrm_mem **out);
/* A second name for memory that another client of this process owns, e.g. libcuda. It stays
 * allocated until both are gone. `bytes` is what may be mapped; `on_gpu` as in mb__nvrm_cpu_map().
 * */
enum mb_err mb__nvrm_mem_dup(struct nvrm_client *client, nvrm_handle src_client,
                             nvrm_handle src_memory, uint64_t bytes, bool on_gpu,
                             struct nvrm_mem **out);
/* Map the whole object; a second call is MB_ERR_MAPPED. */
enum mb_err mb__nvrm_mem_map_cpu(struct nvrm_mem *mem);
enum mb_err mb__nvrm_mem_map_gpu(struct nvrm_mem *mem, struct nvrm_vas *vas);
/* Unmaps and frees. Sets *mem to NULL; NULL inside is allowed. */
void mb__nvrm_mem_destroy(struct nvrm_mem **mem);

/*
 * A view of all of the GPU's video memory, page kind 6. Needs CAP_SYS_ADMIN. It holds no reference
 * on what it shows: the caller proves first what a page is, and looks at nothing else.
 */
struct nvrm_phys {
    struct nvrm_object object;
    struct nvrm_client *client;
    nvrm_handle handle;
    uint64_t bytes; /* physical addresses below this can be viewed */
};

enum { NVRM_VIEW_BYTES = 4096 };

enum mb_err mb__nvrm_phys_create(struct nvrm_client *client, struct nvrm_phys **out);
void mb__nvrm_phys_destroy(struct nvrm_phys **phys);
/* One page at physical address `pa`, a multiple of 4096 below phys->bytes, through BAR1. */
enum mb_err mb__nvrm_phys_view_cpu(struct nvrm_phys *phys, uint64_t pa, enum nvrm_cpu_access access,
                                   struct nvrm_cpu_map *out);
/* The same in the control address space. Undo with mb__nvrm_gpu_unmap(vas, phys->handle, va). */
enum mb_err mb__nvrm_phys_view_gpu(struct nvrm_phys *phys, struct nvrm_vas *vas, uint64_t pa,
                                   bool read_only, uint64_t *va);

#endif
