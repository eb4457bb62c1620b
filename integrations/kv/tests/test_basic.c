/* SPDX-License-Identifier: MIT */
/* What the KV cache promises, one promise a case. */
#include "kv_rig.h"

#include <string.h>

static int32_t prompt[160];

static mb_kv open_small(mb_device dev)
{
    mb_kv kv = NULL;

    KV_OK(mb_kv_open(dev, &kv_small, &kv));
    for (int i = 0; i < 160; i++)
        prompt[i] = 7 * i + 1;
    return kv;
}

static struct mb_kv_shape shape_of(mb_device dev, uint32_t layers, uint32_t heads, uint32_t dim,
                                   uint32_t group)
{
    struct mb_kv_config config = {.layers = layers,
                                  .kv_heads = heads,
                                  .head_dim = dim,
                                  .element_bytes = 2,
                                  .group_layers = group,
                                  .max_tokens = 4096,
                                  .max_sequences = 4};
    struct mb_kv_shape shape = {0};
    mb_kv kv = NULL;

    KV_OK(mb_kv_open(dev, &config, &kv));
    KV_OK(mb_kv_get_shape(kv, &shape));
    KV_OK(mb_kv_close(kv));
    CHECK_EQ(shape.groups * shape.group_layers, layers);
    CHECK_EQ(shape.block_tokens * shape.token_bytes, shape.block_bytes);
    return shape;
}

/* As many layers in a group as keep a layer's tokens within 128 KiB of each other. */
TEST(layout_of_known_models)
{
    static const struct {
        uint32_t layers, heads, dim, group, tokens;
    } models[] = {
        {32, 32, 128, 8, 16},  /* Llama-2-7B: 16 KiB a layer's token */
        {32, 8, 128, 32, 16},  /* Llama-3-8B: all of a token is just 128 KiB */
        {80, 8, 128, 16, 32},  /* Llama-3-70B: 20 layers' token does not divide a page */
        {80, 2, 128, 16, 128}, /* the same, a GPU of four */
        {4, 64, 1024, 1, 8},   /* one layer's token is 256 KiB: what cannot be divided is not */
        {4, 32, 1024, 1, 16},  /* one layer's token is the limit */
        {31, 32, 128, 1, 128}, /* only all 31 would divide the layers, and they fit no page */
    };
    mb_device dev = rt_open("backend:sim,device_memory:1g");

    for (unsigned i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct mb_kv_shape shape =
            shape_of(dev, models[i].layers, models[i].heads, models[i].dim, 0);

        CHECK_EQ(shape.group_layers, models[i].group);
        CHECK_EQ(shape.block_tokens, models[i].tokens);
    }
    rt_close(dev);
}

/* The limit is that of the library's own choice. */
TEST(a_group_that_is_asked_for_may_be_larger)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    struct mb_kv_shape all = shape_of(dev, 32, 32, 128, 32), two = shape_of(dev, 32, 32, 128, 2);

    CHECK_EQ(all.groups, 1);
    CHECK_EQ(all.block_tokens, 4);
    CHECK_EQ(two.groups, 16);
    CHECK_EQ(two.block_tokens, 64);
    rt_close(dev);
}

TEST(one_batch_for_all_sequences_of_a_step)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    struct mb_kv_grow grow[8];
    struct mb_kv_stats before;

    for (unsigned i = 0; i < 8; i++)
        grow[i] = (struct mb_kv_grow){open_seq(kv), 16};
    KV_OK(mb_kv_append(kv, grow, 8, stream));
    CHECK_EQ(kv_stats(kv).batches, 1);
    for (unsigned i = 0; i < 8; i++)
        grow[i].tokens = 1;
    before = kv_stats(kv);
    for (unsigned step = 0; step < 16; step++)
        KV_OK(mb_kv_append(kv, grow, 8, stream));
    /* All cross into a new block at the first step; the others need nothing. */
    CHECK_EQ(kv_stats(kv).batches - before.batches, 1);
    CHECK_EQ(kv_stats(kv).mapped_pages - before.mapped_pages, 8 * 2);
    finish(dev, kv);
}

