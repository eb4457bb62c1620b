/* SPDX-License-Identifier: MIT */
/*
 * Statistics. A pool's live bytes are a base, changed by the slow path, plus what each shard did
 * since. The warm path lists what it touches, and each slow call brings that into the bases: one
 * shard lock and one account for each thread that did anything, however many shards, pools and
 * streams there are.
 *
 * Peaks: the slow path takes the shards' figures before it changes the base. Between two slow calls
 * only the warm path acts, and each shard remembers the highest it reached; with one thread the
 * peak is exact, with several it is the largest that one of them reached while the others stood as
 * they do now.
 *
 * Frames in use count bytes in bins as used: never less than the truth.
 *
 * Locking: the device's lock; shard locks inside it, one at a time.
 */
#include "runtime/runtime.h"
#include "runtime/vmm.h"

static void lift(uint64_t *peak, int64_t value)
{
    if (value > 0 && (uint64_t)value > *peak)
        *peak = (uint64_t)value;
}

static void lift_device(struct mb_device *dev, int64_t requested, int64_t allocated)
{
    int64_t mapped = (int64_t)mb__vmm_bytes(dev);

    lift(&dev->counters.requested_peak, dev->base.requested + requested + mapped);
    lift(&dev->counters.allocated_peak, dev->base.allocated + allocated + mapped);
}

static void add(struct mb__live *to, struct mb__live more)
{
    to->blocks += more.blocks;
    to->requested += more.requested;
    to->allocated += more.allocated;
}

/* Shard's lock held. */
static void settle_account(struct mb__account *account)
{
    struct mb_pool *pool = account->pool;
    struct mb__live live = {account->blocks, account->requested, account->allocated};
    int64_t requested = account->requested_high - live.requested;
    int64_t allocated = account->allocated_high - live.allocated;

    add(&pool->base, live);
    add(&pool->dev->base, live);
    if (requested > pool->excess.requested)
        pool->excess.requested = requested;
    if (allocated > pool->excess.allocated)
        pool->excess.allocated = allocated;
    account->blocks = account->requested = account->allocated = 0;
    account->requested_high = account->allocated_high = 0;
    account->touched = false;
}

static struct mb_pool *settle_shard(struct mb__shard *shard, struct mb_pool *list)
{
    mb__shard_lock(shard);
    while (shard->touched) {
        struct mb__account *account = shard->touched;
        struct mb_pool *pool = account->pool;

        shard->touched = account->next;
        settle_account(account);
        if (!pool->settling) {
            pool->settling = true;
            pool->settled = list;
            list = pool;
        }
    }
    mb__shard_unlock(shard);
    return list;
}

/* Brings what the warm path did into the bases. Costs what was touched, not what there is. */
static void settle(struct mb_device *dev)
{
    uint64_t shards = 0;
    struct mb_pool *list = NULL;
    int64_t requested = 0, allocated = 0;

    if (__atomic_load_n(&dev->touched, __ATOMIC_RELAXED))
        shards = __atomic_exchange_n(&dev->touched, 0, __ATOMIC_RELAXED);
    for (; shards; shards &= shards - 1)
        list = settle_shard(&dev->shards[__builtin_ctzll(shards)], list);
    for (; list; list = list->settled) {
        struct mb__live *excess = &list->excess;

        lift(&list->requested_peak, list->base.requested + excess->requested);
        lift(&list->allocated_peak, list->base.allocated + excess->allocated);
        requested = excess->requested > requested ? excess->requested : requested;
        allocated = excess->allocated > allocated ? excess->allocated : allocated;
        *excess = (struct mb__live){0};
        list->settling = false;
    }
    lift_device(dev, requested, allocated);
}

struct mb__live mb__pool_live(struct mb_pool *pool)
{
    settle(pool->dev);
    return pool->base;
}

void mb__fold(struct mb_device *dev)
{
    settle(dev);
}

void mb__account(struct mb_pool *pool, int64_t blocks, int64_t requested, int64_t allocated)
{
    struct mb__live more = {blocks, requested, allocated};

    if (blocks >= 0)
        settle(pool->dev); /* its highs were reached upon the old base */
    add(&pool->base, more);
    add(&pool->dev->base, more);
    if (allocated > 0)
        pool->dev->counters.malloc_bytes += (uint64_t)allocated;
    if (blocks < 0)
        return;
    lift(&pool->requested_peak, pool->base.requested);
    lift(&pool->allocated_peak, pool->base.allocated);
    lift_device(pool->dev, 0, 0);
}

static uint64_t frames_used(struct mb_device *dev)
{
    uint64_t frames = 0;

    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        frames += pool->heap.used_frames;
    return frames * MB_FRAME_BYTES + mb__vmm_bytes(dev);
}

void mb__note_frames(struct mb_device *dev)
{
    lift(&dev->counters.frames_peak, (int64_t)frames_used(dev));
}

void mb__note_held(struct mb_device *dev)
{
    struct mb_hw_counters hw;
    struct mb_vm_stats vm;

    mb__vm_stats(dev->vm, &vm);
    dev->hw->ops->counters(dev->hw, &hw);
    lift(&dev->counters.reserved_peak, (int64_t)(vm.held_bytes + hw.overhead_bytes));
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        lift(&pool->reserved_peak, (int64_t)pool->heap.total_bytes);
}

