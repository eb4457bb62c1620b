/* SPDX-License-Identifier: MIT */
/* nvrm_fake.c - see nvrm_fake.h. A FAKE: it tests our side only. */
#include "nvrm_fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "hw/nvrm/status.h"

enum { STATUS_INVALID_PARAM = 0x3a, STATUS_INVALID_OBJECT = 0x31, STATUS_INVALID_ARGUMENT = 0x1f };

static struct nvrm_fake *fake_of(const struct nvrm_os *os)
{
    return (struct nvrm_fake *)(uintptr_t)os;
}

static void violate(struct nvrm_fake *f, const char *what, uint64_t number)
{
    if (!f->violations++)
        snprintf(f->first_violation, sizeof f->first_violation, "%s 0x%llx", what,
                 (unsigned long long)number);
}

/* Counts a making call; true if it shall fail. */
static bool fails_now(struct nvrm_fake *f)
{
    f->making_calls++;
    return f->fail_at && f->making_calls == f->fail_at;
}

struct fake_object *nvrm_fake_object(struct nvrm_fake *f, nvrm_handle handle)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].handle == handle)
            return &f->objects[i];
    return NULL;
}

static struct fake_file *file(struct nvrm_fake *f, int fd)
{
    int i = fd - FAKE_FIRST_FD;

    return i >= 0 && i < FAKE_FILES && f->files[i].open ? &f->files[i] : NULL;
}

/* ------------------------------------------------------------ files and CPU mappings */

static int fake_open(const struct nvrm_os *os, const char *path, int flags)
{
    struct nvrm_fake *f = fake_of(os);

    (void)flags;
    f->calls++;
    if (fails_now(f))
        return f->fail_errno ? -f->fail_errno : -EIO;
    for (int i = 0; i < FAKE_FILES; i++) {
        if (f->files[i].open)
            continue;
        f->files[i] = (struct fake_file){.open = true};
        snprintf(f->files[i].path, sizeof f->files[i].path, "%s", path);
        return FAKE_FIRST_FD + i;
    }
    return -EMFILE;
}

static int fake_close(const struct nvrm_os *os, int fd)
{
    struct nvrm_fake *f = fake_of(os);
    struct fake_file *file_ = file(f, fd);

    f->calls++;
    if (!file_) {
        violate(f, "closed a file that is not open:", (uint64_t)fd);
        return -EBADF;
    }
    file_->open = false;
    return 0;
}

static int fake_map(const struct nvrm_os *os, size_t bytes, int prot, int fd, void **out)
{
    struct nvrm_fake *f = fake_of(os);
    struct fake_file *file_ = file(f, fd);
    struct fake_object *memory = file_ ? nvrm_fake_object(f, file_->armed) : NULL;

    f->calls++;
    if (fails_now(f))
        return f->fail_errno ? -f->fail_errno : -ENOMEM;
    if (!memory || file_->armed_bytes != bytes) {
        violate(f, "mmap of a file that is not armed:", (uint64_t)fd);
        return -EINVAL;
    }
    if ((prot & PROT_WRITE) && file_->armed_read_only)
        violate(f, "writable mmap of a read-only mapping of", file_->armed);
    for (unsigned i = 0; i < FAKE_MAPS; i++) {
        struct fake_map *m = &f->maps[i];
        if (!m->live || m->on_gpu || m->linear != file_->armed_linear)
            continue;
        m->addr = memory->bytes + file_->armed_offset;
        *out = m->addr;
        return 0;
    }
    violate(f, "mmap without a mapping in the driver of", file_->armed);
    return -EINVAL;
}

static struct fake_map *cpu_map(struct nvrm_fake *f, void *addr, size_t bytes)
{
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        if (f->maps[i].live && !f->maps[i].on_gpu && f->maps[i].addr == addr &&
            f->maps[i].bytes == bytes)
            return &f->maps[i];
    violate(f, "no CPU mapping of bytes:", bytes);
    return NULL;
}

