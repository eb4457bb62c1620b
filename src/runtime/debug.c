/* SPDX-License-Identifier: MIT */
/*
 * Red zones, poison, use after free, leaks.
 *
 *   redzone  512 bytes before and after each block are filled when it is made and verified when it
 *            is freed; what is left of the last granule belongs to the zone behind
 *   poison   free memory holds a pattern that depends on its home address; a new block is verified
 *            against it (somebody wrote after a free) and so starts with recognisable contents
 *   uaf      every block gets a window of its own, which is unmapped at the free and whose
 *            addresses are not used again for long: a later access is a fault, which ends the
 *            context
 *   leaks    live blocks are listed at close
 *
 * Verdicts need the device's answer, so malloc and free wait for their stream.
 *
 * Locking: the device's lock, also while waiting.
 */
#include <inttypes.h>

#include "base/err.h"
#include "base/log.h"
#include "kernels/pattern.h"
#include "runtime/access.h"
#include "runtime/debug.h"
#include "runtime/vmm.h"

enum {
    ZONE_BYTES = MB__GRANULE,
    LEAKS_LISTED = 10,
};

static const uint64_t ZONE_SEED = 0x5afe5afe5afe5afeu, POISON_SEED = 0xdeadbeefdeadbeefu;

uint64_t mb__debug_zone(const struct mb_device *dev)
{
    return dev->config.checks & MB__CHECK_REDZONE ? ZONE_BYTES : 0;
}

/* The pattern's argument is linear in the word's index, so this seed makes it a function of the
 * address. */
static uint64_t seed_at(uint64_t base, uint64_t addr)
{
    return base + (addr / 8) * MB_PATTERN_GOLDEN;
}

static struct mb__stream *stream_of(struct mb_device *dev, struct mb__stream *stream)
{
    return stream ? stream : dev->own;
}

static enum mb_err fill(struct mb_device *dev, struct mb__stream *stream, uint64_t addr,
                        uint64_t bytes, uint64_t base)
{
    if (!bytes)
        return MB_OK;
    return dev->hw->ops->fill(dev->hw, stream_of(dev, stream)->hw, mb__va(addr), bytes,
                              seed_at(base, addr));
}

/* Number of words that differ, after waiting for the stream. */
static enum mb_err count_wrong(struct mb_device *dev, struct mb__stream *stream, uint64_t addr,
                               uint64_t bytes, uint64_t base, uint64_t *wrong)
{
    const struct mb_hw_ops *ops = dev->hw->ops;
    struct mb_hw_stream *hw = stream_of(dev, stream)->hw;
    struct mb_hw_counters before, after;
    struct mb_hw_fence fence;
    enum mb_err err = ops->fence_record(dev->hw, hw, &fence);

    if (!err)
        err = ops->fence_wait_host(dev->hw, fence, 0);
    ops->counters(dev->hw, &before);
    if (!err)
        err = ops->verify(dev->hw, hw, mb__va(addr), bytes, seed_at(base, addr));
    if (!err)
        err = ops->fence_record(dev->hw, hw, &fence);
    if (!err)
        err = ops->fence_wait_host(dev->hw, fence, 0);
    if (err)
        return err;
    ops->counters(dev->hw, &after);
    *wrong = after.wrong_words - before.wrong_words;
    dev->counters.own_wrong_words += *wrong;
    return MB_OK;
}

/* The upper zone starts behind the requested bytes, rounded to the 8 that device work can address.
 */
static uint64_t upper_zone(const struct mb__block *block)
{
    return block->addr + ((block->requested + 7) & ~(uint64_t)7);
}

static enum mb_err fill_zones(struct mb_device *dev, const struct mb__block *block)
{
    uint64_t upper = upper_zone(block);
    enum mb_err err =
        fill(dev, block->stream, block->addr - block->zone_bytes, block->zone_bytes, ZONE_SEED);

