/* SPDX-License-Identifier: MIT */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"

enum { WORDS_MAX = 62, OUTPUT_MAX = 64 << 20 };

struct stream {
    int fd; /* -1: ended */
    char *text;
    size_t size, room;
};

static bool take(struct stream *s)
{
    char chunk[65536];
    ssize_t n = read(s->fd, chunk, sizeof(chunk));

    if (n < 0 && errno == EINTR)
        return true;
    if (n <= 0 || s->size + (size_t)n > OUTPUT_MAX) {
        close(s->fd);
        s->fd = -1;
        return n == 0;
    }
    if (!s->text || s->size + (size_t)n + 1 > s->room) {
        size_t room = 2 * (s->size + (size_t)n + 1);
        char *larger = realloc(s->text, room);

        if (!larger)
            return false;
        s->text = larger;
        s->room = room;
    }
    memcpy(s->text + s->size, chunk, (size_t)n);
    s->size += (size_t)n;
    s->text[s->size] = '\0';
    return true;
}

/* false: the time is up */
static bool drain(struct stream *out, struct stream *err, uint64_t end_ns)
{
    while (out->fd >= 0 || err->fd >= 0) {
        struct pollfd fds[2] = {{out->fd, POLLIN, 0}, {err->fd, POLLIN, 0}};
        uint64_t now = cli_now_ns();
        int n;

        if (now >= end_ns)
            return false;
        n = poll(fds, 2, (int)((end_ns - now) / 1000000) + 1);
        if (n < 0 && errno != EINTR)
            return false;
        if (n > 0 && fds[0].revents)
            (void)take(out);
        if (n > 0 && fds[1].revents)
            (void)take(err);
    }
    return true;
}

static pid_t start(const char *const *words, int out[2], int err[2])
{
    char *argv[WORDS_MAX + 2] = {(char *)"moonbright"};
    pid_t child, parent = getpid();
    int nothing;

    for (unsigned i = 0; i < WORDS_MAX && words[i]; i++)
        argv[i + 1] = (char *)words[i];
    fflush(NULL);
    child = fork();
    if (child)
        return child;
    /* Who ends the command ends its benches. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent)
        _exit(127);
    nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
        _exit(127);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    execv("/proc/self/exe", argv);
    _exit(127);
}

static void last_line(const struct stream *err, char problem[256])
{
    const char *at = err->text;
    size_t end = err->size, begin;

    while (end && (at[end - 1] == '\n' || at[end - 1] == '\r'))
        end--;
    for (begin = end; begin && at[begin - 1] != '\n';)
        begin--;
    snprintf(problem, 256, "%.*s", (int)(end - begin < 250 ? end - begin : 250), at + begin);
}

static void wait_for(pid_t child, bool in_time, unsigned limit_s, struct child_result *r)
{
    int status = 0;

    if (!in_time)
        kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    r->status = WIFEXITED(status) && in_time ? WEXITSTATUS(status) : -1;
    if (!in_time)
        snprintf(r->problem, sizeof(r->problem), "ended after its limit of %u s", limit_s);
    else if (WIFSIGNALED(status))
        snprintf(r->problem, sizeof(r->problem), "ended by signal %d", WTERMSIG(status));
}

void child_run(const char *const *words, unsigned limit_s, struct child_result *r)
{
    struct stream out = {.fd = -1}, err = {.fd = -1};
    int out_ends[2], err_ends[2];
    bool in_time;
    pid_t child;

    *r = (struct child_result){.status = -1};
    snprintf(r->problem, sizeof(r->problem), "no process could be made");
    if (pipe(out_ends))
        return;
    if (pipe(err_ends)) {
        close(out_ends[0]);
        close(out_ends[1]);
        return;
    }
    child = start(words, out_ends, err_ends);
    close(out_ends[1]);
    close(err_ends[1]);
    out.fd = out_ends[0];
    err.fd = err_ends[0];
    if (child > 0) {
        r->problem[0] = '\0';
        in_time = drain(&out, &err, cli_now_ns() + (uint64_t)limit_s * 1000000000u);
        if (err.size)
            last_line(&err, r->problem);
        wait_for(child, in_time, limit_s, r);
    }
    if (out.fd >= 0)
        close(out.fd);
    if (err.fd >= 0)
        close(err.fd);
    free(err.text);
    r->out = out.text;
    r->size = out.size;
}
