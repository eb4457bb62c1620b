/* SPDX-License-Identifier: MIT */
/*
 * work.c - fill, verify and copy: device work that goes through the TLB page by page.
 *
 * Each piece is one leaf: translated, judged by the oracle, and applied to whatever frame came out
 * of the translation. Contents move as patterns (memory.c), so a piece of 2 MiB costs no more than
 * one of 8 bytes. In explore mode an operation is executed in parts, and a part's stores may stay
 * posted until a drawn moment before the operation ends.
 */
#include "hw/sim/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------ enqueue */

static enum mb_err check_range(const struct sim_dev *dev, const char *what, uint64_t va,
                               uint64_t bytes)
{
    if (va % 8 || bytes % 8 || va + bytes < va || (va + bytes - 1) >> dev->geo.va_bits)
        return mb__fail(
            MB_ERR_INVALID,
            "%s: range 0x%llx + %llu; multiples of 8 within the address space are allowed", what,
            (unsigned long long)va, (unsigned long long)bytes);
    return MB_OK;
}

static const char *work_name(enum sim_op_kind kind)
{
    return kind == SIM_OP_FILL ? "fill" : kind == SIM_OP_VERIFY ? "verify" : "copy";
}

/* Expectations of the access, into dev->scratch: first the range, then the source of a copy. */
static enum mb_err snapshot(struct sim_dev *dev, struct sim_op *op)
{
    bool copy = op->kind == SIM_OP_COPY;

    dev->scratch_count = 0;
    if (!dev->judge)
        return MB_OK;
    op->access.runs = mb__sim_oracle_snapshot(dev, op->access.va, op->access.bytes);
    if (copy)
        op->access.src_runs = mb__sim_oracle_snapshot(dev, op->access.src, op->access.bytes);
    if (!op->access.runs || (copy && !op->access.src_runs))
        return mb__fail(MB_ERR_HOST_MEMORY,
                        "software GPU: no host memory for the expectations of %s",
                        work_name((enum sim_op_kind)op->kind));
    return MB_OK;
}

/* Behind a snapshot of `like`; there is room on the stream. */
static void push(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *like,
                 unsigned flags)
{
    struct sim_op *op = mb__sim_stream_push(stream, (enum sim_op_kind)like->kind);

    op->flags = (uint8_t)flags;
    op->access = like->access;
    if (like->access.runs == 1 && !like->access.src_runs)
        op->access.pfn = dev->scratch[0];
    else if (like->access.runs)
        mb__sim_stream_append(stream, op, dev->scratch, (uint32_t)dev->scratch_count);
}

/* Room for operations on the stream, and what the host knows by now in front of them. */
static enum mb_err make_room(struct sim_dev *dev, struct mb_hw_stream *stream, size_t ops,
                             size_t words)
{
    enum mb_err err = dev->races.on ? mb__sim_race_enqueue(dev, stream) : MB_OK;

    return err ? err : mb__sim_stream_reserve(stream, ops, words);
}

enum mb_err mb__sim_access_enqueue(struct sim_dev *dev, struct mb_hw_stream *stream,
                                   enum sim_op_kind kind, mb_va va, mb_va src, uint64_t bytes,
                                   uint64_t seed, unsigned flags)
{
    struct sim_op like = {.kind = (uint8_t)kind};
    enum mb_err err = mb__sim_alive(dev);

    if (!err)
        err = check_range(dev, work_name(kind), va.addr, bytes);
    if (!err && kind == SIM_OP_COPY)
        err = check_range(dev, "copy", src.addr, bytes);
    if (err || !bytes || mb__sim_graph_takes(stream, kind, va, src, bytes, seed, &err))
        return err;
    like.access.va = va.addr;
    like.access.src = src.addr;
    like.access.bytes = bytes;
    like.access.seed = seed;
    err = snapshot(dev, &like);
    if (!err)
        err = make_room(dev, stream, 1, dev->scratch_count);
    if (err)
        return err;
    dev->host_ns += dev->model->launch_ns;
    push(dev, stream, &like, flags);
    mb__sim_engine_kick(dev);
    return MB_OK;
}