    return err ? err : fill(dev, block->stream, upper, mb__block_end(block) - upper, ZONE_SEED);
}

static enum mb_err check_zone(struct mb_device *dev, const struct mb__block *block,
                              struct mb__stream *stream, uint64_t addr, uint64_t bytes,
                              const char *where)
{
    uint64_t wrong = 0;
    enum mb_err err = count_wrong(dev, stream, addr, bytes, ZONE_SEED, &wrong);

    if (err || !wrong)
        return err;
    return mb__fail(
        MB_ERR_CORRUPT,
        "block 0x%" PRIx64 " of %" PRIu64 " bytes: %" PRIu64
        " words %s it were written; the block stays allocated, look for an access out of "
        "bounds",
        block->addr, block->requested, wrong, where);
}

static enum mb_err check_zones(struct mb_device *dev, const struct mb__block *block,
                               struct mb__stream *stream)
{
    uint64_t upper = upper_zone(block);
    enum mb_err err = check_zone(dev, block, stream, block->addr - block->zone_bytes,
                                 block->zone_bytes, "before");

    return err ? err
               : check_zone(dev, block, stream, upper, mb__block_end(block) - upper, "behind");
}

/* Poison is a function of the home address, so a block made of several pieces is checked piece by
 * piece. */
static enum mb_err check_poison(struct mb_device *dev, const struct mb__block *block)
{
    for (const struct mb__node *node = block->pieces; node; node = node->piece_next) {
        uint64_t wrong = 0;
        enum mb_err err =
            count_wrong(dev, block->stream, node->addr, node->bytes, POISON_SEED, &wrong);

        if (err)
            return err;
        if (wrong)
            mb__log(MB_LOG_ERROR, "runtime",
                    "%" PRIu64
                    " words of free memory were written: a use after free; it is now part of "
                    "the block at 0x%" PRIx64 " of %" PRIu64 " bytes",
                    wrong, block->addr, block->requested);
        dev->counters.poison_hits += wrong != 0;
    }
    return MB_OK;
}

enum mb_err mb__debug_poison(struct mb_device *dev, uint64_t home, uint64_t bytes,
                             struct mb__stream *stream)
{
    if (!(dev->config.checks & MB__CHECK_POISON))
        return MB_OK;
    return fill(dev, stream, home, bytes, POISON_SEED);
}

/* The own stream's fills are over before the memory is anybody's. */
enum mb_err mb__debug_settle(struct mb_device *dev)
{
    struct mb_hw_fence fence;
    enum mb_err err;

    if (!(dev->config.checks & MB__CHECK_POISON))
        return MB_OK;
    err = dev->hw->ops->fence_record(dev->hw, dev->own->hw, &fence);
    return err ? err : dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
}

enum mb_err mb__debug_on_malloc(struct mb_device *dev, struct mb__block *block)
{
    enum mb_err err = MB_OK;

    if (dev->config.checks & MB__CHECK_POISON)
        err = check_poison(dev, block);
    if (!err && dev->config.checks & MB__CHECK_REDZONE)
        err = fill_zones(dev, block);
    if (!err && !block->stream && dev->config.checks & MB__CHECK_REDZONE) {
        struct mb_hw_fence fence;

        err = dev->hw->ops->fence_record(dev->hw, dev->own->hw, &fence);
        if (!err)
            err = dev->hw->ops->fence_wait_host(dev->hw, fence, 0);
    }
    return err;
}

/* The host waits until all that is on the stream now has been executed. */
static enum mb_err wait_for_user(struct mb_device *dev, const struct mb__stream *user)
{
    const struct mb_hw_ops *ops = dev->hw->ops;
    struct mb_hw_fence fence;
    enum mb_err err;

    if (user->retired && !user->point_count)
        return MB_OK;
    if (user->retired)
        return ops->fence_wait_host(dev->hw, user->points[user->point_count - 1].fence, 0);
    err = ops->fence_record(dev->hw, user->hw, &fence);
    return err ? err : ops->fence_wait_host(dev->hw, fence, 0);
}

