/* SPDX-License-Identifier: MIT */
/*
 * drivertab.c - page tables written by the vendor's driver, for processes without the privilege.
 *
 * How       The same batches, executed by a worker thread through cuMemMap, cuMemSetAccess and
 *           cuMemUnmap on handles of one frame. The stream announces itself in a pinned word, waits
 *           for another word, and passes its fence; the worker executes a batch once its stream has
 *           announced it and the fences that it waits for have passed, and then stores the other
 *           word.
 * Early     With early_maps a batch that only fills slots which are empty in order of submission
 *           does not wait for the announcement: nothing that was enqueued before can use those
 *           addresses, so the driver's time hides behind the stream's earlier work.
 * Order     Batches of one stream run in their order. The worker takes whichever stream's next
 *           batch can run, so a batch that waits blocks no other stream.
 * Errors    A driver call that fails after submission loses the device: the stream must not go on.
 * Locking   worker->lock guards the lists of batches and the record of what windows show.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "hw/nvrm/fence.h"

/* Words in a stream's timeline line. */
enum { WORD_ANNOUNCE = 1, WORD_DONE = 2 };

struct change {
    struct mb_cuda_window *window;
    uint32_t first, count;
    int access;   /* CU_MEM_ACCESS_*; NONE: unmap */
    mb_pfn *pfns; /* NULL: unmap; points behind the array of changes */
};

struct batch {
    struct batch *next;
    struct mb_hw_stream *stream;
    uint64_t number; /* of the stream's order */
    struct mb_hw_fence *waits;
    unsigned wait_count, change_count;
    bool early; /* need not wait for its stream */
    struct change change[];
};

struct mb_cuda_worker {
    struct mb_cuda *dev;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct batch *first, **last; /* in order of submission */
    struct batch *running;       /* taken off the list */
    bool stop;
    pthread_t thread;
};

/* ------------------------------------------------------------ the driver's calls */

static enum mb_err unmap_run(struct mb_cuda *dev, struct mb_cuda_window *w, uint32_t first,
                             uint32_t count)
{
    enum mb_err err = mb__cuda_result(
        dev, dev->cu->mem_unmap(w->va.addr + first * MB_FRAME_BYTES, count * MB_FRAME_BYTES),
        "unmapping");

    for (uint32_t i = first; !err && i < first + count; i++) {
        w->mapped[i] = 0;
        w->shown[i] = MB_NO_PFN;
        w->prot[i] = CU_MEM_ACCESS_NONE;
    }
    return err;
}

/* Unmaps slots of a change that must go: those whose frame changes. */
static enum mb_err unmap_changed(struct mb_cuda *dev, const struct change *c)
{
    struct mb_cuda_window *w = c->window;
    uint32_t run = 0;
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i <= c->count; i++) {
        uint32_t slot = c->first + i;
        bool go = i < c->count && w->mapped[slot] &&
                  (!c->pfns || !mb__pfn_eq(c->pfns[i], w->shown[slot]));

        if (go) {
            run++;
        } else if (run) {
            err = unmap_run(dev, w, slot - run, run);
            run = 0;
        }
    }
    return err;
}

/* Access for runs of slots that do not have it yet: the driver takes about 25 us for each slot that
 * it is asked for, also when nothing changes. */
static enum mb_err grant(struct mb_cuda *dev, const struct change *c)
{
    struct mb_cuda_window *w = c->window;
    uint32_t run = 0;
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i <= c->count; i++) {
        uint32_t slot = c->first + i;

        if (i < c->count && w->prot[slot] != c->access) {
            run++;
        } else if (run) {
            err = mb__cuda_set_access(dev, w->va.addr + (slot - run) * MB_FRAME_BYTES,
                                      run * MB_FRAME_BYTES, c->access);
            if (!err)
                memset(&w->prot[slot - run], c->access, run);
            run = 0;
        }
    }
    return err;
}

