/* SPDX-License-Identifier: MIT */
/* file.h - files that the library reads. Locking: none. */
#ifndef MB_BASE_FILE_H
#define MB_BASE_FILE_H

#include <stdio.h>

/*
 * Opens a regular file for reading; the caller closes it. Never waits, as opening a FIFO would for
 * a writer. NULL: *problem says why, and errno is set (EINVAL: it is no regular file).
 */
FILE *mb__file_open(const char *path, const char **problem);

#endif
