/* SPDX-License-Identifier: MIT */
/* Client, memory, views, questions and UVM calls against the FAKE driver: what we send, in which
 * order we undo, what we say. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "hw/nvrm/memory.h"
#include "hw/nvrm/query.h"
#include "hw/nvrm/status.h"
#include "nvrm_fake.h"
#include "test.h"

static struct nvrm_fake fake;

static struct nvrm_client_request request(void)
{
    return (struct nvrm_client_request){.os = &fake.os,
                                        .version_text = nvrm_fake_version_text(&fake),
                                        .select = NVRM_BY_MINOR,
                                        .minor = 5};
}

static struct nvrm_client *open_client(void)
{
    struct nvrm_client_request r = request();
    struct nvrm_client *client = NULL;

    CHECK_OK(mb__nvrm_client_open(&r, &client));
    return client;
}

static void finish(void)
{
    CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    nvrm_fake_fini(&fake);
}

TEST(a_client_knows_its_gpu)
{
    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_EQ(c->minor, 5);
    CHECK_EQ(c->gpu_id, 0x1b00);
    CHECK_EQ(c->pci_bus, 0x1b);
    CHECK_EQ(c->device_instance, 3);
    CHECK_STR_EQ(c->version.text, "580.159.04");
    CHECK_STR_EQ(c->arch->name, "GH100");
    CHECK_EQ(c->uuid[0], 0xab);
    mb__nvrm_client_close(&c);
    CHECK_PTR_EQ(c, NULL);
    mb__nvrm_client_close(&c); /* twice */
    finish();
}

TEST(a_gpu_is_selected_by_each_of_its_names)
{
    struct nvrm_client_request by[3];

    nvrm_fake_init(&fake);
    for (int i = 0; i < 3; i++)
        by[i] = request();
    by[1].select = NVRM_BY_PCI;
    by[1].pci_domain = 1;
    by[1].pci_bus = 0x1b;
    by[1].pci_slot = 2;
    by[2].select = NVRM_BY_UUID;
    memset(by[2].uuid, 0xab, sizeof by[2].uuid);
    for (int i = 0; i < 3; i++) {
        struct nvrm_client *c = NULL;
        CHECK_OK(mb__nvrm_client_open(&by[i], &c));
        CHECK_EQ(c->gpu_id, 0x1b00);
        mb__nvrm_client_close(&c);
        CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    }
    by[0].minor = 1;
    by[1].pci_slot = 3;
    by[2].uuid[15] = 0;
    for (int i = 0; i < 3; i++) {
        struct nvrm_client *c = NULL;
        CHECK_EQ(mb__nvrm_client_open(&by[i], &c), MB_ERR_NO_DEVICE);
        CHECK_PTR_EQ(c, NULL);
        CHECK(strstr(mb_error_detail(), "among the 2") != NULL);
        CHECK_STR_EQ(nvrm_fake_left(&fake), "");
    }
    finish();
}

TEST(an_unknown_driver_or_gpu_is_refused_before_anything_is_made)
{
    struct nvrm_client *c = NULL;
    struct nvrm_client_request r;

    nvrm_fake_init(&fake);
    fake.version = "999.1.2";
    r = request();
    CHECK_EQ(mb__nvrm_client_open(&r, &c), MB_ERR_NOT_SUPPORTED);
    CHECK_EQ(fake.calls, 0);
    CHECK(strstr(mb_error_detail(), "999") != NULL);

    r.version_text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Wed\n";
    fake.version = "580.159.04";
    CHECK_EQ(mb__nvrm_client_open(&r, &c), MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), "580.159.04") && strstr(mb_error_detail(), "580.95.05"));
    CHECK_STR_EQ(nvrm_fake_left(&fake), "");

    r = request();
    fake.architecture = 0x160;
    CHECK_EQ(mb__nvrm_client_open(&r, &c), MB_ERR_NOT_SUPPORTED);
    CHECK(strstr(mb_error_detail(), "0x160") != NULL);
    CHECK_PTR_EQ(c, NULL);
    finish();
}

