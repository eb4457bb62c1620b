/* SPDX-License-Identifier: MIT */
/*
 * describe.c - what `moonbright info` says about this backend, by reading alone.
 *
 * libcuda is loaded but not initialised, and no device file is opened: what only an opened device
 * can tell (another process, MIG, confidential computing) is checked at open and named there.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "hw/cuda/cuda.h"
#include "hw/nvrm/checks.h"

extern const size_t mb__cuda_fatbin_size;

static bool read_file(const char *path, char *text, size_t bytes)
{
    FILE *f = fopen(path, "re");
    size_t n;

    if (!f)
        return false;
    n = fread(text, 1, bytes - 1, f);
    fclose(f);
    text[n] = '\0';
    return true;
}

static int is_entry(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* The model of the GPU that is `ordinal`-th by bus address. */
static bool read_model(int ordinal, char *name, size_t bytes)
{
    struct dirent **list = NULL;
    char path[320], text[2048];
    const char *model;
    int n = scandir("/proc/driver/nvidia/gpus", &list, is_entry, alphasort);
    bool found = false;

    for (int i = 0; i < n; i++) {
        if (i == ordinal) {
            snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information",
                     list[i]->d_name);
            if (read_file(path, text, sizeof(text)) && (model = strstr(text, "Model:"))) {
                model += strlen("Model:");
                model += strspn(model, " \t");
                snprintf(name, bytes, "%.*s", (int)strcspn(model, "\n"), model);
                found = true;
            }
        }
        free(list[i]);
    }
    free(list);
    return found;
}

/* The reason lives as long as the process; one per device is enough, as facts rarely change. */
static void set_reason(struct mb_backend_info *out, const char *text)
{
    static char kept[16][512];
    static unsigned used;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&lock);
    out->reason = "";
    for (unsigned i = 0; i < used; i++) {
        if (!strcmp(kept[i], text))
            out->reason = kept[i];
    }
    if (!*out->reason && *text) {
        unsigned slot = used < 16 ? used++ : 15;

        snprintf(kept[slot], sizeof(kept[slot]), "%s", text);
        out->reason = kept[slot];
    }
    pthread_mutex_unlock(&lock);
}

/* Why device tables cannot be had, as far as reading tells; false: nothing speaks against them. */
static bool no_device_tables(const char *version_text, char *reason, size_t bytes)
{
    const struct nvrm_series *series;
    struct nvrm_version version;
    struct nvrm_check check;

    if (mb__nvrm_version_parse(version_text, &version) ||
        mb__nvrm_series_find(version.major, &series)) {
        snprintf(reason, bytes, "driver tables only: %s", mb_error_detail());
        return true;
    }
    mb__nvrm_check_privilege(&check);
    if (check.fatal) {
        snprintf(reason, bytes, "driver tables only: %s", check.text);
        return true;
    }
    snprintf(reason, bytes, "%s", series->measured ? "" : series->evidence);
    return false;
}

void mb__cuda_describe(int ordinal, struct mb_backend_info *out)
{
    const struct mb_cuda_driver *cu;
    struct nvrm_version version;
    char text[1024], reason[512];

    *out = (struct mb_backend_info){.name = "cuda", .tables = "driver", .reason = ""};
    if (!read_file("/proc/driver/nvidia/version", text, sizeof(text))) {
        set_reason(out, "the NVIDIA kernel driver is not loaded");
        return;
    }
    if (!mb__nvrm_version_parse(text, &version))
        snprintf(out->driver, sizeof(out->driver), "%s", version.text);
    if (!read_model(ordinal, out->device_name, sizeof(out->device_name))) {
        snprintf(reason, sizeof(reason), "there is no NVIDIA GPU number %d", ordinal);
        set_reason(out, reason);
        return;
    }
    if (mb__cuda_driver_open(&cu)) {
        set_reason(out, mb_error_detail());
        return;
    }
    if (!mb__cuda_fatbin_size) {
        set_reason(out, "this build has no CUDA kernels: nvcc was not found when it was made");
        return;
    }
    out->available = true;
    out->tables = no_device_tables(text, reason, sizeof(reason)) ? "driver" : "device-inline";
    set_reason(out, reason);
}
