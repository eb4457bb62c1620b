/* SPDX-License-Identifier: MIT */
/*
 * tables.c - page tables written by the driver through HIP, in the order of streams.
 *
 * How       HIP's calls act at once, on the host, and hipMemUnmap first waits for all streams of
 *           the device. So no stream may wait for such a call, or the two would wait for each
 *           other. Instead:
 *             - a slot that shows nothing is mapped inside submit: nothing that runs can have an
 *               opinion on it;
 *             - a slot that shall show nothing is *leaving*: a worker unmaps it when its stream
 *               has passed the batch; nobody waits for that;
 *             - a slot that shows one frame and shall show another has to wait for its stream
 *               inside submit, as there is no third way. Always-fresh addresses, the default here,
 *               never ask for it.
 * Order     A batch takes effect where its fence stands in the stream: behind its WAIT commands,
 *           in front of later work. Mapping an empty slot earlier than that is invisible to
 *           correct programs.
 * Errors    A batch that fails before anything was unmapped takes its own mappings back; after
 *           that the device is lost, since the old contents of the slots cannot be brought back in
 *           order.
 * Locking   dev->map_lock. It is given up while waiting for a stream, and by the worker around
 *           HIP's unmap.
 */
#include "hw/hip/hip.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"

/* One submission. */
/* A slot that a batch has given more rights, and those it had. */
struct raised {
    struct mb_hip_slot *slot;
    uint64_t va;
    int access;
};

struct batch {
    struct mb_hip *dev;
    struct mb_hw_stream *stream;
    struct mb_hw_fence fence;                 /* where the batch takes effect */
    struct mb_hip_leave *spare;               /* records for what will leave, made in advance */
    struct mb_hip_leave *leave, **leave_last; /* not yet in the device's queue */
    struct mb_hip_slot **mapped;              /* slots mapped by this batch, with their addresses */
    uint64_t *mapped_va;
    size_t mapped_count;
    struct raised *raised;
    size_t raised_count;
    bool final; /* something was unmapped for it: no way back */
};

/* ------------------------------------------------------------ worker */

/* map_lock held. The first leave whose fence has passed, unlinked; or NULL. */
static struct mb_hip_leave *take_passed(struct mb_hip *dev)
{
    for (struct mb_hip_leave **at = &dev->leave; *at; at = &(*at)->next) {
        struct mb_hip_leave *l = *at;

        if (!mb__hip_fence_done(&dev->base, l->fence))
            continue;
        *at = l->next;
        if (!l->next)
            dev->leave_last = at;
        return l;
    }
    return NULL;
}

/* map_lock held; given up around HIP's call. One mapping at a time: not every runtime takes a range
 * of several. */
static void unmap_slots(struct mb_hip *dev, const struct mb_hip_leave *l)
{
    for (uint32_t i = l->first; i < l->first + l->count; i++) {
        struct mb_hip_slot *slot = &l->window->slot[i];
        uint64_t va = l->window->va.addr + i * MB_FRAME_BYTES;
        enum mb_err err;

        if (slot->leave != l->number || atomic_load(&dev->lost))
            continue;
        pthread_mutex_unlock(&dev->map_lock);
        err = mb__hip_result(dev, dev->hip->mem_unmap((void *)(uintptr_t)va, MB_FRAME_BYTES),
                             "unmapping device memory");
        if (err)
            (void)mb__hip_lose(dev, MB_ERR_DEVICE_LOST, "a slot could not be unmapped: %s",
                               mb_error_detail());
        pthread_mutex_lock(&dev->map_lock);
        *slot = (struct mb_hip_slot){.pfn = MB_NO_PFN};
    }
}

