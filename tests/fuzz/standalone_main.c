/*
 * main of a fuzz target where libFuzzer is not to be had: calls the target once for every file
 * named, or in a directory named, in order of name. It finds old bugs come back, not new ones.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the whole file into a block of just its size, so that ASan sees a read past its end. */
static int run_file(const char *path)
{
    struct stat st;
    uint8_t *data = NULL;
    FILE *file = fopen(path, "rb");
    int result = -1;

    if (!file) {
        perror(path);
        return -1;
    }
    if (fstat(fileno(file), &st)) {
        perror(path);
        goto undo_open;
    }
    data = malloc((size_t)st.st_size);
    if (!data && st.st_size) {
        perror(path);
        goto undo_open;
    }
    if (fread(data, 1, (size_t)st.st_size, file) != (size_t)st.st_size) {
        fprintf(stderr, "%s: short read\n", path);
        goto undo_data;
    }
    (void)LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
    result = 0;
undo_data:
    free(data);
undo_open:
    fclose(file);
    return result;
}

/* The number of inputs run, or -1. */
static int run_directory(const char *dir)
{
    struct dirent **names = NULL;
    int found = scandir(dir, &names, NULL, alphasort);
    int ran = 0;

    if (found < 0) {
        perror(dir);
        return -1;
    }
    for (int i = 0; i < found; i++) {
        char *path = NULL;

        if (names[i]->d_name[0] != '.' && ran >= 0) {
            if (asprintf(&path, "%s/%s", dir, names[i]->d_name) < 0 || run_file(path))
                ran = -1;
            else
                ran++;
            free(path);
        }
        free(names[i]);
    }
    free(names);
    return ran;
}

int main(int argc, char **argv)
{
    int total = 0;

    for (int i = 1; i < argc; i++) {
        struct stat st;
        int ran = 1;

        if (!stat(argv[i], &st) && S_ISDIR(st.st_mode))
            ran = run_directory(argv[i]);
        else if (run_file(argv[i]))
            ran = -1;
        if (ran < 0)
            return 1;
        total += ran;
    }
    if (!total) {
        fprintf(stderr, "usage: %s FILE-OR-DIRECTORY...: no input was found\n", argv[0]);
        return 1;
    }
    printf("%d inputs\n", total);
    return 0;
}