TEST(a_prefix_is_shown_not_copied)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq a = open_seq(kv), b = open_seq(kv);
    struct mb_kv_stats before;
    uint32_t hit = 0;

    kv_extend(dev, kv, a, prompt, 0, 100, stream);
    KV_OK(mb_kv_publish(kv, a, prompt, 100));
    before = kv_stats(kv);
    KV_OK(mb_kv_attach(kv, b, prompt, 99, &hit));
    CHECK_EQ(hit, 96);
    KV_OK(mb_kv_sync(kv, stream));
    CHECK_EQ(kv_stats(kv).batches - before.batches, 1);
    CHECK_EQ(kv_stats(kv).ops - before.ops, 2); /* one per group */
    CHECK_EQ(kv_stats(kv).live_blocks, before.live_blocks);
    kv_verify(dev, kv, b, prompt, 96, stream);
    /* The publisher ends; the prefix stays for b and for later ones. */
    KV_OK(mb_kv_seq_close(kv, a));
    kv_extend(dev, kv, b, prompt, 96, 130, stream);
    kv_verify(dev, kv, b, prompt, 130, stream);
    KV_OK(mb_kv_seq_close(kv, b));
    CHECK_EQ(kv_stats(kv).cached_blocks, 6);
    CHECK_EQ(kv_stats(kv).copies, 0);
    a = open_seq(kv);
    KV_OK(mb_kv_attach(kv, a, prompt, 160, &hit));
    CHECK_EQ(hit, 96);
    KV_OK(mb_kv_sync(kv, stream));
    kv_verify(dev, kv, a, prompt, 96, stream);
    finish(dev, kv);
}

static uint64_t invalidates(mb_device dev)
{
    struct mb_stats stats;

    RT_OK(mb_stats_get(dev, &stats));
    return stats.invalidates;
}

/* So it is one list of entries. A close that the same sync carries out brings the invalidate of
 * what it takes away. */
TEST(an_attach_to_cleared_addresses_invalidates_nothing)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g,tables:inline");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq a = open_seq(kv), b;
    uint64_t before;
    uint32_t hit = 0;

    kv_extend(dev, kv, a, prompt, 0, 100, stream);
    KV_OK(mb_kv_publish(kv, a, prompt, 100));
    KV_OK(mb_kv_seq_close(kv, a));
    KV_OK(mb_kv_sync(kv, stream));
    for (unsigned round = 0; round < 2; round++) {
        b = open_seq(kv);
        before = invalidates(dev);
        KV_OK(mb_kv_attach(kv, b, prompt, 160, &hit));
        KV_OK(mb_kv_sync(kv, stream));
        CHECK_EQ(invalidates(dev), before);
        kv_verify(dev, kv, b, prompt, 96, stream);
        KV_OK(mb_kv_seq_close(kv, b));
        KV_OK(mb_kv_sync(kv, stream));
        CHECK(invalidates(dev) > before);
    }
    finish(dev, kv);
}

