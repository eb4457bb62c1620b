/* SPDX-License-Identifier: MIT */
/*
 * attach.c - a cached prefix until it is usable, on any backend.
 *
 * Until usable is attach, sync, a kernel that reads the last token, and the host has seen its end.
 * What the same kernel takes to be launched, run and waited for where everything is shown already
 * is timed in the same rounds: the floor. What is above it is the price of attaching.
 */
#include "sim.h"

#include <inttypes.h>
#include <stdlib.h>

/* What a round times, in the order of the output. Host: the processor's time in the calls. All
 * others are of the device's clock, which on the software GPU is the model's. */
enum what {
    HOST,           /* open, attach, sync */
    DECIDING,       /* of that, open and attach */
    SYNC,           /* of that, sync */
    LAUNCH,         /* the launch of the reading kernel behind it */
    USED,           /* until the reading kernel has ended */
    COMPLETE,       /* until the mappings are complete, without a kernel behind them */
    FLOOR_USED,     /* the same kernel where all is shown, and the device idle */
    FLOOR_COMPLETE, /* waiting for an idle stream */
    ADDED_USED,     /* USED above FLOOR_USED, round by round */
    ADDED_COMPLETE,
    WHATS,
};

static const char *const names[WHATS] = {
    "host",           "host_deciding", "host_sync",      "host_launch", "until_used",
    "until_complete", "floor_used",    "floor_complete", "added_used",  "added_complete",
};

struct bench {
    struct place place;
    int32_t *tokens;
    uint32_t count;
    double *samples; /* [WHATS][rounds] */
    unsigned rounds, round;
};

static void keep(struct bench *b, enum what what, double us)
{
    b->samples[what * b->rounds + b->round] = us;
}

static double kept(const struct bench *b, enum what what)
{
    return b->samples[what * b->rounds + b->round];
}

static double device_us(const struct bench *b)
{
    return (double)mb_clock_ns(b->place.dev) * 1e-3;
}

static enum mb_err wait(struct bench *b)
{
    return mb_stream_sync(b->place.dev, b->place.stream);
}

/* Launches a kernel that reads the sequence's last token. */
static enum mb_err touch(struct bench *b, mb_kv_seq seq)
{
    struct mb_kv_view view;
    enum mb_err err = mb_kv_get_view(b->place.kv, seq, 0, false, &view);

    return err ? err
               : mb_verify_async(b->place.dev,
                                 (char *)view.base + (b->count - 1) * view.token_stride, 64, 1,
                                 b->place.stream);
}

static enum mb_err attach_new(struct bench *b, mb_kv_seq *seq)
{
    double begin = host_us(), decided;
    uint32_t hit = 0;
    enum mb_err err = mb_kv_seq_open(b->place.kv, 0, seq);

    if (!err)
        err = mb_kv_attach(b->place.kv, *seq, b->tokens, b->count, &hit);
    decided = host_us();
    if (!err)
        err = mb_kv_sync(b->place.kv, b->place.stream);
    keep(b, DECIDING, decided - begin);
    keep(b, SYNC, host_us() - decided);
    keep(b, HOST, host_us() - begin);
    return err || hit == b->count ? err : MB_ERR_INTERNAL;
}

/* Addresses show nothing again, and the device is idle. */
static enum mb_err let_go(struct bench *b, mb_kv_seq seq)
{
    enum mb_err err = mb_kv_seq_close(b->place.kv, seq);

    if (!err)
        err = mb_kv_sync(b->place.kv, b->place.stream);
    return err ? err : wait(b);
}

static enum mb_err time_complete(struct bench *b)
{
    double begin = device_us(b);
    mb_kv_seq seq;
    enum mb_err err = attach_new(b, &seq);

    if (!err)
        err = wait(b);
    keep(b, COMPLETE, device_us(b) - begin);
    begin = device_us(b);
    if (!err)
        err = wait(b);
    keep(b, FLOOR_COMPLETE, device_us(b) - begin);
    return err ? err : let_go(b, seq);
}

/* Behind time_complete(): the host's times are those of this one. */
static enum mb_err time_used(struct bench *b)
{
    double begin = device_us(b), launch;
    mb_kv_seq seq;
    enum mb_err err = attach_new(b, &seq);

