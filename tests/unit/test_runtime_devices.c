/* SPDX-License-Identifier: MIT */
/* Several devices at once: each has its own memory and addresses, and a mix-up is named. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

enum {
    DEVICES = 8,
};

static void open_all(mb_device *devs)
{
    int count = 0;

    RT_OK(mb_device_count("backend:sim", &count));
    CHECK_EQ(count, DEVICES);
    for (int i = 0; i < count; i++)
        RT_OK(mb_open(i, "backend:sim,device_memory:128m", &devs[i]));
}

TEST(all_ordinals_open_at_once_and_no_more)
{
    mb_device devs[DEVICES], more = NULL;
    void *blocks[DEVICES];

    open_all(devs);
    CHECK_EQ(mb_open(DEVICES, "backend:sim", &more), MB_ERR_NO_DEVICE);
    for (unsigned i = 0; i < DEVICES; i++) {
        blocks[i] = rt_malloc(devs[i], 100 * RT_MIB, NULL);
        rt_fill(devs[i], blocks[i], 1 << 16, i, NULL);
        CHECK(*mb_device_name(devs[i]));
    }
    for (unsigned i = 0; i < DEVICES; i++) {
        for (unsigned j = 0; j < i; j++)
            CHECK(blocks[i] != blocks[j]);
        rt_verify(devs[i], blocks[i], 1 << 16, i, NULL);
        RT_OK(mb_free_async(devs[i], blocks[i], NULL));
    }
    for (unsigned i = 0; i < DEVICES; i++)
        rt_close(devs[i]);
}

static void names(unsigned owner)
{
    char text[64];

    snprintf(text, sizeof(text), "belongs to device %u", owner);
    CHECK(strstr(mb_error_detail(), text));
}

TEST(a_pointer_of_another_device_is_named_by_its_owner)
{
    mb_device devs[DEVICES];
    struct mb_pointer_info info;
    void *ptr, *out = NULL, *va = NULL;
    struct mb_map_op alias = {.kind = MB_ALIAS, .prot = MB_PROT_READ_WRITE, .bytes = 2 * RT_MIB};
    struct mb_stats before, after;

    open_all(devs);
    ptr = rt_malloc(devs[5], 4 * RT_MIB, NULL);
    before = rt_stats(devs[5]);
    CHECK_EQ(mb_free(devs[2], ptr), MB_ERR_NOT_FOUND);
    names(5);
    CHECK_EQ(mb_free_async(devs[0], ptr, NULL), MB_ERR_NOT_FOUND);
    names(5);
    CHECK_EQ(mb_free_async(devs[0], (char *)ptr + 512, NULL), MB_ERR_NOT_FOUND);
    names(5);
    CHECK_EQ(mb_realloc(devs[7], ptr, 100, &out), MB_ERR_NOT_FOUND);
    names(5);
    CHECK_EQ(mb_record_stream(devs[6], ptr, NULL), MB_ERR_NOT_FOUND);
    names(5);
    CHECK_EQ(mb_pointer_info(devs[4], ptr, &info), MB_ERR_NOT_FOUND);
    names(5);
    RT_OK(mb_mem_reserve(devs[3], 2 * RT_MIB, 0, &va));
    alias.va = va;
    alias.src = (void *)((uintptr_t)ptr & ~(uintptr_t)(2 * RT_MIB - 1));
    CHECK_EQ(mb_mem_map(devs[3], &alias), MB_ERR_NOT_FOUND);
    CHECK_EQ(mb_mem_unreserve(devs[1], va, 2 * RT_MIB), MB_ERR_NOT_FOUND);
    names(3);
    RT_OK(mb_mem_unreserve(devs[3], va, 2 * RT_MIB));
    after = rt_stats(devs[5]);
    CHECK_EQ(after.live_blocks, before.live_blocks);
    RT_OK(mb_free(devs[5], ptr));
    CHECK_EQ(mb_free(devs[2], ptr), MB_ERR_NOT_FOUND);
    CHECK(!strstr(mb_error_detail(), "belongs"));
    for (unsigned i = 0; i < DEVICES; i++)
        rt_close(devs[i]);
}

static void *ask(void *opaque)
{
    for (unsigned i = 0; i < 300; i++)
        if (mb_free(opaque, (void *)(uintptr_t)0x777000) != MB_ERR_NOT_FOUND)
            abort();
    return NULL;
}

TEST(devices_come_and_go_while_others_ask_for_owners)
{
    mb_device dev = rt_open("backend:sim,device_memory:128m");
    pthread_t thread;

    CHECK_EQ(pthread_create(&thread, NULL, ask, dev), 0);
    for (unsigned i = 0; i < 10; i++) {
        mb_device other = NULL;

        RT_OK(mb_open(1, "backend:sim,device_memory:128m", &other));
        mb_close(other);
    }
    pthread_join(thread, NULL);
    rt_close(dev);
}
