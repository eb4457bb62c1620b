/* observe.c - see observe.h. */
#include "hw/nvrm/observe.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum nvrm_fd_kind mb__nvrm_path_kind(const char *path)
{
    static const char prefix[] = "/dev/nvidia";

    if (strncmp(path, prefix, sizeof prefix - 1) != 0)
        return NVRM_FD_OTHER;
    const char *rest = path + sizeof prefix - 1;
    if (strcmp(rest, "ctl") == 0)
        return NVRM_FD_CTL;
    if (strcmp(rest, "-uvm") == 0)
        return NVRM_FD_UVM;
    return *rest && strspn(rest, "0123456789") == strlen(rest) ? NVRM_FD_GPU : NVRM_FD_OTHER;
}

enum nvrm_fd_kind mb__nvrm_fd_kind(int fd)
{
    char link[40], path[64];
    int saved = errno;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n <= 0)
        return NVRM_FD_OTHER;
    path[n] = '\0';
    return mb__nvrm_path_kind(path);
}

/* ------------------------------------------------------------ UVM */

static void see_vaspace_register(const void *arg, struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_register_vaspace a;

    memcpy(&a, arg, sizeof a);
    out->kind = NVRM_SAW_VASPACE_REGISTER;
    memcpy(out->uuid, a.uuid, sizeof out->uuid);
    out->rm_ctl_fd = a.rm_ctl_fd;
    out->client = a.client;
    out->object = a.vaspace;
    out->status = a.status;
}

static void see_vaspace_unregister(const void *arg, struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_unregister_vaspace a;

    memcpy(&a, arg, sizeof a);
    out->kind = NVRM_SAW_VASPACE_UNREGISTER;
    memcpy(out->uuid, a.uuid, sizeof out->uuid);
    out->status = a.status;
}

static void see_channel_register(const void *arg, struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_register_channel a;

    memcpy(&a, arg, sizeof a);
    out->kind = NVRM_SAW_CHANNEL_REGISTER;
    memcpy(out->uuid, a.uuid, sizeof out->uuid);
    out->rm_ctl_fd = a.rm_ctl_fd;
    out->client = a.client;
    out->object = a.channel;
    out->base = a.base;
    out->length = a.length;
    out->status = a.status;
}

static void see_channel_unregister(const struct nvrm_series *series, const void *arg,
                                   struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_unregister_channel a;
    struct nvrm_abi_uvm_unregister_channel_v590 b;

    out->kind = NVRM_SAW_CHANNEL_UNREGISTER;
    if (series->uvm_unregister_channel_bytes == sizeof a) {
        memcpy(&a, arg, sizeof a);
        memcpy(out->uuid, a.uuid, sizeof out->uuid);
        out->client = a.client;
        out->object = a.channel;
        out->status = a.status;
    } else {
        memcpy(&b, arg, sizeof b);
        out->client = b.client;
        out->object = b.channel;
        out->status = b.status;
    }
}

/* The structure is 9 KB, nearly all of it attributes of GPUs that are not named: read in pieces. */
static void see_external_map(const void *arg, struct nvrm_observed *out)
{
    const struct nvrm_abi_uvm_map *a = arg;
    uint64_t count;

    memcpy(&count, &a->attr_count, sizeof count);
    if (!count || count > NVRM_UVM_MAX_GPUS)
        return;
    out->kind = NVRM_SAW_EXTERNAL_MAP;
    out->attr_count = (uint32_t)count;
    memcpy(&out->base, &a->base, sizeof a->base);
    memcpy(&out->length, &a->length, sizeof a->length);
    memcpy(&out->offset, &a->offset, sizeof a->offset);
    memcpy(&out->attr, &a->attr[0], sizeof out->attr);
    memcpy(out->uuid, a->attr[0].uuid, sizeof out->uuid);
    memcpy(&out->rm_ctl_fd, &a->rm_ctl_fd, sizeof a->rm_ctl_fd);
    memcpy(&out->client, &a->client, sizeof a->client);
    memcpy(&out->object, &a->memory, sizeof a->memory);
    memcpy(&out->status, &a->status, sizeof a->status);
}

static void see_external_unmap(const void *arg, struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_unmap a;

    memcpy(&a, arg, sizeof a);
    out->kind = NVRM_SAW_EXTERNAL_UNMAP;
    out->base = a.base;
    out->length = a.length;
    memcpy(out->uuid, a.uuid, sizeof out->uuid);
    out->status = a.status;
}

static void see_range_free(const struct nvrm_series *series, const void *arg,
                           struct nvrm_observed *out)
{
    struct nvrm_abi_uvm_range a;
    struct nvrm_abi_uvm_free_v590 b;

