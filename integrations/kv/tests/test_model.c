/* SPDX-License-Identifier: MIT */
/*
 * Random programs against a naive model of the whole policy: blocks with counted references, a
 * prefix block as a node of its own with its users and the time when the last one let go, found by
 * looking at all of them. After every step the cache must have hit, evicted, published and kept
 * exactly what the model did; so which prefix goes first is compared, not only that one went.
 *
 * The cache runs on a mapper that has a page table and pages of a few bytes: it refuses to map what
 * is mapped, to unmap what is not, and to write where only reading is allowed, and every sequence
 * must read its own tokens through it. tests/test_random.c does that on the software GPU, where a
 * program takes longer.
 *
 * A program is a list of steps made beforehand, each random numbers that are read modulo what is
 * possible then, so any part of a program is a program. One that fails is shrunk and printed.
 */
#include "kv_program.h"
#include "kv_rig.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQS = 8,
    TOKENS = 96,
    PAGE = 64,
    GROUPS = 2,
    BLOCK = 2,   /* tokens */
    BLOCKS = 60, /* the limit */
    PLACES = TOKENS / BLOCK,
    VA_PAGES = (SEQS * PLACES + SEQS) * GROUPS,
    HOLDS = 3,
    NODES = 512,
    STEPS = 120,
    PROGRAMS = 1500,
};

static const struct mb_kv_config config = {.layers = 4,
                                           .kv_heads = 1,
                                           .head_dim = 4,
                                           .element_bytes = 2,
                                           .group_layers = 2,
                                           .max_tokens = TOKENS,
                                           .max_sequences = SEQS,
                                           .limit_bytes = BLOCKS * GROUPS * PAGE};

/* ------------------------------------------------------------------ the mapper */

struct page {
    int32_t tokens[BLOCK];
};

/* What an address shows. */
struct entry {
    struct page *page; /* NULL: nothing */
    bool writable;
};

struct machine {
    struct entry table[VA_PAGES];
    uint64_t next_page;
    unsigned chunks; /* alive */
    unsigned chunk_pages;
    const char *wrong;
};

static struct machine machine;

static void misuse(const char *what)
{
    if (!machine.wrong)
        machine.wrong = what;
}

/* Addresses begin at PAGE, so that none is NULL. */
static struct entry *entry_of(const void *va)
{
    uint64_t number = (uint64_t)(uintptr_t)va / PAGE - 1;

    if ((uintptr_t)va % PAGE || number >= VA_PAGES) {
        misuse("an address that was not reserved");
        number = 0;
    }
    return &machine.table[number];
}

static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    (void)user;
    *va = (void *)(uintptr_t)((machine.next_page + 1) * PAGE);
    machine.next_page += bytes / PAGE;
    if (machine.next_page > VA_PAGES)
        misuse("more addresses than sequences can have");
    return MB_OK;
}

static void unreserve(void *user, void *va, uint64_t bytes)
{
    (void)user;
    for (uint64_t i = 0; i < bytes / PAGE; i++)
        if (entry_of((char *)va + i * PAGE)->page)
            misuse("addresses given up that show something");
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    struct page *pages = calloc(bytes / PAGE, sizeof(*pages));

    (void)user;
    if (!pages)
        return MB_ERR_HOST_MEMORY;
    machine.chunks++;
    *out = (mb_mem)(void *)pages;
    return MB_OK;
}

static void release(void *user, mb_mem mem)
{
    const struct page *pages = (const void *)mem;

    (void)user;
    for (unsigned i = 0; i < VA_PAGES; i++)
        if (machine.table[i].page >= pages && machine.table[i].page < pages + machine.chunk_pages)
            misuse("memory given up that addresses show");
    machine.chunks--;
    free((void *)mem);
}

static void apply(const struct mb_map_op *op, uint64_t i)
{
    struct entry *entry = entry_of((char *)op->va + i * PAGE);

    if (op->kind == MB_MAP && entry->page)
        misuse("a page mapped over another");
    if (op->kind != MB_MAP && !entry->page)
        misuse("an operation on a page that is not mapped");
    if (op->kind == MB_MAP)
        entry->page = (struct page *)(void *)op->mem + op->mem_offset / PAGE + i;
    if (op->kind == MB_UNMAP)
        entry->page = NULL;
    entry->writable = op->prot == MB_PROT_READ_WRITE;
}