static int fake_unmap(const struct nvrm_os *os, void *addr, size_t bytes)
{
    struct nvrm_fake *f = fake_of(os);
    struct fake_map *m = cpu_map(f, addr, bytes);

    f->calls++;
    if (m)
        m->addr = NULL;
    return 0;
}

static int fake_dont_fork(const struct nvrm_os *os, void *addr, size_t bytes)
{
    struct nvrm_fake *f = fake_of(os);
    struct fake_map *m = cpu_map(f, addr, bytes);

    f->calls++;
    if (fails_now(f))
        return -EINVAL;
    if (m)
        m->dont_fork = true;
    return 0;
}

static void fake_pause(const struct nvrm_os *os, unsigned turn)
{
    (void)turn;
    nvrm_fake_gpu_run(fake_of(os));
}

/* ------------------------------------------------------------ objects */

static uint32_t expected_bytes(const struct nvrm_fake *f, uint32_t class_id)
{
    switch (class_id) {
    case NVRM_CLASS_ROOT:
        return 0;
    case NVRM_CLASS_DEVICE:
        return sizeof(struct nvrm_abi_device);
    case NVRM_CLASS_SUBDEVICE:
        return sizeof(struct nvrm_abi_subdevice);
    case NVRM_CLASS_VASPACE:
        return f->series->vaspace_bytes;
    case NVRM_CLASS_MEMORY_VIRTUAL:
        return sizeof(struct nvrm_abi_memory_virtual);
    case NVRM_CLASS_MEMORY_SYSTEM:
    case NVRM_CLASS_MEMORY_LOCAL:
        return sizeof(struct nvrm_abi_memory);
    case NVRM_CLASS_MEMORY_PHYSICAL:
        return sizeof(struct nvrm_abi_memory_physical);
    case NVRM_CLASS_CHANNEL_GROUP:
        return sizeof(struct nvrm_abi_channel_group);
    case NVRM_CLASS_CONF_COMPUTE:
        return sizeof(struct nvrm_abi_conf_compute);
    case 0xc56f:
    case 0xc86f:
        return sizeof(struct nvrm_abi_channel);
    case 0xc6b5:
    case 0xc8b5:
        return sizeof(struct nvrm_abi_copy);
    case 0xc561:
        return 0;
    case 0xc661:
        return sizeof(struct nvrm_abi_usermode);
    default:
        return UINT32_MAX;
    }
}

static bool engine_is_bad(const struct nvrm_fake *f, uint32_t type)
{
    return type < NVRM_ENGINE_COPY0 || type > NVRM_ENGINE_COPY0 + 9 ||
           (f->bad_engines >> (type - NVRM_ENGINE_COPY0) & 1);
}

static uint32_t fill(struct nvrm_fake *f, struct fake_object *o, void *params)
{
    if (o->class_id == 0xc561 || o->class_id == 0xc661) {
        o->size = 0x10000;
        o->bytes = calloc(1, o->size);
        o->owns_bytes = true;
    }
    if (!params)
        return 0;
    if (o->class_id == NVRM_CLASS_MEMORY_SYSTEM || o->class_id == NVRM_CLASS_MEMORY_LOCAL) {
        o->size = ((struct nvrm_abi_memory *)params)->bytes;
        o->bytes = aligned_alloc(4096, o->size);
        memset(o->bytes, 0x5a, o->size);
        o->owns_bytes = true;
    } else if (o->class_id == NVRM_CLASS_MEMORY_PHYSICAL) {
        if (f->not_root)
            return NVRM_STATUS_NO_PERMISSION;
        o->size = ((struct nvrm_abi_memory_physical *)params)->bytes = FAKE_PHYS_BYTES;
        o->bytes = f->phys;
    } else if (o->class_id == NVRM_CLASS_CHANNEL_GROUP) {
        o->engine = ((struct nvrm_abi_channel_group *)params)->engine_type;
        return engine_is_bad(f, o->engine) ? STATUS_INVALID_ARGUMENT : 0;
    } else if (o->class_id == 0xc56f || o->class_id == 0xc86f) {
        struct nvrm_abi_channel *p = params;
        o->ring_va = p->gpfifo_va;
        o->entries = p->gpfifo_entries;
        o->userd_memory = p->userd_memory[0];
        o->userd_offset = p->userd_offset[0];
        o->notifier = p->error_notifier;
        o->engine = p->engine_type;
        if (o->userd_offset % 512)
            violate(f, "a control block at offset", o->userd_offset);
    } else if (o->class_id == NVRM_CLASS_CONF_COMPUTE) {
        return f->has_cc ? 0 : NVRM_STATUS_INVALID_CLASS;
    }
    return 0;
}

