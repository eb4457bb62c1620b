/* SPDX-License-Identifier: MIT */
/*
 * debug.h - checks of the program's use of its blocks (configuration key check:).
 *
 * All of it waits for the device: a program under check runs correctly but slowly.
 * LOCKING   The device's lock is held by the caller.
 */
#ifndef MB_RUNTIME_DEBUG_H
#define MB_RUNTIME_DEBUG_H

#include "runtime/runtime.h"

/* Bytes of a red zone on either side of each block. */
uint64_t mb__debug_zone(const struct mb_device *dev);
/* Poisons a new block, and checks that nothing wrote to it since it was freed. */
enum mb_err mb__debug_on_malloc(struct mb_device *dev, struct mb__block *block);
/* When all streams that used the block are done: checks the red zones, poisons the block unless
 * aliases of it live. MB_ERR_CORRUPT: a zone was written; the block stays
 * live. */
enum mb_err mb__debug_on_free(struct mb_device *dev, struct mb__block *block,
                              struct mb__stream *stream);
/* Poisons a freed block whose last alias is gone, when all who used it are done. */
void mb__debug_on_unpin(struct mb_device *dev, const struct mb__block *block);
/* check:poison: fills free memory at its home address, in the order of `stream` (NULL: the own
 * one). */
enum mb_err mb__debug_poison(struct mb_device *dev, uint64_t home, uint64_t bytes,
                             struct mb__stream *stream);
/* Waits until fills on the own stream are over. */
enum mb_err mb__debug_settle(struct mb_device *dev);
/* The range must lie in one live block or mapping when checks are on. */
enum mb_err mb__debug_range(struct mb_device *dev, const void *va, uint64_t bytes,
                            const char *call);
/* Lists live blocks on stderr when check:leaks is on. */
void mb__debug_leaks(struct mb_device *dev);

#endif
