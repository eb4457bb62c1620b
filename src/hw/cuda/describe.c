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
#include <strings.h>

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

/* Text behind `key` of an information file, without blanks around it; false: it is not there. */
static bool read_field(const char *text, const char *key, char *out, size_t bytes)
{
    const char *value = strstr(text, key);

    if (!value)
        return false;
    value += strlen(key);
    value += strspn(value, " \t");
    snprintf(out, bytes, "%.*s", (int)strcspn(value, "\n"), value);
    return true;
}

/* Index of the GPU whose number begins as the entry says; -1: none, or several. */
static int by_uuid(const char *entry, size_t length, const char *const *uuids, int count)
{
    int found = -1;

    for (int i = 0; i < count; i++) {
        if (strncasecmp(uuids[i], entry, length) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

/* One entry of the list; -1: it ends the list, as everything does that names no GPU. */
static int visible_entry(const char *entry, size_t length, const char *const *uuids, int count)
{
    char *end;
    long index;

    if (!strncasecmp(entry, "GPU-", 4))
        return by_uuid(entry, length, uuids, count);
    index = strtol(entry, &end, 10);
    if (end == entry || (size_t)(end - entry) != length || index < 0 || index >= count)
        return -1;
    return (int)index;
}

int mb__cuda_visible(const char *list, const char *const *uuids, int count, int ordinal)
{
    const char *at = list;

    if (!list)
        return ordinal >= 0 && ordinal < count ? ordinal : -1;
    for (int i = 0; ordinal >= 0; i++) {
        size_t length;
        int index;

        at += strspn(at, " ");
        length = strcspn(at, ", ");
        index = length ? visible_entry(at, length, uuids, count) : -1;
        if (index < 0 || i == ordinal)
            return index;
        at += length;
        at += strspn(at, " ");
        if (*at++ != ',')
            return -1;
    }
    return -1;
}

struct gpu_text {
    char name[96], uuid[64];
};

/* The GPUs of this machine by bus address, as CUDA numbers GPUs of one kind. */
static int read_gpus(struct gpu_text *gpus, int capacity)
{
    struct dirent **list = NULL;
    char path[320], text[2048];
    int n = scandir("/proc/driver/nvidia/gpus", &list, is_entry, alphasort), count = 0;

    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", list[i]->d_name);
        if (count < capacity && read_file(path, text, sizeof(text)) &&
            read_field(text, "Model:", gpus[count].name, sizeof(gpus[count].name))) {
            if (!read_field(text, "GPU UUID:", gpus[count].uuid, sizeof(gpus[count].uuid)))
                gpus[count].uuid[0] = '\0';
            count++;
        }
        free(list[i]);
    }
    free(list);
    return count;
}

/* The model of the GPU that CUDA would number `ordinal`. */
static bool read_model(int ordinal, char *name, size_t bytes)
{
    enum { GPUS = 64 };
    struct gpu_text *gpus = calloc(GPUS, sizeof(*gpus));
    const char *uuids[GPUS];
    int count = gpus ? read_gpus(gpus, GPUS) : 0, index;

    for (int i = 0; i < count; i++)
        uuids[i] = gpus[i].uuid;
    index = mb__cuda_visible(getenv("CUDA_VISIBLE_DEVICES"), uuids, count, ordinal);
    if (index >= 0)
        snprintf(name, bytes, "%s", gpus[index].name);
    free(gpus);
    return index >= 0;
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
        snprintf(reason, sizeof(reason), "there is no NVIDIA GPU number %d%s", ordinal,
                 getenv("CUDA_VISIBLE_DEVICES") ? " among those of CUDA_VISIBLE_DEVICES" : "");
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
