/* SPDX-License-Identifier: MIT */
/*
 * Random programs in which calls fail in the middle, on layouts of every kind. Before a step a use
 * of a mapper's call, or an allocation of host memory, is chosen that will fail; refused copies
 * have been made in part. Whatever fails must name its reason and leave every sequence what it was,
 * and the program goes on.
 *
 * As in test_model.c the mapper is a page table of its own. It refuses what no device would do, and
 * what is not ordered behind the work before it. Contents are bytes of real pages here, and follow
 * from a sequence's tokens: every sequence must read its own.
 */
#include "kv_program.h"
#include "kv_rig.h"
#include "support/alloc_faults.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEQS = 7,
    TOKENS = 40,
    HOLDS = 3,
    STEPS = 100,
    PROGRAMS = 3000,
    STREAMS = 3,
    PAGES_MAX = 1 << 13, /* of addresses */
};

/* ------------------------------------------------------------------ the mapper */

enum fault {
    FAIL_RESERVE,
    FAIL_CREATE,
    FAIL_MAP,
    FAIL_COPY,
    FAIL_ORDER,
    FAULTS,
    FAIL_ALLOCATION = FAULTS,
};

struct entry {
    char *page; /* NULL: nothing */
    bool writable;
};

static struct {
    struct entry table[PAGES_MAX];
    uint64_t page, next, chunk_bytes, reserved;
    unsigned chunks;
    bool begun, last[STREAMS]; /* streams that come after all that was done */
    enum fault which;
    unsigned left; /* uses of `which` until it fails; 0: none does */
    enum mb_err err;
    bool failed;
    const char *wrong;
} machine;

static void misuse(const char *what)
{
    if (!machine.wrong)
        machine.wrong = what;
}

static bool to_fail(enum fault which)
{
    bool now = machine.which == which && machine.left && !--machine.left;

    machine.failed |= now;
    return now;
}

static struct entry *entry_of(const void *va)
{
    uint64_t number = (uint64_t)(uintptr_t)va / machine.page - 1;

    if ((uintptr_t)va % machine.page || number >= machine.next) {
        misuse("an address that was not reserved");
        number = 0;
    }
    return &machine.table[number];
}

static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    (void)user;
    if (to_fail(FAIL_RESERVE))
        return machine.err;
    if (bytes % machine.page || machine.next + bytes / machine.page > PAGES_MAX) {
        misuse("more addresses than sequences can have");
        return MB_ERR_NO_ADDRESS;
    }
    *va = (void *)(uintptr_t)((machine.next + 1) * machine.page);
    machine.next += bytes / machine.page;
    machine.reserved += bytes;
    return MB_OK;
}

static void unreserve(void *user, void *va, uint64_t bytes)
{
    (void)user;
    for (uint64_t i = 0; i < bytes / machine.page; i++)
        if (entry_of((char *)va + i * machine.page)->page)
            misuse("addresses given up that show something");
    machine.reserved -= bytes;
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    (void)user;
    if (to_fail(FAIL_CREATE))
        return machine.err;
    *out = (mb_mem)__real_calloc(1, bytes);
    machine.chunk_bytes = bytes;
    machine.chunks++;
    return *out ? MB_OK : MB_ERR_HOST_MEMORY;
}

static void release(void *user, mb_mem mem)
{
    const char *from = (const char *)mem;

    (void)user;
    for (unsigned i = 0; i < machine.next; i++)
        if (machine.table[i].page >= from && machine.table[i].page < from + machine.chunk_bytes)
            misuse("memory given up that addresses show");
    machine.chunks--;
    free((void *)mem);
}

/* Work on a stream: it must come after all work before, and is now the last. */
static void work_on(mb_stream stream)
{
    uintptr_t s = (uintptr_t)stream;

    if (machine.begun && !machine.last[s])
        misuse("work that is not ordered behind the work before it");
    memset(machine.last, 0, sizeof(machine.last));
    machine.begun = machine.last[s] = true;
}

static void apply(const struct mb_map_op *op, uint64_t at)
{
    struct entry *entry = entry_of((char *)op->va + at);

    if (op->kind == MB_MAP && entry->page)
        misuse("a page mapped over another");
    if (op->kind != MB_MAP && !entry->page)
        misuse("an operation on a page that is not mapped");
    if (op->kind == MB_MAP)
        entry->page = (char *)op->mem + op->mem_offset + at;
    if (op->kind == MB_UNMAP)
        entry->page = NULL;
    entry->writable = op->prot == MB_PROT_READ_WRITE;
}