static uint32_t make_object(struct nvrm_fake *f, nvrm_handle handle, nvrm_handle parent,
                            uint32_t class_id, struct fake_object **out)
{
    if (class_id != NVRM_CLASS_ROOT && !nvrm_fake_object(f, parent))
        return STATUS_INVALID_OBJECT;
    if (handle && nvrm_fake_object(f, handle))
        return STATUS_INVALID_ARGUMENT;
    for (unsigned i = 0; i < FAKE_OBJECTS; i++) {
        if (f->objects[i].live)
            continue;
        f->objects[i] = (struct fake_object){
            .live = true, .handle = handle, .parent = parent, .class_id = class_id};
        *out = &f->objects[i];
        return 0;
    }
    return NVRM_STATUS_NO_RESOURCES;
}

static uint32_t alloc(struct nvrm_fake *f, struct nvrm_abi_alloc *a)
{
    struct fake_object *o = NULL;

    if (a->params_bytes != expected_bytes(f, a->class_id) || !a->params != !a->params_bytes) {
        violate(f, "wrong structure size for class", a->class_id);
        return STATUS_INVALID_PARAM;
    }
    if (a->class_id == NVRM_CLASS_ROOT)
        a->object = 0xc1d00042;
    uint32_t status = make_object(f, a->object, a->parent, a->class_id, &o);
    if (!status) {
        status = fill(f, o, (void *)(uintptr_t)a->params);
        o->live = !status;
    }
    return status;
}

static uint32_t free_object(struct nvrm_fake *f, const struct nvrm_abi_free *a)
{
    struct fake_object *o = nvrm_fake_object(f, a->object);

    if (!o) {
        violate(f, "freed an object that does not exist:", a->object);
        return STATUS_INVALID_OBJECT;
    }
    if (o->class_id != NVRM_CLASS_ROOT && o->parent != a->parent)
        violate(f, "freed with a wrong parent:", a->object);
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].parent == a->object && &f->objects[i] != o)
            violate(f, "freed above a live object:", f->objects[i].handle);
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        if (f->maps[i].live && f->maps[i].memory == a->object)
            violate(f, "freed under a live mapping:", a->object);
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].entries &&
            (f->objects[i].userd_memory == a->object || f->objects[i].notifier == a->object))
            violate(f, "freed memory of a live channel:", a->object);
    if (o->owns_bytes)
        free(o->bytes);
    o->live = false;
    return 0;
}

static uint32_t dup_object(struct nvrm_fake *f, const struct nvrm_abi_dup *a)
{
    struct fake_object *o = NULL;

    if (a->src_client != FAKE_FOREIGN_CLIENT || a->src_object != FAKE_FOREIGN_MEMORY)
        return STATUS_INVALID_OBJECT;
    uint32_t status = make_object(f, a->object, a->parent, NVRM_CLASS_MEMORY_LOCAL, &o);
    if (status)
        return status;
    o->bytes = f->phys;
    o->size = FAKE_PHYS_BYTES;
    return 0;
}

/* ------------------------------------------------------------ mappings */

static struct fake_map *new_map(struct nvrm_fake *f)
{
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        if (!f->maps[i].live)
            return &f->maps[i];
    abort();
}

