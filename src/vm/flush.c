/* SPDX-License-Identifier: MIT */
/*
 * tlb_flush: whole invalidates, and the epochs that they end.
 *
 * A flush makes a retired window fresh if it is executed after the window's clear became visible:
 * the window's last batch had passed when the flush was issued, or stands before it in the same
 * stream. Such windows are marked with the flush's number when it is issued; when it has passed
 * they are recycled. Flushes on different streams may pass in any order: each takes only what it
 * marked.
 *
 * Locking   vm's lock.
 */
#include "base/err.h"
#include "vm/internal.h"

/* Windows on their way into retirement whose last batch stands before the flush in its stream. */
static void mark_waiting(struct mb_vm *vm, uint64_t flush, struct mb_hw_stream *stream)
{
    for (size_t i = 0; i < vm->queues.count; i++) {
        if (vm->queues.data[i].stream != stream)
            continue;
        for (struct mb__wait *wait = vm->queues.data[i].head; wait; wait = wait->next) {
            if (wait->kind == MB__WAIT_WINDOW)
                wait->window->flush = flush;
        }
    }
}

void mb__flush_issued(struct mb_vm *vm, struct mb__wait *wait, struct mb_hw_fence fence)
{
    wait->flush = ++vm->flushes;
    vm->flushes_pending++;
    for (struct mb__window *window = vm->retired; window; window = window->next) {
        if (!window->flush)
            window->flush = wait->flush;
    }
    if (fence.stream) {
        mark_waiting(vm, wait->flush, fence.stream);
        mb__wait_fence(wait, fence);
    }
    mb__wait_start(vm, wait);
}

void mb__flush_passed(struct mb_vm *vm, uint64_t flush)
{
    struct mb__window **link = &vm->retired;

    vm->stats.epochs++;
    vm->flushes_pending--;
    while (*link) {
        struct mb__window *window = *link;

        if (window->flush != flush) {
            link = &window->next;
            continue;
        }
        *link = window->next;
        vm->retired_bytes -= (uint64_t)window->slots << vm->region[window->region].leaf_shift;
        mb__window_recycle(vm, window);
    }
}

enum mb_err mb__flush(struct mb_vm *vm, struct mb_hw_stream *stream, struct mb_hw_fence *done)
{
    struct mb__wait *wait = mb__wait_new(vm, MB__WAIT_FLUSH, 1, 0);
    static const enum mb_hw_cmd_kind kinds[] = {MB_HW_BARRIER, MB_HW_INVALIDATE, MB_HW_MEMBAR};
    struct mb_hw_fence fence;
    enum mb_err err = MB_OK;

    if (!wait)
        return MB_ERR_HOST_MEMORY;
    vm->batch.cmds.count = 0;
    for (unsigned i = 0; !err && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        err = mb__cmd_kind(vm, kinds[i]);
    if (!err)
        err = mb__vm_submit(vm, stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    if (err) {
        mb__wait_drop(vm, wait);
        return err;
    }
    vm->stats.invalidates++;
    mb__flush_issued(vm, wait, fence);
    if (done)
        *done = fence;
    return MB_OK;
}

enum mb_err mb__tlb_flush(struct mb_vm *vm, struct mb_hw_stream *stream, struct mb_hw_fence *done)
{
    enum mb_err err;

    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    if (!err) {
        mb__poll(vm);
        err = mb__flush(vm, stream, done);
    }
    mb__unlock(&vm->lock);
    return err;
}
