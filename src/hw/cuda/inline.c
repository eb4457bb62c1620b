/* SPDX-License-Identifier: MIT */
/*
 * inline.c - a batch as kernels on the caller's stream.
 *
 * How       Commands are gathered into one launch as long as order allows: writes, then one
 *           invalidate. A write after an invalidate starts the next launch, since kernels of a
 *           stream run one after the other. Frame numbers travel in the launches' parameters,
 *           MB_POP_LIST_XL in each, and behind them the runs that the head has no room for; or, if
 *           that makes fewer launches, in a pinned buffer that is reused once its launch has
 *           passed, with the runs of the head alone. The last launch stores the batch's fence
 *           itself, which saves a driver call.
 * BARRIER   A kernel's writes are visible to walkers when it has ended: nothing to do.
 * MEMBAR    is part of every prepared invalidate.
 * Capture   Everything is captured like any launch: tickets are taken on the device, frame numbers
 *           are copied into the graph or into a buffer that stays. Only the fence is left out
 *           (stream.c).
 * Locking   stream->lock is held by the caller; dev->table_lock for the list of buffers.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { MIN_LIST = 16384 };

struct program {
    struct mb_pop_head head;
    uint16_t list[MB_POP_LIST_XL];
};

struct builder {
    struct mb_cuda *dev;
    struct mb_hw_stream *stream;
    bool capturing;
    uint32_t frames, runs;     /* in the whole batch */
    struct mb_cuda_list *list; /* pinned, when they do not fit into parameters */
    uint32_t used;             /* frame numbers of the launch being gathered (of the batch: list) */
    struct mb_cuda_span span;  /* of the whole batch */
    uint64_t seq;              /* value for the timeline; 0: none */
    unsigned launches;
    struct mb_pop_segment more[MB_POP_MORE]; /* behind those of the head */
    struct program p;
};

/* ------------------------------------------------------------ pinned lists */

/* table_lock held */
static struct mb_cuda_list *find_list(struct mb_cuda *dev, uint32_t frames)
{
    for (struct mb_cuda_list *l = dev->lists; l; l = l->next) {
        if (!l->captured && !l->taken && l->capacity >= frames &&
            mb__cuda_fence_done(&dev->base, l->fence))
            return l;
    }
    return NULL;
}

static enum mb_err new_list(struct mb_cuda *dev, uint32_t frames, struct mb_cuda_list **out)
{
    struct mb_cuda_list *l = calloc(1, sizeof(*l));
    uint32_t capacity = MIN_LIST;
    void *host = NULL;
    enum mb_err err;

    if (!l)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a list's record");
    while (capacity < frames)
        capacity *= 2;
    err = mb__cuda_result(dev,
                          dev->cu->host_alloc(&host, sizeof(uint32_t) * capacity,
                                              CU_HOST_ALLOC_PORTABLE | CU_HOST_ALLOC_MAPPED),
                          "pinned memory for frame numbers");
    if (!err)
        err = mb__cuda_result(dev, dev->cu->host_device_ptr(&l->device, host, 0),
                              "device address of pinned memory");
    if (err) {
        if (host)
            (void)dev->cu->host_free(host);
        free(l);
        return err;
    }
    l->host = host;
    l->capacity = capacity;
    *out = l;
    return MB_OK;
}

static enum mb_err take_list(struct builder *b)
{
    struct mb_cuda *dev = b->dev;
    struct mb_cuda_list *l = NULL;
    enum mb_err err;

    pthread_mutex_lock(&dev->table_lock);
    if (!b->capturing)
        l = find_list(dev, b->frames);
    if (l)
        l->taken = true;
    pthread_mutex_unlock(&dev->table_lock);
    if (!l) {
        int mode = CU_CAPTURE_RELAXED;

        (void)dev->cu->capture_mode(&mode);
        err = new_list(dev, b->frames, &l);
        (void)dev->cu->capture_mode(&mode);
        if (err || !l)
            return err;
        l->taken = true;
        l->captured = b->capturing;
        pthread_mutex_lock(&dev->table_lock);
        l->next = dev->lists;
        dev->lists = l;
        pthread_mutex_unlock(&dev->table_lock);
    }
    b->list = l;
    return MB_OK;
}

