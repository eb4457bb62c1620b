/* SPDX-License-Identifier: MIT */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "test.h"

static struct mb_lock runtime, vm, hw, leaf;

static void init_all(void)
{
    CHECK_EQ(mb__lock_init(&runtime, "runtime", MB_RANK_RUNTIME), 0);
    CHECK_EQ(mb__lock_init(&vm, "vm", MB_RANK_VM), 0);
    CHECK_EQ(mb__lock_init(&hw, "hw", MB_RANK_HW), 0);
    CHECK_EQ(mb__lock_init(&leaf, "leaf", MB_RANK_LEAF), 0);
}

static void destroy_all(void)
{
    mb__lock_destroy(&runtime);
    mb__lock_destroy(&vm);
    mb__lock_destroy(&hw);
    mb__lock_destroy(&leaf);
}

/* Runs `work` in a child; stores what it printed; true if it aborted. */
static bool aborts(void (*work)(void), char *out, size_t size)
{
    int pipe_fd[2], status;
    ssize_t n;
    pid_t pid;

    CHECK_EQ(pipe(pipe_fd), 0);
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(SIGABRT, SIG_DFL);
        dup2(pipe_fd[1], STDERR_FILENO);
        work();
        _exit(0);
    }
    close(pipe_fd[1]);
    n = read(pipe_fd[0], out, size - 1);
    out[n > 0 ? n : 0] = 0;
    close(pipe_fd[0]);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void take_in_order(void)
{
    mb__lock(&runtime);
    mb__lock(&vm);
    mb__lock(&hw);
    mb__lock(&leaf);
    mb__unlock(&hw); /* not in reverse order, which is allowed */
    mb__unlock(&leaf);
    mb__unlock(&runtime);
    mb__lock(&hw);
    mb__unlock(&hw);
    mb__unlock(&vm);
}

static void take_backwards(void)
{
    mb__lock(&hw);
    mb__lock(&vm);
}

static void take_twice(void)
{
    mb__lock(&vm);
    mb__lock(&vm);
}

static void take_below_a_skipped_rank(void)
{
    mb__lock(&runtime);
    mb__lock(&leaf);
    mb__unlock(&runtime);
    mb__lock(&hw);
}

static void unlock_unheld(void)
{
    mb__unlock(&vm);
}

static void assert_unheld(void)
{
    mb__assert_held(&vm);
}

TEST(growing_ranks_are_fine)
{
    init_all();
    take_in_order();
    CHECK(!mb__lock_is_held(&vm));
    mb__lock(&vm);
    mb__assert_held(&vm);
    CHECK(mb__lock_is_held(&vm));
    mb__unlock(&vm);
    destroy_all();
}

TEST(trylock_may_go_against_the_order)
{
    init_all();
    mb__lock(&hw);
    CHECK(mb__trylock(&vm));
    CHECK(mb__lock_is_held(&vm));
    mb__unlock(&vm);
    CHECK(!mb__trylock(&hw));
    mb__unlock(&hw);
    destroy_all();
}

static void take_less_after_forgetting(void)
{
    mb__lock(&hw);
    mb__lock_forget_held();
    mb__lock(&vm);
    mb__unlock(&vm);
}

/* A signal handler runs in the middle of code that does not go on. */
TEST(forgotten_locks_order_nothing)
{
    char out[256];

    init_all();
    CHECK(!aborts(take_less_after_forgetting, out, sizeof(out)));
    CHECK_STR_EQ(out, "");
    destroy_all();
}

TEST(breaches_abort_with_both_names)
{
    char out[512];

    init_all();
    CHECK(aborts(take_backwards, out, sizeof(out)));
    CHECK(strstr(out, "taking vm (rank 20) while holding hw (rank 30)") != NULL);
    CHECK(aborts(take_twice, out, sizeof(out)));
    CHECK(strstr(out, "taking vm (rank 20) while holding vm") != NULL);
    CHECK(aborts(take_below_a_skipped_rank, out, sizeof(out)));
    CHECK(strstr(out, "taking hw (rank 30) while holding leaf (rank 40)") != NULL);
    CHECK(aborts(unlock_unheld, out, sizeof(out)));
    CHECK(aborts(assert_unheld, out, sizeof(out)));
    CHECK(strstr(out, "assert_unheld needs vm") != NULL);
    CHECK(!aborts(take_in_order, out, sizeof(out)));
    destroy_all();
}