TEST(a_fork_copies_at_most_the_tail)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq beam[4] = {open_seq(kv)};
    struct mb_kv_grow grow[4];
    struct mb_kv_stats before;
    struct mb_kv_shape shape;
    int32_t tokens[4][160];

    KV_OK(mb_kv_get_shape(kv, &shape));
    kv_extend(dev, kv, beam[0], prompt, 0, 100, stream); /* the last block holds 4 */
    before = kv_stats(kv);
    for (unsigned i = 1; i < 4; i++)
        KV_OK(mb_kv_fork(kv, beam[0], &beam[i]));
    CHECK_EQ(kv_stats(kv).live_blocks, before.live_blocks);
    for (unsigned i = 0; i < 4; i++) {
        grow[i] = (struct mb_kv_grow){beam[i], 1};
        memcpy(tokens[i], prompt, sizeof(prompt));
        tokens[i][100] = 1000 + (int)i;
    }
    KV_OK(mb_kv_append(kv, grow, 4, stream));
    CHECK_EQ(kv_stats(kv).batches - before.batches, 1);
    CHECK_EQ(kv_stats(kv).copies - before.copies, 3); /* the last keeps the block */
    CHECK_EQ(kv_stats(kv).copied_bytes - before.copied_bytes, 3 * 4 * shape.token_bytes);
    CHECK_EQ(kv_stats(kv).live_blocks - before.live_blocks, 3);
    for (unsigned i = 0; i < 4; i++)
        kv_write(dev, kv, beam[i], tokens[i], 100, 101, stream);
    for (unsigned i = 0; i < 4; i++)
        kv_verify(dev, kv, beam[i], tokens[i], 101, stream);
    finish(dev, kv);
}

TEST(a_reorder_maps_only_what_differs)
{
    static const uint32_t from[3] = {1, 1, 0};
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq beam[3] = {open_seq(kv)};
    int32_t tokens[3][160], next[3][160];
    struct mb_kv_stats before;
    struct mb_kv_view a = {0}, b = {0};

    kv_extend(dev, kv, beam[0], prompt, 0, 96, stream);
    KV_OK(mb_kv_fork(kv, beam[0], &beam[1]));
    KV_OK(mb_kv_fork(kv, beam[0], &beam[2]));
    for (unsigned i = 0; i < 3; i++) {
        memcpy(tokens[i], prompt, sizeof(prompt));
        tokens[i][96] = 500 + (int)i;
        kv_extend(dev, kv, beam[i], tokens[i], 96, 98, stream);
    }
    KV_OK(mb_kv_get_view(kv, beam[2], 3, true, &a));
    before = kv_stats(kv);
    KV_OK(mb_kv_reorder(kv, beam, from, 3));
    KV_OK(mb_kv_sync(kv, stream));
    CHECK_EQ(kv_stats(kv).mapped_pages - before.mapped_pages, 2 * 2);
    KV_OK(mb_kv_get_view(kv, beam[2], 3, true, &b));
    CHECK_PTR_EQ(a.base, b.base);
    for (unsigned i = 0; i < 3; i++) {
        memcpy(next[i], tokens[from[i]], sizeof(next[i]));
        kv_verify(dev, kv, beam[i], next[i], 98, stream);
    }
    for (unsigned i = 0; i < 3; i++) {
        next[i][98] = 700 + (int)i;
        kv_extend(dev, kv, beam[i], next[i], 98, 120, stream);
    }
    for (unsigned i = 0; i < 3; i++)
        kv_verify(dev, kv, beam[i], next[i], 120, stream);
    finish(dev, kv);
}

TEST(unused_prefixes_make_room_oldest_first)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev); /* 48 blocks */
    int32_t tokens[8][160];
    mb_kv_seq seq;
    uint32_t hit = 0;

    for (int i = 0; i < 8; i++) {
        for (int j = 0; j < 160; j++)
            tokens[i][j] = 1000 * i + j;
        seq = open_seq(kv);
        kv_extend(dev, kv, seq, tokens[i], 0, 160, stream);
        KV_OK(mb_kv_publish(kv, seq, tokens[i], 160));
        KV_OK(mb_kv_seq_close(kv, seq));
    }
    CHECK_EQ(kv_stats(kv).evicted_blocks, 8 * 10 - 48);
    seq = open_seq(kv);
    KV_OK(mb_kv_attach(kv, seq, tokens[0], 160, &hit));
    CHECK_EQ(hit, 0);
    KV_OK(mb_kv_attach(kv, seq, tokens[7], 160, &hit));
    CHECK_EQ(hit, 160);
    KV_OK(mb_kv_seq_close(kv, seq));
    seq = open_seq(kv); /* the end of the fourth went, its beginning is there */
    KV_OK(mb_kv_attach(kv, seq, tokens[3], 160, &hit));
    CHECK_EQ(hit, 128);
    KV_OK(mb_kv_sync(kv, stream));
    kv_verify(dev, kv, seq, tokens[3], 128, stream);
    KV_OK(mb_kv_seq_close(kv, seq));
    KV_OK(mb_kv_trim(kv, stream));
    CHECK_EQ(kv_stats(kv).held_blocks, 0);
    finish(dev, kv);
}

