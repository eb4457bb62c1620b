/*
 * channel.c - see channel.h.
 *
 * Memory of a channel, all allocated by it:
 *   ring      video memory: ring entries of 8 bytes, behind them the control block whose word at
 *             +0x8c is the put index
 *   push      host memory: a circular buffer of method words, the source of ring entries
 *   progress  host memory: the 64-bit progress word
 *   notifier  host memory: the driver's error record
 *
 * Positions in ring and push buffer are counted from creation and taken modulo the size, so that
 * full and empty differ without a spare element; the ring keeps one entry free all the same,
 * because the hardware compares indices.
 */
#include "hw/nvrm/channel.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "hw/nvrm/fence.h"
#include "hw/nvrm/status.h"

enum {
    DEFAULT_RING_ENTRIES = 1024,
    DEFAULT_PUSH_BYTES = 1 << 20,
    MIN_RING_ENTRIES = 8,
    MAX_RING_ENTRIES = 16384,
    CONTROL_BYTES = 512,        /* of the control block */
    CONTROL_ALIGN = 4096,       /* as measured; the hardware asks for 512 */
    PUT_WORD = 0x8c / 4,        /* in the control block */
    NOTIFIER_BYTES = 1 << 20,   /* as measured; the record is its first 16 bytes */
    LOCK_RANK = MB_RANK_HW + 5, /* below the backend's own locks */
};
static const uint64_t default_start_timeout_ns = 2000000000u;

/* What an occupied ring entry gives back when it is done. Under the lock. */
struct slot {
    uint64_t ticket;
    uint64_t push_end; /* words; position behind the submission's last word */
};

struct nvrm_channel {
    struct nvrm_object object;
    struct nvrm_client *client; /* fixed after creation, as all up to `lock` */
    struct nvrm_vas *vas;
    struct nvrm_mem *ring, *push, *progress, *notifier;
    nvrm_handle group, channel, copy;
    int copy_engine;
    uint32_t token;        /* the doorbell's argument */
    uint64_t map_changes;  /* of the client, when put was last read back; under lock */
    uint32_t ring_entries; /* power of two */
    uint32_t push_words;
    volatile uint64_t *entries;  /* in `ring` */
    volatile uint32_t *put_word; /* in `ring` */
    volatile uint32_t *words;    /* in `push` */
    volatile uint64_t *done;     /* in `progress` */

    struct mb_lock lock;           /* rank LOCK_RANK */
    struct slot *slots;            /* one per ring entry */
    uint64_t ring_head, ring_tail; /* entries written; entries known to be done */
    uint64_t push_head, push_tail; /* words likewise */
    uint64_t last_ticket;
    struct nvrm_channel_stats stats;
};

/* ------------------------------------------------------------ creation */

static void channel_destroy(struct nvrm_object *object)
{
    struct nvrm_channel *ch = (struct nvrm_channel *)(void *)object;
    struct nvrm_client *client = ch->client;

    mb__nvrm_object_unlink(client, object);
    mb__nvrm_free(client, ch->channel, ch->copy);
    mb__nvrm_free(client, ch->group, ch->channel);
    mb__nvrm_free(client, client->device, ch->group);
    mb__nvrm_mem_destroy(&ch->notifier);
    mb__nvrm_mem_destroy(&ch->progress);
    mb__nvrm_mem_destroy(&ch->push);
    mb__nvrm_mem_destroy(&ch->ring);
    mb__lock_destroy(&ch->lock);
    free(ch->slots);
    free(ch);
}

/* The memory belongs to the channel: it leaves the client's list, so that closing the client frees
 * it once, with the channel. */
