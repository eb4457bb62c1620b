/* SPDX-License-Identifier: MIT */
/*
 * serve.c - replays a trace of requests with continuous batching.
 *
 * Scheduling, as vLLM does it by default: first come, first served; a waiting request is admitted
 * when its prompt finds room and its prompt is computed at once, alone; otherwise one token of all
 * running sequences is. When a step finds no room the request admitted last is put to sleep and
 * goes to the head of the queue, to be computed again. Prompts and outputs are published, unused
 * prefixes are evicted least recently used first. Mapping is waited for before computing, except
 * that the driver's calls for the next token run beside the step before, as vAttention does it.
 */
#include "sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RUNNING_MAX = 256,
    STATS_EVERY = 64, /* steps between looks at the cache's counts */
};

struct job {
    uint32_t request, made; /* made: tokens generated */
    uint32_t tokens;        /* in the cache */
    mb_kv_seq seq;          /* 0: none yet */
    int32_t *text;          /* prompt and output */
    double first_s;         /* time of the first token; 0: none */
};

struct server {
    const struct trace *trace;
    const struct shape *shape;
    struct place place;
    struct job *jobs;     /* one per request */
    uint32_t *queue;      /* requests put to sleep; the last is next */
    uint32_t slept, next; /* next: of the trace */
    uint32_t running[RUNNING_MAX], count;
    double now_s, stretch, last_compute_s;
    double map_s, compute_s, move_s;
    double used_s, needed_s; /* integrals over time: blocks in use, blocks' worth of tokens */
    double *ttft, *tpot;
    uint32_t ttft_count, tpot_count, preemptions, refused;
    uint64_t steps, peak_running, live_blocks;
    uint64_t concat_bytes, limit_bytes; /* POLICY_CONCAT */
    uint64_t hit, looked_up;
    bool failed;
};

static const struct request *request_of(const struct server *s, const struct job *job)
{
    return &s->trace->requests[job->request];
}

/* ------------------------------------------------------------------ memory over time */

static void pass(struct server *s, double seconds)
{
    double live = 0, waste = 0, block = s->place.kv ? s->place.layout.block_tokens : 1;

    s->now_s += seconds;
    for (uint32_t i = 0; i < s->count; i++) {
        double tokens = s->jobs[s->running[i]].tokens;

        live += tokens;
        waste += ceil(tokens / block) * block - tokens;
    }
    if (s->place.kv) {
        if (s->steps % STATS_EVERY == 0) {
            struct mb_kv_stats stats;

            if (!mb_kv_get_stats(s->place.kv, &stats))
                s->live_blocks = stats.live_blocks;
        }
        live = (double)s->live_blocks * block;
    }
    s->used_s += live * seconds;
    s->needed_s += (live > waste ? live - waste : 0) * seconds;
    s->steps++;
}

/* ------------------------------------------------------------------ admission */

/* Tokens whose keys and values must be there before the next one can be made. */
static uint32_t context_of(const struct server *s, const struct job *job)
{
    return request_of(s, job)->in + job->made;
}

static enum mb_err admit_kv(struct server *s, struct job *job, uint32_t *hit)
{
    uint32_t context = context_of(s, job);
    struct mb_kv_grow grow;
    enum mb_err err;

    if (job->seq) {
        err = mb_kv_wake(s->place.kv, job->seq, job->text, context - 1, hit);
    } else {
        err = mb_kv_seq_open(s->place.kv, 0, &job->seq);
        if (!err)
            err = mb_kv_attach(s->place.kv, job->seq, job->text, context - 1, hit);
    }
    grow = (struct mb_kv_grow){job->seq, context - *hit};
    if (!err)
        err = mb_kv_append(s->place.kv, &grow, 1, s->place.stream);
    if (err && job->seq) {
        (void)mb_kv_seq_close(s->place.kv, job->seq);
        job->seq = 0;
    }
    return err;
}

static enum mb_err admit_concat(struct server *s, const struct job *job)
{
    uint64_t all = (uint64_t)(context_of(s, job) + request_of(s, job)->out - job->made);
    uint64_t bytes = all * shape_token_bytes(s->shape);

    /* It cannot preempt, so a request is let in when its end will fit too. */
    if (s->concat_bytes + bytes > s->limit_bytes)
        return MB_ERR_NO_MEMORY;
    s->concat_bytes += bytes;
    return MB_OK;
}

static void finish(struct server *s, uint32_t at)
{
    struct job *job = &s->jobs[s->running[at]];
    const struct request *r = request_of(s, job);

    if (r->out > 1)
        s->tpot[s->tpot_count++] = (s->now_s - job->first_s) / (r->out - 1);
    if (job->seq) {
        (void)mb_kv_publish(s->place.kv, job->seq, job->text, job->tokens);
        (void)mb_kv_seq_close(s->place.kv, job->seq);
    } else {
        s->concat_bytes -= (uint64_t)(r->in + r->out) * shape_token_bytes(s->shape);
    }
    free(job->text);
    job->text = NULL;
    s->running[at] = s->running[--s->count];
}

