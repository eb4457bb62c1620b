/* SPDX-License-Identifier: MIT */
/*
 * Random programs against a model that knows of each sequence only its tokens. Every sequence must
 * read exactly what follows from its tokens, through the software GPU's translation, whatever was
 * shared, copied, evicted, slept and refused meanwhile; and the cache's own counts must hold.
 *
 * A program is a list of steps made beforehand, each three random numbers that are read modulo what
 * is possible then, so any part of a program is a program. One that fails is shrunk and printed.
 */
#include "kv_program.h"
#include "kv_rig.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQS = 12,
    TOKENS = 160,
    STEPS = 140,
    PROGRAMS = 200,
    HOLDS = 4,
};

struct world {
    mb_device dev;
    mb_kv kv;
    mb_stream streams[2], stream;
    struct {
        mb_kv_seq id; /* 0: none */
        bool asleep;
        uint32_t count;
        int32_t tokens[TOKENS];
    } seqs[SEQS];
    mb_kv_prefix holds[HOLDS];
    int32_t held[HOLDS][TOKENS];
    uint32_t held_count[HOLDS];
    uint64_t refused;
    char *text; /* TEXT bytes; what went wrong first */
};

static void wrong(struct world *w, const char *what)
{
    if (!*w->text)
        snprintf(w->text, TEXT, "%s: %s", what, mb_kv_error_detail());
}

/* `err` must be MB_OK or, if allowed, no memory. True: it was done. */
static bool done(struct world *w, enum mb_err err, const char *what)
{
    if (err == MB_ERR_NO_MEMORY) {
        w->refused++;
        return false;
    }
    if (err)
        wrong(w, what);
    return !err;
}

/* Two letters in few texts, so that prompts often begin alike. */
static int32_t letter(uint32_t text, uint32_t i)
{
    return (int32_t)(i < 32 ? text % 2 : (text >> (i / 32 % 4)) % 3);
}

static void op_open(struct world *w, uint32_t i, uint32_t text)
{
    uint32_t hit = 0, count = 16 + text % 100;
    int32_t *tokens = w->seqs[i].tokens;
    struct mb_kv_grow grow;

    if (w->seqs[i].id || mb_kv_seq_open(w->kv, 0, &w->seqs[i].id))
        return;
    for (uint32_t t = 0; t < count; t++)
        tokens[t] = letter(text, t);
    w->seqs[i].asleep = false;
    w->seqs[i].count = 0;
    if (!done(w, mb_kv_attach(w->kv, w->seqs[i].id, tokens, count, &hit), "attach"))
        return;
    w->seqs[i].count = hit;
    grow = (struct mb_kv_grow){w->seqs[i].id, count - hit};
    if (!done(w, mb_kv_append(w->kv, &grow, 1, w->stream), "prefill"))
        return;
    kv_write(w->dev, w->kv, w->seqs[i].id, tokens, hit, count, w->stream);
    w->seqs[i].count = count;
}

static void op_decode(struct world *w, uint32_t token, uint32_t most)
{
    struct mb_kv_grow grow[SEQS];
    unsigned who[SEQS], n = 0;

    for (unsigned i = 0; i < SEQS; i++)
        if (w->seqs[i].id && !w->seqs[i].asleep) {
            uint32_t count = (token >> i) % (most + 1);

            if (count > TOKENS - w->seqs[i].count)
                count = TOKENS - w->seqs[i].count;
            grow[n] = (struct mb_kv_grow){w->seqs[i].id, count};
            who[n++] = i;
        }
    if (!done(w, mb_kv_append(w->kv, grow, n, w->stream), "append"))
        return;
    for (unsigned k = 0; k < n; k++) {
        uint32_t from = w->seqs[who[k]].count, to = from + grow[k].tokens;

        for (uint32_t t = from; t < to; t++)
            w->seqs[who[k]].tokens[t] = (int32_t)((token >> k) % 3);
        kv_write(w->dev, w->kv, grow[k].seq, w->seqs[who[k]].tokens, from, to, w->stream);
        w->seqs[who[k]].count = to;
    }
}