static enum mb_err map_changed(struct mb_cuda *dev, const struct change *c)
{
    struct mb_cuda_window *w = c->window;
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i < c->count; i++) {
        uint32_t slot = c->first + i;
        cu_mem handle = dev->frame_handle[c->pfns[i].n / MB_FRAME_PFNS];

        if (w->mapped[slot])
            continue;
        err = mb__cuda_result(
            dev, dev->cu->mem_map(w->va.addr + slot * MB_FRAME_BYTES, MB_FRAME_BYTES, 0, handle, 0),
            "mapping");
        if (!err) {
            w->mapped[slot] = handle;
            w->shown[slot] = c->pfns[i];
        }
    }
    return err ? err : grant(dev, c);
}

static enum mb_err execute(struct mb_cuda *dev, const struct batch *b)
{
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < b->change_count; i++) {
        err = unmap_changed(dev, &b->change[i]);
        if (!err && b->change[i].pfns)
            err = map_changed(dev, &b->change[i]);
    }
    return err;
}

/* ------------------------------------------------------------ worker */

static bool ready(struct mb_cuda *dev, const struct batch *b)
{
    if (!b->early &&
        atomic_load_explicit(&b->stream->timeline[WORD_ANNOUNCE], memory_order_acquire) < b->number)
        return false;
    for (unsigned i = 0; i < b->wait_count; i++) {
        if (!mb__cuda_fence_done(&dev->base, b->waits[i]))
            return false;
    }
    return true;
}

/* lock held. The first batch that can run and is its stream's oldest, unlinked; or NULL. */
static struct batch *take_ready(struct mb_cuda_worker *w)
{
    for (struct batch **at = &w->first; *at; at = &(*at)->next) {
        struct batch *b = *at;
        bool oldest = true;

        for (struct batch *o = w->first; o != b; o = o->next)
            oldest = oldest && o->stream != b->stream;
        if (!oldest || !ready(w->dev, b))
            continue;
        *at = b->next;
        if (!b->next)
            w->last = at;
        return b;
    }
    return NULL;
}

static void finish(struct mb_cuda *dev, struct batch *b)
{
    enum mb_err err = atomic_load(&dev->lost) ? MB_ERR_DEVICE_LOST : execute(dev, b);

    if (err)
        (void)mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "a batch failed after its submission: %s",
                            mb_error_detail());
    else
        atomic_store_explicit(&b->stream->timeline[WORD_DONE], b->number, memory_order_release);
    free(b);
}

