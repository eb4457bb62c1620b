/* SPDX-License-Identifier: MIT */
/*
 * Which copy engine is left when the driver has taken its own, and a channel's time slice. The fake
 * driver answers; the engines are made up after the classes of engines that the sources name.
 */
#include <string.h>

#include "hw/nvrm/channel.h"
#include "hw/nvrm/engines.h"
#include "nvrm_fake.h"
#include "test.h"

enum { GRAPHICS = 1, SHARED = 2, READ = 4, WRITE = 8, LINK = 16, SCRUB = 0x4000 };

static struct nvrm_fake fake;
static struct nvrm_client *client;

static void setup(void)
{
    nvrm_fake_init(&fake);
    struct nvrm_client_request r = {.os = &fake.os,
                                    .version_text = nvrm_fake_version_text(&fake),
                                    .select = NVRM_BY_MINOR,
                                    .minor = 5};
    CHECK_OK(mb__nvrm_client_open(&r, &client));
}

static void teardown(void)
{
    mb__nvrm_client_close(&client);
    CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    nvrm_fake_fini(&fake);
}

static void engine(unsigned n, unsigned caps, uint32_t mask)
{
    fake.engine_caps[n] = (uint16_t)caps;
    fake.engine_mask[n] = mask;
}

/* Two with the compute engine, two for host memory, five wide ones for links. */
static void big_gpu(void)
{
    engine(0, GRAPHICS | SHARED | READ | WRITE, 0x1);
    engine(1, GRAPHICS | SHARED | READ | WRITE, 0x2);
    engine(2, READ | WRITE, 0x4);
    engine(3, READ | WRITE, 0x8);
    engine(4, LINK, 0x30);
    for (unsigned n = 5; n < 9; n++)
        engine(n, LINK, 0x40u << (n - 5));
}

static void users(bool scrub_first, int user[NVRM_USERS], int apart[2])
{
    struct nvrm_copy_caps caps[NVRM_COPY_ENGINES];

    CHECK_OK(mb__nvrm_copy_caps(client, caps));
    mb__nvrm_copy_users(caps, scrub_first, user);
    apart[0] = mb__nvrm_copy_apart(caps, user, NVRM_NO_ENGINE);
    apart[1] = mb__nvrm_copy_apart(caps, user, apart[0]);
}

TEST(what_an_engine_says)
{
    struct nvrm_copy_caps caps[NVRM_COPY_ENGINES];

    setup();
    engine(0, GRAPHICS | SHARED | READ, 3);
    engine(11, WRITE | LINK | SCRUB, 0x80);
    CHECK_OK(mb__nvrm_copy_caps(client, caps));
    CHECK(caps[0].there && caps[0].graphics && caps[0].shared && caps[0].system_read);
    CHECK(!caps[0].system_write && !caps[0].link && !caps[0].scrub);
    CHECK_EQ(caps[0].hardware, 3);
    CHECK(!caps[1].there);
    CHECK(caps[11].there && caps[11].system_write && caps[11].link && caps[11].scrub);
    CHECK(!caps[11].graphics && !caps[11].shared && !caps[11].system_read);
    teardown();
}

TEST(a_driver_that_says_nothing)
{
    struct nvrm_copy_caps caps[NVRM_COPY_ENGINES];

    setup();
    CHECK(mb__nvrm_copy_caps(client, caps) != MB_OK);
    teardown();
}

TEST(the_widest_engine_clears_page_tables)
{
    int user[NVRM_USERS], apart[2];

    setup();
    big_gpu();
    users(false, user, apart);
    CHECK_EQ(user[NVRM_USER_TO_GPU], 2);
    CHECK_EQ(user[NVRM_USER_TO_HOST], 3);
    CHECK_EQ(user[NVRM_USER_INTERNAL], 4);
    CHECK_EQ(user[NVRM_USER_TO_PEER], 4);
    CHECK_EQ(user[NVRM_USER_MEMOPS], 5);
    CHECK_EQ(apart[0], 8);
    CHECK_EQ(apart[1], 7);
    teardown();
}

TEST(an_engine_for_scrubbing_is_taken_first_since_595)
{
    int user[NVRM_USERS], apart[2];

    setup();
    big_gpu();
    engine(7, LINK | SCRUB, 0x100);
    users(false, user, apart);
    CHECK_EQ(user[NVRM_USER_INTERNAL], 4);
    users(true, user, apart);
    CHECK_EQ(user[NVRM_USER_INTERNAL], 7);
    CHECK_EQ(user[NVRM_USER_TO_PEER], 4);
    CHECK_EQ(apart[0], 8);
    CHECK_EQ(apart[1], 6);
    teardown();
}

TEST(engines_with_hardware_of_their_own_come_first)
{
    int user[NVRM_USERS], apart[2];

    setup();
    big_gpu();
    engine(8, LINK | SHARED, 0x30);
    users(false, user, apart);
    CHECK_EQ(apart[0], 7);
    CHECK_EQ(apart[1], 6);
    teardown();
}

/* As an H200 of series 580 answered: only migrations to the host are on the engine that is left. */
TEST(the_engine_without_page_tables_of_an_h200)
{
    int user[NVRM_USERS], apart[2];

    setup();
    engine(0, GRAPHICS | SHARED, 0x5000);
    engine(1, GRAPHICS | SHARED, 0xa000);
    engine(2, SHARED, 0x5000);
    engine(3, SHARED, 0xa000);
    engine(4, 0, 0xfff);
    users(false, user, apart);
    CHECK_EQ(user[NVRM_USER_TO_GPU], 4);
    CHECK_EQ(user[NVRM_USER_TO_HOST], 2);
    CHECK_EQ(user[NVRM_USER_INTERNAL], 4);
    CHECK_EQ(user[NVRM_USER_TO_PEER], 4);
    CHECK_EQ(user[NVRM_USER_MEMOPS], 3);
    CHECK_EQ(apart[0], 2);
    CHECK_EQ(apart[1], NVRM_NO_ENGINE);
    teardown();
}

TEST(few_engines_leave_none)
{
    int user[NVRM_USERS], apart[2];

    setup();
    engine(0, GRAPHICS | READ | WRITE, 1);
    engine(2, READ | WRITE, 2);
    users(false, user, apart);
    for (unsigned u = 0; u < NVRM_USERS; u++)
        CHECK_EQ(user[u], 2);
    CHECK_EQ(apart[0], NVRM_NO_ENGINE);
    engine(2, 0, 0);
    users(false, user, apart);
    CHECK_EQ(user[NVRM_USER_MEMOPS], NVRM_NO_ENGINE);
    CHECK_EQ(apart[0], NVRM_NO_ENGINE);
    teardown();
}

TEST(a_time_slice_is_set_before_the_channel_runs)
{
    struct nvrm_channel_request r = {
        .copy_engine = 4, .timeslice_us = 32, .start_timeout_ns = (uint64_t)600 * 1000000000};
    struct nvrm_channel *ch = NULL;
    struct nvrm_vas *vas;

    setup();
    CHECK_OK(mb__nvrm_vas_create(client, &vas));
    CHECK_OK(mb__nvrm_channel_create(vas, &r, &ch));
    CHECK_EQ(fake.timeslice_us, 32);
    mb__nvrm_channel_destroy(&ch);
    fake.timeslice_us = 7;
    r.timeslice_us = 0;
    CHECK_OK(mb__nvrm_channel_create(vas, &r, &ch));
    CHECK_EQ(fake.timeslice_us, 7);
    mb__nvrm_channel_destroy(&ch);
    teardown();
}
