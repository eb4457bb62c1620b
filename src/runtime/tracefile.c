/* SPDX-License-Identifier: MIT */
/*
 * The trace file: every malloc and free, as replay reads it.
 *
 *   csv   op,id,bytes,stream; ids count from 1; a failed request is a comment
 *   rmm   Thread,Time,Action,Pointer,Size,Stream, as RMM's logging adaptor writes
 *
 * Lines are collected and written 64 KiB at a time, at close, and at the process's exit. A file
 * that cannot be written any further is given up with one message; the program goes on.
 *
 * Locking: the lock given at open, for each file's contents; files_lock for the list of open files,
 * taken before it. A fork's child writes nothing: the buffer is its parent's.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/log.h"
#include "runtime/watch.h"

enum {
    BUFFER_BYTES = 1 << 16,
    LINE_BYTES = 160, /* longest line, with room to spare */
    PATH_BYTES = 512,
};

struct mb__tracefile {
    struct mb__tracefile *next; /* of `files`; files_lock */
    struct mb_lock *lock;       /* of the fields below; the watch's */
    int fd;                     /* -1: given up */
    bool rmm;                   /* constant */
    dev_t device;               /* which file it is; constant */
    ino_t inode;                /* likewise */
    struct mb_map ids;          /* csv: address of a live block -> id */
    uint64_t last_id;
    size_t used; /* bytes of the buffer */
    char path[PATH_BYTES];
    char buffer[BUFFER_BYTES];
};

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mb__tracefile *files; /* open ones; files_lock */
static pthread_once_t exit_once = PTHREAD_ONCE_INIT;

static void give_up(struct mb__tracefile *file, const char *why)
{
    mb__log(MB_LOG_ERROR, "trace", "%s: %s; the trace ends here", file->path, why);
    close(file->fd);
    file->fd = -1;
    file->used = 0;
}

static void flush(struct mb__tracefile *file)
{
    size_t done = 0;

    while (file->fd >= 0 && done < file->used) {
        ssize_t count = write(file->fd, file->buffer + done, file->used - done);

        if (count > 0)
            done += (size_t)count;
        else if (count == 0 || errno != EINTR)
            give_up(file, strerror(errno));
    }
    file->used = 0;
}

__attribute__((format(printf, 2, 3))) static void put(struct mb__tracefile *file,
                                                      const char *format, ...)
{
    va_list args;
    int count;

    if (file->used + LINE_BYTES > BUFFER_BYTES)
        flush(file);
    va_start(args, format);
    count = vsnprintf(file->buffer + file->used, LINE_BYTES, format, args);
    va_end(args);
    if (count > 0 && count < LINE_BYTES)
        file->used += (size_t)count;
}

/* ------------------------------------------------------------------ opening and closing */

static void flush_all(void)
{
    if (mb__in_fork())
        return;
    pthread_mutex_lock(&files_lock);
    for (struct mb__tracefile *file = files; file; file = file->next) {
        mb__lock(file->lock);
        flush(file);
        mb__unlock(file->lock);
    }
    pthread_mutex_unlock(&files_lock);
}

static void watch_exit(void)
{
    if (atexit(flush_all))
        mb__log(MB_LOG_WARN, "trace", "traces are complete only if the device is closed");
}

/* %d: ordinal, %p: process, %%: %. False: another letter, or too long. */
static bool expand(const char *path, int ordinal, char *out)
{
    size_t used = 0;

    for (; *path && used < PATH_BYTES; path++) {
        int count = 1;

        if (*path != '%') {
            out[used] = *path;
        } else if (*++path == 'd') {
            count = snprintf(out + used, PATH_BYTES - used, "%d", ordinal);
        } else if (*path == 'p') {
            count = snprintf(out + used, PATH_BYTES - used, "%ld", (long)getpid());
        } else if (*path == '%') {
            out[used] = '%';
        } else {
            return false;
        }
        used += (size_t)count;
    }
    if (used >= PATH_BYTES)
        return false;
    out[used] = 0;
    return true;
}

static enum mb_err io_error(const char *path, const char *what)
{
    return mb__fail(MB_ERR_IO, "trace: %s %s: %s; choose a file that can be written", what, path,
                    strerror(errno));
}

/* Enters the list, unless another device writes the same file. */
static enum mb_err enlist(struct mb__tracefile *file)
{
    enum mb_err err = MB_OK;

    pthread_mutex_lock(&files_lock);
    for (struct mb__tracefile *other = files; other && !err; other = other->next)
        if (other->device == file->device && other->inode == file->inode)
            err = mb__fail(MB_ERR_BUSY,
                           "trace: another open device of this process writes %s; give each a "
                           "file of its own, %%d in the path stands for the ordinal",
                           file->path);
    if (!err) {
        file->next = files;
        files = file;
    }
    pthread_mutex_unlock(&files_lock);
    return err;
}

