/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "test.h"

static void say_all(void)
{
    mb__log(MB_LOG_ERROR, "m", "e%d", 1);
    mb__log(MB_LOG_WARN, "m", "w");
    mb__log(MB_LOG_INFO, "m", "i");
    mb__log(MB_LOG_DEBUG, "m", "d");
}

static void say_long(void)
{
    char text[5000];

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    mb__log(MB_LOG_ERROR, "m", "%s", text);
}

/* What a child process with that environment (NULL: unset) prints on stderr. */
static void stderr_of(const char *env, void (*work)(void), char *out, size_t size)
{
    int pipe_fd[2], status;
    size_t used = 0;
    ssize_t n;
    pid_t pid;

    CHECK_EQ(pipe(pipe_fd), 0);
    fflush(NULL);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(pipe_fd[1], STDERR_FILENO);
        if (env)
            setenv("MOONBRIGHT_LOG", env, 1);
        else
            unsetenv("MOONBRIGHT_LOG");
        work();
        _exit(0);
    }
    close(pipe_fd[1]);
    while (used < size - 1 && (n = read(pipe_fd[0], out + used, size - 1 - used)) > 0)
        used += (size_t)n;
    out[used] = 0;
    close(pipe_fd[0]);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

TEST(levels_follow_the_environment)
{
    char out[4096];

    stderr_of("off", say_all, out, sizeof(out));
    CHECK_STR_EQ(out, "");
    stderr_of("error", say_all, out, sizeof(out));
    CHECK_STR_EQ(out, "moonbright: error: m: e1\n");
    stderr_of(NULL, say_all, out, sizeof(out));
    CHECK_STR_EQ(out, "moonbright: error: m: e1\nmoonbright: warn: m: w\n");
    stderr_of("debug", say_all, out, sizeof(out));
    CHECK_STR_EQ(out, "moonbright: error: m: e1\nmoonbright: warn: m: w\n"
                      "moonbright: info: m: i\nmoonbright: debug: m: d\n");
}

TEST(an_unknown_level_is_told_and_warn_is_taken)
{
    char out[4096];

    stderr_of("loud", say_all, out, sizeof(out));
    CHECK(strstr(out, "MOONBRIGHT_LOG=loud: want off, error, warn, info or debug") != NULL);
    CHECK(strstr(out, "warn: m: w") != NULL);
    CHECK(strstr(out, "info: m: i") == NULL);
}

TEST(a_long_line_is_cut_and_ends)
{
    char out[8192];

    stderr_of(NULL, say_long, out, sizeof(out));
    CHECK_EQ(strlen(out), 1024);
    CHECK_EQ(out[1023], '\n');
}

TEST(set_overrides)
{
    mb__log_set(MB_LOG_INFO);
    CHECK(mb__log_on(MB_LOG_INFO));
    CHECK(!mb__log_on(MB_LOG_DEBUG));
    mb__log_set(MB_LOG_OFF);
    CHECK(!mb__log_on(MB_LOG_ERROR));
}
