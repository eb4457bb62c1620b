/* SPDX-License-Identifier: MIT */
/*
 * lab_cuda.c - the lab on CUDA: the interpreter kernel, copy engines, graphs. What the vendor's own
 * calls cost is in lab_vendor.c.
 *
 * Steps, semaphores and answers lie in pinned memory, so a launch needs no copies. Steps of one
 * launch stay where they are until the ring has come round, MAX_STEPS later; callers wait far more
 * often than that.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "probe/lab_cuda.h"

struct mb_lab_cuda *mb__lab_cuda_own(struct mb_lab *lab)
{
    return lab->own;
}

static struct mb_cuda *dev_of(struct mb_lab *lab)
{
    return mb__cuda(lab->hw);
}

enum mb_err mb__lab_cuda_check(struct mb_lab *lab, cu_result result, const char *what)
{
    return mb__cuda_result(dev_of(lab), result, what);
}
#define CHECKED(lab, call, what) mb__lab_cuda_check((lab), (call), (what))

/* ------------------------------------------------------------ open */

static enum mb_err pinned(struct mb_lab *lab, size_t bytes, struct mb_lab_pinned *out)
{
    const struct mb_cuda_driver *cu = dev_of(lab)->cu;
    enum mb_err err = CHECKED(
        lab, cu->host_alloc(&out->host, bytes, CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_MAPPED),
        "pinned memory for a lab");

    if (err)
        return err;
    memset(out->host, 0, bytes);
    return CHECKED(lab, cu->host_device_ptr(&out->device, out->host, 0),
                   "device address of pinned memory");
}

static enum mb_err resolve(struct mb_lab *lab, struct mb_lab_cuda *own)
{
    const struct mb_cuda_driver *cu = dev_of(lab)->cu;

#define MB_LAB_RESOLVE(member, symbol, args)                                                       \
    *(void **)(&own->member) = dlsym(cu->handle, symbol);                                          \
    if (!own->member)                                                                              \
        return mb__fail(MB_ERR_NOT_SUPPORTED, "libcuda has no %s", symbol);
    MB_LAB_CUDA_LIST(MB_LAB_RESOLVE)
#undef MB_LAB_RESOLVE
    return MB_OK;
}

static enum mb_err kernels(struct mb_lab *lab, struct mb_lab_cuda *own)
{
    struct {
        cu_function *to;
        const char *name;
    } list[] = {{&own->litmus, "mb_litmus"}, {&own->dependent, "mb_litmus_dependent"},
                {&own->spin, "mb_spin"},     {&own->wander, "mb_wander"},
                {&own->touch, "mb_touch"},   {&own->first_touch, "mb_first_touch"}};
    struct mb_cuda *dev = dev_of(lab);
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < sizeof(list) / sizeof(list[0]); i++)
        err = CHECKED(lab, dev->cu->module_function(list[i].to, dev->module, list[i].name),
                      list[i].name);
    return err;
}

static enum mb_err cuda_open(struct mb_lab *lab)
{
    struct mb_lab_cuda *own = calloc(1, sizeof(*own));
    struct mb_cuda *dev = dev_of(lab);
    enum mb_err err;

    if (!own)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a lab");
    lab->own = own;
    /* The lab's thread works in the context directly, as an application would. */
    err = CHECKED(lab, dev->cu->ctx_set(dev->ctx), "making the context current");
    if (!err)
        err = resolve(lab, own);
    if (!err)
        err = kernels(lab, own);
    if (!err)
        err = pinned(lab, sizeof(struct mb_litmus_step) * MB_LAB_CUDA_STEPS, &own->steps);
    if (!err)
        err = pinned(lab, 8 * (MB_LITMUS_ANSWERS + MB_LITMUS_SEMAPHORES + 8), &own->words);
    if (err)
        return err;
    lab->answer = own->words.host;
    own->answers_dev = own->words.device;
    own->sems = (volatile uint64_t *)own->words.host + MB_LITMUS_ANSWERS;
    own->sems_dev = own->words.device + 8 * MB_LITMUS_ANSWERS;
    own->stop = own->sems + MB_LITMUS_SEMAPHORES;
    own->stop_dev = own->sems_dev + 8 * MB_LITMUS_SEMAPHORES;
    return MB_OK;
}

static void cuda_close(struct mb_lab *lab)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    const struct mb_cuda_driver *cu = dev_of(lab)->cu;

    if (own->words.host)
        (void)cu->host_free(own->words.host);
    if (own->steps.host)
        (void)cu->host_free(own->steps.host);
    if (own->bulk.host)
        (void)cu->host_free(own->bulk.host);
    free(own);
    lab->own = NULL;
}

/* ------------------------------------------------------------ time and waiting */

