/* SPDX-License-Identifier: MIT */
/*
 * describe.c - what `moonbright info` says about this backend: the first thing that is missing, by
 * name.
 *
 * The library is loaded and asked for devices, which opens the kernel driver's device file;
 * nothing is allocated. A machine without the library costs four failed dlopen.
 */
#include "hw/hip/hip.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The reason lives as long as the process; a few are kept, as facts rarely change. */
static void set_reason(struct mb_backend_info *out, const char *text)
{
    static char kept[16][640];
    static unsigned used;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    unsigned slot;

    pthread_mutex_lock(&lock);
    for (slot = 0; slot < used && strcmp(kept[slot], text) != 0; slot++)
        ;
    if (slot == used) {
        slot = used < 16 ? used++ : 15;
        snprintf(kept[slot], sizeof(kept[slot]), "%s", text);
    }
    out->reason = kept[slot];
    pthread_mutex_unlock(&lock);
}

/* What the kernel's device file tells when HIP sees no GPU. */
static const char *kernel_side(void)
{
    int fd = open("/dev/kfd", O_RDWR | O_CLOEXEC);

    if (fd >= 0) {
        close(fd);
        return "/dev/kfd can be opened, so the kernel driver is there without a GPU that this HIP "
               "supports";
    }
    if (errno == ENOENT)
        return "/dev/kfd does not exist: the amdgpu kernel driver is not loaded";
    if (errno == EACCES || errno == EPERM)
        return "/dev/kfd may not be opened: the user has to be in the group render";
    return "/dev/kfd cannot be opened";
}

static enum mb_err look(const struct mb_hip_driver *hip, int ordinal, struct mb_backend_info *out)
{
    int count = 0, version = 0, vmm = 0;
    enum mb_err err = mb__hip_check(hip, hip->device_count(&count), "counting devices");

    if (err || !count)
        return mb__hip_fail(MB_ERR_NO_DEVICE, "%s was loaded and sees no device; %s", hip->file,
                            kernel_side());
    if (ordinal < 0 || ordinal >= count)
        return mb__hip_fail(MB_ERR_NO_DEVICE, "there is no device number %d: HIP sees %d", ordinal,
                            count);
    (void)hip->runtime_version(&version);
    snprintf(out->driver, sizeof(out->driver), "HIP %d.%d (" MB_HIP_NOTE ")", version / 10000000,
             version / 100000 % 100);
    err = mb__hip_check(hip,
                        hip->device_name(out->device_name, (int)sizeof(out->device_name), ordinal),
                        "asking for the device's name");
    if (!err)
        err = mb__hip_check(hip, hip->device_attr(&vmm, HIP_ATTR_VMM, ordinal),
                            "asking for virtual memory management");
    if (!err && !vmm)
        err = mb__hip_fail(MB_ERR_NOT_SUPPORTED,
                           "the device or its driver has no virtual memory management "
                           "(hipDeviceAttributeVirtualMemoryManagementSupported is 0)");
    if (!err && !mb__hip_code[0].name)
        err = mb__hip_fail(
            MB_ERR_NOT_SUPPORTED,
            "this build has no kernels for AMD GPUs: no clang with the amdgcn target and "
            "lld was found when it was made");
    return err;
}

void mb__hip_describe(int ordinal, struct mb_backend_info *out)
{
    const struct mb_hip_driver *hip;

    *out = (struct mb_backend_info){.name = "hip", .tables = "driver", .reason = ""};
    if (mb__hip_driver_open(&hip) || look(hip, ordinal, out)) {
        set_reason(out, mb_error_detail());
        return;
    }
    out->available = true;
    set_reason(out, MB_HIP_PREFIX
               "driver tables only: device-written tables need a kernel driver that maps "
               "them into the process");
}
