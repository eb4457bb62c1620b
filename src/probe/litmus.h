/* SPDX-License-Identifier: MIT */
/*
 * litmus.h - the litmus programs, and the steps that the probe shares with them.
 *
 * A rule of the software GPU can be switched off; each program names the switch under which its
 * answer must be another one. That is how the tests know that the program asks what it says.
 */
#ifndef MB_PROBE_LITMUS_H
#define MB_PROBE_LITMUS_H

#include "probe/lab.h"

/* Switches of mb_lab_ops.switch_off. */
enum mb_litmus_off {
    MB_LITMUS_OFF_VALID = 1 << 0,      /* walks bring in no valid neighbours */
    MB_LITMUS_OFF_INVALID = 1 << 1,    /* walks bring in no invalid neighbours */
    MB_LITMUS_OFF_INVALIDATE = 1 << 2, /* invalidates have no effect */
    MB_LITMUS_OFF_MEMBAR = 1 << 3,     /* membars have no effect */
    MB_LITMUS_OFF_L1 = 1 << 4,         /* loads are not cached in L1 */
    MB_LITMUS_OFF_BOUNDARY = 1 << 5,   /* L1 outlives kernels */
};

struct mb_litmus_case {
    struct mb_litmus_info info;
    unsigned off_mutants; /* enum mb_litmus_off; 0: no switch */
    bool off_walk_ahead;  /* the switch is the option walk_ahead */
    bool needs_invalid;   /* cleared slots must be invalid entries: a tree of our own, or spoil */
    bool explore;         /* on the software GPU only drawn orders can show it */
    enum mb_err (*run)(struct mb_lab *lab, char *answer, size_t bytes);
};
extern const struct mb_litmus_case mb__litmus_cases[];
extern const unsigned mb__litmus_case_count;

/* NULL: there is none. */
const struct mb_litmus_case *mb__litmus_find(const char *name);
/* Makes what a case needs. `off`: its switch is used (any value for off_walk_ahead). */
enum mb_err mb__litmus_open(const char *backend, const struct mb_hw_config *config, uint64_t seed,
                            const struct mb_litmus_case *c, unsigned off, struct mb_lab *lab);
/* Runs one case and compares. */
void mb__litmus_judge(struct mb_lab *lab, const struct mb_litmus_case *c,
                      struct mb_litmus_result *out);
enum mb_err mb__litmus_run(const char *backend, const struct mb_hw_config *config, const char *name,
                           uint64_t seed, struct mb_litmus_result *out);

/* One instruction as a kernel. */
enum mb_err mb__litmus_one(struct mb_lab *lab, struct mb_hw_stream *stream, enum mb_litmus_op op,
                           mb_va va, uint64_t value, uint32_t answer);
/* Index of the frame that the slot shows to a kernel now; -1: none of the named ones. */
enum mb_err mb__litmus_read(struct mb_lab *lab, uint32_t slot, int *frame);
/* Slots show frames `frame`, frame + 1, ... modulo `wrap`, in one batch. */
enum mb_err mb__litmus_map(struct mb_lab *lab, uint32_t slot, uint32_t count, uint32_t frame,
                           uint32_t wrap, unsigned flags);

#endif
