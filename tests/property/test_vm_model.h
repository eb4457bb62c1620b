/* SPDX-License-Identifier: MIT */
/*
 * The naive model behind test_vm_sequences: what a program did with frames, windows and streams,
 * and the steps that a sequence is made of. Header only, for one test.
 */
#ifndef MB_TESTS_TEST_VM_MODEL_H
#define MB_TESTS_TEST_VM_MODEL_H

#include "unit/test_vm.h"

#include "base/rng.h"

enum {
    STREAMS = 3,
    DEVICE_FRAMES = 512,
    FRAME_NUMBERS = 4096, /* physical frame numbers stay below */
    RUNS = 64,
    WINDOWS = 12,
    WINDOW_SLOTS = 40,
    STEPS = 150,
    SEQUENCES = 12, /* per setting */
};

enum step_kind {
    ALLOC,
    FREE,
    FREE_PART,
    ALLOC_VA,
    MAP,
    REMAP_ALL,
    UNMAP,
    PROTECT,
    FREE_VA,
    TRIM,
    FLUSH,
    FILL,
    VERIFY,
    VERIFY_ALL,
    POLL,
    DRAIN,
    BATCH,
    MISTAKE,
    STEP_KINDS,
};
static const struct {
    const char *name;
    unsigned weight;
} step_kinds[STEP_KINDS] = {
    {"alloc", 3},     {"free", 2},  {"free_part", 2}, {"alloc_va", 3},   {"map", 6},
    {"remap_all", 4}, {"unmap", 4}, {"protect", 3},   {"free_va", 2},    {"trim", 1},
    {"flush", 1},     {"fill", 8},  {"verify", 6},    {"verify_all", 8}, {"poll", 2},
    {"drain", 1},     {"batch", 4}, {"mistake", 1},
};

struct step {
    enum step_kind kind;
    uint32_t a, b, c, stream;
};

struct frame {
    bool owned;
    uint32_t shown;  /* window slots that show it */
    uint64_t seed;   /* contents; 0: unknown */
    unsigned stream; /* last user */
};

struct slot {
    uint32_t frame; /* number + 1; 0: cleared */
    enum mb_prot prot;
};

struct win {
    mb_va va; /* 0: none */
    uint32_t slots;
    unsigned stream;
    struct slot slot[WINDOW_SLOTS];
};

struct model {
    struct rig rig;
    struct frame frame[FRAME_NUMBERS];
    struct mb_run run[RUNS]; /* frames 0: none */
    struct win win[WINDOWS];
    uint64_t next_seed;
    uint32_t owned;
    char failure[600];
};

struct setting {
    const char *model;
    const char *tables;
    enum mb_vm_policy policy;
    bool driver_home, deferred, walk_ahead, no_guard;
};

