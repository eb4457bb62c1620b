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
 * Room      A channel with no room for a batch has earlier batches of the same stream. The stream
 *           has its part of each of them, so they end when the stream gets there, and the host
 *           waits for that as it does in a launch on a full stream, but for MB_CUDA_ROOM_NS at
 *           most. The callers' locks are held meanwhile: every call on the device waits, too.
 * Capture   is refused: the host writes entries at submission, which a replay would not repeat.
 * Locking   stream->lock is held by the caller, also while it waits for room; dev->table_lock for
 *           the record of cleared slots. Who needs stream->lock to stop the queue (lifetime.c) has
 *           marked the device lost before, which ends the wait. The watchdog only tries the lock,
 *           so the wait itself rings the doorbell again and hears of the channel's errors.
 */
#include "hw/cuda/cuda.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "hw/nvrm/channel.h"

enum {
    MIN_STAGING = 64 << 10, /* bytes: 4096 slots */
    MIN_WORDS = 1024,
    /* Of system memory for each stream. Half of it is the largest batch, more than 14,000 copies;
     * a step of 512 beams has 4,000, and six of those are pending before the host has to wait. */
    PUSH_BYTES = 1 << 20,
    FLUSH_WORDS = NVRM_WORDS_WFI + NVRM_WORDS_MEMBAR,
    /* A wait for room: how long it spins between two looks at the device, and then sleeps. Far
     * shorter than what lifetime.c gives stream->lock to become free. */
    SPIN_NS = 100000,
    SLEEP_US = 100,
};

struct staging {
    struct staging *next;
    struct nvrm_mem *mem;
    uint64_t ticket; /* of the submission that reads it */
};

struct mb_cuda_queue {
    struct nvrm_channel *channel;
    struct staging *buffers;
    uint32_t *words; /* owned; of the batch that is encoded; stream->lock, as all here */
    uint64_t room;   /* words */
};

/* What a batch asks for. */
struct need {
    uint64_t slots, copies, invalidates;
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
        .ring_entries = 4096, .push_bytes = PUSH_BYTES, .copy_engine = dev->helper.engine};
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
    free(queue->words);
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

/* Words that encode() writes for it at most: acquire, copies, each invalidate behind a flush, the
 * last flush, release. */
static uint64_t words_of(uint64_t copies, uint64_t invalidates)
{
    return NVRM_WORDS_SEMAPHORE + copies * NVRM_WORDS_COPY +
           invalidates * (FLUSH_WORDS + NVRM_WORDS_INVALIDATE) + FLUSH_WORDS + NVRM_WORDS_SEMAPHORE;
}

#if defined(MB_ANALYZER) /* gcc 12 loses what is stored behind stream->queue */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif
/* Memory for the batch's words; what there was stays when there is no more. */
static enum mb_err make_room(struct mb_cuda_queue *queue, const struct need *need)
{
    uint64_t words = words_of(need->copies, need->invalidates), room = MIN_WORDS;
    uint64_t most = mb__nvrm_channel_max_words(queue->channel);
    uint64_t others = words_of(0, need->invalidates);
    uint32_t *grown;

    if (words > most)
        return mb__fail(MB_ERR_LIMIT,
                        "a batch of %" PRIu64 " copies and %" PRIu64 " invalidates: a stream's "
                        "helper channel takes %" PRIu64 " copies with so many invalidates: split "
                        "it",
                        need->copies, need->invalidates,
                        others < most ? (most - others) / NVRM_WORDS_COPY : 0);
    if (words <= queue->room)
        return MB_OK;
    while (room < words)
        room *= 2;
    grown = realloc(queue->words, room * sizeof(*grown));
    if (!grown)
        return mb__fail(MB_ERR_HOST_MEMORY, "no memory for a batch of %" PRIu64 " words", words);
    queue->words = grown;
    queue->room = room;
    return MB_OK;
}
#if defined(MB_ANALYZER)
#pragma GCC diagnostic pop
#endif