static uint64_t cuda_now(struct mb_lab *lab)
{
    (void)lab;
    return mb__now_ns();
}

static enum mb_err cuda_sync(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    const struct mb_cuda_driver *cu = dev_of(lab)->cu;

    return CHECKED(lab, stream ? cu->stream_sync(stream->native) : cu->ctx_sync(),
                   "waiting for a stream");
}

static bool cuda_busy(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    return dev_of(lab)->cu->stream_query(stream->native) == CU_NOT_READY;
}

/* ------------------------------------------------------------ kernels */

static enum mb_err launch(struct mb_lab *lab, cu_function f, unsigned blocks, unsigned threads,
                          struct mb_hw_stream *stream, void **params, const char *what)
{
    return CHECKED(
        lab,
        dev_of(lab)->cu->launch(f, blocks, 1, 1, threads, 1, 1, 0, stream->native, params, NULL),
        what);
}

static enum mb_err cuda_nop(struct mb_lab *lab, struct mb_hw_stream *stream)
{
    return launch(lab, dev_of(lab)->nop, 1, 32, stream, NULL, "launching an empty kernel");
}

static enum mb_err cuda_touch(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va,
                              uint64_t stride, uint32_t count, uint64_t first)
{
    void *params[] = {&va.addr, &stride, &count, &first};

    return launch(lab, mb__lab_cuda_own(lab)->touch, (count + 127) / 128, 128, stream, params,
                  "touching pages");
}

static enum mb_err cuda_spin(struct mb_lab *lab, struct mb_hw_stream *stream, uint64_t ns)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    void *params[] = {&ns, &own->stop_dev};

    *own->stop = 0;
    return launch(lab, own->spin, 1, 32, stream, params, "launching a kernel that takes time");
}

static void cuda_unspin(struct mb_lab *lab)
{
    *mb__lab_cuda_own(lab)->stop = 1;
}

static enum mb_err cuda_wander(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t reads)
{
    uint64_t words = (uint64_t)lab->frames << MB_FRAME_SHIFT >> 3;
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    void *params[] = {&lab->home.addr, &words, &reads, &own->answers_dev};

    return launch(lab, own->wander, 4 * dev_of(lab)->multiprocessors, 256, stream, params,
                  "launching random reads");
}

/* ------------------------------------------------------------ programs */

/* Puts steps where the device reads them; returns the number of threads. */
static unsigned place(struct mb_lab_cuda *own, const struct mb_litmus_step *steps, unsigned count,
                      uint64_t *at)
{
    struct mb_litmus_step *to = own->steps.host;
    unsigned threads = 1;

    if (own->used + count > MB_LAB_CUDA_STEPS)
        own->used = 0;
    memcpy(to + own->used, steps, sizeof(*steps) * count);
    *at = own->steps.device + sizeof(*steps) * own->used;
    own->used += count;
    for (unsigned i = 0; i < count; i++)
        threads = steps[i].thread + 1 > threads ? steps[i].thread + 1 : threads;
    return threads;
}

static enum mb_err launch_dependent(struct mb_lab *lab, struct mb_hw_stream *stream,
                                    unsigned blocks, void **params)
{
    struct mb_lab_attribute attr = {.id = MB_LAB_PROGRAMMATIC, .value = {1}};
    struct mb_lab_launch config = {.grid = {blocks, 1, 1},
                                   .block = {1, 1, 1},
                                   .stream = stream->native,
                                   .attrs = &attr,
                                   .attr_count = 1};
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);

    return CHECKED(lab, own->launch_ex(&config, own->dependent, params, NULL),
                   "a programmatic dependent launch");
}

static enum mb_err cuda_run(struct mb_lab *lab, struct mb_hw_stream *stream,
                            const struct mb_litmus_step *steps, unsigned count, bool dependent)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    uint64_t at;
    unsigned blocks;
    void *params[] = {&at, &count, &own->sems_dev, &own->answers_dev};

    if (count > MB_LAB_CUDA_STEPS)
        return mb__fail(MB_ERR_LIMIT, "a program of %u steps; at most %d", count,
                        MB_LAB_CUDA_STEPS);
    blocks = place(own, steps, count, &at);
    return dependent ? launch_dependent(lab, stream, blocks, params)
                     : launch(lab, own->litmus, blocks, 1, stream, params, "a litmus program");
}

