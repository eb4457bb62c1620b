/* SPDX-License-Identifier: MIT */
/*
 * host.c - what the cache's calls take of the host, on any backend.
 *
 * Each round does the same calls once and each call's times are kept; the least of many rounds is
 * what the code takes when nobody else has the processor, the median what it took here. Of calls
 * that map, the time inside the mapper's map() is told apart: that part is the runtime's.
 */
#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    BEAMS = 4,
    BATCH = 64,
};

/* What is timed, in the order of the output. */
enum what {
    ATTACH,       /* mb_kv_attach() of the whole prefix: finding it and deciding */
    ATTACH_SYNC,  /* mb_kv_sync() behind it, all of it */
    ATTACH_MAP,   /* of that, inside map() */
    ATTACH_TOTAL, /* open, attach, sync */
    HELD_ATTACH,  /* mb_kv_prefix_attach() of the same */
    FORK,         /* one mb_kv_fork() of a sequence with the prefix and a started block */
    FORK_APPEND2, /* the next token of two beams */
    FORK_APPEND4, /* of four, two of them forked since */
    REORDER,      /* of four beams, each of which becomes another */
    REORDER_APPEND,
    CLOSE,       /* of the one with the prefix, while beams have it too */
    PROMPT,      /* append of a prompt of that size; an older one is evicted for it */
    PROMPT_MAP,  /* of that, inside map() */
    PUBLISH,     /* of that prompt */
    STEP,        /* a token for 64 sequences of which none needs a block */
    STEP_BLOCKS, /* the same where all do */
    STEP_MAP,    /* of that, inside map() */
    WHATS,
};

static const char *const names[WHATS] = {
    "attach",         "attach_sync",    "attach_map", "attach_total",   "held_attach", "fork",
    "append_2_beams", "append_4_beams", "reorder_4",  "reorder_append", "close",       "prompt",
    "prompt_map",     "publish",        "step_64",    "step_64_blocks", "step_64_map",
};

struct bench {
    struct place place;
    uint64_t prefix_tokens;
    int32_t *prefix, *fresh;
    mb_kv_prefix held;
    mb_kv_seq batch[BATCH];
    uint32_t batch_tokens;
    double *samples; /* [WHATS][rounds] */
    unsigned rounds, round;
};

static double map_us(struct bench *b)
{
    return (double)b->place.kv->stats.map_host_ns * 1e-3;
}

static void keep(struct bench *b, enum what what, double us)
{
    b->samples[what * b->rounds + b->round] = us;
}

/* Evaluates to the call's error; *us gets what it took. */
#define TIMED(us, call) (*(us) = -host_us(), timed_err = (call), *(us) += host_us(), timed_err)

static enum mb_err settle(struct bench *b)
{
    enum mb_err err = mb_kv_sync(b->place.kv, b->place.stream);

    return err ? err : mb_stream_sync(b->place.dev, b->place.stream);
}

static enum mb_err time_attach(struct bench *b, mb_kv_seq *seq)
{
    double open_us, attach_us, sync_us, inside;
    enum mb_err err, timed_err;
    uint32_t hit = 0;

    err = TIMED(&open_us, mb_kv_seq_open(b->place.kv, 0, seq));
    if (!err)
        err = TIMED(&attach_us,
                    mb_kv_attach(b->place.kv, *seq, b->prefix, (uint32_t)b->prefix_tokens, &hit));
    inside = map_us(b);
    if (!err)
        err = TIMED(&sync_us, mb_kv_sync(b->place.kv, b->place.stream));
    if (err)
        return err;
    keep(b, ATTACH, attach_us);
    keep(b, ATTACH_SYNC, sync_us);
    keep(b, ATTACH_MAP, map_us(b) - inside);
    keep(b, ATTACH_TOTAL, open_us + attach_us + sync_us);
    if (hit != b->prefix_tokens)
        return MB_ERR_INTERNAL;
    return mb_stream_sync(b->place.dev, b->place.stream);
}

static enum mb_err append_all(struct bench *b, const mb_kv_seq *seqs, uint32_t count, double *us)
{
    struct mb_kv_grow grow[BATCH];
    enum mb_err err, timed_err;

    for (uint32_t i = 0; i < count; i++)
        grow[i] = (struct mb_kv_grow){seqs[i], 1};
    err = TIMED(us, mb_kv_append(b->place.kv, grow, count, b->place.stream));
    return err ? err : mb_stream_sync(b->place.dev, b->place.stream);
}