/* Everything that can hang on a client, made in one go; stops at the first failure. */
static enum mb_err make_all(struct nvrm_client *c)
{
    struct nvrm_vas *vas = NULL;
    struct nvrm_mem *video = NULL, *host = NULL, *dup = NULL;
    struct nvrm_phys *phys = NULL;
    struct nvrm_cpu_map view = {0};
    uint64_t va = 0;

    enum mb_err err = mb__nvrm_mem_create(c, NVRM_MEM_SYSMEM, 10000, &host);
    if (!err)
        err = mb__nvrm_vas_create(c, &vas);
    if (!err)
        err = mb__nvrm_mem_create(c, NVRM_MEM_VIDMEM, 1, &video);
    if (!err)
        err = mb__nvrm_mem_map_cpu(video);
    if (!err)
        err = mb__nvrm_mem_map_gpu(video, vas);
    if (!err)
        err = mb__nvrm_mem_map_gpu(host, vas); /* older than the space it is mapped in */
    if (!err)
        err = mb__nvrm_mem_dup(c, FAKE_FOREIGN_CLIENT, FAKE_FOREIGN_MEMORY, 8192, true, &dup);
    if (!err)
        err = mb__nvrm_mem_map_cpu(dup);
    if (!err)
        err = mb__nvrm_phys_create(c, &phys);
    if (!err)
        err = mb__nvrm_phys_view_cpu(phys, 0x3000, NVRM_CPU_READ_ONLY, &view);
    if (!err)
        err = mb__nvrm_phys_view_gpu(phys, vas, 0x3000, false, &va);
    if (!err)
        mb__nvrm_gpu_unmap(vas, phys->handle, va);
    mb__nvrm_cpu_unmap(c, &view);
    return err;
}

TEST(closing_the_client_undoes_all_in_reverse)
{
    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_OK(make_all(c));
    mb__nvrm_client_close(&c);
    finish();
}

TEST(every_series_gets_its_layouts)
{
    static const char *const versions[] = {"570.86.15", "575.64", "580.142", "590.48.01",
                                           "595.45.04"};
    for (unsigned i = 0; i < 5; i++) {
        nvrm_fake_init(&fake);
        fake.version = versions[i];
        fake.series = mb__nvrm_series_at(i);
        struct nvrm_client *c = open_client();
        CHECK_OK(make_all(c)); /* the fake refuses any other size */
        mb__nvrm_client_close(&c);
        finish();
    }
}

TEST(older_generations_get_their_classes)
{
    nvrm_fake_init(&fake);
    fake.architecture = 0x170;
    struct nvrm_client *c = open_client();
    CHECK_STR_EQ(c->arch->name, "GA100");
    CHECK_OK(make_all(c));
    mb__nvrm_client_close(&c);
    finish();
}

/* For every n: the n-th call that makes something fails. Opening or make_all() must report it, and
 * nothing may be left or undone in a wrong order. */
static unsigned fail_everywhere(uint32_t status, int error)
{
    unsigned n = 1;

    for (bool failed = true; failed; n++) {
        nvrm_fake_init(&fake);
        fake.fail_at = n;
        fake.fail_status = status;
        fake.fail_errno = error;
        struct nvrm_client_request r = request();
        struct nvrm_client *c = NULL;
        enum mb_err err = mb__nvrm_client_open(&r, &c);
        if (err)
            CHECK_PTR_EQ(c, NULL);
        else
            err = make_all(c);
        failed = err != MB_OK;
        if (failed) {
            CHECK(strlen(mb_error_detail()) > 10);
            CHECK(fake.making_calls >= n);
        }
        mb__nvrm_client_close(&c);
        if (*nvrm_fake_left(&fake))
            FAIL("call %u: %s", n, nvrm_fake_left(&fake));
        nvrm_fake_fini(&fake);
    }
    return n - 2;
}

TEST(a_failure_at_any_call_leaves_nothing)
{
    unsigned by_errno = fail_everywhere(0, EIO);
    unsigned by_status = fail_everywhere(NVRM_STATUS_NO_MEMORY, EIO);

    CHECK_EQ(by_errno, by_status);
    CHECK(by_errno > 40);
}

