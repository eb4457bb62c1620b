/* SPDX-License-Identifier: MIT */
/*
 * cost.c - what a GPU computes, as a roofline of one H200: 989 TFLOP/s of dense bf16 and 4.8 TB/s
 * (published), of which 60% and 80% are reached (a choice). A step takes the larger of both times.
 * Tensor parallelism adds two reductions per layer of 10 us and, for prompts, their bytes at
 * 450 GB/s (choices). Nothing is added for the host's own work or for kernels' launches.
 */
#include "sim.h"

#include <string.h>

static const double FLOPS = 989e12 * 0.6, BYTES = 4.8e12 * 0.8, LINK = 450e9, REDUCE_S = 10e-6;
static const double HEAD_DIM = 128, ELEMENT = 2;

static const struct shape shapes[] = {
    {"llama-2-7b", 6.74e9, 32, 32, 32, 4096, 1},
    {"llama-3-8b", 8.03e9, 32, 32, 8, 4096, 1},
    {"llama-3-70b", 70.6e9, 80, 64, 8, 8192, 4},
};

const struct shape *shape_find(const char *name)
{
    for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        if (!strcmp(shapes[i].name, name))
            return &shapes[i];
    fprintf(stderr, "moonbright-kv: %s is no model; llama-2-7b, llama-3-8b, llama-3-70b are\n",
            name);
    return NULL;
}

uint64_t shape_token_bytes(const struct shape *s)
{
    return (uint64_t)2 * s->layers * (s->kv_heads / s->gpus) * 128 * 2; /* as HEAD_DIM, ELEMENT */
}

uint64_t shape_kv_bytes(const struct shape *s)
{
    double weights = s->parameters * ELEMENT / s->gpus;

    /* 90% of 141 GB, less weights and 2 GB of activations. */
    return (uint64_t)(141e9 * 0.9 - weights - 2e9);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

double cost_prefill(const struct shape *s, double fresh, double before)
{
    double attention = 4.0 * s->layers * s->q_heads * HEAD_DIM * fresh * (before + fresh / 2);
    double flops = (2 * s->parameters * fresh + attention) / s->gpus;
    double bytes =
        s->parameters * ELEMENT / s->gpus + (before + fresh) * (double)shape_token_bytes(s);
    double link =
        s->gpus == 1 ? 0 : 2.0 * s->layers * (REDUCE_S + fresh * s->hidden * ELEMENT / LINK);

    return later(flops / FLOPS, bytes / BYTES) + link;
}

double cost_decode(const struct shape *s, double sequences, double tokens_read)
{
    double flops = 2 * s->parameters * sequences / s->gpus;
    double bytes = s->parameters * ELEMENT / s->gpus + tokens_read * (double)shape_token_bytes(s);

    return later(flops / FLOPS, bytes / BYTES) + (s->gpus == 1 ? 0 : 2.0 * s->layers * REDUCE_S);
}

double cost_move(double bytes)
{
    return 2 * bytes / BYTES;
}
