/* SPDX-License-Identifier: MIT */
/* Reading device memory through views that are closed or kept, against the FAKE driver. */
#include <string.h>

#include "hw/cuda/cuda.h"
#include "nvrm_fake.h"
#include "test.h"

enum { PAGE = 4096 };

static struct nvrm_fake fake;
static struct mb_cuda dev;

static void setup(bool keep)
{
    nvrm_fake_init(&fake);
    struct nvrm_client_request r = {.os = &fake.os,
                                    .version_text = nvrm_fake_version_text(&fake),
                                    .select = NVRM_BY_MINOR,
                                    .minor = 5};
    memset(&dev, 0, sizeof(dev));
    atomic_flag_clear(&dev.views_busy);
    dev.keep_views = keep;
    CHECK_OK(mb__nvrm_client_open(&r, &dev.rm));
    CHECK_OK(mb__nvrm_phys_create(dev.rm, &dev.phys));
    for (uint64_t page = 0; page < 16; page++)
        ((uint64_t *)(uintptr_t)(fake.phys + page * PAGE))[1] = 100 + page;
}

static void teardown(void)
{
    mb__cuda_pages_drop(&dev);
    mb__cuda_pages_drop(&dev);
    mb__nvrm_phys_destroy(&dev.phys);
    mb__nvrm_client_close(&dev.rm);
    CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    CHECK_EQ(fake.violations, 0);
    nvrm_fake_fini(&fake);
}

static unsigned views(void)
{
    unsigned live = 0;

    for (unsigned i = 0; i < FAKE_MAPS; i++)
        live += fake.maps[i].live && !fake.maps[i].on_gpu && fake.maps[i].read_only;
    return live;
}

/* Word 1 of pages first, first + 1, ... */
static void walk(struct mb_cuda_pages *pages, uint64_t first, unsigned count, uint64_t add)
{
    struct mb_cuda_reader reader = mb__cuda_pages_reader(pages);

    for (uint64_t page = first; page < first + count; page++) {
        uint64_t value = 0;

        CHECK_OK(reader.read(reader.user, page * PAGE + 8, &value));
        CHECK_EQ(value, 100 + page + add);
    }
}

static void one_walk(uint64_t first, unsigned count, uint64_t add)
{
    static struct mb_cuda_pages pages;

    mb__cuda_pages_init(&dev, &pages);
    walk(&pages, first, count, add);
    mb__cuda_pages_fini(&pages);
}

TEST(views_are_closed_by_default)
{
    setup(false);
    one_walk(0, 5, 0);
    CHECK_EQ(views(), 0);
    teardown();
}

TEST(kept_views_save_calls_and_show_what_is_there_now)
{
    unsigned calls;

    setup(true);
    one_walk(0, 5, 0);
    CHECK_EQ(views(), 5);
    calls = fake.calls;
    for (uint64_t page = 0; page < 16; page++)
        ((uint64_t *)(uintptr_t)(fake.phys + page * PAGE))[1] += 1000;
    one_walk(0, 5, 1000);
    CHECK_EQ(fake.calls, calls);
    CHECK_EQ(views(), 5);
    teardown();
}

TEST(the_oldest_view_makes_room)
{
    setup(true);
    one_walk(0, 16, 0);
    CHECK_EQ(views(), MB_CUDA_VIEWS);
    one_walk(0, 16, 0);
    CHECK_EQ(views(), MB_CUDA_VIEWS);
    teardown();
}

TEST(a_second_reader_makes_its_own)
{
    static struct mb_cuda_pages first, second;

    setup(true);
    mb__cuda_pages_init(&dev, &first);
    mb__cuda_pages_init(&dev, &second);
    CHECK(first.keeps && !second.keeps);
    walk(&first, 0, 5, 0);
    walk(&second, 5, 5, 0); /* others: the fake's mappings are known by their address */
    CHECK_EQ(views(), 6);
    mb__cuda_pages_fini(&second);
    CHECK_EQ(views(), 5);
    walk(&first, 3, 1, 0);
    mb__cuda_pages_fini(&first);
    one_walk(1, 3, 0);
    CHECK_EQ(views(), 5);
    teardown();
}

/* Whole pages are copied anew by each reader. */
TEST(copies_do_not_outlive_their_reader)
{
    static struct mb_cuda_pages pages;

    setup(true);
    for (unsigned round = 0; round < 3; round++) {
        mb__cuda_pages_init(&dev, &pages);
        pages.want_copy = true;
        walk(&pages, 2, 3, round);
        mb__cuda_pages_fini(&pages);
        for (uint64_t page = 0; page < 16; page++)
            ((uint64_t *)(uintptr_t)(fake.phys + page * PAGE))[1]++;
    }
    teardown();
}

TEST(a_view_that_cannot_be_made)
{
    static struct mb_cuda_pages pages;
    struct mb_cuda_reader reader;
    uint64_t value = 7;

    setup(true);
    one_walk(0, 8, 0);
    mb__cuda_pages_init(&dev, &pages);
    reader = mb__cuda_pages_reader(&pages);
    fake.fail_at = fake.making_calls + 1;
    CHECK(reader.read(reader.user, 9 * PAGE + 8, &value) != MB_OK);
    CHECK_EQ(value, 7);
    CHECK_EQ(views(), 7);
    fake.fail_at = 0;
    walk(&pages, 9, 1, 0);
    walk(&pages, 1, 7, 0);
    mb__cuda_pages_fini(&pages);
    CHECK_EQ(views(), 8);
    teardown();
}
