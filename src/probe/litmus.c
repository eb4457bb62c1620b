/* SPDX-License-Identifier: MIT */
/*
 * litmus.c - small programs, each asking the hardware one question that the design relies on.
 *
 * What every program finds: frame i holds the word ID + i at its start, written through slot
 * MIRROR + i, which shows frame i all the time; slots below MIRROR are the program's own. So which
 * frame an address shows can be read off the first word, by a load that goes around L1.
 *
 * A program answers with a sentence. doc/litmus.md ties each to its rule.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "probe/litmus.h"

enum {
    FRAMES = 80, /* 64 with names; the last one is the copy engine's sink on the software GPU */
    NAMED = 64,
    MIRROR = 416, /* first slot of a group */
    SLOTS = 512,
    TRIALS = 48,
    RACES = 256, /* of two streams: drawn orders show a late store in one of twelve */
};
#define ID ((uint64_t)0x1d000000)
#define FIRST_STREAM(lab) ((lab)->stream[0])

/* ------------------------------------------------------------ helpers of the programs */

enum mb_err mb__litmus_one(struct mb_lab *lab, struct mb_hw_stream *stream, enum mb_litmus_op op,
                           mb_va va, uint64_t value, uint32_t answer)
{
    struct mb_litmus_step step = {.op = op, .va = va.addr, .value = value, .answer = answer};

    return lab->ops->run(lab, stream, &step, 1, false);
}

/* Index of the frame that the slot shows to a kernel now; -1: none of the named ones. */
enum mb_err mb__litmus_read(struct mb_lab *lab, uint32_t slot, int *frame)
{
    enum mb_err err =
        mb__litmus_one(lab, FIRST_STREAM(lab), MB_LITMUS_LD_VOL, mb__lab_va(lab, slot), 0, 0);

    if (!err)
        err = lab->ops->sync(lab, FIRST_STREAM(lab));
    if (!err)
        *frame = lab->answer[0] - ID < NAMED ? (int)(lab->answer[0] - ID) : -1;
    return err;
}

/* Slots show frames `frame`, frame + 1, ... modulo `wrap`, in one batch. */
enum mb_err mb__litmus_map(struct mb_lab *lab, uint32_t slot, uint32_t count, uint32_t frame,
                           uint32_t wrap, unsigned flags)
{
    mb_pfn pfns[SLOTS];

    for (uint32_t i = 0; i < count; i++)
        pfns[i] = lab->pfn[(frame + i) % wrap];
    return mb__lab_write(lab, FIRST_STREAM(lab), slot, count, pfns, flags);
}

static enum mb_err show(struct mb_lab *lab, uint32_t slot, uint32_t frame, unsigned flags)
{
    return mb__litmus_map(lab, slot, 1, frame, NAMED, flags);
}

enum { CLEAN = MB_LAB_INVALIDATE | MB_LAB_MEMBAR };

/* ------------------------------------------------------------ stale translations */

/* Touch slot 0 of a primed group, give slot d another frame, read slot d. */
static enum mb_err stale_at(struct mb_lab *lab, uint32_t base, unsigned distance, bool *stale)
{
    const uint32_t other = 40;
    int frame = -1;
    enum mb_err err = mb__litmus_read(lab, base, &frame);

    if (!err)
        err = show(lab, base + distance, other, 0);
    if (!err)
        err = mb__litmus_read(lab, base + distance, &frame);
    if (!err && frame != (int)other && frame != (int)distance)
        err = mb__fail(MB_ERR_CORRUPT, "slot %u shows frame %d; only %u and %u were ever there",
                       base + distance, frame, distance, other);
    *stale = frame != (int)other;
    return err;
}

