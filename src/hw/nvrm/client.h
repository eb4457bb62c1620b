/*
 * client.h - MoonBright's own client of NVIDIA's resource manager (RM).
 *
 * A client is a set of open device files, a root object, and a device and subdevice object of one
 * GPU. It is separate from libcuda's client: nothing here changes what libcuda has, and the only
 * calls on a foreign client are the two read-only questions and the duplication in query.h and
 * memory.h.
 *
 * OWNERSHIP  Whatever is made on a client is registered with it. mb__nvrm_client_close() undoes
 *            what is left in reverse order of creation, so closing the client first is safe;
 *            pointers to such objects are then dead.
 * FORK       In a child of the process that opened the client every call fails with MB_ERR_FORKED
 *            and touches neither the driver nor device memory. mb__nvrm_client_close() there closes
 *            the child's copies of the files and frees host memory, nothing else.
 * LOCKING    `lock` guards the list of objects and the handle counter. It is never held across a
 *            call into the driver. Objects say for themselves what may be called at once.
 * SAFETY     Nothing in this directory writes to device memory that the caller did not name.
 */
#ifndef MB_HW_NVRM_CLIENT_H
#define MB_HW_NVRM_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/lock.h"
#include "hw/nvrm/abi.h"
#include "hw/nvrm/arch.h"
#include "hw/nvrm/os.h"
#include "hw/nvrm/series.h"
#include "moonbright.h"

enum nvrm_select { NVRM_BY_MINOR, NVRM_BY_PCI, NVRM_BY_UUID };

struct nvrm_client_request {
    const struct nvrm_os *os; /* NULL: the system's */
    const char *version_text; /* text of /proc/driver/nvidia/version; NULL: read it */
    enum nvrm_select select;
    uint32_t minor;                         /* BY_MINOR: N of /dev/nvidiaN */
    uint32_t pci_domain, pci_bus, pci_slot; /* BY_PCI */
    uint8_t uuid[NVRM_UUID_BYTES];          /* BY_UUID: as cuDeviceGetUuid gives it */
};

/* Embedded in everything that close must undo. Guarded by the client's lock. */
struct nvrm_object {
    struct nvrm_object *prev, *next;
    void (*destroy)(struct nvrm_object *object); /* unlinks and frees itself; called unlocked */
};

struct nvrm_client {
    const struct nvrm_os *os;         /* fixed at open, as all up to `guard` */
    const struct nvrm_series *series; /* driver */
    const struct nvrm_arch *arch;     /* GPU */
    struct nvrm_version version;
    int ctl_fd; /* /dev/nvidiactl */
    int gpu_fd; /* /dev/nvidiaN: keeps the GPU attached */
    nvrm_handle root, device, subdevice;
    uint32_t gpu_id;
    uint32_t minor;
    uint32_t pci_domain, pci_bus, pci_slot;
    uint32_t device_instance, subdevice_instance;
    uint8_t uuid[NVRM_UUID_BYTES];
    struct nvrm_fork_guard guard;

    /* Grows with every CPU mapping that is made or undone; see mb__nvrm_channel_submit(). Atomic.
     * */
    uint64_t map_changes;

    struct mb_lock lock;        /* leaf */
    struct nvrm_object objects; /* ring head: oldest is next, newest is prev; under lock */
    nvrm_handle next_handle;    /* under lock */
};

/* Opens a client of the GPU that `request` selects. Needs read and write access to the device
 * files, no privilege. On failure nothing stays open. */
enum mb_err mb__nvrm_client_open(const struct nvrm_client_request *request,
                                 struct nvrm_client **out);
/* Closes *client and sets it to NULL; NULL inside is allowed. No other call may run or follow. */
void mb__nvrm_client_close(struct nvrm_client **client);

/* MB_OK, or MB_ERR_FORKED in a child. */
enum mb_err mb__nvrm_client_check(const struct nvrm_client *client);

/* Registration with the client; see OWNERSHIP. */
void mb__nvrm_object_link(struct nvrm_client *client, struct nvrm_object *object,
                          void (*destroy)(struct nvrm_object *object));
void mb__nvrm_object_unlink(struct nvrm_client *client, struct nvrm_object *object);

/*
 * Raw calls. Thread-safe. A failure names the call, the object, the RM status or errno.
 */

/* Makes an object of `class_id` under `parent` with the class's structure `params` (NULL, 0 if it
 * has none); *object is its handle. */
enum mb_err mb__nvrm_alloc(struct nvrm_client *client, nvrm_handle parent, uint32_t class_id,
                           void *params, uint32_t params_bytes, nvrm_handle *object);
/* Frees an object with all that hangs below it; 0 is allowed. A refusal has no one to tell: the
 * kernel frees what is left when the files close. The thread's error text survives, since this runs
 * when something failed before. Does nothing in a child of fork(). */
void mb__nvrm_free(struct nvrm_client *client, nvrm_handle parent, nvrm_handle object);
/* Likewise any other escape that takes something back. */
void mb__nvrm_escape_quiet(struct nvrm_client *client, unsigned escape, void *arg, size_t bytes);
enum mb_err mb__nvrm_control(struct nvrm_client *client, nvrm_handle object, uint32_t cmd,
                             void *params, uint32_t params_bytes);
/* The same on another client of this process, through that client's own /dev/nvidiactl file. Only
 * for commands that change nothing. */
enum mb_err mb__nvrm_control_on(struct nvrm_client *client, int ctl_fd, nvrm_handle foreign_client,
                                nvrm_handle object, uint32_t cmd, void *params,
                                uint32_t params_bytes);
/* Gives this client a second name for an object of another client. */
enum mb_err mb__nvrm_dup(struct nvrm_client *client, nvrm_handle parent, nvrm_handle src_client,
                         nvrm_handle src_object, nvrm_handle *object);
/* One escape with a structure of ours on this client's control file; `what` names it in errors. The
 * structure's own status is the caller's business: see mb__nvrm_status_check(). */
enum mb_err mb__nvrm_escape(struct nvrm_client *client, unsigned escape, void *arg, size_t bytes,
                            const char *what);
/* MB_OK for status 0; else the error with text "<what>: status 0x.. NAME". */
__attribute__((format(printf, 2, 3))) enum mb_err mb__nvrm_status_check(uint32_t status,
                                                                        const char *format, ...);

#endif
