/* SPDX-License-Identifier: MIT */
/* Wrong calls: each is refused by name, and what was right before it goes on. */
#include "kv_rig.h"

#include <string.h>

static int32_t prompt[160];

static mb_kv open_small(mb_device dev)
{
    mb_kv kv = NULL;

    for (int i = 0; i < 160; i++)
        prompt[i] = 7 * i;
    KV_OK(mb_kv_open(dev, &kv_small, &kv));
    return kv;
}

/* A stream that is none is refused, and is not the one that later calls are ordered behind. */
TEST(a_refused_stream_is_forgotten)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev), none = (mb_stream)(void *)(uintptr_t)4096;
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    struct mb_kv_grow grow = {seq, 20};

    KV_OK(mb_kv_sync(kv, none)); /* nothing to do, so the device is not asked */
    check_error(mb_kv_append(kv, &grow, 1, none), MB_ERR_NOT_FOUND, "0x1000");
    kv_extend(dev, kv, seq, prompt, 0, 20, stream);
    check_error(mb_kv_append(kv, &grow, 1, none), MB_ERR_NOT_FOUND, "0x1000");
    check_error(mb_kv_sync(kv, none), MB_ERR_NOT_FOUND, "0x1000");
    kv_extend(dev, kv, seq, prompt, 20, 60, NULL);
    kv_verify(dev, kv, seq, prompt, 60, NULL);
    finish(dev, kv);
}

/* Two caches, as of a draft and a target model: a sequence of one is none of the other's. */
TEST(an_id_of_another_cache_is_none)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev), other = open_small(dev);
    mb_kv_seq seq = open_seq(kv), out = 0;
    struct mb_kv_view view;
    uint32_t hit = 0;

    CHECK(open_seq(other) != seq);
    check_error(mb_kv_append(other, &(struct mb_kv_grow){seq, 5}, 1, NULL), MB_ERR_NOT_FOUND,
                "no sequence of this cache");
    check_error(mb_kv_fork(other, seq, &out), MB_ERR_NOT_FOUND, "no sequence of this cache");
    check_error(mb_kv_get_view(other, seq, 0, false, &view), MB_ERR_NOT_FOUND, "no sequence");
    check_error(mb_kv_attach(other, seq, prompt, 20, &hit), MB_ERR_NOT_FOUND, "no sequence");
    check_error(mb_kv_seq_close(other, seq), MB_ERR_NOT_FOUND, "no sequence of this cache");
    KV_OK(mb_kv_seq_close(kv, seq));
    KV_OK(mb_kv_close(other));
    /* Nor is one of a cache that was closed, of one opened since. */
    other = open_small(dev);
    out = open_seq(other);
    KV_OK(mb_kv_close(other));
    other = open_small(dev);
    CHECK(open_seq(other) != out);
    check_error(mb_kv_sleep(other, out), MB_ERR_NOT_FOUND, "no sequence of this cache");
    KV_OK(mb_kv_close(other));
    finish(dev, kv);
}

TEST(a_prefix_is_no_sequence)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv), other = open_seq(kv), out = 0;
    mb_kv_prefix prefix = 0;
    uint32_t hit = 0;

    kv_extend(dev, kv, seq, prompt, 0, 40, NULL);
    KV_OK(mb_kv_publish(kv, seq, prompt, 40));
    KV_OK(mb_kv_prefix_hold(kv, seq, 40, &prefix, &hit));
    CHECK(prefix != seq);
    check_error(mb_kv_seq_close(kv, prefix), MB_ERR_NOT_FOUND, "no sequence but a prefix");
    check_error(mb_kv_fork(kv, prefix, &out), MB_ERR_NOT_FOUND, "no sequence but a prefix");
    check_error(mb_kv_reorder(kv, (mb_kv_seq[]){seq, prefix}, (uint32_t[]){1, 0}, 2),
                MB_ERR_NOT_FOUND, "no sequence but a prefix");
    check_error(mb_kv_prefix_drop(kv, seq), MB_ERR_NOT_FOUND, "no prefix but a sequence");
    check_error(mb_kv_prefix_attach(kv, other, seq, &hit), MB_ERR_NOT_FOUND, "no prefix but");
    kv_verify(dev, kv, seq, prompt, 40, NULL);
    KV_OK(mb_kv_prefix_drop(kv, prefix));
    finish(dev, kv);
}