static void *work(void *user)
{
    struct mb_cuda_worker *w = user;
    int mode = CU_CAPTURE_RELAXED;
    unsigned idle = 0;

    (void)w->dev->cu->ctx_set(w->dev->ctx);
    (void)w->dev->cu->capture_mode(&mode);
    pthread_mutex_lock(&w->lock);
    while (!w->stop || w->first) {
        if (!w->first) {
            pthread_cond_wait(&w->wake, &w->lock);
            continue;
        }
        if (w->stop && atomic_load(&w->dev->lost))
            break;
        w->running = take_ready(w);
        if (w->running) {
            struct batch *b = w->running;

            idle = 0;
            pthread_mutex_unlock(&w->lock);
            finish(w->dev, b);
            pthread_mutex_lock(&w->lock);
            w->running = NULL;
            continue;
        }
        pthread_mutex_unlock(&w->lock);
        if (++idle < 200)
            mb__nvrm_cpu_relax();
        else
            usleep(idle < 2000 ? 5 : 50);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

enum mb_err mb__cuda_worker_start(struct mb_cuda *dev)
{
    struct mb_cuda_worker *w = calloc(1, sizeof(*w));
    int rc;

    if (!w)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for the worker's record");
    w->dev = dev;
    w->last = &w->first;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    rc = pthread_create(&w->thread, NULL, work, w);
    if (rc) {
        free(w);
        return mb__fail(MB_ERR_HOST_MEMORY, "starting the worker thread: %s", strerror(rc));
    }
    dev->worker = w;
    return MB_OK;
}

void mb__cuda_worker_stop(struct mb_cuda *dev)
{
    struct mb_cuda_worker *w = dev->worker;

    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    while (w->first) {
        struct batch *b = w->first;

        w->first = b->next;
        free(b);
    }
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->wake);
    free(w);
    dev->worker = NULL;
}

/* ------------------------------------------------------------ submission */

static int access_of(const struct mb_cuda *dev, uint64_t tmpl)
{
    struct mb_pte pte = {.lo = tmpl, .hi = 0};
    struct mb_leaf leaf;

    return mb_fmt_decode_leaf(dev->space.fmt, MB_FRAME_SHIFT, pte, &leaf) &&
                   leaf.flags & MB_LEAF_READ_ONLY
               ? CU_MEM_ACCESS_READ
               : CU_MEM_ACCESS_READ_WRITE;
}

static enum mb_err new_batch(struct mb_cuda *dev, struct mb_hw_stream *stream,
                             const struct mb_hw_cmd *cmds, unsigned count, struct batch **out)
{
    size_t frames = 0, waits = 0, changes = 0;
    struct mb_cuda_span span = {UINT32_MAX, 0};
    struct mb_cuda_window *window;
    struct batch *b;
    mb_pfn *pfns;

    for (unsigned i = 0; i < count; i++) {
        waits += cmds[i].kind == MB_HW_WAIT;
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        enum mb_err err = mb__cuda_check_leaves(dev, &cmds[i], &window, &span);
        if (err)
            return err;
        changes++;
        frames += cmds[i].leaves.pfns ? cmds[i].leaves.count : 0;
    }
    b = calloc(1, sizeof(*b) + changes * sizeof(b->change[0]) + waits * sizeof(*b->waits) +
                      frames * sizeof(mb_pfn));
    if (!b)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a batch of %zu frames", frames);
    b->stream = stream;
    b->waits = (struct mb_hw_fence *)(void *)&b->change[changes];
    pfns = (mb_pfn *)(void *)&b->waits[waits];
    for (unsigned i = 0; i < count; i++) {
        struct change *c = &b->change[b->change_count];

        if (cmds[i].kind == MB_HW_WAIT && cmds[i].fence.stream != stream)
            b->waits[b->wait_count++] = cmds[i].fence;
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        *c = (struct change){.window =
                                 (struct mb_cuda_window *)(uintptr_t)cmds[i].leaves.view->cookie,
                             .first = cmds[i].leaves.first,
                             .count = cmds[i].leaves.count,
                             .access = access_of(dev, cmds[i].leaves.tmpl)};
        if (cmds[i].leaves.pfns) {
            c->pfns = pfns;
            memcpy(pfns, cmds[i].leaves.pfns, sizeof(*pfns) * c->count);
            pfns += c->count;
        }
        b->change_count++;
    }
    *out = b;
    return MB_OK;
}

/* lock held, in order of submission. Does the batch only fill empty slots? Notes what it leaves. */
static bool fills_empty(const struct batch *b)
{
    bool early = b->change_count != 0;

    for (unsigned i = 0; i < b->change_count; i++) {
        const struct change *c = &b->change[i];
        uint8_t *cleared = c->window->cleared + c->first;

        early = early && c->pfns && (!c->count || !memchr(cleared, 0, c->count));
        memset(cleared, !c->pfns, c->count);
    }
    return early;
}

static enum mb_err enqueue(struct mb_cuda *dev, struct mb_hw_stream *stream, uint64_t number)
{
    struct cu_mem_op ops[3];

    memset(ops, 0, sizeof(ops));
    ops[0] = (struct cu_mem_op){.op = CU_MEM_OP_WRITE64,
                                .address = stream->timeline_dev + 8 * WORD_ANNOUNCE,
                                .value = number};
    ops[1] = (struct cu_mem_op){.op = CU_MEM_OP_WAIT64,
                                .address = stream->timeline_dev + 8 * WORD_DONE,
                                .value = number,
                                .flags = CU_WAIT_GEQ};
    ops[2] = (struct cu_mem_op){
        .op = CU_MEM_OP_WRITE64, .address = stream->timeline_dev, .value = stream->seq + 1};
    return mb__cuda_result(dev, dev->cu->stream_ops(stream->native, 3, ops, 0),
                           "ordering a batch with its stream");
}

enum mb_err mb__cuda_driver_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                   const struct mb_hw_cmd *cmds, unsigned count,
                                   struct mb_hw_fence *done)
{
    struct mb_cuda_worker *w = dev->worker;
    struct batch *b = NULL;
    enum mb_err err;

