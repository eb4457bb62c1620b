/* SPDX-License-Identifier: MIT */
/* Encoders against words computed by hand from the bit positions in doc/driver-abi.md. No GPU. */
#include <string.h>

#include "hw/nvrm/push.h"
#include "test.h"

static const struct nvrm_arch *arch(uint32_t architecture, uint32_t implementation)
{
    const struct nvrm_arch *a = NULL;

    CHECK_OK(mb__nvrm_arch_find(architecture, implementation, &a));
    return a;
}

static const struct nvrm_arch *hopper(void)
{
    return arch(0x180, 0);
}

#define EXPECT(push, ...)                                                                          \
    do {                                                                                           \
        const uint32_t expected_[] = {__VA_ARGS__};                                                \
        CHECK_PTR_EQ((push)->problem, NULL);                                                       \
        CHECK_EQ((push)->count, sizeof expected_ / 4);                                             \
        CHECK_MEM_EQ((push)->words, expected_, sizeof expected_);                                  \
        (push)->count = 0;                                                                         \
    } while (0)

TEST(semaphores)
{
    uint32_t words[16];
    struct nvrm_push p;

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_release64(&p, 0x123456780, 0x1122334455667788, NVRM_RELEASE_WFI);
    EXPECT(&p, 0x20050017, 0x23456780, 0x00000001, 0x55667788, 0x11223344, 0x01100001);
    mb__nvrm_push_release64(&p, 0x1000, 5, 0);
    EXPECT(&p, 0x20050017, 0x1000, 0, 5, 0, 0x01000001);
    mb__nvrm_push_release64(&p, 0x1010, 5, NVRM_RELEASE_WFI | NVRM_RELEASE_TIMESTAMP);
    EXPECT(&p, 0x20050017, 0x1010, 0, 5, 0, 0x03100001);
    mb__nvrm_push_acquire32(&p, 0x1004, 0xfffffff0);
    EXPECT(&p, 0x20050017, 0x1004, 0, 0xfffffff0, 0, 0x00001003);
    mb__nvrm_push_acquire64(&p, 0x1ffffffffffff00, 0xabcdef0123456789);
    EXPECT(&p, 0x20050017, 0xffffff00, 0x01ffffff, 0x23456789, 0xabcdef01, 0x01001003);
}

TEST(waits_and_barriers)
{
    uint32_t words[16];
    struct nvrm_push p;

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_wfi(&p);
    EXPECT(&p, 0x2001001e, 1);
    mb__nvrm_push_membar(&p, NVRM_MEMBAR_SYS);
    EXPECT(&p, 0x2004000a, 0, 0, 0, 0x28000000);
    mb__nvrm_push_membar(&p, NVRM_MEMBAR_GPU);
    EXPECT(&p, 0x2004000a, 0, 0, 1, 0x28000000);
    mb__nvrm_push_membar(&p, NVRM_MEMBAR_NONE);
    CHECK_EQ(p.count, 0);
}

/* The form that was measured: whole address space, acknowledged, page directory in video memory. */
TEST(invalidate_everything)
{
    uint32_t words[16];
    struct nvrm_push p;
    struct nvrm_invalidate inval = {.pdb = 0x201000, .ack = true};

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0, 0, 0x00201020, 0x48000000);
    inval.pdb = 0x123456789000;
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0, 0, 0x56789020, 0x48001234);
    inval = (struct nvrm_invalidate){
        .pdb = 0x1000, .aperture = NVRM_PDB_SYSMEM, .level = 6, .scope = NVRM_SCOPE_NON_LINK_TLBS};
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0x80, 0, 0x1000 | 2 << 10 | 6 << 7, 0x48000000);
}

/* 2 MB at 0x7f0000200000 under page directory 0x80000000: the reference words of GA100 and GH100.
 * */
TEST(invalidate_a_range)
{
    struct nvrm_invalidate inval = {
        .pdb = 0x80000000,
        .va = 0x7f0000200000,
        .bytes = 0x200000,
        .level = NVRM_LEVEL_PDE0,
        .scope = NVRM_SCOPE_NON_LINK_TLBS,
    };
    uint32_t words[16];
    struct nvrm_push p;

    for (int i = 0; i < 2; i++) {
        mb__nvrm_push_init(&p, i ? hopper() : arch(0x170, 0), words, 16);
        inval.membar = NVRM_MEMBAR_NONE;
        mb__nvrm_push_invalidate(&p, &inval);
        EXPECT(&p, 0x2004000a, 0x00200089, 0x00007f00, 0x80000100, 0x50000000);
        inval.membar = NVRM_MEMBAR_SYS;
        mb__nvrm_push_invalidate(&p, &inval);
        EXPECT(&p, 0x2004000a, 0x00200889, 0x00007f00, 0x80000120, 0x50000000);
    }
}

