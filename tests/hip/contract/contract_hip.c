/* SPDX-License-Identifier: MIT */
/*
 * The contract, held to the `hip` backend on A FAKE of HIP (tests/hip/fake): what is tested is MoonBright's side of the
 * interface. It says nothing about AMD hardware, on which it was not run.
 */
#include "contract.h"

#define GIB ((uint64_t)1 << 30)

static const struct contract_config configs[] = {
    {.backend = "hip", .name = "hip on the fake", .hw = {.device_memory_bytes = 4 * GIB}},
};

#define RUN_RULE(name)                                                                             \
    TEST(name)                                                                                     \
    {                                                                                              \
        contract_run(configs, sizeof(configs) / sizeof(configs[0]), contract_##name);              \
    }
CONTRACT_RULES(RUN_RULE)