/* map_lock held. Until something changes, or the fences are worth another look. */
static void wait_a_little(struct mb_hip *dev)
{
    struct timespec until;

    if (!dev->leave) {
        pthread_cond_wait(&dev->leave_changed, &dev->map_lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&dev->leave_changed, &dev->map_lock, &until);
}

static void *work(void *user)
{
    struct mb_hip *dev = user;
    int mode = HIP_CAPTURE_RELAXED;

    (void)dev->hip->set_device(dev->ordinal);
    (void)dev->hip->capture_mode(&mode);
    pthread_mutex_lock(&dev->map_lock);
    while (!dev->worker_stop) {
        struct mb_hip_leave *l = take_passed(dev);

        if (!l) {
            wait_a_little(dev);
            continue;
        }
        dev->unmapping = true;
        unmap_slots(dev, l);
        dev->unmapping = false;
        free(l);
        pthread_cond_broadcast(&dev->leave_changed);
    }
    pthread_mutex_unlock(&dev->map_lock);
    return NULL;
}

enum mb_err mb__hip_tables_start(struct mb_hip *dev)
{
    int rc;

    dev->leave_last = &dev->leave;
    rc = pthread_create(&dev->worker, NULL, work, dev);
    if (rc)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "starting the worker thread: %s", strerror(rc));
    dev->worker_runs = true;
    return MB_OK;
}

void mb__hip_tables_stop(struct mb_hip *dev)
{
    if (!dev->worker_runs)
        return;
    pthread_mutex_lock(&dev->map_lock);
    dev->worker_stop = true;
    pthread_cond_broadcast(&dev->leave_changed);
    pthread_mutex_unlock(&dev->map_lock);
    pthread_join(dev->worker, NULL);
    dev->worker_runs = false;
    while (dev->leave) {
        struct mb_hip_leave *l = dev->leave;

        dev->leave = l->next;
        free(l);
    }
}

/* map_lock held */
static bool any_passed(struct mb_hip *dev, const struct mb_hip_window *window)
{
    for (struct mb_hip_leave *l = dev->leave; l; l = l->next) {
        if (window ? l->window == window : mb__hip_fence_done(&dev->base, l->fence))
            return true;
    }
    return dev->unmapping;
}

/* map_lock held. window: until none of its slots is leaving, whatever the fences say. */
static void settle(struct mb_hip *dev, const struct mb_hip_window *window)
{
    while (!atomic_load(&dev->lost) && any_passed(dev, window)) {
        pthread_cond_broadcast(&dev->leave_changed);
        wait_a_little(dev);
    }
}

void mb__hip_settle(struct mb_hip *dev)
{
    pthread_mutex_lock(&dev->map_lock);
    settle(dev, NULL);
    pthread_mutex_unlock(&dev->map_lock);
}

/* ------------------------------------------------------------ a batch */

static void free_batch(struct batch *b)
{
    while (b->spare) {
        struct mb_hip_leave *l = b->spare;

        b->spare = l->next;
        free(l);
    }
    free(b->mapped);
    free(b->mapped_va);
    free(b->raised);
}

/* map_lock held. The batch's slots that leave from now on do so in the device's queue. */
static void publish(struct batch *b)
{
    struct mb_hip *dev = b->dev;

    if (!b->leave)
        return;
    *dev->leave_last = b->leave;
    dev->leave_last = b->leave_last;
    b->leave = NULL;
    b->leave_last = &b->leave;
    pthread_cond_broadcast(&dev->leave_changed);
}

/* map_lock held. Marks what is mapped in the range; `keep` says which slots show what they shall
 * already. */
static void let_leave(struct batch *b, struct mb_hip_window *w, uint32_t first, uint32_t count,
                      const mb_pfn *keep)
{
    struct mb_hip_leave *l = b->spare;
    uint32_t marked = 0;

    if (!l) /* prepare() made one for each command */
        return;
    l->number = b->dev->leave_number + 1;
    for (uint32_t i = 0; i < count; i++) {
        struct mb_hip_slot *slot = &w->slot[first + i];

        if (!slot->handle || slot->leave || (keep && mb__pfn_eq(slot->pfn, keep[i])))
            continue;
        slot->leave = l->number;
        marked++;
    }
    if (!marked)
        return;
    b->spare = l->next;
    b->dev->leave_number++;
    l->next = NULL;
    l->fence = b->fence;
    l->window = w;
    l->first = first;
    l->count = count;
    *b->leave_last = l;
    b->leave_last = &l->next;
}

