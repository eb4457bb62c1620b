/* SPDX-License-Identifier: MIT */
/*
 * Capabilities: a frame is named in an entry only for its owner, within a vm and between processes.
 * Each case that is refused writes no entry. Processes share a registry; software GPUs of different
 * processes give the same frame numbers, which is what the registry must notice. This program opens
 * no public device, so that its children may.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/test_vm.h"

enum { SLOTS = 16, HEAD = 4096, GUESSES = 200000 };

static char path[64];

static void fresh(void)
{
    int fd;

    snprintf(path, sizeof(path), "%s/mb-owner-XXXXXX", P_tmpdir);
    fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
}

static struct rig_config shared(uint64_t mib)
{
    struct rig_config config = {.hw.device_memory_bytes = mib * MIB};

    memcpy(config.vm.registry, path, sizeof(path));
    return config;
}

/* The highest that a number of 32 bits can name. */
static const mb_pfn LAST_FRAME = {UINT32_MAX - (MB_FRAME_PFNS - 1)};

static uint64_t entries_written(struct rig *rig)
{
    struct mb_hw_counters counters;

    CHECK_OK(rig->hw->ops->device_sync(rig->hw));
    rig->hw->ops->counters(rig->hw, &counters);
    return counters.entries_written;
}

static enum mb_err present(struct rig *rig, mb_va va, mb_pfn pfn, uint64_t cap)
{
    struct mb_vm_op op = {.kind = MB_VM_MAP,
                          .prot = MB_PROT_READ_WRITE,
                          .va = va,
                          .frames = 1,
                          .pfns = &pfn,
                          .cap = cap};

    return mb__pte_pop(rig->vm, rig->stream[0], &op, 1, NULL);
}

static struct mb_run take_for(struct rig *rig, uint32_t owner, uint32_t frames)
{
    struct mb_run run;
    unsigned count;

    CHECK_OK(mb__alloc_pfn(rig->vm, owner, frames, MB_PFN_CONTIGUOUS, &run, 1, &count));
    return run;
}

/* ------------------------------------------------------------ owners of one vm */

TEST(another_owner_s_frame_is_refused)
{
    struct rig rig = rig_open((struct rig_config){.hw.ordinal = 0}), other;
    struct mb_run mine = take_for(&rig, 1, 4), theirs = take_for(&rig, 2, 4);
    mb_va va = window(&rig, SLOTS);
    uint64_t before = entries_written(&rig);

    other = rig_open((struct rig_config){.hw.ordinal = 0});
    CHECK_EQ(present(&rig, va, theirs.pfn, mb__owner_cap(rig.vm, 1)), MB_ERR_CORRUPT);
    CHECK_EQ(present(&rig, va, mine.pfn, mb__owner_cap(rig.vm, 2)), MB_ERR_CORRUPT);
    /* The same owner of another vm has another capability. */
    CHECK_NE(mb__owner_cap(rig.vm, 1), mb__owner_cap(other.vm, 1));
    CHECK_EQ(present(&rig, va, mine.pfn, mb__owner_cap(other.vm, 1)), MB_ERR_CORRUPT);
    CHECK_EQ(present(&rig, va, mine.pfn, 0), MB_ERR_INVALID);
    CHECK_EQ(entries_written(&rig), before);
    CHECK_OK(present(&rig, va, mine.pfn, mb__owner_cap(rig.vm, 1)));
    CHECK_OK(present(&rig, mb__va_add(va, FRAMES(1)), theirs.pfn, mb__owner_cap(rig.vm, 2)));
    /* Found right just before is not right for another's frame, the last of all included. */
    before = entries_written(&rig);
    CHECK_EQ(present(&rig, va, mine.pfn, mb__owner_cap(rig.vm, 2)), MB_ERR_CORRUPT);
    CHECK_EQ(present(&rig, va, LAST_FRAME, mb__owner_cap(rig.vm, 2)), MB_ERR_CORRUPT);
    CHECK_EQ(mb__pfn_refs(rig.vm, mine.pfn), 2);
    CHECK_EQ(entries_written(&rig), before);
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_close(&other);
    rig_close(&rig);
}