static enum mb_err make_buffer(struct nvrm_channel *ch, enum nvrm_mem_kind kind, uint64_t bytes,
                               bool for_gpu, struct nvrm_mem **out)
{
    struct nvrm_mem *mem = NULL;
    enum mb_err err = mb__nvrm_mem_create(ch->client, kind, bytes, &mem);

    if (!err)
        err = mb__nvrm_mem_map_cpu(mem);
    if (!err && for_gpu)
        err = mb__nvrm_mem_map_gpu(mem, ch->vas);
    if (err) {
        mb__nvrm_mem_destroy(&mem);
        return err;
    }
    mb__nvrm_object_unlink(ch->client, &mem->object);
    *out = mem;
    return MB_OK;
}

static void clear(volatile void *memory, size_t bytes)
{
    volatile uint64_t *words = memory;

    for (size_t i = 0; i < bytes / 8; i++)
        words[i] = 0;
}

/* Offset of the control block behind the ring entries, bytes. */
static uint64_t control_offset(const struct nvrm_channel *ch)
{
    return ((uint64_t)ch->ring_entries * 8 + CONTROL_ALIGN - 1) / CONTROL_ALIGN * CONTROL_ALIGN;
}

static enum mb_err make_buffers(struct nvrm_channel *ch)
{
    uint64_t ring_bytes = control_offset(ch) + CONTROL_BYTES;

    enum mb_err err = make_buffer(ch, NVRM_MEM_VIDMEM, ring_bytes, true, &ch->ring);
    if (!err)
        err = make_buffer(ch, NVRM_MEM_SYSMEM, (uint64_t)ch->push_words * 4, true, &ch->push);
    if (!err)
        err = make_buffer(ch, NVRM_MEM_SYSMEM, 4096, true, &ch->progress);
    if (!err)
        err = make_buffer(ch, NVRM_MEM_SYSMEM, NOTIFIER_BYTES, false, &ch->notifier);
    if (err)
        return err;
    uint64_t entry;
    if (!mb__nvrm_gp_entry(ch->push->va + ch->push->bytes - 4, 1, &entry))
        return mb__fail(MB_ERR_NOT_SUPPORTED,
                        "the driver put the push buffer at 0x%llx, beyond the 40 bits of a ring "
                        "entry; use driver tables",
                        (unsigned long long)ch->push->va);
    ch->entries = ch->ring->cpu.addr;
    ch->put_word = (volatile uint32_t *)ch->ring->cpu.addr + control_offset(ch) / 4 + PUT_WORD;
    ch->words = ch->push->cpu.addr;
    ch->done = ch->progress->cpu.addr;
    clear(ch->ring->cpu.addr, ring_bytes);
    clear(ch->progress->cpu.addr, 4096);
    clear(ch->notifier->cpu.addr, sizeof(struct nvrm_abi_notification));
    mb__nvrm_fence();
    return MB_OK;
}

static uint32_t engine_type(int copy_engine)
{
    return copy_engine < 10 ? NVRM_ENGINE_COPY0 + (uint32_t)copy_engine
                            : NVRM_ENGINE_COPY10 + (uint32_t)copy_engine - 10;
}

static enum mb_err make_on_engine(struct nvrm_channel *ch, int copy_engine)
{
    struct nvrm_client *client = ch->client;
    uint32_t type = engine_type(copy_engine);
    struct nvrm_abi_channel_group group = {.vaspace = ch->vas->space, .engine_type = type};
    struct nvrm_abi_channel channel = {
        .error_notifier = ch->notifier->handle,
        .gpfifo_va = ch->ring->va,
        .gpfifo_entries = ch->ring_entries,
        .userd_memory = {ch->ring->handle},
        .userd_offset = {control_offset(ch)},
        .engine_type = type,
    };
    struct nvrm_abi_copy copy = {.version = 1, .engine_type = type};

    enum mb_err err = mb__nvrm_alloc(client, client->device, NVRM_CLASS_CHANNEL_GROUP, &group,
                                     sizeof group, &ch->group);
    if (!err)
        err = mb__nvrm_alloc(client, ch->group, client->arch->channel_class, &channel,
                             sizeof channel, &ch->channel);
    if (!err)
        err = mb__nvrm_alloc(client, ch->channel, client->arch->copy_class, &copy, sizeof copy,
                             &ch->copy);
    if (err) {
        mb__nvrm_free(client, ch->group, ch->channel);
        mb__nvrm_free(client, client->device, ch->group);
        ch->channel = ch->group = 0;
        return err;
    }
    ch->copy_engine = copy_engine;
    return MB_OK;
}

