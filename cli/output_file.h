/* SPDX-License-Identifier: MIT */
/*
 * output_file.h - a file that a command writes: whole or not at all.
 *
 * What is written is collected in memory, goes to a file beside the one asked for, and takes its
 * place when all of it is there. Who interrupts a command, or whose disk is full, keeps what was
 * there before. Devices, pipes and «-» (standard output) are written directly.
 */
#ifndef MB_CLI_OUTPUT_FILE_H
#define MB_CLI_OUTPUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct output_file {
    const char *command, *path; /* not owned */
    FILE *out;                  /* into `text`; write here */
    char *text;                 /* owned */
    size_t size, capacity;      /* bytes of `text`: written, and there is room for */
    bool failed; /* the host ran out of memory; who writes may set it too, if a part is missing */
};

/* Whether `path` could be written, before hours of work; prints why not. An enum cli_exit. */
int output_check(const char *command, const char *path);
/* Both name one file, by name or by inode. */
bool output_same(const char *a, const char *b);
/* Prints and returns CLI_FAILED if the host is out of memory. *o stays where it is until
 * output_close(). */
int output_open(struct output_file *o, const char *command, const char *path);
/* Puts it in its place and frees everything; after a failure, also one of before, the old file is
 * as it was. */
int output_close(struct output_file *o);

#endif
