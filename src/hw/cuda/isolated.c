/* SPDX-License-Identifier: MIT */
/*
 * isolated.c - a batch as copies on a helper channel: no kernel of the application can reach a
 * table.
 *
 * How       The host writes ready slots into a staging buffer in its own memory; the stream's
 *           helper channel copies them into the tables, which exist in the control address space
 *           only, then flushes, invalidates and releases a word of the shared page. The stream
 *           waits for that word. When the batch must not overtake earlier work of the stream, the
 *           stream first announces itself in another word for which the channel waits.
 * When      A batch that only fills cleared slots may run early: nothing that was enqueued before
 *           can use those addresses. Anything else announces.
 * Deadlock  Each stream has its own channel and acquires switch the engine over, so no wait stands
 *           in front of another stream's work.
 * Capture   is refused: the host writes entries at submission, which a replay would not repeat.
 * Locking   stream->lock is held by the caller; dev->table_lock for the record of cleared slots.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/nvrm/channel.h"

enum {
    MIN_STAGING = 64 << 10, /* bytes: 4096 slots */
    MAX_WORDS = 16384,
};

struct staging {
    struct staging *next;
    struct nvrm_mem *mem;
    uint64_t ticket; /* of the submission that reads it */
};

struct mb_cuda_queue {
    struct nvrm_channel *channel;
    struct staging *buffers;
    uint32_t words[MAX_WORDS];
};

struct builder {
    struct mb_cuda *dev;
    struct mb_hw_stream *stream;
    struct mb_cuda_queue *queue;
    struct nvrm_push push;
    struct staging *staging;
    uint64_t used; /* bytes of the staging buffer */
    bool announce;
    bool membar; /* the batch has a MEMBAR */
    bool dirty;  /* copies since the last flush */
    bool waited; /* a wait was put on the stream */
    unsigned copies;
};

/* ------------------------------------------------------------ queues */

enum mb_err mb__cuda_queue_create(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                  struct mb_cuda_queue **out)
{
    struct nvrm_channel_request request = {
        .ring_entries = 4096, .push_bytes = 1u << 20, .copy_engine = dev->helper.engine};
    struct mb_cuda_queue *queue = calloc(1, sizeof(*queue));
    enum mb_err err;

    (void)stream;
    if (!queue)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a stream's helper queue");
    err = mb__nvrm_channel_create(dev->vas, &request, &queue->channel);
    if (err) {
        free(queue);
        return err;
    }
    pthread_mutex_lock(&dev->table_lock);
    atomic_fetch_add(&dev->queues, 1);
    dev->overhead_bytes += MB_FRAME_BYTES; /* the channel's ring lies in device memory */
    pthread_mutex_unlock(&dev->table_lock);
    *out = queue;
    return MB_OK;
}

void mb__cuda_queue_destroy(struct mb_cuda *dev, struct mb_cuda_queue *queue)
{
    if (!queue)
        return;
    mb__nvrm_channel_destroy(&queue->channel);
    while (queue->buffers) {
        struct staging *s = queue->buffers;

        queue->buffers = s->next;
        mb__nvrm_mem_destroy(&s->mem);
        free(s);
    }
    free(queue);
    atomic_fetch_sub(&dev->queues, 1);
    pthread_mutex_lock(&dev->table_lock);
    dev->overhead_bytes -= MB_FRAME_BYTES;
    pthread_mutex_unlock(&dev->table_lock);
}

void mb__cuda_queue_stop(struct mb_cuda_queue *queue)
{
    mb__nvrm_channel_destroy(&queue->channel);
}

bool mb__cuda_queue_failed(struct mb_cuda_queue *queue, char *text, size_t bytes)
{
    struct nvrm_channel_error error;

    if (!queue->channel)
        return false;
    mb__nvrm_channel_poke(queue->channel);
    if (!mb__nvrm_channel_error(queue->channel, &error))
        return false;
    snprintf(text, bytes, "%s", mb_error_detail());
    return true;
}

enum mb_err mb__cuda_queue_poison(struct mb_cuda *dev, struct mb_hw_stream *stream)
{
    uint32_t words[NVRM_WORDS_COPY];
    struct nvrm_push push;
    uint64_t ticket;

