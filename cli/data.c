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

/* The line of a bundled table that begins with "TRACE,". false: none, or no such file. */
static bool line_of(const char *table, const char *trace, char *line, int size)
{
    char path[PATH_BYTES];
    size_t length = strlen(trace);
    bool found = false;
    FILE *file;

    if (!data_find(table, path, sizeof(path)))
        return false;
    file = fopen(path, "r");
    if (!file)
        return false;
    while (!found && fgets(line, size, file))
        found = !strncmp(line, trace, length) && line[length] == ',';
    fclose(file);
    return found;
}

bool data_recorded(const char *trace, struct recorded_result *out)
{
    double allocated, reserved, efficiency, expandable, efficiency_expandable;
    char line[256];

    if (!line_of("torch/recorded.csv", trace, line, sizeof(line)) ||
        sscanf(line, "%*[^,],%lf,%lf,%lf,%lf,%lf", &allocated, &reserved, &efficiency, &expandable,
               &efficiency_expandable) != 5)
        return false;
    *out = (struct recorded_result){.allocated_bytes = from_gib(allocated),
                                    .reserved_bytes = from_gib(reserved),
                                    .efficiency = efficiency / 100,
                                    .reserved_expandable_bytes = from_gib(expandable),
                                    .efficiency_expandable = efficiency_expandable / 100};
    return true;
}

bool data_recorded_pool(const char *trace, uint64_t *allocated_bytes, uint64_t *reserved_bytes)
{
    uint64_t allocated, reserved;
    char line[256];

    if (!line_of("torch/recorded-pool.csv", trace, line, sizeof(line)) ||
        sscanf(line, "%*[^,],%" SCNu64 ",%" SCNu64, &allocated, &reserved) != 2 || !reserved)
        return false;
    *allocated_bytes = allocated;
    *reserved_bytes = reserved;
    return true;
}
