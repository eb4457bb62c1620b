/* SPDX-License-Identifier: MIT */
/*
 * Slabs: frames taken from the driver and given back, and the homes at which they are mapped.
 *
 * Growth takes slabs at consecutive homes, so that their free frames join into one run. Where the
 * driver maps homes it does so inside slab_acquire; elsewhere the leaves are written here, on the
 * internal stream, and the host waits for them: a home is usable by any stream at once. Home slots
 * are written when a slab comes and when it goes, never in between.
 *
 * A slab goes back in three steps: its frames leave the pool, its home entries are cleared and
 * invalidated (the host waits), the driver takes it. When a step fails whose effect cannot be taken
 * back, the slab becomes a zombie: nobody gets its frames, they count as draining, and the next
 * trim tries again.
 *
 * Locking   vm's lock. The waits are for the internal stream, which waits for nobody.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/log.h"
#include "vm/internal.h"

static uint32_t slab_frame(const struct mb_hw_slab *hw, uint32_t i)
{
    return hw->pfns ? mb__frame_of(hw->pfns[i].n) : mb__frame_of(hw->first.n) + i;
}

static uint64_t slab_bytes(const struct mb__slab *slab)
{
    return slab->frames * MB_FRAME_BYTES;
}

/* Tells the software GPU's oracle what homes show; a no-op on hardware. */
static void intend_home(struct mb_vm *vm, const struct mb__slab *slab, bool mapped)
{
    const struct mb_hw_ops *ops = vm->hw->ops;
    mb_va va = mb__slot_va(&vm->region[MB__REGION_HOME], slab->first);

    if (!ops->intend)
        return;
    if (!mapped) {
        ops->intend(vm->hw, va, slab->frames, MB_FRAME_SHIFT, NULL);
        return;
    }
    for (uint32_t i = 0; i < slab->frames; i++) {
        mb_pfn pfn = {slab_frame(&slab->hw, i) << MB__FRAME_PFN_BITS};

        ops->intend(vm->hw, mb__va_add(va, i * MB_FRAME_BYTES), 1, MB_FRAME_SHIFT, &pfn);
    }
}

/* ------------------------------------------------------------ the record of a slab */

/* What the driver gave must be whole frames that nobody holds yet. */
static enum mb_err check_slab(struct mb_vm *vm, const struct mb_hw_slab *hw, uint64_t bytes)
{
    if (hw->frames * MB_FRAME_BYTES != bytes)
        return mb__fail(MB_ERR_DRIVER,
                        "asked the driver for a slab of %" PRIu64 " MiB, got %u frames "
                        "of 2 MiB",
                        bytes >> 20, hw->frames);
    for (uint32_t i = 0; i < hw->frames; i++) {
        uint32_t n = slab_frame(hw, i);

        if ((hw->pfns ? hw->pfns[i].n : hw->first.n) % MB_FRAME_PFNS)
            return mb__fail(MB_ERR_DRIVER, "the driver's slab is not aligned to 2 MiB");
        if (n >= MB__FRAMES)
            return mb__fail(MB_ERR_DRIVER,
                            "the driver gave frame %#x; an entry can name those below %#x", n,
                            (unsigned)MB__FRAMES);
        if ((mb__frame_at(vm, n)->word & MB__STATE) != MB__NONE)
            return mb__fail(MB_ERR_DRIVER, "the driver gave frame %u twice", n);
    }
    return MB_OK;
}

/* Enters the slab: frames are DRAINING with their home as only reference, until grow() frees
 * them. */
static void enter(struct mb_vm *vm, uint32_t id)
{
    struct mb__slab *slab = &vm->slabs.data[id];

    mb__ranges_cut(&vm->holes, slab->first, slab->frames);
    for (uint32_t i = 0; i < slab->frames; i++) {
        struct mb__home_page *page = &vm->homes[slab->first + i];

        *page = (struct mb__home_page){.frame = slab_frame(&slab->hw, i), .slab = id};
        *mb__frame_at(vm, page->frame) =
            (struct mb__frame){.word = MB__DRAINING | (slab->mapped ? MB__REF : 0)};
        vm->frame_home[page->frame] = slab->first + i;
    }
    vm->held += slab->frames;
    vm->draining += slab->frames;
}

