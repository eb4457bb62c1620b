/* SPDX-License-Identifier: MIT */
/* waited.c - who waits for a lock of a file, as the kernel tells it. */
#include "program.h"

#include <sys/stat.h>

bool is_waited_for(int fd)
{
    FILE *locks = fopen("/proc/locks", "re");
    char line[256], inode[32];
    bool waited = false;
    struct stat st;

    MUST(locks && !fstat(fd, &st));
    snprintf(inode, sizeof(inode), ":%llu ", (unsigned long long)st.st_ino);
    while (fgets(line, sizeof(line), locks))
        waited |= strstr(line, "->") && strstr(line, inode);
    fclose(locks);
    return waited;
}