static struct mb_kv_mapper inner;
static mb_kv watched;
static unsigned overlaps;

/* A mapper may run the copies of one batch at once. */
static enum mb_err watched_copy(void *user, const struct mb_copy *list, unsigned count,
                                mb_stream stream)
{
    for (uint32_t i = 0; i < watched->tail_count; i++)
        for (uint32_t j = 0; j < watched->tail_count; j++) {
            const struct kv_tail *to = &watched->tails[j];
            uint32_t entry = watched->slots[to->slot].want[to->place];

            overlaps += kv_block_of(entry) == watched->tails[i].from;
        }
    return inner.copy(user, list, count, stream);
}

/* The source of one copy becomes free during the append, as the prefix that held it is evicted. */
TEST(copies_of_one_batch_do_not_overlap)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    struct mb_kv_config config = kv_small;
    struct mb_kv_mapper mapper;
    struct mb_kv_grow grow[2];
    int32_t tokens[2][17];
    mb_kv kv = NULL;

    config.chunk_blocks = 1;
    config.limit_bytes = 12 << 20; /* 3 blocks */
    RT_OK(mb_kv_device_mapper(dev, &inner));
    mapper = inner;
    mapper.copy = watched_copy;
    KV_OK(mb_kv_open_on(&mapper, &config, &kv));
    watched = kv;
    overlaps = 0;
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 17; j++)
            tokens[i][j] = 100 * i + j;
        grow[i] = (struct mb_kv_grow){open_seq(kv), 4};
        kv_extend(dev, kv, grow[i].seq, tokens[i], 0, 16, stream);
        KV_OK(mb_kv_publish(kv, grow[i].seq, tokens[i], 16));
        KV_OK(mb_kv_truncate(kv, grow[i].seq, 8));
    }
    KV_OK(mb_kv_append(kv, grow, 2, stream));
    CHECK_EQ(overlaps, 0);
    CHECK_EQ(kv_stats(kv).copies, 1);
    for (int i = 0; i < 2; i++) {
        kv_write(dev, kv, grow[i].seq, tokens[i], 8, 12, stream);
        kv_verify(dev, kv, grow[i].seq, tokens[i], 12, stream);
    }
    KV_OK(mb_kv_check(kv));
    rt_clean(dev);
    finish(dev, kv);
}

TEST(sleep_gives_pages_and_keeps_addresses)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    struct mb_kv_view before = {0}, after = {0};
    uint32_t hit = 0;

    kv_extend(dev, kv, seq, prompt, 0, 40, stream);
    KV_OK(mb_kv_publish(kv, seq, prompt, 40));
    KV_OK(mb_kv_get_view(kv, seq, 0, false, &before));
    KV_OK(mb_kv_sleep(kv, seq));
    CHECK_EQ(kv_stats(kv).live_blocks, 0);
    check_error(mb_kv_append(kv, &(struct mb_kv_grow){seq, 1}, 1, stream), MB_ERR_BUSY, "asleep");
    KV_OK(mb_kv_wake(kv, seq, prompt, 40, &hit));
    CHECK_EQ(hit, 32);
    kv_extend(dev, kv, seq, prompt, 32, 40, stream);
    kv_verify(dev, kv, seq, prompt, 40, stream);
    KV_OK(mb_kv_get_view(kv, seq, 0, false, &after));
    CHECK_PTR_EQ(before.base, after.base);
    finish(dev, kv);
}