static void set_mapped(struct mb_vm *vm, struct mb__slab *slab, bool mapped)
{
    if (slab->mapped == mapped)
        return;
    slab->mapped = mapped;
    for (uint32_t i = 0; i < slab->frames; i++) {
        struct mb__frame *frame = mb__frame_at(vm, slab_frame(&slab->hw, i));

        if (mapped)
            frame->word += MB__REF;
        else
            frame->word -= MB__REF;
    }
}

/* The driver has it back. */
static void leave(struct mb_vm *vm, struct mb__slab *slab, uint32_t first, uint32_t frames)
{
    for (uint32_t page = first; page < first + frames; page++) {
        mb__frame_at(vm, vm->homes[page].frame)->word = MB__NONE;
        vm->homes[page] = (struct mb__home_page){0};
    }
    mb__ranges_add(&vm->holes, first, frames);
    vm->held -= frames;
    vm->draining -= frames;
    *slab = (struct mb__slab){.state = MB__SLAB_UNUSED};
}

/* A free place in the table, made if need be; 0: no host memory. */
static uint32_t slab_id(struct mb_vm *vm)
{
    for (uint32_t id = 1; id < vm->slabs.count; id++) {
        if (vm->slabs.data[id].state == MB__SLAB_UNUSED)
            return id;
    }
    if (!MB_VEC_PUSH(&vm->slabs, (struct mb__slab){0})) {
        mb__no_host_memory("the table of slabs");
        return 0;
    }
    return (uint32_t)vm->slabs.count - 1;
}

/* ------------------------------------------------------------ home entries */

/* Appends the leaves of a slab's home: its frames, or cleared. */
static enum mb_err home_leaves(struct mb_vm *vm, const struct mb__slab *slab, bool mapped)
{
    const struct mb__region *home = &vm->region[MB__REGION_HOME];
    size_t from = vm->batch.pfns.count;

    if (!mapped)
        return mb__pgt_leaves(vm, home, slab->first, slab->frames, NULL, MB_PROT_NONE);
    /* Reserved by the caller: commands point into the array. */
    for (uint32_t i = 0; i < slab->frames; i++)
        vm->batch.pfns.data[vm->batch.pfns.count++].n = slab_frame(&slab->hw, i)
                                                        << MB__FRAME_PFN_BITS;
    return mb__pgt_leaves(vm, home, slab->first, slab->frames, vm->batch.pfns.data + from,
                          MB_PROT_READ_WRITE);
}

static enum mb_err home_invalidate(struct mb_vm *vm, const struct mb__slab *slab)
{
    struct mb_hw_cmd cmd = {.kind = MB_HW_INVALIDATE};

    cmd.inval.va = mb__slot_va(&vm->region[MB__REGION_HOME], slab->first);
    cmd.inval.bytes = slab_bytes(slab);
    return mb__cmd(vm, cmd);
}

static bool home_is_ours(const struct mb__slab *slab)
{
    return !slab->hw.home_mapped;
}

/*
 * Maps or clears the homes of some slabs (spans' first is the id) and waits until that is done.
 * Always invalidates: a home group may be cached with a neighbouring slab's slots. Deferred frees
 * may have left translations of windows besides, so then everything goes.
 * *submitted says whether the device may have begun when an error is returned.
 */
static enum mb_err write_homes(struct mb_vm *vm, const struct mb__span *ids, size_t count,
                               bool mapped, bool *submitted)
{
    struct mb_hw_fence fence;
    size_t frames = 0;
    enum mb_err err = MB_OK;

    *submitted = false;
    vm->batch.cmds.count = vm->batch.pfns.count = 0;
    for (size_t i = 0; i < count; i++)
        frames += vm->slabs.data[ids[i].first].frames;
    if (!MB_VEC_RESERVE(&vm->batch.pfns, frames))
        return mb__no_host_memory("a list of frames");
    for (size_t i = 0; !err && i < count; i++) {
        const struct mb__slab *slab = &vm->slabs.data[ids[i].first];

        if (home_is_ours(slab) && slab->mapped != mapped)
            err = home_leaves(vm, slab, mapped);
    }
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_BARRIER);
    if (!err && (count > MB__DROPS_MAX || vm->config.deferred))
        err = mb__cmd(vm, (struct mb_hw_cmd){.kind = MB_HW_INVALIDATE}); /* everything */
    for (size_t i = 0; !err && count <= MB__DROPS_MAX && !vm->config.deferred && i < count; i++)
        err = home_invalidate(vm, &vm->slabs.data[ids[i].first]);
    if (!err)
        err = mb__cmd_kind(vm, MB_HW_MEMBAR);
    if (err)
        return err;
    err = mb__vm_submit(vm, vm->stream, vm->batch.cmds.data, vm->batch.cmds.count, &fence);
    *submitted = !err || vm->lost;
    if (!err && fence.stream)
        err = vm->hw->ops->fence_wait_host(vm->hw, fence, 0);
    return err;
}

