/*
 * uvm.h - the few calls on UVM, the part of the driver that owns a CUDA context's page tables.
 *
 * `uvm_fd` is the file on which libcuda registered the context's address space: ranges created
 * there appear in that context. Addresses must lie in VA that the caller has reserved from libcuda.
 *
 * ORDER    create a range, map into it, unmap, free the range.
 * LOCKING  any thread; UVM locks.
 * UNITS    bytes, multiples of 4096.
 */
#ifndef MB_HW_NVRM_UVM_H
#define MB_HW_NVRM_UVM_H

#include "hw/nvrm/client.h"

enum mb_err mb__nvrm_uvm_create_range(struct nvrm_client *client, int uvm_fd, uint64_t base,
                                      uint64_t length);

/* Maps [offset, offset + length) of an object of ours at `base`, with rights and caching as in
 * `attr`, best taken from a mapping that libcuda made (observe.h). */
struct nvrm_uvm_mapping {
    uint64_t base, length, offset;
    nvrm_handle memory; /* of `client` */
    struct nvrm_abi_uvm_attr attr;
};
enum mb_err mb__nvrm_uvm_map(struct nvrm_client *client, int uvm_fd,
                             const struct nvrm_uvm_mapping *mapping);

enum mb_err mb__nvrm_uvm_unmap(struct nvrm_client *client, int uvm_fd, uint64_t base,
                               uint64_t length, const uint8_t uuid[NVRM_UUID_BYTES]);
/* Frees a range of `length` with all mappings in it. */
enum mb_err mb__nvrm_uvm_free(struct nvrm_client *client, int uvm_fd, uint64_t base,
                              uint64_t length);

#endif
