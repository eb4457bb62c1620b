/*
 * observe.h - reads what libcuda tells the driver, out of the arguments of its ioctl calls.
 *
 * Pure: nothing is called and nothing but the argument structures is read. Whoever sees libcuda's
 * calls (the cuda backend) hands them over before or after they are made and acts on the answer.
 *
 * UVM's request numbers are small integers without a type, so an unrelated file could use the same:
 * look at the file with mb__nvrm_fd_kind() and decode only what goes to the driver.
 */
#ifndef MB_HW_NVRM_OBSERVE_H
#define MB_HW_NVRM_OBSERVE_H

#include "hw/nvrm/abi.h"
#include "hw/nvrm/series.h"

enum nvrm_fd_kind { NVRM_FD_OTHER, NVRM_FD_CTL, NVRM_FD_GPU, NVRM_FD_UVM };

/* By the path that the file was opened with: "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm".
 * */
enum nvrm_fd_kind mb__nvrm_path_kind(const char *path);
/* The same for an open file, over /proc/self/fd. Keeps errno. */
enum nvrm_fd_kind mb__nvrm_fd_kind(int fd);

enum nvrm_saw_kind {
    NVRM_SAW_NOTHING,            /* not a call of interest, or an argument that cannot be right */
    NVRM_SAW_VASPACE_REGISTER,   /* uuid, rm_ctl_fd, client, object = address space */
    NVRM_SAW_VASPACE_UNREGISTER, /* uuid */
    NVRM_SAW_CHANNEL_REGISTER,   /* uuid, rm_ctl_fd, client, object = channel, base, length */
    NVRM_SAW_CHANNEL_UNREGISTER, /* client, object = channel; uuid before 590 */
    NVRM_SAW_EXTERNAL_MAP,   /* base, length, offset, rm_ctl_fd, client, object = memory, attr */
    NVRM_SAW_EXTERNAL_UNMAP, /* base, length, uuid */
    NVRM_SAW_RANGE_FREE,     /* base; length before 590, else 0 */
    NVRM_SAW_UVM_END,        /* the UVM file is shut down */
    NVRM_SAW_MPS,            /* the process is a client of MPS */
    NVRM_SAW_ALLOC,          /* client, parent, object, class_id, params */
    NVRM_SAW_FREE,           /* client, parent, object */
};

/* Fields that the kind does not name are 0. */
struct nvrm_observed {
    enum nvrm_saw_kind kind;
    int fd;        /* on which the call was made */
    int rm_ctl_fd; /* the control file that the call names, or -1 */
    nvrm_handle client, parent, object;
    uint32_t
        class_id; /* ALLOC: NVRM_CLASS_DEVICE, _SUBDEVICE or _VASPACE; other classes are not told */
    uint32_t param; /* ALLOC: device or subdevice instance, flags of an address space; else 0 */
    uint64_t base, length, offset; /* bytes */
    uint8_t uuid[NVRM_UUID_BYTES];
    uint32_t attr_count;           /* EXTERNAL_MAP: GPUs in the call */
    struct nvrm_abi_uvm_attr attr; /* EXTERNAL_MAP: of the first GPU */
    uint32_t status;               /* RM status; meaningful only after the call */
};

enum nvrm_moment {
    NVRM_BEFORE, /* the call has not been made: nested pointers are not followed */
    NVRM_AFTER,  /* the call returned 0: the driver has read what its pointers name */
};

/*
 * Decodes one call. `series` NULL or `arg` NULL decode to NVRM_SAW_NOTHING. `fd` and its kind are
 * the caller's. *out is always written. Async-signal-safe.
 */
void mb__nvrm_observe(const struct nvrm_series *series, enum nvrm_fd_kind fd_kind, int fd,
                      unsigned long request, const void *arg, enum nvrm_moment moment,
                      struct nvrm_observed *out);

#endif
