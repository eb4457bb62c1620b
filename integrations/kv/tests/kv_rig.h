/* SPDX-License-Identifier: MIT */
/*
 * kv_rig.h - a cache on the software GPU with contents that can be told apart.
 *
 * As in a model, the keys and values of a token follow from the tokens up to it and nothing else.
 * Here they are a pattern whose seed is a hash of those tokens and of the group, so whatever was
 * shared, copied, evicted and computed again, the contents of a sequence follow from its tokens.
 */
#ifndef MB_KV_RIG_H
#define MB_KV_RIG_H

#include <string.h>

#include "kv.h"
#include "support/runtime_rig.h"

#define KV_OK(call)                                                                                \
    do {                                                                                           \
        enum mb_err kv_err = (call);                                                               \
        if (kv_err)                                                                                \
            FAIL("%s: %s: %s", #call, mb_error_name(kv_err), mb_kv_error_detail());                \
    } while (0)

/* 2 groups of 2 layers, 16 tokens per block, blocks of 4 MiB. */
static const struct mb_kv_config kv_small = {.layers = 4,
                                             .kv_heads = 16,
                                             .head_dim = 1024,
                                             .element_bytes = 2,
                                             .group_layers = 2,
                                             .max_tokens = 160,
                                             .max_sequences = 12,
                                             .chunk_blocks = 8,
                                             .limit_bytes = 192 << 20};

static inline __attribute__((unused)) mb_kv_seq open_seq(mb_kv kv)
{
    mb_kv_seq seq = 0;

    KV_OK(mb_kv_seq_open(kv, 0, &seq));
    return seq;
}

/* `err` was wanted, and its text holds the word. */
static inline __attribute__((unused)) void check_error(enum mb_err err, enum mb_err wanted,
                                                       const char *word)
{
    CHECK_EQ(err, wanted);
    if (!strstr(mb_kv_error_detail(), word))
        FAIL("\"%s\" does not say \"%s\"", mb_kv_error_detail(), word);
}

static inline __attribute__((unused)) void finish(mb_device dev, mb_kv kv)
{
    KV_OK(mb_kv_check(kv));
    KV_OK(mb_kv_close(kv));
    rt_close(dev);
}

static inline uint64_t kv_chain(uint64_t hash, int32_t token)
{
    hash = (hash ^ (uint32_t)token) * 0xbf58476d1ce4e5b9u;
    return hash ^ hash >> 29;
}

static inline void *kv_token_at(mb_kv kv, mb_kv_seq seq, uint32_t group, uint32_t token,
                                uint64_t *bytes)
{
    struct mb_kv_shape shape;
    struct mb_kv_view view = {0};

    KV_OK(mb_kv_get_shape(kv, &shape));
    KV_OK(mb_kv_get_view(kv, seq, group * shape.group_layers, false, &view));
    *bytes = view.token_stride;
    return (char *)view.base + token * view.token_stride;
}

/* What a decoder does for tokens [from, to): compute their keys and values. */
static inline __attribute__((unused)) void kv_write(mb_device dev, mb_kv kv, mb_kv_seq seq,
                                                    const int32_t *tokens, uint32_t from,
                                                    uint32_t to, mb_stream stream)
{
    struct mb_kv_shape shape;
    uint64_t hash = 0, bytes;

    KV_OK(mb_kv_get_shape(kv, &shape));
    for (uint32_t i = 0; i < to; i++) {
        hash = kv_chain(hash, tokens[i]);
        for (uint32_t g = 0; i >= from && g < shape.groups; g++) {
            void *at = kv_token_at(kv, seq, g, i, &bytes);

            RT_OK(mb_fill_async(dev, at, bytes, hash + g, stream));
        }
    }
}

/* Mismatches are counted by the device: see rt_clean(). */
static inline __attribute__((unused)) void kv_verify(mb_device dev, mb_kv kv, mb_kv_seq seq,
                                                     const int32_t *tokens, uint32_t count,
                                                     mb_stream stream)
{
    struct mb_kv_shape shape;
    uint64_t hash = 0, bytes;

    KV_OK(mb_kv_get_shape(kv, &shape));
    for (uint32_t i = 0; i < count; i++) {
        hash = kv_chain(hash, tokens[i]);
        for (uint32_t g = 0; g < shape.groups; g++) {
            const void *at = kv_token_at(kv, seq, g, i, &bytes);

            RT_OK(mb_verify_async(dev, at, bytes, hash + g, stream));
        }
    }
}

static inline __attribute__((unused)) struct mb_kv_stats kv_stats(mb_kv kv)
{
    struct mb_kv_stats stats = {0};

    KV_OK(mb_kv_get_stats(kv, &stats));
    return stats;
}

/* Appends one sequence's next tokens and computes them. */
static inline __attribute__((unused)) void kv_extend(mb_device dev, mb_kv kv, mb_kv_seq seq,
                                                     const int32_t *tokens, uint32_t from,
                                                     uint32_t to, mb_stream stream)
{
    struct mb_kv_grow grow = {seq, to - from};

    KV_OK(mb_kv_append(kv, &grow, 1, stream));
    kv_write(dev, kv, seq, tokens, from, to, stream);
}

#endif