/* The last id of a held prefix's place is given out once, and then another place is taken. */
TEST(ids_of_prefixes_are_never_used_twice)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    mb_kv_prefix first = 0, last = 0, next = 0;
    uint32_t hit = 0;

    kv_extend(dev, kv, seq, prompt, 0, 40, NULL);
    KV_OK(mb_kv_publish(kv, seq, prompt, 40));
    KV_OK(mb_kv_prefix_hold(kv, seq, 40, &first, &hit));
    KV_OK(mb_kv_prefix_drop(kv, first));
    kv->holds[0].generation = UINT32_MAX - 1;
    KV_OK(mb_kv_prefix_hold(kv, seq, 40, &last, &hit));
    KV_OK(mb_kv_prefix_drop(kv, last));
    KV_OK(mb_kv_prefix_hold(kv, seq, 40, &next, &hit));
    CHECK(next != first && next != last);
    check_error(mb_kv_prefix_drop(kv, first), MB_ERR_NOT_FOUND, "given up");
    check_error(mb_kv_prefix_drop(kv, last), MB_ERR_NOT_FOUND, "given up");
    KV_OK(mb_kv_prefix_drop(kv, next));
    finish(dev, kv);
}

static void every_call_refuses(mb_kv kv)
{
    static const char word[] = "no open cache";
    struct mb_kv_shape shape;
    struct mb_kv_stats stats;
    struct mb_kv_view view;
    mb_kv_prefix prefix;
    uint32_t hit, zero = 0;
    mb_kv_seq seq = 1;

    check_error(mb_kv_get_shape(kv, &shape), MB_ERR_INVALID, word);
    check_error(mb_kv_seq_open(kv, 0, &seq), MB_ERR_INVALID, word);
    check_error(mb_kv_seq_close(kv, seq), MB_ERR_INVALID, word);
    check_error(mb_kv_append(kv, &(struct mb_kv_grow){seq, 1}, 1, NULL), MB_ERR_INVALID, word);
    check_error(mb_kv_sync(kv, NULL), MB_ERR_INVALID, word);
    check_error(mb_kv_truncate(kv, seq, 0), MB_ERR_INVALID, word);
    check_error(mb_kv_fork(kv, seq, &seq), MB_ERR_INVALID, word);
    check_error(mb_kv_reorder(kv, &seq, &zero, 1), MB_ERR_INVALID, word);
    check_error(mb_kv_sleep(kv, seq), MB_ERR_INVALID, word);
    check_error(mb_kv_wake(kv, seq, prompt, 1, &hit), MB_ERR_INVALID, word);
    check_error(mb_kv_get_view(kv, seq, 0, false, &view), MB_ERR_INVALID, word);
    check_error(mb_kv_attach(kv, seq, prompt, 1, &hit), MB_ERR_INVALID, word);
    check_error(mb_kv_publish(kv, seq, prompt, 1), MB_ERR_INVALID, word);
    check_error(mb_kv_prefix_hold(kv, seq, 1, &prefix, &hit), MB_ERR_INVALID, word);
    check_error(mb_kv_prefix_attach(kv, seq, 1, &hit), MB_ERR_INVALID, word);
    check_error(mb_kv_prefix_drop(kv, 1), MB_ERR_INVALID, word);
    check_error(mb_kv_trim(kv, NULL), MB_ERR_INVALID, word);
    check_error(mb_kv_get_stats(kv, &stats), MB_ERR_INVALID, word);
    check_error(mb_kv_check(kv), MB_ERR_INVALID, word);
}

TEST(a_cache_that_is_none_is_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev), closed = open_small(dev);

    KV_OK(mb_kv_close(closed));
    KV_OK(mb_kv_close(NULL));
    check_error(mb_kv_close(closed), MB_ERR_INVALID, "no open cache");
    every_call_refuses(closed);
    every_call_refuses(NULL);
    finish(dev, kv);
}

