/* SPDX-License-Identifier: MIT */
/*
 * host_beams.c - what a step of a large beam search takes of the host, on any backend.
 *
 * 128 prompts of 4 beams behind one cached prefix: where prompts differ changes nothing of what the
 * calls do. Parents are drawn among a prompt's beams with a fixed seed, so about a third of the
 * beams goes on behind another's and copies its tail. The time inside map() is the cache's own
 * count; copies are timed here.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "sim.h"

enum {
    PROMPTS = 128,
    WIDTH = 4,
    ALL = PROMPTS * WIDTH,
    PROMPT_TOKENS = 512,
    STEPS_MAX = 16, /* tokens of a block: one of the steps starts one */
};

enum what { REORDER, APPEND, APPEND_MAP, APPEND_COPY, WHATS };

static const char *const names[WHATS] = {"beams_512_reorder", "beams_512_append",
                                         "beams_512_append_map", "beams_512_append_copy"};

struct beams {
    mb_device dev;
    mb_stream stream;
    mb_kv kv;
    mb_kv_seq seqs[ALL];
    double samples[WHATS][STEPS_MAX];
    unsigned steps;
    uint32_t draw;
};

/* Of the one cache that is open here: the mapper's user is the device. */
static struct {
    enum mb_err (*below)(void *user, const struct mb_copy *list, unsigned count, mb_stream stream);
    double us; /* so far */
    uint64_t count;
} copies;

static enum mb_err timed_copy(void *user, const struct mb_copy *list, unsigned count,
                              mb_stream stream)
{
    double begin = host_us();
    enum mb_err err = copies.below(user, list, count, stream);

    copies.us += host_us() - begin;
    copies.count += count;
    return err;
}

static enum mb_err open_cache(struct beams *b, const struct shape *shape)
{
    uint64_t token = shape_token_bytes(shape);
    struct mb_kv_config config = {
        .layers = shape->layers,
        .kv_heads = shape->kv_heads,
        .head_dim = 128,
        .element_bytes = 2,
        .max_sequences = ALL + 1,
        .max_tokens = PROMPT_TOKENS + 2 * STEPS_MAX,
        .limit_bytes = (PROMPT_TOKENS + (uint64_t)ALL * 2 * STEPS_MAX) * token,
    };
    struct mb_kv_mapper mapper;
    enum mb_err err = mb_kv_device_mapper(b->dev, &mapper);

    if (err)
        return err;
    copies.below = mapper.copy;
    copies.count = 0;
    mapper.copy = timed_copy;
    return mb_kv_open_on(&mapper, &config, &b->kv);
}

/* All beams hold the prompt; the first has computed it. */
static enum mb_err begin_beams(struct beams *b)
{
    struct mb_kv_grow grow = {.tokens = PROMPT_TOKENS};
    enum mb_err err = mb_kv_seq_open(b->kv, 0, &grow.seq);

    if (!err)
        err = mb_kv_append(b->kv, &grow, 1, b->stream);
    b->seqs[0] = grow.seq;
    for (unsigned i = 1; !err && i < ALL; i++)
        err = mb_kv_fork(b->kv, b->seqs[0], &b->seqs[i]);
    return err ? err : mb_stream_sync(b->dev, b->stream);
}

static enum mb_err one_step(struct beams *b, unsigned step)
{
    struct mb_kv_grow grow[ALL];
    uint32_t parents[ALL];
    double begin, between, end, map_ns = (double)b->kv->stats.map_host_ns, copy_us = copies.us;
    enum mb_err err;

    for (unsigned i = 0; i < ALL; i++) {
        b->draw = b->draw * 1664525 + 1013904223;
        parents[i] = i / WIDTH * WIDTH + (b->draw >> 30);
        grow[i] = (struct mb_kv_grow){b->seqs[i], 1};
    }
    begin = host_us();
    err = mb_kv_reorder(b->kv, b->seqs, parents, ALL);
    between = host_us();
    if (!err)
        err = mb_kv_append(b->kv, grow, ALL, b->stream);
    end = host_us();
    b->samples[REORDER][step] = between - begin;
    b->samples[APPEND][step] = end - between;
    b->samples[APPEND_MAP][step] = ((double)b->kv->stats.map_host_ns - map_ns) * 1e-3;
    b->samples[APPEND_COPY][step] = copies.us - copy_us;
    return err ? err : mb_stream_sync(b->dev, b->stream);
}

static void tell(FILE *out, struct beams *b, const struct shape *shape)
{
    for (unsigned w = 0; w < WHATS; w++) {
        double *v = b->samples[w];

        qsort(v, b->steps, sizeof(*v), by_value);
        fprintf(out,
                "{\"what\":\"host\",\"figures\":\"measured\",\"backend\":\"%s\",\"tables\":\"%s\","
                "\"model\":\"%s\",\"tokens\":%u,\"rounds\":%u,\"copies\":%" PRIu64
                ",\"call\":\"%s\",\"least_us\":%.2f,\"median_us\":%.2f}\n",
                mb_device_backend(b->dev), mb_device_tables(b->dev), shape->name, PROMPT_TOKENS,
                b->steps, copies.count, names[w], v[0], v[b->steps / 2]);
    }
}

static enum mb_err run(struct beams *b, const char *config, const struct shape *shape)
{
    enum mb_err err = mb_open(0, config, &b->dev);

    if (!err)
        err = mb_stream_create(b->dev, &b->stream);
    if (!err)
        err = open_cache(b, shape);
    if (!err)
        err = begin_beams(b);
    for (unsigned i = 0; !err && i < b->steps; i++)
        err = one_step(b, i);
    return err;
}

int host_beams(FILE *out, const char *config, const struct shape *shape, unsigned rounds)
{
    struct beams *b = calloc(1, sizeof(*b));
    enum mb_err err;

    if (!b) {
        fprintf(stderr, "moonbright-kv: host: no memory for %d beams\n", ALL);
        return 1;
    }
    b->draw = 1;
    b->steps = rounds < STEPS_MAX ? rounds : STEPS_MAX;
    err = run(b, config, shape);
    if (!err)
        tell(out, b, shape);
    else
        fprintf(stderr, "moonbright-kv: host: beams: %s: %s\n", mb_error_name(err), place_why());
    if (b->kv)
        (void)mb_kv_close(b->kv);
    if (b->dev)
        mb_close(b->dev);
    free(b);
    return err != MB_OK;
}