static uint32_t map_memory(struct nvrm_fake *f, struct nvrm_abi_map *a)
{
    struct fake_object *o = nvrm_fake_object(f, a->memory);
    struct fake_file *armed = file(f, a->fd);

    if (!o || !o->bytes || !nvrm_fake_object(f, a->device) || a->offset + a->length > o->size)
        return STATUS_INVALID_ARGUMENT;
    if (!armed ||
        (strcmp(armed->path, "/dev/nvidiactl") == 0) != (o->class_id == NVRM_CLASS_MEMORY_SYSTEM)) {
        violate(f, "mapping through the wrong device file of", a->memory);
        return STATUS_INVALID_ARGUMENT;
    }
    a->linear = f->next_linear += 0x10000;
    *new_map(f) = (struct fake_map){.live = true,
                                    .memory = a->memory,
                                    .offset = a->offset,
                                    .bytes = a->length,
                                    .linear = a->linear,
                                    .read_only = a->flags & NVRM_MAP_READ_ONLY};
    armed->armed = a->memory;
    armed->armed_offset = a->offset;
    armed->armed_bytes = a->length;
    armed->armed_linear = a->linear;
    armed->armed_read_only = a->flags & NVRM_MAP_READ_ONLY;
    return 0;
}

static uint32_t unmap_memory(struct nvrm_fake *f, const struct nvrm_abi_unmap *a)
{
    for (unsigned i = 0; i < FAKE_MAPS; i++) {
        struct fake_map *m = &f->maps[i];
        if (!m->live || m->on_gpu || m->linear != a->linear || m->memory != a->memory)
            continue;
        if (m->addr)
            violate(f, "the driver forgot a mapping before munmap:", a->memory);
        m->live = false;
        return 0;
    }
    violate(f, "no CPU mapping to forget:", a->linear);
    return STATUS_INVALID_ARGUMENT;
}

static uint32_t map_dma(struct nvrm_fake *f, nvrm_handle dma, nvrm_handle memory, uint64_t offset,
                        uint64_t length, uint32_t flags, uint64_t *va)
{
    struct fake_object *o = nvrm_fake_object(f, memory), *space = nvrm_fake_object(f, dma);

    if (!o || !o->bytes || !space || space->class_id != NVRM_CLASS_MEMORY_VIRTUAL ||
        offset + length > o->size)
        return STATUS_INVALID_ARGUMENT;
    *va = f->next_va;
    f->next_va += (length + 0x1fffff) & ~(uint64_t)0x1fffff;
    *new_map(f) = (struct fake_map){.live = true,
                                    .memory = memory,
                                    .offset = offset,
                                    .bytes = length,
                                    .on_gpu = true,
                                    .va = *va,
                                    .read_only = flags & NVRM_DMA_READ_ONLY};
    return 0;
}

static uint32_t unmap_dma(struct nvrm_fake *f, const struct nvrm_abi_unmap_dma *a)
{
    for (unsigned i = 0; i < FAKE_MAPS; i++) {
        struct fake_map *m = &f->maps[i];
        if (!m->live || !m->on_gpu || m->va != a->va || m->memory != a->memory)
            continue;
        if (!nvrm_fake_object(f, a->dma))
            violate(f, "GPU unmap in a freed address space:", a->va);
        m->live = false;
        return 0;
    }
    violate(f, "no GPU mapping at", a->va);
    return STATUS_INVALID_ARGUMENT;
}

void *nvrm_fake_at(struct nvrm_fake *f, uint64_t va, uint64_t bytes)
{
    for (unsigned i = 0; i < FAKE_MAPS; i++) {
        const struct fake_map *m = &f->maps[i];
        struct fake_object *o = m->live && m->on_gpu ? nvrm_fake_object(f, m->memory) : NULL;
        if (o && va >= m->va && va - m->va + bytes <= m->bytes)
            return o->bytes + m->offset + (va - m->va);
    }
    return NULL;
}

/* ------------------------------------------------------------ controls */