/* "stale to distance 15", or which distances were stale when they are not 1 .. n. */
static void tell_distances(const unsigned *distance, const bool *stale, unsigned count,
                           char *answer, size_t bytes)
{
    unsigned reach = 0;
    size_t used;
    bool regular = true;

    for (unsigned i = 0; i < count; i++) {
        regular = regular && (!stale[i] || !i || stale[i - 1]);
        reach = stale[i] ? distance[i] : reach;
    }
    if (regular) {
        snprintf(answer, bytes, "stale to distance %u", reach);
        return;
    }
    used = (size_t)snprintf(answer, bytes, "stale at distances");
    for (unsigned i = 0; i < count && used < bytes; i++)
        if (stale[i])
            used += (size_t)snprintf(answer + used, bytes - used, " %u", distance[i]);
}

static enum mb_err stale_valid(struct mb_lab *lab, char *answer, size_t bytes)
{
    static const unsigned distance[] = {1, 2, 3, 5, 7, 8, 11, 12, 15, 16, 17, 24, 31};
    enum { COUNT = sizeof(distance) / sizeof(distance[0]) };
    bool stale[COUNT];
    enum mb_err err = mb__litmus_map(lab, 0, 32 * COUNT, 0, 32, CLEAN);

    for (unsigned i = 0; !err && i < COUNT; i++)
        err = stale_at(lab, 32 * i, distance[i], &stale[i]);
    if (!err)
        tell_distances(distance, stale, COUNT, answer, bytes);
    return err;
}

/* A read that had to wait for the fault handler: counted where the backend counts, else seen by
 * its time, which is an order of magnitude longer than any other. */
static enum mb_err read_faulted(struct mb_lab *lab, uint32_t slot, uint64_t usual_ns, bool *faulted)
{
    uint64_t faults = lab->ops->faults(lab), start = lab->ops->now(lab);
    int frame;
    enum mb_err err = mb__litmus_read(lab, slot, &frame);

    *faulted = err || lab->ops->faults(lab) != faults ||
               (!lab->ops->modelled && lab->ops->now(lab) - start > usual_ns + 12000);
    return err;
}

static enum mb_err usual_read(struct mb_lab *lab, uint64_t *ns)
{
    enum mb_err err = MB_OK;
    int frame;

    *ns = UINT64_MAX;
    for (unsigned i = 0; !err && i < 20; i++) {
        uint64_t start = lab->ops->now(lab);

        err = mb__litmus_read(lab, MIRROR, &frame);
        if (lab->ops->now(lab) - start < *ns)
            *ns = lab->ops->now(lab) - start;
    }
    return err;
}

static enum mb_err stale_invalid(struct mb_lab *lab, char *answer, size_t bytes)
{
    static const unsigned distance[] = {1, 2, 7, 15, 16, 24};
    enum { COUNT = sizeof(distance) / sizeof(distance[0]) };
    bool stale[COUNT];
    uint64_t usual;
    int frame;
    enum mb_err err = lab->ops->spoil(lab, FIRST_STREAM(lab), 0, 32 * COUNT);

    for (unsigned i = 0; !err && i < COUNT; i++)
        err = show(lab, 32 * i, 0, CLEAN);
    if (!err)
        err = usual_read(lab, &usual);
    for (unsigned i = 0; !err && i < COUNT; i++) {
        err = mb__litmus_read(lab, 32 * i, &frame);
        if (!err)
            err = show(lab, 32 * i + distance[i], distance[i], 0);
        if (!err)
            err = read_faulted(lab, 32 * i + distance[i], usual, &stale[i]);
    }
    if (!err)
        tell_distances(distance, stale, COUNT, answer, bytes);
    return err;
}

/* Everything up to the end of a group is read by all SMs; are slots behind the end still clean? */
static enum mb_err walk_ahead(struct mb_lab *lab, char *answer, size_t bytes)
{
    static const unsigned past[] = {0, 1, 7, 15, 16, 31};
    enum { COUNT = sizeof(past) / sizeof(past[0]) };
    unsigned group = lab->hw->caps.group_slots, found = 0;
    enum mb_err err = mb__litmus_map(lab, 0, 64 * COUNT, 0, 32, CLEAN);

