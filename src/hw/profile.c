/* SPDX-License-Identifier: MIT */
/* profile.c - see profile.h. Locking: none; tables are constant, the rest is the caller's. */
#include "hw/profile.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"

enum { LINE_BYTES = 256 };
#define MAGIC "moonbright-profile 2"
#define MAGIC_OLD "moonbright-profile 1" /* has no last line that says so */
#define VALUE_MAX 9007199254740992.0     /* 2^53: costs become whole nanoseconds of 64 bits */

static const struct {
    const char *name, *unit;
    double tolerance;
} facts[MB_PROFILE_FACTS] = {
#define MB_PROFILE_ROW(name, unit, tolerance) {#name, unit, tolerance},
    MB_PROFILE_LIST(MB_PROFILE_ROW)
#undef MB_PROFILE_ROW
};

/* ------------------------------------------------------------ built in */

/*
 * Sources. H200: this probe on one NVIDIA H200, driver 580.159.04 (bench/results/h200-*.profile),
 * first_touch after an invalidate that dropped directories too. Invalid slots: measured without
 * CUDA.
 * Simulated devices: their models, which tests compare with this table.
 */
#define F(name) [MB_PROFILE_##name]
static const struct mb_profile builtin[] = {
    {
        .device = "NVIDIA H200",
        .tables = "device-inline",
        .value = {F(group_slots) = 16,
                  F(invalid_group_slots) = 16,
                  F(walk_ahead_slots) = 0,
                  F(entry_low) = 0x681,
                  F(entry_high) = 0,
                  F(small_alloc_leaf_kib) = 2048,
                  F(launch_ns) = 2326,
                  F(kernel_ns) = 7217,
                  F(submit_ns) = 2443,
                  F(map_ns) = 8434,
                  F(entry_ps) = 1579,
                  F(invalidate_ns) = 4310,
                  F(invalidate_range_ns) = NAN,
                  F(first_touch_ns) = 428,
                  F(stream_value_ns) = 3177,
                  F(slab_2m_ns) = 116226,
                  F(slab_32m_ns) = 121695,
                  F(slab_128m_ns) = 123409,
                  F(slab_512m_ns) = 132331,
                  F(slab_1g_ns) = 212515,
                  F(slab_cliff_mib) = 0},
    },
    {
        .device = "NVIDIA H200",
        .tables = "device-isolated",
        .value = {F(group_slots) = 16,
                  F(invalid_group_slots) = 16,
                  F(walk_ahead_slots) = 0,
                  F(entry_low) = 0x681,
                  F(entry_high) = 0,
                  F(small_alloc_leaf_kib) = 2048,
                  F(launch_ns) = 3002,
                  F(kernel_ns) = 8049,
                  F(submit_ns) = 4044,
                  F(map_ns) = 14046,
                  F(entry_ps) = 2469,
                  F(invalidate_ns) = 3125,
                  F(invalidate_range_ns) = 1318,
                  F(first_touch_ns) = 420,
                  F(stream_value_ns) = 3316,
                  F(slab_2m_ns) = 134341,
                  F(slab_32m_ns) = 141829,
                  F(slab_128m_ns) = 153178,
                  F(slab_512m_ns) = 178458,
                  F(slab_1g_ns) = 313690,
                  F(slab_cliff_mib) = 0},
    },
    {
        .device = "simulated H200 141GB",
        .value =
            {F(group_slots) = 16,     F(invalid_group_slots) = 16, F(walk_ahead_slots) = 0,
             F(entry_low) = 0x681,    F(entry_high) = 0,           F(launch_ns) = 3600,
             F(kernel_ns) = 8700,     F(submit_ns) = 3600,         F(map_ns) = 10100,
             F(entry_ps) = 700,       F(invalidate_ns) = 3000,     F(invalidate_range_ns) = 3000,
             F(first_touch_ns) = 131, F(stream_value_ns) = 3400,   F(slab_2m_ns) = 29900,
             F(slab_32m_ns) = 32400,  F(slab_128m_ns) = 47400,     F(slab_512m_ns) = 85500,
             F(slab_1g_ns) = 110833,  F(slab_cliff_mib) = 0,       F(small_alloc_leaf_kib) = NAN},
    },
};
#undef F

const struct mb_profile *mb__profile_builtin(const char *device, const char *tables)
{
    for (unsigned i = 0; i < sizeof(builtin) / sizeof(builtin[0]); i++) {
        if (!strcmp(builtin[i].device, device) &&
            (!*builtin[i].tables || !strcmp(builtin[i].tables, tables)))
            return &builtin[i];
    }
    return NULL;
}