/* ------------------------------------------------------------ lists of copies */

static enum mb_err check_list(const struct sim_dev *dev, const struct mb_copy *list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err = MB_OK;

        if (list[i].bytes)
            err = check_range(dev, "copy", (uintptr_t)list[i].dst, list[i].bytes);
        if (!err && list[i].bytes)
            err = check_range(dev, "copy", (uintptr_t)list[i].src, list[i].bytes);
        if (err)
            return mb__fail_in(err, "copy %u of 0 to %u", i, count - 1);
    }
    return MB_OK;
}

static enum mb_err snapshot_copy(struct sim_dev *dev, const struct mb_copy *copy, struct sim_op *op)
{
    *op = (struct sim_op){.kind = SIM_OP_COPY};
    op->access.va = (uintptr_t)copy->dst;
    op->access.src = (uintptr_t)copy->src;
    op->access.bytes = copy->bytes;
    return snapshot(dev, op);
}

/* All of them or none: the expectations are taken twice, first for their size and for all that can
 * fail. One launch; in explore mode another copy is the first each time. */
static enum mb_err enqueue_list(struct sim_dev *dev, struct mb_hw_stream *stream,
                                const struct mb_copy *list, unsigned count)
{
    unsigned first = dev->explore ? (unsigned)sim_random_below(dev, count) : 0;
    size_t words = 0;
    struct sim_op op;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < count; i++) {
        if (!list[i].bytes)
            continue;
        err = snapshot_copy(dev, &list[i], &op);
        words += dev->scratch_count;
    }
    if (!err)
        err = make_room(dev, stream, count, words);
    if (err)
        return err;
    dev->host_ns += dev->model->launch_ns;
    for (unsigned i = 0; i < count; i++) {
        const struct mb_copy *copy = &list[(first + i) % count];

        if (!copy->bytes)
            continue;
        (void)snapshot_copy(dev, copy, &op); /* has room since the first time */
        push(dev, stream, &op, dev->copy_engine ? SIM_OP_CE : 0);
    }
    mb__sim_engine_kick(dev);
    return MB_OK;
}

enum mb_err mb__sim_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                              const struct mb_copy *list, unsigned count)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_alive(dev);
    if (!err)
        err = check_list(dev, list, count);
    if (!err && count && !mb__sim_graph_takes_list(stream, list, count, &err))
        err = enqueue_list(dev, stream, list, count);
    sim_unlock(dev);
    return err;
}

/* ------------------------------------------------------------ one access */

static enum mb_err enqueue(struct mb_hw_dev *hw, struct mb_hw_stream *stream, enum sim_op_kind kind,
                           mb_va va, mb_va src, uint64_t bytes, uint64_t seed)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = mb__sim_access_enqueue(dev, stream, kind, va, src, bytes, seed,
                                 kind == SIM_OP_COPY && dev->copy_engine ? SIM_OP_CE : 0);
    sim_unlock(dev);
    return err;
}

enum mb_err mb__sim_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                         uint64_t bytes, uint64_t seed)
{
    return enqueue(hw, stream, SIM_OP_FILL, va, MB_NO_VA, bytes, seed);
}

enum mb_err mb__sim_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                           uint64_t bytes, uint64_t seed)
{
    return enqueue(hw, stream, SIM_OP_VERIFY, va, MB_NO_VA, bytes, seed);
}

enum mb_err mb__sim_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                         uint64_t bytes)
{
    return enqueue(hw, stream, SIM_OP_COPY, dst, src, bytes, 0);
}

/* ------------------------------------------------------------ faults */

static const char *fault_name(enum sim_fault fault)
{
    static const char *const name[] = {"none", "FAULT_PDE", "FAULT_PTE", "FAULT_RO_VIOLATION",
                                       "FAULT_NO_READ"};

    return name[fault];
}

