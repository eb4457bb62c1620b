/* SPDX-License-Identifier: MIT */
/* Decisions of the checks, the scan of a made-up /proc, and all checks together against the FAKE.
 * */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hw/nvrm/checks.h"
#include "nvrm_fake.h"
#include "test.h"

#define FIRST_USER_NS "         0          0 4294967295\n"
#define FIRST_PID_NS "pid:[4026531836]"

static void expect(const struct nvrm_check *c, enum nvrm_verdict verdict, const char *text)
{
    CHECK_EQ(c->verdict, verdict);
    CHECK_EQ(c->fatal, verdict == NVRM_VERDICT_REFUSED);
    CHECK(strstr(c->text, text) != NULL);
}

TEST(privilege_must_be_real)
{
    const uint32_t all[2] = {~0u, ~0u}, none[2] = {0, 0}, all_but[2] = {~(1u << 21), ~0u},
                   only[2] = {1u << 21, 0};
    struct nvrm_check c;

    mb__nvrm_decide_privilege(all, FIRST_USER_NS, &c);
    expect(&c, NVRM_VERDICT_OK, "");
    mb__nvrm_decide_privilege(only, FIRST_USER_NS, &c);
    expect(&c, NVRM_VERDICT_OK, "");
    mb__nvrm_decide_privilege(none, FIRST_USER_NS, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "CAP_SYS_ADMIN");
    mb__nvrm_decide_privilege(all_but, FIRST_USER_NS, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "run as root");
    /* rootless container: capabilities, but in a namespace of its own */
    mb__nvrm_decide_privilege(all, "         0       1000          1\n", &c);
    expect(&c, NVRM_VERDICT_REFUSED, "user namespace");
    mb__nvrm_decide_privilege(all, "         0     100000      65536\n", &c);
    expect(&c, NVRM_VERDICT_REFUSED, "user namespace");
    mb__nvrm_decide_privilege(all, "nonsense", &c);
    expect(&c, NVRM_VERDICT_REFUSED, "user namespace");
    mb__nvrm_decide_privilege(all, NULL, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "user namespace");
}

TEST(the_gpu_must_be_alone)
{
    const uint32_t own[] = {42, 42, 42}, two[] = {42, 77}, three[] = {5, 42, 6};
    struct nvrm_check c;

    mb__nvrm_decide_exclusive(NULL, 0, 42, FIRST_PID_NS, &c);
    expect(&c, NVRM_VERDICT_OK, "");
    CHECK_STR_EQ(c.text, "");
    mb__nvrm_decide_exclusive(own, 3, 42, FIRST_PID_NS, &c);
    expect(&c, NVRM_VERDICT_OK, "");
    mb__nvrm_decide_exclusive(two, 2, 42, FIRST_PID_NS, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "1 other process on this GPU (pid 77)");
    expect(&c, NVRM_VERDICT_REFUSED, "force:yes"); /* what to do about it, as it is written */
    mb__nvrm_decide_exclusive(three, 3, 42, FIRST_PID_NS, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "2 other processes on this GPU (pid 5, ...)");
    mb__nvrm_decide_exclusive(own, 1, 42, "pid:[4026532201]", &c);
    expect(&c, NVRM_VERDICT_OK, "pid namespace");
    mb__nvrm_decide_exclusive(own, 1, 42, NULL, &c);
    expect(&c, NVRM_VERDICT_OK, "pid namespace");
}

TEST(modes_that_share_or_protect_the_gpu)
{
    static const enum nvrm_verdict mig[] = {NVRM_VERDICT_OK,      NVRM_VERDICT_REFUSED,
                                            NVRM_VERDICT_OK,      NVRM_VERDICT_OK,
                                            NVRM_VERDICT_REFUSED, NVRM_VERDICT_REFUSED};
    static const enum nvrm_verdict virt[] = {NVRM_VERDICT_OK,      NVRM_VERDICT_OK,
                                             NVRM_VERDICT_REFUSED, NVRM_VERDICT_REFUSED,
                                             NVRM_VERDICT_REFUSED, NVRM_VERDICT_REFUSED};
    struct nvrm_check c;

    for (uint32_t i = 0; i < 6; i++) {
        mb__nvrm_decide_mig(i, &c);
        expect(&c, mig[i], mig[i] == NVRM_VERDICT_OK ? "" : "MIG");
        mb__nvrm_decide_virtual(i, &c);
        expect(&c, virt[i], "");
    }
    mb__nvrm_decide_cc(&(struct nvrm_abi_cc_caps){.cpu = 3, .gpus = 2}, &c); /* able, not on */
    expect(&c, NVRM_VERDICT_OK, "");
    mb__nvrm_decide_cc(&(struct nvrm_abi_cc_caps){.feature = 2}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "confidential computing is on");
    mb__nvrm_decide_cc(&(struct nvrm_abi_cc_caps){.multi_gpu = 1}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "PPCIe");
    mb__nvrm_decide_cc(&(struct nvrm_abi_cc_caps){.dev_tools = 1}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "developer");
}

