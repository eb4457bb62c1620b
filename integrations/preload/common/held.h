/* SPDX-License-Identifier: MIT */
/*
 * held.h - the blocks that the program has from MoonBright, by address.
 *
 * A free has to know quickly whose the memory is; mb_pointer_info() takes the device's lock and,
 * after a change of mappings, looks at every frame of the block. All calls are thread-safe.
 */
#ifndef MB_PRELOAD_HELD_H
#define MB_PRELOAD_HELD_H

#include <stdbool.h>
#include <stdint.h>

/* False: no memory for the record. */
bool held_add(uint64_t address, int ordinal);
/* Takes the block out: of several frees at once, one gets it. -1: not held. */
int held_take(uint64_t address);
/* The device of a held block; -1: not held. */
int held_find(uint64_t address);
/* Everything of a device is gone. */
void held_forget(int ordinal);

#endif
