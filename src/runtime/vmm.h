/* SPDX-License-Identifier: MIT */
/*
 * vmm.h - reserved addresses, memory objects, mappings, aliases, sleep and wake.
 *
 * LOCKING   The device's lock is held by the caller of every function here.
 */
#ifndef MB_RUNTIME_VMM_H
#define MB_RUNTIME_VMM_H

#include "runtime/runtime.h"

enum mb_err mb__vmm_new(struct mb_device *dev);
void mb__vmm_fini(struct mb_device *dev);
/* Bytes of the frames that memory objects hold. */
uint64_t mb__vmm_bytes(const struct mb_device *dev);
/* Is the whole range mapped in reserved addresses? */
bool mb__vmm_covers(struct mb_device *dev, uint64_t addr, uint64_t bytes);
/* Access of the owner to a mapped page; false: it is not one. */
bool mb__vmm_prot(struct mb_device *dev, uint64_t addr, enum mb_prot *out);
bool mb__vmm_info(struct mb_device *dev, uint64_t addr, struct mb_pointer_info *out);
enum mb_err mb__vmm_check(struct mb_device *dev);
/* Adds to `pins` (block -> count) a pin for each page that shows frames of a block. */
enum mb_err mb__vmm_count_pins(struct mb_device *dev, struct mb_map *pins);

enum mb_err mb__vmm_reserve(struct mb_device *dev, uint64_t bytes, uint64_t align, void **va);
enum mb_err mb__vmm_unreserve(struct mb_device *dev, void *va, uint64_t bytes);
enum mb_err mb__vmm_create(struct mb_device *dev, uint64_t bytes, mb_mem *out);
enum mb_err mb__vmm_release(struct mb_device *dev, mb_mem mem);
/* host: done when the call returns. */
enum mb_err mb__vmm_apply(struct mb_device *dev, const struct mb_map_op *ops, unsigned count,
                          bool host, mb_stream native);
enum mb_err mb__vmm_sleep(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native);
enum mb_err mb__vmm_wake(struct mb_device *dev, void *va, uint64_t bytes, mb_stream native);
/* Does the address lie in a range of mb_mem_reserve(), mapped or not? */
bool mb__vmm_reserved(struct mb_device *dev, uint64_t addr);
/* The live block at the address, about to be shown elsewhere: its frees take the lock from now on.
 * NULL: none. */
struct mb__block *mb__block_to_show(struct mb_device *dev, uint64_t src);

#endif
