/* SPDX-License-Identifier: MIT */
/*
 * The `hip` backend on A FAKE of HIP: what the contract's rules do not ask for. Nothing here has
 * run on AMD hardware.
 */
#include <string.h>

#include "fake_access.h"
#include "hw/hip/hip_backend.h"
#include "support/runtime_rig.h"

enum { SLOTS = 8 };

struct rig {
    struct mb_hw_dev *dev;
    const struct mb_hw_ops *hw;
    mb_va home, window;
    struct mb_hw_slab slab;
    struct mb_hw_view view;
    mb_stream native;
    struct mb_hw_stream *stream;
};

static void rig_open(struct rig *r)
{
    const struct mb_hw_config config = {.device_memory_bytes = (uint64_t)1 << 30};
    struct mb_backend_info info;

    mb__hip_describe(0, &info);
    CHECK_STR_EQ(info.name, "hip");
    if (!info.available && strstr(info.reason, "no kernels"))
        SKIP(info.reason);
    memset(r, 0, sizeof(*r));
    RT_OK(mb__hip_open(&config, &r->dev));
    r->hw = r->dev->ops;
    RT_OK(r->hw->va_reserve(r->dev, SLOTS * MB_FRAME_BYTES, MB_FRAME_BYTES, &r->home));
    RT_OK(r->hw->slab_acquire(r->dev, SLOTS * MB_FRAME_BYTES, r->home, &r->slab));
    RT_OK(r->hw->va_reserve(r->dev, (uint64_t)512 << 20, (uint64_t)512 << 20, &r->window));
    RT_OK(r->hw->tree_adopt(r->dev, r->window, (uint64_t)512 << 20, &r->view));
    RT_OK(r->hw->stream_create(r->dev, &r->native));
    RT_OK(r->hw->stream_open(r->dev, r->native, &r->stream));
}

static void rig_close(struct rig *r)
{
    RT_OK(r->hw->device_sync(r->dev));
    r->hw->tree_disown(r->dev, &r->view);
    RT_OK(r->hw->va_release(r->dev, r->window, (uint64_t)512 << 20));
    RT_OK(r->hw->slab_release(r->dev, &r->slab));
    RT_OK(r->hw->va_release(r->dev, r->home, SLOTS * MB_FRAME_BYTES));
    r->hw->stream_close(r->dev, r->stream);
    RT_OK(r->hw->stream_destroy(r->dev, r->native));
    r->hw->close(r->dev);
    fake_check_empty();
}

static struct mb_hw_cmd leaves(const struct rig *r, uint32_t first, uint32_t count,
                               const mb_pfn *pfns)
{
    struct mb_hw_cmd cmd;

    memset(&cmd, 0, sizeof(cmd));
    cmd.kind = MB_HW_LEAVES;
    cmd.leaves.view = &r->view;
    cmd.leaves.first = first;
    cmd.leaves.count = count;
    cmd.leaves.pfns = pfns;
    cmd.leaves.tmpl = mb_fmt_leaf_template(MB_FMT_GFX9_TF, MB_FRAME_SHIFT,
                                           mb_fmt_user_flags(MB_FMT_GFX9_TF, 1), MB_AP_VID, 1);
    return cmd;
}

static void list(const struct rig *r, mb_pfn *pfns)
{
    for (uint32_t i = 0; i < SLOTS; i++)
        pfns[i].n = r->slab.first.n + i * MB_FRAME_PFNS;
}

/* Slot i shows frame first + i, or nothing. */
static void expect(struct rig *r, uint32_t slot, uint32_t count, const mb_pfn *pfns)
{
    struct mb_pte pte[SLOTS];

    RT_OK(r->hw->read_slots(r->dev, &r->view, slot, count, pte));
    for (uint32_t i = 0; i < count; i++) {
        struct mb_leaf leaf;

        CHECK(mb_fmt_decode_leaf(MB_FMT_GFX9_TF, MB_FRAME_SHIFT, pte[i], &leaf));
        CHECK_EQ(leaf.flags & MB_LEAF_VALID, pfns ? MB_LEAF_VALID : 0);
        if (pfns)
            CHECK_EQ(leaf.phys, mb__phys_of_pfn(pfns[i]));
    }
}

TEST(says_what_it_is)
{
    struct rig r;

    rig_open(&r);
    CHECK(strstr(r.dev->caps.driver, "not run on AMD hardware") != NULL);
    CHECK(strstr(r.dev->caps.device_name, "FAKE") != NULL);
    CHECK_STR_EQ(r.dev->caps.tables, "driver");
    CHECK_EQ(r.dev->caps.format, MB_FMT_GFX9_TF);
    rig_close(&r);
}

/* While nothing runs on the device, empty slots are mapped and full ones told to go, and submit
 * returns. */
