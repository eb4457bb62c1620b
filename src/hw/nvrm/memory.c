/*
 * memory.c - see memory.h.
 *
 * A CPU mapping takes three steps: the driver prepares it and arms a fresh file, mmap of that file
 * makes it, and the file can be closed, since the mapping keeps it alive. The undo is munmap before
 * the driver forgets the mapping, never the other way round: the CPU must not see a BAR1 window
 * that was given to someone else.
 */
#include "hw/nvrm/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"
#include "hw/nvrm/status.h"

enum { PAGE_BYTES = 4096, HUGE_BYTES = 2 << 20, USERMODE_BYTES = 0x10000 };

#define CONTAINER(pointer, type) ((type *)(void *)(pointer)) /* `object` is the first member */

static void *new_object(size_t bytes)
{
    void *object = calloc(1, bytes);

    if (!object)
        mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a GPU object");
    return object;
}

/* ------------------------------------------------------------ CPU mappings */

static enum mb_err open_map_file(struct nvrm_client *client, bool on_gpu, int *fd)
{
    char path[32] = "/dev/nvidiactl";
    struct nvrm_abi_register_fd reg = {.ctl_fd = client->ctl_fd};

    if (on_gpu)
        snprintf(path, sizeof path, "/dev/nvidia%u", client->minor);
    int rc = client->os->open(client->os, path, O_RDWR | O_CLOEXEC);
    if (rc < 0)
        return mb__fail(mb__nvrm_errno_err(-rc), "%s for a mapping: %s", path, strerror(-rc));
    *fd = rc;
    if (!on_gpu)
        return MB_OK;
    rc = client->os->ioctl(client->os, *fd,
                           mb__nvrm_escape_request(NVRM_ESC_REGISTER_FD, sizeof reg), &reg);
    if (!rc)
        return MB_OK;
    client->os->close(client->os, *fd);
    return mb__fail(mb__nvrm_errno_err(-rc), "registration of a mapping file: %s", strerror(-rc));
}

static void forget_mapping(struct nvrm_client *client, const struct nvrm_cpu_map *map)
{
    struct nvrm_abi_unmap arg = {.client = client->root,
                                 .device = map->device,
                                 .memory = map->memory,
                                 .linear = map->linear};

    mb__nvrm_escape_quiet(client, NVRM_ESC_UNMAP_MEMORY, &arg, sizeof arg);
}

static enum mb_err map_file(struct nvrm_client *client, int fd, struct nvrm_cpu_map *map,
                            enum nvrm_cpu_access access)
{
    int prot = access == NVRM_CPU_READ_ONLY ? PROT_READ : PROT_READ | PROT_WRITE;
    void *addr = NULL;
    int rc = client->os->map(client->os, map->bytes, prot, fd, &addr);

    if (rc)
        return mb__fail(mb__nvrm_errno_err(-rc), "mmap of %zu bytes of device memory: %s",
                        map->bytes, strerror(-rc));
    rc = client->os->dont_fork(client->os, addr, map->bytes);
    if (rc) {
        client->os->unmap(client->os, addr, map->bytes);
        return mb__fail(mb__nvrm_errno_err(-rc), "hiding device memory from child processes: %s",
                        strerror(-rc));
    }
    map->addr = addr;
    return MB_OK;
}

enum mb_err mb__nvrm_cpu_map(struct nvrm_client *client, nvrm_handle device, nvrm_handle memory,
                             bool on_gpu, uint64_t offset, size_t bytes,
                             enum nvrm_cpu_access access, struct nvrm_cpu_map *out)
{
    struct nvrm_cpu_map map = {.bytes = bytes, .device = device, .memory = memory};
    struct nvrm_abi_map arg = {
        .client = client->root,
        .device = device,
        .memory = memory,
        .offset = offset,
        .length = bytes,
        .flags = access == NVRM_CPU_READ_ONLY ? NVRM_MAP_READ_ONLY : 0,
    };
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    if (!bytes || offset % PAGE_BYTES || bytes % PAGE_BYTES)
        return mb__fail(MB_ERR_INVALID,
                        "CPU mapping of %zu bytes at offset 0x%llx: both must be multiples of %d",
                        bytes, (unsigned long long)offset, PAGE_BYTES);
    err = open_map_file(client, on_gpu, &arg.fd);
    if (err)
        return err;
    err = mb__nvrm_escape(client, NVRM_ESC_MAP_MEMORY, &arg, sizeof arg, "RM map memory");
    if (!err)
        err = mb__nvrm_status_check(arg.status, "RM map memory of object 0x%x", memory);
    if (!err) {
        map.linear = arg.linear;
        err = map_file(client, arg.fd, &map, access);
        if (err)
            forget_mapping(client, &map);
    }
    client->os->close(client->os, arg.fd);
    __atomic_fetch_add(&client->map_changes, 1, __ATOMIC_RELEASE);
    if (!err)
        *out = map;
    return err;
}

