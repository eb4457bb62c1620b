/* SPDX-License-Identifier: MIT */
/* Statistics under PyTorch's names. */
#include <stdlib.h>
#include <string.h>

#include "support/runtime_rig.h"

static uint64_t value_of(mb_device dev, const char *key)
{
    char text[8192], needle[128];
    const char *at;
    size_t needed = 0;

    RT_OK(mb_stats_text(dev, MB_STATS_TEXT, text, sizeof(text), &needed));
    CHECK_EQ(needed, strlen(text) + 1);
    snprintf(needle, sizeof(needle), "\n%s ", key);
    at = strstr(text, needle);
    CHECK(at != NULL);
    return strtoull(at + strlen(needle), NULL, 10);
}

TEST(keys_follow_what_happens)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    void *first = rt_malloc(dev, 1000, NULL), *second = rt_malloc(dev, 3 << 20, NULL), *ptr = NULL;

    RT_OK(mb_free_async(dev, first, NULL));
    first = rt_malloc(dev, 900, NULL); /* from the warm path */
    CHECK_EQ(value_of(dev, "requested_bytes.all.peak"), (3 << 20) + 1000);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.current"), (3 << 20) + 1024);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.allocated"), (3 << 20) + 2048);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), 1024);
    CHECK_EQ(value_of(dev, "allocation.all.current"), 2);
    CHECK_EQ(value_of(dev, "allocation.all.allocated"), 3);
    CHECK_EQ(value_of(dev, "allocation.all.freed"), 1);
    CHECK_EQ(value_of(dev, "num_ooms"), 0);
    CHECK(value_of(dev, "num_device_alloc") >= 1);
    CHECK(value_of(dev, "reserved_bytes.all.current") >= (3 << 20));
    CHECK_EQ(value_of(dev, "num_alloc_retries"), 0);
    CHECK_EQ(mb_malloc_async(dev, 255 * RT_MIB, NULL, &ptr), MB_ERR_NO_MEMORY);
    CHECK_EQ(value_of(dev, "num_ooms"), 1);
    CHECK(value_of(dev, "num_alloc_retries") >= 1);
    CHECK_EQ(value_of(dev, "num_sync_all_streams"), 1);
    RT_OK(mb_free_async(dev, first, NULL));
    RT_OK(mb_free_async(dev, second, NULL));
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), (3 << 20) + 2048);
    rt_close(dev);
}

TEST(counts_of_a_pool_outlive_it)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    mb_pool pool = NULL;

    RT_OK(mb_pool_create(dev, &pool));
    for (unsigned i = 0; i < 10; i++) {
        void *ptr = NULL;

        RT_OK(mb_pool_malloc_async(pool, 4096, NULL, &ptr));
        RT_OK(mb_free_async(dev, ptr, NULL));
    }
    RT_OK(mb_pool_destroy(pool));
    CHECK_EQ(rt_stats(dev).malloc_calls, 10);
    CHECK_EQ(rt_stats(dev).free_calls, 10);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.allocated"), 40960);
    CHECK_EQ(value_of(dev, "allocated_bytes.all.freed"), 40960);
    rt_close(dev);
}

TEST(json_is_json_and_sizes_are_told)
{
    mb_device dev = rt_open("backend:sim,device_memory:256m");
    char *text, small[16] = "as it was";
    size_t needed = 0;
    FILE *pipe;

    RT_OK(mb_stats_text(dev, MB_STATS_JSON, NULL, 0, &needed));
    CHECK_EQ(mb_stats_text(dev, MB_STATS_JSON, small, sizeof(small), NULL), MB_ERR_INVALID);
    CHECK_STR_EQ(small, "as it was");
    CHECK_EQ(mb_stats_text(dev, (enum mb_stats_format)7, NULL, 0, &needed), MB_ERR_INVALID);
    text = malloc(needed);
    CHECK(text != NULL);
    RT_OK(mb_stats_text(dev, MB_STATS_JSON, text, needed, NULL));
    pipe = popen("python3 -c 'import json, sys; d = json.load(sys.stdin); "
                 "assert d[\"allocated_bytes.all.current\"] == 0; assert len(d) > 20; "
                 "assert all(type(v) is int for v in d.values())'",
                 "w");
    CHECK(pipe && fputs(text, pipe) >= 0);
    CHECK_EQ(pclose(pipe), 0);
    free(text);
    rt_close(dev);
}