static enum mb_err cuda_run_graph(struct mb_lab *lab, struct mb_hw_stream *stream,
                                  const struct mb_litmus_step *steps, const unsigned *counts,
                                  unsigned nodes)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    cu_graph_exec exec = NULL;
    cu_graph graph = NULL;
    enum mb_err err, ended;

    err = CHECKED(lab, own->begin_capture(stream->native, CU_CAPTURE_RELAXED), "a capture");
    if (err)
        return err;
    for (unsigned i = 0; !err && i < nodes; i++) {
        err = cuda_run(lab, stream, steps, counts[i], false);
        steps += counts[i];
    }
    ended = CHECKED(lab, own->end_capture(stream->native, &graph), "ending a capture");
    err = err ? err : ended;
    if (!err)
        err = CHECKED(lab, own->instantiate(&exec, graph, 0), "making a graph");
    if (!err)
        err = CHECKED(lab, own->graph_launch(exec, stream->native), "launching a graph");
    if (!err)
        err = cuda_sync(lab, stream);
    if (exec)
        (void)own->exec_destroy(exec);
    if (graph)
        (void)own->graph_destroy(graph);
    return err;
}

static enum mb_err cuda_copy_read(struct mb_lab *lab, struct mb_hw_stream *stream, mb_va va,
                                  unsigned index)
{
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);

    return CHECKED(lab, own->copy_d2h(lab->answer + index, va.addr, 8, stream->native),
                   "a copy to the host");
}

/* ------------------------------------------------------------ semaphores */

static enum mb_err cuda_sem_wait(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                                 uint64_t value)
{
    return CHECKED(lab,
                   dev_of(lab)->cu->stream_wait64(stream->native,
                                                  mb__lab_cuda_own(lab)->sems_dev + 8 * sem, value,
                                                  CU_WAIT_GEQ),
                   "a stream's wait");
}

static enum mb_err cuda_sem_set(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t sem,
                                uint64_t value)
{
    return CHECKED(lab,
                   dev_of(lab)->cu->stream_write64(
                       stream->native, mb__lab_cuda_own(lab)->sems_dev + 8 * sem, value, 0),
                   "a stream's write");
}

static void cuda_sem_host(struct mb_lab *lab, uint32_t sem, uint64_t value)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    mb__lab_cuda_own(lab)->sems[sem] = value;
}

/* ------------------------------------------------------------ tables */

/* The entries name no frame, lie in the lab's own window, and are restored with it. */
static enum mb_err cuda_spoil(struct mb_lab *lab, struct mb_hw_stream *stream, uint32_t slot,
                              uint32_t count)
{
    struct {
        struct mb_pop_head head;
        uint16_t list[MB_POP_LIST_S];
    } p = {0};
    struct mb_cuda *dev = dev_of(lab);
    void *params[] = {&p};

    if (dev->tables != MB_CUDA_INLINE)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "invalid entries need tables:inline");
    if (slot > lab->slots || count > lab->slots - slot)
        return mb__fail(MB_ERR_INVALID, "slots %u + %u of a window of %u", slot, count, lab->slots);
    p.head.segments = 1;
    p.head.slot_bytes = lab->view.slot_bytes;
    p.head.pfn_shift = mb_fmt_pfn_shift(lab->hw->caps.format);
    p.head.segment[0] =
        (struct mb_pop_segment){.slots = lab->view.table + (uint64_t)slot * lab->view.slot_bytes,
                                .count = count,
                                .at = MB_POP_SAME};
    return launch(lab, dev->pop_s, 1, 32, stream, params, "writing invalid entries");
}

static enum mb_err cuda_targeted(struct mb_lab *lab, bool on)
{
    struct mb_cuda *dev = dev_of(lab);

    if (dev->tables != MB_CUDA_ISOLATED)
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "invalidates of a range need tables:isolated: those that kernels ask for "
                        "are prepared before the range is known");
    dev->targeted = on;
    return MB_OK;
}

static enum mb_err cuda_invalidate(struct mb_lab *lab)
{
    struct mb_cuda *dev = dev_of(lab);

    if (dev->tables == MB_CUDA_DRIVER)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "invalidates are the driver's with tables:driver");
    return mb__cuda_rescue_invalidate(dev, 1000000)
               ? MB_OK
               : mb__fail(MB_ERR_TIMEOUT, "the helper channel did not answer within 1 s");
}

static uint64_t cuda_faults(struct mb_lab *lab)
{
    (void)lab;
    return 0; /* the driver counts them, but not for us */
}

/* The 16-byte slot of the last directory level that `va` leads to, read over BAR1. */
static enum mb_err read_slot(struct mb_cuda *dev, uint64_t va, struct mb_pte *out)
{
    struct mb_cuda_pages *pages;
    struct mb_cuda_reader reader;
    struct mb_cuda_walk walk;
    struct mb_pte pte;
    uint64_t at;
    enum mb_err err;

