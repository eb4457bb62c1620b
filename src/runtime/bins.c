/* SPDX-License-Identifier: MIT */
/*
 * The warm path: blocks of one size, pool and stream, kept ready where a thread freed them last.
 *
 * A shard is a small set-associative cache of bins. Threads are dealt over the shards in turn, so
 * threads up to their number do not meet. malloc_async finds its bin and pops; free_async looks the
 * block up (lock-free) and pushes. No tree, no device call, no device-wide lock.
 *
 * Locking: a shard's spin lock, held for a few dozen instructions; nothing is called under it.
 * Trade-offs: binned bytes are invisible to best fit. So they are bounded, and all bins go back to
 * the heap before a block is composed of pieces or the pool grows: at the peak they hold nothing.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/runtime.h"

enum {
    BIN_BLOCKS_MAX = 256, /* blocks in one bin */
    SPINS = 64,           /* before a waiting thread yields */
};

/* Threads take the next number at their first call. No initial-exec: one variable of that kind puts
 * all of the library's into the loader's small reserve, and libraries that need it (OpenMP's) can
 * then not be opened after this one. */
static _Thread_local unsigned thread_number;
static unsigned thread_count; /* atomic */

static unsigned my_shard(void)
{
    if (!thread_number)
        thread_number = __atomic_add_fetch(&thread_count, 1, __ATOMIC_RELAXED);
    return (thread_number - 1) % MB__SHARDS;
}

unsigned mb__shards_active(void)
{
    unsigned count = __atomic_load_n(&thread_count, __ATOMIC_RELAXED);

    return count < MB__SHARDS ? count : MB__SHARDS;
}

void mb__shard_lock(struct mb__shard *shard)
{
    unsigned spins = 0;

    while (__atomic_exchange_n(&shard->lock, 1, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&shard->lock, __ATOMIC_RELAXED)) {
            if (++spins % SPINS == 0)
                sched_yield();
        }
    }
}

void mb__shard_unlock(struct mb__shard *shard)
{
    __atomic_store_n(&shard->lock, 0, __ATOMIC_RELEASE);
}

uint64_t mb__sample_start(struct mb_device *dev)
{
    struct mb__shard *shard = &dev->shards[my_shard()];
    uint32_t calls = __atomic_load_n(&shard->calls, __ATOMIC_RELAXED);

    __atomic_store_n(&shard->calls, calls + 1, __ATOMIC_RELAXED);
    return calls % MB__SAMPLE ? 0 : mb__now_ns();
}

static struct mb_hist *hist_of(struct mb_device *dev, bool free)
{
    return free ? &dev->free_hist : &dev->malloc_hist;
}

/* Under the shard's lock. */
static void samples_spill(struct mb_device *dev, struct mb__shard *shard, bool free)
{
    for (uint32_t i = 0; i < shard->sample_count[free]; i++)
        mb__hist_record_shared(hist_of(dev, free), shard->samples[free][i]);
    shard->sample_count[free] = 0;
}

/* The histogram is common to all threads, so each shard brings many samples at a time. */
void mb__sample_end(struct mb_device *dev, bool free, uint64_t start)
{
    struct mb__shard *shard = &dev->shards[my_shard()];
    uint64_t ns = mb__now_ns() - start;

    if (ns > UINT32_MAX) { /* 4 s: as it is, and rare */
        mb__hist_record_shared(hist_of(dev, free), ns);
        return;
    }
    mb__shard_lock(shard);
    shard->samples[free][shard->sample_count[free]++] = (uint32_t)ns;
    if (shard->sample_count[free] == MB__SAMPLES_KEPT)
        samples_spill(dev, shard, free);
    mb__shard_unlock(shard);
}

void mb__samples_collect(struct mb_device *dev)
{
    for (unsigned s = 0; s < mb__shards_active(); s++) {
        mb__shard_lock(&dev->shards[s]);
        samples_spill(dev, &dev->shards[s], false);
        samples_spill(dev, &dev->shards[s], true);
        mb__shard_unlock(&dev->shards[s]);
    }
}