/* map_lock held; given up meanwhile. Until the stream has come to the batch and nothing of it is
 * left to unmap. */
static enum mb_err await(struct batch *b)
{
    struct mb_hip *dev = b->dev;
    enum mb_err err;

    b->final = b->final || b->leave;
    publish(b);
    atomic_fetch_add_explicit(&dev->waits, 1, memory_order_relaxed);
    pthread_mutex_unlock(&dev->map_lock);
    err = mb__hip_fence_wait_host(&dev->base, b->fence, 0);
    pthread_mutex_lock(&dev->map_lock);
    if (!err)
        settle(dev, NULL);
    if (!err && atomic_load(&dev->lost))
        err = mb__hip_fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text);
    return err;
}

/* Must the slot become empty, or lose rights, before it can show the frame? */
static bool conflicts(const struct mb_hip_slot *slot, mb_pfn pfn, int access)
{
    return slot->handle && (slot->leave || !mb__pfn_eq(slot->pfn, pfn) || slot->access > access);
}

/* map_lock held. Makes room: slots in conflict leave, and the stream is awaited if there are
 * any. */
static enum mb_err make_room(struct batch *b, struct mb_hip_window *w, uint32_t first,
                             uint32_t count, const mb_pfn *pfns, int access)
{
    bool any = false;

    for (uint32_t i = 0; i < count && !any; i++)
        any = conflicts(&w->slot[first + i], pfns[i], access);
    if (!any)
        return MB_OK;
    let_leave(b, w, first, count, pfns);
    return await(b);
}

/* map_lock held */
static enum mb_err map_slot(struct batch *b, struct mb_hip_window *w, uint32_t index, mb_pfn pfn)
{
    struct mb_hip *dev = b->dev;
    struct mb_hip_slot *slot = &w->slot[index];
    hip_mem handle = mb__hip_handle_of(dev, pfn);
    uint64_t va = w->va.addr + index * MB_FRAME_BYTES;
    enum mb_err err;

    if (slot->handle)
        return MB_OK;
    err = mb__hip_result(
        dev, dev->hip->mem_map((void *)(uintptr_t)va, MB_FRAME_BYTES, 0, handle, 0), "mapping");
    if (err)
        return err;
    *slot = (struct mb_hip_slot){.handle = handle, .pfn = pfn, .access = HIP_MEM_ACCESS_NONE};
    b->mapped[b->mapped_count] = slot;
    b->mapped_va[b->mapped_count++] = va;
    return MB_OK;
}

/* map_lock held */
static void note_access(struct batch *b, struct mb_hip_window *w, uint32_t index, int access)
{
    struct mb_hip_slot *slot = &w->slot[index];

    if (slot->access != HIP_MEM_ACCESS_NONE)
        b->raised[b->raised_count++] =
            (struct raised){slot, w->va.addr + index * MB_FRAME_BYTES, slot->access};
    slot->access = (uint8_t)access;
}

/* map_lock held. Gives `access` to runs of slots that have another. */
static enum mb_err give_access(struct batch *b, struct mb_hip_window *w, uint32_t first,
                               uint32_t count, int access)
{
    uint32_t run = 0;
    enum mb_err err = MB_OK;

    for (uint32_t i = 0; !err && i <= count; i++) {
        if (i < count && w->slot[first + i].access != access) {
            run++;
            continue;
        }
        if (run)
            err = mb__hip_set_access(b->dev, w->va.addr + (first + i - run) * MB_FRAME_BYTES,
                                     run * MB_FRAME_BYTES, access);
        for (; !err && run; run--)
            note_access(b, w, first + i - run, access);
    }
    return err;
}

/* map_lock held */
static enum mb_err map_slots(struct batch *b, const struct mb_hw_cmd *cmd, int access)
{
    struct mb_hip_window *w = (struct mb_hip_window *)(uintptr_t)cmd->leaves.view->cookie;
    uint32_t first = cmd->leaves.first, count = cmd->leaves.count;
    enum mb_err err = make_room(b, w, first, count, cmd->leaves.pfns, access);

