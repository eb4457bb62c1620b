/* SPDX-License-Identifier: MIT */
/*
 * Processes that end in the middle of their work. Another process reads the audit log, and it must
 * be consistent up to the moment of death: what is mapped, who has which frame; at most one batch
 * whose outcome nobody knows. This program opens no device itself, so that its children may.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "audit_replay.h"
#include "test.h"

enum { KILLS = 60, BLOCKS = 20, BEGUN = 60 /* rounds */, GUARD_MS = 600000 };

static char path[64];

static void fresh(void)
{
    int fd;

    snprintf(path, sizeof(path), "%s/mb-crash-XXXXXX", P_tmpdir);
    fd = mkstemp(path);
    CHECK(fd >= 0);
    close(fd);
}

/* Allocates, maps and frees until it is killed; the write end of a pipe tells when it has begun:
 * on a busy machine it may not get to run between that and its end. */
static _Noreturn void work_until_killed(uint64_t seed, int ready)
{
    static const char *const more[] = {"", ",driver_home:yes", ",policy:fresh", ",tables:isolated"};
    void *block[BLOCKS] = {NULL}, *va;
    uint64_t state = seed;
    char config[200];
    mb_device dev;
    mb_mem mem;

    snprintf(config, sizeof(config), "backend:sim,device_memory:256m,audit:%s%s", path,
             more[seed % 4]);
    if (mb_open(0, config, &dev) || mb_mem_create(dev, 8 << 20, &mem) ||
        mb_mem_reserve(dev, 64 << 20, 0, &va))
        _exit(3);
    for (uint64_t round = 0;; round++) {
        unsigned at = (unsigned)mb_test_random_below(&state, BLOCKS);
        unsigned page = (unsigned)mb_test_random_below(&state, 28);
        struct mb_map_op op = {.kind = mb_test_random(&state) & 1 ? MB_MAP : MB_UNMAP,
                               .prot = MB_PROT_READ_WRITE,
                               .va = (char *)va + ((uint64_t)page << 21),
                               .bytes = 8 << 20,
                               .mem = mem};

        if (round == BEGUN && write(ready, "x", 1) != 1)
            _exit(5);
        (void)mb_mem_map_async(dev, &op, 1, NULL); /* often refused: mapped, not mapped */
        if (block[at]) {
            if (mb_free_async(dev, block[at], NULL))
                _exit(4);
            block[at] = NULL;
        } else if (mb_malloc_async(dev, mb_test_random_below(&state, 30 << 20) + 1, NULL,
                                   &block[at])) {
            block[at] = NULL;
        }
    }
}

/* Starts a child, lets it work for a random time, kills it. */
static void kill_one(uint64_t seed)
{
    struct timespec pause = {0, (long)(seed % 20000000)};
    struct pollfd wait;
    int pipe_fd[2], status;
    pid_t child;

    CHECK_EQ(pipe(pipe_fd), 0);
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (!child)
        work_until_killed(seed, pipe_fd[1]);
    close(pipe_fd[1]);
    wait = (struct pollfd){.fd = pipe_fd[0], .events = POLLIN};
    CHECK_EQ(poll(&wait, 1, GUARD_MS), 1);
    CHECK(wait.revents & POLLIN);
    nanosleep(&pause, NULL);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(pipe_fd[0]);
}

TEST(killed_at_random_points)
{
    uint64_t state = mb_test_seed(), records = 0, mapped = 0, unknown = 0;

    for (unsigned i = 0; i < KILLS; i++) {
        struct mb_audit_summary sum;
        struct audit_state last;
        char text[256];

        fresh();
        kill_one(mb_test_random(&state));
        if (audit_replay(path, &last, &sum, text, sizeof(text)))
            FAIL("after kill %u: %s", i, text);
        CHECK_EQ(sum.sessions, 1);
        CHECK_EQ(sum.tail_bytes, 0);
        CHECK(!sum.closed);
        CHECK(sum.records >= 2);
        records += sum.records;
        mapped += last.count;
        unknown += last.open_batches;
        audit_state_free(&last);
        unlink(path);
    }
    printf("COUNT processes killed at random points, log read by another %d\n", KILLS);
    printf("%d processes killed; %llu records read, %llu pages mapped at the end, %llu batches of "
           "unknown outcome\n",
           KILLS, (unsigned long long)records, (unsigned long long)mapped,
           (unsigned long long)unknown);
    CHECK(records > 10 * KILLS);
}

/* A log goes on after a crash: session behind session, each told apart. */
TEST(sessions_after_crashes)
{
    uint64_t state = mb_test_seed() + 1;
    struct mb_audit_summary sum;
    struct audit_state last;
    char text[256];

    fresh();
    for (unsigned i = 1; i <= 8; i++) {
        kill_one(mb_test_random(&state));
        if (i == 4) { /* as after a power failure */
            struct stat st;

            CHECK_EQ(stat(path, &st), 0);
            CHECK_EQ(st.st_size % 128, 0);
            CHECK_EQ(truncate(path, st.st_size - 50), 0);
        }
        if (audit_replay(path, &last, &sum, text, sizeof(text)))
            FAIL("after crash %u: %s", i, text);
        CHECK_EQ(sum.sessions, i);
        CHECK_EQ(sum.tail_bytes, i == 4 ? 78 : 0);
        audit_state_free(&last);
    }
    unlink(path);
}