static uint32_t gpu_info(const struct nvrm_fake *f, struct nvrm_abi_gpu_info *p)
{
    if (p->count != 1)
        return STATUS_INVALID_ARGUMENT;
    switch (p->list[0].index) {
    case NVRM_INFO_SMC_MODE:
        p->list[0].data = f->smc_mode;
        return 0;
    case NVRM_INFO_ATS:
        p->list[0].data = f->ats;
        return 0;
    case NVRM_INFO_SELF_HOSTED:
        p->list[0].data = f->self_hosted;
        return 0;
    case NVRM_INFO_COHERENT_MODE:
        p->list[0].data = f->coherent_mode;
        return f->series->coherent_mode_known ? 0 : STATUS_INVALID_ARGUMENT;
    default:
        return STATUS_INVALID_ARGUMENT;
    }
}

static uint32_t gpu_pids(const struct nvrm_fake *f, struct nvrm_abi_gpu_pids *p)
{
    if (p->id_type != 0)
        return STATUS_INVALID_ARGUMENT;
    p->count = p->id == NVRM_CLASS_MPS ? f->mps_count : f->pid_count;
    for (uint32_t i = 0; i < f->pid_count; i++)
        p->pids[i] = f->pids[i];
    return 0;
}

static uint32_t surface(struct nvrm_fake *f, nvrm_handle memory, struct nvrm_abi_surface_phys *p)
{
    struct fake_object *o = nvrm_fake_object(f, memory);

    if (f->not_root)
        return NVRM_STATUS_NO_PERMISSION;
    if (memory != FAKE_FOREIGN_MEMORY && !o)
        return STATUS_INVALID_OBJECT;
    p->aperture = o && o->class_id == NVRM_CLASS_MEMORY_SYSTEM;
    p->offset += memory == FAKE_FOREIGN_MEMORY ? 0x21200000 : 0x40000000;
    p->format = NVRM_KIND_GENERIC;
    p->contiguous = 0x200000;
    return 0;
}

static uint32_t channel_mem(const struct nvrm_fake *f, struct nvrm_abi_channel_mem *p)
{
    if (f->not_root)
        return NVRM_STATUS_NO_PERMISSION;
    if (p->channel != FAKE_FOREIGN_CHANNEL)
        return 0x21; /* invalid channel */
    p->instance = (struct nvrm_abi_fifo_mem){.aperture = 1, .base = 0x19000, .bytes = 0x1000};
    return 0;
}

static uint32_t schedule(struct nvrm_fake *f, nvrm_handle group, const struct nvrm_abi_schedule *p)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].parent == group && p->enable)
            f->objects[i].scheduled = true;
    return nvrm_fake_object(f, group) ? 0 : STATUS_INVALID_OBJECT;
}

static int engine_of(uint32_t type)
{
    if (type >= NVRM_ENGINE_COPY10)
        return (int)(type - NVRM_ENGINE_COPY10) + 10;
    return (int)(type - NVRM_ENGINE_COPY0);
}

static uint32_t copy_caps(struct nvrm_fake *f, struct nvrm_abi_ce_caps *p)
{
    int n = engine_of(p->engine_type);

    if (n < 0 || n >= FAKE_ENGINES || !f->engine_mask[n])
        return STATUS_INVALID_ARGUMENT;
    p->caps[0] = (uint8_t)f->engine_caps[n];
    p->caps[1] = (uint8_t)(f->engine_caps[n] >> 8);
    return 0;
}

static uint32_t copy_mask(struct nvrm_fake *f, struct nvrm_abi_ce_mask *p)
{
    int n = engine_of(p->engine_type);

    if (n < 0 || n >= FAKE_ENGINES)
        return STATUS_INVALID_ARGUMENT;
    p->mask = f->engine_mask[n];
    return 0;
}