TEST(errors_name_the_call_and_the_status)
{
    struct nvrm_surface s = {.phys = 77};
    struct nvrm_phys *phys = NULL;

    nvrm_fake_init(&fake);
    fake.not_root = true;
    struct nvrm_client *c = open_client();
    CHECK_EQ(mb__nvrm_phys_create(c, &phys), MB_ERR_PERMISSION);
    CHECK(strstr(mb_error_detail(), "0x00c2") && strstr(mb_error_detail(), "0x1b"));
    CHECK(strstr(mb_error_detail(), "INSUFFICIENT_PERMISSIONS") != NULL);
    CHECK(strstr(mb_error_detail(), "CAP_SYS_ADMIN") != NULL);
    CHECK_EQ(mb__nvrm_surface(c, mb__nvrm_own(), 0x77, 0, &s), MB_ERR_PERMISSION);
    CHECK(strstr(mb_error_detail(), "GET_SURFACE_PHYS_ATTR") != NULL);
    CHECK(strstr(mb_error_detail(), "0x77") != NULL);
    CHECK_EQ(s.phys, 77);
    fake.fail_at = fake.making_calls + 1;
    fake.fail_errno = EACCES;
    CHECK_EQ(mb__nvrm_phys_create(c, &phys), MB_ERR_PERMISSION);
    CHECK(strstr(mb_error_detail(), strerror(EACCES)) != NULL);
    CHECK_PTR_EQ(phys, NULL);
    mb__nvrm_client_close(&c);
    finish();
}

TEST(memory_is_what_was_asked_for)
{
    struct nvrm_mem *m = NULL;
    struct nvrm_vas *vas = NULL;

    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_OK(mb__nvrm_vas_create(c, &vas));
    CHECK_EQ(mb__nvrm_mem_create(c, NVRM_MEM_SYSMEM, 0, &m), MB_ERR_INVALID);
    CHECK_EQ(mb__nvrm_mem_create(c, NVRM_MEM_VIDMEM, UINT64_MAX, &m), MB_ERR_INVALID);
    CHECK_PTR_EQ(m, NULL);
    CHECK_OK(mb__nvrm_mem_create(c, NVRM_MEM_VIDMEM, (2 << 20) + 1, &m));
    CHECK_EQ(m->bytes, 4 << 20);
    CHECK_OK(mb__nvrm_mem_map_cpu(m));
    CHECK_EQ(mb__nvrm_mem_map_cpu(m), MB_ERR_MAPPED);
    CHECK_OK(mb__nvrm_mem_map_gpu(m, vas));
    CHECK_EQ(mb__nvrm_mem_map_gpu(m, vas), MB_ERR_MAPPED);
    CHECK_PTR_EQ(nvrm_fake_at(&fake, m->va, m->bytes), (void *)(uintptr_t)m->cpu.addr);
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        if (fake.maps[i].live && !fake.maps[i].on_gpu)
            CHECK(fake.maps[i].dont_fork);
    mb__nvrm_mem_destroy(&m);
    CHECK_PTR_EQ(m, NULL);
    mb__nvrm_mem_destroy(&m);
    CHECK_OK(mb__nvrm_mem_create(c, NVRM_MEM_SYSMEM_CACHED, 1, &m));
    CHECK_EQ(m->bytes, 4096);
    mb__nvrm_vas_destroy(&vas);
    mb__nvrm_vas_destroy(&vas);
    mb__nvrm_client_close(&c);
    finish();
}