TEST(submit_does_not_wait)
{
    struct rig r;
    mb_pfn pfns[SLOTS];
    uint64_t unmaps;

    rig_open(&r);
    list(&r, pfns);
    fake_pause(NULL, true);
    struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns), clear = leaves(&r, 0, SLOTS, NULL);
    RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
    CHECK(fake_count("hipMemMap") >= 2 * SLOTS);
    RT_OK(r.hw->fill(r.dev, r.stream, r.window, SLOTS * MB_FRAME_BYTES, 5));
    RT_OK(r.hw->verify(r.dev, r.stream, r.window, SLOTS * MB_FRAME_BYTES, 5));
    unmaps = fake_count("hipMemUnmap");
    RT_OK(r.hw->submit(r.dev, r.stream, &clear, 1));
    CHECK_EQ(fake_count("hipMemUnmap"), unmaps); /* the stream has not got there */
    fake_pause(NULL, false);
    RT_OK(r.hw->device_sync(r.dev));
    expect(&r, 0, SLOTS, NULL);
    CHECK_EQ(fake_count("hipMemUnmap"), unmaps + SLOTS);
    struct mb_hw_counters counters;
    r.hw->counters(r.dev, &counters);
    CHECK_EQ(counters.wrong_words, 0);
    rig_close(&r);
}

/* HIP's unmap waits for every stream: a batch of one stream must not hold up the unmap of
 * another. */
TEST(an_unmap_waits_for_nothing_of_ours)
{
    struct rig r;
    mb_pfn pfns[SLOTS];
    mb_stream native = NULL;
    struct mb_hw_stream *other = NULL;

    rig_open(&r);
    list(&r, pfns);
    RT_OK(r.hw->stream_create(r.dev, &native));
    RT_OK(r.hw->stream_open(r.dev, native, &other));
    for (unsigned round = 0; round < 50; round++) {
        struct mb_hw_cmd map = leaves(&r, 0, 4, pfns), clear = leaves(&r, 0, 4, NULL);
        struct mb_hw_cmd map2 = leaves(&r, 4, 4, pfns + 4), clear2 = leaves(&r, 4, 4, NULL);

        RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
        RT_OK(r.hw->submit(r.dev, other, &map2, 1));
        RT_OK(r.hw->fill(r.dev, other, mb__va_add(r.window, 4 * MB_FRAME_BYTES), 4096, round));
        RT_OK(r.hw->submit(r.dev, r.stream, &clear, 1));
        RT_OK(r.hw->submit(r.dev, other, &clear2, 1));
    }
    RT_OK(r.hw->device_sync(r.dev));
    r.hw->stream_close(r.dev, other);
    RT_OK(r.hw->stream_destroy(r.dev, native));
    rig_close(&r);
}

/* A slot that changes its frame is the one thing that waits; what it shows is then right. */
TEST(a_remap_waits_and_is_right)
{
    struct rig r;
    mb_pfn pfns[SLOTS], twisted[SLOTS];

    rig_open(&r);
    list(&r, pfns);
    for (uint32_t i = 0; i < SLOTS; i++)
        twisted[i] = pfns[SLOTS - 1 - i];
    struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns), turn = leaves(&r, 0, SLOTS, twisted);
    RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
    for (uint32_t i = 0; i < SLOTS; i++)
        RT_OK(r.hw->fill(r.dev, r.stream, mb__va_add(r.window, i * MB_FRAME_BYTES), MB_FRAME_BYTES,
                         i));
    RT_OK(r.hw->submit(r.dev, r.stream, &turn, 1));
    for (uint32_t i = 0; i < SLOTS; i++)
        RT_OK(r.hw->verify(r.dev, r.stream, mb__va_add(r.window, i * MB_FRAME_BYTES),
                           MB_FRAME_BYTES, SLOTS - 1 - i));
    RT_OK(r.hw->device_sync(r.dev));
    struct mb_hw_counters counters;
    r.hw->counters(r.dev, &counters);
    CHECK_EQ(counters.wrong_words, 0);
    expect(&r, 0, SLOTS, twisted);
    rig_close(&r);
}

/* Every call of HIP's inside a slab, a map and a clear fails once, at every place. */
TEST(failures_change_nothing)
{
    static const char *const calls[] = {"hipMemCreate", "hipMemMap", "hipMemSetAccess",
                                        "hipMemAddressReserve", "hipStreamWriteValue64"};
    struct rig r;
    mb_pfn pfns[SLOTS];

    rig_open(&r);
    list(&r, pfns);
    for (unsigned c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        for (uint64_t nth = 1; nth <= SLOTS + 1; nth++) {
            struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns), clear = leaves(&r, 0, SLOTS, NULL);
            struct mb_hw_slab slab;
            mb_va home = MB_NO_VA;
            enum mb_err err;

            fake_fail(calls[c], nth, 2);
            if (!r.hw->va_reserve(r.dev, 2 * MB_FRAME_BYTES, MB_FRAME_BYTES, &home)) {
                err = r.hw->slab_acquire(r.dev, 2 * MB_FRAME_BYTES, home, &slab);
                CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
                if (!err)
                    RT_OK(r.hw->slab_release(r.dev, &slab));
                RT_OK(r.hw->va_release(r.dev, home, 2 * MB_FRAME_BYTES));
            }
            err = r.hw->submit(r.dev, r.stream, &map, 1);
            CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
            expect(&r, 0, SLOTS, err ? NULL : pfns);
            if (!err && r.hw->submit(r.dev, r.stream, &clear, 1)) {
                expect(&r, 0, SLOTS, pfns);
                RT_OK(r.hw->submit(r.dev, r.stream, &clear, 1));
            }
            fake_fail(calls[c], 0, 0);
            RT_OK(r.hw->device_sync(r.dev));
            expect(&r, 0, SLOTS, NULL);
        }
    }
    RT_OK(r.hw->health(r.dev));
    rig_close(&r);
}

