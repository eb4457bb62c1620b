/* SPDX-License-Identifier: MIT */
/*
 * mutants.h - variants of this layer with one safety step left out, for the tests that show that
 * the step is needed and that its absence is seen. Compiled only with MB_MUTANTS; without it the
 * condition is the constant false.
 */
#ifndef MB_VM_MUTANTS_H
#define MB_VM_MUTANTS_H

#include <stdbool.h>

enum mb_vm_mutant {
    MB_VM_NO_MUTANT,
    MB_VM_NO_INVALIDATE_ON_REMAP,     /* a slot changes frames, its old translation stays */
    MB_VM_GROUP_RULE_IGNORED_INVALID, /* a slot cached as invalid with its neighbours is written */
    MB_VM_GROUP_RULE_IGNORED_VALID,   /* the same where cleared slots hold a donor's valid entry */
    MB_VM_FRAME_REUSED_BEFORE_FENCE,  /* frames and references go back at once */
    MB_VM_EPOCH_RECYCLED_WITHOUT_FLUSH, /* retired addresses are fresh again as they are */
    MB_VM_ALIAS_COUNT_NOT_TAKEN,        /* a mapping does not count as a reference */
    MB_VM_LEAF_BEFORE_DIRECTORY,        /* the batch does not wait for the directories above it */
    MB_VM_NO_MEMBAR_AFTER_INVALIDATE,   /* stores through dropped translations may be on the way */
};

#ifdef MB_MUTANTS
#include <stdatomic.h>
extern _Atomic int mb__vm_mutant;
#define MB__VM_MUTANT(name) (atomic_load_explicit(&mb__vm_mutant, memory_order_relaxed) == (name))
#else
#define MB__VM_MUTANT(name) false
#endif

#endif
