/* SPDX-License-Identifier: MIT */
/*
 * Every function of the backend fails at its n-th use, for every n, under a program of public
 * calls: a failed call says why, has changed nothing, every invariant holds, live entries are the
 * record's, and the same call succeeds once the backend works again. In the end nothing is held.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/fault.h"
#include "hw/sim/sim.h"
#include "program.h"
#include "runtime/runtime.h"
#include "support/runtime_rig.h"
#include "vm_peek.h"

#ifdef MB_FAULT_INJECTION

enum { N_MAX = 2000 };

static uint64_t programs, calls, failures;
static char fault[64]; /* the one of the running program */

static const enum mb_err codes[] = {MB_ERR_DRIVER,  MB_ERR_NO_MEMORY,  MB_ERR_DEVICE_LOST,
                                    MB_ERR_TIMEOUT, MB_ERR_PERMISSION, MB_ERR_HOST_MEMORY};
enum { CODES = sizeof(codes) / sizeof(codes[0]) };

static void work_again(struct world *w)
{
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++)
        mb__hw_fault_set(w->dev->hw, (enum mb_hw_fault_op)op, 0, MB_OK, false);
}

static void look_closely(struct world *w, const char *call, enum mb_err err)
{
    struct mb_hw_dev *sim = mb__hw_fault_inner(w->dev->hw);

    /* The report of a request without memory says who holds what, not which call brought that
     * about. */
    if (!mb_error_detail()[0] ||
        (err != MB_ERR_NO_MEMORY && !strstr(mb_error_detail(), "injected") &&
         !strstr(mb_error_detail(), "unknown outcome") &&
         !strstr(mb_error_detail(), "could be had")))
        FAIL("%s: %s failed with %s without the reason: %s", fault, call, mb_error_name(err),
             mb_error_detail());
    work_again(w);
    w->lost = vm_peek_lost(w->dev->vm);
    if (w->lost)
        return;
    CHECK_OK(sim->ops->device_sync(sim));
    if (mb_check(w->dev))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
    if (mb_check_tables(w->dev, false, NULL))
        FAIL("%s: after %s: %s", fault, call, mb_error_detail());
}

/* One program with the n-th use of `op` failing; false: it has fewer uses. */
static bool run_with_fault(const char *config, enum mb_hw_fault_op op, uint64_t n, bool lasting)
{
    enum mb_err code = op == MB_HW_FAULT_slab_acquire ? MB_ERR_NO_MEMORY : codes[n % CODES];
    struct world w = {.fault = fault, .failed = look_closely};
    bool hit;

    programs++;
    snprintf(fault, sizeof(fault), "%s %s use %llu", mb__hw_fault_name(op), lasting ? "from" : "at",
             (unsigned long long)n);
    mb__hw_fault_next(op, n, code, lasting);
    if (mb_open(0, config, &w.dev)) {
        failures++;
        CHECK_PTR_EQ(w.dev, NULL);
        CHECK(strstr(mb_error_detail(), "injected") != NULL);
        w.dev = rt_open(config);
        w.failed_once = true;
    }
    program_run(&w);
    hit = w.failed_once || mb__hw_fault_hits(w.dev->hw);
    work_again(&w);
    calls += w.calls;
    failures += w.failures;
    program_finish(&w);
    return hit;
}

static void sweep(const char *config)
{
    uint64_t before = programs;

    mb__log_set(MB_LOG_OFF); /* injected faults say nothing new */
    for (int op = 0; op <= MB_HW_FAULT_ANY; op++) {
        for (int lasting = 0; lasting < 2; lasting++) {
            uint64_t n = 1;

            while (n < N_MAX && run_with_fault(config, (enum mb_hw_fault_op)op, n, lasting))
                n++;
            CHECK(n < N_MAX);
        }
    }
    printf("COUNT programs with a failing backend function below the public interface %llu\n",
           (unsigned long long)(programs - before));
    printf("COUNT calls of those programs %llu\n", (unsigned long long)(calls));
    printf("COUNT of these calls failed %llu\n", (unsigned long long)(failures));
    printf("%llu programs, %llu calls, %llu of them failed\n",
           (unsigned long long)(programs - before), (unsigned long long)calls,
           (unsigned long long)failures);
    CHECK(programs - before > 100);
    calls = failures = 0;
}

TEST(own_tables)
{
    sweep("backend:sim,device_memory:128m,explore:yes");
}

TEST(fresh_and_deferred)
{
    sweep("backend:sim,device_memory:128m,policy:fresh,deferred:yes");
}

TEST(homes_mapped_by_the_driver)
{
    sweep("backend:sim,device_memory:128m,driver_home:yes");
}

TEST(isolated_amd)
{
    sweep("backend:sim,device_memory:128m,model:mi210,tables:isolated");
}

TEST(driver_tables)
{
    sweep("backend:sim,device_memory:128m,tables:driver,cache:no");
}

/* As the cuda backend submits: there is no fence to fail behind a batch that was accepted. */
TEST(submit_gives_the_fence)
{
    mb__hw_fault_submit_fence(true);
    sweep("backend:sim,device_memory:128m,explore:yes");
    sweep("backend:sim,device_memory:128m,policy:fresh");
    mb__hw_fault_submit_fence(false);
}

#else

TEST(faults)
{
    SKIP("fault injection is not compiled in: configure with MB_FAULTS=ON");
}

#endif