    if (mb__cuda_capturing(dev, stream))
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "the stream is being captured, and the driver maps only outside of "
                        "captures: map before, or use device tables");
    err = new_batch(dev, stream, cmds, count, &b);
    if (err || !b)
        return err;
    b->number = stream->order + 1;
    err = enqueue(dev, stream, b->number);
    if (err) {
        free(b);
        return err;
    }
    stream->order++;
    stream->seq++;
    pthread_mutex_lock(&w->lock);
    b->early = fills_empty(b) && dev->early_maps;
    *w->last = b;
    w->last = &b->next;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    *done = (struct mb_hw_fence){.stream = stream, .seq = stream->seq};
    return MB_OK;
}

/* ------------------------------------------------------------ windows */

enum mb_err mb__cuda_driver_adopt(struct mb_cuda *dev, mb_va va, uint64_t bytes,
                                  struct mb_hw_view *out)
{
    size_t slots = bytes >> MB_FRAME_SHIFT;
    struct mb_cuda_window *w = calloc(1, sizeof(*w));

    (void)dev;
    if (w) {
        w->va = va;
        w->mapped = calloc(slots, sizeof(*w->mapped));
        w->shown = malloc(slots * sizeof(*w->shown));
        w->prot = calloc(slots, 1);
        w->cleared = malloc(slots);
    }
    if (!w || !w->mapped || !w->shown || !w->prot || !w->cleared) {
        if (w) {
            free(w->cleared);
            free(w->mapped);
            free(w->shown);
            free(w->prot);
        }
        free(w);
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a window's record");
    }
    for (size_t i = 0; i < slots; i++)
        w->shown[i] = MB_NO_PFN;
    memset(w->cleared, 1, slots);
    *out = (struct mb_hw_view){.va = va,
                               .bytes = bytes,
                               .leaf_shift = MB_FRAME_SHIFT,
                               .slot_bytes = 16,
                               .table = 0,
                               .clear_pfn = MB_NO_PFN,
                               .cookie = (uintptr_t)w};
    return MB_OK;
}

void mb__cuda_driver_disown(struct mb_cuda *dev, struct mb_hw_view *view)
{
    struct mb_cuda_window *w = (struct mb_cuda_window *)(uintptr_t)view->cookie;
    struct change all = {.window = w, .count = (uint32_t)(view->bytes >> MB_FRAME_SHIFT)};

    (void)unmap_changed(dev, &all);
    free(w->cleared);
    free(w->mapped);
    free(w->shown);
    free(w->prot);
    free(w);
}

enum mb_err mb__cuda_driver_read_slots(struct mb_cuda *dev, const struct mb_hw_view *view,
                                       uint32_t first, uint32_t count, struct mb_pte *out)
{
    struct mb_cuda_window *w = (struct mb_cuda_window *)(uintptr_t)view->cookie;

    pthread_mutex_lock(&dev->worker->lock);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = first + i;

        out[i] = (struct mb_pte){0, 0};
        if (!mb__pfn_eq(w->shown[slot], MB_NO_PFN))
            out[i] = mb__cuda_expect(&dev->space, w->prot[slot] == CU_MEM_ACCESS_READ_WRITE,
                                     mb__phys_of_pfn(w->shown[slot]));
    }
    pthread_mutex_unlock(&dev->worker->lock);
    return MB_OK;
}
