/* SPDX-License-Identifier: MIT */
/*
 * kernel.c - test kernels instruction by instruction: L1 data caches, posted stores, fences.
 *
 * L1 lines are tagged with virtual addresses and belong to one kernel on one SM: a kernel starts
 * without any, which is the measured rule at kernel boundaries. A hit needs no translation, so a
 * line outlives a remap. A plain load may hit; .cg and volatile go around; a fence drops the plain
 * lines of its SM; lines of non-coherent loads are kept apart and nothing but the end of the kernel
 * drops them. A store updates the plain line under its own address on its own SM and no other line:
 * another address of the same frame, or another SM, keeps what it had.
 *
 * Stores are posted: translated at once, in memory later. The thread's own loads see them (same
 * SM); everybody else after they land: on time, at a fence of the same SM, at the kernel's end, or
 * at a MEMBAR command of any stream.
 */
#include "hw/sim/dev.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 128, LINE_WORDS = LINE_BYTES / 8 };

struct line {
    unsigned sm;
    bool nc;
    uint64_t va;
    uint64_t word[LINE_WORDS];
};
/* Of the kernel at the head of a stream, from its first step to its last. */
struct sim_kernel {
    struct line *line;
    unsigned count, capacity;
};

/* A step as it lies in the queue: with its expectation. */
struct queued_step {
    struct mb_sim_step step;
    uint32_t expected; /* frame number, or SIM_NOTHING */
    uint32_t unused;
};
enum { STEP_WORDS = sizeof(struct queued_step) / sizeof(uint32_t) };

void mb__sim_kernel_free(struct mb_hw_stream *stream)
{
    if (stream->kernel)
        free(stream->kernel->line);
    free(stream->kernel);
    stream->kernel = NULL;
}

/* ------------------------------------------------------------ posted stores */

void mb__sim_post(struct sim_dev *dev, const struct sim_posted *posted)
{
    unsigned capacity = dev->posted_capacity ? 2 * dev->posted_capacity : 32;
    struct sim_posted *list = dev->posted;

    dev->sim.posted++;
    if (dev->posted_count == dev->posted_capacity) {
        list = realloc(list, capacity * sizeof(*list));
        if (!list) {
            dev->mem.failed = true;
            return;
        }
        dev->posted = list;
        dev->posted_capacity = capacity;
    }
    list[dev->posted_count] = *posted;
    list[dev->posted_count++].lands_ns = dev->now_ns + dev->model->land_ns;
}

/* The store reaches memory. By now the frame may have gone back to the driver. */
void mb__sim_land(struct sim_dev *dev, unsigned index)
{
    struct sim_posted posted = dev->posted[index];
    uint32_t frame = mb__sim_memory_frame(&dev->mem, posted.phys);
    bool taken = mb__sim_share(dev, false);

    dev->posted_count--;
    memmove(&dev->posted[index], &dev->posted[index + 1],
            (dev->posted_count - index) * sizeof(posted));
    dev->sim.landed++;
    if (!dev->mem.held[frame]) {
        dev->sim.released_accesses++;
        mb__sim_oracle_note(dev, posted.stream, "posted store", "released", 0, SIM_NOTHING,
                            (uint32_t)(posted.phys >> MB_PFN_SHIFT));
    }
    mb__sim_memory_write(&dev->mem, posted.phys, posted.bytes, posted.key);
    mb__sim_unshare(taken);
}

/* Oldest first, so that two stores of one thread to one word keep their order. */
void mb__sim_land_all(struct sim_dev *dev, const struct mb_hw_stream *stream, unsigned sm)
{
    for (unsigned i = 0; i < dev->posted_count;) {
        bool due = (!stream || dev->posted[i].stream == stream) &&
                   (sm == UINT32_MAX || dev->posted[i].sm == sm);

        if (due)
            mb__sim_land(dev, i);
        else
            i++;
    }
}

/* What the thread sees at phys: its own posted store, the latest one, or memory. */
static uint64_t load_word(struct sim_dev *dev, const struct mb_hw_stream *stream, unsigned sm,
                          uint64_t phys)
{
    uint64_t word;
    bool taken;

    for (unsigned i = dev->posted_count; i-- > 0;) {
        const struct sim_posted *posted = &dev->posted[i];

        if (posted->stream == stream && posted->sm == sm && phys >= posted->phys &&
            phys - posted->phys < posted->bytes)
            return mb_pattern_mix(posted->key + phys / 8 * MB_PATTERN_GOLDEN);
    }
    taken = mb__sim_share(dev, false);
    word = mb__sim_memory_word(&dev->mem, phys);
    mb__sim_unshare(taken);
    return word;
}

/* ------------------------------------------------------------ L1 */

static struct line *find_line(struct sim_kernel *kernel, unsigned sm, bool nc, uint64_t va)
{
    for (unsigned i = 0; i < kernel->count; i++) {
        struct line *line = &kernel->line[i];

        if (line->sm == sm && line->nc == nc && line->va == va / LINE_BYTES * LINE_BYTES)
            return line;
    }
    return NULL;
}

