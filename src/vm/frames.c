/* SPDX-License-Identifier: MIT */
/*
 * alloc_pfn: handing out and taking back frames.
 *
 *     FREE --alloc_pfn--> OWNED --free_pfn--> DRAINING --fences passed, no window names it--> FREE
 *
 * Free frames are kept as runs of home pages, joined with their neighbours, by place and by size.
 * Best fit by exact size takes the place of a buddy system's powers of two: the cost is O(log n) as
 * well, a request of any number of frames wastes none, and two runs join whatever their alignment.
 *
 * A frame's references are the entries that name it: its home entry and one per window slot. They
 * are counted when a batch is planned and dropped when its fence has passed.
 *
 * Locking   vm's lock.
 * Trade-off State is kept per frame, not per run, since aliases and partial frees act on single
 *           frames; a pass over 1,024 frames (2 GB) is about a microsecond.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sys/mman.h>

#include "base/err.h"
#include "vm/internal.h"

/*
 * One array for every frame that a pfn can name, of which the kernel makes the pages that are used:
 * a record is found by a shift, and nothing is looked up before it. On huge pages once much is
 * held, since scattered frames touch a small page each; one holds the records of 512 GiB. Not
 * before: clearing a huge page takes longer than all else that a first allocation does.
 */
static const size_t HUGE_PAGE = 2 << 20;
enum { HUGE_FROM_FRAMES = 512 }; /* 1 GiB, which takes the driver milliseconds */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; before, the kernel does it by and by */
#endif
static const size_t RECORDS = MB__FRAMES * sizeof(struct mb__frame);
static const size_t HOMES = MB__FRAMES * sizeof(uint32_t);