TEST(views_are_single_pages_inside_video_memory)
{
    static const uint64_t wrong[] = {
        1, 0x800, FAKE_PHYS_BYTES, FAKE_PHYS_BYTES - 1, 1ull << 60, UINT64_MAX & ~0xfffull};
    struct nvrm_phys *phys = NULL;
    struct nvrm_vas *vas = NULL;
    struct nvrm_cpu_map view = {0};
    uint64_t va = 0;

    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_OK(mb__nvrm_vas_create(c, &vas));
    CHECK_OK(mb__nvrm_phys_create(c, &phys));
    CHECK_EQ(phys->bytes, FAKE_PHYS_BYTES);
    unsigned calls = fake.calls;
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        CHECK_EQ(mb__nvrm_phys_view_cpu(phys, wrong[i], NVRM_CPU_READ_ONLY, &view), MB_ERR_INVALID);
        CHECK_EQ(mb__nvrm_phys_view_gpu(phys, vas, wrong[i], true, &va), MB_ERR_INVALID);
    }
    CHECK_EQ(fake.calls, calls);
    CHECK_OK(mb__nvrm_phys_view_cpu(phys, FAKE_PHYS_BYTES - 4096, NVRM_CPU_READ_ONLY, &view));
    CHECK_PTR_EQ((void *)(uintptr_t)view.addr, fake.phys + FAKE_PHYS_BYTES - 4096);
    CHECK_EQ(view.bytes, 4096);
    mb__nvrm_cpu_unmap(c, &view);
    CHECK_PTR_EQ(view.addr, NULL);
    mb__nvrm_cpu_unmap(c, &view);
    CHECK_OK(mb__nvrm_phys_view_cpu(phys, 0, NVRM_CPU_READ_WRITE, &view));
    *(volatile uint64_t *)view.addr = 0x1122;
    CHECK_EQ(fake.phys[0], 0x22);
    mb__nvrm_cpu_unmap(c, &view);
    CHECK_OK(mb__nvrm_phys_view_gpu(phys, vas, 0x2000, true, &va));
    unsigned read_only = 0;
    for (unsigned i = 0; i < FAKE_MAPS; i++)
        read_only += fake.maps[i].live && fake.maps[i].on_gpu && fake.maps[i].read_only;
    CHECK_EQ(read_only, 1);
    mb__nvrm_gpu_unmap(vas, phys->handle, va);
    mb__nvrm_phys_destroy(&phys);
    mb__nvrm_phys_destroy(&phys);
    mb__nvrm_client_close(&c);
    finish();
}

TEST(questions_about_foreign_objects)
{
    const struct nvrm_owner libcuda = {FAKE_FOREIGN_CTL_FD, FAKE_FOREIGN_CLIENT};
    struct nvrm_surface s;
    struct nvrm_instance inst;

    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_OK(mb__nvrm_surface(c, libcuda, FAKE_FOREIGN_MEMORY, 0x200000, &s));
    CHECK_EQ(s.phys, 0x21400000);
    CHECK_EQ(s.kind, 6);
    CHECK(s.in_vidmem && !s.compressed);
    CHECK_OK(
        mb__nvrm_channel_instance(c, libcuda, FAKE_FOREIGN_SUBDEVICE, FAKE_FOREIGN_CHANNEL, &inst));
    CHECK_EQ(inst.phys, 0x19000);
    CHECK_EQ(inst.bytes, 0x1000);
    CHECK(inst.in_vidmem);
    CHECK_EQ(mb__nvrm_channel_instance(c, libcuda, FAKE_FOREIGN_SUBDEVICE, 1, &inst),
             MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), "INVALID_CHANNEL") != NULL);
    mb__nvrm_client_close(&c);
    finish();
}

TEST(page_directory_of_an_instance_block)
{
    uint32_t words[NVRM_INSTANCE_WORDS] = {0};
    uint64_t pdb = 77;

    CHECK(!mb__nvrm_instance_pdb(words, &pdb));
    words[128] = 0x00201830; /* as seen on an H200 */
    CHECK(mb__nvrm_instance_pdb(words, &pdb));
    CHECK_EQ(pdb, 0x201000);
    words[129] = 0x12;
    CHECK(mb__nvrm_instance_pdb(words, &pdb));
    CHECK_EQ(pdb, 0x1200201000);
    pdb = 77;
    for (uint32_t target = 1; target < 4; target++) { /* not in video memory */
        words[128] = 0x00201830 | target;
        CHECK(!mb__nvrm_instance_pdb(words, &pdb));
    }
    CHECK_EQ(pdb, 77);
}

/* In a child every call refuses and none reaches the driver; closing only closes files. Exit status
 * of the child: 0, or the number of the check that failed. */