    if (!stream->queue || !stream->queue->channel)
        return mb__fail(MB_ERR_INVALID, "the stream has no helper channel");
    /* Both addresses are in the first page of the control space, where nothing is ever mapped. */
    mb__nvrm_push_init(&push, dev->rm->arch, words, NVRM_WORDS_COPY);
    mb__nvrm_push_copy(&push, 0x100, 0x200, 16, 0);
    return mb__nvrm_channel_submit(stream->queue->channel, &push, 1, 0, &ticket);
}

static enum mb_err take_staging(struct builder *b, uint64_t bytes)
{
    struct staging *s;
    enum mb_err err;

    for (s = b->queue->buffers; s; s = s->next) {
        if (s->mem->bytes >= bytes && mb__nvrm_channel_done(b->queue->channel, s->ticket))
            break;
    }
    if (!s) {
        uint64_t size = MIN_STAGING;

        while (size < bytes)
            size *= 2;
        s = calloc(1, sizeof(*s));
        if (!s)
            return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a staging record");
        err = mb__nvrm_mem_create(b->dev->rm, NVRM_MEM_SYSMEM, size, &s->mem);
        if (!err)
            err = mb__nvrm_mem_map_cpu(s->mem);
        if (!err)
            err = mb__nvrm_mem_map_gpu(s->mem, b->dev->vas);
        if (err) {
            mb__nvrm_mem_destroy(&s->mem);
            free(s);
            return err;
        }
        s->next = b->queue->buffers;
        b->queue->buffers = s;
    }
    b->staging = s;
    b->used = 0;
    return MB_OK;
}

/* ------------------------------------------------------------ checks before anything is sent */

/* Must the batch wait for what the stream did before? table_lock held. */
static bool overwrites(const struct mb_hw_cmd *cmd, const struct mb_cuda_window *window)
{
    return memchr(window->cleared + cmd->leaves.first, 0, cmd->leaves.count) != NULL;
}

/* Copies that a command needs: pieces whose control addresses follow each other share one. */
static unsigned copies_of(const struct mb_hw_cmd *cmd, const struct mb_cuda_window *w)
{
    uint32_t first = cmd->leaves.first / MB_CUDA_LEAVES;
    uint32_t last = (cmd->leaves.first + cmd->leaves.count - 1) / MB_CUDA_LEAVES;
    unsigned n = 1;

    for (uint32_t p = first; p < last; p++)
        n += w->piece[p + 1].control_va != w->piece[p].control_va + 4096;
    return cmd->leaves.count ? n : 0;
}

static enum mb_err check(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count,
                         uint64_t *slots)
{
    struct mb_cuda_span span = {UINT32_MAX, 0};
    struct mb_cuda_window *window;
    uint64_t copies = 0;
    bool writes = false;

    *slots = 0;
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err = MB_OK;

        b->membar = b->membar || cmds[i].kind == MB_HW_MEMBAR;
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        err = mb__cuda_check_leaves(b->dev, &cmds[i], &window, &span);
        if (err)
            return err;
        writes = true;
        *slots += cmds[i].leaves.count;
        copies += copies_of(&cmds[i], window);
        pthread_mutex_lock(&b->dev->table_lock);
        b->announce = b->announce || !cmds[i].leaves.pfns || overwrites(&cmds[i], window);
        pthread_mutex_unlock(&b->dev->table_lock);
    }
    if (count * 32ull + copies * NVRM_WORDS_COPY > MAX_WORDS)
        return mb__fail(MB_ERR_LIMIT, "a batch of %u commands and %" PRIu64 " copies: split it",
                        count, copies);
    b->announce = b->announce || !writes;
    return MB_OK;
}

/* ------------------------------------------------------------ encoding */

static void flush(struct builder *b)
{
    if (!b->dirty)
        return;
    mb__nvrm_push_wfi(&b->push);
    mb__nvrm_push_membar(&b->push, NVRM_MEMBAR_GPU);
    b->dirty = false;
}