    for (unsigned i = 0; !err && i < COUNT; i++) {
        uint32_t base = 64 * i, at = base + 2 * group + past[i];
        int frame = -1;

        err = lab->hw->ops->verify(lab->hw, FIRST_STREAM(lab), mb__lab_va(lab, base),
                                   2 * (uint64_t)group << MB_FRAME_SHIFT, 0);
        if (!err)
            err = show(lab, at, 40, 0);
        if (!err)
            err = mb__litmus_read(lab, at, &frame);
        found += frame != 40;
    }
    if (!err)
        snprintf(answer, bytes, "%u of %d slots past the end had been walked", found, COUNT);
    return err;
}

/* A group that nobody walked since the invalidate may change without one. */
static enum mb_err clean_group(struct mb_lab *lab, char *answer, size_t bytes)
{
    int frame = -1;
    enum mb_err err = mb__litmus_map(lab, 0, 32, 0, NAMED, CLEAN);

    if (!err)
        err = show(lab, 5, 40, 0);
    if (!err)
        err = mb__litmus_read(lab, 5, &frame);
    snprintf(answer, bytes, "%s", frame == 40 ? "new" : "old");
    return err;
}

static enum mb_err invalidate_whole(struct mb_lab *lab, char *answer, size_t bytes)
{
    int before = -1, after = -1;
    enum mb_err err = mb__litmus_map(lab, 0, 32, 0, NAMED, CLEAN);

    if (!err)
        err = mb__litmus_read(lab, 3, &before);
    if (!err)
        err = show(lab, 3, 40, CLEAN);
    if (!err)
        err = mb__litmus_read(lab, 3, &after);
    snprintf(answer, bytes, "%s", after == 40 ? "new" : after == before ? "old" : "neither");
    return err;
}

/* Reading the named slot walks again and refreshes its neighbours, so the neighbour comes first. */
static enum mb_err invalidate_range(struct mb_lab *lab, char *answer, size_t bytes)
{
    int named = -1, neighbour = -1, frame;
    enum mb_err err = lab->ops->targeted(lab, true);

    if (!err)
        err = mb__litmus_map(lab, 0, 32, 0, NAMED, CLEAN);
    if (!err)
        err = mb__litmus_read(lab, 0, &frame);
    if (!err)
        err = show(lab, 9, 41, 0);
    if (!err)
        err = show(lab, 3, 40, MB_LAB_TARGETED | MB_LAB_MEMBAR);
    if (!err)
        err = mb__litmus_read(lab, 9, &neighbour);
    if (!err)
        err = mb__litmus_read(lab, 3, &named);
    snprintf(answer, bytes, "named slot %s, neighbour %s", named == 40 ? "new" : "old",
             neighbour == 41 ? "new" : "old");
    return err;
}

/* ------------------------------------------------------------ copy engines */

static enum mb_err copy_frame(struct mb_lab *lab, uint32_t slot, int *frame)
{
    enum mb_err err = lab->ops->copy_read(lab, FIRST_STREAM(lab), mb__lab_va(lab, slot), 1);

    if (!err)
        err = lab->ops->sync(lab, FIRST_STREAM(lab));
    if (!err)
        *frame = lab->answer[1] - ID < NAMED ? (int)(lab->answer[1] - ID) : -1;
    return err;
}

static enum mb_err copy_invalidate(struct mb_lab *lab, char *answer, size_t bytes)
{
    int first = -1, after = -1;
    enum mb_err err = show(lab, 0, 1, CLEAN);

    if (!err)
        err = copy_frame(lab, 0, &first);
    if (!err)
        err = show(lab, 0, 2, CLEAN);
    if (!err)
        err = copy_frame(lab, 0, &after);
    snprintf(answer, bytes, "%s", after == 2 ? "new" : after == first ? "old" : "neither");
    return err;
}

static enum mb_err copy_stale(struct mb_lab *lab, char *answer, size_t bytes)
{
    int first = -1, after = -1;
    enum mb_err err = mb__litmus_map(lab, 0, 32, 0, NAMED, CLEAN);

    if (!err)
        err = copy_frame(lab, 0, &first);
    if (!err)
        err = show(lab, 1, 40, 0);
    if (!err)
        err = copy_frame(lab, 1, &after);
    snprintf(answer, bytes, "%s", after == 40 ? "new" : after == 1 ? "old" : "neither");
    return err;
}

