/* SPDX-License-Identifier: MIT */
/* The redirected imports, what the observer remembers and what it tells; libcuda's objects found
 * late. */
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "hw/cuda/got.h"
#include "hw/cuda/late.h"
#include "hw/cuda/observe.h"
#include "hw/nvrm/os.h"
#include "test.h"

/* ------------------------------------------------------------ imports */

static int calls;

static int counted_ppid(void)
{
    calls++;
    return 4711;
}

TEST(an_import_of_this_program_can_be_redirected)
{
    pid_t (*volatile direct)(void) = getppid;
    unsigned count = 0;
    enum mb_err err = mb__got_patch("", "getppid", (void (*)(void))counted_ppid, &count);

    (void)direct;
    if (err == MB_ERR_NOT_SUPPORTED)
        SKIP("imports can be redirected on x86-64 and arm64 only");
    CHECK_OK(err);
    CHECK(count >= 1);
    CHECK_EQ(getppid(), 4711);
    CHECK(calls >= 1);
    /* Again: the same words, nothing else. */
    CHECK_OK(mb__got_patch("", "getppid", (void (*)(void))counted_ppid, &count));
    CHECK_EQ(getppid(), 4711);
}

TEST(what_is_not_there_is_named)
{
    unsigned count = 99;

    CHECK_EQ(mb__got_patch("libnothing.so", "ioctl", (void (*)(void))counted_ppid, &count),
             MB_ERR_NOT_FOUND);
    CHECK(strstr(mb_error_detail(), "libnothing.so"));
    CHECK_EQ(mb__got_patch("", "no_such_function_anywhere", (void (*)(void))counted_ppid, &count),
             MB_ERR_NOT_FOUND);
    CHECK_EQ(count, 99);
    CHECK(mb__got_loaded("libc.so"));
    CHECK(!mb__got_loaded("libcud"));
}

/* ------------------------------------------------------------ observer */

static struct mb_cuda_loss last;
static unsigned losses;

static void note(const struct mb_cuda_loss *loss)
{
    last = *loss;
    losses++;
}

static const uint8_t uuid[NVRM_UUID_BYTES] = {1, 2,  3,  4,  5,  6,  7,  8,
                                              9, 10, 11, 12, 13, 14, 15, 16};

static void start(unsigned major)
{
    const struct nvrm_series *series;

    CHECK_OK(mb__nvrm_series_find(major, &series));
    mb__cuda_observe_reset(series, note);
    losses = 0;
}

static void alloc(nvrm_handle parent, nvrm_handle object, uint32_t class_id, uint32_t status)
{
    struct nvrm_abi_alloc a = {.client = 0xc1d00001,
                               .parent = parent,
                               .object = object,
                               .class_id = class_id,
                               .status = status};

    mb__cuda_observe_after(NVRM_FD_CTL, 8, mb__nvrm_escape_request(NVRM_ESC_ALLOC, sizeof(a)), &a);
}

static void register_space(void)
{
    struct nvrm_abi_uvm_register_vaspace v = {
        .rm_ctl_fd = 8, .client = 0xc1d00001, .vaspace = 0x5c000009};

    memcpy(v.uuid, uuid, sizeof(uuid));
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_REGISTER_VASPACE, &v);
}

static void register_channel(nvrm_handle channel, uint32_t status)
{
    struct nvrm_abi_uvm_register_channel c = {
        .rm_ctl_fd = 8, .client = 0xc1d00001, .channel = channel, .status = status};

    memcpy(c.uuid, uuid, sizeof(uuid));
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_REGISTER_CHANNEL, &c);
}

