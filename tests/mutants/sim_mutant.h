/* SPDX-License-Identifier: MIT */
/*
 * sim_mutant.h - runs a protocol with every step, which must pass under every seed, and with one
 * step removed, which the software GPU must catch.
 */
#ifndef MB_TESTS_SIM_MUTANT_H
#define MB_TESTS_SIM_MUTANT_H

#include <stdio.h>

#include "support/sim_rig.h"
#include "test.h"

enum { MUTANT_SEEDS = 200 };

/* Everything that can show a mistake. */
struct sim_verdict {
    enum mb_err err; /* of the final synchronize */
    uint64_t wrong_accesses, wrong_words, faults;
};

static inline bool caught(const struct sim_verdict *verdict)
{
    return verdict->err || verdict->wrong_accesses || verdict->wrong_words || verdict->faults;
}

/* Waits for everything, takes the verdict and closes the rig. */
static inline struct sim_verdict rig_verdict(struct sim_rig *rig)
{
    struct sim_verdict verdict = {.err = rig_sync(rig)};
    struct mb_hw_counters counters = rig_counters(rig);

    verdict.wrong_accesses = counters.wrong_accesses;
    verdict.wrong_words = counters.wrong_words;
    verdict.faults = counters.faults;
    rig_close(rig);
    return verdict;
}

/* One run of a protocol; `broken`: without the step that the test is about. */
typedef struct sim_verdict (*sim_protocol)(const struct mb_hw_config *config, bool broken);

/* Seeds of MUTANT_SEEDS, in explore mode, under which the run is caught. */
static inline unsigned count_caught(sim_protocol run, const struct mb_hw_config *like, bool broken)
{
    struct mb_hw_config config = *like;
    uint64_t base = mb_test_seed();
    unsigned count = 0;

    config.explore = true;
    for (unsigned i = 0; i < MUTANT_SEEDS; i++) {
        struct sim_verdict verdict;

        config.seed = base + i;
        verdict = run(&config, broken);
        if (!broken && caught(&verdict))
            FAIL("the correct protocol was caught with seed 0x%llx: error %d, %llu wrong accesses, "
                 "%llu wrong words, %llu faults",
                 (unsigned long long)config.seed, (int)verdict.err,
                 (unsigned long long)verdict.wrong_accesses,
                 (unsigned long long)verdict.wrong_words, (unsigned long long)verdict.faults);
        count += caught(&verdict);
    }
    return count;
}

/* The correct protocol passes by time and under every seed; the broken one is caught under at least
 * `least` seeds. */
static inline void check_mutant(sim_protocol run, const struct mb_hw_config *config, unsigned least)
{
    struct sim_verdict verdict = run(config, false);
    unsigned found;

    CHECK(!caught(&verdict));
    CHECK_EQ(count_caught(run, config, false), 0);
    found = count_caught(run, config, true);
    printf("caught under %u of %d seeds\n", found, MUTANT_SEEDS);
    CHECK(found >= least);
}

#endif
