/* SPDX-License-Identifier: MIT */
#include "data.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    PATH_BYTES = 4096,
};

static bool readable(const char *directory, const char *name, char *buffer, size_t size)
{
    char plain[PATH_MAX];
    int n = snprintf(buffer, size, "%s/%s", directory, name);

    if (n <= 0 || (size_t)n >= size || access(buffer, R_OK) != 0)
        return false;
    /* Without the ..: people read it. */
    if (realpath(buffer, plain) && strlen(plain) < size)
        snprintf(buffer, size, "%s", plain);
    return true;
}

bool data_find(const char *name, char *buffer, size_t size)
{
    const char *chosen = getenv("MOONBRIGHT_DATA");
    char self[PATH_BYTES];
    char directory[PATH_BYTES];
    char *slash;
    ssize_t n;

    if (chosen && *chosen)
        return readable(chosen, name, buffer, size);
    n = readlink("/proc/self/exe", self, sizeof(self) - 32);
    if (n <= 0) {
        snprintf(buffer, size, "(the command's own directory is not known)");
        return false;
    }
    self[n] = '\0';
    slash = strrchr(self, '/');
    if (slash)
        *slash = '\0';
    n = snprintf(directory, sizeof(directory), "%s/../share/moonbright", self);
    return n > 0 && (size_t)n < sizeof(directory) && readable(directory, name, buffer, size);
}

/* GiB with decimals, as bytes. */
static uint64_t from_gib(double gib)
{
    return (uint64_t)(gib * 1073741824.0 + 0.5);
}

bool data_recorded(const char *trace, struct recorded_result *out)
{
    char path[PATH_BYTES];
    char line[256];
    FILE *file;
    bool found = false;

    if (!data_find("torch/recorded.csv", path, sizeof(path)))
        return false;
    file = fopen(path, "r");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof(line), file)) {
        char name[64];
        double allocated = 0;
        double reserved = 0;
        double expandable = 0;

        if (sscanf(line, "%63[^,],%lf,%lf,%lf,%lf,%lf", name, &allocated, &reserved,
                   &out->efficiency, &expandable, &out->efficiency_expandable) != 6 ||
            strcmp(name, trace) != 0)
            continue;
        out->efficiency /= 100;
        out->efficiency_expandable /= 100;
        out->allocated_bytes = from_gib(allocated);
        out->reserved_bytes = from_gib(reserved);
        out->reserved_expandable_bytes = from_gib(expandable);
        found = true;
    }
    fclose(file);
    return found;
}

bool data_recorded_pool(const char *trace, uint64_t *allocated_bytes, uint64_t *reserved_bytes)
{
    char path[PATH_BYTES];
    char line[256];
    FILE *file;
    bool found = false;

    if (!data_find("torch/recorded-pool.csv", path, sizeof(path)))
        return false;
    file = fopen(path, "r");
    if (!file)
        return false;
    while (!found && fgets(line, sizeof(line), file)) {
        char name[64];
        uint64_t allocated = 0;
        uint64_t reserved = 0;

        if (sscanf(line, "%63[^,],%" SCNu64 ",%" SCNu64, name, &allocated, &reserved) != 3 ||
            !reserved || strcmp(name, trace) != 0)
            continue;
        *allocated_bytes = allocated;
        *reserved_bytes = reserved;
        found = true;
    }
    fclose(file);
    return found;
}
