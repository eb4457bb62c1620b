/* SPDX-License-Identifier: MIT */
/*
 * The host runs out of memory: the n-th allocation that MoonBright makes fails, for every n, once
 * or from then on. A failed call says so and has changed nothing, and succeeds once there is memory
 * again. And the device runs out of memory, at every size.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/fault.h"
#include "program.h"
#include "runtime/runtime.h"
#include "support/alloc_faults.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

enum { N_MAX = 100000 };

/* ------------------------------------------------------------ host memory */

static char fault[64];
static uint64_t programs, calls, failures, lost;

static void look_closely(struct world *w, const char *call, enum mb_err err)
{
    struct mb_hw_dev *sim;

    plan.at = 0;
    if (!mb_error_detail()[0])
        FAIL("%s: %s failed with %s and no detail", fault, call, mb_error_name(err));
    if (err != MB_ERR_HOST_MEMORY && err != MB_ERR_NO_MEMORY && err != MB_ERR_DEVICE_LOST)
        FAIL("%s: %s failed with %s: %s", fault, call, mb_error_name(err), mb_error_detail());
    /* The software GPU keeps the device's contents in host memory too: without, it is lost. */
    w->lost = vm_peek_lost(w->dev->vm) || w->dev->hw->ops->health(w->dev->hw);
    if (w->lost) {
        lost++;
        return;
    }
    sim = mb__hw_fault_inner(w->dev->hw);
    CHECK_OK(sim->ops->device_sync(sim));
    if (mb_check(w->dev))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
    if (mb_check_tables(w->dev, false, NULL))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
}

/* False: the program makes fewer allocations. */
static bool run_without(const char *config, uint64_t n, bool lasting)
{
    struct world w = {.fault = fault, .failed = look_closely};
    enum mb_err err;
    bool hit;

    programs++;
    snprintf(fault, sizeof(fault), "allocation %llu%s", (unsigned long long)n,
             lasting ? " and all later ones" : "");
    fail_at(n, lasting);
    err = mb_open(0, config, &w.dev);
    if (err) {
        plan.at = 0;
        CHECK_EQ(err, MB_ERR_HOST_MEMORY);
        CHECK_PTR_EQ(w.dev, NULL);
        failures++;
        w.dev = rt_open(config);
    }
    program_run(&w);
    hit = plan.hits != 0;
    plan.at = 0;
    calls += w.calls;
    failures += w.failures;
    w.lost |= w.dev->hw->ops->health(w.dev->hw) != MB_OK;
    program_finish(&w);
    return hit;
}

static void sweep(const char *config)
{
    mb__log_set(MB_LOG_OFF);
    for (int lasting = 0; lasting < 2; lasting++) {
        uint64_t n = 1;

        while (n < N_MAX && run_without(config, n, lasting))
            n++;
        CHECK(n < N_MAX);
    }
    printf("COUNT programs with a failing host allocation %llu\n", (unsigned long long)(programs));
    printf("COUNT calls that failed for want of host memory %llu\n",
           (unsigned long long)(failures));
    printf("%llu programs, %llu calls, %llu of them failed, %llu devices lost\n",
           (unsigned long long)programs, (unsigned long long)calls, (unsigned long long)failures,
           (unsigned long long)lost);
    CHECK(programs > 100);
    programs = calls = failures = lost = 0;
}

TEST(every_allocation)
{
    sweep("backend:sim,device_memory:128m");
}

TEST(every_allocation_homes_by_the_driver_fresh)
{
    sweep("backend:sim,device_memory:128m,driver_home:yes,policy:fresh");
}

/* ------------------------------------------------------------ device memory */

/* Fills the device with blocks of one size; how many there were. */
static unsigned fill_device(mb_device dev, uint64_t bytes, void **block, unsigned most)
{
    unsigned count = 0;
    enum mb_err err = MB_OK;

    while (count < most && !(err = mb_malloc_async(dev, bytes, NULL, &block[count])))
        count++;
    CHECK(err == MB_OK || err == MB_ERR_NO_MEMORY);
    if (err) {
        /* The report says what was asked and who holds what. */
        char asked[32];

        snprintf(asked, sizeof(asked), "%llu bytes", (unsigned long long)bytes);
        CHECK(strstr(mb_error_detail(), asked) != NULL);
    }
    RT_OK(mb_check(dev));
    return count;
}

static void free_all(mb_device dev, void **block, unsigned count, unsigned step)
{
    for (unsigned first = 0; first < step; first++)
        for (unsigned i = first; i < count; i += step)
            RT_OK(mb_free_async(dev, block[i], NULL));
}

/* At every size the device can be filled, and as full again after everything went, in any order. */
TEST(device_memory_runs_out_at_every_size)
{
    enum { MOST = 70000 };
    const uint64_t device = 64 * RT_MIB;
    void **block = calloc(MOST, sizeof(*block));
    unsigned sizes = 0;

    CHECK(block);
    for (uint64_t bytes = 1024; bytes <= device + 4096; bytes += bytes / 3 + 512) {
        mb_device dev = rt_open("backend:sim,device_memory:64m");
        unsigned most = (unsigned)(device / ((bytes + 511) & ~511u));
        unsigned first = fill_device(dev, bytes, block, MOST), again;

        if (first > most || (bytes <= device && first + first / 8 + 1 < most))
            FAIL("%u blocks of %llu bytes, there is room for %u", first, (unsigned long long)bytes,
                 most);
        free_all(dev, block, first, 7);
        again = fill_device(dev, bytes, block, MOST);
        CHECK_EQ(again, first);
        free_all(dev, block, again, 1);
        rt_close(dev);
        sizes++;
    }
    printf("COUNT block sizes with device memory exhausted and refilled %u\n", sizes);
    free(block);
}