static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    (void)user;
    (void)stream;
    for (unsigned o = 0; o < count; o++) {
        if (!ops[o].bytes || ops[o].bytes % PAGE)
            misuse("an operation of no whole page");
        if (ops[o].kind == MB_MAP && ops[o].mem_offset + ops[o].bytes > machine.chunk_pages * PAGE)
            misuse("a mapping beyond its memory");
        for (uint64_t i = 0; i < ops[o].bytes / PAGE; i++)
            apply(&ops[o], i);
    }
    return MB_OK;
}

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    (void)user;
    (void)stream;
    for (unsigned i = 0; i < count; i++) {
        struct entry *to = entry_of(list[i].dst), *from = entry_of(list[i].src);

        if (!to->page || !to->writable || !from->page)
            misuse("a copy between addresses that do not allow it");
        else
            memcpy(to->page->tokens, from->page->tokens,
                   list[i].bytes / (PAGE / BLOCK) * sizeof(int32_t));
    }
    return MB_OK;
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    (void)user;
    (void)from;
    (void)to;
    return MB_OK; /* all is done at once here */
}

static const char *mapper_detail(void *user)
{
    (void)user;
    return "";
}

/* ------------------------------------------------------------------ the model */

struct node {
    int parent; /* -1: none */
    int32_t tokens[BLOCK];
    unsigned block, users;
    uint64_t stamp;
    bool alive;
};

struct text {
    bool alive, asleep;
    mb_kv_seq id;
    uint32_t count, published;
    int32_t tokens[TOKENS];
    unsigned blocks[PLACES];
    int nodes[PLACES];
};

struct hold {
    mb_kv_prefix id; /* 0: none */
    uint32_t blocks;
    int32_t tokens[TOKENS];
    int nodes[PLACES];
};

struct world {
    mb_kv kv;
    struct text seqs[SEQS];
    struct hold holds[HOLDS];
    struct node nodes[NODES];
    unsigned refs[BLOCKS + SEQS], reading[BLOCKS + SEQS]; /* reading: of copies under way */
    uint64_t time, evicted, published;
    char *text; /* TEXT bytes; what went wrong first */
};

static void wrong(struct world *w, const char *what, uint64_t got, uint64_t wanted)
{
    if (!*w->text)
        snprintf(w->text, TEXT, "%s: %" PRIu64 ", the model has %" PRIu64 " (%s)", what, got,
                 wanted, mb_kv_error_detail());
}

static void done(struct world *w, enum mb_err err, const char *what)
{
    if (err)
        wrong(w, what, err, 0);
}

static unsigned model_free(const struct world *w)
{
    unsigned used = 0;

    for (unsigned i = 0; i < BLOCKS + SEQS; i++)
        used += w->refs[i] != 0;
    return BLOCKS - used;
}

static unsigned model_take(struct world *w)
{
    unsigned i = 0;

    while (w->refs[i])
        i++;
    w->refs[i] = 1;
    return i;
}

/* Nodes that nobody uses and that alone hold their block. */
static unsigned model_cached(const struct world *w)
{
    unsigned count = 0;

    for (unsigned i = 0; i < NODES; i++)
        count += w->nodes[i].alive && !w->nodes[i].users && w->refs[w->nodes[i].block] == 1;
    return count;
}

static void model_evict(struct world *w)
{
    int oldest = -1;

    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].alive && !w->nodes[i].users &&
            (oldest < 0 || w->nodes[i].stamp < w->nodes[oldest].stamp))
            oldest = i;
    if (oldest < 0) {
        wrong(w, "the model has nothing to evict", 0, 1);
        return;
    }
    w->nodes[oldest].alive = false;
    w->refs[w->nodes[oldest].block]--;
    w->evicted++;
    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].alive && w->nodes[i].parent == oldest)
            wrong(w, "the model evicted a parent before a child", 0, 0);
}

static void model_room(struct world *w, unsigned count)
{
    while (model_free(w) < count && !*w->text)
        model_evict(w);
}

static void unuse(struct world *w, int node)
{
    if (!--w->nodes[node].users)
        w->nodes[node].stamp = ++w->time;
}

static int find_node(const struct world *w, int parent, const int32_t *tokens)
{
    for (int i = 0; i < NODES; i++)
        if (w->nodes[i].alive && w->nodes[i].parent == parent &&
            memcmp(w->nodes[i].tokens, tokens, sizeof(w->nodes[i].tokens)) == 0)
            return i;
    return -1;
}