bool mb__sim_heal(struct sim_dev *dev, struct mb_hw_stream *stream, enum sim_client client,
                  uint64_t va, bool write, const struct sim_where *where)
{
    struct sim_where now = mb__sim_walk_memory(dev, va, write);
    char text[256];

    dev->counters.faults++;
    if (client == SIM_CLIENT_SM && dev->self_heal && !now.fault) {
        /* The fault handler drops what it knows of the page and lets the access try again. */
        mb__sim_invalidate(dev, va & ~(uint64_t)4095, 4096);
        dev->sim.replays++;
        return true;
    }
    snprintf(
        text, sizeof(text),
        "fatal MMU fault %s: %s of va 0x%llx by %s on stream %u at %llu ns; the entry in memory "
        "is %s. The context is gone: close the device",
        fault_name(where->fault), write ? "write" : "read", (unsigned long long)va,
        client == SIM_CLIENT_SM ? "an SM" : "a copy engine", stream->id,
        (unsigned long long)dev->now_ns, now.fault ? "not valid" : "valid (stale translation)");
    mb__sim_lose(dev, text);
    return false;
}

/* ------------------------------------------------------------ execution */

/* One side of an access while it is executed. */
struct side {
    uint64_t va; /* of the range's start */
    bool write;
    struct sim_expect expect;
};

static void seek(struct sim_expect *expect, const struct sim_run *run, uint32_t runs,
                 uint64_t pages)
{
    *expect = (struct sim_expect){run, runs, 0, runs != 0};
    while (expect->left && pages >= expect->run->pages) {
        pages -= expect->run->pages;
        expect->run++;
        expect->left--;
    }
    expect->in_run = (uint32_t)pages;
}

static uint64_t pages_before(uint64_t va, uint64_t pos)
{
    return ((va + pos) >> MB_PFN_SHIFT) - (va >> MB_PFN_SHIFT);
}

/* Translates va + pos for one side and judges the piece; false: the context is dead. */
static bool look(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                 struct side *side, struct sim_where *where, uint64_t *ns)
{
    enum sim_client client = op->flags & SIM_OP_CE ? SIM_CLIENT_CE : SIM_CLIENT_SM;
    uint64_t va = side->va + op->pos, walks = dev->sim.walks;
    unsigned utlb = (unsigned)(dev->explore ? mb__sim_random(dev) : va >> 25) % dev->model->utlbs;

    for (;;) {
        *where = mb__sim_translate(dev, client, utlb, va, side->write);
        if (!where->fault)
            break;
        if (mb__sim_heal(dev, stream, client, va, side->write, where)) {
            *ns += dev->model->replay_ns;
            continue;
        }
        if (side->expect.judged && side->expect.left && side->expect.run->pfn != SIM_NOTHING)
            mb__sim_oracle_note(dev, stream, work_name((enum sim_op_kind)op->kind), "fault", va,
                                side->expect.run->pfn + side->expect.in_run, SIM_NOTHING);
        return false;
    }
    *ns += (dev->sim.walks - walks) * dev->model->walk_ns;
    return true;
}

