/* SPDX-License-Identifier: MIT */
/*
 * The audit log, as vm writes it (config: audit:PATH). Without a log every function does nothing.
 *
 *   frames   HOME and HOMELESS, TAKE and GIVE say who could have mapped a frame, and since when
 *   batches  what a batch will change is in the file before the batch is submitted, its outcome
 *            behind it. A batch whose plan cannot be written is not submitted.
 *   peers    what other devices were given, behind the call of the backend: an error would have to
 *            be told all the same, and a writer that dies takes its peers' mappings along
 *
 * A writer that dies between plan and outcome leaves a batch of which nobody knows whether the
 * device has executed it; readers say so.
 *
 * Locking   vm's lock.
 */
#include "base/err.h"
#include "base/journal.h"
#include "base/log.h"
#include "vm/internal.h"

enum mb_err mb__trail_open(struct mb_vm *vm)
{
    if (!vm->config.audit[0])
        return MB_OK;
    return mb__journal_open(vm->config.audit, vm->hw->caps.device_name, &vm->journal);
}

void mb__trail_close(struct mb_vm *vm, bool clean)
{
    if (vm->journal && clean)
        mb__journal_add(vm->journal, (struct mb_audit_record){.kind = MB_AUDIT_CLOSE});
    mb__journal_close(vm->journal);
    vm->journal = NULL;
}

/* Records that no call depends on: what cannot be written now stays for the next batch, which can
 * fail. */
static void flush(struct mb_vm *vm)
{
    if (mb__journal_flush(vm->journal))
        mb__log(MB_LOG_WARN, "vm", "%s", mb_error_detail());
}

void mb__trail_frames(struct mb_vm *vm, enum mb_audit_kind kind, uint32_t owner, uint32_t first,
                      uint32_t count)
{
    uint32_t at = first;

    if (!vm->journal)
        return;
    while (at < first + count) {
        uint32_t run = 1;

        while (at + run < first + count && vm->homes[at + run].frame == vm->homes[at].frame + run)
            run++;
        mb__journal_add(vm->journal, (struct mb_audit_record){
                                         .kind = kind,
                                         .owner = owner,
                                         .va = mb__slot_va(&vm->region[MB__REGION_HOME], at).addr,
                                         .bytes = run * MB_FRAME_BYTES,
                                         .phys = (uint64_t)vm->homes[at].frame << MB_FRAME_SHIFT});
        at += run;
    }
    flush(vm);
}

/* ------------------------------------------------------------ batches */

static uint32_t owner_of(const struct mb_vm *vm, uint32_t pfn)
{
    return mb__frame_at(vm, mb__frame_of(pfn))->owner;
}

/* One change of a batch; several that go on in addresses and frames are one. */
struct change {
    enum mb_audit_kind kind;
    enum mb_prot prot;
    uint32_t owner;
    uint64_t va, bytes, phys; /* bytes 0: none */
};

static struct change change(struct mb_vm *vm, const struct mb__region *region, uint32_t slot,
                            enum mb_audit_kind kind, mb_pfn pfn, enum mb_prot prot)
{
    return (struct change){kind,
                           prot,
                           owner_of(vm, pfn.n),
                           mb__slot_va(region, slot).addr,
                           UINT64_C(1) << region->leaf_shift,
                           mb__phys_of_pfn(pfn)};
}

static void add(struct mb_vm *vm, const struct change *change)
{
    if (change->bytes)
        mb__journal_add(vm->journal, (struct mb_audit_record){.kind = change->kind,
                                                              .prot = change->prot,
                                                              .batch = vm->batch.number,
                                                              .owner = change->owner,
                                                              .va = change->va,
                                                              .bytes = change->bytes,
                                                              .phys = change->phys});
}

/* Joins the change to the one before it, or adds that one. */
static void join(struct mb_vm *vm, struct change *last, struct change next)
{
    if (last->phys + last->bytes == next.phys && last->va + last->bytes == next.va && last->bytes &&
        last->kind == next.kind && last->prot == next.prot && last->owner == next.owner) {
        last->bytes += next.bytes;
        return;
    }
    add(vm, last);
    *last = next;
}