const char *mb__profile_name(enum mb_profile_fact fact)
{
    return facts[fact].name;
}

const char *mb__profile_unit(enum mb_profile_fact fact)
{
    return facts[fact].unit;
}

double mb__profile_tolerance(enum mb_profile_fact fact)
{
    return facts[fact].tolerance;
}

void mb__profile_clear(struct mb_profile *out)
{
    memset(out, 0, sizeof(*out));
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++)
        out->value[i] = NAN;
}

/* ------------------------------------------------------------ files */

/* "key rest of the line" in place; false: no key. */
static bool split(char *line, char **value)
{
    char *end = line + strcspn(line, "#\r\n");

    while (end > line && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    *value = line + strcspn(line, " \t");
    while (**value == ' ' || **value == '\t')
        *(*value)++ = '\0';
    return *line != '\0';
}

static enum mb_err take_text(char *to, size_t bytes, const char *value, const char *key,
                             unsigned number)
{
    if (strlen(value) >= bytes)
        return mb__fail(MB_ERR_PARSE, "line %u: %s is longer than %zu bytes", number, key,
                        bytes - 1);
    snprintf(to, bytes, "%s", value);
    return MB_OK;
}

static enum mb_err take_fact(struct mb_profile *p, const char *key, const char *value,
                             unsigned number)
{
    char *end;

    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++) {
        double v;

        if (strcmp(facts[i].name, key) != 0)
            continue;
        if (!isnan(p->value[i]))
            return mb__fail(MB_ERR_PARSE, "line %u: %s is given twice", number, key);
        v = strtod(value, &end);
        if (!*value || *end || !(v >= 0 && v <= VALUE_MAX))
            return mb__fail(MB_ERR_PARSE,
                            "line %u: %s is \"%.40s\"; a number from 0 to 2^53 is expected", number,
                            key, value);
        p->value[i] = v;
        return MB_OK;
    }
    return mb__fail(MB_ERR_PARSE, "line %u: there is no fact \"%.40s\"", number, key);
}

static enum mb_err take_line(struct mb_profile *p, const char *key, const char *value,
                             unsigned number)
{
    if (!strcmp(key, "device"))
        return take_text(p->device, sizeof(p->device), value, key, number);
    if (!strcmp(key, "driver"))
        return take_text(p->driver, sizeof(p->driver), value, key, number);
    if (!strcmp(key, "tables"))
        return take_text(p->tables, sizeof(p->tables), value, key, number);
    return take_fact(p, key, value, number);
}

/* Blanks before the key do not count. */
static char *skip(char *line)
{
    return line + strspn(line, " \t");
}

/* Where reading is. */
struct place {
    unsigned number; /* of the line */
    bool old, ended; /* the first line was MAGIC_OLD; the last one was seen */
};

static enum mb_err read_line(char *line, struct mb_profile *p, struct place *at)
{
    char *key = skip(line), *value;

    if (at->number == 1) {
        line[strcspn(line, "\r\n")] = '\0';
        at->old = strcmp(line, MAGIC_OLD) == 0;
        return at->old || strcmp(line, MAGIC) == 0
                   ? MB_OK
                   : mb__fail(MB_ERR_PARSE, "line 1 is \"%.40s\"; a profile begins with \"%s\"",
                              line, MAGIC);
    }
    if (!split(key, &value))
        return MB_OK;
    if (at->ended)
        return mb__fail(MB_ERR_PARSE, "line %u stands behind the end", at->number);
    at->ended = !at->old && !*value && strcmp(key, "end") == 0;
    return at->ended ? MB_OK : take_line(p, key, value, at->number);
}

static enum mb_err read_lines(FILE *f, struct mb_profile *p)
{
    char line[LINE_BYTES];
    struct place at = {0};
    enum mb_err err = MB_OK;

    while (!err && fgets(line, sizeof(line), f)) {
        at.number++;
        if (!strchr(line, '\n'))
            return feof(f) ? mb__fail(MB_ERR_PARSE, "line %u has no end: the file is cut off",
                                      at.number)
                           : mb__fail(MB_ERR_PARSE, "line %u is longer than %d bytes", at.number,
                                      LINE_BYTES - 2);
        err = read_line(line, p, &at);
    }
    if (!err && ferror(f))
        err = mb__fail(MB_ERR_IO, "%s", strerror(errno));
    if (!err && !at.number)
        err = mb__fail(MB_ERR_PARSE, "the file is empty");
    if (!err && !at.old && !at.ended)
        err =
            mb__fail(MB_ERR_PARSE,
                     "the line \"end\" is missing behind line %u: the file is cut off", at.number);
    return err;
}