static int32_t output_token(const struct job *job, uint32_t i)
{
    return -(int32_t)((job->request * 4096u + i) & INT32_MAX) - 1;
}

static bool give_text(struct server *s, struct job *job)
{
    const struct request *r = request_of(s, job);

    if (job->text)
        return true;
    job->text = malloc((r->in + r->out + 1) * sizeof(*job->text));
    if (job->text)
        trace_tokens(s->trace, job->request, job->text);
    return job->text != NULL;
}

/* Computes the prompt of a request and its first token. False: it has to wait. */
static bool admit(struct server *s, uint32_t number)
{
    struct job *job = &s->jobs[number];
    double map_s, compute_s;
    uint32_t hit = 0, context = context_of(s, job);
    enum mb_err err;

    if (s->count == RUNNING_MAX || !give_text(s, job))
        return false;
    place_begin(&s->place);
    err = s->place.kv ? admit_kv(s, job, &hit) : admit_concat(s, job);
    if (err && err != MB_ERR_NO_MEMORY) {
        fprintf(stderr, "moonbright-kv: admission: %s\n", mb_kv_error_detail());
        s->failed = true;
    }
    if (err)
        return false;
    map_s = s->place.kv ? place_cost(&s->place) : 0;
    compute_s = cost_prefill(s->shape, context - hit, hit);
    s->map_s += map_s;
    s->compute_s += compute_s;
    s->last_compute_s = compute_s;
    s->hit += hit;
    s->looked_up += context;
    job->tokens = context;
    if (s->place.kv)
        (void)mb_kv_publish(s->place.kv, job->seq, job->text, context);
    s->running[s->count++] = number;
    if (s->count > s->peak_running)
        s->peak_running = s->count;
    pass(s, map_s + compute_s);
    if (!job->made) {
        job->first_s = s->now_s;
        s->ttft[s->ttft_count++] = s->now_s - request_of(s, job)->arrival_s * s->stretch;
    }
    job->text[context] = output_token(job, job->made);
    if (++job->made >= request_of(s, job)->out)
        finish(s, s->count - 1);
    return true;
}

/* ------------------------------------------------------------------ a decoder's step */

static void preempt(struct server *s)
{
    uint32_t number = s->running[--s->count];

    (void)mb_kv_sleep(s->place.kv, s->jobs[number].seq);
    s->jobs[number].tokens = 0;
    s->queue[s->slept++] = number;
    s->preemptions++;
}

static bool step_kv(struct server *s, double *map_s)
{
    struct mb_kv_grow grow[RUNNING_MAX];
    enum mb_err err;

    place_begin(&s->place);
    do {
        for (uint32_t i = 0; i < s->count; i++)
            grow[i] = (struct mb_kv_grow){s->jobs[s->running[i]].seq, 1};
        err = mb_kv_append(s->place.kv, grow, s->count, s->place.stream);
        if (err == MB_ERR_NO_MEMORY && s->count > 1)
            preempt(s);
        else if (err)
            return false;
    } while (err);
    *map_s = place_cost(&s->place);
    if (s->place.policy == POLICY_VMM)
        *map_s = *map_s > s->last_compute_s ? *map_s - s->last_compute_s : 0;
    return true;
}

static bool step(struct server *s)
{
    double map_s = 0, move_s = 0, compute_s, read = 0;

    if (s->place.kv && !step_kv(s, &map_s)) {
        fprintf(stderr, "moonbright-kv: a step failed: %s\n", mb_kv_error_detail());
        return false;
    }
    for (uint32_t i = 0; i < s->count; i++)
        read += ++s->jobs[s->running[i]].tokens;
    compute_s = cost_decode(s->shape, s->count, read);
    if (!s->place.kv)
        move_s = cost_move(read * (double)shape_token_bytes(s->shape));
    s->map_s += map_s;
    s->move_s += move_s;
    s->compute_s += compute_s;
    s->last_compute_s = compute_s;
    pass(s, map_s + move_s + compute_s);
    for (uint32_t i = s->count; i-- > 0;) {
        struct job *job = &s->jobs[s->running[i]];

        job->text[job->tokens] = output_token(job, job->made);
        if (++job->made >= request_of(s, job)->out)
            finish(s, i);
    }
    return true;
}