/* `seqs[0]` has the prefix; the others become its beams. */
static enum mb_err time_beams(struct bench *b, mb_kv_seq *seqs)
{
    static const uint32_t from[BEAMS] = {1, 2, 3, 0};
    double us, fork_us = 0;
    enum mb_err err, timed_err;

    err = append_all(b, seqs, 1, &us);
    if (!err)
        err = TIMED(&fork_us, mb_kv_fork(b->place.kv, seqs[0], &seqs[1]));
    keep(b, FORK, fork_us);
    if (!err)
        err = append_all(b, seqs, 2, &us);
    keep(b, FORK_APPEND2, us);
    for (unsigned i = 2; !err && i < BEAMS; i++)
        err = mb_kv_fork(b->place.kv, seqs[i - 2], &seqs[i]);
    if (!err)
        err = append_all(b, seqs, BEAMS, &us);
    keep(b, FORK_APPEND4, us);
    if (!err)
        err = TIMED(&us, mb_kv_reorder(b->place.kv, seqs, from, BEAMS));
    keep(b, REORDER, us);
    if (!err)
        err = append_all(b, seqs, BEAMS, &us);
    keep(b, REORDER_APPEND, us);
    return err;
}

static enum mb_err time_close(struct bench *b, const mb_kv_seq *seqs)
{
    enum mb_err err, timed_err;
    double us;

    err = TIMED(&us, mb_kv_seq_close(b->place.kv, seqs[0]));
    keep(b, CLOSE, us);
    for (unsigned i = 1; !err && i < BEAMS; i++)
        err = mb_kv_seq_close(b->place.kv, seqs[i]);
    return err ? err : settle(b);
}

static enum mb_err time_held(struct bench *b)
{
    enum mb_err err, timed_err;
    mb_kv_seq seq = 0;
    uint32_t hit;
    double us = 0;

    err = mb_kv_seq_open(b->place.kv, 0, &seq);
    if (!err)
        err = TIMED(&us, mb_kv_prefix_attach(b->place.kv, seq, b->held, &hit));
    keep(b, HELD_ATTACH, us);
    if (!err)
        err = settle(b);
    if (!err)
        err = mb_kv_seq_close(b->place.kv, seq);
    return err ? err : settle(b);
}

/* A prompt that nobody has computed; that of the round before makes room for it. */
static enum mb_err time_prompt(struct bench *b)
{
    struct mb_kv_grow grow = {0, (uint32_t)b->prefix_tokens};
    enum mb_err err, timed_err;
    double us = 0, inside;

    for (uint64_t i = 0; i < b->prefix_tokens; i++)
        b->fresh[i] = (int32_t)(i * 16 + b->round % 16) * 2 + 1;
    err = mb_kv_seq_open(b->place.kv, 0, &grow.seq);
    inside = map_us(b);
    if (!err)
        err = TIMED(&us, mb_kv_append(b->place.kv, &grow, 1, b->place.stream));
    keep(b, PROMPT, us);
    keep(b, PROMPT_MAP, map_us(b) - inside);
    if (!err)
        err = mb_stream_sync(b->place.dev, b->place.stream);
    if (!err)
        err = TIMED(&us, mb_kv_publish(b->place.kv, grow.seq, b->fresh, grow.tokens));
    keep(b, PUBLISH, us);
    if (!err)
        err = mb_kv_seq_close(b->place.kv, grow.seq);
    return err ? err : settle(b);
}

/* As many tokens as a block holds, so that one of the steps needs blocks. */
static enum mb_err time_steps(struct bench *b)
{
    uint32_t step = b->place.layout.block_tokens;
    enum mb_err err = MB_OK;
    double us, inside;

    for (uint32_t i = 0; !err && i < step; i++) {
        bool blocks = b->batch_tokens++ % step == 0;

        inside = map_us(b);
        err = append_all(b, b->batch, BATCH, &us);
        keep(b, blocks ? STEP_BLOCKS : STEP, us);
        if (blocks)
            keep(b, STEP_MAP, map_us(b) - inside);
    }
    return err;
}

/* ------------------------------------------------------------------ setting up, results */