TEST(wrong_use_is_named)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev), other = NULL;
    mb_kv_seq seq = open_seq(kv), dead = open_seq(kv), brief = 0, out = 0;
    struct mb_kv_config config = kv_small;
    mb_kv_prefix prefix = 0;
    uint32_t hit = 0;

    KV_OK(mb_kv_seq_close(kv, dead));
    check_error(mb_kv_fork(kv, dead, &out), MB_ERR_NOT_FOUND, "dead");
    check_error(mb_kv_seq_close(kv, dead), MB_ERR_NOT_FOUND, "dead");
    out = open_seq(kv); /* in the same place: the old id stays dead */
    check_error(mb_kv_truncate(kv, dead, 0), MB_ERR_NOT_FOUND, "dead");
    check_error(mb_kv_seq_close(kv, 0), MB_ERR_NOT_FOUND, "no sequence");
    check_error(mb_kv_seq_close(kv, 12345), MB_ERR_NOT_FOUND, "no sequence");

    KV_OK(mb_kv_seq_open(kv, 20, &brief));
    check_error(mb_kv_attach(kv, brief, prompt, 21, &hit), MB_ERR_LIMIT, "beyond the reservation");
    check_error(mb_kv_append(kv, &(struct mb_kv_grow){brief, 21}, 1, stream), MB_ERR_LIMIT,
                "beyond its reservation");
    check_error(mb_kv_seq_open(kv, 161, &out), MB_ERR_LIMIT, "at most 160");

    kv_extend(dev, kv, seq, prompt, 0, 40, stream);
    check_error(mb_kv_reorder(kv, (mb_kv_seq[]){brief, seq}, (uint32_t[]){1, 1}, 2), MB_ERR_LIMIT,
                "beyond the reservation");
    check_error(mb_kv_prefix_hold(kv, seq, 40, &prefix, &hit), MB_ERR_INVALID, "published");
    check_error(mb_kv_publish(kv, seq, prompt, 41), MB_ERR_INVALID, "which has 40");
    KV_OK(mb_kv_publish(kv, seq, prompt, 40));
    KV_OK(mb_kv_prefix_hold(kv, seq, 40, &prefix, &hit));
    CHECK_EQ(hit, 32);
    check_error(mb_kv_prefix_attach(kv, seq, prefix, &hit), MB_ERR_BUSY, "holds 40 tokens");
    check_error(mb_kv_prefix_attach(kv, brief, prefix, &hit), MB_ERR_LIMIT, "beyond");
    KV_OK(mb_kv_prefix_attach(kv, out, prefix, &hit));
    KV_OK(mb_kv_sync(kv, stream));
    kv_verify(dev, kv, out, prompt, 32, stream);
    KV_OK(mb_kv_prefix_drop(kv, prefix));
    check_error(mb_kv_prefix_attach(kv, out, prefix, &hit), MB_ERR_NOT_FOUND, "given up");
    check_error(mb_kv_prefix_drop(kv, prefix), MB_ERR_NOT_FOUND, "given up");
    check_error(mb_kv_append(kv, (struct mb_kv_grow[]){{seq, 1}, {seq, 1}}, 2, stream),
                MB_ERR_INVALID, "twice");
    check_error(mb_kv_truncate(kv, seq, 41), MB_ERR_INVALID, "cannot keep");

    config.group_layers = 3;
    check_error(mb_kv_open(dev, &config, &other), MB_ERR_INVALID, "divide");
    config = kv_small;
    config.head_dim = 3;
    config.element_bytes = 1;
    config.kv_heads = 1;
    check_error(mb_kv_open(dev, &config, &other), MB_ERR_INVALID, "multiple of 8");
    check_error(mb_kv_open(NULL, &kv_small, &other), MB_ERR_INVALID, "no open device");
    finish(dev, kv);
}