    if (dev->tables == MB_CUDA_DRIVER)
        return mb__fail(MB_ERR_NOT_SUPPORTED, "entries cannot be read with tables:driver");
    pages = malloc(sizeof(*pages));
    if (!pages)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a walk");
    mb__cuda_pages_init(dev, pages);
    reader = mb__cuda_pages_reader(pages);
    err = mb__cuda_walk(&dev->space, reader, va, &walk);
    at = err ? 0 : walk.table[walk.levels - 1] + 16ull * walk.slot;
    if (!err)
        err = reader.read(reader.user, at, &pte.lo);
    if (!err)
        err = reader.read(reader.user, at + 8, &pte.hi);
    mb__cuda_pages_fini(pages);
    free(pages);
    if (!err)
        *out = pte;
    return err;
}

static enum mb_err cuda_driver_entry(struct mb_lab *lab, uint32_t frame, struct mb_pte *out)
{
    return read_slot(dev_of(lab), lab->home.addr + (uint64_t)frame * MB_FRAME_BYTES, out);
}

static enum mb_err cuda_small_leaf(struct mb_lab *lab, uint64_t *leaf_bytes)
{
    struct mb_cuda *dev = dev_of(lab);
    unsigned last = mb_fmt_geometry(lab->hw->caps.format).levels - 1;
    struct mb_dir dir;
    struct mb_pte pte;
    cu_ptr p;
    enum mb_err err = CHECKED(lab, dev->cu->mem_alloc(&p, 4096), "cuMemAlloc");

    if (err)
        return err;
    err = read_slot(dev, p, &pte);
    (void)dev->cu->mem_free(p);
    if (err)
        return err;
    if (mb_fmt_is_leaf(lab->hw->caps.format, last, pte))
        *leaf_bytes = MB_FRAME_BYTES;
    else if (mb_fmt_decode_dir(lab->hw->caps.format, last, pte, &dir) &&
             (dir.valid || dir.valid_big))
        *leaf_bytes = dir.valid_big ? 65536 : 4096;
    else
        err = mb__fail(MB_ERR_NOT_SUPPORTED, "the slot is neither a leaf nor a directory");
    return err;
}

static enum mb_err cuda_first_touch(struct mb_lab *lab, uint32_t pages, double *first_ns,
                                    double *later_ns)
{
    enum { CLOCK_RATE = 13 }; /* device attribute, kHz */
    struct mb_lab_cuda *own = mb__lab_cuda_own(lab);
    uint64_t stride = (uint64_t)lab->hw->caps.group_slots << MB_FRAME_SHIFT >> 3;
    double *out[2] = {first_ns, later_ns};
    int khz = 0;
    enum mb_err err = CHECKED(
        lab, dev_of(lab)->cu->device_attr(&khz, CLOCK_RATE, dev_of(lab)->device), "clock rate");

    if (pages > lab->frames / lab->hw->caps.group_slots)
        pages = lab->frames / lab->hw->caps.group_slots;
    if (!khz || !pages)
        return err ? err : mb__fail(MB_ERR_NOT_SUPPORTED, "no clock rate, or too few frames");
    for (unsigned turn = 0; !err && turn < 2; turn++) {
        void *params[] = {&lab->home.addr, &stride, &pages, &own->answers_dev};
        double cycles = 0;

        if (!turn)
            err = cuda_invalidate(lab);
        if (!err)
            err = launch(lab, own->first_touch, 1, 1, lab->stream[0], params, "first touches");
        if (!err)
            err = cuda_sync(lab, lab->stream[0]);
        for (uint32_t i = 0; i < pages; i++)
            cycles += (double)lab->answer[i];
        *out[turn] = cycles / pages * 1e6 / khz;
    }
    lab->clock_khz = (unsigned)khz;
    return err;
}

const struct mb_lab_ops mb__lab_cuda = {
    .open = cuda_open,
    .close = cuda_close,
    .now = cuda_now,
    .sync = cuda_sync,
    .busy = cuda_busy,
    .nop = cuda_nop,
    .touch = cuda_touch,
    .spin = cuda_spin,
    .unspin = cuda_unspin,
    .run = cuda_run,
    .run_graph = cuda_run_graph,
    .copy_read = cuda_copy_read,
    .sem_wait = cuda_sem_wait,
    .sem_set = cuda_sem_set,
    .sem_host = cuda_sem_host,
    .spoil = cuda_spoil,
    .vendor = mb__lab_cuda_vendor,
    .wander = cuda_wander,
    .copy_rate = mb__lab_cuda_copy_rate,
    .targeted = cuda_targeted,
    .first_touch = cuda_first_touch,
    .invalidate = cuda_invalidate,
    .faults = cuda_faults,
    .driver_entry = cuda_driver_entry,
    .small_leaf = cuda_small_leaf,
};