void mb__note_usage(struct mb_device *dev)
{
    settle(dev);
    mb__note_frames(dev);
    mb__note_held(dev);
}

/* ------------------------------------------------------------------ the public structure */

static void add_pools(struct mb_device *dev, struct mb_stats *out)
{
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next) {
        struct mb__live live = mb__pool_live(pool);

        out->requested_bytes += (uint64_t)live.requested;
        out->allocated_bytes += (uint64_t)live.allocated;
        out->live_blocks += (uint64_t)live.blocks;
        out->stitched_blocks += pool->stitched_live;
        for (unsigned s = 0; s < mb__shards_active(); s++) {
            mb__shard_lock(&dev->shards[s]);
            out->malloc_calls += pool->accounts[s].mallocs;
            out->free_calls += pool->accounts[s].frees;
            mb__shard_unlock(&dev->shards[s]);
        }
    }
}

struct mb__flow mb__bytes_since_open(struct mb_device *dev)
{
    struct mb__flow flow = {.total = dev->counters.malloc_bytes};

    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next) {
        flow.live += (uint64_t)mb__pool_live(pool).allocated;
        for (unsigned s = 0; s < mb__shards_active(); s++) {
            mb__shard_lock(&dev->shards[s]);
            flow.total += pool->accounts[s].malloc_bytes;
            mb__shard_unlock(&dev->shards[s]);
        }
    }
    return flow;
}

void mb__stats_inherit(struct mb_pool *pool)
{
    struct mb__counters *counters = &pool->dev->counters;

    for (unsigned s = 0; s < mb__shards_active(); s++) {
        counters->mallocs += pool->accounts[s].mallocs;
        counters->frees += pool->accounts[s].frees;
        counters->malloc_bytes += pool->accounts[s].malloc_bytes;
    }
}

static void add_vm(struct mb_device *dev, struct mb_stats *out)
{
    struct mb_hw_counters hw;
    struct mb_vm_stats vm;

    mb__vm_stats(dev->vm, &vm);
    dev->hw->ops->counters(dev->hw, &hw);
    out->reserved_bytes = vm.held_bytes + hw.overhead_bytes;
    out->overhead_bytes = hw.overhead_bytes;
    out->table_bytes = vm.table_bytes + hw.table_bytes;
    out->map_batches = vm.map_batches;
    out->unmap_batches = vm.unmap_batches;
    out->entries_written = vm.entries_written;
    out->invalidates = vm.invalidates;
    out->epochs = vm.epochs;
    out->va_handed_out_bytes = vm.va_handed_out_bytes;
    out->quarantined_bytes = vm.quarantined_bytes;
    out->wrong_words = hw.wrong_words - dev->counters.own_wrong_words;
    out->wrong_accesses = hw.wrong_accesses;
    out->faults = hw.faults;
}

enum mb_err mb__stats_get(struct mb_device *dev, struct mb_stats *out)
{
    struct mb_stats stats = {0};
    const struct mb__counters *counters = &dev->counters;

    add_pools(dev, &stats);
    stats.requested_bytes += mb__vmm_bytes(dev);
    stats.allocated_bytes += mb__vmm_bytes(dev);
    mb__note_frames(dev);
    mb__note_held(dev);
    add_vm(dev, &stats);
    stats.frames_used_bytes = frames_used(dev);
    stats.requested_peak_bytes = counters->requested_peak;
    stats.allocated_peak_bytes = counters->allocated_peak;
    stats.frames_used_peak_bytes = counters->frames_peak;
    stats.reserved_peak_bytes = counters->reserved_peak;
    stats.malloc_calls += counters->mallocs;
    stats.free_calls += counters->frees;
    stats.failed_requests = counters->failed_requests;
    stats.stitches = counters->stitches;
    stats.grows = counters->grows;
    stats.trims = counters->trims;
    mb__samples_collect(dev);
    mb__hist_latency(&dev->malloc_hist, &stats.malloc_latency);
    mb__hist_latency(&dev->free_hist, &stats.free_latency);
    mb__hist_latency(&dev->map_hist, &stats.map_latency);
    if (counters->malloc_max_ns > stats.malloc_latency.max_ns)
        stats.malloc_latency.max_ns = counters->malloc_max_ns;
    if (counters->free_max_ns > stats.free_latency.max_ns)
        stats.free_latency.max_ns = counters->free_max_ns;
    *out = stats;
    return MB_OK;
}

void mb__stats_reset_peaks(struct mb_device *dev)
{
    struct mb__counters *counters = &dev->counters;

    mb__fold(dev);
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        pool->requested_peak = pool->allocated_peak = pool->reserved_peak = 0;
    counters->frames_peak = counters->reserved_peak = 0;
    counters->requested_peak = counters->allocated_peak = 0;
    for (struct mb_pool *pool = dev->pools; pool; pool = pool->next)
        mb__account(pool, 0, 0, 0);
    mb__note_frames(dev);
    mb__note_held(dev);
}
