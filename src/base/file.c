/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *kind_of(mode_t mode)
{
    return S_ISFIFO(mode)  ? "it is a FIFO or a pipe; a regular file is wanted"
           : S_ISDIR(mode) ? "it is a directory; a regular file is wanted"
                           : "it is a device; a regular file is wanted";
}

FILE *mb__file_open(const char *path, const char **problem)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), error;
    FILE *file = NULL;
    struct stat st;

    if (fd < 0 || fstat(fd, &st)) {
        error = errno;
        *problem = strerror(error);
    } else if (!S_ISREG(st.st_mode)) {
        error = EINVAL;
        *problem = kind_of(st.st_mode);
    } else {
        file = fdopen(fd, "r");
        if (file)
            return file;
        error = errno;
        *problem = strerror(error);
    }
    if (fd >= 0)
        close(fd);
    errno = error;
    return NULL;
}
