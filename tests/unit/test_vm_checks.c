/* SPDX-License-Identifier: MIT */
/*
 * Each check of vm's invariants is shown to see what it is for: a sound record passes, one field is
 * changed behind vm's back, the check of that name reports it (and mb__vm_check with it), the field
 * is put back, everything passes again.
 */
#include "unit/test_vm.h"

struct scene {
    struct rig rig;
    struct mb_run run;  /* 16 frames, the first 8 mapped at va */
    struct mb_run gone; /* given back, its fence is open */
    mb_va va;
    struct mb__region *region;
    mb_pfn *slot_pfn;        /* of va */
    uint32_t *slot_window;   /* of va */
    uint8_t *slot_flags;     /* of va */
    struct mb__group *group; /* of va */
    struct mb__window *window;
    struct mb__frame *frame; /* shown at va */
};

typedef enum mb_err (*check_fn)(struct mb_vm *vm);

static struct scene set_up(enum mb_vm_policy policy)
{
    struct scene s = {.rig = rig_open((struct rig_config){.vm.policy = policy})};
    struct mb_run part;
    struct mb_hw_fence fence;
    uint32_t at;

    s.run = take(&s.rig, 16);
    s.gone = take(&s.rig, 5);
    /* The last frame of the second slab is free. */
    part = s.gone;
    part.home = mb__va_add(part.home, FRAMES(4));
    part.pfn = mb__home_pfn(s.rig.vm, part.home);
    part.frames = 1;
    CHECK_OK(mb__free_pfn(s.rig.vm, 1, part, NULL, 0));
    s.gone.frames = 4;
    s.va = window(&s.rig, 16);
    part = s.run;
    part.frames = 8;
    map_run(&s.rig, 0, s.va, part);
    CHECK_OK(mb__sim_sem_wait(s.rig.hw, s.rig.stream[0], 1, 1));
    /* Two waits: a run given back, and the references of an unmap. */
    fence = unmap(&s.rig, 0, mb__va_add(s.va, FRAMES(6)), 2);
    CHECK_OK(mb__free_pfn(s.rig.vm, 1, s.gone, &fence, 1));
    s.region = &s.rig.vm->region[MB__REGION_2M];
    at = (uint32_t)((s.va.addr - s.region->base.addr) >> MB_FRAME_SHIFT);
    s.slot_pfn = &s.region->slot.pfn[at];
    s.slot_window = &s.region->slot.window[at];
    s.slot_flags = &s.region->slot.flags[at];
    s.group = &s.region->group[at >> s.region->group_shift];
    s.window = s.rig.vm->windows.data[*s.slot_window];
    s.frame = mb__frame_at(s.rig.vm, mb__frame_of(s.run.pfn.n));
    rig_check(&s.rig);
    return s;
}

static void tear_down(struct scene *s)
{
    rig_check(&s->rig);
    mb__sim_sem_host(s->rig.hw, 1, 1);
    rig_check_tables(&s->rig);
    rig_judge(&s->rig);
    rig_close(&s->rig);
}

static void expect_report(struct scene *s, const char *name, check_fn check)
{
    struct mb_vm *vm = s->rig.vm;
    enum mb_err err;

    mb__lock(&vm->lock);
    err = check(vm);
    mb__unlock(&vm->lock);
    CHECK_EQ(err, MB_ERR_CORRUPT);
    if (strncmp(mb_error_detail(), name, strlen(name)) != 0)
        FAIL("%s should report, the text is: %s", name, mb_error_detail());
    CHECK_EQ(mb__vm_check(vm), MB_ERR_CORRUPT);
}

/* Changes a field, sees the report, puts the field back, sees none. */
#define BREAK(s, field, value, name, check)                                                        \
    do {                                                                                           \
        __typeof__(field) saved = (field);                                                         \
                                                                                                   \
        (field) = (__typeof__(field))(value);                                                      \
        expect_report((s), name, check);                                                           \
        (field) = saved;                                                                           \
        rig_check(&(s)->rig);                                                                      \
    } while (0)

TEST(frames)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;
    uint32_t *home = &vm->frame_home[mb__frame_of(s.run.pfn.n)];
    struct mb__home_page *page = &vm->homes[*home];

    BREAK(&s, *home, *home + 1, "frames", mb__check_frames);
    BREAK(&s, page->slab, 0, "frames", mb__check_frames);
    BREAK(&s, s.frame->owner, 0, "frames", mb__check_frames);
    BREAK(&s, s.frame->word, (s.frame->word & ~3u) | MB__FREE, "frames", mb__check_frames);
    mb__ranges_add(&vm->free, *home, 1);
    expect_report(&s, "frames", mb__check_frames);
    mb__ranges_cut(&vm->free, *home, 1);
    mb__ranges_add(&vm->holes, *home, 1);
    expect_report(&s, "frames", mb__check_frames);
    mb__ranges_cut(&vm->holes, *home, 1);
    BREAK(&s, vm->free.total, vm->free.total + 1, "frames", mb__check_frames);
    tear_down(&s);
}