/* ------------------------------------------------------------ growth */

/* The claim goes first: once the driver has the frames, another process may get them. */
static enum mb_err to_driver(struct mb_vm *vm, struct mb_hw_slab *hw)
{
    struct mb__detail detail;
    enum mb_err err;

    mb__registry_unclaim(vm, hw);
    err = vm->hw->ops->slab_release(vm->hw, hw);
    if (!err)
        return MB_OK;
    mb__detail_keep(&detail);
    if (mb__registry_claim(vm, hw))
        mb__log(MB_LOG_ERROR, "vm", "frames that the driver did not take back cannot be claimed");
    mb__detail_put(&detail);
    return err;
}

/* Takes one slab of at most `*want` frames, less when the driver has no more; not less than one. */
static enum mb_err acquire(struct mb_vm *vm, uint32_t at, uint32_t want, uint32_t *id)
{
    mb_va home = mb__slot_va(&vm->region[MB__REGION_HOME], at);
    uint64_t bytes = want * MB_FRAME_BYTES;
    struct mb_hw_slab hw = {0};
    uint32_t place = slab_id(vm);
    enum mb_err err;

    if (!place)
        return MB_ERR_HOST_MEMORY;
    err = vm->hw->ops->slab_acquire(vm->hw, bytes, home, &hw);
    if (err)
        return err;
    err = check_slab(vm, &hw, bytes);
    if (!err)
        err = mb__registry_claim(vm, &hw);
    if (err) {
        struct mb__detail detail;

        mb__detail_keep(&detail);
        if (vm->hw->ops->slab_release(vm->hw, &hw))
            mb__log(MB_LOG_ERROR, "vm", "a refused slab stays with the driver: %s",
                    mb_error_detail());
        mb__detail_put(&detail);
        return err;
    }
    vm->slabs.data[place] = (struct mb__slab){
        .hw = hw, .state = MB__SLAB_LIVE, .first = at, .frames = want, .mapped = hw.home_mapped};
    enter(vm, place);
    /* Told before the entries are written, so the log holds every frame of the process, also when
     * growth does not come to its end. */
    mb__trail_frames(vm, MB_AUDIT_HOME, 0, at, want);
    intend_home(vm, &vm->slabs.data[place], true);
    *id = place;
    return MB_OK;
}

/* Takes slabs until `want` frames are there, or as near to it as the driver allows but not below
 * `need`. Their ids go to `taken` (as spans' first). */
static enum mb_err acquire_all(struct mb_vm *vm, uint32_t at, uint32_t need, uint32_t want)
{
    uint32_t most = (uint32_t)(vm->config.max_run_bytes >> MB_FRAME_SHIFT), got = 0;
    uint32_t step = (uint32_t)(vm->hw->caps.slab_step_bytes >> MB_FRAME_SHIFT);
    enum mb_err err = MB_OK;

    step = step ? step : 1;
    while (got < want) {
        /* Backends prime windows with a slab whose size is a power of two: if no largest one is
         * among these, the first is of one step. */
        uint32_t limit = vm->held || want >= most ? most : step;
        uint32_t ask = want - got < limit ? want - got : limit, id = 0;

        if (!MB_VEC_RESERVE(&vm->taken, vm->taken.count + 1))
            return mb__no_host_memory("a list of slabs");
        err = acquire(vm, at + got, ask, &id);
        if (!err) {
            vm->taken.data[vm->taken.count++] = (struct mb__span){id, ask};
            got += ask;
            continue;
        }
        if (err != MB_ERR_NO_MEMORY)
            return err;
        if (got >= need)
            return MB_OK;
        if (want > need)
            want = need; /* give up the rounding first */
        else if (most > step && ask > step)
            most = ask / 2 > step ? ask / 2 : step;
        else
            return err;
    }
    return MB_OK;
}

/* ------------------------------------------------------------ giving back */

/* Clears the homes that vm wrote itself. On error slabs stay LIVE when nothing was submitted, else
 * they are zombies: their entries are in an unknown state. */