static uint32_t blocks_of(uint32_t tokens)
{
    return (tokens + BLOCK - 1) / BLOCK;
}

static void model_cut(struct world *w, struct text *t, uint32_t tokens)
{
    while (t->published > tokens / BLOCK)
        unuse(w, t->nodes[--t->published]);
    for (uint32_t i = blocks_of(t->count); i-- > blocks_of(tokens);)
        w->refs[t->blocks[i]]--;
    t->count = tokens;
}

static uint32_t model_attach(struct world *w, struct text *t, uint32_t count)
{
    int at = -1;

    t->count = t->published = 0;
    while ((t->published + 1) * BLOCK <= count) {
        at = find_node(w, at, t->tokens + t->published * BLOCK);
        if (at < 0)
            break;
        w->nodes[at].users++;
        w->refs[w->nodes[at].block]++;
        t->blocks[t->published] = w->nodes[at].block;
        t->nodes[t->published++] = at;
    }
    return t->count = t->published * BLOCK;
}

static void model_grow(struct world *w, struct text *t, uint32_t count)
{
    uint32_t have = blocks_of(t->count), blocks = blocks_of(t->count + count);

    if (!count)
        return;
    if (t->count % BLOCK) {
        unsigned tail = t->blocks[have - 1];

        if (w->refs[tail] - w->reading[tail] != 1)
            model_room(w, 1);
        if (w->refs[tail] - w->reading[tail] != 1) {
            w->reading[tail]++; /* the sequence's reference becomes that of the copy */
            t->blocks[have - 1] = model_take(w);
        }
    }
    if (blocks > have)
        model_room(w, blocks - have);
    for (; have < blocks; have++)
        t->blocks[have] = model_take(w);
    t->count += count;
}

static void model_grown(struct world *w)
{
    for (unsigned i = 0; i < BLOCKS + SEQS; i++) {
        w->refs[i] -= w->reading[i];
        w->reading[i] = 0;
    }
}

static void model_publish(struct world *w, struct text *t, uint32_t count)
{
    while ((t->published + 1) * BLOCK <= count) {
        const int32_t *tokens = t->tokens + t->published * BLOCK;
        int parent = t->published ? t->nodes[t->published - 1] : -1;
        int node = find_node(w, parent, tokens);

        if (node < 0) {
            for (node = 0; w->nodes[node].alive; node++)
                ;
            w->nodes[node] = (struct node){.parent = parent, .alive = true};
            memcpy(w->nodes[node].tokens, tokens, sizeof(w->nodes[node].tokens));
            w->nodes[node].block = t->blocks[t->published];
            w->refs[w->nodes[node].block]++;
            w->published++;
        }
        w->nodes[node].users++;
        t->nodes[t->published++] = node;
    }
}

static void model_share(struct world *w, const struct text *t)
{
    for (uint32_t i = 0; i < t->published; i++)
        w->nodes[t->nodes[i]].users++;
    for (uint32_t i = 0; i < blocks_of(t->count); i++)
        w->refs[t->blocks[i]]++;
}

/* ------------------------------------------------------------------ both */

static void *place_of(struct world *w, const struct text *t, uint32_t group, uint32_t token)
{
    struct mb_kv_view view = {0};

    done(w, mb_kv_get_view(w->kv, t->id, group * config.group_layers, false, &view), "a view");
    return (char *)view.base + token / BLOCK * PAGE;
}

static void write_tokens(struct world *w, const struct text *t, uint32_t from)
{
    for (uint32_t i = from; i < t->count && !*w->text; i++)
        for (uint32_t g = 0; g < GROUPS; g++) {
            struct entry *entry = entry_of(place_of(w, t, g, i));

            if (!entry->page || !entry->writable)
                wrong(w, "a token's place cannot be written", i, t->count);
            else
                entry->page->tokens[i % BLOCK] = t->tokens[i] * GROUPS + (int32_t)g;
        }
}