static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    (void)user;
    if (to_fail(FAIL_MAP))
        return machine.err;
    work_on(stream);
    for (unsigned o = 0; o < count; o++) {
        if (!ops[o].bytes || ops[o].bytes % machine.page)
            misuse("an operation of no whole page");
        if (ops[o].kind == MB_MAP && ops[o].mem_offset + ops[o].bytes > machine.chunk_bytes)
            misuse("a mapping beyond its memory");
        for (uint64_t at = 0; at < ops[o].bytes; at += machine.page)
            apply(&ops[o], at);
    }
    return MB_OK;
}

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    bool fail = to_fail(FAIL_COPY);
    unsigned made = fail ? count / 2 : count;

    (void)user;
    work_on(stream);
    for (unsigned i = 0; i < made; i++) {
        const struct entry *to = entry_of(list[i].dst), *from = entry_of(list[i].src);

        if (!to->page || !to->writable || !from->page || list[i].bytes >= machine.page)
            misuse("a copy between addresses that do not allow it");
        else
            memcpy(to->page, from->page, list[i].bytes);
    }
    return fail ? machine.err : MB_OK;
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    (void)user;
    if (to_fail(FAIL_ORDER))
        return machine.err;
    if (machine.begun && !machine.last[(uintptr_t)from])
        misuse("ordered behind a stream that does not have the last work");
    machine.last[(uintptr_t)to] = true;
    return MB_OK;
}

static const char *mapper_detail(void *user)
{
    (void)user;
    return "made to fail";
}

/* ------------------------------------------------------------------ the model */

struct text {
    mb_kv_seq id; /* 0: none */
    bool asleep;
    uint32_t count;
    int32_t tokens[TOKENS];
};

struct world {
    mb_kv kv;
    struct mb_kv_shape shape;
    struct mb_kv_config config;
    mb_stream stream;
    struct text seqs[SEQS];
    mb_kv_seq dead;
    mb_kv_prefix holds[HOLDS];
    struct text held[HOLDS];
    uint64_t failures;
    bool exact; /* no call was made to fail in this step */
    char *text;
};

static void wrong(struct world *w, const char *what, enum mb_err err)
{
    if (!*w->text)
        snprintf(w->text, TEXT, "%s: %s: %s", what, mb_error_name(err), mb_kv_error_detail());
}

static void arm(struct world *w, uint32_t draw)
{
    static const enum mb_err errors[] = {MB_ERR_DRIVER, MB_ERR_NO_MEMORY, MB_ERR_NO_ADDRESS,
                                         MB_ERR_TIMEOUT};

    fail_at(0, false);
    machine.left = 0;
    machine.failed = false;
    w->exact = draw % 3 == 0;
    if (w->exact)
        return;
    machine.which = draw / 3 % (FAULTS + 1);
    machine.err = errors[draw / 32 % 4];
    if (machine.which == FAIL_ALLOCATION)
        fail_at(1 + draw / 256 % 4, false);
    else
        machine.left = 1 + draw / 256 % 2;
}

static void disarm(void)
{
    plan.at = 0; /* hits stay, for done() */
    machine.left = 0;
}

/* True: done. Else it failed as it may: by what was made to fail, or for lack of blocks. */
static bool done(struct world *w, enum mb_err err, const char *what)
{
    bool allocation = plan.hits != 0;

    plan.hits = 0;
    if (!err)
        return true;
    w->failures++;
    if (!(machine.failed && err == machine.err) && !(allocation && err == MB_ERR_HOST_MEMORY) &&
        err != MB_ERR_NO_MEMORY)
        wrong(w, what, err);
    if (machine.failed && err == machine.err && err != MB_ERR_NO_MEMORY &&
        !strstr(mb_kv_error_detail(), "made to fail"))
        wrong(w, what, err);
    return false;
}

static bool live(const struct text *t)
{
    return t->id && !t->asleep;
}

static int32_t letter(uint32_t text, uint32_t i)
{
    return (int32_t)(text >> (i / 4 % 10) & 1);
}

/* The bytes of a token in a group: words that follow from the tokens up to it. */
static void each_token(struct world *w, const struct text *t, uint32_t from, bool write)
{
    uint64_t words = w->kv->token_stride / 8, hash = 0;
    uint32_t per = w->shape.block_tokens;

    for (uint32_t i = 0; i < t->count; i++) {
        hash = kv_chain(hash, t->tokens[i]);
        for (uint32_t g = 0; i >= from && g < w->shape.groups; g++) {
            struct mb_kv_view view = {0};
            const struct entry *entry;
            uint64_t *at;

            KV_OK(mb_kv_get_view(w->kv, t->id, g * w->shape.group_layers, false, &view));
            entry = entry_of((char *)view.base + i / per * machine.page);
            if (!entry->page || (write && !entry->writable)) {
                wrong(w, "a token's page is not shown, or not to be written", MB_OK);
                return;
            }
            at = (uint64_t *)(void *)(entry->page + i % per * w->kv->token_stride);
            for (uint64_t k = 0; k < words; k++) {
                if (!write && at[k] != hash + g + k)
                    wrong(w, "wrong contents", MB_OK);
                at[k] = write ? hash + g + k : at[k];
            }
        }
    }
}