static enum mb_err check(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count,
                         struct need *need)
{
    struct mb_cuda_span span = {UINT32_MAX, 0};
    struct mb_cuda_window *window;
    bool writes = false;

    *need = (struct need){0};
    for (unsigned i = 0; i < count; i++) {
        enum mb_err err = MB_OK;

        b->membar = b->membar || cmds[i].kind == MB_HW_MEMBAR;
        need->invalidates += cmds[i].kind == MB_HW_INVALIDATE;
        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        err = mb__cuda_check_leaves(b->dev, &cmds[i], &window, &span);
        if (err)
            return err;
        writes = true;
        need->slots += cmds[i].leaves.count;
        need->copies += copies_of(&cmds[i], window);
        pthread_mutex_lock(&b->dev->table_lock);
        b->announce = b->announce || !cmds[i].leaves.pfns || overwrites(&cmds[i], window);
        pthread_mutex_unlock(&b->dev->table_lock);
    }
    b->announce = b->announce || !writes;
    return make_room(b->queue, need);
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

    mb__nvrm_push_init(&b->push, b->dev->rm->arch, b->queue->words, (uint32_t)b->queue->room);
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

/* What has been sent is what the slots will hold. */
static void record(struct mb_cuda *dev, const struct mb_hw_cmd *cmds, unsigned count)
{
    pthread_mutex_lock(&dev->table_lock);
    for (unsigned i = 0; i < count; i++) {
        struct mb_cuda_window *w;

        if (cmds[i].kind != MB_HW_LEAVES)
            continue;
        w = (struct mb_cuda_window *)(uintptr_t)cmds[i].leaves.view->cookie;
        memset(w->cleared + cmds[i].leaves.first, !cmds[i].leaves.pfns, cmds[i].leaves.count);
    }
    pthread_mutex_unlock(&dev->table_lock);
}

/* Hands the encoded batch to the channel, which may have to finish earlier ones first. */
static enum mb_err submit(struct builder *b, uint64_t *ticket)
{
    struct nvrm_channel *channel = b->queue->channel;
    uint64_t start = mb__now_ns(), asked = start, now;
    enum mb_err err;

    for (;;) {
        err = mb__nvrm_channel_submit(channel, &b->push, 1, SPIN_NS, ticket);
        if (err != MB_ERR_TIMEOUT)
            return err;
        if (atomic_load_explicit(&b->dev->lost, memory_order_acquire))
            return mb__fail(MB_ERR_DEVICE_LOST, "%s", b->dev->lost_text);
        now = mb__now_ns();
        if (now - start >= b->dev->room_ns)
            return mb__fail(MB_ERR_BUSY,
                            "too many batches are pending on this stream, and within %" PRIu64
                            " ms it made no room for one more: see to what the stream waits for, "
                            "and try again",
                            (now - start) / 1000000);
        if (now - asked >= b->dev->room_ask_ns) {
            err = mb__cuda_context_error(b->dev);
            if (err)
                return err;
            asked = now;
        }
        mb__nvrm_channel_poke(channel);
        (void)usleep(SLEEP_US);
    }
}

static enum mb_err send(struct builder *b, const struct mb_hw_cmd *cmds, unsigned count)
{
    uint64_t n = b->stream->order + 1, ticket;
    enum mb_err err;

    encode(b, cmds, count, n);
    err = submit(b, &ticket);
    if (err)
        return err;
    record(b->dev, cmds, count);
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
    struct need need;
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
    err = check(&b, cmds, count, &need);
    if (!err && need.slots)
        err = take_staging(&b, 16 * need.slots);
    if (!err)
        err = enqueue_waits(&b, cmds, count);
    if (!err)
        err = send(&b, cmds, count);
    if (err)
        return err;
    *done = (struct mb_hw_fence){.stream = stream, .seq = stream->seq};
    return MB_OK;
}
