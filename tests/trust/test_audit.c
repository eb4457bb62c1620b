/* SPDX-License-Identifier: MIT */
/*
 * The audit log: what it tells of a program is what the program did, and what MoonBright's own
 * record says; a log that cannot be written stops what it should tell.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "audit_replay.h"
#include "hw/fault.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"

static char path[64], config[200];

static void fresh(const char *more)
{
    int fd;

    snprintf(path, sizeof(path), "%s/mb-audit-XXXXXX", P_tmpdir);
    fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
    snprintf(config, sizeof(config), "backend:sim,device_memory:512m,audit:%s%s", path, more);
}

static void *reserve(mb_device dev, unsigned pages)
{
    void *va;

    RT_OK(mb_mem_reserve(dev, pages * 2 * RT_MIB, 0, &va));
    return va;
}

static mb_mem create(mb_device dev, unsigned pages)
{
    mb_mem mem;

    RT_OK(mb_mem_create(dev, pages * 2 * RT_MIB, &mem));
    return mem;
}

static void map(mb_device dev, void *va, unsigned pages, mb_mem mem, mb_stream stream)
{
    struct mb_map_op op = {.kind = MB_MAP,
                           .prot = MB_PROT_READ_WRITE,
                           .va = va,
                           .bytes = pages * 2 * RT_MIB,
                           .mem = mem};

    RT_OK(mb_mem_map_async(dev, &op, 1, stream));
}

/* What the log says is mapped is what vm says is mapped. */
static void log_agrees(mb_device dev)
{
    struct audit_state state;
    struct mb_audit_summary sum;
    char text[256];

    if (audit_replay(path, &state, &sum, text, sizeof(text)))
        FAIL("%s", text);
    CHECK_EQ(sum.tail_bytes, 0);
    for (size_t i = 0; i < state.count; i++) {
        const struct audit_page *p = &state.page[i];

        if (p->home)
            continue;
        if (mb__phys_of_pfn(mb__vm_lookup(dev->vm, mb__va(p->va))) != p->phys)
            FAIL("the log shows 0x%llx at 0x%llx", (unsigned long long)p->phys,
                 (unsigned long long)p->va);
    }
    audit_state_free(&state);
}

static unsigned windows_in_log(void)
{
    struct audit_state state;
    struct mb_audit_summary sum;
    char text[256];
    unsigned count = 0;

    CHECK_OK(audit_replay(path, &state, &sum, text, sizeof(text)));
    for (size_t i = 0; i < state.count; i++)
        count += !state.page[i].home;
    audit_state_free(&state);
    return count;
}

struct search {
    enum mb_audit_kind kind;
    uint64_t va;
    struct mb_audit_record found;
    unsigned count;
};

static void look(void *user, const struct mb_audit_record *record)
{
    struct search *s = user;

    if (record->kind == s->kind && s->va - record->va < record->bytes) {
        s->found = *record;
        s->count++;
    }
}

TEST(who_mapped_what_when)
{
    struct search s = {.kind = MB_AUDIT_MAP};
    mb_device dev;
    mb_stream stream;
    mb_mem mem;
    void *va;

    fresh("");
    dev = rt_open(config);
    stream = rt_stream(dev);
    mem = create(dev, 4);
    va = reserve(dev, 8);
    map(dev, va, 4, mem, stream);
    log_agrees(dev);
    CHECK_EQ(windows_in_log(), 4);
    s.va = (uint64_t)(uintptr_t)va + 2 * RT_MIB;
    CHECK_OK(mb_audit_read(path, look, &s, NULL));
    CHECK_EQ(s.count, 1);
    CHECK_STR_EQ(s.found.call, "mb_mem_map_async");
    CHECK_EQ(s.found.stream, (uint64_t)(uintptr_t)stream);
    CHECK_EQ(s.found.prot, MB_PROT_READ_WRITE);
    CHECK_EQ(s.found.pid, getpid());
    CHECK(s.found.owner != 0);
    /* An alias of the same frames at a second place, then access and removal. */
    RT_OK(mb_mem_map_async(dev,
                           &(struct mb_map_op){.kind = MB_ALIAS,
                                               .prot = MB_PROT_READ,
                                               .va = (char *)va + 8 * RT_MIB,
                                               .bytes = 4 * RT_MIB,
                                               .src = va},
                           1, stream));
    CHECK_EQ(windows_in_log(), 6);
    RT_OK(mb_mem_map_async(
        dev,
        &(struct mb_map_op){
            .kind = MB_PROTECT, .prot = MB_PROT_READ, .va = va, .bytes = 2 * RT_MIB},
        1, stream));
    s = (struct search){.kind = MB_AUDIT_PROTECT, .va = (uint64_t)(uintptr_t)va};
    CHECK_OK(mb_audit_read(path, look, &s, NULL));
    CHECK_EQ(s.count, 1);
    CHECK_EQ(s.found.prot, MB_PROT_READ);
    RT_OK(mb_mem_map_async(
        dev, &(struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = 12 * RT_MIB}, 1, stream));
    log_agrees(dev);
    CHECK_EQ(windows_in_log(), 0);
    RT_OK(mb_mem_unreserve(dev, va, 16 * RT_MIB));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_stream_destroy(dev, stream));
    rt_close(dev);
    unlink(path);
}