static enum mb_err copy_invalid(struct mb_lab *lab, char *answer, size_t bytes)
{
    int frame = -1;
    enum mb_err err = lab->ops->spoil(lab, FIRST_STREAM(lab), 0, 32);

    if (!err)
        err = show(lab, 0, 0, CLEAN);
    if (!err)
        err = copy_frame(lab, 0, &frame);
    if (!err)
        err = show(lab, 1, 1, 0);
    if (!err)
        err = copy_frame(lab, 1, &frame);
    if (err == MB_ERR_DEVICE_LOST) {
        snprintf(answer, bytes, "the context ends");
        return MB_OK;
    }
    snprintf(answer, bytes, "reads the %s frame", frame == 1 ? "new" : "wrong");
    return err;
}

/* ------------------------------------------------------------ L1 */

/* Two addresses of frame 0: `here` is read, the mirror is written. */
static enum mb_err two_addresses(struct mb_lab *lab, mb_va *here, mb_va *there)
{
    *here = mb__lab_va(lab, 0);
    *there = mb__lab_va(lab, MIRROR);
    return show(lab, 0, 0, CLEAN);
}

static struct mb_litmus_step step(enum mb_litmus_op op, mb_va va, uint64_t value, uint32_t answer)
{
    return (struct mb_litmus_step){.op = op, .va = va.addr, .value = value, .answer = answer};
}

/* Load, store through the other address, wait, perhaps fence, load again; in one kernel. */
static enum mb_err same_kernel(struct mb_lab *lab, enum mb_litmus_op load, bool fence, bool *fresh)
{
    struct mb_litmus_step steps[5];
    unsigned n = 0;
    mb_va here, there;
    enum mb_err err = two_addresses(lab, &here, &there);

    steps[n++] = step(load, here, 0, 0);
    steps[n++] = step(MB_LITMUS_ST, there, 77, 0);
    steps[n++] = step(MB_LITMUS_DELAY, here, 5000, 0);
    if (fence)
        steps[n++] = step(MB_LITMUS_FENCE, here, 0, 0);
    steps[n++] = step(load, here, 0, 1);
    if (!err)
        err = mb__litmus_one(lab, FIRST_STREAM(lab), MB_LITMUS_ST, there, ID, 0);
    if (!err)
        err = lab->ops->run(lab, FIRST_STREAM(lab), steps, n, false);
    if (!err)
        err = lab->ops->sync(lab, FIRST_STREAM(lab));
    *fresh = lab->answer[1] == 77;
    return err;
}

static enum mb_err l1_case(struct mb_lab *lab, enum mb_litmus_op load, bool fence, char *answer,
                           size_t bytes)
{
    bool fresh = false;
    enum mb_err err = same_kernel(lab, load, fence, &fresh);

    snprintf(answer, bytes, "%s", fresh ? "new" : "old");
    return err;
}

static enum mb_err l1_plain(struct mb_lab *lab, char *answer, size_t bytes)
{
    return l1_case(lab, MB_LITMUS_LD_CA, false, answer, bytes);
}

static enum mb_err l1_fence(struct mb_lab *lab, char *answer, size_t bytes)
{
    return l1_case(lab, MB_LITMUS_LD_CA, true, answer, bytes);
}

static enum mb_err l1_noncoherent(struct mb_lab *lab, char *answer, size_t bytes)
{
    return l1_case(lab, MB_LITMUS_LD_NC, true, answer, bytes);
}

static enum mb_err l1_noncoherent_unfenced(struct mb_lab *lab, char *answer, size_t bytes)
{
    return l1_case(lab, MB_LITMUS_LD_NC, false, answer, bytes);
}

/* The store comes from another multiprocessor, which waits for the first load and tells when it has
 * stored. `pair`: both loads are one compiled function's. */