/* The error of the last engine tried is reported. */
static enum mb_err make_on_some_engine(struct nvrm_channel *ch, int wanted)
{
    const uint8_t *choice = ch->client->arch->copy_choice;
    enum mb_err err = MB_ERR_NO_DEVICE;

    if (wanted >= 0)
        return make_on_engine(ch, wanted);
    for (unsigned i = 0; i < NVRM_COPY_CHOICES && choice[i] != 0xff; i++) {
        err = make_on_engine(ch, choice[i]);
        if (!err || err == MB_ERR_FORKED)
            return err;
    }
    return mb__fail_in(err, "no copy engine takes a helper channel");
}

/* Before it is scheduled: a change later would push it off its engine. */
static enum mb_err limit_slice(struct nvrm_channel *ch, uint32_t us)
{
    struct nvrm_abi_timeslice slice = {.us = us};

    return us ? mb__nvrm_control(ch->client, ch->group, NVRM_CMD_GROUP_TIMESLICE, &slice,
                                 sizeof slice)
              : MB_OK;
}

static enum mb_err start(struct nvrm_channel *ch)
{
    struct nvrm_client *client = ch->client;
    struct nvrm_abi_schedule schedule = {.enable = 1};
    struct nvrm_abi_token token = {.token = UINT32_MAX};

    enum mb_err err = mb__nvrm_control(client, ch->group, NVRM_CMD_GROUP_SCHEDULE, &schedule,
                                       client->series->schedule_bytes);
    if (!err)
        err =
            mb__nvrm_control(client, ch->channel, NVRM_CMD_WORK_SUBMIT_TOKEN, &token, sizeof token);
    ch->token = token.token;
    return err;
}

static enum mb_err try_out(struct nvrm_channel *ch, uint64_t timeout_ns)
{
    uint32_t words[NVRM_WORDS_SET_OBJECT];
    struct nvrm_push push;
    uint64_t ticket;

    mb__nvrm_push_init(&push, ch->client->arch, words, NVRM_WORDS_SET_OBJECT);
    mb__nvrm_push_set_copy_object(&push);
    enum mb_err err = mb__nvrm_channel_submit(ch, &push, 1, 0, &ticket);
    if (!err)
        err = mb__nvrm_channel_wait(ch, ticket, timeout_ns);
    return err ? mb__fail_in(err, "first use of the helper channel") : MB_OK;
}

static enum mb_err check_request(const struct nvrm_channel_request *request)
{
    uint32_t entries = request->ring_entries;

    if (entries &&
        (entries < MIN_RING_ENTRIES || entries > MAX_RING_ENTRIES || (entries & (entries - 1))))
        return mb__fail(MB_ERR_INVALID, "a ring of %u entries: give a power of two from %d to %d",
                        entries, MIN_RING_ENTRIES, MAX_RING_ENTRIES);
    if (request->push_bytes % 4096 || request->push_bytes > 1u << 30)
        return mb__fail(MB_ERR_INVALID,
                        "a push buffer of %u bytes: give a multiple of 4096 up to 1 GiB",
                        request->push_bytes);
    if (request->copy_engine < -1 || request->copy_engine > 19)
        return mb__fail(MB_ERR_INVALID, "copy engine %d: give 0 to 19, or -1 to choose",
                        request->copy_engine);
    return MB_OK;
}

enum mb_err mb__nvrm_channel_create(struct nvrm_vas *vas,
                                    const struct nvrm_channel_request *request,
                                    struct nvrm_channel **out)
{
    enum mb_err err = check_request(request);
    struct nvrm_channel *ch = err ? NULL : calloc(1, sizeof *ch);

