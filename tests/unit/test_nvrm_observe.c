/* SPDX-License-Identifier: MIT */
/* Decoders of libcuda's calls on hand-made buffers, and the UVM wrappers' arguments. No GPU. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/nvrm/observe.h"
#include "hw/nvrm/os.h"
#include "hw/nvrm/status.h"
#include "hw/nvrm/uvm.h"
#include "test.h"

static const struct nvrm_series *series(unsigned major)
{
    const struct nvrm_series *s = NULL;

    CHECK_OK(mb__nvrm_series_find(major, &s));
    return s;
}

static struct nvrm_observed see(unsigned major, enum nvrm_fd_kind kind, unsigned long request,
                                const void *arg, enum nvrm_moment moment)
{
    struct nvrm_observed o;

    memset(&o, 0xee, sizeof o);
    mb__nvrm_observe(series(major), kind, 9, request, arg, moment, &o);
    CHECK_EQ(o.fd, 9);
    return o;
}

TEST(files_are_told_apart)
{
    static const struct {
        const char *path;
        enum nvrm_fd_kind kind;
    } paths[] = {
        {"/dev/nvidiactl", NVRM_FD_CTL},
        {"/dev/nvidia0", NVRM_FD_GPU},
        {"/dev/nvidia15", NVRM_FD_GPU},
        {"/dev/nvidia-uvm", NVRM_FD_UVM},
        {"/dev/nvidia", NVRM_FD_OTHER},
        {"/dev/nvidia-uvm-tools", NVRM_FD_OTHER},
        {"/dev/nvidia-modeset", NVRM_FD_OTHER},
        {"/dev/nvidia0x", NVRM_FD_OTHER},
        {"/dev/nvidia-caps/nvidia-cap1", NVRM_FD_OTHER},
        {"/chroot/dev/nvidia0", NVRM_FD_OTHER},
        {"socket:[1]", NVRM_FD_OTHER},
        {"", NVRM_FD_OTHER},
    };
    for (unsigned i = 0; i < sizeof paths / sizeof paths[0]; i++)
        CHECK_EQ(mb__nvrm_path_kind(paths[i].path), paths[i].kind);

    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    errno = 4711;
    CHECK_EQ(mb__nvrm_fd_kind(fd), NVRM_FD_OTHER);
    CHECK_EQ(mb__nvrm_fd_kind(-1), NVRM_FD_OTHER);
    CHECK_EQ(errno, 4711);
    close(fd);
}

TEST(address_space_registration)
{
    struct nvrm_abi_uvm_register_vaspace a = {
        .uuid = {1, 2, 3}, .rm_ctl_fd = 8, .client = 0xc1d00037, .vaspace = 0x5c000009};
    struct nvrm_observed o = see(580, NVRM_FD_UVM, 0x19, &a, NVRM_BEFORE);

    CHECK_EQ(o.kind, NVRM_SAW_VASPACE_REGISTER);
    CHECK_EQ(o.rm_ctl_fd, 8);
    CHECK_EQ(o.client, 0xc1d00037);
    CHECK_EQ(o.object, 0x5c000009);
    CHECK_EQ(o.uuid[2], 3);
    struct nvrm_abi_uvm_unregister_vaspace b = {.uuid = {7}, .status = 0x40};
    o = see(580, NVRM_FD_UVM, 0x1a, &b, NVRM_AFTER);
    CHECK_EQ(o.kind, NVRM_SAW_VASPACE_UNREGISTER);
    CHECK_EQ(o.uuid[0], 7);
    CHECK_EQ(o.status, 0x40);
    CHECK_EQ(o.rm_ctl_fd, -1);
}

TEST(channel_registration_in_both_layouts)
{
    struct nvrm_abi_uvm_register_channel a = {.uuid = {1},
                                              .rm_ctl_fd = 8,
                                              .client = 0xc1,
                                              .channel = 0x5c00001c,
                                              .base = 0x200000,
                                              .length = 0x3000};
    struct nvrm_observed o = see(590, NVRM_FD_UVM, 0x1b, &a, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_CHANNEL_REGISTER);
    CHECK_EQ(o.object, 0x5c00001c);
    CHECK_EQ(o.base, 0x200000);
    CHECK_EQ(o.length, 0x3000);

    struct nvrm_abi_uvm_unregister_channel old = {.uuid = {5}, .client = 0xc1, .channel = 0x1c};
    o = see(580, NVRM_FD_UVM, 0x1c, &old, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_CHANNEL_UNREGISTER);
    CHECK_EQ(o.client, 0xc1);
    CHECK_EQ(o.object, 0x1c);
    CHECK_EQ(o.uuid[0], 5);
    struct nvrm_abi_uvm_unregister_channel_v590 new = {.client = 0xc2, .channel = 0x2c};
    o = see(595, NVRM_FD_UVM, 0x1c, &new, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_CHANNEL_UNREGISTER);
    CHECK_EQ(o.client, 0xc2);
    CHECK_EQ(o.object, 0x2c);
    CHECK_EQ(o.uuid[0], 0);
}

TEST(external_mappings)
{
    static struct nvrm_abi_uvm_map a;

    memset(&a, 0, sizeof a);
    a.base = 0x320000000;
    a.length = 0x200000;
    a.offset = 0x1000;
    a.attr[0] = (struct nvrm_abi_uvm_attr){.uuid = {9}, .mapping = 1, .format = 2};
    a.attr_count = 2;
    a.rm_ctl_fd = 8;
    a.client = 0xc1;
    a.memory = 0x5c000100;
    struct nvrm_observed o = see(580, NVRM_FD_UVM, 0x21, &a, NVRM_AFTER);
    CHECK_EQ(o.kind, NVRM_SAW_EXTERNAL_MAP);
    CHECK_EQ(o.base, 0x320000000);
    CHECK_EQ(o.length, 0x200000);
    CHECK_EQ(o.offset, 0x1000);
    CHECK_EQ(o.client, 0xc1);
    CHECK_EQ(o.object, 0x5c000100);
    CHECK_EQ(o.attr_count, 2);
    CHECK_EQ(o.attr.mapping, 1);
    CHECK_EQ(o.attr.format, 2);
    CHECK_EQ(o.uuid[0], 9);
    a.attr_count = 0;
    CHECK_EQ(see(580, NVRM_FD_UVM, 0x21, &a, NVRM_AFTER).kind, NVRM_SAW_NOTHING);
    a.attr_count = 257;
    CHECK_EQ(see(580, NVRM_FD_UVM, 0x21, &a, NVRM_AFTER).kind, NVRM_SAW_NOTHING);

    struct nvrm_abi_uvm_unmap b = {.base = 0x1000, .length = 0x2000, .uuid = {4}};
    o = see(580, NVRM_FD_UVM, 0x42, &b, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_EXTERNAL_UNMAP);
    CHECK_EQ(o.length, 0x2000);
    CHECK_EQ(o.uuid[0], 4);

    struct nvrm_abi_uvm_range c = {.base = 0x5000, .length = 0x6000, .status = 3};
    o = see(580, NVRM_FD_UVM, 0x22, &c, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_RANGE_FREE);
    CHECK_EQ(o.base, 0x5000);
    CHECK_EQ(o.length, 0x6000);
    CHECK_EQ(o.status, 3);
    struct nvrm_abi_uvm_free_v590 d = {.base = 0x7000, .status = 5};
    o = see(590, NVRM_FD_UVM, 0x22, &d, NVRM_BEFORE);
    CHECK_EQ(o.base, 0x7000);
    CHECK_EQ(o.length, 0);
    CHECK_EQ(o.status, 5);
}

TEST(end_of_a_file_and_mps)
{
    uint64_t arg = 0;

    CHECK_EQ(see(580, NVRM_FD_UVM, 0x30000002, NULL, NVRM_BEFORE).kind, NVRM_SAW_UVM_END);
    CHECK_EQ(see(580, NVRM_FD_UVM, 0x13, &arg, NVRM_BEFORE).kind, NVRM_SAW_MPS);
    CHECK_EQ(see(590, NVRM_FD_UVM, 0x13, &arg, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
}

TEST(objects_made_and_freed)
{
    struct nvrm_abi_vaspace space = {.flags = 0x48};
    struct nvrm_abi_device device = {.instance = 3};
    struct nvrm_abi_alloc a = {.client = 0xc1,
                               .parent = 2,
                               .object = 9,
                               .class_id = NVRM_CLASS_VASPACE,
                               .params = (uintptr_t)&space};
    unsigned long request = mb__nvrm_escape_request(NVRM_ESC_ALLOC, sizeof a);

    struct nvrm_observed o = see(580, NVRM_FD_CTL, request, &a, NVRM_AFTER);
    CHECK_EQ(o.kind, NVRM_SAW_ALLOC);
    CHECK_EQ(o.client, 0xc1);
    CHECK_EQ(o.parent, 2);
    CHECK_EQ(o.object, 9);
    CHECK_EQ(o.class_id, 0x90f1);
    CHECK_EQ(o.param, 0x48);
    CHECK_EQ(see(580, NVRM_FD_CTL, request, &a, NVRM_BEFORE).param, 0); /* nothing followed */
    a.params_bytes = 4; /* too short for the flags */
    CHECK_EQ(see(580, NVRM_FD_CTL, request, &a, NVRM_AFTER).param, 0);
    a.params_bytes = 8;
    CHECK_EQ(see(580, NVRM_FD_CTL, request, &a, NVRM_AFTER).param, 0x48);
    a.status = 0x1f;
    o = see(580, NVRM_FD_CTL, request, &a, NVRM_AFTER);
    CHECK_EQ(o.param, 0);
    CHECK_EQ(o.status, 0x1f);
    a.class_id = 0xcbc0; /* of no interest */
    CHECK_EQ(see(580, NVRM_FD_CTL, request, &a, NVRM_AFTER).kind, NVRM_SAW_NOTHING);

    struct nvrm_abi_alloc_short b = {
        .client = 1, .object = 4, .class_id = NVRM_CLASS_DEVICE, .params = (uintptr_t)&device};
    request = mb__nvrm_escape_request(NVRM_ESC_ALLOC, sizeof b);
    o = see(580, NVRM_FD_CTL, request, &b, NVRM_AFTER);
    CHECK_EQ(o.class_id, 0x80);
    CHECK_EQ(o.object, 4);
    CHECK_EQ(o.param, 3);
    b.params = 0;
    CHECK_EQ(see(580, NVRM_FD_CTL, request, &b, NVRM_AFTER).param, 0);

    struct nvrm_abi_free f = {.client = 1, .parent = 2, .object = 3};
    request = mb__nvrm_escape_request(NVRM_ESC_FREE, sizeof f);
    o = see(580, NVRM_FD_CTL, request, &f, NVRM_BEFORE);
    CHECK_EQ(o.kind, NVRM_SAW_FREE);
    CHECK_EQ(o.client, 1);
    CHECK_EQ(o.object, 3);
}