static enum mb_err other_sm(struct mb_lab *lab, bool pair, char *answer, size_t bytes)
{
    enum { SEM = 20 };
    mb_va here, there;
    enum mb_err err = two_addresses(lab, &here, &there);
    const struct mb_litmus_step compiled = {
        .op = MB_LITMUS_READ_ONLY_PAIR, .va = here.addr, .sem = SEM, .value = 1, .answer = 0};
    const struct mb_litmus_step all[] = {
        {.op = MB_LITMUS_LD_NC, .va = here.addr, .answer = 0},
        {.op = MB_LITMUS_SEM_SET, .sem = SEM, .value = 1},
        {.op = MB_LITMUS_SEM_WAIT, .thread = 1, .sem = SEM, .value = 1},
        {.op = MB_LITMUS_ST, .thread = 1, .va = there.addr, .value = 77},
        {.op = MB_LITMUS_FENCE, .thread = 1},
        {.op = MB_LITMUS_SEM_SET, .thread = 1, .sem = SEM, .value = 2},
        {.op = MB_LITMUS_SEM_WAIT, .sem = SEM, .value = 2},
        {.op = MB_LITMUS_FENCE},
        {.op = MB_LITMUS_LD_NC, .va = here.addr, .answer = 1},
    };
    struct mb_litmus_step steps[sizeof(all) / sizeof(all[0])];
    unsigned n = 0;

    if (pair)
        steps[n++] = compiled;
    for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (!pair || all[i].thread)
            steps[n++] = all[i];
    }
    if (!err)
        err = mb__litmus_one(lab, FIRST_STREAM(lab), MB_LITMUS_ST, there, ID, 0);
    if (!err)
        err = lab->ops->run(lab, FIRST_STREAM(lab), steps, n, false);
    if (!err)
        err = lab->ops->sync(lab, FIRST_STREAM(lab));
    snprintf(answer, bytes, "%s",
             lab->answer[0] != ID   ? "no first answer"
             : lab->answer[1] == 77 ? "new"
                                    : "old");
    return err;
}

static enum mb_err l1_noncoherent_far(struct mb_lab *lab, char *answer, size_t bytes)
{
    return other_sm(lab, false, answer, bytes);
}

static enum mb_err l1_read_only(struct mb_lab *lab, char *answer, size_t bytes)
{
    return other_sm(lab, true, answer, bytes);
}

static enum mb_err l1_around(struct mb_lab *lab, char *answer, size_t bytes)
{
    bool cg = false, vol = false;
    enum mb_err err = same_kernel(lab, MB_LITMUS_LD_CG, false, &cg);

    if (!err)
        err = same_kernel(lab, MB_LITMUS_LD_VOL, false, &vol);
    snprintf(answer, bytes, ".cg %s, volatile %s", cg ? "new" : "old", vol ? "new" : "old");
    return err;
}

/* ------------------------------------------------------------ boundaries of kernels */

enum boundary { PLAIN, GRAPH, PROGRAMMATIC };

/* Kernel 1 loads, kernel 2 stores through the other address, kernel 3 loads again; plain and
 * non-coherent loads alike. */
static enum mb_err across(struct mb_lab *lab, enum boundary kind, char *answer, size_t bytes)
{
    static const unsigned counts[3] = {2, 1, 2};
    struct mb_litmus_step steps[5];
    struct mb_hw_stream *s = FIRST_STREAM(lab);
    mb_va here, there;
    unsigned old = 0;
    enum mb_err err = two_addresses(lab, &here, &there);

    steps[0] = step(MB_LITMUS_LD_CA, here, 0, 0);
    steps[1] = step(MB_LITMUS_LD_NC, here, 0, 0);
    steps[3] = step(MB_LITMUS_LD_CA, here, 0, 1);
    steps[4] = step(MB_LITMUS_LD_NC, here, 0, 2);
    for (unsigned i = 1; !err && i <= TRIALS; i++) {
        steps[2] = step(MB_LITMUS_ST, there, 1000 + i, 0);
        if (kind == GRAPH) {
            err = lab->ops->run_graph(lab, s, steps, counts, 3);
        } else {
            err = lab->ops->run(lab, s, steps, 2, false);
            if (!err)
                err = lab->ops->run(lab, s, steps + 2, 1, false);
            if (!err)
                err = lab->ops->run(lab, s, steps + 3, 2, kind == PROGRAMMATIC);
            if (!err)
                err = lab->ops->sync(lab, s);
        }
        old += lab->answer[1] != 1000 + i || lab->answer[2] != 1000 + i;
    }
    snprintf(answer, bytes, "%u of %d old", old, TRIALS);
    return err;
}