void *mb__calloc_apart(size_t count, size_t bytes)
{
    void *items = aligned_alloc(MB__APART, count * bytes);

    if (items)
        memset(items, 0, count * bytes);
    return items;
}

/* A record's slot follows from its index and not from its handle: which calls take the warm path
 * must not depend on where the host put a stream. Few streams are in use, so the scan ends early.
 * */
static struct mb__stream *cached_stream(const struct mb__shard *shard, mb_stream native)
{
    for (unsigned i = 0; i < MB__STREAM_SLOTS; i++)
        if (shard->streams[i].native == native && shard->streams[i].stream)
            return shard->streams[i].stream;
    return NULL;
}

static void cache_stream(struct mb__shard *shard, struct mb__stream *stream)
{
    unsigned i = stream->index % MB__STREAM_SLOTS;

    shard->streams[i].native = stream->native;
    shard->streams[i].stream = stream;
}

/* Changes the account that blocks of `size` belong to. */
static void add_bytes(struct mb__shard *shard, uint64_t size, int64_t bytes)
{
    uint64_t *account = size < MB__LARGE ? &shard->bytes : &shard->large_bytes;

    __atomic_store_n(account, *account + (uint64_t)bytes, __ATOMIC_RELAXED);
}

static struct mb__bin *set_of(struct mb__shard *shard, const struct mb_pool *pool,
                              const struct mb__stream *stream, uint64_t bytes)
{
    /* Numbers, not addresses: what a set gives up must not depend on where the host put records. */
    uint64_t order = stream ? (uint64_t)stream->index + 1 : 0;
    uint64_t id = __atomic_load_n(&pool->id, __ATOMIC_RELAXED);
    uint64_t key = bytes ^ id << 48 ^ order << 32;

    return shard->bins[(key * 0x9e3779b97f4a7c15u) >> 58];
}

static struct mb__bin *find_bin(struct mb__shard *shard, const struct mb_pool *pool,
                                const struct mb__stream *stream, uint64_t bytes)
{
    struct mb__bin *set = set_of(shard, pool, stream, bytes);

    for (unsigned i = 0; i < MB__BIN_WAYS; i++)
        if (set[i].bytes == bytes && set[i].stream == stream && set[i].pool == pool)
            return &set[i];
    return NULL;
}

/* An empty bin for the key, or NULL when all ways hold blocks. */
static struct mb__bin *claim_bin(struct mb__shard *shard, struct mb_pool *pool,
                                 struct mb__stream *stream, uint64_t bytes)
{
    struct mb__bin *set = set_of(shard, pool, stream, bytes), *oldest = NULL;

    for (unsigned i = 0; i < MB__BIN_WAYS; i++)
        if (!set[i].head &&
            (!oldest || shard->clock - set[i].used_at > shard->clock - oldest->used_at))
            oldest = &set[i];
    if (oldest)
        *oldest = (struct mb__bin){.pool = pool, .stream = stream, .bytes = bytes};
    return oldest;
}

/* The shard's lock is held. A shard with a list has its bit, or a slow call is about to take the
 * list. */
__attribute__((noinline, cold)) static void touch(struct mb_device *dev, unsigned index,
                                                  struct mb__account *account)
{
    struct mb__shard *shard = &dev->shards[index];

    if (!shard->touched)
        __atomic_fetch_or(&dev->touched, UINT64_C(1) << index, __ATOMIC_RELAXED);
    account->next = shard->touched;
    shard->touched = account;
    account->touched = true;
}

static void account_malloc(struct mb_device *dev, struct mb_pool *pool, unsigned index,
                           uint64_t requested, uint64_t bytes)
{
    struct mb__account *account = &pool->accounts[index];

    if (!account->touched)
        touch(dev, index, account);
    account->blocks++;
    account->requested += (int64_t)requested;
    account->allocated += (int64_t)bytes;
    if (account->requested > account->requested_high)
        account->requested_high = account->requested;
    if (account->allocated > account->allocated_high)
        account->allocated_high = account->allocated;
    account->mallocs++;
    account->malloc_bytes += bytes;
}