enum mb_err mb__frames_open(struct mb_vm *vm)
{
    char *memory = mmap(NULL, RECORDS + HOMES + HUGE_PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    size_t skip = (HUGE_PAGE - (uintptr_t)memory % HUGE_PAGE) % HUGE_PAGE;

    if (memory == MAP_FAILED)
        return mb__no_host_memory("the records of frames");
    if (skip)
        munmap(memory, skip);
    if (skip < HUGE_PAGE)
        munmap(memory + skip + RECORDS + HOMES, HUGE_PAGE - skip);
    vm->frames = (struct mb__frame *)(void *)(memory + skip);
    vm->frame_home = (uint32_t *)(void *)(memory + skip + RECORDS);
    return MB_OK;
}

/* Small pages serve as well, so nobody hears of a failure. */
void mb__frames_grown(struct mb_vm *vm)
{
    const size_t per_page = HUGE_PAGE / sizeof(*vm->frames);

    if (vm->frames_huge || vm->held < HUGE_FROM_FRAMES)
        return;
    vm->frames_huge = true;
    (void)madvise(vm->frames, RECORDS, MADV_HUGEPAGE);
    for (size_t id = 1, last = SIZE_MAX; id < vm->slabs.count; id++) {
        const struct mb__slab *slab = &vm->slabs.data[id];
        size_t page = vm->homes[slab->first].frame / per_page;

        if (slab->state == MB__SLAB_UNUSED || page == last)
            continue;
        (void)madvise(vm->frames + page * per_page, HUGE_PAGE, MADV_COLLAPSE);
        last = page;
    }
}

void mb__frames_close(struct mb_vm *vm)
{
    if (vm->frames)
        munmap(vm->frames, RECORDS + HOMES);
}

static void set_state(struct mb__frame *frame, enum mb__frame_state state)
{
    frame->word = (frame->word & ~(uint32_t)MB__STATE) | (uint32_t)state;
}

static enum mb__frame_state state_of(const struct mb__frame *frame)
{
    return (enum mb__frame_state)(frame->word & MB__STATE);
}

/* Home page of an address, or UINT32_MAX outside the home space. */
static uint32_t page_of(const struct mb_vm *vm, mb_va va)
{
    const struct mb__region *home = &vm->region[MB__REGION_HOME];

    if (!mb__region_has(home, va))
        return UINT32_MAX;
    return (uint32_t)((va.addr - home->base.addr) >> MB_FRAME_SHIFT);
}

/* Slabs' counts of free frames follow a run that changes between FREE and another state. */
void mb__frame_counts(struct mb_vm *vm, uint32_t first, uint32_t count, bool become_free)
{
    for (uint32_t end = first + count; first < end;) {
        struct mb__slab *slab = &vm->slabs.data[vm->homes[first].slab];
        uint32_t stop = slab->first + slab->frames < end ? slab->first + slab->frames : end;

        if (become_free)
            slab->free += stop - first;
        else
            slab->free -= stop - first;
        first = stop;
    }
}

void mb__frames_free(struct mb_vm *vm, uint32_t first, uint32_t count)
{
    for (uint32_t page = first; page < first + count; page++)
        set_state(mb__frame_at(vm, vm->homes[page].frame), MB__FREE);
    mb__ranges_add(&vm->free, first, count);
    mb__frame_counts(vm, first, count, true);
    vm->draining -= count;
}

void mb__frames_passed(struct mb_vm *vm, uint32_t first, uint32_t count)
{
    uint32_t end = first + count;

    while (first < end) {
        uint32_t page = first;

        for (; page < end; page++) {
            struct mb__frame *frame = mb__frame_at(vm, vm->homes[page].frame);

            frame->word &= ~(uint32_t)MB__FENCED;
            if (mb__frame_refs(frame) != 1)
                break;
        }
        if (page > first)
            mb__frames_free(vm, first, page - first);
        first = page + 1;
    }
}

static uint32_t reference(void)
{
    return MB__VM_MUTANT(MB_VM_ALIAS_COUNT_NOT_TAKEN) ? 0 : MB__REF;
}

/* Whose capability it is; 0: not that of the frame's owner. */
static uint32_t owner_of(struct mb_vm *vm, const struct mb__frame *frame, uint64_t cap)
{
    if (cap == vm->last_cap && vm->last_owner)
        return vm->last_owner;
    if (!frame->owner || mb__owner_cap(vm, frame->owner) != cap)
        return 0;
    vm->last_cap = cap;
    vm->last_owner = frame->owner;
    return frame->owner;
}

/* A reference for each, right or wrong; returns whether they were all right. */
static bool count_up(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count, uint32_t leaf_mask,
                     uint32_t owner)
{
    const uint32_t step = reference();
    uint32_t words = 0, bits = 0, other = 0;

    _Static_assert((uint64_t)MB__REFS_MAX * MB__REF == UINT64_C(1) << 31, "full: the highest bit");
#pragma GCC unroll 4
    for (uint32_t i = 0; i < count; i++) {
        struct mb__frame *frame = mb__frame_at(vm, mb__frame_of(pfns[i].n));

        bits |= pfns[i].n;
        other |= frame->owner ^ owner;
        words |= frame->word;
        frame->word += step;
    }
    return !other && !(bits & leaf_mask) && !(words >> 31);
}

/* Takes back what count_up() did, and goes up to the frame that is wrong. */
static uint32_t take_good(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count, uint32_t leaf_mask,
                          uint32_t owner)
{
    for (uint32_t i = 0; i < count; i++)
        mb__frame_at(vm, mb__frame_of(pfns[i].n))->word -= reference();
    for (uint32_t i = 0;; i++) {
        struct mb__frame *frame = mb__frame_at(vm, mb__frame_of(pfns[i].n));

        if (pfns[i].n & leaf_mask || frame->owner != owner || mb__frame_refs(frame) >= MB__REFS_MAX)
            return i;
        frame->word += reference();
    }
}

uint32_t mb__refs_take(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count, uint32_t leaf_mask,
                       uint64_t cap)
{
    uint32_t owner = owner_of(vm, mb__frame_at(vm, mb__frame_of(pfns[0].n)), cap);

    if (!owner)
        return 0;
    return count_up(vm, pfns, count, leaf_mask, owner)
               ? count
               : take_good(vm, pfns, count, leaf_mask, owner);
}

/* Only a frame that is not OWNED can come free, so mostly none is looked at again. */
void mb__refs_drop(struct mb_vm *vm, const mb_pfn *pfns, uint32_t count)
{
    const uint32_t home_only = (uint32_t)MB__DRAINING | (uint32_t)MB__REF; /* and no fence */
    uint32_t words = 0;

    _Static_assert((MB__OWNED & 1) == 0 && (MB__DRAINING & 1) == 1, "told apart by one bit");
    if (MB__VM_MUTANT(MB_VM_ALIAS_COUNT_NOT_TAKEN))
        return;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < count; i++) {
        struct mb__frame *frame = mb__frame_at(vm, mb__frame_of(pfns[i].n));

        frame->word -= MB__REF;
        words |= frame->word;
    }
    for (uint32_t i = 0; words & 1 && i < count; i++) {
        uint32_t frame = mb__frame_of(pfns[i].n);

        if (mb__frame_at(vm, frame)->word == home_only)
            mb__frames_free(vm, vm->frame_home[frame], 1);
    }
}

