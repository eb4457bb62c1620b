/* SPDX-License-Identifier: MIT */
/* Wrong calls: each is refused by name, and what was right before it goes on. */
#include "kv_rig.h"

#include <string.h>

static int32_t prompt[160];

static mb_kv open_small(mb_device dev)
{
    mb_kv kv = NULL;

    for (int i = 0; i < 160; i++)
        prompt[i] = 7 * i;
    KV_OK(mb_kv_open(dev, &kv_small, &kv));
    return kv;
}

static mb_kv_seq open_seq(mb_kv kv)
{
    mb_kv_seq seq = 0;

    KV_OK(mb_kv_seq_open(kv, 0, &seq));
    return seq;
}

static void check_error(enum mb_err err, enum mb_err wanted, const char *word)
{
    CHECK_EQ(err, wanted);
    if (!strstr(mb_kv_error_detail(), word))
        FAIL("\"%s\" does not say \"%s\"", mb_kv_error_detail(), word);
}

static void finish(mb_device dev, mb_kv kv)
{
    KV_OK(mb_kv_check(kv));
    KV_OK(mb_kv_close(kv));
    rt_close(dev);
}

/* A stream that is none is refused, and is not the one that later calls are ordered behind. */
TEST(a_refused_stream_is_forgotten)
{
    mb_device dev = rt_open("backend:sim,device_memory:1g");
    mb_stream stream = rt_stream(dev), none = (mb_stream)(void *)(uintptr_t)4096;
    mb_kv kv = open_small(dev);
    mb_kv_seq seq = open_seq(kv);
    struct mb_kv_grow grow = {seq, 20};

    KV_OK(mb_kv_sync(kv, none)); /* nothing to do, so the device is not asked */
    check_error(mb_kv_append(kv, &grow, 1, none), MB_ERR_NOT_FOUND, "0x1000");
    kv_extend(dev, kv, seq, prompt, 0, 20, stream);
    check_error(mb_kv_append(kv, &grow, 1, none), MB_ERR_NOT_FOUND, "0x1000");
    check_error(mb_kv_sync(kv, none), MB_ERR_NOT_FOUND, "0x1000");
    kv_extend(dev, kv, seq, prompt, 20, 60, NULL);
    kv_verify(dev, kv, seq, prompt, 60, NULL);
    finish(dev, kv);
}