static void account_free(struct mb_device *dev, struct mb_pool *pool, unsigned index,
                         uint64_t requested, uint64_t bytes)
{
    struct mb__account *account = &pool->accounts[index];

    if (!account->touched)
        touch(dev, index, account);
    account->blocks--;
    account->requested -= (int64_t)requested;
    account->allocated -= (int64_t)bytes;
    account->frees++;
}

bool mb__bins_malloc(struct mb_device *dev, struct mb_pool *pool, uint64_t requested, bool host,
                     mb_stream native, void **out)
{
    unsigned index = my_shard();
    struct mb__shard *shard = &dev->shards[index];
    uint64_t bytes = mb__round(requested);
    struct mb__stream *stream = NULL;
    struct mb__block *block = NULL;
    struct mb__bin *bin;

    if (!dev->use_bins)
        return false;
    mb__shard_lock(shard);
    if (!host)
        stream = cached_stream(shard, native);
    bin = host || stream ? find_bin(shard, pool, stream, bytes) : NULL;
    if (bin && bin->head) {
        block = bin->head;
        bin->head = block->next;
        bin->count--;
        bin->used_at = shard->clock++;
        add_bytes(shard, bytes, -(int64_t)bytes);
        __atomic_store_n(&block->requested, requested, __ATOMIC_RELAXED);
        __atomic_store_n(&block->state, MB__BLOCK_LIVE, __ATOMIC_RELAXED);
        account_malloc(dev, pool, index, requested, bytes);
        *out = (void *)(uintptr_t)block->addr;
    }
    mb__shard_unlock(shard);
    return block != NULL;
}

/* The block is ours: its state was exchanged. false: no room. */
static bool push(struct mb_device *dev, struct mb__shard *shard, struct mb__block *block,
                 struct mb__stream *stream, unsigned index)
{
    struct mb__bin *bin;

    if (block->bytes < MB__LARGE ? shard->bytes + block->bytes > dev->bin_bytes
                                 : shard->large_bytes + block->bytes > dev->large_bin_bytes)
        return false;
    bin = find_bin(shard, block->pool, stream, block->bytes);
    if (!bin)
        bin = claim_bin(shard, block->pool, stream, block->bytes);
    if (!bin || bin->count >= BIN_BLOCKS_MAX)
        return false;
    block->next = bin->head;
    block->ticket = stream ? mb__stream_ticket(stream) : 0;
    block->stream = stream;
    bin->head = block;
    bin->count++;
    bin->used_at = shard->clock++;
    add_bytes(shard, block->bytes, (int64_t)block->bytes);
    account_free(dev, block->pool, index, block->requested, block->bytes);
    return true;
}

/* The record was looked up without a lock: by now it may be another block's. Only whoever has taken
 * its state away may look at its fields. A free by the host in a pool that keeps its memory takes
 * the slow path, which finds out in whose order it is. */
static bool is_ours(const struct mb__block *block, uint64_t addr, bool host)
{
    return block->addr == addr && !(host && mb__pool_keeps(block->pool)) &&
           !__atomic_load_n(&block->pins, __ATOMIC_RELAXED) &&
           !__atomic_load_n(&block->shown, __ATOMIC_SEQ_CST) &&
           !__atomic_load_n(&block->uses, __ATOMIC_RELAXED);
}