    for (uint32_t i = 0; !err && i < count; i++)
        err = map_slot(b, w, first + i, cmd->leaves.pfns[i]);
    return err ? err : give_access(b, w, first, count, access);
}

/* map_lock held. What the batch mapped goes, and rights are what they were. */
static bool undo_slots(struct batch *b)
{
    struct mb_hip *dev = b->dev;

    while (b->raised_count) {
        const struct raised *r = &b->raised[--b->raised_count];

        if (mb__hip_set_access(dev, r->va, MB_FRAME_BYTES, r->access))
            return false;
        r->slot->access = (uint8_t)r->access;
    }
    for (size_t i = 0; i < b->mapped_count; i++) {
        if (dev->hip->mem_unmap((void *)(uintptr_t)b->mapped_va[i], MB_FRAME_BYTES) != HIP_OK)
            return false;
        *b->mapped[i] = (struct mb_hip_slot){.pfn = MB_NO_PFN};
    }
    return true;
}

/* map_lock held. After a failure: the slots show what they did, and what it marked stays. */
static enum mb_err take_back(struct batch *b, enum mb_err err)
{
    struct mb_hip *dev = b->dev;
    char why[200];

    strncpy(why, mb_error_detail(), sizeof(why) - 1);
    why[sizeof(why) - 1] = '\0';
    if (b->final)
        return mb__hip_lose(dev, MB_ERR_DEVICE_LOST, "a batch failed half way: %s", why);
    if (!undo_slots(b))
        return mb__hip_lose(dev, MB_ERR_DEVICE_LOST, "a failed batch cannot be taken back: %s",
                            why);
    while (b->leave) {
        struct mb_hip_leave *l = b->leave;

        for (uint32_t i = l->first; i < l->first + l->count; i++) {
            if (l->window->slot[i].leave == l->number)
                l->window->slot[i].leave = 0;
        }
        b->leave = l->next;
        free(l);
    }
    return mb__fail(err, "%s", why);
}

/* ------------------------------------------------------------ submission */

static int access_of(const struct mb_hip *dev, uint64_t tmpl)
{
    struct mb_pte pte = {.lo = tmpl, .hi = 0};
    struct mb_leaf leaf;

    return mb_fmt_decode_leaf(dev->base.caps.format, MB_FRAME_SHIFT, pte, &leaf) &&
                   leaf.flags & MB_LEAF_READ_ONLY
               ? HIP_MEM_ACCESS_READ
               : HIP_MEM_ACCESS_READ_WRITE;
}

static enum mb_err check_leaves(struct mb_hip *dev, const struct mb_hw_cmd *cmd)
{
    const struct mb_hip_window *w =
        (const struct mb_hip_window *)(uintptr_t)cmd->leaves.view->cookie;

    if (!w || cmd->leaves.first > w->slots || cmd->leaves.count > w->slots - cmd->leaves.first)
        return mb__hip_fail(MB_ERR_INVALID, "slots %u..%" PRIu64 " of a window that has %u",
                            cmd->leaves.first, (uint64_t)cmd->leaves.first + cmd->leaves.count,
                            w ? w->slots : 0);
    for (uint32_t i = 0; cmd->leaves.pfns && i < cmd->leaves.count; i++) {
        if (!mb__hip_handle_of(dev, cmd->leaves.pfns[i]))
            return mb__hip_fail(MB_ERR_CORRUPT, "a frame of the batch is not owned by this device: "
                                                "nothing was written");
    }
    return MB_OK;
}

/* Checks everything that can be wrong with the commands, and makes every record the batch can
 * need. */