TEST(nothing_where_something_is_wanted)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    mb_kv_prefix prefix;
    uint32_t hit = 0;

    check_error(mb_kv_get_shape(kv, NULL), MB_ERR_INVALID, "mb_kv_get_shape: NULL");
    check_error(mb_kv_get_stats(kv, NULL), MB_ERR_INVALID, "NULL is no place");
    check_error(mb_kv_get_view(kv, seq, 0, true, NULL), MB_ERR_INVALID, "NULL is no place");
    check_error(mb_kv_seq_open(kv, 0, NULL), MB_ERR_INVALID, "NULL is no place");
    check_error(mb_kv_fork(kv, seq, NULL), MB_ERR_INVALID, "NULL is no place");
    check_error(mb_kv_append(kv, NULL, 1, NULL), MB_ERR_INVALID, "NULL is no list");
    check_error(mb_kv_reorder(kv, NULL, NULL, 1), MB_ERR_INVALID, "NULL is no list");
    check_error(mb_kv_attach(kv, seq, NULL, 40, &hit), MB_ERR_INVALID, "NULL is no list");
    check_error(mb_kv_attach(kv, seq, prompt, 40, NULL), MB_ERR_INVALID, "NULL is no place");
    check_error(mb_kv_publish(kv, seq, NULL, 40), MB_ERR_INVALID, "NULL is no list");
    check_error(mb_kv_prefix_hold(kv, seq, 40, &prefix, NULL), MB_ERR_INVALID, "NULL is no place");
    KV_OK(mb_kv_attach(kv, seq, NULL, 0, &hit));
    CHECK_EQ(hit, 0);
    KV_OK(mb_kv_publish(kv, seq, NULL, 0));
    KV_OK(mb_kv_append(kv, NULL, 0, NULL));
    KV_OK(mb_kv_reorder(kv, NULL, NULL, 0));
    KV_OK(mb_kv_sleep(kv, seq));
    check_error(mb_kv_wake(kv, seq, NULL, 1, &hit), MB_ERR_INVALID, "NULL is no list");
    KV_OK(mb_kv_wake(kv, seq, NULL, 0, &hit));
    finish(dev, kv);
}

/* A count wrong by far is refused before memory is had for it, and nothing beyond is read. */
/* Closed in the wrong order: told by name, and nothing of the cache stays. */
TEST(a_device_closed_before_its_cache)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    struct mb_kv_grow grow = {0, 20};

    KV_OK(mb_kv_seq_open(kv, 0, &grow.seq));
    KV_OK(mb_kv_append(kv, &grow, 1, NULL));
    mb_close(dev);
    grow.tokens = 20;
    check_error(mb_kv_append(kv, &grow, 1, NULL), MB_ERR_DEVICE_LOST, "no open device");
    KV_OK(mb_kv_close(kv));
    CHECK_EQ(mb_kv_close(kv), MB_ERR_INVALID);
}

TEST(a_reorder_of_too_many_is_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    uint32_t zero = 0;

    check_error(mb_kv_reorder(kv, &seq, &zero, UINT32_MAX), MB_ERR_INVALID, "at most 12");
    check_error(mb_kv_reorder(kv, &seq, &zero, 13), MB_ERR_INVALID, "at most 12");
    KV_OK(mb_kv_reorder(kv, &seq, &zero, 1));
    finish(dev, kv);
}

/* A mapper whose pages can have any size; nothing is ever asked of it but addresses. */
static uint64_t reserved;

static enum mb_err count_addresses(void *user, uint64_t bytes, void **va)
{
    (void)user;
    reserved += bytes;
    *va = (void *)(uintptr_t)4096;
    return MB_OK;
}

static void forget_addresses(void *user, void *va, uint64_t bytes)
{
    (void)user;
    (void)va;
    reserved -= bytes;
}

static void check_layout(struct mb_kv_mapper *mapper, const struct mb_kv_config *config,
                         const char *word)
{
    mb_kv kv = NULL;

    if (word) {
        check_error(mb_kv_open_on(mapper, config, &kv), MB_ERR_INVALID, word);
        return;
    }
    KV_OK(mb_kv_open_on(mapper, config, &kv));
    (void)open_seq(kv);
    CHECK_EQ(reserved, kv->shape.groups * kv->shape.range_bytes +
                           kv->config.max_sequences * kv->shape.block_bytes);
    CHECK(kv_stats(kv).room_blocks > 0 || !config->limit_bytes);
    KV_OK(mb_kv_close(kv));
    CHECK_EQ(reserved, 0);
}