/* A page may be shown at many addresses, but be written through one only. */
static void check_rights(struct world *w)
{
    static const char *seen[2 * PAGES_MAX];

    memset(seen, 0, sizeof(seen));
    for (uint64_t i = 0; i < machine.next; i++) {
        const char *page = machine.table[i].writable ? machine.table[i].page : NULL;
        uint64_t at = (uintptr_t)page / 16 * 0x9e3779b97f4a7c15u >> 50;

        while (page && seen[at] && seen[at] != page)
            at = (at + 1) % (2 * PAGES_MAX);
        if (page && seen[at] == page)
            wrong(w, "two sequences may write one page", MB_OK);
        if (page)
            seen[at] = page;
    }
}

static void verify(struct world *w)
{
    struct mb_kv_stats stats;
    enum mb_err err;

    disarm();
    err = mb_kv_sync(w->kv, w->stream);
    if (err)
        wrong(w, "sync", err);
    for (unsigned i = 0; i < SEQS && !*w->text; i++)
        if (live(&w->seqs[i]))
            each_token(w, &w->seqs[i], 0, false);
    check_rights(w);
    stats = kv_stats(w->kv);
    if (stats.held_blocks != stats.live_blocks + stats.cached_blocks + stats.free_blocks)
        wrong(w, "held is not live + cached + free", MB_OK);
}

/* After every step, failed or not: each sequence has its tokens, and all counts hold. */
static void look_around(struct world *w)
{
    enum mb_err err;

    disarm();
    for (unsigned i = 0; i < SEQS; i++) {
        struct mb_kv_view view = {0};

        if (w->seqs[i].id)
            KV_OK(mb_kv_get_view(w->kv, w->seqs[i].id, 0, false, &view));
        if (live(&w->seqs[i]) && view.tokens != w->seqs[i].count)
            wrong(w, "a sequence has another number of tokens", MB_OK);
    }
    err = mb_kv_check(w->kv);
    if (err)
        wrong(w, "check", err);
    if (machine.wrong)
        wrong(w, machine.wrong, MB_OK);
}

/* ------------------------------------------------------------------ steps */

static void op_append(struct world *w, uint32_t draw, uint32_t most)
{
    uint32_t per = w->shape.block_tokens, needed = 0;
    uint64_t room = kv_stats(w->kv).room_blocks;
    struct mb_kv_grow grow[SEQS];
    unsigned who[SEQS], n = 0;
    enum mb_err err;

    for (unsigned i = 0; i < SEQS; i++) {
        uint32_t count = (draw >> i) % (most + 1), had = w->seqs[i].count;

        if (!live(&w->seqs[i]) || !(draw >> (i + 16) & 1))
            continue;
        count = count > TOKENS - had ? TOKENS - had : count;
        needed += (had + count + per - 1) / per - had / per;
        grow[n] = (struct mb_kv_grow){w->seqs[i].id, count};
        who[n++] = i;
    }
    err = mb_kv_append(w->kv, grow, n, w->stream);
    if (err == MB_ERR_NO_MEMORY && w->exact && needed <= room)
        wrong(w, "refused, although there is room", err);
    if (!done(w, err, "append"))
        return;
    disarm();
    for (unsigned k = 0; k < n; k++) {
        struct text *t = &w->seqs[who[k]];
        uint32_t from = t->count;

        for (t->count += grow[k].tokens; from < t->count; from++)
            t->tokens[from] = letter(draw, from);
        each_token(w, t, t->count - grow[k].tokens, true);
    }
}

static void op_reorder(struct world *w, uint32_t draw)
{
    static struct text before[SEQS];
    uint32_t from[SEQS] = {0};
    mb_kv_seq ids[SEQS] = {0};
    unsigned who[SEQS] = {0}, n = 0;

    memcpy(before, w->seqs, sizeof(before));
    for (unsigned i = 0; i < SEQS; i++)
        if (live(&w->seqs[i]) && draw >> (i + 8) & 1)
            who[n++] = i;
    for (unsigned k = 0; k < n; k++) {
        ids[k] = w->seqs[who[k]].id;
        from[k] = (draw >> k * 2) % n;
    }
    if (!done(w, mb_kv_reorder(w->kv, ids, from, n), "reorder"))
        return;
    for (unsigned k = 0; k < n; k++) {
        w->seqs[who[k]] = before[who[from[k]]];
        w->seqs[who[k]].id = ids[k];
    }
}