/* The hardware takes aligned powers of two: the smallest that covers the range. */
TEST(a_range_is_covered)
{
    static const struct {
        uint64_t va, bytes;
        unsigned size; /* log2(bytes) - 12 in the word */
    } ranges[] = {
        {0, 0x1000, 0},
        {0x1000, 0x1000, 0},
        {0x1000, 0x2000, 2}, /* pages 1 and 2: 0..3 */
        {0, 0x2000, 1},
        {0x200000, 0x400000, 11},      /* 2..6 MB: 0..8 MB */
        {0x7ff000, 0x2000, 12},        /* crosses 8 MB: 16 MB */
        {1ull << 56, 32ull << 20, 13}, /* one group of leaves */
        {0, 1ull << 56, 44},
    };
    uint32_t words[16];
    struct nvrm_push p;

    for (unsigned i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        struct nvrm_invalidate inval = {
            .pdb = 0x1000, .va = ranges[i].va, .bytes = ranges[i].bytes};
        mb__nvrm_push_init(&p, hopper(), words, 16);
        mb__nvrm_push_invalidate(&p, &inval);
        CHECK_PTR_EQ(p.problem, NULL);
        CHECK_EQ(words[1] & 0x3f, ranges[i].size);
        CHECK_EQ((words[1] & 0xfffff000) | (uint64_t)words[2] << 32, ranges[i].va);
        CHECK_EQ(words[4] >> 27, 10);
    }
}

TEST(a_covered_range_holds_every_page)
{
    uint64_t state = mb_test_seed();
    uint32_t words[16];
    struct nvrm_push p;

    for (int i = 0; i < 10000; i++) {
        uint64_t va = mb_test_random(&state) & 0x1fffffffffff000;
        uint64_t bytes = (mb_test_random_below(&state, 1 << 20) + 1) << 12;
        struct nvrm_invalidate inval = {.pdb = 0x1000, .va = va, .bytes = bytes};
        mb__nvrm_push_init(&p, hopper(), words, 16);
        mb__nvrm_push_invalidate(&p, &inval);
        CHECK_PTR_EQ(p.problem, NULL);
        unsigned log2 = 12 + (words[1] & 0x3f);
        uint64_t start = va >> log2 << log2, end = start + ((uint64_t)1 << log2);
        CHECK(start <= va && va + bytes <= end);
        /* One step smaller would not do. */
        if (log2 > 12)
            CHECK(va >> (log2 - 1) != (va + bytes - 1) >> (log2 - 1));
    }
}

TEST(a_range_that_needs_all_64_bits_becomes_everything)
{
    struct nvrm_invalidate inval = {
        .pdb = 0x1000, .va = 0x7ffffffffffff000, .bytes = 0x2000, .ack = true};
    uint32_t words[16];
    struct nvrm_push p;

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0, 0, 0x1020, 0x48000000);
}

/* Up to Hopper a GPU membar follows the invalidate as a method; on Blackwell it must not. */
TEST(membar_of_an_invalidate_by_generation)
{
    struct nvrm_invalidate inval = {.pdb = 0x1000, .membar = NVRM_MEMBAR_GPU};
    uint32_t words[16];
    struct nvrm_push p;

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0, 0, 0x1020, 0x48000000, 0x2004000a, 0, 0, 1, 0x28000000);
    mb__nvrm_push_init(&p, arch(0x1a0, 0), words, 16);
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0, 0, 0x1020, 0x48000000);
    inval.membar = NVRM_MEMBAR_SYS;
    mb__nvrm_push_invalidate(&p, &inval);
    EXPECT(&p, 0x2004000a, 0x800, 0, 0x1020, 0x48000000);
}

TEST(copies)
{
    uint32_t words[16];
    struct nvrm_push p;

    mb__nvrm_push_init(&p, hopper(), words, 16);
    mb__nvrm_push_set_copy_object(&p);
    EXPECT(&p, 0x20018000, 0xc8b5);
    mb__nvrm_push_copy(&p, 0x300001010, 0x2abcde000, 4080, 0);
    EXPECT(&p, 0x20048100, 2, 0xabcde000, 3, 0x00001010, 0x20018106, 4080, 0x200180c0, 0x186);
    mb__nvrm_push_copy(&p, 0x1000, 0x2000, 16, NVRM_COPY_PIPELINED);
    EXPECT(&p, 0x20048100, 0, 0x2000, 0, 0x1000, 0x20018106, 16, 0x200180c0, 0x185);
    mb__nvrm_push_copy(&p, 0x1000, 0x2000, 16, NVRM_COPY_PIPELINED | NVRM_COPY_NO_FLUSH);
    EXPECT(&p, 0x20048100, 0, 0x2000, 0, 0x1000, 0x20018106, 16, 0x200180c0, 0x181);
}

TEST(ring_entries)
{
    uint64_t entry = 99;

    CHECK(mb__nvrm_gp_entry(0x100001000, 7, &entry));
    CHECK_EQ(entry, 0x1e0100001000);
    CHECK(mb__nvrm_gp_entry(0xfffffffffc, (1 << 21) - 1, &entry));
    CHECK_EQ(entry >> 42, (1 << 21) - 1);
    entry = 99;
    CHECK(!mb__nvrm_gp_entry(0x1001, 1, &entry));
    CHECK(!mb__nvrm_gp_entry(1ull << 40, 1, &entry));
    CHECK(!mb__nvrm_gp_entry(0x1000, 0, &entry));
    CHECK(!mb__nvrm_gp_entry(0x1000, 1 << 21, &entry));
    CHECK_EQ(entry, 99);
}