static enum mb_err clear_homes(struct mb_vm *vm, const struct mb__span *ids, size_t count)
{
    bool needed = vm->config.deferred, submitted;
    enum mb_err err;

    for (size_t i = 0; i < count; i++)
        needed |=
            home_is_ours(&vm->slabs.data[ids[i].first]) && vm->slabs.data[ids[i].first].mapped;
    if (!needed)
        return MB_OK;
    err = write_homes(vm, ids, count, false, &submitted);
    for (size_t i = 0; i < count; i++) {
        struct mb__slab *slab = &vm->slabs.data[ids[i].first];

        if (err && submitted && home_is_ours(slab))
            slab->state = MB__SLAB_ZOMBIE;
        else if (!err && home_is_ours(slab))
            set_mapped(vm, slab, false);
    }
    return err;
}

/*
 * Gives slabs back whose frames are in no pool (DRAINING, no wait). Afterwards a slab is gone, or
 * LIVE as before, or a zombie. The first error met is returned; *released counts frames that went.
 */
static enum mb_err give_back(struct mb_vm *vm, const struct mb__span *ids, size_t count,
                             uint32_t *released)
{
    enum mb_err first, err;

    for (size_t i = 0; i < count; i++)
        intend_home(vm, &vm->slabs.data[ids[i].first], false);
    first = clear_homes(vm, ids, count);
    for (size_t i = 0; i < count; i++) {
        struct mb__slab *slab = &vm->slabs.data[ids[i].first];
        uint32_t frames = slab->frames;

        err = first ? first : to_driver(vm, &slab->hw);
        if (!err) {
            mb__trail_frames(vm, MB_AUDIT_HOMELESS, 0, slab->first, frames);
            leave(vm, slab, slab->first, frames);
            *released += frames;
            continue;
        }
        first = first ? first : err;
        if (slab->mapped && slab->state == MB__SLAB_LIVE)
            intend_home(vm, slab, true);
        else
            slab->state = MB__SLAB_ZOMBIE;
    }
    return first;
}

static void slab_to_pool(struct mb_vm *vm, uint32_t id)
{
    struct mb__slab *slab = &vm->slabs.data[id];

    slab->state = MB__SLAB_LIVE;
    mb__frames_free(vm, slab->first, slab->frames);
}

/* Undoes growth that did not get to its end. */
static void undo_grow(struct mb_vm *vm, bool submitted)
{
    uint32_t released = 0;

    for (size_t i = 0; submitted && i < vm->taken.count; i++)
        set_mapped(vm, &vm->slabs.data[vm->taken.data[i].first], true);
    if (!give_back(vm, vm->taken.data, vm->taken.count, &released))
        return;
    for (size_t i = 0; i < vm->taken.count; i++) {
        struct mb__slab *slab = &vm->slabs.data[vm->taken.data[i].first];

        if (slab->state == MB__SLAB_LIVE)
            slab->state = MB__SLAB_ZOMBIE;
    }
    mb__log(MB_LOG_WARN, "vm", "a slab could not be given back at once (%s); trim will try again",
            mb_error_detail());
}

enum mb_err mb__grow(struct mb_vm *vm, uint32_t at, uint32_t need, uint32_t want)
{
    struct mb__region *home = &vm->region[MB__REGION_HOME];
    bool submitted = false, ours = false;
    uint32_t got = 0;
    enum mb_err err;

    vm->taken.count = 0;
    err = acquire_all(vm, at, need, want);
    for (size_t i = 0; i < vm->taken.count; i++) {
        got += vm->taken.data[i].count;
        ours |= home_is_ours(&vm->slabs.data[vm->taken.data[i].first]);
    }
    if (!err && ours)
        err = mb__pgt_create(vm, home, mb__slot_va(home, at), got * MB_FRAME_BYTES);
    if (!err && ours)
        err = write_homes(vm, vm->taken.data, vm->taken.count, true, &submitted);
    if (err) {
        struct mb__detail detail;

        mb__detail_keep(&detail);
        undo_grow(vm, submitted);
        vm->taken.count = 0;
        mb__detail_put(&detail);
        return err;
    }
    for (size_t i = 0; i < vm->taken.count; i++) {
        set_mapped(vm, &vm->slabs.data[vm->taken.data[i].first], true);
        slab_to_pool(vm, vm->taken.data[i].first);
    }
    vm->taken.count = 0;
    mb__frames_grown(vm);
    return MB_OK;
}