static enum mb_err kernel_boundary(struct mb_lab *lab, char *answer, size_t bytes)
{
    return across(lab, PLAIN, answer, bytes);
}

static enum mb_err graph_nodes(struct mb_lab *lab, char *answer, size_t bytes)
{
    return across(lab, GRAPH, answer, bytes);
}

static enum mb_err programmatic(struct mb_lab *lab, char *answer, size_t bytes)
{
    return across(lab, PROGRAMMATIC, answer, bytes);
}

/* ------------------------------------------------------------ membar */

/*
 * A kernel on another stream stores to slot 0 and goes on running. The frame is taken away with an
 * invalidate and a membar, shown at slot 32 and written there. Does the first store come later?
 */
static enum mb_err rogue_store(struct mb_lab *lab, unsigned trial, bool *overwritten)
{
    struct mb_hw_stream *a = lab->stream[1], *b = FIRST_STREAM(lab);
    uint64_t value = trial + 1;
    struct mb_litmus_step steps[3] = {
        {.op = MB_LITMUS_ST, .va = mb__lab_va(lab, 0).addr, .value = 0x5e1f},
        {.op = MB_LITMUS_SEM_SET, .sem = 1, .value = value},
        {.op = MB_LITMUS_SEM_WAIT, .sem = 2, .value = value},
    };
    enum mb_err err = show(lab, 0, 0, CLEAN);

    if (!err)
        err = lab->ops->sync(lab, b);
    if (!err)
        err = lab->ops->run(lab, a, steps, 3, false);
    if (!err)
        err = lab->ops->sem_wait(lab, b, 1, value);
    if (!err)
        err = mb__lab_write(lab, b, 0, 1, NULL, CLEAN);
    if (!err)
        err = show(lab, 32, 0, MB_LAB_INVALIDATE);
    if (!err)
        err = mb__litmus_one(lab, b, MB_LITMUS_ST, mb__lab_va(lab, 32), 7, 0);
    if (!err)
        err = lab->ops->sem_set(lab, b, 2, value);
    if (!err)
        err = lab->ops->spin(lab, b, 20000);
    if (!err)
        err = mb__litmus_one(lab, b, MB_LITMUS_LD_VOL, mb__lab_va(lab, 32), 0, 0);
    if (!err)
        err = lab->ops->sync(lab, b);
    if (!err)
        err = lab->ops->sync(lab, a);
    *overwritten = lab->answer[0] != 7;
    return err;
}

static enum mb_err membar(struct mb_lab *lab, char *answer, size_t bytes)
{
    unsigned late = 0;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < RACES; i++) {
        bool overwritten = false;

        err = rogue_store(lab, i, &overwritten);
        late += overwritten;
    }
    snprintf(answer, bytes, "%u of %d stores came late", late, RACES);
    return err;
}

/* ------------------------------------------------------------ the list */