static void put_list(struct builder *b, struct mb_hw_fence fence)
{
    if (!b->list)
        return;
    pthread_mutex_lock(&b->dev->table_lock);
    b->list->fence = fence;
    b->list->taken = false;
    pthread_mutex_unlock(&b->dev->table_lock);
}

void mb__cuda_lists_free(struct mb_cuda *dev)
{
    while (dev->lists) {
        struct mb_cuda_list *l = dev->lists;

        dev->lists = l->next;
        (void)dev->cu->host_free(l->host);
        free(l);
    }
}

/* ------------------------------------------------------------ launches */

static void begin_launch(struct builder *b)
{
    struct mb_pop_head *h = &b->p.head;
    uint64_t shared = b->dev->control_va + MB_FRAME_BYTES;

    h->request = shared + MB_SHARED_REQUEST;
    h->answer = shared + MB_SHARED_ANSWER;
    h->error = b->dev->pinned_dev + offsetof(struct mb_cuda_pinned, error);
    h->timeout_ns = MB_CUDA_ANSWER_NS;
    h->list = b->list ? b->list->device : 0;
    h->done = h->done_value = 0;
    h->segments = h->flags = h->more = h->unused = 0;
    h->base_pfn = b->span.low;
    h->frame_shift = MB_FRAME_SHIFT - MB_PFN_SHIFT;
    h->slot_bytes = 16;
    h->pfn_shift = mb_fmt_pfn_shift(b->dev->space.fmt);
    if (!b->list)
        b->used = 0;
}

static unsigned more_of(const struct builder *b)
{
    return b->p.head.segments > MB_POP_SEGMENTS ? b->p.head.segments - MB_POP_SEGMENTS : 0;
}

static struct mb_pop_segment *segment_of(struct builder *b, uint32_t i)
{
    return i < MB_POP_SEGMENTS ? &b->p.head.segment[i] : &b->more[i - MB_POP_SEGMENTS];
}

/* Puts the segments that the head has no room for behind the frame numbers. Returns how much room
 * both take, in frame numbers. */
static uint32_t place_more(struct builder *b)
{
    unsigned more = more_of(b);

    _Static_assert(sizeof(struct mb_pop_segment) == MB_POP_MORE_ROOM * sizeof(uint16_t) &&
                       offsetof(struct program, list) % 8 == 0 && MB_POP_LIST_XL % 4 == 0,
                   "segments behind frame numbers are aligned");
    if (!more)
        return b->used;
    b->p.head.more = (b->used + 3) & ~3u;
    memcpy(b->p.list + b->p.head.more, b->more, more * sizeof(*b->more));
    return b->p.head.more + more * MB_POP_MORE_ROOM;
}

/* The longest run; of the runs behind the first each is one warp's. */
static unsigned threads_of(struct builder *b)
{
    uint32_t most = 32 * more_of(b);
    unsigned threads = 32;

    for (uint32_t i = 0; i < b->p.head.segments && i < MB_POP_SEGMENTS; i++)
        most = b->p.head.segment[i].count > most ? b->p.head.segment[i].count : most;
    while (threads < most && threads < b->dev->pop_threads)
        threads *= 2;
    return threads;
}

static enum mb_err launch(struct builder *b, bool last)
{
    struct mb_cuda *dev = b->dev;
    struct mb_pop_head *h = &b->p.head;
    cu_function f = dev->pop_ring;
    unsigned threads = threads_of(b);
    void *params[1] = {&b->p};
    enum mb_err err;

    if (!b->list) {
        uint32_t room = place_more(b);

        f = room <= MB_POP_LIST_S   ? dev->pop_s
            : room <= MB_POP_LIST_M ? dev->pop_m
            : room <= MB_POP_LIST_L ? dev->pop_l
                                    : dev->pop_xl;
    }
    if (dev->fast)
        h->flags |= MB_POP_FAST;
    if (last && b->seq) {
        h->done = b->stream->timeline_dev;
        h->done_value = b->seq;
    }
    err = mb__cuda_result(
        dev, dev->cu->launch(f, 1, 1, 1, threads, 1, 1, 0, b->stream->native, params, NULL),
        "launching pte_pop");
    if (err)
        return err;
    b->launches++;
    begin_launch(b);
    return MB_OK;
}