static void op_open(struct world *w, struct text *t, uint32_t text, uint32_t count)
{
    enum mb_err err;
    uint32_t hit = 0;

    if (t->id || !done(w, mb_kv_seq_open(w->kv, 0, &t->id), "open"))
        return;
    t->asleep = false;
    t->count = 0;
    for (uint32_t i = 0; i < TOKENS; i++)
        t->tokens[i] = letter(text, i);
    err = mb_kv_attach(w->kv, t->id, t->tokens, count, &hit);
    if (err || hit > count || hit % w->shape.block_tokens)
        wrong(w, "attach", err);
    t->count = hit;
}

static void op_fork(struct world *w, const struct text *from, struct text *to)
{
    mb_kv_seq id = 0;

    if (!live(from) || to->id || !done(w, mb_kv_fork(w->kv, from->id, &id), "fork"))
        return;
    *to = *from;
    to->id = id;
}

static void op_hold(struct world *w, const struct text *t, unsigned h, uint32_t count)
{
    uint32_t hit = 0;
    enum mb_err err;

    if (w->holds[h]) {
        err = mb_kv_prefix_drop(w->kv, w->holds[h]);
        if (err)
            wrong(w, "drop", err);
        w->holds[h] = 0;
        return;
    }
    if (!live(t))
        return;
    err = mb_kv_prefix_hold(w->kv, t->id, count, &w->holds[h], &hit);
    if (err == MB_ERR_INVALID || !done(w, err, "hold"))
        return;
    w->held[h] = *t;
    w->held[h].count = hit;
}

static void op_attach_held(struct world *w, struct text *t, unsigned h)
{
    mb_kv_seq id = 0;
    uint32_t hit = 0;
    enum mb_err err;

    if (t->id || !w->holds[h] || !done(w, mb_kv_seq_open(w->kv, 0, &id), "open"))
        return;
    *t = w->held[h];
    t->id = id;
    t->asleep = false;
    err = mb_kv_prefix_attach(w->kv, id, w->holds[h], &hit);
    if (err || hit != t->count)
        wrong(w, "attach held", err);
}

static void op_sleep_or_wake(struct world *w, struct text *t)
{
    uint32_t hit = 0;

    if (t->asleep) {
        if (done(w, mb_kv_wake(w->kv, t->id, t->tokens, t->count, &hit), "wake")) {
            t->asleep = false;
            t->count = hit;
        }
        return;
    }
    t->asleep = done(w, mb_kv_sleep(w->kv, t->id), "sleep");
}

static void op_close(struct world *w, struct text *t)
{
    enum mb_err err = mb_kv_seq_close(w->kv, t->id);

    if (err)
        wrong(w, "close", err);
    w->dead = t->id;
    t->id = 0;
}

static void op_one(struct world *w, struct text *t, uint32_t kind, uint32_t draw)
{
    if (!t->id)
        return;
    if (kind == 0 || t->asleep) {
        op_sleep_or_wake(w, t);
    } else if (kind == 1) {
        uint32_t count = draw % (t->count + 1);

        if (done(w, mb_kv_truncate(w->kv, t->id, count), "truncate"))
            t->count = count;
    } else {
        (void)done(w, mb_kv_publish(w->kv, t->id, t->tokens, draw % (t->count + 1)), "publish");
    }
}

static void take(struct world *w, const struct step *s)
{
    struct text *one = &w->seqs[s->a % SEQS], *other = &w->seqs[s->b % SEQS];
    uint32_t kind = s->kind % 16, hit;
    mb_kv_seq out;

    arm(w, s->c);
    if (kind < 4)
        op_append(w, s->b, s->a % 12);
    else if (kind < 6)
        op_open(w, one, s->b, s->b / 64 % (TOKENS + 1));
    else if (kind < 8)
        op_fork(w, one, other);
    else if (kind == 8)
        op_reorder(w, s->b);
    else if (kind == 9)
        op_hold(w, one, s->b % HOLDS, s->b / 8 % (TOKENS + 1));
    else if (kind == 10)
        op_attach_held(w, one, s->b % HOLDS);
    else if (kind == 11 && s->b % 4 == 0)
        (void)done(w, mb_kv_trim(w->kv, w->stream), "trim");
    else if (kind == 11)
        w->stream = (mb_stream)(uintptr_t)(s->b % STREAMS);
    else if (kind == 12 && one->id)
        op_close(w, one);
    else if (kind == 13 && w->dead &&
             (mb_kv_fork(w->kv, w->dead, &out) != MB_ERR_NOT_FOUND ||
              mb_kv_attach(w->kv, w->dead, one->tokens, 4, &hit) != MB_ERR_NOT_FOUND))
        wrong(w, "a dead sequence was found", MB_OK);
    else
        op_one(w, one, s->b % 4, s->b / 4);
}

