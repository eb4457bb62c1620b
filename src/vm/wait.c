/* SPDX-License-Identifier: MIT */
/*
 * Waits: what happens when fences have passed.
 *
 * A fence passes after every earlier fence of its stream, so waits are kept in one queue per stream
 * in the order of tickets and a poll looks only at the heads. A wait for several streams stands in
 * the queue of one of them at a time and moves on when that fence has passed.
 *
 * Locking   vm's lock; fence_done is a memory read.
 * Trade-off Looking for a stream's queue is a linear search: there are as many queues as streams
 *           with open waits, and a poll visits all of them anyway.
 */
#include <stdlib.h>

#include "base/err.h"
#include "vm/internal.h"

struct mb__wait *mb__wait_new(struct mb_vm *vm, enum mb__wait_kind kind, unsigned fences,
                              uint32_t frames)
{
    size_t fence_bytes = fences * sizeof(struct mb_hw_fence);
    struct mb__wait *wait = NULL;

    /* In the worst case every open fence is on a stream of its own. */
    if (MB_VEC_RESERVE(&vm->queues, vm->fences_waiting + fences))
        wait = malloc(sizeof(*wait) + fence_bytes + frames * sizeof(mb_pfn));
    if (!wait) {
        mb__no_host_memory("the record of a wait for fences");
        return NULL;
    }
    *wait = (struct mb__wait){.kind = kind, .fences_max = fences};
    wait->pfns = (mb_pfn *)(void *)((char *)wait->fences + fence_bytes);
    vm->fences_waiting += fences;
    return wait;
}

void mb__wait_drop(struct mb_vm *vm, struct mb__wait *wait)
{
    if (!wait)
        return;
    vm->fences_waiting -= wait->fences_max;
    free(wait);
}

void mb__wait_fence(struct mb__wait *wait, struct mb_hw_fence fence)
{
    wait->fences[wait->fences_left++] = fence;
}

static void finish(struct mb_vm *vm, struct mb__wait *wait)
{
    switch (wait->kind) {
    case MB__WAIT_FRAMES:
        mb__frames_passed(vm, wait->first, wait->count);
        break;
    case MB__WAIT_REFS:
        mb__refs_drop(vm, wait->pfns, wait->count);
        vm->pending_refs -= wait->count;
        vm->refs_gone++;
        break;
    case MB__WAIT_WINDOW:
        mb__window_passed(vm, wait->window);
        break;
    case MB__WAIT_FLUSH:
        mb__flush_passed(vm, wait->flush);
        break;
    }
    mb__wait_drop(vm, wait);
}

static struct mb__queue *queue_of(struct mb_vm *vm, struct mb_hw_stream *stream)
{
    for (size_t i = 0; i < vm->queues.count; i++) {
        if (vm->queues.data[i].stream == stream)
            return &vm->queues.data[i];
    }
    vm->queues.data[vm->queues.count] = (struct mb__queue){.stream = stream};
    return &vm->queues.data[vm->queues.count++];
}

/* Puts the wait where its last open fence belongs. */
static void enqueue(struct mb_vm *vm, struct mb__wait *wait)
{
    struct mb_hw_fence fence = wait->fences[wait->fences_left - 1];
    struct mb__queue *queue = queue_of(vm, fence.stream);
    struct mb__wait **link = &queue->head;

    /* Nearly always the latest ticket of its stream. */
    if (queue->tail && queue->tail->fences[queue->tail->fences_left - 1].seq <= fence.seq)
        link = &queue->tail->next;
    while (*link && (*link)->fences[(*link)->fences_left - 1].seq <= fence.seq)
        link = &(*link)->next;
    wait->next = *link;
    *link = wait;
    if (!wait->next)
        queue->tail = wait;
}

/* Drops fences that have passed; true: none is left. */
static bool advance(struct mb_vm *vm, struct mb__wait *wait)
{
    while (wait->fences_left && mb__fence_passed(vm, wait->fences[wait->fences_left - 1]))
        wait->fences_left--;
    return !wait->fences_left;
}

void mb__wait_start(struct mb_vm *vm, struct mb__wait *wait)
{
    bool early = MB__VM_MUTANT(MB_VM_FRAME_REUSED_BEFORE_FENCE) &&
                 (wait->kind == MB__WAIT_FRAMES || wait->kind == MB__WAIT_REFS);

    if (wait->kind == MB__WAIT_REFS)
        vm->pending_refs += wait->count;
    /* A flush finishes behind the windows that wait in front of it, even when it has passed
     * already. */
    if (early || (wait->kind == MB__WAIT_FLUSH ? !wait->fences_left : advance(vm, wait)))
        finish(vm, wait);
    else
        enqueue(vm, wait);
}

void mb__poll(struct mb_vm *vm)
{
    for (size_t i = 0; i < vm->queues.count;) {
        struct mb__wait *wait = vm->queues.data[i].head;

        if (!wait) {
            MB_VEC_SWAP_REMOVE(&vm->queues, i);
        } else if (!mb__fence_passed(vm, wait->fences[wait->fences_left - 1])) {
            i++;
        } else {
            vm->queues.data[i].head = wait->next;
            if (!wait->next)
                vm->queues.data[i].tail = NULL;
            if (advance(vm, wait))
                finish(vm, wait);
            else
                enqueue(vm, wait);
        }
    }
}

bool mb__wait_oldest(struct mb_vm *vm, bool any, struct mb_hw_fence *out)
{
    for (size_t i = 0; i < vm->queues.count; i++) {
        for (struct mb__wait *wait = vm->queues.data[i].head; wait; wait = wait->next) {
            if (!any && wait->kind != MB__WAIT_WINDOW && wait->kind != MB__WAIT_FLUSH)
                continue;
            *out = wait->fences[wait->fences_left - 1];
            return true;
        }
    }
    return false;
}