static void apply(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                  const struct sim_where *dst, const struct sim_where *src, uint64_t bytes)
{
    uint64_t key = sim_key(op->access.seed, op->pos / 8, dst->phys);
    struct sim_memory *mem = mb__sim_memory_of(dev, dst), *from = mb__sim_memory_of(dev, src);
    bool in_frames = mem && mb__sim_memory_frame(mem, dst->phys) != UINT32_MAX;

    if (op->kind == SIM_OP_VERIFY) {
        dev->counters.wrong_words += in_frames && !dst->sparse
                                         ? mb__sim_memory_differ(mem, dst->phys, bytes, key)
                                         : bytes / 8;
    } else if (!in_frames || dst->sparse) {
        return; /* stores to nowhere vanish */
    } else if (op->kind == SIM_OP_FILL && dev->explore && !dst->peer &&
               sim_random_below(dev, 4) == 0) {
        mb__sim_post(dev, &(struct sim_posted){dst->phys, bytes, key, 0, stream, 0});
    } else if (op->kind == SIM_OP_FILL) {
        mb__sim_memory_write(mem, dst->phys, bytes, key);
    } else if (!src->sparse && from && mb__sim_memory_frame(from, src->phys) != UINT32_MAX) {
        mb__sim_memory_copy(mem, dst->phys, from, src->phys, bytes);
    }
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* One leaf's worth. False: the context is dead. */
static bool piece(struct sim_dev *dev, struct mb_hw_stream *stream, struct sim_op *op,
                  struct side *dst, struct side *src, uint64_t *ns)
{
    const char *name = work_name((enum sim_op_kind)op->kind);
    bool copy = op->kind == SIM_OP_COPY, taken;
    struct sim_where to, from = {0};
    uint64_t bytes = op->access.bytes - op->pos;

    if ((copy && !look(dev, stream, op, src, &from, ns)) || !look(dev, stream, op, dst, &to, ns))
        return false;
    bytes = least(bytes, to.span);
    if (copy) {
        bytes = least(bytes, from.span);
        mb__sim_oracle_judge(dev, stream, name, src->va + op->pos, bytes, &from, &src->expect);
        if (!from.peer)
            mb__sim_race_access(dev, stream, from.phys, bytes, false);
    }
    mb__sim_oracle_judge(dev, stream, name, dst->va + op->pos, bytes, &to, &dst->expect);
    if (!to.peer)
        mb__sim_race_access(dev, stream, to.phys, bytes, dst->write);
    taken = mb__sim_share(dev, to.peer || from.peer);
    apply(dev, stream, op, &to, &from, bytes);
    mb__sim_unshare(taken);
    op->pos += bytes;
    return true;
}

static void walk_past(struct sim_dev *dev, uint64_t end)
{
    unsigned shift = MB_FRAME_SHIFT + (unsigned)__builtin_ctz(dev->model->group_slots);
    uint64_t next = (((end - 1) >> shift) + 1) << shift;

    (void)mb__sim_translate(dev, SIM_CLIENT_SM, (unsigned)(next >> 25) % dev->model->utlbs, next,
                            false);
}

struct sim_step mb__sim_execute_access(struct sim_dev *dev, struct mb_hw_stream *stream,
                                       struct sim_op *op, unsigned budget)
{
    const struct sim_run *runs = (const struct sim_run *)(const void *)mb__sim_stream_data(stream);
    struct sim_run one = {op->access.pfn, UINT32_MAX};
    uint32_t single = op->access.runs != 0; /* then it is the run in the operation itself */
    struct side dst = {op->access.va, op->kind != SIM_OP_VERIFY, {0}};
    struct side src = {op->access.src, false, {0}};
    struct sim_step step = {op->pos ? 0 : dev->model->kernel_ns, false};
    uint64_t before = op->pos;
    unsigned units = 0;

    /* Pieces of a copy may end inside a page of either side, so each looks its page up anew. */
    for (; op->pos < op->access.bytes && (!budget || units < budget); units++) {
        if (!units || op->kind == SIM_OP_COPY) {
            seek(&dst.expect, op->words ? runs : &one, op->words ? op->access.runs : single,
                 pages_before(dst.va, op->pos));
            seek(&src.expect, runs + op->access.runs, op->access.src_runs,
                 pages_before(src.va, op->pos));
        }
        if (!piece(dev, stream, op, &dst, &src, &step.ns))
            return step;
    }
    step.ns += (op->pos - before) * 1000 / dev->model->bytes_per_us;
    step.finished = op->pos == op->access.bytes;
    if (step.finished) {
        if (dev->posted_count)
            mb__sim_land_all(dev, stream, UINT32_MAX);
        if (dev->walk_ahead && !(op->flags & SIM_OP_CE))
            walk_past(dev, op->access.va + op->access.bytes);
    }
    return step;
}