    if (!ch)
        return err ? err : mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a helper channel");
    ch->client = vas->client;
    ch->vas = vas;
    ch->ring_entries = request->ring_entries ? request->ring_entries : DEFAULT_RING_ENTRIES;
    ch->push_words = (request->push_bytes ? request->push_bytes : DEFAULT_PUSH_BYTES) / 4;
    if (mb__lock_init(&ch->lock, "nvrm channel", LOCK_RANK)) {
        free(ch);
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a helper channel's lock");
    }
    mb__nvrm_object_link(ch->client, &ch->object, channel_destroy);
    ch->slots = calloc(ch->ring_entries, sizeof *ch->slots);
    if (!ch->slots)
        err = mb__fail(MB_ERR_HOST_MEMORY, "no host memory for a helper channel's ring");
    if (!err)
        err = make_buffers(ch);
    if (!err)
        err = make_on_some_engine(ch, request->copy_engine);
    if (!err)
        err = limit_slice(ch, request->timeslice_us);
    if (!err)
        err = start(ch);
    if (!err)
        err = try_out(ch, request->start_timeout_ns ? request->start_timeout_ns
                                                    : default_start_timeout_ns);
    if (err) {
        channel_destroy(&ch->object);
        return err;
    }
    *out = ch;
    return MB_OK;
}

void mb__nvrm_channel_destroy(struct nvrm_channel **channel)
{
    if (*channel)
        channel_destroy(&(*channel)->object);
    *channel = NULL;
}

/* ------------------------------------------------------------ questions */

/* Half of the buffer: a submission must lie in one piece, and the piece up to the end may be
 * wasted. */
uint32_t mb__nvrm_channel_max_words(const struct nvrm_channel *ch)
{
    return ch->push_words / 2 - NVRM_WORDS_SEMAPHORE;
}

int mb__nvrm_channel_engine(const struct nvrm_channel *ch)
{
    return ch->copy_engine;
}

void mb__nvrm_channel_stats(struct nvrm_channel *ch, struct nvrm_channel_stats *out)
{
    mb__lock(&ch->lock);
    *out = ch->stats;
    mb__unlock(&ch->lock);
}

enum mb_err mb__nvrm_channel_error(const struct nvrm_channel *ch, struct nvrm_channel_error *out)
{
    enum mb_err err = mb__nvrm_client_check(ch->client);
    if (err)
        return err;

    /* The driver stores the status last. */
    const volatile struct nvrm_abi_notification *record = ch->notifier->cpu.addr;
    if (!record->status)
        return MB_OK;
    mb__nvrm_fence();
    *out = (struct nvrm_channel_error){
        .code = record->info32,
        .engine_type = record->info16,
        .time_ns = (uint64_t)record->time_high << 32 | record->time_low,
        .text = mb__nvrm_xid_text(record->info32),
    };
    return mb__fail(MB_ERR_DEVICE_LOST,
                    "the helper channel was stopped: exception %u (%s), engine %u", out->code,
                    out->text, out->engine_type);
}

bool mb__nvrm_channel_done(const struct nvrm_channel *ch, uint64_t ticket)
{
    if (mb__nvrm_fork_guard_is_child(&ch->client->guard))
        return false;
    bool done = *ch->done >= ticket;
    if (done)
        mb__nvrm_fence();
    return done;
}

static void rest(const struct nvrm_channel *ch, unsigned *turn)
{
    ch->client->os->pause(ch->client->os, ++*turn);
}

enum mb_err mb__nvrm_channel_wait(struct nvrm_channel *ch, uint64_t ticket, uint64_t timeout_ns)
{
    struct nvrm_channel_error error;
    uint64_t start_ns = mb__now_ns();
    unsigned turn = 0;