TEST(accounts)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;

    BREAK(&s, vm->owned, vm->owned - 1, "accounts", mb__check_accounts);
    BREAK(&s, vm->draining, vm->draining + 1, "accounts", mb__check_accounts);
    BREAK(&s, vm->held, vm->held + 1, "accounts", mb__check_accounts);
    BREAK(&s, vm->slabs.data[1].free, vm->slabs.data[1].free + 1, "accounts", mb__check_accounts);
    BREAK(&s, vm->limit_bytes, FRAMES(1), "accounts", mb__check_accounts);
    tear_down(&s);
}

TEST(refs)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);

    /* A reference too many, one too few, an entry that nobody counted. */
    BREAK(&s, s.frame->word, s.frame->word + MB__REF, "refs", mb__check_refs);
    BREAK(&s, s.frame->word, s.frame->word - MB__REF, "refs", mb__check_refs);
    BREAK(&s, s.slot_pfn->n, s.slot_pfn->n + 3 * MB_FRAME_PFNS, "refs", mb__check_refs);
    BREAK(&s, s.slot_pfn->n, 1u << 30, "refs", mb__check_refs);
    tear_down(&s);
}

TEST(owned)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);

    BREAK(&s, s.frame->word, (s.frame->word & ~3u) | MB__FREE, "owned", mb__check_owned);
    BREAK(&s, s.slot_pfn->n, 1u << 30, "owned", mb__check_owned);
    tear_down(&s);
}

TEST(homes)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;

    BREAK(&s, vm->slabs.data[1].mapped, false, "homes", mb__check_homes);
    CHECK_OK(mb__vm_check(vm));
    vm->slabs.data[2].state = MB__SLAB_ZOMBIE;
    CHECK(vm->slabs.data[2].free);
    expect_report(&s, "homes", mb__check_homes);
    vm->slabs.data[2].state = MB__SLAB_LIVE;
    tear_down(&s);
}

TEST(windows)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;

    BREAK(&s, *s.slot_window, 0, "windows", mb__check_windows);
    BREAK(&s, *s.slot_flags, *s.slot_flags | MB__SLOT_TOUCHED, "windows", mb__check_windows);
    BREAK(&s, *s.slot_flags, 0, "windows", mb__check_windows);
    BREAK(&s, s.window->mapped, s.window->mapped + 1, "windows", mb__check_windows);
    BREAK(&s, s.window->state, MB__WINDOW_RETIRED, "windows", mb__check_windows);
    BREAK(&s, s.window->groups, s.window->groups + 1, "windows", mb__check_windows);
    BREAK(&s, vm->waiting_bytes, vm->waiting_bytes + 1, "windows", mb__check_windows);
    BREAK(&s, vm->retired_bytes, vm->retired_bytes + 1, "windows", mb__check_windows);
    mb__ranges_add(&s.region->clean, s.window->group, 1);
    expect_report(&s, "windows", mb__check_windows);
    mb__ranges_cut(&s.region->clean, s.window->group, 1);
    tear_down(&s);
}

TEST(groups)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);

    BREAK(&s, s.group->mapped, s.group->mapped + 1, "groups", mb__check_groups);
    BREAK(&s, s.group->flags, 0, "groups", mb__check_groups);
    BREAK(&s, (s.group + 1)->flags, 0, "groups", mb__check_groups);
    tear_down(&s);
}

/* What is to be handed out as fresh may not have been walked since the last flush. */
TEST(groups_of_fresh_addresses)
{
    struct scene s = set_up(MB_VM_POLICY_FRESH);
    mb_va va = window(&s.rig, 1);
    uint32_t at = (uint32_t)((va.addr - s.region->base.addr) >> MB_FRAME_SHIFT);
    struct mb__group *group = &s.region->group[at >> s.region->group_shift];

    CHECK_OK(mb__free_va(s.rig.vm, va, FRAMES(1)));
    mb__sim_sem_host(s.rig.hw, 1, 1);
    CHECK_OK(mb__vm_drain(s.rig.vm));
    BREAK(&s, group->flags, MB__GROUP_CACHED, "groups", mb__check_groups);
    tear_down(&s);
}