/* Given back and taken by somebody else: the old owner's capability is dead for it. */
TEST(a_capability_ends_with_the_ownership)
{
    struct rig rig = rig_open((struct rig_config){.hw.ordinal = 0});
    struct mb_run run = take_for(&rig, 1, 1);
    uint64_t cap = mb__owner_cap(rig.vm, 1), before;
    mb_va va = window(&rig, SLOTS);

    CHECK_OK(mb__free_pfn(rig.vm, 1, run, NULL, 0));
    before = entries_written(&rig);
    CHECK_EQ(present(&rig, va, run.pfn, cap), MB_ERR_CORRUPT);
    CHECK_OK(mb__vm_drain(rig.vm));
    CHECK_EQ(take_for(&rig, 2, 1).pfn.n, run.pfn.n);
    CHECK_EQ(present(&rig, va, run.pfn, cap), MB_ERR_CORRUPT);
    CHECK_EQ(entries_written(&rig), before);
    rig_close(&rig);
}

/* Guessing, also from other owners' capabilities. */
TEST(guessed_capabilities)
{
    struct rig rig = rig_open((struct rig_config){.hw.ordinal = 0});
    struct mb_run run = take_for(&rig, 77, 1);
    uint64_t state = mb_test_seed(), cap = mb__owner_cap(rig.vm, 77), before;
    mb_va va = window(&rig, SLOTS);

    before = entries_written(&rig);
    for (unsigned i = 0; i < GUESSES; i++) {
        uint64_t guess = i % 3 == 0   ? mb_test_random(&state)
                         : i % 3 == 1 ? mb__owner_cap(rig.vm, i)
                                      : cap ^ UINT64_C(1) << i % 64;

        if (guess == cap || !guess)
            continue;
        CHECK_EQ(present(&rig, va, run.pfn, guess), MB_ERR_CORRUPT);
    }
    CHECK_EQ(entries_written(&rig), before);
    printf("COUNT capabilities guessed %d\n", GUESSES);
    rig_check(&rig);
    rig_close(&rig);
}

/* ------------------------------------------------------------ processes */

/* Two devices that give the same frames: the second is refused, and works once they are free. */
TEST(the_same_frame_twice)
{
    struct rig a, b;
    struct mb_run run, again, runs[100];
    unsigned count;

    fresh();
    a = rig_open(shared(256));
    run = take(&a, 32);
    b = rig_open(shared(256));
    CHECK_EQ(mb__alloc_pfn(b.vm, 1, 4, 0, &again, 1, &count), MB_ERR_DRIVER);
    CHECK(strstr(mb_error_detail(), "which process") != NULL);
    rig_check(&b);
    rig_check(&a);
    CHECK_OK(mb__free_pfn(a.vm, 1, run, NULL, 0));
    CHECK_OK(mb__vm_trim(a.vm, 0, &(uint64_t){0}));
    again = take(&b, 4);
    map_run(&b, 0, window(&b, 4), again);
    CHECK_EQ(mb__alloc_pfn(a.vm, 1, 100, 0, runs, 100, &count), MB_ERR_DRIVER);
    rig_close(&b); /* gives its claims up */
    run = take(&a, 4);
    map_run(&a, 0, window(&a, 4), run);
    rig_check_tables(&a);
    rig_close(&a);
    unlink(path);
}

/* Different frames of one device: both work; neither may name the other's, whatever its own record
 * says. */
