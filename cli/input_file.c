/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* NULL: it can be read to an end. */
static const char *kind_of_others(int fd, const struct stat *st)
{
    struct statfs fs;

    if (S_ISREG(st->st_mode))
        return NULL;
    if (S_ISFIFO(st->st_mode))
        return fstatfs(fd, &fs) == 0 && fs.f_type == PIPEFS_MAGIC ? NULL : "a FIFO";
    return S_ISDIR(st->st_mode) ? "a directory" : "a device";
}

int input_open(const char *path, char problem[INPUT_PROBLEM])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *kind;
    struct stat st;

    /* Not to wait was for open(); a pipe's next bytes are waited for. */
    if (fd < 0 || fstat(fd, &st) || fcntl(fd, F_SETFL, 0)) {
        snprintf(problem, INPUT_PROBLEM, "cannot be opened: %s", strerror(errno));
    } else {
        kind = kind_of_others(fd, &st);
        if (!kind)
            return fd;
        snprintf(problem, INPUT_PROBLEM, "is %s; expected a file, or a pipe: program | moonbright",
                 kind);
    }
    if (fd >= 0)
        close(fd);
    return -1;
}