/* Random allocations and mappings; the log is compared with the record all the time. */
TEST(log_and_record_agree_on_random_programs)
{
    uint64_t state = mb_test_seed();
    static const char *const more[] = {"", ",driver_home:yes", ",policy:fresh", ",tables:isolated"};

    for (unsigned round = 0; round < 8; round++) {
        void *block[24] = {NULL};
        struct mb_audit_summary sum;
        mb_device dev;

        fresh(more[round % 4]);
        dev = rt_open(config);
        for (unsigned i = 0; i < 300; i++) {
            unsigned at = (unsigned)mb_test_random_below(&state, 24);
            uint64_t bytes = mb_test_random_below(&state, 48 * RT_MIB) + 1;

            if (block[at]) {
                RT_OK(mb_free_async(dev, block[at], NULL));
                block[at] = NULL;
            } else if (mb_malloc_async(dev, bytes, NULL, &block[at])) {
                block[at] = NULL;
            }
            if (i % 50 == 0)
                log_agrees(dev);
        }
        for (unsigned i = 0; i < 24; i++)
            RT_OK(mb_free(dev, block[i]));
        RT_OK(mb_device_sync(dev));
        log_agrees(dev);
        rt_close(dev);
        CHECK_OK(mb_audit_read(path, NULL, NULL, &sum));
        CHECK(sum.closed);
        CHECK_EQ(sum.sessions, 1);
        unlink(path);
    }
}

TEST(refused_batches_change_nothing_in_the_log)
{
#ifdef MB_FAULT_INJECTION
    mb_device dev;
    mb_mem mem;
    void *va;
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 4 * RT_MIB};

    fresh("");
    dev = rt_open(config);
    mem = create(dev, 2);
    va = reserve(dev, 2);
    op.va = va;
    op.mem = mem;
    RT_OK(mb_device_sync(dev));
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_submit, 1, MB_ERR_DRIVER, false);
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_DRIVER);
    CHECK_EQ(windows_in_log(), 0);
    RT_OK(mb_mem_map(dev, &op));
    CHECK_EQ(windows_in_log(), 2);
    RT_OK(mb_mem_map(dev, &(struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = 4 * RT_MIB}));
    RT_OK(mb_mem_unreserve(dev, va, 4 * RT_MIB));
    RT_OK(mb_mem_release(dev, mem));
    rt_close(dev);
    unlink(path);
#else
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
#endif
}

#ifdef MB_FAULT_INJECTION
/* How many records of the kind the log holds. */
struct tally {
    unsigned of[MB_AUDIT_KINDS];
};

static void count_kinds(void *user, const struct mb_audit_record *record)
{
    ((struct tally *)user)->of[record->kind]++;
}
#endif

/* Nobody knows whether the device has executed a batch whose submission was taken and whose end
 * cannot be had: the log must not say that it was refused. */