TEST(a_context_is_put_together)
{
    struct mb_cuda_seen seen;

    start(580);
    CHECK_EQ(mb__cuda_observed(uuid, &seen), MB_ERR_NOT_FOUND);
    alloc(0xc1d00001, 0x5c000002, NVRM_CLASS_DEVICE, 0);
    alloc(0x5c000002, 0x5c000003, NVRM_CLASS_SUBDEVICE, 0);
    alloc(0x5c000077, 0x5c000078, NVRM_CLASS_SUBDEVICE, 0); /* of another device */
    alloc(0x5c000002, 0x5c000009, NVRM_CLASS_VASPACE, 0);
    alloc(0x5c000099, 0x5c000009, NVRM_CLASS_VASPACE, 0x51); /* refused by the driver */
    register_space();
    register_channel(0x5c00001c, 0);
    register_channel(0x5c000022, 0);
    register_channel(0x5c000026, 0x1f); /* refused */
    CHECK_OK(mb__cuda_observed(uuid, &seen));
    CHECK_EQ(seen.uvm_fd, 9);
    CHECK_EQ(seen.ctl_fd, 8);
    CHECK_EQ(seen.client, 0xc1d00001);
    CHECK_EQ(seen.vaspace, 0x5c000009);
    CHECK_EQ(seen.device, 0x5c000002);
    CHECK_EQ(seen.subdevice, 0x5c000003);
    CHECK_EQ(seen.channels, 2);
    CHECK_EQ(seen.channel[1], 0x5c000022);
    CHECK(!seen.mps && !seen.late);
}

TEST(what_goes_is_forgotten_and_told_before)
{
    struct nvrm_abi_uvm_unregister_channel c = {.client = 0xc1d00001, .channel = 0x5c00001c};
    struct nvrm_abi_uvm_unregister_vaspace v = {.status = 0};
    struct nvrm_abi_uvm_unmap u = {.base = 0x320000000, .length = 0x200000};
    struct nvrm_abi_free f = {.client = 0xc1d00001, .object = 0x5c0000f3};
    struct mb_cuda_seen seen;

    start(580);
    alloc(0xc1d00001, 0x5c000002, NVRM_CLASS_DEVICE, 0);
    alloc(0x5c000002, 0x5c000009, NVRM_CLASS_VASPACE, 0);
    register_space();
    register_channel(0x5c00001c, 0);
    memcpy(c.uuid, uuid, sizeof(uuid));
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_UNREGISTER_CHANNEL, &c);
    CHECK_OK(mb__cuda_observed(uuid, &seen));
    CHECK_EQ(seen.channels, 0);

    mb__cuda_observe_before(NVRM_FD_UVM, 9, NVRM_UVM_UNMAP_EXTERNAL, &u);
    CHECK_EQ(losses, 1);
    CHECK_EQ(last.kind, MB_LOSS_RANGE);
    CHECK_EQ(last.base, 0x320000000);
    CHECK_EQ(last.bytes, 0x200000);
    mb__cuda_observe_before(NVRM_FD_CTL, 8, mb__nvrm_escape_request(NVRM_ESC_FREE, sizeof(f)), &f);
    CHECK_EQ(losses, 2);
    CHECK_EQ(last.kind, MB_LOSS_OBJECT);
    CHECK_EQ(last.object, 0x5c0000f3);
    memcpy(v.uuid, uuid, sizeof(uuid));
    mb__cuda_observe_before(NVRM_FD_UVM, 9, NVRM_UVM_UNREGISTER_VASPACE, &v);
    CHECK_EQ(losses, 3);
    CHECK_EQ(last.kind, MB_LOSS_SPACE);
    CHECK_OK(mb__cuda_observed(uuid, &seen)); /* not gone before the call */
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_UNREGISTER_VASPACE, &v);
    CHECK_EQ(mb__cuda_observed(uuid, &seen), MB_ERR_NOT_FOUND);
    /* The same numbers on a file that is not the driver's say nothing. */
    mb__cuda_observe_before(NVRM_FD_OTHER, 5, NVRM_UVM_UNMAP_EXTERNAL, &u);
    CHECK_EQ(losses, 3);
}

