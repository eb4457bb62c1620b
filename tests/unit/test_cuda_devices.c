/* SPDX-License-Identifier: MIT */
/* Several GPUs in one process: which one an ordinal names, and what a peer is given. Pure parts. */
#include <stdlib.h>

#include "hw/cuda/cuda.h"
#include "test.h"

static const char *const uuids[4] = {
    "GPU-8f2a91c4-0000-1111-2222-333344445555", "GPU-8f2b91c4-0000-1111-2222-333344445555",
    "GPU-77777777-0000-1111-2222-333344445555", "GPU-00000000-0000-1111-2222-333344445555"};

static int visible(const char *list, int ordinal)
{
    return mb__cuda_visible(list, uuids, 4, ordinal);
}

TEST(ordinals_are_those_that_cuda_visible_devices_leaves)
{
    for (int i = -1; i < 6; i++)
        CHECK_EQ(visible(NULL, i), i < 4 ? i : -1);
    CHECK_EQ(visible("", 0), -1);
    CHECK_EQ(visible("2", 0), 2);
    CHECK_EQ(visible("2", 1), -1);
    CHECK_EQ(visible("3,1", 0), 3);
    CHECK_EQ(visible("3,1", 1), 1);
    CHECK_EQ(visible("3, 1 ,0", 2), 0);
    CHECK_EQ(visible("3,1,0", 3), -1);
    /* What names nothing ends the list. */
    CHECK_EQ(visible("1,9,0", 0), 1);
    CHECK_EQ(visible("1,9,0", 1), -1);
    CHECK_EQ(visible("1,9,0", 2), -1);
    CHECK_EQ(visible("-1", 0), -1);
    CHECK_EQ(visible("1x", 0), -1);
    CHECK_EQ(visible("NoDevFiles", 0), -1);
    CHECK_EQ(visible("MIG-123", 0), -1);
    CHECK_EQ(visible(",1", 0), -1);
    CHECK_EQ(visible("0", -1), -1);
}

TEST(a_gpu_is_named_by_the_beginning_of_its_number)
{
    CHECK_EQ(visible("GPU-77777777-0000-1111-2222-333344445555", 0), 2);
    CHECK_EQ(visible("gpu-7777", 0), 2);
    CHECK_EQ(visible("GPU-7,GPU-8f2b", 1), 1);
    CHECK_EQ(visible("GPU-8f2", 0), -1); /* two begin so */
    CHECK_EQ(visible("GPU-99", 0), -1);
}

TEST(a_slab_is_opened_as_far_as_any_page_asks)
{
    struct mb_cuda_grant *grant = calloc(1, sizeof(*grant) + 8);
    int before;

    CHECK(grant != NULL);
    CHECK_EQ(mb__cuda_grant_set(grant, 8, 2, 3, CU_MEM_ACCESS_READ, &before), CU_MEM_ACCESS_READ);
    CHECK_EQ(before, CU_MEM_ACCESS_NONE);
    CHECK_EQ(mb__cuda_grant_set(grant, 8, 7, 1, CU_MEM_ACCESS_READ_WRITE, &before),
             CU_MEM_ACCESS_READ_WRITE);
    CHECK_EQ(before, CU_MEM_ACCESS_READ);
    CHECK_EQ(mb__cuda_grant_set(grant, 8, 2, 3, CU_MEM_ACCESS_NONE, &before),
             CU_MEM_ACCESS_READ_WRITE);
    CHECK_EQ(mb__cuda_grant_set(grant, 8, 0, 8, CU_MEM_ACCESS_NONE, &before), CU_MEM_ACCESS_NONE);
    CHECK_EQ(before, CU_MEM_ACCESS_READ_WRITE);
    free(grant);
}