TEST(a_batch_of_unknown_outcome_has_none_in_the_log)
{
#ifdef MB_FAULT_INJECTION
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 4 * RT_MIB};
    struct tally before = {{0}}, after = {{0}};
    mb_device dev;

    fresh("");
    dev = rt_open(config);
    op.mem = create(dev, 2);
    op.va = reserve(dev, 2);
    RT_OK(mb_device_sync(dev));
    CHECK_OK(mb_audit_read(path, count_kinds, &before, NULL));
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_fence_record, 1, MB_ERR_DRIVER, true);
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_device_sync, 1, MB_ERR_DRIVER, true);
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_DEVICE_LOST);
    CHECK_OK(mb_audit_read(path, count_kinds, &after, NULL));
    CHECK(after.of[MB_AUDIT_MAP] > before.of[MB_AUDIT_MAP]);
    CHECK_EQ(after.of[MB_AUDIT_UNDONE], before.of[MB_AUDIT_UNDONE]);
    CHECK_EQ(after.of[MB_AUDIT_DONE], before.of[MB_AUDIT_DONE]);
    mb_close(dev);
    unlink(path);
    /* The same of one with which the backend lost the device. */
    fresh("");
    dev = rt_open(config);
    op.mem = create(dev, 2);
    op.va = reserve(dev, 2);
    RT_OK(mb_device_sync(dev));
    mb__hw_fault_set(dev->hw, MB_HW_FAULT_submit, 1, MB_ERR_DEVICE_LOST, true);
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_DEVICE_LOST);
    after = (struct tally){{0}};
    CHECK_OK(mb_audit_read(path, count_kinds, &after, NULL));
    CHECK_EQ(after.of[MB_AUDIT_UNDONE], 0);
    mb_close(dev);
    unlink(path);
#else
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
#endif
}

/* Growth that fails half-way: the slab that came and went stands in the log as that. */
TEST(growth_that_fails)
{
#ifdef MB_FAULT_INJECTION
    static const enum mb_hw_fault_op ops[] = {MB_HW_FAULT_slab_acquire, MB_HW_FAULT_submit};
    static const char *const more[] = {"", ",driver_home:yes"};

    for (unsigned i = 0; i < 4; i++) {
        struct mb_audit_summary sum;
        mb_device dev;
        void *ptr = NULL;

        fresh(more[i / 2]);
        snprintf(config, sizeof(config), "backend:sim,device_memory:1g,audit:%s%s", path,
                 more[i / 2]);
        dev = rt_open(config);
        mb__hw_fault_set(dev->hw, ops[i % 2], i % 2 ? 1 : 2, MB_ERR_DRIVER, true);
        /* Where homes are the driver's, nothing is submitted. */
        CHECK_EQ(mb_malloc(dev, 600 * RT_MIB, &ptr), i == 3 ? MB_OK : MB_ERR_DRIVER);
        mb__hw_fault_set(dev->hw, ops[i % 2], 0, MB_OK, false);
        log_agrees(dev);
        RT_OK(mb_free(dev, ptr));
        RT_OK(mb_malloc(dev, 600 * RT_MIB, &ptr));
        RT_OK(mb_free(dev, ptr));
        log_agrees(dev);
        rt_close(dev);
        CHECK_OK(mb_audit_read(path, NULL, NULL, &sum));
        CHECK(sum.closed);
        unlink(path);
    }
#else
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
#endif
}

static void limit_file(rlim_t bytes)
{
    CHECK_OK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY}));
}

/* A mapping that cannot be told is not made. */
TEST(full_disk)
{
    struct mb_map_op op = {.kind = MB_MAP, .prot = MB_PROT_READ_WRITE, .bytes = 4 * RT_MIB};
    mb_device dev;
    mb_mem mem;
    void *va;

    signal(SIGXFSZ, SIG_IGN);
    fresh("");
    dev = rt_open(config);
    mem = create(dev, 2);
    va = reserve(dev, 2);
    op.va = va;
    op.mem = mem;
    limit_file(128);
    CHECK_EQ(mb_mem_map(dev, &op), MB_ERR_IO);
    CHECK(strstr(mb_error_detail(), "audit log") != NULL);
    CHECK(mb__pfn_eq(mb__vm_lookup(dev->vm, mb__va((uint64_t)(uintptr_t)va)), MB_NO_PFN));
    RT_OK(mb_check(dev));
    limit_file(RLIM_INFINITY);
    RT_OK(mb_mem_map(dev, &op));
    log_agrees(dev);
    RT_OK(mb_mem_map(dev, &(struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = 4 * RT_MIB}));
    RT_OK(mb_mem_unreserve(dev, va, 4 * RT_MIB));
    RT_OK(mb_mem_release(dev, mem));
    rt_close(dev);
    unlink(path);
}