static void drop_lines(struct sim_kernel *kernel, unsigned sm)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < kernel->count; i++) {
        if (kernel->line[i].sm != sm || kernel->line[i].nc)
            kernel->line[kept++] = kernel->line[i];
    }
    kernel->count = kept;
}

/* Room for one more line. */
static bool line_room(struct sim_kernel *kernel)
{
    unsigned capacity = kernel->capacity ? 2 * kernel->capacity : 16;
    struct line *line;

    if (kernel->count < kernel->capacity)
        return true;
    line = realloc(kernel->line, capacity * sizeof(*line));
    if (!line)
        return false;
    kernel->line = line;
    kernel->capacity = capacity;
    return true;
}

/* Reads the whole line of `va`, whose own word is at phys. No room: simply not cached. */
static void keep_line(struct sim_dev *dev, const struct mb_hw_stream *stream, unsigned sm, bool nc,
                      uint64_t va, uint64_t phys)
{
    struct sim_kernel *kernel = stream->kernel;
    struct line line = {sm, nc, va / LINE_BYTES * LINE_BYTES, {0}};
    uint64_t start = phys - va % LINE_BYTES;

    for (unsigned i = 0; i < LINE_WORDS; i++)
        line.word[i] = load_word(dev, stream, sm, start + 8 * i);
    if (line_room(kernel))
        kernel->line[kernel->count++] = line;
}

/* ------------------------------------------------------------ instructions */

static bool is_load(enum mb_sim_step_kind kind)
{
    return kind <= MB_SIM_LD_NC;
}

/* Translates and judges; false: the context is dead. */
static bool reach(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                  const struct queued_step *q, struct sim_where *where, uint64_t *ns)
{
    bool write = q->step.kind == MB_SIM_ST;
    struct sim_run run = {q->expected, 1};
    struct sim_expect expect = {&run, 1, 0, dev->judge && !(op->flags & SIM_OP_ROGUE)};
    uint64_t walks = dev->sim.walks;

    for (;;) {
        *where = mb__sim_translate(dev, SIM_CLIENT_SM, q->step.sm % dev->model->utlbs,
                                   q->step.va.addr, write);
        if (!where->fault)
            break;
        if (!mb__sim_heal(dev, stream, SIM_CLIENT_SM, q->step.va.addr, write, where)) {
            if (expect.judged && q->expected != SIM_NOTHING)
                mb__sim_oracle_note(dev, stream, "kernel", "fault", q->step.va.addr, q->expected,
                                    SIM_NOTHING);
            return false;
        }
        *ns += dev->model->replay_ns;
    }
    *ns += (dev->sim.walks - walks) * dev->model->walk_ns;
    mb__sim_oracle_judge(dev, stream, "kernel", q->step.va.addr, 8, where, &expect);
    return true;
}

static bool load(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                 const struct queued_step *q, uint64_t *ns)
{
    bool nc = q->step.kind == MB_SIM_LD_NC,
         caches = (nc || q->step.kind == MB_SIM_LD_CA) && !(dev->mutants & MB_SIM_NO_L1);
    struct line *line = caches ? find_line(stream->kernel, q->step.sm, nc, q->step.va.addr) : NULL;
    struct sim_where where;
    uint64_t word = 0;

    if (line) {
        word = line->word[q->step.va.addr % LINE_BYTES / 8];
    } else {
        if (!reach(dev, stream, op, q, &where, ns))
            return false;
        if (!where.sparse && !where.peer &&
            mb__sim_memory_frame(&dev->mem, where.phys) != UINT32_MAX) {
            word = load_word(dev, stream, q->step.sm, where.phys);
            if (caches)
                keep_line(dev, stream, q->step.sm, nc, q->step.va.addr, where.phys);
        }
    }
    if (q->step.out)
        *q->step.out = word;
    return true;
}

static bool store(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                  const struct queued_step *q, uint64_t *ns)
{
    struct line *line = find_line(stream->kernel, q->step.sm, false, q->step.va.addr);
    struct sim_where where;

    if (!reach(dev, stream, op, q, &where, ns))
        return false;
    if (line)
        line->word[q->step.va.addr % LINE_BYTES / 8] = q->step.value;
    /* Test kernels do not reach other devices. */
    if (where.sparse || where.peer || mb__sim_memory_frame(&dev->mem, where.phys) == UINT32_MAX)
        return true;
    mb__sim_post(dev,
                 &(struct sim_posted){
                     .phys = where.phys,
                     .bytes = 8,
                     .key = mb_pattern_unmix(q->step.value) - where.phys / 8 * MB_PATTERN_GOLDEN,
                     .stream = stream,
                     .sm = q->step.sm,
                 });
    return true;
}