/* A refused step writes nothing, marks the buffer, and what follows is dropped too. */
#define REFUSED(call)                                                                              \
    do {                                                                                           \
        mb__nvrm_push_init(&p, a, words, 16);                                                      \
        memset(words, 0xee, sizeof words);                                                         \
        call;                                                                                      \
        CHECK(p.problem != NULL);                                                                  \
        CHECK_EQ(p.count, 0);                                                                      \
        mb__nvrm_push_wfi(&p);                                                                     \
        CHECK_EQ(p.count, 0);                                                                      \
        CHECK_EQ(words[0], 0xeeeeeeee);                                                            \
    } while (0)

TEST(what_has_no_bits_is_refused)
{
    const struct nvrm_arch *a = hopper();
    uint32_t words[16];
    struct nvrm_push p;

    REFUSED(mb__nvrm_push_release64(&p, 0x1004, 1, 0));
    REFUSED(mb__nvrm_push_release64(&p, 0x1008, 1, NVRM_RELEASE_TIMESTAMP));
    REFUSED(mb__nvrm_push_release64(&p, 1ull << 57, 1, 0));
    REFUSED(mb__nvrm_push_acquire32(&p, 0x1002, 1));
    REFUSED(mb__nvrm_push_acquire64(&p, 0x1004, 1));
    REFUSED(mb__nvrm_push_copy(&p, 0, 0, 0, 0));
    REFUSED(mb__nvrm_push_copy(&p, 0, 0, 1ull << 32, 0));
    REFUSED(mb__nvrm_push_copy(&p, 1ull << 57, 0, 16, 0));
    REFUSED(mb__nvrm_push_copy(&p, 0, (1ull << 57) - 8, 16, 0));
    REFUSED(mb__nvrm_push_invalidate(&p, &(struct nvrm_invalidate){.pdb = 0x1008}));
    REFUSED(mb__nvrm_push_invalidate(&p, &(struct nvrm_invalidate){.pdb = 1ull << 59}));
    REFUSED(mb__nvrm_push_invalidate(
        &p, &(struct nvrm_invalidate){.pdb = 0x1000, .va = 0x10, .bytes = 0x1000}));
    REFUSED(mb__nvrm_push_invalidate(&p, &(struct nvrm_invalidate){.pdb = 0x1000, .bytes = 0x10}));
    REFUSED(mb__nvrm_push_invalidate(
        &p, &(struct nvrm_invalidate){.va = 0xfffffffffffff000, .bytes = 0x2000}));
    REFUSED(mb__nvrm_push_invalidate(
        &p, &(struct nvrm_invalidate){.pdb = 0x1000, .level = (enum nvrm_level)7}));
    a = arch(0x170, 0); /* narrower addresses */
    REFUSED(mb__nvrm_push_release64(&p, 1ull << 40, 1, 0));
    REFUSED(mb__nvrm_push_copy(&p, 1ull << 49, 0, 16, 0));
}

TEST(a_full_buffer_is_never_overrun)
{
    uint32_t words[16];
    struct nvrm_push p;

    for (uint32_t capacity = 0; capacity <= 15; capacity++) {
        memset(words, 0xee, sizeof words);
        mb__nvrm_push_init(&p, hopper(), words, capacity);
        mb__nvrm_push_copy(&p, 0x1000, 0x2000, 16, 0);
        mb__nvrm_push_release64(&p, 0x1000, 1, 0);
        CHECK_LE(p.count, capacity);
        for (uint32_t i = p.count; i < 16; i++)
            CHECK_EQ(words[i], 0xeeeeeeee);
        CHECK_EQ(p.problem == NULL, capacity >= NVRM_WORDS_COPY + NVRM_WORDS_SEMAPHORE);
    }
}

TEST(the_stated_sizes_hold)
{
    uint32_t words[32];
    struct nvrm_push p;
    struct nvrm_invalidate inval = {.pdb = 0x1000, .membar = NVRM_MEMBAR_GPU};

    mb__nvrm_push_init(&p, hopper(), words, 32);
#define SIZE(call, expected)                                                                       \
    do {                                                                                           \
        p.count = 0;                                                                               \
        call;                                                                                      \
        CHECK_EQ(p.count, expected);                                                               \
    } while (0)
    SIZE(mb__nvrm_push_release64(&p, 0, 0, 0), NVRM_WORDS_SEMAPHORE);
    SIZE(mb__nvrm_push_wfi(&p), NVRM_WORDS_WFI);
    SIZE(mb__nvrm_push_membar(&p, NVRM_MEMBAR_SYS), NVRM_WORDS_MEMBAR);
    SIZE(mb__nvrm_push_invalidate(&p, &inval), NVRM_WORDS_INVALIDATE);
    SIZE(mb__nvrm_push_copy(&p, 0, 0, 1, 0), NVRM_WORDS_COPY);
    SIZE(mb__nvrm_push_set_copy_object(&p), NVRM_WORDS_SET_OBJECT);
}