TEST(coherent_systems)
{
    struct nvrm_check c;

    mb__nvrm_decide_coherent(&(struct nvrm_coherence){0}, &c);
    expect(&c, NVRM_VERDICT_OK, "");
    mb__nvrm_decide_coherent(&(struct nvrm_coherence){.ats = 1}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "ATS");
    mb__nvrm_decide_coherent(&(struct nvrm_coherence){.self_hosted = 1}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "Grace");
    mb__nvrm_decide_coherent(&(struct nvrm_coherence){.memory_mode = 2}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "coherent");
    mb__nvrm_decide_coherent(&(struct nvrm_coherence){.c2c_to_cpu = true}, &c);
    expect(&c, NVRM_VERDICT_REFUSED, "C2C");
}

TEST(mps_in_its_forms)
{
    /* clients, daemon, pipe, env -> refused? */
    static const struct {
        struct nvrm_mps_facts facts;
        enum nvrm_verdict verdict;
    } cases[] = {
        {{0, false, false, false}, NVRM_VERDICT_OK},
        {{0, false, true, false}, NVRM_VERDICT_OK}, /* left over */
        {{0, true, false, false}, NVRM_VERDICT_OK}, /* with a pipe elsewhere */
        {{0, false, false, true},
         NVRM_VERDICT_OK}, /* an empty directory: the way to switch it off */
        {{0, true, true, false}, NVRM_VERDICT_REFUSED},
        {{0, false, true, true}, NVRM_VERDICT_REFUSED},
        {{1, false, false, false}, NVRM_VERDICT_REFUSED},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct nvrm_check c;
        mb__nvrm_decide_mps(&cases[i].facts, &c);
        expect(&c, cases[i].verdict, "");
        CHECK_EQ(strstr(c.text, "MPS") != NULL, i == 1 || cases[i].verdict != NVRM_VERDICT_OK);
    }
}

/* ------------------------------------------------------------ scan of a /proc that the test makes
 * */

static char root[64];

static void make_dir(const char *path)
{
    char full[400];

    snprintf(full, sizeof full, "%s/%s", root, path);
    CHECK_OK(mkdir(full, 0700));
}

static void make_process(const char *pid, const char *comm, const char *const *targets)
{
    char path[300];

    make_dir(pid);
    snprintf(path, sizeof path, "%s/fd", pid);
    make_dir(path);
    snprintf(path, sizeof path, "%s/%s/comm", root, pid);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "%s\n", comm);
    fclose(f);
    for (int i = 0; targets[i]; i++) {
        snprintf(path, sizeof path, "%s/%s/fd/%d", root, pid, i);
        CHECK_OK(symlink(targets[i], path));
    }
}

TEST(users_are_found_in_proc)
{
    static const char *const cuda[] = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", NULL};
    static const char *const monitor[] = {"/dev/nvidiactl", "/dev/nvidia3", NULL};
    static const char *const other_gpu[] = {"/dev/nvidia-uvm", "/dev/nvidia30", NULL};
    static const char *const idle[] = {"/dev/null", NULL};
    uint32_t pids[8] = {0}, count = 77, unreadable = 77;

    snprintf(root, sizeof root, P_tmpdir "/mb_nvrm_proc_XXXXXX");
    CHECK(mkdtemp(root) != NULL);
    make_process("101", "python3", cuda);
    make_process("102", "nvidia-smi", monitor);
    make_process("103", "python3", other_gpu);
    make_process("104", "bash", idle);
    make_process("self", "nvidia-cuda-mps", cuda); /* not a number */
    CHECK_OK(mb__nvrm_scan_users(root, 3, pids, 8, &count, &unreadable));
    CHECK_EQ(count, 1);
    CHECK_EQ(pids[0], 101);
    CHECK_EQ(unreadable, 0);
    CHECK_OK(mb__nvrm_scan_users(root, 7, pids, 8, &count, &unreadable));
    CHECK_EQ(count, 0);
    CHECK(!mb__nvrm_scan_process(root, "nvidia-cuda-mps"));
    make_process("105", "nvidia-cuda-mps", idle);
    CHECK(mb__nvrm_scan_process(root, "nvidia-cuda-mps"));
    CHECK(mb__nvrm_scan_process(root, "bash"));
    count = 77;
    CHECK_EQ(mb__nvrm_scan_users("/no/such/proc", 3, pids, 8, &count, &unreadable), MB_ERR_IO);
    CHECK_EQ(count, 77);
    CHECK(!mb__nvrm_scan_process("/no/such/proc", "x"));
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_OK(system(command));
}

TEST(the_real_proc_can_be_read)
{
    uint32_t pids[8], count = 0, unreadable = 0;

    CHECK_OK(mb__nvrm_scan_users("/proc", 999999, pids, 8, &count, &unreadable));
    CHECK_EQ(count, 0);
    CHECK(!mb__nvrm_scan_process("/proc", "no such process name"));
}

/* ------------------------------------------------------------ all together */

static struct nvrm_fake fake;
static struct nvrm_client *client;
static struct nvrm_check results[NVRM_CHECK_COUNT];

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

/* The verdicts that do not come from the driver depend on where the test runs. */
static enum mb_err run_driver_checks(enum nvrm_check_id id)
{
    mb__nvrm_checks_run(client, false, results);
    return results[id].fatal ? MB_ERR_NOT_SUPPORTED : MB_OK;
}

