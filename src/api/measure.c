/* SPDX-License-Identifier: MIT */
/*
 * measure.c - the public functions that measure: bench, litmus, probe, and the clock.
 *
 * They open a device of their own below the runtime, so nothing that a program holds is touched.
 */
#include <string.h>

#include "api/bench_host.h"
#include "api/config.h"
#include "base/clock.h"
#include "base/err.h"
#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "moonbright.h"
#include "probe/litmus.h"
#include "runtime/runtime.h"

#define NEED(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return mb__fail(MB_ERR_INVALID, __VA_ARGS__);                                          \
    } while (0)

uint64_t mb_clock_ns(mb_device dev)
{
    struct mb_sim_counters counters;
    struct mb_hw_dev *hw;

    if (!mb__device_is_open(dev) || strcmp(dev->backend->name, "sim") != 0)
        return mb__now_ns();
    hw = dev->hw;
#ifdef MB_FAULT_INJECTION
    hw = mb__hw_fault_inner(hw);
#endif
    mb__sim_counters(hw, &counters);
    return counters.host_ns;
}

enum mb_err mb_bench_run(int ordinal, const char *config, const struct mb_bench_options *options,
                         mb_bench_callback callback, void *user)
{
    struct mb__config parsed;
    enum mb_err err;

    NEED(options && options->name && callback,
         "mb_bench_run: options with a name, and a callback, are needed");
    err = mb__config_read(ordinal, config, &parsed);
    if (err)
        return err;
    if (strcmp(options->name, "host") == 0)
        return mb__bench_host(&parsed, options, callback, user);
    return mb__bench_run(parsed.backend, &parsed.hw, options, callback, user);
}

enum mb_err mb_litmus_list(struct mb_litmus_info *list, unsigned capacity, unsigned *count)
{
    NEED(count && (list || !capacity),
         "mb_litmus_list: count, and list unless capacity is 0, are needed");
    for (unsigned i = 0; i < mb__litmus_case_count && i < capacity; i++)
        list[i] = mb__litmus_cases[i].info;
    *count = mb__litmus_case_count;
    return MB_OK;
}

enum mb_err mb_litmus_run(int ordinal, const char *config, const char *name, uint64_t seed,
                          struct mb_litmus_result *out)
{
    struct mb__config parsed;
    enum mb_err err;

    NEED(name && out, "mb_litmus_run: a name and a place for the result are needed");
    err = mb__config_read(ordinal, config, &parsed);
    return err ? err : mb__litmus_run(parsed.backend, &parsed.hw, name, seed, out);
}

enum mb_err mb_probe_run(int ordinal, const char *config, const char *path, uint64_t seed,
                         mb_fact_callback callback, void *user)
{
    struct mb__config parsed;
    enum mb_err err;

    NEED(callback, "mb_probe_run: a callback is needed");
    err = mb__config_read(ordinal, config, &parsed);
    return err ? err : mb__probe_run(parsed.backend, &parsed.hw, path, seed, callback, user);
}