static void op_fork(struct world *w, uint32_t from, uint32_t to)
{
    if (!w->seqs[from].id || w->seqs[from].asleep || w->seqs[to].id)
        return;
    if (!done(w, mb_kv_fork(w->kv, w->seqs[from].id, &w->seqs[to].id), "fork"))
        return;
    w->seqs[to].asleep = false;
    w->seqs[to].count = w->seqs[from].count;
    memcpy(w->seqs[to].tokens, w->seqs[from].tokens, sizeof(w->seqs[to].tokens));
}

static void op_reorder(struct world *w, uint32_t draw)
{
    static int32_t tokens[SEQS][TOKENS];
    uint32_t from[SEQS], counts[SEQS];
    mb_kv_seq ids[SEQS] = {0};
    unsigned who[SEQS] = {0}, n = 0;

    for (unsigned i = 0; i < SEQS; i++)
        if (w->seqs[i].id && !w->seqs[i].asleep && draw >> (i + 8) & 1)
            who[n++] = i;
    for (unsigned k = 0; k < n; k++) {
        ids[k] = w->seqs[who[k]].id;
        from[k] = (draw >> k * 2) % n;
        counts[k] = w->seqs[who[from[k]]].count;
        memcpy(tokens[k], w->seqs[who[from[k]]].tokens, sizeof(tokens[k]));
    }
    if (!done(w, mb_kv_reorder(w->kv, ids, from, n), "reorder"))
        return;
    for (unsigned k = 0; k < n; k++) {
        w->seqs[who[k]].count = counts[k];
        memcpy(w->seqs[who[k]].tokens, tokens[k], sizeof(tokens[k]));
    }
}

static void op_one(struct world *w, unsigned kind, uint32_t i, uint32_t draw)
{
    mb_kv_seq id = w->seqs[i].id;
    uint32_t hit = 0, *count = &w->seqs[i].count, h = draw % HOLDS;

    if (!id)
        return;
    if (w->seqs[i].asleep && kind != 4)
        kind = 3;
    switch (kind) {
    case 0:
        (void)done(w, mb_kv_publish(w->kv, id, w->seqs[i].tokens, draw % (*count + 1)), "publish");
        return;
    case 1:
        *count = draw % (*count + 1);
        (void)done(w, mb_kv_truncate(w->kv, id, *count), "truncate");
        return;
    case 2:
        w->seqs[i].asleep = done(w, mb_kv_sleep(w->kv, id), "sleep");
        return;
    case 3:
        if (w->seqs[i].asleep &&
            done(w, mb_kv_wake(w->kv, id, w->seqs[i].tokens, *count, &hit), "wake")) {
            w->seqs[i].asleep = false;
            *count = hit;
        }
        return;
    case 4:
        (void)done(w, mb_kv_seq_close(w->kv, id), "close");
        w->seqs[i].id = 0;
        return;
    default:
        if (w->holds[h]) {
            (void)done(w, mb_kv_prefix_drop(w->kv, w->holds[h]), "drop");
            w->holds[h] = 0;
        } else if (!mb_kv_prefix_hold(w->kv, id, *count, &w->holds[h], &hit)) {
            w->held_count[h] = hit;
            memcpy(w->held[h], w->seqs[i].tokens, sizeof(w->held[h]));
        }
    }
}

static void op_attach_held(struct world *w, uint32_t i, uint32_t h)
{
    uint32_t hit = 0;

    if (!w->holds[h] || w->seqs[i].id || mb_kv_seq_open(w->kv, 0, &w->seqs[i].id))
        return;
    w->seqs[i].asleep = false;
    w->seqs[i].count = 0;
    if (!done(w, mb_kv_prefix_attach(w->kv, w->seqs[i].id, w->holds[h], &hit), "attach held"))
        return;
    if (hit != w->held_count[h])
        wrong(w, "a held prefix lost tokens");
    w->seqs[i].count = hit;
    memcpy(w->seqs[i].tokens, w->held[h], sizeof(w->held[h]));
}

