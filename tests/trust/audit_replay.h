/* SPDX-License-Identifier: MIT */
/*
 * audit_replay.h - what an audit log says is mapped at its end.
 *
 * The log is held to its own rules: a frame is at home once, taken once, given back by its owner;
 * an address that is mapped was free, and one that is unmapped showed just that frame; batches have
 * one outcome.
 */
#ifndef MB_TESTS_TRUST_AUDIT_REPLAY_H
#define MB_TESTS_TRUST_AUDIT_REPLAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moonbright.h"

struct audit_page {
    uint64_t va, phys;
    uint32_t owner; /* home: of the frame, 0: none */
    bool home;
};

struct audit_state {
    struct audit_page *page; /* unordered */
    size_t count, capacity;
    uint64_t open_batches; /* planned, without an outcome: at most one, the last */
};

/* 0, or 1 with a text. Batches without an outcome count as not done. */
int audit_replay(const char *path, struct audit_state *state, struct mb_audit_summary *sum,
                 char *text, size_t size);
void audit_state_free(struct audit_state *state);

#endif
