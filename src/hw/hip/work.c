/* SPDX-License-Identifier: MIT */
/*
 * work.c - device work that tests, replay and benches need: kernels that go through the TLB.
 *
 * How       Code objects of every GPU that this build could compile for are inside; the first that
 *           HIP takes is used. Each stream counts its wrong words in device memory and copies the
 *           count to the host behind every verify, since adding to host memory from the device
 *           needs atomics over PCIe, which not every machine has.
 */
#include "hw/hip/hip.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { THREADS = 256, BLOCKS_PER_UNIT = 8 }; /* THREADS as in kernels/hip/work.cl */

static enum mb_err load(struct mb_hip *dev)
{
    char names[128] = "";
    enum mb_err err = MB_ERR_NOT_SUPPORTED;

    for (const struct mb_hip_code *code = mb__hip_code; code->name; code++) {
        size_t used = strlen(names);

        err = mb__hip_check(dev->hip, dev->hip->module_load(&dev->module, code->bytes),
                            "loading MoonBright's kernels");
        if (!err)
            return MB_OK;
        snprintf(names + used, sizeof(names) - used, " %s", code->name);
    }
    if (!*names)
        return mb__hip_fail(
            MB_ERR_NOT_SUPPORTED,
            "this build has no kernels for AMD GPUs: no clang with the amdgcn target and "
            "lld was found when it was made");
    return mb__fail_in(MB_ERR_NOT_SUPPORTED,
                       "this build has kernels for%s, and HIP took none of them", names);
}

enum mb_err mb__hip_work_init(struct mb_hip *dev)
{
    struct {
        hip_function *to;
        const char *name;
    } list[] = {{&dev->fill, "mb_fill"}, {&dev->verify, "mb_verify"}, {&dev->copy, "mb_copy"}};
    int units = 0;
    void *p = NULL;
    enum mb_err err = load(dev);

    for (unsigned i = 0; !err && i < sizeof(list) / sizeof(list[0]); i++)
        err = mb__hip_check(dev->hip,
                            dev->hip->module_function(list[i].to, dev->module, list[i].name),
                            list[i].name);
    if (!err)
        err = mb__hip_check(dev->hip,
                            dev->hip->device_attr(&units, HIP_ATTR_MULTIPROCESSORS, dev->ordinal),
                            "asking for compute units");
    if (!err)
        err = mb__hip_check(dev->hip, dev->hip->malloc(&p, MB_HIP_STREAMS * 8), "counters");
    if (!err) {
        dev->wrong_dev = p;
        err = mb__hip_check(dev->hip, dev->hip->memset8(p, 0, MB_HIP_STREAMS * 8), "counters");
    }
    if (!err)
        err = mb__hip_check(dev->hip, dev->hip->device_sync(), "counters");
    dev->multiprocessors = units > 0 ? (unsigned)units : 1;
    return err;
}

void mb__hip_work_fini(struct mb_hip *dev)
{
    if (dev->wrong_dev)
        (void)dev->hip->free(dev->wrong_dev);
    if (dev->module)
        (void)dev->hip->module_unload(dev->module);
}

static enum mb_err check(uint64_t a, uint64_t b, uint64_t bytes)
{
    if (a % 8 || b % 8 || bytes % 8)
        return mb__hip_fail(MB_ERR_INVALID,
                            "device work at 0x%" PRIx64 " on %" PRIu64
                            " bytes: addresses and sizes are multiples of 8",
                            a | b, bytes);
    return MB_OK;
}

static uint64_t blocks_of(const struct mb_hip *dev, uint64_t words)
{
    uint64_t blocks = (words + THREADS - 1) / THREADS;
    uint64_t most = (uint64_t)dev->multiprocessors * BLOCKS_PER_UNIT;

    return blocks < most ? blocks : most;
}

static enum mb_err launch(struct mb_hip *dev, hip_function f, struct mb_hw_stream *stream,
                          uint64_t blocks, void **params, const char *what)
{
    return mb__hip_result(
        dev,
        dev->hip->launch(f, (unsigned)blocks, 1, 1, THREADS, 1, 1, 0, stream->native, params, NULL),
        what);
}

enum mb_err mb__hip_fill(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                         uint64_t bytes, uint64_t seed)
{
    struct mb_hip *dev = mb__hip(hw);
    uint64_t words = bytes / 8, blocks = blocks_of(dev, words), step = blocks * THREADS;
    void *params[] = {&va.addr, &words, &seed, &step};
    struct mb_hip_scope scope;
    enum mb_err err = check(va.addr, 0, bytes);

    if (err || !words)
        return err;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    err = launch(dev, dev->fill, stream, blocks, params, "launching fill");
    mb__hip_leave(dev, &scope);
    return err;
}

enum mb_err mb__hip_verify(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va va,
                           uint64_t bytes, uint64_t seed)
{
    struct mb_hip *dev = mb__hip(hw);
    uint64_t words = bytes / 8, blocks = blocks_of(dev, words), step = blocks * THREADS;
    uint64_t *wrong = dev->wrong_dev + stream->index;
    void *params[] = {&va.addr, &words, &seed, &step, &wrong};
    struct mb_hip_scope scope;
    enum mb_err err = check(va.addr, 0, bytes);

    if (err || !words)
        return err;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    err = launch(dev, dev->verify, stream, blocks, params, "launching verify");
    if (!err)
        err = mb__hip_result(dev,
                             dev->hip->copy_to_host((void *)(uintptr_t)&dev->wrong[stream->index],
                                                    wrong, 8, stream->native),
                             "reading the result of verify");
    mb__hip_leave(dev, &scope);
    return err;
}

/* Checked, and the context entered. */
static enum mb_err launch_copy(struct mb_hip *dev, struct mb_hw_stream *stream, uint64_t dst,
                               uint64_t src, uint64_t words)
{
    uint64_t blocks = blocks_of(dev, words), step = blocks * THREADS;
    void *params[] = {&dst, &src, &words, &step};

    return words ? launch(dev, dev->copy, stream, blocks, params, "launching copy") : MB_OK;
}

enum mb_err mb__hip_copy(struct mb_hw_dev *hw, struct mb_hw_stream *stream, mb_va dst, mb_va src,
                         uint64_t bytes)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = check(dst.addr, src.addr, bytes);

    if (err || !bytes)
        return err;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    err = launch_copy(dev, stream, dst.addr, src.addr, bytes / 8);
    mb__hip_leave(dev, &scope);
    return err;
}

enum mb_err mb__hip_copy_list(struct mb_hw_dev *hw, struct mb_hw_stream *stream,
                              const struct mb_copy *list, unsigned count)
{
    struct mb_hip *dev = mb__hip(hw);
    struct mb_hip_scope scope;
    enum mb_err err = MB_OK;

    for (unsigned i = 0; !err && i < count; i++) {
        if (list[i].bytes)
            err = check((uintptr_t)list[i].dst, (uintptr_t)list[i].src, list[i].bytes);
        if (err)
            return mb__fail_in(err, "copy %u of 0 to %u", i, count - 1);
    }
    if (err || !count)
        return err;
    err = mb__hip_enter(dev, &scope);
    if (err)
        return err;
    for (unsigned i = 0; !err && i < count; i++)
        err = launch_copy(dev, stream, (uintptr_t)list[i].dst, (uintptr_t)list[i].src,
                          list[i].bytes / 8);
    mb__hip_leave(dev, &scope);
    return err;
}
