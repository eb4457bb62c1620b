/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a profile: read to its end, or refused with a text and nothing changed. What is
 * read is written and read again the same, and makes no device less careful than it was.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"
#include "hw/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { GROUP = 16 };
#define COST_MAX 9007199254740992.0 /* 2^53: doubles below are exact as counts of nanoseconds */

/* Nothing has been written, to padding either. */
static bool same_bytes(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

static void check_values(const struct mb_profile *p)
{
    need(*p->device && memchr(p->device, 0, sizeof(p->device)));
    need(memchr(p->driver, 0, sizeof(p->driver)) && memchr(p->tables, 0, sizeof(p->tables)));
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        need(isnan(p->value[i]) || (p->value[i] >= 0 && p->value[i] <= COST_MAX));
}

static void check_written(const struct mb_profile *p, const char *path)
{
    struct mb_profile again;

    need(mb__profile_write(path, p) == MB_OK);
    need(mb__profile_read(path, &again) == MB_OK);
    need(!strcmp(p->device, again.device) && !strcmp(p->driver, again.driver));
    need(!strcmp(p->tables, again.tables));
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        need(isnan(p->value[i]) ? isnan(again.value[i]) : p->value[i] == again.value[i]);
}

static void check_applied(const struct mb_profile *p)
{
    struct mb_hw_dev dev = {.caps = {.format = MB_FMT_GMMU_V3,
                                     .kind = 6,
                                     .neighbours_cached = true,
                                     .group_slots = GROUP,
                                     .fresh_is_default = true,
                                     .tables = "device-inline"}};
    unsigned char before[sizeof(dev.caps)];
    enum mb_err err;

    snprintf(dev.caps.device_name, sizeof(dev.caps.device_name), "%s", p->device);
    memcpy(before, &dev.caps, sizeof(before));
    err = mb__profile_apply(p, &dev);
    need(err == MB_OK || err == MB_ERR_CONFIG || err == MB_ERR_PROOF);
    need(!err || same_bytes(before, &dev.caps, sizeof(before)));
    need(dev.caps.group_slots >= GROUP && dev.caps.group_slots <= 256);
    need((dev.caps.group_slots & (dev.caps.group_slots - 1)) == 0 && dev.caps.neighbours_cached);
    need(err || !(p->value[MB_PROFILE_walk_ahead_slots] > 0) || !dev.caps.fresh_is_default);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char untouched[sizeof(struct mb_profile)];
    struct mb_profile p;
    int fd = memfd_create("profile", 0);
    char path[40];
    enum mb_err err;

    need(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    memset(&p, 0xee, sizeof(p));
    memset(untouched, 0xee, sizeof(untouched));
    err = mb__profile_read(path, &p);
    need(err == MB_OK || err == MB_ERR_PARSE);
    if (err) {
        need(mb_error_detail()[0] && same_bytes(&p, untouched, sizeof(p)));
    } else {
        check_values(&p);
        check_written(&p, path);
        check_applied(&p);
    }
    close(fd);
    return 0;
}