/* Plain stores to write-combined memory, in order: the doorbell comes behind a fence. */
__attribute__((optimize("O3"))) static void write_slots(uint64_t *restrict to,
                                                        const mb_pfn *restrict pfns, uint32_t count,
                                                        uint64_t tmpl, unsigned shift)
{
    for (uint32_t i = 0; i < count; i++) {
        to[2 * i] = pfns ? tmpl | (uint64_t)pfns[i].n << shift : tmpl;
        to[2 * i + 1] = 0;
    }
}

static void stage(struct builder *b, const struct mb_hw_cmd *cmd)
{
    uint64_t *to = (uint64_t *)(uintptr_t)((volatile char *)b->staging->mem->cpu.addr + b->used);
    uint64_t clear =
        mb__cuda_expect(&b->dev->space, true, mb__phys_of_pfn(cmd->leaves.view->clear_pfn)).lo;

    write_slots(to, cmd->leaves.pfns, cmd->leaves.count,
                cmd->leaves.pfns ? cmd->leaves.tmpl : clear, mb_fmt_pfn_shift(b->dev->space.fmt));
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static void add_leaves(struct builder *b, const struct mb_hw_cmd *cmd)
{
    struct mb_cuda_window *w = (struct mb_cuda_window *)(uintptr_t)cmd->leaves.view->cookie;
    uint32_t slot = cmd->leaves.first, left = cmd->leaves.count;
    uint64_t src = b->staging->mem->va + b->used;

    stage(b, cmd);
    b->used += 16ull * left;
    while (left) {
        uint32_t piece = slot / MB_CUDA_LEAVES, at = slot % MB_CUDA_LEAVES;
        uint32_t n = MB_CUDA_LEAVES - at;

        while (n < left && piece + 1 < w->pieces &&
               w->piece[piece + 1].control_va == w->piece[piece].control_va + 4096) {
            n += MB_CUDA_LEAVES;
            piece++;
        }
        n = n < left ? n : left;
        mb__nvrm_push_copy(&b->push, w->piece[slot / MB_CUDA_LEAVES].control_va + 16ull * at, src,
                           16ull * n, b->copies ? NVRM_COPY_PIPELINED : 0);
        b->copies++;
        src += 16ull * n;
        slot += n;
        left -= n;
    }
    b->dirty = true;
    pthread_mutex_lock(&b->dev->table_lock);
    memset(w->cleared + cmd->leaves.first, !cmd->leaves.pfns, cmd->leaves.count);
    pthread_mutex_unlock(&b->dev->table_lock);
}

static void add_invalidate(struct builder *b, const struct mb_hw_cmd *cmd)
{
    struct nvrm_invalidate inval = {
        .pdb = b->dev->space.pdb,
        .aperture = NVRM_PDB_VIDMEM,
        .ack = true,
        .membar = b->membar ? NVRM_MEMBAR_GPU : NVRM_MEMBAR_NONE,
    };

    if (b->dev->targeted && cmd->inval.bytes) {
        inval.va = cmd->inval.va.addr;
        inval.bytes = cmd->inval.bytes;
        inval.level = NVRM_LEVEL_PDE0;
    }
    flush(b);
    mb__nvrm_push_invalidate(&b->push, &inval);
}

static void encode(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count, uint64_t n)
{
    uint64_t words = b->dev->shared_rm->va + MB_SHARED_STREAM +
                     (uint64_t)b->stream->index * MB_SHARED_STREAM_STEP;

    mb__nvrm_push_init(&b->push, b->dev->rm->arch, b->queue->words, MAX_WORDS);
    /* Holding the engine answers 8 us sooner, but others of the engine would wait for a time slice.
     * */
    if (b->announce && (atomic_load(&b->dev->queues) > 1 || !b->dev->helper.hold))
        mb__nvrm_push_acquire32(&b->push, words, (uint32_t)n);
    else if (b->announce)
        mb__nvrm_push_acquire32_hold(&b->push, words, (uint32_t)n);
    for (unsigned i = 0; i < count; i++) {
        if (cmds[i].kind == MB_HW_LEAVES && cmds[i].leaves.count)
            add_leaves(b, &cmds[i]);
        else if (cmds[i].kind == MB_HW_INVALIDATE)
            add_invalidate(b, &cmds[i]);
    }
    flush(b);
    mb__nvrm_push_release64(&b->push, words + MB_SHARED_STREAM_DONE, n, NVRM_RELEASE_WFI);
}

/* ------------------------------------------------------------ submission */

static enum mb_err enqueue_waits(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err;

        if (cmds[i].kind != MB_HW_WAIT || cmds[i].fence.stream == b->stream ||
            mb__cuda_fence_done(&b->dev->base, cmds[i].fence))
            continue;
        if (cmds[i].fence.seq > cmds[i].fence.stream->seq)
            return mb__fail(MB_ERR_NOT_SUPPORTED, "a batch waits for a fence that was recorded in "
                                                  "a capture and is not enqueued");
        err = mb__cuda_enqueue_wait(b->dev, b->stream, cmds[i].fence);
        if (err)
            return err;
        b->announce = true;
    }
    return MB_OK;
}