void mb__nvrm_cpu_unmap(struct nvrm_client *client, struct nvrm_cpu_map *map)
{
    if (map->addr && !mb__nvrm_fork_guard_is_child(&client->guard)) {
        client->os->unmap(client->os, (void *)(uintptr_t)map->addr, map->bytes);
        forget_mapping(client, map);
        __atomic_fetch_add(&client->map_changes, 1, __ATOMIC_RELEASE);
    }
    *map = (struct nvrm_cpu_map){0};
}

/* ------------------------------------------------------------ control address space */

static void vas_destroy(struct nvrm_object *object)
{
    struct nvrm_vas *vas = CONTAINER(object, struct nvrm_vas);
    struct nvrm_client *client = vas->client;

    mb__nvrm_object_unlink(client, object);
    mb__nvrm_cpu_unmap(client, &vas->usermode_map);
    mb__nvrm_free(client, client->subdevice, vas->usermode);
    mb__nvrm_free(client, client->device, vas->virt);
    mb__nvrm_free(client, client->device, vas->space);
    free(vas);
}

static enum mb_err map_doorbell(struct nvrm_vas *vas)
{
    struct nvrm_client *client = vas->client;
    struct nvrm_abi_usermode params = {0};
    bool takes_params = client->arch->usermode_params;

    enum mb_err err = mb__nvrm_alloc(client, client->subdevice, client->arch->usermode_class,
                                     takes_params ? &params : NULL,
                                     takes_params ? sizeof params : 0, &vas->usermode);
    if (!err)
        err = mb__nvrm_cpu_map(client, client->subdevice, vas->usermode, true, 0, USERMODE_BYTES,
                               NVRM_CPU_READ_WRITE, &vas->usermode_map);
    if (!err)
        vas->doorbell = (volatile uint32_t *)((volatile uint8_t *)vas->usermode_map.addr +
                                              client->arch->doorbell_offset);
    return err;
}

enum mb_err mb__nvrm_vas_create(struct nvrm_client *client, struct nvrm_vas **out)
{
    struct nvrm_abi_vaspace space = {0};
    struct nvrm_vas *vas = new_object(sizeof *vas);

    if (!vas)
        return MB_ERR_HOST_MEMORY;
    vas->client = client;
    mb__nvrm_object_link(client, &vas->object, vas_destroy);
    enum mb_err err = mb__nvrm_alloc(client, client->device, NVRM_CLASS_VASPACE, &space,
                                     client->series->vaspace_bytes, &vas->space);
    struct nvrm_abi_memory_virtual virt = {.vaspace = vas->space};
    if (!err)
        err = mb__nvrm_alloc(client, client->device, NVRM_CLASS_MEMORY_VIRTUAL, &virt, sizeof virt,
                             &vas->virt);
    if (!err)
        err = map_doorbell(vas);
    if (err) {
        vas_destroy(&vas->object);
        return err;
    }
    *out = vas;
    return MB_OK;
}

void mb__nvrm_vas_destroy(struct nvrm_vas **vas)
{
    if (*vas)
        vas_destroy(&(*vas)->object);
    *vas = NULL;
}

/* The two layouts of the call differ in where the address and the status lie. */
enum mb_err mb__nvrm_gpu_map(struct nvrm_vas *vas, nvrm_handle memory, uint64_t offset,
                             uint64_t bytes, uint32_t flags, uint64_t *va)
{
    struct nvrm_client *client = vas->client;
    struct nvrm_abi_map_dma arg = {
        .client = client->root,
        .device = client->device,
        .dma = vas->virt,
        .memory = memory,
        .offset = offset,
        .length = bytes,
        .flags = flags,
    };
    struct nvrm_abi_map_dma_v570 old = {
        .client = arg.client,
        .device = arg.device,
        .dma = arg.dma,
        .memory = memory,
        .offset = offset,
        .length = bytes,
        .flags = flags,
    };
    bool is_old = client->series->map_dma_bytes == sizeof old;

    enum mb_err err =
        mb__nvrm_escape(client, NVRM_ESC_MAP_MEMORY_DMA, is_old ? (void *)&old : (void *)&arg,
                        is_old ? sizeof old : sizeof arg, "RM map for the GPU");
    if (!err)
        err = mb__nvrm_status_check(is_old ? old.status : arg.status,
                                    "RM map for the GPU of 0x%llx bytes of object 0x%x",
                                    (unsigned long long)bytes, memory);
    if (!err)
        *va = is_old ? old.va : arg.va;
    return err;
}

