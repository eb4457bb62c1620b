/*
 * query.h - read-only questions about memory and channels, ours or of another client of this
 * process.
 *
 * `owner` names whose object it is. For a foreign client give the control file on which that client
 * lives (as UVM_REGISTER_GPU_VASPACE names it); the driver checks that file.
 */
#ifndef MB_HW_NVRM_QUERY_H
#define MB_HW_NVRM_QUERY_H

#include "hw/nvrm/client.h"

struct nvrm_owner {
    int ctl_fd;         /* -1: our own client, `client` is ignored */
    nvrm_handle client; /* root object of the foreign client */
};

static inline struct nvrm_owner mb__nvrm_own(void)
{
    return (struct nvrm_owner){.ctl_fd = -1};
}

/* Where one byte of a memory object lies. */
struct nvrm_surface {
    uint64_t phys;       /* physical address, bytes */
    uint64_t contiguous; /* bytes from there on that are contiguous; 0 if the driver does not say */
    uint32_t kind;       /* page kind */
    bool in_vidmem;
    bool compressed;
};

/* Needs CAP_SYS_ADMIN. `offset` must lie inside the object: a wrong one leaves an assertion in the
 * kernel log. */
enum mb_err mb__nvrm_surface(struct nvrm_client *client, struct nvrm_owner owner,
                             nvrm_handle memory, uint64_t offset, struct nvrm_surface *out);

/* Where a channel's instance block lies: its words 128 and 129 hold the page-directory base. */
struct nvrm_instance {
    uint64_t phys;  /* physical address, bytes */
    uint64_t bytes; /* size */
    bool in_vidmem;
};

/* Needs CAP_SYS_ADMIN. `subdevice` is the owner's. */
enum mb_err mb__nvrm_channel_instance(struct nvrm_client *client, struct nvrm_owner owner,
                                      nvrm_handle subdevice, nvrm_handle channel,
                                      struct nvrm_instance *out);

/*
 * Reads the page-directory base out of the first 4096 bytes of an instance block. False unless it
 * is in video memory, not 0, and aligned; *pdb is its physical address.
 */
enum { NVRM_INSTANCE_WORDS = 1024 };
bool mb__nvrm_instance_pdb(const volatile uint32_t *words, uint64_t *pdb);

#endif