TEST(sizes_that_overflow_are_refused)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    struct mb_kv_config small = {.layers = 1,
                                 .kv_heads = 1,
                                 .head_dim = 8,
                                 .element_bytes = 1,
                                 .max_tokens = 4096,
                                 .max_sequences = 4},
                        config = small;
    struct mb_kv_mapper mapper, lame;

    RT_OK(mb_kv_device_mapper(dev, &mapper));
    mapper.reserve = count_addresses;
    mapper.unreserve = forget_addresses;
    mapper.page_bytes = (uint64_t)1 << 40; /* 2^36 tokens of 16 bytes */
    check_layout(&mapper, &config, "holds 68719476736 tokens");
    mapper.page_bytes = (uint64_t)1 << 32;
    check_layout(&mapper, &config, NULL);

    config.layers = 4096;
    config.kv_heads = 4096;
    config.head_dim = 65536;
    config.element_bytes = 16;
    config.max_tokens = 1 << 28;
    mapper.page_bytes = (uint64_t)1 << 40;
    check_layout(&mapper, &config, "addresses");
    mapper.page_bytes = (uint64_t)1 << 33;
    check_layout(&mapper, &config, "addresses");
    config.max_tokens = 1 << 10;
    check_layout(&mapper, &config, NULL);

    mapper.page_bytes = 2 << 20;
    config = small;
    config.max_tokens = 1 << 28;
    config.max_sequences = 1 << 20;
    check_layout(&mapper, &config, NULL);
    config = small;
    config.chunk_blocks = UINT32_MAX;
    check_layout(&mapper, &config, "chunks of 4294967295 blocks");
    /* Limits beyond all memory are limits all the same. */
    config.chunk_blocks = 1;
    for (unsigned bit = 21; bit < 64; bit++) {
        config.limit_bytes = (uint64_t)1 << bit;
        check_layout(&mapper, &config, NULL);
    }
    config.limit_bytes = UINT64_MAX;
    check_layout(&mapper, &config, NULL);
    config.chunk_blocks = 0;
    check_layout(&mapper, &config, NULL);

    lame = mapper;
    lame.order = NULL;
    check_layout(&lame, &config, "lacks a call");
    lame = mapper;
    lame.detail = NULL;
    check_layout(&lame, &config, "lacks a call");
    rt_close(dev);
}

/* Two sequences share a block, and are published as different texts: one of them is wrong. */
TEST(a_block_has_one_text)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv), beam = 0, third = open_seq(kv);
    int32_t other[160];
    uint32_t hit = 0;

    memcpy(other, prompt, sizeof(other));
    other[20] = -1;
    kv_extend(dev, kv, seq, prompt, 0, 40, NULL);
    KV_OK(mb_kv_fork(kv, seq, &beam));
    KV_OK(mb_kv_publish(kv, seq, prompt, 40));
    check_error(mb_kv_publish(kv, beam, other, 40), MB_ERR_INVALID, "(from token 16 on)");
    KV_OK(mb_kv_check(kv));
    /* Nothing of the refused text is cached, nor used. */
    KV_OK(mb_kv_attach(kv, third, other, 40, &hit));
    CHECK_EQ(hit, 16);
    KV_OK(mb_kv_publish(kv, beam, prompt, 40));
    KV_OK(mb_kv_seq_close(kv, seq));
    KV_OK(mb_kv_seq_close(kv, beam));
    KV_OK(mb_kv_seq_close(kv, third));
    CHECK_EQ(kv_stats(kv).live_blocks, 0);
    CHECK_EQ(kv_stats(kv).cached_blocks, 2);
    KV_OK(mb_kv_trim(kv, NULL));
    CHECK_EQ(kv_stats(kv).held_blocks, 0);
    /* Evicted, its memory is free for any text. */
    seq = open_seq(kv);
    kv_extend(dev, kv, seq, other, 0, 40, NULL);
    KV_OK(mb_kv_publish(kv, seq, other, 40));
    finish(dev, kv);
}

