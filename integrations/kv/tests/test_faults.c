/* SPDX-License-Identifier: MIT */
/*
 * Every call of the mapper fails once, at each of its uses in a program. The failed call must say
 * so and change nothing, and the same call made again must succeed.
 */
#include "kv_rig.h"

#include <string.h>

enum fault {
    FAIL_RESERVE,
    FAIL_CREATE,
    FAIL_MAP,
    FAIL_COPY,
    FAIL_ORDER,
    FAULTS,
};

/* A mapper in front of the device's. Owner: the case, on one thread. */
static struct {
    struct mb_kv_mapper real;
    enum fault which;
    unsigned left; /* uses until the failure; 0: none */
    unsigned uses; /* of `which` */
    enum mb_err err;
    unsigned failures;
} fault;

static bool fails(enum fault which)
{
    if (which != fault.which)
        return false;
    fault.uses++;
    return fault.left && !--fault.left;
}

static enum mb_err reserve(void *user, uint64_t bytes, void **va)
{
    return fails(FAIL_RESERVE) ? fault.err : fault.real.reserve(user, bytes, va);
}

static enum mb_err create(void *user, uint64_t bytes, mb_mem *out)
{
    return fails(FAIL_CREATE) ? fault.err : fault.real.create(user, bytes, out);
}

static enum mb_err map(void *user, const struct mb_map_op *ops, unsigned count, mb_stream stream)
{
    return fails(FAIL_MAP) ? fault.err : fault.real.map(user, ops, count, stream);
}

static enum mb_err copy(void *user, const struct mb_copy *list, unsigned count, mb_stream stream)
{
    return fails(FAIL_COPY) ? fault.err : fault.real.copy(user, list, count, stream);
}

static enum mb_err order(void *user, mb_stream from, mb_stream to)
{
    return fails(FAIL_ORDER) ? fault.err : fault.real.order(user, from, to);
}

static const char *detail(void *user)
{
    (void)user;
    return "made to fail";
}

/* What must not have changed: all but counts of attempts. */
static void check_same(const struct mb_kv_stats *a, const struct mb_kv_stats *b)
{
    CHECK_EQ(a->live_blocks, b->live_blocks);
    CHECK_EQ(a->live_tokens, b->live_tokens);
    CHECK_EQ(a->shown_blocks, b->shown_blocks);
    CHECK_EQ(a->sequences, b->sequences);
}

/* Makes the call; if it fails, looks around and makes it again. */
#define TWICE(kv, call)                                                                            \
    do {                                                                                           \
        struct mb_kv_stats twice_before = kv_stats(kv), twice_after;                               \
        if ((call) != MB_OK) {                                                                     \
            CHECK(strstr(mb_kv_error_detail(), "made to fail") != NULL ||                          \
                  fault.err == MB_ERR_NO_MEMORY);                                                  \
            fault.failures++;                                                                      \
            twice_after = kv_stats(kv);                                                            \
            check_same(&twice_before, &twice_after);                                               \
            KV_OK(mb_kv_check(kv));                                                                \
            KV_OK(call);                                                                           \
        }                                                                                          \
    } while (0)

static void grow(mb_device dev, mb_kv kv, mb_kv_seq seq, const int32_t *tokens, uint32_t from,
                 uint32_t to, mb_stream stream)
{
    struct mb_kv_grow one = {seq, to - from};

    TWICE(kv, mb_kv_append(kv, &one, 1, stream));
    kv_write(dev, kv, seq, tokens, from, to, stream);
}