/* A batch that first gives slots more rights and then cannot map gives none. */
TEST(a_failure_raises_no_rights)
{
    struct rig r;
    mb_pfn pfns[SLOTS];
    struct mb_pte pte[SLOTS];

    rig_open(&r);
    list(&r, pfns);
    struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns);
    struct mb_hw_cmd batch[] = {map, leaves(&r, SLOTS, SLOTS, pfns)};
    map.leaves.tmpl = mb_fmt_leaf_template(MB_FMT_GFX9_TF, MB_FRAME_SHIFT,
                                           mb_fmt_user_flags(MB_FMT_GFX9_TF, 0), MB_AP_VID, 1);
    RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
    fake_fail("hipMemMap", 2, 2);
    CHECK_EQ(r.hw->submit(r.dev, r.stream, batch, 2), MB_ERR_NO_MEMORY);
    RT_OK(r.hw->read_slots(r.dev, &r.view, 0, SLOTS, pte));
    for (uint32_t i = 0; i < SLOTS; i++) {
        struct mb_leaf leaf;

        CHECK(mb_fmt_decode_leaf(MB_FMT_GFX9_TF, MB_FRAME_SHIFT, pte[i], &leaf));
        CHECK_EQ(leaf.flags & (MB_LEAF_VALID | MB_LEAF_READ_ONLY),
                 MB_LEAF_VALID | MB_LEAF_READ_ONLY);
    }
    expect(&r, SLOTS, SLOTS, NULL);
    RT_OK(r.hw->submit(r.dev, r.stream, batch, 2));
    expect(&r, SLOTS, SLOTS, pfns);
    rig_close(&r);
}

/* What the caller left mapped, held and reserved is given back at the end. */
TEST(close_takes_everything_back)
{
    struct rig r;
    mb_pfn pfns[SLOTS];

    rig_open(&r);
    list(&r, pfns);
    struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns), clear = leaves(&r, 0, 2, NULL);
    RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
    RT_OK(r.hw->submit(r.dev, r.stream, &clear, 1));
    r.hw->close(r.dev);
    fake_check_empty();
}

TEST(refuses_what_it_cannot_do)
{
    struct mb_hw_config config = {.tables = "inline"};
    struct mb_hw_dev *dev = NULL;
    struct rig r;
    mb_pfn foreign = {42 * MB_FRAME_PFNS};

    rig_open(&r);
    CHECK_EQ(mb__hip_open(&config, &dev), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "tables:driver") != NULL);
    config = (struct mb_hw_config){.ordinal = 7};
    CHECK_EQ(mb__hip_open(&config, &dev), MB_ERR_NO_DEVICE);
    CHECK(dev == NULL);
    struct mb_hw_cmd cmd = leaves(&r, 0, 1, &foreign);
    CHECK_EQ(r.hw->submit(r.dev, r.stream, &cmd, 1), MB_ERR_CORRUPT);
    cmd = leaves(&r, 250, 10, NULL);
    CHECK_EQ(r.hw->submit(r.dev, r.stream, &cmd, 1), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "not run on AMD hardware") != NULL);
    rig_close(&r);
}

TEST(a_fatal_result_loses_the_device)
{
    struct rig r;
    mb_pfn pfns[SLOTS];

    rig_open(&r);
    list(&r, pfns);
    struct mb_hw_cmd map = leaves(&r, 0, SLOTS, pfns);
    fake_pause(NULL, true);
    RT_OK(r.hw->submit(r.dev, r.stream, &map, 1));
    fake_break(719);
    CHECK_EQ(r.hw->health(r.dev), MB_ERR_DEVICE_LOST);
    CHECK_EQ(r.hw->submit(r.dev, r.stream, &map, 1), MB_ERR_DEVICE_LOST);
    CHECK_EQ(r.hw->device_sync(r.dev), MB_ERR_DEVICE_LOST);
    CHECK(strstr(mb_error_detail(), "719") != NULL);
    r.hw->close(r.dev);
    fake_break(0);
    fake_pause(NULL, false);
}
