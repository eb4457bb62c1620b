/* SPDX-License-Identifier: MIT */
/* Helper channel against the FAKE driver and the FAKE copy engine. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hw/nvrm/channel.h"
#include "hw/nvrm/status.h"
#include "nvrm_fake.h"
#include "test.h"

static struct nvrm_fake fake;
static struct nvrm_client *client;
static struct nvrm_vas *vas;

static void setup(void)
{
    nvrm_fake_init(&fake);
    struct nvrm_client_request r = {.os = &fake.os,
                                    .version_text = nvrm_fake_version_text(&fake),
                                    .select = NVRM_BY_MINOR,
                                    .minor = 5};
    CHECK_OK(mb__nvrm_client_open(&r, &client));
    CHECK_OK(mb__nvrm_vas_create(client, &vas));
}

static void teardown(void)
{
    mb__nvrm_client_close(&client);
    CHECK_EQ(fake.bad_words, 0);
    CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    nvrm_fake_fini(&fake);
}

static const uint64_t ms = 1000000;
/* For what will happen: the fake GPU needs no time, but this process may be stopped for a while. */
static const uint64_t guard = (uint64_t)600 * 1000000000;

static struct nvrm_channel *make_channel(uint32_t entries, uint32_t bytes)
{
    struct nvrm_channel_request r = {
        .ring_entries = entries, .push_bytes = bytes, .copy_engine = -1, .start_timeout_ns = guard};
    struct nvrm_channel *ch = NULL;

    CHECK_OK(mb__nvrm_channel_create(vas, &r, &ch));
    return ch;
}

static struct nvrm_mem *make_memory(void)
{
    struct nvrm_mem *m = NULL;

    CHECK_OK(mb__nvrm_mem_create(client, NVRM_MEM_SYSMEM, 8192, &m));
    CHECK_OK(mb__nvrm_mem_map_cpu(m));
    CHECK_OK(mb__nvrm_mem_map_gpu(m, vas));
    memset((void *)(uintptr_t)m->cpu.addr, 0, 8192);
    return m;
}

TEST(a_channel_comes_up_and_is_tried)
{
    setup();
    struct nvrm_channel *ch = make_channel(0, 0);
    CHECK_EQ(mb__nvrm_channel_engine(ch), 4); /* first of the list */
    CHECK_EQ(fake.releases, 1);
    unsigned channels = 0;
    for (unsigned i = 0; i < FAKE_OBJECTS; i++)
        if (fake.objects[i].live && fake.objects[i].entries) {
            CHECK_EQ(*vas->doorbell, fake.objects[i].handle ^ 0x1234); /* the token it was given */
            channels++;
        }
    CHECK_EQ(channels, 1);
    CHECK_EQ(fake.waiting_releases, 1); /* progress means that the engine is idle */
    mb__nvrm_channel_destroy(&ch);
    mb__nvrm_channel_destroy(&ch);
    teardown();
}

TEST(the_next_copy_engine_is_tried)
{
    struct nvrm_channel_request r = {.copy_engine = -1, .start_timeout_ns = guard};
    struct nvrm_channel *ch = NULL;

    setup();
    fake.bad_engines = 1 << 4 | 1 << 3;
    CHECK_OK(mb__nvrm_channel_create(vas, &r, &ch));
    CHECK_EQ(mb__nvrm_channel_engine(ch), 2);
    mb__nvrm_channel_destroy(&ch);
    fake.bad_engines = ~0u;
    CHECK_EQ(mb__nvrm_channel_create(vas, &r, &ch), MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), "no copy engine") && strstr(mb_error_detail(), "0xa06c"));
    CHECK_PTR_EQ(ch, NULL);
    fake.bad_engines = 1 << 4;
    r.copy_engine = 4; /* exactly this one */
    CHECK_EQ(mb__nvrm_channel_create(vas, &r, &ch), MB_ERR_DRIVER);
    r.copy_engine = 7;
    CHECK_OK(mb__nvrm_channel_create(vas, &r, &ch));
    CHECK_EQ(mb__nvrm_channel_engine(ch), 7);
    teardown();
}

