/* SPDX-License-Identifier: MIT */
/*
 * trie.c - the prefix cache's blocks by the tokens in them, and the order in which they go.
 *
 * A run is a chain of blocks published behind each other, kept in arrays: looking up a prefix that
 * was published at once is one hash of its first block and one comparison of all its tokens, and
 * using it adds one to each of an array of counts. Where prompts part, inside a run or at its end,
 * the next run names the place it hangs at, so that no run is ever split. Tokens are compared, not
 * only hashed: a wrong hit would be somebody else's text.
 *
 * Who uses a block uses all before it, so within a run the counts never grow and what nobody uses
 * is its end. Each block keeps the time at which its last user let go; users let go from the last
 * block to the first, so a block is always older than those it stands on, and the oldest block of
 * all is the last of its run and has nothing behind it. A heap has the runs whose last block is
 * unused, the oldest on top: eviction takes that block, least recently used first, children before
 * parents.
 *
 * Trade-off: a run that lost its end to eviction keeps its arrays until a quarter is left.
 */
#include "wide.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12 takes memory for lost once it is kept in a structure that it did not see made. */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ heap of the oldest ends */

static uint64_t age(const struct kv_run *run)
{
    return run->stamps[run->count - 1];
}

static void heap_put(struct mb_kv *kv, uint32_t at, struct kv_run *run)
{
    kv->heap[at] = run;
    run->heap_at = at + 1;
}

static void heap_up(struct mb_kv *kv, uint32_t at, struct kv_run *run)
{
    for (; at && age(kv->heap[(at - 1) / 2]) > age(run); at = (at - 1) / 2)
        heap_put(kv, at, kv->heap[(at - 1) / 2]);
    heap_put(kv, at, run);
}

static void heap_down(struct mb_kv *kv, uint32_t at, struct kv_run *run)
{
    for (uint32_t child; (child = 2 * at + 1) < kv->heap_count; at = child) {
        if (child + 1 < kv->heap_count && age(kv->heap[child + 1]) < age(kv->heap[child]))
            child++;
        if (age(kv->heap[child]) > age(run))
            break;
        heap_put(kv, at, kv->heap[child]);
    }
    heap_put(kv, at, run);
}

static void heap_remove(struct mb_kv *kv, struct kv_run *run)
{
    uint32_t at = run->heap_at - 1;
    struct kv_run *last = kv->heap[--kv->heap_count];

    run->heap_at = 0;
    if (last == run)
        return;
    if (at && age(kv->heap[(at - 1) / 2]) > age(last))
        heap_up(kv, at, last);
    else
        heap_down(kv, at, last);
}

/* ------------------------------------------------------------------ finding */

/* Two tokens at a time in two chains. `behind` names the place, as kv_spot does. */
static uint64_t hash_of(const struct mb_kv *kv, struct kv_spot behind, const int32_t *tokens)
{
    uint64_t h[2] = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u}, word;
    uint32_t i = 0, count = kv->shape.block_tokens;

    if (behind.run)
        h[0] ^= (behind.run->id + 1) * 0xd6e8feb86659fd93u + behind.at;
    for (; i + 2 <= count; i += 2) {
        memcpy(&word, tokens + i, sizeof(word));
        h[i / 2 % 2] = ((h[i / 2 % 2] ^ word) * 0xff51afd7ed558ccdu) ^ h[i / 2 % 2] >> 32;
    }
    if (i < count)
        h[0] = (h[0] ^ (uint32_t)tokens[i]) * 0xff51afd7ed558ccdu;
    word = (h[0] ^ h[1] >> 29) * 0xc4ceb9fe1a85ec53u;
    return word ^ word >> 32;
}

static struct kv_run *find_child(const struct mb_kv *kv, struct kv_spot behind,
                                 const int32_t *tokens)
{
    size_t bytes = kv->shape.block_tokens * sizeof(*tokens);
    uint64_t hash = hash_of(kv, behind, tokens);
    struct kv_run *run = kv->buckets[hash & (kv->bucket_count - 1)];

    while (run && (run->hash != hash || run->parent.run != behind.run ||
                   run->parent.at != behind.at || memcmp(run->tokens, tokens, bytes) != 0))
        run = run->next;
    return run;
}

