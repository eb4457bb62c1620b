/* SPDX-License-Identifier: MIT */
/*
 * access.h - which other devices may use a device's blocks and mappings.
 *
 * LOCKING   Records of one owner change with the owner's lock held, and all of them are guarded by
 * a leaf lock of access.c, so that a peer may ask what is open to it.
 */
#ifndef MB_RUNTIME_ACCESS_H
#define MB_RUNTIME_ACCESS_H

#include "runtime/runtime.h"

/* Takes the locks itself and waits for peers that lose access; no lock held. */
enum mb_err mb__access_set(struct mb_device *dev, void *va, uint64_t bytes,
                           const struct mb_access *list, unsigned count);
/* What `peer` may do at the address; lock of dev held. */
enum mb_err mb__access_get(struct mb_device *dev, const void *ptr, const struct mb_device *peer,
                           enum mb_prot *out);
/* Could `peer` be given access to memory of `dev`? The reason is in the detail. */
enum mb_err mb__access_possible(struct mb_device *dev, struct mb_device *peer);
/* MB_ERR_BUSY if a page of reserved addresses is open to a peer: what it sees must not change under
 * it. Lock held. */
enum mb_err mb__access_closed(const struct mb_device *dev, uint64_t addr, uint64_t bytes);
/* Is anything of `dev` open to a peer? Lock held. */
bool mb__access_any(const struct mb_device *dev);
/* Ordinal of a device that the block is open to; -1: none. Lock held. */
int mb__access_peer(const struct mb_device *dev, const struct mb__block *block);
/* Is every page of the range open to `peer`, by whatever owner? */
bool mb__access_covers(const struct mb_device *peer, uint64_t addr, uint64_t bytes);
/* The device is about to be closed: takes back all it gave and all it was given. No lock held. */
void mb__access_end(struct mb_device *dev);
/* What is open is mapped. Lock held. */
enum mb_err mb__access_check(struct mb_device *dev);
/* Adds to `pins` (block -> count) a pin for each record of access to a block. Lock held. */
enum mb_err mb__access_count_pins(const struct mb_device *dev, struct mb_map *pins);

#endif