TEST(a_plain_gpu_passes_the_driver_checks)
{
    setup();
    mb__nvrm_checks_run(client, false, results);
    for (unsigned i = NVRM_CHECK_EXCLUSIVE; i < NVRM_CHECK_MPS; i++) {
        CHECK_EQ(results[i].verdict, NVRM_VERDICT_OK);
        CHECK(!results[i].fatal);
    }
    CHECK(strlen(mb__nvrm_check_name(NVRM_CHECK_CC)) > 1);
    CHECK_STR_EQ(mb__nvrm_check_name(NVRM_CHECK_COUNT), "?");
    fake.has_cc = false; /* a driver without the class: not on */
    CHECK_OK(run_driver_checks(NVRM_CHECK_CC));
    fake.has_c2c = true; /* a link to another GPU is no reason */
    fake.c2c = (struct nvrm_abi_c2c_info){.link_up = 1, .remote = 2};
    CHECK_OK(run_driver_checks(NVRM_CHECK_COHERENT));
    teardown();
}

/* A driver before 580 does not know every question; that must not count against it. */
TEST(older_series_are_asked_what_they_know)
{
    nvrm_fake_init(&fake);
    fake.version = "570.86.15";
    fake.series = mb__nvrm_series_at(0);
    struct nvrm_client_request r = {.os = &fake.os,
                                    .version_text = nvrm_fake_version_text(&fake),
                                    .select = NVRM_BY_MINOR,
                                    .minor = 5};
    CHECK_OK(mb__nvrm_client_open(&r, &client));
    mb__nvrm_checks_run(client, false, results);
    for (unsigned i = NVRM_CHECK_EXCLUSIVE; i < NVRM_CHECK_MPS; i++)
        CHECK_EQ(results[i].verdict, NVRM_VERDICT_OK);
    teardown();
}

TEST(each_configuration_is_refused)
{
    setup();
    fake.pids[0] = 1;
    fake.pid_count = 1;
    CHECK_NE(run_driver_checks(NVRM_CHECK_EXCLUSIVE), MB_OK);
    fake.pids[0] = (uint32_t)getpid();
    CHECK_OK(run_driver_checks(NVRM_CHECK_EXCLUSIVE));
    fake.smc_mode = 1;
    CHECK_NE(run_driver_checks(NVRM_CHECK_MIG), MB_OK);
    fake.virt_mode = 2;
    CHECK_NE(run_driver_checks(NVRM_CHECK_VIRTUAL), MB_OK);
    fake.cc.feature = 2;
    CHECK_NE(run_driver_checks(NVRM_CHECK_CC), MB_OK);
    fake.coherent_mode = 1;
    CHECK_NE(run_driver_checks(NVRM_CHECK_COHERENT), MB_OK);
    fake.coherent_mode = 0;
    fake.has_c2c = true;
    fake.c2c = (struct nvrm_abi_c2c_info){.link_up = 1, .remote = 1};
    CHECK_NE(run_driver_checks(NVRM_CHECK_COHERENT), MB_OK);
    fake.mps_count = 1;
    CHECK_NE(run_driver_checks(NVRM_CHECK_MPS), MB_OK);
    teardown();
}

TEST(the_first_refusal_is_reported)
{
    struct nvrm_check privilege;

    setup();
    fake.pids[0] = 1;
    fake.pid_count = 1;
    mb__nvrm_check_privilege(&privilege);
    enum mb_err err = mb__nvrm_checks_run(client, false, results);
    if (privilege.fatal) {
        CHECK_EQ(err, MB_ERR_PERMISSION);
    } else {
        CHECK_EQ(err, MB_ERR_BUSY);
        CHECK(strstr(mb_error_detail(), "exclusive") && strstr(mb_error_detail(), "pid 1"));
    }
    /* Sharing can be forced, the remark stays. */
    err = mb__nvrm_checks_run(client, true, results);
    CHECK_NE(err, MB_ERR_BUSY);
    CHECK_EQ(results[NVRM_CHECK_EXCLUSIVE].verdict, NVRM_VERDICT_REFUSED);
    CHECK(!results[NVRM_CHECK_EXCLUSIVE].fatal);
    teardown();
}

/* Each driver question fails in turn: no crash, nothing left, and no verdict «OK» where the answer
 * was needed. */
TEST(an_unanswered_question_is_not_a_yes)
{
    unsigned unknown = 0;

    for (unsigned n = 1; n <= 12; n++) {
        setup();
        fake.has_c2c = true;
        fake.fail_at = fake.making_calls + n;
        fake.fail_status = 0x65;
        mb__nvrm_checks_run(client, false, results);
        for (unsigned i = NVRM_CHECK_EXCLUSIVE; i < NVRM_CHECK_MPS; i++)
            if (results[i].verdict == NVRM_VERDICT_UNKNOWN) {
                CHECK(results[i].fatal);
                CHECK(strlen(results[i].text) > 20);
                unknown++;
            }
        fake.fail_at = 0;
        teardown();
    }
    CHECK(unknown >= 6);
}