/* One client, one file, two GPUs: what libcuda does in a process that uses both. */
static void gpu_objects(unsigned gpu)
{
    nvrm_handle base = 0x5c000000 + gpu * 0x10000;
    struct nvrm_abi_uvm_register_vaspace v = {
        .rm_ctl_fd = 8, .client = 0xc1d00001, .vaspace = base + 9};
    struct nvrm_abi_uvm_register_channel c = {
        .rm_ctl_fd = 8, .client = 0xc1d00001, .channel = base + 0x1c};

    alloc(0xc1d00001, base + 2, NVRM_CLASS_DEVICE, 0);
    alloc(base + 2, base + 3, NVRM_CLASS_SUBDEVICE, 0);
    alloc(base + 2, base + 9, NVRM_CLASS_VASPACE, 0);
    for (nvrm_handle i = 0; i < 400; i++) /* memory, events, channels, engines */
        alloc(base + 2, base + 0x1000 + i, 0x40 + i % 7, 0);
    memcpy(v.uuid, uuid, sizeof(uuid));
    memcpy(c.uuid, uuid, sizeof(uuid));
    v.uuid[0] = c.uuid[0] = (uint8_t)(100 + gpu);
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_REGISTER_VASPACE, &v);
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_REGISTER_CHANNEL, &c);
}

TEST(eight_gpus_of_one_process_are_kept_apart)
{
    struct nvrm_abi_uvm_unmap u = {.base = 0x320000000, .length = 0x200000};
    struct nvrm_abi_uvm_unregister_vaspace v = {.status = 0};
    struct mb_cuda_seen seen;
    uint8_t id[NVRM_UUID_BYTES];

    start(580);
    for (unsigned gpu = 0; gpu < 8; gpu++)
        gpu_objects(gpu);
    memcpy(id, uuid, sizeof(id));
    for (unsigned gpu = 0; gpu < 8; gpu++) {
        nvrm_handle base = 0x5c000000 + gpu * 0x10000;

        id[0] = (uint8_t)(100 + gpu);
        CHECK_OK(mb__cuda_observed(id, &seen));
        CHECK_EQ(seen.device, base + 2);
        CHECK_EQ(seen.subdevice, base + 3);
        CHECK_EQ(seen.vaspace, base + 9);
        CHECK_EQ(seen.channels, 1);
        CHECK_EQ(seen.channel[0], base + 0x1c);
    }
    /* A loss says whose it is, and one GPU's end leaves the others. */
    id[0] = 103;
    memcpy(u.uuid, id, sizeof(id));
    mb__cuda_observe_before(NVRM_FD_UVM, 9, NVRM_UVM_UNMAP_EXTERNAL, &u);
    CHECK_EQ(losses, 1);
    CHECK_EQ(last.kind, MB_LOSS_RANGE);
    CHECK(last.uuid != NULL);
    memcpy(v.uuid, id, sizeof(id));
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_UNREGISTER_VASPACE, &v);
    CHECK_EQ(mb__cuda_observed(id, &seen), MB_ERR_NOT_FOUND);
    for (unsigned gpu = 0; gpu < 8; gpu++) {
        id[0] = (uint8_t)(100 + gpu);
        CHECK_EQ(mb__cuda_observed(id, &seen), gpu == 3 ? MB_ERR_NOT_FOUND : MB_OK);
    }
}