TEST(wrong_requests_are_refused)
{
    static const struct nvrm_channel_request wrong[] = {
        {.ring_entries = 7, .copy_engine = -1},
        {.ring_entries = 4, .copy_engine = -1},
        {.ring_entries = 32768, .copy_engine = -1},
        {.push_bytes = 100, .copy_engine = -1},
        {.copy_engine = -2},
        {.copy_engine = 20},
    };
    setup();
    unsigned calls = fake.calls;
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct nvrm_channel *ch = NULL;
        CHECK_EQ(mb__nvrm_channel_create(vas, &wrong[i], &ch), MB_ERR_INVALID);
        CHECK_PTR_EQ(ch, NULL);
    }
    CHECK_EQ(fake.calls, calls);
    teardown();
}

/* Creation with a failure at its n-th making call, for every n. */
static unsigned fail_everywhere(uint32_t status)
{
    struct nvrm_channel_request r = {.copy_engine = 4, .start_timeout_ns = guard};
    unsigned n = 1;

    for (bool failed = true; failed; n++) {
        struct nvrm_channel *ch = NULL;
        setup();
        fake.fail_at = fake.making_calls + n;
        fake.fail_status = status;
        failed = mb__nvrm_channel_create(vas, &r, &ch) != MB_OK;
        CHECK_EQ(failed, ch == NULL);
        if (failed)
            CHECK(strlen(mb_error_detail()) > 10);
        fake.fail_at = 0;
        teardown();
    }
    return n - 2;
}

TEST(a_failure_at_any_call_leaves_nothing)
{
    unsigned by_errno = fail_everywhere(0);

    CHECK_EQ(by_errno, fail_everywhere(NVRM_STATUS_NO_MEMORY));
    CHECK(by_errno > 20);
}

TEST(a_dead_channel_is_noticed_at_creation)
{
    struct nvrm_channel_request r = {.copy_engine = -1, .start_timeout_ns = 1 * ms};
    struct nvrm_channel *ch = NULL;

    setup();
    fake.frozen = true;
    CHECK_EQ(mb__nvrm_channel_create(vas, &r, &ch), MB_ERR_TIMEOUT);
    CHECK(strstr(mb_error_detail(), "first use") != NULL);
    CHECK_PTR_EQ(ch, NULL);
    teardown();
}

TEST(a_push_buffer_beyond_40_bits_is_refused)
{
    struct nvrm_channel_request r = {.copy_engine = -1};
    struct nvrm_channel *ch = NULL;

    setup();
    fake.next_va = 1ull << 40;
    CHECK_EQ(mb__nvrm_channel_create(vas, &r, &ch), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "40 bits") != NULL);
    teardown();
}

TEST(copy_barrier_invalidate_release)
{
    setup();
    struct nvrm_channel *ch = make_channel(0, 0);
    struct nvrm_mem *m = make_memory();
    volatile uint64_t *host = m->cpu.addr;
    uint32_t words[64];
    struct nvrm_push p;
    uint64_t ticket = 0;

    for (unsigned i = 0; i < 16; i++)
        host[i] = 0x1000 + i;
    mb__nvrm_push_init(&p, client->arch, words, 64);
    mb__nvrm_push_copy(&p, m->va + 4096, m->va, 128, 0);
    mb__nvrm_push_wfi(&p);
    mb__nvrm_push_membar(&p, NVRM_MEMBAR_SYS);
    mb__nvrm_push_invalidate(&p, &(struct nvrm_invalidate){.pdb = 0x201000, .ack = true});
    mb__nvrm_push_release64(&p, m->va + 8000, 42, NVRM_RELEASE_WFI);
    CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket));
    CHECK_EQ(ticket, 2); /* 1 was the trial */
    CHECK(!mb__nvrm_channel_done(ch, ticket));
    CHECK_OK(mb__nvrm_channel_wait(ch, ticket, guard));
    CHECK(mb__nvrm_channel_done(ch, ticket));
    CHECK(!mb__nvrm_channel_done(ch, ticket + 1));
    for (unsigned i = 0; i < 16; i++)
        CHECK_EQ(host[512 + i], 0x1000 + i);
    CHECK_EQ(host[1000], 42);
    CHECK_OK(mb__nvrm_channel_idle(ch, 0));
    CHECK_EQ(fake.copies, 1);
    CHECK_EQ(fake.membars, 1);
    CHECK_EQ(fake.invalidates, 1);
    CHECK_EQ(fake.last_invalidate[2], 0x201020);
    teardown();
}