/* ------------------------------------------------------------ alloc */

static bool take(struct mb_vm *vm, uint32_t first, uint32_t count)
{
    if (!MB_VEC_PUSH(&vm->taken, ((struct mb__span){first, count})))
        return false;
    mb__ranges_cut(&vm->free, first, count);
    return true;
}

static void untake(struct mb_vm *vm)
{
    for (size_t i = 0; i < vm->taken.count; i++)
        mb__ranges_add(&vm->free, vm->taken.data[i].first, vm->taken.data[i].count);
    vm->taken.count = 0;
}

/*
 * Moves runs from the pool to `taken`: the smallest run that holds everything, else the largest
 * runs and, for what is left, the smallest that holds it. False: it cannot be done; nothing is
 * taken.
 */
static bool take_runs(struct mb_vm *vm, uint32_t frames, unsigned flags, unsigned capacity)
{
    struct mb__span span;

    vm->taken.count = 0;
    if ((flags & MB_PFN_CONTIGUOUS) || frames > vm->free.total)
        capacity = mb__ranges_best(&vm->free, frames, &span) ? 1 : 0;
    while (frames && vm->taken.count < capacity) {
        if (!mb__ranges_best(&vm->free, frames, &span) &&
            !mb__ranges_larger_first(&vm->free, NULL, &span))
            break;
        if (span.count > frames)
            span.count = frames;
        if (!take(vm, span.first, span.count))
            break;
        frames -= span.count;
    }
    if (frames)
        untake(vm);
    return !frames;
}

/* How many frames the largest runs hold together. */
static uint32_t in_largest_runs(const struct mb_vm *vm, unsigned runs)
{
    struct mb__span span;
    uint32_t sum = 0;

    for (bool more = mb__ranges_larger_first(&vm->free, NULL, &span); more && runs; runs--) {
        sum += span.count;
        more = mb__ranges_larger_first(&vm->free, &span, &span);
    }
    return sum;
}

/*
 * Where new slabs go, and how many frames they must have: all of `frames`, or, with `join`, what is
 * missing so that one run of `frames` arises together with the free frames that end where the hole
 * begins. The hole that needs fewest wins, the lowest among equals.
 */
static bool find_home(const struct mb_vm *vm, uint32_t frames, bool join, bool high, uint32_t *at,
                      uint32_t *need, uint32_t *room)
{
    struct mb__span hole, run;
    uint32_t best = UINT32_MAX;

    for (uint32_t from = 0; mb__ranges_from(&vm->holes, from, &hole);
         from = hole.first + hole.count) {
        uint32_t joins = 0, grow;

        if (high && hole.first + hole.count != vm->home_pages)
            continue;
        if (join && hole.first && mb__ranges_at(&vm->free, hole.first - 1, &run))
            joins = run.count < frames ? run.count : frames - 1;
        grow = frames - joins;
        if (grow > hole.count || grow >= best)
            continue;
        best = grow;
        *at = hole.first;
        *need = grow;
        *room = hole.count;
    }
    return best != UINT32_MAX;
}

static enum mb_err no_room(const struct mb_vm *vm, uint32_t frames)
{
    return mb__fail(MB_ERR_NO_ADDRESS,
                    "no hole of %u frames in the home space of %" PRIu64 " MiB; open with more "
                    "home_space or trim",
                    frames, (uint64_t)vm->home_pages * 2);
}

static enum mb_err over_limit(const struct mb_vm *vm, uint32_t need, uint32_t left)
{
    bool configured = vm->config.limit_bytes && vm->config.limit_bytes <= vm->hw->caps.total_bytes;