/* The stream's part: say that it has come here, wait for the answer, pass its fence. A kernel
 * answers sooner than a stream memory operation, which looks again only after microseconds, and it
 * has a time limit. */
static enum mb_err enqueue(struct builder *b, uint64_t n, uint64_t seq)
{
    struct mb_cuda *dev = b->dev;
    cu_ptr words = dev->control_va + MB_FRAME_BYTES + MB_SHARED_STREAM +
                   (uint64_t)b->stream->index * MB_SHARED_STREAM_STEP;
    struct mb_await a = {
        .announce = b->announce ? words : 0,
        .announce_value = n,
        .answer = words + MB_SHARED_STREAM_DONE,
        .answer_value = n,
        .error = dev->pinned_dev + offsetof(struct mb_cuda_pinned, error),
        .timeout_ns = MB_CUDA_ANSWER_NS,
        .done = b->stream->timeline_dev,
        .done_value = seq,
        .flags = dev->fast ? MB_POP_FAST : 0,
    };
    void *params[] = {&a};

    return mb__cuda_result(
        dev, dev->cu->launch(dev->await, 1, 1, 1, 1, 1, 1, 0, b->stream->native, params, NULL),
        "waiting for the helper on a stream");
}

static enum mb_err send(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    uint64_t n = b->stream->order + 1, ticket;
    enum mb_err err;

    encode(b, cmds, count, n);
    err = mb__nvrm_channel_submit(b->queue->channel, &b->push, 1, 0, &ticket);
    if (err)
        return err == MB_ERR_BUSY ? mb__fail_in(err, "too many batches are pending on this stream")
                                  : err;
    if (b->staging)
        b->staging->ticket = ticket;
    b->stream->order = n;
    err = enqueue(b, n, b->stream->seq + 1);
    if (err) /* the helper goes ahead, but the stream does not know */
        return mb__cuda_lose(b->dev, MB_ERR_DEVICE_LOST, "%s", mb_error_detail());
    b->stream->seq++;
    return MB_OK;
}

enum mb_err mb__cuda_isolated_submit(struct mb_cuda *dev, struct mb_hw_stream *stream,
                                     const struct mb_hw_cmd *cmds, unsigned count,
                                     struct mb_hw_fence *done)
{
    struct builder b = {.dev = dev, .stream = stream};
    uint64_t slots;
    enum mb_err err;

    if (mb__cuda_capturing(dev, stream))
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "the stream is being captured, and isolated tables are written at "
                        "submission: use tables:inline, or map before the capture");
    if (!stream->queue) {
        struct mb_cuda_queue *queue = NULL;

        err = mb__cuda_queue_create(dev, stream, &queue);
        if (err)
            return err;
        __atomic_store_n(&stream->queue, queue, __ATOMIC_RELEASE);
    }
    b.queue = stream->queue;
    if (!b.queue->channel) /* stopped while this thread waited for the lock; see lifetime.c */
        return mb__fail(MB_ERR_DEVICE_LOST, "%s", dev->lost_text);
    err = check(&b, cmds, count, &slots);
    if (!err && slots)
        err = take_staging(&b, 16 * slots);
    if (!err)
        err = enqueue_waits(&b, cmds, count);
    if (!err)
        err = send(&b, cmds, count);
    if (err)
        return err;
    *done = (struct mb_hw_fence){.stream = stream, .seq = stream->seq};
    return MB_OK;
}
