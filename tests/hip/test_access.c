/* SPDX-License-Identifier: MIT */
/*
 * Access of a second device on A FAKE of HIP with two: hipMemSetAccess is asked for the peer, and
 * what is open stays. Nothing here has run on AMD hardware.
 */
#include <stdlib.h>
#include <string.h>

#include "fake_access.h"
#include "support/runtime_rig.h"

static mb_device open_at(int ordinal)
{
    mb_device dev = NULL;
    enum mb_err err = mb_open(ordinal, "backend:hip", &dev);

    if (err && strstr(mb_error_detail(), "no kernels"))
        SKIP(mb_error_detail());
    if (err)
        FAIL("mb_open: %s: %s", mb_error_name(err), mb_error_detail());
    return dev;
}

static enum mb_err give(mb_device owner, void *va, mb_device dev, enum mb_prot prot)
{
    struct mb_access access = {dev, prot};

    return mb_mem_set_access(owner, va, 2 * RT_MIB, &access, 1);
}

TEST(a_peer_is_given_access_by_the_driver)
{
    mb_device a, b;
    mb_mem mem = NULL;
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 2 * RT_MIB};
    enum mb_prot prot = MB_PROT_NONE;
    uint64_t before;
    void *block;

    CHECK_EQ(setenv("FAKE_HIP_DEVICES", "2", 1), 0);
    a = open_at(0);
    b = open_at(1);
    block = rt_malloc(a, 4 * RT_MIB, NULL);
    rt_fill(a, block, 4 * RT_MIB, 1, NULL);
    RT_OK(mb_device_sync(a));
    before = fake_count("hipMemSetAccess");
    RT_OK(give(a, block, b, MB_PROT_READ_WRITE));
    CHECK(fake_count("hipMemSetAccess") > before);
    RT_OK(mb_verify_async(b, block, 4 * RT_MIB, rt_seed(block, 1), NULL));
    rt_clean(b);
    RT_OK(mb_mem_create(a, 2 * RT_MIB, &mem));
    RT_OK(mb_mem_reserve(a, 2 * RT_MIB, 0, &op.va));
    op.mem = mem;
    RT_OK(mb_mem_map_async(a, &op, 1, NULL));
    RT_OK(give(a, op.va, b, MB_PROT_READ));
    RT_OK(mb_mem_get_access(a, op.va, b, &prot));
    CHECK_EQ(prot, MB_PROT_READ);
    op.kind = MB_UNMAP;
    CHECK_EQ(mb_mem_map_async(a, &op, 1, NULL), MB_ERR_BUSY);
    /* The driver refuses: nothing has changed. */
    fake_fail("hipMemSetAccess", 1, 1);
    CHECK_EQ(give(a, op.va, b, MB_PROT_READ_WRITE), MB_ERR_DRIVER);
    RT_OK(mb_mem_get_access(a, op.va, b, &prot));
    CHECK_EQ(prot, MB_PROT_READ);
    RT_OK(give(a, op.va, b, MB_PROT_NONE));
    RT_OK(mb_mem_map_async(a, &op, 1, NULL));
    RT_OK(mb_mem_release(a, mem));
    RT_OK(mb_mem_unreserve(a, op.va, 2 * RT_MIB));
    RT_OK(mb_free_async(a, block, NULL));
    mb_close(b);
    rt_close(a);
}