/* The pre-queued form: acquire, invalidate, release, many in one submission with one doorbell. */
TEST(many_segments_in_one_submission)
{
    enum { N = 100 };
    static uint32_t words[N][32];
    static struct nvrm_push p[N];
    struct nvrm_channel_stats stats;
    uint64_t ticket = 0;

    setup();
    struct nvrm_channel *ch = make_channel(0, 0);
    struct nvrm_mem *m = make_memory();
    volatile uint64_t *host = m->cpu.addr;
    for (uint32_t i = 0; i < N; i++) {
        mb__nvrm_push_init(&p[i], client->arch, words[i], 32);
        mb__nvrm_push_acquire32(&p[i], m->va, i + 1);
        mb__nvrm_push_invalidate(&p[i], &(struct nvrm_invalidate){.pdb = 0x1000, .ack = true});
        mb__nvrm_push_release64(&p[i], m->va + 4096, i + 1, NVRM_RELEASE_WFI);
    }
    CHECK_OK(mb__nvrm_channel_submit(ch, p, N, 0, &ticket));
    nvrm_fake_gpu_run(&fake);
    CHECK(fake.blocked);
    CHECK_EQ(host[512], 0);
    for (uint32_t i = 1; i <= N; i++) {
        host[0] = i;
        nvrm_fake_gpu_run(&fake);
        CHECK_EQ(host[512], i);
        CHECK_EQ(fake.invalidates, i);
        CHECK_EQ(mb__nvrm_channel_done(ch, ticket), i == N);
    }
    mb__nvrm_channel_stats(ch, &stats);
    CHECK_EQ(stats.submissions, 2);
    CHECK_EQ(stats.segments, N + 1);
    teardown();
}

TEST(what_cannot_be_sent_is_refused_and_nothing_is_sent)
{
    uint32_t words[64];
    struct nvrm_push p, many[8];
    uint64_t ticket = 77;

    setup();
    struct nvrm_channel *ch = make_channel(8, 4096);
    unsigned releases = fake.releases;
    mb__nvrm_push_init(&p, client->arch, words, 64);
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket), MB_ERR_INVALID); /* empty */
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 0, 0, &ticket), MB_ERR_INVALID);
    mb__nvrm_push_release64(&p, 3, 1, 0); /* marked */
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket), MB_ERR_INVALID);
    CHECK(strstr(mb_error_detail(), "misaligned") != NULL);
    mb__nvrm_push_init(&p, client->arch, words, 64);
    mb__nvrm_push_wfi(&p);
    for (unsigned i = 0; i < 8; i++)
        many[i] = p;
    CHECK_EQ(mb__nvrm_channel_submit(ch, many, 8, 0, &ticket), MB_ERR_LIMIT);
    CHECK_OK(mb__nvrm_channel_submit(ch, many, 7, 0, &ticket));
    CHECK_EQ(ticket, 2);
    ticket = 77;
    static uint32_t large[1024];
    mb__nvrm_push_init(&p, client->arch, large, 1024);
    while (p.count <= mb__nvrm_channel_max_words(ch))
        mb__nvrm_push_wfi(&p);
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket), MB_ERR_LIMIT);
    CHECK(strstr(mb_error_detail(), "split") != NULL);
    CHECK_EQ(ticket, 77);
    nvrm_fake_gpu_run(&fake);
    CHECK_EQ(fake.releases, releases + 1);
    /* The largest one allowed goes into an idle channel, wherever the last one ended. */
    for (uint32_t i = 0; i < 150; i++) {
        p.count = i % 3 ? mb__nvrm_channel_max_words(ch) : 2 * (1 + i);
        CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket));
        CHECK_OK(mb__nvrm_channel_wait(ch, ticket, guard));
    }
    teardown();
}