    return mb__fail(configured ? MB_ERR_LIMIT : MB_ERR_NO_MEMORY,
                    "%u more frames of 2 MiB are needed, %u may still be taken (%s of %" PRIu64
                    " MiB, %u MiB held, %u MiB of them free, %u MiB draining); free or trim",
                    need, left, configured ? "limit" : "device memory", vm->limit_bytes >> 20,
                    vm->held * 2, vm->free.total * 2, vm->draining * 2);
}

/*
 * What the rounding leaves unused at a peak is less than 1/STEP_SHARE of what is held. A slab costs
 * a call of the driver whatever its size, so who holds much takes large ones: STEP_SHARE of them at
 * most each time that it doubles. The first is a whole step, for backends to prime windows with.
 */
uint32_t mb__step_frames(const struct mb_vm *vm)
{
    enum { STEP_SHARE = 640 };
    uint32_t most = (uint32_t)(vm->hw->caps.slab_step_bytes >> MB_FRAME_SHIFT), step = 1;

    most = most ? most : 1;
    if (!vm->held)
        return most;
    while (step * 2 <= most && step * 2 <= vm->held / STEP_SHARE)
        step *= 2;
    return step;
}

uint64_t mb__vm_step(struct mb_vm *vm)
{
    uint64_t bytes;

    mb__lock(&vm->lock);
    bytes = mb__step_frames(vm) * MB_FRAME_BYTES;
    mb__unlock(&vm->lock);
    return bytes;
}

/* Takes slabs so that take_runs() can succeed afterwards. */
static enum mb_err grow_for(struct mb_vm *vm, uint32_t frames, unsigned flags, unsigned capacity)
{
    uint32_t left, back = 0, step = mb__step_frames(vm);
    bool one = (flags & MB_PFN_CONTIGUOUS) || capacity == 1;
    uint32_t ask = one ? frames : frames - in_largest_runs(vm, capacity - 1);
    uint32_t at = 0, need = 0, room = 0, want;

    /* What an earlier failure left half-way counts as held until it has gone back. */
    mb__zombies_retry(vm, &back);
    left = (uint32_t)(vm->limit_bytes >> MB_FRAME_SHIFT) - vm->held;
    /* Pieces of the pool are part of a non-contiguous request; the new frames are one run more. */
    if (!find_home(vm, ask, one, flags & MB_PFN_NEAR_HIGH, &at, &need, &room))
        return no_room(vm, ask);
    if (need > left)
        return over_limit(vm, need, left);
    want = (need + step - 1) / step * step;
    if (want > left)
        want = left;
    if (want > room)
        want = room;
    return mb__grow(vm, at, need, want);
}

static void hand_out(struct mb_vm *vm, uint32_t owner, struct mb_run *runs, unsigned *count)
{
    for (size_t i = 0; i < vm->taken.count; i++) {
        struct mb__span span = vm->taken.data[i];

        for (uint32_t page = span.first; page < span.first + span.count; page++) {
            struct mb__frame *frame = mb__frame_at(vm, vm->homes[page].frame);

            frame->owner = owner;
            set_state(frame, MB__OWNED);
        }
        mb__frame_counts(vm, span.first, span.count, false);
        mb__trail_frames(vm, MB_AUDIT_TAKE, owner, span.first, span.count);
        vm->owned += span.count;
        runs[i].home = mb__slot_va(&vm->region[MB__REGION_HOME], span.first);
        runs[i].pfn.n = vm->homes[span.first].frame << MB__FRAME_PFN_BITS;
        runs[i].frames = span.count;
    }
    *count = (unsigned)vm->taken.count;
    vm->taken.count = 0;
}

static enum mb_err alloc_locked(struct mb_vm *vm, uint32_t owner, uint32_t frames, unsigned flags,
                                struct mb_run *runs, unsigned capacity, unsigned *count)
{
    enum mb_err err = mb__vm_usable(vm);

    if (err)
        return err;
    mb__poll(vm);
    if (!take_runs(vm, frames, flags, capacity)) {
        if (flags & MB_PFN_NO_GROW) {
            if (frames <= vm->free.total && !(flags & MB_PFN_CONTIGUOUS))
                return mb__fail(MB_ERR_INVALID,
                                "%u free frames lie in more than %u runs; give room "
                                "for more",
                                frames, capacity);
            return mb__fail(MB_ERR_NO_MEMORY,
                            "the pool has %u free frames, %u wanted%s, and the call "
                            "forbids to take slabs",
                            vm->free.total, frames, flags & MB_PFN_CONTIGUOUS ? " in one run" : "");
        }
        err = grow_for(vm, frames, flags, capacity);
        if (err)
            return err;
        if (!take_runs(vm, frames, flags, capacity))
            return mb__no_host_memory("the list of runs");
    }
    hand_out(vm, owner, runs, count);
    return MB_OK;
}