static bool run(struct server *s)
{
    while (!s->failed && (s->count || s->slept || s->next < s->trace->count)) {
        double due = s->next < s->trace->count ? s->trace->requests[s->next].arrival_s * s->stretch
                                               : INFINITY;

        if (s->slept && admit(s, s->queue[s->slept - 1])) {
            s->slept--;
            continue;
        }
        if (!s->slept && due <= s->now_s) {
            if (admit(s, s->next)) {
                s->next++;
                continue;
            }
            if (!s->count) { /* alone it does not fit either */
                free(s->jobs[s->next].text);
                s->jobs[s->next++].text = NULL;
                s->refused++;
                continue;
            }
        }
        if (!s->count && s->slept) {
            fprintf(stderr, "moonbright-kv: a request does not fit alone any more\n");
            return false;
        }
        if (!s->count)
            s->now_s = due;
        else if (!step(s))
            return false;
    }
    return !s->failed;
}

/* ------------------------------------------------------------------ results */

static double percentile(double *values, uint32_t count, double p)
{
    if (!count)
        return 0;
    qsort(values, count, sizeof(*values), by_value);
    return values[(uint32_t)((count - 1) * p)];
}

/* 0 of nothing: a server that refused every request did no work. */
static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void report(FILE *out, struct server *s, const char *name)
{
    double busy_s = s->map_s + s->compute_s + s->move_s;
    struct mb_kv_stats stats = {0};

    if (s->place.kv)
        (void)mb_kv_get_stats(s->place.kv, &stats);
    fprintf(out,
            "{\"what\":\"serve\",\"figures\":\"model\",\"trace\":\"%s\",\"model\":\"%s\","
            "\"gpus\":%u,\"cache\":\"%s\",\"stretch\":%g,\"requests\":%u,\"refused\":%u,"
            "\"seconds\":%.1f,\"busy\":%.4f,\"ttft_p50_ms\":%.2f,\"ttft_p99_ms\":%.2f,"
            "\"tpot_p50_ms\":%.3f,\"tpot_p99_ms\":%.3f,",
            name, s->shape->name, s->shape->gpus, policy_name(s->place.policy), s->stretch,
            s->trace->count, s->refused, s->now_s, share(busy_s, s->now_s),
            1e3 * percentile(s->ttft, s->ttft_count, 0.5),
            1e3 * percentile(s->ttft, s->ttft_count, 0.99),
            1e3 * percentile(s->tpot, s->tpot_count, 0.5),
            1e3 * percentile(s->tpot, s->tpot_count, 0.99));
    fprintf(out,
            "\"hit_share\":%.4f,\"memory_efficiency\":%.4f,\"mapping_share\":%.6f,"
            "\"moving_share\":%.4f,\"preemptions\":%u,\"peak_running\":%" PRIu64
            ",\"batches\":%" PRIu64 ",\"operations\":%" PRIu64 ",\"mapped_pages\":%" PRIu64
            ",\"evicted_blocks\":%" PRIu64 ",\"block_tokens\":%u}\n",
            share((double)s->hit, (double)s->looked_up), share(s->needed_s, s->used_s),
            share(s->map_s, busy_s), share(s->move_s, busy_s), s->preemptions, s->peak_running,
            stats.batches, stats.ops, stats.mapped_pages, stats.evicted_blocks,
            s->place.layout.block_tokens);
    fflush(out);
}

int serve(FILE *out, const struct trace *trace, const char *name, const struct shape *shape,
          enum policy policy, double stretch)
{
    struct server *s = calloc(1, sizeof(*s));
    uint32_t longest = 0;
    int status = 1;

    if (!s)
        return 1;
    for (uint32_t i = 0; i < trace->count; i++) {
        uint32_t all = trace->requests[i].in + trace->requests[i].out;

        longest = all > longest ? all : longest;
    }
    s->trace = trace;
    s->shape = shape;
    s->stretch = stretch;
    s->limit_bytes = shape_kv_bytes(shape);
    s->jobs = calloc(trace->count + 1, sizeof(*s->jobs));
    s->queue = calloc(trace->count + 1, sizeof(*s->queue));
    s->ttft = calloc(trace->count + 1, sizeof(*s->ttft));
    s->tpot = calloc(trace->count + 1, sizeof(*s->tpot));
    if (s->jobs && s->queue && s->ttft && s->tpot &&
        place_open(&s->place, policy, shape, longest + 1, RUNNING_MAX, s->limit_bytes)) {
        for (uint32_t i = 0; i < trace->count; i++)
            s->jobs[i].request = i;
        if (run(s)) {
            report(out, s, name);
            status = 0;
        }
        for (uint32_t i = 0; i < trace->count; i++)
            free(s->jobs[i].text);
        place_close(&s->place);
    }
    free(s->jobs);
    free(s->queue);
    free(s->ttft);
    free(s->tpot);
    free(s);
    return status;
}
