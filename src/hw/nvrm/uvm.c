/* uvm.c - see uvm.h. UVM's request numbers carry neither type nor size. */
#include "hw/nvrm/uvm.h"

#include <string.h>

#include "base/err.h"
#include "hw/nvrm/status.h"

static enum mb_err call(struct nvrm_client *client, int uvm_fd, unsigned long request, void *arg,
                        const char *what)
{
    enum mb_err err = mb__nvrm_client_check(client);

    if (err)
        return err;
    int rc = client->os->ioctl(client->os, uvm_fd, request, arg);
    if (!rc)
        return MB_OK;
    return mb__fail(mb__nvrm_errno_err(-rc), "%s: ioctl 0x%lx on file %d: %s", what, request,
                    uvm_fd, strerror(-rc));
}

static enum mb_err check(uint32_t status, const char *what, uint64_t base, uint64_t length)
{
    return mb__nvrm_status_check(status, "%s of 0x%llx bytes at 0x%llx", what,
                                 (unsigned long long)length, (unsigned long long)base);
}

enum mb_err mb__nvrm_uvm_create_range(struct nvrm_client *client, int uvm_fd, uint64_t base,
                                      uint64_t length)
{
    struct nvrm_abi_uvm_range arg = {.base = base, .length = length};
    const char *what = "UVM range creation";
    enum mb_err err = call(client, uvm_fd, NVRM_UVM_CREATE_EXTERNAL_RANGE, &arg, what);

    return err ? err : check(arg.status, what, base, length);
}

enum mb_err mb__nvrm_uvm_map(struct nvrm_client *client, int uvm_fd,
                             const struct nvrm_uvm_mapping *mapping)
{
    struct nvrm_abi_uvm_map arg;
    const char *what = "UVM mapping";

    memset(&arg, 0, sizeof arg);
    arg.base = mapping->base;
    arg.length = mapping->length;
    arg.offset = mapping->offset;
    arg.attr[0] = mapping->attr;
    arg.attr_count = 1;
    arg.rm_ctl_fd = client->ctl_fd;
    arg.client = client->root;
    arg.memory = mapping->memory;
    enum mb_err err = call(client, uvm_fd, NVRM_UVM_MAP_EXTERNAL, &arg, what);
    return err ? err : check(arg.status, what, mapping->base, mapping->length);
}

enum mb_err mb__nvrm_uvm_unmap(struct nvrm_client *client, int uvm_fd, uint64_t base,
                               uint64_t length, const uint8_t uuid[NVRM_UUID_BYTES])
{
    struct nvrm_abi_uvm_unmap arg = {.base = base, .length = length};
    const char *what = "UVM unmapping";

    memcpy(arg.uuid, uuid, sizeof arg.uuid);
    enum mb_err err = call(client, uvm_fd, NVRM_UVM_UNMAP_EXTERNAL, &arg, what);
    return err ? err : check(arg.status, what, base, length);
}

/* The two layouts differ in the length and so in where the status lies. */
enum mb_err mb__nvrm_uvm_free(struct nvrm_client *client, int uvm_fd, uint64_t base,
                              uint64_t length)
{
    struct nvrm_abi_uvm_range with_length = {.base = base, .length = length};
    struct nvrm_abi_uvm_free_v590 without = {.base = base};
    bool has_length = client->series->uvm_free_bytes == sizeof with_length;
    const char *what = "UVM range release";

    enum mb_err err = call(client, uvm_fd, NVRM_UVM_FREE,
                           has_length ? (void *)&with_length : (void *)&without, what);
    return err ? err : check(has_length ? with_length.status : without.status, what, base, length);
}
