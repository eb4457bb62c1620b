/* SPDX-License-Identifier: MIT */
/* The profile's file format, and what a profile may change. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hw/profile.h"
#include "test.h"

static enum mb_err read_text(const char *text, struct mb_profile *out)
{
    char path[] = "profile-XXXXXX";
    int fd = mkstemp(path);
    enum mb_err err;

    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    err = mb__profile_read(path, out);
    unlink(path);
    return err;
}

#define HEAD "moonbright-profile 2\ndevice X\n"
#define TAIL "end\n"

TEST(facts_comments_and_blanks)
{
    struct mb_profile p;

    CHECK_OK(read_text(HEAD "# a comment\n\n  # another\ngroup_slots 16 # slots\n"
                            "submit_ns\t3600.5\ndriver a b c\ntables device-inline\n" TAIL,
                       &p));
    CHECK_STR_EQ(p.device, "X");
    CHECK_STR_EQ(p.driver, "a b c");
    CHECK_STR_EQ(p.tables, "device-inline");
    CHECK(p.value[MB_PROFILE_group_slots] == 16);
    CHECK(p.value[MB_PROFILE_submit_ns] == 3600.5);
    CHECK(isnan(p.value[MB_PROFILE_entry_ps]));
}

TEST(mistakes_are_named_with_their_line)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "empty"},
        {"moonbright-profile 3\n", "line 1"},
        {HEAD "group_slots sixteen\n", "line 3: group_slots"},
        {HEAD "group_slots 16 slots\n", "line 3: group_slots"},
        {HEAD "group_slots -1\n", "line 3: group_slots"},
        {HEAD "group_slots\n", "line 3: group_slots"},
        {HEAD "group_slots inf\n", "line 3: group_slots"},
        {HEAD "group_slots 16\n\ngroup_slots 16\n", "line 5: group_slots is given twice"},
        {HEAD "groupslots 16\n", "no fact \"groupslots\""},
        {"moonbright-profile 1\ngroup_slots 16\n", "names no device"},
        {HEAD "group_slots 16\n", "\"end\" is missing behind line 3"},
        {HEAD TAIL "group_slots 16\n", "line 4 stands behind the end"},
        {"moonbright-profile 1\ndevice X\nsubmit_ns 24", "line 3 has no end"},
        {"moonbright-profile 1\ndevice X\nend\n", "no fact \"end\""},
    };

    for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mb_profile p = {.device = "as it was"};

        CHECK_EQ(read_text(bad[i].text, &p), MB_ERR_PARSE);
        if (!strstr(mb_error_detail(), bad[i].says))
            FAIL("\"%s\" does not say \"%s\"", mb_error_detail(), bad[i].says);
        CHECK_STR_EQ(p.device, "as it was");
    }
}

TEST(a_long_line_is_refused)
{
    char text[1000] = HEAD "# ";
    struct mb_profile p;

    memset(text + strlen(text), 'x', 600);
    CHECK_EQ(read_text(text, &p), MB_ERR_PARSE);
}

TEST(what_is_written_reads_back)
{
    char path[] = "profile-XXXXXX";
    struct mb_profile p, q;
    uint64_t random = mb_test_seed();
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    close(fd);
    for (unsigned turn = 0; turn < 50; turn++) {
        mb__profile_clear(&p);
        snprintf(p.device, sizeof(p.device), "a device %u", turn);
        for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
            if (mb_test_random_below(&random, 3))
                p.value[i] = (double)(mb_test_random(&random) >> 11) / 7; /* below 2^53 */
        CHECK_OK(mb__profile_write(path, &p));
        CHECK_OK(mb__profile_read(path, &q));
        CHECK_STR_EQ(q.device, p.device);
        for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
            CHECK(p.value[i] == q.value[i] || (isnan(p.value[i]) && isnan(q.value[i])));
    }
    unlink(path);
    CHECK_EQ(mb__profile_write("no/such/directory/profile", &p), MB_ERR_IO);
}

/* Wherever a file is cut, it is refused: no value gets shorter, no fact is lost. */
TEST(what_is_cut_off_is_refused)
{
    char path[] = "profile-XXXXXX";
    struct mb_profile p, q = {.device = "as it was"};
    struct stat st;
    int fd = mkstemp(path);

    CHECK(fd >= 0);
    mb__profile_clear(&p);
    snprintf(p.device, sizeof(p.device), "a device");
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        p.value[i] = 1000 + i;
    CHECK_OK(mb__profile_write(path, &p));
    CHECK(fstat(fd, &st) == 0);
    while (st.st_size-- > 0) {
        CHECK(ftruncate(fd, st.st_size) == 0);
        CHECK_EQ(mb__profile_read(path, &q), MB_ERR_PARSE);
    }
    CHECK_STR_EQ(q.device, "as it was");
    close(fd);
    unlink(path);
}

