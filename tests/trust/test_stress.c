/* SPDX-License-Identifier: MIT */
/* The stress of stress.h on the software GPU, short; on a GPU it runs for minutes. */
#include "stress.h"

#include <stdio.h>

#include "test.h"

static void stress(const char *config, uint64_t rounds)
{
    struct stress_plan plan = {
        .config = config, .seed = mb_test_seed(), .rounds = rounds, .most_bytes = 16 << 20};
    struct stress_sum sum;

    CHECK_EQ(stress_run(&plan, &sum), 0);
    CHECK(sum.blocks + sum.refused >= STRESS_THREADS * rounds);
    printf("COUNT blocks read back under %d threads on %d streams %llu\n", STRESS_THREADS,
           STRESS_STREAMS, (unsigned long long)sum.blocks);
    printf("COUNT windows read through an alias %llu\n", (unsigned long long)sum.maps);
}

TEST(roomy)
{
    stress("backend:sim,device_memory:2g", 600);
}

TEST(tight)
{
    stress("backend:sim,device_memory:192m,explore:yes", 300);
}

TEST(isolated)
{
    stress("backend:sim,device_memory:512m,tables:isolated,policy:fresh", 300);
}