void mb__nvrm_gpu_unmap(struct nvrm_vas *vas, nvrm_handle memory, uint64_t va)
{
    struct nvrm_client *client = vas->client;
    struct nvrm_abi_unmap_dma arg = {
        .client = client->root,
        .device = client->device,
        .dma = vas->virt,
        .memory = memory,
        .va = va,
    };

    mb__nvrm_escape_quiet(client, NVRM_ESC_UNMAP_MEMORY_DMA, &arg, sizeof arg);
}

/* ------------------------------------------------------------ memory objects */

static void mem_destroy(struct nvrm_object *object)
{
    struct nvrm_mem *mem = CONTAINER(object, struct nvrm_mem);
    struct nvrm_client *client = mem->client;

    mb__nvrm_object_unlink(client, object);
    if (mem->vas)
        mb__nvrm_gpu_unmap(mem->vas, mem->handle, mem->va);
    mb__nvrm_cpu_unmap(client, &mem->cpu);
    mb__nvrm_free(client, client->device, mem->handle);
    free(mem);
}

static struct nvrm_abi_memory memory_params(const struct nvrm_client *client,
                                            enum nvrm_mem_kind kind, uint64_t bytes)
{
    struct nvrm_abi_memory params = {
        .owner = client->root,
        .flags = NVRM_MEM_FLAG_MAP_NOT_REQUIRED | NVRM_MEM_FLAG_HANDLE_PROVIDED |
                 NVRM_MEM_FLAG_FORCE_ALIGNMENT | NVRM_MEM_FLAG_IGNORE_BANK,
        .bytes = bytes,
        .limit = bytes - 1,
    };

    if (kind == NVRM_MEM_VIDMEM) {
        params.type = NVRM_MEM_TYPE_IMAGE;
        params.flags |= NVRM_MEM_FLAG_PERSISTENT;
        params.attr = NVRM_MEM_ATTR_CONTIGUOUS | NVRM_MEM_ATTR_PAGE_HUGE;
        params.attr2 = NVRM_MEM_ATTR2_GPU_CACHED | NVRM_MEM_ATTR2_HUGE_2M | NVRM_MEM_ATTR2_NO_ZBC;
        params.alignment = HUGE_BYTES;
    } else {
        params.type = NVRM_MEM_TYPE_NOTIFIER;
        params.attr = NVRM_MEM_ATTR_ANY_PAGES | NVRM_MEM_ATTR_PAGE_4K | NVRM_MEM_ATTR_PCI;
        if (kind == NVRM_MEM_SYSMEM_CACHED)
            params.attr |= NVRM_MEM_ATTR_CPU_CACHED;
        params.attr2 = NVRM_MEM_ATTR2_GPU_UNCACHED | NVRM_MEM_ATTR2_NO_ZBC;
        params.alignment = PAGE_BYTES;
    }
    return params;
}

enum mb_err mb__nvrm_mem_create(struct nvrm_client *client, enum nvrm_mem_kind kind, uint64_t bytes,
                                struct nvrm_mem **out)
{
    uint64_t unit = kind == NVRM_MEM_VIDMEM ? HUGE_BYTES : PAGE_BYTES;

    if (!bytes || bytes > UINT64_MAX - unit)
        return mb__fail(MB_ERR_INVALID, "a memory object of %llu bytes: give 1 or more",
                        (unsigned long long)bytes);
    bytes = (bytes + unit - 1) / unit * unit;
    struct nvrm_abi_memory params = memory_params(client, kind, bytes);
    struct nvrm_mem *mem = new_object(sizeof *mem);
    if (!mem)
        return MB_ERR_HOST_MEMORY;
    mem->client = client;
    mem->bytes = bytes;
    mem->on_gpu = kind == NVRM_MEM_VIDMEM;
    enum mb_err err = mb__nvrm_alloc(
        client, client->device, mem->on_gpu ? NVRM_CLASS_MEMORY_LOCAL : NVRM_CLASS_MEMORY_SYSTEM,
        &params, sizeof params, &mem->handle);
    if (err) {
        free(mem);
        return err;
    }
    mb__nvrm_object_link(client, &mem->object, mem_destroy);
    *out = mem;
    return MB_OK;
}

enum mb_err mb__nvrm_mem_dup(struct nvrm_client *client, nvrm_handle src_client,
                             nvrm_handle src_memory, uint64_t bytes, bool on_gpu,
                             struct nvrm_mem **out)
{
    struct nvrm_mem *mem = new_object(sizeof *mem);

