/* SPDX-License-Identifier: MIT */
/*
 * got.h - redirects one imported function of one loaded ELF object.
 *
 * Every import of a function ends in a word that the dynamic linker fills (relocations JUMP_SLOT
 * and GLOB_DAT). Replacing that word redirects the calls of this object and of no other.
 */
#ifndef MB_HW_CUDA_GOT_H
#define MB_HW_CUDA_GOT_H

#include <stdbool.h>

#include "moonbright.h"

/* Is any loaded object's file name `soname` or `soname` with a suffix such as ".1"? "" is the
 * program. */
bool mb__got_loaded(const char *soname);

/*
 * Points all imports of `symbol` in the object `soname` to `replacement`; *count gets their number.
 * Words that hold `replacement` already count too. Memory protection is put back as it was.
 * LOCKING  Not to be called by two threads at once for one object.
 * ERRORS   MB_ERR_NOT_FOUND: no such object, or it imports no such function; MB_ERR_NOT_SUPPORTED:
 *          another processor; MB_ERR_PERMISSION: the word's page cannot be made writable.
 */
enum mb_err mb__got_patch(const char *soname, const char *symbol, void (*replacement)(void),
                          unsigned *count);

#endif