/* Most of a limit can be had, whatever it is. */
TEST(a_limit_is_used)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    struct mb_kv_config config = kv_small;
    struct mb_kv_mapper mapper;
    mb_kv kv = NULL;

    RT_OK(mb_kv_device_mapper(dev, &mapper));
    for (uint64_t blocks = 1; blocks < 3000; blocks += 1 + blocks / 50) {
        config.chunk_blocks = 0;
        config.limit_bytes = blocks * (4 << 20) + (blocks & 1);
        KV_OK(mb_kv_open_on(&mapper, &config, &kv));
        CHECK(kv_stats(kv).room_blocks <= blocks);
        CHECK(kv_stats(kv).room_blocks >= blocks - blocks / 8);
        KV_OK(mb_kv_close(kv));
    }
    rt_close(dev);
}

/* Also of few blocks: `usual` is how many a chunk of the usual size has. */
TEST(a_limit_of_few_large_blocks_is_used)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    struct mb_kv_config config = {.layers = 1,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .element_bytes = 1,
                                  .max_tokens = 16,
                                  .max_sequences = 1};
    struct mb_kv_mapper mapper;
    mb_kv kv = NULL;

    RT_OK(mb_kv_device_mapper(dev, &mapper));
    mapper.reserve = count_addresses;
    mapper.unreserve = forget_addresses;
    for (uint64_t usual = 1; usual <= 128; usual++) {
        mapper.page_bytes = ((uint64_t)1 << 30) / usual / 16 * 16;
        /* Of more than these, less than a chunk is less than an eighth. */
        for (uint64_t blocks = 1; blocks <= 8 * usual + 8; blocks++) {
            config.limit_bytes = blocks * mapper.page_bytes + blocks % 2;
            KV_OK(mb_kv_open_on(&mapper, &config, &kv));
            CHECK(kv->config.chunk_blocks <= usual);
            CHECK(kv_stats(kv).room_blocks <= blocks);
            CHECK(kv_stats(kv).room_blocks >= blocks - blocks / 8);
            KV_OK(mb_kv_close(kv));
        }
    }
    rt_close(dev);
}

static enum mb_err create_nothing(void *user, uint64_t bytes, mb_mem *out)
{
    (void)user;
    (void)bytes;
    (void)out;
    return MB_ERR_NO_MEMORY;
}

/* Memory that was given back is not told as held. */
TEST(what_is_held_is_told)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    struct mb_kv_grow grow = {seq, 20};

    kv_extend(dev, kv, seq, prompt, 0, 160, NULL);
    KV_OK(mb_kv_truncate(kv, seq, 0));
    KV_OK(mb_kv_trim(kv, NULL));
    kv->map.create = create_nothing;
    check_error(mb_kv_append(kv, &grow, 1, NULL), MB_ERR_NO_MEMORY, "0 are free of 0;");
    finish(dev, kv);
}

/* Whether a limit or the device stops a cache is told, and what helps. */
TEST(what_stops_a_cache_is_told)
{
    mb_device dev = rt_open("backend:sim,device_memory:64m");
    struct mb_kv_config config = kv_small;
    struct mb_kv_grow grow;
    mb_kv kv = NULL;

    config.limit_bytes = 0;
    config.chunk_blocks = 32; /* 128 MiB */
    KV_OK(mb_kv_open(dev, &config, &kv));
    grow = (struct mb_kv_grow){open_seq(kv), 20};
    check_error(mb_kv_append(kv, &grow, 1, NULL), MB_ERR_NO_MEMORY, "134217728 bytes");
    CHECK(strstr(mb_kv_error_detail(), "chunk_blocks") != NULL);
    CHECK(strstr(mb_kv_error_detail(), "limit_bytes") == NULL);
    KV_OK(mb_kv_close(kv));
    config.limit_bytes = 4 << 20;
    KV_OK(mb_kv_open(dev, &config, &kv));
    grow = (struct mb_kv_grow){open_seq(kv), 20};
    check_error(mb_kv_append(kv, &grow, 1, NULL), MB_ERR_NO_MEMORY, "raise limit_bytes");
    finish(dev, kv);
}