TEST(waits)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;
    struct mb__queue *queue = &vm->queues.data[0];
    struct mb__wait *head = queue->head, *second = head->next;

    CHECK_EQ(vm->queues.count, 1);
    CHECK(second);
    BREAK(&s, vm->fences_waiting, vm->fences_waiting + 1, "waits", mb__check_waits);
    BREAK(&s, vm->pending_refs, vm->pending_refs + 1, "waits", mb__check_waits);
    BREAK(&s, queue->tail, head, "waits", mb__check_waits);
    BREAK(&s, head->fences[0].seq, UINT64_MAX, "waits", mb__check_waits);
    BREAK(&s, queue->stream, NULL, "waits", mb__check_waits);
    tear_down(&s);
}

TEST(order)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);

    BREAK(&s, s.rig.vm->audit[0], 'x', "order", mb__check_order);
    tear_down(&s);
}

/* The tables are compared with the record, entry by entry: frame, access, and whether there is
 * one. */
TEST(tables)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;
    struct mb__home_page *page = &vm->homes[vm->frame_home[mb__frame_of(s.run.pfn.n)]];

    mb__sim_sem_host(s.rig.hw, 1, 1);
    rig_check_tables(&s.rig);
    s.slot_pfn->n += MB_FRAME_PFNS;
    CHECK_EQ(mb__vm_check_tables(vm), MB_ERR_CORRUPT);
    s.slot_pfn->n -= MB_FRAME_PFNS;
    *s.slot_flags ^= MB__SLOT_MAPPED;
    CHECK_EQ(mb__vm_check_tables(vm), MB_ERR_CORRUPT);
    *s.slot_flags ^= MB__SLOT_MAPPED;
    *s.slot_flags ^= (MB_PROT_READ ^ MB_PROT_READ_WRITE) << MB__SLOT_PROT_SHIFT;
    CHECK_EQ(mb__vm_check_tables(vm), MB_ERR_CORRUPT);
    *s.slot_flags ^= (MB_PROT_READ ^ MB_PROT_READ_WRITE) << MB__SLOT_PROT_SHIFT;
    s.slot_flags[12] |= MB__SLOT_MAPPED | MB__SLOT_PROT; /* a slot that nobody mapped */
    CHECK_EQ(mb__vm_check_tables(vm), MB_ERR_CORRUPT);
    s.slot_flags[12] = 0;
    page->frame++;
    CHECK_EQ(mb__vm_check_tables(vm), MB_ERR_CORRUPT);
    page->frame--;
    tear_down(&s);
}

/*
 * The audit: a finished list of commands with one command gone, or two exchanged. The batch is a
 * remap of one slot in a group that stays in use, the richest there is.
 */
static void audit_list(struct scene *s, unsigned gone, bool *reported, enum mb_hw_cmd_kind *kind)
{
    struct mb_vm *vm = s->rig.vm;
    struct mb_hw_cmd saved[16];
    size_t count = vm->batch.cmds.count;

    CHECK(count <= 16);
    memcpy(saved, vm->batch.cmds.data, count * sizeof(*saved));
    *kind = saved[gone].kind;
    memmove(vm->batch.cmds.data + gone, vm->batch.cmds.data + gone + 1,
            (count - gone - 1) * sizeof(*saved));
    vm->batch.cmds.count = count - 1;
    vm->audit[0] = 0;
    (void)mb__audit(vm);
    *reported = vm->audit[0] != 0;
    vm->audit[0] = 0;
    memcpy(vm->batch.cmds.data, saved, count * sizeof(*saved));
    vm->batch.cmds.count = count;
}

TEST(audit_misses_every_command_of_a_remap)
{
    struct scene s = set_up(MB_VM_POLICY_INLINE);
    struct mb_vm *vm = s.rig.vm;
    struct mb_run other = s.run;
    bool reported;
    enum mb_hw_cmd_kind kind;

    other.frames = 1;
    other.home = mb__va_add(s.run.home, FRAMES(10));
    map_run(&s.rig, 0, s.va, other);
    /* The list is still there; the record says what it led to. */
    CHECK_EQ(vm->batch.cmds.count, 7);
    vm->audit[0] = 0;
    CHECK_OK(mb__audit(vm));
    CHECK_EQ(vm->audit[0], 0);
    for (unsigned i = 0; i < 7; i++) {
        audit_list(&s, i, &reported, &kind);
        if (!reported)
            FAIL("command %u of kind %d is gone and the audit is content", i, (int)kind);
    }
    tear_down(&s);
}