bool mb__bins_free(struct mb_device *dev, uint64_t addr, struct mb__block *block, bool host,
                   mb_stream native)
{
    unsigned index = my_shard();
    struct mb__shard *shard = &dev->shards[index];
    struct mb__stream *stream = NULL;
    bool served = false;

    if (!dev->use_bins)
        return false;
    mb__shard_lock(shard);
    if (!host)
        stream = cached_stream(shard, native);
    if (host || stream) {
        uint32_t live = MB__BLOCK_LIVE;

        /* Two frees of one block on different shards: one wins. Against a thread that is about to
         * show the block: it sees the state, or we see its mark. */
        if (__atomic_compare_exchange_n(&block->state, &live, MB__BLOCK_BINNED, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
            served = is_ours(block, addr, host) && push(dev, shard, block, stream, index);
            if (!served)
                __atomic_store_n(&block->state, MB__BLOCK_LIVE, __ATOMIC_RELEASE);
        }
    }
    mb__shard_unlock(shard);
    return served;
}

void mb__bins_learn_stream(struct mb_device *dev, struct mb__stream *stream)
{
    struct mb__shard *shard = &dev->shards[my_shard()];
    struct mb__lane *lane;

    /* A flush finds the lane of whatever stands in the bins. */
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        if (mb__pool_lane(pool, stream, &lane))
            return;
    mb__shard_lock(shard);
    cache_stream(shard, stream);
    mb__shard_unlock(shard);
}

void mb__bins_forget_stream(struct mb_device *dev, const struct mb__stream *stream)
{
    for (unsigned s = 0; s < MB__SHARDS; s++) {
        struct mb__shard *shard = &dev->shards[s];

        mb__shard_lock(shard);
        for (unsigned i = 0; i < MB__STREAM_SLOTS; i++)
            if (shard->streams[i].stream == stream)
                shard->streams[i].stream = NULL;
        mb__shard_unlock(shard);
    }
}

/* Empties the bins of one shard whose blocks have at least `least` bytes, into a list. */
static struct mb__block *drain_shard(struct mb__shard *shard, const struct mb_pool *pool,
                                     const struct mb__stream *stream, uint64_t least)
{
    struct mb__bin *bin = &shard->bins[0][0], *end = bin + MB__BIN_SETS * MB__BIN_WAYS;
    struct mb__block *list = NULL;

    mb__shard_lock(shard);
    for (; shard->bytes + shard->large_bytes && bin < end; bin++) {
        if (!bin->head || bin->bytes < least || (pool && bin->pool != pool) ||
            (stream && bin->stream != stream))
            continue;
        add_bytes(shard, bin->bytes, -(int64_t)(bin->bytes * bin->count));
        while (bin->head) {
            struct mb__block *block = bin->head;

            bin->head = block->next;
            block->next = list;
            list = block;
        }
        bin->count = 0;
    }
    mb__shard_unlock(shard);
    return list;
}

static bool return_list(struct mb_device *dev, struct mb__block *list)
{
    bool any = list != NULL;

    while (list) {
        struct mb__block *block = list;

        list = block->next;
        dev->recent[(block->addr >> 9) % MB__RECENT] = block->addr;
        mb__table_del(&dev->table, block->addr);
        mb__block_return(dev, block, block->stream, block->ticket);
    }
    return any;
}

bool mb__bins_flush(struct mb_device *dev, const struct mb_pool *pool)
{
    bool any = false;

    for (unsigned s = 0; s < mb__shards_active(); s++)
        any |= return_list(dev, drain_shard(&dev->shards[s], pool, NULL, 0));
    return any;
}

void mb__bins_flush_stream(struct mb_device *dev, const struct mb__stream *stream)
{
    for (unsigned s = 0; s < mb__shards_active(); s++)
        return_list(dev, drain_shard(&dev->shards[s], NULL, stream, 0));
}

void mb__bins_flush_large(struct mb_device *dev, const struct mb_pool *pool)
{
    for (unsigned s = 0; s < mb__shards_active(); s++)
        /* A glance without the lock: what is missed now is found by the flush of a later step. */
        if (__atomic_load_n(&dev->shards[s].large_bytes, __ATOMIC_RELAXED))
            return_list(dev, drain_shard(&dev->shards[s], pool, NULL, MB__LARGE));
}

uint64_t mb__bins_bytes(struct mb_device *dev, const struct mb_pool *pool)
{
    uint64_t bytes = 0;

    for (unsigned s = 0; s < mb__shards_active(); s++) {
        struct mb__shard *shard = &dev->shards[s];
        const struct mb__bin *bin = &shard->bins[0][0], *end = bin + MB__BIN_SETS * MB__BIN_WAYS;

        mb__shard_lock(shard);
        for (; bin < end; bin++)
            if (!pool || bin->pool == pool)
                bytes += bin->bytes * bin->count;
        mb__shard_unlock(shard);
    }
    return bytes;
}