TEST(frames_apart)
{
    struct rig a, b;
    struct mb_hw_slab stranger;
    struct mb_run run_a, run_b;
    uint64_t *words, before, saved;
    mb_va home;
    int fd;

    fresh();
    a = rig_open(shared(256));
    run_a = take(&a, 16);
    b = rig_open(shared(256));
    /* On b's software GPU the frames of a belong to nobody's vm. */
    CHECK_OK(b.hw->ops->va_reserve(b.hw, FRAMES(16), 0, &home));
    CHECK_OK(b.hw->ops->slab_acquire(b.hw, FRAMES(16), home, &stranger));
    run_b = take(&b, 16);
    CHECK_NE(run_a.pfn.n, run_b.pfn.n);
    map_run(&a, 0, window(&a, 16), run_a);
    map_run(&b, 0, window(&b, 16), run_b);
    /* Somebody else claims one of b's frames: b writes no entry for it any more. */
    fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    words = mmap(NULL, HEAD + 8 * 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(words != MAP_FAILED);
    words += HEAD / 8;
    saved = words[run_b.pfn.n >> 9];
    CHECK(saved != 0);
    words[run_b.pfn.n >> 9] = words[run_a.pfn.n >> 9];
    before = entries_written(&b);
    CHECK_EQ(present(&b, window(&b, SLOTS), run_b.pfn, mb__owner_cap(b.vm, 1)), MB_ERR_CORRUPT);
    CHECK(strstr(mb_error_detail(), "not this process's") != NULL);
    CHECK_EQ(entries_written(&b), before);
    rig_check(&b);
    rig_check_tables(&b);
    words[run_b.pfn.n >> 9] = saved;
    map_run(&b, 0, window(&b, 16), run_b);
    rig_check_tables(&b);
    CHECK_OK(b.hw->ops->slab_release(b.hw, &stranger));
    rig_close(&b);
    rig_close(&a);
    munmap(words - HEAD / 8, HEAD + 8 * 65536);
    close(fd);
    unlink(path);
}

/* Starts a process that holds 8 frames until it is killed. */
static pid_t holder(void)
{
    int ready[2];
    char byte;
    pid_t child;

    CHECK_EQ(pipe(ready), 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct rig rig;

        (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* if the test fails and nobody ends it */
        rig = rig_open(shared(256));
        (void)take(&rig, 8);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    CHECK_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

/* A new device's first frames have the numbers that the dead process's had. */
static void may_be_claimed(void)
{
    struct rig rig = rig_open(shared(256));

    map_run(&rig, 0, window(&rig, 4), take(&rig, 4));
    rig_check(&rig);
    rig_check_tables(&rig);
    rig_close(&rig);
}

/* What a killed process held may be claimed; what a living one holds may not. */
TEST(claims_end_with_the_process)
{
    fresh();
    for (unsigned i = 0; i < 20; i++) {
        pid_t child = holder();
        struct rig rig = rig_open(shared(256));
        struct mb_run run;
        unsigned count;
        char pid[32];
        int status;

        CHECK_EQ(mb__alloc_pfn(rig.vm, 1, 4, 0, &run, 1, &count), MB_ERR_DRIVER);
        snprintf(pid, sizeof(pid), "process %d ", (int)child);
        CHECK(strstr(mb_error_detail(), pid) != NULL);
        CHECK_EQ(kill(child, SIGKILL), 0);
        CHECK_EQ(waitpid(child, &status, 0), child);
        rig_close(&rig);
        may_be_claimed();
    }
    printf("COUNT claimants killed 20\n");
    unlink(path);
}

/* ------------------------------------------------------------ forks of a claimant */

enum way { BY_FORK, BY_CLONE, BY_FORK_WHILE_IT_CLAIMS };

static pid_t fork_by(enum way way)
{
    fflush(stdout);
    return way == BY_CLONE ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : fork();
}

static void *claim_for_ever(void *arg)
{
    struct rig *rig = arg;

    for (;;) {
        struct mb_run run;
        unsigned count;

        if (mb__alloc_pfn(rig->vm, 1, 2, MB_PFN_CONTIGUOUS, &run, 1, &count) ||
            mb__free_pfn(rig->vm, 1, run, NULL, 0) || mb__vm_trim(rig->vm, 0, NULL))
            _exit(1);
    }
    return NULL;
}

/* The claimant: holds 8 frames, has a child which tells its number, lives until it is killed. */
static void claim_and_fork(enum way way, int tell)
{
    struct rig rig = rig_open(shared(256));
    pthread_t thread;
    pid_t child;

    (void)take(&rig, 8);
    if (way == BY_FORK_WHILE_IT_CLAIMS && pthread_create(&thread, NULL, claim_for_ever, &rig))
        _exit(1);
    child = fork_by(way);
    if (child) {
        close(tell); /* so that nobody waits for a child that was not made */
    } else {
        child = getpid();
        if (write(tell, &child, sizeof(child)) != sizeof(child))
            _exit(1);
    }
    (void)alarm(600); /* if the test fails and nobody ends it */
    for (;;)
        pause();
}

/* Starts one; *child: the number of its child. */
static pid_t forking_holder(enum way way, pid_t *child)
{
    int ready[2];
    pid_t holder;

    CHECK_EQ(pipe(ready), 0);
    fflush(stdout);
    holder = fork();
    CHECK(holder >= 0);
    if (!holder)
        claim_and_fork(way, ready[1]);
    close(ready[1]);
    CHECK_EQ(read(ready[0], child, sizeof(*child)), (ssize_t)sizeof(*child));
    close(ready[0]);
    return holder;
}

/* Its files are closed then, and its number is still its own. */
static void kill_process(pid_t pid)
{
    siginfo_t info;

    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
}

static void bury(pid_t pid)
{
    CHECK_EQ(waitpid(pid, NULL, 0), pid);
}

/* Of somebody else's child: until all that it had open is closed. */
static void kill_other(pid_t pid)
{
    char name[40], text[512];
    const char *state = NULL;

    CHECK_EQ(kill(pid, SIGKILL), 0);
    snprintf(name, sizeof(name), "/proc/%d/stat", (int)pid);
    while (!state || state[2] != 'Z') { /* the test's own time limit ends this */
        int fd = open(name, O_RDONLY);
        ssize_t n = read(fd, text, sizeof(text) - 1);

        CHECK(fd >= 0 && n > 0);
        close(fd);
        text[n] = '\0';
        state = strrchr(text, ')');
        CHECK(state != NULL);
    }
}

/* Claims are those of the process that made them: its children neither end them nor keep them. */
TEST(claims_are_not_inherited)
{
    CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* grandchildren are waited for, too */
    for (enum way way = BY_FORK; way <= BY_FORK_WHILE_IT_CLAIMS; way++) {
        fresh();
        for (unsigned i = 0; i < 10; i++) {
            bool child_first = i % 2;
            pid_t child = 0, claimant = forking_holder(way, &child);
            struct rig rig = rig_open(shared(256));
            struct mb_run run;
            unsigned count;

            if (child_first)
                kill_other(child);
            CHECK_EQ(mb__alloc_pfn(rig.vm, 1, 4, 0, &run, 1, &count), MB_ERR_DRIVER);
            kill_process(claimant);
            if (way == BY_CLONE) /* which kept the file: only the number tells, once it is free */
                bury(claimant);
            rig_close(&rig);
            may_be_claimed();
            if (way != BY_CLONE)
                bury(claimant);
            if (!child_first)
                kill_process(child);
            bury(child);
        }
        unlink(path);
    }
    printf("COUNT claimants killed whose child lived 15\n");
}

TEST(more_processes_than_places)
{
    enum { MORE = 70 };
    struct mb_hw_dev *hw[MORE];
    struct mb_vm *vm[MORE];
    unsigned opened = 0;

    fresh();
    for (unsigned i = 0; i < MORE; i++) {
        struct rig_config config = shared(64);
        enum mb_err err;

        config.vm.home_bytes = config.vm.ring_bytes = 64 * MIB;
        CHECK_OK(mb__sim_open(&config.hw, &hw[i]));
        vm[i] = NULL;
        err = mb__vm_open(hw[i], &config.vm, &vm[i]);
        CHECK_EQ(err, i < 63 ? MB_OK : MB_ERR_BUSY);
        opened += !err;
    }
    CHECK_EQ(opened, 63);
    for (unsigned i = 0; i < MORE; i++) {
        mb__vm_close(vm[i]);
        hw[i]->ops->close(hw[i]);
    }
    unlink(path);
}

static void refused(const char *name, enum mb_err want)
{
    struct mb_hw_config hw = {.device_memory_bytes = 64 * MIB};
    struct mb_vm_config config = {.policy = MB_VM_POLICY_AUTO};
    struct mb_hw_dev *dev;
    struct mb_vm *vm = NULL;

    snprintf(config.registry, sizeof(config.registry), "%s", name);
    CHECK_OK(mb__sim_open(&hw, &dev));
    CHECK_EQ(mb__vm_open(dev, &config, &vm), want);
    CHECK(vm == NULL);
    CHECK(strstr(mb_error_detail(), "registry") != NULL);
    dev->ops->close(dev);
}

/* A file that is none stays as it is. */
TEST(what_is_no_registry)
{
    char text[32] = {0};
    int fd;

    refused("/nonexistent/x", MB_ERR_IO);
    refused(P_tmpdir, MB_ERR_IO);
    fresh();
    fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, "somebody's text", 15), 15);
    refused(path, MB_ERR_CORRUPT);
    CHECK_EQ(pread(fd, text, sizeof(text), 0), 15);
    CHECK_STR_EQ(text, "somebody's text");
    CHECK_EQ(ftruncate(fd, HEAD + (UINT64_C(8) << 23)), 0);
    refused(path, MB_ERR_CORRUPT);
    close(fd);
    unlink(path);
}
