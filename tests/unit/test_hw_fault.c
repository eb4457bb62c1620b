/* SPDX-License-Identifier: MIT */
/* The device that fails on demand. */
#include "test.h"

#include "hw/fault.h"
#include "hw/sim/sim.h"

#include <string.h>

#ifndef MB_FAULT_INJECTION
TEST(faults)
{
    SKIP("built without MB_FAULTS");
}
#else

static struct mb_hw_dev *open_wrapped(void)
{
    struct mb_hw_config config = {.device_memory_bytes = (uint64_t)1 << 30};
    struct mb_hw_dev *inner, *dev;

    CHECK_OK(mb__sim_open(&config, &inner));
    CHECK_OK(mb__hw_fault_wrap(inner, &dev));
    CHECK_PTR_EQ(mb__hw_fault_inner(dev), inner);
    return dev;
}

TEST(nothing_fails_unasked)
{
    struct mb_hw_dev *dev = open_wrapped();
    mb_va va;

    CHECK_EQ(dev->caps.format, MB_FMT_GMMU_V3);
    CHECK_OK(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va));
    CHECK_OK(dev->ops->va_release(dev, va, MB_FRAME_BYTES));
    CHECK_EQ(mb__hw_fault_uses(dev, MB_HW_FAULT_va_reserve), 1);
    CHECK_EQ(mb__hw_fault_uses(dev, MB_HW_FAULT_ANY), 2);
    CHECK_EQ(mb__hw_fault_hits(dev), 0);
    dev->ops->close(dev);
}

TEST(the_nth_use_fails_and_changes_nothing)
{
    struct mb_hw_dev *dev = open_wrapped();
    mb_va va = {7};

    mb__hw_fault_set(dev, MB_HW_FAULT_va_reserve, 2, MB_ERR_NO_ADDRESS, false);
    CHECK_OK(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va));
    va.addr = 7;
    CHECK_EQ(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va), MB_ERR_NO_ADDRESS);
    CHECK_EQ(va.addr, 7);
    CHECK(strstr(mb_error_detail(), "va_reserve") != NULL);
    CHECK_OK(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va));
    CHECK_EQ(mb__hw_fault_hits(dev), 1);
    mb__hw_fault_set(dev, MB_HW_FAULT_va_reserve, 1, MB_ERR_NO_ADDRESS, true);
    CHECK_EQ(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va), MB_ERR_NO_ADDRESS);
    CHECK_EQ(dev->ops->va_reserve(dev, MB_FRAME_BYTES, 0, &va), MB_ERR_NO_ADDRESS);
    dev->ops->close(dev);
}

TEST(any_use_can_be_chosen)
{
    struct mb_hw_dev *dev = open_wrapped();
    struct mb_hw_stream *stream;
    struct mb_hw_fence fence;

    mb__hw_fault_set(dev, MB_HW_FAULT_ANY, 2, MB_ERR_HOST_MEMORY, false);
    CHECK_OK(dev->ops->stream_open(dev, NULL, &stream));
    CHECK_EQ(dev->ops->fence_record(dev, stream, &fence), MB_ERR_HOST_MEMORY);
    CHECK_OK(dev->ops->fence_record(dev, stream, &fence));
    CHECK(dev->ops->fence_done(dev, fence));
    dev->ops->close(dev);
}
#endif
