/* SPDX-License-Identifier: MIT */
/* vm_peek.h - what tests that see runtime's inside need of vm's: the two cannot be included
 * together. */
#ifndef MB_TESTS_TRUST_VM_PEEK_H
#define MB_TESTS_TRUST_VM_PEEK_H

#include "vm/vm.h"

/* The view that holds the entry of `va`, and which one it is; NULL: there is no table. */
const struct mb_hw_view *vm_peek_view(struct mb_vm *vm, uint64_t va, uint32_t *slot);
/* Number i of the views; NULL past the end. */
const struct mb_hw_view *vm_peek_view_at(struct mb_vm *vm, unsigned i);
uint64_t vm_peek_template(struct mb_vm *vm, enum mb_prot prot);
/* Is the vm lost? */
bool vm_peek_lost(const struct mb_vm *vm);

#endif