/* Every sequence reads its tokens, and two places show one page just if the model says so. */
static void verify(struct world *w)
{
    const struct page *pages[BLOCKS + SEQS] = {0};

    done(w, mb_kv_sync(w->kv, NULL), "sync");
    for (unsigned s = 0; s < SEQS && !*w->text; s++) {
        const struct text *t = &w->seqs[s];

        for (uint32_t i = 0; t->alive && !t->asleep && i < t->count; i++)
            for (uint32_t g = 0; g < GROUPS; g++) {
                const struct entry *entry = entry_of(place_of(w, t, g, i));
                const struct page **page = &pages[t->blocks[i / BLOCK]];

                if (!entry->page)
                    wrong(w, "a token's place shows nothing", i, t->count);
                else if (entry->page->tokens[i % BLOCK] != t->tokens[i] * GROUPS + (int32_t)g)
                    wrong(w, "a token", (uint64_t)entry->page->tokens[i % BLOCK],
                          (uint64_t)t->tokens[i] * GROUPS + g);
                else if (g == 0 && *page && *page != entry->page)
                    wrong(w, "one block at two pages", i, s);
                if (g == 0)
                    *page = entry->page;
            }
    }
    for (unsigned i = 0; i < BLOCKS + SEQS; i++)
        for (unsigned j = 0; j < i; j++)
            if (pages[i] && pages[i] == pages[j])
                wrong(w, "two blocks at one page", i, j);
}

static void compare(struct world *w)
{
    struct mb_kv_stats stats = kv_stats(w->kv);

    if (mb_kv_check(w->kv))
        wrong(w, "mb_kv_check()", 1, 0);
    if (machine.wrong)
        wrong(w, machine.wrong, 1, 0);
    if (stats.evicted_blocks != w->evicted)
        wrong(w, "evicted blocks", stats.evicted_blocks, w->evicted);
    if (stats.published_blocks != w->published)
        wrong(w, "published blocks", stats.published_blocks, w->published);
    if (stats.cached_blocks != model_cached(w))
        wrong(w, "cached blocks", stats.cached_blocks, model_cached(w));
    if (stats.room_blocks != model_free(w) + model_cached(w))
        wrong(w, "room", stats.room_blocks, model_free(w) + model_cached(w));
    if (stats.live_blocks != BLOCKS - model_free(w) - model_cached(w))
        wrong(w, "live blocks", stats.live_blocks, BLOCKS - model_free(w) - model_cached(w));
}

/* Appends to the sequences of `who`, if that is sure to find room. */
static bool grow(struct world *w, const unsigned *who, const uint32_t *counts, unsigned count)
{
    struct mb_kv_grow list[SEQS] = {0};
    uint32_t from[SEQS];
    unsigned most = 0;

    for (unsigned i = 0; i < count; i++) {
        struct text *t = &w->seqs[who[i]];

        list[i] = (struct mb_kv_grow){t->id, counts[i]};
        from[i] = t->count;
        most += counts[i] ? 1 + blocks_of(t->count + counts[i]) - blocks_of(t->count) : 0;
    }
    if (most > model_free(w) + model_cached(w))
        return false;
    for (unsigned i = 0; i < count; i++)
        model_grow(w, &w->seqs[who[i]], counts[i]);
    model_grown(w);
    done(w, mb_kv_append(w->kv, list, count, NULL), "append");
    for (unsigned i = 0; i < count; i++)
        write_tokens(w, &w->seqs[who[i]], from[i]);
    return true;
}

/* Few texts that begin alike and part in several places. */
static int32_t letter(uint32_t text, uint32_t i)
{
    return (int32_t)(i < 8 ? text % 2 : i < 20 ? text % 3 : (text >> (i / 16)) % 3);
}

static void op_open(struct world *w, unsigned s, uint32_t draw)
{
    struct text *t = &w->seqs[s];
    uint32_t count = 1 + draw / 16 % 90, hit = 0, wanted;

    if (t->alive)
        return;
    *t = (struct text){.alive = true};
    for (uint32_t i = 0; i < TOKENS; i++)
        t->tokens[i] = letter(draw % 16, i);
    done(w, mb_kv_seq_open(w->kv, 0, &t->id), "open");
    done(w, mb_kv_attach(w->kv, t->id, t->tokens, count, &hit), "attach");
    wanted = model_attach(w, t, count);
    if (hit != wanted)
        wrong(w, "a hit", hit, wanted);
    count -= hit;
    (void)grow(w, &s, &count, 1);
}