    launch = host_us();
    if (!err)
        err = touch(b, seq);
    keep(b, LAUNCH, host_us() - launch);
    if (!err)
        err = wait(b);
    keep(b, USED, device_us(b) - begin);
    begin = device_us(b);
    if (!err)
        err = touch(b, seq);
    if (!err)
        err = wait(b);
    keep(b, FLOOR_USED, device_us(b) - begin);
    return err ? err : let_go(b, seq);
}

static enum mb_err one_round(struct bench *b)
{
    enum mb_err err = time_complete(b);

    if (!err)
        err = time_used(b);
    keep(b, ADDED_USED, kept(b, USED) - kept(b, FLOOR_USED));
    keep(b, ADDED_COMPLETE, kept(b, COMPLETE) - kept(b, FLOOR_COMPLETE));
    return err;
}

/* One line; *_us are medians, *_least_us the least. */
static void tell(FILE *out, struct bench *b, const struct mb_kv_stats *before)
{
    mb_device dev = b->place.dev;
    struct mb_kv_stats after = {0};
    uint64_t rounds = b->rounds ? b->rounds : 1; /* set_up() takes no 0 */

    (void)mb_kv_get_stats(b->place.kv, &after);
    fprintf(out,
            "{\"what\":\"attach\",\"backend\":\"%s\",\"tables\":\"%s\",\"device\":\"%s\","
            "\"figures\":\"%s\",\"bytes\":%" PRIu64 ",\"samples\":%u,\"batches\":%" PRIu64
            ",\"operations\":%" PRIu64 ",\"pages\":%" PRIu64,
            mb_device_backend(dev), mb_device_tables(dev), mb_device_name(dev),
            mb_device_backend(dev)[0] == 's' ? "model" : "measured",
            (uint64_t)b->count * ((uint64_t)128 << 10), b->rounds,
            /* Attached twice a round and taken away as often. */
            (after.batches - before->batches) / 4 / rounds, (after.ops - before->ops) / 4 / rounds,
            (after.mapped_pages - before->mapped_pages) / 2 / rounds);
    for (unsigned what = 0; what < WHATS; what++) {
        double *us = b->samples + what * b->rounds;

        qsort(us, b->rounds, sizeof(*us), by_value);
        fprintf(out, ",\"%s_us\":%.2f,\"%s_least_us\":%.2f", names[what], us[b->rounds / 2],
                names[what], us[0]);
    }
    fputs("}\n", out);
}

static enum mb_err set_up(struct bench *b, const char *config, uint64_t bytes)
{
    struct mb_kv_config shape = {.layers = 32,
                                 .kv_heads = 8,
                                 .head_dim = 128,
                                 .element_bytes = 2,
                                 .max_sequences = 4,
                                 .limit_bytes = bytes + ((uint64_t)256 << 20)};
    enum mb_err err;

    b->count = shape.max_tokens = (uint32_t)(bytes / ((uint64_t)128 << 10)) / 16 * 16;
    if (!b->count || !b->rounds)
        return kv_fail(MB_ERR_INVALID, "%" PRIu64 " bytes, %u times; both must be more", bytes,
                       b->rounds);
    b->samples = calloc(WHATS * (size_t)b->rounds, sizeof(*b->samples));
    b->tokens = make_tokens(b->count);
    if (!b->samples || !b->tokens)
        return kv_fail(MB_ERR_HOST_MEMORY, "no host memory for %u samples", b->rounds);
    err = mb_open(0, config, &b->place.dev);
    if (!err)
        err = mb_stream_create(b->place.dev, &b->place.stream);
    if (!err)
        err = mb_kv_open(b->place.dev, &shape, &b->place.kv);
    if (!err)
        err = place_publish(&b->place, b->tokens, b->count);
    return err ? err : wait(b);
}

int attach(FILE *out, const char *config, uint64_t bytes, unsigned samples)
{
    struct bench b = {.rounds = samples};
    struct mb_kv_stats before = {0};
    enum mb_err err = set_up(&b, config, bytes);

    if (!err)
        err = one_round(&b); /* what is made at first use; counted again below */
    if (!err)
        err = mb_kv_get_stats(b.place.kv, &before);
    for (b.round = 0; !err && b.round < b.rounds; b.round++)
        err = one_round(&b);
    if (!err)
        tell(out, &b, &before);
    else
        fprintf(stderr, "moonbright-kv: attach: %s: %s\n", mb_error_name(err), place_why());
    place_close(&b.place);
    free(b.samples);
    free(b.tokens);
    return err != MB_OK;
}
