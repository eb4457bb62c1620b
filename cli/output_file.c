/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE
#include "output_file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"

static bool is_stdout(const char *path)
{
    return strcmp(path, "-") == 0;
}

/* The directory of `path`, in `buffer`; false if the path is too long. */
static bool directory_of(const char *path, char buffer[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    int n = slash ? snprintf(buffer, PATH_MAX, "%.*s", (int)(slash - path + 1), path)
                  : snprintf(buffer, PATH_MAX, ".");

    return n > 0 && n < PATH_MAX;
}

int output_check(const char *command, const char *path)
{
    char directory[PATH_MAX];
    struct stat st;
    int bad;

    if (is_stdout(path))
        return CLI_OK;
    if (!*path)
        return cli_fail(CLI_BAD_INPUT, command, "the name of the file to write is empty");
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            return cli_fail(CLI_FAILED, command, "%.200s cannot be written: it is a directory",
                            path);
        bad = access(path, W_OK);
    } else if (errno != ENOENT) {
        bad = -1;
    } else {
        if (!directory_of(path, directory)) {
            errno = ENAMETOOLONG;
            bad = -1;
        } else {
            bad = access(directory, W_OK | X_OK);
        }
    }
    return bad ? cli_fail(CLI_FAILED, command, "%.200s cannot be written: %s", path,
                          strerror(errno))
               : CLI_OK;
}

bool output_same(const char *a, const char *b)
{
    struct stat x, y;

    if (is_stdout(a) || is_stdout(b))
        return is_stdout(a) && is_stdout(b);
    if (strcmp(a, b) == 0)
        return true;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* glibc's open_memstream() drops what it has no memory for, and ferror() does not tell. */
static ssize_t collect(void *cookie, const char *text, size_t size)
{
    struct output_file *o = cookie;

    if (size > o->capacity - o->size) {
        size_t capacity = 2 * (o->size + size);
        char *larger = realloc(o->text, capacity);

        if (!larger) {
            o->failed = true;
            errno = ENOMEM;
            return 0;
        }
        o->text = larger;
        o->capacity = capacity;
    }
    memcpy(o->text + o->size, text, size);
    o->size += size;
    return (ssize_t)size;
}

int output_open(struct output_file *o, const char *command, const char *path)
{
    *o = (struct output_file){.command = command, .path = path};
    o->out = fopencookie(o, "w", (cookie_io_functions_t){.write = collect});
    if (!o->out)
        return cli_fail(CLI_FAILED, command, "the host is out of memory");
    return CLI_OK;
}

static bool write_all(FILE *file, const struct output_file *o)
{
    return fwrite(o->text, 1, o->size, file) == o->size && !fflush(file);
}

/* errno tells why not; closes the file. */
static bool write_to(FILE *file, const struct output_file *o)
{
    bool good = write_all(file, o);
    int error = errno;

    if (fclose(file)) {
        error = good ? errno : error;
        good = false;
    }
    errno = error;
    return good;
}

static bool write_directly(const struct output_file *o)
{
    FILE *file;

    if (is_stdout(o->path))
        return write_all(stdout, o);
    file = fopen(o->path, "w");
    return file && write_to(file, o);
}

/* With the rights of the file that it replaces, or those of any new file. */
static bool write_beside(const struct output_file *o, const char *path, const struct stat *old)
{
    char beside[PATH_MAX];
    FILE *file = NULL;
    mode_t mask;
    int fd, error;

    if (snprintf(beside, sizeof(beside), "%s.XXXXXX", path) >= (int)sizeof(beside)) {
        errno = ENAMETOOLONG;
        return false;
    }
    fd = mkstemp(beside);
    if (fd < 0) /* a file that may be changed in a directory that may not */
        return old && (errno == EACCES || errno == EPERM) && write_directly(o);
    mask = umask(0);
    (void)umask(mask);
    if (fchmod(fd, old ? old->st_mode & 0777 : 0666 & ~mask) == 0)
        file = fdopen(fd, "w");
    if (!file)
        close(fd);
    if (file && write_to(file, o) && rename(beside, path) == 0)
        return true;
    error = errno;
    (void)unlink(beside);
    errno = error;
    return false;
}

static bool put(const struct output_file *o)
{
    char target[PATH_MAX];
    struct stat st;

    if (is_stdout(o->path))
        return write_directly(o);
    if (stat(o->path, &st))
        return write_beside(o, o->path, NULL);
    if (!S_ISREG(st.st_mode))
        return write_directly(o);
    /* Where a link leads. */
    return realpath(o->path, target) && write_beside(o, target, &st);
}

int output_close(struct output_file *o)
{
    bool whole = !ferror(o->out);
    int code = CLI_OK;

    whole = !fclose(o->out) && whole;
    o->out = NULL;
    if (!whole || o->failed)
        code = cli_fail(CLI_FAILED, o->command, "the host is out of memory");
    else if (!put(o))
        code =
            cli_fail(CLI_FAILED, o->command, "writing %.200s failed: %s", o->path, strerror(errno));
    free(o->text);
    o->text = NULL;
    return code;
}