TEST(no_room_is_busy_at_once_or_a_timeout_later)
{
    uint32_t words[8];
    struct nvrm_push p;
    uint64_t ticket = 0, before;

    setup();
    struct nvrm_channel *ch = make_channel(8, 0);
    mb__nvrm_push_init(&p, client->arch, words, 8);
    mb__nvrm_push_wfi(&p);
    fake.frozen = true;
    for (unsigned i = 0; i < 7; i++)
        CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket));
    before = ticket;
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket), MB_ERR_BUSY);
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 2 * ms, &ticket), MB_ERR_TIMEOUT);
    CHECK_EQ(ticket, before);
    CHECK_EQ(mb__nvrm_channel_wait(ch, ticket, 2 * ms), MB_ERR_TIMEOUT);
    CHECK_EQ(mb__nvrm_channel_idle(ch, 2 * ms), MB_ERR_TIMEOUT);
    CHECK(strstr(mb_error_detail(), "submission 8") && strstr(mb_error_detail(), "at 1"));
    fake.frozen = false;
    CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, guard, &ticket));
    CHECK_EQ(ticket, before + 1);
    CHECK_OK(mb__nvrm_channel_wait(ch, ticket, guard));
    teardown();
}

/*
 * Random sizes, random progress, a small ring and a small buffer: each submission's words must
 * reach the GPU intact, so nothing was written over what was not yet read. Every segment stores its
 * own number in the next place of a table; a lost, repeated or torn segment shows there.
 */
static void overrun_test(uint32_t entries, uint32_t bytes)
{
    enum { ROUNDS = 3000, MOST = 5, PER_SEGMENT = 24 };
    uint64_t state = mb_test_seed(), ticket = 0, last = 0, sent = 0, seen = 0;
    static uint32_t words[MOST][PER_SEGMENT * NVRM_WORDS_SEMAPHORE];
    struct nvrm_push p[MOST];

    setup();
    struct nvrm_channel *ch = make_channel(entries, bytes);
    struct nvrm_mem *m = make_memory();
    volatile uint64_t *host = m->cpu.addr;
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t count = 1 + (uint32_t)mb_test_random_below(&state, MOST);
        uint32_t total = 0;
        for (uint32_t i = 0; i < count; i++) {
            mb__nvrm_push_init(&p[i], client->arch, words[i], PER_SEGMENT * NVRM_WORDS_SEMAPHORE);
            uint32_t pad = (uint32_t)mb_test_random_below(&state, 16);
            /* Any length: the semaphore comes last, after words that only take room. */
            for (uint32_t k = 0; k < pad; k++)
                mb__nvrm_push_wfi(&p[i]);
            mb__nvrm_push_release64(&p[i], m->va + sent % 1024 * 8, sent + 1, 0);
            sent++;
            total += p[i].count;
        }
        CHECK_LE(total, mb__nvrm_channel_max_words(ch));
        fake.run_limit = 1 + (unsigned)mb_test_random_below(&state, 4);
        fake.frozen = mb_test_random_below(&state, 4) == 0;
        enum mb_err err = mb__nvrm_channel_submit(ch, p, count, 0, &ticket);
        fake.frozen = false;
        if (err == MB_ERR_BUSY)
            err = mb__nvrm_channel_submit(ch, p, count, guard, &ticket);
        CHECK_OK(err);
        CHECK_EQ(ticket, (round ? last : 1) + 1);
        last = ticket;
        if (mb_test_random_below(&state, 3) == 0)
            nvrm_fake_gpu_run(&fake);
        /* What the GPU has stored is a gap-free run of numbers. */
        while (seen < sent && host[seen % 1024] == seen + 1)
            seen++;
        CHECK_EQ(fake.bad_words, 0);
    }
    fake.run_limit = 0;
    CHECK_OK(mb__nvrm_channel_wait(ch, ticket, guard));
    while (seen < sent && host[seen % 1024] == seen + 1)
        seen++;
    CHECK_EQ(seen, sent);
    struct nvrm_channel_stats stats;
    mb__nvrm_channel_stats(ch, &stats);
    CHECK_EQ(stats.submissions, ROUNDS + 1);
    CHECK(stats.waits_for_room > 10);
    teardown();
}

/* The ring is what fills up. */
TEST(no_unread_ring_entry_is_overwritten)
{
    overrun_test(16, 1 << 16);
}

/* The push buffer is what fills up. */
TEST(no_unread_word_is_overwritten)
{
    overrun_test(512, 4096);
}