static enum mb_err prepare(struct batch *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    size_t frames = 0;

    for (unsigned i = 0; i < count; i++) {
        struct mb_hip_leave *l;
        enum mb_err err;

        if (cmds[i].kind == MB_HW_DIR)
            return mb__hip_fail(MB_ERR_NOT_SUPPORTED, "directories are the driver's");
        if (cmds[i].kind > MB_HW_MEMBAR)
            return mb__hip_fail(MB_ERR_INVALID, "there is no command %d", (int)cmds[i].kind);
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        err = check_leaves(b->dev, &cmds[i]);
        if (err)
            return err;
        frames += cmds[i].leaves.pfns ? cmds[i].leaves.count : 0;
        l = calloc(1, sizeof(*l));
        if (!l)
            return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for a batch");
        l->next = b->spare;
        b->spare = l;
    }
    b->mapped = malloc((frames + 1) * sizeof(struct mb_hip_slot *));
    b->mapped_va = malloc((frames + 1) * sizeof(uint64_t));
    b->raised = malloc((frames + 1) * sizeof(struct raised));
    if (!b->mapped || !b->mapped_va || !b->raised)
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for a batch of %zu frames", frames);
    return MB_OK;
}

static enum mb_err run(struct batch *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    struct mb_hip *dev = b->dev;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < count; i++) {
        if (cmds[i].kind == MB_HW_WAIT)
            err = mb__hip_fence_wait_stream(&dev->base, b->stream, cmds[i].fence);
    }
    if (!err && b->spare)
        err = mb__hip_fence_record(&dev->base, b->stream, &b->fence);
    if (err)
        return err;
    pthread_mutex_lock(&dev->map_lock);
    for (unsigned i = 0; !err && i < count; i++) {
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        if (cmds[i].leaves.pfns)
            err = map_slots(b, &cmds[i], access_of(dev, cmds[i].leaves.tmpl));
        else
            let_leave(b, (struct mb_hip_window *)(uintptr_t)cmds[i].leaves.view->cookie,
                      cmds[i].leaves.first, cmds[i].leaves.count, NULL);
    }
    if (err)
        err = take_back(b, err);
    publish(b);
    pthread_mutex_unlock(&dev->map_lock);
    return err;
}

/* What the driver does for an INVALIDATE it does inside its own calls; it counts all the same. */
static void count_batch(struct mb_hip *dev, const struct mb_hw_cmd *cmds, unsigned count)
{
    uint64_t entries = 0, invalidates = 0;

    for (unsigned i = 0; i < count; i++) {
        entries += cmds[i].kind == MB_HW_LEAVES ? cmds[i].leaves.count : 0;
        invalidates += cmds[i].kind == MB_HW_INVALIDATE;
    }
    atomic_fetch_add_explicit(&dev->batches, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&dev->entries, entries, memory_order_relaxed);
    atomic_fetch_add_explicit(&dev->invalidates, invalidates, memory_order_relaxed);
}

enum mb_err mb__hip_submit(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                           const struct mb_hw_cmd *cmds, unsigned count)
{
    struct mb_hip *dev = mb__hip(hw);
    struct batch b = {.dev = dev, .stream = stream};
    struct mb_hip_scope scope;
    enum mb_err err = mb__hip_enter(dev, &scope);

    if (err)
        return err;
    b.leave_last = &b.leave;
    if (mb__hip_capturing(dev, stream))
        err =
            mb__hip_fail(MB_ERR_NOT_SUPPORTED,
                         "the stream is being captured, and HIP maps only outside of captures: map "
                         "before the capture");
    if (!err)
        err = prepare(&b, cmds, count);
    if (!err)
        err = run(&b, cmds, count);
    free_batch(&b);
    mb__hip_leave(dev, &scope);
    if (!err)
        count_batch(dev, cmds, count);
    return err;
}

/* ------------------------------------------------------------ windows */

