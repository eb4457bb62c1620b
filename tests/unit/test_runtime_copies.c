/* SPDX-License-Identifier: MIT */
/* Lists of copies through the public interface: what is refused and how it is told, that a refusal
 * copies nothing, and capture. What lists copy on every backend: tests/contract. */
#include <string.h>

#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "support/runtime_sim.h"

enum { COUNT = 300, PIECE = 4096 };

struct scene {
    mb_device dev;
    mb_stream stream;
    char *dst, *src;
    struct mb_copy list[COUNT];
};

static void begin(struct scene *s, const char *config)
{
    s->dev = rt_open(config);
    s->stream = rt_stream(s->dev);
    s->dst = rt_malloc(s->dev, COUNT * PIECE, s->stream);
    s->src = rt_malloc(s->dev, COUNT * PIECE, s->stream);
    for (unsigned i = 0; i < COUNT; i++)
        s->list[i] = (struct mb_copy){s->dst + i * PIECE, s->src + (COUNT - 1 - i) * PIECE, PIECE};
    for (unsigned i = 0; i < COUNT; i++) {
        RT_OK(mb_fill_async(s->dev, s->src + i * PIECE, PIECE, i, s->stream));
        RT_OK(mb_fill_async(s->dev, s->dst + i * PIECE, PIECE, 1000 + i, s->stream));
    }
}

static void verify(const struct scene *s, bool copied)
{
    for (unsigned i = 0; i < COUNT; i++)
        RT_OK(mb_verify_async(s->dev, s->dst + i * PIECE, PIECE, copied ? COUNT - 1 - i : 1000 + i,
                              s->stream));
    rt_clean(s->dev);
}

static enum mb_err copy(const struct scene *s, unsigned count)
{
    return mb_copy_list_async(s->dev, s->list, count, s->stream);
}

static void end(struct scene *s)
{
    RT_OK(mb_free_async(s->dev, s->src, s->stream));
    RT_OK(mb_free_async(s->dev, s->dst, s->stream));
    rt_close(s->dev);
}

TEST(a_list_is_copied_in_stream_order)
{
    struct scene s;

    begin(&s, "backend:sim,device_memory:256m");
    RT_OK(copy(&s, COUNT));
    verify(&s, true);
    end(&s);
}

TEST(nothing_is_nothing)
{
    struct scene s;

    begin(&s, "backend:sim,device_memory:256m");
    RT_OK(mb_copy_list_async(s.dev, NULL, 0, s.stream));
    for (unsigned i = 0; i < COUNT; i++)
        s.list[i].bytes = 0;
    s.list[0].dst = NULL;
    s.list[1].dst = s.dst + 1; /* addresses of no copy */
    s.list[2].src = (void *)(UINTPTR_MAX - 2);
    RT_OK(copy(&s, COUNT));
    verify(&s, false);
    end(&s);
}

TEST(a_refusal_names_the_copy_and_copies_nothing)
{
    struct scene s;
    struct mb_copy good;

    begin(&s, "backend:sim,device_memory:256m");
    CHECK_EQ(mb_copy_list_async(s.dev, NULL, 3, s.stream), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "3 copies and no list"));
    CHECK_EQ(mb_copy_list_async(NULL, s.list, 1, s.stream), MB_ERR_INVALID);
    good = s.list[299];
    s.list[299].dst = s.dst + 4;
    CHECK_EQ(copy(&s, COUNT), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "copy 299 of 0 to 299"));
    CHECK(strstr(mb_error_detail(), "multiples of 8"));
    s.list[299] = good;
    s.list[7].src = s.src + 1;
    CHECK_EQ(copy(&s, COUNT), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "copy 7 of 0 to 299"));
    s.list[7].src = s.src;
    s.list[7].bytes = 4097;
    CHECK_EQ(copy(&s, 8), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "copy 7 of 0 to 7"));
    CHECK(strstr(mb_error_detail(), "size 4097"));
    /* Beyond the addresses that there are: the backend sees that, before it enqueues any. */
    s.list[7].bytes = 4096;
    s.list[7].dst = (void *)(UINTPTR_MAX - 4095);
    CHECK_EQ(copy(&s, COUNT), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "copy 7 of 0 to 299"));
    verify(&s, false);
    end(&s);
}

TEST(checked_blocks_are_not_left)
{
    struct scene s;

    begin(&s, "backend:sim,device_memory:256m,check:redzone");
    s.list[5].src = s.src + COUNT * PIECE - 8;
    CHECK_EQ(copy(&s, COUNT), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "leaves the block"));
    CHECK(strstr(mb_error_detail(), "copy 5 of 0 to 299"));
    s.list[5].src = s.src;
    s.list[5].dst = s.dst - 8;
    CHECK_EQ(copy(&s, COUNT), MB_ERR_INVALID);
    verify(&s, false);
    end(&s);
}

TEST(a_captured_list_is_copied_when_it_is_launched)
{
    struct mb_sim_graph *graph = NULL;
    struct mb__stream *record = NULL;
    struct scene s;

    begin(&s, "backend:sim,device_memory:256m");
    RT_OK(mb_device_sync(s.dev));
    CHECK_OK(mb__sim_capture_begin(sim_of(s.dev), s.stream));
    s.list[3].bytes = 0;
    RT_OK(copy(&s, 4));
    CHECK_OK(mb__sim_capture_end(sim_of(s.dev), s.stream, &graph));
    memset(s.list, 0, sizeof(s.list)); /* it was read during the call */
    verify(&s, false);
    mb__lock(&s.dev->lock);
    CHECK_OK(mb__stream_get(s.dev, s.stream, &record));
    mb__unlock(&s.dev->lock);
    CHECK_OK(mb__sim_graph_launch(sim_of(s.dev), graph, record->hw));
    for (unsigned i = 0; i < 5; i++)
        RT_OK(mb_verify_async(s.dev, s.dst + i * PIECE, PIECE, i < 3 ? COUNT - 1 - i : 1000 + i,
                              s.stream));
    rt_clean(s.dev);
    mb__sim_graph_free(graph);
    end(&s);
}

#ifdef MB_FAULT_INJECTION
TEST(a_failed_call_can_be_made_again)
{
    struct scene s;

    begin(&s, "backend:sim,device_memory:256m");
    mb__hw_fault_set(s.dev->hw, MB_HW_FAULT_copy_list, 1, MB_ERR_DRIVER, false);
    CHECK_EQ(copy(&s, COUNT), MB_ERR_DRIVER);
    verify(&s, false);
    for (unsigned i = 0; i < COUNT; i++)
        RT_OK(mb_fill_async(s.dev, s.src + i * PIECE, PIECE, i, s.stream));
    RT_OK(copy(&s, COUNT));
    verify(&s, true);
    end(&s);
}
#endif