TEST(a_full_cache_says_who_holds_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq seq[5];
    struct mb_kv_stats before;

    for (unsigned i = 0; i < 5; i++)
        seq[i] = open_seq(kv);
    for (unsigned i = 0; i < 4; i++)
        kv_extend(dev, kv, seq[i], prompt, 0, 160, stream);
    before = kv_stats(kv);
    check_error(mb_kv_append(kv, &(struct mb_kv_grow){seq[4], 160}, 1, stream), MB_ERR_NO_MEMORY,
                "5 sequences live");
    CHECK_EQ(kv_stats(kv).live_blocks, before.live_blocks);
    CHECK_EQ(kv_stats(kv).batches, before.batches);
    kv_extend(dev, kv, seq[4], prompt, 0, 128, stream);
    for (unsigned i = 0; i < 5; i++)
        kv_verify(dev, kv, seq[i], prompt, i < 4 ? 160 : 128, stream);
    finish(dev, kv);
}

TEST(an_append_that_cannot_fit_evicts_nothing)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev); /* 48 blocks */
    mb_kv_seq a = open_seq(kv), b = open_seq(kv), full[4], last = open_seq(kv);
    struct mb_kv_stats before;
    int32_t other[160];

    for (int i = 0; i < 160; i++)
        other[i] = 5000 + i;
    kv_extend(dev, kv, b, other, 0, 80, stream);
    KV_OK(mb_kv_publish(kv, b, other, 80));
    KV_OK(mb_kv_seq_close(kv, b)); /* 5 prefix blocks that nobody uses */
    kv_extend(dev, kv, a, prompt, 0, 160, stream);
    KV_OK(mb_kv_publish(kv, a, prompt, 160));
    KV_OK(mb_kv_truncate(kv, a, 152)); /* one more, but its memory is the sequence's as well */
    for (unsigned i = 0; i < 4; i++) {
        full[i] = open_seq(kv);
        kv_extend(dev, kv, full[i], prompt, 0, i < 3 ? 160 : 48, stream);
    }
    before = kv_stats(kv);
    CHECK_EQ(before.room_blocks, 5);
    check_error(mb_kv_append(kv, &(struct mb_kv_grow){last, 96}, 1, stream), MB_ERR_NO_MEMORY,
                "6 prefix blocks are unused");
    CHECK_EQ(kv_stats(kv).evicted_blocks, 0);
    CHECK_EQ(kv_stats(kv).cached_blocks, before.cached_blocks);
    kv_extend(dev, kv, last, other, 0, 80, stream); /* what does fit */
    CHECK_EQ(kv_stats(kv).evicted_blocks, 5);
    CHECK_EQ(kv_stats(kv).room_blocks, 0);
    /* Without any room: the unused prefix lets go of the block that `a` goes on with. */
    kv_extend(dev, kv, a, prompt, 152, 160, stream);
    CHECK_EQ(kv_stats(kv).evicted_blocks, 6);
    CHECK_EQ(kv_stats(kv).copies, 0);
    kv_verify(dev, kv, a, prompt, 160, stream);
    kv_verify(dev, kv, last, other, 80, stream);
    finish(dev, kv);
}

/* A shared block is shown without the right to write: a kernel that tries does no harm. */
TEST(writing_into_a_shared_prefix_faults)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev);
    mb_kv kv = open_small(dev);
    mb_kv_seq a = open_seq(kv), b = open_seq(kv);
    uint64_t bytes;
    uint32_t hit = 0;
    void *at;

    kv_extend(dev, kv, a, prompt, 0, 32, stream);
    KV_OK(mb_kv_publish(kv, a, prompt, 32));
    KV_OK(mb_kv_attach(kv, b, prompt, 32, &hit));
    KV_OK(mb_kv_sync(kv, stream));
    rt_clean(dev);
    at = kv_token_at(kv, b, 0, 3, &bytes);
    (void)mb_fill_async(dev, at, bytes, 1, stream);
    (void)mb_device_sync(dev);
    CHECK(rt_stats(dev).faults > 0);
    KV_OK(mb_kv_close(kv)); /* a fault ends the context, and the cache's pages with it */
    mb_close(dev);
}
