/* SPDX-License-Identifier: MIT */
/*
 * info.h - what an address is, device work on it, and realloc.
 *
 * LOCKING   The device's lock is held by the caller, except of mb__realloc().
 */
#ifndef MB_RUNTIME_INFO_H
#define MB_RUNTIME_INFO_H

#include "runtime/runtime.h"

/* MB_ERR_NOT_FOUND: `ptr` lies in no live block and no mapping. */
enum mb_err mb__pointer_info(struct mb_device *dev, const void *ptr, struct mb_pointer_info *out);
/* As mb_wait_mapped(): takes the device's lock, and waits without it. */
enum mb_err mb__wait_mapped(struct mb_device *dev, const void *ptr);

enum mb_err mb__device_fill(struct mb_device *dev, void *va, uint64_t bytes, uint64_t seed,
                            mb_stream native);
enum mb_err mb__device_verify(struct mb_device *dev, const void *va, uint64_t bytes, uint64_t seed,
                              mb_stream native);
enum mb_err mb__device_copy(struct mb_device *dev, void *dst, const void *src, uint64_t bytes,
                            mb_stream native);
enum mb_err mb__device_copy_list(struct mb_device *dev, const struct mb_copy *list, unsigned count,
                                 mb_stream native);

/* Takes the lock itself. ptr is not NULL. */
enum mb_err mb__realloc(struct mb_device *dev, void *ptr, uint64_t requested, void **out);

#endif