static void delist(struct mb__tracefile *file)
{
    pthread_mutex_lock(&files_lock);
    for (struct mb__tracefile **at = &files; *at; at = &(*at)->next) {
        if (*at == file) {
            *at = file->next;
            break;
        }
    }
    pthread_mutex_unlock(&files_lock);
}

static enum mb_err open_file(struct mb__tracefile *file)
{
    struct stat status;
    enum mb_err err;

    file->fd = open(file->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return io_error(file->path, "opening");
    if (fstat(file->fd, &status)) {
        err = io_error(file->path, "looking at");
        goto undo_open;
    }
    file->device = status.st_dev;
    file->inode = status.st_ino;
    err = enlist(file);
    if (err)
        goto undo_open;
    if (S_ISREG(status.st_mode) && ftruncate(file->fd, 0)) {
        err = io_error(file->path, "emptying");
        delist(file);
        goto undo_open;
    }
    return MB_OK;
undo_open:
    close(file->fd);
    return err;
}

enum mb_err mb__tracefile_open(const char *path, bool rmm, int ordinal, struct mb_lock *lock,
                               struct mb__tracefile **out)
{
    struct mb__tracefile *file = malloc(sizeof(*file));
    enum mb_err err;

    if (!file)
        return mb__fail(MB_ERR_HOST_MEMORY, "no host memory for the buffer of a trace");
    memset(file, 0, offsetof(struct mb__tracefile, buffer));
    file->lock = lock;
    file->rmm = rmm;
    if (expand(path, ordinal, file->path))
        err = open_file(file);
    else
        err = mb__fail(MB_ERR_CONFIG,
                       "trace: in \"%s\", %%d, %%p and %%%% may stand for the ordinal, the process "
                       "and %%; nothing else, and %d bytes at most",
                       path, PATH_BYTES);
    if (err) {
        free(file);
        return err;
    }
    pthread_once(&exit_once, watch_exit);
    mb__lock(lock);
    put(file,
        rmm ? "Thread,Time,Action,Pointer,Size,Stream\n" : "# MoonBright: op,id,bytes,stream\n");
    mb__unlock(lock);
    *out = file;
    return MB_OK;
}

void mb__tracefile_close(struct mb__tracefile *file)
{
    if (!file)
        return;
    delist(file);
    flush(file);
    if (file->fd >= 0)
        close(file->fd);
    mb__map_free(&file->ids);
    free(file);
}

/* ------------------------------------------------------------------ lines */

static void write_csv(struct mb__tracefile *file, const struct mb__record *record)
{
    uint64_t id = 0;

    switch (record->kind) {
    case MB_HOOK_MALLOC:
        if (mb__map_put(&file->ids, record->addr, file->last_id + 1)) {
            give_up(file, "no host memory");
            return;
        }
        put(file, "a,%" PRIu64 ",%" PRIu64 ",%#" PRIx64 "\n", ++file->last_id, record->bytes,
            record->stream);
        return;
    case MB_HOOK_FREE:
        if (mb__map_del(&file->ids, record->addr, &id))
            put(file, "f,%" PRIu64 ",%" PRIu64 ",%#" PRIx64 "\n", id, record->bytes,
                record->stream);
        return;
    case MB_HOOK_OOM:
        put(file, "# failed,%" PRIu64 ",%#" PRIx64 "\n", record->bytes, record->stream);
        return;
    default:
        return;
    }
}

static void write_rmm(struct mb__tracefile *file, const struct mb__record *record)
{
    const char *action = record->kind == MB_HOOK_MALLOC ? "allocate"
                         : record->kind == MB_HOOK_FREE ? "free"
                         : record->kind == MB_HOOK_OOM  ? "allocate failure"
                                                        : NULL;
    time_t seconds = (time_t)(record->time_us / 1000000);
    struct tm tm = {0};

    if (!action)
        return;
    localtime_r(&seconds, &tm);
    put(file, "%ld,%02d:%02d:%02d.%06u,%s,0x%" PRIx64 ",%" PRIu64 ",0x%" PRIx64 "\n",
        syscall(SYS_gettid), tm.tm_hour, tm.tm_min, tm.tm_sec,
        (unsigned)(record->time_us % 1000000), action, record->addr, record->bytes, record->stream);
}

void mb__tracefile_write(struct mb__tracefile *file, const struct mb__record *record)
{
    if (file->fd < 0)
        return;
    if (file->rmm)
        write_rmm(file, record);
    else
        write_csv(file, record);
}