static void op_decode(struct world *w, uint32_t draw, uint32_t most)
{
    uint32_t counts[SEQS];
    unsigned who[SEQS], n = 0;

    for (unsigned s = 0; s < SEQS; s++) {
        struct text *t = &w->seqs[s];

        if (!t->alive || t->asleep || !(draw >> s & 1))
            continue;
        counts[n] = (draw >> (8 + s)) % (most + 1);
        if (counts[n] > TOKENS - t->count)
            counts[n] = TOKENS - t->count;
        for (uint32_t i = t->count; i < TOKENS; i++)
            t->tokens[i] = (int32_t)((draw >> (i + s) % 24) % 2);
        who[n++] = s;
    }
    (void)grow(w, who, counts, n);
}

static void op_fork(struct world *w, struct text *from, struct text *to)
{
    mb_kv_seq id = 0;

    if (!from->alive || from->asleep || to->alive)
        return;
    done(w, mb_kv_fork(w->kv, from->id, &id), "fork");
    model_share(w, from);
    *to = *from;
    to->id = id;
}

static void op_reorder(struct world *w, uint32_t draw)
{
    static struct text before[SEQS];
    mb_kv_seq ids[SEQS] = {0};
    uint32_t from[SEQS] = {0};
    unsigned who[SEQS] = {0}, n = 0;

    memcpy(before, w->seqs, sizeof(before));
    for (unsigned s = 0; s < SEQS; s++)
        if (w->seqs[s].alive && !w->seqs[s].asleep && draw >> s & 1)
            who[n++] = s;
    for (unsigned i = 0; i < n; i++) {
        ids[i] = w->seqs[who[i]].id;
        from[i] = (draw >> (8 + 2 * i)) % n;
    }
    done(w, mb_kv_reorder(w->kv, ids, from, n), "reorder");
    for (unsigned i = 0; i < n; i++)
        model_share(w, &before[who[from[i]]]);
    for (unsigned i = 0; i < n; i++) {
        struct text *t = &w->seqs[who[i]];

        model_cut(w, t, 0);
        *t = before[who[from[i]]];
        t->id = ids[i];
    }
}

static void op_hold(struct world *w, const struct text *t, struct hold *h, uint32_t count)
{
    uint32_t tokens = 0, blocks = count / BLOCK < t->published ? count / BLOCK : t->published;

    if (h->id) {
        done(w, mb_kv_prefix_drop(w->kv, h->id), "drop");
        while (h->blocks)
            unuse(w, h->nodes[--h->blocks]);
        h->id = 0;
        return;
    }
    if (!t->alive || t->asleep || !blocks)
        return;
    done(w, mb_kv_prefix_hold(w->kv, t->id, count, &h->id, &tokens), "hold");
    if (tokens != blocks * BLOCK)
        wrong(w, "a held prefix", tokens, blocks * BLOCK);
    h->blocks = blocks;
    memcpy(h->nodes, t->nodes, sizeof(h->nodes));
    for (uint32_t i = 0; i < blocks; i++) {
        w->nodes[h->nodes[i]].users++;
        memcpy(h->tokens + i * BLOCK, w->nodes[h->nodes[i]].tokens, BLOCK * sizeof(int32_t));
    }
}

static void op_attach_held(struct world *w, struct text *t, const struct hold *h)
{
    uint32_t hit = 0;

    if (t->alive || !h->id)
        return;
    *t = (struct text){.alive = true};
    memcpy(t->tokens, h->tokens, sizeof(t->tokens));
    done(w, mb_kv_seq_open(w->kv, 0, &t->id), "open");
    done(w, mb_kv_prefix_attach(w->kv, t->id, h->id, &hit), "attach of a held prefix");
    if (hit != h->blocks * BLOCK || model_attach(w, t, hit) != hit)
        wrong(w, "a held prefix", hit, h->blocks * BLOCK);
}

static void op_sleep(struct world *w, struct text *t, uint32_t draw)
{
    uint32_t hit = 0, count = draw % (TOKENS + 1), wanted;

    if (!t->asleep) {
        done(w, mb_kv_sleep(w->kv, t->id), "sleep");
        model_cut(w, t, 0);
        t->asleep = true;
        return;
    }
    done(w, mb_kv_wake(w->kv, t->id, t->tokens, count, &hit), "wake");
    t->asleep = false;
    wanted = model_attach(w, t, count);
    if (hit != wanted)
        wrong(w, "a hit of wake", hit, wanted);
}