static enum mb_err flush(struct builder *b)
{
    const struct mb_pop_head *h = &b->p.head;

    return h->segments || h->flags ? launch(b, false) : MB_OK;
}

static inline __attribute__((always_inline)) void
shorten_of(uint16_t *restrict to, const mb_pfn *restrict pfns, uint32_t count, uint32_t base)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = (uint16_t)((pfns[i].n - base) >> (MB_FRAME_SHIFT - MB_PFN_SHIFT));
}

#if defined(__x86_64__)
__attribute__((target("avx2"), optimize("O3"))) static void
shorten_wide(uint16_t *restrict to, const mb_pfn *restrict pfns, uint32_t count, uint32_t base)
{
    shorten_of(to, pfns, count, base);
}
#endif

__attribute__((optimize("O3"))) static void
shorten(uint16_t *restrict to, const mb_pfn *restrict pfns, uint32_t count, uint32_t base)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        shorten_wide(to, pfns, count, base);
        return;
    }
#endif
    shorten_of(to, pfns, count, base);
}

static void put_frames(struct builder *b, const mb_pfn *pfns, uint32_t count)
{
    if (b->list)
        memcpy(b->list->host + b->used, pfns, sizeof(*pfns) * count);
    else
        shorten(b->p.list + b->used, pfns, count, b->span.low);
}

/* How many frame numbers the launch has room for beside one segment more; negative: not even for
 * the segment. */
static int64_t room_for(const struct builder *b)
{
    uint32_t segments = b->p.head.segments + 1;

    if (b->list)
        return segments > MB_POP_SEGMENTS ? -1 : (int64_t)UINT32_MAX;
    if (segments > MB_POP_SEGMENTS + MB_POP_MORE)
        return -1;
    return (int64_t)MB_POP_LIST_XL - b->used -
           (segments > MB_POP_SEGMENTS ? (segments - MB_POP_SEGMENTS) * MB_POP_MORE_ROOM : 0);
}

static enum mb_err add_leaves(struct builder *b, const struct mb_hw_cmd *cmd)
{
    const struct mb_hw_view *view = cmd->leaves.view;
    uint32_t at = 0, count = cmd->leaves.count;

    while (at < count) {
        struct mb_pop_head *h = &b->p.head;
        uint32_t n = count - at;
        struct mb_pop_segment *seg;

        if (h->flags & MB_POP_INVALIDATE || room_for(b) < (cmd->leaves.pfns ? 1 : 0)) {
            enum mb_err err = flush(b);

            if (err)
                return err;
        }
        if (cmd->leaves.pfns && n > room_for(b))
            n = (uint32_t)room_for(b);
        seg = segment_of(b, h->segments++);
        seg->slots = view->table + (uint64_t)(cmd->leaves.first + at) * view->slot_bytes;
        seg->count = n;
        if (cmd->leaves.pfns) {
            put_frames(b, cmd->leaves.pfns + at, n);
            seg->tmpl = cmd->leaves.tmpl;
            seg->at = b->used;
            b->used += n;
        } else {
            seg->tmpl = mb__cuda_expect(&b->dev->space, true, mb__phys_of_pfn(view->clear_pfn)).lo;
            seg->at = MB_POP_SAME;
        }
        at += n;
    }
    return MB_OK;
}

static enum mb_err add(struct builder *b, const struct mb_hw_cmd *cmd)
{
    enum mb_err err = MB_OK;

    switch (cmd->kind) {
    case MB_HW_WAIT:
        if (cmd->fence.stream == b->stream || mb__cuda_fence_done(&b->dev->base, cmd->fence))
            break;
        err = flush(b);
        if (!err)
            err = mb__cuda_enqueue_wait(b->dev, b->stream, cmd->fence);
        break;
    case MB_HW_LEAVES:
        err = add_leaves(b, cmd);
        break;
    case MB_HW_INVALIDATE:
        b->p.head.flags |= MB_POP_INVALIDATE;
        break;
    default:
        break;
    }
    return err;
}