/* Layers, groups of a divisor of them, and tokens of a block: up to 5 of each. */
static void draw_shape(struct world *w, uint32_t seed)
{
    uint32_t layers = 1 + seed % 6, group = 1 + seed / 8 % layers, per = 1 + seed / 64 % 5;

    while (layers % group)
        group--;
    w->config = (struct mb_kv_config){.layers = layers,
                                      .kv_heads = 1 + seed / 512 % 2,
                                      .head_dim = 8,
                                      .element_bytes = 1 + seed / 1024 % 2,
                                      .group_layers = group,
                                      .max_tokens = TOKENS,
                                      .max_sequences = SEQS,
                                      .chunk_blocks = 1 + seed / 2048 % 7};
    machine.page = (uint64_t)per * group * 2 * w->config.kv_heads * 8 * w->config.element_bytes;
    w->config.limit_bytes = (uint64_t)(10 + seed / 16384 % 60) * (layers / group) * machine.page;
}

/* Nobody uses anything: all prefixes are evicted, and all memory goes back. */
static void give_up_all(struct world *w)
{
    for (unsigned i = 0; i < SEQS; i++)
        if (w->seqs[i].id)
            op_close(w, &w->seqs[i]);
    for (unsigned h = 0; h < HOLDS; h++)
        if (w->holds[h])
            op_hold(w, &w->seqs[0], h, 0);
    if (mb_kv_trim(w->kv, w->stream) || kv_stats(w->kv).held_blocks)
        wrong(w, "blocks that nobody uses are kept", MB_OK);
}

static void finish_program(struct world *w)
{
    if (!*w->text) {
        verify(w);
        look_around(w);
    }
    if (!*w->text && w->failures % 2)
        give_up_all(w);
    arm(w, 1 + 3 * FAIL_MAP);
    while (mb_kv_close(w->kv))
        if (!machine.failed) {
            wrong(w, "closing", MB_OK);
            return;
        }
    disarm();
    if (machine.chunks || machine.reserved)
        wrong(w, "memory or addresses are left", MB_OK);
    if (machine.wrong)
        wrong(w, machine.wrong, MB_OK);
}

static uint64_t run(const struct step *steps, unsigned count, uint64_t seed, char *text)
{
    struct mb_kv_mapper mapper = {NULL, 0,    reserve, unreserve,     create, release,
                                  map,  copy, order,   mapper_detail, NULL};
    static struct world w;

    memset(&w, 0, sizeof(w));
    memset(&machine, 0, sizeof(machine));
    *text = 0;
    w.text = text;
    draw_shape(&w, (uint32_t)seed);
    mapper.page_bytes = machine.page;
    arm(&w, (uint32_t)(seed >> 32));
    while (mb_kv_open_on(&mapper, &w.config, &w.kv)) {
        if (!machine.failed && !plan.hits)
            wrong(&w, "open", MB_OK);
        disarm();
    }
    disarm();
    KV_OK(mb_kv_get_shape(w.kv, &w.shape));
    for (unsigned i = 0; i < count && !*text; i++) {
        take(&w, &steps[i]);
        look_around(&w);
        if (steps[i].c / 4096 % 3 == 0 && !*text)
            verify(&w);
        if (*text)
            snprintf(text + strlen(text), TEXT - strlen(text), ", step %u", i);
    }
    finish_program(&w);
    return w.failures;
}

TEST(what_fails_changes_nothing)
{
    uint64_t state = mb_test_seed(), failures = 0;
    struct step steps[STEPS];
    char text[TEXT];
    unsigned count;

    for (unsigned p = 0; p < PROGRAMS; p++) {
        uint64_t seed = mb_test_random(&state);

        draw_steps(steps, STEPS, &state);
        failures += run(steps, STEPS, seed, text);
        if (!*text)
            continue;
        count = shrink(run, steps, STEPS, seed, text);
        FAIL("program %u, seed %" PRIu64 ", %u steps: %s", p, seed, count, text);
    }
    CHECK(failures > PROGRAMS);
    printf("  %d programs, %" PRIu64 " calls failed\n", PROGRAMS, failures);
}