#define ACROSS "0 of 48 old"
const struct mb_litmus_case mb__litmus_cases[] = {
    {.info = {"clean-group",
              "May a slot of a group that nobody walked change without an invalidate?", "T1", "new",
              false},
     .run = clean_group},
    {.info = {"stale-valid", "How far from a touched slot do valid neighbours stay as they were?",
              "T1", "stale to distance 15", false},
     .off_mutants = MB_LITMUS_OFF_VALID,
     .run = stale_valid},
    {.info = {"stale-invalid", "How far from a touched slot do invalid neighbours stay invalid?",
              "T2", "stale to distance 15", true},
     .off_mutants = MB_LITMUS_OFF_INVALID,
     .needs_invalid = true,
     .run = stale_invalid},
    {.info = {"walk-ahead", "Does reading a block to its end walk the slots behind it?", "T6",
              "0 of 6 slots past the end had been walked", false},
     .off_walk_ahead = true,
     .run = walk_ahead},
    {.info = {"invalidate", "Is a cached slot fresh after an invalidate of everything?", "T5",
              "new", false},
     .off_mutants = MB_LITMUS_OFF_INVALIDATE,
     .run = invalidate_whole},
    {.info = {"invalidate-range", "What does an invalidate of one slot drop?", "T5",
              "named slot new, neighbour old|named slot new, neighbour new", false},
     .off_mutants = MB_LITMUS_OFF_INVALIDATE,
     .run = invalidate_range},
    {.info = {"l1-plain", "Does a plain load see a store through another address of its frame?",
              "L1", "old", false},
     .off_mutants = MB_LITMUS_OFF_L1,
     .run = l1_plain},
    {.info = {"l1-around", "Do .cg and volatile loads see it?", "L2", ".cg new, volatile new",
              false},
     .run = l1_around},
    {.info = {"l1-fence", "Does a plain load see it after __threadfence()?", "L3", "new", false},
     .run = l1_fence},
    {.info = {"l1-noncoherent", "Does a non-coherent load see it after __threadfence()?", "L4",
              "old", false},
     .off_mutants = MB_LITMUS_OFF_L1,
     .run = l1_noncoherent},
    {.info = {"l1-noncoherent-unfenced", "Does a non-coherent load see it without a fence?", "L4",
              "old", false},
     .off_mutants = MB_LITMUS_OFF_L1,
     .run = l1_noncoherent_unfenced},
    {.info = {"l1-noncoherent-far", "Does it, when another multiprocessor stores and both fence?",
              "L4", "old", false},
     .off_mutants = MB_LITMUS_OFF_L1,
     .run = l1_noncoherent_far},
    {.info = {"l1-read-only", "Does the second of two compiled read-only loads see it?", "L4",
              "old", false},
     .off_mutants = MB_LITMUS_OFF_L1,
     .run = l1_read_only},
    {.info = {"kernel-boundary", "Does L1 outlive a kernel?", "L5", ACROSS, false},
     .off_mutants = MB_LITMUS_OFF_BOUNDARY,
     .run = kernel_boundary},
    {.info = {"graph-nodes", "Does L1 outlive a node of a graph?", "L5", ACROSS, false},
     .off_mutants = MB_LITMUS_OFF_BOUNDARY,
     .run = graph_nodes},
    {.info = {"programmatic-launch", "Does L1 outlive the wait of a programmatic dependent launch?",
              "L5", ACROSS, false},
     .off_mutants = MB_LITMUS_OFF_BOUNDARY,
     .run = programmatic},
    {.info = {"copy-stale", "Do copy engines cache valid neighbours too?", "T8", "old", false},
     .off_mutants = MB_LITMUS_OFF_VALID,
     .run = copy_stale},
    {.info = {"copy-invalidate", "Is a copy engine fresh after an invalidate?", "T8", "new", false},
     .off_mutants = MB_LITMUS_OFF_INVALIDATE,
     .run = copy_invalidate},
    {.info = {"copy-invalid", "What does a copy engine do with a cached invalid slot?", "T8",
              "the context ends", true},
     .off_mutants = MB_LITMUS_OFF_INVALID,
     .needs_invalid = true,
     .run = copy_invalid},
    {.info = {"membar", "Have stores through a dropped translation landed after the membar?", "O3",
              "0 of 256 stores came late", false},
     .off_mutants = MB_LITMUS_OFF_MEMBAR,
     .explore = true,
     .run = membar},
};
const unsigned mb__litmus_case_count = sizeof(mb__litmus_cases) / sizeof(mb__litmus_cases[0]);

/* ------------------------------------------------------------ running one */

const struct mb_litmus_case *mb__litmus_find(const char *name)
{
    for (unsigned i = 0; i < mb__litmus_case_count; i++)
        if (!strcmp(mb__litmus_cases[i].info.name, name))
            return &mb__litmus_cases[i];
    return NULL;
}