/* Nothing has been sent yet. */
static enum mb_err check(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    struct mb_cuda_window *window;
    uint64_t frames = 0;

    for (unsigned i = 0; i < count; i++) {
        enum mb_err err = MB_OK;

        if (cmds[i].kind == MB_HW_LEAVES) {
            err = mb__cuda_check_leaves(b->dev, &cmds[i], &window, &b->span);
            frames += cmds[i].leaves.pfns ? cmds[i].leaves.count : 0;
            b->runs++;
        } else if (cmds[i].kind == MB_HW_WAIT && cmds[i].fence.stream &&
                   cmds[i].fence.seq > cmds[i].fence.stream->seq &&
                   cmds[i].fence.stream != b->stream) {
            err = mb__fail(MB_ERR_NOT_SUPPORTED,
                           "a batch waits for a fence recorded in a capture that is not enqueued");
        }
        if (err)
            return err;
    }
    if (frames > UINT32_MAX)
        return mb__fail(MB_ERR_LIMIT, "more than 2^32 frames in a batch");
    b->frames = (uint32_t)frames;
    return MB_OK;
}

/*
 * Whether the batch's frame numbers go into a pinned buffer. There any number of them is one
 * launch, but a launch has the runs of its head only; in parameters both have the same room. So few
 * long runs go into the buffer, and many short ones do not: a step of 512 beams remaps 2,000 frames
 * in 1,500 runs, which is 11 launches and not 250. A launch with full parameters counts as two of
 * the others, as the driver copies them.
 */
static bool wants_list(const struct builder *b)
{
    uint64_t room = b->frames + (uint64_t)b->runs * MB_POP_MORE_ROOM;
    uint64_t by_room = room / (b->dev->param_frames + 1) + 1;
    uint64_t by_runs = b->runs / (MB_POP_SEGMENTS + MB_POP_MORE) + 1;
    uint64_t with_numbers = by_room > by_runs ? by_room : by_runs;
    uint64_t with_buffer = (b->runs + MB_POP_SEGMENTS - 1) / MB_POP_SEGMENTS;

    if (!b->frames)
        return false;
    if ((b->span.high - b->span.low) / MB_FRAME_PFNS > UINT16_MAX)
        return true; /* numbers in parameters have 16 bits */
    return b->frames > b->dev->param_frames && with_buffer <= 2 * with_numbers;
}

enum mb_err mb__cuda_inline_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                   const struct mb_hw_cmd *cmds, unsigned count,
                                   struct mb_hw_fence *done)
{
    struct builder b;
    enum mb_err err;

    b.dev = dev;
    b.stream = stream;
    b.list = NULL;
    b.used = b.launches = b.runs = 0;
    b.span = (struct mb_cuda_span){UINT32_MAX, 0};
    err = check(&b, cmds, count);
    if (err)
        return err;
    b.capturing = mb__cuda_capturing(dev, stream);
    b.seq = b.capturing ? 0 : stream->seq + 1;
    if (wants_list(&b))
        err = take_list(&b);
    if (err)
        return err;
    begin_launch(&b);
    for (unsigned i = 0; !err && i < count; i++)
        err = add(&b, &cmds[i]);
    if (!err && (b.p.head.segments || b.p.head.flags || b.launches || b.seq))
        err = launch(&b, true);
    if (!err && b.seq)
        stream->seq = b.seq;
    if (!err)
        *done = (struct mb_hw_fence){stream, b.capturing ? stream->seq + 1 : stream->seq};
    if (!err)
        put_list(&b, *done);
    else if (!b.launches) /* nothing reads the list: it is free at once */
        put_list(&b, (struct mb_hw_fence){NULL, 0});
    else /* the stream has come to know a part of it */
        err = mb__cuda_lose(dev, MB_ERR_DEVICE_LOST, "a batch was submitted in part: %s",
                            mb_error_detail());
    return err;
}