TEST(a_log_that_cannot_be_opened)
{
    mb_device dev = NULL, second = NULL;

    fresh("");
    CHECK_EQ(mb_open(0, "backend:sim,audit:/nonexistent/x", &dev), MB_ERR_IO);
    CHECK_PTR_EQ(dev, NULL);
    dev = rt_open(config);
    CHECK_EQ(mb_open(0, config, &second), MB_ERR_BUSY);
    CHECK_PTR_EQ(second, NULL);
    rt_close(dev);
    unlink(path);
}

/* ------------------------------------------------------------------ peers */

enum { TOLD_MAX = 16 };

struct told {
    struct mb_audit_record record[TOLD_MAX];
    unsigned count;
};

static void note_peer(void *user, const struct mb_audit_record *record)
{
    struct told *told = user;

    if (record->kind != MB_AUDIT_PEER)
        return;
    CHECK(told->count < TOLD_MAX);
    told->record[told->count++] = *record;
}

/* The next record of a peer. */
static const struct mb_audit_record *peer_record(struct told *told, unsigned *at, mb_device dev,
                                                 void *va, unsigned pages, enum mb_prot prot)
{
    const struct mb_audit_record *r = &told->record[*at];
    uint64_t first = (uint64_t)(uintptr_t)va;

    CHECK(*at < told->count);
    ++*at;
    CHECK_EQ(r->va, first);
    CHECK_EQ(r->bytes, pages * 2 * RT_MIB);
    CHECK_EQ(r->phys, mb__phys_of_pfn(mb__vm_lookup(dev->vm, mb__va(first))));
    CHECK_EQ(r->stream, 3);
    CHECK_EQ(r->prot, prot);
    CHECK_EQ(r->batch, 0);
    CHECK(r->owner != 0);
    return r;
}

/* Entries of a peer name our frames too: who opened them to whom, and until when. */
TEST(what_was_opened_to_a_peer)
{
    struct told told = {.count = 0};
    struct mb_access access;
    mb_device dev, peer = NULL;
    mb_mem mem;
    void *va, *second;
    unsigned at = 0;

    fresh("");
    dev = rt_open(config);
    RT_OK(mb_open(3, "backend:sim,device_memory:512m", &peer));
    mem = create(dev, 4);
    va = reserve(dev, 4);
    second = (char *)va + 2 * RT_MIB;
    map(dev, va, 4, mem, NULL);
    access = (struct mb_access){peer, MB_PROT_READ_WRITE};
    RT_OK(mb_mem_set_access(dev, va, 8 * RT_MIB, &access, 1));
    access.prot = MB_PROT_READ;
    RT_OK(mb_mem_set_access(dev, second, 2 * RT_MIB, &access, 1));
    access.prot = MB_PROT_NONE;
    RT_OK(mb_mem_set_access(dev, va, 2 * RT_MIB, &access, 1));
    /* What is refused opens nothing. */
    access.prot = MB_PROT_READ;
    CHECK_EQ(mb_mem_set_access(dev, (char *)va + 8 * RT_MIB, 2 * RT_MIB, &access, 1),
             MB_ERR_NOT_FOUND);
    CHECK_OK(mb_audit_read(path, note_peer, &told, NULL));
    CHECK_EQ(told.count, 3);
    CHECK_STR_EQ(peer_record(&told, &at, dev, va, 4, MB_PROT_READ_WRITE)->call,
                 "mb_mem_set_access");
    (void)peer_record(&told, &at, dev, second, 1, MB_PROT_READ);
    (void)peer_record(&told, &at, dev, va, 1, MB_PROT_NONE);
    log_agrees(dev);
    mb_close(peer); /* takes the rest back */
    told.count = 0;
    CHECK_OK(mb_audit_read(path, note_peer, &told, NULL));
    CHECK(told.count > 3);
    for (; at < told.count; at++)
        CHECK_EQ(told.record[at].prot, MB_PROT_NONE);
    RT_OK(mb_mem_map(dev, &(struct mb_map_op){.kind = MB_UNMAP, .va = va, .bytes = 8 * RT_MIB}));
    RT_OK(mb_mem_release(dev, mem));
    RT_OK(mb_mem_unreserve(dev, va, 8 * RT_MIB));
    rt_close(dev);
    unlink(path);
}