static int in_child(struct nvrm_client *c, struct nvrm_mem *m, struct nvrm_vas *vas,
                    struct nvrm_phys *phys)
{
    unsigned calls = fake.calls;
    struct nvrm_mem *made = NULL;
    struct nvrm_surface s;
    struct nvrm_cpu_map view = {0};
    uint64_t va;

    if (mb__nvrm_client_check(c) != MB_ERR_FORKED)
        return 1;
    if (mb__nvrm_mem_create(c, NVRM_MEM_SYSMEM, 1, &made) != MB_ERR_FORKED)
        return 2;
    if (mb__nvrm_mem_dup(c, FAKE_FOREIGN_CLIENT, FAKE_FOREIGN_MEMORY, 1, true, &made) !=
        MB_ERR_FORKED)
        return 3;
    if (mb__nvrm_surface(c, mb__nvrm_own(), m->handle, 0, &s) != MB_ERR_FORKED)
        return 4;
    if (mb__nvrm_phys_view_cpu(phys, 0, NVRM_CPU_READ_ONLY, &view) != MB_ERR_FORKED)
        return 5;
    if (mb__nvrm_phys_view_gpu(phys, vas, 0, true, &va) != MB_ERR_FORKED)
        return 6;
    if (mb__nvrm_mem_map_cpu(m) != MB_ERR_FORKED)
        return 7;
    if (fake.calls != calls)
        return 8;
    mb__nvrm_mem_destroy(&m);
    if (fake.calls != calls)
        return 9;
    mb__nvrm_client_close(&c);
    if (fake.calls != calls + 2) /* the two files */
        return 10;
    return fake.violations ? 11 : 0;
}

TEST(a_forked_child_is_shut_out)
{
    struct nvrm_mem *m = NULL;
    struct nvrm_vas *vas = NULL;
    struct nvrm_phys *phys = NULL;
    int status = -1;

    nvrm_fake_init(&fake);
    struct nvrm_client *c = open_client();
    CHECK_OK(mb__nvrm_vas_create(c, &vas));
    CHECK_OK(mb__nvrm_mem_create(c, NVRM_MEM_SYSMEM, 4096, &m));
    CHECK_OK(mb__nvrm_phys_create(c, &phys));
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        _exit(in_child(c, m, vas, phys));
    CHECK(pid > 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    CHECK_OK(mb__nvrm_client_check(c)); /* the parent goes on */
    CHECK_OK(mb__nvrm_mem_map_cpu(m));
    mb__nvrm_client_close(&c);
    finish();
}

TEST(the_fork_guard_works_without_its_page)
{
    struct nvrm_fork_guard guard;
    int status = -1;

    mb__nvrm_fork_guard_init(&guard);
    mb__nvrm_fork_guard_fini(&guard); /* page NULL: process ids are compared */
    CHECK(!mb__nvrm_fork_guard_is_child(&guard));
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        _exit(mb__nvrm_fork_guard_is_child(&guard) ? 0 : 1);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

/* The real system table, as far as it goes without a GPU. */
TEST(the_system_table_reports_errors)
{
    const struct nvrm_os *os = &mb__nvrm_os_system;
    void *addr = NULL;

    CHECK_EQ(os->open(os, "/dev/no-such-nvidia-file", 2), -ENOENT);
    CHECK_EQ(os->close(os, -1), -EBADF);
    CHECK_EQ(os->ioctl(os, -1, mb__nvrm_escape_request(0x2a, 32), NULL), -EBADF);
    CHECK_EQ(os->map(os, 4096, 1, -1, &addr), -EBADF);
    CHECK_EQ(mb__nvrm_escape_request(NVRM_ESC_CONTROL, 32), 0xc020462a);
    struct nvrm_client_request r = {
        .version_text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1.1  x\n"};
    struct nvrm_client *c = NULL;
    if (access("/dev/nvidiactl", F_OK) == 0)
        SKIP("this machine has an NVIDIA driver; the case is for machines without");
    CHECK_EQ(mb__nvrm_client_open(&r, &c), MB_ERR_NO_DEVICE);
    CHECK(strstr(mb_error_detail(), "/dev/nvidiactl") != NULL);
}