/* False: the context is dead. */
static bool instruction(struct sim_dev *dev, struct mb_hw_stream *stream, const struct sim_op *op,
                        const struct queued_step *q, uint64_t *ns)
{
    const struct mb_sim_step *s = &q->step;

    *ns += s->kind == MB_SIM_DELAY ? s->value : dev->model->step_ns;
    if (is_load(s->kind))
        return load(dev, stream, op, q, ns);
    if (s->kind == MB_SIM_ST)
        return store(dev, stream, op, q, ns);
    if (s->kind == MB_SIM_FENCE) {
        mb__sim_land_all(dev, stream, s->sm);
        drop_lines(stream->kernel, s->sm);
    } else if (s->kind == MB_SIM_SEM_SET && dev->sem[s->sem] < s->value) {
        dev->sem[s->sem] = s->value;
    }
    return true;
}

static struct queued_step step_at(struct mb_hw_stream *stream, uint64_t pos)
{
    struct queued_step q;

    memcpy(&q, mb__sim_stream_data(stream) + pos * STEP_WORDS, sizeof(q));
    return q;
}

bool mb__sim_kernel_runnable(struct sim_dev *dev, struct mb_hw_stream *stream,
                             const struct sim_op *op)
{
    struct queued_step q;

    if (op->pos == op->kernel.steps)
        return true;
    q = step_at(stream, op->pos);
    return q.step.kind != MB_SIM_SEM_WAIT || dev->sem[q.step.sem] >= q.step.value;
}

/* One instruction at a time in both modes, so that other streams come between. */
struct sim_step mb__sim_execute_kernel(struct sim_dev *dev, struct mb_hw_stream *stream,
                                       struct sim_op *op)
{
    struct sim_step step = {op->pos ? 0 : dev->model->kernel_ns, false};

    if (!stream->kernel)
        stream->kernel = calloc(1, sizeof(*stream->kernel));
    if (!stream->kernel) {
        dev->mem.failed = true;
        mb__sim_alive(dev);
        return step;
    }
    if (op->pos < op->kernel.steps) {
        struct queued_step q = step_at(stream, op->pos);

        if (!instruction(dev, stream, op, &q, &step.ns))
            return step;
        op->pos++;
    }
    if (op->pos == op->kernel.steps) {
        step.finished = true;
        mb__sim_land_all(dev, stream, UINT32_MAX);
        if (!(dev->mutants & MB_SIM_WARM_L1))
            mb__sim_kernel_free(stream);
    }
    return step;
}

/* ------------------------------------------------------------ enqueue */

static enum mb_err check_step(const struct sim_dev *dev, const struct mb_sim_step *s,
                              unsigned index)
{
    bool sem = s->kind == MB_SIM_SEM_WAIT || s->kind == MB_SIM_SEM_SET;

    if (sem && s->sem >= MB_SIM_SEMAPHORES)
        return mb__fail(MB_ERR_INVALID, "kernel: step %u uses semaphore %u; allowed are 0 to %d",
                        index, s->sem, MB_SIM_SEMAPHORES - 1);
    if ((is_load(s->kind) || s->kind == MB_SIM_ST) &&
        (s->va.addr % 8 || s->va.addr >> dev->geo.va_bits))
        return mb__fail(MB_ERR_INVALID,
                        "kernel: step %u accesses 0x%llx; multiples of 8 are allowed", index,
                        (unsigned long long)s->va.addr);
    return MB_OK;
}

static enum mb_err enqueue_kernel(struct sim_dev *dev, struct mb_hw_stream *stream,
                                  const struct mb_sim_step *steps, unsigned count, unsigned flags)
{
    enum mb_err err = mb__sim_alive(dev);
    struct sim_op *op;

    for (unsigned i = 0; i < count && !err; i++)
        err = check_step(dev, &steps[i], i);
    if (!err)
        err = mb__sim_stream_reserve(stream, 1, (size_t)count * STEP_WORDS);
    if (err)
        return err;
    dev->host_ns += dev->model->launch_ns;
    op = mb__sim_stream_push(stream, SIM_OP_KERNEL);
    op->flags = flags & MB_SIM_ROGUE ? SIM_OP_ROGUE : 0;
    op->kernel.steps = count;
    for (unsigned i = 0; i < count; i++) {
        struct queued_step q = {steps[i], mb__sim_oracle_expect(dev, steps[i].va.addr), 0};
        uint32_t words[STEP_WORDS];

        memcpy(words, &q, sizeof(q));
        mb__sim_stream_append(stream, op, words, STEP_WORDS);
    }
    mb__sim_engine_kick(dev);
    return MB_OK;
}

enum mb_err mb__sim_kernel(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           const struct mb_sim_step *steps, unsigned count, unsigned flags)
{
    struct sim_dev *dev = sim_dev_of(hw);
    enum mb_err err;

    sim_lock(dev);
    err = enqueue_kernel(dev, stream, steps, count, flags);
    sim_unlock(dev);
    return err;
}