enum mb_err mb__hip_tree_adopt(struct mb_hw_dev *hw, mb_va va, uint64_t bytes,
                               struct mb_hw_view *out)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_window *w;

    if (!bytes || bytes % MB_HIP_PIECE_BYTES || va.addr % MB_HIP_PIECE_BYTES ||
        bytes >> MB_FRAME_SHIFT > UINT32_MAX)
        return mb__hip_fail(MB_ERR_INVALID,
                            "a window of %" PRIu64 " bytes at 0x%" PRIx64
                            ": both must be multiples of 512 MiB",
                            bytes, va.addr);
    w = calloc(1, sizeof(*w));
    if (w)
        w->slot = malloc((bytes >> MB_FRAME_SHIFT) * sizeof(*w->slot));
    if (!w || !w->slot) {
        free(w);
        return mb__hip_fail(MB_ERR_HOST_MEMORY, "no memory for the record of a window");
    }
    w->va = va;
    w->slots = (uint32_t)(bytes >> MB_FRAME_SHIFT);
    for (uint32_t i = 0; i < w->slots; i++)
        w->slot[i] = (struct mb_hip_slot){.pfn = MB_NO_PFN};
    pthread_mutex_lock(&dev->map_lock);
    w->next = dev->windows;
    dev->windows = w;
    pthread_mutex_unlock(&dev->map_lock);
    *out =
        (struct mb_hw_view){.va = va,
                            .bytes = bytes,
                            .leaf_shift = MB_FRAME_SHIFT,
                            .slot_bytes = mb_fmt_slot_bytes(dev->base.caps.format, MB_FRAME_SHIFT),
                            .clear_pfn = MB_NO_PFN,
                            .cookie = (uintptr_t)w};
    return MB_OK;
}

/* map_lock held, or alone. Unmaps what is left and forgets the window. */
static void drop_window(struct mb_hip *dev, struct mb_hip_window *w, bool live)
{
    struct mb_hip_window **at;

    for (uint32_t i = 0; live && i < w->slots; i++) {
        if (w->slot[i].handle)
            (void)mb__hip_result(
                dev,
                dev->hip->mem_unmap((void *)(uintptr_t)(w->va.addr + i * MB_FRAME_BYTES),
                                    MB_FRAME_BYTES),
                "unmapping device memory");
    }
    for (at = &dev->windows; *at != w; at = &(*at)->next)
        ;
    *at = w->next;
    free(w->slot);
    free(w);
}

void mb__hip_tree_disown(struct mb_hw_dev *hw, struct mb_hw_view *view)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_window *w = (struct mb_hip_window *)(uintptr_t)view->cookie;
    struct mb_hip_scope scope;

    if (mb__hip_enter(dev, &scope)) {
        mb__log(MB_LOG_WARN, "hip", "window not given back: %s", mb_error_detail());
        return;
    }
    pthread_mutex_lock(&dev->map_lock);
    settle(dev, w);
    drop_window(dev, w, true);
    pthread_mutex_unlock(&dev->map_lock);
    mb__hip_leave(dev, &scope);
    memset(view, 0, sizeof(*view));
}

void mb__hip_drop_windows(struct mb_hip *dev, bool live)
{
    while (dev->windows)
        drop_window(dev, dev->windows, live);
}

/* What the slots show, in the form that GFX9 would hold: HIP does not let anyone read the entries
 * themselves. */
enum mb_err mb__hip_read_slots(struct mb_hw_dev *hw, const struct mb_hw_view *view, uint32_t first,
                               uint32_t count, struct mb_pte *out)
{
    struct mb_hip *dev = mb__hip(hw);
    const struct mb_hip_window *w = (const struct mb_hip_window *)(uintptr_t)view->cookie;
    enum mb_fmt fmt = dev->base.caps.format;

    if (first > w->slots || count > w->slots - first)
        return mb__hip_fail(MB_ERR_INVALID, "slots %u..%u are outside the window", first,
                            first + count);
    pthread_mutex_lock(&dev->map_lock);
    settle(dev, NULL);
    for (uint32_t i = 0; i < count; i++) {
        const struct mb_hip_slot *slot = &w->slot[first + i];
        uint64_t tmpl = mb_fmt_leaf_template(
            fmt, MB_FRAME_SHIFT, mb_fmt_user_flags(fmt, slot->access == HIP_MEM_ACCESS_READ_WRITE),
            MB_AP_VID, MB_HIP_LEAF_KIND);

        out[i] = slot->handle ? mb_fmt_leaf_at(fmt, MB_FRAME_SHIFT, tmpl, slot->pfn.n)
                              : mb_fmt_invalid_leaf(fmt, MB_FRAME_SHIFT);
    }
    pthread_mutex_unlock(&dev->map_lock);
    return MB_OK;
}