enum mb_err mb__alloc_pfn(struct mb_vm *vm, uint32_t owner, uint32_t frames, unsigned flags,
                          struct mb_run *runs, unsigned capacity, unsigned *count)
{
    enum mb_err err;

    if (!frames || !capacity || !owner)
        return mb__fail(MB_ERR_INVALID,
                        "alloc_pfn of %u frames into %u runs for owner %u; all three "
                        "must be at least 1",
                        frames, capacity, owner);
    mb__lock(&vm->lock);
    err = alloc_locked(vm, owner, frames, flags, runs, capacity, count);
    mb__unlock(&vm->lock);
    return err;
}

/* ------------------------------------------------------------ free */

static enum mb_err check_run(struct mb_vm *vm, uint32_t owner, struct mb_run run)
{
    uint32_t first = page_of(vm, run.home);

    if (!run.frames || first == UINT32_MAX || run.home.addr % MB_FRAME_BYTES ||
        run.frames > vm->home_pages - first)
        return mb__fail(MB_ERR_NOT_FOUND,
                        "free_pfn of %u frames at home %#" PRIx64 ": that is no run of "
                        "this vm",
                        run.frames, run.home.addr);
    for (uint32_t page = first; page < first + run.frames; page++) {
        const struct mb__home_page *home = &vm->homes[page];
        const struct mb__frame *frame;

        if (!home->slab)
            return mb__fail(MB_ERR_NOT_FOUND, "free_pfn: home page %u of the run holds no frame",
                            page - first);
        frame = mb__frame_at(vm, home->frame);
        if (state_of(frame) != MB__OWNED)
            return mb__fail(MB_ERR_DOUBLE_FREE,
                            "free_pfn: frame %u of the run was given back before", page - first);
        if (frame->owner != owner)
            return mb__fail(MB_ERR_INVALID,
                            "free_pfn: frame %u of the run belongs to owner %u, not %u",
                            page - first, frame->owner, owner);
    }
    return MB_OK;
}

static enum mb_err free_locked(struct mb_vm *vm, uint32_t owner, struct mb_run run,
                               const struct mb_hw_fence *fences, unsigned count)
{
    enum mb_err err = check_run(vm, owner, run);
    uint32_t first = page_of(vm, run.home);
    struct mb__wait *wait;

    if (err)
        return err;
    /* Without fences a free needs nothing, so that whoever has no other way can count on it. */
    wait = count ? mb__wait_new(vm, MB__WAIT_FRAMES, count, 0) : NULL;
    if (count && !wait)
        return MB_ERR_HOST_MEMORY;
    for (unsigned i = 0; i < count; i++)
        mb__wait_fence(wait, fences[i]);
    if (wait) {
        wait->first = first;
        wait->count = run.frames;
    }
    for (uint32_t page = first; page < first + run.frames; page++) {
        struct mb__frame *frame = mb__frame_at(vm, vm->homes[page].frame);

        frame->owner = 0;
        set_state(frame, MB__DRAINING);
        frame->word |= MB__FENCED;
    }
    mb__trail_frames(vm, MB_AUDIT_GIVE, owner, first, run.frames);
    vm->owned -= run.frames;
    vm->draining += run.frames;
    if (wait)
        mb__wait_start(vm, wait);
    else
        mb__frames_passed(vm, first, run.frames);
    return MB_OK;
}

enum mb_err mb__free_pfn(struct mb_vm *vm, uint32_t owner, struct mb_run run,
                         const struct mb_hw_fence *fences, unsigned count)
{
    enum mb_err err;

    mb__lock(&vm->lock);
    mb__poll(vm);
    err = free_locked(vm, owner, run, fences, count);
    mb__unlock(&vm->lock);
    return err;
}

/* ------------------------------------------------------------ trim, queries */