static unsigned run(enum fault which, unsigned n, enum mb_err err)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream s = rt_stream(dev), t = rt_stream(dev);
    int32_t tokens[3][160];
    mb_kv_seq seq[3] = {0};
    struct mb_kv_mapper mapper;
    struct mb_kv_grow both[3];
    mb_kv kv = NULL;
    uint32_t hit = 0;

    RT_OK(mb_kv_device_mapper(dev, &fault.real));
    mapper = fault.real;
    mapper.reserve = reserve;
    mapper.create = create;
    mapper.map = map;
    mapper.copy = copy;
    mapper.order = order;
    mapper.detail = detail;
    fault.which = which;
    fault.left = n;
    fault.uses = fault.failures = 0;
    fault.err = err;
    if (mb_kv_open_on(&mapper, &kv_small, &kv)) {
        fault.failures++;
        KV_OK(mb_kv_open_on(&mapper, &kv_small, &kv));
    }
    for (int i = 0; i < 3 * 160; i++)
        tokens[i / 160][i % 160] = i % 160;
    TWICE(kv, mb_kv_seq_open(kv, 0, &seq[0]));
    grow(dev, kv, seq[0], tokens[0], 0, 70, s);
    TWICE(kv, mb_kv_publish(kv, seq[0], tokens[0], 70));
    TWICE(kv, mb_kv_seq_open(kv, 0, &seq[1]));
    KV_OK(mb_kv_attach(kv, seq[1], tokens[1], 70, &hit));
    CHECK_EQ(hit, 64);
    grow(dev, kv, seq[1], tokens[1], 64, 90, t);
    TWICE(kv, mb_kv_fork(kv, seq[0], &seq[2]));
    for (unsigned i = 0; i < 3; i++) {
        both[i] = (struct mb_kv_grow){seq[i], 40};
        for (int j = 70; i != 1 && j < 160; j++)
            tokens[i][j] = 1000 * (int)i + j;
    }
    TWICE(kv, mb_kv_append(kv, both, 3, s));
    kv_write(dev, kv, seq[0], tokens[0], 70, 110, s);
    kv_write(dev, kv, seq[1], tokens[1], 90, 130, s);
    kv_write(dev, kv, seq[2], tokens[2], 70, 110, s);
    TWICE(kv, mb_kv_reorder(kv, seq, (uint32_t[]){2, 1, 0}, 3));
    TWICE(kv, mb_kv_sync(kv, t));
    kv_verify(dev, kv, seq[2], tokens[0], 110, t);
    kv_verify(dev, kv, seq[0], tokens[2], 110, t);
    kv_verify(dev, kv, seq[1], tokens[1], 130, t);
    TWICE(kv, mb_kv_seq_close(kv, seq[0]));
    TWICE(kv, mb_kv_trim(kv, t));
    kv_verify(dev, kv, seq[2], tokens[0], 110, t);
    if (mb_kv_close(kv)) {
        fault.failures++;
        KV_OK(mb_kv_close(kv));
    }
    rt_close(dev);
    CHECK_EQ(fault.failures, n && fault.uses >= n ? 1 : 0);
    return fault.uses;
}

static void every_use(enum fault which, enum mb_err err)
{
    unsigned uses = run(which, 0, err);

    CHECK(uses > 0);
    for (unsigned n = 1; n <= uses; n++)
        (void)run(which, n, err);
}

TEST(reserve_fails)
{
    every_use(FAIL_RESERVE, MB_ERR_NO_ADDRESS);
}

TEST(create_fails)
{
    every_use(FAIL_CREATE, MB_ERR_DRIVER);
    every_use(FAIL_CREATE, MB_ERR_NO_MEMORY);
}

TEST(map_fails)
{
    every_use(FAIL_MAP, MB_ERR_DRIVER);
    every_use(FAIL_MAP, MB_ERR_NO_MEMORY);
}

TEST(copy_fails)
{
    every_use(FAIL_COPY, MB_ERR_DRIVER);
}

TEST(order_fails)
{
    every_use(FAIL_ORDER, MB_ERR_DRIVER);
}

/* A device refuses memory while unused prefixes hold some: they go, and the append succeeds. */
TEST(refused_memory_evicts)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    struct mb_kv_config config = kv_small;
    int32_t tokens[160];
    mb_kv kv = NULL;
    mb_kv_seq seq;

    config.limit_bytes = 0;
    config.chunk_blocks = 4;
    KV_OK(mb_kv_open(dev, &config, &kv));
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < 160; i++)
            tokens[i] = round * 1000 + i;
        KV_OK(mb_kv_seq_open(kv, 0, &seq));
        kv_extend(dev, kv, seq, tokens, 0, 160, NULL);
        kv_verify(dev, kv, seq, tokens, 160, NULL);
        KV_OK(mb_kv_publish(kv, seq, tokens, 160));
        KV_OK(mb_kv_seq_close(kv, seq));
    }
    CHECK(kv_stats(kv).evicted_blocks > 0);
    KV_OK(mb_kv_check(kv));
    KV_OK(mb_kv_close(kv));
    rt_close(dev);
}
