/* SPDX-License-Identifier: MIT */
/*
 * The contract, held to the software GPU in all its models and modes.
 *
 * MB_CONTRACT_MUTANTS, a number, takes safety steps out of the device (enum mb_sim_mutant): rules
 * must then fail, which test_mutants.sh checks.
 */
#include "contract.h"

#include <stdlib.h>

#include "hw/sim/sim.h"

static void set_mutants(struct mb_hw_dev *dev)
{
    const char *text = getenv("MB_CONTRACT_MUTANTS");

    if (text && *text)
        mb__sim_set_mutants(dev, (unsigned)strtoul(text, NULL, 0));
}

/* Frames that are not consecutive, copies by a copy engine. */
static void set_scatter(struct mb_hw_dev *dev)
{
    set_mutants(dev);
    mb__sim_set_scatter(dev, true);
    mb__sim_set_copy_engine(dev, true);
}

#define GIB ((uint64_t)1 << 30)
#define SIM_WITH(prepare, text, ...)                                                               \
    {                                                                                              \
        "sim", "sim " text, {.device_memory_bytes = 4 * GIB, __VA_ARGS__}, true, prepare           \
    }
#define SIM(...) SIM_WITH(set_mutants, __VA_ARGS__)
/* Explored orders get two seeds each; contract_run draws them. */
#define MODES(name, ...)                                                                           \
    SIM(name " inline", .tables = "inline", __VA_ARGS__),                                          \
        SIM(name " inline explored", .tables = "inline", .explore = true, __VA_ARGS__),            \
        SIM(name " inline explored again", .tables = "inline", .explore = true, __VA_ARGS__),      \
        SIM(name " isolated", .tables = "isolated", __VA_ARGS__),                                  \
        SIM(name " isolated explored", .tables = "isolated", .explore = true, __VA_ARGS__),        \
        SIM(name " isolated explored again", .tables = "isolated", .explore = true, __VA_ARGS__)

static const struct contract_config configs[] = {
    MODES("h200", .model = "h200"),
    MODES("h200 driver home", .model = "h200", .driver_home = true),
    MODES("a100", .model = "a100"),
    MODES("a100 driver home", .model = "a100", .driver_home = true),
    MODES("mi210", .model = "mi210"),
    MODES("mi210 driver home", .model = "mi210", .driver_home = true),
    SIM("h200 walk-ahead", .model = "h200", .walk_ahead = true, .explore = true),
    SIM("h200 self-heal", .model = "h200", .self_heal = true, .explore = true),
    SIM("h200 driver tables", .model = "h200", .tables = "driver"),
    SIM("h200 no oracle", .model = "h200", .no_oracle = true, .explore = true),
    SIM("a100 no oracle", .model = "a100", .no_oracle = true),
    SIM("mi210 no oracle", .model = "mi210", .no_oracle = true, .explore = true),
    SIM_WITH(set_scatter, "h200 scattered", .model = "h200", .explore = true),
    SIM_WITH(set_scatter, "a100 scattered driver home", .model = "a100", .driver_home = true),
};

#define RUN_RULE(name)                                                                             \
    TEST(name)                                                                                     \
    {                                                                                              \
        contract_run(configs, sizeof(configs) / sizeof(configs[0]), contract_##name);              \
    }
CONTRACT_RULES(RUN_RULE)