    if (!mem)
        return MB_ERR_HOST_MEMORY;
    mem->client = client;
    mem->bytes = bytes;
    mem->on_gpu = on_gpu;
    enum mb_err err = mb__nvrm_dup(client, client->device, src_client, src_memory, &mem->handle);
    if (err) {
        free(mem);
        return err;
    }
    mb__nvrm_object_link(client, &mem->object, mem_destroy);
    *out = mem;
    return MB_OK;
}

enum mb_err mb__nvrm_mem_map_cpu(struct nvrm_mem *mem)
{
    if (mem->cpu.addr)
        return mb__fail(MB_ERR_MAPPED, "the memory object has a CPU mapping already");
    return mb__nvrm_cpu_map(mem->client, mem->client->device, mem->handle, mem->on_gpu, 0,
                            mem->bytes, NVRM_CPU_READ_WRITE, &mem->cpu);
}

enum mb_err mb__nvrm_mem_map_gpu(struct nvrm_mem *mem, struct nvrm_vas *vas)
{
    if (mem->vas)
        return mb__fail(MB_ERR_MAPPED, "the memory object has a GPU mapping already");
    enum mb_err err = mb__nvrm_gpu_map(vas, mem->handle, 0, mem->bytes, NVRM_DMA_SNOOP, &mem->va);
    if (err)
        return err;
    mem->vas = vas;
    /* Closing the client undoes newest first: the mapping must go before the address space. */
    mb__nvrm_object_unlink(mem->client, &mem->object);
    mb__nvrm_object_link(mem->client, &mem->object, mem_destroy);
    return MB_OK;
}

void mb__nvrm_mem_destroy(struct nvrm_mem **mem)
{
    if (*mem)
        mem_destroy(&(*mem)->object);
    *mem = NULL;
}

/* ------------------------------------------------------------ views of physical memory */

static void phys_destroy(struct nvrm_object *object)
{
    struct nvrm_phys *phys = CONTAINER(object, struct nvrm_phys);

    mb__nvrm_object_unlink(phys->client, object);
    mb__nvrm_free(phys->client, phys->client->device, phys->handle);
    free(phys);
}

enum mb_err mb__nvrm_phys_create(struct nvrm_client *client, struct nvrm_phys **out)
{
    struct nvrm_abi_memory_physical params = {.format = NVRM_KIND_GENERIC};
    struct nvrm_phys *phys = new_object(sizeof *phys);

    if (!phys)
        return MB_ERR_HOST_MEMORY;
    phys->client = client;
    enum mb_err err = mb__nvrm_alloc(client, client->device, NVRM_CLASS_MEMORY_PHYSICAL, &params,
                                     sizeof params, &phys->handle);
    if (err) {
        free(phys);
        return err;
    }
    phys->bytes = params.bytes;
    mb__nvrm_object_link(client, &phys->object, phys_destroy);
    *out = phys;
    return MB_OK;
}

void mb__nvrm_phys_destroy(struct nvrm_phys **phys)
{
    if (*phys)
        phys_destroy(&(*phys)->object);
    *phys = NULL;
}

static enum mb_err check_page(const struct nvrm_phys *phys, uint64_t pa)
{
    if (pa % NVRM_VIEW_BYTES == 0 && pa < phys->bytes && phys->bytes - pa >= NVRM_VIEW_BYTES)
        return MB_OK;
    return mb__fail(MB_ERR_INVALID,
                    "view of physical address 0x%llx: it must be a multiple of %d below 0x%llx",
                    (unsigned long long)pa, NVRM_VIEW_BYTES, (unsigned long long)phys->bytes);
}

enum mb_err mb__nvrm_phys_view_cpu(struct nvrm_phys *phys, uint64_t pa, enum nvrm_cpu_access access,
                                   struct nvrm_cpu_map *out)
{
    enum mb_err err = check_page(phys, pa);

    return err ? err
               : mb__nvrm_cpu_map(phys->client, phys->client->device, phys->handle, true, pa,
                                  NVRM_VIEW_BYTES, access, out);
}

enum mb_err mb__nvrm_phys_view_gpu(struct nvrm_phys *phys, struct nvrm_vas *vas, uint64_t pa,
                                   bool read_only, uint64_t *va)
{
    enum mb_err err = check_page(phys, pa);
    uint32_t flags = NVRM_DMA_PAGE_4K | (read_only ? NVRM_DMA_READ_ONLY : 0);

    return err ? err : mb__nvrm_gpu_map(vas, phys->handle, pa, NVRM_VIEW_BYTES, flags, va);
}