static uint32_t control_bytes(const struct nvrm_fake *f, uint32_t cmd)
{
    switch (cmd) {
    case NVRM_CMD_GPU_ID_INFO:
        return sizeof(struct nvrm_abi_gpu_id_info);
    case NVRM_CMD_GPU_UUID:
        return sizeof(struct nvrm_abi_gpu_uuid);
    case NVRM_CMD_SURFACE_PHYS:
        return sizeof(struct nvrm_abi_surface_phys);
    case NVRM_CMD_VIRT_MODE:
        return sizeof(struct nvrm_abi_virt_mode);
    case NVRM_CMD_GPU_INFO:
        return f->series->gpu_info_bytes;
    case NVRM_CMD_GPU_PIDS:
        return sizeof(struct nvrm_abi_gpu_pids);
    case NVRM_CMD_CHANNEL_MEM:
        return sizeof(struct nvrm_abi_channel_mem);
    case NVRM_CMD_ARCH_INFO:
        return sizeof(struct nvrm_abi_arch_info);
    case NVRM_CMD_C2C_INFO:
        return sizeof(struct nvrm_abi_c2c_info);
    case NVRM_CMD_GROUP_SCHEDULE:
        return f->series->schedule_bytes;
    case NVRM_CMD_GROUP_TIMESLICE:
        return sizeof(struct nvrm_abi_timeslice);
    case NVRM_CMD_CE_CAPS:
        return sizeof(struct nvrm_abi_ce_caps);
    case NVRM_CMD_CE_MASK:
        return sizeof(struct nvrm_abi_ce_mask);
    case NVRM_CMD_WORK_SUBMIT_TOKEN:
        return sizeof(struct nvrm_abi_token);
    case NVRM_CMD_CC_CAPABILITIES:
        return sizeof(struct nvrm_abi_cc_caps);
    default:
        return UINT32_MAX;
    }
}

static uint32_t control(struct nvrm_fake *f, const struct nvrm_abi_control *a)
{
    void *p = (void *)(uintptr_t)a->params;

    if (a->params_bytes != control_bytes(f, a->cmd)) {
        violate(f, "wrong structure size for command", a->cmd);
        return STATUS_INVALID_PARAM;
    }
    switch (a->cmd) {
    case NVRM_CMD_GPU_ID_INFO:
        ((struct nvrm_abi_gpu_id_info *)p)->device_instance = 3;
        return ((struct nvrm_abi_gpu_id_info *)p)->gpu_id == 0x1b00 ? 0 : STATUS_INVALID_ARGUMENT;
    case NVRM_CMD_GPU_UUID:
        if (((struct nvrm_abi_gpu_uuid *)p)->gpu_id != 0x1b00)
            return NVRM_STATUS_OBJECT_NOT_FOUND;
        memset(((struct nvrm_abi_gpu_uuid *)p)->uuid, 0xab, 16);
        ((struct nvrm_abi_gpu_uuid *)p)->length = 16;
        return 0;
    case NVRM_CMD_ARCH_INFO:
        ((struct nvrm_abi_arch_info *)p)->architecture = f->architecture;
        ((struct nvrm_abi_arch_info *)p)->implementation = f->implementation;
        return 0;
    case NVRM_CMD_VIRT_MODE:
        ((struct nvrm_abi_virt_mode *)p)->mode = f->virt_mode;
        return 0;
    case NVRM_CMD_GPU_INFO:
        return gpu_info(f, p);
    case NVRM_CMD_GPU_PIDS:
        return gpu_pids(f, p);
    case NVRM_CMD_SURFACE_PHYS:
        return surface(f, a->object, p);
    case NVRM_CMD_CHANNEL_MEM:
        return channel_mem(f, p);
    case NVRM_CMD_C2C_INFO:
        *(struct nvrm_abi_c2c_info *)p = f->c2c;
        return f->has_c2c ? 0 : NVRM_STATUS_NOT_SUPPORTED;
    case NVRM_CMD_GROUP_SCHEDULE:
        return schedule(f, a->object, p);
    case NVRM_CMD_GROUP_TIMESLICE:
        f->timeslice_us = ((struct nvrm_abi_timeslice *)p)->us;
        return nvrm_fake_object(f, a->object) ? 0 : STATUS_INVALID_OBJECT;
    case NVRM_CMD_CE_CAPS:
        return copy_caps(f, p);
    case NVRM_CMD_CE_MASK:
        return copy_mask(f, p);
    case NVRM_CMD_WORK_SUBMIT_TOKEN:
        ((struct nvrm_abi_token *)p)->token = a->object ^ 0x1234;
        return nvrm_fake_object(f, a->object) ? 0 : STATUS_INVALID_OBJECT;
    case NVRM_CMD_CC_CAPABILITIES:
        *(struct nvrm_abi_cc_caps *)p = f->cc;
        return 0;
    default:
        return NVRM_STATUS_NOT_SUPPORTED;
    }
}