static enum mb_err wait_for_users(struct mb_device *dev, const struct mb__order *uses)
{
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && uses && i < uses->count; i++)
        err = wait_for_user(dev, uses->points[i].stream);
    return err;
}

void mb__debug_on_unpin(struct mb_device *dev, const struct mb__block *block)
{
    enum mb_err err;

    if (!(dev->config.checks & MB__CHECK_POISON))
        return;
    err = wait_for_users(dev, block->uses);
    if (!err && block->stream)
        err = wait_for_user(dev, block->stream);
    for (const struct mb__node *node = block->pieces; node && !err; node = node->piece_next)
        err = mb__debug_poison(dev, node->addr, node->bytes, NULL);
    if (!err)
        err = mb__debug_settle(dev);
    if (err)
        mb__log(MB_LOG_WARN, "runtime", "poison: %s", mb_error_detail());
}

enum mb_err mb__debug_on_free(struct mb_device *dev, struct mb__block *block,
                              struct mb__stream *stream)
{
    enum mb_err err = MB_OK;

    if (dev->config.checks & (MB__CHECK_REDZONE | MB__CHECK_POISON))
        err = wait_for_users(dev, block->uses);
    if (stream && stream->retired) { /* nothing can be enqueued there any more */
        if (!err && dev->config.checks & (MB__CHECK_REDZONE | MB__CHECK_POISON))
            err = wait_for_user(dev, stream);
        stream = NULL;
    }
    if (!err && dev->config.checks & MB__CHECK_REDZONE)
        err = check_zones(dev, block, stream);
    /* While aliases live, the contents are theirs: mb__debug_on_unpin() poisons. */
    for (const struct mb__node *node = block->pins ? NULL : block->pieces; node && !err;
         node = node->piece_next)
        err = mb__debug_poison(dev, node->addr, node->bytes, stream);
    if (!err && !stream)
        err = mb__debug_settle(dev);
    return err;
}

enum mb_err mb__debug_range(struct mb_device *dev, const void *va, uint64_t bytes, const char *call)
{
    uint64_t addr = (uint64_t)(uintptr_t)va;
    const struct mb__block *block;

    if (!(dev->config.checks & (MB__CHECK_REDZONE | MB__CHECK_POISON | MB__CHECK_UAF)))
        return MB_OK;
    if (mb__vmm_covers(dev, addr, bytes) || mb__access_covers(dev, addr, bytes))
        return MB_OK;
    block = mb__block_holding(dev, addr);
    if (!block)
        return mb__fail(MB_ERR_INVALID, "%s: 0x%" PRIx64 " lies in no live block or mapping", call,
                        addr);
    if (bytes > upper_zone(block) - addr || addr < block->addr)
        return mb__fail(MB_ERR_INVALID,
                        "%s: [0x%" PRIx64 ", +%" PRIu64 ") leaves the block at 0x%" PRIx64
                        " of %" PRIu64 " bytes",
                        call, addr, bytes, block->addr, block->requested);
    return MB_OK;
}

void mb__debug_leaks(struct mb_device *dev)
{
    struct mb__block *block;
    uint64_t count = 0, bytes = 0;
    size_t at = 0;

    if (!(dev->config.checks & MB__CHECK_LEAKS))
        return;
    while ((block = mb__table_next(&dev->table, &at))) {
        if (block->state != MB__BLOCK_LIVE)
            continue;
        if (count++ < LEAKS_LISTED)
            mb__log(MB_LOG_ERROR, "runtime", "leak: 0x%" PRIx64 ", %" PRIu64 " bytes", block->addr,
                    block->requested);
        bytes += block->requested;
    }
    if (count)
        mb__log(MB_LOG_ERROR, "runtime", "leak: %" PRIu64 " blocks, %" PRIu64 " bytes in all",
                count, bytes);
}