TEST(other_calls_are_nothing)
{
    struct nvrm_abi_free f = {.client = 1};
    unsigned long request = mb__nvrm_escape_request(NVRM_ESC_FREE, sizeof f);
    struct nvrm_observed o;

    CHECK_EQ(see(580, NVRM_FD_OTHER, request, &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_OTHER, 0x19, &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_CTL, 0x19, &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_UVM, request, &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_CTL, request + (1 << 16), &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_CTL, 0x5401, &f, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_CTL, request, NULL, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    CHECK_EQ(see(580, NVRM_FD_UVM, 0x19, NULL, NVRM_BEFORE).kind, NVRM_SAW_NOTHING);
    mb__nvrm_observe(NULL, NVRM_FD_CTL, 3, request, &f, NVRM_BEFORE, &o);
    CHECK_EQ(o.kind, NVRM_SAW_NOTHING);
    CHECK_EQ(o.fd, 3);
}

/* Any bytes under any request, in a block of exactly the size that the call has: nothing beyond it
 * is read (under AddressSanitizer that is checked), and the kind is one of the enum's. */
TEST(random_arguments_are_harmless)
{
    static const unsigned requests[] = {0x13, 0x19, 0x1a, 0x1b, 0x1c, 0x21, 0x22, 0x42};
    static const unsigned majors[] = {570, 575, 580, 590, 595};
    uint64_t state = mb_test_seed();

    for (int round = 0; round < 20000; round++) {
        const struct nvrm_series *s = series(majors[mb_test_random_below(&state, 5)]);
        unsigned long request = requests[mb_test_random_below(&state, 8)];
        enum nvrm_fd_kind kind = NVRM_FD_UVM;
        size_t bytes = 0;
        switch (request) {
        case 0x13:
            bytes = 8;
            break;
        case 0x19:
            bytes = sizeof(struct nvrm_abi_uvm_register_vaspace);
            break;
        case 0x1a:
            bytes = sizeof(struct nvrm_abi_uvm_unregister_vaspace);
            break;
        case 0x1b:
            bytes = sizeof(struct nvrm_abi_uvm_register_channel);
            break;
        case 0x1c:
            bytes = s->uvm_unregister_channel_bytes;
            break;
        case 0x21:
            bytes = sizeof(struct nvrm_abi_uvm_map);
            break;
        case 0x22:
            bytes = s->uvm_free_bytes;
            break;
        default:
            bytes = sizeof(struct nvrm_abi_uvm_unmap);
            break;
        }
        if (mb_test_random_below(&state, 3) == 0) {
            bytes = (size_t)mb_test_random_below(&state, 64);
            unsigned nr = mb_test_random_below(&state, 2) ? NVRM_ESC_ALLOC : NVRM_ESC_FREE;
            request = mb__nvrm_escape_request(nr, bytes);
            kind = NVRM_FD_CTL;
        }
        uint8_t *arg = malloc(bytes ? bytes : 1);
        for (size_t i = 0; i < bytes; i++)
            arg[i] = (uint8_t)mb_test_random(&state);
        struct nvrm_observed o;
        mb__nvrm_observe(s, kind, 1, request, bytes ? arg : NULL, NVRM_BEFORE, &o);
        CHECK_LE(o.kind, NVRM_SAW_FREE);
        CHECK_EQ(o.param, 0);
        free(arg);
    }
}

/* ------------------------------------------------------------ UVM wrappers: what they send */

/* A FAKE ioctl that records one call and answers with a status at the structure's own place. */
static struct {
    int fd;
    unsigned long request;
    uint8_t arg[sizeof(struct nvrm_abi_uvm_map)];
    uint32_t status;
    int result;
    struct nvrm_series series; /* 0-length calls differ by series */
} sent;

static int record(const struct nvrm_os *os, int fd, unsigned long request, void *arg)
{
    size_t bytes, status;

    (void)os;
    switch (request) {
    case NVRM_UVM_MAP_EXTERNAL:
        bytes = sizeof(struct nvrm_abi_uvm_map);
        status = offsetof(struct nvrm_abi_uvm_map, status);
        break;
    case NVRM_UVM_UNMAP_EXTERNAL:
        bytes = sizeof(struct nvrm_abi_uvm_unmap);
        status = offsetof(struct nvrm_abi_uvm_unmap, status);
        break;
    case NVRM_UVM_FREE:
        bytes = sent.series.uvm_free_bytes;
        status = bytes - 8;
        break;
    default:
        bytes = sizeof(struct nvrm_abi_uvm_range);
        status = offsetof(struct nvrm_abi_uvm_range, status);
        break;
    }
    sent.fd = fd;
    sent.request = request;
    memcpy(sent.arg, arg, bytes);
    memcpy((uint8_t *)arg + status, &sent.status, sizeof sent.status);
    return sent.result;
}

static const struct nvrm_os recorder = {.ioctl = record};

static struct nvrm_client client_of(unsigned major)
{
    struct nvrm_client c = {.os = &recorder, .ctl_fd = 5, .root = 0xc1d00042};

    c.guard.owner = (int)getpid();
    c.series = series(major);
    memset(&sent, 0, sizeof sent);
    sent.series = *c.series;
    return c;
}

TEST(uvm_calls_carry_their_arguments)
{
    struct nvrm_client c = client_of(580);
    uint8_t uuid[16] = {1, 2, 3};

    CHECK_OK(mb__nvrm_uvm_create_range(&c, 9, 0x1000, 0x2000));
    struct nvrm_abi_uvm_range range;
    memcpy(&range, sent.arg, sizeof range);
    CHECK_EQ(sent.request, 0x49);
    CHECK_EQ(sent.fd, 9);
    CHECK_EQ(range.base, 0x1000);
    CHECK_EQ(range.length, 0x2000);

    struct nvrm_uvm_mapping mapping = {.base = 0x3000,
                                       .length = 0x1000,
                                       .offset = 0x23c000,
                                       .memory = 0x77,
                                       .attr = {.mapping = 1}};
    CHECK_OK(mb__nvrm_uvm_map(&c, 9, &mapping));
    struct nvrm_abi_uvm_map map;
    memcpy(&map, sent.arg, sizeof map);
    CHECK_EQ(sent.request, 0x21);
    CHECK_EQ(map.base, 0x3000);
    CHECK_EQ(map.length, 0x1000);
    CHECK_EQ(map.offset, 0x23c000);
    CHECK_EQ(map.attr_count, 1);
    CHECK_EQ(map.attr[0].mapping, 1);
    CHECK_EQ(map.rm_ctl_fd, 5);
    CHECK_EQ(map.client, 0xc1d00042);
    CHECK_EQ(map.memory, 0x77);

    CHECK_OK(mb__nvrm_uvm_unmap(&c, 9, 0x3000, 0x1000, uuid));
    struct nvrm_abi_uvm_unmap unmap;
    memcpy(&unmap, sent.arg, sizeof unmap);
    CHECK_EQ(sent.request, 0x42);
    CHECK_EQ(unmap.length, 0x1000);
    CHECK_MEM_EQ(unmap.uuid, uuid, 16);
}

TEST(uvm_free_has_two_layouts)
{
    for (unsigned i = 0; i < 5; i++) {
        struct nvrm_client c = client_of(mb__nvrm_series_at(i)->major);
        struct nvrm_abi_uvm_range range;
        CHECK_OK(mb__nvrm_uvm_free(&c, 9, 0x5000, 0x6000));
        memcpy(&range, sent.arg, sizeof range);
        CHECK_EQ(sent.request, 0x22);
        CHECK_EQ(range.base, 0x5000);
        CHECK_EQ(range.length, c.series->major < 590 ? 0x6000 : 0);
        sent.status = NVRM_STATUS_NO_MEMORY; /* read where this series puts it */
        CHECK_EQ(mb__nvrm_uvm_free(&c, 9, 0x5000, 0x6000), MB_ERR_NO_MEMORY);
    }
}

TEST(uvm_failures_are_told)
{
    struct nvrm_client c = client_of(580);
    struct nvrm_uvm_mapping mapping = {.base = 0x3000, .length = 0x1000};

    sent.status = 0x1e;
    CHECK_EQ(mb__nvrm_uvm_map(&c, 9, &mapping), MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), "0x1000 bytes at 0x3000") != NULL);
    CHECK(strstr(mb_error_detail(), "INVALID_ADDRESS") != NULL);
    sent.result = -EBADF;
    CHECK_EQ(mb__nvrm_uvm_map(&c, 9, &mapping), MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), strerror(EBADF)) != NULL);
    CHECK_EQ(mb__nvrm_uvm_create_range(&c, 9, 0, 4096), MB_ERR_DRIVER);
    CHECK_EQ(mb__nvrm_uvm_free(&c, 9, 0, 4096), MB_ERR_DRIVER);
    uint8_t uuid[16] = {0};
    CHECK_EQ(mb__nvrm_uvm_unmap(&c, 9, 0, 4096, uuid), MB_ERR_DRIVER);
}