#define WRONG(m, ...) (snprintf((m)->failure, sizeof((m)->failure), __VA_ARGS__), false)
/* A call of the library that must succeed. */
#define MUST(m, call)                                                                              \
    do {                                                                                           \
        if (call)                                                                                  \
            return WRONG(m, "%s: %s", #call, mb_error_detail());                                   \
    } while (0)

/* Later work of `stream` comes after everything so far on `*last`. */
static bool follow(struct model *m, unsigned stream, unsigned *last)
{
    struct mb_hw_fence fence;

    if (*last != stream) {
        MUST(m, m->rig.hw->ops->fence_record(m->rig.hw, m->rig.stream[*last], &fence));
        MUST(m, m->rig.hw->ops->fence_wait_stream(m->rig.hw, m->rig.stream[stream], fence));
        *last = stream;
    }
    return true;
}

static uint32_t number(mb_pfn pfn)
{
    return pfn.n >> 9;
}

static mb_va slot_va(const struct win *win, uint32_t slot)
{
    return mb__va_add(win->va, FRAMES(slot));
}

/* ------------------------------------------------------------ frames */

static bool take_over(struct model *m, const struct mb_run *run, unsigned stream)
{
    for (uint32_t i = 0; i < run->frames; i++) {
        mb_pfn pfn = mb__home_pfn(m->rig.vm, mb__va_add(run->home, FRAMES(i)));
        struct frame *frame = &m->frame[number(pfn)];

        if (mb__pfn_eq(pfn, MB_NO_PFN) || number(pfn) >= FRAME_NUMBERS)
            return WRONG(m, "frame %u of a new run has no number", i);
        if (frame->owned || frame->shown)
            return WRONG(m, "frame %#x was handed out while it is in use", number(pfn));
        *frame = (struct frame){.owned = true, .stream = stream};
        m->owned++;
        if (i % 2)
            continue;
        frame->seed = ++m->next_seed;
        MUST(m,
             m->rig.hw->ops->fill(m->rig.hw, m->rig.stream[stream],
                                  mb__va_add(run->home, FRAMES(i)), MB_FRAME_BYTES, frame->seed));
    }
    return true;
}

static bool do_alloc(struct model *m, const struct step *step)
{
    struct mb_run runs[8];
    unsigned count = 0, capacity = 1 + step->b % 8, free_places = 0;
    unsigned flags = (step->c & 1 ? MB_PFN_CONTIGUOUS : 0) | (step->c & 2 ? MB_PFN_NEAR_HIGH : 0) |
                     ((step->c & 12) == 12 ? MB_PFN_NO_GROW : 0);
    uint32_t frames = 1 + step->a % 60, sum = 0;
    enum mb_err err;

    for (unsigned i = 0; i < RUNS; i++)
        free_places += !m->run[i].frames;
    if (free_places < 8)
        return true;
    err = mb__alloc_pfn(m->rig.vm, 9, frames, flags, runs, capacity, &count);
    if (err == MB_ERR_NO_MEMORY || err == MB_ERR_LIMIT)
        return m->owned + frames <= 200 && !(flags & MB_PFN_NO_GROW)
                   ? WRONG(m, "alloc of %u failed with %u of %u used: %s", frames, m->owned,
                           (unsigned)DEVICE_FRAMES, mb_error_detail())
                   : true;
    if (err == MB_ERR_INVALID && flags & MB_PFN_NO_GROW)
        return true;
    MUST(m, err);
    for (unsigned i = 0, at = 0; i < count; i++) {
        sum += runs[i].frames;
        while (m->run[at].frames)
            at++;
        m->run[at] = runs[i];
        if (!take_over(m, &runs[i], step->stream))
            return false;
    }
    if (sum != frames || count > capacity || (flags & MB_PFN_CONTIGUOUS && count != 1))
        return WRONG(m, "alloc of %u gave %u frames in %u runs", frames, sum, count);
    return true;
}

static struct mb_run *pick_run(struct model *m, uint32_t number_in_order)
{
    unsigned live = 0;

    for (unsigned i = 0; i < RUNS; i++)
        live += m->run[i].frames != 0;
    if (!live)
        return NULL;
    number_in_order %= live;
    for (unsigned i = 0;; i++) {
        if (m->run[i].frames && number_in_order-- == 0)
            return &m->run[i];
    }
}

static bool do_free(struct model *m, const struct step *step, bool part)
{
    struct mb_run *run = pick_run(m, step->a), gone;
    struct mb_hw_fence fences[STREAMS];

    if (!run)
        return true;
    gone = *run;
    if (part && run->frames > 1) {
        gone.frames = 1 + step->b % (run->frames - 1);
        if (step->c & 1) { /* the upper end */
            gone.home = mb__va_add(run->home, FRAMES(run->frames - gone.frames));
            gone.pfn = mb__home_pfn(m->rig.vm, gone.home);
        } else {
            run->home = mb__va_add(run->home, FRAMES(gone.frames));
        }
        run->frames -= gone.frames;
        run->pfn = mb__home_pfn(m->rig.vm, run->home);
    } else {
        run->frames = 0;
    }
    for (unsigned s = 0; s < STREAMS; s++)
        MUST(m, m->rig.hw->ops->fence_record(m->rig.hw, m->rig.stream[s], &fences[s]));
    for (uint32_t i = 0; i < gone.frames; i++)
        m->frame[number(mb__home_pfn(m->rig.vm, mb__va_add(gone.home, FRAMES(i))))].owned = false;
    m->owned -= gone.frames;
    MUST(m, mb__free_pfn(m->rig.vm, 9, gone, fences, STREAMS));
    return true;
}

/* An owned frame by a random number; false: there is none. */
static bool pick_frame(struct model *m, uint32_t random, mb_pfn *pfn, mb_va *home)
{
    struct mb_run *run = pick_run(m, random);

    if (!run)
        return false;
    *home = mb__va_add(run->home, FRAMES(random / 64 % run->frames));
    *pfn = mb__home_pfn(m->rig.vm, *home);
    return true;
}

/* ------------------------------------------------------------ windows */

static struct win *pick_window(struct model *m, uint32_t random)
{
    for (unsigned i = 0; i < WINDOWS; i++) {
        struct win *win = &m->win[(random + i) % WINDOWS];

        if (win->va.addr)
            return win;
    }
    return NULL;
}

static bool do_alloc_va(struct model *m, const struct step *step)
{
    static const uint64_t aligns[] = {0, 2 * MIB, 32 * MIB, 64 * MIB};
    uint64_t align = aligns[step->b % 4];
    uint32_t slots = 1 + step->a % WINDOW_SLOTS;
    enum mb_err err;

    for (unsigned i = 0; i < WINDOWS; i++) {
        struct win *win = &m->win[i];

        if (win->va.addr)
            continue;
        err = mb__alloc_va(m->rig.vm, FRAMES(slots), align, &win->va);
        if (err == MB_ERR_NO_ADDRESS)
            return true;
        MUST(m, err);
        if (align && win->va.addr % align)
            return WRONG(m, "window at %#llx is not aligned to %#llx",
                         (unsigned long long)win->va.addr, (unsigned long long)align);
        win->slots = slots;
        win->stream = step->stream;
        memset(win->slot, 0, sizeof(win->slot));
        break;
    }
    return true;
}

/* Enters into the model what one operation does, and orders its frames behind their last users. */
static bool model_op(struct model *m, struct win *win, const struct mb_vm_op *op, unsigned stream)
{
    uint32_t first = (uint32_t)((op->va.addr - win->va.addr) / MB_FRAME_BYTES);

    for (uint32_t i = 0; i < op->frames; i++) {
        struct slot *slot = &win->slot[first + i];
        struct frame *old = slot->frame ? &m->frame[slot->frame - 1] : NULL;

        /* Accesses through the old entry come first. */
        if (old && !follow(m, stream, &old->stream))
            return false;
        if (op->kind == MB_VM_MAP || op->kind == MB_VM_UNMAP) {
            if (old)
                old->shown--;
            slot->frame = 0;
        }
        if (op->kind == MB_VM_MAP) {
            slot->frame = number(op->pfns[i]) + 1;
            m->frame[slot->frame - 1].shown++;
        }
        if (op->kind != MB_VM_UNMAP)
            slot->prot = op->prot;
    }
    return true;
}

static bool run_ops(struct model *m, struct win *win, struct mb_vm_op *ops, unsigned count,
                    unsigned stream)
{
    if (!follow(m, stream, &win->stream))
        return false;
    for (unsigned i = 0; i < count; i++) {
        if (!model_op(m, win, &ops[i], stream))
            return false;
    }
    MUST(m, mb__pte_pop(m->rig.vm, m->rig.stream[stream], ops, count, NULL));
    return true;
}

static enum mb_prot some_prot(uint32_t random)
{
    return random % 8 == 0 ? MB_PROT_NONE : random % 8 < 3 ? MB_PROT_READ : MB_PROT_READ_WRITE;
}

/* Fills a map operation over [first, first + frames) of the window. */
static bool make_map(struct model *m, struct win *win, uint32_t first, uint32_t frames,
                     uint32_t random, mb_pfn *pfns, struct mb_vm_op *op)
{
    struct mb_rng rng;

    mb__rng_seed(&rng, random);
    for (uint32_t i = 0; i < frames; i++) {
        mb_va home;

        if (!pick_frame(m, (uint32_t)mb__rng_next(&rng), &pfns[i], &home))
            return false;
    }
    *op = (struct mb_vm_op){.kind = MB_VM_MAP,
                            .prot = some_prot(random >> 8),
                            .va = slot_va(win, first),
                            .frames = frames,
                            .pfns = pfns,
                            .cap = mb__owner_cap(m->rig.vm, 9)};
    return true;
}

static bool do_map(struct model *m, const struct step *step, bool all)
{
    struct win *win = pick_window(m, step->a);
    mb_pfn pfns[WINDOW_SLOTS];
    struct mb_vm_op op;
    uint32_t first, frames;

    if (!win)
        return true;
    first = all ? 0 : step->b % win->slots;
    frames = all ? win->slots : 1 + step->c % (win->slots - first);
    if (!make_map(m, win, first, frames, step->b ^ step->c, pfns, &op))
        return true;
    return run_ops(m, win, &op, 1, step->stream);
}

/* The mapped slots from a random one on; false: none. */
static bool mapped_range(const struct win *win, uint32_t from, uint32_t most, uint32_t *first,
                         uint32_t *count)
{
    for (uint32_t i = 0; i < win->slots; i++) {
        uint32_t at = (from + i) % win->slots;

        if (!win->slot[at].frame)
            continue;
        *first = at;
        for (*count = 1; *count < most && at + *count < win->slots && win->slot[at + *count].frame;)
            ++*count;
        return true;
    }
    return false;
}

static bool do_change(struct model *m, const struct step *step, enum mb_vm_op_kind kind)
{
    struct win *win = pick_window(m, step->a);
    struct mb_vm_op op = {.kind = kind, .prot = some_prot(step->c)};
    uint32_t first;

    if (!win || !mapped_range(win, step->b, 1 + step->c % WINDOW_SLOTS, &first, &op.frames))
        return true;
    op.va = slot_va(win, first);
    return run_ops(m, win, &op, 1, step->stream);
}

/* Several operations on one window at once, overlapping at will. */
static bool do_batch(struct model *m, const struct step *step)
{
    struct win *win = pick_window(m, step->a);
    mb_pfn pfns[3][WINDOW_SLOTS];
    struct mb_vm_op ops[4];
    unsigned count = 0;
    uint32_t first, frames;

    if (!win)
        return true;
    for (unsigned i = 0; i < 3; i++) {
        first = (step->b >> 4 * i) % win->slots;
        frames = 1 + (step->c >> 4 * i) % (win->slots - first);
        if (!make_map(m, win, first, frames, step->b + i, pfns[i], &ops[count]))
            return true;
        count++;
        if (i == 1 && step->c & 1)
            ops[count++] = (struct mb_vm_op){.kind = step->c & 2 ? MB_VM_UNMAP : MB_VM_PROTECT,
                                             .prot = MB_PROT_READ,
                                             .va = slot_va(win, first),
                                             .frames = frames};
    }
    return run_ops(m, win, ops, count, step->stream);
}

static bool do_free_va(struct model *m, const struct step *step)
{
    struct win *win = pick_window(m, step->a);
    struct mb_vm_op op = {.kind = MB_VM_UNMAP, .frames = 1};

    if (!win)
        return true;
    for (uint32_t i = 0; i < win->slots; i++) {
        op.va = slot_va(win, i);
        if (win->slot[i].frame && !run_ops(m, win, &op, 1, step->stream))
            return false;
    }
    MUST(m, mb__free_va(m->rig.vm, win->va, FRAMES(win->slots)));
    win->va.addr = 0;
    return true;
}

/* ------------------------------------------------------------ device work */

/* An address that shows a frame: a window slot or its home. False: none. */
static bool pick_address(struct model *m, const struct step *step, bool write, mb_va *va,
                         struct frame **frame, unsigned **window_stream)
{
    struct win *win = step->c & 1 ? pick_window(m, step->a) : NULL;
    mb_pfn pfn;

    for (uint32_t i = 0; win && i < win->slots; i++) {
        uint32_t at = (step->b + i) % win->slots;

        if (!win->slot[at].frame || win->slot[at].prot == MB_PROT_NONE ||
            (write && win->slot[at].prot != MB_PROT_READ_WRITE))
            continue;
        *va = slot_va(win, at);
        *frame = &m->frame[win->slot[at].frame - 1];
        *window_stream = &win->stream;
        return true;
    }
    if (!pick_frame(m, step->b, &pfn, va))
        return false;
    *frame = &m->frame[number(pfn)];
    *window_stream = NULL;
    return true;
}

static bool access_frame(struct model *m, unsigned stream, bool write, mb_va va,
                         struct frame *frame)
{
    const struct mb_hw_ops *ops = m->rig.hw->ops;

    if (!follow(m, stream, &frame->stream))
        return false;
    if (write) {
        frame->seed = ++m->next_seed;
        MUST(m, ops->fill(m->rig.hw, m->rig.stream[stream], va, MB_FRAME_BYTES, frame->seed));
    } else if (frame->seed) {
        MUST(m, ops->verify(m->rig.hw, m->rig.stream[stream], va, MB_FRAME_BYTES, frame->seed));
    }
    return true;
}

static bool do_access(struct model *m, const struct step *step, bool write)
{
    struct frame *frame;
    unsigned *window_stream;
    mb_va va;

    if (!pick_address(m, step, write, &va, &frame, &window_stream))
        return true;
    if (window_stream && !follow(m, step->stream, window_stream))
        return false;
    return access_frame(m, step->stream, write, va, frame);
}

static bool do_verify_all(struct model *m, const struct step *step)
{
    struct win *win = pick_window(m, step->a);

    if (!win)
        return true;
    if (!follow(m, step->stream, &win->stream))
        return false;
    for (uint32_t i = 0; i < win->slots; i++) {
        if (win->slot[i].frame && win->slot[i].prot != MB_PROT_NONE &&
            !access_frame(m, step->stream, false, slot_va(win, i),
                          &m->frame[win->slot[i].frame - 1]))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------ the rest */

static bool do_trim(struct model *m, const struct step *step)
{
    struct mb_vm_stats before, after;
    uint64_t released = 0;

    mb__vm_poll(m->rig.vm);
    mb__vm_stats(m->rig.vm, &before);
    MUST(m, mb__vm_trim(m->rig.vm, FRAMES((uint64_t)step->a % 128), &released));
    mb__vm_stats(m->rig.vm, &after);
    if (before.held_bytes - after.held_bytes != released)
        return WRONG(m, "trim says %llu bytes, held fell from %llu to %llu",
                     (unsigned long long)released, (unsigned long long)before.held_bytes,
                     (unsigned long long)after.held_bytes);
    return true;
}

/* After a drain nothing is pending: references are exactly what the model counts. */
static bool do_drain(struct model *m)
{
    struct mb_vm_stats stats;

    MUST(m, mb__vm_drain(m->rig.vm));
    for (uint32_t n = 0; n < FRAME_NUMBERS; n++) {
        const struct frame *frame = &m->frame[n];
        uint32_t refs = mb__pfn_refs(m->rig.vm, (mb_pfn){n << 9});

        if (refs != (frame->owned ? 1 + frame->shown : 0))
            return WRONG(m, "frame %#x has %u references after a drain, the model says %u", n, refs,
                         frame->owned ? 1 + frame->shown : 0);
    }
    mb__vm_stats(m->rig.vm, &stats);
    if (stats.quarantined_bytes)
        return WRONG(m, "%llu bytes are quarantined after a drain",
                     (unsigned long long)stats.quarantined_bytes);
    return true;
}

/* Calls that must fail and change nothing. */
static bool do_mistake(struct model *m, const struct step *step)
{
    struct win *win = pick_window(m, step->a);
    mb_pfn nobody = {(FRAME_NUMBERS - 1) << 9};
    struct mb_vm_op ops[2] = {{.kind = MB_VM_UNMAP, .frames = 1}, {.kind = MB_VM_MAP}};
    struct mb_hw_stream *stream = m->rig.stream[step->stream];
    mb_va free_slot = {0};

    if (!win)
        return true;
    ops[1] = (struct mb_vm_op){.kind = MB_VM_MAP,
                               .prot = MB_PROT_READ,
                               .va = win->va,
                               .frames = 1,
                               .pfns = &nobody,
                               .cap = mb__owner_cap(m->rig.vm, 9)};
    if (mb__pte_pop(m->rig.vm, stream, &ops[1], 1, NULL) != MB_ERR_CORRUPT)
        return WRONG(m, "a frame of nobody was mapped");
    for (uint32_t i = 0; i < win->slots; i++) {
        ops[0].va = slot_va(win, i);
        if (!win->slot[i].frame)
            free_slot = ops[0].va;
        /* The first operation is right, the second is not: neither may happen. */
        else if (mb__pte_pop(m->rig.vm, stream, ops, 2, NULL) != MB_ERR_CORRUPT)
            return WRONG(m, "half a batch was accepted");
    }
    ops[0].va = free_slot;
    if (free_slot.addr && mb__pte_pop(m->rig.vm, stream, ops, 1, NULL) != MB_ERR_NOT_MAPPED)
        return WRONG(m, "a cleared slot was unmapped");
    if (mb__free_va(m->rig.vm, win->va, FRAMES(win->slots + 1)) != MB_ERR_NOT_FOUND)
        return WRONG(m, "a window was freed with a wrong size");
    return true;
}

static bool do_step(struct model *m, const struct step *step)
{
    switch (step->kind) {
    case ALLOC:
        return do_alloc(m, step);
    case FREE:
        return do_free(m, step, false);
    case FREE_PART:
        return do_free(m, step, true);
    case ALLOC_VA:
        return do_alloc_va(m, step);
    case MAP:
        return do_map(m, step, false);
    case REMAP_ALL:
        return do_map(m, step, true);
    case UNMAP:
        return do_change(m, step, MB_VM_UNMAP);
    case PROTECT:
        return do_change(m, step, MB_VM_PROTECT);
    case FREE_VA:
        return do_free_va(m, step);
    case TRIM:
        return do_trim(m, step);
    case FLUSH:
        MUST(m, mb__tlb_flush(m->rig.vm, m->rig.stream[step->stream], NULL));
        return true;
    case FILL:
        return do_access(m, step, true);
    case VERIFY:
        return do_access(m, step, false);
    case VERIFY_ALL:
        return do_verify_all(m, step);
    case POLL:
        mb__vm_poll(m->rig.vm);
        return true;
    case DRAIN:
        return do_drain(m);
    case BATCH:
        return do_batch(m, step);
    default:
        return do_mistake(m, step);
    }
}

/* The record agrees with the model. */
static bool compare(struct model *m)
{
    struct mb_vm_stats stats;

    MUST(m, mb__vm_check(m->rig.vm));
    mb__vm_stats(m->rig.vm, &stats);
    if (stats.owned_bytes != FRAMES((uint64_t)m->owned))
        return WRONG(m, "%llu bytes owned, the model says %u frames",
                     (unsigned long long)stats.owned_bytes, m->owned);
    for (unsigned w = 0; w < WINDOWS; w++) {
        for (uint32_t i = 0; m->win[w].va.addr && i < m->win[w].slots; i++) {
            mb_pfn pfn = mb__vm_lookup(m->rig.vm, slot_va(&m->win[w], i));
            uint32_t shows = mb__pfn_eq(pfn, MB_NO_PFN) ? 0 : number(pfn) + 1;

            if (shows != m->win[w].slot[i].frame)
                return WRONG(m, "slot %u of window %u shows frame %#x, the model says %#x", i, w,
                             shows - 1, m->win[w].slot[i].frame - 1);
        }
    }
    return true;
}

static bool judge(struct model *m)
{
    struct mb_hw_counters counters;
    char text[400];

    mb__sim_first_wrong(m->rig.hw, text, sizeof(text));
    m->rig.hw->ops->counters(m->rig.hw, &counters);
    if (counters.wrong_accesses || counters.wrong_words || counters.faults)
        return WRONG(m, "%llu wrong accesses, %llu wrong words, %llu faults: %s",
                     (unsigned long long)counters.wrong_accesses,
                     (unsigned long long)counters.wrong_words, (unsigned long long)counters.faults,
                     text);
    return true;
}

#endif