    for (;;) {
        if (mb__nvrm_channel_done(ch, ticket))
            return MB_OK;
        enum mb_err err = mb__nvrm_channel_error(ch, &error);
        if (err)
            return err;
        if (mb__now_ns() - start_ns >= timeout_ns)
            break;
        rest(ch, &turn);
    }
    if (mb__nvrm_channel_done(ch, ticket))
        return MB_OK;
    return mb__fail(MB_ERR_TIMEOUT,
                    "the helper channel has not finished submission %llu within %llu us; it is at "
                    "%llu and the driver reports no error",
                    (unsigned long long)ticket, (unsigned long long)timeout_ns / 1000,
                    (unsigned long long)*ch->done);
}

enum mb_err mb__nvrm_channel_idle(struct nvrm_channel *ch, uint64_t timeout_ns)
{
    enum mb_err err = mb__nvrm_client_check(ch->client);

    if (err)
        return err;
    mb__lock(&ch->lock);
    uint64_t last = ch->last_ticket;
    mb__unlock(&ch->lock);
    return mb__nvrm_channel_wait(ch, last, timeout_ns);
}

/* ------------------------------------------------------------ submission, under the lock */

static void collect(struct nvrm_channel *ch)
{
    uint64_t done = *ch->done;

    while (ch->ring_tail != ch->ring_head) {
        const struct slot *slot = &ch->slots[ch->ring_tail & (ch->ring_entries - 1)];
        if (slot->ticket > done)
            break;
        ch->ring_tail++;
        ch->push_tail = slot->push_end;
    }
}

/* Position where `words` lie in one piece: behind the last ones, or at the next start of the
 * buffer. */
static uint64_t place(const struct nvrm_channel *ch, uint32_t words)
{
    uint64_t at = ch->push_head % ch->push_words;

    return at + words <= ch->push_words ? ch->push_head : ch->push_head + (ch->push_words - at);
}

static bool has_room(const struct nvrm_channel *ch, uint32_t entries, uint32_t words)
{
    return ch->ring_head + entries - ch->ring_tail < ch->ring_entries &&
           place(ch, words) + words - ch->push_tail <= ch->push_words;
}

static enum mb_err wait_for_room(struct nvrm_channel *ch, uint32_t entries, uint32_t words,
                                 uint64_t timeout_ns)
{
    struct nvrm_channel_error error;
    uint64_t start_ns = 0;
    unsigned turn = 0;

    for (bool first = true;; first = false) {
        enum mb_err err = mb__nvrm_channel_error(ch, &error);
        if (err)
            return err;
        collect(ch);
        if (has_room(ch, entries, words))
            return MB_OK;
        ch->stats.waits_for_room += first;
        if (!timeout_ns)
            return mb__fail(MB_ERR_BUSY, "the helper channel has no room for %u entries, %u words",
                            entries, words);
        if (first)
            start_ns = mb__now_ns();
        else if (mb__now_ns() - start_ns >= timeout_ns)
            return mb__fail(MB_ERR_TIMEOUT,
                            "the helper channel made no room for %u entries, %u words in %llu us",
                            entries, words, (unsigned long long)timeout_ns / 1000);
        rest(ch, &turn);
    }
}

static void copy_words(struct nvrm_channel *ch, uint64_t position, const uint32_t *words,
                       uint32_t count)
{
    volatile uint32_t *to = ch->words + position % ch->push_words;

    for (uint32_t i = 0; i < count; i++)
        to[i] = words[i];
}

static void write_entry(struct nvrm_channel *ch, uint64_t position, uint32_t words, uint64_t ticket)
{
    uint32_t index = (uint32_t)ch->ring_head & (ch->ring_entries - 1);
    uint64_t entry = 0;

    /* Cannot fail: addresses were checked at creation and lengths by check_segments(). */
    (void)mb__nvrm_gp_entry(ch->push->va + position % ch->push_words * 4, words, &entry);
    ch->entries[index] = entry;
    ch->slots[index] = (struct slot){.ticket = ticket, .push_end = position + words};
    ch->ring_head++;
}

