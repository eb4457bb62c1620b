/* SPDX-License-Identifier: MIT */
/* The contract, held to a real GPU through CUDA. Rules that would end the process's context say so
 * and are left out; memory is capped, so that the device stays usable for others. */
#include "../contract.h"

#define GIB ((uint64_t)1 << 30)

#define CUDA(text, mode)                                                                           \
    {                                                                                              \
        .backend = "cuda", .name = "cuda " text, .hw = {                                           \
            .device_memory_bytes = 4 * GIB,                                                        \
            .tables = mode                                                                         \
        }                                                                                          \
    }

static const struct contract_config configs[] = {
    CUDA("inline", "inline"),
    CUDA("isolated", "isolated"),
    CUDA("driver tables", "driver"),
};

static void run(contract_rule rule)
{
    const unsigned all = sizeof(configs) / sizeof(configs[0]);
    const char *only = getenv("MB_GPU_TABLES");
    unsigned i = 0;

    while (only && i < all && strcmp(configs[i].hw.tables, only) != 0)
        i++;
    assert_true(i < all); /* MB_GPU_TABLES names no way */
    contract_run(&configs[i], only ? 1 : all, rule);
}

#define RUN_RULE(name)                                                                             \
    TEST(name)                                                                                     \
    {                                                                                              \
        run(contract_##name);                                                                      \
    }
CONTRACT_RULES(RUN_RULE)