static enum mb_err set_up(struct bench *b, const char *config, const struct shape *shape,
                          uint64_t bytes)
{
    struct mb_kv_config c = {.layers = shape->layers,
                             .kv_heads = shape->kv_heads,
                             .head_dim = 128,
                             .element_bytes = 2,
                             .max_sequences = BATCH + BEAMS + 1};
    struct mb_kv_grow grow = {0};
    enum mb_err err;
    uint32_t hit;

    /* Each round, every sequence of the batch takes a block: of 16 tokens, for these models. */
    b->prefix_tokens = bytes / shape_token_bytes(shape) / 64 * 64;
    c.max_tokens = (uint32_t)b->prefix_tokens + 64 + 16 * b->rounds;
    c.limit_bytes =
        2 * bytes + (uint64_t)(b->rounds + 16) * (BATCH + 16) * 16 * shape_token_bytes(shape);
    b->prefix = calloc(b->prefix_tokens + 1, sizeof(*b->prefix));
    b->fresh = calloc(b->prefix_tokens + 1, sizeof(*b->fresh));
    b->samples = calloc((size_t)WHATS * b->rounds + 1, sizeof(*b->samples));
    if (!b->prefix_tokens)
        return kv_fail(MB_ERR_INVALID,
                       "%" PRIu64 " bytes for a prefix of %s; 64 tokens are the least, %" PRIu64
                       " bytes",
                       bytes, shape->name, (uint64_t)64 * shape_token_bytes(shape));
    if (!b->prefix || !b->fresh || !b->samples)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for %u rounds", b->rounds);
    for (uint64_t i = 0; i < b->prefix_tokens; i++)
        b->prefix[i] = (int32_t)i * 2;
    grow.tokens = (uint32_t)b->prefix_tokens;
    err = mb_open(0, config, &b->place.dev);
    if (!err)
        err = mb_stream_create(b->place.dev, &b->place.stream);
    if (!err)
        err = mb_kv_open(b->place.dev, &c, &b->place.kv);
    if (!err)
        err = mb_kv_get_shape(b->place.kv, &b->place.layout);
    if (!err)
        err = mb_kv_seq_open(b->place.kv, 0, &grow.seq);
    if (!err)
        err = mb_kv_append(b->place.kv, &grow, 1, b->place.stream);
    if (!err)
        err = mb_kv_publish(b->place.kv, grow.seq, b->prefix, grow.tokens);
    if (!err)
        err = mb_kv_prefix_hold(b->place.kv, grow.seq, grow.tokens, &b->held, &hit);
    if (!err)
        err = mb_kv_seq_close(b->place.kv, grow.seq);
    for (unsigned i = 0; !err && i < BATCH; i++)
        err = mb_kv_seq_open(b->place.kv, 0, &b->batch[i]);
    return err ? err : settle(b);
}

static enum mb_err one_round(struct bench *b)
{
    mb_kv_seq seqs[BEAMS] = {0};
    enum mb_err err = time_attach(b, &seqs[0]);

    if (!err)
        err = time_beams(b, seqs);
    if (!err)
        err = time_close(b, seqs);
    if (!err)
        err = time_held(b);
    if (!err)
        err = time_prompt(b);
    return err ? err : time_steps(b);
}

static void tell(FILE *out, const struct bench *b, const struct shape *shape)
{
    for (unsigned w = 0; w < WHATS; w++) {
        double *v = b->samples + (size_t)w * b->rounds;

        qsort(v, b->rounds, sizeof(*v), by_value);
        fprintf(out,
                "{\"what\":\"host\",\"figures\":\"measured\",\"backend\":\"%s\",\"tables\":\"%s\","
                "\"model\":\"%s\",\"tokens\":%" PRIu64 ",\"blocks\":%" PRIu64
                ",\"rounds\":%u,\"call\":\"%s\",\"least_us\":%.2f,\"median_us\":%.2f}\n",
                mb_device_backend(b->place.dev), mb_device_tables(b->place.dev), shape->name,
                b->prefix_tokens, b->prefix_tokens / b->place.layout.block_tokens, b->rounds,
                names[w], v[0], v[b->rounds / 2]);
    }
}

int host(FILE *out, const char *config, const struct shape *shape, uint64_t bytes, unsigned rounds)
{
    struct bench b = {.rounds = rounds};
    enum mb_err err = set_up(&b, config, shape, bytes);

    for (; !err && b.round < rounds; b.round++)
        err = one_round(&b);
    if (!err)
        tell(out, &b, shape);
    else
        fprintf(stderr, "moonbright-kv: host: %s: %s\n", mb_error_name(err), place_why());
    place_close(&b.place);
    free(b.prefix);
    free(b.fresh);
    free(b.samples);
    return err != MB_OK;
}