/*
 * Measured on GH100: a doorbell right after a BAR1 mapping was undone can overtake the put index,
 * whose write then waits for BAR1's own translation to be looked up again, and the work stays
 * unseen until the next doorbell. Reading the index back holds the doorbell until the write has
 * landed; about 1 us, so only when a mapping of this client has changed. mb__nvrm_channel_poke()
 * covers the rest.
 */
static void settle_put(struct nvrm_channel *ch)
{
    uint64_t changes = __atomic_load_n(&ch->client->map_changes, __ATOMIC_ACQUIRE);

    if (changes == ch->map_changes)
        return;
    ch->map_changes = changes;
    (void)*ch->put_word;
    mb__nvrm_fence();
}

/* The words must be in memory before the entries, these before the put index, that before the
 * doorbell: ring and doorbell lie behind write-combining and uncached windows. */
static void send(struct nvrm_channel *ch, const struct nvrm_push *segments, uint32_t count,
                 uint64_t position, uint64_t ticket)
{
    uint32_t tail_words[NVRM_WORDS_SEMAPHORE];
    struct nvrm_push tail;

    mb__nvrm_push_init(&tail, ch->client->arch, tail_words, NVRM_WORDS_SEMAPHORE);
    mb__nvrm_push_release64(&tail, ch->progress->va, ticket, NVRM_RELEASE_WFI);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words = segments[i].count;
        copy_words(ch, position, segments[i].words, words);
        if (i + 1 == count) {
            copy_words(ch, position + words, tail_words, tail.count);
            words += tail.count;
        }
        write_entry(ch, position, words, ticket);
        position += words;
    }
    ch->push_head = position;
    mb__nvrm_fence();
    *ch->put_word = (uint32_t)ch->ring_head & (ch->ring_entries - 1);
    mb__nvrm_fence();
    settle_put(ch);
    *ch->vas->doorbell = ch->token;
}

static enum mb_err check_segments(const struct nvrm_channel *ch, const struct nvrm_push *segments,
                                  uint32_t count, uint32_t *words_out)
{
    uint64_t words = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (segments[i].problem)
            return mb__fail(MB_ERR_INVALID, "segment %u for the helper channel: %s", i,
                            segments[i].problem);
        if (!segments[i].count)
            return mb__fail(MB_ERR_INVALID, "segment %u for the helper channel is empty", i);
        words += segments[i].count;
    }
    if (!count)
        return mb__fail(MB_ERR_INVALID, "a submission without segments");
    if (count >= ch->ring_entries || words > mb__nvrm_channel_max_words(ch))
        return mb__fail(
            MB_ERR_LIMIT,
            "a submission of %u segments and %llu words; the helper channel takes %u and "
            "%u: split it",
            count, (unsigned long long)words, ch->ring_entries - 1, mb__nvrm_channel_max_words(ch));
    *words_out = (uint32_t)words + NVRM_WORDS_SEMAPHORE;
    return MB_OK;
}

void mb__nvrm_channel_poke(struct nvrm_channel *ch)
{
    if (mb__nvrm_client_check(ch->client) || ch->last_ticket == *ch->done)
        return;
    mb__nvrm_fence();
    *ch->vas->doorbell = ch->token;
}

enum mb_err mb__nvrm_channel_submit(struct nvrm_channel *ch, const struct nvrm_push *segments,
                                    uint32_t count, uint64_t timeout_ns, uint64_t *ticket)
{
    uint32_t words = 0;
    enum mb_err err = mb__nvrm_client_check(ch->client);

    if (!err)
        err = check_segments(ch, segments, count, &words);
    if (err)
        return err;
    mb__lock(&ch->lock);
    err = wait_for_room(ch, count, words, timeout_ns);
    if (!err) {
        *ticket = ++ch->last_ticket;
        send(ch, segments, count, place(ch, words), *ticket);
        ch->stats.submissions++;
        ch->stats.segments += count;
        ch->stats.words += words;
    }
    mb__unlock(&ch->lock);
    return err;
}