/* Slot `k` of a stretch of the log. */
static void add_slot(struct mb_vm *vm, const struct mb__log *log, uint32_t k, bool old,
                     struct change *last)
{
    const struct mb__region *region = &vm->region[log->region];
    uint32_t slot = log->slot + k;
    bool was = log->old_flags & MB__SLOT_MAPPED;
    bool now = region->slot.flags[slot] & MB__SLOT_MAPPED;
    mb_pfn before = was ? vm->batch.old_pfns.data[log->old + k] : MB_NO_PFN;
    mb_pfn after = region->slot.pfn[slot];
    bool same = was && now && mb__pfn_eq(before, after);
    enum mb_prot prot = mb__slot_prot(region->slot.flags[slot]);

    if (old && was && !same)
        join(vm, last, change(vm, region, slot, MB_AUDIT_UNMAP, before, MB_PROT_NONE));
    else if (!old && now && !same)
        join(vm, last, change(vm, region, slot, MB_AUDIT_MAP, after, prot));
    else if (!old && same && prot != mb__slot_prot(log->old_flags))
        join(vm, last, change(vm, region, slot, MB_AUDIT_PROTECT, after, prot));
}

static void add_changes(struct mb_vm *vm, bool old)
{
    struct change last = {.bytes = 0};

    for (size_t i = 0; i < vm->batch.log.count; i++) {
        const struct mb__log *log = &vm->batch.log.data[i];

        for (uint32_t k = 0; k < log->count; k++)
            add_slot(vm, log, k, old, &last);
    }
    add(vm, &last);
}

enum mb_err mb__trail_plan(struct mb_vm *vm)
{
    struct mb__journal_mark mark;
    enum mb_err err;

    if (!vm->journal)
        return MB_OK;
    mark = mb__journal_mark(vm->journal);
    add_changes(vm, true);
    add_changes(vm, false);
    err = mb__journal_flush(vm->journal);
    if (err)
        mb__journal_rewind(vm->journal, &mark);
    return err;
}

void mb__trail_outcome(struct mb_vm *vm, bool done)
{
    if (!vm->journal)
        return;
    mb__journal_add(vm->journal,
                    (struct mb_audit_record){.kind = done ? MB_AUDIT_DONE : MB_AUDIT_UNDONE,
                                             .batch = vm->batch.number});
    flush(vm);
}

void mb__trail_repair(struct mb_vm *vm, mb_va va, uint32_t pfn, uint64_t bytes)
{
    if (!vm->journal)
        return;
    mb__journal_add(vm->journal, (struct mb_audit_record){.kind = MB_AUDIT_REPAIR,
                                                          .owner = owner_of(vm, pfn),
                                                          .va = va.addr,
                                                          .bytes = bytes,
                                                          .phys = mb__phys_of_pfn((mb_pfn){pfn})});
    flush(vm);
}

/* Pages [at, at + run) of the area show frames that follow each other. */
static uint32_t run_at(struct mb_vm *vm, mb_va va, uint32_t at, uint32_t count, mb_pfn *first)
{
    uint32_t run = 1;

    *first = mb__vm_lookup(vm, mb__va_add(va, at * MB_FRAME_BYTES));
    while (at + run < count) {
        mb_pfn next = mb__vm_lookup(vm, mb__va_add(va, (at + run) * MB_FRAME_BYTES));

        if (mb__phys_of_pfn(next) != mb__phys_of_pfn(*first) + run * MB_FRAME_BYTES)
            break;
        run++;
    }
    return run;
}

void mb__vm_trail_peer(struct mb_vm *vm, mb_va va, uint32_t count, int peer, enum mb_prot prot)
{
    if (!vm->journal)
        return;
    for (uint32_t at = 0, run; at < count; at += run) {
        mb_pfn first;

        run = run_at(vm, va, at, count, &first);
        if (mb__pfn_eq(first, MB_NO_PFN))
            continue;
        mb__lock(&vm->lock);
        mb__journal_add(vm->journal,
                        (struct mb_audit_record){.kind = MB_AUDIT_PEER,
                                                 .prot = prot,
                                                 .owner = owner_of(vm, first.n),
                                                 .stream = (uint64_t)peer,
                                                 .va = mb__va_add(va, at * MB_FRAME_BYTES).addr,
                                                 .bytes = run * MB_FRAME_BYTES,
                                                 .phys = mb__phys_of_pfn(first)});
        mb__unlock(&vm->lock);
    }
    mb__lock(&vm->lock);
    flush(vm);
    mb__unlock(&vm->lock);
}