enum mb_err mb__profile_read(const char *path, struct mb_profile *out)
{
    struct mb_profile p;
    const char *problem = "";
    FILE *f = mb__file_open(path, &problem);
    enum mb_err err;

    if (!f)
        return mb__fail(MB_ERR_IO, "profile %s: %s", path, problem);
    mb__profile_clear(&p);
    err = read_lines(f, &p);
    fclose(f);
    if (err)
        return mb__fail_in(err, "profile %s", path);
    if (!*p.device)
        return mb__fail(MB_ERR_PARSE, "profile %s names no device", path);
    *out = p;
    return MB_OK;
}

static void write_lines(FILE *f, const struct mb_profile *p)
{
    fprintf(f, "%s\n", MAGIC);
    fprintf(f, "device %s\n", p->device);
    if (*p->driver)
        fprintf(f, "driver %s\n", p->driver);
    if (*p->tables)
        fprintf(f, "tables %s\n", p->tables);
    for (unsigned i = 0; i < MB_PROFILE_FACTS; i++) {
        if (isnan(p->value[i]))
            fprintf(f, "# %s was not measured\n", facts[i].name);
        else
            fprintf(f, "%s %.17g # %s\n", facts[i].name, p->value[i], facts[i].unit);
    }
    fputs("end\n", f);
}

enum mb_err mb__profile_write(const char *path, const struct mb_profile *profile)
{
    FILE *f = fopen(path, "we");
    bool bad;

    if (!f)
        return mb__fail(MB_ERR_IO, "profile %s: %s", path, strerror(errno));
    write_lines(f, profile);
    bad = ferror(f);
    bad = fclose(f) != 0 || bad;
    return bad ? mb__fail(MB_ERR_IO, "writing profile %s failed", path) : MB_OK;
}

/* ------------------------------------------------------------ use */

static uint64_t ns_or(double value, uint64_t fallback)
{
    return isnan(value) ? fallback : (uint64_t)value;
}

enum mb_err mb__profile_apply(const struct mb_profile *p, struct mb_hw_dev *dev)
{
    struct mb_hw_caps *caps = &dev->caps;
    double group = p->value[MB_PROFILE_group_slots];
    double low = p->value[MB_PROFILE_entry_low], high = p->value[MB_PROFILE_entry_high];
    uint64_t tmpl = mb_fmt_leaf_template(caps->format, MB_FRAME_SHIFT,
                                         mb_fmt_user_flags(caps->format, 1), MB_AP_VID, caps->kind);

    if (strcmp(p->device, caps->device_name) != 0)
        return mb__fail(MB_ERR_CONFIG,
                        "the profile is of \"%s\", and this device is \"%s\": measure this one "
                        "with moonbright probe -o FILE",
                        p->device, caps->device_name);
    /* A half that the profile does not have is taken as right; the other one is looked at. */
    low = isnan(low) ? (double)(uint32_t)tmpl : low;
    high = isnan(high) ? (double)(tmpl >> 32) : high;
    if (!caps->host_blocking && (low != (double)(uint32_t)tmpl || high != (double)(tmpl >> 32)))
        return mb__fail(MB_ERR_PROOF,
                        "the profile found entries of the form 0x%08llx%08llx where MoonBright "
                        "writes 0x%016llx: use tables:driver",
                        (unsigned long long)high, (unsigned long long)low,
                        (unsigned long long)tmpl);
    if (!isnan(group) && (group < 1 || group > 256 || fmod(log2(group), 1) != 0))
        return mb__fail(MB_ERR_CONFIG,
                        "the profile's group_slots is %g; powers of two up to 256 are possible",
                        group);
    /* A bigger group is a stronger rule; a smaller one is its word against the backend's. */
    if (group > caps->group_slots && !caps->host_blocking) {
        caps->group_slots = (unsigned)group;
        caps->neighbours_cached = true;
    }
    if (p->value[MB_PROFILE_walk_ahead_slots] > 0)
        caps->fresh_is_default = false;
    if (*p->tables && strcmp(p->tables, caps->tables) != 0)
        return MB_OK; /* costs are those of another way to write tables */
    caps->submit_ns = ns_or(p->value[MB_PROFILE_submit_ns], caps->submit_ns);
    caps->entry_ns = ns_or((p->value[MB_PROFILE_entry_ps] + 999) / 1000, caps->entry_ns);
    caps->invalidate_ns = ns_or(p->value[MB_PROFILE_invalidate_ns], caps->invalidate_ns);
    caps->slab_ns = ns_or(p->value[MB_PROFILE_slab_32m_ns], caps->slab_ns);
    return MB_OK;
}