/* ------------------------------------------------------------ use */

static struct mb_hw_dev device(void)
{
    struct mb_hw_dev dev = {.caps = {.format = MB_FMT_GMMU_V3,
                                     .kind = 6,
                                     .group_slots = 16,
                                     .neighbours_cached = true,
                                     .fresh_is_default = true,
                                     .submit_ns = 1,
                                     .entry_ns = 2,
                                     .invalidate_ns = 3,
                                     .slab_ns = 4,
                                     .tables = "device-inline"}};

    snprintf(dev.caps.device_name, sizeof(dev.caps.device_name), "X");
    return dev;
}

static struct mb_profile profile(void)
{
    struct mb_profile p;

    mb__profile_clear(&p);
    snprintf(p.device, sizeof(p.device), "X");
    return p;
}

TEST(unknown_facts_change_nothing)
{
    struct mb_hw_dev dev = device(), was = dev;
    struct mb_profile p = profile();

    CHECK_OK(mb__profile_apply(&p, &dev));
    CHECK_MEM_EQ(&dev, &was, sizeof(dev));
}

TEST(costs_are_taken)
{
    struct mb_hw_dev dev = device();
    struct mb_profile p = profile();

    p.value[MB_PROFILE_submit_ns] = 100;
    p.value[MB_PROFILE_entry_ps] = 1001;
    p.value[MB_PROFILE_invalidate_ns] = 300;
    p.value[MB_PROFILE_slab_32m_ns] = 400;
    CHECK_OK(mb__profile_apply(&p, &dev));
    CHECK_EQ(dev.caps.submit_ns, 100);
    CHECK_EQ(dev.caps.entry_ns, 2);
    CHECK_EQ(dev.caps.invalidate_ns, 300);
    CHECK_EQ(dev.caps.slab_ns, 400);
}

TEST(costs_of_other_tables_are_not)
{
    struct mb_hw_dev dev = device();
    struct mb_profile p = profile();

    snprintf(p.tables, sizeof(p.tables), "device-isolated");
    p.value[MB_PROFILE_submit_ns] = 100;
    p.value[MB_PROFILE_group_slots] = 32;
    CHECK_OK(mb__profile_apply(&p, &dev));
    CHECK_EQ(dev.caps.submit_ns, 1);
    CHECK_EQ(dev.caps.group_slots, 32);
}

/* Towards caution only. */
TEST(safety_facts_never_get_weaker)
{
    struct mb_hw_dev dev = device();
    struct mb_profile p = profile();

    p.value[MB_PROFILE_group_slots] = 1;
    p.value[MB_PROFILE_walk_ahead_slots] = 0;
    CHECK_OK(mb__profile_apply(&p, &dev));
    CHECK_EQ(dev.caps.group_slots, 16);
    CHECK(dev.caps.neighbours_cached && dev.caps.fresh_is_default);
    p.value[MB_PROFILE_group_slots] = 32;
    p.value[MB_PROFILE_walk_ahead_slots] = 4;
    CHECK_OK(mb__profile_apply(&p, &dev));
    CHECK_EQ(dev.caps.group_slots, 32);
    CHECK(!dev.caps.fresh_is_default);
}

TEST(what_cannot_be_is_refused)
{
    struct mb_hw_dev dev = device(), was = dev;
    struct mb_profile p = profile();

    p.value[MB_PROFILE_group_slots] = 12;
    CHECK_EQ(mb__profile_apply(&p, &dev), MB_ERR_CONFIG);
    p = profile();
    p.value[MB_PROFILE_entry_low] = 0x601;
    p.value[MB_PROFILE_entry_high] = 0;
    CHECK_EQ(mb__profile_apply(&p, &dev), MB_ERR_PROOF);
    /* Of half an entry that half; a value of no half is no reason to overflow. */
    p.value[MB_PROFILE_entry_high] = NAN;
    CHECK_EQ(mb__profile_apply(&p, &dev), MB_ERR_PROOF);
    p.value[MB_PROFILE_entry_low] = NAN;
    p.value[MB_PROFILE_entry_high] = 9007199254740992.0;
    CHECK_EQ(mb__profile_apply(&p, &dev), MB_ERR_PROOF);
    p = profile();
    snprintf(p.device, sizeof(p.device), "Y");
    CHECK_EQ(mb__profile_apply(&p, &dev), MB_ERR_CONFIG);
    CHECK_MEM_EQ(&dev, &was, sizeof(dev));
}
