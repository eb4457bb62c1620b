/* SPDX-License-Identifier: MIT */
#include "vm_peek.h"

#include "vm/internal.h"

const struct mb_hw_view *vm_peek_view_at(struct mb_vm *vm, unsigned i)
{
    for (unsigned r = 0; r < MB__REGIONS; r++) {
        const struct mb__region *region = &vm->region[r];

        for (uint32_t p = 0; p < region->pieces; p++) {
            if (region->piece[p].view.bytes && !i--)
                return &region->piece[p].view;
        }
    }
    return NULL;
}

const struct mb_hw_view *vm_peek_view(struct mb_vm *vm, uint64_t va, uint32_t *slot)
{
    const struct mb_hw_view *view;

    for (unsigned i = 0; (view = vm_peek_view_at(vm, i)); i++) {
        if (va - view->va.addr < view->bytes) {
            *slot = (uint32_t)((va - view->va.addr) >> view->leaf_shift);
            return view;
        }
    }
    return NULL;
}

uint64_t vm_peek_template(struct mb_vm *vm, enum mb_prot prot)
{
    return mb__pgt_template(vm, MB_FRAME_SHIFT, prot);
}

bool vm_peek_lost(const struct mb_vm *vm)
{
    return vm->lost;
}