static void verify_all(struct world *w)
{
    struct mb_kv_stats stats;
    struct mb_stats dev;

    if (!done(w, mb_kv_sync(w->kv, w->stream), "sync"))
        return;
    for (unsigned i = 0; i < SEQS; i++)
        if (w->seqs[i].id && !w->seqs[i].asleep)
            kv_verify(w->dev, w->kv, w->seqs[i].id, w->seqs[i].tokens, w->seqs[i].count, w->stream);
    if (mb_device_sync(w->dev))
        wrong(w, mb_error_detail());
    dev = rt_stats(w->dev);
    if (dev.wrong_words || dev.wrong_accesses || dev.faults)
        wrong(w, "wrong contents");
    if (mb_kv_check(w->kv) || mb_check(w->dev))
        wrong(w, "check");
    stats = kv_stats(w->kv);
    if (stats.held_blocks != stats.live_blocks + stats.cached_blocks + stats.free_blocks)
        wrong(w, "held is not live + cached + free");
}

static void take(struct world *w, const struct step *s)
{
    uint32_t i = s->a % SEQS, j = s->b % SEQS;

    switch (s->kind % 16) {
    case 0:
    case 1:
    case 2:
        op_open(w, i, s->b % 24);
        return;
    case 3:
    case 4:
    case 5:
        op_decode(w, s->b, s->c % 24);
        return;
    case 6:
    case 7:
        op_fork(w, i, j);
        return;
    case 8:
    case 9:
        op_reorder(w, s->b);
        return;
    case 10:
        w->stream = w->streams[s->b % 2];
        return;
    case 11:
        op_attach_held(w, i, s->b % HOLDS);
        return;
    case 12:
        if (s->b % 4 == 0)
            (void)done(w, mb_kv_trim(w->kv, w->stream), "trim");
        else
            verify_all(w);
        return;
    case 13:
        op_one(w, 0, i, UINT32_MAX - s->b % 3);
        return;
    default:
        op_one(w, s->c % 6, i, s->b);
    }
}

/* Runs a program; `text` tells what was wrong, or is empty. */
static uint64_t run(const struct step *steps, unsigned count, uint64_t seed, char *text)
{
    static struct world w;
    char config[128];
    uint64_t refused;

    memset(&w, 0, sizeof(w));
    *text = 0;
    w.text = text;
    snprintf(config, sizeof(config), "backend:sim,device_memory:%s,policy:%s,explore:%s,seed:%u",
             seed % 5 ? "1g" : "128m", seed % 2 ? "inline" : "fresh", seed % 3 ? "no" : "yes",
             (unsigned)(seed % 1000));
    w.dev = rt_open(config);
    w.streams[0] = rt_stream(w.dev);
    w.streams[1] = rt_stream(w.dev);
    w.stream = w.streams[0];
    KV_OK(mb_kv_open(w.dev, &kv_small, &w.kv));
    for (unsigned i = 0; i < count && !*text; i++)
        take(&w, &steps[i]);
    if (!*text)
        verify_all(&w);
    if (mb_kv_close(w.kv))
        wrong(&w, "closing");
    refused = w.refused;
    if (!*text && rt_stats(w.dev).allocated_bytes)
        wrong(&w, "pages are left");
    mb_close(w.dev);
    return refused;
}

TEST(every_sequence_reads_its_own_history)
{
    uint64_t state = mb_test_seed(), refused = 0;
    struct step steps[STEPS];
    char text[TEXT];
    unsigned count;

    for (unsigned p = 0; p < PROGRAMS; p++) {
        uint64_t seed = mb_test_random(&state);

        draw_steps(steps, STEPS, &state);
        refused += run(steps, STEPS, seed, text);
        if (!*text)
            continue;
        count = shrink(run, steps, STEPS, seed, text);
        FAIL("program %u, seed %" PRIu64 ", %u steps: %s", p, seed, count, text);
    }
    /* Programs are to meet a full cache too. */
    CHECK(refused > 0);
}