/* How many of the first `blocks` blocks of both texts are equal. */
static uint32_t equal_blocks(const struct mb_kv *kv, const int32_t *a, const int32_t *b,
                             uint32_t blocks)
{
    size_t step = kv->shape.block_tokens;
    uint32_t low = 0, high = blocks, middle;

    if (memcmp(a, b, blocks * step * sizeof(*a)) == 0)
        return blocks;
    while (high - low > 1) { /* the first difference is in [low, high) */
        middle = low + (high - low) / 2;
        if (memcmp(a + low * step, b + low * step, (middle - low) * step * sizeof(*a)) == 0)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t kv_walk(const struct mb_kv *kv, struct kv_spot *spot, const int32_t *tokens,
                 uint32_t blocks)
{
    size_t step = kv->shape.block_tokens;
    uint32_t done = 0;

    while (done < blocks) {
        struct kv_run *run = spot->run;
        uint32_t next = run ? spot->at + 1 : 0, most = run ? run->count - next : 0;

        if (most > blocks - done)
            most = blocks - done;
        if (most) {
            uint32_t same = equal_blocks(kv, run->tokens + next * step, tokens + done * step, most);

            spot->at += same;
            done += same;
            if (done == blocks)
                break;
        }
        run = find_child(kv, *spot, tokens + done * step);
        if (!run)
            break;
        *spot = (struct kv_spot){run, 0};
        done++;
    }
    return done;
}

void kv_back(struct kv_spot *spot, uint32_t blocks)
{
    while (blocks > spot->at && spot->run) {
        blocks -= spot->at + 1;
        *spot = spot->run->parent;
    }
    spot->at -= blocks;
}

/* ------------------------------------------------------------------ users */

/* Blocks [from, to) of a run; those before have users, or get them in the same call. */
static void use_part(struct mb_kv *kv, struct kv_run *run, uint32_t from, uint32_t to)
{
    kv_count(run->users + from, to - from, 1);
    if (to <= run->used)
        return;
    kv->evictable -= to - run->used;
    run->used = to;
    if (to == run->count)
        heap_remove(kv, run);
}

static void unuse_part(struct mb_kv *kv, struct kv_run *run, uint32_t from, uint32_t to)
{
    uint32_t used = run->used;

    kv_count(run->users + from, to - from, UINT32_MAX);
    if (used > from && !kv_any(run->users + from, used - from))
        run->used = from;
    while (run->used > from && !run->users[run->used - 1])
        run->used--;
    if (run->used == used)
        return;
    kv->clock++;
    for (uint32_t i = run->used; i < used; i++)
        run->stamps[i] = kv->clock;
    kv->evictable += used - run->used;
    if (!run->heap_at)
        heap_up(kv, kv->heap_count++, run);
}

void kv_use(struct mb_kv *kv, struct kv_spot last, uint32_t blocks)
{
    while (blocks) {
        uint32_t part = last.at + 1 < blocks ? last.at + 1 : blocks;

        use_part(kv, last.run, last.at + 1 - part, last.at + 1);
        blocks -= part;
        last = last.run->parent;
    }
}

void kv_unuse(struct mb_kv *kv, struct kv_spot last, uint32_t blocks)
{
    while (blocks) {
        uint32_t part = last.at + 1 < blocks ? last.at + 1 : blocks;

        unuse_part(kv, last.run, last.at + 1 - part, last.at + 1);
        blocks -= part;
        last = last.run->parent;
    }
}

/* ------------------------------------------------------------------ growing */

/* More buckets if there are many runs; without host memory the chains get longer, that is all. */
static void widen(struct mb_kv *kv)
{
    uint64_t count = 4 * kv->bucket_count;
    struct kv_run **buckets;

    if (kv->run_count < kv->bucket_count)
        return;
    buckets = calloc(count, sizeof(struct kv_run *));
    if (!buckets)
        return;
    for (uint64_t i = 0; i < kv->bucket_count; i++)
        for (struct kv_run *run = kv->buckets[i], *next; run; run = next) {
            next = run->next;
            run->next = buckets[run->hash & (count - 1)];
            buckets[run->hash & (count - 1)] = run;
        }
    free(kv->buckets);
    kv->buckets = buckets;
    kv->bucket_count = count;
}

/* Arrays of `capacity` blocks. False: of at least as many as run->capacity says. */
static bool resize(const struct mb_kv *kv, struct kv_run *run, uint32_t capacity)
{
    size_t text = kv->shape.block_tokens * sizeof(*run->tokens);
    uint32_t *blocks = realloc(run->blocks, capacity * sizeof(*blocks)), *users;
    uint64_t *stamps;
    int32_t *tokens;

    if (blocks)
        run->blocks = blocks;
    users = realloc(run->users, capacity * sizeof(*users));
    if (users)
        run->users = users;
    stamps = realloc(run->stamps, capacity * sizeof(*stamps));
    if (stamps)
        run->stamps = stamps;
    tokens = realloc(run->tokens, capacity * text);
    if (tokens)
        run->tokens = tokens;
    if (!blocks || !users || !stamps || !tokens)
        return false;
    run->capacity = capacity;
    return true;
}

void kv_free_run(struct kv_run *run)
{
    if (!run)
        return;
    free(run->blocks);
    free(run->users);
    free(run->stamps);
    free(run->tokens);
    free(run);
}

/* A run behind `parent` with room for `blocks` blocks and none in it yet. */
static struct kv_run *new_run(struct mb_kv *kv, struct kv_spot parent, const int32_t *tokens,
                              uint32_t blocks)
{
    struct kv_run *run, **heap, **bucket;
    uint32_t capacity = kv->heap_capacity;

    /* Letting go of a block cannot fail, so the heap has room for all runs beforehand. */
    if (kv->run_count == capacity) {
        capacity = capacity ? 2 * capacity : 64;
        heap = realloc(kv->heap, capacity * sizeof(struct kv_run *));
        if (!heap)
            return NULL;
        kv->heap = heap;
        kv->heap_capacity = capacity;
    }
    run = calloc(1, sizeof(*run));
    if (!run || !resize(kv, run, blocks)) {
        kv_free_run(run);
        return NULL;
    }
    run->id = kv->next_run_id++;
    run->parent = parent;
    run->hash = hash_of(kv, parent, tokens);
    bucket = &kv->buckets[run->hash & (kv->bucket_count - 1)];
    run->next = *bucket;
    *bucket = run;
    kv->run_count++;
    widen(kv);
    return run;
}

enum mb_err kv_add_behind(struct mb_kv *kv, struct kv_spot *spot, const int32_t *tokens,
                          const uint32_t *entries, uint32_t blocks)
{
    size_t step = kv->shape.block_tokens;
    struct kv_run *run = spot->run;
    uint32_t wanted;

    if (run && spot->at + 1 == run->count) { /* its end, and the caller uses it */
        wanted = run->count + blocks;
        if (wanted > run->capacity &&
            !resize(kv, run, wanted > 2 * run->count ? wanted : 2 * run->count))
            return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for %u prefix blocks", blocks);
    } else {
        run = new_run(kv, *spot, tokens, blocks);
        if (!run)
            return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for %u prefix blocks", blocks);
    }
    memcpy(run->tokens + run->count * step, tokens, blocks * step * sizeof(*tokens));
    for (uint32_t i = 0; i < blocks; i++) {
        run->blocks[run->count + i] = kv_block_of(entries[i]);
        run->users[run->count + i] = 1;
        kv->cached[kv_block_of(entries[i])] = true;
        kv_ref(kv, kv_block_of(entries[i]));
    }
    run->count += blocks;
    run->used = run->count;
    kv->stats.published_blocks += blocks;
    *spot = (struct kv_spot){run, run->count - 1};
    return MB_OK;
}

/* ------------------------------------------------------------------ eviction */

static void drop_run(struct mb_kv *kv, struct kv_run *run)
{
    struct kv_run **link = &kv->buckets[run->hash & (kv->bucket_count - 1)];

    while (*link != run)
        link = &(*link)->next;
    *link = run->next;
    kv->run_count--;
    kv_free_run(run);
}

bool kv_evict_one(struct mb_kv *kv)
{
    struct kv_run *run;

    if (!kv->heap_count)
        return false;
    run = kv->heap[0];
    kv->cached[run->blocks[run->count - 1]] = false;
    kv_unref(kv, run->blocks[run->count - 1]);
    kv->evictable--;
    kv->stats.evicted_blocks++;
    if (run->count == 1 || run->count - 1 == run->used)
        heap_remove(kv, run);
    run->count--;
    if (!run->count) {
        drop_run(kv, run);
        return true;
    }
    if (run->heap_at)
        heap_down(kv, 0, run);
    if (run->count < run->capacity / 4) {
        run->capacity /= 2; /* true even if not all arrays get smaller */
        (void)resize(kv, run, run->capacity);
    }
    return true;
}

bool kv_is_evictable(const struct mb_kv *kv, uint32_t block)
{
    for (uint32_t i = 0; i < kv->heap_count; i++)
        for (uint32_t j = kv->heap[i]->used; j < kv->heap[i]->count; j++)
            if (kv->heap[i]->blocks[j] == block)
                return true;
    return false;
}

uint64_t kv_evictable_blocks(const struct mb_kv *kv, uint64_t most)
{
    uint64_t blocks = 0;

    for (uint32_t i = 0; i < kv->heap_count && blocks < most; i++)
        for (uint32_t j = kv->heap[i]->used; j < kv->heap[i]->count; j++)
            blocks += kv->refs[kv->heap[i]->blocks[j]] == 1;
    return blocks;
}

/* ------------------------------------------------------------------ checks */

/* The users and the age of a block against those of the block that it stands behind. */
static enum mb_err check_order(const struct kv_run *run, uint32_t at)
{
    const struct kv_run *up = at ? run : run->parent.run;
    uint32_t up_at = at ? at - 1 : run->parent.at;

    if ((run->users[at] != 0) != (at < run->used))
        return kv_fail(MB_ERR_CORRUPT, "prefix block %u of %u has %u users, %u are used", at,
                       run->count, run->users[at], run->used);
    if (!up)
        return MB_OK;
    if (run->users[at] > up->users[up_at])
        return kv_fail(MB_ERR_CORRUPT, "a prefix block has more users than its parent");
    if (!up->users[up_at] &&
        (run->stamps[at] > up->stamps[up_at] || (!at && run->stamps[at] == up->stamps[up_at])))
        return kv_fail(MB_ERR_CORRUPT, "a prefix block would be evicted before one behind it");
    return MB_OK;
}

static enum mb_err check_run(const struct mb_kv *kv, const struct kv_run *run)
{
    const struct kv_spot up = run->parent;
    enum mb_err err = MB_OK;

    if (!run->count || run->count > run->capacity || run->used > run->count)
        return kv_fail(MB_ERR_CORRUPT, "a run of %u prefix blocks, %u used, room for %u",
                       run->count, run->used, run->capacity);
    if (up.run && up.at >= up.run->count)
        return kv_fail(MB_ERR_CORRUPT, "a run hangs at block %u of a run of %u", up.at,
                       up.run->count);
    if (!run->heap_at != (run->used == run->count) ||
        (run->heap_at && kv->heap[run->heap_at - 1] != run))
        return kv_fail(MB_ERR_CORRUPT, "a run of %u blocks, %u used, is at place %u of the heap",
                       run->count, run->used, run->heap_at);
    if (find_child(kv, up, run->tokens) != run)
        return kv_fail(MB_ERR_CORRUPT, "a run is not found by its parent and tokens");
    for (uint32_t i = 0; !err && i < run->count; i++)
        err = check_order(run, i);
    return err;
}

/* A block is noted as cached exactly while a run has it, and one run at most. */
static enum mb_err check_noted(const struct mb_kv *kv, uint64_t in_runs)
{
    uint64_t noted = 0;

    for (uint64_t i = 0; i < (uint64_t)kv->chunk_count * kv->config.chunk_blocks; i++)
        noted += kv->cached[i];
    if (noted != in_runs)
        return kv_fail(MB_ERR_CORRUPT, "%" PRIu64 " blocks are noted as of a run, counted %" PRIu64,
                       noted, in_runs);
    return MB_OK;
}

enum mb_err kv_check_trie(const struct mb_kv *kv, uint32_t *counted)
{
    uint64_t runs = 0, unused = 0, blocks = 0;
    enum mb_err err;

    for (uint64_t i = 0; i < kv->bucket_count; i++)
        for (const struct kv_run *run = kv->buckets[i]; run; run = run->next, runs++) {
            err = check_run(kv, run);
            if (err)
                return err;
            for (uint32_t j = 0; j < run->count; j++) {
                counted[run->blocks[j]]++;
                if (!kv->cached[run->blocks[j]])
                    return kv_fail(MB_ERR_CORRUPT, "block %u of a run is noted as of none",
                                   run->blocks[j]);
            }
            unused += run->count - run->used;
            blocks += run->count;
        }
    err = check_noted(kv, blocks);
    if (err)
        return err;
    if (runs != kv->run_count || unused != kv->evictable)
        return kv_fail(MB_ERR_CORRUPT, "%u runs and %u unused prefix blocks, counted %u and %u",
                       kv->run_count, (unsigned)kv->evictable, (unsigned)runs, (unsigned)unused);
    for (uint32_t i = 1; i < kv->heap_count; i++)
        if (age(kv->heap[(i - 1) / 2]) >= age(kv->heap[i]))
            return kv_fail(MB_ERR_CORRUPT, "place %u of the heap is older than what it stands on",
                           i);
    return MB_OK;
}
