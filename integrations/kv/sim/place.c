/* SPDX-License-Identifier: MIT */
/*
 * place.c - a cache on the software GPU with one kind of tables, or with block tables.
 *
 * Mappings cost what the software GPU's clock says until they are usable. Copies of tails are one
 * launch and their bytes, as one kernel for the whole list would be (mb_copy_list_async() takes
 * another launch for each 168); contents play no part here.
 */
#include "sim.h"

#include <stdlib.h>

static const double LAUNCH_S = 8.3e-6; /* an empty kernel until complete (H200) */

const char *policy_name(enum policy policy)
{
    static const char *const names[] = {"moonbright", "cuda-vmm", "paged-16", "concat"};

    return names[policy];
}

static struct mb_kv_mapper device_mapper;

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    struct place *place = user;
    double bytes = 0;

    (void)stream;
    for (unsigned i = 0; i < count; i++)
        bytes += (double)list[i].bytes;
    place->copy_s += LAUNCH_S + cost_move(bytes);
    return MB_OK;
}

static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    struct place *place = user;
    static uintptr_t next = (uintptr_t)1 << 40;

    if (place->dev)
        return device_mapper.reserve(place->dev, bytes, va);
    *va = (void *)next; /* never used as an address */
    next += bytes;
    return MB_OK;
}

static void unreserve(void *user, void *va, uint64_t bytes)
{
    struct place *place = user;

    if (place->dev)
        device_mapper.unreserve(place->dev, va, bytes);
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    struct place *place = user;

    if (place->dev)
        return device_mapper.create(place->dev, bytes, out);
    *out = (mb_mem)(void *)&device_mapper; /* any address but NULL */
    return MB_OK;
}

static void release(void *user, mb_mem mem)
{
    struct place *place = user;

    if (place->dev)
        device_mapper.release(place->dev, mem);
}

static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    struct place *place = user;

    return place->dev ? device_mapper.map(place->dev, ops, count, stream) : MB_OK;
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    (void)user;
    (void)from;
    (void)to;
    return MB_OK; /* one stream here */
}

static const char *detail(void *user)
{
    (void)user;
    return mb_error_detail();
}

static bool open_device(struct place *place)
{
    const char *config = place->policy == POLICY_VMM
                             ? "backend:sim,tables:driver,oracle:no,window_space:64t"
                             : "backend:sim,tables:inline,oracle:no,window_space:64t";
    enum mb_err err = mb_open(0, config, &place->dev);

    if (!err)
        err = mb_stream_create(place->dev, &place->stream);
    if (!err)
        err = mb_kv_device_mapper(place->dev, &device_mapper);
    if (err)
        fprintf(stderr, "moonbright-kv: %s: %s\n", mb_error_name(err), mb_error_detail());
    return !err;
}

/* Servers take their memory when they start: frames are had before the clock counts. */
static void warm_up(struct place *place, uint64_t bytes)
{
    mb_mem mem;

    if (!mb_mem_create(place->dev, bytes, &mem))
        (void)mb_mem_release(place->dev, mem);
}

bool place_open(struct place *place, enum policy policy, const struct shape *shape,
                uint32_t max_tokens, uint32_t max_sequences, uint64_t limit_bytes)
{
    struct mb_kv_config config = {
        .layers = shape->layers,
        .kv_heads = shape->kv_heads / shape->gpus,
        .head_dim = 128,
        .element_bytes = 2,
        .max_tokens = max_tokens,
        .max_sequences = max_sequences,
        .limit_bytes = limit_bytes,
    };
    struct mb_kv_mapper mapper = {place,   16 * shape_token_bytes(shape),
                                  reserve, unreserve,
                                  create,  release,
                                  map,     copy,
                                  order,   detail,
                                  NULL};
    enum mb_err err;

    *place = (struct place){.policy = policy};
    if (policy == POLICY_CONCAT)
        return true;
    if (policy == POLICY_PAGED)
        config.group_layers = shape->layers;
    else if (!open_device(place)) {
        place_close(place);
        return false;
    } else
        mapper.page_bytes = mb_page_bytes(place->dev);
    if (place->dev)
        warm_up(place, limit_bytes);
    err = mb_kv_open_on(&mapper, &config, &place->kv);
    if (!err)
        err = mb_kv_get_shape(place->kv, &place->layout);
    if (!err)
        return true;
    fprintf(stderr, "moonbright-kv: %s: %s\n", mb_error_name(err), mb_kv_error_detail());
    place_close(place);
    return false;
}

void place_close(struct place *place)
{
    if (place->kv && mb_kv_close(place->kv))
        fprintf(stderr, "moonbright-kv: %s\n", mb_kv_error_detail());
    if (place->dev)
        mb_close(place->dev);
    *place = (struct place){0};
}

const char *place_why(void)
{
    return *mb_kv_error_detail() ? mb_kv_error_detail() : mb_error_detail();
}

void place_begin(struct place *place)
{
    place->copy_s = 0;
    if (place->dev)
        place->begin_ns = mb_clock_ns(place->dev);
}

double place_cost(struct place *place)
{
    uint64_t batches;

    if (!place->dev)
        return place->copy_s;
    batches = place->kv->stats.batches;
    if (batches != place->batches)
        (void)mb_stream_sync(place->dev, place->stream);
    place->batches = batches;
    return (double)(mb_clock_ns(place->dev) - place->begin_ns) * 1e-9 + place->copy_s;
}

enum mb_err place_publish(struct place *place, const int32_t *tokens, uint32_t shared)
{
    struct mb_kv_grow grow = {0, shared};
    enum mb_err err = mb_kv_seq_open(place->kv, 0, &grow.seq);

    if (!err)
        err = mb_kv_append(place->kv, &grow, 1, place->stream);
    if (!err)
        err = mb_kv_publish(place->kv, grow.seq, tokens, shared);
    if (!err)
        err = mb_kv_seq_close(place->kv, grow.seq);
    return err ? err : mb_kv_sync(place->kv, place->stream);
}

int32_t *make_tokens(uint32_t count)
{
    int32_t *tokens = malloc((count + 1) * sizeof(*tokens));

    for (uint32_t i = 0; tokens && i < count; i++)
        tokens[i] = (int32_t)i;
    return tokens;
}
