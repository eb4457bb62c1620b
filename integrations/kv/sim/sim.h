/* SPDX-License-Identifier: MIT */
/*
 * sim.h - moonbright-kv: serving with the KV cache, in modelled time.
 *
 * The policy is real: the cache decides and maps on the software GPU, whose page tables and virtual
 * clock say what mappings cost. What a GPU computes is a roofline (cost.c). All figures are models.
 */
#ifndef MB_KV_SIM_H
#define MB_KV_SIM_H

#include <stdio.h>
#include <time.h>

#include "kv.h"

/* For qsort() of doubles. */
static inline int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The host's own time. */
static inline double host_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

enum policy {
    POLICY_MOONBRIGHT, /* the cache on device tables */
    POLICY_VMM,        /* the same cache on the driver's mapping calls */
    POLICY_PAGED,      /* the same cache with block tables: blocks of 16 tokens, nothing mapped */
    POLICY_CONCAT,     /* a tensor per sequence that grows by concatenation; shares nothing */
    POLICIES,
};

/* A model as one GPU holds it. */
struct shape {
    const char *name;
    double parameters;                  /* of the whole model */
    uint32_t layers, q_heads, kv_heads; /* of the whole model */
    uint32_t hidden, gpus;              /* gpus: tensor parallel, heads dealt out */
};

struct request {
    double arrival_s;
    uint32_t in, out;
    uint32_t ids_at,
        ids; /* of trace.ids: names of the prompt's blocks of 512 tokens; ids 0: none */
};

/* Owner: the caller; trace_free(). */
struct trace {
    struct request *requests;
    uint32_t count, capacity;
    uint32_t *ids;
    uint32_t id_count, id_capacity;
};

/* trace.c; false with a line on stderr. */
bool trace_load(struct trace *trace, const char *path);
void trace_free(struct trace *trace);
/* The prompt of request number i: equal names give equal tokens. */
void trace_tokens(const struct trace *trace, uint32_t i, int32_t *out);

/* cost.c: seconds on one H200. */
const struct shape *shape_find(const char *name);
double cost_prefill(const struct shape *shape, double fresh, double before);
double cost_decode(const struct shape *shape, double sequences, double tokens_read);
double cost_move(double bytes); /* read and written once */
uint64_t shape_token_bytes(const struct shape *shape);
uint64_t shape_kv_bytes(const struct shape *shape); /* what is left for the cache */

/* place.c: where a cache lives, and what its mappings cost. */
struct place {
    enum policy policy;
    mb_device dev; /* NULL: nothing is mapped */
    mb_stream stream;
    mb_kv kv; /* NULL: POLICY_CONCAT */
    struct mb_kv_shape layout;
    uint64_t batches; /* seen by place_cost() */
    double copy_s;    /* modelled time of copies since place_cost() */
    uint64_t begin_ns;
};
const char *policy_name(enum policy policy);
bool place_open(struct place *place, enum policy policy, const struct shape *shape,
                uint32_t max_tokens, uint32_t max_sequences, uint64_t limit_bytes);
void place_close(struct place *place);
/* The text of this thread's last failure, of the cache or, if it had none, of the device. */
const char *place_why(void);
/* Brackets calls of the cache: seconds until what they asked for is usable. */
void place_begin(struct place *place);
double place_cost(struct place *place);
/* The first `shared` tokens are cached, from a sequence that is gone. */
enum mb_err place_publish(struct place *place, const int32_t *tokens, uint32_t shared);
/* `count` different tokens. Owner: the caller; free(). NULL: no memory. */
int32_t *make_tokens(uint32_t count);

/* The commands; each prints one JSON object per line to `out`. 0, or 1 after a line on stderr. */
int serve(FILE *out, const struct trace *trace, const char *name, const struct shape *shape,
          enum policy policy, double stretch);
int beam(FILE *out, const struct shape *shape, enum policy policy, uint32_t width, uint32_t batch,
         uint64_t seed);
int prefix(FILE *out, const struct shape *shape, enum policy policy, uint32_t tokens, double share);
int longer(FILE *out, const struct shape *shape, enum policy policy, uint32_t tokens);
/* On any backend: how long until an attached prefix is usable. */
int attach(FILE *out, const char *config, uint64_t bytes, unsigned samples);
/* On any backend: what the cache's calls take of the host, for a prefix of so many bytes. */
int host(FILE *out, const char *config, const struct shape *shape, uint64_t bytes, unsigned rounds);
int host_beams(FILE *out, const char *config, const struct shape *shape, unsigned rounds);

#endif