/* ------------------------------------------------------------ trim */

/* The fully free slab with the highest home below `below`; 0: none. */
static uint32_t highest_free(const struct mb_vm *vm, uint32_t below)
{
    uint32_t best = 0;

    for (uint32_t id = 1; id < vm->slabs.count; id++) {
        const struct mb__slab *slab = &vm->slabs.data[id];

        if (slab->state == MB__SLAB_LIVE && slab->free == slab->frames && slab->first < below &&
            (!best || slab->first > vm->slabs.data[best].first))
            best = id;
    }
    return best;
}

/* Slabs left half-way by an earlier failure; the error, if any, is that of the first. */
void mb__zombies_retry(struct mb_vm *vm, uint32_t *released)
{
    for (uint32_t id = 1; id < vm->slabs.count; id++) {
        struct mb__span span = {id, vm->slabs.data[id].frames};

        if (vm->slabs.data[id].state == MB__SLAB_ZOMBIE)
            (void)give_back(vm, &span, 1, released);
    }
}

/* Takes slabs out of the pool, highest home first, until `keep` frames would be held. */
static enum mb_err choose(struct mb_vm *vm, uint32_t keep)
{
    uint32_t below = UINT32_MAX, held = vm->held;

    vm->taken.count = 0;
    while (held > keep) {
        uint32_t id = highest_free(vm, below);
        struct mb__slab *slab = &vm->slabs.data[id];

        if (!id)
            break;
        if (!MB_VEC_PUSH(&vm->taken, ((struct mb__span){id, slab->frames})))
            return mb__no_host_memory("a list of slabs");
        below = slab->first;
        held -= slab->frames;
    }
    return MB_OK;
}

static void slab_from_pool(struct mb_vm *vm, struct mb__slab *slab)
{
    mb__ranges_cut(&vm->free, slab->first, slab->frames);
    slab->free = 0;
    vm->draining += slab->frames;
    for (uint32_t i = 0; i < slab->frames; i++) {
        struct mb__frame *frame = mb__frame_at(vm, slab_frame(&slab->hw, i));

        frame->word = (frame->word & ~(uint32_t)MB__STATE) | MB__DRAINING;
    }
}

enum mb_err mb__trim(struct mb_vm *vm, uint32_t keep, uint32_t *released)
{
    enum mb_err err;

    mb__zombies_retry(vm, released);
    err = choose(vm, keep);
    if (err || !vm->taken.count)
        return err;
    for (size_t i = 0; i < vm->taken.count; i++)
        slab_from_pool(vm, &vm->slabs.data[vm->taken.data[i].first]);
    err = give_back(vm, vm->taken.data, vm->taken.count, released);
    for (size_t i = 0; err && i < vm->taken.count; i++) {
        uint32_t id = vm->taken.data[i].first;

        if (vm->slabs.data[id].state == MB__SLAB_LIVE)
            slab_to_pool(vm, id);
    }
    vm->taken.count = 0;
    return *released ? MB_OK : err;
}

/* ------------------------------------------------------------ close */

/* Everything goes back. `alive`: the device still executes, so entries are cleared first. */
void mb__slabs_close(struct mb_vm *vm, bool alive)
{
    uint32_t released = 0, failed = 0;

    vm->taken.count = 0;
    for (uint32_t id = 1; id < vm->slabs.count; id++) {
        if (vm->slabs.data[id].state == MB__SLAB_UNUSED)
            continue;
        if (!MB_VEC_PUSH(&vm->taken, ((struct mb__span){id, 0})))
            alive = false; /* the device's own teardown must do */
    }
    if (alive)
        (void)clear_homes(vm, vm->taken.data, vm->taken.count);
    for (uint32_t id = 1; id < vm->slabs.count; id++) {
        struct mb__slab *slab = &vm->slabs.data[id];

        if (slab->state == MB__SLAB_UNUSED)
            continue;
        intend_home(vm, slab, false);
        if (to_driver(vm, &slab->hw))
            failed++;
        else
            released += slab->frames;
        *slab = (struct mb__slab){.state = MB__SLAB_UNUSED};
    }
    if (failed)
        mb__log(MB_LOG_WARN, "vm",
                "%u slabs stay with the driver until the process ends, %u frames "
                "were given back",
                failed, released);
}
