/* scan.c - what /proc tells about other processes; see checks.h. */
#include "hw/nvrm/checks.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

enum { PATH_BYTES = 512 };

/* Process id of a directory of /proc; 0 for any other name. */
static uint32_t pid_of(const char *name)
{
    size_t n = strlen(name);

    if (!n || n > 9 || strspn(name, "0123456789") != n)
        return 0;
    return (uint32_t)strtoul(name, NULL, 10);
}

/* 1: has both files open; 0: not; -1: could not be looked at. */
static int uses_gpu(const char *fd_dir, const char *gpu_path)
{
    DIR *dir = opendir(fd_dir);
    bool gpu = false, uvm = false;
    char path[PATH_BYTES], target[64];

    if (!dir)
        return errno == ENOENT ? 0 : -1; /* it may have ended meanwhile */
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        int n = snprintf(path, sizeof path, "%s/%s", fd_dir, entry->d_name);
        ssize_t length =
            n > 0 && (size_t)n < sizeof path ? readlink(path, target, sizeof target - 1) : -1;
        if (length <= 0)
            continue;
        target[length] = '\0';
        gpu |= strcmp(target, gpu_path) == 0;
        uvm |= strcmp(target, "/dev/nvidia-uvm") == 0;
    }
    closedir(dir);
    return gpu && uvm;
}

enum mb_err mb__nvrm_scan_users(const char *proc, uint32_t minor, uint32_t *pids, uint32_t capacity,
                                uint32_t *count, uint32_t *unreadable)
{
    char path[PATH_BYTES], gpu_path[32];
    uint32_t found = 0, failed = 0;
    DIR *dir = opendir(proc);

    if (!dir)
        return mb__fail(MB_ERR_IO, "%s: %s", proc, strerror(errno));
    snprintf(gpu_path, sizeof gpu_path, "/dev/nvidia%u", minor);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        uint32_t pid = pid_of(entry->d_name);
        if (!pid)
            continue;
        int n = snprintf(path, sizeof path, "%s/%s/fd", proc, entry->d_name);
        int uses = n > 0 && (size_t)n < sizeof path ? uses_gpu(path, gpu_path) : -1;
        failed += uses < 0;
        if (uses > 0 && found < capacity)
            pids[found++] = pid;
    }
    closedir(dir);
    *count = found;
    *unreadable = failed;
    return MB_OK;
}

bool mb__nvrm_scan_process(const char *proc, const char *name)
{
    char path[PATH_BYTES], comm[32];
    bool found = false;
    DIR *dir = opendir(proc);

    if (!dir)
        return false;
    for (struct dirent *entry; !found && (entry = readdir(dir)) != NULL;) {
        if (!pid_of(entry->d_name))
            continue;
        int n = snprintf(path, sizeof path, "%s/%s/comm", proc, entry->d_name);
        FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
        if (!file)
            continue;
        found = fgets(comm, sizeof comm, file) && strncmp(comm, name, strlen(name)) == 0;
        fclose(file);
    }
    closedir(dir);
    return found;
}
