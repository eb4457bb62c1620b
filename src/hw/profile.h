/* SPDX-License-Identifier: MIT */
/*
 * profile.h - what was measured on one device: built in, or read from a file.
 *
 * FILE      Text, one fact a line: `name value`, `#` begins a comment. The first line is
 *           `moonbright-profile 2`, the last one `end`; `device`, `driver` and `tables` name what
 *           was measured. Facts that a reader does not know are an error: they may matter. Files
 *           of version 1 have no last line of that kind and are still read.
 * USE       A profile corrects costs as it says, and safety facts towards caution only: a group of
 *           slots never gets smaller than the backend believes, and always-fresh is given up where
 *           walks run ahead. A file for another device is refused.
 */
#ifndef MB_HW_PROFILE_H
#define MB_HW_PROFILE_H

#include "hw/hw.h"

/* X(name, unit, tolerance in percent on hardware; 0: exact). Meanings: doc/probe.md. */
#define MB_PROFILE_LIST(X)                                                                         \
    X(group_slots, "slots", 0)                                                                     \
    X(invalid_group_slots, "slots", 0)                                                             \
    X(walk_ahead_slots, "slots", 0)                                                                \
    X(entry_low, "bits", 0)                                                                        \
    X(entry_high, "bits", 0)                                                                       \
    X(small_alloc_leaf_kib, "KiB", 0)                                                              \
    X(launch_ns, "ns", 60)                                                                         \
    X(kernel_ns, "ns", 60)                                                                         \
    X(submit_ns, "ns", 60)                                                                         \
    X(map_ns, "ns", 60)                                                                            \
    X(entry_ps, "ps", 400)                                                                         \
    X(invalidate_ns, "ns", 80)                                                                     \
    X(invalidate_range_ns, "ns", 80)                                                               \
    X(first_touch_ns, "ns", 80)                                                                    \
    X(stream_value_ns, "ns", 80)                                                                   \
    X(slab_2m_ns, "ns", 80)                                                                        \
    X(slab_32m_ns, "ns", 80)                                                                       \
    X(slab_128m_ns, "ns", 80)                                                                      \
    X(slab_512m_ns, "ns", 80)                                                                      \
    X(slab_1g_ns, "ns", 80)                                                                        \
    X(slab_cliff_mib, "MiB", 0)

enum mb_profile_fact {
#define MB_PROFILE_ENUM(name, unit, tolerance) MB_PROFILE_##name,
    MB_PROFILE_LIST(MB_PROFILE_ENUM)
#undef MB_PROFILE_ENUM
        MB_PROFILE_FACTS,
};

struct mb_profile {
    char device[96], driver[64], tables[32]; /* "": any */
    double value[MB_PROFILE_FACTS];          /* NaN: unknown */
};

const char *mb__profile_name(enum mb_profile_fact fact);
const char *mb__profile_unit(enum mb_profile_fact fact);
double mb__profile_tolerance(enum mb_profile_fact fact);
/* Everything unknown. */
void mb__profile_clear(struct mb_profile *out);
/* NULL: none for this device. */
const struct mb_profile *mb__profile_builtin(const char *device, const char *tables);
/* MB_ERR_IO, MB_ERR_PARSE with the line. */
enum mb_err mb__profile_read(const char *path, struct mb_profile *out);
enum mb_err mb__profile_write(const char *path, const struct mb_profile *profile);
/* Checks that the profile is of this device, and corrects its capabilities. Before first use. */
enum mb_err mb__profile_apply(const struct mb_profile *profile, struct mb_hw_dev *dev);

#endif
