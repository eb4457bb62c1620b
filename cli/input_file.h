/* SPDX-License-Identifier: MIT */
/* input_file.h - files that the command reads. */
#ifndef MB_CLI_INPUT_FILE_H
#define MB_CLI_INPUT_FILE_H

#include <stddef.h>

enum { INPUT_PROBLEM = 160 };

/*
 * A descriptor of `path` for reading, which the caller closes, or -1 with the reason in `problem`.
 * Opening never waits. Allowed are regular files and pipes without a name, as of `<(program)` and
 * of /dev/stdin behind `|`: a FIFO whose writer never comes would be waited for without end, and
 * a device has no end.
 */
int input_open(const char *path, char problem[INPUT_PROBLEM]);

#endif