TEST(a_stopped_channel_says_why)
{
    uint32_t words[8];
    struct nvrm_push p;
    struct nvrm_channel_error e = {.code = 77};
    uint64_t ticket = 0;

    setup();
    struct nvrm_channel *ch = make_channel(8, 0);
    CHECK_OK(mb__nvrm_channel_error(ch, &e));
    CHECK_EQ(e.code, 77);
    mb__nvrm_push_init(&p, client->arch, words, 8);
    mb__nvrm_push_wfi(&p);
    CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket));
    nvrm_fake_gpu_fault(&fake, 31);
    CHECK_EQ(mb__nvrm_channel_wait(ch, ticket, guard), MB_ERR_DEVICE_LOST);
    CHECK_EQ(mb__nvrm_channel_error(ch, &e), MB_ERR_DEVICE_LOST);
    CHECK_EQ(e.code, 31);
    CHECK_EQ(e.engine_type, NVRM_ENGINE_COPY0 + 4);
    CHECK_EQ(e.time_ns, 7);
    CHECK(strstr(e.text, "MMU fault") != NULL);
    CHECK(strstr(mb_error_detail(), "exception 31") != NULL);
    CHECK_EQ(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket), MB_ERR_DEVICE_LOST);
    teardown();
}

/* A wait in one channel's queue must not hold another channel. */
TEST(channels_do_not_wait_for_each_other)
{
    uint32_t wa[32], wb[32];
    struct nvrm_push a, b;
    uint64_t ta = 0, tb = 0;

    setup();
    struct nvrm_channel *one = make_channel(0, 0), *two = make_channel(0, 0);
    struct nvrm_mem *m = make_memory();
    mb__nvrm_push_init(&a, client->arch, wa, 32);
    mb__nvrm_push_acquire64(&a, m->va, 1);
    mb__nvrm_push_init(&b, client->arch, wb, 32);
    mb__nvrm_push_release64(&b, m->va, 1, NVRM_RELEASE_WFI);
    CHECK_OK(mb__nvrm_channel_submit(one, &a, 1, 0, &ta));
    nvrm_fake_gpu_run(&fake);
    CHECK(!mb__nvrm_channel_done(one, ta));
    CHECK_OK(mb__nvrm_channel_submit(two, &b, 1, 0, &tb));
    CHECK_OK(mb__nvrm_channel_wait(two, tb, guard));
    CHECK_OK(mb__nvrm_channel_wait(one, ta, guard));
    mb__nvrm_channel_destroy(&two);
    teardown();
}

static int in_child(struct nvrm_channel *ch, const struct nvrm_push *p)
{
    unsigned calls = fake.calls, runs = fake.releases;
    struct nvrm_channel_error e;
    uint64_t ticket;

    if (mb__nvrm_channel_submit(ch, p, 1, 0, &ticket) != MB_ERR_FORKED)
        return 1;
    if (mb__nvrm_channel_wait(ch, 1, 1000) != MB_ERR_FORKED)
        return 2;
    if (mb__nvrm_channel_error(ch, &e) != MB_ERR_FORKED)
        return 3;
    if (mb__nvrm_channel_done(ch, 1))
        return 4;
    mb__nvrm_client_close(&client);
    if (fake.calls != calls + 2 || fake.releases != runs) /* only the files were closed */
        return 5;
    return fake.violations ? 6 : 0;
}

TEST(a_forked_child_cannot_use_it)
{
    uint32_t words[8];
    struct nvrm_push p;
    uint64_t ticket = 0;
    int status = -1;

    setup();
    struct nvrm_channel *ch = make_channel(0, 0);
    mb__nvrm_push_init(&p, client->arch, words, 8);
    mb__nvrm_push_wfi(&p);
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        _exit(in_child(ch, &p));
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK_OK(mb__nvrm_channel_submit(ch, &p, 1, 0, &ticket));
    CHECK_OK(mb__nvrm_channel_wait(ch, ticket, guard));
    teardown();
}

TEST(every_series_can_start_a_channel)
{
    static const char *const versions[] = {"570.86.15", "575.64", "580.142", "590.48.01",
                                           "595.45.04"};
    for (unsigned i = 0; i < 5; i++) {
        nvrm_fake_init(&fake);
        fake.version = versions[i];
        fake.series = mb__nvrm_series_at(i);
        struct nvrm_client_request r = {.os = &fake.os,
                                        .version_text = nvrm_fake_version_text(&fake),
                                        .select = NVRM_BY_MINOR,
                                        .minor = 5};
        CHECK_OK(mb__nvrm_client_open(&r, &client));
        CHECK_OK(mb__nvrm_vas_create(client, &vas));
        make_channel(0, 0);
        teardown();
    }
}