/* ------------------------------------------------------------ ioctl */

static void card_list(struct nvrm_abi_card *cards)
{
    cards[0] = (struct nvrm_abi_card){.valid = 1, .gpu_id = 0x900, .pci_bus = 9, .minor = 0};
    cards[2] = (struct nvrm_abi_card){
        .valid = 1, .gpu_id = 0x1b00, .pci_domain = 1, .pci_bus = 0x1b, .pci_slot = 2, .minor = 5};
}

/* Where the status of an escape's structure lies. */
static uint32_t *status_of(const struct nvrm_fake *f, unsigned nr, void *arg)
{
    switch (nr) {
    case NVRM_ESC_ALLOC:
        return &((struct nvrm_abi_alloc *)arg)->status;
    case NVRM_ESC_CONTROL:
        return &((struct nvrm_abi_control *)arg)->status;
    case NVRM_ESC_DUP_OBJECT:
        return &((struct nvrm_abi_dup *)arg)->status;
    case NVRM_ESC_FREE:
        return &((struct nvrm_abi_free *)arg)->status;
    case NVRM_ESC_MAP_MEMORY:
        return &((struct nvrm_abi_map *)arg)->status;
    case NVRM_ESC_UNMAP_MEMORY:
        return &((struct nvrm_abi_unmap *)arg)->status;
    case NVRM_ESC_MAP_MEMORY_DMA:
        return f->series->map_dma_bytes == 64 ? &((struct nvrm_abi_map_dma *)arg)->status
                                              : &((struct nvrm_abi_map_dma_v570 *)arg)->status;
    case NVRM_ESC_UNMAP_MEMORY_DMA:
        return &((struct nvrm_abi_unmap_dma *)arg)->status;
    default:
        return NULL;
    }
}

static size_t escape_bytes(const struct nvrm_fake *f, unsigned nr)
{
    switch (nr) {
    case NVRM_ESC_ALLOC:
        return 48;
    case NVRM_ESC_CONTROL:
        return 32;
    case NVRM_ESC_DUP_OBJECT:
        return 28;
    case NVRM_ESC_FREE:
        return 16;
    case NVRM_ESC_MAP_MEMORY:
        return 56;
    case NVRM_ESC_UNMAP_MEMORY:
        return 32;
    case NVRM_ESC_MAP_MEMORY_DMA:
        return f->series->map_dma_bytes;
    case NVRM_ESC_UNMAP_MEMORY_DMA:
        return 48;
    case NVRM_ESC_CARD_INFO:
        return 72 * NVRM_MAX_CARDS;
    case NVRM_ESC_REGISTER_FD:
        return 4;
    case NVRM_ESC_CHECK_VERSION:
        return 72;
    default:
        return 0;
    }
}