static void op_close(struct world *w, struct text *t)
{
    done(w, mb_kv_seq_close(w->kv, t->id), "close");
    model_cut(w, t, 0);
    t->alive = false;
}

static void op_trim(struct world *w)
{
    bool more = true;

    done(w, mb_kv_trim(w->kv, NULL), "trim");
    while (more) {
        more = false;
        for (unsigned i = 0; i < NODES; i++)
            more |= w->nodes[i].alive && !w->nodes[i].users;
        if (more)
            model_evict(w);
    }
}

static void op_one(struct world *w, struct text *t, const struct step *s)
{
    uint32_t count = s->b % (t->count + 1);

    if (!t->alive)
        return;
    if (t->asleep || s->kind % 16 == 11) {
        op_sleep(w, t, s->b);
        return;
    }
    if (s->kind % 16 == 12) {
        done(w, mb_kv_truncate(w->kv, t->id, count), "truncate");
        model_cut(w, t, count);
        return;
    }
    if (s->c % 3)
        count = t->count;
    done(w, mb_kv_publish(w->kv, t->id, t->tokens, count), "publish");
    model_publish(w, t, count);
    if (s->c % 4 == 0)
        op_close(w, t);
}

static void take(struct world *w, const struct step *s)
{
    struct text *one = &w->seqs[s->a % SEQS], *other = &w->seqs[s->b % SEQS];

    switch (s->kind % 16) {
    case 0:
    case 1:
    case 2:
        op_open(w, s->a % SEQS, s->b);
        return;
    case 3:
    case 4:
        op_decode(w, s->b, s->c % 8);
        return;
    case 5:
        op_fork(w, one, other);
        return;
    case 6:
        op_reorder(w, s->b);
        return;
    case 7:
        op_hold(w, one, &w->holds[s->b % HOLDS], s->c % (one->count + 1));
        return;
    case 8:
        op_attach_held(w, one, &w->holds[s->b % HOLDS]);
        return;
    case 9:
        if (one->alive)
            op_close(w, one);
        return;
    case 10:
        if (s->b % 8 == 0)
            op_trim(w);
        else
            verify(w);
        return;
    default:
        op_one(w, one, s);
    }
}

/* Runs a program; `text` tells what was wrong, or is empty. Returns the blocks evicted. Chunks of 5
 * blocks cut runs short; with one for all, runs get long. */
static uint64_t run(const struct step *steps, unsigned count, uint64_t chunk, char *text)
{
    struct mb_kv_config chunked = config;
    struct mb_kv_mapper mapper = {NULL, PAGE, reserve, unreserve,     create, release,
                                  map,  copy, order,   mapper_detail, NULL};
    static struct world w;

    memset(&w, 0, sizeof(w));
    memset(&machine, 0, sizeof(machine));
    *text = 0;
    w.text = text;
    chunked.chunk_blocks = (uint32_t)chunk;
    machine.chunk_pages = chunked.chunk_blocks * GROUPS;
    KV_OK(mb_kv_open_on(&mapper, &chunked, &w.kv));
    for (unsigned i = 0; i < count && !*text; i++) {
        take(&w, &steps[i]);
        compare(&w);
        if (*text)
            snprintf(text + strlen(text), TEXT - strlen(text), ", step %u", i);
    }
    if (!*text)
        verify(&w);
    if (mb_kv_close(w.kv) || machine.chunks)
        wrong(&w, "chunks after closing", machine.chunks, 0);
    return w.evicted;
}

TEST(the_cache_decides_as_a_naive_model_does)
{
    uint64_t state = mb_test_seed(), evicted = 0;
    struct step steps[STEPS];
    char text[TEXT];
    unsigned count;

    for (unsigned p = 0; p < PROGRAMS; p++) {
        draw_steps(steps, STEPS, &state);
        evicted += run(steps, STEPS, p % 2 ? BLOCKS : 5, text);
        if (!*text)
            continue;
        count = shrink(run, steps, STEPS, p % 2 ? BLOCKS : 5, text);
        FAIL("program %u, %u steps: %s", p, count, text);
    }
    /* Programs are to meet a full cache too. */
    CHECK(evicted > PROGRAMS);
    printf("  %d programs, %" PRIu64 " blocks evicted\n", PROGRAMS, evicted);
}