enum mb_err mb__vm_trim(struct mb_vm *vm, uint64_t keep_bytes, uint64_t *released)
{
    uint64_t keep = keep_bytes >> MB_FRAME_SHIFT;
    uint32_t frames = 0;
    enum mb_err err;

    mb__lock(&vm->lock);
    err = mb__vm_usable(vm);
    if (!err) {
        mb__poll(vm);
        err = mb__trim(vm, keep < vm->held ? (uint32_t)keep : vm->held, &frames);
    }
    if (!err && released)
        *released = frames * MB_FRAME_BYTES;
    mb__unlock(&vm->lock);
    return err;
}

mb_va mb__pfn_home(struct mb_vm *vm, mb_pfn pfn)
{
    uint32_t n = mb__frame_of(pfn.n);
    mb_va va = MB_NO_VA;

    mb__lock(&vm->lock);
    if (state_of(mb__frame_at(vm, n)) != MB__NONE)
        va = mb__va_add(mb__slot_va(&vm->region[MB__REGION_HOME], vm->frame_home[n]),
                        (uint64_t)(pfn.n % MB_FRAME_PFNS) << MB_PFN_SHIFT);
    mb__unlock(&vm->lock);
    return va;
}

mb_pfn mb__home_pfn(struct mb_vm *vm, mb_va va)
{
    mb_pfn pfn = MB_NO_PFN;

    (void)mb__home_pfns(vm, (mb_va){va.addr & ~(MB_FRAME_BYTES - 1)}, 1, &pfn);
    return pfn;
}

enum mb_err mb__home_pfns(struct mb_vm *vm, mb_va va, uint32_t frames, mb_pfn *out)
{
    uint32_t first = page_of(vm, va), bad = 0;
    enum mb_err err = MB_OK;

    if (first == UINT32_MAX || frames > vm->home_pages - first)
        return mb__fail(MB_ERR_NOT_FOUND, "%u pages at %#" PRIx64 " are not in the home space",
                        frames, va.addr);
    mb__lock(&vm->lock);
    while (bad < frames && vm->homes[first + bad].slab)
        bad++;
    if (bad < frames)
        err = mb__fail(MB_ERR_NOT_FOUND, "home page %u of %u at %#" PRIx64 " holds no frame", bad,
                       frames, va.addr);
    for (uint32_t i = 0; !err && i < frames; i++)
        out[i].n = vm->homes[first + i].frame << MB__FRAME_PFN_BITS;
    mb__unlock(&vm->lock);
    return err;
}

static void look_at(struct mb_vm *vm, const struct mb__region *region, mb_va va, uint32_t count,
                    struct mb_vm_look *out)
{
    const mb_pfn *pfns = region ? region->slot.pfn + mb__slot_at(region, va) : NULL;
    uint32_t page = region ? 0 : page_of(vm, va), before = 0;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t n = pfns ? mb__frame_of(pfns[i].n) : vm->homes[page + i].frame;
        const struct mb__frame *frame = mb__frame_at(vm, n);
        uint32_t refs = state_of(frame) == MB__OWNED ? mb__frame_refs(frame) : 0;

        out->refs_high = refs > out->refs_high ? refs : out->refs_high;
        out->in_a_row &= !i || n == before + 1;
        before = n;
    }
}

void mb__vm_look(struct mb_vm *vm, mb_va va, uint32_t count, struct mb_vm_look *out)
{
    mb__lock(&vm->lock);
    *out = (struct mb_vm_look){.changes = vm->batch.number + vm->refs_gone + 1, .in_a_row = true};
    look_at(vm, mb__window_region(vm, va), va, count, out);
    mb__unlock(&vm->lock);
}

uint64_t mb__vm_changes(struct mb_vm *vm)
{
    uint64_t changes;

    mb__lock(&vm->lock);
    changes = vm->batch.number + vm->refs_gone + 1;
    mb__unlock(&vm->lock);
    return changes;
}

uint32_t mb__pfn_refs(struct mb_vm *vm, mb_pfn pfn)
{
    const struct mb__frame *frame;
    uint32_t refs = 0;

    mb__lock(&vm->lock);
    frame = mb__frame_at(vm, mb__frame_of(pfn.n));
    if (state_of(frame) == MB__OWNED)
        refs = mb__frame_refs(frame);
    mb__unlock(&vm->lock);
    return refs;
}