static uint32_t escape(struct nvrm_fake *f, unsigned nr, void *arg)
{
    switch (nr) {
    case NVRM_ESC_ALLOC:
        return alloc(f, arg);
    case NVRM_ESC_CONTROL:
        return control(f, arg);
    case NVRM_ESC_DUP_OBJECT:
        return dup_object(f, arg);
    case NVRM_ESC_FREE:
        return free_object(f, arg);
    case NVRM_ESC_MAP_MEMORY:
        return map_memory(f, arg);
    case NVRM_ESC_UNMAP_MEMORY:
        return unmap_memory(f, arg);
    case NVRM_ESC_MAP_MEMORY_DMA:
        if (f->series->map_dma_bytes == 64) {
            struct nvrm_abi_map_dma *a = arg;
            return map_dma(f, a->dma, a->memory, a->offset, a->length, a->flags, &a->va);
        } else {
            struct nvrm_abi_map_dma_v570 *a = arg;
            return map_dma(f, a->dma, a->memory, a->offset, a->length, a->flags, &a->va);
        }
    case NVRM_ESC_UNMAP_MEMORY_DMA:
        return unmap_dma(f, arg);
    case NVRM_ESC_CARD_INFO:
        card_list(arg);
        return 0;
    case NVRM_ESC_CHECK_VERSION:
        ((struct nvrm_abi_version *)arg)->reply = 1;
        snprintf(((struct nvrm_abi_version *)arg)->text, 64, "%s", f->version);
        return 0;
    default:
        return 0;
    }
}

static int fake_ioctl(const struct nvrm_os *os, int fd, unsigned long request, void *arg)
{
    struct nvrm_fake *f = fake_of(os);
    unsigned nr = _IOC_NR(request);
    bool undo =
        nr == NVRM_ESC_FREE || nr == NVRM_ESC_UNMAP_MEMORY || nr == NVRM_ESC_UNMAP_MEMORY_DMA;
    uint32_t *status = status_of(f, nr, arg);

    f->calls++;
    if (_IOC_TYPE(request) != 'F' || _IOC_SIZE(request) != escape_bytes(f, nr)) {
        violate(f, "ioctl of a wrong type or size:", request);
        return -EINVAL;
    }
    if (!file(f, fd) && fd != FAKE_FOREIGN_CTL_FD) {
        violate(f, "ioctl on a file that is not open:", (uint64_t)fd);
        return -EBADF;
    }
    if (!undo && fails_now(f)) {
        if (!status || !f->fail_status)
            return f->fail_errno ? -f->fail_errno : -EIO;
        *status = f->fail_status;
        return 0;
    }
    uint32_t result = escape(f, nr, arg);
    if (status)
        *status = result;
    return 0;
}

/* ------------------------------------------------------------ life */

void nvrm_fake_init(struct nvrm_fake *f)
{
    *f = (struct nvrm_fake){
        .os = {fake_open, fake_close, fake_ioctl, fake_map, fake_unmap, fake_dont_fork, fake_pause},
        .version = "580.159.04",
        .architecture = 0x180,
        .smc_mode = 2,
        .has_cc = true,
        .next_va = 0x100000000,
        .phys = calloc(1, FAKE_PHYS_BYTES),
    };
    mb__nvrm_series_find(580, &f->series);
}

void nvrm_fake_fini(struct nvrm_fake *f)
{
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live && f->objects[i].owns_bytes)
            free(f->objects[i].bytes);
    free(f->phys);
}

const char *nvrm_fake_left(struct nvrm_fake *f)
{
    static char text[200];

    if (f->violations)
        return f->first_violation;
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        if (f->maps[i].live) {
            snprintf(text, sizeof text, "a mapping of 0x%x is left", f->maps[i].memory);
            return text;
        }
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (f->objects[i].live) {
            snprintf(text, sizeof text, "object 0x%x of class 0x%x is left", f->objects[i].handle,
                     f->objects[i].class_id);
            return text;
        }
    for (unsigned i = 0; i < FAKE_FILES; i++)
        if (f->files[i].open) {
            snprintf(text, sizeof text, "%s is left open", f->files[i].path);
            return text;
        }
    return "";
}

const char *nvrm_fake_version_text(const struct nvrm_fake *f)
{
    static char text[160];

    snprintf(text, sizeof text,
             "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (a@b)\n",
             f->version);
    return text;
}