/* Names in the frames, written through the mirror. */
static enum mb_err name_frames(struct mb_lab *lab)
{
    struct mb_litmus_step steps[NAMED];
    enum mb_err err = mb__litmus_map(lab, MIRROR, NAMED, 0, NAMED, CLEAN);

    for (uint32_t i = 0; i < NAMED; i++)
        steps[i] = step(MB_LITMUS_ST, mb__lab_va(lab, MIRROR + i), ID + i, MB_LITMUS_NO_ANSWER);
    if (!err)
        err = lab->ops->run(lab, FIRST_STREAM(lab), steps, NAMED, false);
    return err ? err : lab->ops->sync(lab, FIRST_STREAM(lab));
}

enum mb_err mb__litmus_open(const char *backend, const struct mb_hw_config *config, uint64_t seed,
                            const struct mb_litmus_case *c, unsigned off, struct mb_lab *lab)
{
    struct mb_hw_config used = *config;
    enum mb_err err;

    used.seed = seed;
    used.explore = used.explore || c->explore;
    used.self_heal = used.self_heal || c->needs_invalid;
    used.no_oracle = true; /* wrong accesses are what these programs are for */
    used.walk_ahead = used.walk_ahead || (off && c->off_walk_ahead);
    err = mb__lab_open(backend, &used, seed, lab);
    if (err)
        return err;
    if (!lab->hw->caps.neighbours_cached && lab->hw->caps.host_blocking)
        err = mb__fail(MB_ERR_NOT_SUPPORTED,
                       "with driver tables every mapping is the driver's; litmus programs need "
                       "device tables");
    if (!err)
        err = mb__lab_pool(lab, FRAMES, (uint64_t)FRAMES << MB_FRAME_SHIFT);
    if (!err)
        err = mb__lab_window(lab, SLOTS);
    if (!err)
        err = name_frames(lab);
    if (!err && off && c->off_mutants && lab->ops->switch_off)
        lab->ops->switch_off(lab, off);
    if (err)
        mb__lab_close(lab);
    return err;
}

/* Is `answer` one of the alternatives? */
static bool allowed(const char *answer, const char *expected)
{
    size_t length = strlen(answer);

    for (const char *at = expected; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (!strncmp(at, answer, length) && (at[length] == '\0' || at[length] == '|'))
            return true;
    }
    return false;
}

void mb__litmus_judge(struct mb_lab *lab, const struct mb_litmus_case *c,
                      struct mb_litmus_result *out)
{
    enum mb_err err;

    memset(out, 0, sizeof(*out));
    out->info = c->info;
    err = c->run(lab, out->answer, sizeof(out->answer));
    if (err) {
        snprintf(out->answer, sizeof(out->answer), "%s: %s", mb_error_name(err), mb_error_detail());
        out->verdict = MB_LITMUS_NOT_RUN;
    } else {
        out->verdict =
            allowed(out->answer, c->info.expected) ? MB_LITMUS_CONFIRMED : MB_LITMUS_CHANGED;
    }
}

enum mb_err mb__litmus_run(const char *backend, const struct mb_hw_config *config, const char *name,
                           uint64_t seed, struct mb_litmus_result *out)
{
    const struct mb_litmus_case *c = mb__litmus_find(name);
    struct mb_lab lab;
    enum mb_err err;

    if (!c)
        return mb__fail(MB_ERR_NOT_FOUND, "there is no litmus program \"%.64s\"", name);
    err = mb__litmus_open(backend, config, seed, c, 0, &lab);
    if (err == MB_ERR_NOT_SUPPORTED) {
        *out = (struct mb_litmus_result){.info = c->info, .verdict = MB_LITMUS_NOT_RUN};
        snprintf(out->answer, sizeof(out->answer), "%s", mb_error_detail());
        return MB_OK;
    }
    if (err)
        return err;
    mb__litmus_judge(&lab, c, out);
    mb__lab_close(&lab);
    return MB_OK;
}