TEST(our_own_calls_are_recorded_and_not_told)
{
    static struct nvrm_abi_uvm_map m;
    struct nvrm_abi_uvm_unmap u = {.base = 0x320000000, .length = 0x200000};
    struct mb_cuda_own_calls outer, inner;
    struct mb_cuda_map_event event;

    start(580);
    m.base = 0x320000000;
    m.length = 0x200000;
    m.offset = 4096;
    m.attr_count = 1;
    m.rm_ctl_fd = 8;
    m.client = 0xc1d00001;
    m.memory = 0x5c0000f3;
    mb__cuda_own_begin(&outer, &event);
    mb__cuda_observe_before(NVRM_FD_UVM, 9, NVRM_UVM_UNMAP_EXTERNAL, &u);
    CHECK_EQ(losses, 0);
    CHECK(!event.seen);
    mb__cuda_own_begin(&inner, NULL);
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_MAP_EXTERNAL, &m);
    mb__cuda_own_end(&inner);
    CHECK(!event.seen);
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_MAP_EXTERNAL, &m);
    CHECK(event.seen);
    CHECK_EQ(event.memory, 0x5c0000f3);
    CHECK_EQ(event.offset, 4096);
    m.memory = 1; /* the first one counts */
    mb__cuda_observe_after(NVRM_FD_UVM, 9, NVRM_UVM_MAP_EXTERNAL, &m);
    CHECK_EQ(event.memory, 0x5c0000f3);
    mb__cuda_own_end(&outer);
    mb__cuda_observe_before(NVRM_FD_UVM, 9, NVRM_UVM_UNMAP_EXTERNAL, &u);
    CHECK_EQ(losses, 1);
}

/* ------------------------------------------------------------ late */

enum { COUNT = 64 };

static void put(uint32_t *classes, nvrm_handle *parents, unsigned i, uint32_t class_id,
                nvrm_handle parent)
{
    classes[i] = class_id;
    parents[i] = parent;
}

TEST(objects_are_found_late)
{
    const nvrm_handle first = 0x5c000000;
    uint32_t classes[COUNT] = {0};
    nvrm_handle parents[COUNT] = {0};
    struct mb_cuda_seen seen;

    put(classes, parents, 2, NVRM_CLASS_DEVICE, 0xc1d00001);
    put(classes, parents, 3, NVRM_CLASS_SUBDEVICE, first + 2);
    put(classes, parents, 10, NVRM_CLASS_CHANNEL_GROUP, first + 2);
    put(classes, parents, 11, 0xc86f, first + 10);
    put(classes, parents, 12, 0xc86f, first + 10);
    /* another GPU's */
    put(classes, parents, 20, NVRM_CLASS_DEVICE, 0xc1d00001);
    put(classes, parents, 21, NVRM_CLASS_SUBDEVICE, first + 20);
    put(classes, parents, 22, 0xc86f, first + 20);
    CHECK_OK(mb__cuda_pick_late(first, classes, parents, COUNT, 0xc86f, first + 2, &seen));
    CHECK(seen.late);
    CHECK_EQ(seen.device, first + 2);
    CHECK_EQ(seen.subdevice, first + 3);
    CHECK_EQ(seen.channels, 2);
    CHECK_EQ(seen.channel[0], first + 11);
    CHECK_OK(mb__cuda_pick_late(first, classes, parents, COUNT, 0xc86f, first + 20, &seen));
    CHECK_EQ(seen.channels, 1);
    CHECK_EQ(seen.channel[0], first + 22);
}

TEST(what_is_missing_late_is_said)
{
    const nvrm_handle first = 0x5c000000;
    uint32_t classes[COUNT] = {0};
    nvrm_handle parents[COUNT] = {0};
    struct mb_cuda_seen seen;

    CHECK_EQ(mb__cuda_pick_late(first, classes, parents, COUNT, 0xc86f, 0, &seen),
             MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "device"));
    put(classes, parents, 2, NVRM_CLASS_DEVICE, 0xc1d00001);
    CHECK_EQ(mb__cuda_pick_late(first, classes, parents, COUNT, 0xc86f, first + 2, &seen),
             MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "subdevice"));
    put(classes, parents, 3, NVRM_CLASS_SUBDEVICE, first + 2);
    put(classes, parents, 4, 0xc86f, first + 4); /* its own parent: no way up */
    CHECK_EQ(mb__cuda_pick_late(first, classes, parents, COUNT, 0xc86f, first + 2, &seen),
             MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "channels"));
}