    out->kind = NVRM_SAW_RANGE_FREE;
    if (series->uvm_free_bytes == sizeof a) {
        memcpy(&a, arg, sizeof a);
        out->base = a.base;
        out->length = a.length;
        out->status = a.status;
    } else {
        memcpy(&b, arg, sizeof b);
        out->base = b.base;
        out->status = b.status;
    }
}

static void see_uvm(const struct nvrm_series *series, unsigned long request, const void *arg,
                    struct nvrm_observed *out)
{
    switch (request) {
    case NVRM_UVM_REGISTER_VASPACE:
        see_vaspace_register(arg, out);
        break;
    case NVRM_UVM_UNREGISTER_VASPACE:
        see_vaspace_unregister(arg, out);
        break;
    case NVRM_UVM_REGISTER_CHANNEL:
        see_channel_register(arg, out);
        break;
    case NVRM_UVM_UNREGISTER_CHANNEL:
        see_channel_unregister(series, arg, out);
        break;
    case NVRM_UVM_MAP_EXTERNAL:
        see_external_map(arg, out);
        break;
    case NVRM_UVM_UNMAP_EXTERNAL:
        see_external_unmap(arg, out);
        break;
    case NVRM_UVM_FREE:
        see_range_free(series, arg, out);
        break;
    case NVRM_UVM_REGISTER_MPS_CLIENT:
        if (series->uvm_mps_known)
            out->kind = NVRM_SAW_MPS;
        break;
    default:
        break;
    }
}

/* ------------------------------------------------------------ RM */

/* Instance or flags out of the class's structure. A size of 0 means the class's own, which is what
 * libcuda gives; a smaller one than needed is not read. */
static uint32_t class_param(uint32_t class_id, uint64_t params, uint32_t bytes)
{
    size_t offset = class_id == NVRM_CLASS_VASPACE ? offsetof(struct nvrm_abi_vaspace, flags) : 0;
    uint32_t value;

    if (!params || (bytes && bytes < offset + sizeof value))
        return 0;
    memcpy(&value, (const char *)(uintptr_t)params + offset, sizeof value);
    return value;
}

static void see_alloc(const void *arg, size_t bytes, enum nvrm_moment moment,
                      struct nvrm_observed *out)
{
    struct nvrm_abi_alloc_short a;
    struct nvrm_abi_alloc b;

    if (bytes == sizeof b) {
        memcpy(&b, arg, sizeof b);
        a = (struct nvrm_abi_alloc_short){b.client, b.parent,       b.object, b.class_id,
                                          b.params, b.params_bytes, b.status};
    } else if (bytes == sizeof a) {
        memcpy(&a, arg, sizeof a);
    } else {
        return;
    }
    if (a.class_id != NVRM_CLASS_DEVICE && a.class_id != NVRM_CLASS_SUBDEVICE &&
        a.class_id != NVRM_CLASS_VASPACE)
        return;
    out->kind = NVRM_SAW_ALLOC;
    out->client = a.client;
    out->parent = a.parent;
    out->object = a.object;
    out->class_id = a.class_id;
    out->status = a.status;
    if (moment == NVRM_AFTER && !a.status)
        out->param = class_param(a.class_id, a.params, a.params_bytes);
}

static void see_free(const void *arg, size_t bytes, struct nvrm_observed *out)
{
    struct nvrm_abi_free a;

    if (bytes != sizeof a)
        return;
    memcpy(&a, arg, sizeof a);
    out->kind = NVRM_SAW_FREE;
    out->client = a.client;
    out->parent = a.parent;
    out->object = a.object;
    out->status = a.status;
}

void mb__nvrm_observe(const struct nvrm_series *series, enum nvrm_fd_kind fd_kind, int fd,
                      unsigned long request, const void *arg, enum nvrm_moment moment,
                      struct nvrm_observed *out)
{
    *out = (struct nvrm_observed){.fd = fd, .rm_ctl_fd = -1};
    if (!series)
        return;
    if (fd_kind == NVRM_FD_UVM && request == NVRM_UVM_DEINITIALIZE) {
        out->kind = NVRM_SAW_UVM_END; /* has no argument */
        return;
    }
    if (!arg)
        return;
    if (fd_kind == NVRM_FD_UVM) {
        see_uvm(series, request, arg, out);
    } else if (fd_kind != NVRM_FD_OTHER && _IOC_TYPE(request) == 'F') {
        if (_IOC_NR(request) == NVRM_ESC_ALLOC)
            see_alloc(arg, _IOC_SIZE(request), moment, out);
        else if (_IOC_NR(request) == NVRM_ESC_FREE)
            see_free(arg, _IOC_SIZE(request), out);
    }
}
